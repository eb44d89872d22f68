//! Row 23: how operations per second go with threads: names looked up, cached reads, writes over, files made, renamed and fsynced. What all threads
//! look at is the same, and what they change lies in a directory and a file of each. In process here; by system calls on Linux's btrfs, on a mount
//! and on a filesystem in user space that does nothing.
//!
//! On a machine with few processors more threads than these are no faster; they should not be slower either. How far it scales, only a machine with
//! many can show.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use buttress::{Filesystem, New, Node, Options, Rename};

use crate::linux::{self, Mount};
use crate::mounts::{self, FuseMount, Served};
use crate::{Row, Scale, Side, create, median, seconds, wanted_threads, wants_work};

const IMAGE: u64 = 16 << 30;
const THREADS: [u64; 7] = [1, 2, 4, 8, 16, 32, 64];
/// Files that all look at, of a block each.
const FILES: u64 = 1000;
const BLOCK: [u8; 4096] = [5; 4096];

/// An operation.
#[derive(Clone, Copy)]
enum Work {
    LookUp,
    Read,
    Write,
    Make,
    Rename,
    Fsync,
}

impl Work {
    /// Each, its name, and how many of all threads together.
    const ALL: [(Work, &'static str, u64); 6] = [
        (Work::LookUp, "looked up", 2_000_000),
        (Work::Read, "read", 2_000_000),
        (Work::Write, "written over", 500_000),
        (Work::Make, "made", 200_000),
        (Work::Rename, "renamed", 200_000),
        (Work::Fsync, "written over, fsynced", 20_000),
    ];
}

/// What one thread works with.
trait Place: Sync {
    fn work(&self, work: Work, thread: u64, number: u64) -> Result<(), String>;
}

fn text(error: impl ToString) -> String {
    error.to_string()
}

fn shared(number: u64) -> String {
    // In no order, but each as often.
    format!("shared{}", number * 7919 % FILES)
}

struct Here {
    fs: Filesystem,
    shared: Vec<Node>,
    dirs: Vec<Node>,
    own: Vec<Node>,
}

impl Here {
    fn new(fs: Filesystem) -> Result<Here, String> {
        let file = |dir, name: &str| -> Result<Node, String> {
            let node = fs.create(dir, name.as_bytes(), &New::file(0o600)).map_err(text)?.node;
            fs.write(node, 0, &BLOCK).map_err(text)?;
            Ok(node)
        };
        let all: Result<Vec<Node>, String> =
            (0..FILES).map(|number| file(Node::ROOT, &format!("shared{number}"))).collect();
        let (mut dirs, mut own) = (Vec::new(), Vec::new());
        for thread in 0..THREADS[THREADS.len() - 1] {
            let name = format!("dir{thread}");
            let dir = fs.create(Node::ROOT, name.as_bytes(), &New::directory(0o700));
            dirs.push(dir.map_err(text)?.node);
            own.push(file(Node::ROOT, &format!("own{thread}"))?);
        }
        let shared = all?;
        fs.commit().map_err(text)?;
        Ok(Here { fs, shared, dirs, own })
    }
}

impl Place for Here {
    fn work(&self, work: Work, thread: u64, number: u64) -> Result<(), String> {
        let (dir, own) = (self.dirs[thread as usize], self.own[thread as usize]);
        let name = |to: &str| format!("{to}{number}").into_bytes();
        match work {
            Work::LookUp => {
                let found = self.fs.lookup(Node::ROOT, shared(number).as_bytes()).map_err(text)?;
                self.fs.attributes(found.ok_or("it is there")?.node).map(drop).map_err(text)
            }
            Work::Read => {
                let node = self.shared[(number * 7919 % FILES) as usize];
                let mut bytes = [0; BLOCK.len()];
                self.fs.read(node, 0, &mut bytes).map(drop).map_err(text)
            }
            Work::Write => self.fs.write(own, number % 256 * 4096, &BLOCK).map(drop).map_err(text),
            Work::Make => {
                self.fs.create(dir, &name("file"), &New::file(0o600)).map(drop).map_err(text)
            }
            Work::Rename => self
                .fs
                .rename(dir, &name("file"), dir, &name("renamed"), Rename::Replace)
                .map(drop)
                .map_err(text),
            Work::Fsync => {
                self.fs.write(own, 0, &BLOCK).map_err(text)?;
                self.fs.sync(own).map_err(text)
            }
        }
    }
}

/// By system calls, wherever that is mounted.
struct There<M> {
    shared: Vec<File>,
    own: Vec<File>,
    top: PathBuf,
    // The last one: it is unmounted when the files are closed.
    mount: M,
}

impl<M> There<M> {
    fn new(mount: M, top: PathBuf) -> Result<There<M>, String> {
        let file = |name: String| -> Result<File, String> {
            let mut options = File::options();
            let file = options.read(true).write(true).create(true).truncate(true);
            let file = file.open(top.join(name)).map_err(text)?;
            file.write_all_at(&BLOCK, 0).map_err(text)?;
            Ok(file)
        };
        let all: Result<Vec<File>, String> =
            (0..FILES).map(|number| file(format!("shared{number}"))).collect();
        let mut own = Vec::new();
        for thread in 0..THREADS[THREADS.len() - 1] {
            fs::create_dir(top.join(format!("dir{thread}"))).map_err(text)?;
            own.push(file(format!("own{thread}"))?);
        }
        let shared = all?;
        File::open(&top).and_then(|top| top.sync_all()).map_err(text)?;
        Ok(There { shared, own, top, mount })
    }
}

fn linux() -> Result<There<Mount>, String> {
    let mount = Mount::fresh(IMAGE)?;
    let top = mount.path().to_owned();
    let there = There::new(mount, top)?;
    there.mount.sync()?;
    Ok(there)
}

fn served(what: Served) -> Result<There<FuseMount>, String> {
    let mount = mounts::serve(what, IMAGE)?;
    let top = mount.path().to_owned();
    There::new(mount, top)
}

impl<M: Sync> Place for There<M> {
    fn work(&self, work: Work, thread: u64, number: u64) -> Result<(), String> {
        let own = &self.own[thread as usize];
        let path = |to: &str| -> PathBuf { self.top.join(format!("dir{thread}/{to}{number}")) };
        match work {
            Work::LookUp => fs::metadata(self.top.join(shared(number))).map(drop).map_err(text),
            Work::Read => {
                let mut bytes = [0; BLOCK.len()];
                let file = &self.shared[(number * 7919 % FILES) as usize];
                file.read_exact_at(&mut bytes, 0).map_err(text)
            }
            Work::Write => own.write_all_at(&BLOCK, number % 256 * 4096).map_err(text),
            Work::Make => File::create(path("file")).map(drop).map_err(text),
            Work::Rename => fs::rename(path("file"), path("renamed")).map_err(text),
            Work::Fsync => {
                own.write_all_at(&BLOCK, 0).map_err(text)?;
                own.sync_all().map_err(text)
            }
        }
    }
}

/// Operations per second of so many threads; the numbers begin at `from`.
fn rate(place: &dyn Place, work: Work, count: u64, threads: u64, from: u64) -> Result<f64, String> {
    let each = (count / threads).max(1);
    let mut done = Ok(());
    let took = seconds(|| {
        done = std::thread::scope(|scope| {
            let run = |thread| (from..from + each).try_for_each(|at| place.work(work, thread, at));
            let all: Vec<_> = (0..threads).map(|thread| scope.spawn(move || run(thread))).collect();
            all.into_iter().try_for_each(|it| {
                it.join().unwrap_or_else(|_| Err("a thread panicked".to_owned()))
            })
        });
    });
    done.map(|()| (each * threads) as f64 / took)
}

/// What is measured of a work: its name, how many, and the threads.
struct Case {
    work: Work,
    name: &'static str,
    count: u64,
    threads: Vec<u64>,
}

fn cases(scale: Scale) -> Vec<Case> {
    let all = Work::ALL.into_iter().filter(|(_, name, _)| wants_work(name));
    let case = |(work, name, full)| Case {
        work,
        name,
        count: scale.of(full),
        threads: wanted_threads(&THREADS),
    };
    all.map(case).collect()
}

/// All of it, with each number of threads; each round on a new filesystem.
fn measure(place: &dyn Place, scale: Scale) -> Result<Vec<f64>, String> {
    let mut rates = Vec::new();
    for case in cases(scale) {
        let mut from = 0;
        for threads in case.threads {
            rates.push(rate(place, case.work, case.count, threads, from)?);
            from += case.count;
        }
    }
    Ok(rates)
}

/// Where it is measured.
#[derive(Clone, Copy)]
enum At {
    Linux,
    Here,
    Mount(Served),
}

impl At {
    const ALL: [At; 4] = [At::Linux, At::Here, At::Mount(Served::Ours), At::Mount(Served::Null)];

    fn side(self) -> Side {
        match self {
            At::Linux => Side::Linux,
            At::Here => Side::Here,
            At::Mount(_) => Side::Mounts,
        }
    }

    fn name(self) -> &'static str {
        match self {
            At::Linux => "Linux",
            At::Here => "here",
            At::Mount(what) => what.name(),
        }
    }

    fn rates(self, scale: Scale) -> Result<Vec<f64>, String> {
        match self {
            At::Linux => measure(&linux()?, scale),
            At::Here => here(scale),
            At::Mount(what) => measure(&served(what)?, scale),
        }
    }
}

/// All sides.
pub fn row(scale: Scale) -> Row {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let mut row = Row::new(23, format!("operations per second by threads, {cores} processors"));
    let mut sides: Vec<(At, Vec<Vec<f64>>)> = At::ALL
        .into_iter()
        .filter(|at| scale.wants(at.side()))
        .map(|at| (at, Vec::new()))
        .collect();
    for _ in 0..scale.rounds {
        for (at, rounds) in &mut sides {
            at.rates(scale).map_or_else(|why| row.note(why), |rates| rounds.push(rates));
        }
    }
    let names = cases(scale).into_iter().flat_map(|case| {
        case.threads.into_iter().map(move |threads| format!("{}, {threads} threads", case.name))
    });
    for (number, name) in names.enumerate() {
        for (at, rounds) in sides.iter().filter(|(_, rounds)| !rounds.is_empty()) {
            let rates = rounds.iter().map(|rates| rates[number]).collect();
            row.add(&format!("{}, {name}", at.name()), median(rates), "/s");
        }
    }
    row
}

fn here(scale: Scale) -> Result<Vec<f64>, String> {
    let dir = linux::ram();
    let image = dir.path().join("image");
    create::fresh(&image, IMAGE);
    let options = Options::read_write().memory(buttress_fuse::budget::by_default());
    let place = Here::new(Filesystem::open(&image, options).map_err(text)?)?;
    let rates = measure(&place, scale)?;
    place.fs.close().map_err(text)?;
    Ok(rates)
}
