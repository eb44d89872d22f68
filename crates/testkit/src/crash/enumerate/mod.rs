//! Every short sequence of operations, in the manner of bounded black-box crash testing.
//!
//! A sequence is one operation or two of a table, on a few files and directories of which some are committed and some are not.
//! An fsync may come between the two; at the end comes the fsync of something that either has touched. The power goes right after
//! that has returned, and after each write before it. What is found then is judged by [`super::promise`]. All of it is done in
//! memory. Sequences in which an operation has nothing to work on, or is refused, are left out.
//!
//! The same sequences can be done by Linux ([`linux`]): what its own log leaves shows whether the promises are those of Linux.

pub mod linux;
mod table;

use std::ops::{AddAssign, Range};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use buttress_device::MemoryDevice;
use buttress_device::testing::Event;

use super::judge;
use super::record::{Recording, record_on};
use super::run::guarded;
use super::states::{Loss, Maker, State};
use super::workloads::small;
use crate::model::{Model, QuotaMode};
use crate::ops::Op;
use crate::ops::run::{Clock, Config, Failure, Result, Runner};

/// Failures after which enough is known.
const FAILURES_MAX: usize = 400;

/// What is done.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Which pairs of operations, by number.
    pub pairs: Range<usize>,
    /// One in so many pairs.
    pub every: usize,
    /// Threads.
    pub threads: usize,
    /// One in so many states is judged in full; 0 for none.
    pub check_every: usize,
    /// One in so many sequences is done by Linux, too; 0 for none.
    pub linux_every: usize,
    /// Renames must be found whole.
    pub strict: bool,
    /// Whether fsyncs write a log.
    pub tree_log: bool,
    /// What quotas there are.
    pub quotas: QuotaMode,
    /// Whether block groups are emptied in between.
    pub empty: bool,
}

/// What was done.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tally {
    /// Sequences that can be done.
    pub sequences: u64,
    /// Sequences that cannot.
    pub refused: u64,
    /// States judged.
    pub states: u64,
    /// Of these, right after an fsync had returned.
    pub acknowledged: u64,
    /// Of the states, those with a log that waits.
    pub logged: u64,
    /// Judged in full.
    pub full: u64,
    /// Sequences done by Linux, whose crash was judged.
    pub by_linux: u64,
    /// Of these, those with a log of Linux.
    pub logged_by_linux: u64,
    /// Of those by Linux, where it has not kept what is promised.
    pub broken_by_linux: u64,
    /// Logs of Linux that we replay as Linux does; those that we do not open to be written are left out.
    pub replayed: u64,
}

impl AddAssign for Tally {
    fn add_assign(&mut self, other: Tally) {
        self.sequences += other.sequences;
        self.refused += other.refused;
        self.states += other.states;
        self.acknowledged += other.acknowledged;
        self.logged += other.logged;
        self.full += other.full;
        self.by_linux += other.by_linux;
        self.logged_by_linux += other.logged_by_linux;
        self.broken_by_linux += other.broken_by_linux;
        self.replayed += other.replayed;
    }
}

/// A disk that sequences begin with.
struct Start {
    name: &'static str,
    memory: MemoryDevice,
    model: Model,
    clock: Clock,
    new: Vec<Op>,
}

impl Start {
    fn of(base: &table::Base, config: &Config) -> Result<Start> {
        let memory = std::sync::Arc::new(config.make()?);
        let clock = Clock::default();
        let mut runner = Runner::by_clock(memory.clone(), config, clock.clone())?;
        let old = table::operations(base.old);
        old.iter().chain([&Op::Commit]).try_for_each(|op| runner.step(op))?;
        let (model, memory) = (runner.model().clone(), memory.snapshot());
        Ok(Start { name: base.name, memory, model, clock, new: table::operations(base.new) })
    }

    fn record(&self, config: &Config, ops: &[Op]) -> Result<Option<Recording>> {
        let all: Vec<Op> = self.new.iter().chain(ops).cloned().collect();
        record_on(&self.memory, config, self.model.clone(), self.clock.fork(), &all)
    }
}

/// How many pairs there are: for each start, each operation alone and each with each.
pub fn count() -> usize {
    let kinds = table::kinds().len();
    table::BASES.len() * kinds * (kinds + 1)
}

struct Enumeration<'p> {
    plan: &'p Plan,
    config: Config,
    kinds: Vec<Vec<Op>>,
    starts: Vec<Start>,
    done: Mutex<(Tally, Vec<String>)>,
    /// Sequences since the beginning.
    number: AtomicUsize,
}

/// Does it all; answers what was done and what went wrong.
pub fn run(plan: &Plan) -> Result<(Tally, Vec<String>)> {
    let config = Config { tree_log: plan.tree_log, quotas: plan.quotas, ..small(4096) };
    let starts: Result<Vec<Start>> = table::BASES.iter().map(|it| Start::of(it, &config)).collect();
    let kinds = table::kinds().iter().map(|words| table::operations(words)).collect();
    let it = Enumeration {
        plan,
        config,
        kinds,
        starts: starts?,
        done: Mutex::default(),
        number: AtomicUsize::new(0),
    };
    let next = AtomicUsize::new(plan.pairs.start);
    std::thread::scope(|scope| {
        for _ in 0..plan.threads {
            scope.spawn(|| {
                loop {
                    let pair = next.fetch_add(plan.every, Ordering::Relaxed);
                    if pair >= plan.pairs.end.min(count()) || it.has_enough() {
                        return;
                    }
                    it.pair(pair);
                }
            });
        }
    });
    Ok(it.done.into_inner().unwrap_or_default())
}

impl Enumeration<'_> {
    fn has_enough(&self) -> bool {
        self.done.lock().is_ok_and(|done| done.1.len() >= FAILURES_MAX)
    }

    fn add(&self, tally: Tally, failure: Option<String>) {
        if let Ok(mut done) = self.done.lock() {
            done.0 += tally;
            done.1.extend(failure);
        }
    }

    /// One operation or two, with each fsync that may follow. Which group is emptied in between, if one is, goes by the number of the pair.
    fn pair(&self, number: usize) {
        let group = number as u64;
        let each = self.kinds.len();
        let start = &self.starts[number % self.starts.len()];
        let number = number / self.starts.len();
        // The second is none for the first of these.
        let (first, second) = (number / (each + 1), number % (each + 1));
        let first = &self.kinds[first];
        let second = second.checked_sub(1).map_or(&[][..], |at| &self.kinds[at]);
        let middles = if second.is_empty() { vec![None] } else { self.after(start, first) };
        for middle in middles {
            let mut ops = first.clone();
            ops.extend(middle.map(|at| Op::Fsync { at }));
            ops.extend(self.plan.empty.then_some(Op::Empty { number: group }));
            ops.extend_from_slice(second);
            let touched = table::touched(&[first, second].concat());
            for at in self.ends(start, &ops, &touched) {
                let mut ops = ops.clone();
                ops.push(Op::Fsync { at });
                self.guarded(start, &ops);
            }
        }
    }

    /// What may come between: nothing, or the fsync of one of what the first operation has touched.
    fn after(&self, start: &Start, first: &[Op]) -> Vec<Option<String>> {
        let ends = self.ends(start, first, &table::touched(first));
        [None].into_iter().chain(ends.into_iter().map(Some).take(2)).collect()
    }

    /// What can be made durable after operations; nothing when these cannot be done.
    fn ends(&self, start: &Start, ops: &[Op], touched: &[String]) -> Vec<String> {
        match guarded(|| start.record(&self.config, ops)) {
            Ok(Some(recording)) => {
                recording.models.last().map_or(Vec::new(), |model| table::durable(model, touched))
            }
            Ok(None) => {
                self.add(Tally { refused: 1, ..Tally::default() }, None);
                Vec::new()
            }
            Err(Failure(why)) => {
                self.add(Tally::default(), Some(format!("{}: {why}", shown(start, ops))));
                Vec::new()
            }
        }
    }

    fn guarded(&self, start: &Start, ops: &[Op]) {
        let mut tally = Tally::default();
        let number = self.number.fetch_add(1, Ordering::Relaxed);
        let failure = guarded(|| self.sequence(start, ops, number, &mut tally)).err();
        self.add(tally, failure.map(|Failure(why)| format!("{}: {why}", shown(start, ops))));
    }

    fn sequence(&self, start: &Start, ops: &[Op], number: usize, tally: &mut Tally) -> Result<()> {
        let Some(mut recording) = start.record(&self.config, ops)? else { return Ok(()) };
        recording.strict = self.plan.strict;
        tally.sequences += 1;
        let mut maker = Maker::new(&recording.history);
        let events = recording.history.events();
        let mut seen = None;
        for cut in 0..=events.len() {
            let acknowledged =
                recording.ops.iter().any(|it| it.synced.is_some() && it.ended == cut);
            let written = cut.checked_sub(1).and_then(|at| events.get(at));
            let written =
                written.is_some_and(|event| !matches!(event, Event::Barrier | Event::Mark(_)));
            if !acknowledged && !written {
                continue;
            }
            let disk = maker.make(State { cut, loss: Loss::None, seed: 0 });
            if seen == Some(disk.digest) && !acknowledged {
                continue;
            }
            seen = Some(disk.digest);
            tally.states += 1;
            tally.acknowledged += u64::from(acknowledged);
            tally.logged += u64::from(judge::committed(&disk.device)?.1);
            let full = self.plan.check_every > 0
                && (number * 31 + cut).is_multiple_of(self.plan.check_every);
            tally.full += u64::from(full);
            let judged = match full {
                true => judge::judge(&recording, &self.config, &disk),
                false => judge::glance(&recording, &self.config, &disk),
            };
            judged.map_err(|Failure(why)| Failure(format!("{}: {why}", disk.state)))?;
        }
        if self.plan.linux_every > 0 && number.is_multiple_of(self.plan.linux_every) {
            let all: Vec<Op> = start.new.iter().chain(ops).cloned().collect();
            let left = linux::check(&start.memory, &self.config, &all, &recording)?;
            tally.by_linux += 1;
            tally.logged_by_linux += u64::from(left.logged);
            tally.replayed += u64::from(left.replayed);
            if let Some(why) = left.broken {
                tally.broken_by_linux += 1;
                println!("Linux (log: {}) breaks: {}: {why}", left.logged, shown(start, ops));
            }
        }
        Ok(())
    }
}

fn shown(start: &Start, ops: &[Op]) -> String {
    let words: Vec<String> = ops.iter().map(ToString::to_string).collect();
    format!("{}; {}", start.name, words.join("; "))
}
