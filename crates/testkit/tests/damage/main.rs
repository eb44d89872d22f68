//! Every kind of damage: what `btrfs check` and our checker say about it.
#![allow(clippy::unwrap_used, reason = "a test fails where it unwraps")]

mod flips;
mod kinds;
mod memory;
mod moments;
mod mutations;
mod salvage;
mod verdicts;
