//! crc32c as btrfs uses it to spread names and references over key offsets.
//!
//! The kernel's `crc32c(seed, data)` is the bare update of the reflected Castagnoli register: no
//! inversion before, none after. Data and metadata checksums are that update with the usual
//! inversions and live in [`crate::checksum`]; the hashes below use the bare form.
//!
//! Names are 5 to 20 bytes long and every directory operation hashes one, so short inputs go
//! through constant tables (eight bytes a step) and never reach the dispatch of the wide
//! implementation, which wins only on longer buffers.

use crc_fast::{CrcAlgorithm, Digest};

/// Reflected Castagnoli polynomial.
const POLYNOMIAL: u32 = 0x82f6_3b78;

/// From this many bytes on, the carry-less multiplication of `crc-fast` is the faster way.
const WIDE_FROM_BYTES: usize = 128;

/// `TABLES[n][b]`: what byte `b` contributes when `n` more bytes of its step follow it.
static TABLES: [[u32; 256]; 8] = build_tables();

const fn build_tables() -> [[u32; 256]; 8] {
    let mut tables = [[0u32; 256]; 8];
    let mut byte = 0;
    while byte < 256 {
        let mut register = byte as u32;
        let mut bit = 0;
        while bit < 8 {
            register = (register >> 1) ^ (POLYNOMIAL & (register & 1).wrapping_neg());
            bit += 1;
        }
        tables[0][byte] = register;
        byte += 1;
    }
    let mut step = 1;
    while step < 8 {
        let mut byte = 0;
        while byte < 256 {
            let shorter = tables[step - 1][byte];
            tables[step][byte] = (shorter >> 8) ^ tables[0][(shorter & 0xff) as usize];
            byte += 1;
        }
        step += 1;
    }
    tables
}

/// The kernel's `crc32c(seed, data)`: the register after `data`, started at `seed`, with no
/// inversion on either side. `!crc32c_raw(!0, data)` is the published CRC-32C.
#[inline]
#[must_use]
pub fn crc32c_raw(seed: u32, data: &[u8]) -> u32 {
    if data.len() < WIDE_FROM_BYTES { update_short(seed, data) } else { update_wide(seed, data) }
}

#[inline]
fn update_short(mut register: u32, data: &[u8]) -> u32 {
    let (steps, rest) = data.as_chunks::<8>();
    for step in steps {
        let [b0, b1, b2, b3, b4, b5, b6, b7] = *step;
        let [r0, r1, r2, r3] = (register ^ u32::from_le_bytes([b0, b1, b2, b3])).to_le_bytes();
        register = TABLES[7][r0 as usize]
            ^ TABLES[6][r1 as usize]
            ^ TABLES[5][r2 as usize]
            ^ TABLES[4][r3 as usize]
            ^ TABLES[3][b4 as usize]
            ^ TABLES[2][b5 as usize]
            ^ TABLES[1][b6 as usize]
            ^ TABLES[0][b7 as usize];
    }
    for &byte in rest {
        register = (register >> 8) ^ TABLES[0][((register as u8) ^ byte) as usize];
    }
    register
}

fn update_wide(seed: u32, data: &[u8]) -> u32 {
    let mut digest = Digest::new_with_init_state(CrcAlgorithm::Crc32Iscsi, u64::from(seed));
    digest.update(data);
    digest.get_state() as u32
}

/// Key offset of a `DIR_ITEM` or `XATTR_ITEM` for `name`: the bare update started at `!1`.
#[inline]
#[must_use]
pub fn name_hash(name: &[u8]) -> u64 {
    u64::from(crc32c_raw(!1, name))
}

/// Key offset of an `INODE_EXTREF` for `name` in the directory `parent_ino`: the bare update
/// started at the low half of the directory's inode number.
#[inline]
#[must_use]
pub fn extref_hash(parent_ino: u64, name: &[u8]) -> u64 {
    u64::from(crc32c_raw(parent_ino as u32, name))
}

/// Key offset of an `EXTENT_DATA_REF`: two bare updates started at `!0`, one over `root`, one over
/// `ino` and `offset` (all little-endian), overlapped by one bit. `offset` is the file offset of
/// the extent's start (bytes), the same value that the item stores.
#[must_use]
pub fn extent_data_ref_hash(root: u64, ino: u64, offset: u64) -> u64 {
    let high = crc32c_raw(!0, &root.to_le_bytes());
    let low = crc32c_raw(crc32c_raw(!0, &ino.to_le_bytes()), &offset.to_le_bytes());
    (u64::from(high) << 31) ^ u64::from(low)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// One bit at a time, straight from the definition.
    fn by_definition(mut register: u32, data: &[u8]) -> u32 {
        for &byte in data {
            register ^= u32::from(byte);
            for _ in 0..8 {
                register =
                    if register & 1 == 1 { (register >> 1) ^ POLYNOMIAL } else { register >> 1 };
            }
        }
        register
    }

    #[test]
    fn published_check_values() {
        assert_eq!(!crc32c_raw(!0, b"123456789"), 0xe306_9283);
        // RFC 3720, appendix B.4.
        assert_eq!(!crc32c_raw(!0, &[0; 32]), 0x8a91_36aa);
        assert_eq!(!crc32c_raw(!0, &[0xff; 32]), 0x62a8_ab43);
        let rising: Vec<u8> = (0..32).collect();
        assert_eq!(!crc32c_raw(!0, &rising), 0x46dd_794e);
    }

    #[test]
    fn name_hash_matches_items_of_kernel_made_trees() {
        // Key offset of the DIR_ITEM "default" that every mkfs.btrfs writes into the root tree.
        assert_eq!(name_hash(b"default"), 2_378_154_706);
    }

    proptest! {
        #[test]
        fn every_length_and_seed_agrees_with_the_definition(
            seed: u32,
            data in proptest::collection::vec(any::<u8>(), 0..700),
        ) {
            prop_assert_eq!(crc32c_raw(seed, &data), by_definition(seed, &data));
        }
    }
}
