//! Time and randomness: the two inputs besides the disk and the caller. They come from one value, so that a test can
//! replay a seed.

use std::fmt;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;

/// A point in time: seconds since 1970, and nanoseconds below 1,000,000,000.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time {
    /// Seconds since 1970, negative before.
    pub sec: i64,
    /// Nanoseconds.
    pub nsec: u32,
}

impl Time {
    /// The time as it stands on the disk.
    pub fn to_disk(self) -> buttress_ondisk::item::Timespec {
        buttress_ondisk::item::Timespec { sec: (self.sec as u64).into(), nsec: self.nsec.into() }
    }

    /// From the disk.
    pub fn from_disk(time: &buttress_ondisk::item::Timespec) -> Time {
        Time { sec: time.sec.get() as i64, nsec: time.nsec.get() }
    }
}

type Clock = dyn Fn() -> Time + Send + Sync;
type Random = dyn FnMut(&mut [u8]) + Send;

/// Where time and randomness come from.
#[derive(Clone)]
pub struct Env {
    clock: Arc<Clock>,
    random: Arc<Mutex<Box<Random>>>,
}

impl fmt::Debug for Env {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Env")
    }
}

impl Env {
    /// The system's clock and random numbers.
    pub fn system() -> Env {
        Env::new(system_time, |bytes| {
            for part in bytes.chunks_mut(16) {
                part.copy_from_slice(&uuid::Uuid::new_v4().as_bytes()[..part.len()]);
            }
        })
    }

    /// A clock and a source of random bytes of the caller's choice.
    pub fn new(
        clock: impl Fn() -> Time + Send + Sync + 'static,
        random: impl FnMut(&mut [u8]) + Send + 'static,
    ) -> Env {
        Env { clock: Arc::new(clock), random: Arc::new(Mutex::new(Box::new(random))) }
    }

    /// Now.
    pub fn now(&self) -> Time {
        (self.clock)()
    }

    /// A fresh uuid (version 4).
    pub fn uuid(&self) -> [u8; 16] {
        let mut bytes = [0; 16];
        (self.random.lock())(&mut bytes);
        *uuid::Builder::from_random_bytes(bytes).as_uuid().as_bytes()
    }
}

fn system_time() -> Time {
    match SystemTime::now().duration_since(UNIX_EPOCH) {
        Ok(since) => Time { sec: since.as_secs() as i64, nsec: since.subsec_nanos() },
        Err(_) => Time::default(),
    }
}
