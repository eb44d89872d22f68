//! The device is told what is free: an image takes less room on its disk then, and a disk knows what it need not keep (`discard`, FITRIM).
//!
//! Crash argument: what is free may be overwritten by whoever gets it next, so no state that a crash can leave needs it; to be discarded is no more
//! than that. Who allocates in the wrong place because free space was written down wrongly (by others, say) destroys little before it is
//! noticed, and who discards destroys all of it at once: so only what is between the extents of the extent tree is told of. While the device is told of a range, the range is *held*: nobody gets it. It counts as free meanwhile, and who finds no room
//! waits for it ([`Space::wait_for_held`]), so nothing is refused for its sake; a deletion that comes alone, and has chosen its places, has them. A part of the device that no chunk has is looked at with the pool
//! locked, piece by piece: no chunk comes to it before the device was told.
//!
//! What has become free is remembered by its addresses, to be told later on at once ([`Freed`]). It may be in use again by then, or gone with its
//! group: only what is free of it at that moment is held.

use std::sync::atomic::{AtomicBool, Ordering};

use buttress_ondisk::STRIPE_LEN;
use buttress_ondisk::superblock::SUPERBLOCK_OFFSETS;
use parking_lot::{Mutex, MutexGuard};

use super::extents::Range;
use super::group::Group;
use super::{Class, Slot, Space};
use crate::error::Result;

/// Bytes that are held at a time, at most, and in how many pieces: whoever writes to an image waits while a hole is made in it.
const HELD_MAX: (u64, usize) = (16 << 20, 256);
/// Bytes of a group of which the gaps between extents are looked up at a time, while no transaction can end: 8,192 extents at most.
const WINDOW: u64 = 32 << 20;
/// Bytes of the device that are told of with the pool locked, at most.
const DEVICE_PIECE: u64 = 16 << 20;
/// Bytes before and behind what has become free that are looked at, too.
const NEAR: u64 = 64 << 10;
/// Ranges that are remembered; where there are more, they are joined, and if that does not help, forgotten.
const FREED_MAX: usize = 1 << 16;

/// What the device is told of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Piece {
    /// Addresses of a block group.
    Logical(Range),
    /// A part of the device that no chunk has.
    Device(Range),
}

/// Of whoever tells the device.
#[derive(Debug, Default)]
pub(super) struct Trimming {
    /// Whose turn it is.
    turn: Mutex<()>,
    /// Whether anything is held.
    is_holding: AtomicBool,
}

/// Ranges that have become free, in no order; they may overlap.
#[derive(Debug, Default)]
pub(crate) struct Freed {
    /// Whether they are remembered.
    keeps: bool,
    ranges: Vec<Range>,
}

impl Freed {
    pub(super) fn extend(&mut self, ranges: impl IntoIterator<Item = Range>) {
        if !self.keeps {
            return;
        }
        self.ranges.extend(ranges);
        if self.ranges.len() > FREED_MAX {
            let joined = self.take();
            self.ranges = if joined.len() > FREED_MAX / 2 { Vec::new() } else { joined };
        }
    }

    /// All of them, rising, none touching another.
    fn take(&mut self) -> Vec<Range> {
        let mut ranges = std::mem::take(&mut self.ranges);
        ranges.sort_unstable_by_key(|range| range.start);
        let mut joined: Vec<Range> = Vec::new();
        for range in ranges {
            match joined.last_mut() {
                Some(last) if last.end() >= range.start => {
                    last.len = last.end().max(range.end()) - last.start;
                }
                _ => joined.push(range),
            }
        }
        joined
    }
}

/// What is told of, and how.
pub struct Trim<'t> {
    /// Shorter runs are left out, in bytes.
    pub min: u64,
    /// The gaps between the extents of the last commit in a range of addresses of one group, rising, of which the free space is in memory
    /// then; `None` ends it. Nothing is locked.
    pub gaps: &'t mut dyn FnMut(Range) -> Result<Option<Vec<Range>>>,
    /// Tells the device of a piece; it answers `false` to end it.
    pub tell: &'t mut dyn FnMut(Piece) -> Result<bool>,
}

impl Trim<'_> {
    /// Tells of some pieces, until it is to end. Whether it goes on.
    fn tell(&mut self, pieces: impl IntoIterator<Item = Piece>) -> Result<bool> {
        for piece in pieces {
            if !(self.tell)(piece)? {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

impl Space {
    /// From now on, what becomes free is remembered for [`Space::trim_freed`].
    pub fn remember_freed(&self) {
        self.pool.lock().freed.keeps = true;
        for slot in &self.slots {
            slot.set.lock().freed.keeps = true;
        }
    }

    /// It is not remembered any more.
    pub fn forget_freed(&self) {
        self.pool.lock().freed = Freed::default();
        for slot in &self.slots {
            slot.set.lock().freed = Freed::default();
        }
    }

    /// Bytes that are let go and not free yet: [`Space::settle_freed`] makes them so.
    pub fn pinned_bytes(&self) -> u64 {
        self.slots.iter().map(|slot| slot.counters.read().pinned).sum()
    }

    /// Tells the device what has become free since the last time, and is free now. Of what was not come to it is told the next time, and not of what failed.
    pub fn trim_freed(&self, trim: &mut Trim<'_>) -> Result<bool> {
        self.thaw();
        for slot in &self.slots {
            let mut freed = slot.set.lock().freed.take().into_iter();
            while let Some(Range { start, len }) = freed.next() {
                // Together with what is free beside it, it may be worth it.
                let window = Range::new(start.saturating_sub(NEAR), len.saturating_add(2 * NEAR));
                let told = self.trim_groups(window, trim);
                if !matches!(told, Ok(true)) {
                    slot.set.lock().freed.extend(freed);
                    return told;
                }
            }
        }
        let mut freed = self.pool.lock().freed.take().into_iter();
        while let Some(range) = freed.next() {
            let told = self.trim_device(range, trim);
            if !matches!(told, Ok(true)) {
                self.pool.lock().freed.extend(freed);
                return told;
            }
        }
        Ok(true)
    }

    /// Tells the device what is free in all groups, as far as it lies in `window`, which is one of addresses. Whether it came to the end.
    pub fn trim_groups(&self, window: Range, trim: &mut Trim<'_>) -> Result<bool> {
        let touches = |group: &Range| group.start < window.end() && group.end() > window.start;
        let list = self.index.list.read();
        let groups = list.iter().map(|(group, _)| *group).filter(touches);
        let groups: Vec<Range> = groups.collect();
        drop(list);
        for group in groups {
            if !self.trim_group(group.start, group.clipped(window), trim)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn trim_group(&self, start: u64, window: Range, trim: &mut Trim<'_>) -> Result<bool> {
        let mut at = window.start;
        while at < window.end() {
            let step = Range::new(at, (window.end() - at).min(WINDOW));
            let Some(gaps) = (trim.gaps)(step)? else { return Ok(false) };
            while let Some(held) = self.hold_some(start, &gaps, at, trim.min) {
                if !trim.tell(held.runs.iter().map(|run| Piece::Logical(*run)))? {
                    return Ok(false);
                }
                at = held.runs.last().map_or(step.end(), Range::end);
            }
            at = step.end();
        }
        Ok(true)
    }

    /// Keeps some of what is free in a group from allocation, in these gaps behind `at`.
    fn hold_some(&self, start: u64, gaps: &[Range], at: u64, min: u64) -> Option<Held<'_>> {
        // The group may be gone.
        let (_, class) = self.index.find(start).filter(|(found, _)| *found == start)?;
        let slot = self.slot(class);
        let _turn = self.trimming.turn.lock();
        let mut held = Held { space: self, slot, start, runs: Vec::new(), _turn };
        // A deletion that comes alone was promised certain places.
        if self.is_alone() && (self.mixed || class != Class::Data) {
            return None;
        }
        let mut set = slot.set.lock();
        // Before anybody can miss it.
        self.trimming.is_holding.store(true, Ordering::Release);
        for run in next_runs(set.get(start)?, gaps, at, min) {
            if set.change(&slot.counters, start, |group| group.hold(run)) == Some(true) {
                held.runs.push(run);
            }
        }
        drop(set);
        (!held.runs.is_empty()).then_some(held)
    }

    /// Waits until nothing is held that was when this was asked. Whether there was any. Nothing of space is locked.
    pub(super) fn wait_for_held(&self) -> bool {
        let is_holding = self.trimming.is_holding.load(Ordering::Acquire);
        if is_holding {
            drop(self.trimming.turn.lock());
        }
        is_holding
    }

    /// Whether what somebody did not find in a class may have been held, which it is not any more: since `seen`, what was let go counts there.
    pub(super) fn was_held(&self, slot: &Slot, seen: u64) -> bool {
        self.wait_for_held() || slot.grown.load(Ordering::Acquire) != seen
    }

    /// Nothing is held, and nothing is going to be, as long as this is.
    pub(super) fn trimming_turn(&self) -> MutexGuard<'_, ()> {
        self.trimming.turn.lock()
    }

    /// Tells the device of all that no chunk has of it, as far as it lies in `window`. Whether it came to the end.
    pub fn trim_device(&self, window: Range, trim: &mut Trim<'_>) -> Result<bool> {
        let mut at = window.start;
        while at < window.end() {
            let pool = self.pool.lock();
            let holes = pool.device.holes();
            let is_next = |hole: &Range| hole.end() > at && hole.start < window.end();
            let Some(hole) = holes.into_iter().find(is_next) else { return Ok(true) };
            let from = hole.start.max(at);
            let end = hole.end().min(window.end());
            let piece = Range::new(from, (end - from).min(DEVICE_PIECE));
            let min = trim.min;
            let parts = without_superblocks(piece).into_iter().filter(|part| part.len >= min);
            if !trim.tell(parts.map(Piece::Device))? {
                return Ok(false);
            }
            drop(pool);
            at = piece.end();
        }
        Ok(true)
    }
}

/// Runs of a group that nobody gets as long as this is.
struct Held<'s> {
    space: &'s Space,
    slot: &'s Slot,
    start: u64,
    runs: Vec<Range>,
    _turn: MutexGuard<'s, ()>,
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        let mut set = self.slot.set.lock();
        for run in &self.runs {
            set.change(&self.slot.counters, self.start, |group| group.let_go(*run));
        }
        // Who has missed it a moment ago, and does not see any more that something is held, sees this.
        self.slot.grown.fetch_add(1, Ordering::Release);
        drop(set);
        self.space.trimming.is_holding.store(false, Ordering::Release);
    }
}

/// The next free runs of a group in these gaps, from `at` on.
fn next_runs(group: &Group, gaps: &[Range], at: u64, min: u64) -> Vec<Range> {
    let (mut runs, mut bytes) = (Vec::new(), 0);
    if group.is_closed() {
        return runs;
    }
    let first = gaps.partition_point(|gap| gap.end() <= at);
    let rest = gaps[first..].iter().map(|gap| {
        let from = gap.start.max(at);
        Range::new(from, gap.end() - from)
    });
    for run in rest.flat_map(|gap| group.free().within(gap)) {
        let run = group.holdable(run);
        if run.len < min.max(1) {
            continue;
        }
        let part = Range::new(run.start, run.len.min(HELD_MAX.0 - bytes));
        runs.push(part);
        bytes += part.len;
        if bytes == HELD_MAX.0 || runs.len() == HELD_MAX.1 {
            break;
        }
    }
    runs
}

/// The parts of a range of the device that are no copy's of the superblock.
fn without_superblocks(range: Range) -> Vec<Range> {
    range.without(SUPERBLOCK_OFFSETS.map(|start| Range::new(start, STRIPE_LEN)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_became_free_is_joined_and_bounded() {
        let mut freed = Freed::default();
        freed.extend([Range::new(0, 10)]);
        assert!(freed.take().is_empty(), "nobody wants to know");
        freed.keeps = true;
        freed.extend([
            Range::new(30, 10),
            Range::new(0, 10),
            Range::new(10, 5),
            Range::new(32, 20),
        ]);
        assert_eq!(freed.take(), [Range::new(0, 15), Range::new(30, 22)]);
        for number in 0..3 * FREED_MAX as u64 {
            freed.extend([Range::new(number * 10, 5)]);
            assert!(freed.ranges.len() <= FREED_MAX);
        }
    }

    #[test]
    fn copies_of_the_superblock_are_left_out() {
        let (second, len) = (64 << 20, 64 << 10);
        let parts = |start, len| without_superblocks(Range::new(start, len));
        assert_eq!(parts(1 << 20, 1 << 20), [Range::new(1 << 20, 1 << 20)]);
        let around = [Range::new(second - 4096, 4096), Range::new(second + len, 4096)];
        assert_eq!(parts(second - 4096, len + 8192), around);
        assert_eq!(parts(second, len), []);
        assert_eq!(parts(second + 4096, len), [Range::new(second + len, 4096)]);
    }
}
