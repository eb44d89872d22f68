//! Vnodes on this machine, by directory handles.
//!
//! What the user named is found by its path. Everything below it is found from a handle of that directory on, name by
//! name, and no symbolic link is gone through on the way: whatever an image calls its files, and whatever a copy of it has
//! made, nothing outside the directory that was named is reached. The last name is not followed either, except where the
//! user named what a link leads to. Few directories are open at a time, however deep they are: from the nearest of them on the way is
//! walked again.

use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::ops::Deref;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{
    AtFlags, CWD, Dir, FileType, Mode, OFlags, ResolveFlags, SeekFrom, Statx, StatxAttributes,
    StatxFlags, StatxTimestamp, Timespec, Timestamps, XattrFlags, openat, openat2,
};
use rustix::io::Errno;

use super::{Facts, Kind, New, Read, Result, Write};
use buttress::Time;
use buttress_fuse::client;
use buttress_ondisk::item::mode::PERMISSIONS;

/// Most bytes of an extended attribute or of a list of them.
const XATTR_BYTES_MAX: usize = 64 << 10;
/// Most bytes of a path that the system takes at once, with some to spare.
const WAY_BYTES_MAX: usize = 2048;

/// Directories that are kept open at most, besides those that the user named: a tree may be deeper than a process may have files.
const OPEN_MAX: usize = 64;

/// A place on this machine, which need not exist.
#[derive(Clone, Debug)]
pub(super) struct Place(Arc<Step>);

/// A path that leads to a file as long as this lives.
pub struct Way {
    path: PathBuf,
    _handle: Option<OwnedFd>,
}

impl Deref for Way {
    type Target = Path;

    fn deref(&self) -> &Path {
        &self.path
    }
}

/// A name, and the directory that it is in: places below one directory share the way to it.
#[derive(Debug)]
struct Step {
    /// `None`: the name is a path.
    above: Option<Arc<Step>>,
    name: OsString,
    /// Whether a symbolic link here stands for what it leads to.
    follow: bool,
    /// The handle of this directory, once something below it was asked for; not for ever, if there is one above.
    handle: Mutex<Option<Arc<OwnedFd>>>,
}

/// The directories that have a handle and can do without, the oldest first.
static OPEN: Mutex<VecDeque<Weak<Step>>> = Mutex::new(VecDeque::new());

/// What is in it stays right whatever panics meanwhile.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Step {
    fn new(above: Option<Arc<Step>>, name: OsString, follow: bool) -> Arc<Step> {
        Arc::new(Step { above, name, follow, handle: Mutex::default() })
    }

    /// The handle of this directory: from the nearest one that is open on, through directories only.
    fn open(self: &Arc<Step>) -> Result<Arc<OwnedFd>> {
        let (mut below, mut at) = (Vec::new(), self);
        let mut handle = loop {
            if let Some(open) = lock(&at.handle).clone() {
                break open;
            }
            match &at.above {
                Some(above) => {
                    below.push(at);
                    at = above;
                }
                None => {
                    let follow = if at.follow { OFlags::empty() } else { OFlags::NOFOLLOW };
                    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC | follow;
                    let opened = Arc::new(openat(CWD, &at.name, flags, Mode::empty())?);
                    *lock(&at.handle) = Some(opened.clone());
                    break opened;
                }
            }
        };
        while let Some(first) = below.pop() {
            let (mut names, mut last) = (first.name.as_bytes().to_vec(), first);
            while let Some(next) =
                below.pop_if(|next| names.len() + next.name.len() < WAY_BYTES_MAX)
            {
                names.push(b'/');
                names.extend_from_slice(next.name.as_bytes());
                last = next;
            }
            handle = Arc::new(step(&handle, &names)?);
            last.keep(&handle);
        }
        Ok(handle)
    }

    /// Keeps a handle for what is asked for next, until others are.
    fn keep(self: &Arc<Step>, handle: &Arc<OwnedFd>) {
        *lock(&self.handle) = Some(handle.clone());
        let mut open = lock(&OPEN);
        open.push_back(Arc::downgrade(self));
        let oldest = if open.len() > OPEN_MAX { open.pop_front() } else { None };
        drop(open);
        if let Some(oldest) = oldest.and_then(|oldest| oldest.upgrade()) {
            *lock(&oldest.handle) = None;
        }
    }
}

/// One after the other, and not each within the next: that would take as much stack as the tree is deep.
impl Drop for Step {
    fn drop(&mut self) {
        let mut above = self.above.take();
        while let Some(mut step) = above.and_then(Arc::into_inner) {
            above = step.above.take();
        }
    }
}

/// A directory's handle, or the working directory.
enum Above {
    Working,
    Opened(Arc<OwnedFd>),
}

impl Above {
    fn fd(&self) -> BorrowedFd<'_> {
        match self {
            Above::Working => CWD,
            Above::Opened(fd) => fd.as_fd(),
        }
    }
}

impl Place {
    pub(super) fn named(path: PathBuf) -> Place {
        Place(Step::new(None, path.into(), false))
    }

    /// What a symbolic link here leads to.
    pub(super) fn followed(self) -> Place {
        Place(Step::new(self.0.above.clone(), self.0.name.clone(), true))
    }

    /// Its path, for messages and for what asks by path; the system does not take all of them.
    pub(super) fn path(&self) -> PathBuf {
        let steps = std::iter::successors(Some(&self.0), |step| step.above.as_ref());
        let names: Vec<_> = steps.map(|step| &step.name).collect();
        names.into_iter().rev().collect()
    }

    /// A way to it for what asks by path: its path, or its handle's where the system takes no path that is so long.
    pub(super) fn way(&self) -> Result<Way> {
        let path = self.path();
        if path.canonicalize().is_ok() {
            return Ok(Way { path, _handle: None });
        }
        let handle = self.open(OFlags::PATH, 0)?;
        Ok(Way { path: handle_path(&handle), _handle: Some(handle) })
    }

    /// An entry of this directory.
    pub(super) fn child(&self, name: &[u8]) -> Place {
        Place(Step::new(Some(self.0.clone()), OsStr::from_bytes(name).into(), false))
    }

    /// The directory above, and the name there.
    fn last(&self) -> Result<(Above, &OsStr)> {
        let above = match &self.0.above {
            None => Above::Working,
            Some(above) => Above::Opened(above.open()?),
        };
        Ok((above, &self.0.name))
    }

    fn no_follow(&self) -> OFlags {
        let follow = if self.0.follow { OFlags::empty() } else { OFlags::NOFOLLOW };
        follow | OFlags::CLOEXEC
    }

    fn at_flags(&self) -> AtFlags {
        if self.0.follow { AtFlags::empty() } else { AtFlags::SYMLINK_NOFOLLOW }
    }

    fn open(&self, flags: OFlags, mode: u32) -> Result<OwnedFd> {
        let (above, name) = self.last()?;
        let flags = flags | self.no_follow();
        Ok(openat(above.fd(), name, flags, Mode::from_raw_mode(mode))?)
    }

    pub(super) fn facts(&self) -> Result<Facts> {
        let (above, name) = self.last()?;
        let wanted = StatxFlags::BASIC_STATS | StatxFlags::BTIME;
        match rustix::fs::statx(above.fd(), name, self.at_flags(), wanted) {
            Ok(it) => Ok(facts(&it)),
            // Old kernels do not have it, and some sandboxes refuse it.
            Err(Errno::NOSYS | Errno::PERM) => {
                Ok(old_facts(&rustix::fs::statat(above.fd(), name, self.at_flags())?))
            }
            Err(errno) => Err(errno.into()),
        }
    }

    /// Whether it is on another mount than the directory above, as far as that is known: for kernels before 5.8, which do not tell
    /// otherwise. The numbers of filesystems differ between subvolumes of one mount, too.
    pub(super) fn is_on_another_mount(&self) -> bool {
        let mounts = || -> Result<(Option<String>, Option<String>)> {
            let own = self.open(OFlags::PATH, 0)?;
            Ok(match self.last()? {
                (Above::Opened(above), _) => (mount_of(&own), mount_of(&above)),
                (Above::Working, _) => (None, None),
            })
        };
        mounts().is_ok_and(|(own, above)| own != above)
    }

    /// The names in this directory, sorted by nothing.
    pub(super) fn list(&self) -> Result<Vec<(Vec<u8>, Place)>> {
        let directory = self.open(OFlags::RDONLY | OFlags::DIRECTORY, 0)?;
        let mut names = Vec::new();
        for entry in Dir::read_from(directory)? {
            let name = entry?.file_name().to_bytes().to_vec();
            if !matches!(&*name, b"." | b"..") {
                let place = self.child(&name);
                names.push((name, place));
            }
        }
        Ok(names)
    }

    /// An entry of this directory, if it is there.
    pub(super) fn found(&self, name: &[u8]) -> Result<Option<Place>> {
        let place = self.child(name);
        match place.facts() {
            Ok(_) => Ok(Some(place)),
            Err(error) if error.is(Errno::NOENT) => Ok(None),
            Err(error) => Err(error),
        }
    }

    pub(super) fn read_link(&self) -> Result<Vec<u8>> {
        let (above, name) = self.last()?;
        Ok(rustix::fs::readlinkat(above.fd(), name, Vec::new())?.into_bytes())
    }

    /// A pipe or device may have taken the place of a regular file meanwhile: opening it must not wait, and it is not used.
    fn regular(&self, flags: OFlags) -> Result<File> {
        let file = File::from(self.open(flags | OFlags::NONBLOCK | OFlags::NOCTTY, 0)?);
        match file.metadata()?.is_file() {
            true => Ok(file),
            false => Err(io::Error::other("it is no regular file any more").into()),
        }
    }

    pub(super) fn reader(&self) -> Result<File> {
        self.regular(OFlags::RDONLY)
    }

    pub(super) fn writer(&self) -> Result<File> {
        let file = self.regular(OFlags::WRONLY)?;
        File::set_len(&file, 0)?;
        Ok(file)
    }

    /// Opens whatever it is, to be read from its beginning to its end. It is the reading that waits for the other end of a pipe.
    pub(super) fn source(&self) -> Result<Source> {
        let is_pipe = self.facts()?.kind == Kind::Fifo;
        let flags = if is_pipe { OFlags::NONBLOCK } else { OFlags::empty() };
        Ok(Source(self.open(OFlags::RDONLY | flags, 0)?.into()))
    }

    /// Opens whatever it is for writing to it, waiting for the other end where it has one.
    pub(super) fn sink(&self) -> Result<File> {
        Ok(self.open(OFlags::WRONLY, 0)?.into())
    }

    pub(super) fn make(&self, name: &[u8], new: &New) -> Result<Place> {
        let place = self.child(name);
        let mode = Mode::from_raw_mode(new.mode & 0o777);
        let node = |kind| -> Result<()> {
            let device = rustix::fs::makedev(new.device.0, new.device.1);
            let (above, name) = place.last()?;
            Ok(rustix::fs::mknodat(above.fd(), name, kind, mode, device)?)
        };
        match new.kind {
            Kind::Regular => {
                let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
                drop(place.open(flags, new.mode & 0o777)?);
                Ok(())
            }
            Kind::Directory => {
                let (above, name) = place.last()?;
                Ok(rustix::fs::mkdirat(above.fd(), name, mode)?)
            }
            Kind::Symlink => {
                let (above, name) = place.last()?;
                let target = OsStr::from_bytes(&new.target);
                Ok(rustix::fs::symlinkat(target, above.fd(), name)?)
            }
            Kind::Character => node(FileType::CharacterDevice),
            Kind::Block => node(FileType::BlockDevice),
            Kind::Fifo => node(FileType::Fifo),
            Kind::Socket => node(FileType::Socket),
        }?;
        Ok(place)
    }

    /// Makes durable all that was done in the filesystem that this directory is in.
    pub(super) fn make_durable(&self) -> Result<()> {
        let directory = match self.open(OFlags::RDONLY | OFlags::DIRECTORY, 0) {
            Ok(directory) => directory,
            // One that may be written to and not read.
            Err(error) if error.is(Errno::ACCESS) => {
                rustix::fs::sync();
                return Ok(());
            }
            Err(error) => return Err(error),
        };
        rustix::fs::syncfs(&directory)?;
        // Of that the system tells mounts of FUSE nothing but what they had not written yet, and fsync need be about the directory
        // alone.
        let name = handle_path(&directory);
        if client::is_live(&name) {
            return Ok(client::commit(&name)?);
        }
        match rustix::fs::fsync(&directory) {
            Err(Errno::INVAL | Errno::NOTSUP) => Ok(()),
            done => Ok(done?),
        }
    }

    /// Gives `file` another name in this directory.
    pub(super) fn link(&self, name: &[u8], file: &Place) -> Result<()> {
        let place = self.child(name);
        let ((from, old), (to, new)) = (file.last()?, place.last()?);
        let flags = if file.0.follow { AtFlags::SYMLINK_FOLLOW } else { AtFlags::empty() };
        Ok(rustix::fs::linkat(from.fd(), old, to.fd(), new, flags)?)
    }

    /// Removes an entry of this directory.
    pub(super) fn remove(&self, name: &[u8], is_directory: bool) -> Result<()> {
        let place = self.child(name);
        let (above, name) = place.last()?;
        let flags = if is_directory { AtFlags::REMOVEDIR } else { AtFlags::empty() };
        Ok(rustix::fs::unlinkat(above.fd(), name, flags)?)
    }

    /// Moves an entry of this directory.
    pub(super) fn rename(&self, name: &[u8], to: &Place, new_name: &[u8]) -> Result<()> {
        let (from, to) = (self.child(name), to.child(new_name));
        let ((above, old), (to, new)) = (from.last()?, to.last()?);
        Ok(rustix::fs::renameat(above.fd(), old, to.fd(), new)?)
    }

    pub(super) fn set_owner(&self, uid: Option<u32>, gid: Option<u32>) -> Result<()> {
        let (above, name) = self.last()?;
        let uid = uid.map(rustix::fs::Uid::from_raw);
        let gid = gid.map(rustix::fs::Gid::from_raw);
        Ok(rustix::fs::chownat(above.fd(), name, uid, gid, self.at_flags())?)
    }

    /// The system has no call that changes a mode and follows no link: the handle's entry below /proc stands for the file.
    pub(super) fn set_mode(&self, mode: u32) -> Result<()> {
        let file = self.open(OFlags::PATH, 0)?;
        let mode = Mode::from_raw_mode(mode);
        if FileType::from_raw_mode(rustix::fs::fstat(&file)?.st_mode) == FileType::Symlink {
            return Err(Errno::OPNOTSUPP.into());
        }
        match rustix::fs::chmod(handle_path(&file), mode) {
            Err(Errno::NOENT | Errno::NOTDIR) => {
                let (above, name) = self.last()?;
                Ok(rustix::fs::chmodat(above.fd(), name, mode, AtFlags::empty())?)
            }
            done => Ok(done?),
        }
    }

    pub(super) fn set_times(&self, atime: Time, mtime: Time) -> Result<()> {
        let spec = |time: Time| Timespec { tv_sec: time.sec, tv_nsec: time.nsec.into() };
        let times = Timestamps { last_access: spec(atime), last_modification: spec(mtime) };
        let (above, name) = self.last()?;
        Ok(rustix::fs::utimensat(above.fd(), name, &times, self.at_flags())?)
    }

    pub(super) fn xattrs(&self) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
        let (above, name) = self.last()?;
        let path = path_at(&above, name);
        let mut names = vec![0u8; XATTR_BYTES_MAX];
        let list = match self.0.follow {
            true => rustix::fs::listxattr(&path, &mut names),
            false => rustix::fs::llistxattr(&path, &mut names),
        };
        let len = match list {
            Ok(len) => len,
            Err(Errno::NOTSUP) => 0,
            Err(errno) => return Err(errno.into()),
        };
        names.truncate(len);
        let mut found = Vec::new();
        for name in names.split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
            let mut value = vec![0u8; XATTR_BYTES_MAX];
            let read = match self.0.follow {
                true => rustix::fs::getxattr(&path, name, &mut value),
                false => rustix::fs::lgetxattr(&path, name, &mut value),
            };
            match read {
                Ok(len) => value.truncate(len),
                // Removed meanwhile, or not ours to read.
                Err(Errno::NODATA | Errno::PERM) => continue,
                Err(errno) => return Err(errno.into()),
            }
            found.push((name.to_vec(), value));
        }
        Ok(found)
    }

    pub(super) fn set_xattr(&self, name: &[u8], value: &[u8]) -> Result<()> {
        let (above, last) = self.last()?;
        let path = path_at(&above, last);
        match self.0.follow {
            true => Ok(rustix::fs::setxattr(&path, name, value, XattrFlags::empty())?),
            false => Ok(rustix::fs::lsetxattr(&path, name, value, XattrFlags::empty())?),
        }
    }

    /// Asks the system to share data instead of copying it; it may be unable to.
    ///
    /// A live mount of ours shares what it is asked to copy, as the system passes it no wish to share.
    pub(super) fn share(&self, from: &Place, len: u64) -> bool {
        match (from.reader(), self.regular(OFlags::WRONLY)) {
            (Ok(from_file), Ok(to_file)) => {
                rustix::fs::ioctl_ficlone(&to_file, &from_file).is_ok()
                    || (client::is_live(&handle_path(&to_file))
                        && client::is_live(&handle_path(&from_file))
                        && copy(&from_file, &to_file, len))
            }
            _ => false,
        }
    }
}

/// How long a read waits before its caller may look whether to go on.
const PATIENCE: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

/// What may have nothing to give for a long time: reads that wait are interrupted now and then.
pub(super) struct Source(File);

impl io::Read for Source {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let mut wanted = [PollFd::new(&self.0, PollFlags::IN)];
        match poll(&mut wanted, Some(&PATIENCE))? {
            0 => Err(io::ErrorKind::Interrupted.into()),
            _ => self.0.read(buf),
        }
    }
}

/// As far as the system goes at once; name by name where it cannot.
fn step(start: &OwnedFd, names: &[u8]) -> Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    match openat2(start, OsStr::from_bytes(names), flags, Mode::empty(), resolve) {
        Err(Errno::NOSYS | Errno::PERM) => {}
        opened => return Ok(opened?),
    }
    let mut at = None;
    for name in names.split(|byte| *byte == b'/') {
        let above = at.as_ref().unwrap_or(start);
        let flags = flags | OFlags::NOFOLLOW;
        at = Some(openat(above, OsStr::from_bytes(name), flags, Mode::empty())?);
    }
    at.ok_or_else(|| Errno::NOENT.into())
}

/// The number of the mount that an open file is on.
fn mount_of(file: &impl AsFd) -> Option<String> {
    let info = format!("/proc/self/fdinfo/{}", file.as_fd().as_raw_fd());
    let info = std::fs::read_to_string(info).ok()?;
    info.lines().find_map(|line| line.strip_prefix("mnt_id:")).map(str::to_owned)
}

/// The path under which the system shows an open file.
pub(super) fn handle_path(file: &impl AsFd) -> PathBuf {
    format!("/proc/self/fd/{}", file.as_fd().as_raw_fd()).into()
}

/// A path for the calls that take no handle of a directory.
fn path_at(above: &Above, name: &OsStr) -> OsString {
    match above {
        Above::Working => name.into(),
        Above::Opened(fd) => handle_path(fd).join(name).into(),
    }
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

fn facts(it: &Statx) -> Facts {
    let time = |time: StatxTimestamp| Time { sec: time.tv_sec, nsec: time.tv_nsec };
    let has_otime = it.stx_mask & StatxFlags::BTIME.bits() != 0;
    Facts {
        kind: kind(it.stx_mode.into()),
        mode: u32::from(it.stx_mode) & PERMISSIONS,
        uid: it.stx_uid,
        gid: it.stx_gid,
        nlink: it.stx_nlink.into(),
        size: it.stx_size,
        allocated: it.stx_blocks.saturating_mul(512),
        device: (it.stx_rdev_major, it.stx_rdev_minor),
        atime: time(it.stx_atime),
        mtime: time(it.stx_mtime),
        ctime: time(it.stx_ctime),
        otime: has_otime.then(|| time(it.stx_btime)),
        volume: rustix::fs::makedev(it.stx_dev_major, it.stx_dev_minor),
        ino: it.stx_ino,
        is_mount_point: it
            .stx_attributes_mask
            .contains(StatxAttributes::MOUNT_ROOT)
            .then(|| it.stx_attributes.contains(StatxAttributes::MOUNT_ROOT)),
    }
}

#[expect(clippy::useless_conversion, reason = "the members' types differ between machines")]
fn old_facts(it: &rustix::fs::Stat) -> Facts {
    let time = |sec: i64, nsec: u64| Time { sec, nsec: u32::try_from(nsec).unwrap_or(0) };
    Facts {
        kind: kind(it.st_mode),
        mode: it.st_mode & PERMISSIONS,
        uid: it.st_uid,
        gid: it.st_gid,
        nlink: it.st_nlink.into(),
        size: u64::try_from(it.st_size).unwrap_or(0),
        allocated: u64::try_from(it.st_blocks).unwrap_or(0).saturating_mul(512),
        device: (rustix::fs::major(it.st_rdev), rustix::fs::minor(it.st_rdev)),
        atime: time(it.st_atime.into(), it.st_atime_nsec.into()),
        mtime: time(it.st_mtime.into(), it.st_mtime_nsec.into()),
        ctime: time(it.st_ctime.into(), it.st_ctime_nsec.into()),
        otime: None,
        volume: it.st_dev,
        ino: it.st_ino,
        is_mount_point: None,
    }
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

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStringExt;

    use super::*;

    fn made(name: &str) -> (tempfile::TempDir, Place) {
        let directory = tempfile::TempDir::new().unwrap();
        let place = Place::named(directory.path().join(name));
        (directory, place)
    }

    #[test]
    fn deeper_than_a_path_can_be_long() {
        let (_directory, place) = made("");
        let mut at = place;
        let name = [b'n'; 200];
        for _ in 0..60 {
            at = at.make(&name, &New::plain(Kind::Directory, 0o755)).unwrap();
        }
        let file = at.make(b"file", &New::plain(Kind::Regular, 0o600)).unwrap();
        file.set_mode(0o640).unwrap();
        assert_eq!(file.facts().unwrap().mode, 0o640);
        assert_eq!(at.list().unwrap().len(), 1);
    }

    #[test]
    fn mounts_are_seen_by_their_numbers() {
        let place = Place::named("/".into()).child(b"proc");
        assert!(place.is_on_another_mount());
        assert!(!place.child(b"1").is_on_another_mount());
        assert!(place.facts().unwrap().is_mount_point.unwrap_or(true));
        let (_directory, place) = made("");
        let below = place.make(b"below", &New::plain(Kind::Directory, 0o755)).unwrap();
        assert!(!below.is_on_another_mount());
    }

    #[test]
    fn no_link_is_gone_through_below_what_was_named() {
        let (directory, place) = made("");
        std::fs::create_dir(directory.path().join("outside")).unwrap();
        let inside = place.make(b"inside", &New::plain(Kind::Directory, 0o755)).unwrap();
        let below = inside.child(b"way").child(b"x");
        let target = directory.path().join("outside").into_os_string().into_vec();
        inside.make(b"way", &New::symlink(target)).unwrap();
        let way = inside.child(b"way");
        assert!(below.facts().is_err());
        assert!(way.make(b"file", &New::plain(Kind::Regular, 0o600)).is_err());
        assert!(way.set_mode(0o777).is_err());
        assert!(std::fs::read_dir(directory.path().join("outside")).unwrap().next().is_none());
    }

    #[test]
    fn what_is_no_regular_file_is_not_opened_as_one() {
        let (_directory, place) = made("");
        place.make(b"pipe", &New::plain(Kind::Fifo, 0o600)).unwrap();
        let pipe = place.child(b"pipe");
        // A pipe can be opened for writing where somebody reads.
        let _reader = pipe.open(OFlags::RDONLY | OFlags::NONBLOCK, 0).unwrap();
        let null = Place::named("/dev/null".into());
        for place in [pipe, null] {
            let (read, written) = (place.reader().map(drop), place.writer().map(drop));
            for refused in [read, written] {
                assert!(refused.unwrap_err().to_string().contains("no regular file"));
            }
        }
    }
}
