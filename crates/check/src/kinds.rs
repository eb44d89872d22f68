//! The kinds of issues: one table with the stable id, the severity and the rule of each.
//!
//! Ids are for scripts and never change their meaning.

use crate::issue::Severity::{self, Error, Warning};

macro_rules! kinds {
    ($($name:ident, $severity:expr, $id:literal, $about:literal;)*) => {
        /// What rule an issue breaks.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Kind { $(#[doc = $about] $name,)* }

        impl Kind {
            /// All kinds.
            pub const ALL: &[Kind] = &[$(Kind::$name,)*];

            /// The stable id, in lower case with dashes.
            pub fn id(self) -> &'static str {
                match self { $(Kind::$name => $id,)* }
            }

            /// How bad it is.
            pub fn severity(self) -> Severity {
                match self { $(Kind::$name => $severity,)* }
            }

            /// What is wrong, in a sentence.
            pub fn about(self) -> &'static str {
                match self { $(Kind::$name => $about,)* }
            }
        }
    };
}

kinds! {
    // Superblocks.
    SuperBad, Error, "super-bad", "The primary superblock does not pass the gate.";
    SuperMirror, Warning, "super-mirror", "A mirror of the superblock does not pass the gate.";
    SuperStale, Warning, "super-stale", "A mirror of the superblock is of another commit than the primary.";
    SuperDevice, Error, "super-device", "The superblock and the chunk tree disagree about the device.";
    SuperTotal, Error, "super-total-bytes", "The superblock's size is not the sum of the devices' sizes.";
    SuperUsed, Error, "super-bytes-used", "The superblock's used bytes are not the sum of the block groups' used bytes.";
    // Chunks and devices.
    ChunkBad, Error, "chunk-bad", "A chunk item makes no sense.";
    ChunkOverlap, Error, "chunk-overlap", "Two chunks claim the same logical addresses.";
    ChunkOutside, Error, "chunk-outside-device", "A stripe of a chunk is not inside its device.";
    SystemChunkMissing, Error, "system-chunk-missing", "A system chunk is not in the superblock's array.";
    SystemChunkStale, Error, "system-chunk-stale", "The superblock's array has a chunk that the chunk tree has not.";
    DevExtentMissing, Error, "dev-extent-missing", "A stripe of a chunk has no device extent.";
    DevExtentExtra, Error, "dev-extent-extra", "A device extent belongs to no stripe of a chunk.";
    DevExtentOverlap, Error, "dev-extent-overlap", "Two device extents claim the same bytes of a device.";
    DevBytesUsed, Error, "dev-bytes-used", "A device's used bytes are not the sum of its device extents.";
    DeviceShort, Error, "device-short", "A device is smaller than its device item says.";
    // Tree blocks.
    TreeBlockBad, Error, "tree-block-bad", "No copy of a tree block can be read and passes the gate.";
    TreeBlockItem, Error, "tree-block-item", "A tree block has its checksum and still holds something that cannot be.";
    TreeBlockCopy, Warning, "tree-block-copy", "A copy of a tree block is bad, another one is good.";
    TreeKeyOrder, Error, "tree-key-order", "The keys of a block reach into the next one.";
    RootItemBad, Error, "root-item-bad", "A root item cannot be read.";
    RootMissing, Error, "root-missing", "A tree that every filesystem has is not in the root tree.";
    // Extents and references to them.
    ExtentItemMissing, Error, "extent-item-missing", "Something refers to an extent, and the extent tree does not have it.";
    ExtentUnreferenced, Error, "extent-unreferenced", "The extent tree has an extent that nothing refers to.";
    ExtentRefMissing, Error, "extent-ref-missing", "A tree refers to an extent, and the extent tree does not record it.";
    ExtentRefExtra, Error, "extent-ref-extra", "The extent tree records a reference that no tree has.";
    ExtentRefCount, Error, "extent-ref-count", "The extent tree records another number of references than a tree has.";
    ExtentRefTotal, Error, "extent-ref-total", "An extent's count of references is not the sum of those recorded.";
    ExtentLength, Error, "extent-length", "An extent item has another length than a file says.";
    ExtentLevel, Error, "extent-level", "An extent item has another level than its tree block.";
    ExtentGeneration, Error, "extent-generation", "An extent item has another generation than its tree block.";
    ExtentType, Error, "extent-type", "What is recorded as data is a tree block, or the other way round.";
    ExtentOverlap, Error, "extent-overlap", "Two extents claim the same logical addresses.";
    ExtentChunkType, Error, "extent-chunk-type", "Data in a metadata chunk, or metadata in a data chunk.";
    ExtentStripe, Error, "extent-crosses-stripe", "A tree block crosses a 64 KiB boundary.";
    ExtentOutside, Error, "extent-outside", "An extent is not inside one block group.";
    // Block groups, free space, checksums.
    GroupMissing, Error, "block-group-missing", "A chunk has no block group item.";
    GroupExtra, Error, "block-group-extra", "A block group item has no chunk of its place and length.";
    GroupFlags, Error, "block-group-flags", "A block group is of another type than its chunk.";
    GroupUsed, Error, "block-group-used", "A block group's used bytes are not the sum of its extents.";
    FreeInfo, Error, "free-space-info", "The free space tree has no good info item for a block group.";
    FreeCount, Error, "free-space-count", "A block group's count of free extents is wrong.";
    FreeMismatch, Error, "free-space-mismatch", "Free space is not exactly what the extents leave.";
    FreeExtra, Warning, "free-space-extra", "The free space tree has an item outside all block groups.";
    CacheMismatch, Error, "space-cache-mismatch", "A valid free space cache is not exactly what the extents leave.";
    CacheBad, Error, "space-cache-bad", "A free space cache says that it is valid and cannot be used.";
    CsumExtra, Error, "csum-extra", "There are checksums for addresses that hold no data.";
    CsumOverlap, Error, "csum-overlap", "Two checksum items claim the same addresses.";
    DataCsum, Error, "data-csum", "Data does not have its checksum.";
    // Files, directories and subvolumes: crate::fs.
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_unique_and_well_formed() {
        for (at, kind) in Kind::ALL.iter().enumerate() {
            assert!(Kind::ALL[at + 1..].iter().all(|other| other.id() != kind.id()), "{kind:?}");
            assert!(kind.id().bytes().all(|b| b.is_ascii_lowercase() || b == b'-'), "{kind:?}");
            assert!(kind.about().ends_with('.'), "{kind:?}");
        }
    }
}
