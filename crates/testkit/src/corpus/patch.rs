//! Changes to superblocks, with the checksum put right.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use super::Result;

/// Bytes of a superblock (`BTRFS_SUPER_INFO_SIZE`).
pub const SUPER_BYTES: usize = 4096;
/// Offsets of the superblock's copies in bytes, as far as small images have them.
pub const SUPER_OFFSETS: [u64; 2] = [64 << 10, 64 << 20];
/// Offset in a superblock of its `compat_ro_flags`.
pub const COMPAT_RO: usize = 0xb4;
/// Offset in a superblock of its `incompat_flags`.
pub const INCOMPAT: usize = 0xbc;
/// The checksum covers everything after its own 32 bytes.
const CHECKSUM_BYTES: usize = 32;

/// crc32c (Castagnoli), raw: no inversion before or after. Bit by bit, independent of the library.
pub fn crc32c(seed: u32, bytes: &[u8]) -> u32 {
    bytes.iter().fold(seed, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| {
            if crc & 1 == 1 { crc >> 1 ^ 0x82f6_3b78 } else { crc >> 1 }
        })
    })
}

/// Changes every superblock copy of an image with crc32c checksums and sums it again.
pub fn edit_super(image: &Path, edit: impl Fn(&mut [u8])) -> Result<()> {
    let file = File::options().read(true).write(true).open(image)?;
    let length = file.metadata()?.len();
    for offset in SUPER_OFFSETS {
        if offset + SUPER_BYTES as u64 > length {
            continue;
        }
        let mut block = vec![0; SUPER_BYTES];
        file.read_exact_at(&mut block, offset)?;
        edit(&mut block);
        let sum = !crc32c(!0, block.get(CHECKSUM_BYTES..).unwrap_or_default());
        block.splice(..4, sum.to_le_bytes());
        file.write_all_at(&block, offset)?;
    }
    Ok(())
}

/// Sets bits in a 64 bit field of every superblock copy.
pub fn set_bits(image: &Path, field: usize, bits: u64) -> Result<()> {
    edit_super(image, |block| {
        for (byte, add) in block.iter_mut().skip(field).zip(bits.to_le_bytes()) {
            *byte |= add;
        }
    })
}

/// Overwrites `count` bytes at `offset`.
pub fn scribble(image: &Path, offset: u64, count: usize) -> Result<()> {
    let file = File::options().write(true).open(image)?;
    file.write_all_at(&vec![0xa5; count], offset)?;
    Ok(())
}
