//! A device on which nothing is a filesystem before it is whole.
//!
//! Filling a filesystem takes commits, and each leaves a valid one that lacks the rest. So the magic of each superblock is kept back,
//! of all mirrors: whoever writes a superblock finds it as he wrote it, and the medium has zeros in the magic's place until
//! [`release`](Withheld::release). Everything else goes through.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use buttress_device::{BlockDevice, DeviceError};
use buttress_ondisk::superblock::{MAGIC, SUPERBLOCK_LEN, SUPERBLOCK_OFFSETS};

/// Where in a superblock its magic is.
const MAGIC_AT: u64 = 0x40;

/// A device whose superblocks have no magic yet.
#[derive(Debug)]
pub struct Withheld {
    inner: Arc<dyn BlockDevice>,
    /// By mirror: whether its magic was written, and is kept back.
    held: [AtomicBool; SUPERBLOCK_OFFSETS.len()],
}

impl Withheld {
    /// Keeps back what is written from here on.
    pub fn new(inner: Arc<dyn BlockDevice>) -> Withheld {
        Withheld { inner, held: Default::default() }
    }

    /// Makes the filesystem one: its superblocks get their magic when all else is durable, the primary last.
    pub fn release(&self) -> Result<(), DeviceError> {
        for (at, held) in SUPERBLOCK_OFFSETS.iter().zip(&self.held).rev() {
            if held.load(Ordering::Acquire) {
                let mut block = vec![0; SUPERBLOCK_LEN];
                self.read_at(*at, &mut block)?;
                self.inner.barrier()?;
                self.inner.write_at(*at, &block)?;
                held.store(false, Ordering::Release);
            }
        }
        self.inner.barrier()
    }

    /// The mirrors whose magic lies within some bytes, and where in these.
    fn within(&self, offset: u64, len: usize) -> impl Iterator<Item = (&AtomicBool, usize)> {
        let places = SUPERBLOCK_OFFSETS.iter().zip(&self.held);
        places.filter_map(move |(at, held)| {
            let start = usize::try_from((at + MAGIC_AT).checked_sub(offset)?).ok()?;
            (start.checked_add(MAGIC.len())? <= len).then_some((held, start))
        })
    }
}

impl BlockDevice for Withheld {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn size(&self) -> u64 {
        self.inner.size()
    }

    fn is_read_only(&self) -> bool {
        self.inner.is_read_only()
    }

    fn place(&self) -> Option<(PathBuf, u64)> {
        self.inner.place()
    }

    fn concerns(&self) -> Vec<String> {
        self.inner.concerns()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), DeviceError> {
        self.inner.read_at(offset, buf)?;
        for (held, at) in self.within(offset, buf.len()) {
            if let Some(magic) = buf.get_mut(at..at + MAGIC.len())
                && held.load(Ordering::Acquire)
            {
                magic.copy_from_slice(&MAGIC);
            }
        }
        Ok(())
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> Result<(), DeviceError> {
        let mut written = None;
        for (held, at) in self.within(offset, data.len()) {
            let range = at..at + MAGIC.len();
            let is_magic = data.get(range.clone()) == Some(&MAGIC);
            held.store(is_magic, Ordering::Release);
            if is_magic {
                let written = written.get_or_insert_with(|| data.to_vec());
                written.get_mut(range).unwrap_or_default().fill(0);
            }
        }
        self.inner.write_at(offset, written.as_deref().unwrap_or(data))
    }

    fn barrier(&self) -> Result<(), DeviceError> {
        self.inner.barrier()
    }

    fn discard(&self, offset: u64, len: u64) -> Result<(), DeviceError> {
        self.inner.discard(offset, len)
    }
}

#[cfg(test)]
mod tests {
    use buttress::{Filesystem, Node};
    use buttress_device::MemoryDevice;

    use super::*;
    use crate::populate::{Populate, rootdir};
    use crate::{Environment, Options, existing_signature, make};

    #[test]
    fn nothing_is_a_filesystem_before_it_is_whole() {
        let source = tempfile::TempDir::new().unwrap();
        std::fs::write(source.path().join("file"), "x").unwrap();
        let medium: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::new(200 << 20));
        let device = Arc::new(Withheld::new(medium.clone()));
        let mut env = Environment::seeded(1);
        let nothing = |medium: &dyn BlockDevice| existing_signature(medium).unwrap().is_none();
        make(&*device, &Options::default(), &mut env).unwrap();
        assert!(nothing(&*medium) && existing_signature(&*device).unwrap().is_some());
        rootdir(device.clone(), source.path(), &Populate::default(), &mut env).unwrap();
        assert!(nothing(&*medium));
        device.release().unwrap();
        let fs = Filesystem::open_device(medium.clone(), buttress::Options::read_only()).unwrap();
        assert!(fs.lookup(Node::ROOT, b"file").unwrap().is_some());
        for at in [64 << 10, 64 << 20] {
            let mut magic = [0; 8];
            medium.read_at(at + MAGIC_AT, &mut magic).unwrap();
            assert_eq!(magic, MAGIC);
        }
    }
}
