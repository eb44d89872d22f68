//! A mount from the command to its end.
//!
//! Order of the beginning: the filesystem is opened (and its device locked), the mount is attached,
//! INIT is answered, and only then does the command return: what comes after `mount` in a script
//! finds the mount answering. Order of the end: the mount is gone, the last request is answered,
//! the inodes the kernel held are let go, the last commit is durable, the device is unlocked, the
//! process exits. So whoever waits for the lock, as [`unmount`] does, finds all data on the device.

use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use buttress::{Filesystem, Options};
use rustix::fs::OFlags;
use rustix::io::Errno;

use crate::budget::{self, Budget};
use crate::launch::{self, LaunchError, Readiness, Role};
use crate::mount::control::Control;
use crate::mount::engine::Engine;
use crate::mount::{Mount, init_flags};
use crate::options::{AccessTimes, MountOptions, OptionError, SubvolumeChoice};
use crate::protocol::connect::{ConnectError, ConnectOptions, connect, disconnect};
use crate::protocol::mounts;
use crate::session::{Session, SessionError, SessionOptions};
use crate::signals::HeldSignals;
use crate::will::Will;

/// How long a change waits at most for its commit, when nothing is said. The kernel never tells most mounts of a
/// sync(2), so it has to be short.
const COMMIT_INTERVAL: Duration = Duration::from_secs(5);
/// How long nothing changes before what did is committed.
const COMMIT_PAUSE: Duration = Duration::from_secs(1);
/// How often a block device is tried again while somebody holds it.
const DEVICE_WAIT: Duration = Duration::from_millis(20);

/// Why a mount failed, or did not end well.
#[derive(Debug, thiserror::Error)]
pub enum MountError {
    /// An option.
    #[error(transparent)]
    Option(#[from] OptionError),
    /// The mount point or the device does not exist, or cannot be reached.
    #[error("{path}: {source}")]
    Path {
        /// As given.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Somebody changes the image.
    #[error("{0} is busy: another program has locked it for writing")]
    Busy(PathBuf),
    /// The filesystem cannot be opened, or its last commit failed.
    #[error("{0}")]
    Filesystem(#[from] buttress::Error),
    /// The subvolume to mount cannot be loaded.
    #[error("subvolume {id}: {reason}")]
    Subvolume {
        /// Its id.
        id: u64,
        /// Why.
        reason: Errno,
    },
    /// What `subvol=` or `subvolid=` names is not there, or is an ordinary directory or file.
    #[error("{wanted} {reason}; `buttress subvolume list {}` lists them", .device.display())]
    NoSubvolume {
        /// As given.
        wanted: String,
        /// What is wrong with it.
        reason: &'static str,
        /// Where it was looked for.
        device: PathBuf,
    },
    /// The mount is gone, but what it had not yet committed is lost.
    #[error("the last changes are lost: {said}")]
    LastCommit {
        /// Why the process that served it could not write them.
        said: String,
    },
    /// Attaching or taking off.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// Serving.
    #[error(transparent)]
    Session(#[from] SessionError),
    /// Going to the background.
    #[error(transparent)]
    Launch(#[from] LaunchError),
    /// The path is not a mount of ours.
    #[error("{0} is not mounted by buttress")]
    NotMounted(PathBuf),
    /// Signals, threads and the like.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// Where a filesystem is mounted.
#[derive(Clone, Debug)]
pub struct Place {
    /// The image or block device, absolute.
    pub source: PathBuf,
    /// The directory, absolute.
    pub mountpoint: PathBuf,
}

impl Place {
    /// Resolves both paths, which must exist.
    pub fn new(device: &Path, mountpoint: &Path) -> Result<Self, MountError> {
        Ok(Self { source: absolute(device)?, mountpoint: absolute(mountpoint)? })
    }
}

fn absolute(path: &Path) -> Result<PathBuf, MountError> {
    path.canonicalize().map_err(|source| MountError::Path { path: path.to_owned(), source })
}

/// Where the process that serves a mount runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ground {
    /// This process serves, and [`mount`] returns when the mount has ended.
    Foreground,
    /// A process in the background serves, and [`mount`] returns when the mount answers. The
    /// program is started again with the same arguments for that, and must come to the same call.
    Background,
}

/// Mounts the filesystem in the file or block device `device` on the directory `mountpoint`.
pub fn mount(
    device: &Path,
    mountpoint: &Path,
    options: &MountOptions,
    ground: Ground,
) -> Result<(), MountError> {
    if ground == Ground::Foreground {
        return mount_here(device, mountpoint, options, &mut None);
    }
    let mut readiness = match launch::split() {
        Role::Command(result) => return Ok(result?),
        Role::Daemon(readiness) => Some(readiness),
    };
    match (mount_here(device, mountpoint, options, &mut readiness), readiness) {
        (Err(error), Some(readiness)) => {
            readiness.failed(&error);
            // The command has the error and says it.
            std::process::exit(1);
        }
        (result, _) => result,
    }
}

fn mount_here(
    device: &Path,
    mountpoint: &Path,
    options: &MountOptions,
    readiness: &mut Option<Readiness>,
) -> Result<(), MountError> {
    let place = Place::new(device, mountpoint)?;
    let _lock = if options.read_only { reader_lock(&place.source)? } else { None };
    let fs = Filesystem::open(&place.source, engine_options(options))?;
    for warning in fs.warnings() {
        eprintln!("buttress: {}: {warning}", place.source.display());
    }
    let mut options = options.clone();
    options.read_only |= fs.is_read_only();
    let subvolume = chosen_subvolume(&fs, &options.subvolume, device)?;
    let mut served_as = None;
    let background = readiness.is_some();
    let store = Engine::new(fs.clone());
    let served = serve_and_tell(store, subvolume, &place, &options, readiness, &mut served_as);
    // Also after an error: what was done before it is kept. The commit comes before the close, as whoever waits for
    // the device, which the close lets go, is to find the will.
    let committed = if options.read_only { Ok(()) } else { fs.commit().map(drop) };
    if let (Err(error), Some(will), true) = (&committed, &served_as, background) {
        eprintln!("buttress: {}: the last changes are lost: {error}", place.source.display());
        will.leave(&error.to_string());
    }
    if options.stats {
        for (name, value) in fs.stats().figures() {
            eprintln!("{name:<28}{value:>16}");
        }
    }
    let closed = fs.close();
    served?;
    committed?;
    Ok(closed?)
}

/// Keeps writers off an image file while it is mounted read-only: what the kernel and this process
/// remember of it must stay true. Many may read.
fn reader_lock(source: &Path) -> Result<Option<File>, MountError> {
    let Ok(file) = File::open(source) else { return Ok(None) };
    if !file.metadata()?.is_file() {
        return Ok(None);
    }
    match file.try_lock_shared() {
        Err(TryLockError::WouldBlock) => Err(MountError::Busy(source.to_owned())),
        // Some network filesystems have no locks.
        Err(TryLockError::Error(_)) | Ok(()) => Ok(Some(file)),
    }
}

fn budget(options: &MountOptions) -> Budget {
    Budget::of(options.memory.unwrap_or(budget::MEMORY))
}

fn engine_options(options: &MountOptions) -> Options {
    let mode = if options.read_only { Options::read_only() } else { Options::read_write() };
    let mode = mode.offset(options.offset).mark_quota_inconsistent(options.mark_quota_inconsistent);
    let interval = options.commit_seconds.map_or(COMMIT_INTERVAL, |seconds| Duration::from_secs(seconds.into()));
    mode.memory(budget(options).filesystem).commit_interval(interval).commit_pause(COMMIT_PAUSE)
}

/// The id of the subvolume to mount.
fn chosen_subvolume(
    fs: &Filesystem,
    choice: &SubvolumeChoice,
    device: &Path,
) -> Result<u64, MountError> {
    let absent = |wanted: String, reason| MountError::NoSubvolume {
        wanted,
        reason,
        device: device.to_owned(),
    };
    match choice {
        SubvolumeChoice::Default => Ok(fs.default_subvolume()?),
        SubvolumeChoice::Id(id) => match fs.subvolume_info(*id) {
            Err(error) if error.errno() == Errno::NOENT => {
                Err(absent(format!("subvolume {id}"), "does not exist"))
            }
            found => Ok(found?.id),
        },
        SubvolumeChoice::Path(path) => {
            let wanted = || format!("subvolume {}", path.display());
            match fs.resolve(path) {
                Err(error) if matches!(error.errno(), Errno::NOENT | Errno::NOTDIR) => {
                    Err(absent(wanted(), "does not exist"))
                }
                found => match found? {
                    node if node.is_top() => Ok(node.subvolume),
                    _ => Err(absent(path.display().to_string(), "is not a subvolume")),
                },
            }
        }
    }
}

/// Serves `store` until the mount ends. Then nothing refers to its inodes any more, and the caller
/// makes the last commit.
pub fn serve<S: Control>(
    store: S,
    subvolume: u64,
    place: &Place,
    options: &MountOptions,
    readiness: &mut Option<Readiness>,
) -> Result<(), MountError> {
    serve_and_tell(store, subvolume, place, options, readiness, &mut None)
}

/// The same; tells where a last word about the mount would be looked for.
fn serve_and_tell<S: Control>(
    store: S,
    subvolume: u64,
    place: &Place,
    options: &MountOptions,
    readiness: &mut Option<Readiness>,
    will: &mut Option<Will>,
) -> Result<(), MountError> {
    let mount = Mount::new(store, subvolume, options)
        .map_err(|reason| MountError::Subvolume { id: subvolume, reason })?;
    let mount = Arc::new(mount);
    let signals = HeldSignals::hold()?;
    let channel = connect(&place.mountpoint, &connect_options(place, options))?;
    if let Some(entry) = mounts::at(&place.mountpoint)? {
        mount.set_device(entry.device);
        *will = Will::of(&entry);
        // One of an earlier mount with this number, which nobody has asked for.
        let _usually_none = will.as_ref().and_then(Will::take);
    }
    let Budget { readers, transfer_bytes, .. } = budget(options);
    let init_flags = init_flags(options);
    let session_options = SessionOptions { init_flags, readers, transfer_bytes };
    let handler = Arc::clone(&mount);
    let started = Session::start(channel, &place.mountpoint, handler, &session_options);
    let session = started.inspect_err(|_| take_off(&place.mountpoint))?;
    let watch = signals.stop(session.stopper()).inspect_err(|_| take_off(&place.mountpoint))?;
    if let Some(readiness) = readiness.take() {
        readiness.ready()?;
    }
    session.wait();
    drop(watch);
    mount.release();
    Ok(())
}

/// Removes a mount that will not be served, so that nobody waits for it.
fn take_off(mountpoint: &Path) {
    let _the_first_error_counts = disconnect(mountpoint, true);
}

fn connect_options(place: &Place, options: &MountOptions) -> ConnectOptions {
    ConnectOptions {
        source: place.source.clone(),
        read_only: options.read_only,
        nosuid: !options.suid,
        nodev: !options.dev,
        noexec: !options.exec,
        synchronous: options.synchronous,
        dirsync: options.dirsync,
        noatime: options.access_times == AccessTimes::Never,
        nodiratime: options.no_directory_access_times,
        strictatime: options.access_times == AccessTimes::Strict,
        allow_other: options.allow_other,
        default_permissions: options.default_permissions,
        max_read: options.max_read,
    }
}

/// Takes a mount off. With `wait`, returns only when its last commit is on the device, which is
/// when its process lets go of the device's lock; that it failed is an error, though the mount is
/// gone.
pub fn unmount(mountpoint: &Path, lazy: bool, wait: bool) -> Result<(), MountError> {
    // A path whose server died cannot be resolved, but is a mount point all the same.
    let path = mountpoint.canonicalize().or_else(|_| std::path::absolute(mountpoint))?;
    let entry = mounts::at(&path)?.filter(mounts::MountEntry::is_ours);
    let entry = entry.ok_or_else(|| MountError::NotMounted(mountpoint.to_owned()))?;
    disconnect(&path, lazy)?;
    if wait && !lazy {
        wait_for_device(&entry.source)?;
        if let Some(said) = Will::of(&entry).as_ref().and_then(Will::take) {
            return Err(MountError::LastCommit { said });
        }
    }
    Ok(())
}

/// Waits until nobody holds the device. One that cannot be opened is not waited for.
fn wait_for_device(source: &Path) -> io::Result<()> {
    let Ok(metadata) = std::fs::metadata(source) else { return Ok(()) };
    if !metadata.file_type().is_block_device() {
        let Ok(file) = File::open(source) else { return Ok(()) };
        // It may be mounted read-only in other places.
        let others = mounts::all()?.iter().any(|one| one.is_ours() && one.source == source);
        if others {
            file.lock_shared()?
        } else {
            file.lock()?
        }
        // Not left to the end of `file`: a process that another thread is starting may have it, too, for a moment.
        return file.unlock();
    }
    let flags = i32::try_from(OFlags::EXCL.bits()).unwrap_or(0);
    loop {
        let tried = OpenOptions::new().read(true).custom_flags(flags).open(source);
        match tried.err().and_then(|error| Errno::from_io_error(&error)) {
            Some(Errno::BUSY) => std::thread::sleep(DEVICE_WAIT),
            _ => return Ok(()),
        }
    }
}
