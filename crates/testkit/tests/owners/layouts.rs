//! Random layouts that the kernel has made: compression, preallocation, holes, clones within and between files, snapshots, deletions.
//! Each is asked as the kernel has left it.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use buttress::{Filesystem, Options, fiemap_flags};
use buttress_testkit::ops::rng::{Rng, bytes};
use buttress_testkit::oracle::{KernelMount, btrfs, mkfs, root_or_skip, temp_dir};
use rustix::fs::{FallocateFlags, copy_file_range, fallocate};

use crate::judge::{assert_met, compare_kernel, compare_plain};

const SECTOR: u64 = 4096;
/// Layouts that follow each other on one image.
const ON_AN_IMAGE: u64 = 10;
const FORMATS: [&[&str]; 4] = [
    &["-n", "4096"],
    &[],
    &["-n", "4096", "-O", "^no-holes"],
    &["-n", "4096", "-O", "^skinny-metadata,^no-holes"],
];

struct Layout<'a> {
    rng: &'a mut Rng,
    top: &'a Path,
    volumes: &'a mut Vec<String>,
    made: &'a mut u64,
}

impl Layout<'_> {
    fn any(&mut self) -> PathBuf {
        let volume = self.rng.pick(self.volumes).clone();
        self.top.join(volume).join(format!("file{}", self.rng.below(10)))
    }

    fn open(&mut self) -> File {
        let path = self.any();
        OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path).unwrap()
    }

    fn step(&mut self) {
        let (at, len) = (self.rng.below(100) * SECTOR, (1 + self.rng.below(60)) * SECTOR);
        let file = self.open();
        match self.rng.below(20) {
            0..5 => self.write(&file, at, len),
            5..7 => {
                for number in 0..self.rng.below(30) {
                    self.write(&file, at + 3 * number * SECTOR, SECTOR);
                }
            }
            7 => {
                file.set_len(0).unwrap();
                self.write(&file, 0, 1 + at / 50);
            }
            8..10 => {
                let keep = if self.rng.one_in(2) {
                    FallocateFlags::KEEP_SIZE
                } else {
                    FallocateFlags::empty()
                };
                fallocate(&file, keep, at, len).unwrap();
            }
            10 => {
                let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                fallocate(&file, flags, at + self.rng.below(2) * 700, len).unwrap();
            }
            11 => file.set_len(at + self.rng.below(2) * 1000).unwrap(),
            12..17 => {
                let from = self.open();
                let (mut start, mut to) = (at, self.rng.below(100) * SECTOR);
                // What overlaps is refused.
                let _ =
                    copy_file_range(&from, Some(&mut start), &file, Some(&mut to), len as usize);
            }
            17 if self.volumes.len() < 8 => {
                let source = self.rng.pick(self.volumes).clone();
                let name = format!("snapshot{}", self.made);
                *self.made += 1;
                let [source, target] = [&source, &name].map(|name| self.top.join(name));
                let [source, target] = [&source, &target].map(|path| path.to_str().unwrap());
                btrfs(&["-q", "subvolume", "snapshot", source, target]).unwrap();
                self.volumes.push(name);
            }
            18 if self.volumes.len() > 3 => {
                let name =
                    self.volumes.swap_remove(self.rng.below(self.volumes.len() as u64) as usize);
                let victim = self.top.join(name);
                btrfs(&["-q", "subvolume", "delete", victim.to_str().unwrap()]).unwrap();
            }
            _ => file.sync_all().unwrap(),
        }
    }

    fn write(&mut self, file: &File, at: u64, len: u64) {
        // Even seeds make runs of the same byte, which compress.
        let data = bytes(self.rng.below(50) as u32 + 1, at, len as usize);
        file.write_all_at(&data, at).unwrap();
        if self.rng.one_in(3) {
            file.sync_all().unwrap();
        }
    }
}

fn prepare(top: &Path) {
    for name in ["one", "two"] {
        let volume = top.join(name);
        btrfs(&["-q", "subvolume", "create", volume.to_str().unwrap()]).unwrap();
        for number in 0..300 {
            std::fs::write(volume.join(format!("between{number}")), [7; 90]).unwrap();
        }
        // References in items of their own.
        let mut many = File::options();
        many.read(true).write(true).create(true).truncate(true);
        let source = many.open(volume.join("many")).unwrap();
        source.write_all_at(&[7; 8192], 0).unwrap();
        for number in 0..150 {
            let clone = many.open(volume.join(format!("many{number}"))).unwrap();
            rustix::fs::ioctl_ficlone(&clone, &source).unwrap();
        }
    }
}

#[test]
fn random_layouts_have_the_records_that_the_kernel_tells() {
    if !root_or_skip() {
        return;
    }
    let count = crate::number("BUTTRESS_LAYOUTS", 60, 1000);
    let from = crate::number("BUTTRESS_FIRST", 0, 0);
    let dir = temp_dir().unwrap();
    let image = dir.path().join("image");
    let (mut volumes, mut made) = (Vec::new(), 0);
    let (mut met, mut sums) = (std::collections::BTreeMap::<u32, usize>::new(), [0; 4]);
    for number in from..from + count {
        let mut rng = Rng::new(number);
        let first = number % ON_AN_IMAGE == 0 || number == from;
        if first {
            let _ = std::fs::remove_file(&image);
            let format = FORMATS[(number / ON_AN_IMAGE) as usize % FORMATS.len()];
            mkfs(&image, 512 << 20, format).unwrap();
            volumes = vec!["one".to_owned(), "two".to_owned()];
        }
        let options = ["", "compress=zstd", "compress-force=lzo", "nodatasum"][number as usize % 4];
        let mount = KernelMount::new(&image, options).unwrap();
        if first {
            prepare(mount.path());
        }
        let top = mount.path().to_owned();
        let mut layout =
            Layout { rng: &mut rng, top: &top, volumes: &mut volumes, made: &mut made };
        for _ in 0..80 {
            layout.step();
        }
        mount.finish().unwrap();
        let fs = Filesystem::open(&image, Options::read_only()).unwrap();
        println!("layout {number}");
        for (flag, found) in compare_kernel(&fs, &image, "") {
            *met.entry(flag).or_default() += found;
        }
        let found = compare_plain(&fs);
        sums = std::array::from_fn(|at| sums[at] + found[at]);
    }
    println!("{count} layouts: records by flag {met:?}; data, shared, blocks, shared {sums:?}");
    use fiemap_flags::*;
    if count >= 40 {
        assert_met(&met, &[0, LAST, ENCODED, NOT_ALIGNED, INLINE, UNWRITTEN, SHARED]);
    }
}
