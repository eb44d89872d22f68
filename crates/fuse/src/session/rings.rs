//! Serving over io_uring, where the kernel offers it (Linux 6.14 and newer, once root has said `Y` to
//! `/sys/module/fuse/parameters/enable_uring`).
//!
//! Each processor has a queue of requests, those of the programs that run on it. Here each queue has threads, each with a
//! [`Ring`] of one entry: the kernel gives a request only to a thread that has nothing to do, the one that was busy last, so
//! that its caches are warm. The threads of a queue stay on its processor: who asks and who answers take turns there, and no
//! other processor has to be woken up, which costs more than the request. Only reading ahead is better done elsewhere, beside
//! who reads ([`Seat`]).
//!
//! All queues have to have a thread before the kernel sends anything, and must not lose their last one: so threads and rings
//! are made before INIT is answered, and where one cannot be had, /dev/fuse is used as ever. What may wait long (an fsync) keeps its
//! thread; if that was the last free one of its queue, another one is started first. What the kernel has queued until then it gives
//! to whoever answers a request, and never to one who has just come, who may be the only one to answer anything for long. So a
//! thread that is going to wait has another process ask for something, unless nothing was queued any more since the last thread
//! had joined the queue: that is given to one who is free, and with his answer he gets what is queued ([`Shared::stir`]).
//!
//! /dev/fuse stays open beside the rings: FORGET and INTERRUPT come there, and notifications go there.

use std::fs;
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::Mutex;
use rustix::io::Errno;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use super::places::Place;
use super::policy::{self, Pace};
use super::{Shared, is_looking};
use crate::protocol::abi::{ReadIn, opcode};
use crate::protocol::channel::{Reply, Request};
use crate::protocol::ring::{Ring, Waited};

/// Most threads of all queues together, and at least of each one; with that many waiting, its requests wait until one is done.
const THREADS_MAX: (usize, usize) = (64, 8);
/// Most threads of a queue where requests about all that was written wait: those may not be the last ones.
const THREADS_AT_WORST: usize = 1024;
/// Descriptors that must be left when there are rings.
const SPARE_DESCRIPTORS: usize = 16;
/// Threads that a queue has from the start, at least.
const THREADS_MIN: usize = 2;

/// How often it is looked whether a queue is empty that this process cannot ask by.
const LOOKS: usize = 1000;
/// How long a request waits for the process that stirs its queue.
const STIRRING: Duration = Duration::from_millis(100);

/// A READ of so much is of the kernel's own accord.
const READAHEAD_BYTES: u32 = 64 << 10;
/// So many requests in a row move a thread.
const MOVE_AFTER: u32 = 2;

/// The queues of a session.
#[derive(Default)]
pub(super) struct Queues {
    all: Vec<Arc<Queue>>,
    payload_bytes: usize,
    /// All threads give the memory of large payloads back: they are more than memory was meant for.
    lean: bool,
    /// Where the process may run.
    anywhere: Option<CpuSet>,
    /// How often the kernel was asked to write what it keeps.
    asked: AtomicU64,
    /// One request at a time asks. What was asked last and has come to a good end.
    answered: Mutex<u64>,
}

/// That of one processor.
pub(super) struct Queue {
    processor: u16,
    threads: Mutex<Threads>,
    /// How many threads have joined it so far.
    joined: AtomicU64,
    /// How many had when no request was waiting in it, as far as is known.
    settled: AtomicU64,
}

#[derive(Clone, Copy)]
struct Threads {
    /// All of them.
    alive: usize,
    /// Those that do not wait for anything but requests.
    free: usize,
    /// Those that there should be from the start.
    wanted: usize,
    /// Most of them.
    most: usize,
}

/// A thread that reads /dev/fuse, and perhaps others with rings, before there is a session that they serve.
pub(super) struct Prepared {
    queues: Queues,
    threads: Vec<Waiting>,
}

/// A thread that waits for its session. One that is let go of has ended.
pub(super) struct Waiting {
    begin: Option<Sender<Arc<Shared>>>,
    thread: Option<JoinHandle<()>>,
}

impl Waiting {
    /// Starts one, which does `first`, says whether that went well, and then what is to be done `with` its session.
    fn start<T>(
        made: &Sender<bool>,
        first: impl FnOnce() -> Option<T> + Send + 'static,
        with: impl FnOnce(T, Arc<Shared>) + Send + 'static,
    ) -> io::Result<Waiting> {
        let (begin, begins): (_, Receiver<Arc<Shared>>) = channel();
        let made = made.clone();
        let body = move || {
            let first = first();
            let told = made.send(first.is_some());
            drop(made);
            if let (Some(first), Ok(()), Ok(shared)) = (first, told, begins.recv()) {
                drop(begins);
                with(first, shared);
            }
        };
        let thread = std::thread::Builder::new().name("buttress-ring".to_owned()).spawn(body)?;
        Ok(Waiting { begin: Some(begin), thread: Some(thread) })
    }

    /// Has it serve a session.
    pub(super) fn begin(mut self, shared: &Arc<Shared>) {
        // It has said that it waits.
        let _sent = self.begin.take().map(|begin| begin.send(Arc::clone(shared)));
        self.thread = None;
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.begin = None;
        // Others may need what the system allows in its place.
        let _ended = self.thread.take().map(JoinHandle::join);
    }
}

impl Prepared {
    /// Rings with their threads, if the system gives all that is needed, and in any case a reader of /dev/fuse, if it gives a thread.
    /// `readers`: threads of all queues together that there should be, each of which has one payload.
    pub(super) fn new(payload_bytes: usize, readers: usize) -> Prepared {
        let (made, is_made) = channel();
        // The first, so that it is there where the rest is not: the system takes its time to forget a thread that has ended.
        let reader = Waiting::start(&made, || Some(()), |(), it| it.read_requests()).ok();
        drop(made);
        let reader = reader.filter(|_| is_made.recv().is_ok());
        let rings = reader.as_ref().and_then(|_| rings(payload_bytes, readers));
        let (queues, threads) = rings.unwrap_or_default();
        Prepared { queues, threads: reader.into_iter().chain(threads).collect() }
    }

    /// What the session is to know of them, and who waits for it, the reader of /dev/fuse first.
    pub(super) fn into_parts(self) -> (Queues, Vec<Waiting>) {
        (self.queues, self.threads)
    }

    /// Whether there are rings.
    pub(super) fn has_rings(&self) -> bool {
        self.queues.are_used()
    }
}

/// A queue for each processor, and a thread with a ring for each queue; `None` where the system does not give all that is needed.
fn rings(payload_bytes: usize, readers: usize) -> Option<(Queues, Vec<Waiting>)> {
    let processors = processors("possible")?;
    // To see to all queues, one has to be able to run where programs do.
    let mine = sched_getaffinity(None).ok()?;
    if !processors_online()?.iter().all(|&processor| mine.is_set(processor)) {
        return None;
    }
    let count = processors.len().max(1);
    let wanted = (readers / count).max(THREADS_MIN);
    let most = (THREADS_MAX.0 / count).max(THREADS_MAX.1);
    let queue = |processor| {
        let threads = Mutex::new(Threads { alive: 1, free: 0, wanted, most });
        let [joined, settled] = Default::default();
        Arc::new(Queue { processor, threads, joined, settled })
    };
    let all: Vec<Arc<Queue>> = (0..u16::try_from(count).ok()?).map(queue).collect();
    let (made, are_made) = channel();
    let first = |queue: &Arc<Queue>| {
        let queue = Arc::clone(queue);
        let serve = move |ring, shared: Arc<Shared>| shared.serve_first(&queue, ring);
        Waiting::start(&made, move || Ring::new(payload_bytes).ok(), serve)
    };
    let threads: Vec<Waiting> = all.iter().map(first).collect::<io::Result<_>>().ok()?;
    // One that dies without a word is not waited for.
    drop(made);
    let all_made = threads.iter().all(|_| are_made.recv().is_ok_and(|made: bool| made));
    // Whoever has hardly any descriptors needs them for other things.
    let spare: io::Result<Vec<fs::File>> =
        (0..SPARE_DESCRIPTORS).map(|_| fs::File::open("/dev/null")).collect();
    let lean = wanted * count > readers.max(THREADS_MIN * 2);
    let anywhere = Some(mine);
    let queues = Queues { all, payload_bytes, lean, anywhere, ..Queues::default() };
    (all_made && spare.is_ok()).then_some((queues, threads))
}

/// Numbers of processors, as the system lists them: `0-3,8`.
fn processors(which: &str) -> Option<Vec<usize>> {
    let text = fs::read_to_string(format!("/sys/devices/system/cpu/{which}")).ok()?;
    parse_list(text.trim())
}

pub(super) fn processors_online() -> Option<Vec<usize>> {
    processors("online")
}

fn parse_list(text: &str) -> Option<Vec<usize>> {
    let mut all = Vec::new();
    for range in text.split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        if last >= CpuSet::MAX_CPU || first > last {
            return None;
        }
        all.extend(first..=last);
    }
    Some(all)
}

impl Queue {
    /// The calling thread is going to wait. Whether others are free, or a new one is to be started to be so; there `must` be one.
    fn step_out(&self, must: bool) -> Others {
        let mut threads = self.threads.lock();
        threads.free -= 1;
        if threads.free > 0 {
            return Others::Free;
        }
        if threads.alive >= if must { THREADS_AT_WORST } else { threads.most } {
            return Others::None;
        }
        threads.alive += 1;
        Others::Wanted
    }

    /// One of those that were wanted does not come.
    fn is_not_coming(&self) {
        self.threads.lock().alive -= 1;
    }

    /// The calling thread is there: requests can be given to it.
    fn join(&self) {
        let mut threads = self.threads.lock();
        // Before anybody counts on it.
        self.joined.fetch_add(1, Ordering::SeqCst);
        threads.free += 1;
    }

    /// How many threads have joined it, if a request may be waiting in it although one of them is free.
    fn unsettled(&self) -> Option<u64> {
        let joined = self.joined.load(Ordering::SeqCst);
        (joined != self.settled.load(Ordering::SeqCst)).then_some(joined)
    }

    /// It waits no more.
    fn step_in(&self) {
        self.threads.lock().free += 1;
    }

    /// A thread that was free is not there any more; whether the queue has others that are free.
    fn is_missing_one(&self) -> bool {
        let mut threads = self.threads.lock();
        threads.alive -= 1;
        threads.free -= 1;
        threads.free > 0
    }
}

/// Whether the kernel reads so much that it is surely ahead of a program.
fn reads_ahead(request: &Request<'_>) -> bool {
    request.opcode() == opcode::READ
        && (request.body().read::<ReadIn>()).is_ok_and(|wish| wish.size >= READAHEAD_BYTES)
}

/// Where a thread runs: on the processor of its queue, or, while it does what the kernel reads ahead, wherever there is room.
struct Seat {
    processor: u16,
    /// Where the process may run.
    anywhere: Option<CpuSet>,
    stays: bool,
    /// Requests in a row that would be better done at the other place.
    against: u32,
}

impl Seat {
    /// The calling thread stays on this processor.
    fn take(processor: u16, anywhere: Option<CpuSet>) -> Seat {
        let mut seat = Seat { processor, anywhere, stays: false, against: 0 };
        seat.move_to(true);
        seat
    }

    /// A request is about to be handled. To move costs as much as some requests, so that one alone is no reason.
    fn suit(&mut self, ahead: bool) {
        self.against = if ahead == self.stays { self.against + 1 } else { 0 };
        if self.against >= MOVE_AFTER {
            self.move_to(!ahead);
        }
    }

    fn move_to(&mut self, stays: bool) {
        (self.stays, self.against) = (stays, 0);
        self.go(stays);
    }

    fn go(&self, here: bool) {
        let mut one = CpuSet::new();
        one.set(usize::from(self.processor));
        let place = if here { Some(one) } else { self.anywhere };
        // A processor that is not there has no requests; elsewhere it is slower, and no less right.
        let _moved = place.map(|place| sched_setaffinity(None, &place));
    }

    /// Does what takes long wherever there is room: a thread that it starts begins where its starter may run, and would have to wait for him.
    fn leave<T>(&self, work: impl FnOnce() -> T) -> T {
        if !self.stays {
            return work();
        }
        self.go(false);
        let done = work();
        self.go(true);
        done
    }
}

/// Threads of a queue besides one that is going to wait.
#[derive(Debug, PartialEq, Eq)]
enum Others {
    Free,
    /// None; one is to be started.
    Wanted,
    None,
}

impl Queues {
    /// Whether there are any.
    pub(super) fn are_used(&self) -> bool {
        !self.all.is_empty()
    }
}

/// A thread among those that may have data in hand.
struct Seated<'s> {
    shared: &'s Shared,
    place: Arc<Place>,
}

impl<'s> Seated<'s> {
    /// The calling thread is one of them: to be called before the kernel can give it anything. `is_first` of its queue?
    fn take(shared: &'s Shared, queue: &Queue, is_first: bool) -> Self {
        let (places, processor) = (&shared.places, queue.processor);
        let place =
            if is_first { places.take_first(processor) } else { places.take(Some(processor)) };
        Seated { shared, place }
    }
}

impl Drop for Seated<'_> {
    fn drop(&mut self) {
        self.place.done();
        self.shared.places.leave(&self.place);
    }
}

/// A request that is being handled.
struct Active<'s>(&'s AtomicUsize);

impl<'s> Active<'s> {
    fn one_more(count: &'s AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::SeqCst);
        Active(count)
    }
}

impl Drop for Active<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// A thread that panics would leave its queue to nobody: the session ends instead.
struct EndOnPanic<'s>(&'s Shared);

impl Drop for EndOnPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.end();
        }
    }
}

impl Shared {
    /// Starts what threads the queues should have besides their first ones.
    pub(super) fn complete_queues(self: &Arc<Self>) {
        for queue in &self.queues.all {
            let mut missing = queue.threads.lock().wanted - 1;
            while missing > 0 {
                queue.threads.lock().alive += 1;
                missing = if self.start_another(queue) { missing - 1 } else { 0 };
            }
        }
    }

    /// Starts a thread for a queue, which counts it among those alive already; `true` when it can be given requests.
    fn start_another(self: &Arc<Self>, queue: &Arc<Queue>) -> bool {
        let lean = self.queues.lean || {
            let threads = queue.threads.lock();
            threads.alive > threads.wanted
        };
        let (has_begun, begun) = channel();
        let (shared, own) = (Arc::clone(self), Arc::clone(queue));
        let body = move || {
            let seat = Seat::take(own.processor, shared.queues.anywhere);
            let place = Seated::take(&shared, &own, false);
            let ring = Ring::new(shared.queues.payload_bytes).ok().and_then(|mut ring| {
                let registered = ring.register(shared.channel.as_fd(), own.processor);
                registered.ok().map(|()| ring)
            });
            if ring.is_some() {
                own.join();
            }
            let _somebody_waits = has_begun.send(ring.is_some());
            if let Some(ring) = ring {
                shared.serve_queue(&own, place, seat, ring, lean);
            }
        };
        let started = std::thread::Builder::new().name("buttress-ring".to_owned()).spawn(body);
        let is_there = started.is_ok() && begun.recv().unwrap_or(false);
        if !is_there {
            queue.is_not_coming();
        }
        is_there
    }

    /// Body of the first thread of a queue.
    fn serve_first(self: &Arc<Self>, queue: &Arc<Queue>, mut ring: Ring) {
        let place = Seated::take(self, queue, true);
        match ring.register(self.channel.as_fd(), queue.processor) {
            Ok(()) => {
                queue.join();
                let seat = Seat::take(queue.processor, self.queues.anywhere);
                self.serve_queue(queue, place, seat, ring, self.queues.lean);
                self.end();
            }
            // The kernel does without rings then, as nothing has come by one.
            Err(error) => self.tell(&format!("no io_uring: {error}")),
        }
    }

    /// Body of a thread of a queue.
    fn serve_queue(
        self: &Arc<Self>,
        queue: &Arc<Queue>,
        place: Seated<'_>,
        mut seat: Seat,
        mut ring: Ring,
        lean: bool,
    ) {
        let _no_queue_without_threads = EndOnPanic(self);
        let mut pace = Pace::new();
        loop {
            let unsettled = queue.unsettled();
            let waited =
                ring.wait(self.channel.as_fd(), queue.processor, lean, unsettled.is_some());
            if let Some(joined) = unsettled.filter(|_| ring.found_none()) {
                queue.settled.fetch_max(joined, Ordering::SeqCst);
            }
            match waited {
                Ok(Waited::Request) => place.place.receives(),
                Ok(Waited::Ended) => break self.end(),
                Err(error) => {
                    self.tell(&format!("io_uring, processor {}: {error}", queue.processor));
                    // Nobody would answer for those that wait.
                    if !queue.is_missing_one() {
                        self.end();
                    }
                    break;
                }
            }
            let served = ring.serve(|request, tray| {
                self.places.begin(&place.place, request);
                pace.one_more(&self.policy);
                seat.suit(reads_ahead(request));
                let reply = Reply::gathered(&self.channel, request, tray);
                self.serve_queued(queue, (&place.place, &seat), request, reply);
            });
            place.place.done();
            if let Err(error) = served {
                self.tell(&format!("io_uring: a request that makes no sense: {error}"));
                break self.end();
            }
        }
        self.farewell.is_over();
    }

    fn serve_queued(
        self: &Arc<Self>,
        queue: &Arc<Queue>,
        (place, seat): (&Place, &Seat),
        request: &Request<'_>,
        reply: Reply<'_>,
    ) {
        if !is_looking(request.opcode()) {
            self.is_used();
        }
        if request.opcode() == opcode::DESTROY && self.used.load(Ordering::SeqCst) {
            self.end();
            self.farewell.wait();
            return reply.done();
        }
        let _until_it_is_handled = Active::one_more(&self.active);
        let stopping = self.stopping.load(Ordering::SeqCst);
        let about_all = !stopping && self.handler.wants_all_written(request);
        if about_all || !stopping && self.handler.may_wait(request) {
            let serve = || self.serve_long(queue, about_all, request, reply);
            policy::as_usual(place, || if about_all { seat.leave(serve) } else { serve() });
        } else {
            self.serve(request, reply);
        }
    }

    /// Handles a request that may wait, while others are free for the next ones.
    fn serve_long(
        self: &Arc<Self>,
        queue: &Arc<Queue>,
        about_all: bool,
        request: &Request<'_>,
        reply: Reply<'_>,
    ) {
        let told = self.handler.pages_told_of();
        let others = match queue.step_out(about_all) {
            Others::Wanted if !self.start_another(queue) => Others::None,
            others => others,
        };
        if others != Others::None && queue.unsettled().is_some() {
            self.stir(queue.processor);
        }
        let written = about_all.then(|| self.write_back_beside(&others));
        match written {
            Some(written) => self.handle_after((told, written), request, reply),
            None => self.serve(request, reply),
        }
        queue.step_in();
    }

    /// Has another process ask for something by a queue: who is free there answers, and gets what came before. Where there is no
    /// process to be had, that waits until one who waits is done.
    ///
    /// The process is waited for, so that it does not keep anybody from unmounting afterwards, but not long: its path may lead over
    /// something else that hangs. Others may wait so, too, each for a process of its own: that of the last one is answered by the
    /// thread that he has started.
    fn stir(self: &Arc<Self>, processor: u16) {
        let (shared, (has_ended, ended)) = (Arc::clone(self), channel());
        let ask = move || {
            let _programs_run_where_they_are_started = Seat::take(processor, None);
            let _all_that_can_be_done = shared.ask_for_space();
            let _somebody_waits = has_ended.send(());
        };
        let thread = std::thread::Builder::new().name("buttress-stir".to_owned());
        if thread.spawn(ask).is_ok() {
            let _it_goes_on_by_itself = ended.recv_timeout(STIRRING);
        }
    }

    /// Has the kernel write what it keeps, which others have to answer meanwhile.
    fn write_back_beside(&self, others: &Others) -> Result<(), Errno> {
        if *others == Others::None {
            return Err(Errno::IO);
        }
        let queues = &self.queues;
        let seen = queues.asked.load(Ordering::SeqCst);
        let mut answered = queues.answered.lock();
        // Somebody has asked since: that was about what this request is about, too.
        if *answered > seen {
            return Ok(());
        }
        let asked = queues.asked.fetch_add(1, Ordering::SeqCst) + 1;
        self.write_back()?;
        *answered = asked;
        Ok(())
    }

    /// Lets `ask` ask the kernel something by every queue that requests may wait in.
    pub(super) fn on_all_queues(&self, ask: impl Fn() -> Result<(), String>) -> Result<(), String> {
        if !self.queues.are_used() {
            return ask();
        }
        let before = sched_getaffinity(None).map_err(|error| error.to_string())?;
        let asked = processors_online().ok_or("which processors?".to_owned()).and_then(|all| {
            for processor in all {
                let mut one = CpuSet::new();
                one.set(processor);
                match sched_setaffinity(None, &one) {
                    Ok(()) => ask()?,
                    // What has gone away since has no requests.
                    Err(_) if processors_online().is_some_and(|all| !all.contains(&processor)) => {}
                    // This process may not run there any more (a control group). Who asks is not needed where all was received.
                    Err(_) if self.places.wait_for_queue(processor, LOOKS) => {}
                    Err(error) => return Err(format!("processor {processor}: {error}")),
                }
            }
            Ok(())
        });
        let _where_it_may_run_now = sched_setaffinity(None, &before);
        asked
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_processors() {
        assert_eq!(parse_list("0-3,8"), Some(vec![0, 1, 2, 3, 8]));
        assert_eq!(parse_list("0"), Some(vec![0]));
        assert_eq!(parse_list(""), None);
        assert_eq!(parse_list("3-1"), None);
        assert_eq!(parse_list("0-99999999999"), None);
        assert!(processors_online().is_some_and(|online| !online.is_empty()));
    }

    #[test]
    fn the_last_free_thread_of_a_queue_is_replaced() {
        let threads = Mutex::new(Threads { alive: 2, free: 2, wanted: 2, most: 8 });
        let [joined, settled] = Default::default();
        let queue = Queue { processor: 0, threads, joined, settled };
        assert_eq!(queue.step_out(false), Others::Free);
        assert_eq!(queue.step_out(false), Others::Wanted);
        queue.is_not_coming();
        queue.step_in();
        assert_eq!(queue.step_out(false), Others::Wanted);
        assert_eq!(queue.unsettled(), None);
        for _ in 3..8 {
            queue.join();
            assert_eq!(queue.step_out(false), Others::Wanted);
        }
        assert_eq!(queue.unsettled(), Some(5));
        queue.step_in();
        assert_eq!(queue.step_out(false), Others::None);
        queue.step_in();
        assert_eq!(queue.step_out(true), Others::Wanted, "what must not be the last one");
    }
}
