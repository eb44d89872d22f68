//! Files through mapped pages: what one writes the others read, and the file has it in the end.

use std::fs::File;
use std::os::unix::fs::FileExt;

use rustix::io::Errno;

use super::size::{pattern, same};
use crate::case::{Outcome, Registry, T, eq, holds};
use crate::mapped::Mapped;

const PAGE: usize = 4096;

/// Registers the cases.
pub fn register(r: &mut Registry) {
    sharing(r);
    ends(r);
    changes(r);
    times(r);
}

fn at(mapped: &Mapped, offset: usize, len: usize) -> Outcome<Vec<u8>> {
    let mut buffer = vec![0; len];
    mapped.read(offset, &mut buffer)?;
    Ok(buffer)
}

/// A file of this pattern, open and mapped as a whole.
fn file(t: &T, bytes: &[u8]) -> Outcome<(File, Mapped)> {
    t.file_of("f", bytes)?;
    let file = t.open("f", "rw")?;
    let mapped = Mapped::shared(&file, bytes.len())?;
    Ok((file, mapped))
}

fn is_io_error(answer: std::io::Result<()>) -> Outcome {
    let errno = answer.err().and_then(|error| Errno::from_io_error(&error));
    eq(errno, Some(Errno::IO), "a page behind the end")
}

/// Everybody sees the same bytes.
fn sharing(r: &mut Registry) {
    r.case("mapped/what-is-mapped-is-read", |t| {
        let mut want = pattern(70_000, 1);
        let (file, mapped) = file(t, &want)?;
        for (offset, len) in [(0, 1), (4090, 12), (20_000, 30_000), (69_999, 1)] {
            let part = pattern(len, offset as u8);
            mapped.write(offset, &part)?;
            want[offset..offset + len].copy_from_slice(&part);
            let mut read = vec![0; len];
            file.read_exact_at(&mut read, offset as u64)?;
            holds(read == part, "read(2) sees the page")?;
            same("f", &want)?;
        }
        drop((mapped, file));
        same("f", &want)
    });
    r.case("mapped/what-is-written-is-mapped", |t| {
        let (file, mapped) = file(t, &pattern(30_000, 1))?;
        eq(at(&mapped, 9000, 3)?, pattern(30_000, 1)[9000..9003].to_vec(), "before")?;
        file.write_all_at(b"new", 9000)?;
        eq(at(&mapped, 9000, 3)?, b"new".to_vec(), "after")
    });
    r.case("mapped/two-mappings-are-one-file", |t| {
        let (_file, one) = file(t, &pattern(30_000, 1))?;
        let other = t.open("f", "r")?;
        let two = Mapped::read_only(&other, 30_000)?;
        one.write(12_345, b"one")?;
        eq(at(&two, 12_345, 3)?, b"one".to_vec(), "through the other mapping")
    });
    r.case("mapped/another-process-reads-it", |t| {
        let (_file, mapped) = file(t, &pattern(10_000, 1))?;
        mapped.write(5000, b"for another process")?;
        let output = std::process::Command::new("tail").args(["-c", "+5001", "f"]).output()?;
        holds(output.stdout.starts_with(b"for another process"), "another process reads it")
    });
    r.case("mapped/an-unnamed-file-stays", |t| {
        let (file, mapped) = file(t, &pattern(10_000, 1))?;
        t.ok("unlink f")?;
        mapped.write(8000, b"still")?;
        drop(file);
        eq(at(&mapped, 8000, 5)?, b"still".to_vec(), "without name and open file")
    });
    r.case("mapped/read-only-files-cannot-be-shared-for-writing", |t| {
        t.file_of("f", &pattern(10_000, 1))?;
        let refused = Mapped::shared(t.open("f", "r")?, 10_000).err();
        let errno = refused.and_then(|error| Errno::from_io_error(&error));
        eq(errno, Some(Errno::ACCESS), "PROT_WRITE, MAP_SHARED")
    });
}

/// Files that end before or behind what is mapped.
fn ends(r: &mut Registry) {
    r.case("mapped/behind-the-end-is-nothing", |t| {
        t.file_of("f", &pattern(5000, 1))?;
        let file = t.open("f", "rw")?;
        let mapped = Mapped::shared(&file, 5 * PAGE)?;
        eq(at(&mapped, 5000, 3192)?, vec![0; 3192], "the rest of the last page")?;
        is_io_error(mapped.read(2 * PAGE, &mut [0]))?;
        is_io_error(mapped.write(3 * PAGE, b"x"))?;
        file.set_len(4 * PAGE as u64)?;
        eq(at(&mapped, 2 * PAGE, 10)?, vec![0; 10], "grown")?;
        mapped.write(3 * PAGE, b"now")?;
        file.set_len(PAGE as u64)?;
        is_io_error(mapped.read(3 * PAGE, &mut [0]))?;
        file.set_len(4 * PAGE as u64)?;
        eq(at(&mapped, 3 * PAGE, 3)?, vec![0; 3], "cut and grown again")
    });
    r.case("mapped/cut-within-a-page", |t| {
        let mut want = pattern(20_000, 1);
        let (file, mapped) = file(t, &want)?;
        mapped.write(9000, &[7; 200])?;
        file.set_len(9100)?;
        eq(at(&mapped, 9099, 2)?, vec![7, 0], "around the new end")?;
        file.set_len(20_000)?;
        want[9000..9100].fill(7);
        want[9100..].fill(0);
        eq(at(&mapped, 9000, 11_000)? == want[9000..], true, "grown")?;
        mapped.sync()?;
        same("f", &want)
    });
    r.case("mapped/the-rest-of-the-last-page-is-not-the-file-s", |t| {
        let (file, mapped) = file(t, &pattern(5000, 1))?;
        drop(mapped);
        let mapped = Mapped::shared(&file, 2 * PAGE)?;
        mapped.write(5000, b"behind the end")?;
        mapped.sync()?;
        drop(mapped);
        eq(t.stat("f")?.st_size, 5000, "size")?;
        same("f", &pattern(5000, 1))
    });
}

/// Changes of the file beside the mapping.
fn changes(r: &mut Registry) {
    r.case("mapped/holes-that-are-punched", |t| {
        let mut want = pattern(40_000, 1);
        let (_file, mapped) = file(t, &want)?;
        mapped.write(10_000, &[9; 10_000])?;
        want[10_000..20_000].fill(9);
        t.supported("fallocate f punch 8192 5000")?;
        want[8192..13_192].fill(0);
        eq(at(&mapped, 0, 40_000)? == want, true, "through the mapping")?;
        mapped.write(9000, b"again")?;
        want[9000..9005].copy_from_slice(b"again");
        mapped.sync()?;
        same("f", &want)
    });
    r.case("mapped/a-copy-has-it", |t| {
        let (file, mapped) = file(t, &pattern(50_000, 1))?;
        mapped.write(8192, &[3; 8192])?;
        let target = t.open("g", "rw,creat")?;
        let mut done = 0;
        while done < 50_000 {
            let (mut from, mut to) = (done, done);
            let left = 50_000 - done as usize;
            let some =
                rustix::fs::copy_file_range(&file, Some(&mut from), &target, Some(&mut to), left)?;
            holds(some > 0, "something is copied")?;
            done += some as u64;
        }
        let mut want = pattern(50_000, 1);
        want[8192..16_384].fill(3);
        same("g", &want)
    });
    r.case("mapped/a-new-file-is-mapped-and-filled", |t| {
        let file = t.open("f", "rw,creat")?;
        file.set_len(100_000)?;
        let mapped = Mapped::shared(&file, 100_000)?;
        let want = pattern(100_000, 5);
        mapped.write(0, &want)?;
        mapped.sync()?;
        file.sync_all()?;
        same("f", &want)?;
        t.ok("rename f g")?;
        mapped.write(50_000, b"renamed")?;
        let mut want = want;
        want[50_000..50_007].copy_from_slice(b"renamed");
        same("g", &want)
    });
}

/// Times of change.
fn times(r: &mut Registry) {
    r.case("mapped/writing-moves-the-times-of-change", |t| {
        let (_file, mapped) = file(t, &pattern(20_000, 1))?;
        mapped.sync()?;
        let times =
            || t.stat("f").map(|s| (s.st_mtime, s.st_mtime_nsec, s.st_ctime, s.st_ctime_nsec));
        let before = times()?;
        t.tick();
        mapped.write(6000, b"changed")?;
        mapped.sync()?;
        let after = times()?;
        holds((after.0, after.1) > (before.0, before.1), "mtime moves")?;
        holds((after.2, after.3) > (before.2, before.3), "ctime moves")?;
        t.tick();
        at(&mapped, 0, 20_000)?;
        mapped.sync()?;
        eq(times()?, after, "reading moves neither")
    });
}
