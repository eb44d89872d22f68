//! A mount of either kind as a value.
//!
//! Ours may have its block groups emptied all the time ([`EMPTY`]): nothing that anybody can see changes by it, so answers stay those of the kernel.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::Duration;

use buttress::{Errno, Filesystem, Node, Options};
use buttress_fuse::daemon::{self, Place};
use buttress_fuse::mount::engine::Engine;
use buttress_fuse::{Ground, MountError, MountOptions, budget};

use super::asked;
use crate::ops::run::{Failure, Result, fail};
use crate::oracle::KernelMount;

/// The options of both: reading changes nothing, all subvolumes show.
const OPTIONS: &str = "noatime,subvolid=5";
/// Linux commits by itself after so many seconds: later than anybody copies what it has not committed.
const LATE: &str = ",commit=3600";
/// Set for the process that serves: the image.
const SERVE_IMAGE: &str = "BUTTRESS_DIFFERENTIAL_IMAGE";
/// Set for the process that serves: where to mount it.
const SERVE_DIRECTORY: &str = "BUTTRESS_DIFFERENTIAL_DIRECTORY";
/// Set for the process that serves: a thread of it empties one block group after the other, and rests so many milliseconds after each.
const EMPTY: &str = "BUTTRESS_DIFFERENTIAL_EMPTY";
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
    let rest = std::env::var(EMPTY).ok().and_then(|text| text.parse().ok());
    match rest.map(Duration::from_millis) {
        Some(rest) => serve_while_emptied(image, dir, &options, rest),
        None => buttress_fuse::mount(image, dir, &options, Ground::Foreground),
    }
}

/// The same while block groups are emptied.
fn serve_while_emptied(
    image: &Path,
    dir: &Path,
    options: &MountOptions,
    rest: Duration,
) -> std::result::Result<(), MountError> {
    let place = Place::new(image, dir)?;
    let fs = Filesystem::open(image, Options::read_write().memory(budget::by_default()))?;
    let is_over = AtomicBool::new(false);
    let top = Node::ROOT.subvolume;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut number = 0;
            while !is_over.load(Ordering::Relaxed) {
                if let Err(why) = empty_one(&fs, number) {
                    // Whoever waits for this process hears of it.
                    eprintln!("our mount, block group {number}: {why}");
                    std::process::exit(1);
                }
                number += 1;
                sleep(rest);
            }
            println!("{number} block groups were emptied");
        });
        let served = daemon::serve(Engine::new(fs.clone()), top, &place, options, &mut None);
        is_over.store(true, Ordering::Relaxed);
        served
    })?;
    fs.commit()?;
    Ok(fs.close()?)
}

/// Empties a block group, chosen by a number. It may have no room elsewhere, or be gone.
fn empty_one(fs: &Filesystem, number: usize) -> std::result::Result<(), String> {
    let groups = fs.block_groups();
    let Some(group) = groups.get(number % groups.len().max(1)) else { return Ok(()) };
    match fs.empty_block_group(group.start, |_| true) {
        Ok(done) => {
            let no_space = buttress::Error::NoSpace.to_string();
            let failed = done.failed.into_iter().find(|(_, why)| *why != no_space);
            failed.map_or(Ok(()), |(bytenr, why)| Err(format!("{bytenr} stays: {why}")))
        }
        Err(error) if matches!(error.errno(), Errno::NOSPC | Errno::BUSY | Errno::NOENT) => Ok(()),
        Err(error) => Err(error.to_string()),
    }
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
    /// Mounts; ours on `dir`, which is made if it is not there. Its block groups are emptied with rests of so many milliseconds, if that is asked for.
    pub fn new(who: Who, image: &Path, dir: &Path, rest: Option<u64>) -> Result<Mounted> {
        match who {
            Who::Kernel => Ok(Mounted::Kernel(asked(
                "mount",
                KernelMount::new(image, &[OPTIONS, LATE].concat()),
            )?)),
            Who::Ours => Ok(Mounted::Ours(Server::start(image, dir, rest)?)),
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
    fn start(image: &Path, dir: &Path, rest: Option<u64>) -> Result<Server> {
        asked("directory", std::fs::create_dir_all(dir))?;
        let device = || std::fs::metadata(dir).map(|found| found.dev()).ok();
        let before = device();
        let mut command = Command::new(asked("this program", std::env::current_exe())?);
        // The words for a test program; ours of a command are never looked at.
        command.args(["--exact", "serve", "--nocapture"]).stdout(std::process::Stdio::null());
        if let Some(rest) = rest {
            command.env(EMPTY, rest.to_string());
        }
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
