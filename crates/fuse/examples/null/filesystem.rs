//! A filesystem in one map: directories, regular files, nothing else.

use std::collections::{BTreeMap, HashMap};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

use buttress_fuse::protocol::abi::{self, Attr, EntryOut, fattr, opcode};
use buttress_fuse::protocol::channel::{Reply, Request};
use buttress_fuse::session::Handler;
use parking_lot::Mutex;
use rustix::io::Errno;
use zerocopy::IntoBytes;

const DIRECTORY: u32 = 0o040_000;
const REGULAR: u32 = 0o100_000;

/// The whole filesystem.
pub struct Null {
    nodes: Mutex<Nodes>,
}

struct Nodes {
    by_id: HashMap<u64, Node>,
    next: u64,
}

struct Node {
    attr: Attr,
    names: BTreeMap<OsString, u64>,
    data: Vec<u8>,
}

type Answer<T> = Result<T, Errno>;

impl Null {
    /// An empty top directory.
    pub fn new() -> Self {
        let mut nodes = Nodes { by_id: HashMap::new(), next: abi::ROOT_ID };
        nodes.add(DIRECTORY | 0o755, 0, 0);
        Self { nodes: Mutex::new(nodes) }
    }
}

impl Nodes {
    fn add(&mut self, mode: u32, uid: u32, gid: u32) -> u64 {
        let ino = self.next;
        self.next += 1;
        let attr = Attr { ino, mode, uid, gid, nlink: 1, blksize: 4096, ..Attr::default() };
        self.by_id.insert(ino, Node { attr, names: BTreeMap::new(), data: Vec::new() });
        ino
    }

    fn get(&mut self, id: u64) -> Answer<&mut Node> {
        self.by_id.get_mut(&id).ok_or(Errno::NOENT)
    }

    fn entry(&mut self, id: u64) -> Answer<EntryOut> {
        let attr = self.get(id)?.attr;
        let forever = u64::MAX >> 1;
        Ok(EntryOut {
            nodeid: id,
            attr,
            entry_valid: forever,
            attr_valid: forever,
            ..EntryOut::default()
        })
    }

    fn lookup(&mut self, request: &Request<'_>) -> Answer<EntryOut> {
        let name = request.body().text()?;
        match self.get(request.nodeid())?.names.get(name).copied() {
            Some(id) => self.entry(id),
            None => Ok(EntryOut { entry_valid: u64::MAX >> 1, ..EntryOut::default() }),
        }
    }

    fn make(&mut self, request: &Request<'_>, name: &OsStr, mode: u32) -> Answer<EntryOut> {
        if self.get(request.nodeid())?.names.contains_key(name) {
            return Err(Errno::EXIST);
        }
        let id = self.add(mode, request.uid(), request.gid());
        self.get(request.nodeid())?.names.insert(name.to_owned(), id);
        self.entry(id)
    }

    fn remove(&mut self, request: &Request<'_>) -> Answer<()> {
        let name = request.body().text()?;
        let names = &mut self.get(request.nodeid())?.names;
        let id = *names.get(name).ok_or(Errno::NOENT)?;
        if !self.get(id)?.names.is_empty() {
            return Err(Errno::NOTEMPTY);
        }
        self.get(request.nodeid())?.names.remove(name);
        Ok(())
    }

    fn setattr(&mut self, request: &Request<'_>) -> Answer<abi::AttrOut> {
        let wish: abi::SetattrIn = request.body().read()?;
        let node = self.get(request.nodeid())?;
        if wish.valid & fattr::SIZE != 0 {
            node.attr.size = wish.size;
            node.data.resize(usize::try_from(wish.size).map_err(|_| Errno::FBIG)?, 0);
        }
        if wish.valid & fattr::MODE != 0 {
            node.attr.mode = wish.mode;
        }
        self.getattr(request.nodeid())
    }

    fn getattr(&mut self, id: u64) -> Answer<abi::AttrOut> {
        let attr = self.get(id)?.attr;
        Ok(abi::AttrOut { attr, attr_valid: u64::MAX >> 1, ..abi::AttrOut::default() })
    }

    fn write(&mut self, request: &Request<'_>) -> Answer<abi::WriteOut> {
        let mut body = request.body();
        let wish: abi::WriteIn = body.read()?;
        let bytes = body.bytes(wish.size as usize)?;
        let node = self.get(request.nodeid())?;
        let start = usize::try_from(wish.offset).map_err(|_| Errno::FBIG)?;
        let end = start.checked_add(bytes.len()).ok_or(Errno::FBIG)?;
        node.data.resize(node.data.len().max(end), 0);
        node.data.get_mut(start..end).ok_or(Errno::FBIG)?.copy_from_slice(bytes);
        node.attr.size = node.data.len() as u64;
        Ok(abi::WriteOut { size: wish.size, padding: 0 })
    }

    fn read(&mut self, request: &Request<'_>) -> Answer<Vec<u8>> {
        let wish: abi::ReadIn = request.body().read()?;
        let data = &self.get(request.nodeid())?.data;
        let start = usize::try_from(wish.offset).map_or(data.len(), |at| at.min(data.len()));
        let end = data.len().min(start + wish.size as usize);
        Ok(data.get(start..end).unwrap_or_default().to_vec())
    }

    fn readdir(&mut self, request: &Request<'_>) -> Answer<Vec<u8>> {
        let wish: abi::ReadIn = request.body().read()?;
        let names = &self.get(request.nodeid())?.names;
        let dots = [(OsStr::new("."), 1), (OsStr::new(".."), 1)].into_iter();
        let all = dots.chain(names.iter().map(|(name, id)| (name.as_os_str(), *id)));
        let mut out = Vec::new();
        for (off, (name, ino)) in (1u64..).zip(all).skip(usize::try_from(wish.offset).unwrap_or(0))
        {
            let length = abi::dirent_len(name.len());
            if out.len() + length > wish.size as usize {
                break;
            }
            let end = out.len() + length;
            let namelen = u32::try_from(name.len()).unwrap_or(0);
            out.extend(abi::Dirent { ino, off, namelen, kind: 0 }.as_bytes());
            out.extend(name.as_bytes());
            out.resize(end, 0);
        }
        Ok(out)
    }

    fn create(&mut self, request: &Request<'_>) -> Answer<EntryOut> {
        let mut body = request.body();
        let wish: abi::CreateIn = body.read()?;
        self.make(request, body.text()?, REGULAR | (wish.mode & 0o7777))
    }

    fn mkdir(&mut self, request: &Request<'_>) -> Answer<EntryOut> {
        let mut body = request.body();
        let wish: abi::MkdirIn = body.read()?;
        self.make(request, body.text()?, DIRECTORY | (wish.mode & 0o7777))
    }
}

impl Handler for Null {
    fn handle(&self, request: &Request<'_>, reply: Reply<'_>) {
        let mut nodes = self.nodes.lock();
        match request.opcode() {
            opcode::LOOKUP => reply.result(nodes.lookup(request)),
            opcode::FORGET | opcode::BATCH_FORGET => reply.nothing(),
            opcode::GETATTR => reply.result(nodes.getattr(request.nodeid())),
            opcode::SETATTR => reply.result(nodes.setattr(request)),
            opcode::MKDIR => reply.result(nodes.mkdir(request)),
            opcode::CREATE => match nodes.create(request) {
                Ok(entry) => {
                    reply.parts(&[entry.as_bytes(), abi::OpenOut::default().as_bytes()]);
                }
                Err(errno) => reply.refuse(errno),
            },
            opcode::UNLINK | opcode::RMDIR => reply.result(nodes.remove(request)),
            opcode::OPENDIR => reply.value(&abi::OpenOut::default()),
            opcode::RELEASE | opcode::RELEASEDIR => reply.done(),
            opcode::WRITE => reply.result(nodes.write(request)),
            opcode::READ | opcode::READDIR => {
                let found = match request.opcode() {
                    opcode::READ => nodes.read(request),
                    _ => nodes.readdir(request),
                };
                match found {
                    Ok(bytes) => reply.parts(&[&bytes]),
                    Err(errno) => reply.refuse(errno),
                }
            }
            opcode::STATFS => reply.value(&abi::StatfsOut::default()),
            opcode::FSYNC => {
                drop(nodes);
                // Long enough to show that others are served meanwhile.
                std::thread::sleep(std::time::Duration::from_millis(300));
                reply.done();
            }
            _ => reply.refuse(Errno::NOSYS),
        }
    }
}
