//! Block groups are emptied without anybody's asking, so that space is where it is needed: a chunk is data's or metadata's, and where all of the
//! device is in chunks of the one that are mostly free, there is no room for the other.
//!
//! The worker does so in time, when little of the device is unallocated, with groups of which less than a threshold is used
//! (`bg_reclaim_threshold`, as Linux calls it). Whoever finds no room is not refused as long as emptying a group may give him some: he does it himself,
//! then, and may use what is kept for deletions, as this gives space back, too.
//!
//! A group is emptied only where the others of its class have room for what is in it: so each time a chunk comes free, and it ends.

use std::collections::BTreeMap;

use super::Inner;
use super::relocate::Emptying;
use crate::error::{Errno, Error, Result};
use crate::space::{Class, GroupInfo};
use crate::stats;

/// Little of the device is unallocated when it is less than one of so many parts of it.
const LITTLE: u64 = 16;
/// What is moved takes so much more at most, as extents are not split everywhere: one of so many parts of it, and so many bytes.
const WASTE: (u64, u64) = (8, 4 << 20);

/// So many commits later it is tried again to empty a group of which nothing has gone since it could not be.
const COMMITS_AGAIN: u64 = 64;

/// What has come of it so far.
#[derive(Debug, Default)]
pub(super) struct Reclaiming {
    /// Groups that were emptied.
    count: u64,
    /// Those that could not be: what they had then, and the last commit; the highest number where damage is in the way.
    failed: BTreeMap<u64, (u64, u64)>,
}

impl Inner {
    /// Somebody finds no room: whether emptying a group has given some.
    pub(super) fn reclaim_for_room(&self) -> Result<bool> {
        if !self.may_reclaim() {
            return Ok(false);
        }
        let count = self.reclaiming.lock().count;
        let _alone = self.relocating.lock();
        // Somebody has waited for the same.
        if self.reclaiming.lock().count != count {
            return Ok(true);
        }
        // Those of the class that there is no room for do not fit into each other.
        while let Some(group) = self.any_reclaimable(100) {
            if self.reclaim(&group, &mut |_| true)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Empties what is below the threshold while little of the device is unallocated. `goes_on` ends it by `false`.
    pub(super) fn reclaim_in_time(&self, goes_on: impl Fn() -> bool) -> Result<()> {
        let threshold = self.options.reclaim.into();
        if !self.may_reclaim() {
            return Ok(());
        }
        while goes_on() && self.is_little_unallocated() {
            let Some(_alone) = self.relocating.try_lock() else { return Ok(()) };
            let Some(group) = self.any_reclaimable(threshold) else { return Ok(()) };
            self.reclaim(&group, &mut |_| goes_on())?;
        }
        Ok(())
    }

    /// Nothing moves before what a balance of Linux has left is gone.
    fn may_reclaim(&self) -> bool {
        let has_leavings = self.forest.has_relocated_data() || self.forest.has_relocation_trees();
        self.options.reclaim > 0 && !self.core.space.is_mixed() && !has_leavings
    }

    fn is_little_unallocated(&self) -> bool {
        let usage = self.core.space.usage();
        usage.unallocated < usage.device_total / LITTLE
    }

    fn any_reclaimable(&self, percent: u64) -> Option<GroupInfo> {
        let classes = [Class::Data, Class::Metadata].into_iter();
        classes.filter_map(|class| self.reclaimable(class, percent)).next()
    }

    /// The group of a class that has the least, if that is less than so many percent, and others have room for it.
    fn reclaimable(&self, class: Class, percent: u64) -> Option<GroupInfo> {
        let groups = self.core.space.groups();
        let of_class = groups.into_iter().filter(|group| Class::of(group.flags) == class);
        let groups: Vec<GroupInfo> = of_class.collect();
        let free: u64 = groups.iter().map(|group| group.len.saturating_sub(group.used)).sum();
        let (failed, committed) = (&self.reclaiming.lock().failed, self.core.txn.committed());
        let may_be = |group: &&GroupInfo| {
            let elsewhere = free.saturating_sub(group.len.saturating_sub(group.used));
            let takes = group.used + group.used / WASTE.0 + WASTE.1;
            group.used.saturating_mul(100) < group.len.saturating_mul(percent)
                && takes <= elsewhere
                && failed.get(&group.start).is_none_or(|(had, at)| {
                    group.used < *had || committed > at.saturating_add(COMMITS_AGAIN)
                })
        };
        groups.iter().filter(may_be).min_by_key(|group| group.used).copied()
    }

    /// Empties it, and notes when that cannot be.
    fn reclaim(&self, group: &GroupInfo, told: &mut dyn FnMut(Emptying) -> bool) -> Result<bool> {
        let committed = self.core.txn.committed();
        // When to try again, where it cannot be emptied.
        let later = match self.empty_group(group.start, true, told) {
            Ok(emptied) if emptied.failed.is_empty() => None,
            // It has become vacant by itself, and is gone.
            Err(Error::User(Errno::NOENT)) => None,
            Err(Error::User(_) | Error::NoSpace) => Some(committed),
            // What is damaged stays so.
            Ok(_) => Some(u64::MAX),
            // Nobody has asked for it, so nobody fails with it; but where a commit has failed, all do.
            Err(error) => {
                self.core.check_writable()?;
                let at = group.start;
                self.core.warn(format!("the block group at {at} cannot be emptied: {error}"));
                Some(u64::MAX)
            }
        };
        let mut reclaiming = self.reclaiming.lock();
        match later {
            None => {
                reclaiming.count += 1;
                stats::add(&self.core.counters.groups_reclaimed, 1);
            }
            Some(later) => drop(reclaiming.failed.insert(group.start, (group.used, later))),
        }
        Ok(later.is_none())
    }
}
