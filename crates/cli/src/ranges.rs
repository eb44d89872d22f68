//! A set of addresses, kept as ranges, for who asks how many there are in all of them together.
//!
//! Ranges that touch are one: memory is for the gaps between them, some 30 bytes each, however often and by however many pieces a range is
//! covered.

use std::collections::BTreeMap;
use std::ops::Range;

/// Addresses in ranges that do not touch.
#[derive(Debug, Default)]
pub struct Ranges {
    /// The end of each, by its start.
    ends: BTreeMap<u64, u64>,
    bytes: u64,
}

impl Ranges {
    /// How many addresses there are.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Takes in a range, whatever of it is there.
    pub fn insert(&mut self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        let Range { mut start, mut end } = range;
        if let Some((first, last)) = self.ends.range(..=start).next_back()
            && *last >= start
        {
            if *last >= end {
                return;
            }
            start = *first;
        }
        while let Some((&first, &last)) = self.ends.range(start..=end).next() {
            self.ends.remove(&first);
            self.bytes -= last - first;
            end = end.max(last);
        }
        self.ends.insert(start, end);
        self.bytes += end - start;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn each_address_counts_once() {
        let (mut ranges, mut known) = (Ranges::default(), HashSet::new());
        let mut number = 1u64;
        for round in 0..3000 {
            number = number.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let start = (number >> 33) % 4000;
            let len = (number >> 13) % if round < 1000 { 4 } else { 40 };
            ranges.insert(start..start + len);
            known.extend(start..start + len);
            assert_eq!(ranges.bytes(), known.len() as u64);
            let gaps = ranges.ends.iter().zip(ranges.ends.iter().skip(1));
            assert!(gaps.into_iter().all(|((_, end), (start, _))| end < start));
        }
    }

    #[test]
    fn ranges_that_touch_are_one() {
        let mut ranges = Ranges::default();
        for start in (0..1000).step_by(2).chain((1..1000).step_by(2)) {
            ranges.insert(start..start + 1);
        }
        ranges.insert(5..5);
        ranges.insert(u64::MAX - 7..u64::MAX);
        assert_eq!((ranges.ends.len(), ranges.bytes()), (2, 1007));
        ranges.insert(0..u64::MAX);
        assert_eq!((ranges.ends.len(), ranges.bytes()), (1, u64::MAX));
    }
}
