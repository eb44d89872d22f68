//! A directory as operations see it: its layers over its tree.

use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::sync::Arc;

use buttress_ondisk::item::DirItem;
use buttress_ondisk::view::{DirEntry, dir_entries, is_name, root_ref};
use buttress_ondisk::{Key, kind};

use super::attributes::must_be_directory;
use super::entries::{Entries, Known, Said};
use super::link::Link;
use super::name::Hashed;
use super::name_hashes::{FROM, NameHashes};
use super::state::State;
use super::tree::FileTree;
use super::{Entry, Inode, Location, TOP};
use crate::error::{Errno, Error, Passed, Result};
use crate::tree::{Met, Past, View};
use crate::txn::{Op, Share};

/// The index that a directory gives first: 0 and 1 stand for "." and "..".
pub(super) const FIRST_INDEX: u64 = 2;
/// No directory whose indexes have come so far gets more entries: they would run out. Only a damaged one has.
pub(super) const INDEX_MAX: u64 = i64::MAX as u64;
/// Bytes of an entry's head in an item.
pub(super) const ENTRY_LEN: usize = size_of::<DirItem>();

/// An entry as [`FileTree::read_directory`] lists it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirectoryEntry<'a> {
    /// Its place in the directory: listing goes on at `index + 1`.
    pub index: u64,
    /// The name.
    pub name: &'a [u8],
    /// Where it leads.
    pub location: Location,
    /// `buttress_ondisk::item::file_type`.
    pub file_type: u8,
}

/// An entry found by name. The index is only known when a layer holds it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Found {
    pub entry: Entry,
    pub index: Option<u64>,
}

impl State {
    /// Whether no name has the hash of this one.
    fn has_no_such_name(&self, ino: u64, view: &View<'_>, name: Hashed<'_>) -> bool {
        let unknown = self.name_hashes.as_ref().is_some_and(|known| !known.has(name.hash));
        if unknown {
            let says = |layer: &Entries| layer.find(name) != Known::Unknown;
            debug_assert!(!self.layers_of_entries().any(says), "a layer has a name not known");
            // Elsewhere it would count as a look at a block.
            let found =
                cfg!(test) && self.on_disk && matches!(view.get(&name.key(ino)), Ok(Some(_)));
            assert!(!found, "the tree has a name that its directory does not know");
        }
        unknown
    }

    /// A name comes. A directory begins to know its names once it has some, if the tree has none of them yet.
    fn know_name(&mut self, share: &Arc<Share>, name: Hashed<'_>) {
        if let Some(known) = &mut self.name_hashes {
            if !known.add(name.hash) {
                self.name_hashes = None;
            }
            return;
        }
        if self.names_in_tree {
            return;
        }
        let names = 1 + self.layers_of_entries().map(Entries::hashes_len).sum::<usize>();
        if names >= FROM {
            let all = self.layers_of_entries().flat_map(Entries::all_hashes);
            let known = NameHashes::of(share, names, all.chain([name.hash]));
            self.name_hashes = known.map(Box::new);
        }
    }

    fn layers_of_entries(&self) -> impl Iterator<Item = &Entries> {
        let frozen = self.frozen_changes().and_then(|changes| changes.entries.as_deref());
        [self.live.entries.as_deref(), frozen].into_iter().flatten()
    }

    /// What `name` leads to.
    pub(super) fn find_entry(
        &self,
        ino: u64,
        view: &View<'_>,
        name: Hashed<'_>,
    ) -> Result<Option<Found>> {
        if self.has_no_such_name(ino, view, name) {
            return Ok(None);
        }
        for layer in self.layers_of_entries() {
            match layer.find(name) {
                Known::Present(entry, index) => {
                    return Ok(Some(Found { entry, index: Some(index) }));
                }
                Known::Absent => return Ok(None),
                Known::Unknown => {}
            }
        }
        if !self.on_disk {
            return Ok(None);
        }
        let key = name.key(ino);
        let Some(item) = view.get(&key)? else { return Ok(None) };
        let is_it = |it: &DirEntry<'_>| it.name == name.bytes && is_name(it.name);
        let Some(found) = dir_entries(item.data()).find(is_it) else { return Ok(None) };
        let location = location(view, &key, &found.location)?;
        Ok(Some(Found { entry: Entry { location, file_type: found.file_type }, index: None }))
    }

    /// Refuses a name that is taken (unless `taken_is_fine`), or that has no room in the item of its hash. Whether layers
    /// below the live one may hold the name is returned.
    pub(super) fn free_for(
        &self,
        ino: u64,
        view: &View<'_>,
        name: Hashed<'_>,
        taken_is_fine: bool,
    ) -> Result<bool> {
        if self.has_no_such_name(ino, view, name) {
            return Ok(false);
        }
        let mut used = 0;
        let mut beneath = false;
        let mut decided = None;
        for layer in self.layers_of_entries() {
            let known = layer.find(name);
            beneath |= known != Known::Unknown;
            if decided.is_none() && known != Known::Unknown {
                decided = Some(known != Known::Absent);
            }
            used += layer.weight_of(name.hash);
        }
        let item = if self.on_disk { view.get(&name.key(ino))? } else { None };
        let stored = item.as_ref().map_or(&[][..], |item| item.data());
        let there = dir_entries(stored).any(|it| it.name == name.bytes);
        beneath |= there;
        if item.is_some() {
            decided = decided.or(Some(there));
        }
        used += stored.len();
        let taken = decided == Some(true);
        if taken && !taken_is_fine {
            return Err(Error::User(Errno::EXIST));
        }
        let max = super::item_len_max(view.blocks().nodesize());
        let fits = |used: usize| used == 0 || used + ENTRY_LEN + name.bytes.len() <= max;
        // A name that is there has its place. What others have left behind is in `used`, too.
        if !taken && !fits(used) && !fits(self.item_len(name.hash, stored)) {
            return Err(Error::User(Errno::OVERFLOW));
        }
        Ok(beneath)
    }

    /// Bytes of the item of a hash as layers leave it, of which the tree has `stored`.
    fn item_len(&self, hash: u32, stored: &[u8]) -> usize {
        let mut names: BTreeSet<&[u8]> = dir_entries(stored).map(|it| it.name).collect();
        let layers: Vec<&Entries> = self.layers_of_entries().collect();
        for said in layers.iter().rev().flat_map(|layer| layer.of_hash(hash)) {
            match said {
                Said::Added(_) => drop(names.insert(said.name())),
                Said::Hidden(name) => drop(names.remove(name)),
            }
        }
        names.iter().map(|name| ENTRY_LEN + name.len()).sum()
    }

    /// Makes sure that `next_index` is known.
    pub(super) fn know_next_index(&mut self, ino: u64, view: &View<'_>) -> Result<()> {
        if self.next_index != 0 {
            return Ok(());
        }
        let next = match view.last_key(&Key::new(ino, kind::DIR_INDEX, u64::MAX))? {
            Some(key) if key.objectid == ino && key.kind == kind::DIR_INDEX => {
                key.offset.saturating_add(1).max(FIRST_INDEX)
            }
            _ => FIRST_INDEX,
        };
        // While a commit is being published the tree may have forgotten indexes that a layer still hides.
        let gone = self.layers_of_entries().filter_map(|layer| layer.removed().next_back()).max();
        let next = next.max(gone.map_or(0, |gone| gone.saturating_add(1)));
        if next > INDEX_MAX {
            return Err(Error::User(Errno::NOSPC));
        }
        self.next_index = next;
        Ok(())
    }

    /// Adds an entry; [`State::free_for`] and [`State::know_next_index`] came before. Its index is returned.
    pub(super) fn add_entry(
        &mut self,
        op: &Op<'_>,
        name: Hashed<'_>,
        entry: Entry,
        beneath: bool,
    ) -> u64 {
        debug_assert!(self.next_index >= FIRST_INDEX);
        let index = self.next_index;
        self.next_index = index.saturating_add(1);
        self.know_name(&op.core.waiting.name_hashes, name);
        self.entries().add(name, entry, index, beneath);
        self.attributes.size = self.attributes.size.saturating_add(name.weight());
        index
    }

    /// Removes an entry. Whether it had taken the place of one that the tree may have.
    pub(super) fn remove_entry(&mut self, name: Hashed<'_>, index: u64) -> bool {
        let uncovers = self.entries().remove(name, index);
        if self.name_hashes.as_mut().is_some_and(|known| !known.lose()) {
            self.name_hashes = None;
        }
        if self.logged_whole.is_some() {
            self.gone().retracted.push(index);
        }
        self.attributes.size = self.attributes.size.saturating_sub(name.weight());
        uncovers
    }

    /// Adds an entry at an index that is free; [`State::know_next_index`] came before.
    pub(super) fn add_entry_at(
        &mut self,
        op: &Op<'_>,
        name: Hashed<'_>,
        entry: Entry,
        index: u64,
        beneath: bool,
    ) {
        self.know_name(&op.core.waiting.name_hashes, name);
        self.entries().add_at(name, entry, index, beneath);
        self.next_index = self.next_index.max(index.saturating_add(1));
        self.attributes.size = self.attributes.size.saturating_add(name.weight());
    }

    /// The name at an index, and where it leads.
    pub(super) fn entry_at(
        &self,
        ino: u64,
        view: &View<'_>,
        index: u64,
    ) -> Result<Option<(Vec<u8>, Entry)>> {
        for layer in self.layers_of_entries() {
            if let Some(added) = layer.added_at(index) {
                let entry = Entry { location: added.location, file_type: added.file_type };
                return Ok(Some((added.name.as_bytes().to_vec(), entry)));
            }
            if layer.hides(index) {
                return Ok(None);
            }
        }
        let key = Key::new(ino, kind::DIR_INDEX, index);
        let item = if self.on_disk { view.get(&key)? } else { None };
        let Some(item) = item else { return Ok(None) };
        let item = Met::Item(item);
        let found = stored_entry(view, &item)?;
        let entry = Entry { location: found.location, file_type: found.file_type };
        Ok(Some((found.name.to_vec(), entry)))
    }

    /// Refuses what is no directory, or was removed.
    pub(super) fn usable_directory(&self) -> Result<()> {
        self.alive()?;
        must_be_directory(&self.attributes)?;
        if self.attributes.nlink == 0 { Err(Error::User(Errno::NOENT)) } else { Ok(()) }
    }

    /// The index of an entry, by looking at all of them.
    fn index_by_listing(&self, ino: u64, view: &View<'_>, name: &[u8]) -> Result<Option<u64>> {
        let mut found = None;
        let mut told = |passed: Passed| match passed {
            Passed::Name(_) => Ok(()),
            Passed::Unreadable(why) => Err(why),
        };
        self.list(ino, view, FIRST_INDEX, &mut told, &mut |entry| {
            if entry.name != name {
                return ControlFlow::Continue(());
            }
            found = Some(entry.index);
            ControlFlow::Break(())
        })?;
        Ok(found)
    }

    /// All entries from index `from` on, in order. `told` hears what is passed over, and ends it with an error.
    fn list(
        &self,
        ino: u64,
        view: &View<'_>,
        from: u64,
        told: &mut dyn FnMut(Passed) -> Result<()>,
        each: &mut dyn FnMut(DirectoryEntry<'_>) -> ControlFlow<()>,
    ) -> Result<()> {
        let mut from = from.max(FIRST_INDEX);
        let mut tree = self.on_disk.then(|| Listed::new(ino, view, from));
        loop {
            let stored = match &mut tree {
                Some(listed) => listed.at_or_after(from, told)?,
                None => None,
            };
            let pending = self.layers_of_entries().filter_map(|layer| layer.next(from));
            let pending = pending.min_by_key(|added| added.index);
            let stored_index = stored.as_ref().map(|met| met.key().offset);
            let flow = match pending {
                Some(added) if stored_index.is_none_or(|index| added.index <= index) => {
                    from = added.index;
                    if self.hidden(from) {
                        ControlFlow::Continue(())
                    } else {
                        each(DirectoryEntry {
                            index: from,
                            name: added.name.as_bytes(),
                            location: added.location,
                            file_type: added.file_type,
                        })
                    }
                }
                _ => {
                    let Some(met) = stored else { return Ok(()) };
                    from = met.key().offset;
                    match stored_entry(view, &met) {
                        _ if self.hidden(from) => ControlFlow::Continue(()),
                        Ok(entry) if is_name(entry.name) => each(entry),
                        Ok(entry) => {
                            told(Passed::name(view.owner(), &met.key(), entry.name))?;
                            ControlFlow::Continue(())
                        }
                        Err(why) => {
                            told(Passed::Unreadable(why))?;
                            ControlFlow::Continue(())
                        }
                    }
                }
            };
            let Some(next) = from.checked_add(1).filter(|_| flow.is_continue()) else {
                return Ok(());
            };
            from = next;
        }
    }

    fn hidden(&self, index: u64) -> bool {
        self.layers_of_entries().any(|layer| layer.hides(index))
    }
}

/// The indexes that the tree holds, one step ahead.
struct Listed<'a> {
    items: Past<'a>,
    ahead: Option<Met>,
    ended: bool,
}

impl<'a> Listed<'a> {
    fn new(ino: u64, view: &View<'a>, from: u64) -> Listed<'a> {
        let key = |index| Key::new(ino, kind::DIR_INDEX, index);
        let items = Past::new(view, key(from), key(u64::MAX));
        Listed { items, ahead: None, ended: false }
    }

    /// `told` hears of blocks that cannot be read, and may have them passed over.
    fn at_or_after(
        &mut self,
        from: u64,
        told: &mut dyn FnMut(Passed) -> Result<()>,
    ) -> Result<Option<Met>> {
        while !self.ended && self.ahead.as_ref().is_none_or(|met| met.key().offset < from) {
            self.ahead = self.items.meet(told)?;
            self.ended = self.ahead.is_none();
        }
        Ok(self.ahead.clone())
    }
}

fn stored_entry<'i>(view: &View<'_>, met: &'i Met) -> Result<DirectoryEntry<'i>> {
    let key = met.key();
    let item = match met {
        Met::Item(item) => item,
        Met::Lost(_, why) => return Err(why.clone()),
    };
    let Some(found) = dir_entries(item.data()).next() else {
        return Err(Error::inconsistent(view.owner(), "a directory index is empty", key));
    };
    let (index, name, file_type) = (key.offset, found.name, found.file_type);
    let location = location(view, &key, &found.location)?;
    Ok(DirectoryEntry { index, name, location, file_type })
}

fn location(view: &View<'_>, at: &Key, location: &Key) -> Result<Location> {
    Location::of(location).ok_or_else(|| {
        Error::inconsistent(view.owner(), "a directory entry leads to no inode and no tree", at)
    })
}

impl FileTree {
    /// What `name` in the directory leads to; "." and ".." are not looked up here.
    pub fn lookup(&self, op: &Op<'_>, dir: &Inode, name: &[u8]) -> Result<Entry> {
        let name = Hashed::known(name)?;
        let state = dir.read();
        state.alive()?;
        must_be_directory(&state.attributes)?;
        let found = state.find_entry(dir.ino, &self.view(op.core), name)?;
        found.map(|found| found.entry).ok_or(Error::User(Errno::NOENT))
    }

    /// Lists the directory from index `from` on (0 from its start), without "." and "..", until `each` breaks. `each` must
    /// not call into the tree: the directory is locked.
    pub fn read_directory(
        &self,
        op: &Op<'_>,
        dir: &Inode,
        from: u64,
        each: impl FnMut(DirectoryEntry<'_>) -> ControlFlow<()>,
    ) -> Result<()> {
        self.read_directory_past(op, dir, from, &mut |passed| op.core.only_names(passed), each)
    }

    /// The same; `told` says what may be passed over.
    pub fn read_directory_past(
        &self,
        op: &Op<'_>,
        dir: &Inode,
        from: u64,
        told: &mut dyn FnMut(Passed) -> Result<()>,
        mut each: impl FnMut(DirectoryEntry<'_>) -> ControlFlow<()>,
    ) -> Result<()> {
        let state = dir.read();
        state.alive()?;
        must_be_directory(&state.attributes)?;
        state.list(dir.ino, &self.view(op.core), from, told, &mut each)
    }

    /// The directory that holds the inode, in this tree; the top directory is its own parent. ENOENT when it has no name.
    pub fn parent_of(&self, op: &Op<'_>, inode: &Inode) -> Result<u64> {
        if inode.ino == TOP {
            return Ok(TOP);
        }
        let state = inode.read();
        state.alive()?;
        state.parent(inode.ino, &self.view(op.core))?.ok_or(Error::User(Errno::NOENT))
    }

    /// Adds an entry that leads to the subvolume `id`; the entry's index is returned.
    pub fn add_subvolume_entry(
        &self,
        op: &Op<'_>,
        dir: &Arc<Inode>,
        name: &[u8],
        id: u64,
    ) -> Result<u64> {
        self.writable()?;
        let name = Hashed::fresh(name)?;
        let mut state = dir.write();
        let view = self.view(op.core);
        state.usable_directory()?;
        let beneath = state.free_for(dir.ino, &view, name, false)?;
        state.know_next_index(dir.ino, &view)?;
        state.touch(dir, self, op)?;
        state.attributes.modified(op.now);
        Ok(state.add_entry(op, name, Entry::of_subvolume(id), beneath))
    }

    /// The index of the entry `name`, which must lead to the subvolume `id`.
    pub fn subvolume_entry(&self, op: &Op<'_>, dir: &Inode, name: &[u8], id: u64) -> Result<u64> {
        let name = Hashed::known(name)?;
        let state = dir.read();
        state.usable_directory()?;
        self.subvolume_index(op, dir.ino, &state, name, id)
    }

    pub(super) fn subvolume_index(
        &self,
        op: &Op<'_>,
        dir: u64,
        state: &State,
        name: Hashed<'_>,
        id: u64,
    ) -> Result<u64> {
        let view = self.view(op.core);
        let found = state.find_entry(dir, &view, name)?;
        let found = found.filter(|found| found.entry.location == Location::Subvolume(id));
        let found = found.ok_or(Error::User(Errno::NOENT))?;
        let index = match found.index {
            Some(index) => Some(index),
            None => match self.index_by_reference(op, dir, name, id)? {
                Some(index) => Some(index),
                None => state.index_by_listing(dir, &view, name.bytes)?,
            },
        };
        index.ok_or_else(|| {
            let key = Key::new(dir, kind::DIR_ITEM, name.hash.into());
            Error::inconsistent(self.id, "a directory entry has no index", key)
        })
    }

    /// The index of an entry of the tree as the subvolume's reference has it, if there the entry is. One that a snapshot has
    /// copied has no reference, but the index of the one that has.
    fn index_by_reference(
        &self,
        op: &Op<'_>,
        dir: u64,
        name: Hashed<'_>,
        id: u64,
    ) -> Result<Option<u64>> {
        let key = Key::new(id, kind::ROOT_BACKREF, u64::MAX);
        let reference = op.core.root_view().last_in(&Key { offset: 0, ..key }, &key)?;
        let Some((head, known)) = reference.as_ref().and_then(|item| root_ref(item.data())) else {
            return Ok(None);
        };
        if head.dirid.get() != dir || known != name.bytes {
            return Ok(None);
        }
        let index = head.sequence.get();
        let view = self.view(op.core);
        let item = view.get(&Key::new(dir, kind::DIR_INDEX, index))?;
        let entry = item.as_ref().and_then(|item| dir_entries(item.data()).next());
        let is_it = |entry: &DirEntry<'_>| {
            entry.name == name.bytes
                && Location::of(&entry.location) == Some(Location::Subvolume(id))
        };
        Ok(entry.as_ref().is_some_and(is_it).then_some(index))
    }

    /// The same, and makes sure that the entry can be led elsewhere.
    pub fn subvolume_entry_to_lead(
        &self,
        op: &Op<'_>,
        dir: &Inode,
        name: &[u8],
        id: u64,
    ) -> Result<u64> {
        self.writable()?;
        let name = Hashed::known(name)?;
        let mut state = dir.write();
        state.usable_directory()?;
        state.know_next_index(dir.ino, &self.view(op.core))?;
        self.subvolume_index(op, dir.ino, &state, name, id)
    }

    /// Leads the entry `name`, found by [`FileTree::subvolume_entry_to_lead`] under `index`, to the subvolume `id`; its new
    /// index is returned.
    pub fn lead_subvolume_entry(
        &self,
        op: &Op<'_>,
        dir: &Arc<Inode>,
        name: &[u8],
        index: u64,
        id: u64,
    ) -> Result<u64> {
        let name = Hashed::known(name)?;
        let mut state = dir.write();
        state.touch(dir, self, op)?;
        state.remove_entry(name, index);
        self.note_lost_subvolume(Link { parent: dir.ino, index, name: name.bytes });
        state.attributes.modified(op.now);
        Ok(state.add_entry(op, name, Entry::of_subvolume(id), true))
    }

    /// Removes the entry `name`, which must lead to the subvolume `id`; the index it had is returned.
    pub fn remove_subvolume_entry(
        &self,
        op: &Op<'_>,
        dir: &Arc<Inode>,
        name: &[u8],
        id: u64,
    ) -> Result<u64> {
        self.writable()?;
        let index = self.subvolume_entry(op, dir, name, id)?;
        self.remove_subvolume_entry_at(op, dir, name, index)?;
        Ok(index)
    }

    /// Removes the entry `name`, of which the caller knows the index and that it leads to a subvolume.
    pub fn remove_subvolume_entry_at(
        &self,
        op: &Op<'_>,
        dir: &Arc<Inode>,
        name: &[u8],
        index: u64,
    ) -> Result<()> {
        let name = Hashed::known(name)?;
        let mut state = dir.write();
        state.touch(dir, self, op)?;
        state.remove_entry(name, index);
        self.note_lost_subvolume(Link { parent: dir.ino, index, name: name.bytes });
        state.attributes.modified(op.now);
        Ok(())
    }
}
