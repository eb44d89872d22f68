//! Mode bits and owners, as the owner and as root.

use rustix::fs::{Gid, Mode, Uid};
use rustix::io::Errno;

use super::{Refusal, refusals};
use crate::call;
use crate::case::{Registry, eq, eq_mode};

const REFUSALS: &[Refusal] = &[
    ("chmod-missing", "list .", "chmod f 644", Errno::NOENT),
    ("chmod-dangling-link", "symlink none l", "chmod l 644", Errno::NOENT),
    ("chown-missing", "list .", "chown f - -", Errno::NOENT),
    ("chown-dangling-link", "symlink none l", "chown l - -", Errno::NOENT),
];

/// Registers the cases.
pub fn register(r: &mut Registry) {
    refusals(r, "mode", REFUSALS);
    chmod(r);
    owners(r);
    set_id(r);
}

/// Permission bits.
fn chmod(r: &mut Registry) {
    for (kind, make) in
        [("file", "create x 644"), ("directory", "mkdir x 755"), ("fifo", "mknod x fifo 644")]
    {
        r.case(format!("mode/chmod-{kind}"), move |t| {
            t.ok(make)?;
            let kind = t.stat("x")?.st_mode & 0o170_000;
            for mode in [0o000, 0o111, 0o222, 0o444, 0o755, 0o1777, 0o2755, 0o4755, 0o7777, 0o600] {
                t.ok(&format!("chmod x {mode:o}"))?;
                eq_mode(t.stat("x")?.st_mode, kind | mode, "mode")?;
            }
            t.ok("chmod x 700").map(drop)
        });
    }
    r.case("mode/chmod-follows-links", |t| {
        t.ok("create f 644; symlink f l; chmod l 600")?;
        eq_mode(t.mode("f")?, 0o600, "mode of the file")?;
        eq_mode(t.mode("l")?, 0o777, "mode of the link")
    });
    r.case("mode/fchmod", |t| {
        t.file("f")?;
        let file = call::open("f", "r", 0)?;
        rustix::fs::fchmod(&file, Mode::from_raw_mode(0o4710))?;
        eq_mode(t.mode("f")?, 0o4710, "mode")?;
        eq_mode(rustix::fs::fstat(&file)?.st_mode, 0o104_710, "mode by the descriptor")
    });
    r.case("mode/chmod-ignores-the-umask", |t| {
        t.file("f")?;
        t.umask(0o777, || t.ok("chmod f 666"))?;
        eq_mode(t.mode("f")?, 0o666, "mode")
    });
    r.case("mode/chown-of-nothing-keeps-owners", |t| {
        t.file("f")?;
        let before = t.stat("f")?;
        t.ok("chown f - -; lchown f - -")?;
        let after = t.stat("f")?;
        eq((after.st_uid, after.st_gid), (before.st_uid, before.st_gid), "owners")
    });
    r.case("mode/chown-to-oneself", |t| {
        t.file("f")?;
        let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        t.ok(&format!("chown f {uid} {gid}; chown f {uid} -; chown f - {gid}")).map(drop)
    });
}

/// Owners, which root gives away.
fn owners(r: &mut Registry) {
    for (kind, make) in [
        ("file", "create x 644"),
        ("directory", "mkdir x 755"),
        ("fifo", "mknod x fifo 644"),
        ("link", "symlink none x"),
    ] {
        r.root(format!("mode/chown-{kind}"), move |t| {
            t.ok(make)?;
            for (uid, gid, want) in [
                ("1", "2", (1, 2)),
                ("3", "-", (3, 2)),
                ("-", "4", (3, 4)),
                ("4294967294", "4294967294", (u32::MAX - 1, u32::MAX - 1)),
                ("0", "0", (0, 0)),
            ] {
                t.ok(&format!("lchown x {uid} {gid}"))?;
                let stat = t.stat("x")?;
                eq((stat.st_uid, stat.st_gid), want, "owners")?;
            }
            Ok(())
        });
    }
    r.root("mode/chown-follows-links", |t| {
        t.ok("create f 644; symlink f l; chown l 1 2; lchown l 3 4")?;
        let (file, link) = (t.stat("f")?, t.stat("l")?);
        eq((file.st_uid, file.st_gid), (1, 2), "owners of the file")?;
        eq((link.st_uid, link.st_gid), (3, 4), "owners of the link")
    });
    r.root("mode/fchown", |t| {
        t.file("f")?;
        let file = call::open("f", "r", 0)?;
        rustix::fs::fchown(&file, Some(Uid::from_raw(7)), Some(Gid::from_raw(8)))?;
        let stat = t.stat("f")?;
        eq((stat.st_uid, stat.st_gid), (7, 8), "owners")
    });
    r.root("mode/new-files-belong-to-their-maker", |t| {
        t.ok("mkdir d 777; chmod d 777")?;
        let user = t.user();
        user.ok("create d/f 644; mkdir d/d 755; symlink x d/l; mknod d/p fifo 644")?;
        for name in ["f", "d", "l", "p"] {
            let stat = t.stat(&format!("d/{name}"))?;
            eq((stat.st_uid, stat.st_gid), (t.other, t.other), name)?;
        }
        Ok(())
    });
}

/// Set-user-ID and set-group-ID, which some calls clear.
fn set_id(r: &mut Registry) {
    r.root("mode/chown-by-the-owner-clears-set-id", |t| {
        t.file("f")?;
        let (id, group) = (t.other, t.other + 1);
        for mode in [0o6755, 0o4755, 0o2755] {
            t.ok(&format!("chown f {id} {id}; chmod f {mode:o}"))?;
            t.user_in(&[group]).ok(&format!("chown f - {group}"))?;
            eq_mode(t.mode("f")?, 0o755, &format!("mode after the change of the group, {mode:o}"))?;
        }
        Ok(())
    });
    r.root("mode/chown-of-a-directory-keeps-set-id", |t| {
        t.ok("mkdir d 755; chmod d 6755; chown d 1 2")?;
        eq_mode(t.mode("d")?, 0o6755, "mode")
    });
    r.root("mode/write-by-another-clears-set-id", |t| {
        t.ok("create f 666; chmod f 6777")?;
        t.user().ok("write f abc")?;
        eq_mode(t.mode("f")?, 0o777, "mode")
    });
    r.root("mode/truncate-by-another-clears-set-id", |t| {
        t.ok("create f 666; write f abc; chmod f 6777")?;
        t.user().ok("truncate f 1")?;
        eq_mode(t.mode("f")?, 0o777, "mode")
    });
    r.root("mode/write-by-root-keeps-set-id", |t| {
        t.ok("create f 644; chmod f 6755; write f abc; append f def")?;
        eq_mode(t.mode("f")?, 0o6755, "mode")
    });
    r.root("mode/chmod-outside-the-group-clears-set-group-id", |t| {
        let id = t.other;
        t.ok(&format!("create f 644; chown f {id} 0"))?;
        t.user().ok("chmod f 2755")?;
        eq_mode(t.mode("f")?, 0o755, "mode")?;
        t.ok(&format!("chown f {id} {id}"))?;
        t.user().ok("chmod f 2755")?;
        eq_mode(t.mode("f")?, 0o2755, "mode of a file of the own group")
    });
    r.root("mode/link-and-rename-keep-set-id", |t| {
        t.ok("create f 644; chmod f 6755; link f g; rename f h")?;
        eq_mode(t.mode("g")?, 0o6755, "mode")
    });
}
