//! The block groups of one class, behind one lock.
//!
//! Allocation stays in one group until it has no fitting room left, then goes to the fitting group
//! with the lowest address, so that groups at the end become empty and can be given back. Groups
//! are kept by the power of two of their longest free range: finding one with room looks at a few
//! dozen sets, never at all groups.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::cold::{Away, Take};
use super::extents::Range;
use super::group::Group;
use super::trim::Freed;

/// Groups of the same power of two that are looked at, where a fit is not certain.
const TRIES: usize = 8;

/// Sums over the groups of a class, readable without the lock.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    total: AtomicU64,
    used: AtomicU64,
    free: AtomicU64,
    nodes: AtomicU64,
    pinned: AtomicU64,
    promised: AtomicU64,
    excluded: AtomicU64,
    runs: AtomicU64,
    groups: AtomicU64,
    memory: AtomicU64,
}

/// One reading of [`Counters`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sums {
    /// Bytes of all groups.
    pub total: u64,
    /// Bytes the committing transaction uses.
    pub used: u64,
    /// Bytes allocatable now, or when the device was told of them.
    pub free: u64,
    /// Tree blocks, as well.
    pub nodes: u64,
    /// Bytes allocatable after the next freeze.
    pub pinned: u64,
    /// Bytes of data that no commit refers to yet.
    pub promised: u64,
    /// Bytes under superblocks.
    pub excluded: u64,
    /// Runs of free space.
    pub runs: u64,
    /// Groups.
    pub groups: u64,
    /// Bytes of memory that their free space takes.
    pub memory: u64,
}

impl Sums {
    fn of(group: &Group) -> Sums {
        Sums {
            total: group.range.len,
            used: group.used,
            free: if group.is_closed() { 0 } else { group.free().bytes() + group.held_bytes() },
            nodes: if group.is_closed() { 0 } else { group.nodes() + group.held_nodes() },
            pinned: group.pinned_bytes(),
            promised: group.promised_bytes(),
            excluded: group.excluded_bytes(),
            runs: group.free().runs() + group.held_runs(),
            groups: 1,
            memory: group.free().memory(),
        }
    }
}

impl Counters {
    /// The sums; each is right, but they need not be of the same moment.
    pub fn read(&self) -> Sums {
        Sums {
            total: self.total.load(Relaxed),
            used: self.used.load(Relaxed),
            free: self.free.load(Relaxed),
            nodes: self.nodes.load(Relaxed),
            pinned: self.pinned.load(Relaxed),
            promised: self.promised.load(Relaxed),
            excluded: self.excluded.load(Relaxed),
            runs: self.runs.load(Relaxed),
            groups: self.groups.load(Relaxed),
            memory: self.memory.load(Relaxed),
        }
    }

    fn shift(&self, before: Sums, after: Sums) {
        let shift = |counter: &AtomicU64, before: u64, after: u64| {
            if before != after {
                counter.fetch_add(after.wrapping_sub(before), Relaxed);
            }
        };
        shift(&self.total, before.total, after.total);
        shift(&self.used, before.used, after.used);
        shift(&self.free, before.free, after.free);
        shift(&self.nodes, before.nodes, after.nodes);
        shift(&self.pinned, before.pinned, after.pinned);
        shift(&self.promised, before.promised, after.promised);
        shift(&self.excluded, before.excluded, after.excluded);
        shift(&self.runs, before.runs, after.runs);
        shift(&self.groups, before.groups, after.groups);
        shift(&self.memory, before.memory, after.memory);
    }
}

/// The groups of one class.
#[derive(Debug, Default)]
pub(crate) struct Set {
    groups: BTreeMap<u64, Group>,
    /// `rooms[n]`: groups whose longest free range has `2^n` bytes or more, but not twice that.
    rooms: Vec<BTreeSet<u64>>,
    /// The group that allocation is in.
    current: u64,
    /// Groups of which the disk does not know everything.
    dirty: BTreeSet<u64>,
    /// Groups with pinned ranges.
    pinned: BTreeSet<u64>,
    /// Groups whose ranges pinned before the last freeze are not free yet.
    thawing: BTreeSet<u64>,
    /// Groups in which nothing is.
    vacant: BTreeSet<u64>,
    /// Groups that the commit under way has changed or writes.
    writing: BTreeSet<u64>,
    /// Changes so far.
    changes: u64,
    /// What has become free since the device was told.
    pub freed: Freed,
}

fn room_of(longest: u64) -> Option<usize> {
    longest.checked_ilog2().map(|power| power as usize)
}

impl Set {
    /// The groups, by address.
    pub fn groups(&self) -> impl Iterator<Item = &Group> {
        self.groups.values()
    }

    /// Those in which nothing is, by address.
    pub fn vacant(&self) -> impl Iterator<Item = &Group> {
        self.vacant.iter().filter_map(|start| self.groups.get(start))
    }

    /// The group that starts there.
    pub fn get(&self, start: u64) -> Option<&Group> {
        self.groups.get(&start)
    }

    /// Adds a group.
    pub fn add(&mut self, counters: &Counters, group: Group) {
        let start = group.range.start;
        counters.shift(Sums::default(), Sums::of(&group));
        self.place(start, None, room_of(group.longest()));
        self.note_vacant(start, group.is_vacant());
        self.groups.insert(start, group);
    }

    /// Takes a group out.
    pub fn remove(&mut self, counters: &Counters, start: u64) -> Option<Group> {
        let group = self.groups.remove(&start)?;
        counters.shift(Sums::of(&group), Sums::default());
        self.place(start, room_of(group.longest()), None);
        self.dirty.remove(&start);
        self.pinned.remove(&start);
        self.thawing.remove(&start);
        self.vacant.remove(&start);
        self.writing.remove(&start);
        Some(group)
    }

    fn note_vacant(&mut self, start: u64, vacant: bool) {
        if vacant {
            self.vacant.insert(start);
        } else {
            self.vacant.remove(&start);
        }
    }

    fn place(&mut self, start: u64, before: Option<usize>, after: Option<usize>) {
        if before == after {
            return;
        }
        if let Some(room) = before.and_then(|power| self.rooms.get_mut(power)) {
            room.remove(&start);
        }
        if let Some(power) = after {
            if self.rooms.len() <= power {
                self.rooms.resize_with(power + 1, BTreeSet::new);
            }
            self.rooms[power].insert(start);
        }
    }

    /// Changes a group, and everything that is known of it here.
    pub fn change<R>(
        &mut self,
        counters: &Counters,
        start: u64,
        change: impl FnOnce(&mut Group) -> R,
    ) -> Option<R> {
        let group = self.groups.get_mut(&start)?;
        let before = Sums::of(group);
        let room = room_of(group.longest());
        let was_vacant = group.is_vacant();
        self.changes += 1;
        group.touched = self.changes;
        let answer = change(group);
        let after = Sums::of(group);
        let vacant = group.is_vacant();
        let room_after = room_of(group.longest());
        counters.shift(before, after);
        self.place(start, room, room_after);
        if before.pinned < after.pinned {
            self.pinned.insert(start);
        }
        if before.used != after.used {
            self.dirty.insert(start);
        }
        if was_vacant != vacant {
            self.note_vacant(start, vacant);
        }
        Some(answer)
    }

    /// Changes of a group what is known of it nowhere else.
    pub fn with<R>(&mut self, start: u64, change: impl FnOnce(&mut Group) -> R) -> Option<R> {
        self.groups.get_mut(&start).map(change)
    }

    /// The disk has to hear about the group.
    pub fn mark(&mut self, start: u64) {
        self.dirty.insert(start);
    }

    /// The disk has to hear about all groups, everything.
    pub fn mark_all(&mut self) {
        self.groups.values_mut().for_each(Group::forget_written);
        self.dirty.extend(self.groups.keys());
    }

    /// The groups marked since the last call, rising.
    pub fn take_dirty(&mut self) -> BTreeSet<u64> {
        self.writing.extend(&self.dirty);
        std::mem::take(&mut self.dirty)
    }

    /// The commit that was under way is the last one.
    pub fn published(&mut self) {
        self.writing.clear();
    }

    /// Whether the group's free space is in memory, or there is no such group.
    pub fn present(&self, start: u64) -> Result<(), Away> {
        match self.groups.get(&start).filter(|group| group.free().is_away()) {
            Some(away) => Err(Away(Box::new(away.clone()))),
            None => Ok(()),
        }
    }

    /// The free space of groups leaves memory, until it was so many bytes; that of the groups first that were changed longest ago.
    pub fn let_leave(&mut self, counters: &Counters, bytes: u64, but: Option<u64>) {
        let writes = |start: &u64| self.dirty.contains(start) || self.writing.contains(start);
        let cold = self.groups.values().filter(|group| group.can_leave());
        let cold = cold.filter(|group| !writes(&group.range.start));
        let mut cold: Vec<(u64, u64, u64)> = cold
            .filter(|group| Some(group.range.start) != but)
            .map(|group| (group.touched, group.range.start, group.free().memory()))
            .filter(|(_, _, memory)| *memory > 0)
            .collect();
        cold.sort_unstable();
        let mut left = 0;
        for (_, start, memory) in cold {
            if left >= bytes {
                break;
            }
            self.change(counters, start, Group::leave);
            left += memory;
        }
    }

    /// What has left is there again, unless the group has changed since.
    pub fn come_back(&mut self, counters: &Counters, away: &Group, read: Group) {
        let start = away.range.start;
        if self.get(start).is_some_and(|group| group.is_still(away)) {
            self.change(counters, start, |group| group.come_back(read));
        }
    }

    /// What has left cannot be had: the group counts as full. Whether that is new.
    pub fn put_out_of_use(&mut self, counters: &Counters, away: &Group) -> bool {
        let start = away.range.start;
        let is_new = |group: &Group| group.is_still(away) && !group.free().is_lost();
        if !self.get(start).is_some_and(is_new) {
            return false;
        }
        self.change(counters, start, Group::lose);
        true
    }

    /// At the freeze: what was pinned is set aside, to become free one group after the other.
    pub fn freeze(&mut self, counters: &Counters) {
        for start in std::mem::take(&mut self.pinned) {
            self.note_freed(start);
            self.change(counters, start, Group::freeze);
            self.thawing.insert(start);
        }
    }

    /// Frees what one group had pinned before the last freeze. Whether there was such a group.
    pub fn thaw_one(&mut self, counters: &Counters) -> bool {
        let Some(start) = self.thawing.pop_first() else { return false };
        self.note_freed(start);
        self.change(counters, start, Group::thaw).is_some()
    }

    /// What a group thaws is free from now on.
    fn note_freed(&mut self, start: u64) {
        if let Some(group) = self.groups.get(&start) {
            self.freed.extend(group.thawing());
        }
    }

    /// The group in which `fits` holds: the current one, else the one with the lowest address among
    /// those whose longest free range is at least twice `want`'s power of two, or among a few that
    /// are just long enough.
    fn fitting(&self, want: u64, fits: impl Fn(&Group) -> bool) -> Option<u64> {
        let fits = |start: &u64| self.groups.get(start).is_some_and(&fits);
        if fits(&self.current) {
            return Some(self.current);
        }
        let power = room_of(want).unwrap_or(0);
        let longer = self.rooms.iter().skip(power + 1).filter_map(|room| room.first());
        let longer = longer.filter(|start| fits(start)).min().copied();
        longer.or_else(|| self.rooms.get(power)?.iter().take(TRIES).copied().find(fits))
    }

    /// One run of `want` bytes for data.
    pub fn take_data(&mut self, counters: &Counters, want: u64) -> Take<Range> {
        let Some(start) = self.fitting(want, |group| group.longest() >= want) else {
            return Ok(None);
        };
        self.take(counters, start, |group| group.take_data(want))
    }

    /// Takes from a group; from then on, allocation is in it.
    fn take<R>(
        &mut self,
        counters: &Counters,
        start: u64,
        take: impl FnOnce(&mut Group) -> Option<R>,
    ) -> Take<R> {
        self.present(start)?;
        self.current = start;
        Ok(self.change(counters, start, take).flatten())
    }

    /// The longest run there is, or nearly, cut at `want`; at least `min` bytes.
    pub fn take_longest(&mut self, counters: &Counters, min: u64, want: u64) -> Take<Range> {
        let room = self.rooms.iter().rev().find(|room| !room.is_empty());
        let longest = |start: &u64| self.groups.get(start).map_or(0, |g| g.longest());
        let start = room.and_then(|room| room.iter().take(TRIES).copied().max_by_key(longest));
        let Some(start) = start else { return Ok(None) };
        self.take(counters, start, |group| group.take_longest(min, want))
    }

    /// The address of a tree block of `node` bytes, near the last one.
    pub fn take_block(&mut self, counters: &Counters, node: u64) -> Take<u64> {
        let fits = |group: &Group| group.nodes() > 0;
        let start = self.fitting(node, fits).or_else(|| {
            let any = self.groups.iter().find(|(_, group)| fits(group));
            any.map(|(&start, _)| start)
        });
        let Some(start) = start else { return Ok(None) };
        self.take(counters, start, Group::take_block)
    }
}
