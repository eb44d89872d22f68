//! A place in a tree that moves forward item by item: for trees that are read side by side.
//!
//! As tolerant of damage as [`crate::walk`]; what cannot be read is an event of its own.

use buttress_ondisk::{Key, TreeBlock};

use crate::{
    context::Context,
    owners::Above,
    roots::Tree,
    walk::{check_bound, child, read, root},
};

/// What a cursor stands at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event<'a> {
    /// An item.
    Item(Key, &'a [u8]),
    /// Keys from the first to before the second (to the end: `None`) that cannot be read.
    Lost(Key, Option<Key>),
}

/// A block on the way down, and where in it the way goes on.
struct Step {
    block: TreeBlock,
    slot: usize,
    bound: Option<Key>,
}

impl Step {
    fn holds(&self, key: &Key) -> bool {
        !self.block.is_empty()
            && self.block.key(0) <= *key
            && self.bound.is_none_or(|bound| *key < bound)
    }
}

/// A place in a tree.
pub(crate) struct Cursor<'a, 'b> {
    context: &'a Context<'b>,
    tree: Tree,
    /// From the root down; the last one is a leaf, except while moving.
    path: Vec<Step>,
    lost: Option<(Key, Option<Key>)>,
}

impl<'a, 'b> Cursor<'a, 'b> {
    /// A cursor at the first item whose key is not below `key`.
    pub fn at(context: &'a Context<'b>, tree: &Tree, key: Key) -> Cursor<'a, 'b> {
        let mut cursor = Self::near(context, tree, key);
        while cursor.key().is_some_and(|found| found < key) {
            cursor.next();
        }
        cursor
    }

    /// A cursor at the last item whose key is not above `key`, or at the first item of all.
    pub fn near(context: &'a Context<'b>, tree: &Tree, key: Key) -> Cursor<'a, 'b> {
        let mut cursor = Cursor { context, tree: *tree, path: Vec::new(), lost: None };
        cursor.seek(key);
        cursor
    }

    /// Moves to the last item whose key is not above `key`, or to the first item of all. Cheap when it is near.
    pub fn seek(&mut self, key: Key) {
        self.lost = None;
        while self.path.pop_if(|step| !step.holds(&key)).is_some() {}
        if self.path.is_empty() {
            self.push_root();
        }
        while let Some(step) = self.path.last_mut() {
            step.slot = step.block.child_for(&key);
            if step.block.is_leaf() || step.block.is_empty() || !self.descend() {
                break;
            }
        }
        self.settle();
    }

    fn push_root(&mut self) {
        match read(self.context, self.tree.id(), &root(&self.tree).1) {
            Some(block) => self.push(block, None, Above::Root),
            None => self.lost = Some((Key::MIN, None)),
        }
    }

    fn push(&mut self, block: TreeBlock, bound: Option<Key>, above: Above) {
        self.context.meet(&block, self.tree.id(), 0, above);
        check_bound(self.context, &self.tree, &block, bound);
        self.path.push(Step { block, slot: 0, bound });
    }

    /// One block down; whether there is one. If not, its keys are lost and the way goes on behind it.
    fn descend(&mut self) -> bool {
        let Some(step) = self.path.last_mut() else { return false };
        let (subtree, expect, next) = child(&self.tree, &step.block, step.slot, step.bound);
        let above = Above::of(&step.block);
        match read(self.context, self.tree.id(), &expect) {
            Some(block) => {
                self.push(block, next, above);
                true
            }
            None => {
                step.slot += 1;
                self.lost = Some((subtree.ptr.key, next));
                false
            }
        }
    }

    /// Goes on until there is an item or a loss to stand at, or nothing left.
    fn settle(&mut self) {
        while self.lost.is_none()
            && let Some(step) = self.path.last()
        {
            if step.slot >= step.block.len() {
                self.path.pop();
                if let Some(parent) = self.path.last_mut() {
                    parent.slot += 1;
                }
            } else if step.block.is_leaf() {
                break;
            } else {
                self.descend();
            }
        }
    }

    /// What is here; `None` at the end of the tree.
    pub fn get(&self) -> Option<Event<'_>> {
        if let Some((from, to)) = self.lost {
            return Some(Event::Lost(from, to));
        }
        let step = self.path.last()?;
        let (key, data) = step.block.item(step.slot);
        Some(Event::Item(key, data))
    }

    /// The key here, of an item or of the beginning of a loss.
    pub fn key(&self) -> Option<Key> {
        match self.get()? {
            Event::Item(key, _) | Event::Lost(key, _) => Some(key),
        }
    }

    /// Moves on by one event.
    pub fn next(&mut self) {
        if self.lost.take().is_none()
            && let Some(step) = self.path.last_mut()
        {
            step.slot += 1;
        }
        self.settle();
    }
}
