//! Row 9: a large file written and synced, then read back cold, 1 MiB at a time. Checksums are verified on both sides.

use std::fs::File;
use std::io::{Read, Write};
use std::path::Path;

use buttress::{Filesystem, New, Node, Options};

use crate::linux::{self, Mount};
use crate::mounts::{self, Served};
use crate::{Row, Scale, Side, median, seconds};

const PIECE: usize = 1 << 20;

/// MiB per second on both sides.
pub fn row(scale: Scale) -> Row {
    let pieces = scale.of(4096);
    let image = (pieces + 2048) << 20;
    let mut row = Row::new(9, format!("write {pieces} MiB and sync, read it back"));
    let mut rates: [Vec<f64>; 4] = Default::default();
    for _ in 0..scale.rounds {
        if scale.wants(Side::Here) {
            let (write, read) = here(image, pieces);
            rates[0].push(write);
            rates[2].push(read);
        }
        if scale.wants(Side::Linux) {
            match there(image, pieces) {
                Ok((write, read)) => {
                    rates[1].push(write);
                    rates[3].push(read);
                }
                Err(why) => row.note(why),
            }
        }
    }
    let names =
        ["here, write and commit", "Linux, write and fsync", "here, read cold", "Linux, read cold"];
    let mut medians = Vec::new();
    for (name, rates) in names.iter().zip(rates) {
        if !rates.is_empty() {
            medians.push(median(rates));
            row.add(name, medians[medians.len() - 1], "MiB/s");
        }
    }
    if let [write, theirs, read, theirs_read] = medians[..] {
        row.ratio("ratio, write", vec![write, theirs]);
        row.ratio("ratio, read", vec![read, theirs_read]);
    }
    through_mounts(scale, image, pieces.min(1024), &mut row);
    row
}

/// The same through mounts. The null filesystem keeps it all in memory, so it is a GiB at most, and nothing is synced there.
fn through_mounts(scale: Scale, size: u64, pieces: u64, row: &mut Row) {
    if !scale.wants(Side::Mounts) {
        return;
    }
    let served = [Served::Ours, Served::Null];
    let mut rates: [[Vec<f64>; 2]; 2] = Default::default();
    for _ in 0..scale.rounds.min(3) {
        for (what, rates) in served.iter().zip(&mut rates) {
            match through(*what, size, pieces) {
                Ok((write, read)) => {
                    rates[0].push(write);
                    rates[1].push(read);
                }
                Err(why) => row.note(why),
            }
        }
    }
    let mut writes = Vec::new();
    for (what, rates) in served.iter().zip(rates) {
        for (name, rates) in ["write", "read, the kernel may cache"].iter().zip(rates) {
            if !rates.is_empty() {
                let rate = median(rates);
                row.add(&format!("{}, {name} {pieces} MiB", what.name()), rate, "MiB/s");
                writes.extend((*name == "write").then_some(rate));
            }
        }
    }
    row.ratio("ratio to the null filesystem, write", writes);
}

fn through(what: Served, size: u64, pieces: u64) -> Result<(f64, f64), String> {
    let mount = mounts::serve(what, size)?;
    let path = mount.path().join("file");
    let write = write_file(&path, pieces, what == Served::Ours)?;
    Ok((write, read_file(&path, pieces)?))
}

/// A MiB that nothing can be made of but what it is.
pub fn piece(number: u64) -> Vec<u8> {
    let mut at = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = Vec::with_capacity(PIECE);
    while bytes.len() < PIECE {
        at = at.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        bytes.extend_from_slice(&at.to_le_bytes());
    }
    bytes
}

fn here(size: u64, pieces: u64) -> (f64, f64) {
    let dir = linux::ram();
    let image = dir.path().join("image");
    crate::create::fresh(&image, size);
    here_on(&image, pieces)
}

/// MiB per second of writing a file to a fresh image, and of reading it.
pub fn here_on(image: &Path, pieces: u64) -> (f64, f64) {
    let data: Vec<Vec<u8>> = (0..8).map(piece).collect();
    let fs = Filesystem::open(image, Options::read_write()).expect("a fresh image opens");
    let file =
        fs.create(Node { subvolume: 5, ino: 256 }, b"file", &New::file(0o600)).expect("room").node;
    let write = seconds(|| {
        for at in 0..pieces {
            fs.write(file, at << 20, &data[at as usize % 8]).expect("room");
        }
        fs.commit().expect("a commit");
    });
    fs.close().expect("a commit");
    let fs = Filesystem::open(image, Options::read_only()).expect("opens");
    let mut buf = vec![0; PIECE];
    let read = seconds(|| {
        for at in 0..pieces {
            assert_eq!(fs.read(file, at << 20, &mut buf).expect("readable"), PIECE);
        }
    });
    (pieces as f64 / write, pieces as f64 / read)
}

fn there(size: u64, pieces: u64) -> Result<(f64, f64), String> {
    there_on(&Mount::fresh(size)?, pieces)
}

/// The same on Linux, of which nothing stays cached.
pub fn there_on(mount: &Mount, pieces: u64) -> Result<(f64, f64), String> {
    let path = mount.path().join("file");
    let write = write_file(&path, pieces, true)?;
    mount.again()?;
    Ok((write, read_file(&path, pieces)?))
}

/// MiB per second of writing a file.
fn write_file(path: &Path, pieces: u64, sync: bool) -> Result<f64, String> {
    let data: Vec<Vec<u8>> = (0..8).map(piece).collect();
    let mut file = File::create(path).map_err(|error| error.to_string())?;
    let mut result = Ok(());
    let took = seconds(|| {
        result = (0..pieces).try_for_each(|at| file.write_all(&data[at as usize % 8]));
        if result.is_ok() && sync {
            result = file.sync_all();
        }
    });
    result.map_err(|error| error.to_string()).map(|()| pieces as f64 / took)
}

/// MiB per second of reading it.
fn read_file(path: &Path, pieces: u64) -> Result<f64, String> {
    let mut file = File::open(path).map_err(|error| error.to_string())?;
    let mut buf = vec![0; PIECE];
    let mut result = Ok(());
    let took = seconds(|| result = (0..pieces).try_for_each(|_| file.read_exact(&mut buf)));
    result.map_err(|error| error.to_string()).map(|()| pieces as f64 / took)
}
