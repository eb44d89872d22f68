//! Subtrees that were judged: snapshots share most of their blocks, and the same blocks, met with the same inode in
//! progress, lead to the same.

use std::collections::HashMap;

use parking_lot::RwLock;

use super::inode::Inode;

/// A subtree, and the inode whose items were being seen when it was met.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Known {
    pub bytenr: u64,
    pub generation: u64,
    pub inode: Inode,
}

/// What the subtree adds to the tree's sum, and the inode in progress after it.
type Outcome = (u64, Inode);

/// The subtrees judged so far. Only nodes are kept: a few hundred bytes for each 100 or more leaves.
#[derive(Debug)]
pub(crate) struct Memo {
    entries: RwLock<HashMap<Known, Outcome>>,
    entries_max: usize,
}

impl Memo {
    /// An empty one that takes at most so many bytes.
    pub fn new(bytes_max: usize) -> Memo {
        let one = 2 * size_of::<(Known, Outcome)>();
        Memo { entries: RwLock::default(), entries_max: bytes_max / one }
    }

    /// What is known of a subtree.
    pub fn get(&self, known: &Known) -> Option<Outcome> {
        self.entries.read().get(known).copied()
    }

    /// Remembers a subtree, if there is room.
    pub fn add(&self, known: Known, outcome: Outcome) {
        let mut entries = self.entries.write();
        if entries.len() < self.entries_max {
            entries.insert(known, outcome);
        }
    }
}
