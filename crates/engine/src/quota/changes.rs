//! What a commit has to look at: gathered while the log of references is merged into the extent tree.
//!
//! The merge has just read the item of each extent that has records, so what refers to it after the commit is at hand, and of most extents all is known
//! by that: what is newer than the last snapshot of the only tree that its references name is that tree's alone, before and after. Of the others is kept
//! who has lost them for certain, and who has them still.

use std::collections::BTreeSet;

use buttress_ondisk::item::extent_flags;
use buttress_ondisk::view::InlineRef;
use buttress_ondisk::{SECTOR, kind, objectid};

use super::bystanders::{Bystanders, Settled};
use crate::hash::Spread;
use crate::refs::{Extent, Record, RootSet, RootSets};

/// Bytes that the sets of trees may take that a commit's own records name.
const SETS_BYTES: u64 = 64 << 20;

/// What one commit has changed.
#[derive(Debug)]
pub struct Changes {
    /// Tree blocks that several trees may reach, or have reached.
    pub(super) blocks: Vec<TouchedBlock>,
    /// The same of data extents.
    pub(super) extents: Vec<Touched>,
    /// Data extents that a leaf has let go of, each with the address of the leaf by which it referred to it.
    pub(super) released: Vec<(u64, u64)>,
    /// Bytes that are new or gone, and that only one tree refers to, or did, by that tree.
    pub(super) alone: Spread<u64, i64>,
    /// How many extents these and those are that have changed no owner.
    pub(super) settled: u64,
    /// How many extents others have changed without a group gaining or losing anything.
    pub(super) told: u64,
    /// The sets of trees in `extents`.
    pub(super) sets: RootSets,
    /// The transaction of each tree's last snapshot.
    last_snapshots: Spread<u64, u64>,
    /// Trees that are changed, come or go.
    pub changed: BTreeSet<u64>,
    /// Snapshots that were taken, with what they were taken of.
    pub snapshots: Vec<(u64, u64)>,
    /// Subvolumes that are new, snapshots among them.
    pub made: BTreeSet<u64>,
    /// Subvolumes that are deleted, and of which something is left.
    pub dead: BTreeSet<u64>,
    /// Subvolumes of which nothing is left.
    pub gone: BTreeSet<u64>,
}

/// What is known of a tree block that has records.
#[derive(Clone, Copy, Debug)]
pub(super) struct TouchedBlock {
    pub bytenr: u64,
    pub level: u8,
    pub generation: u64,
    /// The trees that reach it, and those that do no more, where that is certain and these have no group.
    pub left: Option<[RootSet; 2]>,
    /// What it refers to was counted as its owner's in the last version, so who has owned it and lets go of what it names has records of that.
    pub was_by_tree: bool,
}

/// What is known of a data extent that has records.
#[derive(Clone, Copy, Debug)]
pub(super) struct Touched {
    pub bytenr: u64,
    pub bytes: u64,
    pub version: Versioned,
    /// Trees that have reached it, and may not do so any more.
    pub lost: RootSet,
    /// Trees that reach it, by what their own blocks refer to.
    pub has: RootSet,
    /// Those of them that may have had nothing of it before.
    pub gained: RootSet,
    /// Those who have reached it do not for certain, and neither they nor anybody else has it alone in either version.
    pub is_certain: bool,
}

/// In which of the two versions an extent is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Versioned {
    Before,
    After,
    Both,
}

impl Default for Changes {
    fn default() -> Changes {
        Changes {
            blocks: Vec::new(),
            extents: Vec::new(),
            released: Vec::new(),
            alone: Spread::default(),
            settled: 0,
            told: 0,
            sets: RootSets::bounded(SETS_BYTES),
            last_snapshots: Spread::default(),
            changed: BTreeSet::new(),
            snapshots: Vec::new(),
            made: BTreeSet::new(),
            dead: BTreeSet::new(),
            gone: BTreeSet::new(),
        }
    }
}

impl Changes {
    /// Nothing yet but that these snapshots were taken.
    pub fn of(snapshots: Vec<(u64, u64)>) -> Changes {
        Changes { snapshots, ..Changes::default() }
    }

    /// Deleted subvolumes whose groups may go. What a snapshot is taken of lives on in that, which gets its numbers.
    pub(super) fn leaving(&self) -> BTreeSet<u64> {
        let sources: BTreeSet<u64> = self.snapshots.iter().map(|(_, source)| *source).collect();
        &self.dead - &sources
    }

    /// Notes what the folded records of an extent, all of them, have made of it. `last_snapshot` tells when a tree has had its last snapshot by the last
    /// version, if it was there.
    pub fn told(
        &mut self,
        records: &[Record],
        extent: &Extent,
        nodesize: u64,
        bystanders: &mut Bystanders<'_>,
        last_snapshot: impl FnOnce(u64) -> Option<u64>,
    ) {
        let Some(first) = records.first() else { return };
        if bystanders.is_plainly_same(records, extent) {
            self.told += 1;
            return;
        }
        let (mut sectors, mut marks, mut more, mut is_ours) = (0, 0, false, false);
        for record in records {
            sectors = record.sectors.max(sectors);
            marks |= record.marks;
            more |= record.delta > 0;
            is_ours = is_ours || is_of_files(record);
        }
        if !is_ours {
            return;
        }
        let bytes = if sectors > 0 { u64::from(sectors) * SECTOR } else { nodesize };
        let is_new = marks & Record::NEW != 0;
        let version = match (is_new, extent.refs) {
            // It was nowhere.
            (true, 0) => return,
            (true, _) => Versioned::After,
            (false, 0) => Versioned::Before,
            (false, _) => Versioned::Both,
        };
        if let Some(tree) = only_tree(records, extent)
            && (is_new || extent.generation > self.last_snapshot(tree, last_snapshot))
        {
            self.settled += 1;
            let bytes = i64::try_from(bytes).unwrap_or(i64::MAX);
            let change = match version {
                Versioned::After => bytes,
                Versioned::Before => -bytes,
                Versioned::Both => return,
            };
            *self.alone.entry(tree).or_default() += change;
            return;
        }
        if !(is_new || more && gains(records, extent)) {
            match bystanders.settle(records, extent) {
                Settled::Same => {
                    self.told += 1;
                    return;
                }
                Settled::LostBy(tree) => return self.lost(first.bytenr, bytes, tree),
                Settled::Unknown => {}
            }
        }
        if sectors == 0 {
            let level = records.iter().find(|one| one.is_reference()).map_or(0, |one| one.level);
            let left = match version {
                Versioned::Both => bystanders.left(records, extent, &mut self.sets),
                _ => None,
            };
            let (bytenr, generation) = (first.bytenr, extent.generation);
            let is_marked = marks & Record::FULL_BACKREF != 0;
            let was_by_tree = is_marked || extent.flags & extent_flags::FULL_BACKREF == 0;
            let block = TouchedBlock { bytenr, level, generation, left, was_by_tree };
            return self.blocks.push(block);
        }
        self.extent(records, extent, (first.bytenr, bytes, version));
    }

    fn last_snapshot(&mut self, tree: u64, ask: impl FnOnce(u64) -> Option<u64>) -> u64 {
        *self.last_snapshots.entry(tree).or_insert_with(|| ask(tree).unwrap_or(u64::MAX))
    }

    /// Notes that a tree has a data extent no more, which nobody has alone.
    fn lost(&mut self, bytenr: u64, bytes: u64, tree: u64) {
        let (version, lost, none) = (Versioned::Both, self.sets.single(tree), RootSet::EMPTY);
        let (has, gained, is_certain) = (none, none, true);
        self.extents.push(Touched { bytenr, bytes, version, lost, has, gained, is_certain });
    }

    /// Notes a data extent.
    fn extent(
        &mut self,
        records: &[Record],
        extent: &Extent,
        (bytenr, bytes, version): (u64, u64, Versioned),
    ) {
        let sets = &mut self.sets;
        let (mut lost, mut has, mut gained) = (RootSet::EMPTY, RootSet::EMPTY, RootSet::EMPTY);
        for tree in extent.inline.iter().filter_map(|(one, _)| tree_of(one)) {
            let one = sets.single(tree);
            has = sets.union(has, one);
        }
        for record in records {
            match (record.kind, record.delta > 0) {
                (kind::EXTENT_DATA_REF, false) if record.delta < 0 => {
                    let one = sets.single(record.owner);
                    lost = sets.union(lost, one);
                }
                (kind::EXTENT_DATA_REF, true) if !had_before(record.owner, records, extent) => {
                    let one = sets.single(record.owner);
                    gained = sets.union(gained, one);
                }
                (kind::SHARED_DATA_REF, false) => self.released.push((bytenr, record.owner)),
                _ => {}
            }
        }
        let is_certain = false;
        self.extents.push(Touched { bytenr, bytes, version, lost, has, gained, is_certain });
    }
}

/// Whether a tree had references to a data extent already that has `records` now.
fn had_before(tree: u64, records: &[Record], extent: &Extent) -> bool {
    let refs = extent.inline.iter().filter(|(one, _)| tree_of(one) == Some(tree));
    let now: i64 = refs.map(|(_, count)| count).sum();
    let more = records.iter().filter(|one| one.kind == kind::EXTENT_DATA_REF && one.owner == tree);
    now > more.map(|one| i64::from(one.delta)).sum()
}

/// Whether a tree may have gained a data extent that it had not. Tree blocks that are there are gained by snapshots alone.
fn gains(records: &[Record], extent: &Extent) -> bool {
    let mut gains = records.iter().filter(|it| it.kind == kind::EXTENT_DATA_REF && it.delta > 0);
    gains.any(|it| !had_before(it.owner, records, extent))
}

/// Whether a reference may be a subvolume's; those by blocks are.
fn is_of_files(record: &Record) -> bool {
    match record.kind {
        kind::TREE_BLOCK_REF | kind::EXTENT_DATA_REF => objectid::is_subvolume(record.owner),
        kind::SHARED_BLOCK_REF | kind::SHARED_DATA_REF => true,
        _ => false,
    }
}

fn tree_of(one: &InlineRef) -> Option<u64> {
    match *one {
        InlineRef::TreeBlock { root } | InlineRef::ExtentData { root, .. } => Some(root),
        _ => None,
    }
}

/// The tree that alone has references to an extent, and had: who else reaches it has a block of that tree.
fn only_tree(records: &[Record], extent: &Extent) -> Option<u64> {
    let tree = records.first()?.owner;
    let is_its = |record: &Record| {
        matches!(record.kind, kind::TREE_BLOCK_REF | kind::EXTENT_DATA_REF) && record.owner == tree
    };
    let is_alone = records.iter().all(is_its)
        && extent.flags & extent_flags::FULL_BACKREF == 0
        && !extent.has_keyed()
        && extent.inline.iter().all(|(one, _)| match one {
            InlineRef::Owner { .. } => true,
            one => tree_of(one) == Some(tree),
        });
    is_alone.then_some(tree)
}
