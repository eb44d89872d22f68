//! What waits in memory for a commit, about: the changes of the running transaction, and those of the one being committed,
//! which go only when it is durable.
//!
//! It shares its memory with the cache of tree blocks, which gets smaller while much waits, and with what is used elsewhere. A
//! commit is asked for when the running transaction has half of what may wait, so that the next one can run beside it; an
//! operation that finds no room left makes a commit, and thereby waits for the one under way.
//!
//! Each processor counts for itself, and tells all now and then: a count that every operation of all adds to would be in the way of many.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::Share;
use crate::stripes::Striped;

/// Bytes that a change takes from the operation to the end of its commit: an inode with its layers, the list it is on, the
/// records of the commit.
pub const CHANGE_BYTES: u64 = 1536;

/// The same of an inode that is made with values and a short name, whose layer is not moved: 400 for itself, 70 where it is found and listed, 64
/// for its entry and 32 for that one's hash, three times as many of these two while their tables grow, and what the leaves of a commit under way take of it.
/// The first entry that a transaction adds to a directory counts as a [`CHANGE_BYTES`] more. What is changed here and there is in a leaf of its own, of
/// which a commit has records.
pub const SMALL_CHANGE_BYTES: u64 = 1024;

/// Bytes that an extent which a file gains or loses takes so long: the piece in the file's layer, the record of its reference,
/// what becomes of its checksums and of free space.
pub const EXTENT_BYTES: u64 = 256;

/// How much may wait, in bytes.
#[derive(Clone, Copy, Debug)]
pub struct WaitingMax {
    /// File data of one transaction.
    pub data: u64,
    /// Everything, of both transactions.
    pub all: u64,
}

/// How urgent a commit is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Urgency {
    /// There is room.
    None,
    /// There is, and data that could be flushed.
    Flush,
    /// One should be made soon.
    Soon,
    /// No more may wait before one is made.
    Now,
}

#[derive(Debug, Default)]
struct Amount {
    data: AtomicU64,
    others: AtomicU64,
}

impl Amount {
    fn data(&self) -> u64 {
        self.data.load(Ordering::Relaxed)
    }

    fn all(&self) -> u64 {
        self.data().saturating_add(self.others.load(Ordering::Relaxed))
    }

    fn set(&self, data: u64, others: u64) {
        self.data.store(data, Ordering::Relaxed);
        self.others.store(others, Ordering::Relaxed);
    }
}

/// Of so many parts of what may wait, each processor keeps less than one for itself before it says so to all: those of all together are a small one.
const UNTOLD_PARTS: u64 = 16;
/// A processor tells no less than all that so many operations leave; more hardly saves anything.
const TOLD_AFTER: u64 = 64 * CHANGE_BYTES;

/// The names that directories know may take this part of what may wait: at 512 MiB, those of some millions of files.
const NAME_HASHES_SHARE: u64 = 9;

/// Data after which flushing is asked for: enough to be worth waking a thread for, and little of what a commit would have to write.
const FLUSHED_AFTER: u64 = 1 << 20;

/// What waits.
#[derive(Debug)]
pub struct Waiting {
    live: Amount,
    /// What operations of the running transaction have left and nobody was told of.
    untold: Striped<Amount>,
    /// Something waits in the running transaction.
    begun: AtomicBool,
    frozen: Amount,
    /// How much may.
    pub max: WaitingMax,
    elsewhere: AtomicU64,
    /// Memory for the hashes of names that directories know.
    pub name_hashes: Arc<Share>,
    /// Data of the running transaction that came since flushing was asked for.
    fresh: AtomicU64,
}

impl Waiting {
    /// Nothing yet.
    pub fn new(max: WaitingMax) -> Waiting {
        let (live, frozen) = (Amount::default(), Amount::default());
        let (untold, begun) = (Striped::default(), AtomicBool::new(false));
        let (elsewhere, fresh) = Default::default();
        let name_hashes = Share::new(max.all / NAME_HASHES_SHARE);
        Waiting { live, untold, begun, frozen, max, elsewhere, name_hashes, fresh }
    }

    /// Bytes of the memory are used for something else.
    pub fn use_elsewhere(&self, bytes: u64) {
        self.elsewhere.store(bytes, Ordering::Relaxed);
    }

    /// How many they are, and what directories know.
    pub fn elsewhere(&self) -> u64 {
        self.elsewhere.load(Ordering::Relaxed).saturating_add(self.name_hashes.used())
    }

    /// What may wait now: less where more is used elsewhere than the cache can give way to, but a quarter of it always.
    fn all_max(&self) -> u64 {
        let all = self.max.all;
        all.saturating_sub(self.elsewhere().saturating_sub(all / 6)).max(all / 4)
    }

    /// The running transaction has something from now on; whether it had nothing before.
    pub fn begin(&self) -> bool {
        !self.begun.load(Ordering::Relaxed) && !self.begun.swap(true, Ordering::Relaxed)
    }

    /// Bytes that one processor has when it tells all.
    fn told_after(&self) -> u64 {
        let part = self.max.all.min(self.max.data) / UNTOLD_PARTS / self.untold.count();
        if part < CHANGE_BYTES { 0 } else { part.min(TOLD_AFTER) }
    }

    /// An operation of the running transaction leaves `data` bytes of file data and `others` bytes besides.
    pub fn add(&self, data: u64, others: u64) -> Urgency {
        let mine = self.untold.mine();
        let untold = mine.data.fetch_add(data, Ordering::Relaxed) + data;
        let untold_others = mine.others.fetch_add(others, Ordering::Relaxed) + others;
        if untold + untold_others < self.told_after() {
            return Urgency::None;
        }
        let told = mine.data.swap(0, Ordering::Relaxed);
        self.live.data.fetch_add(told, Ordering::Relaxed);
        let fresh = self.fresh.fetch_add(told, Ordering::Relaxed) + told;
        self.live.others.fetch_add(mine.others.swap(0, Ordering::Relaxed), Ordering::Relaxed);
        let (data, all) = (self.live.data(), self.live.all());
        let both = (data.saturating_add(self.frozen.data()), self.bytes());
        let all_max = self.all_max();
        if both.0 >= self.max.data.saturating_mul(2) || both.1 >= all_max {
            Urgency::Now
        } else if data >= self.max.data || all >= all_max / 2 {
            Urgency::Soon
        } else if fresh >= FLUSHED_AFTER {
            self.fresh.store(0, Ordering::Relaxed);
            Urgency::Flush
        } else {
            Urgency::None
        }
    }

    /// So many bytes of data of the running transaction are on the disk.
    pub fn flushed(&self, bytes: u64) {
        let less = |data: u64| Some(data.saturating_sub(bytes));
        let _always = self.live.data.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
    }

    /// What the running transaction has, in bytes, about; `None` when it has nothing.
    pub fn live_bytes(&self) -> Option<u64> {
        let untold = self.untold.all().map(Amount::all).fold(0, u64::saturating_add);
        self.begun.load(Ordering::Relaxed).then(|| untold.saturating_add(self.live.all()))
    }

    /// All that waits, in bytes.
    pub fn bytes(&self) -> u64 {
        self.live.all().saturating_add(self.frozen.all())
    }

    /// What is being committed has, in bytes, about.
    pub(super) fn frozen_bytes(&self) -> u64 {
        self.frozen.all()
    }

    /// A commit has found nothing to do.
    pub(super) fn nothing(&self) {
        self.forget_live();
    }

    /// What is running has nothing.
    fn forget_live(&self) {
        self.untold.all().for_each(|untold| untold.set(0, 0));
        self.live.set(0, 0);
        self.fresh.store(0, Ordering::Relaxed);
        self.begun.store(false, Ordering::Relaxed);
    }

    /// A commit begins, and no operation runs.
    pub(super) fn freeze(&self) {
        let all = || self.untold.all().chain([&self.live]);
        let others = |amount: &Amount| amount.others.load(Ordering::Relaxed);
        self.frozen.set(all().map(Amount::data).sum(), all().map(others).sum());
        self.forget_live();
    }

    /// The commit is durable.
    pub(super) fn settled(&self) {
        self.frozen.set(0, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_being_committed_counts_until_it_is_durable() {
        let waiting = Waiting::new(WaitingMax { data: 100, all: 1000 });
        assert_eq!(waiting.add(99, 1), Urgency::None);
        assert_eq!(waiting.add(1, 1), Urgency::Soon);
        waiting.freeze();
        assert_eq!((waiting.bytes(), waiting.add(0, 400)), (102, Urgency::None));
        assert_eq!(waiting.add(0, 150), Urgency::Soon);
        assert_eq!(waiting.add(100, 0), Urgency::Now);
        waiting.settled();
        assert_eq!((waiting.bytes(), waiting.add(0, 0)), (650, Urgency::Soon));
    }

    #[test]
    fn flushing_is_asked_for_after_so_many_data() {
        let waiting = Waiting::new(WaitingMax { data: 64 << 20, all: 1 << 30 });
        let urgency = |data| (0..1024).map(|_| waiting.add(data / 1024, 0)).max().unwrap();
        assert_eq!(
            (urgency(FLUSHED_AFTER / 2), urgency(FLUSHED_AFTER)),
            (Urgency::None, Urgency::Flush)
        );
        assert_eq!((urgency(FLUSHED_AFTER / 4), urgency(0)), (Urgency::None, Urgency::None));
        waiting.flushed(u64::MAX);
        assert_eq!(urgency(63 << 20), Urgency::Flush);
        assert_eq!(urgency(2 << 20), Urgency::Soon);
        waiting.freeze();
        waiting.settled();
        assert_eq!(urgency(FLUSHED_AFTER / 2), Urgency::None);
    }

    #[test]
    fn less_may_wait_while_memory_is_used_elsewhere() {
        let waiting = Waiting::new(WaitingMax { data: 600, all: 600 });
        waiting.use_elsewhere(100);
        assert_eq!((waiting.add(0, 299), waiting.add(0, 1)), (Urgency::None, Urgency::Soon));
        waiting.use_elsewhere(400);
        assert_eq!(waiting.add(0, 0), Urgency::Now);
        waiting.freeze();
        waiting.settled();
        waiting.use_elsewhere(u64::MAX);
        assert_eq!((waiting.add(0, 74), waiting.add(0, 1)), (Urgency::None, Urgency::Soon));
    }
}
