//! The blocks that a merge builds, from left to right: see the picture in [`super`].

use buttress_ondisk::{ChildPtr, ITEM_LEN, LeafBuilder, NodeBuilder, TreeBlock};

use super::{Merge, copy_of};
use crate::error::Result;
use crate::tree::Root;
use crate::tree::stretch::UNSTAMPED;
use crate::tree::view::{behind, read_child};

impl Merge<'_> {
    pub(super) fn nodes_at(&mut self, level: u8) -> &mut Vec<ChildPtr> {
        while self.nodes.len() < level as usize {
            self.nodes.push(Vec::new());
        }
        &mut self.nodes[level as usize - 1]
    }

    /// The leaf being built is full: it is held back, and the one held before it is placed.
    pub(super) fn turn_leaf(&mut self) -> Result<()> {
        let full = std::mem::replace(&mut self.leaf, LeafBuilder::new(self.blocks.nodesize()));
        if let Some(held) = self.held.replace(full) {
            self.place_leaf(held)?;
        }
        Ok(())
    }

    pub(super) fn place_leaf(&mut self, leaf: LeafBuilder) -> Result<()> {
        let stamp = self.exchange.place(0)?;
        let block = leaf.finish(&stamp);
        self.placed(block)
    }

    pub(super) fn placed(&mut self, block: TreeBlock) -> Result<()> {
        let level = block.level();
        if !block.is_empty() {
            let child = ChildPtr {
                key: block.key(0),
                bytenr: block.bytenr(),
                generation: block.generation(),
            };
            self.nodes_at(level + 1).push(child);
        }
        self.exchange.placed(block)?;
        self.trim_nodes(level + 1)
    }

    /// Places a node of `level` when there are children enough for two.
    pub(super) fn trim_nodes(&mut self, level: u8) -> Result<()> {
        let capacity = NodeBuilder::capacity(self.blocks.nodesize());
        while !self.apart && self.nodes_at(level).len() >= 2 * capacity {
            let rest = self.nodes_at(level).split_off(capacity);
            let children = std::mem::replace(self.nodes_at(level), rest);
            self.place_node(level, &children)?;
        }
        Ok(())
    }

    pub(super) fn place_node(&mut self, level: u8, children: &[ChildPtr]) -> Result<()> {
        let stamp = self.exchange.place(level)?;
        let mut node = NodeBuilder::new(self.blocks.nodesize());
        for child in children {
            assert!(node.push(child), "a node holds as many as its capacity");
        }
        self.placed(node.finish(level, &stamp))
    }

    /// Points again at the old children `from..to` of `node`, after everything built so far.
    pub(super) fn push_old(&mut self, node: &TreeBlock, mut from: usize, to: usize) -> Result<()> {
        if from >= to {
            return Ok(());
        }
        let level = node.level();
        if self.swallow(node, from)? {
            from += 1;
        }
        if from < to {
            self.flush_below(level)?;
            for slot in from..to {
                self.nodes_at(level).push(node.child(slot));
                self.trim_nodes(level)?;
            }
        }
        Ok(())
    }

    /// Takes over the content of old child `slot` when what is being built before it is small and has room for it.
    pub(super) fn swallow(&mut self, node: &TreeBlock, slot: usize) -> Result<bool> {
        if self.exact {
            return Ok(false);
        }
        let nodesize = self.blocks.nodesize();
        let level = node.level() - 1;
        let small = if level == 0 {
            let used = LeafBuilder::room(nodesize) - self.leaf.free();
            self.held.is_none() && !self.leaf.is_empty() && used < LeafBuilder::room(nodesize) / 4
        } else {
            self.flush_below(level)?;
            let count = self.nodes_at(level).len();
            count > 0 && count < NodeBuilder::capacity(nodesize) / 4
        };
        if !small {
            return Ok(false);
        }
        let bound = behind(node, slot, None).or_else(|| {
            let level = self.path.iter().find(|level| level.block.bytenr() == node.bytenr());
            level.and_then(|level| level.bound)
        });
        let block = read_child(self.blocks, self.owner, node, slot, bound)?;
        let fits = if level == 0 {
            block.leaf_used() <= self.leaf.free()
        } else {
            block.len() + self.nodes_at(level).len() <= NodeBuilder::capacity(nodesize)
        };
        if !fits {
            return Ok(false);
        }
        self.exchange.release(&block)?;
        if level == 0 {
            self.copy_items(&block, 0, block.len())?;
        } else {
            let children = (0..block.len()).map(|slot| block.child(slot));
            self.nodes_at(level).extend(children);
        }
        Ok(true)
    }

    /// Places everything that is being built below `level`.
    pub(super) fn flush_below(&mut self, level: u8) -> Result<()> {
        self.flush_leaf(false)?;
        for below in 1..level {
            self.flush_nodes(below)?;
        }
        Ok(())
    }

    /// Places the leaves being built. Where the tree goes on behind them (`!end`), a small last one shares evenly with
    /// the full one before it.
    pub(super) fn flush_leaf(&mut self, end: bool) -> Result<()> {
        let nodesize = self.blocks.nodesize();
        if let Some(held) = self.held.take() {
            let used = LeafBuilder::room(nodesize) - self.leaf.free();
            if end || self.leaf.is_empty() || used >= LeafBuilder::room(nodesize) / 4 {
                self.place_leaf(held)?;
            } else {
                self.share_leaves(held)?;
            }
        }
        if !self.leaf.is_empty() {
            let leaf = std::mem::replace(&mut self.leaf, LeafBuilder::new(nodesize));
            self.place_leaf(leaf)?;
        }
        Ok(())
    }

    /// Splits the items of the held leaf and the one being built evenly.
    pub(super) fn share_leaves(&mut self, held: LeafBuilder) -> Result<()> {
        let nodesize = self.blocks.nodesize();
        let first = held.finish(&UNSTAMPED);
        let second = std::mem::replace(&mut self.leaf, LeafBuilder::new(nodesize));
        let second = second.finish(&UNSTAMPED);
        let half = (first.leaf_used() + second.leaf_used()) / 2;
        let (mut cut, mut used) = (0, 0);
        while cut < first.len() && used < half {
            used += ITEM_LEN + first.item_head(cut).size.get() as usize;
            cut += 1;
        }
        let mut front = LeafBuilder::new(nodesize);
        front.push_range(&first, 0, cut);
        let mut back = LeafBuilder::new(nodesize);
        let whole = back.push_range(&first, cut, first.len()) == first.len()
            && back.push_range(&second, 0, second.len()) == second.len();
        if whole {
            self.place_leaf(front)?;
            self.leaf = back;
        } else {
            let mut full = LeafBuilder::new(nodesize);
            full.push_range(&first, 0, first.len());
            self.place_leaf(full)?;
            self.leaf.push_range(&second, 0, second.len());
        }
        Ok(())
    }

    /// Places the nodes of `level` being built, the last two sharing evenly.
    pub(super) fn flush_nodes(&mut self, level: u8) -> Result<()> {
        let capacity = NodeBuilder::capacity(self.blocks.nodesize());
        let children = std::mem::take(self.nodes_at(level));
        if children.is_empty() {
            return Ok(());
        }
        let first = if children.len() > capacity && children.len() < capacity + capacity / 4 {
            children.len().div_ceil(2)
        } else {
            children.len().min(capacity)
        };
        self.place_node(level, &children[..first])?;
        if first < children.len() {
            self.place_node(level, &children[first..])?;
        }
        Ok(())
    }

    /// Builds the levels above the leaves until one block is left: the new root.
    pub(super) fn crown(&mut self) -> Result<Root> {
        if self.nodes.iter().all(Vec::is_empty) {
            let stamp = self.exchange.place(0)?;
            let root = Root { bytenr: stamp.bytenr, generation: stamp.generation, level: 0 };
            let leaf = LeafBuilder::new(self.blocks.nodesize()).finish(&stamp);
            self.exchange.placed(leaf)?;
            return Ok(root);
        }
        let mut level = 1;
        loop {
            let only = self.nodes_at(level).len() == 1
                && self.nodes[level as usize..].iter().all(Vec::is_empty);
            if only {
                let child = self.nodes_at(level)[0];
                return self.make_root(child, level - 1);
            }
            self.flush_nodes(level)?;
            level += 1;
        }
    }

    /// Makes `child` the root. A root belongs to its tree alone, so an old block is copied first.
    pub(super) fn make_root(&mut self, child: ChildPtr, level: u8) -> Result<Root> {
        if child.generation == self.exchange.generation() {
            return Ok(Root { bytenr: child.bytenr, generation: child.generation, level });
        }
        let old = self.blocks.read(child.bytenr, level, child.generation, self.owner)?;
        self.exchange.release(&old)?;
        let stamp = self.exchange.place(level)?;
        let root = Root { bytenr: stamp.bytenr, generation: stamp.generation, level };
        let copy = copy_of(&old, &stamp);
        self.exchange.placed(copy)?;
        Ok(root)
    }
}
