//! Files that the kernel wrote, compressed in each way, read and written over; and the kernel reads the result.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{File, Fixture, Random, run, tools};

/// A loop mount by the kernel, undone when dropped.
struct Mount(PathBuf);

impl Mount {
    fn new(image: &Path, at: &Path, options: &str) -> Mount {
        std::fs::create_dir_all(at).expect("mount point");
        let options = format!("loop,{options}");
        patiently("mount", &["-t", "btrfs", "-o", &options], &[image, at]);
        Mount(at.to_path_buf())
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        patiently("umount", &[], &[&self.0]);
    }
}

/// Tries again while other tests have loop devices or, between fork and exec, the mount's files.
fn patiently(program: &str, args: &[&str], paths: &[&Path]) {
    for _ in 0..200 {
        let done = Command::new(program).args(args).args(paths).output().expect("runs");
        if done.status.success() {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    panic!("{program} {args:?} {paths:?} fails again and again");
}

/// Content that compresses well in parts.
fn content(random: &mut Random, len: usize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(len + 4096);
    while bytes.len() < len {
        match random.below(3) {
            0 => bytes.extend(random.bytes(3000)),
            1 => bytes.extend(std::iter::repeat_n(random.below(256) as u8, 9000)),
            _ => (0..700u32).for_each(|at| bytes.extend(format!("line {at}\n").bytes())),
        }
    }
    bytes.truncate(len);
    bytes
}

fn exchange(compress: &str, mkfs: &[&str], seed: u64) {
    if !tools() {
        return;
    }
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: only root may mount");
        return;
    }
    let mut random = Random(seed);
    let dir = tempfile::tempdir().expect("temp dir");
    let (image, at) = (dir.path().join("image"), dir.path().join("mnt"));
    std::fs::File::create(&image).and_then(|file| file.set_len(256 << 20)).expect("image");
    run("mkfs.btrfs", &[&["-q"], mkfs, &[&*image.to_string_lossy()]].concat());
    let mut files = Vec::new();
    {
        let mount = Mount::new(&image, &at, compress);
        for (index, len) in [90, 1500, 3000, 4096, 100_000, 700_001].into_iter().enumerate() {
            let path = mount.0.join(format!("f{index}"));
            let model = content(&mut random, len);
            std::fs::write(&path, &model).expect("writes");
            let file = std::fs::File::open(&path).expect("opens");
            file.sync_all().expect("syncs");
            let ino = file.metadata().expect("stat").ino();
            files.push(File { ino, model, on_disk: true, ..File::default() });
        }
    }
    for file in &mut files {
        file.nbytes = nbytes(&image, file.ino);
    }
    let fixture = Fixture::load(&image, files);
    fixture.compare_all();
    for at in 0..6 {
        let size = fixture.files.lock()[at].size();
        let mut pos = 0;
        while pos < size {
            fixture.compare(at, pos, 777);
            pos += 777;
        }
    }
    let mut fixture = fixture;
    for _ in 0..3 {
        for _ in 0..20 {
            super::random::step(&fixture, &mut random);
        }
        fixture = fixture.check();
    }
    let result = dir.path().join("result");
    fixture.store(&result);
    let mount = Mount::new(&result, &at, "ro");
    for (index, file) in fixture.files.lock().iter().enumerate() {
        let have = std::fs::read(mount.0.join(format!("f{index}"))).expect("reads");
        assert!(have == file.model, "the kernel reads something else in file {index}");
    }
}

/// What the inode item says, by `dump-tree`.
fn nbytes(image: &Path, ino: u64) -> u64 {
    let text =
        run("btrfs", &["inspect-internal", "dump-tree", "-t", "5", &image.to_string_lossy()]);
    let from = text.find(&format!("({ino} INODE_ITEM 0) itemoff")).expect("an inode item");
    let word = text[from..].split("nbytes ").nth(1).and_then(|rest| rest.split_whitespace().next());
    word.and_then(|word| word.parse().ok()).expect("a number")
}

#[test]
fn zlib_from_the_kernel() {
    exchange("compress-force=zlib", &[], 21);
}

#[test]
fn lzo_from_the_kernel() {
    exchange("compress-force=lzo", &["-O", "^no-holes"], 22);
}

#[test]
fn zstd_from_the_kernel() {
    exchange("compress-force=zstd", &["--csum", "xxhash"], 23);
}

#[test]
fn plain_from_the_kernel() {
    exchange("max_inline=4095", &[], 24);
}
