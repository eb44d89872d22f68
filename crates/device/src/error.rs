//! What can go wrong with a device, with the device, the operation and the range as fields, so that
//! the layers above can say where it happened and map it to an errno without reading strings.

use std::{fmt, io, sync::Arc};

use thiserror::Error;

/// The operation that failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Op {
    /// Reading a range.
    Read,
    /// Writing a range.
    Write,
    /// Making earlier writes durable.
    Barrier,
    /// Giving up the content of a range.
    Discard,
    /// Changing the size.
    Resize,
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Op::Read => "read",
            Op::Write => "write",
            Op::Barrier => "barrier",
            Op::Discard => "discard",
            Op::Resize => "resize",
        })
    }
}

/// A device's refusal or failure. Cheap to clone, so that a first cause can be kept.
#[derive(Debug, Clone, Error)]
pub enum DeviceError {
    /// The device could not be opened or made.
    #[error("cannot open {device}: {source}")]
    Open {
        /// The device's name.
        device: String,
        /// The system's answer.
        source: Arc<io::Error>,
    },
    /// Somebody else uses the device.
    #[error("{device} is busy: {why}")]
    Busy {
        /// The device's name.
        device: String,
        /// Who holds it, as far as is known.
        why: String,
    },
    /// The path is neither a regular file nor a block device.
    #[error("{device} is {found}, neither a regular file nor a block device")]
    NotADevice {
        /// The device's name.
        device: String,
        /// What it is.
        found: &'static str,
    },
    /// The system failed an operation on a range.
    #[error("{op} of {len} bytes at {offset} on {device}: {source}")]
    Io {
        /// The device's name.
        device: String,
        /// What was tried.
        op: Op,
        /// First byte of the range.
        offset: u64,
        /// Length of the range in bytes.
        len: u64,
        /// The system's answer.
        source: Arc<io::Error>,
    },
    /// The range is not inside the device.
    #[error("{op} of {len} bytes at {offset} is past the end of {device} ({size} bytes)")]
    OutOfRange {
        /// The device's name.
        device: String,
        /// What was tried.
        op: Op,
        /// First byte of the range.
        offset: u64,
        /// Length of the range in bytes.
        len: u64,
        /// Size of the device in bytes.
        size: u64,
    },
    /// The device takes no writes.
    #[error("{op} of {len} bytes at {offset}: {device} is read-only")]
    ReadOnly {
        /// The device's name.
        device: String,
        /// What was tried.
        op: Op,
        /// First byte of the range.
        offset: u64,
        /// Length of the range in bytes.
        len: u64,
    },
}

impl DeviceError {
    /// The name of the device that failed.
    pub fn device(&self) -> &str {
        match self {
            Self::Open { device, .. }
            | Self::Busy { device, .. }
            | Self::NotADevice { device, .. }
            | Self::Io { device, .. }
            | Self::OutOfRange { device, .. }
            | Self::ReadOnly { device, .. } => device,
        }
    }

    /// An [`DeviceError::Io`] from its parts.
    pub fn io(device: &str, op: Op, offset: u64, len: usize, source: io::Error) -> Self {
        Self::Io { device: device.into(), op, offset, len: len as u64, source: Arc::new(source) }
    }

    /// Whether there was no room for a write where the device's bytes are kept: on the disk that holds an image file. It may
    /// succeed later.
    pub fn is_full(&self) -> bool {
        let full = |kind| matches!(kind, io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded);
        matches!(self, Self::Io { source, .. } if full(source.kind()))
    }

    /// An [`DeviceError::Open`] from its parts.
    pub(crate) fn open(device: &str, source: impl Into<io::Error>) -> Self {
        Self::Open { device: device.into(), source: Arc::new(source.into()) }
    }

    /// A [`DeviceError::ReadOnly`] from its parts.
    pub(crate) fn read_only(device: &str, op: Op, offset: u64, len: u64) -> Self {
        Self::ReadOnly { device: device.into(), op, offset, len }
    }
}

/// Refuses a range that is not wholly inside `size` bytes.
pub(crate) fn check_range(
    device: &str,
    size: u64,
    op: Op,
    offset: u64,
    len: u64,
) -> Result<(), DeviceError> {
    match offset.checked_add(len) {
        Some(end) if end <= size => Ok(()),
        _ => Err(DeviceError::OutOfRange { device: device.into(), op, offset, len, size }),
    }
}
