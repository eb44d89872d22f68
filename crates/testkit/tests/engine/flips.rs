//! Every byte of the metadata turned over, one at a time. With the block's checksum as it was, the answer is the right
//! data or an error. With the checksum put right, as a forger would, it is any data or an error: but nothing panics, the
//! number of reads stays within bounds, and so does memory. The same goes for writing to such a filesystem.
//!
//! By default a sample is taken; `BUTTRESS_LONG=1` takes every byte.

use std::collections::HashSet;
use std::fs;
use std::os::unix::fs::symlink;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use buttress::device::{BlockDevice, DeviceError, MemoryDevice, OverlayDevice};
use buttress::ondisk::{Key, kind};
use buttress::{
    Allocate, Change, Entry, Errno, FileKind, Filesystem, New, Node, Options, Owner, Rename,
    Result, Seek, SetXattr, WantedReferrers,
};
use buttress_testkit::corpus::crc32c;
use buttress_testkit::facts::{Facts, facts_of_library};
use buttress_testkit::memory::peak_memory;
use buttress_testkit::oracle::{KernelMount, btrfs, mkfs, root_or_skip, temp_dir};

use crate::bytes::{noise, words};

/// Bytes of a tree block, the smallest there is: many blocks, of every kind.
const NODE: usize = 4096;
/// Bytes of a block that hold its checksum.
const SUM: usize = 32;
const SUPERBLOCK: u64 = 64 << 10;
/// Cases of a sample.
const SAMPLE: usize = 700;
/// Reads of one case, as a multiple of those of the healthy filesystem.
const READS_FACTOR: u64 = 20;
/// Names that an exploration looks at.
const NAMES_MAX: usize = 1000;
/// Reads of one file.
const PARTS_MAX: usize = 40;
/// Extents of one file that are asked who refers to them.
const REFERRERS_MAX: usize = 8;
/// Bytes that the whole test may need at its peak.
const MEMORY_MAX: u64 = 512 << 20;
/// Set in the environment of the process that does the work.
const ALONE: &str = "BUTTRESS_ALONE";

/// Counts reads, and refuses them beyond a limit.
#[derive(Debug)]
struct Counted {
    inner: OverlayDevice,
    reads: AtomicU64,
    limit: u64,
}

impl BlockDevice for Counted {
    fn name(&self) -> &str {
        self.inner.name()
    }
    fn size(&self) -> u64 {
        self.inner.size()
    }
    fn is_read_only(&self) -> bool {
        false
    }
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> std::result::Result<(), DeviceError> {
        let reads = self.reads.fetch_add(1, Ordering::Relaxed);
        assert!(reads < self.limit, "more than {} reads", self.limit);
        self.inner.read_at(offset, buf)
    }
    fn write_at(&self, offset: u64, data: &[u8]) -> std::result::Result<(), DeviceError> {
        self.inner.write_at(offset, data)
    }
    fn barrier(&self) -> std::result::Result<(), DeviceError> {
        self.inner.barrier()
    }
}

/// The healthy image.
struct Healthy {
    device: Arc<MemoryDevice>,
    facts: Facts,
    /// Addresses on the device of all tree blocks.
    blocks: Vec<u64>,
    /// Reads that it takes to explore and change it.
    reads: u64,
}

/// A bit of everything that has items of its own.
fn populate(top: &Path) {
    let volume = |args: &[&str]| btrfs(&[&["subvolume"], args].concat()).unwrap();
    let text = |name: &str| top.join(name).to_string_lossy().into_owned();
    for number in 0..40 {
        fs::write(top.join(format!("file-{number}")), words(number, number as usize * 60)).unwrap();
    }
    fs::write(top.join("large"), noise(1, 300_000)).unwrap();
    fs::hard_link(top.join("large"), top.join("link")).unwrap();
    symlink("large", top.join("symlink")).unwrap();
    rustix::fs::setxattr(top.join("file-3"), "user.a", b"value", rustix::fs::XattrFlags::CREATE)
        .unwrap();
    volume(&["create", &text("sub")]);
    fs::write(top.join("sub/inside"), noise(2, 20_000)).unwrap();
    fs::create_dir_all(top.join("a/b/c")).unwrap();
    let sparse = fs::File::create(top.join("a/b/sparse")).unwrap();
    sparse.set_len(1 << 30).unwrap();
    volume(&["snapshot", &text("sub"), &text("a/snapshot")]);
    volume(&["snapshot", "-r", &text(""), &text("a/whole")]);
    fs::write(top.join("sub/after"), noise(3, 9_000)).unwrap();
    fs::remove_file(top.join("file-9")).unwrap();
}

impl Healthy {
    fn make() -> Healthy {
        let dir = temp_dir().unwrap();
        let path = dir.path().join("image");
        let args = ["-m", "single", "-n", "4096", "-O", "^no-holes"];
        mkfs(&path, 120 << 20, &args).unwrap();
        let mount = KernelMount::new(&path, "").unwrap();
        populate(mount.path());
        mount.finish().unwrap();
        let device = Arc::new(MemoryDevice::load(&path).unwrap());
        let fs = Filesystem::open_device(device.clone(), Options::read_only()).unwrap();
        let facts = facts_of_library(&fs).unwrap();
        let blocks = tree_blocks(&fs);
        let mut healthy = Healthy { device, facts, blocks, reads: u64::MAX };
        let counted = healthy.with(None);
        explore(&open(&counted, Options::read_only()).unwrap());
        change(&open(&counted, Options::read_write()).unwrap()).unwrap();
        healthy.reads = counted.reads.load(Ordering::Relaxed);
        healthy
    }

    /// A device above the healthy one, with one block replaced.
    fn with(&self, block: Option<(u64, &[u8])>) -> Arc<Counted> {
        let inner = OverlayDevice::new(self.device.clone());
        if let Some((at, bytes)) = block {
            inner.write_at(at, bytes).unwrap();
        }
        let limit = self.reads.saturating_mul(READS_FACTOR);
        Arc::new(Counted { inner, reads: AtomicU64::new(0), limit })
    }
}

fn open(device: &Arc<Counted>, options: Options) -> Result<Filesystem> {
    Filesystem::open_device(device.clone(), options.background(false))
}

/// Where the tree blocks are that the extent tree names.
fn tree_blocks(fs: &Filesystem) -> Vec<u64> {
    let mut found = Vec::new();
    fs.search(2, Key::MIN, Key::MAX, |key, _, _| {
        if key.kind == kind::METADATA_ITEM {
            found.push(key.objectid);
        }
        true
    })
    .unwrap();
    assert!(found.len() > 30, "{}", found.len());
    let place = |logical: u64| {
        let chunk = fs.volume().chunk_at(logical).unwrap();
        chunk.stripes[0].offset + (logical - chunk.logical)
    };
    found.into_iter().map(place).collect()
}

/// Looks at everything, whatever comes; errors are answers, too.
fn explore(fs: &Filesystem) {
    let _ = (fs.usage(), fs.info(), fs.default_subvolume());
    let _ = fs.subvolume_costs(|_| true).map(|costs| costs.freed_by(&[256, 257]));
    for volume in fs.subvolumes().unwrap_or_default() {
        let _ = (fs.subvolume_info(volume.id), fs.subvolume_path(volume.id));
    }
    for tree in [1, 2, 3, 4, 5, 7, 9, 10, 256] {
        let _ = fs.search(tree, Key::MIN, Key::MAX, |_, _, _| true);
    }
    let (mut waiting, mut seen, mut names) = (vec![Node::ROOT], HashSet::new(), 0);
    while let Some(dir) = waiting.pop() {
        if !seen.insert(dir) {
            continue;
        }
        let mut entries: Vec<Entry> = Vec::new();
        let _ = fs.read_dir(dir, 0, &mut |entry| {
            entries.push(entry);
            names += 1;
            names < NAMES_MAX
        });
        for entry in entries {
            let _ = (fs.lookup(dir, &entry.name), fs.path_of(entry.node));
            look_at(fs, entry.node);
            if entry.kind == FileKind::Directory {
                waiting.push(entry.node);
            }
        }
    }
}

fn look_at(fs: &Filesystem, node: Node) {
    let (_, attributes) = (fs.parent(node), fs.attributes(node));
    for name in fs.list_xattrs(node).unwrap_or_default() {
        let _ = fs.get_xattr(node, &name);
    }
    let _ = (fs.read_link(node), fs.extents(node, 0..u64::MAX));
    let _ = fs.stored(node, |_| true);
    let extents = fs.fiemap(node, 0..u64::MAX).into_iter().flat_map(|all| all.take(NAMES_MAX));
    for one in extents.flatten().take(REFERRERS_MAX) {
        for whole in [false, true] {
            let wanted = WantedReferrers { logical: one.physical, whole, most: NAMES_MAX };
            let _ = fs.referrers(wanted);
        }
    }
    let Ok(attributes) = attributes else { return };
    let mut buffer = vec![0; 64 << 10];
    let mut at = 0;
    for _ in 0..PARTS_MAX {
        let Ok(data) = fs.seek(node, at, Seek::Data) else { break };
        match fs.read(node, data, &mut buffer) {
            Ok(0) => break,
            Ok(count) => at = data + count as u64,
            Err(_) => at = data.saturating_add(4096),
        }
        if at >= attributes.size {
            break;
        }
    }
}

/// Some of every kind of change; the first failure ends it.
fn change(fs: &Filesystem) -> Result<()> {
    let find = |name: &[u8]| -> Result<Node> {
        Ok(fs.lookup(Node::ROOT, name)?.ok_or(buttress::Error::User(Errno::NOENT))?.node)
    };
    let steps: [&dyn Fn() -> Result<()>; 12] = [
        &|| {
            let made = fs.create(Node::ROOT, b"new", &New::file(0o644))?;
            fs.write(made.node, 0, &noise(5, 50_000)).map(|_| ())
        },
        &|| fs.write(find(b"large")?, 100_000, &noise(6, 10_000)).map(|_| ()),
        &|| fs.unlink(Node::ROOT, b"file-7").map(|_| ()),
        &|| fs.rename(Node::ROOT, b"file-5", find(b"a")?, b"moved", Rename::Replace),
        &|| fs.set_xattr(find(b"file-3")?, b"user.b", b"other", SetXattr::Any),
        &|| fs.fallocate(find(b"link")?, Allocate::PunchHole, 50_000, 100_000),
        &|| {
            let size = Change { size: Some(5), ..Change::default() };
            fs.set_attributes(find(b"file-20")?, &size).map(|_| ())
        },
        &|| fs.create_subvolume(Node::ROOT, b"made", Owner::default()).map(|_| ()),
        &|| fs.snapshot(256, Node::ROOT, b"again", false).map(|_| ()),
        &|| fs.delete_subvolume(Node::ROOT, b"sub").map(|_| ()),
        &|| fs.delete_subvolume(find(b"a")?, b"whole").map(|_| ()),
        &|| fs.clean(),
    ];
    let mut first = Ok(());
    for step in steps {
        let done = step();
        if first.is_ok() {
            first = done;
        }
    }
    first.and(fs.commit().map(|_| ()))
}

/// One byte of one block, turned over.
#[derive(Clone, Copy, Debug)]
struct Flip {
    block: u64,
    at: usize,
    bits: u8,
}

impl Flip {
    fn apply(&self, healthy: &Healthy, forged: bool) -> Vec<u8> {
        let mut bytes = vec![0; NODE];
        healthy.device.read_at(self.block, &mut bytes).unwrap();
        bytes[self.at] ^= self.bits;
        if forged {
            let sum = !crc32c(!0, &bytes[SUM..]);
            bytes[..4].copy_from_slice(&sum.to_le_bytes());
        }
        bytes
    }

    /// What is wrong with how the flip is dealt with.
    fn fault(&self, healthy: &Healthy) -> Option<String> {
        let plain = || {
            let bytes = self.apply(healthy, false);
            let device = healthy.with(Some((self.block, &bytes)));
            let read = open(&device, Options::read_only()).and_then(|fs| facts_of_library(&fs));
            assert!(read.is_err() || read.is_ok_and(|facts| facts == healthy.facts), "wrong data");
        };
        let forged = || {
            let bytes = self.apply(healthy, true);
            let device = healthy.with(Some((self.block, &bytes)));
            if let Ok(fs) = open(&device, Options::read_only()) {
                explore(&fs);
            }
            if let Ok(fs) = open(&device, Options::read_write()) {
                let _ = change(&fs);
            }
        };
        let forged = catch_unwind(AssertUnwindSafe(forged)).err();
        let panic = catch_unwind(AssertUnwindSafe(plain)).err().or(forged)?;
        Some(format!("{self:?}: {}", crate::each::message(&*panic)))
    }
}

/// The flips to try: all, or a sample of them that favours bytes that mean something.
fn flips(healthy: &Healthy) -> Vec<Flip> {
    let long = std::env::var("BUTTRESS_LONG").is_ok_and(|value| value != "0");
    let mut flips = Vec::new();
    for (number, block) in healthy.blocks.iter().chain([&SUPERBLOCK]).enumerate() {
        let mut bytes = vec![0; NODE];
        healthy.device.read_at(*block, &mut bytes).unwrap();
        for at in 0..NODE {
            let near = bytes.iter().skip(at.saturating_sub(8)).take(16).any(|byte| *byte != 0);
            if long || near {
                let bits = [0xff, 0x01, 0x80, 0x10][(at * 5 + number) % 4];
                flips.push(Flip { block: *block, at, bits });
            }
        }
    }
    let step = if long { 1 } else { flips.len().div_ceil(SAMPLE) };
    flips.into_iter().step_by(step).collect()
}

/// Runs this test in a process of its own, whose memory no other test fills.
fn alone() {
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args(["--exact", "flips::a_turned_byte_is_an_error_or_does_not_matter", "--nocapture"]);
    let output = child.env(ALONE, "1").output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
    println!("{text}");
}

#[test]
fn a_turned_byte_is_an_error_or_does_not_matter() {
    if !root_or_skip() {
        return;
    }
    if std::env::var_os(ALONE).is_none() {
        return alone();
    }
    let healthy = Healthy::make();
    let flips = flips(&healthy);
    println!("{} blocks, {} cases, {} reads", healthy.blocks.len(), flips.len(), healthy.reads);
    let (next, faults) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while let Some(flip) = flips.get(next.fetch_add(1, Ordering::Relaxed)) {
                    faults.lock().unwrap().extend(flip.fault(&healthy));
                }
            });
        }
    });
    let faults = faults.into_inner().unwrap();
    assert!(faults.is_empty(), "{} faults:\n{}", faults.len(), faults.join("\n"));
    assert!(peak_memory().unwrap() < MEMORY_MAX, "{} bytes at the peak", peak_memory().unwrap());
}
