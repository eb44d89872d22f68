//! Regular files and block devices.
//!
//! Two writers on one image destroy it, so a writable open is exclusive: the locks of [`lock`](crate::lock)
//! on a regular file, `O_EXCL` on a block device (which also refuses one the kernel has mounted). A file
//! behind a loop device is refused too, because the kernel may write it through that device without
//! taking any lock; and who opens a loop device takes the locks of the file behind it. The other way round
//! nothing helps: Linux attaches a loop device to a file that somebody has locked, without a look. Parts of a file that do not
//! meet, opened as such or behind loop devices, are disks of their own, as partitions are.
//!
//! Read-only opens take no lock and open with `O_RDONLY`: they cannot change the medium by accident. That
//! somebody else may be changing it is among their [`concerns`](BlockDevice::concerns). Locks live as long as
//! the device, so whoever waits for one knows that the last write of the holder is done.
//!
//! No lock keeps anybody from cutting a file short. So the size is asked for whenever it is needed: what was cut off is past
//! the end, and is not written to, which would make the file long again, with holes where data were.

use std::{
    fs::{File, Metadata, OpenOptions},
    io::{self, IoSlice},
    ops::Range,
    os::unix::fs::{FileExt, FileTypeExt, OpenOptionsExt},
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering},
};

use parking_lot::Mutex;
use rustix::fs::{FallocateFlags, OFlags, SeekFrom};

use crate::{
    BlockDevice, DeviceError, Op,
    error::check_range,
    kernel,
    lock::{self, Hold, Part},
};

/// Parts that one system call writes: `IOV_MAX`.
const PARTS_MAX: usize = 1024;

/// How a device is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Access {
    /// Nothing is ever written, no lock is taken.
    ReadOnly,
    /// Reading and writing, exclusively.
    ReadWrite,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Regular,
    Block,
}

/// A regular file or block device.
#[derive(Debug)]
pub struct FileDevice {
    name: String,
    path: PathBuf,
    file: File,
    /// Files behind the disk, with their locks.
    behind: Vec<File>,
    concerns: Vec<String>,
    kind: Kind,
    access: Access,
    /// The part of it that is held, which ends before others begin.
    part: Option<Part>,
    /// The kernel lets one thread write to a regular file at a time, and the others spin meanwhile: here they sleep.
    writing: Mutex<()>,
    /// What holds it cannot make holes in it.
    keeps_all: AtomicBool,
}

impl FileDevice {
    /// Opens a regular file or a block device.
    ///
    /// With [`Access::ReadWrite`] the open is exclusive until the device is dropped;
    /// [`DeviceError::Busy`] says who has it otherwise.
    pub fn open(path: impl AsRef<Path>, access: Access) -> Result<Self, DeviceError> {
        Self::open_part(path, access, None)
    }

    /// The same for a part of a regular file, as a partition of the disk that is in it: others may have other parts. With
    /// [`Access::ReadWrite`] the device ends where the part does. Of a block device, and without a part, it is all.
    pub fn open_part(
        path: impl AsRef<Path>,
        access: Access,
        part: Option<Range<u64>>,
    ) -> Result<Self, DeviceError> {
        let hold = (access == Access::ReadWrite).then_some(Hold::Writing);
        Self::open_held(path.as_ref(), access, hold, part)
    }

    /// Opens for reading what nobody may write meanwhile, as far as can be known: writers are kept out until the device is
    /// dropped, and [`DeviceError::Busy`] says who is one already. For checkers.
    pub fn open_unused(path: impl AsRef<Path>) -> Result<Self, DeviceError> {
        Self::open_unused_part(path, None)
    }

    /// The same for a [part](Self::open_part).
    pub fn open_unused_part(
        path: impl AsRef<Path>,
        part: Option<Range<u64>>,
    ) -> Result<Self, DeviceError> {
        Self::open_held(path.as_ref(), Access::ReadOnly, Some(Hold::Still), part)
    }

    fn open_held(
        path: &Path,
        access: Access,
        hold: Option<Hold>,
        part: Option<Range<u64>>,
    ) -> Result<Self, DeviceError> {
        let name = path.display().to_string();
        let open = |e| DeviceError::open(&name, e);
        // A look before the open: opening a FIFO would wait for its other end.
        let before = kind_of(&name, &std::fs::metadata(path).map_err(open)?)?;
        let mut flags = OFlags::CLOEXEC | OFlags::NOCTTY;
        if hold.is_some() && before == Kind::Block {
            flags |= OFlags::EXCL;
        }
        let file = OpenOptions::new()
            .read(true)
            .write(access == Access::ReadWrite)
            .custom_flags(flags.bits() as i32)
            .open(path)
            .map_err(|e| busy_or_open(&name, e))?;
        let kind = kind_of(&name, &file.metadata().map_err(open)?)?;
        if kind != before {
            return Err(DeviceError::Busy { device: name, why: "it is being replaced".into() });
        }
        let part = part.filter(|_| kind == Kind::Regular).map(|range| Part { range, exact: true });
        Self::from_file(path, file, kind, access, hold, part)
    }

    /// Makes a new sparse file of `size` bytes and opens it for reading and writing. A path that
    /// exists is refused. That the file has this name is durable when the call returns.
    pub fn create(path: impl AsRef<Path>, size: u64) -> Result<Self, DeviceError> {
        let path = path.as_ref();
        let name = path.display().to_string();
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .open(path)
            .map_err(|e| DeviceError::open(&name, e))?;
        let hold = Some(Hold::Writing);
        let made = Self::from_file(path, file, Kind::Regular, Access::ReadWrite, hold, None)
            .and_then(|device| device.grow(size).map(|()| device))
            .and_then(|device| name_durably(path, device));
        if made.is_err() {
            let _what_failed_is_told = std::fs::remove_file(path);
        }
        made
    }

    /// With a hold on the file, or a part of it, or on those behind the disk, as wanted.
    pub(crate) fn from_file(
        path: &Path,
        file: File,
        kind: Kind,
        access: Access,
        hold: Option<Hold>,
        part: Option<Part>,
    ) -> Result<Self, DeviceError> {
        let name = path.display().to_string();
        let metadata = file.metadata().map_err(|e| DeviceError::open(&name, e))?;
        rustix::fs::seek(&file, SeekFrom::End(0)).map_err(|e| DeviceError::open(&name, e))?;
        let mut device = Self {
            path: std::path::absolute(path).unwrap_or_else(|_| path.into()),
            file,
            behind: Vec::new(),
            concerns: Vec::new(),
            kind,
            access,
            part: None,
            writing: Mutex::new(()),
            keeps_all: AtomicBool::new(false),
            name,
        };
        match (hold, kind) {
            (Some(hold), Kind::Regular) => {
                lock::take_either(&device.name, &device.file, hold, part.as_ref())?;
                kernel::refuse_loop(path, &metadata, part.as_ref())?;
                device.part = part;
            }
            (Some(hold), Kind::Block) => {
                kernel::refuse_loop(path, &metadata, None)?;
                device.hold_behind(&metadata, hold)?;
            }
            (None, _) => {
                device.concerns.extend(concern(&device.file, kind, &metadata, part.as_ref()));
            }
        }
        Ok(device)
    }

    /// Holds the files behind a disk. One that cannot be opened (another namespace, no permission, deleted) or locked (some
    /// network filesystems) cannot be held.
    fn hold_behind(&mut self, disk: &Metadata, hold: Hold) -> Result<(), DeviceError> {
        for it in kernel::files_behind(disk) {
            let path = &it.path;
            // A look before the open: opening a FIFO would wait for its other end.
            let Some(file) = path.is_file().then(|| File::open(path).ok()).flatten() else {
                continue;
            };
            if let Ok(metadata) = file.metadata() {
                kernel::refuse_other_loops(&self.name, &it, &metadata)?;
            }
            match lock::take_either(&self.name, &file, hold, it.part.as_ref()) {
                Ok(()) => self.behind.push(file),
                Err(error @ DeviceError::Busy { .. }) => return Err(behind(error, path)),
                Err(_) => {}
            }
        }
        Ok(())
    }

    /// The same without its [`concerns`](BlockDevice::concerns), for who knows already who writes.
    pub fn unconcerned(self) -> Self {
        let mut device = self;
        device.concerns.clear();
        device
    }

    /// Makes a regular file longer: `size` bytes, the new ones a hole. A size that is not larger
    /// changes nothing; a block device or a part of a file has the size it has ([`DeviceError::OutOfRange`]).
    pub fn grow(&self, size: u64) -> Result<(), DeviceError> {
        let old = self.size();
        if size <= old {
            return Ok(());
        }
        self.check_writable(Op::Resize, old, size - old)?;
        if self.kind == Kind::Block || self.part.is_some() {
            return check_range(&self.name, old, Op::Resize, old, size - old);
        }
        let longest = i64::MAX as u64;
        let grown = match size > longest {
            true => Err(std::io::Error::from(rustix::io::Errno::FBIG)),
            false => self.file.set_len(size),
        };
        grown.map_err(|e| DeviceError::io(&self.name, Op::Resize, old, (size - old) as usize, e))
    }

    /// Whether this is a block device, not a regular file.
    pub fn is_block_device(&self) -> bool {
        self.kind == Kind::Block
    }

    fn check_writable(&self, op: Op, offset: u64, len: u64) -> Result<(), DeviceError> {
        match self.access {
            Access::ReadWrite => Ok(()),
            Access::ReadOnly => Err(DeviceError::read_only(&self.name, op, offset, len)),
        }
    }

    /// Lets `write` write `len` bytes from `offset` on.
    fn in_turn(
        &self,
        offset: u64,
        len: usize,
        write: impl FnOnce() -> io::Result<()>,
    ) -> Result<(), DeviceError> {
        self.check_writable(Op::Write, offset, len as u64)?;
        let turn = (self.kind == Kind::Regular).then(|| self.writing.lock());
        check_range(&self.name, self.size(), Op::Write, offset, len as u64)?;
        let written = write();
        // The next one in turn is not waited for: threads that only write would sleep once for each write. The lock hands itself over in
        // turn every half a millisecond, so a commit that somebody waits for is not kept from the device for longer.
        drop(turn);
        written.map_err(self.io(Op::Write, offset, len))
    }

    fn io(&self, op: Op, offset: u64, len: usize) -> impl FnOnce(io::Error) -> DeviceError + '_ {
        move |e| DeviceError::io(&self.name, op, offset, len, e)
    }

    /// A failure of a range, which may be that it is past the end.
    fn failed(
        &self,
        op: Op,
        offset: u64,
        len: usize,
    ) -> impl FnOnce(io::Error) -> DeviceError + '_ {
        move |e| match check_range(&self.name, self.size(), op, offset, len as u64) {
            Ok(()) => self.io(op, offset, len)(e),
            Err(past_end) => past_end,
        }
    }
}

impl Drop for FileDevice {
    fn drop(&mut self) {
        if self.kind == Kind::Regular {
            lock::release(&self.file);
        }
        self.behind.iter().for_each(lock::release);
    }
}

impl BlockDevice for FileDevice {
    fn name(&self) -> &str {
        &self.name
    }

    fn size(&self) -> u64 {
        // One that does not answer any more has nothing that could be read or written.
        let size = rustix::fs::seek(&self.file, SeekFrom::End(0)).unwrap_or_default();
        self.part.as_ref().map_or(size, |part| size.min(part.range.end))
    }

    fn is_read_only(&self) -> bool {
        self.access == Access::ReadOnly
    }

    fn place(&self) -> Option<(PathBuf, u64)> {
        Some((self.path.clone(), 0))
    }

    fn concerns(&self) -> Vec<String> {
        self.concerns.clone()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), DeviceError> {
        let len = buf.len();
        self.file.read_exact_at(buf, offset).map_err(self.failed(Op::Read, offset, len))
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> Result<(), DeviceError> {
        self.in_turn(offset, data.len(), || self.file.write_all_at(data, offset))
    }

    fn write_parts_at(&self, offset: u64, parts: &[&[u8]]) -> Result<(), DeviceError> {
        let len = parts.iter().map(|part| part.len()).sum();
        self.in_turn(offset, len, || write_all_parts(&self.file, offset, parts))
    }

    fn barrier(&self) -> Result<(), DeviceError> {
        if self.is_read_only() {
            return Ok(());
        }
        self.file.sync_data().map_err(self.io(Op::Barrier, 0, 0))
    }

    fn discard(&self, offset: u64, len: u64) -> Result<(), DeviceError> {
        self.check_writable(Op::Discard, offset, len)?;
        check_range(&self.name, self.size(), Op::Discard, offset, len)?;
        if len == 0 {
            return Ok(());
        }
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        match rustix::fs::fallocate(&self.file, flags, offset, len) {
            Ok(()) => Ok(()),
            Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::NOSYS) => {
                self.keeps_all.store(true, Ordering::Relaxed);
                Ok(())
            }
            Err(e) => Err(self.io(Op::Discard, offset, len as usize)(e.into())),
        }
    }

    fn can_discard(&self) -> bool {
        !self.keeps_all.load(Ordering::Relaxed)
    }
}

/// Writes all of `parts`, one behind the other, without a copy of them.
fn write_all_parts(file: &File, offset: u64, parts: &[&[u8]]) -> io::Result<()> {
    let parts = parts.iter().filter(|part| !part.is_empty());
    let mut slices: Vec<IoSlice<'_>> = parts.map(|part| IoSlice::new(part)).collect();
    let (mut rest, mut at) = (&mut slices[..], offset);
    while !rest.is_empty() {
        // As many as the kernel takes at a time.
        let some = rest.get(..PARTS_MAX.min(rest.len())).unwrap_or_default();
        match rustix::io::pwritev(file, some, at) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => {
                IoSlice::advance_slices(&mut rest, written);
                at += written as u64;
            }
            Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(())
}

/// Makes durable that a new file has its name, where the system can: not in a directory that may be written to and not read,
/// nor on filesystems that do not know what to do about a directory.
fn name_durably(path: &Path, device: FileDevice) -> Result<FileDevice, DeviceError> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    let Ok(directory) = File::open(parent.unwrap_or(Path::new("."))) else { return Ok(device) };
    match rustix::fs::fsync(&directory) {
        Ok(()) | Err(rustix::io::Errno::INVAL | rustix::io::Errno::NOTSUP) => Ok(device),
        Err(errno) => Err(DeviceError::io(&device.name, Op::Barrier, 0, 0, errno.into())),
    }
}

pub(crate) fn kind_of(name: &str, metadata: &Metadata) -> Result<Kind, DeviceError> {
    let kind = metadata.file_type();
    let found = match kind {
        _ if kind.is_file() => return Ok(Kind::Regular),
        _ if kind.is_block_device() => return Ok(Kind::Block),
        _ if kind.is_dir() => "a directory",
        _ if kind.is_fifo() => "a pipe",
        _ if kind.is_socket() => "a socket",
        _ if kind.is_char_device() => "a character device",
        _ => "something else",
    };
    Err(DeviceError::NotADevice { device: name.into(), found })
}

/// That a disk is busy because the file behind it is.
fn behind(error: DeviceError, file: &Path) -> DeviceError {
    match error {
        DeviceError::Busy { device, why } => DeviceError::Busy {
            device,
            why: format!("of the file behind it, {}: {why}", file.display()),
        },
        other => other,
    }
}

/// Who may be changing what is only read here.
fn concern(file: &File, kind: Kind, metadata: &Metadata, part: Option<&Part>) -> Option<String> {
    match kind {
        Kind::Regular if lock::is_written(file, part) => Some(
            "another program has it open for writing: what is read may be old, or change meanwhile"
                .into(),
        ),
        Kind::Regular => kernel::concern_of_file(metadata, part),
        Kind::Block => kernel::concern_of_disk(metadata),
    }
}

pub(crate) fn busy_or_open(name: &str, e: io::Error) -> DeviceError {
    if e.raw_os_error() == Some(rustix::io::Errno::BUSY.raw_os_error()) {
        let why = match kernel::disk_user(Path::new(name)) {
            Some(user) => format!("it is a disk {user}"),
            None => "it is mounted, or another program has it open exclusively".into(),
        };
        return DeviceError::Busy { device: name.into(), why };
    }
    DeviceError::open(name, e)
}
