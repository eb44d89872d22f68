//! Features: one table of every feature bit known, and what we do about it.
//!
//! A filesystem says in two sets of bits what one has to know: `incompat` to read it, `compat_ro` to write it. Opening
//! asks this table, printing takes the names from it, and making filesystems takes the names of options.

use crate::superblock::{Superblock, compat_ro, incompat};

/// Which set of bits a feature is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Set {
    /// Has to be known to read.
    Incompat,
    /// Has to be known to write.
    CompatRo,
}

/// What we do with filesystems that have a feature.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Support {
    /// Neither read nor written.
    Refused,
    /// Read, but not written.
    ReadOnly,
    /// Read and written.
    ReadWrite,
}

/// How `mkfs` offers a feature.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MkfsOption {
    /// The name that `-O` takes (the feature's own name and, for some, an older shorter one are taken too).
    pub name: &'static str,
    /// One line for `-O list-all`.
    pub about: &'static str,
    /// The first kernel from which it is safe to use.
    pub safe: Option<&'static str>,
    /// The btrfs-progs release that made it the default.
    pub default: Option<&'static str>,
}

/// A feature bit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Feature {
    /// The set of bits.
    pub set: Set,
    /// The one bit.
    pub bit: u64,
    /// The name, in lower case with dashes.
    pub name: &'static str,
    /// The name in capitals, as `dump-super` prints it.
    pub flag: &'static str,
    /// What we do with it.
    pub support: Support,
    /// The kernel that brought it.
    pub since: &'static str,
    /// How `mkfs` offers it; `None` where it is no choice of the user.
    pub mkfs: Option<MkfsOption>,
}

const fn feature(
    set: Set,
    bit: u64,
    name: &'static str,
    flag: &'static str,
    support: Support,
    since: &'static str,
) -> Feature {
    Feature { set, bit, name, flag, support, since, mkfs: None }
}

impl Feature {
    const fn option(
        self,
        name: &'static str,
        about: &'static str,
        safe: Option<&'static str>,
        default: Option<&'static str>,
    ) -> Feature {
        Feature { mkfs: Some(MkfsOption { name, about, safe, default }), ..self }
    }

    /// Whether `sb` has it.
    pub fn is_in(&self, sb: &Superblock) -> bool {
        let bits = match self.set {
            Set::Incompat => sb.incompat_flags.get(),
            Set::CompatRo => sb.compat_ro_flags.get(),
        };
        bits & self.bit != 0
    }
}

use Set::{CompatRo, Incompat};
use Support::{ReadOnly, ReadWrite, Refused};

/// Every feature, by set and bit.
pub const FEATURES: &[Feature] = &[
    feature(
        Incompat,
        incompat::MIXED_BACKREF,
        "mixed-backref",
        "MIXED_BACKREF",
        ReadWrite,
        "2.6.31",
    ),
    feature(
        Incompat,
        incompat::DEFAULT_SUBVOL,
        "default-subvol",
        "DEFAULT_SUBVOL",
        ReadWrite,
        "2.6.34",
    ),
    feature(Incompat, incompat::MIXED_GROUPS, "mixed-groups", "MIXED_GROUPS", ReadWrite, "2.6.37")
        .option("mixed-bg", "mixed data and metadata block groups", Some("2.6.37"), None),
    feature(Incompat, incompat::COMPRESS_LZO, "compress-lzo", "COMPRESS_LZO", ReadWrite, "2.6.38"),
    feature(Incompat, incompat::COMPRESS_ZSTD, "compress-zstd", "COMPRESS_ZSTD", ReadWrite, "4.14"),
    feature(Incompat, incompat::BIG_METADATA, "big-metadata", "BIG_METADATA", ReadWrite, "3.4"),
    feature(Incompat, incompat::EXTENDED_IREF, "extended-iref", "EXTENDED_IREF", ReadWrite, "3.7")
        .option("extref", "increased hardlink limit per file to 65536", Some("3.12"), Some("3.12")),
    feature(Incompat, incompat::RAID56, "raid56", "RAID56", Refused, "3.9"),
    feature(
        Incompat,
        incompat::SKINNY_METADATA,
        "skinny-metadata",
        "SKINNY_METADATA",
        ReadWrite,
        "3.10",
    )
    .option("skinny-metadata", "reduced-size metadata extent refs", Some("3.18"), Some("3.18")),
    feature(Incompat, incompat::NO_HOLES, "no-holes", "NO_HOLES", ReadWrite, "3.14").option(
        "no-holes",
        "no explicit hole extents for files",
        Some("4.0"),
        Some("5.15"),
    ),
    feature(Incompat, incompat::METADATA_UUID, "metadata-uuid", "METADATA_UUID", ReadWrite, "5.0"),
    feature(Incompat, incompat::RAID1C34, "raid1c34", "RAID1C34", Refused, "5.5"),
    feature(Incompat, incompat::ZONED, "zoned", "ZONED", Refused, "5.12"),
    feature(
        Incompat,
        incompat::EXTENT_TREE_V2,
        "extent-tree-v2",
        "EXTENT_TREE_V2",
        Refused,
        "5.18",
    ),
    feature(
        Incompat,
        incompat::RAID_STRIPE_TREE,
        "raid-stripe-tree",
        "RAID_STRIPE_TREE",
        Refused,
        "6.7",
    ),
    feature(Incompat, incompat::SIMPLE_QUOTA, "simple-quota", "SIMPLE_QUOTA", ReadWrite, "6.7"),
    feature(Incompat, incompat::REMAP_TREE, "remap-tree", "REMAP_TREE", Refused, "7.0"),
    feature(
        CompatRo,
        compat_ro::FREE_SPACE_TREE,
        "free-space-tree",
        "FREE_SPACE_TREE",
        ReadWrite,
        "4.5",
    )
    .option("free-space-tree", "free space tree (space_cache=v2)", Some("4.9"), Some("5.15")),
    feature(
        CompatRo,
        compat_ro::FREE_SPACE_TREE_VALID,
        "free-space-tree-valid",
        "FREE_SPACE_TREE_VALID",
        ReadWrite,
        "4.9",
    ),
    feature(CompatRo, compat_ro::VERITY, "verity", "VERITY", ReadOnly, "5.15"),
    feature(
        CompatRo,
        compat_ro::BLOCK_GROUP_TREE,
        "block-group-tree",
        "BLOCK_GROUP_TREE",
        ReadWrite,
        "6.1",
    )
    .option("block-group-tree", "block group tree, more efficient mount", Some("6.1"), None),
];

/// The features that `sb` has, and the bits of each set that no feature is known for.
pub fn of(sb: &Superblock) -> (Vec<&'static Feature>, u64, u64) {
    let found: Vec<_> = FEATURES.iter().filter(|feature| feature.is_in(sb)).collect();
    let known = |set| known_bits(set);
    (found, sb.incompat_flags.get() & !known(Incompat), sb.compat_ro_flags.get() & !known(CompatRo))
}

/// All bits of a set that have a feature.
pub fn known_bits(set: Set) -> u64 {
    FEATURES.iter().filter(|feature| feature.set == set).fold(0, |bits, one| bits | one.bit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_are_single_and_unique() {
        for (at, feature) in FEATURES.iter().enumerate() {
            assert_eq!(feature.bit.count_ones(), 1, "{}", feature.name);
            for other in &FEATURES[at + 1..] {
                assert!((feature.set, feature.bit) != (other.set, other.bit), "{}", other.name);
                assert_ne!(feature.name, other.name);
            }
            assert_eq!(feature.flag, feature.name.to_ascii_uppercase().replace('-', "_"));
        }
    }

    #[test]
    fn known_bits_are_those_of_the_table() {
        assert!(known_bits(Set::CompatRo) == 0xf);
    }
}
