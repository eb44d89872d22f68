//! What tools ask: how files are stored, their paths, and what is new in a tree.

use buttress::ondisk::{Key, kind};
use buttress::{Allocate, Errno, Filesystem, New, Node, Stored, StoredIn};

use crate::judge::{Image, bytes};

fn stored(fs: &Filesystem, node: Node) -> Vec<Stored> {
    let mut all = Vec::new();
    fs.stored(node, |part| {
        all.push(part);
        true
    })
    .unwrap();
    all
}

fn put(fs: &Filesystem, path: &str, content: &[u8]) -> Node {
    crate::judge::put(fs, path, content);
    fs.resolve(path).unwrap()
}

/// Before the commit, while it is not in the tree, and after it.
#[test]
fn layers_are_stored_as_the_commit_stores_them() {
    let image = Image::by_us(512 << 20);
    let fs = image.open();
    let node = put(&fs, "/file", &bytes(1 << 20, 1));
    fs.fallocate(node, Allocate::Reserve { keep_size: true }, 2 << 20, 1 << 20).unwrap();
    let clone = fs.create(Node::ROOT, b"clone", &New::file(0o644)).unwrap().node;
    fs.clone_range(node, 0, 1 << 20, clone, 0).unwrap();
    let small = put(&fs, "/small", &bytes(100, 2));
    fs.commit().unwrap();
    let first = stored(&fs, node);
    assert_eq!(stored(&fs, clone).len(), 1, "the reserved part is not cloned");
    assert_eq!(
        stored(&fs, small),
        [Stored {
            start: 0,
            len: 100,
            compression: 0,
            disk_len: 100,
            ram_len: 100,
            place: StoredIn::Item,
        }]
    );
    // The middle is written over and a part of it punched: the first extent is in two parts.
    fs.write(node, 256 << 10, &bytes(128 << 10, 3)).unwrap();
    fs.fallocate(node, Allocate::PunchHole, 320 << 10, 8 << 10).unwrap();
    let before = stored(&fs, node);
    fs.commit().unwrap();
    let after = stored(&fs, node);
    assert_eq!(before, after);
    assert_ne!(first, after);
    let of_first = after.iter().filter(|part| part.place == first[0].place);
    assert!(of_first.map(|part| part.disk_len).eq([1 << 20, 1 << 20]), "{after:?}");
    let sum: u64 = after.iter().map(|part| part.len).sum();
    assert_eq!(sum, (2 << 20) - (8 << 10));
    // In parts, one at a time, as a live mount is asked.
    let (mut parts, mut from) = (Vec::new(), Some(0));
    while let Some(start) = from {
        let (some, next) = fs.stored_from(node, start, 1).unwrap();
        assert!(some.len() <= 1);
        parts.extend(some);
        from = next;
    }
    assert_eq!(parts, after);
    assert_eq!(fs.stored(Node::ROOT, |_| true).unwrap_err().errno(), Errno::ISDIR);
    fs.close().unwrap();
    let fs = image.open_read_only();
    assert_eq!(stored(&fs, node), after);
}

#[test]
fn every_name_has_its_path() {
    let image = Image::by_us(512 << 20);
    let fs = image.open();
    let directory = fs.create(Node::ROOT, b"dir", &New::directory(0o755)).unwrap().node;
    let deep = fs.create(directory, b"deep", &New::directory(0o755)).unwrap().node;
    let file = put(&fs, "/dir/deep/first", b"x");
    // More than one item has room for.
    let mut wanted: Vec<Vec<u8>> = vec![b"dir/deep/first".to_vec()];
    for number in 0..300 {
        let name = format!("{number:0200}").into_bytes();
        let (at, path) = match number % 2 {
            0 => (Node::ROOT, name.clone()),
            _ => (deep, [b"dir/deep/", &name[..]].concat()),
        };
        fs.link(file, at, &name).unwrap();
        wanted.push(path);
        if number == 150 {
            fs.commit().unwrap();
        }
    }
    wanted.sort();
    let sorted = |mut paths: Vec<Vec<u8>>| {
        paths.sort();
        paths
    };
    assert_eq!(sorted(fs.paths_in_subvolume(file).unwrap()), wanted);
    fs.commit().unwrap();
    assert_eq!(sorted(fs.paths_in_subvolume(file).unwrap()), wanted);
    assert!(wanted.contains(&fs.first_path_in_subvolume(file).unwrap().unwrap()));
    assert_eq!(fs.paths_in_subvolume(deep).unwrap(), [b"dir/deep"]);
    assert_eq!(fs.paths_in_subvolume(Node::ROOT).unwrap(), [b".."]);
    let missing = Node { ino: 1 << 30, ..file };
    assert_eq!(fs.paths_in_subvolume(missing).unwrap_err().errno(), Errno::NOENT);
}

/// Leaves that are too old are left out, and not read.
#[test]
fn what_is_new_is_found_without_reading_what_is_old() {
    let image = Image::by_us(512 << 20);
    let fs = image.open();
    let tree = Node::ROOT.subvolume;
    let mut commits = Vec::new();
    for round in 0..5 {
        for number in 0..2000 {
            let name = format!("{round}-{number}-{:0100}", 0).into_bytes();
            fs.create(Node::ROOT, &name, &New::file(0o644)).unwrap();
        }
        commits.push(fs.commit().unwrap());
    }
    let newest = put(&fs, "/newest", b"x");
    commits.push(fs.commit().unwrap());
    let (from, to) = (Key::new(300, kind::INODE_ITEM, 0), Key::new(u64::MAX, 0, 0));
    let mut all = Vec::new();
    fs.search(tree, from, to, |key, transid, _| {
        all.push((key, transid));
        true
    })
    .unwrap();
    for since in commits.iter().flat_map(|commit| [*commit, commit + 1]).chain([0]) {
        let mut found = Vec::new();
        fs.search_since(tree, from..=to, since, |key, transid, _| {
            found.push((key, transid));
            true
        })
        .unwrap();
        let wanted = all.iter().filter(|(_, transid)| *transid >= since);
        assert!(wanted.eq(&found), "{since}");
    }
    let read = |since| {
        fs.drop_caches();
        let (_, before) = fs.core().blocks.uses();
        fs.search_since(tree, from..=to, since, |_, _, _| true).unwrap();
        fs.core().blocks.uses().1 - before
    };
    let (last, whole) = (read(commits[5]), read(0));
    assert!(newest.ino > 10_000 && last * 20 < whole, "{last} of {whole} blocks");
}
