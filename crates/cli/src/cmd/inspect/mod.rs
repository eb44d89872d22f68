//! `inspect-internal`: the bytes of a filesystem in words.

pub mod dump_super;
pub mod dump_tree;

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
}

/// Does what was asked.
pub fn run(command: &Inspect, globals: &Globals, out: &mut dyn Write) -> Result<(), Failure> {
    match command {
        Inspect::DumpSuper(args) => dump_super::run(args, globals, out),
        Inspect::DumpTree(args) => dump_tree::run(args, globals, out),
    }
}
