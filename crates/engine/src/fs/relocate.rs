//! Block groups are emptied: what is in one moves elsewhere, and its chunk is given back.
//!
//! A group is closed first, so that nothing comes to it. Then batches follow, each a commit beside which no operation runs
//! ([`crate::txn::relocate`]): who works meanwhile waits for one batch, and goes on. What a batch has moved is durable, so whoever ends the
//! work in between, or a crash, loses nothing. The commit that finds the group vacant gives its chunk back.
//!
//! How large a batch is: as large as there is room for, and small enough to be done soon. Where one extent alone needs more (a block that thousands
//! of snapshots share has as many blocks above it) the batch becomes larger.

use std::collections::BTreeSet;

use super::{Filesystem, Inner};
use crate::error::{Errno, Error, Result};
use crate::space::{GroupInfo, NOBODY, Need, Range, Shortage};
use crate::txn::{Relocated, Relocation, Upkeep, relocate};

/// Tree blocks of a batch, at first and at most.
const BLOCKS: (usize, usize) = (512, 1 << 17);
/// The fewest, before there is no room.
const BLOCKS_MIN: usize = 16;
/// References that change for each block of a batch, about; more where blocks are referred to by address.
const CHANGES_PER_BLOCK: usize = 64;
/// Bytes of data of a batch; one extent may have more.
const DATA: u64 = 32 << 20;
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
        let _alone = inner.relocating.lock();
        let group = self.block_groups().into_iter().find(|group| group.start == start);
        let group = group.ok_or(Error::User(Errno::NOENT))?;
        inner.close_group(start)?;
        let emptied = inner.empty(&group, &mut told);
        // Where it is gone there is nothing to open.
        inner.core.space.close_group(start, false);
        emptied
    }
}

/// How much a batch may take.
#[derive(Clone, Copy, Debug)]
struct Size {
    blocks: usize,
    data: u64,
}

impl Size {
    fn needs(self) -> Need {
        let number = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
        let extents = (self.data >> 12).min(self.blocks as u64 * 8);
        Need {
            leaves: number(self.blocks),
            private: number(self.blocks / 4 + 4),
            nodes: number(self.changes()),
            refs: number(extents as usize),
            data: self.data,
            charged_to: NOBODY,
            ..Need::default()
        }
    }

    fn changes(self) -> usize {
        self.blocks * CHANGES_PER_BLOCK
    }
}

impl Inner {
    /// Closes a group, once what others were promised has room without it.
    fn close_group(&self, start: u64) -> Result<()> {
        for _ in 0..2 {
            if self.core.space.close_group_if_room(start) {
                return Ok(());
            }
            self.commit_for_space(Upkeep::Much)?;
        }
        Err(Error::NoSpace)
    }

    fn empty(&self, group: &GroupInfo, told: &mut dyn FnMut(Emptying) -> bool) -> Result<Emptied> {
        let (mut done, mut but) = (Emptied::default(), BTreeSet::new());
        let mut size = Size { blocks: BLOCKS.0, data: DATA };
        let mut commits = 0;
        while let Some((used, _)) = self.core.space.left_in_group(group.start) {
            if !told(Emptying { had: group.used, has: used, moved: done.moved }) {
                return Err(Error::User(Errno::INTR));
            }
            let relocation = Relocation {
                group: Range::new(group.start, group.len),
                but: but.clone(),
                blocks: size.blocks,
                changes: size.changes(),
                data: size.data,
            };
            match self.relocate_some(relocation, &mut size)? {
                None => continue,
                Some(batch) => {
                    let is_stuck = batch.moved == 0;
                    if is_stuck && batch.has_no_room {
                        return Err(Error::NoSpace);
                    }
                    if batch.is_too_small {
                        size = larger(size, group)?;
                        continue;
                    }
                    but.extend(batch.failed.iter().map(|(bytenr, _)| *bytenr));
                    done.moved += batch.moved;
                    done.data += batch.data;
                    done.blocks += batch.blocks;
                    done.failed.extend(batch.failed);
                    if !is_stuck {
                        commits = 0;
                        continue;
                    }
                }
            }
            // What was let go of is free after two more commits, and what files have taken ahead comes back with the next.
            commits += 1;
            if !done.failed.is_empty() || commits > COMMITS_MAX {
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
    fn relocate_some(&self, relocation: Relocation, size: &mut Size) -> Result<Option<Relocated>> {
        match relocate(&self.core, &self.forest, relocation, size.needs())? {
            Ok(batch) => Ok(Some(batch)),
            Err(Shortage::CommitFirst) if size.blocks > BLOCKS_MIN => {
                self.commit_for_space(Upkeep::Much)?;
                *size = smaller(*size);
                Ok(None)
            }
            Err(_) if size.blocks > BLOCKS_MIN => {
                *size = smaller(*size);
                Ok(None)
            }
            Err(_) => Err(Error::NoSpace),
        }
    }
}

fn smaller(size: Size) -> Size {
    Size { blocks: (size.blocks / 2).max(BLOCKS_MIN), data: (size.data / 2).max(1 << 20) }
}

/// For one extent that alone needs more.
fn larger(size: Size, group: &GroupInfo) -> Result<Size> {
    if size.blocks >= BLOCKS.1 {
        return Err(Error::NoSpace);
    }
    Ok(Size { blocks: size.blocks * 4, data: (size.data * 4).min(group.len) })
}
