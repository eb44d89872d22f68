//! What is not overwritten: disks, other devices, pipes and sockets, images with partitions, and images that somebody has mounted.
//!
//! `cp FILE TARGET` replaces a file. Where TARGET holds a filesystem that is never what was meant: a btrfs image stands for its
//! top directory, and everything else of that kind is refused.

use std::fs::File;
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt};
use std::path::Path;

use buttress_device::{Access, DeviceError, FileDevice};
use buttress_fuse::protocol::mounts;
use buttress_ondisk::superblock::{MAGIC, SUPERBLOCK_OFFSETS};

use super::{Image, Kind, Target, Vnode};
use crate::args::Globals;
use crate::device;
use crate::error::{self, Failure};

/// Whether something could hold a filesystem.
pub fn is_device(path: &Path) -> bool {
    path.metadata().is_ok_and(|it| it.is_file() || it.file_type().is_block_device())
}

/// Whether a file or disk has the mark of a superblock in one of its places.
pub(super) fn holds_btrfs(path: &Path, offset: u64) -> bool {
    if !is_device(path) {
        return false;
    }
    let Ok(file) = File::open(path) else { return false };
    SUPERBLOCK_OFFSETS.iter().any(|at| {
        let mut magic = [0; 8];
        let at = offset.saturating_add(at + 0x40);
        file.read_exact_at(&mut magic, at).is_ok() && magic == MAGIC
    })
}

/// Whether a file begins with a table of partitions: GPT, for sectors of either size, or MBR.
fn holds_partitions(path: &Path) -> bool {
    let Ok(file) = File::open(path) else { return false };
    let is_gpt = |at: u64| {
        let mut mark = [0; 8];
        file.read_exact_at(&mut mark, at).is_ok() && &mark == b"EFI PART"
    };
    let mut sector = [0; 512];
    if is_gpt(512) || is_gpt(4096) {
        return true;
    }
    if file.read_exact_at(&mut sector, 0).is_err() || sector[510..] != [0x55, 0xaa] {
        return false;
    }
    // Status, type, and where it begins: a partition table, and no boot sector of something else.
    let entries = sector[446..510].chunks_exact(16);
    let is_used = |it: &[u8]| it[4] != 0 && it[8..12] != [0; 4];
    entries.clone().all(|it| matches!(it[0], 0 | 0x80)) && entries.clone().any(is_used)
}

/// Refuses what would be written over, or replaced: what stands for more than its content, or an image that is in use.
pub fn may_be_overwritten(existing: &Vnode) -> Result<(), Failure> {
    if existing.image_node().is_some() {
        return Ok(());
    }
    let facts = existing.facts().map_err(|why| existing.failure("cannot read", why))?;
    let is = match facts.kind {
        Kind::Block => "it is a disk",
        Kind::Character => "it is a device",
        Kind::Fifo => "it is a pipe",
        Kind::Socket => "it is a socket",
        _ => "",
    };
    match facts.kind {
        _ if !is.is_empty() => Err(existing
            .failure("cannot overwrite", is)
            .hint("To have something else in its place, remove it first.")),
        Kind::Regular => {
            // Whatever it holds: another filesystem that is mounted is an image in use, too.
            refuse_used(existing, "cannot overwrite")?;
            // Locks of other machines are found by trying only.
            match existing.way().map(|path| FileDevice::open(&*path, Access::ReadWrite)) {
                Some(Err(DeviceError::Busy { why, .. })) => {
                    Err(busy(existing, "cannot overwrite", &why))
                }
                _ => Ok(()),
            }
        }
        _ => Ok(()),
    }
}

/// Refuses to do something with a file of this machine that somebody uses as an image: it is mounted, locked, or behind a loop device. All of
/// that can be seen without opening it, which not everybody may who can remove it.
pub fn refuse_used(vnode: &Vnode, what: &str) -> Result<(), Failure> {
    match vnode.way().and_then(|path| used(&path)) {
        Some(why) => Err(busy(vnode, what, &why)),
        _ => Ok(()),
    }
}

/// Who uses a file of this machine.
fn used(path: &Path) -> Option<String> {
    if let Some(directory) = device::mounted_on(path) {
        return Some(format!("it is mounted on {}", directory.display()));
    }
    match buttress_device::refuse_used(path) {
        Err(DeviceError::Busy { why, .. }) => Some(why),
        _ => None,
    }
}

/// Refuses a directory of this machine below which something is mounted, or on it: that could be copied, and not be removed then.
pub fn refuse_mounts_below(vnode: &Vnode, what: &str) -> Result<(), Failure> {
    let Some(path) = vnode.host_path() else { return Ok(()) };
    let whole = path.parent().and_then(|above| above.canonicalize().ok());
    let Some(whole) = whole.zip(path.file_name()).map(|(above, name)| above.join(name)) else {
        return Ok(());
    };
    let Ok(Some(mount)) = mounts::below(&whole) else { return Ok(()) };
    let rest = mount.mountpoint.strip_prefix(&whole).unwrap_or(Path::new(""));
    let place = match rest.as_os_str().as_bytes() {
        b"" => vnode.to_string(),
        rest => vnode.entry_name(rest),
    };
    let hint = format!("Nothing of {vnode} was copied. To take the mount off: umount {place}");
    Err(Failure::new(what, place, "something is mounted on it").hint(hint))
}

fn busy(vnode: &Vnode, what: &str, why: &str) -> Failure {
    let failure = vnode.failure(what, format!("busy: {why}"));
    match vnode.way() {
        Some(path) => failure.hint(device::instead_of_busy(&path)),
        None => failure,
    }
}

/// Says that what is copied may be of no use, where it is an image in use.
pub fn warn_if_used(vnode: &Vnode, globals: &Globals) {
    if let (Some(path), Some(name)) = (vnode.way(), vnode.host_path())
        && (holds_btrfs(&path, globals.offset) || holds_partitions(&path))
        && let Some(why) = used(&path)
    {
        let note = format!("busy: {why}; the copy may be of no use");
        device::warn(globals, &name, &note);
    }
}

/// Refuses to remove what was named where a name inside was meant: disks and images with partitions; and images in use.
pub fn named_may_be_removed(named: &Vnode, target: &Target) -> Result<(), Failure> {
    let Target::Host(path) = target else { return Ok(()) };
    let refuse = |why: &str| {
        let failure = named.failure("cannot remove", why);
        Err(failure.hint(format!("To remove something in it, name it: {}:/PATH.", path.display())))
    };
    match named.facts().map_err(|why| named.failure("cannot remove", why))?.kind {
        Kind::Block => refuse("it is a disk"),
        Kind::Regular if holds_partitions(path) => refuse("it is a disk image with partitions"),
        Kind::Regular => refuse_used(named, "cannot remove"),
        _ => Ok(()),
    }
}

/// Refuses to copy an image into itself, or what is in it over it.
pub fn refuse_itself(from: &Vnode, to: &Vnode, existing: Option<&Vnode>) -> Result<(), Failure> {
    let same = |file: &Vnode, image: &Image| match (file.facts(), image.device().metadata()) {
        (Ok(file), Ok(image)) => (file.volume, file.ino) == (image.dev(), image.ino()),
        _ => false,
    };
    if let (None, Some((image, _))) = (from.image_node(), to.image_node())
        && same(from, image)
    {
        return Err(from.failure("cannot copy", "an image does not go into itself"));
    }
    if let (Some((image, _)), Some(existing)) = (from.image_node(), existing)
        && existing.image_node().is_none()
        && same(existing, image)
    {
        let why = "it is the image that this is copied from";
        return Err(existing.failure("cannot overwrite", why));
    }
    Ok(())
}

/// The same for what the user named as the destination; `knows_image`: another word of the command named an image.
pub(super) fn named_may_be_overwritten(
    named: &Vnode,
    globals: &Globals,
    knows_image: bool,
) -> Result<(), Failure> {
    may_be_overwritten(named)?;
    let Some(path) = &named.host_path().filter(|path| is_device(path)) else { return Ok(()) };
    // What it holds cannot be known. `cp` could not write to it either, but `mv` could put something in its place.
    if let Err(error) = File::open(path)
        && error.kind() == ErrorKind::PermissionDenied
    {
        return Err(named.failure("cannot overwrite", error::text(&error)).hint(
            "It may be an image, as it cannot be read. To have something else in its place, remove it first.",
        ));
    }
    if globals.offset != 0 && !knows_image {
        let failure = named.failure("cannot overwrite", "no btrfs filesystem there");
        return Err(failure.hint(format!("There is none at --offset {}.", globals.offset)));
    }
    if holds_partitions(path) {
        let why = "it is a disk image with partitions";
        return Err(named.failure("cannot overwrite", why).hint(
            "For a filesystem in it, give the partition's start with --offset; to replace the image, remove it first.",
        ));
    }
    Ok(())
}
