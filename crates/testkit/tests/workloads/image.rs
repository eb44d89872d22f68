//! Images to work on.

use std::path::PathBuf;

use buttress::{Filesystem, Options};
use buttress_codec::ChecksumKind;
use buttress_device::{FileDevice, MemoryDevice};
use buttress_mkfs::{Environment, FeatureRequest, Profile, parse_features};
use buttress_testkit::oracle;
use tempfile::TempDir;

/// Where images are: memory, as long as the machine has a place for it.
const MEMORY: &str = "/dev/shm";

/// An image in a directory of its own.
pub struct Image {
    dir: TempDir,
}

impl Image {
    fn new() -> Image {
        let builder = || {
            let mut builder = tempfile::Builder::new();
            builder.prefix("buttress-workload-");
            builder
        };
        let made = builder().tempdir_in(MEMORY).or_else(|_| builder().tempdir());
        Image { dir: made.unwrap() }
    }

    /// Made by `mkfs.btrfs`.
    pub fn by_progs(size: u64, args: &[&str]) -> Image {
        let image = Image::new();
        oracle::mkfs(&image.path(), size, args).unwrap();
        image
    }

    /// Made by our own mkfs, without the block group tree, which older checkers do not know.
    pub fn by_us(size: u64, choose: impl FnOnce(&mut buttress_mkfs::Options)) -> Image {
        let image = Image::new();
        let device = FileDevice::create(image.path(), size).unwrap();
        let mut options = buttress_mkfs::Options::default();
        features(&mut options, "^block-group-tree");
        choose(&mut options);
        buttress_mkfs::make(&device, &options, &mut Environment::system()).unwrap();
        image
    }

    /// The content of a device in memory.
    pub fn of(device: &MemoryDevice) -> Image {
        let image = Image::new();
        device.store(image.path()).unwrap();
        image
    }

    /// A copy of it as it is now, as a power cut would leave it.
    pub fn copy(&self) -> Image {
        let image = Image::new();
        oracle::copy_sparse(&self.path(), &image.path()).unwrap();
        image
    }

    pub fn path(&self) -> PathBuf {
        self.dir.path().join("image")
    }

    /// Opens it with a worker that commits often, so that commits meet operations.
    pub fn open(&self) -> Filesystem {
        let interval = std::time::Duration::from_millis(700);
        self.open_with(Options::read_write().commit_interval(interval))
    }

    pub fn open_with(&self, options: Options) -> Filesystem {
        Filesystem::open(self.path(), options.cache_bytes(64 << 20)).unwrap()
    }

    pub fn open_read_only(&self) -> Filesystem {
        self.open_with(Options::read_only())
    }
}

/// Adds or, with `^`, takes away features.
pub fn features(options: &mut buttress_mkfs::Options, text: &str) {
    let Ok(FeatureRequest::Set(set)) = parse_features(text, options.features) else {
        panic!("{text}")
    };
    options.features = set;
}

/// A node size and the checksum, one copy of metadata.
pub fn shape(nodesize: u32, checksum: ChecksumKind) -> impl FnOnce(&mut buttress_mkfs::Options) {
    move |options| {
        options.nodesize = Some(nodesize);
        options.checksum = checksum;
        options.metadata_profile = Some(Profile::Single);
    }
}
