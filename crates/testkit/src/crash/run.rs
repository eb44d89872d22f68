//! Records workloads and judges their states, and counts.

use std::collections::HashSet;
use std::ops::AddAssign;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use super::judge;
use super::record::{Recording, record};
use super::states::{self, Disk, Loss, Maker, State};
use super::workloads::Workload;
use crate::model::QuotaMode;
use crate::ops::kernel;
use crate::ops::run::{Failure, Result};
use crate::ops::shrink::message;
use crate::oracle::is_root;

/// Failures after which a workload has shown enough.
const FAILURES_MAX: usize = 5;

/// What is to be done with each workload.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Chooses what is lost.
    pub seed: u64,
    /// Shuffled states of each epoch.
    pub per_epoch: u64,
    /// States of each workload at most.
    pub states_max: usize,
    /// One in so many states goes through `btrfs check`; 0 for none.
    pub check_every: usize,
    /// One in so many states is mounted by Linux; 0 for none.
    pub mount_every: usize,
    /// Where disks that fail are kept.
    pub keep: Option<PathBuf>,
    /// Only these states.
    pub only: Vec<State>,
    /// As on a medium that takes no notice of barriers.
    pub no_barriers: bool,
    /// States whose primary superblock is torn are left out.
    pub whole_superblocks: bool,
    /// Renames must be found whole.
    pub strict: bool,
}

impl Default for Plan {
    /// All states, none of them seen by anybody else.
    fn default() -> Plan {
        Plan {
            seed: 1,
            per_epoch: 32,
            states_max: usize::MAX,
            check_every: 0,
            mount_every: 0,
            keep: None,
            only: Vec::new(),
            no_barriers: false,
            whole_superblocks: false,
            strict: false,
        }
    }
}

/// What was done.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tally {
    /// Workloads.
    pub workloads: u64,
    /// Operations recorded.
    pub ops: u64,
    /// Fsyncs recorded.
    pub fsyncs: u64,
    /// Commits recorded.
    pub commits: u64,
    /// States of recordings, judged or not.
    pub possible: u64,
    /// States made.
    pub states: u64,
    /// Of these, those that no other state of the workload equals byte for byte: judged.
    pub distinct: u64,
    /// Judged: cuts.
    pub cuts: u64,
    /// Judged: with a torn last write.
    pub torn: u64,
    /// Judged: with any writes lost.
    pub shuffled: u64,
    /// Judged: those whose primary superblock is torn.
    pub torn_superblocks: u64,
    /// Of these, those that are written to only on request.
    pub on_request: u64,
    /// Judged: those after which some fsync has promised more than the last commit holds.
    pub promising: u64,
    /// Judged: those in which a log waits.
    pub logged: u64,
    /// Judged by `btrfs check`, too.
    pub checked: u64,
    /// Mounted by Linux, too.
    pub mounted: u64,
    /// Of these, those whose log Linux has replayed, into what ours is replayed into.
    pub replayed: u64,
    /// Seconds, of all threads together.
    pub seconds: f64,
}

impl AddAssign for Tally {
    fn add_assign(&mut self, other: Tally) {
        self.workloads += other.workloads;
        self.ops += other.ops;
        self.fsyncs += other.fsyncs;
        self.commits += other.commits;
        self.possible += other.possible;
        self.states += other.states;
        self.distinct += other.distinct;
        self.cuts += other.cuts;
        self.torn += other.torn;
        self.shuffled += other.shuffled;
        self.torn_superblocks += other.torn_superblocks;
        self.on_request += other.on_request;
        self.promising += other.promising;
        self.logged += other.logged;
        self.checked += other.checked;
        self.mounted += other.mounted;
        self.replayed += other.replayed;
        self.seconds += other.seconds;
    }
}

/// What came of a workload.
#[derive(Debug, Default)]
pub struct Outcome {
    /// What was done.
    pub tally: Tally,
    /// What went wrong, each with the workload and the state.
    pub failures: Vec<String>,
}

/// Records a workload and judges its states.
pub fn run(workload: &Workload, plan: &Plan) -> Outcome {
    let began = Instant::now();
    let mut outcome = Outcome::default();
    match guarded(|| record(workload)) {
        Ok(mut recording) => {
            recording.strict = plan.strict;
            if plan.no_barriers {
                recording.history = recording.history.without_barriers();
            }
            let since = (0, 0);
            let mut judging = Judging { workload, plan, recording: &recording, outcome, since };
            judging.all();
            outcome = judging.outcome;
        }
        Err(Failure(why)) => outcome.failures.push(format!("{}: {why}", workload.name)),
    }
    outcome.tally.seconds = began.elapsed().as_secs_f64();
    outcome
}

/// A panic is a failure.
pub(super) fn guarded<T>(work: impl FnOnce() -> Result<T>) -> Result<T> {
    let outcome = catch_unwind(AssertUnwindSafe(work));
    outcome.unwrap_or_else(|panic| Err(Failure(format!("panic: {}", message(&*panic)))))
}

/// Does the workloads on several threads; answers what was done and what went wrong.
pub fn on_threads<T: Default + AddAssign + Send>(
    threads: usize,
    workloads: &[Workload],
    work: impl Fn(&Workload) -> (T, Vec<String>) + Sync,
) -> (T, Vec<String>) {
    let next = AtomicUsize::new(0);
    let total = Mutex::new((T::default(), Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some(workload) = workloads.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let (tally, failures) = work(workload);
                    let mut total = total.lock().unwrap_or_else(PoisonError::into_inner);
                    total.0 += tally;
                    total.1.extend(failures);
                }
            });
        }
    });
    total.into_inner().unwrap_or_else(PoisonError::into_inner)
}

struct Judging<'a> {
    workload: &'a Workload,
    plan: &'a Plan,
    recording: &'a Recording,
    outcome: Outcome,
    /// States since the last one that `btrfs check` saw, and since the last one that Linux saw.
    since: (usize, usize),
}

impl Judging<'_> {
    fn all(&mut self) {
        let history = &self.recording.history;
        let all = states::all(history, self.plan.per_epoch, self.plan.seed);
        let tally = &mut self.outcome.tally;
        tally.workloads = 1;
        tally.ops = self.recording.count() as u64;
        tally.fsyncs = self.recording.fsyncs() as u64;
        tally.commits = self.recording.versions.len() as u64;
        tally.possible = all.len() as u64;
        let mut chosen = states::sample(&all, self.plan.states_max, self.plan.seed);
        if !self.plan.only.is_empty() {
            chosen.clone_from(&self.plan.only);
            chosen.sort_unstable_by_key(State::order);
        }
        let mut maker = Maker::new(history);
        let mut seen = HashSet::new();
        for state in chosen {
            let disk = maker.make(state);
            self.outcome.tally.states += 1;
            let left_out = self.plan.whole_superblocks && !judge::has_primary(&disk.device);
            if left_out || !seen.insert(disk.digest) {
                continue;
            }
            if let Err(Failure(why)) = guarded(|| self.judge(&disk)) {
                self.failed(&disk, &why);
                if self.outcome.failures.len() >= FAILURES_MAX {
                    return;
                }
            }
        }
    }

    fn judge(&mut self, disk: &Disk) -> Result<()> {
        let tally = &mut self.outcome.tally;
        tally.distinct += 1;
        match disk.state.loss {
            Loss::None => tally.cuts += 1,
            Loss::Torn => tally.torn += 1,
            Loss::Shuffled => tally.shuffled += 1,
        }
        let whole = judge::has_primary(&disk.device);
        tally.torn_superblocks += u64::from(!whole);
        tally.on_request += u64::from(judge::is_refused(&disk.device));
        let (transid, logged) = judge::committed(&disk.device)?;
        tally.logged += u64::from(logged);
        tally.promising += u64::from(self.recording.promises_more(transid, disk.state.cut));
        self.since.0 += 1;
        self.since.1 += 1;
        let model = judge::judge(self.recording, &self.workload.config, disk)?;
        let due = |since: usize, every: usize| every > 0 && since >= every;
        if due(self.since.0, self.plan.check_every) {
            self.since.0 = 0;
            match whole {
                true => kernel::check_with_quotas(&disk.device, &self.workload.config)?,
                false => judge::progs_by_mirror(&disk.device, &self.workload.config)?,
            }
            self.outcome.tally.checked += 1;
        }
        // Linux knows no other superblock than the primary one. With simple quotas 6.18 is too easily brought down.
        let can_mount = whole && model.quotas != QuotaMode::Simple;
        if due(self.since.1, self.plan.mount_every) && can_mount && is_root() {
            self.since.1 = 0;
            judge::linux(&disk.device, &self.workload.config, &model)?;
            self.outcome.tally.mounted += 1;
            self.outcome.tally.replayed += u64::from(logged);
        }
        Ok(())
    }

    fn failed(&mut self, disk: &Disk, why: &str) {
        let name = self.workload.name;
        self.outcome.failures.push(format!("{name}, {}: {why}", disk.state));
        let Some(dir) = &self.plan.keep else { return };
        let file = format!("{name}-{}", disk.state).replace([' ', ':', ','], "-");
        if let Err(error) = disk.device.store(dir.join(file)) {
            eprintln!("{name}: {error}");
        }
    }
}
