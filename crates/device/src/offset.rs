//! A window onto another device: the filesystem inside a disk image (`offset=`).

use std::{path::PathBuf, sync::Arc};

use crate::{BlockDevice, DeviceError, Op, error::check_range};

/// Bytes `offset..offset + len` of another device as a device of their own.
#[derive(Debug)]
pub struct OffsetDevice {
    name: String,
    inner: Arc<dyn BlockDevice>,
    offset: u64,
    size: u64,
}

impl OffsetDevice {
    /// The window of `len` bytes from `offset`; without `len`, all that follows. A window that is
    /// not inside the device is refused.
    pub fn new(
        inner: Arc<dyn BlockDevice>,
        offset: u64,
        len: Option<u64>,
    ) -> Result<Self, DeviceError> {
        let size = len.unwrap_or_else(|| inner.size().saturating_sub(offset));
        check_range(inner.name(), inner.size(), Op::Read, offset, size)?;
        Ok(Self { name: format!("{}@{offset}", inner.name()), inner, offset, size })
    }
}

impl BlockDevice for OffsetDevice {
    fn name(&self) -> &str {
        &self.name
    }

    fn size(&self) -> u64 {
        self.inner.size().saturating_sub(self.offset).min(self.size)
    }

    fn is_read_only(&self) -> bool {
        self.inner.is_read_only()
    }

    fn place(&self) -> Option<(PathBuf, u64)> {
        let (path, offset) = self.inner.place()?;
        Some((path, offset.checked_add(self.offset)?))
    }

    fn concerns(&self) -> Vec<String> {
        self.inner.concerns()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), DeviceError> {
        check_range(&self.name, self.size, Op::Read, offset, buf.len() as u64)?;
        self.inner.read_at(self.offset + offset, buf)
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> Result<(), DeviceError> {
        check_range(&self.name, self.size, Op::Write, offset, data.len() as u64)?;
        self.inner.write_at(self.offset + offset, data)
    }

    fn write_parts_at(&self, offset: u64, parts: &[&[u8]]) -> Result<(), DeviceError> {
        let len = parts.iter().map(|part| part.len() as u64).sum();
        check_range(&self.name, self.size, Op::Write, offset, len)?;
        self.inner.write_parts_at(self.offset + offset, parts)
    }

    fn barrier(&self) -> Result<(), DeviceError> {
        self.inner.barrier()
    }

    fn discard(&self, offset: u64, len: u64) -> Result<(), DeviceError> {
        check_range(&self.name, self.size, Op::Discard, offset, len)?;
        self.inner.discard(self.offset + offset, len)
    }

    fn can_discard(&self) -> bool {
        self.inner.can_discard()
    }
}
