//! Row 14: small commits, and how many fsyncs share one.
//!
//! A commit costs what it changes: a small one takes as long on a filesystem with many block groups, or much free space in
//! pieces, as on an empty one. `buttress-bench commits KIND` makes the small commits of one kind alone, so that their
//! instructions can be counted: `valgrind --tool=callgrind --toggle-collect='*small_commit*'`.

use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use buttress::{Allocate, Filesystem, New, Node, OpenMode, Options};
use rustix::time::{ClockId, clock_gettime};

use crate::linux::{self, Mount};
use crate::{Row, Scale, Side, median, seconds};

const TOP: Node = Node { subvolume: 5, ino: 256 };
const SECTOR: u64 = 4096;
/// Small commits of a round.
const COMMITS: u64 = 200;
/// Fsyncs of a round, by all threads together.
const FSYNCS: u64 = 3200;
/// Free ranges of the aged filesystem, and bytes that are taken of the large one.
const RANGES: u64 = 450_000;
const TAKEN: u64 = 9_800 << 30;

/// What a filesystem has seen before the small commits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Empty,
    Large,
    Aged,
}

impl Kind {
    const ALL: [Kind; 3] = [Kind::Empty, Kind::Large, Kind::Aged];

    fn of(name: &str) -> Option<Kind> {
        Kind::ALL.into_iter().find(|kind| kind.name() == name)
    }

    fn name(self) -> &'static str {
        match self {
            Kind::Empty => "empty",
            Kind::Large => "large",
            Kind::Aged => "aged",
        }
    }

    fn make(self, image: &Path) -> Filesystem {
        let size = if self == Kind::Large { 10 << 40 } else { 10 << 30 };
        crate::create::fresh(image, size);
        let options = Options::read_write().background(false);
        let fs = Filesystem::open(image, options).expect("a fresh image opens");
        let new = |name: &[u8]| fs.create(TOP, name, &New::file(0o600)).expect("room").node;
        let take = |node, at, len| {
            fs.fallocate(node, Allocate::Reserve { keep_size: false }, at, len).expect("room")
        };
        match self {
            Kind::Empty => {}
            Kind::Large => {
                let taken = new(b"taken");
                let step = 100 << 30;
                (0..TAKEN / step).for_each(|number| take(taken, number * step, step));
            }
            Kind::Aged => {
                let (stays, goes) = (new(b"stays"), new(b"goes"));
                for number in 0..RANGES {
                    take(stays, number * SECTOR, SECTOR);
                    take(goes, number * SECTOR, SECTOR);
                }
                fs.unlink(TOP, b"goes").expect("room");
            }
        }
        // What is let go of in one commit is free after the next one.
        for number in 0..3u8 {
            new(&[b'0' + number]);
            fs.commit().expect("a commit");
        }
        fs
    }
}

/// Small commits on each kind of filesystem, and fsyncs of several threads.
pub fn row(scale: Scale) -> Row {
    let mut row = Row::new(14, "small commits, and fsyncs that share one".to_owned());
    if scale.wants(Side::Here) {
        small(scale, &mut row);
    }
    fsyncs(scale, &mut row);
    row
}

fn small(scale: Scale, row: &mut Row) {
    let made = Kind::ALL.map(|kind| {
        let dir = linux::ram();
        let fs = kind.make(&dir.path().join("image"));
        (kind, dir, fs)
    });
    let mut times = [const { (Vec::new(), Vec::new()) }; 3];
    for round in 0..scale.rounds as u64 {
        for ((_, _, fs), (walls, cpus)) in made.iter().zip(&mut times) {
            let (wall, cpu) = commits(fs, round);
            walls.push(wall);
            cpus.push(cpu);
        }
    }
    let mut medians = Vec::new();
    for ((kind, _, fs), (walls, cpus)) in made.into_iter().zip(times) {
        let (wall, cpu) = (median(walls), median(cpus));
        medians.push(wall);
        row.add(&format!("a commit of 4 KiB and a name, {}", kind.name()), wall * 1e3, "ms");
        row.add(&format!("its CPU, {}", kind.name()), cpu * 1e3, "ms");
        if std::env::var_os("BENCH_STATS").is_some() {
            eprintln!("{}: {:#?}", kind.name(), fs.stats());
        }
        fs.close().expect("a commit");
    }
    row.ratio("large to empty", vec![medians[1], medians[0]]);
    row.ratio("aged to empty", vec![medians[2], medians[0]]);
}

fn cpu() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32).as_secs_f64()
}

/// Seconds and CPU seconds of a small commit: the median of the first, the mean of the second.
fn commits(fs: &Filesystem, round: u64) -> (f64, f64) {
    let before = cpu();
    let walls = (0..COMMITS).map(|number| small_commit(fs, round * COMMITS + number)).collect();
    (median(walls), (cpu() - before) / COMMITS as f64)
}

/// A new file with one block, and a commit; how long the commit took.
#[inline(never)]
fn small_commit(fs: &Filesystem, number: u64) -> f64 {
    let name = format!("small{number}");
    let node = fs.create(TOP, name.as_bytes(), &New::file(0o600)).expect("room").node;
    fs.write(node, 0, &[1; SECTOR as usize]).expect("room");
    seconds(|| {
        fs.commit().expect("a commit");
    })
}

/// The small commits of one kind alone.
pub fn child(kind: &str) {
    let kind = Kind::of(kind).expect("empty, large or aged");
    let dir = linux::ram();
    let fs = kind.make(&dir.path().join("image"));
    for number in 0..COMMITS {
        small_commit(&fs, number);
    }
    fs.close().expect("a commit");
}

fn fsyncs(scale: Scale, row: &mut Row) {
    for threads in [1, 4, 16, 64] {
        let (mut ours, mut shares, mut theirs) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..scale.rounds.min(3) {
            if scale.wants(Side::Here) {
                let (rate, share) = here(threads);
                ours.push(rate);
                shares.push(share);
            }
            if scale.wants(Side::Linux) {
                match kernel(threads) {
                    Ok(rate) => theirs.push(rate),
                    Err(why) => row.note(why),
                }
            }
        }
        if !ours.is_empty() {
            row.add(&format!("here, {threads} threads"), median(ours), "fsyncs/s");
            row.add(&format!("here, {threads} threads"), median(shares), "commits/fsync");
        }
        if !theirs.is_empty() {
            row.add(&format!("Linux, {threads} threads"), median(theirs), "fsyncs/s");
        }
    }
}

/// Runs `work` on threads, with the number of each; fsyncs per second.
fn on_threads(threads: u64, work: impl Fn(u64) + Sync) -> f64 {
    let next = AtomicUsize::new(0);
    let took = seconds(|| {
        std::thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(|| work(next.fetch_add(1, Ordering::Relaxed) as u64));
            }
        });
    });
    FSYNCS as f64 / took
}

/// Fsyncs per second, and commits for each: a thread writes 4 KiB and waits until they are durable, again and again.
fn here(threads: u64) -> (f64, f64) {
    let dir = linux::ram();
    let image = dir.path().join("image");
    crate::create::fresh(&image, 4 << 30);
    let fs = Filesystem::open(&image, Options::read_write()).expect("a fresh image opens");
    let before = fs.stats().commits;
    let rate = on_threads(threads, |thread| {
        let file = fs.open_file(format!("/{thread}"), OpenMode::create(0o600)).expect("room");
        for number in 0..FSYNCS / threads {
            let block = [number as u8; SECTOR as usize];
            file.write_at(&block, number % 16 * SECTOR).expect("room");
            file.sync().expect("a commit");
        }
    });
    let commits = fs.stats().commits - before;
    fs.close().expect("a commit");
    (rate, commits as f64 / FSYNCS as f64)
}

fn kernel(threads: u64) -> Result<f64, String> {
    use std::os::unix::fs::FileExt;
    let mount = Mount::fresh(4 << 30)?;
    Ok(on_threads(threads, |thread| {
        let file = std::fs::File::create(mount.path().join(thread.to_string())).expect("room");
        for number in 0..FSYNCS / threads {
            let block = [number as u8; SECTOR as usize];
            file.write_all_at(&block, number % 16 * SECTOR).expect("room");
            file.sync_all().expect("durable");
        }
    }))
}
