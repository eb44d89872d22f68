//! Removing names, and files that live on without one.

use std::io::{Read, Seek, SeekFrom, Write};

use rustix::io::Errno;

use super::{Refusal, refusals};
use crate::call;
use crate::case::{Registry, eq, fails};

const REFUSALS: &[Refusal] = &[
    ("missing", "list .", "unlink f", Errno::NOENT),
    ("twice", "create f 644; unlink f", "unlink f", Errno::NOENT),
    ("directory", "mkdir f 755", "unlink f", Errno::ISDIR),
    ("dot", "list .", "unlink .", Errno::ISDIR),
    ("name-with-a-slash-of-nothing", "list .", "unlink f/", Errno::NOENT),
];

/// Registers the cases.
pub fn register(r: &mut Registry) {
    refusals(r, "unlink", REFUSALS);
    r.case("unlink/every-kind", |t| {
        t.ok("create a 644; symlink a b; symlink none c; mknod d fifo 644; mknod e socket 644")?;
        t.ok("unlink c; unlink b; unlink a; unlink d; unlink e")?;
        eq(t.ok("list .")?, String::new(), "names left")
    });
    r.case("unlink/link-count", |t| {
        t.ok("create a 644; link a b; link a c")?;
        for (name, left) in [("a", 2), ("b", 1)] {
            t.ok(&format!("unlink {name}"))?;
            eq(t.stat("c")?.st_nlink, left, "links of c")?;
        }
        t.ok("unlink c").map(drop)
    });
    r.case("unlink/content-stays-with-the-other-name", |t| {
        t.ok("create a 644; write a abc; link a b; unlink a")?;
        eq(t.ok("read b")?, "abc".to_owned(), "content")
    });
    r.case("unlink/link-not-its-target", |t| {
        t.ok("create f 644; symlink f l; unlink l; lstat f").map(drop)
    });
    r.case("unlink/name-is-free-again", |t| {
        t.ok("create f 644; write f old; unlink f; create f 644")?;
        eq(t.ok("read f")?, String::new(), "content of the new file")
    });
    r.case("unlink/read-only-file", |t| t.ok("create f 0; unlink f").map(drop));
    orphans(r);
    nameless(r);
}

/// Files without a name.
fn orphans(r: &mut Registry) {
    r.case("unlink/open-file-lives-on", |t| {
        t.file_of("f", b"before ")?;
        let mut file = t.open("f", "rw")?;
        t.ok("unlink f")?;
        t.err("lstat f", Errno::NOENT)?;
        eq(rustix::fs::fstat(&file)?.st_nlink, 0, "links")?;
        file.seek(SeekFrom::End(0))?;
        file.write_all(b"and after")?;
        file.sync_all()?;
        file.rewind()?;
        let mut text = String::new();
        file.read_to_string(&mut text)?;
        eq(text, "before and after".to_owned(), "content")?;
        file.set_len(3)?;
        eq(rustix::fs::fstat(&file)?.st_size, 3, "size")
    });
    r.case("unlink/open-file-and-a-new-one-of-its-name", |t| {
        t.file_of("f", b"old")?;
        let mut file = t.open("f", "r")?;
        t.ok("unlink f; create f 644; write f new")?;
        let mut text = String::new();
        file.read_to_string(&mut text)?;
        eq(text, "old".to_owned(), "content of the removed file")?;
        eq(t.ok("read f")?, "new".to_owned(), "content of the new file")
    });
    r.case("unlink/attributes-of-an-open-file", |t| {
        t.file("f")?;
        let file = call::open("f", "rw", 0)?;
        t.ok("unlink f")?;
        rustix::fs::fchmod(&file, rustix::fs::Mode::from_raw_mode(0o600))?;
        eq(rustix::fs::fstat(&file)?.st_mode & 0o7777, 0o600, "mode")?;
        rustix::fs::fsetxattr(&file, "user.k", b"v", rustix::fs::XattrFlags::empty())?;
        let mut value = [0_u8; 8];
        eq(rustix::fs::fgetxattr(&file, "user.k", &mut value[..])?, 1, "bytes of the attribute")
    });
}

/// What becomes of names and attributes of such files.
fn nameless(r: &mut Registry) {
    r.case("unlink/open-file-cannot-be-linked-again", |t| {
        t.file("f")?;
        let file = call::open("f", "r", 0)?;
        t.ok("unlink f")?;
        use std::os::fd::AsRawFd;
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        fails(
            rustix::fs::linkat(
                rustix::fs::CWD,
                path,
                rustix::fs::CWD,
                "g",
                rustix::fs::AtFlags::SYMLINK_FOLLOW,
            ),
            Errno::NOENT,
            "linkat",
        )
    });
    r.case("unlink/change-by-another-name-is-seen", |t| {
        t.ok("create a 644; link a b")?;
        let mut file = t.open("a", "rw")?;
        t.ok("unlink a; write b through-b")?;
        let mut text = String::new();
        file.read_to_string(&mut text)?;
        eq(text, "through-b".to_owned(), "content")
    });
    r.case("unlink/many-open-files", |t| {
        let mut files = Vec::new();
        for at in 0..100_u8 {
            let name = format!("f{at}");
            t.file_of(&name, &[at; 5000])?;
            files.push(t.open(&name, "r")?);
            t.ok(&format!("unlink {name}"))?;
        }
        eq(call::list(".")?.len(), 0, "names left")?;
        for (at, mut file) in files.into_iter().enumerate() {
            let mut bytes = Vec::new();
            file.read_to_end(&mut bytes)?;
            eq(bytes, vec![at as u8; 5000], "content")?;
        }
        Ok(())
    });
}
