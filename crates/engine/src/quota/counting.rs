//! Who has lost and gained what a commit has touched.
//!
//! Of a tree block both versions are asked who reaches it: blocks are few. Of a data extent that several trees may reach only the commit's own version is
//! asked, and that only where it matters. Who has lost it is known without: a tree that has a record of its loss; the trees that reached a leaf which
//! has let go of it by its address; and the trees that have lost a leaf it is in, be there a record or not, as a copy of a leaf gains and loses at once
//! what is overwritten in it. There is no other way to lose an extent: blocks are never changed, so whoever still reaches the leaf reaches what it names.
//! Before, it was reached by those who reach it now and those who have lost it, but for who has gained it, which is by a record, too.
//!
//! **Below a tree block** that has lost trees is looked at as long as somebody's numbers may tell: a tree that has a group is among these, or
//! those that are left could be somebody's alone. A deleted subvolume has no group any more, so the one who drops half of all snapshots looks below what
//! only one tree is left of.
//!
//! **Enough** is known of an extent when nobody has it alone and each loser with a group is found again, or there is none. So nothing is asked of what is
//! overwritten but whether the one who did it has it elsewhere. What somebody is left alone with is held against a leaf at the same key of
//! other trees: what both name, nobody has alone (`comparing.rs`). Never one of a tree that is dropped: its nodes name what is gone.

use std::collections::HashMap;

use buttress_ondisk::Key;

use super::account::{Moves, Versions};
use super::alike::named;
use super::changes::{Changes, Touched, TouchedBlock, Versioned};
use super::comparing::{BESIDE, Comparing, LoneLeaf, find_versions};
use crate::error::Result;
use crate::hash::Spread;
use crate::refs::owners::{Owners, Reached};
use crate::refs::{RootSet, RootSets, Sharing, Target, child_refs};
use crate::tree::{Blocks, View};

/// Tree blocks that a commit reads to see what changed below them at most, but for leaves that it has let go of one by one: of those it does not let go of more
/// than it may. Linux gives up where a subtree of three levels is dropped.
const BLOCKS_MAX: usize = 4096;

/// What was done, in the order of [`crate::Stats::QUOTA_EXTENTS`].
pub(super) type Done = [u64; 7];
const ALONE: usize = 0;
const TOLD: usize = 1;
const COMPARED: usize = 2;
const SAME: usize = 3;
const MOVED: usize = 4;
const READ: usize = 5;
const BELOW: usize = 6;

/// What has become of tree blocks that had one set of trees and have another one.
#[derive(Clone, Copy, Debug)]
struct Change {
    number: usize,
    /// The trees that reach them no more.
    lost: RootSet,
    /// Whether none of these has a group.
    is_quiet: bool,
    /// Whether what is below may have become somebody's alone, or no more be that of one that has a group, without a record.
    goes_on: bool,
    /// One that reaches them, or did, and whether it is in no group but its own.
    tree: u64,
    is_plain: bool,
}

/// A tree block that was there before.
struct Place {
    bytenr: u64,
    level: u8,
    generation: u64,
    /// What it refers to was counted as its owner's.
    was_by_tree: bool,
}

impl Place {
    fn of(one: &TouchedBlock) -> Place {
        let TouchedBlock { bytenr, level, generation, was_by_tree, .. } = *one;
        Place { bytenr, level, generation, was_by_tree }
    }
}

impl Change {
    /// A leaf of which this has come.
    fn lone_leaf(&self, place: &Place) -> LoneLeaf {
        let Change { tree, is_plain, lost, .. } = *self;
        let Place { bytenr, generation, .. } = *place;
        LoneLeaf { version_of: 0, tree, is_plain, bytenr, generation, lost, is_like_next: false }
    }
}

/// Trees may have lost what a leaf names.
fn lose(
    below: &mut Spread<u64, RootSet>,
    named: &[(Key, u64)],
    trees: RootSet,
    sets: &mut RootSets,
) {
    for (_, bytenr) in named {
        let lost = below.entry(*bytenr).or_default();
        *lost = sets.union(*lost, trees);
    }
}

pub(super) struct Counting<'a> {
    pub moves: Moves<'a>,
    pub done: Done,
    blocks: &'a Blocks,
    sharing: &'a Sharing<'a>,
    before: Owners<'a>,
    after: Owners<'a>,
    /// What comes of sets of tree blocks, as long as they are numbered so.
    changes: Spread<u64, Option<Change>>,
    /// The same of those that the merge has told of, by the sets of the changes.
    lefts: Spread<u64, Change>,
    /// The same of extents, by the set of now and the one of those who may have lost them.
    losses: Spread<u64, Option<usize>>,
    /// The same of extents that trees have lost for certain, by the sets of the changes.
    certain: Spread<u64, Option<usize>>,
    /// Whether no group has all trees of a set of now.
    nobodys: Spread<u64, bool>,
    epochs: [u64; 2],
    /// Who may have lost extents that are below tree blocks, in the sets of the changes.
    below: Spread<u64, RootSet>,
    /// Leaves that are to be compared with others.
    lone: Vec<LoneLeaf>,
    /// Trees with whose leaves those of one are compared.
    others: HashMap<u64, Vec<View<'a>>>,
    /// Blocks that may be gone into.
    left: usize,
    /// Something is as no commit of ours makes it.
    is_odd: bool,
    /// Whether one thread does it all, in order.
    is_sequential: bool,
}

impl<'a> Counting<'a> {
    pub fn new(
        moves: Moves<'a>,
        versions: &Versions<'a>,
        [before, after]: [Owners<'a>; 2],
    ) -> Counting<'a> {
        Counting {
            moves,
            done: Done::default(),
            blocks: versions.blocks,
            sharing: versions.sharing,
            before,
            after,
            changes: Spread::default(),
            lefts: Spread::default(),
            losses: Spread::default(),
            certain: Spread::default(),
            nobodys: Spread::default(),
            epochs: [0; 2],
            below: Spread::default(),
            lone: Vec::new(),
            others: HashMap::new(),
            left: BLOCKS_MAX,
            is_odd: false,
            is_sequential: versions.is_sequential,
        }
    }

    /// Whether all of it could be counted.
    pub fn all(&mut self, changes: &mut Changes) -> Result<bool> {
        self.done[ALONE] += changes.settled;
        self.done[TOLD] += changes.told;
        for (tree, bytes) in std::mem::take(&mut changes.alone) {
            // What a snapshot has comes with the rest of it.
            if !self.moves.is_fresh(tree) {
                let (had, has) =
                    if bytes < 0 { (vec![tree], vec![]) } else { (vec![], vec![tree]) };
                let number = self.moves.number(had, has);
                self.moves.count(number, bytes.unsigned_abs());
            }
        }
        let blocks = std::mem::take(&mut changes.blocks);
        if !self.all_blocks(blocks, &mut changes.sets)? {
            return Ok(false);
        }
        self.all_extents(changes)?;
        Ok(!self.is_spent() && !changes.sets.is_full())
    }

    fn is_spent(&self) -> bool {
        self.left == 0 || self.is_odd || self.moves.is_spent()
    }

    // ---- tree blocks ----

    /// Counts tree blocks, and finds what is below them; whether that could be done.
    fn all_blocks(&mut self, mut touched: Vec<TouchedBlock>, sets: &mut RootSets) -> Result<bool> {
        // Each merge of a log of references has told of them in order.
        touched.sort_by_key(|one| one.bytenr);
        self.is_odd |= touched.windows(2).any(|pair| pair[0].bytenr == pair[1].bytenr);
        let (mut below, mut met) = (Vec::new(), Spread::<u64, ()>::default());
        for one in &touched {
            match one.left {
                Some(left) => {
                    let change = self.left(left, sets);
                    self.changed_block(change, &Place::of(one), &mut below, sets)?;
                }
                None => self.block(one.bytenr, one.was_by_tree, &mut below, sets)?,
            }
            if self.is_spent() {
                return Ok(false);
            }
        }
        while let Some(bytenr) = below.pop() {
            let is_touched = touched.binary_search_by_key(&bytenr, |one| one.bytenr).is_ok();
            if !is_touched && met.insert(bytenr, ()).is_none() {
                self.done[BELOW] += 1;
                self.block(bytenr, false, &mut below, sets)?;
            }
            if self.is_spent() {
                return Ok(false);
            }
        }
        self.lone_leaves(sets)?;
        Ok(true)
    }

    /// Counts one tree block; blocks below it that may have changed go to `below`.
    fn block(
        &mut self,
        bytenr: u64,
        was_by_tree: bool,
        below: &mut Vec<u64>,
        sets: &mut RootSets,
    ) -> Result<()> {
        let (before, after) = (self.before.reached(bytenr)?, self.after.reached(bytenr)?);
        let of = |it: &Option<Reached>| it.as_ref().map_or(RootSet::EMPTY, |it| it.trees);
        let Some(change) = self.change([of(&before), of(&after)], sets) else {
            self.done[SAME] += 1;
            return Ok(());
        };
        match before.and_then(|before| before.block) {
            Some((level, generation)) => {
                let place = Place { bytenr, level, generation, was_by_tree };
                self.changed_block(change, &place, below, sets)
            }
            None => {
                self.count_block(&change);
                Ok(())
            }
        }
    }

    fn count_block(&mut self, change: &Change) {
        self.done[MOVED] += 1;
        self.moves.count(change.number, self.blocks.nodesize() as u64);
    }

    /// Counts a tree block of which that has come.
    fn changed_block(
        &mut self,
        change: Change,
        place: &Place,
        below: &mut Vec<u64>,
        sets: &mut RootSets,
    ) -> Result<()> {
        self.count_block(&change);
        if !change.goes_on {
            return Ok(());
        }
        if place.level == 0 && change.is_quiet && !place.was_by_tree {
            match self.sharing.key_of(place.bytenr) {
                Some(_) => self.done[READ] += 1,
                None => self.look_below(),
            }
            self.lone.push(change.lone_leaf(place));
            return Ok(());
        }
        let block = self.blocks.read(place.bytenr, place.level, place.generation, 0)?;
        // All that it names has a record then: it is counted by the address of the leaf, which others still reach, and what is not in the owner's copy is not his.
        let is_owners = place.was_by_tree && block.is_leaf();
        if is_owners && change.lost == sets.single(block.owner()) {
            return Ok(());
        }
        self.look_below();
        if !block.is_leaf() {
            child_refs(&block, |target| {
                if let Target::Block(bytenr, _) = target {
                    below.push(bytenr);
                }
            });
            return Ok(());
        }
        match change.is_quiet {
            true => self.lone.push(change.lone_leaf(place)),
            false => lose(&mut self.below, &named(&block), change.lost, sets),
        }
        Ok(())
    }

    fn look_below(&mut self) {
        self.done[READ] += 1;
        self.left = self.left.saturating_sub(1);
    }

    /// What comes of it that tree blocks are left with some trees, which others, without groups, have shared with these.
    fn left(&mut self, [left, lost]: [RootSet; 2], sets: &mut RootSets) -> Change {
        let key = u64::from(left.number()) << 32 | u64::from(lost.number());
        if let Some(known) = self.lefts.get(&key) {
            return *known;
        }
        let before = sets.union(left, lost);
        let (old, new) = (sets.trees(before).collect(), sets.trees(left).collect());
        let change = self.changed(old, new, sets);
        self.lefts.insert(key, change);
        change
    }

    /// What comes of it that tree blocks have another set of trees; `None` where it is the same one.
    fn change(&mut self, [before, after]: [RootSet; 2], sets: &mut RootSets) -> Option<Change> {
        self.forget();
        let key = u64::from(before.number()) << 32 | u64::from(after.number());
        if let Some(known) = self.changes.get(&key) {
            return *known;
        }
        let old: Vec<u64> = self.before.trees_in(before).collect();
        let new = self.after.trees_in(after);
        let new: Vec<u64> = new.filter(|tree| !self.moves.is_fresh(*tree)).collect();
        let change = (old != new).then(|| self.changed(old, new, sets));
        self.changes.insert(key, change);
        change
    }

    fn changed(&mut self, old: Vec<u64>, new: Vec<u64>, sets: &mut RootSets) -> Change {
        let has = |set: &[u64], tree: &u64| set.binary_search(tree).is_ok();
        // A block that is there already gets trees by snapshots alone.
        self.is_odd |= !old.is_empty() && new.iter().any(|tree| !has(&old, tree));
        let mut lost: Vec<u64> = old.iter().copied().filter(|tree| !has(&new, tree)).collect();
        let is_quiet = !lost.iter().any(|tree| self.moves.has_group(*tree));
        let is_left = !new.is_empty();
        let may_be_alone = is_left && !self.moves.is_nobodys(new.iter().copied());
        let tree = new.first().or(old.first()).copied().unwrap_or_default();
        Change {
            lost: sets.of(&mut lost),
            is_quiet,
            goes_on: old.len() > 1 && !lost.is_empty() && (!is_quiet || may_be_alone),
            tree,
            is_plain: !self.moves.is_fresh(tree) && self.moves.is_plain(tree),
            number: self.moves.number(old, new),
        }
    }

    /// Forgets what is known by the numbers of sets, when these mean nothing any more.
    fn forget(&mut self) {
        let epochs = [self.before.sets_epoch(), self.after.sets_epoch()];
        if self.epochs != epochs {
            self.changes.clear();
            self.losses.clear();
            self.nobodys.clear();
            self.epochs = epochs;
        }
    }

    /// Finds what leaves name that somebody is left alone with.
    fn lone_leaves(&mut self, sets: &mut RootSets) -> Result<()> {
        let mut lone = std::mem::take(&mut self.lone);
        let known = |one: &LoneLeaf| self.sharing.key_of(one.bytenr);
        find_versions(self.blocks, &mut lone, known, self.is_sequential)?;
        lone.sort_unstable_by_key(|one| (one.version_of, one.tree));
        for number in 0..lone.len() {
            let (one, next) = (&lone[number], lone.get(number + 1));
            let is_like_next = next.is_some_and(|next| self.are_alike(one, next));
            self.find_others(one.tree)?;
            lone[number].is_like_next = is_like_next;
        }
        let Counting { blocks, is_sequential, ref others, .. } = *self;
        let comparing = Comparing { blocks, others, is_sequential };
        let found =
            |one: &LoneLeaf, named: &[(Key, u64)]| lose(&mut self.below, named, one.lost, sets);
        comparing.all(&lone, found)?;
        self.done[COMPARED] += lone.len() as u64;
        Ok(())
    }

    /// Whether two leaves are versions of one, and what both name nobody has alone.
    fn are_alike(&mut self, one: &LoneLeaf, other: &LoneLeaf) -> bool {
        if one.version_of != other.version_of {
            return false;
        }
        if one.is_plain && other.is_plain {
            return one.tree != other.tree;
        }
        let (trees, moves) = ([one.tree, other.tree], &mut self.moves);
        trees.iter().all(|tree| !moves.is_fresh(*tree)) && moves.is_nobodys(trees)
    }

    /// Finds the trees that one is compared with: no group has both, and none is being dropped.
    fn find_others(&mut self, tree: u64) -> Result<()> {
        if self.others.contains_key(&tree) {
            return Ok(());
        }
        let mut views = Vec::new();
        for other in self.moves.beside(tree, BESIDE) {
            if self.moves.is_fresh(other) || !self.moves.is_nobodys([tree, other]) {
                continue;
            }
            views.extend(self.after.living(other)?);
        }
        self.others.insert(tree, views);
        Ok(())
    }

    // ---- data extents ----

    /// Counts all extents that have records, or are below tree blocks that have lost trees.
    fn all_extents(&mut self, changes: &mut Changes) -> Result<()> {
        let mut touched = std::mem::take(&mut changes.extents);
        touched.sort_unstable_by_key(|one| one.bytenr);
        self.is_odd |= touched.windows(2).any(|pair| pair[0].bytenr == pair[1].bytenr);
        self.find_released(std::mem::take(&mut changes.released), &mut changes.sets)?;
        let mut below = std::mem::take(&mut self.below);
        for one in &mut touched {
            if below.is_empty() {
                break;
            }
            let lost = below.remove(&one.bytenr).unwrap_or_default();
            let all = changes.sets.union(one.lost, lost);
            one.is_certain &= all == one.lost;
            one.lost = all;
        }
        let mut rest: Vec<(u64, RootSet)> = below.into_iter().collect();
        rest.sort_unstable();
        let mut rest = rest.into_iter().peekable();
        for one in touched {
            while let Some((bytenr, lost)) = rest.next_if(|(bytenr, _)| *bytenr < one.bytenr) {
                self.losses_of(bytenr, lost, &changes.sets)?;
            }
            self.extent(&one, &mut changes.sets)?;
            if self.is_spent() {
                return Ok(());
            }
        }
        rest.try_for_each(|(bytenr, lost)| self.losses_of(bytenr, lost, &changes.sets))
    }

    /// Those that reached leaves may have lost what these have let go of by their addresses.
    fn find_released(&mut self, released: Vec<(u64, u64)>, sets: &mut RootSets) -> Result<()> {
        let mut leaves: Spread<u64, RootSet> = Spread::default();
        for (bytenr, leaf) in released {
            let lost = match leaves.get(&leaf) {
                Some(known) => *known,
                None => {
                    let trees = self.before.trees_of_parent(leaf, 0)?;
                    let mut trees: Vec<u64> = self.before.trees_in(trees).collect();
                    let trees = sets.of(&mut trees);
                    leaves.insert(leaf, trees);
                    trees
                }
            };
            let all = self.below.entry(bytenr).or_default();
            *all = sets.union(*all, lost);
        }
        Ok(())
    }

    /// Counts one extent that has records.
    fn extent(&mut self, one: &Touched, sets: &mut RootSets) -> Result<()> {
        let bytenr = one.bytenr;
        if one.is_certain
            && let Some(number) = self.certain_loss(one.lost, sets)
        {
            self.done[TOLD] += 1;
            self.moves.count(number, one.bytes);
            return Ok(());
        }
        match one.version {
            Versioned::Before => {
                self.done[TOLD] += 1;
                let number = self.moves.number(sets.trees(one.lost).collect(), Vec::new());
                self.moves.count(number, one.bytes);
                return Ok(());
            }
            Versioned::After => return self.exactly(bytenr),
            Versioned::Both => {}
        }
        if !sets.is_subset(one.gained, one.lost) {
            return self.exactly(bytenr);
        }
        if sets.is_subset(one.lost, one.has) {
            self.done[TOLD] += 1;
            return Ok(());
        }
        let lost = sets.difference(one.lost, one.has);
        if self.moves.with_groups(sets, lost).is_empty()
            && self.moves.is_nobodys(sets.trees(one.has))
        {
            self.done[TOLD] += 1;
            return Ok(());
        }
        self.losses_of(bytenr, lost, sets)
    }

    /// What comes of it that these trees, which are in no other groups than their own, have an extent no more that nobody has alone.
    fn certain_loss(&mut self, lost: RootSet, sets: &RootSets) -> Option<usize> {
        let moves = &mut self.moves;
        *self.certain.entry(lost.number().into()).or_insert_with(|| {
            let trees: Vec<u64> = sets.trees(lost).collect();
            // Somebody may have put one into another group meanwhile.
            let is_plain = trees.iter().all(|tree| moves.is_plain(*tree));
            is_plain.then(|| moves.loss(trees, &[]))
        })
    }

    /// Counts an extent of which nothing is known but that these trees have reached it, and no tree has gained it.
    fn losses_of(&mut self, bytenr: u64, lost: RootSet, sets: &RootSets) -> Result<()> {
        let losers = self.moves.with_groups(sets, lost);
        self.after.begin();
        self.forget();
        let (moves, nobodys) = (&mut self.moves, &mut self.nobodys);
        let is_enough = |sets: &RootSets, found: RootSet| {
            losers.iter().all(|tree| sets.contains(found, *tree))
                && *nobodys
                    .entry(found.number().into())
                    .or_insert_with(|| moves.is_nobodys(sets.trees(found)))
        };
        let Some(found) = self.after.reached_until(bytenr, is_enough)? else {
            // It would have records.
            self.is_odd = true;
            return Ok(());
        };
        match self.loss(found.trees, lost, sets) {
            Some(number) => {
                self.done[MOVED] += 1;
                self.moves.count(number, found.bytes);
            }
            None => self.done[SAME] += 1,
        }
        Ok(())
    }

    /// What comes of it that some have an extent, as the last question was answered, and of these trees some may have it no more.
    fn loss(&mut self, found: RootSet, lost: RootSet, sets: &RootSets) -> Option<usize> {
        self.forget();
        let key = u64::from(found.number()) << 32 | u64::from(lost.number());
        if let Some(known) = self.losses.get(&key) {
            return *known;
        }
        let now = self.after.trees_in(found);
        let now: Vec<u64> = now.filter(|tree| !self.moves.is_fresh(*tree)).collect();
        let gone = sets.trees(lost).filter(|tree| now.binary_search(tree).is_err());
        let gone: Vec<u64> = gone.collect();
        let number = (!gone.is_empty()).then(|| {
            if self.moves.is_nobodys(now.iter().copied()) {
                return self.moves.loss(gone, &now);
            }
            let mut before = [&*now, &gone].concat();
            before.sort_unstable();
            self.moves.number(before, now)
        });
        self.losses.insert(key, number);
        number
    }

    /// Counts an extent by who reaches it in both versions.
    fn exactly(&mut self, bytenr: u64) -> Result<()> {
        let (before, after) = (self.before.reached(bytenr)?, self.after.reached(bytenr)?);
        let of = |it: &Option<Reached>| it.as_ref().map_or(RootSet::EMPTY, |it| it.trees);
        let old: Vec<u64> = self.before.trees_in(of(&before)).collect();
        let new = self.after.trees_in(of(&after));
        let new: Vec<u64> = new.filter(|tree| !self.moves.is_fresh(*tree)).collect();
        if old == new {
            self.done[SAME] += 1;
            return Ok(());
        }
        self.done[MOVED] += 1;
        let bytes = [before, after].iter().flatten().map(|it| it.bytes).max();
        let number = self.moves.number(old, new);
        self.moves.count(number, bytes.unwrap_or(0));
        Ok(())
    }
}
