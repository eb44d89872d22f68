//! A full filesystem says so, and can be emptied again.

use buttress::{Error, Filesystem, New, Node};

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
