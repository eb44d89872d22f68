//! The rules for a superblock.

use buttress_codec::ChecksumKind;
use zerocopy::FromBytes;

use super::{Checked, Corruption, CorruptionKind, Fault, Gate, chunk, ensure};
use crate::item::{ChunkItem, StripeItem, chunk_type};
use crate::key::{DiskKey, kind};
use crate::superblock::{
    MAGIC, SUPERBLOCK_LEN, SUPERBLOCK_OFFSETS, SYS_CHUNK_ARRAY_LEN, Superblock, compat_ro, incompat,
};
use crate::view;
use crate::{LEVELS_MAX, SECTOR};

/// The smallest number of tree blocks a filesystem can have (one for each tree that `mkfs` makes).
const BLOCKS_MIN: u64 = 6;

/// Lets a superblock through when every member of it makes sense. Whether its features are supported is not decided
/// here.
pub fn superblock(bytes: &[u8]) -> Result<Superblock, Corruption> {
    let fail = |fault: Fault, offset| fault.at(CorruptionKind::Superblock, 0, offset, None);
    let Ok(sb) = Superblock::read_from_bytes(bytes) else {
        return Err(fail(Fault::new("wrong length", bytes.len(), SUPERBLOCK_LEN), 0));
    };
    let offset = sb.bytenr.get();
    identity(&sb, bytes).map_err(|fault| fail(fault, offset))?;
    sizes(&sb).map_err(|fault| fail(fault, offset))?;
    roots(&sb).map_err(|fault| fail(fault, offset))?;
    features(&sb).map_err(|fault| fail(fault, offset))?;
    sys_chunks(&sb).map_err(|fault| fail(fault, offset))?;
    Ok(sb)
}

fn identity(sb: &Superblock, bytes: &[u8]) -> Checked {
    ensure!(sb.magic == MAGIC, "no btrfs magic", sb.magic.escape_ascii(), MAGIC.escape_ascii());
    let Some(csum) = ChecksumKind::from_u16(sb.csum_type.get()) else {
        return Err(Fault::new("unknown checksum type", sb.csum_type, "0 to 3"));
    };
    let digest = csum.digest(bytes.get(32..).unwrap_or_default());
    let stored = sb.csum.get(..digest.len()).unwrap_or_default();
    ensure!(
        stored == digest.as_bytes(),
        "checksum mismatch",
        format_args!("0x{}", super::Hex(stored)),
        digest
    );
    ensure!(
        SUPERBLOCK_OFFSETS.contains(&sb.bytenr.get()),
        "wrong offset",
        sb.bytenr,
        "65536, 67108864 or 274877906944"
    );
    ensure!(
        sb.dev_item.fsid == sb.metadata_fsid(),
        "the device belongs to another filesystem",
        uuid::Uuid::from_bytes(sb.dev_item.fsid),
        uuid::Uuid::from_bytes(sb.metadata_fsid())
    );
    Ok(())
}

fn sizes(sb: &Superblock) -> Checked {
    let (sectorsize, nodesize) = (sb.sectorsize.get(), sb.nodesize.get());
    ensure!(
        sectorsize.is_power_of_two() && (4096..=65536).contains(&sectorsize),
        "invalid sector size",
        sectorsize,
        "a power of two from 4096 to 65536"
    );
    ensure!(
        nodesize.is_power_of_two() && (sectorsize..=65536).contains(&nodesize),
        "invalid node size",
        nodesize,
        format_args!("a power of two from {sectorsize} to 65536")
    );
    ensure!(sb.leafsize.get() == nodesize, "invalid leaf size", sb.leafsize, nodesize);
    let least = BLOCKS_MIN * u64::from(nodesize);
    ensure!(
        sb.total_bytes.get() >= least,
        "filesystem too small",
        sb.total_bytes,
        format_args!("at least {least}")
    );
    ensure!(
        sb.bytes_used.get() >= least,
        "fewer bytes used than the smallest filesystem uses",
        sb.bytes_used,
        format_args!("at least {least}")
    );
    ensure!(
        sb.num_devices.get() > 0 && sb.num_devices.get() < 1 << 31,
        "invalid number of devices",
        sb.num_devices,
        "one or more"
    );
    Ok(())
}

fn roots(sb: &Superblock) -> Checked {
    for (what, level) in [
        ("invalid level of the root tree", sb.root_level),
        ("invalid level of the chunk tree", sb.chunk_root_level),
        ("invalid level of the log tree", sb.log_root_level),
    ] {
        ensure!(usize::from(level) < LEVELS_MAX, what, level, format_args!("below {LEVELS_MAX}"));
    }
    for (what, address) in [
        ("unaligned root tree", sb.root.get()),
        ("unaligned chunk tree", sb.chunk_root.get()),
        ("unaligned log tree", sb.log_root.get()),
    ] {
        ensure!(address.is_multiple_of(SECTOR), what, address, "a multiple of 4096");
    }
    ensure!(
        sb.chunk_root_generation <= sb.generation,
        "chunk tree from the future",
        sb.chunk_root_generation,
        format_args!("at most {}", sb.generation)
    );
    Ok(())
}

fn features(sb: &Superblock) -> Checked {
    let (ro, inc) = (sb.compat_ro_flags.get(), sb.incompat_flags.get());
    if inc & incompat::MIXED_GROUPS != 0 {
        ensure!(
            sb.nodesize == sb.sectorsize,
            "mixed groups with nodes that are no sectors",
            sb.nodesize,
            sb.sectorsize
        );
    }
    let tree = compat_ro::FREE_SPACE_TREE | compat_ro::FREE_SPACE_TREE_VALID;
    if ro & compat_ro::BLOCK_GROUP_TREE != 0 {
        ensure!(
            ro & tree == tree && inc & incompat::NO_HOLES != 0,
            "block-group-tree without the features it needs",
            format_args!("compat_ro {ro:#x} incompat {inc:#x}"),
            "a valid free-space-tree and no-holes"
        );
    }
    Ok(())
}

fn sys_chunks(sb: &Superblock) -> Checked {
    let size = sb.sys_chunk_array_size.get() as usize;
    let least = size_of::<DiskKey>() + size_of::<ChunkItem>() + size_of::<StripeItem>();
    ensure!(
        (least..=SYS_CHUNK_ARRAY_LEN).contains(&size),
        "invalid size of the system chunk array",
        size,
        format_args!("{least} to {SYS_CHUNK_ARRAY_LEN}")
    );
    let gate = Gate::of(sb);
    let mut chunks = view::sys_chunks(sb);
    for (key, head, stripes) in chunks.by_ref() {
        ensure!(
            key.kind == kind::CHUNK_ITEM,
            "no chunk in the system chunk array",
            key,
            "a chunk item"
        );
        chunk::chunk(&key, &head, stripes, &gate)?;
        ensure!(
            head.chunk_type.get() & chunk_type::SYSTEM != 0,
            "wrong type of a system chunk",
            format_args!("{:#x}", head.chunk_type.get()),
            "system"
        );
    }
    ensure!(
        chunks.rest().is_empty(),
        "system chunk array cut off",
        format_args!("{} bytes left", chunks.rest().len()),
        0
    );
    Ok(())
}
