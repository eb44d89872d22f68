//! `device`: what there is to know about the device of a filesystem.

pub mod stats;
pub mod usage;

use std::io::Write;

use clap::Subcommand;

use crate::args::Globals;
use crate::error::Failure;

/// The commands of this group.
#[derive(Debug, Subcommand)]
pub enum DeviceCommand {
    /// Print how often reading and writing it has failed
    ///
    /// It is Linux that counts; what it has counted is told.
    Stats(stats::Stats),
    /// Print what of it is in which kinds of block groups
    Usage(usage::UsageArgs),
}

/// Does what was asked.
pub fn run(command: &DeviceCommand, globals: &Globals, out: &mut dyn Write) -> Result<(), Failure> {
    match command {
        DeviceCommand::Stats(args) => stats::run(args, globals, out),
        DeviceCommand::Usage(args) => usage::run(args, globals, out),
    }
}
