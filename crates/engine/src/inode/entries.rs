//! The directory entries that one layer of a directory adds and removes.
//!
//! Added entries stand in the order of their indexes, which only grow, so that listing is a merge and adding is a push. By
//! name they are found through their hash, the same that orders the items in the tree; names that share a hash make a
//! chain. An attacker cannot make chains long: names of one hash must fit in one item of the tree, and are refused
//! beyond that.

use std::collections::BTreeSet;
use std::collections::hash_map::Entry::{Occupied, Vacant};
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
    /// The next name of the same hash.
    next: Place,
    /// `buttress_ondisk::item::file_type`.
    pub file_type: u8,
    /// Removed again in the same layer.
    gone: bool,
    /// Whether a layer below or the tree may hold an entry of this name.
    beneath: bool,
}

impl Added {
    fn new(name: Hashed<'_>, entry: Entry, index: u64, beneath: bool) -> Added {
        let Entry { location, file_type } = entry;
        let name = Name::new(name.bytes);
        Added { index, location, name, next: Place::NONE, file_type, gone: false, beneath }
    }
}

/// A name that a layer below or the tree may hold, and that is gone.
#[derive(Clone, Debug)]
struct Hidden {
    /// Empty where the place is not used.
    name: Name,
    /// The next name of the same hash; of a place that is not used, the next such place.
    next: Place,
}

/// Where it stands what a layer says of a name: a slot of `added`, or one of `hidden`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place(u32);

impl Place {
    /// The end of a chain.
    const NONE: Place = Place(u32::MAX);
    const HIDDEN: u32 = 1 << 31;

    /// A layer is committed long before it has 2^31 entries: each counts as more than half a kilobyte that waits.
    fn added(slot: usize) -> Place {
        let slot = u32::try_from(slot).ok().filter(|slot| *slot < Place::HIDDEN);
        Place(slot.expect("a layer has fewer entries"))
    }

    fn hidden(slot: usize) -> Place {
        Place(Place::added(slot).0 | Place::HIDDEN)
    }
}

impl Default for Place {
    fn default() -> Self {
        Place::NONE
    }
}

/// Names of one hash, of which a layer says something.
#[derive(Clone, Copy, Debug)]
pub struct Names {
    /// The hash.
    pub hash: u32,
    first: Place,
}

/// What a layer says of a name.
#[derive(Clone, Copy)]
pub enum Said<'e> {
    /// This entry has it.
    Added(&'e Added),
    /// It is gone.
    Hidden(&'e [u8]),
}

impl<'e> Said<'e> {
    /// The name.
    pub fn name(self) -> &'e [u8] {
        match self {
            Said::Added(added) => added.name.as_bytes(),
            Said::Hidden(name) => name,
        }
    }

    /// The entry that has it.
    pub fn added(self) -> Option<&'e Added> {
        match self {
            Said::Added(added) => Some(added),
            Said::Hidden(_) => None,
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
    /// The first name of each hash. Small, so that a name that is not there costs no look at memory far away.
    by_hash: Spread<u32, Place>,
    /// In the order of indexes.
    added: Vec<Added>,
    /// How many of `added` are gone.
    gone: usize,
    hidden: Vec<Hidden>,
    /// The first place of `hidden` that is not used.
    unused: Place,
    /// Indexes of entries of the layers below and the tree that are gone. A log may give one to another entry, which is in `added` then.
    removed: BTreeSet<u64>,
}

impl Entries {
    /// What this layer knows of a name.
    pub(super) fn find(&self, name: Hashed<'_>) -> Known {
        match self.of_hash(name.hash).find(|said| said.name() == name.bytes) {
            Some(Said::Added(added)) => {
                let entry = Entry { location: added.location, file_type: added.file_type };
                Known::Present(entry, added.index)
            }
            Some(Said::Hidden(_)) => Known::Absent,
            None => Known::Unknown,
        }
    }

    // ---- names of one hash ----

    /// What the layer says of the names with a hash.
    pub(super) fn of_hash(&self, hash: u32) -> impl Iterator<Item = Said<'_>> {
        self.from(self.by_hash.get(&hash).copied().unwrap_or_default())
    }

    /// The same where it is known where it stands.
    pub(super) fn of(&self, names: Names) -> impl Iterator<Item = Said<'_>> {
        self.from(names.first)
    }

    /// The entry added under a hash, if the layer says nothing else of it, and the length of its name. Who asks for several at a time waits
    /// for memory far away once.
    pub(super) fn only_added(&self, names: Names) -> Option<(&Added, usize)> {
        let place = Some(names.first.0).filter(|place| place & Place::HIDDEN == 0)?;
        let added = self.added.get(place as usize)?;
        (added.next == Place::NONE).then(|| (added, added.name.as_bytes().len()))
    }

    /// What stands in a chain from a place on.
    fn from(&self, first: Place) -> impl Iterator<Item = Said<'_>> {
        let mut at = first;
        std::iter::from_fn(move || {
            let (said, next) = self.at_place(at)?;
            at = next;
            Some(said)
        })
    }

    /// What stands at a place, and the next place of its chain.
    fn at_place(&self, place: Place) -> Option<(Said<'_>, Place)> {
        if place.0 & Place::HIDDEN == 0 {
            let added = self.added.get(place.0 as usize)?;
            return Some((Said::Added(added), added.next));
        }
        let hidden = self.hidden.get((place.0 & !Place::HIDDEN) as usize)?;
        Some((Said::Hidden(hidden.name.as_bytes()), hidden.next))
    }

    /// Takes a name out of its chain; where it stood.
    fn unchain(&mut self, name: Hashed<'_>) -> Option<Place> {
        let first = *self.by_hash.get(&name.hash)?;
        let (mut before, mut place) = (Place::NONE, first);
        let next = loop {
            let (said, next) = self.at_place(place)?;
            if said.name() == name.bytes {
                break next;
            }
            (before, place) = (place, next);
        };
        match (before, next) {
            (Place::NONE, Place::NONE) => drop(self.by_hash.remove(&name.hash)),
            (Place::NONE, _) => drop(self.by_hash.insert(name.hash, next)),
            _ => self.set_next(before, next),
        }
        Some(place)
    }

    fn set_next(&mut self, place: Place, next: Place) {
        if place.0 & Place::HIDDEN == 0 {
            self.added[place.0 as usize].next = next;
        } else {
            self.hidden[(place.0 & !Place::HIDDEN) as usize].next = next;
        }
    }

    /// From now on the layer says that a name is gone.
    fn hide(&mut self, name: Hashed<'_>) {
        let kept = Name::new(name.bytes);
        let place = match self.unused {
            Place::NONE => {
                self.hidden.push(Hidden { name: kept, next: Place::NONE });
                Place::hidden(self.hidden.len() - 1)
            }
            place => {
                let unused = &mut self.hidden[(place.0 & !Place::HIDDEN) as usize];
                self.unused =
                    std::mem::replace(unused, Hidden { name: kept, next: Place::NONE }).next;
                place
            }
        };
        let next = self.by_hash.insert(name.hash, place).unwrap_or_default();
        self.set_next(place, next);
    }

    /// The layer says nothing any more of a name that was gone; whether it did.
    fn uncover(&mut self, name: Hashed<'_>) -> bool {
        let is_it = |said: Said<'_>| matches!(said, Said::Hidden(hidden) if hidden == name.bytes);
        if !self.of_hash(name.hash).any(is_it) {
            return false;
        }
        let Some(place) = self.unchain(name) else { return false };
        let unused = Hidden { name: Name::new(&[]), next: self.unused };
        self.hidden[(place.0 & !Place::HIDDEN) as usize] = unused;
        self.unused = place;
        true
    }

    /// Chains all added entries anew, after their slots have changed.
    fn chain_again(&mut self) {
        let hidden = std::mem::take(&mut self.hidden);
        self.unused = Place::NONE;
        self.by_hash.clear();
        for slot in 0..self.added.len() {
            let added = &self.added[slot];
            if !added.gone {
                let hash = Hashed::of(added.name.as_bytes()).hash;
                let next = self.by_hash.insert(hash, Place::added(slot)).unwrap_or_default();
                self.added[slot].next = next;
            }
        }
        let used =
            hidden.iter().map(|hidden| hidden.name.as_bytes()).filter(|name| !name.is_empty());
        used.for_each(|name| self.hide(Hashed::of(name)));
    }

    // ---- entries ----

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

    /// The entry that this layer adds at an index.
    pub(super) fn added_at(&self, index: u64) -> Option<&Added> {
        self.at(index).filter(|added| !added.gone)
    }

    /// Adds an entry under a name that is free; `index` is larger than any before. `beneath`: see [`Added`].
    pub(super) fn add(&mut self, name: Hashed<'_>, entry: Entry, index: u64, beneath: bool) {
        let place = Place::added(self.added.len());
        let mut new = Added::new(name, entry, index, beneath);
        match self.by_hash.entry(name.hash) {
            Vacant(vacant) => drop(vacant.insert(place)),
            Occupied(_) => {
                new.beneath |= self.uncover(name);
                new.next = self.by_hash.insert(name.hash, place).unwrap_or_default();
            }
        }
        self.added.push(new);
    }

    /// The same with any index that is free: the one that a log says. An entry of the layers below that had it stays in `removed`, so
    /// that it does not come back when this one goes.
    pub(super) fn add_at(&mut self, name: Hashed<'_>, entry: Entry, index: u64, beneath: bool) {
        let behind = self.added.partition_point(|added| added.index < index);
        if behind == self.added.len() {
            return self.add(name, entry, index, beneath);
        }
        let beneath = beneath | self.uncover(name);
        while self.added.get(behind).is_some_and(|it| it.index == index) {
            self.gone -= usize::from(self.added.remove(behind).gone);
        }
        self.added.insert(behind, Added::new(name, entry, index, beneath));
        self.chain_again();
    }

    /// Removes the entry of `name` that has `index`, whichever layer it is in. Whether it had taken the place of one of a layer below or
    /// the tree.
    pub(super) fn remove(&mut self, name: Hashed<'_>, index: u64) -> bool {
        match self.slot(index) {
            Some(slot) => self.remove_added(name, slot),
            None => {
                self.removed.insert(index);
                self.hide(name);
                false
            }
        }
    }

    fn remove_added(&mut self, name: Hashed<'_>, slot: usize) -> bool {
        self.unchain(name);
        let added = &mut self.added[slot];
        added.gone = true;
        let beneath = added.beneath;
        if beneath {
            self.hide(name);
        }
        self.gone += 1;
        if self.gone > 32 && self.gone > self.added.len() / 2 {
            self.added.retain(|added| !added.gone);
            self.gone = 0;
            self.chain_again();
        }
        beneath
    }

    /// How many hashes the names have of which it says something.
    pub(super) fn hashes_len(&self) -> usize {
        self.by_hash.len()
    }

    /// These hashes, in no order.
    pub(super) fn all_hashes(&self) -> impl Iterator<Item = u32> {
        self.by_hash.keys().copied()
    }

    /// How many entries it adds and removes.
    pub(super) fn changes(&self) -> usize {
        self.added.len() + self.removed.len()
    }

    /// Bytes that the entries added under `hash` take in an item.
    pub(super) fn weight_of(&self, hash: u32) -> usize {
        let added = self.of_hash(hash).filter_map(Said::added);
        added.map(|added| super::directory::ENTRY_LEN + added.name.as_bytes().len()).sum()
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

    /// All names that the layer says something of, by their hashes, in parts that follow each other; each part by itself is in
    /// no order.
    pub(super) fn hashes(&self) -> Vec<Vec<Names>> {
        let bits = (self.by_hash.len() / PART_LEN).checked_ilog2().unwrap_or(0);
        let mut parts = vec![Vec::new(); 1 << bits];
        for (&hash, &first) in &self.by_hash {
            parts[(u64::from(hash) << bits >> 32) as usize].push(Names { hash, first });
        }
        parts
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::inode::tests::model::Random;

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
    /// Names of which some share a hash.
    fn names() -> Vec<String> {
        let mut seen = Spread::default();
        let mut found: Vec<String> = (0..40).map(|number| format!("name {number}")).collect();
        for number in 0..400_000_u64 {
            let name = format!("{:x}", number.wrapping_mul(0x9e37_79b9_7f4a_7c15));
            if let Some(other) = seen.insert(Hashed::of(name.as_bytes()).hash, name.clone()) {
                found.extend([other, name]);
            }
        }
        found
    }

    /// Names come, go, come again at any index, and hide those of the layer below, as a list of what the layer says has it.
    #[test]
    fn it_says_what_was_done() {
        let names = names();
        assert!(names.len() > 50, "some share a hash");
        let mut random = Random(7);
        let mut entries = Entries::default();
        // What the layer says of a name, and whether there is one beneath.
        let mut model: BTreeMap<&str, (Option<u64>, bool)> = BTreeMap::new();
        let mut index = 10_000;
        for _ in 0..20_000 {
            let name = names[random.below(names.len())].as_str();
            let hashed = Hashed::of(name.as_bytes());
            let said = model.get(name).copied();
            index += 2;
            match said {
                Some((Some(at), beneath)) => {
                    assert_eq!(entries.remove(hashed, at), beneath);
                    model.remove(name);
                    if beneath {
                        model.insert(name, (None, true));
                    }
                }
                // One of the layer below goes.
                None if random.below(3) == 0 => {
                    assert!(!entries.remove(hashed, 999 - model.len() as u64));
                    model.insert(name, (None, true));
                }
                _ => {
                    // A log says indexes that were left out.
                    let at = if random.below(4) == 0 { index - 401 } else { index };
                    if entries.at(at).is_some() {
                        continue;
                    }
                    let beneath = said.is_some() || random.below(4) == 0;
                    match at == index {
                        true => entries.add(hashed, entry(at), at, beneath),
                        false => entries.add_at(hashed, entry(at), at, beneath),
                    }
                    model.insert(name, (Some(at), beneath));
                }
            }
            if index % 64 == 0 {
                check(&entries, &model, &names);
            }
        }
        check(&entries, &model, &names);
    }

    fn check(entries: &Entries, model: &BTreeMap<&str, (Option<u64>, bool)>, names: &[String]) {
        for name in names {
            let expected = match model.get(name.as_str()) {
                Some((Some(at), _)) => Known::Present(entry(*at), *at),
                Some((None, _)) => Known::Absent,
                None => Known::Unknown,
            };
            assert_eq!(entries.find(Hashed::of(name.as_bytes())), expected, "{name}");
        }
        let mut all: Vec<u64> = model.values().filter_map(|(at, _)| *at).collect();
        all.sort_unstable();
        assert!(entries.added().map(|added| added.index).eq(all));
        let said = entries.hashes().concat();
        let said = said.iter().flat_map(|names| entries.of(*names).map(Said::name));
        let said: BTreeSet<&[u8]> = said.collect();
        assert!(said.into_iter().eq(model.keys().map(|name| name.as_bytes())));
    }
}
