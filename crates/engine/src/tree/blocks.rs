//! The cache of tree blocks, over the volume.
//!
//! Blocks are keyed by address and checked against the generation that the caller expects, so a reused address cannot
//! serve an old block. Blocks of the running commit are held until they are written ([`Blocks::hold`]).
//!
//! On a volume that is only read, a leaf with a bad item is here without it ([`TreeBlock::lost`]); a writer is refused the leaf.
//!
//! Held blocks count, too: while there are many, few others stay. The cache takes what nothing else needs of the memory that
//! the filesystem may use, so its size changes ([`Blocks::keep_to`]).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use buttress_ondisk::TreeBlock;
use buttress_ondisk::check::{Expect, may_own};
use buttress_volume::Volume;

use crate::error::Result;
use crate::hash::Spread;
use crate::stripes::Striped;
use crate::sync::RwLock;

const SHARDS: usize = 64;
/// Blocks that a shard has room for at least, or there are fewer shards.
const SHARD_MIN: usize = 8;
/// In how many steps the cache gets smaller.
const STEPS: usize = 16;

#[derive(Debug)]
struct Entry {
    block: Arc<TreeBlock>,
    /// Touched since the last sweep.
    used: AtomicBool,
    /// Not written yet: must stay.
    held: bool,
}

#[derive(Debug, Default)]
struct Shard {
    blocks: Spread<u64, Entry>,
    /// How many of them are held.
    held: usize,
    /// Not swept before it has this size: held blocks cannot be evicted, and a sweep has to pay.
    limit: usize,
}

impl Shard {
    fn find(&self, bytenr: u64, level: u8, generation: u64, owner: u64) -> Option<Arc<TreeBlock>> {
        let entry = self.blocks.get(&bytenr)?;
        let block = &entry.block;
        let wanted = (block.generation(), block.level()) == (generation, level);
        if !wanted || !may_own(block.owner(), owner) {
            return None;
        }
        // Who writes takes the cache line from who looks at the same time.
        if !entry.used.load(Ordering::Relaxed) {
            entry.used.store(true, Ordering::Relaxed);
        }
        Some(entry.block.clone())
    }

    fn put(&mut self, block: Arc<TreeBlock>, held: bool) {
        let old =
            self.blocks.insert(block.bytenr(), Entry { block, used: AtomicBool::new(true), held });
        self.held += usize::from(held);
        self.held -= usize::from(old.is_some_and(|old| old.held));
    }

    /// Evicts what was not touched since the last sweep, and if that leaves more than three quarters of `max`, of the others
    /// as many as it takes to get to the half of it.
    fn sweep(&mut self, max: usize) {
        self.blocks.retain(|_, entry| entry.held || std::mem::take(entry.used.get_mut()));
        if self.blocks.len() > max / 4 * 3 {
            let free = self.blocks.len() - self.held;
            let stay = (max / 2).saturating_sub(self.held).max(max / 8).min(free);
            let mut due = 0;
            self.blocks.retain(|_, entry| {
                if entry.held {
                    return true;
                }
                due += stay;
                let stays = due >= free;
                due -= if stays { free } else { 0 };
                stays
            });
        }
        let crowded = self.held > max / 2;
        self.limit = if crowded { self.held + (max / 4).max(self.held / 8) } else { 0 };
    }
}

/// The tree blocks of one filesystem.
#[derive(Debug)]
pub struct Blocks {
    volume: Arc<Volume>,
    nodesize: usize,
    shards: Vec<RwLock<Shard>>,
    /// Blocks of a shard that is as large as it may get.
    shard_full: usize,
    /// Blocks a shard may hold before it is swept.
    shard_max: AtomicUsize,
    /// Blocks found so far.
    hits: Striped<AtomicU64>,
    misses: AtomicU64,
}

impl Blocks {
    /// A cache of `bytes` at most over `volume`.
    pub fn new(volume: Arc<Volume>, bytes: u64) -> Blocks {
        let nodesize = volume.nodesize() as usize;
        let blocks = usize::try_from(bytes).unwrap_or(usize::MAX) / nodesize;
        let shards = (blocks / SHARD_MIN).clamp(1, SHARDS);
        let shard_full = (blocks / shards).max(SHARD_MIN);
        Blocks {
            volume,
            nodesize,
            shards: (0..shards).map(|_| RwLock::default()).collect(),
            shard_full,
            shard_max: AtomicUsize::new(shard_full),
            hits: Striped::default(),
            misses: AtomicU64::new(0),
        }
    }

    /// Keeps to `bytes` from now on, as far as it was made for that many; an eighth of what it was made for stays.
    pub fn keep_to(&self, bytes: u64) {
        let full = self.shard_full;
        let wanted = usize::try_from(bytes).unwrap_or(usize::MAX) / self.nodesize;
        let step = (full / STEPS).max(1);
        let wanted = (wanted / self.shards.len() / step * step).clamp(full / 8, full);
        if wanted == self.shard_max.load(Ordering::Relaxed)
            || wanted >= self.shard_max.swap(wanted, Ordering::Relaxed)
        {
            return;
        }
        for shard in &self.shards {
            let mut shard = shard.write();
            if shard.blocks.len() > wanted.max(shard.limit) {
                shard.sweep(wanted);
            }
        }
    }

    /// Bytes of blocks that are kept now at most.
    pub fn bytes_max(&self) -> u64 {
        (self.shard_max.load(Ordering::Relaxed) * self.shards.len() * self.nodesize) as u64
    }

    /// The volume below.
    pub fn volume(&self) -> &Arc<Volume> {
        &self.volume
    }

    /// Bytes of a tree block.
    pub fn nodesize(&self) -> usize {
        self.nodesize
    }

    /// Blocks found here and blocks read from the volume, so far.
    pub fn uses(&self) -> (u64, u64) {
        let hits = self.hits.all().map(|hits| hits.load(Ordering::Relaxed)).sum();
        (hits, self.misses.load(Ordering::Relaxed))
    }

    fn shard(&self, bytenr: u64) -> &RwLock<Shard> {
        &self.shards[(bytenr / self.nodesize as u64) as usize % self.shards.len()]
    }

    /// The block at `bytenr`, which must be of `level` and `generation`, and of `owner` unless subvolumes may share it.
    pub fn read(
        &self,
        bytenr: u64,
        level: u8,
        generation: u64,
        owner: u64,
    ) -> Result<Arc<TreeBlock>> {
        if let Some(block) = self.find(bytenr, level, generation, owner) {
            return Ok(block);
        }
        self.count_read();
        let expect = Expect {
            bytenr,
            level: Some(level),
            generation: Some(generation),
            owner: Some(owner),
            first_key: None,
        };
        let block = Arc::new(self.volume.read_block_beside(bytenr, &expect)?);
        self.insert(block.clone(), false);
        Ok(block)
    }

    /// The same block, if it is here.
    pub(super) fn find(
        &self,
        bytenr: u64,
        level: u8,
        generation: u64,
        owner: u64,
    ) -> Option<Arc<TreeBlock>> {
        let found = self.shard(bytenr).read().find(bytenr, level, generation, owner)?;
        self.hits.mine().fetch_add(1, Ordering::Relaxed);
        Some(found)
    }

    /// Counts a block that is read from the volume.
    pub(super) fn count_read(&self) {
        self.misses.fetch_add(1, Ordering::Relaxed);
    }

    /// Whether a block that was read, whatever tree it was read for, could be written as it is. Who asks only for its place reads it with less care.
    pub fn verify(&self, block: &TreeBlock) -> Result<()> {
        Ok(self.volume.gate().verify(block, &Expect::at(block.bytenr()))?)
    }

    /// Takes a new block that is not written yet; it stays until [`Blocks::let_go`].
    pub fn hold(&self, block: Arc<TreeBlock>) {
        self.insert(block, true);
    }

    /// The block at `bytenr` is written: it may be evicted.
    pub fn let_go(&self, bytenr: u64) {
        let mut shard = self.shard(bytenr).write();
        let Some(entry) = shard.blocks.get_mut(&bytenr) else { return };
        if !std::mem::replace(&mut entry.held, false) {
            return;
        }
        shard.held -= 1;
        if shard.held == 0 {
            shard.limit = 0;
            let max = self.shard_max.load(Ordering::Relaxed);
            if shard.blocks.len() > max {
                shard.sweep(max);
            }
        }
    }

    /// Forgets the block at `bytenr`, which no tree reaches any more.
    pub fn forget(&self, bytenr: u64) {
        let mut shard = self.shard(bytenr).write();
        let old = shard.blocks.remove(&bytenr);
        shard.held -= usize::from(old.is_some_and(|old| old.held));
    }

    /// Forgets every block that is written, as if the filesystem had just been opened.
    pub fn clear(&self) {
        for shard in &self.shards {
            shard.write().blocks.retain(|_, entry| entry.held);
        }
    }

    fn insert(&self, block: Arc<TreeBlock>, held: bool) {
        let mut shard = self.shard(block.bytenr()).write();
        let max = self.shard_max.load(Ordering::Relaxed);
        if shard.blocks.len() >= max.max(shard.limit) {
            shard.sweep(max);
        }
        shard.put(block, held);
    }
}
