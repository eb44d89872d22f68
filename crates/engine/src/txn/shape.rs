//! Looks at the trees that any commit may change, for a deletion that comes alone ([`crate::space::Space::reserve_alone`]).
//!
//! Crash argument: nothing is changed here.

use buttress_ondisk::item::{ExtentInlineRef, ExtentItem, TreeBlockInfo};
use buttress_ondisk::{ITEM_LEN, Key, TreeBlock, kind, objectid};

use super::core::{Core, Roots};
use crate::error::Result;
use crate::space::{Lone, Part, Shape, Size};
use crate::tree::{Root, View};

/// Bytes of leaves of the extent tree that are looked at, at most.
const LOOKED_AT: u64 = 64 << 20;

/// The trees as the last commit left them.
#[derive(Debug)]
pub struct Looked {
    /// How they are.
    pub shape: Shape,
    roots: Roots,
}

impl Core {
    /// How the trees are, where that can be said: there is a tree for free space, and not too much to look at.
    pub fn look(&self) -> Result<Option<Looked>> {
        let roots = self.roots();
        if roots.free_space.is_none() || roots.stale_free_space.is_some() {
            return Ok(None);
        }
        let size = |id, root: Root| -> Result<Size> {
            let blocks = View::new(&self.blocks, id, root).count()?;
            Ok(Size { blocks, height: u64::from(root.level) + 1 })
        };
        let Some(extents) = self.leaves_of_blocks(roots.extent)? else { return Ok(None) };
        let info = if self.features.skinny { 0 } else { size_of::<TreeBlockInfo>() };
        let item = ITEM_LEN + size_of::<ExtentItem>() + info + size_of::<ExtentInlineRef>();
        let uuids =
            roots.uuid.map_or(Ok(Size::default()), |root| size(objectid::UUID_TREE, root))?;
        let groups = roots.block_group.map(|root| size(objectid::BLOCK_GROUP_TREE, root));
        let shape = Shape {
            extents,
            block_item: item as u64,
            groups_in_extents: groups.is_none(),
            roots: size(objectid::ROOT_TREE, roots.root)?,
            uuids,
            devices: size(objectid::DEV_TREE, roots.dev)?,
            groups: groups.transpose()?.map_or(0, |size| size.blocks),
        };
        Ok(Some(Looked { shape, roots }))
    }

    /// Whether these are the trees of the last commit.
    pub fn is_last(&self, looked: &Looked) -> bool {
        let (now, then) = (self.roots(), &looked.roots);
        (now.root, now.extent) == (then.root, then.extent)
    }

    /// All nodes of the extent tree, and its leaves for tree blocks.
    fn leaves_of_blocks(&self, root: Root) -> Result<Option<Part>> {
        let view = View::new(&self.blocks, objectid::EXTENT_TREE, root);
        let (mut part, block) = (Part::default(), view.root_block()?);
        part.add(&block);
        let all = self.add_leaves_of_blocks(&view, &block, (0, u64::MAX), &mut part)?;
        Ok(all.then_some(part))
    }

    /// As deep as the tree has levels. False when there are too many.
    fn add_leaves_of_blocks(
        &self,
        view: &View<'_>,
        node: &TreeBlock,
        (from, to): (u64, u64),
        part: &mut Part,
    ) -> Result<bool> {
        let most = (LOOKED_AT / self.features.nodesize as u64) as usize;
        for slot in 0..if node.is_leaf() { 0 } else { node.len() } {
            let start = if slot == 0 { from } else { node.key(slot).objectid };
            let last = slot + 1 == node.len();
            // The items of one address may go on in the next leaf.
            let end = if last { to } else { node.key(slot + 1).objectid.saturating_add(1) };
            if node.level() == 1 && !self.space.has_blocks(start, end) {
                continue;
            }
            let child = view.child(node, slot)?;
            part.add(&child);
            if part.leaves() > most
                || !self.add_leaves_of_blocks(view, &child, (start, end), part)?
            {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Adds the leaves of the extent tree that have the items of an extent.
    pub fn add_leaves_of_extent(&self, lone: &mut Lone, bytenr: u64) -> Result<()> {
        let view = self.extent_view();
        let mut from = Key::new(bytenr, kind::EXTENT_ITEM, 0);
        loop {
            let next = view.show_path(&from, &mut |block| {
                lone.extents.add(block);
            })?;
            match next.filter(|next| next.objectid <= bytenr) {
                Some(next) => from = next,
                None => return Ok(()),
            }
        }
    }
}
