//! Directories with the sticky bit: names are removed only by the owner of the file, the owner of
//! the directory, or root.

use rustix::io::Errno;

use crate::case::{Outcome, Registry, T, eq};

/// Calls that take the name `d/x` away, and what `x` is.
const CALLS: &[(&str, &str, &str)] = &[
    ("unlink", "create d/x 666", "unlink d/x"),
    ("unlink-link", "symlink none d/x", "unlink d/x"),
    ("unlink-fifo", "mknod d/x fifo 666", "unlink d/x"),
    ("rmdir", "mkdir d/x 777", "rmdir d/x"),
    ("rename-file", "create d/x 666", "rename d/x d/y"),
    ("rename-directory", "mkdir d/x 777", "rename d/x d/y"),
    ("rename-out", "create d/x 666", "rename d/x free/y"),
    ("replace", "create d/x 666", "rename free/f d/x"),
    ("exchange", "create d/x 666", "rename-exchange free/f d/x"),
];

/// Registers the cases.
pub fn register(r: &mut Registry) {
    for &(name, make, call) in CALLS {
        r.root(format!("sticky/{name}-of-another"), move |t| {
            setting(t, 0, 0, make)?;
            t.user().err(call, Errno::PERM)?;
            t.ok("chmod d 777")?;
            t.user().ok(call).map(drop)
        });
        r.root(format!("sticky/{name}-of-ones-own"), move |t| {
            setting(t, 0, t.other, make)?;
            t.user().ok(call).map(drop)
        });
        r.root(format!("sticky/{name}-in-ones-own-directory"), move |t| {
            setting(t, t.other, 0, make)?;
            t.user().ok(call).map(drop)
        });
        r.root(format!("sticky/{name}-as-root"), move |t| {
            setting(t, t.other, t.other, make)?;
            t.ok(call).map(drop)
        });
    }
    r.root("sticky/link-to-another", |t| {
        setting(t, 0, 0, "create d/x 666")?;
        t.user().ok("link d/x d/y")?;
        t.user().err("unlink d/y", Errno::PERM)?;
        eq(t.stat("d/x")?.st_nlink, 2, "links")
    });
    r.root("sticky/own-name-moved-onto-another", |t| {
        setting(t, 0, 0, "create d/x 666")?;
        t.user().ok("create d/mine 644")?;
        t.user().err("rename d/mine d/x", Errno::PERM)?;
        t.user().ok("rename d/mine d/mine2").map(drop)
    });
    r.root("sticky/strangers-see-each-other", |t| {
        setting(t, 0, 0, "list .")?;
        t.user().ok("create d/a 644")?;
        t.third().ok("open d/a r; create d/b 644")?;
        t.third().err("unlink d/a", Errno::PERM)?;
        t.user().err("unlink d/b", Errno::PERM)?;
        t.third().ok("unlink d/b").map(drop)
    });
}

/// A sticky directory `d` that all may write to, with `x` in it, and `free/f` of the other user.
fn setting(t: &T, owner_of_directory: u32, owner_of_name: u32, make: &str) -> Outcome {
    t.umask(0, || {
        t.ok("mkdir d 777; mkdir free 777; create free/f 666")?;
        t.ok(make)
    })?;
    t.ok(&format!("chmod d 1777; chown d {owner_of_directory} -; chown free/f {} -", t.other))?;
    if make.contains("d/x") {
        t.ok(&format!("lchown d/x {owner_of_name} -"))?;
    }
    Ok(())
}
