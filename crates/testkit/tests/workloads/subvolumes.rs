//! Subvolumes: in each other, moved, read-only, default; labels.

use buttress::{Errno, New, Node, Owner, Rename};
use buttress_codec::ChecksumKind;

use crate::image::{Image, shape};
use crate::judge::{glance, judge};
use crate::tools::{Numbers, bytes, count, empty, mkdir, put_at, touch};

#[test]
fn nested_and_moved() {
    let image = Image::by_progs(1 << 30, &["-n", "4096"]);
    let fs = image.open();
    let mut at = Node::ROOT;
    let mut ids = Vec::new();
    for depth in 0..25 {
        let dir = mkdir(&fs, at, "dir");
        let id =
            fs.create_subvolume(dir, b"in", Owner { uid: depth, gid: 1, umask: 0o022 }).unwrap();
        put_at(&fs, Node::top(id), b"file", &bytes(3000, depth)).unwrap();
        fs.snapshot(id, dir, b"copy", depth % 2 == 0).unwrap();
        at = Node::top(id);
        ids.push(id);
    }
    let full = fs.delete_subvolume(fs.resolve("/dir").unwrap(), b"in").unwrap_err();
    assert_eq!(full.errno(), Errno::NOTEMPTY);
    // The lower half moves to the top, and a snapshot of what held it has a stub.
    let dir = fs.parent(Node::top(ids[12])).unwrap();
    fs.snapshot(ids[11], Node::ROOT, b"holder", false).unwrap();
    fs.rename(dir, b"in", Node::ROOT, b"moved", Rename::NoReplace).unwrap();
    let stub = fs.resolve("/holder/dir/in").unwrap();
    assert!(stub.is_stub());
    fs.rmdir(fs.resolve("/holder/dir").unwrap(), b"in").unwrap();
    fs.set_subvolume_read_only(ids[20], true).unwrap();
    let refused = fs.create(Node::top(ids[20]), b"x", &New::file(0o600)).unwrap_err();
    assert_eq!(refused.errno(), Errno::ROFS);
    glance(&image, fs);
    let fs = image.open();
    fs.set_subvolume_read_only(ids[20], false).unwrap();
    touch(&fs, Node::top(ids[20]), "y");
    judge(&image, fs);
}

#[test]
fn moved_about() {
    let image = Image::by_us(1 << 30, shape(4096, ChecksumKind::XxHash64));
    let fs = image.open();
    let mut numbers = Numbers::new(41);
    let mut dirs = vec![Node::ROOT];
    let mut ids = Vec::new();
    for number in 0..30 {
        let parent = dirs[numbers.below(dirs.len() as u64) as usize];
        let name = format!("s{number}");
        let id = fs.create_subvolume(parent, name.as_bytes(), Owner::default()).unwrap();
        put_at(&fs, Node::top(id), b"file", &bytes(9000, number)).unwrap();
        dirs.push(Node::top(id));
        dirs.push(mkdir(&fs, Node::top(id), "dir"));
        ids.push(id);
    }
    let mut moved = 0;
    for _ in 0..300 {
        let id = ids[numbers.below(30) as usize];
        let to = dirs[numbers.below(dirs.len() as u64) as usize];
        let (from, name) = (fs.parent(Node::top(id)).unwrap(), fs.subvolume_info(id).unwrap().name);
        let new = format!("n{}", numbers.below(60));
        match fs.rename(from, &name, to, new.as_bytes(), Rename::NoReplace) {
            Ok(()) => moved += 1,
            Err(error) => assert!(matches!(error.errno(), Errno::INVAL | Errno::EXIST)),
        }
    }
    assert!(moved > 100, "{moved}");
    judge(&image, fs);
}

#[test]
fn label_and_default_subvolume() {
    let image = Image::by_progs(1 << 30, &["-L", "before"]);
    let fs = image.open();
    assert_eq!(fs.info().label, b"before");
    let home = fs.create_subvolume(Node::ROOT, b"home", Owner::default()).unwrap();
    put_at(&fs, Node::top(home), b"file", b"at home").unwrap();
    fs.set_label("grün".as_bytes()).unwrap();
    fs.set_default_subvolume(home).unwrap();
    let refused = fs.delete_subvolume(Node::ROOT, b"home").unwrap_err();
    assert_eq!(refused.errno(), Errno::PERM);
    assert!(fs.set_label(&[b'x'; 256]).is_err() && fs.set_default_subvolume(999).is_err());
    glance(&image, fs);
    if buttress_testkit::oracle::root_or_skip() {
        let mount = buttress_testkit::oracle::KernelMount::new(&image.path(), "").unwrap();
        assert_eq!(std::fs::read(mount.path().join("file")).unwrap(), b"at home");
        let said = {
            let path = mount.path().to_str().unwrap();
            buttress_testkit::oracle::btrfs(&["filesystem", "label", path]).unwrap()
        };
        assert_eq!(said.trim(), "grün");
        mount.finish().unwrap();
    }
    let fs = image.open();
    assert_eq!((fs.info().label, fs.default_subvolume().unwrap()), ("grün".into(), home));
    fs.set_default_subvolume(5).unwrap();
    fs.set_label(b"").unwrap();
    judge(&image, fs);
}

#[test]
fn a_few_hundred_subvolumes() {
    let image = Image::by_us(2 << 30, |_| {});
    let fs = image.open();
    for number in 0..400 {
        let name = format!("subvolume{number}");
        let id = fs.create_subvolume(Node::ROOT, name.as_bytes(), Owner::default()).unwrap();
        put_at(&fs, Node::top(id), b"file", &bytes(number * 20, number as u32)).unwrap();
    }
    fs.commit().unwrap();
    for number in (0..400).filter(|number| number % 4 != 1) {
        fs.delete_subvolume(Node::ROOT, format!("subvolume{number}").as_bytes()).unwrap();
    }
    fs.clean().unwrap();
    assert_eq!((fs.subvolumes().unwrap().len(), count(&fs, Node::ROOT)), (100, 100));
    judge(&image, fs);
}

#[test]
fn everything_emptied_and_made_again() {
    let image = Image::by_us(1 << 30, shape(65_536, ChecksumKind::Crc32c));
    let fs = image.open();
    fs.commit().unwrap();
    let before = fs.usage().used();
    for round in 0..4_u32 {
        for number in 0..10 {
            let name = format!("s{number}");
            let id = fs.create_subvolume(Node::ROOT, name.as_bytes(), Owner::default()).unwrap();
            for file in 0..100 {
                let data = bytes(file * 50, round);
                put_at(&fs, Node::top(id), file.to_string().as_bytes(), &data).unwrap();
            }
            fs.snapshot(id, Node::top(id), b"inside", number % 2 == 0).unwrap();
        }
        if round == 3 {
            break;
        }
        for id in fs.subvolumes().unwrap() {
            fs.set_subvolume_read_only(id.id, false).unwrap();
        }
        empty(&fs, Node::ROOT);
        fs.clean().unwrap();
        fs.commit().unwrap();
        let used = fs.usage().used();
        assert!(used <= before + (1 << 20), "{used} after {before}");
    }
    judge(&image, fs);
}
