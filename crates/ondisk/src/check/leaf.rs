//! Leaves: the order of the keys, the layout of the data, and the dispatch to the rules of each kind of item.

use super::{Checked, Corruption, CorruptionKind, Fault, Gate, chunk, ensure, extent, inode, root};
use crate::block::TreeBlock;
use crate::key::{Key, kind, objectid};
use crate::{HEADER_LEN, ITEM_LEN};

/// An item under examination.
pub(super) struct Item<'a> {
    pub gate: &'a Gate,
    pub root: u64,
    pub key: Key,
    pub data: &'a [u8],
    /// The item before it in the same leaf.
    pub before: Option<(Key, &'a [u8])>,
}

impl Item<'_> {
    /// The item before, when it is of the same object and kind.
    pub fn sibling(&self) -> Option<(Key, &[u8])> {
        self.before
            .filter(|(key, _)| key.objectid == self.key.objectid && key.kind == self.key.kind)
    }

    /// The item before, when it is of the same kind.
    pub fn sibling_of_kind(&self) -> Option<(Key, &[u8])> {
        self.before.filter(|(key, _)| key.kind == self.key.kind)
    }

    /// Checks that the data is exactly `len` bytes.
    pub fn sized(&self, len: usize) -> Checked {
        ensure!(self.data.len() == len, "wrong item size", self.data.len(), len);
        Ok(())
    }

    /// Checks that `value` is a multiple of the sector size.
    pub fn aligned(&self, value: u64, what: &'static str) -> Checked {
        ensure!(
            self.gate.aligned(value),
            what,
            value,
            format_args!("a multiple of {}", self.gate.sectorsize)
        );
        Ok(())
    }

    /// Checks that a generation is not beyond the newest one.
    pub fn age(&self, generation: u64, what: &'static str) -> Checked {
        let newest = self.gate.newest();
        ensure!(generation <= newest, what, generation, format_args!("at most {newest}"));
        Ok(())
    }
}

/// Checks a leaf whose head is known to be good: all items, or those of one kind.
pub(super) fn check(
    gate: &Gate,
    block: &TreeBlock,
    root: u64,
    only: Option<u8>,
) -> Result<(), Corruption> {
    frame(gate, block, root)?;
    let mut before = None;
    let heads = block.item_heads().iter().enumerate();
    let wanted = heads.filter(|(_, head)| only.is_none_or(|kind| head.key.kind == kind));
    for (slot, head) in wanted {
        let (key, data) = (head.key.into(), block.data_of(head));
        item(&Item { gate, root, key, data, before })
            .map_err(|fault| fault.at(CorruptionKind::Item, root, block.bytenr(), Some(slot)))?;
        before = Some((key, data));
    }
    Ok(())
}

/// Everything but what is in the items.
pub(super) fn frame(gate: &Gate, block: &TreeBlock, root: u64) -> Result<(), Corruption> {
    let leaf = |fault: Fault, slot| fault.at(CorruptionKind::Leaf, root, block.bytenr(), slot);
    if block.is_empty() {
        return never_empty(block.owner()).map_err(|fault| leaf(fault, None));
    }
    layout(gate, block).map_err(|(slot, fault)| leaf(fault, Some(slot)))
}

/// The items of a leaf with a good frame that break a rule, in order. Where an item is good in itself and does not go with the one
/// before it, either can be wrong: both are bad. One that is bad in itself counts for its key only, which the frame vouches for.
pub(super) fn bad_items(gate: &Gate, block: &TreeBlock, root: u64) -> Vec<(usize, Corruption)> {
    let mut bad: Vec<(usize, Corruption)> = Vec::new();
    let at = |fault: Fault, slot| fault.at(CorruptionKind::Item, root, block.bytenr(), Some(slot));
    for slot in 0..block.len() {
        let (key, data) = block.item(slot);
        let alone = Item { gate, root, key, data, before: None };
        if let Err(fault) = item(&alone) {
            bad.push((slot, at(fault, slot)));
            continue;
        }
        let Some(last) = slot.checked_sub(1) else { continue };
        let known = bad.last().is_some_and(|(slot, _)| *slot == last);
        let data = if known { &[][..] } else { block.data(last) };
        let Err(fault) = item(&Item { before: Some((block.key(last), data)), ..alone }) else {
            continue;
        };
        let why = at(fault, slot);
        if !known {
            bad.push((last, Corruption { slot: Some(last), ..why.clone() }));
        }
        bad.push((slot, why));
    }
    bad
}

/// Some trees always hold something.
fn never_empty(owner: u64) -> Checked {
    let needed = matches!(
        owner,
        objectid::ROOT_TREE
            | objectid::CHUNK_TREE
            | objectid::DEV_TREE
            | objectid::FS_TREE
            | objectid::DATA_RELOC_TREE
            | objectid::EXTENT_TREE
    );
    ensure!(!needed, "empty leaf in a tree that is never empty", 0, "one item or more");
    Ok(())
}

/// Keys ascend; the data of the items lies back to back from the end of the block and stays clear of their heads.
fn layout(gate: &Gate, block: &TreeBlock) -> Result<(), (usize, Fault)> {
    let room = u64::from(gate.nodesize) - HEADER_LEN as u64;
    let heads = (block.len() * ITEM_LEN) as u64;
    let mut end = room;
    // The least of all keys is no item's.
    let mut last = Key::MIN;
    for (slot, head) in block.item_heads().iter().enumerate() {
        let key = Key::from(head.key);
        let (offset, size) = (u64::from(head.offset.get()), u64::from(head.size.get()));
        let rules = || -> Checked {
            ensure!(last < key, "keys out of order", key, format_args!("above {last}"));
            ensure!(offset + size == end, "item data not back to back", offset + size, end);
            ensure!(
                offset >= heads,
                "item data overlaps the item heads",
                offset,
                format_args!("at least {heads}")
            );
            Ok(())
        };
        rules().map_err(|fault| (slot, fault))?;
        end = offset;
        last = key;
    }
    Ok(())
}

fn item(item: &Item<'_>) -> Checked {
    match item.key.kind {
        kind::INODE_ITEM => inode::inode_item(item),
        kind::INODE_REF => inode::inode_ref(item),
        kind::INODE_EXTREF => inode::inode_extref(item),
        kind::DIR_ITEM | kind::DIR_INDEX | kind::XATTR_ITEM => inode::dir_item(item),
        kind::DIR_LOG_ITEM | kind::DIR_LOG_INDEX => item.sized(8),
        kind::EXTENT_DATA => inode::extent_data(item),
        kind::EXTENT_CSUM => root::csum(item),
        kind::ROOT_ITEM => root::root_item(item),
        kind::ROOT_REF | kind::ROOT_BACKREF => root::root_ref(item),
        kind::EXTENT_ITEM | kind::METADATA_ITEM => extent::extent_item(item),
        kind::TREE_BLOCK_REF | kind::SHARED_BLOCK_REF => extent::block_ref(item),
        kind::EXTENT_DATA_REF => extent::data_ref(item),
        kind::SHARED_DATA_REF => extent::shared_data_ref(item),
        kind::EXTENT_OWNER_REF => item.sized(0),
        kind::BLOCK_GROUP_ITEM => chunk::block_group(item),
        kind::CHUNK_ITEM => chunk::chunk_item(item),
        kind::DEV_ITEM => chunk::dev_item(item),
        kind::DEV_EXTENT => chunk::dev_extent(item),
        kind::FREE_SPACE_INFO => root::free_space_info(item),
        kind::FREE_SPACE_EXTENT => root::free_space_extent(item),
        kind::FREE_SPACE_BITMAP => root::free_space_bitmap(item),
        kind::QGROUP_STATUS | kind::QGROUP_INFO | kind::QGROUP_LIMIT | kind::QGROUP_RELATION
            if item.root == objectid::QUOTA_TREE =>
        {
            root::qgroup(item)
        }
        kind::UUID_SUBVOL | kind::UUID_RECEIVED_SUBVOL => root::uuid(item),
        kind::PERSISTENT_ITEM if item.key.objectid == objectid::DEV_STATS => root::dev_stats(item),
        0 if item.key.objectid == objectid::FREE_SPACE => root::space_cache(item),
        _ => Ok(()),
    }
}
