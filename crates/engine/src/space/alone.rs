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
//! 2. **The extent tree**: its nodes, the leaves that have the extents that are named there, and leaves that items of tree blocks are in. A
//!    leaf is written when the item of something in it changes: of what is written, which leaves its place and takes another one. So all
//!    leaves may be written, but no others than those that have an item of one of them, or of a block of another tree that is written; and of
//!    these no others than those that have an item of one of these. Each of these *steps* leaves fewer. What was not looked at may begin
//!    anywhere: until its way comes to one of the leaves that are left, it has as many leaves as there were steps.
//!
//!    How much room each leaf has is known, and what comes into it: references where those have their items that shared blocks lead to, which are part of
//!    these items as long as all items of the leaf are short; and items of new blocks, whose places are *chosen* here: where their items come into leaves that are written anyway, and that have room for
//!    them as far as that goes. What comes of one old leaf stays in leaves of its own in such a commit
//!    ([`crate::tree::Merge::keep_leaves_apart`]): elsewhere merging fills leaves whole that had room, and what comes into them later splits them.
//! 3. **The others** as in [`super::bound`], but for what they are in truth: a root tree of three blocks is not written in eight.
//!
//! What it leaves is room for a step of dropping a subvolume, if there is for that now: deleting a snapshot takes no more, and gives room where
//! everything is shared. What deletes no subvolume leaves what deleting others' files takes that nobody shares, too, as all deletions do that do not
//! come alone. Dropping goes on in the smallest steps for which there is room, each counted in the same way.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering::Relaxed;

use buttress_ondisk::view::extent_item_max;
use buttress_ondisk::{Key, LEVELS_MAX, LeafBuilder, TreeBlock, kind};
use parking_lot::MutexGuard;

use super::bound::{Bound, INLINE, ITEM, QUOTA_SLACK, RANGE, REFERENCE, Total, rewritten};
use super::group::Group;
use super::reserve::{Credit, Need, Outlook, Promises, Shortage};
use super::set::Sums;
use super::{Class, Pool, Range, Space};

/// Once a leaf has split, those that came of it split again at the earliest when this part of a leaf has come into them. Two leaves that share
/// evenly take half a leaf each; where one is left full, the other one has a quarter, which has come in.
const SPLITS_AGAIN: u64 = 8;
/// Root items that each commit may write, besides those of subvolumes: of the trees for extents, devices, checksums, quotas, uuids, free space
/// and block groups.
const ROOTS: u64 = 7;
/// So many steps are gone from leaves of the extent tree to those that have their items, at most, to find which of them are written.
const STEPS_MAX: u64 = 8;
/// Children of blocks that a step of dropping a subvolume may give to others at least.
const STEP_LEAST: u64 = 16;

fn room_in(leaf: &TreeBlock) -> u64 {
    LeafBuilder::room(leaf.as_bytes().len()).saturating_sub(leaf.leaf_used()) as u64
}

/// Blocks on the ways to some items of a tree.
#[derive(Clone, Debug, Default)]
pub struct Way {
    /// Bytes that each leaf has room for, by address.
    leaves: BTreeMap<u64, u64>,
    nodes: BTreeSet<u64>,
}

impl Way {
    /// One more block; whether it is new.
    pub fn add(&mut self, block: &TreeBlock) -> bool {
        match block.is_leaf() {
            true => self.leaves.insert(block.bytenr(), room_in(block)).is_none(),
            false => self.nodes.insert(block.bytenr()),
        }
    }

    fn addresses(&self) -> Vec<u64> {
        self.leaves.keys().chain(&self.nodes).copied().collect()
    }

    fn blocks(&self) -> u64 {
        (self.leaves.len() + self.nodes.len()) as u64
    }
}

/// A leaf of the extent tree: its first key, and its address. Not its first extent: the items of one may fill many leaves.
type LeafAt = (Key, u64);

/// A leaf of the extent tree.
#[derive(Clone, Copy, Debug)]
struct Leaf {
    /// Bytes that it has room for.
    room: u64,
    /// Bytes of the longest item of an extent in it; more than any has if there are references that have items of their own.
    longest: u64,
}

/// Leaves of the extent tree.
#[derive(Clone, Debug, Default)]
pub struct Leaves(BTreeMap<LeafAt, Leaf>);

impl Leaves {
    /// One more, in which items from `first` on are.
    pub fn add(&mut self, first: Key, leaf: &TreeBlock) {
        let lens = leaf.item_heads().iter().map(|head| match head.key.kind {
            kind::TREE_BLOCK_REF..=kind::SHARED_DATA_REF => u64::MAX,
            _ => head.size.get().into(),
        });
        let longest = lens.max().unwrap_or(0);
        self.0.insert((first, leaf.bytenr()), Leaf { room: room_in(leaf), longest });
    }

    /// Bytes that so many references to the tree block at `bytenr` add, each.
    fn reference_to(&self, bytenr: u64, count: u64, node: u64) -> u64 {
        let max = extent_item_max(node as usize) as u64;
        let len = |leaf: LeafAt| self.0[&leaf].longest.saturating_add(count * INLINE);
        if self.of(bytenr).all(|leaf| len(leaf) <= max) { INLINE } else { ITEM }
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn and(&self, other: &Leaves) -> Leaves {
        let known: BTreeSet<u64> = self.addresses().collect();
        let new = other.0.iter().filter(|((_, leaf), _)| !known.contains(leaf));
        Leaves(self.0.iter().chain(new).map(|(key, leaf)| (*key, *leaf)).collect())
    }

    fn addresses(&self) -> impl Iterator<Item = u64> {
        self.0.keys().map(|(_, leaf)| *leaf)
    }

    /// Those in which items of these blocks may be.
    fn with_items_of(&self, blocks: impl IntoIterator<Item = u64>) -> BTreeSet<LeafAt> {
        blocks.into_iter().flat_map(|bytenr| self.of(bytenr)).collect()
    }

    /// Those that items of the extent at `bytenr` may be in, or come into.
    fn of(&self, bytenr: u64) -> impl Iterator<Item = LeafAt> {
        let (from, to) = (Key::new(bytenr, 0, 0), Key::new(bytenr, u8::MAX, u64::MAX));
        let before = self.0.range(..(from, 0)).next_back();
        let at = self.0.range((from, 0)..=(to, u64::MAX));
        before.into_iter().chain(at).map(|(key, _)| *key)
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
    /// Nodes of the extent tree.
    pub nodes: u64,
    /// Its leaves that items of tree blocks are in, or may come into.
    pub leaves: Leaves,
    /// Where its nodes are, and all blocks of the other trees that any commit may change.
    pub others: Vec<u64>,
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
    pub way: Way,
    /// Blocks of ways that were not looked at.
    pub unknown_way: u64,
    /// Blocks of all ways that snapshots may share.
    pub shared: u64,
    /// Leaves of the extent tree that have the data extents.
    pub leaves: Leaves,
    /// The same, that were not looked at.
    pub unknown_leaves: u64,
    /// Tree blocks that references come to.
    pub blocks: Vec<u64>,
    /// The same, that were not looked at.
    pub unknown_blocks: u64,
    /// Data extents that references come to.
    pub extents: Vec<u64>,
    /// The same, that were not looked at.
    pub unknown_extents: u64,
    /// Data extents that may go.
    pub data: u64,
    /// Items of the root tree.
    pub roots: u64,
    /// Items of the uuid tree.
    pub uuids: u64,
    /// Bytes of items that come into the trees on its way.
    pub bytes: u64,
}

/// Leaves that split at most when so many bytes come into leaves with these rooms, wherever that is.
fn splits(mut rooms: Vec<u64>, mut bytes: u64, again: u64) -> u64 {
    rooms.sort_unstable();
    let mut count = 0;
    for room in rooms.into_iter().take_while(|room| *room < again) {
        match bytes.checked_sub(room + 1) {
            Some(rest) => (bytes, count) = (rest, count + 1),
            None => return count,
        }
    }
    count + bytes / again.max(1)
}

/// What comes into leaves of the extent tree: bytes, by leaf.
#[derive(Clone)]
struct Filling<'f> {
    leaves: &'f Leaves,
    added: BTreeMap<LeafAt, u64>,
}

impl<'f> Filling<'f> {
    fn new(leaves: &'f Leaves, lone: &Lone, node: u64) -> Filling<'f> {
        let mut filling = Filling { leaves, added: BTreeMap::new() };
        let mut blocks = lone.blocks.clone();
        blocks.sort_unstable();
        for same in blocks.chunk_by(|one, other| one == other) {
            let count = same.len() as u64;
            filling.add(same[0], count * leaves.reference_to(same[0], count, node));
        }
        lone.extents.iter().for_each(|bytenr| filling.add(*bytenr, REFERENCE));
        filling
    }

    fn add(&mut self, bytenr: u64, bytes: u64) {
        for leaf in self.leaves.of(bytenr) {
            *self.added.entry(leaf).or_default() += bytes;
        }
    }

    /// Where tree blocks can be: first those whose items come into leaves that have room for them.
    fn places(&self, runs: &[Range], node: u64, item: u64) -> Vec<u64> {
        let mut filled = self.clone();
        let places = runs.iter().flat_map(|run| (run.start..run.end()).step_by(node as usize));
        let (mut first, others): (Vec<u64>, Vec<u64>) = places.partition(|place| {
            let bytes = |leaf| filled.added.get(&leaf).copied().unwrap_or(0) + item;
            let fits = self.leaves.of(*place).all(|leaf| bytes(leaf) <= self.leaves.0[&leaf].room);
            if fits {
                filled.add(*place, item);
            }
            fits
        });
        first.extend(others);
        first
    }

    /// Leaves that split when new blocks are in these places.
    fn splits(&self, places: &[u64], lone: &Lone, item: u64, again: u64) -> u64 {
        let mut filled = self.clone();
        places.iter().for_each(|place| filled.add(*place, item));
        let (mut rooms, mut count) = (Vec::new(), 0);
        for (leaf, Leaf { room, .. }) in &self.leaves.0 {
            let bytes = filled.added.get(leaf).copied().unwrap_or(0);
            count += if bytes > *room { 1 + (bytes - room) / again } else { 0 };
            rooms.push(room.saturating_sub(bytes));
        }
        rooms.resize(rooms.len() + lone.unknown_leaves as usize, 0);
        let bytes = lone.unknown_blocks.saturating_mul(ITEM);
        let bytes = bytes.saturating_add(lone.unknown_extents.saturating_mul(REFERENCE));
        count + splits(rooms, bytes, again)
    }
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
        let rooms = lone.way.leaves.values().copied().collect();
        let split = splits(rooms, lone.bytes, self.splits_again());
        let split = split.saturating_add(lone.unknown_way);
        let nodes = self.new_nodes(lone.way.nodes.len() as u64, split);
        let added = if lone.bytes > 0 { split + nodes } else { 1 };
        let way = lone.way.blocks().saturating_add(lone.unknown_way);
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

    /// What the commit of a deletion writes that comes alone, and where; nothing where there is no room for it in these runs.
    fn bound_alone(&self, shape: &Shape, lone: &Lone, runs: &[Range]) -> Option<(Bound, Vec<u64>)> {
        let leaves = shape.leaves.and(&lone.leaves);
        // These are written in any case.
        let known = [&shape.others[..], &lone.blocks, &lone.way.addresses()].concat();
        let mut fixed: BTreeSet<LeafAt> = leaves.with_items_of(known);
        let named: BTreeSet<u64> = lone.leaves.addresses().collect();
        fixed.extend(leaves.0.keys().filter(|(_, leaf)| named.contains(leaf)));
        let filling = Filling::new(&leaves, lone, self.node);
        let places = filling.places(runs, self.node, shape.block_item);
        let mut dirty: BTreeSet<LeafAt> = leaves.0.keys().copied().collect();
        let mut best: Option<(Bound, Vec<u64>)> = None;
        for steps in 0..=STEPS_MAX {
            let found = self.bound_of_dirty(shape, lone, (&filling, &dirty, steps), &places);
            let blocks = |it: &Option<(Bound, _)>| it.as_ref().map_or(u64::MAX, |it| it.0.blocks);
            if blocks(&found) < blocks(&best) {
                best = found;
            }
            let before = dirty.len();
            dirty = leaves.with_items_of(dirty.iter().map(|(_, leaf)| *leaf));
            dirty.extend(&fixed);
            if dirty.len() == before {
                break;
            }
        }
        best
    }

    /// The same where these leaves of the extent tree are written, and those that the ways from what was not looked at come to in so many
    /// steps; in some of these places.
    fn bound_of_dirty(
        &self,
        shape: &Shape,
        lone: &Lone,
        (filling, dirty, steps): (&Filling<'_>, &BTreeSet<LeafAt>, u64),
        places: &[u64],
    ) -> Option<(Bound, Vec<u64>)> {
        let others = self.bound_of_others(shape, lone);
        let groups = if shape.groups_in_extents { self.data.groups.min(lone.data + 4) } else { 0 };
        let unknown = lone.unknown_leaves + groups;
        let hidden = unknown + 2 * (lone.unknown_blocks + lone.unknown_way);
        let leaves = filling.leaves;
        let left = (leaves.len() - dirty.len()) as u64;
        let more = unknown + hidden.saturating_mul(steps).min(left);
        let old = shape.nodes + dirty.len() as u64 + more;
        let is_dirty = |place: &u64| leaves.of(*place).all(|leaf| dirty.contains(&leaf));
        let mut places: Vec<u64> = places.iter().copied().filter(is_dirty).collect();
        let mut blocks = others.blocks.saturating_add(old);
        loop {
            let taken = places.get(..blocks as usize)?;
            let split = filling.splits(taken, lone, shape.block_item, self.splits_again());
            let grown = split + self.new_nodes(shape.nodes, split);
            let extents = Bound { blocks: old + grown, growth: grown, ..Bound::default() };
            let (size, adds) = (self.trees.free_space, lone.data.saturating_add(2 * blocks));
            let bound = others.and(extents).and(rewritten(size, self.node, size, adds, RANGE));
            if bound.blocks <= blocks {
                places.truncate(blocks as usize);
                return Some((bound, places));
            }
            blocks = bound.blocks;
        }
    }

    /// A step of dropping a subvolume that lets go of so many data extents, or gives them to a block, and gives so many blocks to another one.
    fn lone_step(&self, extents: u64, blocks: u64) -> Lone {
        Lone {
            unknown_leaves: 2 * extents,
            // And the blocks on the way to them.
            unknown_blocks: blocks + 2 * LEVELS_MAX as u64,
            unknown_extents: extents,
            data: extents,
            roots: 2,
            ..Lone::default()
        }
    }

    /// Whether there is room for a deletion, and then for a step of dropping a subvolume, and for deleting what nobody shares unless it is a subvolume
    /// that goes, as far as there is room for these now.
    fn room_alone(
        &self,
        need: Need,
        (shape, lone): (&Shape, &Lone),
        runs: &[Range],
    ) -> Option<(Bound, Vec<u64>)> {
        let found = self.bound_alone(shape, lone, runs)?;
        let keeps = need.subvolume
            || self.grown_by(found.0.growth).has_room_for_own()
            || !self.has_room_for_own();
        if !keeps {
            return None;
        }
        let step = self.bound_alone(shape, &self.lone_step(0, STEP_LEAST), runs);
        let is_left =
            |step: &Bound| step.blocks.saturating_add(found.0.growth) <= self.metadata.nodes;
        step.is_none_or(|(step, _)| is_left(&step)).then_some(found)
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
        let mut near = list.iter().skip(first).take_while(|(range, _)| range.start < to);
        near.any(|(_, class)| self.mixed || *class != Class::Data)
    }

    /// Whether what is promised is a deletion that comes alone.
    pub fn is_alone(&self) -> bool {
        self.alone.load(Relaxed)
    }

    /// Whether the last deletion came alone: then the next one will, too, most likely.
    pub fn was_alone(&self) -> bool {
        self.was_alone.load(Relaxed)
    }

    /// Runs of free space for tree blocks, the longest first. Where that is not in memory, it is read.
    fn runs_for_blocks(&self) -> Vec<Range> {
        let slot = self.slot(Class::Metadata);
        let has_room = |group: &&Group| group.nodes() > 0;
        let start_of = |group: &Group| group.range.start;
        let starts: Vec<u64> = slot.set.lock().groups().filter(has_room).map(start_of).collect();
        let mut runs = Vec::new();
        for start in starts {
            let Ok(set) = self.lock_with(slot, start) else { continue };
            let Some(group) = set.get(start).filter(has_room) else { continue };
            runs.extend(group.free().iter_from(0).filter_map(|run| {
                let first = run.start.next_multiple_of(self.node);
                let len = run.end().saturating_sub(first) / self.node * self.node;
                (len > 0).then_some(Range::new(first, len))
            }));
        }
        runs.sort_unstable_by_key(|run| std::cmp::Reverse((run.len, run.start)));
        runs
    }

    /// How it is, and where tree blocks have room, when nobody is promised anything. Nobody waits while that is reckoned with: what comes of it
    /// is good if [`Space::still`] says so.
    fn unpromised(&self) -> Option<(Outlook, Vec<Range>)> {
        self.thaw();
        let outlook = self.still(None).map(|pool| self.outlook(&pool, false))?;
        Some((outlook, self.runs_for_blocks()))
    }

    /// The pool, if nobody is promised anything, and metadata is as it was then.
    fn still(&self, then: Option<&Outlook>) -> Option<MutexGuard<'_, Pool>> {
        let _taken_back = self.take_back();
        let pool = self.pool.lock();
        let room = |sums: &Sums| (sums.used, sums.free, sums.nodes);
        let now = room(&self.slot(Class::Metadata).counters.read());
        let is_same = then.is_none_or(|then| room(&then.metadata) == now);
        (is_same && pool.promises.are_none()).then_some(pool)
    }

    /// Whether nobody is promised anything, and no commit is under way.
    pub fn is_quiet(&self) -> bool {
        self.still(None).is_some_and(|pool| pool.start.is_none())
    }

    /// Lets a deletion in that comes alone. Since before the trees were looked at, no commit was under way ([`Space::is_quiet`]), nor can one begin.
    pub fn reserve_alone(
        &self,
        need: Need,
        (shape, lone): (&Shape, &Lone),
    ) -> Result<(), Shortage> {
        // Until it has begun, nothing is held, and then nothing that tree blocks may come to.
        let _turn = self.trimming_turn();
        let (outlook, runs) = self.unpromised().ok_or(Shortage::CommitFirst)?;
        let found = outlook.room_alone(need, (shape, lone), &runs);
        let mut pool = self.still(Some(&outlook)).ok_or(Shortage::CommitFirst)?;
        let found = found.ok_or(Shortage::NoSpace)?;
        pool.promises.running = pool.promises.running.plus(need);
        self.begin_alone(&mut pool, found);
        self.was_alone.store(true, Relaxed);
        Ok(())
    }

    /// The same for the commit under way, of which nothing else is known, to drop part of a subvolume: how many references it may let
    /// go of, to data extents and to tree blocks. `leaf` are the extents of a leaf, and where they are, if no other one is let go of.
    pub fn reserve_upkeep_alone(
        &self,
        shape: &Shape,
        leaf: Option<(Vec<u64>, Leaves)>,
    ) -> Option<(u64, u64)> {
        let _turn = self.trimming_turn();
        let (outlook, runs) = self.unpromised()?;
        let most = outlook.nodes_of_step();
        let (mut step, tries) = match leaf {
            Some((extents, leaves)) => {
                let data = extents.len() as u64;
                (Lone { extents, leaves, data, ..outlook.lone_step(0, 0) }, vec![most, STEP_LEAST])
            }
            None => (outlook.lone_step(outlook.extents_of_leaf(), 0), vec![most]),
        };
        let unknown = step.unknown_blocks;
        let (blocks, found) = tries.into_iter().find_map(|blocks| {
            step.unknown_blocks = unknown + blocks;
            Some((blocks, outlook.bound_alone(shape, &step, &runs)?))
        })?;
        let mut pool = self.still(Some(&outlook))?;
        pool.promises.committing = Total::dropping(step.data, blocks, 1);
        self.begin_alone(&mut pool, found);
        Some((step.data, blocks))
    }

    fn begin_alone(&self, pool: &mut Pool, (bound, mut places): (Bound, Vec<u64>)) {
        pool.promises.alone = Some(bound);
        pool.credit = Credit::default();
        places.reverse();
        *self.chosen.lock() = places;
        self.alone.store(true, Relaxed);
    }

    /// It is committed, or has changed nothing; what it was promised.
    pub(super) fn end_alone(&self, promises: &mut Promises) -> Option<Bound> {
        self.alone.store(false, Relaxed);
        promises.alone.take()
    }

    /// The next block of those that were chosen.
    pub(super) fn take_chosen(&self) -> Option<u64> {
        let start = self.chosen.lock().pop()?;
        let range = Range::new(start, self.node);
        let taken =
            self.change(range, "a chosen block is not free", |group| group.take_block_at(start));
        taken.is_ok().then_some(start)
    }
}

#[cfg(test)]
mod tests {
    use buttress_ondisk::build::Stamp;
    use buttress_ondisk::kind;

    use super::*;

    /// A leaf of the extent tree at `bytenr` that begins with `first` and has so many bytes of room.
    fn leaf(bytenr: u64, first: Key, room: usize) -> TreeBlock {
        let mut leaf = LeafBuilder::new(16384);
        let size = leaf.free() - room - buttress_ondisk::ITEM_LEN;
        leaf.push_uninit(first, size).expect("it fits");
        finished(leaf, bytenr)
    }

    fn finished(leaf: LeafBuilder, bytenr: u64) -> TreeBlock {
        leaf.finish(&Stamp {
            fsid: [0; 16],
            chunk_tree_uuid: [0; 16],
            bytenr,
            generation: 1,
            owner: 2,
            flags: 0,
        })
    }

    /// References to one block fill leaves, which are where there was room for each: the later one at the lower address.
    #[test]
    fn what_follows_an_extent_with_many_references_is_in_the_last_of_its_leaves() {
        let (many, behind, end) = (7 << 20, (7 << 20) + 16384, 8 << 20);
        let reference = |offset| Key::new(many, kind::TREE_BLOCK_REF, offset);
        let mut leaves = Leaves::default();
        let keys =
            [Key::MIN, reference(300), reference(900), Key::new(end, kind::METADATA_ITEM, 0)];
        for (first, bytenr) in keys.into_iter().zip([5 << 20, 4 << 20, 3 << 20, 2 << 20]) {
            leaves.add(first, &leaf(bytenr, first, 100));
        }
        let of = |bytenr| leaves.of(bytenr).map(|(_, leaf)| leaf >> 20).collect::<Vec<_>>();
        assert_eq!(of(many), [5, 4, 3]);
        assert_eq!(of(behind), [3], "the leaf that an item behind it comes into");
        assert_eq!(of(end), [3, 2]);
        let lone = Lone { blocks: vec![behind], ..Lone::default() };
        let filling = Filling::new(&leaves, &lone, 16384);
        assert!(filling.added.keys().all(|(first, _)| *first == reference(900)));
    }

    /// A reference is part of the item that it comes to, or has one of its own, and then all that come later have.
    #[test]
    fn references_are_short_where_items_are() {
        let (short, long, keyed) = (1 << 20, 2 << 20, 3 << 20);
        let end = Key::new(4 << 20, kind::METADATA_ITEM, 0);
        let max = extent_item_max(16384);
        let mut leaves = Leaves::default();
        let mut add = |first: u64, items: &[(Key, usize)]| {
            let mut leaf = LeafBuilder::new(16384);
            for (key, len) in items {
                leaf.push_uninit(*key, *len).expect("it fits");
            }
            leaves.add(Key::new(first, kind::METADATA_ITEM, 0), &finished(leaf, first));
        };
        let item = |bytenr, len| (Key::new(bytenr, kind::METADATA_ITEM, 0), len);
        add(short, &[item(short, 33), item(short + 16384, max - 2 * INLINE as usize)]);
        add(long, &[item(long, 33), item(long + 16384, max - INLINE as usize + 1)]);
        let reference = |offset| (Key::new(keyed, kind::TREE_BLOCK_REF, offset), 0);
        add(keyed, &[item(keyed, 33), reference(300), item(keyed + 16384, 33)]);
        leaves.add(end, &leaf(5 << 20, end, 100));
        let of = |bytenr, count| leaves.reference_to(bytenr, count, 16384);
        assert_eq!([of(short + 16384, 1), of(short + 16384, 2), of(short + 16384, 3)], [9, 9, 25]);
        assert_eq!([of(long + 16384, 1), of(keyed + 16384, 1)], [25, 25]);
        let lone = Lone { blocks: vec![short, long, short, keyed], ..Lone::default() };
        let filling = Filling::new(&leaves, &lone, 16384);
        let added: Vec<u64> = filling.added.values().copied().collect();
        // What is first in a leaf may have items in the one before it.
        assert_eq!(added, [9 + 9 + 25, 25 + 25, 25]);
    }
}
