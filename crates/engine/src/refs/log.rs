//! The log itself: small records, appended one by one, and sorted and folded once per commit.
//!
//! Records are kept packed, in chunks that never move: a log grows, and is appended to another one, without a copy.

use buttress_ondisk::item::{FileExtentHead, FileExtentTail, split};
use buttress_ondisk::{Key, SECTOR, kind};

use super::fold::Folder;
use super::packed::{ROOM, pack, packed_len, unpack};

/// One reference gained or lost. Sorted by address, then by what refers to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Record {
    /// Logical address of the extent or tree block.
    pub bytenr: u64,
    /// `TREE_BLOCK_REF`, `EXTENT_DATA_REF`, `SHARED_BLOCK_REF` or `SHARED_DATA_REF`; 0 for a mark without reference, and `EXTENT_OWNER_REF` for whose
    /// it is, which is no reference.
    pub kind: u8,
    /// The level of a tree block.
    pub level: u8,
    /// Marks: [`Record::NEW`], [`Record::FULL_BACKREF`].
    pub marks: u8,
    /// References gained (or lost, below zero).
    pub delta: i32,
    /// The tree, or for shared references the parent block.
    pub owner: u64,
    /// The inode, for `EXTENT_DATA_REF`; for `EXTENT_OWNER_REF` of data that have moved the transaction that they are of.
    pub ino: u64,
    /// File offset minus extent offset, for `EXTENT_DATA_REF`.
    pub offset: u64,
    /// Sectors of a data extent, 0 for tree blocks.
    pub sectors: u32,
}
const _: () = assert!(size_of::<Record>() <= 48);

impl Record {
    /// Whether it is of a reference.
    pub fn is_reference(&self) -> bool {
        !matches!(self.kind, 0 | kind::EXTENT_OWNER_REF)
    }

    /// The extent was allocated in this commit.
    pub const NEW: u8 = 1;
    /// The block's references to its children are by its own address from now on.
    pub const FULL_BACKREF: u8 = 2;

    /// What a log is sorted by.
    pub(super) fn order(&self) -> (u64, u8, u64, u64, u64) {
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
    /// The data extent of `disk_len` bytes at `bytenr`, whose piece that starts at `in_extent` file `ino` has at `in_file`.
    pub fn data((bytenr, disk_len): (u64, u64), ino: u64, in_file: u64, in_extent: u64) -> Target {
        let sectors = (disk_len / SECTOR) as u32;
        Target::Data { bytenr, sectors, ino, offset: in_file.wrapping_sub(in_extent) }
    }

    /// Its address.
    pub fn bytenr(&self) -> u64 {
        match *self {
            Target::Block(bytenr, _) | Target::Data { bytenr, .. } => bytenr,
        }
    }

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

/// Bytes of a chunk: few enough that the heap keeps them, where a larger one would be mapped and unmapped each time.
pub(super) const CHUNK: usize = 16 << 10;
/// The first chunk of a log: most logs are short.
const CHUNK_MIN: usize = 1 << 10;

/// Packed records, one after the other.
#[derive(Debug)]
pub(super) struct Chunk {
    bytes: Vec<u8>,
    used: usize,
}

impl Chunk {
    pub(super) fn new(len: usize) -> Chunk {
        Chunk { bytes: vec![0; len], used: 0 }
    }

    pub(super) fn len(&self) -> usize {
        self.bytes.len()
    }

    pub(super) fn clear(&mut self) {
        self.used = 0;
    }

    /// Room for one more record at the end.
    pub(super) fn room(&mut self) -> Option<&mut [u8; ROOM]> {
        self.bytes.get_mut(self.used..)?.first_chunk_mut()
    }

    /// A record of `len` bytes was written to the room.
    pub(super) fn grow(&mut self, len: usize) {
        self.used += len;
    }

    /// The record at `at`, with what comes behind it.
    #[inline]
    pub(super) fn at(&self, at: usize) -> &[u8; ROOM] {
        self.bytes[at..].first_chunk().expect("it was written in such room")
    }

    /// All records: where each is, and how long it is.
    pub(super) fn records(&self) -> impl Iterator<Item = (usize, &[u8; ROOM], usize)> {
        let mut next = 0;
        std::iter::from_fn(move || {
            let at = next;
            let record = (at < self.used).then(|| self.at(at))?;
            let len = packed_len(record);
            next += len;
            Some((at, record, len))
        })
    }
}

/// The references gained and lost by one commit, or a part of it.
#[derive(Debug, Default)]
pub struct RefLog {
    chunks: Vec<Chunk>,
    len: usize,
    /// Bits that some address has, and bits that some address has not.
    ones: u64,
    zeros: u64,
}

impl RefLog {
    /// `delta` references of tree `root` to `target`.
    pub fn by_tree(&mut self, target: Target, root: u64, delta: i32, marks: u8) {
        self.push(&match target {
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
        self.push(&Record {
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

    /// Tree `owner` has allocated `target`: said where the references do not say so, by whoever allocates it in another tree's stead, or takes
    /// the last reference away.
    pub fn owned(&mut self, target: Target, owner: u64) {
        let (bytenr, level, sectors) = match target {
            Target::Block(bytenr, level) => (bytenr, level, 0),
            Target::Data { bytenr, sectors, .. } => (bytenr, 0, sectors),
        };
        self.push(&Record {
            bytenr,
            kind: kind::EXTENT_OWNER_REF,
            level,
            marks: 0,
            delta: 1,
            owner,
            ino: 0,
            offset: 0,
            sectors,
        });
    }

    /// Data have moved to `target`: they are as old as before, and whose they were, where that was said.
    pub fn moved(&mut self, target: Target, owner: Option<u64>, generation: u64) {
        let Target::Data { bytenr, sectors, .. } = target else { return };
        self.push(&Record {
            bytenr,
            kind: kind::EXTENT_OWNER_REF,
            level: 0,
            marks: Record::NEW,
            delta: 1,
            owner: owner.unwrap_or(0),
            ino: generation,
            offset: 0,
            sectors,
        });
    }

    /// The block at `bytenr` refers to its children by its own address from now on.
    pub fn full_backref(&mut self, bytenr: u64, level: u8) {
        self.mark(Target::Block(bytenr, level), Record::FULL_BACKREF);
    }

    /// Marks `target`, whoever refers to it.
    pub fn mark(&mut self, target: Target, marks: u8) {
        let (bytenr, level, sectors) = match target {
            Target::Block(bytenr, level) => (bytenr, level, 0),
            Target::Data { bytenr, sectors, .. } => (bytenr, 0, sectors),
        };
        self.push(&Record {
            bytenr,
            kind: 0,
            level,
            marks,
            delta: 0,
            owner: 0,
            ino: 0,
            offset: 0,
            sectors,
        });
    }

    fn push(&mut self, record: &Record) {
        if self.chunks.last_mut().is_none_or(|chunk| chunk.room().is_none()) {
            let so_far = self.len * ROOM / 2;
            let len = so_far.next_power_of_two().clamp(CHUNK_MIN, CHUNK);
            self.chunks.push(Chunk::new(len));
        }
        let Some(chunk) = self.chunks.last_mut() else { return };
        let Some(room) = chunk.room() else { return };
        let len = pack(record, room);
        chunk.grow(len);
        self.count(record.bytenr);
    }

    fn count(&mut self, address: u64) {
        self.len += 1;
        self.ones |= address;
        self.zeros |= !address;
    }

    /// Appends a record of another log, so long and of this address; `spare` are empty chunks to use.
    #[inline]
    pub(super) fn push_packed(
        &mut self,
        record: &[u8; ROOM],
        len: usize,
        address: u64,
        spare: &mut Vec<Chunk>,
    ) {
        if self.chunks.last_mut().is_none_or(|chunk| chunk.room().is_none()) {
            self.chunks.push(spare.pop().unwrap_or_else(|| Chunk::new(CHUNK)));
        }
        let Some(chunk) = self.chunks.last_mut() else { return };
        let Some(room) = chunk.room() else { return };
        *room = *record;
        chunk.grow(len);
        self.count(address);
    }

    /// Appends another log.
    pub fn append(&mut self, other: &mut RefLog) {
        let other = std::mem::take(other);
        self.chunks.extend(other.chunks);
        self.len += other.len;
        self.ones |= other.ones;
        self.zeros |= other.zeros;
    }

    /// How many records it holds.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Bytes of all of them.
    pub fn bytes(&self) -> usize {
        self.chunks.iter().map(|chunk| chunk.used).sum()
    }

    /// Whether it holds none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Sorts the records and folds those of the same reference; what sums to nothing and marks nothing goes. They are given
    /// to `each` in order, many at a time and those of an extent at once. How many they were is returned.
    pub fn fold<E>(
        self,
        each: impl FnMut(&[Record]) -> std::result::Result<(), E>,
    ) -> std::result::Result<usize, E> {
        let mut folder = Folder::new(each);
        folder.fold(self)?;
        folder.finish()
    }

    /// The bits in which addresses differ.
    pub(super) fn differ(&self) -> u64 {
        self.ones & self.zeros
    }

    pub(super) fn chunks(&self) -> &[Chunk] {
        &self.chunks
    }

    pub(super) fn into_chunks(self) -> Vec<Chunk> {
        self.chunks
    }

    /// All records.
    pub(super) fn records(&self) -> impl Iterator<Item = Record> {
        self.chunks.iter().flat_map(Chunk::records).map(|(_, record, _)| unpack(record))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    #[test]
    fn folding_sums_each_reference_in_order() {
        // How many, over how many addresses, of which some are as far away.
        let cases = [
            (10, 4, 0),
            (3000, 40, 0),
            (9000, 1, 0),
            (40_000, 1 << 40, 0),
            (100_000, 5000, 0),
            (100_000, 5000, 1 << 50),
            (60_000, 50_000, 1 << 62),
        ];
        for (count, spread, far) in cases {
            let mut log = RefLog::default();
            let mut sums: BTreeMap<(u64, u64), i32> = BTreeMap::new();
            let mut at = 7u64;
            for _ in 0..count {
                at = at.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                let away = if (at >> 12).is_multiple_of(64) { far } else { 0 };
                let bytenr = (at >> 20) % spread * 4096 + away;
                let (root, delta) = (at % 3 + 5, (at % 2) as i32 * 2 - 1);
                log.by_tree(Target::Block(bytenr, 0), root, delta, 0);
                *sums.entry((bytenr, root)).or_default() += delta;
            }
            sums.retain(|_, sum| *sum != 0);
            let mut folded: Vec<((u64, u64), i32)> = Vec::new();
            let count = log.fold(|records| {
                let last = folded.last().map(|((bytenr, _), _)| *bytenr);
                assert_ne!(last, Some(records[0].bytenr), "an extent's records come at once");
                folded.extend(records.iter().map(|one| ((one.bytenr, one.owner), one.delta)));
                Ok::<(), ()>(())
            });
            assert_eq!(count, Ok(folded.len()));
            assert_eq!(folded, sums.into_iter().collect::<Vec<_>>());
        }
    }
}
