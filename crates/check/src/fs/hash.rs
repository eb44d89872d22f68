//! A fast 64-bit hash of a few words and a name. Sums of such hashes cancel each other only when what was hashed does.

const FIRST: u64 = 0x9e37_79b9_7f4a_7c15;
const SECOND: u64 = 0xd6e8_feb8_6659_fd93;

/// Both halves of a product, mixed.
fn fold(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    (product as u64) ^ (product >> 64) as u64
}

/// Hashes words, then bytes.
pub(super) fn hash(words: &[u64], bytes: &[u8]) -> u64 {
    let mut state = FIRST ^ (bytes.len() as u64);
    let mut add = |word: u64| state = fold(state ^ word, SECOND).wrapping_add(FIRST);
    words.iter().for_each(|word| add(*word));
    let mut chunks = bytes.chunks_exact(8);
    for chunk in chunks.by_ref() {
        add(chunk.first_chunk::<8>().map_or(0, |word| u64::from_le_bytes(*word)));
    }
    add(chunks.remainder().iter().fold(0, |word, byte| word << 8 | u64::from(*byte)));
    fold(state ^ SECOND, FIRST | 1)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::hash;

    #[test]
    fn different_things_have_different_hashes() {
        let mut seen = HashSet::new();
        for word in 0..1000u64 {
            assert!(seen.insert(hash(&[word, 1], b"name")));
            assert!(seen.insert(hash(&[1, word + 2], b"name")));
            assert!(seen.insert(hash(&[1, 1], format!("name-{word}").as_bytes())));
        }
        assert!(seen.insert(hash(&[1], b"")) && seen.insert(hash(&[1], b"\0")));
        assert!(seen.insert(hash(&[1], &[0; 8])) && seen.insert(hash(&[1, 0], b"")));
    }

    #[test]
    fn bits_are_spread() {
        let ones: u32 = (0..1000u64).map(|word| hash(&[word], b"").count_ones()).sum();
        assert!((31_000..33_000).contains(&ones), "{ones}");
    }
}
