//! The words of the public interface.

use crate::env::Time;
use crate::inode::TOP;

/// A file by number. Numbers are not used again as long as the filesystem is open: those of what was last made and deleted can be, once it was closed.
///
/// Where a snapshot has no copy of a subvolume, an empty directory stands, a *stub*. It has no inode, and its numbers are made up: each snapshot has its own,
/// or a mount would take two of them for one directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Node {
    /// The subvolume's id; 5 is the top one. Of a stub see [`Node::within`].
    pub subvolume: u64,
    /// The inode's number in it; 256 is its top directory. Of a stub see [`Node::stands_for`].
    pub ino: u64,
}

/// In place of a subvolume's id: that of the one a stub is in, with these bits above it, which none has (Linux makes none of 2^48 and more).
const STUBS: u64 = 1 << 63;
const ID_BITS: u32 = 48;
const IDS: u64 = (1 << ID_BITS) - 1;

impl Node {
    /// The top directory of a subvolume.
    pub const fn top(subvolume: u64) -> Node {
        Node { subvolume, ino: TOP }
    }

    /// The top directory of the filesystem.
    pub const ROOT: Node = Node::top(buttress_ondisk::objectid::FS_TREE);

    /// Whether it is the top directory of its subvolume.
    pub fn is_top(self) -> bool {
        self.ino == TOP && !self.is_stub()
    }

    /// What stands in subvolume `within`, which is a snapshot, for subvolume `of`.
    pub const fn stub(within: u64, of: u64) -> Node {
        Node { subvolume: STUBS | within & IDS, ino: of }
    }

    /// Whether it is an empty directory that stands where a snapshot has no copy of a subvolume.
    pub const fn is_stub(self) -> bool {
        self.subvolume >> ID_BITS == STUBS >> ID_BITS
    }

    /// The subvolume that it is in.
    pub const fn within(self) -> u64 {
        if self.is_stub() { self.subvolume & IDS } else { self.subvolume }
    }

    /// The subvolume that a stub or a top directory stands for; of all others the one they are in.
    pub const fn stands_for(self) -> u64 {
        if self.is_stub() { self.ino } else { self.subvolume }
    }
}

/// What a file is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FileKind {
    /// A regular file.
    Regular,
    /// A directory.
    Directory,
    /// A symbolic link.
    Symlink,
    /// A character device.
    Character,
    /// A block device.
    Block,
    /// A named pipe.
    Fifo,
    /// A socket.
    Socket,
}

/// An entry of a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its name.
    pub name: Vec<u8>,
    /// Its place in the directory, which stays as long as the name: listing goes on at `index + 1`. 0 in the answer of a
    /// lookup.
    pub index: u64,
    /// Where it leads.
    pub node: Node,
    /// What is there.
    pub kind: FileKind,
}

/// What `stat` tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attributes {
    /// The file.
    pub node: Node,
    /// What it is.
    pub kind: FileKind,
    /// The lowest 12 bits of the mode.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Links; 1 for a directory.
    pub nlink: u32,
    /// Bytes; of a directory, twice the sum of its names' lengths.
    pub size: u64,
    /// Bytes that its content takes.
    pub blocks_bytes: u64,
    /// Whether that leaves out all that writes, holes and truncations have replaced since the last commit; where it does not, there was much to look
    /// up, and the next question goes on with it. The next commit does at the latest.
    pub blocks_settled: bool,
    /// Of a device node `major << 20 | minor`.
    pub rdev: u64,
    /// Last access.
    pub atime: Time,
    /// Last change of the content.
    pub mtime: Time,
    /// Last change of the inode.
    pub ctime: Time,
    /// Creation.
    pub otime: Time,
    /// `buttress_ondisk::item::inode_flags`.
    pub flags: u64,
    /// The transaction that made it.
    pub generation: u64,
    /// The transaction that last changed it.
    pub transid: u64,
}

/// What [`super::Filesystem::set_attributes`] changes: whatever is given.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Change {
    /// The lowest 12 bits of the mode.
    pub mode: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Bytes of a regular file.
    pub size: Option<u64>,
    /// Last access. All times have nanoseconds below a second, else EINVAL.
    pub atime: Option<Time>,
    /// Last change of the content.
    pub mtime: Option<Time>,
    /// Last change of the inode; now, when not given.
    pub ctime: Option<Time>,
    /// Creation.
    pub otime: Option<Time>,
    /// All inode flags. EOPNOTSUPP where others change than a caller can set (those of `chattr`, and what they mean), EINVAL where it would change whether
    /// what a file has is checksummed.
    pub flags: Option<u64>,
    /// Takes away set-user-id, and set-group-id from what the group can execute, as a write or a change of owner by an
    /// ordinary user does. Directories keep theirs.
    pub drop_privileges: bool,
}

/// Who makes a subvolume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owner {
    /// User.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Bits that its mode, 0777, lacks; a default ACL of the directory restricts it besides.
    pub umask: u32,
}

impl Default for Owner {
    /// Root, who lets others read.
    fn default() -> Owner {
        Owner { uid: 0, gid: 0, umask: 0o022 }
    }
}

/// A file to be made.
#[derive(Clone, Debug)]
pub struct New {
    /// What it is.
    pub kind: FileKind,
    /// The lowest 12 bits of the mode; symbolic links have 0777.
    pub mode: u32,
    /// Permissions to leave out, unless the directory's default ACL says what is allowed.
    pub umask: u32,
    /// Owner.
    pub uid: u32,
    /// Group; below a set-group-id directory, that of the directory is taken.
    pub gid: u32,
    /// Of a device node `major << 20 | minor`.
    pub rdev: u64,
    /// Where a symbolic link leads.
    pub target: Vec<u8>,
    /// Times to set instead of now.
    pub times: Option<Times>,
    /// Takes over the directory's default ACL.
    pub inherit: bool,
}

/// Times of a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Times {
    /// Last access.
    pub atime: Time,
    /// Last change of the content.
    pub mtime: Time,
    /// Last change of the inode.
    pub ctime: Time,
    /// Creation.
    pub otime: Time,
}

impl New {
    /// Something of this kind and mode, owned by root.
    pub fn of(kind: FileKind, mode: u32) -> New {
        New {
            kind,
            mode,
            umask: 0,
            uid: 0,
            gid: 0,
            rdev: 0,
            target: Vec::new(),
            times: None,
            inherit: false,
        }
    }

    /// A regular file.
    pub fn file(mode: u32) -> New {
        New::of(FileKind::Regular, mode)
    }

    /// A directory.
    pub fn directory(mode: u32) -> New {
        New::of(FileKind::Directory, mode)
    }

    /// A symbolic link to `target`.
    pub fn symlink(target: impl Into<Vec<u8>>) -> New {
        New { target: target.into(), ..New::of(FileKind::Symlink, 0o777) }
    }

    /// Owned by `uid` and `gid`.
    pub fn owned(self, uid: u32, gid: u32) -> New {
        New { uid, gid, ..self }
    }
}

/// What `fallocate` does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Allocate {
    /// Puts space behind the range.
    Reserve {
        /// The size stays.
        keep_size: bool,
    },
    /// Makes the range a hole. The size stays.
    PunchHole,
    /// Makes the range zeros with space behind them.
    ZeroRange {
        /// The size stays.
        keep_size: bool,
    },
}

impl Allocate {
    /// The same without a change of the size.
    pub(super) fn keeping_size(self) -> Allocate {
        match self {
            Allocate::Reserve { .. } => Allocate::Reserve { keep_size: true },
            Allocate::PunchHole => Allocate::PunchHole,
            Allocate::ZeroRange { .. } => Allocate::ZeroRange { keep_size: true },
        }
    }
}
