//! Groups that are cold: where their free space lies leaves memory, and is read again when it is wanted.
//!
//! Where free space lies takes up to 44 KiB for each group of a gigabyte (`space/bits.rs`), and there may be ten thousand groups.
//! All groups together keep as much of it as they were given; beyond that it is the group changed longest ago of which it
//! leaves. What remains are the sums that everything but taking and letting go is decided by: bytes, runs, tree blocks, the
//! longest run. So a filesystem decides the same whether or not anything has left, and comes to the same bytes.
//!
//! **What may leave.** A group of which the free space tree of the last commit says exactly what is so: nothing in it is pinned,
//! thawing or promised, no place of change is unwritten, and the commit under way, if any, has neither changed nor written it. Such
//! a group is as the last commit says, and as the next one will say, until somebody takes from it or lets go in it; and who does
//! that has it read first.
//!
//! **Which version is read.** The one that is the last at the moment of reading. It is right even when a commit is published
//! meanwhile, as neither has changed the group: what a commit changes does not leave before that commit is published. Who reads
//! is an operation, which holds the gate, or the commit itself, which no other follows meanwhile. So no block of that version is
//! overwritten: what commit N lets go of is free after freeze N + 1 only.
//!
//! **Reading** is done without a lock. Who has read looks whether the group has come and left again since: then somebody may have
//! changed it in between, and it is read again. A group that was just read is taken from under the same lock, so none can leave
//! before it was of use to anybody.
//!
//! **What cannot be read**, or says anything else than what has left, is out of use: the group counts as full, with a warning. A
//! commit that lets go of something in it fails, as it would where it has to write to the same leaf of the free space tree. What
//! the disk has is not touched by either. A crash finds nothing of all this: it is about memory only.

use std::fmt;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use buttress_ondisk::objectid::FREE_SPACE_TREE;
use parking_lot::{Mutex, MutexGuard};

use super::group::Group;
use super::reserve::Credit;
use super::set::{Counters, Set};
use super::{CLASSES, Class, Items, Slot, Space, free_space_tree};
use crate::error::{Error, Result};

/// One of so many parts of what groups may keep is made free when they keep more: not one group leaves for each that comes.
const AT_ONCE: u64 = 8;

/// The free space tree of the last commit.
pub(crate) type Committed = Box<dyn Items + Send + Sync>;

/// What is known of groups whose free space is not in memory.
#[derive(Default)]
pub(crate) struct Cold {
    tree: OnceLock<Committed>,
    /// Bytes of memory that the free space of all groups may take.
    share: u64,
    /// Of groups that are out of use, or were not found as they should be: what nobody has been told of.
    warnings: Mutex<Vec<String>>,
    /// Why the first group of each class came out of use.
    lost: [OnceLock<Error>; CLASSES],
    /// How often the free space of a group was read again.
    reads: AtomicU64,
}

impl fmt::Debug for Cold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cold").field("share", &self.share).finish_non_exhaustive()
    }
}

impl Cold {
    /// Groups keep so many bytes at most; this is to be told.
    pub fn new(share: u64, warnings: Vec<String>) -> Cold {
        Cold { share, warnings: Mutex::new(warnings), ..Cold::default() }
    }

    /// The group with what the tree says of it; an error where that is not what has left.
    pub fn read(&self, away: &Group) -> Result<Group> {
        let fault = |what| Error::inconsistent(FREE_SPACE_TREE, what, away.range.start);
        let tree = self.tree.get().ok_or_else(|| fault("there is no tree to read"))?;
        let mut group = away.clone();
        group.forget_free();
        let told = free_space_tree::load_one(tree.as_ref(), &mut group, away.used)?;
        if !told || !group.is_what_left(away) {
            return Err(fault("free space is not what it was"));
        }
        self.reads.fetch_add(1, Relaxed);
        Ok(group)
    }

    fn warn(&self, away: &Group, error: &Error) {
        let start = away.range.start;
        self.warnings.lock().push(format!("nothing is written to block group {start}: {error}"));
        let lost = self.lost.get(Class::of(away.flags).slot());
        let _the_first_says_enough = lost.map(|lost| lost.set(error.clone()));
    }

    /// Why a commit has no room for blocks of a class: a group that came out of use would have had it.
    pub fn no_space(&self, class: Class) -> Error {
        let lost = self.lost.get(class.slot()).and_then(OnceLock::get);
        lost.cloned().unwrap_or(Error::NoSpace)
    }
}

/// What was taken, if there is such; or who has to come back first.
pub(crate) type Take<R> = std::result::Result<Option<R>, Away>;

/// A group of which free space is wanted, and not in memory: as it was then.
#[derive(Debug)]
pub(crate) struct Away(pub Box<Group>);

impl Space {
    /// From now on, what has left is read from there.
    pub(crate) fn set_committed(&self, tree: Committed) {
        let _ = self.cold.tree.set(tree);
    }

    /// The last commit is published: what it has written may leave.
    pub fn published(&self) {
        for class in Class::ALL {
            let slot = &self.slots[class.slot()];
            let mut set = slot.set.lock();
            set.published();
            self.make_room(&slot.counters, &mut set, None);
        }
    }

    /// Bytes of memory that free space takes.
    pub fn memory(&self) -> u64 {
        self.slots.iter().map(|slot| slot.counters.read().memory).sum()
    }

    /// Groups that have gone out of use or were found to be wrong since this was asked last, in words.
    pub fn take_warnings(&self) -> Vec<String> {
        std::mem::take(&mut self.cold.warnings.lock())
    }

    /// How often the free space of a group was read again.
    #[cfg(test)]
    pub fn reads(&self) -> u64 {
        self.cold.reads.load(Relaxed)
    }

    /// Has groups of a class leave when all groups together keep too much. Other classes see to theirs.
    fn make_room(&self, counters: &Counters, set: &mut Set, but: Option<u64>) {
        let share = self.cold.share;
        let excess = self.memory().saturating_sub(share);
        if excess > 0 {
            set.let_leave(counters, excess.saturating_add(share / AT_ONCE), but);
        }
    }

    /// Takes something from the groups of a class. Those that are wanted for it, and away, are read.
    pub(super) fn take<R>(
        &self,
        slot: &Slot,
        thaw: bool,
        take: impl Fn(&mut Set, &Counters) -> Take<R>,
    ) -> Option<R> {
        let mut set = slot.set.lock();
        if thaw {
            set.thaw_one(&slot.counters);
        }
        loop {
            let Away(away) = match take(&mut set, &slot.counters) {
                Ok(found) => return found,
                Err(away) => away,
            };
            if let Err(error) = self.bring_back(slot, &mut set, &away)
                && set.put_out_of_use(&slot.counters, &away)
            {
                self.cold.warn(&away, &error);
                // There is less room than it was found.
                MutexGuard::unlocked(&mut set, || self.pool.lock().credit = Credit::default());
            }
        }
    }

    /// The free space of the group that starts there is in memory, as the commit is going to write it. It is not expected to be
    /// elsewhere: what is to be written does not leave.
    pub(crate) fn have(&self, start: u64) -> Result<()> {
        match self.index.find(start) {
            Some((start, class)) => self.lock_with(self.slot(class), start).map(drop),
            None => Ok(()),
        }
    }

    /// The set of a class in which the group that starts there has its free space in memory.
    pub(super) fn lock_with<'s>(&self, slot: &'s Slot, start: u64) -> Result<MutexGuard<'s, Set>> {
        let mut set = slot.set.lock();
        while let Err(Away(away)) = set.present(start) {
            self.bring_back(slot, &mut set, &away)?;
        }
        Ok(set)
    }

    /// Reads a group's free space, without the lock, and puts it into its place. Another may have done so meanwhile.
    fn bring_back(&self, slot: &Slot, set: &mut MutexGuard<'_, Set>, away: &Group) -> Result<()> {
        let group = MutexGuard::unlocked(set, || self.cold.read(away))?;
        set.come_back(&slot.counters, away, group);
        self.make_room(&slot.counters, set, Some(away.range.start));
        Ok(())
    }
}
