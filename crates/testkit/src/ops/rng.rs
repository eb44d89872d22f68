//! Random numbers from a seed, the same everywhere and always; or numbers that somebody else has chosen.

/// A generator of random numbers (splitmix64), or a tape of chosen ones.
#[derive(Clone, Debug)]
pub struct Rng {
    state: u64,
    tape: Option<Tape>,
}

/// Bytes that a fuzzer has chosen: a number takes as many of them as its range needs.
#[derive(Clone, Debug)]
struct Tape {
    bytes: Vec<u8>,
    at: usize,
}

impl Tape {
    fn next(&mut self, len: usize) -> u64 {
        let number = (0..len).fold(0, |number, place| {
            let byte = self.bytes.get(self.at + place).copied().unwrap_or(0);
            number << 8 | u64::from(byte)
        });
        self.at += len;
        number
    }
}

impl Rng {
    /// The sequence of a seed.
    pub fn new(seed: u64) -> Rng {
        let state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x5851_f42d_4c95_7f2d;
        Rng { state, tape: None }
    }

    /// The numbers that these bytes say; zeros after their end.
    pub fn of_tape(bytes: &[u8]) -> Rng {
        Rng { tape: Some(Tape { bytes: bytes.to_vec(), at: 0 }), ..Rng::new(0) }
    }

    /// Whether a tape is at its end; a seed has none.
    pub fn is_at_end(&self) -> bool {
        self.tape.as_ref().is_some_and(|tape| tape.at >= tape.bytes.len())
    }

    /// The next number.
    #[expect(clippy::should_implement_trait, reason = "it never ends, so it is no iterator")]
    pub fn next(&mut self) -> u64 {
        if let Some(tape) = &mut self.tape {
            return tape.next(8);
        }
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `end`, 0 when that is 0.
    pub fn below(&mut self, end: u64) -> u64 {
        match (end, &mut self.tape) {
            (0, _) => 0,
            (_, None) => self.next() % end,
            (_, Some(tape)) => {
                tape.next((64 - (end - 1).leading_zeros()).div_ceil(8) as usize) % end
            }
        }
    }

    /// True once in `times`.
    pub fn one_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }

    /// One of the choices.
    pub fn pick<'a, T>(&mut self, choices: &'a [T]) -> &'a T {
        &choices[self.below(choices.len() as u64) as usize]
    }
}

/// Bytes that depend on the seed and on their place: zeros for seed 0, runs of the same byte for even seeds.
pub fn bytes(seed: u32, offset: u64, len: usize) -> Vec<u8> {
    match seed {
        0 => vec![0; len],
        _ if seed.is_multiple_of(2) => vec![seed as u8 | 1; len],
        _ => {
            let mut rng = Rng::new(u64::from(seed) << 32 ^ offset);
            let mut bytes = Vec::with_capacity(len + 8);
            while bytes.len() < len {
                bytes.extend_from_slice(&rng.next().to_le_bytes());
            }
            bytes.truncate(len);
            bytes
        }
    }
}
