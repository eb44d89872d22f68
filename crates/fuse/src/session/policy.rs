//! The scheduling policy of threads with rings: while requests come one right after the other, those who answer are `SCHED_IDLE`.
//!
//! Who asks and who answers take turns on one processor ([`rings`](super::rings)). When an answer wakes up who has asked, the thread that
//! answers still runs, so Linux looks for another processor that is idle, and moves the program there; its next request goes to
//! the queue of that processor, and so on, there and back. To wake an idle processor takes longer than the
//! request (docs/performance.md, "Who asks is woken up where he was"). A processor on which nothing runs but what is `SCHED_IDLE` counts as idle
//! (`sched_idle_cpu()` in `select_idle_sibling()`): then the program stays, and goes on at once.
//!
//! # Who is SCHED_IDLE waits for everybody else
//!
//! With another program busy on its processor such a thread would hardly ever run, and a mount would stand still. So a thread that looks
//! after them, of the usual policy, sees every [`TICK`] how long each had to wait for its processor (`schedstat`, see proc(5)). Where
//! that was too long, all are given back the usual policy, and keep it for a while, each time for longer ([`Trust`]). A request waits for two
//! ticks more than it would have, at most. Threads that have nothing to do, and all before the one who looks goes to sleep, have the usual
//! policy; so has one that does something long ([`as_usual`]), as others may wait for that.
//!
//! What such a thread starts inherits its policy. So whatever is found to be `SCHED_IDLE` in this process, and is not a thread
//! that was made so here, is given back the usual one (`sweep`).
//!
//! Nobody who cannot go back is made `SCHED_IDLE`: that takes `CAP_SYS_NICE`, or a limit of `RLIMIT_NICE` that allows nice 0
//! (sched(7)); it is tried once, by a thread made for it.
//!
//! # Unsafe
//!
//! sched_setscheduler(2) and sched_getscheduler(2) are in no safe library. They take numbers and read one structure that lives as
//! long as the call. Threads are named by their numbers, and the number of one that has ended may become that of another process's
//! thread. So a thread with a ring is set under the lock of its [`Place`], where it says that it ends. What
//! `sweep` finds has been seen to be SCHED_IDLE and one of this process's a moment ago; numbers are given again when all others have had
//! their turn.
#![allow(unsafe_code, reason = "system calls that no safe library has; see above")]

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use super::Shared;
use super::places::{Place, Places};

/// Between two looks.
const TICK: Duration = Duration::from_millis(10);
/// Before the first look after it was quiet.
const FIRST_TICK: Duration = Duration::from_millis(2);
/// A thread that answers so many requests in a tick is made SCHED_IDLE: fewer gain nothing.
const LIVELY: u64 = 16;
/// One that answers none for so many ticks is not any more.
const QUIET: u32 = 5;
/// A thread that had to wait for its processor for so long within a tick is in somebody's way.
const HELD_UP: Duration = Duration::from_millis(4);
/// For how long nobody is SCHED_IDLE after that, the first time, and at most: so a program that is always in the way costs a
/// thousandth. A commit of our own is in the way for a moment.
const DISTRUST: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(10));
/// When that went well for so long, it was the first time.
const FORGOTTEN: Duration = Duration::from_secs(1);
/// So many ticks after the last one that was SCHED_IDLE, threads may come to light that have inherited it.
const SWEEPS: u32 = 3;

/// Gives a thread (0: the calling one) a policy.
fn set(thread: i32, policy: i32) -> io::Result<()> {
    let param = libc::sched_param { sched_priority: 0 };
    // SAFETY: see above.
    match unsafe { libc::sched_setscheduler(thread, policy, &raw const param) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

fn is_idle(thread: i32) -> bool {
    // SAFETY: see above.
    unsafe { libc::sched_getscheduler(thread) == libc::SCHED_IDLE }
}

/// Whether threads of this process can be made SCHED_IDLE, and come back.
fn may_come_back() -> bool {
    let there_and_back = || set(0, libc::SCHED_IDLE).and_then(|()| set(0, libc::SCHED_OTHER));
    // Who has started all of it with another policy has had a reason.
    // SAFETY: see above.
    if unsafe { libc::sched_getscheduler(0) } != libc::SCHED_OTHER {
        return false;
    }
    let tried = std::thread::Builder::new().spawn(move || there_and_back().is_ok());
    tried.is_ok_and(|tried| tried.join().unwrap_or(false))
}

/// Whether anybody looks, and how he is woken up.
#[derive(Default)]
pub(super) struct Policy {
    /// Nobody is SCHED_IDLE, and who looks sleeps.
    rests: AtomicBool,
    lock: Mutex<()>,
    woken: Condvar,
}

impl Policy {
    /// Requests come quickly, or the session has ended.
    pub(super) fn wake(&self) {
        if self.rests.swap(false, Ordering::SeqCst) {
            let _not_before_he_sleeps = self.lock.lock();
            self.woken.notify_all();
        }
    }
}

/// Requests of one thread, counted by itself to know when it is worth looking.
pub(super) struct Pace {
    since: Instant,
    requests: u64,
}

impl Pace {
    pub(super) fn new() -> Pace {
        Pace { since: Instant::now(), requests: 0 }
    }

    /// One more has come. Has somebody look, when many have and nobody does.
    pub(super) fn one_more(&mut self, policy: &Policy) {
        if !policy.rests.load(Ordering::Relaxed) {
            return;
        }
        self.requests += 1;
        if self.requests >= LIVELY {
            let now = Instant::now();
            if now - self.since < TICK {
                policy.wake();
            }
            *self = Pace { since: now, requests: 0 };
        }
    }
}

/// Until when nobody is made SCHED_IDLE.
struct Trust {
    from: Instant,
    /// Since the last disappointment.
    pause: Duration,
}

impl Trust {
    fn is_there(&self) -> bool {
        Instant::now() >= self.from
    }

    /// Somebody was held up.
    fn disappoint(&mut self) {
        let now = Instant::now();
        let is_new = now.saturating_duration_since(self.from) > FORGOTTEN;
        self.pause = if is_new { DISTRUST.0 } else { DISTRUST.1.min(self.pause * 2) };
        self.from = now + self.pause;
    }
}

/// A thread with a ring, as it was at the last look.
struct Seen {
    place: Arc<Place>,
    /// What it had answered, and how often it had been away.
    answered: u64,
    absences: u64,
    quiet: u32,
    /// Of one that gives way: its `schedstat`, and how long it had waited for its processor.
    waited: Option<(File, Duration)>,
}

impl Seen {
    fn first(place: Arc<Place>) -> Seen {
        let (answered, absences) = (place.answered(), place.absences());
        Seen { place, answered, absences, quiet: 0, waited: None }
    }

    /// How long a thread has waited for a processor so far.
    fn delay(schedstat: &File) -> Option<Duration> {
        let mut text = [0; 96];
        let len = schedstat.read_at(&mut text, 0).ok()?;
        let text = std::str::from_utf8(text.get(..len)?).ok()?;
        text.split_whitespace().nth(1)?.parse().ok().map(Duration::from_nanos)
    }

    /// Makes it SCHED_IDLE, if it can be seen how it fares then.
    fn step_back(&mut self) {
        let path = format!("/proc/self/task/{}/schedstat", self.place.thread());
        let file = File::open(path).ok();
        let seen = file.and_then(|file| Seen::delay(&file).map(|delay| (file, delay)));
        if seen.is_some() && self.place.set_idle(|thread| set(thread, libc::SCHED_IDLE).is_ok()) {
            self.waited = seen;
        }
    }

    fn as_usual(&mut self) {
        if self.waited.take().is_some() {
            self.place.set_usual(|thread| set(thread, libc::SCHED_OTHER).is_ok());
        }
    }

    /// How long it had to wait since the last look. What it waited for while it did something long is no sign of anything.
    fn held_up(&mut self) -> Duration {
        let absences = self.place.absences();
        let was_away = std::mem::replace(&mut self.absences, absences) != absences;
        let Some((file, before)) = &mut self.waited else { return Duration::ZERO };
        match Seen::delay(file) {
            Some(now) => {
                let waited = now.saturating_sub(std::mem::replace(before, now));
                if was_away { Duration::ZERO } else { waited }
            }
            // It has ended.
            None => Duration::ZERO,
        }
    }

    /// Requests answered since the last look.
    fn news(&mut self) -> u64 {
        let now = self.place.answered();
        let news = now.wrapping_sub(std::mem::replace(&mut self.answered, now));
        self.quiet = if news == 0 { self.quiet.saturating_add(1) } else { 0 };
        news
    }
}

impl Shared {
    /// Starts who looks after the policy of threads, where that can be had; who cannot be started is done without.
    pub(super) fn look_after_policy(self: &Arc<Self>) {
        let shared = Arc::clone(self);
        let look = move || {
            if may_come_back() {
                shared.look_until_the_end();
            }
        };
        let thread = std::thread::Builder::new().name("buttress-policy".to_owned());
        let _slower_without = thread.spawn(look);
    }

    fn look_until_the_end(&self) {
        let mut trust = Trust { from: Instant::now(), pause: DISTRUST.0 / 2 };
        while self.is_woken_up() {
            let mut all = BTreeMap::new();
            self.look(&mut all, &mut trust);
            let (mut tick, mut quiet, mut sweeps) = (FIRST_TICK, 0, 0);
            while quiet < QUIET || sweeps > 0 {
                let is_over = self.ends_within(tick);
                tick = TICK;
                let is_lively = self.look(&mut all, &mut trust);
                quiet = if is_lively { 0 } else { quiet + 1 };
                if is_over || quiet >= QUIET {
                    all.values_mut().for_each(Seen::as_usual);
                }
                let give_way = all.values().any(|seen| seen.waited.is_some());
                sweeps = if give_way { SWEEPS } else { sweeps };
                if sweeps > 0 {
                    sweeps -= 1;
                    sweep(&self.places);
                }
                if is_over {
                    return;
                }
            }
        }
    }

    /// Sleeps until requests come quickly; `false`: the session has ended.
    fn is_woken_up(&self) -> bool {
        let policy = &self.policy;
        let mut sleeping = policy.lock.lock();
        policy.rests.store(true, Ordering::SeqCst);
        // Whoever ends it sets this first, and then wakes.
        while !*self.ended.lock() && policy.rests.load(Ordering::SeqCst) {
            policy.woken.wait(&mut sleeping);
        }
        !*self.ended.lock()
    }

    /// Sees how all threads fare, and makes them SCHED_IDLE or not; whether any of them has much to do.
    fn look(&self, all: &mut BTreeMap<i32, Seen>, trust: &mut Trust) -> bool {
        let places = self.places.with_rings();
        all.retain(|_, seen| places.iter().any(|place| Arc::ptr_eq(place, &seen.place)));
        for place in places {
            all.entry(place.thread()).or_insert_with(|| Seen::first(place));
        }
        // All are asked: each tells what was since the last look.
        let held_up = all.values_mut().map(Seen::held_up).max();
        if held_up.is_some_and(|most| most >= HELD_UP) {
            all.values_mut().for_each(Seen::as_usual);
            trust.disappoint();
        }
        let is_trusted = trust.is_there();
        let mut any = false;
        for seen in all.values_mut() {
            let is_lively = seen.news() >= LIVELY;
            any |= is_lively;
            if seen.waited.is_some() && seen.quiet >= QUIET {
                seen.as_usual();
            } else if seen.waited.is_none() && is_lively && is_trusted {
                seen.step_back();
            }
        }
        any
    }
}

/// Does something that may take long in the calling thread, which has this place.
pub(super) fn as_usual<T>(place: &Place, work: impl FnOnce() -> T) -> T {
    let policy = |idle| if idle { libc::SCHED_IDLE } else { libc::SCHED_OTHER };
    place.away(|idle| set(0, policy(idle)).is_ok(), work)
}

/// Gives back the usual policy to what threads have started that were SCHED_IDLE.
fn sweep(places: &Places) {
    let Ok(tasks) = std::fs::read_dir("/proc/self/task") else { return };
    let numbers = tasks.flatten().filter_map(|task| task.file_name().to_str()?.parse().ok());
    let idle: Vec<i32> = numbers.filter(|&thread| is_idle(thread)).collect();
    let places = places.with_rings();
    let is_ours = |thread| places.iter().any(|it| it.thread() == thread && it.gives_way());
    for thread in idle.into_iter().filter(|&thread| !is_ours(thread)) {
        let _may_have_ended = set(thread, libc::SCHED_OTHER);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_disappointed_waits_longer_each_time() {
        let mut trust = Trust { from: Instant::now(), pause: DISTRUST.0 / 2 };
        assert!(trust.is_there());
        let mut pauses = Vec::new();
        for _ in 0..8 {
            trust.disappoint();
            pauses.push(trust.pause.as_millis());
        }
        assert_eq!(pauses, [100, 200, 400, 800, 1600, 3200, 6400, 10_000]);
        assert!(!trust.is_there());
        let Some(long_ago) = Instant::now().checked_sub(FORGOTTEN * 2) else { return };
        trust.from = long_ago;
        assert!(trust.is_there());
        trust.disappoint();
        assert_eq!(trust.pause, DISTRUST.0);
    }

    /// Policies are the whole process's: one test at a time.
    static ALONE: Mutex<()> = Mutex::new(());

    /// What somebody has started with another policy keeps it.
    #[test]
    fn another_policy_is_left_alone() {
        let _alone = ALONE.lock();
        let other = std::thread::spawn(|| {
            set(0, libc::SCHED_BATCH).unwrap();
            assert!(!may_come_back());
            set(0, libc::SCHED_IDLE).unwrap();
            assert!(!may_come_back() && is_idle(0));
        });
        other.join().unwrap();
    }

    #[test]
    fn what_has_inherited_it_is_swept_and_no_more() {
        let _alone = ALONE.lock();
        if !may_come_back() {
            println!("skipped: no CAP_SYS_NICE");
            return;
        }
        let places = Places::default();
        std::thread::scope(|scope| {
            let ours = scope.spawn(|| {
                let place = places.take(Some(0));
                assert!(place.set_idle(|thread| set(thread, libc::SCHED_IDLE).is_ok()));
                let heirs: Vec<_> = (0..3)
                    .map(|_| {
                        scope.spawn(|| {
                            let pause = Duration::from_millis(1);
                            let until = Instant::now() + Duration::from_secs(60);
                            while is_idle(0) && Instant::now() < until {
                                std::thread::sleep(pause);
                            }
                            is_idle(0)
                        })
                    })
                    .collect();
                sweep(&places);
                assert!(heirs.into_iter().all(|heir| !heir.join().unwrap()));
                assert!(is_idle(0));
                place.set_usual(|thread| set(thread, libc::SCHED_OTHER).is_ok());
                assert!(!is_idle(0) && !place.gives_way());
                places.leave(&place);
                assert!(!place.set_idle(|_| unreachable!("it may be another's thread")));
            });
            ours.join().unwrap();
        });
    }

    #[test]
    fn many_requests_wake_who_looks() {
        let policy = Policy::default();
        let mut pace = Pace::new();
        // He looks already.
        (0..1000).for_each(|_| pace.one_more(&policy));
        assert_eq!(pace.requests, 0);
        policy.rests.store(true, Ordering::SeqCst);
        let slow = Instant::now().checked_sub(TICK * 2).unwrap_or_else(Instant::now);
        let mut pace = Pace { since: slow, requests: LIVELY - 1 };
        pace.one_more(&policy);
        assert!(policy.rests.load(Ordering::SeqCst), "that took them long");
        while policy.rests.load(Ordering::SeqCst) {
            pace.one_more(&policy);
        }
    }
}
