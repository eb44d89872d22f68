//! Quotas in a commit: groups come and go with subvolumes, and gain and lose what the commit has changed.

use buttress_ondisk::item::{QgroupStatus, RootItem, qgroup_status_flags, split};
use buttress_ondisk::superblock::incompat;
use buttress_ondisk::{Key, kind, objectid};
use zerocopy::IntoBytes;

use super::super::commit::Commit;
use super::super::core::{Core, Roots};
use super::{Settler, TreeCommit};
use crate::error::Result;
use crate::quota::{
    Changes, Counted, Groups, Quota, Remembered, Versions, account, is_deleted, is_of_subvolume,
};
use crate::refs::Target;
use crate::refs::owners::Committed;
use crate::tree::View;

/// The part of the memory for blocks that knowing who reaches what may take in each of two versions.
const QUOTA_SHARE: u64 = 32;

impl Settler<'_, '_> {
    /// What is to be done ahead of all else: they are switched on or off, or begin to be right; where they are wrong, that is said.
    pub(super) fn begin_quotas(&mut self) -> Result<()> {
        let core = self.commit.core();
        let mut quota = core.quota.lock();
        if matches!(*quota, Quota::Leaving) {
            *quota = Quota::Off;
            core.recounted.lock().take();
            return self.drop_quota_tree();
        }
        if matches!(*quota, Quota::Beginning) {
            *quota = Quota::Simple(self.begin_simple()?);
        }
        let is_off = matches!(*quota, Quota::Off);
        if let Some(Counted { costs, dead, version, switches_on }) = core.recounted.lock().take()
            && version == core.roots().root.generation
            && (switches_on || !is_off)
            && !quota.is_simple()
        {
            // A tree may have groups though quotas are off.
            let mut groups = match quota.groups() {
                Some(groups) => std::mem::take(groups),
                None => self.groups_of_off(),
            };
            groups.recount(&costs, &dead);
            *quota = Quota::Counted(groups);
            if self.roots.quota.is_none() {
                self.make_quota_tree()?;
            }
        }
        match &mut *quota {
            Quota::Counted(_) => {
                let (changes, version) = (self.changed_trees()?, core.roots().root.generation);
                let (from, room) = (core.remembered.lock().take(), memory_for_owners(core) / 2);
                let mut remembered = Remembered::take(from, version, &changes, room);
                remembered.note(self.commit.take_dropped());
                self.remembered = Some(remembered);
                self.changes = Some(changes);
            }
            Quota::Simple(groups) => {
                self.owners = groups.simple_since();
                self.changes = Some(self.changed_trees()?);
            }
            Quota::Inconsistent(groups) => {
                uncounted(groups, &self.changed_trees()?);
                self.mark_quotas(&mut quota)?;
            }
            Quota::Left => self.mark_quotas(&mut quota)?,
            Quota::Off | Quota::Beginning | Quota::Leaving => {}
        }
        Ok(())
    }

    /// The groups that there are while quotas are off.
    fn groups_of_off(&self) -> Groups {
        let Some(root) = self.roots.quota else { return Groups::default() };
        let view = View::new(&self.commit.core().blocks, objectid::QUOTA_TREE, root);
        Groups::load(view).unwrap_or_default().be_full()
    }

    /// Switches simple quotas on: the groups of all subvolumes, which own nothing yet.
    fn begin_simple(&mut self) -> Result<Groups> {
        let core = self.commit.core();
        // What is written from now on has owners in it, which only whoever knows the feature may read.
        core.volume.note_features(incompat::SIMPLE_QUOTA);
        let mut subvolumes = Vec::new();
        let trees = core.root_view();
        let mut items = trees.range(Key::new(objectid::FS_TREE, kind::ROOT_ITEM, 0), Key::MAX);
        while let Some(item) = items.next()? {
            let key = item.key();
            let is_subvolume = key.kind == kind::ROOT_ITEM && is_of_subvolume(key.objectid);
            if is_subvolume && RootItem::read(item.data()).is_some_and(|item| !is_deleted(&item)) {
                subvolumes.push(key.objectid);
            }
        }
        let mut groups = self.groups_of_off();
        groups.begin_simple(self.commit.transid(), &subvolumes);
        if self.roots.quota.is_none() {
            self.make_quota_tree()?;
        }
        Ok(groups)
    }

    /// Counts what was allocated and freed by the trees that have allocated it; whether there was anything to do.
    fn count_owned(&mut self, groups: &mut Groups) -> Result<bool> {
        let changes = self.changes.take();
        if changes.is_none() && self.owned.is_empty() {
            return Ok(false);
        }
        let core = self.commit.core();
        let wrong = groups.own(std::mem::take(&mut self.owned), &changes.unwrap_or_default());
        if !wrong.is_empty() {
            core.warn(format!(
                "quota groups {wrong:?} owned less than was freed of theirs: they own nothing now"
            ));
        }
        let transid = self.commit.transid();
        self.merge(objectid::QUOTA_TREE, |merge| groups.emit(merge, transid, false))?;
        core.charges.settle(groups, true);
        Ok(true)
    }

    /// Which subvolumes are new, and which are gone.
    fn changed_trees(&self) -> Result<Changes> {
        let mut changes = Changes::of(self.commit.take_snapshots());
        let items = self.todo.root_items.iter();
        for (key, item) in items.filter(|(key, _)| key.kind == kind::ROOT_ITEM) {
            if !objectid::is_subvolume(key.objectid) {
                continue;
            }
            changes.changed.insert(key.objectid);
            let Some(item) = item.as_deref().and_then(RootItem::read) else {
                changes.gone.insert(key.objectid);
                continue;
            };
            if is_deleted(&item) {
                changes.dead.insert(key.objectid);
            } else if self.commit.core().root_view().get(key)?.is_none() {
                changes.made.insert(key.objectid);
            }
        }
        Ok(changes)
    }

    /// Makes an empty quota tree on a filesystem that has none.
    fn make_quota_tree(&mut self) -> Result<()> {
        let commit = self.commit;
        let entry = self
            .trees
            .entry(objectid::QUOTA_TREE)
            .or_insert_with(|| TreeCommit::new(commit, objectid::QUOTA_TREE));
        self.roots.quota = Some(entry.merge(None)?.finish()?);
        self.todo.refs.append(&mut entry.refs);
        Ok(())
    }

    /// Lets go of the quota tree and all its blocks.
    fn drop_quota_tree(&mut self) -> Result<()> {
        let Some(root) = self.roots.quota.take() else { return Ok(()) };
        let view = View::new(&self.commit.core().blocks, objectid::QUOTA_TREE, root);
        let refs = &mut self.todo.refs;
        view.each_block(&mut |bytenr, level| {
            refs.by_tree(Target::Block(bytenr, level), objectid::QUOTA_TREE, -1, 0);
        })?;
        let item = Key::new(objectid::QUOTA_TREE, kind::ROOT_ITEM, 0);
        self.todo.root_items.insert(item, None);
        self.sizes.quota = 0;
        Ok(())
    }

    /// Counts what quota groups gain and lose by this commit, once all else has settled; whether there was anything to do.
    pub(super) fn count_quotas(&mut self) -> Result<bool> {
        let core = self.commit.core();
        if let Quota::Simple(groups) = &mut *core.quota.lock() {
            return self.count_owned(groups);
        }
        let Some(changes) = self.changes.take() else { return Ok(false) };
        let versions = Versions {
            blocks: &core.blocks,
            before: committed(&core.roots()),
            after: committed(&self.roots),
            sharing: self.commit.sharing(),
            memory: memory_for_owners(core),
            counters: &core.counters,
            is_sequential: core.sequential,
        };
        let mut quota = core.quota.lock();
        let Quota::Counted(groups) = &mut *quota else {
            // Somebody has found out meanwhile that they are wrong.
            if let Quota::Inconsistent(groups) = &mut *quota {
                uncounted(groups, &changes);
                self.mark_quotas(&mut quota)?;
                return Ok(true);
            }
            return Ok(false);
        };
        let counted = account(groups, &versions, changes);
        if let Ok(true) = counted {
            let transid = self.commit.transid();
            self.merge(objectid::QUOTA_TREE, |merge| groups.emit(merge, transid, false))?;
            core.charges.settle(groups, true);
            return Ok(true);
        }
        let why = match counted {
            Err(error) => error.to_string(),
            Ok(_) => "more has changed hands than one commit may look at, or a snapshot is in a group that has part of it already".into(),
        };
        core.warn(format!("quota groups are wrong until they are counted anew: {why}"));
        quota.distrust();
        self.mark_quotas(&mut quota)?;
        Ok(true)
    }

    /// Marks quotas as inconsistent where nobody counts: Linux counts them anew then.
    fn mark_quotas(&mut self, quota: &mut Quota) -> Result<()> {
        if let Some(groups) = quota.groups() {
            let transid = self.commit.transid();
            self.commit.core().charges.settle(groups, false);
            return self.merge(objectid::QUOTA_TREE, |merge| groups.emit(merge, transid, true));
        }
        let key = Key::new(0, kind::QGROUP_STATUS, 0);
        self.merge(objectid::QUOTA_TREE, |merge| {
            let found = merge.find(&key)?.unwrap_or_default();
            let Some((status, rest)) = split::<QgroupStatus>(found) else { return Ok(()) };
            let (mut status, rest) = (*status, rest.to_vec());
            status.flags = (status.flags.get() | qgroup_status_flags::INCONSISTENT).into();
            merge.put(key, &[status.as_bytes(), &rest].concat())
        })
    }
}

/// The trees of a version.
pub(super) fn committed(roots: &Roots) -> Committed {
    Committed { root: roots.root, chunk: roots.chunk, extent: roots.extent }
}

/// Bytes that knowing who reaches what may take in a version.
pub(super) fn memory_for_owners(core: &Core) -> u64 {
    core.room / QUOTA_SHARE
}

/// Subvolumes are new, deleted and gone, while nobody counts.
fn uncounted(groups: &mut Groups, changes: &Changes) {
    groups.come(&changes.made);
    changes.dead.iter().for_each(|id| groups.let_go(*id));
    groups.go(&changes.gone);
}

/// The transaction of a tree's last snapshot, itself being one counted among them, in the last version, if it is there.
pub(super) fn last_snapshot(commit: &Commit<'_>, tree: u64) -> Option<u64> {
    let from = Key::new(tree, kind::ROOT_ITEM, 0);
    let trees = commit.core().root_view();
    let found = trees.last_in(&from, &Key { offset: u64::MAX, ..from }).ok()??;
    let item = RootItem::read(found.data())?;
    Some(item.last_snapshot.get().max(found.key().offset))
}
