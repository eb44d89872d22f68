//! Numbers and structs of the ioctls, from the public headers `linux/btrfs.h` and `linux/fs.h`.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

const WRITE: u32 = 1;
const READ: u32 = 2;
const BTRFS: u32 = 0x94;

/// `_IOC`: two bits of direction, 14 of size, 8 of magic, 8 of number.
const fn number<T>(direction: u32, magic: u32, nr: u32) -> u32 {
    direction << 30 | (size_of::<T>() as u32) << 16 | magic << 8 | nr
}

/// `FS_XFLAG_*`: what `struct fsxattr` says of an inode.
pub(super) mod xflag {
    pub(in super::super) const IMMUTABLE: u32 = 0x8;
    pub(in super::super) const APPEND: u32 = 0x10;
    pub(in super::super) const SYNC: u32 = 0x20;
    pub(in super::super) const NOATIME: u32 = 0x40;
    pub(in super::super) const NODUMP: u32 = 0x80;
}

/// `BTRFS_FS_INFO_FLAG_*`: what of `struct btrfs_ioctl_fs_info_args` is filled in besides the numbers that were always there.
pub(super) mod info_flag {
    pub(in super::super) const CSUM_INFO: u64 = 1;
    pub(in super::super) const GENERATION: u64 = 2;
    pub(in super::super) const METADATA_UUID: u64 = 4;
}

/// `struct btrfs_ioctl_vol_args`.
#[repr(C)]
#[derive(FromBytes, Immutable, KnownLayout)]
pub(super) struct VolArgs {
    pub(super) fd: i64,
    pub(super) name: [u8; 4088],
}

/// `struct btrfs_ioctl_vol_args_v2`; a subvolume id stands at the beginning of `name`.
#[repr(C)]
#[derive(FromBytes, Immutable, KnownLayout)]
pub(super) struct VolArgsV2 {
    pub(super) fd: i64,
    pub(super) transid: u64,
    pub(super) flags: u64,
    pub(super) unused: [u64; 4],
    pub(super) name: [u8; 4040],
}

/// `struct btrfs_ioctl_ino_lookup_args`.
#[repr(C)]
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
pub(super) struct InoLookup {
    pub(super) treeid: u64,
    pub(super) objectid: u64,
    pub(super) name: [u8; 4080],
}

/// `struct btrfs_ioctl_ino_lookup_user_args`.
#[repr(C)]
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
pub(super) struct InoLookupUser {
    pub(super) dirid: u64,
    pub(super) treeid: u64,
    pub(super) name: [u8; 256],
    pub(super) path: [u8; 3824],
}

/// `struct btrfs_ioctl_search_key`.
#[repr(C)]
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub(super) struct SearchKey {
    pub(super) tree_id: u64,
    pub(super) min_objectid: u64,
    pub(super) max_objectid: u64,
    pub(super) min_offset: u64,
    pub(super) max_offset: u64,
    pub(super) min_transid: u64,
    pub(super) max_transid: u64,
    pub(super) min_type: u32,
    pub(super) max_type: u32,
    pub(super) nr_items: u32,
    pub(super) unused: u32,
    pub(super) unused1: [u64; 4],
}

/// `struct btrfs_ioctl_search_header`.
#[repr(C)]
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
pub(super) struct SearchHeader {
    pub(super) transid: u64,
    pub(super) objectid: u64,
    pub(super) offset: u64,
    pub(super) kind: u32,
    pub(super) len: u32,
}

/// `struct btrfs_ioctl_fs_info_args`.
#[repr(C)]
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
pub(super) struct FsInfo {
    pub(super) max_id: u64,
    pub(super) num_devices: u64,
    pub(super) fsid: [u8; 16],
    pub(super) nodesize: u32,
    pub(super) sectorsize: u32,
    pub(super) clone_alignment: u32,
    pub(super) csum_type: u16,
    pub(super) csum_size: u16,
    pub(super) flags: u64,
    pub(super) generation: u64,
    pub(super) metadata_uuid: [u8; 16],
    pub(super) reserved: [u8; 944],
}

/// `struct btrfs_ioctl_dev_info_args`.
#[repr(C)]
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
pub(super) struct DevInfo {
    pub(super) devid: u64,
    pub(super) uuid: [u8; 16],
    pub(super) bytes_used: u64,
    pub(super) total_bytes: u64,
    pub(super) unused: [u64; 379],
    pub(super) path: [u8; 1024],
}

/// `struct btrfs_ioctl_timespec`, with its padding spelt out.
#[repr(C)]
#[derive(Clone, Copy, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub(super) struct TimeSpec {
    pub(super) sec: u64,
    pub(super) nsec: u32,
    pub(super) padding: u32,
}

/// `struct btrfs_ioctl_get_subvol_info_args`.
#[repr(C)]
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
pub(super) struct SubvolInfo {
    pub(super) treeid: u64,
    pub(super) name: [u8; 256],
    pub(super) parent_id: u64,
    pub(super) dirid: u64,
    pub(super) generation: u64,
    pub(super) flags: u64,
    pub(super) uuid: [u8; 16],
    pub(super) parent_uuid: [u8; 16],
    pub(super) received_uuid: [u8; 16],
    pub(super) transids: [u64; 4],
    pub(super) times: [TimeSpec; 4],
    pub(super) reserved: [u64; 8],
}

/// `struct btrfs_ioctl_get_subvol_rootref_args`.
#[repr(C)]
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
pub(super) struct RootRefs {
    pub(super) min_treeid: u64,
    pub(super) refs: [[u64; 2]; 255],
    pub(super) num_items: u8,
    pub(super) align: [u8; 7],
}

/// `struct btrfs_ioctl_quota_ctl_args`.
#[repr(C)]
#[derive(FromBytes, Immutable, KnownLayout)]
pub(super) struct QuotaCtl {
    pub(super) cmd: u64,
    pub(super) status: u64,
}

/// `BTRFS_QUOTA_CTL_*`: what QUOTA_CTL is to do.
pub(super) mod quota_cmd {
    pub(in super::super) const ENABLE: u64 = 1;
    pub(in super::super) const DISABLE: u64 = 2;
    pub(in super::super) const ENABLE_SIMPLE: u64 = 4;
}

/// `struct btrfs_ioctl_qgroup_assign_args`.
#[repr(C)]
#[derive(FromBytes, Immutable, KnownLayout)]
pub(super) struct QgroupAssign {
    pub(super) assign: u64,
    pub(super) src: u64,
    pub(super) dst: u64,
}

/// `struct btrfs_ioctl_qgroup_create_args`.
#[repr(C)]
#[derive(FromBytes, Immutable, KnownLayout)]
pub(super) struct QgroupCreate {
    pub(super) create: u64,
    pub(super) qgroupid: u64,
}

/// `struct btrfs_ioctl_quota_rescan_args`.
#[repr(C)]
#[derive(Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub(super) struct QuotaRescan {
    pub(super) flags: u64,
    pub(super) progress: u64,
    pub(super) reserved: [u64; 6],
}

/// `struct btrfs_ioctl_balance_args`; the parts for data, metadata and the chunk tree as in the balance item.
#[repr(C)]
#[derive(Clone, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub(super) struct BalanceCtl {
    pub(super) flags: u64,
    pub(super) state: u64,
    pub(super) parts: [[u64; 17]; 3],
    pub(super) expected: u64,
    pub(super) considered: u64,
    pub(super) completed: u64,
    pub(super) unused: [u64; 72],
}

/// `struct fstrim_range`.
#[derive(Clone, Copy, Debug, FromBytes, Immutable, IntoBytes, KnownLayout)]
#[repr(C)]
pub(super) struct TrimRange {
    /// The first address.
    pub(super) start: u64,
    /// Bytes that are looked at, and, as the answer, that were trimmed.
    pub(super) len: u64,
    /// Bytes of a run that is worth it.
    pub(super) minlen: u64,
}

/// `BTRFS_ERROR_DEV_EXCL_RUN_IN_PROGRESS`: what RESIZE answers while a balance has begun and not ended, or the device is being resized.
pub(super) const EXCLUSIVE_RUNS: i32 = 8;

/// `BTRFS_BALANCE_RESUME` and `BTRFS_BALANCE_STATE_*`.
pub(super) mod balance {
    pub(in super::super) const RESUME: u64 = 1 << 4;
    pub(in super::super) const RUNNING: u64 = 1;
    pub(in super::super) const PAUSE_REQ: u64 = 1 << 1;
    pub(in super::super) const CANCEL_REQ: u64 = 1 << 2;
}

/// `struct fsxattr`.
#[repr(C)]
#[derive(Clone, Copy, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub(super) struct FsXattr {
    pub(super) xflags: u32,
    pub(super) extsize: u32,
    pub(super) nextents: u32,
    pub(super) projid: u32,
    pub(super) cowextsize: u32,
    pub(super) pad: [u8; 8],
}

const _: () = {
    assert!(size_of::<VolArgs>() == 4096 && size_of::<VolArgsV2>() == 4096);
    assert!(size_of::<InoLookup>() == 4096 && size_of::<InoLookupUser>() == 4096);
    assert!(size_of::<SearchKey>() == 104 && size_of::<SearchHeader>() == 32);
    assert!(size_of::<FsInfo>() == 1024 && size_of::<DevInfo>() == 4096);
    assert!(size_of::<SubvolInfo>() == 504 && size_of::<RootRefs>() == 4096);
    assert!(size_of::<FsXattr>() == 28);
    assert!(size_of::<QgroupAssign>() == 24 && size_of::<QgroupCreate>() == 16);
    assert!(size_of::<BalanceCtl>() == 1024);
    assert!(size_of::<QuotaCtl>() == 16 && size_of::<QuotaRescan>() == 64);
};

/// `BTRFS_SUBVOL_RDONLY`.
pub(super) const SUBVOL_RDONLY: u64 = 1 << 1;
/// `BTRFS_SUBVOL_SPEC_BY_ID`.
pub(super) const SUBVOL_SPEC_BY_ID: u64 = 1 << 4;
/// Bytes of all of TREE_SEARCH's struct.
pub(super) const SEARCH_BYTES: usize = 4096;

pub(super) const RESIZE: u32 = number::<VolArgs>(WRITE, BTRFS, 3);
pub(super) const SYNC: u32 = BTRFS << 8 | 8;
pub(super) const SNAP_CREATE: u32 = number::<VolArgs>(WRITE, BTRFS, 1);
pub(super) const SUBVOL_CREATE: u32 = number::<VolArgs>(WRITE, BTRFS, 14);
pub(super) const SNAP_DESTROY: u32 = number::<VolArgs>(WRITE, BTRFS, 15);
pub(super) const TREE_SEARCH: u32 = number::<[u8; SEARCH_BYTES]>(READ | WRITE, BTRFS, 17);
pub(super) const INO_LOOKUP: u32 = number::<InoLookup>(READ | WRITE, BTRFS, 18);
pub(super) const DEFAULT_SUBVOL: u32 = number::<u64>(WRITE, BTRFS, 19);
pub(super) const WAIT_SYNC: u32 = number::<u64>(WRITE, BTRFS, 22);
pub(super) const SNAP_CREATE_V2: u32 = number::<VolArgsV2>(WRITE, BTRFS, 23);
pub(super) const SUBVOL_CREATE_V2: u32 = number::<VolArgsV2>(WRITE, BTRFS, 24);
pub(super) const START_SYNC: u32 = number::<u64>(READ, BTRFS, 24);
pub(super) const SUBVOL_GETFLAGS: u32 = number::<u64>(READ, BTRFS, 25);
pub(super) const SUBVOL_SETFLAGS: u32 = number::<u64>(WRITE, BTRFS, 26);
pub(super) const DEV_INFO: u32 = number::<DevInfo>(READ | WRITE, BTRFS, 30);
pub(super) const FS_INFO: u32 = number::<FsInfo>(READ, BTRFS, 31);
pub(super) const BALANCE_V2: u32 = number::<BalanceCtl>(READ | WRITE, BTRFS, 32);
pub(super) const BALANCE_PROGRESS: u32 = number::<BalanceCtl>(READ, BTRFS, 34);
pub(super) const QUOTA_CTL: u32 = number::<QuotaCtl>(READ | WRITE, BTRFS, 40);
pub(super) const QGROUP_ASSIGN: u32 = number::<QgroupAssign>(WRITE, BTRFS, 41);
pub(super) const QGROUP_CREATE: u32 = number::<QgroupCreate>(WRITE, BTRFS, 42);
pub(super) const QUOTA_RESCAN: u32 = number::<QuotaRescan>(WRITE, BTRFS, 44);
pub(super) const QUOTA_RESCAN_STATUS: u32 = number::<QuotaRescan>(READ, BTRFS, 45);
pub(super) const QUOTA_RESCAN_WAIT: u32 = BTRFS << 8 | 46;
pub(super) const GET_FSLABEL: u32 = number::<[u8; 256]>(READ, BTRFS, 49);
pub(super) const SET_FSLABEL: u32 = number::<[u8; 256]>(WRITE, BTRFS, 50);
pub(super) const GET_FEATURES: u32 = number::<[u64; 3]>(READ, BTRFS, 57);
pub(super) const GET_SUPPORTED_FEATURES: u32 = number::<[[u64; 3]; 3]>(READ, BTRFS, 57);
pub(super) const GET_SUBVOL_INFO: u32 = number::<SubvolInfo>(READ, BTRFS, 60);
pub(super) const GET_SUBVOL_ROOTREF: u32 = number::<RootRefs>(READ | WRITE, BTRFS, 61);
pub(super) const INO_LOOKUP_USER: u32 = number::<InoLookupUser>(READ | WRITE, BTRFS, 62);
pub(super) const SNAP_DESTROY_V2: u32 = number::<VolArgsV2>(WRITE, BTRFS, 63);
pub(super) const FS_GETFLAGS: u32 = number::<u64>(READ, 'f' as u32, 1);
pub(super) const FS_SETFLAGS: u32 = number::<u64>(WRITE, 'f' as u32, 2);
pub(super) const FS_GETVERSION: u32 = number::<u64>(READ, 'v' as u32, 1);
pub(super) const FS_GETXATTR: u32 = number::<FsXattr>(READ, 'X' as u32, 31);
pub(super) const FITRIM: u32 = number::<TrimRange>(READ | WRITE, 'X' as u32, 121);
pub(super) const FS_SETXATTR: u32 = number::<FsXattr>(WRITE, 'X' as u32, 32);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_as_the_headers_make_them() {
        // From a C program over linux/btrfs.h and linux/fs.h.
        assert_eq!(SNAP_CREATE, 0x5000_9401);
        assert_eq!(SUBVOL_CREATE, 0x5000_940e);
        assert_eq!(SNAP_CREATE_V2, 0x5000_9417);
        assert_eq!(TREE_SEARCH, 0xd000_9411);
        assert_eq!(FS_INFO, 0x8400_941f);
        assert_eq!(GET_SUBVOL_INFO, 0x81f8_943c);
        assert_eq!(RESIZE, 0x5000_9403);
        assert_eq!(BALANCE_V2, 0xc400_9420);
        assert_eq!(BALANCE_PROGRESS, 0x8400_9422);
        assert_eq!(QUOTA_CTL, 0xc010_9428);
        assert_eq!(QGROUP_ASSIGN, 0x4018_9429);
        assert_eq!(QGROUP_CREATE, 0x4010_942a);
        assert_eq!(QUOTA_RESCAN, 0x4040_942c);
        assert_eq!(QUOTA_RESCAN_STATUS, 0x8040_942d);
        assert_eq!(QUOTA_RESCAN_WAIT, 0x942e);
        assert_eq!(FS_GETFLAGS, 0x8008_6601);
        assert_eq!(FS_GETXATTR, 0x801c_581f);
        assert_eq!(FS_SETXATTR, 0x401c_5820);
        assert_eq!(FITRIM, 0xc018_5879);
    }
}
