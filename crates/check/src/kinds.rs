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
    SuperMirror, Warning, "super-mirror", "A mirror of the superblock does not pass the gate, or contradicts the primary.";
    SuperStale, Warning, "super-stale", "A mirror of the superblock is of another commit than the primary.";
    SuperDevice, Error, "super-device", "The superblock and the chunk tree disagree about the device.";
    SuperStripe, Error, "super-stripesize", "The superblock has another stripe size than its sector size; Linux does not look at it, btrfs-progs refuse it.";
    SuperTotal, Error, "super-total-bytes", "The superblock's size is not the sum of the devices' sizes.";
    SuperUsed, Error, "super-bytes-used", "The superblock's used bytes are not the sum of the block groups' used bytes.";
    // Chunks and devices.
    ChunkBad, Error, "chunk-bad", "A chunk item makes no sense.";
    ChunkPlace, Error, "chunk-place", "A chunk overlaps another one, or has a stripe that is not inside a known device.";
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
    TreeBlockUuid, Warning, "tree-block-uuid", "A tree block does not name the uuid of the chunk tree.";
    TreeBlockRevision, Error, "tree-block-revision", "A tree block says that its references are of the format before 2.6.31.";
    TreeBlockOwner, Error, "tree-block-owner", "A tree block belongs to a tree that does not exist.";
    TreeBlockFlags, Error, "tree-block-flags", "A tree block has a flag that blocks of its tree cannot have.";
    ItemOdd, Error, "item-odd", "A tree has an item of a kind that it cannot have.";
    TreeKeyOrder, Error, "tree-key-order", "The keys of a block reach into the next one.";
    RootItemBad, Error, "root-item-bad", "A root item cannot be read.";
    LogWaits, Warning, "log-waits", "A log waits for replay: what was fsynced last is not in the trees.";
    LogCsumMissing, Error, "log-csum-missing", "Data in a log that waits for replay have no checksums.";
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
    ExtentFlags, Error, "extent-flags", "The flags of an extent item cannot be those of its tree block.";
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
    FreeExtra, Warning, "free-space-extra", "The free space tree has an item outside all block groups, which nobody reads: mkfs.btrfs leaves such on new filesystems.";
    CacheStale, Warning, "space-cache-stale", "The free space caches are of another commit than the superblock.";
    CacheMismatch, Error, "space-cache-mismatch", "A valid free space cache is not exactly what the extents leave.";
    CacheBad, Error, "space-cache-bad", "A free space cache says that it is valid and cannot be used.";
    CsumExtra, Error, "csum-extra", "There are checksums for addresses that hold no data.";
    CsumOverlap, Error, "csum-overlap", "Two checksum items claim the same addresses.";
    DataCsum, Error, "data-csum", "Data does not have its checksum.";
    // Files, directories and subvolumes: crate::fs.
    InodeMissing, Error, "inode-missing", "Items of an inode have no inode item.";
    InodeNlink, Error, "inode-nlink", "An inode has more or fewer names than it says.";
    InodeNbytes, Error, "inode-nbytes", "The extents of a file do not add up to its bytes on the disk.";
    InodeOrphan, Error, "inode-orphan", "An inode without links has no orphan item.";
    OrphanStale, Warning, "orphan-stale", "An orphan item is of an inode that has links, or of none.";
    InodeCache, Warning, "inode-cache", "A subvolume has the cache of free inode numbers of old kernels, which nothing uses any more.";
    InodeExtrefHash, Error, "inode-extref-hash", "The key of an extended reference is not the hash of its name.";
    InodeRefNoIndex, Error, "inode-ref-no-index", "An inode has a name that its directory does not have.";
    TopDirBad, Error, "top-dir-bad", "The top directory of a tree is no directory, or not its own parent.";
    DirSize, Error, "dir-size", "The size of a directory is not the length of its names.";
    DirItemNoIndex, Error, "dir-item-no-index", "A directory has a name by hash and not by index.";
    DirIndexNoItem, Error, "dir-index-no-item", "A directory has a name by index and not by hash.";
    DirIndexNoRef, Error, "dir-index-no-ref", "A directory has a name that the inode does not have.";
    DirEntryNoInode, Error, "dir-entry-no-inode", "A directory entry points to no inode.";
    DirEntryType, Error, "dir-entry-type", "A directory entry tells another type than the inode.";
    DirEntryOdd, Error, "dir-entry-odd", "Something that is no directory has entries.";
    NameBad, Error, "name-bad", "A name that no file can have: empty, a dot or two, with a slash or a zero byte.";
    NameTwice, Error, "name-twice", "A directory has a name twice.";
    XattrTwice, Error, "xattr-twice", "An inode has two extended attributes of one name.";
    FileExtentBad, Error, "file-extent-bad", "The fields of a file extent contradict each other.";
    FileExtentHole, Error, "file-extent-hole", "A range of a file has no file extent, without the no-holes feature.";
    FileExtentOdd, Error, "file-extent-odd", "Something that holds no data has file extents.";
    FileExtentOverlap, Error, "file-extent-overlap", "Two file extents of a file overlap.";
    InlineExtentBad, Error, "inline-extent-bad", "An inline extent is longer than it may be.";
    FileCsumMissing, Error, "file-csum-missing", "Data of a file have no checksums.";
    FileCsumExtra, Error, "file-csum-extra", "Data that may have no checksums have some.";
    SymlinkBad, Error, "symlink-bad", "The target of a symbolic link is not what its size says.";
    RootTreeInode, Error, "root-tree-inode", "An inode of the root tree is neither its directory nor a free space cache.";
    RootDirid, Error, "root-dirid", "A root item names another top directory than 256.";
    RootRefs, Error, "root-refs", "A root item counts more than one reference.";
    RootDropping, Error, "root-dropping", "A subvolume with a name is being deleted.";
    RootOrphan, Error, "root-orphan", "A subvolume without references has no orphan item.";
    RootOrphanStale, Warning, "root-orphan-stale", "An orphan item is of a subvolume with references, or of none.";
    RootUnnamed, Error, "root-unnamed", "A subvolume has no name in another one.";
    RootRefNoBackref, Error, "root-ref-no-backref", "A subvolume is named and does not say so.";
    RootBackrefNoRef, Error, "root-backref-no-ref", "A subvolume says to be named and is not.";
    RootRefDiffers, Error, "root-ref-differs", "The two references of a subvolume's name differ.";
    RootRefNoRoot, Error, "root-ref-no-root", "The name of a subvolume belongs to none.";
    RootRefNoEntry, Error, "root-ref-no-entry", "The name of a subvolume is in no directory.";
    DefaultSubvolume, Error, "default-subvolume", "The default subvolume does not exist.";
    UuidMissing, Warning, "uuid-missing", "The uuid of a subvolume is not in the uuid tree.";
    UuidStale, Warning, "uuid-stale", "The uuid tree has a uuid that the subvolume does not have.";
    ExtentOwner, Error, "extent-owner-missing", "Data allocated since simple quotas are on do not say whom they count for.";
    QgroupStatus, Error, "qgroup-status-missing", "The quota tree does not say whether quotas are on.";
    QgroupCount, Error, "qgroup-count", "A quota group counts other bytes than there are.";
    QgroupRelation, Error, "qgroup-relation", "A relation of quota groups is told by one of them, or is to none.";
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
