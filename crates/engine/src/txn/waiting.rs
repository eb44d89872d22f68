//! What waits in memory for a commit, about: the changes of the running transaction, and those of the one being committed,
//! which go only when it is durable.
//!
//! It shares its memory with the cache of tree blocks, which gets smaller while much waits. A commit is asked for when the
//! running transaction has half of what may wait, so that the next one can run beside it; an operation that finds no room
//! left makes a commit, and thereby waits for the one under way.

use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes that a change takes from the operation to the end of its commit: an inode with its layers, the list it is on, the
/// records of the commit.
pub const CHANGE_BYTES: u64 = 1536;

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

/// What waits.
#[derive(Debug)]
pub struct Waiting {
    live: Amount,
    frozen: Amount,
    /// How much may.
    pub max: WaitingMax,
}

impl Waiting {
    /// Nothing yet.
    pub fn new(max: WaitingMax) -> Waiting {
        Waiting { live: Amount::default(), frozen: Amount::default(), max }
    }

    /// An operation of the running transaction leaves `data` bytes of file data and `others` bytes besides.
    pub fn add(&self, data: u64, others: u64) -> Urgency {
        self.live.data.fetch_add(data, Ordering::Relaxed);
        self.live.others.fetch_add(others, Ordering::Relaxed);
        let (data, all) = (self.live.data(), self.live.all());
        let both = (data.saturating_add(self.frozen.data()), self.bytes());
        if both.0 >= self.max.data.saturating_mul(2) || both.1 >= self.max.all {
            Urgency::Now
        } else if data >= self.max.data || all >= self.max.all / 2 {
            Urgency::Soon
        } else {
            Urgency::None
        }
    }

    /// All that waits, in bytes.
    pub fn bytes(&self) -> u64 {
        self.live.all().saturating_add(self.frozen.all())
    }

    /// A commit has found nothing to do.
    pub(super) fn nothing(&self) {
        self.live.set(0, 0);
    }

    /// A commit begins, and no operation runs.
    pub(super) fn freeze(&self) {
        let live = &self.live;
        self.frozen.set(live.data(), live.others.load(Ordering::Relaxed));
        live.set(0, 0);
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
}
