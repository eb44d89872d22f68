//! Row 1: empty files, a directory per thread, commit included.

use std::path::Path;

use buttress::{Filesystem, New, Node, Options};

use crate::linux::{self, Mount};
use crate::{Row, Scale, median, seconds};

const IMAGE: u64 = 8 << 30;
const THREADS: u64 = 2;

/// Files per second on both sides, and how the figure grows with size and threads.
pub fn row(scale: Scale) -> Row {
    let files = scale.of(500_000);
    let (mut here, mut there, mut notes) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..scale.rounds {
        here.push(creates(files, THREADS));
        match kernel(files) {
            Ok(rate) => there.push(rate),
            Err(why) => notes.push(why),
        }
    }
    notes.dedup();
    let mut figures = vec![("here, 2 threads".to_owned(), median(here), "files/s")];
    if !there.is_empty() {
        figures.push(("Linux, fs_mark, 2 threads".to_owned(), median(there), "files/s"));
        figures.push(("ratio".to_owned(), figures[0].1 / figures[1].1, "x"));
    }
    for (size, threads) in
        [(10_000, 1), (100_000, 1), (scale.of(1_000_000), 1), (scale.of(1_000_000), 2)]
    {
        let rates = (0..scale.rounds.min(3)).map(|_| creates(size, threads)).collect();
        figures.push((format!("here, {size} files, {threads} threads"), median(rates), "files/s"));
    }
    Row { number: 1, work: format!("create {files} empty files"), figures, notes }
}

/// Files per second in process: made by `threads` in a directory each, and committed.
fn creates(files: u64, threads: u64) -> f64 {
    let dir = linux::ram();
    let image = dir.path().join("image");
    fresh(&image, IMAGE);
    let fs = Filesystem::open(&image, Options::read_write()).expect("a fresh image opens");
    let top = Node { subvolume: 5, ino: 256 };
    let took = seconds(|| {
        std::thread::scope(|scope| {
            for thread in 0..threads {
                let fs = &fs;
                scope.spawn(move || {
                    let name = format!("dir{thread}");
                    let dir =
                        fs.create(top, name.as_bytes(), &New::directory(0o755)).expect("room").node;
                    for file in 0..files / threads {
                        let name = format!("{file:016x}~~~~~~~~~~~~");
                        fs.create(dir, name.as_bytes(), &New::file(0o600)).expect("room");
                    }
                });
            }
        });
        fs.commit().expect("a commit");
    });
    fs.close().expect("a commit");
    files as f64 / took
}

/// Makes an empty filesystem with our own mkfs.
pub fn fresh(image: &Path, size: u64) {
    let device = buttress_device::FileDevice::create(image, size).expect("an image can be made");
    let mut env = buttress_mkfs::Environment::system();
    buttress_mkfs::make(&device, &buttress_mkfs::Options::default(), &mut env).expect("mkfs");
}

fn kernel(files: u64) -> Result<f64, String> {
    let mount = Mount::fresh(IMAGE)?;
    let (loops, path) = (5, mount.path());
    let count = (files / THREADS / loops).to_string();
    let dirs: Vec<String> = (0..THREADS).map(|at| format!("{}/{at}", path.display())).collect();
    let mut args = vec!["-S", "0", "-L", "5", "-n", &count, "-s", "0", "-k"];
    dirs.iter().for_each(|dir| args.extend(["-d", dir]));
    let mut failed = None;
    let took = seconds(|| failed = linux::run("fs_mark", &args).and_then(|_| mount.sync()).err());
    failed.map_or(Ok((files / THREADS / loops * loops * THREADS) as f64 / took), Err)
}
