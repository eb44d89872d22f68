//! Quotas: what groups of subvolumes refer to, alone and together with others, counted again.
//!
//! Each extent (a tree block or a data extent) gets the number of the set of subvolumes that reach it. Sets are few, so a
//! group's numbers come from the sets. When the extents do not fit into the memory allowed, they are counted in several
//! rounds, each of a share of the addresses.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use buttress_ondisk::item::{QgroupInfo, QgroupStatus, qgroup_status_flags};
use buttress_ondisk::view::FileExtentItem;
use buttress_ondisk::{Key, kind, objectid};

use crate::{
    charged::Charged,
    context::Context,
    issue::Place,
    kinds::Kind,
    roots::Tree,
    seeds::Seeds,
    walk::{Leaf, Subtree, Visitor, walk},
};

/// Most items of a quota tree that are looked at: they are kept in memory.
const ITEMS_MAX: usize = 1 << 20;
/// Bytes that an extent takes while it is counted, about.
const EXTENT_BYTES: usize = 48;
/// Most rounds.
const ROUNDS_MAX: u64 = 1 << 16;

/// What the quota tree says.
#[derive(Default)]
struct Collect {
    flags: Option<u64>,
    infos: BTreeMap<u64, QgroupInfo>,
    relations: BTreeSet<(u64, u64)>,
    items: usize,
    lost: bool,
}

impl Visitor for Collect {
    fn leaf(&mut self, leaf: &Leaf<'_>) {
        for (key, data) in leaf.items() {
            self.items += 1;
            if self.items > ITEMS_MAX {
                return;
            }
            match key.kind {
                kind::QGROUP_STATUS => {
                    self.flags = QgroupStatus::of(data).map(|status| status.flags.get());
                }
                kind::QGROUP_INFO => {
                    self.infos.extend(QgroupInfo::of(data).map(|info| (key.offset, *info)));
                }
                kind::QGROUP_RELATION => {
                    self.relations.insert((key.objectid, key.offset));
                }
                _ => {}
            }
        }
    }

    fn lost(&mut self, _from: Key, _to: Option<Key>) {
        self.lost = true;
    }
}

/// The level of a group: 0 for that of a subvolume.
fn level(group: u64) -> u64 {
    group >> 48
}

/// A group for people, as in `1/100`.
fn shown(group: u64) -> String {
    format!("{}/{}", level(group), group & 0xffff_ffff_ffff)
}

/// Judges the quota tree. Called last: all references are known by then.
pub(crate) fn check_quota_tree(context: &Context<'_>, tree: &Tree) {
    let mut found = Collect::default();
    walk(context, tree, Key::MIN..=Key::MAX, &mut found);
    if found.lost {
        return;
    }
    if found.items > ITEMS_MAX {
        let have = "more items than are counted";
        let expect = format_args!("at most {ITEMS_MAX}");
        return context.report(Kind::QgroupCount, Place::tree(tree.id()), have, expect);
    }
    check_relations(context, &found);
    let Some(flags) = found.flags else {
        let place = Place::item(objectid::QUOTA_TREE, Key::new(0, kind::QGROUP_STATUS, 0));
        return context.report(Kind::QgroupStatus, place, "no status item", "one");
    };
    let doubtful = qgroup_status_flags::RESCAN | qgroup_status_flags::INCONSISTENT;
    let unreadable = [Kind::TreeBlockBad, Kind::TreeBlockItem];
    if flags & qgroup_status_flags::ON != 0
        && flags & doubtful == 0
        && unreadable.iter().all(|kind| context.sink.count(*kind) == 0)
    {
        match flags & qgroup_status_flags::SIMPLE_MODE {
            0 => check_counts(context, &found),
            _ => check_charges(context, &found),
        }
    }
}

/// Relations are told from both sides, and are between groups that exist.
fn check_relations(context: &Context<'_>, found: &Collect) {
    for &(one, other) in &found.relations {
        let key = Key::new(one, kind::QGROUP_RELATION, other);
        let place = Place::item(objectid::QUOTA_TREE, key);
        if !found.relations.contains(&(other, one)) {
            context.report(Kind::QgroupRelation, place, "one direction", "both directions");
        } else if let Some(group) = [one, other].iter().find(|it| !found.infos.contains_key(it)) {
            let have = format_args!("a relation to {}", shown(*group));
            context.report(Kind::QgroupRelation, place, have, "groups that exist");
        }
    }
}

/// The subvolumes whose groups are in a group, over all levels.
fn members(found: &Collect, group: u64) -> BTreeSet<u64> {
    let (mut waiting, mut seen) = (vec![group], BTreeSet::new());
    while let Some(one) = waiting.pop() {
        if seen.insert(one) {
            let related =
                found.relations.range((one, 0)..=(one, u64::MAX)).map(|(_, other)| *other);
            waiting.extend(related.filter(|other| level(*other) < level(one)));
        }
    }
    seen.into_iter().filter(|it| level(*it) == 0).collect()
}

/// Whether a group is that of a deleted subvolume. Linux counts what is left of that, and we do not always: the group goes with it, or before.
fn is_deleted(context: &Context<'_>, group: u64) -> bool {
    let tree = context.roots.find(group);
    tree.is_some_and(|tree| tree.item.refs.get() == 0)
}

/// Judges what groups count.
fn check_counts(context: &Context<'_>, found: &Collect) {
    let Some(sets) = count(context) else { return };
    for (&group, info) in found.infos.iter().filter(|(group, _)| !is_deleted(context, **group)) {
        let members = members(found, group);
        let (mut rfer, mut excl) = (0u64, 0u64);
        for (set, bytes) in &sets {
            let inside = set.iter().filter(|id| members.contains(id)).count();
            rfer = rfer.saturating_add(if inside > 0 { *bytes } else { 0 });
            excl = excl.saturating_add(if inside == set.len() { *bytes } else { 0 });
        }
        compare(context, (group, info), rfer, excl);
    }
}

/// Judges what groups count by simple quotas: what their members have allocated.
fn check_charges(context: &Context<'_>, found: &Collect) {
    let Some(charged) = context.charged.as_ref().and_then(Charged::sums) else { return };
    for (&group, info) in &found.infos {
        let members = members(found, group);
        let own = members.iter().filter_map(|id| charged.get(id));
        let sum = own.fold(0, |sum: u64, bytes| sum.saturating_add(*bytes));
        compare(context, (group, info), sum, sum);
    }
}

/// Reports what a group counts wrong.
fn compare(context: &Context<'_>, (group, info): (u64, &QgroupInfo), rfer: u64, excl: u64) {
    let place = || Place::item(objectid::QUOTA_TREE, Key::new(0, kind::QGROUP_INFO, group));
    for (what, have, expect) in
        [("referenced", info.rfer.get(), rfer), ("exclusive", info.excl.get(), excl)]
    {
        if have != expect {
            let have = format_args!("{have} bytes {what} by {}", shown(group));
            context.report(Kind::QgroupCount, place(), have, expect);
        }
    }
}

/// Sets of subvolumes and the bytes that exactly those refer to.
type Sets = Vec<(Vec<u64>, u64)>;

/// Bytes by the set of subvolumes that refer to them; `None` when it takes too much memory.
fn count(context: &Context<'_>) -> Option<Sets> {
    let extents_max = (context.options.memory_bytes / EXTENT_BYTES).max(1 << 10);
    let mut shares = 1;
    while shares <= ROUNDS_MAX {
        let mut counter =
            Counter::new(context.volume.nodesize().into(), extents_max, context.seeds);
        let rounds = 0..shares;
        if rounds.into_iter().all(|share| counter.round(context, (share, shares))) {
            return Some(counter.sets.into_iter().zip(counter.bytes).collect());
        }
        shares *= 4;
    }
    None
}

/// Counts extents by set.
struct Counter {
    nodesize: u64,
    extents_max: usize,
    /// The extents of this round: their set and bytes.
    extents: HashMap<u64, (u32, u64)>,
    /// The sets; the first one is empty.
    sets: Vec<Vec<u64>>,
    /// Which set a set becomes with one more subvolume.
    with: HashMap<(u32, u64), u32>,
    /// Bytes by set, of the rounds that are done.
    bytes: Vec<u64>,
    share: (u64, u64),
    tree: u64,
    seeds: Seeds,
}

impl Counter {
    fn new(nodesize: u64, extents_max: usize, seeds: Seeds) -> Counter {
        Counter {
            nodesize,
            extents_max,
            extents: HashMap::new(),
            sets: vec![Vec::new()],
            with: HashMap::new(),
            bytes: vec![0],
            share: (0, 1),
            tree: 0,
            seeds,
        }
    }

    /// Counts one share of all extents; `false` when they are too many.
    fn round(&mut self, context: &Context<'_>, share: (u64, u64)) -> bool {
        self.share = share;
        for tree in context.roots.all().filter(|tree| objectid::is_subvolume(tree.id())) {
            self.tree = tree.id();
            walk(context, tree, Key::MIN..=Key::MAX, self);
            if self.extents.len() > self.extents_max {
                return false;
            }
        }
        self.bytes.resize(self.sets.len(), 0);
        for (set, len) in std::mem::take(&mut self.extents).into_values() {
            if let Some(bytes) = self.bytes.get_mut(set as usize) {
                *bytes = bytes.saturating_add(len);
            }
        }
        true
    }

    fn add(&mut self, bytenr: u64, len: u64) {
        let (share, shares) = self.share;
        let is_mine = shares == 1 || self.seeds.hash(&[bytenr], b"") % shares == share;
        if !is_mine || self.extents.len() > self.extents_max {
            return;
        }
        let before = self.extents.get(&bytenr).map_or(0, |(set, _)| *set);
        let after = self.joined(before);
        self.extents.insert(bytenr, (after, len));
    }

    /// The set with the tree being walked.
    fn joined(&mut self, set: u32) -> u32 {
        let Some(members) = self.sets.get(set as usize) else { return set };
        // Trees come one after the other: the last member is the only one that can be this one.
        if members.last() == Some(&self.tree) {
            return set;
        }
        if let Some(known) = self.with.get(&(set, self.tree)) {
            return *known;
        }
        let larger = [&**members, &[self.tree]].concat();
        let number = self.sets.len() as u32;
        self.sets.push(larger);
        self.with.insert((set, self.tree), number);
        number
    }
}

impl Visitor for Counter {
    fn want(&mut self, subtree: &Subtree) -> bool {
        self.add(subtree.ptr.bytenr, self.nodesize);
        true
    }

    fn leaf(&mut self, leaf: &Leaf<'_>) {
        for (_, data) in leaf.items().filter(|(key, _)| key.kind == kind::EXTENT_DATA) {
            if let Some(FileExtentItem::Regular { disk_bytenr, disk_num_bytes, .. }) =
                FileExtentItem::read(data)
                && disk_bytenr != 0
            {
                self.add(disk_bytenr, disk_num_bytes);
            }
        }
    }
}
