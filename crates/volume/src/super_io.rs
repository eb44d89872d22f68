//! Superblocks: found at opening, written at commit.
//!
//! The primary is used whenever it is good. If not, a good mirror is, for reading, and that is said: it
//! may be old, and a filesystem made later on the same device by another tool leaves it in place. Linux
//! never uses one by itself. Writing goes on from a mirror only where what is left of the primary shows
//! that it is of the last commit (see [`torn`](crate::torn)), or when the caller says so.
//!
//! Crash argument for writing: the first barrier makes everything the new superblock reaches durable
//! before it is written; the second makes it durable before a mirror is touched, so at each moment
//! the primary or a mirror is whole. The next commit's first barrier covers the mirrors.
//!
//! Before anything the primary is read again. When it is another one than was last seen there, somebody else
//! writes to the same filesystem, by a way that no lock shows: nothing of ours goes over what he did. One that
//! has gone bad is nobody's, and is written anew. And the size is looked at: where somebody has cut off the end of
//! an image, what was there is lost, and a commit would say that it is safe.

use std::sync::atomic::Ordering;

use buttress_codec::ChecksumKind;
use buttress_device::{BlockDevice, DeviceError};
use buttress_ondisk::{
    Superblock,
    check::{self, Corruption, CorruptionKind},
    superblock::{MAGIC, SUPERBLOCK_LEN, SUPERBLOCK_OFFSETS, super_flags},
};
use zerocopy::{FromBytes, IntoBytes};

use crate::{
    error::VolumeError,
    foreign,
    torn::{self, Bytes},
    volume::{Member, Volume},
    warning::{Age, Warning},
};

/// Where the magic is in a superblock.
const MAGIC_AT: std::ops::Range<usize> = 0x40..0x48;
/// Where what the checksum covers begins.
const COVERED_FROM: usize = 32;

/// What is at one superblock place.
enum Found {
    Good(Box<Superblock>),
    Bad(Box<Corruption>),
    /// Nothing that says it is a superblock.
    Nothing(Box<Corruption>),
    Unreadable(DeviceError),
}

fn look(device: &dyn BlockDevice, offset: u64) -> Found {
    match read(device, offset) {
        Ok(bytes) => judge(&bytes, offset),
        Err(error) => Found::Unreadable(error),
    }
}

fn read(device: &dyn BlockDevice, offset: u64) -> Result<Box<Bytes>, DeviceError> {
    let mut bytes = Box::new([0; SUPERBLOCK_LEN]);
    device.read_at(offset, &mut bytes[..])?;
    Ok(bytes)
}

fn judge(bytes: &Bytes, offset: u64) -> Found {
    match check::superblock(bytes) {
        Ok(sb) if sb.bytenr.get() == offset => Found::Good(Box::new(sb)),
        Ok(sb) => Found::Bad(Box::new(Corruption {
            kind: CorruptionKind::Superblock,
            root: 0,
            block: offset,
            slot: None,
            what: "another place's copy",
            have: sb.bytenr.get().to_string(),
            expect: offset.to_string(),
        })),
        Err(corruption) => {
            let corruption = Box::new(Corruption { block: offset, ..corruption });
            if is_named(bytes) { Found::Bad(corruption) } else { Found::Nothing(corruption) }
        }
    }
}

/// Whether it says that it is a superblock.
fn is_named(bytes: &Bytes) -> bool {
    bytes.get(MAGIC_AT) == Some(&MAGIC)
}

/// Whether somebody has written it to its end, whatever else is wrong with it: it has its checksum.
fn is_finished(bytes: &Bytes) -> bool {
    let sb: Superblock = zerocopy::transmute!(*bytes);
    let kind = ChecksumKind::from_u16(sb.csum_type.get());
    kind.is_some_and(|kind| sb.csum.starts_with(kind.digest(covered(bytes)).as_bytes()))
}

/// What the checksum covers.
fn covered(bytes: &[u8]) -> &[u8] {
    bytes.get(COVERED_FROM..).unwrap_or_default()
}

/// A superblock to open with.
pub(crate) struct Chosen {
    pub superblock: Superblock,
    /// The primary's bytes when it was chosen, good or bad, where they can be read: who changes them later is somebody else.
    pub primary: Option<Box<Bytes>>,
    /// What it is, when it is not the primary.
    pub mirror: Option<Mirror>,
    /// Another filesystem that seems to have taken the device over, when the primary is gone.
    pub replaced: Option<&'static str>,
}

/// A mirror that stands in for the primary.
pub(crate) struct Mirror {
    /// Where it is, in bytes.
    pub offset: u64,
    /// Whether it can be old.
    pub age: Age,
    /// What is wrong with the primary.
    pub primary: String,
}

impl Mirror {
    pub fn warning(self, device: &dyn BlockDevice, generation: u64) -> Warning {
        let Mirror { offset, age, primary } = self;
        Warning::MirrorUsed { device: device.name().into(), offset, generation, age, primary }
    }
}

/// Finds the superblock to use on a device.
pub(crate) fn choose(device: &dyn BlockDevice) -> Result<Chosen, VolumeError> {
    let [primary_at, mirrors @ ..] = SUPERBLOCK_OFFSETS;
    let (primary, bytes) = match read(device, primary_at) {
        Ok(bytes) => (judge(&bytes, primary_at), Some(bytes)),
        Err(error) => (Found::Unreadable(error), None),
    };
    if let Found::Good(superblock) = primary {
        return Ok(Chosen {
            superblock: *superblock,
            primary: bytes,
            mirror: None,
            replaced: None,
        });
    }
    let found: Vec<Found> = mirrors
        .into_iter()
        .filter(|at| at + SUPERBLOCK_LEN as u64 <= device.size())
        .map(|at| look(device, at))
        .collect();
    let Some(superblock) = best(&found, bytes.as_deref()) else {
        return Err(match bytes.as_deref() {
            Some(bytes) if is_old_dump(bytes) => old_dump(device),
            _ => no_superblock(device, primary, found),
        });
    };
    let replaced = match primary {
        Found::Nothing(_) => foreign::filesystem(device),
        _ => None,
    };
    let mirror = Mirror {
        offset: superblock.bytenr.get(),
        age: age(&superblock, bytes.as_deref()),
        primary: describe(&primary),
    };
    Ok(Chosen { superblock, primary: bytes, mirror: Some(mirror), replaced })
}

/// The mirror to use: the first good one, or a later one that is newer and of the same filesystem. What lies beyond its end
/// is not its own.
fn best(mirrors: &[Found], primary: Option<&Bytes>) -> Option<Superblock> {
    let mut best: Option<&Superblock> = None;
    for found in mirrors {
        let Found::Good(sb) = found else { continue };
        let end = sb.bytenr.get() + SUPERBLOCK_LEN as u64;
        let of_it = |best: &Superblock| {
            sb.fsid == best.fsid
                && sb.dev_item.uuid == best.dev_item.uuid
                && end <= best.dev_item.total_bytes.get()
                && sb.generation > best.generation
        };
        if primary.is_none_or(|primary| torn::may_be_of(sb, primary)) && best.is_none_or(of_it) {
            best = Some(sb);
        }
    }
    best.copied()
}

fn age(mirror: &Superblock, primary: Option<&Bytes>) -> Age {
    let Some(primary) = primary else { return Age::Unknown };
    if torn::is_current(mirror, primary) {
        return Age::Current;
    }
    match torn::generation(primary).and_then(|it| it.checked_sub(mirror.generation.get())) {
        Some(commits @ 1..) => Age::Behind { commits },
        _ => Age::Unknown,
    }
}

/// Takes one copy of the superblock (0: the primary), whatever the others are.
pub(crate) fn choose_copy(device: &dyn BlockDevice, copy: usize) -> Result<Chosen, VolumeError> {
    let name = || device.name().to_string();
    let Some(&offset) = SUPERBLOCK_OFFSETS.get(copy) else {
        let what = format!("superblock copy {copy}");
        return Err(VolumeError::Unsupported { device: name(), what });
    };
    match look(device, offset) {
        // For reading only.
        Found::Good(superblock) => {
            Ok(Chosen { superblock: *superblock, primary: None, mirror: None, replaced: None })
        }
        Found::Bad(source) | Found::Nothing(source) => {
            Err(VolumeError::Superblock { device: name(), source })
        }
        Found::Unreadable(error) => Err(error.into()),
    }
}

/// Whether this is what `btrfs-image -r -o` makes: its only chunk has no length, so that neither Linux nor btrfs-progs open it.
fn is_old_dump(primary: &Bytes) -> bool {
    let sb = Superblock::read_from_bytes(&primary[..]);
    sb.is_ok_and(|sb| sb.magic == MAGIC && sb.flags.get() & super_flags::METADUMP != 0)
}

fn old_dump(device: &dyn BlockDevice) -> VolumeError {
    let what =
        "a metadata dump restored in the old way (`btrfs-image -o`), whose chunks are not there";
    VolumeError::Unsupported { device: device.name().into(), what: what.into() }
}

fn describe(found: &Found) -> String {
    match found {
        Found::Good(_) => "good".into(),
        Found::Bad(corruption) | Found::Nothing(corruption) => corruption.to_string(),
        Found::Unreadable(error) => error.to_string(),
    }
}

fn no_superblock(device: &dyn BlockDevice, primary: Found, mirrors: Vec<Found>) -> VolumeError {
    let name = || device.name().to_string();
    for found in std::iter::once(primary).chain(mirrors) {
        match found {
            Found::Bad(source) => return VolumeError::Superblock { device: name(), source },
            Found::Unreadable(error @ DeviceError::Io { .. }) => return error.into(),
            _ => {}
        }
    }
    VolumeError::NotBtrfs { device: name() }
}

/// The superblock's bytes for one place, with its checksum.
pub(crate) fn seal(sb: &Superblock, offset: u64) -> Superblock {
    let mut sealed = *sb;
    sealed.bytenr = offset.into();
    sealed.csum = [0; 32];
    let kind = ChecksumKind::from_u16(sb.csum_type.get()).unwrap_or(ChecksumKind::Crc32c);
    let digest = kind.digest(covered(sealed.as_bytes()));
    sealed.csum = *digest.as_field();
    sealed
}

impl Member {
    /// Refuses a device of which somebody has cut off the end.
    fn check_size(&self) -> Result<(), VolumeError> {
        let (size, total_bytes) = (self.device.size(), self.total_bytes());
        match size < total_bytes {
            true => {
                Err(VolumeError::CutShort { device: self.device.name().into(), size, total_bytes })
            }
            false => Ok(()),
        }
    }
}

impl Volume {
    /// Writes the superblock: a barrier, the primary, a barrier, then the other copies that fit.
    /// Place and checksum are filled in here. From its return on, the primary is durable; the
    /// copies that could not be written are returned.
    ///
    /// Where the primary names a log, which it does alone, the copies get to know of it first: when it is torn while it is written, a copy
    /// is what is left, and would take back what that log has made durable.
    ///
    /// Refused when another program has written a superblock since ours was read or written, or has cut the device short.
    pub fn write_superblocks(&self, sb: &Superblock) -> Result<Vec<DeviceError>, VolumeError> {
        self.check_writable()?;
        let mut failed = self.copy_log_root()?;
        self.write_primary(|_| *sb)?;
        failed.extend(self.write_mirrors(sb));
        Ok(failed)
    }

    fn copy_log_root(&self) -> Result<Vec<DeviceError>, VolumeError> {
        let current = self.superblock.read();
        if current.log_root.get() == 0 {
            return Ok(Vec::new());
        }
        self.still_ours()?;
        Ok(self.write_mirrors(&current))
    }

    fn write_mirrors(&self, sb: &Superblock) -> Vec<DeviceError> {
        let [_, mirrors @ ..] = SUPERBLOCK_OFFSETS;
        let mut failed = Vec::new();
        for member in &self.members {
            let size = member.device.size().min(sb.dev_item.total_bytes.get());
            for at in mirrors.into_iter().filter(|at| at + (SUPERBLOCK_LEN as u64) < size) {
                failed.extend(member.device.write_at(at, seal(sb, at).as_bytes()).err());
            }
        }
        failed
    }

    /// Has the primary superblock name the root of a log, beside the last commit: a barrier, the primary, a barrier. The copies name
    /// none, as Linux has it, until the next commit.
    ///
    /// Refused like [`Volume::write_superblocks`].
    pub fn write_log_root(&self, bytenr: u64, level: u8) -> Result<(), VolumeError> {
        self.check_writable()?;
        self.write_primary(|last| Superblock {
            log_root: bytenr.into(),
            log_root_level: level,
            ..*last
        })
    }

    /// Writes the primary superblock that `next` makes of the last one, between two barriers.
    fn write_primary(
        &self,
        next: impl FnOnce(&Superblock) -> Superblock,
    ) -> Result<(), VolumeError> {
        let mut current = self.superblock.write();
        let primary_at = SUPERBLOCK_OFFSETS[0];
        self.still_ours()?;
        self.barrier()?;
        let primary = seal(&next(&current), primary_at);
        for member in &self.members {
            member.device.write_at(primary_at, primary.as_bytes())?;
        }
        self.barrier()?;
        self.newest.fetch_max(primary.generation.get(), Ordering::AcqRel);
        **current = primary;
        *self.last_primary.lock() = Some(Box::new(zerocopy::transmute!(primary)));
        Ok(())
    }

    /// Refuses to go on when the device has lost its end, or the primary superblock is another one than was last seen there: before a commit writes to places
    /// that are free only if nobody else has taken them. One that cannot be read, or is bad without being anybody's, says
    /// nothing of that: no commit after ours was finished. The answer is what is wrong with it.
    pub fn check_alone(&self) -> Result<Option<String>, VolumeError> {
        // While it is written, what is there and what we know of it differ.
        let _unchanged = self.superblock.read();
        self.still_ours()
    }

    fn still_ours(&self) -> Result<Option<String>, VolumeError> {
        self.members.iter().try_for_each(Member::check_size)?;
        let last = self.last_primary.lock();
        let Some((member, last)) = self.members.first().zip(last.as_ref()) else { return Ok(None) };
        let now = match read(&*member.device, SUPERBLOCK_OFFSETS[0]) {
            Ok(now) => now,
            Err(error) => return Ok(Some(error.to_string())),
        };
        if now != *last && is_named(&now) && !is_finished(&now) {
            return Ok(Some(describe(&judge(&now, SUPERBLOCK_OFFSETS[0]))));
        }
        if covered(&now[..]) == covered(&last[..]) {
            return Ok(None);
        }
        Err(VolumeError::Overwritten { device: self.name() })
    }
}
