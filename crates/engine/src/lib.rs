//! btrfs as a library: read and write real btrfs filesystems, as an ordinary user.
