//! Free space of a group as a bit for each sector, for groups that are so fragmented that their ranges would take more memory.
//!
//! A range of free space takes some sixty bytes of memory, and a group of a gigabyte may have a hundred thousand of them; its bits
//! take 32 KiB. Above the bits stands a tree of sums: of each 512 bits, and of each two neighbours, the longest run, and how long
//! the runs at both ends are. So the longest run of all is known at once, and a change costs the height of that tree.

use buttress_ondisk::SECTOR;

use super::extents::{Delta, Range};

/// Bits of the smallest sums.
const LEAF: usize = 512;
const LEAF_WORDS: usize = LEAF / 64;

/// Runs of set bits in some bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Sum {
    /// Of the run that starts with the first bit.
    head: u32,
    /// Of the run that ends with the last bit.
    tail: u32,
    longest: u32,
}

impl Sum {
    /// Of so many bits each, one behind the other.
    fn join(self, next: Sum, half: u32) -> Sum {
        Sum {
            head: if self.head == half { half + next.head } else { self.head },
            tail: if next.tail == half { half + self.tail } else { next.tail },
            longest: self.longest.max(next.longest).max(self.tail + next.head),
        }
    }
}

/// Which sectors of some logical addresses are free.
#[derive(Clone, Debug)]
pub(crate) struct Bits {
    covers: Range,
    words: Box<[u64]>,
    /// A tree: the root is 1, the children of `n` are `2n` and `2n + 1`, and the last level are the leaves.
    sums: Box<[Sum]>,
    bytes: u64,
    runs: u64,
}

impl Bits {
    /// Bytes of memory for so many bytes of addresses.
    pub fn memory(len: u64) -> u64 {
        let bits = len.div_ceil(SECTOR);
        let leaves = bits.div_ceil(LEAF as u64).next_power_of_two();
        leaves * (LEAF as u64 / 8) + 2 * leaves * size_of::<Sum>() as u64
    }

    /// Whether it can have the range.
    pub fn can_have(covers: Range, range: Range) -> bool {
        let whole = |bytes: u64| bytes.is_multiple_of(SECTOR);
        covers.contains(range) && whole(range.start - covers.start) && whole(range.len)
    }

    /// What these ranges say, which are disjoint, rising, and do not touch; `None` when it cannot have one of them.
    pub fn of(covers: Range, ranges: impl Iterator<Item = Range>) -> Option<Bits> {
        let leaves = usize::try_from(covers.len.div_ceil(SECTOR)).ok()?.div_ceil(LEAF);
        let leaves = leaves.next_power_of_two();
        let mut bits = Bits {
            covers,
            words: vec![0; leaves * LEAF_WORDS].into_boxed_slice(),
            sums: vec![Sum::default(); 2 * leaves].into_boxed_slice(),
            bytes: 0,
            runs: 0,
        };
        for range in ranges {
            if !Bits::can_have(covers, range) {
                return None;
            }
            let (from, to) = bits.span(range);
            bits.set(from, to, true);
            bits.bytes += range.len;
            bits.runs += 1;
        }
        bits.sum_up(0, leaves - 1);
        Some(bits)
    }

    fn span(&self, range: Range) -> (usize, usize) {
        let bit = |at: u64| (at.saturating_sub(self.covers.start) / SECTOR) as usize;
        (bit(range.start), bit(range.end()))
    }

    fn range(&self, from: usize, to: usize) -> Range {
        Range::new(self.covers.start + from as u64 * SECTOR, (to - from) as u64 * SECTOR)
    }

    fn len(&self) -> usize {
        self.words.len() * 64
    }

    fn set(&mut self, from: usize, to: usize, free: bool) {
        let mut at = from;
        while at < to {
            let end = (at / 64 * 64 + 64).min(to);
            let mask = !0 >> (64 - (end - at)) << (at % 64);
            match free {
                true => self.words[at / 64] |= mask,
                false => self.words[at / 64] &= !mask,
            }
            at = end;
        }
    }

    /// The sums of these leaves, and what is above them.
    fn sum_up(&mut self, first: usize, last: usize) {
        let leaves = self.sums.len() / 2;
        for leaf in first..=last {
            let words = &self.words[leaf * LEAF_WORDS..(leaf + 1) * LEAF_WORDS];
            self.sums[leaves + leaf] = sum_of(words);
        }
        let (mut from, mut to, mut half) = (leaves + first, leaves + last, LEAF as u32);
        while from > 1 {
            (from, to) = (from / 2, to / 2);
            for node in from..=to {
                self.sums[node] = self.sums[2 * node].join(self.sums[2 * node + 1], half);
            }
            half *= 2;
        }
    }

    /// The first bit from `at` on that is so, or the end.
    fn next(&self, at: usize, free: bool) -> usize {
        next(&self.words, at, free)
    }

    /// Where the run starts that ends at `at`, or `at`.
    fn run_start(&self, at: usize) -> usize {
        let mut end = at;
        while end > 0 {
            let word = (end - 1) / 64;
            let used = !self.words[word] & (!0 >> (63 - (end - 1) % 64));
            if used != 0 {
                return word * 64 + 64 - used.leading_zeros() as usize;
            }
            end = word * 64;
        }
        0
    }

    fn is_free(&self, bit: usize) -> bool {
        self.words.get(bit / 64).is_some_and(|word| word >> (bit % 64) & 1 != 0)
    }

    /// Bytes that are free.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Runs of them.
    pub fn runs(&self) -> u64 {
        self.runs
    }

    /// The runs that start at or after `from`, rising.
    pub fn iter_from(&self, from: u64) -> impl Iterator<Item = Range> + '_ {
        let mut at = (from.saturating_sub(self.covers.start).div_ceil(SECTOR)) as usize;
        if at > 0 && at < self.len() && self.is_free(at - 1) {
            at = self.next(at, false);
        }
        std::iter::from_fn(move || {
            let start = self.next(at, true);
            (start < self.len()).then(|| {
                at = self.next(start, false);
                self.range(start, at)
            })
        })
    }

    /// The run that holds the address.
    pub fn find(&self, at: u64) -> Option<Range> {
        let bit = (at.checked_sub(self.covers.start)? / SECTOR) as usize;
        self.is_free(bit).then(|| self.range(self.run_start(bit), self.next(bit, false)))
    }

    /// As [`super::extents::Extents::insert`], of what it can have.
    pub fn insert(&mut self, range: Range) -> Option<Delta> {
        let (from, to) = self.span(range);
        if from >= to || next(&self.words[..to.div_ceil(64)], from, true) < to {
            return None;
        }
        let (start, end) = (self.run_start(from), self.next(to, false));
        let before = (start < from).then(|| self.range(start, from));
        let behind = (to < end).then(|| self.range(to, end));
        self.change(from, to, true);
        self.bytes += range.len;
        self.runs = self.runs + 1 - u64::from(before.is_some()) - u64::from(behind.is_some());
        Some(Delta { gone: [before, behind], new: [Some(self.range(start, end)), None] })
    }

    /// As [`super::extents::Extents::remove`], of what it can have.
    pub fn remove(&mut self, range: Range) -> Option<Delta> {
        let (from, to) = self.span(range);
        if from >= to || self.next(from, false) < to {
            return None;
        }
        let (start, end) = (self.run_start(from), self.next(to, false));
        let head = (start < from).then(|| self.range(start, from));
        let tail = (to < end).then(|| self.range(to, end));
        self.change(from, to, false);
        self.bytes -= range.len;
        self.runs = self.runs + u64::from(head.is_some()) + u64::from(tail.is_some()) - 1;
        Some(Delta { gone: [Some(self.range(start, end)), None], new: [head, tail] })
    }

    fn change(&mut self, from: usize, to: usize, free: bool) {
        self.set(from, to, free);
        self.sum_up(from / LEAF, (to - 1) / LEAF);
    }

    /// The longest run; of several, the first.
    pub fn longest(&self) -> Option<Range> {
        let leaves = self.sums.len() / 2;
        let want = self.sums[1].longest;
        if want == 0 {
            return None;
        }
        let (mut node, mut from, mut bits) = (1, 0, self.len());
        while node < leaves {
            (node, bits) = (2 * node, bits / 2);
            let (left, right) = (self.sums[node], self.sums[node + 1]);
            if left.longest == want {
                continue;
            }
            if left.tail + right.head == want {
                let start = from + bits - left.tail as usize;
                return Some(self.range(start, start + want as usize));
            }
            (node, from) = (node + 1, from + bits);
        }
        let mut start = self.next(from, true);
        while self.next(start, false) - start < want as usize {
            start = self.next(self.next(start, false), true);
        }
        Some(self.range(start, start + want as usize))
    }
}

fn next(words: &[u64], at: usize, free: bool) -> usize {
    let turned = |word: u64| if free { word } else { !word };
    let Some(first) = words.get(at / 64) else { return words.len() * 64 };
    let first = turned(*first) & (!0 << (at % 64));
    if first != 0 {
        return at / 64 * 64 + first.trailing_zeros() as usize;
    }
    let rest = words.iter().enumerate().skip(at / 64 + 1);
    let found = rest.map(|(number, word)| (number, turned(*word))).find(|(_, word)| *word != 0);
    found.map_or(words.len() * 64, |(number, word)| number * 64 + word.trailing_zeros() as usize)
}

fn sum_of(words: &[u64]) -> Sum {
    let (len, mut sum, mut at) = (words.len() * 64, Sum::default(), 0);
    loop {
        let start = next(words, at, true);
        if start == len {
            return sum;
        }
        at = next(words, start, false);
        let run = (at - start) as u32;
        sum.longest = sum.longest.max(run);
        if start == 0 {
            sum.head = run;
        }
        if at == len {
            sum.tail = run;
        }
    }
}
