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

use super::{Blocks, Exchange, Merge, View};
use crate::error::Result;

/// What stands for the generation of a leaf that has no address yet. No block on a disk has it.
pub(super) const UNPLACED: u64 = 0;

/// Leaves in a row below one node.
#[derive(Clone, Debug)]
pub struct Stretch {
    pub(super) node: Arc<TreeBlock>,
    pub(super) slots: Range<usize>,
    /// Where the leaf behind it starts.
    to: Key,
}

impl Stretch {
    /// The leaves of a tree that hold keys from `from` to before `to` and no others, in stretches of at most `most` leaves, in key
    /// order. `may_cut` says whether a leaf that starts with a key may be the first one of a stretch, or the one behind it. The last
    /// leaf of a tree is in none of them.
    pub fn all(
        view: &View<'_>,
        (from, to): (&Key, &Key),
        most: usize,
        may_cut: impl Fn(&Key) -> bool,
    ) -> Result<Vec<Stretch>> {
        let mut found = Vec::new();
        let cuts = Cuts { view, from, to, most, may_cut: &may_cut };
        cuts.gather(view.root_block()?, None, &mut found)?;
        Ok(found)
    }

    /// The key that its first leaf starts with.
    pub fn from(&self) -> Key {
        self.node.key(self.slots.start)
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
        let mut merge = Merge::of_stretch(blocks, owner, self, &mut exchange);
        fill(&mut merge)?;
        let children = merge.finish_stretch(self.slots.end)?;
        Ok(Remade { stretch: self.clone(), children, apart: exchange })
    }
}

/// What is cut into stretches.
struct Cuts<'w> {
    view: &'w View<'w>,
    from: &'w Key,
    to: &'w Key,
    most: usize,
    may_cut: &'w dyn Fn(&Key) -> bool,
}

impl Cuts<'_> {
    /// Those below `node`, behind which `bound` starts. As deep as the tree has levels.
    fn gather(
        &self,
        node: Arc<TreeBlock>,
        bound: Option<Key>,
        found: &mut Vec<Stretch>,
    ) -> Result<()> {
        match node.level() {
            0 => Ok(()),
            1 => {
                self.cut(&node, bound, found);
                Ok(())
            }
            _ => {
                let slots = node.child_for(self.from)..node.len();
                for slot in slots.take_while(|slot| node.key(*slot) < *self.to) {
                    let child = self.view.child(&node, slot)?;
                    self.gather(child, end_of(&node, slot, bound), found)?;
                }
                Ok(())
            }
        }
    }

    /// Those of a node of level 1.
    fn cut(&self, node: &Arc<TreeBlock>, bound: Option<Key>, found: &mut Vec<Stretch>) {
        let end_of = |slot| end_of(node, slot, bound);
        let inside = |slot: &usize| {
            let placed = node.child(*slot).generation != UNPLACED;
            placed && end_of(*slot).is_some_and(|end| end <= *self.to)
        };
        let mut start = node.child_for(self.from);
        while start < node.len() && node.key(start) < *self.to {
            let (mut row, mut to) = (0, None);
            if node.key(start) >= *self.from && (self.may_cut)(&node.key(start)) {
                let slots = (start..node.len()).take(self.most).take_while(inside);
                let last = slots.filter_map(|slot| Some((slot, end_of(slot)?)));
                let last = last.filter(|(_, end)| (self.may_cut)(end)).last();
                (row, to) = last.map_or((0, None), |(slot, end)| (slot + 1 - start, Some(end)));
            }
            if let Some(to) = to {
                found.push(Stretch { node: node.clone(), slots: start..start + row, to });
            }
            start += row.max(1);
        }
    }
}

/// Where what follows child `slot` of a node starts.
fn end_of(node: &TreeBlock, slot: usize, bound: Option<Key>) -> Option<Key> {
    if slot + 1 < node.len() { Some(node.key(slot + 1)) } else { bound }
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
