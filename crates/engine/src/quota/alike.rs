//! What leaves of two trees name both: data extents that nobody has alone, found without a question for each.
//!
//! Leaves of snapshots differ in a few items, which are mostly in the same slots as in the leaf that one was copied from. So an item of the other leaf is looked for
//! in the slot that follows from the last one, and items that are the same bytes are not taken apart.

use std::ops::Range;

use buttress_ondisk::block::ItemHead;
use buttress_ondisk::{Key, TreeBlock, kind};

use crate::refs::owners::extent_of;
use crate::tree::View;

/// Leaves of another tree that have what one leaf has, at most.
const LEAVES_MAX: usize = 3;

/// The data extents that a leaf names, and where.
pub fn named(leaf: &TreeBlock) -> Vec<(Key, u64)> {
    (0..leaf.len()).filter_map(|slot| named_in(leaf, slot)).collect()
}

/// Those of them that another tree does not name at the same places, and how many it does. What cannot be read names nothing.
pub fn unlike(leaf: &TreeBlock, view: &View<'_>) -> (Vec<(Key, u64)>, u64) {
    let (mut rest, mut alike, mut at) = (Vec::new(), 0, 0);
    for _ in 0..LEAVES_MAX {
        let Some(first) = (at < leaf.len()).then(|| leaf.key(at)) else { break };
        let Ok((other, next)) = view.leaf_at(&first) else { break };
        let end = next.map_or(leaf.len(), |next| leaf.search(&next).unwrap_or_else(|slot| slot));
        // It has the first key in any case.
        let end = end.max(at + 1);
        alike += unlike_in(leaf, at..end, &other, &mut rest);
        at = end;
    }
    rest.extend((at..leaf.len()).filter_map(|slot| named_in(leaf, slot)));
    (rest, alike)
}

/// Whether a tree names a data extent at a place.
pub fn names(view: &View<'_>, (key, bytenr): &(Key, u64)) -> bool {
    let Ok((leaf, _)) = view.leaf_at(key) else { return false };
    let found = leaf.search(key).ok().and_then(|slot| extent_of(leaf.data(slot)));
    found.is_some_and(|it| it.bytenr == *bytenr)
}

/// The same of some slots, and of a leaf that has all their keys that the other tree has.
fn unlike_in(
    leaf: &TreeBlock,
    slots: Range<usize>,
    other: &TreeBlock,
    rest: &mut Vec<(Key, u64)>,
) -> u64 {
    let (mut alike, mut shift) = (0, 0);
    let (heads, others) = (leaf.item_heads(), other.item_heads());
    for slot in slots {
        let Some(head) = heads.get(slot).filter(|head| head.key.kind == kind::EXTENT_DATA) else {
            continue;
        };
        let guess = slot.checked_add_signed(shift).and_then(|slot| others.get(slot));
        let found = guess.filter(|guess| is_same(guess, head)).or_else(|| {
            let found = other.search(&leaf.key(slot));
            shift = found.unwrap_or_else(|slot| slot) as isize - slot as isize;
            others.get(found.ok()?)
        });
        let data = found.map(|found| other.data_of(found));
        if data == Some(leaf.data_of(head)) {
            alike += 1;
        } else if let Some(one) = named_in(leaf, slot) {
            let same = data.and_then(extent_of).is_some_and(|it| it.bytenr == one.1);
            if same { alike += 1 } else { rest.push(one) }
        }
    }
    alike
}

/// Whether two items have one key.
fn is_same(one: &ItemHead, other: &ItemHead) -> bool {
    let (one, other) = (&one.key, &other.key);
    one.objectid == other.objectid && one.offset == other.offset && one.kind == other.kind
}

fn named_in(leaf: &TreeBlock, slot: usize) -> Option<(Key, u64)> {
    let head = leaf.item_heads().get(slot).filter(|head| head.key.kind == kind::EXTENT_DATA)?;
    Some((leaf.key(slot), extent_of(leaf.data_of(head))?.bytenr))
}
