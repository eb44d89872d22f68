//! Pure functions of btrfs: checksums, name hashes, compression, RAID5/6 arithmetic.
//!
//! Bytes in, bytes out: nothing here performs I/O, knows a tree or keeps state that a caller could
//! notice (per-thread scratch contexts are reused, their contents never matter). Whatever the
//! input, these functions return; they neither panic nor allocate more than a small multiple of
//! the lengths they are given.

pub mod checksum;
pub mod compress;
pub mod crc32c;
pub mod raid56;

pub use checksum::{ChecksumKind, Digest};
pub use compress::{CodecError, Compression, CompressionKind};
