//! Access control lists, by `setfacl` and `getfacl`.

use std::process::Command;

use rustix::io::Errno;

use crate::case::{Outcome, Registry, Stop, T, eq, eq_mode};

/// Registers the cases.
pub fn register(r: &mut Registry) {
    lists(r);
    modes(r);
    inheritance(r);
    access(r);
}

/// Runs `setfacl`; skips the case where there are no ACLs.
#[track_caller]
fn set(arguments: &str) -> Outcome {
    let output = match Command::new("setfacl").args(arguments.split(' ')).output() {
        Ok(output) => output,
        Err(error) => return Err(Stop::Skipped(format!("no setfacl: {error}"))),
    };
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    if said.contains("not supported") {
        return Err(Stop::Skipped(said));
    }
    Err(Stop::Failed(format!("setfacl {arguments}: {said}")))
}

/// The list of a path in one line.
fn get(path: &str) -> Outcome<String> {
    let output = Command::new("getfacl").args(["-cnpE", path]).output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    Ok(text.lines().filter(|line| !line.is_empty()).collect::<Vec<_>>().join(","))
}

/// Lists come back as they were set.
fn lists(r: &mut Registry) {
    r.case("acl/none", |t| {
        t.ok("create f 640")?;
        eq(get("f")?, "user::rw-,group::r--,other::---".to_owned(), "list")
    });
    r.case("acl/set-and-get", |t| {
        t.ok("create f 640")?;
        set("-m u:1:rwx,u:2:r,g:3:w f")?;
        let want = "user::rw-,user:1:rwx,user:2:r--,group::r--,group:3:-w-,mask::rwx,other::---";
        eq(get("f")?, want.to_owned(), "list")
    });
    r.case("acl/many-entries", |t| {
        t.ok("create f 640")?;
        let entries: Vec<_> = (1..=50).map(|id| format!("u:{id}:r")).collect();
        set(&format!("-m {} f", entries.join(",")))?;
        eq(get("f")?.split(',').count(), 54, "entries")
    });
    r.case("acl/removed", |t| {
        t.ok("create f 640")?;
        set("-m u:1:rwx f")?;
        set("-b f")?;
        eq(get("f")?, "user::rw-,group::r--,other::---".to_owned(), "list")?;
        t.err("getxattr f system.posix_acl_access", Errno::NODATA)
    });
    r.case("acl/survives-rename-and-link", |t| {
        t.ok("create f 640")?;
        set("-m u:1:rwx f")?;
        let want = get("f")?;
        t.ok("rename f g; link g h; unlink g; write h x")?;
        eq(get("h")?, want, "list")
    });
    r.case("acl/default-only-on-directories", |t| {
        t.ok("create f 640; mkdir d 750")?;
        set("-d -m u:1:rwx d")?;
        let flags = rustix::fs::XattrFlags::empty();
        let mut value = [0; 200];
        let len = rustix::fs::getxattr("d", "system.posix_acl_default", &mut value[..])?;
        let have = rustix::fs::setxattr("f", "system.posix_acl_default", &value[..len], flags);
        eq(have, Err(Errno::ACCESS), "a default list on a file")
    });
    r.case("acl/broken-value", |t| {
        t.ok("create f 640; mkdir d 755")?;
        set("-m u:1:r f")?;
        let broken = [Errno::INVAL, Errno::OPNOTSUPP];
        t.err_of("setxattr f system.posix_acl_access rubbish", &broken)?;
        t.err_of("setxattr d system.posix_acl_default rubbish", &broken)
    });
}

/// Lists and mode bits are one thing.
fn modes(r: &mut Registry) {
    r.case("acl/mask-is-the-group-bits", |t| {
        t.ok("create f 600")?;
        set("-m u:1:rwx,m::rw f")?;
        eq_mode(t.mode("f")?, 0o660, "mode")?;
        set("-m m::r f")?;
        eq_mode(t.mode("f")?, 0o640, "mode after the mask")
    });
    r.case("acl/chmod-changes-the-list", |t| {
        t.ok("create f 640")?;
        set("-m u:1:rwx f")?;
        t.ok("chmod f 751")?;
        let want = "user::rwx,user:1:rwx,group::r--,mask::r-x,other::--x";
        eq(get("f")?, want.to_owned(), "list")?;
        eq_mode(t.mode("f")?, 0o751, "mode")
    });
    r.case("acl/plain-list-is-a-mode", |t| {
        t.ok("create f 600")?;
        set("-m u::rwx,g::r,o::x f")?;
        eq_mode(t.mode("f")?, 0o741, "mode")?;
        t.err("getxattr f system.posix_acl_access", Errno::NODATA)
    });
}

/// Default lists.
fn inheritance(r: &mut Registry) {
    r.case("acl/default-for-files", |t| {
        t.ok("mkdir d 755")?;
        set("-d -m u:1:rwx,g::rx,o::- d")?;
        t.umask(0o077, || t.ok("create d/f 666"))?;
        let want = "user::rw-,user:1:rwx,group::r-x,mask::rw-,other::---";
        eq(get("d/f")?, want.to_owned(), "list: the mode asked for limits it, the umask does not")?;
        eq_mode(t.mode("d/f")?, 0o660, "mode")
    });
    r.case("acl/default-for-directories", |t| {
        t.ok("mkdir d 755")?;
        set("-d -m u:1:rwx d")?;
        t.ok("mkdir d/e 777; mkdir d/e/f 700")?;
        let default = "default:user::rwx,default:user:1:rwx,default:group::r-x,default:mask::rwx,default:other::r-x";
        let want = format!("user::rwx,user:1:rwx,group::r-x,mask::rwx,other::r-x,{default}");
        eq(get("d/e")?, want, "list of the first")?;
        let want = format!("user::rwx,user:1:rwx,group::r-x,mask::---,other::---,{default}");
        eq(get("d/e/f")?, want, "list of the second")
    });
    r.case("acl/default-without-users", |t| {
        t.ok("mkdir d 755")?;
        set("-d -m u::rwx,g::rx,o::- d")?;
        t.umask(0o077, || t.ok("create d/f 666; mkdir d/e 777"))?;
        eq_mode(t.mode("d/f")?, 0o640, "mode of the file")?;
        eq_mode(t.mode("d/e")?, 0o750, "mode of the directory")?;
        t.err("getxattr d/f system.posix_acl_access", Errno::NODATA)
    });
    r.case("acl/default-for-fifos", |t| {
        t.ok("mkdir d 755")?;
        set("-d -m u:1:rw d")?;
        t.umask(0o077, || t.ok("mknod d/p fifo 666"))?;
        let want = "user::rw-,user:1:rw-,group::r-x,mask::rw-,other::r--";
        eq(get("d/p")?, want.to_owned(), "list")
    });
    r.case("acl/default-not-for-links", |t| {
        t.ok("mkdir d 755")?;
        set("-d -m u:1:rw d")?;
        t.ok("symlink x d/l")?;
        eq_mode(t.mode("d/l")?, 0o777, "mode")
    });
    r.case("acl/moved-in-inherits-nothing", |t| {
        t.ok("mkdir d 755; create f 644")?;
        set("-d -m u:1:rwx d")?;
        t.ok("rename f d/f")?;
        eq(get("d/f")?, "user::rw-,group::r--,other::r--".to_owned(), "list")
    });
}

/// What lists allow.
fn access(r: &mut Registry) {
    /// A file of root with this list.
    fn with(t: &T, list: &str) -> Outcome {
        t.ok("create f 600; chmod f 600")?;
        set(&format!("-m {} f", list.replace("ID", &t.other.to_string())))
    }
    r.root("acl/user-entry-allows", |t| {
        with(t, "u:ID:r")?;
        t.user().ok("open f r")?;
        t.user().err("open f w", Errno::ACCESS)?;
        t.third().err("open f r", Errno::ACCESS)
    });
    r.root("acl/user-entry-denies", |t| {
        // A list whose mask gives nothing at all is not even looked at.
        with(t, "u:ID:-,g::r,o::rw")?;
        t.user().err("open f r", Errno::ACCESS)?;
        t.third().ok("open f rw").map(drop)
    });
    r.root("acl/group-entry-allows", |t| {
        with(t, "g:ID:rw")?;
        t.user().ok("open f rw")?;
        t.third().err("open f r", Errno::ACCESS)
    });
    r.root("acl/one-group-suffices", |t| {
        with(t, "g:ID:-,g:77:r")?;
        t.user().err("open f r", Errno::ACCESS)?;
        t.user_in(&[77]).ok("open f r").map(drop)
    });
    r.root("acl/mask-limits", |t| {
        with(t, "u:ID:rw,m::r")?;
        t.user().ok("open f r")?;
        t.user().err("open f w", Errno::ACCESS)?;
        t.ok("chmod f 600")?;
        t.user().err("open f r", Errno::ACCESS)?;
        t.ok("chmod f 660")?;
        t.user().ok("open f rw").map(drop)
    });
    r.root("acl/directory", |t| {
        t.ok("mkdir d 700; create d/f 644")?;
        set(&format!("-m u:{}:x d", t.other))?;
        t.user().ok("open d/f r")?;
        t.user().err("list d", Errno::ACCESS)?;
        set(&format!("-m u:{}:rwx d", t.other))?;
        t.user().ok("list d; create d/g 644; unlink d/f").map(drop)
    });
    r.root("acl/only-the-owner-sets-it", |t| {
        t.ok("create f 666; chmod f 666; create g 666")?;
        set("-m u:1:r g")?;
        let mut value = [0; 200];
        let len = rustix::fs::getxattr("g", "system.posix_acl_access", &mut value[..])?;
        eq(len, 44, "bytes of a list of five entries")?;
        t.user().err("removexattr g system.posix_acl_access", Errno::PERM)
    });
    r.root("acl/chmod-outside-the-group-clears-set-group-id", |t| {
        let id = t.other;
        t.ok(&format!("create f 640; chown f {id} 0; chmod f 2750"))?;
        set("-m u:1:rx f")?;
        t.user().ok("chmod f 2755")?;
        eq_mode(t.mode("f")?, 0o755, "mode")
    });
}
