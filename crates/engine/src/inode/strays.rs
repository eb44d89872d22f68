//! Names that the last commit has and the running transaction has taken from what lives on elsewhere.
//!
//! Replay takes a name from whoever had it in the last commit when the log gives it to another inode or says that it is gone, and deletes what
//! has no name left. For what was unlinked that is right. What has moved would be lost, as no log has the new name of an inode of the last
//! commit. So a log never takes one of these names away, nor that of a directory that has had one of them: it goes with all it has there.

use std::collections::BTreeSet;

use super::name::Hashed;

/// So many are told apart at most; with more of them every name is taken for one.
const MAX: usize = 4096;

/// Those of one subvolume.
#[derive(Debug, Default)]
pub(super) struct Strays {
    /// Directory and hash of the name: what has the same one counts as well.
    names: BTreeSet<(u64, u32)>,
    /// Directory and index.
    indexes: BTreeSet<(u64, u64)>,
}

impl Strays {
    /// What had this name and index in `dir` lives on.
    pub(super) fn add(&mut self, dir: u64, index: u64, name: &[u8]) {
        if !self.too_many() {
            self.names.insert((dir, Hashed::of(name).hash));
            self.indexes.insert((dir, index));
        }
    }

    fn too_many(&self) -> bool {
        self.indexes.len() >= MAX
    }

    /// Whether what had this name in `dir` may live on.
    pub(super) fn has_name(&self, dir: u64, name: &[u8]) -> bool {
        self.too_many() || self.names.contains(&(dir, Hashed::of(name).hash))
    }

    /// Whether what had this index in `dir` may live on.
    pub(super) fn has_index(&self, dir: u64, index: u64) -> bool {
        self.too_many() || self.indexes.contains(&(dir, index))
    }

    /// Whether anything that was in `dir` may live on.
    pub(super) fn any_of(&self, dir: u64) -> bool {
        self.too_many() || self.indexes.range((dir, 0)..=(dir, u64::MAX)).next().is_some()
    }

    /// The next transaction begins.
    pub(super) fn clear(&mut self) {
        self.names.clear();
        self.indexes.clear();
    }
}
