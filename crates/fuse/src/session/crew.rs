//! Who reads requests. A fixed number of threads should read at any time: more would only pass
//! requests around between caches, fewer would leave a mount deaf while an fsync waits.
//!
//! A thread about to wait *leaves*, and a spare thread, or a new one, takes its place. When it has
//! *come back* and there are enough readers again, it *rests* until the next one leaves.

use parking_lot::{Condvar, Mutex};

/// Most threads of one session; with that many waiting, reading pauses until one is done.
const THREADS_MAX: usize = 64;

/// The census of a session's threads.
pub(super) struct Crew {
    state: Mutex<State>,
    wake: Condvar,
}

struct State {
    /// Readers wanted.
    target: usize,
    /// Threads reading, or handling what takes no time.
    reading: usize,
    /// Threads resting.
    resting: usize,
    /// Calls to resting threads that none has answered yet.
    called: usize,
    /// All threads alive.
    alive: usize,
    ended: bool,
}

impl Crew {
    /// `target` readers, all of them alive from the start.
    pub(super) fn new(target: usize) -> Self {
        let (reading, alive) = (target, target);
        let state = State { target, reading, resting: 0, called: 0, alive, ended: false };
        Self { state: Mutex::new(state), wake: Condvar::new() }
    }

    /// `missing` of the first readers could not be started: the crew is smaller.
    pub(super) fn without(&self, missing: usize) {
        let mut state = self.state.lock();
        state.target = state.target.saturating_sub(missing);
        state.reading = state.reading.saturating_sub(missing);
        state.alive = state.alive.saturating_sub(missing);
    }

    /// The new reader that [`Crew::leave`] asked for could not be started: whoever comes back first reads in its place.
    pub(super) fn not_started(&self) {
        let mut state = self.state.lock();
        state.reading = state.reading.saturating_sub(1);
        state.alive = state.alive.saturating_sub(1);
    }

    /// The calling reader is going to wait. `true`: the caller must start a new reader.
    pub(super) fn leave(&self) -> bool {
        let mut state = self.state.lock();
        state.reading = state.reading.saturating_sub(1);
        if state.reading >= state.target {
            return false;
        }
        if state.resting > state.called {
            state.called += 1;
            state.reading += 1;
            self.wake.notify_one();
            return false;
        }
        if state.alive >= THREADS_MAX {
            return false;
        }
        state.alive += 1;
        state.reading += 1;
        true
    }

    /// Whether anybody reads while the calling reader waits.
    pub(super) fn is_read(&self) -> bool {
        self.state.lock().reading > 0
    }

    /// The calling thread waits no more. `true`: it should go on reading; `false`: it should rest.
    pub(super) fn come_back(&self) -> bool {
        let mut state = self.state.lock();
        if state.reading < state.target {
            state.reading += 1;
            return true;
        }
        false
    }

    /// Rests until a reader is wanted. `false`: the session has ended.
    pub(super) fn rest(&self) -> bool {
        let mut state = self.state.lock();
        state.resting += 1;
        while state.called == 0 && !state.ended {
            self.wake.wait(&mut state);
        }
        state.resting -= 1;
        state.called = state.called.saturating_sub(1);
        !state.ended
    }

    /// Sends everybody home.
    pub(super) fn end(&self) {
        self.state.lock().ended = true;
        self.wake.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_leaver_is_replaced_and_the_surplus_rests() {
        let crew = Crew::new(2);
        assert!(crew.leave());
        assert!(crew.leave());
        assert!(!crew.come_back());
        assert!(!crew.come_back());
        assert_eq!(crew.state.lock().reading, 2);
    }

    #[test]
    fn the_last_reader_knows_that_it_is_the_last() {
        let crew = Crew::new(2);
        for others in [true, false] {
            assert!(crew.leave());
            crew.not_started();
            assert_eq!(crew.is_read(), others);
        }
        assert!(crew.come_back());
        assert!(crew.is_read());
    }

    #[test]
    fn a_resting_thread_is_called_before_one_is_made() {
        let crew = std::sync::Arc::new(Crew::new(1));
        assert!(crew.leave());
        assert!(!crew.come_back());
        let resting = std::thread::spawn({
            let crew = std::sync::Arc::clone(&crew);
            move || crew.rest()
        });
        while crew.state.lock().resting == 0 {
            std::thread::yield_now();
        }
        assert!(!crew.leave());
        assert!(resting.join().unwrap());
        crew.end();
        assert!(!crew.rest());
    }

    #[test]
    fn who_finds_no_stand_in_reads_on_when_it_is_back() {
        let crew = Crew::new(4);
        crew.without(2);
        for _ in 0..10 {
            for _ in 0..2 {
                assert!(crew.leave());
                crew.not_started();
            }
            assert!(crew.come_back());
            assert!(crew.come_back());
        }
        assert_eq!(crew.state.lock().alive, 2);
    }

    #[test]
    fn the_crew_stays_bounded() {
        let crew = Crew::new(1);
        let started = (0..100).filter(|_| crew.leave()).count();
        assert_eq!(started, THREADS_MAX - 1);
        assert!(crew.come_back());
    }
}
