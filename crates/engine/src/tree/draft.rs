//! Leaves made apart from the merge that takes them over, so that several threads make the leaves of one tree.
//!
//! A draft is for items that come where the old tree has none: those of new inodes, of names appended to a directory. Its
//! leaves get their addresses when they are grafted, in key order: the result does not depend on how threads ran.

use std::sync::Arc;

use buttress_ondisk::build::Stamp;
use buttress_ondisk::{Key, TreeBlock};

use super::stretch::UNSTAMPED;
use super::{Blocks, Exchange, Merge};
use crate::error::Result;

/// Full leaves, in key order, without addresses.
#[derive(Debug, Default)]
pub struct Draft {
    pub(super) leaves: Vec<TreeBlock>,
}

impl Draft {
    /// Makes the leaves of the items that `fill` puts, for tree `owner`. It finds nothing in the tree.
    pub fn fill(
        blocks: &Blocks,
        owner: u64,
        fill: impl FnOnce(&mut Merge<'_>) -> Result<()>,
    ) -> Result<Draft> {
        let mut draft = Draft::default();
        let mut merge = Merge::of_leaves(blocks, owner, &mut draft);
        fill(&mut merge)?;
        merge.finish_leaves()?;
        Ok(draft)
    }

    /// How many leaves it has.
    pub fn len(&self) -> usize {
        self.leaves.len()
    }

    /// Whether nothing was put.
    pub fn is_empty(&self) -> bool {
        self.leaves.is_empty()
    }

    /// The first key and the last one.
    pub(super) fn keys(&self) -> Option<(Key, Key)> {
        let (first, last) = (self.leaves.first()?, self.leaves.last()?);
        Some((first.key(0), last.key(last.len() - 1)))
    }
}

impl Exchange for Draft {
    fn generation(&self) -> u64 {
        0
    }

    fn release(&mut self, _old: &Arc<TreeBlock>) -> Result<()> {
        Ok(())
    }

    fn place(&mut self, _level: u8) -> Result<Stamp> {
        Ok(UNSTAMPED)
    }

    fn placed(&mut self, block: TreeBlock) -> Result<()> {
        self.leaves.push(block);
        Ok(())
    }
}
