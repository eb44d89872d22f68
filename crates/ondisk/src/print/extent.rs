//! Bodies of the items about space: extents and references, chunks, devices, free space.

use std::io::{self, Write};

use super::names::{ChunkType, Flags, KeyText, ObjectText};
use super::uuid;
use crate::item::{
    BlockGroupItem, ChunkItem, DevExtent, DevItem, FreeSpaceHeader, FreeSpaceInfo, StripeItem,
    extent_flags,
};
use crate::key::{Key, kind};
use crate::view::{self, InlineRef};

const EXTENT_FLAGS: [(u64, &str); 3] = [
    (extent_flags::DATA, "DATA"),
    (extent_flags::TREE_BLOCK, "TREE_BLOCK"),
    (extent_flags::FULL_BACKREF, "FULL_BACKREF"),
];

pub(super) fn extent_item(out: &mut dyn Write, key: &Key, data: &[u8]) -> io::Result<()> {
    let Some((head, info, refs)) = view::inline_refs(key, data) else { return Ok(()) };
    let flags = head.flags.get();
    let names = Flags(flags, &EXTENT_FLAGS, "");
    writeln!(out, "\t\trefs {} gen {} flags {names}", head.refs, head.generation)?;
    if let Some(info) = info {
        writeln!(out, "\t\ttree block {} level {}", KeyText(info.key.into()), info.level)?;
    } else if key.kind == kind::METADATA_ITEM {
        writeln!(out, "\t\ttree block skinny level {}", key.offset)?;
    }
    for found in refs {
        inline_ref(out, &found)?;
    }
    Ok(())
}

fn inline_ref(out: &mut dyn Write, found: &InlineRef) -> io::Result<()> {
    match *found {
        InlineRef::TreeBlock { root } => {
            writeln!(out, "\t\ttree block backref root {}", ObjectText(root, 0))
        }
        InlineRef::SharedBlock { parent } => {
            writeln!(out, "\t\tshared block backref parent {parent}")
        }
        InlineRef::ExtentData { root, objectid, offset, count } => {
            let root = ObjectText(root, 0);
            write!(out, "\t\textent data backref root {root} ")?;
            writeln!(out, "objectid {objectid} offset {offset} count {count}")
        }
        InlineRef::SharedData { parent, count } => {
            writeln!(out, "\t\tshared data backref parent {parent} count {count}")
        }
        InlineRef::Owner { root } => {
            writeln!(out, "\t\textent owner root {root}")
        }
    }
}

pub(super) fn keyed_ref(out: &mut dyn Write, key: &Key, data: &[u8]) -> io::Result<()> {
    match view::keyed_ref(key, data) {
        Some(InlineRef::TreeBlock { .. }) => writeln!(out, "\t\ttree block backref"),
        Some(InlineRef::SharedBlock { .. }) => writeln!(out, "\t\tshared block backref"),
        Some(InlineRef::SharedData { count, .. }) => {
            writeln!(out, "\t\tshared data backref count {count}")
        }
        Some(found) => inline_ref(out, &found),
        None => Ok(()),
    }
}

pub(super) fn block_group(out: &mut dyn Write, data: &[u8]) -> io::Result<()> {
    let Some(group) = BlockGroupItem::of(data) else { return Ok(()) };
    let BlockGroupItem { used, chunk_objectid, flags } = group;
    let flags = ChunkType(flags.get());
    writeln!(out, "\t\tblock group used {used} chunk_objectid {chunk_objectid} flags {flags}")
}

pub(super) fn chunk(out: &mut dyn Write, data: &[u8]) -> io::Result<()> {
    let Some((head, stripes)) = view::chunk(data) else {
        return writeln!(out, "\t\t\tchunk item invalid");
    };
    chunk_parts(out, &head, stripes)
}

pub(super) fn chunk_parts(
    out: &mut dyn Write,
    head: &ChunkItem,
    stripes: &[StripeItem],
) -> io::Result<()> {
    let ChunkItem { length, owner, stripe_len, .. } = head;
    let kind = ChunkType(head.chunk_type.get());
    writeln!(out, "\t\tlength {length} owner {owner} stripe_len {stripe_len} type {kind}")?;
    let ChunkItem { io_align, io_width, sector_size, num_stripes, sub_stripes, .. } = head;
    writeln!(out, "\t\tio_align {io_align} io_width {io_width} sector_size {sector_size}")?;
    writeln!(out, "\t\tnum_stripes {num_stripes} sub_stripes {sub_stripes}")?;
    for (index, stripe) in stripes.iter().enumerate() {
        let StripeItem { devid, offset, dev_uuid } = stripe;
        writeln!(out, "\t\t\tstripe {index} devid {devid} offset {offset}")?;
        writeln!(out, "\t\t\tdev_uuid {}", uuid(*dev_uuid))?;
    }
    Ok(())
}

pub(super) fn dev_item(out: &mut dyn Write, data: &[u8]) -> io::Result<()> {
    let Some(device) = DevItem::of(data) else { return Ok(()) };
    let DevItem { devid, total_bytes, bytes_used, io_align, io_width, sector_size, .. } = device;
    writeln!(out, "\t\tdevid {devid} total_bytes {total_bytes} bytes_used {bytes_used}")?;
    write!(out, "\t\tio_align {io_align} io_width {io_width} sector_size {sector_size} ")?;
    let DevItem { dev_type, generation, start_offset, dev_group, .. } = device;
    writeln!(out, "type {dev_type}")?;
    write!(out, "\t\tgeneration {generation} start_offset {start_offset} ")?;
    writeln!(out, "dev_group {dev_group}")?;
    let DevItem { seek_speed, bandwidth, .. } = device;
    writeln!(out, "\t\tseek_speed {seek_speed} bandwidth {bandwidth}")?;
    writeln!(out, "\t\tuuid {}", uuid(device.uuid))?;
    writeln!(out, "\t\tfsid {}", uuid(device.fsid))
}

pub(super) fn dev_extent(out: &mut dyn Write, data: &[u8]) -> io::Result<()> {
    let Some(extent) = DevExtent::of(data) else { return Ok(()) };
    let DevExtent { chunk_tree, chunk_objectid, chunk_offset, length, chunk_tree_uuid } = extent;
    writeln!(out, "\t\tdev extent chunk_tree {chunk_tree}")?;
    write!(out, "\t\tchunk_objectid {chunk_objectid} chunk_offset {chunk_offset} ")?;
    writeln!(out, "length {length}")?;
    writeln!(out, "\t\tchunk_tree_uuid {}", uuid(*chunk_tree_uuid))
}

pub(super) fn free_space_info(out: &mut dyn Write, data: &[u8]) -> io::Result<()> {
    let Some(info) = FreeSpaceInfo::of(data) else { return Ok(()) };
    let FreeSpaceInfo { extent_count, flags } = info;
    writeln!(out, "\t\tfree space info extent count {extent_count} flags {flags}")
}

pub(super) fn space_cache(out: &mut dyn Write, data: &[u8]) -> io::Result<()> {
    let Some(cache) = FreeSpaceHeader::of(data) else { return Ok(()) };
    writeln!(out, "\t\tlocation {}", KeyText(cache.location.into()))?;
    let FreeSpaceHeader { generation, num_entries, num_bitmaps, .. } = cache;
    writeln!(out, "\t\tcache generation {generation} entries {num_entries} bitmaps {num_bitmaps}")
}
