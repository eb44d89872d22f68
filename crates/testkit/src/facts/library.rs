//! Facts of a filesystem that our library has opened.

use buttress::{Errno, Error, FileKind, Filesystem, Node, Seek};

use super::{Digest, Facts, Kind, Listing, Source, Stat, Xattr, facts_of};

/// Bytes read at once.
const READ_BYTES: usize = 256 << 10;

/// Facts of what the kernel shows when it mounts the filesystem without a word about subvolumes: the tree under the
/// default subvolume.
pub fn facts_of_library(fs: &Filesystem) -> Result<Facts, Error> {
    facts_of_node(fs, Node::top(fs.default_subvolume()?))
}

/// Facts of the tree under a directory, across subvolumes.
pub fn facts_of_node(fs: &Filesystem, top: Node) -> Result<Facts, Error> {
    facts_of(&mut Library { fs, top, buffer: vec![0; READ_BYTES] })
}

/// A tree reached through the library.
struct Library<'a> {
    fs: &'a Filesystem,
    top: Node,
    buffer: Vec<u8>,
}

fn kind_of(kind: FileKind) -> Kind {
    match kind {
        FileKind::Regular => Kind::File,
        FileKind::Directory => Kind::Dir,
        FileKind::Symlink => Kind::Symlink,
        FileKind::Character => Kind::Char,
        FileKind::Block => Kind::Block,
        FileKind::Fifo => Kind::Fifo,
        FileKind::Socket => Kind::Socket,
    }
}

impl Source for Library<'_> {
    type Node = Node;
    type Error = Error;

    fn root(&mut self) -> Result<Node, Error> {
        Ok(self.top)
    }

    fn stat(&mut self, node: &Node) -> Result<Option<Stat>, Error> {
        let found = self.fs.attributes(*node)?;
        let device = matches!(found.kind, FileKind::Character | FileKind::Block);
        let rdev = if device { found.rdev } else { 0 };
        Ok(Some(Stat {
            identity: (node.subvolume, node.ino),
            ino: node.ino,
            kind: kind_of(found.kind),
            mode: found.mode,
            uid: found.uid,
            gid: found.gid,
            nlink: found.nlink,
            size: found.size,
            mtime: (found.mtime.sec, found.mtime.nsec),
            rdev: ((rdev >> 20) as u32, (rdev & 0xf_ffff) as u32),
        }))
    }

    fn list(&mut self, dir: &Node) -> Result<Listing<Node>, Error> {
        let mut found = Vec::new();
        self.fs.read_dir(*dir, 0, &mut |entry| {
            found.push((entry.name, entry.node));
            true
        })?;
        Ok(found)
    }

    fn readlink(&mut self, node: &Node) -> Result<Vec<u8>, Error> {
        self.fs.read_link(*node)
    }

    fn xattrs(&mut self, node: &Node) -> Result<Vec<Xattr>, Error> {
        let mut found = Vec::new();
        for name in self.fs.list_xattrs(*node)? {
            let value = self.fs.get_xattr(*node, &name)?.ok_or(Error::User(Errno::NODATA))?;
            found.push((name, value));
        }
        Ok(found)
    }

    fn content(&mut self, node: &Node, digest: &mut Digest) -> Result<(), Error> {
        let size = self.fs.attributes(*node)?.size;
        let mut from = 0;
        while from < size {
            let data = match self.fs.seek(*node, from, Seek::Data) {
                Err(Error::User(Errno::NXIO)) => return Ok(()),
                other => other?,
            };
            let hole = self.fs.seek(*node, data, Seek::Hole)?.min(size);
            self.segment(*node, data..hole, digest)?;
            from = hole.max(data.saturating_add(1));
        }
        Ok(())
    }
}

impl Library<'_> {
    /// Reads one run of data.
    fn segment(
        &mut self,
        node: Node,
        range: std::ops::Range<u64>,
        digest: &mut Digest,
    ) -> Result<(), Error> {
        let mut offset = range.start;
        while offset < range.end {
            let wanted = (range.end - offset).min(READ_BYTES as u64) as usize;
            let room = self.buffer.get_mut(..wanted).unwrap_or_default();
            let count = self.fs.read(node, offset, room)?;
            if count == 0 {
                return Ok(());
            }
            digest.add(offset, room.get(..count).unwrap_or_default());
            offset += count as u64;
        }
        Ok(())
    }
}
