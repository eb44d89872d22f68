//! Why no filesystem was made.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use buttress_device::DeviceError;
use thiserror::Error;

/// Why no filesystem was made, or not all of it. When [`make`](crate::make) fails with anything but
/// [`MkfsError::Device`], nothing was written.
#[derive(Debug, Clone, Error)]
pub enum MkfsError {
    /// The device failed.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The device takes no writes.
    #[error("{device} is read-only")]
    ReadOnly {
        /// The device's name.
        device: String,
    },
    /// The device, or the part of it asked for, is too small.
    #[error(
        "{device} is too small to make a usable filesystem: it has {size} bytes, and the minimum \
         size for each btrfs device is {minimum}"
    )]
    TooSmall {
        /// The device's name.
        device: String,
        /// Bytes there are, or were asked for.
        size: u64,
        /// Bytes needed at least.
        minimum: u64,
    },
    /// The filesystem was asked to be larger than the device.
    #[error("{device} is smaller than requested size, expected {expected}, found {found}")]
    SmallerThanRequested {
        /// The device's name.
        device: String,
        /// Bytes asked for.
        expected: u64,
        /// Bytes there are.
        found: u64,
    },
    /// There is something on the device already.
    #[error(
        "{device} appears to contain an existing filesystem ({what}); \
         use the -f option to force overwrite of {device}"
    )]
    Exists {
        /// The device's name.
        device: String,
        /// What was found, in the words of [`existing_signature`](crate::existing_signature).
        what: String,
    },
    /// The filesystem would begin inside a partitioned disk and reach beyond the partition there.
    #[error(
        "{device}: the bytes {start} to {end} are not within one partition: partition {number} has \
         some of them"
    )]
    Partition {
        /// The device's name.
        device: String,
        /// The first byte of the filesystem on the disk.
        start: u64,
        /// The first byte after it.
        end: u64,
        /// The number of a partition that has some of these bytes.
        number: u32,
        /// Bytes of the partition that begins where the filesystem does.
        here: Option<u64>,
    },
    /// A node size that is no power of two between 4 KiB and 64 KiB, or does not fit the other options.
    #[error("illegal nodesize {nodesize} ({why})")]
    NodeSize {
        /// Bytes asked for.
        nodesize: u64,
        /// What is wrong with it.
        why: &'static str,
    },
    /// A sector size other than 4096.
    #[error("illegal sectorsize {sectorsize}: only 4096 is supported")]
    SectorSize {
        /// Bytes asked for.
        sectorsize: u64,
    },
    /// Mixed block groups hold data and metadata, so there can be only one profile.
    #[error("with mixed block groups data and metadata profiles must be the same")]
    MixedProfiles,
    /// A profile that nobody knows.
    #[error("unknown profile {name}")]
    UnknownProfile {
        /// What was asked for.
        name: String,
    },
    /// A profile that cannot be made here.
    #[error("profile {name} is not supported: it needs several devices")]
    UnsupportedProfile {
        /// What was asked for.
        name: String,
    },
    /// A checksum that nobody knows.
    #[error("unknown csum type {name}")]
    UnknownChecksum {
        /// What was asked for.
        name: String,
    },
    /// A feature that nobody knows.
    #[error("unrecognized filesystem feature '{name}'")]
    UnknownFeature {
        /// What was asked for.
        name: String,
    },
    /// A feature that exists in btrfs and not here.
    #[error("filesystem feature '{name}' is not supported")]
    UnsupportedFeature {
        /// What was asked for.
        name: &'static str,
    },
    /// A feature asked for without one that it needs.
    #[error("filesystem feature '{name}' requires '{needs}'")]
    FeatureNeeds {
        /// What was asked for.
        name: &'static str,
        /// What is missing.
        needs: &'static str,
    },
    /// Two features asked for of which a filesystem has one.
    #[error("filesystem features '{one}' and '{other}' cannot be together")]
    FeaturesClash {
        /// What was asked for.
        one: &'static str,
        /// What was asked for, too.
        other: &'static str,
    },
    /// A label of more than 255 bytes, or with a newline or zero byte in it.
    #[error("label \"{label}\" {why}")]
    Label {
        /// The label asked for, with what is no plain letter escaped.
        label: String,
        /// What is wrong with it.
        why: &'static str,
    },
    /// Text that is not a size.
    #[error("cannot read size {text:?}: {why}")]
    Size {
        /// The text.
        text: String,
        /// What is wrong with it.
        why: &'static str,
    },
    /// What the filesystem was to be filled with could not be read.
    #[error("cannot {action} {}: {source}", path.display())]
    Source {
        /// What was tried: "open", "read"…
        action: &'static str,
        /// Where.
        path: PathBuf,
        /// The system's answer.
        source: Arc<io::Error>,
    },
    /// What was read could not be written into the filesystem.
    #[error("cannot {action} {}: {source}", path.display())]
    Filesystem {
        /// What was tried: "copy", "link"…
        action: &'static str,
        /// What was to be copied.
        path: PathBuf,
        /// The engine's answer.
        source: buttress::Error,
    },
    /// `--subvol` with a type that nobody knows, or a directory that cannot become a subvolume.
    #[error("subvolume {text:?}: {why}")]
    Subvolume {
        /// What was asked for.
        text: String,
        /// What is wrong with it.
        why: &'static str,
    },
    /// The trees of an empty filesystem came out other than planned.
    #[error("internal error: tree {tree} does not fit its plan")]
    Plan {
        /// The tree's id.
        tree: u64,
    },
}

impl MkfsError {
    /// An [`MkfsError::Source`] from its parts.
    pub(crate) fn source(
        action: &'static str,
        path: impl AsRef<Path>,
        error: impl Into<io::Error>,
    ) -> MkfsError {
        let path = path.as_ref().to_path_buf();
        MkfsError::Source { action, path, source: Arc::new(error.into()) }
    }
}
