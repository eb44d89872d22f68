//! What lies below files: items of trees, how content is stored, the paths of an inode.
//!
//! A live mount is asked through its control words, which show what was committed after everything before the question was.

use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

use buttress::{Node, Referrers, Stored, StoredIn, WantedReferrers};
use buttress_fuse::client;
use buttress_fuse::mount::control::{FoundItem, StoredFacts, TreeKey};
use buttress_ondisk::Key;
use rustix::io::Errno;

use super::{TOP, Vfs};
use crate::vnode::{Facts, FileError, Vnode};

/// Subvolumes in each other: more than any path has.
const NAMES_MAX: usize = 4096;
/// Bits of an inode number as a live mount shows it that are the number; above them is the subvolume's.
const SHOWN_BITS: u32 = 40;

impl Vfs {
    /// Items of a tree whose keys are in the range, of leaves that transaction `since` or a later one wrote, until `each` answers `false`:
    /// the key, the transaction of the leaf, the item.
    pub fn search(
        &self,
        tree: u64,
        keys: RangeInclusive<Key>,
        since: u64,
        each: &mut dyn FnMut(Key, u64, &[u8]) -> bool,
    ) -> Result<(), FileError> {
        match self {
            Vfs::Image(image) => Ok(image.fs().search_since(tree, keys, since, each)?),
            Vfs::Live(path) => {
                let key =
                    |it: &Key| TreeKey { objectid: it.objectid, kind: it.kind, offset: it.offset };
                let keys = (key(keys.start()), key(keys.end()));
                let mut found = |item: FoundItem<'_>| {
                    let TreeKey { objectid, kind, offset } = item.key;
                    each(Key::new(objectid, kind, offset), item.transid, item.data)
                };
                Ok(client::search(path, tree, keys, since, &mut found)?)
            }
        }
    }

    /// The files that refer to the data at a logical address, in the order of Linux.
    pub fn referrers(&self, wanted: &WantedReferrers) -> Result<Referrers, FileError> {
        match self {
            Vfs::Image(image) => Ok(image.fs().referrers(*wanted)?),
            Vfs::Live(path) => Ok(client::referrers(path, wanted)?),
        }
    }

    /// All paths of an inode of a subvolume of this filesystem, inside that. On a live mount it is the subvolume that the path of the mount
    /// lies in, and the number may be the one that the mount shows.
    pub fn paths_of_inode(&self, subvolume: u64, ino: u64) -> Result<Vec<Vec<u8>>, FileError> {
        match self {
            Vfs::Image(image) => Ok(image.fs().paths_in_subvolume(Node { subvolume, ino })?),
            Vfs::Live(path) => {
                let own = match ino >> SHOWN_BITS == subvolume {
                    true => ino & ((1 << SHOWN_BITS) - 1),
                    false => ino,
                };
                Ok(client::paths_of_inode(path, own)?)
            }
        }
    }

    /// The first of these paths; `None` for what is not there or has no name.
    pub fn first_path_of_inode(
        &self,
        subvolume: u64,
        ino: u64,
    ) -> Result<Option<Vec<u8>>, FileError> {
        let first = match self {
            Vfs::Image(image) => {
                let first = image.fs().first_path_in_subvolume(Node { subvolume, ino });
                first.map_err(FileError::from)
            }
            Vfs::Live(_) => {
                self.paths_of_inode(subvolume, ino).map(|paths| paths.into_iter().next())
            }
        };
        match first {
            Err(why) if why.is(Errno::NOENT) => Ok(None),
            first => first,
        }
    }

    /// The path of a subvolume from the top of the filesystem, without a slash in front; ENOENT when there is none.
    pub fn path_of_subvolume(&self, id: u64) -> Result<Vec<u8>, FileError> {
        match self {
            Vfs::Image(image) => Ok(image.fs().subvolume_path(id)?),
            Vfs::Live(path) => Ok(live_path_of_subvolume(path, id)?),
        }
    }

    /// What the user would call the top directory of the subvolume that a vnode lies in.
    pub fn top_above(&self, vnode: &Vnode) -> Result<Vec<u8>, FileError> {
        match (self, vnode.image_node()) {
            (_, Some((image, node))) => {
                if node.is_top() {
                    return Ok(vnode.name());
                }
                Ok(image.bytes_of(&image.fs().path_of(Node::top(node.within()))?))
            }
            (Vfs::Live(path), None) => {
                let inside = client::path_in_subvolume(path)?;
                if inside.is_empty() {
                    return Ok(vnode.name());
                }
                let mut top: PathBuf = path.canonicalize()?;
                (0..inside.split(|byte| *byte == b'/').count()).all(|_| top.pop());
                Ok(top.into_os_string().into_encoded_bytes())
            }
            (Vfs::Image(_), None) => Err(Errno::INVAL.into()),
        }
    }
}

/// Goes up from a subvolume to the top.
fn live_path_of_subvolume(path: &Path, id: u64) -> Result<Vec<u8>, Errno> {
    let mut names: Vec<Vec<u8>> = Vec::new();
    let mut at = client::subvolume_by_id(path, id)?;
    while at.parent != 0 {
        // No path has that many names; a circle would.
        if names.len() > NAMES_MAX {
            return Err(Errno::LOOP);
        }
        names.push(client::place_of_subvolume(path, at.id)?);
        at = client::subvolume_by_id(path, at.parent)?;
    }
    names.reverse();
    Ok(names.join(&b'/'))
}

/// How the content of a regular file is stored, part by part.
pub fn stored(vnode: &Vnode, each: &mut dyn FnMut(Stored)) -> Result<(), FileError> {
    if let Some((image, node)) = vnode.image_node() {
        image.fs().stored(node, |part| {
            each(part);
            true
        })?;
        return Ok(());
    }
    vnode.by_path(|path| {
        let mut from = Some(0);
        while let Some(start) = from {
            let (parts, next) = client::stored(path, start)?;
            parts.iter().map(of_facts).for_each(&mut *each);
            from = next;
        }
        Ok(())
    })
}

fn of_facts(it: &StoredFacts) -> Stored {
    let StoredFacts { start, len, compression, disk_len, ram_len, bytenr, prealloc } = *it;
    let place = match bytenr {
        0 => StoredIn::Item,
        _ => StoredIn::Extent { bytenr, prealloc },
    };
    Stored { start, len, compression, disk_len, ram_len, place }
}

/// The subvolume of a directory, where those of a mount are told apart: images and mounts of ours.
pub fn subvolume_of(vnode: &Vnode) -> Result<u64, FileError> {
    match vnode.image_node() {
        Some((_, node)) => Ok(node.within()),
        None => vnode.by_path(|path| Ok(client::subvolume(path)?.id)),
    }
}

/// Whether a directory of an image or live mount is the top of a subvolume, by its number.
pub fn is_top(vnode: &Vnode, facts: &Facts) -> bool {
    match vnode.image_node() {
        Some((_, node)) => node.is_top(),
        // Numbers that are made up, and of what stands for a subvolume, are no others cut short.
        None => facts.ino >> 62 == 0 && facts.ino & ((1 << SHOWN_BITS) - 1) == TOP,
    }
}

/// A path below a directory that is called so.
pub fn below(directory: &[u8], path: &[u8]) -> Vec<u8> {
    match directory.ends_with(b"/") {
        true => [directory, path].concat(),
        false => [directory, path].join(&b'/'),
    }
}
