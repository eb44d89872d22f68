//! A loop device as a value.
//!
//! Tests run at the same time and share the machine's loop devices, so attaching is retried while
//! others hold them, and the btrfs device registry is told to forget the device before it goes
//! back: two copies of one image would otherwise be taken for each other by the kernel.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::sleep;
use std::time::Duration;

use super::{Result, run};

/// How often attaching is tried, [`PAUSE`] apart.
const ATTEMPTS: u32 = 100;
/// Between two attempts.
const PAUSE: Duration = Duration::from_millis(100);

/// An attached loop device; detached on drop.
#[derive(Debug)]
pub struct LoopDevice {
    path: PathBuf,
}

impl LoopDevice {
    /// Attaches `image` for reading and writing.
    pub fn attach(image: &Path) -> Result<Self> {
        Self::attach_with(image, &[])
    }

    /// Attaches `image` read-only: not even a log replay can write to it.
    pub fn attach_read_only(image: &Path) -> Result<Self> {
        Self::attach_with(image, &["--read-only"])
    }

    /// Attaches with more `losetup` arguments, for example `--offset=1048576`.
    pub fn attach_with(image: &Path, args: &[&str]) -> Result<Self> {
        let mut attempt = 0;
        loop {
            attempt += 1;
            let made = run(Command::new("losetup").args(["-f", "--show"]).args(args).arg(image));
            match made {
                Ok(output) => {
                    let name = String::from_utf8_lossy(&output.stdout).trim().to_owned();
                    return Ok(Self { path: PathBuf::from(name) });
                }
                Err(error) if attempt >= ATTEMPTS => return Err(error),
                Err(_) => sleep(PAUSE),
            }
        }
    }

    /// `/dev/loopN`.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// `loopN`, as the kernel's log calls it.
    pub fn name(&self) -> String {
        self.path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        let _ = run(Command::new("btrfs").args(["device", "scan", "--forget"]).arg(&self.path));
        for _ in 0..ATTEMPTS {
            if run(Command::new("losetup").arg("-d").arg(&self.path)).is_ok() {
                return;
            }
            sleep(PAUSE);
        }
        eprintln!("could not detach {}", self.path.display());
    }
}
