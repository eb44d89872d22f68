//! Who reaches what, the plain way: every tree is gone through from its root down, and everything met on the way is written down. It
//! takes the memory and the time that the engine's resolver must not, and asks the extent tree nothing.

use std::collections::{BTreeMap, BTreeSet};

use buttress_ondisk::item::RootItem;
use buttress_ondisk::view::FileExtentItem;
use buttress_ondisk::{Key, TreeBlock, check::Expect, kind, objectid};
use buttress_volume::{TreeRoot, Volume, VolumeError, walk};

/// A piece of a file in a data extent: tree, inode, offset in the file, offset in the extent.
pub type Piece = (u64, u64, u64, u64);

/// What trees reach.
#[derive(Debug, Default)]
pub struct Reached {
    /// The trees of each tree block, by address.
    pub blocks: BTreeMap<u64, BTreeSet<u64>>,
    /// The pieces that are in each data extent, by address.
    pub data: BTreeMap<u64, BTreeSet<Piece>>,
    /// The leaves that a file of a tree has pieces of an extent in.
    pub leaves: BTreeMap<(u64, u64, u64), BTreeSet<u64>>,
}

/// What of a tree is not there any more: a deleted subvolume that is dropped half way.
#[derive(Clone, Copy, Debug)]
struct Progress {
    key: Key,
    level: u8,
}

/// Goes through all trees of the last commit.
pub fn reached(volume: &Volume) -> Result<Reached, VolumeError> {
    let superblock = volume.superblock();
    let top = |bytenr: u64, level: u8, generation: u64, owner: u64| TreeRoot {
        bytenr,
        level,
        generation: Some(generation),
        owner: Some(owner),
    };
    let root = top(
        superblock.root.get(),
        superblock.root_level,
        superblock.generation.get(),
        objectid::ROOT_TREE,
    );
    let chunk = top(
        superblock.chunk_root.get(),
        superblock.chunk_root_level,
        superblock.chunk_root_generation.get(),
        objectid::CHUNK_TREE,
    );
    let mut trees = vec![(root, None), (chunk, None)];
    let _ = walk(volume, &root, Key::MIN..=Key::MAX, |key, data| {
        if key.kind == kind::ROOT_ITEM
            && let Some(item) = RootItem::read(data)
            && item.bytenr.get() != 0
        {
            let found = top(item.bytenr.get(), item.level, item.generation.get(), key.objectid);
            let at = Key::from(item.drop_progress);
            let progress = (at != Key::MIN).then_some(Progress { key: at, level: item.drop_level });
            trees.push((found, progress));
        }
        std::ops::ControlFlow::<()>::Continue(())
    })?;
    let mut reached = Reached::default();
    for (tree, progress) in trees {
        let block = volume.read_block(tree.bytenr, &tree.expect())?;
        reached.descend(volume, tree.owner.unwrap_or(0), &block, progress)?;
    }
    Ok(reached)
}

impl Reached {
    fn descend(
        &mut self,
        volume: &Volume,
        tree: u64,
        block: &TreeBlock,
        progress: Option<Progress>,
    ) -> Result<(), VolumeError> {
        self.blocks.entry(block.bytenr()).or_default().insert(tree);
        if block.is_leaf() {
            (0..block.len()).for_each(|slot| self.item(tree, block.bytenr(), block.item(slot)));
            return Ok(());
        }
        let mut progress = progress;
        let first = match progress {
            None => 0,
            // Children before that are let go of.
            Some(at) if block.level() <= at.level => {
                progress = None;
                block.search(&at.key).unwrap_or_else(|slot| slot)
            }
            Some(at) => block.child_for(&at.key),
        };
        for slot in first..block.len() {
            let child = block.child(slot);
            let expect = Expect {
                bytenr: child.bytenr,
                level: Some(block.level() - 1),
                generation: Some(child.generation),
                owner: Some(tree),
                first_key: Some(child.key),
            };
            let child = volume.read_block(child.bytenr, &expect)?;
            self.descend(volume, tree, &child, progress.take())?;
        }
        Ok(())
    }

    fn item(&mut self, tree: u64, leaf: u64, (key, data): (Key, &[u8])) {
        if key.kind == kind::EXTENT_DATA
            && let Some(FileExtentItem::Regular { disk_bytenr, offset, .. }) =
                FileExtentItem::read(data)
            && disk_bytenr != 0
        {
            let piece = (tree, key.objectid, key.offset, offset);
            self.data.entry(disk_bytenr).or_default().insert(piece);
            let of_file = (disk_bytenr, tree, key.objectid);
            self.leaves.entry(of_file).or_default().insert(leaf);
        }
    }

    /// Whether a file shares an extent by what is reached: another file or tree has pieces of it, or the file has it at two places.
    pub fn is_shared(&self, extent: u64, tree: u64, ino: u64) -> bool {
        let Some(pieces) = self.data.get(&extent) else { return false };
        let place = |(_, _, offset, skip): &Piece| offset.wrapping_sub(*skip);
        let first = pieces.iter().next().map(place);
        pieces.iter().any(|piece| (piece.0, piece.1) != (tree, ino) || Some(place(piece)) != first)
    }
}
