//! Filesystems that we make, judged by btrfs-progs and by the kernel.

#![allow(clippy::unwrap_used, reason = "tests panic on what should not happen")]

mod host;
mod make;
mod matrix;
mod neighbours;
mod rootdir;
mod signatures;
