//! Looks at the trees that any commit may change, for a deletion that comes alone ([`crate::space::Space::reserve_alone`]).
//!
//! Crash argument: nothing is changed here.

use buttress_ondisk::item::{ExtentInlineRef, ExtentItem, TreeBlockInfo};
use buttress_ondisk::{ITEM_LEN, Key, TreeBlock, kind, objectid};

use super::core::{Core, Roots};
use crate::error::Result;
use crate::space::{Leaves, Shape, Size};
use crate::tree::{Root, View};

/// Bytes of leaves of the extent tree that are looked at, at most.
const LOOKED_AT: u64 = 64 << 20;

impl Core {
    /// How the trees are that the last commit left, where that can be said: there is a tree for free space, and not too much to look at.
    pub fn look(&self) -> Result<Option<Shape>> {
        let roots = self.roots();
        if roots.free_space.is_none() || roots.stale_free_space.is_some() {
            return Ok(None);
        }
        let size = |id, root: Root| -> Result<Size> {
            let blocks = View::new(&self.blocks, id, root).count()?;
            Ok(Size { blocks, height: u64::from(root.level) + 1 })
        };
        let mut nodes = 0;
        let extents = View::new(&self.blocks, objectid::EXTENT_TREE, roots.extent);
        extents.each_block(&mut |_, level| nodes += u64::from(level > 0))?;
        let Some(leaves) = self.leaves_of_blocks(roots.extent)? else { return Ok(None) };
        let info = if self.features.skinny { 0 } else { size_of::<TreeBlockInfo>() };
        let item = ITEM_LEN + size_of::<ExtentItem>() + info + size_of::<ExtentInlineRef>();
        let uuids =
            roots.uuid.map_or(Ok(Size::default()), |root| size(objectid::UUID_TREE, root))?;
        let groups = roots.block_group.map(|root| size(objectid::BLOCK_GROUP_TREE, root));
        Ok(Some(Shape {
            others: self.blocks_of_others(&roots)?,
            nodes,
            leaves,
            block_item: item as u64,
            groups_in_extents: groups.is_none(),
            roots: size(objectid::ROOT_TREE, roots.root)?,
            uuids,
            devices: size(objectid::DEV_TREE, roots.dev)?,
            groups: groups.transpose()?.map_or(0, |size| size.blocks),
        }))
    }

    /// Where the nodes of the extent tree are, and all blocks of the other trees that any commit may change.
    fn blocks_of_others(&self, roots: &Roots) -> Result<Vec<u64>> {
        let trees = roots.by_id().into_iter().filter_map(|(id, root)| Some((id, root?)));
        let top = [(objectid::ROOT_TREE, roots.root), (objectid::CHUNK_TREE, roots.chunk)];
        let mut others = Vec::new();
        for (id, root) in trees.chain(top) {
            View::new(&self.blocks, id, root).each_block(&mut |bytenr, level| {
                others.extend((id != objectid::EXTENT_TREE || level > 0).then_some(bytenr));
            })?;
        }
        Ok(others)
    }

    /// The leaves of the extent tree for tree blocks; nothing where these are too many.
    fn leaves_of_blocks(&self, root: Root) -> Result<Option<Leaves>> {
        let view = View::new(&self.blocks, objectid::EXTENT_TREE, root);
        let mut leaves = Leaves::default();
        let (root, range) = (view.root_block()?, (Key::MIN, u64::MAX));
        let all = self.add_leaves_of_blocks(&view, &root, range, &mut leaves)?;
        Ok(all.then_some(leaves))
    }

    /// Adds those below `block`, which items from `from` to those of the extent at `to` belong in. As deep as the tree has levels. False when there are too many.
    fn add_leaves_of_blocks(
        &self,
        view: &View<'_>,
        block: &TreeBlock,
        (from, to): (Key, u64),
        leaves: &mut Leaves,
    ) -> Result<bool> {
        if block.is_leaf() {
            leaves.add(from, block);
            return Ok(leaves.len() as u64 * self.features.nodesize as u64 <= LOOKED_AT);
        }
        for slot in 0..block.len() {
            let start = if slot == 0 { from } else { block.key(slot) };
            let is_last = slot + 1 == block.len();
            let next = if is_last { to } else { block.key(slot + 1).objectid };
            // The items of one extent may go on in the next leaf.
            if block.level() == 1 && !self.space.has_blocks(start.objectid, next.saturating_add(1))
            {
                continue;
            }
            let child = view.child(block, slot)?;
            if !self.add_leaves_of_blocks(view, &child, (start, next), leaves)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Adds the leaves of the extent tree that have the items of an extent.
    pub fn add_leaves_of_extent(&self, leaves: &mut Leaves, bytenr: u64) -> Result<()> {
        let view = self.extent_view();
        let mut from = Key::new(bytenr, kind::EXTENT_ITEM, 0);
        loop {
            let next = view.show_path(&from, &mut |block| {
                if block.is_leaf() && !block.is_empty() {
                    leaves.add(block.key(0), block);
                }
            })?;
            match next.filter(|next| next.objectid <= bytenr) {
                Some(next) => from = next,
                None => return Ok(()),
            }
        }
    }
}
