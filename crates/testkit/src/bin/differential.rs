//! The same random operations on a mount of the kernel and on ours, for as long as one likes.
//!
//! `differential [--seed N] [--seeds N] [--ops N] [--check-every N] [--go-on 1] [--save FILE] [--replay FILE]
//! [--keep DIRECTORY] [--empty-every MILLISECONDS]`. With the last, block groups of our mount are emptied beside all that, with rests so long. `--seeds` shares the operations among that many seeds, each with a shape of its own. With `--go-on`,
//! an answer that differs in attributes alone is counted and shown once, and the run goes on. The operations of a run that
//! fails are saved, and its images kept.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;

use buttress_testkit::differential::{self, Counts, Excuse, Pair, Shape};
use buttress_testkit::ops::generate::{Generator, Profile};
use buttress_testkit::ops::parse_all;
use buttress_testkit::ops::run::Failure;
use buttress_testkit::oracle;

/// How much a run may hold.
const BYTES_MAX: u64 = 12 << 20;
/// Operations between two lines about the progress.
const LINE_EVERY: usize = 10_000;

fn main() -> ExitCode {
    if differential::serve() {
        return ExitCode::SUCCESS;
    }
    let words: Vec<String> = std::env::args().skip(1).collect();
    let given: BTreeMap<&str, &str> =
        words.chunks_exact(2).map(|pair| (pair[0].as_str(), pair[1].as_str())).collect();
    if !oracle::root_or_skip() {
        return ExitCode::FAILURE;
    }
    let start = Instant::now();
    match run_all(&given) {
        Ok((ops, counts)) => {
            reasons(&counts);
            println!("{ops} operations: {counts:?} in {:.0} s", start.elapsed().as_secs_f64());
            ExitCode::SUCCESS
        }
        Err(Failure(why)) => {
            println!("FAILED after {:.0} s: {why}", start.elapsed().as_secs_f64());
            ExitCode::FAILURE
        }
    }
}

/// Says why what was different was right.
fn reasons(counts: &Counts) {
    for Excuse { word, what, why } in differential::TABLE {
        let count = |all: &BTreeMap<&str, u64>| all.get(word).copied().unwrap_or_default();
        let times = count(&counts.excused) + count(&counts.left_out);
        if times > 0 {
            println!("{times} x {word}: {what}. Reason: {why}.");
        }
    }
}

/// A number from the command line.
fn number(given: &BTreeMap<&str, &str>, name: &str, usual: u64) -> u64 {
    given.get(name).and_then(|text| text.parse().ok()).unwrap_or(usual)
}

/// How many operations there were, and what has happened.
fn run_all(given: &BTreeMap<&str, &str>) -> Result<(usize, Counts), Failure> {
    let (first, seeds) = (number(given, "--seed", 1), number(given, "--seeds", 1).max(1));
    let each = (number(given, "--ops", 20_000) / seeds) as usize;
    let (mut ops, mut all) = (0, Counts::default());
    for seed in first..first + seeds {
        let (count, counts) = run(given, seed, each)?;
        ops += count;
        all.add(&counts);
    }
    Ok((ops, all))
}

fn run(given: &BTreeMap<&str, &str>, seed: u64, ops: usize) -> Result<(usize, Counts), Failure> {
    let rest = given.get("--empty-every").and_then(|text| text.parse().ok());
    let shape = Shape { rest, ..Shape::of_seed(seed) };
    let mut pair = Pair::new(&shape)?;
    pair.goes_on = number(given, "--go-on", 0) > 0;
    let replay = match given.get("--replay") {
        Some(path) => {
            let text = std::fs::read_to_string(path).map_err(|error| Failure(error.to_string()))?;
            Some(parse_all(&text).map_err(|error| Failure(error.to_string()))?)
        }
        None => None,
    };
    let check_every = number(given, "--check-every", 5000);
    let profile = Profile { check_every, bytes_max: BYTES_MAX, ..Profile::default() };
    let mut generator = Generator::new(seed, profile);
    let count = replay.as_ref().map_or(ops, Vec::len);
    println!("seed {seed}, {shape:?}, {count} operations");
    let mut done = String::new();
    for at in 0..count {
        let op = match &replay {
            Some(ops) => ops[at].clone(),
            None => generator.next(pair.model()),
        };
        done += &format!("{op}\n");
        if let Err(Failure(why)) = pair.step(&op) {
            let why = format!("operation {at}: {why}");
            let save = given.get("--save").copied().unwrap_or("/tmp/differential.ops");
            let _ = std::fs::write(save, &done);
            if let Some(dir) = given.get("--keep") {
                pair.keep(Path::new(dir))?;
            }
            return Err(Failure(why));
        }
        if at % LINE_EVERY == LINE_EVERY - 1 {
            println!("{} operations: {:?}", at + 1, pair.counts);
        }
    }
    Ok((count, pair.finish()?))
}
