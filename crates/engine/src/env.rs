//! Time and randomness: the two inputs besides the disk and the caller. They come from one value, so that a test can
//! replay a seed.
//!
//! A test can also be told of each step that operations and commits take ([`Env::watched`]), and end one in the middle by a
//! panic. Where nobody watches, a step is one comparison.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;

/// Nanoseconds of a second.
const SECOND: u32 = 1_000_000_000;

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

    /// How long it is after another one; nothing where it is before that.
    pub fn since(self, before: Time) -> Duration {
        let nanos = |time: Time| i128::from(time.sec) * 1_000_000_000 + i128::from(time.nsec);
        let since = u64::try_from((nanos(self) - nanos(before)).max(0)).unwrap_or(u64::MAX);
        Duration::from_nanos(since)
    }

    /// From the disk. What is no part of a second there, as nobody writes it, is the end of one: it can be handed on.
    pub fn from_disk(time: &buttress_ondisk::item::Timespec) -> Time {
        Time { sec: time.sec.get() as i64, nsec: time.nsec.get().min(SECOND - 1) }
    }

    /// Whether the nanoseconds are less than a second.
    pub fn is_time(self) -> bool {
        self.nsec < SECOND
    }
}

type Clock = dyn Fn() -> Time + Send + Sync;
type Random = dyn FnMut(&mut [u8]) + Send;
type Watch = dyn Fn(&'static str) + Send + Sync;

/// Where time and randomness come from.
#[derive(Clone)]
pub struct Env {
    clock: Arc<Clock>,
    random: Arc<Mutex<Box<Random>>>,
    watch: Option<Arc<Watch>>,
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
        let random = Arc::new(Mutex::new(Box::new(random) as Box<Random>));
        Env { clock: Arc::new(clock), random, watch: None }
    }

    /// The same, and `watch` is told of each step, on whatever thread that is taken. A test may panic there.
    pub fn watched(self, watch: impl Fn(&'static str) + Send + Sync + 'static) -> Env {
        Env { watch: Some(Arc::new(watch)), ..self }
    }

    /// A step is taken: between two of them something has changed.
    pub(crate) fn step(&self, what: &'static str) {
        if let Some(watch) = &self.watch {
            watch(what);
        }
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
