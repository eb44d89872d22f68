//! What is done before a signal ends the command: a file that is not whole yet goes.

use std::path::{Path, PathBuf};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, PoisonError};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::{Handle, Signals};
use signal_hook::low_level::emulate_default_handler;

/// What a signal finds.
enum Made {
    Nothing,
    /// A file that is not whole yet.
    Part(PathBuf),
    /// All is done: the command ends well, and nobody may hear that of one that has lost its file.
    Whole,
}

impl Made {
    /// What a signal does to it; whether the command ends by the signal.
    fn interrupt(&self) -> bool {
        match self {
            Made::Nothing => {}
            // What is gone is gone.
            Made::Part(path) => drop(std::fs::remove_file(path)),
            Made::Whole => return false,
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
            let Ok(mut signals) = Signals::new([SIGTERM, SIGINT, SIGHUP]) else { return };
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
        *self.made.lock().unwrap_or_else(PoisonError::into_inner) = Made::Whole;
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
