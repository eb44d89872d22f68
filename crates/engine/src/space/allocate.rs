//! Allocation, and letting go.

use std::sync::atomic::Ordering::Relaxed;

use buttress_ondisk::objectid::EXTENT_TREE;
use buttress_ondisk::{EXTENT_LEN_MAX, SECTOR};

use super::device::excluded;
use super::group::Group;
use super::set::Set;
use super::{Class, Pool, Range, Space};
use crate::error::{Error, Result};

/// A run this long is good enough: no new chunk is made to get a longer one, in bytes.
const GOOD_RUN: u64 = 16 << 20;
/// A new chunk is made for the chunk tree when its groups have less room than this, in bytes.
const SYSTEM_LOW: u64 = 1 << 20;
/// Bytes of the device that a chunk for the chunk tree may have even if they were promised to others.
const SYSTEM_LEAST: u64 = 4 << 20;

/// Chunks that are made for one extent at most, where those that the device has room for are short.
const CHUNKS_FOR_EXTENT: usize = 3;

fn whole_sectors(len: u64) -> u64 {
    len.clamp(1, EXTENT_LEN_MAX).next_multiple_of(SECTOR)
}

impl Space {
    /// One run of addresses for data, at most `want` and at least `min` bytes, both rounded up to
    /// sectors; a new chunk is made when there is no better run. It must have been reserved, and is
    /// the caller's until a commit accounts for it or it is given back.
    ///
    /// `None`: no run of `min` bytes is left. With `min` one sector, that is when all is taken.
    pub fn allocate_data(&self, min: u64, want: u64) -> Option<Range> {
        let want = whole_sectors(want);
        let min = whole_sectors(min).min(want);
        let run = self.find_data(min, want)?;
        self.use_promise(run.len, run.len < want);
        Some(run)
    }

    fn find_data(&self, min: u64, want: u64) -> Option<Range> {
        let slot = self.slot(Class::Data);
        loop {
            let seen = slot.grown.load(Relaxed);
            let run =
                self.take(slot, true, |set, counters| match set.take_data(counters, want)? {
                    Some(run) => Ok(Some(run)),
                    None => set.take_longest(counters, GOOD_RUN.max(min), want),
                });
            if run.is_some() {
                return run;
            }
            if !self.grow(Class::Data, seen) {
                let seen = slot.grown.load(Relaxed);
                let longest = |set: &mut Set, counters: &_| set.take_longest(counters, min, want);
                let run = self.take(slot, false, longest);
                if run.is_some() || !self.was_held(slot, seen) {
                    return run;
                }
            }
        }
    }

    /// One run of exactly `len` bytes for a data extent that moves, whoever has made it so long: what Linux reserves for a file has up to 256
    /// MiB. It must have been reserved, as all data. No chunk is made for it that would be too short, and none where the class may not `grow`.
    pub fn allocate_extent(&self, len: u64, grow: bool) -> Option<Range> {
        let slot = self.slot(Class::Data);
        let whole = |set: &mut Set, counters: &_| match set.take_data(counters, len)? {
            Some(run) => Ok(Some(run)),
            None => set.take_longest(counters, len, len),
        };
        let mut chunks = 0;
        let run = loop {
            let seen = slot.grown.load(Relaxed);
            if let Some(run) = self.take(slot, true, whole) {
                break run;
            }
            if self.was_held(slot, seen) {
                continue;
            }
            let may_grow = grow
                && chunks < CHUNKS_FOR_EXTENT
                && self.pool.lock().usual_len(Class::Data) >= len;
            chunks += 1;
            if may_grow && self.grow(Class::Data, seen) {
                continue;
            }
            let seen = slot.grown.load(Relaxed);
            match self.take(slot, false, whole) {
                Some(run) => break run,
                None if self.was_held(slot, seen) => {}
                None => return None,
            }
        };
        self.use_promise(run.len, false);
        Some(run)
    }

    /// The address of a new tree block, for the running commit. Neighbours in time are neighbours in
    /// address as far as possible.
    pub fn allocate_block(&self, class: Class) -> Result<u64> {
        if class == Class::Metadata
            && self.is_alone()
            && let Some(start) = self.take_chosen()
        {
            self.placed.fetch_add(1, Relaxed);
            return Ok(start);
        }
        let slot = self.slot(class);
        loop {
            let seen = slot.grown.load(Relaxed);
            let block = |set: &mut Set, counters: &_| set.take_block(counters, self.node);
            if let Some(start) = self.take(slot, true, block) {
                self.placed.fetch_add(u64::from(class == Class::Metadata), Relaxed);
                return Ok(start);
            }
            if !self.grow(class, seen) {
                return Err(self.cold.no_space(class));
            }
        }
    }

    /// Makes a chunk for a class, unless another thread has made one since `seen` was read. Whether
    /// there is a new one, or other room that was not there.
    fn grow(&self, class: Class, seen: u64) -> bool {
        if self.thaw() || self.wait_for_held() {
            return true;
        }
        let mut pool = self.pool.lock();
        if self.slot(class).grown.load(Relaxed) != seen {
            return true;
        }
        if class != Class::System {
            let system = self.slot(Class::System).counters.read();
            if system.nodes * self.node < SYSTEM_LOW.max(3 * system.used) {
                self.add_chunk(&mut pool, Class::System, false);
            }
        }
        self.add_chunk(&mut pool, class, true)
    }

    pub(super) fn add_chunk(&self, pool: &mut Pool, class: Class, needed: bool) -> bool {
        let outlook = self.outlook(pool, true);
        let mut limit = outlook.limit(class, pool.promises);
        if class == Class::System && needed {
            // Without the chunk tree nothing can be committed.
            limit = limit.max(SYSTEM_LEAST.min(outlook.room));
        }
        let Some(chunk) = pool.add_chunk(class, limit) else { return false };
        if self.keeper.add(&chunk).is_err() {
            pool.forget_chunk(chunk.logical);
            return false;
        }
        let range = Range::new(chunk.logical, chunk.length);
        let group = Group::empty(range, chunk.type_flags, excluded(&chunk), self.node);
        let slot = self.slot(class);
        self.index.add(range, Class::of(chunk.type_flags));
        let mut set = slot.set.lock();
        set.add(&slot.counters, group);
        set.mark(range.start);
        slot.grown.fetch_add(1, Relaxed);
        self.known.added();
        true
    }

    /// Changes the group that holds a range; an error when `change` says that it cannot be.
    pub(super) fn change(
        &self,
        range: Range,
        what: &'static str,
        change: impl FnOnce(&mut Group) -> bool,
    ) -> Result<()> {
        let place = || format!("{}+{}", range.start, range.len);
        let fault = || Error::inconsistent(EXTENT_TREE, what, place());
        let (start, class) = self.index.find(range.start).ok_or_else(fault)?;
        let slot = self.slot(class);
        let done = self.lock_with(slot, start)?.change(&slot.counters, start, change);
        done.unwrap_or(false).then_some(()).ok_or_else(fault)
    }

    /// Takes exactly these addresses, which a log says hold data or blocks of its own: nobody else gets them before they are
    /// accounted for or given back.
    pub fn claim(&self, range: Range, class: Class) -> Result<()> {
        let found = self.index.find(range.start).map(|(_, class)| class);
        let same = found.is_some_and(|found| found.slot() == self.slot_of(class));
        let free = |group: &mut Group| same && group.claim(range);
        self.change(range, "what a log uses is not free", free)
    }

    /// The commit gives a data extent its first reference: it is used from now on.
    pub fn account_new(&self, range: Range) -> Result<()> {
        self.change(range, "a new extent was not allocated", |group| group.account(range))
    }

    /// The commit lets go of an extent or block that the last commit knew: allocatable after the
    /// next freeze.
    pub fn free(&self, range: Range) -> Result<()> {
        self.change(range, "space is let go that is not in use", |group| group.pin(range))
    }

    /// Data that was allocated and not accounted for, and that nobody can have read: allocatable at
    /// once.
    pub fn give_back(&self, range: Range) -> Result<()> {
        self.change(range, "data is given back that was not allocated", |g| g.give_back(range))?;
        // Somebody may have written to it.
        self.slot(Class::Data).set.lock().freed.extend([range]);
        Ok(())
    }

    /// The same of data that are not written after all: who needs as much is promised it again.
    pub fn promise_again(&self, range: Range) -> Result<()> {
        // First, so that nobody else is promised it.
        self.pool.lock().promises.running.data += range.len;
        self.give_back(range)
    }

    /// Data that was allocated and not accounted for, but which a reader may still look at:
    /// allocatable after the next freeze.
    pub fn release(&self, range: Range) -> Result<()> {
        self.change(range, "data is given back that was not allocated", |g| g.release(range))
    }

    /// A tree block that this commit allocated and will not write: allocatable at once.
    pub fn give_back_block(&self, bytenr: u64) -> Result<()> {
        let range = Range::new(bytenr, self.node);
        self.change(range, "a block is given back that is not in use", |group| {
            group.give_back_block(range)
        })
    }

    /// At the freeze, when no operation runs and the last commit is durable: what it let go becomes
    /// allocatable, device space of removed chunks too, and promises move to the commit that starts.
    pub fn freeze(&self) {
        let _taken_back = self.take_back();
        let mut pool = self.pool.lock();
        pool.freeze();
        self.known.frozen();
        self.start(&mut pool);
        drop(pool);
        for slot in &self.slots {
            slot.set.lock().freeze(&slot.counters);
        }
    }

    /// Makes free what the last commit let go of, like the next freeze: it is durable, no operation runs, and no commit is under
    /// way.
    pub fn settle_freed(&self) {
        self.pool.lock().put_back_returning();
        for slot in &self.slots {
            slot.set.lock().freeze(&slot.counters);
        }
        self.thaw();
    }

    /// Makes free what was pinned before the last freeze, a group at a time. Whether there was any.
    ///
    /// Allocation does so by itself when it needs to; the freeze does not, to be short.
    pub(crate) fn thaw(&self) -> bool {
        let mut any = false;
        for slot in &self.slots {
            while slot.set.lock().thaw_one(&slot.counters) {
                any = true;
            }
        }
        any
    }
}
