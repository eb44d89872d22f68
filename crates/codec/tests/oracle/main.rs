//! Comparisons with what btrfs-progs and the kernel write. A test whose oracle is missing says so
//! and passes.

mod superblock;
