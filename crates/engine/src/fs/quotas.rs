//! Quotas: switched on, and counted anew.
//!
//! All is counted by a pass over the last commit ([`super::costs`]), and the commit that comes next goes on from there. When one has come in between,
//! it is counted once more, and nobody commits until that is done. The worker does so, too, where quotas are wrong, and whoever closes the filesystem.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use buttress_ondisk::item::RootItem;
use buttress_ondisk::{Key, kind, objectid};

use super::costs::Counting;
use super::{Filesystem, Inner};
use crate::error::{Errno, Error, Result, Unsupported};
use crate::quota::{Counted, Groups, Quota, is_deleted};
use crate::refs::usage::Progress;
use crate::space::{Need, Shortage};
use crate::txn::{LogTurn, Upkeep};

/// How often it is counted anew because there was no room for the answer without a commit.
const TRIES: u32 = 8;
/// How long whoever closes a filesystem waits for wrong quotas to be counted: whoever opens it next has to count them otherwise.
const CLOSING_MAX: Duration = Duration::from_secs(10);

/// What came of counting wrong quotas.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Repair {
    /// They are right.
    Done,
    /// Somebody was in the way, or wanted it to end.
    Later,
    /// They cannot be counted, which was said.
    Failed,
}

impl Filesystem {
    /// Has each commit from now on count what quota groups have, on a filesystem without quotas too, and counts what is there. `told` hears how
    /// far it is and may end it by `false`: then the answer is EINTR. It must not call into the filesystem: nobody commits during the second pass. EBUSY when commits keep coming faster than it can be counted, EINVAL
    /// where simple quotas are on.
    pub fn count_quotas(&self, mut told: impl FnMut(Progress) -> bool) -> Result<()> {
        if self.has_simple_quotas() {
            return Err(Error::User(Errno::INVAL));
        }
        let _alone = self.inner().counting_quotas.lock();
        for _ in 0..TRIES {
            if self.inner().count_quotas(&mut |at, _| told(at), true)? {
                return Ok(());
            }
        }
        Err(Error::User(Errno::BUSY))
    }

    /// Switches simple quotas on: what is allocated from now on counts for the subvolume that allocates it, and nothing that is there. Nothing where
    /// they are on; EEXIST where full ones are.
    pub fn enable_simple_quotas(&self) -> Result<()> {
        let inner = self.inner();
        inner.core.check_writable()?;
        let _alone = inner.counting_quotas.lock();
        if self.has_quotas() {
            return if self.has_simple_quotas() { Ok(()) } else { Err(Error::User(Errno::EXIST)) };
        }
        // A group for each subvolume is written.
        let subvolumes = self.subvolumes_past(&mut |_| ())?.len();
        let bytes = Groups::default().bytes(subvolumes + 1);
        inner.change(inner.core.need_for_groups(bytes), |op| {
            let mut quota = op.core.quota.lock();
            if matches!(*quota, Quota::Off) {
                *quota = Quota::Beginning;
            }
            Ok(())
        })?;
        inner.commit_for_space(Upkeep::None).map(drop)
    }
}

impl Inner {
    /// Counts once; whether each commit counts from here on. EINTR where `told` ends it, which hears how far it is, and whether nobody commits meanwhile.
    fn count_quotas(
        &self,
        told: &mut dyn FnMut(Progress, bool) -> bool,
        switches_on: bool,
    ) -> Result<bool> {
        let core = &self.core;
        core.check_writable()?;
        if matches!(*core.quota.lock(), Quota::Left) {
            return Err(Error::Unsupported(Unsupported::Quotas));
        }
        self.commit()?;
        let mut told = |at, alone| (switches_on || self.has_wrong_quotas()) && told(at, alone);
        let beside = self.pass_over_last(&mut |at| told(at, false))?;
        core.env.step("quotas are counted beside commits");
        // Nobody commits from here on until the next commit has the answer. Where one has come first, its version is counted now: however fast others
        // commit, this ends.
        let turn = LogTurn::wait(core, |_| false);
        let is_last = |it: &Counting| it.version() == core.roots().root.generation;
        let counting = match beside.filter(is_last) {
            Some(counting) => counting,
            None => {
                self.pass_over_last(&mut |at| told(at, true))?.ok_or(Error::User(Errno::BUSY))?
            }
        };
        let version = counting.version();
        let Some(dead) = self.dead_in(version)? else { return Ok(false) };
        let costs = counting.costs();
        let bytes = {
            let (mut quota, more) = (core.quota.lock(), costs.subvolumes().count());
            quota.groups().map_or_else(|| Groups::default().bytes(more), |it| it.bytes(more))
        };
        let need = Need { deleting: true, ..core.need_for_groups(bytes) };
        match core.space.reserve(need) {
            Ok(()) => {}
            Err(Shortage::CommitFirst) => return Ok(false),
            Err(Shortage::NoSpace) => return Err(Error::NoSpace),
        }
        *core.recounted.lock() = Some(Counted { costs, dead, version, switches_on });
        drop(turn);
        self.commit_for_space(Upkeep::None)?;
        Ok(matches!(*core.quota.lock(), Quota::Counted(_)))
    }

    /// Counts what subvolumes take in the last version; `None` when a commit has made another one of it meanwhile.
    fn pass_over_last(&self, told: &mut dyn FnMut(Progress) -> bool) -> Result<Option<Counting>> {
        let mut counting = Counting::of(self)?;
        let version = counting.version();
        while counting.step_in(self)? {
            if counting.version() != version {
                return Ok(None);
            }
            if !told(counting.progress()) {
                return Err(Error::User(Errno::INTR));
            }
        }
        Ok(Some(counting))
    }

    /// The subvolumes that are deleted in a version; `None` when it is not the last one any more.
    fn dead_in(&self, version: u64) -> Result<Option<BTreeSet<u64>>> {
        self.read(|op| {
            let roots = op.core.roots();
            if roots.root.generation != version {
                return Ok(None);
            }
            let mut dead = BTreeSet::new();
            let from = Key::new(objectid::FIRST_FREE, kind::ROOT_ITEM, 0);
            let trees = op.core.root_view();
            let mut items = trees.range(from, Key::MAX);
            while let Some(item) = items.next()? {
                if item.key().kind == kind::ROOT_ITEM
                    && RootItem::read(item.data()).is_some_and(|item| is_deleted(&item))
                {
                    dead.insert(item.key().objectid);
                }
            }
            Ok(Some(dead))
        })
    }

    /// Whether quotas are wrong and wait to be counted anew.
    pub(super) fn has_wrong_quotas(&self) -> bool {
        matches!(*self.core.quota.lock(), Quota::Inconsistent(_))
    }

    /// Has wrong quotas counted anew, for whoever is refused by them: one pass for all who wait. Whether they are right then.
    pub(super) fn right_quotas(&self) -> bool {
        let _alone = self.counting_quotas.lock();
        if !self.has_wrong_quotas() {
            return true;
        }
        let _counted = self.count_quotas(&mut |_, _| true, false);
        let is_right = !self.has_wrong_quotas();
        if !is_right {
            // What can be held is what was known last, and what one transaction adds.
            if let Some(groups) = self.core.quota.lock().groups() {
                self.core.charges.settle(groups, true);
            }
        }
        is_right
    }

    /// Counts quotas anew where they are wrong, until `gives_up`. What keeps it from that is said. Where a commit `is_wanted` meanwhile it is made.
    pub(super) fn repair_quotas(
        &self,
        is_wanted: impl Fn() -> bool,
        gives_up: impl Fn() -> bool,
    ) -> Repair {
        let Some(_alone) = self.counting_quotas.try_lock() else { return Repair::Later };
        let mut told = |_, alone: bool| {
            let is_done = alone || !is_wanted() || self.commit().is_ok();
            is_done && !gives_up()
        };
        match self.count_quotas(&mut told, false) {
            Ok(true) => Repair::Done,
            Ok(false) | Err(Error::User(_)) => Repair::Later,
            Err(error) => {
                self.core
                    .warn(format!("quota groups stay wrong, as they cannot be counted: {error}"));
                Repair::Failed
            }
        }
    }

    /// The last chance to have wrong quotas counted.
    pub(super) fn repair_quotas_at_end(&self) {
        let end = Instant::now() + CLOSING_MAX;
        if self.has_wrong_quotas()
            && self.core.check_writable().is_ok()
            && self.repair_quotas(|| false, || Instant::now() >= end) == Repair::Later
        {
            self.core.warn("quota groups are left to be counted anew: that took too long".into());
        }
    }
}
