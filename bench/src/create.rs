//! Row 1: empty files, a directory per thread, commit included.

use std::path::Path;

use buttress::{Filesystem, New, Node, Options};

use crate::host;
use crate::linux::{self, Mount};
use crate::mounts::{self, Served};
use crate::{Row, Scale, Side, median, seconds, wanted_threads, wants_work};

const IMAGE: u64 = 8 << 30;
/// MiB for what either side keeps in memory, and for its image.
const WARM: usize = 4096;
const THREADS: u64 = 2;
/// Files that are in the subvolume before it is snapshotted.
const BEFORE: u64 = 10_000;

/// What is made.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// Empty files, in all.
    pub files: u64,
    /// Threads, each with a directory of its own.
    pub threads: u64,
    /// Snapshots of the subvolume that were taken before.
    pub snapshots: u64,
    /// Bytes of memory for it here. Linux lets as much wait as its settings allow, a fifth of the machine's memory as a rule.
    pub memory: u64,
}

/// What is little beside what Linux lets wait.
const LITTLE: u64 = 512 << 20;

/// Files per second on both sides, and how the figure grows with size, threads and snapshots.
pub fn row(scale: Scale) -> Row {
    let files = scale.of(500_000);
    // What a mount has when nothing is said.
    let memory = buttress_fuse::budget::by_default();
    let load = Load { files, threads: THREADS, snapshots: 0, memory };
    let mut row = Row::new(1, format!("create {files} empty files"));
    let sides = [("here, 2 threads", Side::Here), ("Linux, fs_mark, 2 threads", Side::Linux)];
    if wants_work("the first") {
        let medians = both(scale, scale.rounds, load, sides, &mut row);
        row.ratio("ratio", medians);
    }
    let mut loads = vec![Load { threads: 1, files: 10_000, ..load }];
    loads.push(Load { threads: 1, files: 100_000, ..load });
    let million = Load { files: scale.of(1_000_000), ..load };
    let cores = std::thread::available_parallelism().map_or(1, usize::from) as u64;
    let threads = wanted_threads(&[1, 2, 4, 8, 16]).into_iter();
    let threads = threads.filter(|threads| *threads <= cores.max(2));
    loads.extend(threads.map(|threads| Load { threads, ..million }));
    let more = Load { files: scale.of(3_000_000), ..load };
    loads.extend([more, Load { memory: LITTLE, ..million }, Load { memory: LITTLE, ..more }]);
    let few = Load { files: scale.of(100_000), ..load };
    loads.extend([1, 16, 64].map(|snapshots| Load { snapshots, ..few }));
    for load in loads {
        let what = format!(
            "{} files, {} threads, {} snapshots, {} MiB",
            load.files,
            load.threads,
            load.snapshots,
            load.memory >> 20
        );
        if !wants_work(&what) {
            continue;
        }
        let (here, there) = (format!("here, {what}"), format!("Linux, {what}"));
        let sides = [(here.as_str(), Side::Here), (there.as_str(), Side::Linux)];
        both(scale, scale.rounds.min(3), load, sides, &mut row);
    }
    if wants_work("mounts") {
        through_mounts(scale, &mut row);
    }
    row
}

/// Measures both sides in turn; their medians.
fn both(
    scale: Scale,
    rounds: usize,
    load: Load,
    sides: [(&str, Side); 2],
    row: &mut Row,
) -> Vec<f64> {
    let mut rates = [Vec::new(), Vec::new()];
    for _ in 0..rounds {
        for ((_, side), rates) in sides.iter().zip(&mut rates) {
            if !scale.wants(*side) {
                continue;
            }
            let rate = match side {
                Side::Here => Ok(here(load)),
                _ => kernel(load),
            };
            match rate {
                Ok(rate) => rates.push(rate),
                Err(why) => row.note(why),
            }
        }
    }
    let mut medians = Vec::new();
    for ((name, _), rates) in sides.iter().zip(rates) {
        if !rates.is_empty() {
            medians.push(median(rates));
            row.add(name, medians[medians.len() - 1], "files/s");
        }
    }
    medians
}

/// Files per second in process: made by threads in a directory each, and committed.
fn here(load: Load) -> f64 {
    let dir = linux::ram();
    let image = dir.path().join("image");
    fresh(&image, IMAGE);
    let options = Options::read_write().memory(load.memory);
    let fs = Filesystem::open(&image, options).expect("a fresh image opens");
    let top = Node { subvolume: 5, ino: 256 };
    if load.snapshots > 0 {
        fill(&fs, top, "before", BEFORE);
        let snapshots = fs.create(top, b"snapshots", &New::directory(0o755)).expect("room").node;
        for number in 0..load.snapshots {
            let name = number.to_string();
            fs.snapshot(5, snapshots, name.as_bytes(), false).expect("room");
        }
        fs.commit().expect("a commit");
    }
    host::warm(WARM);
    let took = seconds(|| {
        make_files(&fs, top, load.files, load.threads);
        fs.commit().expect("a commit");
    });
    if std::env::var_os("BENCH_STATS").is_some() {
        eprintln!("{load:?}: {took:.3} s, {:#?}", fs.stats());
    }
    fs.close().expect("a commit");
    load.files as f64 / took
}

/// Makes files on several threads, each in a new directory.
pub fn make_files(fs: &Filesystem, top: Node, files: u64, threads: u64) {
    std::thread::scope(|scope| {
        for thread in 0..threads {
            scope.spawn(move || fill(fs, top, &format!("dir{thread}"), files / threads));
        }
    });
}

fn fill(fs: &Filesystem, top: Node, name: &str, files: u64) {
    let dir = fs.create(top, name.as_bytes(), &New::directory(0o755)).expect("room").node;
    let mut name = *b"0000000000000000~~~~~~~~~~~~";
    for file in 0..files {
        // As fs_mark names its files. Formatting would cost a fifth of what it takes to make one.
        for (at, digit) in name[..16].iter_mut().rev().enumerate() {
            *digit = b"0123456789abcdef"[(file >> (4 * at)) as usize & 15];
        }
        fs.create(dir, &name, &New::file(0o600)).expect("room");
    }
}

/// Makes an empty filesystem with our own mkfs.
pub fn fresh(image: &Path, size: u64) {
    fresh_as(image, size, &buttress_mkfs::Options::default());
}

/// The same with options.
pub fn fresh_as(image: &Path, size: u64, options: &buttress_mkfs::Options) {
    let device = buttress_device::FileDevice::create(image, size).expect("an image can be made");
    let mut env = buttress_mkfs::Environment::system();
    buttress_mkfs::make(&device, options, &mut env).expect("mkfs");
}

fn kernel(load: Load) -> Result<f64, String> {
    let mount = Mount::fresh(IMAGE)?;
    let path = mount.path();
    if load.snapshots > 0 {
        let before = path.join("before");
        std::fs::create_dir(&before).map_err(|error| error.to_string())?;
        for file in 0..BEFORE {
            let name = before.join(format!("{file:016x}~~~~~~~~~~~~"));
            std::fs::File::create(name).map_err(|error| error.to_string())?;
        }
        let text = path.to_string_lossy();
        for number in 0..load.snapshots {
            let to = format!("{text}/snapshot{number}");
            linux::run("btrfs", &["-q", "subvolume", "snapshot", &text, &to])?;
        }
        mount.sync()?;
    }
    fs_mark(&path, load.files, load.threads)
}

/// Files per second of fs_mark in directories of `path`, and a sync.
pub fn fs_mark(path: &Path, files: u64, threads: u64) -> Result<f64, String> {
    let loops = 5;
    let count = (files / threads / loops).max(1).to_string();
    let dirs: Vec<String> = (0..threads).map(|at| format!("{}/{at}", path.display())).collect();
    let mut args = vec!["-S", "0", "-L", "5", "-n", &count, "-s", "0", "-k"];
    dirs.iter().for_each(|dir| args.extend(["-d", dir]));
    let mut failed = None;
    host::warm(WARM);
    // fs_mark writes its log where it is started.
    let took = seconds(|| {
        failed = linux::run_in(&linux::scratch(), "fs_mark", &args)
            .and_then(|_| linux::sync(path))
            .err();
    });
    let made = (files / threads / loops).max(1) * loops * threads;
    failed.map_or(Ok(made as f64 / took), Err)
}

/// The same through mounts: ours, the null filesystem on our session, and fuse2fs.
fn through_mounts(scale: Scale, row: &mut Row) {
    let served = [
        (Served::Ours, scale.of(100_000)),
        (Served::Null, scale.of(100_000)),
        (Served::Fuse2fs, scale.of(10_000)),
    ];
    let mut rates = [Vec::new(), Vec::new(), Vec::new()];
    for _ in 0..scale.rounds.min(3) {
        for ((what, files), rates) in served.iter().zip(&mut rates) {
            let rate = match scale.wants(Side::Mounts) {
                true => mounts::serve(*what, IMAGE)
                    .and_then(|mount| fs_mark(mount.path(), *files, THREADS)),
                false => continue,
            };
            match rate {
                Ok(rate) => rates.push(rate),
                Err(why) => row.note(why),
            }
        }
    }
    let mut medians = Vec::new();
    for ((what, files), rates) in served.iter().zip(rates) {
        if !rates.is_empty() {
            let rate = median(rates);
            medians.push((*what, rate));
            row.add(&format!("{}, fs_mark of {files}, 2 threads", what.name()), rate, "files/s");
        }
    }
    let rate = |of: Served| medians.iter().find(|(what, _)| *what == of).map(|(_, rate)| *rate);
    if let (Some(ours), Some(null)) = (rate(Served::Ours), rate(Served::Null)) {
        row.add("through the mount, share of null", ours / null * 100.0, "%");
    }
}
