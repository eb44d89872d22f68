//! Row 21: how long others wait beside a balance. One thread makes files, writes 4 KiB to each and fsyncs it, without a pause, while all of a
//! filesystem is balanced: small files below snapshots, and data. In process here, by system calls on Linux.
//!
//! The same balance goes first with nobody beside it, so it is seen what others cost it.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use buttress::{Balance, BalanceFilter, Filesystem, New, Node, Options};

use crate::balance::{self, Shape};
use crate::linux::{self, Mounted};
use crate::{Row, Scale, Side, median, seconds, stream};

/// Files and snapshots.
const FILES: u64 = 200_000;
const SNAPSHOTS: u64 = 16;
/// MiB of data beside them.
const DATA: u64 = 2048;
/// How long files are made with no balance beside it.
const WATCHED: Duration = Duration::from_secs(3);
const WRITTEN: [u8; 4096] = [7; 4096];

/// A filesystem that is balanced.
trait Place: Sync {
    /// Makes, writes and fsyncs a file; when each of the three was done.
    fn make(&self, name: &str) -> Result<[Instant; 3], String>;
    /// Balances all of it.
    fn balance(&self) -> Result<(), String>;
}

fn text(error: impl ToString) -> String {
    error.to_string()
}

impl Place for Filesystem {
    fn make(&self, name: &str) -> Result<[Instant; 3], String> {
        let file = self.create(Node::ROOT, name.as_bytes(), &New::file(0o600)).map_err(text)?.node;
        let made = Instant::now();
        self.write(file, 0, &WRITTEN).map_err(text)?;
        let written = Instant::now();
        self.sync(file).map_err(text)?;
        Ok([made, written, Instant::now()])
    }

    fn balance(&self) -> Result<(), String> {
        let all = Some(BalanceFilter::default());
        let all = Balance { data: all.clone(), metadata: all.clone(), system: all, force: false };
        Filesystem::balance(self, &all, |_| std::ops::ControlFlow::Continue(()))
            .map(drop)
            .map_err(text)
    }
}

/// Linux's btrfs.
struct Kernel {
    top: PathBuf,
}

impl Place for Kernel {
    fn make(&self, name: &str) -> Result<[Instant; 3], String> {
        let mut file = fs::File::create(self.top.join(name)).map_err(text)?;
        let made = Instant::now();
        file.write_all(&WRITTEN).map_err(text)?;
        let written = Instant::now();
        file.sync_all().map_err(text)?;
        Ok([made, written, Instant::now()])
    }

    fn balance(&self) -> Result<(), String> {
        let top = self.top.to_string_lossy();
        linux::run("btrfs", &["balance", "start", "--full-balance", &top]).map(drop)
    }
}

/// What one thread waited for, in seconds.
#[derive(Default)]
struct Waits {
    /// Making, writing, and syncing files.
    of: [Vec<f64>; 3],
}

impl Waits {
    /// Makes files until that `is_over`.
    fn watch(place: &dyn Place, name: &str, is_over: impl Fn() -> bool) -> Result<Waits, String> {
        let mut waits = Waits::default();
        while !is_over() {
            let mut before = Instant::now();
            let done = place.make(&format!("{name}{}", waits.of[0].len()))?;
            for (at, of) in done.into_iter().zip(&mut waits.of) {
                of.push((at - before).as_secs_f64());
                before = at;
            }
        }
        Ok(waits)
    }

    fn tell(self, row: &mut Row, what: &str) {
        row.add(&format!("{what}: files"), self.of[0].len() as f64, "");
        for (step, mut times) in ["make", "write", "fsync"].iter().zip(self.of) {
            times.sort_by(f64::total_cmp);
            let late = times.get(times.len() * 99 / 100).copied().unwrap_or(f64::NAN);
            let most = times.last().copied().unwrap_or(f64::NAN);
            row.add(&format!("{what}: {step}, median"), median(times) * 1e3, "ms");
            row.add(&format!("{what}: {step}, 99th percentile"), late * 1e3, "ms");
            row.add(&format!("{what}: {step}, longest"), most * 1e3, "ms");
        }
    }
}

fn watch_all(place: &dyn Place, side: &str, row: &mut Row) -> Result<(), String> {
    let begun = Instant::now();
    Waits::watch(place, "alone", || begun.elapsed() > WATCHED)?
        .tell(row, &format!("{side}, alone"));
    let mut done = Ok(());
    let alone = seconds(|| done = place.balance());
    done?;
    row.add(&format!("{side}, balance with nobody beside it"), alone, "s");
    let is_over = AtomicBool::new(false);
    let (waits, (took, done)) = std::thread::scope(|scope| {
        let balancing = scope.spawn(|| {
            let mut done = Ok(());
            let took = seconds(|| done = place.balance());
            is_over.store(true, Ordering::Relaxed);
            (took, done)
        });
        let waits = Waits::watch(place, "beside", || is_over.load(Ordering::Relaxed));
        (waits, balancing.join().unwrap_or((f64::NAN, Err("the balance panicked".to_owned()))))
    });
    done?;
    waits?.tell(row, &format!("{side}, beside a balance"));
    row.add(&format!("{side}, balance beside that"), took, "s");
    Ok(())
}

fn fill(image: &Path, scale: Scale) -> buttress::Result<()> {
    let files = scale.of(FILES);
    balance::fill(image, Shape { files, snapshots: SNAPSHOTS, quotas: false, nodesize: 16384 })?;
    let fs = Filesystem::open(image, Options::read_write())?;
    let file = fs.create(Node::ROOT, b"data", &New::file(0o600))?.node;
    for at in 0..scale.of(DATA) {
        fs.write(file, at << 20, &stream::piece(at))?;
    }
    fs.close()
}

/// Waits alone and beside a balance, on both sides.
pub fn row(scale: Scale) -> Row {
    let (files, data) = (scale.of(FILES), scale.of(DATA));
    let work = format!("files made beside a balance of {files} small files and {data} MiB");
    let mut row = Row::new(21, work);
    let dir = linux::ram();
    let (image, mnt) = (dir.path().join("image"), dir.path().join("mnt"));
    for side in [Side::Linux, Side::Here].into_iter().filter(|side| scale.wants(*side)) {
        let _gone = fs::remove_file(&image);
        let done = fill(&image, scale).map_err(text).and_then(|()| match side {
            Side::Linux => {
                let _mounted = Mounted::new(&image, &mnt)?;
                watch_all(&Kernel { top: mnt.clone() }, "Linux", &mut row)
            }
            _ => {
                let fs = Filesystem::open(&image, Options::read_write()).map_err(text)?;
                watch_all(&fs, "here", &mut row)?;
                if std::env::var_os("BENCH_STATS").is_some() {
                    eprintln!("{:#?}", fs.stats());
                }
                fs.close().map_err(text)
            }
        });
        done.unwrap_or_else(|why| row.note(why));
    }
    row
}
