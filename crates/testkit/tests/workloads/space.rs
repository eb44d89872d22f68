//! Filled to the last byte, and emptied again: the space must come back, and nothing may be lost.

use std::collections::BTreeMap;

use buttress::{Allocate, Errno, Filesystem, Node, Owner, Usage};

use crate::image::{Image, shape};
use crate::judge::{glance, judge};
use crate::tools::{bytes, content, count, empty, mkdir, put_at, touch, write};

/// Files of `len(number)` bytes until there is no room: how much of each was written.
fn fill(fs: &Filesystem, dir: Node, len: impl Fn(usize) -> usize) -> BTreeMap<usize, usize> {
    let mut written = BTreeMap::new();
    for number in 0.. {
        let data = bytes(len(number), number as u32);
        let Some(done) = put_at(fs, dir, format!("file-{number}").as_bytes(), &data) else {
            break;
        };
        written.insert(number, done);
        if done < data.len() {
            break;
        }
    }
    written
}

/// Fills, lets everyone look at the full filesystem, empties it, and fills it again.
fn fill_and_empty(image: &Image, len: impl Fn(usize) -> usize + Copy) {
    let fs = image.open();
    let dir = mkdir(&fs, Node::ROOT, "dir");
    fs.commit().unwrap();
    let before = fs.usage();
    let first = fill(&fs, dir, len);
    assert!(first.len() > 3);
    for (number, done) in &first {
        let node = fs.lookup(dir, format!("file-{number}").as_bytes()).unwrap().unwrap().node;
        assert!(content(&fs, node) == bytes(*done, *number as u32), "{number}");
    }
    glance(image, fs);
    let fs = image.open();
    empty(&fs, dir);
    fs.clean().unwrap();
    is_back(&fs, &before);
    let second = fill(&fs, dir, len);
    let sum = |of: &BTreeMap<usize, usize>| of.values().sum::<usize>();
    assert!(second.len() * 20 >= first.len() * 19, "{} files of {}", second.len(), first.len());
    assert!(sum(&second) * 20 >= sum(&first) * 19, "{} of {}", sum(&second), sum(&first));
    for number in second.keys().filter(|number| *number % 2 == 0) {
        fs.unlink(dir, format!("file-{number}").as_bytes()).unwrap();
    }
    judge(image, fs);
}

/// Groups that have become empty go with the next few commits; metadata may keep one or two to go on with.
fn is_back(fs: &Filesystem, before: &Usage) {
    for _ in 0..4 {
        touch(fs, Node::ROOT, "x");
        fs.unlink(Node::ROOT, b"x").unwrap();
        fs.commit().unwrap();
    }
    let usage = fs.usage();
    assert!(usage.used() <= before.used() + (1 << 20), "{usage:?}, before {before:?}");
    let (data, was) = (usage.data_available, before.data_available);
    assert!(data >= was / 4 * 3, "{data} of {was} bytes are back");
}

#[test]
fn full_of_small_files() {
    let image = Image::by_progs(256 << 20, &["-m", "single"]);
    fill_and_empty(&image, |number| 1 + number * 37 % 6000);
}

#[test]
fn full_of_inline_files() {
    let image = Image::by_us(120 << 20, shape(4096, buttress_codec::ChecksumKind::Crc32c));
    fill_and_empty(&image, |_| 1500);
}

#[test]
fn full_of_large_files() {
    let image = Image::by_progs(600 << 20, &[]);
    fill_and_empty(&image, |number| (10 << 20) + number * 4097);
}

#[test]
fn full_of_mixed_groups() {
    let image = Image::by_progs(200 << 20, &["-M"]);
    fill_and_empty(&image, |number| if number % 50 == 0 { 3 << 20 } else { number % 9000 });
}

/// With nodes of 64 KiB the kernel's own turn on this filesystem can end in a deadlock of Linux 6.18 (its cleaner deletes unused
/// groups and waits for room, while whoever makes room waits for the cleaner's delayed iputs), and from then on every sync(2) of
/// the machine hangs.
#[test]
fn full_of_two_copies() {
    let image = Image::by_us(500 << 20, |options| {
        options.data_profile = Some(buttress_mkfs::Profile::Dup);
        options.nodesize = Some(32_768);
    });
    fill_and_empty(&image, |number| (1 << 20) + number * 77);
}

#[test]
fn one_growing_file() {
    let image = Image::by_progs(400 << 20, &["-n", "4096"]);
    let fs = image.open();
    let before = fs.usage();
    let mut sizes = Vec::new();
    for round in 0..3_u32 {
        let node = touch(&fs, Node::ROOT, "growing");
        let mut size = 0;
        loop {
            match fs.write(node, size, &bytes(300_000, round)) {
                Ok(done) => size += done as u64,
                Err(error) => {
                    assert_eq!(error.errno(), Errno::NOSPC);
                    break;
                }
            }
        }
        assert_eq!(fs.attributes(node).unwrap().size, size);
        assert!(size > 200 << 20, "{size}");
        sizes.push(size);
        if round == 2 {
            break;
        }
        fs.unlink(Node::ROOT, b"growing").unwrap();
        is_back(&fs, &before);
    }
    assert!(sizes[2] * 20 >= sizes[0] * 19, "{sizes:?}");
    glance(&image, fs);
    let fs = image.open();
    fs.unlink(Node::ROOT, b"growing").unwrap();
    judge(&image, fs);
}

#[test]
fn full_of_names() {
    let image = Image::by_progs(110 << 20, &["-m", "single", "-n", "4096"]);
    let fs = image.open();
    let before = fs.usage();
    let dir = mkdir(&fs, Node::ROOT, "dir");
    let node = touch(&fs, dir, "file");
    let mut made = 0;
    let refused = loop {
        let name = format!("{made:0200}");
        let done = match made % 2 {
            0 => fs.create(dir, name.as_bytes(), &buttress::New::directory(0o755)),
            // The checker takes the square of the links of an inode.
            _ if made < 4000 => fs.link(node, dir, name.as_bytes()),
            _ => fs.create(dir, name.as_bytes(), &buttress::New::symlink(vec![b'x'; 900])),
        };
        match done {
            Ok(_) => made += 1,
            Err(error) => break error,
        }
    };
    assert_eq!(refused.errno(), Errno::NOSPC);
    assert!(made > 5000, "{made}");
    glance(&image, fs);
    let fs = image.open();
    assert_eq!(count(&fs, dir), made + 1);
    empty(&fs, dir);
    is_back(&fs, &before);
    judge(&image, fs);
}

#[test]
fn full_under_snapshots() {
    let image = Image::by_progs(400 << 20, &["-m", "single"]);
    let fs = image.open();
    let before = fs.usage();
    let work = fs.create_subvolume(Node::ROOT, b"work", Owner::default()).unwrap();
    for number in 0..200_u32 {
        put_at(&fs, Node::top(work), number.to_string().as_bytes(), &bytes(200_000, number));
    }
    let mut round = 0;
    'full: loop {
        if fs.snapshot(work, Node::ROOT, format!("s{round}").as_bytes(), true).is_err() {
            break;
        }
        for number in 0..200_u32 {
            let node = fs.lookup(Node::top(work), number.to_string().as_bytes()).unwrap();
            let data = bytes(60_000, round);
            match fs.write(node.unwrap().node, u64::from(round % 3) * 60_000, &data) {
                Ok(done) if done == data.len() => {}
                Ok(_) => break 'full,
                Err(error) => {
                    assert_eq!(error.errno(), Errno::NOSPC);
                    break 'full;
                }
            }
        }
        round += 1;
    }
    assert!(round > 5, "{round}");
    glance(&image, fs);
    let fs = image.open();
    let names: Vec<_> = fs.subvolumes().unwrap().into_iter().map(|it| it.name).collect();
    for name in names {
        fs.delete_subvolume(Node::ROOT, &name).unwrap();
    }
    fs.clean().unwrap();
    is_back(&fs, &before);
    judge(&image, fs);
}

#[test]
fn many_gigabytes_come_and_go() {
    let image = Image::by_progs(100 << 30, &[]);
    let fs = image.open();
    fs.commit().unwrap();
    let before = fs.usage();
    let mode = Allocate::Reserve { keep_size: false };
    for round in 0..2_u32 {
        for number in 0..10 {
            let node = touch(&fs, Node::ROOT, &format!("large{number}"));
            fs.fallocate(node, mode, 0, 4 << 30).unwrap();
            write(&fs, node, u64::from(number) << 20, &bytes(50_000, number));
        }
        assert!(fs.usage().unallocated < before.unallocated - (35 << 30));
        fs.commit().unwrap();
        for number in (0..10).filter(|number| round == 0 || number % 3 != 0) {
            fs.unlink(Node::ROOT, format!("large{number}").as_bytes()).unwrap();
        }
        for _ in 0..4 {
            touch(&fs, Node::ROOT, "x");
            fs.unlink(Node::ROOT, b"x").unwrap();
            fs.commit().unwrap();
        }
        let usage = fs.usage();
        if round == 0 {
            assert!(usage.unallocated + (3 << 30) > before.unallocated, "{usage:?}");
        }
    }
    judge(&image, fs);
}

#[test]
fn more_than_there_is() {
    let image = Image::by_us(300 << 20, |_| {});
    let fs = image.open();
    let node = touch(&fs, Node::ROOT, "file");
    let mode = Allocate::Reserve { keep_size: true };
    let refused = fs.fallocate(node, mode, 0, 1 << 40).unwrap_err();
    assert_eq!(refused.errno(), Errno::NOSPC);
    fs.fallocate(node, Allocate::PunchHole, 0, 1 << 40).unwrap();
    let before = fs.usage().data.used;
    let done = fs.write(node, 0, &bytes(400 << 20, 1)).unwrap();
    assert!(done < 400 << 20 && fs.attributes(node).unwrap().size == done as u64);
    assert!(fs.usage().data.used >= before);
    fs.commit().unwrap();
    crate::tools::truncate(&fs, node, 1 << 20);
    fs.commit().unwrap();
    assert!(content(&fs, node) == bytes(1 << 20, 1));
    judge(&image, fs);
}

#[test]
fn a_file_in_the_gaps_of_others() {
    for (nodesize, group) in [(4096, "-m"), (16_384, "-M")] {
        let nodesize = if group == "-M" { "4096".into() } else { nodesize.to_string() };
        let args = ["-n", &nodesize, group, "single"];
        let args = if group == "-M" { &args[..3] } else { &args[..] };
        let image = Image::by_progs(130 << 20, args);
        let fs = image.open();
        let dir = mkdir(&fs, Node::ROOT, "dir");
        // Extents of one, two and three sectors.
        let made = fill(&fs, dir, |number| 4096 * (1 + number % 3)).len();
        for number in (0..made).step_by(2) {
            fs.unlink(dir, format!("file-{number}").as_bytes()).unwrap();
        }
        fs.commit().unwrap();
        let node = touch(&fs, Node::ROOT, "in the gaps");
        let mut size = 0;
        while let Ok(done) = fs.write(node, size, &bytes(500_000, size as u32)) {
            size += done as u64;
        }
        assert!(size > 20 << 20, "{size}");
        glance(&image, fs);
        let fs = image.open();
        for number in (1..made).step_by(2).filter(|number| number % 20 != 1) {
            let found = fs.lookup(dir, format!("file-{number}").as_bytes()).unwrap();
            if found.is_some() {
                fs.unlink(dir, format!("file-{number}").as_bytes()).unwrap();
            }
        }
        judge(&image, fs);
    }
}
