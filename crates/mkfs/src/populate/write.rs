//! The third stage: everything is created through the public interface of the engine, in the order of the list.
//!
//! A directory's times are set when its last entry is there; a file's after its content. Files with several links become
//! links again, within each subvolume: between subvolumes there are none, so there each gets a copy.
//!
//! Of the times only that of the last change of content is the source's: reading the source changes its access times, and
//! nobody can set a time of creation or of change, so two copies of a source would never make the same filesystem.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use buttress::{Change, Errno, FileKind, Filesystem, New, Node, Owner, SetXattr, Time, Times};
use rustix::fs::FileType;

use super::read::{
    Batch, Entry, Piece, Segments, Stat, What, open, read_full, read_top, require_whole,
};
use super::subvolumes::{Subvolume, SubvolumeKind};
use super::walk::DirId;
use super::{Populate, Populated};
use crate::MkfsError;

/// Bytes of a large file that are read at a time.
const STREAM_LEN: u64 = 4 << 20;

/// A directory that is being filled.
#[derive(Debug)]
struct Dir {
    node: Node,
    stat: Stat,
    /// Relative to the top of the source.
    path: PathBuf,
}

/// The writing stage.
#[derive(Debug)]
pub(crate) struct Writer<'a> {
    fs: &'a Filesystem,
    source: &'a Path,
    subvolumes: HashMap<&'a Path, SubvolumeKind>,
    dirs: HashMap<DirId, Dir>,
    /// Files with several links, by subvolume and source file; how many of their names are still to come.
    links: HashMap<(u64, (u64, u64)), (Node, u64)>,
    /// Subvolumes made, and what is still to be done about them.
    made: Vec<(u64, SubvolumeKind)>,
    buffer: Vec<u8>,
    /// When everything is made.
    now: Time,
    done: Populated,
}

impl<'a> Writer<'a> {
    /// Begins with the top directory.
    pub fn new(
        fs: &'a Filesystem,
        source: &'a Path,
        options: &'a Populate,
    ) -> Result<Writer<'a>, MkfsError> {
        let kind = |subvolume: &'a Subvolume| (subvolume.path.as_path(), subvolume.kind);
        let mut writer = Writer {
            fs,
            source,
            subvolumes: options.subvolumes.iter().map(kind).collect(),
            dirs: HashMap::new(),
            links: HashMap::new(),
            made: Vec::new(),
            buffer: Vec::new(),
            now: fs.core().env.now(),
            done: Populated::default(),
        };
        let mut top = read_top(source)?;
        if let Some((uid, gid)) = options.owner {
            (top.stat.uid, top.stat.gid) = (uid, gid);
        }
        let dir = Dir { node: Node::ROOT, stat: top.stat, path: PathBuf::new() };
        writer.xattrs(dir.node, &dir.path, &top)?;
        writer.dirs.insert(0, dir);
        Ok(writer)
    }

    /// Creates what a batch holds.
    pub fn batch(&mut self, batch: &mut Batch) -> Result<(), MkfsError> {
        let Some(dir) = self.dirs.get(&batch.directory) else { return Ok(()) };
        let (parent, path) = (dir.node, dir.path.clone());
        for entry in std::mem::take(&mut batch.entries) {
            self.entry(parent, &path, entry, batch)?;
        }
        if batch.last
            && let Some(dir) = self.dirs.remove(&batch.directory)
        {
            self.finish_inode(dir.node, &dir.path, &dir.stat)?;
        }
        Ok(())
    }

    /// Does what waits for everything else to be there; answers what was made.
    pub fn finish(self) -> Result<Populated, MkfsError> {
        for (id, kind) in &self.made {
            let failed = |error| self.failed("set up subvolume of", Path::new(""), error);
            if kind.default {
                self.fs.set_default_subvolume(*id).map_err(failed)?;
            }
            if kind.read_only {
                self.fs.set_subvolume_read_only(*id, true).map_err(failed)?;
            }
        }
        Ok(self.done)
    }

    fn failed(&self, action: &'static str, path: &Path, source: buttress::Error) -> MkfsError {
        MkfsError::Filesystem { action, path: self.source.join(path), source }
    }

    fn entry(
        &mut self,
        parent: Node,
        dir: &Path,
        entry: Entry,
        batch: &Batch,
    ) -> Result<(), MkfsError> {
        let path = dir.join(&entry.name);
        if entry.stat.nlink > 1
            && !matches!(entry.what, What::Directory(_))
            && self.linked(parent, &path, &entry)?
        {
            return Ok(());
        }
        let (node, exact) = self.create(parent, &path, &entry)?;
        self.xattrs(node, &path, &entry)?;
        let mut touched = !exact || !entry.xattrs.is_empty();
        match entry.what {
            What::Directory(number) => {
                self.done.directories += 1;
                self.dirs.insert(number, Dir { node, stat: entry.stat, path });
                return Ok(());
            }
            What::Small(pieces) => {
                touched |= self.small(node, &path, batch, &pieces, &entry.stat)?;
            }
            What::Large => {
                self.large(node, &path, &entry.stat)?;
                touched = true;
            }
            What::Symlink(_) | What::Special => {}
        }
        self.done.files += 1;
        if touched { self.finish_inode(node, &path, &entry.stat) } else { Ok(()) }
    }

    /// Gives a file that is there already one more name; whether it was.
    fn linked(&mut self, parent: Node, path: &Path, entry: &Entry) -> Result<bool, MkfsError> {
        let key = (parent.subvolume, entry.stat.identity);
        let Some((node, left)) = self.links.get_mut(&key) else { return Ok(false) };
        let node = *node;
        *left = left.saturating_sub(1);
        if *left == 0 {
            self.links.remove(&key);
        }
        let linked = self.fs.link(node, parent, name_of(path));
        linked.map_err(|error| self.failed("link", path, error))?;
        self.done.links += 1;
        self.finish_inode(node, path, &entry.stat)?;
        Ok(true)
    }

    /// Makes an inode; whether all its attributes are as they should be in the end, if nothing changes them.
    fn create(
        &mut self,
        parent: Node,
        path: &Path,
        entry: &Entry,
    ) -> Result<(Node, bool), MkfsError> {
        let stat = &entry.stat;
        if let (What::Directory(_), Some(kind)) = (&entry.what, self.subvolumes.get(path)) {
            let kind = *kind;
            let owner = Owner { uid: stat.uid, gid: stat.gid, ..Owner::default() };
            let made = self.fs.create_subvolume(parent, name_of(path), owner);
            let id = made.map_err(|error| self.failed("make subvolume of", path, error))?;
            self.made.push((id, kind));
            self.done.subvolumes += 1;
            return Ok((Node::top(id), false));
        }
        let (major, minor) = stat.rdev;
        let new = New {
            rdev: (u64::from(major) << 20) | u64::from(minor),
            target: match &entry.what {
                What::Symlink(target) => target.clone(),
                _ => Vec::new(),
            },
            times: Some(self.times(stat)),
            ..New::of(kind_of(stat), stat.mode & 0o7777).owned(stat.uid, stat.gid)
        };
        let made = self.fs.create(parent, name_of(path), &new);
        let made = made.map_err(|error| self.failed("copy", path, error))?;
        let node = made.node;
        if stat.nlink > 1 && !matches!(entry.what, What::Directory(_)) {
            self.links.insert((parent.subvolume, stat.identity), (node, stat.nlink - 1));
        }
        let same_mode = made.mode == stat.mode || stat.kind() == FileType::Symlink;
        Ok((node, same_mode && (made.uid, made.gid) == (stat.uid, stat.gid)))
    }

    fn times(&self, stat: &Stat) -> Times {
        let (sec, nsec) = stat.mtime;
        let changed = Time { sec, nsec };
        Times { atime: changed, mtime: changed, ctime: self.now, otime: self.now }
    }

    fn xattrs(&self, node: Node, path: &Path, entry: &Entry) -> Result<(), MkfsError> {
        for (name, value) in &entry.xattrs {
            match self.fs.set_xattr(node, name, value, SetXattr::Any) {
                // Of another filesystem's own: nobody could read it.
                Err(error) if error.errno() == Errno::OPNOTSUPP => {}
                set => set.map_err(|error| self.failed("copy an xattr of", path, error))?,
            }
        }
        Ok(())
    }

    /// Copies what was read; whether that has changed the times.
    fn small(
        &mut self,
        node: Node,
        path: &Path,
        batch: &Batch,
        pieces: &[Piece],
        stat: &Stat,
    ) -> Result<bool, MkfsError> {
        if stat.size == 0 {
            return Ok(false);
        }
        if let [piece] = pieces
            && (piece.offset, piece.len as u64) == (0, stat.size)
        {
            let filled = self.fs.fill(node, batch.padded(piece), stat.size);
            if filled.map_err(|error| self.failed("copy the content of", path, error))? {
                self.done.bytes += stat.size;
                return Ok(false);
            }
        }
        for piece in pieces {
            self.write(node, path, piece.offset, batch.bytes(piece))?;
        }
        let end = pieces.last().map_or(0, |piece| piece.offset + piece.len as u64);
        self.set_size(node, path, end, stat)?;
        Ok(true)
    }

    fn large(&mut self, node: Node, path: &Path, stat: &Stat) -> Result<(), MkfsError> {
        let from = self.source.join(path);
        let file = &open(&from).map_err(|error| MkfsError::source("open", &from, error))?;
        let unread = |error| MkfsError::source("read", &from, error);
        let mut buffer = std::mem::take(&mut self.buffer);
        buffer.resize(STREAM_LEN as usize, 0);
        let mut segments = Segments::new(file, stat);
        let mut reached = 0;
        while let Some((start, end)) = segments.next().map_err(unread)? {
            let mut at = start;
            while at < end {
                let len = (end - at).min(STREAM_LEN) as usize;
                let part = buffer.get_mut(..len).unwrap_or_default();
                let read = read_full(file, at, part).map_err(unread)?;
                self.done.bytes += read as u64;
                let part = part.get(..read).unwrap_or_default();
                write(self.fs, node, at, part)
                    .map_err(|error| self.failed("copy the content of", path, error))?;
                at += read as u64;
                reached = at;
                if read < len {
                    break;
                }
            }
        }
        require_whole(file, stat).map_err(unread)?;
        self.buffer = buffer;
        self.set_size(node, path, reached, stat)
    }

    /// A file that ends with a hole is larger than what was written.
    fn set_size(
        &self,
        node: Node,
        path: &Path,
        written: u64,
        stat: &Stat,
    ) -> Result<(), MkfsError> {
        if written >= stat.size {
            return Ok(());
        }
        let change = Change { size: Some(stat.size), ..Change::default() };
        let set = self.fs.set_attributes(node, &change);
        set.map(|_| ()).map_err(|error| self.failed("set the size of", path, error))
    }

    fn write(
        &mut self,
        node: Node,
        path: &Path,
        offset: u64,
        data: &[u8],
    ) -> Result<(), MkfsError> {
        self.done.bytes += data.len() as u64;
        write(self.fs, node, offset, data)
            .map_err(|error| self.failed("copy the content of", path, error))
    }

    /// Owner, mode and times, after all that changes them.
    fn finish_inode(&self, node: Node, path: &Path, stat: &Stat) -> Result<(), MkfsError> {
        let time = |(sec, nsec): (i64, u32)| Some(Time { sec, nsec });
        let mode = (stat.kind() != FileType::Symlink).then_some(stat.mode & 0o7777);
        let change = Change {
            mode,
            uid: Some(stat.uid),
            gid: Some(stat.gid),
            atime: time(stat.mtime),
            mtime: time(stat.mtime),
            ..Change::default()
        };
        let set = self.fs.set_attributes(node, &change);
        set.map(|_| ()).map_err(|error| self.failed("set the attributes of", path, error))
    }
}

/// Writes all of `data`.
fn write(fs: &Filesystem, node: Node, offset: u64, data: &[u8]) -> buttress::Result<()> {
    let written = fs.write(node, offset, data)?;
    if written == data.len() { Ok(()) } else { Err(buttress::Error::NoSpace) }
}

fn name_of(path: &Path) -> &[u8] {
    path.file_name().map(OsStr::as_bytes).unwrap_or_default()
}

fn kind_of(stat: &Stat) -> FileKind {
    match stat.kind() {
        FileType::Directory => FileKind::Directory,
        FileType::Symlink => FileKind::Symlink,
        FileType::CharacterDevice => FileKind::Character,
        FileType::BlockDevice => FileKind::Block,
        FileType::Fifo => FileKind::Fifo,
        FileType::Socket => FileKind::Socket,
        _ => FileKind::Regular,
    }
}
