//! `inspect-internal dump-super`: superblocks as they are on the device, whether good or not.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use buttress_codec::ChecksumKind;
use buttress_device::{Access, BlockDevice};
use buttress_mkfs::{MkfsError, parse_size};
use buttress_ondisk::Superblock;
use buttress_ondisk::print;
use buttress_ondisk::superblock::{MAGIC, SUPERBLOCK_LEN, SUPERBLOCK_OFFSETS};
use clap::Args;
use serde_json::{Value, json};
use uuid::Uuid;
use zerocopy::FromBytes;

use crate::args::Globals;
use crate::device;
use crate::error::Failure;
use crate::output::{self, Format};

/// Arguments of `dump-super`.
#[derive(Debug, Args)]
pub struct DumpSuper {
    /// The image files or disks
    #[arg(required = true, value_name = "DEVICE")]
    devices: Vec<PathBuf>,
    /// Print the system chunks and the backup roots too
    #[arg(short, long)]
    full: bool,
    /// Print all copies
    #[arg(short, long)]
    all: bool,
    /// Which copy to print: 0, 1 or 2
    #[arg(short = 's', long = "super", value_name = "COPY", value_parser = clap::value_parser!(u8).range(0..=2), conflicts_with = "all")]
    copy: Option<u8>,
    /// Print what is there even if it does not look like a superblock
    #[arg(short = 'F', long)]
    force: bool,
    /// Print the superblock at this offset, in bytes
    #[arg(long, value_name = "OFFSET", value_parser = byte_offset, conflicts_with_all = ["all", "copy"])]
    bytenr: Option<u64>,
}

fn byte_offset(text: &str) -> Result<u64, MkfsError> {
    match text.strip_prefix("0x").map(|digits| u64::from_str_radix(digits, 16)) {
        Some(Ok(offset)) => Ok(offset),
        _ => parse_size(text),
    }
}

/// Where the superblocks are that were asked for.
fn offsets(args: &DumpSuper) -> Vec<u64> {
    match (args.bytenr, args.copy, args.all) {
        (Some(bytenr), ..) => vec![bytenr],
        (_, _, true) => SUPERBLOCK_OFFSETS.to_vec(),
        (_, copy, _) => {
            SUPERBLOCK_OFFSETS.into_iter().skip(usize::from(copy.unwrap_or(0))).take(1).collect()
        }
    }
}

/// Prints the superblocks.
pub fn run(args: &DumpSuper, globals: &Globals, out: &mut dyn Write) -> Result<(), Failure> {
    let mut list = Vec::new();
    for path in &args.devices {
        let device = device::open(path, Access::ReadOnly, globals)?;
        for offset in offsets(args) {
            match globals.format {
                Format::Text => text(&*device, path, offset, args, out)?,
                Format::Json => {
                    if let Some(bytes) = read(&*device, path, offset)? {
                        check_magic(&bytes, path, offset, args)?;
                        list.push(json(&bytes, path, offset));
                    }
                }
            }
        }
    }
    if globals.format == Format::Json {
        output::write_json(out, "superblocks", list.into())?;
    }
    Ok(())
}

fn text(
    device: &dyn BlockDevice,
    path: &Path,
    offset: u64,
    args: &DumpSuper,
    out: &mut dyn Write,
) -> Result<(), Failure> {
    match read(device, path, offset)? {
        None => Ok(writeln!(out)?),
        Some(bytes) => {
            check_magic(&bytes, path, offset, args)?;
            Ok(print_one(out, &bytes, offset, path, args.full)?)
        }
    }
}

fn print_one(
    out: &mut dyn Write,
    bytes: &[u8; SUPERBLOCK_LEN],
    offset: u64,
    path: &Path,
    full: bool,
) -> io::Result<()> {
    print::dump_super(out, bytes, offset, &path.display().to_string(), full)
}

/// The bytes of a superblock's place; `None` past the end of the device.
fn read(
    device: &dyn BlockDevice,
    path: &Path,
    offset: u64,
) -> Result<Option<[u8; SUPERBLOCK_LEN]>, Failure> {
    let end = offset.saturating_add(SUPERBLOCK_LEN as u64);
    if end > device.size() {
        return Ok(None);
    }
    let mut bytes = [0; SUPERBLOCK_LEN];
    device.read_at(offset, &mut bytes).map_err(|error| device::failure(path, &error))?;
    Ok(Some(bytes))
}

fn check_magic(
    bytes: &[u8; SUPERBLOCK_LEN],
    path: &Path,
    offset: u64,
    args: &DumpSuper,
) -> Result<(), Failure> {
    if args.force || bytes.get(0x40..0x48) == Some(&MAGIC) {
        return Ok(());
    }
    let why = format!("bad magic at {offset}");
    Err(Failure::new("cannot read the superblock of", path.display(), why).hint(
        "To print what is there anyway, add --force; --offset says where the filesystem begins.",
    ))
}

fn json(bytes: &[u8; SUPERBLOCK_LEN], path: &Path, offset: u64) -> Value {
    let Ok(sb) = Superblock::read_from_bytes(bytes) else { return Value::Null };
    let kind = ChecksumKind::from_u16(sb.csum_type.get());
    let sum = sb.csum.get(..kind.map_or(sb.csum.len(), ChecksumKind::size)).unwrap_or_default();
    let hex: String = sum.iter().map(|byte| format!("{byte:02x}")).collect();
    let rest = bytes.get(32..).unwrap_or_default();
    json!({
        "device": path.display().to_string(),
        "offset": offset,
        "csum_type": kind.map(ChecksumKind::name),
        "csum": format!("0x{hex}"),
        "csum_match": kind.is_some_and(|kind| kind.verify(rest, &sb.csum)),
        "bytenr": sb.bytenr.get(),
        "flags": sb.flags.get(),
        "magic_match": sb.magic == MAGIC,
        "fsid": Uuid::from_bytes(sb.fsid).to_string(),
        "metadata_uuid": Uuid::from_bytes(sb.metadata_fsid()).to_string(),
        "label": output::text_json(sb.label()),
        "generation": sb.generation.get(),
        "root": sb.root.get(),
        "root_level": sb.root_level,
        "chunk_root": sb.chunk_root.get(),
        "chunk_root_level": sb.chunk_root_level,
        "chunk_root_generation": sb.chunk_root_generation.get(),
        "log_root": sb.log_root.get(),
        "log_root_level": sb.log_root_level,
        "total_bytes": sb.total_bytes.get(),
        "bytes_used": sb.bytes_used.get(),
        "sectorsize": sb.sectorsize.get(),
        "nodesize": sb.nodesize.get(),
        "num_devices": sb.num_devices.get(),
        "compat_flags": sb.compat_flags.get(),
        "compat_ro_flags": sb.compat_ro_flags.get(),
        "incompat_flags": sb.incompat_flags.get(),
        "cache_generation": sb.cache_generation.get(),
        "uuid_tree_generation": sb.uuid_tree_generation.get(),
        "dev_item": device_json(&sb),
    })
}

fn device_json(sb: &Superblock) -> Value {
    let item = &sb.dev_item;
    json!({
        "devid": item.devid.get(),
        "uuid": Uuid::from_bytes(item.uuid).to_string(),
        "fsid": Uuid::from_bytes(item.fsid).to_string(),
        "total_bytes": item.total_bytes.get(),
        "bytes_used": item.bytes_used.get(),
    })
}
