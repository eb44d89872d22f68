//! The log itself: records of 48 bytes, sorted and folded once per commit.

use std::ops::Range;

use buttress_ondisk::item::{FileExtentHead, FileExtentTail, split};
use buttress_ondisk::{Key, kind};

/// One reference gained or lost. Sorted by address, then by what refers to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Record {
    /// Logical address of the extent or tree block.
    pub bytenr: u64,
    /// `TREE_BLOCK_REF`, `EXTENT_DATA_REF`, `SHARED_BLOCK_REF` or `SHARED_DATA_REF`; 0 for a mark without reference.
    pub kind: u8,
    /// The level of a tree block.
    pub level: u8,
    /// Marks: [`Record::NEW`], [`Record::FULL_BACKREF`].
    pub marks: u8,
    /// References gained (or lost, below zero).
    pub delta: i32,
    /// The tree, or for shared references the parent block.
    pub owner: u64,
    /// The inode, for `EXTENT_DATA_REF`.
    pub ino: u64,
    /// File offset minus extent offset, for `EXTENT_DATA_REF`.
    pub offset: u64,
    /// Sectors of a data extent, 0 for tree blocks.
    pub sectors: u32,
}
const _: () = assert!(size_of::<Record>() <= 48);

impl Record {
    /// The extent was allocated in this commit.
    pub const NEW: u8 = 1;
    /// The block's references to its children are by its own address from now on.
    pub const FULL_BACKREF: u8 = 2;

    fn order(&self) -> (u64, u8, u64, u64, u64) {
        (self.bytenr, self.kind, self.owner, self.ino, self.offset)
    }
}

/// What a reference is to: a tree block or a data extent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// The block at this address and level.
    Block(u64, u8),
    /// The data extent of `sectors` sectors at `bytenr`, seen by `ino` at `offset` (file minus extent offset).
    Data {
        /// Its address.
        bytenr: u64,
        /// Its length on the disk.
        sectors: u32,
        /// The inode.
        ino: u64,
        /// File offset minus extent offset.
        offset: u64,
    },
}

impl Target {
    /// The data extent that an `EXTENT_DATA` item refers to, if any.
    pub fn of_item(key: &Key, data: &[u8]) -> Option<Target> {
        if key.kind != kind::EXTENT_DATA {
            return None;
        }
        let (head, rest) = split::<FileExtentHead>(data)?;
        if head.kind == FileExtentHead::INLINE {
            return None;
        }
        let tail = FileExtentTail::of(rest)?;
        if tail.disk_bytenr.get() == 0 {
            return None;
        }
        Some(Target::Data {
            bytenr: tail.disk_bytenr.get(),
            sectors: (tail.disk_num_bytes.get() / buttress_ondisk::SECTOR) as u32,
            ino: key.objectid,
            offset: key.offset.wrapping_sub(tail.offset.get()),
        })
    }
}

/// The references gained and lost by one commit, or a part of it.
#[derive(Debug, Default)]
pub struct RefLog {
    records: Vec<Record>,
}

impl RefLog {
    /// `delta` references of tree `root` to `target`.
    pub fn by_tree(&mut self, target: Target, root: u64, delta: i32, marks: u8) {
        self.records.push(match target {
            Target::Block(bytenr, level) => Record {
                bytenr,
                kind: kind::TREE_BLOCK_REF,
                level,
                marks,
                delta,
                owner: root,
                ino: 0,
                offset: 0,
                sectors: 0,
            },
            Target::Data { bytenr, sectors, ino, offset } => Record {
                bytenr,
                kind: kind::EXTENT_DATA_REF,
                level: 0,
                marks,
                delta,
                owner: root,
                ino,
                offset,
                sectors,
            },
        });
    }

    /// `delta` references of the block at `parent` to `target`.
    pub fn by_block(&mut self, target: Target, parent: u64, delta: i32) {
        let (bytenr, kind, level, sectors) = match target {
            Target::Block(bytenr, level) => (bytenr, kind::SHARED_BLOCK_REF, level, 0),
            Target::Data { bytenr, sectors, .. } => (bytenr, kind::SHARED_DATA_REF, 0, sectors),
        };
        self.records.push(Record {
            bytenr,
            kind,
            level,
            marks: 0,
            delta,
            owner: parent,
            ino: 0,
            offset: 0,
            sectors,
        });
    }

    /// `delta` references of file `ino` of tree `root` to a data extent; `offset` is file offset minus extent offset.
    #[allow(clippy::too_many_arguments)]
    pub fn data(
        &mut self,
        delta: i32,
        is_new_extent: bool,
        bytenr: u64,
        disk_num_bytes: u64,
        root: u64,
        ino: u64,
        offset: u64,
    ) {
        let sectors = (disk_num_bytes / buttress_ondisk::SECTOR) as u32;
        let marks = if is_new_extent { Record::NEW } else { 0 };
        self.by_tree(Target::Data { bytenr, sectors, ino, offset }, root, delta, marks);
    }

    /// The block at `bytenr` refers to its children by its own address from now on.
    pub fn full_backref(&mut self, bytenr: u64, level: u8) {
        self.records.push(Record {
            bytenr,
            kind: 0,
            level,
            marks: Record::FULL_BACKREF,
            delta: 0,
            owner: 0,
            ino: 0,
            offset: 0,
            sectors: 0,
        });
    }

    /// Appends another log.
    pub fn append(&mut self, other: &mut RefLog) {
        self.records.append(&mut other.records);
    }

    /// How many records it holds.
    pub fn len(&self) -> usize {
        self.records.len()
    }

    /// Whether it holds none.
    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// Sorts the records and folds those of the same reference; what sums to nothing and marks nothing goes.
    ///
    /// All in place: a large log is partitioned by address until a part fits into the processor's cache, so that no record
    /// is waited for more than once.
    pub fn fold(mut self) -> Vec<Record> {
        let mut folder = Folder::default();
        if self.records.len() <= 2 * PART_LEN {
            folder.fold_part(&self.records, differ(&self.records));
            return folder.folded;
        }
        let whole = 0..self.records.len();
        folder.fold(&mut self.records, whole);
        self.records.truncate(folder.kept);
        self.records
    }
}

/// Records of a part that is sorted at once: they stay in the processor's second cache.
const PART_LEN: usize = 32 << 10;
/// Most parts that a pass makes, as a power of two: with more, each write would miss the first cache.
const PARTS_MAX_BITS: u32 = 9;
/// Bits that one pass of the sort looks at.
const DIGIT: u32 = 11;

/// The address of a record, and where it is in its part.
type Place = (u64, u32);

/// The bits in which addresses differ.
fn differ(records: &[Record]) -> u64 {
    let seen =
        records.iter().fold((0, u64::MAX), |(any, all), one| (any | one.bytenr, all & one.bytenr));
    seen.0 & !seen.1
}

#[derive(Debug, Default)]
struct Folder {
    /// The records of a part, in the order of their addresses.
    places: Vec<Place>,
    /// For the sort.
    spare: Vec<Place>,
    /// The records of one extent.
    run: Vec<Record>,
    /// The records of a part, folded.
    folded: Vec<Record>,
    /// Records kept so far, at the start of the log.
    kept: usize,
}

impl Folder {
    /// Folds a part of the log, which comes after all that was folded before.
    fn fold(&mut self, records: &mut [Record], part: Range<usize>) {
        let differ = differ(&records[part.clone()]);
        if part.len() <= 2 * PART_LEN || differ == 0 {
            self.fold_part(&records[part], differ);
            let end = self.kept + self.folded.len();
            records[self.kept..end].copy_from_slice(&self.folded);
            self.kept = end;
            return;
        }
        let top = u64::BITS - differ.leading_zeros();
        let bits = (part.len() / PART_LEN).ilog2().clamp(1, PARTS_MAX_BITS);
        let ends = partition(&mut records[part.clone()], top.saturating_sub(bits), bits);
        let mut from = part.start;
        for end in ends {
            self.fold(records, from..part.start + end);
            from = part.start + end;
        }
    }

    /// Folds a small part into `folded`; `differ`: the bits in which its addresses differ.
    fn fold_part(&mut self, all: &[Record], differ: u64) {
        self.places.clear();
        self.places.extend(all.iter().map(|one| one.bytenr).zip(0..));
        self.sort_places(differ);
        self.folded.clear();
        self.folded.reserve(all.len());
        for same in self.places.chunk_by(|a, b| a.0 == b.0) {
            if let [(_, one)] = same {
                fold_run(&[all[*one as usize]], &mut self.folded);
                continue;
            }
            self.run.clear();
            self.run.extend(same.iter().map(|(_, one)| all[*one as usize]));
            self.run.sort_unstable_by_key(Record::order);
            fold_run(&self.run, &mut self.folded);
        }
    }
}

impl Folder {
    /// Sorts the places. A radix sort: a few passes over 16 bytes for each, where a comparison sort would move each many
    /// times.
    fn sort_places(&mut self, differ: u64) {
        if self.places.len() < 1 << DIGIT {
            return self.places.sort_unstable();
        }
        self.spare.resize(self.places.len(), Place::default());
        let mut shift = differ.trailing_zeros();
        while shift < u64::BITS - differ.leading_zeros() {
            pass(&self.places, &mut self.spare, shift);
            std::mem::swap(&mut self.places, &mut self.spare);
            shift += DIGIT;
        }
    }
}

/// Sorts `from` into `to` by one digit, keeping the order of equals.
fn pass(from: &[Place], to: &mut [Place], shift: u32) {
    let digit = |place: &Place| (place.0 >> shift) as usize & ((1 << DIGIT) - 1);
    let mut starts = [0u32; 1 << DIGIT];
    from.iter().for_each(|place| starts[digit(place)] += 1);
    let mut sum = 0;
    for start in &mut starts {
        (*start, sum) = (sum, sum + *start);
    }
    for place in from {
        let at = &mut starts[digit(place)];
        to[*at as usize] = *place;
        *at += 1;
    }
}

/// Orders records by `bits` bits of their addresses, from bit `shift` on; where each part ends is returned.
fn partition(records: &mut [Record], shift: u32, bits: u32) -> Vec<usize> {
    let part_of = |record: &Record| (record.bytenr >> shift) as usize & ((1 << bits) - 1);
    let mut ends = vec![0; 1 << bits];
    records.iter().for_each(|record| ends[part_of(record)] += 1);
    let mut next = ends.clone();
    let mut sum = 0;
    for (end, start) in ends.iter_mut().zip(&mut next) {
        *start = sum;
        sum += *end;
        *end = sum;
    }
    for part in 0..ends.len() {
        while next[part] < ends[part] {
            let belongs = part_of(&records[next[part]]);
            if belongs != part {
                records.swap(next[part], next[belongs]);
            }
            next[belongs] += 1;
        }
    }
    ends
}

/// Folds the sorted records of one extent.
fn fold_run(run: &[Record], folded: &mut Vec<Record>) {
    for same in run.chunk_by(|a, b| a.order() == b.order()) {
        let mut sum = same[0];
        for record in &same[1..] {
            sum.delta += record.delta;
            sum.marks |= record.marks;
        }
        if sum.delta != 0 || sum.marks != 0 {
            folded.push(sum);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    #[test]
    fn folding_sums_each_reference_in_order() {
        for (count, spread) in [(10, 4), (3000, 40), (9000, 1), (40_000, 1 << 40), (100_000, 5000)]
        {
            let mut log = RefLog::default();
            let mut sums: BTreeMap<(u64, u64), i32> = BTreeMap::new();
            let mut at = 7u64;
            for _ in 0..count {
                at = at.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                let (bytenr, root, delta) =
                    ((at >> 20) % spread * 4096, at % 3 + 5, (at % 2) as i32 * 2 - 1);
                log.by_tree(Target::Block(bytenr, 0), root, delta, 0);
                *sums.entry((bytenr, root)).or_default() += delta;
            }
            sums.retain(|_, sum| *sum != 0);
            let folded: Vec<_> =
                log.fold().iter().map(|one| ((one.bytenr, one.owner), one.delta)).collect();
            assert_eq!(folded, sums.into_iter().collect::<Vec<_>>());
        }
    }
}
