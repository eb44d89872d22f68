//! Logs that Linux left, and what a replay of them has to give.
//!
//! An fsync of Linux's btrfs writes no trees but a log beside them, which the next mount replays. What a log says is not written down
//! anywhere but in what Linux does, so Linux is asked: a [`Workload`] is a few operations that are committed and a few more with an
//! fsync among them. Its image is copied in the moment after the last fsync, as a power cut would leave it. One copy is mounted by
//! Linux, one is opened by us, and both have to hold the same filesystem, down to the items of the trees of files ([`judge`]).
//!
//! Workloads are text in a small language ([`stage`]); [`list`] makes them, each with a name that stays. [`run`] judges many.

mod items;
pub mod judge;
pub mod list;
pub mod make;
mod moment;
pub mod run;
mod seen;
pub mod stage;

pub use list::all;

/// How a filesystem is made and mounted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Its name, part of the names of workloads.
    pub name: &'static str,
    /// Arguments of `mkfs.btrfs`; None for our own mkfs, which makes a block group tree.
    pub mkfs: Option<&'static [&'static str]>,
    /// Options of the mount that leaves the log.
    pub mount: &'static str,
    /// Size of the image in bytes.
    pub size: u64,
}

/// Size of an image unless its shape says otherwise, in bytes.
pub const SIZE: u64 = 192 << 20;

/// What most filesystems are today.
pub const PLAIN: Shape = Shape { name: "plain", mkfs: Some(&[]), mount: "", size: SIZE };

/// Operations that leave a log.
#[derive(Clone, Debug)]
pub struct Workload {
    /// Its name.
    pub name: String,
    /// Where it runs.
    pub shape: Shape,
    /// Done first, and committed.
    pub before: String,
    /// Whether the rest happens on a new mount. Linux commits more often where it has had an inode in memory since it was made.
    pub anew: bool,
    /// Done then, with one fsync at least.
    pub after: String,
}
