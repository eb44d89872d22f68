//! What a tree log holds of an inode: taken from its layers, which are all that has changed since the last commit.
//!
//! No tree is searched: what the layers do not say has not changed, and replay leaves it as the last commit has it. Only two things have
//! to be said as a whole. Replay removes xattrs that the log does not have, so all of them are in it: those of an inode of the last
//! commit are looked up once, unless it is known to have none. And it cuts a file behind its logged size, or behind the one of the last
//! commit where the log only says that it exists, so files of the last commit with space reserved behind their end are not logged at all.
//!
//! A log that says too little, or what replay would misread, is worse than none. So everything that is not plainly one of the cases below
//! is refused with a [`Reason`], and the transaction is committed instead.

mod take;

use std::sync::Arc;

use buttress_ondisk::Key;

use self::take::{Taken, Taker, fingerprint, keeps_a_name};
use super::Inode;
use super::name::Name;
use super::tree::FileTree;
use crate::error::{Error, Result};
use crate::txn::Op;

/// Items of one inode that an fsync takes at most. A choice: with more of them a commit costs hardly more, and needs no replay.
const ITEMS_MAX: usize = 1024;

/// Name and value of an xattr.
pub type StoredXattr = (Name, Box<[u8]>);
/// Those of an inode.
pub type StoredXattrs = Vec<StoredXattr>;

/// Why an fsync is a commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reason {
    /// The options say so.
    Off,
    /// The last commit does not know the subvolume, or a subvolume was put into the directory.
    Subvolume,
    /// The last commit does not know a chunk.
    Chunk,
    /// An inode of the last commit goes, or has gained or lost names of which the log cannot tell.
    Names,
    /// A name that a directory of the last commit had, which is elsewhere now, or what was in it.
    Taken,
    /// Data that were cloned in this transaction.
    Clone,
    /// Space is reserved behind the end of a file of the last commit.
    Prealloc,
    /// An item of xattrs of the last commit has become longer.
    Xattrs,
    /// The log, or what it would hold of an inode, has become too large.
    Large,
    /// No room for its blocks.
    Room,
    /// A log could not be written.
    Failed,
}

impl Reason {
    /// All, in the order in which they are counted.
    pub const ALL: [Reason; 11] = [
        Reason::Off,
        Reason::Subvolume,
        Reason::Chunk,
        Reason::Names,
        Reason::Taken,
        Reason::Clone,
        Reason::Prealloc,
        Reason::Xattrs,
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
    /// That it exists, and the names that it has now.
    Named,
    /// The same, if it would be left without a name: the log gives to others, or takes away, one that it had in the last commit.
    Alive,
    /// Of a directory, the entries of the last commit that it has lost.
    Lost,
}

/// What has to be in the log beside an inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Need {
    /// A directory that has a name of it, if the transaction has made it.
    Directory(u64),
    /// What an entry of it leads to, under the names that it has now.
    Entry(u64),
    /// What had a name in the last commit that the log gives to it or takes away, and lives on.
    Stray(u64),
    /// A directory that had a name of it in the last commit, to which it must not come back.
    Lost(u64),
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
    /// What has to be in the log with it.
    pub needs: Vec<Need>,
    /// All of it is here that the log does not have.
    pub whole: bool,
}

impl Entry {
    /// Takes over the names that the inode has by now.
    pub fn rename(&mut self, again: Entry) {
        let Entry { cleared, gone, items, sums, needs, .. } = again;
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
        self.sums.extend(sums);
        self.needs.extend(needs);
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
    /// Writes what is buffered of a file that is going to be logged. Who waits for the log does so himself, beside the others: the turn to
    /// write a log is one thread's, and what it writes of files all others wait for.
    pub fn flush_for_log(&self, op: &Op<'_>, inode: &Inode) -> Result<()> {
        let mut state = inode.write();
        let is_wanted = state.transid == op.transid && state.attributes.nlink > 0;
        if !is_wanted || state.live.file.as_ref().is_none_or(|file| file.is_empty()) {
            return Ok(());
        }
        let (file, layers) = state.file_layers(inode.ino, self.view(op.core));
        file.flush_for_log(op.core, layers)
    }

    /// What is to be logged of an inode, as it is now. What is buffered of it is written. The operation belongs to the turn to write logs.
    pub fn log(&self, op: &Op<'_>, inode: &Arc<Inode>, extent: Extent) -> Result<Logged> {
        let mut state = inode.write();
        let state = &mut *state;
        if state.transid != op.transid || !state.dirty {
            return Ok(Logged::Nothing);
        }
        // The last transaction may be durable without having settled all of its inodes.
        state.settle();
        state.uncovers |= extent == Extent::Lost;
        let extent = if extent == Extent::Lost { Extent::Names } else { extent };
        if extent == Extent::Names {
            state.relog = false;
        }
        let is_logged = state.logged == op.transid;
        let is_owed = state.owed && state.attributes.nlink > 0 && extent != Extent::Names;
        let extent = match extent {
            _ if is_owed => Extent::Whole,
            Extent::Whole if is_logged && state.logged_whole == Some(state.attributes.sequence) => {
                return Ok(Logged::Nothing);
            }
            Extent::Exists if is_logged => return Ok(Logged::Nothing),
            // What it has lost is said beside it.
            Extent::Names if !is_logged && state.uncovers => Extent::Exists,
            // It has left the log since it was listed: names alone would lead to nothing.
            Extent::Names if !is_logged => return Ok(Logged::Nothing),
            // Nobody would miss one that goes, and another name is enough to live on.
            Extent::Named | Extent::Alive if state.attributes.nlink == 0 => {
                return Ok(Logged::Nothing);
            }
            Extent::Alive if keeps_a_name(state) => return Ok(Logged::Nothing),
            Extent::Named | Extent::Alive if !is_logged => Extent::Exists,
            _ => extent,
        };
        if self.is_tangled() {
            return Ok(Logged::Commit(Reason::Taken));
        }
        let mut taker = Taker { tree: self, op, ino: inode.ino, entry: Entry::default() };
        taker.entry.ino = inode.ino;
        let taken = taker.take(state, extent)?;
        // Nobody finds it, and so nobody misses it; but it may get a name.
        state.owed |= match taken {
            Taken::Gone => extent == Extent::Whole || state.logged_whole.is_some(),
            Taken::Nothing => extent == Extent::Whole,
            _ => false,
        };
        if let Taken::Gone = taken {
            // Should it get a name again, all of it is logged anew.
            (state.logged, state.logged_whole, state.names_in_log) = (0, None, false);
            state.gone = None;
        }
        if let Taken::Entry = taken {
            state.logged = op.transid;
            state.logged_names = fingerprint(state);
            state.uncovers = false;
            if extent == Extent::Whole {
                state.logged_whole = Some(state.attributes.sequence);
                state.owed = false;
                taker.entry.whole = true;
                if let Some(gone) = &mut state.gone {
                    gone.retracted.clear();
                }
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
        let created = {
            let state = inode.read();
            // The last transaction's layer may still be where it was made.
            state.transid == op.transid && state.live.created
        };
        Ok(Some((inode, created)))
    }

    /// Inodes that are in the log and have changed since.
    pub fn take_relogged(&self) -> Vec<Arc<Inode>> {
        std::mem::take(&mut *self.relog.lock())
    }
}
