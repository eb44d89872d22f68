//! Making, naming, moving, removing.

use std::sync::Arc;

use buttress::{Errno, Node, Rename};

use super::{Body, Directory, Inode, Model, Refusal, Target};

const SET_GID: u32 = 0o2000;

/// The refusal of a name that leads nowhere.
pub(super) fn nobodys(name: &[u8]) -> Refusal {
    if name.len() > 255 { vec![Errno::NAMETOOLONG, Errno::NOENT] } else { vec![Errno::NOENT] }
}

/// What a move has touched.
#[derive(Debug, Default)]
pub struct Moved {
    /// Whose attributes have changed.
    pub touched: Vec<Node>,
    /// What has lost its last name and is gone.
    pub gone: Option<Node>,
}

impl Model {
    fn refuse_name(&self, dir: Node, name: &[u8]) -> Refusal {
        let mut refusal = self.refuse_change(dir);
        if self.lookup(dir, name).is_some() || matches!(name, b"." | b"..") {
            refusal.push(Errno::EXIST);
        }
        if name.len() > 255 {
            refusal.push(Errno::NAMETOOLONG);
        }
        if name.is_empty() {
            refusal.push(Errno::NOENT);
        }
        match self.inode(dir) {
            Some(inode) if inode.directory().is_none() => refusal.push(Errno::NOTDIR),
            Some(inode) if inode.nlink == 0 => refusal.push(Errno::NOENT),
            _ => {}
        }
        refusal
    }

    /// Making something with a name, or without.
    pub fn refuse_create(&self, dir: Node, name: Option<&[u8]>, body: &Body) -> Refusal {
        let mut refusal = match name {
            Some(name) => self.refuse_name(dir, name),
            None => self.refuse_change(dir),
        };
        if let Body::Link(target) = body {
            // The header of a block and of an item, and what stands before the bytes of an inline extent.
            let room = self.nodesize as usize - 101 - 25 - 21;
            match target.len() {
                0 => refusal.push(Errno::NOENT),
                len if len > room.min(4095) => refusal.push(Errno::NAMETOOLONG),
                _ => {}
            }
        }
        refusal
    }

    /// Adds what was made; `new` is what was asked for. Without a name it is held by a handle that the caller adds.
    pub fn create(&mut self, dir: Node, name: Option<&[u8]>, ino: u64, mut new: Inode) {
        let Some(parent) = self.inode(dir) else { return };
        if parent.mode & SET_GID != 0 {
            new.gid = parent.gid;
            new.mode |= if matches!(new.body, Body::Directory(_)) { SET_GID } else { 0 };
        }
        if let Body::Directory(directory) = &mut new.body {
            directory.parent = dir.ino;
        }
        new.nlink = u32::from(name.is_some());
        if let Some(name) = name
            && let Some(parent) = self.directory_mut(dir)
        {
            parent.add(name, Target::Inode(ino));
        }
        if let Some(volume) = self.volumes.get_mut(&dir.subvolume) {
            volume.inodes.insert(ino, Arc::new(new));
        }
    }

    /// Giving a file a name more.
    pub fn refuse_link(&self, node: Node, dir: Node, name: &[u8]) -> Refusal {
        let mut refusal = self.refuse_name(dir, name);
        if node.subvolume != dir.subvolume {
            refusal.push(Errno::XDEV);
        }
        match self.inode(node) {
            Some(inode) if inode.directory().is_some() => refusal.push(Errno::PERM),
            Some(_) => {}
            None => refusal.extend([Errno::NOENT, Errno::PERM]),
        }
        refusal
    }

    /// Gives a file a name more; one that is held and has none gets it back.
    pub fn link(&mut self, node: Node, dir: Node, name: &[u8]) {
        if let Some(parent) = self.directory_mut(dir) {
            parent.add(name, Target::Inode(node.ino));
        }
        if let Some(inode) = self.inode_mut(node) {
            inode.nlink += 1;
        }
    }

    /// Removing a name, of a directory or of something else.
    pub fn refuse_remove(&self, dir: Node, name: &[u8], directory: bool) -> Refusal {
        let mut refusal = self.refuse_change(dir);
        let Some(target) = self.lookup(dir, name) else {
            refusal.extend(nobodys(name));
            return refusal;
        };
        let node = Model::node_of(dir.subvolume, target);
        let inode = self.inode(node);
        let is_directory = inode.is_none_or(|inode| inode.directory().is_some());
        match (directory, is_directory) {
            (true, false) => refusal.push(Errno::NOTDIR),
            (false, true) => refusal.push(Errno::ISDIR),
            (true, true) if inode.is_some_and(|inode| inode.size() > 0) => {
                refusal.push(Errno::NOTEMPTY);
            }
            _ => {}
        }
        refusal
    }

    /// Removes a name; answers what it led to, and whether that is gone.
    pub fn remove(&mut self, dir: Node, name: &[u8]) -> Option<(Node, bool)> {
        let (target, _) = self.directory_mut(dir)?.entries.remove(name)?;
        match target {
            Target::Stub(_) => Some((Model::node_of(dir.subvolume, target), true)),
            Target::Subvolume(id) => {
                self.forget_subvolume(id);
                Some((Node::top(id), true))
            }
            Target::Inode(ino) => {
                let node = Node { ino, ..dir };
                Some((node, self.lose_name(node)))
            }
        }
    }

    /// Takes a link away; `true` when the file is gone with it.
    fn lose_name(&mut self, node: Node) -> bool {
        let held = self.is_held(node);
        let Some(inode) = self.inode_mut(node) else { return true };
        inode.nlink = inode.nlink.saturating_sub(1);
        let gone = inode.nlink == 0 && !held;
        if gone {
            self.forget(node);
        }
        gone
    }

    fn forget(&mut self, node: Node) {
        if let Some(volume) = self.volumes.get_mut(&node.subvolume) {
            volume.inodes.remove(&node.ino);
        }
    }

    /// Holds a file.
    pub fn hold(&mut self, handle: u8, node: Node) {
        self.handles.insert(handle, node);
    }

    /// Ends a hold; a file without a name goes with its last one. Answers the file and whether it is gone.
    pub fn release(&mut self, handle: u8) -> Option<(Node, bool)> {
        let node = self.handles.remove(&handle)?;
        let gone = !self.is_held(node) && self.inode(node).is_none_or(|inode| inode.nlink == 0);
        if gone {
            self.forget(node);
        }
        Some((node, gone))
    }

    fn is_below(&self, subvolume: u64, mut ino: u64, top: u64) -> bool {
        loop {
            if ino == top {
                return true;
            }
            let dir = self.inode(Node { subvolume, ino }).and_then(Inode::directory);
            match dir {
                Some(dir) if dir.parent != ino => ino = dir.parent,
                _ => return false,
            }
        }
    }

    /// Moving a name.
    pub fn refuse_rename(
        &self,
        from: (Node, &[u8]),
        to: (Node, &[u8]),
        how: Rename,
    ) -> Option<Refusal> {
        let mut refusal = self.refuse_change(from.0);
        refusal.extend(self.refuse_change(to.0));
        if to.1.len() > 255 {
            refusal.push(Errno::NAMETOOLONG);
        }
        let Some(moved) = self.lookup(from.0, from.1) else {
            refusal.extend(nobodys(from.1));
            return Some(refusal);
        };
        let other = self.lookup(to.0, to.1);
        match moved {
            Target::Inode(ino) => self.refuse_move(&mut refusal, (ino, from.0), to.0, other, how),
            Target::Subvolume(id) => {
                self.refuse_move_of(&mut refusal, (id, from.0), to.0, other, how);
            }
            Target::Stub(_) => refusal.push(Errno::XDEV),
        }
        let same = other == Some(moved) && from.0.subvolume == to.0.subvolume;
        if same && how != Rename::NoReplace && refusal.is_empty() {
            return None;
        }
        Some(refusal)
    }

    /// The move of a file, with what has the new name.
    fn refuse_move(
        &self,
        refusal: &mut Refusal,
        moved: (u64, Node),
        to: Node,
        other: Option<Target>,
        how: Rename,
    ) {
        let (ino, from) = moved;
        let subvolume = from.subvolume;
        if subvolume != to.subvolume || to.is_stub() {
            refusal.push(Errno::XDEV);
        }
        let kind = |ino| self.inode(Node { subvolume, ino });
        let is_directory = kind(ino).is_some_and(|inode| inode.directory().is_some());
        if subvolume == to.subvolume && is_directory && self.is_below(subvolume, to.ino, ino) {
            refusal.push(Errno::INVAL);
        }
        match (other, how) {
            (None, Rename::Exchange) => refusal.push(Errno::NOENT),
            (Some(_), Rename::NoReplace) => refusal.push(Errno::EXIST),
            (Some(Target::Subvolume(id)), Rename::Exchange) => {
                self.refuse_leaving(refusal, id, from != to);
            }
            (Some(Target::Stub(_)), Rename::Exchange) => refusal.push(Errno::XDEV),
            (Some(Target::Stub(_)), _) if is_directory => {}
            (Some(Target::Subvolume(_) | Target::Stub(_)), _) => {
                refusal.extend([Errno::XDEV, Errno::NOTEMPTY]);
                refusal.extend((!is_directory).then_some(Errno::ISDIR));
            }
            (Some(Target::Inode(other)), _) if other == ino => {}
            (Some(Target::Inode(other)), Rename::Exchange) => {
                if self.is_below(subvolume, from.ino, other) {
                    refusal.push(Errno::INVAL);
                }
            }
            (Some(Target::Inode(other)), _) => {
                let other = self.inode(Node { subvolume: to.subvolume, ino: other });
                self.refuse_replace(refusal, is_directory, other);
            }
            (None, _) => {}
        }
    }

    fn refuse_replace(&self, refusal: &mut Refusal, is_directory: bool, other: Option<&Inode>) {
        let Some(other) = other else { return };
        match (is_directory, other.directory().is_some()) {
            (true, false) => refusal.push(Errno::NOTDIR),
            (false, true) => refusal.push(Errno::ISDIR),
            (true, true) if other.size() > 0 => refusal.push(Errno::NOTEMPTY),
            _ => {}
        }
    }

    /// The move of a subvolume.
    fn refuse_move_of(
        &self,
        refusal: &mut Refusal,
        (id, from): (u64, Node),
        to: Node,
        other: Option<Target>,
        how: Rename,
    ) {
        if matches!(how, Rename::Whiteout { .. }) {
            refusal.push(Errno::XDEV);
            return;
        }
        if self.is_inside(to, id) {
            refusal.push(Errno::INVAL);
        }
        self.refuse_leaving(refusal, id, from != to);
        if to.is_stub() {
            refusal.push(Errno::NOENT);
        }
        match other {
            Some(Target::Subvolume(other)) if other == id && how != Rename::NoReplace => {}
            Some(_) if how == Rename::NoReplace => refusal.push(Errno::EXIST),
            None if how == Rename::Exchange => refusal.push(Errno::NOENT),
            Some(Target::Subvolume(other)) if how == Rename::Exchange => {
                self.refuse_leaving(refusal, other, from != to);
                if self.is_inside(from, other) {
                    refusal.push(Errno::INVAL);
                }
            }
            Some(Target::Inode(other)) if how == Rename::Exchange => {
                if from.subvolume != to.subvolume {
                    refusal.push(Errno::XDEV);
                } else if self.is_below(to.subvolume, from.ino, other) {
                    refusal.push(Errno::INVAL);
                }
            }
            Some(Target::Stub(_)) if how == Rename::Exchange => refusal.push(Errno::XDEV),
            Some(Target::Subvolume(_)) => refusal.push(Errno::NOTEMPTY),
            Some(Target::Inode(ino)) => {
                self.refuse_replace(refusal, true, self.inode(Node { ino, ..to }));
            }
            Some(Target::Stub(_)) | None => {}
        }
    }

    /// A read-only subvolume does not get another directory: its `..` would change.
    fn refuse_leaving(&self, refusal: &mut Refusal, id: u64, leaves: bool) {
        if leaves && self.volumes.get(&id).is_some_and(|volume| volume.read_only) {
            refusal.push(Errno::ROFS);
        }
    }

    /// Moves a name.
    pub fn rename(&mut self, from: (Node, &[u8]), to: (Node, &[u8]), how: Rename) -> Moved {
        let mut moved = Moved { touched: vec![from.0, to.0], gone: None };
        let Some(what) = self.lookup(from.0, from.1) else { return moved };
        let other = self.lookup(to.0, to.1);
        if let Some(dir) = self.directory_mut(from.0) {
            dir.entries.remove(from.1);
        }
        if let Some(other) = other {
            let node = Model::node_of(to.0.subvolume, other);
            if let Some(dir) = self.directory_mut(to.0) {
                dir.entries.remove(to.1);
            }
            match (how == Rename::Exchange, self.lose(node, how)) {
                (false, true) => moved.gone = Some(node),
                _ => moved.touched.push(node),
            }
        }
        moved.touched.push(Model::node_of(from.0.subvolume, what));
        self.arrive(to, what);
        if let (Rename::Exchange, Some(other)) = (how, other) {
            self.arrive(from, other);
        }
        moved
    }

    fn lose(&mut self, node: Node, how: Rename) -> bool {
        how != Rename::Exchange && self.lose_name(node)
    }

    fn arrive(&mut self, place: (Node, &[u8]), target: Target) {
        if let Some(dir) = self.directory_mut(place.0) {
            dir.add(place.1, target);
        }
        match target {
            Target::Subvolume(id) => {
                if let Some(volume) = self.volumes.get_mut(&id) {
                    volume.place = Some((place.0, place.1.to_vec()));
                }
            }
            Target::Inode(ino) => {
                if let Some(Directory { parent, .. }) = self.directory_mut(Node { ino, ..place.0 })
                {
                    *parent = place.0.ino;
                }
            }
            Target::Stub(_) => {}
        }
    }
}
