//! How much of deleted subvolumes a commit drops: one that nobody asked for, and (last paragraph) one that somebody waits for to have the space.
//!
//! One commit runs at a time, so whoever wants to make something durable waits for the one that drops. It is to be short: as many
//! blocks as took the right time in the last commits, and no new one once the time for looking at them is over (the first that has to
//! be read from a slow device may take all of it). While programs wait for commits again and again it is very short; then more of each
//! commit is what all commits cost, and dropping takes longer. Without them it may take longer than a program would notice once.
//!
//! Where the device takes long to make a commit durable, dropping may take as long again: with less of it in each commit, all would
//! be waiting for the device.
//!
//! Who wants the space has all that one commit may drop, so that few commits write the same leaves of the extent tree; but where such a commit takes more than
//! a second, as the device has to read each leaf from another place, the next one drops less, as others wait for it, too.

use std::time::{Duration, Instant};

/// How long dropping may keep a commit: when nobody has waited for one lately, when somebody has, and when somebody wants the space.
const TIMES: [Duration; 3] =
    [Duration::from_millis(20), Duration::from_micros(300), Duration::from_secs(1)];
/// Where somebody wants the space: [`TIMES`].
const MUCH: usize = 2;
/// But at most.
const TIME_MAX: Duration = Duration::from_millis(200);
/// Blocks that are dropped at least, and at first where somebody waits.
const BLOCKS_MIN: usize = 8;
/// Blocks at first where nobody waits, and at least where somebody wants the space: what else a commit does may have taken the time.
const BLOCKS_FIRST: usize = 256;
/// Blocks at first where somebody wants the space.
const BLOCKS_MUCH: usize = 4096;
/// No commit drops more.
const BLOCKS_MAX: usize = 1 << 20;

#[derive(Debug)]
pub(super) struct Pace {
    /// Blocks for each of the [`TIMES`].
    blocks: [usize; 3],
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
    /// Blocks that it might look at.
    blocks: usize,
    /// Blocks that were looked at.
    looked: usize,
}

impl Default for Pace {
    fn default() -> Pace {
        let (blocks, device) = ([BLOCKS_FIRST, BLOCKS_MIN, BLOCKS_MUCH], Duration::ZERO);
        Pace { blocks, step: None, written: None, device }
    }
}

impl Pace {
    fn time(&self, which: usize) -> Duration {
        TIMES[which].max(self.device.min(TIME_MAX))
    }

    /// Dropping begins: so many blocks of `most`, and until when to look at new ones.
    pub fn begin(&mut self, hurried: bool, most: usize, now: Instant) -> (usize, Instant) {
        let which = usize::from(hurried);
        (self.begin_as(which, most, now), now + self.time(which) / 2)
    }

    /// The same where somebody wants the space: all of them, but where the device takes long to read and write what comes of them.
    pub fn begin_much(&mut self, most: usize, now: Instant) -> usize {
        self.begin_as(MUCH, most, now)
    }

    fn begin_as(&mut self, which: usize, most: usize, now: Instant) -> usize {
        let blocks = self.blocks[which].min(most);
        self.step = Some(Step { begun: now, which, blocks, looked: 0 });
        blocks
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
        let Some(Step { begun, which, blocks, looked }) = self.step.take() else { return };
        let took = now.saturating_duration_since(begun).as_nanos().max(1);
        let fitting = (looked as u128 * self.time(which).as_nanos() / took) as usize;
        // One commit says little: others may have had the processor. One that ended for other reasons says nothing about more.
        let fitting = match looked {
            0 => return,
            _ if looked >= blocks => fitting.clamp(blocks / 2, blocks * 2),
            _ if took <= self.time(which).as_nanos() => return,
            _ => fitting.clamp(blocks / 2, blocks),
        };
        let least = if which == MUCH { BLOCKS_FIRST } else { BLOCKS_MIN };
        self.blocks[which] = fitting.clamp(least, BLOCKS_MAX);
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
            let (blocks, _) = pace.begin(hurried, usize::MAX, now);
            now += each * blocks as u32 + besides;
            pace.note(blocks);
            pace.written(now);
            now += device;
            pace.durable(now);
        }
        pace.begin(hurried, usize::MAX, now).0
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
        let (_, until) = pace.begin(true, usize::MAX, now);
        assert!(until > now && until < now + TIMES[1]);
        // A commit that dropped nothing says nothing, and one that ended early not that more would fit.
        let before = pace.blocks;
        pace.written(now);
        pace.written(now + TIMES[0]);
        assert_eq!(pace.blocks, before);
        let mut half = |took| {
            pace.begin(false, usize::MAX, now);
            pace.note(BLOCKS_FIRST / 2);
            pace.written(now + took);
            pace.blocks[0]
        };
        assert_eq!(half(TIMES[0] / 100), BLOCKS_FIRST);
        assert_eq!(half(TIMES[0]), BLOCKS_FIRST);
        assert_eq!(half(TIMES[0] * 100), BLOCKS_FIRST / 2);
    }

    #[test]
    fn who_wants_the_space_has_all_that_a_device_can_do_in_time() {
        let (mut pace, mut now) = (Pace::default(), Instant::now());
        let mut commit = |each: Duration| {
            let blocks = pace.begin_much(4096, now);
            now += each * blocks as u32;
            pace.note(blocks);
            pace.written(now);
            blocks
        };
        assert_eq!([(); 3].map(|()| commit(MICRO)), [4096; 3]);
        // A disk that moves its heads for each: a second of them, and more again once it does so no more.
        let slow: Vec<usize> = (0..5).map(|_| commit(10_000 * MICRO)).collect();
        assert_eq!(slow, [4096, 2048, 1024, 512, 256]);
        assert_eq!(commit(10_000 * MICRO), BLOCKS_FIRST);
        let fast: Vec<usize> = (0..6).map(|_| commit(MICRO)).collect();
        assert_eq!(fast, [256, 512, 1024, 2048, 4096, 4096]);
    }
}
