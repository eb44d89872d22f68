//! Files: made, written, read, renamed, removed; seen by us after a reopen, and by the kernel.

use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};

use buttress::{
    Allocate, Attributes, Change, Errno, Error, FileKind, Filesystem, New, Node, OpenMode, Options,
    Rename, Seek, SetXattr, Time,
};

use crate::judge::{Image, bytes, content, names, put};

fn errno<T>(result: buttress::Result<T>) -> Errno {
    result.err().expect("this is refused").errno()
}

fn directory(fs: &Filesystem, path: &str) -> Node {
    let (dir, name) = fs.resolve_parent(path).unwrap();
    fs.create(dir, &name, &New::directory(0o755)).unwrap().node
}

/// Reads to the end of a file into buffers with more room than that, up to the end of a sector and not.
fn read_with_room(fs: &Filesystem, node: Node, offset: usize, expected: Option<&[u8]>) {
    let expected = expected.unwrap_or_default();
    for room in [0, 1, 100, 4096 - expected.len() % 4096, 5000] {
        let mut buf = vec![0xee; expected.len() + room];
        let len = fs.read(node, offset as u64, &mut buf).unwrap();
        assert!(&buf[..len] == expected, "{offset} with {room}");
    }
}

#[test]
fn files_of_all_sizes_come_back() {
    for image in [Image::by_progs(512 << 20, &[]), Image::by_us(512 << 20)] {
        let sizes = [0, 1, 100, 2048, 2049, 4096, 5000, 65_536, 300_000, 9 << 20];
        let fs = image.open();
        for (seed, size) in sizes.iter().enumerate() {
            put(&fs, &format!("/f{size}"), &bytes(*size, seed as u32));
        }
        fs.close().unwrap();
        image.check();
        let fs = image.open_read_only();
        for (seed, size) in sizes.iter().enumerate() {
            assert!(content(&fs, &format!("/f{size}")) == bytes(*size, seed as u32), "{size}");
            let node = fs.resolve(format!("/f{size}")).unwrap();
            for offset in [0, 1, 4096, size / 2, size / 8192 * 4096] {
                read_with_room(&fs, node, offset, bytes(*size, seed as u32).get(offset..));
            }
        }
        image.mounted(|top| {
            for (seed, size) in sizes.iter().enumerate() {
                let read = std::fs::read(top.join(format!("f{size}"))).unwrap();
                assert!(read == bytes(*size, seed as u32), "{size}");
            }
        });
    }
}

#[test]
fn a_directory_tree_as_the_kernel_sees_it() {
    let image = Image::by_progs(512 << 20, &[]);
    let fs = image.open();
    let dir = directory(&fs, "/dir");
    directory(&fs, "/dir/inner");
    put(&fs, "/dir/inner/one", b"first");
    let one = fs.resolve("/dir/inner/one").unwrap();
    fs.link(one, dir, b"two").unwrap();
    fs.create(dir, b"link", &New::symlink("inner/one")).unwrap();
    fs.create(dir, b"fifo", &New::of(FileKind::Fifo, 0o600)).unwrap();
    let device = New { rdev: (8 << 20) | 3, ..New::of(FileKind::Block, 0o660) };
    fs.create(dir, b"device", &device.owned(3, 4)).unwrap();
    fs.set_xattr(one, b"user.color", b"green", SetXattr::Create).unwrap();
    let time = Time { sec: 1_000_000_000, nsec: 123_456_789 };
    let change =
        Change { mode: Some(0o4711), mtime: Some(time), uid: Some(77), ..Change::default() };
    fs.set_attributes(one, &change).unwrap();
    assert_eq!(content(&fs, "/dir/link"), b"first");
    fs.close().unwrap();
    image.check();
    image.mounted(|top| {
        let dir = top.join("dir");
        let one = dir.join("inner/one").metadata().unwrap();
        assert_eq!((one.mode(), one.uid(), one.nlink()), (0o104_711, 77, 2));
        assert_eq!((one.mtime(), one.mtime_nsec()), (time.sec, i64::from(time.nsec)));
        assert_eq!(one.ino(), dir.join("two").metadata().unwrap().ino());
        assert_eq!(dir.join("link").read_link().unwrap().to_str(), Some("inner/one"));
        let device = dir.join("device").metadata().unwrap();
        assert_eq!((device.rdev(), device.uid(), device.gid()), ((8 << 8) | 3, 3, 4));
        assert_eq!(std::fs::read_dir(&dir).unwrap().count(), 5);
    });
}

#[test]
fn renames_links_and_removals() {
    let image = Image::by_us(512 << 20);
    let fs = image.open();
    let (a, b) = (directory(&fs, "/a"), directory(&fs, "/b"));
    for round in 0..3 {
        put(&fs, "/a/x", b"x");
        put(&fs, "/a/y", b"yy");
        fs.rename(a, b"x", b, b"z", Rename::Replace).unwrap();
        assert_eq!(errno(fs.rename(a, b"y", b, b"z", Rename::NoReplace)), Errno::EXIST);
        fs.rename(a, b"y", b, b"z", Rename::Exchange).unwrap();
        assert_eq!((content(&fs, "/a/y"), content(&fs, "/b/z")), (b"x".to_vec(), b"yy".to_vec()));
        assert_eq!(errno(fs.rename(Node::ROOT, b"a", a, b"in", Rename::Replace)), Errno::INVAL);
        assert_eq!(errno(fs.rmdir(Node::ROOT, b"a")), Errno::NOTEMPTY);
        assert_eq!(errno(fs.unlink(Node::ROOT, b"a")), Errno::ISDIR);
        fs.unlink(a, b"y").unwrap();
        if round == 1 {
            fs.commit().unwrap();
        }
    }
    assert_eq!(names(&fs, "/"), ["a", "b"]);
    assert_eq!(names(&fs, "/b"), ["z"]);
    fs.rmdir(Node::ROOT, b"a").unwrap();
    fs.close().unwrap();
    image.check();
    assert_eq!(names(&image.open_read_only(), "/"), ["b"]);
}

#[test]
fn an_open_file_outlives_its_name() {
    let image = Image::by_us(512 << 20);
    let fs = image.open();
    put(&fs, "/file", &bytes(200_000, 1));
    let file = fs.open_file("/file", OpenMode::read()).unwrap();
    fs.unlink(Node::ROOT, b"file").unwrap();
    fs.commit().unwrap();
    let mut read = vec![0; 200_000];
    let mut done = 0;
    while done < read.len() {
        done += file.read_at(&mut read[done..], done as u64).unwrap();
    }
    assert!(read == bytes(200_000, 1));
    // As if the power went: the file is an orphan on the disk now.
    let copy = image.path().with_extension("copy");
    std::fs::copy(image.path(), &copy).unwrap();
    crate::judge::check(&copy);
    drop(file);
    let unnamed = fs.create_unnamed(Node::ROOT, &New::file(0o600)).unwrap().node;
    fs.write(unnamed, 0, b"now it has one").unwrap();
    fs.link(unnamed, Node::ROOT, b"named").unwrap();
    fs.release(unnamed).unwrap();
    fs.close().unwrap();
    image.check();
    let before =
        Filesystem::open(&copy, buttress::Options::read_write().background(false)).unwrap();
    put(&before, "/other", b"content");
    before.close().unwrap();
    crate::judge::check(&copy);
    assert_eq!(content(&image.open_read_only(), "/named"), b"now it has one");
}

/// A clone goes in pieces; one that must be refused changes nothing, whichever piece is at fault.
#[test]
fn a_refused_clone_changes_nothing() {
    let image = Image::by_progs(1 << 30, &[]);
    let fs = image.open();
    put(&fs, "/source", b"");
    put(&fs, "/target", b"");
    let source = fs.resolve("/source").unwrap();
    let target = fs.resolve("/target").unwrap();
    fs.write(source, 16_384, &bytes(24_024, 3)).unwrap();
    fs.write(source, 891_263_172, &bytes(61_748, 4)).unwrap();
    fs.write(target, 40_947_309_009, &bytes(48, 5)).unwrap();
    let refused = fs.clone_range(source, 0, 891_324_920, target, 0);
    assert_eq!(errno(refused), Errno::INVAL);
    let mut read = vec![1; 65_536];
    fs.read(target, 0, &mut read).unwrap();
    assert!(read.iter().all(|byte| *byte == 0));
    fs.close().unwrap();
    image.check();
}

#[test]
fn shapes_of_files() {
    let image = Image::by_progs(1 << 30, &[]);
    let fs = image.open();
    put(&fs, "/file", &bytes(1 << 20, 5));
    let file = fs.resolve("/file").unwrap();
    fs.fallocate(file, Allocate::PunchHole, 65_536, 131_072).unwrap();
    fs.fallocate(file, Allocate::ZeroRange { keep_size: false }, 500_000, 10_000).unwrap();
    fs.fallocate(file, Allocate::Reserve { keep_size: true }, 2 << 20, 1 << 20).unwrap();
    put(&fs, "/clone", b"");
    let clone = fs.resolve("/clone").unwrap();
    assert_eq!(fs.clone_range(file, 0, 1 << 20, clone, 4096).unwrap(), 1 << 20);
    let change = Change { size: Some(700_001), ..Change::default() };
    fs.set_attributes(file, &change).unwrap();
    let mut expect = bytes(1 << 20, 5);
    expect[65_536..196_608].fill(0);
    expect[500_000..510_000].fill(0);
    let shifted = [vec![0; 4096], expect.clone()].concat();
    expect.truncate(700_001);
    assert_eq!(fs.seek(file, 0, Seek::Hole).unwrap(), 65_536);
    assert_eq!(fs.seek(file, 65_536, Seek::Data).unwrap(), 196_608);
    fs.close().unwrap();
    image.check();
    let fs = image.open_read_only();
    assert!(content(&fs, "/file") == expect);
    assert!(content(&fs, "/clone") == shifted);
    image.mounted(|top| {
        assert!(std::fs::read(top.join("file")).unwrap() == expect);
        assert!(std::fs::read(top.join("clone")).unwrap() == shifted);
    });
}

#[test]
fn what_the_kernel_made_is_read_and_changed() {
    let image = Image::by_progs(1 << 30, &[]);
    if !buttress_testkit::oracle::root_or_skip() {
        return;
    }
    image.mounted(|top| {
        for number in 0..500u32 {
            let path = top.join(format!("file-{number}"));
            std::fs::write(&path, bytes(number as usize * 97, number)).unwrap();
            let mode = std::fs::Permissions::from_mode(0o600 | (number % 8));
            std::fs::set_permissions(&path, mode).unwrap();
        }
    });
    let fs = image.open();
    for number in 0..500 {
        let path = format!("/file-{number}");
        assert!(content(&fs, &path) == bytes(number * 97, number as u32), "{path}");
        let Attributes { mode, .. } = fs.attributes(fs.resolve(&path).unwrap()).unwrap();
        assert_eq!(mode, 0o600 | (number as u32 % 8));
        match number % 3 {
            0 => fs.unlink(Node::ROOT, &path.as_bytes()[1..]).map(|_| ()).unwrap(),
            1 => put(&fs, &path, b"replaced"),
            _ => {}
        }
    }
    fs.close().unwrap();
    image.check();
    image.mounted(|top| {
        for number in 0..500 {
            let path = top.join(format!("file-{number}"));
            match number % 3 {
                0 => assert!(!path.exists()),
                1 => assert_eq!(std::fs::read(&path).unwrap(), b"replaced"),
                _ => assert!(std::fs::read(&path).unwrap() == bytes(number * 97, number as u32)),
            }
        }
        let file = std::fs::File::create(top.join("new")).unwrap();
        file.write_all_at(&[7; 100_000], 0).unwrap();
    });
    image.check();
    assert!(content(&image.open_read_only(), "/new") == [7; 100_000]);
}

#[test]
fn nothing_changes_read_only() {
    let image = Image::by_progs(512 << 20, &[]);
    let before = std::fs::read(image.path()).unwrap();
    let fs = image.open_read_only();
    assert!(matches!(fs.create(Node::ROOT, b"x", &New::file(0o644)), Err(Error::ReadOnly)));
    assert_eq!(errno(fs.set_label(b"x")), Errno::ROFS);
    fs.close().unwrap();
    image.open().close().unwrap();
    assert!(std::fs::read(image.path()).unwrap() == before, "an open that changes nothing writes");
}

#[test]
fn appends_of_several_threads_do_not_overwrite_each_other() {
    use std::io::Write;
    let image = Image::by_us(512 << 20);
    let fs = image.open();
    put(&fs, "/log", b"");
    std::thread::scope(|scope| {
        for thread in 0..4u8 {
            let mode = OpenMode { append: true, ..OpenMode::read_write() };
            let mut file = fs.open_file("/log", mode).unwrap();
            scope.spawn(move || {
                for _ in 0..2000 {
                    file.write_all(&[b'a' + thread; 10]).unwrap();
                }
            });
        }
    });
    let content = content(&fs, "/log");
    assert_eq!(content.len(), 4 * 2000 * 10);
    assert!(content.chunks(10).all(|record| record.iter().all(|byte| *byte == record[0])));
}

#[test]
fn files_that_others_make_and_remove_are_opened_all_the_same() {
    let image = Image::by_us(512 << 20);
    let fs = image.open();
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                for _ in 0..3000 {
                    fs.open_file("/file", OpenMode::create(0o600)).unwrap();
                    let _ = fs.unlink(Node::ROOT, b"file");
                }
            });
        }
    });
}

#[test]
fn paths_that_name_directories_lead_to_nothing_else() {
    let image = Image::by_us(512 << 20);
    let fs = image.open();
    let dir = directory(&fs, "/dir");
    put(&fs, "/file", b"content");
    fs.create(Node::ROOT, b"slash", &New::symlink("file/")).unwrap();
    fs.create(Node::ROOT, b"link", &New::symlink("dir/made")).unwrap();
    for path in ["/file/.", "/file/", "/file/./.", "/file/..", "/slash"] {
        assert_eq!(errno(fs.resolve(path)), Errno::NOTDIR, "{path}");
    }
    assert_eq!(fs.resolve("/dir/.").unwrap(), dir);
    assert_eq!(errno(fs.open_file("/new/", OpenMode::create(0o600))), Errno::ISDIR);
    let exclusive = OpenMode { exclusive: true, ..OpenMode::create(0o600) };
    assert_eq!(errno(fs.open_file("/link", exclusive)), Errno::EXIST);
    put(&fs, "/link", b"through the link");
    assert_eq!(content(&fs, "/dir/made"), b"through the link");
}

/// Far more files than are kept in memory: holds outlast that their inodes are dropped from it.
#[test]
fn held_files_need_not_stay_in_memory() {
    let image = Image::by_us(512 << 20);
    let options = Options::read_write().background(false).memory(0);
    let fs = Filesystem::open(image.path(), options).unwrap();
    let name = |number: usize| format!("file-{number}").into_bytes();
    let make = |number| fs.create(Node::ROOT, &name(number), &New::file(0o644)).unwrap().node;
    let nodes: Vec<Node> = (0..12_000).map(make).collect();
    put(&fs, "/file-0", b"still here");
    for node in &nodes {
        fs.hold(*node).unwrap();
    }
    fs.hold(nodes[0]).unwrap();
    fs.commit().unwrap();
    let look_at_all = || nodes.iter().map(|node| fs.attributes(*node).unwrap().nlink).sum::<u32>();
    assert_eq!(look_at_all(), 12_000);
    for number in 0..6000 {
        fs.unlink(Node::ROOT, &name(number)).unwrap();
    }
    fs.commit().unwrap();
    assert_eq!(look_at_all(), 6000);
    fs.release(nodes[0]).unwrap();
    fs.commit().unwrap();
    assert_eq!(look_at_all(), 6000);
    let mut buffer = [0; 20];
    assert_eq!(fs.read(nodes[0], 0, &mut buffer).unwrap(), 10);
    for node in &nodes {
        fs.release(*node).unwrap();
    }
    assert_eq!(errno(fs.attributes(nodes[0])), Errno::NOENT);
    assert_eq!(fs.attributes(nodes[6000]).unwrap().nlink, 1);
    fs.close().unwrap();
    image.check();
}

/// The primary superblock makes a transaction durable. A copy that cannot be written does not undo that.
#[test]
fn a_copy_of_the_superblock_that_fails_is_said_and_lived_with() {
    use buttress::device::testing::FaultyDevice;
    use buttress::device::{MemoryDevice, Op};
    let device = std::sync::Arc::new(MemoryDevice::new(256 << 20));
    let mut seed = buttress_mkfs::Environment::seeded(1);
    buttress_mkfs::make(&*device, &buttress_mkfs::Options::default(), &mut seed).unwrap();
    let faulty = std::sync::Arc::new(FaultyDevice::new(device.clone()));
    faulty.fail_range(Op::Write, 64 << 20..(64 << 20) + 4096);
    let options = || buttress::Options::read_write().background(false);
    let fs = Filesystem::open_device(faulty, options()).unwrap();
    for name in ["/one", "/other"] {
        put(&fs, name, b"content");
        fs.commit().unwrap();
    }
    let warnings = fs.warnings();
    assert!(warnings.len() == 1 && warnings[0].contains("superblock"), "{warnings:?}");
    assert!(!fs.is_read_only());
    fs.close().unwrap();
    let fs = Filesystem::open_device(device, options()).unwrap();
    assert_eq!(content(&fs, "/other"), b"content");
}
