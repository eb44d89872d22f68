//! Maps from ranges of positions to values, in which no two ranges overlap.
//!
//! A change of some positions cuts the ranges at its edges. All operations cost the logarithm of the map's size, and the
//! ranges they remove.

use std::collections::BTreeMap;

/// A range of positions: bytes of a file, or of the logical address space.
pub(super) type Span = std::ops::Range<u64>;

/// How many positions are in the span.
pub(super) fn len(span: &Span) -> u64 {
    span.end.saturating_sub(span.start)
}

/// The positions that are in both; empty (start >= end) when there are none.
pub(super) fn overlap(a: &Span, b: &Span) -> Span {
    a.start.max(b.start)..a.end.min(b.end)
}

/// A value that can be cut together with its range.
pub(super) trait Split: Sized {
    /// Cuts off and returns what belongs to the positions `skip` and later from the start of the range.
    fn split_off(&mut self, skip: u64) -> Self;
}

/// The map.
#[derive(Clone, Debug)]
pub(super) struct RangeMap<T>(BTreeMap<u64, (u64, T)>);

impl<T> Default for RangeMap<T> {
    fn default() -> RangeMap<T> {
        RangeMap(BTreeMap::new())
    }
}

impl<T: Split> RangeMap<T> {
    /// Whether there is no range at all.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// How many ranges there are.
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// Every range, in order.
    pub fn iter(&self) -> impl Iterator<Item = (Span, &T)> {
        self.0.iter().map(|(start, (end, value))| (*start..*end, value))
    }

    /// The range that holds `pos`.
    pub fn at(&self, pos: u64) -> Option<(Span, &T)> {
        let (start, (end, value)) = self.0.range(..=pos).next_back()?;
        (pos < *end).then_some((*start..*end, value))
    }

    /// The range that holds `pos`, to change its value.
    pub fn at_mut(&mut self, pos: u64) -> Option<(Span, &mut T)> {
        let (start, (end, value)) = self.0.range_mut(..=pos).next_back()?;
        (pos < *end).then_some((*start..*end, value))
    }

    /// Where the first range starts that starts at `pos` or later.
    pub fn next_start(&self, pos: u64) -> Option<u64> {
        self.0.range(pos..).next().map(|(start, _)| *start)
    }

    /// Where ranges start in `span`, the last first.
    pub fn last_starts(&self, span: &Span) -> impl Iterator<Item = u64> {
        self.0.range(span.start..span.end.max(span.start)).rev().map(|(start, _)| *start)
    }

    /// The ranges that have positions in `span`, in order.
    pub fn overlapping(&self, span: &Span) -> impl Iterator<Item = (Span, &T)> {
        let from = self.at(span.start).map_or(span.start, |(found, _)| found.start);
        let inside = self.0.range(from..span.end.max(from));
        inside.map(|(start, (end, value))| (*start..*end, value))
    }

    /// Takes the positions of `span` out of the map; returns what was there, in order.
    pub fn cut(&mut self, span: &Span) -> Vec<(Span, T)> {
        if span.start >= span.end {
            return Vec::new();
        }
        self.split_at(span.start);
        self.split_at(span.end);
        let starts: Vec<u64> = self.0.range(span.clone()).map(|(start, _)| *start).collect();
        let taken = starts.into_iter().filter_map(|start| Some((start, self.0.remove(&start)?)));
        taken.map(|(start, (end, value))| (start..end, value)).collect()
    }

    /// Adds a range where there is none.
    pub fn insert(&mut self, span: Span, value: T) {
        debug_assert!(self.overlapping(&span).next().is_none(), "{span:?} is free");
        if span.start < span.end {
            self.0.insert(span.start, (span.end, value));
        }
    }

    /// Extends the range that ends at `span.start` over `span`, which is free, when `join` lets it.
    pub fn extend(&mut self, span: &Span, join: impl FnOnce(&Span, &mut T) -> bool) -> bool {
        let Some((start, (end, value))) = self.0.range_mut(..span.start).next_back() else {
            return false;
        };
        if *end != span.start || !join(&(*start..*end), value) {
            return false;
        }
        *end = span.end;
        true
    }

    fn split_at(&mut self, pos: u64) {
        let Some((start, (end, value))) = self.0.range_mut(..pos).next_back() else { return };
        if pos < *end {
            let tail = value.split_off(pos - *start);
            let tail_end = std::mem::replace(end, pos);
            self.0.insert(pos, (tail_end, tail));
        }
    }
}
