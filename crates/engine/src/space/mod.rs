//! Space: block groups, their free space, chunks, and promises.
//!
//! Terms: a *chunk* maps logical addresses to the device; a *block group* is what is allocated in a
//! chunk, and the two always come together. A *class* is what a group holds: data, metadata (all tree
//! blocks but those of the chunk tree), system (the chunk tree). In a mixed filesystem data and
//! metadata are one class.
//!
//! Every group keeps two views of itself (`group`): what can be allocated, which the operations of
//! the running transaction change at any time, and what the committing transaction writes down.
//! What the last durable commit reaches is pinned when it is let go, and not allocated again before
//! the freeze that follows the next durable commit: a crash at any moment finds it untouched.
//!
//! What is free is told to the device, if that is wanted (`trim`).
//!
//! Where a group has free space leaves memory when nobody has changed it for long, and there is too much of it (`cold`).
//!
//! Locks: whose turn it is to tell the device what is free, then what threads have in hand of promises, then the pool (device, chunks, promises), then a class, then the index of addresses.
//! None of them but that turn is held while a tree is read or written.

mod allocate;
mod allot;
mod alone;
mod bits;
mod bound;
mod chunks;
mod cold;
mod device;
mod emit;
mod extents;
mod free_space_tree;
mod group;
mod items;
mod load;
mod log;
mod relocate;
mod reserve;
mod resize;
mod set;
#[cfg(test)]
mod tests;
mod trim;
mod usage;

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64};

use buttress_ondisk::item::chunk_type;
use buttress_volume::Chunk;
use parking_lot::{Mutex, RwLock};

use crate::error::Result;
use crate::stripes::Striped;
use chunks::Pool;
use cold::Cold;
use set::{Counters, Set};

pub use alone::{Leaves, Lone, Shape, Size};
pub(crate) use bound::NODES_ABOVE;
pub use bound::Trees;
pub(crate) use bound::most_packed;
pub use emit::Dirty;
pub use extents::Range;
pub use items::{Edit, Items};
pub use load::SpaceRoots;
pub use relocate::GroupInfo;
pub use reserve::{NOBODY, Need, SUBVOLUME_DELETION, Shortage};
pub use trim::{Piece, Trim};
pub use usage::{ClassUsage, StatBytes, Usage};

/// How many classes there are.
const CLASSES: usize = 3;

/// What a block group holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Class {
    /// File data.
    Data,
    /// Blocks of all trees but the chunk tree.
    Metadata,
    /// Blocks of the chunk tree.
    System,
}

impl Class {
    /// All classes.
    pub const ALL: [Class; CLASSES] = [Class::Data, Class::Metadata, Class::System];

    pub(crate) const fn slot(self) -> usize {
        self as usize
    }

    /// The class of a group of this type; mixed groups are in the data class.
    pub fn of(flags: u64) -> Class {
        if flags & chunk_type::SYSTEM != 0 {
            Class::System
        } else if flags & chunk_type::DATA != 0 {
            Class::Data
        } else {
            Class::Metadata
        }
    }
}

/// Who has to know of chunks before they are used: the volume.
pub(crate) trait ChunkKeeper: Send + Sync {
    /// The chunk's addresses are going to be read and written.
    fn add(&self, chunk: &Chunk) -> Result<()>;
    /// The chunk's addresses mean nothing any more.
    fn remove(&self, logical: u64);
}

/// The groups of a class.
#[derive(Debug, Default)]
struct Slot {
    counters: Counters,
    set: Mutex<Set>,
    /// Chunks added so far, and times that what was held was let go: whoever found no room sees that there is some since.
    grown: AtomicU64,
}

/// Where the groups are, by address.
#[derive(Debug, Default)]
struct Index {
    list: RwLock<Vec<(Range, Class)>>,
}

impl Index {
    fn find(&self, at: u64) -> Option<(u64, Class)> {
        let list = self.list.read();
        let behind = list.partition_point(|(range, _)| range.start <= at);
        let (range, class) = list.get(behind.checked_sub(1)?)?;
        (at < range.end()).then_some((range.start, *class))
    }

    fn add(&self, range: Range, class: Class) {
        let mut list = self.list.write();
        let at = list.partition_point(|(other, _)| other.start < range.start);
        list.insert(at, (range, class));
    }

    fn remove(&self, start: u64) {
        let mut list = self.list.write();
        if let Ok(at) = list.binary_search_by_key(&start, |(range, _)| range.start) {
            list.remove(at);
        }
    }
}

/// The space of a filesystem.
pub struct Space {
    slots: [Slot; CLASSES],
    index: Index,
    pool: Mutex<Pool>,
    /// What threads were promised ahead.
    allotments: Striped<Mutex<allot::Allotment>>,
    keeper: Box<dyn ChunkKeeper>,
    /// Bytes of a tree block.
    node: u64,
    /// Data and metadata share their groups.
    mixed: bool,
    /// Where free space lies was loaded, which only writing needs.
    free_known: bool,
    /// Leaves of files may be shared with snapshots.
    shared: AtomicBool,
    /// Subvolumes that were opened.
    volumes: AtomicU64,
    /// The trees that describe space were counted.
    counted: AtomicBool,
    /// Tree blocks of metadata that were taken since the last freeze, and not given back.
    placed: AtomicU64,
    /// Promised data were allocated since the last freeze.
    has_written: AtomicBool,
    /// The deletion that was promised last comes alone.
    alone: AtomicBool,
    /// The last deletion came alone.
    was_alone: AtomicBool,
    /// Where its commit puts tree blocks.
    chosen: Mutex<Vec<u64>>,
    /// The next commit is to pack the trees that describe space.
    pack: AtomicBool,
    /// Blocks that these trees had when they were packed last.
    packed: AtomicU64,
    /// Groups whose free space has left memory.
    cold: Cold,
    /// Which chunks the last commit knows.
    known: log::Known,
    /// Of whoever tells the device what is free.
    trimming: trim::Trimming,
}

impl fmt::Debug for Space {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Space").field("usage", &self.usage()).finish_non_exhaustive()
    }
}

impl Space {
    fn slot(&self, class: Class) -> &Slot {
        &self.slots[self.slot_of(class)]
    }

    fn slot_of(&self, class: Class) -> usize {
        match class {
            Class::Metadata if self.mixed => Class::Data.slot(),
            _ => class.slot(),
        }
    }
}
