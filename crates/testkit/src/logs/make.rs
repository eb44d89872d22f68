//! Makes the image that a power cut would leave behind the last fsync of a workload.
//!
//! The backing file is in memory, and the loop device writes into its page cache: what an fsync has acknowledged is in the file, and
//! any reader of the file sees it. The kernel is kept from committing by itself (`commit=3600`).

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use buttress_device::{Access, FileDevice};
use buttress_mkfs::{Environment, Feature, Options};
use buttress_ondisk::check;
use buttress_ondisk::superblock::{SUPERBLOCK_LEN, SUPERBLOCK_OFFSETS, Superblock};

use super::Workload;
use super::moment::Moment;
use super::stage::Stage;
use crate::oracle::{KernelMount, TempDir, copy_sparse, mkfs, sparse_file, temp_dir};

/// Options of every mount that leaves a log: no commit but those that are asked for, all subvolumes.
const OPTIONS: &str = "noatime,subvolid=5,commit=3600";
/// A directory in memory, where there is one.
const MEMORY: &str = "/dev/shm";

/// What Linux did to make the last fsync durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Left {
    /// It wrote a log.
    Log,
    /// It committed instead.
    Commit,
    /// It had nothing to write: the last commit holds what was fsynced.
    Nothing,
}

/// What a workload left.
#[derive(Debug)]
pub struct Crash {
    /// The image.
    pub image: PathBuf,
    /// What the last fsync did.
    pub left: Left,
    /// When that was: later times are of a replay.
    pub then: Moment,
}

/// A directory for images, in memory if that can be.
pub fn place() -> Result<TempDir, String> {
    let made = tempfile::Builder::new().prefix("buttress-logs-").tempdir_in(MEMORY);
    made.or_else(|_| temp_dir()).map_err(|error| error.to_string())
}

/// Runs a workload and leaves its image in `dir`.
pub fn make(workload: &Workload, dir: &Path) -> Result<Crash, String> {
    let (image, copy) = (dir.join("running"), dir.join("crashed"));
    let shape = &workload.shape;
    match shape.mkfs {
        Some(words) => text(mkfs(&image, shape.size, words))?,
        None => our_mkfs(&image, shape.size)?,
    }
    let options = match shape.mount {
        "" => OPTIONS.to_owned(),
        more => format!("{OPTIONS},{more}"),
    };
    let mut mount = text(KernelMount::new(&image, &options))?;
    let mut stage = Stage::new(mount.path());
    stage.run(&workload.before)?;
    text(mount.sync())?;
    if workload.anew {
        drop(stage);
        text(mount.finish())?;
        mount = text(KernelMount::new(&image, &options))?;
        stage = Stage::new(mount.path());
    }
    let before = superblock(&image)?;
    stage.run(&workload.after)?;
    text(copy_sparse(&image, &copy))?;
    drop(stage);
    text(mount.finish())?;
    text(std::fs::remove_file(&image))?;
    let now = superblock(&copy)?;
    let left = match now.log_root.get() != 0 {
        true => Left::Log,
        false if now.generation.get() > before.generation.get() => Left::Commit,
        false => Left::Nothing,
    };
    Ok(Crash { image: copy, left, then: Moment::now()? })
}

/// A filesystem with a block group tree, which not every `mkfs.btrfs` makes.
fn our_mkfs(image: &Path, size: u64) -> Result<(), String> {
    text(sparse_file(image, size))?;
    let device = text(FileDevice::open(image, Access::ReadWrite))?;
    let mut options = Options::default();
    options.features.set(Feature::BlockGroupTree, true);
    text(buttress_mkfs::make(&device, &options, &mut Environment::system())).map(drop)
}

/// The superblock of an image, which may be mounted.
fn superblock(image: &Path) -> Result<Superblock, String> {
    let mut bytes = [0; SUPERBLOCK_LEN];
    text(File::open(image).and_then(|file| file.read_exact_at(&mut bytes, SUPERBLOCK_OFFSETS[0])))?;
    check::superblock(&bytes).map_err(|error| format!("superblock: {error:?}"))
}

/// Whether the superblock of an image names a log.
pub fn has_log(image: &Path) -> Result<bool, String> {
    Ok(superblock(image)?.log_root.get() != 0)
}

/// An error in words.
pub(super) fn text<T, E: std::fmt::Display>(result: Result<T, E>) -> Result<T, String> {
    result.map_err(|error| error.to_string())
}
