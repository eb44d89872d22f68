//! The leaves in which a tree refers to a data extent, where the extent tree says no more than that.
//!
//! Such a reference names the file, and the place in it where the extent would start: what refers to it is a piece of the file in the
//! length of the extent from there on. That is a range of keys, and nearly always in one leaf, or in leaves that the same trees reach; then no leaf
//! is read. Otherwise they are, and those count that have such a piece, and belong to the tree with what is below them.

use std::sync::Arc;

use buttress_ondisk::item::extent_flags;
use buttress_ondisk::{Key, TreeBlock, kind};

use super::Tree;
use super::extents::{Context, Lookup};
use crate::error::{Error, Result};
use crate::refs::root_set::RootSet;
use crate::refs::{Extent, Target};
use crate::tree::{View, behind};

/// Bytes of a file that a compressed extent holds at most, however few it has on the disk.
const COMPRESSED_MAX: u64 = 128 << 10;

/// What a reference by tree says.
pub(super) struct Place {
    /// The file.
    pub ino: u64,
    /// Where in it the extent would start; may wrap below zero.
    pub offset: u64,
    /// The extent.
    pub bytenr: u64,
    /// Its bytes on the disk.
    pub len: u64,
}

impl Place {
    /// The keys of the pieces that may refer to it.
    fn keys(&self, tree: &Tree) -> (Key, Key) {
        let last = self.len.max(COMPRESSED_MAX) - 1;
        let below = (self.offset as i64) < 0;
        let from = if below { 0 } else { self.offset };
        let to = match below {
            // It ends behind the start of the file, or it would have no piece there.
            true => self.offset.checked_add(last).map_or(self.offset.wrapping_add(last), |_| 0),
            false => self.offset.saturating_add(last),
        };
        let at = |offset| Key::new(self.ino, kind::EXTENT_DATA, offset);
        // What lies before this is dropped.
        (at(from).max(tree.progress.0), at(to))
    }

    fn is_of(&self, key: &Key, data: &[u8]) -> bool {
        matches!(
            Target::of_item(key, data),
            Some(Target::Data { bytenr, offset, .. }) if (bytenr, offset) == (self.bytenr, self.offset)
        )
    }
}

/// A node of level 1 of a tree, and what keys lie below it.
#[derive(Debug)]
struct Spot {
    tree: u64,
    node: Arc<TreeBlock>,
    from: Key,
    /// The first key behind it.
    end: Option<Key>,
}

/// Goes down in trees.
#[derive(Debug, Default)]
pub(super) struct Owned {
    last: Option<Spot>,
    /// Blocks that it has read so far, or looked for in the cache.
    pub reads: u64,
}

/// A leaf as the node above it tells of it.
pub(super) struct Below {
    pub bytenr: u64,
    /// The node, and the slot in it; none when the leaf is the root.
    pub node: Option<(Arc<TreeBlock>, usize)>,
    /// Where the next leaf begins.
    end: Option<Key>,
}

impl Owned {
    /// The leaf of `tree` that has `key`, or would have it.
    pub fn leaf(&mut self, cx: &Context<'_>, tree: &Tree, key: &Key) -> Result<Below> {
        if tree.root.level == 0 {
            return Ok(Below { bytenr: tree.root.bytenr, node: None, end: None });
        }
        let holds = |spot: &Spot| {
            spot.tree == tree.id && spot.from <= *key && spot.end.is_none_or(|end| *key < end)
        };
        let spot = match self.last.take() {
            Some(spot) if holds(&spot) => spot,
            _ => self.descend(cx, tree, key)?,
        };
        let node = spot.node.clone();
        let slot = node.child_for(key);
        let end = behind(&node, slot, spot.end);
        self.last = Some(spot);
        Ok(Below { bytenr: node.child(slot).bytenr, node: Some((node, slot)), end })
    }

    fn descend(&mut self, cx: &Context<'_>, tree: &Tree, key: &Key) -> Result<Spot> {
        let view = View::new(cx.blocks, tree.id, tree.root);
        let mut node = view.root_block()?;
        let (mut from, mut end) = (Key::MIN, None);
        self.reads += 1;
        while node.level() > 1 {
            let slot = node.child_for(key);
            end = behind(&node, slot, end);
            if slot > 0 {
                from = node.key(slot);
            }
            node = view.child(&node, slot)?;
            self.reads += 1;
        }
        Ok(Spot { tree: tree.id, node, from, end })
    }

    fn read(&mut self, cx: &Context<'_>, tree: &Tree, below: &Below) -> Result<Arc<TreeBlock>> {
        let view = View::new(cx.blocks, tree.id, tree.root);
        self.reads += 1;
        match &below.node {
            Some((node, slot)) => view.child(node, *slot),
            None => view.root_block(),
        }
    }
}

impl Lookup {
    /// The trees that reach the leaves in which `tree` refers to an extent, `count` times; `None` when they are not there.
    pub(super) fn find(
        &mut self,
        cx: &mut Context<'_>,
        tree: &Tree,
        place: &Place,
        count: u32,
    ) -> Result<Option<RootSet>> {
        let (from, to) = place.keys(tree);
        let (mut at, mut found) = (from, None);
        while at <= to {
            let below = self.owned.leaf(cx, tree, &at)?;
            let Some(set) = self.leaf(cx, below.bytenr)? else { return Ok(None) };
            if found.replace(set).is_some_and(|before| before != set) {
                return self.search(cx, tree, place, count);
            }
            match below.end {
                Some(end) => at = end,
                None => break,
            }
        }
        Ok(found)
    }

    /// The same where the leaves have to be read.
    fn search(
        &mut self,
        cx: &mut Context<'_>,
        tree: &Tree,
        place: &Place,
        count: u32,
    ) -> Result<Option<RootSet>> {
        let (mut at, to) = place.keys(tree);
        let (mut set, mut met) = (RootSet::EMPTY, 0);
        while at <= to && met < count {
            let below = self.owned.leaf(cx, tree, &at)?;
            let leaf = self.owned.read(cx, tree, &below)?;
            let here = pieces(&leaf, place, (&at, &to))?;
            if here > 0 && leaf.owner() == tree.id && !is_full(cx, &leaf)? {
                met = met.saturating_add(here);
                let more = self.leaf(cx, below.bytenr)?.unwrap_or_default();
                set = cx.shared.sets.union(set, more);
            }
            match below.end {
                Some(end) => at = end,
                None => break,
            }
        }
        Ok((met == count).then_some(set))
    }
}

/// How many pieces of files between two keys refer to an extent.
fn pieces(leaf: &TreeBlock, place: &Place, (from, to): (&Key, &Key)) -> Result<u32> {
    if let Some(lost) = leaf.lost().iter().find(|lost| (from..=to).contains(&&lost.key)) {
        return Err(Error::Corrupt(lost.why.clone()));
    }
    let first = leaf.search(from).unwrap_or_else(|slot| slot);
    let items = (first..leaf.len()).map(|slot| leaf.item(slot));
    let near = items.take_while(|(key, _)| key <= to);
    Ok(near.filter(|(key, data)| place.is_of(key, data)).count() as u32)
}

/// Whether a leaf's references count by its address, and so are not the tree's.
fn is_full(cx: &Context<'_>, leaf: &TreeBlock) -> Result<bool> {
    let key = Key::new(leaf.bytenr(), kind::METADATA_ITEM, u64::MAX);
    let item = cx.extents.last_at_or_before(&key)?;
    let Some(item) = item.filter(|item| item.key().objectid == key.objectid) else {
        return Ok(false);
    };
    Ok(Extent::read(&item.key(), item.data())?.flags & extent_flags::FULL_BACKREF != 0)
}
