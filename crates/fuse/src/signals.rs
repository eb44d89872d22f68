//! TERM, INT and HUP end a mount as an unmount does: everything acknowledged is committed, and the
//! process exits with 0.

use std::io;
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
    signals: Signals,
}

impl HeldSignals {
    /// Holds the signals from here on. To be called before a mount is attached, as from then on
    /// only an orderly end takes it off again.
    pub fn hold() -> io::Result<Self> {
        Ok(Self { signals: Signals::new([SIGTERM, SIGINT, SIGHUP])? })
    }

    /// Stops the session when a signal comes, or has come since they were held.
    pub fn stop(mut self, stopper: Stopper) -> io::Result<SignalWatch> {
        let handle = self.signals.handle();
        let watch = move || {
            for _signal in self.signals.forever() {
                if let Err(error) = stopper.stop() {
                    eprintln!("buttress: {error}");
                }
            }
        };
        let thread = std::thread::Builder::new().name("buttress-signal".to_owned()).spawn(watch)?;
        Ok(SignalWatch { handle, thread: Some(thread) })
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
