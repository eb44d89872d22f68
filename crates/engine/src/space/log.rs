//! Blocks for the tree log.
//!
//! A log is read beside the last commit, before anything of the transaction that it belongs to is durable. So what it is made of, and
//! the data that it names, have to lie in chunks that the last commit knows. Its blocks are in no extent tree. They are used until the
//! transaction commits, and then let go of like blocks of the last commit: nobody gets them before that is durable.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::reserve::Credit;
use super::{Class, Space};

/// Chunks that were made since the filesystem was opened: all, those that the commit under way has, and those that the last one has.
#[derive(Debug, Default)]
pub(super) struct Known {
    made: AtomicU64,
    committing: AtomicU64,
    committed: AtomicU64,
}

impl Known {
    pub fn added(&self) {
        self.made.fetch_add(1, Relaxed);
    }

    /// At the freeze. A chunk that is made later may be written by this commit, too; that it is known then is said after the next one.
    pub fn frozen(&self) {
        self.committing.store(self.made.load(Relaxed), Relaxed);
    }

    pub fn committed(&self) {
        self.committed.store(self.committing.load(Relaxed), Relaxed);
    }

    fn all(&self) -> bool {
        self.made.load(Relaxed) == self.committed.load(Relaxed)
    }
}

impl Space {
    /// Whether the last commit knows all chunks, so that all that is allocated can be named in a log.
    pub fn knows_all_chunks(&self) -> bool {
        self.known.all()
    }

    /// The address of a block for the log; `None` where the operations of the running transaction were promised all there is, or where it
    /// would take a new chunk. No commit is under way.
    pub fn allocate_log_block(&self) -> Option<u64> {
        if !self.spare_log_block() {
            let _taken_back = self.take_back();
            if !self.spare_log_block() {
                return None;
            }
        }
        let slot = self.slot(Class::Metadata);
        self.take(slot, true, |set, counters| set.take_block(counters, self.node))
    }

    /// Whether promises fit without a block; then there is less from now on than others were told.
    fn spare_log_block(&self) -> bool {
        let mut pool = self.pool.lock();
        let outlook = self.outlook(&pool, true);
        let fits = outlook.fits_without(Class::Metadata, self.node, 1, pool.promises);
        if fits {
            pool.credit = Credit::default();
        }
        fits
    }
}
