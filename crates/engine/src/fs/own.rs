//! Looking closer at a deletion for which there seems to be no room.
//!
//! What an operation is promised is the worst that may come of it, which below snapshots is far more than what does. A full filesystem
//! must not refuse for that reason what would make it emptier. So a deletion says what it is about, and before it is refused, it is
//! looked up which of its leaves snapshots can share at all. Where that does not help, it may come alone, with a bound of its own
//! (`space/alone.rs`).

use super::Inner;
use super::types::Node;
use crate::error::{Error, Result};
use crate::space::{Lone, Need, Shape};
use crate::txn::Op;

/// What an operation lets go of.
#[derive(Clone, Copy, Debug)]
pub(super) enum About<'a> {
    /// Something that is not looked up.
    Whatever,
    /// A name of a directory, and what it leads to.
    Entry(Node, &'a [u8]),
    /// What a file has.
    File(Node),
    /// The last extents of a file, or all that it has, if these are few.
    End(Node),
    /// An xattr.
    Xattr(Node, &'a [u8]),
    /// A name of a directory that leads to a subvolume, and the subvolume.
    Subvolume(Node, &'a [u8], u64),
}

impl About<'_> {
    /// Whether a deletion that says this may come alone.
    pub fn can_be_alone(self, need: Need) -> bool {
        let is_looked_at = matches!(self, About::Entry(..) | About::End(_) | About::Subvolume(..));
        is_looked_at && need.deleting && need.data == 0 && !need.modest
    }
}

impl Inner {
    /// A need, knowing which leaves are shared with nobody; and why that cannot be known: what cannot be read may be anybody's.
    pub(super) fn looked_up(
        &self,
        op: &Op<'_>,
        need: Need,
        about: About<'_>,
    ) -> (Need, Option<Error>) {
        let (shared, unread) = match self.shared_leaves(op, about) {
            Ok(shared) => (shared, None),
            Err(error) => (u32::MAX, Some(error)),
        };
        (Need { own: need.leaves.saturating_sub(shared), ..need }, unread)
    }

    /// How the trees are that any commit may change, and what a deletion changes, if it comes alone; nothing where that is not looked at.
    pub(super) fn looked_closely(
        &self,
        op: &Op<'_>,
        need: Need,
        about: About<'_>,
    ) -> Result<Option<(Shape, Lone)>> {
        let Some(shape) = op.core.look()? else { return Ok(None) };
        let Some(lone) = self.lone(op, need, about)? else { return Ok(None) };
        let bytes = if need.subvolume { 0 } else { need.bytes.into() };
        let (roots, uuids) = if need.subvolume { (5, 2) } else { (1, 0) };
        Ok(Some((shape, Lone { data: need.refs.into(), bytes, roots, uuids, ..lone })))
    }

    fn lone(&self, op: &Op<'_>, need: Need, about: About<'_>) -> Result<Option<Lone>> {
        match about {
            About::Whatever | About::Xattr(..) | About::File(_) => Ok(None),
            About::Entry(dir, name) => {
                let (subvolume, dir) = self.find(op, dir)?;
                subvolume.tree.lone_entry(op, &dir, name, need.leaves)
            }
            About::Subvolume(dir, name, id) => {
                let (subvolume, dir) = self.find(op, dir)?;
                subvolume.tree.lone_subvolume_entry(op, &dir, name, id).map(Some)
            }
            About::End(node) => {
                let subvolume = self.forest.find(op.core, node.subvolume)?;
                subvolume.tree.lone_file(op, node.ino, need.leaves)
            }
        }
    }

    fn shared_leaves(&self, op: &Op<'_>, about: About<'_>) -> Result<u32> {
        match about {
            About::Whatever => Ok(u32::MAX),
            About::Entry(dir, name) => {
                let (subvolume, dir) = self.find(op, dir)?;
                subvolume.tree.shared_leaves_of_entry(op, &dir, name)
            }
            About::Xattr(node, name) => {
                let subvolume = self.subvolume(node.subvolume)?;
                subvolume.tree.shared_leaves_of_xattr(op, node.ino, name)
            }
            About::Subvolume(dir, name, id) => {
                let (subvolume, dir) = self.find(op, dir)?;
                subvolume.tree.shared_leaves_of_subvolume(op, &dir, name, id)
            }
            About::File(node) | About::End(node) => {
                let subvolume = self.forest.find(op.core, node.subvolume)?;
                subvolume.tree.shared_leaves_of_file(op, node.ino)
            }
        }
    }
}
