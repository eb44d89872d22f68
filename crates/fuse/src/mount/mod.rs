//! Requests of the kernel, turned into operations of a filesystem and answered.
//!
//! Who does what: the kernel checks permissions (`default_permissions`, ACLs read through xattrs)
//! and caches names, attributes and data; here numbers and structs are translated, the kernel's
//! hold on inodes is counted, and the few rules are kept that FUSE leaves to the server: umask and
//! owner of new files, set-id bits after writes and chown, access times.
//!
//! Caching: this mount is the only writer, so entries and attributes stay valid until the kernel
//! changes them itself. What can change behind its back, names of subvolumes and names that may
//! become subvolumes by ioctl, is asked for each time. OPEN, FLUSH and OPENDIR are answered ENOSYS, after which the kernel stops
//! asking and keeps its caches across opens. So is CREATE: the kernel makes files by MKNOD then, and opens them without a word, where
//! it would send a RELEASE for each. With `strictatime` OPEN is answered, as each open is to be seen to read, and with
//! `strictopen`, as some are to be refused; there CREATE saves one.
//!
//! Folders: [`store`] is the filesystem's side; `names`, `data`, `metadata` and `lists` hold the
//! requests by subject; [`control`] holds what goes beyond files.

pub mod acl;
mod attributes;
mod caller;
pub mod control;
mod countings;
mod data;
pub mod engine;
mod lists;
mod metadata;
mod names;
mod permission;
mod protect;
mod refused;
mod seek;
pub mod store;
pub mod task;

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use rustix::io::Errno;

use crate::nodes::{Identity, NodeTable, Numbers, SUBVOLUME_TOP};
use crate::options::{AccessTimes, MountOptions};
use crate::protocol::abi::{self, EntryOut, ROOT_ID, init, opcode};
use crate::protocol::channel::{Reply, Request};
use crate::session::{self, BASE_FLAGS, Handler, RefusedPages};
use attributes::Shown;
use control::{Control, words};
use store::{Answer, Attributes, NewInode, Store};

/// The filesystem is told when so many nodes more are held, or fewer.
const HELD_STEP: usize = 4096;

/// A mounted filesystem.
pub struct Mount<S: Store> {
    store: S,
    nodes: NodeTable,
    /// How many nodes were held when the filesystem was told last.
    told_held: Mutex<usize>,
    policy: Policy,
    /// Those that are the same for all mounts of the filesystem.
    options: String,
    /// `st_dev` of the mount, to tell its files from others.
    device: OnceLock<(u32, u32)>,
    /// What the kernel must forget.
    notices: Mutex<Vec<Notice>>,
    /// Of reads that are answered.
    buffers: Mutex<Vec<Vec<u8>>>,
    /// Requests so far, by /dev/fuse and by io_uring.
    requests: [AtomicU64; 2],
    refused: refused::Refused,
    scans: seek::Scans,
}

/// Something that the kernel remembers and that has changed without its doing.
#[derive(Clone, Copy, Debug)]
enum Notice {
    /// Attributes of a node.
    Attributes(u64),
    /// Attributes and the listing of a directory.
    Listing(u64),
}

/// What the mount options mean to requests.
#[derive(Clone, Copy, Debug)]
struct Policy {
    shown: Shown,
    fakeroot: bool,
    access_times: AccessTimes,
    directory_access_times: bool,
    /// The kernel collects writes and sets times of change.
    writeback_cache: bool,
    /// Everything is durable before it is acknowledged.
    synchronous: bool,
    /// Directory changes are durable before they are acknowledged.
    dirsync: bool,
    /// The user who mounted.
    owner: u32,
    /// Modes and ACLs count.
    checks_permissions: bool,
    user_subvol_rm_allowed: bool,
    /// Each open is asked for.
    strict_open: bool,
    /// Nothing can be written.
    read_only: bool,
}

impl Policy {
    /// Whether the kernel is to go on asking for each open.
    fn answers_opens(&self) -> bool {
        self.strict_open || self.access_times == AccessTimes::Strict
    }

    fn new(options: &MountOptions, numbers: Numbers) -> Self {
        let never = options.read_only || options.access_times == AccessTimes::Never;
        Self {
            shown: Shown { numbers, uid: options.uid, gid: options.gid },
            fakeroot: options.fakeroot,
            access_times: if never { AccessTimes::Never } else { options.access_times },
            directory_access_times: !options.no_directory_access_times,
            writeback_cache: options.writeback_cache,
            synchronous: options.synchronous,
            dirsync: options.dirsync,
            owner: rustix::process::geteuid().as_raw(),
            checks_permissions: options.default_permissions,
            user_subvol_rm_allowed: options.user_subvol_rm_allowed,
            strict_open: options.strict_open,
            read_only: options.read_only,
        }
    }
}

/// The INIT bits a mount with these options asks for.
pub fn init_flags(options: &MountOptions) -> u64 {
    let mut flags = BASE_FLAGS
        | init::DO_READDIRPLUS
        | init::EXPORT_SUPPORT
        | init::HANDLE_KILLPRIV_V2
        | init::SETXATTR_EXT;
    if options.default_permissions {
        // The umask must not be applied where a default ACL replaces it, so the server applies it.
        flags |= init::POSIX_ACL | init::DONT_MASK;
    }
    if options.writeback_cache {
        flags |= init::WRITEBACK_CACHE;
    }
    // With it the kernel lets go of cached pages before an asynchronous direct write, but not of those that are read meanwhile.
    if options.async_dio {
        flags |= init::ASYNC_DIO;
    }
    flags
}

impl<S: Store> Mount<S> {
    /// A mount whose top is that of `subvolume`.
    pub fn new(store: S, subvolume: u64, options: &MountOptions) -> Answer<Self> {
        Self::numbered(store, Numbers { mounted: subvolume, own: subvolume }, options)
    }

    /// The same, where another subvolume may be the one that is shown by its own inode numbers.
    pub(crate) fn numbered(store: S, numbers: Numbers, options: &MountOptions) -> Answer<Self> {
        let subvolume = numbers.mounted;
        let nodes = NodeTable::new(subvolume);
        let top = store.load(Identity { subvolume, ino: SUBVOLUME_TOP })?;
        nodes.hold(ROOT_ID, || store.hold(&top))?;
        let (device, policy) = (OnceLock::new(), Policy::new(options, numbers));
        let (notices, buffers) = (Mutex::default(), Mutex::default());
        let told_held = Mutex::new(0);
        let options = options.shared_words().join(",");
        let requests = Default::default();
        let refused = refused::Refused::default();
        Ok(Self {
            store,
            nodes,
            told_held,
            policy,
            options,
            device,
            notices,
            buffers,
            requests,
            refused,
            scans: seek::Scans::default(),
        })
    }

    /// Learns which device number the mount has got.
    pub fn set_device(&self, device: (u32, u32)) {
        let _once = self.device.set(device);
    }

    /// The filesystem.
    pub fn store(&self) -> &S {
        &self.store
    }

    /// Lets go of all inodes the kernel held, once the mount is gone.
    pub fn release(&self) {
        for id in self.nodes.drain() {
            self.release_node(id);
        }
    }

    /// The inode behind a node id. One that is not held comes from a file handle (NFS,
    /// open_by_handle_at(2)) and is found by its number.
    fn node(&self, id: u64) -> Answer<S::Node> {
        let identity = self.nodes.identity(id).ok_or(Errno::STALE)?;
        if self.nodes.is_held(id) { self.store.held(identity) } else { self.store.load(identity) }
    }

    /// The kernel holds a node no more.
    fn release_node(&self, id: u64) {
        if let Some(node) = self.nodes.identity(id).and_then(|it| self.store.held(it).ok()) {
            self.store.release(node);
        }
    }

    /// Tells the filesystem when what the kernel holds has changed by much.
    fn tell_held(&self) {
        let held = self.nodes.held();
        // Whoever finds another one telling leaves it to the next one.
        if let Some(mut told) = self.told_held.try_lock()
            && told.abs_diff(held) >= HELD_STEP
        {
            *told = held;
            self.store.uses_elsewhere(self.nodes.bytes());
        }
    }

    fn id(&self, node: &S::Node) -> u64 {
        self.nodes.id(self.store.identity(node))
    }

    fn shown_ino(&self, id: u64) -> u64 {
        self.policy.shown.numbers.shown(id)
    }

    fn id_of_shown(&self, ino: u64) -> u64 {
        self.policy.shown.numbers.id_of_shown(ino)
    }

    /// The entry for `node`, which the kernel holds once more from here on.
    fn entry(&self, node: &S::Node) -> Answer<EntryOut> {
        let attributes = self.store.attributes(node)?;
        self.entry_with(node, &attributes)
    }

    /// The same, where the attributes are known.
    ///
    /// The kernel keeps the name, except that of a subvolume, which an ioctl can delete, as it does not
    /// keep that a name is missing, which an ioctl can make. Telling it to forget a name instead would
    /// have it lock the directory, uninterruptibly. Whoever has that lock may wait for an answer of this
    /// process; killed at that moment, the process could neither give the answer nor end, and the mount,
    /// the waiting processes and the lock on the image would stay until the next boot.
    fn entry_with(&self, node: &S::Node, attributes: &Attributes) -> Answer<EntryOut> {
        let id = self.id(node);
        self.nodes.hold(id, || self.store.hold(node))?;
        self.tell_held();
        let mut entry = self.policy.shown.entry(id, attributes);
        // Tops, and the stubs of subvolumes that are elsewhere.
        let identity = self.store.identity(node);
        if identity.ino == SUBVOLUME_TOP || identity.is_stub() {
            entry.entry_valid = 0;
        }
        Ok(entry)
    }

    /// How an inode begins that the caller of `request` asks for.
    fn new_inode(&self, request: &Request<'_>, mode: u32) -> NewInode {
        let (uid, gid) = if self.policy.fakeroot { (0, 0) } else { (request.uid(), request.gid()) };
        NewInode { mode, uid, gid, ..NewInode::default() }
    }

    /// What `sync` and `dirsync` add to a change of a directory.
    fn directory_changed<T>(&self, done: T) -> Answer<T> {
        if self.policy.synchronous || self.policy.dirsync {
            self.store.commit()?;
        }
        Ok(done)
    }

    /// What `sync` adds to a change of a file.
    fn file_changed<T>(&self, done: T) -> Answer<T> {
        if self.policy.synchronous {
            self.store.commit()?;
        }
        Ok(done)
    }

    /// What the node was about may have gone with it: what others did is made durable then.
    fn fsync(&self, request: &Request<'_>) -> Answer<()> {
        match self.node(request.nodeid()) {
            Ok(node) => self.store.sync(&node),
            Err(_) => self.store.commit(),
        }
    }

    fn handle_names(&self, request: &Request<'_>, reply: Reply<'_>) {
        match request.opcode() {
            opcode::LOOKUP => reply.result(self.lookup(request)),
            opcode::FORGET => {
                self.forget(request);
                reply.nothing();
            }
            opcode::BATCH_FORGET => {
                self.batch_forget(request);
                reply.nothing();
            }
            opcode::CREATE if self.policy.answers_opens() => {
                names::reply_opened(reply, self.create(request));
            }
            opcode::TMPFILE => names::reply_opened(reply, self.temporary(request)),
            opcode::MKNOD => reply.result(self.mknod(request)),
            opcode::MKDIR => reply.result(self.mkdir(request)),
            opcode::SYMLINK => reply.result(self.symlink(request)),
            opcode::LINK => reply.result(self.link(request)),
            opcode::UNLINK => reply.result(self.unlink(request)),
            opcode::RMDIR => reply.result(self.rmdir(request)),
            opcode::RENAME => reply.result(self.rename(request)),
            opcode::RENAME2 => reply.result(self.rename2(request)),
            opcode::READLINK => reply_bytes(reply, self.read_link(request)),
            opcode::READDIR => self.readdir(request, reply),
            opcode::READDIRPLUS => self.readdirplus(request, reply),
            _ => reply.refuse(Errno::NOSYS),
        }
    }
}

impl<S: Control> Mount<S> {
    fn handle_metadata(&self, request: &Request<'_>, reply: Reply<'_>) {
        match request.opcode() {
            opcode::GETATTR => reply.result(self.getattr(request)),
            opcode::STATX => reply.result(self.statx(request)),
            opcode::SETATTR => reply.result(self.setattr(request)),
            opcode::STATFS => reply.result(self.statfs()),
            opcode::GETXATTR => self.getxattr(request, reply),
            opcode::LISTXATTR => self.listxattr(request, reply),
            opcode::SETXATTR => self.setxattr(request, reply),
            opcode::REMOVEXATTR => reply.result(self.removexattr(request)),
            _ => self.handle_names(request, reply),
        }
    }
}

impl<S: Control> Handler for Mount<S> {
    fn wants_all_written(&self, request: &Request<'_>) -> bool {
        match request.opcode() {
            opcode::IOCTL => control::ioctl_is_about_all(request),
            opcode::SETXATTR | opcode::GETXATTR => words::is_about_all(request),
            opcode::LSEEK => self.seeks_past_a_hole(request),
            _ => false,
        }
    }

    fn handle_unwritten(&self, request: &Request<'_>, reply: Reply<'_>) {
        match request.opcode() {
            opcode::LSEEK => reply.result(self.lseek_without_holes(request)),
            _ => self.handle(request, reply),
        }
    }

    fn refused_pages(&self) -> RefusedPages {
        self.refused.so_far()
    }

    fn pages_told_of(&self) -> RefusedPages {
        self.refused.told()
    }

    fn tell_of_pages(&self, refused: RefusedPages) {
        self.refused.tell(refused);
        // Whoever is told of what there was no room for may be about to make some: what he deleted must count.
        let _he_is_told_of_that_already = self.store.commit();
    }

    fn shows_refused(&self) -> bool {
        self.refused.any()
    }

    fn may_wait(&self, request: &Request<'_>) -> bool {
        match request.opcode() {
            opcode::SETXATTR | opcode::GETXATTR => words::is_control(request),
            kind => session::waits_by_nature(kind),
        }
    }

    fn lingering(&self) -> Vec<u64> {
        self.store.lingering_subvolumes()
    }

    fn kept_of(&self, subvolumes: &[u64]) -> Vec<u64> {
        self.nodes.held_of(subvolumes)
    }

    fn refused_nodes(&self) -> Vec<u64> {
        self.refused.nodes()
    }

    fn ends(&self) {
        self.store.give_up_tasks();
    }

    fn handle(&self, request: &Request<'_>, reply: Reply<'_>) {
        let [by_device, by_ring] = &self.requests;
        let way = if reply.is_gathered() { by_ring } else { by_device };
        way.fetch_add(1, Ordering::Relaxed);
        match request.opcode() {
            opcode::READ => self.read(request, reply),
            opcode::WRITE => reply.result(self.write(request)),
            opcode::FALLOCATE => reply.result(self.fallocate(request)),
            opcode::LSEEK => reply.result(self.lseek(request)),
            opcode::COPY_FILE_RANGE => reply.result(self.copy_file_range(request)),
            opcode::COPY_FILE_RANGE_64 => reply.result(self.copy_file_range_64(request)),
            opcode::FSYNC | opcode::FSYNCDIR => reply.result(self.fsync(request)),
            opcode::SYNCFS => reply.result(self.store.commit()),
            opcode::IOCTL => self.ioctl(request, reply),
            opcode::RELEASE | opcode::RELEASEDIR => reply.done(),
            opcode::OPEN if self.policy.answers_opens() => reply.result(self.open(request)),
            opcode::OPEN | opcode::OPENDIR | opcode::FLUSH => reply.refuse(Errno::NOSYS),
            _ => self.handle_metadata(request, reply),
        }
    }
}

/// Answers with bytes of any length.
fn reply_bytes(reply: Reply<'_>, bytes: Answer<Vec<u8>>) {
    match bytes {
        Ok(bytes) => reply.parts(&[&bytes]),
        Err(errno) => reply.refuse(errno),
    }
}

/// Answers a request that first asks for the size (`size` 0) and then for the bytes.
fn reply_sized(reply: Reply<'_>, size: u32, bytes: Answer<Vec<u8>>) {
    let bytes = match bytes {
        Ok(bytes) => bytes,
        Err(errno) => return reply.refuse(errno),
    };
    match u32::try_from(bytes.len()) {
        Ok(length) if size == 0 => reply.value(&abi::GetxattrOut { size: length, padding: 0 }),
        Ok(length) if length <= size => reply.parts(&[&bytes]),
        _ => reply.refuse(Errno::RANGE),
    }
}
