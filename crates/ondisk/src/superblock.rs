//! The superblock: where everything starts.

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::item::DevItem;

/// Bytes of a superblock.
pub const SUPERBLOCK_LEN: usize = 4096;
/// Where the copies are on each device, in bytes; the first is the primary.
pub const SUPERBLOCK_OFFSETS: [u64; 3] = [64 << 10, 64 << 20, 256 << 30];
/// `_BHRfS_M`.
pub const MAGIC: [u8; 8] = *b"_BHRfS_M";
/// Bytes of the system chunk array.
pub const SYS_CHUNK_ARRAY_LEN: usize = 2048;

/// One of the four backups of the tree roots.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
#[allow(missing_docs)]
pub struct RootBackup {
    pub tree_root: U64,
    pub tree_root_gen: U64,
    pub chunk_root: U64,
    pub chunk_root_gen: U64,
    pub extent_root: U64,
    pub extent_root_gen: U64,
    pub fs_root: U64,
    pub fs_root_gen: U64,
    pub dev_root: U64,
    pub dev_root_gen: U64,
    pub csum_root: U64,
    pub csum_root_gen: U64,
    pub total_bytes: U64,
    pub bytes_used: U64,
    pub num_devices: U64,
    pub unused: [U64; 4],
    pub tree_root_level: u8,
    pub chunk_root_level: u8,
    pub extent_root_level: u8,
    pub fs_root_level: u8,
    pub dev_root_level: u8,
    pub csum_root_level: u8,
    pub unused_8: [u8; 10],
}
const _: () = assert!(size_of::<RootBackup>() == 168);

/// The superblock, exactly as on the disk.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct Superblock {
    /// Checksum of all that follows it.
    pub csum: [u8; 32],
    /// What users see as the filesystem's uuid.
    pub fsid: [u8; 16],
    /// This copy's offset on the device.
    pub bytenr: U64,
    /// See `super_flags`.
    pub flags: U64,
    /// [`MAGIC`].
    pub magic: [u8; 8],
    /// The last transaction.
    pub generation: U64,
    /// Address of the root tree's root.
    pub root: U64,
    /// Address of the chunk tree's root.
    pub chunk_root: U64,
    /// Address of the log root tree's root, 0 for none.
    pub log_root: U64,
    /// Unused, 0.
    pub log_root_transid: U64,
    /// Bytes of all devices.
    pub total_bytes: U64,
    /// Bytes allocated in all block groups.
    pub bytes_used: U64,
    /// 6.
    pub root_dir_objectid: U64,
    /// Devices.
    pub num_devices: U64,
    /// 4096.
    pub sectorsize: U32,
    /// 4 KiB to 64 KiB.
    pub nodesize: U32,
    /// Equal to `nodesize`.
    pub leafsize: U32,
    /// Equal to `sectorsize`.
    pub stripesize: U32,
    /// Bytes used in `sys_chunk_array`.
    pub sys_chunk_array_size: U32,
    /// Generation of the chunk tree's root.
    pub chunk_root_generation: U64,
    /// Features that may be ignored.
    pub compat_flags: U64,
    /// Features that may be ignored by who only reads.
    pub compat_ro_flags: U64,
    /// Features that must be known.
    pub incompat_flags: U64,
    /// 0 crc32c, 1 xxhash64, 2 sha256, 3 blake2b.
    pub csum_type: U16,
    /// Level of the root tree.
    pub root_level: u8,
    /// Level of the chunk tree.
    pub chunk_root_level: u8,
    /// Level of the log root tree.
    pub log_root_level: u8,
    /// This device's item.
    pub dev_item: DevItem,
    /// The label, ended by a zero byte.
    pub label: [u8; 256],
    /// The generation of the v1 space cache; `u64::MAX` when there is none.
    pub cache_generation: U64,
    /// The generation of the uuid tree.
    pub uuid_tree_generation: U64,
    /// The uuid that tree blocks carry, when the `METADATA_UUID` feature is on.
    pub metadata_uuid: [u8; 16],
    /// Unused.
    pub nr_global_roots: U64,
    /// Only with the remap tree feature.
    pub reserved: [U64; 27],
    /// Chunks of type SYSTEM: (key, chunk item) pairs.
    pub sys_chunk_array: [u8; SYS_CHUNK_ARRAY_LEN],
    /// Root backups, taken in turn.
    pub root_backups: [RootBackup; 4],
    /// Zeros.
    pub padding: [u8; 565],
}
const _: () = assert!(size_of::<Superblock>() == SUPERBLOCK_LEN);

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
}
