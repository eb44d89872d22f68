//! Random fields of healthy images changed, one at a time, and both checkers asked about each: see
//! [`buttress_testkit::damage::mutation`].
//!
//! `mutations [--count N] [--seed S] [--threads T] [--images DIR] [--base NAME] [--keep DIR] [--kernel]`; the
//! last one asks Linux, too, where only ours complains. `mutations --judge IMAGE` asks both about an image. Needs root, to make the images.

use std::collections::BTreeMap;
use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use buttress_device::MemoryDevice;
use buttress_testkit::damage::mutation::{Census, Theirs, Verdicts, ask, complaint, mutate};
use buttress_testkit::damage::{Base, Patient};
use buttress_testkit::ops::rng::Rng;
use buttress_testkit::oracle::temp_dir;

/// What is asked for.
struct Args {
    count: u64,
    seed: u64,
    threads: u64,
    images: Option<PathBuf>,
    base: Option<String>,
    keep: Option<PathBuf>,
    kernel: bool,
    judge: Option<PathBuf>,
}

fn args() -> Result<Args, Box<dyn Error>> {
    let mut args = Args {
        count: 20_000,
        seed: 1,
        threads: 2,
        images: None,
        base: None,
        keep: None,
        kernel: false,
        judge: None,
    };
    let mut all = std::env::args().skip(1);
    while let Some(name) = all.next() {
        if name == "--kernel" {
            args.kernel = true;
            continue;
        }
        let value = all.next().ok_or_else(|| format!("{name} needs a value"))?;
        match name.as_str() {
            "--count" => args.count = value.parse()?,
            "--seed" => args.seed = value.parse()?,
            "--threads" => args.threads = value.parse()?,
            "--images" => args.images = Some(value.into()),
            "--base" => args.base = Some(value),
            "--judge" => return Ok(Args { judge: Some(value.into()), ..args }),
            "--keep" => args.keep = Some(value.into()),
            _ => return Err(format!("{name} is unknown").into()),
        }
    }
    Ok(args)
}

/// The healthy image of a base, from the folder when it is there.
fn image(base: Base, images: Option<&Path>) -> Result<MemoryDevice, Box<dyn Error>> {
    let Some(dir) = images else { return Ok(base.make()?) };
    std::fs::create_dir_all(dir)?;
    let path = dir.join(format!("{base:?}"));
    if !path.exists() {
        base.make()?.store(&path)?;
    }
    Ok(MemoryDevice::load(&path)?)
}

#[derive(Default)]
struct Counts {
    done: u64,
    agreed: u64,
    excused: BTreeMap<&'static str, u64>,
    faults: u64,
}

/// What both say of an image that is given.
fn judge(image: &Path, copy: &Path) -> Result<ExitCode, Box<dyn Error>> {
    let asked = ask(&Arc::new(MemoryDevice::load(image)?), copy)?;
    let verdicts = asked.verdicts();
    println!("{}: btrfs check {:?}; {verdicts:?}", image.display(), asked.theirs);
    if !matches!(verdicts, Verdicts::Agree) {
        println!("{}", asked.text);
    }
    match asked.ours {
        Ok(report) => report.issues.iter().for_each(|issue| println!("    {issue}")),
        Err(error) => println!("    {error}"),
    }
    Ok(if verdicts == Verdicts::Agree { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn main() -> Result<ExitCode, Box<dyn Error>> {
    let args = args()?;
    let dir = temp_dir()?;
    if let Some(path) = &args.judge {
        return judge(path, &dir.path().join("image"));
    }
    let mut bases = Vec::new();
    for base in Base::ALL {
        if args.base.as_ref().is_none_or(|name| *name == format!("{base:?}")) {
            let healthy = image(base, args.images.as_deref())?;
            let census = Census::of(&Patient::of(&healthy)?)?;
            println!(
                "{base:?}: {} classes, {} blocks",
                census.names().count(),
                census.blocks().len()
            );
            let asked = ask(&Arc::new(healthy.snapshot()), &dir.path().join("healthy"))?;
            if asked.theirs == Theirs::Fails || !matches!(&asked.ours, Ok(it) if it.is_clean()) {
                println!("{base:?} is not healthy: {} {:#?}", asked.text, asked.ours);
            }
            bases.push(Healthy { base, image: healthy, census });
        }
    }
    let (next, counts) = (AtomicU64::new(0), Mutex::new(Counts::default()));
    std::thread::scope(|scope| {
        for thread in 0..args.threads {
            let path = dir.path().join(thread.to_string());
            let (bases, next, counts, args) = (&bases, &next, &counts, &args);
            scope.spawn(move || {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= args.count {
                        return;
                    }
                    let healthy = &bases[number as usize % bases.len()];
                    let seed = args.seed << 32 | number;
                    if let Err(error) = one(healthy, seed, &path, counts, args) {
                        println!("seed {seed}: {error}");
                        counts.lock().unwrap_or_else(|it| it.into_inner()).faults += 1;
                    }
                }
            });
        }
    });
    let counts = counts.into_inner().unwrap_or_else(|it| it.into_inner());
    println!("{} mutations, {} judged alike", counts.done, counts.agreed);
    for (reason, count) in &counts.excused {
        println!("{count} only by us: {reason}");
    }
    println!("{} disagreements without a reason", counts.faults);
    Ok(if counts.faults == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// An image to be damaged, and what there is in it.
struct Healthy {
    base: Base,
    image: MemoryDevice,
    census: Census,
}

fn one(
    Healthy { base, image, census }: &Healthy,
    seed: u64,
    path: &Path,
    counts: &Mutex<Counts>,
    args: &Args,
) -> Result<(), Box<dyn Error>> {
    let mut rng = Rng::new(seed);
    let (patient, told) = loop {
        let patient = Patient::of(image)?;
        if let Some(told) = mutate(&patient, census, &mut rng)? {
            break (patient, told);
        }
    };
    let asked = ask(patient.device(), path)?;
    let verdicts = asked.verdicts();
    let only_ours = matches!(verdicts, Verdicts::OnlyOurs(_) | Verdicts::Excused(_));
    let linux = match args.kernel && only_ours {
        true => complaint(path).unwrap_or_else(|| "is content".into()),
        false => "was not asked".into(),
    };
    let mut counts = counts.lock().unwrap_or_else(|it| it.into_inner());
    counts.done += 1;
    match verdicts {
        Verdicts::Agree => counts.agreed += 1,
        Verdicts::Excused(reason) => *counts.excused.entry(reason).or_default() += 1,
        Verdicts::OnlyOurs(issue) => {
            counts.faults += 1;
            println!("OURS {base:?} {seed} {told}\n    {issue}\n    Linux: {linux}");
        }
        Verdicts::OnlyTheirs => {
            counts.faults += 1;
            let said: Vec<_> = asked.text.lines().collect();
            println!("THEIRS {base:?} {seed} {told}\n    {}", said.join("\n    "));
        }
    }
    if let Some(keep) = args.keep.as_ref() {
        patient.device().store(keep.join(format!("{base:?}-{seed}")))?;
    }
    Ok(())
}
