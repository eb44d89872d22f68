//! What is beside a new filesystem on its device stays as it is, byte by byte.

use std::path::Path;
use std::sync::Arc;

use buttress_device::{Access, BlockDevice, FileDevice, MemoryDevice, OffsetDevice};
use buttress_mkfs::{Environment, MkfsError, Options};
use buttress_testkit::oracle::{LoopDevice, root_or_skip};

use crate::host::{has_progs, stdout};

const MIB: u64 = 1 << 20;
/// The device: with a mirror of the superblock beyond the smaller filesystems.
const DEVICE: u64 = 96 * MIB;

/// A MiB that differs from its neighbours and has no signature of anything.
fn pattern(mib: u64) -> Vec<u8> {
    (0..MIB).map(|at| ((mib + at / 509 + at) % 251 + 3) as u8).collect()
}

fn patterned() -> MemoryDevice {
    let device = MemoryDevice::new(DEVICE);
    for mib in 0..DEVICE / MIB {
        device.write_at(mib * MIB, &pattern(mib)).unwrap();
    }
    device
}

fn options(byte_count: Option<u64>, overwrite: bool, discard: bool) -> Options {
    Options { byte_count, overwrite, discard, mixed: true, ..Options::default() }
}

/// Fails where a byte outside `own` is not of the pattern, and where nothing inside it has changed.
fn compare(what: &str, device: &dyn BlockDevice, own: std::ops::Range<u64>) {
    let mut inside = 0;
    for mib in 0..DEVICE / MIB {
        let mut found = vec![0; MIB as usize];
        device.read_at(mib * MIB, &mut found).unwrap();
        for (at, (found, was)) in (mib * MIB..).zip(found.iter().zip(pattern(mib))) {
            if own.contains(&at) {
                inside += u64::from(*found != was);
            } else {
                assert_eq!(*found, was, "{what}: the byte at {at}, beside {own:?}");
            }
        }
    }
    assert!(inside > 0, "{what}: nothing was made");
}

/// Where a filesystem is made: at an offset, and of a size; `None` for all there is.
const PLACES: [(u64, Option<u64>); 6] = [
    (0, Some(40 * MIB)),
    (0, Some(40 * MIB + 100)),
    (0, Some(66 * MIB)),
    (MIB, Some(20 * MIB)),
    (4096 * 3 + 512, Some(70 * MIB)),
    (50 * MIB, None),
];

#[test]
fn no_byte_outside_the_filesystem_changes() {
    let full = patterned();
    for (offset, size) in PLACES {
        for (overwrite, discard) in [(false, true), (true, true), (true, false)] {
            let device = Arc::new(full.snapshot());
            let window = OffsetDevice::new(device.clone(), offset, None).unwrap();
            let options = options(size, overwrite, discard);
            let made = buttress_mkfs::make(&window, &options, &mut Environment::seeded(3)).unwrap();
            // Without a size all that follows is the filesystem's, with one what it takes of it.
            let end = size.map_or(DEVICE, |_| offset + made.size);
            let what = format!("{size:?} at {offset}, discard {discard}");
            compare(&what, &*device, offset..end);
        }
    }
}

#[test]
fn nor_on_a_file_or_disk_that_discards() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("disk.img");
    for (offset, size) in [(0, 40 * MIB), (MIB, 20 * MIB)] {
        patterned().store(&path).unwrap();
        make(&path, offset, size);
        assert_eq!(path.metadata().unwrap().len(), DEVICE, "the file has another size");
        compare(
            "a file",
            &FileDevice::open(&path, Access::ReadOnly).unwrap(),
            offset..offset + size,
        );
        if !root_or_skip() {
            continue;
        }
        patterned().store(&path).unwrap();
        let disk = LoopDevice::attach(&path).unwrap();
        make(disk.path(), offset, size);
        drop(disk);
        compare(
            "a disk",
            &FileDevice::open(&path, Access::ReadOnly).unwrap(),
            offset..offset + size,
        );
    }
}

fn make(path: &Path, offset: u64, size: u64) {
    let device = Arc::new(FileDevice::open(path, Access::ReadWrite).unwrap());
    let window = OffsetDevice::new(device, offset, None).unwrap();
    let options = options(Some(size), false, true);
    buttress_mkfs::make(&window, &options, &mut Environment::seeded(3)).unwrap();
}

/// A filesystem that begins with the disk is not overwritten in its middle by mistake; behind its end another one may be made.
#[test]
fn a_filesystem_around_it() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("disk.img");
    let tried = |offset: u64, overwrite: bool| {
        let device = Arc::new(FileDevice::open(&path, Access::ReadWrite).unwrap());
        let window = OffsetDevice::new(device, offset, None).unwrap();
        let options = options(None, overwrite, true);
        buttress_mkfs::make(&window, &options, &mut Environment::seeded(3)).map(|it| it.size)
    };
    let refused = |offset: u64| match tried(offset, false) {
        Err(MkfsError::Exists { what, .. }) => what,
        other => panic!("{other:?}"),
    };
    std::fs::File::create(&path).unwrap().set_len(DEVICE).unwrap();
    make(&path, 0, 40 * MIB);
    if std::process::Command::new("blkid").arg("--version").output().is_err() {
        println!("skipped: no blkid");
        return;
    }
    for offset in [MIB, 30 * MIB] {
        assert!(refused(offset).starts_with("btrfs, which begins"));
    }
    assert_eq!(tried(40 * MIB, false).unwrap(), DEVICE - 40 * MIB);
    assert_eq!(tried(MIB, true).unwrap(), DEVICE - MIB);
    std::fs::File::create(&path).unwrap().set_len(DEVICE).unwrap();
    let made = std::process::Command::new("mkfs.ext4").args(["-q", "-F"]).arg(&path).status();
    if made.is_ok_and(|status| status.success()) {
        assert!(refused(MIB).starts_with("ext4, which begins"));
    }
}

/// Two partitions and the backup of their table behind them: none of them is overwritten by mistake, and with a size none is
/// touched.
#[test]
fn partitions() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("disk.img");
    patterned().store(&path).unwrap();
    let table = "label: gpt\nstart=2048,size=81920\nstart=83968,size=81920\n";
    if !partition(&path, table) {
        println!("skipped: no sfdisk");
        return;
    }
    let before = std::fs::read(&path).unwrap();
    let own = MIB as usize..41 * MIB as usize;
    let tried = |offset: u64, options: &Options| {
        let device = Arc::new(FileDevice::open(&path, Access::ReadWrite).unwrap());
        let window = OffsetDevice::new(device, offset, None).unwrap();
        buttress_mkfs::make(&window, options, &mut Environment::seeded(3)).map(|it| it.size)
    };
    let refused = |offset, size| match tried(offset, &options(size, false, true)) {
        Err(MkfsError::Partition { here, number, .. }) => (here, number),
        other => panic!("{other:?}"),
    };
    assert_eq!(refused(MIB, None), (Some(40 * MIB), 1));
    assert_eq!(refused(MIB, Some(40 * MIB + 4096)), (Some(40 * MIB), 1));
    assert_eq!(refused(30 * MIB, Some(20 * MIB)), (None, 1));
    let whole = tried(0, &options(Some(40 * MIB), false, true)).unwrap_err();
    assert!(matches!(&whole, MkfsError::Exists { what, .. } if what == "gpt"), "{whole}");
    assert!(before == std::fs::read(&path).unwrap(), "what was refused has changed something");

    assert_eq!(tried(MIB, &options(Some(40 * MIB), false, true)).unwrap(), 40 * MIB);
    let after = std::fs::read(&path).unwrap();
    assert!(before[..own.start] == after[..own.start], "the table");
    assert!(before[own.end..] == after[own.end..], "the second partition, or the backup");
    // Within its partition a filesystem may begin and end where it likes.
    tried(45 * MIB, &options(Some(20 * MIB), false, true)).unwrap();
    tried(MIB, &options(None, true, true)).unwrap();
}

fn partition(path: &Path, table: &str) -> bool {
    use std::io::Write;
    let mut command = std::process::Command::new("sfdisk");
    let command = command.args(["--quiet", "--wipe", "never"]).arg(path);
    let Ok(mut child) = command.stdin(std::process::Stdio::piped()).spawn() else { return false };
    child.stdin.take().unwrap().write_all(table.as_bytes()).unwrap();
    child.wait().unwrap().success()
}

/// `mkfs.btrfs` leaves them alone, too; so both programs answer the same question the same way.
#[test]
fn as_mkfs_btrfs_does() {
    if !has_progs() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("disk.img");
    patterned().store(&path).unwrap();
    let name = path.display().to_string();
    stdout("mkfs.btrfs", &["-q", "-M", "-b", "40M", &name]);
    compare("mkfs.btrfs", &FileDevice::open(&path, Access::ReadOnly).unwrap(), 0..40 * MIB);
}
