//! What subvolumes take, against Linux's quotas: the kernel makes an image and counts it (`quota rescan`); what we say of the same
//! image has to be equal, to the byte, for each subvolume. And against deletion: what is said to be free without some is.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use buttress::costs::Bytes;
use buttress::{Errno, Filesystem, Node, Options, Owner};
use buttress_codec::ChecksumKind;
use buttress_ondisk::item::RootItem;
use buttress_ondisk::{Key, kind, objectid};
use buttress_testkit::oracle::{self, KernelMount, run};
use buttress_testkit::usage;
use rustix::fs::{FallocateFlags, copy_file_range, fallocate};

use crate::image::{Image, shape};
use crate::tools::{Numbers, bytes, put_at};

/// Commits are ours, and nothing is dropped meanwhile that was deleted.
const MOUNT: &str = "noatime,subvolid=5,commit=300";
/// The cleaner goes on after each commit.
const DROPPING: &str = "noatime,subvolid=5,commit=1";
/// Files that a subvolume has at most.
const FILES: u64 = 60;

fn btrfs(words: &[&str], path: &Path) -> String {
    let output = run(Command::new("btrfs").args(words).arg(path)).unwrap();
    String::from_utf8(output.stdout).unwrap()
}

/// The kernel at work: subvolumes, files in them, and everything that shares or unshares.
struct Kernel {
    mount: KernelMount,
    numbers: Numbers,
    /// Those that can be written to, and others.
    volumes: Vec<(String, bool)>,
    made: u32,
}

impl Kernel {
    fn new(image: &Image, options: &str, seed: u64) -> Kernel {
        let mount = KernelMount::new(&image.path(), &format!("{MOUNT}{options}")).unwrap();
        let mut kernel =
            Kernel { mount, numbers: Numbers::new(seed), volumes: Vec::new(), made: 0 };
        for _ in 0..2 {
            kernel.create();
        }
        kernel
    }

    fn path(&self, name: &str) -> PathBuf {
        self.mount.path().join(name)
    }

    fn name(&mut self) -> String {
        self.made += 1;
        format!("v{}", self.made)
    }

    fn create(&mut self) {
        let name = self.name();
        btrfs(&["-q", "subvolume", "create"], &self.path(&name));
        self.volumes.push((name, true));
    }

    fn snapshot(&mut self) {
        let (name, read_only) = (self.name(), self.numbers.below(3) == 0);
        let at = self.numbers.below(self.volumes.len() as u64) as usize;
        let from = self.path(&self.volumes[at].0);
        let flag: &[&str] = if read_only { &["-r"] } else { &[] };
        let words = [&["-q", "subvolume", "snapshot"], flag, &[from.to_str().unwrap()]].concat();
        btrfs(&words, &self.path(&name));
        self.volumes.push((name, !read_only));
    }

    fn delete(&mut self) {
        if self.volumes.len() > 3 {
            let at = self.numbers.below(self.volumes.len() as u64) as usize;
            let (name, _) = self.volumes.swap_remove(at);
            btrfs(&["-q", "subvolume", "delete"], &self.path(&name));
        }
        if !self.volumes.iter().any(|(_, writable)| *writable) {
            self.create();
        }
    }

    /// A file, whether it is there or not, in a subvolume that can be written to.
    fn file(&mut self) -> PathBuf {
        let writable: Vec<_> = self.volumes.iter().filter(|(_, writable)| *writable).collect();
        let at = self.numbers.below(writable.len() as u64) as usize;
        let volume = self.path(&writable[at].0);
        volume.join(format!("f{}", self.numbers.below(FILES)))
    }

    fn opened(&mut self) -> File {
        let path = self.file();
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).open(path).unwrap()
    }

    fn step(&mut self) {
        let file = self.opened();
        let (offset, len) = (self.numbers.below(200) * 4096, (1 + self.numbers.below(40)) * 4096);
        match self.numbers.below(40) {
            0..=1 => self.snapshot(),
            2 => self.delete(),
            3 => btrfs_sync(self.mount.path()),
            4..=6 => file.set_len(self.numbers.below(900_000)).unwrap(),
            7..=9 => fallocate(&file, FallocateFlags::empty(), offset, len).unwrap(),
            10..=12 => {
                let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                fallocate(&file, punch, offset, len).unwrap();
            }
            13..=18 => {
                let from = self.opened();
                let (mut at, mut to) = (offset, self.numbers.below(200) * 4096);
                let _none_behind_the_end =
                    copy_file_range(&from, Some(&mut at), &file, Some(&mut to), len as usize);
            }
            19..=20 => std::fs::remove_file(self.file()).unwrap_or_default(),
            21..=24 => {
                let len = self.numbers.below(2000) as usize;
                file.write_all_at(&bytes(len, self.made), 0).unwrap();
            }
            25..=27 => self.scatter(&file),
            _ => {
                let data = bytes(len as usize, self.numbers.next() as u32);
                // Compresses.
                let data: Vec<u8> = data.iter().map(|byte| byte % 16).collect();
                file.write_all_at(&data, offset).unwrap();
            }
        }
    }

    /// A large extent, overwritten in many places, so that what is left of it takes many leaves.
    fn scatter(&mut self, file: &File) {
        file.write_all_at(&bytes(2 << 20, self.numbers.next() as u32), 0).unwrap();
        file.sync_data().unwrap();
        for _ in 0..100 {
            let at = self.numbers.below(500) * 4096;
            file.write_all_at(&bytes(4096, self.numbers.next() as u32), at).unwrap();
        }
    }
}

fn btrfs_sync(path: &Path) {
    btrfs(&["filesystem", "sync"], path);
}

type Counts = BTreeMap<u64, (u64, u64)>;

/// What Linux counts in a copy of an image: referenced and exclusive bytes by subvolume. The copy is what it has counted. What is deleted
/// stays so meanwhile, mostly; but what is half dropped Linux goes on with at once, and each commit may wake up its cleaner. Then it counts when all of
/// that is gone.
fn counted_by_linux(image: &Image) -> (Image, Counts) {
    let before = deleted(image);
    if before.values().all(|(key, _)| *key == Key::MIN) {
        let (copy, counts) = count_by_linux(image, false);
        if deleted(&copy) == before {
            return (copy, counts);
        }
    }
    count_by_linux(image, true)
}

fn count_by_linux(image: &Image, dropped: bool) -> (Image, Counts) {
    let copy = image.copy();
    let options = if dropped { DROPPING } else { MOUNT };
    let mount = KernelMount::new(&copy.path(), options).unwrap();
    if dropped {
        btrfs(&["subvolume", "sync"], mount.path());
        btrfs_sync(mount.path());
    }
    btrfs(&["quota", "enable"], mount.path());
    btrfs(&["quota", "rescan", "-w"], mount.path());
    btrfs_sync(mount.path());
    let text = btrfs(&["qgroup", "show", "--raw"], mount.path());
    let counts = text.lines().filter_map(|line| {
        let mut words = line.strip_prefix("0/")?.split_whitespace();
        let mut next = || words.next()?.parse::<u64>().ok();
        Some((next()?, (next()?, next()?)))
    });
    let counts = counts.collect();
    mount.finish().unwrap();
    (copy, counts)
}

/// The same as we see it, without what is deleted: that has no quota any more.
fn counted_by_us(fs: &Filesystem) -> Counts {
    let costs = fs.subvolume_costs(|_| true).unwrap();
    let alive = costs.subvolumes().filter(|(_, share)| !share.deleted);
    alive.map(|(id, share)| (id, (share.referenced.sum(), share.exclusive.sum()))).collect()
}

/// Has Linux count an image and compares, with a walk over all trees, too.
fn compare(image: &Image) {
    usage::compare(&image.open_read_only()).unwrap();
    let (counted, theirs) = counted_by_linux(image);
    let fs = counted.open_read_only();
    usage::compare(&fs).unwrap();
    let ours = counted_by_us(&fs);
    let theirs: BTreeMap<_, _> =
        theirs.into_iter().filter(|(id, _)| ours.contains_key(id)).collect();
    assert_eq!(ours, theirs);
}

/// Bytes of data in use.
fn data_used(mount: &KernelMount) -> u64 {
    let text = btrfs(&["filesystem", "df", "--raw"], mount.path());
    let line = text.lines().find(|line| line.starts_with("Data")).unwrap();
    line.rsplit("used=").next().unwrap().parse().unwrap()
}

/// Has Linux delete subvolumes of a copy of an image, and compares what is free then with what we have said.
fn delete_some(image: &Image, seed: u64) {
    let copy = image.copy();
    let mount = KernelMount::new(&copy.path(), DROPPING).unwrap();
    let wait = || btrfs(&["subvolume", "sync"], mount.path());
    wait();
    btrfs_sync(mount.path());
    let before = data_used(&mount);
    // Linux may commit whenever it likes.
    mount.finish().unwrap();
    let (all, free, chosen) = {
        let fs = copy.copy().open_read_only();
        let costs = fs.subvolume_costs(|_| true).unwrap();
        let mut numbers = Numbers::new(seed);
        let all = fs.subvolumes().unwrap();
        let chosen: Vec<_> = all.into_iter().filter(|_| numbers.below(2) == 0).collect();
        let ids: Vec<u64> = chosen.iter().map(|it| it.id).collect();
        (costs.total(), costs.freed_by(&ids), chosen)
    };
    let mount = KernelMount::new(&copy.path(), DROPPING).unwrap();
    let wait = || btrfs(&["subvolume", "sync"], mount.path());
    for volume in &chosen {
        let path = mount.path().join(std::str::from_utf8(&volume.name).unwrap());
        btrfs(&["-q", "subvolume", "delete"], &path);
    }
    wait();
    btrfs_sync(mount.path());
    assert_eq!(before - data_used(&mount), free.data, "{chosen:?}");
    mount.finish().unwrap();
    let left = copy.open_read_only().subvolume_costs(|_| true).unwrap().total();
    let gone = Bytes { data: all.data - left.data, metadata: all.metadata - left.metadata };
    assert_eq!(gone, free, "{chosen:?}");
}

fn random(nodesize: &str, features: &str, options: &str, seed: u64) {
    if !oracle::root_or_skip() {
        return;
    }
    let image = Image::by_progs(2 << 30, &["-n", nodesize, "-O", features]);
    let mut kernel = Kernel::new(&image, options, seed);
    for _ in 0..700 {
        kernel.step();
    }
    // Most often nobody has begun to drop it by the end.
    kernel.delete();
    btrfs_sync(kernel.mount.path());
    kernel.mount.finish().unwrap();
    compare(&image);
    delete_some(&image, seed);
}

#[test]
fn of_small_blocks() {
    random("4096", "no-holes", "", 41);
    random("4096", "no-holes", "", 42);
}

#[test]
fn of_usual_blocks() {
    random("16384", "no-holes", "", 43);
}

#[test]
fn of_large_blocks() {
    random("65536", "no-holes", "", 44);
}

#[test]
fn with_holes_in_items() {
    random("4096", "^no-holes", "", 45);
    random("16384", "^no-holes,^skinny-metadata", "", 46);
}

#[test]
fn of_compressed_data() {
    random("4096", "no-holes", ",compress-force=zstd", 47);
    random("16384", "no-holes", ",compress-force=lzo", 48);
}

/// A balance counts references by block, and moves what several share.
#[test]
fn of_what_was_balanced() {
    if !oracle::root_or_skip() {
        return;
    }
    let image = Image::by_progs(2 << 30, &["-n", "4096"]);
    let mut kernel = Kernel::new(&image, "", 50);
    for round in 0..3 {
        for _ in 0..250 {
            kernel.step();
        }
        if round < 2 {
            btrfs(&["balance", "start", "--full-balance"], kernel.mount.path());
        }
    }
    kernel.mount.finish().unwrap();
    compare(&image);
    delete_some(&image, 50);
}

/// Commits between the steps of a count: the answer is that of one version, or that there is none.
#[test]
fn commits_meanwhile() {
    let image = Image::by_us(1 << 30, shape(4096, ChecksumKind::Crc32c));
    let fs = image.open_with(Options::read_write().background(false));
    let work = fs.create_subvolume(Node::ROOT, b"work", Owner::default()).unwrap();
    for number in 0..20_000_u32 {
        put_at(&fs, Node::top(work), number.to_string().as_bytes(), &bytes(2500, number)).unwrap();
        if number % 5000 == 4999 {
            fs.snapshot(work, Node::ROOT, format!("s{number}").as_bytes(), true).unwrap();
        }
    }
    let mut change = 0;
    let mut commit = || {
        change += 1;
        put_at(&fs, Node::top(work), format!("more{change}").as_bytes(), &bytes(2500, 1)).unwrap();
        fs.delete_subvolume(Node::ROOT, b"s4999").unwrap_or_default();
        fs.commit().unwrap();
    };
    let mut counting = fs.count_subvolumes().unwrap();
    for _ in 0..3 {
        assert!(counting.step(&fs).unwrap());
        commit();
    }
    while counting.step(&fs).unwrap() {}
    usage::same(&fs, &counting.costs()).unwrap();
    let mut counting = fs.count_subvolumes().unwrap();
    let why = loop {
        commit();
        match counting.step(&fs) {
            Ok(more) => assert!(more),
            Err(why) => break why,
        }
    };
    assert_eq!(why.errno(), Errno::BUSY);
    usage::compare(&fs).unwrap();
}

/// Subvolumes that are deleted, and dropped only in part: what is left of them counts for what others share with them.
#[test]
fn of_what_is_half_dropped() {
    if !oracle::root_or_skip() {
        return;
    }
    let image = Image::by_progs(2 << 30, &["-n", "4096"]);
    let mut kernel = Kernel::new(&image, "", 49);
    for _ in 0..900 {
        kernel.step();
    }
    let names: Vec<String> = kernel.volumes.iter().map(|(name, _)| name.clone()).collect();
    kernel.mount.finish().unwrap();
    let options = || Options::read_write().background(false).drop_blocks_max(16);
    let mut partly = 0;
    for (round, name) in names.iter().take(names.len() / 2).enumerate() {
        let fs = image.open_with(options());
        // Whatever was begun before is gone.
        fs.clean().unwrap();
        fs.delete_subvolume(Node::ROOT, name.as_bytes()).unwrap();
        for _ in 0..round % 3 {
            fs.commit().unwrap();
            usage::compare(&fs).unwrap();
            // A commit without a change drops nothing.
            fs.set_label(name.as_bytes()).unwrap();
        }
        fs.close().unwrap();
        partly += half_dropped(&image);
        compare(&image);
    }
    assert!(partly > 1, "{partly} are half dropped");
}

/// How many subvolumes are dropped in part.
fn half_dropped(image: &Image) -> usize {
    deleted(image).values().filter(|(key, _)| *key != Key::MIN).count()
}

/// Deleted subvolumes, and where what is left of them begins.
fn deleted(image: &Image) -> BTreeMap<u64, (Key, u8)> {
    let (from, mut found) = (Key::new(objectid::FIRST_FREE, 0, 0), BTreeMap::new());
    let to = Key::new(objectid::LAST_FREE, u8::MAX, u64::MAX);
    image
        .open_read_only()
        .search(objectid::ROOT_TREE, from, to, |key, _, data| {
            let root = RootItem::read(data).filter(|_| key.kind == kind::ROOT_ITEM);
            if let Some(root) = root.filter(|root| root.refs.get() == 0) {
                found.insert(key.objectid, (root.drop_progress.into(), root.drop_level));
            }
            true
        })
        .unwrap();
    found
}
