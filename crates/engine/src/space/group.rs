//! One block group: which of its bytes are taken, seen in two ways.
//!
//! Operations of the next transaction allocate data while a commit still describes the state at its
//! own end. A group therefore keeps disjoint sets of ranges that the commit counts as free:
//!
//! - *free*: what allocation takes from,
//! - *pinned*: let go, but the last durable commit or a reader of it may still reach it; becomes free
//!   at the next freeze (or soon after: at the freeze, when nobody can work, it is only set aside as
//!   *thawing*),
//! - *promised*: data allocated, but no commit has referred to it yet,
//! - *held*: free, but kept from allocation while the device is told that it is ([`super::trim`]).
//!
//! Everything else is *used*, or *excluded*: the copies of the superblock lie on it. So
//! `used = length - excluded - free - pinned - thawing - promised - held`, at every moment.
//!
//! What is written down as free is all that is not used. A group remembers where that has changed since it was written
//! ([`Group::take_unwritten`]), so that a commit looks at these places only, however much free space there is. The places are
//! forgotten when they are handed to the merge of the free space tree. A commit that comes to nothing after that is the last
//! one, and what the disk says is loaded anew, so no difference can be lost between the two.

use buttress_ondisk::SECTOR;
use buttress_ondisk::item::chunk_type;

use super::Class;
use super::extents::{Extents, FreeExtents, Range};

/// How many tree blocks a run should have room for before the search goes on to a longer one.
const TOGETHER: u64 = 16;
/// Places of change that are remembered; with more of them the group is written as a whole.
const PLACES_MAX: usize = 1 << 16;

/// Where the free space tree does not say of a group what is so.
#[derive(Clone, Debug)]
enum Unwritten {
    /// Perhaps everywhere.
    All,
    /// In these places, in no order; they may overlap.
    Places(Vec<Range>),
}

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
    held: Extents,
    /// Where the last allocation ended.
    cursor: u64,
    node: u64,
    unwritten: Unwritten,
    /// Runs of what is not used, unless everything is unwritten.
    runs: u64,
    /// When it was changed last: the number of that change in its class.
    pub touched: u64,
    /// How often its free space has left memory.
    departures: u64,
    /// What is in it is to go elsewhere, and nothing comes to it.
    closed: bool,
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
            free: FreeExtents::new(range, node),
            pinned: Extents::default(),
            thawing: Extents::default(),
            promised: Extents::default(),
            held: Extents::default(),
            cursor: range.start,
            node,
            unwritten: Unwritten::All,
            runs: 0,
            touched: 0,
            departures: 0,
            closed: false,
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
        range.without(self.excluded.iter().copied())
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

    /// While loading: of the group, of which nothing is free so far, these parts are, which are rising and do not touch. Whether that
    /// was possible.
    pub fn add_all_free(&mut self, parts: &[Range]) -> bool {
        let bytes = parts.iter().map(|part| part.len).sum::<u64>();
        if self.used < bytes || !parts.iter().all(|&part| self.allows(part)) {
            return false;
        }
        let Some(free) = FreeExtents::of(self.range, self.node, parts) else { return false };
        self.free = free;
        self.used -= bytes;
        true
    }

    /// While loading: as if all of it were used.
    pub fn forget_free(&mut self) {
        *self = self.full_again();
    }

    /// The same group, without any free space.
    pub fn full_again(&self) -> Group {
        Group::full(self.range, self.flags, self.excluded.clone(), self.node)
    }

    /// What allocation takes from.
    pub fn free(&self) -> &FreeExtents {
        &self.free
    }

    /// Nothing is allocated in it from now on, or (`closed` is not set) it is again.
    pub fn close(&mut self, closed: bool) {
        self.closed = closed;
    }

    /// Whether nothing is allocated in it, whatever is free.
    pub fn is_closed(&self) -> bool {
        self.closed
    }

    /// The longest run of bytes that can be allocated.
    pub fn longest(&self) -> u64 {
        if self.closed { 0 } else { self.free.longest() }
    }

    /// Tree blocks that can be allocated.
    pub fn nodes(&self) -> u64 {
        if self.closed { 0 } else { self.free.nodes() }
    }

    /// Bytes let go that become free at the next freeze, or soon.
    pub fn pinned_bytes(&self) -> u64 {
        self.pinned.bytes() + self.thawing.bytes()
    }

    /// Bytes that are held: who waits gets them.
    pub fn held_bytes(&self) -> u64 {
        self.held.bytes()
    }

    /// In so many runs.
    pub fn held_runs(&self) -> u64 {
        self.held.runs()
    }

    /// Tree blocks that fit there.
    pub fn held_nodes(&self) -> u64 {
        self.held.iter().map(|run| nodes_in(run, self.node).len / self.node).sum()
    }

    /// Bytes of data allocated that no commit refers to yet.
    pub fn promised_bytes(&self) -> u64 {
        self.promised.bytes()
    }

    /// Whether nothing is in it, for anyone.
    pub fn is_vacant(&self) -> bool {
        self.used == 0
            && self.pinned_bytes() == 0
            && self.held.is_empty()
            && self.promised.is_empty()
            && !self.free.is_lost()
    }

    /// Whether the free space tree says what is so of it, as far as it was told: then where it has free space may leave memory.
    pub fn can_leave(&self) -> bool {
        let written = matches!(&self.unwritten, Unwritten::Places(places) if places.is_empty());
        !self.closed
            && written
            && self.sets().iter().all(|set| set.is_empty())
            && self.free.can_leave()
    }

    /// Where it has free space leaves memory.
    pub fn leave(&mut self) {
        self.free.leave();
        self.departures += 1;
    }

    /// Whether this is what a group has left with.
    pub fn is_what_left(&self, away: &Group) -> bool {
        self.used == away.used && self.free.are_what_left(&away.free)
    }

    /// Whether this is still as it was when it was `away`.
    pub fn is_still(&self, away: &Group) -> bool {
        self.free.is_away() && self.departures == away.departures
    }

    /// What has left is there again.
    pub fn come_back(&mut self, read: Group) {
        read.free.come_back_as(&mut self.free);
    }

    /// What has left cannot be had.
    pub fn lose(&mut self) {
        self.free.lose();
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

    /// Takes exactly this range, which a log says is in use; promised until a commit refers to it, or it is given back. Whether all of
    /// it was free.
    pub fn claim(&mut self, range: Range) -> bool {
        self.allows(range) && self.free.remove(range) && self.promised.insert(range).is_some()
    }

    /// The address of a new tree block, used at once.
    pub fn take_block(&mut self) -> Option<u64> {
        let start = self.free.block(self.cursor, TOGETHER)?;
        self.take_block_at(start).then_some(start)
    }

    /// The same at this address; whether it was free.
    pub fn take_block_at(&mut self, start: u64) -> bool {
        if !self.free.remove(Range::new(start, self.node)) {
            return false;
        }
        self.used += self.node;
        self.cursor = start + self.node;
        self.note_used(Range::new(start, self.node));
        true
    }

    /// The commit refers to promised data: it is used now. Whether all of it was promised.
    pub fn account(&mut self, range: Range) -> bool {
        let done = self.promised.remove(range).is_some();
        if done {
            self.used += range.len;
            self.note_used(range);
        }
        done
    }

    /// The commit lets a used range go. Whether it was used.
    pub fn pin(&mut self, range: Range) -> bool {
        let done = self.is_used(range) && self.pinned.insert(range).is_some();
        if done {
            self.used -= range.len;
            self.note_unused(range);
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
        let done = self.is_used(range) && self.add_free(range);
        if done {
            self.note_unused(range);
        }
        done
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

    /// What becomes free by the next [`Group::thaw`].
    pub fn thawing(&self) -> impl Iterator<Item = Range> + '_ {
        self.thawing.iter()
    }

    /// The part of a free range that can be held, so that no fewer tree blocks fit into it and what is left of it.
    pub fn holdable(&self, range: Range) -> Range {
        match Class::of(self.flags) {
            Class::Data if !self.is_mixed() => nodes_in(range, SECTOR),
            _ => nodes_in(range, self.node),
        }
    }

    fn is_mixed(&self) -> bool {
        self.flags & chunk_type::METADATA != 0
    }

    /// Keeps a free range from allocation, until [`Group::let_go`]. Whether all of it was free.
    pub fn hold(&mut self, range: Range) -> bool {
        self.free.remove(range) && self.held.insert(range).is_some()
    }

    /// A range that was held is free again.
    pub fn let_go(&mut self, range: Range) -> bool {
        self.held.remove(range).is_some() && self.free.insert(range)
    }

    fn is_used(&self, range: Range) -> bool {
        let clear = |set: &Extents| {
            let inside = set.iter_from(range.start).next().is_some_and(|r| r.start < range.end());
            set.find(range.start).is_none() && !inside
        };
        range.len > 0
            && range.len <= self.used
            && self.allows(range)
            && self.free.find(range.start).is_none()
            && self.free.iter_from(range.start).next().is_none_or(|r| r.start >= range.end())
            && clear(&self.pinned)
            && clear(&self.thawing)
            && clear(&self.promised)
            && clear(&self.held)
    }

    /// Besides what is free.
    fn sets(&self) -> [&Extents; 4] {
        [&self.pinned, &self.thawing, &self.promised, &self.held]
    }

    /// What the commit writes down as free in `window`: all sets, and what is excluded, joined, rising.
    ///
    /// The kernel's free space tree is the complement of the extents alone: the stripes under
    /// superblocks stand in it as free, and are left out by whoever reads it.
    pub fn free_on_disk(&self, window: Range) -> Vec<Range> {
        let mut all: Vec<Range> = self.free.within(window).collect();
        let free = all.len();
        all.extend(self.sets().iter().flat_map(|set| set.within(window)));
        let touch = |hole: &&Range| hole.start < window.end() && hole.end() > window.start;
        all.extend(self.excluded.iter().filter(touch).map(|hole| hole.clipped(window)));
        if all.len() == free {
            return all;
        }
        all.sort_unstable();
        join(all)
    }

    /// What holds the address and is not used: of one set, or excluded.
    fn piece(&self, at: u64) -> Option<Range> {
        let found = self.free.find(at);
        let found = found.or_else(|| self.sets().iter().find_map(|set| set.find(at)));
        let holds = |hole: &&Range| hole.start <= at && at < hole.end();
        found.or_else(|| self.excluded.iter().find(holds).copied())
    }

    /// Where the run starts that ends at `at`, or `at`.
    fn run_start(&self, mut at: u64) -> u64 {
        while at > self.range.start
            && let Some(piece) = self.piece(at - 1)
        {
            at = piece.start;
        }
        at
    }

    /// Where the run ends that starts at `at`, or `at`.
    fn run_end(&self, mut at: u64) -> u64 {
        while at < self.range.end()
            && let Some(piece) = self.piece(at)
        {
            at = piece.end();
        }
        at
    }

    /// How many runs begin or end at the range's edges, outside of it.
    fn beside(&self, range: Range) -> u64 {
        let before = range.start > self.range.start && self.piece(range.start - 1).is_some();
        let behind = range.end() < self.range.end() && self.piece(range.end()).is_some();
        u64::from(before) + u64::from(behind)
    }

    /// All of the range was unused and is used now.
    fn note_used(&mut self, range: Range) {
        if self.note(range) {
            self.runs = (self.runs + self.beside(range)).saturating_sub(1);
        }
    }

    /// All of the range was used and is not now.
    fn note_unused(&mut self, range: Range) {
        if self.note(range) {
            self.runs = (self.runs + 1).saturating_sub(self.beside(range));
        }
    }

    /// Remembers a place of change; whether single ones are remembered.
    fn note(&mut self, range: Range) -> bool {
        let Unwritten::Places(places) = &mut self.unwritten else { return false };
        let full = places.len() == PLACES_MAX;
        match places.last_mut() {
            Some(last) if last.end() == range.start => last.len += range.len,
            Some(last) if range.end() == last.start => {
                *last = Range::new(range.start, range.len + last.len);
            }
            _ if full => {
                self.unwritten = Unwritten::All;
                return false;
            }
            _ => places.push(range),
        }
        true
    }

    /// The free space tree says what is so.
    pub fn note_written(&mut self) {
        self.runs = self.free_on_disk(self.range).len() as u64;
        self.unwritten = Unwritten::Places(Vec::new());
    }

    /// The free space tree may say anything of it.
    pub fn forget_written(&mut self) {
        self.unwritten = Unwritten::All;
    }

    /// The places where the free space tree has to hear of changes, rising, none touching another; `None`: everywhere. Who
    /// asks writes them.
    pub fn take_unwritten(&mut self) -> Option<Vec<Range>> {
        let unwritten = std::mem::replace(&mut self.unwritten, Unwritten::Places(Vec::new()));
        let Unwritten::Places(mut places) = unwritten else {
            self.note_written();
            return None;
        };
        places.sort_unstable();
        let mut joined: Vec<Range> = Vec::with_capacity(places.len());
        for place in places {
            match joined.last_mut() {
                Some(last) if last.end() >= place.start => {
                    last.len = last.end().max(place.end()) - last.start;
                }
                _ => joined.push(place),
            }
        }
        Some(joined)
    }

    /// Runs of what is written down as free, once [`Group::take_unwritten`] was asked.
    pub fn runs(&self) -> u64 {
        self.runs
    }

    /// The places widened to the edges of the runs that they touch, rising: each run that is new and each that is gone lies in
    /// one of them as a whole. For where a place begins or ends inside a run, old or new, that run goes on beyond it as it
    /// was, up to its edge or to the next place, with which this one is then one.
    pub fn widened(&self, places: &[Range]) -> Vec<Range> {
        let mut all: Vec<Range> = Vec::with_capacity(places.len());
        for place in places {
            match all.last_mut() {
                Some(last) if last.end() >= place.start => {
                    let end = self.run_end(last.end().max(place.end()));
                    last.len = end - last.start;
                }
                _ => {
                    let start = self.run_start(place.start);
                    all.push(Range::new(start, self.run_end(place.end()) - start));
                }
            }
        }
        all
    }
}

/// The part of a range that is whole tree blocks of `node` bytes.
fn nodes_in(range: Range, node: u64) -> Range {
    let start = range.start.next_multiple_of(node);
    Range::new(start, (range.end() / node * node).saturating_sub(start))
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
