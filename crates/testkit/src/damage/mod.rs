//! Damage on purpose: healthy images, one field of one item made wrong at a time.
//!
//! A [`Kind`] of damage has a name (item and field), the healthy image it is done to, and a function that does it to a
//! [`Patient`]: it finds the item by what it is, changes it where it lies, in all copies, and repairs the checksums of
//! what it changed, so that only a checker that knows what items mean can see it. Kinds that are about checksums leave
//! them wrong. Each kind says which issue our checker has to raise, and whether `btrfs check` sees it, too.

mod base;
pub mod bytes;
mod kinds;
pub mod mutation;
mod patient;

pub use base::Base;
pub use kinds::kinds;
pub use patient::{Patient, Step, TOP};

use buttress_device::DeviceError;
use buttress_ondisk::Corruption;
use buttress_volume::VolumeError;

use crate::corpus::CorpusError;
use crate::oracle::OracleError;

/// Why damage could not be done.
#[derive(Debug, thiserror::Error)]
pub enum DamageError {
    /// The image has nothing to be damaged in this way.
    #[error("the image does not have {0}")]
    Missing(&'static str),
    /// An item does not fit into the leaf where it belongs.
    #[error("no room in leaf {leaf} of tree {tree}")]
    Full {
        /// The tree.
        tree: u64,
        /// The leaf's address.
        leaf: u64,
    },
    /// The address space could not be read or written.
    #[error(transparent)]
    Volume(#[from] VolumeError),
    /// A block cannot be taken apart.
    #[error(transparent)]
    Block(#[from] Box<Corruption>),
    /// The device.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// A tool, a loop device or a mount failed.
    #[error(transparent)]
    Oracle(#[from] OracleError),
    /// The healthy image could not be filled.
    #[error(transparent)]
    Corpus(#[from] CorpusError),
    /// A system call failed.
    #[error(transparent)]
    Io(#[from] std::io::Error),
}

impl From<rustix::io::Errno> for DamageError {
    fn from(errno: rustix::io::Errno) -> Self {
        Self::Io(errno.into())
    }
}

/// Result of doing damage.
pub type Result<T> = std::result::Result<T, DamageError>;

/// The id in place of an issue's when the filesystem cannot even be opened.
pub const UNOPENABLE: &str = "unopenable";

/// What `btrfs check` says about a damage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It fails.
    Fails,
    /// It says something, but its exit status is that of a clean filesystem.
    Warns,
    /// It is content, for this reason.
    Misses(&'static str),
}

/// A kind of damage.
#[derive(Clone, Copy, Debug)]
pub struct Kind {
    /// Item and field.
    pub name: &'static str,
    /// The image it is done to.
    pub base: Base,
    /// The stable id of the issue that our checker has to raise.
    pub issue: &'static str,
    /// Whether `btrfs check` sees it.
    pub verdict: Verdict,
    /// Whether it shows only when data are read and compared with their checksums.
    pub data: bool,
    /// Does it.
    pub make: fn(&Patient) -> Result<()>,
}

impl Kind {
    /// Damage to [`Base::Main`] that both checkers see.
    const fn new(
        name: &'static str,
        issue: &'static str,
        make: fn(&Patient) -> Result<()>,
    ) -> Kind {
        Kind { name, base: Base::Main, issue, verdict: Verdict::Fails, data: false, make }
    }

    /// The same to another image.
    const fn on(mut self, base: Base) -> Kind {
        self.base = base;
        self
    }

    /// The same, but `btrfs check` does not see it.
    const fn misses(mut self, why: &'static str) -> Kind {
        self.verdict = Verdict::Misses(why);
        self
    }

    /// The same, but `btrfs check` mentions it and exits with 0.
    const fn warns(mut self) -> Kind {
        self.verdict = Verdict::Warns;
        self
    }

    /// The same, but only reading the data shows it.
    const fn in_data(mut self) -> Kind {
        self.data = true;
        self
    }
}
