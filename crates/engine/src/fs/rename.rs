//! Moving names: files within a subvolume, and subvolumes anywhere.

use super::nodes::may_gain_names;
use super::run::{need, plus};
use super::types::{Entry, Node};
use super::{Filesystem, Inner};
use crate::error::{Errno, Error, Result};
use crate::inode::{FEW, Rename, letting_go};
use crate::space::Need;
use crate::subvol::Place;
use crate::txn::Op;

impl Filesystem {
    /// Moves `name` in `from` to `new_name` in `to`. EXDEV for a file to another subvolume; subvolumes may go anywhere but
    /// into themselves, also in exchange for each other, or for a file of the subvolume that they are in.
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
        // Who hears of two filesystems copies first, and deletes then: he is told before that he may not.
        let is_fixed = |dir: Node| {
            inner.read(|op| Ok(inner.find(op, dir)?.0.tree.is_read_only())).unwrap_or(false)
        };
        if from.subvolume != to.subvolume && (is_fixed(from) || is_fixed(to)) {
            return Err(Error::User(Errno::ROFS));
        }
        if moved.node.is_top() || moved.node.is_stub() {
            if how == Rename::Exchange {
                return inner.exchange_subvolumes((from, name), (to, new_name));
            }
            return inner.rename_subvolume(from, to, new_name, &moved, how);
        }
        if from.subvolume != to.subvolume || to.is_stub() {
            return Err(Error::User(Errno::XDEV));
        }
        let need = plus(need(12, 600 + 6 * (name.len() + new_name.len())), letting_go(FEW));
        let done = inner.change_at(from, need, |op, subvolume, source| {
            may_gain_names(subvolume, to)?;
            if matches!(how, Rename::Exchange | Rename::Whiteout { .. }) {
                may_gain_names(subvolume, from)?;
            }
            let target = subvolume.tree.get(op, to.ino)?;
            subvolume.tree.rename(op, (source, name), (&target, new_name), how)
        });
        match done {
            // Either is also said of a name that leads to a subvolume.
            Err(Error::User(Errno::XDEV)) if how == Rename::Exchange => {
                inner.exchange_subvolumes((from, name), (to, new_name))?
            }
            Err(Error::User(Errno::NOTEMPTY)) if inner.must_find(to, new_name)?.node.is_stub() => {
                inner.rename_over_stub((from, name), (to, new_name), how)?
            }
            done => done?,
        }
        inner.evict_after(from.subvolume);
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
            let name = self.read(|_| Ok(self.forest.info(&self.core, node.subvolume)?.name))?;
            return if name.is_empty() { Err(Error::User(Errno::NOENT)) } else { Ok(name) };
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

    /// Exchanges two names of which at least one leads to a subvolume.
    fn exchange_subvolumes(&self, one: (Node, &[u8]), other: (Node, &[u8])) -> Result<()> {
        let mut ids = [None; 2];
        for ((dir, name), id) in [one, other].into_iter().zip(&mut ids) {
            let found = self.must_find(dir, name)?.node;
            if found.is_stub() {
                return Err(Error::User(Errno::XDEV));
            }
            *id = found.is_top().then_some(found.subvolume);
        }
        self.between(one, other, |op, one, other| self.forest.exchange(op, [one, other], ids))
    }

    /// Moves a directory to a name that a dangling entry of a snapshot has.
    fn rename_over_stub(
        &self,
        one: (Node, &[u8]),
        other: (Node, &[u8]),
        how: Rename,
    ) -> Result<()> {
        self.between(one, other, |op, one, other| self.forest.rename_over_stub(op, one, other, how))
    }

    /// Runs an operation on two names.
    fn between(
        &self,
        (from, name): (Node, &[u8]),
        (to, new_name): (Node, &[u8]),
        mut work: impl FnMut(&Op<'_>, Place<'_>, Place<'_>) -> Result<()>,
    ) -> Result<()> {
        for dir in [from, to] {
            self.ready(dir)?;
        }
        let need = need(20, 1200 + 12 * (name.len() + new_name.len()));
        let need = Need { charged_to: to.subvolume, ..need };
        self.change(need, |op| {
            let (source, source_dir) = self.find(op, from)?;
            let (place, place_dir) = self.find(op, to)?;
            let from = Place { subvolume: &source, dir: &source_dir, name };
            let to = Place { subvolume: &place, dir: &place_dir, name: new_name };
            work(op, from, to)
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
        let replace = how == Rename::Replace;
        self.between((from, &moved.name), (to, new_name), |op, from, to| {
            self.forest.rename(op, from, to, moved.node.subvolume, replace)
        })
    }
}
