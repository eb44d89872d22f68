//! Block groups are emptied: what was in them is elsewhere, everything reads as before, and btrfs-progs and the kernel agree.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};

use buttress::{Errno, FileKind, Filesystem, GroupInfo, New, Node, Options, Owner};
use buttress_ondisk::item::{RootItem, chunk_type};
use buttress_ondisk::{Key, kind, objectid};
use buttress_testkit::ops::rng::Rng;

use crate::judge::Image;

/// What every file of every subvolume holds, by path: names, sizes, and sums of contents.
pub fn contents(fs: &Filesystem) -> BTreeMap<String, (u64, u64)> {
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
pub fn fill(fs: &Filesystem, seed: u64) {
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

pub fn judge(image: &Image, expected: &BTreeMap<String, (u64, u64)>) {
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

/// Threads that write, clone, take snapshots and delete them, while groups are emptied all the time. Each thread knows what its files hold.
#[test]
fn groups_are_emptied_beside_others() {
    let image = Image::by_us(1 << 30);
    let fs = &Filesystem::open(image.path(), Options::read_write()).unwrap();
    fs.count_quotas(|_| true).unwrap();
    let is_done = &AtomicBool::new(false);
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..4_u64)
            .map(|thread| {
                let name = format!("work{thread}");
                let id = fs.create_subvolume(Node::ROOT, name.as_bytes(), Owner::default());
                let id = id.unwrap();
                scope.spawn(move || work(fs, thread, id, is_done))
            })
            .collect();
        for _ in 0..3 {
            for group in fs.block_groups() {
                match fs.empty_block_group(group.start, |_| true) {
                    Ok(done) => assert_eq!(done.failed, []),
                    // Others have given it back, or had no room without it.
                    Err(error) => assert!(
                        matches!(error.errno(), Errno::NOENT | Errno::NOSPC | Errno::BUSY),
                        "{error}"
                    ),
                }
            }
        }
        is_done.store(true, Ordering::Relaxed);
        workers.into_iter().for_each(|worker| worker.join().unwrap());
    });
    let expected = contents(fs);
    fs.clone().close().unwrap();
    judge(&image, &expected);
    if buttress_testkit::oracle::root_or_skip() {
        crate::quotas::judge_numbers(&image);
    }
}

/// Files whose content is known, in one subvolume: changed and compared until it `is_done`.
fn work(fs: &Filesystem, thread: u64, id: u64, is_done: &AtomicBool) {
    let (mut rng, mut known) = (Rng::new(thread), BTreeMap::<String, Vec<u8>>::new());
    let top = Node::top(id);
    let mut round = 0;
    while !is_done.load(Ordering::Relaxed) {
        round += 1;
        let name = format!("file{}", rng.below(40));
        let file = match fs.lookup(top, name.as_bytes()).unwrap() {
            Some(found) => found.node,
            None => fs.create(top, name.as_bytes(), &New::file(0o600)).unwrap().node,
        };
        let content = known.entry(name.clone()).or_default();
        let mut have = vec![0; content.len()];
        assert_eq!(fs.read(file, 0, &mut have).unwrap(), content.len());
        assert!(have == *content, "{name} of thread {thread} in round {round}");
        match rng.below(8) {
            0 => {
                fs.unlink(top, name.as_bytes()).unwrap();
                known.remove(&name);
            }
            1 => {
                let other = format!("file{}", rng.below(40));
                let from = known.get(&other).cloned().filter(|from| from.len() >= 8192);
                let (Some(from), true) = (from, other != name) else { continue };
                let source = fs.lookup(top, other.as_bytes()).unwrap().unwrap().node;
                assert_eq!(fs.clone_range(source, 0, 8192, file, 0).unwrap(), 8192);
                let content = known.entry(name).or_default();
                content.resize(content.len().max(8192), 0);
                content[..8192].copy_from_slice(&from[..8192]);
            }
            2 if round % 5 == 0 => {
                let name = format!("snap{thread}-{}", rng.below(3));
                let _may_be_missing = fs.delete_subvolume(Node::ROOT, name.as_bytes());
                fs.snapshot(id, Node::ROOT, name.as_bytes(), false).unwrap();
            }
            3 => fs.sync(file).unwrap(),
            _ => {
                let (at, len) = (rng.below(200_000) as usize, 1 + rng.below(50_000) as usize);
                let bytes = vec![rng.below(256) as u8; len];
                fs.write(file, at as u64, &bytes).unwrap();
                content.resize(content.len().max(at + len), 0);
                content[at..at + len].copy_from_slice(&bytes);
            }
        }
    }
}

/// Trees that are empty have a leaf all the same.
#[test]
fn an_empty_filesystem_can_be_emptied() {
    let image = Image::by_us(256 << 20);
    let fs = image.open();
    for group in fs.block_groups() {
        assert_eq!(fs.empty_block_group(group.start, |_| true).unwrap().failed, []);
    }
    fs.close().unwrap();
    judge(&image, &BTreeMap::new());
}

/// Where the image has a pattern: in what is in use, and in what was.
fn places(image: &Image, pattern: &[u8], within: &[(u64, u64)]) -> Vec<u64> {
    let bytes = std::fs::read(image.path()).unwrap();
    let mut found = Vec::new();
    for (start, len) in within {
        let part = &bytes[*start as usize..(*start + *len) as usize];
        let mut windows = part.windows(pattern.len()).enumerate();
        while let Some((at, _)) = windows.find(|(_, window)| *window == pattern) {
            found.push(start + at as u64);
            windows.nth(pattern.len());
        }
    }
    found
}

/// Turns over a bit of each of these patterns, or back where it is still there.
fn turn_over(image: &Image, pattern: &[u8], places: &[u64]) {
    let mut bytes = std::fs::read(image.path()).unwrap();
    for at in places {
        let found = &mut bytes[*at as usize..][..pattern.len()];
        if found[1..] == pattern[1..] {
            found[0] ^= 1;
        }
    }
    std::fs::write(image.path(), &bytes).unwrap();
}

/// What is spoiled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Spoiled {
    Data,
    /// The leaf that refers to it.
    Leaf,
    /// The root of a snapshot that shares leaves with others.
    Root,
}

/// What cannot be read stays where it is, and all else moves. Where a block above what moves cannot be read, none of the blocks that the search had
/// come to by then moves for its sake.
#[test]
fn what_cannot_be_read_stays_where_it_is() {
    for spoiled in [Spoiled::Data, Spoiled::Leaf, Spoiled::Root] {
        let image = Image::once(512 << 20);
        let fs = image.open();
        let special = fs.create(Node::ROOT, b"special-name", &New::file(0o600)).unwrap().node;
        fill(&fs, 7);
        fs.write(special, 0, &[0xa7; 20_000]).unwrap();
        fs.commit().unwrap();
        let expected = contents(&fs);
        let all = fs.block_groups().into_iter();
        let groups: Vec<_> = all.map(|it| (it, fs.device_ranges(it.start))).collect();
        let root = root_of(&fs, b"snap100");
        fs.close().unwrap();
        let with = |flag, pattern: &[u8]| {
            let of_type = groups.iter().filter(move |(group, _)| group.flags & flag != 0);
            let mut found =
                of_type.map(|(group, ranges)| (*group, places(&image, pattern, ranges)));
            found.rfind(|(_, places)| !places.is_empty()).unwrap()
        };
        let mut data = with(1, &[0xa7; 20_000]).0;
        let (pattern, at) = match spoiled {
            Spoiled::Data => (vec![0xa7; 20_000], with(1, &[0xa7; 20_000]).1),
            Spoiled::Leaf => (b"special-name".to_vec(), with(4, b"special-name").1),
            Spoiled::Root => {
                // Its files are in the first one.
                data = groups.iter().find(|(group, _)| group.flags & 1 != 0).unwrap().0;
                let inside = |(group, _): &&(GroupInfo, _)| {
                    (group.start..group.start + group.len).contains(&root)
                };
                let (group, ranges) = groups.iter().find(inside).unwrap();
                let at = ranges[0].0 + (root - group.start);
                let bytes = std::fs::read(image.path()).unwrap();
                (bytes[at as usize..][..16384].to_vec(), vec![at])
            }
        };
        turn_over(&image, &pattern, &at);
        let fs = image.open();
        let done = fs.empty_block_group(data.start, |_| true).unwrap();
        assert!(!done.failed.is_empty() && done.moved > 0, "{spoiled:?}: {done:?}");
        assert!(spoiled != Spoiled::Data || done.failed.len() == 1, "{done:?}");
        assert!(fs.block_groups().contains(&GroupInfo { used: left(&fs, data.start), ..data }));
        fs.close().unwrap();
        turn_over(&image, &pattern, &at);
        judge(&image, &expected);
        let fs = image.open();
        assert_eq!(fs.empty_block_group(data.start, |_| true).unwrap().failed, []);
        fs.close().unwrap();
        judge(&image, &expected);
    }
}

/// Where the tree of a subvolume starts.
fn root_of(fs: &Filesystem, name: &[u8]) -> u64 {
    let id = fs.lookup(Node::ROOT, name).unwrap().unwrap().node.subvolume;
    let from = Key::new(id, kind::ROOT_ITEM, 0);
    let mut found = 0;
    let to = Key { offset: u64::MAX, ..from };
    fs.search(objectid::ROOT_TREE, from, to, |_, _, data| {
        found = RootItem::read(data).unwrap().bytenr.get();
        true
    })
    .unwrap();
    found
}

fn left(fs: &Filesystem, start: u64) -> u64 {
    fs.block_groups().into_iter().find(|group| group.start == start).unwrap().used
}

/// Linux reserves space in extents that are longer than any that we write.
#[test]
fn extents_longer_than_ours_move() {
    if !buttress_testkit::oracle::root_or_skip() {
        return;
    }
    let image = Image::by_progs(3 << 30, &[]);
    image.mounted(|top| {
        let file = top.join("file");
        let path = file.to_str().unwrap();
        buttress_testkit::oracle::tool("fallocate", &["-l", "420M", path]).unwrap();
        use std::os::unix::fs::FileExt;
        let file = std::fs::File::options().write(true).open(&file).unwrap();
        file.write_all_at(&[5; 1 << 20], 100 << 20).unwrap();
    });
    let fs = image.open();
    let expected = contents(&fs);
    for group in fs.block_groups().into_iter().filter(|group| group.flags & 1 != 0) {
        let done = fs.empty_block_group(group.start, |_| true).unwrap();
        assert_eq!(done.failed, [], "{group:?}");
    }
    fs.close().unwrap();
    judge(&image, &expected);
}

/// Each of very many snapshots has a root above what they share: more blocks than a batch begins with.
#[test]
fn what_very_many_snapshots_share_moves_at_once() {
    let image = Image::by_us(1 << 30);
    let fs = image.open();
    let work = fs.create_subvolume(Node::ROOT, b"work", Owner::default()).unwrap();
    for number in 0..70_u64 {
        let name = format!("a file with a name of some length {number}");
        let file = fs.create(Node::top(work), name.as_bytes(), &New::file(0o600)).unwrap().node;
        fs.write(file, 0, &vec![number as u8; 3000]).unwrap();
    }
    for number in 0..600_u64 {
        fs.snapshot(work, Node::ROOT, format!("snap{number}").as_bytes(), true).unwrap();
    }
    for group in fs.block_groups() {
        let done = fs.empty_block_group(group.start, |_| true).unwrap();
        assert_eq!(done.failed, [], "{group:?}");
    }
    assert_eq!(fs.stats().beyond_promise, 0);
    let expected = contents(&fs);
    fs.close().unwrap();
    judge(&image, &expected);
}

/// Metadata of several groups, of which one is emptied: blocks that stay lie below others that have moved.
#[test]
fn what_stays_lies_below_what_has_moved() {
    let image = Image::by_us(400 << 20);
    let fs = image.open();
    let work = fs.create_subvolume(Node::ROOT, b"work", Owner::default()).unwrap();
    for number in 0..24_000_u64 {
        let name = format!("file{}", number * 7919 % 24_000);
        let file = fs.create(Node::top(work), name.as_bytes(), &New::file(0o600)).unwrap().node;
        fs.write(file, 0, &[number as u8; 1800]).unwrap();
        if number % 6000 == 5999 {
            fs.snapshot(work, Node::ROOT, format!("snap{number}").as_bytes(), true).unwrap();
        }
    }
    fs.commit().unwrap();
    let is_metadata = |group: &&GroupInfo| group.flags & chunk_type::METADATA != 0;
    let groups = fs.block_groups();
    let groups: Vec<&GroupInfo> = groups.iter().filter(is_metadata).collect();
    assert!(groups.len() > 1, "{groups:?}");
    let done = fs.empty_block_group(groups[0].start, |_| true).unwrap();
    assert!(done.failed.is_empty() && done.moved > 100, "{done:?}");
    fs.close().unwrap();
    buttress_testkit::oracle::check_ours(&image.path(), true).unwrap();
    image.check();
    let fs = image.open();
    for number in 0..2000_u64 {
        let name = format!("file{}", number * 11);
        let file = fs.lookup(Node::top(work), name.as_bytes()).unwrap().unwrap().node;
        fs.write(file, 0, &[1; 1500]).unwrap();
    }
    fs.delete_subvolume(Node::ROOT, b"snap5999").unwrap();
    fs.clean().unwrap();
    fs.close().unwrap();
    buttress_testkit::oracle::check_ours(&image.path(), true).unwrap();
    image.check();
}
