//! What leaves of two trees name both: data extents that nobody has alone, found without a question for each.
//!
//! Where the heads of all items are the same bytes, what they describe is at the same places, and of that only the few bytes that name an extent are compared ([`Alike`]). These places
//! are found once for all versions of a leaf that are compared one after the other. Else: leaves of
//! snapshots differ in a few items, which are mostly in the same slots as in the leaf that one was copied from. So an item of the other leaf is looked for in the slot that follows from the last
//! one, and items that are the same bytes are not taken apart.

use std::mem::offset_of;
use std::ops::Range;
use std::sync::Arc;

use buttress_ondisk::block::ItemHead;
use buttress_ondisk::item::{FileExtentHead, FileExtentTail};
use buttress_ondisk::{HEADER_LEN, ITEM_LEN, Key, TreeBlock, kind};

use crate::refs::owners::extent_of;
use crate::tree::Finger;

/// Bytes of an item of a file's data from its kind on to the end of the address of what it names.
const NAMING_LEN: usize =
    size_of::<FileExtentHead>() - offset_of!(FileExtentHead, kind) + size_of::<u64>();
const _: () = assert!(offset_of!(FileExtentTail, disk_bytenr) == 0);
/// No extent has this address: it says that there is a hole.
const NONE: u64 = 0;
/// Leaves of another tree that have what one leaf has, at most.
const LEAVES_MAX: usize = 3;

/// Data extents that a leaf names, by the places in files at which it does, in order.
pub type Named = Vec<(Key, u64)>;

/// The slots of a leaf that have files' data, and their heads.
fn of_files(leaf: &TreeBlock) -> impl Iterator<Item = (usize, &ItemHead)> {
    let heads = leaf.item_heads().iter().enumerate();
    heads.filter(|(_, head)| head.key.kind == kind::EXTENT_DATA)
}

/// The data extents that a leaf names, and where.
pub fn named(leaf: &TreeBlock) -> Named {
    of_files(leaf).filter_map(|(slot, _)| named_in(leaf, slot)).collect()
}

/// Those of them that another tree does not name at the same places. What cannot be read names nothing.
pub fn unlike(leaf: &TreeBlock, tree: &mut Finger<'_>) -> Named {
    let (mut rest, mut at) = (Vec::new(), 0);
    for _ in 0..LEAVES_MAX {
        let Some(first) = (at < leaf.len()).then(|| leaf.key(at)) else { break };
        let Ok((other, next)) = tree.leaf_at(&first) else { break };
        if have_same_heads(leaf, &other) {
            unlike_at_places(leaf, &other, &mut rest);
            return rest;
        }
        let end = next.map_or(leaf.len(), |next| leaf.search(&next).unwrap_or_else(|slot| slot));
        // It has the first key in any case.
        let end = end.max(at + 1);
        unlike_in(leaf, at..end, &other, &mut rest);
        at = end;
    }
    rest.extend((at..leaf.len()).filter_map(|slot| named_in(leaf, slot)));
    rest
}

/// What the leaf names that was compared last, for the next one that has the same heads.
#[derive(Debug, Default)]
pub struct Alike {
    /// That leaf's address.
    leaf: Option<u64>,
    /// The slots of files' data, and where in the leaf is what says which extent they name.
    places: Vec<(usize, usize)>,
    /// The addresses of these extents, [`NONE`] where there is none.
    named: Vec<u64>,
}

impl Alike {
    /// The data extents that either of two leaves names and the other one does not at the same place, to `mine` and `others`. Best is to go on with the other one.
    pub fn differing(&mut self, [one, other]: [&TreeBlock; 2], [mine, others]: [&mut Named; 2]) {
        mine.clear();
        others.clear();
        if !have_same_heads(one, other) {
            unlike_in(one, 0..one.len(), other, mine);
            unlike_in(other, 0..other.len(), one, others);
            return;
        }
        if self.leaf != Some(one.bytenr()) {
            self.begin(one);
        }
        for ((slot, place), known) in self.places.iter().zip(&mut self.named) {
            let now = named_at(other, *place);
            if now != *known {
                let before = std::mem::replace(known, now);
                mine.extend(at_slot(one, *slot, before));
                others.extend(at_slot(one, *slot, now));
            }
        }
        self.leaf = Some(other.bytenr());
    }

    fn begin(&mut self, leaf: &TreeBlock) {
        self.places.clear();
        self.places.extend(of_files(leaf).map(|(slot, head)| (slot, naming(head))));
        self.named.clear();
        self.named.extend(self.places.iter().map(|(_, place)| named_at(leaf, *place)));
    }
}

/// What a leaf names that another one with the same heads does not.
fn unlike_at_places(leaf: &TreeBlock, other: &TreeBlock, rest: &mut Named) {
    for (slot, head) in of_files(leaf) {
        let (mine, others) = (named_at(leaf, naming(head)), named_at(other, naming(head)));
        if mine != others {
            rest.extend(at_slot(leaf, slot, mine));
        }
    }
}

/// Whether two leaves have the same keys, and items of the same lengths at the same places.
fn have_same_heads(one: &TreeBlock, other: &TreeBlock) -> bool {
    let heads = HEADER_LEN..HEADER_LEN + one.len() * ITEM_LEN;
    one.len() == other.len() && one.as_bytes().get(heads.clone()) == other.as_bytes().get(heads)
}

/// Where in a leaf the bytes are by which an item of a file's data names an extent: what kind of data it is, and the address.
fn naming(head: &ItemHead) -> usize {
    HEADER_LEN + head.offset.get() as usize + offset_of!(FileExtentHead, kind)
}

/// The extent that is named so there, if it is none of inline data.
#[inline]
fn named_at(leaf: &TreeBlock, place: usize) -> u64 {
    match leaf.as_bytes().get(place..).and_then(|rest| rest.first_chunk::<NAMING_LEN>()) {
        Some([kind, address @ ..]) if *kind != FileExtentHead::INLINE => {
            u64::from_le_bytes(*address)
        }
        _ => NONE,
    }
}

/// What a leaf names in a slot, if that is an extent.
fn at_slot(leaf: &TreeBlock, slot: usize, bytenr: u64) -> Option<(Key, u64)> {
    (bytenr != NONE).then(|| (leaf.key(slot), bytenr))
}

/// Leaves what a tree does not name at the same places. What is in one leaf costs one way through the tree.
pub fn keep_unnamed(rest: &mut Named, tree: &mut Finger<'_>) {
    let mut last: Option<Arc<TreeBlock>> = None;
    rest.retain(|(key, bytenr)| {
        let known = last.as_ref().and_then(|leaf| named_by(leaf, key));
        let named = known.or_else(|| named_by(last.insert(tree.leaf_at(key).ok()?.0), key));
        named != Some(*bytenr)
    });
}

/// The data extent that a leaf names at a place.
fn named_by(leaf: &TreeBlock, key: &Key) -> Option<u64> {
    leaf.search(key).ok().and_then(|slot| named_in(leaf, slot)).map(|(_, bytenr)| bytenr)
}

/// The same of some slots, and of a leaf that has all their keys that the other tree has.
fn unlike_in(leaf: &TreeBlock, slots: Range<usize>, other: &TreeBlock, rest: &mut Named) {
    let mut shift = 0;
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
            continue;
        }
        if let Some(one) = named_in(leaf, slot)
            && data.and_then(extent_of).is_none_or(|it| it.bytenr != one.1)
        {
            rest.push(one);
        }
    }
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

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use buttress_ondisk::build::{LeafBuilder, Stamp};
    use buttress_ondisk::item::{FileExtentHead, FileExtentTail};
    use buttress_ondisk::{Key, TreeBlock, kind};
    use buttress_testkit::ops::rng::Rng;
    use zerocopy::IntoBytes;

    use super::{Alike, Named};

    const FILE: u64 = 300;

    /// An item of a file's data.
    #[derive(Clone, Copy, Debug)]
    enum Data {
        /// So many bytes, all of them this one: they look like any address.
        Inline(usize, u8),
        /// What kind it is, the address, and where in the extent it begins.
        Extent(u8, u64, u64),
    }

    impl Data {
        fn bytes(self, generation: u64) -> Vec<u8> {
            let head = |kind| FileExtentHead {
                generation: generation.into(),
                kind,
                ..FileExtentHead::default()
            };
            match self {
                Data::Inline(len, byte) => {
                    [head(FileExtentHead::INLINE).as_bytes(), &vec![byte; len]].concat()
                }
                Data::Extent(kind, bytenr, offset) => {
                    let tail = FileExtentTail {
                        disk_bytenr: bytenr.into(),
                        disk_num_bytes: 65536.into(),
                        offset: offset.into(),
                        num_bytes: 4096.into(),
                    };
                    [head(kind).as_bytes(), tail.as_bytes()].concat()
                }
            }
        }

        /// What it names.
        fn names(self) -> Option<u64> {
            match self {
                Data::Extent(_, bytenr, _) => Some(bytenr).filter(|bytenr| *bytenr > 0),
                Data::Inline(..) => None,
            }
        }
    }

    type Items = BTreeMap<Key, Data>;

    /// A leaf of these, in which an inode and its xattr come first.
    fn leaf(items: &Items, bytenr: u64, generation: u64) -> TreeBlock {
        let mut leaf = LeafBuilder::new(4096);
        assert!(leaf.push(Key::new(FILE, kind::INODE_ITEM, 0), &[generation as u8; 160]));
        assert!(leaf.push(Key::new(FILE, kind::XATTR_ITEM, 7), &[generation as u8; 53]));
        for (key, data) in items {
            assert!(leaf.push(*key, &data.bytes(generation)));
        }
        let stamp = Stamp {
            fsid: [1; 16],
            chunk_tree_uuid: [2; 16],
            bytenr,
            generation,
            owner: 256,
            flags: 0,
        };
        leaf.finish(&stamp)
    }

    fn some_data(rng: &mut Rng) -> Data {
        match rng.below(6) {
            // Some are as long as the item of an extent.
            0 => Data::Inline(*rng.pick(&[1, 8, 32, 40]), rng.below(3) as u8),
            // Holes name nothing.
            1 => Data::Extent(FileExtentHead::REGULAR, 0, 0),
            2 => Data::Extent(FileExtentHead::PREALLOC, (1 + rng.below(4)) << 16, 0),
            _ => {
                Data::Extent(FileExtentHead::REGULAR, (1 + rng.below(4)) << 16, rng.below(2) << 12)
            }
        }
    }

    /// What some name and others do not at the same place, found the plain way.
    fn unlike(items: &Items, others: &Items) -> Named {
        let names = |items: &Items, key: &Key| items.get(key).and_then(|data| data.names());
        let all = items.keys().filter_map(|key| Some((*key, names(items, key)?)));
        all.filter(|(key, bytenr)| names(others, key) != Some(*bytenr)).collect()
    }

    #[test]
    fn leaves_differ_in_what_the_plain_way_finds() {
        let mut rng = Rng::new(1);
        let (mut same_keys, mut found) = (0, 0);
        let (mut alike, mut mine, mut others) = (Alike::default(), Named::new(), Named::new());
        let mut one = (Items::new(), leaf(&Items::new(), 0, 9));
        for round in 0..20_000 {
            let places = 1 + rng.below(20);
            let at = |place: u64| Key::new(FILE, kind::EXTENT_DATA, place << 12);
            // Most are a version of the one before.
            let mut other = match rng.one_in(4) {
                true => (0..places).map(|place| (at(place), some_data(&mut rng))).collect(),
                false => one.0.clone(),
            };
            for _ in 0..rng.below(4) {
                let place = at(rng.below(places + 1));
                match rng.one_in(5) {
                    true => drop(other.remove(&place)),
                    false => drop(other.insert(place, some_data(&mut rng))),
                }
            }
            let generation = if rng.one_in(2) { 9 } else { 10 };
            let leaf = leaf(&other, (round + 1) << 14, generation);
            alike.differing([&one.1, &leaf], [&mut mine, &mut others]);
            assert_eq!(
                [&mine, &others],
                [&unlike(&one.0, &other), &unlike(&other, &one.0)],
                "round {round}: {:?} and {other:?}",
                one.0
            );
            same_keys += usize::from(one.0.keys().eq(other.keys()));
            found += mine.len();
            // Sometimes it does not go on with the other one.
            if !rng.one_in(8) {
                one = (other, leaf);
            }
        }
        assert!(same_keys > 5000 && found > 5000, "{same_keys} with the same keys, {found} found");
    }
}
