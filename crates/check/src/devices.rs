//! Superblocks, chunks and devices: the mirrors against the primary, the superblock's chunks against the chunk tree, chunks
//! against device extents in both directions.

use std::collections::BTreeMap;

use buttress_ondisk::{
    Key, Superblock, check,
    item::{DevExtent, DevItem},
    kind,
    layout::{Field, Layout},
    objectid,
    superblock::{SUPERBLOCK_LEN, SUPERBLOCK_OFFSETS},
    view::sys_chunks,
};
use buttress_volume::Chunk;
use zerocopy::IntoBytes;

use crate::{
    context::Context,
    issue::Place,
    kinds::Kind,
    walk::{Leaf, Visitor, walk},
};

/// Judges them all. The root tree is known.
pub(crate) fn check(context: &Context<'_>) {
    superblocks(context);
    if context.sb.stripesize != context.sb.sectorsize {
        let (have, expect) = (context.sb.stripesize, context.sb.sectorsize);
        context.report(Kind::SuperStripe, Place::default(), have, expect);
    }
    let mut found = Found { context, chunks: BTreeMap::new(), devices: Vec::new() };
    walk(context, &context.chunk_tree(), Key::MIN..=Key::MAX, &mut found);
    let Found { chunks, devices, .. } = found;
    overlaps(context, &chunks);
    system_chunks(context, &chunks);
    let used = dev_extents(context, &chunks);
    self::devices(context, &devices, used.as_ref());
}

fn superblocks(context: &Context<'_>) {
    for member in context.volume.devices() {
        let size = member.device.size().min(member.total_bytes());
        for (at, offset) in SUPERBLOCK_OFFSETS.into_iter().enumerate() {
            if offset + SUPERBLOCK_LEN as u64 > size {
                break;
            }
            let mut bytes = [0; SUPERBLOCK_LEN];
            let place = Place::device(member.devid, offset);
            let bad = if at == 0 { Kind::SuperBad } else { Kind::SuperMirror };
            match member.device.read_at(offset, &mut bytes) {
                Err(error) => context.report(bad, place, error, "a superblock"),
                Ok(()) => match check::superblock(&bytes) {
                    Err(fault) => context.report(bad, place, fault, "a superblock"),
                    Ok(sb) => mirror(context, place, &sb, offset, bad),
                },
            }
        }
    }
}

fn mirror(context: &Context<'_>, place: Place, sb: &Superblock, offset: u64, bad: Kind) {
    if sb.bytenr.get() != offset {
        return context.report(bad, place, format_args!("the copy of {}", sb.bytenr), offset);
    }
    if sb.metadata_fsid() != context.sb.metadata_fsid() {
        return context.report(bad, place, "another filesystem's", "this filesystem's");
    }
    let (have, expect) = (sb.generation.get(), context.sb.generation.get());
    if have != expect {
        let have = format_args!("generation {have}");
        context.report(Kind::SuperStale, place, have, format_args!("generation {expect}"));
    } else if unplaced(sb) != unplaced(&context.sb) {
        context.report(Kind::SuperStale, place, "other content", "that of the primary");
    }
}

/// What all copies of a superblock have in common. An fsync writes the log's place into the primary alone.
fn unplaced(sb: &Superblock) -> Superblock {
    let zero = 0.into();
    Superblock { csum: [0; 32], bytenr: zero, log_root: zero, log_root_level: 0, ..*sb }
}

/// What the chunk tree holds.
struct Found<'a, 'b> {
    context: &'a Context<'b>,
    chunks: BTreeMap<u64, Chunk>,
    devices: Vec<DevItem>,
}

impl Visitor for Found<'_, '_> {
    fn leaf(&mut self, leaf: &Leaf<'_>) {
        for (key, data) in leaf.items() {
            match key.kind {
                kind::CHUNK_ITEM => match Chunk::decode(key.offset, data) {
                    Ok(chunk) => drop(self.chunks.insert(key.offset, chunk)),
                    Err(fault) => {
                        let place = Place::item(objectid::CHUNK_TREE, key);
                        self.context.report(Kind::ChunkBad, place, fault, "a chunk");
                    }
                },
                kind::DEV_ITEM => self.devices.extend(DevItem::of(data).copied()),
                _ => {}
            }
        }
    }
}

fn overlaps(context: &Context<'_>, chunks: &BTreeMap<u64, Chunk>) {
    let mut end = 0;
    for chunk in chunks.values() {
        let place = Place::logical(chunk.logical, chunk.length);
        if chunk.logical < end {
            let expect = format_args!("at least {end}");
            context.report(Kind::ChunkPlace, place.clone(), chunk.logical, expect);
        }
        end = end.max(chunk.end());
        for stripe in &chunk.stripes {
            let members = context.volume.devices();
            let Some(member) = members.iter().find(|member| member.devid == stripe.devid) else {
                continue;
            };
            let last = stripe.offset.saturating_add(chunk.device_len());
            if last > member.total_bytes() || stripe.dev_uuid != member.uuid {
                let place = Place { device: Some(stripe.devid), ..place.clone() };
                let expect = format_args!("inside its device of {} bytes", member.total_bytes());
                context.report(Kind::ChunkPlace, place, last, expect);
            }
        }
    }
}

/// System chunks stand in the superblock too, so that the chunk tree can be found.
fn system_chunks(context: &Context<'_>, chunks: &BTreeMap<u64, Chunk>) {
    let mut array = BTreeMap::new();
    for (key, head, stripes) in sys_chunks(&context.sb) {
        use zerocopy::IntoBytes;
        let bytes = [head.as_bytes(), stripes.as_bytes()].concat();
        if let Ok(chunk) = Chunk::decode(key.offset, &bytes) {
            array.insert(key.offset, chunk);
        }
    }
    for chunk in chunks.values() {
        let system = chunk.type_flags & buttress_ondisk::item::chunk_type::SYSTEM != 0;
        if system && array.get(&chunk.logical) != Some(chunk) {
            let place = Place::logical(chunk.logical, chunk.length);
            context.report(Kind::SystemChunkMissing, place, "no such entry", "the chunk's copy");
        }
    }
    for chunk in array.values().filter(|it| !chunks.contains_key(&it.logical)) {
        let place = Place::logical(chunk.logical, chunk.length);
        context.report(Kind::SystemChunkStale, place, "an entry", "a chunk in the chunk tree");
    }
}

/// A device extent: where it is, by device and offset, and the chunk and length that it says.
type Extents = BTreeMap<(u64, u64), (u64, u64)>;

/// What the device tree holds.
#[derive(Default)]
struct DevExtents {
    found: Extents,
    lost: bool,
}

impl Visitor for DevExtents {
    fn leaf(&mut self, leaf: &Leaf<'_>) {
        for (key, data) in leaf.items().filter(|(key, _)| key.kind == kind::DEV_EXTENT) {
            if let Some(item) = DevExtent::of(data) {
                let said = (item.chunk_offset.get(), item.length.get());
                self.found.insert((key.objectid, key.offset), said);
            }
        }
    }

    fn lost(&mut self, _from: Key, _to: Option<Key>) {
        self.lost = true;
    }
}

/// Compares chunks and device extents; the bytes of each device's extents, if all of them could be read.
fn dev_extents(context: &Context<'_>, chunks: &BTreeMap<u64, Chunk>) -> Option<BTreeMap<u64, u64>> {
    let tree = context.roots.find(objectid::DEV_TREE)?;
    let mut visitor = DevExtents::default();
    walk(context, tree, Key::MIN..=Key::MAX, &mut visitor);
    let DevExtents { mut found, lost } = visitor;
    if lost {
        return None;
    }
    let mut used = BTreeMap::new();
    let mut before = (0, 0);
    for (&(device, start), &(_, len)) in &found {
        let sum = used.entry(device).or_insert(0u64);
        *sum = sum.saturating_add(len);
        if before.0 == device && start < before.1 {
            let place = Place { len: Some(len), ..Place::device(device, start) };
            let expect = format_args!("at least {}", before.1);
            context.report(Kind::DevExtentOverlap, place, start, expect);
        }
        before = (device, start.saturating_add(len));
    }
    for chunk in chunks.values() {
        for stripe in &chunk.stripes {
            let own = (chunk.logical, chunk.device_len());
            let have = found.remove(&(stripe.devid, stripe.offset));
            if have != Some(own) {
                missing(context, chunk, (stripe.devid, stripe.offset), have);
            }
        }
    }
    for ((device, start), (chunk, len)) in found {
        let place = Place { len: Some(len), ..Place::device(device, start) };
        let have = format_args!("an extent of chunk {chunk}");
        context.report(Kind::DevExtentExtra, place, have, "a stripe of a chunk");
    }
    Some(used)
}

/// The names of the members in which two device items differ.
fn differing(one: &DevItem, other: &DevItem) -> Vec<&'static str> {
    let part = |item: &DevItem, field: &Field| {
        item.as_bytes().get(field.offset..field.offset + field.len).map(<[u8]>::to_vec)
    };
    let differs = |field: &&Field| part(one, field) != part(other, field);
    DevItem::FIELDS.iter().filter(differs).map(|field| field.name).collect()
}

fn missing(context: &Context<'_>, chunk: &Chunk, at: (u64, u64), have: Option<(u64, u64)>) {
    let len = Some(chunk.device_len());
    let place = Place { logical: Some(chunk.logical), len, ..Place::device(at.0, at.1) };
    let have = match have {
        None => "no device extent".to_string(),
        Some((chunk, len)) => format!("a device extent of chunk {chunk}, length {len}"),
    };
    let expect = format_args!("one of chunk {}, length {}", chunk.logical, chunk.device_len());
    context.report(Kind::DevExtentMissing, place, have, expect);
}

/// Compares device items with the superblock and with their extents.
fn devices(context: &Context<'_>, devices: &[DevItem], used: Option<&BTreeMap<u64, u64>>) {
    for device in devices {
        let devid = device.devid.get();
        let place = Place { device: Some(devid), ..Place::default() };
        let sum = used.map(|used| used.get(&devid).copied().unwrap_or(0));
        if let Some(sum) = sum.filter(|sum| *sum != device.bytes_used.get()) {
            context.report(Kind::DevBytesUsed, place.clone(), device.bytes_used, sum);
        }
        let own = &context.sb.dev_item;
        if own.devid == device.devid && own != device {
            let members = differing(own, device).join(", ");
            let have = format_args!("another {members} in the superblock");
            context.report(Kind::SuperDevice, place, have, "the same as in the chunk tree");
        }
    }
    for member in context.volume.devices() {
        let (have, expect) = (member.device.size(), member.total_bytes());
        if have < expect {
            let place = Place { device: Some(member.devid), ..Place::default() };
            context.report(Kind::DeviceShort, place, have, format_args!("{expect} or more"));
        }
    }
    let total = devices.iter().fold(0u64, |sum, it| sum.saturating_add(it.total_bytes.get()));
    if total != context.sb.total_bytes.get() {
        context.report(Kind::SuperTotal, Place::default(), context.sb.total_bytes, total);
    }
}
