//! Opening by an older root of the trees. Each superblock keeps those of the last four commits, as Linux's `usebackuproot`
//! uses them.
//!
//! What only older roots lead to may have been given up and written over since: every block says by its checksum, place and
//! generation whether it is still the one that is meant, but data without checksums do not. So this is for reading.

use std::{ops::ControlFlow, sync::Arc};

use buttress_device::{Access, BlockDevice};
use buttress_ondisk::{
    Key, Superblock, check,
    item::RootItem,
    kind, objectid,
    superblock::{RootBackup, SUPERBLOCK_OFFSETS},
};
use zerocopy::IntoBytes;

use crate::{
    error::VolumeError,
    open::load,
    super_io::seal,
    volume::Volume,
    walk::{TreeRoot, walk},
    warning::{Rescue, Warning},
};

/// Loads the volume by the newest roots whose trees can be read; says so when they are not the last ones. When none can be,
/// the error is that of the last ones. Who goes on without trees has the last ones all the same, as far as they lead.
pub(crate) fn load_by_any(
    device: &Arc<dyn BlockDevice>,
    superblock: Superblock,
    rescue: Rescue,
) -> Result<(Volume, Option<Warning>), VolumeError> {
    let newest = superblock.generation.get();
    let load_whole = |sb| load_whole(device, sb, rescue);
    let error = match load_whole(superblock) {
        Ok(volume) => return Ok((volume, None)),
        Err(error) => error,
    };
    let found = older(&superblock).into_iter().map(load_whole).find_map(Result::ok);
    let Some(volume) = found else {
        return match rescue.ignore_bad_roots {
            true => Ok((load(device.clone(), superblock, None, Access::ReadOnly, rescue)?, None)),
            false => Err(error),
        };
    };
    let generation = volume.superblock().generation.get();
    let warning = Warning::BackupRootUsed { generation, newest, error: error.to_string() };
    Ok((volume, Some(warning)))
}

/// Superblocks with the older roots, newest first.
fn older(superblock: &Superblock) -> Vec<Superblock> {
    let mut backups = superblock.root_backups.to_vec();
    backups.retain(|it| (1..superblock.generation.get()).contains(&it.tree_root_gen.get()));
    backups.sort_by_key(|it| std::cmp::Reverse(it.tree_root_gen.get()));
    backups.iter().filter_map(|backup| with(superblock, backup)).collect()
}

/// The superblock with these roots, if that is one that passes the gate.
fn with(superblock: &Superblock, backup: &RootBackup) -> Option<Superblock> {
    let mut sb = *superblock;
    sb.generation = backup.tree_root_gen;
    sb.root = backup.tree_root;
    sb.root_level = backup.tree_root_level;
    sb.chunk_root = backup.chunk_root;
    sb.chunk_root_level = backup.chunk_root_level;
    sb.chunk_root_generation = backup.chunk_root_gen;
    sb.bytes_used = backup.bytes_used;
    sb.log_root = 0.into();
    sb.log_root_level = 0;
    check::superblock(seal(&sb, SUPERBLOCK_OFFSETS[0]).as_bytes()).ok()
}

/// Loads the volume, and looks at the root tree and at the root of each tree that a filesystem cannot do without: of those that
/// no file is read by, where they are not given up.
fn load_whole(
    device: &Arc<dyn BlockDevice>,
    sb: Superblock,
    rescue: Rescue,
) -> Result<Volume, VolumeError> {
    let volume = load(device.clone(), sb, None, Access::ReadOnly, rescue)?;
    let mut roots = Vec::new();
    let listed = walk(&volume, &TreeRoot::root_tree(&sb), Key::MIN..=Key::MAX, |key, data| {
        let needed = match rescue.ignore_bad_roots {
            true => key.objectid == objectid::FS_TREE,
            false => key.objectid < objectid::FIRST_FREE,
        };
        let needed = needed && key.kind == kind::ROOT_ITEM;
        roots.extend(RootItem::read(data).filter(|_| needed).map(|item| (key.objectid, item)));
        ControlFlow::<()>::Continue(())
    });
    listed.map(drop)?;
    for (owner, item) in roots {
        let root = TreeRoot {
            bytenr: item.bytenr.get(),
            level: item.level,
            generation: Some(item.generation.get()),
            owner: Some(owner),
        };
        volume.read_block(root.bytenr, &root.expect())?;
    }
    Ok(volume)
}
