//! btrfs-progs: make, check, and everything else by name.

use std::path::Path;
use std::process::Command;

use super::{OracleError, Result, at, both, run, sparse_file, start};

/// Makes a sparse file of `size` bytes at `path` and a filesystem on it with the system's
/// `mkfs.btrfs`.
pub fn mkfs(path: &Path, size: u64, args: &[&str]) -> Result<()> {
    sparse_file(path, size)?;
    run(Command::new("mkfs.btrfs").args(["-q", "-f"]).args(args).arg(path))?;
    Ok(())
}

/// Makes one filesystem over several devices (loop devices or files).
pub fn mkfs_devices(devices: &[&Path], args: &[&str]) -> Result<()> {
    run(Command::new("mkfs.btrfs").args(["-q", "-f"]).args(args).args(devices))?;
    Ok(())
}

/// Runs `btrfs` with these arguments and gives its standard output.
pub fn btrfs(args: &[&str]) -> Result<String> {
    tool("btrfs", args)
}

/// Runs any program and gives its standard output.
pub fn tool(program: &str, args: &[&str]) -> Result<String> {
    let output = run(Command::new(program).args(args))?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// What `btrfs check` before 6.7 says of simple quotas, which it does not read.
pub const SIMPLE_QUOTAS: &str = "unsupported option features (10000)";

/// `btrfs check --readonly`, with `--check-data-csum` when `data`: Ok only if it exits 0 and every
/// line it prints is one that a clean filesystem gets, and our own checker agrees, which is alone where the
/// other one is older than simple quotas. Gives the report.
pub fn check(path: &Path, data: bool) -> Result<String> {
    let (success, report) = check_verdict(path, data)?;
    let is_clean = success && report.lines().all(is_clean_line);
    if is_clean || report.contains(SIMPLE_QUOTAS) {
        super::check_ours(path, data)?;
        return Ok(report);
    }
    Err(OracleError::Unclean { path: path.to_owned(), report })
}

/// `btrfs check --readonly`, with `--check-data-csum` when `data`: whether it exits 0, and its report.
pub fn check_verdict(path: &Path, data: bool) -> Result<(bool, String)> {
    at("open", path, std::fs::File::open(path).map(drop))?;
    let mut command = Command::new("btrfs");
    command.args(["check", "--readonly"]);
    if data {
        command.arg("--check-data-csum");
    }
    let output = start(command.arg(path))?;
    Ok((output.status.success(), both(&output)))
}

/// What the checker prints about a filesystem without faults. Anything else is a complaint, which
/// catches the warnings that do not change its exit status.
const CLEAN_LINES: [&str; 11] = [
    "Opening filesystem to check...",
    "Checking filesystem on ",
    "UUID: ",
    "total csum bytes: ",
    "total tree bytes: ",
    "total fs tree bytes: ",
    "total extent tree bytes: ",
    "btree space waste bytes: ",
    "file data blocks allocated: ",
    " referenced ",
    "skip data csum verification for metadata dump",
];

/// True for a line of the checker that says nothing bad.
pub fn is_clean_line(line: &str) -> bool {
    let stage = line.starts_with('[') && line.contains("/7] checking ");
    let found = line.starts_with("found ") && line.ends_with("no error found");
    line.trim().is_empty()
        || stage
        || found
        || CLEAN_LINES.iter().any(|known| line.starts_with(known))
}

#[cfg(test)]
mod tests {
    use super::is_clean_line;

    #[test]
    fn complaints_are_told_from_progress() {
        for line in [
            "[1/7] checking root items",
            "[7/7] checking quota groups skipped (not enabled on this FS)",
            "found 147456 bytes used, no error found",
            " referenced 0",
            "",
        ] {
            assert!(is_clean_line(line), "{line}");
        }
        for line in [
            "found 147456 bytes used, error(s) found",
            "cache and super generation don't match, space cache will be invalidated",
            "ref mismatch on [13631488 4096] extent item 1, found 0",
            "ERROR: errors found in fs roots",
        ] {
            assert!(!is_clean_line(line), "{line}");
        }
    }
}
