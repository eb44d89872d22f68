//! The features a filesystem can be made with: one table with name, bits, what it needs, since when it exists.
//!
//! `-O` and `-R` of the command both read this table. Features that btrfs has and we cannot make are in it too, so that
//! they are refused by name.

use std::fmt::Write as _;

use buttress_ondisk::superblock::{compat_ro, incompat};

use crate::MkfsError;

/// A feature that can be turned on or off when a filesystem is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Feature {
    /// Data and metadata in the same block groups.
    MixedBg,
    /// Quota groups, counted from the start.
    Quota,
    /// Up to 65536 hard links of a file in a directory.
    Extref,
    /// Small references to tree blocks.
    SkinnyMetadata,
    /// Holes of files need no items.
    NoHoles,
    /// Free space in a tree.
    FreeSpaceTree,
    /// Block group items in a tree of their own.
    BlockGroupTree,
    /// Simple quota groups, which count what subvolumes allocate.
    Squota,
}

/// Where a feature is written down.
enum Bits {
    Incompat(u64),
    CompatRo(u64),
    /// By an item in a tree.
    Tree,
}

struct Row {
    feature: Option<Feature>,
    name: &'static str,
    bits: Bits,
    default: bool,
    needs: &'static [Feature],
    about: &'static str,
}

const fn row(feature: Feature, name: &'static str, bits: Bits, about: &'static str) -> Row {
    Row { feature: Some(feature), name, bits, default: false, needs: &[], about }
}

const fn refused(name: &'static str) -> Row {
    Row { feature: None, name, bits: Bits::Tree, default: false, needs: &[], about: "" }
}

const TABLE: [Row; 12] = [
    row(
        Feature::MixedBg,
        "mixed-bg",
        Bits::Incompat(incompat::MIXED_GROUPS),
        "mixed data and metadata block groups (compat=2.6.37, safe=2.6.37)",
    ),
    row(Feature::Quota, "quota", Bits::Tree, "hierarchical quota group support (compat=3.4)"),
    Row {
        default: true,
        ..row(
            Feature::Extref,
            "extref",
            Bits::Incompat(incompat::EXTENDED_IREF),
            "increased hardlink limit per file to 65536 (compat=3.7, safe=3.12, default=3.12)",
        )
    },
    Row {
        default: true,
        ..row(
            Feature::SkinnyMetadata,
            "skinny-metadata",
            Bits::Incompat(incompat::SKINNY_METADATA),
            "reduced-size metadata extent refs (compat=3.10, safe=3.18, default=3.18)",
        )
    },
    Row {
        default: true,
        ..row(
            Feature::NoHoles,
            "no-holes",
            Bits::Incompat(incompat::NO_HOLES),
            "no explicit hole extents for files (compat=3.14, safe=4.0, default=5.15)",
        )
    },
    Row {
        default: true,
        ..row(
            Feature::FreeSpaceTree,
            "free-space-tree",
            Bits::CompatRo(compat_ro::FREE_SPACE_TREE | compat_ro::FREE_SPACE_TREE_VALID),
            "free space tree, improved space tracking (space_cache=v2) (compat=4.5, safe=4.9, default=5.15)",
        )
    },
    Row {
        default: true,
        needs: &[Feature::FreeSpaceTree, Feature::NoHoles],
        ..row(
            Feature::BlockGroupTree,
            "block-group-tree",
            Bits::CompatRo(compat_ro::BLOCK_GROUP_TREE),
            "block group tree, more efficient block group tracking to reduce mount time (compat=6.1, default=6.19)",
        )
    },
    refused("raid56"),
    refused("raid1c34"),
    refused("zoned"),
    refused("raid-stripe-tree"),
    row(
        Feature::Squota,
        "squota",
        Bits::Incompat(incompat::SIMPLE_QUOTA),
        "simple quota groups, which count what a subvolume allocates (compat=6.7)",
    ),
];

/// Features of which a filesystem has one at most.
const CLASHES: [(Feature, Feature); 1] = [(Feature::Quota, Feature::Squota)];

fn row_of(feature: Feature) -> Option<&'static Row> {
    const ROWS: &[Row; 12] = &TABLE;
    ROWS.iter().find(|row| row.feature == Some(feature))
}

impl Feature {
    const fn bit(self) -> u16 {
        1 << self as u8
    }

    /// The name that `-O` knows it by.
    pub fn name(self) -> &'static str {
        row_of(self).map_or("", |row| row.name)
    }
}

/// A choice of features, and which of them somebody asked for in so many words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FeatureSet {
    on: u16,
    asked: u16,
}

impl Default for FeatureSet {
    /// extref, skinny-metadata, no-holes, free-space-tree, block-group-tree.
    fn default() -> FeatureSet {
        let defaults = TABLE.iter().filter(|row| row.default).filter_map(|row| row.feature);
        FeatureSet { on: defaults.fold(0, |on, feature| on | feature.bit()), asked: 0 }
    }
}

impl FeatureSet {
    /// Whether a feature is chosen.
    pub fn contains(&self, feature: Feature) -> bool {
        self.on & feature.bit() != 0
    }

    /// Turns a feature on or off, as asked for in so many words.
    pub fn set(&mut self, feature: Feature, on: bool) {
        self.put(feature, on);
        self.asked |= feature.bit();
    }

    /// The chosen features, in the order in which they are listed.
    pub fn iter(&self) -> impl Iterator<Item = Feature> {
        let set = *self;
        TABLE.iter().filter_map(|row| row.feature).filter(move |feature| set.contains(*feature))
    }

    pub(crate) fn put(&mut self, feature: Feature, on: bool) {
        self.on = if on { self.on | feature.bit() } else { self.on & !feature.bit() };
    }

    /// Refuses features that cannot be together, and one asked for without what it needs; one that is only a default gives way.
    pub(crate) fn settle(mut self) -> Result<FeatureSet, MkfsError> {
        for (one, other) in CLASHES {
            if self.contains(one) && self.contains(other) {
                return Err(MkfsError::FeaturesClash { one: one.name(), other: other.name() });
            }
        }
        for row in &TABLE {
            let Some(feature) = row.feature.filter(|feature| self.contains(*feature)) else {
                continue;
            };
            let Some(missing) = row.needs.iter().find(|need| !self.contains(**need)) else {
                continue;
            };
            if self.asked & feature.bit() != 0 {
                return Err(MkfsError::FeatureNeeds { name: row.name, needs: missing.name() });
            }
            self.put(feature, false);
        }
        Ok(self)
    }

    /// The superblock's incompatible features.
    pub(crate) fn incompat(&self) -> u64 {
        self.bits(|bits| match bits {
            Bits::Incompat(bits) => *bits,
            _ => 0,
        }) | incompat::MIXED_BACKREF
    }

    /// The superblock's read-only compatible features.
    pub(crate) fn compat_ro(&self) -> u64 {
        self.bits(|bits| match bits {
            Bits::CompatRo(bits) => *bits,
            _ => 0,
        })
    }

    fn bits(&self, pick: impl Fn(&Bits) -> u64) -> u64 {
        let rows = self.iter().filter_map(row_of);
        rows.fold(0, |all, row| all | pick(&row.bits))
    }
}

/// What `-O` and `-R` can ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FeatureRequest {
    /// These features.
    Set(FeatureSet),
    /// The list of features ([`list_features`]).
    ListAll,
}

/// Reads `-O`: names separated by commas, `^name` to turn one off, applied in turn to `base`.
pub fn parse_features(text: &str, base: FeatureSet) -> Result<FeatureRequest, MkfsError> {
    let mut set = base;
    for word in text.split(',') {
        if word == "list-all" {
            return Ok(FeatureRequest::ListAll);
        }
        let (name, on) = match word.strip_prefix('^') {
            Some(name) => (name, false),
            None => (word, true),
        };
        let Some(row) = TABLE.iter().find(|row| row.name == name) else {
            return Err(MkfsError::UnknownFeature { name: name.into() });
        };
        match row.feature {
            Some(feature) => set.set(feature, on),
            None if on => return Err(MkfsError::UnsupportedFeature { name: row.name }),
            None => {}
        }
    }
    Ok(FeatureRequest::Set(set))
}

/// The text of `-O list-all`.
pub fn list_features() -> String {
    let mut text = String::from("Filesystem features available:\n");
    for row in TABLE.iter().filter(|row| row.feature.is_some()) {
        let _: std::fmt::Result = writeln!(text, "{:<20}- {}", row.name, row.about);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(text: &str) -> Result<FeatureSet, MkfsError> {
        match parse_features(text, FeatureSet::default())? {
            FeatureRequest::Set(set) => set.settle(),
            FeatureRequest::ListAll => panic!("no list was asked for"),
        }
    }

    #[test]
    fn names_turn_on_and_off() {
        let names = |set: FeatureSet| set.iter().map(Feature::name).collect::<Vec<_>>().join(",");
        let defaults = "extref,skinny-metadata,no-holes,free-space-tree,block-group-tree";
        assert_eq!(names(FeatureSet::default()), defaults);
        assert_eq!(
            names(set("mixed-bg,^extref,quota,^extref").unwrap()),
            format!("mixed-bg,quota,{}", defaults.strip_prefix("extref,").unwrap())
        );
        assert_eq!(set("^zoned").unwrap().on, FeatureSet::default().on);
    }

    #[test]
    fn a_default_gives_way_and_a_wish_does_not() {
        assert!(!set("^no-holes").unwrap().contains(Feature::BlockGroupTree));
        let refused = set("block-group-tree,^free-space-tree").unwrap_err();
        assert_eq!(
            refused.to_string(),
            "filesystem feature 'block-group-tree' requires 'free-space-tree'"
        );
    }

    #[test]
    fn quotas_are_of_one_kind() {
        let refused = set("quota,squota").unwrap_err();
        assert_eq!(
            refused.to_string(),
            "filesystem features 'quota' and 'squota' cannot be together"
        );
        assert_eq!(set("quota,squota,^quota").unwrap().incompat(), 0x10341);
    }

    #[test]
    fn unknown_and_unsupported_names_are_told_apart() {
        assert!(matches!(set("foo"), Err(MkfsError::UnknownFeature { .. })));
        assert!(matches!(set("zoned"), Err(MkfsError::UnsupportedFeature { name: "zoned" })));
        let list = parse_features("list-all", FeatureSet::default()).unwrap();
        assert_eq!(list, FeatureRequest::ListAll);
        assert!(list_features().contains("\nextref              - increased"));
    }

    #[test]
    fn bits_are_those_of_mkfs() {
        assert_eq!(FeatureSet::default().incompat(), 0x341);
        assert_eq!(FeatureSet::default().compat_ro(), 0xb);
        let none = set("^extref,^skinny-metadata,^no-holes,^free-space-tree").unwrap();
        assert_eq!((none.incompat(), none.compat_ro()), (1, 0));
    }
}
