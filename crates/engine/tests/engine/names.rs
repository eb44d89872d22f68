//! A directory knows the names that were made in it, and a name that it does not have is not searched for.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};

use buttress::{Errno, Filesystem, New, Node, Options, Rename};
use buttress_testkit::corpus::colliding_names;

use crate::judge::Image;

/// Bytes of memory that are enough for the names of all tests here; and for those of few.
const MUCH: u64 = 256 << 20;
const LITTLE: u64 = 12 << 20;

fn open(image: &Image, memory: u64) -> Filesystem {
    let options = Options::read_write().background(false).memory(memory);
    Filesystem::open(image.path(), options).unwrap()
}

fn make_directory(fs: &Filesystem) -> Node {
    let dir = fs.create(Node::ROOT, b"many", &New::directory(0o755)).unwrap().node;
    // No matter whether the directory has been committed, as long as none of its names was.
    fs.commit().unwrap();
    dir
}

/// Why something was refused.
fn why<T>(result: buttress::Result<T>) -> Option<Errno> {
    result.err().map(|error| error.errno())
}

fn name(number: u64) -> Vec<u8> {
    format!("name {number}").into_bytes()
}

/// Blocks of trees that are looked at to look for, and make, a name each of the numbers.
fn looks(fs: &Filesystem, dir: Node, numbers: std::ops::Range<u64>) -> u64 {
    let looked_at = || fs.stats().cache_hits + fs.stats().cache_misses;
    let before = looked_at();
    for number in numbers {
        assert!(fs.lookup(dir, &name(number)).unwrap().is_none());
        fs.create(dir, &name(number), &New::file(0o644)).unwrap();
    }
    looked_at() - before
}

/// Files in a directory with room for many names, and how many blocks are looked at for 1,000 more.
fn looks_beside(fs: &Filesystem, dir: Node, files: u64) -> u64 {
    for part in (0..files).step_by(20_000) {
        looks(fs, dir, part..(part + 20_000).min(files));
        fs.commit().unwrap();
    }
    let more = looks(fs, dir, files..files + 1000);
    for number in [0, files / 2, files - 1, files, files + 999] {
        assert_eq!(why(fs.create(dir, &name(number), &New::file(0o644))), Some(Errno::EXIST));
        assert!(fs.lookup(dir, &name(number)).unwrap().is_some());
    }
    more
}

#[test]
fn a_new_name_is_not_searched_for_where_all_are_known() {
    let image = Image::by_us(1 << 30);
    let fs = open(&image, MUCH);
    let dir = make_directory(&fs);
    let known = looks_beside(&fs, dir, 40_000);
    fs.close().unwrap();
    // Who has opened it anew knows none of them.
    let fs = open(&image, MUCH);
    let unknown = looks(&fs, dir, 41_000..42_000);
    assert!(
        known < 100 && unknown > 1000,
        "{known} blocks where they are known, {unknown} where not"
    );
    fs.close().unwrap();
    image.check();
}

#[test]
fn with_little_memory_names_are_searched_for_again() {
    let image = Image::by_us(2 << 30);
    let fs = open(&image, LITTLE);
    let dir = make_directory(&fs);
    let looked_at = looks_beside(&fs, dir, 200_000);
    assert!(looked_at > 1000, "{looked_at}");
    fs.close().unwrap();
    image.check();
}

/// Each name that is gone leaves something behind in what is known. When most are gone, all of it goes.
#[test]
fn names_that_go_are_forgotten() {
    let image = Image::by_us(1 << 30);
    let fs = open(&image, MUCH);
    let dir = make_directory(&fs);
    looks_beside(&fs, dir, 10_000);
    for number in 0..6000 {
        fs.unlink(dir, &name(number)).unwrap();
        assert!(fs.lookup(dir, &name(number)).unwrap().is_none());
    }
    fs.commit().unwrap();
    assert!(looks(&fs, dir, 0..1000) > 500);
    for number in 0..1000 {
        assert_eq!(why(fs.create(dir, &name(number), &New::file(0o644))), Some(Errno::EXIST));
    }
    fs.close().unwrap();
    image.check();
}

/// A few steps of a sequence that repeats itself for a seed.
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % end
    }
}

/// What names lead to in each of the directories.
type List = BTreeMap<(usize, Vec<u8>), u64>;

/// One step of what names do, and what the list says of it.
fn step(fs: &Filesystem, dirs: &[Node], names: &[Vec<u8>], list: &mut List, random: &mut Random) {
    let mut at = || (random.below(dirs.len()), names[random.below(names.len())].clone());
    let (here, there) = (at(), at());
    let (dir, to) = (dirs[here.0], dirs[there.0]);
    let found = fs.lookup(dir, &here.1).unwrap().map(|entry| entry.node.ino);
    assert_eq!(found, list.get(&here).copied());
    match random.below(18) {
        0..9 => match (fs.create(dir, &here.1, &New::file(0o644)), found) {
            (Ok(made), None) => drop(list.insert(here, made.node.ino)),
            (made, _) => assert_eq!((why(made), found.is_some()), (Some(Errno::EXIST), true)),
        },
        9..13 => match fs.unlink(dir, &here.1) {
            Ok(_) => assert_eq!(list.remove(&here), found),
            error => assert_eq!((why(error), found), (Some(Errno::NOENT), None)),
        },
        13..16 if found.is_some() => {
            fs.rename(dir, &here.1, to, &there.1, Rename::Replace).unwrap();
            // Two names of one file stay as they are.
            if list.get(&there) != list.get(&here) {
                let ino = list.remove(&here).unwrap();
                list.insert(there, ino);
            }
        }
        16.. if found.is_some() => {
            let node = Node { ino: found.unwrap(), ..dir };
            match fs.link(node, to, &there.1) {
                Ok(_) => drop(list.insert(there, node.ino)),
                error => {
                    let is_there = list.contains_key(&there);
                    assert_eq!((why(error), is_there), (Some(Errno::EXIST), true));
                }
            }
        }
        _ => {}
    }
}

/// Names come, go, are renamed and linked, some of one hash, in directories that are as old as their names and in older ones, with commits
/// between, or beside by another thread; a list says who is where.
fn names_as_a_list_has_them(seed: u64, memory: u64, beside: bool) {
    let image = Image::by_us(1 << 30);
    let mut names: Vec<Vec<u8>> = colliding_names(12);
    names.extend((0..30).map(name));
    let mut random = Random(seed);
    let mut list = List::new();
    let mut dirs = Vec::new();
    for round in 0..8u8 {
        let fs = open(&image, memory);
        if round % 2 == 0 {
            let made = fs.create(Node::ROOT, &[b'a' + round], &New::directory(0o755));
            dirs.push(made.unwrap().node);
        }
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            if beside {
                scope.spawn(|| {
                    while !done.load(Ordering::Relaxed) {
                        fs.commit().unwrap();
                    }
                });
            }
            let steps = catch_unwind(AssertUnwindSafe(|| {
                for number in 0..800 {
                    step(&fs, &dirs, &names, &mut list, &mut random);
                    if !beside && number % 30 == 29 {
                        fs.commit().unwrap();
                    }
                }
            }));
            done.store(true, Ordering::Relaxed);
            assert!(steps.is_ok(), "round {round} of seed {seed}");
        });
        fs.close().unwrap();
    }
    image.check();
}

#[test]
fn names_are_as_a_list_has_them() {
    for seed in 0..6 {
        names_as_a_list_has_them(seed, if seed % 2 == 0 { MUCH } else { LITTLE }, seed >= 3);
    }
}

/// Names of 255 bytes that share a hash.
fn long_names_of_one_hash(count: usize) -> Vec<Vec<u8>> {
    // What follows the same checksum leads to the same checksum.
    colliding_names(count).into_iter().map(|name| [&name[..], &[b'x'; 239]].concat()).collect()
}

/// So many long names of one hash fill their item. What is there can be replaced and exchanged, and what has gone makes room at once, as on Linux.
#[test]
fn a_full_item_lets_names_be_replaced() {
    let image = Image::of_nodes(1 << 30, 4096);
    let fs = image.open();
    let mut names = long_names_of_one_hash(15);
    let spare = names.split_off(14);
    let dir = make_directory(&fs);
    let make = |name: &[u8]| fs.create(dir, name, &New::file(0o644));
    let full = names.iter().take_while(|name| make(name).is_ok()).count();
    assert!((5..14).contains(&full), "{full}");
    let all = &names[..full];
    for commit in [false, true] {
        if commit {
            fs.commit().unwrap();
        }
        assert_eq!(why(make(&spare[0])), Some(Errno::OVERFLOW));
        let other = make(b"other").unwrap().node;
        fs.rename(dir, b"other", dir, &all[0], Rename::Replace).unwrap();
        assert_eq!(fs.lookup(dir, &all[0]).unwrap().unwrap().node, other);
        make(b"other").unwrap();
        fs.rename(dir, b"other", dir, &all[1], Rename::Exchange).unwrap();
        fs.unlink(dir, b"other").unwrap();
        fs.rename(dir, &all[2], dir, &all[3], Rename::Exchange).unwrap();
        assert_eq!(
            why(fs.rename(dir, &all[4], dir, &spare[0], Rename::Replace)),
            Some(Errno::OVERFLOW)
        );
        fs.rename(dir, &all[4], dir, &all[3], Rename::Replace).unwrap();
        make(&all[4]).unwrap();
        fs.unlink(dir, &all[4]).unwrap();
        make(&spare[0]).unwrap();
        assert_eq!(why(make(&all[4])), Some(Errno::OVERFLOW));
        fs.unlink(dir, &spare[0]).unwrap();
        make(&all[4]).unwrap();
    }
    fs.close().unwrap();
    image.check();
    let fs = image.open();
    assert!(all.iter().all(|name| fs.lookup(dir, name).unwrap().is_some()));
    fs.close().unwrap();
    image.mounted(|top| assert_eq!(top.join("many").read_dir().unwrap().count(), full));
}
