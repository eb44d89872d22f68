//! What the engine has done since the filesystem was opened: counted where it happens, read by whoever wants to know.
//!
//! Counters are added to once per commit, per merge or per write, never once per item, so that counting costs nothing.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The parts of a commit, in their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// The gate alone, lists are swapped.
    Freeze,
    /// Buffered data get their places and are written.
    Prepare,
    /// The changed subvolumes are merged.
    Merge,
    /// The trees that describe space are merged.
    Settle,
    /// New blocks are written.
    Write,
    /// Barriers and superblocks.
    Superblocks,
    /// Layers that are durable now are dropped.
    Publish,
}

/// Reasons for which an fsync is a commit, in the order of [`Stats::REFUSALS`].
pub(crate) const REFUSALS: usize = 11;
/// What quotas do about extents, see [`Stats::QUOTA_EXTENTS`].
const QUOTA_EXTENTS: usize = 7;

/// How many phases there are.
const PHASES: usize = 7;

/// The counters of an open filesystem.
#[derive(Debug, Default)]
pub struct Counters {
    pub(crate) commits: AtomicU64,
    pub(crate) merges: AtomicU64,
    pub(crate) leaves: AtomicU64,
    pub(crate) items: AtomicU64,
    pub(crate) nodes: AtomicU64,
    pub(crate) grafted: AtomicU64,
    pub(crate) copied: AtomicU64,
    pub(crate) refs_logged: AtomicU64,
    pub(crate) refs_folded: AtomicU64,
    pub(crate) data_bytes: AtomicU64,
    pub(crate) beyond: AtomicU64,
    pub(crate) log_writes: AtomicU64,
    pub(crate) fsyncs: AtomicU64,
    pub(crate) log_syncs: AtomicU64,
    pub(crate) log_blocks: AtomicU64,
    pub(crate) log_searches: AtomicU64,
    pub(crate) log_refused: [AtomicU64; REFUSALS],
    pub(crate) quota_extents: [AtomicU64; QUOTA_EXTENTS],
    pub(crate) groups_reclaimed: AtomicU64,
    phases: [AtomicU64; PHASES],
}

/// Adds to a counter.
pub(crate) fn add(counter: &AtomicU64, more: u64) {
    counter.fetch_add(more, Ordering::Relaxed);
}

impl Counters {
    /// Does a part of a commit, and counts the time it takes.
    pub(crate) fn timed<T>(&self, phase: Phase, work: impl FnOnce() -> T) -> T {
        let start = Instant::now();
        let done = work();
        let nanos = u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
        add(&self.phases[phase as usize], nanos);
        done
    }
}

/// What the engine has done since the filesystem was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Commits that wrote something.
    pub commits: u64,
    /// Merges of trees; a commit merges some trees more than once.
    pub merges: u64,
    /// Leaves written.
    pub leaves: u64,
    /// Items in the leaves written.
    pub items: u64,
    /// Nodes written.
    pub nodes: u64,
    /// Leaves that other threads than the one that merges have made.
    pub leaves_made_apart: u64,
    /// Tree blocks that subvolumes have got copies of, as others have them, too.
    pub blocks_copied: u64,
    /// References logged.
    pub refs_logged: u64,
    /// References left of them after folding.
    pub refs_folded: u64,
    /// Bytes of file content written, without what is in items.
    pub data_bytes: u64,
    /// fsyncs of files and directories, those included that had nothing to do.
    pub fsyncs: u64,
    /// fsyncs that a log made durable.
    pub log_syncs: u64,
    /// Logs written: fsyncs that wait at the same time share one, and its two barriers.
    pub log_writes: u64,
    /// Tree blocks written for logs.
    pub log_blocks: u64,
    /// Searches in a tree that logs took.
    pub log_searches: u64,
    /// fsyncs that had to be commits, by their reason, in the order of [`Stats::REFUSALS`].
    pub log_refused: [u64; REFUSALS],
    /// Extents that quotas had to do with, by what they did, in the order of [`Stats::QUOTA_EXTENTS`].
    pub quota_extents: [u64; QUOTA_EXTENTS],
    /// Block groups that were emptied without anybody's asking.
    pub groups_reclaimed: u64,
    /// Tree blocks that commits took beyond what they had promised: none.
    pub beyond_promise: u64,
    /// Bytes of tree blocks written; copies on other devices or in other places are not counted.
    pub tree_bytes: u64,
    /// Tree blocks found in the cache.
    pub cache_hits: u64,
    /// Tree blocks read from the devices.
    pub cache_misses: u64,
    /// Time that commits have spent in each phase, in the order of [`Stats::PHASES`].
    pub phases: [Duration; PHASES],
}

impl Stats {
    /// The names of the phases of a commit.
    pub const PHASES: [&str; PHASES] =
        ["freeze", "prepare", "merge", "settle", "write", "superblocks", "publish"];

    /// What quotas do about an extent that a commit has to do with: its records and its references tell that one tree has it alone (`alone`), or
    /// who has lost it (`told`); it is in one of the leaves that were compared with those of other trees (`compared`), which name it, too; or who reaches it is asked, and it is the same (`same`) or
    /// not (`moved`). Tree blocks are asked about always. So many of them are read (`read`), to see what is below, which is looked at, too (`below`: tree
    /// blocks without records).
    pub const QUOTA_EXTENTS: [&str; QUOTA_EXTENTS] =
        ["alone", "told", "compared", "same", "moved", "read", "below"];

    /// The reasons for which an fsync is a commit: logs are turned off, the last commit does not know the subvolume, or a chunk; an inode
    /// of it has another name now, or lost one that is somebody's now; data were cloned; space is reserved behind the end of a file; xattrs that were
    /// there have become longer; the log has become too large, had no room, or could not be written.
    pub const REFUSALS: [&str; REFUSALS] = [
        "off",
        "subvolume",
        "chunk",
        "names",
        "taken",
        "clone",
        "prealloc",
        "xattrs",
        "large",
        "room",
        "failed",
    ];

    /// All of it by name. Times are in microseconds, and end in `_us`.
    pub fn figures(&self) -> Vec<(String, u64)> {
        let per_leaf = self.items.checked_div(self.leaves).unwrap_or(0);
        let counts = [
            ("commits", self.commits),
            ("merges", self.merges),
            ("leaves_written", self.leaves),
            ("items_written", self.items),
            ("items_per_leaf", per_leaf),
            ("nodes_written", self.nodes),
            ("leaves_made_apart", self.leaves_made_apart),
            ("blocks_copied", self.blocks_copied),
            ("refs_logged", self.refs_logged),
            ("refs_folded", self.refs_folded),
            ("data_bytes_written", self.data_bytes),
            ("fsyncs", self.fsyncs),
            ("log_syncs", self.log_syncs),
            ("log_writes", self.log_writes),
            ("log_blocks_written", self.log_blocks),
            ("log_searches", self.log_searches),
            ("groups_reclaimed", self.groups_reclaimed),
            ("beyond_promise", self.beyond_promise),
            ("tree_bytes_written", self.tree_bytes),
            ("cache_hits", self.cache_hits),
            ("cache_misses", self.cache_misses),
        ];
        let micros = |time: &Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        let times = Stats::PHASES.iter().zip(&self.phases);
        let times = times.map(|(name, time)| (format!("{name}_us"), micros(time)));
        let refused = Stats::REFUSALS.iter().zip(self.log_refused);
        let refused = refused.map(|(name, count)| (format!("log_refused_{name}"), count));
        let quota = Stats::QUOTA_EXTENTS.iter().zip(self.quota_extents);
        let quota = quota.map(|(name, count)| (format!("quota_extents_{name}"), count));
        let counts = counts.into_iter().map(|(name, count)| (name.to_owned(), count));
        counts.chain(quota).chain(refused).chain(times).collect()
    }

    /// As counted so far.
    pub(crate) fn of(counters: &Counters, nodesize: u64, cache: (u64, u64)) -> Stats {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let (leaves, nodes) = (read(&counters.leaves), read(&counters.nodes));
        Stats {
            commits: read(&counters.commits),
            merges: read(&counters.merges),
            leaves,
            items: read(&counters.items),
            nodes,
            leaves_made_apart: read(&counters.grafted),
            blocks_copied: read(&counters.copied),
            refs_logged: read(&counters.refs_logged),
            refs_folded: read(&counters.refs_folded),
            data_bytes: read(&counters.data_bytes),
            fsyncs: read(&counters.fsyncs),
            log_syncs: read(&counters.log_syncs),
            log_writes: read(&counters.log_writes),
            log_blocks: read(&counters.log_blocks),
            log_searches: read(&counters.log_searches),
            log_refused: counters.log_refused.each_ref().map(read),
            quota_extents: counters.quota_extents.each_ref().map(read),
            groups_reclaimed: read(&counters.groups_reclaimed),
            beyond_promise: read(&counters.beyond),
            tree_bytes: (leaves + nodes).saturating_mul(nodesize),
            cache_hits: cache.0,
            cache_misses: cache.1,
            phases: counters.phases.each_ref().map(|nanos| Duration::from_nanos(read(nanos))),
        }
    }
}
