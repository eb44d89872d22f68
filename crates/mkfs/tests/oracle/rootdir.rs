//! `--rootdir`: what the kernel shows of a filled filesystem is what the source shows.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::sync::Arc;

use buttress_device::FileDevice;
use buttress_mkfs::populate::{Populate, Populated, parse_subvolume, rootdir};
use buttress_mkfs::{Environment, FeatureRequest, Options, make, parse_features};
use buttress_testkit::facts::{Kind, diff, facts_of_dir};
use buttress_testkit::oracle::{self, KernelMount};
use rustix::fs::{CWD, FileType, Mode, mknodat};

/// Makes a filesystem of `size` bytes at `image`, filled from `source`.
fn filled(image: &Path, size: u64, source: &Path, subvolumes: &[&str]) -> Populated {
    let device = Arc::new(FileDevice::create(image, size).unwrap());
    let request = parse_features("^block-group-tree", Default::default()).unwrap();
    let FeatureRequest::Set(features) = request else { panic!("features were named") };
    let options = Options { features, ..Options::default() };
    // Another one for each folder: the kernel tells filesystems that are mounted at the same time apart by their uuids.
    let seed = image.parent().unwrap().as_os_str().as_bytes();
    let seed = seed.iter().fold(5, |seed: u64, byte| seed.wrapping_mul(257) + u64::from(*byte));
    let mut env = Environment::seeded(seed);
    make(&*device, &options, &mut env).unwrap();
    let parse = |text: &&str| parse_subvolume(OsStr::new(*text)).unwrap();
    let options = Populate {
        subvolumes: subvolumes.iter().map(parse).collect(),
        threads: 3,
        ..Populate::default()
    };
    rootdir(device, source, &options, &mut env).unwrap()
}

fn content(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|at| (at / 7) as u8 ^ (at as u8).wrapping_mul(seed)).collect()
}

/// A source with something of everything; device nodes for root only.
fn source(top: &Path) {
    for dir in ["a/deep/er", "b", "empty", "many"] {
        fs::create_dir_all(top.join(dir)).unwrap();
    }
    for (seed, len) in [0, 1, 2048, 2049, 4096, 100_000, 300_000, 5 << 20].into_iter().enumerate() {
        fs::write(top.join(format!("a/{len}")), content(len, seed as u8)).unwrap();
    }
    for number in 0..1000 {
        fs::write(top.join(format!("many/{number}")), content(number, 3)).unwrap();
    }
    let sparse = File::create(top.join("b/sparse")).unwrap();
    sparse.write_all_at(&content(10_000, 9), 2 << 20).unwrap();
    sparse.set_len(6_000_001).unwrap();
    fs::hard_link(top.join("a/2049"), top.join("b/again")).unwrap();
    fs::hard_link(top.join("a/2049"), top.join("a/deep/er/once more")).unwrap();
    symlink("../a/1", top.join("b/link")).unwrap();
    fs::set_permissions(top.join("b"), fs::Permissions::from_mode(0o2751)).unwrap();
    fs::set_permissions(top.join("a/1"), fs::Permissions::from_mode(0o4711)).unwrap();
    let value = content(3000, 1);
    let flags = rustix::fs::XattrFlags::empty();
    for (path, name, value) in
        [("a/1", "user.small", &b"green"[..]), ("a/deep", "user.large", &value)]
    {
        match rustix::fs::setxattr(top.join(path), name, value, flags) {
            // Not every filesystem has them; then the image has none either.
            Ok(()) | Err(rustix::io::Errno::NOTSUP) => {}
            Err(errno) => panic!("{errno}"),
        }
    }
    mknodat(CWD, top.join("b/fifo"), FileType::Fifo, Mode::from(0o640), 0).unwrap();
    if oracle::is_root() {
        let device = rustix::fs::makedev(259, 70_000);
        mknodat(CWD, top.join("b/node"), FileType::BlockDevice, Mode::from(0o600), device).unwrap();
        let owner = std::os::unix::fs::chown(top.join("b/link"), Some(12), Some(13));
        owner.unwrap();
        std::os::unix::fs::lchown(top.join("a/0"), Some(1000), Some(100_000)).unwrap();
    }
    let time = |sec| std::time::UNIX_EPOCH + std::time::Duration::new(sec, 123_456_789);
    for (path, sec) in [("a", 1_000_000_000), ("a/4096", 1), ("b", 1_234_567_890), ("", 99)] {
        let times = fs::FileTimes::new().set_accessed(time(sec + 1)).set_modified(time(sec));
        File::open(top.join(path)).unwrap().set_times(times).unwrap();
    }
}

#[test]
fn the_kernel_shows_what_the_source_shows() {
    let dir = oracle::temp_dir().unwrap();
    let (top, image) = (dir.path().join("source"), dir.path().join("image"));
    fs::create_dir(&top).unwrap();
    source(&top);
    let done = filled(&image, 1 << 30, &top, &[]);
    assert_eq!((done.links, done.subvolumes), (2, 0));
    oracle::check(&image, true).unwrap();
    if !oracle::root_or_skip() {
        return;
    }
    let mount = KernelMount::read_only(&image, "").unwrap();
    let (mut have, mut expect) = (facts_of_dir(mount.path()).unwrap(), facts_of_dir(&top).unwrap());
    for facts in [&mut have, &mut expect] {
        // Every filesystem has its own idea of these.
        let dirs = facts.paths.values_mut().filter(|fact| fact.kind == Kind::Dir);
        dirs.for_each(|dir| (dir.nlink, dir.size) = (1, 0));
    }
    let differences = diff(&have, &expect);
    assert!(differences.is_empty(), "{}", differences.join("\n"));
    mount.finish().unwrap();
}

#[test]
fn directories_become_subvolumes() {
    let dir = oracle::temp_dir().unwrap();
    let (top, image) = (dir.path().join("source"), dir.path().join("image"));
    fs::create_dir(&top).unwrap();
    source(&top);
    let done = filled(&image, 1 << 30, &top, &["ro:a", "default:a/deep", "b"]);
    // Each name of the file that had three is in a subvolume of its own now.
    assert_eq!((done.links, done.subvolumes), (0, 3));
    oracle::check(&image, true).unwrap();
    if !oracle::root_or_skip() {
        return;
    }
    let mount = KernelMount::new(&image, "subvolid=5").unwrap();
    let at = |path: &str| mount.path().join(path);
    assert_eq!(at("a").metadata().unwrap().ino(), 256);
    assert_eq!(at("a/2049").metadata().unwrap().nlink(), 1);
    assert_eq!(at("b").metadata().unwrap().mode(), 0o042_751);
    assert_eq!(fs::read(at("b/again")).unwrap(), fs::read(top.join("b/again")).unwrap());
    assert!(fs::write(at("a/new"), b"").is_err() && fs::write(at("b/new"), b"").is_ok());
    mount.finish().unwrap();
    let mount = KernelMount::read_only(&image, "").unwrap();
    assert!(mount.path().join("er/once more").exists());
    mount.finish().unwrap();
}

#[test]
fn the_same_source_makes_the_same_bytes() {
    let dir = oracle::temp_dir().unwrap();
    let (top, one, two) = (dir.path().join("s"), dir.path().join("1"), dir.path().join("2"));
    fs::create_dir(&top).unwrap();
    source(&top);
    filled(&one, 256 << 20, &top, &["a"]);
    filled(&two, 256 << 20, &top, &["a"]);
    assert!(fs::read(one).unwrap() == fs::read(two).unwrap());
}

#[test]
fn what_does_not_fit_is_refused() {
    let dir = oracle::temp_dir().unwrap();
    let (top, image) = (dir.path().join("s"), dir.path().join("i"));
    fs::create_dir(&top).unwrap();
    fs::write(top.join("large"), content(100 << 20, 1)).unwrap();
    let device = Arc::new(FileDevice::create(&image, 120 << 20).unwrap());
    let mut env = Environment::seeded(5);
    make(&*device, &Options::default(), &mut env).unwrap();
    let error = rootdir(device, &top, &Populate::default(), &mut env).unwrap_err();
    assert!(error.to_string().contains("large") && error.to_string().contains("no space"));
}
