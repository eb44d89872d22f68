//! Giving inodes names and taking them away.

use std::sync::Arc;

use buttress_ondisk::view::dir_entries;
use buttress_ondisk::{Key, kind};
use parking_lot::RwLockWriteGuard;

use super::attributes::must_be_directory;
use super::directory::Found;
use super::name::Hashed;
use super::state::State;
use super::tree::FileTree;
use super::{Entry, Inode, Location};
use crate::error::{Errno, Error, Result};
use crate::tree::View;
use crate::txn::Op;

/// The most links an inode can have.
const LINKS_MAX: u32 = 65535;

/// Inodes locked together, in the order of their numbers.
pub(super) struct Locked<'a> {
    guards: [Option<(u64, RwLockWriteGuard<'a, State>)>; 4],
}

impl<'a> Locked<'a> {
    /// Locks each of the inodes once; there may be gaps and repetitions.
    pub fn new(inodes: [Option<&'a Inode>; 4]) -> Locked<'a> {
        let mut inodes = inodes;
        inodes.sort_unstable_by_key(|inode| inode.map_or(u64::MAX, |inode| inode.ino));
        let mut last = None;
        let guards = inodes.map(|inode| {
            let inode = inode.filter(|inode| last.replace(inode.ino) != Some(inode.ino))?;
            Some((inode.ino, inode.write()))
        });
        Locked { guards }
    }

    /// The state of one of them.
    pub fn of(&mut self, inode: &Inode) -> &mut State {
        let found = self.guards.iter_mut().flatten().find(|(ino, _)| *ino == inode.ino);
        &mut found.expect("only inodes that were locked are asked for").1
    }
}

/// What a removal wants to remove.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Want {
    Directory,
    Other,
}

impl FileTree {
    /// Gives the inode a name more.
    pub fn link(
        &self,
        op: &Op<'_>,
        inode: &Arc<Inode>,
        dir: &Arc<Inode>,
        name: &[u8],
    ) -> Result<()> {
        self.writable()?;
        let name = Hashed::fresh(name)?;
        if inode.ino == dir.ino {
            return Err(Error::User(Errno::PERM));
        }
        let mut locked = Locked::new([Some(inode), Some(dir), None, None]);
        let view = self.view(op.core);
        self.may_link(op, locked.of(inode), inode, dir.ino, name.bytes)?;
        let parent = locked.of(dir);
        parent.usable_directory()?;
        let beneath = parent.free_for(dir.ino, &view, name, false)?;
        parent.know_next_index(dir.ino, &view)?;
        locked.of(inode).touch(inode, self, op)?;
        locked.of(dir).touch(dir, self, op)?;
        let file_type = locked.of(inode).attributes.file_type();
        let parent = locked.of(dir);
        let entry = Entry { location: Location::Inode(inode.ino), file_type };
        let index = parent.add_entry(op, name, entry, beneath);
        parent.attributes.modified(op.now);
        op.step("an entry without its link");
        let state = locked.of(inode);
        state.live.names.gain(dir.ino, index, name.bytes, beneath);
        if state.attributes.nlink == 0 {
            state.live.orphan = if state.orphan { Some(false) } else { None };
        }
        op.step("a name without its count");
        state.attributes.nlink += 1;
        state.attributes.ctime = op.now;
        Ok(())
    }

    fn may_link(
        &self,
        op: &Op<'_>,
        state: &State,
        inode: &Inode,
        parent: u64,
        name: &[u8],
    ) -> Result<()> {
        state.alive()?;
        if state.attributes.is_directory() {
            return Err(Error::User(Errno::PERM));
        }
        if state.attributes.nlink == 0 && !state.live.orphan.unwrap_or(state.orphan) {
            return Err(Error::User(Errno::NOENT));
        }
        if state.attributes.nlink >= LINKS_MAX {
            return Err(Error::User(Errno::MLINK));
        }
        state.room_for_name(inode.ino, &self.view(op.core), parent, name, op.core.features.extref)
    }

    /// Removes a name of something that is no directory (EISDIR). The inode is returned; it is gone when it has no name and
    /// no holder left.
    pub fn unlink(&self, op: &Op<'_>, dir: &Arc<Inode>, name: &[u8]) -> Result<Arc<Inode>> {
        self.remove(op, dir, name, Want::Other)
    }

    /// Removes an empty directory. A name that leads to a subvolume is not removed here: EXDEV.
    pub fn rmdir(&self, op: &Op<'_>, dir: &Arc<Inode>, name: &[u8]) -> Result<Arc<Inode>> {
        self.remove(op, dir, name, Want::Directory)
    }

    fn remove(&self, op: &Op<'_>, dir: &Arc<Inode>, name: &[u8], want: Want) -> Result<Arc<Inode>> {
        self.writable()?;
        let name = Hashed::known(name)?;
        loop {
            let (target, _) = self.target(op, dir, name, want == Want::Other)?;
            let mut locked = Locked::new([Some(dir), Some(&target), None, None]);
            let view = self.view(op.core);
            let Some(found) = still_there(locked.of(dir), dir, &view, name, &target)? else {
                continue;
            };
            let state = locked.of(&target);
            match want {
                Want::Directory => must_be_empty(state)?,
                Want::Other if state.attributes.is_directory() => {
                    return Err(Error::User(Errno::ISDIR));
                }
                Want::Other => {}
            }
            state.alive()?;
            let index = entry_index(found, state, &target, &view, dir.ino, name)?;
            locked.of(dir).touch(dir, self, op)?;
            let link = Link { parent: dir.ino, index, name: name.bytes };
            self.take_name(op, &target, locked.of(&target), link);
            op.step("an entry of nothing");
            let parent = locked.of(dir);
            let uncovers = parent.remove_entry(name, index);
            parent.attributes.modified(op.now);
            if uncovers {
                let was_logged = locked.of(&target).logged == op.transid;
                self.note_uncovered(dir, locked.of(dir), was_logged);
            }
            drop(locked);
            return Ok(target);
        }
    }

    /// Gives `name` to the subvolume `id`, in place of an empty directory that has it, if `replace`; the entry's index is
    /// returned. EEXIST or ENOTDIR for another inode, ENOTEMPTY for a directory that is not empty and for a subvolume.
    pub fn put_subvolume_entry(
        &self,
        op: &Op<'_>,
        dir: &Arc<Inode>,
        name: &[u8],
        id: u64,
        replace: bool,
    ) -> Result<u64> {
        self.writable()?;
        let hashed = Hashed::fresh(name)?;
        loop {
            let target = match self.target(op, dir, hashed, false) {
                Err(Error::User(Errno::NOENT)) => {
                    match self.add_subvolume_entry(op, dir, name, id) {
                        Err(Error::User(Errno::EXIST)) if replace => continue,
                        added => return added,
                    }
                }
                Ok(_) | Err(Error::User(Errno::XDEV)) if !replace => {
                    return Err(Error::User(Errno::EXIST));
                }
                Err(Error::User(Errno::XDEV)) => return Err(Error::User(Errno::NOTEMPTY)),
                target => target?.0,
            };
            if let Some(index) = self.replace_directory(op, dir, hashed, &target, id)? {
                return Ok(index);
            }
        }
    }

    /// One attempt; `None` when the name leads elsewhere by now.
    fn replace_directory(
        &self,
        op: &Op<'_>,
        dir: &Arc<Inode>,
        name: Hashed<'_>,
        target: &Arc<Inode>,
        id: u64,
    ) -> Result<Option<u64>> {
        let mut locked = Locked::new([Some(dir), Some(target), None, None]);
        let view = self.view(op.core);
        let Some(found) = still_there(locked.of(dir), dir, &view, name, target)? else {
            return Ok(None);
        };
        let state = locked.of(target);
        state.alive()?;
        must_be_empty(state)?;
        let old = entry_index(found, state, target, &view, dir.ino, name)?;
        let parent = locked.of(dir);
        parent.free_for(dir.ino, &view, name, true)?;
        parent.know_next_index(dir.ino, &view)?;
        parent.touch(dir, self, op)?;
        locked.of(target).note_change(target, self, op);
        let link = Link { parent: dir.ino, index: old, name: name.bytes };
        self.note_handed_over(locked.of(dir), op.transid);
        self.note_handed_over(locked.of(target), op.transid);
        self.take_name(op, target, locked.of(target), link);
        op.step("an entry of nothing");
        let parent = locked.of(dir);
        parent.remove_entry(name, old);
        let index = parent.add_entry(op, name, Entry::of_subvolume(id), true);
        parent.attributes.modified(op.now);
        Ok(Some(index))
    }

    /// The inode that a name leads to; a subvolume is refused.
    pub(super) fn target(
        &self,
        op: &Op<'_>,
        dir: &Inode,
        name: Hashed<'_>,
        subvolume_is_directory: bool,
    ) -> Result<(Arc<Inode>, Entry)> {
        let mut before = None;
        loop {
            let found = {
                let state = dir.read();
                state.usable_directory()?;
                state.find_entry(dir.ino, &self.view(op.core), name)?
            };
            let entry = found.ok_or(Error::User(Errno::NOENT))?.entry;
            let ino = match entry.location {
                Location::Inode(ino) => ino,
                Location::Subvolume(_) if subvolume_is_directory => {
                    return Err(Error::User(Errno::ISDIR));
                }
                Location::Subvolume(_) => return Err(Error::User(Errno::XDEV)),
            };
            match self.get(op, ino) {
                // Somebody else removed it meanwhile: the name may lead elsewhere now.
                Err(Error::User(Errno::NOENT)) if before != Some(ino) => before = Some(ino),
                // Both go at once: it was never there. To whoever waits for the name to be free, this is not that.
                Err(Error::User(Errno::NOENT)) => {
                    let key = Key::new(dir.ino, kind::DIR_ITEM, name.hash.into());
                    let what = "a name leads to an inode that is not there";
                    return Err(Error::inconsistent(self.id, what, key));
                }
                result => return Ok((result?, entry)),
            }
        }
    }

    /// Takes a name away from an inode, and the inode away when that was the last one. It cannot fail: whatever has to be read
    /// for it was read before, as the entry is to go, too.
    pub(super) fn take_name(
        &self,
        op: &Op<'_>,
        inode: &Arc<Inode>,
        state: &mut State,
        link: Link<'_>,
    ) {
        state.note_change(inode, self, op);
        state.live.names.lose(link.parent, link.index, link.name);
        state.attributes.nlink = state.attributes.nlink.saturating_sub(1);
        state.attributes.ctime = op.now;
        op.step("a name without its entry");
        if state.attributes.nlink == 0 {
            self.note_last_name(inode.ino, state, link);
            self.nameless(op, inode, state);
        } else {
            self.note_lost_name(inode.ino, state, link);
        }
    }
}

/// A name of an inode, as it knows it itself.
#[derive(Clone, Copy, Debug)]
pub(super) struct Link<'a> {
    /// The directory.
    pub parent: u64,
    /// Of the entry there.
    pub index: u64,
    pub name: &'a [u8],
}

/// Refuses what is no directory, or has entries.
fn must_be_empty(state: &State) -> Result<()> {
    must_be_directory(&state.attributes)?;
    if state.attributes.size > 0 { Err(Error::User(Errno::NOTEMPTY)) } else { Ok(()) }
}

/// The top directory of a subvolume that is being deleted. It is empty, and stays so: while this is held, nobody gets to it.
pub struct Closing<'a>(RwLockWriteGuard<'a, State>);

impl Closing<'_> {
    /// The subvolume is deleted: nothing is made in the directory any more.
    pub fn done(mut self) {
        self.0.dead = true;
    }
}

impl Inode {
    /// Locks a directory that is going away with its subvolume; ENOTEMPTY when it has entries.
    pub fn close_empty(&self) -> Result<Closing<'_>> {
        let state = self.write();
        must_be_empty(&state)?;
        Ok(Closing(state))
    }
}

/// The entry `name`, if it still leads to `target` now that both are locked.
pub(super) fn still_there(
    state: &State,
    dir: &Inode,
    view: &View<'_>,
    name: Hashed<'_>,
    target: &Inode,
) -> Result<Option<Found>> {
    state.usable_directory()?;
    let found = state.find_entry(dir.ino, view, name)?;
    Ok(found.filter(|found| found.entry.location == Location::Inode(target.ino)))
}

/// The index of an entry, from the entry itself or from the inode it leads to.
pub(super) fn entry_index(
    found: Found,
    state: &State,
    target: &Inode,
    view: &View<'_>,
    parent: u64,
    name: Hashed<'_>,
) -> Result<u64> {
    if let Some(index) = found.index {
        return Ok(index);
    }
    let index = state.index_of_name(target.ino, view, parent, name.bytes)?;
    // The inode's word is not enough: the index goes with the name, and must not be another name's.
    let key = Key::new(parent, kind::DIR_INDEX, index);
    let item = view.get(&key)?;
    let there = item.as_ref().and_then(|item| dir_entries(item.data()).next());
    if there.is_none_or(|there| there.name != name.bytes) {
        return Err(Error::inconsistent(view.owner(), "a directory index has another name", key));
    }
    Ok(index)
}
