//! How much of deleted subvolumes a commit drops that nobody asked for.
//!
//! One commit runs at a time, so whoever wants to make something durable waits for the one that drops. It is to be short: as many
//! blocks as took the right time in the last commits, and no new one once the time for looking at them is over (the first that has to
//! be read from a slow device may take all of it). While programs wait for commits again and again it is very short; then more of each
//! commit is what all commits cost, and dropping takes longer. Without them it may take longer than a program would notice once.
//!
//! Where the device takes long to make a commit durable, dropping may take as long again: with less of it in each commit, all would
//! be waiting for the device.

use std::time::{Duration, Instant};

/// How long dropping may keep a commit, when nobody has waited for one lately, and when somebody has.
const TIMES: [Duration; 2] = [Duration::from_millis(20), Duration::from_micros(300)];
/// But at most.
const TIME_MAX: Duration = Duration::from_millis(200);
/// Blocks that are dropped at least, and at first where somebody waits.
const BLOCKS_MIN: usize = 8;
/// Blocks at first where nobody waits.
const BLOCKS_FIRST: usize = 256;

#[derive(Debug)]
pub(super) struct Pace {
    /// Blocks for each of the [`TIMES`].
    blocks: [usize; 2],
    /// What the commit under way drops.
    step: Option<Step>,
    /// When what the last commit had to write was written.
    written: Option<Instant>,
    /// How long the device takes from there to make a commit durable.
    device: Duration,
}

#[derive(Debug)]
struct Step {
    begun: Instant,
    /// Which of the times it has.
    which: usize,
    /// Blocks that were looked at.
    looked: usize,
}

impl Default for Pace {
    fn default() -> Pace {
        let (blocks, device) = ([BLOCKS_FIRST, BLOCKS_MIN], Duration::ZERO);
        Pace { blocks, step: None, written: None, device }
    }
}

impl Pace {
    fn time(&self, which: usize) -> Duration {
        TIMES[which].max(self.device.min(TIME_MAX))
    }

    /// Dropping begins: so many blocks, and until when to look at new ones.
    pub fn begin(&mut self, hurried: bool, now: Instant) -> (usize, Instant) {
        let which = usize::from(hurried);
        self.step = Some(Step { begun: now, which, looked: 0 });
        (self.blocks[which], now + self.time(which) / 2)
    }

    /// So many blocks were looked at.
    pub fn note(&mut self, blocks: usize) {
        if let Some(step) = &mut self.step {
            step.looked = blocks;
        }
    }

    /// All that the commit has to write is written; it is not durable yet.
    pub fn written(&mut self, now: Instant) {
        self.written = Some(now);
        let Some(Step { begun, which, looked }) = self.step.take() else { return };
        let took = now.saturating_duration_since(begun).as_nanos().max(1);
        let blocks = self.blocks[which];
        let fitting = (looked as u128 * self.time(which).as_nanos() / took) as usize;
        // One commit says little: others may have had the processor. One that ended for other reasons says nothing about more.
        let fitting = match looked {
            0 => return,
            _ if looked >= blocks => fitting.clamp(blocks / 2, blocks * 2),
            _ => fitting.clamp(blocks / 2, blocks),
        };
        self.blocks[which] = fitting.clamp(BLOCKS_MIN, 1 << 20);
    }

    /// The commit is over.
    pub fn durable(&mut self, now: Instant) {
        if let Some(written) = self.written.take() {
            self.device = (self.device * 3 + now.saturating_duration_since(written)) / 4;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MICRO: Duration = Duration::from_micros(1);

    /// Blocks of the last of many commits where one takes so long, each commit besides, and the device.
    fn blocks(hurried: bool, each: Duration, besides: Duration, device: Duration) -> usize {
        let (mut pace, mut now) = (Pace::default(), Instant::now());
        for _ in 0..60 {
            let (blocks, _) = pace.begin(hurried, now);
            now += each * blocks as u32 + besides;
            pace.note(blocks);
            pace.written(now);
            now += device;
            pace.durable(now);
        }
        pace.begin(hurried, now).0
    }

    #[test]
    fn as_many_blocks_as_take_the_time() {
        let quiet = blocks(false, MICRO, 100 * MICRO, 10 * MICRO);
        assert!((19_000..=20_000).contains(&quiet), "{quiet}");
        let hurried = blocks(true, MICRO, 100 * MICRO, 10 * MICRO);
        assert!((170..=230).contains(&hurried), "{hurried}");
        // Never none, however slow.
        assert_eq!(blocks(true, 1000 * MICRO, 100 * MICRO, 10 * MICRO), BLOCKS_MIN);
    }

    #[test]
    fn where_the_device_is_slow_it_is_as_long_again() {
        let slow = blocks(true, MICRO, 100 * MICRO, 30_000 * MICRO);
        assert!((25_000..=31_000).contains(&slow), "{slow}");
        let slowest = blocks(false, MICRO, 100 * MICRO, 5_000_000 * MICRO);
        assert!((150_000..=200_000).contains(&slowest), "{slowest}");
    }

    #[test]
    fn what_says_nothing_changes_nothing() {
        let (mut pace, now) = (Pace::default(), Instant::now());
        let (_, until) = pace.begin(true, now);
        assert!(until > now && until < now + TIMES[1]);
        // A commit that dropped nothing says nothing, and one that ended early not that more would fit.
        let before = pace.blocks;
        pace.written(now);
        pace.written(now + TIMES[0]);
        assert_eq!(pace.blocks, before);
        let mut half = |took| {
            pace.begin(false, now);
            pace.note(BLOCKS_FIRST / 2);
            pace.written(now + took);
            pace.blocks[0]
        };
        assert_eq!(half(TIMES[0] / 100), BLOCKS_FIRST);
        assert_eq!(half(TIMES[0] * 100), BLOCKS_FIRST / 2);
    }
}
