//! A kernel mount of an image as a value.

use std::path::Path;
use std::process::Command;
use std::thread::sleep;
use std::time::Duration;

use rustix::mount::{UnmountFlags, unmount};

use super::{KernelLog, LoopDevice, OracleError, Result, TempDir, at, run, temp_dir};

/// How often unmounting is tried.
const ATTEMPTS: u32 = 50;

/// An image mounted by the kernel on a directory of its own; unmounted and detached on drop.
#[derive(Debug)]
pub struct KernelMount {
    // Dropped in this order, after the unmount in `drop`.
    device: LoopDevice,
    dir: TempDir,
    log: KernelLog,
    mounted: bool,
}

impl KernelMount {
    /// Mounts `image` with btrfs mount options as in `compress=zstd,noatime`; empty for none.
    pub fn new(image: &Path, options: &str) -> Result<Self> {
        Self::on(LoopDevice::attach(image)?, options)
    }

    /// Mounts `image` read-only on a read-only loop device, so that nothing can change it.
    pub fn read_only(image: &Path, options: &str) -> Result<Self> {
        let options = if options.is_empty() { "ro".to_owned() } else { format!("ro,{options}") };
        Self::on(LoopDevice::attach_read_only(image)?, &options)
    }

    /// Mounts a loop device that is already attached, for example with an offset.
    pub fn on(device: LoopDevice, options: &str) -> Result<Self> {
        let log = KernelLog::start(&device.name())?;
        let dir = temp_dir()?;
        let mut command = Command::new("mount");
        command.args(["-t", "btrfs"]);
        if !options.is_empty() {
            command.args(["-o", options]);
        }
        run(command.arg(device.path()).arg(dir.path()))?;
        Ok(Self { device, dir, log, mounted: true })
    }

    /// Where it is mounted.
    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    /// The device under it.
    pub fn device(&self) -> &LoopDevice {
        &self.device
    }

    /// The kernel's log about this device since just before the mount.
    pub fn log(&mut self) -> &mut KernelLog {
        &mut self.log
    }

    /// Commits the filesystem.
    pub fn sync(&self) -> Result<()> {
        let dir = at("open", self.path(), std::fs::File::open(self.path()))?;
        at("syncfs", self.path(), rustix::fs::syncfs(&dir).map_err(Into::into))
    }

    /// Changes mount options in place, for example `ro`.
    pub fn remount(&self, options: &str) -> Result<()> {
        let options = format!("remount,{options}");
        run(Command::new("mount").args(["-o", &options]).arg(self.path()))?;
        Ok(())
    }

    /// Unmounts; an error if that fails or if the kernel complained at any time of the mount.
    pub fn finish(mut self) -> Result<()> {
        self.unmount()?;
        self.log.assert_quiet()
    }

    /// Unmounts, waiting for whoever still looks into it.
    fn unmount(&mut self) -> Result<()> {
        if !self.mounted {
            return Ok(());
        }
        let mut attempt = 0;
        loop {
            attempt += 1;
            match unmount(self.dir.path(), UnmountFlags::empty()) {
                Ok(()) => break,
                Err(errno) if attempt >= ATTEMPTS => {
                    let path = self.dir.path().to_owned();
                    return Err(OracleError::Io { what: "unmount", path, source: errno.into() });
                }
                Err(_) => sleep(Duration::from_millis(100)),
            }
        }
        self.mounted = false;
        Ok(())
    }
}

impl Drop for KernelMount {
    fn drop(&mut self) {
        if self.unmount().is_err() {
            // Never let the removal of the directory reach into the filesystem.
            let _ = unmount(self.dir.path(), UnmountFlags::DETACH);
        }
    }
}
