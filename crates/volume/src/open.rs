//! Opening: from the superblock to the system chunks, from those to the chunk tree, from that to all
//! chunks. What is not supported is refused by name here, before anything could misread it; what
//! only writing must not touch turns a writable open down and a read-only one into a warning.

use std::{
    fmt,
    ops::ControlFlow,
    sync::{Arc, atomic::AtomicU64},
};

use buttress_device::{Access, BlockDevice};
use buttress_ondisk::{
    Key, SECTOR, Superblock,
    check::Gate,
    item::{DevItem, split},
    key::DiskKey,
    kind, objectid,
    superblock::super_flags,
};
use parking_lot::RwLock;

use crate::{
    chunk_map::{Chunk, ChunkMap},
    error::VolumeError,
    features,
    profile::Profile,
    super_io::{self, Chosen},
    volume::{Counters, Member, Volume},
    walk::{TreeRoot, walk},
};

/// A volume and what its user should hear about it.
#[derive(Debug)]
pub struct Opened {
    /// The volume.
    pub volume: Volume,
    /// What is not as it should be, though it could be opened.
    pub warnings: Vec<Warning>,
}

/// Something that is not as it should be and that did not prevent the open.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Warning {
    /// The primary superblock is bad; a mirror was used.
    MirrorUsed {
        /// The device.
        device: String,
        /// Where the mirror is, in bytes.
        offset: u64,
        /// Its generation.
        generation: u64,
        /// What is wrong with the primary.
        primary: String,
    },
    /// A log tree waits for replay: what was fsynced last is not seen.
    LogTree,
    /// Features, known or not, that we do not keep up when writing.
    CompatRo {
        /// Their names, or their bits.
        names: String,
    },
    /// The device is smaller than the filesystem.
    DeviceShort {
        /// The device.
        device: String,
        /// Its bytes.
        size: u64,
        /// The filesystem's bytes on it.
        total_bytes: u64,
    },
    /// The superblock says that an error was found.
    ErrorFlag,
    /// The superblock says that others are to be added on top of this filesystem.
    Seeding,
    /// Another filesystem's signature is where the primary superblock is missing.
    Replaced {
        /// What is there.
        other: &'static str,
    },
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::MirrorUsed { device, offset, generation, primary } => write!(
                f,
                "{device}: the primary superblock is bad ({primary}); using the copy at {offset} \
                 of generation {generation}"
            ),
            Self::LogTree => f.write_str(
                "a log tree waits for replay, which is not there yet: the last fsynced changes \
                 are not shown",
            ),
            Self::CompatRo { names } => {
                write!(f, "features that must be known to write ({names}): reading only")
            }
            Self::DeviceShort { device, size, total_bytes } => {
                write!(f, "{device} has {size} bytes, the filesystem takes {total_bytes}")
            }
            Self::ErrorFlag => f.write_str("the superblock says that an error was found before"),
            Self::Seeding => f.write_str("this is a seed filesystem: reading only"),
            Self::Replaced { other } => write!(f, "{other} seems to have taken the device over"),
        }
    }
}

impl Volume {
    /// Opens the filesystem on these devices (one, for now).
    ///
    /// Refused by name: several devices, profiles other than single and DUP, sector sizes other
    /// than 4096, unknown features; for writing also a log tree that waits for replay, features that
    /// forbid it, and devices that are too small.
    pub fn open(devices: Vec<Arc<dyn BlockDevice>>, access: Access) -> Result<Opened, VolumeError> {
        let device = only_device(devices)?;
        let chosen = super_io::choose(&*device)?;
        Volume::open_with(device, access, chosen)
    }

    /// Opens for reading with one copy of the superblock, 0 to 2, whatever the others are: for looking at what is left.
    pub fn open_copy(
        devices: Vec<Arc<dyn BlockDevice>>,
        copy: usize,
    ) -> Result<Opened, VolumeError> {
        let device = only_device(devices)?;
        let chosen = super_io::choose_copy(&*device, copy)?;
        Volume::open_with(device, Access::ReadOnly, chosen)
    }

    fn open_with(
        device: Arc<dyn BlockDevice>,
        access: Access,
        chosen: Chosen,
    ) -> Result<Opened, VolumeError> {
        let name = device.name().to_string();
        if access == Access::ReadWrite && device.is_read_only() {
            return Err(VolumeError::ReadOnly { device: name });
        }
        let Chosen { superblock, warning, replaced } = chosen;
        check_supported(&name, &superblock)?;
        let mut warnings: Vec<Warning> = warning.into_iter().collect();
        let doubts = doubts(&*device, &superblock, replaced);
        if access == Access::ReadWrite {
            refuse_writing(&name, &doubts)?;
        }
        warnings.extend(doubts);
        let mut volume = Volume::of(device, superblock, access);
        volume.load_system_chunks()?;
        volume.load_chunk_tree()?;
        Ok(Opened { volume, warnings })
    }

    fn of(device: Arc<dyn BlockDevice>, sb: Superblock, access: Access) -> Volume {
        let member = Member {
            devid: sb.dev_item.devid.get(),
            uuid: sb.dev_item.uuid,
            total_bytes: sb.dev_item.total_bytes.get(),
            device,
        };
        Volume {
            members: vec![member],
            access,
            gate: Gate::of(&sb),
            newest: AtomicU64::new(sb.generation.get()),
            chunk_tree_uuid: [0; 16],
            superblock: RwLock::new(Box::new(sb)),
            map: ChunkMap::default(),
            repair: RwLock::new(()),
            counters: Counters::default(),
        }
    }

    /// The superblock's own list of chunks: enough to read the chunk tree.
    fn load_system_chunks(&mut self) -> Result<(), VolumeError> {
        let sb = self.superblock();
        let size = sb.sys_chunk_array_size.get() as usize;
        let corrupt = |at, what| VolumeError::SystemArray { at, what };
        let array = sb.sys_chunk_array.get(..size).ok_or(corrupt(0, "too long"))?;
        let mut rest = array;
        while !rest.is_empty() {
            let at = array.len() - rest.len();
            let (key, after) = split::<DiskKey>(rest).ok_or(corrupt(at, "cut off"))?;
            if key.kind != kind::CHUNK_ITEM {
                return Err(corrupt(at, "not a chunk"));
            }
            let chunk = self.load_chunk(key.offset.get(), after)?;
            rest = after.get(chunk.encode().len()..).unwrap_or_default();
        }
        Ok(())
    }

    fn load_chunk(&self, logical: u64, data: &[u8]) -> Result<Chunk, VolumeError> {
        let chunk = Chunk::decode(logical, data)
            .map_err(|source| VolumeError::Chunk { logical, source })?;
        let profile = chunk.profile();
        if !matches!(profile, Profile::Single | Profile::Dup) {
            return Err(VolumeError::Profile { device: self.name(), logical, profile });
        }
        self.add_chunk(chunk.clone())?;
        Ok(chunk)
    }

    fn load_chunk_tree(&mut self) -> Result<(), VolumeError> {
        let sb = self.superblock();
        let root = TreeRoot::chunk_tree(&sb);
        self.chunk_tree_uuid = self.read_block(root.bytenr, &root.expect())?.head().chunk_tree_uuid;
        let mut total_bytes = None;
        let walked = walk(self, &root, Key::MIN..=Key::MAX, |key, data| {
            let step = match key.kind {
                kind::CHUNK_ITEM => self.load_chunk(key.offset, data).map(|_| ()),
                kind::DEV_ITEM => check_device(&sb, key, data).map(|it| total_bytes = Some(it)),
                _ => Ok(()),
            };
            match step {
                Ok(()) => ControlFlow::Continue(()),
                Err(error) => ControlFlow::Break(error),
            }
        })?;
        if let ControlFlow::Break(error) = walked {
            return Err(error);
        }
        match total_bytes {
            Some(total_bytes) => {
                self.members.iter_mut().for_each(|member| member.total_bytes = total_bytes);
                Ok(())
            }
            None => Err(device_item("number of device items", 0, 1)),
        }
    }
}

impl TreeRoot {
    /// The chunk tree of a superblock.
    pub fn chunk_tree(sb: &Superblock) -> TreeRoot {
        TreeRoot {
            bytenr: sb.chunk_root.get(),
            level: sb.chunk_root_level,
            generation: Some(sb.chunk_root_generation.get()),
            owner: Some(objectid::CHUNK_TREE),
        }
    }

    /// The root tree of a superblock.
    pub fn root_tree(sb: &Superblock) -> TreeRoot {
        TreeRoot {
            bytenr: sb.root.get(),
            level: sb.root_level,
            generation: Some(sb.generation.get()),
            owner: Some(objectid::ROOT_TREE),
        }
    }
}

fn only_device(devices: Vec<Arc<dyn BlockDevice>>) -> Result<Arc<dyn BlockDevice>, VolumeError> {
    let count = devices.len();
    let mut devices = devices.into_iter();
    match (devices.next(), count) {
        (Some(device), 1) => Ok(device),
        (first, _) => Err(VolumeError::Unsupported {
            device: first.map_or_else(String::new, |device| device.name().into()),
            what: format!("a filesystem on {count} devices"),
        }),
    }
}

/// Refuses what even reading does not do.
fn check_supported(device: &str, sb: &Superblock) -> Result<(), VolumeError> {
    let refuse = |what| Err(VolumeError::Unsupported { device: device.into(), what });
    if sb.num_devices.get() != 1 {
        return refuse(format!("a filesystem on {} devices", sb.num_devices.get()));
    }
    if u64::from(sb.sectorsize.get()) != SECTOR {
        return refuse(format!("a sector size of {}", sb.sectorsize.get()));
    }
    if let Some(names) = features::unreadable(sb) {
        return refuse(format!("feature {names}"));
    }
    let flags = sb.flags.get();
    let named = [
        (super_flags::METADUMP | super_flags::METADUMP_V2, "a metadata dump"),
        (
            super_flags::CHANGING_FSID | super_flags::CHANGING_FSID_V2,
            "an unfinished change of the filesystem's uuid",
        ),
    ];
    match named.into_iter().find(|(bits, _)| flags & bits != 0) {
        Some((_, what)) => refuse(what.into()),
        None => Ok(()),
    }
}

/// What only reading may pass over.
fn doubts(
    device: &dyn BlockDevice,
    sb: &Superblock,
    replaced: Option<&'static str>,
) -> Vec<Warning> {
    let mut doubts = Vec::new();
    doubts.extend(replaced.map(|other| Warning::Replaced { other }));
    doubts.extend(features::unwritable(sb).map(|names| Warning::CompatRo { names }));
    if sb.log_root.get() != 0 {
        doubts.push(Warning::LogTree);
    }
    if sb.flags.get() & super_flags::ERROR != 0 {
        doubts.push(Warning::ErrorFlag);
    }
    if sb.flags.get() & super_flags::SEEDING != 0 {
        doubts.push(Warning::Seeding);
    }
    let (size, total_bytes) = (device.size(), sb.dev_item.total_bytes.get());
    if size < total_bytes {
        let device = device.name().into();
        doubts.push(Warning::DeviceShort { device, size, total_bytes });
    }
    doubts
}

fn refuse_writing(device: &str, doubts: &[Warning]) -> Result<(), VolumeError> {
    let device = device.to_string();
    match doubts.first() {
        None => Ok(()),
        Some(Warning::Replaced { other }) => Err(VolumeError::Replaced { device, other }),
        Some(doubt) => Err(VolumeError::ReadOnlyPossible { device, why: doubt.to_string() }),
    }
}

fn device_item(
    what: &'static str,
    have: impl fmt::Display,
    expect: impl fmt::Display,
) -> VolumeError {
    VolumeError::DeviceItem { what, have: have.to_string(), expect: expect.to_string() }
}

/// Compares the chunk tree's device item with the superblock; its size in bytes.
fn check_device(sb: &Superblock, key: &Key, data: &[u8]) -> Result<u64, VolumeError> {
    let item = DevItem::of(data).ok_or_else(|| device_item("length", data.len(), 98))?;
    let devid = sb.dev_item.devid.get();
    if item.devid.get() != devid || key.offset != devid {
        return Err(device_item("device number", item.devid.get(), devid));
    }
    if item.uuid != sb.dev_item.uuid {
        let hex = |uuid: [u8; 16]| format!("{:032x}", u128::from_be_bytes(uuid));
        return Err(device_item("uuid", hex(item.uuid), hex(sb.dev_item.uuid)));
    }
    Ok(item.total_bytes.get())
}

/// Refuses a chunk whose stripes are not on these devices, or not inside them.
pub(crate) fn check_place(members: &[Member], chunk: &Chunk) -> Result<(), VolumeError> {
    let place = |what, have: String, expect: String| {
        Err(VolumeError::ChunkPlace { logical: chunk.logical, what, have, expect })
    };
    for stripe in &chunk.stripes {
        let found = members.iter().find(|member| member.devid == stripe.devid);
        let Some(member) = found.filter(|member| member.uuid == stripe.dev_uuid) else {
            let have = format!("device {}", stripe.devid);
            return place("stripe on an unknown device", have, "a device that is there".into());
        };
        let end = stripe.offset.saturating_add(chunk.device_len());
        if end > member.total_bytes {
            let expect = format!("at most {}", member.total_bytes);
            return place("stripe past the end of its device", end.to_string(), expect);
        }
    }
    Ok(())
}
