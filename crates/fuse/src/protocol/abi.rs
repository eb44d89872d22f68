//! The messages of the FUSE protocol as `linux/fuse.h` lays them out: native endian, naturally
//! aligned, without hidden padding. Names and fields are the header's, so its comments apply.
//!
//! Everything up to 7.38 is in the installed header; STATX (7.39) and the 64-bit copy answer
//! (7.45) come from the same public header of later kernels. A kernel that does not know them
//! never sends them.
#![allow(missing_docs, reason = "the fields are those of the public header linux/fuse.h")]

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Major protocol version.
pub const VERSION_MAJOR: u32 = 7;
/// Newest minor version whose messages are described here.
pub const VERSION_MINOR: u32 = 45;
/// Oldest minor version the session accepts: INIT carries 64 bits of flags since then (Linux 5.17).
pub const VERSION_MINOR_MIN: u32 = 36;
/// Node id of the top directory of a mount.
pub const ROOT_ID: u64 = 1;

/// Declares message structs with the derives all of them need, and pins their sizes.
macro_rules! messages {
    ($($(#[$doc:meta])* $name:ident: $size:literal { $($field:ident: $kind:ty),* $(,)? })*) => {
        $(
            $(#[$doc])*
            #[repr(C)]
            #[derive(
                Clone, Copy, Debug, Default, PartialEq, Eq,
                FromBytes, IntoBytes, Immutable, KnownLayout
            )]
            pub struct $name { $(pub $field: $kind),* }
            const _: () = assert!(size_of::<$name>() == $size);
        )*
    };
}

messages! {
    /// Head of every request.
    InHeader: 40 {
        len: u32, opcode: u32, unique: u64, nodeid: u64, uid: u32, gid: u32, pid: u32,
        total_extlen: u16, padding: u16,
    }
    /// Head of every reply and notification. `error` is 0 or a negative errno; in a notification
    /// it is the notification's code and `unique` is 0.
    OutHeader: 16 { len: u32, error: i32, unique: u64 }
    /// Attributes of a node; `blocks` counts 512-byte units, `rdev` is the kernel's 32-bit form.
    Attr: 88 {
        ino: u64, size: u64, blocks: u64, atime: u64, mtime: u64, ctime: u64,
        atimensec: u32, mtimensec: u32, ctimensec: u32,
        mode: u32, nlink: u32, uid: u32, gid: u32, rdev: u32, blksize: u32, flags: u32,
    }
    /// statfs(2) numbers; sizes in units of `frsize`.
    Kstatfs: 80 {
        blocks: u64, bfree: u64, bavail: u64, files: u64, ffree: u64,
        bsize: u32, namelen: u32, frsize: u32, padding: u32, spare: [u32; 6],
    }
    /// Seconds and nanoseconds of STATX.
    SxTime: 16 { tv_sec: i64, tv_nsec: u32, reserved: i32 }
    /// The struct statx of the protocol.
    Statx: 256 {
        mask: u32, blksize: u32, attributes: u64, nlink: u32, uid: u32, gid: u32,
        mode: u16, spare0: u16, ino: u64, size: u64, blocks: u64, attributes_mask: u64,
        atime: SxTime, btime: SxTime, ctime: SxTime, mtime: SxTime,
        rdev_major: u32, rdev_minor: u32, dev_major: u32, dev_minor: u32, spare2: [u64; 14],
    }
    /// Answer to LOOKUP, CREATE, MKDIR and whatever else makes or finds a name.
    EntryOut: 128 {
        nodeid: u64, generation: u64, entry_valid: u64, attr_valid: u64,
        entry_valid_nsec: u32, attr_valid_nsec: u32, attr: Attr,
    }
    ForgetIn: 8 { nlookup: u64 }
    ForgetOne: 16 { nodeid: u64, nlookup: u64 }
    BatchForgetIn: 8 { count: u32, dummy: u32 }
    GetattrIn: 16 { getattr_flags: u32, dummy: u32, fh: u64 }
    AttrOut: 104 { attr_valid: u64, attr_valid_nsec: u32, dummy: u32, attr: Attr }
    StatxIn: 24 { getattr_flags: u32, reserved: u32, fh: u64, sx_flags: u32, sx_mask: u32 }
    StatxOut: 288 { attr_valid: u64, attr_valid_nsec: u32, flags: u32, spare: [u64; 2], stat: Statx }
    MknodIn: 16 { mode: u32, rdev: u32, umask: u32, padding: u32 }
    MkdirIn: 8 { mode: u32, umask: u32 }
    RenameIn: 8 { newdir: u64 }
    Rename2In: 16 { newdir: u64, flags: u32, padding: u32 }
    LinkIn: 8 { oldnodeid: u64 }
    SetattrIn: 88 {
        valid: u32, padding: u32, fh: u64, size: u64, lock_owner: u64,
        atime: u64, mtime: u64, ctime: u64, atimensec: u32, mtimensec: u32, ctimensec: u32,
        mode: u32, unused4: u32, uid: u32, gid: u32, unused5: u32,
    }
    OpenIn: 8 { flags: u32, open_flags: u32 }
    CreateIn: 16 { flags: u32, mode: u32, umask: u32, open_flags: u32 }
    OpenOut: 16 { fh: u64, open_flags: u32, padding: u32 }
    ReleaseIn: 24 { fh: u64, flags: u32, release_flags: u32, lock_owner: u64 }
    FlushIn: 24 { fh: u64, unused: u32, padding: u32, lock_owner: u64 }
    ReadIn: 40 {
        fh: u64, offset: u64, size: u32, read_flags: u32, lock_owner: u64, flags: u32, padding: u32,
    }
    WriteIn: 40 {
        fh: u64, offset: u64, size: u32, write_flags: u32, lock_owner: u64, flags: u32, padding: u32,
    }
    WriteOut: 8 { size: u32, padding: u32 }
    StatfsOut: 80 { st: Kstatfs }
    FsyncIn: 16 { fh: u64, fsync_flags: u32, padding: u32 }
    SetxattrIn: 16 { size: u32, flags: u32, setxattr_flags: u32, padding: u32 }
    GetxattrIn: 8 { size: u32, padding: u32 }
    GetxattrOut: 8 { size: u32, padding: u32 }
    AccessIn: 8 { mask: u32, padding: u32 }
    InitIn: 64 {
        major: u32, minor: u32, max_readahead: u32, flags: u32, flags2: u32, unused: [u32; 11],
    }
    InitOut: 64 {
        major: u32, minor: u32, max_readahead: u32, flags: u32,
        max_background: u16, congestion_threshold: u16, max_write: u32, time_gran: u32,
        max_pages: u16, map_alignment: u16, flags2: u32, unused: [u32; 7],
    }
    InterruptIn: 8 { unique: u64 }
    IoctlIn: 32 { fh: u64, flags: u32, cmd: u32, arg: u64, in_size: u32, out_size: u32 }
    IoctlOut: 16 { result: i32, flags: u32, in_iovs: u32, out_iovs: u32 }
    FallocateIn: 32 { fh: u64, offset: u64, length: u64, mode: u32, padding: u32 }
    /// A directory entry without its name, which follows, padded to 8 bytes.
    Dirent: 24 { ino: u64, off: u64, namelen: u32, kind: u32 }
    LseekIn: 24 { fh: u64, offset: u64, whence: u32, padding: u32 }
    LseekOut: 8 { offset: u64 }
    CopyFileRangeIn: 56 {
        fh_in: u64, off_in: u64, nodeid_out: u64, fh_out: u64, off_out: u64, len: u64, flags: u64,
    }
    CopyFileRangeOut: 8 { bytes_copied: u64 }
    NotifyInvalInode: 24 { ino: u64, off: i64, len: i64 }
    /// So many node ids follow.
    NotifyPrune: 16 { count: u32, padding: u32, spare: u64 }
}

/// What a request asks for (`enum fuse_opcode`).
pub mod opcode {
    #![allow(missing_docs, reason = "the names are those of the public header linux/fuse.h")]
    pub const LOOKUP: u32 = 1;
    pub const FORGET: u32 = 2;
    pub const GETATTR: u32 = 3;
    pub const SETATTR: u32 = 4;
    pub const READLINK: u32 = 5;
    pub const SYMLINK: u32 = 6;
    pub const MKNOD: u32 = 8;
    pub const MKDIR: u32 = 9;
    pub const UNLINK: u32 = 10;
    pub const RMDIR: u32 = 11;
    pub const RENAME: u32 = 12;
    pub const LINK: u32 = 13;
    pub const OPEN: u32 = 14;
    pub const READ: u32 = 15;
    pub const WRITE: u32 = 16;
    pub const STATFS: u32 = 17;
    pub const RELEASE: u32 = 18;
    pub const FSYNC: u32 = 20;
    pub const SETXATTR: u32 = 21;
    pub const GETXATTR: u32 = 22;
    pub const LISTXATTR: u32 = 23;
    pub const REMOVEXATTR: u32 = 24;
    pub const FLUSH: u32 = 25;
    pub const INIT: u32 = 26;
    pub const OPENDIR: u32 = 27;
    pub const READDIR: u32 = 28;
    pub const RELEASEDIR: u32 = 29;
    pub const FSYNCDIR: u32 = 30;
    pub const GETLK: u32 = 31;
    pub const SETLK: u32 = 32;
    pub const SETLKW: u32 = 33;
    pub const ACCESS: u32 = 34;
    pub const CREATE: u32 = 35;
    pub const INTERRUPT: u32 = 36;
    pub const BMAP: u32 = 37;
    pub const DESTROY: u32 = 38;
    pub const IOCTL: u32 = 39;
    pub const POLL: u32 = 40;
    pub const NOTIFY_REPLY: u32 = 41;
    pub const BATCH_FORGET: u32 = 42;
    pub const FALLOCATE: u32 = 43;
    pub const READDIRPLUS: u32 = 44;
    pub const RENAME2: u32 = 45;
    pub const LSEEK: u32 = 46;
    pub const COPY_FILE_RANGE: u32 = 47;
    pub const SYNCFS: u32 = 50;
    pub const TMPFILE: u32 = 51;
    pub const STATX: u32 = 52;
    pub const COPY_FILE_RANGE_64: u32 = 53;
}

/// Bits of INIT; the upper half travels in `flags2`.
pub mod init {
    #![allow(missing_docs, reason = "the names are those of the public header linux/fuse.h")]
    pub const ASYNC_READ: u64 = 1 << 0;
    pub const ATOMIC_O_TRUNC: u64 = 1 << 3;
    pub const EXPORT_SUPPORT: u64 = 1 << 4;
    pub const BIG_WRITES: u64 = 1 << 5;
    pub const DONT_MASK: u64 = 1 << 6;
    pub const HAS_IOCTL_DIR: u64 = 1 << 11;
    pub const AUTO_INVAL_DATA: u64 = 1 << 12;
    pub const DO_READDIRPLUS: u64 = 1 << 13;
    pub const READDIRPLUS_AUTO: u64 = 1 << 14;
    pub const ASYNC_DIO: u64 = 1 << 15;
    pub const WRITEBACK_CACHE: u64 = 1 << 16;
    pub const NO_OPEN_SUPPORT: u64 = 1 << 17;
    pub const PARALLEL_DIROPS: u64 = 1 << 18;
    pub const POSIX_ACL: u64 = 1 << 20;
    pub const ABORT_ERROR: u64 = 1 << 21;
    pub const MAX_PAGES: u64 = 1 << 22;
    pub const CACHE_SYMLINKS: u64 = 1 << 23;
    pub const NO_OPENDIR_SUPPORT: u64 = 1 << 24;
    pub const EXPLICIT_INVAL_DATA: u64 = 1 << 25;
    pub const HANDLE_KILLPRIV_V2: u64 = 1 << 28;
    pub const SETXATTR_EXT: u64 = 1 << 29;
    pub const INIT_EXT: u64 = 1 << 30;
    pub const DIRECT_IO_ALLOW_MMAP: u64 = 1 << 36;
    pub const OVER_IO_URING: u64 = 1 << 41;
}

/// `SetattrIn::valid`: which members a SETATTR sets.
pub mod fattr {
    #![allow(missing_docs, reason = "the names are those of the public header linux/fuse.h")]
    pub const MODE: u32 = 1 << 0;
    pub const UID: u32 = 1 << 1;
    pub const GID: u32 = 1 << 2;
    pub const SIZE: u32 = 1 << 3;
    pub const ATIME: u32 = 1 << 4;
    pub const MTIME: u32 = 1 << 5;
    pub const FH: u32 = 1 << 6;
    pub const ATIME_NOW: u32 = 1 << 7;
    pub const MTIME_NOW: u32 = 1 << 8;
    pub const LOCKOWNER: u32 = 1 << 9;
    pub const CTIME: u32 = 1 << 10;
    pub const KILL_SUIDGID: u32 = 1 << 11;
}

/// `OpenOut::open_flags`.
pub mod fopen {
    #![allow(missing_docs, reason = "the names are those of the public header linux/fuse.h")]
    pub const DIRECT_IO: u32 = 1 << 0;
    pub const KEEP_CACHE: u32 = 1 << 1;
    pub const CACHE_DIR: u32 = 1 << 3;
    pub const NOFLUSH: u32 = 1 << 5;
    pub const PARALLEL_DIRECT_WRITES: u32 = 1 << 6;
}

/// Codes of notifications (`enum fuse_notify_code`).
pub mod notify {
    #![allow(missing_docs, reason = "the names are those of the public header linux/fuse.h")]
    pub const INVAL_INODE: i32 = 2;
    pub const PRUNE: i32 = 9;
}

/// `WriteIn::write_flags`: clear suid, and sgid of a group-executable file.
pub const WRITE_KILL_SUIDGID: u32 = 1 << 2;
/// `WriteIn::write_flags`: the page cache writes back; the handle is any that can write.
pub const WRITE_CACHE: u32 = 1 << 0;
/// `OpenIn::open_flags`, `CreateIn::open_flags`: clear suid and sgid because of O_TRUNC.
pub const OPEN_KILL_SUIDGID: u32 = 1 << 0;
/// `SetxattrIn::setxattr_flags`: clear sgid because the access ACL changes.
pub const SETXATTR_ACL_KILL_SGID: u32 = 1 << 0;
/// `FsyncIn::fsync_flags`: fdatasync(2).
pub const FSYNC_FDATASYNC: u32 = 1 << 0;
/// `IoctlIn::flags`: a 32-bit program asks.
pub const IOCTL_32BIT: u32 = 1 << 3;
/// `IoctlIn::flags`: the file is a directory.
pub const IOCTL_DIR: u32 = 1 << 4;
/// `Kstatfs` and rename limits: longest name the kernel sends.
pub const NAME_MAX: usize = 1024;

/// Bytes a directory entry takes with a name of `namelen` bytes, without `EntryOut`.
pub const fn dirent_len(namelen: usize) -> usize {
    (size_of::<Dirent>() + namelen).next_multiple_of(8)
}
