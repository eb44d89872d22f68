//! Filesystems that we make, judged by btrfs-progs and by the kernel.

mod host;
mod make;
mod matrix;
