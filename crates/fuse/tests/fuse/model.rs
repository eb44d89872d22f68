//! A filesystem in memory with the semantics of the real one, as far as the kernel can see them.

use std::collections::{BTreeMap, HashMap};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

use buttress_fuse::mount::acl;
use buttress_fuse::mount::control::{Control, Facts, SubvolumeFacts};
use buttress_fuse::mount::store::*;
use buttress_fuse::nodes::{Identity, SUBVOLUME_TOP};
use parking_lot::Mutex;
use rustix::io::Errno;

/// The one subvolume.
pub const SUBVOLUME: u64 = 5;
const TYPE: u32 = 0o170_000;
const DIRECTORY: u32 = 0o040_000;

/// All inodes by number.
pub struct Model {
    inodes: Mutex<Inodes>,
}

struct Inodes {
    by_ino: HashMap<u64, Node>,
    next: u64,
}

/// An inode.
pub type Node = Arc<Inode>;

/// An inode: its number and everything else under one lock.
pub struct Inode {
    ino: u64,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    attributes: Attributes,
    parent: u64,
    index: u64,
    names: BTreeMap<u64, (OsString, u64)>,
    data: Vec<u8>,
    xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    holds: u64,
    /// It plays the top of a subvolume, whose id is the inode's number.
    is_top: bool,
}

fn now() -> Time {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    Time { sec: since.as_secs() as i64, nsec: since.subsec_nanos() }
}

impl State {
    fn find(&self, name: &OsStr) -> Option<(u64, u64)> {
        let found = self.names.iter().find(|(_, (known, _))| known == name);
        found.map(|(index, (_, ino))| (*index, *ino))
    }

    fn add(&mut self, name: &OsStr, ino: u64) {
        self.index = self.index.max(1) + 1;
        self.names.insert(self.index, (name.to_owned(), ino));
        self.changed();
    }

    fn changed(&mut self) {
        self.attributes.mtime = now();
        self.attributes.ctime = now();
        if self.attributes.mode & TYPE != DIRECTORY {
            self.attributes.size = self.data.len() as u64;
            self.attributes.blocks = self.attributes.size.div_ceil(4096) * 8;
        }
    }
}

impl Model {
    /// An empty filesystem whose top anybody may write to.
    pub fn new() -> Self {
        let model = Self { inodes: Mutex::new(Inodes { by_ino: HashMap::new(), next: 256 }) };
        let top = model.add(&NewInode { mode: DIRECTORY | 0o777, ..Default::default() });
        top.state.lock().parent = top.ino;
        model
    }

    fn add(&self, new: &NewInode) -> Node {
        let mut inodes = self.inodes.lock();
        let ino = inodes.next;
        inodes.next += 1;
        let attributes = Attributes {
            generation: 1,
            mode: if new.inherit { new.mode } else { new.mode & !new.umask },
            nlink: 1,
            uid: new.uid,
            gid: new.gid,
            device: new.device,
            atime: now(),
            mtime: now(),
            ctime: now(),
            btime: now(),
            blocks_settled: true,
            ..Attributes::default()
        };
        let state = Mutex::new(State { attributes, ..State::default() });
        let node = Arc::new(Inode { ino, state });
        inodes.by_ino.insert(ino, Arc::clone(&node));
        node
    }

    fn by_ino(&self, ino: u64) -> Answer<Node> {
        self.inodes.lock().by_ino.get(&ino).cloned().ok_or(Errno::STALE)
    }

    fn insert(&self, directory: &Node, name: &OsStr, new: &NewInode) -> Answer<Node> {
        if name.len() > 255 {
            return Err(Errno::NAMETOOLONG);
        }
        if directory.state.lock().find(name).is_some() {
            return Err(Errno::EXIST);
        }
        let mut new = *new;
        let above = directory.state.lock().attributes;
        if above.mode & 0o2000 != 0 {
            new.gid = above.gid;
            new.mode |= if new.mode & TYPE == DIRECTORY { 0o2000 } else { 0 };
        }
        let node = self.add(&new);
        node.state.lock().parent = directory.ino;
        if new.inherit {
            let default = self.xattr(directory, OsStr::new(acl::DEFAULT))?.unwrap();
            let (mode, access) = acl::inherited(&default, new.mode)?;
            let mut state = node.state.lock();
            state.attributes.mode = mode;
            state.xattrs.extend(access.map(|value| (acl::ACCESS.into(), value)));
            if mode & TYPE == DIRECTORY {
                state.xattrs.insert(acl::DEFAULT.into(), default);
            }
        }
        directory.state.lock().add(name, node.ino);
        Ok(node)
    }

    fn remove(&self, directory: &Node, name: &OsStr, is_dir: bool) -> Answer<()> {
        let (index, ino) = directory.state.lock().find(name).ok_or(Errno::NOENT)?;
        let node = self.by_ino(ino)?;
        let mut state = node.state.lock();
        match (state.attributes.mode & TYPE == DIRECTORY, is_dir) {
            (true, false) => return Err(Errno::ISDIR),
            (false, true) => return Err(Errno::NOTDIR),
            (true, true) if !state.names.is_empty() => return Err(Errno::NOTEMPTY),
            _ => {}
        }
        state.attributes.nlink -= 1;
        state.attributes.ctime = now();
        drop(state);
        let mut above = directory.state.lock();
        above.names.remove(&index);
        above.changed();
        Ok(())
    }
}

impl Store for Model {
    type Node = Node;

    fn load(&self, identity: Identity) -> Answer<Node> {
        match identity.subvolume {
            SUBVOLUME => self.by_ino(identity.ino),
            id => self.by_ino(id),
        }
    }

    fn identity(&self, node: &Node) -> Identity {
        match node.state.lock().is_top {
            true => Identity { subvolume: node.ino, ino: SUBVOLUME_TOP },
            false => Identity { subvolume: SUBVOLUME, ino: node.ino },
        }
    }

    fn hold(&self, node: &Node) -> Answer<()> {
        node.state.lock().holds += 1;
        Ok(())
    }

    fn release(&self, node: Node) {
        let mut state = node.state.lock();
        state.holds = state.holds.checked_sub(1).unwrap();
        if state.attributes.nlink == 0 && state.holds == 0 {
            self.inodes.lock().by_ino.remove(&node.ino);
        }
    }

    fn attributes(&self, node: &Node) -> Answer<Attributes> {
        Ok(node.state.lock().attributes)
    }

    fn set_attributes(&self, node: &Node, change: &SetAttributes) -> Answer<Attributes> {
        let mut state = node.state.lock();
        if let Some(size) = change.size {
            state.data.resize(size as usize, 0);
            state.changed();
        }
        let set = |time| match time {
            SetTime::Now => now(),
            SetTime::To(time) => time,
        };
        let a = &mut state.attributes;
        a.mode = change.mode.map_or(a.mode, |mode| a.mode & TYPE | mode);
        a.uid = change.uid.unwrap_or(a.uid);
        a.gid = change.gid.unwrap_or(a.gid);
        a.atime = change.atime.map_or(a.atime, set);
        a.mtime = change.mtime.map_or(a.mtime, set);
        a.ctime = change.ctime.unwrap_or_else(now);
        Ok(*a)
    }

    fn lookup(&self, directory: &Node, name: &OsStr) -> Answer<Option<Node>> {
        let found = directory.state.lock().find(name);
        found.map(|(_, ino)| self.by_ino(ino)).transpose()
    }

    fn parent(&self, directory: &Node) -> Answer<Node> {
        let parent = directory.state.lock().parent;
        self.by_ino(if parent == 0 { SUBVOLUME_TOP } else { parent })
    }

    fn create(&self, directory: &Node, name: &OsStr, new: &NewInode) -> Answer<(Node, Attributes)> {
        let node = self.insert(directory, name, new)?;
        let attributes = self.attributes(&node)?;
        Ok((node, attributes))
    }

    fn symlink(
        &self,
        dir: &Node,
        name: &OsStr,
        target: &OsStr,
        new: &NewInode,
    ) -> Answer<(Node, Attributes)> {
        let node = self.insert(dir, name, new)?;
        let mut state = node.state.lock();
        state.data = target.as_bytes().to_vec();
        state.changed();
        let attributes = state.attributes;
        drop(state);
        Ok((node, attributes))
    }

    fn temporary(&self, _directory: &Node, new: &NewInode) -> Answer<(Node, Attributes)> {
        let node = self.add(new);
        let mut state = node.state.lock();
        state.attributes.nlink = 0;
        state.holds = 1;
        let attributes = state.attributes;
        drop(state);
        Ok((node, attributes))
    }

    fn link(&self, node: &Node, directory: &Node, name: &OsStr) -> Answer<Attributes> {
        if directory.state.lock().find(name).is_some() {
            return Err(Errno::EXIST);
        }
        let mut state = node.state.lock();
        state.attributes.nlink += 1;
        state.attributes.ctime = now();
        drop(state);
        directory.state.lock().add(name, node.ino);
        self.attributes(node)
    }

    fn unlink(&self, directory: &Node, name: &OsStr) -> Answer<()> {
        self.remove(directory, name, false)
    }

    fn rmdir(&self, directory: &Node, name: &OsStr) -> Answer<()> {
        self.remove(directory, name, true)
    }

    fn rename(&self, from: (&Node, &OsStr), to: (&Node, &OsStr), flags: RenameFlags) -> Answer<()> {
        let (index, ino) = from.0.state.lock().find(from.1).ok_or(Errno::NOENT)?;
        let target = to.0.state.lock().find(to.1);
        if flags.exchange {
            let (there, other) = target.ok_or(Errno::NOENT)?;
            from.0.state.lock().names.insert(index, (from.1.to_owned(), other));
            to.0.state.lock().names.insert(there, (to.1.to_owned(), ino));
            return Ok(());
        }
        if let Some((_, other)) = target {
            if flags.no_replace {
                return Err(Errno::EXIST);
            }
            let is_dir = self.by_ino(other)?.state.lock().attributes.mode & TYPE == DIRECTORY;
            self.remove(to.0, to.1, is_dir)?;
        }
        from.0.state.lock().names.remove(&index);
        to.0.state.lock().add(to.1, ino);
        if let Some((uid, gid)) = flags.whiteout {
            let new = NewInode { mode: 0o020_000, uid, gid, ..NewInode::default() };
            self.insert(from.0, from.1, &new)?;
        }
        Ok(())
    }

    fn read_link(&self, node: &Node) -> Answer<Vec<u8>> {
        Ok(node.state.lock().data.clone())
    }

    fn list(
        &self,
        directory: &Node,
        from: u64,
        each: &mut dyn FnMut(ListEntry<'_>) -> bool,
    ) -> Answer<()> {
        let state = directory.state.lock();
        for (&index, (name, ino)) in state.names.range(from..) {
            let kind = self.by_ino(*ino)?.state.lock().attributes.mode >> 12;
            let identity = Identity { subvolume: SUBVOLUME, ino: *ino };
            if !each(ListEntry { index, name, identity, kind }) {
                break;
            }
        }
        Ok(())
    }

    fn read(&self, node: &Node, offset: u64, buffer: &mut [u8]) -> Answer<(usize, Attributes)> {
        let state = node.state.lock();
        let tail = state.data.get(offset as usize..).unwrap_or_default();
        let length = tail.len().min(buffer.len());
        buffer[..length].copy_from_slice(&tail[..length]);
        drop(state);
        Ok((length, self.attributes(node)?))
    }

    fn accessed(&self, node: &Node) -> Answer<()> {
        node.state.lock().attributes.atime = now();
        Ok(())
    }

    fn write(&self, node: &Node, offset: u64, data: &[u8]) -> Answer<usize> {
        let mut state = node.state.lock();
        let end = offset as usize + data.len();
        let length = state.data.len().max(end);
        state.data.resize(length, 0);
        state.data[offset as usize..end].copy_from_slice(data);
        state.changed();
        Ok(data.len())
    }

    fn allocate(&self, node: &Node, offset: u64, length: u64, how: Allocate) -> Answer<()> {
        let mut state = node.state.lock();
        let (start, end) = (offset as usize, (offset + length) as usize);
        let size = state.data.len();
        if let Allocate::Reserve { keep_size: false } | Allocate::Zero { keep_size: false } = how {
            state.data.resize(size.max(end), 0);
        }
        if !matches!(how, Allocate::Reserve { .. }) {
            let end = end.min(state.data.len());
            state.data[start.min(end)..end].fill(0);
        }
        state.changed();
        Ok(())
    }

    fn copy(&self, from: (&Node, u64), to: (&Node, u64), length: u64) -> Answer<u64> {
        let mut bytes = vec![0; length.min(1 << 20) as usize];
        let (length, _) = self.read(from.0, from.1, &mut bytes)?;
        self.write(to.0, to.1, &bytes[..length])?;
        Ok(length as u64)
    }

    fn seek(&self, node: &Node, offset: u64, what: Seek) -> Answer<u64> {
        let size = node.state.lock().data.len() as u64;
        match what {
            _ if offset >= size => Err(Errno::NXIO),
            Seek::Data => Ok(offset),
            Seek::Hole => Ok(size),
        }
    }

    fn xattr(&self, node: &Node, name: &OsStr) -> Answer<Option<Vec<u8>>> {
        Ok(node.state.lock().xattrs.get(name.as_bytes()).cloned())
    }

    fn is_plain(&self, node: &Node) -> bool {
        node.state.lock().xattrs.is_empty()
    }

    fn xattrs(&self, node: &Node) -> Answer<Vec<Vec<u8>>> {
        Ok(node.state.lock().xattrs.keys().cloned().collect())
    }

    fn set_xattr(&self, node: &Node, name: &OsStr, value: &[u8], how: SetXattr) -> Answer<()> {
        let mut state = node.state.lock();
        match (how, state.xattrs.contains_key(name.as_bytes())) {
            (SetXattr::Create, true) => return Err(Errno::EXIST),
            (SetXattr::Replace, false) => return Err(Errno::NODATA),
            _ => {}
        }
        state.xattrs.insert(name.as_bytes().to_vec(), value.to_vec());
        Ok(())
    }

    fn remove_xattr(&self, node: &Node, name: &OsStr) -> Answer<()> {
        node.state.lock().xattrs.remove(name.as_bytes()).map(drop).ok_or(Errno::NODATA)
    }

    fn space(&self) -> Answer<SpaceNumbers> {
        Ok(SpaceNumbers { total: 1 << 30, free: 1 << 29, available: 1 << 28, sector: 4096 })
    }

    fn sync(&self, _node: &Self::Node) -> Answer<()> {
        Ok(())
    }

    fn commit(&self) -> Answer<()> {
        Ok(())
    }
}

/// Subvolumes of the model are directories, which shows that the kernel learns of the names.
impl Control for Model {
    fn create_subvolume(
        &self,
        directory: &Node,
        name: &OsStr,
        new: &NewInode,
        _groups: &[u64],
    ) -> Answer<()> {
        self.insert(directory, name, new)?.state.lock().is_top = true;
        Ok(())
    }

    fn snapshot(
        &self,
        source: u64,
        directory: &Node,
        name: &OsStr,
        ro: bool,
        groups: &[u64],
    ) -> Answer<()> {
        if source != SUBVOLUME {
            return Err(Errno::INVAL);
        }
        let mode = DIRECTORY | if ro { 0o555 } else { 0o755 };
        self.create_subvolume(directory, name, &NewInode { mode, ..NewInode::default() }, groups)
    }

    fn delete_subvolume(&self, directory: &Node, name: &OsStr, _: &Node) -> Answer<()> {
        self.remove(directory, name, true)
    }

    fn subvolume(&self, id: u64) -> Answer<SubvolumeFacts> {
        let name = "a\nb".into();
        Ok(SubvolumeFacts { id, name, generation: 7, ..SubvolumeFacts::default() })
    }

    fn subvolumes(&self, from: u64) -> Answer<Vec<u64>> {
        Ok((from.max(5)..1000).collect())
    }

    fn facts(&self) -> Answer<Facts> {
        Ok(Facts { fsid: [9; 16], nodesize: 16384, label: b"model".to_vec(), ..Facts::default() })
    }
}
