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
    pub(crate) refs_logged: AtomicU64,
    pub(crate) refs_folded: AtomicU64,
    pub(crate) data_bytes: AtomicU64,
    pub(crate) beyond: AtomicU64,
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
    /// References logged.
    pub refs_logged: u64,
    /// References left of them after folding.
    pub refs_folded: u64,
    /// Bytes of file content written, without what is in items.
    pub data_bytes: u64,
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
            ("refs_logged", self.refs_logged),
            ("refs_folded", self.refs_folded),
            ("data_bytes_written", self.data_bytes),
            ("beyond_promise", self.beyond_promise),
            ("tree_bytes_written", self.tree_bytes),
            ("cache_hits", self.cache_hits),
            ("cache_misses", self.cache_misses),
        ];
        let micros = |time: &Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        let times = Stats::PHASES.iter().zip(&self.phases);
        let times = times.map(|(name, time)| (format!("{name}_us"), micros(time)));
        counts.into_iter().map(|(name, count)| (name.to_owned(), count)).chain(times).collect()
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
            refs_logged: read(&counters.refs_logged),
            refs_folded: read(&counters.refs_folded),
            data_bytes: read(&counters.data_bytes),
            beyond_promise: read(&counters.beyond),
            tree_bytes: (leaves + nodes).saturating_mul(nodesize),
            cache_hits: cache.0,
            cache_misses: cache.1,
            phases: counters.phases.each_ref().map(|nanos| Duration::from_nanos(read(nanos))),
        }
    }
}
