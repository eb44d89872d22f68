//! Damaged images: what can be read is read, what can be repaired is repaired, the rest is an error that says what is wrong.

use std::sync::Arc;

use buttress::device::{BlockDevice, MemoryDevice};
use buttress::ondisk::Key;
use buttress::{Filesystem, Options, Result};
use buttress_testkit::corpus::{Image, build};
use buttress_testkit::facts::{Facts, diff, facts_of_library};
use buttress_testkit::oracle::{check, root_or_skip, temp_dir};

/// Where superblocks are, as far as images here have them.
const SUPERBLOCKS: [u64; 2] = [64 << 10, 64 << 20];
/// The chunk type bit of DUP.
const DUP: u64 = 1 << 5;
/// Trees that are not subvolumes: root, extent, chunk, device, top level, checksums, uuids, free space, relocated data.
const TREES: [u64; 9] = [1, 2, 3, 4, 5, 7, 9, 10, u64::MAX - 8];

fn open(device: MemoryDevice, options: Options) -> Result<Filesystem> {
    Filesystem::open_device(Arc::new(device), options.background(false))
}

fn load(image: &Image) -> MemoryDevice {
    MemoryDevice::load(&image.path).unwrap()
}

fn assert_alike(what: &str, have: &Facts, expect: &Facts) {
    let lines = diff(have, expect);
    assert!(lines.is_empty(), "{what}: {}", lines.join("\n"));
}

/// Cut anywhere, an image is refused, or read as far as it goes: never wrong, and not written.
#[test]
fn cut_images() {
    if !root_or_skip() {
        return;
    }
    let image = build("plain").unwrap();
    let whole = load(&image);
    let expect = image.facts.as_ref().unwrap();
    let ends = [0, 1, 511, 4096, 65_535, 65_536, 66_000, 69_632, 1 << 20, (1 << 20) + 1];
    let parts = (1..32).map(|part| whole.size() / 32 * part);
    let mut opened = 0;
    for end in ends.into_iter().chain(parts).chain([whole.size() - 4096, whole.size() - 1]) {
        assert!(open(whole.resized(end), Options::read_write()).is_err(), "{end}");
        let Ok(fs) = open(whole.resized(end), Options::read_only()) else { continue };
        opened += 1;
        assert!(fs.warnings().iter().any(|it| it.contains("bytes")), "{end}: {:?}", fs.warnings());
        if let Ok(facts) = facts_of_library(&fs) {
            assert_alike(&format!("cut at {end}"), &facts, expect);
        }
    }
    assert!(opened > 5, "{opened} of the cut images could be opened");
}

fn zero(device: &MemoryDevice, offset: u64) {
    device.write_at(offset, &[0; 4096]).unwrap();
}

/// Without the primary superblock the mirror is read by, and that is said; writing is on request, and puts the primary back.
#[test]
fn lost_superblocks() {
    if !root_or_skip() {
        return;
    }
    let image = build("plain").unwrap();
    let expect = image.facts.as_ref().unwrap();
    let device = load(&image);
    zero(&device, SUPERBLOCKS[0]);
    let fs = open(device.snapshot(), Options::read_only()).unwrap();
    assert!(fs.warnings().iter().any(|it| it.contains("superblock")), "{:?}", fs.warnings());
    assert_alike("from the mirror", &facts_of_library(&fs).unwrap(), expect);
    let dir = temp_dir().unwrap();
    let path = dir.path().join("image");
    device.store(&path).unwrap();
    let options = || Options::read_write().background(false);
    let error = Filesystem::open(&path, options()).unwrap_err().to_string();
    assert!(error.contains("may lack any number of later commits"), "{error}");
    let fs = Filesystem::open(&path, options().use_backup_super(true)).unwrap();
    fs.set_label(b"saved").unwrap();
    fs.close().unwrap();
    check(&path, true).unwrap();
    let fs = Filesystem::open(&path, Options::read_only()).unwrap();
    assert_eq!((fs.info().label, fs.warnings().len()), (b"saved".to_vec(), 0));

    zero(&device, SUPERBLOCKS[1]);
    for options in [Options::read_only(), Options::read_write()] {
        let error = open(device.snapshot(), options).unwrap_err().to_string();
        assert!(error.contains("no btrfs filesystem"), "{error}");
    }
}

/// Turns over a byte in each used sector of one copy of everything that has two.
fn spoil(device: &MemoryDevice, fs: &Filesystem, copy: usize) -> u64 {
    let mut spoiled = 0;
    for chunk in fs.volume().chunks().into_iter().filter(|chunk| chunk.type_flags & DUP != 0) {
        let start = chunk.stripes[copy].offset;
        for at in (start..start + chunk.length).step_by(4096) {
            let mut sector = [0; 4096];
            device.read_at(at, &mut sector).unwrap();
            if !SUPERBLOCKS.contains(&at) && sector.iter().any(|byte| *byte != 0) {
                device.write_at(at + 77, &[!sector[77]]).unwrap();
                spoiled += 1;
            }
        }
    }
    spoiled
}

/// Reads every tree and every file.
fn read_all(fs: &Filesystem) -> Facts {
    let volumes = fs.subvolumes().unwrap().into_iter().map(|volume| volume.id);
    for tree in TREES.into_iter().chain(volumes) {
        fs.search(tree, Key::MIN, Key::MAX, |_, _, _| true).unwrap();
    }
    facts_of_library(fs).unwrap()
}

/// Either copy may be bad. Reading goes on with the other one; with write access it puts the bad one right, so that
/// afterwards the other copy may go bad.
#[test]
fn bad_copies_are_repaired_from_good_ones() {
    if !root_or_skip() {
        return;
    }
    let image = build("xxhash-dup-data").unwrap();
    let expect = image.facts.as_ref().unwrap();
    for first in [0, 1] {
        let device = Arc::new(load(&image));
        let open = |options: Options| {
            let device: Arc<dyn BlockDevice> = device.clone();
            Filesystem::open_device(device, options.background(false)).unwrap()
        };
        let spoiled = spoil(&device, &open(Options::read_only()), first);
        assert!(spoiled > 100, "{spoiled}");
        let fs = open(Options::read_only());
        assert_alike("read-only", &read_all(&fs), expect);
        assert_eq!(fs.volume().stats().repaired, 0, "a read-only open repairs");
        drop(fs);
        let fs = open(Options::read_write());
        assert_alike("with write access", &read_all(&fs), expect);
        let stats = fs.volume().stats();
        assert_eq!(stats.repair_failures, 0);
        // The first copy is the one that is read: bad second copies are not seen.
        assert_eq!(stats.repaired > 50, first == 0, "{stats:?}");
        fs.close().unwrap();
        if first == 1 {
            continue;
        }
        spoil(&device, &open(Options::read_only()), 1);
        let fs = open(Options::read_only());
        assert_alike("after the repair", &read_all(&fs), expect);
        drop(fs);
        let dir = temp_dir().unwrap();
        let path = dir.path().join("image");
        device.store(&path).unwrap();
        check(&path, false).unwrap();
    }
}
