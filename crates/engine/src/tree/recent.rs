//! The leaves of a tree that were searched last.
//!
//! Who works in a directory or a file searches the same leaf again and again: its names, inode items and extents are neighbours.
//! So a tree remembers, by objectid, which leaf a search ended in and which keys can only be in it, and the next search there begins at its end.
//! A version of a tree never changes, so that stays true as long as the version is the same one. The leaves belong to the cache of blocks:
//! one that it has let go is searched for again.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Weak};

use buttress_ondisk::{Key, TreeBlock};

use super::Root;
use crate::sync::RwLock;

/// Searches that are remembered; what comes to the same place takes it over.
const PLACES: usize = 64;

#[derive(Debug)]
struct Place {
    root: Root,
    /// Keys from here on
    from: Key,
    /// and before this one can only be in the leaf.
    before: Option<Key>,
    leaf: Weak<TreeBlock>,
    /// Searches of this version that have come here since.
    hits: AtomicU32,
}

/// One search of so many goes the whole way: the cache keeps what it is asked for.
const ASKS: u32 = 64;

/// The leaves of one tree that were searched last.
#[derive(Debug)]
pub struct Recent {
    places: Vec<RwLock<Option<Place>>>,
}

impl Default for Recent {
    fn default() -> Recent {
        Recent { places: (0..PLACES).map(|_| RwLock::default()).collect() }
    }
}

impl Recent {
    fn place(&self, key: &Key) -> &RwLock<Option<Place>> {
        &self.places[(key.objectid % PLACES as u64) as usize]
    }

    /// The leaf of this version that has the key if any has.
    pub(super) fn find(&self, root: Root, key: &Key) -> Option<Arc<TreeBlock>> {
        let place = self.place(key).read();
        let place = place.as_ref().filter(|place| place.root == root)?;
        let inside = place.from <= *key && place.before.is_none_or(|before| *key < before);
        // Two at a time may count as one.
        let hits = place.hits.load(Ordering::Relaxed) + 1;
        place.hits.store(hits, Ordering::Relaxed);
        if inside && hits < ASKS { place.leaf.upgrade() } else { None }
    }

    /// A search for the key ended in this leaf; `before`: what comes behind it starts there.
    pub(super) fn note(&self, root: Root, key: &Key, before: Option<Key>, leaf: &Arc<TreeBlock>) {
        let Some((from, _)) = leaf.span().filter(|(from, _)| from <= key) else { return };
        let leaf = Arc::downgrade(leaf);
        let hits = AtomicU32::new(0);
        // Who finds somebody there does not wait: it is to save time.
        if let Some(mut place) = self.place(key).try_write() {
            *place = Some(Place { root, from, before, leaf, hits });
        }
    }
}
