//! Devices that fail while they are used.
//!
//! A workload is run again and again, and each time another operation of the device fails. What is demanded:
//!
//! * what fails is an error that names the device's own, never a panic of ours, and nothing hangs;
//! * an operation of the filesystem during which a write or a barrier failed does not claim success, but for what goes on
//!   when it has done its part, and for a copy of the superblock, about which there is a warning;
//! * once a commit has failed, nothing more is changed or written, and the first cause is what everyone hears;
//! * on the healed device is the last commit that was acknowledged, or the one under way, whole: it passes the judge of
//!   crashes. Where the filesystem lives on, the operation that failed was done whole or not at all, or in
//!   part where it goes in steps.
//!
//! The same with panics: of the device under an operation or a commit, and between two steps that one of them takes. Whoever
//! has caught one finds a filesystem that has aborted, and on the device is a commit, whole.

use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, Once};
use std::time::{Duration, Instant};

use buttress::{Errno, Error, Node};
use buttress_device::testing::{Effect, FaultyDevice, OperationFault, PANIC as DEVICE_PANIC};
use buttress_device::{MemoryDevice, Op as DeviceOp};

use super::judge::examine;
use super::promise::{Rules, Span, Synced};
use super::record::{Expected, Recording, promises, record_alone};
use super::run::guarded;
use super::workloads::Workload;
use crate::model::Model;
use crate::ops::Op;
use crate::ops::rng::Rng;
use crate::ops::run::{Clock, Failure, PANIC, Result, Runner, fail};
use crate::ops::shrink::message;

/// How long one run may take before it counts as hanging: no run takes seconds.
const HANGS: Duration = Duration::from_secs(300);
/// Failures after which a workload has shown enough.
const FAILURES_MAX: usize = 5;

/// How a device fails, or the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Its name.
    pub name: &'static str,
    /// Which operations of the device are counted and fail.
    pub op: Option<DeviceOp>,
    /// Steps of the engine are counted instead.
    steps: bool,
    /// Whether it is a panic.
    panics: bool,
    /// Whether nothing is cached when an operation begins.
    cold: bool,
    /// Whether all later ones fail, too.
    sticky: bool,
    effect: Effect,
    errno: Errno,
}

const READ: Option<DeviceOp> = Some(DeviceOp::Read);
const WRITE: Option<DeviceOp> = Some(DeviceOp::Write);
const BARRIER: Option<DeviceOp> = Some(DeviceOp::Barrier);

const fn fault(name: &'static str, op: Option<DeviceOp>, sticky: bool, errno: Errno) -> Fault {
    let (steps, panics, cold) = (false, false, false);
    Fault { name, op, steps, panics, cold, sticky, effect: Effect::Nothing, errno }
}

const fn panic(name: &'static str, op: Option<DeviceOp>) -> Fault {
    Fault { panics: true, ..fault(name, op, false, Errno::IO) }
}

/// All ways to fail.
pub const FAULTS: [Fault; 15] = [
    fault("a read fails", READ, false, Errno::IO),
    fault("reads fail from now on", READ, true, Errno::IO),
    fault("a write fails", WRITE, false, Errno::IO),
    Fault { effect: Effect::Half, ..fault("a write is cut short", WRITE, false, Errno::IO) },
    Fault { effect: Effect::Whole, ..fault("a write is done and fails", WRITE, false, Errno::IO) },
    fault("writes fail from now on", WRITE, true, Errno::IO),
    fault("the host has no space", WRITE, true, Errno::NOSPC),
    fault("the device turns read-only", WRITE, true, Errno::ROFS),
    fault("a barrier fails", BARRIER, false, Errno::IO),
    fault("the device is gone", None, true, Errno::NODEV),
    Fault { cold: true, ..fault("a read of what was cached fails", READ, false, Errno::IO) },
    panic("a read panics", READ),
    panic("a write panics", WRITE),
    panic("a barrier panics", BARRIER),
    Fault { steps: true, ..panic("a step panics", None) },
];

/// What was done.
#[derive(Clone, Copy, Debug, Default)]
pub struct FaultTally {
    /// Faults that could have been: operations of the device, times the ways in which they can fail.
    pub possible: u64,
    /// Runs.
    pub runs: u64,
    /// Runs in which a commit failed and nothing could be written any more.
    pub aborted: u64,
    /// Runs in which an operation failed and the filesystem lived on.
    pub survived: u64,
    /// Runs in which the filesystem could not be opened.
    pub unopened: u64,
    /// Runs in which nobody noticed: another copy helped, or nothing was lost.
    pub unnoticed: u64,
    /// Seconds.
    pub seconds: f64,
}

impl std::ops::AddAssign for FaultTally {
    fn add_assign(&mut self, other: FaultTally) {
        self.possible += other.possible;
        self.runs += other.runs;
        self.aborted += other.aborted;
        self.survived += other.survived;
        self.unopened += other.unopened;
        self.unnoticed += other.unnoticed;
        self.seconds += other.seconds;
    }
}

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Aborted,
    Survived,
    Unopened,
    Unnoticed,
}

/// Runs a workload with up to `points` faults of each kind, chosen by the seed, or with only one, of this name at this
/// operation of the device; answers what was done and what went wrong.
pub fn run(
    workload: &Workload,
    points: usize,
    seed: u64,
    only: Option<&(String, u64)>,
) -> (FaultTally, Vec<String>) {
    quiet();
    let began = Instant::now();
    let (mut tally, mut failures) = (FaultTally::default(), Vec::new());
    match guarded(|| {
        Ok((record_alone(workload)?, counts(workload, false)?, counts(workload, true)?))
    }) {
        Ok((recording, warm, cold)) => {
            let recording = Arc::new(recording);
            for fault in FAULTS {
                let counts = if fault.cold { &cold } else { &warm };
                let total = if fault.steps { counts.steps } else { counts.of(fault.op) };
                tally.possible += total;
                let points = match only {
                    None => chosen(total, points, seed),
                    Some((name, at)) if name == fault.name => vec![*at],
                    Some(_) => Vec::new(),
                };
                for at in points {
                    tally.runs += 1;
                    match watched(workload, &recording, fault, at) {
                        Ok(End::Aborted) => tally.aborted += 1,
                        Ok(End::Survived) => tally.survived += 1,
                        Ok(End::Unopened) => tally.unopened += 1,
                        Ok(End::Unnoticed) => tally.unnoticed += 1,
                        Err(Failure(why)) => {
                            failures
                                .push(format!("{}, {} at {at}: {why}", workload.name, fault.name));
                        }
                    }
                    if failures.len() >= FAILURES_MAX {
                        tally.seconds = began.elapsed().as_secs_f64();
                        return (tally, failures);
                    }
                }
            }
        }
        Err(Failure(why)) => failures.push(format!("{}: {why}", workload.name)),
    }
    tally.seconds = began.elapsed().as_secs_f64();
    (tally, failures)
}

/// Panics that are planned go without a word.
fn quiet() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            let text = message(info.payload());
            let planned = [PANIC, DEVICE_PANIC, SCOPED].iter().any(|plan| text.starts_with(plan));
            if !planned {
                before(info);
            }
        }));
    });
}

/// What is said where a thread of a scope has panicked.
const SCOPED: &str = "a scoped thread panicked";

/// Which of `total` operations fail.
fn chosen(total: u64, points: usize, seed: u64) -> Vec<u64> {
    if points as u64 >= total {
        return (0..total).collect();
    }
    let mut rng = Rng::new(seed);
    let mut found: Vec<u64> = (0..points).map(|_| rng.below(total)).collect();
    found.sort_unstable();
    found.dedup();
    found
}

/// Operations of a device.
#[derive(Clone, Copy, Debug)]
struct DeviceCounts {
    reads: u64,
    writes: u64,
    barriers: u64,
    /// Not of the device: of the engine.
    steps: u64,
}

impl DeviceCounts {
    fn of(&self, op: Option<DeviceOp>) -> u64 {
        match op {
            READ => self.reads,
            WRITE => self.writes,
            BARRIER => self.barriers,
            _ => self.reads + self.writes + self.barriers,
        }
    }
}

/// A run without faults.
fn counts(workload: &Workload, cold: bool) -> Result<DeviceCounts> {
    let device = Arc::new(FaultyDevice::new(Arc::new(workload.config.make()?)));
    let mut runner = Runner::over(device.clone(), &workload.config)?;
    let mut source = workload.source();
    while let Some(op) = source.next(runner.model()) {
        if cold {
            runner.fs().drop_caches();
        }
        runner.step(&op)?;
    }
    let of = |op| device.count(op);
    let (reads, writes) = (of(DeviceOp::Read), of(DeviceOp::Write));
    let steps = runner.clock().steps().taken();
    Ok(DeviceCounts { reads, writes, barriers: of(DeviceOp::Barrier), steps })
}

/// A run on a thread of its own, which is given up when it hangs.
fn watched(workload: &Workload, recording: &Arc<Recording>, fault: Fault, at: u64) -> Result<End> {
    let (sender, receiver) = channel();
    let (workload, recording) = (*workload, recording.clone());
    let thread = std::thread::spawn(move || {
        let end = guarded(|| Run::new(&workload, &recording, fault, at)?.go());
        let _ = sender.send(end);
    });
    match receiver.recv_timeout(HANGS) {
        Ok(end) => end,
        Err(RecvTimeoutError::Timeout) => fail("hangs"),
        Err(RecvTimeoutError::Disconnected) => {
            let _ = thread.join();
            fail("ended without a word")
        }
    }
}

/// Whether an operation has more to do when it has done its part: it lets go of data in steps, or, at a close, of deleted
/// subvolumes. What fails then is heard of by the next operation.
fn goes_on(op: &Op) -> bool {
    matches!(op, Op::Unlink { .. } | Op::Rename { .. } | Op::Release { .. } | Op::Reopen)
}

/// A run in which something fails.
struct Run<'r> {
    workload: &'r Workload,
    recording: &'r Recording,
    fault: Fault,
    memory: Arc<MemoryDevice>,
    device: Arc<FaultyDevice>,
    clock: Clock,
    /// The last transaction that was acknowledged.
    promised: u64,
    /// The operation under way, from 1; 0 is opening.
    number: usize,
    /// Transactions of this run, and during which operation each became durable. Where there are logs, they may be others than in the
    /// recording: where a log cannot be written an fsync is a commit.
    commits: Vec<(u64, usize)>,
    /// Operations that have made something durable, and what.
    synced: Vec<(usize, Node)>,
    /// What this run has at its end, where that may not be what the recording has.
    own: Vec<Model>,
}

impl<'r> Run<'r> {
    fn new(
        workload: &'r Workload,
        recording: &'r Recording,
        fault: Fault,
        at: u64,
    ) -> Result<Run<'r>> {
        let memory = Arc::new(workload.config.make()?);
        let device = Arc::new(FaultyDevice::new(memory.clone()));
        let clock = Clock::default();
        let Fault { op, sticky, effect, errno, panics, .. } = fault;
        match fault.steps {
            true => clock.steps().panic_at(at),
            false => device.fail_operation(OperationFault {
                op,
                after: at,
                sticky,
                effect,
                errno,
                panics,
            }),
        }
        let promised = recording.promised(0);
        let (number, commits) = (0, vec![(promised, 0)]);
        Ok(Run {
            workload,
            recording,
            fault,
            memory,
            device,
            clock,
            promised,
            number,
            commits,
            synced: Vec::new(),
            own: Vec::new(),
        })
    }

    fn go(mut self) -> Result<End> {
        let open =
            || Runner::by_clock(self.device.clone(), &self.workload.config, self.clock.clone());
        let mut runner = match guarded(open) {
            Ok(runner) => runner,
            Err(failure) => {
                self.is_clean(failure)?;
                self.judge_versions()?;
                return Ok(End::Unopened);
            }
        };
        let mut source = self.workload.source();
        while let Some(op) = source.next(runner.model()) {
            self.number += 1;
            let (done, failed) = (runner.counts.done, self.device.failed());
            if self.fault.cold {
                runner.fs().drop_caches();
            }
            if let Err(failure) = guarded(|| runner.step(&op)) {
                self.is_clean(failure)?;
                return self.after(runner);
            }
            // Reads can be made good by another copy; a copy of the superblock that cannot be written is a warning.
            let may_be_unheard = matches!(self.fault.op, READ | None)
                || goes_on(&op)
                || self.fault.op == WRITE && !runner.fs().warnings().is_empty();
            if self.device.failed() > failed && !may_be_unheard {
                return fail(format!("operation {} ({op}) claims success", self.number));
            }
            let transid = runner.fs().info().generation;
            if promises(&op, runner.counts.done > done) {
                self.promised = transid;
            }
            if self.commits.last().is_some_and(|(last, _)| *last < transid) {
                self.commits.push((transid, self.number));
            }
            let synced = self.recording.ops.get(self.number - 1).and_then(|it| it.synced);
            self.synced.extend(synced.map(|node| (self.number, node)));
        }
        // Dropping it commits.
        self.number += 1;
        // What cannot be read is not written to, so with less room more may have been refused than in the recording.
        if self.fault.op == READ && self.device.failed() > 0 {
            self.own = vec![runner.model().clone()];
        }
        let dropped = guarded(|| {
            drop(runner);
            Ok(())
        });
        self.device.heal();
        match dropped {
            Ok(()) if !self.own.is_empty() => self.judge_now()?,
            Ok(()) => self.judge_versions()?,
            Err(failure) => {
                self.is_clean(failure)?;
                self.judge_versions()?;
            }
        }
        Ok(End::Unnoticed)
    }

    /// A failure must come from the device, and say so.
    fn is_clean(&self, Failure(why): Failure) -> Result<()> {
        if self.fault.panics {
            let ours = [PANIC, DEVICE_PANIC, SCOPED, "panicked"];
            return match ours.iter().any(|text| why.contains(text)) {
                true => Ok(()),
                false => fail(format!("operation {}: {why}", self.number)),
            };
        }
        let named = std::io::Error::from(self.fault.errno).to_string();
        let named = named.split(" (os error").next().unwrap_or_default();
        match self.device.failed() > 0 && why.contains(named) {
            true => Ok(()),
            false => fail(format!("operation {}: {why}", self.number)),
        }
    }

    /// An operation has failed. What is left of the filesystem?
    fn after(&self, runner: Runner) -> Result<End> {
        let Some(fs) = runner.opened().cloned() else {
            drop(runner);
            self.device.heal();
            self.judge_versions()?;
            return Ok(End::Unopened);
        };
        let aborted = match fs.commit() {
            Ok(_) if self.fault.steps && !self.has_mere_looks() => {
                let when = self.recording.around(self.number).when;
                return fail(format!("a commit after a panic in {when}"));
            }
            Ok(transid) => {
                drop(runner);
                fs.close().map_err(|error| Failure(format!("close: {error}")))?;
                return self.lives_on(transid);
            }
            Err(error) => error,
        };
        let cause = self.cause(&aborted)?;
        // The device is well again: too late, nothing may be written.
        self.device.heal();
        let before = self.device.count(DeviceOp::Write);
        for error in [fs.commit().err(), fs.set_label(b"late").err()] {
            let again = error.ok_or(Failure("a filesystem that failed is written".into()))?;
            if self.cause(&again)? != cause || again.errno() != Errno::ROFS {
                return fail(format!("the cause was {cause}, and then {again}"));
            }
        }
        if !fs.is_read_only() || fs.attributes(Node::ROOT).is_err() {
            return fail("a filesystem that failed is not readable, or not read-only");
        }
        drop(runner);
        drop(fs);
        if self.device.count(DeviceOp::Write) != before {
            return fail("something was written after a failed commit");
        }
        self.judge_versions()?;
        Ok(End::Aborted)
    }

    /// Whether the operation takes steps that change nothing: who compares lists the subvolumes, as who reopens does behind that, and who switches quotas
    /// counts before.
    fn has_mere_looks(&self) -> bool {
        let op = self.number.checked_sub(1).and_then(|at| self.recording.ops.get(at));
        op.is_some_and(|it| matches!(it.op, Op::Reopen | Op::Compare | Op::Quotas { .. }))
    }

    /// What the filesystem says is why it failed; it must be what the device said.
    fn cause(&self, error: &Error) -> Result<String> {
        let text = match error {
            Error::Aborted(cause) => cause.to_string(),
            error => error.to_string(),
        };
        self.is_clean(Failure(text.clone()))?;
        Ok(text)
    }

    /// The operation failed, and nothing else: it was done or it was not.
    fn lives_on(&self, transid: u64) -> Result<End> {
        self.device.heal();
        examine(&self.workload.config, &self.memory.snapshot(), |found| match found >= transid {
            true => Ok(self.recording.around(self.number)),
            false => fail(format!("transaction {found}, but {transid} was acknowledged")),
        })?;
        Ok(End::Survived)
    }

    /// What failed has not made an operation fail, but perhaps do the same with more commits (trees that cannot be read are not packed, for
    /// example, and where a log cannot be written an fsync is a commit): transactions have other numbers than in the recording.
    fn goes_another_way(&self) -> bool {
        (self.fault.op == READ || self.workload.config.tree_log) && self.device.failed() > 0
    }

    /// The disk holds what this run has at its end, whichever transaction that is.
    fn judge_now(&self) -> Result<()> {
        let expected = |_| {
            Ok(Expected { models: &self.own, stepped: None, ..self.recording.around(self.number) })
        };
        examine(&self.workload.config, &self.memory.snapshot(), expected).map(drop)
    }

    /// What there may be of a transaction of this run, and what fsyncs have promised since.
    fn expected(&self, transid: u64) -> Expected<'r> {
        let known = self.commits.iter().find(|(known, _)| transid <= *known);
        let last = self.recording.models.len() - 1;
        let number = known.map_or(self.number, |(_, number)| *number).min(last);
        let first = number.saturating_sub(1);
        let models = |last| self.recording.models.get(first..=last).unwrap_or_default();
        let later = self.synced.iter().filter(|(at, _)| *at > first);
        let synced = later.map(|(at, node)| Synced { moment: at - first, node: *node }).collect();
        let moments = models(self.number.min(last));
        let span = Some(Span { moments, synced, rules: Rules::ours(false) });
        Expected { models: models(number), span, ..self.recording.around(number) }
    }

    /// The disk holds a version that was acknowledged or under way.
    fn judge_versions(&self) -> Result<()> {
        examine(&self.workload.config, &self.memory.snapshot(), |transid| {
            if transid < self.promised {
                return fail(format!(
                    "transaction {transid}, but {} was acknowledged",
                    self.promised
                ));
            }
            if self.workload.config.tree_log {
                return Ok(self.expected(transid));
            }
            match self.recording.version(transid) {
                Some(version) if version.number <= self.number => {
                    Ok(self.recording.around(version.number))
                }
                _ if self.goes_another_way() => Ok(self.recording.around(self.number)),
                _ => fail(format!(
                    "transaction {transid} had not begun when operation {} failed",
                    self.number
                )),
            }
        })?;
        Ok(())
    }
}
