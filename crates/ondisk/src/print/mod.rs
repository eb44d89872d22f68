//! Printing: tree blocks and superblocks as text, byte for byte what `btrfs inspect-internal dump-tree` and
//! `dump-super` of btrfs-progs 6.2 print, so that scripts and eyes that know those know ours.
//!
//! Printing reads through [`crate::view`] and accepts any bytes: a tool prints damaged blocks too. Names go out as they
//! are, up to their first zero byte, whatever their encoding.

mod extent;
mod file;
mod item;
mod names;
mod superblock;
mod tree;

pub use item::print_item;
pub use names::{KeyText, ObjectText, kind_name};
pub use superblock::{dump_super, flag_lines};
pub use tree::{DumpTree, Source, dump_block, dump_tree, print_block, tree_by_name};

use std::io;

/// How blocks are printed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Style {
    /// `HIDDEN` instead of names and values.
    pub hide_names: bool,
    /// The checksum of each block.
    pub csum_headers: bool,
    /// The checksums in checksum items.
    pub csum_items: bool,
    /// Seconds that local time is ahead of UTC; times are printed as local.
    pub utc_offset_secs: i64,
}

/// Writes `bytes` up to the first zero, the way C prints a string.
fn text(out: &mut dyn io::Write, bytes: &[u8]) -> io::Result<()> {
    let end = bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len());
    out.write_all(&bytes[..end])
}

/// A uuid with dashes.
fn uuid(bytes: [u8; 16]) -> uuid::Uuid {
    uuid::Uuid::from_bytes(bytes)
}
