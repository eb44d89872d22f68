//! A mount in the foreground, as a child that can be killed.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::RwLock;
use std::thread::sleep;
use std::time::Duration;

use buttress_testkit::oracle;
use rustix::mount::UnmountFlags;
use rustix::process::{Pid, Signal};
use tempfile::TempDir;

/// Between two looks at something that takes a while.
const PAUSE: Duration = Duration::from_millis(10);
/// How often something is looked at before the test gives up: ten minutes on an idle machine.
const LOOKS: u32 = 60_000;

/// An image and a directory to mount it on.
pub struct Place {
    directory: TempDir,
}

impl Place {
    /// With a new image; `None`, with the reason printed, where there is no FUSE.
    pub fn new() -> Option<Place> {
        if OpenOptions::new().read(true).write(true).open("/dev/fuse").is_err() {
            println!("skipped: /dev/fuse cannot be opened");
            return None;
        }
        if Command::new("btrfs").arg("--version").output().is_err() {
            println!("skipped: btrfs-progs is not installed");
            return None;
        }
        let place = Place { directory: TempDir::new().unwrap() };
        std::fs::create_dir(place.mountpoint()).unwrap();
        place.make_image();
        Some(place)
    }

    /// Makes the image anew, so that every btrfs-progs since 6.1 reads it.
    pub fn make_image(&self) {
        let _the_first_time_there_is_none = std::fs::remove_file(self.image());
        buttress(&["mkfs", "-q", "-O", "^block-group-tree", "--size", "512M"], &[&self.image()]);
    }

    pub fn image(&self) -> PathBuf {
        self.directory.path().join("disk.img")
    }

    pub fn mountpoint(&self) -> PathBuf {
        self.directory.path().join("mnt")
    }

    /// Whether nobody holds the image now, or in a moment: a mount namespace that another test has just made keeps all mounts until
    /// that has taken them off there.
    pub fn is_free(&self) -> bool {
        let image = File::open(self.image()).unwrap();
        let free = (0..100).any(|_| {
            let free = image.try_lock().is_ok();
            if !free {
                std::thread::sleep(Duration::from_millis(10));
            }
            free
        });
        // Else a child that another test has forked would keep the lock until it runs its program.
        image.unlock().unwrap();
        free
    }

    /// Mounts.
    pub fn mount(&self, options: &str) -> Daemon<'_> {
        self.mount_source(&self.image(), options)
    }

    /// Mounts what leads to the image.
    pub fn mount_source(&self, source: &Path, options: &str) -> Daemon<'_> {
        let outside = std::fs::metadata(self.mountpoint()).unwrap().dev();
        let said = self.directory.path().join("said");
        let mut command = Command::new(env!("CARGO_BIN_EXE_buttress"));
        command.args(["mount", "-f", "-o", options]).arg(source).arg(self.mountpoint());
        command.stdin(Stdio::null()).stderr(File::create(&said).unwrap());
        let mut daemon = Daemon { place: self, child: command.spawn().unwrap(), ended: false };
        wait_until("the mount", || {
            let ended = daemon.child.try_wait().unwrap();
            assert!(ended.is_none(), "no mount: {}", std::fs::read_to_string(&said).unwrap());
            std::fs::metadata(self.mountpoint()).is_ok_and(|found| found.dev() != outside)
        });
        daemon
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if std::thread::panicking() {
            println!("the image is kept: {}", self.image().display());
            self.directory.disable_cleanup(true);
        }
        // The daemon of a mount in the background, should a test have failed before it ended.
        detach(&self.mountpoint());
    }
}

/// Takes off what may be mounted here.
fn detach(mountpoint: &Path) {
    if rustix::mount::unmount(mountpoint, UnmountFlags::DETACH).is_err() {
        let mut command = Command::new("fusermount3");
        let _perhaps_it_is_not_mounted = command.arg("-uz").arg(mountpoint).output();
    }
}

/// The process that serves a mount; killed and taken off whatever happens.
pub struct Daemon<'a> {
    place: &'a Place,
    child: Child,
    ended: bool,
}

impl Daemon<'_> {
    /// Without a last word.
    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Takes what a killed daemon left of the mount off, and returns when the image is free.
    pub fn clean_up(mut self) {
        detach(&self.place.mountpoint());
        wait_until("the lock of the image", || self.place.is_free());
        self.ended = true;
    }

    /// The same where a disk was mounted, which nobody locks.
    pub fn clean_up_disk(mut self) {
        detach(&self.place.mountpoint());
        self.ended = true;
    }

    /// Sends a signal and waits for the end.
    pub fn signal(mut self, signal: Signal) -> ExitStatus {
        rustix::process::kill_process(Pid::from_child(&self.child), signal).unwrap();
        self.finish()
    }

    /// Unmounts and waits for the end, which must be a good one.
    pub fn unmount(self) {
        umount(&self.place.mountpoint());
        assert!(self.place.is_free(), "umount returned while the image is held");
        self.ends_unmounted();
    }

    /// Somebody has unmounted it.
    pub fn ends_unmounted(mut self) {
        let status = self.finish();
        assert!(status.success(), "{status}: {}", self.said());
    }

    /// Has it stand still.
    pub fn stop(&self) {
        rustix::process::kill_process(Pid::from_child(&self.child), Signal::STOP).unwrap();
    }

    fn finish(&mut self) -> ExitStatus {
        let status = self.child.wait().unwrap();
        self.ended = true;
        status
    }

    /// The most memory that it has taken so far, in bytes, as the system counts it.
    pub fn memory_peak(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
        line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
    }

    /// Bytes of its heap, and how many of them may be in huge pages.
    pub fn heap(&self) -> (u64, u64) {
        let maps = std::fs::read_to_string(format!("/proc/{}/smaps", self.child.id())).unwrap();
        let (mut heap, mut huge, mut is_heap, mut size) = (0, 0, false, 0);
        for line in maps.lines() {
            let words: Vec<&str> = line.split_whitespace().collect();
            match words[0] {
                "Size:" => size = words[1].parse::<u64>().unwrap() << 10,
                "VmFlags:" if is_heap => {
                    heap += size;
                    huge += if words.contains(&"hg") { size } else { 0 };
                }
                // Its addresses, and last what it is.
                first if first.contains('-') => is_heap = line.ends_with("[heap]"),
                _ => {}
            }
        }
        (heap, huge)
    }

    /// What it wrote on standard error.
    pub fn said(&self) -> String {
        std::fs::read_to_string(self.place.directory.path().join("said")).unwrap()
    }
}

impl Drop for Daemon<'_> {
    fn drop(&mut self) {
        if !self.ended {
            let _perhaps_it_has_ended = self.child.kill();
            let _so_it_is_gone = self.child.wait();
            detach(&self.place.mountpoint());
        }
    }
}

/// Runs the command, which must succeed.
pub fn buttress(words: &[&str], paths: &[&Path]) {
    let said = try_buttress(words, paths);
    assert!(said.is_ok(), "buttress {words:?} {paths:?}: {}", said.unwrap_err());
}

/// Unmounts, again while a child that another test has forked and that does not run its program yet holds our files there.
pub fn umount(mountpoint: &Path) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_buttress"));
    let output = oracle::start_while("it is busy", command.arg("umount").arg(mountpoint)).unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "buttress umount {mountpoint:?}: {}: {said}", output.status);
}

/// Whoever makes a namespace of mounts has in it what other tests have mounted, and with that their disks, until he has taken
/// it off there: he writes; who wants a disk free at once reads.
pub static NAMESPACES: RwLock<()> = RwLock::new(());

/// umount(2), with no helper.
pub fn plain_umount(mountpoint: &Path) {
    wait_until("umount(2)", || {
        match rustix::mount::unmount(mountpoint, UnmountFlags::NOFOLLOW) {
            // A child that another test has forked has our files until it runs its program.
            Err(rustix::io::Errno::BUSY) => false,
            Err(rustix::io::Errno::PERM) => {
                let mut command = Command::new("fusermount3");
                command.arg("-u").arg(mountpoint).output().unwrap().status.success()
            }
            done => done.map(|()| true).unwrap(),
        }
    });
}

/// Runs the command; the error is what it wrote on standard error.
pub fn try_buttress(words: &[&str], paths: &[&Path]) -> Result<(), String> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_buttress"));
    let output = command.args(words).args(paths).output().unwrap();
    if output.status.success() {
        return Ok(());
    }
    Err(format!("{}: {}", output.status, String::from_utf8_lossy(&output.stderr)))
}

pub fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    for _ in 0..LOOKS {
        if done() {
            return;
        }
        sleep(PAUSE);
    }
    panic!("waited in vain for {what}");
}
