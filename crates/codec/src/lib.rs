//! Pure functions of btrfs: checksums, name hashes, compression, RAID5/6 arithmetic.
