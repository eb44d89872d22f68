//! A mount of either kind as a value.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::thread::sleep;
use std::time::Duration;

use buttress_fuse::{Ground, MountError, MountOptions};

use super::asked;
use crate::ops::run::{Failure, Result, fail};
use crate::oracle::KernelMount;

/// The options of both: reading changes nothing, all subvolumes show.
const OPTIONS: &str = "noatime,subvolid=5";
/// Set for the process that serves: the image.
const SERVE_IMAGE: &str = "BUTTRESS_DIFFERENTIAL_IMAGE";
/// Set for the process that serves: where to mount it.
const SERVE_DIRECTORY: &str = "BUTTRESS_DIFFERENTIAL_DIRECTORY";
/// How often the mount is looked for, [`PAUSE`] apart.
const ATTEMPTS: u32 = 6000;
/// Between two looks.
const PAUSE: Duration = Duration::from_millis(10);

/// Who mounts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Who {
    /// The kernel's btrfs.
    Kernel,
    /// Our mount.
    Ours,
}

/// Serves a mount if this process was started for that, and then answers true. The program that uses a
/// [`Pair`](super::Pair) calls it first (a test: in a test with the name `serve`), as it is started again for each mount.
pub fn serve() -> bool {
    let (Some(image), Some(dir)) =
        (std::env::var_os(SERVE_IMAGE), std::env::var_os(SERVE_DIRECTORY))
    else {
        return false;
    };
    if let Err(error) = serve_here(Path::new(&image), Path::new(&dir)) {
        eprintln!("our mount: {error}");
        std::process::exit(1);
    }
    true
}

fn serve_here(image: &Path, dir: &Path) -> std::result::Result<(), MountError> {
    let mut options = MountOptions::default();
    options.apply(OPTIONS)?;
    options.apply("dev,suid")?;
    buttress_fuse::mount(image, dir, &options, Ground::Foreground)
}

/// A mounted image.
pub enum Mounted {
    /// By the kernel.
    Kernel(KernelMount),
    /// By us.
    Ours(Server),
}

/// The process of our mount.
pub struct Server {
    child: Child,
    dir: PathBuf,
}

impl Mounted {
    /// Mounts; ours on `dir`, which is made if it is not there.
    pub fn new(who: Who, image: &Path, dir: &Path) -> Result<Mounted> {
        match who {
            Who::Kernel => Ok(Mounted::Kernel(asked("mount", KernelMount::new(image, OPTIONS))?)),
            Who::Ours => Ok(Mounted::Ours(Server::start(image, dir)?)),
        }
    }

    /// Where it is mounted.
    pub fn path(&self) -> &Path {
        match self {
            Mounted::Kernel(mount) => mount.path(),
            Mounted::Ours(server) => &server.dir,
        }
    }

    /// Whose it is.
    pub fn who(&self) -> Who {
        match self {
            Mounted::Kernel(_) => Who::Kernel,
            Mounted::Ours(_) => Who::Ours,
        }
    }

    /// Unmounts; neither the kernel nor our process may have complained.
    pub fn end(self) -> Result<()> {
        match self {
            Mounted::Kernel(mount) => asked("unmount", mount.finish()),
            Mounted::Ours(mut server) => server.end(),
        }
    }
}

impl Server {
    fn start(image: &Path, dir: &Path) -> Result<Server> {
        asked("directory", std::fs::create_dir_all(dir))?;
        let device = || std::fs::metadata(dir).map(|found| found.dev()).ok();
        let before = device();
        let mut command = Command::new(asked("this program", std::env::current_exe())?);
        // The words for a test program; ours of a command are never looked at.
        command.args(["--exact", "serve", "--nocapture"]).stdout(std::process::Stdio::null());
        let child = command.env(SERVE_IMAGE, image).env(SERVE_DIRECTORY, dir).spawn();
        let mut server = Server { child: asked("start", child)?, dir: dir.to_owned() };
        for _ in 0..ATTEMPTS {
            if device().is_some_and(|device| Some(device) != before) {
                return Ok(server);
            }
            if let Ok(Some(status)) = server.child.try_wait() {
                return fail(format!("our mount ended: {status}"));
            }
            sleep(PAUSE);
        }
        fail("nothing was mounted")
    }

    fn end(&mut self) -> Result<()> {
        let mut attempt = 0;
        while let Err(error) = buttress_fuse::unmount(&self.dir, false, true) {
            attempt += 1;
            let busy = matches!(&error, MountError::Connect(error) if error.is_busy());
            if !busy || attempt > ATTEMPTS {
                return Err(Failure(format!("unmount: {error}")));
            }
            sleep(PAUSE);
        }
        let status = asked("the end of our mount", self.child.wait())?;
        if status.success() { Ok(()) } else { fail(format!("our mount: {status}")) }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Ok(None) = self.child.try_wait() {
            let _ = buttress_fuse::unmount(&self.dir, true, false);
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}
