//! The oracles: `btrfs check`, `mkfs.btrfs`, a kernel mount.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use buttress_device::{Access, FileDevice};
use buttress_mkfs::{Environment, MkfsError, Options, Summary};
use buttress_testkit::oracle::{self, OracleError};
use tempfile::TempDir;

/// Runs a command and returns what it said; `None` when there is no such command.
pub fn run(program: &str, args: &[&str]) -> Option<Output> {
    match oracle::start(Command::new(program).args(args)) {
        Ok(output) => Some(output),
        // One of the directories that are searched may be closed to an ordinary user.
        Err(OracleError::Spawn { source, .. })
            if matches!(source.kind(), ErrorKind::NotFound | ErrorKind::PermissionDenied) =>
        {
            None
        }
        Err(error) => panic!("{program}: {error}"),
    }
}

/// Standard output of a command that must succeed.
pub fn stdout(program: &str, args: &[&str]) -> String {
    let output = run(program, args).unwrap_or_else(|| panic!("no {program}"));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {args:?}: {said}");
    String::from_utf8(output.stdout).unwrap()
}

/// Whether btrfs-progs is here; says that the test is skipped when not.
pub fn has_progs() -> bool {
    let here = run("btrfs", &["version"]).is_some() && run("mkfs.btrfs", &["--version"]).is_some();
    if !here {
        println!("skipped: no btrfs-progs");
    }
    here
}

/// Whether we may mount; says that this part is skipped when not.
pub fn may_mount() -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        println!("skipped: mounting needs root");
    }
    root
}

/// A directory with one image in it.
pub struct Image {
    dir: TempDir,
}

impl Image {
    pub fn new(size: u64) -> Image {
        let image = Image { dir: tempfile::tempdir().unwrap() };
        std::fs::File::create(image.path()).unwrap().set_len(size).unwrap();
        image
    }

    pub fn path(&self) -> PathBuf {
        self.dir.path().join("disk.img")
    }

    pub fn name(&self) -> String {
        self.path().display().to_string()
    }

    pub fn make(&self, options: &Options) -> Result<Summary, MkfsError> {
        let device = FileDevice::open(self.path(), Access::ReadWrite).unwrap();
        buttress_mkfs::make(&device, options, &mut Environment::system())
    }

    /// Fails unless `btrfs check` finds nothing to say.
    pub fn check(&self, what: &str) {
        let output = run("btrfs", &["check", "--check-data-csum", &self.name()]).unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned()
            + &String::from_utf8_lossy(&output.stderr);
        let clean = text.contains("no error found");
        let loud = ["ERROR", "WARNING", "error:", "wrong", "mismatch", "not match", "invalid"];
        let loud = text.lines().find(|line| loud.iter().any(|word| line.contains(word)));
        assert!(output.status.success() && clean && loud.is_none(), "{what}:\n{text}");
    }

    /// Mounts the image with the kernel, calls `work` and unmounts.
    pub fn mounted(&self, what: &str, work: impl FnOnce(&Path)) {
        let loop_device = LoopDevice::attach(&self.path());
        let point = self.dir.path().join("mnt");
        std::fs::create_dir_all(&point).unwrap();
        let target = point.display().to_string();
        let output = run("mount", &["-t", "btrfs", &loop_device.0, &target]).unwrap();
        assert!(output.status.success(), "{what}: {}", String::from_utf8_lossy(&output.stderr));
        let mount = Mount(target);
        work(&point);
        drop(mount);
    }
}

struct Mount(String);

impl Drop for Mount {
    /// A child that another test has forked and not yet run may hold a file of ours open for a moment.
    fn drop(&mut self) {
        retry(&format!("umount {}", self.0), || {
            let output = run("umount", &[&self.0])?;
            output.status.success().then_some(())
        });
    }
}

struct LoopDevice(String);

impl LoopDevice {
    /// Other tests take loop devices too, so a lost race is tried again.
    fn attach(path: &Path) -> LoopDevice {
        let path = path.to_str().unwrap();
        retry(&format!("attach {path} to a loop device"), || {
            let output = run("losetup", &["--find", "--show", path])?;
            let name = String::from_utf8(output.stdout).unwrap();
            output.status.success().then(|| LoopDevice(name.trim().into()))
        })
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        retry(&format!("detach {}", self.0), || {
            let output = run("losetup", &["--detach", &self.0])?;
            output.status.success().then_some(())
        });
    }
}

/// Tries until it works, for ten seconds.
fn retry<T>(what: &str, mut attempt: impl FnMut() -> Option<T>) -> T {
    for _ in 0..200 {
        if let Some(done) = attempt() {
            return done;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    panic!("cannot {what}");
}
