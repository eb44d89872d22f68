//! Items of subvolumes: inodes, their names, directory entries, xattrs and file extents.

use buttress_codec::crc32c::name_hash;

use super::leaf::Item;
use super::{Checked, ensure};
use crate::item::{
    FileExtent, FileExtentHead, InodeItem, InodeRef, file_type, inode_flags, mode, split,
};
use crate::key::{Key, kind, objectid};
use crate::view::{self, DirEntry, FileExtentItem};
use crate::{COMPRESSED_LEN_MAX, HEADER_LEN, ITEM_LEN, NAME_LEN_MAX};

const COMPRESSION_MAX: u8 = 3;
/// The type of encrypted names is the usual one with this bit.
const TYPE_ENCRYPTED: u8 = 0x80;

/// An item of an inode comes right after another item of the same inode, if anything is before it in the leaf. Only
/// subvolumes keep to that: in the root tree `mkfs` names the top directory without an inode item, and logs hold what
/// was logged.
fn same_inode(item: &Item<'_>) -> Checked {
    if !objectid::is_subvolume(item.root) {
        return Ok(());
    }
    if let Some((before, _)) = item.before {
        ensure!(
            before.objectid == item.key.objectid,
            "no inode item before it",
            before,
            format_args!("an item of inode {}", item.key.objectid)
        );
    }
    Ok(())
}

fn inode_number(item: &Item<'_>) -> Checked {
    let id = item.key.objectid;
    let known = (objectid::FIRST_FREE..=objectid::LAST_FREE).contains(&id)
        || matches!(id, objectid::ROOT_TREE_DIR | objectid::FREE_INO);
    ensure!(
        known,
        "invalid inode number",
        id,
        format_args!("{} to {}", objectid::FIRST_FREE, objectid::LAST_FREE)
    );
    Ok(())
}

pub(super) fn inode_item(item: &Item<'_>) -> Checked {
    inode_number(item)?;
    ensure!(item.key.offset == 0, "invalid key offset of an inode item", item.key.offset, 0);
    item.sized(size_of::<InodeItem>())?;
    let Some(inode) = InodeItem::of(item.data) else { return Ok(()) };
    item.age(inode.generation.get(), "inode generation from the future")?;
    item.age(inode.transid.get(), "inode transid from the future")?;
    let mode = inode.mode.get();
    ensure!(
        mode & !(mode::TYPE_MASK | mode::PERMISSIONS) == 0,
        "unknown bits in an inode's mode",
        format_args!("{mode:#o}"),
        "no bit above 0o177777"
    );
    ensure!(
        file_type::of_mode(mode) != file_type::UNKNOWN,
        "invalid file type in an inode's mode",
        format_args!("{mode:#o}"),
        "one of the seven file types"
    );
    if mode & mode::TYPE_MASK == mode::DIRECTORY {
        ensure!(inode.nlink.get() <= 1, "directory with several links", inode.nlink, "at most 1");
    }
    let flags = inode.flags.get() & 0xffff_ffff;
    ensure!(
        flags & !inode_flags::KNOWN == 0,
        "unknown inode flags",
        format_args!("{flags:#x}"),
        format_args!("bits of {:#x}", inode_flags::KNOWN)
    );
    Ok(())
}

pub(super) fn inode_ref(item: &Item<'_>) -> Checked {
    same_inode(item)?;
    let mut names = view::inode_refs(item.data);
    let least = size_of::<InodeRef>() + 1;
    ensure!(item.data.len() >= least, "inode ref without a name", item.data.len(), least);
    names.by_ref().for_each(drop);
    ensure!(names.rest().is_empty(), "inode ref cut off", names.rest().len(), 0);
    Ok(())
}

pub(super) fn inode_extref(item: &Item<'_>) -> Checked {
    same_inode(item)?;
    let mut names = view::inode_extrefs(item.data);
    ensure!(names.by_ref().count() > 0, "inode extref without a name", 0, "one or more");
    ensure!(names.rest().is_empty(), "inode extref cut off", names.rest().len(), 0);
    Ok(())
}

pub(super) fn dir_item(item: &Item<'_>) -> Checked {
    same_inode(item)?;
    if item.key.kind == kind::XATTR_ITEM {
        inode_number(item)?;
    }
    let mut entries = view::dir_entries(item.data);
    ensure!(!item.data.is_empty(), "dir item without an entry", 0, "one or more");
    for entry in entries.by_ref() {
        dir_entry(item, &entry)?;
    }
    ensure!(entries.rest().is_empty(), "dir entry cut off", entries.rest().len(), 0);
    Ok(())
}

fn dir_entry(item: &Item<'_>, entry: &DirEntry<'_>) -> Checked {
    let xattr = item.key.kind == kind::XATTR_ITEM;
    location(&entry.location, xattr)?;
    let file_type = entry.file_type & !TYPE_ENCRYPTED;
    ensure!(
        // Linux reads an entry of type 0, which is no type, and refuses to follow it alone.
        file_type <= file_type::XATTR && (file_type == file_type::XATTR) == xattr,
        "invalid type of a dir entry",
        entry.file_type,
        if xattr { "8, an xattr" } else { "0 to 7, a name" }
    );
    let name_len = entry.name.len();
    ensure!(
        name_len <= NAME_LEN_MAX,
        "name too long",
        name_len,
        format_args!("at most {NAME_LEN_MAX}")
    );
    let most = (item.gate.nodesize as usize)
        .saturating_sub(HEADER_LEN + ITEM_LEN + size_of::<crate::item::DirItem>());
    ensure!(
        name_len + entry.data.len() <= most,
        "name and data too long",
        name_len + entry.data.len(),
        format_args!("at most {most}")
    );
    ensure!(
        xattr || entry.data.is_empty(),
        "dir entry with data",
        entry.data.len(),
        "0, only xattrs have data"
    );
    if item.key.kind != kind::DIR_INDEX && !item.gate.metadump {
        let hash = name_hash(entry.name);
        ensure!(item.key.offset == hash, "name does not match its hash", item.key.offset, hash);
    }
    Ok(())
}

fn location(location: &Key, xattr: bool) -> Checked {
    let known = if xattr {
        *location == Key::MIN
    } else {
        matches!(location.kind, kind::INODE_ITEM | kind::ROOT_ITEM)
    };
    ensure!(
        known,
        "invalid location of a dir entry",
        location,
        if xattr { "(0 0 0)" } else { "an inode or a root item" }
    );
    if location.kind == kind::ROOT_ITEM {
        ensure!(
            super::is_subvolume(location.objectid),
            "dir entry points to a tree that is no subvolume",
            location,
            "a subvolume"
        );
    }
    if location.kind == kind::INODE_ITEM {
        ensure!(location.offset == 0, "invalid inode key in a dir entry", location, "offset 0");
    }
    Ok(())
}

pub(super) fn extent_data(item: &Item<'_>) -> Checked {
    item.aligned(item.key.offset, "unaligned file offset")?;
    same_inode(item)?;
    let Some((head, content)) = split::<FileExtentHead>(item.data) else {
        ensure!(false, "file extent too short", item.data.len(), size_of::<FileExtentHead>());
        return Ok(());
    };
    ensure!(head.kind <= FileExtentHead::PREALLOC, "invalid file extent type", head.kind, "0 to 2");
    ensure!(
        head.compression <= COMPRESSION_MAX,
        "unknown compression",
        head.compression,
        format_args!("at most {COMPRESSION_MAX}")
    );
    ensure!(head.encryption == 0, "encrypted file extent", head.encryption, 0);
    if head.kind == FileExtentHead::INLINE {
        inline_extent(item, head, content)?;
    } else {
        item.sized(size_of::<FileExtent>())?;
        regular_extent(item)?;
    }
    let Some((key, data)) = item.sibling() else { return Ok(()) };
    let end = FileExtentItem::read(data).map_or(0, |extent| extent.len_bytes());
    let end = key.offset.saturating_add(end);
    ensure!(
        end <= item.key.offset,
        "file extent overlaps the one before",
        item.key.offset,
        format_args!("at least {end}")
    );
    Ok(())
}

fn inline_extent(item: &Item<'_>, head: &FileExtentHead, content: &[u8]) -> Checked {
    ensure!(item.key.offset == 0, "inline extent not at the start", item.key.offset, 0);
    let ram_bytes = head.ram_bytes.get();
    if head.compression == 0 {
        ensure!(
            ram_bytes == content.len() as u64,
            "wrong length of an inline extent",
            ram_bytes,
            content.len()
        );
    }
    ensure!(
        ram_bytes <= COMPRESSED_LEN_MAX,
        "inline extent too long",
        ram_bytes,
        format_args!("at most {COMPRESSED_LEN_MAX}")
    );
    Ok(())
}

fn regular_extent(item: &Item<'_>) -> Checked {
    let Some(FileExtentItem::Regular {
        ram_bytes,
        compression,
        disk_bytenr,
        disk_num_bytes,
        offset,
        num_bytes,
        ..
    }) = FileExtentItem::read(item.data)
    else {
        return Ok(());
    };
    item.aligned(ram_bytes, "unaligned ram_bytes of a file extent")?;
    item.aligned(disk_bytenr, "unaligned disk_bytenr of a file extent")?;
    item.aligned(disk_num_bytes, "unaligned disk_num_bytes of a file extent")?;
    item.aligned(offset, "unaligned offset of a file extent")?;
    item.aligned(num_bytes, "unaligned num_bytes of a file extent")?;
    for (start, len) in
        [(item.key.offset, num_bytes), (disk_bytenr, disk_num_bytes), (offset, num_bytes)]
    {
        ensure!(
            start.checked_add(len).is_some(),
            "file extent overflows",
            format_args!("{start}+{len}"),
            "below 2^64"
        );
    }
    if disk_bytenr != 0 && compression != 0 {
        ensure!(
            ram_bytes <= COMPRESSED_LEN_MAX && disk_num_bytes <= COMPRESSED_LEN_MAX,
            "compressed extent too long",
            format_args!("{ram_bytes} in {disk_num_bytes}"),
            format_args!("at most {COMPRESSED_LEN_MAX}")
        );
        ensure!(
            offset.saturating_add(num_bytes) <= ram_bytes,
            "file extent reaches past its compressed data",
            offset.saturating_add(num_bytes),
            format_args!("at most {ram_bytes}")
        );
    }
    Ok(())
}
