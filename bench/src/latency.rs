//! Row 15: how long an fsync takes while others work: while deleted snapshots are dropped, while somebody reads everything, and
//! while eight threads write. Each fsync is of 4 KiB, by one thread without a pause, in process.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use buttress::{Filesystem, New, Node, Options};

use crate::{Row, Scale, Side, create, linux, median};

const IMAGE: u64 = 32 << 30;
const TOP: Node = Node { subvolume: 5, ino: 256 };
const SECTOR: u64 = 4096;
/// Files of the subvolume, and how often it is snapshotted: together a million files.
const FILES: u64 = 200_000;
const SNAPSHOTS: u64 = 4;
/// Of so many files one changes between two snapshots.
const CHANGED: u64 = 50;
/// How long fsyncs are watched where the work has no end of its own.
const WATCHED: Duration = Duration::from_secs(5);
const WRITERS: u64 = 8;

/// Median and 99th percentile of fsyncs, alone and beside other work.
pub fn row(scale: Scale) -> Row {
    let files = scale.of(FILES);
    let total = files * (SNAPSHOTS + 1);
    let mut row = Row::new(15, format!("fsyncs while others work; {total} files are dropped"));
    if !scale.wants(Side::Here) {
        return row;
    }
    let dir = linux::ram();
    let image = dir.path().join("image");
    create::fresh(&image, IMAGE);
    let fs = Filesystem::open(&image, Options::read_write()).expect("a fresh image opens");
    fill(&fs, files);
    let alone = fsyncs(&fs, "alone", || WATCHED.into());
    let quiet = tell(&mut row, "alone", alone, None);
    let read = beside(&fs, "read", WATCHED, |over| {
        while !over() {
            read_all(&fs)
        }
    });
    tell(&mut row, "while everything is read", read, Some(quiet));
    let written = beside(&fs, "written", WATCHED, |over| write(&fs, over));
    tell(&mut row, "while 8 threads write", written, Some(quiet));
    let begun = Instant::now();
    for number in 0..=SNAPSHOTS {
        fs.delete_subvolume(TOP, format!("snapshot{number}").as_bytes()).expect("room");
    }
    let dropped = AtomicBool::new(false);
    let times = std::thread::scope(|scope| {
        scope.spawn(|| {
            while fs.is_dropping() {
                std::thread::sleep(Duration::from_millis(5));
            }
            dropped.store(true, Ordering::Relaxed);
        });
        fsyncs(&fs, "dropped", || Watch::Until(&dropped))
    });
    row.add("all is dropped after", begun.elapsed().as_secs_f64(), "s");
    tell(&mut row, "while snapshots are dropped", times, Some(quiet));
    fs.close().expect("a commit");
    row
}

/// A subvolume with files, and snapshots of it as it changes.
fn fill(fs: &Filesystem, files: u64) {
    let source = fs.create_subvolume(TOP, b"snapshot0", Default::default()).expect("room");
    create::make_files(fs, Node { subvolume: source, ino: 256 }, files, 2);
    for number in 1..=SNAPSHOTS {
        fs.snapshot(source, TOP, format!("snapshot{number}").as_bytes(), false).expect("room");
        for file in (number..files / 2).step_by(CHANGED as usize) {
            let name = format!("{file:016x}~~~~~~~~~~~~");
            let top = Node { subvolume: source, ino: 256 };
            let dir = fs.lookup(top, b"dir0").expect("readable").expect("it was made").node;
            let found = fs.lookup(dir, name.as_bytes()).expect("readable").expect("it was made");
            fs.write(found.node, 0, &[number as u8; 100]).expect("room");
        }
    }
    fs.commit().expect("a commit");
}

/// How long fsyncs are watched.
enum Watch<'a> {
    For(Duration),
    Until(&'a AtomicBool),
}

impl From<Duration> for Watch<'_> {
    fn from(time: Duration) -> Self {
        Watch::For(time)
    }
}

/// Seconds of fsyncs, one after the other.
fn fsyncs<'a>(fs: &Filesystem, name: &str, watch: impl Fn() -> Watch<'a>) -> Vec<f64> {
    let node = fs.create(TOP, name.as_bytes(), &New::file(0o600)).expect("room").node;
    let begun = Instant::now();
    let mut times = Vec::new();
    let over = || match watch() {
        Watch::For(time) => begun.elapsed() > time,
        Watch::Until(over) => over.load(Ordering::Relaxed),
    };
    while !over() {
        let block = [times.len() as u8; SECTOR as usize];
        let start = Instant::now();
        fs.write(node, times.len() as u64 % 16 * SECTOR, &block).expect("room");
        fs.sync(node).expect("a commit");
        times.push(start.elapsed().as_secs_f64());
    }
    times
}

/// The same while `work` goes on.
fn beside(
    fs: &Filesystem,
    name: &str,
    time: Duration,
    work: impl Fn(&(dyn Fn() -> bool + Sync)) + Sync,
) -> Vec<f64> {
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| work(&|| over.load(Ordering::Relaxed)));
        let times = fsyncs(fs, name, || time.into());
        over.store(true, Ordering::Relaxed);
        times
    })
}

/// Reads all names and attributes.
fn read_all(fs: &Filesystem) {
    let mut waiting = vec![TOP];
    while let Some(directory) = waiting.pop() {
        let mut nodes = Vec::new();
        let list = fs.read_dir(directory, 0, &mut |entry| {
            nodes.push(entry.node);
            true
        });
        list.expect("readable");
        for node in nodes {
            let found = fs.attributes(node).expect("readable");
            if found.kind == buttress::FileKind::Directory {
                waiting.push(node);
            }
        }
    }
}

/// Eight threads that write files of 64 KiB.
fn write(fs: &Filesystem, over: &(dyn Fn() -> bool + Sync)) {
    let next = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for _ in 0..WRITERS {
            scope.spawn(|| {
                while !over() {
                    let name = format!("file{}", next.fetch_add(1, Ordering::Relaxed));
                    let made = fs.create(TOP, name.as_bytes(), &New::file(0o600)).expect("room");
                    fs.write(made.node, 0, &[7; 64 << 10]).expect("room");
                    fs.unlink(TOP, name.as_bytes()).expect("room");
                }
            });
        }
    });
}

/// Adds the figures; answers the median.
fn tell(row: &mut Row, what: &str, mut times: Vec<f64>, quiet: Option<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    let late = times.get(times.len() * 99 / 100).copied().unwrap_or(f64::NAN);
    let most = times.last().copied().unwrap_or(f64::NAN);
    row.add(&format!("{what}: fsyncs"), times.len() as f64, "");
    let middle = median(times);
    row.add(&format!("{what}: median"), middle * 1e3, "ms");
    row.add(&format!("{what}: 99th percentile"), late * 1e3, "ms");
    row.add(&format!("{what}: longest"), most * 1e3, "ms");
    if let Some(quiet) = quiet {
        row.add(&format!("{what}: 99th percentile to median alone"), late / quiet, "x");
    }
    middle
}
