//! Subvolumes go, and move.

use std::sync::atomic::Ordering;

use buttress_ondisk::item::root_flags;
use buttress_ondisk::view::root_ref;
use buttress_ondisk::{Key, kind, objectid};

use super::create::Place;
use super::forest::Forest;
use super::relocation_trees::Doomed;
use crate::error::{Errno, Error, Result};
use crate::inode::{End, Inode, Location, Rename, TOP};
use crate::txn::{Core, Op, UuidChange};

/// Subvolumes in each other: more than any path has.
const DEPTH_MAX: usize = 1 << 20;

impl Forest {
    /// Takes subvolume `id` away from `place` and leaves it to be dropped, as soon as none of its files is held. EPERM for the default subvolume, ENOTEMPTY when
    /// it holds subvolumes itself, or anything at all and `only_empty` is set.
    pub fn delete(&self, op: &Op<'_>, place: Place<'_>, id: u64, only_empty: bool) -> Result<()> {
        let _order = self.names.lock();
        let subvolume = self.get(op.core, id)?;
        self.must_be_at(op.core, place, id)?;
        if self.default_id(op.core)? == id {
            return Err(Error::User(Errno::PERM));
        }
        if self.has_children(op.core, id)? {
            return Err(Error::User(Errno::NOTEMPTY));
        }
        let top = if only_empty { Some(subvolume.tree.get(op, TOP)?) } else { None };
        let closing = top.as_deref().map(Inode::close_empty).transpose()?;
        place.subvolume.tree.remove_subvolume_entry(op, place.dir, place.name, id)?;
        subvolume.dead.store(true, Ordering::SeqCst);
        if let Some(closing) = closing {
            closing.done();
        }
        op.step("a subvolume without its entry");
        self.unname(place.subvolume.id, id);
        subvolume.change(|item| {
            item.refs = 0.into();
            item.flags = (item.flags.get() | root_flags::DEAD).into();
            item.drop_progress = Default::default();
            item.drop_level = 0;
        });
        op.step("a deleted subvolume without its orphan item");
        self.pending.put(Key::new(objectid::ORPHAN, kind::ORPHAN_ITEM, id), Some(Vec::new()));
        let item = subvolume.item();
        self.pending.uuid(UuidChange::new(&item.uuid, kind::UUID_SUBVOL, id, false));
        self.lose_received_uuid(id, &item);
        op.step("a deleted subvolume that is not queued");
        let mut lingering = self.lingering.lock();
        if subvolume.tree.close() {
            self.dead.lock().push(Doomed::Subvolume(id));
            self.dropping.store(true, Ordering::Release);
        } else {
            lingering.insert(id);
        }
        Ok(())
    }

    /// Removes a dangling entry, which a snapshot has where its source has a subvolume.
    pub fn remove_stub(&self, op: &Op<'_>, place: Place<'_>, id: u64) -> Result<()> {
        let _order = self.names.lock();
        if self.must_be_at(op.core, place, id).is_ok() {
            // The subvolume has moved there meanwhile.
            return Err(Error::User(Errno::NOENT));
        }
        place.subvolume.tree.remove_subvolume_entry(op, place.dir, place.name, id)?;
        Ok(())
    }

    /// Moves subvolume `id` to another name. EINVAL for a place inside itself. An empty directory that has the name goes,
    /// if `replace`; anything else that has it is refused. One that is read-only gets no other directory: that would change
    /// its `..`, and Linux refuses it.
    pub fn rename(
        &self,
        op: &Op<'_>,
        from: Place<'_>,
        to: Place<'_>,
        id: u64,
        replace: bool,
    ) -> Result<()> {
        let _order = self.names.lock();
        from.changeable()?;
        to.changeable()?;
        self.must_be_at(op.core, from, id)?;
        let stays = from.is_beside(&to);
        if stays && from.name == to.name {
            return if replace { Ok(()) } else { Err(Error::User(Errno::EXIST)) };
        }
        if self.is_inside(op.core, to.subvolume.id, id)? {
            return Err(Error::User(Errno::INVAL));
        }
        if !stays && self.get(op.core, id)?.tree.is_read_only() {
            return Err(Error::User(Errno::ROFS));
        }
        // Nobody else takes this entry away while the order is held: found now, it is there to be removed.
        let old = from.subvolume.tree.subvolume_entry(op, from.dir, from.name, id)?;
        let tree = &to.subvolume.tree;
        let stub = if replace { self.stub_at(op, to)? } else { None };
        let index = match stub {
            Some(stub) => {
                let index = tree.subvolume_entry_to_lead(op, to.dir, to.name, stub)?;
                tree.lead_subvolume_entry(op, to.dir, to.name, index, id)?
            }
            None => tree.put_subvolume_entry(op, to.dir, to.name, id, replace)?,
        };
        op.step("a subvolume with two entries");
        from.subvolume.tree.remove_subvolume_entry_at(op, from.dir, from.name, old)?;
        op.step("a subvolume without its name");
        self.unname(from.subvolume.id, id);
        self.name(to, id, index);
        Ok(())
    }

    /// Moves a directory to where a dangling entry is, which goes. ENOENT when that is not one any more.
    pub fn rename_over_stub(
        &self,
        op: &Op<'_>,
        from: Place<'_>,
        to: Place<'_>,
        how: Rename,
    ) -> Result<()> {
        let _order = self.names.lock();
        let stub = self.stub_at(op, to)?.ok_or(Error::User(Errno::NOENT))?;
        let target = End::of_subvolume(to.dir, to.name, stub)?;
        let source = End::new(from.dir, from.name)?;
        to.subvolume.tree.rename_between(op, source, target, how).map(drop)
    }

    /// The subvolume that a dangling entry leads to, if there is one at `place`.
    fn stub_at(&self, op: &Op<'_>, place: Place<'_>) -> Result<Option<u64>> {
        let entry = match place.subvolume.tree.lookup(op, place.dir, place.name) {
            Err(Error::User(Errno::NOENT)) => return Ok(None),
            entry => entry?,
        };
        let Location::Subvolume(id) = entry.location else { return Ok(None) };
        let (parent, dir) = (place.subvolume.id, place.dir.ino);
        Ok((!self.is_named(op.core, parent, dir, place.name, id)?).then_some(id))
    }

    /// Exchanges two names, of which at least one leads to a subvolume: `ids` says which. EXDEV for an inode that would get
    /// into another tree, EINVAL for what would get into itself.
    pub fn exchange(&self, op: &Op<'_>, ends: [Place<'_>; 2], ids: [Option<u64>; 2]) -> Result<()> {
        let _order = self.names.lock();
        let [one, other] = ends;
        one.changeable()?;
        other.changeable()?;
        let stays = one.is_beside(&other);
        for (id, from, to) in [(ids[0], one, other), (ids[1], other, one)] {
            let Some(id) = id else { continue };
            self.must_be_at(op.core, from, id)?;
            if self.is_inside(op.core, to.subvolume.id, id)? {
                return Err(Error::User(Errno::INVAL));
            }
            if !stays && self.get(op.core, id)?.tree.is_read_only() {
                return Err(Error::User(Errno::ROFS));
            }
        }
        match ids {
            [Some(first), Some(second)] if first == second => Ok(()),
            [Some(first), Some(second)] => self.exchange_subvolumes(op, ends, [first, second]),
            _ if one.subvolume.id != other.subvolume.id => Err(Error::User(Errno::XDEV)),
            _ => self.exchange_with_inode(op, ends, ids),
        }
    }

    /// The entries are led elsewhere in place, so that nobody else gets the names meanwhile; what may fail comes first.
    fn exchange_subvolumes(&self, op: &Op<'_>, ends: [Place<'_>; 2], ids: [u64; 2]) -> Result<()> {
        let index = |end: Place<'_>, id| {
            end.subvolume.tree.subvolume_entry_to_lead(op, end.dir, end.name, id)
        };
        let [from, to] = ends;
        let [moved, other] = ids;
        let (from_index, to_index) = (index(from, moved)?, index(to, other)?);
        self.unname(from.subvolume.id, moved);
        self.unname(to.subvolume.id, other);
        for (end, index, id) in [(to, to_index, moved), (from, from_index, other)] {
            let tree = &end.subvolume.tree;
            let index = tree.lead_subvolume_entry(op, end.dir, end.name, index, id)?;
            op.step("one of two is exchanged");
            self.name(end, id, index);
        }
        Ok(())
    }

    fn exchange_with_inode(
        &self,
        op: &Op<'_>,
        ends: [Place<'_>; 2],
        ids: [Option<u64>; 2],
    ) -> Result<()> {
        let [from, to] = ends;
        let (source, target, id, after) = match ids {
            [Some(id), _] => {
                (End::of_subvolume(from.dir, from.name, id)?, End::new(to.dir, to.name)?, id, to)
            }
            [None, Some(id)] => {
                (End::new(from.dir, from.name)?, End::of_subvolume(to.dir, to.name, id)?, id, from)
            }
            [None, None] => return Err(Error::User(Errno::XDEV)),
        };
        let tree = &from.subvolume.tree;
        let index = tree.rename_between(op, source, target, Rename::Exchange)?;
        let Some(index) = index else { return Ok(()) };
        op.step("an entry without its subvolume's name");
        self.unname(after.subvolume.id, id);
        self.name(after, id, index);
        Ok(())
    }

    /// ENOENT unless the subvolume has its name by this entry.
    fn must_be_at(&self, core: &Core, place: Place<'_>, id: u64) -> Result<()> {
        match self.is_named(core, place.subvolume.id, place.dir.ino, place.name, id)? {
            true => Ok(()),
            false => Err(Error::User(Errno::NOENT)),
        }
    }

    /// Whether the subvolume `inner` is `outer` or in it, however deep.
    fn is_inside(&self, core: &Core, inner: u64, outer: u64) -> Result<bool> {
        let mut at = inner;
        for _ in 0..DEPTH_MAX {
            if at == outer {
                return Ok(true);
            }
            if at == objectid::FS_TREE {
                return Ok(false);
            }
            at = self.info(core, at)?.parent;
        }
        Err(Error::inconsistent(objectid::ROOT_TREE, "subvolumes form a ring", inner))
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

    /// Finds what a crash, an earlier open, or an interrupted balance left to be dropped.
    pub(super) fn find_dead(&self, core: &Core) -> Result<()> {
        let from = Key::new(objectid::ORPHAN, kind::ORPHAN_ITEM, 0);
        // Who only reads needs to know of none.
        let past = |why: Error| match why {
            Error::Corrupt(_) if core.read_only => Ok(()),
            why => Err(why),
        };
        let to = Key { offset: u64::MAX, ..from };
        let orphans = self.pending.range_past(core, from, to, &mut |_, why| past(why))?;
        let mut dead = self.dead.lock();
        if !core.read_only {
            dead.extend(self.relocation_trees(core)?);
            self.find_relocated_data(core);
        }
        for key in orphans.keys() {
            let found = self.root_item(core, key.offset);
            match found.or_else(|why| past(why).map(|()| None))? {
                Some((_, item)) if item.refs.get() == 0 && objectid::is_subvolume(key.offset) => {
                    dead.push(Doomed::Subvolume(key.offset))
                }
                _ if core.read_only => {}
                _ => self.pending.put(*key, None),
            }
        }
        self.dropping.store(!dead.is_empty() && !core.read_only, Ordering::Release);
        Ok(())
    }

    /// Why a deleted subvolume cannot be dropped, if there is such a one.
    pub fn why_stuck(&self) -> Option<Error> {
        self.stuck.lock().values().next().map(|stuck| stuck.error.clone())
    }

    /// Whether deleted subvolumes wait for room: they are dropped when others have let go of some.
    pub fn is_stalled(&self) -> bool {
        self.stalled.load(Ordering::Acquire)
    }

    /// Whether deleted subvolumes are left to be dropped.
    pub fn has_dead(&self) -> bool {
        !self.dead.lock().is_empty()
    }
}
