//! Settling: the trees that describe space describe themselves, too. They are merged until nothing new comes up.
//!
//! Each round merges what the round before caused: references into the extent tree, checksums, block groups, free
//! space, chunks, and at last the items in the root tree that say where all these trees are. A block that a round
//! replaces in a tree of this commit keeps its address, so the rounds cause less and less; two or three are usual.
//!
//! Where free space is single blocks here and there, each leaf of the extent tree that is rewritten changes the references of two
//! addresses, which are in two other leaves: one leads to the next, perhaps through all of the tree, and only a few in each
//! round. But a block of an older commit is rewritten once.
//!
//! When a deletion finds no room, the trees for extents and free space are *packed* first: all their leaves are written anew, with small
//! gaps ([`crate::space`] says when, and keeps the room for it). Like every other block, the old ones stay until the commit is durable.

mod quotas;
mod relocate;

use quotas::last_snapshot;
use std::collections::BTreeMap;
use std::sync::Arc;

use buttress_ondisk::build::LeafBuilder;
use buttress_ondisk::item::{FreeSpaceHeader, RootItem};
use buttress_ondisk::{Expect, Key, kind, objectid};
use zerocopy::IntoBytes;

use super::commit::{Commit, Gathered, UuidChange};
use super::core::Roots;
use super::exchange::TreeCommit;
use crate::error::{Error, Result};
use crate::quota::{Bystanders, Changes, Remembered};
use crate::refs::owners::{Known, Owners};
use crate::refs::{Applied, Extent, Form, Owned, Record, RefLog, Target, apply};
use crate::space::{Range, Trees, most_packed};
use crate::stats;
use crate::tree::{Item, Merge, Packed, Root, View};

pub use relocate::{Relocated, Relocation, TooSmall};

/// More rounds in which no block of an older commit is rewritten, and the trees neither grow nor shrink further, than any commit
/// needs; a commit that does not settle is a bug, and better aborted than endless.
const IDLE_MAX: usize = if cfg!(test) { 8 } else { 1024 };

struct Settler<'c, 'a> {
    commit: &'c Commit<'a>,
    trees: BTreeMap<u64, TreeCommit<'c, 'a>>,
    roots: Roots,
    /// What the root tree says of each tree: where it is, and by how many blocks it has grown.
    noted: BTreeMap<u64, (Root, i64)>,
    todo: Gathered,
    sizes: Trees,
    /// The same ahead of this commit.
    before: Trees,
    /// What quotas have to look at, until they have; nothing where nobody counts.
    changes: Option<Changes>,
    /// Who reaches blocks, where full quotas count.
    remembered: Option<Remembered>,
    /// The transaction since which simple quotas count what is allocated.
    owners: Option<u64>,
    /// What trees have allocated and what of that was freed, until it is counted.
    owned: Owned,
}

/// Merges everything that is not a subvolume; answers where the trees are, and how large those that describe space.
pub(super) fn settle(commit: &Commit<'_>) -> Result<(Roots, Trees)> {
    let roots = commit.core().roots();
    roots.count_if_tight(&commit.core().blocks, &commit.core().space);
    let mut sizes = commit.core().space.trees();
    if roots.free_space.is_none() {
        sizes.free_space = 0;
    }
    let mut settler = Settler {
        commit,
        trees: BTreeMap::new(),
        roots,
        noted: roots.by_id().iter().filter_map(|(id, root)| Some((*id, ((*root)?, 0)))).collect(),
        todo: commit.take_gathered(),
        sizes,
        before: sizes,
        changes: None,
        remembered: None,
        owners: None,
        owned: Owned::default(),
    };
    settler.begin_quotas()?;
    settler.settle_uuids()?;
    if settler.roots.free_space.is_none() {
        settler.make_free_space_tree()?;
    }
    let packs = settler.can_pack() && commit.core().space.reserve_packing();
    if packs {
        settler.merge(objectid::EXTENT_TREE, |merge| merge.pack())?;
        settler.merge(objectid::FREE_SPACE_TREE, |merge| merge.pack())?;
    }
    let (mut idle, mut replaced, mut least, mut most) = (0, 0, 0, 0);
    while idle < IDLE_MAX {
        if !settler.round()?
            && !settler.touch_root_tree()?
            && !settler.drop_spares()
            && !settler.count_quotas()?
            // What quotas look for is where the merges have left it.
            && !settler.relocate()?
        {
            if packs {
                commit.core().space.note_packed(settler.sizes);
            }
            let remembered = settler.remembered.take().and_then(|it| it.kept(commit.transid()));
            *commit.core().remembered.lock() = remembered;
            return Ok((settler.roots, settler.sizes));
        }
        let before = std::mem::replace(&mut replaced, settler.replaced());
        let now = settler.grown();
        idle = if replaced == before && (least..=most).contains(&now) { idle + 1 } else { 0 };
        (least, most) =
            if replaced > before { (now, now) } else { (now.min(least), now.max(most)) };
    }
    Err(Error::inconsistent(objectid::EXTENT_TREE, "a commit does not settle", commit.transid()))
}

impl<'c, 'a> Settler<'c, 'a> {
    /// Whether the trees that describe space are to be packed, and can be: nobody's changes are lost for one leaf that nobody can
    /// read, and that this commit would not touch otherwise. Nor for items larger than ours, of which more leaves would come than
    /// were promised.
    fn can_pack(&self) -> bool {
        let core = self.commit.core();
        if !core.space.take_packing() {
            return false;
        }
        let trees = [
            (objectid::EXTENT_TREE, Some(self.roots.extent), self.sizes.extent),
            (objectid::FREE_SPACE_TREE, self.roots.free_space, self.sizes.free_space),
        ];
        for (id, root, blocks) in trees {
            let Some(root) = root else { continue };
            let view = View::new(&core.blocks, id, root);
            let mut items = view.range(Key::MIN, Key::MAX);
            let mut packed = Packed::new(core.blocks.nodesize());
            let mut last = None;
            loop {
                let next = items.next().and_then(|next| {
                    let (Some(last), Some(next)) = (&last, &next) else { return Ok(next) };
                    self.go_together(id, last, next).map(|()| Some(next.clone()))
                });
                match next {
                    Ok(Some(item)) => {
                        packed.add(item.data().len());
                        last = Some(item);
                    }
                    Ok(None) => break,
                    Err(error) => {
                        core.space.never_pack();
                        core.warn(format!("the trees for space are not packed: {error}"));
                        return false;
                    }
                }
            }
            if packed.leaves > most_packed(blocks) {
                core.space.note_packed(self.sizes);
                return false;
            }
        }
        true
    }

    /// Refuses two items that follow each other and may not stand in one leaf: each of the two leaves that they are in is good
    /// in itself, and the one that packing would make of them is not.
    fn go_together(&self, tree: u64, item: &Item, next: &Item) -> Result<()> {
        if Arc::ptr_eq(item.leaf(), next.leaf()) {
            return Ok(());
        }
        let core = self.commit.core();
        let mut leaf = LeafBuilder::new(core.blocks.nodesize());
        if !leaf.push(item.key(), item.data()) || !leaf.push(next.key(), next.data()) {
            return Ok(());
        }
        let bytenr = next.leaf().bytenr();
        let leaf = leaf.finish(&self.commit.stamp(bytenr, tree));
        Ok(core.volume.gate().verify(&leaf, &Expect::at(bytenr))?)
    }

    /// One round; whether anything was to be done.
    fn round(&mut self) -> Result<bool> {
        let mut busy = self.settle_refs()?;
        busy |= self.settle_csums()?;
        busy |= self.settle_space()?;
        busy |= self.settle_roots()?;
        Ok(busy)
    }

    /// Blocks of older commits that were rewritten so far.
    fn replaced(&self) -> u64 {
        self.trees.values().map(|tree| tree.replaced).sum()
    }

    /// By how many blocks the trees have grown: where leaves are full, one that splits has the next one split by its own item.
    fn grown(&self) -> i64 {
        self.trees.values().map(TreeCommit::grown).sum()
    }

    fn root_mut(&mut self, tree: u64) -> Option<&mut Root> {
        Some(match tree {
            objectid::ROOT_TREE => &mut self.roots.root,
            objectid::CHUNK_TREE => &mut self.roots.chunk,
            objectid::EXTENT_TREE => &mut self.roots.extent,
            objectid::DEV_TREE => &mut self.roots.dev,
            objectid::CSUM_TREE => &mut self.roots.csum,
            objectid::UUID_TREE => self.roots.uuid.as_mut()?,
            objectid::FREE_SPACE_TREE => self.roots.free_space.as_mut()?,
            objectid::BLOCK_GROUP_TREE => self.roots.block_group.as_mut()?,
            objectid::QUOTA_TREE => self.roots.quota.as_mut()?,
            _ => return None,
        })
    }

    /// Merges `tree`; its references join what is to be done.
    fn merge(
        &mut self,
        tree: u64,
        change: impl FnOnce(&mut Merge<'_>) -> Result<()>,
    ) -> Result<()> {
        let Some(root) = self.root_mut(tree).copied() else { return Ok(()) };
        let commit = self.commit;
        let entry = self.trees.entry(tree).or_insert_with(|| TreeCommit::new(commit, tree));
        let mut merge = entry.merge(Some(root))?;
        change(&mut merge)?;
        let new = merge.finish()?;
        commit.core().env.step("a tree is merged");
        self.todo.refs.append(&mut entry.refs);
        if let Some(root) = self.root_mut(tree) {
            *root = new;
        }
        Ok(())
    }

    fn settle_refs(&mut self) -> Result<bool> {
        if self.todo.refs.is_empty() {
            return Ok(false);
        }
        let counters = &self.commit.core().counters;
        stats::add(&counters.refs_logged, self.todo.refs.len() as u64);
        let log = std::mem::take(&mut self.todo.refs);
        self.settle_log(log)?;
        Ok(true)
    }

    /// Merges a log of references into the extent tree.
    fn settle_log(&mut self, log: RefLog) -> Result<()> {
        let counters = &self.commit.core().counters;
        let features = self.commit.core().features;
        let first_keys = self.commit.first_keys();
        let form = Form {
            nodesize: features.nodesize,
            skinny: features.skinny,
            generation: self.commit.transid(),
            first_keys: &first_keys,
            owners: self.owners,
        };
        let mut applied = Applied::default();
        let (mut changes, commit) = (self.changes.take(), self.commit);
        let (core, mut remembered) = (commit.core(), self.remembered.take());
        let mut known = Known::new(quotas::memory_for_owners(core));
        let counting = changes.as_mut().zip(remembered.as_mut());
        let mut counting = counting.map(|(changes, remembered)| {
            let before = quotas::committed(&core.roots());
            let owners = Owners::new(&core.blocks, before, &mut known);
            let bystanders =
                Bystanders::new(owners, commit.sharing(), remembered, &core.quota, changes);
            (changes, bystanders)
        });
        let mut told = |records: &[Record], extent: &Extent| {
            if let Some((changes, bystanders)) = &mut counting {
                let nodesize = features.nodesize as u64;
                let last_snapshot = |tree| last_snapshot(commit, tree);
                changes.told(records, extent, nodesize, bystanders, last_snapshot);
            }
        };
        self.merge(objectid::EXTENT_TREE, |merge| {
            let folded =
                log.fold(|records| apply(merge, &form, records, &mut applied, &mut told))?;
            stats::add(&counters.refs_folded, folded as u64);
            Ok(())
        })?;
        if let Some(remembered) = &mut remembered {
            remembered.forget(&applied.freed_blocks);
        }
        (self.changes, self.remembered) = (changes, remembered);
        self.owned.append(&mut applied.owned);
        self.account(&applied)
    }

    fn account(&mut self, applied: &Applied) -> Result<()> {
        let space = &self.commit.core().space;
        for (start, len) in &applied.new_data {
            space.account_new(Range { start: *start, len: *len })?;
        }
        for (start, len) in &applied.freed_data {
            self.todo.csums.remove(*start, *len);
            space.free(Range { start: *start, len: *len })?;
        }
        let nodesize = self.commit.core().features.nodesize as u64;
        for start in &applied.freed_blocks {
            space.free(Range { start: *start, len: nodesize })?;
        }
        self.commit.left_behind(&applied.freed_blocks);
        Ok(())
    }

    fn settle_csums(&mut self) -> Result<bool> {
        if self.todo.csums.is_empty() {
            return Ok(false);
        }
        let csums = std::mem::take(&mut self.todo.csums);
        let features = self.commit.core().features;
        self.merge(objectid::CSUM_TREE, |merge| {
            csums.emit(merge, features.csum.size(), features.nodesize)
        })?;
        Ok(true)
    }

    fn settle_space(&mut self) -> Result<bool> {
        let core = self.commit.core();
        let dirty = core.space.take_dirty();
        if dirty.is_empty() {
            return Ok(false);
        }
        if dirty.chunks_changed() {
            self.merge(objectid::CHUNK_TREE, |merge| core.space.emit_chunks(merge, &dirty))?;
            self.merge(objectid::DEV_TREE, |merge| core.space.emit_device_extents(merge, &dirty))?;
        }
        let groups = if self.roots.block_group.is_some() {
            objectid::BLOCK_GROUP_TREE
        } else {
            objectid::EXTENT_TREE
        };
        self.merge(groups, |merge| core.space.emit_groups(merge, &dirty))?;
        self.merge(objectid::FREE_SPACE_TREE, |merge| core.space.emit_free_space(merge, &dirty))?;
        Ok(true)
    }

    fn settle_roots(&mut self) -> Result<bool> {
        let mut items = std::mem::take(&mut self.todo.root_items);
        let grown = |id| self.trees.get(&id).map_or(0, TreeCommit::grown);
        let moved: Vec<(u64, (Root, i64))> = self
            .roots
            .by_id()
            .iter()
            .filter_map(|(id, root)| Some((*id, ((*root)?, grown(*id)))))
            .filter(|(id, state)| self.noted.get(id) != Some(state))
            .collect();
        if items.is_empty() && moved.is_empty() {
            return Ok(false);
        }
        for (id, state) in moved {
            self.noted.insert(id, state);
            let item = self.note(id, state.0)?;
            items.insert(Key::new(id, kind::ROOT_ITEM, 0), Some(item));
        }
        self.merge(objectid::ROOT_TREE, |merge| {
            for (key, item) in &items {
                match item {
                    Some(item) => merge.put(*key, item)?,
                    None => {
                        merge.delete(key)?;
                    }
                }
            }
            Ok(())
        })?;
        Ok(true)
    }

    /// The superblock and the root tree's root have one generation: a commit that changes nothing but the superblock (a
    /// label) still writes the root tree anew. Whether it did.
    fn touch_root_tree(&mut self) -> Result<bool> {
        if self.roots.root.generation == self.commit.transid() {
            return Ok(false);
        }
        let item = self.note(objectid::EXTENT_TREE, self.roots.extent)?;
        let key = Key::new(objectid::EXTENT_TREE, kind::ROOT_ITEM, 0);
        self.merge(objectid::ROOT_TREE, |merge| {
            merge.put_with(key, item.len(), |data| data.copy_from_slice(&item))
        })?;
        Ok(true)
    }

    /// The root item of `tree` as it was, pointing to `root`.
    fn note(&mut self, id: u64, root: Root) -> Result<Vec<u8>> {
        let core = self.commit.core();
        let old = core.root_view().get(&Key::new(id, kind::ROOT_ITEM, 0))?;
        let mut item = match old.and_then(|old| RootItem::read(old.data())) {
            Some(item) => item,
            None => new_root_item(),
        };
        item.bytenr = root.bytenr.into();
        item.level = root.level;
        item.generation = root.generation.into();
        item.generation_v2 = root.generation.into();
        if let Some(tree) = self.trees.get(&id) {
            item.bytes_used = tree.bytes_used(item.bytes_used.get()).into();
        }
        let grown = self.trees.get(&id).map_or(0, TreeCommit::grown);
        let now = |before: u64| before.saturating_add_signed(grown).max(1);
        match id {
            objectid::EXTENT_TREE => self.sizes.extent = now(self.before.extent),
            objectid::FREE_SPACE_TREE => self.sizes.free_space = now(self.before.free_space),
            objectid::CSUM_TREE => self.sizes.csum = now(self.before.csum),
            objectid::QUOTA_TREE => self.sizes.quota = now(self.before.quota),
            _ => {}
        }
        Ok(item.as_bytes().to_vec())
    }

    fn settle_uuids(&mut self) -> Result<()> {
        let mut changes = std::mem::take(&mut self.todo.uuids);
        if changes.is_empty() || self.roots.uuid.is_none() {
            return Ok(());
        }
        // Those of one uuid stay in the order in which they happened.
        changes.sort_by_key(|change| change.key);
        self.merge(objectid::UUID_TREE, |merge| {
            for same in changes.chunk_by(|a, b| a.key == b.key) {
                change_uuid(merge, same)?;
            }
            Ok(())
        })
    }

    /// Makes the free space tree on a filesystem that has none (or one that is not valid), and drops the v1 cache.
    fn make_free_space_tree(&mut self) -> Result<()> {
        let commit = self.commit;
        let entry = self
            .trees
            .entry(objectid::FREE_SPACE_TREE)
            .or_insert_with(|| TreeCommit::new(commit, objectid::FREE_SPACE_TREE));
        let mut merge = entry.merge(self.roots.stale_free_space.take())?;
        merge.delete_range(Key::MIN, Key::MAX, |_, _| ())?;
        self.roots.free_space = Some(merge.finish()?);
        self.todo.refs.append(&mut entry.refs);
        commit.core().space.mark_all_dirty();
        self.drop_v1_cache()
    }

    /// The v1 cache is files in the root tree: each block group's header names an inode.
    fn drop_v1_cache(&mut self) -> Result<()> {
        let view = self.commit.core().root_view();
        let mut headers = view.range(
            Key::new(objectid::FREE_SPACE, 0, 0),
            Key::new(objectid::FREE_SPACE, u8::MAX, u64::MAX),
        );
        while let Some(header) = headers.next()? {
            self.todo.root_items.insert(header.key(), None);
            let Some(found) = FreeSpaceHeader::of(header.data()) else { continue };
            let location = Key::from(found.location);
            let ino = location.objectid;
            if location.kind != kind::INODE_ITEM
                || !(objectid::FIRST_FREE..=objectid::LAST_FREE).contains(&ino)
            {
                let what = "the free space cache of a block group leads to no file";
                let key = header.key();
                let error = Error::inconsistent(objectid::ROOT_TREE, what, key);
                self.commit.core().warn(error.to_string());
                continue;
            }
            let mut items = view.range(
                Key::new(ino, kind::INODE_ITEM, 0),
                Key::new(ino, kind::EXTENT_DATA, u64::MAX),
            );
            while let Some(item) = items.next()? {
                if let Some(target) = Target::of_item(&item.key(), item.data()) {
                    self.todo.refs.by_tree(target, objectid::ROOT_TREE, -1, 0);
                }
                self.todo.root_items.insert(item.key(), None);
            }
        }
        Ok(())
    }

    fn drop_spares(&mut self) -> bool {
        let mut any = false;
        for tree in self.trees.values_mut() {
            any |= tree.drop_spares();
            self.todo.refs.append(&mut tree.refs);
        }
        any
    }
}

fn change_uuid(merge: &mut Merge<'_>, changes: &[UuidChange]) -> Result<()> {
    let key = changes[0].key;
    let old = merge.find(&key)?.unwrap_or_default();
    let mut ids: Vec<u64> = old
        .chunks_exact(8)
        .map(|id| u64::from_le_bytes(id.try_into().expect("eight bytes")))
        .collect();
    for change in changes {
        ids.retain(|id| *id != change.subvolume);
        if change.add {
            ids.push(change.subvolume);
        }
    }
    if ids.is_empty() {
        merge.delete(&key)?;
        return Ok(());
    }
    let bytes: Vec<u8> = ids.iter().flat_map(|id| id.to_le_bytes()).collect();
    merge.put(key, &bytes)
}

/// A root item for a tree that is not a subvolume, as mkfs makes them.
pub fn new_root_item() -> RootItem {
    let mut item = RootItem::default();
    item.inode.generation = 1.into();
    item.inode.size = 3.into();
    item.inode.nlink = 1.into();
    item.inode.nbytes = 16384.into();
    item.inode.mode = 0o40755.into();
    item.refs = 1.into();
    item
}
