//! Regular files and block devices.
//!
//! Two writers on one image destroy it, so a writable open is exclusive: an advisory `flock` on a
//! regular file, `O_EXCL` on a block device (which also refuses one the kernel has mounted). A file
//! behind a loop device is refused too, because the kernel may write it through that device without
//! taking any lock. Read-only opens take no lock and open with `O_RDONLY`: they cannot change the
//! medium by accident. The lock lives as long as the device, so whoever waits for it knows that the
//! last write of the holder is done.

use std::time::Duration;
use std::{
    fs::{File, Metadata, OpenOptions, TryLockError},
    io,
    os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt},
    path::Path,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use rustix::fs::{FallocateFlags, OFlags, SeekFrom};

use crate::{BlockDevice, DeviceError, Op, error::check_range};

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
    file: File,
    kind: Kind,
    size: AtomicU64,
    access: Access,
    /// The kernel lets one thread write to a regular file at a time, and the others spin meanwhile: here they sleep.
    writing: Mutex<()>,
}

impl FileDevice {
    /// Opens a regular file or a block device.
    ///
    /// With [`Access::ReadWrite`] the open is exclusive until the device is dropped;
    /// [`DeviceError::Busy`] says who has it otherwise.
    pub fn open(path: impl AsRef<Path>, access: Access) -> Result<Self, DeviceError> {
        let path = path.as_ref();
        let name = path.display().to_string();
        let open = |e| DeviceError::open(&name, e);
        // A look before the open: opening a FIFO would wait for its other end.
        let before = kind_of(&name, &std::fs::metadata(path).map_err(open)?)?;
        let mut flags = OFlags::CLOEXEC | OFlags::NOCTTY;
        if access == Access::ReadWrite && before == Kind::Block {
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
        Self::from_file(name, file, kind, access)
    }

    /// Opens for reading what nobody may write meanwhile, as far as can be known: writers are kept out until the device is
    /// dropped, and [`DeviceError::Busy`] says who is one already. For checkers.
    pub fn open_unused(path: impl AsRef<Path>) -> Result<Self, DeviceError> {
        let path = path.as_ref();
        let name = path.display().to_string();
        let open = |e| DeviceError::open(&name, e);
        if kind_of(&name, &std::fs::metadata(path).map_err(open)?)? == Kind::Regular {
            let device = Self::open(path, Access::ReadOnly)?;
            lock(&name, device.file.try_lock_shared())?;
            refuse_loop(&name, &device.file)?;
            return Ok(device);
        }
        let flags = OFlags::CLOEXEC | OFlags::NOCTTY | OFlags::EXCL;
        let file = OpenOptions::new()
            .read(true)
            .custom_flags(flags.bits() as i32)
            .open(path)
            .map_err(|e| busy_or_open(&name, e))?;
        Self::from_file(name, file, Kind::Block, Access::ReadOnly)
    }

    /// Makes a new sparse file of `size` bytes and opens it for reading and writing. A path that
    /// exists is refused.
    pub fn create(path: impl AsRef<Path>, size: u64) -> Result<Self, DeviceError> {
        let path = path.as_ref();
        let name = path.display().to_string();
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .open(path)
            .map_err(|e| DeviceError::open(&name, e))?;
        let device = Self::from_file(name, file, Kind::Regular, Access::ReadWrite)?;
        device.grow(size)?;
        Ok(device)
    }

    pub(crate) fn from_file(
        name: String,
        file: File,
        kind: Kind,
        access: Access,
    ) -> Result<Self, DeviceError> {
        if access == Access::ReadWrite && kind == Kind::Regular {
            lock(&name, file.try_lock())?;
            refuse_loop(&name, &file)?;
        }
        let size =
            rustix::fs::seek(&file, SeekFrom::End(0)).map_err(|e| DeviceError::open(&name, e))?;
        let (size, writing) = (AtomicU64::new(size), Mutex::new(()));
        Ok(Self { name, file, kind, size, access, writing })
    }

    /// Makes a regular file longer: `size` bytes, the new ones a hole. A size that is not larger
    /// changes nothing; a block device has the size it has ([`DeviceError::OutOfRange`]).
    pub fn grow(&self, size: u64) -> Result<(), DeviceError> {
        let old = self.size();
        if size <= old {
            return Ok(());
        }
        self.check_writable(Op::Resize, old, size - old)?;
        if self.kind == Kind::Block {
            return check_range(&self.name, old, Op::Resize, old, size - old);
        }
        self.file
            .set_len(size)
            .map_err(|e| DeviceError::io(&self.name, Op::Resize, old, (size - old) as usize, e))?;
        self.size.store(size, Ordering::Release);
        Ok(())
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

    fn io(&self, op: Op, offset: u64, len: usize) -> impl FnOnce(io::Error) -> DeviceError + '_ {
        move |e| DeviceError::io(&self.name, op, offset, len, e)
    }
}

impl Drop for FileDevice {
    /// Lets go of the lock itself: a child that this program is about to start has the file open, too, until it becomes
    /// another program, and would hold the lock that long.
    fn drop(&mut self) {
        if self.kind == Kind::Regular {
            let _ends_with_the_file_anyway = self.file.unlock();
        }
    }
}

impl BlockDevice for FileDevice {
    fn name(&self) -> &str {
        &self.name
    }

    fn size(&self) -> u64 {
        self.size.load(Ordering::Acquire)
    }

    fn is_read_only(&self) -> bool {
        self.access == Access::ReadOnly
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), DeviceError> {
        check_range(&self.name, self.size(), Op::Read, offset, buf.len() as u64)?;
        let len = buf.len();
        self.file.read_exact_at(buf, offset).map_err(self.io(Op::Read, offset, len))
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> Result<(), DeviceError> {
        self.check_writable(Op::Write, offset, data.len() as u64)?;
        check_range(&self.name, self.size(), Op::Write, offset, data.len() as u64)?;
        // What it guards is the kernel's: a panic leaves nothing half done.
        let _one = (self.kind == Kind::Regular)
            .then(|| self.writing.lock().unwrap_or_else(PoisonError::into_inner));
        self.file.write_all_at(data, offset).map_err(self.io(Op::Write, offset, data.len()))
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
            Ok(()) | Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::NOSYS) => Ok(()),
            Err(e) => Err(self.io(Op::Discard, offset, len as usize)(e.into())),
        }
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

pub(crate) fn busy_or_open(name: &str, e: io::Error) -> DeviceError {
    if e.raw_os_error() == Some(rustix::io::Errno::BUSY.raw_os_error()) {
        let why = "it is mounted, or another program has it open exclusively".into();
        return DeviceError::Busy { device: name.into(), why };
    }
    DeviceError::open(name, e)
}

fn lock(name: &str, tried: Result<(), TryLockError>) -> Result<(), DeviceError> {
    match tried {
        Ok(()) => Ok(()),
        Err(TryLockError::WouldBlock) => Err(DeviceError::Busy {
            device: name.into(),
            why: "another program has locked it for writing".into(),
        }),
        Err(TryLockError::Error(e)) => Err(DeviceError::open(name, e)),
    }
}

/// How often, and how far apart, a loop device that is about to go is looked at again.
const LOOP_LOOKS: u32 = 30;
const LOOP_PAUSE: Duration = Duration::from_millis(100);

/// Refuses a file that backs a loop device, as sysfs tells it. After `umount` and `losetup -d` the kernel keeps the device
/// until its last user has closed it, so one that detaches by itself is given a moment.
fn refuse_loop(name: &str, file: &File) -> Result<(), DeviceError> {
    for look in 0.. {
        let Some((device, detaches)) = backed_loop(name, file)? else { return Ok(()) };
        if !detaches || look == LOOP_LOOKS {
            let why = format!("it backs the loop device {device}");
            return Err(DeviceError::Busy { device: name.into(), why });
        }
        std::thread::sleep(LOOP_PAUSE);
    }
    Ok(())
}

/// The loop device that `file` backs, and whether it detaches by itself. A name in sysfs that leads nowhere (a deleted
/// file, another mount namespace) cannot be compared and is passed over.
fn backed_loop(name: &str, file: &File) -> Result<Option<(String, bool)>, DeviceError> {
    let own = file.metadata().map_err(|e| DeviceError::open(name, e))?;
    let Ok(blocks) = std::fs::read_dir("/sys/block") else {
        return Ok(None);
    };
    for block in blocks.flatten() {
        let Ok(backing) = std::fs::read_to_string(block.path().join("loop/backing_file")) else {
            continue;
        };
        let backing = backing.strip_suffix('\n').unwrap_or(&backing);
        let same = std::fs::metadata(backing)
            .is_ok_and(|other| other.dev() == own.dev() && other.ino() == own.ino());
        if same {
            let detaches = std::fs::read_to_string(block.path().join("loop/autoclear"));
            let detaches = detaches.is_ok_and(|flag| flag.trim() == "1");
            return Ok(Some((format!("/dev/{}", block.file_name().display()), detaches)));
        }
    }
    Ok(None)
}
