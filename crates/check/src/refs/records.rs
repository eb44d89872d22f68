//! References kept one by one, for the extents of a few sums.
//!
//! Each is noted as it comes, in one list of records of 48 bytes, whoever refers. When the list is full it is sorted, and what is in
//! it twice becomes one; a list that stays full has [overflowed](Records::take), and whoever asked asks for fewer sums.

use parking_lot::Mutex;

use super::{Reference, References, Referrer, SUMS, Shape};
use crate::seeds::Seeds;

/// Both sides' counts of one referrer, and what each takes the extent for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Both {
    pub found: u64,
    pub recorded: u64,
    /// The shape in the tree, and another one that was found besides it.
    pub found_as: Option<Shape>,
    pub also_as: Option<Shape>,
}

/// All that is known of an extent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Extent {
    /// What its item says it is, if there is one.
    pub item: Option<Shape>,
    /// Who refers to it, each once, in order.
    pub refs: Vec<(Referrer, Both)>,
}

/// Which side says something.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Side {
    /// The extent's item, which is nobody's reference.
    Item,
    Found,
    Recorded,
}

/// What one side says of an extent. In the order of extents and, in each, of referrers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Said {
    bytenr: u64,
    /// Which kind of referrer, and its numbers.
    which: u8,
    by: [u64; 3],
    /// The level of a block, or [`DATA`]; its generation, or the length of data.
    shape: u16,
    size: u64,
    side: Side,
    count: u32,
}

/// The shape of data, where blocks have their level.
const DATA: u16 = 1 << 8;

/// Bytes that a record takes.
pub(super) const RECORD_LEN: usize = size_of::<Said>();

impl Said {
    fn new(bytenr: u64, reference: &Reference, side: Side, count: u64) -> Said {
        let (which, by) = match reference.by {
            Referrer::Tree { root } => (0, [root, 0, 0]),
            Referrer::Block { parent } => (1, [parent, 0, 0]),
            Referrer::File { root, inode, offset } => (2, [root, inode, offset]),
            Referrer::Leaf { parent } => (3, [parent, 0, 0]),
        };
        let (shape, size) = match reference.shape {
            Shape::Block { level, generation } => (u16::from(level), generation),
            Shape::Data { len } => (DATA, len),
        };
        let count = u32::try_from(count).unwrap_or(u32::MAX);
        Said { bytenr, which, by, shape, size, side, count }
    }

    fn by(&self) -> Referrer {
        let [a, inode, offset] = self.by;
        match self.which {
            0 => Referrer::Tree { root: a },
            1 => Referrer::Block { parent: a },
            2 => Referrer::File { root: a, inode, offset },
            _ => Referrer::Leaf { parent: a },
        }
    }

    fn shape(&self) -> Shape {
        match u8::try_from(self.shape) {
            Ok(level) => Shape::Block { level, generation: self.size },
            Err(_) => Shape::Data { len: self.size },
        }
    }

    /// Takes in what another one says, if it is the same.
    fn join(&mut self, other: &Said) -> bool {
        let same = *self == Said { count: self.count, ..*other };
        if same {
            self.count = self.count.saturating_add(other.count);
        }
        same
    }
}

/// What was said so far.
#[derive(Debug)]
struct List {
    said: Vec<Said>,
    /// Records that there is room for.
    max: usize,
    overflowed: bool,
}

impl List {
    fn push(&mut self, one: Said) {
        if self.said.len() >= self.max {
            self.fold();
            // Sorting all of it again for a few more would take forever.
            self.overflowed |= self.said.len() >= self.max - self.max / 4;
        }
        if self.overflowed {
            return;
        }
        if self.said.len() == self.said.capacity() {
            let more = self.said.len().max(64).min(self.max - self.said.len());
            self.said.reserve_exact(more);
        }
        self.said.push(one);
    }

    fn fold(&mut self) {
        self.said.sort_unstable();
        self.said.dedup_by(|next, kept| kept.join(next));
    }
}

/// Keeps the references of the extents that belong to chosen sums.
pub(super) struct Records {
    seeds: Seeds,
    wanted: Vec<bool>,
    list: Mutex<List>,
}

impl Records {
    /// Keeps nothing but the references of these sums, and so many records at most.
    pub fn new(seeds: Seeds, sums: &[usize], max: usize) -> Records {
        let mut wanted = vec![false; SUMS];
        for &sum in sums {
            if let Some(it) = wanted.get_mut(sum) {
                *it = true;
            }
        }
        let list = List { said: Vec::new(), max: max.max(4), overflowed: false };
        Records { seeds, wanted, list: Mutex::new(list) }
    }

    /// Gives `each` what was kept, by address. `false`, and nothing is given, when there was more than there is room for.
    pub fn take(&self, mut each: impl FnMut(u64, &Extent)) -> bool {
        let mut list = self.list.lock();
        if list.overflowed {
            return false;
        }
        list.fold();
        for of_one in list.said.chunk_by(|a, b| a.bytenr == b.bytenr) {
            if let Some(first) = of_one.first() {
                each(first.bytenr, &extent(of_one));
            }
        }
        true
    }

    fn wants(&self, bytenr: u64) -> bool {
        self.wanted.get(self.seeds.place(bytenr, SUMS)).copied().unwrap_or(false)
    }

    fn keep(&self, bytenr: u64, side: Side, reference: &Reference, count: u64) {
        if self.wants(bytenr) {
            self.list.lock().push(Said::new(bytenr, reference, side, count));
        }
    }
}

/// What was said of one extent.
fn extent(said: &[Said]) -> Extent {
    let mut extent = Extent::default();
    for one in said {
        let (by, shape) = (one.by(), one.shape());
        if one.side == Side::Item {
            extent.item = Some(shape);
            continue;
        }
        if extent.refs.last().is_none_or(|(last, _)| *last != by) {
            extent.refs.push((by, Both::default()));
        }
        let Some((_, both)) = extent.refs.last_mut() else { continue };
        let count = u64::from(one.count);
        if one.side == Side::Recorded {
            both.recorded = both.recorded.saturating_add(count);
            continue;
        }
        both.found = both.found.saturating_add(count);
        match both.found_as {
            None => both.found_as = Some(shape),
            Some(known) if known != shape => both.also_as = Some(shape),
            Some(_) => {}
        }
    }
    extent
}

impl References for Records {
    fn found(&self, bytenr: u64, reference: &Reference, count: u64) {
        self.keep(bytenr, Side::Found, reference, count);
    }

    fn recorded(&self, bytenr: u64, reference: &Reference, count: u64) {
        self.keep(bytenr, Side::Recorded, reference, count);
    }

    fn item(&self, bytenr: u64, shape: &Shape) {
        let nobody = Reference { by: Referrer::Tree { root: 0 }, shape: *shape };
        self.keep(bytenr, Side::Item, &nobody, 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEEDS: Seeds = Seeds([1, 2, 3, 4]);

    fn all(max: usize) -> Records {
        Records::new(SEEDS, &(0..SUMS).collect::<Vec<_>>(), max)
    }

    fn file(inode: u64, len: u64) -> Reference {
        Reference {
            by: Referrer::File { root: 5, inode, offset: 0u64.wrapping_sub(4096) },
            shape: Shape::Data { len },
        }
    }

    #[test]
    fn what_both_sides_say_comes_together() {
        let records = all(100);
        let block = Shape::Block { level: 3, generation: 9 };
        records.item(8192, &block);
        records.recorded(8192, &Reference { by: Referrer::Block { parent: 77 }, shape: block }, 1);
        records.found(4096, &file(300, 8192), 1);
        records.found(4096, &file(257, 4096), 1);
        records.recorded(4096, &file(300, 4096), 5);
        records.item(4096, &Shape::Data { len: 4096 });
        records.found(4096, &file(300, 4096), 1);
        records.found(4096, &file(300, 4096), 1);
        let mut found = Vec::new();
        assert!(records.take(|bytenr, extent| found.push((bytenr, extent.clone()))));
        let (one, two) = (Shape::Data { len: 4096 }, Shape::Data { len: 8192 });
        let alone = Both { found: 1, found_as: Some(one), ..Both::default() };
        let shared = Both { found: 3, recorded: 5, found_as: Some(one), also_as: Some(two) };
        let of_block = Both { recorded: 1, ..Both::default() };
        let data = Extent {
            item: Some(one),
            refs: vec![(file(257, 0).by, alone), (file(300, 0).by, shared)],
        };
        let of_tree =
            Extent { item: Some(block), refs: vec![(Referrer::Block { parent: 77 }, of_block)] };
        assert_eq!(found, [(4096, data), (8192, of_tree)]);
    }

    #[test]
    fn a_full_list_is_folded_or_says_that_it_was_full() {
        let records = all(100);
        for _ in 0..100 {
            (0..50).for_each(|inode| records.found(4096, &file(inode, 4096), 1));
        }
        let mut counts = Vec::new();
        assert!(records.take(|_, extent| {
            counts.extend(extent.refs.iter().map(|(_, both)| both.found));
        }));
        assert_eq!(counts, [100; 50]);
        let records = all(100);
        (0..101).for_each(|inode| records.found(4096, &file(inode, 4096), 1));
        assert!(!records.take(|_, _| panic!("it was not all kept")));
        assert!(records.list.lock().said.capacity() <= 100);
    }
}
