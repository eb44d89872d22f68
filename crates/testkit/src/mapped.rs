//! Files through mapped pages, without unsafe code.
//!
//! memmap2 maps without unsafe code where it is asked for no slice of the pages. They are then read and written through
//! `/proc/self/mem`, which faults them in as the processor would: a page is made writable and dirty, or copied where the
//! mapping is private. What would be SIGBUS, a page behind the end of the file, is an error here (EIO), so a test can show it.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;

use memmap2::{MmapOptions, MmapRaw};
use rustix::fd::AsRawFd;

/// Mapped bytes of a file.
pub struct Mapped {
    map: MmapRaw,
    memory: File,
}

impl Mapped {
    /// Maps `len` bytes, from the beginning on, so that changes are the file's. It must be open for reading and writing.
    pub fn shared(file: impl AsFd, len: usize) -> io::Result<Self> {
        Self::new(MmapOptions::new().len(len).map_raw(file.as_fd().as_raw_fd())?)
    }

    /// The same for looking at them only.
    pub fn read_only(file: impl AsFd, len: usize) -> io::Result<Self> {
        Self::new(MmapOptions::new().len(len).map_raw_read_only(file.as_fd().as_raw_fd())?)
    }

    fn new(map: MmapRaw) -> io::Result<Self> {
        let memory = OpenOptions::new().read(true).write(true).open("/proc/self/mem")?;
        Ok(Self { map, memory })
    }

    fn address(&self, offset: usize) -> u64 {
        (self.map.as_ptr().addr() + offset) as u64
    }

    /// Reads from the pages.
    pub fn read(&self, offset: usize, buffer: &mut [u8]) -> io::Result<()> {
        self.memory.read_exact_at(buffer, self.address(offset))
    }

    /// Writes to the pages.
    pub fn write(&self, offset: usize, data: &[u8]) -> io::Result<()> {
        self.memory.write_all_at(data, self.address(offset))
    }

    /// Writes what has changed to the file: msync(2) with MS_SYNC.
    pub fn sync(&self) -> io::Result<()> {
        self.map.flush()
    }
}
