//! Row 18: what full quotas cost, on against off, here and on Linux: making files, overwriting them below snapshots, and deleting snapshots.

use std::os::unix::fs::FileExt;
use std::path::Path;

use buttress::{Filesystem, New, Node, Options, Owner};

use crate::create::{fresh, make_files};
use crate::linux::{self, Mount};
use crate::{Row, Scale, Side, median, seconds, wants_work};

/// Bytes of the images; they are sparse.
const IMAGE: u64 = 16 << 30;
/// Files that are made at full size, and that are overwritten.
const MADE: u64 = 500_000;
const OVERWRITTEN: u64 = 100_000;
/// Bytes of each that is overwritten, and files in a directory.
const LEN: u64 = 4096;
const DIRECTORY: u64 = 1000;
/// One file in so many changes between two snapshots that are deleted.
const UNCHANGED: u64 = 100;

/// What is measured.
#[derive(Clone, Copy, Debug)]
enum Work {
    Make,
    Overwrite {
        snapshots: u64,
    },
    /// Every second one of so many.
    Delete {
        snapshots: u64,
    },
}

impl Work {
    const ALL: [Work; 4] = [
        Work::Make,
        Work::Overwrite { snapshots: 16 },
        Work::Overwrite { snapshots: 64 },
        Work::Delete { snapshots: 64 },
    ];

    fn name(self, scale: Scale) -> String {
        match self {
            Work::Make => format!("make {} files", scale.of(MADE)),
            Work::Overwrite { snapshots } => {
                format!("overwrite {} files below {snapshots} snapshots", scale.of(OVERWRITTEN))
            }
            Work::Delete { snapshots } => {
                format!("delete {} of {snapshots} snapshots", snapshots / 2)
            }
        }
    }

    fn snapshots(self) -> u64 {
        match self {
            Work::Make => 0,
            Work::Overwrite { snapshots } | Work::Delete { snapshots } => snapshots,
        }
    }
}

fn path_of(number: u64) -> String {
    format!("dir{:03}/file{number:06}", number / DIRECTORY)
}

/// Seconds here.
fn here(work: Work, scale: Scale, quotas: bool) -> buttress::Result<f64> {
    let dir = linux::ram();
    let image = dir.path().join("image");
    fresh(&image, IMAGE);
    let options = Options::read_write().memory(buttress_fuse::budget::by_default());
    let fs = Filesystem::open(&image, options)?;
    let id = fs.create_subvolume(Node::ROOT, b"work", Owner::default())?;
    let top = Node::top(id);
    let mut files = Vec::new();
    if !matches!(work, Work::Make) {
        let mut dir = top;
        for number in 0..scale.of(OVERWRITTEN) {
            let path = path_of(number);
            let (parent, name) = path.split_once('/').unwrap_or_default();
            if number.is_multiple_of(DIRECTORY) {
                dir = fs.create(top, parent.as_bytes(), &New::directory(0o755))?.node;
            }
            let file = fs.create(dir, name.as_bytes(), &New::file(0o600))?.node;
            fs.write(file, 0, &[number as u8; LEN as usize])?;
            files.push(file);
        }
    }
    for number in 0..work.snapshots() {
        fs.snapshot(id, Node::ROOT, format!("snapshot{number:02}").as_bytes(), false)?;
        for file in
            files.iter().skip((number * 37 % UNCHANGED) as usize).step_by(UNCHANGED as usize)
        {
            fs.write(*file, 0, &[number as u8; LEN as usize])?;
        }
    }
    if quotas {
        fs.count_quotas(|_| true)?;
    }
    fs.commit()?;
    let mut done = Ok(());
    let took = seconds(|| {
        done = (|| {
            match work {
                Work::Make => make_files(&fs, top, scale.of(MADE), 2),
                Work::Overwrite { .. } => {
                    for file in &files {
                        fs.write(*file, 0, &[255; LEN as usize])?;
                    }
                }
                Work::Delete { snapshots } => {
                    for number in (0..snapshots).step_by(2) {
                        fs.delete_subvolume(Node::ROOT, format!("snapshot{number:02}").as_bytes())?;
                    }
                    fs.clean()?;
                }
            }
            fs.commit().map(drop)
        })();
    });
    done?;
    if quotas && fs.has_wrong_quotas() {
        eprintln!("bench: quotas are wrong after {work:?}, and wait to be counted anew");
    }
    if std::env::var_os("BENCH_STATS").is_some() {
        eprintln!("{work:?}, quotas {quotas}: {took:.3} s, {:#?}", fs.stats());
    }
    fs.close()?;
    Ok(took)
}

/// Seconds on Linux.
fn there(work: Work, scale: Scale, quotas: bool) -> Result<f64, String> {
    let text = |error: std::io::Error| error.to_string();
    let mount = Mount::fresh(IMAGE)?;
    let (top, path) = (mount.path(), |name: &str| mount.path().join(name).display().to_string());
    let work_dir = top.join("work");
    linux::run("btrfs", &["-q", "subvolume", "create", &path("work")])?;
    let write = |number: u64, byte: u8| {
        let file = std::fs::OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .open(work_dir.join(path_of(number)));
        file.and_then(|file| file.write_all_at(&[byte; LEN as usize], 0)).map_err(text)
    };
    if !matches!(work, Work::Make) {
        for number in 0..scale.of(OVERWRITTEN) {
            if number.is_multiple_of(DIRECTORY) {
                let dir = work_dir.join(format!("dir{:03}", number / DIRECTORY));
                std::fs::create_dir(dir).map_err(text)?;
            }
            write(number, number as u8)?;
        }
    }
    for number in 0..work.snapshots() {
        let to = path(&format!("snapshot{number:02}"));
        linux::run("btrfs", &["-q", "subvolume", "snapshot", &path("work"), &to])?;
        (number * 37 % UNCHANGED..scale.of(OVERWRITTEN))
            .step_by(UNCHANGED as usize)
            .try_for_each(|file| write(file, number as u8))?;
    }
    if quotas {
        linux::run("btrfs", &["quota", "enable", &path("")])?;
        linux::run("btrfs", &["quota", "rescan", "-w", &path("")])?;
    }
    mount.sync()?;
    let mut done = Ok(());
    let took = seconds(|| {
        done = (|| {
            match work {
                Work::Make => linux_makes(&work_dir, scale.of(MADE))?,
                Work::Overwrite { .. } => {
                    (0..scale.of(OVERWRITTEN)).try_for_each(|number| write(number, 255))?;
                }
                Work::Delete { snapshots } => {
                    for number in (0..snapshots).step_by(2) {
                        let name = path(&format!("snapshot{number:02}"));
                        linux::run("btrfs", &["-q", "subvolume", "delete", &name])?;
                    }
                    linux::run("btrfs", &["subvolume", "sync", &path("")])?;
                }
            }
            mount.sync()
        })();
    });
    done.map(|()| took)
}

/// Two threads make files, in a directory each.
fn linux_makes(top: &Path, files: u64) -> Result<(), String> {
    let make = |thread: u64| {
        let dir = top.join(format!("dir{thread}"));
        std::fs::create_dir(&dir)?;
        (0..files / 2).try_for_each(|number| {
            std::fs::File::create(dir.join(format!("{number:016x}~~~~~~~~~~~~"))).map(drop)
        })
    };
    let make = &make;
    std::thread::scope(|scope| {
        let threads = [0, 1].map(|thread| scope.spawn(move || make(thread)));
        threads.into_iter().try_for_each(|thread| {
            let made: std::io::Result<()> = thread.join().unwrap_or(Ok(()));
            made.map_err(|error| error.to_string())
        })
    })
}

/// Each work with quotas and without, by turns.
pub fn row(scale: Scale) -> Row {
    let mut row = Row::new(18, "what quotas cost".to_owned());
    for work in Work::ALL.into_iter().filter(|work| wants_work(&work.name(scale))) {
        for (side, name) in [(Side::Here, "here"), (Side::Linux, "Linux")] {
            if scale.wants(side) {
                compare(&mut row, scale, work, side, name);
            }
        }
    }
    row
}

fn compare(row: &mut Row, scale: Scale, work: Work, side: Side, name: &str) {
    let mut figures = [Vec::new(), Vec::new()];
    for _ in 0..scale.rounds {
        for (quotas, figures) in [false, true].into_iter().zip(&mut figures) {
            let took = match side {
                Side::Here => here(work, scale, quotas).map_err(|error| error.to_string()),
                _ => there(work, scale, quotas),
            };
            match took {
                Ok(took) => figures.push(took),
                Err(why) => row.note(format!("{name}, {work:?}: {why}")),
            }
        }
    }
    let [off, on] = figures.map(median);
    let what = work.name(scale);
    row.add(&format!("{what}, {name}, without"), off, "s");
    row.add(&format!("{what}, {name}, with"), on, "s");
    row.ratio(&format!("{what}, {name}, with to without"), vec![on, off]);
}
