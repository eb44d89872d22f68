//! Deleting everything, however full the filesystem is.

use super::super::Op;
use super::super::generate::path_of_volume;
use super::{Result, Runner, fail};
use crate::model::{Inode, Model, Target};

impl Runner {
    /// Deletes all there is below the root: subvolumes first, which costs next to nothing. What finds no space is tried again
    /// as long as something else could be deleted.
    pub(super) fn drain(&mut self) -> Result<()> {
        for handle in 0..=u8::MAX {
            self.step(&Op::Release { handle })?;
        }
        let mut left = usize::MAX;
        while self.model().count() + self.model().volumes.len() < left {
            left = self.model().count() + self.model().volumes.len();
            for op in volumes(self.model()) {
                self.step(&op)?;
            }
            self.step(&Op::Clean)?;
            for op in files(self.model()) {
                self.step(&op)?;
            }
            self.step(&Op::Clean)?;
        }
        let root = self.model().inode(self.model().root).map_or(0, Inode::size);
        match root {
            0 => self.compare(),
            _ => fail(format!("{left} files and subvolumes could not be deleted")),
        }
    }
}

/// What makes subvolumes writable and deletes them, the inner ones first.
fn volumes(model: &Model) -> Vec<Op> {
    let ids = model.volumes.keys().filter(|id| **id != model.root.subvolume);
    let mut paths: Vec<String> = ids.filter_map(|id| path_of_volume(model, *id)).collect();
    paths.sort_unstable_by_key(|path| std::cmp::Reverse(path.matches('/').count()));
    let writable = paths.iter().map(|at| Op::ReadOnly { at: at.clone(), on: false });
    let deleted = paths.iter().map(|at| Op::DeleteSubvolume { at: at.clone() });
    writable.chain(deleted).collect()
}

/// What deletes all names below the root, the inner ones first.
fn files(model: &Model) -> Vec<Op> {
    let mut ops = Vec::new();
    let mut rest = vec![(String::new(), model.root)];
    while let Some((path, node)) = rest.pop() {
        let Some(dir) = model.inode(node).and_then(Inode::directory) else { continue };
        for (name, (target, _)) in &dir.entries {
            let at = format!("{path}/{}", String::from_utf8_lossy(name));
            let node = Model::node_of(node.subvolume, *target);
            let is_directory = model.inode(node).is_none_or(|inode| inode.directory().is_some());
            match target {
                Target::Subvolume(_) => continue,
                _ if is_directory => ops.push(Op::Rmdir { at: at.clone() }),
                _ => ops.push(Op::Unlink { at: at.clone() }),
            }
            rest.push((at, node));
        }
    }
    ops.reverse();
    ops
}
