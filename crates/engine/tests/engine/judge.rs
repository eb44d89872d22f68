//! Images to try things on, and what btrfs-progs and the kernel say about them afterwards.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use buttress::{Filesystem, Options};
use buttress_testkit::oracle::{self, KernelMount};
use tempfile::TempDir;

/// An image in a directory of its own.
pub struct Image {
    dir: TempDir,
}

impl Image {
    /// Made by `mkfs.btrfs`.
    pub fn by_progs(size: u64, args: &[&str]) -> Image {
        let image = Image { dir: oracle::temp_dir().unwrap() };
        oracle::mkfs(&image.path(), size, args).unwrap();
        image
    }

    /// Made by our own mkfs, in the form that the `btrfs check` of today knows.
    pub fn by_us(size: u64) -> Image {
        Image::with(size, buttress_mkfs::Options::default())
    }

    /// The same, with its tree blocks once.
    pub fn once(size: u64) -> Image {
        let metadata_profile = Some(buttress_mkfs::Profile::Single);
        Image::with(size, buttress_mkfs::Options { metadata_profile, ..Default::default() })
    }

    /// The same, of tree blocks of so many bytes.
    pub fn of_nodes(size: u64, nodesize: u32) -> Image {
        let metadata_profile = Some(buttress_mkfs::Profile::Single);
        let nodesize = Some(nodesize);
        Image::with(
            size,
            buttress_mkfs::Options { metadata_profile, nodesize, ..Default::default() },
        )
    }

    fn with(size: u64, options: buttress_mkfs::Options) -> Image {
        let image = Image { dir: oracle::temp_dir().unwrap() };
        let device = buttress_device::FileDevice::create(image.path(), size).unwrap();
        let request = buttress_mkfs::parse_features("^block-group-tree", Default::default());
        let Ok(buttress_mkfs::FeatureRequest::Set(features)) = request else { panic!() };
        let options = buttress_mkfs::Options { features, ..options };
        let mut environment = buttress_mkfs::Environment::system();
        buttress_mkfs::make(&device, &options, &mut environment).unwrap();
        image
    }

    pub fn path(&self) -> PathBuf {
        self.dir.path().join("image")
    }

    pub fn open(&self) -> Filesystem {
        Filesystem::open(self.path(), Options::read_write().background(false)).unwrap()
    }

    pub fn open_read_only(&self) -> Filesystem {
        Filesystem::open(self.path(), Options::read_only()).unwrap()
    }

    /// What `btrfs check` finds must be nothing.
    pub fn check(&self) {
        check(&self.path());
    }

    /// Mounts it with the kernel, which must not complain, and lets `look` look at it. Not for ordinary users.
    pub fn mounted(&self, look: impl FnOnce(&Path)) {
        if !oracle::root_or_skip() {
            return;
        }
        let mount = KernelMount::new(&self.path(), "").unwrap();
        look(mount.path());
        mount.finish().unwrap();
    }
}

pub fn check(image: &Path) {
    oracle::check(image, true).unwrap();
    sizes_of_trees(image);
}

/// Each root item must say how large its tree is: Linux counts on from there, down as well, and where it comes below
/// nothing it reserves the whole filesystem. `btrfs check` does not look at it.
fn sizes_of_trees(image: &Path) {
    let path = image.to_str().unwrap();
    let dump = oracle::btrfs(&["inspect-internal", "dump-tree", path]).unwrap();
    let superblock = oracle::btrfs(&["inspect-internal", "dump-super", path]).unwrap();
    let nodesize = superblock.lines().find_map(|line| line.strip_prefix("nodesize"));
    let nodesize: u64 = nodesize.unwrap().trim().parse().unwrap();
    let key = |line: &str| Some(line.split_once(" key (")?.1.split_once(')')?.0.to_owned());
    let (mut said, mut found) = (BTreeMap::new(), BTreeMap::<_, u64>::new());
    let (mut tree, mut item) = (None, None);
    for line in dump.lines() {
        let words: Vec<_> = line.split_whitespace().collect();
        match words.as_slice() {
            ["leaf", _, "items", ..] | ["node", _, "level", ..] => {
                *found.entry(tree.clone()).or_default() += nodesize;
            }
            ["item", ..] => item = key(line).filter(|key| key.contains(" ROOT_ITEM ")),
            [.., "bytes_used", used] if item.is_some() => {
                said.insert(item.take(), used.parse::<u64>().unwrap());
            }
            _ if !line.starts_with(char::is_whitespace) && line.contains(" tree") => {
                tree = key(line)
            }
            _ => {}
        }
    }
    assert!(said.len() > 5);
    for (tree, used) in said {
        assert_eq!(used, found[&tree], "size of tree {tree:?}");
    }
}

/// Bytes that tell where they are from.
pub fn bytes(len: usize, seed: u32) -> Vec<u8> {
    let mut state = seed.wrapping_mul(2_654_435_761).max(1);
    let mut step = || {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        state as u8
    };
    (0..len).map(|_| step()).collect()
}

/// The whole content of a file.
pub fn content(fs: &Filesystem, path: &str) -> Vec<u8> {
    let mut file = fs.open_file(path, buttress::OpenMode::read()).unwrap();
    let mut content = Vec::new();
    std::io::Read::read_to_end(&mut file, &mut content).unwrap();
    content
}

/// Makes a file with this content.
pub fn put(fs: &Filesystem, path: &str, content: &[u8]) {
    let mut file = fs.create_file(path, 0o644).unwrap();
    std::io::Write::write_all(&mut file, content).unwrap();
}

/// Names in a directory.
pub fn names(fs: &Filesystem, path: &str) -> Vec<String> {
    let mut names = Vec::new();
    let dir = fs.resolve(path).unwrap();
    fs.read_dir(dir, 0, &mut |entry| {
        names.push(String::from_utf8(entry.name).unwrap());
        true
    })
    .unwrap();
    names
}
