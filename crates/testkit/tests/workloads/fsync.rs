//! fsync by the tree log: an image as a power cut right after it leaves it, replayed by the kernel.

use std::sync::Arc;

use buttress::{Allocate, Filesystem, New, Node, Options, Rename, SetXattr, Stats};
use buttress_codec::ChecksumKind;
use buttress_device::MemoryDevice;
use buttress_mkfs::Environment;
use buttress_testkit::facts::{Facts, diff, facts_of_dir};
use buttress_testkit::oracle::{self, KernelMount};

use crate::image::{Image, shape};
use crate::judge::check;
use crate::ours;
use crate::tools::{Numbers, bytes, content, mkdir, put_at, touch, truncate, write};

const MOUNT: &str = "noatime,subvolid=5";

/// What a case has to work with.
struct Case<'a> {
    fs: &'a Filesystem,
    dir: Node,
    old: Node,
}

/// Runs `after` on a filesystem with a committed directory `dir`, file `old` of 100,000 bytes and some more. All that it changes it also
/// syncs, so that the kernel has to find all of it. The statistics are answered.
fn case(image: &Image, after: impl FnOnce(&Case<'_>)) -> Stats {
    let fs = image.open_with(Options::read_write().background(false).tree_log(true));
    let dir = mkdir(&fs, Node::ROOT, "dir");
    let old = put_at(&fs, dir, b"old", &bytes(100_000, 1)).map(|_| ());
    assert!(old.is_some());
    let old = fs.lookup(dir, b"old").unwrap().unwrap().node;
    for number in 0..40 {
        put_at(&fs, dir, format!("other{number}").as_bytes(), &bytes(number * 300, 7)).unwrap();
    }
    fs.set_xattr(old, b"user.kept", b"value", SetXattr::Any).unwrap();
    fs.commit().unwrap();
    let before = fs.stats();
    after(&Case { fs: &fs, dir, old });
    let stats = fs.stats();
    assert_eq!(stats.commits, before.commits, "{:?}", stats.log_refused);
    assert!(stats.log_syncs > 0);
    let live = ours::facts(&fs);
    // Times of a directory are its own, and are synced with it only.
    let same = |seen: &Facts, whose: &str| {
        let lines = diff(seen, &live).into_iter().filter(|line| !line.contains("mtime"));
        let lines: Vec<_> = lines.collect();
        assert!(lines.is_empty(), "{whose}: {lines:#?}");
    };
    let (copy, mine) = (image.copy(), image.copy());
    let shown = mine.open_read_only();
    same(&ours::facts(&shown), "ours, only read");
    shown.close().unwrap();
    let replayed = mine.open();
    same(&ours::facts(&replayed), "ours");
    replayed.close().unwrap();
    check(&mine);
    if oracle::root_or_skip() {
        let mount = KernelMount::new(&copy.path(), MOUNT).unwrap();
        same(&facts_of_dir(mount.path()).unwrap(), "Linux");
        mount.finish().unwrap();
        check(&copy);
    }
    fs.close().unwrap();
    check(image);
    stats
}

fn plain(after: impl FnOnce(&Case<'_>)) -> Stats {
    case(&Image::by_progs(512 << 20, &[]), after)
}

#[test]
fn an_overwritten_file() {
    let stats = plain(|case| {
        write(case.fs, case.old, 5000, &bytes(9000, 3));
        case.fs.sync(case.old).unwrap();
    });
    assert_eq!((stats.log_syncs, stats.log_writes, stats.log_blocks), (1, 1, 2));
    assert_eq!(stats.log_searches, 0);
}

#[test]
fn a_new_file_and_one_in_a_new_directory() {
    plain(|case| {
        let new = touch(case.fs, case.dir, "new");
        write(case.fs, new, 0, b"short");
        case.fs.sync(new).unwrap();
        let deep = mkdir(case.fs, case.dir, "deep");
        let deeper = mkdir(case.fs, deep, "deeper");
        let file = touch(case.fs, deeper, "file");
        write(case.fs, file, 0, &bytes(300_000, 5));
        case.fs.set_xattr(file, b"user.new", b"x", SetXattr::Any).unwrap();
        case.fs.sync(file).unwrap();
        write(case.fs, file, 100_000, &bytes(4096, 6));
        case.fs.sync(file).unwrap();
    });
}

#[test]
fn appended_again_and_again() {
    let stats = plain(|case| {
        let log = touch(case.fs, case.dir, "log");
        for round in 0..100u32 {
            write(case.fs, log, u64::from(round) * 700, &bytes(700, round));
            case.fs.sync(log).unwrap();
        }
    });
    assert_eq!(stats.log_writes, 100);
}

#[test]
fn cut_grown_and_punched() {
    plain(|case| {
        truncate(case.fs, case.old, 30_000);
        case.fs.sync(case.old).unwrap();
        truncate(case.fs, case.old, 200_000);
        write(case.fs, case.old, 150_000, &bytes(20_000, 8));
        case.fs.fallocate(case.old, Allocate::PunchHole, 8192, 8192).unwrap();
        case.fs.sync(case.old).unwrap();
    });
}

#[test]
fn xattrs_set_and_removed() {
    plain(|case| {
        case.fs.set_xattr(case.old, b"user.more", &[7; 500], SetXattr::Any).unwrap();
        case.fs.sync(case.old).unwrap();
        case.fs.remove_xattr(case.old, b"user.kept").unwrap();
        case.fs.sync(case.old).unwrap();
    });
}

#[test]
fn a_directory_with_new_and_removed_entries() {
    plain(|case| {
        let empty = touch(case.fs, case.dir, "empty");
        case.fs.create(case.dir, b"link", &New::symlink(b"old")).unwrap();
        mkdir(case.fs, case.dir, "inner");
        case.fs.unlink(case.dir, b"other3").unwrap();
        case.fs.unlink(case.dir, b"other4").unwrap();
        case.fs.unlink(case.dir, b"other9").unwrap();
        case.fs.sync(case.dir).unwrap();
        case.fs.sync(empty).unwrap();
    });
}

#[test]
fn as_package_managers_do() {
    plain(|case| {
        for name in ["other1", "other2"] {
            let temporary = format!("{name}.new");
            let new = touch(case.fs, case.dir, &temporary);
            write(case.fs, new, 0, &bytes(20_000, 9));
            case.fs.sync(new).unwrap();
            let (from, to) = (temporary.as_bytes(), name.as_bytes());
            case.fs.rename(case.dir, from, case.dir, to, Rename::Replace).unwrap();
        }
        case.fs.sync(case.dir).unwrap();
    });
}

#[test]
fn as_sqlite_does() {
    let stats = plain(|case| {
        for round in 0..20u32 {
            let journal = touch(case.fs, case.dir, "old-journal");
            write(case.fs, journal, 0, &bytes(8704, round));
            case.fs.sync(journal).unwrap();
            case.fs.sync(case.dir).unwrap();
            write(case.fs, case.old, u64::from(round % 5) * 8192, &bytes(8192, round + 100));
            case.fs.sync(case.old).unwrap();
            case.fs.unlink(case.dir, b"old-journal").unwrap();
        }
        case.fs.sync(case.dir).unwrap();
    });
    assert_eq!(stats.log_searches, 0);
}

#[test]
fn as_mail_servers_do() {
    plain(|case| {
        let (tmp, new) = (mkdir(case.fs, case.dir, "tmp"), mkdir(case.fs, case.dir, "new"));
        for number in 0..10u32 {
            let name = format!("mail{number}");
            let mail = touch(case.fs, tmp, &name);
            write(case.fs, mail, 0, &bytes(3000, number));
            case.fs.sync(mail).unwrap();
            case.fs.link(mail, new, name.as_bytes()).unwrap();
            case.fs.unlink(tmp, name.as_bytes()).unwrap();
            case.fs.sync(mail).unwrap();
        }
    });
}

#[test]
fn other_shapes() {
    for (nodesize, checksum) in [(4096, ChecksumKind::Sha256), (65536, ChecksumKind::XxHash64)] {
        let image = Image::by_us(512 << 20, shape(nodesize, checksum));
        case(&image, |case| {
            for number in 0..100u32 {
                let file = touch(case.fs, case.dir, &format!("file{number}"));
                write(case.fs, file, 0, &bytes(number as usize * 997, number));
                write(case.fs, file, 200_000, &bytes(5000, number));
                case.fs.sync(file).unwrap();
            }
        });
    }
}

/// A file of which parts change again and again, synced each time: what is replayed is what it was. The first commit is in the way of
/// some, and the last ones are judged by the checkers and by Linux.
#[test]
fn parts_of_a_file_in_any_order() {
    for seed in 0..6 {
        let device = MemoryDevice::new(128 << 20);
        buttress_mkfs::make(&device, &Default::default(), &mut Environment::seeded(seed)).unwrap();
        let device = Arc::new(device);
        let options = Options::read_write().background(false);
        let fs = Filesystem::open_device(device.clone(), options.clone()).unwrap();
        let node = touch(&fs, Node::ROOT, "file");
        let (mut expect, mut numbers) = (Vec::new(), Numbers::new(seed));
        for step in 0..150u32 {
            change(&fs, node, &mut expect, &mut numbers, step);
            if step == 30 {
                fs.commit().unwrap();
            }
            if numbers.below(3) > 0 {
                fs.sync(node).unwrap();
                let copy = Arc::new(device.snapshot());
                let replayed = Filesystem::open_device(copy, options.clone()).unwrap();
                assert!(content(&replayed, node) == expect, "seed {seed}, step {step}");
            }
        }
        assert!(fs.stats().log_writes > 50, "{:?}", fs.stats());
        fs.sync(node).unwrap();
        let (ours, theirs) = (Image::of(&device), Image::of(&device));
        drop(ours.open());
        check(&ours);
        if oracle::root_or_skip() {
            let mount = KernelMount::new(&theirs.path(), MOUNT).unwrap();
            assert!(std::fs::read(mount.path().join("file")).unwrap() == expect, "seed {seed}");
            mount.finish().unwrap();
            check(&theirs);
        }
    }
}

/// One change of a file, and of what it is expected to hold.
fn change(fs: &Filesystem, node: Node, expect: &mut Vec<u8>, numbers: &mut Numbers, step: u32) {
    let at = numbers.below(300_000) as usize;
    let len = 1 + numbers.below([200, 9000, 70_000][step as usize % 3]) as usize;
    match numbers.below(8) {
        0 => {
            truncate(fs, node, at as u64);
            expect.resize(at, 0);
        }
        1 if !expect.is_empty() => {
            let at = at % expect.len();
            let len = len.min(expect.len() - at);
            fs.fallocate(node, Allocate::PunchHole, at as u64, len as u64).unwrap();
            expect[at..at + len].fill(0);
        }
        2 => {
            let reserve = Allocate::Reserve { keep_size: false };
            fs.fallocate(node, reserve, at as u64, len as u64).unwrap();
            expect.resize(expect.len().max(at + len), 0);
        }
        which => {
            let at = if which < 5 { expect.len() } else { at };
            let data = bytes(len, step);
            write(fs, node, at as u64, &data);
            expect.resize(expect.len().max(at + len), 0);
            expect[at..at + len].copy_from_slice(&data);
        }
    }
}

/// What the log cannot say is a commit, and the reason is counted.
#[test]
fn what_takes_a_commit() {
    let image = Image::by_progs(512 << 20, &[]);
    let fs = image.open_with(Options::read_write().background(false).tree_log(true));
    let dir = mkdir(&fs, Node::ROOT, "dir");
    let old = touch(&fs, dir, "old");
    write(&fs, old, 0, &bytes(100_000, 1));
    mkdir(&fs, Node::ROOT, "moves");
    fs.commit().unwrap();
    let counted = |what: &str, work: &dyn Fn() -> Node| {
        let node = work();
        let last = fs.stats();
        fs.sync(node).unwrap();
        let now = fs.stats();
        let at = Stats::REFUSALS.iter().position(|name| *name == what).unwrap();
        assert_eq!(now.log_refused[at], last.log_refused[at] + 1, "{what}: {now:?}");
        assert_eq!(now.commits, last.commits + 1, "{what}");
    };
    counted("names", &|| {
        fs.rename(dir, b"old", Node::ROOT, b"older", Rename::Replace).unwrap();
        old
    });
    counted("names", &|| {
        fs.link(old, dir, b"linked").unwrap();
        old
    });
    counted("taken", &|| {
        fs.rename(Node::ROOT, b"moves", dir, b"moved", Rename::Replace).unwrap();
        touch(&fs, Node::ROOT, "moves")
    });
    counted("clone", &|| {
        let source = touch(&fs, dir, "source");
        write(&fs, source, 0, &bytes(100_000, 1));
        let target = touch(&fs, dir, "target");
        assert_eq!(fs.clone_range(source, 0, 98_304, target, 0).unwrap(), 98_304);
        target
    });
    counted("prealloc", &|| {
        fs.fallocate(old, Allocate::Reserve { keep_size: true }, 0, 1 << 20).unwrap();
        fs.commit().unwrap();
        write(&fs, old, 0, b"more");
        old
    });
    assert_eq!(content(&fs, old)[..4], *b"more");
    fs.close().unwrap();
    check(&image);
}
