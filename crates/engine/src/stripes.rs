//! What each of many threads does to something that all of them use, kept apart by threads.
//!
//! A processor that writes to a word takes the cache line from all others, and who counts a reader in and out writes: one lock that everybody shares, or one count of
//! references, lets some ten million operations through in a second, however many processors there are. So what every operation passes is there once for each processor
//! ([`Striped`]): a thread uses its own, and who changes something, which is rare, goes over all of them.

use crossbeam_utils::CachePadded;

use crate::threads;

/// Most that there are of a thing: the more, the more has to be gone over by who changes it.
const STRIPES_MAX: usize = 64;

/// A thing for each processor, about. A thread has the same one all the time; several may have the same.
#[derive(Debug)]
pub struct Striped<T> {
    stripes: Box<[CachePadded<T>]>,
}

impl<T: Default> Default for Striped<T> {
    fn default() -> Striped<T> {
        let stripes = (0..count()).map(|_| CachePadded::default()).collect();
        Striped { stripes }
    }
}

impl<T> Striped<T> {
    /// That of the calling thread.
    pub fn mine(&self) -> &T {
        // There is at least one, and their number is a power of two.
        &self.stripes[number() & (self.stripes.len() - 1)]
    }

    /// How many there are.
    pub fn count(&self) -> u64 {
        self.stripes.len() as u64
    }

    /// Each of them, always in the same order.
    pub fn all(&self) -> impl Iterator<Item = &T> {
        self.stripes.iter().map(|stripe| &**stripe)
    }

    /// Each of them, for who has all.
    pub fn all_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.stripes.iter_mut().map(|stripe| &mut **stripe)
    }
}

#[cfg(not(feature = "shuttle"))]
fn count() -> usize {
    threads::all().min(STRIPES_MAX).next_power_of_two()
}

/// Threads are numbered as they come.
#[cfg(not(feature = "shuttle"))]
fn number() -> usize {
    use std::cell::Cell;
    use std::sync::atomic::{AtomicUsize, Ordering};

    static NEXT: AtomicUsize = AtomicUsize::new(0);
    const UNKNOWN: usize = usize::MAX;
    thread_local! {
        static NUMBER: Cell<usize> = const { Cell::new(UNKNOWN) };
    }
    NUMBER.with(|number| {
        if number.get() == UNKNOWN {
            number.set(NEXT.fetch_add(1, Ordering::Relaxed) & (STRIPES_MAX - 1));
        }
        number.get()
    })
}

/// Under the scheduler of a test, whose threads are not the system's.
#[cfg(feature = "shuttle")]
fn count() -> usize {
    let _ = (threads::all, STRIPES_MAX);
    2
}

#[cfg(feature = "shuttle")]
fn number() -> usize {
    usize::from(shuttle::thread::current().id())
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::Striped;

    #[test]
    fn a_thread_has_one_of_them_and_all_are_gone_over() {
        let counts = Striped::<AtomicU64>::default();
        std::thread::scope(|scope| {
            for _ in 0..20 {
                scope.spawn(|| {
                    let mine = counts.mine();
                    for _ in 0..1000 {
                        assert!(std::ptr::eq(mine, counts.mine()));
                        mine.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
        });
        assert_eq!(counts.all().map(|count| count.load(Ordering::Relaxed)).sum::<u64>(), 20_000);
    }
}
