//! Row 9: a large file written and synced, then read back cold, 1 MiB at a time. Checksums are verified on both sides.

use std::fs::File;
use std::io::{Read, Write};

use buttress::{Filesystem, New, Node, Options};

use crate::linux::{self, Mount};
use crate::{Row, Scale, median, seconds};

const PIECE: usize = 1 << 20;

/// MiB per second on both sides.
pub fn row(scale: Scale) -> Row {
    let pieces = scale.of(4096);
    let image = (pieces + 2048) << 20;
    let mut rates: [Vec<f64>; 4] = Default::default();
    let mut notes = Vec::new();
    for _ in 0..scale.rounds {
        let (write, read) = here(image, pieces);
        rates[0].push(write);
        rates[1].push(read);
        match there(image, pieces) {
            Ok((write, read)) => {
                rates[2].push(write);
                rates[3].push(read);
            }
            Err(why) => notes.push(why),
        }
    }
    notes.dedup();
    let names =
        ["here, write and commit", "here, read cold", "Linux, write and fsync", "Linux, read cold"];
    let mut figures: Vec<(String, f64, &str)> = Vec::new();
    for (name, rates) in names.iter().zip(rates) {
        if !rates.is_empty() {
            figures.push(((*name).to_owned(), median(rates), "MiB/s"));
        }
    }
    if figures.len() == 4 {
        figures.push(("ratio, write".to_owned(), figures[0].1 / figures[2].1, "x"));
        figures.push(("ratio, read".to_owned(), figures[1].1 / figures[3].1, "x"));
    }
    Row { number: 9, work: format!("write {pieces} MiB and sync, read it back"), figures, notes }
}

fn piece(number: u64) -> Vec<u8> {
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
    let data: Vec<Vec<u8>> = (0..8).map(piece).collect();
    let fs = Filesystem::open(&image, Options::read_write()).expect("a fresh image opens");
    let file =
        fs.create(Node { subvolume: 5, ino: 256 }, b"file", &New::file(0o600)).expect("room").node;
    let write = seconds(|| {
        for at in 0..pieces {
            fs.write(file, at << 20, &data[at as usize % 8]).expect("room");
        }
        fs.commit().expect("a commit");
    });
    fs.close().expect("a commit");
    let fs = Filesystem::open(&image, Options::read_only()).expect("opens");
    let mut buf = vec![0; PIECE];
    let read = seconds(|| {
        for at in 0..pieces {
            assert_eq!(fs.read(file, at << 20, &mut buf).expect("readable"), PIECE);
        }
    });
    (pieces as f64 / write, pieces as f64 / read)
}

fn there(size: u64, pieces: u64) -> Result<(f64, f64), String> {
    let mount = Mount::fresh(size)?;
    let path = mount.path().join("file");
    let data: Vec<Vec<u8>> = (0..8).map(piece).collect();
    let text = |error: std::io::Error| error.to_string();
    let mut file = File::create(&path).map_err(text)?;
    let mut result = Ok(());
    let write = seconds(|| {
        result = (0..pieces)
            .try_for_each(|at| file.write_all(&data[at as usize % 8]))
            .and_then(|()| file.sync_all());
    });
    result.map_err(text)?;
    drop(file);
    mount.again()?;
    let mut file = File::open(&path).map_err(text)?;
    let mut buf = vec![0; PIECE];
    let mut result = Ok(());
    let read = seconds(|| result = (0..pieces).try_for_each(|_| file.read_exact(&mut buf)));
    result.map_err(text)?;
    Ok((pieces as f64 / write, pieces as f64 / read))
}
