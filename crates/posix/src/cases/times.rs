//! Timestamps: which operations change which, and setting them.

use std::io::{Read, Write};

use rustix::fs::{StatVfsMountFlags, StatxFlags};
use rustix::io::Errno;

use crate::call;
use crate::case::{Outcome, Registry, Stop, T, eq, holds};

/// Rows: name, preparation, the call, the path looked at, which of `a`, `m`, `c` it must change;
/// `m` and `c` that are not named must stay.
type Row = (&'static str, &'static str, &'static str, &'static str, &'static str);

const FILES: &[Row] = &[
    ("write", "create f 644", "write f abc", "f", "mc"),
    ("append", "create f 644; write f abc", "append f abc", "f", "mc"),
    ("truncate-longer", "create f 644", "truncate f 100", "f", "mc"),
    ("truncate-shorter", "create f 644; write f abc", "truncate f 1", "f", "mc"),
    ("open-trunc", "create f 644; write f abc", "open f w,trunc", "f", "mc"),
    ("open-trunc-of-an-empty-file", "create f 644", "open f w,trunc", "f", "mc"),
    ("open-for-writing", "create f 644", "open f w", "f", ""),
    ("open-creat-of-a-file", "create f 644", "open f w,creat 644", "f", ""),
    ("read", "create f 644; write f abc", "read f", "f", ""),
    ("chmod", "create f 644", "chmod f 600", "f", "c"),
    ("chmod-to-the-same", "create f 644", "chmod f 644", "f", "c"),
    ("chown", "create f 644", "chown f SELF SELFG", "f", "c"),
    ("chmod-directory", "mkdir f 755", "chmod f 700", "f", "c"),
    ("lchown", "symlink x f", "lchown f SELF SELFG", "f", "c"),
    ("link", "create f 644", "link f g", "f", "c"),
    ("unlink-of-one-link", "create f 644; link f g", "unlink g", "f", "c"),
    ("rename", "create f 644", "rename f g", "g", "c"),
    ("rename-directory", "mkdir f 755", "rename f g", "g", "c"),
    ("rename-over-a-link", "create f 644; link f g; create h 644", "rename h g", "f", "c"),
    ("setxattr", "create f 644", "setxattr f user.x y", "f", "c"),
    ("removexattr", "create f 644; setxattr f user.x y", "removexattr f user.x", "f", "c"),
    ("getxattr", "create f 644; setxattr f user.x y", "getxattr f user.x", "f", ""),
    ("stat", "create f 644", "stat f", "f", ""),
    ("readlink", "symlink x f", "readlink f", "f", ""),
    ("fallocate", "create f 644", "fallocate f plain 0 4096", "f", "mc"),
];

const DIRECTORIES: &[Row] = &[
    ("create", "mkdir d 755", "create d/f 644", "d", "mc"),
    ("mkdir", "mkdir d 755", "mkdir d/f 755", "d", "mc"),
    ("symlink", "mkdir d 755", "symlink x d/f", "d", "mc"),
    ("mkfifo", "mkdir d 755", "mknod d/f fifo 644", "d", "mc"),
    ("link", "mkdir d 755; create f 644", "link f d/f", "d", "mc"),
    ("unlink", "mkdir d 755; create d/f 644", "unlink d/f", "d", "mc"),
    ("rmdir", "mkdir d 755; mkdir d/e 755", "rmdir d/e", "d", "mc"),
    ("rename-within", "mkdir d 755; create d/f 644", "rename d/f d/g", "d", "mc"),
    ("rename-away", "mkdir d 755; create d/f 644", "rename d/f g", "d", "mc"),
    ("rename-in", "mkdir d 755; create f 644", "rename f d/f", "d", "mc"),
    ("replace", "mkdir d 755; create d/f 644; create g 644", "rename g d/f", "d", "mc"),
    ("exchange", "mkdir d 755; create d/f 644; create g 644", "rename-exchange g d/f", "d", "mc"),
    ("write-to-a-file", "mkdir d 755; create d/f 644", "write d/f abc", "d", ""),
    ("chmod-of-a-file", "mkdir d 755; create d/f 644", "chmod d/f 600", "d", ""),
    ("failed-create", "mkdir d 755; create d/f 644", "!create d/f 644", "d", ""),
    ("failed-unlink", "mkdir d 755", "!unlink d/f", "d", ""),
    ("failed-rmdir", "mkdir d 755; mkdir d/e 755; create d/e/f 644", "!rmdir d/e", "d", ""),
    (
        "failed-rename",
        "mkdir d 755; create d/f 644; create g 644",
        "!rename-noreplace g d/f",
        "d",
        "",
    ),
    ("open-creat-of-what-is-there", "mkdir d 755; create d/f 644", "open d/f w,creat 644", "d", ""),
    ("names-one-level-down", "mkdir d 755; mkdir d/e 755", "create d/e/f 644", "d", ""),
];

/// The three times of a path, in seconds and nanoseconds.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
struct Times {
    a: (i64, i64),
    m: (i64, i64),
    c: (i64, i64),
}

/// The times of `path`.
fn times(t: &T, path: &str) -> Outcome<Times> {
    let stat = t.stat(path)?;
    let nanos = |value| i64::try_from(value).unwrap_or(-1);
    Ok(Times {
        a: (stat.st_atime, nanos(stat.st_atime_nsec)),
        m: (stat.st_mtime, nanos(stat.st_mtime_nsec)),
        c: (stat.st_ctime, nanos(stat.st_ctime_nsec)),
    })
}

/// Registers the cases.
pub fn register(r: &mut Registry) {
    rows(r, "times", FILES);
    rows(r, "times-of-a-directory", DIRECTORIES);
    new(r);
    setting(r);
    ranges(r);
    access(r);
    descriptors(r);
}

/// Registers a table.
fn rows(r: &mut Registry, area: &str, rows: &'static [Row]) {
    for &(name, prepare, call, path, changed) in rows {
        r.case(format!("{area}/{name}"), move |t| {
            t.ok(prepare)?;
            // A renamed thing is looked at under both names.
            let old = if t.stat(path).is_ok() { path } else { "f" };
            let before = times(t, old)?;
            t.tick();
            run(t, call)?;
            let after = times(t, path)?;
            for (letter, before, after) in [('m', before.m, after.m), ('c', before.c, after.c)] {
                if changed.contains(letter) {
                    holds(after > before, &format!("{letter}time of {path} moves on"))?;
                } else {
                    eq(after, before, &format!("{letter}time of {path}"))?;
                }
            }
            Ok(())
        });
    }
}

/// Makes the call of a row; `!` before it: it must fail.
fn run(t: &T, call: &str) -> Outcome {
    let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    let call = call.replace("SELFG", &gid.to_string()).replace("SELF", &uid.to_string());
    match call.strip_prefix('!') {
        Some(line) => holds(call::run(line).is_err(), &format!("{line} fails")),
        None => t.supported(&call).map(drop),
    }
}

/// Times of something new.
fn new(r: &mut Registry) {
    for (kind, make) in [
        ("file", "create d/x 644"),
        ("directory", "mkdir d/x 755"),
        ("link", "symlink y d/x"),
        ("fifo", "mknod d/x fifo 644"),
    ] {
        r.case(format!("times/new-{kind}"), move |t| {
            t.ok("mkdir d 755")?;
            let before = times(t, "d")?.m;
            t.tick();
            t.ok(make)?;
            let (new, parent) = (times(t, "d/x")?, times(t, "d")?);
            holds(new.a == new.m && new.m == new.c, "atime, mtime and ctime are the same")?;
            holds(new.m > before, "they are later than what was before")?;
            holds(parent.m >= new.m, "the directory is not older than what was made in it")
        });
    }
    r.case("times/birth", |t| {
        t.file("f")?;
        let birth = |path: &str| -> Outcome<(i64, u32)> {
            let flags = rustix::fs::AtFlags::SYMLINK_NOFOLLOW;
            let have = rustix::fs::statx(rustix::fs::CWD, path, flags, StatxFlags::BTIME)?;
            if have.stx_mask & StatxFlags::BTIME.bits() == 0 {
                return Err(Stop::Skipped("no birth time here".to_owned()));
            }
            Ok((have.stx_btime.tv_sec, have.stx_btime.tv_nsec))
        };
        let born = birth("f")?;
        t.tick();
        t.ok("write f abc; utimes f 5 5; chmod f 600; rename f g")?;
        eq(birth("g")?, born, "birth")
    });
}

/// utimensat.
fn setting(r: &mut Registry) {
    for (kind, make) in
        [("file", "create x 644"), ("directory", "mkdir x 755"), ("fifo", "mknod x fifo 644")]
    {
        r.case(format!("times/set-{kind}"), move |t| {
            t.ok(make)?;
            let before = times(t, "x")?;
            t.tick();
            t.ok("utimes x 123456789.000000001 987654321.999999999")?;
            let after = times(t, "x")?;
            eq((after.a, after.m), ((123_456_789, 1), (987_654_321, 999_999_999)), "atime, mtime")?;
            holds(after.c > before.c, "ctime moves on")
        });
    }
    r.case("times/set-link-itself", |t| {
        t.ok("create f 644; symlink f l")?;
        let before = times(t, "f")?;
        t.ok("lutimes l 11 22")?;
        let link = times(t, "l")?;
        eq((link.a.0, link.m.0), (11, 22), "times of the link")?;
        eq(times(t, "f")?, before, "times of the file")?;
        t.ok("utimes l 33 44")?;
        eq(times(t, "f")?.m.0, 44, "mtime of the file")?;
        eq(times(t, "l")?.m.0, 22, "mtime of the link")
    });
    r.case("times/set-omit", |t| {
        t.ok("create f 644; utimes f 100 200; utimes f omit 300")?;
        let one = times(t, "f")?;
        eq((one.a.0, one.m.0), (100, 300), "after setting mtime alone")?;
        t.ok("utimes f 400 omit")?;
        let two = times(t, "f")?;
        eq((two.a.0, two.m.0), (400, 300), "after setting atime alone")?;
        t.tick();
        t.ok("utimes f omit omit")?;
        eq(times(t, "f")?, two, "after setting neither")
    });
    r.case("times/set-now", |t| {
        t.ok("create f 644")?;
        let before = times(t, "f")?;
        t.ok("utimes f 100 200")?;
        t.tick();
        t.ok("utimes f now omit")?;
        let one = times(t, "f")?;
        holds(one.a > before.a, "atime is now")?;
        eq(one.m.0, 200, "mtime")?;
        t.ok("touch f")?;
        let two = times(t, "f")?;
        holds(two.m > before.m && two.c > before.c, "mtime and ctime are now")
    });
    r.case("times/set-bad-nanoseconds", |t| {
        t.file("f")?;
        t.err("utimes f 1.1000000000 1", Errno::INVAL)?;
        t.err("utimes f 1 1.1000000000", Errno::INVAL)
    });
}

/// Times that the filesystem must be able to hold.
fn ranges(r: &mut Registry) {
    for (name, seconds) in [
        ("epoch", 0_i64),
        ("before-the-epoch", -1),
        ("1901", -2_147_483_648),
        ("2038", 2_147_483_647),
        ("after-2038", 2_147_483_648),
        ("2106", 4_294_967_296),
    ] {
        r.case(format!("times/set-{name}"), move |t| {
            t.file("f")?;
            t.ok(&format!("utimes f {seconds} {seconds}"))?;
            let have = times(t, "f")?;
            eq((have.a, have.m), ((seconds, 0), (seconds, 0)), "atime and mtime")
        });
    }
}

/// Reading moves atime on, as `relatime` does: if it is not later than mtime.
fn access(r: &mut Registry) {
    for (name, prepare, call, path) in [
        ("file", "create x 644; write x abc", "read x", "x"),
        ("directory", "mkdir x 755; create x/f 644", "list x", "x"),
        ("link", "symlink . x", "readlink x", "x"),
    ] {
        r.case(format!("times/atime-of-a-read-{name}"), move |t| {
            let flags = rustix::fs::statvfs(".")?.f_flag;
            if flags.contains(StatVfsMountFlags::NOATIME) {
                return Err(Stop::Skipped("mounted with noatime".to_owned()));
            }
            t.ok(prepare)?;
            t.ok(&format!("lutimes {path} 1000 2000"))?;
            let before = times(t, path)?;
            t.ok(call)?;
            let after = times(t, path)?;
            holds(after.a > before.a, "atime moves on")?;
            eq((after.m, after.c), (before.m, before.c), "mtime and ctime")
        });
    }
    r.case("times/noatime-flag", |t| {
        t.ok("create f 644; write f abc; utimes f 1000 2000")?;
        let mut file = t.open("f", "r,noatime")?;
        file.read_to_end(&mut Vec::new())?;
        eq(times(t, "f")?.a.0, 1000, "atime")
    });
}

/// By descriptor.
fn descriptors(r: &mut Registry) {
    r.case("times/futimens", |t| {
        let file = t.open("f", "w,creat")?;
        let at = |tv_sec| rustix::fs::Timespec { tv_sec, tv_nsec: 5 };
        let times_ = rustix::fs::Timestamps { last_access: at(10), last_modification: at(20) };
        rustix::fs::futimens(&file, &times_)?;
        let have = times(t, "f")?;
        eq((have.a, have.m), ((10, 5), (20, 5)), "atime and mtime")
    });
    r.case("times/set-after-writing-stays", |t| {
        let mut file = t.open("f", "w,creat")?;
        file.write_all(&[1; 100_000])?;
        t.ok("utimes f 10 20")?;
        file.sync_all()?;
        drop(file);
        eq(times(t, "f")?.m.0, 20, "mtime after writeback")
    });
    r.case("times/fstat-sees-a-write-at-once", |t| {
        let mut file = t.open("f", "w,creat")?;
        let before = times(t, "f")?;
        t.tick();
        file.write_all(b"abc")?;
        let stat = rustix::fs::fstat(&file)?;
        holds((stat.st_mtime, stat.st_mtime_nsec as i64) > before.m, "mtime moves on")?;
        eq(stat.st_size, 3, "size")
    });
}
