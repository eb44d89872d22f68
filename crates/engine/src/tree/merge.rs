//! The one way to change a tree: a stream of changes in key order, merged with the old items into new blocks.
//!
//! The merge walks down the old tree along the changed keys. As long as nothing changes in a block it only remembers
//! where it is; when something does, the block and all above it become *dirty*: what was passed over so far is copied
//! into the block being built, and the old block is released. Untouched neighbours keep their address and are only
//! pointed at again. New blocks are filled completely; where a run of new blocks ends with a small one, it shares evenly
//! with its predecessor or swallows its old successor, except at the end of the tree, where appending goes on.
//!
//! Cost: the blocks on the paths to what changes, each read and written once; no block twice.
//!
//! ```text
//!  old tree, read along `path`                       new blocks, built from left to right
//!
//!  path[0]  node   ..passed.. | slot | not yet       nodes[1]   children of the node of level 2 being built
//!  path[1]  node   ..passed.. | slot | not yet       nodes[0]   children of the node of level 1 being built
//!  path[2]  leaf   ..passed.. | slot | not yet       held leaf  full; waits to see whether its successor stays small
//!                                                    leaf       the one that takes the next item
//! ```
//!
//! * What was passed of a *dirty* block is in the new blocks already; of one that is not dirty it is still only in the old one.
//! * All above a dirty block are dirty.
//! * In key order stand: what was placed below `nodes`, then `held`, then `leaf`, then what is not passed yet. So before an old child
//!   is pointed at again in `nodes[n]`, all that is being built below that level is placed (`flush_below`).
//! * A leaf is placed when the next one is full, too, or when an old block follows. What `nodes` has is placed when there are children
//!   enough for two nodes: then one full node can go, and the last two can still share.

mod build;

use std::sync::Arc;

use buttress_ondisk::build::Stamp;
use buttress_ondisk::{ChildPtr, ITEM_LEN, Key, LeafBuilder, NodeBuilder, TreeBlock};

use super::stretch::UNPLACED;
use super::view::read_child;
use super::{Blocks, Draft, Remade, Root, Stretch};
use crate::error::{Error, Result};

/// This part of a leaf stays free when a tree is packed: if it were full, the next item that comes into it would split it.
pub const PACKED_GAP: usize = 16;

/// Leaves that packing makes of items in a row.
#[derive(Debug)]
pub struct Packed {
    /// How many there are.
    pub leaves: u64,
    room: usize,
    /// Of the last one.
    free: usize,
}

impl Packed {
    /// None yet.
    pub fn new(nodesize: usize) -> Packed {
        Packed { leaves: 0, room: LeafBuilder::room(nodesize), free: 0 }
    }

    /// One item more, of so many bytes.
    pub fn add(&mut self, size: usize) {
        if self.is_full(self.free, size) {
            (self.leaves, self.free) = (self.leaves + 1, self.room);
        }
        self.free = self.free.saturating_sub(size + ITEM_LEN);
    }

    /// Whether a leaf with so much free space does not take this item.
    fn is_full(&self, free: usize, size: usize) -> bool {
        free < (self.room / PACKED_GAP).max(size + ITEM_LEN)
    }
}

/// What a merge exchanges with the commit it belongs to.
pub trait Exchange {
    /// The transaction that new blocks belong to.
    fn generation(&self) -> u64;
    /// The old block is let go. Called from the root downwards, before any change below it.
    fn release(&mut self, old: &Arc<TreeBlock>) -> Result<()>;
    /// An address and the rest of the head for a new block of `level`.
    fn place(&mut self, level: u8) -> Result<Stamp>;
    /// The new block is complete.
    fn placed(&mut self, block: TreeBlock) -> Result<()>;
}

/// An old block on the path.
struct Level {
    block: Arc<TreeBlock>,
    /// Leaf: the next item to look at. Node: the child the path goes through.
    slot: usize,
    dirty: bool,
    /// Keys at or above this one are not below this block.
    bound: Option<Key>,
}

/// A streamed change of a tree. Calls come in ascending key order.
pub struct Merge<'a> {
    blocks: &'a Blocks,
    owner: u64,
    exchange: &'a mut dyn Exchange,
    root: Option<Root>,
    /// From the root to the leaf.
    path: Vec<Level>,
    /// The leaf being built, and the full one before it.
    leaf: LeafBuilder,
    held: Option<LeafBuilder>,
    /// `nodes[n]`: children of the node of level `n + 1` being built.
    nodes: Vec<Vec<ChildPtr>>,
    /// Only leaves are made: another merge builds the nodes above them.
    apart: bool,
    /// What comes of one old leaf stays in leaves of its own.
    exact: bool,
    /// Nothing at or behind this key is there for it.
    end: Option<Key>,
    changed: bool,
    last: Option<Key>,
}

impl<'a> Merge<'a> {
    /// Starts to change tree `owner`, of which `root` is the current version; `None` makes a new tree.
    pub fn new(
        blocks: &'a Blocks,
        owner: u64,
        root: Option<Root>,
        exchange: &'a mut dyn Exchange,
    ) -> Result<Merge<'a>> {
        let mut merge = Merge::of_nothing(blocks, owner, exchange);
        merge.changed = root.is_none();
        if let Some(root) = root {
            merge.root = Some(root);
            let block = blocks.read(root.bytenr, root.level, root.generation, owner)?;
            merge.path.push(Level { block, slot: 0, dirty: false, bound: None });
        }
        Ok(merge)
    }

    fn of_nothing(blocks: &'a Blocks, owner: u64, exchange: &'a mut dyn Exchange) -> Merge<'a> {
        Merge {
            leaf: LeafBuilder::new(blocks.nodesize()),
            held: None,
            blocks,
            owner,
            exchange,
            root: None,
            path: Vec::with_capacity(4),
            nodes: Vec::new(),
            apart: false,
            exact: false,
            end: None,
            changed: true,
            last: None,
        }
    }

    /// Only makes leaves, beside an empty tree: for a [`Draft`].
    pub(super) fn of_leaves(
        blocks: &'a Blocks,
        owner: u64,
        exchange: &'a mut dyn Exchange,
    ) -> Merge<'a> {
        Merge { apart: true, ..Merge::of_nothing(blocks, owner, exchange) }
    }

    /// Changes the leaves of a stretch: its node counts as dirty, and everything outside as passed.
    pub(super) fn of_stretch(
        blocks: &'a Blocks,
        owner: u64,
        (block, stretch): (Arc<TreeBlock>, &Stretch),
        exchange: &'a mut dyn Exchange,
    ) -> Merge<'a> {
        let mut merge = Merge::of_leaves(blocks, owner, exchange);
        let slot = stretch.slots.start;
        merge.end = Some(stretch.to());
        merge.path.push(Level { block, slot, dirty: true, bound: merge.end });
        merge
    }

    /// From here on, what comes of one old leaf goes into no other one, nor is another one taken in. That makes more small leaves than the
    /// usual way, but never one more than what comes into an old leaf splits off, however often the tree is merged in one commit.
    pub fn keep_leaves_apart(&mut self) {
        self.exact = true;
    }

    /// The tree being changed.
    pub fn owner(&self) -> u64 {
        self.owner
    }

    /// The old item at exactly `key`.
    pub fn find(&mut self, key: &Key) -> Result<Option<&[u8]>> {
        self.seek(key)?;
        Ok(self.at(key).map(|(leaf, slot)| leaf.data(slot)))
    }

    /// The first old item at or after `from`; it stays where it is.
    pub fn peek(&mut self, from: &Key) -> Result<Option<(Key, &[u8])>> {
        self.seek(from)?;
        if !self.skip_ended()? {
            return Ok(None);
        }
        let leaf = self.path.last().expect("a leaf follows");
        Ok(Some(leaf.block.item(leaf.slot)))
    }

    /// The last old item at or before `key`, unless it was passed already; then the first one that was not.
    pub fn peek_floor(&mut self, key: &Key) -> Result<Option<(Key, &[u8])>> {
        self.seek_leaf(key)?;
        if let Some(leaf) = self.path.last() {
            let target = leaf.block.search(key).unwrap_or_else(|slot| slot.saturating_sub(1));
            self.pass_items(target)?;
        }
        if !self.skip_ended()? {
            return Ok(None);
        }
        let leaf = self.path.last().expect("a leaf follows");
        Ok(Some(leaf.block.item(leaf.slot)))
    }

    /// Inserts the item, or replaces the one at `key`.
    pub fn put(&mut self, key: Key, data: &[u8]) -> Result<()> {
        self.seek(&key)?;
        if let Some((leaf, slot)) = self.at(&key)
            && leaf.data(slot) == data
        {
            return Ok(());
        }
        self.replace(key, data.len())?.copy_from_slice(data);
        Ok(())
    }

    /// Inserts an item of `size` bytes, or replaces the one at `key`; `fill` gets its (zeroed) data.
    pub fn put_with(&mut self, key: Key, size: usize, fill: impl FnOnce(&mut [u8])) -> Result<()> {
        self.seek(&key)?;
        fill(self.replace(key, size)?);
        Ok(())
    }

    /// Deletes the item at `key`; whether there was one.
    pub fn delete(&mut self, key: &Key) -> Result<bool> {
        self.seek(key)?;
        if self.at(key).is_none() {
            return Ok(false);
        }
        self.changing(key);
        self.make_dirty()?;
        self.last_mut().slot += 1;
        Ok(true)
    }

    /// Deletes the items from `from` to `to`, both included; `each` sees them before.
    pub fn delete_range(
        &mut self,
        from: Key,
        to: Key,
        mut each: impl FnMut(Key, &[u8]),
    ) -> Result<()> {
        self.seek(&from)?;
        self.changing(&from);
        loop {
            let Some(leaf) = self.path.last() else { return Ok(()) };
            let ended = leaf.slot >= leaf.block.len();
            if ended && leaf.bound.is_none_or(|bound| bound > to) || !self.skip_ended()? {
                return Ok(());
            }
            let leaf = self.last_mut();
            if leaf.block.key(leaf.slot) > to {
                return Ok(());
            }
            self.make_dirty()?;
            let leaf = self.last_mut();
            while leaf.slot < leaf.block.len() && leaf.block.key(leaf.slot) <= to {
                let (key, data) = leaf.block.item(leaf.slot);
                each(key, data);
                leaf.slot += 1;
            }
        }
    }

    /// Writes the leaf anew in which `key` is or would be, and all above it.
    pub fn renew(&mut self, key: &Key) -> Result<()> {
        self.seek_leaf(key)?;
        self.make_dirty()
    }

    /// Writes all that has not been passed anew, and leaves [`PACKED_GAP`] in each leaf.
    pub fn pack(&mut self) -> Result<()> {
        let packed = Packed::new(self.blocks.nodesize());
        self.seek(&self.last.unwrap_or(Key::MIN))?;
        while self.skip_ended()? {
            self.make_dirty()?;
            let (free, leaf) = (self.leaf.free(), self.last_mut());
            let (next, size) = (leaf.slot + 1, leaf.block.data(leaf.slot).len());
            if packed.is_full(free, size) {
                self.turn_leaf()?;
            }
            self.pass_items(next)?;
        }
        Ok(())
    }

    /// Puts the items of `draft`. Where the old tree has nothing among them, its leaves are taken as they are.
    pub fn graft(&mut self, mut draft: Draft) -> Result<()> {
        let Some((first, last)) = draft.keys() else { return Ok(()) };
        let next = self.peek(&first)?.map(|(key, _)| key);
        let rest = if next.is_some_and(|next| next <= last) {
            std::mem::take(&mut draft.leaves)
        } else {
            self.changing(&first);
            self.make_dirty()?;
            self.changed = true;
            self.flush_leaf(false)?;
            // The last one need not be full: what comes next goes on in it.
            let rest = draft.leaves.pop();
            for leaf in draft.leaves {
                let stamp = self.exchange.place(0)?;
                self.placed(leaf.stamped(&stamp))?;
            }
            Vec::from_iter(rest)
        };
        for leaf in &rest {
            (0..leaf.len()).try_for_each(|slot| self.put(leaf.key(slot), leaf.data(slot)))?;
        }
        Ok(())
    }

    /// Puts what was made of a stretch in its place.
    pub fn take_over(&mut self, remade: Remade) -> Result<()> {
        if remade.is_same() {
            return Ok(());
        }
        let Remade { stretch, children, apart } = remade;
        let from = stretch.from();
        let begun = self.seek_node(&from)?;
        if self.path.last().is_none_or(|node| node.block.bytenr() != stretch.node.bytenr) {
            return Err(Error::inconsistent(self.owner, "leaves changed apart are passed", from));
        }
        self.changing(&from);
        self.make_dirty()?;
        let is_begun = |bytenr| begun.as_ref().is_some_and(|begun| begun.bytenr() == bytenr);
        let released = apart.released.iter().filter(|old| !is_begun(old.bytenr()));
        released.into_iter().try_for_each(|old| self.exchange.release(old))?;
        let mut children = children.into_iter().peekable();
        if let Some(begun) = &begun
            && children.next_if(|child| is_begun(child.bytenr)).is_some()
        {
            self.copy_items(begun, 0, begun.len())?;
        }
        self.flush_leaf(false)?;
        let mut leaves = apart.leaves.into_iter();
        for child in children {
            if child.generation != UNPLACED {
                self.nodes_at(1).push(child);
                self.trim_nodes(1)?;
            } else if let Some(leaf) = leaves.next() {
                let stamp = self.exchange.place(0)?;
                self.placed(leaf.stamped(&stamp))?;
            }
        }
        self.last_mut().slot = stretch.slots.end;
        Ok(())
    }

    /// Places the leaves that are being built, and builds nothing above them: for a [`Draft`].
    pub(super) fn finish_leaves(mut self) -> Result<()> {
        self.flush_leaf(true)
    }

    /// The children that a node gets instead of the leaves of a stretch, which ends before slot `end`.
    pub(super) fn finish_stretch(mut self, end: usize) -> Result<Vec<ChildPtr>> {
        while self.path.len() > 1 {
            self.leave()?;
        }
        self.pass_children(end)?;
        self.flush_leaf(false)?;
        Ok(std::mem::take(self.nodes_at(1)))
    }

    /// The new version: what was not passed yet stays as it is.
    pub fn finish(mut self) -> Result<Root> {
        if let Some(root) = self.root.filter(|_| !self.changed) {
            return Ok(root);
        }
        while !self.path.is_empty() {
            self.leave()?;
        }
        self.flush_leaf(true)?;
        self.crown()
    }

    // ---- going forward over the old tree ----

    fn last_mut(&mut self) -> &mut Level {
        self.path.last_mut().expect("the path is not empty")
    }

    fn at(&self, key: &Key) -> Option<(&TreeBlock, usize)> {
        let leaf = self.path.last()?;
        (leaf.slot < leaf.block.len() && leaf.block.key(leaf.slot) == *key)
            .then_some((&*leaf.block, leaf.slot))
    }

    /// Goes to the leaf and the slot where `key` is or would be.
    fn seek(&mut self, key: &Key) -> Result<()> {
        self.seek_leaf(key)?;
        let Some(leaf) = self.path.last() else { return Ok(()) };
        // All before the slot was passed: often the next item is the one.
        if leaf.slot < leaf.block.len() && leaf.block.key(leaf.slot) >= *key {
            return Ok(());
        }
        let target = leaf.block.search(key).unwrap_or_else(|slot| slot);
        self.pass_items(target)
    }

    /// Goes to the leaf where `key` is or would be.
    fn seek_leaf(&mut self, key: &Key) -> Result<()> {
        self.leave_before(key)?;
        self.descend(key, 0)
    }

    /// Goes to the node whose child starts with `key`, of which nothing was passed. Who looked for the next item may have begun with
    /// that child, and released it: then it is returned.
    fn seek_node(&mut self, key: &Key) -> Result<Option<Arc<TreeBlock>>> {
        self.leave_before(key)?;
        let unread = |leaf: &mut Level| leaf.block.is_leaf() && leaf.slot == 0;
        let begun = if self.path.len() > 1 { self.path.pop_if(unread) } else { None };
        self.descend(key, 1)?;
        if let Some(target) = self.path.last().map(|node| node.block.child_for(key)) {
            self.pass_children(target)?;
        }
        Ok(begun.filter(|leaf| leaf.dirty).map(|leaf| leaf.block))
    }

    /// Leaves the blocks that end before `key`, and nodes of which all was taken over: what comes next may be before their bound.
    fn leave_before(&mut self, key: &Key) -> Result<()> {
        let is_behind = |level: &Level| {
            let all_passed = !level.block.is_leaf() && level.slot >= level.block.len();
            all_passed || level.bound.is_some_and(|bound| bound <= *key)
        };
        while self.path.len() > 1 && self.path.last().is_some_and(is_behind) {
            self.leave()?;
        }
        Ok(())
    }

    /// Makes sure that the leaf has an item at its slot, going to the next one when it has ended; false at the end.
    fn skip_ended(&mut self) -> Result<bool> {
        loop {
            let Some(leaf) = self.path.last() else { return Ok(false) };
            if leaf.slot < leaf.block.len() {
                return Ok(true);
            }
            let Some(bound) = leaf.bound.filter(|bound| Some(*bound) != self.end) else {
                return Ok(false);
            };
            self.seek(&bound)?;
        }
    }

    /// Leaves old items before `target` behind, copying them when the leaf is dirty.
    fn pass_items(&mut self, target: usize) -> Result<()> {
        let leaf = self.last_mut();
        if leaf.slot >= target {
            return Ok(());
        }
        let from = std::mem::replace(&mut leaf.slot, target);
        if leaf.dirty {
            let block = leaf.block.clone();
            self.copy_items(&block, from, target)?;
        }
        Ok(())
    }

    fn copy_items(&mut self, block: &TreeBlock, mut from: usize, to: usize) -> Result<()> {
        loop {
            from = self.leaf.push_range(block, from, to);
            if from == to {
                return Ok(());
            }
            self.turn_leaf()?;
        }
    }

    /// From a node at the end of the path down to the block of `level` for `key`.
    fn descend(&mut self, key: &Key, level: u8) -> Result<()> {
        loop {
            let Some(node) = self.path.last() else { return Ok(()) };
            if node.block.level() <= level {
                return Ok(());
            }
            let target = node.block.child_for(key).max(node.slot);
            self.pass_children(target)?;
            let node = self.path.last().expect("children of it were passed");
            let bound = if target + 1 < node.block.len() {
                Some(node.block.key(target + 1))
            } else {
                node.bound
            };
            let block = read_child(self.blocks, self.owner, &node.block, target, bound)?;
            self.path.push(Level { block, slot: 0, dirty: false, bound });
        }
    }

    /// Leaves the children before `target` of the last node of the path behind, untouched.
    fn pass_children(&mut self, target: usize) -> Result<()> {
        let node = self.last_mut();
        let from = node.slot;
        node.slot = target.max(from);
        if !node.dirty || from >= target {
            return Ok(());
        }
        let block = node.block.clone();
        self.push_old(&block, from, target)
    }

    /// Leaves the last block of the path, with everything in it that was not passed yet.
    fn leave(&mut self) -> Result<()> {
        let end = self.last_mut().block.len();
        if self.last_mut().block.is_leaf() {
            self.pass_items(end)?;
        } else {
            self.pass_children(end)?;
        }
        let left = self.path.pop().expect("not empty");
        if self.exact && left.dirty && left.block.is_leaf() {
            self.flush_leaf(false)?;
        }
        let Some(parent) = self.path.last_mut() else { return Ok(()) };
        let at = parent.slot;
        if left.dirty || !parent.dirty {
            parent.slot = at + 1;
            return Ok(());
        }
        self.pass_children(at + 1)
    }

    // ---- making blocks dirty ----

    /// Releases the blocks of the path that are not dirty yet, and takes over what was passed in them.
    fn make_dirty(&mut self) -> Result<()> {
        if self.path.last().is_none_or(|leaf| leaf.dirty) {
            return Ok(());
        }
        self.changed = true;
        for depth in 0..self.path.len() {
            if self.path[depth].dirty {
                continue;
            }
            let (block, slot) = (self.path[depth].block.clone(), self.path[depth].slot);
            self.exchange.release(&block)?;
            self.path[depth].dirty = true;
            if block.is_leaf() {
                self.copy_items(&block, 0, slot)?;
            } else {
                self.push_old(&block, 0, slot)?;
            }
        }
        Ok(())
    }

    /// Room in the leaf being built for an item, taking the place of the old one at `key`.
    fn replace(&mut self, key: Key, size: usize) -> Result<&mut [u8]> {
        if size + ITEM_LEN > LeafBuilder::room(self.blocks.nodesize()) {
            return Err(Error::inconsistent(self.owner, "an item is larger than a leaf", key));
        }
        self.changing(&key);
        let replaces = self.at(&key).is_some();
        self.make_dirty()?;
        self.changed = true;
        if replaces {
            self.last_mut().slot += 1;
        }
        if self.leaf.free() < size + ITEM_LEN {
            self.turn_leaf()?;
        }
        Ok(self.leaf.push_uninit(key, size).expect("a fresh leaf has room for it"))
    }

    fn changing(&mut self, key: &Key) {
        debug_assert!(self.last.is_none_or(|last| last <= *key), "{:?} then {key}", self.last);
        self.last = Some(*key);
    }
}

/// The same items or children under another head.
pub fn copy_of(old: &TreeBlock, stamp: &Stamp) -> TreeBlock {
    let nodesize = old.as_bytes().len();
    if old.is_leaf() {
        let mut leaf = LeafBuilder::new(nodesize);
        leaf.push_range(old, 0, old.len());
        leaf.finish(stamp)
    } else {
        let mut node = NodeBuilder::new(nodesize);
        (0..old.len()).for_each(|slot| assert!(node.push(&old.child(slot)), "as many as before"));
        node.finish(old.level(), stamp)
    }
}
