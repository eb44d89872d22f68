//! A view for searches at keys that are near each other: it keeps a finger on the node above the leaf that was found last.

use std::sync::Arc;

use buttress_ondisk::{Key, TreeBlock};

use super::view::{View, behind, read_child};
use crate::error::Result;

/// A view, and where in it the last search was.
#[derive(Debug)]
pub struct Finger<'a> {
    view: View<'a>,
    /// The node above the last leaf, and the key at which the node behind it starts.
    node: Option<(Arc<TreeBlock>, Option<Key>)>,
}

impl<'a> Finger<'a> {
    /// Nothing was searched yet.
    pub fn new(view: View<'a>) -> Finger<'a> {
        Finger { view, node: None }
    }

    /// The tree's id.
    pub fn owner(&self) -> u64 {
        self.view.owner()
    }

    /// As [`View::leaf_at`].
    pub fn leaf_at(&mut self, key: &Key) -> Result<(Arc<TreeBlock>, Option<Key>)> {
        if let Some((node, bound)) = self.node.as_ref().filter(|it| is_below(key, it)) {
            return child_at(&self.view, node, key, *bound);
        }
        let (mut block, mut bound) = (self.view.root_block()?, None);
        while !block.is_leaf() {
            let (child, before) = child_at(&self.view, &block, key, bound)?;
            if child.is_leaf() {
                self.node = Some((block, bound));
            }
            (block, bound) = (child, before);
        }
        Ok((block, bound))
    }
}

/// Whether a search for the key goes through this node.
fn is_below(key: &Key, (node, bound): &(Arc<TreeBlock>, Option<Key>)) -> bool {
    node.key(0) <= *key && bound.is_none_or(|bound| *key < bound)
}

/// The child in which the key is, and where the one behind it starts.
fn child_at(
    view: &View<'_>,
    node: &TreeBlock,
    key: &Key,
    bound: Option<Key>,
) -> Result<(Arc<TreeBlock>, Option<Key>)> {
    let slot = node.child_for(key);
    let child = read_child(view.blocks(), view.owner(), node, slot, behind(node, slot, None))?;
    Ok((child, behind(node, slot, bound)))
}
