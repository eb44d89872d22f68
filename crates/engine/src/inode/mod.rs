//! The inode in memory, and all it owns: attributes, names, directory entries, xattrs, file data.
//!
//! # Where changes live
//!
//! An operation changes no tree. It changes the inodes it is about, and they keep what is not in their tree yet in two
//! layers: `live` belongs to the transaction that is running, `frozen` to the one that is being committed. A reader looks at
//! live, then frozen, then the tree as last published. Layers say how things *are* (this name leads there, this name is gone),
//! never by how much they changed, so it does no harm that for a moment the tree already holds what `frozen` says too.
//!
//! # The commit of transaction N
//!
//! 1. [`FileTree::freeze`], when no operation runs: the list of changed inodes is set aside.
//! 2. [`FileTree::prepare`]: each listed inode's layer becomes `frozen` (the first operation of N+1 that changes the inode may
//!    have done that already), and its buffered data are written. A small layer (values and a name, as of most new files) stays where it
//!    is, and belongs to N as long as `transid` says so: an operation of N+1 that changes the inode still moves it first, and nothing else
//!    changes `live`. Moving each cost a tenth of the cache misses of making an empty file.
//! 3. [`FileTree::emit`]: the frozen layers, inode by inode, as one stream of items in key order; large parts of it are made
//!    on several threads.
//! 4. [`FileTree::publish`]: the new version is the one to read.
//! 5. [`FileTree::settle`]: the layers that it has, frozen or left in place, are dropped. A log may be written meanwhile.
//!
//! # Locks
//!
//! One lock per inode, taken in the order of inode numbers when an operation needs several; the tree-wide rename lock before
//! them, the table's and the list's locks after them. Nothing waits for space or a commit while it holds one. Who writes the data of many files at
//! once (a commit, or `delalloc`) does not wait for the second one.
//!
//! # Crash argument
//!
//! The tree of a commit holds all of an operation or nothing of it, because operations run between two freezes. A file that
//! has no name but is still open is in the tree with an orphan item, from which the next open of the filesystem cleans up.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use buttress_ondisk::item::DirItem;
use buttress_ondisk::{Key, kind};
use parking_lot::{RwLock, RwLockReadGuard, RwLockWriteGuard};

use self::state::State;

mod attributes;
mod create;
mod delalloc;
mod directory;
mod emit;
mod entries;
pub mod file;
mod holds;
mod io;
mod life;
mod link;
mod log;
mod many_names;
mod name;
mod name_hashes;
mod names;
mod own;
mod parts;
mod rename;
mod replay;
mod salvage;
mod state;
mod steps;
mod stored;
mod strays;
#[cfg(test)]
mod tests;
mod tree;
mod xattrs;

pub use attributes::{Attributes, SetAttributes, may_have_flags, mode};
pub use create::{NewInode, NewKind};
pub use delalloc::Flush;
pub use directory::DirectoryEntry;
pub use io::Source;
pub use log::{Entry as LogEntry, Extent as LogExtent, Logged, Need as LogNeed, Reason};
pub use name::Name;
pub use rename::{End, Rename};
pub use replay::{ListedEntry, LoggedName};
pub use steps::{FEW, Leaving, Step, letting_go};
pub use tree::{Asleep, FileTree};
pub use xattrs::SetXattr;

/// The inode number of the top directory of each subvolume.
pub const TOP: u64 = buttress_ondisk::objectid::FIRST_FREE;

/// What a directory entry leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Location {
    /// An inode of the same tree.
    Inode(u64),
    /// The top directory of another tree.
    Subvolume(u64),
}

impl Location {
    /// The key that the entry holds.
    fn key(self) -> Key {
        match self {
            Location::Inode(ino) => Key::new(ino, kind::INODE_ITEM, 0),
            Location::Subvolume(id) => Key::new(id, kind::ROOT_ITEM, u64::MAX),
        }
    }

    /// What the key in an entry means; `None` when it is neither.
    fn of(key: &Key) -> Option<Location> {
        match key.kind {
            kind::INODE_ITEM => Some(Location::Inode(key.objectid)),
            kind::ROOT_ITEM => Some(Location::Subvolume(key.objectid)),
            _ => None,
        }
    }
}

/// What a name in a directory leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The inode or subvolume.
    pub location: Location,
    /// `buttress_ondisk::item::file_type`.
    pub file_type: u8,
}

impl Entry {
    /// An entry that leads to the subvolume `id`.
    fn of_subvolume(id: u64) -> Entry {
        Entry {
            location: Location::Subvolume(id),
            file_type: buttress_ondisk::item::file_type::DIRECTORY,
        }
    }
}

/// An inode in memory. There is at most one for each number of a tree.
#[derive(Debug)]
pub struct Inode {
    /// Its number.
    pub ino: u64,
    state: RwLock<State>,
    /// How many holds there are, see [`FileTree::hold`]; changed under the lock of `state`.
    holds: AtomicU32,
    /// Deleted: as the state says, readable without the lock.
    gone: AtomicBool,
    /// Looked up since the table was last swept, or it was committed.
    recent: AtomicBool,
    /// It is as it was made, and its layer is small ([`State::stays_in_place`]): a commit that has it on its list knows this much without its lock.
    plain: AtomicBool,
    /// Knew so many names ([`NameHashes`](name_hashes::NameHashes)) at its last commit that it stays: read again it would know none of them.
    knows_many: AtomicBool,
}

impl Inode {
    /// The transaction that changed it last; 0 when it has not changed since it was loaded. Whoever changes an inode says so
    /// (`State::touch`), and what the change needs to be found belongs to the same transaction or an older one.
    pub fn changed_in(&self) -> u64 {
        self.read().transid
    }

    fn new(ino: u64, state: State) -> Arc<Inode> {
        let plain = state.live.created && state.stays_in_place();
        Arc::new(Inode {
            ino,
            state: RwLock::new(state),
            holds: AtomicU32::new(0),
            gone: AtomicBool::new(false),
            recent: AtomicBool::new(true),
            plain: AtomicBool::new(plain),
            knows_many: AtomicBool::new(false),
        })
    }

    fn read(&self) -> RwLockReadGuard<'_, State> {
        self.state.read()
    }

    fn write(&self) -> RwLockWriteGuard<'_, State> {
        self.state.write()
    }

    fn is_held(&self) -> bool {
        self.holds.load(Ordering::Acquire) > 0
    }
}

/// The largest item that fits in a leaf of `nodesize` bytes.
fn item_len_max(nodesize: usize) -> usize {
    buttress_ondisk::LeafBuilder::room(nodesize).saturating_sub(buttress_ondisk::ITEM_LEN)
}

/// Appends a directory entry or an xattr as items hold them.
fn push_dir_item(
    out: &mut Vec<u8>,
    location: Key,
    transid: u64,
    file_type: u8,
    name: &[u8],
    data: &[u8],
) {
    let head = DirItem {
        location: location.into(),
        transid: transid.into(),
        data_len: (data.len() as u16).into(),
        name_len: (name.len() as u16).into(),
        file_type,
    };
    out.extend_from_slice(zerocopy::IntoBytes::as_bytes(&head));
    out.extend_from_slice(name);
    out.extend_from_slice(data);
}
