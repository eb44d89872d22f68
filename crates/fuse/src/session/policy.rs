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
//! after them, of the usual policy, sees every [`TICK`] whether one waits for its processor, and how long each had to (`schedstat`, which counts a
//! wait when it is over; proc(5)). One that is found waiting is given back the usual policy. Where that was too long, or one that was
//! found had a request, it keeps that for a while, each time for longer ([`Trust`]). So a request waits for a tick or two more than it
//! would have. Who looks waits for no lock that such a thread may hold for long, nor for memory. Threads that have nothing to do, and all before the one who looks goes to sleep, have the usual policy; so has one
//! that does something long ([`as_usual`]), as others may wait for that. (A commit that a write has to make for want of room is not known to be long: it
//! is found out at the next tick. A process that is killed may die later by the time that such a thread waits.)
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
//! thread. So a thread with a ring is set under the lock of its [`Place`], where it says that it ends. One that has this lock itself,
//! and what `sweep` finds, has been seen to be SCHED_IDLE and one of this process's a moment ago; numbers are given again when all others have had
//! their turn.
#![allow(unsafe_code, reason = "system calls that no safe library has; see above")]

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use rustix::fs::{Mode, OFlags, RawDir};

use super::Shared;
use super::places::{Place, Places};

/// Between two looks.
const TICK: Duration = Duration::from_millis(10);
/// Before a look that cannot wait so long: the first one after it was quiet, and one at a thread that was found waiting.
const SOON: Duration = Duration::from_millis(2);
/// A thread that answers so many requests in a tick is made SCHED_IDLE: fewer gain nothing.
const LIVELY: u64 = 16;
/// One that answers none for so many ticks is not any more.
const QUIET: u32 = 5;
/// A thread that had to wait for its processor for so long within a tick keeps others waiting. It waits a little wherever a program
/// computes for some time after it was answered.
const HELD_UP: Duration = Duration::from_millis(8);
/// For how long it is not SCHED_IDLE after that, the first time, and at most: so a program that is always in the way costs a
/// thousandth. A commit of our own is in the way for a moment.
const DISTRUST: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(10));
/// So many threads are looked at within a tick; of more, all that there are in the process every few ticks only.
const MANY: u64 = 64;
/// Bytes for a part of the list of threads.
const ROOM: usize = 8 << 10;
/// How often a thread that is busy with its own policy is asked before it is let go of.
const TRIES: u32 = 50;
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

fn policy_of(thread: i32) -> i32 {
    // SAFETY: see above.
    unsafe { libc::sched_getscheduler(thread) }
}

fn is_idle(thread: i32) -> bool {
    policy_of(thread) == libc::SCHED_IDLE
}

fn is_usual(thread: i32) -> bool {
    policy_of(thread) == libc::SCHED_OTHER
}

/// Whether threads of this process can be made SCHED_IDLE, and come back.
fn may_come_back() -> bool {
    let there_and_back = || set(0, libc::SCHED_IDLE).and_then(|()| set(0, libc::SCHED_OTHER));
    // Who has started all of it with another policy has had a reason.
    if !is_usual(0) {
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

/// Until when a thread is not made SCHED_IDLE.
struct Trust {
    from: Instant,
    /// Since the last disappointment.
    pause: Duration,
}

impl Trust {
    fn is_there(&self) -> bool {
        Instant::now() >= self.from
    }

    /// Somebody was held up. When all went well for longer than the last pause was, that is forgotten.
    fn disappoint(&mut self) {
        let now = Instant::now();
        let is_new = now.saturating_duration_since(self.from) > self.pause;
        self.pause = if is_new { DISTRUST.0 } else { DISTRUST.1.min(self.pause * 2) };
        self.from = now + self.pause;
    }
}

/// What `schedstat` tells of a thread.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Fate {
    ran: u64,
    waited: Duration,
    turns: u64,
}

impl Fate {
    /// `None`: the thread has ended, or the system does not tell.
    fn of(thread: i32) -> Option<Fate> {
        let mut text = [0; 96];
        let mut file = File::open(format!("/proc/self/task/{thread}/schedstat")).ok()?;
        let len = file.read(&mut text).ok()?;
        let mut numbers = std::str::from_utf8(text.get(..len)?).ok()?.split_whitespace();
        let mut number = || numbers.next()?.parse().ok();
        let (ran, waited, turns) = (number()?, number()?, number()?);
        Some(Fate { ran, waited: Duration::from_nanos(waited), turns })
    }
}

/// Whether a thread could run and does not sleep.
fn is_ready(thread: i32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/self/task/{thread}/stat"));
    // The name, in parentheses, may have any characters. Where it cannot be seen, that is no reason to wait.
    stat.map_or(true, |stat| stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('R')))
}

/// A thread with a ring, as it was at the last look.
struct Seen {
    place: Arc<Place>,
    /// The number of that look.
    look: u64,
    answered: u64,
    quiet: u32,
    /// Whether its processor is one on which to give way. Others may be: who asks comes there, if this one is busy.
    trust: Trust,
    /// Of one that gives way.
    fate: Option<Fate>,
    /// Of one that was found waiting for its processor: how it had fared until then, and its answers. It may have had a request, or
    /// only not come to sleep after the last one.
    found: Option<(Fate, u64)>,
}

impl Seen {
    fn first(place: Arc<Place>) -> Seen {
        let answered = place.answered();
        let trust = Trust { from: Instant::now(), pause: DISTRUST.0 / 2 };
        Seen { place, look: 0, answered, quiet: 0, trust, fate: None, found: None }
    }

    /// Makes it SCHED_IDLE, if it can be seen how it fares then.
    fn step_back(&mut self) {
        let fate = Fate::of(self.place.thread());
        let to_idle = |thread| is_usual(thread) && set(thread, libc::SCHED_IDLE).is_ok();
        if fate.is_some() && self.place.set_idle(to_idle) {
            self.fate = fate;
        }
    }

    /// Gives it back the usual policy, now or at the next look.
    fn as_usual(&mut self) {
        // Somebody may have given it another one meanwhile.
        let back = |thread| !is_idle(thread) || set(thread, libc::SCHED_OTHER).is_ok();
        if self.fate.is_some() && self.place.set_usual(back) {
            self.fate = None;
        }
    }

    /// Whether it was found waiting, has had its turn since, and the first thing that it did was to answer.
    fn had_a_request(&mut self) -> bool {
        let Some((fate, answered)) = self.found else { return false };
        let now = Fate::of(self.place.thread());
        if now == Some(fate) {
            return false;
        }
        self.found = None;
        now.is_some_and(|now| now.turns != fate.turns) && self.place.answered() != answered
    }

    /// How long it had to wait since the last look.
    fn held_up(&mut self) -> Duration {
        let thread = self.place.thread();
        let Some(before) = self.fate else { return Duration::ZERO };
        let Some(now) = Fate::of(thread) else {
            // It has ended, or there is nothing left to look at it with.
            self.as_usual();
            return Duration::ZERO;
        };
        self.fate = Some(now);
        // Who waits has it counted when it is over.
        if now == before && is_ready(thread) {
            self.found = Some((now, self.place.answered()));
            self.as_usual();
        }
        now.waited.saturating_sub(before.waited)
    }

    /// Requests answered since the last look.
    fn news(&mut self) -> u64 {
        let now = self.place.answered();
        let news = now.wrapping_sub(std::mem::replace(&mut self.answered, now));
        self.quiet = if news == 0 { self.quiet.saturating_add(1) } else { 0 };
        news
    }
}

impl Drop for Seen {
    fn drop(&mut self) {
        for _ in 0..TRIES {
            self.as_usual();
            if self.fate.is_none() {
                break;
            }
            std::thread::sleep(SOON);
        }
    }
}

/// Who looks.
struct Look {
    number: u64,
    all: BTreeMap<i32, Seen>,
    /// Room for what a directory lists: allocating some might wait for a thread that hardly runs.
    room: Vec<u8>,
}

impl Look {
    /// Sees how all threads fare, and makes them SCHED_IDLE or not; whether any of them has much to do.
    fn look(&mut self, places: &Places) -> bool {
        self.number += 1;
        for place in places.with_rings() {
            let seen = self.all.entry(place.thread()).or_insert_with(|| Seen::first(place.clone()));
            if !Arc::ptr_eq(&seen.place, &place) {
                *seen = Seen::first(place);
            }
            seen.look = self.number;
        }
        self.all.retain(|_, seen| seen.look == self.number);
        let mut any = false;
        for seen in self.all.values_mut() {
            if seen.had_a_request() | (seen.held_up() >= HELD_UP) {
                seen.trust.disappoint();
            }
            let is_trusted = seen.trust.is_there();
            let is_lively = seen.news() >= LIVELY;
            any |= is_lively;
            if seen.fate.is_some() && (seen.quiet >= QUIET || !is_trusted) {
                seen.as_usual();
            } else if seen.fate.is_none() && seen.found.is_none() && is_lively && is_trusted {
                seen.step_back();
            }
        }
        any
    }

    /// Whether it is time for a look at all threads there are: at each tick, unless they are very many.
    fn sweeps_now(&self) -> bool {
        self.number.is_multiple_of(1 + self.all.len() as u64 / MANY)
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
        let mut look = Look { number: 0, all: BTreeMap::new(), room: Vec::with_capacity(ROOM) };
        while self.is_woken_up() {
            // What was before has been long ago.
            for seen in look.all.values_mut() {
                seen.news();
                seen.found = None;
            }
            look.look(&self.places);
            let (mut tick, mut quiet, mut sweeps) = (SOON, 0, 0);
            while quiet < QUIET || sweeps > 0 {
                let is_over = self.ends_within(tick);
                let is_lively = look.look(&self.places);
                let is_found = look.all.values().any(|seen| seen.found.is_some());
                tick = if is_found { SOON } else { TICK };
                quiet = if is_lively { 0 } else { quiet + 1 };
                if quiet >= QUIET {
                    look.all.values_mut().for_each(Seen::as_usual);
                }
                if is_over {
                    look.all.clear();
                    for _ in 0..SWEEPS {
                        sweep(&self.places, &mut look.room);
                        std::thread::sleep(TICK);
                    }
                    return;
                }
                let give_way = look.all.values().any(|seen| seen.fate.is_some());
                sweeps = if give_way { SWEEPS } else { sweeps };
                if sweeps > 0 && (!give_way || look.sweeps_now()) {
                    sweeps -= 1;
                    sweep(&self.places, &mut look.room);
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
}

/// Does something that may take long in the calling thread, which has this place.
pub(super) fn as_usual<T>(place: &Place, work: impl FnOnce() -> T) -> T {
    let change = |to_idle| match to_idle {
        true => is_usual(0) && set(0, libc::SCHED_IDLE).is_ok(),
        false => !is_idle(0) || set(0, libc::SCHED_OTHER).is_ok(),
    };
    place.away(change, work)
}

/// Gives back the usual policy to what threads have started that were SCHED_IDLE, unless somebody has given all another one.
fn sweep(places: &Places, room: &mut Vec<u8>) {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let Ok(tasks) = rustix::fs::open("/proc/self/task", flags, Mode::empty()) else { return };
    if !is_usual(0) {
        return;
    }
    let places = places.with_rings();
    let is_ours = |thread| places.iter().any(|it| it.thread() == thread && it.gives_way());
    let mut listed = RawDir::new(tasks, room.spare_capacity_mut());
    while let Some(Ok(task)) = listed.next() {
        let thread = task.file_name().to_str().ok().and_then(|name| name.parse().ok());
        if let Some(thread) = thread.filter(|&thread| is_idle(thread) && !is_ours(thread)) {
            let _may_have_ended = set(thread, libc::SCHED_OTHER);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;

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
        let Some(long_ago) = Instant::now().checked_sub(DISTRUST.1 * 2) else { return };
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
        let (places, meet) = (Places::default(), Barrier::new(2));
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
                // Once they are there, and once somebody who is as usual has looked.
                meet.wait();
                meet.wait();
                assert!(heirs.into_iter().all(|heir| !heir.join().unwrap()));
                assert!(is_idle(0));
                place.set_usual(|thread| set(thread, libc::SCHED_OTHER).is_ok());
                assert!(!is_idle(0) && !place.gives_way());
                places.leave(&place);
                assert!(!place.set_idle(|_| unreachable!("it may be another's thread")));
            });
            meet.wait();
            sweep(&places, &mut Vec::with_capacity(256));
            meet.wait();
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
