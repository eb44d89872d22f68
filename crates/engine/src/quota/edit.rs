//! Groups are made, put into each other and limited.
//!
//! What a group gains by a member is known where the member shares nothing with anybody outside, or where the group has nothing else. Anything else
//! only a pass over all extents can tell.

use std::collections::BTreeSet;

use super::groups::{Group, Groups, level};
use crate::error::{Errno, Error, Result};

/// A limit of a group that is to be set: what is `None` stays, and `Some(None)` takes a limit away.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NewLimits {
    /// Most bytes that the group may refer to.
    pub rfer: Option<Option<u64>>,
    /// Most bytes that only the group may refer to.
    pub excl: Option<Option<u64>>,
}

/// `BTRFS_QGROUP_LIMIT_*`: which limits are set.
pub(super) const MAX_RFER: u64 = 1 << 0;
/// The same for what is exclusive.
pub(super) const MAX_EXCL: u64 = 1 << 1;

fn refuse<T>(why: Errno) -> Result<T> {
    Err(Error::User(why))
}

impl Groups {
    /// Makes a group. EEXIST when it is there.
    pub fn create(&mut self, id: u64) -> Result<()> {
        if self.all.contains_key(&id) {
            return refuse(Errno::EXIST);
        }
        self.reshape();
        self.gone.remove(&id);
        self.all.insert(id, Group::new());
        Ok(())
    }

    /// Takes a group away; whether the others' numbers are right after that. ENOENT when there is none, EBUSY when it has members, or with simple
    /// quotas owns something.
    pub fn destroy(&mut self, id: u64) -> Result<bool> {
        if !self.all.contains_key(&id) {
            return refuse(Errno::NOENT);
        }
        if self.above.values().any(|above| above.contains(&id)) {
            return refuse(Errno::BUSY);
        }
        if self.simple_since().is_some() && level(id) == 0 && self.usage_of(id).rfer > 0 {
            return refuse(Errno::BUSY);
        }
        let above = self.above.get(&id).cloned().unwrap_or_default();
        let mut is_right = true;
        for group in above {
            is_right &= self.leave(id, group)?;
        }
        self.remove(id);
        Ok(is_right)
    }

    /// Puts a group into another one; whether all numbers are right after that. EINVAL when that one's level is not higher, ENOENT when one of both
    /// is not there, EEXIST when it is in it already.
    pub fn enter(&mut self, member: u64, group: u64) -> Result<bool> {
        self.are_there(member, group)?;
        if self.is_in(member, group) {
            return refuse(Errno::EXIST);
        }
        let (before, own) = (self.over(member), self.below(member));
        self.relate(member, group, true);
        if self.simple_since.is_some() {
            self.sum_up();
            return Ok(true);
        }
        let new: Vec<u64> = self.over(member).difference(&before).copied().collect();
        let others: Vec<BTreeSet<u64>> = new.iter().map(|id| self.without(*id, member)).collect();
        let usage = self.all.get(&member).map(|group| group.usage).unwrap_or_default();
        let mut is_right = true;
        for (id, others) in new.into_iter().zip(others) {
            let Some(of) = self.usage(id) else { continue };
            if others.is_empty() {
                *of = usage;
            } else if usage.rfer == usage.excl && others.is_disjoint(&own) {
                is_right &= of.add(signed(usage.rfer), signed(usage.excl));
            } else {
                is_right = false;
            }
        }
        Ok(is_right)
    }

    /// Takes a group out of another one; whether all numbers are right after that. ENOENT when it is not in it.
    pub fn leave(&mut self, member: u64, group: u64) -> Result<bool> {
        if !self.is_in(member, group) {
            return refuse(Errno::NOENT);
        }
        let (before, own) = (self.over(member), self.below(member));
        self.relate(member, group, false);
        if self.simple_since.is_some() {
            self.sum_up();
            return Ok(true);
        }
        let now = self.over(member);
        let usage = self.all.get(&member).map(|group| group.usage).unwrap_or_default();
        let mut is_right = true;
        for id in before.difference(&now) {
            let others = self.below(*id);
            let Some(of) = self.usage(*id) else { continue };
            if others.is_empty() {
                *of = Default::default();
            } else if usage.rfer == usage.excl && others.is_disjoint(&own) {
                is_right &= of.add(-signed(usage.rfer), -signed(usage.excl));
            } else {
                is_right = false;
            }
        }
        Ok(is_right)
    }

    /// A snapshot has what its source has, and both have a root of their own, of `root` bytes. Whether all numbers are right after that: groups
    /// that only one of both is in may have had something alone, or have it already, and nobody knows what; nor what a source has that
    /// has no group.
    pub(super) fn share(&mut self, snapshot: u64, source: u64, root: u64) -> bool {
        let Some(usage) = self.usage(source) else { return false };
        let before = *usage;
        usage.excl = root.min(usage.rfer);
        let now = *usage;
        if let Some(of_snapshot) = self.all.get_mut(&snapshot) {
            (of_snapshot.usage, of_snapshot.is_changed) = (now, true);
        }
        self.inherit_limit(snapshot, source);
        let was_alone = before.rfer == before.excl;
        let (over, over_source) = (self.over(snapshot), self.over(source));
        let mut is_right = true;
        for id in over.union(&over_source).copied().filter(|id| level(*id) > 0) {
            let mut others = self.below(id);
            let is_both = over.contains(&id) && over_source.contains(&id);
            let is_new = over.contains(&id) && !is_both;
            others.retain(|other| *other != snapshot && *other != source);
            let Some(of) = self.usage(id) else { continue };
            is_right &= match (is_both, is_new) {
                (true, _) => of.add(signed(root), signed(root)),
                (_, true) if others.is_empty() => {
                    *of = now;
                    true
                }
                (_, true) if was_alone => of.add(signed(now.rfer), signed(now.excl)),
                (_, false) if others.is_empty() => {
                    *of = now;
                    true
                }
                (_, false) if was_alone => of.add(0, signed(now.excl) - signed(before.excl)),
                _ => false,
            };
        }
        is_right
    }

    /// Limits a group. ENOENT when there is none.
    pub fn limit(&mut self, id: u64, limits: NewLimits) -> Result<()> {
        let Some(group) = self.all.get_mut(&id) else { return refuse(Errno::NOENT) };
        let limit = &mut group.limit;
        let mut flags = limit.flags.get();
        let wishes = [
            (limits.rfer, MAX_RFER, &mut limit.max_rfer),
            (limits.excl, MAX_EXCL, &mut limit.max_excl),
        ];
        for (wish, flag, most) in wishes {
            match wish {
                None => {}
                Some(Some(bytes)) => (flags, *most) = (flags | flag, bytes.into()),
                Some(None) => (flags, *most) = (flags & !flag, 0.into()),
            }
        }
        limit.flags = flags.into();
        group.is_limit_changed = true;
        self.reshape();
        Ok(())
    }

    /// Has a subvolume that is not committed yet be in these groups from the beginning, as far as they are there by then.
    pub fn want(&mut self, subvolume: u64, groups: &[u64]) {
        self.reshape();
        match groups {
            [] => self.wanted.remove(&subvolume),
            _ => self.wanted.insert(subvolume, groups.to_vec()),
        };
    }

    /// Bytes that a group refers to.
    pub fn referenced(&self, group: u64) -> u64 {
        self.all.get(&group).map_or(0, |group| group.usage.rfer)
    }

    /// Refuses a group that a subvolume cannot be in.
    pub fn may_hold(&self, group: u64) -> Result<()> {
        match level(group) {
            0 => refuse(Errno::INVAL),
            _ if !self.all.contains_key(&group) => refuse(Errno::NOENT),
            _ => Ok(()),
        }
    }

    fn are_there(&self, member: u64, group: u64) -> Result<()> {
        if level(member) >= level(group) {
            return refuse(Errno::INVAL);
        }
        match [member, group].iter().all(|id| self.all.contains_key(id)) {
            true => Ok(()),
            false => refuse(Errno::NOENT),
        }
    }

    fn is_in(&self, member: u64, group: u64) -> bool {
        self.above.get(&member).is_some_and(|above| above.contains(&group))
    }

    /// The subvolumes below a group, but for those that are below it by `member` alone.
    fn without(&self, group: u64, member: u64) -> BTreeSet<u64> {
        let ids = self.all.keys().copied().filter(|id| level(*id) == 0 && *id != member);
        ids.filter(|id| self.over_but(*id, Some(member)).contains(&group)).collect()
    }
}

/// Bytes as a change of a number.
pub(super) fn signed(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}
