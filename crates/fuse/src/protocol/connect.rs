//! Attaching a channel to a directory, and taking it off again.
//!
//! Root calls mount(2) itself. Anybody else, and root without the right to mount, goes through the
//! setuid helper `fusermount3`, which opens /dev/fuse, mounts, and passes the open device back over
//! a socket. The socket is the helper's standard input, so nothing needs to be inherited by number.

use std::ffi::{CString, OsString};
use std::io::{IoSliceMut, Read};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags};

use super::channel::Channel;
use super::mounts::{self, FS_TYPE, FS_TYPE_BLOCK};

/// The setuid helper.
const HELPER: &str = "fusermount3";
/// The device every connection begins with.
const FUSE_DEVICE: &str = "/dev/fuse";
/// What the kernel counts the blocks of a device in, in bytes. It is ours that reads and writes it.
const BLOCK_BYTES: u32 = 4096;

/// What the kernel itself enforces or shows about a mount.
#[derive(Clone, Debug, Default)]
pub struct ConnectOptions {
    /// Shown as the source in /proc/mounts: the image or block device, absolute.
    pub source: PathBuf,
    /// The source is a block device, which the kernel is to claim for the mount. Then it tells of sync(2), and umount(2)
    /// waits for the last answer of the server. For root, and nobody may have claimed the device.
    pub block: bool,
    /// Refuse writing before it reaches the server.
    pub read_only: bool,
    /// Ignore set-user-ID and set-group-ID bits. Always on through the helper.
    pub nosuid: bool,
    /// Refuse to open device files. Always on through the helper.
    pub nodev: bool,
    /// Refuse to execute.
    pub noexec: bool,
    /// All writes are synchronous.
    pub synchronous: bool,
    /// Directory changes are synchronous.
    pub dirsync: bool,
    /// Access times do not move; shown in /proc/mounts.
    pub noatime: bool,
    /// Access times of directories do not move.
    pub nodiratime: bool,
    /// Access times move with each read.
    pub strictatime: bool,
    /// Users other than the one who mounts have access.
    pub allow_other: bool,
    /// The kernel checks permissions by mode and ACL.
    pub default_permissions: bool,
    /// Longest READ in bytes; `None` leaves it to the kernel.
    pub max_read: Option<u32>,
}

/// Why a mount could not be made or taken off.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The directory to mount on cannot be used.
    #[error("mount point {path}: {reason}")]
    Mountpoint {
        /// As given.
        path: PathBuf,
        /// What is wrong with it.
        reason: Errno,
    },
    /// The kernel's FUSE device cannot be opened.
    #[error("{FUSE_DEVICE}: {reason}; is the fuse module loaded (`modprobe fuse`)?")]
    Device {
        /// Why open(2) failed.
        reason: Errno,
    },
    /// mount(2) failed.
    #[error("mounting on {path}: {reason}")]
    Mount {
        /// The mount point.
        path: PathBuf,
        /// Why.
        reason: Errno,
    },
    /// umount2(2) failed.
    #[error("unmounting {path}: {reason}")]
    Unmount {
        /// The mount point.
        path: PathBuf,
        /// Why.
        reason: Errno,
    },
    /// The helper could not be run.
    #[error("{HELPER}, which mounts for ordinary users: {source}; install the package fuse3")]
    NoHelper {
        /// Why.
        source: std::io::Error,
    },
    /// The helper said no.
    #[error("{said}")]
    Helper {
        /// Its own words.
        said: String,
    },
}

impl ConnectError {
    /// Whether an unmount failed because files are still open below.
    pub fn is_busy(&self) -> bool {
        match self {
            Self::Unmount { reason, .. } => *reason == Errno::BUSY,
            Self::Helper { said } => said.contains("busy"),
            _ => false,
        }
    }
}

/// Mounts on the directory `mountpoint`. The mount answers once the channel's INIT is answered.
pub fn connect(mountpoint: &Path, options: &ConnectOptions) -> Result<Channel, ConnectError> {
    let metadata = std::fs::metadata(mountpoint).map_err(|error| ConnectError::Mountpoint {
        path: mountpoint.to_owned(),
        reason: Errno::from_io_error(&error).unwrap_or(Errno::IO),
    })?;
    if !metadata.is_dir() {
        let path = mountpoint.to_owned();
        return Err(ConnectError::Mountpoint { path, reason: Errno::NOTDIR });
    }
    if options.block {
        return connect_directly(mountpoint, metadata.mode(), options);
    }
    if !rustix::process::geteuid().is_root() {
        return connect_by_helper(mountpoint, options);
    }
    match connect_directly(mountpoint, metadata.mode(), options) {
        // Root of a container without the right to mount; the helper may have it.
        Err(
            ConnectError::Mount { reason: Errno::PERM | Errno::ACCESS, .. }
            | ConnectError::Device { reason: Errno::PERM | Errno::ACCESS },
        ) => connect_by_helper(mountpoint, options).map_err(say_container),
        other => other,
    }
}

/// Root was refused: what would help.
fn say_container(error: ConnectError) -> ConnectError {
    match error {
        ConnectError::Helper { said } => ConnectError::Helper {
            said: format!(
                "{said}; in a container, it has to have /dev/fuse and the capability SYS_ADMIN"
            ),
        },
        other => other,
    }
}

/// Takes the mount off. `lazy`: at once out of sight, and gone when the last file is closed.
pub fn disconnect(mountpoint: &Path, lazy: bool) -> Result<(), ConnectError> {
    let flags = if lazy { UnmountFlags::DETACH } else { UnmountFlags::empty() };
    match rustix::mount::unmount(mountpoint, flags | UnmountFlags::NOFOLLOW) {
        Ok(()) => Ok(()),
        Err(Errno::PERM) => run_helper(&mut unmounting_helper(mountpoint, lazy)),
        Err(reason) => Err(ConnectError::Unmount { path: mountpoint.to_owned(), reason }),
    }
}

/// The same by another process, for the one that serves the mount: the kernel waits in umount2(2) for answers of the server,
/// and a server that waits for its own answers could not be killed.
pub fn disconnect_apart(mountpoint: &Path, lazy: bool) -> Result<(), ConnectError> {
    if !rustix::process::geteuid().is_root() {
        return run_helper(&mut unmounting_helper(mountpoint, lazy));
    }
    let mut command = Command::new("umount");
    // No helper of umount(8), which would come back to us, and no look at a path whose server is busy.
    command.args(["-i", "-c"]).args(lazy.then_some("-l")).arg(mountpoint);
    match run_helper(command.stdin(Stdio::null())) {
        Err(ConnectError::NoHelper { .. }) => disconnect(mountpoint, lazy),
        done => done,
    }
}

fn unmounting_helper(mountpoint: &Path, lazy: bool) -> Command {
    let mut command = Command::new(HELPER);
    command.arg("-u").args(lazy.then_some("-z")).arg("--").arg(mountpoint).stdin(Stdio::null());
    command
}

fn connect_directly(
    mountpoint: &Path,
    mode: u32,
    options: &ConnectOptions,
) -> Result<Channel, ConnectError> {
    let fd = rustix::fs::open(FUSE_DEVICE, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
        .map_err(|reason| ConnectError::Device { reason })?;
    let data = kernel_data(&fd, mode, options);
    let kind = if options.block { FS_TYPE_BLOCK } else { FS_TYPE };
    rustix::mount::mount(&options.source, mountpoint, kind, flags(options), data.as_deref())
        .map_err(|reason| ConnectError::Mount { path: mountpoint.to_owned(), reason })?;
    Ok(Channel::new(fd))
}

/// The option string of mount(2) for type fuse.
fn kernel_data(fd: &OwnedFd, mode: u32, options: &ConnectOptions) -> Option<CString> {
    let mut data = format!(
        "fd={},rootmode={:o},user_id={},group_id={}",
        fd.as_raw_fd(),
        mode & 0o170_000,
        rustix::process::geteuid().as_raw(),
        rustix::process::getegid().as_raw(),
    );
    if options.block {
        data.push_str(&format!(",blksize={BLOCK_BYTES}"));
    }
    for word in shared_words(options) {
        data.push(',');
        data.push_str(&word);
    }
    CString::new(data).ok()
}

/// Options that mount(2) and the helper spell alike.
fn shared_words(options: &ConnectOptions) -> Vec<String> {
    let mut words = Vec::new();
    if options.allow_other {
        words.push("allow_other".to_owned());
    }
    if options.default_permissions {
        words.push("default_permissions".to_owned());
    }
    words.extend(options.max_read.map(|bytes| format!("max_read={bytes}")));
    words
}

fn flags(options: &ConnectOptions) -> MountFlags {
    let mut flags = MountFlags::empty();
    flags.set(MountFlags::RDONLY, options.read_only);
    flags.set(MountFlags::NOSUID, options.nosuid);
    flags.set(MountFlags::NODEV, options.nodev);
    flags.set(MountFlags::NOEXEC, options.noexec);
    flags.set(MountFlags::SYNCHRONOUS, options.synchronous);
    flags.set(MountFlags::DIRSYNC, options.dirsync);
    flags.set(MountFlags::NOATIME, options.noatime);
    flags.set(MountFlags::NODIRATIME, options.nodiratime);
    flags.set(MountFlags::STRICTATIME, options.strictatime);
    flags
}

fn helper_options(options: &ConnectOptions) -> OsString {
    let mut text = OsString::from(if options.read_only { "ro" } else { "rw" });
    let mut words = shared_words(options);
    let switches = [
        (true, "nosuid"),
        (true, "nodev"),
        (options.noexec, "noexec"),
        (options.synchronous, "sync"),
        (options.dirsync, "dirsync"),
    ];
    words.extend(switches.iter().filter(|(on, _)| *on).map(|(_, word)| (*word).to_owned()));
    words.push("subtype=buttress".to_owned());
    for word in words {
        text.push(",");
        text.push(word);
    }
    text.push(",fsname=");
    text.push(mounts::escape_option(&options.source));
    text
}

fn connect_by_helper(mountpoint: &Path, options: &ConnectOptions) -> Result<Channel, ConnectError> {
    let failed = |source| ConnectError::NoHelper { source };
    let (ours, theirs) = UnixStream::pair().map_err(failed)?;
    let mut command = Command::new(HELPER);
    command.arg("-o").arg(helper_options(options)).arg("--").arg(mountpoint);
    command.env("_FUSE_COMMFD", "0").stdin(OwnedFd::from(theirs));
    run_helper(&mut command)?;
    // The helper has ended, so the message is there or never comes; our copy of its end goes too.
    drop(command);
    receive_fd(&ours).map(Channel::new).map_err(|error| failed(error.into()))
}

/// Runs the helper to its end; what it says on standard error becomes the error.
fn run_helper(command: &mut Command) -> Result<(), ConnectError> {
    let failed = |source| ConnectError::NoHelper { source };
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().map_err(failed)?;
    let mut said = String::new();
    if let Some(mut stderr) = child.stderr.take() {
        stderr.read_to_string(&mut said).map_err(failed)?;
    }
    if child.wait().map_err(failed)?.success() {
        return Ok(());
    }
    let said = said.trim();
    let said = if said.is_empty() { "the mount helper failed without a word" } else { said };
    Err(ConnectError::Helper { said: said.to_owned() })
}

/// Takes the one descriptor out of the message that waits on `socket`.
fn receive_fd(socket: &UnixStream) -> Result<OwnedFd, Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0u8; 1];
    let mut data = [IoSliceMut::new(&mut byte)];
    rustix::net::recvmsg(socket, &mut data, &mut control, RecvFlags::CMSG_CLOEXEC)?;
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(mut fds) = message {
            return fds.next().ok_or(Errno::BADMSG);
        }
    }
    Err(Errno::BADMSG)
}
