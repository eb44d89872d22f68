//! Running a workload on a recording device, and what the model held at each commit.

use std::sync::Arc;

use buttress::Node;
use buttress_device::testing::{History, RecordingDevice};

use super::half;
use super::workloads::Workload;
use crate::model::Model;
use crate::ops::Op;
use crate::ops::run::{Failure, Result, Runner};

/// The commits that were made during one operation.
#[derive(Debug)]
pub struct Version {
    /// The transactions, from the first to the last.
    pub transids: std::ops::RangeInclusive<u64>,
    /// The number of the operation, from 1; 0 for what `mkfs` made.
    pub number: usize,
    /// Events when it began.
    pub began: usize,
}

/// What was promised to be durable.
#[derive(Clone, Copy, Debug)]
pub struct Promise {
    /// Events when it was given.
    pub event: usize,
    /// The transaction.
    pub transid: u64,
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
    /// The operations, and the files that those change which go in steps.
    pub ops: Vec<(Op, Option<Node>)>,
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
}

/// Runs a workload.
pub fn record(workload: &Workload) -> Result<Recording> {
    let device = Arc::new(RecordingDevice::new(&workload.config.make()?));
    let mut runner = Runner::over(device.clone(), &workload.config)?;
    let mut recorder = Recorder::new(&runner, &device);
    let mut source = workload.source();
    while let Some(op) = source.next(runner.model()) {
        recorder.step(&mut runner, op)?;
    }
    recorder.step(&mut runner, Op::Commit)?;
    recorder.recording.history = device.history();
    Ok(recorder.recording)
}

struct Recorder<'a> {
    device: &'a RecordingDevice,
    recording: Recording,
    transid: u64,
}

/// Whether all is durable when this operation returns.
pub fn promises(op: &Op, done: bool) -> bool {
    match op {
        Op::Commit | Op::Clean | Op::Reopen => true,
        Op::Snapshot { .. } => done,
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
    fn new(runner: &Runner, device: &'a RecordingDevice) -> Recorder<'a> {
        let transid = runner.fs().info().generation;
        let first = Version { transids: transid..=transid, number: 0, began: 0 };
        let recording = Recording {
            history: device.history(),
            versions: vec![first],
            promises: vec![Promise { event: 0, transid }],
            models: vec![closed(runner)],
            ops: Vec::new(),
        };
        Recorder { device, recording, transid }
    }

    fn step(&mut self, runner: &mut Runner, op: Op) -> Result<()> {
        let (began, done) = (self.device.event_count(), runner.counts.done);
        let number = self.recording.models.len();
        let stepped = half::stepped(runner.model(), &op);
        runner.step(&op).map_err(|Failure(why)| Failure(format!("operation {number}: {why}")))?;
        let transid = runner.fs().info().generation;
        self.recording.models.push(closed(runner));
        if promises(&op, runner.counts.done > done) {
            self.recording.promises.push(Promise { event: self.device.event_count(), transid });
        }
        if transid > self.transid {
            let transids = self.transid + 1..=transid;
            self.recording.versions.push(Version { transids, number, began });
            self.transid = transid;
        }
        self.recording.ops.push((op, stepped));
        Ok(())
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
        let when = op.map_or("mkfs".into(), |(op, _)| format!("operation {number} ({op})"));
        Expected { models, stepped: op.and_then(|(_, node)| *node), when }
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
