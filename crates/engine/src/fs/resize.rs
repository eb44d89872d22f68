//! The device becomes larger or smaller: what lies behind the new end moves before it first.
//!
//! New chunks lie before the new end from the beginning. When no chunk has anything behind it, the size changes with one commit: in the
//! device item and in the superblock. Until then a crash leaves the old size, and less behind the end.

use super::relocate::Emptying;
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
                let limit = inner.limit_device(size)?;
                self.move_before(size, &mut told)?;
                Some(limit)
            }
            false => None,
        };
        let resized = inner.change(Need { private: 2, ..need(0, 400) }, |op| {
            op.core.space.resize_device(size);
            op.core.volume.resize(op.core.space.devid(), size);
            Ok(())
        });
        resized?;
        inner.commit_for_space(Upkeep::None).map(drop)
    }

    /// Empties all block groups that have something behind byte `end` of the device.
    fn move_before(&self, end: u64, told: &mut dyn FnMut(Emptying) -> bool) -> Result<()> {
        loop {
            let is_behind = |group: &GroupInfo| {
                self.device_ranges(group.start).iter().any(|(at, len)| at + len > end)
            };
            // The last ones first: those before them have the more room.
            let Some(group) = self.block_groups().into_iter().rev().find(is_behind) else { break };
            match self.empty_block_group(group.start, &mut *told) {
                Ok(emptied) if emptied.failed.is_empty() => {}
                Ok(_) => return Err(Error::User(Errno::IO)),
                Err(Error::User(Errno::NOENT)) => {}
                Err(error) => return Err(error),
            }
        }
        self.inner().wait_for_device(end)
    }

    /// How small the device can become, in bytes: [`Filesystem::resize`] to that works. What is used of each class has room there when it is brought together
    /// in as large groups as there are now, with one to move to and one for what holes are too short for.
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
        least.next_multiple_of(1 << 20).max(SIZE_MIN).min(self.device_size())
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
