//! Runs random operations on the engine and on a model of it; a sequence that fails is made short and saved.
//!
//! `modelrun [--seed N] [--ops N] [--nodesize N] [--threads N] [--size N] [--check-every N] [--empty-every N] [--trim-every N] [--quotas 1|simple] [--switch-every N] [--out FILE]`, or
//! `modelrun --brim 1 [--threads N]` on filesystems that are full (see `ops::brim`), or
//! `modelrun --replay FILE [--image FILE]`, which also stores the image that the sequence leaves, with the same `--seed`, `--nodesize` and `--size` as the run that saved it.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use buttress_testkit::model::QuotaMode;
use buttress_testkit::ops::brim::{self, Brim};
use buttress_testkit::ops::generate::{Generator, Profile};
use buttress_testkit::ops::run::{Config, Counts, Failure, Runner};
use buttress_testkit::ops::{Op, parse_all, shrink, threads};

struct Arguments {
    seed: u64,
    ops: u64,
    nodesize: Option<u32>,
    threads: u64,
    size: u64,
    check_every: u64,
    empty_every: u64,
    trim_every: u64,
    brim: bool,
    quotas: QuotaMode,
    switch_every: u64,
    replay: Option<String>,
    image: Option<String>,
    out: String,
}

fn arguments() -> Option<Arguments> {
    let mut found = Arguments {
        seed: 1,
        ops: 20_000,
        nodesize: None,
        threads: 0,
        size: 1 << 30,
        check_every: 5000,
        empty_every: 300,
        trim_every: 170,
        brim: false,
        quotas: QuotaMode::Off,
        switch_every: 0,
        replay: None,
        image: None,
        out: String::new(),
    };
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let value = words.next()?;
        match word.as_str() {
            "--seed" => found.seed = value.parse().ok()?,
            "--ops" => found.ops = value.parse().ok()?,
            "--nodesize" => found.nodesize = Some(value.parse().ok()?),
            "--threads" => found.threads = value.parse().ok()?,
            "--size" => found.size = buttress_mkfs::parse_size(&value).ok()?,
            "--check-every" => found.check_every = value.parse().ok()?,
            "--quotas" => {
                found.quotas = match value.as_str() {
                    "0" => QuotaMode::Off,
                    "simple" => QuotaMode::Simple,
                    _ => QuotaMode::Full,
                };
            }
            "--switch-every" => found.switch_every = value.parse().ok()?,
            "--trim-every" => found.trim_every = value.parse().ok()?,
            "--empty-every" => found.empty_every = value.parse().ok()?,
            "--brim" => found.brim = value != "0",
            "--replay" => found.replay = Some(value),
            "--image" => found.image = Some(value),
            "--out" => found.out = value,
            _ => return None,
        }
    }
    if found.out.is_empty() {
        found.out = format!("{}/modelrun-{}.ops", std::env::temp_dir().display(), found.seed);
    }
    Some(found)
}

fn main() -> ExitCode {
    let Some(arguments) = arguments() else {
        eprintln!(
            "modelrun [--seed N] [--ops N] [--nodesize N] [--threads N] [--size N] [--check-every N] [--empty-every N] [--trim-every N] [--quotas 1|simple] [--switch-every N] [--out FILE] [--replay FILE]"
        );
        return ExitCode::from(2);
    };
    let (tight, filling) = Brim::of_seed(arguments.seed);
    let mut config = match arguments.brim {
        true => tight,
        false => Config::of_seed(arguments.seed, arguments.size),
    };
    config.nodesize = arguments.nodesize.unwrap_or(config.nodesize);
    config.mixed &= config.nodesize == 4096;
    config.quotas = arguments.quotas;
    println!("seed {} {config:?}", arguments.seed);
    let start = Instant::now();
    let outcome = match &arguments.replay {
        Some(path) => replay(&config, path, &arguments),
        None if arguments.brim => brim(&config, filling, &arguments),
        None if arguments.threads > 0 => {
            let each = arguments.ops / arguments.threads;
            threads::run(&config, arguments.seed, arguments.threads, each)
                .map(|it| format!("{it:?}"))
        }
        None => single(&config, &arguments),
    };
    let seconds = start.elapsed().as_secs_f64();
    match outcome {
        Ok(counts) => {
            let rate = arguments.ops as f64 / seconds;
            println!("seed {}: {counts} in {seconds:.1} s, {rate:.0} ops/s", arguments.seed);
            ExitCode::SUCCESS
        }
        Err(Failure(why)) => {
            println!("seed {} FAILED after {seconds:.1} s: {why}", arguments.seed);
            ExitCode::FAILURE
        }
    }
}

fn brim(config: &Config, filling: Brim, arguments: &Arguments) -> Result<String, Failure> {
    println!("{filling:?}");
    if arguments.threads > 0 {
        let (seed, threads) = (arguments.seed, arguments.threads);
        let counts = brim::in_threads(seed, config, filling, threads, arguments.ops)?;
        return Ok(format!("{} operations when full, {counts:?}", arguments.ops));
    }
    let mut run = brim::Run::new(arguments.seed, config, filling)?;
    let outcome = run.fill().and_then(|()| run.own_goes()).and_then(|()| {
        let filled = run.runner().counts;
        println!("filled: {filled:?}");
        for number in 1..=arguments.ops {
            run.random()?;
            if arguments.empty_every > 0 && number.is_multiple_of(arguments.empty_every) {
                run.empty(number / arguments.empty_every)?;
            }
            if number.is_multiple_of(arguments.check_every) {
                run.runner().check()?;
            }
        }
        let all = run.runner().counts;
        run.finish()?;
        let full = |count: fn(&Counts) -> u64| count(&all) - count(&filled);
        Ok(format!(
            "{} operations when full: {} done, {} found no space, {} deletions found none, {} were refused otherwise; {:?}",
            arguments.ops,
            full(|it| it.done),
            full(|it| it.no_space),
            full(|it| it.stuck),
            full(|it| it.refused),
            run.runner().counts
        ))
    });
    outcome.inspect_err(|_| {
        let text: String = run.done.iter().map(|op| format!("{op}\n")).collect();
        if let Err(error) = std::fs::write(&arguments.out, format!("# {config:?}\n{text}")) {
            println!("{}: {error}", arguments.out);
        }
        println!("{} operations are in {}", run.done.len(), arguments.out);
    })
}

fn replay(config: &Config, path: &str, arguments: &Arguments) -> Result<String, Failure> {
    let text = std::fs::read_to_string(path).map_err(|error| Failure(error.to_string()))?;
    let ops = parse_all(&text).map_err(|error| Failure(error.to_string()))?;
    if let Some(image) = &arguments.image {
        shrink::store(config, &ops, image)?;
        return Ok(format!("{} operations, {image}", ops.len()));
    }
    match shrink::run(config, &ops, true) {
        Ok(()) => Ok(format!("{} operations", ops.len())),
        Err(_) => Err(shorter(config, &ops, &arguments.out)),
    }
}

fn single(config: &Config, arguments: &Arguments) -> Result<String, Failure> {
    let small = arguments.size < 512 << 20;
    let profile = if small { Profile::filling() } else { Profile::default() };
    let (check_every, empty_every) = (arguments.check_every, arguments.empty_every);
    let (quotas_every, trim_every) = (arguments.switch_every, arguments.trim_every);
    let mut profile = Profile { check_every, empty_every, trim_every, quotas_every, ..profile };
    if arguments.seed.is_multiple_of(4) {
        (profile.numbered, profile.files_max) = (400, 1500);
    }
    let mut generator = Generator::new(arguments.seed, profile);
    let mut done = Vec::new();
    let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let mut runner = Runner::new(config)?;
        for _ in 0..arguments.ops {
            let op = generator.next(runner.model());
            done.push(op.clone());
            runner.step(&op)?;
        }
        runner.finish()?;
        Ok(format!("{:?}", runner.counts))
    }));
    let outcome = outcome
        .unwrap_or_else(|panic| Err(Failure(format!("panic: {}", shrink::message(&*panic)))));
    outcome.map_err(|Failure(why)| {
        println!("failed after {} operations: {why}", done.len());
        shorter(config, &done, &arguments.out)
    })
}

/// Makes the sequence short, and saves it.
fn shorter(config: &Config, ops: &[Op], out: &str) -> Failure {
    std::panic::set_hook(Box::new(|_| {}));
    let judged = shrink::run(config, ops, false).is_ok();
    let (ops, failure) = shrink::shrink(config, ops, judged, Duration::from_secs(60));
    let why = failure.0.replace('\n', "\n# ");
    let text: String = ops.iter().map(|op| format!("{op}\n")).collect();
    if let Err(error) = std::fs::write(out, format!("# {config:?}\n# {why}\n{text}")) {
        println!("{out}: {error}");
    }
    println!("{} operations in {out}:\n{text}", ops.len());
    failure
}
