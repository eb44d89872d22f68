//! Where only ours complains, and why that is right. What Linux says to each was asked with `mutations --kernel`.

use buttress_check::{Report, Severity};

use crate::damage::UNOPENABLE;

/// A reason to complain about what `btrfs check` does not see.
#[derive(Clone, Copy, Debug)]
pub struct Excuse {
    /// The id of the issue that we raise; [`UNOPENABLE`] where we do not open the filesystem.
    pub issue: &'static str,
    /// What the issue's text has to contain; empty for any.
    pub text: &'static str,
    /// Why it is one.
    pub reason: &'static str,
}

const fn because(issue: &'static str, text: &'static str, reason: &'static str) -> Excuse {
    Excuse { issue, text, reason }
}

const LINUX: &str = "Linux refuses the block, or the whole filesystem";
const LAYOUT: &str = "an item that is shorter or longer than what it holds: Linux refuses most of \
                      them, and nothing writes the others";
const NOBODY: &str = "nothing writes that, and nothing reads it: something else changed it";
const CONTRADICTS: &str = "two places that say the same say different things, and Linux reads one";
const ADDRESSES: &str = "addresses that are no multiple of a sector: nothing can be there";
const CACHE: &str = "a cache that says to be valid and is not: Linux looks and makes it anew";

/// All of them. The first that fits is taken.
pub fn excuses() -> &'static [Excuse] {
    EXCUSES
}

const EXCUSES: &[Excuse] = &[
    // What no block may hold: the gate's rules are those of Linux, and a few more.
    because("tree-block-item", "wrong item size", LAYOUT),
    because("tree-block-item", "wrong size of a free space bitmap", LAYOUT),
    because("tree-block-item", "cut off", LAYOUT),
    because("tree-block-item", "invalid inline reference", LAYOUT),
    because("tree-block-item", "unaligned block group", ADDRESSES),
    because("tree-block-item", "unaligned length of a block group", ADDRESSES),
    because("tree-block-item", "free space", ADDRESSES),
    because("tree-block-bad", "unaligned stripe", ADDRESSES),
    because("tree-block-bad", "invalid object of a chunk", NOBODY),
    because("tree-block-item", "subvolume's name", "a name that no directory can have"),
    because("tree-block-item", "", LINUX),
    because("tree-block-bad", "", LINUX),
    because("tree-key-order", "", "who looks for the key does not find it where it is"),
    // What we do not open.
    because(UNOPENABLE, "holds no btrfs filesystem", "Linux refuses to mount it"),
    because(UNOPENABLE, "unknown superblock flags", "Linux refuses to mount it"),
    because(UNOPENABLE, "an unfinished change", "Linux refuses to mount it"),
    because(UNOPENABLE, "feature raid", "several devices are not supported yet, and this is said"),
    // What only the superblock, chunks and devices say.
    because("super-bad", "", LINUX),
    because("super-device", "", CONTRADICTS),
    because("super-total-bytes", "", CONTRADICTS),
    because("super-bytes-used", "", CONTRADICTS),
    because("system-chunk-missing", "", CONTRADICTS),
    because("system-chunk-stale", "", CONTRADICTS),
    because("chunk-bad", "", LINUX),
    because("chunk-place", "", "the chunk is not on the device: Linux refuses to mount it"),
    because("dev-extent-missing", "", "Linux refuses to mount it"),
    because("dev-extent-extra", "", "Linux refuses to mount it"),
    because("dev-extent-overlap", "", "Linux refuses to mount it"),
    because("dev-bytes-used", "", CONTRADICTS),
    because("device-short", "", "Linux refuses to mount it"),
    // Heads of blocks.
    because("tree-block-flags", "", NOBODY),
    because("tree-block-revision", "", "Linux takes it for the format before 2.6.31"),
    because("tree-block-owner", "", "Linux counts its references for the wrong tree"),
    // Items that nothing reads.
    because("item-odd", "", "an item that nothing finds: something else changed its key"),
    because("root-missing", "", LINUX),
    because("root-item-bad", "", NOBODY),
    because("root-refs", "", "nothing counts further than to one there"),
    because("root-tree-inode", "", NOBODY),
    // Extents.
    because("extent-generation", "", CONTRADICTS),
    because("extent-level", "", CONTRADICTS),
    because("extent-flags", "", CONTRADICTS),
    because("extent-length", "", CONTRADICTS),
    because("extent-ref-count", "have 2 recorded by tree", "one reference in two records"),
    because("block-group-extra", "", "a block group of nothing: Linux refuses to mount it"),
    because("block-group-missing", "", "Linux refuses to mount it"),
    because("block-group-flags", "", CONTRADICTS),
    because("csum-extra", "", "checksums of what is no data: the next data there would not match"),
    because("csum-overlap", "", "two checksums for one sector"),
    because("free-space-mismatch", "", CONTRADICTS),
    because("free-space-count", "", CONTRADICTS),
    because("free-space-info", "", CONTRADICTS),
    because("space-cache-bad", "", CACHE),
    because("space-cache-mismatch", "", CACHE),
    because("log-csum-missing", "", "Linux replays the log, and cannot read the data then"),
    // Files and names.
    because("inode-nlink", "", CONTRADICTS),
    because("inode-ref-no-index", "", "a name in an inode that no directory has"),
    because("dir-item-no-index", "", CONTRADICTS),
    because("dir-index-no-item", "", CONTRADICTS),
    because("inode-extref-hash", "", "a reference that is not where Linux looks for it"),
    because("inode-missing", "", "items of no inode"),
    because("name-bad", "", "a name that leads elsewhere"),
    because("name-twice", "", "of two files of one name Linux shows one"),
    because("xattr-twice", "", "of two attributes of one name Linux shows one"),
    because("file-extent-bad", "", NOBODY),
    because("symlink-bad", "", "a link whose target nobody can read"),
    because("inline-extent-bad", "", "more bytes than the item can hold"),
    because("top-dir-bad", "", NOBODY),
    // Subvolumes.
    because("root-ref-no-backref", "", CONTRADICTS),
    because("root-backref-no-ref", "", CONTRADICTS),
    because("root-ref-differs", "", CONTRADICTS),
    because("root-ref-no-root", "", "the name of no subvolume"),
    because("default-subvolume", "", "Linux refuses to mount it"),
    because("qgroup-status-missing", "", "Linux takes the quotas for being off, without a word"),
    because("qgroup-count", "", "groups above subvolumes, which `btrfs check` does not add up"),
    because("qgroup-relation", "", CONTRADICTS),
];

/// What `btrfs check` says where only it complains, and why that is no fault of ours.
const THEIRS: &[(&str, &str)] = &[(
    "unsupported option features (10000)",
    "simple quotas, which are newer than the `btrfs check` asked, and which we read",
)];

/// The reason for the report of a `btrfs check` that alone complains.
pub fn excuse_theirs(report: &str) -> Option<&'static str> {
    THEIRS.iter().find(|(text, _)| report.contains(text)).map(|(_, reason)| *reason)
}

/// The reason for not opening a filesystem.
pub fn excuse_refusal(error: &str) -> Option<&'static str> {
    reason(UNOPENABLE, error)
}

fn reason(issue: &str, text: &str) -> Option<&'static str> {
    let known = EXCUSES.iter().find(|it| it.issue == issue && text.contains(it.text));
    known.map(|it| it.reason)
}

/// The reason for what ours says; the first issue without one otherwise. A consequence needs no reason of its own: one is
/// enough, and every kind of issue that has none shows where it comes alone.
pub fn excuse(report: &Report) -> Result<&'static str, String> {
    let is_error = |it: &&buttress_check::Issue| it.kind.severity() == Severity::Error;
    let errors: Vec<_> = report.issues.iter().filter(is_error).collect();
    let known = errors.iter().find_map(|it| reason(it.kind.id(), &it.to_string()));
    known.ok_or_else(|| errors.first().map(ToString::to_string).unwrap_or_default())
}
