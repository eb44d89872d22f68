//! One tree of the new filesystem: from sorted items to tree blocks.
//!
//! Which blocks a tree has depends on the sizes of its items only, not on what is in them. So the shapes of all trees
//! are known before any address is given out, and items that hold addresses are written once, with the final ones.

use buttress_ondisk::build::Stamp;
use buttress_ondisk::{ChildPtr, ITEM_LEN, Key, LeafBuilder, NodeBuilder, TreeBlock};

/// The items of a tree, in any order until it is built.
pub(crate) type Items = Vec<(Key, Vec<u8>)>;

/// How many blocks a tree has on each level, leaves first. A tree without items has one leaf.
pub(crate) fn shape(sizes: impl IntoIterator<Item = usize>, nodesize: usize) -> Vec<usize> {
    let room = LeafBuilder::room(nodesize);
    let (mut leaves, mut used) = (1usize, 0usize);
    for size in sizes {
        let size = size + ITEM_LEN;
        if used + size > room {
            leaves += 1;
            used = 0;
        }
        used += size;
    }
    let mut levels = vec![leaves];
    let mut width = leaves;
    while width > 1 {
        width = width.div_ceil(NodeBuilder::capacity(nodesize));
        levels.push(width);
    }
    levels
}

/// A tree with its place.
#[derive(Clone, Debug)]
pub(crate) struct Placed {
    /// The tree's id.
    pub id: u64,
    /// Blocks on each level, leaves first.
    pub shape: Vec<usize>,
    /// The address of each block: the leaves from left to right, then the nodes above them; the root is the last.
    pub addresses: Vec<u64>,
}

impl Placed {
    /// The root's address.
    pub fn root(&self) -> u64 {
        self.addresses.last().copied().unwrap_or(0)
    }

    /// The root's level.
    pub fn level(&self) -> u8 {
        self.shape.len().saturating_sub(1) as u8
    }

    /// Address and level of each block.
    pub fn blocks(&self) -> impl Iterator<Item = (u64, u8)> {
        let levels = self.shape.iter().enumerate();
        let levels = levels.flat_map(|(level, width)| std::iter::repeat_n(level as u8, *width));
        self.addresses.iter().copied().zip(levels)
    }

    /// Builds the blocks from items in key order; `None` when they do not fit the shape.
    pub fn build(&self, items: &Items, nodesize: usize, stamp: &Stamp) -> Option<Vec<TreeBlock>> {
        let mut addresses = self.addresses.iter();
        let mut next = || Some(Stamp { bytenr: *addresses.next()?, owner: self.id, ..*stamp });
        let mut done = Vec::new();
        let mut leaf = LeafBuilder::new(nodesize);
        for (key, data) in items {
            if !leaf.push(*key, data) {
                done.push(leaf.finish(&next()?));
                leaf = LeafBuilder::new(nodesize);
                leaf.push(*key, data).then_some(())?;
            }
        }
        done.push(leaf.finish(&next()?));
        let mut below = 0..done.len();
        for level in 1..=self.level() {
            let mut node = NodeBuilder::new(nodesize);
            for child in below.clone() {
                let pointer = pointer(done.get(child)?);
                if !node.push(&pointer) {
                    done.push(node.finish(level, &next()?));
                    node = NodeBuilder::new(nodesize);
                    node.push(&pointer);
                }
            }
            done.push(node.finish(level, &next()?));
            below = below.end..done.len();
        }
        (done.len() == self.addresses.len()).then_some(done)
    }
}

fn pointer(block: &TreeBlock) -> ChildPtr {
    ChildPtr { key: first_key(block), bytenr: block.bytenr(), generation: block.generation() }
}

/// The first key of a block; of an empty leaf the smallest key.
pub(crate) fn first_key(block: &TreeBlock) -> Key {
    if block.is_empty() { Key::MIN } else { block.key(0) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_and_blocks_agree() {
        let stamp = Stamp {
            fsid: [1; 16],
            chunk_tree_uuid: [2; 16],
            bytenr: 0,
            generation: 1,
            owner: 0,
            flags: 0,
        };
        for count in [0u64, 1, 8, 9, 500, 2000] {
            let items: Items = (0..count).map(|n| (Key::new(n, 1, 0), vec![7; 439])).collect();
            let shape = shape(items.iter().map(|(_, data)| data.len()), 4096);
            let blocks: usize = shape.iter().sum();
            let addresses = (1..=blocks as u64).map(|n| n * 4096).collect();
            let placed = Placed { id: 5, shape, addresses };
            let built = placed.build(&items, 4096, &stamp).unwrap();
            let levels: Vec<_> =
                built.iter().map(|block| (block.bytenr(), block.level())).collect();
            assert_eq!(levels, placed.blocks().collect::<Vec<_>>());
            assert_eq!(built.last().unwrap().bytenr(), placed.root());
            let leaves = built.iter().filter(|block| block.is_leaf());
            assert_eq!(leaves.map(TreeBlock::len).sum::<usize>(), items.len());
        }
    }
}
