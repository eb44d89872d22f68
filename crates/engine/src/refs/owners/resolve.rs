//! Which files have the byte at an address? As Linux's LOGICAL_INO answers it, in its order, a bounded step at a time.
//!
//! **The order** is that in which Linux meets references (found by trying, 6.18). Leaves come in the falling order of the first
//! reference that leads to them: by tree, file, place in the file and address of the leaf; those that refer by their address come behind
//! all others. A leaf is told once for each tree that reaches it, with all its pieces each time: those of one reference as they lie in
//! the leaf, and backwards where the leaf refers by its address. The trees of a leaf come in falling order. Linux has them in the order in which it
//! meets their roots on the way up, which is the same but where blocks above the leaf refer by their address.
//!
//! **Memory.** A piece is kept once, however many trees reach its leaf, and no more pieces than answers are wanted. What comes beyond them
//! is counted only, as Linux counts what has no room. Which of them have room is decided by the order in which the extent tree has
//! the references; Linux first puts all of them in order, so where not all have room it may tell others.

use std::ops::ControlFlow;

use buttress_ondisk::item::extent_flags;
use buttress_ondisk::view::inline_refs;
use buttress_ondisk::{Key, kind};

use super::super::RootSet;
use super::places::Met;
use super::references::{Reading, wrong};
use super::{Committed, Known, Owners};
use crate::error::{Errno, Error, Result};
use crate::hash::Spread;
use crate::tree::Blocks;

/// References that a step looks at.
const STEP: usize = 128;

/// What is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// The logical address, in bytes.
    pub logical: u64,
    /// All that have any part of the extent that the address is in, not only this byte.
    pub whole: bool,
    /// Answers at most.
    pub most: usize,
}

/// A file that refers to data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Referrer {
    /// The subvolume.
    pub tree: u64,
    /// The file.
    pub ino: u64,
    /// Where in the file the byte is. Of a compressed extent, and where the whole extent is asked for, where the piece begins.
    pub offset: u64,
}

/// Those that refer to data.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Referrers {
    /// In the order of Linux.
    pub found: Vec<Referrer>,
    /// How many more there are than were wanted.
    pub left_out: u64,
}

/// What leads to a leaf: tree, file and place of the reference, and the leaf. Zeros but for the leaf where that refers by its address.
type Way = (u64, u64, u64, u64);

/// A piece of a file that is to be told of.
#[derive(Clone, Copy, Debug)]
struct Piece {
    way: Way,
    /// Ascending in the order in which pieces of the same way are told.
    number: u64,
    trees: RootSet,
    ino: u64,
    offset: u64,
}

impl Piece {
    fn leaf(&self) -> u64 {
        self.way.3
    }
}

/// A question that is being answered.
#[derive(Debug)]
pub struct Resolving {
    wanted: Wanted,
    known: Known,
    /// The extent, and how far its references are read.
    reading: Option<(u64, Reading)>,
    pieces: Vec<Piece>,
    met: u64,
    /// Answers that the pieces stand for.
    kept: u64,
    left_out: u64,
}

impl Resolving {
    /// Nothing is read yet; what is known of blocks takes `memory` bytes.
    pub fn new(wanted: Wanted, memory: u64) -> Resolving {
        Resolving {
            wanted,
            known: Known::new(memory),
            reading: None,
            pieces: Vec::new(),
            met: 0,
            kept: 0,
            left_out: 0,
        }
    }

    /// Looks at some references more; whether there may be others. All steps have to be of one version, and its blocks must stay while
    /// one is made. `ENOENT` where no data extent has the address. After an error it is of no use.
    pub fn step(&mut self, blocks: &Blocks, committed: Committed) -> Result<bool> {
        let mut owners = Owners::new(blocks, committed, &mut self.known);
        let (bytenr, mut reading) = match self.reading.take() {
            Some(begun) => begun,
            None => {
                let bytenr = owners.extent_with(self.wanted.logical)?;
                (bytenr, Reading::of(bytenr))
            }
        };
        let mut refs = Vec::new();
        owners.extents.more(&mut reading, &mut refs, STEP)?;
        let (wanted, pieces) = (self.wanted, &mut self.pieces);
        let (number, kept, left_out) = (&mut self.met, &mut self.kept, &mut self.left_out);
        let mut told = |owners: &Owners<'_>, met: Met| {
            if let Some(offset) = wanted.offset_in(bytenr, &met) {
                let count = owners.known.sets.len(met.trees);
                *number += 1;
                if *kept < wanted.most as u64 {
                    pieces.push(piece(&met, offset, *number));
                    *kept = kept.saturating_add(count);
                } else {
                    *left_out = left_out.saturating_add(count);
                }
            }
            ControlFlow::Continue(())
        };
        let _all = owners.pieces_of(bytenr, &reading, &refs, &mut told)?;
        self.reading = Some((bytenr, reading));
        Ok(!refs.is_empty())
    }

    /// The answer, when nothing is left to do.
    pub fn answer(mut self) -> Referrers {
        let most = self.wanted.most;
        let mut answer = Referrers { found: Vec::new(), left_out: self.left_out };
        self.in_order();
        for leaf in self.pieces.chunk_by(|one, other| one.leaf() == other.leaf()) {
            // One leaf is reached by the same trees whichever of its pieces is asked about.
            let set = leaf.first().map_or(RootSet::EMPTY, |piece| piece.trees);
            let trees: Vec<u64> = self.known.sets().trees(set).collect();
            for tree in trees.into_iter().rev() {
                let room = most.saturating_sub(answer.found.len()).min(leaf.len());
                let told = leaf.iter().take(room);
                let told = told.map(|it| Referrer { tree, ino: it.ino, offset: it.offset });
                answer.found.extend(told);
                answer.left_out = answer.left_out.saturating_add((leaf.len() - room) as u64);
            }
        }
        answer
    }

    /// Puts pieces in the order of Linux.
    fn in_order(&mut self) {
        self.pieces.sort_by(|one, other| {
            other.way.cmp(&one.way).then_with(|| one.number.cmp(&other.number))
        });
        let mut first: Spread<u64, usize> = Spread::default();
        for (index, piece) in self.pieces.iter().enumerate() {
            first.entry(piece.leaf()).or_insert(index);
        }
        // What leads to a leaf later is told where it was met first.
        self.pieces.sort_by_key(|piece| first.get(&piece.leaf()).copied());
    }
}

impl Wanted {
    /// Where in the file what is asked for is; `None` when the piece does not have it.
    fn offset_in(&self, bytenr: u64, met: &Met) -> Option<u64> {
        let (_, start) = met.file;
        if self.whole || met.part.is_encoded {
            return Some(start);
        }
        let inside = self.logical.checked_sub(bytenr)?.checked_sub(met.part.skip)?;
        (inside < met.part.len).then(|| start.wrapping_add(inside))
    }
}

fn piece(met: &Met, offset: u64, number: u64) -> Piece {
    let (way, number) = match &met.by {
        Some((tree, file)) => ((*tree, file.ino, file.offset, met.leaf), number),
        None => ((0, 0, 0, met.leaf), u64::MAX - number),
    };
    Piece { way, number, trees: met.trees, ino: met.file.0, offset }
}

impl Owners<'_> {
    /// The data extent that has the byte at `logical`.
    fn extent_with(&mut self, logical: u64) -> Result<u64> {
        let nothing = || Error::User(Errno::NOENT);
        let mut to = Key::new(logical, kind::METADATA_ITEM, u64::MAX);
        let item = loop {
            let item = self.extents.last_before(&to)?.ok_or_else(nothing)?;
            let key = item.key();
            match key.kind {
                kind::EXTENT_ITEM | kind::METADATA_ITEM => break item,
                // The references of an extent are behind its item, and a block group may be where none is.
                after if after > kind::METADATA_ITEM => {
                    to = Key::new(key.objectid, kind::METADATA_ITEM, u64::MAX);
                }
                _ => return Err(nothing()),
            }
        };
        let (key, data) = (item.key(), item.data());
        let (head, ..) =
            inline_refs(&key, data).ok_or_else(|| wrong("an extent item is too short", key))?;
        let is_data =
            key.kind == kind::EXTENT_ITEM && head.flags.get() & extent_flags::TREE_BLOCK == 0;
        let inside = logical.checked_sub(key.objectid).is_some_and(|at| at < key.offset);
        if is_data && inside { Ok(key.objectid) } else { Err(nothing()) }
    }
}
