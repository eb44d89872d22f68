//! Renaming: plain, NOREPLACE, EXCHANGE, WHITEOUT.

use rustix::io::Errno;

use super::{Refusal, refusals};
use crate::call;
use crate::case::{Registry, Stop, eq, eq_mode, holds};

const PLAIN: &[Refusal] = &[
    ("missing", "list .", "rename a b", Errno::NOENT),
    ("file-on-a-directory", "create a 644; mkdir b 755", "rename a b", Errno::ISDIR),
    ("directory-on-a-file", "mkdir a 755; create b 644", "rename a b", Errno::NOTDIR),
    ("directory-on-a-link", "mkdir a 755; mkdir c 755; symlink c b", "rename a b", Errno::NOTDIR),
    (
        "directory-on-a-full-one",
        "mkdir a 755; mkdir b 755; create b/f 644",
        "rename a b",
        Errno::NOTEMPTY,
    ),
    ("directory-into-itself", "mkdir a 755", "rename a a/b", Errno::INVAL),
    (
        "directory-deep-into-itself",
        "mkdir a 755; mkdir a/b 755; mkdir a/b/c 755",
        "rename a a/b/c/d",
        Errno::INVAL,
    ),
    ("directory-on-what-holds-it", "mkdir a 755; mkdir a/b 755", "rename a/b a", Errno::NOTEMPTY),
    ("dot", "mkdir a 755", "rename a/. b", Errno::BUSY),
    ("dot-dot", "mkdir a 755", "rename a/.. b", Errno::BUSY),
    ("onto-dot", "mkdir a 755; mkdir b 755", "rename a b/.", Errno::BUSY),
    ("file-to-a-slash", "create a 644", "rename a b/", Errno::NOTDIR),
    ("link-with-a-slash", "mkdir d 755; symlink d a", "rename a/ b", Errno::NOTDIR),
    ("across-filesystems", "create a 644", "rename a /proc/self/x", Errno::XDEV),
    ("noreplace-on-a-file", "create a 644; create b 644", "rename-noreplace a b", Errno::EXIST),
    ("noreplace-on-a-directory", "mkdir a 755; mkdir b 755", "rename-noreplace a b", Errno::EXIST),
    ("noreplace-on-a-link", "create a 644; symlink none b", "rename-noreplace a b", Errno::EXIST),
    ("noreplace-on-itself", "create a 644", "rename-noreplace a a", Errno::EXIST),
    (
        "noreplace-on-another-link-of-itself",
        "create a 644; link a b",
        "rename-noreplace a b",
        Errno::EXIST,
    ),
    ("noreplace-missing", "list .", "rename-noreplace a b", Errno::NOENT),
    ("exchange-with-nothing", "create a 644", "rename-exchange a b", Errno::NOENT),
    ("exchange-of-nothing", "create b 644", "rename-exchange a b", Errno::NOENT),
    (
        "exchange-with-what-holds-it",
        "mkdir a 755; mkdir a/b 755",
        "rename-exchange a a/b",
        Errno::INVAL,
    ),
    (
        "exchange-with-what-it-holds",
        "mkdir a 755; mkdir a/b 755; create a/b/f 644",
        "rename-exchange a/b/f a",
        Errno::INVAL,
    ),
    ("noreplace-and-exchange", "create a 644; create b 644", "rename-both a b", Errno::INVAL),
];

/// Registers the cases.
pub fn register(r: &mut Registry) {
    refusals(r, "rename", PLAIN);
    files(r);
    directories(r);
    replaced(r);
    exchange(r);
    refused_changes_nothing(r);
}

/// Files and other things that are no directories.
fn files(r: &mut Registry) {
    r.case("rename/file", |t| {
        t.ok("create a 640; write a abc")?;
        let before = t.stat("a")?;
        t.ok("rename a b")?;
        t.err("lstat a", Errno::NOENT)?;
        let after = t.stat("b")?;
        eq((after.st_ino, after.st_nlink), (before.st_ino, 1), "inode and links")?;
        eq_mode(after.st_mode, before.st_mode, "mode")?;
        eq(t.ok("read b")?, "abc".to_owned(), "content")
    });
    r.case("rename/every-kind", |t| {
        t.ok("symlink none a; mknod b fifo 644; mknod c socket 644; mkdir d 755; create e 644")?;
        for name in ["a", "b", "c", "d", "e"] {
            let before = t.stat(name)?;
            t.ok(&format!("rename {name} {name}2"))?;
            t.err(&format!("lstat {name}"), Errno::NOENT)?;
            let after = t.stat(&format!("{name}2"))?;
            eq((after.st_ino, after.st_mode), (before.st_ino, before.st_mode), name)?;
        }
        Ok(())
    });
    r.case("rename/to-itself", |t| {
        t.ok("create a 644; mkdir d 755; rename a a; rename d d; lstat a; lstat d").map(drop)
    });
    r.case("rename/to-another-link-of-itself-does-nothing", |t| {
        t.ok("create a 644; link a b; rename a b; lstat a")?;
        eq(t.stat("b")?.st_nlink, 2, "links")
    });
    r.case("rename/link-itself-is-renamed", |t| {
        t.ok("create f 644; symlink f l; rename l m; lstat f")?;
        eq(t.ok("readlink m")?, "f".to_owned(), "target")
    });
    r.case("rename/between-directories", |t| {
        t.ok("mkdir d 755; mkdir e 755; create d/f 644; rename d/f e/g")?;
        eq((t.ok("list d")?, t.ok("list e")?), (String::new(), "g".to_owned()), "names")
    });
    r.case("rename/one-of-two-links", |t| {
        t.ok("mkdir d 755; create a 644; link a b; rename a d/c")?;
        eq(t.stat("b")?.st_nlink, 2, "links")?;
        eq(t.stat("b")?.st_ino, t.stat("d/c")?.st_ino, "inode")
    });
    r.case("rename/open-file", |t| {
        use std::io::Write;
        let mut file = t.open("a", "w,creat")?;
        t.ok("mkdir d 755; rename a d/b")?;
        file.write_all(b"abc")?;
        eq(t.ok("read d/b")?, "abc".to_owned(), "content")
    });
    r.case("rename/noreplace-to-a-free-name", |t| {
        t.ok("create a 644; rename-noreplace a b; mkdir d 755; rename-noreplace d e; lstat b")?;
        t.err("lstat a", Errno::NOENT)
    });
    r.case("rename/there-and-back-many-times", |t| {
        t.ok("mkdir d 755; create a 644; write a abc")?;
        for _ in 0..50 {
            t.ok("rename a d/b; rename d/b c; rename c a")?;
        }
        eq((t.ok("read a")?, t.ok("list .")?), ("abc".to_owned(), "a d".to_owned()), "what is left")
    });
}

/// Directories.
fn directories(r: &mut Registry) {
    r.case("rename/directory-with-names", |t| {
        t.ok("mkdir a 755; create a/f 644; mkdir a/d 755; rename a b; lstat b/f")?;
        t.err("lstat a", Errno::NOENT)
    });
    r.case("rename/directory-gets-another-parent", |t| {
        t.ok("mkdir p 755; mkdir q 755; mkdir p/d 755; rename p/d q/d")?;
        eq(t.stat("q/d/..")?.st_ino, t.stat("q")?.st_ino, "..")?;
        t.ok("rmdir p; rmdir q/d; rmdir q").map(drop)
    });
    r.case("rename/directory-on-an-empty-one", |t| {
        t.ok("mkdir a 755; create a/f 644; mkdir b 755; rename a b; lstat b/f")?;
        t.err("lstat a", Errno::NOENT)
    });
    r.case("rename/directory-to-a-slash", |t| t.ok("mkdir a 755; rename a/ b/; lstat b").map(drop));
    r.case("rename/open-directory", |t| {
        t.ok("mkdir p 755; mkdir p/d 755")?;
        let dir = call::open("p/d", "r,directory", 0)?;
        t.ok("rename p/d e")?;
        rustix::fs::mkdirat(&dir, "x", rustix::fs::Mode::RWXU)?;
        t.ok("lstat e/x").map(drop)
    });
    r.case("rename/directory-up", |t| {
        t.ok("mkdir a 755; mkdir a/b 755; mkdir a/b/c 755; rename a/b/c c; rename a c/a")?;
        t.ok("lstat c/a/b").map(drop)
    });
}

/// What a rename replaces.
fn replaced(r: &mut Registry) {
    r.case("rename/replaces-a-file", |t| {
        t.ok("create a 644; write a new; create b 644; write b old")?;
        let old = t.open("b", "r")?;
        let number = t.stat("a")?.st_ino;
        t.ok("rename a b")?;
        eq(t.stat("b")?.st_ino, number, "inode")?;
        eq(t.ok("read b")?, "new".to_owned(), "content")?;
        eq(rustix::fs::fstat(&old)?.st_nlink, 0, "links of the replaced file")
    });
    r.case("rename/replaced-file-keeps-its-other-name", |t| {
        t.ok("create a 644; create b 644; write b old; link b c; rename a b")?;
        eq(t.stat("c")?.st_nlink, 1, "links")?;
        eq(t.ok("read c")?, "old".to_owned(), "content")
    });
    r.case("rename/replaced-open-file-lives-on", |t| {
        use std::io::Read;
        t.ok("create a 644; create b 644; write b old")?;
        let mut old = t.open("b", "r")?;
        t.ok("rename a b")?;
        let mut text = String::new();
        old.read_to_string(&mut text)?;
        eq(text, "old".to_owned(), "content of the replaced file")
    });
    r.case("rename/replaces-other-kinds", |t| {
        t.ok("symlink none l; mknod p fifo 644; create a 644; link a b; link a c")?;
        t.ok("rename b l; rename c p")?;
        let number = t.stat("a")?.st_ino;
        eq((t.stat("l")?.st_ino, t.stat("p")?.st_ino), (number, number), "inodes")
    });
    r.case("rename/link-replaces-a-file", |t| {
        t.ok("symlink none a; create b 644; rename a b")?;
        eq(t.ok("readlink b")?, "none".to_owned(), "target")
    });
    r.case("rename/replaced-open-directory", |t| {
        t.ok("mkdir a 755; mkdir b 755")?;
        let dir = call::open("b", "r,directory", 0)?;
        t.ok("rename a b")?;
        eq(rustix::fs::fstat(&dir)?.st_nlink, 0, "links of the replaced directory")
    });
}

/// Exchange and whiteout.
fn exchange(r: &mut Registry) {
    r.case("rename/exchange-files", |t| {
        t.ok("create a 644; write a one; create b 600; write b two; rename-exchange a b")?;
        eq((t.ok("read a")?, t.ok("read b")?), ("two".to_owned(), "one".to_owned()), "content")?;
        eq_mode(t.mode("a")?, 0o600, "mode of a")
    });
    r.case("rename/exchange-file-and-directory", |t| {
        t.ok("mkdir p 755; mkdir p/d 755; create p/d/f 644; mkdir q 755; create q/f 644")?;
        t.ok("rename-exchange p/d q/f; lstat q/f/f")?;
        holds(t.mode("p/d")? == 0o644, "p/d is the file")?;
        eq(t.stat("q/f/..")?.st_ino, t.stat("q")?.st_ino, "parent of the directory")
    });
    r.case("rename/exchange-directories-with-names", |t| {
        t.ok("mkdir a 755; create a/1 644; mkdir b 755; create b/2 644; rename-exchange a b")?;
        eq((t.ok("list a")?, t.ok("list b")?), ("2".to_owned(), "1".to_owned()), "names")
    });
    r.case("rename/exchange-with-a-link", |t| {
        t.ok("create f 644; symlink f l; rename-exchange f l")?;
        eq(t.ok("readlink f")?, "f".to_owned(), "the link")?;
        eq_mode(t.mode("l")?, 0o644, "the file")
    });
    r.case("rename/exchange-two-links-of-one-file", |t| {
        t.ok("create a 644; link a b; rename-exchange a b")?;
        eq(t.stat("a")?.st_nlink, 2, "links")
    });
    r.case("rename/exchange-with-itself", |t| {
        t.ok("create a 644; rename-exchange a a; lstat a").map(drop)
    });
    r.case("rename/exchange-keeps-link-counts", |t| {
        t.ok("create a 644; link a a2; create b 644; rename-exchange a b; unlink b")?;
        eq((t.stat("a")?.st_nlink, t.stat("a2")?.st_nlink), (1, 1), "links")
    });
    r.root("rename/whiteout", |t| {
        t.file("a")?;
        match call::run("rename-whiteout a b") {
            Err(Errno::INVAL | Errno::OPNOTSUPP) => {
                return Err(Stop::Skipped("RENAME_WHITEOUT is not supported here".to_owned()));
            }
            answer => answer?,
        };
        let stat = t.stat("a")?;
        eq_mode(stat.st_mode & 0o170_000, 0o020_000, "kind of what is left")?;
        eq(stat.st_rdev, 0, "device number of what is left")?;
        t.ok("lstat b").map(drop)
    });
}

/// A refused rename must leave both names as they were.
fn refused_changes_nothing(r: &mut Registry) {
    r.case("rename/refused-changes-nothing", |t| {
        t.ok("create a 644; write a one; create b 644; write b two; mkdir d 755; create d/f 644")?;
        t.ok("mkdir e 755")?;
        t.err("rename-noreplace a b", Errno::EXIST)?;
        t.err("rename e d", Errno::NOTEMPTY)?;
        t.err("rename a d", Errno::ISDIR)?;
        t.err("rename d d/x", Errno::INVAL)?;
        eq((t.ok("read a")?, t.ok("read b")?), ("one".to_owned(), "two".to_owned()), "content")?;
        eq(t.ok("list .")?, "a b d e".to_owned(), "names")?;
        eq(t.ok("list d")?, "f".to_owned(), "names in d")
    });
}
