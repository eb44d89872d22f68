//! What a commit writes about space: block groups, chunks, device extents, the superblock's part.
//!
//! Writing these allocates blocks, which changes block groups again: a commit asks [`Space::take_dirty`]
//! and emits, until nothing is dirty.

use std::collections::BTreeSet;

use buttress_ondisk::item::{BlockGroupItem, DevExtent, DevItem};
use buttress_ondisk::key::DiskKey;
use buttress_ondisk::{Key, kind, objectid};
use buttress_volume::Chunk;
use zerocopy::IntoBytes;

use super::device::device_ranges;
use super::{Class, Edit, Pool, Range, Space};
use crate::error::Result;

/// What the disk has to hear about.
#[derive(Clone, Debug, Default)]
pub struct Dirty {
    /// Where groups start whose used bytes or free space changed, or that are new; rising.
    pub groups: Vec<u64>,
    /// Groups that are gone; rising.
    pub removed: Vec<Range>,
    /// New chunks.
    pub chunks_added: Vec<Chunk>,
    /// Chunks that are gone.
    pub chunks_removed: Vec<Chunk>,
    /// The device item, when chunks came or went.
    pub device: Option<DevItem>,
}

impl Dirty {
    /// Whether there is nothing to write.
    pub fn is_empty(&self) -> bool {
        self.groups.is_empty() && !self.chunks_changed()
    }

    /// Whether the chunk tree and the device tree change.
    pub fn chunks_changed(&self) -> bool {
        self.device.is_some()
    }

    /// Groups that changed or are gone, by address; the length only of those that are gone.
    pub(crate) fn in_order(&self) -> Vec<(u64, Option<Range>)> {
        let changed = self.groups.iter().map(|&start| (start, None));
        let removed = self.removed.iter().map(|&range| (range.start, Some(range)));
        let mut all: Vec<_> = changed.chain(removed).collect();
        all.sort_by_key(|(start, _)| *start);
        all
    }
}

fn put_or_delete(edit: &mut impl Edit, key: Key, data: Option<Vec<u8>>) -> Result<()> {
    match data {
        Some(data) => edit.put(key, &data),
        None => edit.delete(&key).map(drop),
    }
}

fn device_extents(chunk: &Chunk, devid: u64, gone: bool) -> Vec<(Key, Option<Vec<u8>>)> {
    let item = |range: Range| {
        let extent = DevExtent {
            chunk_tree: objectid::CHUNK_TREE.into(),
            chunk_objectid: objectid::FIRST_CHUNK_TREE.into(),
            chunk_offset: chunk.logical.into(),
            length: range.len.into(),
            chunk_tree_uuid: [0; 16],
        };
        let key = Key::new(devid, kind::DEV_EXTENT, range.start);
        (key, (!gone).then(|| extent.as_bytes().to_vec()))
    };
    device_ranges(chunk).map(item).collect()
}

impl Space {
    /// What changed since the last call. The first call after a freeze also decides which vacant
    /// groups are given back. For the running commit only.
    pub fn take_dirty(&self) -> Dirty {
        self.thaw();
        let mut pool = self.pool.lock();
        if std::mem::take(&mut pool.plan_removals) && !pool.device.is_fixed {
            self.remove_vacant(&mut pool);
        }
        let mut dirty = Dirty::default();
        (dirty.chunks_added, dirty.chunks_removed) = pool.take_changes();
        let is_resized = std::mem::take(&mut pool.resized);
        if is_resized || !dirty.chunks_added.is_empty() || !dirty.chunks_removed.is_empty() {
            dirty.device = Some(pool.written().device);
        }
        let range = |chunk: &Chunk| Range::new(chunk.logical, chunk.length);
        dirty.removed = dirty.chunks_removed.iter().map(range).collect();
        dirty.removed.sort();
        for slot in &self.slots {
            dirty.groups.extend(slot.set.lock().take_dirty());
        }
        dirty.groups.sort_unstable();
        dirty
    }

    /// Gives vacant groups back, but one of each class, and none that promises need.
    fn remove_vacant(&self, pool: &mut Pool) {
        for class in Class::ALL {
            let kind = pool.type_of(class);
            let slot = &self.slots[class.slot()];
            let mut set = slot.set.lock();
            let mut vacant: Vec<(bool, u64, u64)> = set
                .vacant()
                .filter(|group| !group.is_closed())
                .map(|group| (group.flags == kind, group.range.len, group.range.start))
                .collect();
            // The one to keep: of the wanted type, long.
            vacant.sort_unstable();
            vacant.pop();
            let closed = set.vacant().filter(|group| group.is_closed());
            let closed: Vec<u64> = closed.map(|group| group.range.start).collect();
            let vacant = vacant.into_iter().map(|(.., start)| start);
            let going: BTreeSet<u64> = vacant.chain(closed).collect();
            for start in going {
                let Some(group) = set.get(start) else { continue };
                let (bytes, nodes) = (group.free().bytes(), group.nodes());
                // What is closed is nobody's to have.
                let is_needed = !group.is_closed()
                    && !self.outlook(pool, true).fits_without(class, bytes, nodes, pool.promises);
                if is_needed {
                    continue;
                }
                set.remove(&slot.counters, start);
                self.index.remove(start);
                self.keeper.remove(start);
                pool.remove_chunk(start);
            }
        }
    }

    /// Writes `BLOCK_GROUP_ITEM`s, into the block group tree or the extent tree.
    pub fn emit_groups(&self, edit: &mut impl Edit, dirty: &Dirty) -> Result<()> {
        for (start, removed) in dirty.in_order() {
            if let Some(range) = removed {
                edit.delete(&Key::new(range.start, kind::BLOCK_GROUP_ITEM, range.len))?;
                continue;
            }
            let read = |group: &super::group::Group| (group.range, group.used, group.flags);
            let Some((range, used, flags)) = self.with_group(start, read) else { continue };
            let item = BlockGroupItem {
                used: used.into(),
                chunk_objectid: objectid::FIRST_CHUNK_TREE.into(),
                flags: flags.into(),
            };
            let key = Key::new(range.start, kind::BLOCK_GROUP_ITEM, range.len);
            edit.put(key, item.as_bytes())?;
        }
        Ok(())
    }

    /// Reads something of the group that starts there.
    pub(crate) fn with_group<R>(
        &self,
        start: u64,
        read: impl FnOnce(&super::group::Group) -> R,
    ) -> Option<R> {
        let (_, class) = self.index.find(start)?;
        let set = self.slot(class).set.lock();
        set.get(start).map(read)
    }

    /// Changes what the group that starts there knows of the disk, and nothing that is counted.
    pub(crate) fn with_group_mut<R>(
        &self,
        start: u64,
        change: impl FnOnce(&mut super::group::Group) -> R,
    ) -> Option<R> {
        let (_, class) = self.index.find(start)?;
        self.slot(class).set.lock().with(start, change)
    }

    /// Writes the device item and chunk items, into the chunk tree.
    pub fn emit_chunks(&self, edit: &mut impl Edit, dirty: &Dirty) -> Result<()> {
        let Some(device) = dirty.device else { return Ok(()) };
        let key = Key::new(objectid::DEV_ITEMS, kind::DEV_ITEM, device.devid.get());
        edit.put(key, device.as_bytes())?;
        let added = dirty.chunks_added.iter().map(|chunk| (chunk.key(), Some(chunk.encode())));
        let removed = dirty.chunks_removed.iter().map(|chunk| (chunk.key(), None));
        let mut all: Vec<_> = added.chain(removed).collect();
        all.sort_by_key(|(key, _)| *key);
        all.into_iter().try_for_each(|(key, data)| put_or_delete(edit, key, data))
    }

    /// Writes `DEV_EXTENT`s, into the device tree.
    pub fn emit_device_extents(&self, edit: &mut impl Edit, dirty: &Dirty) -> Result<()> {
        let Some(device) = dirty.device else { return Ok(()) };
        let devid = device.devid.get();
        let added = dirty.chunks_added.iter().flat_map(|c| device_extents(c, devid, false));
        let removed = dirty.chunks_removed.iter().flat_map(|c| device_extents(c, devid, true));
        let mut all: Vec<_> = added.chain(removed).collect();
        all.sort_by_key(|(key, _)| *key);
        all.into_iter().try_for_each(|(key, data)| put_or_delete(edit, key, data))
    }

    /// Bytes of the device that chunks have, for the superblock when nothing is dirty any more.
    pub fn device_bytes_used(&self) -> u64 {
        self.pool.lock().written().device.bytes_used.get()
    }

    /// Key and item of each system chunk, for the superblock when nothing is dirty any more.
    pub fn sys_chunk_array(&self) -> Vec<u8> {
        let pool = self.pool.lock();
        let mut array = Vec::new();
        for (&logical, item) in &pool.written().system {
            let key = Key::new(objectid::FIRST_CHUNK_TREE, kind::CHUNK_ITEM, logical);
            array.extend_from_slice(DiskKey::from(key).as_bytes());
            array.extend_from_slice(item);
        }
        array
    }

    /// Bytes used in all groups as the commit sees them, for the superblock.
    pub fn bytes_used(&self) -> u64 {
        self.slots.iter().map(|slot| slot.counters.read().used).sum()
    }
}
