//! Kernel-made images, described so that any of them can be made again by its name.
//!
//! An [`ImageSpec`] says how `mkfs.btrfs` is called, how the kernel mounts the result, what is put
//! in, how the image is taken (after unmount, or as a copy while still mounted, which leaves what
//! a power cut would leave), and what is done to it afterwards. The facts of the kernel's own view
//! are kept beside the image. [`build`] makes an image once and keeps it under `target/corpus`, in
//! a folder named after a digest of these descriptions, so that a change of them makes them anew.
//!
//! Cached images are shared by all tests: read them, or copy them with [`Image::copy_to`].

mod build;
mod collide;
mod list;
mod patch;
pub(crate) mod populate;
pub(crate) mod special;

use std::io;
use std::path::{Path, PathBuf};

pub use build::{build, cache_dir};
pub use collide::{colliding_names, name_hash};
pub use list::specs;
pub use patch::{crc32c, edit_super};

use crate::facts::{Facts, HostError};
use crate::oracle::{OracleError, copy_sparse};

/// What opening an image has to lead to.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Expectation {
    /// Everything can be read, and the image can be opened for writing.
    Readable,
    /// It can be read; opening for writing is refused, for this reason.
    ReadOnly(&'static str),
    /// It is not opened at all, for this reason.
    Refused(&'static str),
}

/// How the image is taken from the running kernel.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Capture {
    /// After an orderly unmount.
    Unmounted,
    /// Copied while mounted, with files still open: what a power cut leaves.
    Live,
}

/// Why an image could not be made.
#[derive(Debug, thiserror::Error)]
pub enum CorpusError {
    /// No image has this name.
    #[error("no image is called {0}")]
    Unknown(String),
    /// A tool, a loop device or a mount failed.
    #[error(transparent)]
    Oracle(#[from] OracleError),
    /// A system call failed while the image was filled.
    #[error("{what}: {source}")]
    Io {
        /// What was done.
        what: String,
        /// What the system said.
        source: io::Error,
    },
    /// Facts could not be taken.
    #[error(transparent)]
    Facts(#[from] HostError),
    /// The moment an image is there for was missed several times; no fault of anyone.
    #[error("the moment of image {0} was missed")]
    Missed(&'static str),
    /// It has not been made yet, which takes loop devices and mounts.
    #[error("image {0} is made by root")]
    NeedsRoot(&'static str),
    /// The image does not have what it is there for.
    #[error("image {image} does not show {want:?}")]
    Missing {
        /// Name of the image.
        image: &'static str,
        /// The text that btrfs-progs do not print about it.
        want: &'static str,
    },
}

impl From<io::Error> for CorpusError {
    fn from(source: io::Error) -> Self {
        Self::Io { what: "fill an image".to_owned(), source }
    }
}

impl From<rustix::io::Errno> for CorpusError {
    fn from(source: rustix::io::Errno) -> Self {
        io::Error::from(source).into()
    }
}

/// Result of a step of making an image.
pub type Result<T> = std::result::Result<T, CorpusError>;

/// Where a populate function works.
pub struct Site<'a> {
    /// The top of the kernel mount.
    pub dir: &'a Path,
    /// Files held open until the image is taken.
    pub open: Vec<std::fs::File>,
    /// Programs still running when the image is taken.
    pub running: Vec<std::process::Child>,
}

/// Fills a mounted filesystem.
pub type Populate = fn(&mut Site<'_>) -> Result<()>;
/// Changes an image that is not mounted.
pub type Edit = fn(&Path) -> Result<()>;

/// How an image is made. See the methods for what each part means.
#[derive(Clone)]
pub struct ImageSpec {
    /// Name, also of its folder.
    pub name: &'static str,
    /// Size of the file in bytes (it is sparse).
    pub size: u64,
    /// Number of devices given to mkfs; the image is the first.
    pub devices: usize,
    /// Arguments of `mkfs.btrfs`.
    pub mkfs: &'static [&'static str],
    /// Options of the kernel mount that fills it.
    pub mount: &'static str,
    /// What is put in; None for an image that the kernel here does not mount.
    pub populate: Option<Populate>,
    /// How it is taken.
    pub capture: Capture,
    /// Done to the image before facts are taken.
    pub edit: Option<Edit>,
    /// Options of the read-only mount that facts are taken from.
    pub facts_mount: &'static str,
    /// Done to the image after facts are taken: damage that must not show.
    pub damage: Option<Edit>,
    /// Texts that btrfs-progs print about the image and that prove its feature is there.
    pub shows: &'static [&'static str],
    /// Where the filesystem begins in the file, in bytes.
    pub offset: u64,
    /// True if its state lasts so short that taking it can fail; see [`CorpusError::Missed`].
    pub momentary: bool,
    /// What opening it has to lead to.
    pub expectation: Expectation,
}

/// An image ready to be opened.
#[derive(Debug)]
pub struct Image {
    /// Its name.
    pub name: &'static str,
    /// The shared file: not to be written to.
    pub path: PathBuf,
    /// Where the filesystem begins in it, in bytes.
    pub offset: u64,
    /// What the kernel shows of it; None for an image that is to be refused.
    pub facts: Option<Facts>,
    /// What opening it has to lead to.
    pub expectation: Expectation,
}

impl Image {
    /// A private copy in `dir`, free to be written to.
    pub fn copy_to(&self, dir: &Path) -> Result<PathBuf> {
        let path = dir.join(format!("{}.img", self.name));
        copy_sparse(&self.path, &path)?;
        Ok(path)
    }
}
