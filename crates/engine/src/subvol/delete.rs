//! Subvolumes go, and move.

use std::sync::atomic::Ordering;

use buttress_ondisk::item::root_flags;
use buttress_ondisk::view::root_ref;
use buttress_ondisk::{Key, kind, objectid};

use super::create::Place;
use super::forest::Forest;
use crate::error::{Errno, Error, Result};
use crate::inode::Location;
use crate::txn::{Core, Op, UuidChange};

impl Forest {
    /// Takes subvolume `id` away from `place` and leaves it to be dropped. EPERM for the default subvolume, ENOTEMPTY when
    /// it holds subvolumes itself.
    pub fn delete(&self, op: &Op<'_>, place: Place<'_>, id: u64) -> Result<()> {
        let _order = self.names.lock();
        let subvolume = self.get(op.core, id)?;
        if self.default_id(op.core)? == id {
            return Err(Error::User(Errno::PERM));
        }
        if self.has_children(op.core, id)? {
            return Err(Error::User(Errno::NOTEMPTY));
        }
        place.subvolume.tree.remove_subvolume_entry(op, place.dir, place.name, id)?;
        subvolume.dead.store(true, Ordering::Release);
        self.unname(place.subvolume.id, id);
        subvolume.change(|item| {
            item.refs = 0.into();
            item.flags = (item.flags.get() | root_flags::DEAD).into();
            item.drop_progress = Default::default();
            item.drop_level = 0;
        });
        self.pending.put(Key::new(objectid::ORPHAN, kind::ORPHAN_ITEM, id), Some(Vec::new()));
        let item = subvolume.item();
        self.pending.uuid(UuidChange::new(&item.uuid, kind::UUID_SUBVOL, id, false));
        if item.received_uuid != [0; 16] {
            let change =
                UuidChange::new(&item.received_uuid, kind::UUID_RECEIVED_SUBVOL, id, false);
            self.pending.uuid(change);
        }
        self.dead.lock().push(id);
        self.dropping.store(true, Ordering::Release);
        Ok(())
    }

    /// Removes a dangling entry, which a snapshot has where its source has a subvolume.
    pub fn remove_stub(&self, op: &Op<'_>, place: Place<'_>, id: u64) -> Result<()> {
        place.subvolume.tree.remove_subvolume_entry(op, place.dir, place.name, id)?;
        Ok(())
    }

    /// Moves subvolume `id` to another name.
    pub fn rename(&self, op: &Op<'_>, from: Place<'_>, to: Place<'_>, id: u64) -> Result<()> {
        let _order = self.names.lock();
        to.alive()?;
        let here = from.subvolume.tree.lookup(op, from.dir, from.name)?;
        if here.location != Location::Subvolume(id) {
            return Err(Error::User(Errno::NOENT));
        }
        let index = to.subvolume.tree.add_subvolume_entry(op, to.dir, to.name, id)?;
        from.subvolume.tree.remove_subvolume_entry(op, from.dir, from.name, id)?;
        self.unname(from.subvolume.id, id);
        self.name(to, id, index);
        Ok(())
    }

    /// Whether the entry `name` of the directory `dir` in subvolume `parent` is the one that subvolume `id` has its name by.
    /// Others that lead there are what a snapshot has copied.
    pub fn is_named(
        &self,
        core: &Core,
        parent: u64,
        dir: u64,
        name: &[u8],
        id: u64,
    ) -> Result<bool> {
        let item = self.pending.get(core, &Key::new(parent, kind::ROOT_REF, id))?;
        let found = item.as_deref().and_then(root_ref);
        Ok(found.is_some_and(|(head, at)| head.dirid.get() == dir && at == name))
    }

    fn unname(&self, parent: u64, id: u64) {
        self.pending.put(Key::new(id, kind::ROOT_BACKREF, parent), None);
        self.pending.put(Key::new(parent, kind::ROOT_REF, id), None);
    }

    fn has_children(&self, core: &Core, id: u64) -> Result<bool> {
        let from = Key::new(id, kind::ROOT_REF, 0);
        Ok(!self.pending.range(core, from, Key { offset: u64::MAX, ..from })?.is_empty())
    }

    /// Finds what a crash, or an earlier open, left to be dropped.
    pub(super) fn find_dead(&self, core: &Core) -> Result<()> {
        let from = Key::new(objectid::ORPHAN, kind::ORPHAN_ITEM, 0);
        let orphans = self.pending.range(core, from, Key { offset: u64::MAX, ..from })?;
        let mut dead = self.dead.lock();
        for key in orphans.keys() {
            match self.root_item(core, key.offset)? {
                Some((_, item)) if item.refs.get() == 0 && objectid::is_subvolume(key.offset) => {
                    dead.push(key.offset)
                }
                _ if core.read_only => {}
                _ => self.pending.put(*key, None),
            }
        }
        self.dropping.store(!dead.is_empty() && !core.read_only, Ordering::Release);
        Ok(())
    }

    /// Whether deleted subvolumes are left to be dropped.
    pub fn has_dead(&self) -> bool {
        !self.dead.lock().is_empty()
    }
}
