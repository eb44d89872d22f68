//! What operations leave in memory until it is committed is bounded, however many extents they are about.

use std::path::Path;
use std::process::Command;

use buttress::{Allocate, Filesystem, New, Node, Options};
use buttress_testkit::memory::peak_memory;

use crate::judge::{Image, bytes};

/// Set in the process that works alone: the image.
const ALONE: &str = "BUTTRESS_MEMORY_ALONE";
const EXTENTS: u64 = 300_000;
/// Where an extent starts after the one before: what is between them is a hole.
const STEP: u64 = 8192;
const MEMORY: u64 = 64 << 20;

fn make(fs: &Filesystem, name: &[u8]) -> Node {
    fs.create(Node::ROOT, name, &New::file(0o644)).unwrap().node
}

/// What the process does alone: what it takes is below the memory that the filesystem is given.
fn at_work(path: &Path) {
    let options = Options::read_write().memory(MEMORY).background(false);
    let fs = Filesystem::open(path, options).unwrap();
    let source = fs.lookup(Node::ROOT, b"source").unwrap().unwrap().node;
    let before = peak_memory().unwrap();
    let told = |what: &str, commits: &mut u64| {
        let (more, now) = (peak_memory().unwrap() - before, fs.stats().commits);
        println!("{what}: {} KiB, {} commits", more >> 10, now - *commits);
        *commits = now;
        assert!(more <= MEMORY, "{what}: {more} bytes of {MEMORY}");
    };
    let mut commits = 0;
    let clone = make(&fs, b"clone");
    let size = EXTENTS * STEP;
    fs.write(clone, size - 1, b"x").unwrap();
    fs.clone_range(source, 0, u64::MAX, clone, 0).unwrap();
    fs.commit().unwrap();
    told("a clone", &mut commits);
    assert_eq!(fs.attributes(clone).unwrap().size, size);
    for number in [0, 1, 4095, 4096, EXTENTS / 2, EXTENTS - 1] {
        let (mut one, mut other) = ([1; 8], [2; 8]);
        fs.read(source, number * STEP, &mut one).unwrap();
        fs.read(clone, number * STEP, &mut other).unwrap();
        assert_eq!((one, &one[..]), (other, &number.to_le_bytes()[..]));
    }
    fs.fallocate(clone, Allocate::Reserve { keep_size: true }, 0, size).unwrap();
    fs.commit().unwrap();
    told("filling holes", &mut commits);
    fs.clone_range(source, 0, u64::MAX, clone, 0).unwrap();
    fs.commit().unwrap();
    told("a clone over it", &mut commits);
    fs.fallocate(clone, Allocate::PunchHole, 0, size / 2).unwrap();
    fs.commit().unwrap();
    told("a hole", &mut commits);
    fs.unlink(Node::ROOT, b"source").unwrap();
    fs.unlink(Node::ROOT, b"clone").unwrap();
    fs.commit().unwrap();
    told("deletion", &mut commits);
    fs.close().unwrap();
}

#[test]
fn a_file_of_many_extents_is_cloned_and_cut_within_memory() {
    if let Some(path) = std::env::var_os(ALONE) {
        return at_work(Path::new(&path));
    }
    let image = Image::once(8 << 30);
    let fs = image.open();
    let source = make(&fs, b"source");
    let mut sector = bytes(4096, 3);
    for number in 0..EXTENTS {
        sector[..8].copy_from_slice(&number.to_le_bytes());
        fs.write(source, number * STEP, &sector).unwrap();
    }
    fs.set_attributes(
        source,
        &buttress::Change { size: Some(EXTENTS * STEP), ..Default::default() },
    )
    .unwrap();
    fs.close().unwrap();
    let mut child = Command::new(std::env::current_exe().unwrap());
    let name = "memory::a_file_of_many_extents_is_cloned_and_cut_within_memory";
    child.args(["--exact", name, "--nocapture"]).env(ALONE, image.path());
    // As a mount has it.
    child.env("MALLOC_ARENA_MAX", "1").env("MALLOC_MMAP_THRESHOLD_", "524288");
    let output = child.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    println!("{text}");
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
    image.check();
}
