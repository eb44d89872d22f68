//! The four checksums a btrfs may be made with.
//!
//! One kind covers a whole filesystem: its number is in the superblock (`csum_type`), its digest
//! stands at the start of every superblock and tree block (in a field of 32 bytes, the unused rest
//! zero) and back to back in the items of the checksum tree. Numeric digests are stored
//! little-endian.

use blake2b_simd::Params;
use sha2::{Digest as _, Sha256};
use xxhash_rust::xxh64::xxh64;

/// Room for the longest digest (`BTRFS_CSUM_SIZE`), bytes.
pub const DIGEST_SIZE_MAX: usize = 32;

/// The checksum algorithm of a filesystem.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ChecksumKind {
    /// CRC-32C, the default; 4 bytes.
    Crc32c,
    /// XXH64 with seed 0; 8 bytes.
    XxHash64,
    /// SHA-256; 32 bytes.
    Sha256,
    /// BLAKE2b with a 256-bit digest and no key; 32 bytes.
    Blake2b,
}

/// A digest together with its length, as it is stored on disk.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Digest {
    bytes: [u8; DIGEST_SIZE_MAX],
    len: u8,
}

impl Digest {
    fn new(value: &[u8]) -> Self {
        let mut bytes = [0; DIGEST_SIZE_MAX];
        let len = value.len().min(DIGEST_SIZE_MAX);
        bytes[..len].copy_from_slice(&value[..len]);
        Self { bytes, len: len as u8 }
    }

    /// The digest, as many bytes as its kind has.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }

    /// The digest padded with zeros to 32 bytes: the form of the field in superblocks and tree
    /// blocks.
    #[must_use]
    pub fn as_field(&self) -> &[u8; DIGEST_SIZE_MAX] {
        &self.bytes
    }

    /// Length in bytes: 4, 8 or 32.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "a digest is never empty")]
    pub fn len(&self) -> usize {
        usize::from(self.len)
    }
}

/// `0x` and the bytes in disk order, as btrfs-progs prints checksums.
impl std::fmt::Display for Digest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("0x")?;
        self.as_bytes().iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl std::fmt::Debug for Digest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Digest({self})")
    }
}

impl ChecksumKind {
    /// Every kind, in the order of their numbers.
    pub const ALL: [Self; 4] = [Self::Crc32c, Self::XxHash64, Self::Sha256, Self::Blake2b];

    /// The kind with the superblock's `csum_type` number (0 to 3), or `None` for an unknown one.
    #[must_use]
    pub fn from_u16(number: u16) -> Option<Self> {
        Self::ALL.get(usize::from(number)).copied()
    }

    /// The number stored in the superblock.
    #[must_use]
    pub fn to_u16(self) -> u16 {
        match self {
            Self::Crc32c => 0,
            Self::XxHash64 => 1,
            Self::Sha256 => 2,
            Self::Blake2b => 3,
        }
    }

    /// Length of a digest, bytes.
    #[inline]
    #[must_use]
    pub fn size(self) -> usize {
        match self {
            Self::Crc32c => 4,
            Self::XxHash64 => 8,
            Self::Sha256 | Self::Blake2b => DIGEST_SIZE_MAX,
        }
    }

    /// The name that btrfs-progs prints.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Crc32c => "crc32c",
            Self::XxHash64 => "xxhash64",
            Self::Sha256 => "sha256",
            Self::Blake2b => "blake2",
        }
    }

    /// The digest of `data`.
    #[must_use]
    pub fn digest(self, data: &[u8]) -> Digest {
        match self {
            Self::Crc32c => Digest::new(&crc_fast::crc32_iscsi(data).to_le_bytes()),
            Self::XxHash64 => Digest::new(&xxh64(data, 0).to_le_bytes()),
            Self::Sha256 => Digest::new(&Sha256::digest(data)),
            Self::Blake2b => {
                Digest::new(Params::new().hash_length(DIGEST_SIZE_MAX).hash(data).as_bytes())
            }
        }
    }

    /// Writes the digest of `data` to the first [`size`](Self::size) bytes of `out`, leaving what
    /// follows them alone. A shorter `out` takes as much of the digest as fits.
    pub fn digest_into(self, data: &[u8], out: &mut [u8]) {
        let digest = self.digest(data);
        for (to, from) in out.iter_mut().zip(digest.as_bytes()) {
            *to = *from;
        }
    }

    /// Whether the first [`size`](Self::size) bytes of `expected` are the digest of `data`. Bytes
    /// after them are ignored; a shorter `expected` never matches.
    #[must_use]
    pub fn verify(self, data: &[u8], expected: &[u8]) -> bool {
        expected.get(..self.size()).is_some_and(|stored| stored == self.digest(data).as_bytes())
    }
}

impl std::fmt::Display for ChecksumKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hex(kind: ChecksumKind, data: &[u8]) -> String {
        kind.digest(data).to_string()
    }

    #[test]
    fn published_check_values() {
        assert_eq!(hex(ChecksumKind::Crc32c, b"123456789"), "0x839206e3");
        // XXH64 of the empty input with seed 0 is 0xef46db3751d8e999.
        assert_eq!(hex(ChecksumKind::XxHash64, b""), "0x99e9d85137db46ef");
        // FIPS 180-2, "abc".
        assert_eq!(
            hex(ChecksumKind::Sha256, b"abc"),
            "0xba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
        );
        assert_eq!(
            hex(ChecksumKind::Blake2b, b"abc"),
            "0xbddd813c634239723171ef3fee98579b94964e3bb1cb3e427262c8c068d52319"
        );
    }

    #[test]
    fn numbers_sizes_and_names_agree() {
        for (number, kind) in ChecksumKind::ALL.into_iter().enumerate() {
            assert_eq!(ChecksumKind::from_u16(number as u16), Some(kind));
            assert_eq!(usize::from(kind.to_u16()), number);
            assert_eq!(kind.digest(b"x").len(), kind.size());
        }
        assert_eq!(ChecksumKind::from_u16(4), None);
        assert_eq!(ChecksumKind::from_u16(u16::MAX), None);
    }

    #[test]
    fn verify_reads_only_its_own_bytes() {
        for kind in ChecksumKind::ALL {
            let mut field = [0xaa; DIGEST_SIZE_MAX + 1];
            kind.digest_into(b"block", &mut field);
            assert_eq!(field[kind.size()..], [0xaa; DIGEST_SIZE_MAX + 1][kind.size()..]);
            assert!(kind.verify(b"block", &field));
            assert!(!kind.verify(b"blocK", &field));
            assert!(!kind.verify(b"block", &field[..kind.size() - 1]));
        }
    }
}
