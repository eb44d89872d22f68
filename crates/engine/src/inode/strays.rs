//! Names that the last commit has and the running transaction has taken from what lives on elsewhere.
//!
//! Replay takes a name from whoever had it in the last commit when the log gives it to another inode or says that it is gone, and deletes what
//! has no name left. For what was unlinked that is right. What has moved would be lost, unless the log has its new name. Of files it can have
//! that; of subvolumes and directories not, nor of a directory that has gone with such a name in it: replay takes away all it has there.

use std::collections::BTreeMap;

use super::name::Hashed;

/// So many are told apart at most; with more of them every name is taken for one.
const MAX: usize = 4096;

/// What had the name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stray {
    /// This file.
    File(u64),
    /// Something of which the log cannot say where it is.
    Other,
}

/// Those of one subvolume.
#[derive(Debug, Default)]
pub(super) struct Strays {
    /// By directory and hash of the name. Two of the same hash are not told apart.
    names: BTreeMap<(u64, u32), Stray>,
    /// By directory and index.
    indexes: BTreeMap<(u64, u64), Stray>,
}

impl Strays {
    /// What had this name and index in `dir` lives on.
    pub(super) fn add(&mut self, (dir, index): (u64, u64), name: &[u8], stray: Stray) {
        if !self.too_many() {
            let same = |old: &mut Stray| *old = if *old == stray { stray } else { Stray::Other };
            let key = (dir, Hashed::of(name).hash);
            self.names.entry(key).and_modify(same).or_insert(stray);
            self.indexes.insert((dir, index), stray);
        }
    }

    fn too_many(&self) -> bool {
        self.indexes.len() >= MAX
    }

    /// What had this name in `dir` and lives on.
    pub(super) fn by_name(&self, dir: u64, name: &[u8]) -> Option<Stray> {
        let any = || self.names.get(&(dir, Hashed::of(name).hash)).copied();
        if self.too_many() { Some(Stray::Other) } else { any() }
    }

    /// What had one of these indexes in `dir` and lives on.
    pub(super) fn of(&self, dir: u64, indexes: impl Iterator<Item = u64>) -> Vec<Stray> {
        match self.too_many() {
            true => vec![Stray::Other],
            false => indexes.filter_map(|at| self.indexes.get(&(dir, at)).copied()).collect(),
        }
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
