//! The suite must hold for the kernel's own btrfs, where a case that fails is wrong itself, and for
//! the mount of this project, as root and as an ordinary user.

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Child, Command};
use std::thread::sleep;
use std::time::Duration;

use buttress_fuse::{Ground, MountOptions};
use buttress_testkit::oracle::{self, Result};

/// Cases there must be at least.
const CASES_MIN: usize = 200;
/// Bytes of the image; sparse.
const IMAGE_BYTES: u64 = 512 << 20;

/// Set in the process that serves a mount: the image, where to mount it, and how.
const SERVE: [&str; 3] =
    ["BUTTRESS_SUITE_IMAGE", "BUTTRESS_SUITE_DIRECTORY", "BUTTRESS_SUITE_OPTIONS"];
/// How often the mount is looked for, [`PAUSE`] apart.
const ATTEMPTS: u32 = 600;
/// Between two looks.
const PAUSE: Duration = Duration::from_millis(50);

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
    as_both(mount.path());
    mount.finish()
}

/// Runs the suite as root and as an ordinary user.
fn as_both(dir: &Path) {
    for text in [suite(dir, &[]), suite(dir, &["--as-user"])] {
        assert!(text.contains(" passed, 0 failed, "), "{text}");
    }
}

/// Not a test by itself: the server of the mount, in a process of its own.
#[test]
fn serve() {
    let [Some(image), Some(dir), Some(words)] = SERVE.map(std::env::var_os) else { return };
    let mut options = MountOptions::default();
    options.apply(&words.to_string_lossy()).expect("options");
    buttress_fuse::mount(Path::new(&image), Path::new(&dir), &options, Ground::Foreground)
        .expect("the mount is served");
}

/// Starts the server and waits until its filesystem shows at `dir`.
fn start_server(image: &Path, dir: &Path, words: &str) -> Child {
    let device = || std::fs::metadata(dir).map(|found| found.dev()).ok();
    let before = device();
    let mut command = Command::new(std::env::current_exe().expect("the path of this program"));
    command.args(["--exact", "serve", "--nocapture"]);
    command.env(SERVE[0], image).env(SERVE[1], dir).env(SERVE[2], words);
    let mut server = command.spawn().expect("a server");
    for _ in 0..ATTEMPTS {
        if device().is_some_and(|device| Some(device) != before) {
            return server;
        }
        if let Ok(Some(status)) = server.try_wait() {
            panic!("the server ended before it had mounted: {status}");
        }
        sleep(PAUSE);
    }
    let _ = server.kill();
    panic!("nothing was mounted on {}", dir.display());
}

#[test]
fn our_mount_passes_every_case() -> Result<()> {
    our_mount_passes("allow_other")
}

/// Where the kernel offers io_uring, the other test is about that.
#[test]
fn our_mount_passes_every_case_without_io_uring() -> Result<()> {
    our_mount_passes("allow_other,noio_uring")
}

fn our_mount_passes(words: &str) -> Result<()> {
    if !oracle::root_or_skip() {
        return Ok(());
    }
    if !Path::new("/dev/fuse").exists() {
        oracle::skip("there is no /dev/fuse");
        return Ok(());
    }
    let dir = oracle::temp_dir()?;
    let (image, mounted) = (dir.path().join("image"), dir.path().join("mounted"));
    std::fs::create_dir(&mounted).expect("a directory to mount on");
    oracle::mkfs(&image, IMAGE_BYTES, &[])?;
    let mut server = start_server(&image, &mounted, words);
    // Whatever happens, nothing stays mounted.
    let passed = std::panic::catch_unwind(|| as_both(&mounted));
    let unmounted = buttress_fuse::unmount(&mounted, passed.is_err(), false);
    let ended = server.wait();
    if let Err(panic) = passed {
        std::panic::resume_unwind(panic);
    }
    unmounted.expect("it is unmounted");
    assert!(ended.expect("the server is waited for").success());
    oracle::check(&image, true).map(drop)
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
    let readme = include_str!("../../../README.md");
    assert!(
        readme.contains(&format!("| {count} cases, ")),
        "README has another number than {count}"
    );
}
