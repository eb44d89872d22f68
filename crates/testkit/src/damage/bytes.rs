//! Fields of a block by place, for damage that no builder would write.

use buttress_ondisk::block::{BlockHead, ChildHead, ItemHead};
use buttress_ondisk::{CHILD_LEN, HEADER_LEN, ITEM_LEN, Key};
use zerocopy::FromBytes;

/// Changes the head of a block.
pub fn head(bytes: &mut [u8], edit: impl FnOnce(&mut BlockHead)) {
    if let Ok((it, _)) = BlockHead::mut_from_prefix(bytes) {
        edit(it);
    }
}

/// Changes the head of an item of a leaf.
pub fn item(bytes: &mut [u8], slot: usize, edit: impl FnOnce(&mut ItemHead)) {
    let at = HEADER_LEN + slot * ITEM_LEN;
    if let Ok((it, _)) = ItemHead::mut_from_prefix(&mut bytes[at..]) {
        edit(it);
    }
}

/// Changes a child pointer of a node.
pub fn child(bytes: &mut [u8], slot: usize, edit: impl FnOnce(&mut ChildHead)) {
    let at = HEADER_LEN + slot * CHILD_LEN;
    if let Ok((it, _)) = ChildHead::mut_from_prefix(&mut bytes[at..]) {
        edit(it);
    }
}

/// Sets the key of a child pointer.
pub fn set_child_key(bytes: &mut [u8], slot: usize, key: &Key) {
    child(bytes, slot, |it| it.key = (*key).into());
}
