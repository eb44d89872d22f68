//! The log itself: records of 40 bytes, sorted and folded once per commit.

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
    pub fn fold(mut self) -> Vec<Record> {
        self.records.sort_unstable_by_key(Record::order);
        let mut folded: Vec<Record> = Vec::with_capacity(self.records.len());
        for record in self.records {
            match folded.last_mut() {
                Some(last) if last.order() == record.order() => {
                    last.delta += record.delta;
                    last.marks |= record.marks;
                }
                _ => {
                    if folded.last().is_some_and(|last| last.delta == 0 && last.marks == 0) {
                        folded.pop();
                    }
                    folded.push(record);
                }
            }
        }
        folded
    }
}
