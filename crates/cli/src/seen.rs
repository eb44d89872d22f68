//! A set of places on a disk, for who counts each of them once.
//!
//! Extents of a disk lie close together. So the set is kept by regions of 65,536 sectors: few places of a region as a sorted list of two
//! bytes each, many as a bit for each sector. Ten million extents take some 20 MB, and no number of them more than 32 MiB for each TiB that
//! they are in.

use std::collections::BTreeMap;

use buttress_ondisk::SECTOR;

/// Places in a list; with more, bits for the whole region take no more memory.
const FEW: usize = 4096;
/// Words of 64 bits for the sectors of a region.
const WORDS: usize = 1 << (REGION_BITS - 6);
const REGION_BITS: u32 = 16;

/// Sectors, by their addresses in bytes.
#[derive(Debug, Default)]
pub struct Seen(BTreeMap<u64, Region>);

#[derive(Debug)]
enum Region {
    /// Sorted.
    Few(Vec<u16>),
    Many(Box<[u64]>),
}

impl Seen {
    /// Takes in the sector at an address; whether it is new.
    pub fn insert(&mut self, address: u64) -> bool {
        let sector = address / SECTOR;
        let region = self.0.entry(sector >> REGION_BITS).or_insert(Region::Few(Vec::new()));
        region.insert(sector as u16)
    }
}

impl Region {
    fn insert(&mut self, sector: u16) -> bool {
        match self {
            Region::Many(bits) => set(bits, sector),
            Region::Few(few) => {
                let Err(at) = few.binary_search(&sector) else { return false };
                if few.len() < FEW {
                    few.insert(at, sector);
                    return true;
                }
                let mut bits = vec![0; WORDS].into_boxed_slice();
                few.iter().chain([&sector]).for_each(|sector| {
                    set(&mut bits, *sector);
                });
                *self = Region::Many(bits);
                true
            }
        }
    }
}

/// Sets a bit; whether it was not set before.
fn set(bits: &mut [u64], sector: u16) -> bool {
    let Some(word) = bits.get_mut(usize::from(sector >> 6)) else { return false };
    let bit = 1 << (sector & 63);
    let new = *word & bit == 0;
    *word |= bit;
    new
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn each_is_new_once() {
        let (mut seen, mut known) = (Seen::default(), HashSet::new());
        let mut number = 1u64;
        for round in 0..200_000 {
            // Close together in one region, far apart in others.
            number = number.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let sector = if round % 2 == 0 { number >> 48 } else { number >> 13 };
            let address = sector.saturating_mul(SECTOR);
            assert_eq!(seen.insert(address), known.insert(address / SECTOR), "{address}");
        }
        let many = seen.0.values().filter(|region| matches!(region, Region::Many(_))).count();
        assert_eq!(many, 1);
        assert!(seen.insert(u64::MAX) && !seen.insert(u64::MAX));
    }

    /// Bytes that it takes, about.
    fn bytes(seen: &Seen) -> usize {
        let of = |region: &Region| match region {
            Region::Few(few) => 2 * few.capacity(),
            Region::Many(bits) => size_of_val(&**bits),
        };
        seen.0.values().map(|region| of(region) + 64).sum()
    }

    #[test]
    fn many_places_take_little_memory() {
        const PLACES: u64 = 1_000_000;
        // Over 16 TiB, over 1 TiB, and side by side.
        for distance in [4096 * SECTOR, 256 * SECTOR, SECTOR] {
            let mut seen = Seen::default();
            assert!((0..PLACES).all(|place| seen.insert(place * distance)));
            let regions = seen.0.len();
            let most = 4 * PLACES as usize + 72 * regions;
            assert!(bytes(&seen) <= most.min((8192 + 64) * regions), "{distance}");
        }
    }
}
