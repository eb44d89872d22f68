//! What is held against an image: what is left of the balance, and whether it goes as it should.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use buttress::{Filesystem, Node, Options, Owner, fiemap_flags};
use buttress_device::{Access, FileDevice};
use buttress_ondisk::item::RootItem;
use buttress_ondisk::{Key, kind, objectid};
use buttress_testkit::facts::{Facts, diff, facts_of_dir, facts_of_library};
use buttress_testkit::oracle::{self, KernelMount, check, copy_sparse, temp_dir};
use buttress_volume::{TreeRoot, Volume, walk};

pub type Failed = Box<dyn std::error::Error>;

/// Blocks that a commit drops, where a part of what is left is to stay.
const FEW_BLOCKS: usize = 9;
/// Files of which it is compared what is shared.
const MAPPED: usize = 60;
/// No file of relocated data has so high a number.
const OTHERS: u64 = 400;

/// What is left of a balance.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Left {
    /// The balance item.
    pub balance: Option<Vec<u8>>,
    /// Relocation trees that are not merged yet, or only in part.
    pub merging: usize,
    /// Those of them of which a part is merged.
    pub half_merged: usize,
    /// Relocation trees that are dropped.
    pub dropping: usize,
    /// Those of them of which a part is gone.
    pub half_dropped: usize,
    /// Files of relocated data.
    pub files: usize,
    /// Extents of these.
    pub extents: usize,
}

impl Left {
    /// Whether nothing is there but perhaps the balance item.
    pub fn is_nothing(&self) -> bool {
        self.merging + self.dropping + self.files + self.extents == 0
    }

    pub fn add(&mut self, more: &Left) {
        self.merging += more.merging;
        self.half_merged += more.half_merged;
        self.dropping += more.dropping;
        self.half_dropped += more.half_dropped;
        self.files += more.files;
        self.extents += more.extents;
    }
}

/// What an image has.
pub fn left(image: &Path) -> Result<Left, Failed> {
    let device = Arc::new(FileDevice::open(image, Access::ReadOnly)?);
    let volume = Volume::open(vec![device], Access::ReadOnly)?.volume;
    left_in(&volume)
}

pub fn left_in(volume: &Volume) -> Result<Left, Failed> {
    let (mut left, mut data) = (Left::default(), None);
    let root = TreeRoot::root_tree(&volume.superblock());
    let _all = walk(volume, &root, Key::MIN..=Key::MAX, |key, bytes| {
        if *key == Key::new(objectid::BALANCE, kind::TEMPORARY_ITEM, 0) {
            left.balance = Some(bytes.to_vec());
        }
        if let Some(item) = RootItem::read(bytes).filter(|_| key.kind == kind::ROOT_ITEM) {
            let is_part = usize::from(Key::from(item.drop_progress) != Key::MIN);
            match (key.objectid, item.refs.get()) {
                (objectid::TREE_RELOC, 0) => {
                    (left.dropping, left.half_dropped) =
                        (left.dropping + 1, left.half_dropped + is_part);
                }
                (objectid::TREE_RELOC, _) => {
                    (left.merging, left.half_merged) =
                        (left.merging + 1, left.half_merged + is_part);
                }
                (objectid::DATA_RELOC_TREE, _) => {
                    data = Some(TreeRoot {
                        bytenr: item.bytenr.get(),
                        level: item.level,
                        generation: Some(item.generation.get()),
                        owner: Some(key.objectid),
                    });
                }
                _ => {}
            }
        }
        std::ops::ControlFlow::<()>::Continue(())
    })?;
    let data = data.ok_or("no tree of relocated data")?;
    let _all = walk(volume, &data, Key::MIN..=Key::MAX, |key, _| {
        left.files += usize::from(key.kind == kind::INODE_ITEM && key.objectid > 256);
        left.extents += usize::from(key.kind == kind::EXTENT_DATA);
        std::ops::ControlFlow::<()>::Continue(())
    })?;
    Ok(left)
}

fn same(what: &str, have: &Facts, expect: &Facts) -> Result<(), Failed> {
    match diff(have, expect) {
        lines if lines.is_empty() => Ok(()),
        lines => Err(format!("{what}: {}", lines[..lines.len().min(8)].join("\n    ")).into()),
    }
}

/// What the kernel shows of an image without writing to it, and the files that it calls shared.
struct Shown {
    facts: Facts,
    shared: Vec<(String, Vec<[u64; 4]>)>,
}

fn shown(image: &Path) -> Result<Shown, Failed> {
    let mount = KernelMount::read_only(image, "subvolid=5,rescue=nologreplay")?;
    let facts = facts_of_dir(mount.path())?;
    let mut names = Vec::new();
    for volume in ["volume", "one", "three"] {
        let dir = mount.path().join(volume);
        let mut files = Vec::new();
        for entry in std::fs::read_dir(&dir)? {
            let entry = entry?;
            // Linux takes a file for one of relocated data that has the same number in its tree.
            if entry.metadata()?.ino() >= OTHERS {
                files.push(format!("{volume}/{}", entry.file_name().to_string_lossy()));
            }
        }
        files.sort();
        let step = (files.len() / MAPPED).max(1);
        names.extend(files.into_iter().step_by(step));
    }
    let questions: Vec<(PathBuf, u64, u64)> =
        names.iter().map(|name| (mount.path().join(name), 0, u64::MAX)).collect();
    let mut shared = Vec::new();
    for (name, records) in names.into_iter().zip(oracle::fiemap(&questions)?) {
        shared.push((name, records.map_err(|errno| format!("FIEMAP: {errno}"))?));
    }
    mount.finish()?;
    Ok(Shown { facts, shared })
}

/// What we show of an image without writing to it is what the kernel shows, and which files share extents, and quotas can be counted.
fn reads(image: &Path, expect: &Shown) -> Result<(), Failed> {
    let fs = Filesystem::open(image, Options::read_only())?;
    same("read", &facts_of_library(&fs)?, &expect.facts)?;
    for (name, records) in &expect.shared {
        let mut node = Node::ROOT;
        for part in name.split('/') {
            node = fs.lookup(node, part.as_bytes())?.ok_or("it is not there")?.node;
        }
        let mut have = Vec::new();
        for extent in fs.fiemap(node, 0..u64::MAX)? {
            let extent = extent?;
            have.push([extent.logical, extent.physical, extent.length, u64::from(extent.flags)]);
        }
        if have != *records {
            let shared = u64::from(fiemap_flags::SHARED);
            return Err(format!("fiemap of {name}: {have:?}, expect {records:?}, {shared}").into());
        }
    }
    fs.subvolume_costs(|_| true)?;
    Ok(())
}

fn writable() -> Options {
    Options::read_write().background(false)
}

/// Opens it and waits until nothing is left. What the balance item says stays.
fn clean(image: &Path, had: &Left) -> Result<(), Failed> {
    let fs = Filesystem::open(image, writable())?;
    let wrong = fs.has_wrong_quotas();
    fs.clean()?;
    if fs.has_leavings() || !fs.warnings().is_empty() {
        return Err(format!("cleaned, but {:?}", fs.warnings()).into());
    }
    if fs.has_wrong_quotas() && !wrong {
        return Err("quotas are wrong".into());
    }
    fs.close()?;
    let left = left(image)?;
    if !left.is_nothing() || left.balance != had.balance {
        return Err(format!("cleaned, and {left:?} of {had:?}").into());
    }
    Ok(())
}

/// Opens it and drops a part.
fn clean_some(image: &Path, commits: usize) -> Result<(), Failed> {
    let fs = Filesystem::open(image, writable().drop_blocks_max(FEW_BLOCKS))?;
    for _ in 0..commits {
        fs.set_label(b"balanced")?;
        fs.commit()?;
    }
    fs.close()?;
    Ok(())
}

/// The kernel mounts it without a word, leaves the balance paused, and finds all.
fn mounts(image: &Path, expect: &Facts) -> Result<(), Failed> {
    let mount = KernelMount::new(image, "subvolid=5,noatime,skip_balance")?;
    same("mounted", &facts_of_dir(mount.path())?, expect)?;
    std::fs::write(mount.path().join("volume/after"), "after")?;
    mount.sync()?;
    mount.finish()?;
    check(image, true)?;
    Ok(())
}

/// The kernel goes on with the balance, to its end.
fn resumes(image: &Path, expect: &Facts) -> Result<(), Failed> {
    let mount = KernelMount::new(image, "subvolid=5,noatime")?;
    let goes_on = || {
        let status = std::process::Command::new("btrfs")
            .args(["balance", "status"])
            .arg(mount.path())
            .output();
        status.map(|it| !String::from_utf8_lossy(&it.stdout).contains("No balance found"))
    };
    while goes_on()? {
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    same("balanced", &facts_of_dir(mount.path())?, expect)?;
    mount.finish()?;
    check(image, true)?;
    match left(image)? {
        left if left == Left::default() => Ok(()),
        left => Err(format!("balanced, and {left:?}").into()),
    }
}

/// Judges an image; answers what was left in it.
pub fn judge(image: &Path, number: usize) -> Result<Left, Failed> {
    let dir = temp_dir()?;
    let copy = dir.path().join("copy");
    let named = |what: &'static str| move |error: Failed| format!("{what}: {error}");
    check(image, true)?;
    let had = left(image)?;
    let shown = shown(image)?;
    reads(image, &shown).map_err(named("read"))?;
    copy_sparse(image, &copy)?;
    at_once(&copy, &had, &shown, number).map_err(named("at once"))?;
    if had.merging + had.dropping > 0 {
        copy_sparse(image, &copy)?;
        in_parts(&copy, &had, &shown, number).map_err(named("in parts"))?;
    }
    copy_sparse(image, &copy)?;
    beside_work(&copy).map_err(named("beside work"))?;
    Ok(had)
}

/// Every third time the kernel goes on with the balance then, else it stays paused.
fn at_once(image: &Path, had: &Left, shown: &Shown, number: usize) -> Result<(), Failed> {
    clean(image, had)?;
    check(image, true)?;
    let fs = Filesystem::open(image, Options::read_only())?;
    same("cleaned", &facts_of_library(&fs)?, &shown.facts)?;
    drop(fs);
    match number % 3 {
        0 => resumes(image, &shown.facts),
        _ => mounts(image, &shown.facts),
    }
}

/// Some of it first, and then the rest: by us, or by the kernel.
fn in_parts(image: &Path, had: &Left, shown: &Shown, number: usize) -> Result<(), Failed> {
    clean_some(image, 1 + number % 7)?;
    check(image, true).map_err(|error| format!("after the first part: {error}"))?;
    let some = left(image)?;
    if some.merging + some.files > 0 {
        return Err(format!("after the first part: {some:?}").into());
    }
    if number.is_multiple_of(2) {
        clean(image, had)?;
    }
    mounts(image, &shown.facts)
}

fn beside_work(image: &Path) -> Result<(), Failed> {
    work(image)?;
    check(image, true)?;
    Ok(())
}

/// Writes, takes and deletes snapshots while what is left goes.
fn work(image: &Path) -> Result<(), Failed> {
    let fs = Filesystem::open(image, Options::read_write().drop_blocks_max(FEW_BLOCKS))?;
    let volume = fs.lookup(Node::ROOT, b"volume")?.ok_or("no volume")?.node;
    fs.snapshot(volume.subvolume, Node::ROOT, b"later", false)?;
    for number in 0..200_u64 {
        let name = format!("file-{}", number * 7);
        if let Some(entry) = fs.lookup(volume, name.as_bytes())? {
            fs.write(entry.node, number % 5 * 1000, &[number as u8; 3000])?;
        }
        if number % 60 == 59 {
            fs.commit()?;
        }
    }
    fs.delete_subvolume(Node::ROOT, b"two")?;
    fs.create_subvolume(Node::ROOT, b"empty", Owner::default())?;
    fs.close()?;
    Ok(())
}
