//! Running a workload on a recording device, and what the model held at each commit.

use std::sync::Arc;
use std::thread::JoinHandle;

use buttress::Node;
use buttress_device::testing::{History, RecordingDevice};
use buttress_device::{BlockDevice, MemoryDevice};

use super::gate::GateDevice;
use super::half;
use super::promise::{Rules, Span, Synced};
use super::workloads::Workload;
use crate::model::Model;
use crate::ops::Op;
use crate::ops::run::{Clock, Config, Failure, Result, Runner, engine, open};

/// The commits that were made during one operation, or beside several.
#[derive(Debug)]
pub struct Version {
    /// The transactions, from the first to the last.
    pub transids: std::ops::RangeInclusive<u64>,
    /// The number of the first of the operations, from 1; 0 for what `mkfs` made.
    pub first: usize,
    /// The number of the last of them.
    pub number: usize,
    /// Events when the first began.
    pub began: usize,
}

/// What was promised to be durable.
#[derive(Clone, Copy, Debug)]
pub struct Promise {
    /// Events when it was given.
    pub event: usize,
    /// The transaction.
    pub transid: u64,
    /// The operation that gave it; 0: `mkfs`.
    pub number: usize,
}

/// An operation that was done.
#[derive(Debug)]
pub struct Done {
    /// The operation.
    pub op: Op,
    /// The file that it changes in steps, if it does.
    pub stepped: Option<Node>,
    /// What it made durable.
    pub synced: Option<Node>,
    /// Events when it began.
    pub began: usize,
    /// Events when it had returned.
    pub ended: usize,
}

/// A workload that has been run.
#[derive(Debug)]
pub struct Recording {
    /// All writes and barriers.
    pub history: History,
    /// The commits in order. The first is that of `mkfs`.
    pub versions: Vec<Version>,
    /// What was acknowledged as durable, in order.
    pub promises: Vec<Promise>,
    /// The model before the first operation, and after each: as a crash leaves it, so that nothing is held.
    pub models: Vec<Model>,
    /// The operations.
    pub ops: Vec<Done>,
    /// Renames must be found whole.
    pub strict: bool,
}

/// What there may be at some moment.
#[derive(Debug)]
pub struct Expected<'r> {
    /// What there was before an operation, and after it.
    pub models: &'r [Model],
    /// The file of which there may be a part of what the operation does.
    pub stepped: Option<Node>,
    /// The operation, in words.
    pub when: String,
    /// What fsyncs have promised besides, and what may be found where a log of them waits. Without it no log may.
    pub span: Option<Span<'r>>,
}

/// Runs a workload.
pub fn record(workload: &Workload) -> Result<Recording> {
    record_beside(workload, true)
}

/// Runs a workload whose commits go on beside nothing.
pub fn record_alone(workload: &Workload) -> Result<Recording> {
    record_beside(workload, false)
}

fn record_beside(workload: &Workload, beside: bool) -> Result<Recording> {
    let device = Arc::new(RecordingDevice::new(&workload.config.make()?));
    let gate = Arc::new(GateDevice::new(device.clone()));
    let mut runner = Runner::over(gate.clone(), &workload.config)?;
    let mut recorder = Recorder::new(&runner, &device, &gate);
    recorder.alone = !beside;
    let mut source = workload.source();
    while let Some(op) = source.next(runner.model()) {
        recorder.step(&mut runner, op)?;
    }
    recorder.step(&mut runner, Op::Await)?;
    recorder.step(&mut runner, Op::Commit)?;
    recorder.recording.history = device.history();
    Ok(recorder.recording)
}

/// Does operations on a disk that holds what the model does. Answers nothing when one had nothing to work on or was refused.
pub fn record_on(
    base: &MemoryDevice,
    config: &Config,
    model: Model,
    clock: Clock,
    ops: &[Op],
) -> Result<Option<Recording>> {
    let device = Arc::new(RecordingDevice::new(base));
    let gate = Arc::new(GateDevice::new(device.clone()));
    let disk: Arc<dyn BlockDevice> = gate.clone();
    let fs = engine("open", open(&disk, config, &clock))?;
    let mut runner = Runner::resume(fs, disk, config, clock, model);
    let mut recorder = Recorder::new(&runner, &device, &gate);
    for op in ops {
        recorder.step(&mut runner, op.clone())?;
        if runner.counts.refused + runner.counts.skipped > 0 {
            return Ok(None);
        }
    }
    recorder.end()?;
    recorder.recording.history = device.history();
    Ok(Some(recorder.recording))
}

struct Recorder<'a> {
    device: &'a RecordingDevice,
    gate: &'a GateDevice,
    recording: Recording,
    transid: u64,
    /// Commits go on beside nothing.
    alone: bool,
    beside: Option<Beside>,
}

/// A commit that goes on beside operations.
struct Beside {
    thread: JoinHandle<buttress::Result<u64>>,
    number: usize,
    began: usize,
}

/// Whether all is durable when this operation returns.
pub fn promises(op: &Op, done: bool) -> bool {
    match op {
        Op::Commit | Op::Await | Op::Clean | Op::Reopen => true,
        Op::Snapshot { .. } | Op::Empty { .. } | Op::Trim | Op::Quotas { .. } => done,
        _ => false,
    }
}

/// The model as a crash leaves it: nothing is held.
fn closed(runner: &Runner) -> Model {
    let mut model = runner.model().clone();
    model.close();
    model
}

impl<'a> Recorder<'a> {
    fn new(runner: &Runner, device: &'a RecordingDevice, gate: &'a GateDevice) -> Recorder<'a> {
        let transid = runner.fs().info().generation;
        let first = Version { transids: transid..=transid, first: 0, number: 0, began: 0 };
        let recording = Recording {
            history: device.history(),
            versions: vec![first],
            promises: vec![Promise { event: 0, transid, number: 0 }],
            models: vec![closed(runner)],
            ops: Vec::new(),
            strict: false,
        };
        Recorder { device, gate, recording, transid, alone: false, beside: None }
    }

    fn step(&mut self, runner: &mut Runner, op: Op) -> Result<()> {
        let (began, done) = (self.device.event_count(), runner.counts.done);
        let number = self.recording.models.len();
        let stepped = half::stepped(runner.model(), &op);
        let synced = match &op {
            Op::Fsync { at } => runner.model().resolve(at).ok(),
            _ => None,
        };
        let (first, since) =
            self.beside.as_ref().map_or((number, began), |it| (it.number, it.began));
        let stepped_on = match op {
            Op::Beside if !self.alone => self.begin(runner, number, began),
            Op::Await if !self.alone => self.end(),
            _ => runner.step(&op),
        };
        stepped_on.map_err(|Failure(why)| Failure(format!("operation {number}: {why}")))?;
        let ended = self.device.event_count();
        let transid = runner.fs().info().generation;
        self.recording.models.push(closed(runner));
        if promises(&op, runner.counts.done > done) {
            self.recording.promises.push(Promise { event: ended, transid, number });
        }
        if transid > self.transid {
            let transids = self.transid + 1..=transid;
            self.recording.versions.push(Version { transids, first, number, began: since });
            self.transid = transid;
        }
        self.recording.ops.push(Done { op, stepped, synced, began, ended });
        Ok(())
    }

    /// Begins a commit, and comes back when it is about to write its superblock. What is done meanwhile is of the next one.
    fn begin(&mut self, runner: &Runner, number: usize, began: usize) -> Result<()> {
        self.end()?;
        self.gate.close();
        let fs = runner.fs().clone();
        let thread = std::thread::spawn(move || fs.commit());
        while !self.gate.is_reached() && !thread.is_finished() {}
        self.beside = Some(Beside { thread, number, began });
        Ok(())
    }

    /// The end of that commit.
    fn end(&mut self) -> Result<()> {
        self.gate.open();
        let Some(Beside { thread, .. }) = self.beside.take() else { return Ok(()) };
        match thread.join() {
            Ok(done) => engine("commit beside", done).map(drop),
            Err(_) => Err(Failure("a commit beside operations panicked".into())),
        }
    }
}

impl Recording {
    /// The commits among which a transaction is.
    pub fn version(&self, transid: u64) -> Option<&Version> {
        let at = self.versions.partition_point(|version| *version.transids.end() < transid);
        self.versions.get(at).filter(|version| version.transids.contains(&transid))
    }

    /// What there may be during an operation.
    pub fn around(&self, number: usize) -> Expected<'_> {
        let end = self.models.len().min(number + 1);
        let models = self.models.get(number.saturating_sub(1)..end).unwrap_or_default();
        let op = number.checked_sub(1).and_then(|at| self.ops.get(at));
        let when = op.map_or("mkfs".into(), |it| format!("operation {number} ({})", it.op));
        Expected { models, stepped: op.and_then(|it| it.stepped), when, span: None }
    }

    /// What there may be of a transaction of a version after a cut, and what was promised of later operations.
    pub fn at(&self, version: &Version, transid: u64, cut: usize) -> Expected<'_> {
        let mut expected = self.around(version.number);
        let first = match self.is_done(version, transid, cut) {
            true => version.number,
            false => version.first.saturating_sub(1),
        };
        expected.models = self.models.get(first..=version.number).unwrap_or_default();
        expected.span = Some(self.span(first, version.number, cut));
        expected
    }

    /// Whether the operation that has made a transaction had promised before a cut that this one has all of it.
    fn is_done(&self, version: &Version, transid: u64, cut: usize) -> bool {
        // One that came after it may have promised at the same event, and had nothing to do.
        let is_promised = |it: &Promise| it.transid == transid && it.number == version.number;
        version.first == version.number
            && self.promises.iter().any(|it| it.event <= cut && is_promised(it))
    }

    /// The moments from a commit to a cut: `first` and `last` are the models that the commit may hold.
    fn span(&self, first: usize, last: usize, cut: usize) -> Span<'_> {
        let begun = self.ops.partition_point(|it| it.began < cut);
        let moments = self.models.get(first..=begun.max(last)).unwrap_or_default();
        let later = self.ops.iter().enumerate().skip(first);
        let returned = later.filter(|(_, it)| it.ended <= cut);
        // The operation at `at` leads from the model of this number to the next one.
        let synced = returned
            .filter_map(|(at, it)| Some(Synced { moment: at + 1 - first, node: it.synced? }))
            .collect();
        Span { moments, synced, rules: Rules::ours(self.strict) }
    }

    /// All moments, and all that was made durable.
    pub fn whole_span(&self) -> Span<'_> {
        self.span(0, self.ops.len(), usize::MAX)
    }

    /// Whether fsyncs had promised something before a cut that came after this transaction.
    pub fn promises_more(&self, transid: u64, cut: usize) -> bool {
        let number = self.version(transid).map_or(0, |version| version.number);
        self.ops.iter().skip(number).any(|it| it.synced.is_some() && it.ended <= cut)
    }

    /// Fsyncs that were done.
    pub fn fsyncs(&self) -> usize {
        self.ops.iter().filter(|it| it.synced.is_some()).count()
    }

    /// Operations that were done, refused ones included.
    pub fn count(&self) -> usize {
        self.ops.len()
    }

    /// The last transaction that was acknowledged before a cut at `event`.
    pub fn promised(&self, event: usize) -> u64 {
        let before = self.promises.partition_point(|promise| promise.event <= event);
        let last = before.checked_sub(1).and_then(|last| self.promises.get(last));
        last.map_or(0, |promise| promise.transid)
    }
}
