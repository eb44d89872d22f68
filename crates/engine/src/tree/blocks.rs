//! The cache of tree blocks, over the volume.
//!
//! Blocks are keyed by address and checked against the generation that the caller expects, so a reused address cannot
//! serve an old block. Blocks of the running commit are held until they are written ([`Blocks::hold`]).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use buttress_ondisk::TreeBlock;
use buttress_ondisk::check::{Expect, may_own};
use buttress_volume::Volume;

use crate::error::Result;
use crate::hash::Spread;
use crate::sync::Mutex;

const SHARDS: usize = 64;

#[derive(Debug)]
struct Entry {
    block: Arc<TreeBlock>,
    /// Touched since the last sweep.
    used: bool,
    /// Not written yet: must stay.
    held: bool,
}

#[derive(Debug, Default)]
struct Shard {
    blocks: Spread<u64, Entry>,
    /// Sweep at this size. Blocks that a large commit holds cannot be evicted: it grows with them, so that a sweep pays.
    limit: usize,
    /// Blocks found so far.
    hits: u64,
}

impl Shard {
    fn find(
        &mut self,
        bytenr: u64,
        level: u8,
        generation: u64,
        owner: u64,
    ) -> Option<Arc<TreeBlock>> {
        let entry = self.blocks.get_mut(&bytenr)?;
        let block = &entry.block;
        let wanted = (block.generation(), block.level()) == (generation, level);
        if !wanted || !may_own(block.owner(), owner) {
            return None;
        }
        entry.used = true;
        self.hits += 1;
        Some(entry.block.clone())
    }
}

/// The tree blocks of one filesystem.
#[derive(Debug)]
pub struct Blocks {
    volume: Arc<Volume>,
    nodesize: usize,
    shards: Vec<Mutex<Shard>>,
    /// Blocks a shard may hold before it is swept.
    shard_max: usize,
    misses: AtomicU64,
}

impl Blocks {
    /// A cache of about `bytes` over `volume`.
    pub fn new(volume: Arc<Volume>, bytes: u64) -> Blocks {
        let nodesize = volume.nodesize() as usize;
        let shard_max = (bytes as usize / nodesize / SHARDS).max(8);
        Blocks {
            volume,
            nodesize,
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            shard_max,
            misses: AtomicU64::new(0),
        }
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
        let hits = self.shards.iter().map(|shard| shard.lock().hits).sum();
        (hits, self.misses.load(Ordering::Relaxed))
    }

    fn shard(&self, bytenr: u64) -> &Mutex<Shard> {
        &self.shards[(bytenr / self.nodesize as u64) as usize % SHARDS]
    }

    /// The block at `bytenr`, which must be of `level` and `generation`, and of `owner` unless subvolumes may share it.
    pub fn read(
        &self,
        bytenr: u64,
        level: u8,
        generation: u64,
        owner: u64,
    ) -> Result<Arc<TreeBlock>> {
        if let Some(block) = self.shard(bytenr).lock().find(bytenr, level, generation, owner) {
            return Ok(block);
        }
        self.misses.fetch_add(1, Ordering::Relaxed);
        let expect = Expect {
            bytenr,
            level: Some(level),
            generation: Some(generation),
            owner: Some(owner),
            first_key: None,
        };
        let block = Arc::new(self.volume.read_block(bytenr, &expect)?);
        self.insert(block.clone(), false);
        Ok(block)
    }

    /// Takes a new block that is not written yet; it stays until [`Blocks::let_go`].
    pub fn hold(&self, block: Arc<TreeBlock>) {
        self.insert(block, true);
    }

    /// The block at `bytenr` is written: it may be evicted.
    pub fn let_go(&self, bytenr: u64) {
        if let Some(entry) = self.shard(bytenr).lock().blocks.get_mut(&bytenr) {
            entry.held = false;
        }
    }

    /// Forgets the block at `bytenr`, which no tree reaches any more.
    pub fn forget(&self, bytenr: u64) {
        self.shard(bytenr).lock().blocks.remove(&bytenr);
    }

    /// Forgets every block that is written, as if the filesystem had just been opened.
    pub fn clear(&self) {
        for shard in &self.shards {
            shard.lock().blocks.retain(|_, entry| entry.held);
        }
    }

    fn insert(&self, block: Arc<TreeBlock>, held: bool) {
        let mut shard = self.shard(block.bytenr()).lock();
        if shard.blocks.len() >= shard.limit.max(self.shard_max) {
            sweep(&mut shard.blocks, self.shard_max);
            shard.limit = shard.blocks.len() * 2;
        }
        shard.blocks.insert(block.bytenr(), Entry { block, used: true, held });
    }
}

/// Evicts what was not touched since the last sweep, and if that is too little, what was.
fn sweep(shard: &mut Spread<u64, Entry>, max: usize) {
    shard.retain(|_, entry| entry.held || std::mem::replace(&mut entry.used, false));
    if shard.len() > max / 4 * 3 {
        let mut keep = true;
        shard.retain(|_, entry| {
            keep = !keep;
            entry.held || keep
        });
    }
}
