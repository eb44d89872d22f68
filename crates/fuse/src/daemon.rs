//! A mount from the command to its end.
//!
//! Order of the beginning: the filesystem is opened (and its device locked), the mount is attached,
//! INIT is answered, and only then does the command return: what comes after `mount` in a script
//! finds the mount answering. Order of the end: the mount is gone, the last request is answered,
//! the inodes the kernel held are let go, the last commit is durable, the device is unlocked, the
//! process exits. So whoever waits for the lock, or for the process, as [`crate::unmount`] does, finds all data on the
//! device. Of a disk that the kernel has claimed for the mount, umount(2) waits for the commit, too.

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use buttress::Filesystem;
use rustix::io::Errno;

use crate::budget::Budget;
use crate::holder;
use crate::join::{self, TOP_LEVEL, Turn, Watch};
use crate::last_word::LastWord;
use crate::launch::{self, LaunchError, Readiness, Role};
use crate::mount::control::Control;
use crate::mount::engine::Engine;
use crate::mount::task::Tasks;
use crate::mount::{Mount, init_flags};
use crate::nodes::Numbers;
use crate::opening::{Attached, Opened, budget};
use crate::options::{AccessTimes, MountOptions, OptionError, SubvolumeChoice};
use crate::protocol::connect::{
    ConnectError, ConnectOptions, connect, disconnect, disconnect_apart, may_mount_nowhere,
};
use crate::protocol::mounts;
use crate::session::{self, Session, SessionError, SessionOptions};
use crate::signals::{HeldSignals, SignalWatch};
use crate::warnings;

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
    /// What `subvol=` or `subvolid=` names is not there, or is an ordinary directory or file; or they name two.
    #[error("{wanted} {reason}; `buttress subvolume list {}` lists them", .device.display())]
    NoSubvolume {
        /// As given.
        wanted: String,
        /// What is wrong with it.
        reason: String,
        /// Where it was looked for.
        device: PathBuf,
    },
    /// The filesystem is mounted already, with or without an option that all its mounts have in common.
    #[error("mount option `{word}`: the filesystem is mounted on {at} {how} it, and all its mounts share that", at = .at.display())]
    Joined {
        /// As given.
        word: String,
        /// With or without.
        how: &'static str,
        /// Where it is mounted.
        at: PathBuf,
    },
    /// On that directory it is mounted.
    #[error("it is mounted there already")]
    Already,
    /// The mount is gone, but what it had not yet committed is lost.
    #[error("the last changes are lost: {said}")]
    LastCommit {
        /// Why the process that served it could not write them.
        said: String,
    },
    /// The mount is gone, but its last commit does not come to an end.
    #[error("process {pid} still writes the last changes: they may not be on the device yet")]
    StillWrites {
        /// The process that served it.
        pid: u32,
    },
    /// The mount is gone; the process that served it had gone before, without a last commit.
    #[error("the process that served it has died")]
    Died {
        /// What was mounted.
        image: PathBuf,
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
    if launch::is_to_put() {
        let put = |top| join::put(top, &Place::new(device, mountpoint)?, options).map(drop);
        launch::put_and_exit(put);
    }
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
    let turn = Turn::wait(&place.source);
    if let Some(running) = join::running(&place, options) {
        let watch = Watch::begin()?;
        let joined = running.join(&place, options)?;
        drop(turn);
        return match readiness.take() {
            Some(readiness) => Ok(readiness.ready()?),
            None => watch.until_gone(&joined),
        };
    }
    let last_word = LastWord::begin();
    let mut opened = Opened::new(&place, options)?;
    let fs = opened.fs.clone();
    for warning in fs.warnings() {
        crate::complain!("buttress: {}: {warning}", place.source.display());
    }
    warnings::tell_when_they_come(&fs, &place.source, readiness.is_some());
    let mut options = options.clone();
    options.read_only |= fs.is_read_only();
    let subvolume = chosen_subvolume(&fs, &options, device)?;
    let background = readiness.is_some();
    let store = Engine::new(fs.clone());
    let tasks = store.tasks();
    if !options.read_only && !options.skip_balance {
        go_on_balancing(&fs, &tasks, &place.source);
    }
    // What others may mount again has the subvolume above all others as its top.
    let hidden = subvolume != TOP_LEVEL && !options.read_only && may_mount_nowhere();
    let mounted = if hidden { TOP_LEVEL } else { subvolume };
    let numbers = Numbers { mounted, own: subvolume };
    let attach = || opened.attach(&place, &options, &connect_options(&place, &options), hidden);
    let up = (readiness, Some(turn), last_word.as_ref());
    let (served, serving) = match serve_until_end(store, numbers, &place, &options, up, attach) {
        Ok((served, serving)) => (served, Some(serving)),
        Err(error) => (Err(error), None),
    };
    tasks.end();
    // Also after an error: what was done before it is kept. The commit comes before the close, as whoever waits for
    // the device, which the close lets go, is to find the error.
    let committed = if options.read_only { Ok(()) } else { fs.commit().map(drop) };
    if let (Err(error), true) = (&committed, background) {
        crate::complain!(
            "buttress: {}: the last changes are lost: {error}",
            place.source.display()
        );
    }
    if let Some(last_word) = last_word {
        last_word.say(committed.as_ref());
    }
    if options.stats {
        for (name, value) in fs.stats().figures() {
            crate::complain!("{name:<28}{value:>16}");
        }
    }
    let closed = fs.close();
    // Now umount(2) may return.
    drop(serving);
    served?;
    committed?;
    Ok(closed?)
}

/// A balance that was paused or interrupted goes on, as it does on Linux.
fn go_on_balancing(fs: &Filesystem, tasks: &Tasks, source: &Path) {
    let source = source.display().to_string();
    match tasks.resume_balance(fs) {
        Ok(()) => crate::complain!(
            "buttress: {source}: a balance that was interrupted goes on (not with -o skip_balance)"
        ),
        Err(Errno::NOTCONN) => return,
        // Without a thread nobody would be served before it is done.
        Err(Errno::AGAIN) => {
            crate::complain!(
                "buttress: {source}: a balance that was interrupted stays paused, as the system has no thread for it; `buttress balance resume` goes on with it"
            );
            return;
        }
        Err(errno) => {
            crate::complain!(
                "buttress: {source}: a balance that was interrupted cannot go on: {errno}; `buttress balance cancel` ends it"
            );
            return;
        }
    }
    // Nobody else asks how it ends.
    let tasks = tasks.clone();
    let tell = move || match tasks.wait_for_balance() {
        Some(Ok(done)) if done.no_room > 0 => crate::complain!(
            "buttress: {source}: the balance has ended, and for {} block groups there is no room elsewhere; delete something and start it again with `buttress balance start`",
            done.no_room
        ),
        Some(Ok(done)) if done.emptied.failed.is_empty() => {}
        Some(Ok(done)) => crate::complain!(
            "buttress: {source}: the balance has ended, and {} extents cannot be moved; `buttress check --check-data-csum` tells which files have them",
            done.emptied.failed.len()
        ),
        Some(Err(Errno::INTR)) | None => {}
        Some(Err(errno)) => crate::complain!("buttress: {source}: the balance has failed: {errno}"),
    };
    let _untold = std::thread::Builder::new().name("buttress-tell".to_owned()).spawn(tell);
}

/// The id of the subvolume to mount.
fn chosen_subvolume(
    fs: &Filesystem,
    options: &MountOptions,
    device: &Path,
) -> Result<u64, MountError> {
    let absent = |wanted: String, reason: String| MountError::NoSubvolume {
        wanted,
        reason,
        device: device.to_owned(),
    };
    match &options.subvolume {
        SubvolumeChoice::Default => Ok(fs.default_subvolume()?),
        SubvolumeChoice::Id(id) => match fs.subvolume_info(*id) {
            Err(error) if error.errno() == Errno::NOENT => {
                Err(absent(format!("subvolume {id}"), "does not exist".into()))
            }
            found => Ok(found?.id),
        },
        SubvolumeChoice::Path(path) => {
            let wanted = || format!("subvolume {}", path.display());
            match fs.resolve(path) {
                Err(error) if matches!(error.errno(), Errno::NOENT | Errno::NOTDIR) => {
                    Err(absent(wanted(), "does not exist".into()))
                }
                found => match (found?, options.subvolume_id) {
                    (node, Some(id)) if node.is_top() && node.subvolume != id => {
                        Err(absent(wanted(), format!("is not the one with id {id}")))
                    }
                    (node, _) if node.is_top() => Ok(node.subvolume),
                    _ => Err(absent(path.display().to_string(), "is not a subvolume".into())),
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
    let attach = || {
        let channel = connect(&place.mountpoint, &connect_options(place, options))?;
        Ok(Attached { channel, top: None })
    };
    let numbers = Numbers { mounted: subvolume, own: subvolume };
    serve_until_end(store, numbers, place, options, (readiness, None, None), attach)?.0
}

/// A mount that is served, and what remains of it until its last commit is made.
struct Serving {
    /// Answers DESTROY when it is dropped, and umount(2) returns.
    session: Session,
    /// After the session: its thread may be the one that waits for that.
    _watch: SignalWatch,
}

/// Who is to be told that the mount is up, and of its number.
type Up<'a> = (&'a mut Option<Readiness>, Option<Turn>, Option<&'a LastWord>);

/// Fails where there is no mount that anybody could have used; else says how it went, and what remains.
fn serve_until_end<S: Control>(
    store: S,
    numbers: Numbers,
    place: &Place,
    options: &MountOptions,
    up: Up<'_>,
    attach: impl FnOnce() -> Result<Attached, MountError>,
) -> Result<(Result<(), MountError>, Serving), MountError> {
    let mount = Mount::numbered(store, numbers, options)
        .map_err(|reason| MountError::Subvolume { id: numbers.mounted, reason })?;
    let mount = Arc::new(mount);
    let signals = HeldSignals::hold()?;
    session::find_programs();
    let Attached { channel, top } = attach()?;
    let attached = top.is_none();
    let take_off_attached = || {
        if attached {
            take_off(&place.mountpoint);
        }
    };
    let device = match &top {
        Some(top) => join::device_of(top).map(Some).map_err(io::Error::from),
        None => mounts::at(&place.mountpoint).map(|entry| entry.map(|entry| entry.device)),
    };
    let device = device.inspect_err(|_| take_off_attached())?;
    if let Some(device) = device {
        mount.set_device(device);
        up.2.inspect(|last_word| last_word.serves(device));
    }
    let Budget { readers, transfer_bytes, .. } = budget(options);
    let init_flags = init_flags(options);
    let io_uring = options.io_uring;
    let session_options = SessionOptions { init_flags, readers, transfer_bytes, io_uring };
    let handler = Arc::clone(&mount);
    let started = Session::start_on(channel, &place.mountpoint, device, handler, &session_options);
    let session = started.inspect_err(|_| take_off_attached())?;
    if attached {
        session.is_put();
    }
    let watch = signals.stop(session.stopper())?;
    let serving = Serving { session, _watch: watch };
    let served = put_up(&serving, top, up);
    let is_there =
        || mounts::at(&place.mountpoint).is_ok_and(|at| at.map(|it| it.device) == device);
    // What others have mounted there stays.
    if served.is_err() && is_there() {
        have_taken_off(&place.mountpoint);
    }
    // Others may have mounted it again meanwhile, whatever has become of the first mount.
    serving.session.wait();
    // A signal may have come while it was being put.
    serving.session.leave_nothing();
    holder::announce_end();
    // Nothing is counted any more when the filesystem is closed.
    let _given_up = mount.store().wait_for_quotas();
    mount.release();
    Ok((served, serving))
}

/// Has a mount put where it belongs, and says that it is up.
fn put_up(
    serving: &Serving,
    top: Option<OwnedFd>,
    (readiness, turn, _): Up<'_>,
) -> Result<(), MountError> {
    if let Some(top) = top {
        // From here on somebody may use it, and it is the last commit that is waited for.
        launch::have_put(top)?;
        serving.session.is_put();
    }
    drop(turn);
    match readiness.take() {
        Some(readiness) => Ok(readiness.ready()?),
        None => Ok(()),
    }
}

/// Removes a mount that will not be served, so that nobody waits for it.
fn take_off(mountpoint: &Path) {
    let _the_first_error_counts = disconnect(mountpoint, true);
}

/// Removes a mount that is served by this process, which goes on: the kernel may wait for its answer.
fn have_taken_off(mountpoint: &Path) {
    let mountpoint = mountpoint.to_owned();
    let take_off = move || drop(disconnect_apart(&mountpoint, true));
    // Without a thread it stays until somebody takes it off.
    let _started = std::thread::Builder::new().spawn(take_off);
}

pub(crate) fn connect_options(place: &Place, options: &MountOptions) -> ConnectOptions {
    ConnectOptions {
        source: place.source.clone(),
        block: false,
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
