//! The second stage: several threads read what the names of a batch stand for.
//!
//! Everything about an entry is read here, also the content of files that are not large, so that the third stage does
//! nothing but write. Large files are opened only; their content is streamed when their turn comes.

use std::ffi::{CStr, OsString};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::{FileType, OFlags, SeekFrom};
use rustix::io::Errno;

use super::walk::{DirId, Listing, Name};
use crate::MkfsError;

/// Files up to this many bytes are read as a whole.
const WHOLE_LEN_MAX: u64 = 256 << 10;
/// Once a batch holds this many bytes of content, further files are streamed.
const BATCH_BYTES_MAX: u64 = 2 << 20;

/// What a batch of names stands for.
#[derive(Debug)]
pub(crate) struct Batch {
    /// The directory that the entries are in.
    pub directory: DirId,
    /// The entries, in the order of their names.
    pub entries: Vec<Entry>,
    /// Whether the directory has no more.
    pub last: bool,
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
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    /// Where in the file, bytes.
    pub offset: u64,
    /// The bytes.
    pub data: Vec<u8>,
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

/// Reads what the names of a listing stand for.
pub(crate) fn read_listing(listing: Listing) -> Result<Batch, MkfsError> {
    let mut room = BATCH_BYTES_MAX;
    let mut entries = Vec::with_capacity(listing.names.len());
    for name in listing.names {
        let path = listing.path.join(&name.name);
        let entry = read_entry(&path, name, &mut room)?;
        entries.push(entry);
    }
    Ok(Batch { directory: listing.directory, entries, last: listing.last })
}

/// Reads the top directory itself.
pub(crate) fn read_top(path: &Path) -> Result<Entry, MkfsError> {
    let named = Name { name: OsString::new(), directory: Some(0) };
    // The top may be reached through a symbolic link; everything below is taken as it is.
    let path = path.canonicalize().map_err(|e| MkfsError::source("find", path, e))?;
    let entry = read_entry(&path, named, &mut 0)?;
    match entry.what {
        What::Directory(_) => Ok(entry),
        _ => Err(MkfsError::source("list", path, Errno::NOTDIR)),
    }
}

fn read_entry(path: &Path, name: Name, room: &mut u64) -> Result<Entry, MkfsError> {
    let metadata = path.symlink_metadata().map_err(|e| MkfsError::source("look at", path, e))?;
    let stat = stat_of(&metadata);
    let xattrs = read_xattrs(path)?;
    let what = match (stat.kind(), name.directory) {
        (FileType::Directory, Some(directory)) => What::Directory(directory),
        (FileType::Directory, None) => {
            return Err(MkfsError::source("list", path, io::Error::other("it changed meanwhile")));
        }
        (FileType::RegularFile, _) => read_file(path, &stat, room)?,
        (FileType::Symlink, _) => {
            let target = path.read_link().map_err(|e| MkfsError::source("read link", path, e))?;
            What::Symlink(target.into_os_string().into_vec())
        }
        _ => What::Special,
    };
    Ok(Entry { name: name.name, stat, xattrs, what })
}

fn stat_of(metadata: &std::fs::Metadata) -> Stat {
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

fn read_file(path: &Path, stat: &Stat, room: &mut u64) -> Result<What, MkfsError> {
    if stat.size == 0 {
        return Ok(What::Small(Vec::new()));
    }
    if stat.size > WHOLE_LEN_MAX || stat.size > *room {
        return Ok(What::Large);
    }
    let file = open(path).map_err(|e| MkfsError::source("open", path, e))?;
    *room -= stat.size;
    let pieces = read_pieces(&file, stat).map_err(|e| MkfsError::source("read", path, e))?;
    Ok(What::Small(pieces))
}

/// Opens for reading, without touching the time of the last access where that is allowed.
pub(crate) fn open(path: &Path) -> io::Result<File> {
    let open = |flags: OFlags| {
        let flags = flags | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        OpenOptions::new().read(true).custom_flags(flags.bits() as i32).open(path)
    };
    match open(OFlags::NOATIME) {
        Err(error) if error.raw_os_error() == Some(Errno::PERM.raw_os_error()) => {
            open(OFlags::empty())
        }
        result => result,
    }
}

fn read_pieces(file: &File, stat: &Stat) -> io::Result<Vec<Piece>> {
    let mut pieces = Vec::new();
    let mut segments = Segments::new(file, stat);
    while let Some((start, end)) = segments.next()? {
        // The size is at most `WHOLE_LEN_MAX`.
        let mut data = vec![0; (end - start) as usize];
        let read = read_full(file, start, &mut data)?;
        data.truncate(read);
        pieces.push(Piece { offset: start, data });
    }
    Ok(pieces)
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

/// All xattrs of a file, not of what a link points to, sorted by name. Where the source has none there are none.
fn read_xattrs(path: &Path) -> Result<Vec<Xattr>, MkfsError> {
    let failed = |error: Errno| MkfsError::source("read xattrs of", path, error);
    let mut list = Vec::with_capacity(256);
    loop {
        match rustix::fs::llistxattr(path, rustix::buffer::spare_capacity(&mut list)) {
            Ok(_) => break,
            Err(Errno::RANGE) => list = Vec::with_capacity(65536),
            Err(Errno::OPNOTSUPP) => return Ok(Vec::new()),
            Err(error) => return Err(failed(error)),
        }
    }
    let mut xattrs = Vec::new();
    for name in list.split_inclusive(|byte| *byte == 0) {
        let Ok(name) = CStr::from_bytes_with_nul(name) else { continue };
        let mut value = Vec::with_capacity(256);
        let found = loop {
            match rustix::fs::lgetxattr(path, name, rustix::buffer::spare_capacity(&mut value)) {
                Ok(_) => break true,
                Err(Errno::RANGE) if value.capacity() < 65536 => value = Vec::with_capacity(65536),
                // Listed and yet not there: one that only others may read, or just removed.
                Err(Errno::NODATA | Errno::OPNOTSUPP) => break false,
                Err(error) => return Err(failed(error)),
            }
        };
        if found {
            xattrs.push((name.to_bytes().to_vec(), value));
        }
    }
    xattrs.sort_unstable();
    Ok(xattrs)
}
