//! What a new thing takes from the directory it is made in: group and set-group-ID.

use rustix::io::Errno;

use crate::case::{Registry, eq, eq_mode};

/// Registers the cases.
pub fn register(r: &mut Registry) {
    r.root("inherit/group-of-a-set-group-id-directory", |t| {
        t.ok("mkdir d 755; chown d 0 123; chmod d 2777")?;
        t.user().ok("create d/f 644; mkdir d/d 755; symlink x d/l; mknod d/p fifo 644")?;
        for name in ["f", "d", "l", "p"] {
            let stat = t.stat(&format!("d/{name}"))?;
            eq((stat.st_uid, stat.st_gid), (t.other, 123), name)?;
        }
        Ok(())
    });
    r.root("inherit/set-group-id-goes-down", |t| {
        t.ok("mkdir d 755; chown d 0 123; chmod d 2755; mkdir d/e 755; mkdir d/e/f 700; create d/g 644")?;
        eq_mode(t.mode("d/e")?, 0o2755, "mode of a directory in it")?;
        eq_mode(t.mode("d/e/f")?, 0o2700, "mode of one below")?;
        eq(t.stat("d/e/f")?.st_gid, 123, "group of it")?;
        eq_mode(t.mode("d/g")?, 0o644, "a file does not inherit the bit")
    });
    r.root("inherit/set-user-id-and-sticky-do-not", |t| {
        t.ok("mkdir d 755; chown d 7 8; chmod d 5777; mkdir d/e 755; create d/f 644")?;
        eq_mode(t.mode("d/e")?, 0o755, "mode")?;
        let stat = t.stat("d/e")?;
        eq((stat.st_uid, stat.st_gid), (0, 0), "owners")
    });
    r.root("inherit/moved-in-keeps-its-group", |t| {
        t.ok("mkdir d 755; chown d 0 123; chmod d 2755; create f 644; rename f d/f")?;
        eq(t.stat("d/f")?.st_gid, 0, "group")
    });
    r.root("inherit/set-group-id-file-of-a-foreign-group", |t| {
        // Whoever is not in the group gets no set-group-ID program of it.
        t.ok("mkdir d 755; chown d 0 123; chmod d 2777")?;
        t.user().ok("create d/f 2755")?;
        eq_mode(t.mode("d/f")?, 0o755, "mode made by a stranger")?;
        t.user_in(&[123]).ok("create d/g 2755")?;
        eq_mode(t.mode("d/g")?, 0o2755, "mode made by a member")
    });
    r.root("inherit/nothing-special-otherwise", |t| {
        t.ok("mkdir d 755; chown d 0 123; chmod d 777")?;
        t.user().ok("create d/f 644; mkdir d/e 755")?;
        eq(t.stat("d/f")?.st_gid, t.other, "group of a file")?;
        eq(t.stat("d/e")?.st_gid, t.other, "group of a directory")
    });
    r.root("inherit/refused-leaves-nothing", |t| {
        t.ok("mkdir d 755; chmod d 2755")?;
        t.user().err("create d/f 644", Errno::ACCESS)?;
        t.user().err("mkdir d/e 755", Errno::ACCESS)?;
        eq(t.ok("list d")?, String::new(), "names")
    });
    r.case("inherit/umask-of-every-maker", |t| {
        t.umask(0o117, || {
            t.ok(
                "create f 777; mkdir d 777; mknod p fifo 777; mknod s socket 777; mknod r file 777",
            )
        })?;
        for name in ["f", "d", "p", "s", "r"] {
            eq_mode(t.mode(name)?, 0o660, name)?;
        }
        Ok(())
    });
}
