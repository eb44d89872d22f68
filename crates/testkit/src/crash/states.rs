//! The states that a power loss may leave of a recording.
//!
//! An *epoch* is what lies between two barriers. What came before it is on the medium; of its own writes any may be missing,
//! torn at sectors of 512 bytes, or have overtaken each other.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use buttress_device::testing::{Event, History};
use buttress_device::{BlockDevice, MemoryDevice};
use xxhash_rust::xxh64::xxh64;

use crate::ops::rng::Rng;

/// The unit in which a medium writes atomically, in bytes.
const SECTOR: usize = 512;

/// What became of the last writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Loss {
    /// Nothing is lost.
    None,
    /// The last write is torn.
    Torn,
    /// Any write since the last barrier is lost, torn or overtaken.
    Shuffled,
}

/// A state, in words that name it again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct State {
    /// Events that happened before the power went.
    pub cut: usize,
    /// What became of the last of them.
    pub loss: Loss,
    /// Chooses among what may have been lost.
    pub seed: u64,
}

impl State {
    /// Events that happened whole.
    fn whole(&self) -> usize {
        match self.loss {
            Loss::Torn => self.cut.saturating_sub(1),
            Loss::None | Loss::Shuffled => self.cut,
        }
    }

    /// Where it is in the order in which states are made.
    pub fn order(&self) -> (usize, Loss, u64) {
        (self.whole(), self.loss, self.seed)
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let loss = match self.loss {
            Loss::None => "cut",
            Loss::Torn => "torn",
            Loss::Shuffled => "shuffled",
        };
        write!(f, "{loss}:{}:{}", self.cut, self.seed)
    }
}

impl FromStr for State {
    type Err = String;

    fn from_str(text: &str) -> Result<State, String> {
        let words: Vec<&str> = text.split(':').collect();
        let [loss, cut, seed] = words[..] else { return Err(format!("not a state: {text}")) };
        let loss = match loss {
            "cut" => Loss::None,
            "torn" => Loss::Torn,
            "shuffled" => Loss::Shuffled,
            _ => return Err(format!("not a loss: {loss}")),
        };
        let number = |word: &str| word.parse().map_err(|_| format!("not a number: {word}"));
        Ok(State { cut: number(cut)? as usize, loss, seed: number(seed)? })
    }
}

fn is_write(event: &Event) -> bool {
    matches!(event, Event::Write { .. } | Event::Discard { .. })
}

/// Every state of a recording, in the order of its cuts: each prefix, each write torn once, and `per_epoch` states of each
/// epoch in which anything was written.
pub fn all(history: &History, per_epoch: u64, seed: u64) -> Vec<State> {
    let mut rng = Rng::new(seed);
    let mut found = vec![State { cut: 0, loss: Loss::None, seed: 0 }];
    let mut writes = Vec::new();
    let ends = history.events().iter().chain([&Event::Barrier]);
    for (at, event) in ends.enumerate() {
        if is_write(event) {
            writes.push(at + 1);
            found.push(State { cut: at + 1, loss: Loss::None, seed: 0 });
            found.push(State { cut: at + 1, loss: Loss::Torn, seed: rng.next() });
        }
        if *event == Event::Barrier && !writes.is_empty() {
            for number in 0..per_epoch {
                // Half of the states are those of a loss just before the barrier would have returned.
                let last = writes.last().copied().unwrap_or_default();
                let cut = if number % 2 == 0 { last } else { *rng.pick(&writes) };
                found.push(State { cut, loss: Loss::Shuffled, seed: rng.next() });
            }
            writes.clear();
        }
    }
    found.sort_unstable_by_key(State::order);
    found
}

/// A disk in a state.
pub struct Disk {
    /// The state.
    pub state: State,
    /// The disk.
    pub device: MemoryDevice,
    /// Says what is on the disk: equal only where every byte is.
    pub digest: u64,
}

/// Makes disks, one after the other, in the order of [`State::order`].
pub struct Maker<'a> {
    events: &'a [Event],
    /// As of the last barrier at or before `at`.
    durable: MemoryDevice,
    durable_at: usize,
    durable_digest: u64,
    /// As of `at`.
    rolling: MemoryDevice,
    digest: u64,
    at: usize,
}

impl<'a> Maker<'a> {
    /// Starts with the disk before the first event.
    pub fn new(history: &'a History) -> Maker<'a> {
        Maker {
            events: history.events(),
            durable: history.base(),
            durable_at: 0,
            durable_digest: 0,
            rolling: history.base(),
            digest: 0,
            at: 0,
        }
    }

    /// The disk in a state.
    pub fn make(&mut self, state: State) -> Disk {
        let whole = state.whole();
        self.roll(whole);
        let mut rng = Rng::new(state.seed);
        let (device, digest) = match state.loss {
            Loss::None => (self.rolling.snapshot(), self.digest),
            Loss::Torn => {
                let last = self.events.get(whole..state.cut).unwrap_or_default();
                lose(&self.rolling, self.digest, last, &mut rng, |rng| HEAD + rng.below(2))
            }
            Loss::Shuffled => {
                let pending = self.events.get(self.durable_at..state.cut).unwrap_or_default();
                // How likely a write is lost differs from state to state: few and many losses both occur.
                let losses = 1 + rng.below(4);
                lose(&self.durable, self.durable_digest, pending, &mut rng, |rng| {
                    match rng.below(4) < losses {
                        true => rng.below(6) / 2,
                        false => WHOLE,
                    }
                })
            }
        };
        Disk { state, device, digest }
    }

    fn roll(&mut self, to: usize) {
        while self.at < to {
            let Some(event) = self.events.get(self.at) else { return };
            self.at += 1;
            self.digest = apply(&self.rolling, self.digest, event);
            if *event == Event::Barrier {
                self.durable = self.rolling.snapshot();
                (self.durable_at, self.durable_digest) = (self.at, self.digest);
            }
        }
    }
}

/// What becomes of a write.
const LOST: u64 = 0;
/// Only its head is there.
const HEAD: u64 = 1;
/// It is there.
const WHOLE: u64 = 3;

/// Applies events in some order to a copy of the device; `fate` says what becomes of each: between [`HEAD`] and [`WHOLE`], any
/// of its sectors are there.
fn lose(
    base: &MemoryDevice,
    digest: u64,
    pending: &[Event],
    rng: &mut Rng,
    fate: impl Fn(&mut Rng) -> u64,
) -> (MemoryDevice, u64) {
    let (device, mut digest) = (base.snapshot(), digest);
    let mut pending: Vec<&Event> = pending.iter().filter(|event| is_write(event)).collect();
    for left in (1..pending.len()).rev() {
        pending.swap(left, rng.below(left as u64 + 1) as usize);
    }
    for event in pending {
        match fate(rng) {
            LOST => {}
            WHOLE => digest = apply(&device, digest, event),
            how => {
                for part in torn(event, how, rng) {
                    digest = apply(&device, digest, &part);
                }
            }
        }
    }
    (device, digest)
}

/// Parts of a write: its head only, or any of its sectors. Sectors are those of the medium.
fn torn(event: &Event, how: u64, rng: &mut Rng) -> Vec<Event> {
    let Event::Write { offset, data } = event else { return vec![event.clone()] };
    let mut parts = Vec::new();
    let mut at = 0;
    let head = rng.below(data.len() as u64) as usize;
    while at < data.len() {
        let into = ((offset + at as u64) % SECTOR as u64) as usize;
        let take = (SECTOR - into).min(data.len() - at);
        let kept = if how == HEAD { at + take <= head } else { rng.one_in(2) };
        if let Some(bytes) = data.get(at..at + take).filter(|_| kept) {
            parts.push(Event::Write { offset: offset + at as u64, data: bytes.into() });
        }
        at += take;
    }
    parts
}

/// Applies an event; answers the digest after it. A digest is the sum of those of all sectors that differ from the first disk.
fn apply(device: &MemoryDevice, digest: u64, event: &Event) -> u64 {
    let (offset, len) = match event {
        Event::Write { offset, data } => (*offset, data.len() as u64),
        Event::Discard { offset, len } => (*offset, *len),
        Event::Barrier | Event::Mark(_) => return digest,
    };
    let before = sectors(device, offset, len);
    let done = match event {
        Event::Write { data, .. } => device.write_at(offset, data),
        _ => device.discard(offset, len),
    };
    debug_assert!(done.is_ok(), "an event that succeeded once: {done:?}");
    digest.wrapping_sub(before).wrapping_add(sectors(device, offset, len))
}

/// The sum of the digests of the sectors that a range touches.
fn sectors(device: &MemoryDevice, offset: u64, len: u64) -> u64 {
    let size = SECTOR as u64;
    let (start, end) = (offset / size * size, (offset + len).next_multiple_of(size));
    let mut bytes = vec![0; (end.min(device.size()) - start) as usize];
    if device.read_at(start, &mut bytes).is_err() {
        return 0;
    }
    let digest = |(number, sector): (usize, &[u8])| xxh64(sector, start + (number * SECTOR) as u64);
    bytes.chunks(SECTOR).enumerate().map(digest).fold(0, u64::wrapping_add)
}

/// Up to `count` of the states, in order, chosen by the seed.
pub fn sample(states: &[State], count: usize, seed: u64) -> Vec<State> {
    if count >= states.len() {
        return states.to_vec();
    }
    let mut rng = Rng::new(seed ^ 0x5a3e);
    let mut chosen = BTreeSet::new();
    while chosen.len() < count {
        chosen.insert(rng.below(states.len() as u64) as usize);
    }
    chosen.into_iter().filter_map(|at| states.get(at).copied()).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use buttress_device::testing::RecordingDevice;
    use buttress_device::{BlockDevice, MemoryDevice};

    use super::{Loss, Maker, State, all};

    fn recorded() -> Arc<RecordingDevice> {
        let device = Arc::new(RecordingDevice::new(&MemoryDevice::new(1 << 20)));
        device.write_at(0, &[1; 4096]).expect("written");
        device.barrier().expect("a barrier");
        device.write_at(8192, &[2; 4096]).expect("written");
        device.write_at(0, &[3; 4096]).expect("written");
        device
    }

    fn ends(device: &MemoryDevice) -> [u8; 4] {
        let mut bytes = [0; 4];
        for (byte, at) in bytes.iter_mut().zip([0, 4095, 8192, 12_287]) {
            device.read_at(at, std::slice::from_mut(byte)).expect("read");
        }
        bytes
    }

    #[test]
    fn states_are_what_a_power_loss_may_leave() {
        let history = recorded().history();
        let states = all(&history, 200, 5);
        assert!(states.is_sorted_by_key(State::order));
        let mut maker = Maker::new(&history);
        let (mut torn, mut overtaken) = (0, 0);
        let mut digests = std::collections::BTreeMap::new();
        for state in states {
            let disk = maker.make(state);
            let [first, last, second, end] = ends(&disk.device);
            match (state.loss, state.cut) {
                (Loss::None, 0) => assert_eq!([first, last, second, end], [0; 4]),
                (Loss::None, 1) => assert_eq!([first, last, second, end], [1, 1, 0, 0]),
                (Loss::None, 4) => assert_eq!([first, last, second, end], [3, 3, 2, 2]),
                (Loss::Torn, 3) => assert_eq!([first, last], [1, 1]),
                (_, 3..) => assert!(first != 0 && last != 0, "{state} lost what is durable"),
                _ => {}
            }
            torn += u32::from(first != last || second != end);
            overtaken += u32::from(first == 3 && second == 0);
            let mut bytes = vec![0; 16_384];
            disk.device.read_at(0, &mut bytes).expect("read");
            let known = digests.entry(disk.digest).or_insert_with(|| bytes.clone());
            assert_eq!(*known, bytes, "{state}: one digest, two contents");
            assert_eq!(state.to_string().parse::<State>(), Ok(state));
        }
        assert!(torn > 20 && overtaken > 5 && digests.len() > 100, "{torn} {overtaken}");
    }
}
