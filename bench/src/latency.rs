//! Row 15: how long an fsync takes while others work: while deleted snapshots are dropped, while somebody reads everything, and
//! while eight threads write. Each fsync is of 4 KiB, by one thread without a pause: here in process, on Linux's btrfs by system calls.
//!
//! Eight threads on fewer cores make everybody wait for a core. What that comes to by itself, the same fsyncs beside eight threads that
//! only compute tell.

use std::fs;
use std::hint::black_box;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use buttress::{Filesystem, New, Node, Options};

use crate::linux::{self, Mount};
use crate::{Row, Scale, Side, create, median};

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
static WRITTEN: [u8; 64 << 10] = [7; 64 << 10];

/// Writes a block at an offset, and makes it durable.
type Save<'a> = Box<dyn FnMut(u64, &[u8]) + 'a>;

/// A filesystem that fsyncs are made on.
trait Place: Sync {
    /// A subvolume with files, and snapshots of it as it changes.
    fn fill(&self, files: u64);
    /// A new file to write to.
    fn saver(&self, name: &str) -> Save<'_>;
    /// Reads all names and attributes.
    fn read_all(&self);
    /// Makes a file of 64 KiB and deletes it.
    fn write(&self, name: &str);
    /// Deletes the subvolume and its snapshots.
    fn delete(&self);
    /// Waits until they are dropped.
    fn wait_until_dropped(&self);
}

/// Median and 99th percentile of fsyncs, alone and beside other work.
pub fn row(scale: Scale) -> Row {
    let files = scale.of(FILES);
    let total = files * (SNAPSHOTS + 1);
    let mut row = Row::new(15, format!("fsyncs while others work; {total} files are dropped"));
    if scale.wants(Side::Here) {
        let dir = linux::ram();
        let image = dir.path().join("image");
        create::fresh(&image, IMAGE);
        let fs = Filesystem::open(&image, Options::read_write()).expect("a fresh image opens");
        watch_all(&fs, "here", files, &mut row);
        fs.close().expect("a commit");
    }
    if scale.wants(Side::Linux) {
        match Mount::fresh(IMAGE) {
            Ok(mount) => watch_all(&Kernel { top: mount.path() }, "Linux", files, &mut row),
            Err(why) => row.note(why),
        }
    }
    row
}

fn watch_all(place: &dyn Place, side: &str, files: u64, row: &mut Row) {
    let mut tell = |what: &str, times, quiet| tell(row, &format!("{side}, {what}"), times, quiet);
    place.fill(files);
    let quiet = tell("alone", fsyncs(place, "alone", || WATCHED.into()), None);
    let compute = |_: &str| {
        black_box(black_box(&WRITTEN).iter().map(|byte| u64::from(*byte)).sum::<u64>());
    };
    let computed = beside(place, "computed", |over| by_eight(over, &compute));
    tell("while 8 threads compute", computed, Some(quiet));
    let read = beside(place, "read", |over| {
        while !over() {
            place.read_all();
        }
    });
    tell("while everything is read", read, Some(quiet));
    let written = beside(place, "written", |over| by_eight(over, &|name| place.write(name)));
    tell("while 8 threads write", written, Some(quiet));
    let begun = Instant::now();
    place.delete();
    let dropped = AtomicBool::new(false);
    let (times, took) = std::thread::scope(|scope| {
        let waiting = scope.spawn(|| {
            place.wait_until_dropped();
            dropped.store(true, Ordering::Relaxed);
            begun.elapsed().as_secs_f64()
        });
        let times = fsyncs(place, "dropped", || Watch::Until(&dropped));
        (times, waiting.join().unwrap_or(f64::NAN))
    });
    tell("while snapshots are dropped", times, Some(quiet));
    row.add(&format!("{side}, all is dropped after"), took, "s");
}

impl Place for Filesystem {
    fn fill(&self, files: u64) {
        let source = self.create_subvolume(TOP, b"snapshot0", Default::default()).expect("room");
        create::make_files(self, Node { subvolume: source, ino: 256 }, files, 2);
        for number in 1..=SNAPSHOTS {
            self.snapshot(source, TOP, snapshot(number).as_bytes(), false).expect("room");
            let top = Node { subvolume: source, ino: 256 };
            let find = |dir, name: &str| {
                let found = self.lookup(dir, name.as_bytes()).expect("readable");
                found.expect("it was made").node
            };
            let dir = find(top, "dir0");
            for file in (number..files / 2).step_by(CHANGED as usize) {
                self.write(find(dir, &name_of(file)), 0, &[number as u8; 100]).expect("room");
            }
        }
        self.commit().expect("a commit");
    }

    fn saver(&self, name: &str) -> Save<'_> {
        let node = self.create(TOP, name.as_bytes(), &New::file(0o600)).expect("room").node;
        Box::new(move |at, block| {
            self.write(node, at, block).expect("room");
            self.sync(node).expect("a commit");
        })
    }

    fn read_all(&self) {
        let mut waiting = vec![TOP];
        while let Some(directory) = waiting.pop() {
            let mut nodes = Vec::new();
            let list = self.read_dir(directory, 0, &mut |entry| {
                nodes.push(entry.node);
                true
            });
            list.expect("readable");
            for node in nodes {
                let found = self.attributes(node).expect("readable");
                if found.kind == buttress::FileKind::Directory {
                    waiting.push(node);
                }
            }
        }
    }

    fn write(&self, name: &str) {
        let made = self.create(TOP, name.as_bytes(), &New::file(0o600)).expect("room");
        Filesystem::write(self, made.node, 0, &WRITTEN).expect("room");
        self.unlink(TOP, name.as_bytes()).expect("room");
    }

    fn delete(&self) {
        (0..=SNAPSHOTS).for_each(|number| {
            self.delete_subvolume(TOP, snapshot(number).as_bytes()).expect("room");
        });
    }

    fn wait_until_dropped(&self) {
        while self.is_dropping() {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// Linux's btrfs.
struct Kernel {
    top: PathBuf,
}

impl Kernel {
    fn subvolume(&self, args: &[&str], paths: &[String]) {
        let paths: Vec<String> =
            paths.iter().map(|path| self.top.join(path).display().to_string()).collect();
        let args = [&["-q", "subvolume"], args].concat();
        let args: Vec<&str> = args.into_iter().chain(paths.iter().map(String::as_str)).collect();
        linux::run("btrfs", &args).expect("btrfs-progs");
    }
}

impl Place for Kernel {
    fn fill(&self, files: u64) {
        self.subvolume(&["create"], &[snapshot(0)]);
        let source = self.top.join(snapshot(0));
        for dir in ["dir0", "dir1"].map(|dir| source.join(dir)) {
            fs::create_dir(&dir).expect("room");
            for file in 0..files / 2 {
                fs::File::create(dir.join(name_of(file))).expect("room");
            }
        }
        for number in 1..=SNAPSHOTS {
            self.subvolume(&["snapshot"], &[snapshot(0), snapshot(number)]);
            for file in (number..files / 2).step_by(CHANGED as usize) {
                let file = source.join("dir0").join(name_of(file));
                fs::write(file, [number as u8; 100]).expect("room");
            }
        }
        linux::sync(&self.top).expect("a commit");
    }

    fn saver(&self, name: &str) -> Save<'_> {
        let file = fs::File::create(self.top.join(name)).expect("room");
        Box::new(move |at, block| {
            file.write_all_at(block, at).expect("room");
            file.sync_all().expect("a commit");
        })
    }

    fn read_all(&self) {
        fn below(dir: &Path) {
            // What is written beside this comes and goes.
            let Ok(entries) = fs::read_dir(dir) else { return };
            for entry in entries.flatten() {
                if entry.metadata().is_ok_and(|found| found.is_dir()) {
                    below(&entry.path());
                }
            }
        }
        below(&self.top);
    }

    fn write(&self, name: &str) {
        let path = self.top.join(name);
        fs::write(&path, WRITTEN).expect("room");
        fs::remove_file(path).expect("room");
    }

    fn delete(&self) {
        let all: Vec<String> = (0..=SNAPSHOTS).map(snapshot).collect();
        self.subvolume(&["delete"], &all);
    }

    fn wait_until_dropped(&self) {
        self.subvolume(&["sync"], &[String::new()]);
    }
}

fn snapshot(number: u64) -> String {
    format!("snapshot{number}")
}

/// As [`create::make_files`] names files.
fn name_of(file: u64) -> String {
    format!("{file:016x}~~~~~~~~~~~~")
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
fn fsyncs<'a>(place: &dyn Place, name: &str, watch: impl Fn() -> Watch<'a>) -> Vec<f64> {
    let mut save = place.saver(name);
    let begun = Instant::now();
    let mut times = Vec::new();
    let over = || match watch() {
        Watch::For(time) => begun.elapsed() > time,
        Watch::Until(over) => over.load(Ordering::Relaxed),
    };
    while !over() {
        let block = [times.len() as u8; SECTOR as usize];
        let start = Instant::now();
        save(times.len() as u64 % 16 * SECTOR, &block);
        times.push(start.elapsed().as_secs_f64());
    }
    times
}

/// The same while `work` goes on.
fn beside(
    place: &dyn Place,
    name: &str,
    work: impl Fn(&(dyn Fn() -> bool + Sync)) + Sync,
) -> Vec<f64> {
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| work(&|| over.load(Ordering::Relaxed)));
        let times = fsyncs(place, name, || WATCHED.into());
        over.store(true, Ordering::Relaxed);
        times
    })
}

/// Eight threads that do something again and again, each time with a new name.
fn by_eight(over: &(dyn Fn() -> bool + Sync), work: &(dyn Fn(&str) + Sync)) {
    let next = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for _ in 0..WRITERS {
            scope.spawn(|| {
                while !over() {
                    work(&format!("file{}", next.fetch_add(1, Ordering::Relaxed)));
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
