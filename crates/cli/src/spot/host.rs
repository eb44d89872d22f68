//! Spots on this machine: ordinary system calls, never through a symbolic link in the last place.

use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use rustix::fs::{
    AtFlags, CWD, FileType, Mode, OFlags, SeekFrom, Timespec, Timestamps, XattrFlags,
};
use rustix::io::Errno;

use super::{At, Facts, Kind, New, Read, Result, Write};
use buttress::Time;
use buttress_fuse::client;

/// Most bytes of an extended attribute or of a list of them.
const XATTR_BYTES_MAX: usize = 64 << 10;

pub(super) fn join(directory: &Path, name: &[u8]) -> PathBuf {
    directory.join(OsStr::from_bytes(name))
}

fn kind(mode: u32) -> Kind {
    match FileType::from_raw_mode(mode) {
        FileType::Directory => Kind::Directory,
        FileType::Symlink => Kind::Symlink,
        FileType::CharacterDevice => Kind::Character,
        FileType::BlockDevice => Kind::Block,
        FileType::Fifo => Kind::Fifo,
        FileType::Socket => Kind::Socket,
        _ => Kind::Regular,
    }
}

fn time(sec: i64, nsec: i64) -> Time {
    Time { sec, nsec: u32::try_from(nsec).unwrap_or(0) }
}

pub(super) fn facts(path: &Path) -> Result<Facts> {
    let it = fs::symlink_metadata(path)?;
    let created = it.created().ok().and_then(|at| at.duration_since(UNIX_EPOCH).ok());
    let otime = created.and_then(|since| {
        Some(Time { sec: i64::try_from(since.as_secs()).ok()?, nsec: since.subsec_nanos() })
    });
    Ok(Facts {
        kind: kind(it.mode()),
        mode: it.mode() & 0o7777,
        uid: it.uid(),
        gid: it.gid(),
        nlink: it.nlink(),
        size: it.size(),
        allocated: it.blocks().saturating_mul(512),
        device: (rustix::fs::major(it.rdev()), rustix::fs::minor(it.rdev())),
        atime: time(it.atime(), it.atime_nsec()),
        mtime: time(it.mtime(), it.mtime_nsec()),
        ctime: time(it.ctime(), it.ctime_nsec()),
        otime,
        volume: it.dev(),
        ino: it.ino(),
    })
}

pub(super) fn list(path: &Path) -> Result<Vec<(Vec<u8>, At)>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(path)? {
        let name = entry?.file_name().into_vec();
        let at = At::Host(join(path, &name));
        names.push((name, at));
    }
    Ok(names)
}

pub(super) fn child(directory: &Path, name: &[u8]) -> Result<Option<At>> {
    let path = join(directory, name);
    match fs::symlink_metadata(&path) {
        Ok(_) => Ok(Some(At::Host(path))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error.into()),
    }
}

pub(super) fn read_link(path: &Path) -> Result<Vec<u8>> {
    Ok(fs::read_link(path)?.into_os_string().into_vec())
}

/// Opening a pipe or device could wait or have effects; only what is still a regular file is opened.
fn no_follow() -> i32 {
    (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed()
}

pub(super) fn reader(path: &Path) -> Result<Box<dyn Read>> {
    Ok(Box::new(OpenOptions::new().read(true).custom_flags(no_follow()).open(path)?))
}

pub(super) fn writer(path: &Path) -> Result<Box<dyn Write>> {
    let mut options = OpenOptions::new();
    Ok(Box::new(options.write(true).truncate(true).custom_flags(no_follow()).open(path)?))
}

impl Read for File {
    fn read_at(&mut self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        Ok(FileExt::read_at(self, buf, offset)?)
    }

    fn next_data(&mut self, offset: u64) -> Result<Option<(u64, u64)>> {
        let len = self.metadata()?.len();
        if offset >= len {
            return Ok(None);
        }
        let start = match rustix::fs::seek(&*self, SeekFrom::Data(offset)) {
            Ok(start) => start,
            Err(Errno::NXIO) => return Ok(None),
            // Whoever does not know about holes has none.
            Err(Errno::INVAL | Errno::NOTSUP) => return Ok(Some((offset, len))),
            Err(errno) => return Err(errno.into()),
        };
        let end = rustix::fs::seek(&*self, SeekFrom::Hole(start))?;
        Ok(Some((start, end)))
    }
}

impl Write for File {
    fn write_at(&mut self, offset: u64, data: &[u8]) -> Result<()> {
        Ok(self.write_all_at(data, offset)?)
    }

    fn set_len(&mut self, len: u64) -> Result<()> {
        Ok(File::set_len(self, len)?)
    }
}

pub(super) fn make(directory: &Path, name: &[u8], new: &New) -> Result<At> {
    let path = join(directory, name);
    let mode = new.mode & 0o777;
    match new.kind {
        Kind::Regular => {
            OpenOptions::new().write(true).create_new(true).mode(mode).open(&path)?;
        }
        Kind::Directory => fs::DirBuilder::new().mode(mode).create(&path)?,
        Kind::Symlink => std::os::unix::fs::symlink(OsStr::from_bytes(&new.target), &path)?,
        Kind::Character => node(&path, FileType::CharacterDevice, new)?,
        Kind::Block => node(&path, FileType::BlockDevice, new)?,
        Kind::Fifo => node(&path, FileType::Fifo, new)?,
        Kind::Socket => node(&path, FileType::Socket, new)?,
    }
    Ok(At::Host(path))
}

fn node(path: &Path, kind: FileType, new: &New) -> Result<()> {
    let device = rustix::fs::makedev(new.device.0, new.device.1);
    Ok(rustix::fs::mknodat(CWD, path, kind, Mode::from_raw_mode(new.mode & 0o777), device)?)
}

pub(super) fn link(directory: &Path, name: &[u8], path: &Path) -> Result<()> {
    Ok(fs::hard_link(path, join(directory, name))?)
}

pub(super) fn set_mode(path: &Path, mode: u32) -> Result<()> {
    Ok(fs::set_permissions(path, fs::Permissions::from_mode(mode))?)
}

pub(super) fn set_times(path: &Path, atime: Time, mtime: Time) -> Result<()> {
    let spec = |time: Time| Timespec { tv_sec: time.sec, tv_nsec: time.nsec.into() };
    let times = Timestamps { last_access: spec(atime), last_modification: spec(mtime) };
    Ok(rustix::fs::utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW)?)
}

pub(super) fn xattrs(path: &Path) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
    let mut names = vec![0u8; XATTR_BYTES_MAX];
    let len = match rustix::fs::llistxattr(path, &mut names) {
        Ok(len) => len,
        Err(Errno::NOTSUP) => 0,
        Err(errno) => return Err(errno.into()),
    };
    names.truncate(len);
    let mut found = Vec::new();
    for name in names.split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
        let mut value = vec![0u8; XATTR_BYTES_MAX];
        match rustix::fs::lgetxattr(path, name, &mut value) {
            Ok(len) => value.truncate(len),
            // Removed meanwhile, or not ours to read.
            Err(Errno::NODATA | Errno::PERM) => continue,
            Err(errno) => return Err(errno.into()),
        }
        found.push((name.to_vec(), value));
    }
    Ok(found)
}

pub(super) fn set_xattr(path: &Path, name: &[u8], value: &[u8]) -> Result<()> {
    Ok(rustix::fs::lsetxattr(path, name, value, XattrFlags::empty())?)
}

/// Asks the system to share data instead of copying it; it may be unable to.
///
/// A live mount of ours shares what it is asked to copy, as the system passes it no wish to share.
pub(super) fn share(from: &Path, to: &Path, len: u64) -> bool {
    let options = |options: &mut OpenOptions| options.custom_flags(no_follow()).clone();
    let from_file = options(OpenOptions::new().read(true)).open(from);
    let to_file = options(OpenOptions::new().write(true)).open(to);
    match (from_file, to_file) {
        (Ok(from_file), Ok(to_file)) => {
            rustix::fs::ioctl_ficlone(&to_file, &from_file).is_ok()
                || (client::is_live(to) && client::is_live(from) && copy(&from_file, &to_file, len))
        }
        _ => false,
    }
}

/// Has the system copy; whether it did, all of it.
fn copy(from: &File, to: &File, len: u64) -> bool {
    let mut done = 0;
    while done < len {
        let (mut here, mut there) = (done, done);
        let piece = usize::try_from(len - done).unwrap_or(usize::MAX).min(1 << 30);
        match rustix::fs::copy_file_range(from, Some(&mut here), to, Some(&mut there), piece) {
            Ok(0) | Err(_) => return false,
            Ok(count) => done = done.saturating_add(count as u64),
        }
    }
    true
}
