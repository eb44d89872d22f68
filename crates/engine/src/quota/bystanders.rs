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

use std::collections::{BTreeSet, HashMap};

use buttress_ondisk::view::InlineRef;
use buttress_ondisk::{kind, objectid};
use parking_lot::Mutex;

use super::Quota;
use super::changes::Changes;
use crate::hash::Spread;
use crate::refs::owners::Owners;
use crate::refs::{Extent, Record, RootSet, RootSets};

/// Commits after which all is looked for anew: trees that have changed once are no bystanders until then.
const COMMITS_MAX: u32 = 64;
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
    remembered: &'a mut Remembered,
    quota: &'a Mutex<Quota>,
    /// Snapshots that do not count yet.
    fresh: BTreeSet<u64>,
    /// Subvolumes that the commit deletes, whose groups go with it.
    leaving: BTreeSet<u64>,
    /// The groups over a tree.
    over: HashMap<u64, BTreeSet<u64>>,
    /// What is known of sets of trees.
    seen: Spread<u64, Seen>,
    /// Whether no group has all trees of a set.
    nobodys: Spread<u64, bool>,
    /// Sets as they are remembered, by those of the last version, as long as these are numbered so.
    numbers: Spread<u64, RootSet>,
    epoch: u64,
    /// The same as those who count have them.
    told: Spread<u64, RootSet>,
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
}

impl<'a> Bystanders<'a> {
    /// Those of a commit with these changes; `owners` are of the version before it.
    pub fn new(
        owners: Owners<'a>,
        remembered: &'a mut Remembered,
        quota: &'a Mutex<Quota>,
        changes: &Changes,
    ) -> Bystanders<'a> {
        Bystanders {
            owners,
            remembered,
            quota,
            fresh: changes.snapshots.iter().map(|(snapshot, _)| *snapshot).collect(),
            leaving: changes.leaving(),
            over: HashMap::new(),
            seen: Spread::default(),
            nobodys: Spread::default(),
            numbers: Spread::default(),
            epoch: 0,
            told: Spread::default(),
        }
    }

    /// Whether no group gains or loses anything by what these records, all those of an extent that was there before, have made of it.
    pub(super) fn settle(&mut self, records: &[Record], extent: &Extent) -> bool {
        let mut losses =
            records.iter().filter(|one| one.is_reference() && one.delta < 0).peekable();
        let (is_gone, is_lost) = (extent.refs == 0, losses.peek().is_some());
        let is_settled = losses.all(|one| self.is_quiet(one, is_gone))
            && (is_gone || !is_lost || self.has_several(records, extent));
        is_settled && !self.remembered.sets.is_full()
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
        let (mut left, mut lost) = (RootSet::EMPTY, RootSet::EMPTY);
        for record in records.iter().filter(|one| one.is_reference() && one.delta < 0) {
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
        let is_known = !extent.has_keyed() && !lost.is_empty() && !left.is_empty();
        (is_known && !self.remembered.sets.is_full())
            .then(|| [left, lost].map(|set| self.in_sets(set, sets)))
    }

    /// A tree whose only block of a level is its root, which nobody shares with it: nobody else has had a reference of the tree from that level.
    fn only_below_root(&mut self, tree: u64, level: u8) -> RootSet {
        let is_root = self.owners.tree(tree).is_ok_and(|view| view.root().level == level);
        if is_root { self.remembered.sets.single(tree) } else { RootSet::EMPTY }
    }

    fn in_sets(&mut self, set: RootSet, sets: &mut RootSets) -> RootSet {
        *self.told.entry(set.number().into()).or_insert_with(|| {
            let mut trees: Vec<u64> = self.remembered.sets.trees(set).collect();
            sets.of(&mut trees)
        })
    }

    /// Whether none of those who let go of an extent with a reference has a group.
    fn is_quiet(&mut self, lost: &Record, is_gone: bool) -> bool {
        match lost.kind {
            kind::SHARED_BLOCK_REF | kind::SHARED_DATA_REF => {
                self.seen(lost.owner, above(lost)).is_quiet
            }
            kind::EXTENT_DATA_REF if is_gone => false,
            _ => self.over(lost.owner).is_empty(),
        }
    }

    /// Whether it is certain that several have an extent, of whom no group has all.
    fn has_several(&mut self, records: &[Record], extent: &Extent) -> bool {
        let level = records.iter().find(|one| one.is_reference()).map_or(0, above);
        let mut all = RootSet::EMPTY;
        for (one, _) in &extent.inline {
            let more = match *one {
                InlineRef::TreeBlock { root } | InlineRef::ExtentData { root, .. } => {
                    if self.fresh.contains(&root) || !objectid::is_subvolume(root) {
                        continue;
                    }
                    self.remembered.sets.single(root)
                }
                InlineRef::SharedBlock { parent } | InlineRef::SharedData { parent, .. } => {
                    self.seen(parent, level).bystanders
                }
                InlineRef::Owner { .. } => continue,
            };
            let before = all;
            all = self.remembered.sets.union(all, more);
            if all != before && self.is_nobodys(all) {
                return true;
            }
        }
        false
    }

    /// What is known of the block at an address.
    fn seen(&mut self, bytenr: u64, level: u8) -> Seen {
        if let Some(trees) = self.remembered.blocks.get(&bytenr) {
            return self.seen_of(*trees);
        }
        // What cannot be found out here is asked, and said, by who counts the extent.
        let Ok(trees) = self.owners.trees_of_parent(bytenr, level) else { return Seen::default() };
        let epoch = self.owners.sets_epoch();
        if std::mem::replace(&mut self.epoch, epoch) != epoch {
            self.numbers.clear();
        }
        let trees = *self.numbers.entry(trees.number().into()).or_insert_with(|| {
            let mut trees: Vec<u64> = self.owners.trees_in(trees).collect();
            self.remembered.sets.of(&mut trees)
        });
        self.remembered.insert(bytenr, trees);
        self.seen_of(trees)
    }

    fn seen_of(&mut self, set: RootSet) -> Seen {
        let number = u64::from(set.number());
        if let Some(seen) = self.seen.get(&number) {
            return *seen;
        }
        let trees: Vec<u64> = self.remembered.sets.trees(set).collect();
        let is_quiet = trees.iter().all(|tree| self.over(*tree).is_empty());
        let Remembered { changed, sets, .. } = &mut *self.remembered;
        let mut stay: Vec<u64> = trees.into_iter().filter(|tree| !changed.contains(tree)).collect();
        let seen = Seen { all: set, bystanders: sets.of(&mut stay), is_quiet };
        self.seen.insert(number, seen);
        seen
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

/// The level of the block that a reference to an extent is in.
fn above(record: &Record) -> u8 {
    if record.sectors > 0 { 0 } else { record.level.saturating_add(1) }
}
