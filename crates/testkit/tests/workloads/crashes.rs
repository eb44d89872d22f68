//! What a crash leaves: the last commit, whole. The content of the device at that moment is opened as if the program had
//! been killed.

use std::sync::Arc;

use buttress::{Filesystem, New, Node, Options, Owner, Rename};
use buttress_device::testing::{Event, History, RecordingDevice};
use buttress_device::{BlockDevice, MemoryDevice};
use buttress_testkit::facts::diff;
use buttress_testkit::oracle::{self, KernelMount};

use crate::image::Image;
use crate::judge::{check, check_with, glance, judge, long};
use crate::ours;
use crate::tools::{Numbers, bytes, content, mkdir, put_at, touch, write};

fn load(image: &Image) -> Arc<MemoryDevice> {
    Arc::new(MemoryDevice::load(image.path()).unwrap())
}

fn open(device: &Arc<MemoryDevice>) -> Filesystem {
    let device: Arc<dyn BlockDevice> = device.clone();
    Filesystem::open_device(device, Options::read_write().background(false)).unwrap()
}

#[test]
fn the_last_commit_survives() {
    let device = load(&Image::by_progs(1 << 30, &[]));
    let fs = open(&device);
    let mut numbers = Numbers::new(51);
    for round in 0..6_u32 {
        let dir = mkdir(&fs, Node::ROOT, &format!("dir{round}"));
        for number in 0..100 {
            let len = numbers.below(9000) as usize;
            put_at(&fs, dir, number.to_string().as_bytes(), &bytes(len, round)).unwrap();
        }
        fs.commit().unwrap();
        let durable = ours::facts(&fs);
        // None of this is durable, though the data of large writes is on the device already.
        let large = touch(&fs, dir, "large");
        write(&fs, large, 0, &bytes(3 << 20, round));
        for number in 0..50 {
            fs.unlink(dir, number.to_string().as_bytes()).unwrap();
        }
        fs.rename(Node::ROOT, format!("dir{round}").as_bytes(), dir, b"x", Rename::Replace)
            .unwrap_err();
        let crashed = Image::of(&device.snapshot());
        check(&crashed);
        let after = crashed.open();
        let lines = diff(&ours::facts(&after), &durable);
        assert!(lines.is_empty(), "{lines:#?}");
        match round == 5 {
            true => judge(&crashed, after),
            false => after.close().unwrap(),
        }
    }
}

#[test]
fn held_files_without_names_go_with_the_next_opening() {
    let device = load(&Image::by_us(1 << 30, |_| {}));
    let fs = open(&device);
    let before = fs.usage().data.used;
    let sub = fs.create_subvolume(Node::ROOT, b"sub", Owner::default()).unwrap();
    for dir in [Node::ROOT, Node::top(sub)] {
        for number in 0..50 {
            let node = touch(&fs, dir, &format!("held{number}"));
            write(&fs, node, 0, &bytes(number * 2000, number as u32));
            fs.hold(node).unwrap();
            fs.unlink(dir, format!("held{number}").as_bytes()).unwrap();
            let unnamed = fs.create_unnamed(dir, &New::file(0o600)).unwrap().node;
            write(&fs, unnamed, 0, &bytes(8000, 1));
        }
    }
    touch(&fs, Node::ROOT, "stays");
    fs.commit().unwrap();
    fs.snapshot(sub, Node::ROOT, b"snapshot", false).unwrap();
    assert!(fs.usage().data.used > before + 5_000_000);
    let crashed = Image::of(&device.snapshot());
    // Its usual way of checking calls a snapshot with files without names wrong, the kernel's own, too.
    check_with(&crashed, &["--mode=lowmem"]);
    kernel_cleans(Image::of(&device.snapshot()), before);
    let after = crashed.open();
    for top in [Node::ROOT, Node::top(sub), fs.resolve("/snapshot").unwrap()] {
        touch(&after, top, "wakes");
    }
    after.clean().unwrap();
    assert!(after.usage().data.used <= before + 100_000, "{:?}", after.usage());
    judge(&crashed, after);
}

/// The kernel, too, deletes what it finds without a name, and we go on from there.
fn kernel_cleans(image: Image, before: u64) {
    if !oracle::root_or_skip() {
        return;
    }
    let mount = KernelMount::new(&image.path(), "").unwrap();
    for dir in ["", "sub", "snapshot"] {
        std::fs::write(mount.path().join(dir).join("wakes"), b"").unwrap();
    }
    mount.finish().unwrap();
    check(&image);
    let fs = image.open();
    assert!(fs.usage().data.used <= before + 100_000, "{:?}", fs.usage());
    judge(&image, fs);
}

#[test]
fn half_deleted_subvolumes_are_finished() {
    let device = load(&Image::by_progs(2 << 30, &["-n", "4096"]));
    let fs = open(&device);
    let work = fs.create_subvolume(Node::ROOT, b"work", Owner::default()).unwrap();
    for number in 0..6000_u32 {
        put_at(&fs, Node::top(work), format!("{number:0100}").as_bytes(), &bytes(1000, number));
    }
    fs.snapshot(work, Node::ROOT, b"copy", false).unwrap();
    for number in 0..3000_u32 {
        fs.unlink(Node::top(work), format!("{number:0100}").as_bytes()).unwrap();
    }
    fs.commit().unwrap();
    fs.delete_subvolume(Node::ROOT, b"work").unwrap();
    fs.delete_subvolume(Node::ROOT, b"copy").unwrap();
    for step in 0..4 {
        fs.commit().unwrap();
        let crashed = Image::of(&device.snapshot());
        check(&crashed);
        let after = crashed.open();
        if step % 2 == 0 {
            after.clean().unwrap();
            assert!(after.usage().metadata.used < 1 << 20, "{:?}", after.usage());
        }
        judge(&crashed, after);
    }
}

/// Threads that count in files of their own, and commit, beside others that do anything.
const COUNTERS: u64 = 4;

fn counter_name(thread: u64) -> Vec<u8> {
    format!("counter{thread}").into_bytes()
}

/// What the file of a thread holds at some count.
fn counted(thread: u64, count: u64) -> Vec<u8> {
    let len = [500, 9000, 300_000][(count % 3) as usize];
    [&count.to_le_bytes()[..], &bytes(len, (thread * 10_000 + count) as u32)].concat()
}

/// Works with several threads; marks what has been acknowledged as durable.
fn work(fs: &Filesystem, device: &RecordingDevice) {
    let dirs: Vec<_> = (0..3).map(|dir| mkdir(fs, Node::ROOT, &format!("dir{dir}"))).collect();
    std::thread::scope(|scope| {
        for thread in 0..COUNTERS {
            scope.spawn(move || {
                for count in 1..20 {
                    // A file that replaces the old one has one content or the other.
                    let temporary = format!("temporary{thread}");
                    let data = counted(thread, count);
                    put_at(fs, Node::ROOT, temporary.as_bytes(), &data).unwrap();
                    let (root, name) = (Node::ROOT, counter_name(thread));
                    fs.rename(root, temporary.as_bytes(), root, &name, Rename::Replace).unwrap();
                    fs.commit().unwrap();
                    device.mark(thread << 32 | count);
                }
            });
            let dirs = &dirs;
            scope.spawn(move || {
                let mut numbers = Numbers::new(60 + thread);
                (0..250).for_each(|_| crate::threads::step(fs, dirs, &mut numbers));
            });
        }
        scope.spawn(|| {
            for round in 0..6 {
                let name = format!("snapshot{round}");
                fs.snapshot(5, Node::ROOT, name.as_bytes(), round % 2 == 0).unwrap();
                if round % 3 == 2 {
                    let name = format!("snapshot{}", round - 1);
                    fs.delete_subvolume(Node::ROOT, name.as_bytes()).unwrap();
                }
            }
        });
    });
}

/// The content is whole, and no older than what was acknowledged before the cut.
fn survived(fs: &Filesystem, history: &History, cut: usize) {
    let mut acknowledged = [0; COUNTERS as usize];
    for event in &history.events()[..cut] {
        if let Event::Mark(mark) = event {
            acknowledged[(mark >> 32) as usize] = mark & 0xffff_ffff;
        }
    }
    for thread in 0..COUNTERS {
        let least = acknowledged[thread as usize];
        let Some(found) = fs.lookup(Node::ROOT, &counter_name(thread)).unwrap() else {
            assert_eq!(least, 0, "thread {thread} at {cut}");
            continue;
        };
        let data = content(fs, found.node);
        let count = u64::from_le_bytes(data[..8].try_into().unwrap());
        assert!(count >= least, "{count} of {least}, thread {thread} at {cut}");
        assert!(data == counted(thread, count), "{count}, thread {thread} at {cut}");
    }
}

#[test]
fn power_cuts_while_threads_work() {
    let base = MemoryDevice::load(Image::by_progs(1 << 30, &["-n", "4096"]).path()).unwrap();
    let device = Arc::new(RecordingDevice::new(&base));
    let interval = std::time::Duration::from_millis(50);
    let options = Options::read_write().commit_interval(interval);
    let fs = Filesystem::open_device(device.clone(), options).unwrap();
    work(&fs, &device);
    fs.close().unwrap();
    let history = device.history();
    let mut numbers = Numbers::new(61);
    for number in 0..if long() { 200 } else { 12 } {
        let cut = numbers.below(history.events().len() as u64) as usize;
        let left = match number % 2 {
            0 => history.prefix(cut),
            _ => whole_superblock(&history, cut, number),
        };
        let image = Image::of(&left);
        check(&image);
        let fs = image.open();
        survived(&fs, &history, cut);
        if number % 4 == 1 { judge(&image, fs) } else { glance(&image, fs) }
    }
}

/// What a harsh medium leaves. The primary superblock is always written as a whole: the kernel knows no other disks.
fn whole_superblock(history: &History, cut: usize, seed: u64) -> MemoryDevice {
    const PRIMARY: u64 = 65_536;
    let (left, mild) = (history.scrambled(cut, seed), history.prefix(cut));
    let mut superblock = vec![0; 4096];
    let mut old = vec![0; 4096];
    mild.read_at(PRIMARY, &mut superblock).unwrap();
    left.read_at(PRIMARY, &mut old).unwrap();
    if old != superblock && !is_whole(history, &old) {
        left.write_at(PRIMARY, &superblock).unwrap();
    }
    left
}

/// Whether these bytes were once written as the primary superblock.
fn is_whole(history: &History, bytes: &[u8]) -> bool {
    let written = |event: &Event| matches!(event, Event::Write { data, .. } if **data == *bytes);
    history.events().iter().any(written)
}
