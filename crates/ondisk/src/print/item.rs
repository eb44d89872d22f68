//! Bodies of items: the dispatch, and the kinds about trees, quotas and statistics.

use std::io::{self, Write};

use buttress_codec::ChecksumKind;
use zerocopy::little_endian::U64;
use zerocopy::{FromBytes, Immutable, KnownLayout, Unaligned};

use super::names::{EXTENT_REF_V0, Flags, KeyText, ObjectText, TimeLine};
use super::{Style, extent, file, text, uuid};
use crate::check::Gate;
use crate::item::{
    BalanceArgs, BalanceItem, QgroupInfo, QgroupLimit, QgroupStatus, RootItem, qgroup_status_flags,
    root_flags,
};
use crate::key::{Key, kind, objectid};
use crate::view;

/// Prints the body of an item, in the manner of `dump-tree`.
pub fn print_item(
    out: &mut dyn Write,
    key: &Key,
    data: &[u8],
    gate: &Gate,
    style: &Style,
) -> io::Result<()> {
    match key.kind {
        0 if key.objectid == objectid::FREE_SPACE => extent::space_cache(out, data),
        kind::INODE_ITEM => file::inode_item(out, data, style),
        kind::INODE_REF => file::inode_refs(out, data, style),
        kind::INODE_EXTREF => file::inode_extrefs(out, data, style),
        kind::DIR_ITEM | kind::DIR_INDEX | kind::XATTR_ITEM => file::dir_entries(out, data, style),
        kind::DIR_LOG_ITEM | kind::DIR_LOG_INDEX => {
            with(out, data, |out, end: &U64| writeln!(out, "\t\tdir log end {end}"))
        }
        kind::ORPHAN_ITEM => writeln!(out, "\t\torphan item"),
        kind::ROOT_ITEM => root_item(out, data, style),
        kind::ROOT_REF => root_ref(out, data, "ref"),
        kind::ROOT_BACKREF => root_ref(out, data, "backref"),
        kind::EXTENT_ITEM | kind::METADATA_ITEM => extent::extent_item(out, key, data),
        kind::TREE_BLOCK_REF
        | kind::SHARED_BLOCK_REF
        | kind::EXTENT_DATA_REF
        | kind::SHARED_DATA_REF => extent::keyed_ref(out, key, data),
        EXTENT_REF_V0 => writeln!(out, "\t\textent ref v0 (deprecated)"),
        120 => writeln!(out, "\t\tcsum item"),
        kind::EXTENT_CSUM => csums(out, key, data, gate, style),
        kind::EXTENT_DATA => file::extent_data(out, data),
        kind::BLOCK_GROUP_ITEM => extent::block_group(out, data),
        kind::FREE_SPACE_INFO => extent::free_space_info(out, data),
        kind::FREE_SPACE_EXTENT => writeln!(out, "\t\tfree space extent"),
        kind::FREE_SPACE_BITMAP => writeln!(out, "\t\tfree space bitmap"),
        kind::CHUNK_ITEM => extent::chunk(out, data),
        kind::DEV_ITEM => extent::dev_item(out, data),
        kind::DEV_EXTENT => extent::dev_extent(out, data),
        kind::QGROUP_STATUS => with(out, data, qgroup_status),
        kind::QGROUP_INFO => with(out, data, qgroup_info),
        kind::QGROUP_LIMIT => with(out, data, qgroup_limit),
        kind::UUID_SUBVOL | kind::UUID_RECEIVED_SUBVOL => uuids(out, data),
        kind::STRING_ITEM => {
            write!(out, "\t\titem data ")?;
            text(out, data)?;
            writeln!(out)
        }
        kind::PERSISTENT_ITEM => persistent(out, key, data),
        kind::TEMPORARY_ITEM => temporary(out, key, data),
        _ => Ok(()),
    }
}

/// Prints the structure at the start of `data`, if there is one.
fn with<T: FromBytes + KnownLayout + Immutable + Unaligned>(
    out: &mut dyn Write,
    data: &[u8],
    print: impl FnOnce(&mut dyn Write, &T) -> io::Result<()>,
) -> io::Result<()> {
    match T::ref_from_prefix(data) {
        Ok((it, _)) => print(out, it),
        Err(_) => Ok(()),
    }
}

const ROOT_FLAGS: [(u64, &str); 1] = [(root_flags::READ_ONLY, "RDONLY")];

fn root_item(out: &mut dyn Write, data: &[u8], style: &Style) -> io::Result<()> {
    let mut bytes = [0; size_of::<RootItem>()];
    let take = data.len().min(bytes.len());
    bytes[..take].copy_from_slice(&data[..take]);
    let Some(root) = RootItem::of(&bytes) else { return Ok(()) };
    let RootItem { generation, root_dirid, bytenr, byte_limit, bytes_used, .. } = root;
    write!(out, "\t\tgeneration {generation} root_dirid {root_dirid} bytenr {bytenr} ")?;
    writeln!(out, "byte_limit {byte_limit} bytes_used {bytes_used}")?;
    let (flags, refs) = (root.flags.get(), root.refs);
    write!(out, "\t\tlast_snapshot {} flags 0x{flags:x}", root.last_snapshot)?;
    writeln!(out, "({}) refs {refs}", Flags(flags, &ROOT_FLAGS, "none"))?;
    let progress = KeyText(root.drop_progress.into());
    writeln!(out, "\t\tdrop_progress {progress} drop_level {}", root.drop_level)?;
    writeln!(out, "\t\tlevel {} generation_v2 {}", root.level, root.generation_v2)?;
    if root.generation == root.generation_v2 {
        root_item_v2(out, root, style)?;
    }
    Ok(())
}

fn root_item_v2(out: &mut dyn Write, root: &RootItem, style: &Style) -> io::Result<()> {
    writeln!(out, "\t\tuuid {}", uuid(root.uuid))?;
    writeln!(out, "\t\tparent_uuid {}", uuid(root.parent_uuid))?;
    writeln!(out, "\t\treceived_uuid {}", uuid(root.received_uuid))?;
    let RootItem { ctransid, otransid, stransid, rtransid, .. } = root;
    write!(out, "\t\tctransid {ctransid} otransid {otransid} ")?;
    writeln!(out, "stransid {stransid} rtransid {rtransid}")?;
    for (name, time) in
        [("ctime", root.ctime), ("otime", root.otime), ("stime", root.stime), ("rtime", root.rtime)]
    {
        write!(out, "{}", TimeLine(name, time, style.utc_offset_secs))?;
    }
    Ok(())
}

fn root_ref(out: &mut dyn Write, data: &[u8], kind: &str) -> io::Result<()> {
    let Some((head, name)) = view::root_ref(data) else { return Ok(()) };
    let (dirid, sequence) = (head.dirid, head.sequence);
    write!(out, "\t\troot {kind} key dirid {dirid} sequence {sequence} name ")?;
    text(out, name)?;
    writeln!(out)
}

fn csums(
    out: &mut dyn Write,
    key: &Key,
    data: &[u8],
    gate: &Gate,
    style: &Style,
) -> io::Result<()> {
    let (one, sector) = (gate.csum.size(), u64::from(gate.sectorsize));
    let start = key.offset;
    let length = (data.len() / one) as u64 * sector;
    writeln!(out, "\t\trange start {start} end {} length {length}", start.wrapping_add(length))?;
    if !style.csum_items {
        return Ok(());
    }
    let per_line = match gate.csum {
        ChecksumKind::Crc32c => 4,
        ChecksumKind::XxHash64 => 2,
        ChecksumKind::Sha256 | ChecksumKind::Blake2b => 1,
    };
    let all: Vec<_> = data.chunks_exact(one).zip(0u64..).collect();
    for line in all.chunks(per_line) {
        write!(out, "\t\t")?;
        for (place, (csum, index)) in line.iter().enumerate() {
            let gap = if place == 0 { "" } else { " " };
            write!(out, "{gap}[{}] 0x", start.wrapping_add(index * sector))?;
            csum.iter().try_for_each(|byte| write!(out, "{byte:02x}"))?;
        }
        writeln!(out)?;
    }
    Ok(())
}

struct QgroupFlags(u64);

impl std::fmt::Display for QgroupFlags {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(if self.0 & qgroup_status_flags::ON != 0 { "ON" } else { "OFF" })?;
        if self.0 & qgroup_status_flags::RESCAN != 0 {
            f.write_str("|SCANNING")?;
        }
        if self.0 & qgroup_status_flags::INCONSISTENT != 0 {
            f.write_str("|INCONSISTENT")?;
        }
        Ok(())
    }
}

fn qgroup_status(out: &mut dyn Write, status: &QgroupStatus) -> io::Result<()> {
    let QgroupStatus { version, generation, flags, rescan } = status;
    let flags = QgroupFlags(flags.get());
    writeln!(out, "\t\tversion {version} generation {generation} flags {flags} scan {rescan}")
}

fn qgroup_info(out: &mut dyn Write, info: &QgroupInfo) -> io::Result<()> {
    let QgroupInfo { generation, rfer, rfer_cmpr, excl, excl_cmpr } = info;
    writeln!(out, "\t\tgeneration {generation}")?;
    writeln!(out, "\t\treferenced {rfer} referenced_compressed {rfer_cmpr}")?;
    writeln!(out, "\t\texclusive {excl} exclusive_compressed {excl_cmpr}")
}

fn qgroup_limit(out: &mut dyn Write, limit: &QgroupLimit) -> io::Result<()> {
    let signed = |value: U64| value.get() as i64;
    let QgroupLimit { flags, max_rfer, max_excl, rsv_rfer, rsv_excl } = *limit;
    writeln!(out, "\t\tflags {:x}", flags.get())?;
    writeln!(out, "\t\tmax_referenced {} max_exclusive {}", signed(max_rfer), signed(max_excl))?;
    writeln!(out, "\t\trsv_referenced {} rsv_exclusive {}", signed(rsv_rfer), signed(rsv_excl))
}

fn uuids(out: &mut dyn Write, data: &[u8]) -> io::Result<()> {
    for id in data.chunks_exact(8).filter_map(|bytes| U64::read_from_bytes(bytes).ok()) {
        writeln!(out, "\t\tsubvol_id {id}")?;
    }
    Ok(())
}

fn persistent(out: &mut dyn Write, key: &Key, data: &[u8]) -> io::Result<()> {
    let id = ObjectText(key.objectid, key.kind);
    writeln!(out, "\t\tpersistent item objectid {id} offset {}", key.offset)?;
    if key.objectid != objectid::DEV_STATS {
        return writeln!(out, "\t\tunknown persistent item objectid {}", key.objectid);
    }
    writeln!(out, "\t\tdevice stats")?;
    let Ok((stats, rest)) = <[U64; 5]>::read_from_prefix(data) else {
        return writeln!(out, "\t\tunknown stats item bytes {}", data.len());
    };
    let [writes, reads, flushes, corruptions, generations] = stats;
    write!(out, "\t\twrite_errs {writes} read_errs {reads} flush_errs {flushes} ")?;
    writeln!(out, "corruption_errs {corruptions} generation {generations}")?;
    if !rest.is_empty() {
        writeln!(out, "\t\tunknown stats item bytes {}", rest.len())?;
    }
    Ok(())
}

fn temporary(out: &mut dyn Write, key: &Key, data: &[u8]) -> io::Result<()> {
    let id = ObjectText(key.objectid, key.kind);
    writeln!(out, "\t\ttemporary item objectid {id} offset {}", key.offset)?;
    if key.objectid != objectid::BALANCE {
        return writeln!(out, "\t\tunknown temporary item objectid {}", key.objectid);
    }
    with(out, data, |out, balance: &BalanceItem| {
        writeln!(out, "\t\tbalance status flags {}", balance.flags)?;
        for (name, part) in ["DATA", "METADATA", "SYSTEM"].iter().zip(&balance.parts) {
            writeln!(out, "\t\t{name}")?;
            balance_args(out, part)?;
        }
        Ok(())
    })
}

fn balance_args(out: &mut dyn Write, args: &BalanceArgs) -> io::Result<()> {
    let BalanceArgs { profiles, devid, target, flags, .. } = args;
    writeln!(out, "\t\tprofiles {profiles} devid {devid} target {target} flags {flags}")?;
    let BalanceArgs { usage_min, usage_max, pstart, pend, .. } = args;
    writeln!(out, "\t\tusage_min {usage_min} usage_max {usage_max} pstart {pstart} pend {pend}")?;
    let BalanceArgs { vstart, vend, limit_min, limit_max, .. } = args;
    writeln!(out, "\t\tvstart {vstart} vend {vend} limit_min {limit_min} limit_max {limit_max}")?;
    let BalanceArgs { stripes_min, stripes_max, .. } = args;
    writeln!(out, "\t\tstripes_min {stripes_min} stripes_max {stripes_max}")
}
