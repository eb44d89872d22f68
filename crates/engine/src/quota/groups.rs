//! Groups, as the quota tree has them.

use std::collections::{BTreeMap, BTreeSet};

use buttress_ondisk::item::{QgroupInfo, QgroupLimit, QgroupStatus, qgroup_status_flags};
use buttress_ondisk::{Key, kind, objectid};
use zerocopy::{FromZeros, IntoBytes};

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

#[derive(Clone, Copy, Debug, Default)]
struct Group {
    usage: Usage,
    is_new: bool,
    is_changed: bool,
}

/// All groups by their ids: the id of a subvolume, or above level 0 the level in the highest 16 bits and a number.
#[derive(Debug, Default)]
pub struct Groups {
    all: BTreeMap<u64, Group>,
    /// The groups that a group is in.
    above: BTreeMap<u64, BTreeSet<u64>>,
    gone: BTreeSet<u64>,
    /// Quotas are on and right from now on, which the status does not say yet.
    is_begun: bool,
}

/// Whether a group is that of a subvolume. Others share the numbers with ids of trees.
pub fn is_of_subvolume(group: u64) -> bool {
    level(group) == 0 && objectid::is_subvolume(group)
}

/// The level of a group: 0 for that of a subvolume.
fn level(group: u64) -> u64 {
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
                        groups.all.insert(key.offset, Group { usage, ..Group::default() });
                    }
                }
                kind::QGROUP_RELATION if level(key.objectid) < level(key.offset) => {
                    groups.above.entry(key.objectid).or_default().insert(key.offset);
                }
                _ => {}
            }
        }
        Ok(groups)
    }

    /// Bytes of their items, about.
    pub fn bytes(&self) -> usize {
        const GROUP: usize = 2 * (25 + 40);
        GROUP * (self.all.len() + 1)
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
        self.gone.remove(&subvolume);
        let is_new = !self.all.contains_key(&subvolume);
        let usage = Usage::default();
        self.all.insert(subvolume, Group { usage, is_new, is_changed: true });
    }

    /// The group of a subvolume that is gone goes, too.
    pub(super) fn remove(&mut self, subvolume: u64) {
        if self.all.remove(&subvolume).is_some() {
            self.gone.insert(subvolume);
        }
    }

    /// What a group has.
    pub(super) fn usage(&mut self, group: u64) -> Option<&mut Usage> {
        let found = self.all.get_mut(&group)?;
        found.is_changed = true;
        Some(&mut found.usage)
    }

    /// Whether a group is in others.
    pub(super) fn is_member(&self, group: u64) -> bool {
        self.above.get(&group).is_some_and(|above| !above.is_empty())
    }

    /// The group of a subvolume and all that it is in, directly or not, each once.
    pub(super) fn over(&self, subvolume: u64) -> BTreeSet<u64> {
        let (mut waiting, mut seen) = (vec![subvolume], BTreeSet::new());
        while let Some(one) = waiting.pop() {
            if self.all.contains_key(&one) && seen.insert(one) {
                waiting.extend(self.above.get(&one).into_iter().flatten());
            }
        }
        seen
    }

    /// Writes what has changed, as of transaction `transid`.
    pub fn emit(&mut self, merge: &mut Merge<'_>, transid: u64) -> Result<()> {
        let mut items = BTreeMap::new();
        let status = Key::new(0, kind::QGROUP_STATUS, 0);
        let found = merge.find(&status)?.and_then(|data| QgroupStatus::of(data).copied());
        let mut item = found
            .unwrap_or_else(|| QgroupStatus { version: 1.into(), ..QgroupStatus::new_zeroed() });
        item.generation = transid.into();
        if std::mem::take(&mut self.is_begun) {
            (item.flags, item.rescan) = (qgroup_status_flags::ON.into(), 0.into());
        }
        items.insert(status, Some(item.as_bytes().to_vec()));
        for (id, group) in self.all.iter_mut().filter(|(_, group)| group.is_changed) {
            let info = QgroupInfo {
                generation: transid.into(),
                rfer: group.usage.rfer.into(),
                rfer_cmpr: group.usage.rfer.into(),
                excl: group.usage.excl.into(),
                excl_cmpr: group.usage.excl.into(),
            };
            items.insert(Key::new(0, kind::QGROUP_INFO, *id), Some(info.as_bytes().to_vec()));
            if group.is_new {
                let limit = QgroupLimit::new_zeroed().as_bytes().to_vec();
                items.insert(Key::new(0, kind::QGROUP_LIMIT, *id), Some(limit));
            }
            (group.is_new, group.is_changed) = (false, false);
        }
        for id in std::mem::take(&mut self.gone) {
            items.insert(Key::new(0, kind::QGROUP_INFO, id), None);
            items.insert(Key::new(0, kind::QGROUP_LIMIT, id), None);
            for other in self.above.remove(&id).unwrap_or_default() {
                items.insert(Key::new(id, kind::QGROUP_RELATION, other), None);
                items.insert(Key::new(other, kind::QGROUP_RELATION, id), None);
            }
        }
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
}
