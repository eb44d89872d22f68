//! Sizes: truncation, holes, and looking for data.

use std::fs::File;
use std::io::{Seek, SeekFrom, Write};
use std::os::unix::fs::FileExt;

use rustix::io::Errno;

use crate::call;
use crate::case::{Outcome, Registry, T, eq, fails, holds};

/// Sizes around the borders that filesystems have.
const SIZES: &[u64] = &[
    0, 1, 511, 512, 2047, 2048, 2049, 4095, 4096, 4097, 8192, 65_535, 65_536, 131_072, 131_073,
    1_000_000,
];

/// Bytes that differ from place to place.
pub fn pattern(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|at| (at as u8).wrapping_mul(31) ^ (at >> 8) as u8 ^ seed | 1).collect()
}

/// All of a file.
pub fn whole(path: &str) -> Outcome<Vec<u8>> {
    Ok(std::fs::read(path)?)
}

/// Compares a file with bytes and says where they part.
#[track_caller]
pub fn same(path: &str, want: &[u8]) -> Outcome {
    let have = whole(path)?;
    eq(have.len(), want.len(), "size read")?;
    let parted = have.iter().zip(want).position(|(a, b)| a != b);
    eq(parted, None, "first byte that differs")
}

/// Registers the cases.
pub fn register(r: &mut Registry) {
    truncation(r);
    truncated_content(r);
    holes(r);
    seeking(r);
    limits(r);
}

/// What truncation does to size and content.
fn truncation(r: &mut Registry) {
    r.case("truncate/many-sizes", |t| {
        t.file("f")?;
        for size in SIZES.iter().chain(SIZES.iter().rev()) {
            t.ok(&format!("truncate f {size}"))?;
            eq(t.stat("f")?.st_size, *size as i64, "size")?;
        }
        Ok(())
    });
    r.case("truncate/longer-reads-zeros", |t| {
        for &size in SIZES {
            let mut want = pattern(size as usize, 1);
            t.file_of("f", &want)?;
            t.ok(&format!("truncate f {}", size + 5000))?;
            want.resize(size as usize + 5000, 0);
            same("f", &want)?;
        }
        Ok(())
    });
    r.case("truncate/shorter-keeps-the-start", |t| {
        let all = pattern(300_000, 2);
        for &size in SIZES.iter().filter(|size| **size < 300_000) {
            t.file_of("f", &all)?;
            t.ok(&format!("truncate f {size}"))?;
            same("f", &all[..size as usize])?;
        }
        Ok(())
    });
    r.case("truncate/directory", |t| {
        t.ok("mkdir d 755")?;
        t.err("truncate d 0", Errno::ISDIR)?;
        let dir = call::open("d", "r", 0)?;
        fails(rustix::fs::ftruncate(&dir, 0), Errno::INVAL, "ftruncate")
    });
    r.case("truncate/frees-blocks", |t| {
        t.file_of("f", &pattern(400_000, 3))?;
        t.open("f", "w")?.sync_all()?;
        let before = t.stat("f")?.st_blocks;
        t.ok("truncate f 0")?;
        holds(before > 0, "a written file has blocks")?;
        eq(t.stat("f")?.st_blocks, 0, "blocks of an empty file")
    });
}

/// Old bytes must not come back.
fn truncated_content(r: &mut Registry) {
    r.case("truncate/cut-bytes-do-not-come-back", |t| {
        for &size in &[1_u64, 100, 4095, 4096, 4097, 10_000] {
            let mut want = pattern(20_000, 4);
            t.file_of("f", &want)?;
            t.ok(&format!("truncate f {size}; truncate f 20000"))?;
            want.truncate(size as usize);
            want.resize(20_000, 0);
            same("f", &want)?;
        }
        Ok(())
    });
    r.case("truncate/cut-synced-bytes-do-not-come-back", |t| {
        let mut want = pattern(20_000, 5);
        t.file_of("f", &want)?;
        let file = t.open("f", "rw")?;
        file.sync_all()?;
        file.set_len(5000)?;
        file.sync_all()?;
        file.set_len(20_000)?;
        want.truncate(5000);
        want.resize(20_000, 0);
        same("f", &want)
    });
    r.case("truncate/write-past-the-end-after-a-cut", |t| {
        let mut want = pattern(10_000, 6);
        t.file_of("f", &want)?;
        t.ok("truncate f 3000")?;
        t.open("f", "w")?.write_all_at(b"end", 9000)?;
        want.truncate(3000);
        want.resize(9000, 0);
        want.extend_from_slice(b"end");
        same("f", &want)
    });
    r.case("truncate/small-file-grows-and-shrinks", |t| {
        // A small file may live beside its inode and has to move out and back.
        let mut want = Vec::new();
        let mut file = t.open("f", "rw,creat")?;
        for step in 0..60_u8 {
            let part = pattern(97, step);
            file.seek(SeekFrom::End(0))?;
            file.write_all(&part)?;
            want.extend_from_slice(&part);
            if step % 7 == 6 {
                want.truncate(want.len() / 2);
                file.set_len(want.len() as u64)?;
                file.sync_all()?;
            }
            same("f", &want)?;
        }
        Ok(())
    });
}

/// Files with holes.
fn holes(r: &mut Registry) {
    r.case("sparse/write-far-out", |t| {
        let file = t.open("f", "rw,creat")?;
        file.write_all_at(b"x", 1 << 30)?;
        file.sync_all()?;
        let stat = t.stat("f")?;
        eq(stat.st_size, (1 << 30) + 1, "size")?;
        holds(stat.st_blocks < 2048, "less than a mebibyte is allocated")?;
        let mut bytes = [1; 100];
        file.read_exact_at(&mut bytes, 12_345_678)?;
        eq(bytes, [0; 100], "bytes in the hole")
    });
    r.case("sparse/every-other-block", |t| {
        let file = t.open("f", "rw,creat")?;
        let mut want = vec![0; 63 * 4096];
        for at in (0..64).step_by(2) {
            let block = pattern(4096, at as u8);
            file.write_all_at(&block, at * 4096)?;
            want[at as usize * 4096..][..4096].copy_from_slice(&block);
        }
        same("f", &want)?;
        file.sync_all()?;
        same("f", &want)?;
        holds(t.stat("f")?.st_blocks >= 32 * 8, "32 blocks are counted")
    });
    r.case("sparse/hole-is-filled", |t| {
        let file = t.open("f", "rw,creat")?;
        file.set_len(100_000)?;
        file.sync_all()?;
        file.write_all_at(&pattern(1000, 9), 50_000)?;
        let mut want = vec![0; 100_000];
        want[50_000..51_000].copy_from_slice(&pattern(1000, 9));
        same("f", &want)
    });
    r.case("sparse/truncated-file-has-no-blocks", |t| {
        t.ok("create f 644; truncate f 1000000000")?;
        eq(t.stat("f")?.st_blocks, 0, "blocks")
    });
}

/// A file with data at [64 KiB, 128 KiB) and [256 KiB, 320 KiB) and a size of 512 KiB.
fn islands(t: &T) -> Outcome<File> {
    let file = t.open("f", "rw,creat")?;
    file.set_len(512 << 10)?;
    file.write_all_at(&pattern(64 << 10, 1), 64 << 10)?;
    file.write_all_at(&pattern(64 << 10, 2), 256 << 10)?;
    file.sync_all()?;
    Ok(file)
}

/// Where data or a hole starts at or after `from`, in KiB.
fn find(file: &File, from: u64, data: bool) -> Result<u64, Errno> {
    let from = from << 10;
    let position =
        if data { rustix::fs::SeekFrom::Data(from) } else { rustix::fs::SeekFrom::Hole(from) };
    rustix::fs::seek(file, position).map(|at| at >> 10)
}

/// SEEK_DATA and SEEK_HOLE.
fn seeking(r: &mut Registry) {
    r.case("seek/data", |t| {
        let file = islands(t)?;
        for (from, want) in [(0, 64), (64, 64), (100, 100), (127, 127), (128, 256), (300, 300)] {
            eq(find(&file, from, true), Ok(want), &format!("data from {from} KiB"))?;
        }
        fails(find(&file, 320, true), Errno::NXIO, "data from 320 KiB")?;
        fails(find(&file, 511, true), Errno::NXIO, "data from 511 KiB")
    });
    r.case("seek/hole", |t| {
        let file = islands(t)?;
        for (from, want) in
            [(0, 0), (10, 10), (64, 128), (100, 128), (128, 128), (256, 320), (500, 500)]
        {
            eq(find(&file, from, false), Ok(want), &format!("hole from {from} KiB"))?;
        }
        Ok(())
    });
    r.case("seek/at-and-past-the-end", |t| {
        let file = islands(t)?;
        for data in [true, false] {
            fails(find(&file, 512, data), Errno::NXIO, "at the end")?;
            fails(find(&file, 1000, data), Errno::NXIO, "past the end")?;
        }
        Ok(())
    });
    r.case("seek/end-is-a-hole", |t| {
        t.file_of("f", &pattern(10_000, 3))?;
        let file = t.open("f", "r")?;
        eq(rustix::fs::seek(&file, rustix::fs::SeekFrom::Hole(0)), Ok(10_000), "hole")?;
        eq(rustix::fs::seek(&file, rustix::fs::SeekFrom::Data(9999)), Ok(9999), "data")
    });
    r.case("seek/small-file", |t| {
        t.file_of("f", b"abc")?;
        let file = t.open("f", "rw")?;
        for _ in 0..2 {
            eq(rustix::fs::seek(&file, rustix::fs::SeekFrom::Data(1)), Ok(1), "data")?;
            eq(rustix::fs::seek(&file, rustix::fs::SeekFrom::Hole(1)), Ok(3), "hole")?;
            file.sync_all()?;
        }
        Ok(())
    });
    r.case("seek/empty-file", |t| {
        let file = t.open("f", "rw,creat")?;
        fails(find(&file, 0, true), Errno::NXIO, "data")?;
        fails(find(&file, 0, false), Errno::NXIO, "hole")
    });
    r.case("seek/all-hole", |t| {
        let file = t.open("f", "rw,creat")?;
        file.set_len(1 << 20)?;
        fails(find(&file, 0, true), Errno::NXIO, "data")?;
        eq(find(&file, 7, false), Ok(7), "hole")
    });
    r.case("seek/data-not-yet-written-back", |t| {
        let file = t.open("f", "rw,creat")?;
        file.write_all_at(&pattern(4096, 1), 1 << 20)?;
        eq(find(&file, 0, true), Ok(1024), "data")?;
        eq(find(&file, 1024, false), Ok(1028), "hole")
    });
    r.case("seek/ordinary", |t| {
        t.file_of("f", b"0123456789")?;
        let mut file = t.open("f", "r")?;
        eq(file.seek(SeekFrom::End(-3))?, 7, "from the end")?;
        eq(file.seek(SeekFrom::Current(-2))?, 5, "from here")?;
        eq(file.seek(SeekFrom::Start(100))?, 100, "past the end")?;
        let before = rustix::fs::seek(&file, rustix::fs::SeekFrom::Current(-101));
        fails(before, Errno::INVAL, "before the start")
    });
}

/// The largest files.
fn limits(r: &mut Registry) {
    r.case("size/terabytes", |t| {
        let file = t.open("f", "rw,creat")?;
        file.set_len(1 << 42)?;
        file.write_all_at(b"end", (1 << 42) - 3)?;
        let mut bytes = [0; 3];
        file.read_exact_at(&mut bytes, (1 << 42) - 3)?;
        eq(&bytes, b"end", "content")?;
        eq(t.stat("f")?.st_size, 1 << 42, "size")
    });
    r.case("size/beyond-what-fits", |t| {
        t.file("f")?;
        let file = call::open("f", "w", 0)?;
        let most = i64::MAX as u64;
        let have = rustix::io::pwrite(&file, b"xx", most);
        holds(
            matches!(have, Err(Errno::FBIG | Errno::INVAL)),
            "a write at the largest offset fails",
        )?;
        eq(t.stat("f")?.st_size, 0, "size")
    });
    r.case("size/negative", |t| {
        t.file("f")?;
        let file = call::open("f", "w", 0)?;
        fails(rustix::fs::ftruncate(&file, u64::MAX), Errno::INVAL, "ftruncate to -1")
    });
}
