//! What a commit has to look at: gathered while the log of references is merged into the extent tree.

use std::collections::{BTreeMap, BTreeSet};

use buttress_ondisk::{SECTOR, kind, objectid};

use crate::refs::Record;

/// What one commit has changed.
#[derive(Debug, Default)]
pub struct Changes {
    /// Extents and tree blocks whose trees may have changed.
    pub touched: Vec<u64>,
    /// Bytes of new ones that only one tree refers to, by that tree.
    pub alone: BTreeMap<u64, u64>,
    /// How many of these there are.
    pub new_alone: u64,
    /// Snapshots that were taken, with what they were taken of.
    pub snapshots: Vec<(u64, u64)>,
    /// Subvolumes that are new, snapshots among them.
    pub made: BTreeSet<u64>,
    /// Subvolumes of which nothing is left.
    pub gone: BTreeSet<u64>,
}

impl Changes {
    /// Notes what the folded records of extents say, all of each extent.
    pub fn note(&mut self, records: &[Record], nodesize: u64) {
        for group in records.chunk_by(|a, b| a.bytenr == b.bytenr) {
            if !group.iter().any(is_of_files) {
                continue;
            }
            match only_tree(group) {
                Some(tree) => {
                    let sectors = group.iter().map(|record| record.sectors).max().unwrap_or(0);
                    let bytes = if sectors > 0 { u64::from(sectors) * SECTOR } else { nodesize };
                    *self.alone.entry(tree).or_default() += bytes;
                    self.new_alone += 1;
                }
                None => self.touched.extend(group.first().map(|record| record.bytenr)),
            }
        }
    }
}

/// Whether a reference may be a subvolume's; those by blocks are.
fn is_of_files(record: &Record) -> bool {
    match record.kind {
        kind::TREE_BLOCK_REF | kind::EXTENT_DATA_REF => objectid::is_subvolume(record.owner),
        kind::SHARED_BLOCK_REF | kind::SHARED_DATA_REF => true,
        _ => false,
    }
}

/// The tree that alone refers to what is new.
fn only_tree(group: &[Record]) -> Option<u64> {
    let first = group.first()?;
    let is_new = group.iter().any(|record| record.marks & Record::NEW != 0);
    let is_alike = |record: &Record| {
        matches!(record.kind, kind::TREE_BLOCK_REF | kind::EXTENT_DATA_REF)
            && record.owner == first.owner
            && record.delta > 0
    };
    (is_new && group.iter().all(is_alike)).then_some(first.owner)
}
