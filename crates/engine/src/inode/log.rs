//! What a tree log holds of an inode: taken from its layers, which are all that has changed since the last commit.
//!
//! No tree is searched: what the layers do not say has not changed, and replay leaves it as the last commit has it. Only two things have
//! to be said as a whole. Replay removes xattrs that the log does not have, so all of them are in it: those of an inode of the last
//! commit are looked up once, unless it is known to have none. And it cuts a file behind its logged size, so files of the last commit
//! with space reserved behind their end are not logged at all.
//!
//! A log that says too little, or what replay would misread, is worse than none. So everything that is not plainly one of the cases below
//! is refused with a [`Reason`], and the transaction is committed instead.

use std::collections::BTreeMap;
use std::sync::Arc;

use buttress_codec::crc32c::extref_hash;
use buttress_ondisk::item::{FileExtentHead, InodeItem, file_type};
use buttress_ondisk::view::dir_entries;
use buttress_ondisk::{Key, kind};
use zerocopy::IntoBytes;

use super::emit::{push_extref, push_ref};
use super::file::Logged as LoggedData;
use super::name::{Hashed, Name};
use super::names::{EXTREF_LEN, NameChange, REF_LEN};
use super::state::State;
use super::tree::FileTree;
use super::{Inode, Location, attributes::mode, push_dir_item};
use crate::error::{Error, Result};
use crate::stats;
use crate::tree::View;
use crate::txn::Op;

/// Items of one inode that an fsync takes at most. A choice: with more of them a commit costs hardly more, and needs no replay.
const ITEMS_MAX: usize = 1024;

/// Names and values of the xattrs of an inode.
pub type StoredXattrs = Vec<(Name, Box<[u8]>)>;

/// Why an fsync is a commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reason {
    /// The options say so.
    Off,
    /// The last commit does not know the subvolume, or a subvolume was put into the directory.
    Subvolume,
    /// The last commit does not know a chunk.
    Chunk,
    /// An inode of the last commit has gained or lost a name, or goes.
    Names,
    /// A name that an inode of the last commit had, which lives on under another one.
    Taken,
    /// Data that were cloned in this transaction.
    Clone,
    /// Space is reserved behind the end of a file of the last commit.
    Prealloc,
    /// The log, or what it would hold of an inode, has become too large.
    Large,
    /// No room for its blocks.
    Room,
    /// A log could not be written.
    Failed,
}

impl Reason {
    /// All, in the order in which they are counted.
    pub const ALL: [Reason; 10] = [
        Reason::Off,
        Reason::Subvolume,
        Reason::Chunk,
        Reason::Names,
        Reason::Taken,
        Reason::Clone,
        Reason::Prealloc,
        Reason::Large,
        Reason::Room,
        Reason::Failed,
    ];
}

/// How much of an inode is logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    /// All that has changed.
    Whole,
    /// That it exists: its names and xattrs, and no data or entries.
    Exists,
    /// The names of one that is in the log and has changed since: nobody has asked for the rest.
    Names,
}

/// What is logged of an inode.
#[derive(Debug, Default)]
pub struct Entry {
    /// Its number.
    pub ino: u64,
    /// The log has nothing of it from the first key of each to its last, but for `items`. In order.
    pub cleared: Vec<(Key, Key)>,
    /// Nor has it these, which come behind.
    pub gone: Vec<Key>,
    /// In the order of their keys.
    pub items: Vec<(Key, Vec<u8>)>,
    /// Checksums of its data, by address.
    pub sums: Vec<(u64, Vec<u8>)>,
    /// Directories that have its names.
    pub parents: Vec<u64>,
    /// Inodes that its entries lead to.
    pub children: Vec<u64>,
}

impl Entry {
    /// Takes over the names that the inode has by now.
    pub fn rename(&mut self, again: Entry) {
        let Entry { cleared, gone, items, parents, .. } = again;
        let within = |ranges: &[(Key, Key)], key: &Key| {
            ranges.iter().any(|(from, to)| from <= key && key <= to)
        };
        self.items.retain(|(key, _)| !gone.contains(key) && !within(&cleared, key));
        self.items.extend(items);
        self.items.sort_by_key(|(key, _)| *key);
        self.gone.extend(gone);
        // A range is in another one or apart from it.
        self.cleared.retain(|(from, _)| !within(&cleared, from));
        let also = cleared.iter().filter(|(from, _)| !within(&self.cleared, from));
        let also: Vec<(Key, Key)> = also.copied().collect();
        self.cleared.extend(also);
        self.cleared.sort_unstable();
        self.gone.retain(|key| !within(&self.cleared, key));
        self.gone.sort_unstable();
        self.gone.dedup();
        self.parents.extend(parents);
    }
}

/// What came of it.
#[derive(Debug)]
pub enum Logged {
    /// This is to be logged.
    Entry(Entry),
    /// The log has it, or there is nothing that anybody could find.
    Nothing,
    /// The transaction has to be committed.
    Commit(Reason),
}

impl FileTree {
    /// What is to be logged of an inode, as it is now. What is buffered of it is written. The operation belongs to the turn to write logs.
    pub fn log(&self, op: &Op<'_>, inode: &Arc<Inode>, extent: Extent) -> Result<Logged> {
        let mut state = inode.write();
        let state = &mut *state;
        if state.transid != op.transid || !state.dirty {
            return Ok(Logged::Nothing);
        }
        if extent == Extent::Names {
            state.relog = false;
        }
        let is_logged = state.logged == op.transid;
        let extent = match extent {
            Extent::Whole if is_logged && state.logged_whole == Some(state.attributes.sequence) => {
                return Ok(Logged::Nothing);
            }
            Extent::Exists if is_logged => return Ok(Logged::Nothing),
            // What it has lost is said beside it.
            Extent::Names if !is_logged && state.uncovers => Extent::Exists,
            // It has left the log since it was listed: names alone would lead to nothing.
            Extent::Names if !is_logged => return Ok(Logged::Nothing),
            _ => extent,
        };
        if self.is_tangled() {
            return Ok(Logged::Commit(Reason::Taken));
        }
        let mut taker = Taker { tree: self, op, ino: inode.ino, entry: Entry::default() };
        taker.entry.ino = inode.ino;
        let taken = taker.take(state, extent)?;
        if let Taken::Gone = taken {
            // Should it get a name again, all of it is logged anew.
            (state.logged, state.logged_whole) = (0, None);
            state.retracted.clear();
        }
        if let Taken::Entry = taken {
            state.logged = op.transid;
            state.logged_names = fingerprint(state);
            state.uncovers = false;
            if extent == Extent::Whole {
                state.logged_whole = Some(state.attributes.sequence);
                state.retracted.clear();
            }
        }
        Ok(match taken {
            Taken::Entry | Taken::Gone => Logged::Entry(taker.entry),
            Taken::Nothing => Logged::Nothing,
            Taken::Commit(reason) => Logged::Commit(reason),
        })
    }

    /// An inode of which others say that it is there, and whether the running transaction has made it; `None` when it has gone meanwhile.
    pub fn named(&self, op: &Op<'_>, ino: u64) -> Result<Option<(Arc<Inode>, bool)>> {
        let inode = match self.get(op, ino) {
            Ok(inode) => inode,
            Err(Error::User(_)) => return Ok(None),
            Err(error) => return Err(error),
        };
        let created = inode.read().live.created;
        Ok(Some((inode, created)))
    }

    /// Inodes that are in the log and have changed since.
    pub fn take_relogged(&self) -> Vec<Arc<Inode>> {
        std::mem::take(&mut *self.relog.lock())
    }
}

fn is_file(state: &State) -> bool {
    state.attributes.mode & mode::TYPE_MASK == mode::REGULAR
}

/// Changes whenever the names of an inode do: an index is given to one name only.
fn fingerprint(state: &State) -> u64 {
    let names = state.live.names.as_slice().iter();
    names.fold(state.attributes.nlink.into(), |sum: u64, change| {
        let words = [change.parent, change.index, change.gained.into()];
        words
            .into_iter()
            .fold(sum, |sum, word| (sum.rotate_left(23) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15))
    })
}

enum Taken {
    Entry,
    /// The log has nothing of it any more.
    Gone,
    Nothing,
    Commit(Reason),
}

struct Taker<'t, 'o> {
    tree: &'t FileTree,
    op: &'t Op<'o>,
    ino: u64,
    entry: Entry,
}

impl Taker<'_, '_> {
    fn take(&mut self, state: &mut State, extent: Extent) -> Result<Taken> {
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
            (_, Extent::Names) => return self.names_again(state),
            (false, _) if goes || renamed => return Ok(Taken::Commit(Reason::Names)),
            _ => {}
        }
        // What it has of data comes after all else.
        self.clear(0, kind::EXTENT_DATA - 1);
        let item = self.item(state, extent);
        self.put(kind::INODE_ITEM, 0, item.as_bytes().to_vec());
        if created && let Some(reason) = self.names(state)? {
            return Ok(Taken::Commit(reason));
        }
        self.xattrs(state)?;
        let entries = match extent {
            Extent::Whole => self.entries(state)?,
            Extent::Exists if state.uncovers => self.removed(state)?,
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
            self.clear(kind::EXTENT_DATA, u8::MAX);
        } else if let Some(reason) = self.data(state)? {
            return Ok(Taken::Commit(reason));
        }
        let large = self.entry.items.len() > ITEMS_MAX;
        Ok(if large { Taken::Commit(Reason::Large) } else { Taken::Entry })
    }

    /// The names of one that is in the log. An inode of the last commit is found by the names that it has there, with what the log has
    /// of it. Entries that have gone must not be in the log: what they led to is elsewhere now.
    fn names_again(&mut self, state: &mut State) -> Result<Taken> {
        let retracted = std::mem::take(&mut state.retracted);
        if retracted.len() > ITEMS_MAX {
            return Ok(Taken::Commit(Reason::Large));
        }
        let mut gone: Vec<Key> =
            retracted.into_iter().map(|index| Key::new(self.ino, kind::DIR_INDEX, index)).collect();
        gone.sort_unstable();
        self.entry.gone = gone;
        let renamed = state.live.created && state.logged_names != fingerprint(state);
        if renamed {
            self.clear(kind::INODE_REF, kind::INODE_EXTREF);
            if let Some(reason) = self.names(state)? {
                return Ok(Taken::Commit(reason));
            }
        }
        if state.uncovers {
            self.clear(kind::DIR_LOG_INDEX, kind::DIR_LOG_INDEX);
            if let Some(reason) = self.removed(state)? {
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

    /// The names of an inode that this transaction has made.
    fn names(&mut self, state: &State) -> Result<Option<Reason>> {
        let mut gained: Vec<&NameChange> =
            state.live.names.as_slice().iter().filter(|change| change.gained).collect();
        // Replay takes a name from whoever had it in the last commit. That is what has happened, unless he lives on under another name,
        // which the log does not have. And a path leads through directories where the last commit has them.
        let strays = self.tree.strays.lock();
        let is_stray = |change: &NameChange| strays.has_name(change.parent, change.name.as_bytes());
        let is_taken = gained.iter().any(|change| change.taken && is_stray(change));
        drop(strays);
        if is_taken || self.tree.has_moved_directories() {
            return Ok(Some(Reason::Taken));
        }
        gained.sort_by_key(|change| (change.parent, change.index));
        let max = super::item_len_max(self.op.core.blocks.nodesize());
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
            self.entry.parents.push(group[0].parent);
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

    /// All xattrs.
    fn xattrs(&mut self, state: &mut State) -> Result<()> {
        let stored = match &state.stored {
            _ if !state.on_disk => Arc::default(),
            Some(stored) => stored.clone(),
            None => {
                let stored = Arc::new(self.stored_xattrs()?);
                state.stored.insert(stored).clone()
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
        for group in there.chunk_by(|a, b| a.0 == b.0) {
            let mut item = Vec::new();
            for (_, name, value) in group {
                let (none, transid) = (Key::default(), self.op.transid);
                push_dir_item(&mut item, none, transid, file_type::XATTR, name, value);
            }
            self.put(kind::XATTR_ITEM, group[0].0.into(), item);
        }
        Ok(())
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
            self.entry.children.push(ino);
        }
        Ok(None)
    }

    /// The indexes of entries of the last commit that have gone from a directory, in ranges.
    fn removed(&mut self, state: &State) -> Result<Option<Reason>> {
        let Some(entries) = &state.live.entries else { return Ok(None) };
        if entries.changes() > ITEMS_MAX {
            return Ok(Some(Reason::Large));
        }
        // Who has only moved would be deleted by replay.
        let strays = self.tree.strays.lock();
        if entries.removed().any(|index| strays.has_index(self.ino, index)) {
            return Ok(Some(Reason::Taken));
        }
        drop(strays);
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
