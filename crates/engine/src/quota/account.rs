//! Counting what one commit has changed.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::changes::Changes;
use super::groups::Groups;
use crate::error::Result;
use crate::hash::Spread;
use crate::refs::Target;
use crate::refs::child_refs;
use crate::refs::owners::{Committed, Known, Owners};
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
    let Changes { touched, alone, snapshots, made: _, gone } = changes;
    let fresh: BTreeSet<u64> = snapshots.iter().map(|(snapshot, _)| *snapshot).collect();
    let (mut before, mut after) = (Known::new(versions.memory), Known::new(versions.memory));
    let mut counting = Counting {
        groups,
        is_dead: &is_dead,
        before: Owners::new(versions.blocks, versions.before, &mut before),
        after: Owners::new(versions.blocks, versions.after, &mut after),
        blocks: versions.blocks,
        fresh,
        sets: Sets::default(),
        moves: HashMap::new(),
        over: HashMap::new(),
        left: BLOCKS_MAX,
    };
    if !counting.all(touched)? {
        return Ok(false);
    }
    for (tree, bytes) in alone {
        // What a snapshot has comes with the rest of it.
        if !counting.fresh.contains(&tree) {
            counting.add(&[], &[tree], bytes);
        }
    }
    let moves = counting.moves;
    for (_, moved) in moves {
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

/// Sets of trees by number.
#[derive(Default)]
struct Sets {
    numbers: HashMap<Vec<u64>, u32>,
    /// How many trees they have, together.
    trees: usize,
}

impl Sets {
    fn number(&mut self, trees: &[u64]) -> u32 {
        if let Some(number) = self.numbers.get(trees) {
            return *number;
        }
        let number = self.numbers.len() as u32;
        self.trees += trees.len();
        self.numbers.insert(trees.to_vec(), number);
        number
    }
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

/// An extent in one version.
#[derive(Debug, Default)]
struct Reached {
    /// The trees, ascending; none where the version does not have it.
    trees: Vec<u64>,
    bytes: u64,
    /// The level and the generation of a tree block.
    block: Option<(u8, u64)>,
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
    sets: Sets,
    moves: HashMap<(u32, u32), Moved>,
    /// The groups over a subvolume.
    over: HashMap<u64, BTreeSet<u64>>,
    /// Blocks that may be gone into.
    left: usize,
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
                self.one(bytenr, &mut below)?;
            }
            if self.is_spent() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn is_spent(&self) -> bool {
        self.left == 0 || self.sets.trees > TREES_MAX
    }

    /// Counts one extent; what is below it and may have changed goes to `below`.
    fn one(&mut self, bytenr: u64, below: &mut Vec<u64>) -> Result<()> {
        let before = reached(&mut self.before, bytenr)?;
        let mut after = reached(&mut self.after, bytenr)?;
        after.trees.retain(|tree| !self.fresh.contains(tree));
        if before.trees == after.trees {
            return Ok(());
        }
        let bytes = before.bytes.max(after.bytes);
        let goes_on = self.add(&before.trees, &after.trees, bytes);
        if let Some((level, generation)) = before.block
            && goes_on
        {
            self.left = self.left.saturating_sub(1);
            let block = self.blocks.read(bytenr, level, generation, 0)?;
            child_refs(&block, |target| {
                below.push(match target {
                    Target::Block(bytenr, _) | Target::Data { bytenr, .. } => bytenr,
                });
            });
        }
        Ok(())
    }

    /// Notes that bytes of one set of trees are of another one now; whether to look at what is below them.
    fn add(&mut self, before: &[u64], after: &[u64], bytes: u64) -> bool {
        let key = (self.sets.number(before), self.sets.number(after));
        let (groups, over, is_dead) = (self.groups, &mut self.over, self.is_dead);
        let moved = self.moves.entry(key).or_insert_with(|| {
            let steps = steps(groups, over, before, after);
            // Each tree that had it has a copy now where it is gone; what one of them took from its copy has left no record.
            let goes_on = match after.is_empty() {
                true => before.len() > 1,
                false => steps.iter().any(|(group, ..)| !is_dead(*group)),
            };
            Moved { steps, goes_on, bytes: 0 }
        });
        moved.bytes = moved.bytes.saturating_add(bytes);
        moved.goes_on
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

fn reached(owners: &mut Owners<'_>, bytenr: u64) -> Result<Reached> {
    let Some(found) = owners.reached(bytenr)? else { return Ok(Reached::default()) };
    let trees = owners.trees_in(found.trees).collect();
    Ok(Reached { trees, bytes: found.bytes, block: found.block })
}
