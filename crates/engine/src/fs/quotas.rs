//! Quotas: switched on, and counted anew.
//!
//! All is counted by a pass over the last commit ([`super::costs`]), and the commit that comes next goes on from there. When one has come in between,
//! it is counted once more.

use buttress_ondisk::objectid;

use super::Filesystem;
use crate::error::{Errno, Error, Result};
use crate::quota::{Counted, Groups, Quota};
use crate::refs::usage::Progress;
use crate::space::Need;
use crate::tree::View;

/// How often it is counted anew because a commit was faster.
const TRIES: u32 = 8;

impl Filesystem {
    /// Has each commit from now on count what quota groups have, on a filesystem without quotas too, and counts what is there. `told` hears how
    /// far it is and may end it by `false`: then the answer is EINTR. EBUSY when commits keep coming faster than it can be counted.
    pub fn count_quotas(&self, mut told: impl FnMut(Progress) -> bool) -> Result<()> {
        let core = self.core();
        core.check_writable()?;
        for _ in 0..TRIES {
            self.commit()?;
            let mut counting = self.count_subvolumes()?;
            while counting.step(self)? {
                if !told(counting.progress()) {
                    return Err(Error::User(Errno::INTR));
                }
            }
            let version = counting.version();
            let mut groups = self.groups()?;
            groups.recount(&counting.costs());
            let bytes = u32::try_from(groups.bytes()).unwrap_or(u32::MAX);
            let leaves = bytes / (core.features.nodesize as u32 / 2) + 2;
            let need = Need { private: leaves, bytes, deleting: true, ..Need::default() };
            core.space.reserve(need).map_err(|_| Error::NoSpace)?;
            *core.recounted.lock() = Some(Counted { groups, version });
            let transid = self.inner().commit_for_space(self.inner().upkeep())?;
            if matches!(*core.quota.lock(), Quota::Counted(_)) && transid == version + 1 {
                return Ok(());
            }
        }
        Err(Error::User(Errno::BUSY))
    }

    /// The groups that the last commit has.
    fn groups(&self) -> Result<Groups> {
        self.inner().read(|op| match op.core.roots().quota {
            Some(root) => Groups::load(View::new(&op.core.blocks, objectid::QUOTA_TREE, root)),
            None => Ok(Groups::default()),
        })
    }
}
