//! How an operation is run: it joins the running transaction, reserves what its commit may need, and does its work.
//!
//! The reservation is made after joining, so that it counts for the same transaction as the work. When there is no room,
//! everything is let go of, a commit makes what is freed usable, and the operation is tried again from its start; after
//! a few commits that did not help a block group is emptied ([`super::reclaim`]), and where none can be there is no space. An operation that failed has changed nothing that a second try
//! would not do again.

use buttress_ondisk::SECTOR;

use super::Inner;
use super::own::About;
use crate::error::{Errno, Error, Result};
use crate::inode::file::DIRECT_MIN;
use crate::inode::{FEW, letting_go};
use crate::space::{Need, Shortage};
use crate::subvol::LEAVING_COMMITS;
use crate::txn::{CHANGE_BYTES, Op, SMALL_CHANGE_BYTES, Upkeep, Urgency};

/// Commits that one operation makes in search of room.
const COMMITS_MAX: u32 = 4;

/// Commits that one operation makes to have what was charged to quota groups counted; the second one for what others were charged meanwhile.
const COUNTS_MAX: u32 = 2;

/// How often a deletion tries to come alone where there is no room, and how often where others come first as well: each time one of them is done.
const ALONE_MAX: (u32, u32) = (3, 100);

/// Commits in a row that drop deleted subvolumes while an operation waits for room, and give nothing back that it could use.
const IN_VAIN_MAX: u32 = 1000;

/// Data extents that one operation lets go of at most.
const EXTENTS_MAX: usize = 4096;

/// Bytes of items that the usual operation promises at most. More, as for long values of xattrs and many checksums, count as
/// waiting, and half as much again for the holes that odd lengths leave.
const USUAL_BYTES: u32 = 1 << 10;

/// Block groups that one operation empties in search of room.
const RECLAIMED_MAX: u32 = 8;

/// Whether an operation was let in.
type Reserved = std::result::Result<(), Failure>;

enum Failure {
    Shortage(Shortage),
    /// The limit of a quota group is in the way; whether a commit may change that.
    Quota(bool),
    Other(Error),
}

impl Inner {
    /// Runs an operation that changes nothing.
    pub fn read<T>(&self, work: impl FnOnce(&Op<'_>) -> Result<T>) -> Result<T> {
        let op = self.core.txn.join_to_read(&self.core)?;
        work(&op)
    }

    /// Runs an operation that changes something and may need `need` for its commit.
    pub fn change<T>(&self, need: Need, work: impl FnMut(&Op<'_>) -> Result<T>) -> Result<T> {
        self.change_about(About::Whatever, need, work)
    }

    /// The same, of an operation that says what it lets go of.
    pub fn change_about<T>(
        &self,
        about: About<'_>,
        need: Need,
        mut work: impl FnMut(&Op<'_>) -> Result<T>,
    ) -> Result<T> {
        self.core.check_writable()?;
        let (done, left) = self.retry(need, about, &mut work)?;
        // Large writes go to the disk at once, except for parts of sectors.
        let kept = if need.data < DIRECT_MIN { need.data } else { 2 * SECTOR };
        self.relieve(kept, left, need)?;
        Ok(done)
    }

    /// The same, of an operation whose data do not stay in memory.
    pub fn change_through<T>(
        &self,
        need: Need,
        mut work: impl FnMut(&Op<'_>) -> Result<T>,
    ) -> Result<T> {
        self.core.check_writable()?;
        let (done, left) = self.retry(need, About::Whatever, &mut work)?;
        self.relieve(0, left, need)?;
        Ok(done)
    }

    /// Tries until there is room; what was answered, and how much was left in memory besides the usual.
    fn retry<T>(
        &self,
        need: Need,
        about: About<'_>,
        work: &mut impl FnMut(&Op<'_>) -> Result<T>,
    ) -> Result<(T, u64)> {
        let mut look = About::Whatever;
        let (mut commits, mut steps) = (0, self.forest.steps());
        // Asked for when there was no room for the first time, which most operations never hear.
        let (mut in_vain, mut used) = (0, None);
        let (mut counted, mut reclaimed) = (0, 0);
        let mut alone_first = self.core.space.was_alone();
        loop {
            let shortage = match self.attempt(need, look, Self::with_others, work) {
                Ok(done) => return Ok(done),
                Err(Failure::Other(error)) => return Err(error),
                Err(Failure::Quota(may_shrink)) => {
                    let helps = may_shrink || self.forest.has_dead();
                    if !helps || counted == COUNTS_MAX || !self.count_charges()? {
                        return Err(Error::User(Errno::DQUOT));
                    }
                    counted += 1;
                    continue;
                }
                Err(Failure::Shortage(shortage)) => shortage,
            };
            if std::mem::take(&mut alone_first)
                && let Some(done) = self.alone(need, about, work)?
            {
                return Ok(done);
            }
            look = about;
            // Nobody is refused space for the sake of who has files of a deleted subvolume open.
            if shortage == Shortage::NoSpace && self.forest.let_all_go() {
                (0..LEAVING_COMMITS)
                    .try_for_each(|_| self.commit_for_space(Upkeep::Much).map(drop))?;
                continue;
            }
            // Deleted subvolumes give space back, too: one that was deleted just now with the second commit. A deletion is not given up
            // while what others were promised may come back.
            let hopeless = commits > 1 || !self.forest.has_dead();
            let given_up = match need.deleting {
                false => shortage == Shortage::NoSpace && hopeless || commits == COMMITS_MAX,
                // Others who delete at the same time may have kept packing from being asked for.
                true if commits == COMMITS_MAX => !self.core.space.ask_to_pack(),
                true => commits > COMMITS_MAX,
            };
            if given_up {
                // The device may have room for the one class in chunks of the other.
                if reclaimed == RECLAIMED_MAX || !self.reclaim_for(need)? {
                    return self.alone(need, about, work)?.ok_or(Error::NoSpace);
                }
                (reclaimed, commits) = (reclaimed + 1, 0);
                continue;
            }
            let before = used.unwrap_or_else(|| self.used(need));
            self.commit_for_space(Upkeep::Much)?;
            // As long as deleted subvolumes go, none of these commits is the last one. What they share goes with the last of them only, so
            // some may give nothing back that is of use here; but nobody sits through all of them for that.
            let now = self.used(need);
            in_vain = if now < before { 0 } else { in_vain + 1 };
            used = Some(now);
            let before = std::mem::replace(&mut steps, self.forest.steps());
            commits = if steps > before && in_vain < IN_VAIN_MAX { 0 } else { commits + 1 };
        }
    }

    /// The last resort of a deletion: nothing else is under way, and what its commit writes is looked at closely ([`crate::space::Lone`]). It is
    /// committed at once. Nothing where there is no room for that either, or others keep coming in between.
    fn alone<T>(
        &self,
        need: Need,
        about: About<'_>,
        work: &mut impl FnMut(&Op<'_>) -> Result<T>,
    ) -> Result<Option<(T, u64)>> {
        if !about.can_be_alone(need) {
            return Ok(None);
        }
        let (mut refused, mut steps) = (0, self.forest.steps());
        for _ in 0..ALONE_MAX.1 {
            self.commit_for_space(Upkeep::Much)?;
            match self.attempt(need, about, Self::without_others, work) {
                Ok(done) => {
                    self.commit_for_space(Upkeep::Much)?;
                    return Ok(Some(done));
                }
                Err(Failure::Other(error)) => return Err(error),
                Err(Failure::Quota(_)) => return Err(Error::User(Errno::DQUOT)),
                Err(Failure::Shortage(shortage)) => {
                    // Deleted subvolumes give room as they go.
                    let before = std::mem::replace(&mut steps, self.forest.steps());
                    refused += u32::from(shortage == Shortage::NoSpace && steps == before);
                }
            }
            if refused == ALONE_MAX.0 {
                break;
            }
        }
        Ok(None)
    }

    fn with_others(&self, op: &Op<'_>, need: Need, _: About<'_>) -> Reserved {
        op.core.space.reserve_for_operation(need).map_err(Failure::Shortage)
    }

    fn without_others(&self, op: &Op<'_>, need: Need, about: About<'_>) -> Reserved {
        // As long as this operation is under way, no commit begins: what is looked at stays as it is.
        if !op.core.space.is_quiet() {
            return Err(Failure::Shortage(Shortage::CommitFirst));
        }
        let looked = self.looked_closely(op, need, about).map_err(Failure::Other)?;
        let (shape, lone) = looked.ok_or(Failure::Shortage(Shortage::NoSpace))?;
        op.core.space.reserve_alone(need, (&shape, &lone)).map_err(Failure::Shortage)
    }

    /// Has what was charged to quota groups be counted: that is less, mostly. Where they are wrong, all is counted; whether that could be done.
    fn count_charges(&self) -> Result<bool> {
        if self.has_wrong_quotas() {
            return Ok(self.right_quotas());
        }
        let upkeep = if self.forest.has_dead() { Upkeep::Much } else { Upkeep::None };
        self.commit_for_space(upkeep).map(|_| true)
    }

    /// Bytes in use of the kind that an operation wants more of.
    fn used(&self, need: Need) -> u64 {
        let usage = self.core.space.usage();
        if need.data > 0 && !usage.mixed { usage.data.used } else { usage.used() }
    }

    fn attempt<T>(
        &self,
        need: Need,
        look: About<'_>,
        reserve: impl FnOnce(&Inner, &Op<'_>, Need, About<'_>) -> Reserved,
        work: &mut impl FnMut(&Op<'_>) -> Result<T>,
    ) -> std::result::Result<(T, u64), Failure> {
        let op = self.core.txn.join(&self.core).map_err(Failure::Other)?;
        let (need, unread) = self.looked_up(&op, need, look);
        let charge = op.charged(need);
        if need.deleting {
            self.core.charges.note_deletion();
        }
        let charges = self.core.charges.charge(need.charged_to, charge);
        charges.map_err(|full| Failure::Quota(full.may_shrink))?;
        reserve(self, &op, need, look).map_err(|failure| {
            self.core.charges.give_back(need.charged_to, charge);
            match (failure, unread) {
                // There may be room: who could not look does not know.
                (Failure::Shortage(Shortage::NoSpace), Some(error)) => Failure::Other(error),
                (failure, _) => failure,
            }
        })?;
        let done = work(&op).map_err(|error| match error {
            Error::User(Errno::DQUOT) => {
                op.unreserve(need);
                Failure::Quota(true)
            }
            Error::User(_) => {
                op.unreserve(need);
                Failure::Other(error)
            }
            // It may have got half way, and used up part of what it was promised: the next commit settles that. To give all of
            // it back would take away what others were promised.
            Error::NoSpace => Failure::Shortage(Shortage::CommitFirst),
            other => Failure::Other(other),
        })?;
        Ok((done, op.left()))
    }

    /// Runs an operation that lets go of data in as many steps as that takes, until one answers something. Each is told how
    /// many extents it may let go of: a few at first, as most files have no more; many then, and fewer where there is no
    /// room for that. `need` is what a step needs besides.
    pub fn in_steps<T>(
        &self,
        about: About<'_>,
        need: Need,
        mut step: impl FnMut(&Op<'_>, usize) -> Result<Option<T>>,
    ) -> Result<T> {
        let (mut extents, mut most) = (FEW, EXTENTS_MAX);
        loop {
            let need = Need { modest: extents > 1, ..plus(need, letting_go(extents)) };
            match self.change_about(about, need, |op| step(op, extents)) {
                Ok(Some(done)) => return Ok(done),
                Ok(None) => extents = most,
                Err(Error::NoSpace) if extents > 1 => {
                    most = (extents / 4).max(1);
                    extents = most;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Keeps what waits in memory within bounds: asks for a commit in time, and makes one itself when that comes too late.
    fn relieve(&self, data: u64, left: u64, need: Need) -> Result<()> {
        let long = if need.bytes > USUAL_BYTES { u64::from(need.bytes) / 2 * 3 } else { 0 };
        // What goes leaves its mark in the inode, in the directory and in the trees.
        let changes = match need {
            Need { deleting: true, .. } => 2 * CHANGE_BYTES,
            Need { small: true, .. } => SMALL_CHANGE_BYTES,
            _ => CHANGE_BYTES,
        };
        let others = changes + long + left;
        let first = self.core.waiting.begin();
        let urgency = self.core.waiting.add(data, others);
        self.core.share_memory();
        if first {
            self.wake.begun();
        }
        match urgency {
            Urgency::None => {}
            Urgency::Flush => self.wake.flush(),
            Urgency::Soon if self.options.background && self.wake.wake() => {}
            Urgency::Soon | Urgency::Now => drop(self.commit()?),
        }
        Ok(())
    }
}

/// An operation that touches `leaves` leaves of trees and adds `bytes` bytes of items.
pub(super) fn need(leaves: u32, bytes: usize) -> Need {
    Need { leaves, bytes: u32::try_from(bytes).unwrap_or(u32::MAX), ..Need::default() }
}

/// The same for an operation that gives space back.
pub(super) fn deleting(leaves: u32, bytes: usize) -> Need {
    Need { deleting: true, ..need(leaves, bytes) }
}

/// Both needs; `letting_go` says whether it gives space back.
pub(super) fn plus(need: Need, letting_go: Need) -> Need {
    Need {
        leaves: need.leaves.saturating_add(letting_go.leaves),
        bytes: need.bytes.saturating_add(letting_go.bytes),
        refs: need.refs.saturating_add(letting_go.refs),
        private: need.private.saturating_add(letting_go.private),
        ..need
    }
}
