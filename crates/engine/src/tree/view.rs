//! Reading one version of a tree.

use std::sync::Arc;

use buttress_ondisk::{Key, TreeBlock};

use super::{Blocks, Root};
use crate::error::{Error, Result};

/// One version of one tree.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    blocks: &'a Blocks,
    owner: u64,
    root: Root,
}

/// An item, held by its leaf.
#[derive(Clone, Debug)]
pub struct Item {
    leaf: Arc<TreeBlock>,
    slot: usize,
}

impl Item {
    /// Its key.
    pub fn key(&self) -> Key {
        self.leaf.key(self.slot)
    }

    /// Its data.
    pub fn data(&self) -> &[u8] {
        self.leaf.data(self.slot)
    }

    /// The leaf it is in.
    pub fn leaf(&self) -> &Arc<TreeBlock> {
        &self.leaf
    }
}

impl<'a> View<'a> {
    /// The version `root` of tree `owner`.
    pub fn new(blocks: &'a Blocks, owner: u64, root: Root) -> View<'a> {
        View { blocks, owner, root }
    }

    /// The blocks it reads through.
    pub fn blocks(&self) -> &'a Blocks {
        self.blocks
    }

    /// The tree's id.
    pub fn owner(&self) -> u64 {
        self.owner
    }

    /// The version.
    pub fn root(&self) -> Root {
        self.root
    }

    /// The root block.
    pub fn root_block(&self) -> Result<Arc<TreeBlock>> {
        self.blocks.read(self.root.bytenr, self.root.level, self.root.generation, self.owner)
    }

    /// Child `slot` of `node`, which must agree with what the node says of it.
    pub fn child(&self, node: &TreeBlock, slot: usize) -> Result<Arc<TreeBlock>> {
        let bound = (slot + 1 < node.len()).then(|| node.key(slot + 1));
        read_child(self.blocks, self.owner, node, slot, bound)
    }

    fn leaf_for(&self, key: &Key) -> Result<Arc<TreeBlock>> {
        let mut block = self.root_block()?;
        while !block.is_leaf() {
            block = self.child(&block, block.child_for(key))?;
        }
        Ok(block)
    }

    /// The item at exactly `key`.
    pub fn get(&self, key: &Key) -> Result<Option<Item>> {
        let leaf = self.leaf_for(key)?;
        Ok(leaf.search(key).ok().map(|slot| Item { leaf, slot }))
    }

    /// The last item whose key is `key` or smaller.
    pub fn last_at_or_before(&self, key: &Key) -> Result<Option<Item>> {
        let leaf = self.leaf_for(key)?;
        Ok(match leaf.search(key) {
            Ok(slot) => Some(Item { leaf, slot }),
            Err(0) => None,
            Err(slot) => Some(Item { leaf, slot: slot - 1 }),
        })
    }

    /// The items from `from` to `to`, both included, in order.
    pub fn range(&self, from: Key, to: Key) -> Cursor<'a> {
        Cursor { view: *self, path: Vec::new(), next: Some(from), to }
    }
}

/// Child `slot` of `node` in tree `owner`: it starts with the key that the node has for it, and ends before `bound`, where
/// what comes after it starts.
pub(super) fn read_child(
    blocks: &Blocks,
    owner: u64,
    node: &TreeBlock,
    slot: usize,
    bound: Option<Key>,
) -> Result<Arc<TreeBlock>> {
    let child = node.child(slot);
    let level = node.level().saturating_sub(1);
    let block = blocks.read(child.bytenr, level, child.generation, owner)?;
    if block.is_empty() || block.key(0) != child.key {
        return Err(Error::inconsistent(owner, "a child does not start with its key", child.key));
    }
    let last = block.key(block.len() - 1);
    if bound.is_some_and(|bound| last >= bound) {
        return Err(Error::inconsistent(owner, "keys reach into the next block", last));
    }
    Ok(block)
}

/// Goes forward over the items of a view.
#[derive(Debug)]
pub struct Cursor<'a> {
    view: View<'a>,
    /// The blocks from the root to the leaf, and the slot to look at next in each.
    path: Vec<(Arc<TreeBlock>, usize)>,
    /// Where to start, until the first call.
    next: Option<Key>,
    to: Key,
}

impl Cursor<'_> {
    /// The next item, or `None` at the end. Not an `Iterator` because reading can fail for good: after an error the
    /// cursor must not be used again.
    #[allow(clippy::should_implement_trait)]
    pub fn next(&mut self) -> Result<Option<Item>> {
        if let Some(from) = self.next.take() {
            self.start(&from)?;
        }
        loop {
            let Some((block, slot)) = self.path.last_mut() else { return Ok(None) };
            if *slot >= block.len() {
                self.path.pop();
                continue;
            }
            let (block, at) = (block.clone(), *slot);
            *slot += 1;
            if !block.is_leaf() {
                if block.key(at) > self.to {
                    self.path.clear();
                    return Ok(None);
                }
                let child = self.view.child(&block, at)?;
                self.path.push((child, 0));
                continue;
            }
            if block.key(at) > self.to {
                self.path.clear();
                return Ok(None);
            }
            return Ok(Some(Item { leaf: block, slot: at }));
        }
    }

    fn start(&mut self, from: &Key) -> Result<()> {
        let mut block = self.view.root_block()?;
        while !block.is_leaf() {
            let slot = block.child_for(from);
            let child = self.view.child(&block, slot)?;
            self.path.push((block, slot + 1));
            block = child;
        }
        let slot = block.search(from).unwrap_or_else(|slot| slot);
        self.path.push((block, slot));
        Ok(())
    }
}
