//! Making an empty filesystem: plan, wipe, tree blocks, superblocks.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use buttress_codec::ChecksumKind;
use buttress_device::BlockDevice;
use buttress_ondisk::build::Stamp;
use buttress_ondisk::item::{ExtentItem, TreeBlockInfo};
use buttress_ondisk::key::DiskKey;
use buttress_ondisk::superblock::{
    MAGIC, RootBackup, SUPERBLOCK_LEN, SUPERBLOCK_OFFSETS, SYS_CHUNK_ARRAY_LEN, Superblock,
    super_flags,
};
use buttress_ondisk::{BlockHead, Key, SECTOR, TreeBlock, kind, objectid};
use zerocopy::{FromBytes, FromZeros, IntoBytes};

use crate::environment::Environment;
use crate::error::MkfsError;
use crate::features::Feature;
use crate::layout::{self, Layout};
use crate::options::{Options, Settled};
use crate::signature::signature_within;
use crate::summary::Summary;
use crate::tree::{Items, Placed, first_key, shape};
use crate::trees::{GENERATION, Plan, Uuids, tree_ids};
use crate::util_linux;

/// Bytes at the start and the end of the filesystem that are cleared, as other filesystems keep their signatures there.
const WIPE_LEN: u64 = 2 << 20;

/// Makes an empty filesystem on `device`.
///
/// Nothing is written unless [`check`] finds nothing to say. Then what the filesystem's bytes held before is lost, whatever
/// the call returns; and only those: with [`Options::byte_count`] what follows them on the device is somebody else's.
pub fn make(
    device: &dyn BlockDevice,
    options: &Options,
    env: &mut Environment,
) -> Result<Summary, MkfsError> {
    check(device, device.size(), options)?;
    let settled = options.settle()?;
    let total = usable_size(device, device.size(), options, &settled)?;
    let uuids = Uuids {
        fs: options.fs_uuid.unwrap_or_else(|| env.uuid()),
        device: options.device_uuid.unwrap_or_else(|| env.uuid()),
        chunk_tree: env.uuid(),
        subvolume: env.uuid(),
    };
    let layout = layout::plan(total, &settled);
    let trees = place(&settled, &layout);
    let now = env.timespec();
    let plan = Plan { settled, layout, uuids, now, owner: options.owner, total, trees };
    let blocks = build(&plan)?;
    let superblock = superblock(&plan, &options.label)?;
    // Without a size everything is the filesystem's, also the part of a sector that it cannot use.
    let own = if options.byte_count.is_some() { total } else { device.size() };
    wipe(device, own, options.discard)?;
    write_blocks(device, &plan, &blocks)?;
    write_superblocks(device, &superblock, settled.checksum)?;
    Ok(Summary::of(&plan, &options.label, device.name()))
}

/// Says why [`make`] would refuse to make a filesystem on `device` once that has `size` bytes: the options are not good, the
/// device is too small or read-only, or there is something on it already and [`Options::overwrite`] is not set. For callers
/// who would change the device before, for example make a file longer.
pub fn check(device: &dyn BlockDevice, size: u64, options: &Options) -> Result<(), MkfsError> {
    let settled = options.settle()?;
    let total = usable_size(device, size, options, &settled)?;
    if device.is_read_only() {
        return Err(MkfsError::ReadOnly { device: device.name().into() });
    }
    if options.overwrite {
        return Ok(());
    }
    let own = options.byte_count.map_or(size, |_| total);
    within_partition(device, own)?;
    within_filesystem(device)?;
    // Inside a larger disk, what follows the filesystem is somebody else's. Otherwise the disk is looked at as a whole: a
    // member of an array, or a partition table, may say so at its end only.
    let inside = device.place().is_some_and(|(_, offset)| offset > 0);
    match signature_within(device, if inside { own.min(device.size()) } else { device.size() })? {
        Some(what) => Err(MkfsError::Exists { device: device.name().into(), what }),
        None => Ok(()),
    }
}

/// Refuses a filesystem of `size` bytes that begins somewhere inside a partitioned disk and reaches into another partition.
fn within_partition(device: &dyn BlockDevice, size: u64) -> Result<(), MkfsError> {
    let Some((path, start)) = device.place().filter(|(_, offset)| *offset > 0) else {
        return Ok(());
    };
    let own = start..start.saturating_add(size);
    let partitions = util_linux::partitions(&path);
    let other = partitions.iter().find(|(_, it)| {
        let (meets, holds) =
            (it.start < own.end && own.start < it.end, it.start <= own.start && own.end <= it.end);
        meets && !holds
    });
    let Some((number, _)) = other else { return Ok(()) };
    let here = partitions.iter().find(|(_, it)| it.start == start).map(|(_, it)| it.end - it.start);
    Err(MkfsError::Partition {
        device: device.name().into(),
        start,
        end: own.end,
        number: *number,
        here,
    })
}

/// Refuses a filesystem in the middle of another one that begins where the disk does, unless partitions tell them apart.
fn within_filesystem(device: &dyn BlockDevice) -> Result<(), MkfsError> {
    let Some((path, start)) = device.place().filter(|(_, offset)| *offset > 0) else {
        return Ok(());
    };
    if !util_linux::partitions(&path).is_empty() {
        return Ok(());
    }
    let Some(what) = util_linux::filesystem(&path) else { return Ok(()) };
    if what == "btrfs" && end_of_btrfs(&path).is_some_and(|end| end <= start) {
        return Ok(());
    }
    let what = format!("{what}, which begins with the first byte of {}", path.display());
    Err(MkfsError::Exists { device: device.name().into(), what })
}

/// Where a btrfs filesystem of one device ends that begins with the first byte.
fn end_of_btrfs(path: &Path) -> Option<u64> {
    let mut bytes = vec![0; SUPERBLOCK_LEN];
    File::open(path).ok()?.read_exact_at(&mut bytes, SUPERBLOCK_OFFSETS[0]).ok()?;
    Superblock::read_from_bytes(&bytes).ok().map(|superblock| superblock.total_bytes.get())
}

/// Bytes of the filesystem: what was asked for or all there is, in whole sectors.
fn usable_size(
    device: &dyn BlockDevice,
    found: u64,
    options: &Options,
    settled: &Settled,
) -> Result<u64, MkfsError> {
    let wanted = options.byte_count.unwrap_or(found);
    let size = wanted - wanted % SECTOR;
    let minimum = layout::minimum_size(settled.mixed, settled.metadata, settled.data);
    let device = || device.name().into();
    if size < minimum {
        return Err(MkfsError::TooSmall { device: device(), size: wanted, minimum });
    }
    if wanted > found {
        return Err(MkfsError::SmallerThanRequested { device: device(), expected: wanted, found });
    }
    Ok(size)
}

/// Gives every tree its blocks: the chunk tree in the system chunk, the others one after the other in the metadata
/// chunk. Sizes do not depend on addresses, so the items of a plan without addresses tell the shapes.
fn place(settled: &Settled, layout: &Layout) -> Vec<Placed> {
    let ids = tree_ids(settled);
    let single = |id: &u64| Placed { id: *id, shape: vec![1], addresses: vec![0] };
    let draft = Plan {
        settled: *settled,
        layout: layout.clone(),
        uuids: Uuids {
            fs: uuid::Uuid::nil(),
            device: uuid::Uuid::nil(),
            chunk_tree: uuid::Uuid::nil(),
            subvolume: uuid::Uuid::nil(),
        },
        now: Default::default(),
        owner: (0, 0),
        total: 0,
        trees: ids.iter().map(single).collect(),
    };
    let nodesize = u64::from(settled.nodesize);
    let (mut system, mut metadata) = (layout.system.logical, layout.metadata.logical);
    let mut placed = Vec::new();
    for id in ids {
        let items = draft.items(id);
        let shape = shape(items.iter().map(|(_, data)| data.len()), settled.nodesize as usize);
        let at = if id == objectid::CHUNK_TREE { &mut system } else { &mut metadata };
        let mut addresses = Vec::new();
        for _ in 0..shape.iter().sum::<usize>() {
            addresses.push(*at);
            *at += nodesize;
        }
        placed.push(Placed { id, shape, addresses });
    }
    placed
}

/// Builds and seals every block of every tree.
fn build(plan: &Plan) -> Result<Vec<TreeBlock>, MkfsError> {
    let stamp = Stamp {
        fsid: plan.uuids.fs.into_bytes(),
        chunk_tree_uuid: plan.uuids.chunk_tree.into_bytes(),
        bytenr: 0,
        generation: GENERATION,
        owner: 0,
        flags: BlockHead::WRITTEN,
    };
    let one = |tree: &Placed, items: &Items| {
        let built = tree.build(items, plan.settled.nodesize as usize, &stamp);
        built.ok_or(MkfsError::Plan { tree: tree.id })
    };
    let mut blocks = Vec::new();
    for tree in &plan.trees {
        blocks.extend(one(tree, &plan.items(tree.id))?);
    }
    if !plan.settled.features.contains(Feature::SkinnyMetadata) {
        let keys: Vec<_> = blocks.iter().map(|block| (block.bytenr(), first_key(block))).collect();
        blocks.retain(|block| block.owner() != objectid::EXTENT_TREE);
        let tree = plan.tree(objectid::EXTENT_TREE);
        let tree = tree.ok_or(MkfsError::Plan { tree: objectid::EXTENT_TREE })?;
        let mut items = plan.items(tree.id);
        note_first_keys(&mut items, &keys);
        blocks.extend(one(tree, &items)?);
    }
    Ok(blocks.into_iter().map(|block| seal(block, plan.settled.checksum)).collect())
}

/// Writes the first key of each block into its (not skinny) extent item.
fn note_first_keys(items: &mut Items, keys: &[(u64, Key)]) {
    const AT: usize = size_of::<ExtentItem>();
    for (item, data) in items.iter_mut().filter(|(key, _)| key.kind == kind::EXTENT_ITEM) {
        let found = keys.iter().find(|(bytenr, _)| *bytenr == item.objectid);
        let field = data.get_mut(AT..AT + size_of::<TreeBlockInfo>() - 1);
        if let (Some((_, first)), Some(field)) = (found, field) {
            field.copy_from_slice(DiskKey::from(*first).as_bytes());
        }
    }
}

fn seal(block: TreeBlock, checksum: ChecksumKind) -> TreeBlock {
    let digest = checksum.digest(block.as_bytes().get(32..).unwrap_or(&[]));
    block.sealed(digest.as_bytes())
}

/// The superblock, without the address of a copy and without a checksum.
fn superblock(plan: &Plan, label: &[u8]) -> Result<Superblock, MkfsError> {
    let root = |id: u64| plan.tree(id).ok_or(MkfsError::Plan { tree: id });
    let (tree_root, chunk_root) = (root(objectid::ROOT_TREE)?, root(objectid::CHUNK_TREE)?);
    let nodesize = plan.settled.nodesize;
    let blocks: usize = plan.trees.iter().map(|tree| tree.addresses.len()).sum();
    let mut sb = Superblock::new_zeroed();
    sb.fsid = plan.uuids.fs.into_bytes();
    sb.flags = super_flags::WRITTEN.into();
    sb.magic = MAGIC;
    sb.generation = GENERATION.into();
    sb.root = tree_root.root().into();
    sb.root_level = tree_root.level();
    sb.chunk_root = chunk_root.root().into();
    sb.chunk_root_level = chunk_root.level();
    sb.chunk_root_generation = GENERATION.into();
    sb.total_bytes = plan.total.into();
    sb.bytes_used = (blocks as u64 * u64::from(nodesize)).into();
    sb.root_dir_objectid = objectid::ROOT_TREE_DIR.into();
    sb.num_devices = 1.into();
    sb.sectorsize = (SECTOR as u32).into();
    sb.nodesize = nodesize.into();
    sb.leafsize = nodesize.into();
    sb.stripesize = (SECTOR as u32).into();
    sb.incompat_flags = plan.settled.features.incompat().into();
    sb.compat_ro_flags = plan.settled.features.compat_ro().into();
    sb.csum_type = plan.settled.checksum.to_u16().into();
    sb.dev_item = plan.dev_item();
    let cached = plan.settled.features.contains(Feature::FreeSpaceTree);
    sb.cache_generation = if cached { 0 } else { u64::MAX }.into();
    sb.uuid_tree_generation = GENERATION.into();
    copy_prefix(&mut sb.label, label);
    let (key, item) = plan.chunk_item(&plan.layout.system);
    let array = [DiskKey::from(key).as_bytes(), &item].concat();
    debug_assert!(array.len() <= SYS_CHUNK_ARRAY_LEN);
    sb.sys_chunk_array_size = (array.len() as u32).into();
    copy_prefix(&mut sb.sys_chunk_array, &array);
    if let Some(slot) = sb.root_backups.first_mut() {
        *slot = backup(plan, u64::from(sb.bytes_used))?;
    }
    Ok(sb)
}

fn copy_prefix(to: &mut [u8], from: &[u8]) {
    for (to, from) in to.iter_mut().zip(from) {
        *to = *from;
    }
}

/// The first backup of the roots.
fn backup(plan: &Plan, bytes_used: u64) -> Result<RootBackup, MkfsError> {
    let root = |id: u64| plan.tree(id).ok_or(MkfsError::Plan { tree: id });
    let (tree, chunk) = (root(objectid::ROOT_TREE)?, root(objectid::CHUNK_TREE)?);
    let (fs, dev) = (root(objectid::FS_TREE)?, root(objectid::DEV_TREE)?);
    let csum = root(objectid::CSUM_TREE)?;
    // With a block group tree the slot of the extent tree still names the extent tree.
    let extent = root(objectid::EXTENT_TREE)?;
    let mut slot = RootBackup::new_zeroed();
    (slot.tree_root, slot.tree_root_level) = (tree.root().into(), tree.level());
    (slot.chunk_root, slot.chunk_root_level) = (chunk.root().into(), chunk.level());
    (slot.extent_root, slot.extent_root_level) = (extent.root().into(), extent.level());
    (slot.fs_root, slot.fs_root_level) = (fs.root().into(), fs.level());
    (slot.dev_root, slot.dev_root_level) = (dev.root().into(), dev.level());
    (slot.csum_root, slot.csum_root_level) = (csum.root().into(), csum.level());
    slot.tree_root_gen = GENERATION.into();
    slot.chunk_root_gen = GENERATION.into();
    slot.extent_root_gen = GENERATION.into();
    slot.fs_root_gen = GENERATION.into();
    slot.dev_root_gen = GENERATION.into();
    slot.csum_root_gen = GENERATION.into();
    slot.total_bytes = plan.total.into();
    slot.bytes_used = bytes_used.into();
    slot.num_devices = 1.into();
    Ok(slot)
}

/// Removes what was in the first `size` bytes of the device: a discard, as a hint, then zeros wherever signatures live.
/// What follows is not ours: the next partition, or the backup of the partition table. A superblock's copy of an older and
/// larger filesystem may stay there, too; its size says that it is none of the new one's.
fn wipe(device: &dyn BlockDevice, size: u64, discard: bool) -> Result<(), MkfsError> {
    if discard {
        device.discard(0, size)?;
    }
    clear(device, 0, WIPE_LEN.min(size))?;
    let end = size.saturating_sub(WIPE_LEN).max(WIPE_LEN.min(size));
    clear(device, end, size - end)?;
    for offset in SUPERBLOCK_OFFSETS {
        if fits(offset, size) {
            clear(device, offset, SUPERBLOCK_LEN as u64)?;
        }
    }
    device.barrier()?;
    Ok(())
}

/// Writes zeros where there is anything else, so that holes of a file stay holes.
fn clear(device: &dyn BlockDevice, offset: u64, len: u64) -> Result<(), MkfsError> {
    const PIECE: u64 = 256 << 10;
    let mut piece = vec![0; PIECE as usize];
    let (mut at, end) = (offset, offset + len);
    while at < end {
        let take = PIECE.min(end - at);
        let bytes = piece.get_mut(..take as usize).unwrap_or_default();
        let readable = device.read_at(at, bytes).is_ok();
        if !readable || bytes.iter().any(|byte| *byte != 0) {
            bytes.fill(0);
            device.write_at(at, bytes)?;
        }
        at += take;
    }
    Ok(())
}

/// Whether a copy of the superblock at `offset` is inside a device of `size` bytes.
fn fits(offset: u64, size: u64) -> bool {
    offset.saturating_add(SUPERBLOCK_LEN as u64) <= size
}

/// Writes all copies of all blocks, neighbours in one write, and makes them durable.
fn write_blocks(
    device: &dyn BlockDevice,
    plan: &Plan,
    blocks: &[TreeBlock],
) -> Result<(), MkfsError> {
    for chunk in [&plan.layout.system, &plan.layout.metadata] {
        let within = |block: &&TreeBlock| (chunk.logical..chunk.end()).contains(&block.bytenr());
        let mut inside: Vec<_> = blocks.iter().filter(within).collect();
        inside.sort_by_key(|block| block.bytenr());
        let Some(first) = inside.first().map(|block| block.bytenr()) else { continue };
        // `place` gave out addresses without gaps.
        let bytes: Vec<u8> =
            inside.iter().flat_map(|block| block.as_bytes().iter().copied()).collect();
        for at in chunk.physical(first) {
            device.write_at(at, &bytes)?;
        }
    }
    device.barrier()?;
    Ok(())
}

/// Writes every copy of the superblock that fits, the primary last, and makes them durable.
fn write_superblocks(
    device: &dyn BlockDevice,
    superblock: &Superblock,
    checksum: ChecksumKind,
) -> Result<(), MkfsError> {
    let total = superblock.total_bytes.get();
    for offset in SUPERBLOCK_OFFSETS.into_iter().rev().filter(|offset| fits(*offset, total)) {
        let mut copy = *superblock;
        copy.bytenr = offset.into();
        let digest = checksum.digest(copy.as_bytes().get(32..).unwrap_or(&[]));
        copy.csum = *digest.as_field();
        device.write_at(offset, copy.as_bytes())?;
    }
    device.barrier()?;
    Ok(())
}
