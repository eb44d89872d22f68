//! Permissions of files and directories, as users other than root meet them.

use rustix::io::Errno;

use crate::case::{Outcome, Registry, T, eq, eq_mode};

/// What a class of users may do with a file: `r`, `w`, `x` by its bits.
const ACCESS: &[(&str, &str, u32)] = &[
    ("open f r", "reading", 0o4),
    ("open f w", "writing", 0o2),
    ("open f rw", "both", 0o6),
    ("access f r", "access for reading", 0o4),
    ("access f w", "access for writing", 0o2),
    ("access f x", "access for executing", 0o1),
    ("truncate f 0", "truncation", 0o2),
];

/// Calls on something in the directory `d`, and the bits of `d` they need.
const IN_DIRECTORY: &[(&str, &str, u32)] = &[
    ("list", "list d", 0o4),
    ("stat", "lstat d/f", 0o1),
    ("open", "open d/f r", 0o1),
    ("readlink", "readlink d/l", 0o1),
    ("through-it", "lstat d/e/g", 0o1),
    ("create", "create d/n 644", 0o3),
    ("mkdir", "mkdir d/n 755", 0o3),
    ("symlink", "symlink x d/n", 0o3),
    ("mkfifo", "mknod d/n fifo 644", 0o3),
    ("link", "link d/f d/n", 0o3),
    ("unlink", "unlink d/f", 0o3),
    ("rmdir", "rmdir d/empty", 0o3),
    ("rename-away", "rename d/f h/f", 0o3),
    ("rename-in", "rename h/h d/h", 0o3),
    ("rename-within", "rename d/f d/n", 0o3),
    ("exchange", "rename-exchange d/f d/l", 0o3),
    ("chmod", "chmod d/f 600", 0o1),
    ("utimes", "utimes d/f now now", 0o1),
];

/// Registers the cases.
pub fn register(r: &mut Registry) {
    file_classes(r);
    directories(r);
    owner_only(r);
    times(r);
    giving_away(r);
    groups(r);
    special(r);
}

/// One class decides, even if a later one would give more.
fn file_classes(r: &mut Registry) {
    for (class, shift) in [("owner", 6), ("group", 3), ("others", 0)] {
        r.root(format!("perms/file-{class}"), move |t| {
            let id = t.other;
            let owners = match class {
                "owner" => format!("{id} 0"),
                "group" => format!("0 {id}"),
                _ => "0 0".to_owned(),
            };
            t.ok(&format!("create f 644; chown f {owners}"))?;
            for bits in 0..8_u32 {
                // The other classes have just what this one lacks.
                let mode = (0..3).fold(0, |mode, at| {
                    mode | (if at * 3 == shift { bits } else { 7 - bits }) << (at * 3)
                });
                t.ok(&format!("chmod f {mode:o}"))?;
                for (line, _, needed) in ACCESS {
                    judge(t, line, bits & needed == *needed)?;
                }
            }
            Ok(())
        });
    }
}

/// The other user makes a call that must succeed or be refused with EACCES.
fn judge(t: &T, line: &str, allowed: bool) -> Outcome {
    if allowed { t.user().ok(line).map(drop) } else { t.user().err(line, Errno::ACCESS) }
}

/// Each call on a name in a directory, under every combination of the directory's bits.
fn directories(r: &mut Registry) {
    for &(name, line, needed) in IN_DIRECTORY {
        r.root(format!("perms/directory-{name}"), move |t| {
            let id = t.other;
            for bits in 0..8_u32 {
                let user = t.user();
                t.ok(&format!("mkdir top 755; chown top {id} {id}"))?;
                user.ok("mkdir top/d 755; create top/d/f 644; symlink x top/d/l")?;
                user.ok("mkdir top/d/e 755; create top/d/e/g 644; mkdir top/d/empty 755")?;
                user.ok(&format!("mkdir top/h 755; create top/h/h 644; chmod top/d {bits}00"))?;
                let line = line.replace("d/", "top/d/").replace("h/", "top/h/");
                let line = line.replace("list d", "list top/d");
                judge(t, &line, bits & needed == needed)?;
                t.ok("chmod top/d 700")?;
                std::fs::remove_dir_all("top")?;
            }
            Ok(())
        });
    }
    r.root("perms/search-on-the-way", |t| {
        let id = t.other;
        t.ok(&format!("mkdir a 700; mkdir a/b 755; create a/b/f 666; chown a/b {id} {id}"))?;
        t.user().err("open a/b/f r", Errno::ACCESS)?;
        t.ok("chmod a 711")?;
        t.user().ok("open a/b/f r")?;
        t.user().err("list a", Errno::ACCESS)
    });
    r.root("perms/working-directory-stays-reachable", |t| {
        t.ok("mkdir d 755; create d/f 644")?;
        let user = t.user();
        user.ok("stat d/f")?;
        t.ok("chmod d 0")?;
        user.err("stat d/f", Errno::ACCESS)?;
        t.ok("chmod d 755")?;
        user.ok("stat d/f").map(drop)
    });
}

/// What only the owner (or root) may do: EPERM, whatever the bits say.
fn owner_only(r: &mut Registry) {
    for (name, line) in [
        ("chmod", "chmod f 777"),
        ("chown", "chown f ID -"),
        ("chgrp", "chown f - ID"),
        ("set-times", "utimes f 1 1"),
        ("noatime", "open f r,noatime"),
    ] {
        r.root(format!("perms/others-may-not-{name}"), move |t| {
            t.ok("create f 644; chmod f 777")?;
            t.user().err(&line.replace("ID", &t.other.to_string()), Errno::PERM)
        });
    }
    r.root("perms/owner-may-without-any-bits", |t| {
        let id = t.other;
        t.ok(&format!("create f 0; chown f {id} {id}"))?;
        t.user().ok("utimes f 1 1; chmod f 600; open f r,noatime").map(drop)
    });
    r.root("perms/root-may-without-any-bits", |t| {
        t.ok("create f 0; mkdir d 0; open f rw; create d/f 0; list d; unlink d/f")?;
        t.err("exec f", Errno::ACCESS)
    });
}

/// Setting times to now needs write permission; to anything else, ownership.
fn times(r: &mut Registry) {
    r.root("perms/times-to-now", |t| {
        t.file("f")?;
        for (mode, allowed) in [("644", false), ("646", true), ("666", true), ("602", true)] {
            t.ok(&format!("chmod f {mode}"))?;
            judge(t, "utimes f now now", allowed)?;
        }
        t.user().err("utimes f now omit", Errno::PERM)
    });
    r.root("perms/times-omitted", |t| {
        t.ok("create f 600")?;
        t.user().ok("utimes f omit omit").map(drop)
    });
}

/// Who may change owners.
fn giving_away(r: &mut Registry) {
    r.root("perms/owner-may-not-give-away", |t| {
        let id = t.other;
        t.ok(&format!("create f 644; chown f {id} {id}"))?;
        t.user().err("chown f 0 -", Errno::PERM)?;
        t.user().err("chown f - 0", Errno::PERM)?;
        t.user().ok(&format!("chown f {id} {id}")).map(drop)
    });
    r.root("perms/owner-may-give-to-own-groups", |t| {
        let (id, group) = (t.other, t.other + 7);
        t.ok(&format!("create f 644; chown f {id} {id}"))?;
        t.user_in(&[group]).ok(&format!("chown f - {group}"))?;
        eq(t.stat("f")?.st_gid, group, "group")?;
        t.user_in(&[group]).err(&format!("chown f - {}", group + 1), Errno::PERM)
    });
}

/// Supplementary groups count.
fn groups(r: &mut Registry) {
    r.root("perms/supplementary-groups", |t| {
        let group = t.other + 7;
        t.ok(&format!("create f 640; chown f 0 {group}"))?;
        t.user().err("open f r", Errno::ACCESS)?;
        let member = t.user_in(&[group + 1, group]);
        member.ok("open f r")?;
        member.err("open f w", Errno::ACCESS)
    });
    r.root("perms/group-of-a-directory", |t| {
        let group = t.other + 7;
        t.ok(&format!("mkdir d 770; chmod d 770; chown d 0 {group}"))?;
        t.user().err("create d/f 644", Errno::ACCESS)?;
        t.user_in(&[group]).ok("create d/f 644")?;
        eq(t.stat("d/f")?.st_uid, t.other, "owner")
    });
}

/// Replacing, linking, running.
fn special(r: &mut Registry) {
    r.root("perms/unlink-needs-no-right-on-the-file", |t| {
        t.ok("mkdir d 777; chmod d 777; create d/f 0")?;
        t.user().ok("unlink d/f").map(drop)
    });
    r.root("perms/moving-a-directory-needs-write-on-it", |t| {
        // Its entry `..` changes.
        t.ok("mkdir a 777; chmod a 777; mkdir b 777; chmod b 777; mkdir a/d 755")?;
        t.user().err("rename a/d b/d", Errno::ACCESS)?;
        t.user().ok("rename a/d a/e")?;
        t.ok("chmod a/e 777")?;
        t.user().ok("rename a/e b/d").map(drop)
    });
    r.root("perms/exec", |t| {
        t.file_of("script", b"#!/bin/sh\necho it runs\n")?;
        t.user().err("exec script", Errno::ACCESS)?;
        t.ok("chmod script 755")?;
        eq(t.user().ok("exec script")?, "it runs".to_owned(), "output")?;
        t.ok("chmod script 711")?;
        eq_mode(t.mode("script")?, 0o711, "mode")?;
        t.user().err("open script r", Errno::ACCESS)
    });
    r.root("perms/open-file-stays-open", |t| {
        use std::io::Read;
        t.file_of("f", b"abc")?;
        let mut file = t.open("f", "r")?;
        t.ok("chmod f 0; chown f 1 1")?;
        let mut text = String::new();
        file.read_to_string(&mut text)?;
        eq(text, "abc".to_owned(), "content")
    });
    r.root("perms/devices-are-for-root", |t| {
        let id = t.other;
        t.ok(&format!("mkdir d 755; chown d {id} {id}"))?;
        t.user().err("mknod d/c char 644 1 3", Errno::PERM)?;
        t.user().err("mknod d/b block 644 7 0", Errno::PERM)
    });
}
