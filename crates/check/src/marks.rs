//! One bit for each place where a tree block can begin: which blocks were met already.

use std::sync::atomic::{AtomicU64, Ordering};

use buttress_ondisk::{SECTOR, item::chunk_type};
use buttress_volume::Chunk;

/// A chunk's range of addresses, and where its bits begin.
#[derive(Debug)]
struct Range {
    start: u64,
    end: u64,
    first_bit: u64,
}

/// A set of tree block addresses.
#[derive(Debug)]
pub(crate) struct Marks {
    ranges: Vec<Range>,
    words: Vec<AtomicU64>,
}

impl Marks {
    /// An empty set for the tree blocks of these chunks, which rise and do not overlap.
    pub fn new(chunks: &[Chunk]) -> Marks {
        let mut bits = 0;
        let holds_trees =
            |chunk: &&Chunk| chunk.type_flags & (chunk_type::METADATA | chunk_type::SYSTEM) != 0;
        let ranges = chunks
            .iter()
            .filter(holds_trees)
            .map(|chunk| {
                let first_bit = bits;
                bits += chunk.length / SECTOR;
                Range { start: chunk.logical, end: chunk.end(), first_bit }
            })
            .collect();
        let words = (0..bits.div_ceil(64)).map(|_| AtomicU64::new(0)).collect();
        Marks { ranges, words }
    }

    fn word(&self, bytenr: u64) -> Option<(&AtomicU64, u64)> {
        let at = self.ranges.partition_point(|range| range.end <= bytenr);
        let range = self.ranges.get(at).filter(|range| range.start <= bytenr)?;
        let bit = range.first_bit + (bytenr - range.start) / SECTOR;
        Some((self.words.get((bit / 64) as usize)?, 1 << (bit % 64)))
    }

    /// Adds an address; whether it is new. Addresses outside metadata chunks are always new.
    pub fn add(&self, bytenr: u64) -> bool {
        let found = self.word(bytenr);
        found.is_none_or(|(word, bit)| word.fetch_or(bit, Ordering::AcqRel) & bit == 0)
    }

    /// Whether an address was added.
    pub fn has(&self, bytenr: u64) -> bool {
        self.word(bytenr).is_some_and(|(word, bit)| word.load(Ordering::Acquire) & bit != 0)
    }
}
