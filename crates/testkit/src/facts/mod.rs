//! What a tree shows to a user, in a form that can be compared, stored and shown.
//!
//! The same [`Facts`] are taken from a kernel mount, from our mount and from our library (through
//! [`Source`]); two trees are alike when their facts are equal. Facts say nothing about how bytes
//! lie on the disk: a hole and a run of zeros are the same, compression is invisible. What the
//! system makes up on the spot is left out (times and owner of the empty directory that stands
//! for a subvolume in a snapshot of its parent).

mod content;
mod diff;
mod host;
mod library;
mod text;

use std::collections::{BTreeMap, BTreeSet};

pub use content::{BLOCK_BYTES, Digest};
pub use diff::diff;
pub use host::{HostError, facts_of_dir};
pub use library::{facts_of_library, facts_of_node};
pub use text::{from_text, to_text};

/// Inode number of the directory that stands where a subvolume is not present
/// (`BTRFS_EMPTY_SUBVOL_DIR_OBJECTID`). Its times are not stored.
pub const EMPTY_SUBVOLUME_INODE: u64 = 2;

/// Kind of a file system object.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Ord, PartialOrd)]
pub enum Kind {
    /// Regular file.
    File,
    /// Directory.
    Dir,
    /// Symbolic link.
    Symlink,
    /// Named pipe.
    Fifo,
    /// Socket.
    Socket,
    /// Character device.
    Char,
    /// Block device.
    Block,
}

impl Kind {
    /// The kind a `st_mode` value names (the `S_IFMT` bits), if it is one.
    pub fn of_mode(mode: u32) -> Option<Self> {
        Some(match mode & 0o170_000 {
            0o100_000 => Self::File,
            0o040_000 => Self::Dir,
            0o120_000 => Self::Symlink,
            0o010_000 => Self::Fifo,
            0o140_000 => Self::Socket,
            0o020_000 => Self::Char,
            0o060_000 => Self::Block,
            _ => return None,
        })
    }
}

/// A time: seconds since 1970 and nanoseconds below 10^9.
pub type Time = (i64, u32);

/// What a [`Source`] says about one object.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Stat {
    /// Whatever tells inodes apart: equal for two names of one inode, different otherwise.
    pub identity: (u64, u64),
    /// Inode number inside its subvolume.
    pub ino: u64,
    /// Kind of the object.
    pub kind: Kind,
    /// Permission bits with set-user-ID, set-group-ID and sticky: `0..=0o7777`.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Number of hard links.
    pub nlink: u32,
    /// Size in bytes as `stat` gives it.
    pub size: u64,
    /// Last modification.
    pub mtime: Time,
    /// Major and minor number of a device; zeros otherwise.
    pub rdev: (u32, u32),
}

/// An extended attribute: its name with the namespace, and its value.
pub type Xattr = (Vec<u8>, Vec<u8>);
/// What a directory holds: names and what they stand for.
pub type Listing<N> = Vec<(Vec<u8>, N)>;

/// A tree that facts can be taken from.
pub trait Source {
    /// A handle on one object.
    type Node: Clone;
    /// What reading can fail with.
    type Error;

    /// The directory on top.
    fn root(&mut self) -> Result<Self::Node, Self::Error>;
    /// What `stat` says, not following a symbolic link. None for an object that is not part of
    /// this filesystem (something else is mounted there).
    fn stat(&mut self, node: &Self::Node) -> Result<Option<Stat>, Self::Error>;
    /// Names and objects in a directory, in any order, without `.` and `..`.
    fn list(&mut self, dir: &Self::Node) -> Result<Listing<Self::Node>, Self::Error>;
    /// Target of a symbolic link.
    fn readlink(&mut self, node: &Self::Node) -> Result<Vec<u8>, Self::Error>;
    /// Extended attributes, in any order.
    fn xattrs(&mut self, node: &Self::Node) -> Result<Vec<Xattr>, Self::Error>;
    /// Hands the bytes of a file to `digest` in ascending order; holes may be left out.
    fn content(&mut self, node: &Self::Node, digest: &mut Digest) -> Result<(), Self::Error>;
}

/// What is known about one path.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Fact {
    /// Kind of the object.
    pub kind: Kind,
    /// Permission bits, `0..=0o7777`.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Number of hard links.
    pub nlink: u32,
    /// Size in bytes.
    pub size: u64,
    /// Last modification; zero where the system makes it up.
    pub mtime: Time,
    /// Device numbers.
    pub rdev: (u32, u32),
    /// Target of a symbolic link.
    pub target: Option<Vec<u8>>,
    /// Extended attributes by name; values longer than [`LONG_VALUE_BYTES`] by their digest.
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    /// Digest of a regular file's bytes.
    pub content: Option<u64>,
    /// The first path (in the order of bytes) that names the same inode, if it is not this one.
    pub same_as: Option<Vec<u8>>,
}

/// Above this an attribute's value is kept as `digest:` and its 64 bit digest in hex.
pub const LONG_VALUE_BYTES: usize = 128;

/// Every path of a tree, relative to its top with `/` between names (the top itself is empty).
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Facts {
    /// Facts by path.
    pub paths: BTreeMap<Vec<u8>, Fact>,
}

impl Facts {
    /// The fact about a path written as text.
    pub fn get(&self, path: &str) -> Option<&Fact> {
        self.paths.get(path.as_bytes())
    }
}

/// Takes the facts of a whole tree.
pub fn facts_of<S: Source>(source: &mut S) -> Result<Facts, S::Error> {
    let mut paths = BTreeMap::new();
    // First path seen of each inode with several names, and its digest.
    let mut identities: BTreeMap<(u64, u64), Vec<Vec<u8>>> = BTreeMap::new();
    // A damaged filesystem may have a directory below itself.
    let mut listed = BTreeSet::new();
    let mut waiting = vec![(Vec::new(), source.root()?)];
    while let Some((path, node)) = waiting.pop() {
        let Some(stat) = source.stat(&node)? else { continue };
        let earlier = identities.get(&stat.identity).and_then(|names| paths.get(names.first()?));
        let fact = match earlier {
            Some(first) if stat.kind != Kind::Dir => renamed(first, &stat),
            _ => fact_of(source, &node, &stat)?,
        };
        if stat.kind == Kind::Dir {
            let children = match listed.insert(stat.identity) {
                true => source.list(&node)?,
                false => Vec::new(),
            };
            for (name, child) in children {
                waiting.push((join(&path, &name), child));
            }
        } else if stat.nlink > 1 {
            identities.entry(stat.identity).or_default().push(path.clone());
        }
        paths.insert(path, fact);
    }
    link_groups(&mut paths, identities.into_values());
    Ok(Facts { paths })
}

/// Notes in each group of hard links which name is first.
fn link_groups(paths: &mut BTreeMap<Vec<u8>, Fact>, groups: impl Iterator<Item = Vec<Vec<u8>>>) {
    for mut names in groups {
        names.sort();
        let Some((first, others)) = names.split_first() else { continue };
        for name in others {
            if let Some(fact) = paths.get_mut(name) {
                fact.same_as = Some(first.clone());
            }
        }
    }
}

/// A second name of an inode: its bytes and attributes are not read again, its `stat` is.
fn renamed(first: &Fact, stat: &Stat) -> Fact {
    Fact {
        target: first.target.clone(),
        xattrs: first.xattrs.clone(),
        content: first.content,
        ..plain(stat)
    }
}

/// The part of a fact that `stat` gives.
fn plain(stat: &Stat) -> Fact {
    let made_up = stat.kind == Kind::Dir && stat.ino == EMPTY_SUBVOLUME_INODE;
    Fact {
        kind: stat.kind,
        mode: stat.mode,
        uid: if made_up { 0 } else { stat.uid },
        gid: if made_up { 0 } else { stat.gid },
        nlink: stat.nlink,
        size: stat.size,
        mtime: if made_up { (0, 0) } else { stat.mtime },
        rdev: stat.rdev,
        target: None,
        xattrs: BTreeMap::new(),
        content: None,
        same_as: None,
    }
}

/// Reads everything about one object.
fn fact_of<S: Source>(source: &mut S, node: &S::Node, stat: &Stat) -> Result<Fact, S::Error> {
    let mut fact = plain(stat);
    for (name, value) in source.xattrs(node)? {
        fact.xattrs.insert(name, shortened(value));
    }
    match stat.kind {
        Kind::Symlink => fact.target = Some(source.readlink(node)?),
        Kind::File => {
            let mut digest = Digest::new();
            source.content(node, &mut digest)?;
            fact.content = Some(digest.finish());
        }
        _ => {}
    }
    Ok(fact)
}

/// A long attribute value by its digest.
fn shortened(value: Vec<u8>) -> Vec<u8> {
    if value.len() <= LONG_VALUE_BYTES {
        return value;
    }
    let digest = xxhash_rust::xxh64::xxh64(&value, 0);
    format!("digest:{digest:016x}:{}", value.len()).into_bytes()
}

/// `dir/name`, or the name alone on top.
fn join(dir: &[u8], name: &[u8]) -> Vec<u8> {
    if dir.is_empty() {
        return name.to_vec();
    }
    [dir, b"/", name].concat()
}
