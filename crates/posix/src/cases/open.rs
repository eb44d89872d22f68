//! Opening and creating.

use std::io::{Read, Seek, SeekFrom, Write};

use rustix::fs::OFlags;
use rustix::io::Errno;

use super::{Refusal, refusals};
use crate::call;
use crate::case::{Registry, eq, eq_mode, fails, holds};

const REFUSALS: &[Refusal] = &[
    ("missing", "list .", "open f r", Errno::NOENT),
    ("excl-on-a-file", "create f 644", "open f w,creat,excl 644", Errno::EXIST),
    ("excl-on-a-directory", "mkdir f 755", "open f w,creat,excl 644", Errno::EXIST),
    ("excl-on-a-link", "symlink none f", "open f w,creat,excl 644", Errno::EXIST),
    (
        "excl-on-a-link-to-a-file",
        "create g 644; symlink g f",
        "open f w,creat,excl 644",
        Errno::EXIST,
    ),
    ("excl-on-a-fifo", "mknod f fifo 644", "open f w,creat,excl 644", Errno::EXIST),
    ("directory-for-writing", "mkdir d 755", "open d w", Errno::ISDIR),
    ("directory-for-both", "mkdir d 755", "open d rw", Errno::ISDIR),
    ("directory-truncated", "mkdir d 755", "open d r,trunc", Errno::ISDIR),
    ("directory-with-creat", "mkdir d 755", "open d r,creat 644", Errno::ISDIR),
    ("directory-flag-on-a-file", "create f 644", "open f r,directory", Errno::NOTDIR),
    (
        "directory-flag-on-a-link",
        "mkdir d 755; symlink d l",
        "open l r,directory,nofollow",
        Errno::NOTDIR,
    ),
    ("nofollow-on-a-link", "create f 644; symlink f l", "open l r,nofollow", Errno::LOOP),
    ("dangling-link", "symlink none l", "open l r", Errno::NOENT),
    ("link-to-itself", "symlink l l", "open l r", Errno::LOOP),
    ("creat-through-a-link-to-nowhere", "symlink none/x l", "open l w,creat 644", Errno::NOENT),
    ("creat-with-a-slash", "list .", "open f/ w,creat 644", Errno::ISDIR),
    ("fifo-for-writing-without-a-reader", "mknod f fifo 644", "open f w,nonblock", Errno::NXIO),
];

/// Registers the cases.
pub fn register(r: &mut Registry) {
    refusals(r, "open", REFUSALS);
    creation(r);
    flags(r);
    directions(r);
}

/// What a new file is.
fn creation(r: &mut Registry) {
    r.case("open/new-file", |t| {
        t.umask(0o022, || t.ok("open f w,creat 666"))?;
        let stat = t.stat("f")?;
        eq_mode(stat.st_mode, 0o100_644, "mode")?;
        eq((stat.st_size, stat.st_nlink, stat.st_blocks), (0, 1, 0), "size, links, blocks")?;
        eq(stat.st_uid, rustix::process::geteuid().as_raw(), "owner")?;
        eq(stat.st_gid, rustix::process::getegid().as_raw(), "group")
    });
    r.case("open/umask", |t| {
        for (mask, mode, want) in
            [(0, 0o777, 0o777), (0o027, 0o666, 0o640), (0o777, 0o777, 0), (0o070, 0o7777, 0o7707)]
        {
            t.umask(mask, || t.ok(&format!("create f {mode:o}")))?;
            eq_mode(t.mode("f")?, want, &format!("mode {mode:o} under umask {mask:o}"))?;
            t.ok("unlink f")?;
        }
        Ok(())
    });
    r.case("open/new-file-may-refuse-its-maker-later", |t| {
        let mut file = std::fs::File::from(call::open("f", "rw,creat,excl", 0)?);
        file.write_all(b"through the first descriptor")?;
        eq_mode(t.mode("f")?, 0, "mode")
    });
    r.case("open/creat-opens-what-is-there", |t| {
        t.ok("create f 600; write f abc; open f rw,creat 644")?;
        eq_mode(t.mode("f")?, 0o600, "mode")?;
        eq(t.ok("read f")?, "abc".to_owned(), "content")
    });
    r.case("open/creat-through-a-dangling-link", |t| {
        t.ok("mkdir d 755; symlink d/f l; open l w,creat 644; lstat d/f")?;
        eq(t.ok("readlink l")?, "d/f".to_owned(), "link")
    });
    r.case("open/numbers-differ", |t| {
        t.ok("create a 644; create b 644; mkdir c 755; symlink a d; mknod e fifo 644")?;
        let mut numbers = Vec::new();
        for name in ["a", "b", "c", "d", "e", "."] {
            numbers.push(t.stat(name)?.st_ino);
        }
        numbers.sort_unstable();
        numbers.dedup();
        eq(numbers.len(), 6, "different inode numbers")
    });
}

/// Flags that change what opening or writing does.
fn flags(r: &mut Registry) {
    r.case("open/trunc", |t| {
        t.ok("create f 644; write f abcdef; open f w,trunc")?;
        eq(t.stat("f")?.st_size, 0, "size")?;
        eq(t.ok("read f")?, String::new(), "content")
    });
    r.case("open/trunc-while-open", |t| {
        t.file_of("f", b"0123456789")?;
        let mut file = t.open("f", "rw")?;
        file.seek(SeekFrom::Start(5))?;
        t.ok("open f w,trunc")?;
        eq(file.read(&mut [0; 10])?, 0, "bytes read past the new end")?;
        file.write_all(b"x")?;
        eq(t.stat("f")?.st_size, 6, "size after writing at the old position")
    });
    r.case("open/append", |t| {
        t.file_of("f", b"one")?;
        let mut first = t.open("f", "w,append")?;
        let mut second = t.open("f", "w,append")?;
        first.write_all(b"two")?;
        second.write_all(b"three")?;
        first.seek(SeekFrom::Start(0))?;
        first.write_all(b"four")?;
        eq(t.ok("read f")?, "onetwothreefour".to_owned(), "content")
    });
    r.case("open/append-survives-truncation", |t| {
        t.file_of("f", b"0123456789")?;
        let mut file = t.open("f", "w,append")?;
        file.write_all(b"ab")?;
        t.ok("truncate f 2")?;
        file.write_all(b"cd")?;
        eq(t.ok("read f")?, "01cd".to_owned(), "content")
    });
    r.case("open/path-flag", |t| {
        t.ok("create f 0; symlink f l")?;
        let file = call::open("f", "path", 0)?;
        fails(rustix::io::read(&file, &mut [0; 4]), Errno::BADF, "read")?;
        let link = call::open("l", "path,nofollow", 0)?;
        let mode = rustix::fs::fstat(&link)?.st_mode;
        eq_mode(mode & 0o170_000, 0o120_000, "kind of the link itself")
    });
    r.case("open/sync", |t| {
        let mut file = t.open("f", "w,creat,sync")?;
        file.write_all(&[7; 10_000])?;
        file.sync_all()?;
        file.sync_data()?;
        eq(t.stat("f")?.st_size, 10_000, "size")
    });
    r.case("open/directory-can-be-synced", |t| {
        t.ok("mkdir d 755; create d/f 644")?;
        let dir = call::open("d", "r,directory", 0)?;
        rustix::fs::fsync(&dir)?;
        Ok(rustix::fs::syncfs(&dir)?)
    });
}

/// What a descriptor may do.
fn directions(r: &mut Registry) {
    r.case("open/read-only", |t| {
        t.file_of("f", b"abc")?;
        let file = call::open("f", "r", 0)?;
        fails(rustix::io::write(&file, b"x"), Errno::BADF, "write")?;
        fails(rustix::fs::ftruncate(&file, 0), Errno::INVAL, "ftruncate")
    });
    r.case("open/write-only", |t| {
        t.file_of("f", b"abc")?;
        let file = call::open("f", "w", 0)?;
        fails(rustix::io::read(&file, &mut [0; 4]), Errno::BADF, "read")
    });
    r.case("open/directory-is-not-read", |t| {
        t.ok("mkdir d 755")?;
        let dir = call::open("d", "r", 0)?;
        fails(rustix::io::read(&dir, &mut [0; 4]), Errno::ISDIR, "read")
    });
    r.case("open/two-descriptors-two-positions", |t| {
        t.file_of("f", b"abcdef")?;
        let (mut one, mut two) = (t.open("f", "r")?, t.open("f", "r")?);
        let mut bytes = [0; 3];
        one.read_exact(&mut bytes)?;
        two.read_exact(&mut bytes[..1])?;
        one.read_exact(&mut bytes)?;
        eq(&bytes, b"def", "second half")
    });
    r.case("open/duplicate-shares-the-position", |t| {
        t.file_of("f", b"abcdef")?;
        let mut one = t.open("f", "r")?;
        let mut two = one.try_clone()?;
        let mut bytes = [0; 3];
        one.read_exact(&mut bytes)?;
        two.read_exact(&mut bytes)?;
        eq(&bytes, b"def", "second half")
    });
    r.case("open/flags-come-back", |t| {
        let file = t.open("f", "rw,creat,append")?;
        let flags = rustix::fs::fcntl_getfl(&file)?;
        holds(flags.contains(OFlags::APPEND | OFlags::RDWR), "O_APPEND and O_RDWR")?;
        rustix::fs::fcntl_setfl(&file, flags - OFlags::APPEND)?;
        holds(!rustix::fs::fcntl_getfl(&file)?.contains(OFlags::APPEND), "O_APPEND is off")
    });
}
