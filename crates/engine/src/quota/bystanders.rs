//! Extents of which a commit lets go without a group gaining or losing anything: known while the item of the extent is at hand, and asked no more.
//!
//! **Bystanders** are the trees that a commit does not change: they reach after it what they have reached before. So does a tree that the item of an
//! extent names. Where those who let go have no group, as deleted subvolumes have none, and there are some of the former of whom no group has all,
//! nobody has had the extent alone and nobody will, whoever else lets go of it. Where nobody has it any more, no group has lost it. That is most of what
//! dropping subvolumes touches.
//!
//! Someone may let go of an extent without a record: he has left a block above it, which another one who left that, too, has owned. He is found from there: the
//! blocks that he alone has reached have records that name him, and below all others is looked at, as he has a group. Only of data that are gone nothing could
//! be asked then, so those that a tree has owned are left to be told.
//!
//! **One who overwrites** what is below snapshots has a group, and loses bytes of it. That he has the extent no more is certain where no reference of any tree is left, and
//! the leaves that have it by their addresses are not his: he was not among those who reached them in the last version, or has owned them until he got a copy.
//! Bystanders have it still, so nobody has had it alone.
//!
//! What is known of a block is at hand in a step or two ([`Near`]), as the same blocks are met with each extent of a leaf.

use std::collections::BTreeSet;
use std::num::NonZeroU64;

use buttress_ondisk::view::InlineRef;
use buttress_ondisk::{kind, objectid};
use parking_lot::Mutex;

use super::Quota;
use super::changes::Changes;
use crate::error::Result;
use crate::hash::Spread;
use crate::refs::owners::Owners;
use crate::refs::{Extent, Record, RootSet, RootSets, Sharing};

/// Commits after which all is looked for anew: trees that have changed once are no bystanders until then.
const COMMITS_MAX: u32 = 64;
/// Places for what is known of blocks or trees in one commit, powers of two.
const NEAR_MIN: usize = 64;
const NEAR_MAX: usize = 8192;
/// No block's address, and no tree.
const NOWHERE: u64 = u64::MAX;
/// Bytes that a block takes in the table, about.
const BLOCK_BYTES: u64 = 48;

/// Who reaches blocks, as commits one after the other have found out. Nobody but snapshots gets to a block that is there, so who reached it when it was looked for is
/// all that may reach it, until a snapshot is taken or the block is freed; and those of them that have not changed since do.
#[derive(Debug)]
pub struct Remembered {
    blocks: Spread<u64, RootSet>,
    sets: RootSets,
    /// Trees that have changed since.
    changed: BTreeSet<u64>,
    /// The generation of the version that it is of, and how many commits it is old.
    version: u64,
    commits: u32,
    /// Whether the running commit takes snapshots.
    takes_snapshots: bool,
    /// Bytes for blocks, and the same for sets.
    bytes_max: u64,
}

impl Remembered {
    fn new(bytes_max: u64) -> Remembered {
        let (blocks, sets) = (Spread::default(), RootSets::bounded(bytes_max));
        let changed = BTreeSet::new();
        let (version, commits, takes_snapshots) = (0, 0, false);
        Remembered { blocks, sets, changed, version, commits, takes_snapshots, bytes_max }
    }

    /// What is known still in a commit with these changes to this version.
    pub fn take(
        from: Option<Remembered>,
        version: u64,
        changes: &Changes,
        bytes_max: u64,
    ) -> Remembered {
        let is_good = |it: &Remembered| {
            let bytes = it.sets.bytes().max(it.blocks.len() as u64 * BLOCK_BYTES);
            it.version == version && it.commits < COMMITS_MAX && bytes < it.bytes_max / 2
        };
        let from = from.filter(|it| is_good(it) && changes.snapshots.is_empty());
        let mut it = from.unwrap_or_else(|| Remembered::new(bytes_max));
        it.changed.extend(&changes.changed);
        it.takes_snapshots = !changes.snapshots.is_empty();
        it
    }

    /// The same in the version that the commit has made; nothing where that has snapshots which reach more than is known.
    pub fn kept(self, version: u64) -> Option<Remembered> {
        let kept = Remembered { version, commits: self.commits + 1, ..self };
        (!kept.takes_snapshots).then_some(kept)
    }

    /// Blocks that only one tree reached in the last version.
    pub fn note(&mut self, blocks: Vec<(u64, u64)>) {
        for (block, tree) in blocks {
            let trees = self.sets.single(tree);
            self.insert(block, trees);
        }
    }

    /// Blocks are freed: something else may be there soon.
    pub fn forget(&mut self, blocks: &[u64]) {
        for block in blocks {
            self.blocks.remove(block);
        }
    }

    fn insert(&mut self, block: u64, trees: RootSet) {
        if self.blocks.len() as u64 * BLOCK_BYTES >= self.bytes_max {
            self.blocks.clear();
        }
        self.blocks.insert(block, trees);
    }
}

/// The trees that a commit does not change, and what they reach.
pub struct Bystanders<'a> {
    /// Who reaches what in the last version.
    owners: Owners<'a>,
    sharing: &'a Sharing<'a>,
    remembered: &'a mut Remembered,
    quota: &'a Mutex<Quota>,
    /// Snapshots that do not count yet.
    fresh: BTreeSet<u64>,
    /// Subvolumes that the commit deletes, whose groups go with it.
    leaving: BTreeSet<u64>,
    /// The groups over a tree.
    over: Spread<u64, BTreeSet<u64>>,
    /// The level of a tree's root in the last version, if it has one, and the set of the tree.
    tops: Spread<u64, (Option<u8>, RootSet)>,
    /// What is known of blocks, and of sets of trees.
    near: Near,
    /// The same of trees that have references of their own.
    trees: Near,
    seen: Spread<u64, Seen>,
    /// Whether no group has all trees of a set.
    nobodys: Spread<u64, bool>,
    /// Sets as they are remembered, by those of the last version, as long as these are numbered so.
    numbers: Spread<u64, RootSet>,
    epoch: u64,
    /// The same as those who count have them.
    told: Spread<u64, RootSet>,
    last: Last,
}

/// What was asked last, as the next one most often asks the same.
#[derive(Debug, Default)]
struct Last {
    /// A tree that has an extent with exactly these references no more.
    lost: (u64, Vec<Way>),
    /// The references of a tree block, first those that somebody has let go of, and how many these are; and its trees.
    left: (Vec<Way>, usize, u8, [RootSet; 2]),
}

/// What is known of blocks, or of trees. Each has one place, by its number, which others have, too: what was put there last is found.
#[derive(Debug)]
struct Near {
    places: Vec<(u64, Seen)>,
    /// How many were put there since it has had so many places.
    put: usize,
    /// Bits that are the same in all numbers.
    shift: u32,
}

impl Near {
    /// Of numbers that are multiples of `step`, a power of two.
    fn new(step: usize) -> Near {
        Near { places: Vec::new(), put: 0, shift: step.trailing_zeros() }
    }

    #[inline]
    fn place(&self, number: u64) -> usize {
        (number >> self.shift) as usize & self.places.len().wrapping_sub(1)
    }

    #[inline]
    fn get(&self, number: u64) -> Option<&Seen> {
        let (known, seen) = self.places.get(self.place(number))?;
        (*known == number).then_some(seen)
    }

    fn put(&mut self, number: u64, seen: Seen) {
        if self.put == self.places.len() && self.put < NEAR_MAX {
            let more = (2 * self.put).max(NEAR_MIN);
            let old = std::mem::replace(&mut self.places, vec![(NOWHERE, Seen::default()); more]);
            self.put = 0;
            old.into_iter().filter(|it| it.0 != NOWHERE).for_each(|it| self.put(it.0, it.1));
        }
        self.put += 1;
        let place = self.place(number);
        if let Some(known) = self.places.get_mut(place) {
            *known = (number, seen);
        }
    }
}

/// A kind of reference, and the tree or the block that has it.
type Way = (u8, u64);

/// Who lets go of an extent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Losers {
    /// There are none.
    #[default]
    None,
    /// Nobody who has a group.
    Quiet,
    /// One tree that is in no other group than its own, and others without groups.
    One(u64),
    Others,
}

/// What the records of an extent that was there before have made of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Settled {
    /// No group gains or loses anything.
    Same,
    /// This tree, which is in no other group than its own, has it no more, and nobody has had it alone, nor does.
    LostBy(u64),
    /// Who counts has to ask.
    Unknown,
}

/// What is known of the blocks that a set of trees may reach.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    /// Those who may reach them.
    all: RootSet,
    /// Those who reach them for certain.
    bystanders: RootSet,
    /// Nobody who may reach them has a group.
    is_quiet: bool,
    /// No group has all bystanders.
    is_nobodys: bool,
    /// A bystander that is in no other group than its own.
    plain: Option<NonZeroU64>,
}

/// Bystanders that have an extent.
#[derive(Debug, Default)]
struct Found {
    all: RootSet,
    /// One that is in no other group than its own.
    plain: Option<NonZeroU64>,
}

impl<'a> Bystanders<'a> {
    /// Those of a commit with these changes; `owners` are of the version before it.
    pub fn new(
        owners: Owners<'a>,
        sharing: &'a Sharing<'a>,
        remembered: &'a mut Remembered,
        quota: &'a Mutex<Quota>,
        changes: &Changes,
    ) -> Bystanders<'a> {
        let near = Near::new(owners.blocks().nodesize());
        Bystanders {
            owners,
            sharing,
            remembered,
            quota,
            fresh: changes.snapshots.iter().map(|(snapshot, _)| *snapshot).collect(),
            leaving: changes.leaving(),
            over: Spread::default(),
            tops: Spread::default(),
            near,
            trees: Near::new(1),
            seen: Spread::default(),
            nobodys: Spread::default(),
            numbers: Spread::default(),
            epoch: 0,
            told: Spread::default(),
            last: Last::default(),
        }
    }

    /// Whether it is seen at once that no group gains or loses anything: leaves that nobody with a group has reached let go of data, which are gone by that, or which
    /// several have still. That is most of what is dropped.
    pub(super) fn is_plainly_same(&mut self, records: &[Record], extent: &Extent) -> bool {
        let lets_go = |one: &Record| one.kind == kind::SHARED_DATA_REF && one.delta < 0;
        let are_quiet = records.iter().all(|one| lets_go(one) && self.seen(one.owner, 0).is_quiet);
        are_quiet
            && (extent.refs == 0 || self.has_several(0, extent))
            && !self.remembered.sets.is_full()
    }

    /// What these records, all those of an extent that was there before, have made of it.
    pub(super) fn settle(&mut self, records: &[Record], extent: &Extent) -> Settled {
        let is_gone = extent.refs == 0;
        let level = records.iter().find(|one| one.is_reference()).map_or(0, above);
        let settled = match self.losers(records, is_gone) {
            Losers::None => Settled::Same,
            Losers::Quiet if is_gone => Settled::Same,
            Losers::Quiet if self.has_several(level, extent) => Settled::Same,
            Losers::One(tree) if !is_gone && self.has_several(level, extent) => {
                match self.has_lost(tree, extent) {
                    Some(true) => Settled::LostBy(tree),
                    Some(false) => Settled::Same,
                    None => Settled::Unknown,
                }
            }
            _ => Settled::Unknown,
        };
        if self.remembered.sets.is_full() { Settled::Unknown } else { settled }
    }

    /// The trees that reach a tree block of which these records let go, and those that do no more, which have no group; in `sets`. `None` where that
    /// is not certain.
    pub(super) fn left(
        &mut self,
        records: &[Record],
        extent: &Extent,
        sets: &mut RootSets,
    ) -> Option<[RootSet; 2]> {
        let level = records.iter().find(|one| one.is_reference()).map(above)?;
        if extent.has_keyed() {
            return None;
        }
        let let_go = records.iter().filter(|one| lets_go(one)).map(|one| (one.kind, one.owner));
        let ways = let_go.clone().chain(extent.inline.iter().filter_map(|(one, _)| way(one)));
        let (known, count, of, answer) = &self.last.left;
        let is_same = (*count, *of) == (let_go.clone().count(), level);
        if is_same && ways.clone().eq(known.iter().copied()) {
            return Some(*answer);
        }
        let [left, lost] = self.find_left(records, extent, level)?;
        if self.remembered.sets.is_full() {
            return None;
        }
        let answer = [left, lost].map(|set| self.in_sets(set, sets));
        self.last.left = (ways.collect(), let_go.count(), level, answer);
        Some(answer)
    }

    /// The same, in the sets that are remembered.
    fn find_left(
        &mut self,
        records: &[Record],
        extent: &Extent,
        level: u8,
    ) -> Option<[RootSet; 2]> {
        let (mut left, mut lost) = (RootSet::EMPTY, RootSet::EMPTY);
        for record in records.iter().filter(|one| lets_go(one)) {
            let trees = match record.kind {
                kind::SHARED_BLOCK_REF => {
                    let seen = self.seen(record.owner, level);
                    if seen.is_quiet { seen.all } else { RootSet::EMPTY }
                }
                kind::TREE_BLOCK_REF if self.over(record.owner).is_empty() => {
                    self.only_below_root(record.owner, level)
                }
                _ => RootSet::EMPTY,
            };
            if trees.is_empty() {
                return None;
            }
            lost = self.remembered.sets.union(lost, trees);
        }
        for (one, _) in &extent.inline {
            let trees = match *one {
                InlineRef::SharedBlock { parent } => {
                    let seen = self.seen(parent, level);
                    if seen.all == seen.bystanders { seen.all } else { RootSet::EMPTY }
                }
                InlineRef::TreeBlock { root } if !self.remembered.changed.contains(&root) => {
                    self.only_below_root(root, level)
                }
                _ => RootSet::EMPTY,
            };
            if trees.is_empty() {
                return None;
            }
            left = self.remembered.sets.union(left, trees);
        }
        (!lost.is_empty() && !left.is_empty()).then_some([left, lost])
    }

    /// A tree whose only block of a level is its root, which nobody shares with it: nobody else has had a reference of the tree from that level.
    fn only_below_root(&mut self, tree: u64, level: u8) -> RootSet {
        let (owners, sets) = (&mut self.owners, &mut self.remembered.sets);
        let (root, set) = *self.tops.entry(tree).or_insert_with(|| {
            let root = owners.tree(tree).ok().map(|view| view.root().level);
            (root, sets.single(tree))
        });
        if root == Some(level) { set } else { RootSet::EMPTY }
    }

    fn in_sets(&mut self, set: RootSet, sets: &mut RootSets) -> RootSet {
        *self.told.entry(set.number().into()).or_insert_with(|| {
            let mut trees: Vec<u64> = self.remembered.sets.trees(set).collect();
            sets.of(&mut trees)
        })
    }

    /// Who lets go of an extent.
    fn losers(&mut self, records: &[Record], is_gone: bool) -> Losers {
        let mut all = Losers::None;
        for record in records.iter().filter(|one| lets_go(one)) {
            let is_data = record.kind == kind::EXTENT_DATA_REF;
            let seen = match record.kind {
                kind::SHARED_BLOCK_REF | kind::SHARED_DATA_REF => {
                    self.seen(record.owner, above(record))
                }
                _ => self.seen_of_tree(record.owner),
            };
            let one = match seen.plain {
                _ if is_data && is_gone => Losers::Others,
                _ if seen.is_quiet => Losers::Quiet,
                Some(tree) if is_data => Losers::One(tree.get()),
                _ => Losers::Others,
            };
            all = match (all, one) {
                (Losers::None | Losers::Quiet, one) => one,
                (all, Losers::Quiet) => all,
                (Losers::One(tree), Losers::One(other)) if tree == other => all,
                _ => return Losers::Others,
            };
        }
        all
    }

    /// Whether it is certain that a tree, which has let go of references to a data extent, does not reach it any more, or that it does.
    fn has_lost(&mut self, tree: u64, extent: &Extent) -> Option<bool> {
        let ways = extent.inline.iter().filter_map(|(one, _)| way(one));
        if self.last.lost.0 == tree && ways.clone().eq(self.last.lost.1.iter().copied()) {
            return Some(true);
        }
        if extent.has_keyed() {
            return None;
        }
        let mut is_certain = true;
        for (one, _) in &extent.inline {
            match *one {
                InlineRef::ExtentData { root, .. } if root == tree => return Some(false),
                InlineRef::SharedData { parent, .. } => {
                    is_certain &= self.has_no(tree, parent);
                }
                InlineRef::Owner { .. } => {}
                // It may share a leaf with the other one.
                _ => is_certain = false,
            }
        }
        if is_certain {
            self.last.lost.0 = tree;
            self.last.lost.1.clear();
            self.last.lost.1.extend(ways);
        }
        is_certain.then_some(true)
    }

    /// Whether it is certain that a tree does not reach a leaf.
    fn has_no(&mut self, tree: u64, leaf: u64) -> bool {
        if !self.remembered.blocks.contains_key(&leaf) && self.sharing.is_left_by(leaf, tree) {
            return true;
        }
        let all = self.seen(leaf, 0).all;
        !all.is_empty()
            && (!self.remembered.sets.contains(all, tree) || self.sharing.is_left_by(leaf, tree))
    }

    /// Whether it is certain that several have an extent, of whom no group has all.
    #[inline]
    fn has_several(&mut self, level: u8, extent: &Extent) -> bool {
        // What a tree has still begins with references that its neighbours have, too; what is only in snapshots ends with such ones. So few blocks are asked for.
        let from_start = extent.inline.first().is_some_and(|(one, _)| is_by_tree(one));
        let mut found = Found::default();
        let mut refs = extent.inline.iter();
        while let Some((one, _)) = if from_start { refs.next() } else { refs.next_back() } {
            if self.are_several(&mut found, one, level) {
                return true;
            }
        }
        false
    }

    /// Whether those who were found and who have one more reference are several, of whom no group has all.
    #[inline]
    fn are_several(&mut self, found: &mut Found, one: &InlineRef, level: u8) -> bool {
        let seen = match *one {
            InlineRef::SharedBlock { parent } | InlineRef::SharedData { parent, .. } => {
                self.seen(parent, level)
            }
            InlineRef::TreeBlock { root } | InlineRef::ExtentData { root, .. } => {
                self.seen_of_tree(root)
            }
            InlineRef::Owner { .. } => return false,
        };
        if seen.is_nobodys {
            return true;
        }
        // Who is in no other group than his own is in none with anybody else.
        let are_several = match (found.plain, seen.plain) {
            (Some(one), Some(other)) => one != other,
            (Some(_), None) => !seen.bystanders.is_empty(),
            (None, Some(_)) => !found.all.is_empty(),
            (None, None) if seen.bystanders.is_empty() => false,
            (None, None) => {
                found.all = self.remembered.sets.union(found.all, seen.bystanders);
                self.is_nobodys(found.all)
            }
        };
        found.plain = found.plain.or(seen.plain);
        are_several
    }

    /// What is known of who has a reference of his own: he has it, and others may by his block.
    #[inline]
    fn seen_of_tree(&mut self, tree: u64) -> Seen {
        match self.trees.get(tree) {
            Some(seen) => *seen,
            None => self.look_at_tree(tree),
        }
    }

    #[inline(never)]
    fn look_at_tree(&mut self, tree: u64) -> Seen {
        let counts = !self.fresh.contains(&tree) && objectid::is_subvolume(tree);
        let is_quiet = self.over(tree).is_empty();
        let seen = match self.is_plain(tree) {
            _ if !counts => Seen { is_quiet, ..Seen::default() },
            true => Seen { plain: NonZeroU64::new(tree), ..Seen::default() },
            false => Seen {
                bystanders: self.remembered.sets.single(tree),
                is_nobodys: is_quiet,
                is_quiet,
                ..Seen::default()
            },
        };
        self.trees.put(tree, seen);
        seen
    }

    /// What is known of the block at an address.
    #[inline]
    fn seen(&mut self, bytenr: u64, level: u8) -> Seen {
        match self.near.get(bytenr) {
            Some(seen) => *seen,
            None => self.look_at(bytenr, level),
        }
    }

    #[inline(never)]
    fn look_at(&mut self, bytenr: u64, level: u8) -> Seen {
        let trees = match self.remembered.blocks.get(&bytenr) {
            Some(trees) => *trees,
            None => match self.ask(bytenr, level) {
                Ok(trees) => trees,
                // What cannot be found out here is asked, and said, by who counts the extent.
                Err(_) => return Seen::default(),
            },
        };
        let seen = self.seen_of(trees);
        self.near.put(bytenr, seen);
        seen
    }

    /// The trees that reach a block in the last version.
    fn ask(&mut self, bytenr: u64, level: u8) -> Result<RootSet> {
        let trees = self.owners.trees_of_parent(bytenr, level)?;
        let epoch = self.owners.sets_epoch();
        if std::mem::replace(&mut self.epoch, epoch) != epoch {
            self.numbers.clear();
        }
        let trees = *self.numbers.entry(trees.number().into()).or_insert_with(|| {
            let mut trees: Vec<u64> = self.owners.trees_in(trees).collect();
            self.remembered.sets.of(&mut trees)
        });
        self.remembered.insert(bytenr, trees);
        Ok(trees)
    }

    fn seen_of(&mut self, set: RootSet) -> Seen {
        let number = u64::from(set.number());
        if let Some(seen) = self.seen.get(&number) {
            return *seen;
        }
        let trees: Vec<u64> = self.remembered.sets.trees(set).collect();
        let is_quiet = trees.iter().all(|tree| self.over(*tree).is_empty());
        let Remembered { changed, sets, .. } = &mut *self.remembered;
        let stays = |tree: &u64| !changed.contains(tree) && objectid::is_subvolume(*tree);
        let mut stay: Vec<u64> = trees.into_iter().filter(stays).collect();
        let bystanders = sets.of(&mut stay);
        let is_nobodys = self.is_nobodys(bystanders);
        let plain = stay.into_iter().find(|tree| self.is_plain(*tree)).and_then(NonZeroU64::new);
        let seen = Seen { all: set, bystanders, is_quiet, is_nobodys, plain };
        self.seen.insert(number, seen);
        seen
    }

    /// Whether a tree is in no other group than its own.
    fn is_plain(&mut self, tree: u64) -> bool {
        self.over(tree).iter().eq([&tree])
    }

    fn is_nobodys(&mut self, set: RootSet) -> bool {
        let number = u64::from(set.number());
        if let Some(known) = self.nobodys.get(&number) {
            return *known;
        }
        let trees: Vec<u64> = self.remembered.sets.trees(set).collect();
        let mut common: Option<BTreeSet<u64>> = None;
        let is_nobodys = trees.into_iter().any(|tree| {
            let over = self.over(tree);
            common = Some(match common.take() {
                None => over.clone(),
                Some(common) => &common & over,
            });
            common.as_ref().is_some_and(BTreeSet::is_empty)
        });
        self.nobodys.insert(number, is_nobodys);
        is_nobodys
    }

    /// The groups over a tree, once those that go with the commit are gone.
    fn over(&mut self, tree: u64) -> &BTreeSet<u64> {
        let (quota, leaving) = (self.quota, &self.leaving);
        self.over.entry(tree).or_insert_with(|| {
            let mut quota = quota.lock();
            let groups = quota.groups();
            groups.map(|groups| groups.over_but_leaving(tree, leaving)).unwrap_or_default()
        })
    }
}

/// Whether a record is of references that are let go of.
fn lets_go(record: &Record) -> bool {
    record.is_reference() && record.delta < 0
}

fn is_by_tree(one: &InlineRef) -> bool {
    matches!(one, InlineRef::TreeBlock { .. } | InlineRef::ExtentData { .. })
}

/// Whose a reference is.
fn way(one: &InlineRef) -> Option<Way> {
    Some(match *one {
        InlineRef::TreeBlock { root } | InlineRef::ExtentData { root, .. } => (one.kind(), root),
        InlineRef::SharedBlock { parent } | InlineRef::SharedData { parent, .. } => {
            (one.kind(), parent)
        }
        InlineRef::Owner { .. } => return None,
    })
}

/// The level of the block that a reference to an extent is in.
fn above(record: &Record) -> u8 {
    if record.sectors > 0 { 0 } else { record.level.saturating_add(1) }
}
