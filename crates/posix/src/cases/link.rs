//! Hard links and symbolic links.

use rustix::io::Errno;

use super::{Refusal, refusals};
use crate::call;
use crate::case::{Registry, eq, eq_mode};

const LINK: &[Refusal] = &[
    ("missing", "list .", "link a b", Errno::NOENT),
    ("on-a-file", "create a 644; create b 644", "link a b", Errno::EXIST),
    ("on-a-directory", "create a 644; mkdir b 755", "link a b", Errno::EXIST),
    ("on-a-link", "create a 644; symlink none b", "link a b", Errno::EXIST),
    ("on-itself", "create a 644", "link a a", Errno::EXIST),
    ("directory", "mkdir a 755", "link a b", Errno::PERM),
    ("dot", "list .", "link . b", Errno::PERM),
    ("followed-dangling-link", "symlink none a", "link-follow a b", Errno::NOENT),
    ("across-filesystems", "list .", "link /proc/self/status b", Errno::XDEV),
];

const SYMLINK: &[Refusal] = &[
    ("on-a-file", "create b 644", "symlink a b", Errno::EXIST),
    ("on-a-directory", "mkdir b 755", "symlink a b", Errno::EXIST),
    ("on-a-link", "symlink x b", "symlink a b", Errno::EXIST),
    ("empty-target", "list .", "symlink '' b", Errno::NOENT),
    ("readlink-of-a-file", "create b 644", "readlink b", Errno::INVAL),
    ("readlink-of-a-directory", "mkdir b 755", "readlink b", Errno::INVAL),
    ("readlink-of-a-fifo", "mknod b fifo 644", "readlink b", Errno::INVAL),
    ("readlink-of-nothing", "list .", "readlink b", Errno::NOENT),
];

/// Longest target that every Linux filesystem with 4 KiB blocks takes.
const LONG_TARGET: usize = 4000;

/// Registers the cases.
pub fn register(r: &mut Registry) {
    refusals(r, "link", LINK);
    refusals(r, "symlink", SYMLINK);
    hard(r);
    symbolic(r);
}

/// Hard links.
fn hard(r: &mut Registry) {
    r.case("link/same-inode", |t| {
        t.ok("create a 640; link a b")?;
        let (a, b) = (t.stat("a")?, t.stat("b")?);
        eq((a.st_ino, a.st_dev), (b.st_ino, b.st_dev), "inode and device")?;
        eq((a.st_nlink, b.st_nlink), (2, 2), "links")?;
        t.ok("chmod b 600; write b abc")?;
        eq_mode(t.mode("a")?, 0o600, "mode through the other name")?;
        eq(t.ok("read a")?, "abc".to_owned(), "content through the other name")
    });
    r.case("link/every-kind", |t| {
        t.ok("symlink none a; mknod b fifo 644; mknod c socket 644")?;
        for name in ["a", "b", "c"] {
            t.ok(&format!("link {name} {name}2"))?;
            eq(t.stat(name)?.st_ino, t.stat(&format!("{name}2"))?.st_ino, name)?;
            eq(t.stat(name)?.st_nlink, 2, "links")?;
        }
        Ok(())
    });
    r.case("link/link-is-not-followed", |t| {
        t.ok("create f 644; symlink f l; link l m")?;
        eq(t.ok("readlink m")?, "f".to_owned(), "target")?;
        t.ok("link-follow l n")?;
        eq(t.stat("n")?.st_ino, t.stat("f")?.st_ino, "the followed link")
    });
    r.case("link/into-another-directory", |t| {
        t.ok("mkdir d 755; mkdir e 755; create d/f 644; link d/f e/g; unlink d/f; rmdir d")?;
        eq(t.stat("e/g")?.st_nlink, 1, "links")
    });
    r.case("link/many", |t| {
        t.file("f0")?;
        for at in 1..200 {
            t.ok(&format!("link f0 f{at}"))?;
        }
        eq(t.stat("f7")?.st_nlink, 200, "links")?;
        eq(call::list(".")?.len(), 200, "names")?;
        for at in 0..199 {
            t.ok(&format!("unlink f{at}"))?;
        }
        eq(t.stat("f199")?.st_nlink, 1, "links")
    });
    r.case("link/many-with-long-names", |t| {
        let name = |at: u32| format!("{at:03}{}", "n".repeat(252));
        t.file(&name(0))?;
        for at in 1..100 {
            t.ok(&format!("link {} {}", name(0), name(at)))?;
        }
        eq(t.stat(&name(99))?.st_nlink, 100, "links")?;
        for at in 0..99 {
            t.ok(&format!("unlink {}", name(at)))?;
        }
        eq(t.stat(&name(99))?.st_nlink, 1, "links")
    });
}

/// Symbolic links.
fn symbolic(r: &mut Registry) {
    r.case("symlink/what-it-is", |t| {
        t.ok("symlink some/target l")?;
        let stat = t.stat("l")?;
        eq_mode(stat.st_mode, 0o120_777, "mode")?;
        eq((stat.st_size, stat.st_nlink), (11, 1), "size and links")?;
        eq(t.ok("readlink l")?, "some/target".to_owned(), "target")
    });
    r.case("symlink/umask-does-not-matter", |t| {
        t.umask(0o777, || t.ok("symlink x l"))?;
        eq_mode(t.mode("l")?, 0o777, "mode")
    });
    r.case("symlink/targets-of-many-lengths", |t| {
        for len in [1, 59, 60, 61, 254, 255, 256, 1023, 2048, LONG_TARGET] {
            let target = "t".repeat(len);
            t.ok(&format!("symlink {target} l"))?;
            eq(t.ok("readlink l")?, target, "target")?;
            eq(t.stat("l")?.st_size, len as i64, "size")?;
            t.ok("unlink l")?;
        }
        Ok(())
    });
    r.case("symlink/target-too-long", |t| {
        t.err(&format!("symlink {} l", "t".repeat(4096)), Errno::NAMETOOLONG)
    });
    r.case("symlink/any-target", |t| {
        for target in ["/", ".", "..", "//a//b/", "/none", "../../../x", "é"] {
            t.ok(&format!("symlink {target} l"))?;
            eq(t.ok("readlink l")?, target.to_owned(), "target")?;
            t.ok("unlink l")?;
        }
        Ok(())
    });
    r.case("symlink/is-followed", |t| {
        t.ok("mkdir d 755; create d/f 644; symlink d l; symlink l/f m")?;
        t.ok("write m abc; chmod m 600; truncate m 2")?;
        eq(t.ok("read d/f")?, "ab".to_owned(), "content")?;
        eq_mode(t.mode("d/f")?, 0o600, "mode of the target")?;
        eq_mode(t.mode("m")?, 0o777, "mode of the link")
    });
    r.case("symlink/is-relative-to-its-directory", |t| {
        t.ok("mkdir d 755; mkdir d/e 755; create d/f 644; symlink ../f d/e/l; stat d/e/l")?;
        t.ok("rename d/e/l l")?;
        t.err("stat l", Errno::NOENT)
    });
    r.case("symlink/short-buffer", |t| {
        t.ok("symlink abcdef l")?;
        let mut buffer = [std::mem::MaybeUninit::<u8>::uninit(); 3];
        let (have, _) = rustix::fs::readlinkat_raw(rustix::fs::CWD, "l", &mut buffer)?;
        eq(&*have, &b"abc"[..], "what fits")
    });
}
