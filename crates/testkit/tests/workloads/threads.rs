//! Several threads at once, with commits and snapshots between them.

use std::sync::atomic::{AtomicBool, Ordering};

use buttress::{Allocate, Change, Errno, Filesystem, New, Node, Owner, Rename, SetXattr};

use crate::image::Image;
use crate::judge::{glance, judge};
use crate::tools::{Numbers, bytes, content, mkdir, put_at, touch, truncate, write};

const THREADS: u64 = 8;

/// What somebody else may have done in the meantime.
fn raced<T>(result: buttress::Result<T>) -> Option<T> {
    match result {
        Ok(done) => Some(done),
        Err(error) => {
            let errno = error.errno();
            let usual = [Errno::NOENT, Errno::EXIST, Errno::NOTEMPTY, Errno::ISDIR, Errno::NOTDIR];
            assert!(usual.contains(&errno) || errno == Errno::INVAL, "{error}");
            None
        }
    }
}

/// One operation in directories that all threads use.
pub fn step(fs: &Filesystem, dirs: &[Node], numbers: &mut Numbers) {
    let dir = dirs[numbers.below(dirs.len() as u64) as usize];
    let other = dirs[numbers.below(dirs.len() as u64) as usize];
    let name = format!("n{}", numbers.below(80));
    let new = format!("n{}", numbers.below(80));
    let (name, new) = (name.as_bytes(), new.as_bytes());
    let data = bytes(numbers.below(12_000) as usize, numbers.next() as u32);
    let found = |name| {
        let found = raced(fs.lookup(dir, name)).flatten();
        found.filter(|found| found.kind == buttress::FileKind::Regular)
    };
    match numbers.below(14) {
        0..3 => drop(raced(fs.create(dir, name, &New::file(0o644)))),
        3 => drop(raced(fs.create(dir, name, &New::symlink("somewhere")))),
        4 => drop(raced(fs.unlink(dir, name))),
        5 => drop(raced(fs.rename(dir, name, other, new, Rename::Replace))),
        6 => drop(raced(fs.rename(dir, name, other, new, Rename::Exchange))),
        kind => {
            let Some(node) = found(name).map(|found| found.node) else { return };
            match kind {
                7 => drop(raced(fs.link(node, other, new))),
                8 => {
                    let size = Some(numbers.below(30_000));
                    let _ = raced(fs.set_attributes(node, &Change { size, ..Change::default() }));
                }
                9 => _ = raced(fs.fallocate(node, Allocate::PunchHole, 5000, 9000)),
                10 => {
                    let value = bytes(numbers.below(500) as usize, 1);
                    let _ = raced(fs.set_xattr(node, b"user.x", &value, SetXattr::Any));
                }
                _ => _ = raced(fs.write(node, numbers.below(60_000), &data)),
            }
        }
    }
}

#[test]
fn everything_at_once_in_shared_directories() {
    let image = Image::by_progs(4 << 30, &["-n", "4096"]);
    let fs = image.open();
    let dirs: Vec<_> = (0..4).map(|dir| mkdir(&fs, Node::ROOT, &format!("dir{dir}"))).collect();
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (fs, dirs) = (&fs, &dirs);
            scope.spawn(move || {
                let mut numbers = Numbers::new(100 + thread);
                for number in 0..1500 {
                    step(fs, dirs, &mut numbers);
                    if number % 300 == 30 * thread {
                        fs.commit().unwrap();
                    }
                }
            });
        }
    });
    judge(&image, fs);
}

#[test]
fn a_subvolume_for_each_thread_and_snapshots() {
    let image = Image::by_us(4 << 30, |_| {});
    let fs = image.open();
    let ids: Vec<_> = (0..THREADS)
        .map(|it| fs.create_subvolume(Node::ROOT, format!("{it}").as_bytes(), Owner::default()))
        .collect::<Result<_, _>>()
        .unwrap();
    std::thread::scope(|scope| {
        for (thread, id) in ids.iter().enumerate() {
            let fs = &fs;
            scope.spawn(move || {
                let mut numbers = Numbers::new(200 + thread as u64);
                let dir = [Node::top(*id)];
                for number in 0..600 {
                    step(fs, &dir, &mut numbers);
                    if number % 100 == 99 {
                        let name = format!("{thread}-{number}");
                        fs.snapshot(*id, Node::ROOT, name.as_bytes(), number % 200 == 99).unwrap();
                    }
                    if number % 200 == 199 {
                        let name = format!("{thread}-{}", number - 100);
                        fs.delete_subvolume(Node::ROOT, name.as_bytes()).unwrap();
                    }
                }
            });
        }
    });
    judge(&image, fs);
}

#[test]
fn readers_see_whole_writes() {
    let image = Image::by_progs(2 << 30, &[]);
    let fs = image.open();
    let files: Vec<_> = (0..4).map(|it| touch(&fs, Node::ROOT, &format!("file{it}"))).collect();
    const LEN: usize = 50_000;
    for file in &files {
        write(&fs, *file, 0, &bytes(LEN, 0));
    }
    let all: Vec<_> = (0..40).map(|seed| bytes(LEN, seed)).collect();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    for file in &files {
                        let seen = content(&fs, *file);
                        assert!(all.contains(&seen), "a write seen in part");
                    }
                }
            });
        }
        for (round, data) in all.iter().enumerate().skip(1) {
            for file in &files {
                write(&fs, *file, 0, data);
            }
            if round % 5 == 0 {
                fs.commit().unwrap();
            }
        }
        done.store(true, Ordering::Relaxed);
    });
    judge(&image, fs);
}

#[test]
fn writers_of_one_file() {
    let image = Image::by_us(2 << 30, |_| {});
    let fs = image.open();
    let file = touch(&fs, Node::ROOT, "file");
    const PART: usize = 100_000;
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let fs = &fs;
            scope.spawn(move || {
                for round in 0..20_u32 {
                    let data = bytes(PART, round * 10 + thread as u32);
                    write(fs, file, thread * PART as u64, &data);
                    if round % 8 == thread as u32 {
                        fs.commit().unwrap();
                    }
                }
            });
        }
    });
    let expect: Vec<u8> = (0..THREADS).flat_map(|it| bytes(PART, 190 + it as u32)).collect();
    assert!(content(&fs, file) == expect);
    truncate(&fs, file, 333_333);
    judge(&image, fs);
}

/// Makes files until there is no room, deletes some, goes on; knows what each file has.
fn at_the_edge(fs: &Filesystem, dir: Node, seed: u64) {
    let mut numbers = Numbers::new(seed);
    let mut files: Vec<(String, usize, u32)> = Vec::new();
    let mut refused = 0;
    for step in 0..if crate::judge::long() { 3000 } else { 250 } {
        let most = [2000, 2000, 60_000, 2 << 20][numbers.below(4) as usize];
        let (len, seed) = (numbers.below(most) as usize, numbers.next() as u32);
        let name = format!("{step}-{seed:0100}");
        let done = put_at(fs, dir, name.as_bytes(), &bytes(len, seed));
        files.extend(done.map(|done| (name, done, seed)));
        refused += u32::from(done != Some(len));
        while done != Some(len) && files.len() > 3 && numbers.below(8) > 0 {
            let (name, ..) = files.swap_remove(numbers.below(files.len() as u64) as usize);
            fs.unlink(dir, name.as_bytes()).unwrap();
        }
        if numbers.below(40) == 0 {
            fs.commit().unwrap();
        }
    }
    for (name, len, seed) in &files {
        let node = fs.lookup(dir, name.as_bytes()).unwrap().unwrap().node;
        assert!(content(fs, node) == bytes(*len, *seed), "{name}");
    }
    println!("{} files at the end, {refused} refused", files.len());
}

#[test]
fn all_at_the_edge_of_the_room() {
    let shapes: [(u64, &[&str]); 4] = [
        (130, &["-m", "single", "-n", "4096"]),
        (200, &["-M"]),
        (300, &["-n", "65536"]),
        (250, &["-d", "dup"]),
    ];
    for (number, (mib, args)) in shapes.into_iter().enumerate() {
        println!("{mib} MiB {args:?}");
        let image = Image::by_progs(mib << 20, args);
        let fs = image.open();
        let dirs: Vec<_> =
            (0..THREADS).map(|it| mkdir(&fs, Node::ROOT, &format!("{it}"))).collect();
        std::thread::scope(|scope| {
            for (thread, dir) in dirs.iter().enumerate() {
                let (fs, seed) = (&fs, (number * 10 + thread) as u64);
                scope.spawn(move || at_the_edge(fs, *dir, seed));
            }
            if number % 2 == 0 {
                scope.spawn(|| snapshots_at_the_edge(&fs));
            }
        });
        if number == 0 { judge(&image, fs) } else { glance(&image, fs) }
    }
}

/// Snapshots come and go beside the others. A full filesystem may refuse them.
fn snapshots_at_the_edge(fs: &Filesystem) {
    for round in 0..12 {
        let name = format!("snapshot{round}");
        match fs.snapshot(5, Node::ROOT, name.as_bytes(), round % 2 == 0) {
            Ok(_) => {
                fs.commit().unwrap();
                fs.delete_subvolume(Node::ROOT, name.as_bytes()).map(|_| ()).unwrap();
            }
            Err(error) => assert_eq!(error.errno(), Errno::NOSPC, "{error}"),
        }
    }
}
