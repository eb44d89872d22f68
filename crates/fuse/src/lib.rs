//! The FUSE front end: inode numbers, requests, ioctls; no filesystem logic.
//!
//! Downward: [`options`] (the `-o` words) and [`launch`] (the background process) stand beside
//! [`session`] (threads and the end of a mount), which stands on [`protocol`] (the kernel's
//! messages). [`mount`] turns requests into operations of a filesystem, [`nodes`] counts what the
//! kernel holds, and [`daemon`] puts it all together, within the memory of its [`budget`]. [`client`]
//! is for commands on a live mount.

pub mod budget;
pub mod client;
pub mod daemon;
pub mod launch;
pub mod mount;
pub mod nodes;
pub mod options;
pub mod protocol;
pub mod session;
pub mod signals;
mod will;

pub use daemon::{Ground, MountError, mount, unmount};
pub use options::MountOptions;
