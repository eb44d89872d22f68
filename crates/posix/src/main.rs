//! `posix-suite DIR`: does the filesystem under a directory behave as POSIX and Linux say?
//!
//! The cases are written from the manual pages and POSIX.1, in the manner of the well-known suites
//! for other systems: each looks at one promise. They pass on the kernel's own filesystems, which
//! is what makes a failure on another one worth a look. Only the directory given is written to.

mod call;
mod case;
mod cases;
mod helper;
#[path = "../../testkit/src/mapped.rs"]
mod mapped;
mod runner;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, ValueEnum};

use crate::helper::HELPER;

/// How results are printed.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, ValueEnum)]
pub enum Format {
    /// For people: failures, reasons of skips, a line of totals.
    #[default]
    Text,
    /// One JSON object with every case.
    Json,
}

/// Does the filesystem under a directory behave as POSIX and Linux say?
#[derive(Debug, Parser)]
#[command(name = "posix-suite", version)]
pub struct Arguments {
    /// A directory on the filesystem; everything happens in a new directory inside it.
    pub dir: PathBuf,
    /// Run the cases as the other user instead of root; cases that need root are skipped.
    #[arg(long)]
    pub as_user: bool,
    /// Number of the other user, and of that user's group.
    #[arg(long, default_value_t = 65_432)]
    pub user: u32,
    /// Run only cases whose name holds this text (`*` stands for anything).
    #[arg(long)]
    pub filter: Option<String>,
    /// A file of lines `CASE reason`: these cases are skipped (`*` stands for anything, `#` comments).
    #[arg(long)]
    pub skip: Option<PathBuf>,
    /// Print the names of the cases and do nothing.
    #[arg(long)]
    pub list: bool,
    /// How results are printed.
    #[arg(long, value_enum, default_value_t)]
    pub format: Format,
    /// Also print every case that passes.
    #[arg(long, short)]
    pub verbose: bool,
}

fn main() -> ExitCode {
    if std::env::args().nth(1).as_deref() == Some(HELPER) {
        return match helper::serve() {
            Ok(()) => ExitCode::SUCCESS,
            Err(_) => ExitCode::FAILURE,
        };
    }
    match runner::run(&Arguments::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("posix-suite: {error}");
            ExitCode::from(2)
        }
    }
}
