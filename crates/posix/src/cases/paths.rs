//! Paths that cannot be resolved: every call that takes a path must say why in the same way.

use rustix::io::Errno;

use crate::case::{Registry, T, eq, holds};

/// Calls by name; `P` is the path.
const CALLS: &[(&str, &str)] = &[
    ("open", "open P r"),
    ("creat", "create P 644"),
    ("mkdir", "mkdir P 755"),
    ("rmdir", "rmdir P"),
    ("unlink", "unlink P"),
    ("link-from", "link P new"),
    ("link-to", "link file P"),
    ("symlink", "symlink target P"),
    ("readlink", "readlink P"),
    ("rename-from", "rename P new"),
    ("rename-to", "rename file P"),
    ("chmod", "chmod P 644"),
    ("chown", "chown P - -"),
    ("lchown", "lchown P - -"),
    ("truncate", "truncate P 10"),
    ("stat", "stat P"),
    ("lstat", "lstat P"),
    ("utimes", "utimes P now now"),
    ("mkfifo", "mknod P fifo 644"),
    ("access", "access P r"),
    ("list", "list P"),
    ("setxattr", "setxattr P user.x y"),
    ("getxattr", "getxattr P user.x"),
    ("exchange", "rename-exchange P file"),
];

/// Bytes of a name that is one too long.
const LONG_NAME: usize = 256;
/// Bytes of a path that is one too long, with its zero.
const LONG_PATH: usize = 4096;

/// What every case here starts from.
fn prepare(t: &T) -> crate::case::Outcome {
    t.file("file")?;
    t.ok("symlink loop loop; symlink ring2 ring1; symlink ring1 ring2").map(drop)
}

/// A path of `len` bytes that leads to `x` in the working directory.
fn path_of(len: usize) -> String {
    let mut path = "./".repeat((len - 1) / 2);
    path.push_str(if len.is_multiple_of(2) { "/x" } else { "x" });
    path
}

/// Registers the cases.
pub fn register(r: &mut Registry) {
    for &(name, call) in CALLS {
        let line = move |path: &str| call.replace('P', path);
        r.case(format!("paths/{name}-through-a-file"), move |t| {
            prepare(t)?;
            t.err(&line("file/x"), Errno::NOTDIR)
        });
        r.case(format!("paths/{name}-through-nothing"), move |t| {
            prepare(t)?;
            t.err(&line("none/x"), Errno::NOENT)
        });
        r.case(format!("paths/{name}-through-a-loop"), move |t| {
            prepare(t)?;
            t.err(&line("loop/x"), Errno::LOOP)?;
            t.err(&line("ring1/x"), Errno::LOOP)
        });
        r.case(format!("paths/{name}-long-name"), move |t| {
            prepare(t)?;
            t.err(&line(&"x".repeat(LONG_NAME)), Errno::NAMETOOLONG)
        });
        r.case(format!("paths/{name}-long-path"), move |t| {
            prepare(t)?;
            t.err(&line(&path_of(LONG_PATH)), Errno::NAMETOOLONG)
        });
        r.case(format!("paths/{name}-empty-path"), move |t| {
            prepare(t)?;
            t.err(&line("''"), Errno::NOENT)
        });
    }
    limits(r);
    resolution(r);
}

/// The longest that must work.
fn limits(r: &mut Registry) {
    r.case("paths/name-of-255-bytes", |t| {
        let name = "n".repeat(LONG_NAME - 1);
        t.ok(&format!("create {name} 644; write {name} abc"))?;
        eq(t.ok(&format!("read {name}"))?, "abc".to_owned(), "content")?;
        eq(t.ok("list .")?, name.clone(), "listing")?;
        let other = "m".repeat(LONG_NAME - 1);
        t.ok(&format!("rename {name} {other}; link {other} {name}; unlink {other}"))?;
        t.ok(&format!("unlink {name}; mkdir {name} 755; rmdir {name}")).map(drop)
    });
    r.case("paths/name-of-255-bytes-of-utf8", |t| {
        let name = "é".repeat(127) + "x";
        t.ok(&format!("create {name} 644"))?;
        eq(t.ok("list .")?, name, "listing")
    });
    r.case("paths/name-of-any-bytes", |t| {
        use std::os::unix::ffi::OsStrExt;
        let bytes: Vec<u8> = (1..=255).filter(|byte| *byte != b'/').collect();
        let name = std::ffi::OsStr::from_bytes(&bytes);
        t.file("plain")?;
        t.ok("unlink plain")?;
        std::fs::write(name, b"odd")?;
        let found = std::fs::read_dir(".")?.next().ok_or(Errno::NOENT)??;
        holds(found.file_name() == name, "the name comes back as it was given")
    });
    r.case("paths/path-of-4095-bytes", |t| {
        t.file("x")?;
        t.ok(&format!("stat {}", path_of(LONG_PATH - 1))).map(drop)
    });
    r.case("paths/deep-directories", |t| {
        let mut path = "d".to_owned();
        for _ in 0..100 {
            t.ok(&format!("mkdir {path} 755"))?;
            path.push_str("/d");
        }
        t.file(&path)?;
        t.ok(&format!("stat {path}")).map(drop)
    });
    r.case("paths/forty-links-are-followed", |t| {
        t.file("l0")?;
        for at in 0..41 {
            t.ok(&format!("symlink l{at} l{}", at + 1))?;
        }
        t.ok("stat l40")?;
        t.err("stat l41", Errno::LOOP)
    });
}

/// Dots, slashes and case.
fn resolution(r: &mut Registry) {
    r.case("paths/dots", |t| {
        t.ok("mkdir d 755; mkdir d/e 755; create d/f 644")?;
        let want = t.stat("d/f")?.st_ino;
        for path in ["d/./f", "d/e/../f", "./d//f", "d/e/../../d/f"] {
            eq(t.stat(path)?.st_ino, want, path)?;
        }
        eq(t.stat("d/.")?.st_ino, t.stat("d")?.st_ino, "d/.")?;
        eq(t.stat("d/e/..")?.st_ino, t.stat("d")?.st_ino, "d/e/..")
    });
    r.case("paths/slash-after-a-file", |t| {
        t.file("f")?;
        t.err("stat f/", Errno::NOTDIR)?;
        t.err("unlink f/", Errno::NOTDIR)?;
        t.err("rename f g/", Errno::NOTDIR)
    });
    r.case("paths/slash-after-a-directory", |t| {
        t.ok("mkdir d/ 755; stat d/; rename d/ e/; rmdir e/").map(drop)
    });
    r.case("paths/slash-after-a-link-follows-it", |t| {
        t.ok("mkdir d 755; symlink d l")?;
        eq(t.stat("l/")?.st_ino, t.stat("d")?.st_ino, "l/")?;
        t.err("rmdir l/", Errno::NOTDIR)
    });
    r.case("paths/names-differ-by-case", |t| {
        t.ok("create name 644; create NAME 644; create Name 644")?;
        eq(t.ok("list .")?, "NAME Name name".to_owned(), "listing")
    });
    r.case("paths/names-are-not-normalised", |t| {
        t.ok("create \u{e9} 644; create e\u{301} 644")?;
        eq(t.ok("list .")?.split(' ').count(), 2, "names")
    });
    r.case("paths/removed-working-directory", |t| {
        t.ok("mkdir d 755")?;
        let home = rustix::fs::open(".", rustix::fs::OFlags::PATH, rustix::fs::Mode::empty())?;
        std::env::set_current_dir("d")?;
        let gone =
            rustix::fs::openat(&home, "d", rustix::fs::OFlags::PATH, rustix::fs::Mode::empty());
        let removed = rustix::fs::unlinkat(&home, "d", rustix::fs::AtFlags::REMOVEDIR);
        let made = t.err("create x 644", Errno::NOENT);
        let listed = t.ok("list .");
        rustix::process::fchdir(&home)?;
        drop(gone);
        removed?;
        made?;
        eq(listed?, String::new(), "listing of a removed directory")
    });
}
