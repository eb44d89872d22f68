//! Subvolumes and snapshots.

use std::collections::BTreeMap;
use std::sync::Arc;

use buttress::{Errno, Node};

use super::names::nobodys;
use super::{Body, Inode, Model, Refusal, Target, Volume};

impl Model {
    /// Making a subvolume or a snapshot.
    pub fn refuse_subvolume(&self, dir: Node, name: &[u8]) -> Refusal {
        self.refuse_create(dir, Some(name), &Body::Directory(Default::default()))
    }

    fn name_volume(&mut self, id: u64, dir: Node, name: &[u8]) {
        if let Some(parent) = self.directory_mut(dir) {
            parent.add(name, Target::Subvolume(id));
        }
        if let Some(volume) = self.volumes.get_mut(&id) {
            volume.place = Some((dir, name.to_vec()));
        }
    }

    /// Adds an empty subvolume with this top directory.
    pub fn create_subvolume(&mut self, dir: Node, name: &[u8], id: u64, mut top: Inode) {
        if let Body::Directory(directory) = &mut top.body {
            directory.parent = Node::top(id).ino;
        }
        let inodes = BTreeMap::from([(Node::top(id).ino, Arc::new(top))]);
        self.volumes.insert(id, Volume { inodes, read_only: false, place: None });
        self.name_volume(id, dir, name);
    }

    /// Adds a snapshot of `source`: a copy, with stubs where that has subvolumes, without what has no name.
    pub fn snapshot(&mut self, source: u64, dir: Node, name: &[u8], id: u64, read_only: bool) {
        let Some(volume) = self.volumes.get(&source) else { return };
        let mut copy = volume.clone();
        copy.read_only = read_only;
        copy.inodes.retain(|_, inode| inode.nlink > 0);
        for inode in copy.inodes.values_mut() {
            stub_subvolumes(inode);
        }
        self.volumes.insert(id, copy);
        self.name_volume(id, dir, name);
    }

    /// Deleting the subvolume that a name leads to.
    pub fn refuse_delete(&self, dir: Node, name: &[u8]) -> Refusal {
        let mut refusal = self.refuse_change(dir);
        match self.lookup(dir, name) {
            None => refusal.extend(nobodys(name)),
            Some(Target::Inode(_)) => refusal.push(Errno::INVAL),
            Some(Target::Subvolume(id)) if self.has_subvolumes(id) => {
                refusal.push(Errno::NOTEMPTY);
            }
            Some(_) => {}
        }
        refusal
    }

    /// Whether subvolumes have their names in `id`.
    pub fn has_subvolumes(&self, id: u64) -> bool {
        let mut places = self.volumes.values().filter_map(|volume| volume.place.as_ref());
        places.any(|(dir, _)| dir.subvolume == id)
    }

    pub(super) fn forget_subvolume(&mut self, id: u64) {
        self.volumes.remove(&id);
    }

    /// Handles of files in subvolumes that are gone.
    pub fn lost_handles(&self) -> Vec<u8> {
        let lost =
            self.handles.iter().filter(|(_, node)| !self.volumes.contains_key(&node.subvolume));
        lost.map(|(handle, _)| *handle).collect()
    }

    /// Whether `node` is in the subvolume `id` or in one below it.
    pub(super) fn is_inside(&self, node: Node, id: u64) -> bool {
        let mut at = node.subvolume;
        loop {
            if at == id {
                return true;
            }
            match self.volumes.get(&at).and_then(|volume| volume.place.as_ref()) {
                Some((dir, _)) => at = dir.subvolume,
                None => return false,
            }
        }
    }

    /// Everything is closed: what has no name is gone.
    pub fn close(&mut self) {
        self.handles.clear();
        for volume in self.volumes.values_mut() {
            volume.inodes.retain(|_, inode| inode.nlink > 0);
        }
    }
}

fn stub_subvolumes(inode: &mut Arc<Inode>) {
    let has = inode.directory().is_some_and(|dir| {
        dir.entries.values().any(|(target, _)| matches!(target, Target::Subvolume(_)))
    });
    if !has {
        return;
    }
    if let Body::Directory(dir) = &mut Arc::make_mut(inode).body {
        for (target, _) in dir.entries.values_mut() {
            if let Target::Subvolume(id) = *target {
                *target = Target::Stub(id);
            }
        }
    }
}
