//! The worker: a thread that commits from time to time, earlier when it is asked to or when nothing changes any more, drops
//! deleted subvolumes, and flushes what files buffer.
//!
//! What was changed and then left alone is worth a commit of its own: programs end, and people turn things off, when
//! nothing happens any more. While changes wait, the worker looks a few times per pause whether there are more; without
//! any it sleeps, and the first change wakes it.

use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};

use super::Inner;
use super::quotas::Repair;
use super::trim::Discarding;
use crate::error::{Error, Result};
use crate::threads;
use crate::txn::Upkeep;

/// How often the worker looks in the time without changes that makes it commit.
const LOOKS_PER_PAUSE: u32 = 4;

/// How a thread tells the worker that there is something to do.
#[derive(Debug, Default)]
pub(super) struct Wake {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    wanted: bool,
    /// Files should be flushed.
    flush: bool,
    /// When the worker looked last, there was no change: it wants to hear of the first one.
    idle: bool,
    /// That has come.
    begun: bool,
    stop: bool,
    /// Whether there is a thread that hears of it.
    attended: bool,
}

/// When the worker commits by itself.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    /// So long after the first change.
    pub interval: Duration,
    /// So long after the last one; `None`: the pause makes no commit.
    pub pause: Option<Duration>,
}

/// The running transaction and how much it has; `None` when it has nothing.
type Extent = Option<(u64, u64)>;

impl Wake {
    /// Asks for a commit soon. Whether there is anybody to make it.
    pub fn wake(&self) -> bool {
        let mut state = self.state.lock();
        state.wanted = true;
        self.changed.notify_one();
        state.attended
    }

    /// Whether there is somebody who commits and drops by himself.
    pub fn is_attended(&self) -> bool {
        self.state.lock().attended
    }

    /// Says that the running transaction has its first change. Who changes a little and makes it durable, again and again, wakes the
    /// worker a few times a second, and not each time.
    pub fn begun(&self) {
        let mut state = self.state.lock();
        if std::mem::take(&mut state.idle) {
            state.begun = true;
            self.changed.notify_one();
        }
    }

    /// Asks for files to be flushed.
    pub fn flush(&self) {
        // Without another processor it would only be done at another time.
        if threads::count() > 1 {
            self.state.lock().flush = true;
            self.changed.notify_one();
        }
    }

    /// Waits until a commit is wanted or due; `false` when the worker is to stop. Has files flushed meanwhile.
    fn wait(&self, pace: Pace, extent: impl Fn() -> Extent, flush: impl Fn(Instant)) -> bool {
        let mut due = Due::new(pace, Instant::now());
        let mut state = self.state.lock();
        while let Some(until) = due.next(extent(), Instant::now())
            && !state.wanted
            && !state.stop
        {
            if std::mem::take(&mut state.flush) {
                MutexGuard::unlocked(&mut state, || flush(until));
                continue;
            }
            // Whoever makes the first change from here on waits for the lock to say so.
            (state.idle, state.begun) = (due.seen.is_none(), false);
            while !state.wanted && !state.stop && !state.begun && !state.flush {
                if self.changed.wait_until(&mut state, until).timed_out() {
                    break;
                }
            }
        }
        state.wanted = false;
        !state.stop
    }

    /// Whether somebody waits for a commit: he is told no more.
    fn take_wanted(&self) -> bool {
        std::mem::take(&mut self.state.lock().wanted)
    }

    /// Whether somebody waits for a commit, or for the end.
    fn is_called(&self) -> bool {
        let state = self.state.lock();
        state.wanted || state.stop
    }

    fn stopping(&self) -> bool {
        self.state.lock().stop
    }
}

/// Commits that dropping subvolumes waits for room.
pub(super) const STALLED_MAX: u32 = 3;

/// When a commit is due.
struct Due {
    pace: Pace,
    /// Since when there has been something to commit, or nothing.
    since: Instant,
    seen: Extent,
    /// When more was seen last.
    grown: Instant,
}

impl Due {
    fn new(pace: Pace, now: Instant) -> Due {
        Due { pace, since: now, seen: None, grown: now }
    }

    /// When to look again, now that there is so much; `None` when a commit is due.
    fn next(&mut self, extent: Extent, now: Instant) -> Option<Instant> {
        if extent.is_some() != self.seen.is_some() {
            self.since = now;
        }
        // Flushing makes it less.
        if extent.is_none() || extent > self.seen {
            self.grown = now;
        }
        self.seen = extent;
        let end = self.since + self.pace.interval;
        let pause = self.pace.pause.filter(|_| extent.is_some());
        if now >= end || pause.is_some_and(|pause| now >= self.grown + pause) {
            return None;
        }
        Some(pause.map_or(end, |pause| end.min(now + pause / LOOKS_PER_PAUSE)))
    }
}

/// The running thread.
pub(super) struct Worker {
    wake: Arc<Wake>,
    thread: JoinHandle<()>,
}

impl Worker {
    /// Starts the thread. It ends with [`Worker::stop`]. Where the system has no thread to give there is a warning: operations
    /// commit themselves when much waits, and nobody does so from time to time.
    pub fn start(inner: &Arc<Inner>) -> Option<Worker> {
        let wake = inner.wake.clone();
        let (weak, seen) = (Arc::downgrade(inner), wake.clone());
        let (interval, pause) = (inner.options.commit_interval, inner.options.commit_pause);
        let pace = Pace { interval, pause };
        wake.state.lock().attended = true;
        let started = std::thread::Builder::new()
            .name("buttress-commit".into())
            .spawn(move || work(&weak, &seen, pace));
        match started {
            Ok(thread) => Some(Worker { wake, thread }),
            Err(error) => {
                wake.state.lock().attended = false;
                inner.core.warn(format!(
                    "no thread that commits from time to time could be started: {error}; what changes is durable after the \
                     next sync, or when much waits"
                ));
                None
            }
        }
    }

    /// Ends the thread; a commit under way is waited for.
    pub fn stop(self) {
        self.wake.state.lock().stop = true;
        self.wake.changed.notify_one();
        if self.thread.thread().id() != std::thread::current().id() {
            let _ = self.thread.join();
        }
        self.wake.state.lock().attended = false;
    }
}

fn work(inner: &Weak<Inner>, wake: &Wake, pace: Pace) {
    if let Some(inner) = inner.upgrade()
        && (inner.forest.has_dead()
            || inner.forest.has_relocated_data()
            || inner.has_wrong_quotas())
    {
        wake.wake();
    }
    let extent = || inner.upgrade().and_then(|inner| inner.extent());
    let flush = |until| {
        if let Some(inner) = inner.upgrade() {
            inner.flush_older(|| !wake.is_called() && Instant::now() < until);
        }
    };
    let mut tried = inner.upgrade().map_or(0, |inner| inner.core.txn.committed());
    let mut quotas = QuotaRepair::new();
    let mut discarding = Discarding::new();
    let are_wrong = || inner.upgrade().is_some_and(|inner| inner.has_wrong_quotas());
    while wake.wait(quotas.pace(pace, are_wrong()), extent, flush) {
        let Some(inner) = inner.upgrade() else { return };
        if commit_and_drop(&inner, wake, &mut tried).is_err() {
            // A failed commit turns the filesystem read-only: everyone who changes something hears of it.
            return;
        }
        match inner.reclaim_in_time(|| !wake.stopping()) {
            // One at a time: others of its duties may have come up.
            Ok(true) => drop(wake.wake()),
            Ok(false) => {}
            Err(_) => return,
        }
        quotas.step(&inner, wake);
        match discarding.step(&inner, &|| !wake.is_called()) {
            Ok(true) => drop(wake.wake()),
            Ok(false) => {}
            Err(_) => return,
        }
    }
}

/// When wrong quotas are counted anew: soon, and where damage is in the way less and less often.
struct QuotaRepair {
    /// When it is tried next.
    again: Instant,
    /// Until then from the last try.
    pause: Duration,
}

impl QuotaRepair {
    /// Between two tries, where somebody was in the way.
    const PAUSE: Duration = Duration::from_secs(1);
    /// At most, where damage was.
    const PAUSE_MAX: Duration = Duration::from_secs(3600);

    fn new() -> QuotaRepair {
        QuotaRepair { again: Instant::now(), pause: QuotaRepair::PAUSE }
    }

    /// How long the worker may wait.
    fn pace(&self, pace: Pace, are_wrong: bool) -> Pace {
        let left = self.again.saturating_duration_since(Instant::now());
        let interval = if are_wrong { pace.interval.min(left) } else { pace.interval };
        Pace { interval, ..pace }
    }

    fn step(&mut self, inner: &Inner, wake: &Wake) {
        if !inner.has_wrong_quotas() {
            *self = QuotaRepair::new();
        } else if Instant::now() >= self.again {
            self.pause = match inner.repair_quotas(|| wake.take_wanted(), || wake.stopping()) {
                Repair::Done | Repair::Later => QuotaRepair::PAUSE,
                Repair::Failed => (self.pause * 8).min(QuotaRepair::PAUSE_MAX),
            };
            self.again = Instant::now() + self.pause;
        }
    }
}

/// Commits what has changed, and goes on as long as there are deleted subvolumes to drop. Where there is no room for that, what a
/// commit has let go of comes back with the next ones; but where nobody has committed anything since it was `tried`, there is nothing
/// to come.
fn commit_and_drop(inner: &Inner, wake: &Wake, tried: &mut u64) -> Result<()> {
    match inner.drop_relocated_data() {
        Ok(()) | Err(Error::NoSpace) => {}
        Err(error) => return Err(error),
    }
    let committed = inner.commit()?;
    if committed == *tried && !inner.forest.can_drop() {
        return Ok(());
    }
    *tried = committed;
    let mut stalled = 0;
    while inner.forest.has_dead() && !wake.stopping() {
        stalled = if inner.forest.is_stalled() { stalled + 1 } else { 0 };
        if stalled > STALLED_MAX {
            break;
        }
        *tried = inner.commit_for_space(Upkeep::Little)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn due(pause: Option<Duration>) -> (Due, Instant) {
        let start = Instant::now();
        (Due::new(Pace { interval: 5 * SECOND, pause }, start), start)
    }

    #[test]
    fn a_pause_makes_a_commit_due() {
        let (mut due, start) = due(Some(SECOND));
        assert_eq!(due.next(None, start), Some(start + 5 * SECOND));
        let first = start + 3 * SECOND;
        assert_eq!(due.next(Some((7, 1)), first), Some(first + SECOND / 4));
        let second = first + SECOND / 2;
        assert_eq!(due.next(Some((7, 2)), second), Some(second + SECOND / 4));
        assert!(due.next(Some((7, 2)), second + SECOND / 2).is_some());
        assert_eq!(due.next(Some((7, 2)), second + SECOND), None);
    }

    #[test]
    fn without_a_pause_it_is_due_after_the_interval() {
        for pause in [None, Some(SECOND)] {
            let (mut due, start) = due(pause);
            let first = start + 2 * SECOND;
            let mut more = (1..).map(|amount| Some((7, amount)));
            for quarter in 0..20 {
                let next = due.next(more.next().unwrap(), first + SECOND / 4 * quarter);
                assert!(next.is_some_and(|next| next <= first + 5 * SECOND));
            }
            assert_eq!(due.next(more.next().unwrap(), first + 5 * SECOND), None);
        }
    }
}
