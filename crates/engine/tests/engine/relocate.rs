//! Block groups are emptied: what was in them is elsewhere, everything reads as before, and btrfs-progs and the kernel agree.

use std::collections::BTreeMap;

use buttress::{FileKind, Filesystem, New, Node, Owner};
use buttress_testkit::ops::rng::Rng;

use crate::judge::Image;

/// What every file of every subvolume holds, by path: names, sizes, and sums of contents.
fn contents(fs: &Filesystem) -> BTreeMap<String, (u64, u64)> {
    let mut all = BTreeMap::new();
    let mut waiting = vec![(Node::ROOT, String::new())];
    while let Some((dir, path)) = waiting.pop() {
        let mut entries = Vec::new();
        fs.read_dir(dir, 0, &mut |entry| {
            entries.push(entry);
            true
        })
        .unwrap();
        for entry in entries {
            let path = format!("{path}/{}", String::from_utf8_lossy(&entry.name));
            let node = fs.lookup(dir, &entry.name).unwrap().unwrap().node;
            let attributes = fs.attributes(node).unwrap();
            if attributes.kind == FileKind::Directory {
                waiting.push((node, path.clone()));
                all.insert(path, (0, 0));
                continue;
            }
            let mut content = vec![0; attributes.size as usize];
            if attributes.kind == FileKind::Regular {
                assert_eq!(fs.read(node, 0, &mut content).unwrap(), content.len());
            }
            let sum = content
                .iter()
                .fold(7_u64, |sum, byte| (sum ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3));
            all.insert(path, (attributes.size, sum));
        }
    }
    all
}

/// Subvolumes with small and large files, snapshots that share with them, clones of parts, and reserved space.
fn fill(fs: &Filesystem, seed: u64) {
    let mut rng = Rng::new(seed);
    let work = fs.create_subvolume(Node::ROOT, b"work", Owner::default()).unwrap();
    let other = fs.create_subvolume(Node::ROOT, b"other", Owner::default()).unwrap();
    for number in 0..1500_u64 {
        let name = format!("file{number}");
        let dir = Node::top(if number % 3 == 0 { other } else { work });
        let file = fs.create(dir, name.as_bytes(), &New::file(0o600)).unwrap().node;
        let len = if number % 50 == 0 { 900_000 } else { rng.below(9000) as usize };
        fs.write(file, 0, &vec![number as u8; len]).unwrap();
        if number % 100 == 0 {
            let snapshot = format!("snap{number}");
            fs.snapshot(work, Node::ROOT, snapshot.as_bytes(), number % 200 == 0).unwrap();
        }
        if number % 50 == 7 {
            let large = format!("file{}", number / 50 * 50);
            for source in [work, other] {
                let found = fs.lookup(Node::top(source), large.as_bytes()).unwrap();
                if let Some(from) = found {
                    fs.clone_range(from.node, 65536, 131_072, file, 16384).unwrap();
                }
            }
        }
    }
    fs.commit().unwrap();
    for number in 0..300_u64 {
        let name = format!("file{}", number * 5);
        if let Some(found) = fs.lookup(Node::top(work), name.as_bytes()).unwrap() {
            fs.write(found.node, 4096, &[9; 5000]).unwrap();
        }
    }
    fs.commit().unwrap();
}

fn judge(image: &Image, expected: &BTreeMap<String, (u64, u64)>) {
    image.check();
    let fs = image.open_read_only();
    assert_eq!(contents(&fs), *expected);
    drop(fs);
    image.mounted(|_| ());
}

/// All groups, one after the other, of a filesystem with snapshots.
#[test]
fn every_group_can_be_emptied() {
    let image = Image::by_us(1 << 30);
    let fs = image.open();
    fill(&fs, 1);
    let expected = contents(&fs);
    for group in fs.block_groups() {
        let done = fs.empty_block_group(group.start, |_| true).unwrap();
        assert_eq!(done.failed, [], "group {group:?}");
        assert!(fs.block_groups().iter().all(|other| other.start != group.start));
        assert_eq!(contents(&fs), expected, "after group {group:?}");
    }
    fs.close().unwrap();
    judge(&image, &expected);
    let fs = image.open();
    fs.delete_subvolume(Node::ROOT, b"snap100").unwrap();
    fs.clean().unwrap();
    fs.close().unwrap();
    image.check();
}
