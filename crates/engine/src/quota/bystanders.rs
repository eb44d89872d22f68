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
use crate::refs::{Extent, Record, RootSet};

/// The trees that a commit does not change, and what they reach.
pub struct Bystanders<'a> {
    /// Who reaches what in the last version.
    owners: Owners<'a>,
    quota: &'a Mutex<Quota>,
    /// Trees that the commit changes.
    changed: BTreeSet<u64>,
    /// Snapshots that do not count yet.
    fresh: BTreeSet<u64>,
    /// Subvolumes that the commit deletes, whose groups go with it.
    leaving: BTreeSet<u64>,
    /// The groups over a tree.
    over: HashMap<u64, BTreeSet<u64>>,
    /// What is known of blocks, as long as sets are numbered so.
    blocks: Spread<u64, Seen>,
    /// The same by the set of trees.
    sets: Spread<u64, Seen>,
    /// Whether no group has all trees of a set.
    nobodys: Spread<u64, bool>,
    epoch: u64,
}

/// What is known of a block of the last version.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    /// Those who reach it and are not changed.
    bystanders: RootSet,
    /// Nobody who reaches it has a group.
    is_quiet: bool,
}

impl<'a> Bystanders<'a> {
    /// Those of a commit with these changes; `owners` are of the version before it.
    pub fn new(owners: Owners<'a>, quota: &'a Mutex<Quota>, changes: &Changes) -> Bystanders<'a> {
        Bystanders {
            owners,
            quota,
            changed: changes.changed.clone(),
            fresh: changes.snapshots.iter().map(|(snapshot, _)| *snapshot).collect(),
            leaving: changes.leaving(),
            over: HashMap::new(),
            blocks: Spread::default(),
            sets: Spread::default(),
            nobodys: Spread::default(),
            epoch: 0,
        }
    }

    /// Whether no group gains or loses anything by what these records, all those of an extent that was there before, have made of it.
    pub(super) fn settle(&mut self, records: &[Record], extent: &Extent) -> bool {
        self.forget();
        let mut losses =
            records.iter().filter(|one| one.is_reference() && one.delta < 0).peekable();
        let (is_gone, is_lost) = (extent.refs == 0, losses.peek().is_some());
        let is_settled = losses.all(|one| self.is_quiet(one, is_gone))
            && (is_gone || !is_lost || self.has_several(records, extent));
        is_settled && self.epoch == self.owners.sets_epoch()
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
                    self.owners.sets().single(root)
                }
                InlineRef::SharedBlock { parent } | InlineRef::SharedData { parent, .. } => {
                    self.seen(parent, level).bystanders
                }
                InlineRef::Owner { .. } => continue,
            };
            let before = all;
            all = self.owners.sets().union(all, more);
            if all != before && self.is_nobodys(all) {
                return true;
            }
        }
        false
    }

    /// What is known of the block at an address.
    fn seen(&mut self, bytenr: u64, level: u8) -> Seen {
        if let Some(seen) = self.blocks.get(&bytenr) {
            return *seen;
        }
        // What cannot be found out here is asked, and said, by who counts the extent.
        let Ok(trees) = self.owners.trees_of_parent(bytenr, level) else { return Seen::default() };
        self.forget();
        let seen = self.seen_of(trees);
        self.blocks.insert(bytenr, seen);
        seen
    }

    fn seen_of(&mut self, set: RootSet) -> Seen {
        let number = u64::from(set.number());
        if let Some(seen) = self.sets.get(&number) {
            return *seen;
        }
        let trees: Vec<u64> = self.owners.trees_in(set).collect();
        let is_quiet = trees.iter().all(|tree| self.over(*tree).is_empty());
        let mut stay: Vec<u64> =
            trees.into_iter().filter(|tree| !self.changed.contains(tree)).collect();
        let seen = Seen { bystanders: self.owners.sets().of(&mut stay), is_quiet };
        self.sets.insert(number, seen);
        seen
    }

    fn is_nobodys(&mut self, set: RootSet) -> bool {
        let number = u64::from(set.number());
        if let Some(known) = self.nobodys.get(&number) {
            return *known;
        }
        let trees: Vec<u64> = self.owners.trees_in(set).collect();
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

    /// Forgets what is known by the numbers of sets, when these mean nothing any more.
    fn forget(&mut self) {
        let epoch = self.owners.sets_epoch();
        if std::mem::replace(&mut self.epoch, epoch) != epoch {
            self.blocks.clear();
            self.sets.clear();
            self.nobodys.clear();
        }
    }
}

/// The level of the block that a reference to an extent is in.
fn above(record: &Record) -> u8 {
    if record.sectors > 0 { 0 } else { record.level.saturating_add(1) }
}
