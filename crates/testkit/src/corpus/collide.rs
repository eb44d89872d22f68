//! Names with equal hashes.
//!
//! A directory item's key holds the crc32c of the name; names with the same crc share one item. The
//! crc is linear: for names of one length it depends only on which bits differ, and a difference
//! that is a multiple of the generator polynomial changes nothing. So names that collide are made,
//! not searched.

use super::patch::crc32c;

/// Generator of crc32c, the highest coefficient first; 33 bits.
const GENERATOR: u64 = 0x1_1edc_6f41;
/// The name that the others differ from.
const BASE: &[u8; 16] = b"same-hash-as-all";

/// Hash of a name in the key of its directory item.
pub fn name_hash(name: &[u8]) -> u32 {
    crc32c(!1, name)
}

/// `count` different names with one [`name_hash`], 16 bytes each.
pub fn colliding_names(count: usize) -> Vec<Vec<u8>> {
    let multiples = 0..1_u64 << 40;
    multiples.map(differing_by).filter(|name| is_name(name)).take(count).collect()
}

/// The base name changed by `factor` times the generator.
fn differing_by(factor: u64) -> Vec<u8> {
    let mut name = BASE.to_vec();
    for shift in (0..64).filter(|shift| factor >> shift & 1 == 1) {
        for place in (0..33).filter(|place| GENERATOR >> (32 - place) & 1 == 1) {
            // Bits enter the crc lowest first within each byte.
            let bit = shift + place;
            if let Some(byte) = name.get_mut(bit / 8) {
                *byte ^= 1 << (bit % 8);
            }
        }
    }
    name
}

/// True for what a directory can hold.
fn is_name(name: &[u8]) -> bool {
    name.iter().all(|byte| !matches!(byte, 0 | b'/'))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::{colliding_names, name_hash};

    #[test]
    fn names_differ_and_hashes_do_not() {
        let names = colliding_names(500);
        assert_eq!(names.iter().collect::<BTreeSet<_>>().len(), 500);
        assert_eq!(names.iter().map(|name| name_hash(name)).collect::<BTreeSet<_>>().len(), 1);
    }

    #[test]
    fn the_hash_is_the_one_on_the_disk() {
        // The key of the item "default" in the root tree's directory, on every filesystem.
        assert_eq!(name_hash(b"default"), 2_378_154_706);
    }
}
