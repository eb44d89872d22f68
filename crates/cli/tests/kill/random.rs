//! Random numbers from a seed (splitmix64).

use std::time::{SystemTime, UNIX_EPOCH};

pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Random {
        Random(seed)
    }

    /// The seed of the environment, else one from the clock; printed.
    pub fn seeded() -> Random {
        let clock = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64;
        let given = std::env::var("BUTTRESS_SEED").ok();
        let seed =
            given.map_or_else(clock, |text| text.parse().expect("BUTTRESS_SEED is a number"));
        println!("BUTTRESS_SEED={seed}");
        Random(seed)
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    /// Below `end`, which is not 0.
    pub fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    pub fn one_of<'a, T>(&mut self, all: &'a [T]) -> Option<&'a T> {
        let index = self.below((all.len() as u64).max(1)) as usize;
        all.get(index)
    }
}
