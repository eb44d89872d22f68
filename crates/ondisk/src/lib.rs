//! The bytes of btrfs: keys, tree blocks, items, the superblock, and the gate that checks them.
//!
//! Every structure that lives on a disk is described here once, with its size asserted. Bytes become a [`TreeBlock`]
//! or a [`Superblock`] only through the gate ([`check`]), which looks at every member, so that no other code can meet an
//! unchecked block. Nothing here does I/O.
//!
//! Sources of the format: `linux/btrfs_tree.h`, `linux/btrfs.h`, the btrfs documentation, and what the kernel and
//! btrfs-progs write.

pub mod block;
pub mod build;
pub mod check;
pub mod features;
pub mod item;
pub mod key;
pub mod layout;
pub mod print;
pub mod superblock;
pub mod view;

pub use block::{BlockHead, ChildPtr, Lost, TreeBlock};
pub use build::{LeafBuilder, NodeBuilder};
pub use check::{Corruption, Expect, Gate};
pub use key::{Key, kind, objectid};
pub use superblock::Superblock;

/// Bytes in a sector: the only sector size this implementation reads and writes.
pub const SECTOR: u64 = 4096;
/// Bytes of a tree block's header.
pub const HEADER_LEN: usize = 101;
/// Bytes of an item's head in a leaf.
pub const ITEM_LEN: usize = 25;
/// Bytes of a child pointer in a node.
pub const CHILD_LEN: usize = 33;
/// Levels a tree can have: 0 is the leaf.
pub const LEVELS_MAX: usize = 8;
/// Bytes of the longest file name.
pub const NAME_LEN_MAX: usize = 255;
/// Bytes of one logical range's device stripe: the only stripe length there is.
pub const STRIPE_LEN: u64 = 65536;
/// The largest data extent that is not compressed, in bytes.
pub const EXTENT_LEN_MAX: u64 = 128 << 20;
/// The largest run of file bytes that one compressed extent holds.
pub const COMPRESSED_LEN_MAX: u64 = 128 << 10;
