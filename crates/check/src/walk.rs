//! A walk over a tree that damage does not end: a block that cannot be read is one issue, its part of the keys is told to the
//! visitor as lost, and the walk goes on beside it. A block that has its checksum and breaks a rule is reported, and what is in
//! it is used as far as it makes sense.
//!
//! The depth is bounded by the levels, which fall by one at each step, and the width by the keys: a block has to begin with
//! the key that its parent says, so that no block is met twice in one tree.

use std::ops::RangeInclusive;

use buttress_ondisk::{ChildPtr, Expect, Key, TreeBlock};
use buttress_volume::TreeRoot;

use crate::{context::Context, issue::Place, kinds::Kind, owners::Above, roots::Tree};

/// A subtree about to be walked, or just walked.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Subtree {
    /// Its top block, as its parent (or root item) has it.
    pub ptr: ChildPtr,
    /// The level of its top block.
    pub level: u8,
    /// Whether all of it is inside the range that is walked.
    pub whole: bool,
}

/// Items of a leaf that are inside the range that is walked.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Leaf<'a> {
    /// The leaf.
    pub block: &'a TreeBlock,
    /// The first slot inside.
    pub first: usize,
    /// The slot after the last one inside.
    pub end: usize,
}

impl<'a> Leaf<'a> {
    /// The items. Their content passed the gate, except in a block that was reported: use the views, which do not fail.
    pub fn items(&self) -> impl Iterator<Item = (Key, &'a [u8])> + use<'a> {
        let block = self.block;
        (self.first..self.end).map(move |slot| block.item(slot))
    }
}

/// Who is told what a walk meets, in key order.
pub(crate) trait Visitor {
    /// Whether a subtree is to be read. For who remembers shared ones; the references in it are counted only when it is.
    fn want(&mut self, _subtree: &Subtree) -> bool {
        true
    }

    /// A leaf with items of the range.
    fn leaf(&mut self, leaf: &Leaf<'_>);

    /// A subtree that was wanted is done.
    fn done(&mut self, _subtree: &Subtree) {}

    /// Items from the first key to before the second one (to the end: `None`) cannot be read. It was reported.
    fn lost(&mut self, _from: Key, _to: Option<Key>) {}
}

/// A visitor that wants nothing but that all blocks are met.
pub(crate) struct Nobody;

impl Visitor for Nobody {
    fn leaf(&mut self, _leaf: &Leaf<'_>) {}
}

/// Walks a tree's items whose keys are in the range, in key order. Every block that is met counts, see
/// [`Context::meet`].
pub(crate) fn walk(
    context: &Context<'_>,
    tree: &Tree,
    range: RangeInclusive<Key>,
    visitor: &mut dyn Visitor,
) {
    let whole = *range.start() == Key::MIN && *range.end() == Key::MAX;
    let (ptr, expect) = root(tree);
    let subtree = Subtree { ptr, level: tree.root.level, whole };
    let mut walker = Walker { context, tree, range, visitor };
    walker.subtree(&subtree, &expect, None, Above::Root);
}

struct Walker<'a, 'b> {
    context: &'a Context<'b>,
    tree: &'a Tree,
    range: RangeInclusive<Key>,
    visitor: &'a mut dyn Visitor,
}

impl Walker<'_, '_> {
    fn subtree(&mut self, subtree: &Subtree, expect: &Expect, bound: Option<Key>, above: Above) {
        if !self.visitor.want(subtree) {
            return;
        }
        match read(self.context, self.tree.id(), expect) {
            Some(block) => self.block(&block, bound, above),
            None => self.visitor.lost(subtree.ptr.key, bound),
        }
        self.visitor.done(subtree);
    }

    fn block(&mut self, block: &TreeBlock, bound: Option<Key>, above: Above) {
        self.context.meet(block, self.tree.id(), self.first_left(block), above);
        check_bound(self.context, self.tree, block, bound);
        if block.is_leaf() {
            return self.leaf(block);
        }
        for slot in self.first_child(block)..block.len() {
            if block.key(slot) > *self.range.end() {
                break;
            }
            self.child(block, slot, bound);
        }
    }

    fn leaf(&mut self, block: &TreeBlock) {
        let first = block.search(self.range.start()).unwrap_or_else(|slot| slot);
        let end = block.search(self.range.end()).map_or_else(|slot| slot, |slot| slot + 1);
        if first < end {
            self.visitor.leaf(&Leaf { block, first, end });
        }
    }

    /// The first child that is in the range, and that a deletion has left.
    fn first_child(&self, block: &TreeBlock) -> usize {
        block.child_for(self.range.start()).max(self.first_left(block))
    }

    /// The first child that a deletion of the tree has left.
    fn first_left(&self, block: &TreeBlock) -> usize {
        match self.tree.dropped() {
            Some((key, level)) if !block.is_leaf() && block.level() >= level => {
                block.child_for(&key)
            }
            _ => 0,
        }
    }

    fn child(&mut self, block: &TreeBlock, slot: usize, bound: Option<Key>) {
        let (mut subtree, expect, next) = child(self.tree, block, slot, bound);
        let end = *self.range.end();
        let below_end = end == Key::MAX || next.is_some_and(|next| next <= end);
        subtree.whole = subtree.ptr.key >= *self.range.start() && below_end;
        self.subtree(&subtree, &expect, next, Above::of(block));
    }
}

/// A tree's root block, and what it has to be.
pub(crate) fn root(tree: &Tree) -> (ChildPtr, Expect) {
    let TreeRoot { bytenr, level, generation, owner } = tree.root;
    let ptr = ChildPtr { key: Key::MIN, bytenr, generation: generation.unwrap_or_default() };
    (ptr, Expect { bytenr, level: Some(level), generation, owner, first_key: None })
}

/// A child of a block whose keys are below `bound`: where it is, what it has to be, and what its own keys are below.
pub(crate) fn child(
    tree: &Tree,
    block: &TreeBlock,
    slot: usize,
    bound: Option<Key>,
) -> (Subtree, Expect, Option<Key>) {
    let ptr = block.child(slot);
    let next = if slot + 1 < block.len() { Some(block.key(slot + 1)) } else { bound };
    let level = block.level().saturating_sub(1);
    let expect = Expect {
        bytenr: ptr.bytenr,
        level: Some(level),
        generation: Some(ptr.generation),
        owner: tree.root.owner,
        first_key: Some(ptr.key),
    };
    (Subtree { ptr, level, whole: true }, expect, next)
}

/// Reports, once, a block whose keys are not below `bound`.
pub(crate) fn check_bound(
    context: &Context<'_>,
    tree: &Tree,
    block: &TreeBlock,
    bound: Option<Key>,
) {
    let (Some(bound), Some(last)) = (bound, block.len().checked_sub(1)) else { return };
    let key = block.key(last);
    if key >= bound && context.bad.lock().insert(block.bytenr()) {
        let place =
            Place { slot: Some(last), key: Some(key), ..Place::block(tree.id(), block.bytenr()) };
        context.report(Kind::TreeKeyOrder, place, key, format_args!("below {bound}"));
    }
}

/// Reads a block; what is wrong with it is reported once. `None` when nothing in it can be used.
pub(crate) fn read(context: &Context<'_>, tree: u64, expect: &Expect) -> Option<TreeBlock> {
    let place = || Place { key: expect.first_key, ..Place::block(tree, expect.bytenr) };
    let first_copy = match context.volume.read_block_from(expect.bytenr, expect, 0) {
        Ok(block) => return Some(block),
        Err(error) => error,
    };
    let error = match context.volume.read_block(expect.bytenr, expect) {
        Ok(block) => {
            if context.bad.lock().insert(expect.bytenr) {
                context.report(Kind::TreeBlockCopy, place(), first_copy, "a good copy");
            }
            return Some(block);
        }
        Err(error) => error,
    };
    let first = context.bad.lock().insert(expect.bytenr);
    if let Some((fault, block)) = context.volume.salvage(&error) {
        if first {
            let key = fault.slot.filter(|&slot| slot < block.len()).map(|slot| block.key(slot));
            let place = Place { slot: fault.slot, key: key.or(expect.first_key), ..place() };
            let have = format_args!("{}: {}", fault.what, fault.have);
            context.report(Kind::TreeBlockItem, place, have, &fault.expect);
        }
        return Some(block);
    }
    if first {
        context.report(Kind::TreeBlockBad, place(), &error, "a good tree block");
    }
    None
}
