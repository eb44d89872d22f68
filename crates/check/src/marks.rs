//! One bit for each place where a tree block can begin: which blocks were met already.
//!
//! Bits come in segments that are made when the first of them is set, and only for addresses that the devices are large enough
//! to hold: chunks that claim the moon take no memory.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use buttress_ondisk::{SECTOR, item::chunk_type};
use buttress_volume::Volume;

/// Words of 64 bits in a segment: it stands for 32 MiB of addresses.
const SEGMENT_WORDS: usize = 128;
const SEGMENT_BITS: u64 = SEGMENT_WORDS as u64 * 64;

type Segment = OnceLock<Box<[AtomicU64; SEGMENT_WORDS]>>;

/// The bits of a chunk.
#[derive(Debug)]
struct Range {
    start: u64,
    end: u64,
    segments: Vec<Segment>,
}

/// A set of tree block addresses.
#[derive(Debug)]
pub(crate) struct Marks {
    ranges: Vec<Range>,
}

impl Marks {
    /// An empty set for the tree blocks of a volume.
    pub fn new(volume: &Volume) -> Marks {
        let devices = volume.devices().iter().map(|member| member.device.size());
        let most = devices.fold(0, u64::saturating_add);
        let chunks = volume.chunks();
        let holds_trees = chunk_type::METADATA | chunk_type::SYSTEM;
        let chunks = chunks.iter().filter(|chunk| chunk.type_flags & holds_trees != 0);
        Marks::of(chunks.map(|chunk| (chunk.logical, chunk.length.min(most))))
    }

    /// An empty set for these ranges (address and bytes), which rise and do not overlap.
    fn of(ranges: impl Iterator<Item = (u64, u64)>) -> Marks {
        let range = |(start, len): (u64, u64)| {
            let count = len.div_ceil(SECTOR).div_ceil(SEGMENT_BITS);
            let segments = (0..count).map(|_| Segment::new()).collect();
            Range { start, end: start.saturating_add(len), segments }
        };
        Marks { ranges: ranges.map(range).collect() }
    }

    /// The segment, word and bit of an address.
    fn place(&self, bytenr: u64) -> Option<(&Segment, usize, u64)> {
        let at = self.ranges.partition_point(|range| range.end <= bytenr);
        let range = self.ranges.get(at).filter(|range| range.start <= bytenr)?;
        let bit = (bytenr - range.start) / SECTOR;
        let segment = range.segments.get((bit / SEGMENT_BITS) as usize)?;
        Some((segment, (bit % SEGMENT_BITS / 64) as usize, 1 << (bit % 64)))
    }

    /// Adds an address; whether it is new. Addresses where no tree block can be are always new.
    pub fn add(&self, bytenr: u64) -> bool {
        let Some((segment, word, bit)) = self.place(bytenr) else { return true };
        let words = segment.get_or_init(|| Box::new([const { AtomicU64::new(0) }; SEGMENT_WORDS]));
        words.get(word).is_none_or(|word| word.fetch_or(bit, Ordering::AcqRel) & bit == 0)
    }

    /// Whether an address was added.
    pub fn has(&self, bytenr: u64) -> bool {
        let Some((segment, word, bit)) = self.place(bytenr) else { return false };
        let word = segment.get().and_then(|words| words.get(word));
        word.is_some_and(|word| word.load(Ordering::Acquire) & bit != 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_told_apart() {
        let (first, second) = (1 << 20, 100 << 20);
        let marks = Marks::of([(first, 64 << 20), (second, 5 * SECTOR)].into_iter());
        let places = [first, first + SECTOR, first + (40 << 20), second, second + 4 * SECTOR];
        for place in places {
            assert!(!marks.has(place) && marks.add(place), "{place}");
            assert!(marks.has(place) && !marks.add(place), "{place}");
        }
        for outside in [0, first - SECTOR, second - SECTOR, second + 5 * SECTOR, u64::MAX] {
            assert!(marks.add(outside) && marks.add(outside) && !marks.has(outside), "{outside}");
        }
        assert!(!marks.has(first + 2 * SECTOR));
    }
}
