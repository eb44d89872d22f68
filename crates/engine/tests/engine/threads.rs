//! Several threads at once, beside commits, snapshots and deletions.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use buttress::{Filesystem, New, Node, Options, Owner, Rename};
use buttress_testkit::ops::rng::Rng;

use crate::judge::{Image, bytes, content, names};

fn name(thread: u32, number: u32) -> String {
    format!("{thread}-{number}")
}

/// Makes, changes, moves and removes files of its own in `dir`.
fn work(fs: &Filesystem, dir: Node, other: Node, thread: u32) {
    for number in 0..300 {
        let new = New::file(0o600);
        let file = fs.create(dir, name(thread, number).as_bytes(), &new).unwrap().node;
        let data = bytes((number as usize * 7919) % 150_000, number);
        assert_eq!(fs.write(file, 0, &data).unwrap(), data.len());
        let mut read = vec![0; data.len()];
        let got = fs.read(file, 0, &mut read).unwrap();
        assert!(read[..got] == data[..got], "{thread} {number}");
        match number % 4 {
            0 => {
                let (from, to) = (name(thread, number), name(thread, number + 10_000));
                let moved = fs.rename(dir, from.as_bytes(), other, to.as_bytes(), Rename::Replace);
                moved.unwrap();
            }
            1 => drop(fs.unlink(dir, name(thread, number).as_bytes()).unwrap()),
            2 => drop(fs.write(file, 5000, b"changed").unwrap()),
            _ => {}
        }
    }
}

#[test]
fn threads_snapshots_and_commits() {
    let image = Image::by_progs(2 << 30, &[]);
    let options = Options::read_write().commit_interval(Duration::from_millis(5));
    let fs = Filesystem::open(image.path(), options).unwrap();
    let home = fs.create_subvolume(Node::ROOT, b"home", Owner::default()).unwrap();
    let dir = Node::top(home);
    let other = fs.create(dir, b"other", &New::directory(0o755)).unwrap().node;
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..4)
            .map(|thread| (thread, &fs))
            .map(|(thread, fs)| scope.spawn(move || work(fs, dir, other, thread)))
            .collect();
        scope.spawn(|| {
            let mut number = 0;
            while !done.load(Ordering::Relaxed) {
                fs.snapshot(home, Node::ROOT, format!("s{number}").as_bytes(), false).unwrap();
                if number >= 2 {
                    let old = format!("s{}", number - 2);
                    fs.delete_subvolume(Node::ROOT, old.as_bytes()).unwrap();
                }
                number += 1;
            }
        });
        workers.into_iter().for_each(|worker| worker.join().unwrap());
        done.store(true, Ordering::Relaxed);
    });
    fs.clean().unwrap();
    fs.close().unwrap();
    image.check();
    let fs = image.open_read_only();
    assert_eq!(names(&fs, "/home").len(), 4 * 150 + 1);
    assert_eq!(names(&fs, "/home/other").len(), 4 * 75);
    for number in (3..300).step_by(4) {
        let data = bytes((number as usize * 7919) % 150_000, number);
        assert!(content(&fs, &format!("/home/2-{number}")) == data);
    }
}

/// Many more subvolumes than stay in memory, each used by all threads for a moment: what one of them has changed is there for
/// the next, however often the subvolume has left memory and come back.
#[test]
fn threads_find_what_they_did_in_subvolumes_that_left_memory() {
    const SUBVOLUMES: u64 = 48;
    let image = Image::by_progs(1 << 30, &[]);
    let options = Options::read_write().commit_interval(Duration::from_millis(5));
    let fs = Filesystem::open(image.path(), options).unwrap();
    let make = |number| {
        fs.create_subvolume(Node::ROOT, format!("sub{number}").as_bytes(), Owner::default())
    };
    let tops: Vec<Node> = (0..SUBVOLUMES).map(make).map(|id| Node::top(id.unwrap())).collect();
    let visit = |thread: u32| {
        let mut rng = Rng::new(u64::from(thread));
        let mut made = vec![0; tops.len()];
        for _ in 0..1500 {
            let at = rng.below(SUBVOLUMES) as usize;
            let (dir, last) = (tops[at], &mut made[at]);
            if *last > 0 {
                let before = fs.lookup(dir, name(thread, *last).as_bytes()).unwrap().unwrap();
                let mut found = [0; 8];
                assert_eq!(fs.read(before.node, 0, &mut found).unwrap(), 4);
                assert_eq!(found[..4], last.to_le_bytes());
            }
            match rng.below(3) {
                0 => continue,
                1 if *last > 0 => drop(fs.unlink(dir, name(thread, *last).as_bytes()).unwrap()),
                _ => {}
            }
            *last += 1;
            let new = New::file(0o600);
            let file = fs.create(dir, name(thread, *last).as_bytes(), &new).unwrap().node;
            fs.write(file, 0, &last.to_le_bytes()).unwrap();
        }
    };
    let visit = &visit;
    std::thread::scope(|scope| {
        for thread in 0..4 {
            scope.spawn(move || visit(thread));
        }
    });
    fs.close().unwrap();
    image.check();
}

/// Runs two things at the same moment; what they answer.
fn at_once<A: Send, B: Send>(
    one: impl FnOnce() -> A + Send,
    other: impl FnOnce() -> B + Send,
) -> (A, B) {
    let start = std::sync::Barrier::new(2);
    std::thread::scope(|scope| {
        let one = scope.spawn(|| {
            start.wait();
            one()
        });
        start.wait();
        let other = other();
        (one.join().unwrap(), other)
    })
}

#[test]
fn a_subvolume_is_removed_empty_or_not_at_all() {
    let image = Image::by_us(512 << 20);
    let fs = image.open();
    let mut removed = 0;
    for _ in 0..3000 {
        let id = fs.create_subvolume(Node::ROOT, b"sub", Owner::default()).unwrap();
        let file = || fs.create(Node::top(id), b"file", &New::file(0o600)).map(|_| ());
        let (gone, made) = at_once(|| fs.rmdir(Node::ROOT, b"sub"), file);
        assert_ne!(gone.is_ok(), made.is_ok(), "{gone:?} {made:?}");
        removed += u32::from(gone.is_ok());
        if gone.is_err() {
            fs.delete_subvolume(Node::ROOT, b"sub").unwrap();
        }
    }
    assert!(names(&fs, "/").is_empty(), "{removed} were removed");
    fs.clean().unwrap();
    fs.close().unwrap();
    image.check();
}

#[test]
fn subvolumes_that_move_into_each_other_form_no_ring() {
    let image = Image::by_us(512 << 20);
    let fs = image.open();
    let make = |name: &[u8]| fs.create_subvolume(Node::ROOT, name, Owner::default()).unwrap();
    let (a, b) = (Node::top(make(b"a")), Node::top(make(b"b")));
    for _ in 0..3000 {
        let move_to = |from, name: &[u8], to| fs.rename(from, name, to, name, Rename::Replace);
        let moved = at_once(|| move_to(Node::ROOT, b"a", b), || move_to(Node::ROOT, b"b", a));
        match (&moved.0, &moved.1) {
            (Ok(()), Err(_)) => move_to(b, b"a", Node::ROOT).unwrap(),
            (Err(_), Ok(())) => move_to(a, b"b", Node::ROOT).unwrap(),
            both => panic!("{both:?}"),
        }
    }
    fs.close().unwrap();
    image.check();
}

#[test]
fn a_directory_gives_way_to_a_subvolume_or_stays() {
    let image = Image::by_us(512 << 20);
    let fs = image.open();
    fs.create_subvolume(Node::ROOT, b"sub", Owner::default()).unwrap();
    let aside = fs.create(Node::ROOT, b"aside", &New::directory(0o755)).unwrap().node;
    let top = Node::ROOT;
    for _ in 0..3000 {
        fs.create(top, b"target", &New::directory(0o755)).unwrap();
        let replaced = || fs.rename(top, b"sub", top, b"target", Rename::Replace);
        let moved = || fs.rename(top, b"sub", aside, b"sub", Rename::Replace);
        let (dir, name): (_, &[u8]) = match at_once(replaced, moved) {
            (Ok(()), Err(_)) => (top, b"target"),
            (Err(_), Ok(())) => (aside, b"sub"),
            both => panic!("{both:?}"),
        };
        let there = fs.lookup(top, b"target").unwrap();
        assert!(there.is_some(), "the directory is gone, and nothing took its place");
        fs.rename(dir, name, top, b"sub", Rename::Replace).unwrap();
        if dir == aside {
            fs.rmdir(top, b"target").unwrap();
        }
    }
    fs.close().unwrap();
    image.check();
}
