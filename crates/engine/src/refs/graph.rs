//! What has to be written anew when tree blocks and data extents move: they, and all blocks above them, each once, whoever shares it.
//!
//! The graph is closed upwards: of each block in it, all blocks that refer to it are in it, too, up to the roots of trees. So whoever gives each block
//! of it a new address can have all references to them by their new addresses, and nobody else refers to an old one. Which trees reach what
//! stays as it is.
//!
//! Where only the tree that owns a block reaches it, its references stay such by the tree ([`Above::is_plain`]). Any other one says in its head that it was
//! moved, as it is newer than the last snapshot then and shared all the same; what such a block refers to is counted by its address, which
//! `btrfs check` expects of it.
//!
//! Where the extent tree contradicts the other trees, what that is about is not added: an extent whose references are not met in the trees as often as
//! they count, or are fewer than what its leaves name; and all below a block whose references to what stays are not in the extent tree
//! ([`Graph::verify`]). So whatever was added can be moved without a reference that is missing. What cannot be seen from here is who names an extent without having any
//! reference to it, in a block that does not move.

use std::collections::{BTreeMap, BTreeSet, btree_map};
use std::ops::ControlFlow;
use std::sync::Arc;

use buttress_ondisk::view::InlineRef;
use buttress_ondisk::{SECTOR, TreeBlock};

use super::owners::{FileRef, Head, Owners, way};
use super::{Target, child_refs};
use crate::error::{Error, Result};
use crate::tree::Blocks;

/// Steps upwards from one block or extent at most: more than any reference graph of a tree of 8 levels comes to per block.
const STEPS_MAX: usize = 1 << 22;

/// A tree block that is written anew.
#[derive(Clone, Debug)]
pub struct Above {
    /// What its extent item says.
    pub head: Head,
    /// Its level.
    pub level: u8,
    /// The tree that has written it.
    pub owner: u64,
    /// All that refers to it, each with the block in which that reference is; `None`: it is the root of the tree.
    pub refs: Vec<(InlineRef, Option<u64>)>,
    /// Only the tree that owns it reaches it, by blocks of its own, and what it refers to is counted by the tree.
    pub is_plain: bool,
    /// Its address.
    bytenr: u64,
    /// How much it refers to.
    below: usize,
    /// As it is; not of those for which memory has no room.
    block: Option<Arc<TreeBlock>>,
}

/// A data extent that moves.
#[derive(Clone, Debug)]
pub struct MovingData {
    /// What its extent item says.
    pub head: Head,
    /// All that refers to it, each with the leaves in which the pieces of files are that it stands for, and how many are in each.
    pub refs: Vec<(InlineRef, BTreeMap<u64, u32>)>,
}

/// What is written anew.
#[derive(Debug, Default)]
pub struct Graph {
    /// Tree blocks by their addresses.
    pub blocks: BTreeMap<u64, Above>,
    /// Data extents by their addresses.
    pub data: BTreeMap<u64, MovingData>,
    /// The trees whose roots are among the blocks.
    pub roots: BTreeMap<u64, u64>,
    /// References that change by it.
    pub changes: usize,
    /// Bytes of the data that moves.
    pub data_bytes: u64,
    /// How often what stays must be referred to by trees, for blocks that are not plain.
    demands: BTreeMap<Demand, u64>,
    /// Blocks that are kept in memory, and how many may be.
    held: usize,
    held_max: usize,
}

/// An extent, and one way to refer to it.
type Demand = (u64, (u8, u64, u64, u64));

/// What was added last, to be taken out again.
#[derive(Debug, Default)]
pub struct Added {
    blocks: Vec<u64>,
    data: Option<u64>,
    /// Trees whose roots are among the blocks that were added.
    pub roots: Vec<u64>,
    changes: usize,
    demands: Vec<(Demand, u64)>,
}

impl Above {
    /// As it is.
    pub fn block(&self, blocks: &Blocks) -> Result<Arc<TreeBlock>> {
        match &self.block {
            Some(block) => Ok(block.clone()),
            None => blocks.read(self.bytenr, self.level, self.head.generation, 0),
        }
    }

    /// How it refers to what is below it, as the extent tree should have it.
    fn way_to(&self, target: Target) -> InlineRef {
        let (root, parent) = (self.owner, self.bytenr);
        match (target, self.head.full) {
            (Target::Block(..), true) => InlineRef::SharedBlock { parent },
            (Target::Block(..), false) => InlineRef::TreeBlock { root },
            (Target::Data { .. }, true) => InlineRef::SharedData { parent, count: 1 },
            (Target::Data { ino, offset, .. }, false) => {
                InlineRef::ExtentData { root, objectid: ino, offset, count: 1 }
            }
        }
    }

    /// All that it (`block`) refers to from child `first` on, in each way how often.
    fn below(&self, block: &TreeBlock, first: usize) -> BTreeMap<Demand, (InlineRef, u64)> {
        let (mut all, mut slot, is_node) = (BTreeMap::new(), 0, !block.is_leaf());
        child_refs(block, |target| {
            let is_gone = is_node && slot < first;
            slot += 1;
            if !is_gone {
                let one = self.way_to(target);
                all.entry((target.bytenr(), way(&one))).or_insert((one, 0)).1 += 1;
            }
        });
        all
    }
}

impl Graph {
    /// An empty one, which keeps so many blocks in memory.
    pub fn holding(held_max: usize) -> Graph {
        Graph { held_max, ..Graph::default() }
    }

    /// Adds the tree block at `bytenr`, of a tree that may be shared, and all above it. Nothing is added where that fails.
    pub fn add_block(&mut self, owners: &mut Owners<'_>, bytenr: u64) -> Result<Added> {
        self.all_or_nothing(|graph, added| graph.climb(owners, vec![bytenr], added))
    }

    /// Adds the data extent at `bytenr`, and all leaves that refer to it with all above them. Nothing is added where that fails.
    pub fn add_data(&mut self, owners: &mut Owners<'_>, bytenr: u64) -> Result<Added> {
        self.all_or_nothing(|graph, added| {
            let leaves = graph.refer(owners, bytenr, added)?;
            graph.climb(owners, leaves, added)?;
            graph.must_agree(owners, bytenr)
        })
    }

    /// The leaves that refer to a data extent do so as often as its references count, and know how long it is.
    fn must_agree(&self, owners: &Owners<'_>, bytenr: u64) -> Result<()> {
        let Some(data) = self.data.get(&bytenr) else { return Ok(()) };
        let mut counted: BTreeMap<u64, u64> = BTreeMap::new();
        for (leaf, count) in data.refs.iter().flat_map(|(_, leaves)| leaves) {
            *counted.entry(*leaf).or_default() += u64::from(*count);
        }
        for (leaf, count) in counted {
            let Some(above) = self.blocks.get(&leaf) else { continue };
            let (mut named, mut is_long) = (0, true);
            child_refs(&*above.block(owners.blocks())?, |target| match target {
                Target::Data { bytenr: at, sectors, .. } if at == bytenr => {
                    named += 1;
                    is_long &= u64::from(sectors) * SECTOR == data.head.len;
                }
                _ => {}
            });
            if named != count {
                let what = "a leaf does not refer to an extent as often as that says";
                return Err(wrong(what, bytenr));
            }
            if !is_long {
                return Err(wrong("an extent is not as long as who refers to it says", bytenr));
            }
        }
        Ok(())
    }

    /// The addresses of all whose references change with what was added last: the blocks themselves, and what is counted by their addresses.
    pub fn changed(&self, owners: &Owners<'_>, added: &Added) -> Result<Vec<u64>> {
        let mut all = Vec::new();
        for bytenr in &added.blocks {
            let Some(above) = self.blocks.get(bytenr) else { continue };
            all.push(*bytenr);
            if !above.is_plain {
                child_refs(&*above.block(owners.blocks())?, |target| all.push(target.bytenr()));
            }
        }
        Ok(all)
    }

    /// What the blocks that were added last refer to, and what stays, has the references that go when they move. Of the blocks in `first` what is left begins at
    /// that child.
    pub fn verify(
        &mut self,
        owners: &Owners<'_>,
        added: &mut Added,
        first: &BTreeMap<u64, usize>,
    ) -> Result<()> {
        for bytenr in &added.blocks {
            let Some(above) = self.blocks.get(bytenr).filter(|it| !it.is_plain) else { continue };
            let (block, first) = (above.block(owners.blocks())?, first.get(bytenr).copied());
            for (demand, (one, times)) in above.below(&block, first.unwrap_or(0)) {
                // What moves has all its references looked at.
                if self.blocks.contains_key(&demand.0) || self.data.contains_key(&demand.0) {
                    continue;
                }
                let mut all = times;
                // By its address nobody else refers.
                if !above.head.full {
                    let of_all = self.demands.entry(demand).or_default();
                    *of_all += times;
                    all = *of_all;
                    added.demands.push((demand, times));
                }
                if owners.count_of(demand.0, &one)? < all {
                    return Err(wrong("a reference is missing", demand.0));
                }
            }
        }
        Ok(())
    }

    /// A part of what lies above something must not stay: nothing would lead to where that moves.
    fn all_or_nothing(
        &mut self,
        add: impl FnOnce(&mut Graph, &mut Added) -> Result<()>,
    ) -> Result<Added> {
        let mut added = Added::default();
        match add(self, &mut added) {
            Ok(()) => Ok(added),
            Err(error) => {
                self.take_out(added);
                Err(error)
            }
        }
    }

    /// Adds a data extent; answers the leaves that refer to it.
    fn refer(
        &mut self,
        owners: &mut Owners<'_>,
        bytenr: u64,
        added: &mut Added,
    ) -> Result<Vec<u64>> {
        if self.data.contains_key(&bytenr) {
            return Ok(Vec::new());
        }
        let (head, refs) = some_references(owners, bytenr)?;
        let mut with_leaves = Vec::with_capacity(refs.len());
        for one in refs {
            let mut of_this = BTreeMap::new();
            match one {
                InlineRef::SharedData { parent, count } => drop(of_this.insert(parent, count)),
                InlineRef::ExtentData { root, objectid, offset, count } => {
                    let file = FileRef { ino: objectid, offset, count };
                    let mut left = count;
                    let mut leaf = |_: &mut Owners<'_>, item: &crate::tree::Item| {
                        *of_this.entry(item.leaf().bytenr()).or_default() += 1;
                        left = left.checked_sub(1).ok_or_else(|| {
                            wrong("a file refers to an extent more often than that says", bytenr)
                        })?;
                        Ok(ControlFlow::Continue(()))
                    };
                    owners.all_pieces(root, (bytenr, head.len), file, &mut leaf)?;
                    if left > 0 {
                        let what = "a file does not refer to an extent as often as that says";
                        return Err(wrong(what, bytenr));
                    }
                }
                _ => {}
            }
            self.count(1 + of_this.len(), added);
            with_leaves.push((one, of_this));
        }
        let leaves = with_leaves.iter().flat_map(|(_, leaves)| leaves.keys().copied());
        let leaves: BTreeSet<u64> = leaves.collect();
        self.data_bytes += head.len;
        self.data.insert(bytenr, MovingData { head, refs: with_leaves });
        added.data = Some(bytenr);
        Ok(leaves.into_iter().collect())
    }

    /// Takes out what was added.
    pub fn take_out(&mut self, added: Added) {
        for bytenr in added.blocks {
            let gone = self.blocks.remove(&bytenr);
            self.held -= usize::from(gone.is_some_and(|above| above.block.is_some()));
        }
        for tree in added.roots {
            self.roots.remove(&tree);
        }
        if let Some(data) = added.data.and_then(|bytenr| self.data.remove(&bytenr)) {
            self.data_bytes -= data.head.len;
        }
        self.changes -= added.changes;
        for (demand, times) in added.demands {
            if let btree_map::Entry::Occupied(mut all) = self.demands.entry(demand) {
                *all.get_mut() -= times;
                if *all.get() == 0 {
                    all.remove();
                }
            }
        }
    }

    fn count(&mut self, changes: usize, added: &mut Added) {
        self.changes += changes;
        added.changes += changes;
    }

    fn climb(
        &mut self,
        owners: &mut Owners<'_>,
        mut waiting: Vec<u64>,
        added: &mut Added,
    ) -> Result<()> {
        let mut steps = 0;
        while let Some(bytenr) = waiting.pop() {
            if self.blocks.contains_key(&bytenr) {
                continue;
            }
            steps += 1;
            if steps > STEPS_MAX {
                let what = "more blocks lie above an extent than can be written anew at once";
                return Err(wrong(what, bytenr));
            }
            let (head, refs) = some_references(owners, bytenr)?;
            let block = owners.block(bytenr, &head)?;
            // What cannot be written again, as it is, would end the commit.
            owners.blocks().verify(&block)?;
            let mut with_parents = Vec::with_capacity(refs.len());
            for one in refs {
                let parent = match one {
                    InlineRef::SharedBlock { parent } => Some(parent),
                    InlineRef::TreeBlock { root } => owners.parent_in(root, bytenr, &head)?,
                    _ => continue,
                };
                if let (None, InlineRef::TreeBlock { root }) = (parent, one) {
                    self.roots.insert(root, bytenr);
                    added.roots.push(root);
                }
                waiting.extend(parent);
                with_parents.push((one, parent));
            }
            self.count(2 * with_parents.len(), added);
            self.insert(bytenr, head, block, with_parents);
            added.blocks.push(bytenr);
        }
        self.judge(added);
        Ok(())
    }

    fn insert(
        &mut self,
        bytenr: u64,
        head: Head,
        block: Arc<TreeBlock>,
        refs: Vec<(InlineRef, Option<u64>)>,
    ) {
        let mut below = 0;
        child_refs(&block, |_| below += 1);
        let (level, owner) = (block.level(), block.owner());
        let block = (self.held < self.held_max).then_some(block);
        self.held += usize::from(block.is_some());
        let above = Above { head, level, owner, refs, is_plain: false, bytenr, below, block };
        self.blocks.insert(bytenr, above);
    }

    /// Which of the blocks that were added are plain: from the roots down.
    fn judge(&mut self, added: &mut Added) {
        let level = |bytenr: &u64| self.blocks.get(bytenr).map_or(0, |above| above.level);
        let mut down = added.blocks.clone();
        down.sort_by_key(|bytenr| std::cmp::Reverse(level(bytenr)));
        for bytenr in down {
            let Some(above) = self.blocks.get(&bytenr) else { continue };
            let is_plain = match above.refs.as_slice() {
                [(InlineRef::TreeBlock { root }, parent)] => {
                    let is_own = *root == above.owner && !above.head.full;
                    let below_plain =
                        |parent| self.blocks.get(&parent).is_some_and(|it| it.is_plain);
                    is_own && parent.is_none_or(below_plain)
                }
                _ => false,
            };
            if is_plain {
                if let Some(above) = self.blocks.get_mut(&bytenr) {
                    above.is_plain = true;
                }
            } else {
                self.count(2 * above.below, added);
            }
        }
    }
}

/// The extent tree contradicts itself, or other trees.
fn wrong(what: &'static str, bytenr: u64) -> Error {
    Error::inconsistent(buttress_ondisk::objectid::EXTENT_TREE, what, bytenr)
}

/// All references of an extent, which has some.
fn some_references(owners: &mut Owners<'_>, bytenr: u64) -> Result<(Head, Vec<InlineRef>)> {
    let (head, refs) = owners.references(bytenr)?;
    if refs.is_empty() {
        Err(wrong("nobody refers to an extent", bytenr))
    } else {
        Ok((head, refs))
    }
}
