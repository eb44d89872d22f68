//! What replaying a log does to inodes.
//!
//! A log says how inodes, names, xattrs and data are to be, item by item; who replays it compares that with what the subvolume has
//! ([`crate::log`]) and calls what is here. These are operations like others: they change the live layers of inodes, and the
//! commit that follows makes them durable. They set what they are told, also indexes, times and counts that other operations
//! choose themselves, and they do not ask whether the subvolume is read-only.

use std::ops::ControlFlow;
use std::sync::Arc;

use buttress_ondisk::item::InodeItem;
use buttress_ondisk::view::{ExtNameRef, FileExtentItem, inode_extrefs};
use buttress_ondisk::{Key, kind};

use super::attributes::{Attributes, mode};
use super::directory::{FIRST_INDEX, INDEX_MAX};
use super::file::{FILE_END, LoggedData, prepare, span_of};
use super::io::link_target;
use super::link::{Locked, entry_index};
use super::name::Hashed;
use super::state::State;
use super::tree::FileTree;
use super::{Entry, Inode, Location};
use crate::error::{Errno, Error, Passed, Result};
use crate::txn::{Core, Op};

/// A name of an inode as items hold it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoggedName<'a> {
    /// Its index in the directory.
    pub index: u64,
    /// The name.
    pub name: &'a [u8],
}

/// An entry as it was listed: its index, its name, and where it leads.
pub type ListedEntry = (u64, Vec<u8>, Entry);

fn refused(tree: &FileTree, what: &'static str, key: Key) -> Error {
    Error::inconsistent(tree.id, what, key)
}

fn inode_key(ino: u64) -> Key {
    Key::new(ino, kind::INODE_ITEM, 0)
}

impl FileTree {
    /// The inode `ino`, if there is one.
    pub fn find(&self, op: &Op<'_>, ino: u64) -> Result<Option<Arc<Inode>>> {
        match self.get(op, ino) {
            Err(Error::User(Errno::NOENT)) => Ok(None),
            found => found.map(Some),
        }
    }

    /// The inode is as `item` says, but for what its data and entries make of it. One of generation 0 says only that there is such an
    /// inode, and perhaps how large the file is.
    pub fn replay_inode(&self, op: &Op<'_>, ino: u64, item: &InodeItem) -> Result<Arc<Inode>> {
        let logged = Attributes::read(item);
        let Some(inode) = self.find(op, ino)? else { return Ok(self.replay_new(op, ino, logged)) };
        let mut state = inode.write();
        let old = state.attributes;
        if old.kind() != logged.kind() {
            return Err(refused(self, "a log makes an inode another kind of file", inode_key(ino)));
        }
        let new = match (logged.generation, logged.is_directory()) {
            (0, _) if logged.is_regular() && logged.size != 0 => {
                Attributes { size: logged.size, ..old }
            }
            (0, _) => old,
            (_, true) => Attributes { size: old.size, nbytes: old.nbytes, ..logged },
            (_, false) => Attributes { nbytes: old.nbytes, ..logged },
        };
        if new != old {
            state.touch(&inode, self, op)?;
            state.attributes = new;
            op.step("an inode is as its log says");
        }
        drop(state);
        Ok(inode)
    }

    fn replay_new(&self, op: &Op<'_>, ino: u64, logged: Attributes) -> Arc<Inode> {
        let generation = if logged.generation == 0 { op.transid } else { logged.generation };
        let size = if logged.is_directory() { 0 } else { logged.size };
        let attributes = Attributes { generation, size, nbytes: 0, ..logged };
        self.raise_next_ino(ino);
        self.adopt(ino, State::created(attributes, op.transid))
    }

    /// A regular file has nothing behind its end.
    pub fn replay_end(&self, op: &Op<'_>, inode: &Arc<Inode>) -> Result<()> {
        let mut state = inode.write();
        let size = state.attributes.size;
        let has_more = {
            let view = self.view(op.core);
            let last = Key::new(inode.ino, kind::EXTENT_DATA, u64::MAX);
            let last = if state.on_disk { view.last_at_or_before(&last)? } else { None };
            last.is_some_and(|item| {
                let end = FileExtentItem::read(item.data()).map_or(0, |it| it.len_bytes());
                let key = item.key();
                (key.objectid, key.kind) == (inode.ino, kind::EXTENT_DATA)
                    && key.offset.saturating_add(end) > size
            })
        };
        if has_more {
            self.reserve_to_replace(op, inode.ino, &state, &(size..FILE_END))?;
            let logged = state.attributes;
            state.touch(inode, self, op)?;
            state.attributes = logged;
            let (file, layers) = state.file_layers(inode.ino, self.view(op.core));
            file.end_at(op.core, layers, size);
        }
        Ok(())
    }

    // ---- xattrs ----

    /// Removes the xattrs that the log does not have.
    pub fn replay_lost_xattrs(
        &self,
        op: &Op<'_>,
        inode: &Arc<Inode>,
        mut logged: impl FnMut(&[u8], u32) -> Result<bool>,
    ) -> Result<()> {
        for name in self.xattrs(op, inode)? {
            let name = Hashed::of(name.as_bytes());
            if !logged(name.bytes, name.hash)? {
                let mut state = inode.write();
                state.touch(inode, self, op)?;
                state.xattrs().set(name.bytes, None);
            }
        }
        Ok(())
    }

    /// The inode has this xattr.
    pub fn replay_xattr(
        &self,
        op: &Op<'_>,
        inode: &Arc<Inode>,
        name: &[u8],
        value: &[u8],
    ) -> Result<()> {
        let mut state = inode.write();
        let found = state.find_xattr(inode.ino, &self.view(op.core), Hashed::of(name))?;
        if found.as_deref() != Some(value) {
            state.touch(inode, self, op)?;
            state.xattrs().set(name, Some(value.into()));
        }
        Ok(())
    }

    // ---- names and entries ----

    /// Where the entry `name` leads, if there is one.
    pub fn find_name(&self, op: &Op<'_>, dir: &Inode, name: &[u8]) -> Result<Option<Entry>> {
        let state = dir.read();
        let found = state.find_entry(dir.ino, &self.view(op.core), Hashed::of(name))?;
        Ok(found.map(|found| found.entry))
    }

    /// The entry at an index, if there is one.
    pub fn find_index(
        &self,
        op: &Op<'_>,
        dir: &Inode,
        index: u64,
    ) -> Result<Option<(Vec<u8>, Entry)>> {
        dir.read().entry_at(dir.ino, &self.view(op.core), index)
    }

    /// Up to `most` entries of a directory with indexes in this range.
    pub fn list_some(
        &self,
        op: &Op<'_>,
        dir: &Inode,
        (from, to): (u64, u64),
        most: usize,
    ) -> Result<Vec<ListedEntry>> {
        let mut found = Vec::new();
        let mut told = |passed: Passed| Err(passed.why());
        self.read_directory_past(op, dir, from, &mut told, |entry| {
            if entry.index > to {
                return ControlFlow::Break(());
            }
            let leads = Entry { location: entry.location, file_type: entry.file_type };
            found.push((entry.index, entry.name.to_vec(), leads));
            if found.len() < most { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        })?;
        Ok(found)
    }

    /// All names of an inode: the directory, the index in it, and the name.
    pub fn names_of(&self, op: &Op<'_>, inode: &Inode) -> Result<Vec<(u64, u64, Vec<u8>)>> {
        inode.read().all_names(inode.ino, &self.view(op.core))
    }

    /// Whether the subvolume has a name in one of the items for those that have no room with the others.
    pub fn is_extref(&self, op: &Op<'_>, inode: &Inode, parent: u64, name: &[u8]) -> Result<bool> {
        if !inode.read().on_disk {
            return Ok(false);
        }
        let hash = buttress_codec::crc32c::extref_hash(parent, name);
        let item = self.view(op.core).get(&Key::new(inode.ino, kind::INODE_EXTREF, hash))?;
        let is_it = |it: &ExtNameRef<'_>| it.parent == parent && it.name == name;
        Ok(item.is_some_and(|item| inode_extrefs(item.data()).any(|it| is_it(&it))))
    }

    /// The inode knows this name of its own; its entry is somebody else's business.
    pub fn replay_reference(
        &self,
        op: &Op<'_>,
        inode: &Arc<Inode>,
        parent: u64,
        name: LoggedName<'_>,
    ) -> Result<()> {
        let view = self.view(op.core);
        let mut state = inode.write();
        let found = state.find_index_of_name(inode.ino, &view, parent, name.name)?;
        if found == Some(name.index) {
            return Ok(());
        }
        let extref = op.core.features.extref;
        state.room_for_name(inode.ino, &view, parent, name.name, extref)?;
        self.change_quietly(op, inode, &mut state)?;
        if let Some(index) = found {
            state.live.names.lose(parent, index, name.name);
        }
        state.live.names.gain(parent, name.index, name.name, true);
        Ok(())
    }

    /// The directory has this entry; the inode's own knowledge of the name is somebody else's business.
    pub fn replay_entry(
        &self,
        op: &Op<'_>,
        dir: &Arc<Inode>,
        name: LoggedName<'_>,
        entry: Entry,
    ) -> Result<()> {
        let key = Key::new(dir.ino, kind::DIR_INDEX, name.index);
        let view = self.view(op.core);
        let hashed = Hashed::fresh(name.name)
            .map_err(|_| refused(self, "a log has a name that no file can have", key))?;
        let mut state = dir.write();
        if !state.attributes.is_directory() {
            return Err(refused(self, "a log has a name in what is no directory", key));
        }
        if !(FIRST_INDEX..=INDEX_MAX).contains(&name.index) {
            return Err(refused(self, "a log has a name at an index that no name has", key));
        }
        if state.entry_at(dir.ino, &view, name.index)?.is_some() {
            return Err(refused(self, "a log has a name at an index that is taken", key));
        }
        let beneath = state.free_for(dir.ino, &view, hashed, false)?;
        state.know_next_index(dir.ino, &view)?;
        self.change_quietly(op, dir, &mut state)?;
        state.add_entry_at(op, hashed, entry, name.index, beneath);
        op.step("an entry of a log");
        Ok(())
    }

    /// Takes an entry and the inode's name away. The inode stays, whatever names it has left: its links are counted at the end.
    pub fn replay_unlink(
        &self,
        op: &Op<'_>,
        dir: &Arc<Inode>,
        inode: &Arc<Inode>,
        name: &[u8],
    ) -> Result<()> {
        let view = self.view(op.core);
        let name = Hashed::of(name);
        let mut locked = Locked::new([Some(dir), Some(inode), None, None]);
        let found = locked.of(dir).find_entry(dir.ino, &view, name)?;
        let found = found.filter(|found| found.entry.location == Location::Inode(inode.ino));
        if let Some(found) = found {
            let index = entry_index(found, locked.of(inode), inode, &view, dir.ino, name)?;
            let parent = locked.of(dir);
            parent.know_next_index(dir.ino, &view)?;
            parent.touch(dir, self, op)?;
            // Its times stay: those that it is to have are in the log, or it is not.
            parent.remove_entry(name, index);
            op.step("an entry of nothing");
        }
        let state = locked.of(inode);
        if let Some(index) = state.find_index_of_name(inode.ino, &view, dir.ino, name.bytes)? {
            state.touch(inode, self, op)?;
            state.live.names.lose(dir.ino, index, name.bytes);
            state.attributes.ctime = op.now;
        }
        Ok(())
    }

    /// Counts an inode's links by its names; how many there are is returned. One that has none is left to be deleted.
    pub fn replay_links(&self, op: &Op<'_>, inode: &Arc<Inode>) -> Result<usize> {
        let mut state = inode.write();
        let count = state.all_names(inode.ino, &self.view(op.core))?.len();
        let Ok(nlink) = u32::try_from(count) else {
            return Err(refused(self, "an inode has too many names", inode_key(inode.ino)));
        };
        if state.attributes.nlink != nlink || nlink == 0 || state.orphan {
            self.change_quietly(op, inode, &mut state)?;
            state.attributes.nlink = nlink;
            state.live.orphan = match (nlink, state.orphan) {
                (0, _) => Some(true),
                (_, true) => Some(false),
                (_, false) => None,
            };
        }
        Ok(count)
    }

    /// What the log says of an inode's age stays.
    fn change_quietly(&self, op: &Op<'_>, inode: &Arc<Inode>, state: &mut State) -> Result<()> {
        let sequence = state.attributes.sequence;
        state.touch(inode, self, op)?;
        state.attributes.sequence = sequence;
        Ok(())
    }

    // ---- data ----

    /// The file has this item at `start`; of data that are on the disk, `data` says what logs know of an extent.
    pub fn replay_extent(
        &self,
        op: &Op<'_>,
        inode: &Arc<Inode>,
        (start, item): (u64, &[u8]),
        data: impl FnOnce(u64, u64) -> Result<Option<LoggedData>>,
    ) -> Result<()> {
        let wrong = |what| refused(self, what, Key::new(inode.ino, kind::EXTENT_DATA, start));
        let extent = FileExtentItem::read(item);
        let extent = extent.ok_or_else(|| wrong("a file extent in a log makes no sense"))?;
        let mut state = inode.write();
        match state.attributes.kind() {
            mode::REGULAR => {}
            mode::SYMLINK => {
                let done = self.replay_symlink(op, inode, &mut state, start, &extent)?;
                return done.then_some(()).ok_or_else(|| wrong("a symbolic link has no path"));
            }
            _ => return Err(wrong("a log has data of what is no file")),
        }
        let span = span_of(start, &extent);
        let span = span.ok_or_else(|| wrong("a file extent in a log makes no sense"))?;
        let (file, layers) = state.file_layers(inode.ino, self.view(op.core));
        if file.is_as_logged(layers, &span, item)? {
            return Ok(());
        }
        let shared = match extent {
            FileExtentItem::Regular { disk_bytenr, disk_num_bytes, .. } if disk_bytenr != 0 => {
                data(disk_bytenr, disk_num_bytes)?
            }
            _ => None,
        };
        self.reserve_to_replace(op, inode.ino, &state, &span)?;
        self.change_quietly(op, inode, &mut state)?;
        let (file, _) = state.file_layers(inode.ino, self.view(op.core));
        if !file.put_logged(span, &extent, shared) {
            return Err(wrong("small data in a log cannot be read"));
        }
        op.step("data of a log");
        Ok(())
    }

    fn replay_symlink(
        &self,
        op: &Op<'_>,
        inode: &Arc<Inode>,
        state: &mut State,
        start: u64,
        extent: &FileExtentItem<'_>,
    ) -> Result<bool> {
        let FileExtentItem::Inline { compression: 0, data, .. } = extent else { return Ok(false) };
        let target = link_target(data, state.attributes.size);
        if start != 0 || target.is_empty() || target.len() as u64 != state.attributes.size {
            return Ok(false);
        }
        // One that the subvolume has cannot have changed.
        if !state.on_disk {
            self.change_quietly(op, inode, state)?;
            state.live.symlink = Some(target.into());
            state.attributes.nbytes = target.len() as u64;
        }
        Ok(true)
    }

    // ---- a filesystem that is only read ----

    /// Settles how much space the changed files take, without any commit to come: for who only reads.
    pub fn settle_unwritten(&self, core: &Core) -> Result<()> {
        for inode in self.changed_inodes() {
            let mut state = inode.write();
            if state.live.file.is_none() {
                continue;
            }
            let (file, layers) = state.file_layers(inode.ino, self.view(core));
            let prepared = prepare(core, &mut [(file, layers)])?;
            state.attributes.nbytes = prepared[0].nbytes(state.attributes.nbytes);
        }
        Ok(())
    }
}

impl Inode {
    /// The values as they are now.
    pub fn attributes_now(&self) -> Attributes {
        self.read().attributes
    }
}
