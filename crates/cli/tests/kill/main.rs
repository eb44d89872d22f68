//! The daemon of a mount, killed at random moments or told to end: what the image holds then.
//!
//! A round: writers work on the mount, each in a subvolume of its own, and journal every operation
//! before they ask for it; the daemon is killed; then the image must pass `btrfs check`, the kernel
//! must mount it without a complaint, and what it shows must be what each writer's journal gives
//! after some of its operations, in their order, and no fewer than its last acknowledged fsync. (An
//! fsync is a whole commit, so it covers what the writer did before, whichever file that was for.)
//! The next round goes on with the same image, through our own mount, which must show the same.
//!
//! `BUTTRESS_SEED` chooses the moments and the operations; how the threads interleave stays chance.

#![allow(clippy::unwrap_used, reason = "a test says where it failed by panicking")]

mod daemon;
mod durable;
mod ending;
mod joined;
mod journal;
mod memory;
mod random;
mod rounds;
mod writer;
