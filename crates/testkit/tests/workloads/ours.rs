//! What the library shows, as facts.

use buttress::{Attributes, FileKind, Filesystem, Node, Seek};
use buttress_testkit::facts::{Digest, Facts, Kind, Listing, Source, Stat, Xattr, facts_of};

/// Bytes read at once.
const READ_LEN: usize = 1 << 20;

struct Ours<'a> {
    fs: &'a Filesystem,
    top: Node,
    buffer: Vec<u8>,
}

/// Facts of the whole filesystem, subvolumes and all.
pub fn facts(fs: &Filesystem) -> Facts {
    facts_below(fs, Node::ROOT)
}

/// Facts of a directory and all that is in it.
pub fn facts_below(fs: &Filesystem, top: Node) -> Facts {
    facts_of(&mut Ours { fs, top, buffer: vec![0; READ_LEN] }).unwrap()
}

fn kind(kind: FileKind) -> Kind {
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

fn stat(of: &Attributes) -> Stat {
    Stat {
        identity: (of.node.subvolume, of.node.ino),
        ino: of.node.ino,
        kind: kind(of.kind),
        mode: of.mode,
        uid: of.uid,
        gid: of.gid,
        nlink: of.nlink,
        size: of.size,
        mtime: (of.mtime.sec, of.mtime.nsec),
        rdev: ((of.rdev >> 20) as u32, (of.rdev & 0xf_ffff) as u32),
    }
}

impl Source for Ours<'_> {
    type Node = Node;
    type Error = String;

    fn root(&mut self) -> Result<Node, String> {
        Ok(self.top)
    }

    fn stat(&mut self, node: &Node) -> Result<Option<Stat>, String> {
        let found = self.fs.attributes(*node).map_err(|error| format!("{node:?}: {error}"))?;
        Ok(Some(stat(&found)))
    }

    fn list(&mut self, dir: &Node) -> Result<Listing<Node>, String> {
        let mut found = Vec::new();
        let listed = self.fs.read_dir(*dir, 0, &mut |entry| {
            found.push((entry.name, entry.node));
            true
        });
        listed.map(|()| found).map_err(|error| format!("{dir:?}: {error}"))
    }

    fn readlink(&mut self, node: &Node) -> Result<Vec<u8>, String> {
        self.fs.read_link(*node).map_err(|error| format!("{node:?}: {error}"))
    }

    fn xattrs(&mut self, node: &Node) -> Result<Vec<Xattr>, String> {
        let failed = |error| format!("{node:?}: {error}");
        let names = self.fs.list_xattrs(*node).map_err(failed)?;
        let value = |name: Vec<u8>| {
            let value = self.fs.get_xattr(*node, &name).map_err(failed)?;
            Ok((name, value.ok_or("a listed xattr is not there")?))
        };
        names.into_iter().map(value).collect()
    }

    fn content(&mut self, node: &Node, digest: &mut Digest) -> Result<(), String> {
        let failed = |error| format!("{node:?}: {error}");
        let size = self.fs.attributes(*node).map_err(failed)?.size;
        let mut at = 0;
        while at < size {
            at = match self.fs.seek(*node, at, Seek::Data) {
                Ok(at) => at,
                Err(error) if error.errno() == buttress::Errno::NXIO => break,
                Err(error) => return Err(failed(error)),
            };
            let end = self.fs.seek(*node, at, Seek::Hole).map_err(failed)?.min(size);
            while at < end {
                let room = self.buffer.len().min((end - at) as usize);
                let count = self.fs.read(*node, at, &mut self.buffer[..room]).map_err(failed)?;
                if count == 0 {
                    return Err(format!("{node:?}: nothing at {at} of {size}"));
                }
                digest.add(at, &self.buffer[..count]);
                at += count as u64;
            }
        }
        Ok(())
    }
}
