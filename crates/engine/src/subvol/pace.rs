//! How much of deleted subvolumes a commit drops that nobody asked for.
//!
//! One commit runs at a time, so whoever wants to make something durable waits for the one that drops. It is to be short: as many
//! blocks as took the right time in the last commits, and no new one once the time for looking at them is over (the first that has to
//! be read from a slow device may take all of it). While programs wait for commits again and again it is very short; then more of each
//! commit is what all commits cost, and dropping takes longer. Without them it may take longer than a program would notice once.

use std::time::{Duration, Instant};

/// How long dropping may keep a commit, when nobody has waited for one lately, and when somebody has.
const TIMES: [Duration; 2] = [Duration::from_millis(20), Duration::from_micros(200)];
/// Blocks that are dropped at least, and at first where somebody waits.
const BLOCKS_MIN: usize = 8;
/// Blocks at first where nobody waits.
const BLOCKS_FIRST: usize = 256;

#[derive(Debug)]
pub(super) struct Pace {
    /// Blocks for each of the [`TIMES`].
    blocks: [usize; 2],
    /// What the commit under way drops: since when, and which of the times it has.
    step: Option<(Instant, usize)>,
}

impl Default for Pace {
    fn default() -> Pace {
        Pace { blocks: [BLOCKS_FIRST, BLOCKS_MIN], step: None }
    }
}

impl Pace {
    /// Dropping begins: so many blocks, and until when to look at new ones.
    pub fn begin(&mut self, hurried: bool, now: Instant) -> (usize, Instant) {
        let which = usize::from(hurried);
        self.step = Some((now, which));
        (self.blocks[which], now + TIMES[which] / 2)
    }

    /// The commit is over.
    pub fn end(&mut self, now: Instant) {
        let Some((begun, which)) = self.step.take() else { return };
        let (took, wanted) =
            (now.saturating_duration_since(begun).as_nanos(), TIMES[which].as_nanos());
        let blocks = self.blocks[which];
        let fitting = (blocks as u128 * wanted / took.max(1)) as usize;
        // One commit says little: others may have had the processor.
        self.blocks[which] = fitting.clamp(blocks / 2, blocks * 2).clamp(BLOCKS_MIN, 1 << 20);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Blocks of each commit where one takes so long, and each commit besides.
    fn blocks(hurried: bool, each: Duration, besides: Duration) -> Vec<usize> {
        let (mut pace, mut now) = (Pace::default(), Instant::now());
        let step = |_| {
            let (blocks, _) = pace.begin(hurried, now);
            now += each * blocks as u32 + besides;
            pace.end(now);
            blocks
        };
        (0..40).map(step).collect()
    }

    #[test]
    fn as_many_blocks_as_take_the_time() {
        let micro = Duration::from_micros(1);
        let (quiet, hurried) =
            (blocks(false, micro, 100 * micro), blocks(true, micro, 100 * micro));
        assert!((18_000..=20_000).contains(quiet.last().unwrap()), "{quiet:?}");
        assert!((90..=110).contains(hurried.last().unwrap()), "{hurried:?}");
        // Never none, however slow.
        let slow = blocks(true, 1000 * micro, 100 * micro);
        assert_eq!(*slow.last().unwrap(), BLOCKS_MIN);
    }

    #[test]
    fn there_is_a_time_to_stop() {
        let (mut pace, now) = (Pace::default(), Instant::now());
        let (_, until) = pace.begin(true, now);
        assert!(until > now && until < now + TIMES[1]);
        pace.end(now);
        // The end of a commit that dropped nothing says nothing.
        let before = pace.blocks;
        pace.end(now + TIMES[0]);
        assert_eq!(pace.blocks, before);
    }
}
