//! Load by other programs, and by what a file server does.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::thread::sleep;
use std::time::Duration;

use rustix::fs::{FallocateFlags, fallocate};

use super::{Fault, Result, Worker, on};
use crate::ops::rng::bytes;

/// Snapshots that are kept.
const SNAPSHOTS: u64 = 4;
/// Bytes of a large file.
const LARGE: u64 = 64 << 20;
const MIB: u64 = 1 << 20;

fn finished(command: &mut Command) -> Result<Output> {
    let what = format!("{command:?}");
    let output = command.stdin(Stdio::null()).output();
    let output = output.map_err(|source| Fault::Io { what: what.clone(), source })?;
    if output.status.success() {
        return Ok(output);
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(Fault::Wrong(format!("{what}: {}: {}", output.status, said.trim())))
}

/// A tree copied by `tar`, compared by `diff`, removed by `rm`.
pub(super) fn tar(worker: &mut Worker, dir: &Path) -> Result<()> {
    let (source, copy) = (dir.join("source"), dir.join("copy"));
    on("mkdir", &source, fs::create_dir_all(&source))?;
    for number in 0..400_u32 {
        let inner = source.join(format!("d{}", number % 20));
        on("mkdir", &inner, fs::create_dir_all(&inner))?;
        let path = inner.join(format!("file-{number}"));
        let data = bytes(number, 0, worker.rng.below(40_000) as usize);
        on("write", &path, fs::write(&path, data))?;
    }
    while worker.goes_on() {
        on("mkdir", &copy, fs::create_dir(&copy))?;
        let script = "tar -C \"$1\" -cf - . | tar -C \"$2\" -xf -";
        finished(Command::new("sh").args(["-ec", script, "tar"]).args([&source, &copy]))?;
        finished(Command::new("diff").arg("-r").args([&source, &copy]))?;
        finished(Command::new("rm").arg("-r").arg(&copy))?;
        worker.done += 1;
    }
    Ok(())
}

/// `dbench` with four clients, again and again.
pub(super) fn dbench(worker: &mut Worker, dir: &Path) -> Result<()> {
    while worker.goes_on() {
        let seconds = worker.left().as_secs().clamp(5, 60).to_string();
        finished(Command::new("dbench").args(["-t", &seconds, "-D"]).arg(dir).arg("4"))?;
        worker.done += 1;
    }
    Ok(())
}

/// Snapshots of the whole, and of a subvolume that changes; a read-only one stays as it was.
pub(super) fn snapshots(worker: &mut Worker, dir: &Path) -> Result<()> {
    let subvolume = dir.join("subvolume");
    let command = worker.command.clone();
    let run = |words: &[&str], paths: &[&Path]| {
        finished(Command::new(&command).arg("subvolume").args(words).args(paths))
    };
    run(&["create"], &[&subvolume])?;
    let mut number = 0;
    while worker.goes_on() {
        for _ in 0..20 {
            let path = subvolume.join(format!("file-{}", worker.rng.below(200)));
            let data = bytes(worker.rng.next() as u32, 0, worker.rng.below(20_000) as usize);
            on("write", &path, fs::write(&path, data))?;
        }
        let snapshot = dir.join(format!("snapshot-{number}"));
        let top = worker.mount.clone();
        let source = if number % 3 == 0 { &top } else { &subvolume };
        run(&["snapshot", "-r"], &[source, &snapshot])?;
        if number % 3 != 0 {
            stays(&snapshot, || {
                let path = subvolume.join("file-after");
                on("write", &path, fs::write(&path, number.to_string()))
            })?;
        }
        if number >= SNAPSHOTS {
            run(&["delete"], &[&dir.join(format!("snapshot-{}", number - SNAPSHOTS))])?;
        }
        number += 1;
        worker.done += 1;
        sleep(Duration::from_millis(300));
    }
    Ok(())
}

/// A snapshot is the same before and after `change`.
fn stays(snapshot: &Path, change: impl FnOnce() -> Result<()>) -> Result<()> {
    let before = contents(snapshot)?;
    change()?;
    if contents(snapshot)? == before {
        return Ok(());
    }
    Err(Fault::Wrong(format!("{} has changed", snapshot.display())))
}

fn contents(dir: &Path) -> Result<Vec<(std::ffi::OsString, Vec<u8>)>> {
    let mut found = Vec::new();
    for entry in on("list", dir, fs::read_dir(dir))? {
        let entry = on("list", dir, entry)?;
        let path = entry.path();
        found.push((entry.file_name(), on("read", &path, fs::read(&path))?));
    }
    found.sort();
    Ok(found)
}

/// Records appended one by one, each durable before the next.
pub(super) fn journal(worker: &mut Worker, dir: &Path) -> Result<()> {
    let path = dir.join("journal");
    let mut file = on("create", &path, File::create(&path))?;
    let mut size = 0;
    while worker.goes_on() {
        let record = format!("record {}\n", worker.done);
        on("append", &path, file.write_all(record.as_bytes()))?;
        on("fsync", &path, file.sync_data())?;
        size += record.len() as u64;
        let found = on("stat", &path, file.metadata())?.len();
        if found != size {
            return Err(Fault::Wrong(format!("{}: {found} bytes of {size}", path.display())));
        }
        worker.done += 1;
    }
    Ok(())
}

/// Large files.
pub(super) fn large(worker: &mut Worker, dir: &Path) -> Result<()> {
    while worker.goes_on() {
        let path = dir.join(format!("large-{}", worker.done % 3));
        let seed = worker.rng.next() as u32 | 1;
        let options =
            File::options().read(true).write(true).create(true).truncate(true).open(&path);
        let file = on("create", &path, options)?;
        for at in (0..LARGE).step_by(MIB as usize) {
            on("write", &path, file.write_all_at(&bytes(seed, at, MIB as usize), at))?;
        }
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        let punched = fallocate(&file, flags, 8 * MIB, 4 * MIB).map_err(io::Error::from);
        on("punch", &path, punched)?;
        on("truncate", &path, file.set_len(LARGE / 2))?;
        for at in (0..LARGE / 2).step_by(MIB as usize) {
            let mut found = vec![0; MIB as usize];
            on("read", &path, file.read_exact_at(&mut found, at))?;
            let hole = (8 * MIB..12 * MIB).contains(&at);
            let expected =
                if hole { bytes(0, at, MIB as usize) } else { bytes(seed, at, MIB as usize) };
            if found != expected {
                return Err(Fault::Wrong(format!("{}: other bytes at {at}", path.display())));
            }
        }
        worker.done += 1;
    }
    Ok(())
}

/// The whole filesystem made durable, and asked for its room.
pub(super) fn sync(worker: &mut Worker) -> Result<()> {
    while worker.goes_on() {
        finished(Command::new(&worker.command).args(["filesystem", "sync"]).arg(&worker.mount))?;
        finished(Command::new("df").arg(&worker.mount))?;
        worker.done += 1;
        sleep(Duration::from_secs(2));
    }
    Ok(())
}
