//! Subvolumes, snapshots, deletion.

use super::acl;
use super::own::About;
use super::run::{need, plus};
use super::types::{New, Node, Owner};
use super::worker::STALLED_MAX;
use super::{Filesystem, Inner};
use crate::error::{Errno, Error, Passed, Result};
use crate::space::{Need, SUBVOLUME_DELETION};
use crate::subvol::{Place, SubvolumeInfo};
use crate::txn::Upkeep;

impl Inner {
    /// Refuses a name that is taken.
    fn must_be_free(&self, dir: Node, name: &[u8]) -> Result<()> {
        match self.read(|op| self.lookup_in(op, dir, name))? {
            Some(_) => Err(Error::User(Errno::EXIST)),
            None => Ok(()),
        }
    }

    /// Gives a snapshot that was taken its name. The files that its source held without a name are nobody's in it: they are
    /// deleted before.
    fn name_snapshot(&self, id: u64, dir: Node, name: &[u8]) -> Result<()> {
        let snapshot = self.forest.unnamed_snapshot(&self.core, id)?;
        self.drop_orphans(&snapshot)?;
        self.change_at(
            dir,
            Need { private: 8, ..need(4, 1200 + 4 * name.len()) },
            |op, subvolume, parent| {
                self.forest.name_snapshot(op, id, Place { subvolume, dir: parent, name })
            },
        )
    }
}

impl Inner {
    /// Deletes a subvolume; one that is not empty is refused when `only_empty` is set, and any but `wanted` where that is said.
    pub(super) fn delete_subvolume(
        &self,
        dir: Node,
        name: &[u8],
        wanted: Option<u64>,
        only_empty: bool,
    ) -> Result<u64> {
        let entry = self.must_find(dir, name)?;
        if wanted.is_some_and(|id| id != entry.node.stands_for()) {
            return Err(Error::User(Errno::NOENT));
        }
        if !entry.node.is_top() && !entry.node.is_stub() {
            return Err(Error::User(Errno::INVAL));
        }
        let id = entry.node.stands_for();
        let about = About::Subvolume(dir, name, id);
        self.change_at_about(dir, about, SUBVOLUME_DELETION, |op, subvolume, parent| {
            let place = Place { subvolume, dir: parent, name };
            match entry.node.is_stub() {
                true => self.forest.remove_stub(op, place, id),
                false => self.forest.delete(op, place, id, only_empty),
            }
        })?;
        self.wake.wake();
        Ok(id)
    }
}

impl Inner {
    /// Makes an empty subvolume; `with` its id what else belongs to it is done, before any commit, which needs `more`.
    pub(super) fn create_subvolume(
        &self,
        dir: Node,
        name: &[u8],
        owner: Owner,
        (more, with): (Need, impl Fn(u64)),
    ) -> Result<u64> {
        self.must_be_free(dir, name)?;
        self.ready(dir)?;
        // Of a default ACL it takes over what that leaves of the mode, and no ACL; the umask counts all the same.
        let new = New::directory(0o777 & !owner.umask);
        let mode = acl::inherit(self.default_acl(dir)?.as_deref(), &new)?.mode;
        self.change_at(
            dir,
            plus(Need { private: 8, ..need(4, 1500 + 4 * name.len()) }, more),
            |op, subvolume, parent| {
                let place = Place { subvolume, dir: parent, name };
                let id = self.forest.create(op, place, mode, owner.uid, owner.gid)?;
                with(id);
                Ok(id)
            },
        )
    }

    /// Makes a snapshot; `with` its id what else belongs to it is done, before any commit, which needs `more`.
    pub(super) fn snapshot(
        &self,
        source: u64,
        dir: Node,
        name: &[u8],
        read_only: bool,
        (more, with): (Need, impl Fn(u64) -> Result<()>),
    ) -> Result<u64> {
        self.ready(dir)?;
        self.must_be_free(dir, name)?;
        let request = plus(self.core.space.snapshot_need(), more);
        let id = self.change(request, |op| {
            self.forest.request_snapshot_with(op, source, read_only, &with)
        })?;
        self.commit()?;
        let named = self.name_snapshot(id, dir, name);
        if let Err(error) = named {
            self.forest.abandon_snapshot(id);
            self.wake.wake();
            return Err(error);
        }
        self.commit()?;
        // Where nobody knows what groups have by it, the worker counts.
        if self.has_wrong_quotas() {
            self.wake.wake();
        }
        Ok(id)
    }
}

impl Inner {
    /// All subvolumes but the top one, some at a time: commits go on meanwhile.
    fn list_subvolumes(
        &self,
        told: &mut dyn FnMut(Passed) -> Result<()>,
    ) -> Result<Vec<SubvolumeInfo>> {
        let (mut all, mut from) = (Vec::new(), Some(0));
        while let Some(first) = from {
            let (mut some, rest) = self.read(|op| self.forest.list(op.core, first, told))?;
            self.core.env.step("some subvolumes are listed");
            all.append(&mut some);
            from = rest;
        }
        Ok(all)
    }
}

impl Filesystem {
    /// All subvolumes but the top one, by id.
    pub fn subvolumes(&self) -> Result<Vec<SubvolumeInfo>> {
        self.inner().list_subvolumes(&mut |passed| self.inner().core.only_names(passed))
    }

    /// The same; what cannot be listed is told and passed over.
    pub fn subvolumes_past(&self, told: &mut dyn FnMut(Error)) -> Result<Vec<SubvolumeInfo>> {
        let mut told = |passed: Passed| {
            told(passed.why());
            Ok(())
        };
        self.inner().list_subvolumes(&mut told)
    }

    /// What there is to know about a subvolume; the top one, 5, too. ENOENT when there is none.
    pub fn subvolume_info(&self, id: u64) -> Result<SubvolumeInfo> {
        self.inner().read(|op| self.inner().forest.info(op.core, id))
    }

    /// The path of a subvolume from the top directory of the filesystem, without a slash at its start.
    pub fn subvolume_path(&self, id: u64) -> Result<Vec<u8>> {
        Ok(self.path_of(Node::top(id))?.split_off(1))
    }

    /// The subvolume that is mounted when none is named.
    pub fn default_subvolume(&self) -> Result<u64> {
        self.inner().read(|op| self.inner().forest.default_id(op.core))
    }

    /// Makes `id` the subvolume that is mounted when none is named.
    pub fn set_default_subvolume(&self, id: u64) -> Result<()> {
        self.inner().change(Need { private: 1, ..need(0, 100) }, |op| {
            self.inner().forest.set_default(op, id)
        })
    }

    /// Makes an empty subvolume with the name `name` in `dir`; its id.
    pub fn create_subvolume(&self, dir: Node, name: &[u8], owner: Owner) -> Result<u64> {
        self.create_subvolume_in(dir, name, owner, &[])
    }

    /// Makes a snapshot of subvolume `source` with the name `name` in `dir`; its id. It is durable when this returns.
    pub fn snapshot(&self, source: u64, dir: Node, name: &[u8], read_only: bool) -> Result<u64> {
        self.snapshot_in(source, dir, name, read_only, &[])
    }

    /// Deletes the subvolume `name` in `dir`; its id. Its space comes back bit by bit. EPERM for the default subvolume,
    /// ENOTEMPTY for one that holds others.
    pub fn delete_subvolume(&self, dir: Node, name: &[u8]) -> Result<u64> {
        self.inner().delete_subvolume(dir, name, None, false)
    }

    /// The same for subvolume `id` alone: ENOENT when `name` stands for anything else by now. For those who have looked at what
    /// the name stands for, and may delete no other.
    pub fn delete_subvolume_of(&self, dir: Node, name: &[u8], id: u64) -> Result<()> {
        self.inner().delete_subvolume(dir, name, Some(id), false).map(drop)
    }

    /// Makes a subvolume read-only, or writable again.
    pub fn set_subvolume_read_only(&self, id: u64, read_only: bool) -> Result<()> {
        // A leaf of the root tree, and one of the uuid tree.
        self.inner().change(Need { private: 2, ..need(0, 0) }, |op| {
            self.inner().forest.set_read_only(op, id, read_only)
        })
    }

    /// Deleted subvolumes of which files are held: they stay until those are released.
    pub fn lingering_subvolumes(&self) -> Vec<u64> {
        self.inner().forest.lingering()
    }

    /// Whether deleted subvolumes still take space that can be had back. It comes back by and by; [`Filesystem::clean`] waits for it.
    pub fn is_dropping(&self) -> bool {
        self.inner().forest.has_dead()
    }

    /// Drops deleted subvolumes to the end, and what an interrupted balance has left, and commits. Fails when damage is in the way of one, after the others are gone;
    /// what was in the way before is tried again.
    pub fn clean(&self) -> Result<()> {
        let inner = self.inner();
        inner.core.check_writable()?;
        inner.forest.try_stuck_again();
        let mut stalled = 0;
        // The commit that drops the last one may be another thread's, and under way: this one waits for it.
        while inner.forest.has_dead() {
            inner.commit_for_space(Upkeep::Much)?;
            // What commits let go of comes back with the next ones.
            stalled = if inner.forest.is_stalled() { stalled + 1 } else { 0 };
            if stalled > STALLED_MAX {
                return Err(Error::NoSpace);
            }
        }
        inner.drop_relocated_data()?;
        self.commit()?;
        inner.forest.why_stuck().map_or(Ok(()), Err)
    }
}
