//! Reading one version of a tree.
//!
//! Where an item of a leaf is damaged, readers have the leaf without it. Its key is known: whoever comes to it is told, so that what is
//! damaged is never taken for absent (a lost extent for a hole), and what lies beside it can be read. Listings may go on behind it
//! ([`Cursor::meet`]).

use std::sync::Arc;

use buttress_ondisk::{Key, Lost, TreeBlock};

use super::{Blocks, Recent, Root};
use crate::error::{Error, Result};

/// One version of one tree.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    blocks: &'a Blocks,
    owner: u64,
    root: Root,
    recent: Option<&'a Recent>,
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

    /// That at a slot of a leaf.
    pub fn of(leaf: Arc<TreeBlock>, slot: usize) -> Item {
        Item { leaf, slot }
    }

    /// The keys behind it in its leaf.
    pub fn keys_behind(&self) -> impl Iterator<Item = Key> + '_ {
        (self.slot + 1..self.leaf.len()).map(|slot| self.leaf.key(slot))
    }

    /// The leaf it is in.
    pub fn leaf(&self) -> &Arc<TreeBlock> {
        &self.leaf
    }
}

impl<'a> View<'a> {
    /// The version `root` of tree `owner`.
    pub fn new(blocks: &'a Blocks, owner: u64, root: Root) -> View<'a> {
        View { blocks, owner, root, recent: None }
    }

    /// The same, of a tree that remembers where it was searched.
    pub fn with_recent(self, recent: &'a Recent) -> View<'a> {
        View { recent: Some(recent), ..self }
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
        read_child(self.blocks, self.owner, node, slot, behind(node, slot, None))
    }

    /// How many blocks the tree has. Leaves are not read.
    pub fn count(&self) -> Result<u64> {
        self.count_below(&*self.root_block()?)
    }

    /// As deep as the tree has levels.
    fn count_below(&self, block: &TreeBlock) -> Result<u64> {
        match block.level() {
            0 => Ok(1),
            1 => Ok(1 + block.len() as u64),
            _ => (0..block.len()).try_fold(1, |sum: u64, slot| {
                Ok(sum.saturating_add(self.count_below(&*self.child(block, slot)?)?))
            }),
        }
    }

    /// Tells where each block is, and its level. Leaves are not read.
    pub fn each_block(&self, told: &mut dyn FnMut(u64, u8)) -> Result<()> {
        told(self.root.bytenr, self.root.level);
        match self.root.level {
            0 => Ok(()),
            _ => self.each_below(&*self.root_block()?, told),
        }
    }

    /// As deep as the tree has levels.
    fn each_below(&self, node: &TreeBlock, told: &mut dyn FnMut(u64, u8)) -> Result<()> {
        let level = node.level().saturating_sub(1);
        for slot in 0..node.len() {
            told(node.child(slot).bytenr, level);
            if level > 0 {
                self.each_below(&*self.child(node, slot)?, told)?;
            }
        }
        Ok(())
    }

    fn leaf_for(&self, key: &Key) -> Result<Arc<TreeBlock>> {
        if let Some(leaf) = self.recent.and_then(|recent| recent.find(self.root, key)) {
            return Ok(leaf);
        }
        let (leaf, before) = self.leaf_at(key)?;
        if let Some(recent) = self.recent {
            recent.note(self.root, key, before, &leaf);
        }
        Ok(leaf)
    }

    /// The leaf that has the key if any has, and the key at which the one behind it starts. For who goes through the items of a leaf by
    /// himself; some may be damaged ([`TreeBlock::lost`]).
    pub fn leaf_at(&self, key: &Key) -> Result<(Arc<TreeBlock>, Option<Key>)> {
        let mut block = self.root_block()?;
        let mut before = None;
        while !block.is_leaf() {
            let slot = block.child_for(key);
            before = behind(&block, slot, before);
            block = self.child(&block, slot)?;
        }
        Ok((block, before))
    }

    /// Shows each block below the root on the way to `key`, and the one behind it on its level: these are what a change there may replace. The
    /// key at which the leaf behind starts.
    pub fn show_way(&self, key: &Key, show: &mut dyn FnMut(&TreeBlock)) -> Result<Option<Key>> {
        let mut block = self.root_block()?;
        let (mut next, mut bound): (Option<Arc<TreeBlock>>, _) = (None, None);
        while !block.is_leaf() {
            let slot = block.child_for(key);
            bound = behind(&block, slot, bound);
            next = match next {
                _ if slot + 1 < block.len() => Some(self.child(&block, slot + 1)?),
                Some(node) => Some(self.child(&node, 0)?),
                None => None,
            };
            block = self.child(&block, slot)?;
            show(&block);
            next.iter().for_each(|next| show(next));
        }
        Ok(bound)
    }

    /// Shows each block on the way to `key`, from the root on. The key at which the leaf behind starts.
    pub fn show_path(
        &self,
        key: &Key,
        show: &mut dyn FnMut(&Arc<TreeBlock>),
    ) -> Result<Option<Key>> {
        let (mut block, mut bound) = (self.root_block()?, None);
        show(&block);
        while !block.is_leaf() {
            let slot = block.child_for(key);
            bound = behind(&block, slot, bound);
            block = self.child(&block, slot)?;
            show(&block);
        }
        Ok(bound)
    }

    /// Where what follows the block starts that cannot be read and has `key` or comes next; `None` at the end of the tree. An error where that is the
    /// root. For who goes on behind damage.
    pub fn behind_damage(&self, key: &Key) -> Result<Option<Key>> {
        let (mut at, mut first) = (*key, None);
        // The block may be the one after that which has the key. Where it can be read now, nothing is passed over.
        for _ in 0..2 {
            let (mut block, mut bound) = (self.root_block()?, None);
            while !block.is_leaf() {
                let slot = block.child_for(&at);
                bound = behind(&block, slot, bound);
                match self.child(&block, slot) {
                    Ok(child) => block = child,
                    Err(error) if error.is_damage() => return Ok(bound),
                    Err(error) => return Err(error),
                }
            }
            let Some(bound) = bound else { return Ok(first) };
            first.get_or_insert(bound);
            at = bound;
        }
        Ok(first)
    }

    /// The item at exactly `key`.
    pub fn get(&self, key: &Key) -> Result<Option<Item>> {
        let leaf = self.leaf_for(key)?;
        match leaf.lost_at(key) {
            Some(lost) => Err(damaged(lost)),
            None => Ok(leaf.search(key).ok().map(|slot| Item { leaf, slot })),
        }
    }

    /// The last item whose key is `key` or smaller.
    pub fn last_at_or_before(&self, key: &Key) -> Result<Option<Item>> {
        self.last_in(&Key::MIN, key)
    }

    /// The last item from `from` to `to`, both included. One before `from` may be damaged.
    pub fn last_in(&self, from: &Key, to: &Key) -> Result<Option<Item>> {
        match self.last_met(to)? {
            Some(met) if met.key() < *from => Ok(None),
            Some(Met::Lost(_, why)) => Err(why),
            Some(Met::Item(item)) => Ok(Some(item)),
            None => Ok(None),
        }
    }

    /// The last key that is `key` or smaller, whatever is there.
    pub fn last_key(&self, key: &Key) -> Result<Option<Key>> {
        Ok(self.last_met(key)?.map(|met| met.key()))
    }

    fn last_met(&self, key: &Key) -> Result<Option<Met>> {
        let leaf = self.leaf_for(key)?;
        let slot = match leaf.search(key) {
            Ok(slot) => Some(slot),
            Err(slot) => slot.checked_sub(1),
        };
        let lost = leaf.lost().iter().rfind(|lost| lost.key <= *key);
        Ok(match lost {
            Some(lost) if slot.is_none_or(|slot| leaf.key(slot) < lost.key) => {
                Some(Met::Lost(lost.key, damaged(lost)))
            }
            _ => slot.map(|slot| Met::Item(Item { leaf, slot })),
        })
    }

    /// The items from `from` to `to`, both included, in order.
    pub fn range(&self, from: Key, to: Key) -> Cursor<'a> {
        self.range_since(from, to, 0)
    }

    /// The same of leaves that transaction `since` or a later one wrote: subtrees that are older are not read.
    pub fn range_since(&self, from: Key, to: Key, since: u64) -> Cursor<'a> {
        Cursor { view: *self, path: Vec::new(), lost: 0, next: Some(from), to, since }
    }
}

fn damaged(lost: &Lost) -> Error {
    Error::Corrupt(lost.why.clone())
}

/// What the keys of child `slot` of a node are below, those of the node being below `bound`. Both count: a hostile node may have children that
/// reach beyond its own end.
pub fn behind(node: &TreeBlock, slot: usize, bound: Option<Key>) -> Option<Key> {
    let next = (slot + 1 < node.len()).then(|| node.key(slot + 1));
    next.into_iter().chain(bound).min()
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
    let span = block.span().filter(|(first, _)| *first == child.key);
    let Some((_, last)) = span else {
        return Err(Error::inconsistent(owner, "a child does not start with its key", child.key));
    };
    if bound.is_some_and(|bound| last >= bound) {
        return Err(Error::inconsistent(owner, "keys reach into the next block", last));
    }
    Ok(block)
}

/// What a cursor comes to.
#[derive(Clone, Debug)]
pub enum Met {
    /// An item.
    Item(Item),
    /// The key of one that is damaged, and what is wrong with it.
    Lost(Key, Error),
}

impl Met {
    /// Its key.
    pub fn key(&self) -> Key {
        match self {
            Met::Item(item) => item.key(),
            Met::Lost(key, _) => *key,
        }
    }
}

/// Goes forward over the items of a view.
#[derive(Debug)]
pub struct Cursor<'a> {
    view: View<'a>,
    /// The blocks from the root to the leaf, and the slot to look at next in each.
    path: Vec<(Arc<TreeBlock>, usize)>,
    /// The lost item of the leaf to look at next.
    lost: usize,
    /// Where to start, until the first call.
    next: Option<Key>,
    to: Key,
    /// What is older is passed over.
    since: u64,
}

impl Cursor<'_> {
    /// The next item, or `None` at the end. Not an `Iterator` because reading can fail for good: after an error the
    /// cursor must not be used again.
    #[allow(clippy::should_implement_trait)]
    pub fn next(&mut self) -> Result<Option<Item>> {
        match self.meet()? {
            Some(Met::Item(item)) => Ok(Some(item)),
            Some(Met::Lost(_, why)) => Err(why),
            None => Ok(None),
        }
    }

    /// The same for who goes on behind an item that is damaged.
    pub fn meet(&mut self) -> Result<Option<Met>> {
        if let Some(from) = self.next.take() {
            self.start(&from)?;
        }
        loop {
            let Some((block, slot)) = self.path.last_mut() else { return Ok(None) };
            let lost = block.lost().get(self.lost).filter(|_| block.is_leaf());
            let at = *slot;
            let Some(key) = next_key(block, at, lost) else {
                self.path.pop();
                continue;
            };
            if key > self.to {
                self.path.clear();
                return Ok(None);
            }
            if let Some(lost) = lost.filter(|lost| lost.key == key) {
                let why = damaged(lost);
                self.lost += 1;
                return Ok(Some(Met::Lost(key, why)));
            }
            let block = block.clone();
            *slot += 1;
            if block.is_leaf() {
                return Ok(Some(Met::Item(Item { leaf: block, slot: at })));
            }
            if block.child(at).generation < self.since {
                continue;
            }
            let child = self.view.child(&block, at)?;
            self.enter(child, 0, &Key::MIN);
        }
    }

    /// Goes on in a block: at this slot, and behind those of its lost items that are below `from`.
    fn enter(&mut self, block: Arc<TreeBlock>, slot: usize, from: &Key) {
        self.lost = block.lost().partition_point(|lost| lost.key < *from);
        self.path.push((block, slot));
    }

    fn start(&mut self, from: &Key) -> Result<()> {
        if self.view.root().generation < self.since {
            return Ok(());
        }
        let mut block = self.view.root_block()?;
        while !block.is_leaf() {
            let slot = block.child_for(from);
            if block.child(slot).generation < self.since {
                self.path.push((block, slot + 1));
                return Ok(());
            }
            let child = self.view.child(&block, slot)?;
            self.path.push((block, slot + 1));
            block = child;
        }
        let slot = block.search(from).unwrap_or_else(|slot| slot);
        self.enter(block, slot, from);
        Ok(())
    }
}

/// The key that comes next in a block: of what is in a slot, or of an item that is lost.
fn next_key(block: &TreeBlock, slot: usize, lost: Option<&Lost>) -> Option<Key> {
    let own = (slot < block.len()).then(|| block.key(slot));
    [own, lost.map(|lost| lost.key)].into_iter().flatten().min()
}
