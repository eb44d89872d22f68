//! Numbers that nobody knows beforehand. Sums say that both sides agree when they cancel each other; who makes an image must not
//! be able to make them cancel without that. So what is hashed starts from other numbers in every run.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};

/// The numbers of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Seeds(pub [u64; 4]);

impl Seeds {
    /// Those that follow from a number, or that the system chooses.
    pub fn new(seed: Option<u64>) -> Seeds {
        match seed {
            Some(seed) => Seeds([1, 2, 3, 4].map(|place| mixed(seed.wrapping_add(place)))),
            None => Seeds([(); 4].map(|()| RandomState::new().build_hasher().finish())),
        }
    }

    /// A fast 64-bit hash of words, then bytes. Sums of such hashes cancel each other only when what was hashed does.
    pub fn hash(&self, words: &[u64], bytes: &[u8]) -> u64 {
        let [start, factor, between, _] = self.0;
        let mut state = start ^ (bytes.len() as u64);
        let mut add = |word: u64| state = fold(state ^ word, factor | 1).wrapping_add(between);
        words.iter().for_each(|word| add(*word));
        let mut chunks = bytes.chunks_exact(8);
        for chunk in chunks.by_ref() {
            add(chunk.first_chunk::<8>().map_or(0, |word| u64::from_le_bytes(*word)));
        }
        add(chunks.remainder().iter().fold(0, |word, byte| word << 8 | u64::from(*byte)));
        fold(state ^ factor, FACTOR)
    }

    /// Two hashes of words that do not depend on each other.
    pub fn pair(&self, words: &[u64; 6]) -> [u64; 2] {
        let [s0, s1, s2, s3] = self.0;
        let one = |a: u64, b: u64| {
            let step =
                |sum: u64, word: &u64| fold(sum ^ word, b | 1).wrapping_add(sum.rotate_left(29));
            words.iter().fold(a, step)
        };
        [one(s0, s1), one(s2, s3)]
    }

    /// One of `count` places for an address.
    pub fn place(&self, bytenr: u64, count: usize) -> usize {
        fold(bytenr ^ self.0[0], self.0[1] | 1) as usize % count
    }
}

/// An odd number without a pattern.
const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;

/// Both halves of a product, mixed: every bit of the result depends on every bit of the factors.
fn fold(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    (product as u64) ^ (product >> 64) as u64
}

/// A number that looks like chance.
fn mixed(seed: u64) -> u64 {
    let once = fold(seed ^ FACTOR, 0xd6e8_feb8_6659_fd93);
    fold(once.wrapping_add(FACTOR), 0xa409_3822_299f_31d1)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::Seeds;

    #[test]
    fn different_things_have_different_hashes() {
        for seed in [Some(0), Some(7), None] {
            let seeds = Seeds::new(seed);
            let mut seen = HashSet::new();
            for word in 0..1000u64 {
                assert!(seen.insert(seeds.hash(&[word, 1], b"name")));
                assert!(seen.insert(seeds.hash(&[1, word + 2], b"name")));
                assert!(seen.insert(seeds.hash(&[1, 1], format!("name-{word}").as_bytes())));
            }
            assert!(seen.insert(seeds.hash(&[1], b"")) && seen.insert(seeds.hash(&[1], b"\0")));
            assert!(
                seen.insert(seeds.hash(&[1], &[0; 8])) && seen.insert(seeds.hash(&[1, 0], b""))
            );
        }
    }

    #[test]
    fn bits_are_spread() {
        for seed in 0..20 {
            let seeds = Seeds::new(Some(seed));
            let ones: u32 = (0..1000u64).map(|word| seeds.hash(&[word], b"").count_ones()).sum();
            assert!((31_000..33_000).contains(&ones), "{seed}: {ones}");
        }
    }

    #[test]
    fn a_run_has_numbers_of_its_own() {
        assert_eq!(Seeds::new(Some(3)), Seeds::new(Some(3)));
        assert_ne!(Seeds::new(Some(3)), Seeds::new(Some(4)));
        assert_ne!(Seeds::new(None), Seeds::new(None));
        assert_ne!(Seeds::new(None).pair(&[1; 6]), Seeds::new(None).pair(&[1; 6]));
    }
}
