//! Recording of writes and barriers, and the states a power loss may leave.
//!
//! Terms: a *cut* at `n` is a power loss after the first `n` events of the record. What the medium
//! then holds: certainly everything before the last barrier among them; of the writes after that
//! barrier any subset, in any order, each torn at 512-byte sectors. [`History::prefix`] is the mild
//! medium that loses nothing, [`History::scrambled`] a harsh one drawn from a seed.

use std::sync::Arc;

use parking_lot::Mutex;

use crate::{BlockDevice, DeviceError, MemoryDevice};

/// The unit in which a medium writes atomically, in bytes.
const SECTOR: usize = 512;

/// One thing that happened to a [`RecordingDevice`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// Bytes written.
    Write {
        /// First byte.
        offset: u64,
        /// What was written.
        data: Arc<[u8]>,
    },
    /// A barrier that returned.
    Barrier,
    /// A range given up; it reads as zeros afterwards.
    Discard {
        /// First byte.
        offset: u64,
        /// Bytes.
        len: u64,
    },
    /// A remark of the test, such as "operation 17 was acknowledged".
    Mark(u64),
}

/// A device in memory that keeps a record of all writes and barriers.
#[derive(Debug)]
pub struct RecordingDevice {
    base: MemoryDevice,
    live: MemoryDevice,
    log: Mutex<Vec<Event>>,
}

impl RecordingDevice {
    /// A device that starts with the content of `base` and an empty record.
    pub fn new(base: &MemoryDevice) -> Self {
        Self { base: base.snapshot(), live: base.snapshot(), log: Mutex::default() }
    }

    /// Puts a remark into the record.
    pub fn mark(&self, mark: u64) {
        self.log.lock().push(Event::Mark(mark));
    }

    /// Number of events so far.
    pub fn event_count(&self) -> usize {
        self.log.lock().len()
    }

    /// What is on the device now, without any loss.
    pub fn current(&self) -> MemoryDevice {
        let _log = self.log.lock();
        self.live.snapshot()
    }

    /// The record so far.
    pub fn history(&self) -> History {
        let events = self.log.lock().clone();
        History { base: self.base.snapshot(), events }
    }
}

impl BlockDevice for RecordingDevice {
    fn name(&self) -> &str {
        self.live.name()
    }

    fn size(&self) -> u64 {
        self.live.size()
    }

    fn is_read_only(&self) -> bool {
        false
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), DeviceError> {
        self.live.read_at(offset, buf)
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> Result<(), DeviceError> {
        let mut log = self.log.lock();
        self.live.write_at(offset, data)?;
        log.push(Event::Write { offset, data: data.into() });
        Ok(())
    }

    fn barrier(&self) -> Result<(), DeviceError> {
        self.log.lock().push(Event::Barrier);
        Ok(())
    }

    fn discard(&self, offset: u64, len: u64) -> Result<(), DeviceError> {
        let mut log = self.log.lock();
        self.live.discard(offset, len)?;
        log.push(Event::Discard { offset, len });
        Ok(())
    }
}

/// A finished record and the content it started from.
#[derive(Debug)]
pub struct History {
    base: MemoryDevice,
    events: Vec<Event>,
}

impl History {
    /// The same as a medium sees it that takes no notice of barriers.
    pub fn without_barriers(&self) -> History {
        let mark = |event: &Event| match event {
            Event::Barrier => Event::Mark(0),
            event => event.clone(),
        };
        History { base: self.base.snapshot(), events: self.events.iter().map(mark).collect() }
    }

    /// The events, in the order in which they happened.
    pub fn events(&self) -> &[Event] {
        &self.events
    }

    /// The content before the first event.
    pub fn base(&self) -> MemoryDevice {
        self.base.snapshot()
    }

    /// The state after the first `n` events, nothing lost.
    pub fn prefix(&self, n: usize) -> MemoryDevice {
        let device = self.base.snapshot();
        self.events.iter().take(n).for_each(|event| apply(&device, event));
        device
    }

    /// Every prefix state with its number of events, `0..=events().len()`; cheaper than calling
    /// [`prefix`](Self::prefix) for each.
    pub fn prefixes(&self) -> impl Iterator<Item = (usize, MemoryDevice)> + '_ {
        let rolling = self.base.snapshot();
        (0..=self.events.len()).map(move |n| {
            if let Some(event) = n.checked_sub(1).and_then(|last| self.events.get(last)) {
                apply(&rolling, event);
            }
            (n, rolling.snapshot())
        })
    }

    /// A state that a power loss after `n` events may leave on a medium that reorders, loses and
    /// tears what no barrier covers. The same seed gives the same state.
    pub fn scrambled(&self, n: usize, seed: u64) -> MemoryDevice {
        let n = n.min(self.events.len());
        let done = self.events.get(..n).unwrap_or_default();
        let durable = done.iter().rposition(|event| *event == Event::Barrier).unwrap_or(0);
        let device = self.prefix(durable);
        let mut random = Random(seed ^ (n as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let mut pending: Vec<&Event> = done.iter().skip(durable).collect();
        for left in (1..pending.len()).rev() {
            pending.swap(left, random.below(left as u64 + 1) as usize);
        }
        // How likely a write is lost differs from state to state: few and many losses both occur.
        let losses = random.below(5);
        for event in pending {
            match random.below(4) {
                draw if draw < losses => apply_torn(&device, event, &mut random),
                _ => apply(&device, event),
            }
        }
        device
    }

    /// The last mark before a cut at `n`: a test that marks each acknowledged operation learns
    /// from it what must have survived.
    pub fn last_mark(&self, n: usize) -> Option<u64> {
        self.events.iter().take(n).rev().find_map(|event| match event {
            Event::Mark(mark) => Some(*mark),
            _ => None,
        })
    }
}

fn apply(device: &MemoryDevice, event: &Event) {
    let result = match event {
        Event::Write { offset, data } => device.write_at(*offset, data),
        Event::Discard { offset, len } => device.discard(*offset, *len),
        Event::Barrier | Event::Mark(_) => Ok(()),
    };
    debug_assert!(result.is_ok(), "an event that succeeded once: {result:?}");
}

/// Applies a random part of a write: nothing, or some of its sectors.
fn apply_torn(device: &MemoryDevice, event: &Event, random: &mut Random) {
    let Event::Write { offset, data } = event else { return };
    if random.below(2) == 0 {
        return;
    }
    // Sectors are those of the medium, not of the write: the first piece ends at a boundary.
    let mut at = 0;
    while at < data.len() {
        let into = ((offset + at as u64) % SECTOR as u64) as usize;
        let take = (SECTOR - into).min(data.len() - at);
        if random.below(2) == 0 {
            let bytes = data.get(at..at + take).unwrap_or_default();
            apply(device, &Event::Write { offset: offset + at as u64, data: bytes.into() });
        }
        at += take;
    }
}

/// A small generator (splitmix64) so that a seed means the same everywhere.
#[derive(Debug)]
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % bound.max(1)
    }
}
