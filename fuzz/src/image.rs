//! Images that the kernel made, and changes to them that the fuzzer chooses. A changed tree block or superblock gets its
//! checksum put right, as a forger would, so that the fuzzer gets past it.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use buttress_codec::ChecksumKind;
use buttress_device::{BlockDevice, DeviceError, MemoryDevice, OverlayDevice};
use buttress_ondisk::{Key, kind};

use crate::input::Input;

/// Where superblocks are, as far as small images have them.
const SUPERBLOCKS: [u64; 2] = [64 << 10, 64 << 20];
/// Bytes of a superblock.
const SUPERBLOCK_LEN: usize = 4096;
/// Bytes before those that a checksum is of.
const SUM: usize = 32;
/// Changes of one image, at most.
const CHANGES_MAX: usize = 24;
/// Reads and writes of one run, at most: far more than a healthy image of this size takes.
const REQUESTS_MAX: u64 = 400_000;
/// Numbers that are worth a try.
const NUMBERS: [u64; 16] = [
    0,
    1,
    2,
    255,
    256,
    4095,
    4096,
    65536,
    1 << 31,
    u32::MAX as u64,
    1 << 32,
    i64::MAX as u64,
    1 << 63,
    u64::MAX - 4095,
    u64::MAX - 1,
    u64::MAX,
];

/// A healthy image.
pub struct Image {
    device: Arc<MemoryDevice>,
    csum: ChecksumKind,
    nodesize: usize,
    /// Where tree blocks and superblocks are on the device, all copies of one together.
    blocks: Vec<Vec<u64>>,
}

/// The directory of the images.
pub fn directory() -> PathBuf {
    let given = std::env::var_os("BUTTRESS_FUZZ_IMAGES").map(PathBuf::from);
    given.unwrap_or_else(|| PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/images")))
}

/// All images that `fuzz/prepare` has made.
pub fn images() -> &'static [Image] {
    static IMAGES: OnceLock<Vec<Image>> = OnceLock::new();
    IMAGES.get_or_init(|| {
        let entries = std::fs::read_dir(directory()).expect("`fuzz/prepare` makes images");
        let mut paths: Vec<_> = entries.flatten().map(|entry| entry.path()).collect();
        paths.retain(|path| path.extension().is_some_and(|it| it == "img"));
        paths.sort();
        assert!(!paths.is_empty(), "`fuzz/prepare` makes images");
        paths.iter().map(Image::load).collect()
    })
}

impl Image {
    /// Reads an image and finds its blocks.
    pub fn load(path: &PathBuf) -> Image {
        let device = Arc::new(MemoryDevice::load(path).expect("an image"));
        let options = buttress::Options::read_only().background(false);
        let fs = buttress::Filesystem::open_device(device.clone(), options).expect("a healthy image");
        let volume = fs.volume();
        let csum = volume.checksum_kind();
        let nodesize = volume.nodesize() as usize;
        let mut blocks = vec![SUPERBLOCKS.into_iter().filter(|at| *at < device.size()).collect()];
        let mut add = |logical: u64| {
            let Some(chunk) = volume.chunk_at(logical) else { return };
            let copies = chunk.stripes.iter().map(|it| it.offset + (logical - chunk.logical));
            blocks.push(copies.collect());
        };
        let found = fs.search(2, Key::MIN, Key::MAX, |key, _, _| {
            if key.kind == kind::METADATA_ITEM {
                add(key.objectid);
            }
            true
        });
        found.expect("an extent tree");
        Image { device, csum, nodesize, blocks }
    }

    /// The image as it is.
    pub fn device(&self) -> &Arc<MemoryDevice> {
        &self.device
    }

    /// The kind of checksum.
    pub fn csum(&self) -> ChecksumKind {
        self.csum
    }

    /// Blocks: the superblock first.
    pub fn blocks(&self) -> impl Iterator<Item = Vec<u8>> + '_ {
        self.blocks.iter().enumerate().map(|(number, copies)| self.read(number, copies[0]))
    }

    fn read(&self, number: usize, at: u64) -> Vec<u8> {
        let mut bytes = vec![0; if number == 0 { SUPERBLOCK_LEN } else { self.nodesize }];
        self.device.read_at(at, &mut bytes).expect("a block of a healthy image");
        bytes
    }

    /// The image with the changes that `input` says: how many, then for each its block, place and kind.
    pub fn changed(&self, input: &mut Input<'_>) -> Arc<Changed> {
        let overlay = OverlayDevice::new(self.device.clone());
        let count = usize::from(input.byte()) % (CHANGES_MAX + 1);
        for _ in 0..count {
            let number = usize::from(input.short()) % self.blocks.len();
            let mut bytes = self.read_changed(&overlay, number);
            change(&mut bytes, number == 0, input);
            self.write(&overlay, number, &mut bytes);
        }
        Arc::new(Changed { overlay, requests: AtomicU64::new(0) })
    }

    fn read_changed(&self, overlay: &OverlayDevice, number: usize) -> Vec<u8> {
        let mut bytes = self.read(number, self.blocks[number][0]);
        overlay.read_at(self.blocks[number][0], &mut bytes).expect("memory can be read");
        bytes
    }

    fn write(&self, overlay: &OverlayDevice, number: usize, bytes: &mut [u8]) {
        for copy in &self.blocks[number] {
            if number == 0 {
                // Its own address tells the copies of a superblock apart.
                bytes[48..56].copy_from_slice(&copy.to_le_bytes());
            }
            let (sum, rest) = bytes.split_at_mut(SUM);
            self.csum.digest_into(rest, sum);
            overlay.write_at(*copy, bytes).expect("memory can be written");
        }
    }
}

/// Where members of leaves and nodes are: half of all changes go there, as most of a block is free space.
fn place(bytes: &[u8], is_super: bool, input: &mut Input<'_>) -> usize {
    let (how, number) = (input.byte(), usize::from(input.short()));
    let count = u32::from_le_bytes([bytes[96], bytes[97], bytes[98], bytes[99]]) as usize;
    let is_leaf = bytes[100] == 0;
    if is_super || count == 0 || how < 32 {
        return SUM + number % (bytes.len() - SUM);
    }
    if how < 48 {
        return SUM + number % (101 - SUM);
    }
    let slot = number % count;
    if !is_leaf {
        return (101 + slot * 33 + usize::from(how) % 33).min(bytes.len() - 1);
    }
    let head = (101 + slot * 25).min(bytes.len() - 25);
    if how < 96 {
        return head + usize::from(how) % 25;
    }
    let number = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
    let (offset, size) = (number(head + 17) as usize, number(head + 21) as usize);
    let within = if size == 0 { 0 } else { usize::from(input.short()) % size };
    (101 + offset.saturating_add(within)).min(bytes.len() - 1)
}

fn change(bytes: &mut [u8], is_super: bool, input: &mut Input<'_>) {
    let at = place(bytes, is_super, input);
    let width = |wanted: usize| wanted.min(bytes.len() - at);
    match input.byte() % 8 {
        0 => bytes[at] = input.byte(),
        1 => bytes[at] ^= 1 << (input.byte() % 8),
        2 => {
            let value = NUMBERS[usize::from(input.byte()) % NUMBERS.len()].to_le_bytes();
            let width = width([2, 4, 8, 8][usize::from(input.byte() % 4)]);
            bytes[at..at + width].copy_from_slice(&value[..width]);
        }
        3 => {
            let (value, width) = (input.long().to_le_bytes(), width(8));
            bytes[at..at + width].copy_from_slice(&value[..width]);
        }
        4 => {
            let width = width(8);
            let mut value = [0; 8];
            value[..width].copy_from_slice(&bytes[at..at + width]);
            let step = i64::from(input.byte() as i8) << (input.byte() % 16);
            let value = u64::from_le_bytes(value).wrapping_add_signed(step).to_le_bytes();
            bytes[at..at + width].copy_from_slice(&value[..width]);
        }
        5 => {
            let from = usize::from(input.short()) % bytes.len();
            let len = usize::from(input.byte()).min(bytes.len() - at).min(bytes.len() - from);
            bytes.copy_within(from..from + len, at);
        }
        6 => {
            let len = width(usize::from(input.byte()));
            bytes[at..at + len].fill(input.byte());
        }
        _ => bytes[at] = bytes[at].wrapping_add(1),
    }
}

/// A changed image, which counts what it is asked: a filesystem that goes round in circles is found out.
#[derive(Debug)]
pub struct Changed {
    overlay: OverlayDevice,
    requests: AtomicU64,
}

impl Changed {
    fn count(&self) {
        let requests = self.requests.fetch_add(1, Ordering::Relaxed);
        assert!(requests < REQUESTS_MAX, "more than {REQUESTS_MAX} reads and writes");
    }
}

impl BlockDevice for Changed {
    fn name(&self) -> &str {
        "fuzzed"
    }
    fn size(&self) -> u64 {
        self.overlay.size()
    }
    fn is_read_only(&self) -> bool {
        false
    }
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), DeviceError> {
        self.count();
        self.overlay.read_at(offset, buf)
    }
    fn write_at(&self, offset: u64, data: &[u8]) -> Result<(), DeviceError> {
        self.count();
        self.overlay.write_at(offset, data)
    }
    fn barrier(&self) -> Result<(), DeviceError> {
        self.overlay.barrier()
    }
}
