//! btrfs as a library: read and write real btrfs filesystems, as an ordinary user.
//!
//! [`Filesystem::open`] opens an image or a disk, [`Filesystem::open_device`] anything that reads and writes blocks. What is done by path gives a
//! [`File`], which reads and writes as `std::fs::File` does; all else is about a [`Node`]: a subvolume and an inode number, as a mount would ask.
//! One `Filesystem` serves as many threads as like.
//!
//! ```
//! use std::io::{Read, Write};
//! use std::sync::Arc;
//!
//! use buttress::device::MemoryDevice;
//! use buttress::{Filesystem, New, Node, Options};
//! use buttress_mkfs::Environment;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // A filesystem in memory; `Filesystem::open("disk.img", Options::read_write())` opens one in a file.
//! let device = Arc::new(MemoryDevice::new(256 << 20));
//! buttress_mkfs::make(&*device, &buttress_mkfs::Options::default(), &mut Environment::system())?;
//! let fs = Filesystem::open_device(device.clone(), Options::read_write())?;
//!
//! // Files by path, directories and all else by node.
//! let home = fs.create(Node::ROOT, b"home", &New::directory(0o755))?.node;
//! let mut notes = fs.create_file("/home/notes", 0o644)?;
//! notes.write_all(b"first")?;
//! notes.sync()?; // durable from here on, whatever becomes of the process
//!
//! // A read-only snapshot of the top subvolume, whose number is 5, as a directory in it.
//! let monday = fs.snapshot(5, Node::ROOT, b"monday", true)?;
//! notes.write_at(b"other", 0)?;
//! let mut before = String::new();
//! fs.open_file("/monday/home/notes", buttress::OpenMode::read())?.read_to_string(&mut before)?;
//! assert_eq!(before, "first");
//! assert_eq!(fs.subvolume_path(monday)?, b"monday");
//!
//! let mut names = Vec::new();
//! fs.read_dir(home, 0, &mut |entry| {
//!     names.push(entry.name);
//!     true // go on
//! })?;
//! assert_eq!(names, [b"notes"]);
//!
//! // `close` commits what is left, and says if that fails.
//! drop(notes);
//! fs.close()?;
//! let again = Filesystem::open_device(device, Options::read_only())?;
//! assert_eq!(again.attributes(again.resolve("/home/notes")?)?.size, 5);
//! # Ok(())
//! # }
//! ```
//!
//! # How it is made
//!
//! Changes live with their owner in memory, trees are immutable values, and a commit is a few sorted merges.
//! The modules below are layers: each uses only those above it in this list.

pub mod env;
pub mod error;
pub mod fs;
mod hash;
pub mod inode;
mod log;
mod quota;
pub mod refs;
pub mod space;
pub mod stats;
mod stripes;
pub mod subvol;
mod sync;
mod threads;
pub mod tree;
pub mod txn;
pub use env::{Env, Time};
pub use error::{Errno, Error, Result, Unsupported};
pub use fs::{
    Allocate, Attributes, Balance, BalanceFilter, BalanceStop, Balanced, Balancing, Change,
    ClassUsage, Counting, DeviceInfo, Discard, Emptied, Emptying, Entry, Fiemap, File, FileExtent,
    FileKind, Filesystem, GroupInfo, Info, Mapping, New, NewLimits, Node, OpenMode, Options, Owner,
    Place, Referrer, Referrers, Rename, Seek, SetXattr, Stored, StoredIn, SubvolumeInfo, Times,
    Usage, WantedReferrers, acl, check_namespace, fiemap_flags, profile_of,
};
pub use refs::usage as costs;
pub use stats::Stats;

pub use buttress_device as device;
pub use buttress_ondisk as ondisk;
pub use buttress_volume as volume;
