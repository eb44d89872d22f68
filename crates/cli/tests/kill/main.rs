//! The daemon of a mount, killed at random moments or told to end: what the image holds then.
//!
//! A round: writers work on the mount, each in a subvolume of its own, and journal every operation
//! before they ask for it; the daemon is killed; then the image must pass `btrfs check`, the kernel
//! must mount it without a complaint, and what it shows must be what each writer's journal gives
//! after some of its operations, in their order, and no fewer than the last change that it had made
//! durable. Where an fsync writes a log (`treelog`), it is each path by itself that is as it was
//! synced, or as a later operation has left it, and nothing may be there that never was.
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
