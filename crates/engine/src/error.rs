//! What can go wrong, each in its own world: the caller's mistake, no space, the device, corruption, an earlier failure.
//!
//! [`Error::errno`] is the one place where an error becomes a number.

use std::sync::Arc;

use buttress_device::DeviceError;
use buttress_ondisk::Key;
use buttress_ondisk::check::Corruption;
use buttress_volume::{Profile, VolumeError};
pub use rustix::io::Errno;

/// An error of the engine.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    /// The caller asked for what cannot be done: the reason is the errno.
    #[error("{}", describe(*.0))]
    User(Errno),
    /// There is no room left, and a commit would not help.
    #[error("no space left on the filesystem")]
    NoSpace,
    /// The filesystem was opened read-only, or turned read-only.
    #[error("the filesystem is read-only")]
    ReadOnly,
    /// A device failed, or what it holds is damaged.
    #[error(transparent)]
    Volume(#[from] Arc<VolumeError>),
    /// A block passed the gate, but what it says contradicts another block.
    #[error(transparent)]
    Corrupt(#[from] Arc<Corruption>),
    /// Trees contradict each other.
    #[error("corrupt filesystem: tree {tree}, {what} (key {key})")]
    Inconsistent {
        /// The tree in which the contradiction was met.
        tree: u64,
        /// What is wrong.
        what: &'static str,
        /// Where.
        key: String,
    },
    /// Data of a file cannot be read.
    #[error(
        "data of file {ino} in tree {tree}, {len} bytes at {offset}, from the extent at {bytenr}: {why}"
    )]
    Data {
        /// The subvolume.
        tree: u64,
        /// The file.
        ino: u64,
        /// Where in the file, in bytes.
        offset: u64,
        /// Bytes.
        len: u64,
        /// The logical address of the extent.
        bytenr: u64,
        /// What is wrong.
        why: Arc<str>,
    },
    /// An earlier commit failed, or something panicked: nothing more is written. Holds the first cause.
    #[error("the filesystem turned read-only after a failure: {0}")]
    Aborted(Arc<str>),
    /// A log that waits cannot be replayed. Nothing was written.
    #[error(
        "the log that waits for replay cannot be replayed: {0}; `buttress check` tells what is damaged, `-o ro,nologreplay` (`--rescue \
         nologreplay`) shows the last commit, and `buttress rescue zero-log` gives up what the log has"
    )]
    Log(Arc<Error>),
    /// A block of the trees that say where chunks are cannot be written anew: no chunk comes or goes.
    #[error(
        "no chunk can be made or given back, and so no block group emptied: {0}; `buttress check` tells what is damaged"
    )]
    Chunks(Arc<str>),
    /// What is asked takes more memory than may be used for it.
    #[error("there is not enough memory for {what} ({place}); a larger memory= gives it more")]
    Memory {
        /// What takes it.
        what: &'static str,
        /// Where.
        place: String,
    },
    /// Something that exists on the disk, or was asked for, and is not supported yet.
    #[error("{0} is not supported")]
    Unsupported(Unsupported),
}

/// What is not supported.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unsupported {
    /// Simple quotas, which writing would make wrong.
    #[error("writing to a filesystem with simple quotas")]
    Quotas,
    /// A balance that has begun, with filters that are not known.
    #[error("a balance with filters that are not known")]
    Balance,
    /// A replacement of a device that has begun.
    #[error("writing while a device is being replaced")]
    Replacement,
    /// A log that waits for replay and does not fit into the memory that may be used.
    #[error("replaying a log with so little memory (mount with a larger memory=)")]
    LargeLog,
    /// More than one device.
    #[error("a filesystem on several devices")]
    SeveralDevices,
    /// Chunks of a profile that needs several devices.
    #[error("writing to {0}")]
    Profile(Profile),
}

/// Results of the engine.
pub type Result<T> = std::result::Result<T, Error>;

/// What a listing passes over, and why.
#[derive(Clone, Debug)]
pub enum Passed {
    /// A name that no file can have: whoever followed it would end somewhere else.
    Name(Error),
    /// What cannot be read.
    Unreadable(Error),
}

impl Passed {
    /// A name that no file can have.
    pub fn name(tree: u64, key: &Key, name: &[u8]) -> Passed {
        let place = format!("{key}, \"{}\"", name.escape_ascii());
        Passed::Name(Error::inconsistent(tree, "a name that no file can have", place))
    }

    /// Why it is passed over.
    pub fn why(self) -> Error {
        match self {
            Passed::Name(why) | Passed::Unreadable(why) => why,
        }
    }
}

impl From<VolumeError> for Error {
    fn from(error: VolumeError) -> Error {
        Error::Volume(Arc::new(error))
    }
}

impl From<Corruption> for Error {
    fn from(error: Corruption) -> Error {
        Error::Corrupt(Arc::new(error))
    }
}

impl From<Errno> for Error {
    fn from(errno: Errno) -> Error {
        Error::User(errno)
    }
}

fn describe(errno: Errno) -> String {
    std::io::Error::from_raw_os_error(errno.raw_os_error()).to_string()
}

impl Error {
    /// A contradiction between trees.
    pub fn inconsistent(tree: u64, what: &'static str, key: impl std::fmt::Display) -> Error {
        Error::Inconsistent { tree, what, key: key.to_string() }
    }

    /// No memory for something, which was met at a place.
    pub fn memory(what: &'static str, place: impl std::fmt::Display) -> Error {
        Error::Memory { what, place: place.to_string() }
    }

    /// Whether the disk holds what cannot be read, or cannot be right: neither the caller nor want of room or memory is the reason.
    pub fn is_damage(&self) -> bool {
        match self {
            Error::Volume(error) => error.is_damage(),
            Error::Corrupt(_) | Error::Inconsistent { .. } => true,
            _ => false,
        }
    }

    /// The number a system call would give.
    pub fn errno(&self) -> Errno {
        match self {
            Error::User(errno) => *errno,
            Error::NoSpace => Errno::NOSPC,
            Error::ReadOnly | Error::Aborted(_) => Errno::ROFS,
            Error::Volume(error) if error.is_full() => Errno::NOSPC,
            Error::Volume(error) => of_volume(error),
            Error::Data { .. } => Errno::IO,
            Error::Corrupt(_) | Error::Inconsistent { .. } | Error::Chunks(_) => Errno::UCLEAN,
            Error::Memory { .. } => Errno::NOMEM,
            Error::Log(why) => why.errno(),
            Error::Unsupported(_) => Errno::OPNOTSUPP,
        }
    }
}

/// What open(2) and mount(2) would say, where it is about opening; else EIO.
fn of_volume(error: &VolumeError) -> Errno {
    match error {
        VolumeError::Device(DeviceError::Open { source, .. }) => {
            source.raw_os_error().map_or(Errno::IO, Errno::from_raw_os_error)
        }
        VolumeError::Device(DeviceError::Busy { .. }) => Errno::BUSY,
        VolumeError::Device(DeviceError::NotADevice { .. }) | VolumeError::NotBtrfs { .. } => {
            Errno::INVAL
        }
        _ => Errno::IO,
    }
}

impl From<Error> for std::io::Error {
    fn from(error: Error) -> std::io::Error {
        match error {
            Error::User(errno) => std::io::Error::from_raw_os_error(errno.raw_os_error()),
            other => {
                let kind = std::io::Error::from_raw_os_error(other.errno().raw_os_error()).kind();
                std::io::Error::new(kind, other)
            }
        }
    }
}
