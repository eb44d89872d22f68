//! What each reader thread is doing, for one that has to know that all which was received before is done.
//!
//! A thread says so after read(2) has given it a request, and again when it has answered. In between lies a moment in which it has
//! a request and has not said so yet. It does not sleep there, so a thread that has said nothing and sleeps has no request.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use rustix::io::Errno;

use crate::protocol::abi::{self, SetattrIn, WriteIn, fattr, opcode};
use crate::protocol::channel::Request;

/// Between two looks at a thread that is not done.
const PAUSE: Duration = Duration::from_millis(1);
/// The low bits of a place's state, below a count that makes each state another one.
const KIND: u64 = 3;
const READING: u64 = 0;
/// A request of those of which the kernel lets so many wait at once, and keeps the others back.
const DATA: u64 = 1;
const OTHER: u64 = 2;
/// Data that the kernel had kept, or a cut: until the program that waits for it goes on, the kernel keeps back what others store to that file.
const HOLDS: u64 = 3;
/// Between two looks whether all sleep: a thread goes on for a moment after it has answered.
const MOMENT: Duration = Duration::from_micros(50);

/// All reader threads of a session.
#[derive(Default)]
pub(super) struct Places {
    all: Mutex<Vec<Arc<Place>>>,
    /// Pages that the kernel kept and has sent, counted by requests.
    kept: AtomicU64,
}

/// One of them.
pub(super) struct Place {
    thread: i32,
    /// The processor whose requests it receives; of a thread that reads /dev/fuse none.
    queue: Option<u16>,
    /// It was there before there were requests.
    is_first: bool,
    state: AtomicU64,
    /// It has a request, but has not looked at it yet.
    has_received: AtomicBool,
    manner: Mutex<Manner>,
    /// It is `Idle`, or will be after what takes long: for a look in passing.
    gives_way: AtomicBool,
}

/// How the system schedules a thread.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Manner {
    Usual,
    /// `SCHED_IDLE`: see [`policy`](super::policy).
    Idle,
    /// As usual, as it does what takes long; then perhaps `Idle` again.
    Long {
        idle_again: bool,
    },
    /// It ends: its number may be another's soon.
    Gone,
}

impl Places {
    /// The place of the calling thread.
    pub(super) fn take(&self, queue: Option<u16>) -> Arc<Place> {
        self.take_as(queue, false)
    }

    /// The same for a thread that was there before the kernel could queue any request.
    pub(super) fn take_first(&self, queue: u16) -> Arc<Place> {
        self.take_as(Some(queue), true)
    }

    fn take_as(&self, queue: Option<u16>, is_first: bool) -> Arc<Place> {
        let thread = rustix::thread::gettid().as_raw_nonzero().get();
        let manner = Mutex::new(Manner::Usual);
        let (state, has_received) = (AtomicU64::new(READING), AtomicBool::new(false));
        let place = Place {
            thread,
            queue,
            is_first,
            state,
            has_received,
            manner,
            gives_way: AtomicBool::new(false),
        };
        let place = Arc::new(place);
        self.all.lock().push(Arc::clone(&place));
        place
    }

    /// The thread ends.
    pub(super) fn leave(&self, place: &Arc<Place>) {
        self.all.lock().retain(|other| !Arc::ptr_eq(other, place));
        *place.manner.lock() = Manner::Gone;
    }

    /// Those of threads with rings.
    pub(super) fn with_rings(&self) -> Vec<Arc<Place>> {
        let all = self.all.lock();
        all.iter().filter(|place| place.queue.is_some()).cloned().collect()
    }

    /// A thread has received a request.
    pub(super) fn begin(&self, place: &Place, request: &Request<'_>) {
        let kept = request.opcode() == opcode::WRITE
            && (request.body().read::<WriteIn>())
                .is_ok_and(|wish| wish.write_flags & abi::WRITE_CACHE != 0);
        let kind = match request.opcode() {
            opcode::WRITE if kept => HOLDS,
            opcode::SETATTR if cuts(request) => HOLDS,
            opcode::READ | opcode::WRITE | opcode::RELEASE | opcode::RELEASEDIR => DATA,
            _ => OTHER,
        };
        // Counted before it is known that the thread is past what it had before.
        self.kept.fetch_add(kept.into(), Ordering::SeqCst);
        place.enter(kind);
    }

    /// So many requests with what the kernel kept have been received.
    pub(super) fn kept(&self) -> u64 {
        self.kept.load(Ordering::SeqCst)
    }

    /// Whether somebody answers what makes the kernel keep back pages, which it sends some time after that.
    pub(super) fn has_kept_in_hand(&self) -> bool {
        let holds = |place: &Arc<Place>| place.state.load(Ordering::SeqCst) & KIND == HOLDS;
        self.all.lock().iter().any(holds)
    }

    /// Returns when all reads and writes of data are answered that had been received before the call.
    pub(super) fn wait_for_data(&self) {
        let all = self.all.lock().clone();
        let seen: Vec<u64> = all.iter().map(|place| place.state.load(Ordering::SeqCst)).collect();
        for (place, seen) in all.iter().zip(seen) {
            while !place.is_past(seen) {
                std::thread::sleep(PAUSE);
            }
        }
    }

    /// Whether there was a moment during the call in which nobody had data in hand and none were on their way: what the kernel had sent
    /// before is counted in [`Places::kept`] then. `false` says nothing.
    ///
    /// Data that wait in a queue, or that the kernel keeps back, have others before them that somebody has in hand or that are
    /// on their way to a thread, which is awake then. So the moment is one between two looks at all threads that find the same: whoever
    /// waits for requests sleeps, in each queue one who is given what was queued before him, and has got none in between.
    fn were_at_rest(&self) -> bool {
        self.look().is_some_and(|seen| self.look() == Some(seen))
    }

    /// The same, looked for so often.
    pub(super) fn are_seen_at_rest(&self, looks: u32) -> bool {
        (0..looks).any(|look| {
            if look > 0 {
                std::thread::sleep(MOMENT);
            }
            self.were_at_rest()
        })
    }

    /// The states of all threads, unless one may have data in hand, or a queue have some for which nobody has come.
    fn look(&self) -> Option<Vec<(i32, u64)>> {
        let all = self.all.lock().clone();
        let (mut seen, mut empty) = (Vec::with_capacity(all.len()), BTreeSet::new());
        for place in &all {
            let state = place.state.load(Ordering::SeqCst);
            match state & KIND {
                DATA | HOLDS => return None,
                READING if place.has_received.load(Ordering::SeqCst) => return None,
                READING if place.how_it_is() != Look::Sleeps => return None,
                READING if place.gets_what_is_queued(state) => _ = empty.insert(place.queue),
                _ => {}
            }
            seen.push((place.thread, state));
        }
        let all_are_empty = all.iter().all(|place| empty.contains(&place.queue));
        (all_are_empty && !all.is_empty()).then_some(seen)
    }

    /// Waits until all that was queued for a processor before the call has been received; `false` if something is queued there at each
    /// of so many `looks`.
    pub(super) fn wait_for_queue(&self, processor: usize, looks: usize) -> bool {
        let its = |place: &Place| place.queue.is_some_and(|queue| usize::from(queue) == processor);
        for _ in 0..looks {
            let all = self.all.lock().clone();
            if all.iter().any(|place| its(place) && place.finds_none()) {
                return true;
            }
            std::thread::sleep(PAUSE);
        }
        false
    }

    /// Waits until all that was queued before the call has been received, and reads and writes of data among it are answered; `false` if
    /// somewhere requests are queued at each of so many `looks`.
    pub(super) fn wait_for_queued(&self, looks: usize) -> bool {
        let mut empty = BTreeSet::new();
        for _ in 0..looks {
            let all = self.all.lock().clone();
            for place in &all {
                if !empty.contains(&place.queue) && place.finds_none() {
                    empty.insert(place.queue);
                }
            }
            if all.iter().all(|place| empty.contains(&place.queue)) {
                self.wait_for_data();
                return true;
            }
            std::thread::sleep(PAUSE);
        }
        false
    }
}

impl Place {
    pub(super) fn thread(&self) -> i32 {
        self.thread
    }

    /// How many requests it has answered.
    pub(super) fn answered(&self) -> u64 {
        // It says so when it has one, and again when it has answered.
        self.state.load(Ordering::Relaxed) / (2 * (KIND + 1))
    }

    /// Whether it has been made SCHED_IDLE, but for what takes long.
    pub(super) fn gives_way(&self) -> bool {
        self.gives_way.load(Ordering::Relaxed)
    }

    /// Has `set` make its thread SCHED_IDLE, unless it is, or does what takes long; whether that went well. The thread does not end
    /// meanwhile, nor is it waited for: it may be one that hardly runs.
    pub(super) fn set_idle(&self, set: impl FnOnce(i32) -> bool) -> bool {
        let Some(mut manner) = self.manner.try_lock() else { return false };
        let done = *manner == Manner::Usual && set(self.thread);
        if done {
            *manner = Manner::Idle;
            self.gives_way.store(true, Ordering::Relaxed);
        }
        done
    }

    /// Has `set` give it the usual policy back, if it was made SCHED_IDLE; `false`: that is to be tried again. A thread that has its own lock
    /// is given the policy all the same, as it may not run otherwise.
    pub(super) fn set_usual(&self, set: impl FnOnce(i32) -> bool) -> bool {
        let Some(mut manner) = self.manner.try_lock() else {
            set(self.thread);
            return false;
        };
        *manner = match *manner {
            Manner::Idle if !set(self.thread) => return false,
            Manner::Idle | Manner::Usual => Manner::Usual,
            Manner::Long { .. } => Manner::Long { idle_again: false },
            Manner::Gone => Manner::Gone,
        };
        self.gives_way.store(false, Ordering::Relaxed);
        true
    }

    /// Does what takes long as usual. `set` gives the calling thread, whose place this is, the usual policy, or (true) makes it
    /// SCHED_IDLE again: never while it has the lock, if that can be helped.
    pub(super) fn away<T>(&self, set: impl Fn(bool) -> bool, work: impl FnOnce() -> T) -> T {
        if self.gives_way() {
            set(false);
        }
        let mut manner = self.manner.lock();
        *manner = match *manner {
            Manner::Idle if set(false) => Manner::Long { idle_again: true },
            Manner::Usual => Manner::Long { idle_again: false },
            other => other,
        };
        drop(manner);
        let done = work();
        let mut manner = self.manner.lock();
        let idle_again = *manner == Manner::Long { idle_again: true };
        *manner = match *manner {
            Manner::Long { idle_again: true } => Manner::Idle,
            Manner::Long { idle_again: false } => Manner::Usual,
            other => other,
        };
        drop(manner);
        if idle_again {
            set(true);
            // It was told not to in between.
            if !self.gives_way() {
                set(false);
            }
        }
        done
    }

    /// A request has come, which may take a moment to look at.
    pub(super) fn receives(&self) {
        // Seen before the thread sleeps, as that takes a barrier.
        self.has_received.store(true, Ordering::Release);
    }

    /// The request is answered.
    pub(super) fn done(&self) {
        self.has_received.store(false, Ordering::Release);
        self.enter(READING);
    }

    /// The thread does something else than to wait for requests.
    pub(super) fn rest<T>(&self, rest: impl FnOnce() -> T) -> T {
        self.enter(OTHER);
        let rested = rest();
        self.enter(READING);
        rested
    }

    fn enter(&self, kind: u64) {
        let count = self.state.load(Ordering::SeqCst) & !KIND;
        self.state.store((count + KIND + 1) | kind, Ordering::SeqCst);
    }

    /// Whether the thread has no data in hand that it had when its state was `seen`, nor is about to get what waited for those.
    fn is_past(&self, seen: u64) -> bool {
        let now = self.state.load(Ordering::SeqCst);
        let steps = now / (KIND + 1) - seen / (KIND + 1);
        match (seen & KIND, now & KIND) {
            (OTHER, _) => true,
            _ if steps > 2 => true,
            (_, READING) => self.sleeps(),
            // It has got another request since, which is counted.
            (READING, _) => steps > 0,
            _ => steps > 1,
        }
    }

    /// Whether the thread is given what was queued before it began to wait. One with a ring that has just come is not.
    fn gets_what_is_queued(&self, state: u64) -> bool {
        self.queue.is_none() || self.is_first || state > KIND
    }

    /// Whether the thread waits for a request: then none is queued.
    fn finds_none(&self) -> bool {
        let seen = self.state.load(Ordering::SeqCst);
        seen & KIND == READING
            && self.gets_what_is_queued(seen)
            && self.sleeps()
            && self.state.load(Ordering::SeqCst) == seen
    }

    /// Whether the thread sleeps without a request, or has ended.
    fn sleeps(&self) -> bool {
        !self.has_received.load(Ordering::SeqCst)
            && matches!(self.how_it_is(), Look::Sleeps | Look::Ended)
    }

    /// What the system says of it.
    fn how_it_is(&self) -> Look {
        let stat = std::fs::read_to_string(format!("/proc/self/task/{}/stat", self.thread));
        match stat {
            // The name, in parentheses, may have any characters.
            Ok(stat) if stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('S')) => {
                Look::Sleeps
            }
            Err(error)
                if matches!(Errno::from_io_error(&error), Some(Errno::NOENT | Errno::SRCH)) =>
            {
                Look::Ended
            }
            _ => Look::Unknown,
        }
    }
}

/// What can be seen of a thread.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Look {
    Sleeps,
    Ended,
    /// It runs, or waits for a disk, or there is nothing to look at it with.
    Unknown,
}

/// Whether a request gives a file a size.
fn cuts(request: &Request<'_>) -> bool {
    let wish = request.body().read::<SetattrIn>();
    wish.is_ok_and(|wish| wish.valid & fattr::SIZE != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_is_past_what_it_has_answered() {
        let places = Places::default();
        let place = places.take(None);
        let reading = place.state.load(Ordering::SeqCst);
        // This very thread: it runs, and may have a request that it has not told of.
        assert!(!place.is_past(reading));
        place.enter(DATA);
        let data = place.state.load(Ordering::SeqCst);
        assert!(place.is_past(reading) && !place.is_past(data));
        place.done();
        // It is about to get the next one, which may have waited for this.
        assert!(!place.is_past(data));
        place.enter(DATA);
        assert!(place.is_past(data));
        place.done();
        place.enter(OTHER);
        places.wait_for_data();
        places.leave(&place);
        places.wait_for_data();
    }

    #[test]
    fn what_is_queued_is_received_when_somebody_waits_in_each_queue() {
        let places = Places::default();
        let (end, ended) = std::sync::mpsc::channel::<()>();
        std::thread::scope(|scope| {
            let (placed, is_placed) = std::sync::mpsc::channel();
            let places = &places;
            // As a reader that waits for requests.
            scope.spawn(move || {
                placed.send(places.take_first(1)).unwrap();
                let _ended = ended.recv();
            });
            let waits = is_placed.recv().unwrap();
            while !places.wait_for_queued(1) {}
            // Another one of that queue is busy.
            let mine = places.take(Some(1));
            mine.enter(OTHER);
            while !places.wait_for_queued(1) {}
            waits.enter(OTHER);
            assert!(!places.wait_for_queued(3), "nobody waits");
            mine.rest(|| assert!(!places.wait_for_queued(3), "who rests does not wait"));
            // Not this thread, which would wait for itself.
            mine.enter(OTHER);
            waits.done();
            let other = places.take(Some(2));
            other.enter(DATA);
            assert!(!places.wait_for_queued(3), "nobody waits in that queue");
            places.leave(&other);
            while !places.wait_for_queued(1) {}
            while !places.wait_for_queue(1, 1) {}
            assert!(!places.wait_for_queue(2, 3), "there is no such queue");
            waits.enter(OTHER);
            assert!(!places.wait_for_queue(1, 3), "nobody waits in it");
            drop(end);
        });
    }

    #[test]
    fn at_rest_is_who_sleeps_and_is_given_what_was_queued() {
        let places = Places::default();
        let (end, ended) = std::sync::mpsc::channel::<()>();
        std::thread::scope(|scope| {
            let (placed, is_placed) = std::sync::mpsc::channel();
            let places = &places;
            // As a reader that waits for its first request.
            scope.spawn(move || {
                placed.send(places.take(Some(1))).unwrap();
                let _ended = ended.recv();
            });
            let waits = is_placed.recv().unwrap();
            let at_rest = || (0..1000).any(|_| places.were_at_rest());
            assert!(!at_rest(), "what was queued before it came is not given to it");
            waits.enter(OTHER);
            assert!(!at_rest(), "nobody waits in that queue");
            waits.done();
            // It may not sleep yet, this time.
            while !places.were_at_rest() {}
            let mine = places.take(Some(1));
            assert!(!at_rest(), "this thread runs, and may have received a request");
            mine.enter(DATA);
            assert!(!at_rest(), "it has data in hand");
            mine.enter(OTHER);
            while !places.were_at_rest() {}
            let other = places.take(Some(2));
            other.enter(OTHER);
            assert!(!at_rest(), "nobody waits in the other queue");
            drop(end);
        });
    }

    #[test]
    fn who_answers_in_between_was_not_at_rest() {
        let places = Places::default();
        let (end, ended) = std::sync::mpsc::channel::<()>();
        std::thread::scope(|scope| {
            let (placed, is_placed) = std::sync::mpsc::channel();
            let places = &places;
            scope.spawn(move || {
                placed.send(places.take_first(1)).unwrap();
                let _ended = ended.recv();
            });
            let waits = is_placed.recv().unwrap();
            let first = loop {
                if let Some(seen) = places.look() {
                    break seen;
                }
            };
            waits.enter(DATA);
            waits.done();
            assert!(places.look().is_some_and(|seen| seen != first));
            drop(end);
        });
    }
}
