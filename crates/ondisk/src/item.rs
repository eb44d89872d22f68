//! Items: what leaves hold.
//!
//! Each structure is the exact layout on the disk, little endian and unaligned. Variable parts (names, stripes, inline
//! references) follow the structure and are read with [`split`].

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::key::DiskKey;
use crate::layout::disk;

/// The structure at the start of `data`, and what follows it; `None` when `data` is too short.
pub fn split<T: FromBytes + KnownLayout + Immutable + Unaligned>(
    data: &[u8],
) -> Option<(&T, &[u8])> {
    T::ref_from_prefix(data).ok()
}

disk!(
    /// A point in time: seconds since 1970 (signed) and nanoseconds.
    Timespec, 12, {
        /// Seconds, as a signed number.
        sec: U64,
        /// Nanoseconds, below 1,000,000,000.
        nsec: U32,
    }
);

disk!(
    /// The body of an `INODE_ITEM`.
    InodeItem, 160, {
        /// The transaction that made the inode.
        generation: U64,
        /// The transaction that last changed it.
        transid: U64,
        /// Bytes of the file; of a directory, twice the sum of its names' lengths.
        size: U64,
        /// Bytes of its extents on the disk, inline data included.
        nbytes: U64,
        /// Unused, 0.
        block_group: U64,
        /// Links.
        nlink: U32,
        /// Owner.
        uid: U32,
        /// Group.
        gid: U32,
        /// Type and permissions.
        mode: U32,
        /// Device number, for device nodes: Linux's 64-bit form of `(major << 20 | minor)`.
        rdev: U64,
        /// `inode_flags` below; the upper half are read-only compatible flags (verity).
        flags: U64,
        /// Changes since the inode was loaded (NFS).
        sequence: U64,
        /// Unused, 0.
        reserved: [U64; 4],
        /// Last access.
        atime: Timespec,
        /// Last change of the inode.
        ctime: Timespec,
        /// Last change of the content.
        mtime: Timespec,
        /// Creation.
        otime: Timespec,
    }
);

/// Flags of an inode.
#[allow(missing_docs)]
pub mod inode_flags {
    pub const NODATASUM: u64 = 1 << 0;
    pub const NODATACOW: u64 = 1 << 1;
    pub const READONLY: u64 = 1 << 2;
    pub const NOCOMPRESS: u64 = 1 << 3;
    pub const PREALLOC: u64 = 1 << 4;
    pub const SYNC: u64 = 1 << 5;
    pub const IMMUTABLE: u64 = 1 << 6;
    pub const APPEND: u64 = 1 << 7;
    pub const NODUMP: u64 = 1 << 8;
    pub const NOATIME: u64 = 1 << 9;
    pub const DIRSYNC: u64 = 1 << 10;
    pub const COMPRESS: u64 = 1 << 11;
    /// Of the inode in a root item: the item's own flags say something.
    pub const ROOT_ITEM_INIT: u64 = 1 << 31;
    /// Read-only compatible: fs-verity.
    pub const RO_VERITY: u64 = 1 << 32;
    /// All that the format has in the lower half.
    pub const KNOWN: u64 = NODATASUM
        | NODATACOW
        | READONLY
        | NOCOMPRESS
        | PREALLOC
        | SYNC
        | IMMUTABLE
        | APPEND
        | NODUMP
        | NOATIME
        | DIRSYNC
        | COMPRESS
        | ROOT_ITEM_INIT;
}

disk!(
    /// One name of an inode in the directory that is the key's offset; the name follows.
    InodeRef, 10, {
        /// The name's index in the directory.
        index: U64,
        /// Bytes of the name.
        name_len: U16,
    }
);

disk!(
    /// One name of an inode, when `InodeRef` items are full; the name follows.
    InodeExtref, 18, {
        /// The directory.
        parent: U64,
        /// The name's index in the directory.
        index: U64,
        /// Bytes of the name.
        name_len: U16,
    }
);

disk!(
    /// A directory entry (by hash or by index) or an xattr; name and data follow.
    DirItem, 30, {
        /// What the entry points to: an inode, or the root item of a subvolume.
        location: DiskKey,
        /// The transaction that made it.
        transid: U64,
        /// Bytes of data (xattr values; 0 for names).
        data_len: U16,
        /// Bytes of the name.
        name_len: U16,
        /// `file_type` below.
        file_type: u8,
    }
);

/// File types of directory entries.
#[allow(missing_docs)]
pub mod file_type {
    pub const UNKNOWN: u8 = 0;
    pub const REGULAR: u8 = 1;
    pub const DIRECTORY: u8 = 2;
    pub const CHARACTER: u8 = 3;
    pub const BLOCK: u8 = 4;
    pub const FIFO: u8 = 5;
    pub const SOCKET: u8 = 6;
    pub const SYMLINK: u8 = 7;
    pub const XATTR: u8 = 8;

    /// The type that entries have for an inode of this mode.
    pub fn of_mode(mode: u32) -> u8 {
        use super::mode;
        match mode & mode::TYPE_MASK {
            mode::REGULAR => REGULAR,
            mode::DIRECTORY => DIRECTORY,
            mode::CHARACTER => CHARACTER,
            mode::BLOCK => BLOCK,
            mode::FIFO => FIFO,
            mode::SOCKET => SOCKET,
            mode::SYMLINK => SYMLINK,
            _ => UNKNOWN,
        }
    }
}

/// Bits of an inode's mode, as `stat(2)` has them.
#[allow(missing_docs)]
pub mod mode {
    pub const TYPE_MASK: u32 = 0o170_000;
    pub const SOCKET: u32 = 0o140_000;
    pub const SYMLINK: u32 = 0o120_000;
    pub const REGULAR: u32 = 0o100_000;
    pub const BLOCK: u32 = 0o060_000;
    pub const DIRECTORY: u32 = 0o040_000;
    pub const CHARACTER: u32 = 0o020_000;
    pub const FIFO: u32 = 0o010_000;
    pub const SET_UID: u32 = 0o4000;
    pub const SET_GID: u32 = 0o2000;
    pub const SET_IDS: u32 = SET_UID | SET_GID;
    pub const STICKY: u32 = 0o1000;
    pub const GROUP_EXECUTE: u32 = 0o0010;
    pub const PERMISSIONS: u32 = 0o7777;
}

disk!(
    /// The head of an `EXTENT_DATA`; for inline extents the data follows, for others [`FileExtentTail`].
    FileExtentHead, 21, {
        /// The transaction that made it.
        generation: U64,
        /// Bytes of file content that the whole extent holds, uncompressed.
        ram_bytes: U64,
        /// 0 none, 1 zlib, 2 lzo, 3 zstd.
        compression: u8,
        /// Always 0.
        encryption: u8,
        /// Always 0.
        other_encoding: U16,
        /// 0 inline, 1 regular, 2 preallocated.
        kind: u8,
    }
);

impl FileExtentHead {
    /// Data in the item itself.
    pub const INLINE: u8 = 0;
    /// Data in a data extent (or a hole, when its address is 0).
    pub const REGULAR: u8 = 1;
    /// A data extent not written yet: reads as zeros.
    pub const PREALLOC: u8 = 2;
}

disk!(
    /// Where the data of a regular or preallocated extent is.
    FileExtentTail, 32, {
        /// Logical address of the extent; 0 for a hole.
        disk_bytenr: U64,
        /// Bytes on the disk.
        disk_num_bytes: U64,
        /// Where in the (uncompressed) extent this piece starts, in bytes.
        offset: U64,
        /// Bytes of the file that this piece covers.
        num_bytes: U64,
    }
);

disk!(
    /// A whole `EXTENT_DATA` that is not inline.
    FileExtent, 53, {
        /// The head.
        head: FileExtentHead,
        /// Where the data is.
        tail: FileExtentTail,
    }
);

disk!(
    /// The body of a `ROOT_ITEM`. Old filesystems hold only the first 239 bytes ([`RootItem::LEGACY_LEN`]).
    RootItem, 439, {
        /// The inode item of the root directory, kept for history's sake.
        inode: InodeItem,
        /// The transaction that last changed the tree.
        generation: U64,
        /// The top directory, 256 for subvolumes, 0 for other trees.
        root_dirid: U64,
        /// Address of the root block.
        bytenr: U64,
        /// Unused, 0.
        byte_limit: U64,
        /// Unused by today's kernels.
        bytes_used: U64,
        /// The transaction of the last snapshot taken of it.
        last_snapshot: U64,
        /// `root_flags` below.
        flags: U64,
        /// 1, or 0 when the tree is being deleted.
        refs: U32,
        /// How far the deletion has come.
        drop_progress: DiskKey,
        /// The level of `drop_progress`.
        drop_level: u8,
        /// The level of the root block.
        level: u8,
        /// Equal to `generation` when the fields below are valid.
        generation_v2: U64,
        /// The subvolume's uuid.
        uuid: [u8; 16],
        /// The uuid of what it is a snapshot of.
        parent_uuid: [u8; 16],
        /// The uuid of the subvolume it was received from.
        received_uuid: [u8; 16],
        /// The transaction of the last change of its content.
        ctransid: U64,
        /// The transaction that made it.
        otransid: U64,
        /// The transaction when it was sent.
        stransid: U64,
        /// The transaction when it was received.
        rtransid: U64,
        /// The time of `ctransid`.
        ctime: Timespec,
        /// The time of `otransid`.
        otime: Timespec,
        /// The time of `stransid`.
        stime: Timespec,
        /// The time of `rtransid`.
        rtime: Timespec,
        /// Unused, 0.
        reserved: [U64; 8],
    }
);

impl RootItem {
    /// Bytes of a root item written before Linux 3.6.
    pub const LEGACY_LEN: usize = 239;

    /// Reads a root item of either length. `None` when it is too short. Fields past `generation_v2` are zero when a
    /// kernel older than 3.6 wrote the item last.
    pub fn read(data: &[u8]) -> Option<RootItem> {
        if data.len() < Self::LEGACY_LEN {
            return None;
        }
        let mut whole = RootItem::default();
        let take = data.len().min(size_of::<RootItem>());
        let bytes = whole.as_mut_bytes();
        bytes[..take].copy_from_slice(&data[..take]);
        if whole.generation_v2 != whole.generation {
            let bytes = whole.as_mut_bytes();
            bytes[Self::LEGACY_LEN..].fill(0);
        }
        Some(whole)
    }

    /// The root item of a subvolume. Its read-only flag counts only where the item's inode says that there are flags
    /// (`ROOT_ITEM_INIT`): very old kernels left anything there, and so Linux clears it when it looks at a subvolume without
    /// (`btrfs_check_and_init_root_item`). The top-level subvolume of a new filesystem is without.
    pub fn of_subvolume(data: &[u8]) -> Option<RootItem> {
        let mut item = RootItem::read(data)?;
        let flags = item.inode.flags.get();
        if flags & inode_flags::ROOT_ITEM_INIT == 0 {
            item.inode.flags = (flags | inode_flags::ROOT_ITEM_INIT).into();
            item.flags = (item.flags.get() & !root_flags::READ_ONLY).into();
            item.byte_limit = 0.into();
        }
        Some(item)
    }
}

/// Flags of a root item.
#[allow(missing_docs)]
pub mod root_flags {
    pub const READ_ONLY: u64 = 1 << 0;
    /// The subvolume was deleted and is being dropped.
    pub const DEAD: u64 = 1 << 48;
}

disk!(
    /// A subvolume's name in its parent (`ROOT_REF`), or back (`ROOT_BACKREF`); the name follows.
    RootRef, 18, {
        /// The directory in the parent subvolume.
        dirid: U64,
        /// The index of the name in it.
        sequence: U64,
        /// Bytes of the name.
        name_len: U16,
    }
);

disk!(
    /// The head of an `EXTENT_ITEM` or `METADATA_ITEM`; inline references follow.
    ExtentItem, 24, {
        /// References in all.
        refs: U64,
        /// The transaction that allocated it.
        generation: U64,
        /// `extent_flags` below.
        flags: U64,
    }
);

/// Flags of an extent item.
#[allow(missing_docs)]
pub mod extent_flags {
    pub const DATA: u64 = 1 << 0;
    pub const TREE_BLOCK: u64 = 1 << 1;
    /// The block's references to its children are by its own address, not by its owner.
    pub const FULL_BACKREF: u64 = 1 << 8;
}

disk!(
    /// Follows [`ExtentItem`] in an `EXTENT_ITEM` of a tree block (filesystems without skinny metadata).
    TreeBlockInfo, 18, {
        /// The first key of the block.
        key: DiskKey,
        /// Its level.
        level: u8,
    }
);

disk!(
    /// A reference to a data extent from a file of a tree.
    ExtentDataRef, 28, {
        /// The tree.
        root: U64,
        /// The inode.
        objectid: U64,
        /// File offset minus extent offset, in bytes; may wrap below zero.
        offset: U64,
        /// How many.
        count: U32,
    }
);

disk!(
    /// How often a shared leaf refers to a data extent.
    SharedDataRef, 4, {
        /// How many.
        count: U32,
    }
);

disk!(
    /// The head of an inline reference: its kind (a key kind), then 8 bytes (tree, or parent block). For
    /// `EXTENT_DATA_REF` an [`ExtentDataRef`] starts where `offset` is; for `SHARED_DATA_REF` a [`SharedDataRef`] follows.
    ExtentInlineRef, 9, {
        /// `TREE_BLOCK_REF`, `SHARED_BLOCK_REF`, `EXTENT_DATA_REF`, `SHARED_DATA_REF` or `EXTENT_OWNER_REF`.
        kind: u8,
        /// A tree or the address of a parent block.
        offset: U64,
    }
);

disk!(
    /// An inline `SHARED_DATA_REF` as a whole.
    InlineSharedDataRef, 13, {
        /// The address of the leaf, after the kind.
        head: ExtentInlineRef,
        /// How often that leaf refers to the extent.
        count: U32,
    }
);

disk!(
    /// Body of a `BLOCK_GROUP_ITEM`.
    BlockGroupItem, 24, {
        /// Bytes allocated in it.
        used: U64,
        /// 256.
        chunk_objectid: U64,
        /// Type and profile, see `chunk_type`.
        flags: U64,
    }
);

/// Types and profiles of chunks and block groups.
#[allow(missing_docs)]
pub mod chunk_type {
    pub const DATA: u64 = 1 << 0;
    pub const SYSTEM: u64 = 1 << 1;
    pub const METADATA: u64 = 1 << 2;
    pub const RAID0: u64 = 1 << 3;
    pub const RAID1: u64 = 1 << 4;
    pub const DUP: u64 = 1 << 5;
    pub const RAID10: u64 = 1 << 6;
    pub const RAID5: u64 = 1 << 7;
    pub const RAID6: u64 = 1 << 8;
    pub const RAID1C3: u64 = 1 << 9;
    pub const RAID1C4: u64 = 1 << 10;
    pub const TYPE_MASK: u64 = DATA | SYSTEM | METADATA;
    pub const PROFILE_MASK: u64 = RAID0 | RAID1 | DUP | RAID10 | RAID5 | RAID6 | RAID1C3 | RAID1C4;
}

disk!(
    /// Body of a `FREE_SPACE_INFO`.
    FreeSpaceInfo, 8, {
        /// Free extents of the block group, however they are written down.
        extent_count: U32,
        /// Bit 0: bitmaps are used instead of extents.
        flags: U32,
    }
);

disk!(
    /// The head of a `CHUNK_ITEM`; [`StripeItem`]s follow.
    ChunkItem, 48, {
        /// Bytes of logical space.
        length: U64,
        /// The extent tree, 2.
        owner: U64,
        /// Always 64 KiB.
        stripe_len: U64,
        /// See `chunk_type`.
        chunk_type: U64,
        /// 64 KiB.
        io_align: U32,
        /// 64 KiB.
        io_width: U32,
        /// The sector size.
        sector_size: U32,
        /// Stripes.
        num_stripes: U16,
        /// 0 or 1; 2 for RAID10.
        sub_stripes: U16,
    }
);

disk!(
    /// One device's part of a chunk.
    StripeItem, 32, {
        /// The device.
        devid: U64,
        /// Bytes from its start.
        offset: U64,
        /// The device's uuid.
        dev_uuid: [u8; 16],
    }
);

disk!(
    /// Body of a `DEV_ITEM`, and part of the superblock.
    DevItem, 98, {
        /// The device's number, from 1.
        devid: U64,
        /// Its size in bytes.
        total_bytes: U64,
        /// Bytes taken by chunks.
        bytes_used: U64,
        /// Optimal alignment.
        io_align: U32,
        /// Optimal width.
        io_width: U32,
        /// The sector size.
        sector_size: U32,
        /// Unused, 0.
        dev_type: U64,
        /// Unused.
        generation: U64,
        /// Unused.
        start_offset: U64,
        /// Unused.
        dev_group: U32,
        /// Unused.
        seek_speed: u8,
        /// Unused.
        bandwidth: u8,
        /// The device's uuid.
        uuid: [u8; 16],
        /// The filesystem's metadata uuid.
        fsid: [u8; 16],
    }
);

disk!(
    /// Body of a `DEV_EXTENT`: a range of a device that a chunk uses.
    DevExtent, 48, {
        /// 3.
        chunk_tree: U64,
        /// 256.
        chunk_objectid: U64,
        /// Logical address of the chunk.
        chunk_offset: U64,
        /// Bytes.
        length: U64,
        /// The uuid of the chunk tree.
        chunk_tree_uuid: [u8; 16],
    }
);

disk!(
    /// Body of a `QGROUP_STATUS`.
    QgroupStatus, 32, {
        /// 1.
        version: U64,
        /// The transaction of the last update.
        generation: U64,
        /// See `qgroup_status_flags`.
        flags: U64,
        /// How far a rescan has come.
        rescan: U64,
    }
);

disk!(
    /// Body of a `QGROUP_STATUS` since there are simple quotas.
    SimpleStatus, 40, {
        /// What it was before.
        status: QgroupStatus,
        /// The generation from which on extents count for whoever allocates them.
        enable_gen: U64,
    }
);

/// Flags of a [`QgroupStatus`].
#[allow(missing_docs)]
pub mod qgroup_status_flags {
    pub const ON: u64 = 1 << 0;
    pub const RESCAN: u64 = 1 << 1;
    pub const INCONSISTENT: u64 = 1 << 2;
    pub const SIMPLE_MODE: u64 = 1 << 3;
}

disk!(
    /// Body of a `QGROUP_INFO`.
    QgroupInfo, 40, {
        /// The transaction of the last update.
        generation: U64,
        /// Bytes referenced.
        rfer: U64,
        /// The same, compressed.
        rfer_cmpr: U64,
        /// Bytes exclusive.
        excl: U64,
        /// The same, compressed.
        excl_cmpr: U64,
    }
);

disk!(
    /// Body of a `QGROUP_LIMIT`.
    QgroupLimit, 40, {
        /// Which limits are set.
        flags: U64,
        /// Most bytes referenced.
        max_rfer: U64,
        /// Most bytes exclusive.
        max_excl: U64,
        /// Reserved.
        rsv_rfer: U64,
        /// Reserved.
        rsv_excl: U64,
    }
);

disk!(
    /// Head of the v1 cache's description of a block group.
    FreeSpaceHeader, 41, {
        /// The inode item of the cache file.
        location: DiskKey,
        /// The transaction that wrote the cache.
        generation: U64,
        /// Entries.
        num_entries: U64,
        /// Bitmaps among them.
        num_bitmaps: U64,
    }
);

/// What a balance is about, in [`BalanceItem::flags`] (`BTRFS_BALANCE_*`).
pub mod balance_flags {
    /// Chunks of data.
    pub const DATA: u64 = 1;
    /// Chunks of the chunk tree.
    pub const SYSTEM: u64 = 1 << 1;
    /// Chunks of metadata.
    pub const METADATA: u64 = 1 << 2;
    /// There may be fewer copies of metadata after it.
    pub const FORCE: u64 = 1 << 3;
}

/// Which fields of [`BalanceArgs`] count (`BTRFS_BALANCE_ARGS_*`).
pub mod balance_args {
    /// `profiles`.
    pub const PROFILES: u64 = 1;
    /// `usage_min` and `usage_max` as one number: fewer percent than that.
    pub const USAGE: u64 = 1 << 1;
    /// `devid`.
    pub const DEVID: u64 = 1 << 2;
    /// `pstart` and `pend`.
    pub const DRANGE: u64 = 1 << 3;
    /// `vstart` and `vend`.
    pub const VRANGE: u64 = 1 << 4;
    /// `limit_min` and `limit_max` as one number: so many at most.
    pub const LIMIT: u64 = 1 << 5;
    /// `limit_min` and `limit_max`.
    pub const LIMIT_RANGE: u64 = 1 << 6;
    /// `stripes_min` and `stripes_max`.
    pub const STRIPES_RANGE: u64 = 1 << 7;
    /// `target`.
    pub const CONVERT: u64 = 1 << 8;
    /// With that: chunks that are so already are passed over.
    pub const SOFT: u64 = 1 << 9;
    /// `usage_min` and `usage_max`.
    pub const USAGE_RANGE: u64 = 1 << 10;
    /// All of them.
    pub const ALL: u64 = (1 << 11) - 1;
}

disk!(
    /// What a balance does with one type of chunk. Which fields count is said by `flags`.
    BalanceArgs, 136, {
        /// Profiles to take, see `chunk_type`.
        profiles: U64,
        /// Least use in percent (with `usage_max` as upper half: one 64-bit limit in the first version).
        usage_min: U32,
        /// Most use in percent.
        usage_max: U32,
        /// Only chunks with a stripe on this device.
        devid: U64,
        /// Start of a range of the device.
        pstart: U64,
        /// Its end.
        pend: U64,
        /// Start of a range of logical addresses.
        vstart: U64,
        /// Its end.
        vend: U64,
        /// The profile to convert to.
        target: U64,
        /// `BTRFS_BALANCE_ARGS_*`.
        flags: U64,
        /// Least number of chunks (with `limit_max` as upper half: one 64-bit limit in the first version).
        limit_min: U32,
        /// Most chunks.
        limit_max: U32,
        /// Least stripes of a chunk.
        stripes_min: U32,
        /// Most stripes.
        stripes_max: U32,
        /// Zeros.
        unused: [U64; 6],
    }
);

disk!(
    /// Body of the `TEMPORARY_ITEM` that a balance leaves behind until it is done.
    BalanceItem, 448, {
        /// Which types it works on (`BTRFS_BALANCE_DATA`…), and whether to resume with force.
        flags: U64,
        /// What to do with data, metadata and system chunks.
        parts: [BalanceArgs; 3],
        /// Zeros.
        unused: [U64; 4],
    }
);
