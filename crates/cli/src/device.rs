//! From a path to a device: opened as wanted, at the offset that `--offset` gives.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use buttress::{Options, Unsupported};
use buttress_device::{Access, BlockDevice, DeviceError, FileDevice, OffsetDevice};
use buttress_fuse::Cause;
use buttress_fuse::client;
use buttress_fuse::holder;
use buttress_fuse::protocol::mounts::MountEntry;
use buttress_volume::{Opened, Volume, VolumeError, part_at};

use crate::args::Globals;
use crate::error::{self, Failure};
use crate::quote::harmless;
use crate::units::Units;

/// What to do about a filesystem with quotas that are not known here.
pub const QUOTAS: &str = "Reading works. On Linux, `btrfs quota disable` takes them away.";

/// What to do where only a copy of the superblock is left, which may be old.
pub const OLD_MIRROR: &str = "Reading works, and shows that commit. To write on from it and give up all later ones: \
                              --rescue usebackupsuper (for a mount: -o rescue=usebackupsuper).";

/// What to do where damage is in the way of opening.
pub const DAMAGED: &str = "Reading may still work (for a mount: -o ro): as it is, else with --rescue usebackuproot, else with --rescue all \
                           (for a mount: -o ro,rescue=usebackuproot, -o ro,rescue=all). `buttress check` says what is damaged.";

/// What to do where there is no filesystem.
pub const NO_FILESYSTEM: &str = "There is no superblock at 64 KiB, and no copy of it at 64 MiB or 256 GiB, as far as it reaches. In a disk image with \
                                 partitions, give the partition's start with --offset. If a btrfs was here, nothing leads into it any more, and neither \
                                 --rescue nor `buttress check -s` helps: copy it before anything is changed. `buttress mkfs` makes a new and empty \
                                 filesystem, over what is left.";

/// What to do where no superblock is good.
const SUPERBLOCKS: &str = "No copy of it, at 64 MiB or 256 GiB, as far as the device reaches, can stand in for it, so --rescue does not help. \
                           `buttress inspect-internal dump-super -aF` prints what is left of each, and `buttress check -s 1` tries the first copy. \
                           Copy the device before anything is changed.";

/// What to do where the end is missing.
const CUT_OFF: &str = "Its end is cut off: if it was copied or downloaded, do that again. Reading works as far as it goes (for a mount: -o ro), and \
                       `buttress check --check-data-csum` tells what is lost. `truncate -s` makes an image as long as it was, with zeros at its end, \
                       and writable: then what is lost counts as damaged.";

/// What to do where it is missing and nothing can be read without it.
const PAST_END: &str = "Its end is cut off, and nothing can be read without what was there: if it was copied or downloaded, do that again.";

/// What to do about several devices.
const SEVERAL_DEVICES: &str = "Linux mounts it when all of them are there (`btrfs device scan`, then mount one of them), and without one that is \
                               missing with `mount -o ro,degraded`. From there its files can be copied to a filesystem on one device.";

/// What to do about what is in the way of opening.
pub fn advice(cause: Cause) -> Option<&'static str> {
    Some(match cause {
        Cause::NotBtrfs => NO_FILESYSTEM,
        Cause::OldMirror => OLD_MIRROR,
        Cause::Superblocks => SUPERBLOCKS,
        Cause::CutOff => CUT_OFF,
        Cause::PastEnd => PAST_END,
        Cause::SeveralDevices => SEVERAL_DEVICES,
        Cause::Quotas => QUOTAS,
        Cause::Damage => DAMAGED,
        Cause::Busy | Cause::AllowOther | Cause::Other => return None,
    })
}

/// Opens a regular file or block device.
pub fn open(
    path: &Path,
    access: Access,
    globals: &Globals,
) -> Result<Arc<dyn BlockDevice>, Failure> {
    open_in(Turn::Waits, path, access, globals)
}

/// Whether other commands that have an image are waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// As long as it takes.
    Waits,
    /// Not where they might wait for this one.
    IsNow,
}

/// The same with or without waiting for other commands.
pub fn open_in(
    turn: Turn,
    path: &Path,
    access: Access,
    globals: &Globals,
) -> Result<Arc<dyn BlockDevice>, Failure> {
    // Also who only reads looks whether it is locked, and is in the way of others for a moment.
    holder::announce_brief();
    if access == Access::ReadOnly {
        // Takes no lock, and would find what was there before the last commit of a mount that has gone.
        holder::wait_for_last_commit(path, globals.offset, |text| waiting(path, globals, text));
    }
    // Where the filesystem ends may have changed when its turn comes.
    let open = || FileDevice::open_part(path, access, part_at(path, globals.offset));
    let device = match access {
        Access::ReadOnly => open(),
        Access::ReadWrite if turn == Turn::Waits => patiently(path, globals, open),
        Access::ReadWrite => {
            let say = |text: &str| waiting(path, globals, text);
            holder::out_of_turn(path, globals.offset, is_busy, say, open)
        }
    };
    let mut device = device.map_err(|error| failure(path, &error))?;
    if mounted_here(path, globals).is_some() {
        // Our own daemon writes to it, which is known and said in other words.
        device = device.unconcerned();
    }
    window(Arc::new(device), globals).map_err(|error| failure(path, &error))
}

/// Opens a device; waits for other commands of ours, and for a mount of ours that has gone and whose process still writes its last
/// changes.
pub fn patiently(
    path: &Path,
    globals: &Globals,
    open: impl FnMut() -> Result<FileDevice, DeviceError>,
) -> Result<FileDevice, DeviceError> {
    holder::announce_brief();
    holder::patiently(path, globals.offset, is_busy, |text| waiting(path, globals, text), open)
}

fn is_busy(error: &DeviceError) -> bool {
    matches!(error, DeviceError::Busy { .. })
}

/// Says what is waited for.
fn waiting(path: &Path, globals: &Globals, text: &str) {
    if !globals.quiet {
        complain!("buttress: {}: {text}", path.display());
    }
}

/// The part of a device that `--offset` leaves.
pub fn window(
    device: Arc<dyn BlockDevice>,
    globals: &Globals,
) -> Result<Arc<dyn BlockDevice>, DeviceError> {
    match globals.offset {
        0 => Ok(device),
        offset => Ok(Arc::new(OffsetDevice::new(device, offset, None)?)),
    }
}

/// Opens a filesystem for looking at its bytes; what is odd about it goes to standard error.
pub fn open_volume(path: &Path, globals: &Globals) -> Result<Volume, Failure> {
    let device = open(path, Access::ReadOnly, globals)?;
    let refused = |error: VolumeError| volume_failure(path, &error);
    let rescue = globals.rescue.words();
    let Opened { volume, warnings } =
        Volume::open_rescue(vec![device], Access::ReadOnly, rescue).map_err(refused)?;
    for warning in warnings {
        warn(globals, path, &warning);
    }
    Ok(volume)
}

/// Where one of our daemons has mounted a device.
pub fn mounted_on(device: &Path) -> Option<PathBuf> {
    holder::mounts_of(device).pop().map(|entry| entry.mountpoint)
}

/// The same of the filesystem that is meant by `--offset`; without it, of any.
pub fn mounted_here(device: &Path, globals: &Globals) -> Option<PathBuf> {
    match globals.offset {
        0 => mounted_on(device),
        offset => mounted_at(device, offset),
    }
}

/// The same of the filesystem at an offset in it.
fn mounted_at(device: &Path, offset: u64) -> Option<PathBuf> {
    let is_it = |entry: &MountEntry| holder::may_be_at(entry, offset);
    holder::mounts_of(device).into_iter().rev().find(is_it).map(|entry| entry.mountpoint)
}

/// Says what did not prevent the command and is good to know.
pub fn warn(globals: &Globals, path: &Path, warning: &dyn std::fmt::Display) {
    if !globals.quiet {
        let (place, text) = (path.display().to_string(), warning.to_string());
        // Warnings that name the place themselves need not hear it twice.
        let text = text.strip_prefix(&format!("{place}: ")).unwrap_or(&text);
        complain!("buttress: warning: {}: {}", harmless(&place), harmless(text));
    }
}

/// What to do about a device that somebody else has.
pub fn instead_of_busy(path: &Path) -> String {
    match mounted_on(path) {
        Some(at) => format!(
            "It is mounted on {0}: use paths below {0} instead, or unmount it first.",
            at.display()
        ),
        None => {
            let mounted = "If it is mounted, use paths on the mount instead, or unmount it first.";
            match buttress_device::lock_holders(path)[..] {
                [pid] if pid != 0 => format!(
                    "{mounted} Otherwise wait for process {pid}, or end it (kill {pid}); whoever may read an image can lock it."
                ),
                _ => mounted.into(),
            }
        }
    }
}

/// What to do instead of mounting what somebody else has.
pub fn instead_of_mount(path: &Path, offset: u64) -> String {
    let Some(at) = mounted_at(path, offset) else {
        return match mounted_on(path) {
            Some(other) => format!(
                "Another filesystem in it is mounted on {}: unmount that first, or make loop devices of both parts.",
                other.display()
            ),
            None => instead_of_busy(path),
        };
    };
    let at_display = at.display();
    // Who may not ask is not the one who mounted it.
    match client::subvolume(&at).map(|it| it.id) {
        Ok(TOP_LEVEL) => format!(
            "It is mounted on {at_display}: its subvolumes are directories there; or unmount it first."
        ),
        Ok(_) => format!(
            "It is mounted on {at_display}, as one of its subvolumes: unmount it, and mount all of it with -o subvolid=5."
        ),
        Err(_) => instead_of_busy(path),
    }
}

/// Id of the subvolume that has all others below it.
const TOP_LEVEL: u64 = 5;

/// What to do about a partition that is not there.
pub fn of_partition(path: &Path) -> Option<String> {
    let text = path.to_str()?.split(':').next()?;
    let (disk, number) = text.rsplit_once('p')?;
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let is_partition = disk.strip_prefix("/dev/loop").is_some_and(digits) && digits(number);
    (is_partition && !Path::new(text).exists()).then(|| {
        format!("A loop device has partitions after `losetup -P` or `partx -a {disk}`; or name the image, with --offset.")
    })
}

/// What to say of a path on a mount of ours whose process has died: what the kernel remembers of it looks as if it were there.
pub fn on_dead_mount(path: &Path) -> Option<Failure> {
    let mount = holder::dead_mount_of(path)?;
    let failure =
        Failure::new("cannot use", path.display(), "the process that served this mount has died");
    Some(failure.hint(format!(
        "`buttress umount {}` takes it off, and `buttress mount` does so by itself; a balance that ran goes on then. Or name {}.",
        mount.mountpoint.display(),
        mount.source.display()
    )))
}

/// A device's failure as ours: what, where, why, and what to do next.
pub fn failure(path: &Path, error: &DeviceError) -> Failure {
    let place = path.display();
    match error {
        DeviceError::Open { source, .. } => {
            let failure = Failure::new("cannot open", place, error::text(source));
            if let Some(hint) = of_partition(path) {
                return failure.hint(hint);
            }
            match source.kind() {
                std::io::ErrorKind::PermissionDenied => failure.hint(
                    "Your user may not open it: change its permissions, or become a member of the group that may.",
                ),
                _ => failure,
            }
        }
        DeviceError::Busy { why, .. } => {
            let failure = Failure::new("cannot open", place, format!("busy: {why}"));
            failure.hint(instead_of_busy(path))
        }
        DeviceError::NotADevice { found, .. } => {
            Failure::new("cannot open", place, format!("it is {found}, not an image or a disk"))
        }
        DeviceError::Io { op, offset, len, source, .. } => {
            let what = format!("cannot {op} {len} bytes at {offset} on");
            Failure::new(what, place, error::text(source))
        }
        DeviceError::OutOfRange { offset, len: 0, size, .. } => {
            let shown = |bytes| Units::default().show(bytes);
            let why = format!("it ends at {}, before --offset {}", shown(*size), shown(*offset));
            Failure::new("cannot open", place, why)
        }
        other => Failure::new("cannot use", place, other),
    }
}

/// What an error says of a device, without its name in front: that is said already.
fn without_device(path: &Path, error: &VolumeError) -> String {
    let text = error.to_string();
    text.strip_prefix(&format!("{}: ", path.display())).unwrap_or(&text).to_owned()
}

/// The engine's options with what `--rescue` allows.
pub fn with_rescue(options: Options, globals: &Globals) -> Options {
    options.rescue(globals.rescue.words())
}

/// A volume's failure as ours.
pub fn volume_failure(path: &Path, error: &VolumeError) -> Failure {
    match error {
        VolumeError::Device(error) => failure(path, error),
        VolumeError::NotBtrfs { .. } => {
            Failure::new("cannot open", path.display(), "no btrfs filesystem there")
                .hint(NO_FILESYSTEM)
        }
        other => {
            let failure = Failure::new("cannot open", path.display(), without_device(path, other));
            match advice(Cause::of_volume(other)) {
                Some(advice) => failure.hint(advice),
                None => failure,
            }
        }
    }
}

/// The engine's failure to open a filesystem as ours.
pub fn engine_failure(path: &Path, error: &buttress::Error) -> Failure {
    match error {
        buttress::Error::Volume(error) => volume_failure(path, error),
        buttress::Error::Unsupported(Unsupported::Quotas) => {
            Failure::new("cannot open", path.display(), error).hint(QUOTAS)
        }
        other => {
            let failure = Failure::new("cannot open", path.display(), other);
            if other.is_damage() { failure.hint(DAMAGED) } else { failure }
        }
    }
}
