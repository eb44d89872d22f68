//! What can be chosen about a new filesystem.

use std::fmt;

use buttress_codec::ChecksumKind;
use buttress_ondisk::item::chunk_type;
use uuid::Uuid;

use crate::features::{Feature, FeatureSet};
use crate::{MkfsError, layout};

/// How often block groups keep their content.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Profile {
    /// One copy.
    Single,
    /// Two copies on the same device.
    Dup,
}

impl Profile {
    /// The profile's bit of a chunk type: 0 for single.
    pub(crate) fn bits(self) -> u64 {
        match self {
            Profile::Single => 0,
            Profile::Dup => chunk_type::DUP,
        }
    }

    /// How many stripes a chunk has.
    pub(crate) fn copies(self) -> u64 {
        match self {
            Profile::Single => 1,
            Profile::Dup => 2,
        }
    }
}

impl fmt::Display for Profile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Profile::Single => "single",
            Profile::Dup => "DUP",
        })
    }
}

/// What can be chosen about a new filesystem; [`Options::default`] is what `mkfs.btrfs` chooses.
#[derive(Clone, Debug)]
pub struct Options {
    /// The label: at most 255 bytes, no newline; empty for none.
    pub label: Vec<u8>,
    /// The filesystem's uuid; random when not given.
    pub fs_uuid: Option<Uuid>,
    /// The device's uuid; random when not given.
    pub device_uuid: Option<Uuid>,
    /// Bytes of a tree block, a power of two from 4096 to 65536; 16384 when not given, 4096 with mixed block groups.
    pub nodesize: Option<u32>,
    /// Bytes of a sector: 4096 is all there is.
    pub sectorsize: u32,
    /// Copies of metadata; when not given DUP, or with mixed block groups single.
    pub metadata_profile: Option<Profile>,
    /// Copies of data; single when not given.
    pub data_profile: Option<Profile>,
    /// Data and metadata share block groups; the same as [`Feature::MixedBg`].
    pub mixed: bool,
    /// The checksum of data and metadata.
    pub checksum: ChecksumKind,
    /// The features.
    pub features: FeatureSet,
    /// User and group of the top directory; root when not said.
    pub owner: (u32, u32),
    /// Bytes of the device to use, rounded down to sectors, and nothing beside them is touched; all of it when not given.
    pub byte_count: Option<u64>,
    /// Go ahead when there is a filesystem on the device already.
    pub overwrite: bool,
    /// Tell the device first that nothing on it is needed any more.
    pub discard: bool,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            label: Vec::new(),
            fs_uuid: None,
            device_uuid: None,
            nodesize: None,
            sectorsize: 4096,
            metadata_profile: None,
            data_profile: None,
            mixed: false,
            checksum: ChecksumKind::Crc32c,
            features: FeatureSet::default(),
            owner: (0, 0),
            byte_count: None,
            overwrite: false,
            discard: true,
        }
    }
}

/// Options checked against each other, with every default filled in.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Settled {
    pub nodesize: u32,
    pub metadata: Profile,
    pub data: Profile,
    pub mixed: bool,
    pub checksum: ChecksumKind,
    pub features: FeatureSet,
}

/// The longest label, bytes; the superblock has one more for the zero at the end.
const LABEL_LEN_MAX: usize = 255;

impl Options {
    /// Checks the options against each other and fills in the defaults.
    pub(crate) fn settle(&self) -> Result<Settled, MkfsError> {
        self.check_label()?;
        if self.sectorsize != 4096 {
            return Err(MkfsError::SectorSize { sectorsize: self.sectorsize.into() });
        }
        let mixed = self.mixed || self.features.contains(Feature::MixedBg);
        let mut features = self.features.settle()?;
        features.put(Feature::MixedBg, mixed);
        let (metadata, data) = self.profiles(mixed)?;
        let nodesize = self.nodesize.unwrap_or(if mixed { 4096 } else { 16384 });
        check_nodesize(nodesize, mixed)?;
        Ok(Settled { nodesize, metadata, data, mixed, checksum: self.checksum, features })
    }

    /// Bytes that the smallest device for these options has.
    pub fn minimum_size(&self) -> Result<u64, MkfsError> {
        let settled = self.settle()?;
        Ok(layout::minimum_size(settled.mixed, settled.metadata, settled.data))
    }

    fn check_label(&self) -> Result<(), MkfsError> {
        let refuse =
            |why| Err(MkfsError::Label { label: self.label.escape_ascii().to_string(), why });
        if self.label.len() > LABEL_LEN_MAX {
            return refuse("is too long (max 255)");
        }
        if self.label.iter().any(|byte| matches!(byte, b'\n' | 0)) {
            return refuse("contains invalid characters");
        }
        Ok(())
    }

    fn profiles(&self, mixed: bool) -> Result<(Profile, Profile), MkfsError> {
        match (mixed, self.metadata_profile, self.data_profile) {
            (false, metadata, data) => {
                Ok((metadata.unwrap_or(Profile::Dup), data.unwrap_or(Profile::Single)))
            }
            (true, Some(metadata), Some(data)) if metadata != data => Err(MkfsError::MixedProfiles),
            (true, one, other) => {
                let both = one.or(other).unwrap_or(Profile::Single);
                Ok((both, both))
            }
        }
    }
}

/// Refuses a node size that is no power of two from 4096 to 65536, or that does not go with mixed block groups.
pub(crate) fn check_nodesize(nodesize: u32, mixed: bool) -> Result<(), MkfsError> {
    let refuse = |why| Err(MkfsError::NodeSize { nodesize: nodesize.into(), why });
    match nodesize {
        0..4096 => refuse("smaller than 4096"),
        65537.. => refuse("larger than 65536"),
        _ if !nodesize.is_power_of_two() => refuse("not a power of two"),
        _ if mixed && nodesize != 4096 => refuse("not equal to 4096 for mixed block group"),
        _ => Ok(()),
    }
}
