//! `balance`: block groups that fit filters are written anew elsewhere.
//!
//! On an image the command itself does it; on a live mount the process behind it does, and goes on when the command is killed. What was moved
//! when it is stopped stays moved, and nothing is left half done.

pub mod filter;
pub mod start;
pub mod status;
pub mod stop;

use std::ffi::OsString;
use std::io::Write;

use clap::{Args, Subcommand};

use crate::args::Globals;
use crate::error::Failure;

/// The commands of this group.
#[derive(Debug, Subcommand)]
pub enum BalanceCommand {
    /// Write block groups anew, and so bring what they hold together
    ///
    /// Without filters all are: that takes as long as reading and writing all there is. Filters are joined by commas:
    /// `usage=50` (fewer than so many percent are used) or `usage=10..50`, `profiles=single|dup`, `devid=1`, with that `drange=START..END` (bytes of the
    /// device), `vrange=START..END` (logical addresses), `limit=5` or `limit=2..5` (so many groups at most), `stripes=1..2`,
    /// `convert=single` or `convert=dup`, and with that `soft` (not those that are so already).
    ///
    /// Ctrl-C cancels it, once what is being moved has been. Killed, or when the machine goes down, it is left paused.
    Start(Box<start::Start>),
    /// Pause a balance that runs on a live mount
    ///
    /// It goes on with `resume`, or with the next mount, unless that says `-o skip_balance`.
    Pause(Place),
    /// End a balance that runs on a live mount, or forget one that is paused
    ///
    /// What was moved stays so.
    Cancel(Place),
    /// Go on with a balance that was paused or interrupted
    ///
    /// Block groups that are fuller than 90 percent are left alone then, as it has written such; as on Linux.
    Resume(start::Resume),
    /// Print how far a balance is
    ///
    /// The exit code is 1 where one runs or is paused, and 0 where there is none, as with btrfs-progs.
    Status(status::Status),
}

/// Exit code of btrfs-progs where there is no balance to pause, cancel or go on with.
const NONE_RUNS: u8 = 2;

/// Where to do it.
#[derive(Debug, Args)]
pub struct Place {
    /// A path on a live mount, or DEVICE: an unmounted image or disk
    #[arg(value_name = "TARGET")]
    target: OsString,
}

/// Does what was asked.
pub fn run(
    command: &BalanceCommand,
    globals: &Globals,
    out: &mut dyn Write,
) -> Result<(), Failure> {
    match command {
        BalanceCommand::Start(args) => start::run(args, globals, out),
        BalanceCommand::Pause(args) => stop::pause(args, globals),
        BalanceCommand::Cancel(args) => stop::cancel(args, globals),
        BalanceCommand::Resume(args) => start::resume(args, globals, out),
        BalanceCommand::Status(args) => status::run(args, globals, out),
    }
}
