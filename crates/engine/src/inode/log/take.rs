//! Takes the items of one inode from its layers.

use std::collections::BTreeMap;
use std::sync::Arc;

use buttress_codec::crc32c::extref_hash;
use buttress_ondisk::item::{FileExtentHead, InodeItem, file_type, inode_flags};
use buttress_ondisk::view::{dir_entries, inode_refs};
use buttress_ondisk::{Key, kind};
use zerocopy::IntoBytes;

use super::{Entry, Extent, ITEMS_MAX, Need, Reason, StoredXattrs};
use crate::error::Result;
use crate::inode::attributes::mode;
use crate::inode::emit::{push_extref, push_ref};
use crate::inode::file::{FileChanges, Layers, Logged as LoggedData};
use crate::inode::name::{Hashed, Name};
use crate::inode::names::{EXTREF_LEN, NameChange, REF_LEN};
use crate::inode::state::{State, Stored};
use crate::inode::strays::Stray;
use crate::inode::tree::FileTree;
use crate::inode::xattrs::weight;
use crate::inode::{Location, item_len_max, push_dir_item};
use crate::stats;
use crate::tree::View;
use crate::txn::Op;

fn is_file(state: &State) -> bool {
    state.attributes.mode & mode::TYPE_MASK == mode::REGULAR
}

/// Changes whenever the names of an inode do: an index is given to one name only.
pub(super) fn fingerprint(state: &State) -> u64 {
    let names = state.live.names.as_slice().iter();
    names.fold(state.attributes.nlink.into(), |sum: u64, change| {
        let words = [change.parent, change.index, change.gained.into()];
        words
            .into_iter()
            .fold(sum, |sum, word| (sum.rotate_left(23) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15))
    })
}

/// Whether an inode of the last commit has a name yet that it had there.
pub(super) fn keeps_a_name(state: &State) -> bool {
    let gained = state.live.names.as_slice().iter().filter(|change| change.gained).count();
    state.attributes.nlink as usize > gained
}

pub(super) enum Taken {
    Entry,
    /// The log has nothing of it any more.
    Gone,
    Nothing,
    Commit(Reason),
}

pub(super) struct Taker<'t, 'o> {
    pub tree: &'t FileTree,
    pub op: &'t Op<'o>,
    pub ino: u64,
    pub entry: Entry,
}

impl Taker<'_, '_> {
    pub fn take(&mut self, state: &mut State, extent: Extent) -> Result<Taken> {
        let created = state.live.created;
        let goes = state.dead || state.live.deleted || state.attributes.nlink == 0;
        let renamed = !state.live.names.as_slice().is_empty();
        match (created, extent) {
            // Nobody would find it. What the log has of it goes, or its names would be in the way of others.
            (true, _) if goes && state.logged == self.op.transid => {
                self.clear(0, u8::MAX);
                return Ok(Taken::Gone);
            }
            (true, _) if goes => return Ok(Taken::Nothing),
            // It would be there again, with what it had in the last commit.
            (false, Extent::Names) if goes && state.uncovers => {
                return Ok(Taken::Commit(Reason::Taken));
            }
            // Its old names were taken away when it was in the log under new ones.
            (false, _) if goes && state.names_in_log => {
                self.clear(0, u8::MAX);
                let lost_in = state.gone.iter().flat_map(|gone| &gone.lost_in);
                self.entry.needs.extend(lost_in.copied().map(Need::Lost));
                return Ok(Taken::Gone);
            }
            (_, Extent::Names | Extent::Named | Extent::Alive | Extent::Lost) => {
                return self.names_again(state, extent != Extent::Names);
            }
            (false, _) if goes => return Ok(Taken::Commit(Reason::Names)),
            (false, _) if renamed && !self.knows_all_names(state)? => {
                return Ok(Taken::Commit(Reason::Names));
            }
            _ => {}
        }
        // What it has of data comes after all else.
        self.clear(0, kind::EXTENT_DATA - 1);
        let item = self.item(state, extent);
        self.put(kind::INODE_ITEM, 0, item.as_bytes().to_vec());
        if (created || renamed)
            && let Some(reason) = self.names(state)?
        {
            return Ok(Taken::Commit(reason));
        }
        if let Some(reason) = self.xattrs(state)? {
            return Ok(Taken::Commit(reason));
        }
        let entries = match extent {
            Extent::Whole => self.entries(state)?,
            Extent::Exists if state.uncovers => self.lost(state)?,
            _ => None,
        };
        if let Some(reason) = entries {
            return Ok(Taken::Commit(reason));
        }
        if let Some(target) = &state.live.symlink {
            let head = FileExtentHead {
                generation: self.op.transid.into(),
                ram_bytes: (target.len() as u64).into(),
                kind: FileExtentHead::INLINE,
                ..FileExtentHead::default()
            };
            self.put(kind::EXTENT_DATA, 0, [head.as_bytes(), target].concat());
        }
        if extent == Extent::Exists || !is_file(state) {
            let reserves = state.attributes.flags & inode_flags::PREALLOC != 0;
            if reserves && is_file(state) && state.on_disk && self.had_space_behind(state)? {
                return Ok(Taken::Commit(Reason::Prealloc));
            }
            self.clear(kind::EXTENT_DATA, u8::MAX);
        } else if let Some(reason) = self.data(state)? {
            return Ok(Taken::Commit(reason));
        }
        let large = self.entry.items.len() > ITEMS_MAX;
        Ok(if large { Taken::Commit(Reason::Large) } else { Taken::Entry })
    }

    /// The names of one that is in the log. An inode of the last commit is found by the names that it has there, with what the log has
    /// of it, unless they are given to others (`wanted`). Entries that have gone must not be in the log: what they led to is elsewhere now.
    fn names_again(&mut self, state: &mut State, wanted: bool) -> Result<Taken> {
        let retracted =
            state.gone.as_mut().map(|gone| std::mem::take(&mut gone.retracted)).unwrap_or_default();
        if retracted.len() > ITEMS_MAX {
            return Ok(Taken::Commit(Reason::Large));
        }
        let mut gone: Vec<Key> =
            retracted.into_iter().map(|index| Key::new(self.ino, kind::DIR_INDEX, index)).collect();
        gone.sort_unstable();
        self.entry.gone = gone;
        let is_new = |state: &State| state.logged_names != fingerprint(state);
        let renamed = match state.live.created {
            true => is_new(state),
            false if wanted && !state.names_in_log => true,
            false => is_new(state) && (state.names_in_log || self.knows_all_names(state)?),
        };
        if renamed {
            self.clear(kind::INODE_REF, kind::INODE_EXTREF);
            if !state.live.created && !self.knows_all_names(state)? {
                return Ok(Taken::Commit(Reason::Names));
            }
            if let Some(reason) = self.names(state)? {
                return Ok(Taken::Commit(reason));
            }
        }
        if state.uncovers {
            self.clear(kind::DIR_LOG_INDEX, kind::DIR_LOG_INDEX);
            if let Some(reason) = self.lost(state)? {
                return Ok(Taken::Commit(reason));
            }
        }
        let same = !renamed && !state.uncovers && self.entry.gone.is_empty();
        Ok(if same { Taken::Nothing } else { Taken::Entry })
    }

    fn clear(&mut self, from: u8, to: u8) {
        let (from, to) = (Key::new(self.ino, from, 0), Key::new(self.ino, to, u64::MAX));
        self.entry.cleared.push((from, to));
    }

    fn put(&mut self, kind: u8, offset: u64, data: Vec<u8>) {
        self.entry.items.push((Key::new(self.ino, kind, offset), data));
    }

    /// Generation 0 says that nothing is logged but the inode itself: replay leaves the size as it is.
    fn item(&self, state: &State, extent: Extent) -> InodeItem {
        let mut item = state.attributes.item();
        let whole = extent == Extent::Whole || state.live.symlink.is_some();
        if !whole {
            item.generation = 0.into();
            item.size = 0.into();
            if is_file(state) {
                item.nbytes = 0.into();
            }
        }
        item
    }

    /// Whether the layer has all names of an inode of the last commit, and replay takes away those that it had: in the directories in which
    /// it has names now, and if they are where replay looks.
    fn knows_all_names(&self, state: &State) -> Result<bool> {
        let names = state.live.names.as_slice();
        if state.attributes.is_directory() || keeps_a_name(state) || state.handed_over {
            return Ok(false);
        }
        let view = self.tree.view(self.op.core);
        for lost in names.iter().filter(|change| !change.gained) {
            if !names.iter().any(|change| change.gained && change.parent == lost.parent) {
                return Ok(false);
            }
            stats::add(&self.op.core.counters.log_searches, 1);
            let Some(item) = view.get(&Key::new(self.ino, kind::INODE_REF, lost.parent))? else {
                return Ok(false);
            };
            if !inode_refs(item.data()).any(|it| it.name == lost.name.as_bytes()) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// The names that an inode has gained: all names of one that this transaction has made.
    fn names(&mut self, state: &mut State) -> Result<Option<Reason>> {
        state.names_in_log = true;
        for lost in state.live.names.as_slice().iter().filter(|change| !change.gained) {
            let lost_in = &mut state.gone.get_or_insert_default().lost_in;
            if !lost_in.contains(&lost.parent) {
                lost_in.push(lost.parent);
            }
        }
        let mut gained: Vec<&NameChange> =
            state.live.names.as_slice().iter().filter(|change| change.gained).collect();
        // A path leads through directories where the last commit has them.
        if self.tree.has_moved_directories() {
            return Ok(Some(Reason::Taken));
        }
        // Replay takes a name from whoever had it in the last commit. That is what has happened, but he may live on under another one.
        for change in gained.iter().filter(|change| change.taken) {
            let stray = self.tree.strays.lock().by_name(change.parent, change.name.as_bytes());
            if let Some(reason) = self.need_stray(stray) {
                return Ok(Some(reason));
            }
        }
        gained.sort_by_key(|change| (change.parent, change.index));
        let max = item_len_max(self.op.core.blocks.nodesize());
        let mut rest: Vec<&NameChange> = Vec::new();
        for group in gained.chunk_by(|a, b| a.parent == b.parent) {
            let mut item = Vec::new();
            for change in group {
                let name = change.name.as_bytes();
                if item.len() + REF_LEN + name.len() <= max {
                    push_ref(&mut item, change.index, name);
                } else {
                    rest.push(change);
                }
            }
            self.put(kind::INODE_REF, group[0].parent, item);
            self.entry.needs.push(Need::Directory(group[0].parent));
        }
        let hash = |change: &NameChange| extref_hash(change.parent, change.name.as_bytes());
        rest.sort_by_key(|change| hash(change));
        for group in rest.chunk_by(|a, b| hash(a) == hash(b)) {
            let mut item = Vec::new();
            for change in group {
                let name = change.name.as_bytes();
                if item.len() + EXTREF_LEN + name.len() > max {
                    return Ok(Some(Reason::Large));
                }
                push_extref(&mut item, change.parent, change.index, name);
            }
            self.put(kind::INODE_EXTREF, hash(group[0]), item);
        }
        Ok(None)
    }

    /// All xattrs, unless an item of the last commit has become longer: Linux (6.18) makes it longer in its leaf when it replays the log, and dies
    /// where that is full.
    fn xattrs(&mut self, state: &mut State) -> Result<Option<Reason>> {
        let stored = match &state.stored {
            _ if !state.on_disk => Arc::default(),
            Stored::Nothing => Arc::default(),
            Stored::These(stored) => stored.clone(),
            Stored::Unknown => {
                let stored = Arc::new(self.stored_xattrs()?);
                state.stored = Stored::These(stored.clone());
                stored
            }
        };
        let mut all: BTreeMap<&[u8], Option<&[u8]>> = BTreeMap::new();
        all.extend(stored.iter().map(|(name, value)| (name.as_bytes(), Some(&**value))));
        if let Some(live) = &state.live.xattrs {
            all.extend(live.iter().map(|(name, value)| (name.as_bytes(), value)));
        }
        let hashed = |(name, value): (_, Option<_>)| Some((Hashed::of(name).hash, name, value?));
        let mut there: Vec<(u32, &[u8], &[u8])> = all.into_iter().filter_map(hashed).collect();
        there.sort_by_key(|&(hash, ..)| hash);
        let mut stored_len: BTreeMap<u32, usize> = BTreeMap::new();
        for (name, value) in stored.iter() {
            *stored_len.entry(Hashed::of(name.as_bytes()).hash).or_default() +=
                weight(name.as_bytes(), value.len());
        }
        for group in there.chunk_by(|a, b| a.0 == b.0) {
            let mut item = Vec::new();
            for (_, name, value) in group {
                let (none, transid) = (Key::default(), self.op.transid);
                push_dir_item(&mut item, none, transid, file_type::XATTR, name, value);
            }
            if stored_len.get(&group[0].0).is_some_and(|len| *len < item.len()) {
                return Ok(Some(Reason::Xattrs));
            }
            self.put(kind::XATTR_ITEM, group[0].0.into(), item);
        }
        Ok(None)
    }

    /// Those that the last commit has. This is the only search, and is made once for an inode that has some.
    fn stored_xattrs(&self) -> Result<StoredXattrs> {
        let view = self.tree.view(self.op.core);
        stats::add(&self.op.core.counters.log_searches, 1);
        let key = |hash| Key::new(self.ino, kind::XATTR_ITEM, hash);
        let (mut cursor, mut all) = (view.range(key(0), key(u64::MAX)), StoredXattrs::new());
        while let Some(item) = cursor.next()? {
            all.extend(dir_entries(item.data()).map(|it| (Name::new(it.name), it.data.into())));
        }
        Ok(all)
    }

    /// What has come to a directory and what has gone.
    fn entries(&mut self, state: &State) -> Result<Option<Reason>> {
        let Some(entries) = &state.live.entries else { return Ok(None) };
        if entries.changes() > ITEMS_MAX {
            return Ok(Some(Reason::Large));
        }
        if let Some(reason) = self.removed(state)? {
            return Ok(Some(reason));
        }
        for added in entries.added() {
            let Location::Inode(ino) = added.location else { return Ok(Some(Reason::Subvolume)) };
            let (at, name) = (added.location.key(), added.name.as_bytes());
            let mut item = Vec::new();
            push_dir_item(&mut item, at, self.op.transid, added.file_type, name, &[]);
            self.put(kind::DIR_INDEX, added.index, item);
            self.entry.needs.push(Need::Entry(ino));
        }
        Ok(None)
    }

    /// What a directory has lost, without what it has got. A name that it has given to another inode at once would lead nowhere.
    fn lost(&mut self, state: &State) -> Result<Option<Reason>> {
        if state.handed_over { Ok(Some(Reason::Taken)) } else { self.removed(state) }
    }

    /// The indexes of entries of the last commit that have gone from a directory, in ranges.
    fn removed(&mut self, state: &State) -> Result<Option<Reason>> {
        let Some(entries) = &state.live.entries else { return Ok(None) };
        if entries.changes() > ITEMS_MAX {
            return Ok(Some(Reason::Large));
        }
        // Who has only moved would be deleted by replay.
        let strays = self.tree.strays.lock();
        let mut strays = strays.of(self.ino, entries.removed()).into_iter();
        if let Some(reason) = strays.find_map(|stray| self.need_stray(Some(stray))) {
            return Ok(Some(reason));
        }
        let mut removed = entries.removed().peekable();
        while let Some(first) = removed.next() {
            let mut last = first;
            while let Some(next) = removed.next_if(|next| last.checked_add(1) == Some(*next)) {
                last = next;
            }
            self.put(kind::DIR_LOG_INDEX, first, last.to_le_bytes().to_vec());
        }
        Ok(None)
    }

    /// One that has moved stays only where the log has its new names.
    fn need_stray(&mut self, stray: Option<Stray>) -> Option<Reason> {
        match stray? {
            Stray::File(ino) => self.entry.needs.push(Need::Stray(ino)),
            Stray::Other => return Some(Reason::Taken),
        }
        None
    }

    /// Whether the last commit has space behind the end of the file, which replay would cut off. That there is none is looked up once.
    fn has_space_behind(&self, state: &mut State) -> Result<bool> {
        stats::add(&self.op.core.counters.log_searches, 1);
        let view = self.tree.view(self.op.core);
        let (any, of_tree) = {
            let (file, layers) = state.file_layers(self.ino, view);
            file.space_behind(layers)?
        };
        state.ends_plainly = !any;
        Ok(of_tree)
    }

    /// The same behind the end that the file had in the last commit: where replay cuts it if the log says that it exists, and no more.
    fn had_space_behind(&self, state: &State) -> Result<bool> {
        stats::add(&self.op.core.counters.log_searches, 2);
        let view = self.tree.view(self.op.core);
        let Some(item) = view.get(&Key::new(self.ino, kind::INODE_ITEM, 0))? else {
            return Ok(true);
        };
        let size = InodeItem::of(item.data()).map_or(0, |item| item.size.get());
        let layers = Layers { size, ..state.layers(self.ino, view) };
        Ok(FileChanges::default().space_behind(layers)?.1)
    }

    /// The data of a file, as far as they have changed.
    fn data(&mut self, state: &mut State) -> Result<Option<Reason>> {
        if state.on_disk && !state.ends_plainly && self.has_space_behind(state)? {
            return Ok(Some(Reason::Prealloc));
        }
        if state.live.file.as_ref().is_none_or(|file| file.is_empty()) {
            self.clear(kind::EXTENT_DATA, u8::MAX);
            return Ok(None);
        }
        let again = state.logged_whole.is_some();
        let core = self.op.core;
        let view: View<'_> = self.tree.view(core);
        let (file, layers) = state.file_layers(self.ino, view);
        let logged = match file.log(core, layers, self.op.transid, (again, ITEMS_MAX))? {
            LoggedData::Items(logged) => logged,
            LoggedData::Cloned => return Ok(Some(Reason::Clone)),
            LoggedData::Large => return Ok(Some(Reason::Large)),
        };
        self.entry.sums = logged.sums;
        let key = |offset| Key::new(self.ino, kind::EXTENT_DATA, offset);
        let cleared = logged.places.iter().map(|place| (key(place.start), key(place.end - 1)));
        self.entry.cleared.extend(cleared);
        for (offset, data) in logged.items {
            self.put(kind::EXTENT_DATA, offset, data);
        }
        Ok(None)
    }
}
