//! Random bytes of tree blocks and superblocks changed, with the checksums repaired: whatever comes, our checker ends, reads
//! no more than a multiple of what it reads of the healthy image, and does not panic.
//!
//! By default a sample is taken; `BUTTRESS_LONG=1` takes a hundred times as many.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use buttress_check::{Options, Progress, check};
use buttress_device::{BlockDevice, DeviceError, MemoryDevice};
use buttress_ondisk::{Expect, kind, objectid, print};
use buttress_testkit::damage::{Base, Patient};
use buttress_testkit::ops::rng::Rng;
use buttress_testkit::oracle::root_or_skip;
use buttress_volume::{Access, Volume};

use crate::verdicts::healthy;

/// Cases of a sample, for each image.
const SAMPLE: u64 = 120;
/// Reads of one case, as a multiple of those of the healthy image.
const READS_FACTOR: u64 = 50;
/// Bytes changed at most in one case.
const CHANGES_MAX: u64 = 4;

/// Counts reads, and panics beyond a limit.
#[derive(Debug)]
struct Counted {
    inner: Arc<MemoryDevice>,
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
        true
    }
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), DeviceError> {
        let reads = self.reads.fetch_add(1, Ordering::Relaxed);
        assert!(reads < self.limit, "more than {} reads", self.limit);
        self.inner.read_at(offset, buf)
    }
    fn write_at(&self, _: u64, _: &[u8]) -> Result<(), DeviceError> {
        panic!("the checker writes");
    }
    fn barrier(&self) -> Result<(), DeviceError> {
        Ok(())
    }
}

/// Prints all that can be used, into nothing.
fn dump(volume: &Volume) {
    let mut source = |expect: &Expect| {
        let read = volume.read_block(expect.bytenr, expect);
        read.or_else(|error| volume.salvage(&error).map(|(_, block)| block).ok_or(error)).ok()
    };
    let options = print::DumpTree::default();
    print::dump_tree(&mut std::io::sink(), &volume.superblock(), &mut source, &options).unwrap();
}

/// Checks everything; the number of reads.
fn run(device: Arc<MemoryDevice>, limit: u64) -> u64 {
    let device = Arc::new(Counted { inner: device, reads: AtomicU64::new(0), limit });
    let options = Options { check_data_csum: true, threads: 2, ..Options::default() };
    if let Ok(opened) = Volume::open(vec![device.clone()], Access::ReadOnly) {
        let report = check(&opened.volume, &options, &Progress::default());
        assert!(report.issues.len() <= options.issues_max);
        let text: usize = report.issues.iter().map(|issue| issue.to_string().len()).sum();
        assert!(text < 64 << 20, "{text} bytes of issues");
        dump(&opened.volume);
    }
    device.reads.load(Ordering::Relaxed)
}

/// Changes some bytes of one block that mean something; says which.
fn change(patient: &Patient, blocks: &[u64], random: &mut Rng) -> String {
    let at = blocks[random.below(blocks.len() as u64) as usize];
    let mut told = format!("block {at}:");
    let mut bytes = patient.block(at).unwrap().as_bytes().to_vec();
    let used: Vec<usize> = (32..bytes.len())
        .filter(|place| bytes[place.saturating_sub(4)..].iter().take(8).any(|byte| *byte != 0))
        .collect();
    for _ in 0..=random.below(CHANGES_MAX) {
        // Every other one in the head of the block, its items or its children.
        let end = if random.below(2) == 0 { used.len() } else { used.len().min(300) };
        let place = used[random.below(end as u64) as usize];
        let value = [0, 0xff, bytes[place] ^ 1, bytes[place] ^ 0x80, random.below(256) as u8];
        bytes[place] = value[random.below(5) as usize];
        told += &format!(" {place}={}", bytes[place]);
    }
    patient.seal(at, bytes).unwrap();
    told
}

/// Changes a byte of the superblock; says which.
fn change_superblock(patient: &Patient, random: &mut Rng) -> String {
    // Not the checksum, and no zeros behind the arrays.
    let place = 32 + random.below(2800) as usize;
    let value = random.below(256) as u8;
    let set = |sb: &mut buttress_ondisk::Superblock| {
        zerocopy::IntoBytes::as_mut_bytes(sb)[place] = value;
    };
    patient.superblock(set).unwrap();
    format!("superblock: {place}={value}")
}

/// Addresses of all tree blocks.
fn blocks(patient: &Patient) -> Vec<u64> {
    let is_block = |kind: u8, data: &[u8]| match kind {
        kind::METADATA_ITEM => true,
        kind::EXTENT_ITEM => data.get(16).is_some_and(|flags| flags & 2 != 0),
        _ => false,
    };
    let all = patient.all(objectid::EXTENT_TREE, |key, data| is_block(key.kind, data)).unwrap();
    all.into_iter().map(|(key, _)| key.objectid).collect()
}

#[test]
fn changed_bytes_do_not_make_it_panic_or_hang() {
    if !root_or_skip() {
        return;
    }
    let long = std::env::var("BUTTRESS_LONG").is_ok_and(|value| value != "0");
    let cases = if long { SAMPLE * 100 } else { SAMPLE };
    let mut faults = Vec::new();
    for base in [Base::Quotas, Base::Old, Base::Deep] {
        let healthy = &healthy()[&base];
        let patient = Patient::of(healthy).unwrap();
        let (blocks, limit) = (blocks(&patient), run(patient.device().clone(), u64::MAX));
        assert!(blocks.len() > 20, "{}", blocks.len());
        for seed in 0..cases {
            let mut random = Rng::new(seed);
            let patient = Patient::of(healthy).unwrap();
            let told = match random.below(8) {
                0 => change_superblock(&patient, &mut random),
                _ => change(&patient, &blocks, &mut random),
            };
            let device = patient.device().clone();
            if catch_unwind(AssertUnwindSafe(|| run(device, limit * READS_FACTOR))).is_err() {
                faults.push(format!("{base:?}, seed {seed}: {told}"));
            }
        }
    }
    assert!(faults.is_empty(), "{} faults:\n{}", faults.len(), faults.join("\n"));
}
