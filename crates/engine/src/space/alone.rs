//! A deletion that comes alone, and what its commit writes at most, counted where it is.
//!
//! The bound of all operations ([`super::bound`]) follows from a few sums, and has to hold for whatever comes together. Who fills a filesystem
//! with that bound before his eyes leaves room for it; Linux, which reckons otherwise, may leave less, and then nothing could be deleted that
//! snapshots share, nor the snapshots. So there is a last resort. When nothing else is promised and no commit is under way, a deletion may
//! come alone: the blocks that it changes are looked at, and those that its commit may change thereby, and it is let in where there is room for
//! these. Until it is committed, which is done at once, nobody else is promised anything.
//!
//! What is written is then:
//!
//! 1. **The ways to what is deleted**, each block once. Those that snapshots may share stay where they were, too.
//! 2. **The extent tree**: its nodes, the leaves that have the extents that are named there, and, as with any commit, all leaves that items
//!    of tree blocks are in or may come into. Of these so many split as what is added can fill: an item for each block that is written, and the
//!    references that copies add. How much room each leaf has is known, so that the worst is that all comes to the fullest ones. This holds
//!    because what comes of one old leaf stays in leaves of its own in such a commit ([`crate::tree::Merge::keep_leaves_apart`]): elsewhere
//!    merging fills leaves whole that had room, and what comes into them later splits them.
//! 3. **The others** as in [`super::bound`], but for what they are in truth: a root tree of three blocks is not written in eight.
//!
//! A file is deleted so only where a subvolume can be deleted and dropped afterwards, if it can be now: that is what gives room where
//! snapshots share everything. Dropping goes on in the smallest steps for which there is room, each counted in the same way.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering::Relaxed;

use buttress_ondisk::{LeafBuilder, TreeBlock};

use super::bound::{Bound, ITEM, NODES_ABOVE, QUOTA_SLACK, RANGE, REFERENCE, Total, rewritten};
use super::reserve::{Need, Outlook, Promises, Shortage};
use super::{Class, Space};

/// Once a leaf has split, those that came of it split again at the earliest when this part of a leaf has come into them. Two leaves that share
/// evenly take half a leaf each; where one is left full, the other one has a quarter, which has come in.
const SPLITS_AGAIN: u64 = 8;
/// Root items that each commit may write, besides those of subvolumes: of the trees for extents, devices, checksums, quotas, uuids, free space
/// and block groups.
const ROOTS: u64 = 7;

/// Part of a tree: blocks that may be written anew.
#[derive(Clone, Debug, Default)]
pub struct Part {
    /// Bytes that each leaf has room for, by address.
    leaves: BTreeMap<u64, u64>,
    nodes: BTreeSet<u64>,
}

impl Part {
    /// One more block; whether it is new.
    pub fn add(&mut self, block: &TreeBlock) -> bool {
        if !block.is_leaf() {
            return self.nodes.insert(block.bytenr());
        }
        let room = LeafBuilder::room(block.as_bytes().len());
        let free = room.saturating_sub(block.leaf_used()) as u64;
        self.leaves.insert(block.bytenr(), free).is_none()
    }

    /// Blocks.
    pub fn len(&self) -> u64 {
        (self.leaves.len() + self.nodes.len()) as u64
    }

    /// Leaves.
    pub fn leaves(&self) -> usize {
        self.leaves.len()
    }

    fn and(&self, other: &Part) -> Part {
        let mut both = self.clone();
        both.leaves.extend(&other.leaves);
        both.nodes.extend(&other.nodes);
        both
    }

    /// What each leaf has room for, with so many of which that is not known; the fullest first.
    fn rooms(&self, unknown: u64) -> Vec<u64> {
        let mut rooms = vec![0; unknown as usize];
        rooms.extend(self.leaves.values());
        rooms.sort_unstable();
        rooms
    }
}

/// How large a tree is.
#[derive(Clone, Copy, Debug, Default)]
pub struct Size {
    /// Blocks.
    pub blocks: u64,
    /// Blocks on the way to an item.
    pub height: u64,
}

impl Size {
    /// Blocks on the ways to so many items.
    fn ways(self, items: u64) -> u64 {
        items.saturating_mul(self.height).min(self.blocks)
    }
}

/// How the trees are that any commit may change.
#[derive(Clone, Debug, Default)]
pub struct Shape {
    /// Of the extent tree: all nodes, and the leaves that items of tree blocks are in, or may come into.
    pub extents: Part,
    /// Bytes of a new tree block's item.
    pub block_item: u64,
    /// Block groups have no tree of their own.
    pub groups_in_extents: bool,
    /// The root tree.
    pub roots: Size,
    /// The uuid tree.
    pub uuids: Size,
    /// The tree for devices.
    pub devices: Size,
    /// Blocks of the tree for block groups.
    pub groups: u64,
}

/// What one deletion changes.
#[derive(Clone, Debug, Default)]
pub struct Lone {
    /// The ways in its tree.
    pub way: Part,
    /// Blocks of ways that were not looked at.
    pub unknown_way: u64,
    /// Blocks of all ways that snapshots may share.
    pub shared: u64,
    /// Leaves of the extent tree that have the data extents.
    pub extents: Part,
    /// The same, that were not looked at.
    pub unknown_extents: u64,
    /// References to tree blocks that may be new.
    pub blocks: u64,
    /// References to data extents that may be new.
    pub gains: u64,
    /// Data extents that may go.
    pub data: u64,
    /// Items of the root tree.
    pub roots: u64,
    /// Items of the uuid tree.
    pub uuids: u64,
    /// Bytes of items that come into the trees on its way.
    pub bytes: u64,
}

impl Lone {
    fn and(&self, other: &Lone) -> Lone {
        Lone {
            way: self.way.and(&other.way),
            unknown_way: self.unknown_way.saturating_add(other.unknown_way),
            shared: self.shared.saturating_add(other.shared),
            extents: self.extents.and(&other.extents),
            unknown_extents: self.unknown_extents.saturating_add(other.unknown_extents),
            blocks: self.blocks.saturating_add(other.blocks),
            gains: self.gains.saturating_add(other.gains),
            data: self.data.saturating_add(other.data),
            roots: self.roots.saturating_add(other.roots),
            uuids: self.uuids.saturating_add(other.uuids),
            bytes: self.bytes.saturating_add(other.bytes),
        }
    }
}

/// Leaves that split at most when so many bytes come into leaves with these rooms, the fullest first.
fn splits(rooms: &[u64], mut bytes: u64, again: u64) -> u64 {
    let mut count = 0;
    for room in rooms.iter().take_while(|room| **room < again) {
        match bytes.checked_sub(room + 1) {
            Some(rest) => (bytes, count) = (rest, count + 1),
            None => return count,
        }
    }
    count + bytes / again.max(1)
}

impl Outlook {
    fn splits_again(&self) -> u64 {
        self.node / SPLITS_AGAIN
    }

    /// Nodes that come to `nodes` ones at most when they get so many children more: in each commit all of them may be filled whole and then
    /// split, and two levels may be new.
    fn new_nodes(&self, nodes: u64, children: u64) -> u64 {
        match children {
            0 => 1,
            _ => nodes + children / (self.children_of_node() / 4) + 2,
        }
    }

    /// What is not the extent tree's, nor that for free space.
    fn bound_of_others(&self, shape: &Shape, lone: &Lone) -> Bound {
        let split = splits(&lone.way.rooms(0), lone.bytes, self.splits_again())
            .saturating_add(lone.unknown_way);
        let added = match lone.bytes {
            0 => 1,
            _ => split + self.new_nodes(lone.way.nodes.len() as u64, split),
        };
        let way = lone.way.len().saturating_add(lone.unknown_way);
        let roots = shape.roots.ways(ROOTS.saturating_add(lone.roots));
        let rest = shape.uuids.ways(lone.uuids) + shape.devices.ways(1) + shape.groups;
        let quota = if self.trees.quota > 0 { self.trees.quota + QUOTA_SLACK } else { 0 };
        let growth = added + roots + shape.devices.ways(1) + 2;
        let blocks = way + roots + rest + quota + growth;
        let growth = growth.saturating_add(lone.shared).saturating_add(quota);
        let leaves = lone.data.saturating_mul(2);
        let csum = rewritten(self.trees.csum, self.node, leaves, lone.data, RANGE);
        Bound { blocks, growth, ..Bound::default() }.and(csum)
    }

    /// What the commit of a deletion writes that comes alone.
    pub fn bound_alone(&self, shape: &Shape, lone: &Lone) -> Bound {
        let others = self.bound_of_others(shape, lone);
        let part = shape.extents.and(&lone.extents);
        let rooms = part.rooms(lone.unknown_extents);
        let groups = if shape.groups_in_extents { self.data.groups.min(lone.data + 4) } else { 0 };
        let nodes = part.nodes.len() as u64;
        let old = rooms.len() as u64 + groups + nodes;
        let references = lone.blocks.saturating_mul(ITEM);
        let references = references.saturating_add(lone.gains.saturating_mul(REFERENCE));
        let (mut split, mut all) = (0, 0);
        loop {
            let spans = lone.data.saturating_add(2 * all);
            let spans =
                rewritten(self.trees.free_space, self.node, self.trees.free_space, spans, RANGE);
            let grown = split + self.new_nodes(nodes, split);
            let extents = Bound { blocks: old + grown, growth: grown, ..Bound::default() };
            let bound = others.and(spans).and(extents);
            let bytes = bound.blocks.saturating_mul(shape.block_item).saturating_add(references);
            let more = splits(&rooms, bytes, self.splits_again());
            if bound.blocks == all && more == split || bound.blocks > self.metadata.nodes {
                return bound;
            }
            (split, all) = (more.max(split), bound.blocks.max(all));
        }
    }

    /// A step of dropping a subvolume that lets go of so many data extents, or gives them to a block.
    fn lone_step(&self, extents: u64) -> Lone {
        Lone {
            unknown_extents: 2 * extents,
            blocks: self.nodes_of_step(),
            gains: extents,
            data: extents,
            roots: 2,
            ..Lone::default()
        }
    }

    /// Deleting a subvolume, about which nothing is known.
    fn lone_subvolume(&self) -> Lone {
        let (way, nodes) = (3 * (NODES_ABOVE + 1), 3 * NODES_ABOVE);
        Lone {
            unknown_way: way,
            shared: if self.shared { way } else { 0 },
            blocks: if self.shared { nodes * self.children_of_node() } else { 0 },
            roots: 4,
            uuids: 2,
            ..self.lone_step(0)
        }
    }

    /// Whether there is room for a deletion, and then for dropping a subvolume, after deleting it, too, unless the deletion is that; if
    /// there is now.
    fn has_room_alone(&self, shape: &Shape, lone: &Lone, is_subvolume: bool) -> Option<Bound> {
        let bound = self.bound_alone(shape, lone);
        let free = self.metadata.nodes;
        let later = if is_subvolume { self.lone_step(0) } else { self.lone_subvolume() };
        let is_left = || {
            let both = self.bound_alone(shape, &lone.and(&later)).blocks;
            both.saturating_add(bound.growth) <= free
        };
        let was_there = || self.bound_alone(shape, &later).blocks <= free;
        (bound.blocks <= free && (is_left() || !was_there())).then_some(bound)
    }
}

impl Promises {
    /// Nobody was promised anything.
    fn are_none(&self) -> bool {
        self.all() == Total::default() && self.alone.is_none()
    }
}

impl Space {
    /// Whether tree blocks are at addresses from `from` to before `to`, or may come there.
    pub fn has_blocks(&self, from: u64, to: u64) -> bool {
        let list = self.index.list.read();
        let first = list.partition_point(|(range, _)| range.end() <= from);
        let near = list.iter().skip(first).take_while(|(range, _)| range.start < to);
        near.into_iter().any(|(_, class)| self.mixed || *class != Class::Data)
    }

    /// Whether the deletion that was promised last comes alone.
    pub fn is_alone(&self) -> bool {
        self.alone.load(Relaxed)
    }

    /// Lets a deletion in that comes alone. `is_current` says whether the trees are still those that were looked at; no transaction
    /// ends meanwhile.
    pub fn reserve_alone(
        &self,
        need: Need,
        (shape, lone): (&Shape, &Lone),
        is_current: impl FnOnce() -> bool,
    ) -> Result<(), Shortage> {
        let mut pool = self.pool.lock();
        self.thaw();
        if !pool.promises.are_none() || pool.start.is_some() || !is_current() {
            return Err(Shortage::CommitFirst);
        }
        let outlook = self.outlook(&pool, false);
        if std::env::var_os("BT_PROBE").is_some() {
            let b = outlook.bound_alone(shape, lone);
            let later = if need.subvolume { outlook.lone_step(0) } else { outlook.lone_subvolume() };
            eprintln!("PROBE alone free {} bound {b:?} others {:?} later {:?} both {:?} extents leaves {} nodes {} way {} shared {} blocks {} gains {} roots {:?} uuids {:?}", outlook.metadata.nodes, outlook.bound_of_others(shape, lone), outlook.bound_alone(shape, &later), outlook.bound_alone(shape, &lone.and(&later)), shape.extents.leaves(), shape.extents.nodes.len(), lone.way.len(), lone.shared, lone.blocks, lone.gains, shape.roots, shape.uuids);
        }
        let Some(bound) = outlook.has_room_alone(shape, lone, need.subvolume) else {
            return Err(Shortage::NoSpace);
        };
        pool.promises.running = pool.promises.running.plus(need);
        self.begin_alone(&mut pool, bound);
        Ok(())
    }

    /// The same for the commit under way, of which nothing else is known, to drop part of a subvolume: how many references it may let
    /// go of, to data extents and to tree blocks.
    pub fn reserve_upkeep_alone(&self, shape: &Shape) -> Option<(u64, u64)> {
        let mut pool = self.pool.lock();
        self.thaw();
        if !pool.promises.are_none() {
            return None;
        }
        let outlook = self.outlook(&pool, false);
        let mut extents = outlook.extents_of_leaf();
        loop {
            let bound = outlook.bound_alone(shape, &outlook.lone_step(extents));
            if std::env::var_os("BT_PROBE").is_some() {
                eprintln!("PROBE step alone extents {extents} free {} bound {bound:?}", outlook.metadata.nodes);
            }
            if bound.blocks <= outlook.metadata.nodes {
                let nodes = outlook.nodes_of_step();
                pool.promises.committing = Total::dropping(extents, nodes, 1);
                self.begin_alone(&mut pool, bound);
                return Some((extents, nodes));
            }
            if extents == 0 {
                return None;
            }
            extents /= 2;
        }
    }

    fn begin_alone(&self, pool: &mut super::Pool, bound: Bound) {
        pool.promises.alone = Some(bound);
        pool.credit = Default::default();
        self.alone.store(true, Relaxed);
    }

    /// It is committed, or has changed nothing; what it was promised.
    pub(super) fn end_alone(&self, promises: &mut Promises) -> Option<Bound> {
        self.alone.store(false, Relaxed);
        promises.alone.take()
    }
}
