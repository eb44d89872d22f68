//! The public interface: an open filesystem, its files by number and by path, its subvolumes.
//!
//! Nothing here knows how anything is stored. Each operation is the same few steps (`run`): join the running
//! transaction, reserve what its commit may need, let the layer below do it; and when space is short, let go of
//! everything, commit and try again. A thread of its own (`worker`) commits from time to time and drops deleted
//! subvolumes.
//!
//! Permissions are not checked here: front ends that have users do that.

pub mod acl;
mod balance;
#[cfg(test)]
mod beside;
mod convert;
mod costs;
mod data;
pub mod fiemap;
mod file;
mod info;
mod known;
mod leavings;
#[cfg(test)]
mod log_tests;
mod namespaces;
mod nodes;
mod open;
mod options;
mod own;
mod paths;
mod qgroups;
mod quotas;
mod reclaim;
mod relocate;
mod rename;
mod replayed;
mod resize;
mod resolve;
mod run;
mod salvage;
mod subvolumes;
#[cfg(test)]
mod tests;
mod trim;
mod types;
mod worker;

use std::fmt;
use std::sync::Arc;

use parking_lot::{Mutex, RwLock};

use crate::error::{Error, Result};
use crate::hash::Spread;
use crate::inode::{Flush, Inode, Reason};
use crate::log::{Log, Synced};
use crate::refs::owners::Known;
use crate::stats;
use crate::subvol::{Forest, Subvolume};
use crate::txn::{self, Core, Upkeep};

pub use balance::{Balance, BalanceFilter, BalanceStop, Balanced, Balancing, profile_of};
pub use costs::Counting;
pub use fiemap::{Fiemap, FileExtent, fiemap_flags};
pub use file::{File, OpenMode};
pub use info::{DeviceInfo, Info};
pub use namespaces::check_namespace;
pub use options::{Discard, Options};
pub use qgroups::NewLimits;
pub use relocate::{Emptied, Emptying};
pub use types::{Allocate, Attributes, Change, Entry, FileKind, New, Node, Owner, Times};

pub use crate::inode::file::{Mapping, Place, Seek, Stored, StoredIn};
pub use crate::inode::{Rename, SetXattr};
pub use crate::refs::owners::{Referrer, Referrers, Wanted as WantedReferrers};
pub use crate::space::{ClassUsage, GroupInfo, Usage};
pub use crate::subvol::SubvolumeInfo;

/// An open filesystem. Cheap to clone; the last clone that goes away commits and ends the background work.
#[derive(Clone)]
pub struct Filesystem {
    handle: Arc<Handle>,
}

/// What the clones share; its end is the filesystem's end.
struct Handle {
    inner: Arc<Inner>,
    worker: Mutex<Option<worker::Worker>>,
}

/// What the clones and the worker share.
struct Inner {
    core: Core,
    forest: Forest,
    options: Options,
    /// Where a log waits that is only read: who knows who shares what.
    replayed: Option<replayed::Replayed>,
    warnings: Vec<String>,
    wake: Arc<worker::Wake>,
    /// Who reaches which extents of the last commit, as far as it was asked.
    owners: Mutex<Known>,
    /// Whose turn it is to ask which files refer to data: what that takes is there once.
    resolving: Mutex<()>,
    /// Whose turn it is to count all that quota groups have.
    counting_quotas: Mutex<()>,
    /// Of whoever empties block groups.
    relocating: Mutex<()>,
    /// What has come of emptying groups that nobody has asked for.
    reclaiming: Mutex<reclaim::Reclaiming>,
    /// Of whoever balances or resizes.
    exclusive: Mutex<()>,
    /// Writes the log of the running transaction.
    log: Log,
    /// Subvolumes whose files without names, left by a crash, have been deleted; of others, whose turn it is to do so.
    cleaned: RwLock<Spread<u64, Option<Arc<Mutex<()>>>>>,
}

impl fmt::Debug for Filesystem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let generation = self.handle.inner.core.txn.committed();
        f.debug_struct("Filesystem").field("generation", &generation).finish_non_exhaustive()
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        // `close` reports errors; whoever just drops the filesystem is not interested.
        let _ = self.end();
    }
}

impl Handle {
    /// Ends the background work and commits.
    fn end(&self) -> Result<()> {
        if let Some(worker) = self.worker.lock().take() {
            worker.stop();
        }
        if self.inner.core.read_only {
            return Ok(());
        }
        // What fails here is tried again by who opens it next.
        let _tried = self.inner.drop_relocated_data();
        self.inner.commit()?;
        self.inner.repair_quotas_at_end();
        self.inner.discard_at_end();
        Ok(())
    }
}

impl Inner {
    /// Commits what has changed; answers the last durable transaction.
    fn commit(&self) -> Result<u64> {
        if self.core.read_only {
            return Ok(self.core.txn.committed());
        }
        txn::commit(&self.core, &self.forest, false, self.upkeep())
    }

    /// What commits do besides that somebody waits for: nothing, where a thread sees to it.
    fn upkeep(&self) -> Upkeep {
        if self.wake.is_attended() { Upkeep::None } else { Upkeep::Much }
    }

    /// Makes an inode durable: by the log if that can say what is needed, else by a commit.
    fn sync(&self, subvolume: Arc<Subvolume>, inode: Arc<Inode>) -> Result<()> {
        let transid = inode.changed_in();
        if transid <= self.core.txn.committed() {
            return self.core.check_writable();
        }
        if !self.options.tree_log {
            stats::add(&self.core.counters.log_refused[Reason::Off as usize], 1);
        } else if let Synced::Done = self.log.sync(&self.core, subvolume, inode, transid)? {
            return Ok(());
        }
        txn::commit_covering(&self.core, &self.forest, transid, self.upkeep())
    }

    /// The running transaction and how much it has, about; `None` when it has nothing.
    fn extent(&self) -> Option<(u64, u64)> {
        self.core.waiting.live_bytes().map(|bytes| (self.core.txn.running(), bytes))
    }

    /// Flushes files that have changed some time ago; what fails is the commit's to try again, and to tell.
    fn flush_older(&self, go_on: impl Fn() -> bool) {
        let _tried = self.forest.flush_delalloc(&self.core, Flush::Older, &go_on);
    }

    /// Commits whether or not anything has changed: what commits have let go of is free then. Answers the transaction.
    fn commit_for_space(&self, upkeep: Upkeep) -> Result<u64> {
        txn::commit_for_space(&self.core, &self.forest, upkeep)
    }
}

impl Filesystem {
    fn inner(&self) -> &Inner {
        &self.handle.inner
    }

    /// Makes everything durable that was done before, and answers the transaction that is durable now. Writes nothing
    /// when nothing has changed.
    pub fn commit(&self) -> Result<u64> {
        let inner = self.inner();
        inner.core.txn.note_asked();
        let transid = inner.commit()?;
        if inner.options.discard == Some(Discard::Sync) {
            inner.wake.wake();
        }
        Ok(transid)
    }

    /// Writes what files buffer to the disk (what Linux calls delalloc), and answers how many bytes that were. Nothing is durable by that, but the next
    /// commit has less to write. A background thread does so now and then. Files that others are just using wait for the commit, and those that fit into
    /// their items, that the log has, or that have no name.
    pub fn flush_delalloc(&self) -> Result<u64> {
        let inner = self.inner();
        inner.core.check_writable()?;
        inner.forest.flush_delalloc(&inner.core, Flush::All, &|| true)
    }

    /// Makes what was done to a file or directory before durable, and what it needs to be found: of a file its names, of a directory its
    /// entries. A commit that is under way and covers the last change is waited for; else a log is written, or another commit made where
    /// that cannot say what is needed. Writes nothing when the change is durable. What was done to others may not be: that is
    /// [`Filesystem::commit`]'s.
    pub fn sync(&self, node: Node) -> Result<()> {
        let inner = self.inner();
        if inner.core.read_only {
            return Ok(());
        }
        inner.core.txn.note_asked();
        stats::add(&inner.core.counters.fsyncs, 1);
        match inner.read(|op| inner.find(op, node)) {
            Ok((subvolume, inode)) => inner.sync(subvolume.shared(), inode),
            // It is gone, or never was one of its own: what it was may still be of use to somebody.
            Err(Error::User(_)) => inner.commit().map(drop),
            Err(error) => Err(error),
        }
    }

    /// Commits and ends the background work. Other clones can still be used; what they do is committed when the last one
    /// goes away.
    pub fn close(self) -> Result<()> {
        self.handle.end()
    }

    /// What is not as it should be: what was found when it was opened, and what has gone wrong since without an operation
    /// failing.
    pub fn warnings(&self) -> Vec<String> {
        [self.inner().warnings.clone(), self.core().warnings()].concat()
    }

    /// Has `listener` told of each warning from now on, by the thread that has met it. It must not call into the filesystem.
    pub fn on_warning(&self, listener: impl Fn(&str) + Send + Sync + 'static) {
        self.core().on_warning(listener);
    }

    /// Whether nothing can be changed: opened so, or because a commit failed.
    pub fn is_read_only(&self) -> bool {
        self.inner().core.check_writable().is_err()
    }
}
