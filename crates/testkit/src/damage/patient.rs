//! An image under the knife: items found and changed where they lie, in all copies.

use std::sync::Arc;

use buttress_device::{BlockDevice, MemoryDevice};
use buttress_ondisk::build::Stamp;
use buttress_ondisk::item::InodeItem;
use buttress_ondisk::superblock::{SUPERBLOCK_LEN, SUPERBLOCK_OFFSETS};
use buttress_ondisk::{Key, LeafBuilder, Superblock, TreeBlock, kind, objectid, view};
use buttress_volume::{Access, Volume};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{DamageError, Result};

/// Bytes of a block that hold its checksum.
const SUM: usize = 32;
/// The tree that mounts show.
pub const TOP: u64 = objectid::FS_TREE;

/// A block on the way to an item, and the slot taken in it.
#[derive(Clone, Debug)]
pub struct Step {
    /// The block as it is on the disk.
    pub block: TreeBlock,
    /// The child, or the item.
    pub slot: usize,
}

/// An image in memory that is being damaged. Blocks are changed in place and sealed again, in all copies.
#[derive(Debug)]
pub struct Patient {
    device: Arc<MemoryDevice>,
    volume: Volume,
}

impl Patient {
    /// A copy of a healthy image.
    pub fn of(healthy: &MemoryDevice) -> Result<Patient> {
        let device = Arc::new(healthy.snapshot());
        // Also what may only be read can be damaged.
        let opened = Volume::open(vec![device.clone()], Access::ReadOnly)?;
        Ok(Patient { device, volume: opened.volume })
    }

    /// The device with what was done to it.
    pub fn device(&self) -> &Arc<MemoryDevice> {
        &self.device
    }

    /// The address space as it was before anything was done.
    pub fn volume(&self) -> &Volume {
        &self.volume
    }

    /// The block at a logical address; only its layout has to be good.
    pub fn block(&self, at: u64) -> Result<TreeBlock> {
        let mut bytes = vec![0; self.volume.nodesize() as usize].into_boxed_slice();
        self.volume.read_raw(at, &mut bytes, 0)?;
        Ok(self.volume.gate().salvage(bytes).map_err(Box::new)?)
    }

    /// Writes a block with its checksum put right.
    pub fn seal(&self, at: u64, mut bytes: Vec<u8>) -> Result<()> {
        let digest = self.volume.checksum_kind().digest(&bytes[SUM..]);
        bytes[..SUM].copy_from_slice(digest.as_field());
        self.write(at, &bytes)
    }

    /// Writes all copies of a logical address, which has to be inside one chunk.
    pub fn write(&self, at: u64, bytes: &[u8]) -> Result<()> {
        let chunk = self.volume.chunk_at(at).ok_or(DamageError::Missing("a chunk"))?;
        for stripe in &chunk.stripes {
            self.device.write_at(stripe.offset + (at - chunk.logical), bytes)?;
        }
        Ok(())
    }

    /// Changes the bytes of a block.
    pub fn edit_block(&self, at: u64, edit: impl FnOnce(&mut [u8])) -> Result<()> {
        let mut bytes = self.block(at)?.as_bytes().to_vec();
        edit(&mut bytes);
        self.seal(at, bytes)
    }

    /// Address of the root block of a tree.
    pub fn root(&self, tree: u64) -> Result<u64> {
        let sb = self.volume.superblock();
        match tree {
            objectid::ROOT_TREE => Ok(sb.root.get()),
            objectid::CHUNK_TREE => Ok(sb.chunk_root.get()),
            objectid::TREE_LOG => self.log(sb.log_root.get()),
            _ => {
                let is_item =
                    |key: &Key, _: &[u8]| (key.objectid, key.kind) == (tree, kind::ROOT_ITEM);
                let (_, data) = self.find(objectid::ROOT_TREE, is_item)?;
                let root = buttress_ondisk::item::RootItem::read(&data);
                Ok(root.ok_or(DamageError::Missing("a root item"))?.bytenr.get())
            }
        }
    }

    /// Address of the root block of the first log, from the tree of logs.
    fn log(&self, logs: u64) -> Result<u64> {
        let mut block = self.block(logs)?;
        while !block.is_leaf() {
            block = self.block(block.child(0).bytenr)?;
        }
        let (_, data) = (0..block.len())
            .map(|slot| block.item(slot))
            .find(|(key, _)| key.kind == kind::ROOT_ITEM)
            .ok_or(DamageError::Missing("a log"))?;
        let root = buttress_ondisk::item::RootItem::read(data);
        Ok(root.ok_or(DamageError::Missing("a root item"))?.bytenr.get())
    }

    /// All items of a tree that `wanted` picks, in key order.
    pub fn all(
        &self,
        tree: u64,
        wanted: impl Fn(&Key, &[u8]) -> bool,
    ) -> Result<Vec<(Key, Vec<u8>)>> {
        let mut found = Vec::new();
        let mut waiting = vec![self.root(tree)?];
        while let Some(at) = waiting.pop() {
            let block = self.block(at)?;
            if !block.is_leaf() {
                waiting.extend((0..block.len()).rev().map(|slot| block.child(slot).bytenr));
                continue;
            }
            let items = (0..block.len()).map(|slot| block.item(slot));
            found.extend(items.filter(|(k, d)| wanted(k, d)).map(|(k, d)| (k, d.to_vec())));
        }
        Ok(found)
    }

    /// The first item of a tree that `wanted` picks.
    pub fn find(&self, tree: u64, wanted: impl Fn(&Key, &[u8]) -> bool) -> Result<(Key, Vec<u8>)> {
        self.all(tree, wanted)?.into_iter().next().ok_or(DamageError::Missing("such an item"))
    }

    /// The first key of a kind in a tree.
    pub fn first(&self, tree: u64, kind: u8) -> Result<Key> {
        Ok(self.find(tree, |key, _| key.kind == kind)?.0)
    }

    /// The first key of an object's items of a kind.
    pub fn key(&self, tree: u64, id: u64, kind: u8) -> Result<Key> {
        Ok(self.find(tree, |key, _| (key.objectid, key.kind) == (id, kind))?.0)
    }

    /// What a name stands for: an inode or a subvolume. Names are unique in the images used here.
    pub fn named(&self, tree: u64, name: &str) -> Result<u64> {
        let is_named = |data: &[u8]| view::dir_entries(data).any(|it| it.name == name.as_bytes());
        let (_, data) =
            self.find(tree, |key, data| key.kind == kind::DIR_INDEX && is_named(data))?;
        let entry = view::dir_entries(&data).next().ok_or(DamageError::Missing("an entry"))?;
        Ok(entry.location.objectid)
    }

    /// The key of the `DIR_ITEM` or `DIR_INDEX` of a name.
    pub fn entry(&self, tree: u64, kind: u8, name: &str) -> Result<Key> {
        let is_named = |data: &[u8]| view::dir_entries(data).any(|it| it.name == name.as_bytes());
        Ok(self.find(tree, |key, data| key.kind == kind && is_named(data))?.0)
    }

    /// The way from the root of a tree to where `key` is or would be.
    pub fn path(&self, tree: u64, key: &Key) -> Result<Vec<Step>> {
        let mut path = Vec::new();
        let mut at = self.root(tree)?;
        loop {
            let block = self.block(at)?;
            if block.is_leaf() {
                let slot = block.search(key).unwrap_or_else(|slot| slot);
                path.push(Step { block, slot });
                return Ok(path);
            }
            let slot = block.child_for(key);
            at = block.child(slot).bytenr;
            path.push(Step { block, slot });
        }
    }

    /// Replaces the items of the leaf that holds `key`. The keys of the nodes above follow its first key.
    pub fn edit_items(
        &self,
        tree: u64,
        key: &Key,
        edit: impl FnOnce(&mut Vec<(Key, Vec<u8>)>),
    ) -> Result<()> {
        let path = self.path(tree, key)?;
        let all = |items: &mut Vec<(Key, Vec<u8>)>| {
            edit(items);
            true
        };
        self.edit_path(path, tree, all).map(drop)
    }

    /// Replaces the items of the leaf at the end of a path, unless `edit` says no; what it says.
    pub(super) fn edit_path(
        &self,
        mut path: Vec<Step>,
        tree: u64,
        edit: impl FnOnce(&mut Vec<(Key, Vec<u8>)>) -> bool,
    ) -> Result<bool> {
        let Some(Step { block, .. }) = path.pop() else {
            return Err(DamageError::Missing("a leaf"));
        };
        let mut items: Vec<_> = (0..block.len())
            .map(|slot| block.item(slot))
            .map(|(key, data)| (key, data.to_vec()))
            .collect();
        if !edit(&mut items) {
            return Ok(false);
        }
        items.sort_by_key(|(key, _)| *key);
        let mut leaf = LeafBuilder::new(block.as_bytes().len());
        for (key, data) in &items {
            if !leaf.push(*key, data) {
                return Err(DamageError::Full { tree, leaf: block.bytenr() });
            }
        }
        let first = leaf.first_key();
        if first.is_none() && !path.is_empty() {
            return Err(DamageError::Missing("an item left in the leaf"));
        }
        let leaf = leaf.finish(&stamp(&block));
        self.seal(block.bytenr(), leaf.as_bytes().to_vec())?;
        if let Some(first) = first {
            self.set_first_key(path, &first)?;
        }
        Ok(true)
    }

    /// Puts the first key of a leaf into the nodes above it.
    fn set_first_key(&self, mut path: Vec<Step>, first: &Key) -> Result<()> {
        while let Some(Step { block, slot }) = path.pop() {
            if block.key(slot) == *first {
                return Ok(());
            }
            self.edit_block(block.bytenr(), |bytes| {
                super::bytes::set_child_key(bytes, slot, first)
            })?;
            if slot > 0 {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Puts an item in; there must be none with its key, and its leaf must have room.
    pub fn insert(&self, tree: u64, key: Key, data: &[u8]) -> Result<()> {
        self.edit_items(tree, &key, |items| items.push((key, data.to_vec())))
    }

    /// Takes an item out.
    pub fn remove(&self, tree: u64, key: Key) -> Result<Vec<u8>> {
        let mut taken = None;
        self.edit_items(tree, &key, |items| {
            let at = items.iter().position(|(other, _)| *other == key);
            taken = at.map(|at| items.remove(at).1);
        })?;
        taken.ok_or(DamageError::Missing("the item to remove"))
    }

    /// Gives an item another key.
    pub fn rekey(&self, tree: u64, from: Key, to: Key) -> Result<()> {
        let data = self.remove(tree, from)?;
        self.insert(tree, to, &data)
    }

    /// Replaces or changes the data of an item, its length included.
    pub fn rewrite(&self, tree: u64, key: Key, edit: impl FnOnce(&mut Vec<u8>)) -> Result<()> {
        let mut found = false;
        self.edit_items(tree, &key, |items| {
            if let Some((_, data)) = items.iter_mut().find(|(other, _)| *other == key) {
                found = true;
                edit(data);
            }
        })?;
        if found { Ok(()) } else { Err(DamageError::Missing("the item to change")) }
    }

    /// Changes the structure at the start of an item.
    pub fn edit<T>(&self, tree: u64, key: Key, edit: impl FnOnce(&mut T)) -> Result<()>
    where
        T: FromBytes + IntoBytes + KnownLayout + Immutable + Unaligned,
    {
        self.edit_at(tree, key, 0, edit)
    }

    /// Changes the structure that starts `skip` bytes into an item.
    pub fn edit_at<T>(
        &self,
        tree: u64,
        key: Key,
        skip: usize,
        edit: impl FnOnce(&mut T),
    ) -> Result<()>
    where
        T: FromBytes + IntoBytes + KnownLayout + Immutable + Unaligned,
    {
        let mut done = false;
        self.rewrite(tree, key, |data| {
            let part = data.get_mut(skip..).unwrap_or_default();
            if let Ok((it, _)) = T::mut_from_prefix(part) {
                edit(it);
                done = true;
            }
        })?;
        if done { Ok(()) } else { Err(DamageError::Missing("bytes enough in the item")) }
    }

    /// Changes the inode item behind a name in the top tree.
    pub fn inode(&self, name: &str, edit: impl FnOnce(&mut InodeItem)) -> Result<()> {
        let id = self.named(TOP, name)?;
        self.edit(TOP, Key::new(id, kind::INODE_ITEM, 0), edit)
    }

    /// Changes every copy of the superblock.
    pub fn superblock(&self, edit: impl Fn(&mut Superblock)) -> Result<()> {
        for at in SUPERBLOCK_OFFSETS {
            if at + SUPERBLOCK_LEN as u64 <= self.device.size() {
                self.superblock_at(at, &edit, true)?;
            }
        }
        Ok(())
    }

    /// Changes one copy of the superblock; with its checksum put right when `sealed`.
    pub fn superblock_at(
        &self,
        at: u64,
        edit: impl Fn(&mut Superblock),
        sealed: bool,
    ) -> Result<()> {
        let mut bytes = vec![0; SUPERBLOCK_LEN];
        self.device.read_at(at, &mut bytes)?;
        if let Ok(sb) = Superblock::mut_from_bytes(&mut bytes) {
            edit(sb);
        }
        if sealed {
            let digest = self.volume.checksum_kind().digest(&bytes[SUM..]);
            bytes[..SUM].copy_from_slice(digest.as_field());
        }
        Ok(self.device.write_at(at, &bytes)?)
    }

    /// Turns over a byte of one copy of a logical address, without repairing any checksum.
    pub fn flip(&self, logical: u64, copy: usize) -> Result<()> {
        let chunk = self.volume.chunk_at(logical).ok_or(DamageError::Missing("a chunk"))?;
        let stripe = chunk.stripes.get(copy).ok_or(DamageError::Missing("another copy"))?;
        let at = stripe.offset + (logical - chunk.logical);
        let mut byte = [0];
        self.device.read_at(at, &mut byte)?;
        Ok(self.device.write_at(at, &[!byte[0]])?)
    }
}

/// The head of a block, for another one in its place.
fn stamp(block: &TreeBlock) -> Stamp {
    let head = block.head();
    Stamp {
        fsid: head.fsid,
        chunk_tree_uuid: head.chunk_tree_uuid,
        bytenr: head.bytenr.get(),
        generation: head.generation.get(),
        owner: head.owner.get(),
        flags: block.flags(),
    }
}
