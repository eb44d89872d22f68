//! Relocation: what a block group holds moves elsewhere within a commit.
//!
//! All changes of the transaction are merged by now, and no operation runs ([`super::super::relocate`]), so what trees say is all there is. Of the first
//! extents and tree blocks of the group, and of all blocks above these ([`Graph`]), each gets one new address, whoever shares it; the references follow
//! as records of the log, in which only addresses differ. Blocks of trees that are never shared (the extent tree and its like) are merged anew
//! instead. Who reaches what stays as it is, and so full quotas are not told. A cache of free space that an old kernel has left behind in the root tree
//! goes instead of being moved: nobody reads it beside a free space tree.
//!
//! A moved block of a subvolume says so in its head (`RELOC`): it is newer than the last snapshot, and shared all the same.
//!
//! Crash argument: the old addresses stay as they are until this commit is durable, as those of all that a commit lets go of. What cannot be read,
//! or has no room, is left where it is and told; nothing of it was changed by then.

mod data;
mod left;
mod named;
mod ways;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use buttress_ondisk::block::BlockHead;
use buttress_ondisk::build::{LeafBuilder, NodeBuilder};
use buttress_ondisk::item::{FileExtentHead, FileExtentTail, RootItem, extent_flags, split};
use buttress_ondisk::view::{InlineRef, inline_refs};
use buttress_ondisk::{Key, SECTOR, TreeBlock, kind, objectid};
use zerocopy::{FromBytes, IntoBytes};

use super::super::core::Roots;
use super::Settler;
use crate::error::{Error, Result};
use crate::refs::owners::{Committed, Known, Owners};
use crate::refs::{Above, Added, Graph, MovingData, Record, RefLog, Target, child_refs};
use crate::space::{Class, Range};
use crate::tree::{Blocks, Root, View};
use data::Moving;
use ways::Ways;

/// Bytes for what is known of who reaches what, while one batch is planned.
const MEMORY: u64 = 4 << 20;
/// Tree blocks may be kept in memory meanwhile up to this part of what the cache has.
const HELD_SHARE: u64 = 4;
/// References that are settled at once, about.
const REFS_AT_ONCE: usize = 1 << 16;
/// Blocks that one touch of a tree which is never shared writes anew, about: the way to a leaf.
const WAY: usize = 4;

/// What a commit is to move.
#[derive(Clone, Debug)]
pub struct Relocation {
    /// The addresses of the block group.
    pub group: Range,
    /// Extents that are left where they are, as they could not be moved before.
    pub but: BTreeSet<u64>,
    /// Tree blocks that are written anew at most.
    pub blocks: usize,
    /// References that change at most.
    pub changes: usize,
    /// Data extents that are moved at most.
    pub extents: usize,
    /// Bytes of data that are moved at most.
    pub data: u64,
    /// Chunks may be made for what is moved.
    pub grow: bool,
}

/// Why one extent alone takes more than a batch may.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TooSmall {
    /// Too many tree blocks lie above it.
    Blocks,
    /// It has so many bytes.
    Data(u64),
    /// It may have so many, and there is no run of free space that is long enough.
    NoRun,
}

/// What it has moved.
#[derive(Clone, Debug, Default)]
pub struct Relocated {
    /// Extents and tree blocks of the group that are elsewhere now.
    pub moved: u64,
    /// Tree blocks that were written anew for that.
    pub blocks: u64,
    /// Bytes of data that were copied.
    pub data: u64,
    /// One extent alone takes more than the batch may: nothing was moved.
    pub too_small: Option<TooSmall>,
    /// What could not be moved, and why.
    pub failed: Vec<(u64, String)>,
    /// The disk that holds the filesystem's image is full: nothing was moved.
    pub refused: Option<Error>,
    /// How long operations had to wait for it, if they came at its beginning.
    pub waited: Duration,
    /// How long somebody did wait for it: who has come first.
    pub held_up: Duration,
    /// Whether there are any: something was changed since the commit before, or somebody came while it was under way.
    pub has_others: bool,
}

/// What one batch does.
#[derive(Default)]
struct Plan {
    graph: Graph,
    data: BTreeMap<u64, Moving>,
    /// Leaves of trees that are never shared, by tree, and by a key that is in each: writing them anew moves them, and all above.
    touches: BTreeSet<(u64, Key)>,
    /// There is a cache of free space, which goes.
    drops_cache: bool,
    /// Trees that are being dropped: the key and the level where that has come to.
    dropping: BTreeMap<u64, (Key, u8)>,
    /// The first child that is left, of blocks on the way there.
    half_dropped: BTreeMap<u64, usize>,
    /// What was found to be changeable.
    ways: Ways,
    /// What stays where it is.
    left: BTreeSet<u64>,
    done: Relocated,
}

impl Plan {
    /// Whether an extent stays where it is.
    fn leaves(&self, relocation: &Relocation, bytenr: u64) -> bool {
        relocation.but.contains(&bytenr) || self.left.contains(&bytenr)
    }

    fn leave(&mut self, bytenr: u64, why: String) {
        self.left.insert(bytenr);
        self.done.failed.push((bytenr, why));
    }

    fn has_room(&self, relocation: &Relocation) -> bool {
        self.graph.blocks.len() + self.touches.len() * WAY <= relocation.blocks
            && self.graph.changes <= relocation.changes
    }

    /// Where what is left of trees that are being dropped starts, in the blocks of the graph on the way there.
    fn find_half_dropped(&mut self, blocks: &Blocks) -> Result<()> {
        for (tree, (key, level)) in &self.dropping {
            // Below a block that does not move, none does.
            let mut next = self.graph.roots.get(tree).copied();
            while let Some((bytenr, above)) =
                next.and_then(|bytenr| self.graph.blocks.get(&bytenr).map(|it| (bytenr, it)))
            {
                let block = above.block(blocks)?;
                let is_last = block.level() <= *level || block.is_leaf();
                let slot = match is_last {
                    true => block.search(key).unwrap_or_else(|slot| slot),
                    false => block.child_for(key),
                };
                self.half_dropped.insert(bytenr, slot);
                next = (!is_last).then(|| block.child(slot).bytenr);
            }
        }
        Ok(())
    }

    /// The keys of each tree that is never shared, rising.
    fn touched(&self) -> BTreeMap<u64, Vec<Key>> {
        let mut all: BTreeMap<u64, Vec<Key>> = BTreeMap::new();
        for (tree, key) in &self.touches {
            all.entry(*tree).or_default().push(*key);
        }
        all
    }
}

/// What there is to move at an address.
enum Found {
    Data {
        len: u64,
        /// The tree that has allocated it, where that is said.
        owner: Option<u64>,
        is_of_root_tree: bool,
    },
    Block {
        tree: Option<u64>,
    },
}

/// Whether there was room for one more.
enum Room {
    Enough,
    /// This one was added, and is the last one.
    Ended,
    TooLittle(TooSmall),
}

impl Settler<'_, '_> {
    /// Moves what is asked for; whether there was anything to do.
    pub(super) fn relocate(&mut self) -> Result<bool> {
        let core = self.commit.core();
        let Some(relocation) = core.relocation.lock().take() else { return Ok(false) };
        let mut plan = self.planned(relocation)?;
        plan.done.blocks = (plan.graph.blocks.len() + plan.touches.len() * WAY) as u64;
        plan.done.data = plan.graph.data_bytes;
        self.write_anew(&plan)?;
        for (tree, keys) in plan.touched() {
            self.merge(tree, |merge| keys.iter().try_for_each(|key| merge.renew(key)))?;
        }
        if plan.drops_cache {
            self.drop_v1_cache()?;
        }
        core.env.step("a part of a block group is elsewhere");
        *core.relocated.lock() = Some(plan.done);
        Ok(true)
    }

    /// What is moved. Nothing is changed by then: what others have done is not lost for its sake. Where it turns out late that something of it has to stay,
    /// nothing is moved, and the next batch is without that: nobody waits for more than one look, whatever a made-up filesystem says.
    fn planned(&self, relocation: Relocation) -> Result<Plan> {
        let core = self.commit.core();
        let held = core.blocks.bytes_max() / HELD_SHARE / core.features.nodesize as u64;
        let held = usize::try_from(held).unwrap_or(usize::MAX);
        let mut plan = Plan { graph: Graph::holding(held), ..Plan::default() };
        let planned = self.plan(&mut plan, &relocation);
        let is_late = plan.data.keys().any(|at| plan.left.contains(at));
        if planned.is_ok() && !is_late {
            return Ok(plan);
        }
        for moving in std::mem::take(&mut plan.data).into_values() {
            core.space.give_back(moving.to)?;
        }
        let mut failed = std::mem::take(&mut plan.done.failed);
        failed.extend(planned.err().map(|error| (relocation.group.start, error.to_string())));
        Ok(Plan { done: Relocated { failed, ..Relocated::default() }, ..Plan::default() })
    }

    /// What the first batch of the group is. Reads, and copies data.
    fn plan(&self, plan: &mut Plan, relocation: &Relocation) -> Result<()> {
        let core = self.commit.core();
        let committed = |roots: &Roots| Committed {
            root: roots.root,
            chunk: roots.chunk,
            extent: roots.extent,
        };
        let mut known = Known::new(MEMORY);
        let mut owners = Owners::new(&core.blocks, committed(&self.roots), &mut known);
        self.can_remove_group(&mut plan.ways, &owners, relocation.group.start)?;
        let extents = View::new(&core.blocks, objectid::EXTENT_TREE, self.roots.extent);
        let (start, end) = (relocation.group.start, relocation.group.end());
        let mut items = extents
            .range(Key::new(start, kind::EXTENT_ITEM, 0), Key::new(end - 1, u8::MAX, u64::MAX));
        while let Some(item) = items.next()? {
            let key = item.key();
            let is_extent = matches!(key.kind, kind::EXTENT_ITEM | kind::METADATA_ITEM);
            if !is_extent || plan.leaves(relocation, key.objectid) {
                continue;
            }
            match self.add(plan, &mut owners, relocation, (&key, item.data())) {
                Ok(Room::Enough) => plan.done.moved += 1,
                Ok(Room::Ended) => {
                    plan.done.moved += 1;
                    break;
                }
                Ok(Room::TooLittle(why)) => {
                    plan.done.too_small = (plan.done.moved == 0).then_some(why);
                    break;
                }
                Err(Error::NoSpace) => {
                    plan.done.too_small = (plan.done.moved == 0).then_some(TooSmall::NoRun);
                    break;
                }
                Err(Error::Volume(error)) if error.is_full() => {
                    plan.done.refused = (plan.done.moved == 0).then_some(Error::Volume(error));
                    break;
                }
                Err(error) => self.leave(plan, &mut owners, relocation, (key.objectid, error)),
            }
        }
        self.tell_unsaid(plan, &owners, relocation)
    }

    /// Adds one extent to a batch, if that has room.
    fn add(
        &self,
        plan: &mut Plan,
        owners: &mut Owners<'_>,
        relocation: &Relocation,
        (key, data): (&Key, &[u8]),
    ) -> Result<Room> {
        match found(key, data)? {
            Found::Data { len, .. } if len > relocation.group.end() - key.objectid => {
                let what = "an extent ends behind its block group";
                Err(Error::inconsistent(objectid::EXTENT_TREE, what, key))
            }
            Found::Block { tree: Some(tree) } if self.is_never_shared(tree) => {
                let first = key_in(owners, tree, key.objectid)?;
                self.can_change(&mut plan.ways, owners, key.objectid)?;
                self.can_change_at(&mut plan.ways, owners, (tree, first))?;
                plan.touches.insert((tree, first));
                Ok(if plan.has_room(relocation) { Room::Enough } else { Room::Ended })
            }
            Found::Block { .. } => {
                let added = plan.graph.add_block(owners, key.objectid)?;
                self.keep(plan, owners, relocation, (added, None))
            }
            Found::Data { len, .. }
                if plan.graph.data_bytes.saturating_add(len) > relocation.data =>
            {
                Ok(Room::TooLittle(TooSmall::Data(len)))
            }
            Found::Data { .. } if plan.data.len() >= relocation.extents => {
                Ok(Room::TooLittle(TooSmall::Blocks))
            }
            Found::Data { is_of_root_tree: true, .. } if self.has_v1_cache()? => {
                plan.drops_cache = true;
                Ok(Room::Enough)
            }
            Found::Data { len, owner, .. } => {
                let added = plan.graph.add_data(owners, key.objectid)?;
                self.keep(plan, owners, relocation, (added, Some((key.objectid, len, owner))))
            }
        }
    }

    /// Keeps what was added to the graph, if there is room for it, nothing contradicts it, and its data can be copied.
    fn keep(
        &self,
        plan: &mut Plan,
        owners: &Owners<'_>,
        relocation: &Relocation,
        (mut added, data): (Added, Option<(u64, u64, Option<u64>)>),
    ) -> Result<Room> {
        let done = match plan.has_room(relocation) {
            true => self.check(plan, owners, &mut added).and_then(|()| {
                if let Some((bytenr, len, owner)) = data {
                    self.can_change_data(&mut plan.ways, owners, Range::new(bytenr, len))?;
                    let moving = self.copy_data((bytenr, len), owner, relocation.grow)?;
                    if let Err(error) = self.can_change_data(&mut plan.ways, owners, moving.to) {
                        self.commit.core().space.give_back(moving.to)?;
                        return Err(error);
                    }
                    plan.data.insert(bytenr, moving);
                }
                Ok(Room::Enough)
            }),
            false => Ok(Room::TooLittle(TooSmall::Blocks)),
        };
        if !matches!(done, Ok(Room::Enough)) {
            plan.graph.take_out(added);
        }
        done
    }

    /// Nothing that is known of what was added stands against moving it.
    fn check(&self, plan: &mut Plan, owners: &Owners<'_>, added: &mut Added) -> Result<()> {
        for tree in &added.roots {
            let item = Key::new(*tree, kind::ROOT_ITEM, u64::MAX);
            self.can_change_at(&mut plan.ways, owners, (objectid::ROOT_TREE, item))?;
            if self.is_never_shared(*tree) {
                let what =
                    "a tree that is never shared refers to what only those of files refer to";
                return Err(Error::inconsistent(objectid::EXTENT_TREE, what, tree));
            }
            let (_, item) = self.root_item_of(*tree)?.ok_or_else(|| no_root_item(*tree))?;
            let from = Key::from(item.drop_progress);
            if from != Key::MIN {
                plan.dropping.insert(*tree, (from, item.drop_level));
            }
        }
        plan.find_half_dropped(owners.blocks())?;
        for bytenr in plan.graph.changed(owners, added)? {
            self.can_change(&mut plan.ways, owners, bytenr)?;
        }
        plan.graph.verify(owners, added, &plan.half_dropped)
    }

    /// The trees that describe the filesystem, whose blocks have one reference each.
    fn never_shared(&self) -> impl Iterator<Item = u64> {
        let others = self.roots.by_id().into_iter().filter(|(_, root)| root.is_some());
        [objectid::ROOT_TREE, objectid::CHUNK_TREE].into_iter().chain(others.map(|(id, _)| id))
    }

    /// Whether a tree is one of those.
    fn is_never_shared(&self, tree: u64) -> bool {
        self.never_shared().any(|id| id == tree)
    }

    /// Whether there is a cache of free space of the first kind.
    fn has_v1_cache(&self) -> Result<bool> {
        let trees = View::new(&self.commit.core().blocks, objectid::ROOT_TREE, self.roots.root);
        let from = Key::new(objectid::FREE_SPACE, 0, 0);
        let mut headers = trees.range(from, Key::new(objectid::FREE_SPACE, u8::MAX, u64::MAX));
        Ok(headers.next()?.is_some())
    }

    /// Writes all blocks of a graph to new addresses, and has the references to them and to data follow.
    fn write_anew(&mut self, plan: &Plan) -> Result<()> {
        let Plan { graph, data, half_dropped, .. } = plan;
        if graph.blocks.is_empty() {
            return Ok(());
        }
        let core = self.commit.core();
        let mut places = BTreeMap::new();
        for bytenr in graph.blocks.keys() {
            places.insert(*bytenr, core.space.allocate_block(Class::Metadata)?);
        }
        let places = Places { blocks: places, data };
        for (bytenr, above) in &graph.blocks {
            let stamp = self.commit.stamp(places.block(*bytenr), above.owner);
            let reloc = if places.is_full(graph, *bytenr) { BlockHead::RELOC } else { 0 };
            let stamp = buttress_ondisk::build::Stamp { flags: stamp.flags | reloc, ..stamp };
            let old = above.block(&core.blocks)?;
            self.commit.placed(places.copy(&old, graph, &stamp), false)?;
        }
        if graph.blocks.values().any(|above| !above.is_plain) {
            core.space.set_shared();
        }
        self.move_references(graph, &places, half_dropped)?;
        for moving in data.values() {
            for (at, digests) in &moving.sums {
                self.todo.csums.push(moving.to.start + at, digests.clone());
            }
        }
        for (tree, bytenr) in &graph.roots {
            self.move_root(*tree, places.block(*bytenr))?;
        }
        Ok(())
    }

    /// Has all references name the new addresses: some at a time, as those of one block or extent that change are complete.
    fn move_references(
        &mut self,
        graph: &Graph,
        places: &Places<'_>,
        half_dropped: &BTreeMap<u64, usize>,
    ) -> Result<()> {
        let core = self.commit.core();
        let mut log = RefLog::default();
        for (bytenr, above) in &graph.blocks {
            let first = half_dropped.get(bytenr).copied().unwrap_or(0);
            let children = match places.is_full(graph, *bytenr) {
                true => Some((above.block(&core.blocks)?, first)),
                false => None,
            };
            move_block(&mut log, (*bytenr, above), children, graph, places);
            if log.len() >= REFS_AT_ONCE {
                self.settle_unseen(std::mem::take(&mut log))?;
            }
        }
        for (bytenr, data) in &graph.data {
            move_data(&mut log, (*bytenr, data), graph, places);
        }
        self.settle_unseen(log)
    }

    /// Merges references, of which quotas need not know: whoever reached something does so still.
    fn settle_unseen(&mut self, log: RefLog) -> Result<()> {
        let changes = self.changes.take();
        let done = self.settle_log(log);
        self.changes = changes;
        done
    }

    fn root_item_of(&self, tree: u64) -> Result<Option<(Key, RootItem)>> {
        let trees = View::new(&self.commit.core().blocks, objectid::ROOT_TREE, self.roots.root);
        let from = Key::new(tree, kind::ROOT_ITEM, 0);
        let item = trees.last_in(&from, &Key { offset: u64::MAX, ..from })?;
        Ok(item.and_then(|item| Some((item.key(), RootItem::of_subvolume(item.data())?))))
    }

    /// The root of a tree is at another address.
    fn move_root(&mut self, tree: u64, bytenr: u64) -> Result<()> {
        let (key, mut item) = self.root_item_of(tree)?.ok_or_else(|| no_root_item(tree))?;
        let transid = self.commit.transid();
        item.bytenr = bytenr.into();
        item.generation = transid.into();
        item.generation_v2 = transid.into();
        self.todo.root_items.insert(key, Some(item.as_bytes().to_vec()));
        let root = Root { bytenr, generation: transid, level: item.level };
        self.commit.moved(tree, root);
        Ok(())
    }
}

/// New addresses.
struct Places<'a> {
    blocks: BTreeMap<u64, u64>,
    data: &'a BTreeMap<u64, Moving>,
}

impl Places<'_> {
    fn block(&self, bytenr: u64) -> u64 {
        self.blocks.get(&bytenr).copied().unwrap_or(bytenr)
    }

    /// Whether what a block of the graph refers to is counted by its new address.
    fn is_full(&self, graph: &Graph, bytenr: u64) -> bool {
        graph.blocks.get(&bytenr).is_some_and(|above| !above.is_plain)
    }

    /// A block with the new addresses of what it refers to.
    fn copy(
        &self,
        old: &TreeBlock,
        graph: &Graph,
        stamp: &buttress_ondisk::build::Stamp,
    ) -> TreeBlock {
        let nodesize = old.as_bytes().len();
        if !old.is_leaf() {
            let mut node = NodeBuilder::new(nodesize);
            for slot in 0..old.len() {
                let mut child = old.child(slot);
                if graph.blocks.contains_key(&child.bytenr) {
                    child.bytenr = self.block(child.bytenr);
                    child.generation = stamp.generation;
                }
                assert!(node.push(&child), "as many as before");
            }
            return node.finish(old.level(), stamp);
        }
        let mut leaf = LeafBuilder::new(nodesize);
        for slot in 0..old.len() {
            let (key, data) = old.item(slot);
            let Some(room) = leaf.push_uninit(key, data.len()) else { continue };
            room.copy_from_slice(data);
            if key.kind == kind::EXTENT_DATA {
                self.point_elsewhere(room);
            }
        }
        leaf.finish(stamp)
    }

    /// Has the item of a piece of a file name the new address of its extent.
    fn point_elsewhere(&self, item: &mut [u8]) {
        let is_inline = split::<FileExtentHead>(item)
            .is_none_or(|(head, _)| head.kind == FileExtentHead::INLINE);
        let Some(tail) = item.get_mut(size_of::<FileExtentHead>()..).filter(|_| !is_inline) else {
            return;
        };
        let Ok((tail, _)) = FileExtentTail::mut_from_prefix(tail) else { return };
        if let Some(moving) = self.data.get(&tail.disk_bytenr.get()) {
            tail.disk_bytenr = moving.to.start.into();
        }
    }
}

fn no_root_item(tree: u64) -> Error {
    Error::inconsistent(objectid::ROOT_TREE, "a tree has no root item", tree)
}

/// A key in the leaf at `bytenr` of a tree that is never shared, or below the node there; an error where the tree does not lead to it, or it, or a block above it, has
/// other references than one by the tree.
fn key_in(owners: &mut Owners<'_>, tree: u64, bytenr: u64) -> Result<Key> {
    let mut next = Some(bytenr);
    while let Some(bytenr) = next {
        let (head, refs) = owners.references(bytenr)?;
        if refs != [InlineRef::TreeBlock { root: tree }] {
            let what = "a block of a tree that is never shared has other references than by that";
            return Err(Error::inconsistent(objectid::EXTENT_TREE, what, bytenr));
        }
        next = owners.parent_in(tree, bytenr, &head)?;
    }
    let (head, _) = owners.references(bytenr)?;
    let block = owners.block(bytenr, &head)?;
    match block.lost().first() {
        Some(lost) => Err(Error::Corrupt(lost.why.clone())),
        None => Ok(block.span().map_or(Key::MIN, |(first, _)| first)),
    }
}

/// What an extent item is of.
fn found(key: &Key, data: &[u8]) -> Result<Found> {
    let wrong = || Error::inconsistent(objectid::EXTENT_TREE, "an extent item is too short", key);
    let (head, _, refs) = inline_refs(key, data).ok_or_else(wrong)?;
    let (mut owner, mut tree, mut is_of_root_tree) = (None, None, false);
    for one in refs {
        match one {
            InlineRef::Owner { root } => owner = Some(root),
            InlineRef::TreeBlock { root } => tree = Some(root),
            InlineRef::ExtentData { root, .. } => is_of_root_tree |= root == objectid::ROOT_TREE,
            _ => {}
        }
    }
    Ok(match head.flags.get() & extent_flags::TREE_BLOCK {
        0 => Found::Data { len: key.offset, owner, is_of_root_tree },
        _ => Found::Block { tree },
    })
}

/// The records of a block that moves. With what it refers to where that is counted by its address from now on: children before the first that is left are gone
/// already.
fn move_block(
    log: &mut RefLog,
    (bytenr, above): (u64, &Above),
    children: Option<(Arc<TreeBlock>, usize)>,
    graph: &Graph,
    places: &Places<'_>,
) {
    let level = above.level;
    let (old, new) = (Target::Block(bytenr, level), Target::Block(places.block(bytenr), level));
    let full = if children.is_some() { Record::FULL_BACKREF } else { 0 };
    log.mark(new, Record::NEW | full);
    log.owned(old, above.owner);
    log.owned(new, above.owner);
    for (one, parent) in &above.refs {
        match *one {
            InlineRef::TreeBlock { root } => log.by_tree(old, root, -1, 0),
            InlineRef::SharedBlock { parent } => log.by_block(old, parent, -1),
            _ => continue,
        }
        match (*one, parent) {
            (_, Some(parent)) if places.is_full(graph, *parent) => {
                log.by_block(new, places.block(*parent), 1);
            }
            (InlineRef::TreeBlock { root }, _) => log.by_tree(new, root, 1, 0),
            _ => {}
        }
    }
    let Some((block, first)) = children else { return };
    let (mut slot, is_node) = (0, !block.is_leaf());
    child_refs(&block, |target| {
        let is_gone = is_node && slot < first;
        slot += 1;
        // What moves is seen to by itself.
        let moves = match target {
            Target::Block(bytenr, _) => graph.blocks.contains_key(&bytenr),
            Target::Data { bytenr, .. } => graph.data.contains_key(&bytenr),
        };
        if moves || is_gone {
            return;
        }
        match above.head.full {
            true => log.by_block(target, bytenr, -1),
            false => log.by_tree(target, above.owner, -1, 0),
        }
        log.by_block(target, places.block(bytenr), 1);
    });
}

/// The records of data that move.
fn move_data(
    log: &mut RefLog,
    (bytenr, data): (u64, &MovingData),
    graph: &Graph,
    places: &Places<'_>,
) {
    let Some(moving) = places.data.get(&bytenr) else { return };
    let sectors = u32::try_from(data.head.len / SECTOR).unwrap_or(u32::MAX);
    let at = |bytenr, ino, offset| Target::Data { bytenr, sectors, ino, offset };
    let (from, to) = (bytenr, moving.to.start);
    log.moved(at(to, 0, 0), moving.owner, data.head.generation);
    for (one, leaves) in &data.refs {
        let count = |count: u32| i32::try_from(count).unwrap_or(i32::MAX);
        match *one {
            InlineRef::ExtentData { root, objectid, offset, count: times } => {
                log.by_tree(at(from, objectid, offset), root, -count(times), 0);
            }
            InlineRef::SharedData { parent, count: times } => {
                log.by_block(at(from, 0, 0), parent, -count(times));
            }
            _ => continue,
        }
        for (leaf, times) in leaves {
            match *one {
                InlineRef::ExtentData { root, objectid, offset, .. }
                    if !places.is_full(graph, *leaf) =>
                {
                    log.by_tree(at(to, objectid, offset), root, count(*times), 0);
                }
                _ => log.by_block(at(to, 0, 0), places.block(*leaf), count(*times)),
            }
        }
    }
}
