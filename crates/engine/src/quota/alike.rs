//! What leaves of two trees name both: data extents that nobody has alone, found without a question for each.
//!
//! Leaves of snapshots differ in a few items, which are mostly in the same slots as in the leaf that one was copied from. So an item of the other leaf is looked for
//! in the slot that follows from the last one, and items that are the same bytes are not taken apart.

use buttress_ondisk::{Key, TreeBlock, kind};
use zerocopy::IntoBytes;

use crate::refs::owners::extent_of;
use crate::tree::View;

/// Leaves of another tree that have what one leaf has, at most.
const LEAVES_MAX: usize = 3;

/// The data extents that a leaf names, and where.
pub fn named(leaf: &TreeBlock) -> Vec<(Key, u64)> {
    files(leaf).filter_map(|slot| named_in(leaf, slot)).collect()
}

/// Those of them that another tree does not name at the same places, and how many it does. What cannot be read names nothing.
pub fn unlike(leaf: &TreeBlock, view: &View<'_>) -> (Vec<(Key, u64)>, u64) {
    let (mut rest, mut alike) = (Vec::new(), 0);
    let mut slots = files(leaf).peekable();
    for _ in 0..LEAVES_MAX {
        let Some(slot) = slots.peek() else { break };
        let Ok((other, next)) = view.leaf_at(&leaf.key(*slot)) else { break };
        let mut beside = Beside::new(leaf, &other);
        while let Some(slot) = slots.next_if(|slot| next.is_none_or(|next| leaf.key(*slot) < next))
        {
            match beside.at(slot) {
                Some(data) if data == leaf.data(slot) => alike += 1,
                data => {
                    let Some((key, bytenr)) = named_in(leaf, slot) else { continue };
                    let same = data.and_then(extent_of).is_some_and(|it| it.bytenr == bytenr);
                    if same { alike += 1 } else { rest.push((key, bytenr)) }
                }
            }
        }
    }
    rest.extend(slots.filter_map(|slot| named_in(leaf, slot)));
    (rest, alike)
}

/// The slots of pieces of files.
fn files(leaf: &TreeBlock) -> impl Iterator<Item = usize> + '_ {
    let heads = leaf.item_heads().iter().enumerate();
    heads.filter(|(_, head)| head.key.kind == kind::EXTENT_DATA).map(|(slot, _)| slot)
}

fn named_in(leaf: &TreeBlock, slot: usize) -> Option<(Key, u64)> {
    Some((leaf.key(slot), extent_of(leaf.data(slot))?.bytenr))
}

/// Another leaf beside one.
struct Beside<'l> {
    leaf: &'l TreeBlock,
    other: &'l TreeBlock,
    /// By how much the slots differ.
    shift: isize,
}

impl<'l> Beside<'l> {
    fn new(leaf: &'l TreeBlock, other: &'l TreeBlock) -> Beside<'l> {
        Beside { leaf, other, shift: 0 }
    }

    /// What the other leaf has at the key of a slot of the one.
    fn at(&mut self, slot: usize) -> Option<&'l [u8]> {
        let key = &self.leaf.item_head(slot).key;
        let heads = self.other.item_heads();
        let guess = slot.checked_add_signed(self.shift).and_then(|slot| heads.get(slot));
        if let Some(head) = guess.filter(|head| head.key.as_bytes() == key.as_bytes()) {
            return Some(self.other.data_of(head));
        }
        let found = self.other.search(&self.leaf.key(slot));
        self.shift = found.unwrap_or_else(|slot| slot) as isize - slot as isize;
        Some(self.other.data(found.ok()?))
    }
}
