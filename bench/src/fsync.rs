//! Row 8: what an fsync searches, and what it costs while much else waits and while others do the same.
//!
//! Each fsync is of some bytes at the end of a file: here in process, on Linux's btrfs by system calls. Barriers are what the device is
//! asked for: here two for each log and each commit, on Linux as the loop device counts them.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use buttress::{Filesystem, New, Node, Options};

use crate::linux::{self, Mount};
use crate::{Row, Scale, Side, create, median, seconds};

const IMAGE: u64 = 16 << 30;
const TOP: Node = Node { subvolume: 5, ino: 256 };
/// fsyncs of inodes without xattrs, of so many files.
const SEARCHES: (u64, u64) = (400_000, 1000);
/// Inodes that have changed and wait for a commit.
const WAITING: u64 = 100_000;
/// fsyncs that are timed beside them.
const TIMED: u64 = 500;
/// fsyncs of all threads together.
const APPENDS: u64 = 6400;
/// Bytes that each one is about.
const BYTES: [u8; 700] = [9; 700];

/// A filesystem that has all the memory it wants, and commits when it is asked to.
fn open(image: &Path) -> Filesystem {
    create::fresh(image, IMAGE);
    let options = Options::read_write().memory(2 << 30);
    let options = options.commit_interval(Duration::from_secs(3600)).background(false);
    Filesystem::open(image, options).expect("a fresh image opens")
}

fn new(fs: &Filesystem, name: &str) -> Node {
    fs.create(TOP, name.as_bytes(), &New::file(0o600)).expect("room").node
}

fn append(fs: &Filesystem, node: Node, number: u64) {
    fs.write(node, number * BYTES.len() as u64, &BYTES).expect("room");
    fs.sync(node).expect("durable");
}

/// Searches, fsyncs beside what waits, and fsyncs of several threads.
pub fn row(scale: Scale) -> Row {
    let mut row = Row::new(8, "fsync: searches, what waits beside it, threads".to_owned());
    if scale.wants(Side::Here) {
        searches(scale, &mut row);
        let dir = linux::ram();
        let fs = open(&dir.path().join("image"));
        let make = || create::make_files(&fs, TOP, scale.of(WAITING), 2);
        let times = |name: &str| {
            let node = new(&fs, name);
            fs.commit().expect("a commit");
            timed(|number| append(&fs, node, number))
        };
        let alone = times("alone");
        let (beside, commits) = (new(&fs, "beside"), fs.commit().expect("a commit"));
        make();
        let beside = timed(|number| append(&fs, beside, number));
        tell_waiting("here", alone, beside, &mut row);
        row.add(
            "here, commits meanwhile",
            (fs.commit().expect("a commit") - commits - 1) as f64,
            "",
        );
        fs.close().expect("a commit");
    }
    if scale.wants(Side::Linux)
        && let Err(why) = waiting_in_linux(scale, &mut row)
    {
        row.note(why);
    }
    for threads in [1, 8, 64] {
        appends(scale, threads, &mut row);
    }
    row
}

fn searches(scale: Scale, row: &mut Row) {
    let dir = linux::ram();
    let fs = open(&dir.path().join("image"));
    let (all, files) = (scale.of(SEARCHES.0), SEARCHES.1);
    let nodes: Vec<Node> = (0..files).map(|number| new(&fs, &number.to_string())).collect();
    fs.commit().expect("a commit");
    let took = seconds(|| {
        for number in 0..all {
            append(&fs, nodes[(number % files) as usize], number / files);
        }
    });
    let stats = fs.stats();
    row.add(&format!("here, searches of {all} fsyncs"), stats.log_searches as f64, "");
    row.add("here, logs for each of them", stats.log_writes as f64 / all as f64, "");
    row.add("here, tree blocks for each", stats.log_blocks as f64 / all as f64, "");
    row.add("here, each", took / all as f64 * 1e6, "us");
    fs.close().expect("a commit");
}

fn timed(mut sync: impl FnMut(u64)) -> Vec<f64> {
    let one = |number| {
        let start = Instant::now();
        sync(number);
        start.elapsed().as_secs_f64()
    };
    (0..TIMED).map(one).collect()
}

fn tell_waiting(side: &str, alone: Vec<f64>, beside: Vec<f64>, row: &mut Row) {
    let first = beside.first().copied().unwrap_or(f64::NAN);
    let (alone, beside) = (median(alone), median(beside));
    row.add(&format!("{side}, an fsync alone"), alone * 1e6, "us");
    row.add(&format!("{side}, an fsync while 100,000 inodes wait"), beside * 1e6, "us");
    row.add(&format!("{side}, the first one of those"), first * 1e6, "us");
    row.ratio(&format!("{side}, beside to alone"), vec![beside, alone]);
}

fn waiting_in_linux(scale: Scale, row: &mut Row) -> Result<(), String> {
    let mount = Mount::fresh(IMAGE)?;
    linux::run("mount", &["-o", "remount,commit=300", &mount.path().to_string_lossy()])?;
    let file = |name: &str| File::create(mount.path().join(name)).map_err(|why| why.to_string());
    let append = |mut file: File| {
        timed(move |_| {
            file.write_all(&BYTES).expect("room");
            file.sync_all().expect("durable");
        })
    };
    let alone = file("alone")?;
    mount.sync()?;
    let alone = append(alone);
    let beside = file("beside")?;
    mount.sync()?;
    for dir in 0..2 {
        let dir = mount.path().join(format!("dir{dir}"));
        fs::create_dir(&dir).map_err(|error| error.to_string())?;
        for number in 0..scale.of(WAITING) / 2 {
            File::create(dir.join(number.to_string())).map_err(|error| error.to_string())?;
        }
    }
    tell_waiting("Linux", alone, append(beside), row);
    Ok(())
}

/// fsyncs per second of threads that append to a file each, and barriers for each.
fn appends(scale: Scale, threads: u64, row: &mut Row) {
    let (mut ours, mut theirs) = ([Vec::new(), Vec::new()], [Vec::new(), Vec::new()]);
    for _ in 0..scale.rounds.min(3) {
        if scale.wants(Side::Here) {
            let dir = linux::ram();
            let fs = open(&dir.path().join("image"));
            let before = fs.stats();
            let rate = on_threads(threads, |thread| {
                let node = new(&fs, &thread.to_string());
                (0..APPENDS / threads).for_each(|number| append(&fs, node, number));
            });
            let stats = fs.stats();
            let written = stats.log_writes + stats.commits - before.log_writes - before.commits;
            ours[0].push(rate);
            ours[1].push(2.0 * written as f64 / APPENDS as f64);
            fs.close().expect("a commit");
        }
        if scale.wants(Side::Linux) {
            match appends_in_linux(threads) {
                Ok((rate, barriers)) => {
                    theirs[0].push(rate);
                    theirs[1].push(barriers);
                }
                Err(why) => row.note(why),
            }
        }
    }
    for (side, [rates, barriers]) in [("here", ours), ("Linux", theirs)] {
        if !rates.is_empty() {
            row.add(&format!("{side}, {threads} threads append"), median(rates), "fsyncs/s");
            row.add(
                &format!("{side}, {threads} threads append"),
                median(barriers),
                "barriers each",
            );
        }
    }
}

fn on_threads(threads: u64, work: impl Fn(u64) + Sync) -> f64 {
    let next = AtomicU64::new(0);
    let took = seconds(|| {
        std::thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(|| work(next.fetch_add(1, Ordering::Relaxed)));
            }
        });
    });
    APPENDS as f64 / took
}

fn appends_in_linux(threads: u64) -> Result<(f64, f64), String> {
    let mount = Mount::fresh(IMAGE)?;
    let path: PathBuf = mount.path();
    let before = flushes(&path)?;
    let rate = on_threads(threads, |thread| {
        let mut file = File::create(path.join(thread.to_string())).expect("room");
        for _ in 0..APPENDS / threads {
            file.write_all(&BYTES).expect("room");
            file.sync_all().expect("durable");
        }
    });
    Ok((rate, (flushes(&path)? - before) as f64 / APPENDS as f64))
}

/// Flushes that the device of a mount has been asked for: the 16th figure of its statistics.
fn flushes(mount: &Path) -> Result<u64, String> {
    let device = linux::run("findmnt", &["-n", "-o", "SOURCE", &mount.to_string_lossy()])?;
    let name = device.trim().trim_start_matches("/dev/");
    let stat = fs::read_to_string(format!("/sys/block/{name}/stat")).map_err(|e| e.to_string())?;
    let flushes = stat.split_whitespace().nth(15).and_then(|count| count.parse().ok());
    flushes.ok_or_else(|| format!("{name} does not count flushes"))
}
