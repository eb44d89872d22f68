//! Judges every state that a power loss may leave of the recorded workloads.
//!
//! `crashrun [--seed N] [--per-epoch N] [--states N] [--threads N] [--workload NAME] [--state STATE] [--check-every N]
//! [--mount-every N] [--keep DIR] [--fsyncs] [--random N] [--strict] [--notreelog] [--quotas] [--simple-quotas]`. `--notreelog`: fsyncs are commits. `--quotas`: with quota groups, which change; `--simple-quotas`: with those of simple quotas. `--whole-superblocks`: no state with a torn one. `--fsyncs`: only the workloads with fsyncs. `--random N`: random ones with fsyncs instead, of seeds from `--seed` on. `--strict`: renames must be found whole. `--states` is for each workload; a state has the form in which a failure names it.
//! `crashrun --faults N` lets the device fail instead: in each of fifteen ways at up to `N` of its operations in each workload;
//! `--fault "a write fails at 7"` in one way only. `crashrun --cold N` fails one in `N` of the reads that each operation of a workload makes where nothing is cached.
//! `crashrun --enumerate [--from N] [--to N] [--every N] [--threads N] [--check-every N] [--linux-every N]`: all short sequences of
//! operations with fsyncs, or those pairs; every so many of them are done by Linux, too. `--empty`: with a block group emptied in the middle of each.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::Instant;

use buttress_testkit::crash::cold::{self, ColdTally};
use buttress_testkit::crash::enumerate;
use buttress_testkit::crash::faults::{self, FaultTally};
use buttress_testkit::crash::run::{Plan, Tally, on_threads, run};
use buttress_testkit::crash::workloads::{Workload, all, fsyncs, random_fsyncs};
use buttress_testkit::model::QuotaMode;

struct Arguments {
    plan: Plan,
    threads: usize,
    workload: Option<String>,
    /// Only the workloads with fsyncs.
    fsyncs: bool,
    /// Whether fsyncs write a log.
    tree_log: bool,
    /// What quotas all workloads have, if they are to have some.
    quotas: QuotaMode,
    faults: usize,
    fault: Option<(String, u64)>,
    /// One in so many reads of cold caches fails.
    cold: u64,
    /// So many random workloads with fsyncs instead, from `seed` on.
    random: u64,
    enumerate: Option<enumerate::Plan>,
}

/// What was given, by name.
struct Given(BTreeMap<String, String>);

impl Given {
    fn read() -> Option<Given> {
        let mut words = std::env::args().skip(1);
        let mut given = BTreeMap::new();
        while let Some(word) = words.next() {
            let name = word.strip_prefix("--")?;
            let value = if FLAGS.contains(&name) { String::new() } else { words.next()? };
            given.insert(name.to_owned(), value);
        }
        Some(Given(given))
    }

    fn take(&mut self, name: &str) -> Option<String> {
        self.0.remove(name)
    }

    fn has(&mut self, name: &str) -> bool {
        self.take(name).is_some()
    }

    fn number(&mut self, name: &str, usual: usize) -> Option<usize> {
        self.take(name).map_or(Some(usual), |text| text.parse().ok())
    }

    fn quotas(&mut self) -> QuotaMode {
        let (full, simple) = (self.has("quotas"), self.has("simple-quotas"));
        match (full, simple) {
            (_, true) => QuotaMode::Simple,
            (true, false) => QuotaMode::Full,
            (false, false) => QuotaMode::Off,
        }
    }
}

fn arguments() -> Option<Arguments> {
    let mut given = Given::read()?;
    let plan = Plan {
        seed: given.number("seed", 1)? as u64,
        per_epoch: given.number("per-epoch", 32)? as u64,
        states_max: given.number("states", usize::MAX)?,
        check_every: given.number("check-every", 200)?,
        mount_every: given.number("mount-every", 1000)?,
        keep: given.take("keep").map(Into::into),
        only: match given.take("state") {
            Some(text) => vec![text.parse().ok()?],
            None => Vec::new(),
        },
        no_barriers: false,
        whole_superblocks: given.has("whole-superblocks"),
        strict: given.has("strict"),
    };
    let mut found = Arguments {
        threads: given.number("threads", 1)?.max(1),
        workload: given.take("workload"),
        fsyncs: given.has("fsyncs"),
        tree_log: !given.has("notreelog"),
        quotas: given.quotas(),
        faults: given.number("faults", 0)?,
        fault: match given.take("fault") {
            Some(text) => {
                let (name, at) = text.split_once(" at ")?;
                Some((name.to_owned(), at.parse().ok()?))
            }
            None => None,
        },
        cold: given.number("cold", 0)? as u64,
        random: given.number("random", 0)? as u64,
        enumerate: None,
        plan,
    };
    if given.has("enumerate") {
        found.enumerate = Some(sequences(&mut given, &found)?);
    }
    given.0.is_empty().then_some(found)
}

/// What `--enumerate` is to do.
fn sequences(given: &mut Given, found: &Arguments) -> Option<enumerate::Plan> {
    let from = given.number("from", 0)?;
    Some(enumerate::Plan {
        pairs: from..given.number("to", enumerate::count())?,
        every: given.number("every", 1)?.max(1),
        threads: found.threads,
        check_every: found.plan.check_every,
        linux_every: given.number("linux-every", 0)?,
        strict: found.plan.strict,
        tree_log: found.tree_log,
        quotas: found.quotas,
        empty: given.has("empty"),
    })
}

fn main() -> ExitCode {
    let Some(arguments) = arguments() else {
        eprintln!(
            "crashrun [--seed N] [--per-epoch N] [--states N] [--threads N] [--workload NAME]"
        );
        eprintln!(
            "         [--state STATE] [--check-every N] [--mount-every N] [--keep DIR] [--fsyncs] [--random N] [--strict] [--notreelog] [--whole-superblocks] [--quotas] [--simple-quotas]"
        );
        eprintln!("crashrun --faults N [--fault FAULT] | --cold N");
        eprintln!("crashrun --enumerate [--from N] [--to N] [--every N] [--threads N]");
        eprintln!(
            "         [--check-every N] [--linux-every N] [--empty] [--quotas] [--simple-quotas]"
        );
        return ExitCode::from(2);
    };
    if let Some(plan) = &arguments.enumerate {
        return enumerated(plan);
    }
    let mut workloads = if arguments.fsyncs { Vec::new() } else { all() };
    if arguments.faults == 0 || arguments.fsyncs {
        workloads.extend(fsyncs());
    }
    if arguments.random > 0 {
        let first = arguments.plan.seed;
        workloads = random_fsyncs(first..first + arguments.random);
    }
    if let Some(name) = &arguments.workload {
        workloads.retain(|workload| workload.name == name);
    }
    for workload in &mut workloads {
        workload.config.tree_log = arguments.tree_log;
        if arguments.quotas != QuotaMode::Off {
            workload.config.quotas = arguments.quotas;
        }
    }
    println!("seed {}, {} workloads", arguments.plan.seed, workloads.len());
    let began = Instant::now();
    let failures = match (arguments.faults, arguments.cold) {
        (0, 0) => all_of(&workloads, &arguments, states),
        (0, _) => all_of(&workloads, &arguments, cold),
        _ => all_of(&workloads, &arguments, failing),
    };
    println!("{failures} failures in {:.0} s", began.elapsed().as_secs_f64());
    if failures == 0 && !workloads.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// What stands alone.
const FLAGS: [&str; 8] = [
    "fsyncs",
    "enumerate",
    "empty",
    "strict",
    "notreelog",
    "whole-superblocks",
    "quotas",
    "simple-quotas",
];

/// Does it with all workloads; how many failures there were.
fn all_of<T: Default + std::fmt::Debug + Send + std::ops::AddAssign>(
    workloads: &[Workload],
    arguments: &Arguments,
    one: impl Fn(&Workload, &Arguments) -> (T, Vec<String>) + Sync,
) -> usize {
    let (total, failures) = on_threads(arguments.threads, workloads, |it| one(it, arguments));
    println!("{total:#?}");
    failures.len()
}

/// Judges the states of all short sequences.
fn enumerated(plan: &enumerate::Plan) -> ExitCode {
    println!("{} of {} pairs, one in {}", plan.pairs.len(), enumerate::count(), plan.every);
    let began = Instant::now();
    let failures = match enumerate::run(plan) {
        Ok((tally, failures)) => {
            println!("{tally:#?}");
            failures
        }
        Err(failure) => vec![failure.to_string()],
    };
    failures.iter().for_each(|failure| println!("FAILED {failure}"));
    println!("{} failures in {:.0} s", failures.len(), began.elapsed().as_secs_f64());
    if failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Judges states of a workload.
fn states(workload: &Workload, arguments: &Arguments) -> (Tally, Vec<String>) {
    let outcome = run(workload, &arguments.plan);
    let tally = outcome.tally;
    println!(
        "{}: {} ops, {} fsyncs, {} commits, {} states of {}, {} distinct, {} with promises, {} with a log, {} checked, {} mounted, \
         {:.1} s",
        workload.name,
        tally.ops,
        tally.fsyncs,
        tally.commits,
        tally.states,
        tally.possible,
        tally.distinct,
        tally.promising,
        tally.logged,
        tally.checked,
        tally.mounted,
        tally.seconds
    );
    outcome.failures.iter().for_each(|failure| println!("FAILED {failure}"));
    (tally, outcome.failures)
}

/// Lets the device of a workload fail.
fn failing(workload: &Workload, arguments: &Arguments) -> (FaultTally, Vec<String>) {
    let (tally, failures) =
        faults::run(workload, arguments.faults, arguments.plan.seed, arguments.fault.as_ref());
    println!("{}: {tally:?}", workload.name);
    failures.iter().for_each(|failure| println!("FAILED {failure}"));
    (tally, failures)
}

/// Lets reads fail where nothing is cached.
fn cold(workload: &Workload, arguments: &Arguments) -> (ColdTally, Vec<String>) {
    let (tally, failures) = cold::run(workload, arguments.cold, arguments.plan.seed);
    println!("{}: {tally:?}", workload.name);
    failures.iter().for_each(|failure| println!("FAILED {failure}"));
    (tally, failures)
}
