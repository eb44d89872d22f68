//! Quotas: switched on, and counted anew.
//!
//! All is counted by a pass over the last commit ([`super::costs`]), and the commit that comes next goes on from there. When one has come in between,
//! it is counted once more. The worker does so, too, where quotas are wrong.

use std::collections::BTreeSet;

use buttress_ondisk::item::RootItem;
use buttress_ondisk::{Key, kind, objectid};

use super::costs::Counting;
use super::{Filesystem, Inner};
use crate::error::{Errno, Error, Result, Unsupported};
use crate::quota::{Counted, Groups, Quota, is_deleted};
use crate::refs::usage::Progress;
use crate::space::{Need, Shortage};
use crate::txn::Upkeep;

/// How often it is counted anew because a commit was faster.
const TRIES: u32 = 8;

impl Filesystem {
    /// Has each commit from now on count what quota groups have, on a filesystem without quotas too, and counts what is there. `told` hears how
    /// far it is and may end it by `false`: then the answer is EINTR. EBUSY when commits keep coming faster than it can be counted.
    pub fn count_quotas(&self, mut told: impl FnMut(Progress) -> bool) -> Result<()> {
        let _alone = self.inner().counting_quotas.lock();
        for _ in 0..TRIES {
            if self.inner().count_quotas(&mut told, true)? {
                return Ok(());
            }
        }
        Err(Error::User(Errno::BUSY))
    }

    /// Switches simple quotas on: what is allocated from the commit on that this makes counts for the subvolume that allocates it. Nothing
    /// where they are on.
    pub fn enable_simple_quotas(&self) -> Result<()> {
        Err(Error::Unsupported(Unsupported::Quotas))
    }

    /// Whether quotas are on, and simple ones.
    pub fn has_simple_quotas(&self) -> bool {
        false
    }
}

impl Inner {
    /// Counts once; whether no commit has come in between.
    fn count_quotas(
        &self,
        told: &mut dyn FnMut(Progress) -> bool,
        switches_on: bool,
    ) -> Result<bool> {
        let core = &self.core;
        core.check_writable()?;
        if matches!(*core.quota.lock(), Quota::Left) {
            return Err(Error::Unsupported(Unsupported::Quotas));
        }
        self.commit()?;
        let mut counting = Counting::of(self)?;
        while counting.step_in(self)? {
            let is_off = !switches_on && !self.has_wrong_quotas();
            if is_off || !told(counting.progress()) {
                return Err(Error::User(Errno::INTR));
            }
        }
        let version = counting.version();
        let Some(dead) = self.dead_in(version)? else { return Ok(false) };
        let costs = counting.costs();
        let (was_counted, bytes) = {
            let mut quota = core.quota.lock();
            let more = costs.subvolumes().count();
            let bytes =
                quota.groups().map_or_else(|| Groups::default().bytes(more), |it| it.bytes(more));
            (matches!(*quota, Quota::Counted(_)), bytes)
        };
        let need = Need { deleting: true, ..core.need_for_groups(bytes) };
        match core.space.reserve(need) {
            Ok(()) => {}
            Err(Shortage::CommitFirst) => return Ok(false),
            Err(Shortage::NoSpace) => return Err(Error::NoSpace),
        }
        *core.recounted.lock() = Some(Counted { costs, dead, version, switches_on });
        let transid = self.commit_for_space(Upkeep::None)?;
        let is_counted = matches!(*core.quota.lock(), Quota::Counted(_));
        Ok(is_counted && (!was_counted || transid == version + 1))
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
        let _counted = self.count_quotas(&mut |_| true, false);
        let is_right = !self.has_wrong_quotas();
        if !is_right {
            // What can be held is what was known last, and what one transaction adds.
            if let Some(groups) = self.core.quota.lock().groups() {
                self.core.charges.settle(groups, true);
            }
        }
        is_right
    }

    /// Counts quotas anew where they are wrong, until `gives_up`; whether they are right then. What keeps it from that is said.
    pub(super) fn repair_quotas(&self, gives_up: impl Fn() -> bool) -> bool {
        let Some(_alone) = self.counting_quotas.try_lock() else { return false };
        match self.count_quotas(&mut |_| !gives_up(), false) {
            Ok(done) => done,
            Err(Error::User(_)) => false,
            Err(error) => {
                self.core
                    .warn(format!("quota groups stay wrong, as they cannot be counted: {error}"));
                false
            }
        }
    }
}
