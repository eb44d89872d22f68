//! Leaves that are written while the commit still makes others.
//!
//! A tree of files is merged once in a commit, and its new leaves are what they will be once they are placed; the trees that describe
//! space are merged until they settle, and wait. In a large commit, who makes leaves writes some that are placed in between, neighbours
//! together and one thread at a time: all of them at the end would be one thread's work where the others had none, as who writes to a file has it
//! to himself. What is left is written with everything else.
//!
//! What a crash leaves: the last commit. Nothing that is durable leads to these leaves before the superblock does, which is written after
//! them and a barrier. Should one be replaced all the same, the block that takes its address is written after it: they are written in
//! their order, and all others later. The cache keeps that one meanwhile, as it is not the one that was written.

use std::collections::VecDeque;
use std::sync::Arc;

use buttress_ondisk::TreeBlock;
use parking_lot::{Mutex, MutexGuard};

use super::commit::{Commit, RUN_BYTES};
use crate::error::Result;

/// A commit that has less waiting for it is not cut into parts that are worth it: some thousand leaves. Any in tests.
const LARGE_BYTES: u64 = 32 << 20;

/// Runs that are written between two parts: more than a part has, so that what is placed does not grow.
const RUNS_AT_ONCE: usize = 4;

/// Leaves on their way.
#[derive(Debug, Default)]
pub(super) struct Early {
    queue: Mutex<Queue>,
    /// Held by who writes.
    writing: Mutex<()>,
}

#[derive(Debug, Default)]
struct Queue {
    /// Whether leaves are taken.
    is_open: bool,
    /// Neighbours that may get more.
    run: Vec<Arc<TreeBlock>>,
    /// Neighbours to be written.
    runs: VecDeque<Vec<Arc<TreeBlock>>>,
}

impl Queue {
    /// A leaf more. Fewer neighbours than `fewest` wait for those that come later.
    fn take(&mut self, leaf: &Arc<TreeBlock>, nodesize: usize, fewest: usize) {
        let next = self.run.last().map(|last| last.bytenr() + nodesize as u64);
        if next.is_some_and(|next| next != leaf.bytenr()) {
            self.end_run(fewest);
        }
        self.run.push(leaf.clone());
        if self.run.len() * nodesize >= RUN_BYTES {
            self.end_run(fewest);
        }
    }

    fn end_run(&mut self, fewest: usize) {
        let run = std::mem::take(&mut self.run);
        if run.len() >= fewest.max(1) {
            self.runs.push_back(run);
        }
    }
}

impl Early {
    /// What was to come is written by the caller, with everything else; nobody writes what it has replaced meanwhile.
    pub(super) fn take_over(&self) -> MutexGuard<'_, ()> {
        let writing = self.writing.lock();
        self.queue.lock().runs.clear();
        writing
    }
}

impl Commit<'_> {
    /// A leaf that stays as it is may be written now.
    pub(super) fn may_be_written(&self, leaf: &Arc<TreeBlock>) {
        let mut queue = self.early.queue.lock();
        if queue.is_open {
            let nodesize = self.core().features.nodesize;
            let is_tried = self.core().sequential || cfg!(test);
            let fewest = if is_tried { 1 } else { RUN_BYTES / nodesize / 4 };
            queue.take(leaf, nodesize, fewest);
        }
    }

    /// Merges trees. In a large commit some of their leaves are written meanwhile, by [`Commit::write_some`].
    pub(super) fn write_while(&self, merge: impl FnOnce() -> Result<()>) -> Result<()> {
        let core = self.core();
        // Every other commit where it is tried what a crash leaves: both ways are to be seen.
        let wanted = match core.sequential {
            true => self.transid().is_multiple_of(2),
            false => cfg!(test) || core.waiting.frozen_bytes() >= LARGE_BYTES,
        };
        self.early.queue.lock().is_open = wanted && !core.space.is_alone();
        merge()?;
        let mut queue = std::mem::take(&mut *self.early.queue.lock());
        if core.sequential {
            queue.end_run(1);
            queue.runs.iter().try_for_each(|run| self.write_early_run(run))?;
        }
        Ok(())
    }

    /// Writes some of the leaves that are placed, unless somebody does. For who makes leaves of other parts.
    pub fn write_some(&self) -> Result<()> {
        if self.core().sequential {
            return Ok(());
        }
        let Some(_writing) = self.early.writing.try_lock() else { return Ok(()) };
        for _ in 0..RUNS_AT_ONCE {
            let Some(run) = self.early.queue.lock().runs.pop_front() else { break };
            self.write_early_run(&run)?;
        }
        Ok(())
    }
}
