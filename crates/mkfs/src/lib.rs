//! Makes btrfs filesystems, empty or from a directory tree.
