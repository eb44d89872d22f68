//! Replay of logs: the same log is replayed by Linux and by the library, and both come to the same filesystem.
//!
//! Linux makes each log: a shell script runs on a mount that commits only when it is told to, and the image is copied right after its
//! last fsync, while it is mounted. One copy is then mounted by Linux, the other opened for writing and closed. Compared are all items of
//! the subvolume, byte for byte in what they say, but for numbers that each writer chooses; then `btrfs check` and Linux have to be content
//! with ours, and what the library shows of the log without writing has to be what Linux makes of it.

mod cases;
mod crash;
mod hostile;
mod items;
mod random;
mod reach;
mod sample;

use std::path::Path;
use std::process::Command;

use buttress::{Filesystem, Options};
use buttress_testkit::facts::{Facts, diff, facts_of_dir, facts_of_library};
use buttress_testkit::oracle::{
    KernelMount, check, check_verdict, copy_sparse, mkfs, root_or_skip, run, temp_dir,
};

use cases::{CASES, Case};
use reach::reach;

type Failed = Box<dyn std::error::Error>;

/// What came of a case that did not fail.
enum Outcome {
    /// Both replays come to the same.
    Same,
    /// Linux has committed, so there is no log.
    Committed,
}

const SIZE: u64 = 512 << 20;

/// Runs a case's script and copies the image while it is mounted.
///
/// `anew`: what comes after its last commit happens on a mount that has not made what is there. Linux commits more often where it
/// has an inode in memory since it was made.
fn make(case: &Case<'_>, anew: bool, dir: &Path) -> Result<(), Failed> {
    // Now and then Linux (6.18) leaves a new block group with an item that says nothing is used of it, until it is written the next time: that is refused, rightly.
    // And where it mounts that itself and gives the space away, it complains: all that is Linux alone so far.
    for _ in 1..TRIES {
        if let Err(error) = make_once(case, anew, dir) {
            println!("{}: made again, as Linux could not: {error}", case.name);
            continue;
        }
        let (is_sound, report) = check_verdict(&dir.join("theirs"), false)?;
        if is_sound {
            return Ok(());
        }
        println!("{}: made again, as Linux left it unsound: {report}", case.name);
    }
    make_once(case, anew, dir)
}

/// How often an image is made at most.
const TRIES: usize = 4;

fn make_once(case: &Case<'_>, anew: bool, dir: &Path) -> Result<(), Failed> {
    let image = dir.join("image");
    mkfs(&image, SIZE, case.mkfs)?;
    let options = ["commit=3600", case.mount].join(if case.mount.is_empty() { "" } else { "," });
    let mut mount = KernelMount::new(&image, &options)?;
    let shell = |mount: &KernelMount, script: &str| {
        let script = [cases::HELPERS, script].concat();
        run(Command::new("sh").args(["-e", "-c", &script]).current_dir(mount.path()))
    };
    // So that there is room without a new chunk, which makes a commit of a fsync.
    shell(&mount, "fallocate -l 9M .large; commit")?;
    let mut script = case.script;
    if let Some((before, rest)) = script.rsplit_once("commit; ").filter(|_| anew) {
        shell(&mount, before)?;
        mount.finish()?;
        mount = KernelMount::new(&image, &options)?;
        script = rest;
    }
    shell(&mount, script)?;
    // Held until the image is copied.
    let open = case.then.map(|then| then(mount.path())).transpose()?;
    copy_sparse(&image, &dir.join("theirs"))?;
    copy_sparse(&image, &dir.join("ours"))?;
    drop(open);
    mount.finish()?;
    Ok(())
}

/// Mounts for writing, looks at everything, so that what has no name is deleted, and unmounts.
fn settle(image: &Path) -> Result<Facts, Failed> {
    let mount = KernelMount::new(image, "")?;
    let facts = facts_of_dir(mount.path())?;
    mount.finish()?;
    Ok(facts)
}

fn same_facts(what: &str, have: &Facts, expect: &Facts) -> Result<(), Failed> {
    match diff(&items::ageless(have), &items::ageless(expect)) {
        lines if lines.is_empty() => Ok(()),
        lines => Err(format!("{what}: {}", lines.join("\n    ")).into()),
    }
}

/// What was told of extents with the log waiting is what is told of an image into which it was replayed.
fn same_reach(shown: &[String], replayed: &Path) -> Result<(), Failed> {
    let expect = reach(&Filesystem::open(replayed, Options::read_only())?)?;
    let differs = shown.iter().zip(&expect).find(|(have, expect)| have != expect);
    match differs {
        Some((have, expect)) => Err(format!("told {have}, and then {expect}").into()),
        None if shown.len() != expect.len() => Err("more or fewer files or extents".into()),
        None => Ok(()),
    }
}

fn judge(case: &Case<'_>, anew: bool) -> Result<Outcome, Failed> {
    let dir = temp_dir()?;
    make(case, anew, dir.path())?;
    let (theirs, ours) = (dir.path().join("theirs"), dir.path().join("ours"));
    let fs = Filesystem::open(&ours, Options::read_only())?;
    let shown = facts_of_library(&fs)?;
    let told = fs.warnings().join("; ");
    if !told.contains("a log tree waits") {
        return Ok(Outcome::Committed);
    }
    let reached = reach(&fs)?;
    drop(fs);
    // Reading has written nothing.
    run(Command::new("cmp").arg(&ours).arg(&theirs))?;
    Filesystem::open(&ours, Options::read_write().background(false))?.close()?;
    check(&ours, true)?;
    same_reach(&reached, &ours)?;
    let expect = settle(&theirs)?;
    let have = settle(&ours)?;
    same_facts("replayed", &have, &expect)?;
    same_facts("shown", &shown, &expect)?;
    items::same(&ours, &theirs)?;
    check(&ours, true)?;
    Ok(Outcome::Same)
}

/// Logs of which there are at least so many, whatever Linux commits.
const LOGS_MIN: usize = 70;

#[test]
fn the_same_as_linux() {
    if !root_or_skip() {
        return;
    }
    let only = std::env::var("BUTTRESS_LOG").unwrap_or_default();
    let (mut failed, mut same) = (Vec::new(), 0);
    let long = !only.is_empty() || std::env::var("BUTTRESS_LONG").is_ok_and(|value| value != "0");
    let chosen = CASES.iter().filter(|case| case.name.contains(&only));
    for (number, case) in chosen.enumerate() {
        // Both ways where there is time.
        let ways = [number % 2 == 0, number % 2 == 1];
        for anew in &ways[..if long { 2 } else { 1 }] {
            let anew = *anew;
            match judge(case, anew) {
                Ok(Outcome::Same) => same += 1,
                Ok(Outcome::Committed) => println!("{} ({anew}): Linux commits", case.name),
                Err(error) => failed.push(format!("{} ({anew}): {error}", case.name)),
            }
        }
    }
    assert!(failed.is_empty(), "{} of {}:\n{}", failed.len(), CASES.len(), failed.join("\n"));
    println!("{same} logs");
    assert!(same >= LOGS_MIN || !only.is_empty(), "only {same} logs");
}

/// More with `BUTTRESS_LOGS=1000`; others with `BUTTRESS_SEED`.
#[test]
fn the_same_as_linux_at_random() {
    if !root_or_skip() {
        return;
    }
    let number = |name: &str, usual: u64| {
        let given = std::env::var(name).ok();
        given.map_or(usual, |text| text.parse().expect("a number"))
    };
    let (seed, count) = (number("BUTTRESS_SEED", 1), number("BUTTRESS_LOGS", 12));
    let (mut failed, mut same) = (Vec::new(), 0);
    for seed in seed..seed + count {
        let script = random::script(seed);
        match judge(&cases::case("at random", &script), seed % 2 == 0) {
            Ok(Outcome::Same) => same += 1,
            Ok(Outcome::Committed) => {}
            Err(error) => failed.push(format!("seed {seed}: {error}\n{script}")),
        }
    }
    println!("{same} logs of {count}");
    assert!(failed.is_empty(), "{} of {count}:\n{}", failed.len(), failed.join("\n"));
}
