//! Where the root of a tree is, for everybody to read and for a commit to change.
//!
//! Every operation looks it up, and a lock, even a shared one, is written by who reads. So what is read is numbers, with a count before and behind them that is odd while
//! they are changed: who finds it odd, or another one behind, looks again. (A sequence lock; that of numbers which are atomic each needs nothing unsafe.)

use std::sync::atomic::{AtomicU64, Ordering, fence};

use super::Root;
use crate::sync::Mutex;

/// Stands for the level of a tree that has no root.
const NOWHERE: u64 = u64::MAX;

/// The root of a tree, or that there is none yet.
#[derive(Debug)]
pub struct Published {
    count: AtomicU64,
    /// Address, generation and level.
    numbers: [AtomicU64; 3],
    /// Of who changes them: one at a time.
    writer: Mutex<()>,
}

impl Published {
    /// The root is there.
    pub fn new(root: Option<Root>) -> Published {
        let numbers = numbers(root).map(AtomicU64::new);
        Published { count: AtomicU64::new(0), numbers, writer: Mutex::default() }
    }

    /// The root.
    pub fn get(&self) -> Option<Root> {
        loop {
            let before = self.count.load(Ordering::Acquire);
            let [bytenr, generation, level] =
                std::array::from_fn(|at| self.numbers[at].load(Ordering::Relaxed));
            fence(Ordering::Acquire);
            if before & 1 == 0 && self.count.load(Ordering::Relaxed) == before {
                let level = u8::try_from(level).ok()?;
                return Some(Root { bytenr, generation, level });
            }
            std::thread::yield_now();
        }
    }

    /// From now on it is this one.
    pub fn set(&self, root: Root) {
        let _turn = self.writer.lock();
        let before = self.count.load(Ordering::Relaxed);
        self.count.store(before.wrapping_add(1), Ordering::Relaxed);
        fence(Ordering::Release);
        for (place, number) in self.numbers.iter().zip(numbers(Some(root))) {
            place.store(number, Ordering::Relaxed);
        }
        self.count.store(before.wrapping_add(2), Ordering::Release);
    }
}

fn numbers(root: Option<Root>) -> [u64; 3] {
    root.map_or([0, 0, NOWHERE], |root| [root.bytenr, root.generation, root.level.into()])
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::{Published, Root};

    fn root(number: u64) -> Root {
        Root { bytenr: number * 16384, generation: number, level: (number % 8) as u8 }
    }

    #[test]
    fn who_reads_sees_one_of_the_roots_and_never_an_older_one_after_a_newer() {
        let published = Published::new(None);
        assert!(published.get().is_none());
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    let mut last = 0;
                    while !done.load(Ordering::Relaxed) {
                        let Some(now) = published.get() else { continue };
                        assert_eq!(now, root(now.generation));
                        assert!(now.generation >= last);
                        last = now.generation;
                    }
                });
            }
            (1..200_000).for_each(|number| published.set(root(number)));
            done.store(true, Ordering::Relaxed);
        });
        assert_eq!(published.get(), Some(root(199_999)));
    }
}
