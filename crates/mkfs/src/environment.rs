//! What a new filesystem takes from outside the device and the options: the time and random bytes.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use buttress_ondisk::item::Timespec;
use uuid::{Builder, Uuid};

/// Fills a buffer with random bytes.
pub type Random = Box<dyn FnMut(&mut [u8]) + Send>;

/// Time and randomness. With [`Environment::seeded`] two runs make the same bytes.
pub struct Environment {
    /// The time that inodes and roots get.
    pub now: SystemTime,
    /// The source of the uuids that are not given.
    pub random: Random,
}

impl Environment {
    /// The system's clock and randomness.
    pub fn system() -> Environment {
        let random = |buffer: &mut [u8]| {
            for piece in buffer.chunks_mut(16) {
                piece.copy_from_slice(Uuid::new_v4().as_bytes().get(..piece.len()).unwrap_or(&[]));
            }
        };
        Environment { now: SystemTime::now(), random: Box::new(random) }
    }

    /// A fixed time (2026-01-01 00:00:00 UTC) and a sequence of bytes that depends on `seed` only.
    pub fn seeded(seed: u64) -> Environment {
        let mut state = seed;
        let random = move |buffer: &mut [u8]| {
            for piece in buffer.chunks_mut(8) {
                let word = split_mix(&mut state).to_le_bytes();
                piece.copy_from_slice(word.get(..piece.len()).unwrap_or(&[]));
            }
        };
        let now = UNIX_EPOCH.checked_add(Duration::from_secs(1_767_225_600)).unwrap_or(UNIX_EPOCH);
        Environment { now, random: Box::new(random) }
    }

    /// A random (version 4) uuid.
    pub(crate) fn uuid(&mut self) -> Uuid {
        let mut bytes = [0; 16];
        (self.random)(&mut bytes);
        Builder::from_random_bytes(bytes).into_uuid()
    }

    /// The time as inodes hold it.
    pub(crate) fn timespec(&self) -> Timespec {
        let (sec, nsec) = match self.now.duration_since(UNIX_EPOCH) {
            Ok(after) => (after.as_secs(), after.subsec_nanos()),
            Err(error) => before_epoch(error.duration()),
        };
        Timespec { sec: sec.into(), nsec: nsec.into() }
    }
}

impl std::fmt::Debug for Environment {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Environment").field("now", &self.now).finish_non_exhaustive()
    }
}

/// A time before 1970: seconds round down (they are signed on the disk), nanoseconds count up.
fn before_epoch(before: Duration) -> (u64, u32) {
    let seconds = 0u64.wrapping_sub(before.as_secs());
    match before.subsec_nanos() {
        0 => (seconds, 0),
        nanos => (seconds.wrapping_sub(1), 1_000_000_000u32.saturating_sub(nanos)),
    }
}

/// One step of the splitmix64 sequence.
fn split_mix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut word = *state;
    word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_before_1970_round_down() {
        assert_eq!(before_epoch(Duration::new(1, 0)), (u64::MAX, 0));
        assert_eq!(before_epoch(Duration::new(0, 250_000_000)), (u64::MAX, 750_000_000));
    }

    #[test]
    fn a_seed_repeats_and_another_differs() {
        let first = Environment::seeded(7).uuid();
        assert_eq!(first, Environment::seeded(7).uuid());
        assert_ne!(first, Environment::seeded(8).uuid());
        assert_eq!(first.get_version_num(), 4);
    }
}
