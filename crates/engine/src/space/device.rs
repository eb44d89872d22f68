//! The device: which of its bytes chunks have, and where a new chunk could go.

use buttress_ondisk::item::{DevItem, chunk_type};
use buttress_ondisk::superblock::SUPERBLOCK_OFFSETS;
use buttress_ondisk::{SECTOR, STRIPE_LEN};
use buttress_volume::Chunk;

use super::extents::{Extents, Range};

/// The start of every device is left alone, in bytes: boot loaders and the first superblock.
const RESERVED: u64 = 1 << 20;
/// New chunks are multiples of this, in bytes.
pub(crate) const GRAIN: u64 = 1 << 20;

/// One device.
#[derive(Clone, Debug)]
pub(crate) struct Device {
    /// As it stands in the chunk tree; `bytes_used` is kept up to date.
    pub item: DevItem,
    taken: Extents,
    /// New chunks lie before this byte.
    limit: Option<u64>,
    /// No chunk comes or goes: what would say so cannot be written.
    pub is_fixed: bool,
}

impl Device {
    /// A device of which nothing is taken.
    pub fn new(item: DevItem) -> Device {
        Device {
            item: DevItem { bytes_used: 0.into(), ..item },
            taken: Extents::default(),
            limit: None,
            is_fixed: false,
        }
    }

    /// The device's number.
    pub fn devid(&self) -> u64 {
        self.item.devid.get()
    }

    /// Its size in bytes.
    pub fn total(&self) -> u64 {
        self.item.total_bytes.get()
    }

    /// Bytes that chunks have.
    pub fn used(&self) -> u64 {
        self.item.bytes_used.get()
    }

    /// New chunks lie before this byte from now on.
    pub fn limit(&mut self, end: Option<u64>) {
        self.limit = end;
    }

    /// Whether [`Self::limit`] says so of any.
    pub fn is_limited(&self) -> bool {
        self.limit.is_some()
    }

    /// Where the last range that is taken ends.
    pub fn end(&self) -> u64 {
        self.taken.iter().last().map_or(0, |range| range.end())
    }

    /// Takes a range; whether all of it was there and free.
    pub fn take(&mut self, range: Range) -> bool {
        let done = range.end() <= self.total() && self.taken.insert(range).is_some();
        self.count();
        done
    }

    /// Returns a range; whether all of it was taken.
    pub fn put_back(&mut self, range: Range) -> bool {
        let done = self.taken.remove(range).is_some();
        self.count();
        done
    }

    fn count(&mut self) {
        self.item.bytes_used = self.taken.bytes().into();
    }

    /// What is not taken, rising.
    pub fn holes(&self) -> Vec<Range> {
        if self.is_fixed {
            return Vec::new();
        }
        let end = self.limit.unwrap_or(u64::MAX).min(self.total()) / SECTOR * SECTOR;
        let mut holes = Vec::new();
        let mut at = RESERVED;
        for taken in self.taken.iter().chain([Range::new(end, 0)]) {
            if taken.start > at {
                holes.push(Range::new(at, taken.start.min(end) - at));
            }
            at = at.max(taken.end());
            if at >= end {
                break;
            }
        }
        holes
    }

    /// Bytes that chunks of whole grains could still take, when each needs `copies` on the device.
    pub fn room(&self, copies: u64) -> u64 {
        let unit = GRAIN * copies.max(1);
        self.holes().iter().map(|hole| hole.len / unit * unit).sum()
    }

    /// A hole of `want` bytes: the first that has them, else the longest, which may be shorter.
    pub fn hole(&self, want: u64) -> Option<Range> {
        let holes = self.holes();
        let first = holes.iter().find(|hole| hole.len >= want).copied();
        first.or_else(|| holes.into_iter().rev().max_by_key(|hole| hole.len))
    }
}

/// Copies of each byte of a chunk of this type on its one device.
pub(crate) fn copies(flags: u64) -> u64 {
    if flags & chunk_type::DUP != 0 { 2 } else { 1 }
}

/// The device ranges of a chunk.
pub(crate) fn device_ranges(chunk: &Chunk) -> impl Iterator<Item = Range> + '_ {
    chunk.stripes.iter().map(|stripe| Range::new(stripe.offset, chunk.device_len()))
}

/// The parts of a chunk that are never free: each stripe that holds a copy of the superblock on the
/// device, and the logical addresses below the first superblock's offset. Rising and disjoint.
pub(crate) fn excluded(chunk: &Chunk) -> Vec<Range> {
    let mut starts = std::collections::BTreeSet::new();
    for range in device_ranges(chunk) {
        let inside = SUPERBLOCK_OFFSETS.iter().filter(|&&at| range.start <= at && at < range.end());
        starts.extend(inside.map(|at| (at - range.start) / STRIPE_LEN * STRIPE_LEN));
    }
    if chunk.logical < SUPERBLOCK_OFFSETS[0] {
        starts.insert(0);
    }
    let clip = |start: u64| Range::new(chunk.logical + start, STRIPE_LEN.min(chunk.length - start));
    starts.into_iter().filter(|&start| start < chunk.length).map(clip).collect()
}
