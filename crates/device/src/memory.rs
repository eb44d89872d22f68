//! A device in memory: sparse, snapshotted in time proportional to its chunks and without copying
//! their bytes. Tests build thousands of states from one image with it.

use std::{
    fs::{File, OpenOptions},
    os::unix::fs::FileExt,
    path::Path,
};

use crate::{
    BlockDevice, DeviceError, Op,
    chunks::{CHUNK, Chunks, pieces},
    error::check_range,
};

/// A sparse device in memory; bytes never written read as zeros.
#[derive(Debug)]
pub struct MemoryDevice {
    name: String,
    size: u64,
    chunks: Chunks,
}

impl MemoryDevice {
    /// An empty device of `size` bytes.
    pub fn new(size: u64) -> Self {
        Self { name: "memory".into(), size, chunks: Chunks::new() }
    }

    /// The same device under another name in messages.
    pub fn named(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self
    }

    /// The content of this instant as a device of its own. Bytes are shared until one side
    /// writes them.
    pub fn snapshot(&self) -> MemoryDevice {
        Self { name: self.name.clone(), size: self.size, chunks: self.chunks.snapshot() }
    }

    /// The content of this instant in a device of another size (bytes): cut off, or zeros after.
    pub fn resized(&self, size: u64) -> MemoryDevice {
        let resized = Self { name: self.name.clone(), size, chunks: self.chunks.snapshot() };
        for (number, _) in resized.chunks.sorted() {
            let start = number.saturating_mul(CHUNK as u64);
            if start >= size {
                resized.chunks.remove(number);
            } else if size - start < CHUNK as u64 {
                let keep = (size - start) as usize;
                let zeros = vec![0; CHUNK - keep];
                let _: Result<(), ()> = resized.chunks.write(number, keep, &zeros, |_| Ok(()));
            }
        }
        resized
    }

    /// Bytes of memory that hold content (shared ones counted too).
    pub fn allocated(&self) -> u64 {
        self.chunks.count() as u64 * CHUNK as u64
    }

    /// Writes the content to a file, made or replaced, with holes where chunks are zero.
    pub fn store(&self, path: impl AsRef<Path>) -> Result<(), DeviceError> {
        let path = path.as_ref();
        let name = path.display().to_string();
        let open = |e| DeviceError::open(&name, e);
        let file = File::create(path).map_err(open)?;
        file.set_len(self.size).map_err(open)?;
        for (number, chunk) in self.chunks.sorted() {
            let offset = number * CHUNK as u64;
            let len = (self.size.saturating_sub(offset)).min(CHUNK as u64) as usize;
            let bytes = chunk.get(..len).unwrap_or(&chunk);
            if bytes.iter().any(|byte| *byte != 0) {
                file.write_all_at(bytes, offset)
                    .map_err(|e| DeviceError::io(&name, Op::Write, offset, len, e))?;
            }
        }
        Ok(())
    }

    /// A device with the content of a file or block device; its holes take no memory.
    pub fn load(path: impl AsRef<Path>) -> Result<MemoryDevice, DeviceError> {
        let path = path.as_ref();
        let name = path.display().to_string();
        let open = |e: std::io::Error| DeviceError::open(&name, e);
        let file = OpenOptions::new().read(true).open(path).map_err(open)?;
        let size =
            rustix::fs::seek(&file, rustix::fs::SeekFrom::End(0)).map_err(|e| open(e.into()))?;
        let device = MemoryDevice::new(size).named(name.clone());
        let mut buf = vec![0; CHUNK];
        let mut offset = next_data(&file, 0, size);
        while offset < size {
            let len = (size - offset).min(CHUNK as u64) as usize;
            let bytes = buf.get_mut(..len).unwrap_or_default();
            file.read_exact_at(bytes, offset)
                .map_err(|e| DeviceError::io(&name, Op::Read, offset, len, e))?;
            if bytes.iter().any(|byte| *byte != 0) {
                device.write_at(offset, bytes)?;
            }
            offset = next_data(&file, offset + len as u64, size);
        }
        Ok(device)
    }
}

/// The chunk start at or before the next byte of `file` from `from` on that is not in a hole.
fn next_data(file: &File, from: u64, size: u64) -> u64 {
    match rustix::fs::seek(file, rustix::fs::SeekFrom::Data(from)) {
        Ok(at) => (at - at % CHUNK as u64).max(from),
        Err(rustix::io::Errno::NXIO) => size,
        Err(_) => from,
    }
}

impl BlockDevice for MemoryDevice {
    fn name(&self) -> &str {
        &self.name
    }

    fn size(&self) -> u64 {
        self.size
    }

    fn is_read_only(&self) -> bool {
        false
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), DeviceError> {
        check_range(&self.name, self.size, Op::Read, offset, buf.len() as u64)?;
        for piece in pieces(offset, buf.len()) {
            let target = buf.get_mut(piece.buffer).unwrap_or_default();
            if !self.chunks.read(piece.number, piece.start, target) {
                target.fill(0);
            }
        }
        Ok(())
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> Result<(), DeviceError> {
        check_range(&self.name, self.size, Op::Write, offset, data.len() as u64)?;
        for piece in pieces(offset, data.len()) {
            let source = data.get(piece.buffer).unwrap_or_default();
            self.chunks.write(piece.number, piece.start, source, |_| Ok(()))?;
        }
        Ok(())
    }

    fn barrier(&self) -> Result<(), DeviceError> {
        Ok(())
    }

    /// Zeroes the range, so that a discard of something still needed shows.
    fn discard(&self, offset: u64, len: u64) -> Result<(), DeviceError> {
        check_range(&self.name, self.size, Op::Discard, offset, len)?;
        let zeros = [0; CHUNK];
        let mut done = 0;
        while done < len {
            let at = offset + done;
            let take = (CHUNK as u64 - at % CHUNK as u64).min(len - done);
            if take == CHUNK as u64 {
                self.chunks.remove(at / CHUNK as u64);
            } else if self.chunks.contains(at / CHUNK as u64) {
                self.write_at(at, zeros.get(..take as usize).unwrap_or_default())?;
            }
            done += take;
        }
        Ok(())
    }
}
