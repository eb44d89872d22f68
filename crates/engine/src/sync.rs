//! Locks. Normally those of parking_lot; with the feature `shuttle`, ones that a test scheduler controls, so that it can try
//! the orders in which threads may run (see `tree/schedules.rs`).

#[cfg(not(feature = "shuttle"))]
pub use parking_lot::{Condvar, Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard};

#[cfg(feature = "shuttle")]
pub use scheduled::{Condvar, Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard};

#[cfg(not(feature = "shuttle"))]
use parking_lot::MutexGuard;
#[cfg(feature = "shuttle")]
use shuttle::sync::MutexGuard;

/// Lets go of the lock, waits to be notified, and takes the lock again.
pub fn wait<'a, T>(condvar: &Condvar, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
    #[cfg(not(feature = "shuttle"))]
    {
        let mut guard = guard;
        condvar.wait(&mut guard);
        guard
    }
    #[cfg(feature = "shuttle")]
    condvar.wait(guard).expect("a thread that panics ends the test")
}

#[cfg(feature = "shuttle")]
mod scheduled {
    use shuttle::sync::MutexGuard;
    pub use shuttle::sync::{Condvar, RwLockReadGuard, RwLockWriteGuard};

    /// A lock without poisoning, as parking_lot has it.
    #[derive(Debug, Default)]
    pub struct Mutex<T>(shuttle::sync::Mutex<T>);

    impl<T> Mutex<T> {
        /// A lock around `value`.
        pub fn new(value: T) -> Mutex<T> {
            Mutex(shuttle::sync::Mutex::new(value))
        }

        /// Waits for the lock.
        pub fn lock(&self) -> MutexGuard<'_, T> {
            self.0.lock().expect("a thread that panics ends the test")
        }
    }

    /// A shared lock without poisoning.
    #[derive(Debug, Default)]
    pub struct RwLock<T>(shuttle::sync::RwLock<T>);

    impl<T> RwLock<T> {
        /// A lock around `value`.
        pub fn new(value: T) -> RwLock<T> {
            RwLock(shuttle::sync::RwLock::new(value))
        }

        /// Waits for a share of the lock.
        pub fn read(&self) -> RwLockReadGuard<'_, T> {
            self.0.read().expect("a thread that panics ends the test")
        }

        /// A share of the lock, unless somebody has it whole.
        pub fn try_read(&self) -> Option<RwLockReadGuard<'_, T>> {
            self.0.try_read().ok()
        }

        /// The whole lock, unless somebody has it or a share of it.
        pub fn try_write(&self) -> Option<RwLockWriteGuard<'_, T>> {
            self.0.try_write().ok()
        }

        /// Waits for the whole lock.
        pub fn write(&self) -> RwLockWriteGuard<'_, T> {
            self.0.write().expect("a thread that panics ends the test")
        }
    }
}
