//! Which trees reach each block: from the roots down, a level at a time.
//!
//! All blocks of a level are known before the first of them is read, as all that refers to them lies above. A list of them is sorted
//! by address when it is complete, and now and then before, so that it grows with the blocks and not with the references to them.

use buttress_ondisk::{Key, TreeBlock, objectid};

use super::{Bytes, Shared, Tree};
use crate::error::{Error, Result};
use crate::hash::Spread;
use crate::refs::root_set::{RootSet, RootSets};
use crate::tree::Blocks;

/// Levels that a tree may have.
const LEVELS: usize = 8;
/// Entries of a list before it is first put in order.
const UNSORTED: usize = 1 << 16;
/// How many nodes may be remembered at least; beside that as many as have room where the leaves have it, of which there are a hundred times
/// as many.
const NODES_MIN: usize = 1 << 16;

/// A block, and who reaches it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reached {
    /// Its address.
    pub bytenr: u64,
    /// The trees that reach it.
    pub set: RootSet,
    /// How many blocks and root items refer to it.
    pub parents: u32,
}

/// A node to be read.
#[derive(Clone, Copy, Debug)]
struct Node {
    it: Reached,
    generation: u64,
    /// Its first key, where something above it tells.
    key: Option<Key>,
}

/// Blocks by address, once it is put in order.
#[derive(Debug)]
struct List<T> {
    all: Vec<T>,
    /// To be put in order when it has so many.
    limit: usize,
}

impl<T> Default for List<T> {
    fn default() -> List<T> {
        List { all: Vec::new(), limit: UNSORTED }
    }
}

/// What is in a list.
trait Entry: Copy {
    fn reached(&mut self) -> &mut Reached;
    /// Whether the same is said of both.
    fn agrees(&self, other: &Self) -> bool;
}

impl Entry for Reached {
    fn reached(&mut self) -> &mut Reached {
        self
    }

    fn agrees(&self, _: &Reached) -> bool {
        true
    }
}

impl Entry for Node {
    fn reached(&mut self) -> &mut Reached {
        &mut self.it
    }

    fn agrees(&self, other: &Node) -> bool {
        let keys = self.key.zip(other.key);
        self.generation == other.generation && keys.is_none_or(|(one, other)| one == other)
    }
}

impl<T: Entry> List<T> {
    fn put(&mut self, one: T, sets: &mut RootSets) -> Result<()> {
        self.all.push(one);
        if self.all.len() >= self.limit {
            self.order(sets)?;
        }
        Ok(())
    }

    /// Sorts it and leaves each block once.
    fn order(&mut self, sets: &mut RootSets) -> Result<()> {
        self.all.sort_by_key(|one| {
            let mut one = *one;
            one.reached().bytenr
        });
        let mut contradicts = None;
        self.all.dedup_by(|next, kept| {
            let same = *next.reached();
            let one = kept.reached();
            if one.bytenr != same.bytenr {
                return false;
            }
            one.set = sets.union(one.set, same.set);
            one.parents = one.parents.saturating_add(same.parents);
            if !kept.agrees(next) {
                contradicts = Some(same.bytenr);
            }
            true
        });
        self.limit = (self.all.len() * 2).max(UNSORTED);
        match contradicts {
            Some(bytenr) => {
                Err(contradiction("two blocks contradict each other on a third", bytenr))
            }
            None => Ok(()),
        }
    }
}

pub(super) fn contradiction(what: &'static str, bytenr: u64) -> Error {
    Error::inconsistent(objectid::FS_TREE, what, bytenr)
}

/// The blocks of all trees, level by level.
#[derive(Debug, Default)]
pub(super) struct Levels {
    nodes: [List<Node>; LEVELS],
    leaves: List<Reached>,
    /// Leaves in this range are remembered in this round.
    window: (u64, u64),
    /// The leaves of the first round and their end, once there is a second one.
    first: Option<(Vec<Reached>, u64)>,
    /// How many leaves may be remembered.
    leaves_max: usize,
    /// How many nodes may be waiting or read.
    nodes_max: usize,
    /// How many there are in the lists.
    listed: usize,
    /// Roots that are leaves, which no node leads to.
    root_leaves: Vec<Reached>,
    /// Where what is left of a tree that is being dropped starts, in the nodes on the way there.
    partial: Spread<u64, usize>,
    /// The level that is read.
    level: usize,
    /// The next node of it.
    at: usize,
    /// It is in order.
    ordered: bool,
    done: u64,
}

/// All blocks of the trees, by address.
#[derive(Debug)]
pub(super) struct AllReached {
    /// Leaves, those below `end`.
    pub leaves: Vec<Reached>,
    /// What leaves lie beyond it are not there.
    pub end: u64,
    /// Nodes.
    pub nodes: Vec<Reached>,
}

/// Who reaches the block at `bytenr`.
pub(super) fn set_of(all: &[Reached], bytenr: u64) -> Option<RootSet> {
    let at = all.binary_search_by_key(&bytenr, |one| one.bytenr).ok()?;
    all.get(at).map(|one| one.set)
}

impl Levels {
    pub(super) fn new(trees: &[Tree], sets: &mut RootSets, memory: u64) -> Levels {
        let memory = usize::try_from(memory).unwrap_or(usize::MAX);
        let room = memory / size_of::<Reached>();
        let mut levels = Levels {
            window: (0, u64::MAX),
            // Between two orders a list has twice as many.
            leaves_max: (room / 2).max(1),
            nodes_max: NODES_MIN.saturating_add(memory / size_of::<Node>()),
            level: LEVELS - 1,
            ..Levels::default()
        };
        for tree in trees {
            let it = Reached { bytenr: tree.root.bytenr, set: sets.single(tree.id), parents: 1 };
            match levels.nodes.get_mut(usize::from(tree.root.level)) {
                Some(list) if tree.root.level > 0 => {
                    list.all.push(Node { it, generation: tree.root.generation, key: None });
                }
                _ => levels.root_leaves.push(it),
            }
        }
        levels
    }

    /// All sets that it has.
    pub(super) fn sets(&mut self) -> impl Iterator<Item = &mut RootSet> {
        let nodes = self.nodes.iter_mut().flat_map(|list| &mut list.all).map(|node| &mut node.it);
        let first = self.first.iter_mut().flat_map(|(leaves, _)| leaves);
        let leaves = first.chain(&mut self.leaves.all).chain(&mut self.root_leaves);
        nodes.chain(leaves).map(|one| &mut one.set)
    }

    /// Nodes read, and nodes known.
    pub(super) fn progress(&self) -> (u64, u64) {
        let known = self.nodes.iter().map(|list| list.all.len() as u64).sum();
        (self.done.min(known), known)
    }

    /// Reads some nodes; whether there are more.
    pub(super) fn step(
        &mut self,
        shared: &mut Shared,
        blocks: &Blocks,
        budget: usize,
    ) -> Result<bool> {
        for _ in 0..budget.max(1) {
            let Some(list) = self.nodes.get_mut(self.level).filter(|_| self.level > 0) else {
                return Ok(false);
            };
            if !std::mem::replace(&mut self.ordered, true) {
                list.order(&mut shared.sets)?;
            }
            match list.all.get(self.at).copied() {
                Some(node) => {
                    self.at += 1;
                    self.read(shared, blocks, &node)?;
                }
                None if self.level == 1 => self.end_round(shared)?,
                None => {
                    (self.level, self.at, self.ordered) = (self.level - 1, 0, false);
                }
            }
        }
        Ok(true)
    }

    /// Notes what is below a node.
    fn read(&mut self, shared: &mut Shared, blocks: &Blocks, node: &Node) -> Result<()> {
        let level = self.level as u8;
        // Who owns it does not matter: subvolumes share blocks.
        let block = blocks.read(node.it.bytenr, level, node.generation, objectid::FS_TREE)?;
        let differs =
            node.key.is_some_and(|key| block.span().is_none_or(|(first, _)| first != key));
        if differs {
            let what = "a child does not start with its key";
            return Err(contradiction(what, node.it.bytenr));
        }
        if self.first.is_none() && self.window.0 == 0 {
            self.done += 1;
            let bytes = Bytes { data: 0, metadata: shared.nodesize };
            *shared.costs.entry(node.it.set).or_default() += bytes;
        }
        for slot in self.first_left(shared, &block, node.it.set)?..block.len() {
            self.found(shared, &block, slot, node.it.set)?;
        }
        Ok(())
    }

    /// A node leads to a block.
    fn found(
        &mut self,
        shared: &mut Shared,
        block: &TreeBlock,
        slot: usize,
        set: RootSet,
    ) -> Result<()> {
        let child = block.child(slot);
        let it = Reached { bytenr: child.bytenr, set, parents: 1 };
        if self.level > 1 {
            let node = Node { it, generation: child.generation, key: Some(child.key) };
            return self.node(shared, node);
        }
        self.leaf(shared, it)
    }

    /// Notes a node of the next level.
    fn node(&mut self, shared: &mut Shared, node: Node) -> Result<()> {
        let Some(list) = self.nodes.get_mut(self.level - 1) else { return Ok(()) };
        let before = list.all.len();
        list.put(node, &mut shared.sets)?;
        self.listed = (self.listed + list.all.len()).saturating_sub(before);
        if self.listed > self.nodes_max {
            let place = format_args!("block {}", node.it.bytenr);
            return Err(Error::memory("the nodes of all subvolumes", place));
        }
        Ok(())
    }

    fn leaf(&mut self, shared: &mut Shared, it: Reached) -> Result<()> {
        if it.bytenr < self.window.0 || it.bytenr >= self.window.1 {
            return Ok(());
        }
        self.leaves.all.push(it);
        let full = self.leaves.all.len() >= self.leaves_max.saturating_mul(2);
        if self.leaves.all.len() >= self.leaves.limit || full {
            self.order_leaves(shared)?;
        }
        Ok(())
    }

    /// Leaves that have no room, those at the highest addresses, are for the next round.
    fn order_leaves(&mut self, shared: &mut Shared) -> Result<()> {
        self.leaves.order(&mut shared.sets)?;
        if let Some(beyond) = self.leaves.all.get(self.leaves_max) {
            self.window.1 = beyond.bytenr;
            self.leaves.all.truncate(self.leaves_max);
        }
        Ok(())
    }

    /// All nodes have told their leaves of the window: they are counted, and the next window begins.
    fn end_round(&mut self, shared: &mut Shared) -> Result<()> {
        for leaf in std::mem::take(&mut self.root_leaves) {
            self.leaf(shared, leaf)?;
            // Where the window has become smaller it is told again in the next round.
            self.root_leaves.push(leaf);
        }
        self.order_leaves(shared)?;
        for leaf in &self.leaves.all {
            let bytes = Bytes { data: 0, metadata: shared.nodesize };
            *shared.costs.entry(leaf.set).or_default() += bytes;
        }
        let end = self.window.1;
        let leaves = std::mem::take(&mut self.leaves);
        self.first.get_or_insert((leaves.all, end));
        if end == u64::MAX {
            self.level = 0;
        } else {
            (self.window, self.at) = ((end, u64::MAX), 0);
        }
        Ok(())
    }

    /// The first child of a node that is left: of a tree that is being dropped, those before it are gone.
    fn first_left(&mut self, shared: &Shared, block: &TreeBlock, set: RootSet) -> Result<usize> {
        // Only the tree itself reaches the nodes on the way to where dropping it stopped.
        let Some(tree) = shared.sets.only(set).and_then(|id| shared.trees.get(&id)) else {
            return Ok(0);
        };
        let (key, level) = tree.progress;
        if key == Key::MIN {
            return Ok(0);
        }
        let is_root = block.bytenr() == tree.root.bytenr;
        let slot = self.partial.get(&block.bytenr()).copied();
        if !is_root && slot.is_none() {
            return Ok(0);
        }
        if block.level() <= level {
            return Ok(block.search(&key).unwrap_or_else(|slot| slot));
        }
        let slot = block.child_for(&key);
        self.partial.insert(block.child(slot).bytenr, slot);
        Ok(slot)
    }

    pub(super) fn reached(self) -> AllReached {
        let (leaves, end) = self.first.unwrap_or_default();
        let nodes = self.nodes.into_iter().flat_map(|list| list.all);
        let mut nodes: Vec<Reached> = nodes.map(|node| node.it).collect();
        nodes.sort_by_key(|node| node.bytenr);
        AllReached { leaves, end, nodes }
    }
}
