//! The superblock: where everything starts.

use zerocopy::little_endian::{U16, U32, U64};

use crate::item::DevItem;
use crate::layout::disk;

/// Bytes of a superblock.
pub const SUPERBLOCK_LEN: usize = 4096;
/// Where the copies are on each device, in bytes; the first is the primary.
pub const SUPERBLOCK_OFFSETS: [u64; 3] = [64 << 10, 64 << 20, 256 << 30];
/// `_BHRfS_M`.
pub const MAGIC: [u8; 8] = *b"_BHRfS_M";
/// Bytes of the system chunk array.
pub const SYS_CHUNK_ARRAY_LEN: usize = 2048;

disk!(
    /// One of the four backups of the tree roots.
    #[allow(missing_docs)]
    RootBackup, 168, {
        tree_root: U64,
        tree_root_gen: U64,
        chunk_root: U64,
        chunk_root_gen: U64,
        extent_root: U64,
        extent_root_gen: U64,
        fs_root: U64,
        fs_root_gen: U64,
        dev_root: U64,
        dev_root_gen: U64,
        csum_root: U64,
        csum_root_gen: U64,
        total_bytes: U64,
        bytes_used: U64,
        num_devices: U64,
        unused: [U64; 4],
        tree_root_level: u8,
        chunk_root_level: u8,
        extent_root_level: u8,
        fs_root_level: u8,
        dev_root_level: u8,
        csum_root_level: u8,
        unused_8: [u8; 10],
    }
);

disk!(
    /// The superblock, exactly as on the disk.
    Superblock, SUPERBLOCK_LEN, {
        /// Checksum of all that follows it.
        csum: [u8; 32],
        /// What users see as the filesystem's uuid.
        fsid: [u8; 16],
        /// This copy's offset on the device.
        bytenr: U64,
        /// See `super_flags`.
        flags: U64,
        /// [`MAGIC`].
        magic: [u8; 8],
        /// The last transaction.
        generation: U64,
        /// Address of the root tree's root.
        root: U64,
        /// Address of the chunk tree's root.
        chunk_root: U64,
        /// Address of the log root tree's root, 0 for none.
        log_root: U64,
        /// Unused, 0.
        log_root_transid: U64,
        /// Bytes of all devices.
        total_bytes: U64,
        /// Bytes allocated in all block groups.
        bytes_used: U64,
        /// 6.
        root_dir_objectid: U64,
        /// Devices.
        num_devices: U64,
        /// 4096.
        sectorsize: U32,
        /// 4 KiB to 64 KiB.
        nodesize: U32,
        /// Equal to `nodesize`.
        leafsize: U32,
        /// Equal to `sectorsize`.
        stripesize: U32,
        /// Bytes used in `sys_chunk_array`.
        sys_chunk_array_size: U32,
        /// Generation of the chunk tree's root.
        chunk_root_generation: U64,
        /// Features that may be ignored.
        compat_flags: U64,
        /// Features that may be ignored by who only reads.
        compat_ro_flags: U64,
        /// Features that must be known.
        incompat_flags: U64,
        /// 0 crc32c, 1 xxhash64, 2 sha256, 3 blake2b.
        csum_type: U16,
        /// Level of the root tree.
        root_level: u8,
        /// Level of the chunk tree.
        chunk_root_level: u8,
        /// Level of the log root tree.
        log_root_level: u8,
        /// This device's item.
        dev_item: DevItem,
        /// The label, ended by a zero byte.
        label: [u8; 256],
        /// The generation of the v1 space cache; `u64::MAX` when there is none.
        cache_generation: U64,
        /// The generation of the uuid tree.
        uuid_tree_generation: U64,
        /// The uuid that tree blocks carry, when the `METADATA_UUID` feature is on.
        metadata_uuid: [u8; 16],
        /// Unused.
        nr_global_roots: U64,
        /// Only with the remap tree feature.
        reserved: [U64; 27],
        /// Chunks of type SYSTEM: (key, chunk item) pairs.
        sys_chunk_array: [u8; SYS_CHUNK_ARRAY_LEN],
        /// Root backups, taken in turn.
        root_backups: [RootBackup; 4],
        /// Zeros.
        padding: [u8; 565],
    }
);

impl Superblock {
    /// The uuid that tree blocks carry.
    pub fn metadata_fsid(&self) -> [u8; 16] {
        if self.incompat_flags.get() & incompat::METADATA_UUID != 0 {
            self.metadata_uuid
        } else {
            self.fsid
        }
    }

    /// The label, without its padding.
    pub fn label(&self) -> &[u8] {
        let end = self.label.iter().position(|&byte| byte == 0).unwrap_or(self.label.len());
        &self.label[..end]
    }
}

/// Incompatible features.
#[allow(missing_docs)]
pub mod incompat {
    pub const MIXED_BACKREF: u64 = 1 << 0;
    pub const DEFAULT_SUBVOL: u64 = 1 << 1;
    pub const MIXED_GROUPS: u64 = 1 << 2;
    pub const COMPRESS_LZO: u64 = 1 << 3;
    pub const COMPRESS_ZSTD: u64 = 1 << 4;
    pub const BIG_METADATA: u64 = 1 << 5;
    pub const EXTENDED_IREF: u64 = 1 << 6;
    pub const RAID56: u64 = 1 << 7;
    pub const SKINNY_METADATA: u64 = 1 << 8;
    pub const NO_HOLES: u64 = 1 << 9;
    pub const METADATA_UUID: u64 = 1 << 10;
    pub const RAID1C34: u64 = 1 << 11;
    pub const ZONED: u64 = 1 << 12;
    pub const EXTENT_TREE_V2: u64 = 1 << 13;
    pub const RAID_STRIPE_TREE: u64 = 1 << 14;
    pub const SIMPLE_QUOTA: u64 = 1 << 16;
    pub const REMAP_TREE: u64 = 1 << 17;
}

/// Features that readers may ignore.
#[allow(missing_docs)]
pub mod compat_ro {
    pub const FREE_SPACE_TREE: u64 = 1 << 0;
    pub const FREE_SPACE_TREE_VALID: u64 = 1 << 1;
    pub const VERITY: u64 = 1 << 2;
    pub const BLOCK_GROUP_TREE: u64 = 1 << 3;
}

/// Flags of the superblock itself.
#[allow(missing_docs)]
pub mod super_flags {
    pub const WRITTEN: u64 = 1 << 0;
    pub const RELOC: u64 = 1 << 1;
    pub const ERROR: u64 = 1 << 2;
    pub const SEEDING: u64 = 1 << 32;
    pub const METADUMP: u64 = 1 << 33;
    pub const METADUMP_V2: u64 = 1 << 34;
    pub const CHANGING_FSID: u64 = 1 << 35;
    pub const CHANGING_FSID_V2: u64 = 1 << 36;
    pub const CHANGING_BG_TREE: u64 = 1 << 38;
    pub const CHANGING_DATA_CSUM: u64 = 1 << 39;
    pub const CHANGING_META_CSUM: u64 = 1 << 40;
    /// Those that a filesystem may have at rest. Linux mounts none with any other.
    pub const AT_REST: u64 = WRITTEN | RELOC | ERROR | SEEDING | METADUMP | METADUMP_V2;
}
