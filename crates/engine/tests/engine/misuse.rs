//! What an application may ask for and does not get: it is refused at once, and nobody else loses what he has written.

use std::time::Duration;

use buttress::ondisk::item::inode_flags;

use buttress::{
    Change, Errno, FileKind, Filesystem, New, Node, OpenMode, Options, SetXattr, Time, Times,
};

use crate::judge::{Image, content, put};

fn errno<T: std::fmt::Debug>(answer: buttress::Result<T>) -> Errno {
    answer.unwrap_err().errno()
}

fn file(fs: &Filesystem, name: &[u8]) -> Node {
    fs.create(Node::ROOT, name, &New::file(0o644)).unwrap().node
}

#[test]
fn flags_that_nobody_knows_do_not_reach_a_commit() {
    let image = Image::by_us(256 << 20);
    let fs = image.open();
    put(&fs, "/other", b"of another thread");
    let node = file(&fs, b"x");
    let set = |flags| {
        fs.set_attributes(node, &Change { flags: Some(flags), ..Change::default() }).map(drop)
    };
    for bit in 0..64 {
        let known = bit < 12 && bit != 4;
        let answer = set(1 << bit);
        assert_eq!(answer.is_ok(), known, "bit {bit}: {answer:?}");
        if !known {
            assert_eq!(errno(answer), Errno::OPNOTSUPP, "bit {bit}");
        }
        fs.sync(node).unwrap();
        fs.commit().unwrap();
    }
    set(0).unwrap();
    // What has checksums keeps them, and the other way round.
    fs.write(node, 0, &[1; 10_000]).unwrap();
    fs.commit().unwrap();
    assert_eq!([errno(set(1)), errno(set(2)), errno(set(3))], [Errno::INVAL; 3]);
    set(1 << 9).unwrap();
    fs.write(node, 20_000, &[2; 10_000]).unwrap();
    let bare = file(&fs, b"bare");
    let change = |flags| Change { flags: Some(flags), ..Change::default() };
    fs.set_attributes(bare, &change(3)).unwrap();
    fs.write(bare, 0, &[3; 10_000]).unwrap();
    assert_eq!(errno(fs.set_attributes(bare, &change(0))), Errno::INVAL);
    assert_eq!(content(&fs, "/other"), b"of another thread");
    fs.close().unwrap();
    image.check();
}

#[test]
fn times_are_times() {
    let image = Image::by_us(256 << 20);
    let fs = image.open();
    let node = file(&fs, b"x");
    let before = fs.attributes(node).unwrap();
    for nsec in [1_000_000_000, u32::MAX] {
        let time = Some(Time { sec: 5, nsec });
        let changes = [
            Change { atime: time, ..Change::default() },
            Change { mtime: time, ..Change::default() },
            Change { ctime: time, ..Change::default() },
            Change { otime: time, size: Some(7), ..Change::default() },
        ];
        for change in changes {
            assert_eq!(errno(fs.set_attributes(node, &change)), Errno::INVAL, "{change:?}");
        }
    }
    assert_eq!(fs.attributes(node).unwrap(), before);
    let bad = Time { sec: 5, nsec: 1_000_000_000 };
    let good = Time { sec: 5, nsec: 0 };
    let times = Times { atime: good, mtime: good, ctime: bad, otime: good };
    let new = New { times: Some(times), ..New::file(0o644) };
    assert_eq!(errno(fs.create(Node::ROOT, b"made", &new)), Errno::INVAL);
    assert_eq!(fs.lookup(Node::ROOT, b"made").unwrap(), None);
    assert_eq!(errno(fs.create_unnamed(Node::ROOT, &new)), Errno::INVAL);
}

/// A file of more extents than one step cuts.
#[test]
fn what_is_refused_cuts_nothing() {
    let image = Image::by_us(256 << 20);
    let fs = image.open();
    let node = file(&fs, b"x");
    for at in 0..5000 {
        fs.write(node, at * 8192, b"x").unwrap();
    }
    fs.commit().unwrap();
    let before = fs.attributes(node).unwrap();
    let time = Some(Time { sec: 5, nsec: u32::MAX });
    let cut = Change { size: Some(0), ..Change::default() };
    for change in [
        Change { flags: Some(1 << 12), ..cut },
        Change { flags: Some(1), ..cut },
        Change { otime: time, ..cut },
    ] {
        assert!(fs.set_attributes(node, &change).is_err(), "{change:?}");
        assert_eq!(fs.attributes(node).unwrap(), before, "{change:?}");
    }
    fs.set_attributes(node, &cut).unwrap();
    fs.close().unwrap();
    image.check();
}

#[test]
fn only_who_holds_lets_go() {
    let image = Image::by_us(256 << 20);
    let fs = image.open();
    let node = file(&fs, b"v");
    assert_eq!(errno(fs.release(node)), Errno::INVAL);
    let open = fs.open_file("/v", OpenMode::read_write()).unwrap();
    open.write_at(b"precious", 0).unwrap();
    fs.unlink(Node::ROOT, b"v").unwrap();
    open.write_at(b"more", 8).unwrap();
    let mut bytes = [0; 12];
    assert_eq!(open.read_at(&mut bytes, 0).unwrap(), 12);
    assert_eq!(&bytes, b"preciousmore");
    drop(open);
    assert_eq!(errno(fs.hold(node)), Errno::NOENT);
    // As often as it was held, and no more; what was deleted gives back its space.
    let used = || {
        fs.commit().unwrap();
        fs.usage().data.used
    };
    let empty = used();
    for number in 0..10 {
        let name = format!("{number}").into_bytes();
        let node = file(&fs, &name);
        fs.hold(node).unwrap();
        fs.release(node).unwrap();
        assert_eq!(errno(fs.release(node)), Errno::INVAL);
        fs.write(node, 0, &vec![1; 1 << 20]).unwrap();
        fs.unlink(Node::ROOT, &name).unwrap();
    }
    assert_eq!(used(), empty);
    let new = New { kind: FileKind::Directory, ..New::file(0o755) };
    assert_eq!(errno(fs.create_unnamed(Node::ROOT, &new)), Errno::INVAL);
    fs.close().unwrap();
    image.check();
}

/// What Linux has no place for it would list and not read.
#[test]
fn xattrs_have_namespaces() {
    let image = Image::by_us(256 << 20);
    let fs = image.open();
    let node = file(&fs, b"x");
    let set = |name: &[u8], value: &[u8]| fs.set_xattr(node, name, value, SetXattr::Any);
    for name in ["nons", "foo.bar", "\n", "system.foo", "User.a"] {
        assert_eq!(errno(set(name.as_bytes(), b"v")), Errno::OPNOTSUPP, "{name}");
    }
    for name in ["user.", "trusted.", "security.", "btrfs.", "btrfs.other"] {
        assert_eq!(errno(set(name.as_bytes(), b"v")), Errno::INVAL, "{name}");
    }
    assert_eq!(errno(set(b"system.posix_acl_access", b"bogus")), Errno::INVAL);
    // An ACL about somebody whom a user namespace does not know: Linux opens no file that has one.
    let entry = |tag: u16, id: u32| [&tag.to_le_bytes()[..], &[6, 0], &id.to_le_bytes()].concat();
    let acl = |id| {
        let entries =
            [(1, !0), (2, id), (4, !0), (16, !0), (32, !0)].map(|(tag, id)| entry(tag, id));
        [&2_u32.to_le_bytes()[..], &entries.concat()].concat()
    };
    assert_eq!(errno(set(b"system.posix_acl_access", &acl(u32::MAX))), Errno::INVAL);
    set(b"system.posix_acl_access", &acl(7)).unwrap();
    fs.remove_xattr(node, b"system.posix_acl_access").unwrap();
    // What is written in place cannot be compressed.
    set(b"btrfs.compression", b"zstd").unwrap();
    set(b"btrfs.compression", b"").unwrap();
    let in_place = Change { flags: Some(inode_flags::NODATACOW), ..Change::default() };
    fs.set_attributes(node, &in_place).unwrap();
    assert_eq!(errno(set(b"btrfs.compression", b"zstd")), Errno::INVAL);
    let none = 2_u32.to_le_bytes();
    assert_eq!(errno(set(b"system.posix_acl_default", &none)), Errno::ACCESS);
    set(b"user.a", b"v").unwrap();
    set(b"trusted.a", b"v").unwrap();
    assert_eq!(fs.list_xattrs(node).unwrap().len(), 2);
    fs.close().unwrap();
    image.check();
}

#[test]
fn who_waits_for_ever_waits() {
    let image = Image::by_us(256 << 20);
    for options in [
        Options::read_write().commit_interval(Duration::MAX),
        Options::read_write().commit_pause(Duration::MAX),
    ] {
        let fs = Filesystem::open(image.path(), options.background(true)).unwrap();
        put(&fs, "/file", b"bytes");
        std::thread::sleep(Duration::from_millis(300));
        let made = fs.create_subvolume(Node::ROOT, b"sub", Default::default()).unwrap();
        fs.delete_subvolume(Node::ROOT, b"sub").unwrap();
        fs.commit().unwrap();
        // The worker lives: it drops what was deleted.
        let mut turns = 0;
        while fs.is_dropping() {
            turns += 1;
            assert!(turns < 3000, "subvolume {made} stays");
            std::thread::sleep(Duration::from_millis(10));
        }
        fs.close().unwrap();
    }
    image.check();
}

#[test]
fn what_does_not_open_says_why_by_number() {
    let dir = tempfile::tempdir().unwrap();
    let open = |name: &str| Filesystem::open(dir.path().join(name), Options::read_only());
    assert_eq!(open("none").map(drop).unwrap_err().errno(), Errno::NOENT);
    std::fs::write(dir.path().join("text"), vec![b'x'; 1 << 20]).unwrap();
    let error = open("text").map(drop).unwrap_err();
    assert_eq!(error.errno(), Errno::INVAL);
    let none = open("none").map(drop).unwrap_err();
    assert_eq!(std::io::Error::from(none).kind(), std::io::ErrorKind::NotFound);
    let image = Image::by_us(256 << 20);
    let _held = image.open();
    let again = Filesystem::open(image.path(), Options::read_write()).map(drop);
    assert_eq!(errno(again), Errno::BUSY);
}
