//! The real thing: the kernel's btrfs and btrfs-progs, wrapped so that a test can ask them.
//!
//! Everything here either answers with what the tool said or with a typed error that carries it.
//! Loop devices and mounts are values; dropping them gives the device back. Most of it needs root:
//! a test asks [`is_root`] first and says with [`skip`] why it does nothing.

mod checker;
mod fiemap;
mod klog;
mod loopdev;
mod mount;
mod progs;

use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

pub use checker::{check_ours, our_report};
pub use fiemap::{Question, Record, fiemap};
pub use klog::KernelLog;
pub use loopdev::LoopDevice;
pub use mount::KernelMount;
pub use progs::{
    SIMPLE_QUOTAS, btrfs, check, check_verdict, is_clean_line, mkfs, mkfs_devices, tool,
};
pub use tempfile::TempDir;

/// Why the real thing could not be asked, or what it complained about.
#[derive(Debug, thiserror::Error)]
pub enum OracleError {
    /// The program could not be started at all.
    #[error("cannot run {program}: {source}")]
    Spawn {
        /// Name of the program.
        program: String,
        /// What the system said.
        source: io::Error,
    },
    /// The program ran and failed.
    #[error("{command}: {status}\n{output}")]
    Failed {
        /// The command line.
        command: String,
        /// Its exit status in words.
        status: String,
        /// Standard output and error together.
        output: String,
    },
    /// `btrfs check` found something; the whole report.
    #[error("btrfs check complains about {}:\n{report}", path.display())]
    Unclean {
        /// The image.
        path: PathBuf,
        /// Everything the checker printed.
        report: String,
    },
    /// `buttress check` found something; the whole report.
    #[error("buttress check complains about {}:\n{report}", path.display())]
    OursUnclean {
        /// The image.
        path: PathBuf,
        /// Every issue that was kept.
        report: String,
    },
    /// The kernel logged warnings or errors about the device.
    #[error("the kernel complains about {device}:\n{}", lines.join("\n"))]
    Complaints {
        /// The loop device.
        device: String,
        /// The log lines.
        lines: Vec<String>,
    },
    /// A system call on a path failed.
    #[error("{what} {}: {source}", path.display())]
    Io {
        /// What was tried.
        what: &'static str,
        /// On which path.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

/// Result of asking the real thing.
pub type Result<T> = std::result::Result<T, OracleError>;

/// Attaches a path and an intention to an I/O result.
pub(crate) fn at<T>(what: &'static str, path: &Path, result: io::Result<T>) -> Result<T> {
    result.map_err(|source| OracleError::Io { what, path: path.to_owned(), source })
}

/// True when this process may mount and make loop devices.
pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Says on standard output that a test does nothing here, and why.
pub fn skip(reason: &str) {
    println!("skipped: {reason}");
}

/// True for root; otherwise prints that the test was skipped. The guard each kernel test opens with.
pub fn root_or_skip() -> bool {
    let root = is_root();
    if !root {
        skip("needs root for loop devices and mounts");
    }
    root
}

/// A directory of its own for one test, removed on drop.
///
/// Modes are compared wherever files are made: from the first of them on they are made as most people's are. Only from the first:
/// a umask is that of all threads, and a test that wants another keeps it beside others.
pub fn temp_dir() -> Result<TempDir> {
    static USUAL: std::sync::Once = std::sync::Once::new();
    USUAL.call_once(|| {
        rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o022));
    });
    let made = tempfile::Builder::new().prefix("buttress-").tempdir();
    at("make a temporary directory in", &std::env::temp_dir(), made)
}

/// Makes a file of `size` bytes, all hole.
pub fn sparse_file(path: &Path, size: u64) -> Result<()> {
    let file = at("create", path, std::fs::File::create(path))?;
    at("extend", path, file.set_len(size))
}

/// Copies an image keeping its holes.
pub fn copy_sparse(from: &Path, to: &Path) -> Result<()> {
    run(Command::new("cp").args(["--sparse=always", "--reflink=auto"]).arg(from).arg(to))?;
    Ok(())
}

/// Runs a command to its end in the C locale; an exit status other than zero is an error.
pub fn run(command: &mut Command) -> Result<Output> {
    let output = start(command)?;
    if output.status.success() {
        return Ok(output);
    }
    Err(OracleError::Failed {
        command: format!("{command:?}"),
        status: output.status.to_string(),
        output: both(&output),
    })
}

/// How often a command is tried that another test is in the way of, [`PAUSE`] apart.
const ATTEMPTS: u32 = 200;
/// Between two attempts.
const PAUSE: Duration = Duration::from_millis(50);

/// Runs a command whatever its exit status. btrfs-progs look at all loop devices to see whether an image is mounted, and give
/// up when another test detaches one of them in that moment: then it is tried again.
pub fn start(command: &mut Command) -> Result<Output> {
    start_while("mount status", command)
}

/// The same, again for ten seconds at most as long as it fails and says `passing`: what another test causes, and ends.
pub fn start_while(passing: &str, command: &mut Command) -> Result<Output> {
    let program = command.get_program().to_string_lossy().into_owned();
    command.env("LC_ALL", "C").stdin(std::process::Stdio::null());
    let mut attempt = 0;
    loop {
        attempt += 1;
        let output = command
            .output()
            .map_err(|source| OracleError::Spawn { program: program.clone(), source })?;
        let met = String::from_utf8_lossy(&output.stderr).contains(passing);
        if output.status.success() || !met || attempt >= ATTEMPTS {
            return Ok(output);
        }
        std::thread::sleep(PAUSE);
    }
}

/// Standard output followed by standard error.
fn both(output: &Output) -> String {
    let mut text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.push_str(&String::from_utf8_lossy(&output.stderr));
    text
}
