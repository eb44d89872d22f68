//! `inspect-internal`: the bytes of a filesystem in words.

pub mod dump_super;
pub mod dump_tree;
pub mod fiemap;
pub mod inode_resolve;
mod layout;
pub mod list_chunks;
pub mod logical_resolve;
pub mod min_dev_size;
pub mod rootid;
pub mod subvolid_resolve;
pub mod tree_stats;

use std::io::Write;

use clap::Subcommand;

use crate::args::Globals;
use crate::error::Failure;

/// The commands of this group.
#[derive(Debug, Subcommand)]
pub enum Inspect {
    /// Print superblocks
    DumpSuper(dump_super::DumpSuper),
    /// Print trees
    DumpTree(dump_tree::DumpTree),
    /// Print all paths of an inode of a subvolume
    InodeResolve(inode_resolve::InodeResolve),
    /// Print where chunks lie on the devices, and how full they are
    ListChunks(list_chunks::ListChunks),
    /// Print the files that refer to the data at an address
    LogicalResolve(logical_resolve::LogicalResolve),
    /// Print how small the device can become
    MinDevSize(min_dev_size::MinDevSize),
    /// Print the id of the subvolume that holds a file
    #[command(name = "rootid")]
    RootId(rootid::RootId),
    /// Print the path of a subvolume by its id
    #[command(name = "subvolid-resolve")]
    SubvolIdResolve(subvolid_resolve::SubvolIdResolve),
    /// Print how large trees are and how they lie on the disk
    TreeStats(tree_stats::TreeStats),
    /// Tell where the data of files are, and what is shared
    Fiemap(fiemap::Fiemap),
}

/// Does what was asked.
pub fn run(command: &Inspect, globals: &Globals, out: &mut dyn Write) -> Result<(), Failure> {
    match command {
        Inspect::DumpSuper(args) => dump_super::run(args, globals, out),
        Inspect::DumpTree(args) => dump_tree::run(args, globals, out),
        Inspect::InodeResolve(args) => inode_resolve::run(args, globals, out),
        Inspect::ListChunks(args) => list_chunks::run(args, globals, out),
        Inspect::LogicalResolve(args) => logical_resolve::run(args, globals, out),
        Inspect::MinDevSize(args) => min_dev_size::run(args, globals, out),
        Inspect::RootId(args) => rootid::run(args, globals, out),
        Inspect::SubvolIdResolve(args) => subvolid_resolve::run(args, globals, out),
        Inspect::TreeStats(args) => tree_stats::run(args, globals, out),
        Inspect::Fiemap(args) => fiemap::run(args, globals, out),
    }
}
