//! Moving names: files within a subvolume, and subvolumes anywhere.

use super::run::{need, plus};
use super::types::{Entry, Node};
use super::{Filesystem, Inner};
use crate::error::{Errno, Error, Result};
use crate::inode::{FEW, Rename, letting_go};
use crate::subvol::Place;

impl Filesystem {
    /// Moves `name` in `from` to `new_name` in `to`. EXDEV for a file to another subvolume; subvolumes may go anywhere but
    /// into themselves.
    pub fn rename(
        &self,
        from: Node,
        name: &[u8],
        to: Node,
        new_name: &[u8],
        how: Rename,
    ) -> Result<()> {
        let inner = self.inner();
        let moved = inner.must_find(from, name)?;
        if moved.node.is_top() || moved.node.is_stub() {
            return inner.rename_subvolume(from, to, new_name, &moved, how);
        }
        if from.subvolume != to.subvolume || to.is_stub() {
            return Err(Error::User(Errno::XDEV));
        }
        let need = plus(need(12, 600 + 6 * (name.len() + new_name.len())), letting_go(FEW));
        inner.change_at(from, need, |op, subvolume, source| {
            let target = subvolume.tree.get(op, to.ino)?;
            subvolume.tree.rename(op, source, name, &target, new_name, how)
        })?;
        inner.see_off_after(from.subvolume);
        Ok(())
    }

    /// The directory that holds a file; of a subvolume's top directory, the one that holds the subvolume; the top directory
    /// of the filesystem is its own.
    pub fn parent(&self, node: Node) -> Result<Node> {
        self.inner().parent(node)
    }

    /// A path from the top directory of the filesystem, starting with a slash.
    pub fn path_of(&self, node: Node) -> Result<Vec<u8>> {
        let mut names: Vec<Vec<u8>> = Vec::new();
        let mut at = node;
        while at != Node::ROOT {
            names.push(self.inner().name_of(at)?);
            at = self.parent(at)?;
            if names.len() > DEPTH_MAX {
                return Err(Error::User(Errno::LOOP));
            }
        }
        if names.is_empty() {
            return Ok(b"/".to_vec());
        }
        Ok(names.iter().rev().flat_map(|name| [b"/", name.as_slice()].concat()).collect())
    }

    /// A path from the top directory of the file's subvolume, without a slash at its start; empty for that directory.
    pub fn path_in_subvolume(&self, node: Node) -> Result<Vec<u8>> {
        let mut names: Vec<Vec<u8>> = Vec::new();
        let mut at = node;
        while !at.is_top() {
            names.push(self.inner().name_of(at)?);
            at = self.parent(at)?;
            if names.len() > DEPTH_MAX {
                return Err(Error::User(Errno::LOOP));
            }
        }
        names.reverse();
        Ok(names.join(&b'/'))
    }
}

/// Directories in each other: more than any path has.
const DEPTH_MAX: usize = 1 << 20;

impl Inner {
    pub(super) fn parent(&self, node: Node) -> Result<Node> {
        if node == Node::ROOT {
            return Ok(node);
        }
        if node.is_stub() {
            return Err(Error::User(Errno::NOENT));
        }
        self.read(|op| {
            if node.is_top() {
                let info = self.forest.info(&self.core, node.subvolume)?;
                return Ok(Node { subvolume: info.parent, ino: info.dir });
            }
            let (subvolume, inode) = self.find(op, node)?;
            Ok(Node { ino: subvolume.tree.parent_of(op, &inode)?, ..node })
        })
    }

    /// One of its names.
    fn name_of(&self, node: Node) -> Result<Vec<u8>> {
        if node.is_top() {
            return self.read(|_| Ok(self.forest.info(&self.core, node.subvolume)?.name));
        }
        let dir = self.parent(node)?;
        self.read(|op| {
            let (subvolume, inode) = self.find(op, dir)?;
            let mut name = None;
            subvolume.tree.read_directory(op, &inode, 0, |entry| {
                if entry.location == crate::inode::Location::Inode(node.ino) {
                    name = Some(entry.name.to_vec());
                    return std::ops::ControlFlow::Break(());
                }
                std::ops::ControlFlow::Continue(())
            })?;
            name.ok_or(Error::User(Errno::NOENT))
        })
    }

    /// Everything that decides is decided within the operation: whether the place is free, or inside what moves, may be
    /// another matter a moment before.
    fn rename_subvolume(
        &self,
        from: Node,
        to: Node,
        new_name: &[u8],
        moved: &Entry,
        how: Rename,
    ) -> Result<()> {
        if moved.node.is_stub() || !matches!(how, Rename::Replace | Rename::NoReplace) {
            return Err(Error::User(Errno::XDEV));
        }
        for dir in [from, to] {
            self.ready(dir)?;
        }
        let need = need(12, 800 + 8 * (moved.name.len() + new_name.len()));
        self.change(need, |op| {
            let (source, source_dir) = self.find(op, from)?;
            let (place, place_dir) = self.find(op, to)?;
            let from = Place { subvolume: &source, dir: &source_dir, name: &moved.name };
            let to = Place { subvolume: &place, dir: &place_dir, name: new_name };
            let replace = how == Rename::Replace;
            self.forest.rename(op, from, to, moved.node.subvolume, replace)
        })
    }
}
