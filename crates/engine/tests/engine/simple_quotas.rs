//! Simple quotas: what the kernel counts when it does the same, and each goes on with the other's.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;

use buttress::ondisk::item::QgroupInfo;
use buttress::ondisk::{Key, kind, objectid};
use buttress::{
    Allocate, Change, Errno, Filesystem, New, NewLimits, Node, OpenMode, Owner, Rename,
};
use buttress_testkit::oracle::{KernelMount, btrfs, check, root_or_skip};

use crate::judge::Image;

/// One thing that is done. Paths are from the top.
#[derive(Clone, Copy, Debug)]
enum Do {
    Subvolume(&'static str),
    Snapshot(&'static str, &'static str),
    Delete(&'static str),
    /// Path, place and bytes in sectors.
    Write(&'static str, u64, usize),
    Clone(&'static str, &'static str),
    Remove(&'static str),
    Reserve(&'static str, u64),
    Sync,
}
use Do::*;

const SECTOR: u64 = 4096;

/// What has owners of all kinds: written anew below snapshots, cloned before and after commits, left behind by who is gone.
const FIRST: &[Do] = &[
    Subvolume("one"),
    Subvolume("two"),
    Subvolume("one/inner"),
    Write("one/a", 0, 40),
    Write("two/a", 0, 30),
    Write("top", 0, 9),
    Sync,
    Snapshot("one", "snap"),
    Write("one/a", 10, 8),
    Write("snap/a", 20, 5),
    Clone("one/a", "two/cloned"),
    Write("two/new", 0, 17),
    Clone("two/new", "one/new"),
    Clone("one/new", "again"),
    Remove("two/new"),
    Sync,
];

const SECOND: &[Do] = &[
    Write("one/inner/b", 0, 12),
    Reserve("one/inner/reserved", 50),
    Snapshot("snap", "third"),
    Write("third/c", 0, 3),
    Sync,
    Write("one/inner/reserved", 4, 2),
    Delete("snap"),
    Remove("two/a"),
    Delete("one/inner"),
    Sync,
    Write("top", 3, 20),
    Snapshot("two", "last"),
    Delete("two"),
    Sync,
];

/// Who does it.
trait Side {
    fn act(&mut self, what: Do);
}

struct Kernel<'a>(&'a Path);

impl Side for Kernel<'_> {
    fn act(&mut self, what: Do) {
        let at = |path: &str| self.0.join(path);
        let text = |path: &str| at(path).to_str().unwrap().to_owned();
        let run = |args: &[&str]| drop(btrfs(args).unwrap());
        match what {
            Subvolume(path) => run(&["subvolume", "create", &text(path)]),
            Snapshot(from, to) => run(&["subvolume", "snapshot", &text(from), &text(to)]),
            Delete(path) => {
                run(&["subvolume", "delete", "-c", &text(path)]);
                run(&["subvolume", "sync", self.0.to_str().unwrap()]);
            }
            Write(path, from, sectors) => {
                let mut options = fs::File::options();
                let file = options.create(true).truncate(false).write(true).open(at(path)).unwrap();
                let bytes = vec![from as u8 + 1; sectors * SECTOR as usize];
                file.write_all_at(&bytes, from * SECTOR).unwrap();
            }
            Clone(from, to) => {
                let mut copy = Command::new("cp");
                copy.arg("--reflink=always").args([at(from), at(to)]);
                assert!(copy.status().unwrap().success());
            }
            Remove(path) => fs::remove_file(at(path)).unwrap(),
            Reserve(path, sectors) => {
                let len = (sectors * SECTOR).to_string();
                let mut reserve = Command::new("fallocate");
                assert!(reserve.args(["-l", &len]).arg(at(path)).status().unwrap().success());
            }
            Sync => run(&["filesystem", "sync", self.0.to_str().unwrap()]),
        }
    }
}

struct Ours(Filesystem);

impl Side for Ours {
    fn act(&mut self, what: Do) {
        let Ours(fs) = self;
        let place = |path: &str| match path.rsplit_once('/') {
            Some((dir, name)) => (fs.resolve(dir).unwrap(), name.as_bytes().to_vec()),
            None => (Node::ROOT, path.as_bytes().to_vec()),
        };
        let file = |path: &str| {
            let (dir, name) = place(path);
            match fs.lookup(dir, &name).unwrap() {
                Some(found) => found.node,
                None => fs.create(dir, &name, &New::file(0o644)).unwrap().node,
            }
        };
        match what {
            Subvolume(path) => {
                let (dir, name) = place(path);
                fs.create_subvolume(dir, &name, Owner::default()).unwrap();
            }
            Snapshot(from, to) => {
                let (dir, name) = place(to);
                let source = fs.resolve(from).unwrap().subvolume;
                fs.snapshot(source, dir, &name, false).unwrap();
            }
            Delete(path) => {
                let (dir, name) = place(path);
                fs.delete_subvolume(dir, &name).unwrap();
                fs.clean().unwrap();
            }
            Write(path, from, sectors) => {
                let bytes = vec![from as u8 + 1; sectors * SECTOR as usize];
                fs.write(file(path), from * SECTOR, &bytes).unwrap();
            }
            Clone(from, to) => {
                let (from, to) = (file(from), file(to));
                let len = fs.attributes(from).unwrap().size;
                assert_eq!(fs.clone_range(from, 0, len, to, 0).unwrap(), len);
            }
            Remove(path) => {
                let (dir, name) = place(path);
                fs.unlink(dir, &name).unwrap();
            }
            Reserve(path, sectors) => {
                let how = Allocate::Reserve { keep_size: false };
                fs.fallocate(file(path), how, 0, sectors * SECTOR).unwrap();
            }
            Sync => drop(fs.commit().unwrap()),
        }
    }
}

/// What the groups have, as the kernel shows it.
fn groups(top: &Path) -> BTreeMap<String, (u64, u64)> {
    let said = btrfs(&["qgroup", "show", "--raw", "--sync", top.to_str().unwrap()]).unwrap();
    let lines = said.lines().filter(|line| line.contains('/'));
    let group = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        (words[0].to_owned(), (words[1].parse().unwrap(), words[2].parse().unwrap()))
    };
    lines.map(group).collect()
}

/// What the groups refer to.
fn usage(fs: &Filesystem) -> BTreeMap<u64, u64> {
    let mut usage = BTreeMap::new();
    fs.commit().unwrap();
    fs.search(objectid::QUOTA_TREE, Key::MIN, Key::MAX, |key, _, data| {
        if key.kind == kind::QGROUP_INFO {
            let info = QgroupInfo::of(data).unwrap();
            assert_eq!(info.rfer.get(), info.excl.get());
            usage.insert(key.offset, info.rfer.get());
        }
        true
    })
    .unwrap();
    usage
}

pub fn switch_on(top: &Path) -> bool {
    const SCRIPT: &str = "import fcntl, os, struct, sys
fcntl.ioctl(os.open(sys.argv[1], 0), 0xc0109428, struct.pack('QQ', 4, 0))";
    let output = Command::new("python3").args(["-c", SCRIPT]).arg(top).output();
    let done = output.is_ok_and(|output| output.status.success());
    if !done {
        println!("skipped: needs python3 and simple quotas of the kernel");
    }
    done
}

/// Whether the kernel counts simple quotas.
pub fn can_compare() -> bool {
    root_or_skip() && {
        let image = Image::by_us(256 << 20);
        let mount = KernelMount::new(&image.path(), "").unwrap();
        let done = switch_on(mount.path());
        mount.finish().unwrap();
        done
    }
}

/// Who switches them on and does the first part, and the second.
fn done_by(image: &Image, (first, second): (bool, bool)) -> BTreeMap<String, (u64, u64)> {
    for (number, (ours, acts)) in [(first, FIRST), (second, SECOND)].into_iter().enumerate() {
        if ours {
            let mut side = Ours(image.open());
            if number == 0 {
                side.0.enable_simple_quotas().unwrap();
                assert!(side.0.has_simple_quotas());
            }
            acts.iter().for_each(|act| side.act(*act));
            side.0.close().unwrap();
        } else {
            let mount = KernelMount::new(&image.path(), "").unwrap();
            if number == 0 {
                assert!(switch_on(mount.path()));
            }
            let mut side = Kernel(mount.path());
            acts.iter().for_each(|act| side.act(*act));
            mount.finish().unwrap();
        }
    }
    let mount = KernelMount::new(&image.path(), "").unwrap();
    let found = groups(mount.path());
    mount.finish().unwrap();
    found
}

#[test]
fn the_kernel_counts_the_same() {
    if !can_compare() {
        return;
    }
    let by = |ours| done_by(&Image::by_us(512 << 20), ours);
    let kernel = by((false, false));
    assert!(kernel.len() > 5, "{kernel:?}");
    for ours in [(true, true), (true, false), (false, true)] {
        assert_eq!(by(ours), kernel, "first and second by us: {ours:?}");
    }
}

/// A subvolume has what it has allocated until that is gone, be it gone itself by then; a limit holds for that, and not for what is cloned.
#[test]
fn who_allocates_is_charged() {
    let image = Image::by_us(256 << 20);
    let mut side = Ours(image.open());
    side.0.enable_simple_quotas().unwrap();
    let used = |side: &Ours, id: u64| usage(&side.0).get(&id).copied();
    for act in [Subvolume("one"), Subvolume("two"), Write("one/a", 0, 100), Sync] {
        side.act(act);
    }
    let (one, two) = (256, 257);
    let full = used(&side, one).unwrap();
    assert_eq!(full, 100 * SECTOR + 16384);
    side.0.limit_qgroup(two, NewLimits { rfer: Some(Some(200_000)), excl: None }).unwrap();
    // That nothing in it is older than simple quotas is known after opening, too: no copies are charged.
    side.0.close().unwrap();
    side = Ours(image.open());
    for act in [Clone("one/a", "two/a"), Sync, Remove("one/a"), Sync] {
        side.act(act);
    }
    assert_eq!((used(&side, one), used(&side, two)), (Some(full), Some(16384)));
    let file = side.0.resolve("two/a").unwrap();
    let refused = side.0.write(file, 0, &[1; 300_000]);
    assert_eq!(refused.unwrap_err().errno(), Errno::DQUOT);
    // The group of who is gone stays with what others have of it.
    for act in [Delete("one"), Sync] {
        side.act(act);
    }
    assert_eq!(used(&side, one), Some(100 * SECTOR));
    assert_eq!(side.0.destroy_qgroup(one).unwrap_err().errno(), Errno::BUSY);
    for act in [Remove("two/a"), Sync] {
        side.act(act);
    }
    assert_eq!(used(&side, one), Some(0));
    assert!(side.0.destroy_qgroup(one).unwrap());
    assert_eq!(side.0.count_quotas(|_| true).unwrap_err().errno(), Errno::INVAL);
    side.0.disable_quotas().unwrap();
    assert!(!side.0.has_quotas() && !side.0.has_simple_quotas());
    for act in [Write("two/b", 0, 30), Sync] {
        side.act(act);
    }
    // Full ones can follow; the owners of before are left in their items.
    side.0.count_quotas(|_| true).unwrap();
    assert!(!side.0.has_simple_quotas());
    side.0.close().unwrap();
    image.mounted(|top| {
        let have = groups(top);
        btrfs(&["quota", "rescan", "-w", top.to_str().unwrap()]).unwrap();
        assert_eq!(have, groups(top));
    });
    let _read = image.open_read_only().open_file("two/b", OpenMode::read()).unwrap();
}

/// What a snapshot has, too, or what is older than simple quotas, is copied before it is changed, and who copies has allocated that: he is refused where his group has no room for it, be it for the
/// sake of attributes. So it is on Linux, where it may go a little beyond the limit, and so it is that who deletes is let in.
#[test]
fn copies_are_held() {
    type Act = fn(&Filesystem, Node, u64) -> buttress::Result<()>;
    const FILES: u64 = 3000;
    let changes: &[Act] = &[
        |fs, top, number| {
            let file = fs.lookup(top, name(number).as_bytes())?.unwrap().node;
            fs.set_attributes(file, &Change { mode: Some(0o640), ..Change::default() }).map(drop)
        },
        |fs, top, number| {
            fs.create(top, format!("new{number}").as_bytes(), &New::file(0o600)).map(drop)
        },
        |fs, top, number| {
            let to = format!("renamed{number}");
            fs.rename(top, name(number).as_bytes(), top, to.as_bytes(), Rename::NoReplace).map(drop)
        },
        |fs, top, number| {
            let file = fs.lookup(top, name(number).as_bytes())?.unwrap().node;
            fs.write(file, 0, b"a few").map(drop)
        },
    ];
    for (change, is_older) in changes.iter().flat_map(|change| [(change, false), (change, true)]) {
        let image = Image::by_us(512 << 20);
        let fs = image.open();
        if !is_older {
            fs.enable_simple_quotas().unwrap();
        }
        let work = fs.create_subvolume(Node::ROOT, b"work", Owner::default()).unwrap();
        let top = Node::top(work);
        for number in 0..FILES {
            fs.create(top, name(number).as_bytes(), &New::file(0o600)).unwrap();
        }
        fs.commit().unwrap();
        match is_older {
            true => fs.enable_simple_quotas().unwrap(),
            false => _ = fs.snapshot(work, Node::ROOT, b"snapshot", true).unwrap(),
        }
        fs.close().unwrap();
        let fs = image.open();
        let limit = usage(&fs)[&work] + (1 << 20);
        fs.limit_qgroup(work, NewLimits { rfer: Some(Some(limit)), excl: None }).unwrap();
        let (done, refused) = (0..FILES).step_by(17).fold((0, 0), |(done, refused), number| {
            match change(&fs, top, number) {
                Ok(()) => (done + 1, refused),
                Err(error) => {
                    assert_eq!(error.errno(), Errno::DQUOT);
                    (done, refused + 1)
                }
            }
        });
        let has = usage(&fs)[&work];
        let what = format!("{done} done, {refused} refused, {has} of {limit}");
        assert!(done > 0 && refused > 0 && has <= limit, "{what}, older: {is_older}");
        for number in (1..FILES).step_by(17) {
            let _node = fs.unlink(top, name(number).as_bytes()).unwrap();
        }
        fs.close().unwrap();
    }
}

/// A long name, so that files have some leaves.
fn name(number: u64) -> String {
    format!("{number}-{}", "n".repeat(200))
}

/// Groups above have what their members have, and who is made in a member is in its groups.
#[test]
fn groups_above_have_the_sum() {
    let image = Image::by_us(256 << 20);
    let mut side = Ours(image.open());
    side.0.enable_simple_quotas().unwrap();
    for act in [Subvolume("one"), Write("one/a", 0, 10), Sync] {
        side.act(act);
    }
    let above = 1 << 48 | 7;
    side.0.create_qgroup(above).unwrap();
    assert!(side.0.assign_qgroup(256, above).unwrap());
    let used = |side: &Ours, id| usage(&side.0)[&id];
    assert_eq!(used(&side, above), 10 * SECTOR + 16384);
    for act in [Subvolume("one/two"), Write("one/two/b", 0, 5), Snapshot("one", "one/snap"), Sync] {
        side.act(act);
    }
    assert_eq!(used(&side, above), 15 * SECTOR + 3 * 16384);
    assert!(side.0.remove_qgroup(256, above).unwrap());
    assert_eq!(used(&side, above), 5 * SECTOR + 2 * 16384);
    side.0.close().unwrap();
}

/// What moves counts for whom it counted for before; data that nobody owned are nobody's.
#[test]
fn what_moves_keeps_its_owner() {
    let image = Image::by_us(256 << 20);
    let mut side = Ours(image.open());
    for act in [Subvolume("old"), Write("old/a", 0, 60), Sync] {
        side.act(act);
    }
    side.0.enable_simple_quotas().unwrap();
    for act in [Subvolume("one"), Write("one/a", 0, 100), Snapshot("one", "snap"), Sync] {
        side.act(act);
    }
    let (old, one, snap) = (256, 257, 258);
    let before = usage(&side.0);
    assert_eq!((before[&one], before[&snap]), (100 * SECTOR + 16384, 16384));
    for _ in 0..2 {
        for group in side.0.block_groups() {
            assert_eq!(side.0.empty_block_group(group.start, |_| true).unwrap().failed, []);
        }
        let after = usage(&side.0);
        assert_eq!((after[&one], after[&snap]), (before[&one], before[&snap]));
        assert!(after[&old] <= 16384 && !after.contains_key(&0), "{after:?}");
    }
    side.0.commit().unwrap();
    // All data that are as old as simple quotas say whose they are; those that have moved are no older or newer than before.
    check(&image.path(), true).unwrap();
    for act in [Remove("old/a"), Remove("one/a"), Delete("snap"), Sync] {
        side.act(act);
    }
    let after = usage(&side.0);
    assert_eq!((after[&old], after[&one]), (16384, 16384));
    side.0.close().unwrap();
    image.mounted(|top| assert!(groups(top).len() > 2));
}

/// What was allocated before they were switched off counts no more when they are on again, wherever it moves, though it says still whose it is.
#[test]
fn what_was_counted_once_is_not_counted_again() {
    let image = Image::by_us(256 << 20);
    let mut side = Ours(image.open());
    side.0.enable_simple_quotas().unwrap();
    for act in [Subvolume("one"), Write("one/a", 0, 100), Sync] {
        side.act(act);
    }
    assert_eq!(usage(&side.0)[&256], 100 * SECTOR + 16384);
    side.0.disable_quotas().unwrap();
    side.0.enable_simple_quotas().unwrap();
    side.act(Write("one/b", 0, 10));
    for _ in 0..2 {
        // The root of the subvolume is new.
        assert_eq!(usage(&side.0)[&256], 10 * SECTOR + 16384);
        for group in side.0.block_groups() {
            assert_eq!(side.0.empty_block_group(group.start, |_| true).unwrap().failed, []);
        }
    }
    check(&image.path(), true).unwrap();
    for act in [Remove("one/a"), Sync] {
        side.act(act);
    }
    assert_eq!(usage(&side.0)[&256], 10 * SECTOR + 16384);
    side.0.close().unwrap();
}
