//! The superblock of the next commit.

use buttress_ondisk::item::RootItem;
use buttress_ondisk::superblock::{RootBackup, Superblock, compat_ro, super_flags};
use buttress_ondisk::{Key, kind, objectid};

use super::core::{Core, Roots, root_of};
use crate::error::Result;
use crate::tree::View;

/// The superblock that makes `roots` the filesystem.
pub(super) fn next(core: &Core, roots: &Roots, transid: u64) -> Result<Superblock> {
    let mut next = core.volume.superblock();
    // Otherwise somebody who knows nothing of the uuid tree wrote last: Linux is to go through it.
    let uuids_known = next.uuid_tree_generation == next.generation;
    next.flags = (next.flags.get() | super_flags::WRITTEN).into();
    next.generation = transid.into();
    next.root = roots.root.bytenr.into();
    next.root_level = roots.root.level;
    next.chunk_root = roots.chunk.bytenr.into();
    next.chunk_root_level = roots.chunk.level;
    next.chunk_root_generation = roots.chunk.generation.into();
    next.log_root = 0.into();
    next.log_root_level = 0;
    next.bytes_used = core.space.bytes_used().into();
    next.dev_item.bytes_used = core.space.device_bytes_used().into();
    let size = core.space.written_device_size();
    if size != next.dev_item.total_bytes.get() {
        // The filesystem has one device.
        (next.dev_item.total_bytes, next.total_bytes) = (size.into(), size.into());
    }
    let array = core.space.sys_chunk_array();
    next.sys_chunk_array.fill(0);
    next.sys_chunk_array[..array.len()].copy_from_slice(&array);
    next.sys_chunk_array_size = (array.len() as u32).into();
    // With those that tree blocks of this commit are the first to have.
    next.incompat_flags = (next.incompat_flags.get() | core.volume.gate().incompat).into();
    if roots.free_space.is_some() {
        let valid = compat_ro::FREE_SPACE_TREE | compat_ro::FREE_SPACE_TREE_VALID;
        if next.compat_ro_flags.get() & valid != valid {
            next.compat_ro_flags = (next.compat_ro_flags.get() | valid).into();
            next.cache_generation = 0.into();
        }
    }
    if roots.uuid.is_some() && uuids_known {
        next.uuid_tree_generation = transid.into();
    }
    let slot = next_backup(&next);
    next.root_backups[slot] = backup(core, roots, &next)?;
    Ok(next)
}

/// The slot after the newest backup.
fn next_backup(superblock: &Superblock) -> usize {
    let newest =
        (0..4).max_by_key(|slot| superblock.root_backups[*slot].tree_root_gen.get()).unwrap_or(0);
    if superblock.root_backups[newest].tree_root_gen.get() == 0 { 0 } else { (newest + 1) % 4 }
}

fn backup(core: &Core, roots: &Roots, next: &Superblock) -> Result<RootBackup> {
    let view = View::new(&core.blocks, objectid::ROOT_TREE, roots.root);
    let fs = view.get(&Key::new(objectid::FS_TREE, kind::ROOT_ITEM, 0))?;
    let fs = fs.and_then(|item| RootItem::read(item.data())).map(|item| root_of(&item));
    let mut backup = next.root_backups[0];
    backup.tree_root = roots.root.bytenr.into();
    backup.tree_root_gen = roots.root.generation.into();
    backup.tree_root_level = roots.root.level;
    backup.chunk_root = roots.chunk.bytenr.into();
    backup.chunk_root_gen = roots.chunk.generation.into();
    backup.chunk_root_level = roots.chunk.level;
    backup.extent_root = roots.extent.bytenr.into();
    backup.extent_root_gen = roots.extent.generation.into();
    backup.extent_root_level = roots.extent.level;
    backup.dev_root = roots.dev.bytenr.into();
    backup.dev_root_gen = roots.dev.generation.into();
    backup.dev_root_level = roots.dev.level;
    backup.csum_root = roots.csum.bytenr.into();
    backup.csum_root_gen = roots.csum.generation.into();
    backup.csum_root_level = roots.csum.level;
    if let Some(fs) = fs {
        backup.fs_root = fs.bytenr.into();
        backup.fs_root_gen = fs.generation.into();
        backup.fs_root_level = fs.level;
    }
    backup.total_bytes = next.total_bytes;
    backup.bytes_used = next.bytes_used;
    backup.num_devices = next.num_devices;
    backup.unused = Default::default();
    backup.unused_8 = [0; 10];
    Ok(backup)
}
