//! The beginning of a mount: the filesystem is opened, and its device claimed.
//!
//! A disk that root mounts read-write is claimed by the kernel for the mount (`fuseblk`): so the kernel sends sync(2) to this
//! process, and umount(2) waits for its last commit. Until then the claim is this process's own. It is given up for the mount,
//! as the kernel refuses a disk that anybody has claimed; that nobody used the moment is seen by the superblock.

use std::os::fd::OwnedFd;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use buttress::{Filesystem, Options};
use buttress_device::{BlockDevice, Claim, DeviceError, OffsetDevice, Reader};
use buttress_volume::{VolumeError, part_at};

use crate::budget::{self, Budget};
use crate::daemon::{MountError, Place};
use crate::holder;
use crate::options::MountOptions;
use crate::protocol::channel::Channel;
use crate::protocol::connect::{
    ConnectError, ConnectOptions, connect, connect_nowhere, disconnect,
};

/// How long a change waits at most for its commit, when nothing is said. The kernel tells most mounts nothing of a sync(2),
/// so it has to be short.
const COMMIT_INTERVAL: Duration = Duration::from_secs(5);
/// How long nothing changes before what did is committed.
const COMMIT_PAUSE: Duration = Duration::from_secs(1);
/// How long a commit waits for room on a full disk that holds the image.
const FULL_DISK_PATIENCE: Duration = Duration::from_secs(30);

/// A filesystem that nobody else writes to.
pub(crate) struct Opened {
    pub(crate) fs: Filesystem,
    /// Of a disk that the kernel may take over.
    claim: Option<Claim>,
    /// Of a file that others may read.
    _lock: Option<Reader>,
}

impl Opened {
    /// Opens what is mounted at `place`. Waits for a process that has just served it and makes its last commit.
    pub(crate) fn new(place: &Place, options: &MountOptions) -> Result<Self, MountError> {
        let busy = |error: &MountError| match error {
            MountError::Busy(_) => true,
            MountError::Filesystem(error) => is_busy(error),
            _ => false,
        };
        let say = |text: &str| crate::complain!("buttress: {}: {text}", place.source.display());
        holder::patiently(&place.source, options.offset, busy, say, || {
            Self::at_once(place, options)
        })
    }

    fn at_once(place: &Place, options: &MountOptions) -> Result<Self, MountError> {
        let _lock = if options.read_only { reader_lock(place, options)? } else { None };
        if !is_for_the_kernel(&place.source, options) {
            let fs = Filesystem::open(&place.source, engine_options(options))?;
            return Ok(Self { fs, claim: None, _lock });
        }
        let failed = |error: DeviceError| buttress::Error::from(VolumeError::from(error));
        let (claim, device) = Claim::open(&place.source).map_err(failed)?;
        let mut device: Arc<dyn BlockDevice> = Arc::new(device);
        if options.offset > 0 {
            device = Arc::new(OffsetDevice::new(device, options.offset, None).map_err(failed)?);
        }
        let fs = Filesystem::open_device(device, engine_options(options))?;
        Ok(Self { fs, claim: Some(claim), _lock })
    }

    /// Attaches the mount. `hidden`: nowhere yet, to be put where it belongs once it is served.
    pub(crate) fn attach(
        &mut self,
        place: &Place,
        options: &MountOptions,
        connection: &ConnectOptions,
        hidden: bool,
    ) -> Result<Attached, MountError> {
        // It may have become read-only since it was claimed.
        let Some(claim) = self.claim.take().filter(|_| !options.read_only) else {
            return Ok(Attached::new(place, connection, hidden)?);
        };
        drop(claim);
        let block = ConnectOptions { block: true, ..connection.clone() };
        let attached = match Attached::new(place, &block, hidden) {
            Ok(attached) => attached,
            // A kernel that lets nobody mount what others may write to, or one without the type.
            Err(ConnectError::Mount { .. }) => {
                let failed = |error: DeviceError| buttress::Error::from(VolumeError::from(error));
                self.claim = Some(Claim::take(&place.source).map_err(failed)?);
                Attached::new(place, connection, hidden)?
            }
            Err(error) => return Err(error.into()),
        };
        if self.fs.volume().check_alone().is_err() {
            if attached.top.is_none() {
                let _the_first_error_counts = disconnect(&place.mountpoint, true);
            }
            return Err(MountError::Busy(place.source.clone()));
        }
        Ok(attached)
    }
}

/// A connection to the kernel.
pub(crate) struct Attached {
    pub(crate) channel: Channel,
    /// A mount of its top, where that is nowhere yet.
    pub(crate) top: Option<OwnedFd>,
}

impl Attached {
    fn new(place: &Place, options: &ConnectOptions, hidden: bool) -> Result<Self, ConnectError> {
        if hidden {
            let (channel, top) = connect_nowhere(&place.mountpoint, options)?;
            return Ok(Self { channel, top: Some(top) });
        }
        Ok(Self { channel: connect(&place.mountpoint, options)?, top: None })
    }
}

fn is_busy(error: &buttress::Error) -> bool {
    let buttress::Error::Volume(error) = error else { return false };
    matches!(**error, VolumeError::Device(DeviceError::Busy { .. }))
}

fn is_for_the_kernel(source: &Path, options: &MountOptions) -> bool {
    let block = std::fs::metadata(source).is_ok_and(|found| found.file_type().is_block_device());
    block && !options.read_only && rustix::process::geteuid().is_root()
}

/// Keeps writers off an image file while it is mounted read-only: what the kernel and this process
/// remember of it must stay true. Many may read.
fn reader_lock(place: &Place, options: &MountOptions) -> Result<Option<Reader>, MountError> {
    let part = part_at(&place.source, options.offset);
    Reader::take(&place.source, part).map_err(|_| MountError::Busy(place.source.clone()))
}

pub(crate) fn budget(options: &MountOptions) -> Budget {
    Budget::of(options.memory.unwrap_or_else(budget::by_default))
}

fn engine_options(options: &MountOptions) -> Options {
    let mode = if options.read_only { Options::read_only() } else { Options::read_write() };
    let mode = mode.offset(options.offset).mark_quota_inconsistent(options.mark_quota_inconsistent);
    let seconds = options.commit_seconds.map(|seconds| Duration::from_secs(seconds.into()));
    let mode = match options.bg_reclaim_threshold {
        Some(percent) => mode.reclaim_threshold(percent),
        None => mode,
    };
    mode.rescue(options.rescue)
        .tree_log(options.tree_log)
        .discard(options.discard)
        .memory(budget(options).filesystem)
        .commit_interval(seconds.unwrap_or(COMMIT_INTERVAL))
        .commit_pause(COMMIT_PAUSE)
        .full_disk_patience(FULL_DISK_PATIENCE)
}
