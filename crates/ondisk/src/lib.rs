//! The bytes of btrfs: keys, blocks, items, the superblock, and the gate that checks them.
