//! Superblocks: found at opening, written at commit.
//!
//! The primary is used whenever it is good. If not, the newest good mirror is, and that is said:
//! the mirrors are written after the primary, so one may be a commit behind, and a filesystem made
//! later on the same device by another tool leaves them in place.
//!
//! Crash argument for writing: the first barrier makes everything the new superblock reaches durable
//! before it is written; the second makes it durable before a mirror is touched, so at each moment
//! the primary or a mirror is whole. The next commit's first barrier covers the mirrors.

use std::sync::atomic::Ordering;

use buttress_codec::ChecksumKind;
use buttress_device::{BlockDevice, DeviceError};
use buttress_ondisk::{
    Superblock,
    check::{self, Corruption, CorruptionKind},
    superblock::{SUPERBLOCK_LEN, SUPERBLOCK_OFFSETS},
};
use zerocopy::IntoBytes;

use crate::{error::VolumeError, foreign, open::Warning, volume::Volume};

/// Where the magic is in a superblock.
const MAGIC_AT: std::ops::Range<usize> = 0x40..0x48;

/// What is at one superblock place.
enum Found {
    Good(Box<Superblock>),
    Bad(Box<Corruption>),
    /// Nothing that says it is a superblock.
    Nothing(Box<Corruption>),
    Unreadable(DeviceError),
}

fn look(device: &dyn BlockDevice, offset: u64) -> Found {
    let mut bytes = [0; SUPERBLOCK_LEN];
    if let Err(error) = device.read_at(offset, &mut bytes) {
        return Found::Unreadable(error);
    }
    match check::superblock(&bytes) {
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
            let named = bytes.get(MAGIC_AT) == Some(&buttress_ondisk::superblock::MAGIC);
            let corruption = Box::new(Corruption { block: offset, ..corruption });
            if named { Found::Bad(corruption) } else { Found::Nothing(corruption) }
        }
    }
}

/// A superblock to open with.
pub(crate) struct Chosen {
    pub superblock: Superblock,
    /// Set when it is not the primary.
    pub warning: Option<Warning>,
    /// Another filesystem that seems to have taken the device over, when the primary is gone.
    pub replaced: Option<&'static str>,
}

/// Finds the superblock to use on a device.
pub(crate) fn choose(device: &dyn BlockDevice) -> Result<Chosen, VolumeError> {
    let [primary_at, mirrors @ ..] = SUPERBLOCK_OFFSETS;
    let primary = look(device, primary_at);
    if let Found::Good(superblock) = primary {
        return Ok(Chosen { superblock: *superblock, warning: None, replaced: None });
    }
    let found: Vec<Found> = mirrors
        .into_iter()
        .filter(|at| at + SUPERBLOCK_LEN as u64 <= device.size())
        .map(|at| look(device, at))
        .collect();
    let newest = found.iter().filter_map(|found| match found {
        Found::Good(sb) => Some(sb),
        _ => None,
    });
    let Some(newest) = newest.max_by_key(|sb| sb.generation.get()) else {
        return Err(no_superblock(device, primary, found));
    };
    let replaced = match primary {
        Found::Nothing(_) => foreign::filesystem(device),
        _ => None,
    };
    let warning = Some(Warning::MirrorUsed {
        device: device.name().into(),
        offset: newest.bytenr.get(),
        generation: newest.generation.get(),
        primary: describe(&primary),
    });
    Ok(Chosen { superblock: **newest, warning, replaced })
}

/// Takes one copy of the superblock (0: the primary), whatever the others are.
pub(crate) fn choose_copy(device: &dyn BlockDevice, copy: usize) -> Result<Chosen, VolumeError> {
    let name = || device.name().to_string();
    let Some(&offset) = SUPERBLOCK_OFFSETS.get(copy) else {
        let what = format!("superblock copy {copy}");
        return Err(VolumeError::Unsupported { device: name(), what });
    };
    match look(device, offset) {
        Found::Good(sb) => Ok(Chosen { superblock: *sb, warning: None, replaced: None }),
        Found::Bad(source) | Found::Nothing(source) => {
            Err(VolumeError::Superblock { device: name(), source })
        }
        Found::Unreadable(error) => Err(error.into()),
    }
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
fn seal(sb: &Superblock, offset: u64) -> Superblock {
    let mut sealed = *sb;
    sealed.bytenr = offset.into();
    sealed.csum = [0; 32];
    let kind = ChecksumKind::from_u16(sb.csum_type.get()).unwrap_or(ChecksumKind::Crc32c);
    let digest = kind.digest(sealed.as_bytes().get(32..).unwrap_or_default());
    sealed.csum = *digest.as_field();
    sealed
}

impl Volume {
    /// Writes the superblock: a barrier, the primary, a barrier, then the other copies that fit.
    /// Place and checksum are filled in here. From its return on, the primary is durable; the
    /// copies that could not be written are returned.
    pub fn write_superblocks(&self, sb: &Superblock) -> Result<Vec<DeviceError>, VolumeError> {
        self.check_writable()?;
        let mut current = self.superblock.write();
        let [primary_at, mirrors @ ..] = SUPERBLOCK_OFFSETS;
        self.barrier()?;
        let primary = seal(sb, primary_at);
        for member in &self.members {
            member.device.write_at(primary_at, primary.as_bytes())?;
        }
        self.barrier()?;
        **current = primary;
        self.newest.fetch_max(sb.generation.get(), Ordering::AcqRel);
        drop(current);
        let mut failed = Vec::new();
        for member in &self.members {
            let size = member.device.size().min(sb.dev_item.total_bytes.get());
            for at in mirrors.into_iter().filter(|at| at + (SUPERBLOCK_LEN as u64) < size) {
                failed.extend(member.device.write_at(at, seal(sb, at).as_bytes()).err());
            }
        }
        Ok(failed)
    }
}
