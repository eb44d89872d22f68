//! Sets of disjoint byte ranges, kept joined: two ranges that touch are one.
//!
//! [`Extents`] is the plain set. [`FreeExtents`] also knows its ranges by length and how many tree
//! blocks fit into them, because that is what allocation asks for.

use std::collections::{BTreeMap, BTreeSet};

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

    /// Whether `other` lies inside entirely.
    pub const fn contains(&self, other: Range) -> bool {
        self.start <= other.start && other.end() <= self.end()
    }
}

/// How an operation changed a set: at most two ranges vanished and two appeared.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Delta {
    gone: [Option<Range>; 2],
    new: [Option<Range>; 2],
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

/// Free ranges, also by length.
#[derive(Clone, Debug)]
pub(crate) struct FreeExtents {
    set: Extents,
    by_len: BTreeSet<(u64, u64)>,
    /// Bytes of a tree block.
    node: u64,
    /// Tree blocks that fit, each aligned to its size.
    nodes: u64,
}

impl FreeExtents {
    /// The empty set; `node` is the size of tree blocks in bytes.
    pub fn new(node: u64) -> FreeExtents {
        FreeExtents {
            set: Extents::default(),
            by_len: BTreeSet::new(),
            node: node.max(1),
            nodes: 0,
        }
    }

    /// The set as plain extents.
    pub fn set(&self) -> &Extents {
        &self.set
    }

    /// Tree blocks that fit.
    pub fn nodes(&self) -> u64 {
        self.nodes
    }

    /// Bytes of the longest range.
    pub fn longest(&self) -> u64 {
        self.by_len.last().map_or(0, |&(len, _)| len)
    }

    /// As [`Extents::insert`]; whether it was done.
    pub fn insert(&mut self, range: Range) -> bool {
        let delta = self.set.insert(range);
        self.apply(delta)
    }

    /// As [`Extents::remove`]; whether it was done.
    pub fn remove(&mut self, range: Range) -> bool {
        let delta = self.set.remove(range);
        self.apply(delta)
    }

    fn apply(&mut self, delta: Option<Delta>) -> bool {
        let Some(delta) = delta else { return false };
        for gone in delta.gone.into_iter().flatten() {
            self.by_len.remove(&(gone.len, gone.start));
            self.nodes -= self.fit(gone);
        }
        for new in delta.new.into_iter().flatten() {
            self.by_len.insert((new.len, new.start));
            self.nodes += self.fit(new);
        }
        true
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
        let near = self.set.iter_from(cursor).take(SCAN).find(|range| range.len >= want);
        let found = near.or_else(|| self.longest_range().filter(|range| range.len >= want))?;
        Some(Range::new(found.start, want))
    }

    /// The longest range.
    pub fn longest_range(&self) -> Option<Range> {
        self.by_len.last().map(|&(len, start)| Range { start, len })
    }

    /// The address of a tree block: at the cursor if it is free there, else in a range soon behind
    /// it where `together` blocks fit, else in the longest range, else anywhere.
    pub fn block(&self, cursor: u64, together: u64) -> Option<u64> {
        if self.nodes == 0 {
            return None;
        }
        let mut near = self.set.iter_from(cursor).take(SCAN);
        let found = near
            .find(|&range| {
                let fit = self.fit(range);
                fit >= together || (range.start == cursor && fit > 0)
            })
            .or_else(|| self.longest_range().filter(|&range| self.fit(range) > 0))
            .or_else(|| self.set.iter().find(|&range| self.fit(range) > 0))?;
        Some(self.aligned(found))
    }
}
