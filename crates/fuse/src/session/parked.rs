//! Requests that are about everything written before them: a snapshot, a commit, a subvolume that becomes read-only.
//!
//! Programs write through shared mappings and, with `-o writeback_cache`, by write(2) into pages that the kernel sends later.
//! The kernel knows nothing of such a request's meaning, so it is set aside, the kernel is made to send all it keeps, and then
//! the request is handled. Three things are to be seen to:
//!
//! * **No thread waits.** The kernel sends those pages as requests, which the readers must be free to answer. All requests that
//!   came meanwhile are set aside together, and one thread sees to them.
//! * **Another process asks.** It is sync(1) that asks, by syncfs(2). A process that waits in the kernel for its own answers
//!   cannot be killed; it and the lock on its image would stay until the next boot. Telling the kernel to drop its pages
//!   (`FUSE_NOTIFY_INVAL_INODE`), which sends them first, would make this process wait so.
//! * **No lock is needed.** The caller of setxattr(2) holds the lock of the inode that he named. Writing pages takes none, nor does
//!   opening the top directory.

use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use parking_lot::Mutex;

use super::Shared;
use crate::protocol::channel::Request;
use crate::protocol::mounts;

/// What waits.
#[derive(Default)]
pub(super) struct Parked {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Requests and their bodies.
    waiting: Vec<(Request<'static>, Vec<u8>)>,
    /// A thread sees to them.
    seen_to: bool,
}

impl Shared {
    /// Sets a request aside until the kernel has sent what it keeps. It counts as being handled.
    pub(super) fn park(self: &Arc<Self>, request: &Request<'_>) {
        let mut state = self.parked.state.lock();
        state.waiting.push((request.over(&[]), request.body().rest().to_vec()));
        if std::mem::replace(&mut state.seen_to, true) {
            return;
        }
        drop(state);
        let shared = Arc::clone(self);
        let thread = std::thread::Builder::new().name("buttress-parked".to_owned());
        if thread.spawn(move || shared.see_to_parked()).is_err() {
            // Another reader reads on meanwhile.
            self.see_to_parked();
        }
    }

    fn see_to_parked(self: &Arc<Self>) {
        loop {
            let requests = {
                let mut state = self.parked.state.lock();
                state.seen_to = !state.waiting.is_empty();
                std::mem::take(&mut state.waiting)
            };
            if requests.is_empty() {
                return;
            }
            self.write_back();
            for (request, body) in requests {
                self.serve(&request.over(&body));
                self.active.fetch_sub(1, Ordering::SeqCst);
            }
        }
    }

    /// Has the kernel send what it keeps for files that are open or mapped, or were.
    pub(super) fn write_back(&self) {
        let places = self.device.and_then(|device| mounts::of_device(device).ok());
        let Some(place) = places.and_then(|(places, _covered)| places.into_iter().next()) else {
            return eprintln!("buttress: {}: not to be reached", self.mountpoint.display());
        };
        let mut sync = Command::new("sync");
        sync.arg("--file-system").arg(&place.mountpoint).stdin(Stdio::null()).stdout(Stdio::null());
        match sync.status() {
            Ok(status) if status.success() => {}
            Ok(status) => eprintln!("buttress: sync: {status}"),
            Err(error) => eprintln!("buttress: sync: {error}"),
        }
    }
}
