//! Keys: what every tree is sorted by.

use std::fmt;

use zerocopy::little_endian::U64;

use crate::layout::disk;

/// A key of a tree, ordered by object id, then item kind, then offset.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    /// What the item belongs to: an inode, a tree, a logical address…
    pub objectid: u64,
    /// The kind of item, one of [`kind`].
    pub kind: u8,
    /// Its meaning depends on the kind.
    pub offset: u64,
}

impl Key {
    /// The smallest key.
    pub const MIN: Key = Key::new(0, 0, 0);
    /// The largest key.
    pub const MAX: Key = Key::new(u64::MAX, u8::MAX, u64::MAX);

    /// A key from its parts.
    pub const fn new(objectid: u64, kind: u8, offset: u64) -> Key {
        Key { objectid, kind, offset }
    }

    /// The key right after this one; [`Key::MAX`] stays itself.
    pub fn next(self) -> Key {
        if self.offset < u64::MAX {
            Key { offset: self.offset + 1, ..self }
        } else if self.kind < u8::MAX {
            Key { objectid: self.objectid, kind: self.kind + 1, offset: 0 }
        } else if self.objectid < u64::MAX {
            Key { objectid: self.objectid + 1, kind: 0, offset: 0 }
        } else {
            self
        }
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "({} {} {})", self.objectid, self.kind, self.offset)
    }
}

disk!(
    /// A key as it stands on the disk: 17 bytes.
    #[derive(Hash)]
    DiskKey, 17, {
        /// See [`Key::objectid`].
        objectid: U64,
        /// See [`Key::kind`].
        kind: u8,
        /// See [`Key::offset`].
        offset: U64,
    }
);

impl From<Key> for DiskKey {
    fn from(key: Key) -> DiskKey {
        DiskKey { objectid: key.objectid.into(), kind: key.kind, offset: key.offset.into() }
    }
}

impl From<DiskKey> for Key {
    fn from(key: DiskKey) -> Key {
        Key { objectid: key.objectid.get(), kind: key.kind, offset: key.offset.get() }
    }
}

/// Item kinds (`BTRFS_*_KEY` of `btrfs_tree.h`).
#[allow(missing_docs)]
pub mod kind {
    pub const INODE_ITEM: u8 = 1;
    pub const INODE_REF: u8 = 12;
    pub const INODE_EXTREF: u8 = 13;
    pub const XATTR_ITEM: u8 = 24;
    pub const VERITY_DESC_ITEM: u8 = 36;
    pub const VERITY_MERKLE_ITEM: u8 = 37;
    pub const ORPHAN_ITEM: u8 = 48;
    pub const DIR_LOG_ITEM: u8 = 60;
    pub const DIR_LOG_INDEX: u8 = 72;
    pub const DIR_ITEM: u8 = 84;
    pub const DIR_INDEX: u8 = 96;
    pub const EXTENT_DATA: u8 = 108;
    pub const EXTENT_CSUM: u8 = 128;
    pub const ROOT_ITEM: u8 = 132;
    pub const ROOT_BACKREF: u8 = 144;
    pub const ROOT_REF: u8 = 156;
    pub const EXTENT_ITEM: u8 = 168;
    pub const METADATA_ITEM: u8 = 169;
    pub const EXTENT_OWNER_REF: u8 = 172;
    pub const TREE_BLOCK_REF: u8 = 176;
    pub const EXTENT_DATA_REF: u8 = 178;
    pub const SHARED_BLOCK_REF: u8 = 182;
    pub const SHARED_DATA_REF: u8 = 184;
    pub const BLOCK_GROUP_ITEM: u8 = 192;
    pub const FREE_SPACE_INFO: u8 = 198;
    pub const FREE_SPACE_EXTENT: u8 = 199;
    pub const FREE_SPACE_BITMAP: u8 = 200;
    pub const DEV_EXTENT: u8 = 204;
    pub const DEV_ITEM: u8 = 216;
    pub const CHUNK_ITEM: u8 = 228;
    pub const RAID_STRIPE: u8 = 230;
    pub const QGROUP_STATUS: u8 = 240;
    pub const QGROUP_INFO: u8 = 242;
    pub const QGROUP_LIMIT: u8 = 244;
    pub const QGROUP_RELATION: u8 = 246;
    pub const TEMPORARY_ITEM: u8 = 248;
    pub const PERSISTENT_ITEM: u8 = 249;
    pub const DEV_REPLACE: u8 = 250;
    pub const UUID_SUBVOL: u8 = 251;
    pub const UUID_RECEIVED_SUBVOL: u8 = 252;
    pub const STRING_ITEM: u8 = 253;
}

/// Object ids with a meaning of their own.
#[allow(missing_docs)]
pub mod objectid {
    pub const ROOT_TREE: u64 = 1;
    pub const EXTENT_TREE: u64 = 2;
    pub const CHUNK_TREE: u64 = 3;
    pub const DEV_TREE: u64 = 4;
    pub const FS_TREE: u64 = 5;
    pub const ROOT_TREE_DIR: u64 = 6;
    pub const CSUM_TREE: u64 = 7;
    pub const QUOTA_TREE: u64 = 8;
    pub const UUID_TREE: u64 = 9;
    pub const FREE_SPACE_TREE: u64 = 10;
    pub const BLOCK_GROUP_TREE: u64 = 11;
    pub const RAID_STRIPE_TREE: u64 = 12;
    /// The id of the only device item object.
    pub const DEV_ITEMS: u64 = 1;
    /// The object id of all chunk items.
    pub const FIRST_CHUNK_TREE: u64 = 256;
    /// The first inode of a subvolume (its top directory), and the first subvolume id that users make.
    pub const FIRST_FREE: u64 = 256;
    /// The last inode number and subvolume id.
    pub const LAST_FREE: u64 = -256i64 as u64;
    pub const DEV_STATS: u64 = 0;
    pub const BALANCE: u64 = -4i64 as u64;
    pub const ORPHAN: u64 = -5i64 as u64;
    pub const TREE_LOG: u64 = -6i64 as u64;
    pub const TREE_LOG_FIXUP: u64 = -7i64 as u64;
    pub const TREE_RELOC: u64 = -8i64 as u64;
    pub const DATA_RELOC_TREE: u64 = -9i64 as u64;
    pub const EXTENT_CSUM: u64 = -10i64 as u64;
    pub const FREE_SPACE: u64 = -11i64 as u64;
    pub const FREE_INO: u64 = -12i64 as u64;
    pub const MULTIPLE: u64 = -255i64 as u64;

    /// Whether a tree id belongs to a subvolume or snapshot (or the top one).
    pub const fn is_subvolume(id: u64) -> bool {
        id == FS_TREE || (id >= FIRST_FREE && id <= LAST_FREE)
    }
}
