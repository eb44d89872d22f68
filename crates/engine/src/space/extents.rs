//! Sets of disjoint byte ranges, kept joined: two ranges that touch are one.
//!
//! [`Extents`] is the plain set. [`FreeExtents`] also knows its ranges by length and how many tree
//! blocks fit into them, because that is what allocation asks for. Where there are many, they are kept as [`Bits`], which take
//! less memory then.

use std::collections::{BTreeMap, BTreeSet};

use super::bits::Bits;

/// A run of logical addresses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Range {
    /// First logical address, in bytes.
    pub start: u64,
    /// Bytes.
    pub len: u64,
}

impl Range {
    /// A range from its parts.
    pub const fn new(start: u64, len: u64) -> Range {
        Range { start, len }
    }

    /// The first address after it.
    pub const fn end(&self) -> u64 {
        self.start.saturating_add(self.len)
    }

    /// What of it lies in `window`, which it must touch.
    pub(crate) fn clipped(&self, window: Range) -> Range {
        let start = self.start.max(window.start);
        Range::new(start, self.end().min(window.end()).saturating_sub(start))
    }

    /// The parts of it that are outside of `holes`, which rise.
    pub(crate) fn without(&self, holes: impl IntoIterator<Item = Range>) -> Vec<Range> {
        let (mut parts, mut at) = (Vec::new(), self.start);
        for hole in holes {
            if hole.end() <= at || hole.start >= self.end() {
                continue;
            }
            if hole.start > at {
                parts.push(Range::new(at, hole.start - at));
            }
            at = hole.end();
        }
        if at < self.end() {
            parts.push(Range::new(at, self.end() - at));
        }
        parts
    }

    /// Whether `other` lies inside entirely.
    pub const fn contains(&self, other: Range) -> bool {
        self.start <= other.start && other.end() <= self.end()
    }
}

/// How an operation changed a set: at most two ranges vanished and two appeared.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Delta {
    pub(super) gone: [Option<Range>; 2],
    pub(super) new: [Option<Range>; 2],
}

/// Disjoint ranges, none of which touch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Extents {
    map: BTreeMap<u64, u64>,
    bytes: u64,
}

impl Extents {
    /// Bytes of all ranges.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// How many there are.
    pub fn runs(&self) -> u64 {
        self.map.len() as u64
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.map.is_empty()
    }

    /// All ranges, rising.
    pub fn iter(&self) -> impl Iterator<Item = Range> + '_ {
        self.map.iter().map(|(&start, &len)| Range { start, len })
    }

    /// The ranges that start at or after `from`, rising.
    pub fn iter_from(&self, from: u64) -> impl Iterator<Item = Range> + '_ {
        self.map.range(from..).map(|(&start, &len)| Range { start, len })
    }

    /// The parts of ranges that lie in `window`, rising.
    pub fn within(&self, window: Range) -> impl Iterator<Item = Range> + '_ {
        let before = self.map.range(..window.start).next_back();
        let before = before.map(|(&start, &len)| Range { start, len });
        let all = before.filter(|range| range.end() > window.start).into_iter();
        all.chain(self.iter_from(window.start))
            .take_while(move |range| range.start < window.end())
            .map(move |range| range.clipped(window))
    }

    /// The range that holds the address.
    pub fn find(&self, at: u64) -> Option<Range> {
        let (&start, &len) = self.map.range(..=at).next_back()?;
        (at - start < len).then_some(Range { start, len })
    }

    /// Adds a range; `None`, and nothing changes, when some of it is there already or it is empty.
    pub fn insert(&mut self, range: Range) -> Option<Delta> {
        let Range { start, len } = range;
        let end = start.checked_add(len)?;
        if len == 0 {
            return None;
        }
        let before = self.map.range(..start).next_back().map(|(&s, &l)| Range::new(s, l));
        let behind = self.map.range(start..).next().map(|(&s, &l)| Range::new(s, l));
        if before.is_some_and(|b| b.end() > start) || behind.is_some_and(|b| b.start < end) {
            return None;
        }
        let before = before.filter(|b| b.end() == start);
        let behind = behind.filter(|b| b.start == end);
        let mut whole = range;
        if let Some(b) = behind {
            self.map.remove(&b.start);
            whole.len += b.len;
        }
        if let Some(b) = before {
            whole = Range::new(b.start, whole.len + b.len);
        }
        self.map.insert(whole.start, whole.len);
        self.bytes += len;
        Some(Delta { gone: [before, behind], new: [Some(whole), None] })
    }

    /// Takes a range out; `None`, and nothing changes, when not all of it is there or it is empty.
    pub fn remove(&mut self, range: Range) -> Option<Delta> {
        let whole = self.find(range.start).filter(|whole| whole.contains(range))?;
        if range.len == 0 {
            return None;
        }
        let head = Range::new(whole.start, range.start - whole.start);
        let tail = Range::new(range.end(), whole.end() - range.end());
        let kept = |part: Range| (part.len > 0).then_some(part);
        match kept(head) {
            Some(head) => self.map.insert(head.start, head.len),
            None => self.map.remove(&whole.start),
        };
        if let Some(tail) = kept(tail) {
            self.map.insert(tail.start, tail.len);
        }
        self.bytes -= range.len;
        Some(Delta { gone: [Some(whole), None], new: [kept(head), kept(tail)] })
    }
}

/// How many extents behind the cursor are looked at before the longest one is taken.
const SCAN: usize = 32;

/// Bytes of memory that a range takes, in both orders.
const RANGE_BYTES: u64 = 64;

/// How free ranges are kept.
#[derive(Clone, Debug)]
enum Form {
    /// Few: in the order of addresses, and of lengths.
    Ranges { set: Extents, by_len: BTreeSet<(u64, u64)> },
    /// Many.
    Bits(Bits),
    /// Not in memory: only what they come to. They were bits, or not; a form that is chosen anew could be the other one.
    Away { sums: Kept, as_bits: bool },
}

/// What is kept of ranges that are not in memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Kept {
    bytes: u64,
    runs: u64,
    nodes: u64,
    longest: u64,
    /// They cannot be had.
    lost: bool,
}

/// Free ranges of some addresses, also by length.
#[derive(Clone, Debug)]
pub(crate) struct FreeExtents {
    form: Form,
    /// The addresses.
    covers: Range,
    /// Bytes of a tree block.
    node: u64,
    /// Tree blocks that fit, each aligned to its size.
    nodes: u64,
    /// Some range is not made of whole sectors, which only a damaged filesystem has: no bits.
    is_odd: bool,
}

impl FreeExtents {
    /// None in `covers` is free; `node` is the size of tree blocks in bytes.
    pub fn new(covers: Range, node: u64) -> FreeExtents {
        let form = Form::Ranges { set: Extents::default(), by_len: BTreeSet::new() };
        FreeExtents { form, covers, node: node.max(1), nodes: 0, is_odd: false }
    }

    /// These are free, which are rising and do not touch; `None` where one of them is empty. Much faster than one after the other, when
    /// there are many.
    pub fn of(covers: Range, node: u64, ranges: &[Range]) -> Option<FreeExtents> {
        let mut free = FreeExtents::new(covers, node);
        if ranges.iter().any(|range| range.len == 0) {
            return None;
        }
        let many = ranges.len() as u64 * RANGE_BYTES > Bits::memory(covers.len);
        if many && let Some(bits) = Bits::of(covers, ranges.iter().copied()) {
            free.nodes = ranges.iter().map(|&range| free.fit(range)).sum();
            free.form = Form::Bits(bits);
            return Some(free);
        }
        ranges.iter().all(|&range| free.insert(range)).then_some(free)
    }

    /// Bytes that are free.
    pub fn bytes(&self) -> u64 {
        match &self.form {
            Form::Ranges { set, .. } => set.bytes(),
            Form::Bits(bits) => bits.bytes(),
            Form::Away { sums, .. } if sums.lost => 0,
            Form::Away { sums, .. } => sums.bytes,
        }
    }

    /// How many ranges there are.
    pub fn runs(&self) -> u64 {
        match &self.form {
            Form::Ranges { set, .. } => set.runs(),
            Form::Bits(bits) => bits.runs(),
            Form::Away { sums, .. } if sums.lost => 0,
            Form::Away { sums, .. } => sums.runs,
        }
    }

    /// Bytes of memory that they take, about.
    pub fn memory(&self) -> u64 {
        match &self.form {
            Form::Ranges { set, .. } => set.runs() * RANGE_BYTES,
            Form::Bits(_) => Bits::memory(self.covers.len),
            Form::Away { .. } => 0,
        }
    }

    fn kept(&self) -> Kept {
        let (bytes, runs) = (self.bytes(), self.runs());
        Kept { bytes, runs, nodes: self.nodes(), longest: self.longest(), lost: false }
    }

    /// Whether where they are is not in memory.
    pub fn is_away(&self) -> bool {
        matches!(self.form, Form::Away { .. })
    }

    /// Whether that cannot be had.
    pub fn is_lost(&self) -> bool {
        matches!(self.form, Form::Away { sums, .. } if sums.lost)
    }

    /// Whether a free space tree can say it all.
    pub fn can_leave(&self) -> bool {
        !self.is_away() && !self.is_odd
    }

    /// Forgets where they are.
    pub fn leave(&mut self) {
        let as_bits = matches!(self.form, Form::Bits(_));
        self.form = Form::Away { sums: self.kept(), as_bits };
    }

    /// Where they are cannot be had: none is free for anybody.
    pub fn lose(&mut self) {
        if let Form::Away { sums, .. } = &mut self.form {
            sums.lost = true;
        }
    }

    /// Whether these are what has left.
    pub fn are_what_left(&self, away: &FreeExtents) -> bool {
        matches!(away.form, Form::Away { sums, .. } if Kept { lost: false, ..sums } == self.kept())
    }

    /// Takes the place of what has left, in the form that it had.
    pub fn come_back_as(mut self, away: &mut FreeExtents) {
        let Form::Away { as_bits, .. } = away.form else { return };
        match &self.form {
            Form::Ranges { set, .. } if as_bits => {
                self.form = Bits::of(self.covers, set.iter()).map_or(self.form, Form::Bits);
            }
            Form::Bits(_) if !as_bits => self.use_ranges(),
            _ => {}
        }
        *away = self;
    }

    /// The range that holds the address.
    pub fn find(&self, at: u64) -> Option<Range> {
        match &self.form {
            Form::Ranges { set, .. } => set.find(at),
            Form::Bits(bits) => bits.find(at),
            Form::Away { .. } => None,
        }
    }

    /// The ranges that start at or after `from`, rising.
    pub fn iter_from(&self, from: u64) -> impl Iterator<Item = Range> + '_ {
        let (ranges, bits) = match &self.form {
            Form::Ranges { set, .. } => (Some(set.iter_from(from)), None),
            Form::Bits(bits) => (None, Some(bits.iter_from(from))),
            Form::Away { .. } => (None, None),
        };
        ranges.into_iter().flatten().chain(bits.into_iter().flatten())
    }

    /// The parts of ranges that lie in `window`, rising.
    pub fn within(&self, window: Range) -> impl Iterator<Item = Range> + '_ {
        let before = self.find(window.start).filter(|range| range.start < window.start);
        before
            .into_iter()
            .chain(self.iter_from(window.start))
            .take_while(move |range| range.start < window.end())
            .map(move |range| range.clipped(window))
    }

    /// Tree blocks that fit.
    pub fn nodes(&self) -> u64 {
        match &self.form {
            Form::Away { sums, .. } if sums.lost => 0,
            Form::Away { sums, .. } => sums.nodes,
            Form::Ranges { .. } | Form::Bits(_) => self.nodes,
        }
    }

    /// Bytes of the longest range.
    pub fn longest(&self) -> u64 {
        match &self.form {
            Form::Away { sums, .. } if sums.lost => 0,
            Form::Away { sums, .. } => sums.longest,
            Form::Ranges { .. } | Form::Bits(_) => {
                self.longest_range().map_or(0, |range| range.len)
            }
        }
    }

    /// As [`Extents::insert`]; whether it was done.
    pub fn insert(&mut self, range: Range) -> bool {
        if !Bits::can_have(self.covers, range) {
            self.is_odd = true;
            self.use_ranges();
        }
        let delta = match &mut self.form {
            Form::Ranges { set, .. } => set.insert(range),
            Form::Bits(bits) => bits.insert(range),
            Form::Away { .. } => None,
        };
        self.apply(delta)
    }

    /// As [`Extents::remove`]; whether it was done.
    pub fn remove(&mut self, range: Range) -> bool {
        let can_have = Bits::can_have(self.covers, range);
        let delta = match &mut self.form {
            Form::Away { .. } => None,
            Form::Ranges { set, .. } => set.remove(range),
            Form::Bits(bits) if can_have => bits.remove(range),
            // A part of a sector, of one that is free.
            Form::Bits(_) => {
                self.is_odd = true;
                self.use_ranges();
                return self.remove(range);
            }
        };
        self.apply(delta)
    }

    fn apply(&mut self, delta: Option<Delta>) -> bool {
        let Some(delta) = delta else { return false };
        for gone in delta.gone.into_iter().flatten() {
            if let Form::Ranges { by_len, .. } = &mut self.form {
                by_len.remove(&(gone.len, gone.start));
            }
            self.nodes -= self.fit(gone);
        }
        for new in delta.new.into_iter().flatten() {
            if let Form::Ranges { by_len, .. } = &mut self.form {
                by_len.insert((new.len, new.start));
            }
            self.nodes += self.fit(new);
        }
        self.use_smaller();
        true
    }

    /// Keeps them in what takes less memory; not to and fro.
    fn use_smaller(&mut self) {
        let (ranges, bits) = (self.runs() * RANGE_BYTES, Bits::memory(self.covers.len));
        match &self.form {
            Form::Ranges { set, .. } if ranges > bits && !self.is_odd => {
                match Bits::of(self.covers, set.iter()) {
                    Some(bits) => self.form = Form::Bits(bits),
                    None => self.is_odd = true,
                }
            }
            Form::Bits(_) if ranges < bits / 2 => self.use_ranges(),
            _ => {}
        }
    }

    fn use_ranges(&mut self) {
        let Form::Bits(bits) = &self.form else { return };
        let mut set = Extents::default();
        let by_len = bits.iter_from(0).map(|range| (range.len, range.start)).collect();
        for range in bits.iter_from(0) {
            set.insert(range);
        }
        self.form = Form::Ranges { set, by_len };
    }

    /// The first aligned address of a tree block in the range.
    fn aligned(&self, range: Range) -> u64 {
        range.start.checked_next_multiple_of(self.node).unwrap_or(u64::MAX)
    }

    fn fit(&self, range: Range) -> u64 {
        range.end().saturating_sub(self.aligned(range)) / self.node
    }

    /// A run of `want` bytes: soon behind the cursor, else at the start of the longest range.
    pub fn run(&self, cursor: u64, want: u64) -> Option<Range> {
        let near = self.iter_from(cursor).take(SCAN).find(|range| range.len >= want);
        let found = near.or_else(|| self.longest_range().filter(|range| range.len >= want))?;
        Some(Range::new(found.start, want))
    }

    /// The longest range.
    pub fn longest_range(&self) -> Option<Range> {
        match &self.form {
            Form::Ranges { by_len, .. } => by_len.last().map(|&(len, start)| Range { start, len }),
            Form::Bits(bits) => bits.longest(),
            Form::Away { .. } => None,
        }
    }

    /// The address of a tree block: at the cursor if it is free there, else in a range soon behind
    /// it where `together` blocks fit, else in the longest range, else anywhere.
    pub fn block(&self, cursor: u64, together: u64) -> Option<u64> {
        if self.nodes == 0 {
            return None;
        }
        let mut near = self.iter_from(cursor).take(SCAN);
        let found = near
            .find(|&range| {
                let fit = self.fit(range);
                fit >= together || (range.start == cursor && fit > 0)
            })
            .or_else(|| self.longest_range().filter(|&range| self.fit(range) > 0))
            .or_else(|| self.iter_from(0).find(|&range| self.fit(range) > 0))?;
        Some(self.aligned(found))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// What is free is the same whichever way it is kept, and takes no more memory than bits would.
    #[test]
    fn many_ranges_are_kept_as_bits() {
        let covers = Range::new(64 * MIB, 24 * MIB);
        let (mut free, mut plain) = (FreeExtents::new(covers, 16384), Extents::default());
        let (mut seed, mut forms) = (7u64, [0, 0]);
        for turn in 0..60_000u64 {
            seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let at = covers.start + (seed >> 33) % (covers.len / 4096) * 4096;
            // All goes from time to time, and then long ones come, and not many.
            let is_short = (turn / 10_000).is_multiple_of(2);
            if turn.is_multiple_of(10_000) {
                for range in plain.iter().collect::<Vec<_>>() {
                    assert!(free.remove(range) && plain.remove(range).is_some());
                }
            }
            let unit = if is_short { 4096 } else { 1500 * 4096 };
            let len = ((seed >> 20) % 3 + 1) * unit;
            let range = Range::new(at, len.min(covers.end() - at));
            let whole = match (seed >> 13).is_multiple_of(2) {
                true => (free.insert(range), plain.insert(range).is_some()),
                false => match plain.find(at) {
                    Some(found) => {
                        let part = range.clipped(found);
                        (free.remove(part), plain.remove(part).is_some())
                    }
                    None => (free.remove(range), plain.remove(range).is_some()),
                },
            };
            assert_eq!(whole.0, whole.1, "{range:?}");
            assert_eq!((free.bytes(), free.runs()), (plain.bytes(), plain.runs()));
            assert_eq!(free.find(at), plain.find(at));
            assert!(free.iter_from(at).take(3).eq(plain.iter_from(at).take(3)));
            assert!(free.memory() <= Bits::memory(covers.len));
            if turn % 100 == 0 {
                let all: Vec<Range> = plain.iter().collect();
                let again = FreeExtents::of(covers, 16384, &all).unwrap();
                assert!(again.iter_from(0).eq(plain.iter()));
                assert_eq!((again.bytes(), again.runs()), (free.bytes(), free.runs()));
                assert_eq!((again.nodes(), again.longest()), (free.nodes(), free.longest()));
                assert!(again.memory() <= Bits::memory(covers.len));
            }
            forms[usize::from(matches!(free.form, Form::Bits(_)))] += 1;
            if turn % 50 == 0 {
                let longest = plain.iter().map(|range| range.len).max();
                assert_eq!(free.longest_range().map(|range| range.len), longest);
                assert!(
                    free.longest_range().is_none_or(|range| plain.find(range.start) == Some(range))
                );
                assert_eq!(free.nodes(), plain.iter().map(|range| free.fit(range)).sum::<u64>());
                let window = Range::new(at, covers.end() - at);
                assert!(free.within(window).eq(plain.within(window)));
            }
        }
        assert!(forms[0] > 1000 && forms[1] > 1000, "{forms:?}");
    }

    /// Between few and many it matters what they were before: of several longest ones, each form names another.
    #[test]
    fn what_comes_back_has_the_form_that_it_had() {
        let covers = Range::new(64 * MIB, 24 * MIB);
        let (few, many) = (Bits::memory(covers.len) / RANGE_BYTES, 6000 / 2);
        for from in [many, 0] {
            let mut free = FreeExtents::new(covers, 16384);
            let at = |number: u64| Range::new(covers.start + number * 8192, 4096);
            (0..from).for_each(|number| assert!(free.insert(at(number))));
            let middle = few * 3 / 4;
            (middle..from).for_each(|number| assert!(free.remove(at(number))));
            (from..middle).for_each(|number| assert!(free.insert(at(number))));
            let (kept, before) = (free.kept(), free.longest_range());
            let all: Vec<Range> = free.iter_from(0).collect();
            free.leave();
            assert_eq!((free.kept(), free.memory(), free.find(covers.start)), (kept, 0, None));
            let read = FreeExtents::of(covers, 16384, &all).unwrap();
            assert!(read.are_what_left(&free));
            read.come_back_as(&mut free);
            assert_eq!((free.kept(), free.longest_range()), (kept, before));
            assert!(free.iter_from(0).eq(all));
        }
    }

    #[test]
    fn what_is_no_whole_sector_is_kept_too() {
        let covers = Range::new(MIB, MIB);
        let mut free = FreeExtents::new(covers, 16384);
        (0..128).for_each(|at| assert!(free.insert(Range::new(MIB + at * 8192, 4096))));
        assert!(matches!(free.form, Form::Bits(_)));
        assert!(free.remove(Range::new(MIB + 100, 200)));
        assert_eq!((free.bytes(), free.runs()), (128 * 4096 - 200, 129));
        assert!(free.insert(Range::new(MIB + 100, 200)) && free.runs() == 128);
    }
}
