//! A read-only walk over a tree as it is on the devices, for tools and checkers: every block is read
//! through the gate and compared with what its parent says (address, level, generation, first key),
//! and its keys must stay below its right neighbour's.
//!
//! The depth is bounded by the levels, which fall by one at each step; a tree whose blocks point
//! back at themselves cannot pass that.

use std::ops::{ControlFlow, RangeInclusive};

use buttress_ondisk::{Key, TreeBlock, check::Expect};

use crate::{error::VolumeError, volume::Volume};

/// Where a tree starts and what is known of its root block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TreeRoot {
    /// Logical address of the root block.
    pub bytenr: u64,
    /// Its level.
    pub level: u8,
    /// Its generation, where known.
    pub generation: Option<u64>,
    /// The tree, where known.
    pub owner: Option<u64>,
}

impl TreeRoot {
    /// What its root block has to be.
    pub fn expect(&self) -> Expect {
        Expect {
            bytenr: self.bytenr,
            level: Some(self.level),
            generation: self.generation,
            owner: self.owner,
            first_key: None,
        }
    }
}

/// Visits every item of a tree whose key is in the range, in key order, until `visit` breaks.
pub fn walk<B>(
    volume: &Volume,
    root: &TreeRoot,
    range: RangeInclusive<Key>,
    mut visit: impl FnMut(&Key, &[u8]) -> ControlFlow<B>,
) -> Result<ControlFlow<B>, VolumeError> {
    walk_blocks(volume, root, range.clone(), |block| {
        if !block.is_leaf() {
            return ControlFlow::Continue(());
        }
        let first = block.search(range.start()).unwrap_or_else(|slot| slot);
        for slot in first..block.len() {
            let (key, data) = block.item(slot);
            if key > *range.end() {
                break;
            }
            visit(&key, data)?;
        }
        ControlFlow::Continue(())
    })
}

/// Visits every block of a tree that may hold keys of the range: parents before their children,
/// children in key order, until `visit` breaks.
pub fn walk_blocks<B>(
    volume: &Volume,
    root: &TreeRoot,
    range: RangeInclusive<Key>,
    mut visit: impl FnMut(&TreeBlock) -> ControlFlow<B>,
) -> Result<ControlFlow<B>, VolumeError> {
    let block = volume.read_block(root.bytenr, &root.expect())?;
    descend(volume, &block, root.owner, None, &range, &mut visit)
}

fn descend<B>(
    volume: &Volume,
    block: &TreeBlock,
    owner: Option<u64>,
    bound: Option<Key>,
    range: &RangeInclusive<Key>,
    visit: &mut impl FnMut(&TreeBlock) -> ControlFlow<B>,
) -> Result<ControlFlow<B>, VolumeError> {
    check_bound(block, bound)?;
    if let ControlFlow::Break(value) = visit(block) {
        return Ok(ControlFlow::Break(value));
    }
    if block.is_leaf() {
        return Ok(ControlFlow::Continue(()));
    }
    for slot in block.child_for(range.start())..block.len() {
        if block.key(slot) > *range.end() {
            break;
        }
        let next = if slot + 1 < block.len() { Some(block.key(slot + 1)) } else { bound };
        let child = read_child(volume, block, slot, owner)?;
        if let ControlFlow::Break(value) = descend(volume, &child, owner, next, range, visit)? {
            return Ok(ControlFlow::Break(value));
        }
    }
    Ok(ControlFlow::Continue(()))
}

fn read_child(
    volume: &Volume,
    parent: &TreeBlock,
    slot: usize,
    owner: Option<u64>,
) -> Result<TreeBlock, VolumeError> {
    let child = parent.child(slot);
    let expect = Expect {
        bytenr: child.bytenr,
        level: Some(parent.level().saturating_sub(1)),
        generation: Some(child.generation),
        owner,
        first_key: Some(child.key),
    };
    volume.read_block(child.bytenr, &expect)
}

/// The last key of a block is below the first of what comes after it.
fn check_bound(block: &TreeBlock, bound: Option<Key>) -> Result<(), VolumeError> {
    let (Some(bound), Some(last)) = (bound, block.len().checked_sub(1)) else { return Ok(()) };
    let key = block.key(last);
    if key < bound {
        return Ok(());
    }
    let what = "keys reach into the next block";
    Err(VolumeError::Tree { block: block.bytenr(), what, key, expect: bound })
}

/// The item with exactly this key.
pub fn search(volume: &Volume, root: &TreeRoot, key: &Key) -> Result<Option<Vec<u8>>, VolumeError> {
    Ok(search_from(volume, root, key)?.filter(|(found, _)| found == key).map(|(_, data)| data))
}

/// The first item whose key is `key` or greater.
pub fn search_from(
    volume: &Volume,
    root: &TreeRoot,
    key: &Key,
) -> Result<Option<(Key, Vec<u8>)>, VolumeError> {
    let found =
        walk(volume, root, *key..=Key::MAX, |key, data| ControlFlow::Break((*key, data.to_vec())))?;
    Ok(found.break_value())
}

/// The last item whose key is `key` or less.
pub fn search_back(
    volume: &Volume,
    root: &TreeRoot,
    key: &Key,
) -> Result<Option<(Key, Vec<u8>)>, VolumeError> {
    let mut block = volume.read_block(root.bytenr, &root.expect())?;
    while !block.is_leaf() {
        block = read_child(volume, &block, block.child_for(key), root.owner)?;
    }
    let slot = match block.search(key) {
        Ok(slot) => Some(slot),
        Err(slot) => slot.checked_sub(1),
    };
    Ok(slot.map(|slot| (block.key(slot), block.data(slot).to_vec())))
}
