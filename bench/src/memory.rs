//! Row 11: memory while working on a filesystem, and on one ten times larger.
//!
//! Each measurement is a process of its own, which opens a filled image, does the same work and says how much memory it
//! used at most. The block cache is set to what both filesystems fill.

use std::path::Path;
use std::process::Command;

use buttress::{Filesystem, New, Node, Options};

use crate::create;
use crate::linux;
use crate::mounts;
use crate::{Row, Scale, Side};

const IMAGE: u64 = 16 << 30;
/// Bytes of the block cache.
const CACHE: u64 = 16 << 20;
/// Files that the work makes.
const WORK: u64 = 50_000;
const TOP: Node = Node { subvolume: 5, ino: 256 };

/// Peak memory with a filesystem, and with one ten times larger.
pub fn row(scale: Scale) -> Row {
    let files = scale.of(100_000);
    let mut row = Row::new(11, format!("memory, on {files} files and on ten times as many"));
    let dir = linux::ram();
    let mut peaks = [[None; 2]; 2];
    for (times, peaks) in [1, 10].into_iter().zip(&mut peaks) {
        let image = dir.path().join(format!("image{times}"));
        fill(&image, files * times);
        let measured = [
            (Side::Here, in_process(&image)),
            (Side::Mounts, if scale.wants(Side::Mounts) { mounted(&image) } else { Ok(None) }),
        ];
        for ((side, peak), slot) in measured.into_iter().zip(peaks) {
            match peak {
                Ok(peak) => *slot = peak.filter(|_| scale.wants(side)),
                Err(why) => row.note(why),
            }
        }
        let _gone = std::fs::remove_file(&image);
    }
    for (at, name) in ["in process", "through the mount"].iter().enumerate() {
        if let (Some(small), Some(large)) = (peaks[0][at], peaks[1][at]) {
            row.add(&format!("{name}, peak"), small as f64 / 1048576.0, "MiB");
            row.add(&format!("{name}, peak on the larger one"), large as f64 / 1048576.0, "MiB");
            row.add(&format!("{name}, ratio"), large as f64 / small as f64, "x");
        }
    }
    row.note(format!(
        "{WORK} files made, 256 MiB written and read, {WORK} of the old files looked up; block cache of {} MiB",
        CACHE >> 20
    ));
    row
}

fn fill(image: &Path, files: u64) {
    create::fresh(image, IMAGE);
    let fs = Filesystem::open(image, Options::read_write()).expect("a fresh image opens");
    create::make_files(&fs, TOP, files, 2);
    fs.close().expect("a commit");
}

fn in_process(image: &Path) -> Result<Option<u64>, String> {
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let out = Command::new(program).arg("--memory").arg(image).output();
    let out = out.map_err(|error| error.to_string())?;
    let text = String::from_utf8_lossy(&out.stdout);
    text.trim().parse().map(Some).map_err(|_| format!("measuring memory failed: {text}"))
}

/// The process that is measured: does the work and prints the bytes of memory it used at most.
pub fn child(what: &str, image: &Path) {
    assert_eq!(what, "--memory", "there is no other");
    let options = Options::read_write().cache_bytes(CACHE);
    let fs = Filesystem::open(image, options).expect("a filled image opens");
    let dir = fs.create(TOP, b"work", &New::directory(0o755)).expect("room").node;
    create::make_files(&fs, dir, WORK, 2);
    fs.commit().expect("a commit");
    let file = fs.create(TOP, b"file", &New::file(0o600)).expect("room").node;
    let mut piece = vec![7; 1 << 20];
    for at in 0..256 {
        fs.write(file, at << 20, &piece).expect("room");
    }
    fs.commit().expect("a commit");
    for at in 0..256 {
        fs.read(file, at << 20, &mut piece).expect("readable");
    }
    let old = fs.lookup(TOP, b"dir0").expect("readable").expect("it was made").node;
    for file in 0..WORK {
        let name = format!("{:016x}~~~~~~~~~~~~", file.wrapping_mul(7919) % WORK);
        fs.lookup(old, name.as_bytes()).expect("readable");
    }
    fs.close().expect("a commit");
    println!("{}", linux::peak_memory(std::process::id()).unwrap_or(0));
}

fn mounted(image: &Path) -> Result<Option<u64>, String> {
    let mount = mounts::serve_image(image)?;
    create::fs_mark(mount.path(), WORK, 2)?;
    Ok(mount.peak_memory())
}
