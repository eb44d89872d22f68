//! What is done before a signal ends the command: a file that is not whole yet goes, and what is whole is kept.
//!
//! A command that makes one thing takes it away ([`Removal`]). One that makes many has the first signal noted ([`hold`]), looks for it
//! between two of them ([`signal`]), and ends in order; the second signal ends it at once.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use rustix::io::Errno;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;
use signal_hook::iterator::{Handle, Signals};
use signal_hook::low_level::emulate_default_handler;

static HELD: OnceLock<Option<Held>> = OnceLock::new();

/// Signals that are noted.
struct Held {
    /// The one that has come, or 0.
    signal: Arc<AtomicUsize>,
    /// Whether the next one ends the command.
    at_once: Arc<AtomicBool>,
}

impl Held {
    /// Nothing is noted yet.
    fn begin() -> io::Result<Held> {
        let held = Held { signal: Arc::default(), at_once: Arc::new(AtomicBool::new(true)) };
        for signal in heeded() {
            flag::register_conditional_default(signal, held.at_once.clone())?;
            let number = usize::try_from(signal).unwrap_or_default();
            flag::register_usize(signal, held.signal.clone(), number)?;
            flag::register(signal, held.at_once.clone())?;
        }
        Ok(held)
    }

    fn signal(&self) -> Option<u8> {
        u8::try_from(self.signal.load(Ordering::SeqCst)).ok().filter(|signal| *signal != 0)
    }
}

/// The signals that end a command, but those that whoever started it wants ignored, as nohup(1) does.
fn heeded() -> Vec<i32> {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    let is_heeded = |signal: &i32| ignored.unwrap_or_default() >> (signal - 1) & 1 == 0;
    [SIGTERM, SIGINT, SIGHUP].into_iter().filter(is_heeded).collect()
}

/// From here on the first signal is noted, for those who look for it. Where that cannot be, signals do what they always do.
pub fn hold() {
    if let Some(held) = HELD.get_or_init(|| Held::begin().ok())
        && held.signal().is_none()
    {
        held.at_once.store(false, Ordering::SeqCst);
    }
}

/// From here on a signal ends the command, which has nothing that could be kept.
pub fn let_go() {
    if let Some(Some(held)) = HELD.get() {
        held.at_once.store(true, Ordering::SeqCst);
    }
}

/// The signal that was noted.
pub fn signal() -> Option<u8> {
    HELD.get()?.as_ref()?.signal()
}

/// An error once a signal was noted.
pub fn check() -> Result<(), Errno> {
    if signal().is_some() { Err(Errno::INTR) } else { Ok(()) }
}

/// What a signal finds.
enum Made {
    Nothing,
    /// A file that is not whole yet.
    Part(PathBuf),
    /// All is done: the command ends well, and nobody may hear that of one that has lost its file.
    Complete,
}

impl Made {
    /// What a signal does to it; whether the command ends by the signal.
    fn interrupt(&self) -> bool {
        match self {
            Made::Nothing => {}
            // What is gone is gone.
            Made::Part(path) => drop(std::fs::remove_file(path)),
            Made::Complete => return false,
        }
        true
    }
}

/// While it lives, a signal that ends the command removes what was made first.
pub struct Removal {
    made: Arc<Mutex<Made>>,
    signals: Option<Handle>,
}

impl Removal {
    /// Nothing was made yet. Where no thread is to be had, signals do what they always do.
    pub fn watch() -> Removal {
        let made = Arc::new(Mutex::new(Made::Nothing));
        let (tell, told) = channel();
        let found = made.clone();
        let watch = move || {
            let Ok(mut signals) = Signals::new(heeded()) else { return };
            let _received = tell.send(signals.handle());
            if let Some(signal) = signals.forever().next() {
                // Held to the end: who has finished meanwhile waits, and ends here, too.
                let found = found.lock().unwrap_or_else(PoisonError::into_inner);
                if found.interrupt() {
                    let _ends_here = emulate_default_handler(signal);
                }
            }
        };
        let started = std::thread::Builder::new().spawn(watch);
        Removal { made, signals: started.ok().and_then(|_| told.recv().ok()) }
    }

    /// Makes a file. A signal meanwhile waits until it is there.
    pub fn making<T, E>(&self, path: &Path, make: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        let done = make()?;
        *made = Made::Part(path.to_owned());
        Ok(done)
    }
}

impl Drop for Removal {
    fn drop(&mut self) {
        *self.made.lock().unwrap_or_else(PoisonError::into_inner) = Made::Complete;
        if let Some(signals) = &self.signals {
            signals.close();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unwatched() -> Removal {
        Removal { made: Arc::new(Mutex::new(Made::Nothing)), signals: None }
    }

    #[test]
    fn what_is_not_whole_goes_with_a_signal() {
        let place = tempfile::TempDir::new().unwrap();
        let path = place.path().join("part");
        let removal = unwatched();
        assert!(removal.made.lock().unwrap().interrupt());
        removal.making(&path, || std::fs::write(&path, "x")).unwrap();
        assert!(removal.made.lock().unwrap().interrupt());
        assert!(!path.exists());
        let failed = removal.making(&path, || std::fs::write(place.path(), "x"));
        assert!(failed.is_err());
    }

    /// The signal may come when the last step is done, and be looked at only later.
    #[test]
    fn what_is_whole_stays_whatever_comes_then() {
        let place = tempfile::TempDir::new().unwrap();
        let path = place.path().join("whole");
        let removal = unwatched();
        removal.making(&path, || std::fs::write(&path, "x")).unwrap();
        let made = removal.made.clone();
        drop(removal);
        assert!(!made.lock().unwrap().interrupt());
        assert!(path.exists());
    }
}
