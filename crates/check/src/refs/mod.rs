//! References to extents: which tree blocks and files refer to an extent, and which the extent tree records.
//!
//! Both sides add up hashes of the same [`Reference`]s in a table of sums, one with each sign. An extent's references all go to
//! one sum, so that a sum of zero says that all of its extents are in order. The two halves of a hash have 64 bits each;
//! that different references cancel out by accident is beyond all odds.

mod details;
mod records;

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use buttress_ondisk::{
    TreeBlock, kind,
    view::{FileExtentItem, InlineRef},
};

use crate::seeds::Seeds;

pub(crate) use details::explain;

/// Who refers to an extent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Referrer {
    /// A tree, to a tree block.
    Tree { root: u64 },
    /// A tree block, to a tree block.
    Block { parent: u64 },
    /// A file of a tree, to data. The offset is that of the file minus that in the extent; it may wrap.
    File { root: u64, inode: u64, offset: u64 },
    /// A leaf, to data.
    Leaf { parent: u64 },
}

/// What a referrer takes the extent for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Shape {
    /// A tree block.
    Block { level: u8, generation: u64 },
    /// Data of so many bytes on the disk.
    Data { len: u64 },
}

/// A reference to an extent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Reference {
    /// Who refers.
    pub by: Referrer,
    /// To what.
    pub shape: Shape,
}

/// Where references are counted, from all threads.
pub(crate) trait References: Send + Sync {
    /// `count` references to the extent at `bytenr` were found in trees.
    fn found(&self, bytenr: u64, reference: &Reference, count: u64);

    /// The extent tree records `count` references to the extent at `bytenr`.
    fn recorded(&self, bytenr: u64, reference: &Reference, count: u64);

    /// The extent tree has an item for the extent at `bytenr`.
    fn item(&self, _bytenr: u64, _shape: &Shape) {}

    /// The sums that are not zero.
    fn unequal(&self) -> Vec<usize> {
        Vec::new()
    }

    /// References counted, on both sides.
    fn total(&self) -> u64 {
        0
    }
}

/// Sums in the table.
pub(crate) const SUMS: usize = 1 << 14;

fn words(bytenr: u64, reference: &Reference) -> [u64; 6] {
    let (which, a, b, c) = match reference.by {
        Referrer::Tree { root } => (0, root, 0, 0),
        Referrer::Block { parent } => (1, parent, 0, 0),
        Referrer::File { root, inode, offset } => (2, root, inode, offset),
        Referrer::Leaf { parent } => (3, parent, 0, 0),
    };
    match reference.shape {
        Shape::Block { level, generation } => {
            [bytenr, which | u64::from(level) << 8, a, b, c, generation]
        }
        Shape::Data { len } => [bytenr, which | 1 << 16, a, b, c, len],
    }
}

/// The table of sums.
pub(crate) struct Sums {
    seeds: Seeds,
    sums: Vec<[AtomicU64; 2]>,
    total: AtomicU64,
}

impl Sums {
    /// All zero.
    pub fn new(seeds: Seeds) -> Sums {
        let sums = (0..SUMS).map(|_| [AtomicU64::new(0), AtomicU64::new(0)]).collect();
        Sums { seeds, sums, total: AtomicU64::new(0) }
    }

    fn add(&self, bytenr: u64, reference: &Reference, times: u64) {
        let Some([a, b]) = self.sums.get(self.seeds.place(bytenr, SUMS)) else { return };
        let [x, y] = self.seeds.pair(&words(bytenr, reference));
        a.fetch_add(x.wrapping_mul(times), Relaxed);
        b.fetch_add(y.wrapping_mul(times), Relaxed);
        self.total.fetch_add(1, Relaxed);
    }
}

impl References for Sums {
    fn found(&self, bytenr: u64, reference: &Reference, count: u64) {
        self.add(bytenr, reference, count);
    }

    fn recorded(&self, bytenr: u64, reference: &Reference, count: u64) {
        self.add(bytenr, reference, count.wrapping_neg());
    }

    fn unequal(&self) -> Vec<usize> {
        let zero = |[a, b]: &[AtomicU64; 2]| a.load(Relaxed) == 0 && b.load(Relaxed) == 0;
        let all = self.sums.iter().enumerate();
        all.filter(|(_, sum)| !zero(sum)).map(|(at, _)| at).collect()
    }

    fn total(&self) -> u64 {
        self.total.load(Relaxed)
    }
}

/// Counts the references that a tree block holds, children from slot `from` on. `full` says that they are by the block's
/// own address.
pub(crate) fn held(refs: &dyn References, block: &TreeBlock, from: usize, full: bool) {
    let (parent, root) = (block.bytenr(), block.owner());
    if block.is_leaf() {
        return held_data(refs, block, full);
    }
    let by = if full { Referrer::Block { parent } } else { Referrer::Tree { root } };
    let level = block.level().saturating_sub(1);
    for slot in from..block.len() {
        let child = block.child(slot);
        let shape = Shape::Block { level, generation: child.generation };
        refs.found(child.bytenr, &Reference { by, shape }, 1);
    }
}

fn held_data(refs: &dyn References, leaf: &TreeBlock, full: bool) {
    let (parent, root) = (leaf.bytenr(), leaf.owner());
    for (inode, data) in data_refs(leaf) {
        let by = match full {
            true => Referrer::Leaf { parent },
            false => Referrer::File { root, inode, offset: data.offset },
        };
        refs.found(data.bytenr, &Reference { by, shape: Shape::Data { len: data.len } }, 1);
    }
}

/// What a file extent says about the data extent it refers to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DataRef {
    /// Logical address.
    pub bytenr: u64,
    /// Bytes on the disk.
    pub len: u64,
    /// The offset in the file minus that in the extent; may wrap.
    pub offset: u64,
    /// Bytes of the file that it covers.
    pub covers: u64,
}

/// The references to data that a leaf holds, with the inodes they are from.
pub(crate) fn data_refs(leaf: &TreeBlock) -> impl Iterator<Item = (u64, DataRef)> + '_ {
    let extents = (0..leaf.len()).filter(|&slot| leaf.key(slot).kind == kind::EXTENT_DATA);
    extents.filter_map(|slot| {
        let (key, data) = leaf.item(slot);
        match FileExtentItem::read(data)? {
            FileExtentItem::Regular { disk_bytenr, disk_num_bytes, offset, num_bytes, .. }
                if disk_bytenr != 0 =>
            {
                let offset = key.offset.wrapping_sub(offset);
                let (bytenr, len, covers) = (disk_bytenr, disk_num_bytes, num_bytes);
                Some((key.objectid, DataRef { bytenr, len, offset, covers }))
            }
            _ => None,
        }
    })
}

/// Who a reference of the extent tree is from. `None` for what counts for no reference.
pub(crate) fn referrer(found: &InlineRef) -> Option<Referrer> {
    match *found {
        InlineRef::TreeBlock { root } => Some(Referrer::Tree { root }),
        InlineRef::SharedBlock { parent } => Some(Referrer::Block { parent }),
        InlineRef::ExtentData { root, objectid, offset, .. } => {
            Some(Referrer::File { root, inode: objectid, offset })
        }
        InlineRef::SharedData { parent, .. } => Some(Referrer::Leaf { parent }),
        InlineRef::Owner { .. } => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The fractional digits of pi.
    const SEEDS: Seeds = Seeds([
        0x243f_6a88_85a3_08d3,
        0x1319_8a2e_0370_7344,
        0xa409_3822_299f_31d0,
        0x082e_fa98_ec4e_6c89,
    ]);
    const TREE: Reference = Reference {
        by: Referrer::Tree { root: 5 },
        shape: Shape::Block { level: 1, generation: 7 },
    };

    #[test]
    fn equal_sides_cancel_in_any_order() {
        let sums = Sums::new(SEEDS);
        let data = Reference {
            by: Referrer::File { root: 5, inode: 257, offset: 0 },
            shape: Shape::Data { len: 4096 },
        };
        sums.found(1 << 20, &data, 1);
        sums.recorded(1 << 20, &data, 3);
        sums.found(1 << 20, &TREE, 1);
        sums.found(1 << 20, &data, 2);
        assert_eq!(sums.unequal(), [SEEDS.place(1 << 20, SUMS)]);
        sums.recorded(1 << 20, &TREE, 1);
        assert!(sums.unequal().is_empty());
    }

    #[test]
    fn every_member_counts() {
        let others = [
            Reference { by: Referrer::Block { parent: 5 }, ..TREE },
            Reference { by: Referrer::Tree { root: 6 }, ..TREE },
            Reference { shape: Shape::Block { level: 0, generation: 7 }, ..TREE },
            Reference { shape: Shape::Block { level: 1, generation: 8 }, ..TREE },
            Reference { shape: Shape::Data { len: 7 }, ..TREE },
        ];
        for other in others {
            let sums = Sums::new(SEEDS);
            sums.found(4096, &TREE, 1);
            sums.recorded(4096, &other, 1);
            assert_eq!(sums.unequal().len(), 1, "{other:?}");
        }
    }

    #[test]
    fn extents_spread_over_the_sums() {
        let used: std::collections::HashSet<_> =
            (0..SUMS as u64).map(|n| SEEDS.place(n << 14, SUMS)).collect();
        assert!(used.len() > SUMS / 2, "{}", used.len());
    }
}
