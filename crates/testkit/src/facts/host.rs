//! Facts of a directory of this machine: a kernel mount, or ours.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, SeekFrom, StatxFlags, seek, statx};
use rustix::io::Errno;

use super::{Digest, Facts, Kind, Listing, Source, Stat, Xattr, facts_of};

/// Bytes read at once.
const READ_BYTES: usize = 256 << 10;
/// Larger than the kernel's limit on a list of names or a value of attributes (64 KiB each).
const XATTR_BYTES: usize = 80 << 10;

/// A system call failed while facts were taken.
#[derive(Debug, thiserror::Error)]
#[error("{what} {}: {source}", path.display())]
pub struct HostError {
    /// What was tried.
    pub what: &'static str,
    /// On which path.
    pub path: PathBuf,
    /// What the system said.
    pub source: io::Error,
}

/// Facts of the tree under `path`, not crossing into other mounts.
pub fn facts_of_dir(path: &Path) -> Result<Facts, HostError> {
    let mut source = Host { top: path.to_owned(), mount: None, buffer: vec![0; READ_BYTES] };
    facts_of(&mut source)
}

/// A directory tree reached through system calls.
struct Host {
    top: PathBuf,
    /// Mount identity of the top.
    mount: Option<u64>,
    buffer: Vec<u8>,
}

/// Names the call and the path in an error.
fn at<T>(
    what: &'static str,
    path: &Path,
    result: Result<T, impl Into<io::Error>>,
) -> Result<T, HostError> {
    result.map_err(|source| HostError { what, path: path.to_owned(), source: source.into() })
}

impl Source for Host {
    type Node = PathBuf;
    type Error = HostError;

    fn root(&mut self) -> Result<PathBuf, HostError> {
        Ok(self.top.clone())
    }

    fn stat(&mut self, path: &PathBuf) -> Result<Option<Stat>, HostError> {
        let wanted = StatxFlags::BASIC_STATS | StatxFlags::MNT_ID;
        let found = at("stat", path, statx(CWD, path, AtFlags::SYMLINK_NOFOLLOW, wanted))?;
        if *self.mount.get_or_insert(found.stx_mnt_id) != found.stx_mnt_id {
            return Ok(None);
        }
        let mode = u32::from(found.stx_mode);
        let unknown = || io::Error::other("unknown kind of file");
        let kind = at("stat", path, Kind::of_mode(mode).ok_or_else(unknown))?;
        let device = u64::from(found.stx_dev_major) << 32 | u64::from(found.stx_dev_minor);
        Ok(Some(Stat {
            identity: (device, found.stx_ino),
            ino: found.stx_ino,
            kind,
            mode: mode & 0o7777,
            uid: found.stx_uid,
            gid: found.stx_gid,
            nlink: found.stx_nlink,
            size: found.stx_size,
            mtime: (found.stx_mtime.tv_sec, found.stx_mtime.tv_nsec),
            rdev: (found.stx_rdev_major, found.stx_rdev_minor),
        }))
    }

    fn list(&mut self, dir: &PathBuf) -> Result<Listing<PathBuf>, HostError> {
        let mut found = Vec::new();
        for entry in at("list", dir, std::fs::read_dir(dir))? {
            let entry = at("list", dir, entry)?;
            found.push((entry.file_name().into_vec(), entry.path()));
        }
        Ok(found)
    }

    fn readlink(&mut self, path: &PathBuf) -> Result<Vec<u8>, HostError> {
        let target = at("readlink", path, std::fs::read_link(path))?;
        Ok(OsString::from(target).into_vec())
    }

    fn xattrs(&mut self, path: &PathBuf) -> Result<Vec<Xattr>, HostError> {
        let mut names = vec![0; XATTR_BYTES];
        let count = match rustix::fs::llistxattr(path, &mut names) {
            Err(Errno::NOTSUP) => return Ok(Vec::new()),
            other => at("list attributes of", path, other)?,
        };
        names.truncate(count);
        let mut found = Vec::new();
        let mut value = vec![0; if count == 0 { 0 } else { XATTR_BYTES }];
        for name in names.split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
            let got = rustix::fs::lgetxattr(path, OsStr::from_bytes(name), &mut value);
            let length = at("read an attribute of", path, got)?;
            found.push((name.to_vec(), value.get(..length).unwrap_or_default().to_vec()));
        }
        Ok(found)
    }

    fn content(&mut self, path: &PathBuf, digest: &mut Digest) -> Result<(), HostError> {
        let file = at("open", path, File::open(path))?;
        let size = at("stat", path, file.metadata())?.len();
        let mut from = 0;
        // Near the largest size the kernel's answers go past the end, which must not be asked for.
        while from < size {
            let data = match seek(&file, SeekFrom::Data(from)) {
                Err(Errno::NXIO) => return Ok(()),
                other => at("seek data in", path, other)?,
            };
            let hole = at("seek hole in", path, seek(&file, SeekFrom::Hole(data)))?;
            self.segment(&file, path, data..hole.min(size), digest)?;
            from = hole;
        }
        Ok(())
    }
}

impl Host {
    /// Reads one run of data.
    fn segment(
        &mut self,
        file: &File,
        path: &Path,
        range: std::ops::Range<u64>,
        digest: &mut Digest,
    ) -> Result<(), HostError> {
        let mut offset = range.start;
        while offset < range.end {
            let wanted = (range.end - offset).min(READ_BYTES as u64) as usize;
            let room = self.buffer.get_mut(..wanted).unwrap_or_default();
            let count = at("read", path, file.read_at(room, offset))?;
            if count == 0 {
                return Ok(());
            }
            digest.add(offset, room.get(..count).unwrap_or_default());
            offset += count as u64;
        }
        Ok(())
    }
}
