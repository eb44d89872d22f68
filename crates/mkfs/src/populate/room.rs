//! How large a filesystem has to be for what a directory holds. Rather too large than too small: what is not used takes no room in an image.

use std::collections::HashSet;
use std::fs::{File, Metadata};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use buttress_ondisk::SECTOR;
use rustix::fs::SeekFrom;
use rustix::io::Errno;

use super::read::read_xattrs;
use super::walk::walk;
use crate::options::{Options, Settled};
use crate::{MkfsError, minimum_size};

const MIB: u64 = 1 << 20;
/// Items of a file but for its names and xattrs: its inode, its first extent, which the extent tree has, too, and what is free behind it.
const FILE_BYTES: u64 = 512;
/// How often a name is written.
const NAMES: u64 = 3;
/// The longest data extent; each has an item of the file, and one of the extent tree.
const EXTENT_LEN: u64 = MIB;
const EXTENT_BYTES: u64 = 160;
/// Leaves are half full, and while they are written anew the old ones are there, too.
const TREES_FACTOR: u64 = 4;

/// What files take.
#[derive(Default)]
struct Taken {
    data: u64,
    items: u64,
    /// Files that have several names, by device and inode.
    known: HashSet<(u64, u64)>,
}

/// Bytes of a device on which a filesystem with these options has room for what is in the directory `source`.
pub fn room_for(source: &Path, options: &Options) -> Result<u64, MkfsError> {
    let settled = options.settle()?;
    let mut taken = Taken::default();
    let mut failed = None;
    walk(source, &mut |listing| {
        let added = listing.and_then(|listing| {
            let mut names = listing.names.iter();
            names.try_for_each(|name| taken.add(&listing.path.join(&name.name), &settled))
        });
        failed = added.err();
        failed.is_none()
    });
    match failed {
        Some(error) => Err(error),
        None => Ok(taken.device_bytes(&settled)),
    }
}

impl Taken {
    fn add(&mut self, path: &Path, settled: &Settled) -> Result<(), MkfsError> {
        let metadata =
            path.symlink_metadata().map_err(|error| MkfsError::source("look at", path, error))?;
        let name = path.file_name().map_or(0, |name| name.len() as u64);
        self.items += FILE_BYTES + NAMES * name;
        if metadata.nlink() > 1 && !metadata.is_dir() {
            let is_new = self.known.insert((metadata.dev(), metadata.ino()));
            if !is_new {
                return Ok(());
            }
        }
        let xattrs = read_xattrs(path)?;
        self.items +=
            xattrs.iter().map(|(name, value)| (name.len() + value.len()) as u64 + 64).sum::<u64>();
        // What is short is an item: of a file it may be. What a directory takes where it is says nothing.
        if !metadata.is_dir() {
            self.items += metadata.len().min(u64::from(settled.nodesize));
        }
        if metadata.is_file() {
            let len = content_len(path, &metadata).next_multiple_of(SECTOR);
            let sums = len / SECTOR * settled.checksum.size() as u64;
            self.data += len;
            self.items += sums + len.div_ceil(EXTENT_LEN) * EXTENT_BYTES;
        }
        Ok(())
    }

    fn device_bytes(&self, settled: &Settled) -> u64 {
        let (data, metadata) = (settled.data.copies(), settled.metadata.copies());
        let minimum = minimum_size(settled.mixed, settled.metadata, settled.data);
        // Chunks are a tenth of the device, and the last one of each kind is not full.
        let data = (self.data.saturating_add(self.data / 4)).saturating_mul(data);
        let trees = self.items.saturating_mul(TREES_FACTOR).saturating_mul(metadata);
        let all = minimum.saturating_add(data).saturating_add(trees);
        all.checked_next_multiple_of(MIB).unwrap_or(u64::MAX)
    }
}

/// Bytes of a file that are not in holes; all where that cannot be told.
fn content_len(path: &Path, metadata: &Metadata) -> u64 {
    let len = metadata.len();
    if metadata.blocks().saturating_mul(512) >= len {
        return len;
    }
    File::open(path).ok().and_then(|file| without_holes(&file, len)).unwrap_or(len)
}

fn without_holes(file: &File, len: u64) -> Option<u64> {
    let (mut at, mut sum) = (0, 0);
    while at < len {
        let start = match rustix::fs::seek(file, SeekFrom::Data(at)) {
            Err(Errno::NXIO) => break,
            found => found.ok()?,
        };
        at = rustix::fs::seek(file, SeekFrom::Hole(start)).ok().filter(|end| *end > start)?;
        sum += at - start;
    }
    // Each piece may begin and end within a sector.
    Some(sum.saturating_add(sum / 8))
}
