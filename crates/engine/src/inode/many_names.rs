//! Several names that a layer gains and loses of one inode. A file may have 65,535: where there are more than a few they are found by hash, or each
//! link and each unlink would look at all that wait for the commit.

use std::collections::{BTreeMap, BTreeSet};

use buttress_codec::crc32c::extref_hash;

use super::names::{EXTREF_LEN, NameChange, REF_LEN};

/// So many are looked at one by one.
const FEW: usize = 16;

/// Changes of names.
#[derive(Clone, Debug, Default)]
pub struct ManyNames {
    changes: Vec<NameChange>,
    /// Made with the first change beyond [`FEW`], and true from then on.
    index: Option<Box<Index>>,
}

/// Where changes are.
#[derive(Clone, Debug, Default)]
struct Index {
    /// The hash that an `INODE_EXTREF` has for the name, and the place of the change.
    by_hash: BTreeSet<(u64, usize)>,
    /// By directory, the bytes that an `INODE_REF` has of the names that are gained there.
    weights: BTreeMap<u64, usize>,
}

fn hash(change: &NameChange) -> u64 {
    extref_hash(change.parent, change.name.as_bytes())
}

fn weight(change: &NameChange) -> usize {
    if change.gained { REF_LEN + change.name.as_bytes().len() } else { 0 }
}

impl Index {
    fn add(&mut self, at: usize, change: &NameChange) {
        self.by_hash.insert((hash(change), at));
        *self.weights.entry(change.parent).or_default() += weight(change);
    }

    fn remove(&mut self, at: usize, change: &NameChange) {
        self.by_hash.remove(&(hash(change), at));
        if let Some(sum) = self.weights.get_mut(&change.parent) {
            *sum = sum.saturating_sub(weight(change));
        }
    }
}

impl ManyNames {
    /// The changes.
    pub fn as_slice(&self) -> &[NameChange] {
        &self.changes
    }

    /// One more, the last.
    pub fn push(&mut self, change: NameChange) {
        let at = self.changes.len();
        if let Some(index) = &mut self.index {
            index.add(at, &change);
        }
        self.changes.push(change);
        if self.index.is_none() && self.changes.len() > FEW {
            let mut index = Box::<Index>::default();
            self.changes.iter().enumerate().for_each(|(at, change)| index.add(at, change));
            self.index = Some(index);
        }
    }

    /// Where changes of names with this hash are, in ascending order, and perhaps others.
    fn places(&self, wanted: u64) -> impl DoubleEndedIterator<Item = (usize, &NameChange)> {
        let found = self.index.iter().flat_map(move |index| {
            index.by_hash.range((wanted, 0)..=(wanted, usize::MAX)).map(|(_, at)| *at)
        });
        let all = if self.index.is_none() { 0..self.changes.len() } else { 0..0 };
        found.chain(all).filter_map(|at| Some((at, self.changes.get(at)?)))
    }

    /// The changes of a name.
    pub fn of<'a>(
        &'a self,
        parent: u64,
        name: &'a [u8],
    ) -> impl Iterator<Item = &'a NameChange> + 'a {
        let found = self.places(extref_hash(parent, name));
        found.map(|(_, change)| change).filter(move |change| change.is(parent, name))
    }

    /// Takes back that a name was gained; whether it was.
    pub fn ungain(&mut self, parent: u64, name: &[u8]) -> bool {
        let mut places = self.places(extref_hash(parent, name));
        let gained = |(_, change): &(usize, &NameChange)| change.gained && change.is(parent, name);
        let Some((at, _)) = places.rfind(gained) else { return false };
        drop(places);
        let last = self.changes.len() - 1;
        let change = self.changes.swap_remove(at);
        if let Some(index) = &mut self.index {
            index.remove(at, &change);
            if let Some(moved) = self.changes.get(at) {
                index.by_hash.remove(&(hash(moved), last));
                index.by_hash.insert((hash(moved), at));
            }
        }
        true
    }

    /// Bytes of the names gained in `parent`, as an `INODE_REF` holds them.
    pub fn weight_in(&self, parent: u64) -> usize {
        match &self.index {
            Some(index) => index.weights.get(&parent).copied().unwrap_or(0),
            None => self.changes.iter().filter(|it| it.parent == parent).map(weight).sum(),
        }
    }

    /// Bytes of the names gained whose `INODE_EXTREF` would be under `wanted`.
    pub fn weight_of(&self, wanted: u64) -> usize {
        let about = self.places(wanted).map(|(_, change)| change);
        let gained = about.filter(|change| change.gained && hash(change) == wanted);
        gained.map(|change| EXTREF_LEN + change.name.as_bytes().len()).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::super::name::Name;
    use super::super::names::Names;
    use super::*;

    /// What is found by hash is what is found by looking at all, whatever comes and goes.
    #[test]
    fn all_are_found() {
        let mut state = 7_u64;
        let mut next = move |below: u64| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % below
        };
        for most in [3, 30, 300] {
            let mut names = Names::default();
            let mut all: Vec<NameChange> = Vec::new();
            for turn in 0..20 * most {
                let (parent, name) = (256 + next(3), format!("name{}", next(most)));
                let bytes = name.as_bytes();
                let change = |gained| NameChange {
                    parent,
                    index: turn,
                    name: Name::new(bytes),
                    gained,
                    taken: false,
                };
                let has = all.iter().rposition(|it| it.gained && it.is(parent, bytes));
                match (has, turn / (5 * most) % 2 == 0 || next(3) == 0) {
                    (None, true) => {
                        names.gain(parent, turn, bytes, false);
                        all.push(change(true));
                    }
                    (Some(at), _) => {
                        names.lose(parent, turn, bytes);
                        all.remove(at);
                    }
                    (None, false) if !all.iter().any(|it| it.is(parent, bytes)) => {
                        names.lose(parent, turn, bytes);
                        all.push(change(false));
                    }
                    (None, false) => {}
                }
                let facts = |changes: &[NameChange]| {
                    let mut facts: Vec<_> = changes
                        .iter()
                        .map(|it| (it.parent, it.name.as_bytes().to_vec(), it.index, it.gained))
                        .collect();
                    facts.sort();
                    facts
                };
                assert_eq!(facts(names.as_slice()), facts(&all));
                let Names::Many(many) = &names else { continue };
                for parent in 256..259 {
                    let of: usize = all.iter().filter(|it| it.parent == parent).map(weight).sum();
                    assert_eq!(many.weight_in(parent), of);
                }
                let hash = extref_hash(parent, bytes);
                let found =
                    |gained| many.of(parent, bytes).filter(|it| it.gained == gained).count();
                let there = |gained| {
                    all.iter().filter(|it| it.gained == gained && it.is(parent, bytes)).count()
                };
                assert_eq!((found(true), found(false)), (there(true), there(false)));
                assert_eq!(many.weight_of(hash), there(true) * (EXTREF_LEN + bytes.len()));
            }
        }
    }
}
