//! The second stage: several threads read what the names of a batch stand for.
//!
//! Everything about an entry is read here, also the content of files that are not large, so that the third stage does
//! nothing but write. Large files are opened only; their content is streamed when their turn comes.

use std::ffi::{CStr, OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use buttress_ondisk::SECTOR;
use rustix::fs::{FileType, Mode, OFlags, SeekFrom};
use rustix::io::Errno;

use super::walk::{DirId, Listing, Name};
use crate::MkfsError;

/// Files up to this many bytes are read as a whole.
const WHOLE_LEN_MAX: u64 = 256 << 10;
/// Bytes of a sector of the new filesystem.
const SECTOR_LEN: usize = SECTOR as usize;
/// Once a batch holds this many bytes of content, further files are streamed.
const BATCH_BYTES_MAX: usize = 2 << 20;
/// What the last file read into a batch may add.
const MORE_LEN: usize = WHOLE_LEN_MAX as usize;

/// What a batch of names stands for.
#[derive(Debug)]
pub(crate) struct Batch {
    /// The directory that the entries are in.
    pub directory: DirId,
    /// The entries, in the order of their names.
    pub entries: Vec<Entry>,
    /// Whether the directory has no more.
    pub last: bool,
    /// What the files hold, each piece from the start of a sector on, with zeros behind it to whole sectors.
    pub content: Vec<u8>,
}

impl Batch {
    /// The bytes of a piece, with zeros behind them to whole sectors.
    pub fn padded(&self, piece: &Piece) -> &[u8] {
        let end = piece.at + piece.len.next_multiple_of(SECTOR_LEN);
        self.content.get(piece.at..end).unwrap_or_default()
    }

    /// The bytes of a piece.
    pub fn bytes(&self, piece: &Piece) -> &[u8] {
        self.content.get(piece.at..piece.at + piece.len).unwrap_or_default()
    }
}

/// An entry of a directory, with all there is to know about it.
#[derive(Debug)]
pub(crate) struct Entry {
    /// Its name; of the top directory empty.
    pub name: OsString,
    /// Owner, mode, times and the rest.
    pub stat: Stat,
    /// Its xattrs, sorted by name.
    pub xattrs: Vec<Xattr>,
    /// What it is.
    pub what: What,
}

/// Name (with its prefix) and value of an xattr.
pub(crate) type Xattr = (Vec<u8>, Vec<u8>);

/// What an entry is.
#[derive(Debug)]
pub(crate) enum What {
    /// A directory, by its number.
    Directory(DirId),
    /// A regular file whose content has been read: pieces at offsets, holes between them.
    Small(Vec<Piece>),
    /// A regular file to be streamed. Not opened yet: thousands may be waiting.
    Large,
    /// A symbolic link and its target.
    Symlink(Vec<u8>),
    /// A device node, FIFO or socket.
    Special,
}

/// Bytes of a file that are not in a hole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    /// Where in the file, bytes.
    pub offset: u64,
    /// Where in the content of the batch.
    pub at: usize,
    /// How many bytes.
    pub len: usize,
}

/// The part of `stat` that a filesystem keeps.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stat {
    /// Type and permissions.
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    /// Links on the source.
    pub nlink: u64,
    /// Device number of a device node, as major and minor.
    pub rdev: (u32, u32),
    /// Bytes.
    pub size: u64,
    /// Bytes that take room on the source; less than `size` when there may be holes.
    pub allocated: u64,
    /// Names a file of the source: device and inode.
    pub identity: (u64, u64),
    /// Seconds and nanoseconds of the last change of content.
    pub mtime: (i64, u32),
}

impl Stat {
    /// The type in the mode.
    pub fn kind(&self) -> FileType {
        FileType::from_raw_mode(self.mode)
    }
}

/// Reads what the names of a listing stand for. `content` is an empty buffer that may have been used before.
pub(crate) fn read_listing(listing: Listing, mut content: Vec<u8>) -> Result<Batch, MkfsError> {
    content.reserve(BATCH_BYTES_MAX + MORE_LEN);
    let mut entries = Vec::with_capacity(listing.names.len());
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    // Without it, as in a directory that may be listed and not entered, each name has its own error.
    let dir = rustix::fs::open(&*listing.path, flags, Mode::empty()).ok();
    for name in listing.names {
        let path = || listing.path.join(&name.name);
        let found = match &dir {
            Some(dir) if name.regular => read_regular(dir, &name.name, path, &mut content)?,
            _ => None,
        };
        entries.push(match found {
            Some((stat, xattrs, what)) => Entry { name: name.name, stat, xattrs, what },
            None => read_entry(&path(), name, &mut content)?,
        });
    }
    Ok(Batch { directory: listing.directory, entries, last: listing.last, content })
}

/// What a regular file is, looked at through one open: `None` where that cannot be, or it is none.
fn read_regular(
    dir: &OwnedFd,
    name: &OsStr,
    path: impl Fn() -> PathBuf,
    content: &mut Vec<u8>,
) -> Result<Option<(Stat, Vec<Xattr>, What)>, MkfsError> {
    let Ok(file) = open_at(dir, name) else { return Ok(None) };
    let metadata = file.metadata().map_err(|e| MkfsError::source("look at", path(), e))?;
    let stat = stat_of(&metadata);
    if stat.kind() != FileType::RegularFile {
        return Ok(None);
    }
    let failed = |error: Errno| MkfsError::source("read xattrs of", path(), error);
    let xattrs = xattrs_of(
        |list| rustix::fs::flistxattr(&file, rustix::buffer::spare_capacity(list)),
        |name, value| rustix::fs::fgetxattr(&file, name, rustix::buffer::spare_capacity(value)),
    );
    let xattrs = xattrs.map_err(failed)?;
    let what = match stat.size {
        0 => What::Small(Vec::new()),
        size if is_large(size, content) => What::Large,
        _ => {
            let pieces = read_pieces(&file, &stat, content);
            What::Small(pieces.map_err(|e| MkfsError::source("read", path(), e))?)
        }
    };
    Ok(Some((stat, xattrs, what)))
}

/// Whether a file is streamed later, because it is large or much has been read already.
fn is_large(size: u64, content: &[u8]) -> bool {
    size > WHOLE_LEN_MAX || content.len() >= BATCH_BYTES_MAX
}

/// Reads the top directory itself.
pub(crate) fn read_top(path: &Path) -> Result<Entry, MkfsError> {
    let named = Name { name: OsString::new(), directory: Some(0), regular: false };
    // The top may be reached through a symbolic link; everything below is taken as it is.
    let path = path.canonicalize().map_err(|e| MkfsError::source("find", path, e))?;
    let entry = read_entry(&path, named, &mut Vec::new())?;
    match entry.what {
        What::Directory(_) => Ok(entry),
        _ => Err(MkfsError::source("list", path, Errno::NOTDIR)),
    }
}

fn read_entry(path: &Path, name: Name, content: &mut Vec<u8>) -> Result<Entry, MkfsError> {
    let metadata = path.symlink_metadata().map_err(|e| MkfsError::source("look at", path, e))?;
    let stat = stat_of(&metadata);
    let xattrs = read_xattrs(path)?;
    let what = match (stat.kind(), name.directory) {
        (FileType::Directory, Some(directory)) => What::Directory(directory),
        (FileType::Directory, None) => {
            return Err(MkfsError::source("list", path, io::Error::other("it changed meanwhile")));
        }
        (FileType::RegularFile, _) => read_file(path, &stat, content)?,
        (FileType::Symlink, _) => {
            let target = path.read_link().map_err(|e| MkfsError::source("read link", path, e))?;
            What::Symlink(target.into_os_string().into_vec())
        }
        _ => What::Special,
    };
    Ok(Entry { name: name.name, stat, xattrs, what })
}

pub(super) fn stat_of(metadata: &std::fs::Metadata) -> Stat {
    let rdev = metadata.rdev();
    Stat {
        mode: metadata.mode(),
        uid: metadata.uid(),
        gid: metadata.gid(),
        nlink: metadata.nlink(),
        rdev: (rustix::fs::major(rdev), rustix::fs::minor(rdev)),
        size: metadata.size(),
        allocated: metadata.blocks().saturating_mul(512),
        identity: (metadata.dev(), metadata.ino()),
        mtime: (metadata.mtime(), metadata.mtime_nsec() as u32),
    }
}

fn read_file(path: &Path, stat: &Stat, content: &mut Vec<u8>) -> Result<What, MkfsError> {
    if stat.size == 0 {
        return Ok(What::Small(Vec::new()));
    }
    if is_large(stat.size, content) {
        return Ok(What::Large);
    }
    let file = open(path).map_err(|e| MkfsError::source("open", path, e))?;
    let pieces = read_pieces(&file, stat, content);
    pieces.map(What::Small).map_err(|e| MkfsError::source("read", path, e))
}

/// Opens for reading, without touching the time of the last access where that is allowed.
pub(crate) fn open(path: &Path) -> io::Result<File> {
    Ok(open_at(rustix::fs::CWD, path.as_os_str())?)
}

fn open_at(dir: impl AsFd + Copy, name: &OsStr) -> Result<File, Errno> {
    let open = |flags: OFlags| {
        let flags = flags | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        rustix::fs::openat(dir, name, flags, Mode::empty()).map(File::from)
    };
    match open(OFlags::NOATIME) {
        Err(Errno::PERM) => open(OFlags::empty()),
        result => result,
    }
}

pub(super) fn read_pieces(
    file: &File,
    stat: &Stat,
    content: &mut Vec<u8>,
) -> io::Result<Vec<Piece>> {
    let mut pieces = Vec::new();
    let mut segments = Segments::new(file, stat);
    let mut is_whole = !segments.sparse;
    while let Some((start, end)) = segments.next()? {
        let piece = read_piece(file, start, end - start, content)?;
        is_whole &= piece.len as u64 == end - start;
        pieces.push(piece);
    }
    if !is_whole {
        require_whole(file, stat)?;
    }
    Ok(pieces)
}

/// Refuses a file that has lost its end while it was read: what would be made of it is nobody's.
pub(crate) fn require_whole(file: &File, stat: &Stat) -> io::Result<()> {
    match file.metadata()?.len() {
        now if now < stat.size => {
            Err(io::Error::other(format!("it was cut from {} to {now} bytes meanwhile", stat.size)))
        }
        _ => Ok(()),
    }
}

/// Appends up to `len` bytes at `offset`, `WHOLE_LEN_MAX` at most, to the content; fewer where the file ends.
fn read_piece(file: &File, offset: u64, len: u64, content: &mut Vec<u8>) -> io::Result<Piece> {
    let (at, len) = (content.len(), len.min(WHOLE_LEN_MAX) as usize);
    // More room than is wanted: a file that has grown is cut, and no call is needed to see the end of one that has not.
    content.reserve(len.next_multiple_of(SECTOR_LEN));
    let mut have = 0;
    while have < len {
        match rustix::io::pread(file, rustix::buffer::spare_capacity(content), offset + have as u64)
        {
            Ok(0) => break,
            Ok(more) => have += more,
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    let len = have.min(len);
    content.truncate(at + len);
    content.resize(at + len.next_multiple_of(SECTOR_LEN), 0);
    Ok(Piece { offset, at, len })
}

/// Reads until the buffer is full or the file ends; returns how much was read.
pub(crate) fn read_full(file: &File, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
    let mut done = 0;
    while let Some(rest) = buffer.get_mut(done..).filter(|rest| !rest.is_empty()) {
        match file.read_at(rest, offset + done as u64) {
            Ok(0) => break,
            Ok(read) => done += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(done)
}

/// The parts of a file that are not holes.
#[derive(Debug)]
pub(crate) struct Segments<'a> {
    file: &'a File,
    size: u64,
    at: u64,
    /// Whether it is worth asking for holes.
    sparse: bool,
}

impl<'a> Segments<'a> {
    pub fn new(file: &'a File, stat: &Stat) -> Segments<'a> {
        Segments { file, size: stat.size, at: 0, sparse: stat.allocated < stat.size }
    }

    /// The next part: where it starts and ends, bytes.
    pub fn next(&mut self) -> io::Result<Option<(u64, u64)>> {
        if self.at >= self.size {
            return Ok(None);
        }
        let (start, end) = match self.sparse {
            false => (self.at, self.size),
            true => match rustix::fs::seek(self.file, SeekFrom::Data(self.at)) {
                Err(Errno::NXIO) => return Ok(None),
                Err(Errno::INVAL | Errno::OPNOTSUPP) => (self.at, self.size),
                Err(error) => return Err(error.into()),
                Ok(start) => (start, rustix::fs::seek(self.file, SeekFrom::Hole(start))?),
            },
        };
        let end = end.min(self.size);
        self.at = end;
        Ok((start < end).then_some((start, end)))
    }
}

/// All xattrs of a file, not of what a link points to.
pub(super) fn read_xattrs(path: &Path) -> Result<Vec<Xattr>, MkfsError> {
    let xattrs = xattrs_of(
        |list| rustix::fs::llistxattr(path, rustix::buffer::spare_capacity(list)),
        |name, value| rustix::fs::lgetxattr(path, name, rustix::buffer::spare_capacity(value)),
    );
    xattrs.map_err(|error| MkfsError::source("read xattrs of", path, error))
}

/// All xattrs, sorted by name. Where the source has none there are none.
fn xattrs_of(
    list_into: impl Fn(&mut Vec<u8>) -> Result<usize, Errno>,
    get_into: impl Fn(&CStr, &mut Vec<u8>) -> Result<usize, Errno>,
) -> Result<Vec<Xattr>, Errno> {
    let mut list = Vec::with_capacity(256);
    loop {
        match list_into(&mut list) {
            Ok(_) => break,
            Err(Errno::RANGE) => list = Vec::with_capacity(65536),
            Err(Errno::OPNOTSUPP) => return Ok(Vec::new()),
            Err(error) => return Err(error),
        }
    }
    let mut xattrs = Vec::new();
    for name in list.split_inclusive(|byte| *byte == 0) {
        let Ok(name) = CStr::from_bytes_with_nul(name) else { continue };
        let mut value = Vec::with_capacity(256);
        let found = loop {
            match get_into(name, &mut value) {
                Ok(_) => break true,
                Err(Errno::RANGE) if value.capacity() < 65536 => value = Vec::with_capacity(65536),
                // Listed and yet not there: one that only others may read, or just removed.
                Err(Errno::NODATA | Errno::OPNOTSUPP) => break false,
                Err(error) => return Err(error),
            }
        };
        if found {
            xattrs.push((name.to_bytes().to_vec(), value));
        }
    }
    xattrs.sort_unstable();
    Ok(xattrs)
}
