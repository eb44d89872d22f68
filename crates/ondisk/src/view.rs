//! Views: the variable parts of items, read without copying.
//!
//! The gate has checked every item of a [`crate::TreeBlock`], but views are also used on bytes that no gate has seen
//! (damaged blocks that a tool prints or rescues from). So none of them fails or panics: an iterator ends early and a
//! function returns `None` where the bytes do not make sense.

use crate::item::{
    ChunkItem, DirItem, ExtentDataRef, ExtentInlineRef, ExtentItem, FileExtentHead, FileExtentTail,
    InlineSharedDataRef, InodeExtref, InodeRef, RootRef, SharedDataRef, StripeItem, TreeBlockInfo,
    extent_flags, split,
};
use crate::key::{Key, kind};
use crate::{HEADER_LEN, ITEM_LEN};
use buttress_codec::crc32c::extent_data_ref_hash;
use zerocopy::FromBytes;

/// The first `len` bytes of `data` and the rest; `None` when there are fewer.
fn cut(data: &[u8], len: usize) -> Option<(&[u8], &[u8])> {
    data.split_at_checked(len)
}

/// Whether bytes can be the name of a file: what is not could lead out of the directory it is in, wherever it is used as one.
pub fn is_name(name: &[u8]) -> bool {
    !matches!(name, b"" | b"." | b"..") && !has_separator(name)
}

/// Whether a byte is in it that no name has. Names are short: to look at all of it, some bytes at a time, takes less than to stop in between.
pub fn has_separator(name: &[u8]) -> bool {
    name.iter().fold(false, |found, &byte| found | (byte == b'/') | (byte == 0))
}

/// A directory entry, or an extended attribute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirEntry<'a> {
    /// An inode, or the root item of a subvolume; zero for an xattr.
    pub location: Key,
    /// The transaction that made it.
    pub transid: u64,
    /// One of [`crate::item::file_type`].
    pub file_type: u8,
    /// The name, 1 to 255 bytes.
    pub name: &'a [u8],
    /// The value of an xattr; empty for names.
    pub data: &'a [u8],
}

/// Iterator over the entries of one `DIR_ITEM`, `DIR_INDEX` or `XATTR_ITEM`.
#[derive(Clone, Debug)]
pub struct DirEntries<'a>(&'a [u8]);

/// The entries of a `DIR_ITEM`, `DIR_INDEX` or `XATTR_ITEM` (several when hashes collide).
pub fn dir_entries(data: &[u8]) -> DirEntries<'_> {
    DirEntries(data)
}

impl<'a> DirEntries<'a> {
    /// The bytes not read yet: not empty at the end means that the last entry was cut off.
    pub fn rest(&self) -> &'a [u8] {
        self.0
    }
}

impl<'a> Iterator for DirEntries<'a> {
    type Item = DirEntry<'a>;

    fn next(&mut self) -> Option<DirEntry<'a>> {
        let (head, rest) = split::<DirItem>(self.0)?;
        let (name, rest) = cut(rest, head.name_len.get().into())?;
        let (data, rest) = cut(rest, head.data_len.get().into())?;
        self.0 = rest;
        let (location, transid) = (head.location.into(), head.transid.get());
        Some(DirEntry { location, transid, file_type: head.file_type, name, data })
    }
}

/// A name of an inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NameRef<'a> {
    /// The name's index in its directory.
    pub index: u64,
    /// The name.
    pub name: &'a [u8],
}

/// Iterator over the names in one `INODE_REF`.
#[derive(Clone, Debug)]
pub struct InodeRefs<'a>(&'a [u8]);

/// The names in an `INODE_REF`; their directory is the key's offset.
pub fn inode_refs(data: &[u8]) -> InodeRefs<'_> {
    InodeRefs(data)
}

impl<'a> InodeRefs<'a> {
    /// The bytes not read yet.
    pub fn rest(&self) -> &'a [u8] {
        self.0
    }
}

impl<'a> Iterator for InodeRefs<'a> {
    type Item = NameRef<'a>;

    fn next(&mut self) -> Option<NameRef<'a>> {
        let (head, rest) = split::<InodeRef>(self.0)?;
        let (name, rest) = cut(rest, head.name_len.get().into())?;
        self.0 = rest;
        Some(NameRef { index: head.index.get(), name })
    }
}

/// A name of an inode, with its directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExtNameRef<'a> {
    /// The directory.
    pub parent: u64,
    /// The name's index in it.
    pub index: u64,
    /// The name.
    pub name: &'a [u8],
}

/// Iterator over the names in one `INODE_EXTREF`.
#[derive(Clone, Debug)]
pub struct InodeExtrefs<'a>(&'a [u8]);

/// The names in an `INODE_EXTREF`.
pub fn inode_extrefs(data: &[u8]) -> InodeExtrefs<'_> {
    InodeExtrefs(data)
}

impl<'a> InodeExtrefs<'a> {
    /// The bytes not read yet.
    pub fn rest(&self) -> &'a [u8] {
        self.0
    }
}

impl<'a> Iterator for InodeExtrefs<'a> {
    type Item = ExtNameRef<'a>;

    fn next(&mut self) -> Option<ExtNameRef<'a>> {
        let (head, rest) = split::<InodeExtref>(self.0)?;
        let (name, rest) = cut(rest, head.name_len.get().into())?;
        self.0 = rest;
        Some(ExtNameRef { parent: head.parent.get(), index: head.index.get(), name })
    }
}

/// A reference inside an extent item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InlineRef {
    /// A tree refers to a tree block.
    TreeBlock {
        /// The tree.
        root: u64,
    },
    /// A tree block refers to a tree block.
    SharedBlock {
        /// The address of the parent.
        parent: u64,
    },
    /// A file of a tree refers to a data extent.
    ExtentData {
        /// The tree.
        root: u64,
        /// The inode.
        objectid: u64,
        /// File offset minus extent offset; may wrap below zero.
        offset: u64,
        /// How many such references.
        count: u32,
    },
    /// A leaf refers to a data extent.
    SharedData {
        /// The address of the leaf.
        parent: u64,
        /// How many such references.
        count: u32,
    },
    /// The tree that is charged for the extent (simple quotas); counts for no reference.
    Owner {
        /// The tree.
        root: u64,
    },
}

impl InlineRef {
    /// The key kind of the reference.
    pub fn kind(&self) -> u8 {
        match self {
            InlineRef::TreeBlock { .. } => kind::TREE_BLOCK_REF,
            InlineRef::SharedBlock { .. } => kind::SHARED_BLOCK_REF,
            InlineRef::ExtentData { .. } => kind::EXTENT_DATA_REF,
            InlineRef::SharedData { .. } => kind::SHARED_DATA_REF,
            InlineRef::Owner { .. } => kind::EXTENT_OWNER_REF,
        }
    }

    /// What orders references of one kind within an extent item, largest first: the tree or the parent, or the hash
    /// of tree, inode and offset.
    pub fn rank(&self) -> u64 {
        match *self {
            InlineRef::TreeBlock { root } | InlineRef::Owner { root } => root,
            InlineRef::SharedBlock { parent } | InlineRef::SharedData { parent, .. } => parent,
            InlineRef::ExtentData { root, objectid, offset, .. } => {
                extent_data_ref_hash(root, objectid, offset)
            }
        }
    }

    /// How many references it stands for.
    pub fn count(&self) -> u64 {
        match self {
            InlineRef::TreeBlock { .. } | InlineRef::SharedBlock { .. } => 1,
            InlineRef::ExtentData { count, .. } | InlineRef::SharedData { count, .. } => {
                u64::from(*count)
            }
            InlineRef::Owner { .. } => 0,
        }
    }
}

/// Iterator over the inline references of an extent item.
#[derive(Clone, Debug)]
pub struct InlineRefs<'a>(&'a [u8]);

impl<'a> InlineRefs<'a> {
    /// The bytes not read yet.
    pub fn rest(&self) -> &'a [u8] {
        self.0
    }

    /// The references by leaves that come next, all in a row: an extent that snapshots share has hundreds, and nothing is to be found out about each
    /// to come to the next one. [`InlineRefs::skip_shared`] passes them.
    pub fn next_shared(&self) -> &'a [InlineSharedDataRef] {
        let fit = self.0.len() / size_of::<InlineSharedDataRef>();
        let all = <[InlineSharedDataRef]>::ref_from_prefix_with_elems(self.0, fit);
        let all = all.map_or(&[][..], |(all, _)| all);
        let end = all.iter().position(|one| one.head.kind != kind::SHARED_DATA_REF);
        &all[..end.unwrap_or(all.len())]
    }

    /// Passes so many of them.
    pub fn skip_shared(&mut self, count: usize) {
        self.0 = self.0.get(count * size_of::<InlineSharedDataRef>()..).unwrap_or_default();
    }
}

impl Iterator for InlineRefs<'_> {
    type Item = InlineRef;

    fn next(&mut self) -> Option<InlineRef> {
        let (head, tail) = split::<ExtentInlineRef>(self.0)?;
        let word = head.offset.get();
        let (found, rest) = match head.kind {
            kind::TREE_BLOCK_REF => (InlineRef::TreeBlock { root: word }, tail),
            kind::SHARED_BLOCK_REF => (InlineRef::SharedBlock { parent: word }, tail),
            kind::EXTENT_OWNER_REF => (InlineRef::Owner { root: word }, tail),
            kind::EXTENT_DATA_REF => {
                let (data, rest) = split::<ExtentDataRef>(self.0.get(1..)?)?;
                (extent_data_ref(data), rest)
            }
            kind::SHARED_DATA_REF => {
                let (data, rest) = split::<SharedDataRef>(tail)?;
                (InlineRef::SharedData { parent: word, count: data.count.get() }, rest)
            }
            _ => return None,
        };
        self.0 = rest;
        Some(found)
    }
}

fn extent_data_ref(data: &ExtentDataRef) -> InlineRef {
    InlineRef::ExtentData {
        root: data.root.get(),
        objectid: data.objectid.get(),
        offset: data.offset.get(),
        count: data.count.get(),
    }
}

/// Bytes that the item of an extent comes to at most by a further inline reference, by the limit that every kernel keeps
/// (`BTRFS_MAX_EXTENT_ITEM_SIZE`); beyond it, references have items of their own.
pub const fn extent_item_max(nodesize: usize) -> usize {
    ((nodesize - HEADER_LEN) >> 4) - ITEM_LEN
}

/// The parts of an `EXTENT_ITEM` or `METADATA_ITEM`: its head, the block info that follows it in an `EXTENT_ITEM` of a
/// tree block, and its inline references.
pub fn inline_refs<'a>(
    key: &Key,
    data: &'a [u8],
) -> Option<(ExtentItem, Option<TreeBlockInfo>, InlineRefs<'a>)> {
    let (head, rest) = split::<ExtentItem>(data)?;
    if key.kind == kind::EXTENT_ITEM && head.flags.get() & extent_flags::TREE_BLOCK != 0 {
        let (info, rest) = split::<TreeBlockInfo>(rest)?;
        return Some((*head, Some(*info), InlineRefs(rest)));
    }
    Some((*head, None, InlineRefs(rest)))
}

/// The reference that an item of its own (`TREE_BLOCK_REF` … `SHARED_DATA_REF`) holds.
pub fn keyed_ref(key: &Key, data: &[u8]) -> Option<InlineRef> {
    Some(match key.kind {
        kind::TREE_BLOCK_REF => InlineRef::TreeBlock { root: key.offset },
        kind::SHARED_BLOCK_REF => InlineRef::SharedBlock { parent: key.offset },
        kind::EXTENT_DATA_REF => extent_data_ref(ExtentDataRef::of(data)?),
        kind::SHARED_DATA_REF => InlineRef::SharedData {
            parent: key.offset,
            count: SharedDataRef::of(data)?.count.get(),
        },
        _ => return None,
    })
}

/// An `EXTENT_DATA`, decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileExtentItem<'a> {
    /// Data in the item itself.
    Inline {
        /// The transaction that made it.
        generation: u64,
        /// Bytes of file content, uncompressed.
        ram_bytes: u64,
        /// 0 none, 1 zlib, 2 lzo, 3 zstd.
        compression: u8,
        /// The content, compressed or not.
        data: &'a [u8],
    },
    /// A data extent, a preallocated one, or a hole.
    Regular {
        /// The transaction that made it.
        generation: u64,
        /// Bytes of file content that the whole extent holds, uncompressed.
        ram_bytes: u64,
        /// 0 none, 1 zlib, 2 lzo, 3 zstd.
        compression: u8,
        /// Whether it is preallocated: reads as zeros.
        prealloc: bool,
        /// Logical address of the extent, 0 for a hole.
        disk_bytenr: u64,
        /// Bytes on the disk.
        disk_num_bytes: u64,
        /// Where in the (uncompressed) extent this piece starts.
        offset: u64,
        /// Bytes of the file that it covers.
        num_bytes: u64,
    },
}

impl<'a> FileExtentItem<'a> {
    /// Reads the body of an `EXTENT_DATA`; `None` when it is too short or of no known kind.
    pub fn read(data: &'a [u8]) -> Option<FileExtentItem<'a>> {
        let (head, rest) = split::<FileExtentHead>(data)?;
        let (generation, ram_bytes) = (head.generation.get(), head.ram_bytes.get());
        let compression = head.compression;
        if head.kind == FileExtentHead::INLINE {
            return Some(FileExtentItem::Inline { generation, ram_bytes, compression, data: rest });
        }
        if head.kind != FileExtentHead::REGULAR && head.kind != FileExtentHead::PREALLOC {
            return None;
        }
        let tail = FileExtentTail::of(rest)?;
        Some(FileExtentItem::Regular {
            generation,
            ram_bytes,
            compression,
            prealloc: head.kind == FileExtentHead::PREALLOC,
            disk_bytenr: tail.disk_bytenr.get(),
            disk_num_bytes: tail.disk_num_bytes.get(),
            offset: tail.offset.get(),
            num_bytes: tail.num_bytes.get(),
        })
    }

    /// Bytes of the file that it covers (for inline data: up to the end of the file).
    pub fn len_bytes(&self) -> u64 {
        match self {
            FileExtentItem::Inline { ram_bytes, .. } => *ram_bytes,
            FileExtentItem::Regular { num_bytes, .. } => *num_bytes,
        }
    }
}

/// A `ROOT_REF` or `ROOT_BACKREF`: where a subvolume is named, and its name.
pub fn root_ref(data: &[u8]) -> Option<(RootRef, &[u8])> {
    let (head, rest) = split::<RootRef>(data)?;
    let (name, _) = cut(rest, head.name_len.get().into())?;
    Some((*head, name))
}

/// A `CHUNK_ITEM` and its stripes; `None` when they do not fit in `data`.
pub fn chunk(data: &[u8]) -> Option<(ChunkItem, &[StripeItem])> {
    let (head, rest) = split::<ChunkItem>(data)?;
    let stripes = <[StripeItem]>::ref_from_prefix_with_elems(rest, head.num_stripes.get().into());
    Some((*head, stripes.ok()?.0))
}

/// Iterator over (key, chunk, stripes) of a superblock's system chunk array.
#[derive(Clone, Debug)]
pub struct SysChunks<'a>(&'a [u8]);

/// The chunks in a superblock's system chunk array.
pub fn sys_chunks(sb: &crate::Superblock) -> SysChunks<'_> {
    let len = (sb.sys_chunk_array_size.get() as usize).min(sb.sys_chunk_array.len());
    SysChunks(&sb.sys_chunk_array[..len])
}

impl<'a> SysChunks<'a> {
    /// The bytes not read yet.
    pub fn rest(&self) -> &'a [u8] {
        self.0
    }
}

impl<'a> Iterator for SysChunks<'a> {
    type Item = (Key, ChunkItem, &'a [StripeItem]);

    fn next(&mut self) -> Option<Self::Item> {
        let (key, rest) = split::<crate::key::DiskKey>(self.0)?;
        let (head, stripes) = chunk(rest)?;
        let len = size_of::<ChunkItem>() + size_of_val(stripes);
        self.0 = rest.get(len..)?;
        Some(((*key).into(), head, stripes))
    }
}
