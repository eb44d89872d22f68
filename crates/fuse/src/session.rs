//! One mounted connection being served: the INIT handshake, the threads that read requests, and
//! the ways it ends.
//!
//! Life cycle: [`Session::start`] answers INIT, from then on the mount answers. Reader threads hand
//! requests to the [`Handler`]. It ends when somebody unmounts, or through [`Stopper::stop`] (what
//! a signal does), which unmounts and, if files are still open below, detaches the mount and stops
//! serving. [`Session::wait`] returns after the last request that was received has been handled, so
//! the caller's final commit holds all that is acknowledged.
//!
//! Where the kernel offers io_uring, `rings` take the readers' place, and one reader stays for the little that comes by
//! /dev/fuse then. Their `policy` keeps programs on their processors.
//!
//! A request that waits long (an fsync waits for barriers, or for a whole commit) must not keep others from being read:
//! `crew` puts a spare thread in the reader's place meanwhile, which goes on with the reader's buffer:
//! there are as many large buffers as readers, however many threads wait.
//!
//! A request that is about all that was written (a snapshot, say) has to find what the kernel still keeps: `parked` sets it
//! aside until that has been written. `prune` has the kernel forget what it keeps of deleted subvolumes.
//!
//! A mount of a block device ends with DESTROY, which umount(2) waits for: it is
//! answered when the session is dropped, after the caller's final commit.

mod crew;
mod parked;
mod places;
mod policy;
mod prune;
mod rings;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use rustix::io::Errno;
use zerocopy::IntoBytes;

use crate::heap;
use crate::protocol::abi::{self, InitIn, InitOut, init, opcode};
use crate::protocol::channel::{Channel, Reply, Request};
use crate::protocol::connect::{self, ConnectError};
use crate::protocol::mounts;
use crew::Crew;
use parked::Parked;
pub(crate) use parked::find_programs;
use places::{Place, Places};
use policy::Policy;
use prune::Pruner;
use rings::{Prepared, Queues};

/// Largest WRITE, and with `MAX_PAGES` the largest READ, in bytes, unless less is asked for.
pub const TRANSFER_BYTES_MAX: u32 = 1 << 20;
/// Smallest largest transfer.
pub const TRANSFER_BYTES_MIN: u32 = 64 << 10;
/// Room for the headers before a WRITE's data.
const HEADER_ROOM: usize = 4096;
/// Asynchronous requests (readahead, writeback) the kernel may have open at once.
const BACKGROUND_MAX: u16 = 64;
/// How long a session that has been unmounted may take to notice, unless the mount is still in use in other places.
const FAREWELL: Duration = Duration::from_secs(5);

/// A filesystem, as a session sees it. Called by several threads at once.
pub trait Handler: Send + Sync + 'static {
    /// Answers one request. INIT, DESTROY and INTERRUPT are the session's own.
    fn handle(&self, request: &Request<'_>, reply: Reply<'_>);

    /// Whether this request is about everything that was written before, so that the kernel has to write first what it keeps.
    fn wants_all_written(&self, _request: &Request<'_>) -> bool {
        false
    }

    /// Answers a request that promises nothing, where the kernel could not be made to write what it keeps.
    fn handle_unwritten(&self, request: &Request<'_>, reply: Reply<'_>) {
        self.handle(request, reply);
    }

    /// Requests with pages that the kernel kept, and that were refused.
    fn refused_pages(&self) -> RefusedPages {
        RefusedPages::default()
    }

    /// Of which of them somebody was told who asked for all to be written.
    fn pages_told_of(&self) -> RefusedPages {
        RefusedPages::default()
    }

    /// Somebody is told of these, in place of what he asked for: what is not refused is made durable all the same.
    fn tell_of_pages(&self, _refused: RefusedPages) {}

    /// Whether the kernel may show pages that were refused when it sent them.
    fn shows_refused(&self) -> bool {
        false
    }

    /// The nodes of which it may.
    fn refused_nodes(&self) -> Vec<u64> {
        Vec::new()
    }

    /// Subvolumes to which no name leads any more, and of which the kernel keeps nodes. In ascending order.
    fn lingering(&self) -> Vec<u64> {
        Vec::new()
    }

    /// What the kernel keeps of these.
    fn kept_of(&self, _subvolumes: &[u64]) -> Vec<u64> {
        Vec::new()
    }

    /// Serving ends: what is answered when something long is done should be answered now.
    fn ends(&self) {}

    /// Whether this request may wait for a disk or a commit, so that another thread should go on
    /// reading.
    fn may_wait(&self, request: &Request<'_>) -> bool {
        waits_by_nature(request.opcode())
    }
}

/// How many requests with pages that the kernel had kept were refused so far.
#[derive(Clone, Copy, Debug, Default)]
pub struct RefusedPages {
    /// They found no room.
    pub no_room: u64,
    /// Nobody may write there, or somebody is at a limit of his own.
    pub by_rule: u64,
    /// They could not be written for another reason.
    pub otherwise: u64,
}

/// Whether requests of this kind usually wait.
pub fn waits_by_nature(opcode: u32) -> bool {
    matches!(
        opcode,
        opcode::FSYNC
            | opcode::FSYNCDIR
            | opcode::SYNCFS
            | opcode::IOCTL
            | opcode::COPY_FILE_RANGE
            | opcode::COPY_FILE_RANGE_64
            | opcode::FALLOCATE
    )
}

/// Whether requests of this kind come from one who only looks for a place below a new mount.
fn is_looking(opcode: u32) -> bool {
    matches!(
        opcode,
        opcode::LOOKUP
            | opcode::GETATTR
            | opcode::STATX
            | opcode::GETXATTR
            | opcode::FORGET
            | opcode::BATCH_FORGET
            | opcode::INTERRUPT
            | opcode::DESTROY
    )
}

/// How a session is served.
#[derive(Clone, Debug)]
pub struct SessionOptions {
    /// INIT bits wanted (`abi::init`); those the kernel does not know are left out.
    pub init_flags: u64,
    /// Threads that read requests; 0: two for each core, as most requests wait for a disk now and
    /// then.
    pub readers: usize,
    /// Bytes of the largest WRITE or READ.
    pub transfer_bytes: u32,
    /// Requests come by io_uring where the kernel offers that.
    pub io_uring: bool,
}

impl Default for SessionOptions {
    fn default() -> Self {
        Self {
            init_flags: BASE_FLAGS,
            readers: 0,
            transfer_bytes: TRANSFER_BYTES_MAX,
            io_uring: true,
        }
    }
}

/// Threads that read requests where nobody says how many.
pub fn readers_by_default() -> usize {
    std::thread::available_parallelism().map_or(2, usize::from) * 2
}

/// What every session of ours asks for: large and parallel requests, and caching that needs no
/// revalidation.
pub const BASE_FLAGS: u64 = init::ASYNC_READ
    | init::BIG_WRITES
    | init::PARALLEL_DIROPS
    | init::MAX_PAGES
    | init::CACHE_SYMLINKS
    | init::ABORT_ERROR
    | init::INIT_EXT;

/// Why a session could not begin.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    /// The connection ended, or the device failed, before INIT.
    #[error("the FUSE connection failed before it began: {0}")]
    Connection(Errno),
    /// The kernel's protocol is too old.
    #[error(
        "the kernel speaks FUSE {major}.{minor}; buttress needs 7.{} (Linux 5.17) or newer",
        abi::VERSION_MINOR_MIN
    )]
    Version {
        /// The kernel's major version.
        major: u32,
        /// The kernel's minor version.
        minor: u32,
    },
    /// No thread could be started.
    #[error("no thread to serve the mount could be started: {0}")]
    Thread(#[from] std::io::Error),
}

/// A mount being served.
pub struct Session {
    shared: Arc<Shared>,
    flags: u64,
}

/// What the reader threads, the session and its stoppers share.
struct Shared {
    channel: Channel,
    handler: Arc<dyn Handler>,
    mountpoint: PathBuf,
    /// `st_dev` of the mount.
    device: Option<(u32, u32)>,
    crew: Crew,
    /// Requests that wait for the kernel to write what it keeps.
    parked: Parked,
    places: Places,
    pruner: Pruner,
    /// Who serves over io_uring, if that is used.
    queues: Queues,
    policy: Policy,
    /// The DESTROY that is still to be answered.
    farewell: Farewell,
    /// Somebody may have used the mount: DESTROY has to wait for the last commit.
    used: AtomicBool,
    /// Bytes of a buffer that holds any request.
    buffer_bytes: usize,
    /// Buffers of readers that wait, for those who read in their place.
    buffers: Mutex<Vec<Vec<u8>>>,
    /// Requests being handled now.
    active: AtomicUsize,
    /// Set once: requests are refused from here on.
    stopping: AtomicBool,
    ended: Mutex<bool>,
    ended_changed: Condvar,
}

impl Session {
    /// Answers INIT on `channel` and begins to serve the mount at `mountpoint` (absolute).
    pub fn start(
        channel: Channel,
        mountpoint: &Path,
        handler: Arc<dyn Handler>,
        options: &SessionOptions,
    ) -> Result<Self, SessionError> {
        let device = mounts::at(mountpoint)?.map(|entry| entry.device);
        let session = Self::start_on(channel, mountpoint, device, handler, options)?;
        session.is_put();
        Ok(session)
    }

    /// The same for a mount that is nowhere yet, of this `st_dev`. Until it is used, whoever lets go of it does not wait for the
    /// last commit: that may be one who is waited for before there is one.
    pub(crate) fn start_on(
        channel: Channel,
        mountpoint: &Path,
        device: Option<(u32, u32)>,
        handler: Arc<dyn Handler>,
        options: &SessionOptions,
    ) -> Result<Self, SessionError> {
        let transfer = options.transfer_bytes.clamp(TRANSFER_BYTES_MIN, TRANSFER_BYTES_MAX);
        let mut readers = match options.readers {
            0 => readers_by_default(),
            count => count,
        };
        let mut prepared = None;
        let prepare = || prepared.insert(Prepared::new(transfer as usize, readers)).has_rings();
        let offer = options.io_uring.then_some(prepare);
        let flags = handshake(&channel, options.init_flags, transfer, offer)?;
        let (queues, waiting) = prepared.map(Prepared::into_parts).unwrap_or_default();
        if queues.are_used() {
            // Little comes by /dev/fuse then.
            readers = 1;
        }
        // The first one waits already.
        let first = waiting.len().min(1);
        let shared = Arc::new_cyclic(|shared| Shared {
            pruner: Pruner::new(shared.clone()),
            channel,
            handler,
            mountpoint: mountpoint.to_owned(),
            device,
            crew: Crew::new(readers),
            parked: Parked::default(),
            places: Places::default(),
            queues,
            policy: Policy::default(),
            farewell: Farewell::default(),
            used: AtomicBool::new(false),
            buffer_bytes: transfer as usize + HEADER_ROOM,
            buffers: Mutex::default(),
            active: AtomicUsize::new(0),
            stopping: AtomicBool::new(false),
            ended: Mutex::new(false),
            ended_changed: Condvar::new(),
        });
        for started in first..readers {
            match Shared::spawn_reader(&shared) {
                Ok(()) => {}
                Err(error) if started == 0 => return Err(error.into()),
                // Slower, and no less right.
                Err(_) => {
                    shared.crew.without(readers - started);
                    break;
                }
            }
        }
        for waiting in waiting {
            waiting.begin(&shared);
        }
        shared.complete_queues();
        if shared.queues.are_used() {
            shared.look_after_policy();
        }
        Ok(Self { shared, flags })
    }

    /// The mount is where it can be used.
    pub(crate) fn is_put(&self) {
        self.shared.is_used();
    }

    /// Takes off, now that serving has ended, whatever is mounted all the same.
    pub(crate) fn leave_nothing(&self) {
        if self.shared.device.is_some() {
            let _what_can_be_taken_off = self.shared.withdraw(true);
        }
    }

    /// The INIT bits both sides agreed on.
    pub fn flags(&self) -> u64 {
        self.flags
    }

    /// The channel, for notifications.
    pub fn channel(&self) -> &Channel {
        &self.shared.channel
    }

    /// A handle that ends this session from another thread.
    pub fn stopper(&self) -> Stopper {
        Stopper { shared: Arc::clone(&self.shared) }
    }

    /// Returns when the mount is gone or the session was stopped, and no request is being handled
    /// any more.
    pub fn wait(&self) {
        let mut ended = self.shared.ended.lock();
        while !*ended {
            self.shared.ended_changed.wait(&mut ended);
        }
        drop(ended);
        self.shared.stopping.store(true, Ordering::SeqCst);
        while self.shared.active.load(Ordering::SeqCst) != 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Drop for Session {
    /// Lets umount(2) return.
    fn drop(&mut self) {
        if let Some(unique) = self.shared.farewell.release() {
            let _gone_at_the_latest_with_this_process = self.shared.channel.answer(unique, &[]);
        }
    }
}

/// The DESTROY that umount(2) waits for. It is answered after the last commit.
#[derive(Default)]
struct Farewell {
    state: Mutex<FarewellState>,
    changed: Condvar,
}

#[derive(Default)]
struct FarewellState {
    /// It came by /dev/fuse, with this number.
    unique: Option<u64>,
    /// It came by a ring, and that thread waits for the last commit.
    waits: bool,
    /// The last commit is made.
    released: bool,
}

impl Farewell {
    /// Waits until it may be answered.
    fn wait(&self) {
        let mut state = self.state.lock();
        state.waits = true;
        while !state.released {
            self.changed.wait(&mut state);
        }
    }

    /// What may have waited is answered.
    fn is_over(&self) {
        let mut state = self.state.lock();
        if state.released {
            state.waits = false;
            self.changed.notify_all();
        }
    }

    /// It may be answered: by the caller, if a number is returned; what came by a ring is answered already.
    fn release(&self) -> Option<u64> {
        let until = Instant::now() + FAREWELL;
        let mut state = self.state.lock();
        state.released = true;
        self.changed.notify_all();
        while state.waits && !self.changed.wait_until(&mut state, until).timed_out() {}
        state.unique.take()
    }
}

/// Ends a session.
#[derive(Clone)]
pub struct Stopper {
    shared: Arc<Shared>,
}

impl Stopper {
    /// Unmounts, in every place, but nothing that others have mounted over it. If files are still open below, the mount is
    /// detached, and their owners get errors from here on.
    pub fn stop(&self) -> Result<(), ConnectError> {
        let shared = &self.shared;
        match shared.withdraw(false) {
            // The readers see it and end the session, unless other mount namespaces have it, too.
            Ok(true) if shared.ends_within(FAREWELL) => return Ok(()),
            Err(error) if error.is_busy() => {
                let _what_can_be_saved = shared.write_back();
                shared.withdraw(true)?;
            }
            // It may have been put somewhere meanwhile. Where it cannot be taken off, serving ends all the same.
            Ok(_) | Err(_) => {
                let _what_can_be_saved = shared.write_back();
                let _what_can_be_taken_off = shared.withdraw(true);
            }
        }
        shared.stopping.store(true, Ordering::SeqCst);
        shared.end();
        Ok(())
    }
}

impl Shared {
    /// Takes the mount off wherever it is, except where another one covers it; `true` if it is gone everywhere. One place that
    /// it cannot be taken off keeps it in no other.
    fn withdraw(&self, lazy: bool) -> Result<bool, ConnectError> {
        let Some(device) = self.device else {
            return connect::disconnect_apart(&self.mountpoint, lazy).map(|()| true);
        };
        let (places, covered) = mounts::of_device(device).unwrap_or_default();
        // The next mount may get the number of one that is gone. This one was not gone when the places were read.
        if !self.channel.is_connected() {
            return Ok(true);
        }
        let mut failed: Option<ConnectError> = None;
        for place in places {
            let Err(error) = connect::disconnect_apart(&place.mountpoint, lazy) else { continue };
            if failed.as_ref().is_none_or(|before| !before.is_busy()) {
                failed = Some(error);
            }
        }
        if let Some(error) = failed {
            return Err(error);
        }
        if covered {
            let path = self.mountpoint.display();
            eprintln!("buttress: {path}: another mount covers this one, which ends all the same");
        }
        Ok(!covered)
    }

    fn ends_within(&self, time: Duration) -> bool {
        let until = Instant::now() + time;
        let mut ended = self.ended.lock();
        while !*ended {
            if self.ended_changed.wait_until(&mut ended, until).timed_out() {
                break;
            }
        }
        *ended
    }

    fn spawn_reader(self: &Arc<Self>) -> std::io::Result<()> {
        let shared = Arc::clone(self);
        let reader = move || shared.read_requests();
        std::thread::Builder::new().name("buttress-fuse".to_owned()).spawn(reader).map(drop)
    }

    /// Body of a reader thread.
    fn read_requests(self: &Arc<Self>) {
        let buffer = self.take_buffer();
        let place = self.places.take(None);
        self.read_requests_at(&place, buffer);
        self.places.leave(&place);
    }

    fn read_requests_at(self: &Arc<Self>, place: &Place, mut buffer: Vec<u8>) {
        while let Ok(Some(request)) = self.channel.receive(&mut buffer) {
            self.places.begin(place, &request);
            self.active.fetch_add(1, Ordering::SeqCst);
            if !is_looking(request.opcode()) {
                self.is_used();
            }
            let stopping = self.stopping.load(Ordering::SeqCst);
            if !stopping && self.handler.wants_all_written(&request) {
                let stay = self.park(&request);
                place.done();
                if !stay && !place.rest(|| self.crew.rest()) {
                    return;
                }
                continue;
            }
            let waits = self.handler.may_wait(&request);
            if !waits || stopping {
                self.serve(&request, Reply::new(&self.channel, &request));
                self.active.fetch_sub(1, Ordering::SeqCst);
                place.done();
                continue;
            }
            let body = request.body().rest().to_vec();
            let request = request.over(&body);
            self.buffers.lock().push(std::mem::take(&mut buffer));
            let stay = self.serve_apart(&request);
            drop(body);
            self.active.fetch_sub(1, Ordering::SeqCst);
            if !stay && !place.rest(|| self.crew.rest()) {
                return;
            }
            // Who takes one may have to wait for memory, and does not wait for requests then.
            place.rest(|| buffer = self.take_buffer());
        }
        self.end();
    }

    fn take_buffer(&self) -> Vec<u8> {
        let left = self.buffers.lock().pop();
        left.unwrap_or_else(|| vec![0; self.buffer_bytes])
    }

    /// Somebody has changed something, or may have.
    fn is_used(&self) {
        if !self.used.load(Ordering::Relaxed) {
            self.used.store(true, Ordering::SeqCst);
        }
    }

    /// Handles one request, which takes no time.
    fn serve(&self, request: &Request<'_>, reply: Reply<'_>) {
        match request.opcode() {
            _ if self.stopping.load(Ordering::SeqCst) => refuse_stopped(request, reply),
            // Answered by the drop of the session. What nobody has used is closed by one who may be waited for here.
            opcode::DESTROY if !self.used.load(Ordering::SeqCst) => {
                reply.done();
                self.end();
            }
            opcode::DESTROY => {
                self.farewell.state.lock().unique = Some(request.unique());
                reply.nothing();
                self.end();
            }
            // A request is never given up halfway; the kernel need not ask again.
            opcode::INTERRUPT | opcode::INIT => reply.refuse(Errno::NOSYS),
            _ => self.handle(request, reply),
        }
    }

    /// Handles one request that may wait, while another thread reads on; `false` if this thread is one too many now.
    fn serve_apart(self: &Arc<Self>, request: &Request<'_>) -> bool {
        // Without a stand-in the others read on, and this thread when it is back; nothing is lost but speed.
        if self.crew.leave() && Self::spawn_reader(self).is_err() {
            self.crew.not_started();
        }
        self.handle(request, Reply::new(&self.channel, request));
        self.crew.come_back()
    }

    /// A panic in the handler costs its request an EIO, not the mount its thread.
    fn handle(&self, request: &Request<'_>, reply: Reply<'_>) {
        heap::look();
        let _reported_by_the_hook =
            catch_unwind(AssertUnwindSafe(|| self.handler.handle(request, reply)));
        self.prune_after(request.opcode());
    }

    /// Something that whoever reads the log should know.
    fn tell(&self, what: &str) {
        eprintln!("buttress: {}: {what}", self.mountpoint.display());
    }

    fn end(&self) {
        self.handler.ends();
        self.crew.end();
        *self.ended.lock() = true;
        self.ended_changed.notify_all();
        self.policy.wake();
    }
}

fn refuse_stopped(request: &Request<'_>, reply: Reply<'_>) {
    match request.opcode() {
        opcode::FORGET | opcode::BATCH_FORGET => reply.nothing(),
        _ => reply.refuse(Errno::NOTCONN),
    }
}

/// Receives and answers INIT; returns the bits agreed on. `prepare` is for io_uring, and called if the kernel offers that.
fn handshake(
    channel: &Channel,
    mut wanted: u64,
    transfer: u32,
    prepare: Option<impl FnOnce() -> bool>,
) -> Result<u64, SessionError> {
    let mut buffer = vec![0u8; transfer as usize + HEADER_ROOM];
    loop {
        let request = channel.receive(&mut buffer).map_err(SessionError::Connection)?;
        let request = request.ok_or(SessionError::Connection(Errno::NODEV))?;
        if request.opcode() != opcode::INIT {
            return Err(SessionError::Connection(Errno::PROTO));
        }
        let theirs: InitIn = request.body().read().map_err(SessionError::Connection)?;
        let (major, minor) = (theirs.major, theirs.minor);
        if major > abi::VERSION_MAJOR {
            // The kernel repeats INIT in the version it is told.
            answer_init(channel, &request, &InitOut::default())?;
            continue;
        }
        if major < abi::VERSION_MAJOR || minor < abi::VERSION_MINOR_MIN {
            let _failing_anyway = channel.refuse(request.unique(), Errno::PROTO);
            return Err(SessionError::Version { major, minor });
        }
        let offered = u64::from(theirs.flags) | u64::from(theirs.flags2) << 32;
        if offered & init::OVER_IO_URING != 0 && prepare.is_some_and(|prepare| prepare()) {
            wanted |= init::OVER_IO_URING;
        }
        let flags = offered & wanted;
        answer_init(channel, &request, &agreed(&theirs, flags, transfer))?;
        return Ok(flags);
    }
}

fn answer_init(
    channel: &Channel,
    request: &Request<'_>,
    out: &InitOut,
) -> Result<(), SessionError> {
    let out = InitOut { major: abi::VERSION_MAJOR, minor: abi::VERSION_MINOR, ..*out };
    channel.answer(request.unique(), &[out.as_bytes()]).map_err(SessionError::Connection)
}

#[expect(clippy::cast_possible_truncation, reason = "the two halves of 64 flag bits")]
fn agreed(theirs: &InitIn, flags: u64, transfer: u32) -> InitOut {
    InitOut {
        max_readahead: theirs.max_readahead,
        flags: flags as u32,
        flags2: (flags >> 32) as u32,
        max_background: BACKGROUND_MAX,
        // Writing that may be put off is, from that many on, and newer kernels' syncfs(2) asks for no other.
        congestion_threshold: u16::MAX,
        max_write: transfer,
        time_gran: 1,
        // Of the kernel's size, whatever that is: memory is lent to it for so many.
        max_pages: (transfer as usize / rustix::param::page_size()).max(1) as u16,
        ..InitOut::default()
    }
}
