//! `balance`: block groups that fit filters are written anew elsewhere.
//!
//! Of an image, and by the command itself: it ends when that is done. What was moved when it is stopped stays moved, and nothing is left half done.

pub mod filter;
pub mod start;

use std::io::Write;

use clap::Subcommand;

use crate::args::Globals;
use crate::error::Failure;

/// The commands of this group.
#[derive(Debug, Subcommand)]
pub enum Balance {
    /// Write block groups anew, and so bring what they hold together
    ///
    /// Without filters all are: that takes as long as reading and writing all there is. Filters are joined by commas:
    /// `usage=50` (fewer than so many percent are used) or `usage=10..50`, `profiles=single|dup`, `devid=1`, with that `drange=START..END` (bytes of the
    /// device), `vrange=START..END` (logical addresses), `limit=5` or `limit=2..5` (so many groups at most), `stripes=1..2`,
    /// `convert=single` or `convert=dup`, and with that `soft` (not those that are so already).
    Start(start::Start),
}

/// Does what was asked.
pub fn run(command: &Balance, globals: &Globals, out: &mut dyn Write) -> Result<(), Failure> {
    match command {
        Balance::Start(args) => start::run(args, globals, out),
    }
}
