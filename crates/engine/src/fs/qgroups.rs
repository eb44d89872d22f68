//! Groups of quotas: made, put into each other, limited.
//!
//! Groups are changed in memory, and the commit that follows writes them with the numbers that it counts. All of it is durable when the call returns.

use buttress_ondisk::{Key, kind, objectid};

use super::run::need;
use super::types::{Node, Owner};
use super::{Filesystem, Inner};
use crate::error::{Errno, Error, Result};
use crate::quota::{Groups, Quota, is_of_subvolume};
use crate::space::Need;
use crate::tree::View;
use crate::txn::{Core, Upkeep};

pub use crate::quota::NewLimits;

/// Bytes of the items of a group, or of a few relations.
const GROUP_BYTES: usize = 400;
/// Bytes of the two items of a relation, which are in leaves of their own perhaps.
const RELATION_BYTES: usize = 60;
/// Groups that a subvolume may be put into when it is made, about as many as on Linux, where the list is a page.
const INHERITED_MAX: usize = 500;

impl Core {
    /// What writing groups of so many bytes may need.
    pub(super) fn need_for_groups(&self, bytes: usize) -> Need {
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        let leaves = bytes / (self.features.nodesize as u32 / 2) + 2;
        Need { private: leaves, bytes, ..Need::default() }
    }
}

impl Inner {
    /// Changes groups, and commits. ENOTCONN when quotas are off.
    fn change_groups<T>(&self, mut change: impl FnMut(&mut Groups) -> Result<T>) -> Result<T> {
        let changed = self.change(self.core.need_for_groups(GROUP_BYTES), |op| {
            let mut quota = op.core.quota.lock();
            let groups = quota.groups().ok_or(Error::User(Errno::NOTCONN))?;
            let changed = change(groups)?;
            op.core.charges.settle(groups, false);
            Ok(changed)
        })?;
        self.commit_for_space(Upkeep::None)?;
        Ok(changed)
    }

    /// The same, of what may leave numbers wrong; whether they are right.
    fn relate(&self, mut change: impl FnMut(&mut Groups) -> Result<bool>) -> Result<bool> {
        self.change(self.core.need_for_groups(GROUP_BYTES), |op| {
            let mut quota = op.core.quota.lock();
            let groups = quota.groups().ok_or(Error::User(Errno::NOTCONN))?;
            let is_right = change(groups)?;
            op.core.charges.settle(groups, false);
            if !is_right {
                quota.distrust();
            }
            Ok(())
        })?;
        self.commit_for_space(Upkeep::None)?;
        let is_right = matches!(*self.core.quota.lock(), Quota::Counted(_) | Quota::Simple(_));
        if !is_right {
            self.wake.wake();
        }
        Ok(is_right)
    }

    /// Refuses groups that no subvolume can be put into.
    fn may_be_in(&self, groups: &[u64]) -> Result<()> {
        if groups.len() > INHERITED_MAX {
            return Err(Error::User(Errno::INVAL));
        }
        match self.core.quota.lock().groups() {
            Some(known) => groups.iter().try_for_each(|group| known.may_hold(*group)),
            // As on Linux.
            None => Ok(()),
        }
    }

    /// The groups that a subvolume is in that is made in another one, and nobody says otherwise: those of that one where quotas are simple, as on
    /// Linux.
    pub(super) fn inherited_groups(&self, parent: u64) -> Vec<u64> {
        match &*self.core.quota.lock() {
            Quota::Simple(groups) => groups.inherited_from(parent),
            _ => Vec::new(),
        }
    }

    /// Has a subvolume of the running transaction be in groups from the beginning.
    fn put_in(&self, subvolume: u64, groups: &[u64]) {
        if let Some(known) = self.core.quota.lock().groups() {
            known.want(subvolume, groups);
            self.core.charges.settle(known, false);
        }
    }

    /// The same for a snapshot. EDQUOT when what its source refers to goes beyond the limit of a group.
    fn put_snapshot_in(&self, snapshot: u64, source: u64, groups: &[u64]) -> Result<()> {
        self.put_in(snapshot, groups);
        let mut quota = self.core.quota.lock();
        if quota.is_simple() {
            return Ok(());
        }
        let Some(known) = quota.groups() else { return Ok(()) };
        let charged = self.core.charges.charge_shared(snapshot, known.referenced(source), source);
        charged.map_err(|_| {
            known.want(snapshot, &[]);
            Error::User(Errno::DQUOT)
        })
    }
}

impl Filesystem {
    /// Whether quotas are on.
    pub fn has_quotas(&self) -> bool {
        !matches!(*self.core().quota.lock(), Quota::Off | Quota::Leaving)
    }

    /// Whether simple quotas are on.
    pub fn has_simple_quotas(&self) -> bool {
        self.core().quota.lock().is_simple()
    }

    /// Whether quotas are on and wrong, until they are counted anew ([`Filesystem::count_quotas`]; with a worker that comes by itself).
    pub fn has_wrong_quotas(&self) -> bool {
        self.inner().has_wrong_quotas()
    }

    /// Switches quotas off: groups, relations and limits are gone. Nothing where they are off.
    pub fn disable_quotas(&self) -> Result<()> {
        let inner = self.inner();
        inner.core.check_writable()?;
        if !self.has_quotas() {
            return Ok(());
        }
        // A tree that nobody can read cannot be let go of: better said now than by the commit.
        inner.read(|op| {
            let root = op.core.roots().quota;
            let view = root.map(|root| View::new(&op.core.blocks, objectid::QUOTA_TREE, root));
            view.map_or(Ok(()), |view| view.each_block(&mut |_, _| {}))
        })?;
        let blocks = u32::try_from(inner.core.space.trees().quota).unwrap_or(u32::MAX);
        let need =
            Need { private: 1, nodes: blocks.saturating_add(8), deleting: true, ..need(0, 0) };
        inner.change(need, |op| {
            let mut quota = op.core.quota.lock();
            if !matches!(*quota, Quota::Off) {
                *quota = Quota::Leaving;
            }
            op.core.charges.settle(&Groups::default(), true);
            Ok(())
        })?;
        inner.commit_for_space(Upkeep::None).map(drop)
    }

    /// Makes a group: level and number, as in `level << 48 | number`. EEXIST when it is there, ENOTCONN when quotas are off, EINVAL for
    /// the number of a subvolume: these groups come and go by themselves.
    pub fn create_qgroup(&self, id: u64) -> Result<()> {
        if is_of_subvolume(id) {
            return Err(Error::User(Errno::INVAL));
        }
        self.inner().change_groups(|groups| groups.create(id))
    }

    /// Takes a group away; whether all groups' numbers are right after that: else they are counted anew. ENOENT when there is none, EBUSY when
    /// it has members or is that of a subvolume that is there.
    pub fn destroy_qgroup(&self, id: u64) -> Result<bool> {
        if is_of_subvolume(id) && self.has_tree(id)? {
            return Err(Error::User(Errno::BUSY));
        }
        self.inner().relate(|groups| groups.destroy(id))
    }

    /// Whether a subvolume is there, be it deleted.
    fn has_tree(&self, id: u64) -> Result<bool> {
        let from = Key::new(id, kind::ROOT_ITEM, 0);
        self.inner().commit()?;
        self.inner().read(|op| {
            let found = op.core.root_view().last_in(&from, &Key { offset: u64::MAX, ..from })?;
            Ok(found.is_some())
        })
    }

    /// Puts a group into another one of a higher level; whether all groups' numbers are right after that: else they are counted anew. EINVAL when the
    /// level is not higher, ENOENT when one of both is not there, EEXIST when it is in it already.
    pub fn assign_qgroup(&self, member: u64, group: u64) -> Result<bool> {
        self.inner().commit()?;
        self.inner().relate(|groups| groups.enter(member, group))
    }

    /// Takes a group out of another one; whether all groups' numbers are right after that. ENOENT when it is not in it.
    pub fn remove_qgroup(&self, member: u64, group: u64) -> Result<bool> {
        self.inner().relate(|groups| groups.leave(member, group))
    }

    /// Limits a group. ENOENT when there is none.
    pub fn limit_qgroup(&self, id: u64, limits: NewLimits) -> Result<()> {
        self.inner().commit()?;
        self.inner().change_groups(|groups| groups.limit(id, limits))
    }

    /// The same as [`Filesystem::create_subvolume`], in these groups from the beginning: ENOENT when one of them is not there.
    pub fn create_subvolume_in(
        &self,
        dir: Node,
        name: &[u8],
        owner: Owner,
        groups: &[u64],
    ) -> Result<u64> {
        let inner = self.inner();
        let inherited = inner.inherited_groups(dir.subvolume);
        let groups = if groups.is_empty() { &inherited } else { groups };
        if groups.is_empty() {
            return inner.create_subvolume(dir, name, owner, (Need::default(), |_| ()));
        }
        inner.may_be_in(groups)?;
        let more = inner.core.need_for_groups(RELATION_BYTES * groups.len());
        let id = inner.create_subvolume(dir, name, owner, (more, |id| inner.put_in(id, groups)))?;
        inner.commit_for_space(Upkeep::None)?;
        Ok(id)
    }

    /// The same as [`Filesystem::snapshot`], in these groups from the beginning: ENOENT when one of them is not there, EDQUOT when what the source
    /// refers to goes beyond the limit of one.
    pub fn snapshot_in(
        &self,
        source: u64,
        dir: Node,
        name: &[u8],
        read_only: bool,
        groups: &[u64],
    ) -> Result<u64> {
        let inner = self.inner();
        let inherited = inner.inherited_groups(dir.subvolume);
        let groups = if groups.is_empty() { &inherited } else { groups };
        if groups.is_empty() {
            return inner.snapshot(source, dir, name, read_only, (Need::default(), |_| Ok(())));
        }
        inner.may_be_in(groups)?;
        // What was written to the source counts by then.
        match inner.has_wrong_quotas() {
            true => drop(inner.right_quotas()),
            false => drop(inner.commit_for_space(Upkeep::None)?),
        }
        let more = inner.core.need_for_groups(RELATION_BYTES * groups.len());
        let with = |id| inner.put_snapshot_in(id, source, groups);
        inner.snapshot(source, dir, name, read_only, (more, with))
    }
}
