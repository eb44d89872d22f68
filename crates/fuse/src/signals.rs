//! TERM, INT and HUP end a mount as an unmount does: everything acknowledged is committed, and the
//! process exits with 0.
//!
//! The thread that watches for them is started before the mount is attached and before those that
//! read requests: they can be fewer where the system has few threads to give, and it cannot.

use std::io;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::{Handle, Signals};

use crate::session::Stopper;

/// While it lives, signals stop the session; dropping it lets go of the watching thread.
pub struct SignalWatch {
    handle: Handle,
    thread: Option<JoinHandle<()>>,
}

/// Signals that are kept from ending the process, and wait for a session to end in its place.
pub struct HeldSignals {
    // Goes first, so that the thread does not wait for it while it is waited for.
    stopper: Sender<Stopper>,
    watch: SignalWatch,
}

impl HeldSignals {
    /// Holds the signals from here on. To be called before a mount is attached, as from then on
    /// only an orderly end takes it off again.
    pub fn hold() -> io::Result<Self> {
        let signals = Signals::new([SIGTERM, SIGINT, SIGHUP])?;
        let handle = signals.handle();
        let (stopper, given) = channel();
        let thread = std::thread::Builder::new()
            .name("buttress-signal".to_owned())
            .spawn(move || watch(signals, &given))
            .map_err(|error| {
                let why = format!("no thread to watch for signals could be started: {error}");
                io::Error::new(error.kind(), why)
            })?;
        Ok(Self { watch: SignalWatch { handle, thread: Some(thread) }, stopper })
    }

    /// Stops the session when a signal comes, or has come since they were held.
    pub fn stop(self, stopper: Stopper) -> io::Result<SignalWatch> {
        let Self { watch, stopper: give } = self;
        let _until_the_watch_ends = give.send(stopper);
        Ok(watch)
    }
}

fn watch(mut signals: Signals, given: &Receiver<Stopper>) {
    let mut stopper = None;
    for _signal in signals.forever() {
        if stopper.is_none() {
            // None comes where there is no mount after all.
            stopper = given.recv().ok();
        }
        let Some(stopper) = &stopper else { return };
        if let Err(error) = stopper.stop() {
            eprintln!("buttress: {error}");
        }
    }
}

impl Drop for SignalWatch {
    fn drop(&mut self) {
        self.handle.close();
        if let Some(thread) = self.thread.take() {
            let _reported_by_the_hook = thread.join();
        }
    }
}
