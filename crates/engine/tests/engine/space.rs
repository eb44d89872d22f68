//! A full filesystem says so, and can be emptied again.

use buttress::space::Need;
use buttress::{Allocate, Change, Error, Filesystem, New, Node, Owner};

use crate::judge::{Image, bytes};

/// Writes files of `len` bytes until there is no room; how many there are.
fn fill(fs: &Filesystem, len: usize) -> usize {
    let data = bytes(len, 3);
    for number in 0.. {
        let name = format!("{number}");
        let node = match fs.create(Node::ROOT, name.as_bytes(), &New::file(0o644)) {
            Ok(made) => made.node,
            Err(Error::NoSpace) => return number,
            Err(error) => panic!("{error}"),
        };
        match fs.write(node, 0, &data) {
            Ok(written) if written == data.len() => {}
            Ok(_) | Err(Error::NoSpace) => return number + 1,
            Err(error) => panic!("{error}"),
        }
    }
    0
}

#[test]
fn full_and_empty_again() {
    for (size, len) in [(128 << 20, 3 << 20), (256 << 20, 6000)] {
        let image = Image::by_progs(size, &[]);
        let fs = image.open();
        let first = fill(&fs, len);
        fs.commit().unwrap();
        image.check();
        for number in 0..first {
            fs.unlink(Node::ROOT, format!("{number}").as_bytes()).unwrap();
        }
        fs.commit().unwrap();
        fs.commit().unwrap();
        let second = fill(&fs, len);
        assert!(second * 10 > first * 8, "{first} files fitted first, {second} later");
        fs.close().unwrap();
        image.check();
    }
}

#[test]
fn files_can_be_emptied_when_all_space_is_promised() {
    let image = Image::by_us(256 << 20);
    let fs = image.open();
    let make = |name: &[u8]| fs.create(Node::ROOT, name, &New::file(0o644)).unwrap().node;
    let (cut, punched) = (make(b"cut"), make(b"punched"));
    for node in [cut, punched] {
        fs.write(node, 0, &bytes(100_000, 1)).unwrap();
    }
    let generation = fs.commit().unwrap();
    let mut data = 1 << 30;
    while data >= 4096 {
        let need = Need { data, ..Need::default() };
        if fs.core().space.reserve(need).is_err() {
            data = data / 8192 * 4096;
        }
    }
    let nothing = Change { size: Some(0), ..Change::default() };
    fs.set_attributes(cut, &nothing).unwrap();
    fs.fallocate(punched, Allocate::PunchHole, 4096, 8192).unwrap();
    assert_eq!(fs.info().generation, generation, "neither had to wait for a commit");
    fs.close().unwrap();
    image.check();
}

/// Files of small extents that lie between each other on the disk, so that whatever touches one touches everything.
fn scatter(fs: &Filesystem, places: [(Node, &[u8]); 2], extents: u64) {
    let nodes = places.map(|(dir, name)| fs.create(dir, name, &New::file(0o644)).unwrap().node);
    let sector = bytes(4096, 5);
    for turn in 0..extents / 64 {
        for node in nodes {
            for at in turn * 64..(turn + 1) * 64 {
                fs.write(node, at * 8192, &sector).unwrap();
            }
        }
        fs.commit().unwrap();
    }
}

/// Fills what is left with files that are kept in their items, so that metadata has no room either.
fn fill_metadata(fs: &Filesystem) {
    for len in [2000, 1] {
        let mut free = 0..;
        let full = |number: u32| {
            let name = format!("{len}-{number}");
            let made = fs.create(Node::ROOT, name.as_bytes(), &New::file(0o644));
            made.and_then(|made| fs.write(made.node, 0, &vec![7; len]))
        };
        let error = free.find_map(|number| full(number).err()).unwrap();
        assert!(matches!(error, Error::NoSpace), "{error}");
    }
}

fn full_with_scattered_files(extents: u64) -> (Image, Filesystem) {
    let image = Image::by_us(2 * extents * 4096 * 5 / 4 + (96 << 20));
    let fs = image.open();
    scatter(&fs, [(Node::ROOT, b"one"), (Node::ROOT, b"other")], extents);
    fill_metadata(&fs);
    fs.commit().unwrap();
    (image, fs)
}

#[test]
fn scattered_files_go_when_everything_is_full() {
    let extents = 50_000;
    let (image, fs) = full_with_scattered_files(extents);
    let file = |name| fs.lookup(Node::ROOT, name).unwrap().unwrap().node;
    let (one, other) = (file(&b"one"[..]), file(&b"other"[..]));
    let punch = extents * 8192 / 4 * 3;
    fs.fallocate(one, Allocate::PunchHole, punch, 1 << 40).unwrap();
    let half = Change { size: Some(extents * 8192 / 2), ..Change::default() };
    fs.set_attributes(one, &half).unwrap();
    fs.commit().unwrap();
    assert_eq!(fs.attributes(one).unwrap().blocks_bytes, extents / 2 * 4096);
    fs.unlink(Node::ROOT, b"one").unwrap();
    fs.hold(other).unwrap();
    fs.unlink(Node::ROOT, b"other").unwrap();
    fs.release(other).unwrap();
    fs.commit().unwrap();
    fs.commit().unwrap();
    let node = fs.create(Node::ROOT, b"new", &New::file(0o644)).unwrap().node;
    let data = bytes(4 << 20, 9);
    for at in 0..extents * 4096 / data.len() as u64 {
        assert_eq!(fs.write(node, at * data.len() as u64, &data).unwrap(), data.len());
    }
    fs.close().unwrap();
    image.check();
}

#[test]
fn a_subvolume_of_scattered_files_goes_when_everything_is_full() {
    let extents = 20_000;
    let image = Image::by_us(2 * extents * 4096 * 5 / 4 + (96 << 20));
    let fs = image.open();
    let sub = fs.create_subvolume(Node::ROOT, b"sub", Owner::default()).unwrap();
    scatter(&fs, [(Node::top(sub), b"one"), (Node::ROOT, b"other")], extents);
    fill_metadata(&fs);
    fs.commit().unwrap();
    fs.delete_subvolume(Node::ROOT, b"sub").unwrap();
    fs.clean().unwrap();
    fs.close().unwrap();
    image.check();
}
