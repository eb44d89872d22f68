//! Workloads through the library, each on a filesystem of its own. Afterwards `btrfs check` must find nothing, the kernel
//! must see what the library showed, work on the filesystem itself, and the library must go on where the kernel stopped.
//!
//! `BUTTRESS_LONG=1` runs the few large ones at full size.

#![allow(clippy::unwrap_used, reason = "a test says by failing what went wrong")]

mod crashes;
mod data;
mod filled;
mod fsync;
mod fsync_threads;
mod image;
mod judge;
mod kernel;
mod links;
mod ours;
mod snapshots;
mod space;
mod storms;
mod subvolumes;
mod threads;
mod tools;
mod trees;
mod turns;
mod usage;
mod xattrs;
