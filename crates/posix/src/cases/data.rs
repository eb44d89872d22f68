//! Reading, writing, copying, locks.

use std::fs::File;
use std::io::{IoSlice, IoSliceMut, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::FileExt;

use rustix::fs::FlockOperation;
use rustix::io::Errno;

use super::size::{pattern, same};
use crate::call;
use crate::case::{Outcome, Registry, Stop, T, eq, fails, holds};

/// Registers the cases.
pub fn register(r: &mut Registry) {
    writing(r);
    positions(r);
    mixed(r);
    copying(r);
    clones(r);
    locks(r);
    executing(r);
    counts(r);
}

/// Plain reads and writes.
fn writing(r: &mut Registry) {
    r.case("data/sizes", |t| {
        for len in [0, 1, 100, 2047, 2048, 2049, 4095, 4096, 4097, 70_000, 131_072, 1_500_000] {
            let bytes = pattern(len, 1);
            t.file_of("f", &bytes)?;
            same("f", &bytes)?;
            eq(t.stat("f")?.st_size, len as i64, "size")?;
        }
        Ok(())
    });
    r.case("data/overwrite", |t| {
        let mut want = pattern(200_000, 1);
        t.file_of("f", &want)?;
        let file = t.open("f", "rw")?;
        for (step, (at, len)) in [(0, 1), (4095, 2), (8192, 4096), (50_001, 70_003), (199_999, 1)]
            .into_iter()
            .enumerate()
        {
            let part = pattern(len, step as u8 + 2);
            file.write_all_at(&part, at as u64)?;
            want[at..at + len].copy_from_slice(&part);
            same("f", &want)?;
        }
        file.sync_all()?;
        same("f", &want)
    });
    r.case("data/byte-by-byte", |t| {
        let mut file = t.open("f", "w,creat")?;
        let want = pattern(3000, 3);
        for byte in &want {
            file.write_all(&[*byte])?;
        }
        same("f", &want)
    });
    r.case("data/vectors", |t| {
        let mut file = t.open("f", "rw,creat")?;
        let parts = [pattern(10, 1), pattern(5000, 2), pattern(3, 3)];
        let slices: Vec<_> = parts.iter().map(|part| IoSlice::new(part)).collect();
        eq(file.write_vectored(&slices)?, 5013, "bytes written")?;
        file.rewind()?;
        let (mut one, mut two) = (vec![0; 4000], vec![0; 1013]);
        let have =
            file.read_vectored(&mut [IoSliceMut::new(&mut one), IoSliceMut::new(&mut two)])?;
        eq(have, 5013, "bytes read")?;
        one.extend(two);
        eq(one == parts.concat(), true, "content")
    });
}

/// Positions, ends of files, and reading around the cache.
fn positions(r: &mut Registry) {
    r.case("data/read-at-the-end", |t| {
        t.file_of("f", b"0123456789")?;
        let file = t.open("f", "r")?;
        let mut bytes = [0; 10];
        eq(file.read_at(&mut bytes, 7)?, 3, "bytes before the end")?;
        eq(file.read_at(&mut bytes, 10)?, 0, "bytes at the end")?;
        eq(file.read_at(&mut bytes, 1 << 40)?, 0, "bytes far past the end")
    });
    r.case("data/pwrite-keeps-the-position", |t| {
        let mut file = t.open("f", "rw,creat")?;
        file.write_all(b"abc")?;
        file.write_all_at(b"xyz", 100)?;
        eq(file.stream_position()?, 3, "position")?;
        eq(t.stat("f")?.st_size, 103, "size")
    });
    r.case("data/empty-write-changes-nothing", |t| {
        let file = t.open("f", "rw,creat")?;
        eq(rustix::io::pwrite(&file, b"", 1000), Ok(0), "bytes written")?;
        eq(t.stat("f")?.st_size, 0, "size")
    });
    r.case("data/direct", |t| {
        let want = pattern(64 << 10, 5);
        t.file_of("f", &want)?;
        let flags = rustix::fs::OFlags::RDWR | rustix::fs::OFlags::DIRECT;
        let Ok(file) = rustix::fs::open("f", flags, rustix::fs::Mode::empty()) else {
            return Err(Stop::Skipped("O_DIRECT is not supported here".to_owned()));
        };
        let mut buffer = vec![0; 20 << 10];
        let aligned = buffer.as_ptr().align_offset(4096);
        let part = &mut buffer[aligned..aligned + (8 << 10)];
        eq(rustix::io::pread(&file, &mut *part, 4096)?, 8 << 10, "bytes read")?;
        eq(part[..] == want[4096..12_288], true, "content read")?;
        part.fill(0xaa);
        eq(rustix::io::pwrite(&file, part, 16 << 10)?, 8 << 10, "bytes written")?;
        let mut after = want.clone();
        after[16 << 10..24 << 10].fill(0xaa);
        same("f", &after)
    });
}

/// Many small changes against a copy in memory.
fn mixed(r: &mut Registry) {
    for (name, seed, sync) in [("memory", 1_u64, false), ("disk", 2, true)] {
        r.case(format!("data/mixed-changes-in-{name}"), move |t| {
            let file = t.open("f", "rw,creat")?;
            let mut want: Vec<u8> = Vec::new();
            let mut state = seed;
            let mut random = |below: usize| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                (state >> 33) as usize % below
            };
            for step in 0..300 {
                let (at, len) = (random(150_000), random(20_000) + 1);
                match random(5) {
                    0..3 => {
                        let part = pattern(len, step as u8);
                        file.write_all_at(&part, at as u64)?;
                        want.resize(want.len().max(at + len), 0);
                        want[at..at + len].copy_from_slice(&part);
                    }
                    3 => {
                        file.set_len(at as u64)?;
                        want.resize(at, 0);
                    }
                    _ if sync => file.sync_data()?,
                    _ => {}
                }
                if step % 20 == 19 {
                    same("f", &want)?;
                }
            }
            same("f", &want)
        });
    }
}

/// Two files with content for copying.
fn pair(t: &T) -> Outcome<(File, File, Vec<u8>)> {
    let bytes = pattern(300_000, 6);
    t.file_of("a", &bytes)?;
    Ok((t.open("a", "rw")?, t.open("b", "rw,creat")?, bytes))
}

/// copy_file_range and sendfile.
fn copying(r: &mut Registry) {
    r.case("copy/whole-file", |t| {
        let (from, to, want) = pair(t)?;
        let mut left = want.len();
        while left > 0 {
            match rustix::fs::copy_file_range(&from, None, &to, None, left)? {
                0 => break,
                count => left -= count,
            }
        }
        same("b", &want)
    });
    r.case("copy/parts", |t| {
        let (from, to, bytes) = pair(t)?;
        to.set_len(100_000)?;
        let (mut at, mut into) = (12_345, 54_321);
        let count =
            rustix::fs::copy_file_range(&from, Some(&mut at), &to, Some(&mut into), 23_456)?;
        eq((at, into), (12_345 + count as u64, 54_321 + count as u64), "positions")?;
        let mut want = vec![0; 100_000];
        want[54_321..54_321 + count].copy_from_slice(&bytes[12_345..12_345 + count]);
        same("b", &want)
    });
    r.case("copy/source-is-not-changed-by-the-copy", |t| {
        let (from, to, want) = pair(t)?;
        rustix::fs::copy_file_range(&from, None, &to, None, want.len())?;
        to.write_all_at(&[0; 100_000], 50_000)?;
        same("a", &want)
    });
    r.case("copy/within-a-file", |t| {
        let (file, _, mut want) = pair(t)?;
        let (mut at, mut into) = (0, 200_000);
        let count =
            rustix::fs::copy_file_range(&file, Some(&mut at), &file, Some(&mut into), 50_000)?;
        let part = want[..count].to_vec();
        want[200_000..200_000 + count].copy_from_slice(&part);
        same("a", &want)?;
        let (mut at, mut into) = (0, 100);
        let overlap =
            rustix::fs::copy_file_range(&file, Some(&mut at), &file, Some(&mut into), 1000);
        fails(overlap, Errno::INVAL, "overlapping ranges")
    });
    r.case("copy/past-the-end", |t| {
        let (from, to, bytes) = pair(t)?;
        let mut at = bytes.len() as u64;
        let count = rustix::fs::copy_file_range(&from, Some(&mut at), &to, None, 1000)?;
        eq(count, 0, "bytes copied from the end")?;
        let mut at = bytes.len() as u64 - 10;
        let count = rustix::fs::copy_file_range(&from, Some(&mut at), &to, None, 1000)?;
        eq(count, 10, "bytes copied from before the end")
    });
    r.case("copy/sendfile", |t| {
        let (from, to, want) = pair(t)?;
        let mut offset = 0;
        while (offset as usize) < want.len() {
            let left = want.len() - offset as usize;
            if rustix::fs::sendfile(&to, &from, Some(&mut offset), left)? == 0 {
                break;
            }
        }
        same("b", &want)
    });
}

/// FICLONE, where there is such a thing.
fn clones(r: &mut Registry) {
    r.case("copy/clone", |t| {
        let (from, to, want) = pair(t)?;
        match rustix::fs::ioctl_ficlone(&to, &from) {
            Err(Errno::OPNOTSUPP | Errno::NOTTY | Errno::NOSYS | Errno::INVAL) => {
                return Err(Stop::Skipped("no clones here".to_owned()));
            }
            done => done?,
        }
        same("b", &want)?;
        to.write_all_at(b"changed", 1000)?;
        from.write_all_at(b"otherwise", 200_000)?;
        let (mut a, mut b) = (want.clone(), want);
        b[1000..1007].copy_from_slice(b"changed");
        a[200_000..200_009].copy_from_slice(b"otherwise");
        same("a", &a)?;
        same("b", &b)
    });
}

/// Locks are the kernel's, but a filesystem can spoil them.
fn locks(r: &mut Registry) {
    r.case("lock/flock", |t| {
        let one = t.open("f", "rw,creat")?;
        let two = t.open("f", "rw")?;
        rustix::fs::flock(&one, FlockOperation::LockExclusive)?;
        let have = rustix::fs::flock(&two, FlockOperation::NonBlockingLockShared);
        fails(have, Errno::WOULDBLOCK, "a second lock")?;
        rustix::fs::flock(&one, FlockOperation::LockShared)?;
        rustix::fs::flock(&two, FlockOperation::NonBlockingLockShared)?;
        drop(one);
        Ok(rustix::fs::flock(&two, FlockOperation::NonBlockingLockExclusive)?)
    });
    r.case("lock/fcntl", |t| {
        let one = t.open("f", "rw,creat")?;
        rustix::fs::fcntl_lock(&one, FlockOperation::NonBlockingLockExclusive)?;
        // One process never stands in its own way.
        let two = t.open("f", "rw")?;
        Ok(rustix::fs::fcntl_lock(&two, FlockOperation::NonBlockingLockExclusive)?)
    });
}

/// Programs.
fn executing(r: &mut Registry) {
    r.case("exec/script", |t| {
        t.file_of("script", b"#!/bin/sh\necho one $((1 + 1))\n")?;
        t.err("exec script", Errno::ACCESS)?;
        t.ok("chmod script 755")?;
        eq(t.ok("exec script")?, "one 2".to_owned(), "output")
    });
    r.case("exec/program", |t| {
        std::fs::copy("/bin/echo", "program")?;
        t.ok("chmod program 755; exec program; rename program other; exec other").map(drop)
    });
    r.case("exec/busy", |t| {
        std::fs::copy("/bin/sleep", "program")?;
        t.ok("chmod program 755")?;
        let mut child = std::process::Command::new("./program").arg("10").spawn()?;
        let have = call::open("program", "w", 0).map(drop);
        child.kill()?;
        child.wait()?;
        fails(have, Errno::TXTBSY, "opening a running program for writing")?;
        let writer = call::open("program", "w", 0)?;
        t.err("exec program", Errno::TXTBSY)?;
        drop(writer);
        Ok(())
    });
}

/// What a filesystem says about itself and its files.
fn counts(r: &mut Registry) {
    r.case("statfs/sane", |_| {
        let have = rustix::fs::statvfs(".")?;
        holds(have.f_bsize.is_power_of_two() && have.f_bsize >= 512, "a block size")?;
        holds(have.f_blocks > 0 && have.f_bfree <= have.f_blocks, "free blocks")?;
        holds(have.f_bavail <= have.f_bfree, "available blocks")?;
        eq(have.f_namemax, 255, "longest name")
    });
    r.case("stat/blocks-follow-the-data", |t| {
        let file = t.open("f", "rw,creat")?;
        file.write_all_at(&pattern(1 << 20, 1), 0)?;
        file.sync_all()?;
        let stat = t.stat("f")?;
        holds(stat.st_blocks >= 2048 && stat.st_blocks < 2200, "blocks of a mebibyte")?;
        holds(stat.st_blksize >= 512, "preferred size of requests")
    });
    r.case("stat/blocks-stay-when-attributes-change", |t| {
        // A copy sets them while its data waits in memory; `du` must not call it empty.
        t.file_of("f", &pattern(1 << 20, 1))?;
        for line in ["chmod f 600", "utimes f 10 20", "chown f - -", "setxattr f user.a b"] {
            let before = t.stat("f")?.st_blocks;
            t.ok(line)?;
            holds(t.stat("f")?.st_blocks >= before, &format!("no fewer blocks after {line}"))?;
        }
        t.open("f", "r")?.sync_all()?;
        holds(t.stat("f")?.st_blocks >= 2048, "blocks of a mebibyte")
    });
    r.case("stat/blocks-of-data-written-again", |t| {
        let file = t.open("f", "rw,creat")?;
        for step in 0..4 {
            file.write_all_at(&pattern(1 << 20, step), 0)?;
            if step % 2 == 0 {
                file.sync_all()?;
            }
        }
        file.sync_all()?;
        let blocks = t.stat("f")?.st_blocks;
        holds((2048..2200).contains(&blocks), &format!("blocks of a mebibyte: {blocks}"))
    });
    r.case("stat/size-is-seen-by-others-at-once", |t| {
        let mut one = t.open("f", "rw,creat")?;
        let mut two = t.open("f", "r")?;
        for step in 1..50_i64 {
            one.write_all(&[7; 333])?;
            eq(t.stat("f")?.st_size, step * 333, "size")?;
            eq(rustix::fs::fstat(&two)?.st_size, step * 333, "size by the other descriptor")?;
        }
        let mut bytes = Vec::new();
        two.read_to_end(&mut bytes)?;
        eq(bytes.len(), 49 * 333, "bytes read")?;
        eq(two.seek(SeekFrom::End(0))?, 49 * 333, "end")
    });
    r.case("stat/device-is-the-same-everywhere", |t| {
        t.ok("mkdir d 755; create d/f 644; symlink x l")?;
        let want = t.stat(".")?.st_dev;
        for name in ["d", "d/f", "l"] {
            eq(t.stat(name)?.st_dev, want, name)?;
        }
        Ok(())
    });
    r.case("stat/number-stays", |t| {
        t.ok("create f 644; mkdir d 755")?;
        let want = t.stat("f")?.st_ino;
        t.ok("write f abc; chmod f 600; rename f d/g; link d/g h; unlink d/g; truncate h 0")?;
        eq(t.stat("h")?.st_ino, want, "inode number")
    });
}
