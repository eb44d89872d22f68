//! Profiles: how a chunk spreads its bytes over devices.

use std::fmt;

use buttress_ondisk::item::chunk_type;

/// How a chunk spreads its bytes over its stripes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Profile {
    /// One copy on one device.
    Single,
    /// Two copies on one device.
    Dup,
    /// One copy, 64 KiB on each device in turn.
    Raid0,
    /// Two copies on two devices.
    Raid1,
    /// Three copies on three devices.
    Raid1c3,
    /// Four copies on four devices.
    Raid1c4,
    /// Pairs of copies, 64 KiB on each pair in turn.
    Raid10,
    /// One copy in rows of 64 KiB stripes, one of each row their parity.
    Raid5,
    /// One copy in rows of 64 KiB stripes, two of each row their parities.
    Raid6,
}

impl Profile {
    /// Every profile.
    pub const ALL: [Self; 9] = [
        Self::Single,
        Self::Dup,
        Self::Raid0,
        Self::Raid1,
        Self::Raid1c3,
        Self::Raid1c4,
        Self::Raid10,
        Self::Raid5,
        Self::Raid6,
    ];

    /// The profile of a chunk's type flags; `None` for several bits at once.
    pub fn from_flags(flags: u64) -> Option<Self> {
        let bits = flags & chunk_type::PROFILE_MASK;
        Self::ALL.into_iter().find(|profile| profile.to_flags() == bits)
    }

    /// The profile's bit in a chunk's type flags; 0 for single.
    pub fn to_flags(self) -> u64 {
        match self {
            Self::Single => 0,
            Self::Dup => chunk_type::DUP,
            Self::Raid0 => chunk_type::RAID0,
            Self::Raid1 => chunk_type::RAID1,
            Self::Raid1c3 => chunk_type::RAID1C3,
            Self::Raid1c4 => chunk_type::RAID1C4,
            Self::Raid10 => chunk_type::RAID10,
            Self::Raid5 => chunk_type::RAID5,
            Self::Raid6 => chunk_type::RAID6,
        }
    }

    /// The name that btrfs-progs prints.
    pub fn name(self) -> &'static str {
        match self {
            Self::Single => "single",
            Self::Dup => "DUP",
            Self::Raid0 => "RAID0",
            Self::Raid1 => "RAID1",
            Self::Raid1c3 => "RAID1C3",
            Self::Raid1c4 => "RAID1C4",
            Self::Raid10 => "RAID10",
            Self::Raid5 => "RAID5",
            Self::Raid6 => "RAID6",
        }
    }

    /// Whole copies of each byte (parity is not a copy).
    pub fn copies(self) -> usize {
        match self {
            Self::Single | Self::Raid0 | Self::Raid5 | Self::Raid6 => 1,
            Self::Dup | Self::Raid1 | Self::Raid10 => 2,
            Self::Raid1c3 => 3,
            Self::Raid1c4 => 4,
        }
    }

    /// Parity stripes in each row.
    pub fn parities(self) -> u64 {
        match self {
            Self::Raid5 => 1,
            Self::Raid6 => 2,
            _ => 0,
        }
    }

    /// Whether a chunk of this profile may have so many stripes.
    pub fn accepts(self, stripes: u64) -> bool {
        match self {
            Self::Single => stripes == 1,
            Self::Dup | Self::Raid1 => stripes == 2,
            Self::Raid1c3 => stripes == 3,
            Self::Raid1c4 => stripes == 4,
            Self::Raid0 => stripes >= 1,
            Self::Raid10 => stripes >= 2,
            Self::Raid5 => stripes >= 2,
            Self::Raid6 => stripes >= 3,
        }
    }

    /// Stripes of a row that hold different data: by how much a chunk is longer than its part of
    /// one device.
    pub fn data_stripes(self, stripes: u64, sub_stripes: u16) -> u64 {
        match self {
            Self::Single | Self::Dup | Self::Raid1 | Self::Raid1c3 | Self::Raid1c4 => 1,
            Self::Raid0 => stripes,
            Self::Raid10 => stripes / u64::from(sub_stripes.max(1)),
            Self::Raid5 | Self::Raid6 => stripes.saturating_sub(self.parities()),
        }
    }
}

impl fmt::Display for Profile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}
