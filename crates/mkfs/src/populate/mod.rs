//! Fills a new filesystem from a directory tree, as an ordinary user.
//!
//! Three stages: `walk` lists directories in a fixed order, `read` reads what the names stand for on several
//! threads, and the caller's thread creates everything through the public interface of the engine ([`write`]). The
//! order of creation, and with it inode numbers and the layout, depends on the source only.

pub(crate) mod pipeline;
pub(crate) mod read;
mod room;
pub(crate) mod subvolumes;
#[cfg(test)]
mod tests;
pub(crate) mod walk;
mod write;

use std::path::Path;
use std::sync::Arc;

use buttress::{Env, Filesystem, Options, Stats, Time};
use buttress_device::BlockDevice;

use crate::environment::Environment;
use crate::error::MkfsError;

pub use room::room_for;
pub use subvolumes::{Subvolume, SubvolumeKind, parse_subvolume};

/// Bytes of content in memory before a commit is made.
const DIRTY_BYTES_MAX: u64 = 256 << 20;
/// Room for a quarter of a million files in a commit. Names of a large directory go to all its leaves, in the order of their
/// hashes: the fewer commits, the less is written. It takes half of that.
const MEMORY: u64 = 1 << 30;
/// Bytes of tree blocks that are kept: little of what was written is read again.
const CACHE_BYTES: u64 = 256 << 20;

/// How a filesystem is filled.
#[derive(Clone, Debug, Default)]
pub struct Populate {
    /// Directories of the source that become subvolumes.
    pub subvolumes: Vec<Subvolume>,
    /// User and group of the top directory; those of the source when not given.
    pub owner: Option<(u32, u32)>,
    /// Threads that read the source; 0 for as many as there are processors.
    pub threads: usize,
    /// The filesystem ends where its last chunk does.
    pub shrink: bool,
}

/// What was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Populated {
    /// Directories, subvolumes included.
    pub directories: u64,
    /// Everything that is no directory, further links not counted.
    pub files: u64,
    /// Further links of files.
    pub links: u64,
    /// Subvolumes.
    pub subvolumes: u64,
    /// Bytes of content.
    pub bytes: u64,
    /// Bytes of the filesystem.
    pub size: u64,
    /// What the engine has done for it.
    pub stats: Stats,
}

/// Fills the filesystem on `device`, which [`make`](crate::make) has made, from the directory `source`: `--rootdir`.
///
/// The same source, options and environment make the same bytes.
pub fn rootdir(
    device: Arc<dyn BlockDevice>,
    source: &Path,
    options: &Populate,
    env: &mut Environment,
) -> Result<Populated, MkfsError> {
    let open = Options::read_write()
        .reproducible(true)
        .memory(MEMORY)
        .cache_bytes(CACHE_BYTES)
        .dirty_bytes_max(DIRTY_BYTES_MAX)
        .env(engine_env(env));
    let failed =
        |action, error| MkfsError::Filesystem { action, path: source.into(), source: error };
    let opened = Filesystem::open_device(device, open);
    let fs = opened.map_err(|error| failed("open the filesystem for", error))?;
    let done = populate(&fs, source, options)?;
    fs.commit().map_err(|error| failed("commit", error))?;
    let size = match options.shrink {
        true => fs.cut_unallocated().map_err(|error| failed("shrink", error))?,
        false => fs.device_size(),
    };
    let stats = fs.stats();
    fs.close().map_err(|error| failed("commit", error))?;
    Ok(Populated { stats, size, ..done })
}

/// Fills the top directory of an open filesystem from the directory `source`.
pub fn populate(
    fs: &Filesystem,
    source: &Path,
    options: &Populate,
) -> Result<Populated, MkfsError> {
    subvolumes::check(source, &options.subvolumes)?;
    let threads = match options.threads {
        0 => std::thread::available_parallelism().map_or(1, usize::from).min(16),
        threads => threads,
    };
    let mut writer = write::Writer::new(fs, source, options)?;
    pipeline::stream(source, threads, |batch| writer.batch(batch))?;
    writer.finish()
}

/// The same time and a sequence of random bytes for the engine.
fn engine_env(env: &mut Environment) -> Env {
    let now = env.timespec();
    let now = Time { sec: now.sec.get() as i64, nsec: now.nsec.get() };
    let mut seed = [0; 8];
    (env.random)(&mut seed);
    let mut random = Environment::seeded(u64::from_le_bytes(seed)).random;
    Env::new(move || now, move |bytes| random(bytes))
}
