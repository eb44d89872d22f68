//! A filesystem keeps to the memory that it is given, whatever is done with it: each kind of load here would need a multiple of
//! it if nothing bounded what waits for a commit, what a commit writes, and what is remembered.

use std::path::Path;
use std::process::Command;

use buttress::device::FileDevice;
use buttress::{Change, Filesystem, New, Node, Options, SetXattr, Time};
use buttress_testkit::memory::peak_memory;
use buttress_testkit::ops::rng::{Rng, bytes};
use buttress_testkit::oracle::{check, root_or_skip, temp_dir};

/// Set in the process that runs the test alone.
const ALONE: &str = "BUTTRESS_MEMORY_ALONE";
const MEMORY: u64 = 24 << 20;
const FILES: u64 = 60_000;
const DIRECTORIES: u64 = 20;
const SNAPSHOTS: u64 = 300;

/// Runs a test in a process of its own, with the allocator told what a mount tells it.
fn alone(test: &str) {
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args(["--exact", &format!("memory::{test}"), "--nocapture"]);
    child.env("MALLOC_ARENA_MAX", "1").env("MALLOC_MMAP_THRESHOLD_", "524288");
    child.env("MALLOC_TRIM_THRESHOLD_", "1048576");
    let output = child.env(ALONE, "1").output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
    println!("{text}");
}

struct Load {
    fs: Filesystem,
    files: Vec<Node>,
    rng: Rng,
    /// Bytes that the process had before.
    before: u64,
}

impl Load {
    /// The memory at its peak must be within bounds after each kind of load.
    fn done(&self, what: &str) {
        let more = peak_memory().unwrap() - self.before;
        println!("{what}: {} KiB", more >> 10);
        assert!(more <= MEMORY, "{what}: {more} bytes of {MEMORY}");
    }

    fn name(number: u64) -> Vec<u8> {
        format!("a file with a name of usual length, number {number}").into_bytes()
    }

    fn make(&mut self) {
        let top = Node::top(5);
        let directory = |number: u64| {
            let name = format!("directory {number}");
            self.fs.create(top, name.as_bytes(), &New::directory(0o755)).unwrap().node
        };
        let directories: Vec<Node> = (0..DIRECTORIES).map(directory).collect();
        for number in 0..FILES {
            let dir = directories[(number % DIRECTORIES) as usize];
            let made = self.fs.create(dir, &Self::name(number), &New::file(0o644)).unwrap();
            self.fs.write(made.node, 0, &bytes(number as u32, 0, 100)).unwrap();
            self.files.push(made.node);
        }
        self.done("new files");
    }

    /// Files without data, in a few directories, in one each, and below one whose property each takes over.
    fn empty(&self) {
        let create = |dir: Node, name: String, new: &New| {
            self.fs.create(dir, name.as_bytes(), new).unwrap().node
        };
        let all = create(Node::top(5), "empty".into(), &New::directory(0o755));
        for number in 0..2 * FILES {
            create(all, format!("e{number}"), &New::file(0o644));
        }
        self.done("empty files");
        let one_each = |number: u64| create(all, format!("d{number}"), &New::directory(0o755));
        let directories: Vec<Node> = (0..FILES / 4).map(one_each).collect();
        self.fs.commit().unwrap();
        for dir in directories {
            create(dir, "one".into(), &New::file(0o644));
        }
        self.done("an empty file in each directory");
        self.fs.set_xattr(all, b"btrfs.compression", b"zstd", SetXattr::default()).unwrap();
        for number in 0..FILES {
            create(all, format!("c{number}"), &New::file(0o644));
        }
        self.done("empty files with a property");
    }

    fn any(&mut self) -> Node {
        *self.rng.pick(&self.files)
    }

    /// A leaf for almost every change.
    fn touch(&mut self, what: &str) {
        for number in 0..FILES / 2 {
            let time = Time { sec: number as i64, nsec: 0 };
            let change = Change { mtime: Some(time), ..Change::default() };
            let node = self.any();
            self.fs.set_attributes(node, &change).unwrap();
        }
        self.done(what);
    }

    fn read(&mut self) {
        let mut found = [0; 200];
        for _ in 0..FILES {
            let node = self.any();
            assert_eq!(self.fs.read(node, 0, &mut found).unwrap(), 100);
        }
        self.done("reading");
    }

    /// Sectors here and there, which are buffered.
    fn scatter(&mut self) {
        for number in 0..16_000 {
            let node = self.files[self.rng.below(30) as usize];
            let offset = self.rng.below(4000) * 4096;
            self.fs.write(node, offset, &bytes(number, 0, 4096)).unwrap();
        }
        self.done("sectors here and there");
    }

    fn xattrs(&mut self) {
        for number in 0..8000 {
            let node = self.any();
            let value = bytes(number, 0, 3000);
            self.fs.set_xattr(node, b"user.long", &value, SetXattr::default()).unwrap();
        }
        self.done("long xattrs");
    }

    /// Every leaf that is changed is shared: each of its extents gets another reference.
    fn unshare(&mut self) {
        self.fs.snapshot(5, Node::top(5), b"snapshot", true).unwrap();
        self.touch("touched beside a snapshot");
        self.fs.delete_subvolume(Node::top(5), b"snapshot").unwrap();
        self.fs.clean().unwrap();
        self.done("a snapshot dropped");
    }

    /// Looks at some files in many snapshots, twice.
    fn walk(&mut self) {
        let taken = |number: u64| {
            let name = format!("snapshot {number}");
            self.fs.snapshot(5, Node::top(5), name.as_bytes(), true).unwrap()
        };
        let snapshots: Vec<u64> = (0..SNAPSHOTS).map(taken).collect();
        for subvolume in [&snapshots[..], &snapshots[..]].concat() {
            for file in &self.files[100..700] {
                let seen = Node { subvolume, ino: file.ino };
                assert_eq!(self.fs.attributes(seen).unwrap().size, 100);
            }
        }
        self.done("a walk over snapshots");
        for number in 0..SNAPSHOTS {
            let name = format!("snapshot {number}");
            self.fs.delete_subvolume(Node::top(5), name.as_bytes()).unwrap();
        }
        self.fs.clean().unwrap();
        self.done("all snapshots dropped");
    }

    fn remove(&mut self) {
        let top = Node::top(5);
        for number in (0..FILES).rev() {
            let name = format!("directory {}", number % DIRECTORIES);
            let dir = self.fs.lookup(top, name.as_bytes()).unwrap().unwrap().node;
            self.fs.unlink(dir, &Self::name(number)).unwrap();
        }
        self.done("removed");
    }
}

/// A fresh filesystem with little memory.
fn fresh(path: &Path) -> Load {
    let device = FileDevice::create(path, 4 << 30).unwrap();
    let mut environment = buttress_mkfs::Environment::system();
    buttress_mkfs::make(&device, &buttress_mkfs::Options::default(), &mut environment).unwrap();
    drop(device);
    let fs = Filesystem::open(path, Options::read_write().memory(MEMORY)).unwrap();
    let (rng, files, before) =
        (Rng::new(1), Vec::with_capacity(FILES as usize), peak_memory().unwrap());
    Load { fs, files, rng, before }
}

#[test]
fn empty_files_take_no_more_memory_than_there_is() {
    if !root_or_skip() {
        return;
    }
    if std::env::var_os(ALONE).is_none() {
        return alone("empty_files_take_no_more_memory_than_there_is");
    }
    let dir = temp_dir().unwrap();
    let path = dir.path().join("image");
    let load = fresh(&path);
    load.empty();
    load.fs.close().unwrap();
    check(&path, true).unwrap();
}

#[test]
fn no_load_takes_more_memory_than_there_is() {
    if !root_or_skip() {
        return;
    }
    if std::env::var_os(ALONE).is_none() {
        return alone("no_load_takes_more_memory_than_there_is");
    }
    let dir = temp_dir().unwrap();
    let path = dir.path().join("image");
    let mut load = fresh(&path);
    load.make();
    load.touch("touched here and there");
    load.read();
    load.scatter();
    load.xattrs();
    load.unshare();
    load.walk();
    // Who is left alone with a leaf has all that only it names: with quotas that is looked for.
    load.fs.count_quotas(|_| true).unwrap();
    load.done("quotas counted");
    load.unshare();
    check(&path, true).map(drop).unwrap_or_else(|error| panic!("{error}"));
    load.remove();
    load.fs.close().unwrap();
    check(&path, true).unwrap();
}
