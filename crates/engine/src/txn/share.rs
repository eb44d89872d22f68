//! A part of the memory that many take from, each before it grows, and that comes back from each when it goes.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// So many bytes of memory, and how many of them are taken.
#[derive(Debug)]
pub struct Share {
    used: AtomicU64,
    max: u64,
}

impl Share {
    /// Nothing is taken yet of `max` bytes.
    pub fn new(max: u64) -> Arc<Share> {
        Arc::new(Share { used: AtomicU64::new(0), max })
    }

    /// Bytes that are taken.
    pub fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    /// Takes some bytes; `None` where they are not left.
    pub fn take(self: &Arc<Share>, bytes: u64) -> Option<Taken> {
        let more = |used: u64| used.checked_add(bytes).filter(|used| *used <= self.max);
        let taken = self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
        taken.is_ok().then(|| Taken { share: self.clone(), bytes })
    }
}

/// Bytes that were taken, until this is dropped.
#[derive(Debug)]
pub struct Taken {
    share: Arc<Share>,
    bytes: u64,
}

impl Taken {
    /// What they were taken from.
    pub fn share(&self) -> &Arc<Share> {
        &self.share
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        self.share.used.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_is_taken_than_there_is() {
        let share = Share::new(100);
        let first = share.take(60).unwrap();
        assert!(share.take(41).is_none() && share.take(u64::MAX).is_none());
        let second = first.share().take(40).unwrap();
        assert_eq!(share.used(), 100);
        drop(first);
        assert_eq!(share.used(), 40);
        drop(second);
        assert!(share.take(100).is_some());
    }
}
