//! Fills a new filesystem from a directory tree, as an ordinary user.
//!
//! Three stages: [`walk`] lists directories in a fixed order, [`read`] reads what the names stand for on several
//! threads, and the caller's thread creates everything through the public interface of the engine. The order of
//! creation, and with it inode numbers and the layout, depends on the source's names only.

#![allow(dead_code, reason = "the writing stage waits for the engine")]

pub(crate) mod pipeline;
pub(crate) mod read;
pub(crate) mod subvolumes;
pub(crate) mod walk;

#[cfg(test)]
mod tests;

pub use subvolumes::{Subvolume, SubvolumeKind, parse_subvolume};
