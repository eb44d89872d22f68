//! Block groups are emptied: what is in one moves elsewhere, and its chunk is given back.
//!
//! A group is closed first, so that nothing comes to it. Then batches follow, each a commit beside which no operation runs
//! ([`crate::txn::relocate`]): who works meanwhile waits for one batch, and goes on; where somebody has waited, the next batch begins after others have had as long
//! as he had to, so that half of the time is theirs who never stop, and who comes now and then costs little. What a batch has moved is durable, so whoever ends the
//! work in between, or a crash, loses nothing. The commit that finds the group vacant gives its chunk back.
//!
//! How large a batch is: as large as there is room for, and, where others change something beside it, small enough that they wait for [`AIM`] and no longer, as far
//! as that can be told from how long the one before has taken. Where one extent alone needs more (a block that thousands of snapshots share has as many blocks above it) its batch is
//! larger. All that its commit may take is promised to it first ([`Size::needs`]): a commit that finds no room would be the last one.

use std::collections::BTreeSet;
use std::time::Duration;

use buttress_ondisk::SECTOR;

use super::{Filesystem, Inner};
use crate::error::{Errno, Error, Result};
use crate::space::{Class, GroupInfo, NOBODY, Need, Shortage, Space};
use crate::txn::{Core, Relocated, Relocation, TooSmall, Upkeep, relocate};

/// How long others may wait for a batch.
const AIM: Duration = Duration::from_millis(40);
/// How long others have the filesystem for themselves between two batches, at most: as long as the longest extent takes.
const THEIRS_MAX: Duration = Duration::from_millis(200);
/// Tree blocks of a batch: at first, and where others do not wait long.
const BLOCKS: (usize, usize) = (128, 512);
/// The fewest, however long others wait, as a commit takes its time for one block, too; and where there is no room.
const BLOCKS_MIN: (usize, usize) = (64, 4);
/// The most, for one extent that needs so many.
const BLOCKS_MAX: usize = 1 << 17;
/// References that change for each block of a batch, about; more where blocks are referred to by address.
const CHANGES_PER_BLOCK: usize = 64;
/// Data extents of a batch for each block.
const EXTENTS_PER_BLOCK: usize = 8;
/// Bytes of data for each block; one extent may have more.
const DATA_PER_BLOCK: u64 = 64 << 10;
/// Commits that are waited for until what was let go of in a group is free.
const COMMITS_MAX: usize = 6;

/// How far emptying a block group is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Emptying {
    /// Bytes that the group had when it began.
    pub had: u64,
    /// Bytes that it has yet.
    pub has: u64,
    /// Extents and tree blocks that were moved so far.
    pub moved: u64,
}

/// What came of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Emptied {
    /// Extents and tree blocks that were moved.
    pub moved: u64,
    /// Bytes of data that were copied.
    pub data: u64,
    /// Tree blocks that were written anew.
    pub blocks: u64,
    /// What could not be moved, and why: the group is still there where there is any.
    pub failed: Vec<(u64, String)>,
}

impl Filesystem {
    /// All block groups, by address.
    pub fn block_groups(&self) -> Vec<GroupInfo> {
        self.core().space.groups()
    }

    /// Where the device has the parts of the block group that starts at `start`: the first byte and how many, of each.
    pub fn device_ranges(&self, start: u64) -> Vec<(u64, u64)> {
        let ranges = self.core().space.device_ranges_of(start);
        ranges.iter().map(|range| (range.start, range.len)).collect()
    }

    /// Moves all that is in the block group that starts at `start` elsewhere, and gives its chunk back. `told` hears how far it is and may end it by
    /// `false`: then the answer is EINTR, and what was moved stays so. ENOENT where there is no such group, ENOSPC where there is no room elsewhere.
    pub fn empty_block_group(
        &self,
        start: u64,
        mut told: impl FnMut(Emptying) -> bool,
    ) -> Result<Emptied> {
        let inner = self.inner();
        inner.core.check_writable()?;
        inner.core.check_chunks()?;
        // Its operations may find no room, and want to empty a group themselves: so it comes before the turn.
        inner.finish_relocation()?;
        let _alone = inner.relocating.lock();
        match inner.empty_group(start, Purpose::Asked, &mut told) {
            // Metadata is full. A data group that others have room for is emptied as it would be for whoever finds no room, and gives some.
            Err(Error::NoSpace) if inner.can_reclaim_data(start) => {
                inner.empty_group(start, Purpose::Room, &mut told)
            }
            done => done,
        }
    }
}

/// How much a batch may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Size {
    blocks: usize,
    data: u64,
}

impl Size {
    /// Data extents.
    fn extents(self) -> usize {
        let most = self.blocks * EXTENTS_PER_BLOCK;
        usize::try_from(self.data / SECTOR).unwrap_or(usize::MAX).min(most)
    }

    /// References that change.
    fn changes(self) -> usize {
        self.blocks * CHANGES_PER_BLOCK
    }

    /// What the commit may take. Each extent goes at one place and comes at another, with its checksums. All blocks may be roots, each with an item
    /// of its own. Where leaves may be shared, it is reckoned with anyway that all they refer to changes; else that only happens below what a balance
    /// has moved.
    fn needs(self, core: &Core) -> Need {
        let number = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
        let others = if core.space.is_shared() { 0 } else { self.changes() };
        let roots = core.space.leaves_of_roots(self.blocks as u64);
        let csum = core.features.csum.size();
        let sectors = usize::try_from(self.data / SECTOR).unwrap_or(usize::MAX);
        Need {
            leaves: number(self.blocks),
            private: u32::try_from(roots).unwrap_or(u32::MAX).saturating_add(4),
            nodes: number(self.changes()),
            refs: number(self.extents().saturating_mul(2).saturating_add(others)),
            bytes: number(sectors.saturating_mul(csum)),
            data: self.data,
            charged_to: NOBODY,
            ..Need::default()
        }
    }
}

/// A group that is closed while it is emptied.
struct Shut<'a> {
    space: &'a Space,
    group: GroupInfo,
}

impl Drop for Shut<'_> {
    fn drop(&mut self) {
        // Where it is gone there is nothing to open.
        self.space.close_group(self.group.start, self.group.closed);
    }
}

/// How large the next batch is.
#[derive(Debug)]
struct Pace {
    /// Whether data is moved.
    has_data: bool,
    /// Blocks, by how long others wait and what there is room for.
    blocks: usize,
    /// There is no room for more than so many.
    most: usize,
    /// What the next extent needs beyond that, for itself: blocks, and bytes of data.
    alone: (usize, u64),
    /// A commit has just been made for its sake.
    has_committed: bool,
    purpose: Purpose,
}

/// Why a group is emptied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// Somebody has asked for it.
    Asked,
    /// A chunk is to come free in time.
    InTime,
    /// The same, because somebody has no room: what is kept for deletions may be used.
    Room,
}

impl Pace {
    fn new(group: &GroupInfo, purpose: Purpose) -> Pace {
        Pace {
            has_data: Class::of(group.flags) == Class::Data,
            blocks: BLOCKS.0,
            most: BLOCKS.1,
            alone: (0, 0),
            has_committed: false,
            purpose,
        }
    }

    fn size(&self) -> Size {
        let data = if self.has_data { self.blocks as u64 * DATA_PER_BLOCK } else { 0 };
        Size { blocks: self.blocks.max(self.alone.0), data: data.max(self.alone.1) }
    }

    /// For one extent that alone needs more.
    fn enlarge(&mut self, why: TooSmall) -> Result<()> {
        let blocks = self.size().blocks;
        match why {
            TooSmall::NoRun => return Err(Error::NoSpace),
            TooSmall::Blocks if blocks >= BLOCKS_MAX => return Err(Error::NoSpace),
            TooSmall::Blocks => self.alone.0 = blocks * 2,
            TooSmall::Data(len) => self.alone.1 = len,
        }
        Ok(())
    }

    /// For there is no room.
    fn shrink(&mut self) -> Result<()> {
        let before = self.size();
        self.most = (self.blocks / 2).max(BLOCKS_MIN.1);
        self.blocks = self.most;
        if self.size() == before { Err(Error::NoSpace) } else { Ok(()) }
    }

    /// Others have waited so long for a batch that has moved something.
    fn waited(&mut self, waited: Duration) {
        let was_usual = self.alone == (0, 0);
        self.alone = (0, 0);
        if waited > AIM && was_usual {
            let least = BLOCKS_MIN.0.min(self.most);
            let times = waited.as_nanos().div_ceil(AIM.as_nanos()).clamp(2, 8) as usize;
            self.blocks = (self.blocks / times).max(least);
        } else if waited < AIM / 2 {
            self.blocks = (self.blocks * 2).min(self.most);
        }
    }
}

impl Inner {
    /// The same for whoever has the turn.
    pub(super) fn empty_group(
        &self,
        start: u64,
        purpose: Purpose,
        told: &mut dyn FnMut(Emptying) -> bool,
    ) -> Result<Emptied> {
        let group = self.core.space.groups().into_iter().find(|group| group.start == start);
        let group = group.ok_or(Error::User(Errno::NOENT))?;
        let _shut = self.close_group(&group, purpose)?;
        let emptied = self.empty(&group, Pace::new(&group, purpose), told)?;
        if emptied.failed.is_empty() {
            self.reclaiming.lock().note_emptied();
        }
        Ok(emptied)
    }

    /// Closes a group, once what others were promised has room without it.
    fn close_group(&self, group: &GroupInfo, purpose: Purpose) -> Result<Shut<'_>> {
        self.have_free_space(group.start)?;
        for _ in 0..2 {
            if self.core.space.close_group_if_room(group.start, purpose == Purpose::Room) {
                return Ok(Shut { space: &self.core.space, group: *group });
            }
            self.commit_for_space(Upkeep::Much)?;
        }
        Err(Error::NoSpace)
    }

    /// Where a group has free space can be read: else no commit could let go of what is moved out of it.
    pub(super) fn have_free_space(&self, start: u64) -> Result<()> {
        let _op = self.core.txn.join_to_read(&self.core)?;
        self.core.space.have(start)
    }

    fn empty(
        &self,
        group: &GroupInfo,
        mut pace: Pace,
        told: &mut dyn FnMut(Emptying) -> bool,
    ) -> Result<Emptied> {
        let (mut done, mut but) = (Emptied::default(), BTreeSet::new());
        let (mut least, mut commits) = (u64::MAX, 0);
        while let Some((used, _)) = self.core.space.left_in_group(group.start) {
            if !told(Emptying { had: group.used, has: used, moved: done.moved }) {
                return Err(Error::User(Errno::INTR));
            }
            let Some(batch) = self.relocate_some(group, &but, &mut pace)? else { continue };
            if let Some(error) = batch.refused {
                return Err(error);
            }
            let failed = batch.failed.into_iter().filter(|(bytenr, _)| but.insert(*bytenr));
            let before = done.failed.len();
            done.failed.extend(failed);
            let is_news = done.failed.len() > before;
            done.moved += batch.moved;
            done.data += batch.data;
            done.blocks += batch.blocks;
            if let Some(why) = batch.too_small {
                pace.enlarge(why)?;
                continue;
            }
            let waited = if batch.has_others { batch.waited } else { Duration::ZERO };
            if batch.moved > 0 {
                pace.waited(waited);
            }
            // It is over for whoever comes now; without a pause one operation of each would go on before the next batch. Who has not come has lost nothing.
            std::thread::sleep(batch.held_up.min(THEIRS_MAX));
            // Where the extent tree contradicts itself, something may have moved and still be there.
            if batch.moved > 0 && used < least {
                (least, commits) = (used, 0);
                continue;
            }
            // The next batch is without what turned out to stay.
            if batch.moved == 0 && is_news {
                continue;
            }
            // What was let go of is free after two more commits, and what files have taken ahead comes back with the next.
            commits += 1;
            if batch.moved == 0 && !done.failed.is_empty() || commits > COMMITS_MAX {
                break;
            }
            self.commit_for_space(Upkeep::None)?;
        }
        if done.failed.is_empty() && self.core.space.left_in_group(group.start).is_some() {
            return Err(Error::User(Errno::BUSY));
        }
        Ok(done)
    }

    /// Moves a batch; `None` where it has to be a smaller one, or a commit came first.
    fn relocate_some(
        &self,
        group: &GroupInfo,
        but: &BTreeSet<u64>,
        pace: &mut Pace,
    ) -> Result<Option<Relocated>> {
        let size = pace.size();
        let relocation = Relocation {
            group: group.range(),
            but: but.clone(),
            blocks: size.blocks,
            changes: size.changes(),
            extents: size.extents(),
            data: size.data,
            grow: pace.purpose == Purpose::Asked,
        };
        let need = Need { reclaiming: pace.purpose == Purpose::Room, ..size.needs(&self.core) };
        match relocate(&self.core, &self.forest, relocation, need)? {
            Ok(batch) => {
                pace.has_committed = false;
                Ok(Some(batch))
            }
            Err(Shortage::CommitFirst) if !pace.has_committed => {
                pace.has_committed = true;
                self.commit_for_space(Upkeep::Much)?;
                Ok(None)
            }
            Err(_) => pace.shrink().map(|()| None),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(flags: u64) -> GroupInfo {
        GroupInfo { start: 0, len: 1 << 30, flags, used: 0, closed: false }
    }

    /// One extent needs more blocks than there is room for: that ends, however often it grows and shrinks.
    #[test]
    fn a_batch_does_not_grow_and_shrink_for_ever() {
        for room in [16, 100, 700, 5000, 1 << 18] {
            let mut pace = Pace::new(&group(1), Purpose::Asked);
            let ends = (0..64).any(|_| {
                let next = match pace.size().blocks > room {
                    true => pace.shrink(),
                    false => pace.enlarge(TooSmall::Blocks),
                };
                next.is_err()
            });
            assert!(ends, "{room}: {pace:?}");
        }
    }

    /// A long extent gets as much data as it has, and not more blocks for that; what follows it does not.
    #[test]
    fn a_batch_has_room_for_a_long_extent() {
        let mut pace = Pace::new(&group(1), Purpose::Asked);
        let before = pace.size();
        pace.enlarge(TooSmall::Data(256 << 20)).unwrap();
        assert_eq!(pace.size(), Size { data: 256 << 20, ..before });
        pace.waited(AIM * 3);
        assert_eq!(pace.size(), before, "that took long is not for the size");
        pace.enlarge(TooSmall::Data(256 << 20)).unwrap();
        while pace.shrink().is_ok() {}
        assert_eq!(pace.size(), Size { blocks: BLOCKS_MIN.1, data: 256 << 20 });
        assert_eq!(Pace::new(&group(4), Purpose::Asked).size().data, 0, "metadata");
    }

    /// Who waits too long waits for less the next time, and so on down to the fewest; and where there was no room it is never more again.
    #[test]
    fn a_batch_is_as_large_as_others_can_wait_for() {
        let mut pace = Pace::new(&group(1), Purpose::Asked);
        pace.waited(AIM / 10);
        assert_eq!(pace.size().blocks, 2 * BLOCKS.0);
        for _ in 0..8 {
            pace.waited(AIM / 10);
        }
        assert_eq!(pace.size().blocks, BLOCKS.1, "the most");
        pace.waited(AIM * 2);
        assert_eq!(pace.size().blocks, BLOCKS.1 / 2);
        pace.waited(AIM);
        assert_eq!(pace.size().blocks, BLOCKS.1 / 2, "just right");
        pace.waited(AIM * 100);
        assert_eq!(pace.size().blocks, BLOCKS_MIN.0, "the fewest");
        pace.shrink().unwrap();
        pace.waited(AIM / 10);
        assert_eq!(pace.size().blocks, BLOCKS_MIN.0 / 2, "there is no room for more");
        pace.waited(AIM * 3);
        assert_eq!(pace.size().blocks, BLOCKS_MIN.0 / 2, "and fewer help nobody");
    }
}
