//! Reservations: an operation is told before it starts whether its commit will find room.
//!
//! A commit writes new blocks next to the old ones, so it needs room for every block it touches, for
//! the items that are new, and for what settling itself costs. That bound is kept as a few sums for
//! the running transaction and for the one that commits; an operation adds its share, and is refused
//! when the sums would no longer fit into free metadata and the chunks that could still be made. A
//! part is kept back (the global reserve) that only operations which give space back may use, so a
//! full filesystem can always delete. Data is promised in the same way, in bytes.
//!
//! Chunks of one class are only made out of device space that the promises of the other do not need.

use super::device::{GRAIN, copies};
use super::set::Sums;
use super::{Class, Pool, Space};

/// What an operation may need until it is committed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Need {
    /// Leaves of trees that it may touch.
    pub leaves: u32,
    /// Bytes of items that it may add.
    pub bytes: u32,
    /// Bytes of data that it will allocate.
    pub data: u64,
    /// It gives space back: it may use the global reserve.
    pub deleting: bool,
}

/// Why an operation was not let in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shortage {
    /// A commit may make room: let go of everything, commit, and ask again, at most a few times
    /// (commits themselves let blocks go, which looks like room to come); then it is `NoSpace`.
    CommitFirst,
    /// There is no room.
    NoSpace,
}

/// Sums of needs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Total {
    leaves: u64,
    bytes: u64,
    data: u64,
}

impl Total {
    fn plus(self, need: Need) -> Total {
        Total {
            leaves: self.leaves + u64::from(need.leaves),
            bytes: self.bytes + u64::from(need.bytes),
            data: self.data.saturating_add(need.data),
        }
    }

    fn minus(self, need: Need) -> Total {
        Total {
            leaves: self.leaves.saturating_sub(u64::from(need.leaves)),
            bytes: self.bytes.saturating_sub(u64::from(need.bytes)),
            data: self.data.saturating_sub(need.data),
        }
    }
}

/// What operations were promised.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Promises {
    running: Total,
    committing: Total,
}

impl Promises {
    /// What runs now commits; what committed is done.
    pub fn freeze(&mut self) {
        self.committing = std::mem::take(&mut self.running);
    }

    fn data(&self) -> u64 {
        self.running.data.saturating_add(self.committing.data)
    }

    /// Promised data was allocated. Only the sum of both transactions matters.
    fn use_data(&mut self, len: u64) {
        let old = self.committing.data.min(len);
        self.committing.data -= old;
        self.running.data = self.running.data.saturating_sub(len - old);
    }
}

/// Tree blocks that every commit may write beyond what operations announce: roots, block group
/// items, free space, chunks.
const SLACK: u64 = 48;
/// The global reserve has at least this many tree blocks, if metadata is large enough.
const RESERVE_MIN: u64 = 192;
/// And at most this many bytes.
const RESERVE_MAX: u64 = 512 << 20;

/// The state that promises are held against.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Outlook {
    /// Bytes of a tree block.
    pub node: u64,
    /// Data and metadata share their groups.
    pub mixed: bool,
    /// The data class (both, when mixed).
    pub data: Sums,
    /// The metadata class (both, when mixed).
    pub metadata: Sums,
    /// Copies that new data chunks take on the device.
    pub data_copies: u64,
    /// Copies that new metadata chunks take.
    pub metadata_copies: u64,
    /// Bytes of the device that chunks could take.
    pub room: u64,
    /// Device bytes to leave for a metadata chunk when a data chunk is made.
    pub headroom: u64,
}

impl Outlook {
    /// Tree blocks that the commit of a transaction may write.
    fn blocks(&self, total: Total) -> u64 {
        let used = self.metadata.used / self.node;
        let inner = (2 * total.leaves).min(used / 32 + 16);
        // Each block let go or made changes a reference, in a leaf of the extent tree.
        let rewritten = (2 * (total.leaves + inner)).min(used);
        rewritten + (total.bytes * 5 / 2).div_ceil(self.node) + SLACK
    }

    /// Bytes that only deletions may use.
    pub fn global_reserve(&self) -> u64 {
        let part = if self.mixed { self.metadata.total / 32 } else { self.metadata.total / 8 };
        let least = (RESERVE_MIN * self.node).min(self.metadata.total / 3);
        part.clamp(least, RESERVE_MAX.max(least))
    }

    /// Bytes by which promises exceed what existing groups hold: of data, and of metadata.
    fn short(&self, promises: Promises, reserve: u64) -> (u64, u64) {
        let blocks = self.blocks(promises.running) + self.blocks(promises.committing);
        let metadata = blocks * self.node + reserve;
        let data = promises.data();
        if self.mixed {
            return (data.saturating_add(metadata).saturating_sub(self.data.free), 0);
        }
        let free = self.metadata.nodes * self.node;
        (data.saturating_sub(self.data.free), metadata.saturating_sub(free))
    }

    /// Device bytes that chunks for the shortages take.
    fn device_need(&self, (data, metadata): (u64, u64)) -> (u64, u64) {
        let whole = |bytes: u64| bytes.div_ceil(GRAIN).saturating_mul(GRAIN);
        // A superblock's stripes may lie in a new chunk.
        let padded = |bytes: u64| if bytes > 0 { whole(bytes + (256 << 10)) } else { 0 };
        let data = padded(data).saturating_mul(self.data_copies);
        (data, padded(metadata).saturating_mul(self.metadata_copies))
    }

    fn fits(&self, promises: Promises, deleting: bool) -> bool {
        let reserve = if deleting { 0 } else { self.global_reserve() };
        let short = self.short(promises, reserve);
        if short == (0, 0) {
            return true;
        }
        let (data, metadata) = self.device_need(short);
        let headroom = if data > 0 && !deleting && !self.mixed { self.headroom } else { 0 };
        data.saturating_add(metadata.max(headroom)) <= self.room
    }

    /// Whether promises still fit when a group of a class vanishes and its device space is not there
    /// yet.
    pub fn fits_without(self, class: Class, bytes: u64, nodes: u64, promises: Promises) -> bool {
        let less = |mut sums: Sums| {
            sums.free = sums.free.saturating_sub(bytes);
            sums.nodes = sums.nodes.saturating_sub(nodes);
            sums.total = sums.total.saturating_sub(bytes);
            sums
        };
        let (mut data, mut metadata) = (self.data, self.metadata);
        if class == Class::Data {
            data = less(data);
        }
        if class == Class::Metadata || (self.mixed && class == Class::Data) {
            metadata = less(metadata);
        }
        Outlook { data, metadata, ..self }.fits(promises, false)
    }

    /// The same, after commits have finished all that runs and freed all that is pinned.
    fn after_commits(&self) -> Outlook {
        let settle = |mut sums: Sums| {
            sums.free += sums.pinned;
            sums.nodes += sums.pinned / self.node;
            sums
        };
        Outlook { data: settle(self.data), metadata: settle(self.metadata), ..*self }
    }

    /// Device bytes that a new chunk of a class may take, so that other promises stay good.
    pub fn limit(&self, class: Class, promises: Promises) -> u64 {
        let short = self.short(promises, self.global_reserve());
        let (data, metadata) = self.device_need(short);
        match class {
            Class::Data | Class::Metadata if self.mixed => self.room,
            Class::Data => {
                let polite = self.room.saturating_sub(metadata.max(self.headroom));
                // What was promised is kept, even out of the headroom.
                polite.max(data.min(self.room.saturating_sub(metadata)))
            }
            Class::Metadata => self.room.saturating_sub(data).max(metadata.min(self.room)),
            Class::System => self.room.saturating_sub(data.saturating_add(metadata)),
        }
    }
}

impl Space {
    /// The state that promises are held against; `room` is left 0 unless `device` is asked for,
    /// because it costs a walk over the device's holes.
    pub(crate) fn outlook(&self, pool: &Pool, device: bool) -> Outlook {
        let copies_of = |class| copies(pool.type_of(class));
        let data_copies = copies_of(Class::Data);
        let metadata_copies = copies_of(Class::Metadata);
        let metadata = self.sums(Class::Metadata);
        let enough = (32 << 20).min(pool.device.total() / 50);
        let headroom = match metadata.free + metadata.pinned < enough {
            true => pool.usual_len(Class::Metadata) * metadata_copies,
            false => 0,
        };
        Outlook {
            node: self.node,
            mixed: self.mixed,
            data: self.sums(Class::Data),
            metadata,
            data_copies,
            metadata_copies,
            room: if device { pool.device.room(data_copies.max(metadata_copies)) } else { 0 },
            headroom,
        }
    }

    /// The counters of a class. Where free space lies is unknown when nothing can be written; how much there is
    /// follows from what is used.
    fn sums(&self, class: Class) -> Sums {
        let mut sums = self.slot(class).counters.read();
        if !self.free_known {
            sums.free = sums.total.saturating_sub(sums.used).saturating_sub(sums.excluded);
            sums.nodes = sums.free / self.node;
        }
        sums
    }

    /// Lets an operation in, before it changes anything. What it was promised counts until the
    /// commit of its transaction is done; call [`Space::unreserve`] when it changes nothing.
    ///
    /// Data must be reserved before [`Space::allocate_data`] takes it.
    pub fn reserve(&self, need: Need) -> Result<(), Shortage> {
        let mut pool = self.pool.lock();
        let wanted = Promises { running: pool.promises.running.plus(need), ..pool.promises };
        let mut outlook = self.outlook(&pool, false);
        if !outlook.fits(wanted, need.deleting) {
            self.thaw();
            outlook = self.outlook(&pool, true);
            if !outlook.fits(wanted, need.deleting) {
                let alone = Promises { running: Total::default().plus(need), ..Default::default() };
                outlook.room += pool.leaving();
                return match outlook.after_commits().fits(alone, need.deleting) {
                    true => Err(Shortage::CommitFirst),
                    false => Err(Shortage::NoSpace),
                };
            }
        }
        pool.promises = wanted;
        Ok(())
    }

    /// The operation that reserved this in the running transaction has changed nothing.
    pub fn unreserve(&self, need: Need) {
        let mut pool = self.pool.lock();
        pool.promises.running = pool.promises.running.minus(need);
    }

    /// The commit is done: what its transaction was promised has been used or is not needed. Without
    /// this call the promises last until the next freeze.
    pub fn committed(&self) {
        self.pool.lock().promises.committing = Total::default();
    }

    /// Promised data was allocated.
    pub(crate) fn use_promise(&self, len: u64) {
        self.pool.lock().promises.use_data(len);
    }
}
