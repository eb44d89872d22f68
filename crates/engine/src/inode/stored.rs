//! What tools ask of a file: how its content is stored.

use super::Inode;
use super::file::{FileChanges, Part};
use super::io::readable;
use super::tree::FileTree;
use crate::error::Result;
use crate::txn::Op;

impl FileTree {
    /// How the content of a regular file is stored from `from` on: so many parts at most, and where to go on. What is in
    /// memory only is left out.
    pub fn stored(&self, op: &Op<'_>, inode: &Inode, from: u64, most: usize) -> Result<Part> {
        let (state, nothing) = (readable(inode)?, FileChanges::default());
        let layers = state.layers(inode.ino, self.view(op.core));
        state.file_or(&nothing).stored(layers, from, most)
    }
}
