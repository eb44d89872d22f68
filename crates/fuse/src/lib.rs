//! The FUSE front end: inode numbers, requests, ioctls; no filesystem logic.
//!
//! Downward: [`options`] (the `-o` words) and [`launch`] (the background process) stand beside
//! [`session`] (threads and the end of a mount), which stands on [`protocol`] (the kernel's
//! messages). A filesystem is anything that implements [`session::Handler`].

pub mod client;
pub mod daemon;
pub mod launch;
pub mod mount;
pub mod nodes;
pub mod options;
pub mod protocol;
pub mod session;
pub mod signals;
