//! Quotas that are counted because somebody asks for it: by a thread of their own, as it takes as long as it takes, and whoever waits for an
//! answer of a mount cannot be killed. The end of the mount ends it, too. (Those that are wrong without anybody's asking are
//! counted by the filesystem itself.)

use std::sync::Arc;

use buttress::Filesystem;
use buttress::costs::Progress;
use parking_lot::{Condvar, Mutex};
use rustix::io::Errno;

use super::control::QuotaCount;
use super::engine::errno;
use super::store::Answer;

/// The counting, if there is one, or what has become of the last one.
#[derive(Default)]
pub(super) struct Rescan(Arc<Shared>);

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    count: QuotaCount,
    /// The mount ends.
    given_up: bool,
}

impl Rescan {
    /// How far it is.
    pub fn state(&self) -> QuotaCount {
        self.0.state.lock().count
    }

    /// Begins to count.
    pub fn begin(&self, fs: &Filesystem) -> Answer<()> {
        self.0.begin()?;
        let (shared, counted) = (Arc::clone(&self.0), fs.clone());
        let thread = std::thread::Builder::new().name("buttress-quotas".to_owned());
        if thread.spawn(move || shared.count(counted)).is_err() {
            // Without a thread whoever asks waits for it.
            self.0.count(fs.clone());
        }
        Ok(())
    }

    /// Waits until nobody counts.
    pub fn wait(&self) -> Answer<()> {
        let mut state = self.0.state.lock();
        while state.count.running {
            self.0.changed.wait(&mut state);
        }
        state.count.failed.map_or(Ok(()), Err)
    }

    /// Ends what runs, soon, and has nothing begin.
    pub fn give_up(&self) {
        self.0.state.lock().given_up = true;
    }
}

impl Shared {
    fn begin(&self) -> Answer<()> {
        let mut state = self.state.lock();
        if state.count.running {
            return Err(Errno::INPROGRESS);
        }
        if state.given_up {
            return Err(Errno::INTR);
        }
        // This is how it has failed where the thread panics.
        let failed = Some(Errno::IO);
        state.count = QuotaCount { running: true, progress: None, failed };
        Ok(())
    }

    fn count(&self, fs: Filesystem) {
        let _over = Over(self);
        let counted = fs.count_quotas(|progress| self.is_at(progress));
        // Nobody uses it any more when it is over.
        drop(fs);
        self.state.lock().count.failed = counted.map_err(errno).err();
    }

    /// Notes how far it is; whether it is to go on.
    fn is_at(&self, progress: Progress) -> bool {
        let mut state = self.state.lock();
        state.count.progress = Some(progress);
        !state.given_up
    }
}

/// Says that a counting is over, also where it panics.
struct Over<'a>(&'a Shared);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.state.lock().count.running = false;
        self.0.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_at_a_time_and_none_at_the_end() {
        let rescan = Rescan::default();
        assert!(!rescan.state().running && rescan.wait().is_ok());
        rescan.0.begin().unwrap();
        assert_eq!(rescan.0.begin(), Err(Errno::INPROGRESS));
        assert!(rescan.state().running);
        drop(Over(&rescan.0));
        // It has not said how it went.
        assert_eq!(rescan.wait(), Err(Errno::IO));
        rescan.give_up();
        assert_eq!(rescan.0.begin(), Err(Errno::INTR));
    }
}
