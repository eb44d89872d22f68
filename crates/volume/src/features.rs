//! Which features keep a filesystem from being read or written.

use buttress_ondisk::{
    Superblock,
    superblock::{compat_ro, incompat},
};

/// What reading understands. Profiles are refused chunk by chunk, so their bits are no obstacle.
const READABLE: u64 = incompat::MIXED_BACKREF
    | incompat::DEFAULT_SUBVOL
    | incompat::MIXED_GROUPS
    | incompat::COMPRESS_LZO
    | incompat::COMPRESS_ZSTD
    | incompat::BIG_METADATA
    | incompat::EXTENDED_IREF
    | incompat::RAID56
    | incompat::SKINNY_METADATA
    | incompat::NO_HOLES
    | incompat::METADATA_UUID
    | incompat::RAID1C34
    | incompat::SIMPLE_QUOTA;

/// What writing keeps up.
const WRITABLE: u64 = compat_ro::FREE_SPACE_TREE
    | compat_ro::FREE_SPACE_TREE_VALID
    | compat_ro::VERITY
    | compat_ro::BLOCK_GROUP_TREE;

const NAMES: [(u64, &str); 4] = [
    (incompat::ZONED, "zoned"),
    (incompat::EXTENT_TREE_V2, "extent-tree-v2"),
    (incompat::RAID_STRIPE_TREE, "raid-stripe-tree"),
    (incompat::REMAP_TREE, "remap-tree"),
];

/// The names of features without which the filesystem cannot be read.
pub(crate) fn unreadable(sb: &Superblock) -> Option<String> {
    names(sb.incompat_flags.get() & !READABLE, "incompat", &NAMES)
}

/// The names of features without which the filesystem must not be written.
pub(crate) fn unwritable(sb: &Superblock) -> Option<String> {
    names(sb.compat_ro_flags.get() & !WRITABLE, "compat_ro", &[])
}

fn names(mut bits: u64, set: &str, known: &[(u64, &str)]) -> Option<String> {
    let mut names = Vec::new();
    for (bit, name) in known {
        if bits & bit != 0 {
            names.push((*name).to_string());
            bits &= !bit;
        }
    }
    if bits != 0 {
        names.push(format!("{set} bits {bits:#x}"));
    }
    (!names.is_empty()).then(|| names.join(", "))
}
