//! Quota groups that Linux has made are right after what we have done, as Linux counts them.

use std::collections::BTreeMap;
use std::path::Path;

use buttress::ondisk::item::{QgroupStatus, qgroup_status_flags};
use buttress::ondisk::{Key, kind, objectid};
use buttress::{Filesystem, New, Node, Options, Owner};
use buttress_testkit::ops::compare;
use buttress_testkit::ops::rng::Rng;
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

/// Whoever counts anew crashes: that numbers are wrong is on the disk, and whoever opens it next counts them, be it Linux.
#[test]
fn a_count_that_a_crash_ends_is_begun_anew() {
    let Some(image) = made() else { return };
    let fs = open(&image.path());
    let file = fill(&fs, Node::top(256), b"file", None);
    fill(&fs, Node::ROOT, b"file", Some(file));
    fs.snapshot(256, Node::ROOT, b"snapshot", false).unwrap();
    fs.commit().unwrap();
    let (state, by_linux) = (Image::by_us(256 << 20), Image::by_us(256 << 20));
    // This is what a crash leaves: no commit is made during a pass.
    let ended = fs.count_quotas(|_| {
        std::fs::copy(image.path(), state.path()).unwrap();
        false
    });
    assert!(ended.is_err());
    fs.close().unwrap();
    let left = qgroup_status_flags::ON | qgroup_status_flags::INCONSISTENT;
    assert_eq!(flags(&state.open_read_only()), left);
    std::fs::copy(state.path(), by_linux.path()).unwrap();
    by_linux.mounted(|top| {
        btrfs(&["quota", "rescan", "-w", top.to_str().unwrap()]).unwrap();
    });
    judge(&by_linux, 5);
    let fs = Filesystem::open(state.path(), Options::read_write()).unwrap();
    while flags(&fs) != qgroup_status_flags::ON {
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    fs.close().unwrap();
    judge(&state, 5);
}

/// Linux unmounts while it counts anew, and leaves how far it was: we count all of it.
#[test]
fn a_count_that_linux_has_not_finished_is_finished_here() {
    let Some(image) = made() else { return };
    let fs = open(&image.path());
    for number in 0..4000 {
        let name = format!("file{number}");
        let file = fs.create(Node::top(256), name.as_bytes(), &New::file(0o600)).unwrap().node;
        fs.write(file, 0, &[7; 5000]).unwrap();
    }
    fs.snapshot(256, Node::ROOT, b"snapshot", false).unwrap();
    fs.close().unwrap();
    image.mounted(|top| {
        btrfs(&["quota", "rescan", top.to_str().unwrap()]).unwrap();
    });
    let left = flags(&image.open_read_only());
    // It may have been quick.
    println!("Linux has left the flags {left:#x}");
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

/// Does something while eight threads write, take snapshots and delete them, so that there is a commit at any time. The first of their subvolumes is 256.
fn while_others_write(fs: &Filesystem, act: impl FnOnce()) {
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
        // Else nobody would end them.
        let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(act));
        std::thread::sleep(std::time::Duration::from_millis(300));
        is_done.store(true, std::sync::atomic::Ordering::Relaxed);
        done.unwrap();
    });
}

/// Quotas of both kinds are switched on and off beside eight threads. Switching them on ends, however fast others commit, and what they say at the end is what
/// is counted.
#[test]
fn quotas_come_and_go_while_others_write() {
    let image = Image::by_us(1 << 30);
    let fs = &Filesystem::open(image.path(), Options::read_write()).unwrap();
    while_others_write(fs, || {
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
    });
    fs.clean().unwrap();
    fs.clone().close().unwrap();
    if root_or_skip() {
        judge_numbers(&image);
    }
}

/// Quotas become wrong again and again beside eight threads, as what one of these shares with its snapshots is put into a group; each time they are
/// counted anew by request, and at the end by nobody's.
#[test]
fn quotas_are_counted_anew_while_others_write() {
    let image = Image::by_us(1 << 30);
    let fs = &Filesystem::open(image.path(), Options::read_write()).unwrap();
    fs.count_quotas(|_| true).unwrap();
    let group = 1 << 48 | 1;
    fs.create_qgroup(group).unwrap();
    let mut commits = 0;
    while_others_write(fs, || {
        for _ in 0..5 {
            std::thread::sleep(std::time::Duration::from_millis(50));
            fs.assign_qgroup(256, group).unwrap();
            let before = fs.info().generation;
            fs.count_quotas(|_| true).unwrap();
            commits += fs.info().generation - before;
            fs.remove_qgroup(256, group).unwrap();
        }
        fs.assign_qgroup(256, group).unwrap();
    });
    // Each of them takes two by itself.
    assert!(commits > 10, "nobody has committed meanwhile");
    fs.clean().unwrap();
    while flags(fs) != qgroup_status_flags::ON {
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    fs.clone().close().unwrap();
    if root_or_skip() {
        judge_numbers(&image);
    }
}

/// What is left of a subvolume that is dropped half way is asked from where dropping goes on: what its blocks name before that is gone.
#[test]
fn half_of_a_file_is_dropped_while_others_write() {
    let image = Image::by_us(512 << 20);
    let options = Options::read_write().background(false).drop_blocks_max(16);
    let fs = Filesystem::open(image.path(), options).unwrap();
    let work = fs.create_subvolume(Node::ROOT, b"work", Owner::default()).unwrap();
    let file = fs.create(Node::top(work), b"file", &New::file(0o600)).unwrap().node;
    let (pieces, piece) = (10_000u64, 4096);
    for at in (0..pieces * piece).step_by(4 << 20) {
        fs.write(file, at, &vec![7; 4 << 20]).unwrap();
    }
    let other = fs.create(Node::ROOT, b"other", &New::file(0o600)).unwrap().node;
    fs.clone_range(file, 0, pieces * piece, other, 0).unwrap();
    let third = fs.create_subvolume(Node::ROOT, b"third", Owner::default()).unwrap();
    fs.commit().unwrap();
    // Each second piece is another extent: those of the first ones are in many leaves.
    for number in (0..pieces).step_by(2) {
        fs.write(file, number * piece, &[8; 4096]).unwrap();
    }
    fs.count_quotas(|_| true).unwrap();
    fs.delete_subvolume(Node::ROOT, b"work").unwrap();
    fs.commit().unwrap();
    let mut rounds = 0;
    while fs.is_dropping() {
        let name = format!("file{rounds}");
        let file = fs.create(Node::top(third), name.as_bytes(), &New::file(0o600)).unwrap().node;
        fs.clone_range(other, 0, pieces * piece, file, 0).unwrap();
        fs.write(other, rounds * 8192, &[9; 4096]).unwrap();
        commit_and_compare(&fs);
        rounds += 1;
    }
    assert!(rounds > 1, "{rounds}");
    fs.close().unwrap();
    image.check();
    if root_or_skip() {
        judge(&image, 2);
    }
}

/// A subvolume `work` with files of 4 KiB, so many in a few directories.
fn files(fs: &Filesystem, count: u64) -> (u64, Vec<Node>) {
    let work = fs.create_subvolume(Node::ROOT, b"work", Owner::default()).unwrap();
    let make = |number: u64| {
        let name = format!("file{number:06}");
        let file = fs.create(Node::top(work), name.as_bytes(), &New::file(0o600)).unwrap().node;
        fs.write(file, 0, &[number as u8; 4096]).unwrap();
        file
    };
    (work, (0..count).map(make).collect())
}

fn overwrite<'f>(fs: &Filesystem, files: impl IntoIterator<Item = &'f Node>) {
    for file in files {
        fs.write(*file, 0, &[255; 4096]).unwrap();
    }
}

/// Blocks that are read to delete a snapshot where the cache keeps few, and how many leaves of it are compared with others.
fn reads_of_a_deletion(quotas: bool) -> [u64; 2] {
    let image = Image::by_us(1 << 30);
    let fs = image.open();
    let (work, all) = files(&fs, 8000);
    let one = fs.snapshot(work, Node::ROOT, b"one", false).unwrap();
    fs.snapshot(one, Node::ROOT, b"snapshot", false).unwrap();
    // Each leaf changes, and most of what it names is there still.
    overwrite(&fs, all.iter().step_by(20));
    if quotas {
        fs.count_quotas(|_| true).unwrap();
    }
    fs.close().unwrap();
    let options = Options::read_write().background(false).cache_bytes(1 << 20);
    let fs = Filesystem::open(image.path(), options).unwrap();
    fs.delete_subvolume(Node::ROOT, b"snapshot").unwrap();
    fs.commit().unwrap();
    let before = fs.stats();
    while fs.is_dropping() {
        fs.commit().unwrap();
    }
    let after = fs.stats();
    if quotas {
        commit_and_compare(&fs);
    }
    fs.close().unwrap();
    image.check();
    let compared = after.quota_extents[2] - before.quota_extents[2];
    [after.cache_misses - before.cache_misses, compared]
}

/// Leaves that somebody is left alone with are read once, and so is each that they are compared with.
#[test]
fn what_one_is_left_alone_with_is_read_once() {
    let [[without, _], [with, compared]] = [false, true].map(reads_of_a_deletion);
    println!("{without} blocks are read, {with} with quotas, for {compared} leaves");
    assert!(compared > 100, "{compared} compared");
    let more = with.saturating_sub(without);
    assert!(more < compared * 5 / 2, "{more} blocks more are read for {compared} leaves");
}

/// What the commit has counted is what a pass counts.
fn commit_and_compare(fs: &Filesystem) {
    fs.commit().unwrap();
    assert!(!fs.has_wrong_quotas());
    compare::quotas(fs).unwrap();
}

fn finish(image: &Image, fs: Filesystem) {
    fs.clean().unwrap();
    compare::quotas(&fs).unwrap();
    fs.close().unwrap();
    image.check();
}

/// What is overwritten below snapshots is lost, but where the tree has it elsewhere: in another file, or in one that is read only through a clone.
#[test]
fn what_is_overwritten_below_snapshots_is_lost_where_it_is_nowhere_else() {
    let image = Image::by_us(512 << 20);
    let fs = open(&image.path());
    let (work, files) = files(&fs, 2000);
    let far = fs.create_subvolume(Node::ROOT, b"far", Owner::default()).unwrap();
    for number in [3, 500, 501, 1999] {
        for top in [work, far] {
            let name = format!("clone{number}");
            let file = fs.create(Node::top(top), name.as_bytes(), &New::file(0o600)).unwrap().node;
            fs.clone_range(files[number], 0, 4096, file, 0).unwrap();
        }
    }
    fs.count_quotas(|_| true).unwrap();
    for round in 0..4usize {
        let name = format!("snapshot{round}");
        fs.snapshot(work, Node::ROOT, name.as_bytes(), round % 2 == 0).unwrap();
        commit_and_compare(&fs);
        overwrite(&fs, files.iter().skip(round * 100).step_by(round + 1));
        commit_and_compare(&fs);
    }
    // Snapshots and what they are taken of lose the same in one commit, in leaves that both of them copy.
    let snapshot = fs.resolve("snapshot3").unwrap();
    for number in 600..700 {
        let name = format!("file{number:06}");
        for top in [Node::top(work), snapshot] {
            fs.unlink(top, name.as_bytes()).unwrap();
        }
    }
    commit_and_compare(&fs);
    finish(&image, fs);
}

/// What is new in a commit may have several owners at once.
#[test]
fn clones_within_a_commit_are_counted() {
    let image = Image::by_us(512 << 20);
    let fs = open(&image.path());
    let (work, files) = files(&fs, 300);
    let ids = [b"a", b"b", b"c"].map(|name| {
        let id = fs.create_subvolume(Node::ROOT, name, Owner::default()).unwrap();
        (id, fs.create(Node::top(id), b"file", &New::file(0o600)).unwrap().node)
    });
    fs.count_quotas(|_| true).unwrap();
    fs.snapshot(work, Node::ROOT, b"snapshot", false).unwrap();
    overwrite(&fs, &files[..100]);
    for (number, (_, to)) in ids.iter().enumerate() {
        for (from, file) in files.iter().enumerate().take(150).skip(number * 20) {
            fs.clone_range(*file, 0, 4096, *to, from as u64 * 4096).unwrap();
        }
    }
    commit_and_compare(&fs);
    // Lost and gained in one commit, and gained by whom it was taken away in the same one.
    overwrite(&fs, &files[40..120]);
    let (_, first) = ids[0];
    for number in 0..60 {
        fs.write(first, number * 4096, &[3; 4096]).unwrap();
        fs.clone_range(first, number * 4096, 4096, files[number as usize], 0).unwrap();
        fs.clone_range(ids[1].1, 100 * 4096, 4096, first, number * 4096).unwrap();
    }
    commit_and_compare(&fs);
    fs.delete_subvolume(Node::ROOT, b"a").unwrap();
    fs.delete_subvolume(Node::ROOT, b"work").unwrap();
    commit_and_compare(&fs);
    finish(&image, fs);
}

/// Every second snapshot is deleted, in small steps, while others are written to and taken. The groups of the deleted ones go first; what nobody but one has
/// after that is his, step by step.
#[test]
fn deleted_snapshots_are_dropped_in_steps_while_others_change() {
    for above in [&[][..], &[2], &[2, 3, 4]] {
        let image = Image::by_us(512 << 20);
        let options = Options::read_write().background(false).drop_blocks_max(16);
        let fs = Filesystem::open(image.path(), options).unwrap();
        let (work, files) = files(&fs, 5000);
        for number in 0..8usize {
            let name = format!("snapshot{number}");
            fs.snapshot(work, Node::ROOT, name.as_bytes(), false).unwrap();
            overwrite(&fs, files.iter().skip(number * 37 % 50).step_by(50));
        }
        fs.count_quotas(|_| true).unwrap();
        let group = 1 << 48 | 1;
        fs.create_qgroup(group).unwrap();
        for number in above {
            let member = fs.resolve(format!("snapshot{number}")).unwrap().subvolume;
            fs.assign_qgroup(member, group).unwrap();
            fs.count_quotas(|_| true).unwrap();
        }
        for number in [0, 2, 3, 6] {
            fs.delete_subvolume(Node::ROOT, format!("snapshot{number}").as_bytes()).unwrap();
        }
        let (mut rounds, mut rng) = (0, Rng::new(above.len() as u64));
        while rounds == 0 || fs.is_dropping() {
            let from = rng.below(4990) as usize;
            overwrite(&fs, &files[from..from + 10]);
            let kept = fs.resolve("snapshot1").unwrap();
            let name = format!("file{:06}", rng.below(5000));
            if let Some(file) = fs.lookup(kept, name.as_bytes()).unwrap() {
                fs.clone_range(files[from], 0, 4096, file.node, 0).unwrap();
            }
            if rounds % 16 == 3 {
                let name = format!("more{rounds}");
                fs.snapshot(work, Node::ROOT, name.as_bytes(), true).unwrap();
            }
            commit_and_compare(&fs);
            rounds += 1;
        }
        assert!(rounds > 10, "{rounds}");
        finish(&image, fs);
    }
}

/// A deleted subvolume has no group, but for one that is in another group: that goes with the last of it.
#[test]
fn the_group_of_a_deleted_subvolume_goes_at_once() {
    let image = Image::by_us(512 << 20);
    let options = Options::read_write().background(false).drop_blocks_max(16);
    let fs = Filesystem::open(image.path(), options).unwrap();
    let (work, files) = files(&fs, 2000);
    let ids = [b"a", b"b"].map(|name| fs.snapshot(work, Node::ROOT, name, false).unwrap());
    overwrite(&fs, &files[..500]);
    fs.count_quotas(|_| true).unwrap();
    let group = 1 << 48 | 1;
    fs.create_qgroup(group).unwrap();
    fs.assign_qgroup(ids[1], group).unwrap();
    fs.count_quotas(|_| true).unwrap();
    for name in [b"a", b"b"] {
        fs.delete_subvolume(Node::ROOT, name).unwrap();
    }
    commit_and_compare(&fs);
    assert!(fs.is_dropping());
    let has = |fs: &Filesystem, id| {
        let groups = compare::Quotas::of(fs).unwrap();
        groups.usage.contains_key(&id)
    };
    assert_eq!(ids.map(|id| has(&fs, id)), [false, true]);
    while fs.is_dropping() {
        commit_and_compare(&fs);
    }
    assert_eq!(ids.map(|id| has(&fs, id)), [false, false]);
    // What a snapshot is taken of has its group until the snapshot has the numbers.
    let last = fs.snapshot(work, Node::ROOT, b"last", false).unwrap();
    overwrite(&fs, &files[400..600]);
    fs.delete_subvolume(Node::ROOT, b"work").unwrap();
    commit_and_compare(&fs);
    assert!(has(&fs, last));
    while fs.is_dropping() {
        commit_and_compare(&fs);
    }
    assert!(!has(&fs, work));
    finish(&image, fs);
}

/// Who reaches blocks is remembered from commit to commit, but not beyond a snapshot, which reaches them, too: in the commit before that one, or in the same, something
/// is dropped, so that it is looked for who reaches the leaves; then only the snapshot is left of these, and loses what is overwritten there.
#[test]
fn who_reaches_blocks_is_forgotten_when_a_snapshot_is_taken() {
    for is_dropped_before in [false, true] {
        let image = Image::by_us(512 << 20);
        let fs = open(&image.path());
        let (work, files) = files(&fs, 1000);
        fs.count_quotas(|_| true).unwrap();
        let first = fs.snapshot(work, Node::ROOT, b"first", false).unwrap();
        // The leaves are the first snapshot's alone from here on, and most of what they name is in both.
        overwrite(&fs, files.iter().step_by(20));
        commit_and_compare(&fs);
        fs.delete_subvolume(Node::ROOT, b"work").unwrap();
        // The next commit drops it.
        fs.commit().unwrap();
        assert!(fs.is_dropping());
        if is_dropped_before {
            commit_and_compare(&fs);
        }
        fs.snapshot(first, Node::ROOT, b"second", false).unwrap();
        commit_and_compare(&fs);
        fs.delete_subvolume(Node::ROOT, b"first").unwrap();
        commit_and_compare(&fs);
        while fs.is_dropping() {
            commit_and_compare(&fs);
        }
        let second = fs.resolve("second").unwrap();
        for number in (5..1000).step_by(20) {
            let name = format!("file{number:06}");
            let file = fs.lookup(second, name.as_bytes()).unwrap().unwrap().node;
            overwrite(&fs, [&file]);
        }
        commit_and_compare(&fs);
        finish(&image, fs);
    }
}

/// Snapshots and what they are taken of are written to by turns, and several in one commit, where they share leaves and name extents in several of them; each commit
/// counts what a pass counts.
#[test]
fn trees_that_share_leaves_lose_and_gain_in_one_commit() {
    for seed in 0..8 {
        let image = Image::by_us(512 << 20);
        let options = Options::read_write().background(false).drop_blocks_max(16);
        let fs = Filesystem::open(image.path(), options).unwrap();
        let (work, _) = files(&fs, 500);
        let (mut trees, mut rng) = (BTreeMap::from([(work, "work".to_owned())]), Rng::new(seed));
        fs.count_quotas(|_| true).unwrap();
        let group = 1 << 48 | 1;
        fs.create_qgroup(group).unwrap();
        for round in 0..40 {
            let ids: Vec<u64> = trees.keys().copied().collect();
            for _ in 0..1 + rng.below(3) {
                change_some(&fs, &ids, &mut rng);
            }
            let some = ids[rng.below(ids.len() as u64) as usize];
            match rng.below(8) {
                0..4 if trees.len() < 12 => {
                    let name = format!("snapshot{round}");
                    let groups = if seed % 2 == 0 && rng.one_in(4) { &[group][..] } else { &[] };
                    let id = fs.snapshot_in(some, Node::ROOT, name.as_bytes(), false, groups);
                    trees.insert(id.unwrap(), name);
                }
                4 if trees.len() > 3 => {
                    let name = trees.remove(&some).unwrap_or_default();
                    fs.delete_subvolume(Node::ROOT, name.as_bytes()).unwrap();
                }
                _ => {}
            }
            if round % 8 == 5 {
                // Leaves that have moved count by their addresses, those that their owners reach still, too.
                for group in fs.block_groups() {
                    fs.empty_block_group(group.start, |_| true).unwrap();
                }
            }
            fs.commit().unwrap();
            if fs.has_wrong_quotas() {
                // A snapshot is in a group that has what it is taken of.
                fs.count_quotas(|_| true).unwrap();
            }
            commit_and_compare(&fs);
        }
        finish(&image, fs);
    }
}

/// Some files in a row of a tree are overwritten, or have what files of another one have.
fn change_some(fs: &Filesystem, trees: &[u64], rng: &mut Rng) {
    let [tree, other] = [(); 2].map(|()| trees[rng.below(trees.len() as u64) as usize]);
    let (first, step, from) = (rng.below(500), 1 + rng.below(4), rng.below(500));
    let find = |tree, number: u64| {
        let name = format!("file{:06}", number % 500);
        fs.lookup(Node::top(tree), name.as_bytes()).unwrap().unwrap().node
    };
    let clones = rng.one_in(4);
    for number in 0..rng.below(60) {
        let file = find(tree, first + number * step);
        match clones {
            true => drop(fs.clone_range(find(other, from + number), 0, 4096, file, 0).unwrap()),
            false => overwrite(fs, [&file]),
        }
    }
}
