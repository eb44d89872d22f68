//! The other side: the kernel's btrfs on a loop device over an image in RAM.

use std::path::{Path, PathBuf};
use std::process::Command;

/// A mounted filesystem, unmounted and detached at the end.
pub struct Mount {
    dir: tempfile::TempDir,
    image: PathBuf,
}

/// Runs a command; its output, or why it failed.
pub fn run(program: &str, args: &[&str]) -> Result<String, String> {
    let out =
        Command::new(program).args(args).output().map_err(|error| format!("{program}: {error}"))?;
    if out.status.success() {
        return Ok(String::from_utf8_lossy(&out.stdout).into_owned());
    }
    Err(format!("{program} {}: {}", args.join(" "), String::from_utf8_lossy(&out.stderr).trim()))
}

/// The same, started in `dir`.
pub fn run_in(dir: &Path, program: &str, args: &[&str]) -> Result<String, String> {
    let mut command = Command::new(program);
    let out = command.current_dir(dir).args(args).output();
    let out = out.map_err(|error| format!("{program}: {error}"))?;
    match out.status.success() {
        true => Ok(String::from_utf8_lossy(&out.stdout).into_owned()),
        false => Err(format!("{program}: {}", String::from_utf8_lossy(&out.stderr).trim())),
    }
}

/// Where programs may leave what nobody reads.
pub fn scratch() -> PathBuf {
    std::env::temp_dir()
}

/// Everything of the filesystem at `path` is on its disk.
pub fn sync(path: &Path) -> Result<(), String> {
    let dir = std::fs::File::open(path).map_err(|error| error.to_string())?;
    rustix::fs::syncfs(&dir).map_err(|error| error.to_string())
}

/// The most memory that a process has used so far, in bytes.
pub fn peak_memory(pid: u32) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find(|line| line.starts_with("VmHWM:"))?;
    Some(line.split_whitespace().nth(1)?.parse::<u64>().ok()? * 1024)
}

/// A directory in RAM.
pub fn ram() -> tempfile::TempDir {
    let made = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir());
    made.expect("a temporary directory can be made")
}

/// Makes a filesystem with mkfs.btrfs on a new file of `size` bytes.
pub fn make(image: &Path, size: u64) -> Result<(), String> {
    make_as(image, size, &[])
}

/// The same with options.
fn make_as(image: &Path, size: u64, options: &[&str]) -> Result<(), String> {
    let file = std::fs::File::create(image).map_err(|error| error.to_string())?;
    file.set_len(size).map_err(|error| error.to_string())?;
    run("mkfs.btrfs", &[&["-q", "-f"], options, &[&image.to_string_lossy()]].concat()).map(drop)
}

/// An image that is there, mounted; unmounted and detached at the end.
pub struct Mounted<'a>(&'a Path);

impl Mounted<'_> {
    /// Mounts it on `at`, which is made where it is not there.
    pub fn new<'a>(image: &Path, at: &'a Path) -> Result<Mounted<'a>, String> {
        std::fs::create_dir_all(at).map_err(|error| error.to_string())?;
        run("mount", &["-o", "loop", &image.to_string_lossy(), &at.to_string_lossy()])?;
        Ok(Mounted(at))
    }

    /// Does `btrfs WORDS` with it.
    pub fn btrfs(&self, words: &[&str]) -> Result<String, String> {
        run("btrfs", &[words, &[&self.0.to_string_lossy()]].concat())
    }
}

impl Drop for Mounted<'_> {
    fn drop(&mut self) {
        if let Err(error) = run("umount", &[&self.0.to_string_lossy()]) {
            eprintln!("bench: {error}");
        }
    }
}

impl Mount {
    /// A fresh filesystem of `size` bytes, mounted.
    pub fn fresh(size: u64) -> Result<Mount, String> {
        Mount::fresh_as(size, &[])
    }

    /// The same with options of mkfs.btrfs.
    pub fn fresh_as(size: u64, options: &[&str]) -> Result<Mount, String> {
        if !rustix::process::geteuid().is_root() {
            return Err("the kernel's side needs root".to_owned());
        }
        let dir = ram();
        let image = dir.path().join("image");
        make_as(&image, size, options)?;
        std::fs::create_dir(dir.path().join("mnt")).map_err(|error| error.to_string())?;
        let mount = Mount { dir, image };
        mount.attach()?;
        Ok(mount)
    }

    /// Where it is mounted.
    pub fn path(&self) -> PathBuf {
        self.dir.path().join("mnt")
    }

    fn attach(&self) -> Result<(), String> {
        let path = self.path();
        run("mount", &["-o", "loop", &self.image.to_string_lossy(), &path.to_string_lossy()])
            .map(drop)
    }

    /// Unmounts and mounts again: nothing is cached.
    pub fn again(&self) -> Result<(), String> {
        run("umount", &[&self.path().to_string_lossy()])?;
        self.attach()
    }

    /// Everything is on the disk.
    pub fn sync(&self) -> Result<(), String> {
        sync(&self.path())
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        if let Err(error) = run("umount", &[&self.path().to_string_lossy()]) {
            eprintln!("bench: {error}");
        }
    }
}
