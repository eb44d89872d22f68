//! The images.

use super::Expectation::{ReadOnly, Refused};
use super::populate::{everything, nothing};
use super::special::*;
use super::{Capture, Edit, Expectation, ImageSpec, Populate};

/// Size of an image unless it says otherwise, in bytes.
const SIZE: u64 = 256 << 20;

/// A spec with nothing special about it.
fn image(name: &'static str, populate: Populate) -> ImageSpec {
    ImageSpec {
        name,
        size: SIZE,
        devices: 1,
        mkfs: &[],
        mount: "",
        populate: Some(populate),
        capture: Capture::Unmounted,
        edit: None,
        facts_mount: "",
        damage: None,
        shows: &[],
        offset: 0,
        momentary: false,
        expectation: Expectation::Readable,
    }
}

/// An image that is not to be opened, and that nothing is put in.
fn refused(name: &'static str, why: &'static str) -> ImageSpec {
    ImageSpec { populate: None, expectation: Refused(why), ..image(name, nothing) }
}

impl ImageSpec {
    /// With these arguments of mkfs.
    fn mkfs(mut self, args: &'static [&'static str]) -> Self {
        self.mkfs = args;
        self
    }

    /// With these mount options.
    fn mount(mut self, options: &'static str) -> Self {
        self.mount = options;
        self
    }

    /// With this text in the dumps of btrfs-progs.
    fn shows(mut self, texts: &'static [&'static str]) -> Self {
        self.shows = texts;
        self
    }

    /// With this done to it before facts are taken.
    fn edit(mut self, edit: Edit) -> Self {
        self.edit = Some(edit);
        self
    }

    /// With this done to it in the end.
    fn damage(mut self, damage: Edit) -> Self {
        self.damage = Some(damage);
        self
    }

    /// Taken in this way.
    fn capture(mut self, capture: Capture) -> Self {
        self.capture = capture;
        self
    }

    /// Caught in a moment that can be missed.
    fn momentary(mut self) -> Self {
        self.momentary = true;
        self
    }

    /// With this outcome.
    fn expect(mut self, expectation: Expectation) -> Self {
        self.expectation = expectation;
        self
    }
}

/// All images, in the order in which they are best read.
pub fn specs() -> Vec<ImageSpec> {
    [profiles(), formats(), checksums(), space(), data(), names(), subvolumes(), pairs(), moments()]
        .into_iter()
        .chain([damaged(), refusals()])
        .flatten()
        .collect()
}

/// Profiles and block groups.
fn profiles() -> Vec<ImageSpec> {
    vec![
        image("plain", everything).shows(&["METADATA|DUP", "DATA|single"]),
        image("empty", nothing),
        image("single-metadata", everything)
            .mkfs(&["-m", "single"])
            .shows(&["METADATA|single", "SYSTEM|single"]),
        image("dup-data", everything).mkfs(&["-d", "dup", "-m", "dup"]).shows(&["DATA|DUP"]),
        image("mixed", everything).mkfs(&["-M"]).shows(&["MIXED_GROUPS", "DATA|METADATA"]),
        image("mixed-dup", everything)
            .mkfs(&["-M", "-m", "dup", "-d", "dup"])
            .shows(&["MIXED_GROUPS", "DATA|METADATA|DUP"]),
        image("converted-data", converted_data).shows(&["DATA|DUP", "METADATA|single"]),
        image("balanced", balanced),
        ImageSpec { size: 400 << 20, ..image("resized", resized) },
        image("emptied", emptied),
    ]
}

/// Node sizes and features that change how items are written.
fn formats() -> Vec<ImageSpec> {
    vec![
        image("node-4k", everything).mkfs(&["-n", "4096"]).shows(&["nodesize\t\t4096"]),
        image("node-8k", everything).mkfs(&["-n", "8192"]).shows(&["nodesize\t\t8192"]),
        image("node-32k", everything).mkfs(&["-n", "32768"]).shows(&["nodesize\t\t32768"]),
        image("node-64k", everything).mkfs(&["-n", "65536"]).shows(&["nodesize\t\t65536"]),
        image("old-extent-items", everything)
            .mkfs(&["-O", "^skinny-metadata"])
            .shows(&["tree block key"]),
        image("explicit-holes", everything)
            .mkfs(&["-O", "^no-holes"])
            .shows(&["extent data disk byte 0 nr 0"]),
        image("no-extended-refs", everything).mkfs(&["-O", "^extref"]),
        image("ancient", everything)
            .mkfs(&["-O", "^skinny-metadata,^no-holes,^extref", "-R", "^free-space-tree"])
            .mount("space_cache=v1"),
        image("modernised", everything)
            .mkfs(&["-O", "^skinny-metadata,^no-holes,^extref"])
            .edit(modernise)
            .shows(&["SKINNY_METADATA", "NO_HOLES", "EXTENDED_IREF", "tree block key"]),
        image("metadata-uuid", everything).edit(change_metadata_uuid).shows(&["METADATA_UUID"]),
        image("rewritten-fsid", everything).edit(rewrite_fsid),
        image("label", everything).mkfs(&["-L", "some label"]).shows(&["some label"]),
    ]
}

/// Checksums.
fn checksums() -> Vec<ImageSpec> {
    vec![
        image("xxhash", everything).mkfs(&["--csum", "xxhash"]).shows(&["xxhash64"]),
        image("sha256", everything).mkfs(&["--csum", "sha256"]).shows(&["sha256"]),
        image("blake2", everything).mkfs(&["--csum", "blake2"]).shows(&["blake2"]),
        image("nodatasum-mount", everything).mount("nodatasum").shows(&["NODATASUM"]),
        image("nodatacow-mount", everything).mount("nodatacow").shows(&["NODATACOW"]),
        image("nodatacow-attribute", nodatacow_attribute).shows(&[
            "NODATACOW",
            "IMMUTABLE",
            "APPEND",
            "NODUMP",
        ]),
    ]
}

/// How free space is kept, and quotas.
fn space() -> Vec<ImageSpec> {
    vec![
        // The cache is only written for block groups of 100 MiB and more.
        ImageSpec { size: 2 << 30, ..image("space-cache-v1", everything_and_bulk) }
            .mkfs(&["-R", "^free-space-tree"])
            .mount("space_cache=v1")
            .shows(&["FREE_SPACE UNTYPED"]),
        image("no-space-cache", everything)
            .mkfs(&["-R", "^free-space-tree"])
            .mount("nospace_cache"),
        ImageSpec { size: 2 << 30, ..image("space-cache-replaced", everything_and_bulk) }
            .mkfs(&["-R", "^free-space-tree"])
            .mount("clear_cache,space_cache=v2")
            .shows(&["FREE_SPACE_TREE_VALID"]),
        image("space-bitmaps", fragmented).mkfs(&["-m", "single"]).shows(&["FREE_SPACE_INFO"]),
        image("quotas", full_quotas).shows(&["QGROUP_LIMIT", "QGROUP_RELATION"]),
        image("quotas-from-mkfs", everything).mkfs(&["-R", "quota"]).shows(&["QGROUP_INFO"]),
        // Bit 16; the dump of older tools has no name for it.
        image("simple-quotas", simple_quotas).shows(&["0x10361"]),
    ]
}

/// Extents and compression.
fn data() -> Vec<ImageSpec> {
    vec![
        image("zlib", everything).mount("compress-force=zlib").shows(&["compression 1 (zlib)"]),
        image("lzo", everything).mount("compress-force=lzo").shows(&["compression 2 (lzo)"]),
        image("zstd", everything).mount("compress-force=zstd").shows(&["compression 3 (zstd)"]),
        image("zstd-15", everything).mount("compress-force=zstd:15").shows(&["(zstd)"]),
        image("compression-property", compressed_by_property).shows(&["(zlib)", "(lzo)", "(zstd)"]),
        image("inline-always", everything).mount("max_inline=4095"),
        image("inline-never", everything).mount("max_inline=0"),
        image("enormous", enormous),
        image("fragmented", fragmented),
        image("defragmented", defragmented).shows(&["(zstd)"]),
    ]
}

/// Names, links and attributes.
fn names() -> Vec<ImageSpec> {
    vec![
        image("collisions", collisions),
        image("many-attributes", many_attributes),
        image("big-directories", big_directories),
        image("deep-directories", deep_directories),
        image("thousand-links", thousand_links).shows(&["INODE_EXTREF"]),
    ]
}

/// Subvolumes and snapshots.
fn subvolumes() -> Vec<ImageSpec> {
    vec![
        image("default-subvolume", default_subvolume).shows(&["DEFAULT_SUBVOL"]),
        image("snapshot-chain", snapshot_chain),
        image("nested-subvolumes", nested_subvolumes),
        image("deleted-subvolumes", deleted_subvolumes).mount("commit=1"),
        image("received", received).shows(&["UUID_KEY_RECEIVED_SUBVOL"]),
    ]
}

/// Features that meet.
fn pairs() -> Vec<ImageSpec> {
    vec![
        image("node-4k-links", thousand_links).mkfs(&["-n", "4096"]).shows(&["INODE_EXTREF"]),
        image("node-4k-collisions", collisions).mkfs(&["-n", "4096"]),
        image("node-64k-attributes", many_attributes).mkfs(&["-n", "65536"]),
        image("node-4k-snapshots", snapshot_chain).mkfs(&["-n", "4096"]),
        image("node-64k-directories", big_directories).mkfs(&["-n", "65536"]),
        image("mixed-zstd", everything).mkfs(&["-M"]).mount("compress-force=zstd"),
        image("mixed-snapshots", snapshot_chain).mkfs(&["-M"]),
        image("blake2-zlib", everything).mkfs(&["--csum", "blake2"]).mount("compress-force=zlib"),
        image("sha256-node-4k", everything).mkfs(&["--csum", "sha256", "-n", "4096"]),
        image("xxhash-dup-data", everything).mkfs(&["--csum", "xxhash", "-d", "dup"]),
        image("explicit-holes-enormous", enormous).mkfs(&["-O", "^no-holes"]),
        image("explicit-holes-lzo", everything)
            .mkfs(&["-O", "^no-holes"])
            .mount("compress-force=lzo"),
        image("old-extent-items-snapshots", fragmented).mkfs(&["-O", "^skinny-metadata"]),
        image("old-extent-items-balanced", balanced).mkfs(&["-O", "^skinny-metadata"]),
        image("metadata-uuid-sha256", everything)
            .mkfs(&["--csum", "sha256"])
            .edit(change_metadata_uuid)
            .shows(&["METADATA_UUID"]),
        image("quotas-deleted", deleted_subvolumes).mkfs(&["-R", "quota"]).mount("commit=1"),
        image("nested-space-cache-v1", nested_subvolumes)
            .mkfs(&["-R", "^free-space-tree"])
            .mount("space_cache=v1"),
    ]
}

/// States that only last a moment.
fn moments() -> Vec<ImageSpec> {
    vec![
        ImageSpec { facts_mount: "rescue=nologreplay", ..image("waiting-log", waiting_log) }
            .mount("commit=3600")
            .capture(Capture::Live)
            .shows(&["TREE_LOG"]),
        image("orphans", orphans)
            .mount("commit=3600")
            .capture(Capture::Live)
            .shows(&["ORPHAN_ITEM"]),
        image("deleting-subvolume", deleting_subvolume)
            .mount("commit=3600")
            .capture(Capture::Live)
            .shows(&["ORPHAN ORPHAN_ITEM"])
            .momentary(),
        image("half-deleted-subvolume", half_deleted_subvolume)
            .mkfs(&["-n", "4096"])
            .mount("commit=3600")
            .capture(Capture::Live)
            .shows(&["ORPHAN ORPHAN_ITEM", "drop_level 1"])
            .momentary(),
        image("paused-balance", paused_balance)
            .mount("commit=3600")
            .capture(Capture::Live)
            .shows(&["BALANCE TEMPORARY_ITEM"])
            .momentary(),
        image("seed", everything)
            .edit(make_seed)
            .shows(&["SEEDING"])
            .expect(ReadOnly("a seeding device")),
        image("unknown-compat-ro", everything)
            .edit(unknown_compat_ro)
            .expect(ReadOnly("an unknown compat_ro bit")),
        ImageSpec { offset: 1 << 20, ..image("inside-a-disk", everything) },
    ]
}

/// Damage that a second copy makes good.
fn damaged() -> Vec<ImageSpec> {
    vec![
        image("primary-super-bad", everything).damage(spoil_primary_super),
        image("dup-copy-bad", everything)
            .mkfs(&["-m", "dup", "-d", "dup"])
            .damage(spoil_first_copies),
    ]
}

/// What is not opened.
fn refusals() -> Vec<ImageSpec> {
    let two = |name, why, args| ImageSpec { devices: 2, ..refused(name, why).mkfs(args) };
    vec![
        two("raid0", "several devices", &["-d", "raid0", "-m", "raid0"]),
        two("raid1", "several devices", &["-d", "raid1", "-m", "raid1"]),
        two("two-devices-single", "several devices", &["-d", "single", "-m", "single"]),
        ImageSpec {
            devices: 4,
            ..refused("raid10", "several devices").mkfs(&["-d", "raid10", "-m", "raid10"])
        },
        ImageSpec {
            devices: 3,
            ..refused("raid5", "several devices").mkfs(&["-d", "raid5", "-m", "raid1c3"])
        },
        refused("sector-8k", "a sector size other than 4096").mkfs(&["-s", "8192"]),
        refused("sector-64k", "a sector size other than 4096")
            .mkfs(&["-s", "65536", "-n", "65536"]),
        refused("unknown-incompat", "an unknown incompat bit").edit(unknown_incompat),
        refused("zoned", "zones").edit(claim_zoned).shows(&["ZONED"]),
        refused("extent-tree-v2", "extent tree v2").edit(claim_extent_tree_v2),
        refused("stripe-tree", "a stripe tree").edit(claim_stripe_tree),
        refused("no-super", "no superblock").damage(remove_supers),
        refused("cut-in-half", "shorter than its device item says").damage(cut_in_half),
    ]
}
