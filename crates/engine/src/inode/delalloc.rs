//! Flushing delalloc: data that files buffer go to the disk before the commit has to write them while somebody waits for it.
//!
//! A file is flushed once in a transaction, one or two megabytes of others' data after it was first changed: by then most are as they stay. What
//! is written to it after that waits for the commit, or for a buffer of its own that is full; so does a file that somebody uses at that moment. Files that
//! fit into their item are left alone, as they get no extent; so are those that the log has, and those without a name, which mostly go without ever
//! needing one.
//!
//! What was flushed and is written over takes space twice until the commit, so who finds no room then commits before he is refused
//! ([`crate::space::Space::reserve`]).
//!
//! # Crash argument
//!
//! Data go to space that is free in the last commit, and are there before the layer says so, as with large writes. Nothing leads there
//! until the next commit or log. What fails leaves the buffers as they were, for the commit.

use std::sync::Arc;

use parking_lot::{Mutex, RwLockWriteGuard};

use super::Inode;
use super::file::{INLINE_MAX, flush_all};
use super::state::State;
use super::tree::{FileTree, Listed, PLACED_AT_A_TIME, PLACED_BYTES};
use crate::error::Result;
use crate::txn::{Core, Op};

/// Which files are flushed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flush {
    /// All that nobody uses at the moment.
    All,
    /// Those that had changed before the last call, and were not flushed then.
    Older,
}

/// Inodes that the running transaction has changed, in the order in which each was for the first time.
#[derive(Debug, Default)]
pub(super) struct Dirty {
    pub inodes: Vec<Listed>,
    /// How many of them the tree's count has, at least.
    pub counted: usize,
    /// Those before this position have had their turn. No more than `older`.
    flushed: usize,
    /// Those before this position are to be. No more than `seen`.
    older: usize,
    /// How many there were when it was looked last.
    seen: usize,
}

impl Dirty {
    fn look(&mut self, which: Flush) {
        self.older = self.seen;
        self.seen = self.inodes.len();
        if which == Flush::All {
            (self.flushed, self.older) = (0, self.seen);
        }
    }

    /// The next ones to be flushed. A commit that has begun meanwhile leaves none.
    fn take(&mut self) -> Vec<Arc<Inode>> {
        let end = self.older.min(self.flushed + PLACED_AT_A_TIME);
        let taken = self.inodes[self.flushed..end].iter().map(|(_, inode)| inode.clone()).collect();
        self.flushed = end;
        taken
    }
}

impl State {
    fn delalloc_bytes(&self) -> u64 {
        self.live.file.as_ref().map_or(0, |file| file.buffered_bytes())
    }

    /// Whether it buffers what will go to extents of its own.
    fn has_delalloc(&self, op: &Op<'_>) -> bool {
        self.dirty
            && self.transid == op.transid
            && self.logged != op.transid
            && self.attributes.nlink > 0
            && self.attributes.size > INLINE_MAX
            && self.delalloc_bytes() > 0
    }
}

impl FileTree {
    /// Writes what files buffer to the disk, for as long as `go_on` says, and answers how many bytes that were. They are no more durable
    /// than before.
    pub fn flush_delalloc(
        &self,
        core: &Core,
        which: Flush,
        go_on: &dyn Fn() -> bool,
    ) -> Result<u64> {
        let mut bytes = 0;
        if !self.may_have_changed() {
            return Ok(0);
        }
        for stripe in self.dirty.all() {
            stripe.lock().look(which);
            let take = |stripe: &Mutex<Dirty>| stripe.lock().take();
            let mut inodes = take(stripe);
            while !inodes.is_empty() && go_on() {
                let mut rest = &inodes[..];
                while !rest.is_empty() && go_on() {
                    let op = core.txn.join(core)?;
                    core.txn.check()?;
                    let flushed = self.flush_some(&op, &mut rest)?;
                    core.waiting.flushed(flushed);
                    bytes += flushed;
                }
                inodes = take(stripe);
            }
        }
        Ok(bytes)
    }

    /// Flushes the first of these inodes, which are locked meanwhile, and answers how many bytes that were.
    fn flush_some(&self, op: &Op<'_>, inodes: &mut &[Arc<Inode>]) -> Result<u64> {
        let mut states: Vec<(u64, RwLockWriteGuard<'_, State>)> = Vec::new();
        let mut work = 0;
        while let Some((inode, rest)) = inodes.split_first()
            && work < PLACED_BYTES
        {
            *inodes = rest;
            // Somebody uses it, or has it and waits for another one of these.
            let Some(state) = inode.state.try_write() else { continue };
            if state.has_delalloc(op) {
                work += state.delalloc_bytes();
                states.push((inode.ino, state));
            }
        }
        let states = states.iter_mut();
        let layered = states.map(|(ino, state)| state.file_layers(*ino, self.view(op.core)));
        let mut files: Vec<_> = layered.collect();
        if !files.is_empty() {
            flush_all(op.core, &mut files, true)?;
        }
        Ok(work)
    }
}

#[cfg(test)]
mod tests {
    use buttress_ondisk::item::InodeItem;
    use zerocopy::FromZeros;

    use super::*;
    use crate::inode::attributes::Attributes;

    #[test]
    fn older_ones_are_those_that_were_seen_before() {
        let mut dirty = Dirty::default();
        let add = |dirty: &mut Dirty, count: u64| {
            let attributes = Attributes::read(&InodeItem::new_zeroed());
            let inode = |ino| (ino, Inode::new(ino, State::created(attributes, 7)));
            let from = dirty.inodes.len() as u64;
            dirty.inodes.extend((from..from + count).map(inode));
        };
        let taken = |dirty: &mut Dirty, which| {
            dirty.look(which);
            std::iter::from_fn(|| Some(dirty.take().len()).filter(|len| *len > 0)).sum::<usize>()
        };
        add(&mut dirty, 100);
        assert_eq!(taken(&mut dirty, Flush::Older), 0);
        add(&mut dirty, 50);
        assert_eq!(taken(&mut dirty, Flush::Older), 100);
        assert_eq!(taken(&mut dirty, Flush::Older), 50);
        assert_eq!(taken(&mut dirty, Flush::Older), 0);
        add(&mut dirty, 1);
        assert_eq!(taken(&mut dirty, Flush::All), 151);
        assert_eq!(taken(&mut dirty, Flush::Older), 0);
        // A commit takes them away in between.
        dirty.look(Flush::All);
        assert_eq!(dirty.take().len(), PLACED_AT_A_TIME);
        drop(std::mem::take(&mut dirty));
        assert!(dirty.take().is_empty());
    }
}
