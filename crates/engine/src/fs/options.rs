//! How a filesystem is opened.

use std::time::Duration;

use buttress_volume::Rescue;

use crate::env::Env;
use crate::txn::WaitingMax;

const MEMORY: u64 = 512 << 20;
const MEMORY_MIN: u64 = 12 << 20;
/// What is not less where there is little memory: stacks, what the allocator keeps, and what a busy machine lets threads do between two looks.
const MEMORY_FIXED: u64 = 3 << 19;
/// An inode takes about 600 bytes; a tenth of the memory is for them.
const INODE_SHARE: u64 = 8 << 10;
/// A decompressed extent has 128 KiB; a 64th of the memory is for them.
const KEPT_SHARE: u64 = 64 * (128 << 10);
/// A block of a deleted subvolume may take so much in references to its extents.
const DROPPED_BLOCK: u64 = 64 << 10;
/// Where free space lies may take this part of what is for tree blocks and what waits: at 512 MiB, half a terabyte in which it is in
/// many pieces.
const FREE_SPACE_SHARE: u64 = 16;
/// Who reaches what, as far as it was asked, may take this part of the memory.
const OWNERS_SHARE: u64 = 64;
/// Block groups are emptied when less than so much is used of them. A choice: what is moved for a byte that comes free is then less than half a byte.
const RECLAIM_PERCENT: u8 = 30;

/// The longest that is waited: a hundred years. A point in time that far away can be told.
const WAIT_MAX: Duration = Duration::from_secs(100 * 365 * 86_400);

/// When the device is told what has become free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Discard {
    /// By the worker after its commits and those that are asked for, and at the end.
    Sync,
    /// From time to time, when what is free may have become larger pieces, and at the end.
    Async,
}

/// How a filesystem is opened: a builder, from [`Options::read_only`] or [`Options::read_write`].
#[derive(Clone, Debug)]
pub struct Options {
    pub(super) write: bool,
    pub(super) offset: u64,
    pub(super) commit_interval: Duration,
    pub(super) commit_pause: Option<Duration>,
    pub(super) cache_bytes: u64,
    pub(super) dirty_bytes_max: u64,
    pub(super) room: u64,
    pub(super) free_space_max: u64,
    pub(super) patience: Duration,
    pub(super) kept_max: usize,
    pub(super) inodes_max: usize,
    pub(super) owners_bytes: u64,
    pub(super) background: bool,
    pub(super) mark_quota_inconsistent: bool,
    pub(super) rescue: Rescue,
    pub(super) reproducible: bool,
    pub(super) drop_blocks_max: usize,
    pub(super) tree_log: bool,
    pub(super) reclaim: u8,
    pub(super) discard: Option<Discard>,
    pub(super) env: Env,
}

impl Options {
    fn new(write: bool) -> Options {
        Options {
            write,
            offset: 0,
            commit_interval: Duration::from_secs(30),
            commit_pause: None,
            cache_bytes: 0,
            dirty_bytes_max: 0,
            room: 0,
            free_space_max: 0,
            patience: Duration::ZERO,
            kept_max: 0,
            inodes_max: 0,
            owners_bytes: 0,
            background: true,
            mark_quota_inconsistent: false,
            rescue: Rescue::default(),
            reproducible: false,
            drop_blocks_max: 0,
            tree_log: true,
            reclaim: RECLAIM_PERCENT,
            discard: None,
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
        Options { commit_interval: commit_interval.min(WAIT_MAX), ..self }
    }

    /// How long nothing must change before the worker commits what has, without waiting for the interval. When nothing is
    /// said, it waits.
    pub fn commit_pause(self, pause: Duration) -> Options {
        Options { commit_pause: Some(pause.min(WAIT_MAX)), ..self }
    }

    /// How long a commit waits for room when the disk that holds the image file is full, with a warning, before it fails and
    /// what waits for it is lost. When nothing is said, it fails at once. Who writes directly gets `NoSpace` at once, anyway.
    pub fn full_disk_patience(self, patience: Duration) -> Options {
        Options { patience, ..self }
    }

    /// Bytes of memory to do with, all in all; 512 MiB when nothing is said, 12 MiB at least. Of what is left when 1.5 MiB are set aside
    /// for what does not shrink with it, three quarters are for tree blocks and for what waits for a commit: of these, what waits may
    /// take three quarters, where free space lies a sixteenth, the names that directories know a twelfth, and the cache of blocks has the
    /// rest. A tenth keeps inodes; what remains is for the work on a commit, and for what the allocator cannot use. Files that are held
    /// come on top, with some 30 bytes each: who holds many says so with [`crate::Filesystem::use_elsewhere`].
    pub fn memory(self, bytes: u64) -> Options {
        let bytes = bytes.max(MEMORY_MIN);
        let room = (bytes - MEMORY_FIXED) / 4 * 3;
        Options {
            cache_bytes: room,
            dirty_bytes_max: bytes / 8,
            room,
            free_space_max: room / FREE_SPACE_SHARE,
            kept_max: ((bytes / KEPT_SHARE) as usize).clamp(4, 64),
            drop_blocks_max: ((bytes / DROPPED_BLOCK) as usize).clamp(16, 4096),
            inodes_max: usize::try_from(bytes / INODE_SHARE).unwrap_or(usize::MAX),
            owners_bytes: bytes / OWNERS_SHARE,
            ..self
        }
    }

    /// Block groups of which less than so many percent are used are emptied when little of the device is unallocated; and before an operation
    /// is refused for want of room, any of the other class that others have room for. 30 when nothing is said; 0: none are.
    pub fn reclaim_threshold(self, percent: u8) -> Options {
        Options { reclaim: percent.min(100), ..self }
    }

    /// When the device is told what has become free, so that it can use it otherwise: never, if nothing is said ([`crate::Filesystem::trim`] does so
    /// once).
    pub fn discard(self, discard: Option<Discard>) -> Options {
        Options { discard, ..self }
    }

    /// What may wait for a commit.
    pub(super) fn waiting_max(&self) -> WaitingMax {
        WaitingMax { data: self.dirty_bytes_max, all: self.room / 4 * 3 }
    }

    /// Bytes of tree blocks kept in memory at most.
    pub fn cache_bytes(self, cache_bytes: u64) -> Options {
        Options { cache_bytes, ..self }
    }

    /// Bytes of memory for where free space lies, at most. What is not needed just now is read again later.
    /// [`Options::memory`] sets it.
    pub fn free_space_max(self, free_space_max: u64) -> Options {
        Options { free_space_max, ..self }
    }

    /// Bytes of file data kept in memory before a commit is made.
    pub fn dirty_bytes_max(self, dirty_bytes_max: u64) -> Options {
        Options { dirty_bytes_max, ..self }
    }

    /// Bytes of memory for who reaches which extents ([`crate::Filesystem::fiemap`]), at most; 64 KiB at least. While one question is
    /// answered it may be four times as many, 4 MiB at least; one that takes more is refused. [`Options::memory`] sets it.
    pub fn owners_bytes(self, owners_bytes: u64) -> Options {
        Options { owners_bytes, ..self }
    }

    /// Whether [`crate::Filesystem::sync`] writes a tree log where that is enough, which Linux knows as `treelog`; otherwise it commits.
    pub fn tree_log(self, tree_log: bool) -> Options {
        Options { tree_log, ..self }
    }

    /// Whether a thread commits from time to time and drops deleted subvolumes. It does by default when writing.
    pub fn background(self, background: bool) -> Options {
        Options { background, ..self }
    }

    /// Writes to a filesystem whose quotas cannot be read all the same, and marks them as inconsistent.
    pub fn mark_quota_inconsistent(self, mark_quota_inconsistent: bool) -> Options {
        Options { mark_quota_inconsistent, ..self }
    }

    /// Writes on from a copy of the superblock when the primary one is bad, though the copy may be of an older commit: all
    /// commits after it are given up. Without this, only a copy that is surely of the last commit is written on from. Reading
    /// goes by any copy, and [`crate::Filesystem::warnings`] says how old it can be.
    pub fn use_backup_super(self, use_backup_super: bool) -> Options {
        Options { rescue: Rescue { backup_super: use_backup_super, ..self.rescue }, ..self }
    }

    /// Reads by the roots of an older commit, up to three before the last one, when the last ones lead nowhere. Opening for
    /// writing is refused with this.
    pub fn use_backup_root(self, use_backup_root: bool) -> Options {
        Options { rescue: Rescue { backup_root: use_backup_root, ..self.rescue }, ..self }
    }

    /// Shows the last commit, without what was fsynced after it, when a log waits for replay; without this, the filesystem is shown as
    /// replay makes it, in memory. Opening for writing is refused with this.
    pub fn no_log_replay(self, no_log_replay: bool) -> Options {
        Options { rescue: Rescue { no_log_replay, ..self.rescue }, ..self }
    }

    /// Goes on without the trees that no file is read by (of extents, block groups, free space, devices, checksums, uuids, quotas), where
    /// their roots cannot be found or read; without checksums data are read unverified. [`crate::Filesystem::warnings`] names the trees.
    /// Directories whose inode cannot be read are shown as root's (mode 0700), and names are looked for in all places that have them. Opening
    /// for writing is refused with this.
    pub fn ignore_bad_roots(self, ignore_bad_roots: bool) -> Options {
        Options { rescue: Rescue { ignore_bad_roots, ..self.rescue }, ..self }
    }

    /// Reads data without looking their checksums up. Opening for writing is refused with this.
    pub fn ignore_data_sums(self, ignore_data_sums: bool) -> Options {
        Options { rescue: Rescue { ignore_data_sums, ..self.rescue }, ..self }
    }

    /// Reads tree blocks of which no copy has its checksum, if all else in them is well formed: what was turned in names, sizes or addresses
    /// is shown as it is. Opening for writing is refused with this.
    pub fn ignore_meta_sums(self, ignore_meta_sums: bool) -> Options {
        Options { rescue: Rescue { ignore_meta_sums, ..self.rescue }, ..self }
    }

    /// Reads though the superblock says that a change of the format was not finished (of checksums, of the uuid, to a block group tree), or has
    /// flags that nobody knows. Opening for writing is refused with this.
    pub fn ignore_super_flags(self, ignore_super_flags: bool) -> Options {
        Options { rescue: Rescue { ignore_super_flags, ..self.rescue }, ..self }
    }

    /// All that [`Rescue`] allows, besides what is allowed already.
    pub fn rescue(self, rescue: Rescue) -> Options {
        Options { rescue: self.rescue.and(rescue), ..self }
    }

    /// Whether the same operations, of one thread, on the same filesystem make the same bytes, given the same
    /// [`Options::env`]. Costs some speed, and there is no background work.
    pub fn reproducible(self, reproducible: bool) -> Options {
        Options { reproducible, background: self.background && !reproducible, ..self }
    }

    /// Blocks of deleted subvolumes that one commit looks at: more take longer, fewer take more commits. Eight leaves that others have, and that
    /// are let go of unread, count as one. At least 16: some of
    /// them lead back to where the last commit ended. [`Options::memory`] sets it, to 4,096 at most.
    pub fn drop_blocks_max(self, drop_blocks_max: usize) -> Options {
        Options { drop_blocks_max: drop_blocks_max.max(16), ..self }
    }

    /// Where time and randomness come from.
    pub fn env(self, env: Env) -> Options {
        Options { env, ..self }
    }
}
