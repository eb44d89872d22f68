//! The tree log: what fsync writes instead of a commit.
//!
//! A log is read beside the last commit, by whoever opens the filesystem next: it has the inodes that were made durable since then, as far
//! as they have changed, and replay puts them in their place.

mod write;

pub use write::{Log, Synced};
