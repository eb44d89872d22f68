//! A sparse array of bytes in memory: 64 KiB chunks in a sharded map, shared between snapshots and
//! copied on the first write. Absent chunks are the caller's business (zeros, or a lower device).
//!
//! Lock order: shards by rising number, and only [`Chunks::snapshot`] holds more than one.

use std::{collections::HashMap, sync::Arc};

use parking_lot::RwLock;

/// Bytes in a chunk.
pub(crate) const CHUNK: usize = 64 << 10;
const SHARDS: u64 = 16;

type Chunk = Arc<Vec<u8>>;

/// The map of chunks by number.
#[derive(Debug)]
pub(crate) struct Chunks {
    shards: Vec<RwLock<HashMap<u64, Chunk>>>,
}

/// One chunk's share of a range: chunk number, start inside it, and the range inside the buffer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Piece {
    pub number: u64,
    pub start: usize,
    pub buffer: std::ops::Range<usize>,
}

/// Cuts a range (bytes) at chunk boundaries.
pub(crate) fn pieces(offset: u64, len: usize) -> impl Iterator<Item = Piece> {
    let mut done = 0;
    std::iter::from_fn(move || {
        if done >= len {
            return None;
        }
        let at = offset + done as u64;
        let start = (at % CHUNK as u64) as usize;
        let take = (CHUNK - start).min(len - done);
        let piece = Piece { number: at / CHUNK as u64, start, buffer: done..done + take };
        done += take;
        Some(piece)
    })
}

impl Chunks {
    /// An empty map.
    pub fn new() -> Self {
        Self { shards: (0..SHARDS).map(|_| RwLock::default()).collect() }
    }

    fn shard(&self, number: u64) -> &RwLock<HashMap<u64, Chunk>> {
        #[expect(clippy::indexing_slicing, reason = "there are SHARDS shards")]
        &self.shards[(number % SHARDS) as usize]
    }

    /// Copies a chunk's bytes from `start` into `buf`; false when the chunk is absent.
    pub fn read(&self, number: u64, start: usize, buf: &mut [u8]) -> bool {
        let shard = self.shard(number).read();
        let bytes = shard.get(&number).and_then(|chunk| chunk.get(start..start + buf.len()));
        match bytes {
            Some(bytes) => buf.copy_from_slice(bytes),
            None => return false,
        }
        true
    }

    /// Writes into a chunk at `start`; an absent chunk is first made by `fill` (given zeros).
    pub fn write<E>(
        &self,
        number: u64,
        start: usize,
        data: &[u8],
        fill: impl FnOnce(&mut [u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut shard = self.shard(number).write();
        let chunk = match shard.entry(number) {
            std::collections::hash_map::Entry::Occupied(entry) => entry.into_mut(),
            std::collections::hash_map::Entry::Vacant(entry) => {
                let mut bytes = vec![0; CHUNK];
                if data.len() < CHUNK {
                    fill(&mut bytes)?;
                }
                entry.insert(Arc::new(bytes))
            }
        };
        if let Some(target) = Arc::make_mut(chunk).get_mut(start..start + data.len()) {
            target.copy_from_slice(data);
        }
        Ok(())
    }

    /// Whether the chunk is there.
    pub fn contains(&self, number: u64) -> bool {
        self.shard(number).read().contains_key(&number)
    }

    /// Drops a chunk.
    pub fn remove(&self, number: u64) {
        self.shard(number).write().remove(&number);
    }

    /// The state of one instant, sharing every chunk until either side writes it.
    pub fn snapshot(&self) -> Self {
        let held: Vec<_> = self.shards.iter().map(|shard| shard.read()).collect();
        Self { shards: held.iter().map(|shard| RwLock::new((*shard).clone())).collect() }
    }

    /// All chunks, by rising number.
    pub fn sorted(&self) -> Vec<(u64, Chunk)> {
        let snapshot = self.snapshot();
        let mut all: Vec<_> =
            snapshot.shards.into_iter().flat_map(|shard| shard.into_inner()).collect();
        all.sort_unstable_by_key(|(number, _)| *number);
        all
    }

    /// Chunks held.
    pub fn count(&self) -> usize {
        self.shards.iter().map(|shard| shard.read().len()).sum()
    }
}
