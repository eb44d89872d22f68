//! What all parts of a check share: the volume, the options, where issues go, and what was met so far.

use std::collections::HashSet;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use buttress_ondisk::{Superblock, TreeBlock};
use buttress_volume::Volume;
use parking_lot::Mutex;

use crate::{
    issue::{Issue, Place},
    kinds::Kind,
    marks::Marks,
    options::Options,
    progress::Progress,
    roots::Roots,
    sink::Sink,
};

/// A check under way. Shared by all its threads.
pub(crate) struct Context<'a> {
    /// The filesystem.
    pub volume: &'a Volume,
    /// Its superblock.
    pub sb: Superblock,
    /// What is to be done.
    pub options: &'a Options,
    /// How far it is.
    pub progress: &'a Progress,
    /// Where issues go.
    pub sink: Sink,
    /// The trees of the root tree; empty until that was read.
    pub roots: Roots,
    /// Blocks whose references were counted.
    pub visited: Marks,
    /// Addresses of blocks that were reported as bad.
    pub bad: Mutex<HashSet<u64>>,
    /// Sizes so far.
    pub sizes: Sizes,
}

/// Sizes that are added up, in bytes; see [`crate::Totals`].
#[derive(Debug, Default)]
pub(crate) struct Sizes {
    pub tree_blocks: AtomicU64,
    pub fs_tree_blocks: AtomicU64,
    pub extent_tree_blocks: AtomicU64,
    pub waste: AtomicU64,
}

impl<'a> Context<'a> {
    /// A check that has not begun.
    pub fn new(volume: &'a Volume, options: &'a Options, progress: &'a Progress) -> Context<'a> {
        Context {
            volume,
            sb: volume.superblock(),
            options,
            progress,
            sink: Sink::new(options.issues_max),
            roots: Roots::default(),
            visited: Marks::new(&volume.chunks()),
            bad: Mutex::default(),
            sizes: Sizes::default(),
        }
    }

    /// Reports an issue.
    pub fn report(
        &self,
        kind: Kind,
        place: Place,
        have: impl fmt::Display,
        expect: impl fmt::Display,
    ) {
        self.sink.add(Issue::new(kind, place, have, expect));
    }

    /// Counts a block and the references it holds, the first time that it is met.
    pub fn meet(&self, block: &TreeBlock, _tree: u64) {
        if !self.visited.add(block.bytenr()) {
            return;
        }
        let len = block.as_bytes().len() as u64;
        self.progress.advance(len);
        self.sizes.tree_blocks.fetch_add(len, Relaxed);
    }
}
