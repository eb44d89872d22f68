//! A filesystem in memory: what the engine must do, in the plainest words.
//!
//! The model knows names, attributes, contents and subvolumes, and nothing of blocks. For each operation it has a question,
//! `refuse_…`, which answers every errno that would be right (none: the operation must succeed), and a change that is made
//! when the real one has succeeded. Inode numbers and subvolume ids are those that the real filesystem gave.

mod content;
mod files;
mod names;
mod volumes;

use std::collections::BTreeMap;
use std::sync::Arc;

use buttress::{Errno, FileKind, Node, Times};

pub use content::{Content, PAGE};
pub use files::{Range, XATTR_ROOM};
pub use names::Moved;

/// Every errno that would be right; none when the operation must succeed.
pub type Refusal = Vec<Errno>;

/// What a name leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// A file of the same subvolume.
    Inode(u64),
    /// The top of a subvolume.
    Subvolume(u64),
    /// An empty directory where a snapshot has no copy of this subvolume.
    Stub(u64),
}

/// The entries of a directory. Listing goes by the second member of an entry.
#[derive(Clone, Debug, Default)]
pub struct Directory {
    /// Where the names lead, and their places in the order of listing.
    pub entries: BTreeMap<Vec<u8>, (Target, u64)>,
    pub(crate) next: u64,
    /// The directory that holds this one; its own number at the top.
    pub parent: u64,
}

impl Directory {
    pub(crate) fn add(&mut self, name: &[u8], target: Target) {
        self.entries.insert(name.to_vec(), (target, self.next));
        self.next += 1;
    }

    /// Names in the order of listing.
    pub fn listed(&self) -> Vec<(&[u8], Target)> {
        let mut all: Vec<_> = self.entries.iter().map(|(name, (t, at))| (*at, name, *t)).collect();
        all.sort_unstable_by_key(|(at, ..)| *at);
        all.into_iter().map(|(_, name, target)| (name.as_slice(), target)).collect()
    }
}

/// What a file holds.
#[derive(Clone, Debug)]
pub enum Body {
    /// A regular file.
    File(Content),
    /// A directory.
    Directory(Directory),
    /// A symbolic link.
    Link(Vec<u8>),
    /// Device nodes, pipes, sockets.
    Special(FileKind, u64),
}

/// A file.
#[derive(Clone, Debug)]
pub struct Inode {
    /// Permissions.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Links.
    pub nlink: u32,
    /// Times as the real filesystem gave them.
    pub times: Times,
    /// Extended attributes.
    pub xattrs: BTreeMap<Vec<u8>, Arc<[u8]>>,
    /// What it holds.
    pub body: Body,
}

impl Inode {
    /// What it is.
    pub fn kind(&self) -> FileKind {
        match &self.body {
            Body::File(_) => FileKind::Regular,
            Body::Directory(_) => FileKind::Directory,
            Body::Link(_) => FileKind::Symlink,
            Body::Special(kind, _) => *kind,
        }
    }

    /// Its size in bytes as `stat` tells it.
    pub fn size(&self) -> u64 {
        match &self.body {
            Body::File(content) => content.size(),
            Body::Directory(dir) => dir.entries.keys().map(|name| 2 * name.len() as u64).sum(),
            Body::Link(target) => target.len() as u64,
            Body::Special(..) => 0,
        }
    }

    /// The device of a device node.
    pub fn rdev(&self) -> u64 {
        if let Body::Special(_, rdev) = self.body { rdev } else { 0 }
    }

    /// Its entries, if it is a directory.
    pub fn directory(&self) -> Option<&Directory> {
        if let Body::Directory(dir) = &self.body { Some(dir) } else { None }
    }

    /// Its bytes, if it is a regular file.
    pub fn content(&self) -> Option<&Content> {
        if let Body::File(content) = &self.body { Some(content) } else { None }
    }
}

/// A subvolume.
#[derive(Clone, Debug)]
pub struct Volume {
    /// Its files by number.
    pub inodes: BTreeMap<u64, Arc<Inode>>,
    /// Nothing in it may change.
    pub read_only: bool,
    /// The directory that has its name, and the name; none at the top, or when that is outside of the model.
    pub place: Option<(Node, Vec<u8>)>,
}

/// How quotas are counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum QuotaMode {
    /// There are none.
    #[default]
    Off,
    /// By who refers to something.
    Full,
    /// By who has allocated it.
    Simple,
}

/// A filesystem, or a part of one: everything below a directory.
#[derive(Clone, Debug)]
pub struct Model {
    /// The directory where paths start.
    pub root: Node,
    /// Subvolumes by id. That of `root` holds no more than what is below that.
    pub volumes: BTreeMap<u64, Volume>,
    /// Files that are held open, by the number of the handle.
    pub handles: BTreeMap<u8, Node>,
    /// Bytes of a tree block: limits the size of xattrs and symbolic links.
    pub nodesize: u32,
    /// What quotas there are.
    pub quotas: QuotaMode,
}

impl Model {
    /// A model of what is below `root`, an empty directory with these values.
    pub fn new(root: Node, top: Inode, nodesize: u32) -> Model {
        let inodes = BTreeMap::from([(root.ino, Arc::new(top))]);
        let volume = Volume { inodes, read_only: false, place: None };
        let volumes = BTreeMap::from([(root.subvolume, volume)]);
        let (handles, quotas) = (BTreeMap::new(), QuotaMode::Off);
        Model { root, volumes, handles, nodesize, quotas }
    }

    /// The file `node`.
    pub fn inode(&self, node: Node) -> Option<&Inode> {
        self.volumes.get(&node.subvolume)?.inodes.get(&node.ino).map(|inode| &**inode)
    }

    /// The file `node`, to be changed.
    pub fn inode_mut(&mut self, node: Node) -> Option<&mut Inode> {
        let volume = self.volumes.get_mut(&node.subvolume)?;
        volume.inodes.get_mut(&node.ino).map(Arc::make_mut)
    }

    fn directory_mut(&mut self, node: Node) -> Option<&mut Directory> {
        match &mut self.inode_mut(node)?.body {
            Body::Directory(dir) => Some(dir),
            _ => None,
        }
    }

    /// Where an entry of a directory in `subvolume` leads.
    pub fn node_of(subvolume: u64, target: Target) -> Node {
        match target {
            Target::Inode(ino) => Node { subvolume, ino },
            Target::Subvolume(id) => Node::top(id),
            Target::Stub(id) => Node::stub(subvolume, id),
        }
    }

    /// What `name` in `dir` leads to.
    pub fn lookup(&self, dir: Node, name: &[u8]) -> Option<Target> {
        let dir = self.inode(dir)?.directory()?;
        dir.entries.get(name).map(|(target, _)| *target)
    }

    /// What a path leads to: names separated by slashes, from the root; or `@` and the number of a handle.
    pub fn resolve(&self, path: &str) -> Result<Node, Errno> {
        if let Some(handle) = path.strip_prefix('@') {
            let handle = handle.parse().map_err(|_| Errno::INVAL)?;
            return self.handles.get(&handle).copied().ok_or(Errno::BADF);
        }
        let mut at = self.root;
        for name in path.split('/').filter(|name| !name.is_empty()) {
            at = self.step(at, name.as_bytes())?;
        }
        Ok(at)
    }

    fn step(&self, at: Node, name: &[u8]) -> Result<Node, Errno> {
        if at.is_stub() {
            return Err(Errno::NOENT);
        }
        let dir = self.inode(at).ok_or(Errno::NOENT)?;
        let dir = dir.directory().ok_or(Errno::NOTDIR)?;
        let (target, _) = dir.entries.get(name).ok_or(Errno::NOENT)?;
        Ok(Model::node_of(at.subvolume, *target))
    }

    /// The directory that holds the last name of a path, and that name.
    pub fn resolve_parent<'p>(&self, path: &'p str) -> Result<(Node, &'p [u8]), Errno> {
        let (dir, name) = path.rsplit_once('/').ok_or(Errno::INVAL)?;
        let dir = self.resolve(dir)?;
        let is_directory = self.inode(dir).is_none_or(|inode| inode.directory().is_some());
        if is_directory { Ok((dir, name.as_bytes())) } else { Err(Errno::NOTDIR) }
    }

    /// Whether nothing can be changed at `node`: EROFS.
    fn frozen(&self, node: Node) -> bool {
        node.is_stub() || self.volumes.get(&node.subvolume).is_some_and(|it| it.read_only)
    }

    /// The refusal of every change at `node`.
    fn refuse_change(&self, node: Node) -> Refusal {
        let mut refusal = Refusal::new();
        if self.frozen(node) {
            refusal.push(Errno::ROFS);
        }
        if self.inode(node).is_none() && !node.is_stub() {
            refusal.push(Errno::NOENT);
        }
        refusal
    }

    /// One kind of quotas is not switched on where the other is.
    pub fn refuse_quotas(&self, mode: QuotaMode) -> Refusal {
        match (self.quotas, mode) {
            (QuotaMode::Simple, QuotaMode::Full) => vec![Errno::INVAL],
            (QuotaMode::Full, QuotaMode::Simple) => vec![Errno::EXIST],
            _ => Refusal::new(),
        }
    }

    fn is_held(&self, node: Node) -> bool {
        self.handles.values().any(|held| *held == node)
    }

    /// Bytes that files hold, each page as often as a file has it.
    pub fn held_bytes(&self) -> u64 {
        let volumes = self.volumes.values();
        let inodes = volumes.flat_map(|volume| volume.inodes.values());
        inodes.filter_map(|inode| inode.content()).map(Content::held).sum()
    }

    /// How many files there are, each as often as a subvolume has it.
    pub fn count(&self) -> usize {
        self.volumes.values().map(|volume| volume.inodes.len()).sum()
    }
}
