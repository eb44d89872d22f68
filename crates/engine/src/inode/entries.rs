//! The directory entries that one layer of a directory adds and removes.
//!
//! Added entries stand in the order of their indexes, which only grow, so that listing is a merge and adding is a push. By
//! name they are found through their hash, the same that orders the items in the tree; names that share a hash share a
//! bucket. An attacker cannot make buckets long: names of one hash must fit in one item of the tree, and are refused
//! beyond that.

use std::collections::BTreeSet;
use std::ops::Range;

use super::name::{Hashed, Name};
use super::{Entry, Location};
use crate::hash::Spread;

/// Entries that a thread makes the items of at a time: some hundred leaves. Few in tests, so that they have parts.
const PART_LEN: usize = if cfg!(test) { 8 } else { 16 << 10 };

/// An entry that a layer adds.
#[derive(Clone, Debug)]
pub struct Added {
    /// Its index in the directory.
    pub index: u64,
    /// Where it leads.
    pub location: Location,
    /// Its name.
    pub name: Name,
    /// `buttress_ondisk::item::file_type`.
    pub file_type: u8,
    /// Removed again in the same layer.
    gone: bool,
}

/// What a layer says of one name.
#[derive(Clone, Debug)]
pub struct Pending {
    /// The name.
    pub name: Name,
    /// The index of the added entry; 0 when the name is gone.
    pub index: u64,
    /// Whether a layer below or the tree may hold an entry of this name.
    beneath: bool,
}

/// The names that share a hash; nearly always one.
#[derive(Clone, Debug)]
enum Bucket {
    One(Pending),
    Many(Vec<Pending>),
}

impl Bucket {
    fn as_slice(&self) -> &[Pending] {
        match self {
            Bucket::One(pending) => std::slice::from_ref(pending),
            Bucket::Many(pending) => pending,
        }
    }

    fn as_mut_slice(&mut self) -> &mut [Pending] {
        match self {
            Bucket::One(pending) => std::slice::from_mut(pending),
            Bucket::Many(pending) => pending,
        }
    }

    fn push(&mut self, new: Pending) {
        match self {
            Bucket::One(one) => *self = Bucket::Many(vec![one.clone(), new]),
            Bucket::Many(many) => many.push(new),
        }
    }
}

/// What a layer knows of a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Known {
    /// It leads there; the entry's index follows.
    Present(Entry, u64),
    /// It is gone.
    Absent,
    /// The layer says nothing.
    Unknown,
}

/// The changes of one layer to the entries of a directory.
#[derive(Clone, Debug, Default)]
pub struct Entries {
    by_hash: Spread<u32, Bucket>,
    /// In the order of indexes.
    added: Vec<Added>,
    /// How many of `added` are gone.
    gone: usize,
    /// Indexes of entries of the layers below and the tree that are gone. A log may give one to another entry, which is in `added` then.
    removed: BTreeSet<u64>,
}

impl Entries {
    /// What this layer knows of a name.
    pub(super) fn find(&self, name: Hashed<'_>) -> Known {
        let Some(bucket) = self.by_hash.get(&name.hash) else { return Known::Unknown };
        let Some(pending) = bucket.as_slice().iter().find(|it| it.name.as_bytes() == name.bytes)
        else {
            return Known::Unknown;
        };
        match self.at(pending.index) {
            Some(added) => {
                let entry = Entry { location: added.location, file_type: added.file_type };
                Known::Present(entry, added.index)
            }
            None => Known::Absent,
        }
    }

    fn at(&self, index: u64) -> Option<&Added> {
        self.added.get(self.slot(index)?)
    }

    /// Where the added entry with an index is. Mostly no index is left out, so it is as far from the first as its index.
    fn slot(&self, index: u64) -> Option<usize> {
        let near = index.checked_sub(self.added.first()?.index)? as usize;
        if self.added.get(near).is_some_and(|added| added.index == index) {
            return Some(near);
        }
        self.added.binary_search_by_key(&index, |added| added.index).ok()
    }

    /// The same with any index that is free: the one that a log says. An entry of the layers below that had it stays in `removed`, so
    /// that it does not come back when this one goes.
    pub(super) fn add_at(&mut self, name: Hashed<'_>, entry: Entry, index: u64, beneath: bool) {
        let behind = self.added.partition_point(|added| added.index < index);
        let later = self.added.split_off(behind);
        self.gone -= later.iter().filter(|it| it.index == index && it.gone).count();
        self.add(name, entry, index, beneath);
        self.added.extend(later.into_iter().filter(|it| it.index != index));
    }

    /// The entry that this layer adds at an index.
    pub(super) fn added_at(&self, index: u64) -> Option<&Added> {
        self.at(index).filter(|added| !added.gone)
    }

    /// Adds an entry under a name that is free; `index` is larger than any before. `beneath`: see [`Pending`].
    pub(super) fn add(&mut self, name: Hashed<'_>, entry: Entry, index: u64, beneath: bool) {
        let kept = Name::new(name.bytes);
        let Entry { location, file_type } = entry;
        self.added.push(Added { index, location, name: kept.clone(), file_type, gone: false });
        let new = Pending { name: kept, index, beneath };
        let Some(bucket) = self.by_hash.get_mut(&name.hash) else {
            self.by_hash.insert(name.hash, Bucket::One(new));
            return;
        };
        match bucket.as_mut_slice().iter_mut().find(|it| it.name.as_bytes() == name.bytes) {
            Some(pending) => pending.index = index,
            None => bucket.push(new),
        }
    }

    /// Removes the entry of `name` that has `index`, whichever layer it is in. Whether it had taken the place of one of a layer below or
    /// the tree.
    pub(super) fn remove(&mut self, name: Hashed<'_>, index: u64) -> bool {
        match self.slot(index) {
            Some(slot) => return self.remove_added(name, slot),
            None => {
                self.removed.insert(index);
                let new = Pending { name: Name::new(name.bytes), index: 0, beneath: true };
                match self.by_hash.get_mut(&name.hash) {
                    Some(bucket) => bucket.push(new),
                    None => drop(self.by_hash.insert(name.hash, Bucket::One(new))),
                }
            }
        }
        false
    }

    fn remove_added(&mut self, name: Hashed<'_>, slot: usize) -> bool {
        self.added[slot].gone = true;
        self.gone += 1;
        if self.gone > 32 && self.gone > self.added.len() / 2 {
            self.added.retain(|added| !added.gone);
            self.gone = 0;
        }
        let Some(bucket) = self.by_hash.get_mut(&name.hash) else { return false };
        let Some(at) = bucket.as_slice().iter().position(|it| it.name.as_bytes() == name.bytes)
        else {
            return false;
        };
        let pending = &mut bucket.as_mut_slice()[at];
        pending.index = 0;
        if pending.beneath {
            return true;
        }
        match bucket {
            Bucket::Many(many) if many.len() > 1 => drop(many.swap_remove(at)),
            _ => drop(self.by_hash.remove(&name.hash)),
        }
        false
    }

    /// How many entries it adds and removes.
    pub(super) fn changes(&self) -> usize {
        self.added.len() + self.removed.len()
    }

    /// Bytes that the entries added under `hash` take in an item.
    pub(super) fn weight_of(&self, hash: u32) -> usize {
        let Some(bucket) = self.by_hash.get(&hash) else { return 0 };
        let added = bucket.as_slice().iter().filter(|pending| pending.index != 0);
        added.map(|pending| super::directory::ENTRY_LEN + pending.name.as_bytes().len()).sum()
    }

    /// The first added entry at or after `from`.
    pub(super) fn next(&self, from: u64) -> Option<&Added> {
        let slot = self.added.partition_point(|added| added.index < from);
        self.added[slot..].iter().find(|added| !added.gone)
    }

    /// Whether an entry of the layers below or the tree is gone.
    pub(super) fn hides(&self, index: u64) -> bool {
        self.removed.contains(&index) && self.added_at(index).is_none()
    }

    /// Whether there are so many that the items are made in parts.
    pub(super) fn are_many(&self) -> bool {
        self.by_hash.len() >= PART_LEN
    }

    /// Added entries in the order of their indexes.
    pub(super) fn added(&self) -> impl Iterator<Item = &Added> {
        self.added.iter().filter(|added| !added.gone)
    }

    /// The added entries in parts, as ranges for [`Entries::added_in`].
    pub(super) fn parts_of_added(&self) -> impl Iterator<Item = Range<usize>> {
        let len = self.added.len();
        (0..len).step_by(PART_LEN).map(move |from| from..(from + PART_LEN).min(len))
    }

    /// The added entries of a part, in the order of their indexes.
    pub(super) fn added_in(&self, part: Range<usize>) -> impl Iterator<Item = &Added> {
        self.added.get(part).unwrap_or_default().iter().filter(|added| !added.gone)
    }

    /// Indexes that are gone, in order.
    pub(super) fn removed(&self) -> impl DoubleEndedIterator<Item = u64> {
        self.removed.iter().copied()
    }

    /// The hashes of all names that the layer says something of, in parts that follow each other; each part by itself is in
    /// no order.
    pub(super) fn hashes(&self) -> Vec<Vec<u32>> {
        let bits = (self.by_hash.len() / PART_LEN).checked_ilog2().unwrap_or(0);
        let mut parts = vec![Vec::new(); 1 << bits];
        for &hash in self.by_hash.keys() {
            parts[(u64::from(hash) << bits >> 32) as usize].push(hash);
        }
        parts
    }

    /// What the layer says of the names with a hash.
    pub(super) fn of_hash(&self, hash: u32) -> &[Pending] {
        self.by_hash.get(&hash).map_or(&[], Bucket::as_slice)
    }

    /// The entry that a [`Pending`] adds.
    pub(super) fn of(&self, pending: &Pending) -> Option<&Added> {
        if pending.index == 0 { None } else { self.at(pending.index) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(ino: u64) -> Entry {
        Entry { location: Location::Inode(ino), file_type: 1 }
    }

    #[test]
    fn names_that_share_a_hash_are_told_apart() {
        let (a, b) = (Hashed { bytes: b"a", hash: 7 }, Hashed { bytes: b"b", hash: 7 });
        let mut entries = Entries::default();
        entries.add(a, entry(300), 2, false);
        entries.add(b, entry(301), 3, false);
        assert_eq!(entries.find(a), Known::Present(entry(300), 2));
        assert_eq!(entries.find(b), Known::Present(entry(301), 3));
        assert_eq!(entries.weight_of(7), 62);
        entries.remove(a, 2);
        assert_eq!(entries.find(a), Known::Unknown);
        assert_eq!(entries.find(b), Known::Present(entry(301), 3));
        entries.remove(b, 3);
        assert!(entries.by_hash.is_empty());
    }

    #[test]
    fn a_name_of_the_tree_stays_hidden_when_it_comes_and_goes() {
        let name = Hashed::of(b"file");
        let mut entries = Entries::default();
        entries.remove(name, 5);
        assert_eq!(entries.find(name), Known::Absent);
        entries.add(name, entry(300), 9, true);
        assert_eq!(entries.find(name), Known::Present(entry(300), 9));
        entries.remove(name, 9);
        assert_eq!(entries.find(name), Known::Absent);
        assert!(entries.hides(5) && !entries.hides(9));
        assert_eq!(entries.next(0).map(|added| added.index), None);
    }

    #[test]
    fn coming_and_going_does_not_pile_up() {
        let mut entries = Entries::default();
        for index in 2..10_000 {
            let name = Hashed::of(b"temporary");
            entries.add(name, entry(index), index, false);
            entries.remove(name, index);
        }
        assert!(entries.added.len() < 100);
    }
}
