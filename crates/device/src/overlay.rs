//! A device whose writes stay in memory above another one that is only read: trying a repair, or
//! a write, without touching the medium.

use std::{io, ops::Range, sync::Arc};

use crate::{
    BlockDevice, DeviceError, Op,
    chunks::{CHUNK, Chunks, pieces},
    error::check_range,
};

/// Writes in memory over a lower device that is never written.
#[derive(Debug)]
pub struct OverlayDevice {
    lower: Arc<dyn BlockDevice>,
    upper: Chunks,
    /// Bytes that changes may take.
    most: u64,
}

impl OverlayDevice {
    /// An overlay without writes yet. It has the name of the device below.
    pub fn new(lower: Arc<dyn BlockDevice>) -> Self {
        Self::within(lower, u64::MAX)
    }

    /// One whose changes take no more than `most` bytes of memory (but for as many chunks as there are threads that write at once); what
    /// would take more fails with [`io::ErrorKind::OutOfMemory`].
    pub fn within(lower: Arc<dyn BlockDevice>, most: u64) -> Self {
        Self { lower, upper: Chunks::new(), most }
    }

    /// Bytes of memory that hold changes (whole chunks of 64 KiB).
    pub fn allocated(&self) -> u64 {
        self.upper.count() as u64 * CHUNK as u64
    }

    fn read_below(
        &self,
        offset: u64,
        buf: &mut [u8],
        span: &Range<usize>,
    ) -> Result<(), DeviceError> {
        match buf.get_mut(span.clone()) {
            Some(target) if !target.is_empty() => {
                self.lower.read_at(offset + span.start as u64, target)
            }
            _ => Ok(()),
        }
    }

    fn is_full(&self, offset: u64, len: usize) -> DeviceError {
        let why = format!("more than {} bytes of changes in memory", self.most);
        let why = io::Error::new(io::ErrorKind::OutOfMemory, why);
        DeviceError::io(self.name(), Op::Write, offset, len, why)
    }

    /// Fills a chunk from the lower device, as far as that reaches.
    fn fill(&self, number: u64, bytes: &mut [u8]) -> Result<(), DeviceError> {
        let start = number * CHUNK as u64;
        let len = self.lower.size().saturating_sub(start).min(CHUNK as u64) as usize;
        self.lower.read_at(start, bytes.get_mut(..len).unwrap_or_default())
    }
}

impl BlockDevice for OverlayDevice {
    fn name(&self) -> &str {
        self.lower.name()
    }

    fn size(&self) -> u64 {
        self.lower.size()
    }

    fn is_read_only(&self) -> bool {
        false
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), DeviceError> {
        check_range(self.name(), self.size(), Op::Read, offset, buf.len() as u64)?;
        // What lies below is read in one piece, as far as nothing was changed.
        let mut below = 0..0;
        for piece in pieces(offset, buf.len()) {
            let span = piece.buffer.clone();
            let target = buf.get_mut(piece.buffer).unwrap_or_default();
            if self.upper.read(piece.number, piece.start, target) {
                self.read_below(offset, buf, &below)?;
                below = span.end..span.end;
            }
            below.end = span.end;
        }
        self.read_below(offset, buf, &below)
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> Result<(), DeviceError> {
        check_range(self.name(), self.size(), Op::Write, offset, data.len() as u64)?;
        for piece in pieces(offset, data.len()) {
            if !self.upper.contains(piece.number) && self.allocated() + CHUNK as u64 > self.most {
                return Err(self.is_full(offset, data.len()));
            }
            let source = data.get(piece.buffer).unwrap_or_default();
            let fill = |bytes: &mut [u8]| self.fill(piece.number, bytes);
            self.upper.write(piece.number, piece.start, source, fill)?;
        }
        Ok(())
    }

    fn barrier(&self) -> Result<(), DeviceError> {
        Ok(())
    }
}
