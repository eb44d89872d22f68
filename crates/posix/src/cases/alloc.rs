//! fallocate: space before there is data, and holes after there was.

use std::os::unix::fs::FileExt;

use rustix::io::Errno;

use super::size::{pattern, same};
use crate::call;
use crate::case::{Outcome, Registry, T, eq, fails, holds};

/// Registers the cases.
pub fn register(r: &mut Registry) {
    space(r);
    punching(r);
    zeroing(r);
    refused(r);
}

/// A file of 256 KiB, synced, and its bytes.
fn full(t: &T) -> Outcome<Vec<u8>> {
    let bytes = pattern(256 << 10, 1);
    t.file_of("f", &bytes)?;
    t.open("f", "rw")?.sync_all()?;
    Ok(bytes)
}

/// Plain and KEEP_SIZE.
fn space(r: &mut Registry) {
    r.case("fallocate/plain", |t| {
        t.file("f")?;
        t.supported("fallocate f plain 0 100000")?;
        let stat = t.stat("f")?;
        eq(stat.st_size, 100_000, "size")?;
        holds(stat.st_blocks >= 100_000 / 512, "blocks are allocated")?;
        same("f", &[0; 100_000])
    });
    r.case("fallocate/keep-size", |t| {
        t.file_of("f", b"abc")?;
        t.supported("fallocate f keep 0 1000000")?;
        let stat = t.stat("f")?;
        eq(stat.st_size, 3, "size")?;
        holds(stat.st_blocks >= 1_000_000 / 512, "blocks are allocated")?;
        same("f", b"abc")?;
        t.ok("truncate f 2000")?;
        let mut want = b"abc".to_vec();
        want.resize(2000, 0);
        same("f", &want)
    });
    r.case("fallocate/keeps-content", |t| {
        let mut want = full(t)?;
        t.supported("fallocate f plain 0 524288")?;
        want.resize(512 << 10, 0);
        same("f", &want)
    });
    r.case("fallocate/never-shrinks", |t| {
        full(t)?;
        t.supported("fallocate f plain 0 4096")?;
        eq(t.stat("f")?.st_size, 256 << 10, "size")
    });
    r.case("fallocate/then-write", |t| {
        t.file("f")?;
        t.supported("fallocate f plain 0 262144")?;
        let file = t.open("f", "rw")?;
        let mut want = vec![0; 256 << 10];
        for (at, len) in [(0, 10), (4096, 4096), (10_000, 30_000), (262_000, 144)] {
            let part = pattern(len, at as u8);
            file.write_all_at(&part, at as u64)?;
            want[at..at + len].copy_from_slice(&part);
        }
        same("f", &want)?;
        file.sync_all()?;
        same("f", &want)?;
        eq(t.stat("f")?.st_size, 256 << 10, "size")
    });
    r.case("fallocate/into-a-hole", |t| {
        t.ok("create f 644; truncate f 1000000")?;
        t.supported("fallocate f plain 100000 50000")?;
        holds(t.stat("f")?.st_blocks >= 50_000 / 512, "blocks are allocated")?;
        same("f", &vec![0; 1_000_000])
    });
    r.case("fallocate/odd-borders", |t| {
        t.file_of("f", &pattern(5000, 2))?;
        t.supported("fallocate f plain 4999 3")?;
        let mut want = pattern(5000, 2);
        want.extend_from_slice(&[0, 0]);
        same("f", &want)
    });
}

/// PUNCH_HOLE.
fn punching(r: &mut Registry) {
    for (name, at, len) in [
        ("whole-blocks", 64 << 10, 64 << 10),
        ("odd-borders", 10_001, 50_003),
        ("within-a-block", 5000, 100),
        ("start", 0, 100_000),
        ("to-the-end", 200_000, 62_144),
        ("past-the-end", 200_000, 500_000),
        ("all", 0, 256 << 10),
        ("block-border", 4095, 2),
    ] {
        r.case(format!("fallocate/punch-{name}"), move |t| {
            let mut want = full(t)?;
            t.supported(&format!("fallocate f punch {at} {len}"))?;
            let end = want.len().min(at + len);
            want[at..end].fill(0);
            same("f", &want)?;
            t.open("f", "rw")?.sync_all()?;
            same("f", &want)
        });
    }
    r.case("fallocate/punch-gives-blocks-back", |t| {
        full(t)?;
        let before = t.stat("f")?.st_blocks;
        t.supported("fallocate f punch 65536 131072")?;
        t.open("f", "rw")?.sync_all()?;
        holds(t.stat("f")?.st_blocks <= before - 131_072 / 512, "128 KiB less are counted")?;
        let file = t.open("f", "r")?;
        eq(rustix::fs::seek(&file, rustix::fs::SeekFrom::Hole(0)), Ok(65_536), "hole")?;
        eq(rustix::fs::seek(&file, rustix::fs::SeekFrom::Data(65_536)), Ok(196_608), "data")
    });
    r.case("fallocate/punch-then-write", |t| {
        let mut want = full(t)?;
        t.supported("fallocate f punch 50000 100000")?;
        want[50_000..150_000].fill(0);
        t.open("f", "w")?.write_all_at(b"in the hole", 99_999)?;
        want[99_999..100_010].copy_from_slice(b"in the hole");
        same("f", &want)
    });
    r.case("fallocate/punch-not-yet-written-back", |t| {
        let mut want = pattern(100_000, 3);
        t.file_of("f", &want)?;
        t.supported("fallocate f punch 3000 60000")?;
        want[3000..63_000].fill(0);
        same("f", &want)
    });
    r.case("fallocate/punch-small-file", |t| {
        let mut want = pattern(1000, 3);
        t.file_of("f", &want)?;
        t.open("f", "rw")?.sync_all()?;
        t.supported("fallocate f punch 100 200")?;
        want[100..300].fill(0);
        same("f", &want)
    });
}

/// ZERO_RANGE.
fn zeroing(r: &mut Registry) {
    for (name, at, len) in [
        ("whole-blocks", 64 << 10, 64 << 10),
        ("odd-borders", 10_001, 50_003),
        ("within-a-block", 5000, 100),
    ] {
        r.case(format!("fallocate/zero-{name}"), move |t| {
            let mut want = full(t)?;
            t.supported(&format!("fallocate f zero {at} {len}"))?;
            want[at..at + len].fill(0);
            same("f", &want)
        });
    }
    r.case("fallocate/zero-makes-longer", |t| {
        let mut want = full(t)?;
        t.supported("fallocate f zero 200000 100000")?;
        want.truncate(200_000);
        want.resize(300_000, 0);
        same("f", &want)
    });
    r.case("fallocate/zero-keep-size", |t| {
        let mut want = full(t)?;
        t.supported("fallocate f zero-keep 200000 100000")?;
        want[200_000..].fill(0);
        same("f", &want)
    });
}

/// What cannot be.
fn refused(r: &mut Registry) {
    r.case("fallocate/no-length", |t| {
        t.file("f")?;
        t.err("fallocate f plain 0 0", Errno::INVAL)
    });
    r.case("fallocate/punch-must-keep-size", |t| {
        t.file("f")?;
        t.err("fallocate f punch-alone 0 4096", Errno::OPNOTSUPP)
    });
    r.case("fallocate/read-only-descriptor", |t| {
        t.file("f")?;
        let file = call::open("f", "r", 0)?;
        let have = rustix::fs::fallocate(&file, call::fallocate_mode("plain")?, 0, 4096);
        fails(have, Errno::BADF, "fallocate")
    });
    r.case("fallocate/too-far", |t| {
        t.file("f")?;
        t.err("fallocate f plain 9223372036854775807 1", Errno::FBIG)?;
        t.err("fallocate f plain 18446744073709551615 1", Errno::INVAL)
    });
    r.case("fallocate/more-than-there-is", |t| {
        t.file("f")?;
        t.err_of("fallocate f plain 0 1000000000000000", &[Errno::NOSPC, Errno::FBIG])?;
        eq(t.stat("f")?.st_size, 0, "size")
    });
}
