//! Spreading independent work over a few threads, for the length of one call.
//!
//! A thread begins on the processors on which its starter may run. Whoever calls may be bound to one of them for its own
//! reasons (a mount's threads are), and then all helpers would be: so those of a caller bound to a single one go back to where the process
//! could run at first. They begin on his, though, and may have to wait there until he is made to pause: who commits had better not be bound.

use std::io;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::Scope;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::error::Result;

/// What there is to run on.
struct Processors {
    /// How many.
    all: usize,
    /// The threads worth having for work that computes.
    count: usize,
    /// Where they may run; `None`: nobody knows.
    set: Option<CpuSet>,
}

/// Looks at what there is to run on. Done once, when the first filesystem is opened: later the caller may be bound to one
/// processor, and the answer takes a dozen system calls, more than the rest of a small commit.
fn processors() -> &'static Processors {
    static PROCESSORS: OnceLock<Processors> = OnceLock::new();
    PROCESSORS.get_or_init(|| {
        let all = std::thread::available_parallelism().map_or(1, usize::from);
        Processors { all, count: all.min(16), set: sched_getaffinity(None).ok() }
    })
}

/// The processors that there are.
pub fn all() -> usize {
    processors().all
}

/// The threads worth having for work that computes.
pub fn count() -> usize {
    processors().count
}

/// Where helpers of the calling thread have to be sent, if they would all be on the one processor to which it is bound.
fn elsewhere() -> Option<CpuSet> {
    let all = processors().set?;
    (sched_getaffinity(None).ok()?.count() == 1 && all.count() > 1).then_some(all)
}

/// What the caller does of work that may be little before it asks others for help. To start a thread and to wait for its end takes as long,
/// and much longer where the processors have other things to do.
const ALONE: Duration = Duration::from_micros(100);

/// Calls `work` for each item: in order when `sequential`, else as [`for_each`] does.
pub fn for_each_unless<T: Sync>(
    sequential: bool,
    items: &[T],
    work: impl Fn(&T) -> Result<()> + Sync,
) -> Result<()> {
    if sequential { items.iter().try_for_each(work) } else { for_each(items, work) }
}

/// The same for items that are alike, and may be little work: others are asked for help once that has turned out to take long.
pub fn for_each_alike_unless<T: Sync>(
    sequential: bool,
    items: &[T],
    work: impl Fn(&T) -> Result<()> + Sync,
) -> Result<()> {
    let begun = Instant::now();
    let mut rest = items;
    while let Some((first, behind)) = rest.split_first() {
        if !sequential && !behind.is_empty() && begun.elapsed() > ALONE {
            return for_each(rest, work);
        }
        work(first)?;
        rest = behind;
    }
    Ok(())
}

/// Calls `work` for each item, on several threads where that pays. The first error ends it.
pub fn for_each<T: Sync>(items: &[T], work: impl Fn(&T) -> Result<()> + Sync) -> Result<()> {
    let threads = count().min(items.len());
    if threads <= 1 {
        return items.iter().try_for_each(work);
    }
    let next = AtomicUsize::new(0);
    let failed = Mutex::new(None);
    let run = || {
        while let Some(item) = items.get(next.fetch_add(1, Ordering::Relaxed)) {
            if let Err(error) = work(item) {
                next.store(items.len(), Ordering::Relaxed);
                failed.lock().get_or_insert(error);
                return;
            }
        }
    };
    let elsewhere = elsewhere();
    let help = || {
        // Where that fails, it is slower, and that is all.
        let _moved = elsewhere.map(|all| sched_setaffinity(None, &all));
        run();
    };
    std::thread::scope(|scope| {
        // A system that has no thread to give makes it slower, and that is all.
        let _started = (1..threads).try_for_each(|_| spawn(scope, help));
        run();
    });
    failed.into_inner().map_or(Ok(()), Err)
}

/// Starts a thread of a scope, if there is one to be had.
fn spawn<'scope>(
    scope: &'scope Scope<'scope, '_>,
    work: impl FnOnce() + Send + 'scope,
) -> io::Result<()> {
    #[cfg(test)]
    tests::refuse()?;
    std::thread::Builder::new().spawn_scoped(scope, work).map(drop)
}

/// The answers of `work` for each item, in their order; on several threads where that pays. The first error ends it.
pub fn map<T: Sync, U: Send>(items: &[T], work: impl Fn(&T) -> Result<U> + Sync) -> Result<Vec<U>> {
    let slots = slots(items);
    for_each(&slots, |slot| slot.fill(&work))?;
    Ok(answers(slots))
}

/// The same for items that are alike, and may be little work, as [`for_each_alike_unless`] does it.
pub fn map_alike<T: Sync, U: Send>(
    items: &[T],
    work: impl Fn(&T) -> Result<U> + Sync,
) -> Result<Vec<U>> {
    let slots = slots(items);
    for_each_alike_unless(false, &slots, |slot| slot.fill(&work))?;
    Ok(answers(slots))
}

/// An item and its answer.
struct Slot<'i, T, U> {
    item: &'i T,
    answer: Mutex<Option<U>>,
}

impl<T, U> Slot<'_, T, U> {
    fn fill(&self, work: impl Fn(&T) -> Result<U>) -> Result<()> {
        *self.answer.lock() = Some(work(self.item)?);
        Ok(())
    }
}

fn slots<T, U>(items: &[T]) -> Vec<Slot<'_, T, U>> {
    items.iter().map(|item| Slot { item, answer: Mutex::new(None) }).collect()
}

fn answers<T, U>(slots: Vec<Slot<'_, T, U>>) -> Vec<U> {
    slots.into_iter().filter_map(|slot| slot.answer.into_inner()).collect()
}

/// The same, by this thread alone and in order when `sequential`.
pub fn map_unless<T: Sync, U: Send>(
    sequential: bool,
    items: &[T],
    work: impl Fn(&T) -> Result<U> + Sync,
) -> Result<Vec<U>> {
    if sequential { items.iter().map(work).collect() } else { map(items, work) }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    thread_local! {
        /// Threads that this one may still start.
        static LEFT: Cell<usize> = const { Cell::new(usize::MAX) };
    }

    /// Refuses a thread like a system that has no more, once the caller has started as many as the test allows.
    pub(super) fn refuse() -> io::Result<()> {
        let left = LEFT.get().checked_sub(1).ok_or(io::ErrorKind::WouldBlock)?;
        LEFT.set(left);
        Ok(())
    }

    #[test]
    fn with_few_threads_or_none_everything_is_done() {
        let items: Vec<usize> = (0..1000).collect();
        for allowed in 0..20 {
            LEFT.set(allowed);
            let doubled = map(&items, |item| Ok(item * 2)).unwrap();
            assert!(doubled.iter().enumerate().all(|(at, found)| *found == at * 2));
            LEFT.set(allowed);
            let failed = for_each(&items, |item| match item {
                500 => Err(crate::Error::NoSpace),
                _ => Ok(()),
            });
            assert!(failed.is_err());
        }
        LEFT.set(usize::MAX);
    }
}
