//! The device becomes larger or smaller: what lies behind the new end moves before it first.
//!
//! New chunks lie before the new end from the beginning. When no chunk has anything behind it, the size changes with one commit: in the
//! device item and in the superblock. Until then a crash leaves the old size, and less behind the end.

use super::reclaim::{FAILURES_MAX, free_in, takes};
use super::relocate::{Emptying, Purpose};
use super::run::need;
use super::{Filesystem, Inner};
use crate::error::{Errno, Error, Result};
use crate::space::{Class, GroupInfo, Need, Space};
use crate::txn::Upkeep;

/// The smallest device, in bytes: as on Linux.
const SIZE_MIN: u64 = 256 << 20;
/// Sizes are multiples of it, as those of sectors.
const SECTOR: u64 = buttress_ondisk::SECTOR;
/// The start of each device is left alone.
const RESERVED: u64 = 1 << 20;
/// Commits until what a removed chunk had is free.
const COMMITS_MAX: usize = 4;

/// Sizes that are proposed are multiples of so many bytes.
const GRAIN: u64 = 1 << 20;
/// What fits is proposed with so many of them more.
const SLACK: u64 = 4;

impl Filesystem {
    /// Bytes of the device that the filesystem has.
    pub fn device_size(&self) -> u64 {
        self.core().space.device_size()
    }

    /// Bytes that the device has, of which the filesystem may use fewer.
    pub fn device_size_max(&self) -> u64 {
        let devices = self.core().volume.devices();
        let size = devices.iter().map(|device| device.device.size()).min();
        size.unwrap_or(0) / SECTOR * SECTOR
    }

    /// Makes the filesystem end at byte `size` of its device, rounded down to a sector. What lies behind moves first: `told` hears how far that is and
    /// may end it by `false` (EINTR). EINPROGRESS while another or a balance runs, EINVAL below 256 MiB, EFBIG beyond the device, ENOSPC where what there is has no room, EIO where something
    /// could not be moved.
    pub fn resize(&self, size: u64, mut told: impl FnMut(Emptying) -> bool) -> Result<()> {
        let inner = self.inner();
        inner.core.check_writable()?;
        inner.core.check_chunks()?;
        let _alone = self.exclusive()?;
        let size = size / SECTOR * SECTOR;
        let now = self.device_size();
        if size < SIZE_MIN.min(now) {
            return Err(Error::User(Errno::INVAL));
        }
        if size > now && size > self.device_size_max() {
            return Err(Error::User(Errno::FBIG));
        }
        let _limit = match size < now {
            true => {
                let limit = self.limit_device(size, &mut told)?;
                self.move_before(size, &mut told)?;
                Some(limit)
            }
            false => None,
        };
        self.set_device_size(size)
    }

    /// Makes the filesystem end where its last chunk does, and answers its size. Nothing moves, and it may become smaller than [`Filesystem::resize`] makes
    /// it: for who makes an image that is only read, or made larger again. Where what was promised needs more it stays as it is; EINPROGRESS as there.
    pub fn cut_unallocated(&self) -> Result<u64> {
        let inner = self.inner();
        inner.core.check_writable()?;
        inner.core.check_chunks()?;
        let _alone = self.exclusive()?;
        // Chunks that were removed have what is theirs until then.
        inner.commit_for_space(Upkeep::Much)?;
        // A chunk may be made before the limit holds.
        for _ in 0..4 {
            let size = inner.core.space.device_end();
            let limited = if size < self.device_size() { inner.limit_device(size) } else { break };
            let _limit = match limited {
                Err(Error::NoSpace) => break,
                limited => limited?,
            };
            if inner.core.space.device_end() <= size {
                self.set_device_size(size)?;
                break;
            }
        }
        Ok(self.device_size())
    }

    /// Nothing lies behind the new end.
    fn set_device_size(&self, size: u64) -> Result<()> {
        let inner = self.inner();
        let resized = inner.change(Need { private: 2, ..need(0, 400) }, |op| {
            op.core.space.resize_device(size);
            op.core.volume.resize(op.core.space.devid(), size);
            Ok(())
        });
        resized?;
        inner.commit_for_space(Upkeep::None).map(drop)
    }

    /// New chunks lie before byte `end`. What others were promised may have no room there because all of it is in chunks that are mostly free: then such
    /// a block group is emptied first.
    fn limit_device(
        &self,
        end: u64,
        told: &mut dyn FnMut(Emptying) -> bool,
    ) -> Result<Limited<'_>> {
        for _ in 0..=self.block_groups().len() {
            match self.inner().limit_device(end) {
                Err(Error::NoSpace) if self.empty_one_before(end, told)? => {}
                done => return done,
            }
        }
        Err(Error::NoSpace)
    }

    /// Empties a block group that has nothing behind byte `end`, where the others have room for what is in it and behind the end. Whether one was.
    fn empty_one_before(&self, end: u64, told: &mut dyn FnMut(Emptying) -> bool) -> Result<bool> {
        let inner = self.inner();
        // See `Filesystem::empty_block_group`.
        inner.finish_relocation()?;
        let _alone = inner.relocating.lock();
        let mut failures = 0;
        for class in [Class::Data, Class::Metadata] {
            let of_class = |group: &GroupInfo| Class::of(group.flags) == class;
            let groups = self.block_groups().into_iter().filter(of_class);
            let (behind, before): (Vec<_>, Vec<_>) =
                groups.partition(|group| self.is_behind(group, end));
            let free: u64 = before.iter().map(free_in).sum();
            let comes: u64 = behind.iter().map(|group| group.used).sum();
            for group in inner.reclaimable(class, 100) {
                let elsewhere = free.saturating_sub(free_in(&group));
                if self.is_behind(&group, end) || takes(group.used + comes) > elsewhere {
                    continue;
                }
                let mut goes_on = true;
                let mut hears = |at| {
                    goes_on = told(at);
                    goes_on
                };
                if inner.reclaim(&group, Purpose::InTime, &mut hears)? {
                    return Ok(true);
                }
                failures += 1;
                match goes_on {
                    false => return Err(Error::User(Errno::INTR)),
                    true if failures == FAILURES_MAX => return Ok(false),
                    true => {}
                }
            }
        }
        Ok(false)
    }

    /// Whether something of it lies behind byte `end` of the device.
    fn is_behind(&self, group: &GroupInfo, end: u64) -> bool {
        self.device_ranges(group.start).iter().any(|(at, len)| at + len > end)
    }

    /// Empties all block groups that have something behind byte `end` of the device.
    fn move_before(&self, end: u64, told: &mut dyn FnMut(Emptying) -> bool) -> Result<()> {
        loop {
            let is_behind = |group: &GroupInfo| self.is_behind(group, end);
            // The last ones first: those before them have the more room.
            let Some(group) = self.block_groups().into_iter().rev().find(is_behind) else { break };
            match self.empty_block_group(group.start, &mut *told) {
                Ok(emptied) if emptied.failed.is_empty() => {}
                Ok(emptied) => {
                    for (at, why) in emptied.failed {
                        self.core().warn(format!("{at} stays where it is: {why}"));
                    }
                    return Err(Error::User(Errno::IO));
                }
                Err(Error::User(Errno::NOENT)) => {}
                Err(error) => return Err(error),
            }
        }
        self.inner().wait_for_device(end)
    }

    /// How small the device can become, in bytes: [`Filesystem::resize`] to that works. What is used of each class has room there when it is brought together
    /// in as large groups as there are now, with one to move to and one for what holes are too short for. Or nothing has to move.
    pub fn device_size_min(&self) -> u64 {
        let groups = self.block_groups();
        let of_device = |group: &GroupInfo| -> u64 {
            self.device_ranges(group.start).iter().map(|it| it.1).sum()
        };
        let as_it_is: u64 = groups.iter().map(of_device).sum();
        let largest = groups.iter().map(of_device).max().unwrap_or(0);
        let together = |class| {
            let of_class = groups.iter().filter(|group| Class::of(group.flags) == class);
            let used = |group: &GroupInfo| {
                let copies = of_device(group) / group.len.max(1);
                group.used.saturating_mul(copies)
            };
            let all: u64 = of_class.clone().map(used).sum();
            let largest = of_class.map(of_device).max().unwrap_or(0);
            all + all / 8 + 2 * largest
        };
        let together: u64 = Class::ALL.into_iter().map(together).sum();
        let least = RESERVED + together.min(as_it_is + 2 * largest);
        let least = least.next_multiple_of(GRAIN).max(SIZE_MIN).min(self.device_size());
        self.least_unmoved(least).unwrap_or(least)
    }

    /// How small it can become without moving anything, if that is less than `least`.
    fn least_unmoved(&self, least: u64) -> Option<u64> {
        let space = &self.core().space;
        let fits = |grains: &u64| space.may_end(grains * GRAIN);
        let (mut too_small, mut enough) =
            (space.device_end().max(SIZE_MIN - 1) / GRAIN, (least / GRAIN).checked_sub(1)?);
        if self.core().read_only || too_small >= enough || !fits(&enough) {
            return None;
        }
        while enough - too_small > 1 {
            let middle = too_small.midpoint(enough);
            if fits(&middle) { enough = middle } else { too_small = middle }
        }
        // What a resize itself is promised has to fit, too.
        Some(((enough + SLACK) * GRAIN).min(least))
    }
}

/// New chunks lie before the new end.
struct Limited<'a>(&'a Space);

impl Drop for Limited<'_> {
    fn drop(&mut self) {
        self.0.unlimit_device();
    }
}

impl Inner {
    /// New chunks lie before byte `end`, once what others were promised has room there.
    fn limit_device(&self, end: u64) -> Result<Limited<'_>> {
        for _ in 0..COMMITS_MAX {
            if self.core.space.limit_device(end) {
                return Ok(Limited(&self.core.space));
            }
            self.commit_for_space(Upkeep::Much)?;
        }
        Err(Error::NoSpace)
    }

    /// Waits until nothing behind a byte of the device is a chunk's, removed ones among them.
    fn wait_for_device(&self, end: u64) -> Result<()> {
        for _ in 0..COMMITS_MAX {
            if self.core.space.device_end() <= end {
                return Ok(());
            }
            self.commit_for_space(Upkeep::None)?;
        }
        Err(Error::User(Errno::BUSY))
    }
}
