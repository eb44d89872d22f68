//! What each subvolume refers to, what it has for itself, and what would be free without some of them: in one pass, without quotas.
//!
//! What a tree refers to is what its blocks lead to. So every block of the subvolumes gets the set of trees that reach it, from the roots
//! downwards, a level at a time (`blocks`): at each level the blocks are sorted by address, each is there once with the sets of all that
//! refer to it united, and is read once, however many snapshots share it. Leaves are counted and not read. Which data extents a leaf
//! refers to stands in the extent tree, too, in a hundredth of the room, and there each extent has all its references together: it is
//! read once from its start to its end (`extents`), and no extent is remembered. A reference by block names its leaf. One by
//! tree names a tree and a place in a file; the nodes of that tree lead to its leaf (`owned`), which is read only where the place may
//! lie in several leaves that different trees reach.
//!
//! What holds: everything is counted once, under the set of trees that reach it ([`Costs`]): data extents with the bytes that they
//! have on the disk, blocks with the size of a tree block. From these sums follows what a subvolume refers to (all sets that it is
//! in), what it has for itself (the set of it alone), and what goes with any of them (all sets that have no other).
//! These are the numbers that Linux's quotas have after a rescan, to the byte; the tests compare them.
//!
//! Cost: nodes of the trees, the extent tree, some leaves. Memory: sixteen bytes for each leaf and some forty for each node, whoever
//! shares them, and some hundred for each set of trees that occurs, less where sets are alike. A filesystem with 10 GiB of tree blocks takes about 10 MiB. Where the leaves have no room
//! in what was given, they are counted in several rounds over the nodes, each for a range of addresses. The first
//! range is remembered; who reaches a leaf beyond it is found upwards, through the extent tree (`upwards`).
//!
//! The pass is of one committed version. It is made in steps that borrow nothing, so that who runs it can let others go on in between;
//! whether the version is still there is the business of who does that.
//!
//! What trees may take that somebody has made up is bounded, too: the sets ([`RootSets::bounded`]), and the nodes that blocks lead to.
//!
//! Trees that contradict the extent tree end it with an error: a leaf without its extent item or with too few references there, a reference that
//! leads nowhere, counts that do not add up. References of other trees (relocation, space caches) are nobody's here, as for Linux.

mod blocks;
mod extents;
mod owned;
mod sums;
mod upwards;

use buttress_ondisk::Key;

use super::root_set::{RootSet, RootSets};
use crate::error::{Error, Result};
use crate::hash::Spread;
use crate::tree::{Blocks, Root};

pub use sums::{Bytes, Costs, Share};

use blocks::Levels;
use extents::Extents;

/// Bytes for sets of trees at least, and for each tree besides: each has a set with those before it, about.
const SETS_MIN: u64 = 4 << 20;
const SETS_OF_TREE: u64 = 2 << 10;

/// A tree of files to count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tree {
    /// Its id.
    pub id: u64,
    /// The version.
    pub root: Root,
    /// Of a deleted subvolume: where what is left of it starts, and the level of the node with that key; none is left out at [`Key::MIN`].
    pub progress: (Key, u8),
    /// Whether it is deleted and waits to be dropped.
    pub deleted: bool,
}

/// What a pass does now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// It reads the nodes of the subvolumes.
    Nodes,
    /// It reads the extent tree.
    Extents,
}

/// How far a pass is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// What it does.
    pub stage: Stage,
    /// Of `Nodes`: how many it has read. Of `Extents`: bytes of the address space behind it.
    pub done: u64,
    /// How many there are, as far as is known by now: that grows while nodes are read.
    pub total: u64,
}

/// What all parts of a pass use.
#[derive(Debug)]
struct Shared {
    trees: Spread<u64, Tree>,
    sets: RootSets,
    costs: Spread<RootSet, Bytes>,
    /// Bytes that the sets take before those that nobody has any more are given up.
    sets_max: u64,
    nodesize: u64,
    /// The end of the address space in use.
    end: u64,
    /// Blocks may have references of trees that are not counted: a balance has left its trees behind.
    others: bool,
}

impl Shared {
    /// Keeps those of the sets that somebody has, under other numbers. Sets that came up on the way to others are many only where trees share
    /// in ways that snapshots never make.
    fn sweep<'a>(&mut self, held: impl Iterator<Item = &'a mut RootSet>) {
        let empty = RootSets::bounded(self.sets.bytes_max());
        let before = std::mem::replace(&mut self.sets, empty);
        let mut renamed: Spread<RootSet, RootSet> = Spread::default();
        let mut rename = |set: RootSet, sets: &mut RootSets| {
            *renamed.entry(set).or_insert_with(|| {
                let mut trees: Vec<u64> = before.trees(set).collect();
                sets.of(&mut trees)
            })
        };
        held.for_each(|set| *set = rename(*set, &mut self.sets));
        let costs = std::mem::take(&mut self.costs).into_iter();
        self.costs = costs.map(|(set, bytes)| (rename(set, &mut self.sets), bytes)).collect();
        self.sets_max = self.sets_max.max(self.sets.bytes().saturating_mul(2));
    }
}

#[derive(Debug)]
enum State {
    Nodes(Levels),
    Extents(Extents),
    Done,
}

/// A pass under way.
#[derive(Debug)]
pub struct Pass {
    shared: Shared,
    extents: Root,
    state: State,
}

/// Bytes that sets of trees may take: what snapshots of so many subvolumes come to, and more where there is memory. Trees that
/// somebody has made up may share blocks in any number of ways.
fn bound(memory: u64, trees: usize) -> u64 {
    SETS_MIN
        .max(memory.saturating_mul(2))
        .saturating_add((trees as u64).saturating_mul(SETS_OF_TREE))
}

/// What a pass is of.
#[derive(Debug)]
pub struct Of {
    /// All subvolumes, also those that are deleted and wait to be dropped.
    pub trees: Vec<Tree>,
    /// The extent tree.
    pub extents: Root,
    /// The end of the address space in use, for progress.
    pub end: u64,
    /// Whether there are trees of a balance besides.
    pub others: bool,
}

impl Pass {
    /// A pass over a version that takes `memory` bytes for what it knows of leaves.
    pub fn new(of: Of, blocks: &Blocks, memory: u64) -> Pass {
        let mut shared = Shared {
            trees: of.trees.iter().map(|tree| (tree.id, *tree)).collect(),
            sets: RootSets::bounded(bound(memory, of.trees.len())),
            costs: Spread::default(),
            sets_max: memory,
            nodesize: blocks.nodesize() as u64,
            end: of.end,
            others: of.others,
        };
        let levels = Levels::new(&of.trees, &mut shared.sets, memory);
        Pass { shared, extents: of.extents, state: State::Nodes(levels) }
    }

    /// Goes on for about so many blocks; whether there is more to do. After an error it must not be used again.
    pub fn step(&mut self, blocks: &Blocks, budget: usize) -> Result<bool> {
        let done = self.go_on(blocks, budget);
        if self.shared.sets.is_full() {
            // Whatever was found out with sets that are wrong.
            let at = self.progress();
            let place = format_args!("{} of {}", at.done, at.total);
            return Err(Error::memory("the ways in which subvolumes share blocks", place));
        }
        done
    }

    fn go_on(&mut self, blocks: &Blocks, budget: usize) -> Result<bool> {
        if self.shared.sets.bytes() > self.shared.sets_max {
            match &mut self.state {
                State::Nodes(levels) => self.shared.sweep(levels.sets()),
                State::Extents(extents) => self.shared.sweep(extents.sets()),
                State::Done => {}
            }
        }
        match &mut self.state {
            State::Nodes(levels) => {
                if !levels.step(&mut self.shared, blocks, budget)? {
                    let reached = std::mem::take(levels).reached();
                    self.state = State::Extents(Extents::new(self.extents, reached));
                }
                Ok(true)
            }
            State::Extents(extents) => {
                let more = extents.step(&mut self.shared, blocks, budget)?;
                if !more {
                    self.state = State::Done;
                }
                Ok(more)
            }
            State::Done => Ok(false),
        }
    }

    /// How far it is.
    pub fn progress(&self) -> Progress {
        match &self.state {
            State::Nodes(levels) => {
                let (done, total) = levels.progress();
                Progress { stage: Stage::Nodes, done, total }
            }
            State::Extents(extents) => {
                let end = self.shared.end;
                Progress { stage: Stage::Extents, done: extents.at().min(end), total: end }
            }
            State::Done => {
                Progress { stage: Stage::Extents, done: self.shared.end, total: self.shared.end }
            }
        }
    }

    /// What was counted, when nothing is left to do.
    pub fn costs(self) -> Costs {
        Costs::new(self.shared)
    }
}
