//! Quotas: switched on, and counted anew.
//!
//! All is counted by a pass over the last commit ([`super::costs`]), and the commit that comes next goes on from there. When one has come in between,
//! it is counted once more. The worker does so, too, where quotas are wrong.

use buttress_ondisk::objectid;

use super::costs::Counting;
use super::{Filesystem, Inner};
use crate::error::{Errno, Error, Result};
use crate::quota::{Counted, Groups, Quota};
use crate::refs::usage::Progress;
use crate::space::Need;
use crate::tree::View;
use crate::txn::Upkeep;

/// How often it is counted anew because a commit was faster.
const TRIES: u32 = 8;

impl Filesystem {
    /// Has each commit from now on count what quota groups have, on a filesystem without quotas too, and counts what is there. `told` hears how
    /// far it is and may end it by `false`: then the answer is EINTR. EBUSY when commits keep coming faster than it can be counted.
    pub fn count_quotas(&self, mut told: impl FnMut(Progress) -> bool) -> Result<()> {
        for _ in 0..TRIES {
            if self.inner().count_quotas(&mut told)? {
                return Ok(());
            }
        }
        Err(Error::User(Errno::BUSY))
    }
}

impl Inner {
    /// Counts once; whether no commit has come in between.
    fn count_quotas(&self, told: &mut dyn FnMut(Progress) -> bool) -> Result<bool> {
        let core = &self.core;
        core.check_writable()?;
        self.commit()?;
        let mut counting = Counting::of(self)?;
        while counting.step_in(self)? {
            if !told(counting.progress()) {
                return Err(Error::User(Errno::INTR));
            }
        }
        let version = counting.version();
        let mut groups = self.read(|op| match op.core.roots().quota {
            Some(root) => Groups::load(View::new(&op.core.blocks, objectid::QUOTA_TREE, root)),
            None => Ok(Groups::default()),
        })?;
        groups.recount(&counting.costs());
        let bytes = u32::try_from(groups.bytes()).unwrap_or(u32::MAX);
        let leaves = bytes / (core.features.nodesize as u32 / 2) + 2;
        let need = Need { private: leaves, bytes, deleting: true, ..Need::default() };
        core.space.reserve(need).map_err(|_| Error::NoSpace)?;
        *core.recounted.lock() = Some(Counted { groups, version });
        let transid = self.commit_for_space(Upkeep::None)?;
        Ok(matches!(*core.quota.lock(), Quota::Counted(_)) && transid == version + 1)
    }

    /// Whether quotas are wrong and wait to be counted anew.
    pub(super) fn has_wrong_quotas(&self) -> bool {
        matches!(*self.core.quota.lock(), Quota::Inconsistent)
    }

    /// Counts quotas anew where they are wrong. What keeps it from that is said, and the next open tries again; where commits were faster, the
    /// next commit does.
    pub(super) fn repair_quotas(&self, is_stopping: impl Fn() -> bool) {
        if !self.has_wrong_quotas() {
            return;
        }
        match self.count_quotas(&mut |_| !is_stopping()) {
            Ok(_) | Err(Error::User(_)) => {}
            Err(error) => {
                self.core
                    .warn(format!("quota groups stay wrong, as they cannot be counted: {error}"));
                *self.core.quota.lock() = Quota::Left;
            }
        }
    }
}
