//! Reads and writes through mapped pages, in the place of some by read(2) and write(2): which ones follows from the
//! operations' own numbers, so both sides choose alike.

use std::os::fd::BorrowedFd;

use rustix::fs::{FileType, OFlags};
use rustix::io::Errno;

use crate::mapped::Mapped;

/// One in so many operations.
const SHARE: u64 = 4;
/// Offsets up to here are mapped.
const END_MAX: u64 = 1 << 32;

type Called<T> = std::result::Result<T, Errno>;

fn is_chosen(number: u64) -> bool {
    number.is_multiple_of(SHARE)
}

/// How a file has to be open for a write of this seed.
pub fn flags(seed: u64) -> OFlags {
    if is_chosen(seed) { OFlags::RDWR } else { OFlags::WRONLY }
}

/// The length of a file that can be mapped.
fn length(file: BorrowedFd<'_>) -> Called<u64> {
    let stat = rustix::fs::fstat(file)?;
    let regular = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
    Ok(if regular { u64::try_from(stat.st_size).unwrap_or(0).min(END_MAX) } else { 0 })
}

fn errno(error: std::io::Error) -> Errno {
    Errno::from_io_error(&error).unwrap_or(Errno::IO)
}

/// Writes within a file, if this write is chosen: every second time with msync(2), else what is unmapped is written by that.
pub fn write(file: BorrowedFd<'_>, seed: u64, offset: u64, data: &[u8]) -> Called<Option<usize>> {
    let end = offset.saturating_add(data.len() as u64);
    if !is_chosen(seed) || data.is_empty() || end > length(file)? {
        return Ok(None);
    }
    let mapped = Mapped::shared(file, end as usize).map_err(errno)?;
    mapped.write(offset as usize, data).map_err(errno)?;
    if is_chosen(seed / SHARE) {
        mapped.sync().map_err(errno)?;
    }
    Ok(Some(data.len()))
}

/// Reads, if this read is chosen.
pub fn read(file: BorrowedFd<'_>, offset: u64, buffer: &mut [u8]) -> Called<Option<usize>> {
    let length = length(file)?;
    if !is_chosen(offset / 4096 + buffer.len() as u64) || offset >= length || buffer.is_empty() {
        return Ok(None);
    }
    let count = usize::try_from(length - offset).unwrap_or(usize::MAX).min(buffer.len());
    let mapped = Mapped::read_only(file, offset as usize + count).map_err(errno)?;
    mapped.read(offset as usize, &mut buffer[..count]).map_err(errno)?;
    Ok(Some(count))
}
