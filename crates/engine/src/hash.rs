//! Tables by number: inodes, blocks, checksums of names. The standard library's hash defends against keys that somebody
//! chooses to collide, and costs more than the rest of a search. Here keys are counted up, or checked by their owner; of the hashes of names, no
//! more than some 2^16 can be chosen to collide.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// A table by number.
pub type Spread<K, V> = HashMap<K, V, BuildHasherDefault<Spreader>>;

/// Spreads a number over 64 bits. The rotation brings the well mixed upper bits to where tables look.
#[derive(Clone, Copy, Debug, Default)]
pub struct Spreader(u64);

impl Hasher for Spreader {
    fn finish(&self) -> u64 {
        self.0.rotate_left(20)
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.0 = (self.0.rotate_left(8) ^ u64::from(byte)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        }
    }

    fn write_u64(&mut self, number: u64) {
        self.0 = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    fn write_u32(&mut self, hash: u32) {
        self.0 = u64::from(hash).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
}

/// A table by numbers that are counted up in steps of `STEP`, most of which are there, and which come one after the other.
pub type Rows<V, const STEP: u64> = HashMap<u64, V, BuildHasherDefault<Rower<STEP>>>;

/// Keeps numbers that follow each other beside each other, in rows, so that who counts up finds what he needs in the processor's cache; the rows are spread as
/// single numbers are by [`Spreader`].
#[derive(Clone, Copy, Debug, Default)]
pub struct Rower<const STEP: u64>(u64);

/// Numbers in a row, as a power of two.
const ROW_BITS: u32 = 6;

impl<const STEP: u64> Hasher for Rower<STEP> {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        let mut spreader = Spreader(self.0);
        spreader.write(bytes);
        self.0 = spreader.finish();
    }

    fn write_u64(&mut self, number: u64) {
        let mut row = Spreader::default();
        let number = number / STEP;
        row.write_u64(number >> ROW_BITS);
        let within = number & ((1 << ROW_BITS) - 1);
        // Tables look at the lower bits for a place, and at the upper ones to tell neighbours apart.
        self.0 = ((row.finish() << ROW_BITS) | within) ^ (within << (u64::BITS - 1 - ROW_BITS));
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::hash::{BuildHasher, BuildHasherDefault};

    use super::{Rower, Rows};

    /// How many of some numbers have the same lower bits of their hashes, at most, when there are about twice as many of these.
    fn most_at_one_place(numbers: impl Iterator<Item = u64>) -> usize {
        let hasher = BuildHasherDefault::<Rower<64>>::default();
        let numbers: Vec<u64> = numbers.collect();
        let mask = (numbers.len() as u64).next_power_of_two() * 2 - 1;
        let mut places = BTreeMap::<u64, usize>::new();
        for number in numbers {
            *places.entry(hasher.hash_one(number) & mask).or_default() += 1;
        }
        places.into_values().max().unwrap_or(0)
    }

    #[test]
    fn numbers_are_spread_whatever_the_step_between_them() {
        for step in (0..40).map(|bits| 1_u64 << bits).chain([3, 100, 1023, 4097, 5_000_001]) {
            let most = most_at_one_place((0..10_000).map(|number| 256 + number * step * 64));
            // No more than have room in a row.
            assert!(most <= 64, "{most} of a step of {step}");
        }
    }

    #[test]
    fn those_that_follow_each_other_are_beside_each_other_and_told_apart() {
        let hasher = BuildHasherDefault::<Rower<64>>::default();
        let hashes = (0..64).map(|number| hasher.hash_one(4096_u64 * 7 + number * 64));
        let hashes: Vec<u64> = hashes.collect();
        assert!(hashes.windows(2).all(|pair| (pair[0] & 0xffff) + 1 == pair[1] & 0xffff));
        assert!(hashes.windows(2).all(|pair| pair[0] >> 57 != pair[1] >> 57));
    }

    #[test]
    fn it_is_a_table() {
        let mut table = Rows::<u64, 64>::default();
        for number in 0..100_000 {
            table.insert(number * 7, number);
        }
        assert!(
            (0..700_000).all(|key| {
                table.get(&key).copied() == key.is_multiple_of(7).then_some(key / 7)
            })
        );
    }
}
