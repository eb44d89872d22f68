//! Superblocks, as `dump-super` prints them.

use std::io::{self, Write};

use buttress_codec::ChecksumKind;
use zerocopy::FromBytes;

use super::extent::chunk_parts;
use super::names::KeyText;
use super::{text, uuid};
use crate::features::{FEATURES, Set};
use crate::superblock::{
    MAGIC, RootBackup, SUPERBLOCK_LEN, SYS_CHUNK_ARRAY_LEN, Superblock, super_flags,
};
use crate::view;

const SUPER_FLAGS: [(u64, &str); 7] = [
    (super_flags::WRITTEN, "WRITTEN"),
    (super_flags::RELOC, "RELOC"),
    (super_flags::CHANGING_FSID, "CHANGING_FSID"),
    (super_flags::CHANGING_FSID_V2, "CHANGING_FSID_V2"),
    (super_flags::SEEDING, "SEEDING"),
    (super_flags::METADUMP, "METADUMP"),
    (super_flags::METADUMP_V2, "METADUMP_V2"),
];

/// Prints the names of flags, one a line, in parentheses; nothing when no flag is set.
pub fn flag_lines(
    out: &mut dyn Write,
    flags: u64,
    names: impl Iterator<Item = (u64, &'static str)>,
) -> io::Result<()> {
    if flags == 0 {
        return Ok(());
    }
    let mut unknown = flags;
    let mut first = true;
    write!(out, "\t\t\t( ")?;
    for (bit, name) in names.filter(|(bit, _)| flags & bit != 0) {
        write!(out, "{}{name} ", if first { "" } else { "|\n\t\t\t  " })?;
        first = false;
        unknown &= !bit;
    }
    if unknown != 0 {
        write!(out, "{}unknown flag: 0x{unknown:x} ", if first { "" } else { "|\n\t\t\t  " })?;
    }
    writeln!(out, ")")
}

fn features(set: Set) -> impl Iterator<Item = (u64, &'static str)> {
    FEATURES.iter().filter(move |one| one.set == set).map(|one| (one.bit, one.flag))
}

fn matching(matches: bool) -> &'static str {
    if matches { "[match]" } else { "[DON'T MATCH]" }
}

/// Prints the superblock in `bytes` as `dump-super` does (with `full`, as `dump-super -f`), under the heading of the
/// `device` and the `offset` where it was read, a blank line at the end. The bytes may be anything.
pub fn dump_super(
    out: &mut dyn Write,
    bytes: &[u8; SUPERBLOCK_LEN],
    offset: u64,
    device: &str,
    full: bool,
) -> io::Result<()> {
    let Ok(sb) = Superblock::ref_from_bytes(bytes) else { return Ok(()) };
    writeln!(out, "superblock: bytenr={offset}, device={device}")?;
    writeln!(out, "---------------------------------------------------------")?;
    checksum(out, sb, bytes)?;
    identity(out, sb)?;
    roots(out, sb)?;
    flags(out, sb)?;
    device_item(out, sb)?;
    if full {
        sys_chunks(out, sb)?;
        backups(out, sb)?;
    }
    writeln!(out)
}

fn checksum(out: &mut dyn Write, sb: &Superblock, bytes: &[u8]) -> io::Result<()> {
    let kind = ChecksumKind::from_u16(sb.csum_type.get());
    write!(out, "csum_type\t\t{} (", sb.csum_type)?;
    match kind {
        Some(kind) => writeln!(out, "{})\ncsum_size\t\t{}", kind.name(), kind.size())?,
        None => writeln!(out, "INVALID)\ncsum_size\t\t32")?,
    }
    let shown = kind.map_or(sb.csum.len(), ChecksumKind::size);
    write!(out, "csum\t\t\t0x")?;
    sb.csum[..shown].iter().try_for_each(|byte| write!(out, "{byte:02x}"))?;
    match kind {
        Some(kind) => writeln!(out, " {}", matching(kind.verify(&bytes[32..], &sb.csum))),
        None => writeln!(out, " [UNKNOWN CSUM TYPE OR SIZE]"),
    }
}

fn identity(out: &mut dyn Write, sb: &Superblock) -> io::Result<()> {
    writeln!(out, "bytenr\t\t\t{}", sb.bytenr)?;
    writeln!(out, "flags\t\t\t0x{:x}", sb.flags.get())?;
    flag_lines(out, sb.flags.get(), SUPER_FLAGS.into_iter())?;
    write!(out, "magic\t\t\t")?;
    printable(out, &sb.magic)?;
    writeln!(out, " {}", matching(sb.magic == MAGIC))?;
    writeln!(out, "fsid\t\t\t{}", uuid(sb.fsid))?;
    writeln!(out, "metadata_uuid\t\t{}", uuid(sb.metadata_fsid()))?;
    write!(out, "label\t\t\t")?;
    text(out, &sb.label)?;
    writeln!(out)
}

fn printable(out: &mut dyn Write, bytes: &[u8]) -> io::Result<()> {
    for &byte in bytes {
        let shown = if byte.is_ascii_graphic() || byte == b' ' { byte } else { b'.' };
        out.write_all(&[shown])?;
    }
    Ok(())
}

fn roots(out: &mut dyn Write, sb: &Superblock) -> io::Result<()> {
    writeln!(out, "generation\t\t{}", sb.generation)?;
    writeln!(out, "root\t\t\t{}", sb.root)?;
    writeln!(out, "sys_array_size\t\t{}", sb.sys_chunk_array_size)?;
    writeln!(out, "chunk_root_generation\t{}", sb.chunk_root_generation)?;
    writeln!(out, "root_level\t\t{}", sb.root_level)?;
    writeln!(out, "chunk_root\t\t{}", sb.chunk_root)?;
    writeln!(out, "chunk_root_level\t{}", sb.chunk_root_level)?;
    writeln!(out, "log_root\t\t{}", sb.log_root)?;
    writeln!(out, "log_root_transid (deprecated)\t{}", sb.log_root_transid)?;
    writeln!(out, "log_root_level\t\t{}", sb.log_root_level)?;
    writeln!(out, "total_bytes\t\t{}", sb.total_bytes)?;
    writeln!(out, "bytes_used\t\t{}", sb.bytes_used)?;
    writeln!(out, "sectorsize\t\t{}", sb.sectorsize)?;
    writeln!(out, "nodesize\t\t{}", sb.nodesize)?;
    writeln!(out, "leafsize (deprecated)\t{}", sb.leafsize)?;
    writeln!(out, "stripesize\t\t{}", sb.stripesize)?;
    writeln!(out, "root_dir\t\t{}", sb.root_dir_objectid)?;
    writeln!(out, "num_devices\t\t{}", sb.num_devices)
}

fn flags(out: &mut dyn Write, sb: &Superblock) -> io::Result<()> {
    writeln!(out, "compat_flags\t\t0x{:x}", sb.compat_flags.get())?;
    writeln!(out, "compat_ro_flags\t\t0x{:x}", sb.compat_ro_flags.get())?;
    flag_lines(out, sb.compat_ro_flags.get(), features(Set::CompatRo))?;
    writeln!(out, "incompat_flags\t\t0x{:x}", sb.incompat_flags.get())?;
    flag_lines(out, sb.incompat_flags.get(), features(Set::Incompat))?;
    writeln!(out, "cache_generation\t{}", sb.cache_generation)?;
    writeln!(out, "uuid_tree_generation\t{}", sb.uuid_tree_generation)
}

fn device_item(out: &mut dyn Write, sb: &Superblock) -> io::Result<()> {
    let device = &sb.dev_item;
    let matches = matching(device.fsid == sb.metadata_fsid());
    writeln!(out, "dev_item.uuid\t\t{}", uuid(device.uuid))?;
    writeln!(out, "dev_item.fsid\t\t{} {matches}", uuid(device.fsid))?;
    writeln!(out, "dev_item.type\t\t{}", device.dev_type)?;
    writeln!(out, "dev_item.total_bytes\t{}", device.total_bytes)?;
    writeln!(out, "dev_item.bytes_used\t{}", device.bytes_used)?;
    writeln!(out, "dev_item.io_align\t{}", device.io_align)?;
    writeln!(out, "dev_item.io_width\t{}", device.io_width)?;
    writeln!(out, "dev_item.sector_size\t{}", device.sector_size)?;
    writeln!(out, "dev_item.devid\t\t{}", device.devid)?;
    writeln!(out, "dev_item.dev_group\t{}", device.dev_group)?;
    writeln!(out, "dev_item.seek_speed\t{}", device.seek_speed)?;
    writeln!(out, "dev_item.bandwidth\t{}", device.bandwidth)?;
    writeln!(out, "dev_item.generation\t{}", device.generation)
}

fn sys_chunks(out: &mut dyn Write, sb: &Superblock) -> io::Result<()> {
    writeln!(out, "sys_chunk_array[{SYS_CHUNK_ARRAY_LEN}]:")?;
    for (index, (key, head, stripes)) in view::sys_chunks(sb).enumerate() {
        writeln!(out, "\titem {index} {}", KeyText(key))?;
        chunk_parts(out, &head, stripes)?;
    }
    Ok(())
}

fn backups(out: &mut dyn Write, sb: &Superblock) -> io::Result<()> {
    writeln!(out, "backup_roots[{}]:", sb.root_backups.len())?;
    for (index, backup) in sb.root_backups.iter().enumerate().filter(|(_, it)| is_there(it)) {
        writeln!(out, "\tbackup {index}:")?;
        backup_lines(out, backup)?;
    }
    Ok(())
}

/// Whether a backup has been written since the filesystem was made.
fn is_there(backup: &RootBackup) -> bool {
    let (tree, chunk) = (backup.tree_root_gen.get(), backup.chunk_root_gen.get());
    backup.tree_root.get() | tree | backup.chunk_root.get() | chunk != 0
}

/// The extent tree keeps its name even where a block group tree stands beside it.
fn backup_lines(out: &mut dyn Write, backup: &RootBackup) -> io::Result<()> {
    let it = backup;
    for (name, bytenr, generation, level) in [
        ("backup_tree_root:", it.tree_root, it.tree_root_gen, it.tree_root_level),
        ("backup_chunk_root:", it.chunk_root, it.chunk_root_gen, it.chunk_root_level),
        ("backup_extent_root:", it.extent_root, it.extent_root_gen, it.extent_root_level),
        ("backup_fs_root:\t", it.fs_root, it.fs_root_gen, it.fs_root_level),
        ("backup_dev_root:", it.dev_root, it.dev_root_gen, it.dev_root_level),
        ("csum_root:", it.csum_root, it.csum_root_gen, it.csum_root_level),
    ] {
        writeln!(out, "\t\t{name}\t{bytenr}\tgen: {generation}\tlevel: {level}")?;
    }
    writeln!(out, "\t\tbackup_total_bytes:\t{}", it.total_bytes)?;
    writeln!(out, "\t\tbackup_bytes_used:\t{}", it.bytes_used)?;
    writeln!(out, "\t\tbackup_num_devices:\t{}", it.num_devices)?;
    writeln!(out)
}
