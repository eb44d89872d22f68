//! What trees have allocated, for simple quotas: added up while references are merged.

use std::collections::BTreeMap;

use buttress_ondisk::objectid;

/// Bytes that trees have allocated, less what of that was freed.
#[derive(Clone, Debug, Default)]
pub struct Owned(BTreeMap<u64, i64>);

impl Owned {
    /// Tree `tree` has allocated so much, or (`is_new` is not set) what it had allocated is free again.
    pub fn add(&mut self, tree: u64, bytes: u64, is_new: bool) {
        if objectid::is_subvolume(tree) {
            let sum = self.0.entry(tree).or_default();
            let bytes = i64::try_from(bytes).unwrap_or(i64::MAX);
            let change = if is_new { bytes } else { -bytes };
            *sum = sum.saturating_add(change);
        }
    }

    /// All of another one, too.
    pub fn append(&mut self, other: &mut Owned) {
        for (tree, bytes) in std::mem::take(&mut other.0) {
            let sum = self.0.entry(tree).or_default();
            *sum = sum.saturating_add(bytes);
        }
    }

    /// By the trees.
    pub fn each(&self) -> impl Iterator<Item = (u64, i64)> {
        self.0.iter().map(|(tree, bytes)| (*tree, *bytes))
    }

    /// Whether nothing has changed.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
