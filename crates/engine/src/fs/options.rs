//! How a filesystem is opened.

use std::time::Duration;

use crate::env::Env;

const MEMORY: u64 = 512 << 20;
/// A change that waits takes about 1 KiB, and twice as many may wait as ask for a commit. Names of a large directory go to all
/// its leaves, in the order of their hashes: the fewer commits, the less is written.
const CHANGE_SHARE: u64 = 3 << 10;
/// An inode takes about 600 bytes; a tenth of the memory is for them.
const INODE_SHARE: u64 = 8 << 10;

/// How a filesystem is opened: a builder, from [`Options::read_only`] or [`Options::read_write`].
#[derive(Clone, Debug)]
pub struct Options {
    pub(super) write: bool,
    pub(super) offset: u64,
    pub(super) commit_interval: Duration,
    pub(super) cache_bytes: u64,
    pub(super) dirty_bytes_max: u64,
    pub(super) changes_max: u64,
    pub(super) inodes_max: usize,
    pub(super) background: bool,
    pub(super) mark_quota_inconsistent: bool,
    pub(super) reproducible: bool,
    pub(super) drop_blocks_max: usize,
    pub(super) env: Env,
}

impl Options {
    fn new(write: bool) -> Options {
        Options {
            write,
            offset: 0,
            commit_interval: Duration::from_secs(30),
            cache_bytes: 0,
            dirty_bytes_max: 0,
            changes_max: 0,
            inodes_max: 0,
            background: true,
            mark_quota_inconsistent: false,
            reproducible: false,
            drop_blocks_max: 4096,
            env: Env::system(),
        }
        .memory(MEMORY)
    }

    /// Writes nothing at all.
    pub fn read_only() -> Options {
        Options::new(false)
    }

    /// Reads and writes, and has the device for itself.
    pub fn read_write() -> Options {
        Options::new(true)
    }

    /// Bytes of the file or device before the filesystem.
    pub fn offset(self, offset: u64) -> Options {
        Options { offset, ..self }
    }

    /// How long a change waits at most for the commit that the worker makes.
    pub fn commit_interval(self, commit_interval: Duration) -> Options {
        Options { commit_interval, ..self }
    }

    /// Bytes of memory to do with, about; 512 MiB when nothing is said, 16 MiB at least. Half of it keeps tree blocks, an eighth
    /// data that wait for a commit, the rest other changes that wait and inodes. What a mount's kernel remembers comes on
    /// top, with some 150 bytes for each file.
    pub fn memory(self, bytes: u64) -> Options {
        let bytes = bytes.max(16 << 20);
        Options {
            cache_bytes: bytes / 2,
            dirty_bytes_max: bytes / 8,
            changes_max: bytes / CHANGE_SHARE,
            inodes_max: usize::try_from(bytes / INODE_SHARE).unwrap_or(usize::MAX),
            ..self
        }
    }

    /// Bytes of tree blocks kept in memory.
    pub fn cache_bytes(self, cache_bytes: u64) -> Options {
        Options { cache_bytes, ..self }
    }

    /// Bytes of file data kept in memory before a commit is made.
    pub fn dirty_bytes_max(self, dirty_bytes_max: u64) -> Options {
        Options { dirty_bytes_max, ..self }
    }

    /// Whether a thread commits from time to time and drops deleted subvolumes. It does by default when writing.
    pub fn background(self, background: bool) -> Options {
        Options { background, ..self }
    }

    /// Writes to a filesystem with quotas all the same, and marks its quotas as inconsistent: they count nothing right
    /// before the next rescan.
    pub fn mark_quota_inconsistent(self, mark_quota_inconsistent: bool) -> Options {
        Options { mark_quota_inconsistent, ..self }
    }

    /// Whether the same operations, of one thread, on the same filesystem make the same bytes, given the same
    /// [`Options::env`]. Costs some speed, and there is no background work.
    pub fn reproducible(self, reproducible: bool) -> Options {
        Options { reproducible, background: self.background && !reproducible, ..self }
    }

    /// Blocks of deleted subvolumes that one commit looks at: more take longer, fewer take more commits. At least 16: some of
    /// them lead back to where the last commit ended.
    pub fn drop_blocks_max(self, drop_blocks_max: usize) -> Options {
        Options { drop_blocks_max: drop_blocks_max.max(16), ..self }
    }

    /// Where time and randomness come from.
    pub fn env(self, env: Env) -> Options {
        Options { env, ..self }
    }
}
