//! Vnodes inside an unmounted image, through the library.

use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use rustix::io::Errno;

use super::{At, Facts, FileError, Kind, Names, New, Read, Result, Write};
use crate::quote;
use buttress::{Attributes, Change, FileKind, Filesystem, Node, Seek, acl};
use buttress_ondisk::item::{inode_flags, mode};

/// A device number on the disk is `major << MINOR_BITS | minor`.
const MINOR_BITS: u32 = 20;

/// The inode number that Linux shows of what stands for a subvolume in a snapshot (`BTRFS_EMPTY_SUBVOL_DIR_OBJECTID`).
const STUB: u64 = 2;

/// Flags of what keeps its content, its attributes and its name.
const PROTECTING: u64 = inode_flags::IMMUTABLE | inode_flags::APPEND;

/// Bytes moved at a time.
const PIECE: u64 = 1 << 20;
/// Links that are followed one after the other, as many as Linux follows.
const LINKS_MAX: u32 = 40;

/// An open filesystem and what the user called it.
#[derive(Clone)]
pub struct Image {
    fs: Filesystem,
    name: Arc<Path>,
    /// Who new files belong to, and which permissions they do not get.
    creator: Creator,
}

/// What new files get from whoever makes them.
#[derive(Clone, Copy, Debug)]
struct Creator {
    uid: u32,
    gid: u32,
    umask: u32,
}

impl Creator {
    fn this_process() -> Creator {
        Creator {
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
            umask: this_umask(),
        }
    }
}

/// The permissions that new files of this process do not get.
pub fn this_umask() -> u32 {
    let umask = rustix::process::umask(rustix::fs::Mode::empty());
    rustix::process::umask(umask);
    umask.as_raw_mode()
}

impl fmt::Debug for Image {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Image").field(&self.name).finish()
    }
}

impl Image {
    /// An open filesystem under the name the user gave.
    pub fn new(fs: Filesystem, name: &Path) -> Image {
        Image { fs, name: name.into(), creator: Creator::this_process() }
    }

    /// The filesystem.
    pub fn fs(&self) -> &Filesystem {
        &self.fs
    }

    /// The device, as the user gave it.
    pub fn device(&self) -> &Path {
        &self.name
    }

    /// Whether this is the same open filesystem.
    pub fn is(&self, other: &Image) -> bool {
        Arc::ptr_eq(&self.name, &other.name)
    }

    /// What the user would call a path in it.
    pub fn bytes_of(&self, path: &[u8]) -> Vec<u8> {
        let start = path.iter().position(|byte| *byte != b'/').unwrap_or(path.len());
        let (_, path) = path.split_at(start);
        [self.name.as_os_str().as_bytes(), b":/", path].concat()
    }

    /// What messages call a path in it.
    pub fn name_of(&self, path: &[u8]) -> String {
        quote::shown(&self.bytes_of(path)).into_owned()
    }

    /// Owner and group of new files.
    pub fn owner(&self) -> buttress::Owner {
        let Creator { uid, gid, umask } = self.creator;
        buttress::Owner { uid, gid, umask }
    }

    /// The path of what a path leads to, if it is a link.
    pub(super) fn through_links(&self, path: &[u8]) -> Result<Vec<u8>> {
        let mut path = path.to_vec();
        for links in 0..=LINKS_MAX {
            let node = match self.fs.resolve_at(Node::ROOT, &path, false) {
                Ok(node) => node,
                Err(error) if links == 0 && error.errno() == Errno::NOENT => return Ok(path),
                Err(error) => return Err(error.into()),
            };
            if self.fs.attributes(node)?.kind != FileKind::Symlink {
                return Ok(path);
            }
            let target = self.fs.read_link(node)?;
            path = match target.starts_with(b"/") {
                true => target,
                false => [super::session::directory_part(&path), &target].join(&b'/'),
            };
        }
        Err(Errno::LOOP.into())
    }

    pub(super) fn facts(&self, node: Node) -> Result<Facts> {
        Ok(facts(&self.fs.attributes(node)?))
    }

    /// Refuses an inode with one of the flags, as Linux does, for root too.
    fn without(&self, node: Node, flags: u64, what: &str) -> Result<()> {
        let why = match self.fs.attributes(node)?.flags & flags {
            0 => return Ok(()),
            found if found & inode_flags::IMMUTABLE != 0 => "immutable",
            _ => "append-only",
        };
        let text = format!("Operation not permitted: {what} {why}");
        Err(FileError { errno: Errno::PERM.raw_os_error(), text })
    }

    /// Refuses to change what is immutable or append-only.
    pub(super) fn may_change(&self, node: Node) -> Result<()> {
        self.without(node, PROTECTING, "it is")
    }

    /// Refuses new names in an immutable directory.
    pub(super) fn may_add(&self, directory: Node) -> Result<()> {
        self.without(directory, inode_flags::IMMUTABLE, "its directory is")
    }

    /// Refuses to take away a protected name, or any from a protected directory.
    pub(super) fn may_remove(&self, directory: Node, name: &[u8]) -> Result<()> {
        self.without(directory, PROTECTING, "its directory is")?;
        match self.fs.lookup(directory, name)? {
            Some(entry) => self.may_change(entry.node),
            None => Ok(()),
        }
    }

    /// The same for a name that may be taken already.
    pub(super) fn may_replace(&self, directory: Node, name: &[u8]) -> Result<()> {
        match self.fs.lookup(directory, name)? {
            Some(_) => self.may_remove(directory, name),
            None => self.may_add(directory),
        }
    }

    /// The names in a directory, and what was passed over.
    pub(super) fn list(&self, node: Node) -> Result<(Names, Vec<FileError>)> {
        let (mut names, mut passed) = (Vec::new(), Vec::new());
        self.fs.read_dir_past(node, &mut |why| passed.push(why.into()), &mut |entry| {
            names.push((entry.name, At::Image(self.clone(), entry.node)));
            true
        })?;
        Ok((names, passed))
    }

    pub(super) fn child(&self, node: Node, name: &[u8]) -> Result<Option<At>> {
        let found = self.fs.lookup(node, name)?;
        Ok(found.map(|entry| At::Image(self.clone(), entry.node)))
    }

    pub(super) fn reader(&self, node: Node) -> Result<Box<dyn Read>> {
        let attributes = self.fs.attributes(node)?;
        if attributes.kind == FileKind::Directory {
            return Err(Errno::ISDIR.into());
        }
        Ok(Box::new(Content { fs: self.fs.clone(), node, size: attributes.size }))
    }

    pub(super) fn writer(&self, node: Node) -> Result<Box<dyn Write>> {
        self.may_change(node)?;
        let attributes = self.fs.attributes(node)?;
        let mut content = Content { fs: self.fs.clone(), node, size: attributes.size };
        if attributes.size > 0 {
            content.set_len(0)?;
        }
        Ok(Box::new(content))
    }

    pub(super) fn make(&self, directory: Node, name: &[u8], new: &New) -> Result<At> {
        self.may_add(directory)?;
        let new = buttress::New {
            kind: file_kind(new.kind),
            mode: new.mode & mode::PERMISSIONS,
            umask: self.creator.umask,
            uid: self.creator.uid,
            gid: self.creator.gid,
            rdev: u64::from(new.device.0) << MINOR_BITS | u64::from(new.device.1),
            target: new.target.clone(),
            times: None,
            inherit: true,
        };
        let made = self.fs.create(directory, name, &new)?;
        Ok(At::Image(self.clone(), made.node))
    }

    pub(super) fn change(&self, node: Node, set: impl FnOnce(&mut Change)) -> Result<()> {
        self.may_change(node)?;
        let mut change = Change::default();
        set(&mut change);
        self.fs.set_attributes(node, &change)?;
        Ok(())
    }

    /// The access ACL says the same as the mode.
    pub(super) fn set_mode(&self, node: Node, mode: u32) -> Result<()> {
        let acl = self.fs.get_xattr(node, acl::ACCESS)?;
        let acl = acl.map(|acl| acl::with_mode(&acl, mode)).transpose()?;
        self.change(node, |it| it.mode = Some(mode))?;
        let Some(acl) = acl else { return Ok(()) };
        Ok(self.fs.set_xattr(node, acl::ACCESS, &acl, buttress::SetXattr::Any)?)
    }

    /// A new owner does not get what a set-id bit gave whoever ran the file.
    pub(super) fn set_owner(&self, node: Node, uid: Option<u32>, gid: Option<u32>) -> Result<()> {
        let before = self.fs.attributes(node)?;
        let mut bits = before.mode & mode::PERMISSIONS & !mode::SET_UID;
        if bits & mode::GROUP_EXECUTE != 0 {
            bits &= !mode::SET_GID;
        }
        let keeps = matches!(before.kind, FileKind::Directory | FileKind::Symlink);
        self.change(node, |it| {
            it.uid = uid;
            it.gid = gid;
            it.mode = (!keeps && bits != before.mode & mode::PERMISSIONS).then_some(bits);
        })
    }

    pub(super) fn xattrs(&self, node: Node) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
        let mut found = Vec::new();
        for name in self.fs.list_xattrs(node)? {
            if let Some(value) = self.fs.get_xattr(node, &name)? {
                found.push((name, value));
            }
        }
        Ok(found)
    }

    /// Shares all data of a file with an empty one; `false` where the filesystem cannot.
    pub(super) fn share(&self, from: Node, to: Node, len: u64) -> Result<bool> {
        if len == 0 {
            return Ok(true);
        }
        match self.fs.clone_range(from, 0, len, to, 0) {
            Ok(_) => Ok(true),
            Err(error) => match error.errno() {
                Errno::INVAL | Errno::OPNOTSUPP | Errno::XDEV => Ok(false),
                _ => Err(error.into()),
            },
        }
    }
}

fn facts(it: &Attributes) -> Facts {
    Facts {
        kind: kind(it.kind),
        mode: it.mode & mode::PERMISSIONS,
        uid: it.uid,
        gid: it.gid,
        nlink: it.nlink.into(),
        size: it.size,
        allocated: it.blocks_bytes,
        device: ((it.rdev >> MINOR_BITS) as u32, (it.rdev & ((1 << MINOR_BITS) - 1)) as u32),
        atime: it.atime,
        mtime: it.mtime,
        ctime: it.ctime,
        otime: Some(it.otime),
        volume: it.node.within(),
        ino: if it.node.is_stub() { STUB } else { it.node.ino },
        is_mount_point: Some(false),
    }
}

fn kind(kind: FileKind) -> Kind {
    match kind {
        FileKind::Regular => Kind::Regular,
        FileKind::Directory => Kind::Directory,
        FileKind::Symlink => Kind::Symlink,
        FileKind::Character => Kind::Character,
        FileKind::Block => Kind::Block,
        FileKind::Fifo => Kind::Fifo,
        FileKind::Socket => Kind::Socket,
    }
}

fn file_kind(kind: Kind) -> FileKind {
    match kind {
        Kind::Regular => FileKind::Regular,
        Kind::Directory => FileKind::Directory,
        Kind::Symlink => FileKind::Symlink,
        Kind::Character => FileKind::Character,
        Kind::Block => FileKind::Block,
        Kind::Fifo => FileKind::Fifo,
        Kind::Socket => FileKind::Socket,
    }
}

/// A regular file's content.
struct Content {
    fs: Filesystem,
    node: Node,
    /// Bytes when it was opened.
    size: u64,
}

impl Read for Content {
    fn read_at(&mut self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        Ok(self.fs.read(self.node, offset, buf)?)
    }

    fn next_data(&mut self, offset: u64) -> Result<Option<(u64, u64)>> {
        if offset >= self.size {
            return Ok(None);
        }
        let start = match self.fs.seek(self.node, offset, Seek::Data) {
            Ok(start) => start,
            Err(error) if error.errno() == Errno::NXIO => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let end = self.fs.seek(self.node, start, Seek::Hole)?;
        Ok(Some((start, end)))
    }
}

impl Write for Content {
    fn write_at(&mut self, mut offset: u64, mut data: &[u8]) -> Result<()> {
        while !data.is_empty() {
            let piece = data.get(..PIECE as usize).unwrap_or(data);
            let written = self.fs.write(self.node, offset, piece)?;
            if written == 0 {
                return Err(Errno::IO.into());
            }
            data = data.get(written..).unwrap_or_default();
            offset = offset.saturating_add(written as u64);
        }
        Ok(())
    }

    fn set_len(&mut self, len: u64) -> Result<()> {
        let change = Change { size: Some(len), ..Change::default() };
        self.fs.set_attributes(self.node, &change)?;
        Ok(())
    }
}
