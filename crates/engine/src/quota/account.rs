//! Counting what one commit has changed: what groups gain and lose, and the order in which that is applied.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use buttress_ondisk::objectid;

use super::changes::Changes;
use super::counting::Counting;
use super::groups::Groups;
use crate::error::Result;
use crate::hash::Spread;
use crate::refs::owners::{Committed, Known, Owners};
use crate::refs::{RootSet, RootSets, Sharing};
use crate::stats::{self, Counters};
use crate::tree::Blocks;

/// Trees that the sets of one commit may have, together.
const TREES_MAX: usize = 1 << 22;

/// The two versions that a commit knows.
#[derive(Clone, Copy, Debug)]
pub struct Versions<'a> {
    /// Reads the blocks of both.
    pub blocks: &'a Blocks,
    /// The last commit's.
    pub before: Committed,
    /// Its own.
    pub after: Committed,
    /// Knows which leaves were let go of unread.
    pub sharing: &'a Sharing<'a>,
    /// Bytes of memory for who reaches what, in each of both.
    pub memory: u64,
    /// Counts what is done.
    pub counters: &'a Counters,
    /// Whether one thread does it all, in order.
    pub is_sequential: bool,
}

/// Counts what has changed; whether that is known.
pub fn account(groups: &mut Groups, versions: &Versions<'_>, mut changes: Changes) -> Result<bool> {
    groups.come(&changes.made);
    changes.leaving().iter().for_each(|id| groups.let_go(*id));
    let fresh = changes.snapshots.iter().map(|(snapshot, _)| *snapshot).collect();
    let (mut before, mut after) = (Known::new(versions.memory), Known::new(versions.memory));
    let owners = [(versions.before, &mut before), (versions.after, &mut after)];
    let owners = owners.map(|(version, known)| Owners::new(versions.blocks, version, known));
    let mut counting = Counting::new(Moves::of(groups, fresh), versions, owners);
    let is_known = counting.all(&mut changes);
    for (counter, more) in versions.counters.quota_extents.iter().zip(counting.done) {
        stats::add(counter, more);
    }
    let moves = counting.moves.all;
    if !is_known? || !moves.into_iter().all(|moved| moved.apply(groups)) {
        return Ok(false);
    }
    for (snapshot, source) in changes.snapshots {
        if !groups.share(snapshot, source, versions.blocks.nodesize() as u64) {
            return Ok(false);
        }
    }
    groups.go(&changes.gone);
    Ok(true)
}

/// What it does to the groups that extents of one set of trees are of another one now.
#[derive(Debug)]
struct Moved {
    /// Each group that is concerned, by how many times the bytes its numbers change.
    steps: Vec<(u64, i64, i64)>,
    bytes: u64,
}

impl Moved {
    /// Whether each group had as much as it loses.
    fn apply(self, groups: &mut Groups) -> bool {
        let bytes = i64::try_from(self.bytes).unwrap_or(i64::MAX);
        self.steps.into_iter().all(|(group, rfer, excl)| {
            let usage = groups.usage(group);
            usage.is_none_or(|usage| usage.add(rfer * bytes, excl * bytes))
        })
    }
}

/// What groups gain and lose, by the sets of trees that extents had and have.
#[derive(Debug)]
pub(super) struct Moves<'a> {
    groups: &'a Groups,
    /// Snapshots that do not count yet.
    fresh: BTreeSet<u64>,
    all: Vec<Moved>,
    /// Their numbers by the trees, before and after.
    numbers: HashMap<[Vec<u64>; 2], usize>,
    /// The same where only those before lose something.
    losses: HashMap<Vec<u64>, usize>,
    /// The groups over a subvolume.
    over: Spread<u64, BTreeSet<u64>>,
    /// How many trees all those sets have, together.
    trees: usize,
}

impl<'a> Moves<'a> {
    fn of(groups: &'a Groups, fresh: BTreeSet<u64>) -> Moves<'a> {
        Moves {
            groups,
            fresh,
            all: Vec::new(),
            numbers: HashMap::new(),
            losses: HashMap::new(),
            over: Spread::default(),
            trees: 0,
        }
    }

    /// Whether they are too many to be kept.
    pub fn is_spent(&self) -> bool {
        self.trees > TREES_MAX
    }

    /// Whether a tree is a snapshot that does not count yet.
    pub fn is_fresh(&self, tree: u64) -> bool {
        self.fresh.contains(&tree)
    }

    /// Subvolumes that have groups: up to `most` on each side of this one, by their numbers.
    pub fn beside(&self, tree: u64, most: usize) -> Vec<u64> {
        self.groups.beside(tree, most)
    }

    /// Whether a tree has a group, so that somebody wants to know what it has.
    pub fn has_group(&mut self, tree: u64) -> bool {
        !self.over(tree).is_empty()
    }

    /// Whether a tree is in no group but its own.
    pub fn is_plain(&mut self, tree: u64) -> bool {
        self.over(tree).iter().eq([&tree])
    }

    /// The trees of a set that have groups.
    pub fn with_groups(&mut self, sets: &RootSets, set: RootSet) -> Vec<u64> {
        sets.trees(set).filter(|tree| self.has_group(*tree)).collect()
    }

    fn over(&mut self, tree: u64) -> &BTreeSet<u64> {
        self.over.entry(tree).or_insert_with(|| self.groups.over(tree))
    }

    /// Whether there are trees among these, and no group has all of them: nor does it by more of them.
    pub fn is_nobodys(&mut self, trees: impl IntoIterator<Item = u64>) -> bool {
        let mut common: Option<BTreeSet<u64>> = None;
        for tree in trees {
            if self.is_fresh(tree) || !objectid::is_subvolume(tree) {
                continue;
            }
            let over = self.over(tree);
            match &mut common {
                None => common = Some(over.clone()),
                Some(common) => common.retain(|group| over.contains(group)),
            }
            if common.as_ref().is_some_and(BTreeSet::is_empty) {
                return true;
            }
        }
        false
    }

    /// The number of what comes of it that extents of these trees are of others now, both ascending.
    pub fn number(&mut self, before: Vec<u64>, after: Vec<u64>) -> usize {
        let sets = [before, after].map(subvolumes_of);
        if let Some(number) = self.numbers.get(&sets) {
            return *number;
        }
        let [before, after] = &sets;
        let steps = self.steps(before, after);
        let number = self.add(steps, before.len() + after.len());
        self.numbers.insert(sets, number);
        number
    }

    /// The same where `lost` do not have extents any more that others still have, who have them not alone.
    pub fn loss(&mut self, lost: Vec<u64>, others: &[u64]) -> usize {
        let lost = subvolumes_of(lost);
        if lost.iter().any(|tree| self.over(*tree).len() > 1) {
            let mut before = [others, &lost].concat();
            before.sort_unstable();
            return self.number(before, others.to_vec());
        }
        if let Some(number) = self.losses.get(&lost) {
            return *number;
        }
        let groups: Vec<u64> = lost.iter().copied().filter(|tree| self.has_group(*tree)).collect();
        let number = self.add(groups.into_iter().map(|group| (group, -1, 0)).collect(), lost.len());
        self.losses.insert(lost, number);
        number
    }

    fn add(&mut self, steps: Vec<(u64, i64, i64)>, trees: usize) -> usize {
        self.trees += trees;
        self.all.push(Moved { steps, bytes: 0 });
        self.all.len() - 1
    }

    /// So many bytes have moved so.
    pub fn count(&mut self, number: usize, bytes: u64) {
        if let Some(moved) = self.all.get_mut(number) {
            moved.bytes = moved.bytes.saturating_add(bytes);
        }
    }

    /// What each group gains or loses of an extent whose trees have changed.
    fn steps(&mut self, before: &[u64], after: &[u64]) -> Vec<(u64, i64, i64)> {
        // How many of the trees are in each group, before and after.
        let mut members: BTreeMap<u64, [usize; 2]> = BTreeMap::new();
        for (side, trees) in [before, after].into_iter().enumerate() {
            for tree in trees {
                for group in self.over(*tree).iter() {
                    members.entry(*group).or_default()[side] += 1;
                }
            }
        }
        let has = |count: usize| i64::from(count > 0);
        let has_alone = |count: usize, all: usize| i64::from(count > 0 && count == all);
        let step = |(group, [old, new]): (u64, [usize; 2])| {
            let rfer = has(new) - has(old);
            let excl = has_alone(new, after.len()) - has_alone(old, before.len());
            (rfer != 0 || excl != 0).then_some((group, rfer, excl))
        };
        members.into_iter().filter_map(step).collect()
    }
}

/// What the tree has in which Linux gathers data that a balance moves counts for nobody.
fn subvolumes_of(mut trees: Vec<u64>) -> Vec<u64> {
    trees.retain(|tree| objectid::is_subvolume(*tree));
    trees
}
