//! A full filesystem says so, and can be emptied again.

use buttress::space::Need;
use buttress::{Allocate, Change, Error, Filesystem, New, Node};

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
