//! Block groups are emptied without anybody's asking, so that space is where it is needed: a chunk is data's or metadata's, and where all of the
//! device is in chunks of the one that are mostly free, there is no room for the other.
//!
//! The worker does so in time, when little of the device is unallocated, with groups of which less than a threshold is used
//! (`bg_reclaim_threshold`; Linux has such a thing in sysfs). Whoever finds no room for the one class is not refused before a group of the other was
//! tried: he does it himself then, and may use what is kept for deletions, as this gives space back, too.
//!
//! That this ends: a group is emptied only where the others of its class have room for what is in it, no chunk is made for that, and it counts as done
//! only when less of the device is in chunks than before. What could not be emptied is tried again only when much has changed, whoever asks, and an
//! operation tries few.

use std::collections::BTreeMap;

use super::Inner;
use super::relocate::{Emptying, Purpose};
use crate::error::{Errno, Error, Result};
use crate::space::{Class, GroupInfo, Need};
use crate::stats;

/// Little of the device is unallocated when it is less than one of so many parts of it.
const LITTLE: u64 = 16;
/// What is moved takes so much more at most, as extents are not split everywhere: one of so many parts of it, and so many bytes.
const WASTE: (u64, u64) = (8, 4 << 20);
/// Much has changed when it is one of so many parts of the group.
const MUCH: u64 = 16;
/// Groups that could not be emptied, until an operation gives up.
pub(super) const FAILURES_MAX: u32 = 2;

/// What has come of it so far.
#[derive(Debug, Default)]
pub(super) struct Reclaiming {
    /// Groups that were emptied, whoever has asked.
    count: u64,
    /// Those that could not be.
    failed: BTreeMap<u64, Failed>,
}

/// How it was when a group could not be emptied.
#[derive(Clone, Copy, Debug)]
struct Failed {
    /// Bytes that it had, and that were free elsewhere in its class; `None` where damage is in the way.
    state: Option<(u64, u64)>,
}

impl Reclaiming {
    pub(super) fn note_emptied(&mut self) {
        self.count += 1;
    }

    /// Whether it is worth another try, with so much free elsewhere.
    fn may_be(&self, group: &GroupInfo, elsewhere: u64) -> bool {
        let much = group.len / MUCH;
        self.failed.get(&group.start).is_none_or(|failed| {
            failed.state.is_some_and(|(used, free)| {
                group.used.saturating_add(much) <= used || elsewhere >= free.saturating_add(much)
            })
        })
    }
}

impl Inner {
    /// Whoever needs this finds no room: whether emptying a group has given some.
    pub(super) fn reclaim_for(&self, need: Need) -> Result<bool> {
        if need.modest || !self.may_reclaim() {
            return Ok(false);
        }
        let count = self.reclaiming.lock().count;
        let _alone = self.relocating.lock();
        // Somebody has waited for the same.
        if self.reclaiming.lock().count != count {
            return Ok(true);
        }
        let class = match self.core.space.scarce(need) {
            Some(Class::Data) => Class::Metadata,
            Some(Class::Metadata) => Class::Data,
            _ => return Ok(false),
        };
        let mut failures = 0;
        for group in self.reclaimable(class, 100) {
            if self.reclaim(&group, Purpose::Room, &mut |_| true)? {
                return Ok(true);
            }
            failures += 1;
            if failures == FAILURES_MAX {
                break;
            }
        }
        Ok(false)
    }

    /// Empties a group that is below the threshold, if little of the device is unallocated. `goes_on` ends it by `false`. Whether it has.
    pub(super) fn reclaim_in_time(&self, goes_on: impl Fn() -> bool) -> Result<bool> {
        let threshold = self.options.reclaim.into();
        if !self.may_reclaim() || !self.is_little_unallocated() {
            return Ok(false);
        }
        let Some(_alone) = self.relocating.try_lock() else { return Ok(false) };
        let mut classes = [Class::Data, Class::Metadata].into_iter();
        let least = classes.find_map(|class| self.reclaimable(class, threshold).into_iter().next());
        match least {
            Some(group) => self.reclaim(&group, Purpose::InTime, &mut |_| goes_on()),
            None => Ok(false),
        }
    }

    /// Not beside whoever balances or resizes, and not before what a balance of Linux has left is gone.
    fn may_reclaim(&self) -> bool {
        let has_leavings = self.forest.has_relocated_data() || self.forest.has_relocation_trees();
        let is_off = self.options.reclaim == 0 || self.core.space.is_mixed();
        let stay = self.core.chunks_stay.is_some();
        !is_off && !stay && !has_leavings && !self.exclusive.is_locked()
    }

    fn is_little_unallocated(&self) -> bool {
        let usage = self.core.space.usage();
        usage.unallocated < usage.device_total / LITTLE
    }

    /// The groups of a class of which less than so many percent are used, and for which others have room; those that have the least come first.
    pub(super) fn reclaimable(&self, class: Class, percent: u64) -> Vec<GroupInfo> {
        let mut groups = self.groups_of(class);
        let free: u64 = groups.iter().map(free_in).sum();
        let reclaiming = self.reclaiming.lock();
        groups.retain(|group| {
            let elsewhere = free.saturating_sub(free_in(group));
            group.used.saturating_mul(100) < group.len.saturating_mul(percent)
                && takes(group.used) <= elsewhere
                && reclaiming.may_be(group, elsewhere)
        });
        groups.sort_unstable_by_key(|group| group.used);
        groups
    }

    /// Whether the group that starts there is one of data, and others have room for what is in it.
    pub(super) fn can_reclaim_data(&self, start: u64) -> bool {
        self.reclaimable(Class::Data, 100).iter().any(|group| group.start == start)
    }

    fn groups_of(&self, class: Class) -> Vec<GroupInfo> {
        let is_meant = |group: &GroupInfo| Class::of(group.flags) == class && !group.closed;
        self.core.space.groups().into_iter().filter(is_meant).collect()
    }

    /// Empties it, and notes when that cannot be.
    pub(super) fn reclaim(
        &self,
        group: &GroupInfo,
        purpose: Purpose,
        told: &mut dyn FnMut(Emptying) -> bool,
    ) -> Result<bool> {
        let before = self.core.space.usage().unallocated;
        let is_damaged = match self.empty_group(group.start, purpose, told) {
            Ok(emptied) => !emptied.failed.is_empty(),
            Err(Error::User(Errno::NOENT | Errno::INTR | Errno::BUSY) | Error::NoSpace) => false,
            // Nobody has asked for it, so nobody fails with it; but where a commit has failed, all do.
            Err(error) => {
                self.core.check_writable()?;
                let at = group.start;
                self.core.warn(format!("the block group at {at} cannot be emptied: {error}"));
                true
            }
        };
        if self.core.space.usage().unallocated > before {
            stats::add(&self.core.counters.groups_reclaimed, 1);
            return Ok(true);
        }
        let (all, class) = (self.core.space.groups(), Class::of(group.flags));
        let now = all.iter().find(|it| it.start == group.start).unwrap_or(group);
        let is_other = |it: &&GroupInfo| it.start != group.start && Class::of(it.flags) == class;
        let others = all.iter().filter(is_other);
        let state = (!is_damaged).then(|| (now.used, others.map(free_in).sum()));
        let mut reclaiming = self.reclaiming.lock();
        // Nothing is left of those that are gone.
        reclaiming.failed.retain(|start, _| all.iter().any(|it| it.start == *start));
        reclaiming.failed.insert(group.start, Failed { state });
        Ok(false)
    }
}

pub(super) fn free_in(group: &GroupInfo) -> u64 {
    group.len.saturating_sub(group.used)
}

/// Bytes that so many take elsewhere at most.
pub(super) fn takes(used: u64) -> u64 {
    used + used / WASTE.0 + WASTE.1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_could_not_be_emptied_is_tried_again_when_much_has_changed() {
        let group = |used| GroupInfo { start: 7, len: 1600, flags: 1, used, closed: false };
        let mut reclaiming = Reclaiming::default();
        assert!(reclaiming.may_be(&group(500), 1000));
        reclaiming.failed.insert(7, Failed { state: Some((500, 1000)) });
        for (used, elsewhere, again) in
            [(500, 1000, false), (401, 1000, false), (400, 1000, true), (500, 1100, true)]
        {
            assert_eq!(reclaiming.may_be(&group(used), elsewhere), again, "{used} {elsewhere}");
        }
        reclaiming.failed.insert(7, Failed { state: None });
        assert!(!reclaiming.may_be(&group(0), 1 << 40), "damage stays");
    }
}
