//! The log: what was made durable since the last commit, beside its trees.
//!
//! Between two commits an fsync writes what it is asked for to *log trees* ([`write`]), one for each subvolume that has any, and the
//! superblock names the tree that lists them. Nothing else refers to their blocks: to the trees that describe space they are free. Who
//! opens such a filesystem replays the logs ([`replay`]); the commit that makes the result durable ends them.

mod read;
pub mod replay;
mod write;

pub use write::{Log, Synced};
