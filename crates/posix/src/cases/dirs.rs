//! Making and removing directories.

use rustix::io::Errno;

use super::{Refusal, refusals};
use crate::call;
use crate::case::{Registry, eq, eq_mode};

const MKDIR: &[Refusal] = &[
    ("on-a-file", "create d 644", "mkdir d 755", Errno::EXIST),
    ("on-a-directory", "mkdir d 755", "mkdir d 755", Errno::EXIST),
    ("on-a-link", "symlink none d", "mkdir d 755", Errno::EXIST),
    ("on-a-link-to-a-directory", "mkdir e 755; symlink e d", "mkdir d 755", Errno::EXIST),
    ("on-a-fifo", "mknod d fifo 644", "mkdir d 755", Errno::EXIST),
    ("dot", "list .", "mkdir . 755", Errno::EXIST),
    ("dot-dot", "mkdir d 755", "mkdir d/.. 755", Errno::EXIST),
];

const RMDIR: &[Refusal] = &[
    ("missing", "list .", "rmdir d", Errno::NOENT),
    ("file", "create d 644", "rmdir d", Errno::NOTDIR),
    ("link", "mkdir e 755; symlink e d", "rmdir d", Errno::NOTDIR),
    ("fifo", "mknod d fifo 644", "rmdir d", Errno::NOTDIR),
    ("with-a-file", "mkdir d 755; create d/f 644", "rmdir d", Errno::NOTEMPTY),
    ("with-a-directory", "mkdir d 755; mkdir d/e 755", "rmdir d", Errno::NOTEMPTY),
    ("with-a-dangling-link", "mkdir d 755; symlink none d/l", "rmdir d", Errno::NOTEMPTY),
    ("with-a-fifo", "mkdir d 755; mknod d/p fifo 644", "rmdir d", Errno::NOTEMPTY),
    ("dot", "mkdir d 755", "rmdir d/.", Errno::INVAL),
    ("dot-dot", "mkdir d 755; mkdir d/e 755", "rmdir d/e/..", Errno::NOTEMPTY),
];

/// Registers the cases.
pub fn register(r: &mut Registry) {
    refusals(r, "mkdir", MKDIR);
    refusals(r, "rmdir", RMDIR);
    making(r);
    removing(r);
}

/// What a new directory is.
fn making(r: &mut Registry) {
    r.case("mkdir/umask", |t| {
        for (mask, mode, want) in
            [(0, 0o777, 0o777), (0o022, 0o777, 0o755), (0o077, 0o1777, 0o1700)]
        {
            t.umask(mask, || t.ok(&format!("mkdir d {mode:o}")))?;
            eq_mode(t.mode("d")?, want, &format!("mode {mode:o} under umask {mask:o}"))?;
            t.ok("rmdir d")?;
        }
        Ok(())
    });
    r.case("mkdir/kind-and-owner", |t| {
        t.ok("mkdir d 755")?;
        let stat = t.stat("d")?;
        eq_mode(stat.st_mode, 0o040_755, "mode")?;
        eq(stat.st_uid, rustix::process::geteuid().as_raw(), "owner")?;
        eq(call::list("d")?.len(), 0, "names in it")
    });
    r.case("mkdir/many", |t| {
        t.ok("mkdir d 755")?;
        for at in 0..300 {
            t.ok(&format!("mkdir d/{at} 755"))?;
        }
        eq(call::list("d")?.len(), 300, "names")?;
        for at in 0..300 {
            t.ok(&format!("rmdir d/{at}"))?;
        }
        t.ok("rmdir d").map(drop)
    });
}

/// What a removed directory leaves.
fn removing(r: &mut Registry) {
    r.case("rmdir/name-is-free-again", |t| {
        t.ok("mkdir d 755; rmdir d")?;
        t.err("lstat d", Errno::NOENT)?;
        t.ok("create d 644; unlink d; mkdir d 755").map(drop)
    });
    r.case("rmdir/after-its-names-went", |t| {
        t.ok("mkdir d 755; create d/a 644; mkdir d/b 755; symlink x d/c")?;
        t.ok("unlink d/a; rmdir d/b; unlink d/c; rmdir d").map(drop)
    });
    r.case("rmdir/while-open", |t| {
        t.ok("mkdir d 755")?;
        let dir = call::open("d", "r,directory", 0)?;
        t.ok("rmdir d")?;
        eq(rustix::fs::fstat(&dir)?.st_nlink, 0, "links of the open directory")?;
        let made = rustix::fs::mkdirat(&dir, "x", rustix::fs::Mode::RWXU);
        eq(made, Err(Errno::NOENT), "mkdir in a removed directory")?;
        let listed = rustix::fs::Dir::read_from(&dir)?
            .filter_map(Result::ok)
            .filter(|entry| !matches!(entry.file_name().to_bytes(), b"." | b".."))
            .count();
        eq(listed, 0, "names in a removed directory")
    });
    r.case("rmdir/unlink-of-a-directory", |t| {
        t.ok("mkdir d 755")?;
        t.err_of("unlink d", &[Errno::ISDIR, Errno::PERM])
    });
}
