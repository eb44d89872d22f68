//! `completions`: scripts for bash, zsh, fish and other shells.

use std::io::Write;

use clap::{Args, CommandFactory};
use clap_complete::Shell;

use crate::args::Cli;
use crate::error::Failure;

/// Arguments of `completions`.
#[derive(Debug, Args)]
pub struct Completions {
    /// The shell
    shell: Shell,
}

/// Prints the script.
pub fn run(args: &Completions, out: &mut dyn Write) -> Result<(), Failure> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "buttress", &mut script);
    Ok(out.write_all(&script)?)
}
