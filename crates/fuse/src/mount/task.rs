//! What somebody asks a mount for and takes long: quotas counted, block groups balanced, the device made smaller. Each by a thread of its own, as it
//! takes as long as it takes, and whoever waits for an answer of a mount cannot be killed. The end of the mount ends it, too, and waits until it has:
//! from then on the device is somebody else's.

use std::ops::{ControlFlow, Range};
use std::sync::{Arc, mpsc};

use buttress::costs::Progress;
use buttress::{Balance, BalanceStop, Balanced, Balancing, Emptying, Filesystem};
use parking_lot::{Condvar, Mutex};
use rustix::io::Errno;

use super::control::{AskTrim, QuotaCount, ResizeFacts, TrimFacts};
use super::engine::errno;
use super::store::Answer;

/// What a mount may have under way.
#[derive(Clone, Default)]
pub struct Tasks {
    /// Quotas are counted, because somebody asks for it. (Those that are wrong without anybody's asking are counted by the filesystem itself.)
    pub(super) rescan: Task<Progress, ()>,
    /// Block groups are written anew.
    pub(super) balance: Task<Balancing, Balanced>,
    /// The device becomes larger or smaller.
    pub(super) resize: Task<Emptying, ()>,
    /// The device is told what is free.
    trim: Task<u64, u64>,
}

impl Tasks {
    /// Begins to count quotas, and switches them on.
    pub(super) fn count_quotas(&self, fs: &Filesystem) -> Answer<()> {
        self.rescan
            .begin("quotas", fs, |fs, told| fs.count_quotas(|at| told(at).is_none()).map_err(errno))
    }

    /// How far that is.
    pub(super) fn quota_count(&self) -> QuotaCount {
        let TaskState { running, progress, ended, .. } = self.rescan.state();
        QuotaCount { running, progress, failed: ended.and_then(Answer::err) }
    }

    /// Begins a balance.
    pub(super) fn start_balance(&self, fs: &Filesystem, balance: Balance) -> Answer<()> {
        if fs.unfinished_balance().map_err(errno)?.is_some() || self.resize.state().running {
            return Err(Errno::INPROGRESS);
        }
        fs.check_balance(&balance).map_err(errno)?;
        self.balance.begin("balance", fs, move |fs, told| {
            fs.balance(&balance, |at| flow(told(at))).map_err(errno)
        })
    }

    /// Goes on with the one that was paused or interrupted.
    pub fn resume_balance(&self, fs: &Filesystem) -> Answer<()> {
        if self.resize.state().running {
            return Err(Errno::INPROGRESS);
        }
        let unfinished = fs.unfinished_balance().map_err(errno)?.ok_or(Errno::NOTCONN)?;
        fs.check_balance(&unfinished).map_err(errno)?;
        self.balance
            .begin("balance", fs, |fs, told| fs.resume_balance(|at| flow(told(at))).map_err(errno))
    }

    /// Waits until no balance runs; what came of the last one.
    pub fn wait_for_balance(&self) -> Option<Answer<Balanced>> {
        self.balance.wait()
    }

    /// Begins to give the device another size.
    pub(super) fn resize(&self, fs: &Filesystem, size: u64) -> Answer<()> {
        if self.balance.state().running {
            return Err(Errno::INPROGRESS);
        }
        self.resize.begin("resize", fs, move |fs, told| {
            fs.resize(size, |at| told(at).is_none()).map_err(errno)
        })
    }

    /// How it is with the size of the device.
    pub(super) fn resize_facts(&self, fs: &Filesystem) -> ResizeFacts {
        ResizeFacts {
            task: self.resize.state(),
            size: fs.device_size(),
            most: fs.device_size_max(),
            least: fs.device_size_min(),
        }
    }

    /// Does what is asked for about telling the device what is free.
    pub(super) fn trim(&self, fs: &Filesystem, asked: AskTrim) -> Answer<TrimFacts> {
        match asked {
            AskTrim::State => {}
            AskTrim::Begin(start, end, min) => self.begin_trim(fs, (start..end, min), |_| {})?,
            AskTrim::Cancel => self.trim.stop(BalanceStop::Cancel)?,
            AskTrim::Do(start, end, min) => return self.whole_trim(fs, start..end, min),
        }
        Ok(self.trim.state())
    }

    fn begin_trim(
        &self,
        fs: &Filesystem,
        (range, min): (Range<u64>, u64),
        ended: impl FnOnce(&Answer<u64>) + Send + 'static,
    ) -> Answer<()> {
        self.trim.begin("trim", fs, move |fs, told| {
            let done = fs.trim(range, min, |bytes| told(bytes).is_none()).map_err(errno);
            ended(&done);
            done
        })
    }

    /// One that begins when others are done, and what came of it.
    fn whole_trim(&self, fs: &Filesystem, range: Range<u64>, min: u64) -> Answer<TrimFacts> {
        let (tell, told) = mpsc::channel();
        loop {
            let tell = tell.clone();
            let ended = move |done: &Answer<u64>| {
                // He who waits is there as long as the answer is not.
                let _told = tell.send(*done);
            };
            match self.begin_trim(fs, (range.clone(), min), ended) {
                Err(Errno::INPROGRESS) => drop(self.trim.wait()),
                begun => break begun?,
            }
        }
        drop(tell);
        // Who panics says nothing.
        let ended = Some(told.recv().unwrap_or(Err(Errno::IO)));
        Ok(TaskState { running: false, progress: None, stop: None, ended })
    }

    /// Ends what runs, soon, and has nothing begin.
    pub(super) fn give_up(&self) {
        self.rescan.give_up();
        self.balance.give_up();
        self.resize.give_up();
        self.trim.give_up();
    }

    /// The same, and waits until nothing runs.
    pub fn end(&self) {
        self.give_up();
        self.rescan.wait();
        self.balance.wait();
        self.resize.wait();
        self.trim.wait();
    }
}

fn flow(stop: Option<BalanceStop>) -> ControlFlow<BalanceStop> {
    stop.map_or(ControlFlow::Continue(()), ControlFlow::Break)
}

/// Something that runs, or what has become of the last time.
pub(super) struct Task<P, R>(Arc<Shared<P, R>>);

impl<P, R> Clone for Task<P, R> {
    fn clone(&self) -> Self {
        Task(self.0.clone())
    }
}

impl<P, R> Default for Task<P, R> {
    fn default() -> Self {
        let state = TaskState { running: false, progress: None, stop: None, ended: None };
        Task(Arc::new(Shared { state: Mutex::new((state, false)), changed: Condvar::new() }))
    }
}

struct Shared<P, R> {
    /// And whether the mount ends.
    state: Mutex<(TaskState<P, R>, bool)>,
    changed: Condvar,
}

/// How far a task is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskState<P, R> {
    /// Whether it runs.
    pub running: bool,
    /// How far it is, or was.
    pub progress: Option<P>,
    /// It has been asked to end.
    pub stop: Option<BalanceStop>,
    /// What came of the last time, if there was one and none runs.
    pub ended: Option<Answer<R>>,
}

impl<P: Clone + Send + 'static, R: Clone + Send + 'static> Task<P, R> {
    /// How far it is.
    pub fn state(&self) -> TaskState<P, R> {
        self.0.state.lock().0.clone()
    }

    /// Begins. `work` tells how far it is, and hears whether it is to end. EAGAIN where the system refuses a thread for it: whoever asks cannot be
    /// killed while he waits, and a mount that goes on with something has not begun to serve.
    pub fn begin(
        &self,
        name: &str,
        fs: &Filesystem,
        work: impl FnOnce(&Filesystem, &mut dyn FnMut(P) -> Option<BalanceStop>) -> Answer<R>
        + Send
        + 'static,
    ) -> Answer<()> {
        self.0.begin()?;
        let (shared, fs) = (Arc::clone(&self.0), fs.clone());
        let thread = std::thread::Builder::new().name(format!("buttress-{name}"));
        if thread.spawn(move || shared.run(fs, work)).is_err() {
            drop(Over { shared: &self.0, ended: Some(Err(Errno::AGAIN)) });
            return Err(Errno::AGAIN);
        }
        Ok(())
    }

    /// Asks what runs to end.
    pub fn stop(&self, why: BalanceStop) -> Answer<()> {
        let mut state = self.0.state.lock();
        if !state.0.running {
            return Err(Errno::NOTCONN);
        }
        // Who has cancelled it is not taken at his word by one who pauses it.
        if state.0.stop != Some(BalanceStop::Cancel) {
            state.0.stop = Some(why);
        }
        Ok(())
    }

    /// Waits until it does not run.
    pub fn wait(&self) -> Option<Answer<R>> {
        let mut state = self.0.state.lock();
        while state.0.running {
            self.0.changed.wait(&mut state);
        }
        state.0.ended.clone()
    }

    fn give_up(&self) {
        self.0.state.lock().1 = true;
    }
}

impl<P, R> Shared<P, R> {
    fn begin(&self) -> Answer<()> {
        let mut state = self.state.lock();
        let (task, given_up) = &mut *state;
        if task.running {
            return Err(Errno::INPROGRESS);
        }
        if *given_up {
            return Err(Errno::INTR);
        }
        *task = TaskState { running: true, progress: None, stop: None, ended: None };
        Ok(())
    }

    fn run<F>(
        &self,
        fs: F,
        work: impl FnOnce(&F, &mut dyn FnMut(P) -> Option<BalanceStop>) -> Answer<R>,
    ) {
        // This is how it has failed where the thread panics.
        let mut over = Over { shared: self, ended: Some(Err(Errno::IO)) };
        // Nobody uses it any more when it is over, however it ends: what comes last goes first.
        let fs = fs;
        over.ended = Some(work(&fs, &mut |progress| self.is_at(progress)));
    }

    /// Notes how far it is; whether it is to end. The end of the mount is a pause.
    fn is_at(&self, progress: P) -> Option<BalanceStop> {
        let mut state = self.state.lock();
        let (task, given_up) = &mut *state;
        task.progress = Some(progress);
        task.stop.or(given_up.then_some(BalanceStop::Pause))
    }
}

/// Says that a task is over, also where it panics.
struct Over<'a, P, R> {
    shared: &'a Shared<P, R>,
    ended: Option<Answer<R>>,
}

impl<P, R> Drop for Over<'_, P, R> {
    fn drop(&mut self) {
        let mut state = self.shared.state.lock();
        (state.0.running, state.0.ended) = (false, self.ended.take());
        drop(state);
        self.shared.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_at_a_time_and_none_at_the_end() {
        let task = Task::<u32, u64>::default();
        assert!(!task.state().running && task.wait().is_none());
        assert_eq!(task.stop(BalanceStop::Pause), Err(Errno::NOTCONN));
        task.0.begin().unwrap();
        assert_eq!(task.0.begin(), Err(Errno::INPROGRESS));
        assert!(task.state().running);
        assert_eq!(task.0.is_at(7), None);
        task.stop(BalanceStop::Cancel).unwrap();
        task.stop(BalanceStop::Pause).unwrap();
        assert_eq!((task.0.is_at(8), task.state().progress), (Some(BalanceStop::Cancel), Some(8)));
        drop(Over { shared: &task.0, ended: Some(Ok(5)) });
        assert_eq!(task.wait(), Some(Ok(5)));
        // What was asked of the last one is nothing to the next.
        task.0.begin().unwrap();
        assert_eq!(task.0.is_at(1), None);
        task.give_up();
        assert_eq!(task.0.is_at(2), Some(BalanceStop::Pause));
        drop(Over { shared: &task.0, ended: Some(Err(Errno::INTR)) });
        assert_eq!(task.0.begin(), Err(Errno::INTR));
    }

    /// Stands for the filesystem, and notes whether the task still ran when it was let go of.
    struct Used(Task<u32, u64>, std::sync::mpsc::Sender<bool>);

    impl Drop for Used {
        fn drop(&mut self) {
            let _ = self.1.send(self.0.state().running);
        }
    }

    #[test]
    fn the_filesystem_is_let_go_of_before_a_task_is_over_though_it_panics() {
        let (task, (note, noted)) = (Task::<u32, u64>::default(), std::sync::mpsc::channel());
        let used = || Used(task.clone(), note.clone());
        task.0.begin().unwrap();
        task.0.run(used(), |_, _| Ok(5));
        assert_eq!((noted.recv(), task.wait()), (Ok(true), Some(Ok(5))));
        task.0.begin().unwrap();
        let (shared, used) = (task.0.clone(), used());
        let run = move || shared.run(used, |_, _| std::panic::panic_any("as work may"));
        assert!(std::thread::spawn(run).join().is_err());
        assert_eq!((noted.recv(), task.wait()), (Ok(true), Some(Err(Errno::IO))));
    }
}
