//! Who reaches a leaf that there was no room to remember: whoever reaches the nodes that lead to it, of which the extent tree knows.

use buttress_ondisk::item::extent_flags;
use buttress_ondisk::view::{InlineRef, inline_refs, keyed_ref};
use buttress_ondisk::{Key, kind, objectid};

use super::blocks::{Reached, contradiction, set_of};
use super::extents::Context;
use super::owned::Owned;
use crate::error::{Error, Result};
use crate::hash::Spread;
use crate::refs::root_set::RootSet;

/// Leaves that are remembered at most.
const REMEMBERED: usize = 1 << 16;

/// Finds who reaches leaves.
#[derive(Debug, Default)]
pub(super) struct Upwards {
    known: Spread<u64, RootSet>,
}

impl Upwards {
    /// Forgets what it remembers: sets get other numbers.
    pub fn forget(&mut self) {
        self.known.clear();
    }

    /// The trees that reach the leaf at `bytenr`, none when no subvolume does.
    pub fn leaf(
        &mut self,
        cx: &mut Context<'_>,
        owned: &mut Owned,
        nodes: &[Reached],
        bytenr: u64,
    ) -> Result<RootSet> {
        if let Some(known) = self.known.get(&bytenr) {
            return Ok(*known);
        }
        let mut set = RootSet::EMPTY;
        each_reference(cx, bytenr, |cx, generation, one| {
            let more = match one {
                InlineRef::SharedBlock { parent } => set_of(nodes, parent).unwrap_or_default(),
                InlineRef::TreeBlock { root } => {
                    by_tree(cx, owned, nodes, (bytenr, generation), root)?
                }
                _ => RootSet::EMPTY,
            };
            set = cx.shared.sets.union(set, more);
            Ok(())
        })?;
        if self.known.len() >= REMEMBERED {
            self.known.clear();
        }
        self.known.insert(bytenr, set);
        Ok(set)
    }
}

/// The trees that reach the node that leads to a leaf in tree `root`.
fn by_tree(
    cx: &mut Context<'_>,
    owned: &mut Owned,
    nodes: &[Reached],
    (bytenr, generation): (u64, u64),
    root: u64,
) -> Result<RootSet> {
    if !objectid::is_subvolume(root) {
        return Ok(RootSet::EMPTY);
    }
    let Some(tree) = cx.shared.trees.get(&root).copied() else {
        return Err(contradiction("a reference of a tree that is not there", bytenr));
    };
    let leaf = cx.blocks.read(bytenr, 0, generation, objectid::FS_TREE)?;
    let first = leaf.span().map_or(Key::MIN, |(first, _)| first);
    let below = owned.leaf(cx, &tree, &first)?;
    if below.bytenr != bytenr {
        return Err(contradiction("a reference of a tree that does not have it", bytenr));
    }
    match below.node {
        Some((node, _)) => Ok(set_of(nodes, node.bytenr()).unwrap_or_default()),
        None => Ok(cx.shared.sets.single(root)),
    }
}

/// All references to a leaf, which may be many, each with its generation.
fn each_reference(
    cx: &mut Context<'_>,
    bytenr: u64,
    mut each: impl FnMut(&mut Context<'_>, u64, InlineRef) -> Result<()>,
) -> Result<()> {
    let missing =
        || Error::inconsistent(objectid::EXTENT_TREE, "a tree block has no extent item", bytenr);
    let from = Key::new(bytenr, kind::EXTENT_ITEM, 0);
    let extents = cx.extents;
    let mut items = extents.range(from, Key::new(bytenr, kind::SHARED_BLOCK_REF, u64::MAX));
    let item = items.next()?.ok_or_else(missing)?;
    let (head, _, inline) = inline_refs(&item.key(), item.data()).ok_or_else(missing)?;
    let is_block =
        item.key().kind == kind::METADATA_ITEM || head.flags.get() & extent_flags::TREE_BLOCK != 0;
    if !is_block {
        return Err(missing());
    }
    let generation = head.generation.get();
    for one in inline {
        each(cx, generation, one)?;
    }
    while let Some(item) = items.next()? {
        if let Some(one) = keyed_ref(&item.key(), item.data()) {
            each(cx, generation, one)?;
        }
    }
    Ok(())
}
