//! Items about space: chunks, block groups, devices and their extents.

use super::leaf::Item;
use super::{Checked, Fault, Gate, ensure};
use crate::STRIPE_LEN;
use crate::item::{BlockGroupItem, ChunkItem, DevExtent, DevItem, StripeItem, chunk_type};
use crate::key::{Key, objectid};
use crate::superblock::incompat;
use crate::view;

pub(super) fn block_group(item: &Item<'_>) -> Checked {
    item.sized(size_of::<BlockGroupItem>())?;
    let Some(group) = BlockGroupItem::of(item.data) else { return Ok(()) };
    let Key { objectid: start, offset: length, .. } = item.key;
    ensure!(length != 0, "empty block group", 0, "a length");
    item.aligned(start, "unaligned block group")?;
    item.aligned(length, "unaligned length of a block group")?;
    ensure!(
        start.checked_add(length).is_some(),
        "block group overflows",
        format_args!("{start}+{length}"),
        "below 2^64"
    );
    ensure!(
        group.chunk_objectid.get() == objectid::FIRST_CHUNK_TREE
            || item.gate.feature(incompat::EXTENT_TREE_V2),
        "invalid chunk object of a block group",
        group.chunk_objectid,
        objectid::FIRST_CHUNK_TREE
    );
    let used = group.used.get();
    ensure!(
        used <= length,
        "more used than a block group has",
        used,
        format_args!("at most {length}")
    );
    flags(group.flags.get(), item.gate)
}

/// Rules for the type and profile of chunks and block groups.
fn flags(flags: u64, gate: &Gate) -> Checked {
    let (kind, profile) = (flags & chunk_type::TYPE_MASK, flags & chunk_type::PROFILE_MASK);
    let shown = format_args!("{flags:#x}");
    ensure!(profile.count_ones() <= 1, "several profiles", shown, "at most one");
    let mixed = kind == chunk_type::DATA | chunk_type::METADATA;
    ensure!(
        kind.count_ones() == 1 || mixed || gate.feature(incompat::REMAP_TREE),
        "invalid chunk type",
        shown,
        "data, metadata or system"
    );
    ensure!(
        !mixed || gate.feature(incompat::MIXED_GROUPS),
        "mixed chunk without the mixed-groups feature",
        shown,
        "data or metadata"
    );
    Ok(())
}

pub(super) fn chunk_item(item: &Item<'_>) -> Checked {
    let Some((head, stripes)) = view::chunk(item.data) else {
        let least = size_of::<ChunkItem>() + size_of::<StripeItem>();
        return Err(Fault::new("chunk item too short", item.data.len(), least));
    };
    item.sized(size_of::<ChunkItem>() + size_of_val(stripes))?;
    chunk(&item.key, &head, stripes, item.gate)
}

/// Rules for a chunk, in the chunk tree or in the superblock.
pub(super) fn chunk(key: &Key, head: &ChunkItem, stripes: &[StripeItem], gate: &Gate) -> Checked {
    let (logical, length) = (key.offset, head.length.get());
    ensure!(
        key.objectid == objectid::FIRST_CHUNK_TREE,
        "invalid object of a chunk",
        key.objectid,
        objectid::FIRST_CHUNK_TREE
    );
    ensure!(
        gate.aligned(logical),
        "unaligned chunk",
        logical,
        format_args!("a multiple of {}", gate.sectorsize)
    );
    ensure!(
        head.sector_size.get() == gate.sectorsize,
        "wrong sector size of a chunk",
        head.sector_size,
        gate.sectorsize
    );
    ensure!(
        length != 0 && gate.aligned(length),
        "invalid length of a chunk",
        length,
        format_args!("a multiple of {}", gate.sectorsize)
    );
    ensure!(
        logical.checked_add(length).is_some(),
        "chunk overflows",
        format_args!("{logical}+{length}"),
        "below 2^64"
    );
    ensure!(
        head.stripe_len.get() == STRIPE_LEN,
        "invalid stripe length",
        head.stripe_len,
        STRIPE_LEN
    );
    let most = STRIPE_LEN * u64::from(u32::MAX);
    ensure!(length <= most, "chunk too long", length, format_args!("at most {most}"));
    let bits = head.chunk_type.get();
    let known = chunk_type::TYPE_MASK | chunk_type::PROFILE_MASK;
    ensure!(
        bits & !known == 0 || gate.feature(incompat::REMAP_TREE),
        "unknown chunk type",
        format_args!("{bits:#x}"),
        format_args!("bits of {known:#x}")
    );
    flags(bits, gate)?;
    stripe_count(head)?;
    stripes.iter().try_for_each(|stripe| stripe_rules(stripe, gate))
}

fn stripe_rules(stripe: &StripeItem, gate: &Gate) -> Checked {
    let offset = stripe.offset.get();
    ensure!(
        gate.aligned(offset),
        "unaligned stripe",
        offset,
        format_args!("a multiple of {}", gate.sectorsize)
    );
    Ok(())
}

/// The number of stripes and sub stripes follows from the profile.
fn stripe_count(head: &ChunkItem) -> Checked {
    let (count, sub) = (head.num_stripes.get(), head.sub_stripes.get());
    let (least, most) = match head.chunk_type.get() & chunk_type::PROFILE_MASK {
        0 => (1, 1),
        chunk_type::DUP | chunk_type::RAID1 => (2, 2),
        chunk_type::RAID1C3 => (3, 3),
        chunk_type::RAID1C4 => (4, 4),
        chunk_type::RAID10 => (2, u16::MAX),
        chunk_type::RAID5 => (2, u16::MAX),
        chunk_type::RAID6 => (3, u16::MAX),
        _ => (1, u16::MAX),
    };
    ensure!(
        (least..=most).contains(&count),
        "wrong number of stripes for the profile",
        count,
        format_args!("{least} to {most}")
    );
    if head.chunk_type.get() & chunk_type::RAID10 != 0 {
        ensure!(sub == 2, "wrong number of sub stripes", sub, 2);
        ensure!(count.is_multiple_of(sub), "odd number of stripes", count, "an even number");
    }
    Ok(())
}

pub(super) fn dev_item(item: &Item<'_>) -> Checked {
    ensure!(
        item.key.objectid == objectid::DEV_ITEMS,
        "invalid object of a device",
        item.key.objectid,
        objectid::DEV_ITEMS
    );
    item.sized(size_of::<DevItem>())?;
    let Some(device) = DevItem::of(item.data) else { return Ok(()) };
    ensure!(
        device.devid.get() == item.key.offset,
        "wrong device id",
        device.devid,
        item.key.offset
    );
    ensure!(
        device.bytes_used <= device.total_bytes,
        "more used than a device has",
        device.bytes_used,
        format_args!("at most {}", device.total_bytes)
    );
    Ok(())
}

pub(super) fn dev_extent(item: &Item<'_>) -> Checked {
    item.sized(size_of::<DevExtent>())?;
    let Some(extent) = DevExtent::of(item.data) else { return Ok(()) };
    ensure!(
        extent.chunk_tree.get() == objectid::CHUNK_TREE,
        "invalid chunk tree of a device extent",
        extent.chunk_tree,
        objectid::CHUNK_TREE
    );
    ensure!(
        extent.chunk_objectid.get() == objectid::FIRST_CHUNK_TREE,
        "invalid chunk object of a device extent",
        extent.chunk_objectid,
        objectid::FIRST_CHUNK_TREE
    );
    let (start, length) = (item.key.offset, extent.length.get());
    item.aligned(start, "unaligned device extent")?;
    item.aligned(extent.chunk_offset.get(), "unaligned chunk of a device extent")?;
    item.aligned(length, "unaligned length of a device extent")?;
    ensure!(length != 0, "empty device extent", 0, "a length");
    ensure!(
        start.checked_add(length).is_some(),
        "device extent overflows",
        format_args!("{start}+{length}"),
        "below 2^64"
    );
    let Some((before, data)) = item.sibling() else { return Ok(()) };
    let taken = DevExtent::of(data).map_or(0, |extent| extent.length.get());
    let end = before.offset.saturating_add(taken);
    ensure!(
        end <= start,
        "device extent overlaps the one before",
        start,
        format_args!("at least {end}")
    );
    Ok(())
}
