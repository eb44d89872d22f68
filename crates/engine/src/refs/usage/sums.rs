//! What was counted, and what follows from it.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::AddAssign;

use super::Shared;
use crate::refs::root_set::{RootSet, RootSets};

/// Bytes of data extents and of tree blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bytes {
    /// Of data extents, as they are on the disk, copies by the profile not counted.
    pub data: u64,
    /// Of tree blocks.
    pub metadata: u64,
}

impl Bytes {
    /// Both together.
    pub fn sum(&self) -> u64 {
        self.data.saturating_add(self.metadata)
    }
}

impl AddAssign for Bytes {
    fn add_assign(&mut self, more: Bytes) {
        self.data = self.data.saturating_add(more.data);
        self.metadata = self.metadata.saturating_add(more.metadata);
    }
}

/// What a subvolume takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Share {
    /// What it refers to, alone or with others.
    pub referenced: Bytes,
    /// What no other subvolume refers to.
    pub exclusive: Bytes,
    /// Whether it is deleted; its space comes back by and by.
    pub deleted: bool,
}

/// What the subvolumes of a filesystem take. Made by a [`super::Pass`].
#[derive(Debug)]
pub struct Costs {
    sets: RootSets,
    /// By who reaches it.
    sums: Vec<(RootSet, Bytes)>,
    shares: BTreeMap<u64, Share>,
}

impl Costs {
    pub(super) fn new(shared: Shared) -> Costs {
        let Shared { trees, sets, costs, .. } = shared;
        let mut shares: BTreeMap<u64, Share> = trees
            .values()
            .map(|tree| (tree.id, Share { deleted: tree.deleted, ..Share::default() }))
            .collect();
        let sums: Vec<(RootSet, Bytes)> = costs.into_iter().collect();
        for (set, bytes) in &sums {
            let alone = sets.len(*set) == 1;
            for tree in sets.trees(*set) {
                let Some(share) = shares.get_mut(&tree) else { continue };
                share.referenced += *bytes;
                if alone {
                    share.exclusive += *bytes;
                }
            }
        }
        Costs { sets, sums, shares }
    }

    /// The subvolumes by their ids, the top one (5) and those that are deleted and not gone yet among them.
    pub fn subvolumes(&self) -> impl Iterator<Item = (u64, &Share)> {
        self.shares.iter().map(|(id, share)| (*id, share))
    }

    /// What subvolume `id` takes.
    pub fn subvolume(&self, id: u64) -> Option<&Share> {
        self.shares.get(&id)
    }

    /// What all subvolumes take together, each thing once.
    pub fn total(&self) -> Bytes {
        self.sum_of(|_, _| true)
    }

    /// What of it several subvolumes refer to, each thing once.
    pub fn shared(&self) -> Bytes {
        self.sum_of(|sets, set| sets.len(set) > 1)
    }

    /// What would be free if these subvolumes were deleted: what no other refers to. Those that are deleted already go anyway: what they have
    /// for themselves is not counted, and what only they share with these is.
    pub fn freed_by(&self, ids: &[u64]) -> Bytes {
        let ids: BTreeSet<u64> = ids.iter().copied().collect();
        let goes =
            |tree| ids.contains(&tree) || self.shares.get(&tree).is_some_and(|it| it.deleted);
        let asked =
            |tree| ids.contains(&tree) && self.shares.get(&tree).is_some_and(|it| !it.deleted);
        self.sum_of(|sets, set| sets.trees(set).all(goes) && sets.trees(set).any(asked))
    }

    /// What any of these subvolumes refers to, and what no other refers to: what a quota group of them has. Deleted ones count until they
    /// are gone.
    pub fn of_group(&self, ids: &BTreeSet<u64>) -> [Bytes; 2] {
        let is_in = |tree| ids.contains(&tree);
        let referenced = self.sum_of(|sets, set| sets.trees(set).any(is_in));
        [referenced, self.sum_of(|sets, set| sets.trees(set).all(is_in))]
    }

    fn sum_of(&self, wanted: impl Fn(&RootSets, RootSet) -> bool) -> Bytes {
        let mut sum = Bytes::default();
        for (set, bytes) in &self.sums {
            if wanted(&self.sets, *set) {
                sum += *bytes;
            }
        }
        sum
    }
}
