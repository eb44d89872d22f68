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

/// Begins to watch for signals on behalf of a session.
pub fn stop_on_signals(stopper: Stopper) -> io::Result<SignalWatch> {
    let mut signals = Signals::new([SIGTERM, SIGINT, SIGHUP])?;
    let handle = signals.handle();
    let watch = move || {
        for _signal in signals.forever() {
            if let Err(error) = stopper.stop() {
                eprintln!("buttress: {error}");
            }
        }
    };
    let thread = std::thread::Builder::new().name("buttress-signal".to_owned()).spawn(watch)?;
    Ok(SignalWatch { handle, thread: Some(thread) })
}

impl Drop for SignalWatch {
    fn drop(&mut self) {
        self.handle.close();
        if let Some(thread) = self.thread.take() {
            let _reported_by_the_hook = thread.join();
        }
    }
}
