//! Every block group of every image that the kernel has made is emptied, one after the other: all reads as before, for us and for the kernel.
//!
//! The image is looked at twice: as the last batch has left it, where a deletion is still half done if it was before; and when it was closed.

use std::path::{Path, PathBuf};

use buttress::{Error, Filesystem, Options};
use buttress_testkit::corpus::{Expectation, Image};
use buttress_testkit::facts::{Facts, diff, facts_of_dir, facts_of_library};
use buttress_testkit::oracle::{
    KernelMount, LoopDevice, TempDir, check, check_ours, copy_sparse, root_or_skip, temp_dir,
};

use crate::each::each;

type Step<T> = Result<T, String>;

/// Differences shown of one comparison.
const SHOWN: usize = 12;

fn because<E: std::fmt::Display>(what: &'static str) -> impl Fn(E) -> String {
    move |error| format!("{what}: {error}")
}

fn quick_dir() -> Step<TempDir> {
    let memory = tempfile::Builder::new().prefix("buttress-").tempdir_in("/dev/shm");
    memory.or_else(|_| temp_dir()).map_err(|error| error.to_string())
}

fn alike(what: &str, have: &Facts, expect: &Facts) -> Step<()> {
    let mut lines = diff(have, expect);
    lines.truncate(SHOWN);
    match lines.is_empty() {
        true => Ok(()),
        false => Err(format!("{what}:\n    {}", lines.join("\n    "))),
    }
}

fn open(path: &Path, offset: u64) -> Step<Filesystem> {
    let options = Options::read_write().background(false).offset(offset);
    match Filesystem::open(path, options.clone()) {
        Err(error) if error.to_string().contains("the primary superblock is bad") => {
            Filesystem::open(path, options.use_backup_super(true))
        }
        opened => opened,
    }
    .map_err(because("open"))
}

fn device(path: &Path, offset: u64) -> Step<LoopDevice> {
    let offset = format!("--offset={offset}");
    LoopDevice::attach_with(path, &[&offset]).map_err(because("loop device"))
}

/// What `btrfs check`, our own one and the kernel say of an image.
fn judge(path: &Path, offset: u64, expected: &Facts) -> Step<()> {
    match offset {
        0 => {
            check(path, true).map_err(because("btrfs check"))?;
            check_ours(path, true).map_err(because("our checker"))?;
        }
        _ => drop(check(device(path, offset)?.path(), true).map_err(because("btrfs check"))?),
    }
    let mount = KernelMount::on(device(path, offset)?, "").map_err(because("mount"))?;
    let seen = facts_of_dir(mount.path()).map_err(because("the kernel's facts"));
    mount.finish().map_err(because("unmount"))?;
    alike("the kernel", &seen?, expected)
}

fn empty_all(image: &Image) -> Step<()> {
    let dir = quick_dir()?;
    let path = image.copy_to(dir.path()).map_err(|error| error.to_string())?;
    let fs = open(&path, image.offset)?;
    let expected = facts_of_library(&fs).map_err(because("facts before"))?;
    for group in fs.block_groups() {
        let done = fs.empty_block_group(group.start, |_| true);
        // Its device is full, and has no place for twenty megabytes twice.
        if image.name == "converted-data" && matches!(done, Err(Error::NoSpace)) {
            continue;
        }
        let done = done.map_err(|error| format!("{group:?}: {error}"))?;
        if !done.failed.is_empty() {
            return Err(format!("{group:?}: {:?}", done.failed));
        }
        if fs.block_groups().iter().any(|other| other.start == group.start) {
            return Err(format!("{group:?} is still there"));
        }
    }
    let seen = facts_of_library(&fs).map_err(because("facts after"))?;
    alike("what we read", &seen, &expected)?;
    let live: PathBuf = dir.path().join("live");
    copy_sparse(&path, &live).map_err(because("copy"))?;
    fs.close().map_err(because("close"))?;
    judge(&live, image.offset, &expected).map_err(|why| format!("before it was closed: {why}"))?;
    judge(&path, image.offset, &expected)
}

#[test]
fn all_reads_as_before_when_every_group_was_emptied() {
    if !root_or_skip() {
        return;
    }
    let seen = each(
        |image| image.expectation == Expectation::Readable && image.name != "simple-quotas",
        |image| empty_all(image).err().into_iter().collect(),
    );
    assert!(seen >= 50 || std::env::var_os("BUTTRESS_IMAGE").is_some(), "{seen} images");
}
