//! Counting what one commit has changed.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::changes::Changes;
use super::groups::Groups;
use crate::error::Result;
use crate::hash::Spread;
use crate::refs::RootSet;
use crate::refs::Target;
use crate::refs::child_refs;
use crate::refs::owners::{Committed, Known, Owners};
use crate::stats::{self, Counters};
use crate::tree::Blocks;

/// Tree blocks that a commit reads to see what changed below them at most. Linux gives up where a subtree of three levels is dropped.
const BLOCKS_MAX: usize = 4096;
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
    /// Bytes of memory for who reaches what, in each of both.
    pub memory: u64,
    /// Counts what is done.
    pub counters: &'a Counters,
}

/// Counts what has changed; whether that is known.
pub fn account(
    groups: &mut Groups,
    versions: &Versions<'_>,
    changes: Changes,
    is_dead: impl Fn(u64) -> bool,
) -> Result<bool> {
    for id in &changes.made {
        groups.make(*id);
    }
    let Changes { touched, alone, new_alone, snapshots, made: _, gone } = changes;
    let fresh: BTreeSet<u64> = snapshots.iter().map(|(snapshot, _)| *snapshot).collect();
    let (mut before, mut after) = (Known::new(versions.memory), Known::new(versions.memory));
    let mut counting = Counting {
        groups,
        is_dead: &is_dead,
        before: Owners::new(versions.blocks, versions.before, &mut before),
        after: Owners::new(versions.blocks, versions.after, &mut after),
        blocks: versions.blocks,
        fresh,
        moves: Vec::new(),
        numbers: HashMap::new(),
        met: Spread::default(),
        epochs: (0, 0),
        trees: 0,
        over: HashMap::new(),
        left: BLOCKS_MAX,
        done: [new_alone, 0, 0, 0, 0],
    };
    let is_known = counting.all(touched);
    for (counter, more) in versions.counters.quota_extents.iter().zip(counting.done) {
        stats::add(counter, more);
    }
    if !is_known? {
        return Ok(false);
    }
    for (tree, bytes) in alone {
        // What a snapshot has comes with the rest of it.
        if !counting.fresh.contains(&tree) {
            let number = counting.add(Vec::new(), vec![tree]);
            counting.moves[number].bytes += bytes;
        }
    }
    let moves = counting.moves;
    for moved in moves {
        if !moved.apply(groups, &is_dead) {
            return Ok(false);
        }
    }
    for (snapshot, source) in snapshots {
        if !groups.share(snapshot, source, versions.blocks.nodesize() as u64) {
            return Ok(false);
        }
    }
    for id in gone {
        groups.remove(id);
    }
    Ok(true)
}

/// What it does to the groups that extents of one set are of another one now.
#[derive(Debug)]
struct Moved {
    /// Each group that is concerned, by how many times the bytes its numbers change.
    steps: Vec<(u64, i64, i64)>,
    /// Whether what is below a tree block that has moved so may have moved, too, in a way that somebody's numbers tell.
    goes_on: bool,
    bytes: u64,
}

impl Moved {
    /// Whether each group had as much as it loses, but for those of deleted subvolumes: what these share nobody has looked at.
    fn apply(self, groups: &mut Groups, is_dead: &dyn Fn(u64) -> bool) -> bool {
        let bytes = i64::try_from(self.bytes).unwrap_or(i64::MAX);
        self.steps.into_iter().all(|(group, rfer, excl)| {
            let usage = groups.usage(group);
            usage.is_none_or(|usage| usage.add(rfer * bytes, excl * bytes)) || is_dead(group)
        })
    }
}

struct Counting<'a> {
    groups: &'a Groups,
    /// Whether a subvolume is deleted.
    is_dead: &'a dyn Fn(u64) -> bool,
    before: Owners<'a>,
    after: Owners<'a>,
    blocks: &'a Blocks,
    /// Snapshots that do not count yet.
    fresh: BTreeSet<u64>,
    /// What extents of one set that are of another one now do to groups.
    moves: Vec<Moved>,
    /// The same by the trees, before and after.
    numbers: HashMap<[Vec<u64>; 2], usize>,
    /// The same by the two sets, as long as these are numbered so.
    met: Spread<u64, Option<usize>>,
    epochs: (u64, u64),
    /// How many trees all those sets have, together.
    trees: usize,
    /// The groups over a subvolume.
    over: HashMap<u64, BTreeSet<u64>>,
    /// Blocks that may be gone into.
    left: usize,
    /// What was done, in the order of [`crate::Stats::QUOTA_EXTENTS`].
    done: [u64; 5],
}

impl Counting<'_> {
    /// Whether all of it could be counted.
    fn all(&mut self, mut touched: Vec<u64>) -> Result<bool> {
        touched.sort_unstable();
        touched.dedup();
        let (mut below, mut met) = (Vec::new(), Spread::<u64, ()>::default());
        for bytenr in &touched {
            self.one(*bytenr, &mut below)?;
            if self.is_spent() {
                return Ok(false);
            }
        }
        while let Some(bytenr) = below.pop() {
            if touched.binary_search(&bytenr).is_err() && met.insert(bytenr, ()).is_none() {
                self.done[4] += 1;
                self.one(bytenr, &mut below)?;
            }
            if self.is_spent() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn is_spent(&self) -> bool {
        self.left == 0 || self.trees > TREES_MAX
    }

    /// Counts one extent; what is below it and may have changed goes to `below`.
    fn one(&mut self, bytenr: u64, below: &mut Vec<u64>) -> Result<()> {
        let (before, after) = (self.before.reached(bytenr)?, self.after.reached(bytenr)?);
        let bytes = [&before, &after].into_iter().flatten().map(|it| it.bytes).max().unwrap_or(0);
        let sets = [&before, &after].map(|it| it.as_ref().map_or(RootSet::EMPTY, |it| it.trees));
        let Some(number) = self.number(sets) else {
            self.done[1] += 1;
            return Ok(());
        };
        self.done[2] += 1;
        let Some(moved) = self.moves.get_mut(number) else { return Ok(()) };
        moved.bytes = moved.bytes.saturating_add(bytes);
        if let Some((level, generation)) = before.and_then(|before| before.block)
            && moved.goes_on
        {
            self.left = self.left.saturating_sub(1);
            self.done[3] += 1;
            let block = self.blocks.read(bytenr, level, generation, 0)?;
            child_refs(&block, |target| {
                below.push(match target {
                    Target::Block(bytenr, _) | Target::Data { bytenr, .. } => bytenr,
                });
            });
        }
        Ok(())
    }

    /// The number of what it does to groups that extents of one set are of another one now; `None` where it is the same one. Most extents have
    /// sets that others have had before them.
    fn number(&mut self, [before, after]: [RootSet; 2]) -> Option<usize> {
        let epochs = (self.before.sets_epoch(), self.after.sets_epoch());
        if self.epochs != epochs {
            self.met.clear();
            self.epochs = epochs;
        }
        let key = u64::from(before.number()) << 32 | u64::from(after.number());
        if let Some(known) = self.met.get(&key) {
            return *known;
        }
        let old: Vec<u64> = self.before.trees_in(before).collect();
        let fresh = &self.fresh;
        let new: Vec<u64> = self.after.trees_in(after).filter(|id| !fresh.contains(id)).collect();
        let number = (old != new).then(|| self.add(old, new));
        self.met.insert(key, number);
        number
    }

    /// The same by the trees themselves.
    fn add(&mut self, before: Vec<u64>, after: Vec<u64>) -> usize {
        let sets = [before, after];
        if let Some(number) = self.numbers.get(&sets) {
            return *number;
        }
        let [before, after] = &sets;
        let (groups, over, is_dead) = (self.groups, &mut self.over, self.is_dead);
        let steps = steps(groups, over, before, after);
        // Each tree that had it has a copy now where it is gone; what one of them took from its copy has left no record.
        let goes_on = match after.is_empty() {
            true => before.len() > 1,
            false => steps.iter().any(|(group, ..)| !is_dead(*group)),
        };
        self.trees += before.len() + after.len();
        self.moves.push(Moved { steps, goes_on, bytes: 0 });
        let number = self.moves.len() - 1;
        self.numbers.insert(sets, number);
        number
    }
}

/// What each group gains or loses of an extent whose trees have changed.
fn steps(
    groups: &Groups,
    over: &mut HashMap<u64, BTreeSet<u64>>,
    before: &[u64],
    after: &[u64],
) -> Vec<(u64, i64, i64)> {
    // How many of the trees are in each group, before and after.
    let mut members: BTreeMap<u64, [usize; 2]> = BTreeMap::new();
    for (side, trees) in [before, after].into_iter().enumerate() {
        for tree in trees {
            for group in over.entry(*tree).or_insert_with(|| groups.over(*tree)).iter() {
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
