//! Filesystems in user space, mounted: ours, the null filesystem on our own session, and fuse2fs.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::linux;

/// What is mounted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Served {
    /// buttress on a fresh image.
    Ours,
    /// A map in memory on the same FUSE session: what the kernel and the protocol cost.
    Null,
    /// ext4 through libfuse.
    Fuse2fs,
}

impl Served {
    /// What figures call it.
    pub fn name(self) -> &'static str {
        match self {
            Served::Ours => "through the mount",
            Served::Null => "null filesystem, same session",
            Served::Fuse2fs => "fuse2fs",
        }
    }
}

/// A mount with the process that serves it; unmounted at the end.
pub struct FuseMount {
    what: Served,
    path: PathBuf,
    server: Child,
    _dir: tempfile::TempDir,
}

/// Mounts a fresh filesystem of `size` bytes.
pub fn serve(what: Served, size: u64) -> Result<FuseMount, String> {
    let dir = linux::ram();
    let image = dir.path().join("image");
    if what == Served::Ours {
        crate::create::fresh(&image, size);
    }
    start(what, size, &image, dir)
}

/// Mounts our filesystem on an image that is there.
pub fn serve_image(image: &Path) -> Result<FuseMount, String> {
    start(Served::Ours, 0, image, linux::ram())
}

fn start(
    what: Served,
    size: u64,
    image: &Path,
    dir: tempfile::TempDir,
) -> Result<FuseMount, String> {
    if !Path::new("/dev/fuse").exists() {
        return Err("mounts need /dev/fuse".to_owned());
    }
    let path = dir.path().join("mnt");
    std::fs::create_dir(&path).map_err(|error| error.to_string())?;
    let mut command = match what {
        Served::Ours => Command::new(sibling("buttress")?),
        Served::Null => Command::new(sibling("examples/null")?),
        Served::Fuse2fs => Command::new("fuse2fs"),
    };
    match what {
        // Servers of databases run as users of their own.
        Served::Ours => {
            command.args(["mount", "--foreground", "-o", "allow_other"]).arg(image).arg(&path);
        }
        Served::Null => drop(command.arg(&path).arg("again")),
        Served::Fuse2fs => {
            let file = std::fs::File::create(image).map_err(|error| error.to_string())?;
            file.set_len(size).map_err(|error| error.to_string())?;
            linux::run("mkfs.ext4", &["-q", "-F", &image.to_string_lossy()])?;
            command.arg("-f").arg(image).arg(&path);
        }
    }
    let server = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn();
    let server = server.map_err(|error| format!("{}: {error}", what.name()))?;
    let mount = FuseMount { what, path, server, _dir: dir };
    mount.wait_until_there()?;
    Ok(mount)
}

/// A program built beside this one.
pub fn sibling(name: &str) -> Result<PathBuf, String> {
    let program = std::env::current_exe().map_err(|error| error.to_string())?.with_file_name(name);
    match program.exists() {
        true => Ok(program),
        false => Err(format!("{name} is missing: `make bench` builds it")),
    }
}

impl FuseMount {
    /// Where it is mounted.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The most memory that the serving process has used so far, in bytes.
    pub fn peak_memory(&self) -> Option<u64> {
        linux::peak_memory(self.server.id())
    }

    /// The same null filesystem, mounted anew by itself: what the kernel had cached is forgotten.
    pub fn again(&self) -> Result<(), String> {
        linux::run("fusermount3", &["-u", &self.path.to_string_lossy()])?;
        self.wait_until_there()
    }

    fn is_there(&self) -> bool {
        let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
        mounts.lines().any(|line| line.split(' ').nth(1) == self.path.to_str())
    }

    fn wait_until_there(&self) -> Result<(), String> {
        let until = Instant::now() + Duration::from_secs(20);
        while !self.is_there() {
            if Instant::now() > until {
                return Err(format!("{}: it does not mount", self.what.name()));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }
}

impl Drop for FuseMount {
    fn drop(&mut self) {
        let path = self.path.to_string_lossy().into_owned();
        if self.what == Served::Null {
            // It would mount itself again, and has nothing to lose.
            let _killed = self.server.kill();
        }
        if self.is_there()
            && let Err(error) = linux::run("fusermount3", &["-u", &path])
        {
            eprintln!("bench: {error}");
            let _killed = self.server.kill();
        }
        let _status = self.server.wait();
    }
}
