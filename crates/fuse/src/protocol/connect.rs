//! Attaching a channel to a directory, and taking it off again.
//!
//! Root calls mount(2) itself. Anybody else, and root without the right to mount, goes through the
//! setuid helper `fusermount3`, which opens /dev/fuse, mounts, and passes the open device back over
//! a socket. The socket is the helper's standard input, so nothing needs to be inherited by number.

use std::ffi::{CString, OsString};
use std::io::{IoSliceMut, Read};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use buttress::ondisk::item::mode::{DIRECTORY, TYPE_MASK};
use rustix::fs::{AtFlags, Mode, OFlags, ResolveFlags, StatxFlags, openat2, statx};
use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MountFlags, MoveMountFlags, OpenTreeFlags,
    UnmountFlags, fsconfig_create, fsconfig_set_flag, fsconfig_set_string, fsmount, fsopen,
    move_mount, open_tree,
};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags};

use super::channel::Channel;
use super::mounts::{self, FS_TYPE, FS_TYPE_BLOCK};

/// The setuid helper.
const HELPER: &str = "fusermount3";
/// The device every connection begins with.
const FUSE_DEVICE: &str = "/dev/fuse";
/// What the kernel counts the blocks of a device in, in bytes. It is ours that reads and writes it.
const BLOCK_BYTES: u32 = 4096;
/// The kernel's types, and ours of them.
const FS_KIND: &str = "fuse";
const FS_KIND_BLOCK: &str = "fuseblk";
const SUBTYPE: &str = "buttress";

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
    #[error("{FUSE_DEVICE}: {reason}{}", device_hint(*.reason))]
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
    #[error("{HELPER}, which mounts for ordinary users: {source}{}", helper_hint(.source))]
    NoHelper {
        /// Why.
        source: std::io::Error,
    },
    /// The helper said no.
    #[error("{said}")]
    Helper {
        /// Its own words.
        said: String,
        /// What they mean.
        why: Refusal,
    },
}

/// Why a helper said no.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// Files are open below the mount.
    Busy,
    /// The system lets only root give others access.
    AllowOther,
    /// Something else.
    Other,
}

impl Refusal {
    /// The helpers have one exit status for everything, so this is the one place that understands their words. They are asked to
    /// say them in English (`LC_ALL=C`).
    fn of_words(said: &str) -> Refusal {
        let means = [
            // EBUSY, as strerror(3) has it, and as umount(8) has it.
            ("Device or resource busy", Refusal::Busy),
            ("target is busy", Refusal::Busy),
            // The line that is missing in the configuration.
            ("user_allow_other", Refusal::AllowOther),
        ];
        let found = means.iter().find(|(words, _)| said.contains(words));
        found.map_or(Refusal::Other, |(_, refusal)| *refusal)
    }
}

/// What to do where there is no device; that there are too many open files says by itself what is wrong.
fn device_hint(reason: Errno) -> &'static str {
    match reason {
        Errno::NOENT | Errno::NODEV | Errno::NXIO => {
            "; is the fuse module loaded (`modprobe fuse`)?"
        }
        _ => "",
    }
}

fn helper_hint(source: &std::io::Error) -> &'static str {
    match source.kind() {
        std::io::ErrorKind::NotFound => "; install the package fuse3",
        _ => "",
    }
}

impl ConnectError {
    /// Whether an unmount failed because files are still open below.
    pub fn is_busy(&self) -> bool {
        match self {
            Self::Unmount { reason, .. } => *reason == Errno::BUSY,
            Self::Helper { why, .. } => *why == Refusal::Busy,
            _ => false,
        }
    }
}

/// Mounts on the directory `mountpoint`. The mount answers once the channel's INIT is answered.
pub fn connect(mountpoint: &Path, options: &ConnectOptions) -> Result<Channel, ConnectError> {
    let mode = mode_of(mountpoint)?;
    if options.block {
        return connect_directly(mountpoint, mode, options);
    }
    if !rustix::process::geteuid().is_root() {
        return connect_by_helper(mountpoint, options);
    }
    match connect_directly(mountpoint, mode, options) {
        // Root of a container without the right to mount; the helper may have it.
        Err(
            ConnectError::Mount { reason: Errno::PERM | Errno::ACCESS, .. }
            | ConnectError::Device { reason: Errno::PERM | Errno::ACCESS },
        ) => connect_by_helper(mountpoint, options).map_err(say_container),
        other => other,
    }
}

/// Type and permissions of the directory to mount on.
fn mode_of(mountpoint: &Path) -> Result<u32, ConnectError> {
    let unusable = |reason| ConnectError::Mountpoint { path: mountpoint.to_owned(), reason };
    let found = std::fs::metadata(mountpoint);
    let found =
        found.map_err(|error| unusable(Errno::from_io_error(&error).unwrap_or(Errno::IO)))?;
    if found.is_dir() { Ok(found.mode()) } else { Err(unusable(Errno::NOTDIR)) }
}

/// Root was refused: what would help.
fn say_container(error: ConnectError) -> ConnectError {
    match error {
        ConnectError::Helper { said, why } => ConnectError::Helper {
            said: format!(
                "{said}; in a container, it has to have /dev/fuse and the capability SYS_ADMIN"
            ),
            why,
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
    command.env("LC_ALL", "C");
    command.args(["-i", "-c"]).args(lazy.then_some("-l")).arg(mountpoint);
    match run_helper(command.stdin(Stdio::null())) {
        Err(ConnectError::NoHelper { .. }) => disconnect(mountpoint, lazy),
        done => done,
    }
}

fn unmounting_helper(mountpoint: &Path, lazy: bool) -> Command {
    let mut command = Command::new(HELPER);
    command.env("LC_ALL", "C");
    command.arg("-u").args(lazy.then_some("-z")).arg("--").arg(mountpoint).stdin(Stdio::null());
    command
}

fn connect_directly(
    mountpoint: &Path,
    mode: u32,
    options: &ConnectOptions,
) -> Result<Channel, ConnectError> {
    let fd = open_device()?;
    let data = CString::new(kernel_words(Some(fd.as_fd()), mode, options).join(",")).ok();
    let kind = if options.block { FS_TYPE_BLOCK } else { FS_TYPE };
    rustix::mount::mount(&options.source, mountpoint, kind, flags(options), data.as_deref())
        .map_err(|reason| ConnectError::Mount { path: mountpoint.to_owned(), reason })?;
    Ok(Channel::new(fd))
}

fn open_device() -> Result<OwnedFd, ConnectError> {
    rustix::fs::open(FUSE_DEVICE, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
        .map_err(|reason| ConnectError::Device { reason })
}

/// The options of type fuse.
fn kernel_words(fd: Option<BorrowedFd<'_>>, mode: u32, options: &ConnectOptions) -> Vec<String> {
    let mut words = vec![
        format!("rootmode={:o}", mode & TYPE_MASK),
        format!("user_id={}", rustix::process::geteuid().as_raw()),
        format!("group_id={}", rustix::process::getegid().as_raw()),
    ];
    words.extend(fd.map(|fd| format!("fd={}", fd.as_raw_fd())));
    words.extend(options.block.then(|| format!("blksize={BLOCK_BYTES}")));
    words.extend(shared_words(options));
    words
}

/// Whether this process may make mounts that are nowhere yet.
pub(crate) fn may_mount_nowhere() -> bool {
    let root = rustix::process::geteuid().is_root();
    root && fsopen(FS_KIND, FsOpenFlags::FSOPEN_CLOEXEC).is_ok()
}

/// A new connection and a mount of its top that is nowhere yet. Nobody can have used it when that is closed.
pub(crate) fn connect_nowhere(
    mountpoint: &Path,
    options: &ConnectOptions,
) -> Result<(Channel, OwnedFd), ConnectError> {
    mode_of(mountpoint)?;
    let fd = open_device()?;
    let top = mount_nowhere(mountpoint, options, Some(fd.as_fd()))?;
    Ok((Channel::new(fd), top))
}

/// A mount of the top of a connection, nowhere yet: `fd` is the /dev/fuse that it is served by. That of a device that the
/// kernel has claimed it knows by the device, and without `fd` none can begin.
pub(crate) fn mount_nowhere(
    mountpoint: &Path,
    options: &ConnectOptions,
    fd: Option<BorrowedFd<'_>>,
) -> Result<OwnedFd, ConnectError> {
    try_mount_nowhere(options, fd)
        .map_err(|reason| ConnectError::Mount { path: mountpoint.to_owned(), reason })
}

fn try_mount_nowhere(
    options: &ConnectOptions,
    fd: Option<BorrowedFd<'_>>,
) -> Result<OwnedFd, Errno> {
    let kind = if options.block { FS_KIND_BLOCK } else { FS_KIND };
    let context = fsopen(kind, FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_set_string(&context, "source", &options.source)?;
    fsconfig_set_string(&context, "subtype", SUBTYPE)?;
    for word in kernel_words(fd, DIRECTORY, options) {
        match word.split_once('=') {
            Some((name, value)) => fsconfig_set_string(&context, name, value)?,
            None => fsconfig_set_flag(&context, word)?,
        }
    }
    for (on, word) in [(options.synchronous, "sync"), (options.dirsync, "dirsync")] {
        if on {
            fsconfig_set_flag(&context, word)?;
        }
    }
    fsconfig_create(&context)?;
    fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, attributes(options))
}

/// What the kernel keeps for each mount of a connection.
fn attributes(options: &ConnectOptions) -> MountAttrFlags {
    let mut flags = MountAttrFlags::empty();
    flags.set(MountAttrFlags::MOUNT_ATTR_RDONLY, options.read_only);
    flags.set(MountAttrFlags::MOUNT_ATTR_NOSUID, options.nosuid);
    flags.set(MountAttrFlags::MOUNT_ATTR_NODEV, options.nodev);
    flags.set(MountAttrFlags::MOUNT_ATTR_NOEXEC, options.noexec);
    flags.set(MountAttrFlags::MOUNT_ATTR_NODIRATIME, options.nodiratime);
    flags.set(MountAttrFlags::MOUNT_ATTR_NOATIME, options.noatime);
    flags.set(MountAttrFlags::MOUNT_ATTR_STRICTATIME, options.strictatime);
    flags
}

/// Tells a mount from all others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Number {
    /// [`mounts::MountEntry::id`], which the next mount may have when this one has gone.
    pub(crate) id: u64,
    /// No other mount ever has it; since Linux 6.8.
    unique: Option<u64>,
}

/// `STATX_MNT_ID_UNIQUE`.
const MNT_ID_UNIQUE: u32 = 0x4000;

impl Number {
    /// Of the mount that a file was opened through. The server is not asked.
    pub(crate) fn of(file: &OwnedFd) -> Result<Self, Errno> {
        let how = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
        let id = statx(file, "", how, StatxFlags::MNT_ID)?.stx_mnt_id;
        // Where the kernel does not know it, it says so, or refuses the flag.
        let found = statx(file, "", how, StatxFlags::from_bits_retain(MNT_ID_UNIQUE)).ok();
        let unique = found.filter(|found| found.stx_mask & MNT_ID_UNIQUE != 0);
        Ok(Self { id, unique: unique.map(|found| found.stx_mnt_id) })
    }

    /// Of the mount that is on top at `mountpoint`, as far as that can be known without asking anybody's server.
    pub(crate) fn at(mountpoint: &Path) -> Option<Self> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let how = ResolveFlags::CACHED | ResolveFlags::NO_SYMLINKS;
        let top = openat2(rustix::fs::CWD, mountpoint, flags, Mode::empty(), how).ok()?;
        Self::of(&top).ok()
    }

    /// Whether it tells this mount from those that come later, too.
    #[cfg(test)]
    pub(crate) fn is_known(self) -> bool {
        self.unique.is_some()
    }

    /// Whether the other has the number after this one has gone.
    pub(crate) fn was_given_to(self, other: Number) -> bool {
        let unique = self.unique.zip(other.unique);
        self.id == other.id && unique.is_some_and(|(own, other)| own != other)
    }
}

/// Mounts on `mountpoint` the directory that `find` finds below a mount that is nowhere yet; `None`: the top itself. Answers the
/// number of the mount, by which it is known when somebody has moved it.
///
/// Looking for it takes answers of the server, so it is not for the process that serves. Before Linux 6.15 a part can be taken
/// only of a mount that is somewhere: there the top is on `mountpoint` for a moment.
pub(crate) fn put<E: From<ConnectError>>(
    top: &OwnedFd,
    mountpoint: &Path,
    find: impl Fn() -> Result<Option<OwnedFd>, E>,
) -> Result<Number, E> {
    let failed = |reason| ConnectError::Mount { path: mountpoint.to_owned(), reason };
    let place = |tree: &OwnedFd| {
        let number = Number::of(tree).map_err(failed)?;
        let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
        move_mount(tree, "", rustix::fs::CWD, mountpoint, flags).map_err(failed)?;
        Ok::<_, ConnectError>(number)
    };
    let Some(directory) = find()? else { return Ok(place(top)?) };
    match part(&directory) {
        Ok(tree) => return Ok(place(&tree)?),
        Err(Errno::INVAL) => {}
        Err(reason) => return Err(failed(reason).into()),
    }
    place(top)?;
    let tree = part(&directory).map_err(failed);
    let off = disconnect(mountpoint, true);
    let tree = tree?;
    off?;
    Ok(place(&tree)?)
}

/// A mount of a directory alone.
fn part(directory: &OwnedFd) -> Result<OwnedFd, Errno> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_EMPTY_PATH;
    open_tree(directory, "", flags)
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
    words.push(format!("subtype={SUBTYPE}"));
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
    command.env("_FUSE_COMMFD", "0").env("LC_ALL", "C").stdin(OwnedFd::from(theirs));
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
    Err(ConnectError::Helper { said: said.to_owned(), why: Refusal::of_words(said) })
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_helpers_are_understood() {
        for (said, why) in [
            ("fusermount3: failed to unmount /mnt/a: Device or resource busy", Refusal::Busy),
            ("umount: /mnt/a: target is busy.", Refusal::Busy),
            (
                "fusermount3: option allow_other only allowed if 'user_allow_other' is set in /etc/fuse.conf",
                Refusal::AllowOther,
            ),
            ("fusermount3: user has no write access to mountpoint /mnt/a", Refusal::Other),
            ("fusermount3: entry for /mnt/a not found in /etc/mtab", Refusal::Other),
            ("fusermount3: mount failed: Operation not permitted", Refusal::Other),
            ("", Refusal::Other),
        ] {
            assert_eq!(Refusal::of_words(said), why, "{said}");
        }
    }
}
