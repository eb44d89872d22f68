//! Who is counting what subvolumes take: passes of several requests.
//!
//! A pass may take longer than a request should: who waits for an answer cannot be killed. So each request goes on with it
//! for a moment and tells how far it is, and whoever asked asks again. Nobody tells when a command was killed: so there are
//! few passes, and a new one takes the place of the one that was not asked about for longest.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use buttress::costs::{Bytes, Costs, Progress, Share};
use buttress::{Counting, Error, Filesystem, Result};
use parking_lot::Mutex;
use rustix::io::Errno;

/// Passes that are remembered.
const PASSES: usize = 2;
/// How long one request goes on with a pass.
const MOMENT: Duration = Duration::from_millis(50);

/// Passes, by the numbers that those who ask have for them.
#[derive(Default)]
pub(super) struct Countings(Mutex<All>);

#[derive(Default)]
struct All {
    last: u64,
    /// The one that was asked about last is the last one.
    passes: Vec<(u64, State)>,
}

enum State {
    Running(Box<Counting>),
    Done(Box<Costs>, BTreeSet<u64>),
}

impl Countings {
    /// Begins one.
    pub fn begin(&self, fs: &Filesystem) -> Result<u64> {
        let counting = fs.count_subvolumes()?;
        let mut all = self.0.lock();
        all.last += 1;
        let number = all.last;
        all.put(number, State::Running(Box::new(counting)));
        Ok(number)
    }

    /// Goes on with one; how far it is, or `None` at its end.
    pub fn go_on(&self, fs: &Filesystem, number: u64) -> Result<Option<Progress>> {
        let mut counting = match self.0.lock().take(number)? {
            State::Running(counting) => counting,
            State::Done(costs, asked) => {
                self.0.lock().put(number, State::Done(costs, asked));
                return Ok(None);
            }
        };
        let until = Instant::now() + MOMENT;
        // Whoever asks for the same one meanwhile does not find it.
        let mut more = true;
        while more && Instant::now() < until {
            more = counting.step(fs)?;
        }
        let (told, state) = match more {
            true => (Some(counting.progress()), State::Running(counting)),
            false => (None, State::Done(Box::new(counting.costs()), BTreeSet::new())),
        };
        self.0.lock().put(number, state);
        Ok(told)
    }

    /// What `count` subvolumes from `from` on take.
    pub fn costs(&self, number: u64, from: u64, count: usize) -> Result<Vec<(u64, Share)>> {
        self.with(number, |costs, _| {
            let rest = costs.subvolumes().skip_while(|(id, _)| *id < from);
            rest.take(count).map(|(id, share)| (id, *share)).collect()
        })
    }

    /// Asks what would be free without this subvolume, and the others asked about.
    pub fn ask(&self, number: u64, id: u64) -> Result<()> {
        self.with(number, |_, asked| {
            asked.insert(id);
        })
    }

    /// What all take, what several share, and what would be free without those asked about.
    pub fn sums(&self, number: u64) -> Result<[Bytes; 3]> {
        self.with(number, |costs, asked| {
            let asked: Vec<u64> = asked.iter().copied().collect();
            [costs.total(), costs.shared(), costs.freed_by(&asked)]
        })
    }

    /// Forgets one.
    pub fn end(&self, number: u64) {
        let _gone = self.0.lock().take(number);
    }

    fn with<T>(
        &self,
        number: u64,
        answer: impl FnOnce(&Costs, &mut BTreeSet<u64>) -> T,
    ) -> Result<T> {
        let mut all = self.0.lock();
        let mut state = all.take(number)?;
        let answer = match &mut state {
            State::Running(_) => Err(Error::User(Errno::AGAIN)),
            State::Done(costs, asked) => Ok(answer(costs, asked)),
        };
        all.put(number, state);
        answer
    }
}

impl All {
    fn take(&mut self, number: u64) -> Result<State> {
        let at = self.passes.iter().position(|(one, _)| *one == number);
        let at = at.ok_or(Error::User(Errno::CANCELED))?;
        Ok(self.passes.remove(at).1)
    }

    fn put(&mut self, number: u64, state: State) {
        if self.passes.len() >= PASSES {
            self.passes.remove(0);
        }
        self.passes.push((number, state));
    }
}
