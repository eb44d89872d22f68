//! Judges the replay of every log that Linux leaves of the workloads in `logs`.
//!
//! `logrun [--only PART] [--exact NAME] [--threads N] [--keep DIR] [--list yes]`. `--only` takes all workloads with PART in their name;
//! `--keep` keeps the images of those that fail: `crashed`, what Linux made of it, and what we did.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::Instant;

use buttress_testkit::logs::run::{Plan, run, summary, table};
use buttress_testkit::logs::{Workload, all};
use buttress_testkit::oracle;

struct Arguments {
    plan: Plan,
    workloads: Vec<Workload>,
    list: bool,
}

fn arguments() -> Option<Arguments> {
    let mut words = std::env::args().skip(1);
    let mut given = BTreeMap::new();
    while let Some(word) = words.next() {
        given.insert(word.strip_prefix("--")?.to_owned(), words.next()?);
    }
    let threads = given.remove("threads").map_or(Some(3), |text| text.parse().ok())?;
    let plan = Plan { threads, keep: given.remove("keep").map(Into::into) };
    let mut workloads = all();
    if let Some(part) = given.remove("only") {
        workloads.retain(|it| it.name.contains(&part));
    }
    if let Some(name) = given.remove("exact") {
        workloads.retain(|it| it.name == name);
    }
    let list = given.remove("list").is_some();
    given.is_empty().then_some(Arguments { plan, workloads, list })
}

fn main() -> ExitCode {
    let Some(Arguments { plan, workloads, list }) = arguments() else {
        eprintln!("logrun [--only PART] [--exact NAME] [--threads N] [--keep DIR] [--list yes]");
        return ExitCode::from(2);
    };
    if list {
        for it in &workloads {
            println!("{}\n  before: {}\n  after: {}", it.name, it.before, it.after);
        }
        return ExitCode::SUCCESS;
    }
    if !oracle::is_root() {
        eprintln!("needs root for loop devices and mounts");
        return ExitCode::from(2);
    }
    let began = Instant::now();
    let verdicts = run(&workloads, &plan);
    print!("{}{}", table(&verdicts), summary(&verdicts));
    println!("{:.0} s", began.elapsed().as_secs_f64());
    let clean = verdicts.iter().all(|it| it.failures.is_empty());
    if clean && !verdicts.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
