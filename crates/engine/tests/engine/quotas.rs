//! Quota groups that Linux has made are right after what we have done, as Linux counts them.

use std::collections::BTreeMap;
use std::path::Path;

use buttress::ondisk::item::{QgroupStatus, qgroup_status_flags};
use buttress::ondisk::{Key, kind, objectid};
use buttress::{Filesystem, New, Node, Options, Owner};
use buttress_testkit::oracle::{btrfs, root_or_skip};

use crate::judge::Image;

/// What `qgroup show` says of each group.
fn groups(top: &str) -> BTreeMap<String, (u64, u64)> {
    let said = btrfs(&["qgroup", "show", "--raw", "--sync", top]).unwrap();
    assert!(!said.contains("inconsistent"), "{said}");
    let lines = said.lines().filter(|line| line.contains('/'));
    let group = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        (words[0].to_owned(), (words[1].parse().unwrap(), words[2].parse().unwrap()))
    };
    lines.map(group).collect()
}

/// What the groups are is what Linux counts anew.
fn judge(image: &Image, count: usize) {
    image.check();
    image.mounted(|top| {
        let top = top.to_str().unwrap();
        let have = groups(top);
        btrfs(&["quota", "rescan", "-w", top]).unwrap();
        assert_eq!(have, groups(top));
        assert_eq!(have.len(), count, "{have:?}");
    });
}

/// What the groups say is what Linux counts anew.
pub fn judge_numbers(image: &Image) {
    image.mounted(|top| {
        let top = top.to_str().unwrap();
        let have = groups(top);
        btrfs(&["quota", "rescan", "-w", top]).unwrap();
        assert_eq!(have, groups(top));
    });
}

/// A group above those of two subvolumes and of all, as Linux keeps them.
fn made() -> Option<Image> {
    let image = Image::by_progs(512 << 20, &[]);
    if !root_or_skip() {
        return None;
    }
    image.mounted(|top| {
        let top = top.to_str().unwrap();
        for name in ["one", "two"] {
            btrfs(&["subvolume", "create", &format!("{top}/{name}")]).unwrap();
        }
        btrfs(&["quota", "enable", top]).unwrap();
        btrfs(&["qgroup", "create", "1/1", top]).unwrap();
        for group in ["0/256", "0/257"] {
            btrfs(&["qgroup", "assign", "--no-rescan", group, "1/1", top]).unwrap();
        }
        btrfs(&["quota", "rescan", "-w", top]).unwrap();
    });
    Some(image)
}

fn open(path: &Path) -> Filesystem {
    Filesystem::open(path, Options::read_write().background(false)).unwrap()
}

/// A file of some extents, of which every second one is the file's `from`, too.
fn fill(fs: &Filesystem, dir: Node, name: &[u8], from: Option<Node>) -> Node {
    let file = fs.create(dir, name, &New::file(0o600)).unwrap().node;
    for number in 0..40 {
        let at = number * 65536;
        match from.filter(|_| number % 2 == 0) {
            Some(from) => {
                fs.clone_range(from, at, 65536, file, at).unwrap();
            }
            None => {
                fs.write(file, at, &[number as u8; 65536]).unwrap();
            }
        }
    }
    file
}

#[test]
fn groups_of_linux_are_counted_on() {
    let Some(image) = made() else { return };
    let fs = open(&image.path());
    let [one, two] = [256, 257].map(Node::top);
    let first = fill(&fs, one, b"file", None);
    fs.commit().unwrap();
    // What two members of a group share is the group's alone; what the top has as well is not.
    let second = fill(&fs, two, b"file", Some(first));
    fill(&fs, Node::ROOT, b"file", Some(second));
    fs.commit().unwrap();
    fs.unlink(one, b"file").unwrap();
    fs.close().unwrap();
    judge(&image, 4);
}

#[test]
fn groups_come_and_go_with_subvolumes() {
    let Some(image) = made() else { return };
    let fs = open(&image.path());
    let work = fs.create_subvolume(Node::ROOT, b"work", Owner::default()).unwrap();
    for number in 0..300 {
        let name = format!("file{number}");
        let file = fs.create(Node::top(work), name.as_bytes(), &New::file(0o600)).unwrap().node;
        fs.write(file, 0, &[7; 9000]).unwrap();
    }
    for name in [&b"a"[..], b"b", b"c"] {
        fs.snapshot(work, Node::ROOT, name, false).unwrap();
        for number in 0..30 {
            let name = format!("file{}", number * 7);
            let file = fs.lookup(Node::top(work), name.as_bytes()).unwrap().unwrap().node;
            fs.write(file, 0, &[8; 5000]).unwrap();
        }
    }
    fs.commit().unwrap();
    fs.delete_subvolume(Node::ROOT, b"b").unwrap();
    fs.clean().unwrap();
    fs.close().unwrap();
    // The top, the two, the group of both, work, and two snapshots.
    judge(&image, 7);
    let fs = open(&image.path());
    for name in [&b"a"[..], b"c", b"work"] {
        fs.delete_subvolume(Node::ROOT, name).unwrap();
    }
    fs.clean().unwrap();
    fs.close().unwrap();
    judge(&image, 4);
}

#[test]
fn quotas_are_switched_on_here() {
    let image = Image::by_us(512 << 20);
    let fs = open(&image.path());
    let work = fs.create_subvolume(Node::ROOT, b"work", Owner::default()).unwrap();
    let file = fill(&fs, Node::top(work), b"file", None);
    fs.snapshot(work, Node::ROOT, b"snapshot", true).unwrap();
    fs.count_quotas(|_| true).unwrap();
    fs.write(file, 0, &[9; 100_000]).unwrap();
    fs.close().unwrap();
    image.check();
    if root_or_skip() {
        judge(&image, 3);
    }
}

/// What the status says.
fn flags(fs: &Filesystem) -> u64 {
    let (mut flags, key) = (0, Key::new(0, kind::QGROUP_STATUS, 0));
    fs.search(objectid::QUOTA_TREE, key, key, |_, _, data| {
        flags = QgroupStatus::of(data).unwrap().flags.get();
        true
    })
    .unwrap();
    flags
}

/// A snapshot of a member of a group that the snapshot is not in: what the group had alone nobody knows. It is said, and counted anew.
#[test]
fn what_is_not_known_is_counted_anew() {
    let Some(image) = made() else { return };
    let fs = open(&image.path());
    let file = fill(&fs, Node::top(256), b"file", None);
    fill(&fs, Node::ROOT, b"file", Some(file));
    fs.snapshot(256, Node::ROOT, b"snapshot", false).unwrap();
    fs.commit().unwrap();
    assert_eq!(flags(&fs), qgroup_status_flags::ON | qgroup_status_flags::INCONSISTENT);
    fs.close().unwrap();
    let fs = Filesystem::open(image.path(), Options::read_write()).unwrap();
    while flags(&fs) != qgroup_status_flags::ON {
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    fs.close().unwrap();
    judge(&image, 5);
}

/// What two members of a group share with a third subvolume is the group's alone when that one goes, and not referred to by it when both
/// members go: below blocks that nobody has changed.
#[test]
fn a_group_gains_and_loses_what_others_let_go_of() {
    for goes in [&["three"][..], &["one", "two"]] {
        let image = Image::by_progs(512 << 20, &[]);
        if !root_or_skip() {
            return;
        }
        image.mounted(|top| {
            let path = |name: &str| top.join(name).to_str().unwrap().to_owned();
            let top = top.to_str().unwrap();
            btrfs(&["subvolume", "create", &path("one")]).unwrap();
            for number in 0..3000 {
                std::fs::write(format!("{top}/one/file{number}"), [7; 5000]).unwrap();
            }
            for name in ["two", "three"] {
                btrfs(&["subvolume", "snapshot", &path("one"), &path(name)]).unwrap();
            }
            // A rescan that goes on would pass over what is assigned meanwhile.
            btrfs(&["quota", "enable", top]).unwrap();
            btrfs(&["quota", "rescan", "-w", top]).unwrap();
            btrfs(&["qgroup", "create", "1/1", top]).unwrap();
            for group in ["0/256", "0/257"] {
                btrfs(&["qgroup", "assign", "--no-rescan", group, "1/1", top]).unwrap();
            }
            btrfs(&["quota", "rescan", "-w", top]).unwrap();
        });
        judge(&image, 5);
        let fs = open(&image.path());
        for name in goes {
            fs.delete_subvolume(Node::ROOT, name.as_bytes()).unwrap();
        }
        fs.clean().unwrap();
        assert_eq!(flags(&fs), qgroup_status_flags::ON);
        fs.close().unwrap();
        judge(&image, 5 - goes.len());
    }
}

/// A subvolume of which a part is dropped: Linux goes on with it and comes to the same. What btrfs-progs counts of it in between is all that it had.
#[test]
fn linux_goes_on_where_a_subvolume_is_dropped_half_way() {
    for shared in [false, true] {
        let Some(image) = made() else { return };
        let options = Options::read_write().background(false).drop_blocks_max(8);
        let fs = Filesystem::open(image.path(), options).unwrap();
        let work = fs.create_subvolume(Node::ROOT, b"work", Owner::default()).unwrap();
        for number in 0..3000 {
            let name = format!("file{number}");
            let file = fs.create(Node::top(work), name.as_bytes(), &New::file(0o600)).unwrap().node;
            fs.write(file, 0, &[7; 5000]).unwrap();
        }
        if shared {
            for name in [&b"a"[..], b"b"] {
                fs.snapshot(work, Node::ROOT, name, false).unwrap();
            }
        }
        fs.commit().unwrap();
        fs.delete_subvolume(Node::ROOT, b"work").unwrap();
        fs.commit().unwrap();
        fs.close().unwrap();
        image.mounted(|top| {
            let top = top.to_str().unwrap();
            btrfs(&["subvolume", "sync", top]).unwrap();
        });
        judge(&image, if shared { 6 } else { 4 });
    }
}

/// Threads that write, take snapshots and delete them, so that there is a commit at any time; quotas of both kinds are switched on and off beside them.
/// Switching them on ends, however fast others commit, and what they say at the end is what is counted.
#[test]
fn quotas_come_and_go_while_others_write() {
    let image = Image::by_us(1 << 30);
    let fs = &Filesystem::open(image.path(), Options::read_write()).unwrap();
    let is_done = &std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        for thread in 0..8_u64 {
            let name = format!("work{thread}");
            let id = fs.create_subvolume(Node::ROOT, name.as_bytes(), Owner::default()).unwrap();
            scope.spawn(move || {
                let work = Node::top(id);
                let mut round = 0_u64;
                while !is_done.load(std::sync::atomic::Ordering::Relaxed) {
                    let file = format!("file{}", round % 50);
                    let file = match fs.lookup(work, file.as_bytes()).unwrap() {
                        Some(found) => found.node,
                        None => fs.create(work, file.as_bytes(), &New::file(0o600)).unwrap().node,
                    };
                    fs.write(file, round % 7 * 4096, &[round as u8; 20_000]).unwrap();
                    let snapshot = format!("snap{thread}-{}", round / 16 % 3);
                    if round.is_multiple_of(16) {
                        let _may_be_missing = fs.delete_subvolume(Node::ROOT, snapshot.as_bytes());
                        fs.snapshot(id, Node::ROOT, snapshot.as_bytes(), false).unwrap();
                    }
                    round += 1;
                }
            });
        }
        for _ in 0..4 {
            fs.count_quotas(|_| true).unwrap();
            assert!(fs.has_quotas());
            std::thread::sleep(std::time::Duration::from_millis(50));
            fs.disable_quotas().unwrap();
            fs.enable_simple_quotas().unwrap();
            std::thread::sleep(std::time::Duration::from_millis(50));
            fs.disable_quotas().unwrap();
        }
        fs.count_quotas(|_| true).unwrap();
        std::thread::sleep(std::time::Duration::from_millis(300));
        is_done.store(true, std::sync::atomic::Ordering::Relaxed);
    });
    fs.clean().unwrap();
    fs.clone().close().unwrap();
    if root_or_skip() {
        judge_numbers(&image);
    }
}
