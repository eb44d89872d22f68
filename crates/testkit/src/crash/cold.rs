//! Reads that fail under an operation, where nothing is cached.
//!
//! Each operation of a workload is done on a filesystem that has just been opened and remembers nothing, again and again, and each
//! time another of its reads fails. What was cached hides this: an operation that changes something first and looks at the
//! disk afterwards is found out only where it has to look. What is demanded:
//!
//! * an operation that fails has done nothing: memory holds what the model held before, times included. Only what lets go of
//!   more extents than a few, which goes in steps, may have done a part ([`half`]);
//! * one that does not fail has done all of it, unless there was no room: what might have given some could not be read;
//! * both are so after a commit, too, and our checker finds nothing; where the filesystem aborted, the device holds the one or
//!   the other.

use std::sync::Arc;
use std::time::Instant;

use buttress::{Allocate, Errno, Filesystem, Node};
use buttress_device::testing::{FaultyDevice, OperationFault};
use buttress_device::{BlockDevice, MemoryDevice, Op as DeviceOp};

use super::half;
use super::judge::examine;
use super::record::Expected;
use super::run::guarded;
use super::workloads::Workload;
use crate::model::Model;
use crate::ops::rng::Rng;
use crate::ops::run::{Clock, Config, Failure, Result, Runner, engine, fail, open};
use crate::ops::{Op, compare};

/// Failures after which a workload has shown enough.
const FAILURES_MAX: usize = 5;

/// Extents that an operation lets go of without steps.
const FEW: usize = 2;

/// What was done.
#[derive(Clone, Copy, Debug, Default)]
pub struct ColdTally {
    /// Operations that change something.
    pub ops: u64,
    /// Reads that they made of cold caches.
    pub reads: u64,
    /// Of these, those that were made to fail.
    pub runs: u64,
    /// Operations that failed and had changed nothing.
    pub refused: u64,
    /// Operations that were done all the same.
    pub done: u64,
    /// Commits that failed.
    pub aborted: u64,
    /// Seconds.
    pub seconds: f64,
}

impl std::ops::AddAssign for ColdTally {
    fn add_assign(&mut self, other: ColdTally) {
        self.ops += other.ops;
        self.reads += other.reads;
        self.runs += other.runs;
        self.refused += other.refused;
        self.done += other.done;
        self.aborted += other.aborted;
        self.seconds += other.seconds;
    }
}

/// How a run ended.
enum End {
    Refused,
    Done,
    Aborted,
}

/// Does a workload, and fails one in `every` of its reads, chosen by the seed.
pub fn run(workload: &Workload, every: u64, seed: u64) -> (ColdTally, Vec<String>) {
    let began = Instant::now();
    let (mut tally, mut failures) = (ColdTally::default(), Vec::new());
    if let Err(Failure(why)) = guarded(|| all(workload, every, seed, &mut tally, &mut failures)) {
        failures.push(format!("{}: {why}", workload.name));
    }
    tally.seconds = began.elapsed().as_secs_f64();
    (tally, failures)
}

fn all(
    workload: &Workload,
    every: u64,
    seed: u64,
    tally: &mut ColdTally,
    failures: &mut Vec<String>,
) -> Result<()> {
    // A second copy would make good for every read.
    let config = Config { dup: false, ..workload.config };
    let mut rng = Rng::new(seed);
    let memory = config.make()?;
    let runner = Runner::over(Arc::new(memory.snapshot()), &config)?;
    let mut at = Moment { config, memory, clock: runner.clock(), model: runner.model().clone() };
    drop(runner);
    let mut source = workload.source();
    let mut number = 0;
    while let Some(op) = source.next(&at.model) {
        number += 1;
        if !changes(&op) {
            continue;
        }
        let (after, reads) = at.done(&op)?;
        tally.ops += 1;
        tally.reads += reads;
        for read in (0..reads).filter(|_| rng.one_in(every)) {
            tally.runs += 1;
            match guarded(|| at.fails(&op, read, &after.model)) {
                Ok(End::Refused) => tally.refused += 1,
                Ok(End::Done) => tally.done += 1,
                Ok(End::Aborted) => tally.aborted += 1,
                Err(Failure(why)) => {
                    let name = workload.name;
                    failures.push(format!("{name}, operation {number} ({op}), read {read}: {why}"));
                }
            }
            if failures.len() >= FAILURES_MAX {
                return Ok(());
            }
        }
        at = after;
        at.model.close();
    }
    Ok(())
}

/// Whether an operation may change anything.
fn changes(op: &Op) -> bool {
    !matches!(
        op,
        Op::Read { .. }
            | Op::Hold { .. }
            | Op::Release { .. }
            | Op::List { .. }
            | Op::Look { .. }
            | Op::Fsync { .. }
            | Op::Flush
            | Op::Commit
            | Op::Beside
            | Op::Await
            | Op::Clean
            | Op::Empty { .. }
            | Op::Trim
            | Op::Reopen
            | Op::Compare
            | Op::Check
            | Op::Drain
    )
}

/// A committed state, and what the model says of it.
struct Moment {
    config: Config,
    memory: MemoryDevice,
    clock: Clock,
    model: Model,
}

impl Moment {
    /// The filesystem with nothing cached, on a device of its own.
    fn open(&self) -> Result<(Runner, Arc<FaultyDevice>, Arc<MemoryDevice>)> {
        let memory = Arc::new(self.memory.snapshot());
        let device = Arc::new(FaultyDevice::new(memory.clone()));
        let disk: Arc<dyn BlockDevice> = device.clone();
        let clock = self.clock.fork();
        let fs = engine("open", open(&disk, &self.config, &clock))?;
        // What a crash may have left is not this operation's business.
        engine("clean", fs.clean())?;
        fs.drop_caches();
        let model = self.model.clone();
        Ok((Runner::resume(fs, disk, &self.config, clock, model), device, memory))
    }

    /// The operation without a fault: what is then, and how many reads it took.
    fn done(&self, op: &Op) -> Result<(Moment, u64)> {
        let (mut runner, device, memory) = self.open()?;
        // As below, so that the clock goes on alike.
        self.stepped(&runner, op)?;
        runner.fs().drop_caches();
        let before = device.count(DeviceOp::Read);
        runner.step(op)?;
        let reads = device.count(DeviceOp::Read) - before;
        let (clock, model) = (runner.clock().fork(), runner.model().clone());
        drop(runner);
        Ok((Moment { config: self.config, memory: memory.snapshot(), clock, model }, reads))
    }

    /// The operation while one of its reads fails.
    fn fails(&self, op: &Op, read: u64, after: &Model) -> Result<End> {
        let (mut runner, device, memory) = self.open()?;
        let stepped_node = self.stepped(&runner, op)?;
        runner.fs().drop_caches();
        let failing =
            OperationFault { op: Some(DeviceOp::Read), after: read, ..Default::default() };
        device.fail_operation(failing);
        let stepped = runner.step(op);
        device.heal();
        if let Err(Failure(why)) = &stepped
            && !why.contains("Input/output error")
        {
            return fail(why);
        }
        let fs = runner.fs().clone();
        // Room that would have come of emptying a block group, which could not be read, is refused.
        let is_refused = runner.counts.no_space > 0;
        drop(runner);
        let both = [&self.model, after];
        let possible = match &stepped {
            Ok(()) if is_refused => &both[..1],
            Ok(()) => &both[1..],
            Err(_) => &both[..],
        };
        let end = match fs.is_read_only() {
            true => End::Aborted,
            false => {
                let held = self.holds(&fs, possible, stepped_node)?;
                engine("commit", fs.commit())?;
                fs.drop_caches();
                self.holds(&fs, possible, stepped_node)?;
                if held == 0 && (is_refused || stepped.is_err()) { End::Refused } else { End::Done }
            }
        };
        let aborted = matches!(end, End::Aborted);
        match fs.close() {
            Ok(()) if !aborted => {}
            Err(error) if aborted && error.errno() == Errno::ROFS => {}
            other => return fail(format!("close: {other:?}")),
        }
        let models = if aborted { &both[..] } else { possible };
        let mut models: Vec<Model> = models.iter().copied().cloned().collect();
        models.iter_mut().for_each(Model::close);
        let stepped = stepped_node;
        let when = format!("read {read} of {op}");
        examine(&self.config, &memory, |_| {
            Ok(Expected { models: &models, stepped, when, span: None })
        })?;
        Ok(end)
    }

    /// The file that the operation changes in steps, as it has many extents.
    fn stepped(&self, runner: &Runner, op: &Op) -> Result<Option<Node>> {
        let lets_go = matches!(
            op,
            Op::Truncate { .. }
                | Op::Allocate { mode: Allocate::PunchHole | Allocate::ZeroRange { .. }, .. }
        );
        let Some(node) = half::stepped(&self.model, op).filter(|_| lets_go) else {
            return Ok(None);
        };
        let is_file = self.model.inode(node).is_some_and(|inode| inode.content().is_some());
        let extents = match is_file {
            true => engine("extents", runner.fs().extents(node, 0..u64::MAX >> 1))?.len(),
            false => 0,
        };
        Ok((extents > FEW).then_some(node))
    }

    /// Which of these the filesystem holds.
    fn holds(&self, fs: &Filesystem, possible: &[&Model], stepped: Option<Node>) -> Result<usize> {
        let mut reasons = Vec::new();
        for (at, model) in possible.iter().enumerate() {
            match compare::all(fs, model) {
                Ok(()) => return Ok(at),
                Err(Failure(why)) => reasons.push(why),
            }
        }
        if let (Some(node), [before, after]) = (stepped, possible) {
            let part = half::half(fs, before, after, node);
            match part.and_then(|model| compare::all(fs, &model)) {
                Ok(()) => return Ok(possible.len()),
                Err(Failure(why)) => reasons.push(why),
            }
        }
        fail(format!("neither done nor not done: {}", reasons.join("; nor: ")))
    }
}
