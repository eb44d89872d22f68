//! Looking closer at a deletion for which there seems to be no room.
//!
//! What an operation is promised is the worst that may come of it, which below snapshots is far more than what does. A full filesystem
//! must not refuse for that reason what would make it emptier. So a deletion says what it is about, and before it is refused, it is
//! looked up which of its leaves snapshots can share at all.

use super::Inner;
use super::types::Node;
use crate::error::Result;
use crate::space::Need;
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
    /// An xattr.
    Xattr(Node, &'a [u8]),
}

impl Inner {
    /// A need, knowing which leaves are shared with nobody. What cannot be read may be anybody's.
    pub(super) fn looked_up(&self, op: &Op<'_>, need: Need, about: About<'_>) -> Need {
        let shared = self.shared_leaves(op, about).unwrap_or(u32::MAX);
        Need { own: need.leaves.saturating_sub(shared), ..need }
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
            About::File(node) => {
                let subvolume = self.subvolume(node.subvolume)?;
                subvolume.tree.shared_leaves_of_file(op, node.ino)
            }
        }
    }
}
