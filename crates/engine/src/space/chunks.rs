//! Chunks: taking device space for a class of block groups, and giving it back.
//!
//! A chunk is put into the volume's map and into its class at once, and written by the next commit
//! that asks what is new. One that a crash loses was empty.
//!
//! A group is given back by a commit that finds it vacant: nothing used, pinned or promised. The last
//! durable commit and its readers have nothing there, so chunk and group vanish from memory at once;
//! the device space waits for the next freeze, when the commit that wrote the removal is durable.

use std::collections::{BTreeMap, BTreeSet};

use buttress_ondisk::item::{ChunkItem, DevItem, StripeItem, chunk_type};
use buttress_ondisk::key::DiskKey;
use buttress_ondisk::superblock::SYS_CHUNK_ARRAY_LEN;
use buttress_volume::{Chunk, Stripe};

use super::bound::Trees;
use super::device::{Device, GRAIN, copies, device_ranges};
use super::reserve::{Credit, Promises, Start};
use super::trim::Freed;
use super::{CLASSES, Class};

/// Data chunks have at most this many bytes.
const DATA_MAX: u64 = 1 << 30;
/// So do metadata chunks of filesystems above [`LARGE`].
const METADATA_LARGE: u64 = 1 << 30;
/// Other metadata chunks have at most this many bytes.
const METADATA_MAX: u64 = 256 << 20;
/// System chunks have at most this many bytes: room for tens of thousands of chunks.
const SYSTEM_MAX: u64 = 8 << 20;
/// On filesystems above [`LARGE`].
const SYSTEM_LARGE: u64 = 32 << 20;
/// Filesystems with more bytes get larger metadata chunks.
const LARGE: u64 = 50 << 30;

/// All that is shared between classes: device space, chunks, and what was promised. One lock, taken
/// before that of a class.
#[derive(Debug)]
pub(crate) struct Pool {
    /// The device.
    pub device: Device,
    /// All chunks, those included that no commit has written yet.
    pub chunks: BTreeMap<u64, Chunk>,
    /// What running and committing operations were promised.
    pub promises: Promises,
    /// How things were at the last freeze, until its commit is done.
    pub start: Option<Start>,
    /// What can be promised without looking at everything.
    pub credit: Credit,
    /// How large the trees are that describe space.
    pub trees: Trees,
    /// Type and profile of new chunks, by class.
    types: [u64; CLASSES],
    next_logical: u64,
    added: BTreeSet<u64>,
    removed: Vec<Chunk>,
    /// Chunks whose device space is free after the next freeze.
    returning: Vec<Chunk>,
    /// What of the device has become free since that was told.
    pub freed: Freed,
    /// Set at the freeze: the next commit looks for vacant groups.
    pub plan_removals: bool,
    /// The device has another size than the last commit knows.
    pub resized: bool,
    /// What the superblock says: as of the last look at what is dirty.
    written: Written,
}

/// What the superblock repeats of the chunk tree.
#[derive(Clone, Debug, Default)]
pub(crate) struct Written {
    /// The device item.
    pub device: DevItem,
    /// Addresses and items of all system chunks.
    pub system: BTreeMap<u64, Vec<u8>>,
}

impl Pool {
    /// The pool of a filesystem with these chunks, whose device ranges are taken already.
    ///
    /// `system` has the items of its system chunks: mkfs fills in members that a [`Chunk`] has not.
    pub fn new(
        device: Device,
        chunks: BTreeMap<u64, Chunk>,
        types: [u64; CLASSES],
        system: BTreeMap<u64, Vec<u8>>,
    ) -> Pool {
        let next_logical = chunks.values().next_back().map_or(GRAIN, Chunk::end);
        let mut pool = Pool {
            device,
            chunks,
            promises: Promises::default(),
            start: None,
            credit: Credit::default(),
            trees: Trees::default(),
            types,
            next_logical,
            added: BTreeSet::new(),
            removed: Vec::new(),
            returning: Vec::new(),
            freed: Freed::default(),
            plan_removals: true,
            resized: false,
            written: Written { system, ..Written::default() },
        };
        pool.note_device();
        let all: Vec<Chunk> = pool.chunks.values().cloned().collect();
        pool.note_system(&all);
        pool
    }

    /// Type and profile of new chunks of a class.
    pub fn type_of(&self, class: Class) -> u64 {
        self.types.get(class.slot()).copied().unwrap_or_default()
    }

    /// Another type for new chunks of a class.
    pub fn set_type(&mut self, class: Class, flags: u64) {
        self.types[class.slot()] = flags;
    }

    /// Other types for new chunks.
    #[cfg(test)]
    pub fn set_types(&mut self, types: [u64; CLASSES]) {
        self.types = types;
    }

    /// Bytes that a new chunk of a class should have, on a large enough device.
    pub fn usual_len(&self, class: Class) -> u64 {
        let flags = self.type_of(class);
        let large = self.device.total() > LARGE;
        let most = if flags & chunk_type::DATA != 0 {
            DATA_MAX
        } else if flags & chunk_type::SYSTEM != 0 {
            if large { SYSTEM_LARGE } else { SYSTEM_MAX }
        } else if large {
            METADATA_LARGE
        } else {
            METADATA_MAX
        };
        (most.min(self.device.total() / 10) / GRAIN * GRAIN).max(GRAIN)
    }

    /// Plans a chunk of a class that takes at most `limit` bytes of the device, and takes them.
    pub fn add_chunk(&mut self, class: Class, limit: u64) -> Option<Chunk> {
        let flags = self.type_of(class);
        let copies = copies(flags);
        if flags & chunk_type::SYSTEM != 0 && !self.superblock_has_room(copies) {
            return None;
        }
        let want = self.usual_len(class).min(limit / copies / GRAIN * GRAIN);
        let hole = self.device.hole(want * copies)?;
        let length = want.min(hole.len / copies / GRAIN * GRAIN);
        if length == 0 {
            return None;
        }
        let stripe = |copy| Stripe {
            devid: self.device.devid(),
            offset: hole.start + copy * length,
            dev_uuid: self.device.item.uuid,
        };
        let chunk = Chunk {
            logical: self.next_logical,
            length,
            stripe_len: buttress_ondisk::STRIPE_LEN,
            type_flags: flags,
            stripes: (0..copies).map(stripe).collect(),
            sub_stripes: 1,
        };
        for range in device_ranges(&chunk) {
            self.device.take(range);
        }
        self.credit = Credit::default();
        self.next_logical = chunk.end();
        self.added.insert(chunk.logical);
        self.chunks.insert(chunk.logical, chunk.clone());
        Some(chunk)
    }

    /// Whether the superblock's array can name one more system chunk.
    fn superblock_has_room(&self, copies: u64) -> bool {
        let entry = size_of::<DiskKey>() + size_of::<ChunkItem>();
        let len = |stripes: usize| entry + stripes * size_of::<StripeItem>();
        let system = |chunk: &&Chunk| chunk.type_flags & chunk_type::SYSTEM != 0;
        let now = self.chunks.values().filter(system).map(|chunk| len(chunk.stripes.len()));
        now.sum::<usize>() + len(copies as usize) <= SYS_CHUNK_ARRAY_LEN
    }

    /// Takes back [`Pool::add_chunk`], of which nobody knows yet.
    pub fn forget_chunk(&mut self, logical: u64) {
        self.added.remove(&logical);
        if let Some(chunk) = self.chunks.remove(&logical) {
            for range in device_ranges(&chunk) {
                self.device.put_back(range);
            }
        }
    }

    /// The chunk of a group that is vacant goes.
    pub fn remove_chunk(&mut self, logical: u64) {
        self.credit = Credit::default();
        let Some(chunk) = self.chunks.remove(&logical) else { return };
        if self.added.remove(&logical) {
            // No commit has written it: there is nothing to delete.
            self.freed.extend(device_ranges(&chunk));
            for range in device_ranges(&chunk) {
                self.device.put_back(range);
            }
        } else {
            self.removed.push(chunk);
        }
    }

    /// At the freeze: removals are durable.
    pub fn freeze(&mut self) {
        self.put_back_returning();
        self.plan_removals = true;
        self.promises.freeze();
    }

    /// The device space of chunks whose removal is durable is free.
    pub fn put_back_returning(&mut self) {
        for chunk in std::mem::take(&mut self.returning) {
            self.freed.extend(device_ranges(&chunk));
            for range in device_ranges(&chunk) {
                self.device.put_back(range);
            }
        }
        self.credit = Credit::default();
    }

    /// Bytes of the device that chunks on their way out still have: commits make them free.
    pub fn leaving(&self) -> u64 {
        let chunks = self.removed.iter().chain(&self.returning);
        chunks.flat_map(device_ranges).map(|range| range.len).sum()
    }

    /// Chunks added and removed since the last call; the caller writes them.
    pub fn take_changes(&mut self) -> (Vec<Chunk>, Vec<Chunk>) {
        let added = std::mem::take(&mut self.added);
        let added: Vec<Chunk> =
            added.iter().filter_map(|logical| self.chunks.get(logical)).cloned().collect();
        let removed = std::mem::take(&mut self.removed);
        self.returning.extend(removed.iter().cloned());
        self.note_device();
        removed.iter().for_each(|chunk| drop(self.written.system.remove(&chunk.logical)));
        self.note_system(&added);
        (added, removed)
    }

    fn note_device(&mut self) {
        let returning: u64 =
            self.returning.iter().flat_map(device_ranges).map(|range| range.len).sum();
        let used = self.device.used().saturating_sub(returning);
        self.written.device = DevItem { bytes_used: used.into(), ..self.device.item };
    }

    fn note_system(&mut self, chunks: &[Chunk]) {
        let system = |chunk: &&Chunk| chunk.type_flags & chunk_type::SYSTEM != 0;
        for chunk in chunks.iter().filter(system) {
            self.written.system.entry(chunk.logical).or_insert_with(|| chunk.encode());
        }
    }

    /// What the superblock may say: that which [`Pool::take_changes`] has handed out.
    pub fn written(&self) -> &Written {
        &self.written
    }
}
