//! Relocation: what a block group holds moves elsewhere within a commit.
//!
//! All changes of the transaction are merged by now, and no operation runs ([`super::super::relocate`]), so what trees say is all there is. Of the first
//! extents and tree blocks of the group, and of all blocks above these ([`Graph`]), each gets one new address, whoever shares it; the references follow
//! as records of the log, in which only addresses differ. Blocks of trees that are never shared (the extent tree and its like) are merged anew
//! instead. Who reaches what stays as it is, and so full quotas are not told.
//!
//! A moved block of a subvolume says so in its head (`RELOC`): it is newer than the last snapshot, and shared all the same.
//!
//! Crash argument: the old addresses stay as they are until this commit is durable, as those of all that a commit lets go of. What cannot be read,
//! or has no room, is left where it is and told; nothing of it was changed by then.

use std::collections::{BTreeMap, BTreeSet};

use buttress_ondisk::block::BlockHead;
use buttress_ondisk::build::{LeafBuilder, NodeBuilder};
use buttress_ondisk::item::{FileExtentHead, FileExtentTail, RootItem, extent_flags, split};
use buttress_ondisk::view::{InlineRef, inline_refs};
use buttress_ondisk::{Key, SECTOR, TreeBlock, kind, objectid};
use zerocopy::{FromBytes, IntoBytes};

use super::super::core::{Roots, root_of};
use super::Settler;
use crate::error::{Error, Result};
use crate::refs::owners::{Committed, Known, Owners};
use crate::refs::{Above, Graph, MovingData, Record, RefLog, Target, child_refs};
use crate::space::{Class, Range};
use crate::tree::{Root, View};

/// Bytes for what is known of who reaches what, while one batch is planned.
const MEMORY: u64 = 4 << 20;
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
    /// Bytes of data that are moved at most.
    pub data: u64,
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
    /// Nothing that can be moved is left in the group.
    pub is_done: bool,
    /// One extent alone takes more than the batch may: nothing was moved.
    pub is_too_small: bool,
    /// There is no run of free space for a data extent.
    pub has_no_room: bool,
    /// What could not be moved, and why.
    pub failed: Vec<(u64, String)>,
}

/// The content of a data extent, and where it goes.
struct Moving {
    to: Range,
    content: Vec<u8>,
    /// Checksums, by where in the extent their first sector is.
    sums: Vec<(u64, Vec<u8>)>,
    /// The tree that has allocated it, where its item says so.
    owner: Option<u64>,
}

/// What one batch does.
#[derive(Default)]
struct Plan {
    graph: Graph,
    data: BTreeMap<u64, Moving>,
    /// Items in leaves of trees that are never shared: writing them anew moves these leaves, and all above.
    touches: BTreeSet<(u64, Key)>,
    done: Relocated,
}

/// What there is to move at an address.
enum Found {
    Data { len: u64, owner: Option<u64> },
    Block { level: u8, generation: u64, tree: Option<u64> },
}

impl Settler<'_, '_> {
    /// Moves what is asked for; whether there was anything to do.
    pub(super) fn relocate(&mut self) -> Result<bool> {
        let core = self.commit.core();
        let Some(relocation) = core.relocation.lock().take() else { return Ok(false) };
        let plan = match self.plan(&relocation) {
            Ok(plan) => plan,
            Err(error) => {
                // Nothing is changed yet: what others have done is not lost for its sake.
                let failed = vec![(relocation.group.start, error.to_string())];
                *core.relocated.lock() =
                    Some(Relocated { failed, is_done: true, ..Default::default() });
                return Ok(true);
            }
        };
        let Plan { graph, data, touches, mut done } = plan;
        done.blocks = (graph.blocks.len() + touches.len() * WAY) as u64;
        self.write_anew(&graph, &data)?;
        for (tree, key) in touches {
            self.merge(tree, |merge| {
                let Some(found) = merge.find(&key)?.map(<[u8]>::to_vec) else { return Ok(()) };
                merge.put_with(key, found.len(), |room| room.copy_from_slice(&found))
            })?;
        }
        core.env.step("a part of a block group is elsewhere");
        *core.relocated.lock() = Some(done);
        Ok(true)
    }

    /// What the first batch of the group is. Reads, and takes room for data.
    fn plan(&self, relocation: &Relocation) -> Result<Plan> {
        let core = self.commit.core();
        let committed = |roots: &Roots| Committed {
            root: roots.root,
            chunk: roots.chunk,
            extent: roots.extent,
        };
        let mut known = Known::new(MEMORY);
        let mut owners = Owners::new(&core.blocks, committed(&self.roots), &mut known);
        let extents = View::new(&core.blocks, objectid::EXTENT_TREE, self.roots.extent);
        let (start, end) = (relocation.group.start, relocation.group.end());
        let mut items = extents
            .range(Key::new(start, kind::EXTENT_ITEM, 0), Key::new(end - 1, u8::MAX, u64::MAX));
        let mut plan = Plan::default();
        let mut is_full = false;
        while let Some(item) = items.next()? {
            let key = item.key();
            let is_extent = matches!(key.kind, kind::EXTENT_ITEM | kind::METADATA_ITEM);
            if !is_extent || relocation.but.contains(&key.objectid) {
                continue;
            }
            match self.add(&mut plan, &mut owners, relocation, &key, item.data()) {
                Ok(true) => {}
                Ok(false) => {
                    is_full = true;
                    break;
                }
                Err(Error::NoSpace) => {
                    (is_full, plan.done.has_no_room) = (true, true);
                    break;
                }
                Err(error) => plan.done.failed.push((key.objectid, error.to_string())),
            }
        }
        plan.done.is_done = !is_full && plan.done.failed.is_empty();
        plan.done.is_too_small = is_full && plan.done.moved == 0 && !plan.done.has_no_room;
        plan.done.data = plan.graph.data_bytes();
        Ok(plan)
    }

    /// Adds one extent to a batch; whether it has room.
    fn add(
        &self,
        plan: &mut Plan,
        owners: &mut Owners<'_>,
        relocation: &Relocation,
        key: &Key,
        data: &[u8],
    ) -> Result<bool> {
        let bytenr = key.objectid;
        let found = found(key, data)?;
        let added = match found {
            Found::Block { level, generation, tree: Some(tree) } if self.is_never_shared(tree) => {
                let block = self.commit.core().blocks.read(bytenr, level, generation, tree)?;
                if let Some((first, _)) = block.span() {
                    plan.touches.insert((tree, first));
                }
                plan.done.moved += 1;
                return Ok(self.has_room(plan, relocation));
            }
            Found::Block { .. } => plan.graph.add_block(owners, bytenr)?,
            Found::Data { len, .. } => {
                let has_room = plan.graph.data_bytes().saturating_add(len) <= relocation.data;
                if !has_room && !plan.graph.data.is_empty() {
                    return Ok(false);
                }
                plan.graph.add_data(owners, bytenr)?
            }
        };
        if !self.has_room(plan, relocation) {
            plan.graph.take_out(added);
            return Ok(false);
        }
        if let Found::Data { len, owner } = found {
            match self.take_data(bytenr, len, owner) {
                Ok(moving) => drop(plan.data.insert(bytenr, moving)),
                Err(error) => {
                    plan.graph.take_out(added);
                    return Err(error);
                }
            }
        }
        plan.done.moved += 1;
        Ok(true)
    }

    fn has_room(&self, plan: &Plan, relocation: &Relocation) -> bool {
        plan.graph.blocks.len() + plan.touches.len() * WAY <= relocation.blocks
            && plan.graph.changes <= relocation.changes
    }

    /// Whether a tree is one of those that describe the filesystem, whose blocks have one reference each.
    fn is_never_shared(&self, tree: u64) -> bool {
        self.roots.by_id().iter().any(|(id, root)| *id == tree && root.is_some())
            || matches!(tree, objectid::ROOT_TREE | objectid::CHUNK_TREE)
    }

    /// Reads a data extent with its checksums, and takes room for it.
    fn take_data(&self, bytenr: u64, len: u64, owner: Option<u64>) -> Result<Moving> {
        let core = self.commit.core();
        let sums = self.sums_of(bytenr, len)?;
        let size = core.features.csum.size();
        let mut content = vec![0; usize::try_from(len).unwrap_or(0)];
        let mut at = 0;
        let sectors = |digests: &[u8]| (digests.len() / size) as u64 * SECTOR;
        let none = (len, Vec::new());
        for (from, digests) in sums.iter().chain([&none]) {
            let (before, until) = (at as usize..*from as usize, from + sectors(digests));
            let plain = buttress_volume::Sums::None;
            let verified = buttress_volume::Sums::Verify(digests);
            for (range, sums) in [(before, plain), (*from as usize..until as usize, verified)] {
                let from = bytenr + range.start as u64;
                let Some(part) = content.get_mut(range).filter(|part| !part.is_empty()) else {
                    continue;
                };
                core.volume.read_data(from, part, sums)?;
            }
            at = until;
        }
        let to = core.space.allocate_data(len, len).ok_or(Error::NoSpace)?;
        Ok(Moving { to, content, sums, owner })
    }

    /// The checksums of a data extent, by where in it their first sector is.
    fn sums_of(&self, bytenr: u64, len: u64) -> Result<Vec<(u64, Vec<u8>)>> {
        let core = self.commit.core();
        let (size, end) = (core.features.csum.size(), bytenr + len);
        let view = View::new(&core.blocks, objectid::CSUM_TREE, self.roots.csum);
        let key = |at| Key::new(objectid::EXTENT_CSUM, kind::EXTENT_CSUM, at);
        let mut sums = Vec::new();
        let mut take = |key: Key, data: &[u8]| {
            if key.kind != kind::EXTENT_CSUM {
                return;
            }
            let until = key.offset.saturating_add((data.len() / size) as u64 * SECTOR);
            let (from, to) = (key.offset.max(bytenr), until.min(end));
            if from < to {
                let index = |at: u64| ((at - key.offset) / SECTOR) as usize * size;
                sums.push((from - bytenr, data[index(from)..index(to)].to_vec()));
            }
        };
        if let Some(item) = view.last_in(&key(0), &key(bytenr))? {
            take(item.key(), item.data());
        }
        let mut items = view.range(key(bytenr + 1), key(end - 1));
        while let Some(item) = items.next()? {
            take(item.key(), item.data());
        }
        Ok(sums)
    }

    /// Writes all blocks of a graph and all its data to new addresses, and has the references follow.
    fn write_anew(&mut self, graph: &Graph, data: &BTreeMap<u64, Moving>) -> Result<()> {
        if graph.blocks.is_empty() {
            return Ok(());
        }
        let core = self.commit.core();
        for moving in data.values() {
            core.write_for_commit(moving.to.start, &moving.content)?;
        }
        let mut places = BTreeMap::new();
        for bytenr in graph.blocks.keys() {
            places.insert(*bytenr, core.space.allocate_block(Class::Metadata)?);
        }
        let places = Places { blocks: places, data };
        for (bytenr, above) in &graph.blocks {
            let stamp = self.commit.stamp(places.block(*bytenr), above.block.owner());
            let reloc = if places.is_full(graph, *bytenr) { BlockHead::RELOC } else { 0 };
            let stamp = buttress_ondisk::build::Stamp { flags: stamp.flags | reloc, ..stamp };
            self.commit.placed(places.copy(&above.block, graph, &stamp))?;
        }
        core.space.set_shared();
        self.move_references(graph, &places)?;
        for (from, moving) in data {
            for (at, digests) in &moving.sums {
                self.todo.csums.push(moving.to.start + at, digests.clone());
            }
            debug_assert!(graph.data.contains_key(from));
        }
        for (tree, bytenr) in &graph.roots {
            self.move_root(*tree, places.block(*bytenr))?;
        }
        Ok(())
    }

    /// Has all references name the new addresses.
    fn move_references(&mut self, graph: &Graph, places: &Places<'_>) -> Result<()> {
        let half_dropped = self.half_dropped(graph)?;
        let mut log = RefLog::default();
        for (bytenr, above) in &graph.blocks {
            let first = half_dropped.get(bytenr).copied().unwrap_or(0);
            move_block(&mut log, (*bytenr, above, first), graph, places);
        }
        for (bytenr, data) in &graph.data {
            move_data(&mut log, (*bytenr, data), graph, places);
        }
        // Quotas need not know of it: whoever reached something does so still.
        let changes = self.changes.take();
        self.settle_log(log)?;
        self.changes = changes;
        Ok(())
    }

    /// Where what is left of trees that are being dropped starts, in the blocks of a graph on the way there.
    fn half_dropped(&self, graph: &Graph) -> Result<BTreeMap<u64, usize>> {
        let core = self.commit.core();
        let mut first_left = BTreeMap::new();
        for tree in graph.roots.keys() {
            let Some((_, item)) = self.root_item_of(*tree)? else { continue };
            let key = Key::from(item.drop_progress);
            if key == Key::MIN {
                continue;
            }
            let view = View::new(&core.blocks, *tree, root_of(&item));
            let mut block = view.root_block()?;
            loop {
                if block.level() <= item.drop_level || block.is_leaf() {
                    let slot = block.search(&key).unwrap_or_else(|slot| slot);
                    first_left.insert(block.bytenr(), slot);
                    break;
                }
                let slot = block.child_for(&key);
                first_left.insert(block.bytenr(), slot);
                block = view.child(&block, slot)?;
            }
        }
        Ok(first_left)
    }

    fn root_item_of(&self, tree: u64) -> Result<Option<(Key, RootItem)>> {
        let trees = View::new(&self.commit.core().blocks, objectid::ROOT_TREE, self.roots.root);
        let from = Key::new(tree, kind::ROOT_ITEM, 0);
        let item = trees.last_in(&from, &Key { offset: u64::MAX, ..from })?;
        Ok(item.and_then(|item| Some((item.key(), RootItem::of_subvolume(item.data())?))))
    }

    /// The root of a tree is at another address.
    fn move_root(&mut self, tree: u64, bytenr: u64) -> Result<()> {
        let (key, mut item) = self.root_item_of(tree)?.ok_or_else(|| {
            Error::inconsistent(objectid::ROOT_TREE, "a tree has no root item", tree)
        })?;
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

/// What an extent item is of.
fn found(key: &Key, data: &[u8]) -> Result<Found> {
    let wrong = || Error::inconsistent(objectid::EXTENT_TREE, "an extent item is too short", key);
    let (head, info, refs) = inline_refs(key, data).ok_or_else(wrong)?;
    let (mut owner, mut tree) = (None, None);
    for one in refs {
        match one {
            InlineRef::Owner { root } => owner = Some(root),
            InlineRef::TreeBlock { root } => tree = Some(root),
            _ => {}
        }
    }
    Ok(match head.flags.get() & extent_flags::TREE_BLOCK {
        0 => Found::Data { len: key.offset, owner },
        _ => {
            let level = info.map_or(key.offset as u8, |info| info.level);
            Found::Block { level, generation: head.generation.get(), tree }
        }
    })
}

/// The records of a block that moves; children of it before `first` are gone already.
fn move_block(
    log: &mut RefLog,
    (bytenr, above, first): (u64, &Above, usize),
    graph: &Graph,
    places: &Places<'_>,
) {
    let level = above.block.level();
    let (old, new) = (Target::Block(bytenr, level), Target::Block(places.block(bytenr), level));
    let full = if places.is_full(graph, bytenr) { Record::FULL_BACKREF } else { 0 };
    log.mark(new, Record::NEW | full);
    log.owned(old, above.block.owner());
    log.owned(new, above.block.owner());
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
    if full == 0 {
        return;
    }
    let (mut slot, is_node) = (0, !above.block.is_leaf());
    child_refs(&above.block, |target| {
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
            false => log.by_tree(target, above.block.owner(), -1, 0),
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
    log.mark(at(to, 0, 0), Record::NEW);
    if let Some(owner) = moving.owner {
        log.owned(at(to, 0, 0), owner);
    }
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
        for leaf in leaves {
            match *one {
                InlineRef::ExtentData { root, objectid, offset, .. }
                    if !places.is_full(graph, *leaf) =>
                {
                    log.by_tree(at(to, objectid, offset), root, 1, 0);
                }
                _ => log.by_block(at(to, 0, 0), places.block(*leaf), 1),
            }
        }
    }
}
