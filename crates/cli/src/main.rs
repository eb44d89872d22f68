//! The `buttress` command.
//!
//! It is installed under several names and behaves as the tool whose name it bears: `btrfs` is the same command,
//! `mkfs.btrfs` is `buttress mkfs`, and `mount.fuse.buttress` and `umount.fuse.buttress` are the helpers that mount(8), fstab and umount(8)
//! call. Subcommands may be abbreviated as long as they stay unambiguous: `buttress su li`, `buttress fi us`.
//!
//! Layers, top down: [`args`] (words become a command; [`absent`]: those of btrfs-progs that do not), [`cmd`] (one file per subcommand), [`device`] (from a path to a
//! device or filesystem), and beside them [`error`], [`output`] and [`quote`], which say how failures, results and names look. Results go
//! to standard output, everything else to standard error. Exit codes: 0 done, 1 failed, 2 not understood (1 under
//! the names of btrfs-progs, as there; 2 as `btrfs` where `balance pause`, `cancel` or `resume` finds no balance), 64 where `device stats -c`
//! finds a counter that is not zero, 128 and the number of a signal that has ended a copy between two files.

#![allow(
    rustdoc::broken_intra_doc_links,
    reason = "comments on arguments are their help: DEVICE[:PATH]"
)]

/// Says something on standard error. Where that cannot be written nobody listens, which is no reason to stop.
macro_rules! complain {
    ($($arg:tt)*) => {{
        let _nobody_listens = std::io::Write::write_fmt(
            &mut std::io::stderr(),
            format_args!("{}\n", format_args!($($arg)*)),
        );
    }};
}

mod absent;
mod args;
mod clock;
mod cmd;
mod device;
mod error;
mod interrupted;
mod output;
mod quote;
mod ranges;
mod seen;
mod units;
mod vfs;
mod vnode;

use std::io::{self, BufWriter, Write};
use std::process::ExitCode;
use std::sync::Arc;

use args::{Cli, Parsed};
use error::Failure;
use quote::Printable;
use signal_hook::consts::signal::SIGXFSZ;

fn main() -> ExitCode {
    // What is written past a limit on the size of files fails then, and does not end a mount.
    let _else_it_ends = signal_hook::flag::register(SIGXFSZ, Arc::default());
    let cli = match args::parse(std::env::args_os().collect()) {
        Parsed::Command(cli) => cli,
        Parsed::Message { text, code } => return say(&text, code),
    };
    match run(&cli) {
        Ok(()) => ExitCode::SUCCESS,
        // Whoever reads our output has enough of it.
        Err(failure) if failure.is_broken_pipe() => ExitCode::SUCCESS,
        Err(failure) => {
            if !failure.is_said() {
                failure.say(cli.globals.format);
            }
            ExitCode::from(failure.code())
        }
    }
}

fn run(cli: &Cli) -> Result<(), Failure> {
    let mut out = BufWriter::new(io::stdout().lock());
    if quote::for_terminal() && cli.command.writes_text() {
        let mut out = Printable::new(out);
        cmd::run(&cli.command, &cli.globals, &mut out)?;
        return Ok(out.flush()?);
    }
    cmd::run(&cli.command, &cli.globals, &mut out)?;
    Ok(out.flush()?)
}

/// Help and version go to standard output, complaints to standard error.
fn say(text: &str, code: u8) -> ExitCode {
    let written = match code {
        0 => io::stdout().write_all(text.as_bytes()),
        _ => io::stderr().write_all(text.as_bytes()),
    };
    match written {
        Ok(()) => ExitCode::from(code),
        Err(_) => ExitCode::FAILURE,
    }
}
