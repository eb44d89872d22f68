//! What is known already of one version: each block's owners, and where trees are.
//!
//! Bounded: what has not been asked for during as many new answers as half the room holds is forgotten. That happens between questions
//! only ([`Known::begin`]), never while one is being answered: then each block would not be resolved once but as often as it is met.

use super::super::{RootSet, RootSets};
use super::alone::Alone;
use crate::hash::Spread;
use crate::tree::Root;

/// Bytes that one kept answer takes, about.
const KEPT_BYTES: u64 = 48;
/// The least that is kept.
const BYTES_MIN: u64 = 64 << 10;

/// Answers by number, in two generations: whoever is asked for comes into the young one.
#[derive(Debug)]
pub(super) struct Kept<T> {
    young: Spread<u64, T>,
    old: Spread<u64, T>,
}

impl<T> Default for Kept<T> {
    fn default() -> Kept<T> {
        Kept { young: Spread::default(), old: Spread::default() }
    }
}

impl<T: Copy> Kept<T> {
    pub fn get(&mut self, number: u64) -> Option<T> {
        if let Some(found) = self.young.get(&number) {
            return Some(*found);
        }
        let found = self.old.remove(&number)?;
        self.young.insert(number, found);
        Some(found)
    }

    pub fn put(&mut self, number: u64, answer: T) {
        self.young.insert(number, answer);
    }

    /// Keeps `most` at most, about.
    fn trim(&mut self, most: u64) {
        if self.young.len() as u64 > most / 2 {
            self.old = std::mem::take(&mut self.young);
        }
    }

    fn len(&self) -> u64 {
        (self.young.len() + self.old.len()) as u64
    }
}

/// What is known of one version.
#[derive(Debug)]
pub struct Known {
    /// The root tree of the version.
    version: Option<Root>,
    bytes_max: u64,
    pub(super) alone: Kept<Alone>,
    pub(super) reach: Kept<RootSet>,
    pub(super) trees: Kept<Root>,
    /// The sets of trees that were answered. A [`RootSet`] is of use until the next question.
    pub(super) sets: RootSets,
}

impl Known {
    /// Nothing yet, and `bytes_max` bytes at most between questions, 64 KiB at least.
    pub fn new(bytes_max: u64) -> Known {
        Known {
            version: None,
            bytes_max: bytes_max.max(BYTES_MIN),
            alone: Kept::default(),
            reach: Kept::default(),
            trees: Kept::default(),
            sets: RootSets::default(),
        }
    }

    /// The sets of trees that the last question was answered with.
    pub fn sets(&self) -> &RootSets {
        &self.sets
    }

    /// Bytes of memory that it takes, about.
    pub fn bytes(&self) -> u64 {
        let kept = self.alone.len() + self.reach.len() + self.trees.len();
        kept * KEPT_BYTES + self.sets.bytes()
    }

    /// What is asked from now on is about the version of this root tree.
    pub(super) fn is_of(&mut self, version: Root) {
        if self.version.replace(version) != Some(version) {
            let bytes_max = self.bytes_max;
            *self = Known { version: Some(version), ..Known::new(bytes_max) };
        }
    }

    /// A question begins: what is too much is forgotten.
    pub(super) fn begin(&mut self) {
        let most = self.bytes_max / 4 / KEPT_BYTES;
        self.alone.trim(most);
        self.reach.trim(most);
        self.trees.trim(most);
        if self.sets.bytes() > self.bytes_max / 2 {
            self.reach = Kept::default();
            self.sets.clear();
        }
    }
}
