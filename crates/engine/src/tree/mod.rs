//! Trees as immutable values.
//!
//! A version of a tree is a [`Root`]: three numbers. Its blocks never change; [`Blocks`] caches them. A [`View`] reads one
//! version without any lock on the tree. The only way to change a tree is a [`Merge`]: old items and changes stream, in
//! key order, into new blocks; blocks in which nothing changes keep their address.
//!
//! Crash argument: a merge writes nothing. It places new blocks at addresses that no committed tree reaches, and tells
//! its [`Exchange`] which old blocks it let go; the commit writes the former and frees the latter.

mod blocks;
mod draft;
mod finger;
mod leaf_reader;
mod merge;
mod past;
mod published;
mod recent;
#[cfg(all(test, feature = "shuttle"))]
mod schedules;
mod stretch;
#[cfg(test)]
pub(crate) mod tests;
mod view;

pub use blocks::Blocks;
pub use draft::Draft;
pub use finger::Finger;
pub use leaf_reader::LeafReader;
pub use merge::{Exchange, Merge, PACKED_GAP, Packed, copy_of};
pub use past::Past;
pub use published::Published;
pub use recent::Recent;
pub use stretch::{Remade, Stretch, Wanted};
pub use view::{Cursor, Item, Met, View, behind};

/// One version of a tree: its root block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Root {
    /// Logical address of the root block.
    pub bytenr: u64,
    /// The root block's generation.
    pub generation: u64,
    /// Its level, 0 when the tree is one leaf.
    pub level: u8,
}
