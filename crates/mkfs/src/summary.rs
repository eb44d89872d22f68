//! What was made, in the words and columns of `mkfs.btrfs`.

use std::fmt;

use buttress_codec::ChecksumKind;
use uuid::Uuid;

use crate::features::{Feature, FeatureSet};
use crate::options::Profile;
use crate::trees::Plan;

/// A first block group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Group {
    /// Its profile.
    pub profile: Profile,
    /// Its size in bytes.
    pub length: u64,
}

/// What was made. Printed, it is the text of `mkfs.btrfs`.
#[derive(Clone, Debug)]
pub struct Summary {
    /// The label, empty for none.
    pub label: Vec<u8>,
    /// The filesystem's uuid.
    pub fs_uuid: Uuid,
    /// The device's uuid.
    pub device_uuid: Uuid,
    /// Bytes of a tree block.
    pub nodesize: u32,
    /// Bytes of a sector.
    pub sectorsize: u32,
    /// Bytes of the filesystem.
    pub size: u64,
    /// The data block group; `None` with mixed block groups.
    pub data: Option<Group>,
    /// The metadata block group, for data too when mixed.
    pub metadata: Group,
    /// The system block group.
    pub system: Group,
    /// The features.
    pub features: FeatureSet,
    /// The checksum.
    pub checksum: ChecksumKind,
    /// The device's name.
    pub device: String,
}

impl Summary {
    pub(crate) fn of(plan: &Plan, label: &[u8], device: &str) -> Summary {
        let settled = &plan.settled;
        let data = plan.layout.data.as_ref();
        Summary {
            label: label.into(),
            fs_uuid: plan.uuids.fs,
            device_uuid: plan.uuids.device,
            nodesize: settled.nodesize,
            sectorsize: 4096,
            size: plan.total,
            data: data.map(|chunk| Group { profile: settled.data, length: chunk.length }),
            metadata: Group { profile: settled.metadata, length: plan.layout.metadata.length },
            system: Group { profile: settled.metadata, length: plan.layout.system.length },
            features: settled.features,
            checksum: settled.checksum,
            device: device.into(),
        }
    }

    fn groups(&self) -> Vec<(&'static str, Group)> {
        let mut groups = Vec::new();
        match self.data {
            Some(data) => groups.extend([("Data:", data), ("Metadata:", self.metadata)]),
            None => groups.push(("Data+Metadata:", self.metadata)),
        }
        groups.push(("System:", self.system));
        groups
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let label = if self.label.is_empty() { b"(null)" } else { &self.label[..] };
        let label = String::from_utf8_lossy(label);
        let features: Vec<_> = self.features.iter().map(Feature::name).collect();
        writeln!(f, "{:<20}{label}", "Label:")?;
        writeln!(f, "{:<20}{}", "UUID:", self.fs_uuid)?;
        writeln!(f, "{:<20}{}", "Node size:", self.nodesize)?;
        writeln!(f, "{:<20}{}", "Sector size:", self.sectorsize)?;
        writeln!(f, "{:<20}{}", "Filesystem size:", pretty_size(self.size))?;
        writeln!(f, "Block group profiles:")?;
        for (kind, group) in self.groups() {
            let (profile, size) = (group.profile, pretty_size(group.length));
            writeln!(f, "  {kind:<18}{profile:<8}  {size:>15}")?;
        }
        writeln!(f, "{:<20}no", "SSD detected:")?;
        writeln!(f, "{:<20}no", "Zoned device:")?;
        writeln!(f, "{:<20}{}", "Features:", features.join(", "))?;
        writeln!(f, "{:<20}{}", "Checksum:", self.checksum)?;
        writeln!(f, "{:<20}1", "Number of devices:")?;
        writeln!(f, "Devices:")?;
        writeln!(f, "   ID        SIZE  PATH")?;
        writeln!(f, "    1  {:>10}  {}", pretty_size(self.size), self.device)
    }
}

/// A size as btrfs-progs prints it: two decimals and a binary unit, `1.00GiB`.
pub fn pretty_size(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if bytes < 1024 {
        return format!("{bytes}.00B");
    }
    let (mut whole, mut rest) = (bytes, 0);
    let mut name = "B";
    for unit in UNITS {
        if whole < 1024 {
            break;
        }
        (rest, whole) = (whole % 1024, whole / 1024);
        name = unit;
    }
    format!("{:.2}{name}", whole as f64 + rest as f64 / 1024.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_as_btrfs_progs_prints_them() {
        assert_eq!(pretty_size(0), "0.00B");
        assert_eq!(pretty_size(1 << 30), "1.00GiB");
        assert_eq!(pretty_size(53_673_984), "51.19MiB");
        assert_eq!(pretty_size(1 << 60), "1.00EiB");
    }
}
