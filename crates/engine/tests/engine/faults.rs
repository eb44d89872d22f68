//! Devices that fail under an operation: it is done, or it is not.

use std::sync::Arc;

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
