//! The worker: a thread that commits from time to time, earlier when it is asked to, and drops deleted subvolumes.

use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use super::Inner;

/// How a thread asks the worker for a commit.
#[derive(Debug, Default)]
pub(super) struct Wake {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    wanted: bool,
    stop: bool,
}

impl Wake {
    /// Asks for a commit soon.
    pub fn wake(&self) {
        self.state.lock().wanted = true;
        self.changed.notify_one();
    }

    /// Waits until a commit is wanted or `interval` is over; `false` when the worker is to stop.
    fn wait(&self, interval: Duration) -> bool {
        let until = Instant::now() + interval;
        let mut state = self.state.lock();
        while !state.wanted && !state.stop {
            if self.changed.wait_until(&mut state, until).timed_out() {
                break;
            }
        }
        state.wanted = false;
        !state.stop
    }

    fn stopping(&self) -> bool {
        self.state.lock().stop
    }
}

/// The running thread.
pub(super) struct Worker {
    wake: Arc<Wake>,
    thread: JoinHandle<()>,
}

impl Worker {
    /// Starts the thread. It ends with [`Worker::stop`].
    pub fn start(inner: &Arc<Inner>) -> Option<Worker> {
        let wake = inner.wake.clone();
        let (weak, seen) = (Arc::downgrade(inner), wake.clone());
        let interval = inner.options.commit_interval;
        let thread = std::thread::Builder::new()
            .name("buttress-commit".into())
            .spawn(move || work(&weak, &seen, interval))
            .ok()?;
        Some(Worker { wake, thread })
    }

    /// Ends the thread; a commit under way is waited for.
    pub fn stop(self) {
        self.wake.state.lock().stop = true;
        self.wake.changed.notify_one();
        if self.thread.thread().id() != std::thread::current().id() {
            let _ = self.thread.join();
        }
    }
}

fn work(inner: &Weak<Inner>, wake: &Wake, interval: Duration) {
    if let Some(inner) = inner.upgrade()
        && inner.forest.has_dead()
    {
        wake.wake();
    }
    while wake.wait(interval) {
        let Some(inner) = inner.upgrade() else { return };
        loop {
            // A failed commit turns the filesystem read-only: everyone who changes something hears of it.
            if inner.commit().is_err() {
                return;
            }
            if !inner.forest.has_dead() || wake.stopping() {
                break;
            }
        }
    }
}
