//! A filesystem as a whole, unmounted or on a live mount ("vfs", as Unix calls it beside its vnodes): subvolumes, label, devices,
//! space.
//!
//! An unmounted one is asked through the library, a live one through its mount, where the running daemon answers. The
//! kernel's own mounts are left to btrfs-progs, which can speak to the kernel.

pub mod quotas;
pub mod relocation;
pub mod trees;

use std::fmt::Display;
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use buttress_device::DeviceError;
use buttress_fuse::client::{self, SubvolumeCosts};
use buttress_fuse::mount::control::SubvolumeFacts;
use buttress_ondisk::item::{RootItem, chunk_type, root_flags};
use buttress_ondisk::{Key, kind, objectid};
use rustix::io::Errno;
use uuid::Uuid;

use crate::device;
use crate::error::Failure;
use crate::vnode::{FileError, Image, Target, Time, Vnode, is_device};

/// The inode number of a subvolume's top directory.
const TOP: u64 = 256;
/// What stands for the path of a deleted subvolume.
const DELETED: &[u8] = b"DELETED";
/// The type bit under which the global reserve is reported.
const GLOBAL_RESERVE: u64 = 1 << 49;

/// A subvolume or snapshot.
#[derive(Clone, Debug)]
pub struct Subvolume {
    /// Its id.
    pub id: u64,
    /// The subvolume that holds it; 0 for the top level.
    pub parent: u64,
    /// Its name; empty for the top level.
    pub name: Vec<u8>,
    /// Its path from the top level; empty for that itself.
    pub path: Vec<u8>,
    /// The transaction of its last change.
    pub generation: u64,
    /// The transactions that made, sent and received it.
    pub transids: [u64; 3],
    /// When it was made, sent and received.
    pub times: [Time; 3],
    /// Its uuid.
    pub uuid: Uuid,
    /// The uuid of what it is a snapshot of.
    pub parent_uuid: Uuid,
    /// The uuid of what it was received from.
    pub received_uuid: Uuid,
    /// Whether it cannot be changed.
    pub read_only: bool,
}

/// A device.
#[derive(Clone, Debug)]
pub struct Device {
    /// Its number.
    pub id: u64,
    /// Its uuid.
    pub uuid: Uuid,
    /// Bytes that the filesystem uses of it.
    pub size: u64,
    /// Bytes of it in chunks.
    pub used: u64,
    /// Where it is.
    pub path: String,
}

/// Space of one kind.
#[derive(Clone, Copy, Debug)]
pub struct Space {
    /// Type and profile bits.
    pub flags: u64,
    /// Bytes of its block groups, counted once.
    pub total: u64,
    /// Bytes used in them.
    pub used: u64,
}

impl Space {
    /// The type: `Data`, `Metadata`, `System`, `Data+Metadata` or `GlobalReserve`.
    pub fn kind(&self) -> &'static str {
        const MIXED: u64 = chunk_type::DATA | chunk_type::METADATA;
        match self.flags & (chunk_type::TYPE_MASK | GLOBAL_RESERVE) {
            chunk_type::DATA => "Data",
            chunk_type::METADATA => "Metadata",
            chunk_type::SYSTEM => "System",
            MIXED => "Data+Metadata",
            flags if flags & GLOBAL_RESERVE != 0 => "GlobalReserve",
            _ => "unknown",
        }
    }

    /// Whether it is the part of metadata kept for deletions.
    pub fn is_global_reserve(&self) -> bool {
        self.flags & GLOBAL_RESERVE != 0
    }

    /// The profile.
    pub fn profile(&self) -> &'static str {
        match self.flags & chunk_type::PROFILE_MASK {
            0 => "single",
            chunk_type::DUP => "DUP",
            chunk_type::RAID0 => "RAID0",
            chunk_type::RAID1 => "RAID1",
            chunk_type::RAID10 => "RAID10",
            chunk_type::RAID5 => "RAID5",
            chunk_type::RAID6 => "RAID6",
            chunk_type::RAID1C3 => "RAID1C3",
            chunk_type::RAID1C4 => "RAID1C4",
            _ => "unknown",
        }
    }

    /// Bytes on the device for each byte in it.
    pub fn copies(&self) -> u64 {
        match self.flags & chunk_type::PROFILE_MASK {
            chunk_type::DUP | chunk_type::RAID1 | chunk_type::RAID10 => 2,
            chunk_type::RAID1C3 => 3,
            chunk_type::RAID1C4 => 4,
            _ => 1,
        }
    }
}

/// What there is to know about a filesystem.
#[derive(Clone, Debug)]
pub struct Info {
    /// Its uuid.
    pub fsid: Uuid,
    /// Its label, empty for none.
    pub label: Vec<u8>,
    /// Its devices.
    pub devices: Vec<Device>,
    /// Its space, by kind.
    pub spaces: Vec<Space>,
    /// Bytes that file data can still take.
    pub available: u64,
}

impl Info {
    /// Bytes used, copies not counted.
    pub fn used(&self) -> u64 {
        let spaces = self.spaces.iter().filter(|it| !it.is_global_reserve());
        spaces.map(|it| it.used).fold(0, u64::saturating_add)
    }
}

/// Hears what a long command does, how much of it is done, and how much there is.
pub type Told<'a> = &'a mut dyn FnMut(&'static str, u64, u64);

/// A filesystem.
#[derive(Clone, Debug)]
pub enum Vfs {
    /// An unmounted one.
    Image(Image),
    /// A live mount, by a path on it.
    Live(PathBuf),
}

impl Vfs {
    /// The filesystem that holds a vnode.
    pub fn of(vnode: &Vnode) -> Result<Vfs, Failure> {
        if let Some((image, _)) = vnode.image_node() {
            return Ok(Vfs::Image(image.clone()));
        }
        let path = vnode.host_path().unwrap_or_else(|| ".".into());
        if client::is_live(&path) {
            return Ok(Vfs::Live(path));
        }
        // Whether it is an image is not for everybody to know.
        if is_device(&path)
            && let Err(error) = File::open(&path)
        {
            let source = Arc::new(error);
            let device = path.display().to_string();
            return Err(device::failure(&path, &DeviceError::Open { device, source }));
        }
        if let Some(died) = device::on_dead_mount(&path) {
            return Err(died);
        }
        Err(vnode.failure("cannot use", "neither a btrfs image nor on a live mount of buttress").hint(
            "Name an image or disk as DEVICE:PATH; for a filesystem that the kernel has mounted, use btrfs.",
        ))
    }

    /// What messages call it.
    pub fn name(&self) -> String {
        match self {
            Vfs::Image(image) => image.device().display().to_string(),
            Vfs::Live(path) => path.display().to_string(),
        }
    }

    fn failure(&self, what: &str, why: impl Display) -> Failure {
        Failure::new(what, self.name(), why)
    }

    /// All subvolumes by rising id, the top level (5) among them.
    pub fn subvolumes(&self) -> Result<Vec<Subvolume>, Failure> {
        let (all, passed) = self.subvolumes_past()?;
        match passed.into_iter().next() {
            Some(why) => Err(why),
            None => Ok(all),
        }
    }

    /// The same as far as it goes, and what damage hides.
    pub fn subvolumes_past(&self) -> Result<(Vec<Subvolume>, Vec<Failure>), Failure> {
        let refuse = |why: FileError| self.failure("cannot list the subvolumes of", why);
        let (mut all, passed) = match self {
            Vfs::Image(image) => image_subvolumes(image).map_err(refuse)?,
            Vfs::Live(path) => live_subvolumes(path).map_err(|errno| refuse(errno.into()))?,
        };
        all.sort_by_key(|it| it.id);
        let hidden = |why: String| self.failure("cannot list all subvolumes of", why);
        Ok((all, passed.into_iter().map(hidden).collect()))
    }

    /// Deleted subvolumes whose space is not free yet, in ascending order of their ids. Their path is `DELETED`.
    pub fn deleted_subvolumes(&self) -> Result<Vec<Subvolume>, Failure> {
        let refuse = |why: FileError| self.failure("cannot list the deleted subvolumes of", why);
        match self {
            Vfs::Image(image) => image_deleted(image).map_err(refuse),
            Vfs::Live(path) => {
                let all = client::deleted_subvolumes(path).map_err(|errno| refuse(errno.into()))?;
                Ok(all.iter().map(|it| live_subvolume(it, DELETED.to_vec())).collect())
            }
        }
    }

    /// What subvolumes take, and what would be free without those in `ids`.
    pub fn subvolume_costs(&self, ids: &[u64], told: Told<'_>) -> Result<SubvolumeCosts, Failure> {
        let refuse = |why: FileError| self.failure("cannot tell what subvolumes take in", why);
        match self {
            Vfs::Image(image) => image_costs(image, ids, told).map_err(|e| refuse(e.into())),
            Vfs::Live(path) => {
                let costs = client::subvolume_costs(path, ids, &mut |at| say(told, at));
                costs.map_err(|errno| match errno {
                    Errno::BUSY => refuse(errno.into()).hint(
                        "It changes faster than it can be counted; try again when less is written.",
                    ),
                    _ => refuse(errno.into()),
                })
            }
        }
    }

    /// The subvolume whose top a vnode is.
    pub fn subvolume_at(&self, vnode: &Vnode) -> Result<u64, Failure> {
        match self.place_of(vnode)? {
            (id, path) if path.is_empty() => Ok(id),
            _ => Err(vnode.failure("cannot use", "it is not a subvolume")),
        }
    }

    /// The subvolume that holds a vnode, and whether that is its top (an empty path).
    fn place_of(&self, vnode: &Vnode) -> Result<(u64, Vec<u8>), Failure> {
        let refuse = |why: FileError| vnode.failure("cannot read", why);
        match (vnode.image_node(), vnode.host_path()) {
            (Some((_, node)), _) => {
                let path = if node.is_top() { Vec::new() } else { b"?".to_vec() };
                Ok((node.within(), path))
            }
            (_, Some(path)) => {
                let subvolume = client::subvolume(&path).map_err(|errno| refuse(errno.into()))?;
                let inside = client::path_in_subvolume(&path);
                Ok((subvolume.id, inside.map_err(|errno| refuse(errno.into()))?))
            }
            (None, None) => Err(refuse(Errno::INVAL.into())),
        }
    }

    /// The subvolume that a vnode lies in.
    pub fn subvolume_of(&self, vnode: &Vnode) -> Result<u64, Failure> {
        Ok(self.place_of(vnode)?.0)
    }

    /// The path, on this mount or in this image, of a subvolume given by its path from the top level, seen from a vnode
    /// that is the top of another subvolume (whose path from the top level is `here`).
    pub fn vnode_below(&self, vnode: &Vnode, here: &[u8], path: &[u8]) -> Option<Target> {
        match self {
            Vfs::Image(image) => {
                Some(Target::Image { device: image.device().into(), path: path.to_vec() })
            }
            Vfs::Live(_) => {
                let rest = match here {
                    b"" => path,
                    _ => path.strip_prefix(here)?.strip_prefix(b"/")?,
                };
                let rest = <std::ffi::OsStr as std::os::unix::ffi::OsStrExt>::from_bytes(rest);
                Some(Target::Host(vnode.host_path()?.join(rest)))
            }
        }
    }

    /// The subvolume that a mount shows without `subvol=`.
    pub fn default_subvolume(&self) -> Result<u64, Failure> {
        let refuse = |why: FileError| self.failure("cannot read the default subvolume of", why);
        match self {
            Vfs::Image(image) => image.fs().default_subvolume().map_err(|e| refuse(e.into())),
            Vfs::Live(path) => client::default_subvolume(path).map_err(|e| refuse(e.into())),
        }
    }

    /// Makes a subvolume the default by its id; 0 is the top level, as for Linux.
    pub fn set_default_by_id(&self, id: u64) -> Result<(), FileError> {
        let id = if id == 0 { objectid::FS_TREE } else { id };
        match self {
            Vfs::Image(image) => Ok(image.fs().set_default_subvolume(id)?),
            Vfs::Live(path) => Ok(client::set_default_by_id(path, id)?),
        }
    }

    /// What there is to know.
    pub fn info(&self) -> Result<Info, Failure> {
        match self {
            Vfs::Image(image) => Ok(image_info(image)),
            Vfs::Live(path) => {
                live_info(path).map_err(|errno| self.failure("cannot ask", FileError::from(errno)))
            }
        }
    }

    /// Changes the label.
    pub fn set_label(&self, label: &[u8]) -> Result<(), Failure> {
        let refuse = |why: FileError| self.failure("cannot set the label of", why);
        match self {
            Vfs::Image(image) => image.fs().set_label(label).map_err(|e| refuse(e.into())),
            Vfs::Live(path) => client::set_label(path, label).map_err(|e| refuse(e.into())),
        }
    }

    /// Makes everything durable.
    pub fn sync(&self) -> Result<(), Failure> {
        let refuse = |why: FileError| self.failure("cannot sync", why);
        match self {
            Vfs::Image(image) => image.fs().commit().map(|_| ()).map_err(|e| refuse(e.into())),
            Vfs::Live(path) => {
                client::commit(path).map_err(|errno| match client::why_no_commit(path) {
                    Some(why) => self.failure("cannot sync", why),
                    None => refuse(errno.into()),
                })
            }
        }
    }

    /// Frees what deleted subvolumes held; on a live mount the daemon does that by itself.
    pub fn clean(&self) -> Result<(), Failure> {
        match self {
            Vfs::Image(image) => {
                let clean = image.fs().clean();
                clean.map_err(|error| self.failure("cannot free space of", FileError::from(error)))
            }
            Vfs::Live(_) => Ok(()),
        }
    }
}

/// Makes an empty subvolume in a directory, and puts it into groups of quotas.
pub fn create_subvolume(directory: &Vnode, name: &[u8], groups: &[u64]) -> Result<(), FileError> {
    match directory.image_node() {
        Some((image, node)) => {
            image.fs().create_subvolume_in(node, name, image.owner(), groups)?;
            Ok(())
        }
        None => Ok(client::create_subvolume_in(&below(directory, name), groups)?),
    }
}

/// Makes a snapshot of the subvolume at a vnode in a directory, and puts it into groups of quotas.
pub fn snapshot(
    source: &Vnode,
    directory: &Vnode,
    name: &[u8],
    read_only: bool,
    groups: &[u64],
) -> Result<(), FileError> {
    match (source.image_node(), directory.image_node()) {
        (Some((image, node)), Some((other, to))) if image.is(other) => {
            image.fs().snapshot_in(node.subvolume, to, name, read_only, groups)?;
            Ok(())
        }
        (None, None) => {
            let path = source.host_path().unwrap_or_else(|| ".".into());
            Ok(client::snapshot_in(&path, &below(directory, name), read_only, groups)?)
        }
        _ => Err(Errno::XDEV.into()),
    }
}

/// Deletes the subvolume that has a name in a directory.
pub fn delete_subvolume(directory: &Vnode, name: &[u8]) -> Result<(), FileError> {
    match directory.image_node() {
        Some((image, node)) => {
            image.fs().delete_subvolume(node, name)?;
            Ok(())
        }
        None => Ok(client::delete_subvolume(&below(directory, name))?),
    }
}

/// Makes the subvolume at a vnode read-only or writable.
pub fn set_read_only(vnode: &Vnode, read_only: bool) -> Result<(), FileError> {
    match (vnode.image_node(), vnode.host_path()) {
        (Some((image, node)), _) => {
            Ok(image.fs().set_subvolume_read_only(node.subvolume, read_only)?)
        }
        (_, path) => {
            let path = path.unwrap_or_else(|| ".".into());
            Ok(client::set_read_only(&path, read_only)?)
        }
    }
}

/// Makes the subvolume at a vnode the default.
pub fn set_default(vnode: &Vnode) -> Result<(), FileError> {
    match (vnode.image_node(), vnode.host_path()) {
        (Some((image, node)), _) => Ok(image.fs().set_default_subvolume(node.subvolume)?),
        (_, path) => Ok(client::set_default(&path.unwrap_or_else(|| ".".into()))?),
    }
}

/// Whether two paths lie on the same live mount.
pub fn is_same_mount(one: &Path, other: &Path) -> bool {
    let device = |path: &Path| path.metadata().ok().map(|it| it.dev());
    device(one).is_some_and(|number| device(other) == Some(number))
}

fn below(directory: &Vnode, name: &[u8]) -> PathBuf {
    let name = <std::ffi::OsStr as std::os::unix::ffi::OsStrExt>::from_bytes(name);
    directory.host_path().unwrap_or_else(|| ".".into()).join(name)
}

/// Those that have a path, and why others have none.
fn image_subvolumes(image: &Image) -> Result<(Vec<Subvolume>, Vec<String>), FileError> {
    let (mut known, mut passed) = (Vec::new(), Vec::new());
    let mut all = image.fs().subvolumes_past(&mut |why| passed.push(why.to_string()))?;
    all.push(image.fs().subvolume_info(objectid::FS_TREE)?);
    for it in all {
        match image.fs().subvolume_path(it.id) {
            Ok(path) => known.push(image_subvolume(it, path)),
            Err(why) => passed.push(format!("the path of subvolume {}: {why}", it.id)),
        }
    }
    Ok((known, passed))
}

fn image_subvolume(it: buttress::SubvolumeInfo, path: Vec<u8>) -> Subvolume {
    let [_, made, sent, received] = it.times;
    Subvolume {
        read_only: it.is_read_only(),
        id: it.id,
        parent: it.parent,
        name: it.name,
        path,
        generation: it.generation,
        transids: [it.otransid, it.stransid, it.rtransid],
        times: [made, sent, received],
        uuid: Uuid::from_bytes(it.uuid),
        parent_uuid: Uuid::from_bytes(it.parent_uuid),
        received_uuid: Uuid::from_bytes(it.received_uuid),
    }
}

/// The root items that no directory entry refers to any more.
fn image_deleted(image: &Image) -> Result<Vec<Subvolume>, FileError> {
    let mut all = Vec::new();
    let from = Key::new(objectid::FIRST_FREE, kind::ROOT_ITEM, 0);
    let to = Key::new(objectid::LAST_FREE, kind::ROOT_ITEM, u64::MAX);
    image.fs().search(objectid::ROOT_TREE, from, to, |key, _, data| {
        if key.kind == kind::ROOT_ITEM
            && let Some(item) = RootItem::read(data)
            && item.refs.get() == 0
        {
            all.push(deleted_subvolume(key.objectid, &item));
        }
        true
    })?;
    Ok(all)
}

fn deleted_subvolume(id: u64, item: &RootItem) -> Subvolume {
    Subvolume {
        id,
        parent: 0,
        name: Vec::new(),
        path: DELETED.to_vec(),
        generation: item.generation.get(),
        transids: [item.otransid.get(), item.stransid.get(), item.rtransid.get()],
        times: [&item.otime, &item.stime, &item.rtime].map(Time::from_disk),
        uuid: Uuid::from_bytes(item.uuid),
        parent_uuid: Uuid::from_bytes(item.parent_uuid),
        received_uuid: Uuid::from_bytes(item.received_uuid),
        read_only: item.flags.get() & root_flags::READ_ONLY != 0,
    }
}

/// The same on a live mount.
fn live_subvolumes(path: &Path) -> Result<(Vec<Subvolume>, Vec<String>), Errno> {
    let facts = client::subvolumes(path)?;
    let (mut known, mut passed) = (Vec::new(), Vec::new());
    for it in &facts {
        match live_place(path, it, &facts) {
            Ok(place) => known.push(live_subvolume(it, place)),
            Err(Errno::UCLEAN) => passed.push(format!(
                "the path of subvolume {}: {}",
                it.id,
                FileError::from(Errno::UCLEAN)
            )),
            // Somebody has deleted it meanwhile.
            Err(Errno::NOENT) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok((known, passed))
}

/// Where a subvolume is, from the top level as far as the caller may know.
fn live_place(path: &Path, it: &SubvolumeFacts, all: &[SubvolumeFacts]) -> Result<Vec<u8>, Errno> {
    let mut place = client::place_of_subvolume(path, it.id)?;
    let mut parent = it.parent;
    // Each step leads to another subvolume: no more steps than there are subvolumes.
    for _ in 0..all.len() {
        if parent == 0 || parent == objectid::FS_TREE {
            break;
        }
        // What lies above the mount is not told to everybody.
        let above = match client::place_of_subvolume(path, parent) {
            Err(Errno::ACCESS) => break,
            above => above?,
        };
        place = [above, place].join(&b'/');
        parent = all.iter().find(|it| it.id == parent).map_or(0, |it| it.parent);
    }
    Ok(place)
}

fn live_subvolume(it: &SubvolumeFacts, path: Vec<u8>) -> Subvolume {
    let [_, made, sent, received] = it.transids;
    let time = |index: usize| {
        it.times.get(index).map_or(Time::default(), |it| Time { sec: it.sec, nsec: it.nsec })
    };
    Subvolume {
        id: it.id,
        parent: it.parent,
        name: it.name.as_encoded_bytes().to_vec(),
        path,
        generation: it.generation,
        transids: [made, sent, received],
        times: [time(1), time(2), time(3)],
        uuid: Uuid::from_bytes(it.uuid),
        parent_uuid: Uuid::from_bytes(it.parent_uuid),
        received_uuid: Uuid::from_bytes(it.received_uuid),
        read_only: it.read_only,
    }
}

fn image_costs(image: &Image, ids: &[u64], told: Told<'_>) -> buttress::Result<SubvolumeCosts> {
    let costs = image.fs().subvolume_costs(|at| {
        say(told, at);
        true
    })?;
    Ok(SubvolumeCosts {
        shares: costs.subvolumes().map(|(id, share)| (id, *share)).collect(),
        total: costs.total(),
        shared: costs.shared(),
        freed: costs.freed_by(ids),
    })
}

fn say(told: Told<'_>, at: buttress::costs::Progress) {
    let what = match at.stage {
        buttress::costs::Stage::Nodes => "reading subvolumes",
        buttress::costs::Stage::Extents => "reading extents",
    };
    told(what, at.done, at.total);
}

fn image_info(image: &Image) -> Info {
    let (info, usage) = (image.fs().info(), image.fs().usage());
    let space =
        |it: buttress::ClassUsage| Space { flags: it.flags, total: it.total, used: it.used };
    let mut spaces: Vec<_> = image.fs().spaces().into_iter().map(space).collect();
    let flags = chunk_type::METADATA | GLOBAL_RESERVE;
    spaces.push(Space { flags, total: usage.global_reserve, used: 0 });
    let device = |it: buttress::DeviceInfo| Device {
        id: it.id,
        uuid: Uuid::from_bytes(it.uuid),
        size: it.total,
        used: it.used,
        path: absolute(&it.path),
    };
    Info {
        fsid: Uuid::from_bytes(info.fsid),
        label: info.label,
        devices: info.devices.into_iter().map(device).collect(),
        spaces,
        available: usage.data_available,
    }
}

/// The whole path of a device, as btrfs-progs prints it.
fn absolute(path: &str) -> String {
    std::path::absolute(path).map_or(path.to_owned(), |path| path.display().to_string())
}

fn live_info(path: &Path) -> Result<Info, Errno> {
    let (facts, spaces) = (client::facts(path)?, client::spaces(path)?);
    let statfs = rustix::fs::statvfs(path)?;
    let device = |it: buttress_fuse::mount::control::DeviceFacts| Device {
        id: it.id,
        uuid: Uuid::from_bytes(it.uuid),
        size: it.total,
        used: it.used,
        path: it.path.to_string_lossy().into_owned(),
    };
    let space = |it: &buttress_fuse::mount::control::SpaceFacts| Space {
        flags: it.flags,
        total: it.total,
        used: it.used,
    };
    Ok(Info {
        fsid: Uuid::from_bytes(facts.fsid),
        label: facts.label,
        devices: facts.devices.into_iter().map(device).collect(),
        spaces: spaces.iter().map(space).collect(),
        available: statfs.f_bavail.saturating_mul(statfs.f_frsize),
    })
}
