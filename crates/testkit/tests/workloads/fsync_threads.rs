//! fsyncs of several threads in directories that all of them change, and a power cut: the kernel and we replay the same log.

use buttress::{Filesystem, New, Node, Options};
use buttress_testkit::facts::{Facts, diff, facts_of_dir};
use buttress_testkit::oracle::{self, KernelMount};

use crate::image::Image;
use crate::judge::check;
use crate::ours;
use crate::threads::step;
use crate::tools::{Numbers, bytes, content, mkdir, touch, write};

const THREADS: u64 = 4;

/// How a thread's own file is called, which nobody else touches.
fn own(thread: u64) -> String {
    format!("own{thread}")
}

fn own_content(thread: u64, round: u64) -> Vec<u8> {
    bytes(3000 + 9000 * (round % 3) as usize, (round * THREADS + thread) as u32)
}

fn burst(fs: &Filesystem, dirs: &[Node], files: &[Node], (round, thread): (u64, u64), steps: u64) {
    let mut numbers = Numbers::new(round * 1000 + thread);
    let sync = |numbers: &mut Numbers| {
        let dir = dirs[numbers.below(dirs.len() as u64) as usize];
        let name = format!("n{}", numbers.below(80));
        let node = match numbers.below(4) {
            0 => Some(dir),
            _ => fs.lookup(dir, name.as_bytes()).unwrap().map(|found| found.node),
        };
        if let Some(node) = node {
            fs.sync(node).unwrap();
        }
    };
    for _ in 0..steps {
        step(fs, dirs, &mut numbers);
        if numbers.below(3) == 0 {
            sync(&mut numbers);
        }
    }
    let (file, data) = (files[thread as usize], own_content(thread, round));
    fs.set_attributes(file, &buttress::Change { size: Some(0), ..Default::default() }).unwrap();
    write(fs, file, 0, &data);
    fs.sync(file).unwrap();
}

fn same_but_for_times(ours: &Facts, theirs: &Facts, round: u64) {
    let lines: Vec<_> =
        diff(ours, theirs).into_iter().filter(|line| !line.contains("mtime")).collect();
    assert!(lines.is_empty(), "round {round}: {lines:#?}");
}

fn replayed(image: &Image, round: u64) {
    let (copy, mine) = (image.copy(), image.copy());
    let fs = mine.open();
    assert!(fs.warnings().is_empty(), "round {round}: {:?}", fs.warnings());
    for thread in 0..THREADS {
        let node = fs.lookup(Node::ROOT, own(thread).as_bytes()).unwrap().unwrap().node;
        assert!(content(&fs, node) == own_content(thread, round), "round {round}: {thread}");
    }
    let seen = ours::facts(&fs);
    fs.close().unwrap();
    check(&mine);
    if oracle::root_or_skip() {
        let mount = KernelMount::new(&copy.path(), "noatime,subvolid=5").unwrap();
        let theirs = facts_of_dir(mount.path()).unwrap();
        mount.finish().unwrap();
        check(&copy);
        same_but_for_times(&seen, &theirs, round);
    }
}

fn run(rounds: u64, steps: u64, every: u64) {
    let image = Image::by_progs(512 << 20, &["-n", "4096"]);
    let fs = image.open_with(Options::read_write().background(false).tree_log(true));
    let mut dirs: Vec<_> = (0..2).map(|it| mkdir(&fs, Node::ROOT, &format!("dir{it}"))).collect();
    let files: Vec<_> = (0..THREADS).map(|it| touch(&fs, Node::ROOT, &own(it))).collect();
    let before = fs.stats();
    for round in 0..rounds {
        if round % every == 0 {
            fs.commit().unwrap();
            // Where all is new, logs need not be commits so often.
            dirs.truncate(2);
            let fresh = format!("fresh{round}");
            dirs.push(
                fs.create(Node::ROOT, fresh.as_bytes(), &New::directory(0o755)).unwrap().node,
            );
            dirs.remove(0);
        }
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let (fs, dirs, files) = (&fs, &dirs, &files);
                scope.spawn(move || burst(fs, dirs, files, (round, thread), steps));
            }
        });
        replayed(&image, round);
    }
    assert!(fs.stats().log_writes > before.log_writes);
    fs.close().unwrap();
    check(&image);
}

#[test]
fn many_fsyncs_beside_many_changes() {
    run(12, 30, 3);
}

#[test]
fn few_changes_each_time() {
    run(40, 3, 1);
}
