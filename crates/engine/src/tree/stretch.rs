//! Old leaves changed apart from the merge that takes them over, so that several threads change one tree.
//!
//! A [`Stretch`] is some leaves in a row below one node of level 1. Whoever changes it gets a merge of its own that sees these leaves
//! only; what comes out ([`Remade`]) has no addresses and has let go of nothing yet. Both is done when the merge of the whole tree
//! takes it over ([`Merge::take_over`]), in key order: the result does not depend on how threads ran. Leaves in which nothing has
//! changed keep their address.

use std::ops::Range;
use std::sync::Arc;

use buttress_ondisk::build::Stamp;
use buttress_ondisk::{ChildPtr, Key, TreeBlock};

use super::{Blocks, Exchange, Merge, Root, View, behind};
use crate::error::Result;

/// What stands for the generation of a leaf that has no address yet. No block on a disk has it.
pub(super) const UNPLACED: u64 = 0;

/// Leaves in a row below one node.
#[derive(Clone, Debug)]
pub struct Stretch {
    /// The node.
    pub(super) node: Root,
    pub(super) slots: Range<usize>,
    from: Key,
    to: Key,
}

/// Which leaves stretches are wanted of.
pub struct Wanted<'w> {
    /// Those that hold keys from the first one to before the second one, and no others.
    pub keys: (Key, Key),
    /// At most so many in each.
    pub most: usize,
    /// Whether something changes from a key to before another one: only there the tree is looked at.
    pub changes: &'w dyn Fn(&Key, &Key) -> bool,
    /// Whether a leaf that starts with a key may be the first one of a stretch, or the one behind it.
    pub may_cut: &'w dyn Fn(&Key) -> bool,
}

impl Stretch {
    /// The stretches of a tree, in key order. The last leaf of a tree is in none of them.
    pub fn all(view: &View<'_>, wanted: &Wanted<'_>) -> Result<Vec<Stretch>> {
        let mut found = Vec::new();
        wanted.gather(view, &*view.root_block()?, None, &mut found)?;
        Ok(found)
    }

    /// The key that its first leaf starts with.
    pub fn from(&self) -> Key {
        self.from
    }

    /// The key that the leaf behind it starts with.
    pub fn to(&self) -> Key {
        self.to
    }

    /// How many leaves it has.
    pub fn leaves(&self) -> usize {
        self.slots.len()
    }

    /// Makes the changes that `fill` makes, whose keys are in the stretch.
    pub fn remake(
        &self,
        blocks: &Blocks,
        owner: u64,
        fill: impl FnOnce(&mut Merge<'_>) -> Result<()>,
    ) -> Result<Remade> {
        let mut exchange = Apart::default();
        let Root { bytenr, generation, level } = self.node;
        let node = blocks.read(bytenr, level, generation, owner)?;
        let mut merge = Merge::of_stretch(blocks, owner, (node, self), &mut exchange);
        fill(&mut merge)?;
        let children = merge.finish_stretch(self.slots.end)?;
        Ok(Remade { stretch: self.clone(), children, apart: exchange })
    }
}

impl Wanted<'_> {
    /// Those below `node`, behind which `bound` starts. As deep as the tree has levels.
    fn gather(
        &self,
        view: &View<'_>,
        node: &TreeBlock,
        bound: Option<Key>,
        found: &mut Vec<Stretch>,
    ) -> Result<()> {
        match node.level() {
            0 => Ok(()),
            1 => {
                self.cut(node, bound, found);
                Ok(())
            }
            _ => {
                let (from, to) = &self.keys;
                let slots = node.child_for(from)..node.len();
                for slot in slots.take_while(|slot| node.key(*slot) < *to) {
                    let bound = behind(node, slot, bound);
                    if (self.changes)(&node.key(slot), &bound.unwrap_or(*to)) {
                        self.gather(view, &*view.child(node, slot)?, bound, found)?;
                    }
                }
                Ok(())
            }
        }
    }

    /// Those of a node of level 1.
    fn cut(&self, node: &TreeBlock, bound: Option<Key>, found: &mut Vec<Stretch>) {
        let (first, to) = &self.keys;
        let end_of = |slot| behind(node, slot, bound);
        let inside = |slot: &usize| {
            let placed = node.child(*slot).generation != UNPLACED;
            placed && end_of(*slot).is_some_and(|end| end <= *to)
        };
        let mut start = node.child_for(first);
        while start < node.len() && node.key(start) < *to {
            let from = node.key(start);
            let mut cut = None;
            if from >= *first && (self.may_cut)(&from) {
                let slots = (start..node.len()).take(self.most).take_while(inside);
                let ends = slots.filter_map(|slot| Some((slot + 1, end_of(slot)?)));
                cut = ends.filter(|(_, end)| (self.may_cut)(end)).last();
            }
            let Some((end, to)) = cut else {
                start += 1;
                continue;
            };
            if (self.changes)(&from, &to) {
                let (bytenr, generation) = (node.bytenr(), node.generation());
                let node = Root { bytenr, generation, level: 1 };
                found.push(Stretch { node, slots: start..end, from, to });
            }
            start = end;
        }
    }
}

/// A stretch with its changes.
#[derive(Debug)]
pub struct Remade {
    pub(super) stretch: Stretch,
    /// What its node gets instead of the old leaves. Those of generation [`UNPLACED`] are `apart.leaves`, in their order.
    pub(super) children: Vec<ChildPtr>,
    pub(super) apart: Apart,
}

impl Remade {
    /// How many leaves were made.
    pub fn leaves(&self) -> usize {
        self.apart.leaves.len()
    }

    /// Whether nothing has changed.
    pub(super) fn is_same(&self) -> bool {
        self.apart.leaves.is_empty() && self.apart.released.is_empty()
    }
}

/// What the merge of a stretch has made and let go.
#[derive(Debug, Default)]
pub(super) struct Apart {
    pub leaves: Vec<TreeBlock>,
    pub released: Vec<Arc<TreeBlock>>,
}

impl Exchange for Apart {
    fn generation(&self) -> u64 {
        UNPLACED
    }

    fn release(&mut self, old: &Arc<TreeBlock>) -> Result<()> {
        self.released.push(old.clone());
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

/// The head of a leaf that has no address yet.
pub(super) const UNSTAMPED: Stamp = Stamp {
    fsid: [0; 16],
    chunk_tree_uuid: [0; 16],
    bytenr: 0,
    generation: UNPLACED,
    owner: 0,
    flags: 0,
};
