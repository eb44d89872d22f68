//! References kept one by one, for the extents of a few sums.

use std::collections::BTreeMap;

use parking_lot::Mutex;

use super::{Reference, References, Referrer, SUMS, Shape};
use crate::seeds::Seeds;

/// Both sides' counts of one referrer, and what each takes the extent for.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Both {
    pub found: u64,
    pub recorded: u64,
    /// The shape in the tree, and another one that was found besides it.
    pub found_as: Option<Shape>,
    pub also_as: Option<Shape>,
}

/// All that is known of an extent.
#[derive(Clone, Debug, Default)]
pub(super) struct Extent {
    /// What its item says it is, if there is one.
    pub item: Option<Shape>,
    /// Who refers to it.
    pub refs: BTreeMap<Referrer, Both>,
}

/// Keeps the references of the extents that belong to chosen sums.
pub(super) struct Records {
    seeds: Seeds,
    wanted: Vec<bool>,
    extents: Mutex<BTreeMap<u64, Extent>>,
}

impl Records {
    /// Keeps nothing but the references of these sums.
    pub fn new(seeds: Seeds, sums: &[usize]) -> Records {
        let mut wanted = vec![false; SUMS];
        for &sum in sums {
            if let Some(it) = wanted.get_mut(sum) {
                *it = true;
            }
        }
        Records { seeds, wanted, extents: Mutex::default() }
    }

    /// What was kept, by address.
    pub fn take(&self) -> BTreeMap<u64, Extent> {
        std::mem::take(&mut self.extents.lock())
    }

    fn wants(&self, bytenr: u64) -> bool {
        self.wanted.get(self.seeds.place(bytenr, SUMS)).copied().unwrap_or(false)
    }
}

impl References for Records {
    fn found(&self, bytenr: u64, reference: &Reference, count: u64) {
        if !self.wants(bytenr) {
            return;
        }
        let mut extents = self.extents.lock();
        let both = extents.entry(bytenr).or_default().refs.entry(reference.by).or_default();
        both.found = both.found.saturating_add(count);
        match both.found_as {
            None => both.found_as = Some(reference.shape),
            Some(shape) if shape != reference.shape => both.also_as = Some(reference.shape),
            Some(_) => {}
        }
    }

    fn recorded(&self, bytenr: u64, reference: &Reference, count: u64) {
        if self.wants(bytenr) {
            let mut extents = self.extents.lock();
            let both = extents.entry(bytenr).or_default().refs.entry(reference.by).or_default();
            both.recorded = both.recorded.saturating_add(count);
        }
    }

    fn item(&self, bytenr: u64, shape: &Shape) {
        if self.wants(bytenr) {
            self.extents.lock().entry(bytenr).or_default().item = Some(*shape);
        }
    }
}
