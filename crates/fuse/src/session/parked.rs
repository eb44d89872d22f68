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
//! * **syncfs(2) does not wait.** It returns when the pages are queued (`AS_NO_DATA_INTEGRITY`). A statfs(2) after it is queued behind
//!   them, so when that is answered they have been received; all but those beyond the number of requests that the
//!   kernel lets wait at once, for which it is asked again until none comes any more. [`super::places`] knows when
//!   what was received is done.
//! * **No lock is needed.** The caller of setxattr(2) holds the lock of the inode that he named. Writing pages takes none, nor does
//!   opening the top directory.

use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use parking_lot::Mutex;
use rustix::io::Errno;

use super::Shared;
use crate::protocol::channel::{Reply, Request};
use crate::protocol::mounts;

/// How often the kernel is asked whether more comes. Where others go on to write through mappings without end, what is theirs
/// comes, too; but in the order in which it was queued.
const ROUNDS_MAX: u32 = 1000;

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
    /// Sets a request aside until the kernel has sent what it keeps. It counts as being handled. `false` if this thread is one
    /// too many now.
    pub(super) fn park(self: &Arc<Self>, request: &Request<'_>) -> bool {
        let mut state = self.parked.state.lock();
        state.waiting.push((request.over(&[]), request.body().rest().to_vec()));
        if std::mem::replace(&mut state.seen_to, true) {
            return true;
        }
        drop(state);
        let shared = Arc::clone(self);
        let thread = std::thread::Builder::new().name("buttress-parked".to_owned());
        thread.spawn(move || shared.see_to_parked()).is_ok() || self.see_to_parked_here()
    }

    /// No thread is to be had: this reader sees to what waits, if another one reads meanwhile. Where it is the last, it would
    /// wait for its own answers; an error is better then.
    fn see_to_parked_here(self: &Arc<Self>) -> bool {
        if self.crew.leave() {
            self.crew.not_started();
        }
        if self.crew.is_read() {
            self.see_to_parked();
        } else {
            while let Some(requests) = self.take_parked() {
                for (request, _) in requests {
                    Reply::new(&self.channel, &request).refuse(Errno::AGAIN);
                    self.active.fetch_sub(1, Ordering::SeqCst);
                }
            }
        }
        self.crew.come_back()
    }

    /// What waits now; when nothing does, nobody sees to it any more.
    fn take_parked(&self) -> Option<Vec<(Request<'static>, Vec<u8>)>> {
        let mut state = self.parked.state.lock();
        state.seen_to = !state.waiting.is_empty();
        state.seen_to.then(|| std::mem::take(&mut state.waiting))
    }

    fn see_to_parked(self: &Arc<Self>) {
        while let Some(requests) = self.take_parked() {
            self.write_back();
            for (request, body) in requests {
                self.serve(&request.over(&body));
                self.active.fetch_sub(1, Ordering::SeqCst);
            }
        }
    }

    /// Has the kernel send what it keeps for files that are open or mapped, or were; returns when that is written.
    pub(super) fn write_back(&self) {
        let found = self.device.and_then(|device| mounts::of_device(device).ok());
        let Some(place) = found.and_then(|(places, _covered)| places.into_iter().next()) else {
            return eprintln!("buttress: {}: not to be reached", self.mountpoint.display());
        };
        run("sync", &place.mountpoint);
        for _ in 0..ROUNDS_MAX {
            let before = self.places.kept();
            run("stat", &place.mountpoint);
            self.places.wait_for_data();
            if self.places.kept() == before {
                return;
            }
        }
    }
}

/// Runs `sync` or `stat` for the filesystem that a path leads to. This process may be killed meanwhile, and the mount with it.
fn run(program: &str, path: &Path) {
    let mut command = Command::new(program);
    command.arg("--file-system").arg(path);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    match command.status() {
        Ok(status) if status.success() => {}
        Ok(status) => eprintln!("buttress: {program}: {status}"),
        Err(error) => eprintln!("buttress: {program}: {error}"),
    }
}
