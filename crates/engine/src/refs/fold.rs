//! Sorting and folding a log.
//!
//! A large log is partitioned by address until a part fits into the processor's second cache, so that no record is waited
//! for more than once; parts are sorted by the highest bits in which their addresses differ and handed on while they
//! are still there. Chunks that were read are written to again: no fresh memory but a little for each part.

use super::Record;
use super::log::{CHUNK, Chunk, RefLog};
use super::packed::{address, unpack};

/// Records of a part that is sorted at once; up to twice as many are not partitioned.
const PART_LEN: usize = 8 << 10;
/// Most parts that a pass makes, as a power of two: with more, each write would miss the first cache.
const PARTS_MAX_BITS: u32 = 9;
/// Fewer records than these are sorted by comparing them.
const FEW: usize = 1 << 10;
/// Binary digits that one pass of the sort looks at.
const DIGIT: u32 = 11;
/// Folded records handed on at once, or a few more.
const HANDFUL: usize = 512;

/// Bits that say where in its chunk a record is.
const OFFSET_BITS: u32 = CHUNK.trailing_zeros();

/// Folds logs and hands the records on.
#[derive(Debug)]
pub(super) struct Folder<F> {
    each: F,
    /// Where the records of a part are.
    places: Vec<Place>,
    /// For the sort.
    sorted: Vec<Place>,
    /// The records of one extent, or of a few.
    run: Vec<Record>,
    /// Folded records that are to be handed on.
    folded: Vec<Record>,
    /// How many were handed on.
    done: usize,
    /// Chunks to partition into.
    spare: Vec<Chunk>,
}

impl<E, F: FnMut(&[Record]) -> Result<(), E>> Folder<F> {
    pub(super) fn new(each: F) -> Folder<F> {
        Folder {
            each,
            places: Vec::new(),
            sorted: Vec::new(),
            run: Vec::new(),
            folded: Vec::new(),
            done: 0,
            spare: Vec::new(),
        }
    }

    /// Folds a log, or a part of one that comes after all that was folded before.
    pub(super) fn fold(&mut self, log: RefLog) -> Result<(), E> {
        let differ = log.differ();
        if log.len() <= FEW || differ == 0 {
            return self.fold_few(&log);
        }
        if log.len() <= 2 * PART_LEN {
            return self.fold_part(&log, Digits::highest(differ, 2 * DIGIT));
        }
        let parts = (log.len() / PART_LEN).ilog2().min(PARTS_MAX_BITS);
        let parts = self.partition(log, Digits::highest(differ, parts));
        parts.into_iter().try_for_each(|part| self.fold(part))
    }

    /// Hands on what is left; how many records it were in all is returned.
    pub(super) fn finish(mut self) -> Result<usize, E> {
        self.hand_on()?;
        Ok(self.done)
    }

    /// Folds few records, or those of one extent.
    fn fold_few(&mut self, log: &RefLog) -> Result<(), E> {
        let mut all: Vec<Record> = log.records().collect();
        all.sort_unstable_by_key(Record::order);
        for run in all.chunk_by(|a, b| a.bytenr == b.bytenr) {
            fold_run(run, &mut self.folded);
        }
        self.hand_on()
    }

    /// Folds a part, sorted by `digits` first. Records that are alike in those are mostly of the same extent.
    fn fold_part(&mut self, log: &RefLog, digits: Digits) -> Result<(), E> {
        let mut places = std::mem::take(&mut self.places);
        places.clear();
        for (number, chunk) in log.chunks().iter().enumerate() {
            let number = number << OFFSET_BITS;
            let place = |at: usize, record| Place {
                digits: digits.of(address(record)),
                at: (number | at) as u32,
            };
            places.extend(chunk.records().map(|(at, record, _)| place(at, record)));
        }
        self.sort(&mut places, digits);
        let find = |place: Place| {
            let at = place.at as usize;
            log.chunks()[at >> OFFSET_BITS].at(at & (CHUNK - 1))
        };
        for same in places.chunk_by(|a, b| a.digits == b.digits) {
            if let [one] = same {
                let record = unpack(find(*one));
                if record.says_something() {
                    self.folded.push(record);
                }
            } else {
                self.run.clear();
                self.run.extend(same.iter().map(|place| unpack(find(*place))));
                self.run.sort_unstable_by_key(Record::order);
                fold_run(&self.run, &mut self.folded);
            }
            if self.folded.len() >= HANDFUL {
                self.hand_on()?;
            }
        }
        self.places = places;
        Ok(())
    }

    fn hand_on(&mut self) -> Result<(), E> {
        if !self.folded.is_empty() {
            (self.each)(&self.folded)?;
        }
        self.done += self.folded.len();
        self.folded.clear();
        Ok(())
    }

    /// Sorts places. A radix sort: two passes over eight bytes for each, where a comparison sort would move each many times.
    fn sort(&mut self, places: &mut Vec<Place>, digits: Digits) {
        self.sorted.resize(places.len(), Place::default());
        for shift in (0..digits.count).step_by(DIGIT as usize) {
            pass(places, &mut self.sorted, shift);
            std::mem::swap(places, &mut self.sorted);
        }
    }

    /// Cuts a log into parts.
    fn partition(&mut self, log: RefLog, digits: Digits) -> Vec<RefLog> {
        let mut parts: Vec<RefLog> = (0..1 << digits.count).map(|_| RefLog::default()).collect();
        for mut chunk in log.into_chunks() {
            for (_, record, len) in chunk.records() {
                let address = address(record);
                let part = &mut parts[digits.of(address) as usize];
                part.push_packed(record, len, address, &mut self.spare);
            }
            if chunk.len() == CHUNK {
                chunk.clear();
                self.spare.push(chunk);
            }
        }
        parts
    }
}

/// Where a record is, with what it is sorted by.
#[derive(Clone, Copy, Debug, Default)]
struct Place {
    digits: u32,
    /// The number of the chunk, and the place in the chunk.
    at: u32,
}

/// The binary digits of an address by which records are sorted.
#[derive(Clone, Copy, Debug)]
struct Digits {
    lowest: u32,
    count: u32,
}

impl Digits {
    /// The highest `count` in which addresses differ, or all of those.
    fn highest(differ: u64, count: u32) -> Digits {
        let top = u64::BITS - differ.leading_zeros();
        let lowest = differ.trailing_zeros().max(top.saturating_sub(count));
        Digits { lowest, count: top - lowest }
    }

    fn of(self, address: u64) -> u32 {
        (address >> self.lowest) as u32 & ((1 << self.count) - 1)
    }
}

/// Sorts `from` into `to` by `DIGIT` digits from `shift` on, keeping the order of equals.
fn pass(from: &[Place], to: &mut [Place], shift: u32) {
    let digit_of = |place: &Place| (place.digits >> shift) as usize & ((1 << DIGIT) - 1);
    let mut starts = [0u32; 1 << DIGIT];
    from.iter().for_each(|place| starts[digit_of(place)] += 1);
    let mut sum = 0;
    for start in &mut starts {
        (*start, sum) = (sum, sum + *start);
    }
    for place in from {
        let at = &mut starts[digit_of(place)];
        to[*at as usize] = *place;
        *at += 1;
    }
}

impl Record {
    fn says_something(&self) -> bool {
        self.delta != 0 || self.marks != 0
    }
}

/// Folds the sorted records of one extent.
fn fold_run(run: &[Record], folded: &mut Vec<Record>) {
    for same in run.chunk_by(|a, b| a.order() == b.order()) {
        let mut sum = same[0];
        for record in &same[1..] {
            sum.delta += record.delta;
            sum.marks |= record.marks;
        }
        folded.extend(Some(sum).filter(Record::says_something));
    }
}
