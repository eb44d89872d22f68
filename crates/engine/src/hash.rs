//! Tables by number: inodes, blocks, checksums of names. The standard library's hash defends against keys that somebody
//! chooses to collide, and costs more than the rest of a search. Here keys are counted up, or checked by their owner.

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
