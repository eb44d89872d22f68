//! A device whose writes stay in memory above another one that is only read: trying a repair, or
//! a write, without touching the medium.

use std::sync::Arc;

use crate::{
    BlockDevice, DeviceError, Op,
    chunks::{CHUNK, Chunks, pieces},
    error::check_range,
};

/// Writes in memory over a lower device that is never written.
#[derive(Debug)]
pub struct OverlayDevice {
    name: String,
    lower: Arc<dyn BlockDevice>,
    upper: Chunks,
}

impl OverlayDevice {
    /// An overlay without writes yet.
    pub fn new(lower: Arc<dyn BlockDevice>) -> Self {
        Self { name: format!("{} (overlay)", lower.name()), lower, upper: Chunks::new() }
    }

    /// Bytes of memory that hold changes (whole chunks of 64 KiB).
    pub fn allocated(&self) -> u64 {
        self.upper.count() as u64 * CHUNK as u64
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
        &self.name
    }

    fn size(&self) -> u64 {
        self.lower.size()
    }

    fn is_read_only(&self) -> bool {
        false
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), DeviceError> {
        check_range(&self.name, self.size(), Op::Read, offset, buf.len() as u64)?;
        for piece in pieces(offset, buf.len()) {
            let at = offset + piece.buffer.start as u64;
            let target = buf.get_mut(piece.buffer).unwrap_or_default();
            if !self.upper.read(piece.number, piece.start, target) {
                self.lower.read_at(at, target)?;
            }
        }
        Ok(())
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> Result<(), DeviceError> {
        check_range(&self.name, self.size(), Op::Write, offset, data.len() as u64)?;
        for piece in pieces(offset, data.len()) {
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
