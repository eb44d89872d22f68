//! Opening: from the superblock to the system chunks, from those to the chunk tree, from that to all
//! chunks. What is not supported is refused by name here, before anything could misread it; what
//! only writing must not touch turns a writable open down and a read-only one into a warning.

use std::{
    fmt,
    ops::ControlFlow,
    os::unix::fs::FileTypeExt,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use buttress_device::{Access, BlockDevice, DeviceError, lost_mount};
use buttress_ondisk::{
    Key, SECTOR, Superblock,
    check::Gate,
    item::{DevItem, split},
    key::DiskKey,
    kind, objectid,
    superblock::super_flags,
};
use parking_lot::{Mutex, RwLock};

use crate::{
    backup_roots,
    chunk_map::{Chunk, ChunkMap},
    error::VolumeError,
    features,
    profile::Profile,
    super_io::{self, Chosen, Mirror},
    torn::Bytes,
    volume::{Counters, Member, Volume},
    walk::{TreeRoot, walk},
    warning::{Age, Rescue, Warning},
};

/// A volume and what its user should hear about it.
#[derive(Debug)]
pub struct Opened {
    /// The volume.
    pub volume: Volume,
    /// What is not as it should be, though it could be opened.
    pub warnings: Vec<Warning>,
}

/// Linux may have mounted this image by a name that is gone.
pub(crate) fn refuse_mounted(
    device: &dyn BlockDevice,
    superblock: &Superblock,
) -> Result<(), VolumeError> {
    let is_disk = |path: &Path| path.metadata().is_ok_and(|it| it.file_type().is_block_device());
    if device.place().is_none_or(|(path, _)| is_disk(&path)) {
        return Ok(());
    }
    let Some(disk) = lost_mount(&uuid::Uuid::from_bytes(superblock.fsid).to_string()) else {
        return Ok(());
    };
    let why = format!(
        "Linux has mounted a filesystem with the same id from {}, the file behind which cannot be found: it may be this one",
        disk.display()
    );
    Err(DeviceError::Busy { device: device.name().into(), why }.into())
}

impl Volume {
    /// Opens the filesystem on these devices (one, for now).
    ///
    /// Refused by name: several devices, profiles other than single and DUP, sector sizes other
    /// than 4096, unknown features; for writing also a log tree that waits for replay (unless the opener replays it), features that
    /// forbid it, and devices that are too small.
    ///
    /// When the primary superblock is bad, reading goes by a copy of it, and says so; writing only when it is sure that the
    /// copy is of the last commit.
    pub fn open(devices: Vec<Arc<dyn BlockDevice>>, access: Access) -> Result<Opened, VolumeError> {
        Volume::open_rescue(devices, access, Rescue::default())
    }

    /// The same, with what is allowed besides.
    pub fn open_rescue(
        devices: Vec<Arc<dyn BlockDevice>>,
        access: Access,
        rescue: Rescue,
    ) -> Result<Opened, VolumeError> {
        let device = only_device(devices)?;
        let chosen = super_io::choose(&*device)?;
        Volume::open_with(device, access, chosen, rescue)
    }

    /// Opens for reading with one copy of the superblock, 0 to 2, whatever the others are: for looking at what is left.
    pub fn open_copy(
        devices: Vec<Arc<dyn BlockDevice>>,
        copy: usize,
    ) -> Result<Opened, VolumeError> {
        let device = only_device(devices)?;
        let chosen = super_io::choose_copy(&*device, copy)?;
        Volume::open_with(device, Access::ReadOnly, chosen, Rescue::default())
    }

    fn open_with(
        device: Arc<dyn BlockDevice>,
        access: Access,
        chosen: Chosen,
        rescue: Rescue,
    ) -> Result<Opened, VolumeError> {
        let name = device.name().to_string();
        if access == Access::ReadWrite && device.is_read_only() {
            return Err(VolumeError::ReadOnly { device: name });
        }
        let Chosen { superblock, primary, mirror, replaced } = chosen;
        check_supported(&name, &superblock, rescue)?;
        let doubts = doubts(&*device, &superblock, replaced);
        if access == Access::ReadWrite {
            refuse_writing(&name, &doubts, rescue)?;
            refuse_mounted(&*device, &superblock)?;
            refuse_old(&name, &superblock, mirror.as_ref(), rescue)?;
        }
        let shared = |what| Warning::Shared { device: name.clone(), what };
        let mut warnings: Vec<Warning> = device.concerns().into_iter().map(shared).collect();
        warnings.extend(mirror.map(|it| it.warning(&*device, superblock.generation.get())));
        warnings.extend(doubts);
        if !rescue.backup_root {
            let volume = load(device, superblock, primary, access, rescue)?;
            return Ok(Opened { volume, warnings });
        }
        let (volume, older) = backup_roots::load_by_any(&device, superblock, rescue)?;
        warnings.extend(older);
        Ok(Opened { volume, warnings })
    }

    pub(crate) fn of(
        device: Arc<dyn BlockDevice>,
        sb: Superblock,
        primary: Option<Box<Bytes>>,
        access: Access,
        rescue: Rescue,
    ) -> Volume {
        let member = Member {
            devid: sb.dev_item.devid.get(),
            uuid: sb.dev_item.uuid,
            size: Arc::new(AtomicU64::new(sb.dev_item.total_bytes.get())),
            device,
        };
        Volume {
            members: vec![member],
            access,
            gate: Gate::of(&sb),
            takes_unverified: rescue.ignore_meta_sums && access == Access::ReadOnly,
            more_features: AtomicU64::new(0),
            newest: AtomicU64::new(sb.generation.get()),
            chunk_tree_uuid: [0; 16],
            superblock: RwLock::new(Box::new(sb)),
            last_primary: Mutex::new(primary),
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

    /// A commit writes the superblock's chunks anew by the chunk tree: whoever may write needs both to say the same.
    fn check_known(&self, logical: u64, data: &[u8]) -> Result<(), VolumeError> {
        if self.access() == Access::ReadOnly {
            return Ok(());
        }
        let chunk = Chunk::decode(logical, data)
            .map_err(|source| VolumeError::Chunk { logical, source })?;
        if self.chunk_at(logical).is_some_and(|known| *known == chunk) {
            return Ok(());
        }
        Err(VolumeError::ChunkPlace {
            logical,
            what: "the chunk tree contradicts the superblock",
            have: "another chunk".into(),
            expect: "the superblock's".into(),
        })
    }

    fn load_chunk_tree(&mut self) -> Result<(), VolumeError> {
        let sb = self.superblock();
        let root = TreeRoot::chunk_tree(&sb);
        self.chunk_tree_uuid = self.read_block(root.bytenr, &root.expect())?.head().chunk_tree_uuid;
        // Those of the superblock stay as they are, as in Linux: the chunk tree was read through them.
        let known: Vec<u64> = self.chunks().iter().map(|chunk| chunk.logical).collect();
        let mut total_bytes = None;
        let walked = walk(self, &root, Key::MIN..=Key::MAX, |key, data| {
            let step = match key.kind {
                kind::CHUNK_ITEM if known.contains(&key.offset) => {
                    self.check_known(key.offset, data)
                }
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
                for member in &self.members {
                    member.size.store(total_bytes, Ordering::Release);
                }
                Ok(())
            }
            None => Err(device_item("number of device items", 0, 1)),
        }
    }
}

/// The volume that a superblock leads to. For writing, `primary` is what the primary superblock was when that was chosen.
pub(crate) fn load(
    device: Arc<dyn BlockDevice>,
    superblock: Superblock,
    primary: Option<Box<Bytes>>,
    access: Access,
    rescue: Rescue,
) -> Result<Volume, VolumeError> {
    let mut volume = Volume::of(device, superblock, primary, access, rescue);
    volume.load_system_chunks()?;
    volume.load_chunk_tree()?;
    Ok(volume)
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

pub(crate) fn only_device(
    devices: Vec<Arc<dyn BlockDevice>>,
) -> Result<Arc<dyn BlockDevice>, VolumeError> {
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

/// Refuses what even reading does not do. What was left in the middle of a change of the format may be asked for all the same: its blocks
/// pass the gate or not, each by itself.
pub(crate) fn check_supported(
    device: &str,
    sb: &Superblock,
    rescue: Rescue,
) -> Result<(), VolumeError> {
    let refuse = |what| Err(VolumeError::Unsupported { device: device.into(), what });
    if sb.num_devices.get() != 1 {
        return Err(VolumeError::SeveralDevices {
            device: device.into(),
            devid: sb.dev_item.devid.get(),
            count: sb.num_devices.get(),
        });
    }
    if u64::from(sb.sectorsize.get()) != SECTOR {
        return refuse(format!("a sector size of {}", sb.sectorsize.get()));
    }
    if let Some(names) = features::unreadable(sb) {
        return refuse(format!("feature {names}"));
    }
    let flags = sb.flags.get();
    if flags & super_flags::METADUMP != 0 {
        let what = "a metadata dump of the first kind, whose chunks are not there";
        return refuse(what.into());
    }
    if rescue.ignore_super_flags {
        return Ok(());
    }
    let named = [
        (
            super_flags::CHANGING_FSID | super_flags::CHANGING_FSID_V2,
            "an unfinished change of the filesystem's uuid",
        ),
        (super_flags::CHANGING_BG_TREE, "an unfinished change to or from a block group tree"),
        (
            super_flags::CHANGING_DATA_CSUM | super_flags::CHANGING_META_CSUM,
            "an unfinished change of checksums",
        ),
    ];
    let unfinished = named.into_iter().find(|(bits, _)| flags & bits != 0);
    let what = match (unfinished, flags & !super_flags::AT_REST) {
        (Some((_, what)), _) => what.into(),
        (None, 0) => return Ok(()),
        (None, unknown) => format!("unknown superblock flags {unknown:#x}"),
    };
    refuse(format!(
        "{what} (--rescue ignoresuperflags, for a mount -o ro,rescue=ignoresuperflags, reads all the same)"
    ))
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
    if sb.flags.get() & super_flags::METADUMP_V2 != 0 {
        doubts.push(Warning::MetadataDump);
    }
    let (size, total_bytes) = (device.size(), sb.dev_item.total_bytes.get());
    if size < total_bytes {
        let device = device.name().into();
        doubts.push(Warning::DeviceShort { device, size, total_bytes });
    }
    doubts
}

fn refuse_writing(device: &str, doubts: &[Warning], rescue: Rescue) -> Result<(), VolumeError> {
    let device = device.to_string();
    if let Some(why) = rescue.why_reading_only() {
        return Err(VolumeError::ReadOnlyPossible { device, why });
    }
    match doubts.iter().find(|doubt| !rescue.replays_log || **doubt != Warning::LogTree) {
        None => Ok(()),
        Some(Warning::Replaced { other }) => Err(VolumeError::Replaced { device, other }),
        Some(&Warning::DeviceShort { size, total_bytes, .. }) => {
            Err(VolumeError::CutOff { device, size, total_bytes })
        }
        Some(doubt) => Err(VolumeError::ReadOnlyPossible { device, why: doubt.to_string() }),
    }
}

/// Refuses to write on from a copy of the superblock that may be old.
pub(crate) fn refuse_old(
    device: &str,
    superblock: &Superblock,
    mirror: Option<&Mirror>,
    rescue: Rescue,
) -> Result<(), VolumeError> {
    match mirror {
        Some(Mirror { offset, age, primary }) if *age != Age::Current && !rescue.backup_super => {
            Err(VolumeError::OldMirror {
                device: device.into(),
                offset: *offset,
                generation: superblock.generation.get(),
                age: *age,
                primary: primary.clone(),
            })
        }
        _ => Ok(()),
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
        let size = member.total_bytes();
        if end > size {
            let expect = format!("at most {size}");
            return place("stripe past the end of its device", end.to_string(), expect);
        }
    }
    Ok(())
}
