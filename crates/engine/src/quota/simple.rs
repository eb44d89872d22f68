//! Simple quotas: a group has what its subvolumes have allocated, whoever refers to it by now.
//!
//! Who has allocated an extent stays: a data extent has it in its item (`EXTENT_OWNER_REF`), a tree block in its header. So nothing is asked of trees: what a
//! commit allocates and frees is added up while the log of references is merged ([`crate::refs::apply`]). What was there before simple
//! quotas were switched on (the transaction is in the status item) has no owner and never counts. `rfer` and `excl` are the same.
//!
//! A snapshot has allocated its root, and nothing else, and has no limit of its source's, as on Linux: the groups that its place puts it into hold it. What a deleted subvolume has allocated and others still refer to stays its: its group is there as long
//! as it has something, as on Linux.
//!
//! Crash argument: the numbers are of the commit that has allocated and freed, and written by it; they are never wrong, so nothing is ever counted anew.

use std::collections::BTreeMap;

use buttress_ondisk::item::qgroup_status_flags;

use super::changes::Changes;
use super::groups::{Groups, level};
use crate::refs::Owned;

impl Groups {
    /// Switches them on in transaction `transid`: nothing counts so far.
    pub fn begin_simple(&mut self, transid: u64, subvolumes: &[u64]) {
        for id in subvolumes {
            self.make(*id);
        }
        for group in self.all.values_mut() {
            (group.usage, group.is_changed) = (Default::default(), true);
        }
        self.young.clear();
        self.simple_since = Some(transid);
        self.is_begun = true;
    }

    /// The transaction since which what is allocated counts, if these are simple quotas.
    pub fn simple_since(&self) -> Option<u64> {
        self.simple_since
    }

    /// Nothing of these subvolumes is older than simple quotas.
    pub fn note_young(&mut self, subvolumes: impl IntoIterator<Item = u64>) {
        self.young.extend(subvolumes);
    }

    /// Whether a subvolume may have tree blocks from before simple quotas, which count once they are copied.
    pub(super) fn may_have_older(&self, subvolume: u64) -> bool {
        self.simple_since.is_some()
            && self.all.contains_key(&subvolume)
            && !self.young.contains(&subvolume)
    }

    /// Counts what one commit has allocated and freed, and has groups come and go. Where a group had less than it loses it has nothing then: those
    /// are told.
    pub fn own(&mut self, owned: Owned, changes: &Changes) -> Vec<u64> {
        // Who gets the number of one that is gone has what that has left behind, as nobody can tell the two apart.
        let mut has_left = false;
        for id in &changes.made {
            let left = self.usage_of(*id);
            self.make(*id);
            if let Some(usage) = self.usage(*id) {
                *usage = left;
            }
            has_left |= left != Default::default();
            let source = changes.snapshots.iter().find(|(snapshot, _)| snapshot == id);
            if source.is_none_or(|(_, source)| self.young.contains(source)) {
                self.young.insert(*id);
            }
        }
        let mut wrong = Vec::new();
        for (tree, bytes) in owned.each() {
            for group in self.over(tree) {
                if self.usage(group).is_some_and(|usage| !usage.add(bytes, bytes)) {
                    wrong.push(group);
                }
            }
        }
        if has_left {
            self.sum_up();
        }
        for id in &changes.gone {
            self.leave_if_empty(*id);
        }
        wrong
    }

    /// The group of a subvolume that is gone goes, unless something is left of what that has allocated.
    fn leave_if_empty(&mut self, subvolume: u64) {
        match self.usage_of(subvolume).rfer {
            0 => self.remove(subvolume),
            _ => _ = self.wanted.remove(&subvolume),
        }
    }

    /// Groups of higher levels have what their members have.
    pub(super) fn sum_up(&mut self) {
        let mut sums: BTreeMap<u64, u64> = BTreeMap::new();
        for (id, group) in self.all.iter().filter(|(id, _)| level(**id) == 0) {
            for above in self.over(*id).into_iter().filter(|above| level(*above) > 0) {
                let sum = sums.entry(above).or_default();
                *sum = sum.saturating_add(group.usage.rfer);
            }
        }
        let above = self.all.iter_mut().filter(|(id, _)| level(**id) > 0);
        for (id, group) in above {
            let sum = sums.get(id).copied().unwrap_or(0);
            if (group.usage.rfer, group.usage.excl) != (sum, sum) {
                (group.usage.rfer, group.usage.excl, group.is_changed) = (sum, sum, true);
            }
        }
    }

    /// They are full ones, whatever they were when quotas were switched off.
    pub fn be_full(mut self) -> Groups {
        self.simple_since = None;
        self
    }

    /// The groups that a subvolume is in from the beginning that is made in another one.
    pub fn inherited_from(&self, subvolume: u64) -> Vec<u64> {
        self.above.get(&subvolume).into_iter().flatten().copied().collect()
    }
}

/// The rest of a status item, which says since when what is allocated counts.
pub(super) fn since_of(rest: &[u8]) -> Option<u64> {
    rest.first_chunk().copied().map(u64::from_le_bytes)
}

/// What a status item says of simple quotas that are on: its flags, and its rest.
pub(super) fn status_of(since: u64) -> (u64, Vec<u8>) {
    let flags = qgroup_status_flags::ON | qgroup_status_flags::SIMPLE_MODE;
    (flags, since.to_le_bytes().to_vec())
}
