//! Devices that fail under an operation: it is done, or it is not.

use std::sync::Arc;
use std::time::Duration;

use buttress::device::testing::{FaultyDevice, OperationFault};
use buttress::device::{MemoryDevice, Op};
use buttress::{Errno, Filesystem, New, Node, Options};

use crate::judge::{Image, bytes};

/// Bytes of the file.
const SIZE: usize = 180_000;

fn read(fs: &Filesystem, node: Node) -> Vec<u8> {
    let mut found = vec![0; SIZE + 1];
    let len = fs.read(node, 0, &mut found).unwrap();
    found.truncate(len);
    found
}

/// Writes over the middle of the file while the `n`-th operation of a kind fails; false when none did.
fn write_fails(disk: &MemoryDevice, node: Node, op: Op, n: u64) -> bool {
    let device = Arc::new(FaultyDevice::new(Arc::new(disk.snapshot())));
    let options = Options::read_write().background(false);
    let fs = Filesystem::open_device(device.clone(), options).unwrap();
    let before = fs.attributes(node).unwrap();
    device.fail_operation(OperationFault { op: Some(op), after: n, ..OperationFault::default() });
    // Whole sectors go to the disk at once, and a part of one is kept at either end.
    let written = fs.write(node, 17_770, &bytes(100_000, 2));
    if device.failed() == 0 {
        assert_eq!(written.unwrap(), 100_000);
        return false;
    }
    let Err(error) = written else {
        assert_eq!(op, Op::Read, "only of tree blocks there is another copy");
        return true;
    };
    assert_eq!(error.errno(), Errno::IO, "{op} {n}");
    device.heal();
    assert!(read(&fs, node) == bytes(SIZE, 1), "{op} {n}: a part was written");
    assert_eq!(fs.attributes(node).unwrap().mtime, before.mtime);
    fs.write(node, 0, b"goes on").unwrap();
    fs.close().unwrap();
    true
}

#[test]
fn a_write_that_fails_leaves_the_file_as_it_was() {
    let image = Image::by_us(256 << 20);
    let fs = image.open();
    let node = fs.create(Node::ROOT, b"file", &New::file(0o644)).unwrap().node;
    fs.write(node, 0, &bytes(SIZE, 1)).unwrap();
    fs.close().unwrap();
    let disk = MemoryDevice::load(image.path()).unwrap();
    for op in [Op::Read, Op::Write] {
        let failed = (0..).take_while(|n| write_fails(&disk, node, op, *n)).count();
        assert!(failed > 0, "the write needs no {op}");
    }
}

/// From now on the disk that holds the image has no room.
fn fill(device: &FaultyDevice) {
    let (op, errno) = (Some(Op::Write), Errno::NOSPC);
    device.fail_operation(OperationFault { op, errno, sticky: true, ..OperationFault::default() });
}

#[test]
fn a_commit_waits_for_room_on_the_disk_that_holds_the_image() {
    let image = Image::by_us(256 << 20);
    let disk = MemoryDevice::load(image.path()).unwrap();
    let device = Arc::new(FaultyDevice::new(Arc::new(disk)));
    let options = Options::read_write().background(false).full_disk_patience(Duration::MAX);
    let fs = Filesystem::open_device(device.clone(), options).unwrap();
    let node = fs.create(Node::ROOT, b"file", &New::file(0o644)).unwrap().node;
    fs.write(node, 0, b"said to be written").unwrap();
    let (warned, waits) = std::sync::mpsc::channel();
    fs.on_warning(move |warning| warned.send(warning.to_owned()).unwrap());
    fill(&device);
    std::thread::scope(|scope| {
        let commit = scope.spawn(|| fs.commit());
        assert!(waits.recv().unwrap().contains("full"));
        // Who writes directly need not wait; the commit keeps the others' changes.
        let more = fs.create(Node::ROOT, b"more", &New::file(0o644)).unwrap().node;
        let error = fs.write(more, 0, &bytes(1 << 20, 3)).unwrap_err();
        assert_eq!(error.errno(), Errno::NOSPC);
        device.heal();
        commit.join().unwrap().unwrap();
    });
    let mut found = [0; 18];
    fs.read(node, 0, &mut found).unwrap();
    assert_eq!(&found, b"said to be written");
    fs.close().unwrap();
}

#[test]
fn a_commit_that_need_not_wait_fails_where_there_is_no_room() {
    let image = Image::by_us(256 << 20);
    let disk = MemoryDevice::load(image.path()).unwrap();
    let device = Arc::new(FaultyDevice::new(Arc::new(disk)));
    let fs = Filesystem::open_device(device.clone(), Options::read_write()).unwrap();
    fs.create(Node::ROOT, b"file", &New::file(0o644)).unwrap();
    fill(&device);
    assert_eq!(fs.commit().unwrap_err().errno(), Errno::NOSPC);
    device.heal();
    assert_eq!(fs.commit().unwrap_err().errno(), Errno::ROFS);
}

/// Runs what panics in the device, and says whether it did.
fn panics<T>(device: &FaultyDevice, op: Op, work: impl FnOnce() -> T) -> bool {
    device.fail_operation(OperationFault { op: Some(op), panics: true, ..Default::default() });
    let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
    device.heal();
    ended.is_err()
}

/// What only reads leaves nothing half done: what others have changed is not lost with it.
#[test]
fn a_panic_in_reading_is_no_end() {
    let image = Image::by_us(256 << 20);
    let fs = image.open();
    let node = fs.create(Node::ROOT, b"file", &New::file(0o644)).unwrap().node;
    fs.write(node, 0, &bytes(SIZE, 1)).unwrap();
    fs.close().unwrap();
    let disk = MemoryDevice::load(image.path()).unwrap();
    let device = Arc::new(FaultyDevice::new(Arc::new(disk)));
    let options = Options::read_write().background(false);
    let fs = Filesystem::open_device(device.clone(), options).unwrap();
    fs.create(Node::ROOT, b"others", &New::file(0o644)).unwrap();
    assert!(panics(&device, Op::Read, || fs.read(node, 0, &mut [0; 100])));
    fs.drop_caches();
    assert!(panics(&device, Op::Read, || fs.read_dir(Node::ROOT, 0, &mut |_| true)));
    assert!(read(&fs, node) == bytes(SIZE, 1));
    fs.commit().unwrap();
    // What changes something does.
    assert!(panics(&device, Op::Write, || fs.write(node, 0, &bytes(SIZE, 2))));
    assert_eq!(fs.commit().unwrap_err().errno(), Errno::ROFS);
}
