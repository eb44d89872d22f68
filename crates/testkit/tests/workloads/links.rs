//! Names: hard links without end, renames of all sorts, files without names.

use buttress::{Errno, FileKind, New, Node, Rename};
use buttress_codec::ChecksumKind;

use crate::image::{Image, shape};
use crate::judge::judge;
use crate::tools::{Numbers, bytes, content, count, mkdir, put_at, touch, write};

#[test]
fn ten_thousand_links_in_a_directory() {
    let image = Image::by_progs(1 << 30, &[]);
    let fs = image.open();
    let dir = mkdir(&fs, Node::ROOT, "links");
    let node = touch(&fs, dir, "first");
    write(&fs, node, 0, b"content");
    for number in 0..10_000 {
        fs.link(node, dir, format!("a-link-to-the-same-file-{number}").as_bytes()).unwrap();
    }
    assert_eq!(fs.attributes(node).unwrap().nlink, 10_001);
    fs.commit().unwrap();
    for number in (0..10_000).step_by(3) {
        fs.unlink(dir, format!("a-link-to-the-same-file-{number}").as_bytes()).unwrap();
    }
    fs.unlink(dir, b"first").unwrap();
    assert_eq!(fs.attributes(node).unwrap().nlink, 10_000 - 3334);
    judge(&image, fs);
}

#[test]
fn links_across_directories() {
    let image = Image::by_us(1 << 30, shape(4096, ChecksumKind::Crc32c));
    let fs = image.open();
    let dirs: Vec<_> = (0..100).map(|dir| mkdir(&fs, Node::ROOT, &format!("{dir}"))).collect();
    let files: Vec<_> = (0..20).map(|it| touch(&fs, Node::ROOT, &format!("file{it}"))).collect();
    for (number, dir) in dirs.iter().enumerate() {
        for (which, file) in files.iter().enumerate() {
            fs.link(*file, *dir, format!("l{which}").as_bytes()).unwrap();
            if number % 10 == which % 10 {
                fs.link(*file, *dir, &[b'x'; 255]).map(|_| ()).unwrap_or_default();
            }
        }
    }
    for dir in &dirs[..50] {
        for which in 0..20 {
            fs.unlink(*dir, format!("l{which}").as_bytes()).unwrap();
        }
    }
    for which in 0..10 {
        fs.unlink(Node::ROOT, format!("file{which}").as_bytes()).unwrap();
    }
    judge(&image, fs);
}

#[test]
fn as_many_links_as_there_can_be() {
    let image = Image::by_progs(1 << 30, &["-n", "65536", "-m", "single"]);
    let fs = image.open();
    let node = touch(&fs, Node::ROOT, "file");
    let dir = mkdir(&fs, Node::ROOT, "dir");
    for number in 1..65_535 {
        fs.link(node, dir, number.to_string().as_bytes()).unwrap();
    }
    assert_eq!(fs.link(node, dir, b"one more").unwrap_err().errno(), Errno::MLINK);
    for number in (1..65_535).filter(|number| number % 100 != 0) {
        fs.unlink(dir, number.to_string().as_bytes()).unwrap();
    }
    assert_eq!(fs.attributes(node).unwrap().nlink, 656);
    judge(&image, fs);
}

#[test]
fn renames_across_directories() {
    let image = Image::by_progs(1 << 30, &["--csum", "xxhash"]);
    let fs = image.open();
    let mut numbers = Numbers::new(4);
    let dirs: Vec<_> = (0..8).map(|dir| mkdir(&fs, Node::ROOT, &format!("dir{dir}"))).collect();
    for number in 0..800_u64 {
        let dir = dirs[(number % 8) as usize];
        put_at(&fs, dir, format!("{}", number / 8).as_bytes(), &bytes(10, number as u32)).unwrap();
    }
    for step in 0..6000 {
        let (from, to) = (dirs[numbers.below(8) as usize], dirs[numbers.below(8) as usize]);
        let name = numbers.below(130).to_string();
        let new = numbers.below(130).to_string();
        let how = match step % 5 {
            0 => Rename::NoReplace,
            1 => Rename::Exchange,
            2 if step % 100 == 2 => Rename::Whiteout { uid: 1, gid: 2 },
            _ => Rename::Replace,
        };
        match fs.rename(from, name.as_bytes(), to, new.as_bytes(), how) {
            Ok(()) => {}
            Err(error) => assert!(matches!(error.errno(), Errno::NOENT | Errno::EXIST)),
        }
        if step % 1500 == 0 {
            fs.commit().unwrap();
        }
    }
    judge(&image, fs);
}

#[test]
fn renames_of_directories() {
    let image = Image::by_us(1 << 30, |_| {});
    let fs = image.open();
    let mut numbers = Numbers::new(5);
    let mut dirs = vec![Node::ROOT];
    for number in 0..150 {
        let parent = dirs[numbers.below(dirs.len() as u64) as usize];
        let dir = mkdir(&fs, parent, &format!("d{number}"));
        put_at(&fs, dir, b"file", &bytes(number, 1)).unwrap();
        dirs.push(dir);
    }
    fs.commit().unwrap();
    let mut moved = 0;
    for _ in 0..2000 {
        let which = 1 + numbers.below(150) as usize;
        let to = dirs[numbers.below(dirs.len() as u64) as usize];
        let name = format!("d{}", which - 1);
        let from = fs.parent(dirs[which]).unwrap();
        match fs.rename(from, name.as_bytes(), to, name.as_bytes(), Rename::NoReplace) {
            Ok(()) => moved += 1,
            Err(error) => assert!(matches!(error.errno(), Errno::INVAL | Errno::EXIST)),
        }
    }
    assert!(moved > 500);
    judge(&image, fs);
}

#[test]
fn files_without_names_get_some() {
    let image = Image::by_progs(1 << 30, &["-O", "^no-holes"]);
    let fs = image.open();
    let dir = mkdir(&fs, Node::ROOT, "dir");
    for number in 0..300_usize {
        let made = fs.create_unnamed(dir, &New::file(0o600)).unwrap().node;
        write(&fs, made, 0, &bytes(number * 60, number as u32));
        if number % 50 == 0 {
            fs.commit().unwrap();
        }
        if number % 3 != 0 {
            fs.link(made, dir, number.to_string().as_bytes()).unwrap();
        }
        fs.release(made).unwrap();
        assert_eq!(fs.attributes(made).is_ok(), number % 3 != 0);
    }
    assert_eq!(count(&fs, dir), 200);
    assert!(fs.lookup(dir, b"297").unwrap().is_none());
    let node = fs.lookup(dir, b"298").unwrap().unwrap().node;
    assert!(content(&fs, node) == bytes(298 * 60, 298));
    judge(&image, fs);
}

#[test]
fn names_that_come_and_go_within_a_commit() {
    let image = Image::by_us(1 << 30, |_| {});
    let fs = image.open_with(buttress::Options::read_write().background(false));
    let dir = mkdir(&fs, Node::ROOT, "dir");
    for round in 0..30_u32 {
        for number in 0..60 {
            put_at(&fs, dir, format!("{number}").as_bytes(), &bytes(5000, round)).unwrap();
        }
        for number in 0..60 {
            fs.unlink(dir, format!("{number}").as_bytes()).unwrap();
        }
        mkdir(&fs, dir, "d");
        fs.create(dir, b"s", &New::symlink("x")).unwrap();
        fs.create(dir, b"f", &New::of(FileKind::Fifo, 0o600)).unwrap();
        fs.rmdir(dir, b"d").unwrap();
        fs.unlink(dir, b"s").unwrap();
        fs.unlink(dir, b"f").unwrap();
        if round % 7 == 0 {
            fs.commit().unwrap();
        }
    }
    assert_eq!(count(&fs, dir), 0);
    assert_eq!(fs.attributes(dir).unwrap().size, 0);
    judge(&image, fs);
}
