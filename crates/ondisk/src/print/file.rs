//! Bodies of the items of subvolumes.

use std::io::{self, Write};

use super::names::{Flags, KeyText, TimeLine};
use super::{Style, text};
use crate::NAME_LEN_MAX;
use crate::item::{FileExtent, FileExtentHead, FileExtentTail, InodeItem, file_type, inode_flags};
use crate::view::{self, FileExtentItem};

const INODE_FLAGS: [(u64, &str); 12] = [
    (inode_flags::NODATASUM, "NODATASUM"),
    (inode_flags::NODATACOW, "NODATACOW"),
    (inode_flags::READONLY, "READONLY"),
    (inode_flags::NOCOMPRESS, "NOCOMPRESS"),
    (inode_flags::PREALLOC, "PREALLOC"),
    (inode_flags::SYNC, "SYNC"),
    (inode_flags::IMMUTABLE, "IMMUTABLE"),
    (inode_flags::APPEND, "APPEND"),
    (inode_flags::NODUMP, "NODUMP"),
    (inode_flags::NOATIME, "NOATIME"),
    (inode_flags::DIRSYNC, "DIRSYNC"),
    (inode_flags::COMPRESS, "COMPRESS"),
];

pub(super) fn inode_item(out: &mut dyn Write, data: &[u8], style: &Style) -> io::Result<()> {
    let Some(inode) = InodeItem::of(data) else { return Ok(()) };
    let InodeItem { generation, transid, size, nbytes, block_group, .. } = inode;
    writeln!(out, "\t\tgeneration {generation} transid {transid} size {size} nbytes {nbytes}")?;
    let InodeItem { mode, nlink, uid, gid, rdev, sequence, .. } = inode;
    let (mode, flags) = (mode.get(), inode.flags.get());
    writeln!(
        out,
        "\t\tblock group {block_group} mode {mode:o} links {nlink} uid {uid} gid {gid} rdev {rdev}"
    )?;
    writeln!(
        out,
        "\t\tsequence {sequence} flags 0x{flags:x}({})",
        Flags(flags, &INODE_FLAGS, "none")
    )?;
    for (name, time) in [
        ("atime", inode.atime),
        ("ctime", inode.ctime),
        ("mtime", inode.mtime),
        ("otime", inode.otime),
    ] {
        write!(out, "{}", TimeLine(name, time, style.utc_offset_secs))?;
    }
    Ok(())
}

fn named(out: &mut dyn Write, name: &[u8], style: &Style) -> io::Result<()> {
    write!(out, "name: ")?;
    if style.hide_names {
        out.write_all(b"HIDDEN")?
    } else {
        text(out, name)?
    }
    writeln!(out)
}

pub(super) fn inode_refs(out: &mut dyn Write, data: &[u8], style: &Style) -> io::Result<()> {
    for found in view::inode_refs(data) {
        write!(out, "\t\tindex {} namelen {} ", found.index, found.name.len())?;
        named(out, found.name, style)?;
    }
    Ok(())
}

pub(super) fn inode_extrefs(out: &mut dyn Write, data: &[u8], style: &Style) -> io::Result<()> {
    for found in view::inode_extrefs(data) {
        let (index, parent) = (found.index, found.parent);
        write!(out, "\t\tindex {index} parent {parent} namelen {} ", found.name.len())?;
        named(out, found.name, style)?;
    }
    Ok(())
}

fn type_name(file_type: u8) -> Option<&'static str> {
    Some(match file_type {
        file_type::REGULAR => "FILE",
        file_type::DIRECTORY => "DIR",
        file_type::CHARACTER => "CHRDEV",
        file_type::BLOCK => "BLKDEV",
        file_type::FIFO => "FIFO",
        file_type::SOCKET => "SOCK",
        file_type::SYMLINK => "SYMLINK",
        file_type::XATTR => "XATTR",
        _ => return None,
    })
}

/// Of a value, as much as of a name is printed.
pub(super) fn dir_entries(out: &mut dyn Write, data: &[u8], style: &Style) -> io::Result<()> {
    for entry in view::dir_entries(data) {
        write!(out, "\t\tlocation {} type ", KeyText(entry.location))?;
        match type_name(entry.file_type) {
            Some(name) => writeln!(out, "{name}")?,
            None => writeln!(out, "DIR_ITEM.{}", entry.file_type)?,
        }
        let (data_len, name_len) = (entry.data.len(), entry.name.len());
        writeln!(out, "\t\ttransid {} data_len {data_len} name_len {name_len}", entry.transid)?;
        write!(out, "\t\t")?;
        named(out, entry.name, style)?;
        if data_len > 0 {
            write!(out, "\t\tdata ")?;
            if style.hide_names {
                out.write_all(b"HIDDEN")?
            } else {
                text(out, &entry.data[..data_len.min(NAME_LEN_MAX)])?
            }
            writeln!(out)?;
        }
    }
    Ok(())
}

struct Compression(u8);

impl std::fmt::Display for Compression {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            0 => f.write_str("none"),
            1 => f.write_str("zlib"),
            2 => f.write_str("lzo"),
            3 => f.write_str("zstd"),
            other => write!(f, "UNKNOWN.{other}"),
        }
    }
}

pub(super) fn extent_data(out: &mut dyn Write, data: &[u8]) -> io::Result<()> {
    let Some(head) = FileExtentHead::of(data) else { return Ok(()) };
    let kind = match head.kind {
        FileExtentHead::INLINE => "inline",
        FileExtentHead::REGULAR => "regular",
        FileExtentHead::PREALLOC => "prealloc",
        _ => "unknown",
    };
    writeln!(out, "\t\tgeneration {} type {} ({kind})", head.generation, head.kind)?;
    if let Some(FileExtentItem::Inline { ram_bytes, compression, data, .. }) =
        FileExtentItem::read(data)
    {
        write!(out, "\t\tinline extent data size {} ram_bytes {ram_bytes} ", data.len())?;
        return writeln!(out, "compression {compression} ({})", Compression(compression));
    }
    let Some(FileExtent { head, tail }) = FileExtent::of(data) else { return Ok(()) };
    let FileExtentTail { disk_bytenr, disk_num_bytes, offset, num_bytes } = tail;
    if head.kind == FileExtentHead::PREALLOC {
        writeln!(out, "\t\tprealloc data disk byte {disk_bytenr} nr {disk_num_bytes}")?;
        return writeln!(out, "\t\tprealloc data offset {offset} nr {num_bytes}");
    }
    let FileExtentHead { ram_bytes, compression, .. } = *head;
    writeln!(out, "\t\textent data disk byte {disk_bytenr} nr {disk_num_bytes}")?;
    writeln!(out, "\t\textent data offset {offset} nr {num_bytes} ram {ram_bytes}")?;
    writeln!(out, "\t\textent compression {compression} ({})", Compression(compression))
}
