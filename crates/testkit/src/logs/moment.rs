//! When a power cut was.
//!
//! Replay removes names and gives up links, and what it changes so gets the time at which that happens. It is another one for each
//! replay, so all times behind the power cut count as one.

use std::thread::sleep;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::make::text;
use crate::facts::{Facts, Time};

/// What stands for all times of a replay.
pub(super) const OF_REPLAY: Time = (i64::MAX, 0);
/// Longer than the kernel's clock for files stands still.
const TICK: Duration = Duration::from_millis(20);

/// A time that all changes before it are older than, and all changes after it younger.
#[derive(Clone, Copy, Debug)]
pub struct Moment(Time);

impl Moment {
    /// Now, a tick after what came before and a tick before what comes.
    pub fn now() -> Result<Moment, String> {
        sleep(TICK);
        let now = text(SystemTime::now().duration_since(UNIX_EPOCH))?;
        sleep(TICK);
        Ok(Moment((now.as_secs() as i64, now.subsec_nanos())))
    }

    /// A time, if it is before the moment; else what stands for those of a replay.
    pub fn of(&self, time: Time) -> Time {
        if time > self.0 { OF_REPLAY } else { time }
    }

    /// The same with all times of facts.
    pub fn of_facts(&self, mut facts: Facts) -> Facts {
        facts.paths.values_mut().for_each(|fact| fact.mtime = self.of(fact.mtime));
        facts
    }
}
