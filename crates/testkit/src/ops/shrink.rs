//! Making a failing sequence short: parts are left out as long as it still fails.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use super::Op;
use super::run::{Config, Failure, Runner};

/// Runs a sequence on a new filesystem; a panic is a failure, too. With `judged`, `btrfs check` and Linux have the last word.
pub fn run(config: &Config, ops: &[Op], judged: bool) -> Result<(), Failure> {
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        let mut runner = Runner::new(config)?;
        for op in ops {
            runner.step(op)?;
        }
        if judged {
            return runner.finish();
        }
        runner.step(&Op::Reopen)
    }));
    outcome.unwrap_or_else(|panic| Err(Failure(format!("panic: {}", message(&*panic)))))
}

/// Runs a sequence as far as it goes, and stores the image as the next commit leaves it.
pub fn store(config: &Config, ops: &[Op], path: &str) -> Result<(), Failure> {
    let mut runner = Runner::new(config)?;
    for op in ops {
        let done = match op {
            Op::Check => runner.step(&Op::Commit),
            op => runner.step(op),
        };
        if let Err(Failure(why)) = done {
            eprintln!("{why}");
            break;
        }
    }
    runner.step(&Op::Commit)?;
    match runner.device().map(|device| device.store(path)) {
        Some(Err(error)) => Err(Failure(error.to_string())),
        _ => Ok(()),
    }
}

/// What a panic says.
pub fn message(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default()
}

/// A sequence that still fails, and why; runs are made for about `time`. What is given must fail.
pub fn shrink(config: &Config, ops: &[Op], judged: bool, time: Duration) -> (Vec<Op>, Failure) {
    let mut ops = ops.to_vec();
    let mut failure = Failure("does not fail when run again".into());
    let end = Instant::now() + time;
    match run(config, &ops, judged) {
        Ok(()) => return (ops, failure),
        Err(found) => failure = found,
    }
    let mut part = ops.len().div_ceil(2);
    loop {
        let mut removed = false;
        let mut start = 0;
        while start < ops.len() && Instant::now() < end {
            let stop = (start + part).min(ops.len());
            let shorter = [&ops[..start], &ops[stop..]].concat();
            match run(config, &shorter, judged) {
                Err(found) => {
                    (ops, failure, removed) = (shorter, found, true);
                }
                Ok(()) => start = stop,
            }
        }
        if Instant::now() >= end || part == 1 && !removed {
            return (ops, failure);
        }
        part = part.div_ceil(2);
    }
}
