//! A block device for oneself, by an open file apart from the one that reads and writes.
//!
//! The kernel mounts a block device only where nobody has claimed it, and claims it for the mount. So a program that has
//! the device mounted for it while it writes itself holds its claim apart, lets go of it just before the mount, and has
//! it again, through the mount, just after. The device stays open for writing all the time.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rustix::fs::OFlags;

use crate::file::{Kind, busy_or_open, kind_of};
use crate::lock::Hold;
use crate::{Access, DeviceError, FileDevice};

/// Keeps others from claiming a block device, the kernel's mounts among them, until it is dropped.
#[derive(Debug)]
pub struct Claim {
    _file: File,
}

impl Claim {
    /// Claims the block device at `path`; [`DeviceError::Busy`] where somebody else has.
    pub fn take(path: &Path) -> Result<Self, DeviceError> {
        Ok(Self { _file: open(path, false, OFlags::EXCL)? })
    }

    /// Claims the block device at `path` and opens it for reading and writing besides.
    pub fn open(path: &Path) -> Result<(Self, FileDevice), DeviceError> {
        let claim = Self::take(path)?;
        let name = path.display().to_string();
        let file = open(path, true, OFlags::empty())?;
        let found = file.metadata().map_err(|error| DeviceError::open(&name, error))?;
        if kind_of(&name, &found)? != Kind::Block {
            return Err(DeviceError::NotADevice { device: name, found: "a file" });
        }
        let (access, hold) = (Access::ReadWrite, Some(Hold::Writing));
        Ok((claim, FileDevice::from_file(path, file, Kind::Block, access, hold, None)?))
    }
}

fn open(path: &Path, write: bool, flags: OFlags) -> Result<File, DeviceError> {
    let flags = OFlags::CLOEXEC | OFlags::NOCTTY | flags;
    let mut options = OpenOptions::new();
    options.read(true).write(write).custom_flags(flags.bits() as i32);
    options.open(path).map_err(|error| busy_or_open(&path.display().to_string(), error))
}
