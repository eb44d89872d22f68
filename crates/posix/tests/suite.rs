//! The suite must hold for the kernel's own btrfs: a case that fails there is wrong itself.

use std::path::Path;
use std::process::Command;

use buttress_testkit::oracle::{self, Result};

/// Cases there must be at least.
const CASES_MIN: usize = 200;
/// Bytes of the image; sparse.
const IMAGE_BYTES: u64 = 512 << 20;

/// Runs the suite on `dir` and gives its output; panics if a case failed.
fn suite(dir: &Path, arguments: &[&str]) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_posix-suite"));
    let output = command.arg(dir).args(arguments).output().expect("the suite starts");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}:\n{text}{errors}");
    text
}

#[test]
fn kernel_btrfs_passes_every_case() -> Result<()> {
    if !oracle::root_or_skip() {
        return Ok(());
    }
    let dir = oracle::temp_dir()?;
    let image = dir.path().join("image");
    oracle::mkfs(&image, IMAGE_BYTES, &[])?;
    let mount = oracle::KernelMount::new(&image, "")?;
    let as_root = suite(mount.path(), &[]);
    let as_user = suite(mount.path(), &["--as-user"]);
    mount.finish()?;
    for text in [as_root, as_user] {
        assert!(text.contains(" passed, 0 failed, "), "{text}");
    }
    Ok(())
}

#[test]
fn there_are_enough_cases_and_their_names_are_unique() {
    let text = suite(Path::new("."), &["--list"]);
    let mut names: Vec<_> = text.lines().collect();
    let count = names.len();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), count, "names are unique");
    assert!(count >= CASES_MIN, "{count} cases");
}
