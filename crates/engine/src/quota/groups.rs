//! Groups, as the quota tree has them.

use std::collections::{BTreeMap, BTreeSet};

use std::sync::atomic::{AtomicU64, Ordering};

use buttress_ondisk::item::{QgroupInfo, QgroupLimit, QgroupStatus, qgroup_status_flags, split};
use buttress_ondisk::{Key, kind, objectid};
use zerocopy::{FromZeros, IntoBytes};

use super::edit::{MAX_EXCL, MAX_RFER};
use super::simple::{since_of, status_of};
use crate::error::Result;
use crate::refs::usage::Costs;
use crate::tree::{Merge, View};

/// What a group refers to, and what only it has, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Usage {
    pub rfer: u64,
    pub excl: u64,
}

impl Usage {
    /// Whether there was as much as goes: else it was wrong before, and nothing is left.
    pub fn add(&mut self, rfer: i64, excl: i64) -> bool {
        let sums = (self.rfer.checked_add_signed(rfer), self.excl.checked_add_signed(excl));
        (self.rfer, self.excl) = (sums.0.unwrap_or(0), sums.1.unwrap_or(0));
        sums.0.is_some() && sums.1.is_some()
    }
}

/// A group.
#[derive(Clone, Copy, Debug)]
pub(super) struct Group {
    pub usage: Usage,
    /// Its limits, as they are on the disk.
    pub limit: QgroupLimit,
    /// What a commit has to write of it.
    pub is_changed: bool,
    pub is_limit_changed: bool,
}

impl Group {
    /// One that is not on the disk yet.
    pub fn new() -> Group {
        let (usage, limit) = (Usage::default(), QgroupLimit::new_zeroed());
        Group { usage, limit, is_changed: true, is_limit_changed: true }
    }
}

/// All groups by their ids: the id of a subvolume, or above level 0 the level in the highest 16 bits and a number.
#[derive(Debug, Default)]
pub struct Groups {
    pub(super) all: BTreeMap<u64, Group>,
    /// The groups that a group is in.
    pub(super) above: BTreeMap<u64, BTreeSet<u64>>,
    /// Relations that came (or went), for the next commit to write.
    pub(super) related: BTreeMap<(u64, u64), bool>,
    pub(super) gone: BTreeSet<u64>,
    /// In what subvolumes that are not committed yet are from the beginning.
    pub(super) wanted: BTreeMap<u64, Vec<u64>>,
    /// Quotas are on and right from now on, which the status does not say yet.
    pub(super) is_begun: bool,
    /// These are simple quotas; the transaction since which what is allocated counts.
    pub(super) simple_since: Option<u64>,
    /// Subvolumes of which nothing is older than that.
    pub(super) young: BTreeSet<u64>,
    /// Another number when groups, relations or limits are others.
    shape: u64,
}

/// Whether a group is that of a subvolume. Others share the numbers with ids of trees.
pub fn is_of_subvolume(group: u64) -> bool {
    level(group) == 0 && objectid::is_subvolume(group)
}

/// Since when what is allocated counts, where a status item says that quotas are simple.
fn simple_since(status: &[u8]) -> Option<u64> {
    let (item, rest) = split::<QgroupStatus>(status)?;
    let is_simple = item.flags.get() & qgroup_status_flags::SIMPLE_MODE != 0;
    since_of(rest).filter(|_| is_simple)
}

/// The level of a group: 0 for that of a subvolume.
pub(super) fn level(group: u64) -> u64 {
    group >> 48
}

impl Groups {
    /// Those of a quota tree.
    pub fn load(view: View<'_>) -> Result<Groups> {
        let mut groups = Groups::default();
        let mut items = view.range(Key::MIN, Key::MAX);
        while let Some(item) = items.next()? {
            let key = item.key();
            match key.kind {
                kind::QGROUP_INFO => {
                    if let Some(info) = QgroupInfo::of(item.data()) {
                        let usage = Usage { rfer: info.rfer.get(), excl: info.excl.get() };
                        groups.known(key.offset).usage = usage;
                    }
                }
                kind::QGROUP_LIMIT => {
                    if let Some(limit) = QgroupLimit::of(item.data()) {
                        groups.known(key.offset).limit = *limit;
                    }
                }
                kind::QGROUP_RELATION if level(key.objectid) < level(key.offset) => {
                    groups.above.entry(key.objectid).or_default().insert(key.offset);
                }
                kind::QGROUP_STATUS => groups.simple_since = simple_since(item.data()),
                _ => {}
            }
        }
        groups.reshape();
        Ok(groups)
    }

    /// One that is on the disk.
    fn known(&mut self, id: u64) -> &mut Group {
        let known = Group { is_changed: false, is_limit_changed: false, ..Group::new() };
        self.all.entry(id).or_insert(known)
    }

    /// Bytes of their items, about, with those of `more` groups.
    pub fn bytes(&self, more: usize) -> usize {
        const GROUP: usize = 2 * (25 + 40);
        GROUP * (self.all.len() + more + 1)
    }

    /// Makes what was counted in a version theirs: each group's numbers, and groups for subvolumes that have none.
    pub fn recount(&mut self, costs: &Costs, dead: &BTreeSet<u64>) {
        self.is_begun = true;
        for (id, _) in costs.subvolumes().filter(|(id, _)| !dead.contains(id)) {
            self.make(id);
        }
        // Of those above the level of subvolumes.
        let mut members: BTreeMap<u64, BTreeSet<u64>> = BTreeMap::new();
        for id in self.all.keys().filter(|id| level(**id) == 0) {
            for group in self.over(*id).into_iter().filter(|group| level(*group) > 0) {
                members.entry(group).or_default().insert(*id);
            }
        }
        for (id, group) in &mut self.all {
            let own = costs.subvolume(*id).map(|share| [share.referenced, share.exclusive]);
            let of = own.or_else(|| members.get(id).map(|ids| costs.of_group(ids)));
            let [rfer, excl] = of.unwrap_or_default().map(|bytes| bytes.sum());
            (group.usage, group.is_changed) = (Usage { rfer, excl }, true);
        }
    }

    /// A group of its own for a subvolume that has nothing yet. One that is there already stays, with its relations and limits: an earlier
    /// subvolume of that number has left it, or somebody has made it ahead.
    pub(super) fn make(&mut self, subvolume: u64) {
        self.reshape();
        self.gone.remove(&subvolume);
        let group = self.all.entry(subvolume).or_insert_with(Group::new);
        (group.usage, group.is_changed) = (Usage::default(), true);
        for above in self.wanted.remove(&subvolume).unwrap_or_default() {
            if self.all.contains_key(&above) {
                self.relate(subvolume, above, true);
            }
        }
    }

    /// Puts a group into another one, or takes it out.
    pub(super) fn relate(&mut self, member: u64, group: u64, is_in: bool) {
        self.reshape();
        let above = self.above.entry(member).or_default();
        match is_in {
            true => above.insert(group),
            false => above.remove(&group),
        };
        self.related.insert((member, group), is_in);
    }

    /// Subvolumes are new.
    pub fn come(&mut self, made: &BTreeSet<u64>) {
        made.iter().for_each(|id| self.make(*id));
    }

    /// Subvolumes are gone.
    pub fn go(&mut self, gone: &BTreeSet<u64>) {
        gone.iter().for_each(|id| self.remove(*id));
    }

    /// The group of a subvolume that is deleted goes, so that nobody has to count what the subvolume loses; but one that is in another group stays as
    /// long as there is something in it, as what is dropped is that one's, too.
    pub fn let_go(&mut self, subvolume: u64) {
        if self.is_in_none(subvolume) {
            self.remove(subvolume);
        }
    }

    fn is_in_none(&self, subvolume: u64) -> bool {
        self.above.get(&subvolume).is_none_or(BTreeSet::is_empty)
    }

    /// A group and all that it is in, once it was let go if it is one of these.
    pub(super) fn over_but_leaving(&self, group: u64, leaving: &BTreeSet<u64>) -> BTreeSet<u64> {
        let goes = leaving.contains(&group) && self.is_in_none(group);
        if goes { BTreeSet::new() } else { self.over(group) }
    }

    /// Subvolumes that have groups: up to `most` on each side of this one, by their numbers; the nearest ones come first.
    pub(super) fn beside(&self, subvolume: u64, most: usize) -> Vec<u64> {
        let is_its = |id: &&u64| is_of_subvolume(**id);
        let mut above = self.all.range(subvolume.saturating_add(1)..).map(|it| it.0);
        let mut below = self.all.range(..subvolume).rev().map(|it| it.0);
        let sides = |_| [above.next(), below.next()].into_iter().flatten();
        (0..most).flat_map(sides).filter(is_its).copied().collect()
    }

    /// The group of a subvolume that is gone goes, too.
    pub(super) fn remove(&mut self, subvolume: u64) {
        self.reshape();
        if self.all.remove(&subvolume).is_some() {
            self.gone.insert(subvolume);
        }
        self.wanted.remove(&subvolume);
        self.young.remove(&subvolume);
        for above in self.above.remove(&subvolume).unwrap_or_default() {
            self.related.insert((subvolume, above), false);
        }
    }

    /// The subvolumes that have groups or will have, each with all groups that it is in.
    pub(super) fn with_wanted(&self) -> impl Iterator<Item = (u64, BTreeSet<u64>)> {
        let there = self.all.keys().copied().filter(|id| is_of_subvolume(*id));
        let there = there.map(|id| (id, self.over(id)));
        let wanted = self
            .wanted
            .iter()
            .map(|(id, groups)| (*id, groups.iter().flat_map(|group| self.over(*group)).collect()));
        there.chain(wanted)
    }

    /// The groups with limits: id, most bytes referenced and exclusive, and what they have.
    pub(super) fn limited(&self) -> impl Iterator<Item = (u64, [Option<u64>; 2], Usage)> {
        self.all.iter().filter_map(|(id, group)| {
            let (limit, flags) = (&group.limit, group.limit.flags.get());
            let most = [
                (flags & MAX_RFER != 0).then_some(limit.max_rfer.get()),
                (flags & MAX_EXCL != 0).then_some(limit.max_excl.get()),
            ];
            most.iter().any(Option::is_some).then_some((*id, most, group.usage))
        })
    }

    /// A number that is another one when there are other groups, relations or limits.
    pub(super) fn shape(&self) -> u64 {
        self.shape
    }

    /// They are others now. No two tables of groups have the same number.
    pub(super) fn reshape(&mut self) {
        static SHAPES: AtomicU64 = AtomicU64::new(1);
        self.shape = SHAPES.fetch_add(1, Ordering::Relaxed);
    }

    /// A snapshot has its source's limits. As on Linux: whoever may take snapshots of what is limited gets no more by that.
    pub(super) fn inherit_limit(&mut self, snapshot: u64, source: u64) {
        let Some(limit) = self.all.get(&source).map(|group| group.limit) else { return };
        if let Some(group) = self.all.get_mut(&snapshot) {
            (group.limit, group.is_limit_changed) = (limit, true);
        }
        self.reshape();
    }

    /// What a group has; nothing where there is none.
    pub(super) fn usage_of(&self, group: u64) -> Usage {
        self.all.get(&group).map(|group| group.usage).unwrap_or_default()
    }

    /// What a group has.
    pub(super) fn usage(&mut self, group: u64) -> Option<&mut Usage> {
        let found = self.all.get_mut(&group)?;
        found.is_changed = true;
        Some(&mut found.usage)
    }

    /// A group and all that it is in, directly or not, each once.
    pub(super) fn over(&self, group: u64) -> BTreeSet<u64> {
        self.over_but(group, None)
    }

    /// The same, without `but` and what it is in by that alone.
    pub(super) fn over_but(&self, group: u64, but: Option<u64>) -> BTreeSet<u64> {
        let (mut waiting, mut seen) = (vec![group], BTreeSet::new());
        while let Some(one) = waiting.pop() {
            if Some(one) != but && self.all.contains_key(&one) && seen.insert(one) {
                waiting.extend(self.above.get(&one).into_iter().flatten());
            }
        }
        seen
    }

    /// The subvolumes below a group.
    pub(super) fn below(&self, group: u64) -> BTreeSet<u64> {
        let ids = self.all.keys().copied().filter(|id| level(*id) == 0);
        ids.filter(|id| self.over(*id).contains(&group)).collect()
    }

    /// Writes what has changed, as of transaction `transid`; `is_wrong`: and that the numbers are not right.
    pub fn emit(&mut self, merge: &mut Merge<'_>, transid: u64, is_wrong: bool) -> Result<()> {
        let status = Key::new(0, kind::QGROUP_STATUS, 0);
        let found = merge.find(&status)?.unwrap_or_default();
        let (mut item, mut rest) = split(found).map_or_else(
            || (QgroupStatus { version: 1.into(), ..QgroupStatus::new_zeroed() }, Vec::new()),
            |(item, rest): (&QgroupStatus, _)| (*item, rest.to_vec()),
        );
        item.generation = transid.into();
        if std::mem::take(&mut self.is_begun) {
            (item.flags, item.rescan) = (qgroup_status_flags::ON.into(), 0.into());
            if let Some(since) = self.simple_since {
                let (flags, of_simple) = status_of(since);
                (item.flags, rest) = (flags.into(), of_simple);
            }
        }
        if is_wrong {
            item.flags = (item.flags.get() | qgroup_status_flags::INCONSISTENT).into();
        }
        // Later versions of Linux have more behind it.
        let mut items = BTreeMap::from([(status, Some([item.as_bytes(), &rest].concat()))]);
        self.take_changed(&mut items, transid);
        for (key, item) in items {
            match item {
                Some(item) => merge.put(key, &item)?,
                None => {
                    merge.delete(&key)?;
                }
            }
        }
        Ok(())
    }

    fn take_changed(&mut self, items: &mut BTreeMap<Key, Option<Vec<u8>>>, transid: u64) {
        let is_simple = self.simple_since.is_some();
        for (id, group) in &mut self.all {
            if std::mem::take(&mut group.is_changed) {
                // Linux counts no compressed bytes with simple quotas, and keeps the groups of those that are gone while it finds some.
                let compressed = |bytes: u64| if is_simple { 0 } else { bytes };
                let info = QgroupInfo {
                    generation: transid.into(),
                    rfer: group.usage.rfer.into(),
                    rfer_cmpr: compressed(group.usage.rfer).into(),
                    excl: group.usage.excl.into(),
                    excl_cmpr: compressed(group.usage.excl).into(),
                };
                items.insert(Key::new(0, kind::QGROUP_INFO, *id), Some(info.as_bytes().to_vec()));
            }
            if std::mem::take(&mut group.is_limit_changed) {
                let limit = group.limit.as_bytes().to_vec();
                items.insert(Key::new(0, kind::QGROUP_LIMIT, *id), Some(limit));
            }
        }
        for id in std::mem::take(&mut self.gone) {
            items.insert(Key::new(0, kind::QGROUP_INFO, id), None);
            items.insert(Key::new(0, kind::QGROUP_LIMIT, id), None);
        }
        for ((member, group), is_in) in std::mem::take(&mut self.related) {
            for (one, other) in [(member, group), (group, member)] {
                let key = Key::new(one, kind::QGROUP_RELATION, other);
                items.insert(key, is_in.then(Vec::new));
            }
        }
    }
}
