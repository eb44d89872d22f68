//! Requests that are about everything written before them: a snapshot, a commit, a subvolume that becomes read-only, a look past a hole of a file.
//!
//! Programs write through shared mappings and, with `-o writeback_cache`, by write(2) into pages that the kernel sends later.
//! The kernel knows nothing of such a request's meaning, so it is set aside, the kernel is made to send all it keeps, and then
//! the request is handled. Five things are to be seen to:
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
//! * **syncfs(2) may leave pages.** Newer kernels do no more for FUSE than start the writing that may be put off, and put it off where many
//!   requests wait (`SB_I_NO_DATA_INTEGRITY`); the number from which they do so is as high as they let us set it. So it is asked again until
//!   it brings nothing, four times at most: who writes through a mapping without end always brings something, and is not waited for.
//! * **No lock is needed.** The caller of setxattr(2) holds the lock of the inode that he named. Writing pages takes none, nor does
//!   opening the top directory. Looking for the program might: it is opened before there is a mount.
//!
//! Pages that find no room or no way to the disk are lost, as the kernel keeps none that were refused: the next such request is refused, too, with `ENOSPC` or `EIO`, and
//! all that wait at the same time; what else there was is committed all the same. (The kernel may have sent them long before: the end of a child that a program had forked is
//! enough.) What was refused by a rule or a limit is said by msync(2) and fsync(2) alone.
//!
//! What stays open: a page that the kernel is about to queue when sync(1) comes by, in the hands of a program that waits for a processor. One that was in fsync(2),
//! or cut that very file, keeps back what others store there until it runs again (`fuse_set_nowrite`).
//!
//! Where the kernel cannot be asked (no program, no process to be had, no path to the mount) or does not come to an end, the
//! request is refused with `EIO`: it promises what is not known. (`EAGAIN` would come out of setxattr(2) as `EOPNOTSUPP`.)

use std::env;
use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use super::rings::processors_online;
use super::{RefusedPages, Shared};
use crate::protocol::abi::opcode;
use crate::protocol::channel::{Reply, Request};
use crate::protocol::mounts;

/// How often the kernel is asked whether more comes. At least as many requests come each time as it lets wait at once.
const ROUNDS_MAX: u32 = 10_000;
/// Passes in a row in which nothing comes: where the kernel holds requests back, the next one comes only after one has been
/// answered, which may be at the end of a pass.
const QUIET: u32 = 2;
/// How often it is looked whether nothing came, before processes are started to find that out.
const LOOKS: u32 = 4;
/// Pages by which the kernel's count is too low at most for each processor, which counts for itself first.
const UNCOUNTED: u64 = 125;
/// How often sync(1) is asked at most, as long as it brings something: where others go on to write through mappings without end, it always
/// does. Each time it sends all that was there before, unless more requests wait than the number from which the kernel puts writing off.
const SYNCS_MAX: u32 = 4;
/// How often sync(1) may fail. Pages that were refused earlier make it fail once: whoever wrote those is told by msync(2).
const TRIES: u32 = 3;

/// A request, its body, and of which refused pages somebody had been told when it came.
type Waiting = (Request<'static>, Vec<u8>, RefusedPages);

/// What waits.
#[derive(Default)]
pub(super) struct Parked {
    state: Mutex<State>,
    /// Why the kernel could not be made to write, as it was told last: anybody may ask again and again.
    told: Mutex<String>,
}

#[derive(Default)]
struct State {
    waiting: Vec<Waiting>,
    /// A thread sees to them.
    seen_to: bool,
}

impl Shared {
    /// Sets a request aside until the kernel has sent what it keeps. It counts as being handled. `false` if this thread is one
    /// too many now.
    pub(super) fn park(self: &Arc<Self>, request: &Request<'_>) -> bool {
        let mut state = self.parked.state.lock();
        let told = self.handler.pages_told_of();
        state.waiting.push((request.over(&[]), request.body().rest().to_vec(), told));
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
            self.finish_parked(|| Err(Errno::IO));
        }
        self.crew.come_back()
    }

    /// What waits now; when nothing does, nobody sees to it any more.
    fn take_parked(&self) -> Option<Vec<Waiting>> {
        let mut state = self.parked.state.lock();
        state.seen_to = !state.waiting.is_empty();
        state.seen_to.then(|| std::mem::take(&mut state.waiting))
    }

    fn see_to_parked(self: &Arc<Self>) {
        self.finish_parked(|| self.write_back());
    }

    /// Handles what waits once `write_back` is done, or refuses it with its error.
    fn finish_parked(&self, write_back: impl Fn() -> Result<(), Errno>) {
        while let Some(requests) = self.take_parked() {
            let written = write_back();
            for (request, body, told) in requests {
                let request = request.over(&body);
                let reply = Reply::new(&self.channel, &request);
                self.handle_after((told, written), &request, reply);
                self.active.fetch_sub(1, Ordering::SeqCst);
            }
        }
    }

    /// Handles a request that has waited until what the kernel keeps is `written`; so many refused pages somebody had been told of when it came.
    pub(super) fn handle_after(
        &self,
        (told, written): (RefusedPages, Result<(), Errno>),
        request: &Request<'_>,
        reply: Reply<'_>,
    ) {
        // It promises nothing, and who is told of refused pages is somebody else.
        if request.opcode() == opcode::LSEEK {
            return match written {
                Err(_) if !self.stopping.load(Ordering::SeqCst) => {
                    self.handler.handle_unwritten(request, reply);
                }
                _ => self.serve(request, reply),
            };
        }
        match self.unless_refused(told, written) {
            Ok(()) => self.serve(request, reply),
            Err(errno) => reply.refuse(errno),
        }
    }

    /// What has come of writing what the kernel keeps, for a request that came when so many refused pages were `told` of.
    fn unless_refused(&self, told: RefusedPages, written: Result<(), Errno>) -> Result<(), Errno> {
        let refused = self.handler.refused_pages();
        let errno = match refused.otherwise > told.otherwise {
            true => Errno::IO,
            false if refused.no_room > told.no_room => Errno::NOSPC,
            false => return written,
        };
        self.handler.tell_of_pages(refused);
        Err(errno)
    }

    /// Has the kernel send what it keeps for files that are open or mapped, or were; returns when that is written.
    pub(super) fn write_back(&self) -> Result<(), Errno> {
        self.write_back_or_say().map_err(|why| {
            let mut told = self.parked.told.lock();
            if *told != why {
                self.tell(&format!("what is mapped: {why}"));
                *told = why;
            }
            Errno::IO
        })
    }

    fn write_back_or_say(&self) -> Result<(), String> {
        let place = self.place()?;
        for _ in 0..SYNCS_MAX {
            let before = self.places.kept();
            self.sync_once(&place)?;
            if self.places.kept() == before {
                break;
            }
        }
        Ok(())
    }

    fn sync_once(&self, place: &Path) -> Result<(), String> {
        let kept = || self.places.kept();
        let (before, in_hand) = (kept(), self.places.has_kept_in_hand());
        let mut sync = self.run_sync(place);
        for _ in 1..TRIES {
            sync = sync.or_else(|_| self.run_sync(place));
        }
        sync?;
        // Mostly nothing was kept, and nobody does anything.
        if !in_hand && self.places.are_seen_at_rest(LOOKS) && kept() == before {
            return Ok(());
        }
        let pass = || {
            self.on_all_queues(|| Ok(STAT.run(place)?))?;
            self.places.wait_for_data();
            Ok(())
        };
        pass_until_all_came(pages_on_their_way(), kept, pass)
    }

    /// Runs sync(1), which fails where pages are refused meanwhile. If that is by a rule, all others are on their way nevertheless, as it says so
    /// at its end: who goes on to store where he may not is told by msync(2), and stops nobody else. That the mount can be reached another process
    /// shows.
    fn run_sync(&self, place: &Path) -> Result<(), Failed> {
        let before = self.handler.refused_pages().by_rule;
        let Err(failed) = SYNC.run(place) else { return Ok(()) };
        let is_by_rule = failed.by_itself && self.handler.refused_pages().by_rule > before;
        if is_by_rule && STAT.run(place).is_ok() { Ok(()) } else { Err(failed) }
    }

    /// Where the mount can be reached.
    fn place(&self) -> Result<PathBuf, String> {
        let found = self.device.and_then(|device| mounts::reachable(device).ok()?);
        Ok(found.ok_or("not to be reached")?.mountpoint)
    }

    /// Has another process ask how much space there is, by statfs(2), and waits for it.
    pub(super) fn ask_for_space(&self) -> Result<(), String> {
        Ok(STAT.run(&self.place()?)?)
    }
}

/// Lets requests `pass` until all has come that the kernel had `queued`; `kept` counts what comes. Where others go on to
/// write through mappings without end, theirs comes, too, but in the order in which it was queued.
fn pass_until_all_came(
    queued: Option<u64>,
    kept: impl Fn() -> u64,
    mut pass: impl FnMut() -> Result<(), String>,
) -> Result<(), String> {
    let first = kept();
    let mut quiet = 0;
    for _ in 0..ROUNDS_MAX {
        let before = kept();
        pass()?;
        quiet = if kept() == before { quiet + 1 } else { 0 };
        if quiet == QUIET || queued.is_some_and(|queued| before - first >= queued) {
            return Ok(());
        }
    }
    Err("more comes without end".into())
}

/// Pages that the kernel is writing, those of others included: a request has one or more of them.
fn pages_on_their_way() -> Option<u64> {
    let text = fs::read_to_string("/proc/vmstat").ok()?;
    let lines = text.lines().filter_map(|line| line.split_once(' '));
    let counts = lines.filter(|(name, _)| matches!(*name, "nr_writeback" | "nr_writeback_temp"));
    let counted: u64 = counts.map(|(_, count)| count.parse::<u64>().ok()).sum::<Option<_>>()?;
    // Not those on which this thread may run.
    let processors = processors_online()?.len() as u64;
    Some(counted + UNCOUNTED * processors)
}

/// A program that asks the kernel. It is opened once: looking for it may lead through a directory of the mount, locked by a
/// caller who waits for us, and a process that starts another waits for that in a way in which it cannot be killed.
struct Program {
    name: &'static str,
    file: OnceLock<Option<File>>,
}

static SYNC: Program = Program { name: "sync", file: OnceLock::new() };
static STAT: Program = Program { name: "stat", file: OnceLock::new() };

/// To be called before a mount is attached.
pub(crate) fn find_programs() {
    for program in [&SYNC, &STAT] {
        program.file();
    }
}

/// Why a program did not do what it was asked for.
struct Failed {
    why: String,
    /// It has run to its end, and said so. Otherwise it may have done nothing.
    by_itself: bool,
}

impl From<Failed> for String {
    fn from(failed: Failed) -> String {
        failed.why
    }
}

impl Program {
    fn file(&self) -> Option<&File> {
        let find = || {
            let path = env::var_os("PATH").unwrap_or_else(|| "/usr/bin:/bin".into());
            env::split_paths(&path).find_map(|directory| executable(&directory.join(self.name)))
        };
        self.file.get_or_init(find).as_ref()
    }

    /// Runs it for the filesystem that a path leads to. This process may be killed meanwhile, and the mount with it.
    fn run(&self, path: &Path) -> Result<(), Failed> {
        let name = self.name;
        let not_run = |why| Failed { why: format!("{name}: {why}"), by_itself: false };
        let file = self.file().ok_or_else(|| not_run("no such program".to_owned()))?;
        let mut command = Command::new(format!("/proc/self/fd/{}", file.as_raw_fd()));
        command.arg0(name).arg("-f").arg(path);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        match command.status() {
            Ok(status) if status.success() => Ok(()),
            Ok(status) => {
                Err(Failed { by_itself: status.code() == Some(1), ..not_run(status.to_string()) })
            }
            Err(error) => Err(not_run(error.to_string())),
        }
    }
}

fn executable(path: &Path) -> Option<File> {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let file = File::from(rustix::fs::open(path, flags, Mode::empty()).ok()?);
    let found = file.metadata().ok()?;
    (found.is_file() && found.permissions().mode() & 0o111 != 0).then_some(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Passes needed where so many pages come with each.
    fn passes(queued: Option<u64>, comes: impl Fn(u64) -> u64) -> Option<u64> {
        let (kept, count) = (std::cell::Cell::new(7), std::cell::Cell::new(0));
        let pass = || {
            kept.set(kept.get() + comes(count.get()));
            count.set(count.get() + 1);
            Ok(())
        };
        pass_until_all_came(queued, || kept.get(), pass).ok().map(|()| count.get())
    }

    #[test]
    fn it_ends_with_what_had_been_queued() {
        assert_eq!(passes(Some(1000), |_| 0), Some(2));
        assert_eq!(passes(Some(1000), |pass| u64::from(pass < 5)), Some(7));
        assert_eq!(passes(Some(1000), |pass| u64::from(pass == 1)), Some(4));
        // Others write without end.
        assert_eq!(passes(Some(1000), |_| 10), Some(101));
        assert_eq!(passes(Some(0), |_| 10), Some(1));
    }

    #[test]
    fn what_does_not_end_is_no_success() {
        assert_eq!(passes(None, |_| 1), None);
        assert_eq!(passes(Some(u64::MAX), |_| 1), None);
        assert!(pass_until_all_came(None, || 0, || Err(String::new())).is_err());
    }

    #[test]
    fn the_kernel_counts_pages() {
        assert!(pages_on_their_way().is_some_and(|pages| pages >= UNCOUNTED));
    }
}
