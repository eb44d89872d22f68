//! A filesystem in one map. It asks the kernel for what a mount of ours asks for, and answers alike, so that it gets the same
//! requests, and does next to nothing for them.

use std::collections::{BTreeMap, HashMap};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use buttress_fuse::protocol::abi::{self, Attr, EntryOut, fattr, opcode};
use buttress_fuse::protocol::channel::{Body, Reply, Request};
use buttress_fuse::session::Handler;
use parking_lot::{Condvar, Mutex, MutexGuard};
use rustix::fs::RenameFlags;
use rustix::io::Errno;
use zerocopy::IntoBytes;

const TYPE: u32 = 0o170_000;
const DIRECTORY: u32 = 0o040_000;
const SYMLINK: u32 = 0o120_000;
const FOREVER: u64 = u64::MAX >> 1;
/// While the top has a file of this name, an fsync waits.
pub const HELD: &str = "held";
/// But not for ever: then it fails.
const HELD_MAX: Duration = Duration::from_secs(60);

/// The whole filesystem.
pub struct Null {
    nodes: Mutex<Nodes>,
    unlinked: Condvar,
    fsync: Duration,
}

struct Nodes {
    by_id: HashMap<u64, Node>,
    next: u64,
}

struct Node {
    attr: Attr,
    parent: u64,
    /// Of a directory: names, with their cookies, which count up.
    names: HashMap<OsString, u64>,
    listed: BTreeMap<u64, (OsString, u64)>,
    /// Of a file or symlink.
    data: Vec<u8>,
}

type Answer<T> = Result<T, Errno>;

impl Null {
    /// An empty top directory. Each fsync takes so long.
    pub fn new(fsync: Duration) -> Self {
        let mut nodes = Nodes { by_id: HashMap::new(), next: abi::ROOT_ID };
        nodes.add(abi::ROOT_ID, DIRECTORY | 0o755, (0, 0), Vec::new());
        Self { nodes: Mutex::new(nodes), unlinked: Condvar::new(), fsync }
    }

    fn fsync(&self, mut nodes: MutexGuard<'_, Nodes>) -> Answer<()> {
        let until = Instant::now() + HELD_MAX;
        while nodes.get(abi::ROOT_ID)?.find(HELD.as_ref()).is_some() {
            if self.unlinked.wait_until(&mut nodes, until).timed_out() {
                return Err(Errno::IO);
            }
        }
        drop(nodes);
        if !self.fsync.is_zero() {
            std::thread::sleep(self.fsync);
        }
        Ok(())
    }
}

impl Node {
    /// What has changed now.
    fn touch(&mut self) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        (self.attr.mtime, self.attr.mtimensec) = (now.as_secs(), now.subsec_nanos());
        (self.attr.ctime, self.attr.ctimensec) = (now.as_secs(), now.subsec_nanos());
    }

    fn sized(&mut self) {
        self.attr.size = self.data.len() as u64;
        self.attr.blocks = self.attr.size.div_ceil(512);
        self.touch();
    }

    fn find(&self, name: &OsStr) -> Option<u64> {
        self.names.get(name).and_then(|cookie| self.listed.get(cookie)).map(|(_, id)| *id)
    }

    fn insert(&mut self, name: &OsStr, id: u64) {
        // 1 and 2 are the dots.
        let cookie = self.listed.last_key_value().map_or(3, |(last, _)| last + 1);
        self.names.insert(name.to_owned(), cookie);
        self.listed.insert(cookie, (name.to_owned(), id));
        self.touch();
    }

    fn remove(&mut self, name: &OsStr) -> Option<u64> {
        self.touch();
        self.names.remove(name).and_then(|cookie| self.listed.remove(&cookie)).map(|(_, id)| id)
    }

    fn put(&mut self, offset: u64, bytes: &[u8]) -> Answer<()> {
        let start = usize::try_from(offset).map_err(|_| Errno::FBIG)?;
        let end = start.checked_add(bytes.len()).ok_or(Errno::FBIG)?;
        self.data.resize(self.data.len().max(end), 0);
        self.data.get_mut(start..end).ok_or(Errno::FBIG)?.copy_from_slice(bytes);
        self.sized();
        Ok(())
    }

    fn part(&self, offset: u64, length: u64) -> &[u8] {
        let at = |offset| usize::try_from(offset).unwrap_or(usize::MAX).min(self.data.len());
        self.data.get(at(offset)..at(offset.saturating_add(length))).unwrap_or_default()
    }
}

impl Nodes {
    fn add(&mut self, parent: u64, mode: u32, owner: (u32, u32), data: Vec<u8>) -> u64 {
        let (ino, (uid, gid)) = (self.next, owner);
        self.next += 1;
        let attr = Attr { ino, mode, uid, gid, nlink: 1, blksize: 4096, ..Attr::default() };
        let (names, listed) = Default::default();
        let mut node = Node { attr, parent, names, listed, data };
        node.sized();
        self.by_id.insert(ino, node);
        ino
    }

    fn get(&mut self, id: u64) -> Answer<&mut Node> {
        self.by_id.get_mut(&id).ok_or(Errno::NOENT)
    }

    fn entry(&mut self, id: u64) -> Answer<EntryOut> {
        let attr = self.get(id)?.attr;
        let (entry_valid, attr_valid) = (FOREVER, FOREVER);
        Ok(EntryOut { nodeid: id, attr, entry_valid, attr_valid, ..EntryOut::default() })
    }

    fn lookup(&mut self, request: &Request<'_>) -> Answer<EntryOut> {
        let found = self.get(request.nodeid())?.find(request.body().text()?);
        self.entry(found.ok_or(Errno::NOENT)?)
    }

    fn make(
        &mut self,
        request: &Request<'_>,
        name: &OsStr,
        mode: u32,
        data: &[u8],
    ) -> Answer<EntryOut> {
        if self.get(request.nodeid())?.find(name).is_some() {
            return Err(Errno::EXIST);
        }
        let owner = (request.uid(), request.gid());
        let id = self.add(request.nodeid(), mode, owner, data.to_vec());
        self.get(request.nodeid())?.insert(name, id);
        self.entry(id)
    }

    /// MKNOD, MKDIR and SYMLINK.
    fn make_any(&mut self, request: &Request<'_>) -> Answer<EntryOut> {
        let mut body = request.body();
        match request.opcode() {
            opcode::MKDIR => {
                let wish: abi::MkdirIn = body.read()?;
                let mode = DIRECTORY | (wish.mode & 0o7777 & !wish.umask);
                self.make(request, body.text()?, mode, &[])
            }
            opcode::MKNOD => {
                let wish: abi::MknodIn = body.read()?;
                self.make(request, body.text()?, wish.mode & !wish.umask, &[])
            }
            _ => {
                let (name, target) = (body.text()?, body.text()?);
                self.make(request, name, SYMLINK | 0o777, target.as_bytes())
            }
        }
    }

    fn link(&mut self, request: &Request<'_>) -> Answer<EntryOut> {
        let mut body = request.body();
        let wish: abi::LinkIn = body.read()?;
        let directory = self.get(request.nodeid())?;
        let name = body.text()?;
        if directory.find(name).is_some() {
            return Err(Errno::EXIST);
        }
        directory.insert(name, wish.oldnodeid);
        self.get(wish.oldnodeid)?.attr.nlink += 1;
        self.entry(wish.oldnodeid)
    }

    /// The name goes; the node goes when the kernel forgets it.
    fn unlink(&mut self, directory: u64, name: &OsStr) -> Answer<()> {
        let id = self.get(directory)?.find(name).ok_or(Errno::NOENT)?;
        if !self.get(id)?.names.is_empty() {
            return Err(Errno::NOTEMPTY);
        }
        self.get(directory)?.remove(name);
        self.get(id)?.attr.nlink -= 1;
        Ok(())
    }

    fn rename(&mut self, request: &Request<'_>) -> Answer<()> {
        let mut body = request.body();
        let (to, flags) = match request.opcode() {
            opcode::RENAME2 => {
                let wish: abi::Rename2In = body.read()?;
                (wish.newdir, wish.flags)
            }
            _ => (body.read::<abi::RenameIn>()?.newdir, 0),
        };
        let (old, new) = (body.text()?, body.text()?);
        let id = self.get(request.nodeid())?.find(old).ok_or(Errno::NOENT)?;
        if self.get(to)?.find(new).is_some() {
            if flags & RenameFlags::NOREPLACE.bits() != 0 {
                return Err(Errno::EXIST);
            }
            self.unlink(to, new)?;
        }
        self.get(request.nodeid())?.remove(old);
        self.get(to)?.insert(new, id);
        self.get(id)?.parent = to;
        Ok(())
    }

    fn setattr(&mut self, request: &Request<'_>) -> Answer<abi::AttrOut> {
        let wish: abi::SetattrIn = request.body().read()?;
        let node = self.get(request.nodeid())?;
        let has = |bit| wish.valid & bit != 0;
        if has(fattr::SIZE) {
            node.data.resize(usize::try_from(wish.size).map_err(|_| Errno::FBIG)?, 0);
            node.sized();
        }
        node.touch();
        let attr = &mut node.attr;
        if has(fattr::MODE) {
            attr.mode = attr.mode & TYPE | wish.mode & !TYPE;
        }
        if has(fattr::UID) {
            attr.uid = wish.uid;
        }
        if has(fattr::GID) {
            attr.gid = wish.gid;
        }
        if has(fattr::MTIME) && !has(fattr::MTIME_NOW) {
            (attr.mtime, attr.mtimensec) = (wish.mtime, wish.mtimensec);
        }
        if has(fattr::ATIME) && !has(fattr::ATIME_NOW) {
            (attr.atime, attr.atimensec) = (wish.atime, wish.atimensec);
        }
        self.getattr(request.nodeid())
    }

    fn getattr(&mut self, id: u64) -> Answer<abi::AttrOut> {
        let attr = self.get(id)?.attr;
        Ok(abi::AttrOut { attr, attr_valid: FOREVER, ..abi::AttrOut::default() })
    }

    fn write(&mut self, request: &Request<'_>) -> Answer<abi::WriteOut> {
        let mut body = request.body();
        let wish: abi::WriteIn = body.read()?;
        let bytes = body.bytes(wish.size as usize)?;
        self.get(request.nodeid())?.put(wish.offset, bytes)?;
        Ok(abi::WriteOut { size: wish.size, padding: 0 })
    }

    fn copy(&mut self, request: &Request<'_>) -> Answer<abi::CopyFileRangeOut> {
        let wish: abi::CopyFileRangeIn = request.body().read()?;
        let bytes = self.get(request.nodeid())?.part(wish.off_in, wish.len).to_vec();
        self.get(wish.nodeid_out)?.put(wish.off_out, &bytes)?;
        Ok(abi::CopyFileRangeOut { bytes_copied: bytes.len() as u64 })
    }

    /// Answers with the bytes where they are.
    fn read(&mut self, request: &Request<'_>, reply: Reply<'_>) {
        let wish = request.body().read::<abi::ReadIn>();
        match wish.and_then(|wish| Ok((wish, self.get(request.nodeid())?))) {
            Ok((wish, node)) => reply.parts(&[node.part(wish.offset, wish.size.into())]),
            Err(errno) => reply.refuse(errno),
        }
    }

    fn list(&mut self, request: &Request<'_>, plus: bool) -> Answer<Vec<u8>> {
        let wish: abi::ReadIn = request.body().read()?;
        let node = self.get(request.nodeid())?;
        let dots = [(1, ".", request.nodeid()), (2, "..", node.parent)];
        let dots = dots.map(|(cookie, name, id)| (cookie, OsString::from(name), id));
        let rest = node.listed.range(wish.offset + 1..);
        let rest = rest.map(|(cookie, (name, id))| (*cookie, name.clone(), *id));
        let dots = dots.into_iter().filter(|(cookie, ..)| *cookie > wish.offset);
        let all: Vec<_> =
            dots.chain(rest).take(wish.size as usize / size_of::<abi::Dirent>()).collect();
        let mut out = Vec::new();
        for (off, name, ino) in all {
            let entry = match plus {
                true if off > 2 => self.entry(ino)?.as_bytes().to_vec(),
                true => EntryOut::default().as_bytes().to_vec(),
                false => Vec::new(),
            };
            let length = entry.len() + abi::dirent_len(name.len());
            if out.len() + length > wish.size as usize {
                break;
            }
            let end = out.len() + length;
            let namelen = u32::try_from(name.len()).unwrap_or(0);
            let kind = self.get(ino)?.attr.mode >> 12;
            out.extend(entry);
            out.extend(abi::Dirent { ino, off, namelen, kind }.as_bytes());
            out.extend(name.as_bytes());
            out.resize(end, 0);
        }
        Ok(out)
    }

    fn forget(&mut self, id: u64) {
        if self.by_id.get(&id).is_some_and(|node| node.attr.nlink == 0) {
            self.by_id.remove(&id);
        }
    }

    fn forget_all(&mut self, mut body: Body<'_>) {
        let count = body.read::<abi::BatchForgetIn>().map_or(0, |wish| wish.count);
        for _ in 0..count {
            let Ok(abi::ForgetOne { nodeid, .. }) = body.read() else { return };
            self.forget(nodeid);
        }
    }

    fn names(&mut self, request: &Request<'_>, reply: Reply<'_>) {
        match request.opcode() {
            opcode::LOOKUP => reply.result(self.lookup(request)),
            opcode::FORGET => {
                self.forget(request.nodeid());
                reply.nothing();
            }
            opcode::BATCH_FORGET => {
                self.forget_all(request.body());
                reply.nothing();
            }
            opcode::MKDIR | opcode::MKNOD | opcode::SYMLINK => reply.result(self.make_any(request)),
            opcode::LINK => reply.result(self.link(request)),
            opcode::UNLINK | opcode::RMDIR => {
                let name = request.body().text();
                reply.result(name.and_then(|name| self.unlink(request.nodeid(), name)));
            }
            opcode::RENAME | opcode::RENAME2 => reply.result(self.rename(request)),
            opcode::READDIR | opcode::READDIRPLUS => {
                match self.list(request, request.opcode() == opcode::READDIRPLUS) {
                    Ok(bytes) => reply.parts(&[&bytes]),
                    Err(errno) => reply.refuse(errno),
                }
            }
            _ => reply.refuse(Errno::NOSYS),
        }
    }
}

impl Handler for Null {
    fn handle(&self, request: &Request<'_>, reply: Reply<'_>) {
        let mut nodes = self.nodes.lock();
        match request.opcode() {
            opcode::GETATTR => reply.result(nodes.getattr(request.nodeid())),
            opcode::SETATTR => reply.result(nodes.setattr(request)),
            opcode::GETXATTR => reply.refuse(Errno::NODATA),
            opcode::LISTXATTR => reply.value(&abi::GetxattrOut::default()),
            opcode::WRITE => reply.result(nodes.write(request)),
            opcode::COPY_FILE_RANGE_64 => reply.result(nodes.copy(request)),
            opcode::READ => nodes.read(request, reply),
            opcode::READLINK => match nodes.get(request.nodeid()) {
                Ok(node) => reply.parts(&[&node.data]),
                Err(errno) => reply.refuse(errno),
            },
            opcode::RELEASE | opcode::RELEASEDIR => reply.done(),
            opcode::STATFS => reply.value(&abi::StatfsOut::default()),
            opcode::FSYNC | opcode::FSYNCDIR => reply.result(self.fsync(nodes)),
            _ => {
                nodes.names(request, reply);
                if request.opcode() == opcode::UNLINK {
                    self.unlinked.notify_all();
                }
            }
        }
    }
}
