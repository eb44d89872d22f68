//! Vnodes: files and directories, wherever they are, under one set of operations.
//!
//! A vnode is either a path on this machine (a live mount is one of those) or a node inside an unmounted image. `ls`, `cp`
//! and their like are written once, for vnodes. Symbolic links are never followed here: who wants that finds the vnode with
//! following, and gets what the link leads to.

mod extents;
mod guard;
mod host;
mod image;
mod session;

use std::fmt::{self, Display};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub use guard::{
    is_device, may_be_overwritten, named_may_be_removed, refuse_itself, refuse_mounts_below,
    refuse_used, warn_if_used,
};
pub use image::{Image, this_umask};
pub use session::{Session, Target};

use crate::error::{self, Failure};
use crate::quote;
use buttress::FileExtent;
pub use buttress::Time;

/// What a file is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
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
    /// A pipe with a name.
    Fifo,
    /// A socket.
    Socket,
}

impl Kind {
    /// The letter that `ls -l` begins with.
    pub fn letter(self) -> char {
        match self {
            Kind::Regular => '-',
            Kind::Directory => 'd',
            Kind::Symlink => 'l',
            Kind::Character => 'c',
            Kind::Block => 'b',
            Kind::Fifo => 'p',
            Kind::Socket => 's',
        }
    }

    /// The name, as `stat` prints it.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Regular => "regular file",
            Kind::Directory => "directory",
            Kind::Symlink => "symbolic link",
            Kind::Character => "character special file",
            Kind::Block => "block special file",
            Kind::Fifo => "fifo",
            Kind::Socket => "socket",
        }
    }

    /// The name for JSON.
    pub fn word(self) -> &'static str {
        match self {
            Kind::Regular => "file",
            Kind::Directory => "directory",
            Kind::Symlink => "symlink",
            Kind::Character => "character-device",
            Kind::Block => "block-device",
            Kind::Fifo => "fifo",
            Kind::Socket => "socket",
        }
    }
}

/// What there is to know about a file.
#[derive(Clone, Copy, Debug)]
pub struct Facts {
    /// What it is.
    pub kind: Kind,
    /// Permission bits, set-user-id, set-group-id and sticky.
    pub mode: u32,
    /// The owner.
    pub uid: u32,
    /// The group.
    pub gid: u32,
    /// Names.
    pub nlink: u64,
    /// Bytes, by its length.
    pub size: u64,
    /// Bytes, by the space it takes.
    pub allocated: u64,
    /// The device it stands for: major and minor number.
    pub device: (u32, u32),
    /// Last read.
    pub atime: Time,
    /// Content last changed.
    pub mtime: Time,
    /// Anything last changed.
    pub ctime: Time,
    /// When it was made, where that is known.
    pub otime: Option<Time>,
    /// The subvolume (in an image) or the device number (elsewhere) in which `ino` counts.
    pub volume: u64,
    /// The inode number.
    pub ino: u64,
    /// Whether it is where something is mounted; `None` where the system does not tell with the rest.
    pub is_mount_point: Option<bool>,
}

impl Facts {
    /// Whether it is the top of a subvolume of an image or mount.
    pub fn is_subvolume(&self) -> bool {
        self.kind == Kind::Directory && self.ino == 256
    }
}

/// Something new in a directory.
#[derive(Clone, Debug)]
pub struct New {
    /// What it is.
    pub kind: Kind,
    /// Permission bits, before the umask.
    pub mode: u32,
    /// The device it stands for: major and minor number.
    pub device: (u32, u32),
    /// Where a symbolic link leads.
    pub target: Vec<u8>,
}

impl New {
    /// A regular file or directory.
    pub fn plain(kind: Kind, mode: u32) -> New {
        New { kind, mode, device: (0, 0), target: Vec::new() }
    }

    /// A symbolic link.
    pub fn symlink(target: Vec<u8>) -> New {
        New { kind: Kind::Symlink, mode: 0o777, device: (0, 0), target }
    }
}

/// Why an operation on a vnode failed.
#[derive(Clone, Debug)]
pub struct FileError {
    /// The number of the system error, 0 where it has none.
    pub errno: i32,
    text: String,
}

impl FileError {
    /// What no system error says.
    pub fn of(text: impl Into<String>) -> FileError {
        FileError { errno: 0, text: text.into() }
    }

    /// A system error by its number.
    pub fn errno(errno: rustix::io::Errno) -> FileError {
        io::Error::from(errno).into()
    }

    /// Whether it is a certain system error.
    pub fn is(&self, errno: rustix::io::Errno) -> bool {
        self.errno == errno.raw_os_error()
    }
}

impl Display for FileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl From<io::Error> for FileError {
    fn from(error: io::Error) -> FileError {
        if let Some(Carried(error)) = error.get_ref().and_then(|inner| inner.downcast_ref()) {
            return error.clone();
        }
        FileError { errno: error.raw_os_error().unwrap_or(0), text: error::text(&error) }
    }
}

impl From<rustix::io::Errno> for FileError {
    fn from(errno: rustix::io::Errno) -> FileError {
        io::Error::from(errno).into()
    }
}

impl From<buttress::Error> for FileError {
    fn from(error: buttress::Error) -> FileError {
        let errno = error.errno().raw_os_error();
        match error {
            buttress::Error::User(errno) => errno.into(),
            other => FileError { errno, text: other.to_string() },
        }
    }
}

impl From<FileError> for io::Error {
    fn from(error: FileError) -> io::Error {
        io::Error::other(Carried(error))
    }
}

/// A error on its way through what knows `io::Error` only.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Carried(FileError);

/// Results of operations on vnodes.
pub type Result<T> = std::result::Result<T, FileError>;

/// Reads a file's content.
pub trait Read {
    /// Reads at an offset; 0 at the end.
    fn read_at(&mut self, offset: u64, buf: &mut [u8]) -> Result<usize>;
    /// The next range at or after `offset` that is not a hole; `None` when only a hole follows.
    fn next_data(&mut self, offset: u64) -> Result<Option<(u64, u64)>>;
}

/// Writes a file's content.
pub trait Write {
    /// Writes all of `data` at an offset.
    fn write_at(&mut self, offset: u64, data: &[u8]) -> Result<()>;
    /// Makes the file this long.
    fn set_len(&mut self, len: u64) -> Result<()>;
}

/// Reads from the beginning to the end.
struct InOrder {
    reader: Box<dyn Read>,
    offset: u64,
}

impl io::Read for InOrder {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let len = self.reader.read_at(self.offset, buf).map_err(io::Error::from)?;
        self.offset = self.offset.saturating_add(len as u64);
        Ok(len)
    }
}

/// What is in a directory.
#[derive(Debug)]
pub struct Listed {
    /// Names and what they stand for.
    pub entries: Vec<(Vec<u8>, Vnode)>,
    /// Why the list is not whole, where damage hides something.
    pub passed: Vec<FileError>,
}

/// What the user calls something. Names of what is in a directory share the directory's: trees may be tens of thousands of directories
/// deep.
#[derive(Debug)]
struct Name {
    above: Option<Arc<Name>>,
    last: Vec<u8>,
}

impl Name {
    fn whole(name: Vec<u8>) -> Arc<Name> {
        Arc::new(Name { above: None, last: name })
    }

    fn entry(self: &Arc<Name>, name: &[u8]) -> Arc<Name> {
        Arc::new(Name { above: Some(self.clone()), last: name.to_vec() })
    }

    fn bytes(&self) -> Vec<u8> {
        let parts = std::iter::successors(Some(self), |name| name.above.as_deref());
        let parts: Vec<&[u8]> = parts.map(|name| &*name.last).collect();
        let mut bytes = Vec::new();
        for part in parts.into_iter().rev() {
            if !bytes.is_empty() && !bytes.ends_with(b"/") {
                bytes.push(b'/');
            }
            bytes.extend_from_slice(part);
        }
        bytes
    }
}

/// One after the other, and not each within the next: that would take as much stack as the tree is deep.
impl Drop for Name {
    fn drop(&mut self) {
        let mut above = self.above.take();
        while let Some(mut name) = above.and_then(Arc::into_inner) {
            above = name.above.take();
        }
    }
}

/// A file or directory.
#[derive(Clone, Debug)]
pub struct Vnode {
    name: Arc<Name>,
    at: At,
}

/// Names and what they stand for.
type Names = Vec<(Vec<u8>, At)>;

#[derive(Clone, Debug)]
enum At {
    Host(host::Place),
    Image(Image, buttress::Node),
}

impl Display for Vnode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&quote::shown(&self.name()))
    }
}

impl Vnode {
    /// A path on this machine.
    pub fn host(path: PathBuf) -> Vnode {
        let name = Name::whole(path.as_os_str().as_bytes().to_vec());
        Vnode { name, at: At::Host(host::Place::named(path)) }
    }

    /// What a path on this machine leads to, and be it a pipe that has no name.
    pub fn host_followed(path: PathBuf) -> Vnode {
        let name = Name::whole(path.as_os_str().as_bytes().to_vec());
        Vnode { name, at: At::Host(host::Place::named(path).followed()) }
    }

    /// Under the name that the user knows.
    pub fn called(self, name: &Path) -> Vnode {
        Vnode { name: Name::whole(name.as_os_str().as_bytes().to_vec()), ..self }
    }

    /// A node of an image.
    pub fn image(image: &Image, node: buttress::Node, path: &[u8]) -> Vnode {
        Vnode { name: Name::whole(image.bytes_of(path)), at: At::Image(image.clone(), node) }
    }

    /// What the user calls it. Messages have it as it is displayed.
    pub fn name(&self) -> Vec<u8> {
        self.name.bytes()
    }

    /// The path on this machine.
    pub fn host_path(&self) -> Option<PathBuf> {
        match &self.at {
            At::Host(place) => Some(place.path()),
            At::Image(..) => None,
        }
    }

    /// The way to it on this machine, however long its path is.
    fn way(&self) -> Option<host::Way> {
        match &self.at {
            At::Host(place) => place.way().ok(),
            At::Image(..) => None,
        }
    }

    /// Asks something by its path on this machine, however long that is. EINVAL in an image.
    pub fn by_path<T>(&self, ask: impl FnOnce(&Path) -> Result<T>) -> Result<T> {
        match &self.at {
            At::Host(place) => ask(&place.way()?),
            At::Image(..) => Err(rustix::io::Errno::INVAL.into()),
        }
    }

    /// Image and node.
    pub fn image_node(&self) -> Option<(&Image, buttress::Node)> {
        match &self.at {
            At::Host(_) => None,
            At::Image(image, node) => Some((image, *node)),
        }
    }

    /// What the user would call an entry of this directory.
    pub fn entry(&self, name: &[u8]) -> Vec<u8> {
        self.name.entry(name).bytes()
    }

    /// What the messages call an entry of this directory.
    pub fn entry_name(&self, name: &[u8]) -> String {
        quote::shown(&self.entry(name)).into_owned()
    }

    /// What there is to know about it.
    pub fn facts(&self) -> Result<Facts> {
        match &self.at {
            At::Host(place) => place.facts(),
            At::Image(image, node) => image.facts(*node),
        }
    }

    /// Whether it is a directory.
    pub fn is_directory(&self) -> Result<bool> {
        Ok(self.facts()?.kind == Kind::Directory)
    }

    /// Whether this is a directory on which something is mounted.
    pub fn is_mount_point(&self, facts: &Facts) -> bool {
        let look = || match &self.at {
            At::Host(place) => facts.kind == Kind::Directory && place.is_on_another_mount(),
            At::Image(..) => false,
        };
        facts.is_mount_point.unwrap_or_else(look)
    }

    /// The names in this directory and what they stand for, sorted by name.
    pub fn list(&self) -> Result<Listed> {
        let mut listed = self.list_in_order()?;
        listed.entries.sort_by(|(one, _), (other, _)| one.cmp(other));
        Ok(listed)
    }

    /// The same in the order of the directory: on btrfs the one in which the names were made.
    pub fn list_in_order(&self) -> Result<Listed> {
        let (names, passed): (Names, _) = match &self.at {
            At::Host(place) => {
                let names = place.list()?.into_iter().map(|(name, at)| (name, At::Host(at)));
                (names.collect(), Vec::new())
            }
            At::Image(image, node) => image.list(*node)?,
        };
        let vnode = |(name, at): (Vec<u8>, At)| {
            let vnode = Vnode { name: self.name.entry(&name), at };
            (name, vnode)
        };
        Ok(Listed { entries: names.into_iter().map(vnode).collect(), passed })
    }

    /// An entry of this directory, if it is there.
    pub fn child(&self, name: &[u8]) -> Result<Option<Vnode>> {
        check_name(name)?;
        let found = match &self.at {
            At::Host(place) => place.found(name)?.map(At::Host),
            At::Image(image, node) => image.child(*node, name)?,
        };
        Ok(found.map(|at| Vnode { name: self.name.entry(name), at }))
    }

    /// Where a symbolic link leads.
    pub fn read_link(&self) -> Result<Vec<u8>> {
        match &self.at {
            At::Host(place) => place.read_link(),
            At::Image(image, node) => Ok(image.fs().read_link(*node)?),
        }
    }

    /// Where the data of a regular file are: its extents, in order.
    pub fn fiemap(&self) -> Result<Box<dyn Iterator<Item = Result<FileExtent>>>> {
        match &self.at {
            At::Host(place) => Ok(Box::new(extents::Extents::of(place.reader()?)?)),
            At::Image(image, node) => {
                let extents = image.fs().fiemap(*node, 0..u64::MAX)?;
                Ok(Box::new(extents.map(|one| one.map_err(FileError::from))))
            }
        }
    }

    /// Opens a regular file for reading.
    pub fn reader(&self) -> Result<Box<dyn Read>> {
        match &self.at {
            At::Host(place) => Ok(Box::new(place.reader()?)),
            At::Image(image, node) => image.reader(*node),
        }
    }

    /// The content from its beginning to its end, of whatever has one: on this machine a pipe or a device, too.
    pub fn content(&self) -> Result<Box<dyn io::Read>> {
        match &self.at {
            At::Host(place) => Ok(Box::new(place.source()?)),
            At::Image(image, node) => {
                Ok(Box::new(InOrder { reader: image.reader(*node)?, offset: 0 }))
            }
        }
    }

    /// Opens a pipe or device of this machine for writing.
    pub fn sink(&self) -> Result<Box<dyn io::Write>> {
        match &self.at {
            At::Host(place) => Ok(Box::new(place.sink()?)),
            At::Image(..) => Err(rustix::io::Errno::OPNOTSUPP.into()),
        }
    }

    /// Opens a regular file for writing; what it holds is lost.
    pub fn writer(&self) -> Result<Box<dyn Write>> {
        match &self.at {
            At::Host(place) => Ok(Box::new(place.writer()?)),
            At::Image(image, node) => image.writer(*node),
        }
    }

    /// Makes something new in this directory.
    pub fn make(&self, name: &[u8], new: &New) -> Result<Vnode> {
        check_name(name)?;
        let at = match &self.at {
            At::Host(place) => At::Host(place.make(name, new)?),
            At::Image(image, node) => image.make(*node, name, new)?,
        };
        Ok(Vnode { name: self.name.entry(name), at })
    }

    /// Gives a file another name in this directory.
    pub fn link(&self, name: &[u8], file: &Vnode) -> Result<()> {
        check_name(name)?;
        match (&self.at, &file.at) {
            (At::Host(directory), At::Host(file)) => directory.link(name, file),
            (At::Image(image, directory), At::Image(other, node)) if image.is(other) => {
                image.may_add(*directory)?;
                image.may_change(*node)?;
                image.fs().link(*node, *directory, name)?;
                Ok(())
            }
            _ => Err(FileError::errno(rustix::io::Errno::XDEV)),
        }
    }

    /// Removes a name of this directory that stands for anything but a directory.
    pub fn unlink(&self, name: &[u8]) -> Result<()> {
        check_name(name)?;
        match &self.at {
            At::Host(place) => place.remove(name, false),
            At::Image(image, node) => {
                image.may_remove(*node, name)?;
                image.fs().unlink(*node, name)?;
                Ok(())
            }
        }
    }

    /// Removes an empty directory from this directory.
    pub fn remove_directory(&self, name: &[u8]) -> Result<()> {
        check_name(name)?;
        match &self.at {
            At::Host(place) => place.remove(name, true),
            At::Image(image, node) => {
                image.may_remove(*node, name)?;
                image.fs().rmdir(*node, name)?;
                Ok(())
            }
        }
    }

    /// Moves an entry of this directory to another directory or name; what is there goes.
    pub fn rename(&self, name: &[u8], to: &Vnode, new_name: &[u8]) -> Result<()> {
        check_name(name)?;
        check_name(new_name)?;
        match (&self.at, &to.at) {
            (At::Host(from), At::Host(to)) => from.rename(name, to, new_name),
            (At::Image(image, from), At::Image(other, to)) if image.is(other) => {
                image.may_remove(*from, name)?;
                image.may_replace(*to, new_name)?;
                let how = buttress::Rename::Replace;
                Ok(image.fs().rename(*from, name, *to, new_name, how)?)
            }
            _ => Err(FileError::errno(rustix::io::Errno::XDEV)),
        }
    }

    /// Makes durable all that was done in the filesystem that this directory is in.
    pub fn make_durable(&self) -> Result<()> {
        match &self.at {
            At::Host(place) => place.make_durable(),
            At::Image(image, _) => Ok(image.fs().commit().map(drop)?),
        }
    }

    /// Changes owner and group, those that are given; set-id bits go with the old owner.
    pub fn set_owner(&self, uid: Option<u32>, gid: Option<u32>) -> Result<()> {
        match &self.at {
            At::Host(place) => place.set_owner(uid, gid),
            At::Image(image, node) => image.set_owner(*node, uid, gid),
        }
    }

    /// Changes the permission bits; not of symbolic links.
    pub fn set_mode(&self, mode: u32) -> Result<()> {
        match &self.at {
            At::Host(place) => place.set_mode(mode),
            At::Image(image, node) => image.set_mode(*node, mode),
        }
    }

    /// Changes when it was read and changed.
    pub fn set_times(&self, atime: Time, mtime: Time) -> Result<()> {
        match &self.at {
            At::Host(place) => place.set_times(atime, mtime),
            At::Image(image, node) => image.change(*node, |it| {
                it.atime = Some(atime);
                it.mtime = Some(mtime);
            }),
        }
    }

    /// All extended attributes.
    pub fn xattrs(&self) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
        match &self.at {
            At::Host(place) => place.xattrs(),
            At::Image(image, node) => image.xattrs(*node),
        }
    }

    /// Sets an extended attribute.
    pub fn set_xattr(&self, name: &[u8], value: &[u8]) -> Result<()> {
        match &self.at {
            At::Host(place) => place.set_xattr(name, value),
            At::Image(image, node) => {
                image.may_change(*node)?;
                Ok(image.fs().set_xattr(*node, name, value, buttress::SetXattr::Any)?)
            }
        }
    }

    /// Makes an empty file share the data of another one, where both are in one filesystem; whether it does.
    pub fn share(&self, from: &Vnode, len: u64) -> Result<bool> {
        match (&self.at, &from.at) {
            (At::Image(image, to), At::Image(other, from)) if image.is(other) => {
                image.share(*from, *to, len)
            }
            (At::Host(to), At::Host(from)) => Ok(to.share(from, len)),
            _ => Ok(false),
        }
    }

    /// Whether this is the same file as another vnode, by a name or under another one.
    pub fn is_same(&self, other: &Vnode) -> Result<bool> {
        let same_tree = match (&self.at, &other.at) {
            (At::Host(_), At::Host(_)) => true,
            (At::Image(one, _), At::Image(other, _)) => one.is(other),
            _ => false,
        };
        if !same_tree {
            return Ok(false);
        }
        let (one, other) = (self.facts()?, other.facts()?);
        Ok((one.volume, one.ino) == (other.volume, other.ino))
    }

    /// A failure here: what was tried, this place, why not.
    pub fn failure(&self, what: &str, why: impl Display) -> Failure {
        Failure::new(what, self, why)
    }
}

/// Refuses names that could lead out of a directory, whatever an image calls its files.
fn check_name(name: &[u8]) -> Result<()> {
    match name {
        b"" | b"." | b".." => Err(FileError::errno(rustix::io::Errno::INVAL)),
        _ if name.contains(&b'/') || name.contains(&0) => {
            Err(FileError::errno(rustix::io::Errno::INVAL))
        }
        _ => Ok(()),
    }
}
