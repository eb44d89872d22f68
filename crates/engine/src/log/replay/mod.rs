//! Replay: a subvolume becomes what its log says, as Linux would make it.
//!
//! A log is no list of operations. It has items of the inodes that were fsynced, and of others that these need; what an inode has
//! there, it is to have, and of a directory it says for which indexes it lists all entries. Replay goes over each log three
//! times, as Linux does, and the order matters where a log and a subvolume disagree about a name:
//!
//! 1. inodes ([`names`]): entries and xattrs that the log does not have go, inodes become what it says, files end where it says;
//! 2. entries of directories;
//! 3. the names that inodes know of themselves, xattrs, and data ([`data`]).
//!
//! Then links are counted by the names that there are; what has none is left as an orphan. All of it changes the layers of inodes in
//! memory, as one operation of the running transaction, and one commit makes it durable. Where nothing may be written, the layers stay as
//! they are and are what is shown.
//!
//! # Crash argument
//!
//! The commit is like any other: it ends with a superblock that names no log. Before that the old superblock counts, with its log, of which no
//! block was overwritten ([`Logs::claim`]), nor any data that it refers to, and the next open replays it again. So
//! that this is so, too, where the primary superblock is torn, its copies get to know of the log first (`Volume::write_superblocks`).
//!
//! # What is refused
//!
//! Where a log cannot be read, or contradicts itself or its subvolume in a way in which Linux would not mount either, nothing is
//! written. The same where it would put a directory below itself, or make a symbolic link without a target, of which Linux does not ask.

mod data;
mod names;

use std::collections::BTreeSet;
use std::sync::Arc;

use buttress_ondisk::item::InodeItem;
use buttress_ondisk::view::dir_entries;
use buttress_ondisk::{Key, kind, objectid};

use self::data::Extents;
use super::read::{self, Log, Logs};
use crate::error::{Errno, Error, Result};
use crate::inode::FileTree;
use crate::space::Need;
use crate::subvol::{Forest, Subvolume};
use crate::tree::View;
use crate::txn::{self, Core, Op, Upkeep};

/// Replays the logs that wait, if any do, and commits; of a filesystem that is only read, the result is in memory only. Whether there
/// were any. Where that is an [`Error::Log`], nothing was written.
pub fn replay(core: &Core, forest: &Forest) -> Result<bool> {
    let refused = |error: Error| Error::Log(Arc::new(error));
    let Some(logs) = make_layers(core, forest).map_err(refused)? else { return Ok(false) };
    if !core.read_only {
        txn::commit_for_space(core, forest, Upkeep::None)?;
        logs.give_back(core)?;
    }
    Ok(true)
}

/// What the logs say is in layers of inodes, and nothing of it on the disk.
fn make_layers<'c>(core: &'c Core, forest: &Forest) -> Result<Option<Logs<'c>>> {
    let Some(logs) = read::waiting(core)? else { return Ok(None) };
    let mut subvolumes = Vec::new();
    for log in &logs.logs {
        match forest.get(core, log.subvolume) {
            Ok(subvolume) => subvolumes.push((*log, subvolume)),
            // It was deleted after its log was written.
            Err(Error::User(Errno::NOENT)) => {}
            Err(error) => return Err(error),
        }
    }
    if !core.read_only {
        logs.claim(core)?;
    }
    replay_all(core, &logs.logs, &subvolumes)?;
    if core.read_only {
        subvolumes.iter().try_for_each(|(_, it)| it.tree.settle_unwritten(core))?;
    }
    Ok(Some(logs))
}

/// All of it, as one operation.
fn replay_all(
    core: &Core,
    logs: &[Log<'_>],
    subvolumes: &[(Log<'_>, Arc<Subvolume>)],
) -> Result<()> {
    let op = core.txn.join(core)?;
    let mut extents = Extents::new(logs);
    let mut all: Vec<Replay<'_>> = subvolumes
        .iter()
        .map(|(log, it)| Replay {
            op: &op,
            tree: &it.tree,
            log: log.view,
            linked: BTreeSet::new(),
            named: BTreeSet::new(),
        })
        .collect();
    for stage in [Stage::Inodes, Stage::Entries, Stage::Rest] {
        all.iter_mut().try_for_each(|replay| replay.stage(stage, &mut extents))?;
        op.step("a log is replayed in part");
    }
    all.iter_mut().try_for_each(Replay::count_links)?;
    all.iter().try_for_each(Replay::check_directories)
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Inodes,
    Entries,
    Rest,
}

/// Replaying the log of one subvolume.
struct Replay<'r> {
    op: &'r Op<'r>,
    tree: &'r FileTree,
    log: View<'r>,
    /// Inodes whose links are counted at the end.
    linked: BTreeSet<u64>,
    /// Directories to which a name was given.
    named: BTreeSet<u64>,
}

impl Replay<'_> {
    fn stage(&mut self, stage: Stage, extents: &mut Extents<'_>) -> Result<()> {
        let mut items = self.log.range(Key::MIN, Key::new(objectid::LAST_FREE, u8::MAX, u64::MAX));
        let mut ignored = None;
        while let Some(item) = items.next()? {
            let (key, data) = (item.key(), item.data());
            if key.kind == kind::INODE_ITEM {
                let inode = InodeItem::of(data);
                let inode = inode.ok_or_else(|| self.wrong("an inode item is too short", key))?;
                // Nobody could find it. Linux does not log such a file any more.
                ignored = (inode.nlink.get() == 0).then_some(key.objectid);
                if stage == Stage::Inodes && ignored.is_none() {
                    self.need(3, data.len(), 0)?;
                    self.inode(key.objectid, inode)?;
                }
                continue;
            }
            if ignored == Some(key.objectid) {
                continue;
            }
            match (stage, key.kind) {
                (Stage::Entries, kind::DIR_INDEX) => self.entry(&key, data)?,
                (Stage::Rest, kind::INODE_REF | kind::INODE_EXTREF) => {
                    self.references(&key, data)?;
                }
                (Stage::Rest, kind::XATTR_ITEM) => self.xattrs(&key, data)?,
                (Stage::Rest, kind::EXTENT_DATA) => self.extent(&key, data, extents)?,
                _ => {}
            }
        }
        Ok(())
    }

    fn xattrs(&mut self, key: &Key, data: &[u8]) -> Result<()> {
        self.need(1, data.len(), 0)?;
        let inode = self.must_have(key.objectid, *key)?;
        let mut xattrs = dir_entries(data);
        xattrs.try_for_each(|it| self.tree.replay_xattr(self.op, &inode, it.name, it.data))
    }

    /// Has room for the commit of what changes. There is nobody to be waited for.
    fn need(&self, leaves: u32, bytes: usize, refs: u32) -> Result<()> {
        if self.op.core.read_only {
            return Ok(());
        }
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        let need = Need { leaves, bytes, refs, deleting: true, ..Need::default() };
        self.op.core.space.reserve(need).map_err(|_| Error::NoSpace)
    }

    fn wrong(&self, what: &'static str, key: Key) -> Error {
        Error::inconsistent(objectid::TREE_LOG, what, format_args!("{key} of {}", self.tree.id))
    }
}
