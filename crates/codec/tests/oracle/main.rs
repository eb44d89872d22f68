//! Comparisons with what btrfs-progs and the kernel write and read. A test whose oracle is missing
//! says so and passes.

#![allow(clippy::unwrap_used, reason = "a test's way to fail")]

mod compress;
mod image;
mod raid56;
mod superblock;
