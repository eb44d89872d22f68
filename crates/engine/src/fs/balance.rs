//! Balancing: block groups that fit filters are emptied, one after the other, and so written anew in fewer or in other ones.
//!
//! What is chosen is chosen at the beginning, as on Linux, from the highest address down; what comes up meanwhile is left alone. Each group that
//! was emptied is done for good, so who stops in between loses nothing. Those that there is no room for are tried again when others have made some
//! ([`rounds`]); how many are left is told at the end.
//!
//! From beginning to end an item in the root tree says what is done ([`item`]): of a balance that was paused, or that a crash has
//! interrupted, it is all that is left, and who goes on with it begins with what it says.

mod item;
mod rounds;

use std::ops::{ControlFlow, Range};

use buttress_ondisk::item::{BalanceItem, chunk_type};
use parking_lot::MutexGuard;

use super::Filesystem;
use super::relocate::{Emptied, Emptying};
use super::run::deleting;
use crate::error::{Errno, Error, Result};
use crate::space::{Class, GroupInfo, Need};
use crate::txn::Upkeep;

/// Which block groups of a type are balanced: those that fit all that is said. The words are those of btrfs-progs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BalanceFilter {
    /// Profiles, as bits of [`chunk_type`] with [`BalanceFilter::SINGLE`].
    pub profiles: Option<u64>,
    /// Percent that are used: at least the one, and fewer than the other.
    pub usage: Option<Range<u32>>,
    /// A device that has a part of it.
    pub devid: Option<u64>,
    /// Bytes of that device, of which it has some.
    pub drange: Option<Range<u64>>,
    /// Logical addresses, of which it has some.
    pub vrange: Option<Range<u64>>,
    /// How many groups at least (none where there are fewer), and at most.
    pub limit: Option<(u32, u32)>,
    /// How many parts on devices it has: at least and at most.
    pub stripes: Option<(u32, u32)>,
    /// The profile that it is to have: those that have it already are passed over with `soft`.
    pub convert: Option<u64>,
    /// See there.
    pub soft: bool,
}

impl BalanceFilter {
    /// Stands for no profile bit, in [`BalanceFilter::profiles`] and [`BalanceFilter::convert`] (`BTRFS_AVAIL_ALLOC_BIT_SINGLE`).
    pub const SINGLE: u64 = 1 << 48;

    fn fits(&self, group: &GroupInfo, parts: &[(u64, u64)], devid: u64) -> bool {
        let profile = profile_of(group.flags);
        let crosses = |range: &Range<u64>, start: u64, len: u64| {
            start < range.end && range.start < start.saturating_add(len)
        };
        let on_device =
            |range: &Range<u64>| parts.iter().any(|(at, len)| crosses(range, *at, *len));
        let count = u32::try_from(parts.len()).unwrap_or(u32::MAX);
        self.profiles.is_none_or(|mask| mask & profile != 0)
            && self.usage.as_ref().is_none_or(|usage| is_used(group, usage))
            && self.devid.is_none_or(|wanted| wanted == devid)
            && self.drange.as_ref().is_none_or(on_device)
            && self.vrange.as_ref().is_none_or(|range| crosses(range, group.start, group.len))
            && self.stripes.is_none_or(|(least, most)| (least..=most).contains(&count))
            && !(self.soft && self.convert == Some(profile))
    }
}

/// The profile bits of a group, or [`BalanceFilter::SINGLE`].
pub fn profile_of(flags: u64) -> u64 {
    match flags & chunk_type::PROFILE_MASK {
        0 => BalanceFilter::SINGLE,
        bits => bits,
    }
}

/// As Linux reckons: 0 percent stands for one byte, and more than 100 for all.
fn is_used(group: &GroupInfo, usage: &Range<u32>) -> bool {
    let bytes = |percent: u32| match percent {
        0 => 1,
        1..=100 => {
            u64::try_from(u128::from(group.len) * u128::from(percent) / 100).unwrap_or(group.len)
        }
        _ => group.len.saturating_add(1),
    };
    let least = if usage.start == 0 { 0 } else { bytes(usage.start) };
    // A full group is fewer than all of it nowhere.
    let most = if usage.end == 100 { group.len } else { bytes(usage.end) };
    (least..most).contains(&group.used)
}

/// What is balanced: of each type those groups that fit the filter; a type without one is left alone.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Balance {
    /// Groups of data, mixed ones among them.
    pub data: Option<BalanceFilter>,
    /// Groups of metadata.
    pub metadata: Option<BalanceFilter>,
    /// Groups of the chunk tree.
    pub system: Option<BalanceFilter>,
    /// There may be fewer copies of metadata after it.
    pub force: bool,
}

/// Why a balance ends before it is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BalanceStop {
    /// It is to go on later.
    Pause,
    /// It is not.
    Cancel,
}

/// How far a balance is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Balancing {
    /// Groups that were looked at.
    pub considered: u64,
    /// Groups that are to be emptied.
    pub expected: u64,
    /// Groups that were.
    pub completed: u64,
    /// The group that is being emptied.
    pub group: Emptying,
}

/// What a balance has done.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Balanced {
    /// Groups that there were.
    pub considered: u64,
    /// Groups that were emptied.
    pub completed: u64,
    /// Groups that are left as there is no room elsewhere for all that they have: ENOSPC, as Linux says it at the end.
    pub no_room: u64,
    /// What was moved.
    pub emptied: Emptied,
}

impl Balance {
    fn filter(&self, group: &GroupInfo) -> Option<&BalanceFilter> {
        match Class::of(group.flags) {
            Class::Data => self.data.as_ref(),
            Class::Metadata => self.metadata.as_ref(),
            Class::System => self.system.as_ref(),
        }
    }

    /// The profiles that are to be had from now on.
    fn conversions(&self) -> Vec<(Class, u64)> {
        let types = [
            (Class::Data, &self.data),
            (Class::Metadata, &self.metadata),
            (Class::System, &self.system),
        ];
        let wish = |(class, filter): &(Class, &Option<BalanceFilter>)| {
            filter.as_ref().and_then(|filter| filter.convert).map(|profile| (*class, profile))
        };
        types.iter().filter_map(wish).collect()
    }
}

/// What the item takes of a leaf, and the next change of it.
const ITEM_BYTES: usize = size_of::<BalanceItem>() + 100;

impl Filesystem {
    /// The block groups that a balance empties, in its order.
    pub fn balance_plan(&self, balance: &Balance) -> Vec<GroupInfo> {
        let devid = self.core().space.devid();
        let mut all: Vec<GroupInfo> = self.block_groups();
        all.reverse();
        let fits = |group: &GroupInfo| {
            let parts = self.device_ranges(group.start);
            balance.filter(group).is_some_and(|filter| filter.fits(group, &parts, devid))
        };
        let mut chosen: Vec<GroupInfo> = all.into_iter().filter(fits).collect();
        for class in Class::ALL {
            let is_meant = |group: &GroupInfo| Class::of(group.flags) == class;
            let of_class = chosen.iter().filter(|group| is_meant(group));
            let first = of_class.clone().next().and_then(|group| balance.filter(group));
            let Some((least, most)) = first.and_then(|filter| filter.limit) else { continue };
            let enough = of_class.count() >= least as usize;
            let mut left = if enough { most } else { 0 };
            chosen.retain(|group| {
                let stays = !is_meant(group) || left > 0;
                left -= u32::from(is_meant(group) && stays);
                stays
            });
        }
        chosen
    }

    /// The balance that has begun and not ended: one that runs, or that was paused or interrupted.
    pub fn unfinished_balance(&self) -> Result<Option<Balance>> {
        let item = self.inner().read(|op| self.inner().forest.balance_item(op.core))?;
        item.map(|item| Balance::of_item(&item)).transpose()
    }

    /// Empties the block groups that fit. `told` hears how far it is and may end it: then the answer is EINTR, and what was emptied stays so. One that
    /// is paused goes on with [`Filesystem::resume_balance`], also after the next opening. Where there is no room for a group it goes on with the next
    /// ([`Balanced::no_room`]). EINPROGRESS where there is one, or the device is resized; ENOSPC where there is no room for anything; EINVAL as [`Filesystem::check_balance`].
    pub fn balance(
        &self,
        balance: &Balance,
        told: impl FnMut(Balancing) -> ControlFlow<BalanceStop>,
    ) -> Result<Balanced> {
        self.core().check_writable()?;
        self.core().check_chunks()?;
        let _alone = self.exclusive()?;
        self.check_balance(balance)?;
        self.note_balance(Some(balance))?;
        self.run_balance(balance, told)
    }

    /// Goes on with the balance that was paused or interrupted, as [`Filesystem::balance`] does. ENOTCONN where there is none.
    pub fn resume_balance(
        &self,
        told: impl FnMut(Balancing) -> ControlFlow<BalanceStop>,
    ) -> Result<Balanced> {
        self.core().check_writable()?;
        self.core().check_chunks()?;
        let _alone = self.alone()?;
        let balance = self.unfinished_balance()?.ok_or(Error::User(Errno::NOTCONN))?;
        self.check_balance(&balance)?;
        self.run_balance(&balance.resumed(), told)
    }

    /// Forgets the balance that was paused or interrupted. ENOTCONN where there is none, EINPROGRESS while it runs.
    pub fn cancel_balance(&self) -> Result<()> {
        self.core().check_writable()?;
        let _alone = self.alone()?;
        if !self.has_unfinished_balance()? {
            return Err(Error::User(Errno::NOTCONN));
        }
        self.note_balance(None)
    }

    /// As Linux calls it: what only one may do at a time. A balance is under way from its beginning to its end, also while it is paused.
    pub(super) fn exclusive(&self) -> Result<MutexGuard<'_, ()>> {
        let alone = self.alone()?;
        match self.has_unfinished_balance()? {
            true => Err(Error::User(Errno::INPROGRESS)),
            false => Ok(alone),
        }
    }

    /// The same for who goes on with a balance, or ends it.
    fn alone(&self) -> Result<MutexGuard<'_, ()>> {
        self.inner().exclusive.try_lock().ok_or(Error::User(Errno::INPROGRESS))
    }

    /// Whatever it is about.
    fn has_unfinished_balance(&self) -> Result<bool> {
        let item = self.inner().read(|op| self.inner().forest.balance_item(op.core))?;
        Ok(item.is_some())
    }

    /// Writes what is balanced, or that nothing is.
    fn note_balance(&self, balance: Option<&Balance>) -> Result<()> {
        let inner = self.inner();
        let item = balance.map(Balance::to_item);
        inner.change(Need { private: 1, ..deleting(0, ITEM_BYTES) }, |_| {
            inner.forest.set_balance_item(item.clone());
            Ok(())
        })?;
        inner.commit_for_space(Upkeep::None).map(drop)
    }

    /// Runs it, and takes the item away when it is not to go on later.
    fn run_balance(
        &self,
        balance: &Balance,
        mut told: impl FnMut(Balancing) -> ControlFlow<BalanceStop>,
    ) -> Result<Balanced> {
        let mut stop = None;
        let done = self.empty_plan(balance, &mut |at| {
            stop = told(at).break_value();
            stop.is_none()
        });
        // Who has paused it may hear of another end, where that came first.
        let is_paused = match &done {
            Err(Error::User(Errno::INTR)) => stop == Some(BalanceStop::Pause),
            // The disk that holds the image has no room to say that it has ended, either.
            Err(Error::Volume(error)) => error.is_full(),
            _ => false,
        };
        if !is_paused && self.core().check_writable().is_ok() {
            self.note_balance(None)?;
        }
        done
    }

    /// New groups have the profiles that are asked for, once what others were promised has room in such.
    fn convert(&self, balance: &Balance) -> Result<()> {
        let inner = self.inner();
        for (class, profile) in balance.conversions() {
            let set = || inner.core.space.set_profile(class, profile & chunk_type::PROFILE_MASK);
            if !set() {
                inner.commit_for_space(Upkeep::Much)?;
                if !set() {
                    return Err(Error::NoSpace);
                }
            }
        }
        Ok(())
    }

    /// Refuses what cannot be done: EINVAL for a profile that one device cannot have, for fewer copies of metadata without `force`, and where data and
    /// metadata share groups and are not asked for alike, as Linux wants it.
    pub fn check_balance(&self, balance: &Balance) -> Result<()> {
        if self.core().space.is_mixed() && balance.data != balance.metadata {
            return Err(Error::User(Errno::INVAL));
        }
        let is_known = |(_, profile): &(Class, u64)| {
            matches!(*profile, BalanceFilter::SINGLE | chunk_type::DUP)
        };
        let is_refused = !balance.force && self.has_fewer_copies(balance);
        if is_refused || !balance.conversions().iter().all(is_known) {
            return Err(Error::User(Errno::INVAL));
        }
        Ok(())
    }

    /// Whether metadata, or the chunk tree, would be there once where it is there twice.
    fn has_fewer_copies(&self, balance: &Balance) -> bool {
        let conversions = balance.conversions();
        let is_lessened = |group: &GroupInfo| {
            let class = Class::of(group.flags);
            let is_meant = group.flags & (chunk_type::METADATA | chunk_type::SYSTEM) != 0;
            let is_twice = profile_of(group.flags) == chunk_type::DUP;
            is_meant && is_twice && conversions.contains(&(class, BalanceFilter::SINGLE))
        };
        self.block_groups().iter().any(is_lessened)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn usage_is_reckoned_as_on_linux() {
        let group = |used| GroupInfo { start: 0, len: 1000, flags: 1, used, closed: false };
        for (used, usage, fits) in [
            (0, 0..0, true),
            (1, 0..0, false),
            (99, 0..10, true),
            (100, 0..10, false),
            (999, 0..100, true),
            (1000, 0..100, false),
            (100, 10..20, true),
            (99, 10..20, false),
            (200, 10..20, false),
        ] {
            assert_eq!(is_used(&group(used), &usage), fits, "{used} {usage:?}");
        }
    }
}
