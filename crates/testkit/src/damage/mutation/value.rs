//! Numbers to put in place of others: those at the edges, those nearby, and those that mean something elsewhere.

use super::census::Census;
use crate::ops::rng::Rng;

/// Bytes that differ from `old`, of the same length. Mostly one number of it, `unit` bytes long, becomes another one.
pub fn other(census: &Census, old: &[u8], unit: usize, rng: &mut Rng) -> Option<Vec<u8>> {
    let mut new = old.to_vec();
    let count = old.len() / unit.max(1);
    let at = rng.below(count as u64) as usize * unit;
    let (before, rest) = (new.get(at..at + unit)?.to_vec(), count > 1 && rng.one_in(16));
    match rest {
        // Another part of a run of bytes: several of them at once.
        true => new.iter_mut().for_each(|byte| *byte = rng.next() as u8),
        false => new.get_mut(at..at + unit)?.copy_from_slice(&number(census, &before, rng)),
    }
    (new != old).then_some(new)
}

/// Another number for a little endian one.
fn number(census: &Census, old: &[u8], rng: &mut Rng) -> Vec<u8> {
    let mut word = [0; 8];
    let len = old.len().min(8);
    word[..len].copy_from_slice(&old[..len]);
    let value = u64::from_le_bytes(word);
    let bits = 8 * len as u64;
    let new = match rng.below(14) {
        0 => 0,
        1 => 1,
        2 => u64::MAX,
        3..=5 => value ^ 1 << rng.below(bits),
        6 => value.wrapping_add(1),
        7 => value.wrapping_sub(1),
        8 => {
            let step = *rng.pick(&[4096, 16384, 65536, 1 << 20]);
            if rng.one_in(2) { value.wrapping_add(step) } else { value.wrapping_sub(step) }
        }
        9 => rng.below(512),
        10 => rng.next(),
        11 => 1 << rng.below(bits),
        _ => *rng.pick(census.numbers()),
    };
    let mut bytes = new.to_le_bytes().to_vec();
    bytes.resize(old.len(), 0);
    bytes
}
