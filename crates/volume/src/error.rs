//! What can go wrong with a volume. Each error carries where it happened and why as fields; what the
//! copies of one range had to say is listed copy by copy.

use std::fmt;

use buttress_codec::Digest;
use buttress_device::DeviceError;
use buttress_ondisk::{Key, check::Corruption};
use thiserror::Error;

use crate::{chunk_map::ChunkFault, profile::Profile, warning::Age};

/// Why one copy of a range is no good.
#[derive(Debug, Clone, Error)]
pub enum CopyFault {
    /// The device failed.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The tree block did not pass the gate.
    #[error("at {offset} on {device}: {source}")]
    Block {
        /// The device.
        device: String,
        /// Bytes from its start.
        offset: u64,
        /// What the gate said.
        source: Box<Corruption>,
    },
    /// A data sector does not have its checksum.
    #[error("at {offset} on {device}: checksum {have}, expect {expect}")]
    Sector {
        /// The device.
        device: String,
        /// Bytes from its start.
        offset: u64,
        /// The checksum of what was read.
        have: Digest,
        /// The stored checksum.
        expect: ExpectedDigest,
    },
}

/// A stored checksum, printed as btrfs-progs prints them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExpectedDigest(pub Vec<u8>);

impl fmt::Display for ExpectedDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("0x")?;
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// What every copy had to say.
#[derive(Debug, Clone)]
pub struct CopyFaults(pub Vec<CopyFault>);

impl fmt::Display for CopyFaults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, fault) in self.0.iter().enumerate() {
            match self.0.len() {
                1 => write!(f, "{fault}")?,
                _ if index == 0 => write!(f, "copy 1 {fault}")?,
                _ => write!(f, "; copy {} {fault}", index + 1)?,
            }
        }
        Ok(())
    }
}

/// A volume's refusal or failure. Cheap to clone, so that a first cause can be kept.
#[derive(Debug, Clone, Error)]
pub enum VolumeError {
    /// A device failed where there is no other copy to turn to.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// No superblock anywhere.
    #[error("{device} holds no btrfs filesystem")]
    NotBtrfs {
        /// The device.
        device: String,
    },
    /// There are superblocks, and none is good.
    #[error("{device}: {source}")]
    Superblock {
        /// The device.
        device: String,
        /// What is wrong with the primary, or with the first that says it is a superblock.
        source: Box<Corruption>,
    },
    /// The superblock is gone and another filesystem has taken its place; only reading is allowed.
    #[error(
        "{device} now holds {other}; the btrfs filesystem before it can only be opened read-only"
    )]
    Replaced {
        /// The device.
        device: String,
        /// What is there now.
        other: &'static str,
    },
    /// Something this implementation does not do yet, or does not know.
    #[error("{device}: {what} is not supported")]
    Unsupported {
        /// The device.
        device: String,
        /// What it is.
        what: String,
    },
    /// One of several devices.
    #[error(
        "{device}: a filesystem on {count} devices, of which this is number {devid}, is not supported"
    )]
    SeveralDevices {
        /// The device.
        device: String,
        /// Its number.
        devid: u64,
        /// How many there are.
        count: u64,
    },
    /// The end of the device is missing: reading may work, writing is refused.
    #[error(
        "{device} can only be opened read-only: it has {size} bytes, the filesystem takes \
         {total_bytes}"
    )]
    CutOff {
        /// The device.
        device: String,
        /// Bytes that it has.
        size: u64,
        /// Bytes that the filesystem takes.
        total_bytes: u64,
    },
    /// Reading would work, writing is refused.
    #[error("{device} can only be opened read-only: {why}")]
    ReadOnlyPossible {
        /// The device.
        device: String,
        /// Why.
        why: String,
    },
    /// The primary superblock is bad, and a copy may be too old to go on from; only reading is allowed.
    #[error(
        "{device}: the primary superblock is bad ({primary}), and the copy at {offset}, of \
         generation {generation}, {age}: it can only be opened read-only"
    )]
    OldMirror {
        /// The device.
        device: String,
        /// Where the copy is, in bytes.
        offset: u64,
        /// Its generation.
        generation: u64,
        /// How old it can be.
        age: Age,
        /// What is wrong with the primary.
        primary: String,
    },
    /// Somebody else has written to the filesystem while it was open here.
    #[error(
        "{device}: another program has written to this filesystem since it was opened; nothing more \
         is written to it from here"
    )]
    Overwritten {
        /// The device.
        device: String,
    },
    /// Somebody has cut off the end of the device while the filesystem was open here.
    #[error(
        "{device} has been cut short while it was open: it has {size} bytes, the filesystem takes \
         {total_bytes}; nothing more is written to it from here"
    )]
    CutShort {
        /// The device.
        device: String,
        /// Bytes that it has now.
        size: u64,
        /// Bytes that the filesystem takes.
        total_bytes: u64,
    },
    /// A chunk has a profile this implementation does not do yet.
    #[error("{device}: the chunk at {logical} has profile {profile}, which is not supported")]
    Profile {
        /// The device.
        device: String,
        /// The chunk's logical address.
        logical: u64,
        /// Its profile.
        profile: Profile,
    },
    /// A chunk that makes no sense.
    #[error("corrupt chunk at {logical}: {source}")]
    Chunk {
        /// The chunk's logical address.
        logical: u64,
        /// What is wrong.
        source: ChunkFault,
    },
    /// A chunk contradicts another one or the device.
    #[error("corrupt chunk at {logical}: {what}, have {have} expect {expect}")]
    ChunkPlace {
        /// The chunk's logical address.
        logical: u64,
        /// The rule.
        what: &'static str,
        /// What it says.
        have: String,
        /// What it should say.
        expect: String,
    },
    /// The system chunk array of the superblock is cut off or holds something else.
    #[error("corrupt system chunk array at byte {at}: {what}")]
    SystemArray {
        /// Bytes from the array's start.
        at: usize,
        /// What is wrong.
        what: &'static str,
    },
    /// Superblock and device item disagree about the device.
    #[error("corrupt device item: {what}, have {have} expect {expect}")]
    DeviceItem {
        /// The member.
        what: &'static str,
        /// What it says.
        have: String,
        /// What it should say.
        expect: String,
    },
    /// No chunk holds the whole range.
    #[error("no chunk holds {len} bytes at logical {logical}")]
    Unmapped {
        /// First logical address.
        logical: u64,
        /// Bytes.
        len: u64,
    },
    /// No copy of a tree block is good.
    #[error("tree block at logical {logical}: {faults}")]
    Block {
        /// The block's logical address.
        logical: u64,
        /// Copy by copy.
        faults: CopyFaults,
    },
    /// No copy of some data is good.
    #[error("data at logical {logical}: {faults}")]
    Data {
        /// The first bad sector's logical address.
        logical: u64,
        /// Copy by copy.
        faults: CopyFaults,
    },
    /// A tree contradicts itself between two blocks.
    #[error("corrupt tree at block {block}: {what}, key {key} expect {expect}")]
    Tree {
        /// Logical address of the block.
        block: u64,
        /// The rule.
        what: &'static str,
        /// The key that breaks it.
        key: Key,
        /// The bound.
        expect: Key,
    },
    /// The caller's range or checksums make no sense.
    #[error("bad request for {len} bytes at logical {logical}: {what}")]
    Request {
        /// First logical address.
        logical: u64,
        /// Bytes.
        len: u64,
        /// What is wrong.
        what: &'static str,
    },
    /// The volume is open read-only.
    #[error("{device} is open read-only")]
    ReadOnly {
        /// The device.
        device: String,
    },
}

impl VolumeError {
    /// Whether there was no room where the bytes of a device are kept; see [`DeviceError::is_full`].
    pub fn is_full(&self) -> bool {
        matches!(self, Self::Device(error) if error.is_full())
    }

    /// Whether what was looked for lies behind the end of the device.
    pub fn is_past_end(&self) -> bool {
        let is_behind =
            |fault: &CopyFault| matches!(fault, CopyFault::Device(DeviceError::OutOfRange { .. }));
        match self {
            Self::Device(DeviceError::OutOfRange { .. }) => true,
            Self::Block { faults, .. } | Self::Data { faults, .. } => {
                faults.0.iter().all(is_behind)
            }
            _ => false,
        }
    }

    /// Whether what trees hold cannot be read or cannot be right, in contrast to the superblock, and to a request that is refused.
    pub fn is_damage(&self) -> bool {
        match self {
            Self::Block { .. } => true,
            Self::Superblock { .. } => false,
            other => other.is_corruption(),
        }
    }

    /// Whether the medium holds something that cannot be right, in contrast to a device that fails
    /// or a request that is refused.
    pub fn is_corruption(&self) -> bool {
        let by_device = |faults: &CopyFaults| {
            faults.0.iter().all(|fault| matches!(fault, CopyFault::Device(_)))
        };
        match self {
            Self::Block { faults, .. } | Self::Data { faults, .. } => !by_device(faults),
            Self::Superblock { .. }
            | Self::Chunk { .. }
            | Self::ChunkPlace { .. }
            | Self::SystemArray { .. }
            | Self::DeviceItem { .. }
            | Self::Unmapped { .. }
            | Self::Tree { .. } => true,
            Self::Device(_)
            | Self::NotBtrfs { .. }
            | Self::Replaced { .. }
            | Self::OldMirror { .. }
            | Self::Overwritten { .. }
            | Self::CutShort { .. }
            | Self::Unsupported { .. }
            | Self::SeveralDevices { .. }
            | Self::CutOff { .. }
            | Self::ReadOnlyPossible { .. }
            | Self::Profile { .. }
            | Self::Request { .. }
            | Self::ReadOnly { .. } => false,
        }
    }
}
