//! The checker: is a filesystem what it says it is? Read-only, and sharing no code with the engine that writes.
//!
//! What is wrong becomes an [`Issue`] of a [`Kind`] with a stable id. A check never ends early: what cannot be read is an
//! issue, and the rest is looked at all the same.
//!
//! How it stays fast and small: every tree block is read once, in parallel, and no map of the references is kept. Each
//! reference found in a tree is added, as a hash, to one of a few thousand sums, and each reference that the extent tree
//! records is taken away from it. A sum that does not end at zero is looked at a second time, with real records, which then
//! say exactly what is wrong. Memory so depends on the damage and not on the size.
//!
//! Terms: a *place* is where an issue is; the *sink* takes issues from all threads and keeps a bounded number; a *tree* is a
//! root as the root tree (or the superblock) names it; a *part* is a range of a tree's inodes that one thread judges.

#![deny(clippy::indexing_slicing)]
#![cfg_attr(test, allow(clippy::indexing_slicing, reason = "tests index what they built"))]

mod belongs;
mod charged;
mod context;
mod csums;
mod cursor;
mod data;
mod devices;
mod fs;
mod issue;
mod kinds;
mod logs;
mod marks;
mod options;
mod owners;
mod progress;
mod refs;
mod roots;
mod run;
mod seeds;
mod sink;
mod space;
mod walk;

pub use issue::{Issue, Place, Severity};
pub use kinds::Kind;
pub use options::Options;
pub use progress::{Phase, Progress};
pub use run::{check, check_devices};
pub use sink::{Report, Totals};
