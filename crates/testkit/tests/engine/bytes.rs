//! Content of files.

/// Bytes that do not compress, the same for the same seed.
pub fn noise(seed: u64, count: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let step = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    };
    std::iter::repeat_with(step).take(count).collect()
}

/// Bytes that compress.
pub fn words(seed: u64, count: usize) -> Vec<u8> {
    let mut text = Vec::with_capacity(count + 40);
    let mut number = seed;
    while text.len() < count {
        text.extend_from_slice(format!("sentence {number} of the tale\n").as_bytes());
        number += 1;
    }
    text.truncate(count);
    text
}
