//! What the mount asks of a filesystem, in words that name neither the engine nor the kernel's
//! protocol. The engine's filesystem is one [`Store`]; the tests have another, a model in memory.

use std::ffi::OsStr;

pub use buttress::SetXattr;
use rustix::io::Errno;

use crate::nodes::Identity;

/// What every operation returns.
pub type Answer<T> = Result<T, Errno>;

/// A point in time since 1970; `nsec` is below 10^9.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Time {
    /// Seconds, negative before 1970.
    pub sec: i64,
    /// Nanoseconds after `sec`.
    pub nsec: u32,
}

/// Everything stat(2) and statx(2) show.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Attributes {
    /// Never reused with the same inode number.
    pub generation: u64,
    /// Type and permissions.
    pub mode: u32,
    /// Number of names.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number of a device file: major and minor.
    pub device: (u32, u32),
    /// Length in bytes.
    pub size: u64,
    /// Space used, in units of 512 bytes.
    pub blocks: u64,
    /// Whether a commit leaves that as it is.
    pub blocks_settled: bool,
    /// Last read.
    pub atime: Time,
    /// Last change of the contents.
    pub mtime: Time,
    /// Last change of anything.
    pub ctime: Time,
    /// Creation.
    pub btime: Time,
    /// Inode flags as FS_IOC_GETFLAGS names them.
    pub flags: u32,
}

/// How a new inode begins.
#[derive(Clone, Copy, Debug, Default)]
pub struct NewInode {
    /// Type and permissions.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group, unless the directory is set-group-ID.
    pub gid: u32,
    /// Device number of a device file: major and minor.
    pub device: (u32, u32),
    /// Permissions to leave out; not where ACLs are inherited.
    pub umask: u32,
    /// The directory has a default ACL, which the inode takes over.
    pub inherit: bool,
}

/// A time to set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetTime {
    /// The time of the operation.
    Now,
    /// This time.
    To(Time),
}

/// What a SETATTR changes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SetAttributes {
    /// New permissions (12 bits).
    pub mode: Option<u32>,
    /// New owner.
    pub uid: Option<u32>,
    /// New group.
    pub gid: Option<u32>,
    /// New length in bytes.
    pub size: Option<u64>,
    /// New access time.
    pub atime: Option<SetTime>,
    /// New modification time.
    pub mtime: Option<SetTime>,
    /// New change time; `None`: the time of the operation.
    pub ctime: Option<Time>,
}

/// One entry of a directory.
#[derive(Clone, Copy, Debug)]
pub struct ListEntry<'a> {
    /// Position: entries come in ascending order of it, and it never changes while the name stays.
    pub index: u64,
    /// The name.
    pub name: &'a OsStr,
    /// Where it leads.
    pub identity: Identity,
    /// File type as the upper four bits of a mode (`DT_*`).
    pub kind: u32,
}

/// statfs(2), in bytes.
#[derive(Clone, Copy, Debug, Default)]
pub struct SpaceNumbers {
    /// All of it.
    pub total: u64,
    /// Not used.
    pub free: u64,
    /// Left for writing.
    pub available: u64,
    /// Size of a sector.
    pub sector: u32,
}

/// How rename(2) treats the target.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RenameFlags {
    /// Refuse to replace.
    pub no_replace: bool,
    /// Swap the two names.
    pub exchange: bool,
    /// Leave a whiteout behind, of this user and group.
    pub whiteout: Option<(u32, u32)>,
}

/// fallocate(2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Allocate {
    /// Reserve space; `keep_size`: also beyond the end.
    Reserve {
        /// The length stays as it is.
        keep_size: bool,
    },
    /// Make a hole; the length stays.
    Punch,
    /// Make it read as zeroes.
    Zero {
        /// The length stays as it is.
        keep_size: bool,
    },
}

/// Where lseek(2) is to go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seek {
    /// Next data.
    Data,
    /// Next hole, or the end.
    Hole,
}

/// A filesystem that can be mounted. Permission checks are not its business: the kernel makes them.
pub trait Store: Send + Sync + 'static {
    /// What names an inode.
    type Node: Clone + Send + Sync + 'static;

    /// The inode with this identity.
    fn load(&self, identity: Identity) -> Answer<Self::Node>;
    /// The same of an inode that is held.
    fn held(&self, identity: Identity) -> Answer<Self::Node> {
        self.load(identity)
    }
    /// Which inode it is.
    fn identity(&self, node: &Self::Node) -> Identity;
    /// Keeps an inode, named or not, until it is released. ENOENT if it is gone already.
    fn hold(&self, node: &Self::Node) -> Answer<()>;
    /// Ends a hold.
    fn release(&self, node: Self::Node);

    /// So many bytes of the memory that the filesystem was given are used for something else.
    fn uses_elsewhere(&self, _bytes: u64) {}

    /// What stat shows.
    fn attributes(&self, node: &Self::Node) -> Answer<Attributes>;
    /// Changes what stat shows; what it shows then.
    fn set_attributes(&self, node: &Self::Node, change: &SetAttributes) -> Answer<Attributes>;

    /// The inode a name leads to.
    fn lookup(&self, directory: &Self::Node, name: &OsStr) -> Answer<Option<Self::Node>>;
    /// The directory a directory lies in; the top of a filesystem lies in itself.
    fn parent(&self, directory: &Self::Node) -> Answer<Self::Node>;
    /// A new file, directory or special file.
    fn create(
        &self,
        directory: &Self::Node,
        name: &OsStr,
        new: &NewInode,
    ) -> Answer<(Self::Node, Attributes)>;
    /// A new symbolic link.
    fn symlink(
        &self,
        directory: &Self::Node,
        name: &OsStr,
        target: &OsStr,
        new: &NewInode,
    ) -> Answer<(Self::Node, Attributes)>;
    /// A new file without a name, held once.
    fn temporary(&self, directory: &Self::Node, new: &NewInode)
    -> Answer<(Self::Node, Attributes)>;
    /// One more name for a file.
    fn link(&self, node: &Self::Node, directory: &Self::Node, name: &OsStr) -> Answer<Attributes>;
    /// Removes a name that is not a directory's.
    fn unlink(&self, directory: &Self::Node, name: &OsStr) -> Answer<()>;
    /// Removes an empty directory or subvolume.
    fn rmdir(&self, directory: &Self::Node, name: &OsStr) -> Answer<()>;
    /// Moves a name.
    fn rename(
        &self,
        from: (&Self::Node, &OsStr),
        to: (&Self::Node, &OsStr),
        flags: RenameFlags,
    ) -> Answer<()>;
    /// Where a symbolic link leads.
    fn read_link(&self, node: &Self::Node) -> Answer<Vec<u8>>;
    /// Entries from position `from` on, in order, until `each` returns false.
    fn list(
        &self,
        directory: &Self::Node,
        from: u64,
        each: &mut dyn FnMut(ListEntry<'_>) -> bool,
    ) -> Answer<()>;

    /// Reads up to the end of the file; returns how much of `buffer` was filled, and what stat shows.
    fn read(
        &self,
        node: &Self::Node,
        offset: u64,
        buffer: &mut [u8],
    ) -> Answer<(usize, Attributes)>;
    /// Moves the access time to now, and no other time.
    fn accessed(&self, node: &Self::Node) -> Answer<()>;
    /// Writes `data`; returns how much, which is less only where space ran out.
    fn write(&self, node: &Self::Node, offset: u64, data: &[u8]) -> Answer<usize>;
    /// The same for the kernel's own cache of writes, which sets times of change itself: they stay.
    fn write_back(&self, node: &Self::Node, offset: u64, data: &[u8]) -> Answer<usize> {
        self.write(node, offset, data)
    }
    /// Reserves, frees or clears a range.
    fn allocate(&self, node: &Self::Node, offset: u64, length: u64, how: Allocate) -> Answer<()>;
    /// Copies a range, sharing extents where it can; returns how much was copied.
    fn copy(&self, from: (&Self::Node, u64), to: (&Self::Node, u64), length: u64) -> Answer<u64>;
    /// The next data or hole from `offset` on; ENXIO at or past the end.
    fn seek(&self, node: &Self::Node, offset: u64, what: Seek) -> Answer<u64>;

    /// The value of an extended attribute.
    fn xattr(&self, node: &Self::Node, name: &OsStr) -> Answer<Option<Vec<u8>>>;
    /// Whether it is known that there are no extended attributes.
    fn is_plain(&self, node: &Self::Node) -> bool;
    /// The names of all extended attributes.
    fn xattrs(&self, node: &Self::Node) -> Answer<Vec<Vec<u8>>>;
    /// Sets an extended attribute.
    fn set_xattr(&self, node: &Self::Node, name: &OsStr, value: &[u8], how: SetXattr)
    -> Answer<()>;
    /// Removes an extended attribute; ENODATA if there is none.
    fn remove_xattr(&self, node: &Self::Node, name: &OsStr) -> Answer<()>;

    /// Total and free space.
    fn space(&self) -> Answer<SpaceNumbers>;
    /// Makes what was done to a file or directory before durable.
    fn sync(&self, node: &Self::Node) -> Answer<()>;
    /// Makes everything durable that was done before.
    fn commit(&self) -> Answer<()>;
}
