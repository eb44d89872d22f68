//! `man`: the manual pages.

use std::io::Write;
use std::path::PathBuf;

use clap::{Args, CommandFactory};
use clap_mangen::Man as Page;

use crate::args::Cli;
use crate::error::{self, Failure};

/// Arguments of `man`.
#[derive(Debug, Args)]
pub struct Man {
    /// Write one page per command into this directory instead
    directory: Option<PathBuf>,
}

/// Prints the main page, or writes all pages.
pub fn run(args: &Man, out: &mut dyn Write) -> Result<(), Failure> {
    let Some(directory) = &args.directory else {
        return Ok(Page::new(Cli::command()).render(out)?);
    };
    clap_mangen::generate_to(Cli::command(), directory).map_err(|error| {
        Failure::new("cannot write the pages to", directory.display(), error::text(&error))
    })
}
