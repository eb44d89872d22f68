//! `rescue`: what helps a filesystem that does not open.

pub mod zero_log;

use std::io::Write;

use clap::Subcommand;

use crate::args::Globals;
use crate::error::Failure;

/// The commands of this group.
#[derive(Debug, Subcommand)]
pub enum Rescue {
    /// Give up a log that cannot be replayed, and with it what was fsynced after the last commit
    ZeroLog(zero_log::ZeroLog),
}

/// Does what was asked.
pub fn run(command: &Rescue, globals: &Globals, out: &mut dyn Write) -> Result<(), Failure> {
    match command {
        Rescue::ZeroLog(args) => zero_log::run(args, globals, out),
    }
}
