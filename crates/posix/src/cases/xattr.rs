//! Extended attributes.

use rustix::io::Errno;

use super::{Refusal, refusals};
use crate::case::{Registry, eq, fails};

const REFUSALS: &[Refusal] = &[
    ("get-missing", "create f 644", "getxattr f user.none", Errno::NODATA),
    ("remove-missing", "create f 644", "removexattr f user.none", Errno::NODATA),
    (
        "create-existing",
        "create f 644; setxattr f user.a x",
        "setxattr f user.a y create",
        Errno::EXIST,
    ),
    ("replace-missing", "create f 644", "setxattr f user.a y replace", Errno::NODATA),
    ("unknown-namespace", "create f 644", "setxattr f other.a y", Errno::OPNOTSUPP),
    ("no-namespace", "create f 644", "setxattr f name y", Errno::OPNOTSUPP),
    ("empty-name", "create f 644", "setxattr f '' y", Errno::RANGE),
    ("user-on-a-link", "symlink x f", "setxattr f user.a y", Errno::PERM),
    ("user-on-a-fifo", "mknod f fifo 644", "setxattr f user.a y", Errno::PERM),
];

/// Registers the cases.
pub fn register(r: &mut Registry) {
    refusals(r, "xattr", REFUSALS);
    values(r);
    names(r);
    lives(r);
    namespaces(r);
}

/// Values.
fn values(r: &mut Registry) {
    for (kind, make) in [("file", "create x 644"), ("directory", "mkdir x 755")] {
        r.case(format!("xattr/set-and-get-{kind}"), move |t| {
            t.ok(make)?;
            t.ok("setxattr x user.a one; setxattr x user.b two; setxattr x user.a three")?;
            eq(t.ok("getxattr x user.a")?, "three".to_owned(), "user.a")?;
            eq(t.ok("getxattr x user.b")?, "two".to_owned(), "user.b")?;
            t.ok("removexattr x user.a")?;
            t.err("getxattr x user.a", Errno::NODATA)?;
            eq(t.ok("getxattr x user.b")?, "two".to_owned(), "user.b")
        });
    }
    r.case("xattr/sizes", |t| {
        t.file("f")?;
        for len in [1, 2, 100, 255, 256, 1000, 2000, 3000] {
            let value = "v".repeat(len);
            t.ok(&format!("setxattr f user.a {value}"))?;
            eq(t.ok("getxattr f user.a")?, value, "value")?;
        }
        Ok(())
    });
    r.case("xattr/empty-value", |t| {
        t.ok("create f 644; setxattr f user.a ''")?;
        eq(t.ok("getxattr f user.a")?, String::new(), "value")?;
        eq(t.ok("listxattr f")?.contains("user.a"), true, "it is listed")
    });
    r.case("xattr/any-bytes", |t| {
        t.file("f")?;
        let value: Vec<u8> = (0..=255).collect();
        rustix::fs::setxattr("f", "user.a", &value, rustix::fs::XattrFlags::empty())?;
        let mut have = [0; 300];
        let len = rustix::fs::getxattr("f", "user.a", &mut have[..])?;
        eq(&have[..len], &value[..], "value")
    });
    r.case("xattr/buffers", |t| {
        t.ok("create f 644; setxattr f user.a 0123456789")?;
        eq(rustix::fs::getxattr_query("f", "user.a")?, 10, "length asked for")?;
        let short = rustix::fs::getxattr("f", "user.a", &mut [0_u8; 5][..]);
        fails(short, Errno::RANGE, "short buffer")?;
        let want = rustix::fs::listxattr_query("f")?;
        eq(rustix::fs::listxattr("f", &mut [0_u8; 1000][..])?, want, "length of the list")?;
        fails(rustix::fs::listxattr("f", &mut [0_u8; 3][..]), Errno::RANGE, "short list buffer")
    });
    r.case("xattr/too-large", |t| {
        t.file("f")?;
        let flags = rustix::fs::XattrFlags::empty();
        let have = rustix::fs::setxattr("f", "user.a", &vec![1; 65_537], flags);
        fails(have, Errno::TOOBIG, "value over 64 KiB")?;
        // Each filesystem has a limit of its own below that.
        let have = rustix::fs::setxattr("f", "user.a", &vec![1; 60_000], flags);
        if have.is_ok() {
            return Ok(());
        }
        eq(have.is_err_and(|e| matches!(e, Errno::NOSPC | Errno::TOOBIG)), true, "kind of error")?;
        t.err("getxattr f user.a", Errno::NODATA)
    });
    r.case("xattr/refused-flags-change-nothing", |t| {
        t.ok("create f 644; setxattr f user.a x create; setxattr f user.a y replace")?;
        t.err("setxattr f user.a z create", Errno::EXIST)?;
        eq(t.ok("getxattr f user.a")?, "y".to_owned(), "value")
    });
}

/// Names and lists.
fn names(r: &mut Registry) {
    r.case("xattr/list", |t| {
        t.ok("create f 644; setxattr f user.b 1; setxattr f user.a 2; setxattr f user.c 3")?;
        t.ok("removexattr f user.b")?;
        let names = t.ok("listxattr f")?;
        let user: Vec<_> = names.split(' ').filter(|name| name.starts_with("user.")).collect();
        eq(user, vec!["user.a", "user.c"], "names")
    });
    r.case("xattr/long-names", |t| {
        t.file("f")?;
        let name = format!("user.{}", "n".repeat(250));
        t.ok(&format!("setxattr f {name} v"))?;
        eq(t.ok(&format!("getxattr f {name}"))?, "v".to_owned(), "value")?;
        t.err(&format!("setxattr f {name}n v"), Errno::RANGE)
    });
    r.case("xattr/many", |t| {
        t.file("f")?;
        for at in 0..40 {
            t.ok(&format!("setxattr f user.number{at} value{at}"))?;
        }
        for at in (0..40).step_by(2) {
            t.ok(&format!("removexattr f user.number{at}"))?;
        }
        for at in (1..40).step_by(2) {
            let have = t.ok(&format!("getxattr f user.number{at}"))?;
            eq(have, format!("value{at}"), "value")?;
        }
        let names = t.ok("listxattr f")?;
        eq(names.split(' ').filter(|name| name.starts_with("user.")).count(), 20, "names")
    });
    r.case("xattr/names-differ-by-case", |t| {
        t.ok("create f 644; setxattr f user.a 1; setxattr f user.A 2")?;
        eq(t.ok("getxattr f user.a")?, "1".to_owned(), "user.a")
    });
}

/// What attributes go with.
fn lives(r: &mut Registry) {
    r.case("xattr/stay-with-the-inode", |t| {
        t.ok("create f 644; setxattr f user.a v; rename f g; link g h; unlink g; write h x")?;
        eq(t.ok("getxattr h user.a")?, "v".to_owned(), "value")
    });
    r.case("xattr/not-inherited", |t| {
        t.ok("mkdir d 755; setxattr d user.a v; create d/f 644")?;
        t.err("getxattr d/f user.a", Errno::NODATA)
    });
    r.case("xattr/new-file-of-an-old-name-has-none", |t| {
        t.ok("create f 644; setxattr f user.a v; unlink f; create f 644")?;
        t.err("getxattr f user.a", Errno::NODATA)
    });
    r.case("xattr/by-descriptor", |t| {
        let file = t.open("f", "rw,creat")?;
        rustix::fs::fsetxattr(&file, "user.a", b"v", rustix::fs::XattrFlags::empty())?;
        eq(t.ok("getxattr f user.a")?, "v".to_owned(), "value")?;
        rustix::fs::fremovexattr(&file, "user.a")?;
        t.err("getxattr f user.a", Errno::NODATA)
    });
}

/// Who may use which namespace.
fn namespaces(r: &mut Registry) {
    r.root("xattr/trusted", |t| {
        t.ok("create f 666; chmod f 666; setxattr f trusted.a v")?;
        eq(t.ok("getxattr f trusted.a")?, "v".to_owned(), "value")?;
        t.user().err("getxattr f trusted.a", Errno::NODATA)?;
        t.user().err("setxattr f trusted.a x", Errno::PERM)
    });
    r.root("xattr/security", |t| {
        t.ok("create f 644; chmod f 666; setxattr f security.suite v")?;
        eq(t.user().ok("getxattr f security.suite")?, "v".to_owned(), "value")?;
        t.user().err("setxattr f security.suite x", Errno::PERM)
    });
    r.root("xattr/user-needs-permission", |t| {
        t.ok("create f 644; setxattr f user.a v")?;
        t.user().ok("getxattr f user.a")?;
        t.user().err("setxattr f user.a x", Errno::ACCESS)?;
        t.user().err("removexattr f user.a", Errno::ACCESS)?;
        t.ok("chmod f 602")?;
        t.user().err("getxattr f user.a", Errno::ACCESS)?;
        t.user().ok("setxattr f user.a x").map(drop)
    });
    r.root("xattr/user-on-a-sticky-directory", |t| {
        t.ok("mkdir d 777; chmod d 1777")?;
        t.user().err("setxattr d user.a x", Errno::PERM)
    });
    r.root("xattr/trusted-on-a-link", |t| {
        t.ok("symlink none l; setxattr l trusted.a v")?;
        eq(t.ok("getxattr l trusted.a")?, "v".to_owned(), "value")
    });
}
