//! Judges every state that a power loss may leave of the recorded workloads.
//!
//! `crashrun [--seed N] [--per-epoch N] [--states N] [--threads N] [--workload NAME] [--state STATE] [--check-every N]
//! [--mount-every N] [--keep DIR] [--fsyncs] [--random N] [--strict] [--notreelog] [--quotas] [--simple-quotas]`. `--notreelog`: fsyncs are commits. `--quotas`: with quota groups, which change; `--simple-quotas`: with those of simple quotas. `--whole-superblocks`: no state with a torn one. `--fsyncs`: only the workloads with fsyncs. `--random N`: random ones with fsyncs instead, of seeds from `--seed` on. `--strict`: renames must be found whole. `--states` is for each workload; a state has the form in which a failure names it.
//! `crashrun --faults N` lets the device fail instead: in each of fifteen ways at up to `N` of its operations in each workload;
//! `--fault "a write fails at 7"` in one way only.
//! `crashrun --enumerate [--from N] [--to N] [--every N] [--threads N] [--check-every N] [--linux-every N]`: all short sequences of
//! operations with fsyncs, or those pairs; every so many of them are done by Linux, too. `--empty`: with a block group emptied in the middle of each.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::Instant;

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
    /// So many random workloads with fsyncs instead, from `seed` on.
    random: u64,
    enumerate: Option<enumerate::Plan>,
}

fn arguments() -> Option<Arguments> {
    let mut words = std::env::args().skip(1);
    let mut given = BTreeMap::new();
    while let Some(word) = words.next() {
        let name = word.strip_prefix("--")?;
        let value = if FLAGS.contains(&name) { String::new() } else { words.next()? };
        given.insert(name.to_owned(), value);
    }
    let number = |given: &mut BTreeMap<String, String>, name: &str, usual: usize| {
        given.remove(name).map_or(Some(usual), |text| text.parse().ok())
    };
    let plan = Plan {
        seed: number(&mut given, "seed", 1)? as u64,
        per_epoch: number(&mut given, "per-epoch", 32)? as u64,
        states_max: number(&mut given, "states", usize::MAX)?,
        check_every: number(&mut given, "check-every", 200)?,
        mount_every: number(&mut given, "mount-every", 1000)?,
        keep: given.remove("keep").map(Into::into),
        only: match given.remove("state") {
            Some(text) => vec![text.parse().ok()?],
            None => Vec::new(),
        },
        no_barriers: false,
        whole_superblocks: given.remove("whole-superblocks").is_some(),
        strict: given.remove("strict").is_some(),
    };
    let threads = number(&mut given, "threads", 1)?.max(1);
    let workload = given.remove("workload");
    let fsyncs = given.remove("fsyncs").is_some();
    let random = number(&mut given, "random", 0)? as u64;
    let faults = number(&mut given, "faults", 0)?;
    let fault = match given.remove("fault") {
        Some(text) => {
            let (name, at) = text.split_once(" at ")?;
            Some((name.to_owned(), at.parse().ok()?))
        }
        None => None,
    };
    let tree_log = given.remove("notreelog").is_none();
    let (full, simple) = (given.remove("quotas"), given.remove("simple-quotas"));
    let quotas = match (full, simple) {
        (_, Some(_)) => QuotaMode::Simple,
        (Some(_), None) => QuotaMode::Full,
        (None, None) => QuotaMode::Off,
    };
    let enumerate = match given.remove("enumerate") {
        Some(_) => {
            let from = number(&mut given, "from", 0)?;
            Some(enumerate::Plan {
                pairs: from..number(&mut given, "to", enumerate::count())?,
                every: number(&mut given, "every", 1)?.max(1),
                threads,
                check_every: plan.check_every,
                linux_every: number(&mut given, "linux-every", 0)?,
                strict: plan.strict,
                tree_log,
                quotas,
                empty: given.remove("empty").is_some(),
            })
        }
        None => None,
    };
    given.is_empty().then_some(Arguments {
        tree_log,
        quotas,
        random,
        enumerate,
        plan,
        threads,
        workload,
        fsyncs,
        faults,
        fault,
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
    let failures = match arguments.faults {
        0 => {
            let (total, failures) =
                on_threads(arguments.threads, &workloads, |it| states(it, &arguments));
            println!("{total:#?}");
            failures.len()
        }
        _ => {
            let (total, failures) =
                on_threads(arguments.threads, &workloads, |it| failing(it, &arguments));
            println!("{total:#?}");
            failures.len()
        }
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
