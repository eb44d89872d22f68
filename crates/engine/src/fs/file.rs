//! Open files, for programs: the standard library's `Read`, `Write` and `Seek`.

use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use super::Filesystem;
use super::paths::names_a_directory;
use super::types::{Attributes, Change, FileKind, New, Node};
use crate::error::{Errno, Error, Result};

/// How often a file is looked for that others make and remove at the same time, or that links lead to.
const TRIES_MAX: u32 = 40;

/// How a file is opened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OpenMode {
    /// Writing is allowed.
    pub write: bool,
    /// Makes the file, with this mode, when there is none.
    pub create: Option<u32>,
    /// There must be none (EEXIST).
    pub exclusive: bool,
    /// Cuts the file to nothing.
    pub truncate: bool,
    /// Writes go to the end.
    pub append: bool,
}

impl OpenMode {
    /// Reading only.
    pub fn read() -> OpenMode {
        OpenMode::default()
    }

    /// Reading and writing what is there.
    pub fn read_write() -> OpenMode {
        OpenMode { write: true, ..OpenMode::default() }
    }

    /// Writing a file from its start, making it with this mode when there is none.
    pub fn create(mode: u32) -> OpenMode {
        OpenMode { write: true, create: Some(mode), truncate: true, ..OpenMode::default() }
    }
}

/// An open regular file. It stays when its last name goes, until this is dropped.
#[derive(Debug)]
pub struct File {
    filesystem: Filesystem,
    node: Node,
    position: u64,
    mode: OpenMode,
}

impl Filesystem {
    /// Opens the regular file at `path`. Where it is to be made, and the path ends with a symbolic link that leads nowhere,
    /// it is made where the link leads.
    pub fn open_file(&self, path: impl AsRef<Path>, mode: OpenMode) -> Result<File> {
        let mut start = Node::ROOT;
        let mut path = path.as_ref().as_os_str().as_bytes().to_vec();
        for _ in 0..TRIES_MAX {
            let node = match (self.resolve_at(start, &path, true), mode.create) {
                (Err(Error::User(Errno::NOENT)), Some(permissions)) => {
                    if names_a_directory(&path) {
                        return Err(Error::User(Errno::ISDIR));
                    }
                    let (dir, name) = self.resolve_parent_at(start, &path)?;
                    match self.create(dir, &name, &New::file(permissions)) {
                        Err(Error::User(Errno::EXIST)) if !mode.exclusive => {
                            // Somebody else was faster, or it is a link.
                            if let Some(target) = self.link_at(dir, &name)? {
                                (start, path) = (dir, target);
                            }
                            continue;
                        }
                        made => made?.node,
                    }
                }
                (Ok(_), Some(_)) if mode.exclusive => return Err(Error::User(Errno::EXIST)),
                (node, _) => node?,
            };
            match self.open_node(node, mode.clone()) {
                // Removed since it was found.
                Err(Error::User(Errno::NOENT)) if mode.create.is_some() => {}
                opened => return opened,
            }
        }
        Err(Error::User(Errno::LOOP))
    }

    /// Where the symbolic link `name` leads, if it is one.
    fn link_at(&self, dir: Node, name: &[u8]) -> Result<Option<Vec<u8>>> {
        match self.lookup(dir, name)? {
            Some(entry) if entry.kind == FileKind::Symlink => self.read_link(entry.node).map(Some),
            _ => Ok(None),
        }
    }

    /// Opens a regular file to write it from its start, making it with this mode when there is none.
    pub fn create_file(&self, path: impl AsRef<Path>, mode: u32) -> Result<File> {
        self.open_file(path, OpenMode::create(mode))
    }

    /// Opens a regular file by number.
    pub fn open_node(&self, node: Node, mode: OpenMode) -> Result<File> {
        let attributes = self.attributes(node)?;
        match attributes.kind {
            FileKind::Regular => {}
            FileKind::Directory => return Err(Error::User(Errno::ISDIR)),
            _ => return Err(Error::User(Errno::INVAL)),
        }
        self.hold(node)?;
        let file = File { filesystem: self.clone(), node, position: 0, mode };
        if file.mode.truncate && file.mode.write && attributes.size > 0 {
            file.set_len(0)?;
        }
        Ok(file)
    }
}

impl File {
    /// Its number.
    pub fn node(&self) -> Node {
        self.node
    }

    /// What `stat` tells.
    pub fn attributes(&self) -> Result<Attributes> {
        self.filesystem.attributes(self.node)
    }

    /// Bytes.
    pub fn len(&self) -> Result<u64> {
        Ok(self.attributes()?.size)
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> Result<bool> {
        Ok(self.len()? == 0)
    }

    /// Cuts or grows it.
    pub fn set_len(&self, size: u64) -> Result<()> {
        self.may_write()?;
        let change = Change { size: Some(size), ..Change::default() };
        self.filesystem.set_attributes(self.node, &change).map(|_| ())
    }

    /// Reads up to `buf.len()` bytes at `offset`; answers how many there were, 0 at the end.
    pub fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<usize> {
        self.filesystem.read(self.node, offset, buf)
    }

    /// Writes `data` at `offset`; answers how much was written.
    pub fn write_at(&self, data: &[u8], offset: u64) -> Result<usize> {
        self.may_write()?;
        self.filesystem.write(self.node, offset, data)
    }

    /// Makes what was written durable.
    pub fn sync(&self) -> Result<()> {
        self.filesystem.sync(self.node)
    }

    fn may_write(&self) -> Result<()> {
        if self.mode.write { Ok(()) } else { Err(Error::User(Errno::BADF)) }
    }
}

impl Drop for File {
    fn drop(&mut self) {
        // A file without a name that cannot be deleted now is an orphan that the next open deletes.
        let _ = self.filesystem.release(self.node);
    }
}

impl io::Read for File {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let read = self.read_at(buf, self.position)?;
        self.position += read as u64;
        Ok(read)
    }
}

impl io::Write for File {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        if self.mode.append {
            self.may_write()?;
            let (at, written) = self.filesystem.append(self.node, data)?;
            self.position = at + written as u64;
            return Ok(written);
        }
        let written = self.write_at(data, self.position)?;
        self.position += written as u64;
        Ok(written)
    }

    /// Nothing is kept back here; durable it is after [`File::sync`].
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl io::Seek for File {
    fn seek(&mut self, to: io::SeekFrom) -> io::Result<u64> {
        let position = match to {
            io::SeekFrom::Start(position) => Some(position),
            io::SeekFrom::Current(by) => self.position.checked_add_signed(by),
            io::SeekFrom::End(by) => self.len()?.checked_add_signed(by),
        };
        let position = position.filter(|position| *position <= i64::MAX as u64);
        self.position = position.ok_or(Error::User(Errno::INVAL))?;
        Ok(self.position)
    }
}
