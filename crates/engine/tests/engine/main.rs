//! The engine through its public interface, with btrfs-progs and the kernel as judges.

#![allow(clippy::unwrap_used, reason = "a test says by failing what went wrong")]

mod acls;
mod basic;
mod brim;
mod faults;
mod judge;
mod known;
mod large;
mod limits;
mod memory;
mod misuse;
mod names;
mod quotas;
mod reclaim;
mod relocate;
mod resize;
mod same_limits;
mod simple_quotas;

mod space;
mod subvolumes;
mod threads;
