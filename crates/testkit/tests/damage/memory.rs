//! Looking closer at a badly damaged filesystem takes the memory that it is given: a kept reference is some 50 bytes, and where there
//! are more than there is room for, everything is read again for the others.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use buttress::{Allocate, Filesystem, New, Node, Options as Mode};
use buttress_check::{Options, Progress, Report, check_devices};
use buttress_device::{Access, FileDevice, MemoryDevice};
use buttress_testkit::damage::{Patient, TOP};
use buttress_testkit::memory::peak_memory;
use buttress_testkit::oracle::temp_dir;

/// Set in the process that runs the check alone: the image.
const ALONE: &str = "BUTTRESS_CHECK_ALONE";
const FILES: u64 = 20;
const EXTENTS: u64 = 20_000;
/// What the check may take, with buffers and all: some 400 bytes for each extent that is wrong.
const MEMORY: u64 = 8 << 20;

/// A filesystem with many extents and none of the leaves that refer to them.
fn damaged() -> MemoryDevice {
    let device = Arc::new(MemoryDevice::new(1 << 30));
    let mut seed = buttress_mkfs::Environment::seeded(1);
    buttress_mkfs::make(&*device, &buttress_mkfs::Options::default(), &mut seed).unwrap();
    let options = Mode::read_write().background(false);
    let fs = Filesystem::open_device(device.clone(), options).unwrap();
    let keep = Allocate::Reserve { keep_size: true };
    for number in 0..FILES {
        let name = format!("file {number}");
        let node = fs.create(Node::ROOT, name.as_bytes(), &New::file(0o644)).unwrap().node;
        (0..EXTENTS / FILES).for_each(|at| fs.fallocate(node, keep, at * 8192, 4096).unwrap());
    }
    fs.close().unwrap();
    let patient = Patient::of(&device).unwrap();
    let root = patient.block(patient.root(TOP).unwrap()).unwrap();
    assert!(!root.is_leaf());
    for slot in 0..root.len() {
        patient.write(root.child(slot).bytenr, &[0; 16384]).unwrap();
    }
    patient.device().snapshot()
}

fn check(path: &Path, memory_bytes: usize, issues_max: usize) -> Report {
    let device = Arc::new(FileDevice::open(path, Access::ReadOnly).unwrap());
    let options =
        Options { threads: 2, memory_bytes, issues_max, seed: Some(1), ..Options::default() };
    check_devices(vec![device], &options, &Progress::default()).unwrap()
}

#[test]
fn a_close_look_keeps_to_its_memory() {
    let usual = Options::default();
    if let Some(path) = std::env::var_os(ALONE) {
        let before = peak_memory().unwrap();
        let report = check(Path::new(&path), usual.memory_bytes, usual.issues_max);
        let more = peak_memory().unwrap() - before;
        println!("{} KiB", more >> 10);
        assert!(!report.is_clean() && more <= MEMORY, "{more} bytes of {MEMORY}");
        return;
    }
    let dir = temp_dir().unwrap();
    let path = dir.path().join("image");
    damaged().store(&path).unwrap();
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args(["--exact", "memory::a_close_look_keeps_to_its_memory", "--nocapture"]);
    let output = child.env(ALONE, &path).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
    println!("{text}");

    // In little memory it comes to the same, in several looks.
    let all = 10 * EXTENTS as usize;
    let (much, little) = (check(&path, usual.memory_bytes, all), check(&path, 1 << 20, all));
    assert!(much.issues.len() as u64 > EXTENTS, "{:?}", much.counts);
    assert!(much.issues == little.issues, "{:?} {:?}", much.counts, little.counts);
}
