//! One block group: which of its bytes are taken, seen in two ways.
//!
//! Operations of the next transaction allocate data while a commit still describes the state at its
//! own end. A group therefore keeps disjoint sets of ranges that the commit counts as free:
//!
//! - *free*: what allocation takes from,
//! - *pinned*: let go, but the last durable commit or a reader of it may still reach it; becomes free
//!   at the next freeze (or soon after: at the freeze, when nobody can work, it is only set aside as
//!   *thawing*),
//! - *promised*: data allocated, but no commit has referred to it yet.
//!
//! Everything else is *used*, or *excluded*: the copies of the superblock lie on it. So
//! `used = length - excluded - free - pinned - thawing - promised`, at every moment.

use super::extents::{Extents, FreeExtents, Range};

/// How many tree blocks a run should have room for before the search goes on to a longer one.
const TOGETHER: u64 = 16;

/// One block group.
#[derive(Clone, Debug)]
pub(crate) struct Group {
    /// Its logical addresses.
    pub range: Range,
    /// Type and profile.
    pub flags: u64,
    /// Bytes that the committing transaction counts as allocated.
    pub used: u64,
    /// Parts on which superblocks lie, rising and disjoint.
    excluded: Vec<Range>,
    free: FreeExtents,
    pinned: Extents,
    thawing: Extents,
    promised: Extents,
    /// Where the last allocation ended.
    cursor: u64,
    node: u64,
}

impl Group {
    /// A group without any free space, all of it used; `node` is the size of tree blocks in bytes.
    pub fn full(range: Range, flags: u64, excluded: Vec<Range>, node: u64) -> Group {
        let lost: u64 = excluded.iter().map(|range| range.len).sum();
        Group {
            range,
            flags,
            used: range.len.saturating_sub(lost),
            excluded,
            free: FreeExtents::new(node),
            pinned: Extents::default(),
            thawing: Extents::default(),
            promised: Extents::default(),
            cursor: range.start,
            node,
        }
    }

    /// An empty group.
    pub fn empty(range: Range, flags: u64, excluded: Vec<Range>, node: u64) -> Group {
        let mut group = Group::full(range, flags, excluded, node);
        for part in group.without_excluded(range) {
            group.add_free(part);
        }
        group
    }

    /// The parts of `range` on which no superblock lies.
    pub fn without_excluded(&self, range: Range) -> Vec<Range> {
        let mut parts = Vec::new();
        let mut at = range.start;
        for hole in &self.excluded {
            if hole.end() <= at || hole.start >= range.end() {
                continue;
            }
            if hole.start > at {
                parts.push(Range::new(at, hole.start - at));
            }
            at = hole.end();
        }
        if at < range.end() {
            parts.push(Range::new(at, range.end() - at));
        }
        parts
    }

    /// Bytes that superblocks take.
    pub fn excluded_bytes(&self) -> u64 {
        self.excluded.iter().map(|range| range.len).sum()
    }

    /// Whether the range lies inside and on no superblock.
    fn allows(&self, range: Range) -> bool {
        let clear = |hole: &Range| hole.end() <= range.start || range.end() <= hole.start;
        self.range.contains(range) && self.excluded.iter().all(clear)
    }

    /// While loading: a used range is free in truth. Whether that was possible.
    pub fn add_free(&mut self, range: Range) -> bool {
        let done = self.allows(range) && self.used >= range.len && self.free.insert(range);
        if done {
            self.used -= range.len;
        }
        done
    }

    /// While loading: as if all of it were used.
    pub fn forget_free(&mut self) {
        *self = Group::full(self.range, self.flags, std::mem::take(&mut self.excluded), self.node);
    }

    /// What allocation takes from.
    pub fn free(&self) -> &FreeExtents {
        &self.free
    }

    /// Bytes let go that become free at the next freeze, or soon.
    pub fn pinned_bytes(&self) -> u64 {
        self.pinned.bytes() + self.thawing.bytes()
    }

    /// Bytes of data allocated that no commit refers to yet.
    pub fn promised_bytes(&self) -> u64 {
        self.promised.bytes()
    }

    /// Whether nothing is in it, for anyone.
    pub fn is_vacant(&self) -> bool {
        self.used == 0 && self.pinned_bytes() == 0 && self.promised.is_empty()
    }

    /// A run of `want` bytes for data.
    pub fn take_data(&mut self, want: u64) -> Option<Range> {
        let run = self.free.run(self.cursor, want)?;
        self.promise(run)
    }

    /// The longest run for data, cut at `want`; at least `min` bytes.
    pub fn take_longest(&mut self, min: u64, want: u64) -> Option<Range> {
        let longest = self.free.longest_range().filter(|range| range.len >= min)?;
        self.promise(Range::new(longest.start, longest.len.min(want)))
    }

    fn promise(&mut self, run: Range) -> Option<Range> {
        let done = self.free.remove(run) && self.promised.insert(run).is_some();
        self.cursor = run.end();
        done.then_some(run)
    }

    /// The address of a new tree block, used at once.
    pub fn take_block(&mut self) -> Option<u64> {
        let start = self.free.block(self.cursor, TOGETHER)?;
        if !self.free.remove(Range::new(start, self.node)) {
            return None;
        }
        self.used += self.node;
        self.cursor = start + self.node;
        Some(start)
    }

    /// The commit refers to promised data: it is used now. Whether all of it was promised.
    pub fn account(&mut self, range: Range) -> bool {
        let done = self.promised.remove(range).is_some();
        if done {
            self.used += range.len;
        }
        done
    }

    /// The commit lets a used range go. Whether it was used.
    pub fn pin(&mut self, range: Range) -> bool {
        let done = self.is_used(range) && self.pinned.insert(range).is_some();
        if done {
            self.used -= range.len;
        }
        done
    }

    /// Promised data that nobody has seen: allocatable at once. Whether it was promised.
    pub fn give_back(&mut self, range: Range) -> bool {
        self.promised.remove(range).is_some() && self.free.insert(range)
    }

    /// Promised data that a reader may have in hand: allocatable after the next freeze.
    pub fn release(&mut self, range: Range) -> bool {
        self.promised.remove(range).is_some() && self.pinned.insert(range).is_some()
    }

    /// A block of the running commit that was never written: allocatable at once.
    pub fn give_back_block(&mut self, range: Range) -> bool {
        self.is_used(range) && self.add_free(range)
    }

    /// At the freeze: what was pinned may become free.
    pub fn freeze(&mut self) {
        self.thaw();
        self.thawing = std::mem::take(&mut self.pinned);
    }

    /// What was pinned at the last freeze is free now.
    pub fn thaw(&mut self) {
        for range in std::mem::take(&mut self.thawing).iter() {
            self.free.insert(range);
        }
    }

    fn is_used(&self, range: Range) -> bool {
        let clear = |set: &Extents| {
            let inside = set.iter_from(range.start).next().is_some_and(|r| r.start < range.end());
            set.find(range.start).is_none() && !inside
        };
        range.len > 0
            && range.len <= self.used
            && self.allows(range)
            && clear(self.free.set())
            && clear(&self.pinned)
            && clear(&self.thawing)
            && clear(&self.promised)
    }

    /// What the commit writes down as free: all sets, and what is excluded, joined, rising.
    ///
    /// The kernel's free space tree is the complement of the extents alone: the stripes under
    /// superblocks stand in it as free, and are left out by whoever reads it.
    pub fn free_on_disk(&self) -> Vec<Range> {
        let sets = [self.free.set(), &self.pinned, &self.thawing, &self.promised];
        if self.excluded.is_empty() && sets[1..].iter().all(|set| set.is_empty()) {
            return self.free.set().iter().collect();
        }
        let mut all: Vec<Range> = sets.iter().flat_map(|set| set.iter()).collect();
        all.extend(&self.excluded);
        all.sort_unstable();
        join(all)
    }
}

/// Rising ranges, with those that touch made one.
pub(crate) fn join(ranges: impl IntoIterator<Item = Range>) -> Vec<Range> {
    let mut runs: Vec<Range> = Vec::new();
    for range in ranges {
        match runs.last_mut() {
            Some(last) if last.end() == range.start => last.len += range.len,
            _ => runs.push(range),
        }
    }
    runs
}
