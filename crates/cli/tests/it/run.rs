//! Running the command and btrfs-progs.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use buttress_testkit::oracle;
use rustix::mount::{UnmountFlags, unmount};
use serde_json::Value;
use tempfile::TempDir;

/// What a program said.
pub struct Said {
    pub code: i32,
    pub out: Vec<u8>,
    pub err: String,
}

impl Said {
    pub fn of(output: Output) -> Said {
        Said {
            code: output.status.code().unwrap_or(-1),
            out: output.stdout,
            err: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }

    /// Standard output as text.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.out).into_owned()
    }
}

/// The command in a directory, under a name that is the last part of a path.
pub fn command_as<S: AsRef<OsStr>>(name: &str, directory: &Path, args: &[S]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_buttress"));
    std::os::unix::process::CommandExt::arg0(&mut command, name);
    command.args(args).current_dir(directory).env("TZ", "UTC");
    command
}

/// Runs it.
pub fn run_as<S: AsRef<OsStr>>(name: &str, directory: &Path, args: &[S]) -> Said {
    Said::of(command_as(name, directory, args).output().unwrap())
}

/// A directory to work in.
pub struct Place {
    directory: TempDir,
}

impl Place {
    pub fn new() -> Place {
        // Modes are compared: whoever runs this may have another one.
        rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o022));
        Place { directory: TempDir::new().unwrap() }
    }

    pub fn path(&self) -> &Path {
        self.directory.path()
    }

    pub fn join(&self, name: &str) -> PathBuf {
        self.path().join(name)
    }

    /// Runs the command with words separated by spaces.
    pub fn run(&self, line: &str) -> Said {
        self.run_words(&line.split_whitespace().collect::<Vec<_>>())
    }

    pub fn run_words<S: AsRef<OsStr>>(&self, args: &[S]) -> Said {
        run_as("buttress", self.path(), args)
    }

    /// Runs the command, which must succeed and be silent on standard error; its output.
    pub fn ok(&self, line: &str) -> String {
        let said = self.run(line);
        assert_eq!(said.code, 0, "buttress {line}: {}", said.err);
        assert_eq!(said.err, "", "buttress {line}");
        said.text()
    }

    /// Runs the command, which must succeed; its output as JSON under its one name beside the header.
    pub fn json(&self, line: &str) -> Value {
        let text = self.ok(&format!("--format json {line}"));
        let value: Value = serde_json::from_str(&text).unwrap();
        let object = value.as_object().unwrap();
        assert_eq!(object.keys().next().unwrap(), "__header", "{line}");
        assert_eq!(object["__header"]["version"], "1", "{line}");
        assert_eq!(object.len(), 2, "{line}");
        object.values().nth(1).unwrap().clone()
    }

    /// Runs the command, which must fail with exit code 1; what it said on standard error.
    pub fn fails(&self, line: &str) -> String {
        let said = self.run(line);
        assert_eq!(said.code, 1, "buttress {line}: {}", said.err);
        said.err
    }

    /// Unmounts what is mounted in `directory`, again while a child that another test has forked and that does not run its
    /// program yet holds our files there.
    pub fn umount(&self, directory: &str) -> Said {
        let mut command = command_as("buttress", self.path(), &["umount", directory]);
        Said::of(oracle::start_while("it is busy", &mut command).unwrap())
    }

    /// Runs a program of btrfs-progs, which must succeed; its output.
    pub fn progs(&self, program: &str, line: &str) -> Vec<u8> {
        let mut command = Command::new(program);
        command.args(line.split_whitespace()).current_dir(self.path()).env("TZ", "UTC");
        let said = Said::of(oracle::start(&mut command).unwrap());
        assert_eq!(said.code, 0, "{program} {line}: {}{}", said.text(), said.err);
        said.out
    }

    /// What both checkers say about an image must be that all is well.
    pub fn check(&self, image: &str) {
        self.ok(&format!("check --check-data-csum {image}"));
        self.progs("btrfs", &format!("check --check-data-csum {image}"));
    }
}

/// Whether btrfs-progs is there; says so when not.
pub fn have_progs() -> bool {
    let there = Command::new("btrfs").arg("--version").output().is_ok();
    if !there {
        println!("skipped: btrfs-progs is not installed");
    }
    there
}

/// How often mounting and unmounting are tried.
const ATTEMPTS: u32 = 200;

/// An image that the kernel has mounted.
pub struct KernelMount {
    directory: TempDir,
}

impl KernelMount {
    /// Mounts; `None`, with the reason printed, where that cannot be.
    pub fn of(place: &Place, image: &str) -> Option<KernelMount> {
        KernelMount::with(place, image, "loop")
    }

    /// Mounts read-only.
    pub fn read_only(place: &Place, image: &str) -> Option<KernelMount> {
        KernelMount::with(place, image, "loop,ro")
    }

    /// Mounts so that reading changes nothing.
    pub fn without_atime(place: &Place, image: &str) -> Option<KernelMount> {
        KernelMount::with(place, image, "loop,noatime")
    }

    /// Mounts with these options.
    pub fn with(place: &Place, image: &str, options: &str) -> Option<KernelMount> {
        if !rustix::process::geteuid().is_root() || !have_progs() {
            println!("skipped: the kernel mounts for root only");
            return None;
        }
        let directory = TempDir::new().unwrap();
        let mut said = String::new();
        // Other tests may have taken the loop device that was free a moment ago.
        for _ in 0..ATTEMPTS {
            let mut mount = Command::new("mount");
            mount.args(["-t", "btrfs", "-o", options]).arg(place.join(image)).arg(directory.path());
            let output = mount.output().unwrap();
            if output.status.success() {
                return Some(KernelMount { directory });
            }
            said = String::from_utf8_lossy(&output.stderr).into_owned();
            std::thread::sleep(std::time::Duration::from_millis(100));
        }
        panic!("mount {image}: {said}");
    }

    pub fn path(&self) -> &Path {
        self.directory.path()
    }
}

impl Drop for KernelMount {
    fn drop(&mut self) {
        for _ in 0..ATTEMPTS {
            let done = Command::new("umount").arg(self.path()).status();
            if done.is_ok_and(|status| status.success()) {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(100));
        }
        println!("{} is still mounted", self.path().display());
        // Never let the removal of the directory reach into the filesystem.
        let _ = unmount(self.path(), UnmountFlags::DETACH);
    }
}
