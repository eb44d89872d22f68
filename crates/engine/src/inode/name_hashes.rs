//! The hashes of all names that a directory has, where all are known: of a directory that was made since the filesystem was opened and got
//! its first names together, so that no commit had some of them before there were enough, for as long as it is in memory.
//!
//! Whoever makes a name, or looks for one that is not there, has to know that no leaf has it. The tree has names in the order of their hashes,
//! so each search was in another leaf far away: of a million names that was most of what making a file took. A name whose hash is not
//! here is nowhere, in no layer and in no tree.
//!
//! What is here may be more than there is: a name that has gone leaves its hash behind, as others may have the same. When those are many,
//! or there is no memory left for more ([`Share`]), nothing is known any more, and the tree is searched as it is for all other directories.

use std::sync::Arc;

use crate::hash::Spread;
use crate::txn::{Share, Taken};

/// A directory with fewer names is not worth it. Few in tests, so that it begins where something is going on.
pub(super) const FROM: usize = if cfg!(test) { 2 } else { 8 };

/// So many are kept in memory with their directory, when there are more inodes than are to be: that directory has taken a while to make.
const MANY: usize = 4096;

/// What a directory knows of its names.
#[derive(Debug)]
pub(super) struct NameHashes {
    hashes: Spread<u32, ()>,
    taken: Taken,
    /// Names that have gone and have not come again, about: as many hashes may be of no name.
    gone: usize,
}

/// Bytes of a table with room for so many: a power of two of places, of which one in eight stays free, each with the hash and a byte beside it.
fn bytes_for(names: usize) -> u64 {
    let places = names.saturating_mul(8).div_ceil(7).checked_next_power_of_two();
    places.map_or(u64::MAX, |places| (places as u64).saturating_mul(5).saturating_add(64))
}

impl NameHashes {
    /// All of these, which are `names` at most; `None` where there is no memory for them.
    pub fn of(
        share: &Arc<Share>,
        names: usize,
        all: impl Iterator<Item = u32>,
    ) -> Option<NameHashes> {
        let taken = share.take(bytes_for(names))?;
        let mut hashes = Spread::default();
        hashes.reserve(names);
        hashes.extend(all.map(|hash| (hash, ())));
        Some(NameHashes { hashes, taken, gone: 0 })
    }

    /// Whether they are so many that their directory stays in memory.
    pub fn are_many(&self) -> bool {
        self.hashes.len() >= MANY
    }

    /// Whether some name may have it.
    pub fn has(&self, hash: u32) -> bool {
        self.hashes.contains_key(&hash)
    }

    /// A name comes. When this is false there is no memory for it, and nothing is known from now on.
    #[must_use]
    pub fn add(&mut self, hash: u32) -> bool {
        let len = self.hashes.len();
        if len == self.hashes.capacity() {
            // The old table is there until all has moved.
            let Some(taken) = self.taken.share().take(bytes_for(len.saturating_mul(2))) else {
                return false;
            };
            self.hashes.reserve(len);
            self.taken = taken;
        }
        if self.hashes.insert(hash, ()).is_some() {
            self.gone = self.gone.saturating_sub(1);
        }
        true
    }

    /// A name goes. When this is false so many have gone that nothing is known from now on.
    #[must_use]
    pub fn lose(&mut self) -> bool {
        self.gone += 1;
        self.gone <= FROM + self.hashes.len() / 2
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_has_what_came_and_takes_no_more_memory_than_it_may() {
        let share = Share::new(bytes_for(7000) + bytes_for(3500));
        let mut known = NameHashes::of(&share, 3, [7, 7, 8].into_iter()).unwrap();
        let hash = |number: u32| number.wrapping_mul(0x9e37_79b9);
        let came = (0..100_000).take_while(|number| known.add(hash(*number))).count() as u32;
        assert!((7000..8000).contains(&came), "{came}");
        assert!((0..came).all(|number| known.has(hash(number))) && known.has(7) && known.has(8));
        assert!(!known.has(9) && (came..10_000).all(|number| !known.has(hash(number))));
        assert!(known.hashes.capacity() <= 7168 * 2 && share.used() == bytes_for(7000));
        drop(known);
        assert_eq!(share.used(), 0);
        let none = NameHashes::of(&share, 100_000, std::iter::empty());
        assert!(none.is_none() && share.used() == 0);
    }

    #[test]
    fn what_has_mostly_gone_is_not_worth_knowing() {
        let share = Share::new(1 << 20);
        let mut known = NameHashes::of(&share, 100, 0..100).unwrap();
        assert!((0..50 + FROM).all(|_| known.lose()));
        assert!(!known.lose());
    }

    /// A file that is written under another name first, again and again.
    #[test]
    fn a_name_that_comes_again_has_not_gone() {
        let share = Share::new(1 << 20);
        let mut known = NameHashes::of(&share, 100, 0..100).unwrap();
        assert!((100..1000).all(|hash| known.add(7) && known.lose() && known.add(hash)));
    }
}
