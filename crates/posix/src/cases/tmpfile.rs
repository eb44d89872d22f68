//! Files made without a name: O_TMPFILE.

use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt;

use rustix::fs::{AtFlags, CWD};
use rustix::io::Errno;

use crate::call;
use crate::case::{Outcome, Registry, Stop, eq, eq_mode, fails};

/// A file without a name in the working directory.
fn nameless(flags: &str, mode: u32) -> Outcome<OwnedFd> {
    match call::open(".", &format!("tmpfile,{flags}"), mode) {
        Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::NOSYS) => {
            Err(Stop::Skipped("O_TMPFILE is not supported here".to_owned()))
        }
        file => Ok(file?),
    }
}

/// Gives it a name.
fn name(file: &OwnedFd, path: &str) -> Result<(), Errno> {
    let old = format!("/proc/self/fd/{}", file.as_raw_fd());
    rustix::fs::linkat(CWD, old, CWD, path, AtFlags::SYMLINK_FOLLOW)
}

/// Registers the cases.
pub fn register(r: &mut Registry) {
    named_later(r);
    limits(r);
}

/// Files that may get a name.
fn named_later(r: &mut Registry) {
    r.case("tmpfile/has-no-name", |t| {
        let file = std::fs::File::from(nameless("rw", 0o600)?);
        eq(t.ok("list .")?, String::new(), "names")?;
        let stat = rustix::fs::fstat(&file)?;
        eq_mode(stat.st_mode, 0o100_600, "mode")?;
        eq((stat.st_nlink, stat.st_size), (0, 0), "links and size")?;
        file.write_all_at(b"abc", 10)?;
        file.sync_all()?;
        let mut bytes = [0; 3];
        file.read_exact_at(&mut bytes, 10)?;
        eq(&bytes, b"abc", "content")
    });
    r.case("tmpfile/gets-a-name", |t| {
        let file = nameless("w", 0o644)?;
        call::write_all(&file, b"made before it was named")?;
        name(&file, "f")?;
        eq(rustix::fs::fstat(&file)?.st_nlink, 1, "links")?;
        eq(t.stat("f")?.st_ino, rustix::fs::fstat(&file)?.st_ino, "inode")?;
        eq(t.ok("read f")?, "made before it was named".to_owned(), "content")?;
        t.ok("link f g; unlink f; unlink g").map(drop)
    });
    r.case("tmpfile/gets-a-name-after-a-sync", |t| {
        let file = nameless("w", 0o644)?;
        call::write_all(&file, &[5; 20_000])?;
        rustix::fs::fsync(&file)?;
        name(&file, "f")?;
        rustix::fs::fsync(&file)?;
        drop(file);
        eq(t.stat("f")?.st_size, 20_000, "size")
    });
}

/// What is refused, and what nothing of it touches.
fn limits(r: &mut Registry) {
    r.case("tmpfile/name-must-be-free", |t| {
        let file = nameless("w", 0o644)?;
        t.file("f")?;
        fails(name(&file, "f"), Errno::EXIST, "linkat")?;
        name(&file, "g")?;
        Ok(())
    });
    r.case("tmpfile/exclusive-never-gets-a-name", |_| {
        let file = nameless("w,excl", 0o644)?;
        fails(name(&file, "f"), Errno::NOENT, "linkat")
    });
    r.case("tmpfile/umask", |t| {
        let file = t.umask(0o027, || nameless("w", 0o666))?;
        eq_mode(rustix::fs::fstat(&file)?.st_mode & 0o7777, 0o640, "mode")
    });
    r.case("tmpfile/needs-writing", |t| {
        drop(nameless("rw", 0o600)?);
        t.err("open . tmpfile,r 600", Errno::INVAL)?;
        t.file("f")?;
        t.err("open f tmpfile,w 600", Errno::NOTDIR)?;
        t.err("open none tmpfile,w 600", Errno::NOENT)
    });
    r.case("tmpfile/does-not-touch-the-directory", |t| {
        let before = t.stat(".")?;
        t.tick();
        drop(nameless("rw", 0o600)?);
        let after = t.stat(".")?;
        eq(
            (after.st_mtime, after.st_mtime_nsec),
            (before.st_mtime, before.st_mtime_nsec),
            "mtime of the directory",
        )
    });
    r.case("tmpfile/many", |_| {
        let mut files = Vec::new();
        for at in 0..50_u8 {
            let file = nameless("rw", 0o600)?;
            call::write_all(&file, &[at; 3000])?;
            files.push(file);
        }
        for (at, file) in files.iter().enumerate().step_by(5) {
            name(file, &format!("f{at}"))?;
        }
        drop(files);
        eq(call::list(".")?.len(), 10, "names")?;
        eq(std::fs::read("f45")?, vec![45; 3000], "content")
    });
    r.root("tmpfile/needs-write-permission", |t| {
        drop(nameless("rw", 0o600)?);
        t.ok("mkdir d 755")?;
        t.user().err("open d tmpfile,rw 600", Errno::ACCESS)?;
        t.ok("chmod d 777")?;
        t.user().ok("open d tmpfile,rw 600").map(drop)
    });
}
