//! Subvolumes and snapshots.

use buttress::{Node, Owner};

use super::super::{Op, compare};
use super::{Result, Runner, inode_of};
use crate::model::Target;

impl Runner {
    pub(super) fn volume_op(&mut self, op: &Op) -> Result<()> {
        match op {
            Op::Subvolume { at, owner } => self.subvolume(at, *owner),
            Op::Snapshot { from, to, read_only } => self.snapshot(from, to, *read_only),
            Op::DeleteSubvolume { at } => self.delete_subvolume(at),
            Op::ReadOnly { at, on } => self.set_read_only(at, *on),
            _ => Ok(()),
        }
    }

    fn subvolume(&mut self, at: &str, owner: u32) -> Result<()> {
        let Some((dir, name)) = self.find_parent(at) else { return Ok(()) };
        let refusal = self.model.refuse_subvolume(dir, name);
        let (owner, groups) =
            (Owner { uid: owner, gid: owner, ..Owner::default() }, self.some_groups()?);
        let answer = self.fs().create_subvolume_in(dir, name, owner, &groups);
        let Some(id) = self.judge(&refusal, true, answer)? else { return Ok(()) };
        let found = super::engine("attributes", self.fs().attributes(Node::top(id)))?;
        let top = super::Inode { mode: 0o755, uid: owner.uid, gid: owner.gid, ..inode_of(&found) };
        self.model.create_subvolume(dir, name, id, top);
        compare::attributes(self.fs(), &self.model, Node::top(id))?;
        self.refresh(&[dir])
    }

    fn snapshot(&mut self, from: &str, to: &str, read_only: bool) -> Result<()> {
        let Some(source) = self.find(from) else { return Ok(()) };
        let Some((dir, name)) = self.find_parent(to) else { return Ok(()) };
        if !source.is_top() || !self.model.volumes.contains_key(&source.subvolume) {
            self.counts.skipped += 1;
            return Ok(());
        }
        let refusal = self.model.refuse_subvolume(dir, name);
        let answer = self.take_snapshot(source.subvolume, dir, name, read_only)?;
        let Some(id) = self.judge(&refusal, true, answer)? else { return Ok(()) };
        self.model.snapshot(source.subvolume, dir, name, id, read_only);
        self.refresh(&[dir])
    }

    fn delete_subvolume(&mut self, at: &str) -> Result<()> {
        let Some((dir, name)) = self.find_parent(at) else { return Ok(()) };
        let target = self.model.lookup(dir, name);
        let refusal = self.model.refuse_delete(dir, name);
        let answer = self.fs().delete_subvolume(dir, name);
        if self.judge(&refusal, false, answer)?.is_none() {
            return Ok(());
        }
        self.model.remove(dir, name);
        self.release_lost()?;
        if let Some(Target::Subvolume(id)) = target {
            self.must_be_gone(Node::top(id))?;
        }
        self.refresh(&[dir])
    }

    fn set_read_only(&mut self, at: &str, on: bool) -> Result<()> {
        let Some(node) = self.find(at) else { return Ok(()) };
        let id = node.subvolume;
        if !node.is_top() || id == self.model.root.subvolume {
            self.counts.skipped += 1;
            return Ok(());
        }
        let answer = self.fs().set_subvolume_read_only(id, on);
        if self.judge(&Vec::new(), true, answer)?.is_some()
            && let Some(volume) = self.model.volumes.get_mut(&id)
        {
            volume.read_only = on;
        }
        Ok(())
    }
}
