//! The subcommands, one file each.

pub mod completions;
pub mod inspect;
pub mod man;
pub mod mkfs;

use std::io::Write;

use crate::args::{Command, Globals};
use crate::error::Failure;

/// Does what was asked, results to `out`.
pub fn run(command: &Command, globals: &Globals, out: &mut dyn Write) -> Result<(), Failure> {
    match command {
        Command::Mkfs(args) => mkfs::run(args, globals, out),
        Command::InspectInternal(args) => inspect::run(args, globals, out),
        Command::Completions(args) => completions::run(args, out),
        Command::Man(args) => man::run(args, out),
    }
}
