//! The healthy images that are damaged: made by mkfs.btrfs and the kernel, small, with an item of every kind.
//!
//! They are taken while still mounted, right after a commit, so that a file that was deleted while open is still there
//! as an orphan.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, symlink};
use std::path::Path;
use std::process::Command;

use buttress_device::{BlockDevice, MemoryDevice};
use buttress_ondisk::superblock::{SUPERBLOCK_LEN, SUPERBLOCK_OFFSETS};
use buttress_ondisk::{Key, Superblock, kind, objectid};
use rustix::fs::{
    CWD, FallocateFlags, FileType, Mode, XattrFlags, fallocate, ioctl_ficlone, makedev, mknodat,
    setxattr,
};
use zerocopy::FromBytes;

use super::{DamageError, Patient, Result};
use crate::corpus::Site;
use crate::corpus::populate::{create, noise, snapshot, subvolume, words};
use crate::corpus::special::{fragmented, received};
use crate::oracle::{KernelMount, btrfs, check_verdict, copy_sparse, mkfs, run, temp_dir};

/// How often an image is tried to be made.
const ATTEMPTS: u32 = 10;
/// Bytes of an image.
const SIZE: u64 = 256 << 20;
/// Bytes of an image with block groups large enough for a cache.
const LARGE: u64 = 2 << 30;

/// Which healthy image.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Base {
    /// Today's format, except that block groups are in the extent tree: the checker of Debian reads no others.
    Main,
    /// The same with quotas.
    Quotas,
    /// The format of old: holes written down, long extent items, no extended references, no free space tree.
    Old,
    /// Nodes of 4 KiB, trees of three levels, blocks shared below the root, references in items of their own.
    Deep,
    /// The free space cache of the first version, which is only kept for block groups of 100 MiB and more.
    Cache,
    /// Data and metadata in the same block groups, another checksum, and a log that waits for replay.
    Log,
    /// Nodes of 64 KiB, the longest checksums, fragmented files, a subvolume that was received from another one.
    Wide,
}

impl Base {
    /// All of them.
    pub const ALL: [Base; 7] =
        [Base::Main, Base::Quotas, Base::Old, Base::Deep, Base::Cache, Base::Log, Base::Wide];

    /// Arguments of `mkfs.btrfs`: features to be off, then the rest.
    fn mkfs(self) -> (&'static [&'static str], &'static [&'static str]) {
        match self {
            Base::Main | Base::Quotas => (&["block-group-tree"], &[]),
            Base::Old => {
                let off = &["block-group-tree", "skinny-metadata", "no-holes", "extref"];
                (off, &["-R", "^free-space-tree"])
            }
            Base::Deep => (&["block-group-tree"], &["-n", "4096"]),
            Base::Cache => (&["block-group-tree"], &["-R", "^free-space-tree"]),
            Base::Log => (&["block-group-tree"], &["-M", "--csum", "xxhash"]),
            Base::Wide => {
                (&["block-group-tree"], &["-n", "65536", "-m", "single", "--csum", "sha256"])
            }
        }
    }

    /// Makes the image. Needs root. Whoever calls `sync(1)` meanwhile commits the log, and may do so while the image is copied:
    /// then it is made again.
    pub fn make(self) -> Result<MemoryDevice> {
        let mut attempt = 0;
        loop {
            let (image, is_clean) = self.make_once()?;
            attempt += 1;
            if attempt >= ATTEMPTS || is_clean && self.is_as_meant(&image)? {
                return Ok(image);
            }
        }
    }

    /// Whether both superblocks are of one commit, there is a log where there has to be one, and data where quotas count them.
    fn is_as_meant(self, image: &MemoryDevice) -> Result<bool> {
        let superblock = |at: u64| -> Result<Superblock> {
            let mut bytes = [0; SUPERBLOCK_LEN];
            image.read_at(at, &mut bytes)?;
            let read = Superblock::read_from_bytes(&bytes);
            read.map_err(|_| DamageError::Missing("a superblock"))
        };
        let (primary, mirror) =
            (superblock(SUPERBLOCK_OFFSETS[0])?, superblock(SUPERBLOCK_OFFSETS[1])?);
        let logged = (primary.log_root.get() != 0) == (self == Base::Log);
        let is_data = |key: &Key, _: &[u8]| key.kind == kind::EXTENT_ITEM;
        let data = Patient::of(image)?.all(objectid::EXTENT_TREE, is_data)?;
        let filled = self != Base::Quotas || !data.is_empty();
        Ok(logged && filled && primary.generation == mirror.generation)
    }

    /// One that `btrfs check` may not like, as a commit of the kernel's own has come while it was copied.
    fn make_once(self) -> Result<(MemoryDevice, bool)> {
        let dir = temp_dir()?;
        let (path, copy) = (dir.path().join("image"), dir.path().join("copy"));
        let (off, rest) = self.mkfs();
        let off = without(off)?;
        let features = if off.is_empty() { Vec::new() } else { vec!["-O", &off] };
        let size = if self == Base::Cache { LARGE } else { SIZE };
        mkfs(&path, size, &[&features, rest].concat())?;
        let cache = if self == Base::Cache { ",space_cache=v1" } else { "" };
        let options = format!("noatime,compress=zstd,commit=300{cache}");
        let mount = KernelMount::new(&path, &options)?;
        let top = mount.path();
        if self == Base::Quotas {
            btrfs(&["quota", "enable", &text(top)])?;
        }
        let held = self.fill(top)?;
        if self == Base::Quotas {
            groups(top)?;
        }
        mount.sync()?;
        mount.sync()?;
        let logged = if self == Base::Log { log(top)? } else { Vec::new() };
        copy_sparse(&path, &copy)?;
        drop((held, logged));
        mount.finish()?;
        let (is_clean, _) = check_verdict(&copy, false)?;
        Ok((MemoryDevice::load(&copy)?, is_clean))
    }

    /// Puts content in; what has to stay open comes back.
    fn fill(self, top: &Path) -> Result<Vec<File>> {
        match self {
            Base::Deep => return deep(top).map(|()| Vec::new()),
            Base::Cache => return bulk(top).map(|()| Vec::new()),
            Base::Wide => return wide(top).map(|()| Vec::new()),
            _ => {}
        }
        files(top)?;
        directories(top, !matches!(self, Base::Old | Base::Log))?;
        subvolumes(top)?;
        fs::write(top.join("late"), words(31, 100))?;
        let gone = create(&top.join("gone"))?;
        gone.write_all_at(&noise(30, 20_000), 0)?;
        gone.sync_all()?;
        fs::remove_file(top.join("gone"))?;
        Ok(vec![gone])
    }
}

/// Those features that this `mkfs.btrfs` knows, turned off.
fn without(features: &[&str]) -> Result<String> {
    let output = run(Command::new("mkfs.btrfs").args(["-O", "list-all"]))?;
    let known = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    let off = features.iter().filter(|name| known.contains(**name));
    Ok(off.map(|name| format!("^{name}")).collect::<Vec<_>>().join(","))
}

fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

/// One file of every kind.
fn files(top: &Path) -> Result<()> {
    fs::write(top.join("inline"), words(1, 100))?;
    fs::write(top.join("regular"), noise(2, 300_000))?;
    fs::write(top.join("compressed"), words(3, 300_000))?;
    fs::write(top.join("small"), noise(4, 5_000))?;
    File::open(top.join("regular"))?.sync_all()?;
    let prealloc = create(&top.join("prealloc"))?;
    fallocate(&prealloc, FallocateFlags::empty(), 0, 1 << 18)?;
    let sparse = create(&top.join("sparse"))?;
    sparse.write_all_at(&noise(5, 10_000), 0)?;
    sparse.write_all_at(&noise(6, 10_000), 1 << 20)?;
    let nocow = create(&top.join("nocow"))?;
    run(Command::new("chattr").arg("+C").arg(top.join("nocow")))?;
    nocow.write_all_at(&noise(7, 50_000), 0)?;
    let clone = create(&top.join("clone"))?;
    ioctl_ficlone(&clone, File::open(top.join("regular"))?)?;
    clone.write_all_at(&noise(8, 8192), 65536)?;
    fs::write(top.join("attrs"), "text")?;
    setxattr(top.join("attrs"), "user.one", b"first", XattrFlags::empty())?;
    setxattr(top.join("attrs"), "user.two", b"second", XattrFlags::empty())?;
    symlink("some/target", top.join("symlink"))?;
    mknodat(CWD, top.join("fifo"), FileType::Fifo, Mode::from_raw_mode(0o640), 0)?;
    let device = FileType::CharacterDevice;
    mknodat(CWD, top.join("null"), device, Mode::from_raw_mode(0o640), makedev(1, 3))?;
    Ok(())
}

/// Directories, hard links, names enough for a second level and, with `many`, for extended references.
fn directories(top: &Path, many: bool) -> Result<()> {
    fs::create_dir_all(top.join("dir/below"))?;
    for number in 0..150 {
        fs::write(top.join(format!("dir/entry-{number}")), words(number, number as usize % 90))?;
    }
    fs::write(top.join("linked"), noise(9, 9_000))?;
    fs::hard_link(top.join("linked"), top.join("dir/linked-again"))?;
    fs::hard_link(top.join("linked"), top.join("linked-beside"))?;
    fs::create_dir(top.join("empty"))?;
    if many {
        fs::create_dir(top.join("links"))?;
        fs::write(top.join("links/many"), "x")?;
        for number in 0..75 {
            let name = format!("links/{number:03}-{}", "x".repeat(230));
            fs::hard_link(top.join("links/many"), top.join(name))?;
        }
    }
    Ok(())
}

/// A subvolume, one in it, and snapshots that went their own way.
fn subvolumes(top: &Path) -> Result<()> {
    let volume = top.join("volume");
    subvolume(&volume)?;
    for number in 0..120 {
        fs::write(volume.join(format!("file-{number}")), noise(number, 3_000))?;
    }
    fs::write(volume.join("shared"), noise(20, 100_000))?;
    fs::write(volume.join("also"), noise(21, 100_000))?;
    subvolume(&volume.join("nested"))?;
    fs::write(volume.join("nested/inside"), noise(22, 10_000))?;
    snapshot(&volume, &top.join("frozen"), true)?;
    snapshot(&volume, &top.join("moved-on"), false)?;
    fs::write(volume.join("shared"), noise(23, 50_000))?;
    fs::write(top.join("moved-on/also"), noise(24, 50_000))?;
    fs::write(volume.join("after"), "after the snapshots")?;
    Ok(())
}

/// A group above those of subvolumes, and a limit.
fn groups(top: &Path) -> Result<()> {
    let top = text(top);
    btrfs(&["qgroup", "create", "1/100", &top])?;
    // Fails where the last count has not ended.
    btrfs(&["quota", "rescan", "-W", &top])?;
    btrfs(&["qgroup", "assign", "0/256", "1/100", &top])?;
    btrfs(&["qgroup", "limit", "500M", "1/100", &top])?;
    btrfs(&["quota", "rescan", "-w", &top])?;
    Ok(())
}

/// Trees of three levels, shared by a snapshot and then changed here and there.
fn deep(top: &Path) -> Result<()> {
    let volume = top.join("volume");
    subvolume(&volume)?;
    for number in 0..2000_u64 {
        let len = if number.is_multiple_of(50) { 10_000 } else { 30 };
        fs::write(volume.join(format!("file-{number}")), noise(number, len))?;
    }
    let cloned = create(&top.join("cloned"))?;
    cloned.write_all_at(&noise(40, 10_000), 0)?;
    cloned.sync_all()?;
    for number in 0..30 {
        ioctl_ficlone(create(&top.join(format!("clone-{number}")))?, &cloned)?;
    }
    snapshot(&volume, &top.join("frozen"), true)?;
    for number in (0..2000).step_by(500) {
        fs::write(volume.join(format!("file-{number}")), noise(number + 7, 9_000))?;
    }
    // Far from files with extents: what their leaves were refers to nothing.
    for number in (25..2000).step_by(250) {
        fs::write(volume.join(format!("file-{number}")), noise(number + 7, 30))?;
    }
    Ok(())
}

/// Snapshots of a file in many extents, and a subvolume that was sent and received.
fn wide(top: &Path) -> Result<()> {
    let mut site = Site { dir: top, open: Vec::new(), running: Vec::new() };
    fragmented(&mut site)?;
    received(&mut site)?;
    Ok(())
}

/// What is fsynced after the last commit: new files and old ones, data of every kind, names that come and go.
fn log(top: &Path) -> Result<Vec<File>> {
    let old = File::options().write(true).open(top.join("regular"))?;
    old.write_all_at(&noise(51, 9_000), 4096)?;
    old.sync_all()?;
    let filled = File::options().write(true).open(top.join("prealloc"))?;
    filled.write_all_at(&noise(52, 20_000), 8192)?;
    filled.sync_all()?;
    let new = create(&top.join("logged"))?;
    new.write_all_at(&noise(53, 30_000), 0)?;
    setxattr(top.join("logged"), "user.logged", b"value", XattrFlags::empty())?;
    fs::hard_link(top.join("logged"), top.join("dir/logged-too"))?;
    new.sync_all()?;
    let small = create(&top.join("dir/logged-small"))?;
    small.write_all_at(b"a few bytes", 0)?;
    small.sync_all()?;
    let packed = create(&top.join("dir/logged-packed"))?;
    packed.write_all_at(&words(54, 200_000), 0)?;
    packed.sync_all()?;
    fs::remove_file(top.join("dir/entry-7"))?;
    fs::rename(top.join("dir/entry-8"), top.join("dir/entry-8-moved"))?;
    File::open(top.join("dir/entry-8-moved"))?.sync_all()?;
    File::open(top.join("dir"))?.sync_all()?;
    let inside = File::options().write(true).open(top.join("volume/shared"))?;
    inside.write_all_at(&noise(55, 5_000), 0)?;
    inside.sync_all()?;
    Ok(vec![old, filled, new, small, packed, inside])
}

/// More data than the first block group takes, with gaps.
fn bulk(top: &Path) -> Result<()> {
    for number in 0..40_u64 {
        fs::write(top.join(format!("bulk-{number}")), noise(number, 400_000))?;
    }
    File::open(top.join("bulk-0"))?.sync_all()?;
    for number in (0..40).step_by(3) {
        fs::remove_file(top.join(format!("bulk-{number}")))?;
    }
    Ok(())
}
