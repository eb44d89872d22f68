//! Names, holds, listing.

use buttress::{Errno, FileKind, New, Node, Rename};

use super::super::{Make, Op, compare};
use super::{Result, Runner, engine, fail, times_of};
use crate::model::{Body, Content, Inode, Model};

impl Runner {
    pub(super) fn name_op(&mut self, op: &Op) -> Result<()> {
        match op {
            Op::Make { at, what, mode, owner } => self.make(at, what, *mode, *owner),
            Op::Temporary { handle, dir, mode } => self.temporary(*handle, dir, *mode),
            Op::Link { from, to } => self.link(from, to),
            Op::Unlink { at } => self.remove(at, false),
            Op::Rmdir { at } => self.remove(at, true),
            Op::Rename { from, to, how } => self.rename(from, to, *how),
            Op::Hold { handle, at } => self.hold(*handle, at),
            Op::Release { handle } => self.release(*handle),
            Op::List { at } => match self.find(at) {
                Some(node) => compare::listing(self.fs(), &self.model, node),
                None => Ok(()),
            },
            Op::Look { at } => self.look(at),
            _ => Ok(()),
        }
    }

    fn make(&mut self, at: &str, what: &Make, mode: u32, owner: u32) -> Result<()> {
        let Some((dir, name)) = self.find_parent(at) else { return Ok(()) };
        let (new, body) = wanted(what, mode, owner);
        let refusal = self.model.refuse_create(dir, Some(name), &body);
        let answer = self.fs().create(dir, name, &new);
        let Some(found) = self.judge(&refusal, true, answer)? else { return Ok(()) };
        let made = Inode { times: times_of(&found), body, ..inode(mode, owner) };
        self.model.create(dir, Some(name), found.node.ino, made);
        self.born(found.node)?;
        self.refresh(&[dir])
    }

    /// A new file has the time of its making.
    fn born(&mut self, node: Node) -> Result<()> {
        let now = self.clock.now();
        let Some(inode) = self.model.inode(node) else { return Ok(()) };
        let times = inode.times;
        let all = [times.atime, times.mtime, times.ctime, times.otime];
        if all.iter().any(|time| !(self.before..=now).contains(time)) {
            return fail(format!("{node:?} was not made now: {times:?}"));
        }
        compare::attributes(self.fs(), &self.model, node)
    }

    fn temporary(&mut self, handle: u8, dir: &str, mode: u32) -> Result<()> {
        let Some(dir) = self.find(dir) else { return Ok(()) };
        self.release(handle)?;
        if self.model.handles.contains_key(&handle) {
            return Ok(());
        }
        if self.model.inode(dir).is_none_or(|dir| dir.nlink == 0 || dir.directory().is_none()) {
            return Ok(());
        }
        let (new, body) = wanted(&Make::File, mode, 0);
        let refusal = self.model.refuse_create(dir, None, &body);
        let answer = self.fs().create_unnamed(dir, &new);
        let Some(found) = self.judge(&refusal, true, answer)? else { return Ok(()) };
        let made = Inode { times: times_of(&found), body, ..inode(mode, 0) };
        self.model.create(dir, None, found.node.ino, made);
        self.model.hold(handle, found.node);
        self.born(found.node)
    }

    fn link(&mut self, from: &str, to: &str) -> Result<()> {
        let Some(node) = self.find(from) else { return Ok(()) };
        let Some((dir, name)) = self.find_parent(to) else { return Ok(()) };
        let refusal = self.model.refuse_link(node, dir, name);
        let answer = self.fs().link(node, dir, name);
        if self.judge(&refusal, true, answer)?.is_some() {
            self.model.link(node, dir, name);
        }
        self.refresh(&[node, dir])
    }

    fn remove(&mut self, at: &str, directory: bool) -> Result<()> {
        let Some((dir, name)) = self.find_parent(at) else { return Ok(()) };
        let refusal = self.model.refuse_remove(dir, name, directory);
        let answer = match directory {
            true => self.fs().rmdir(dir, name),
            false => self.fs().unlink(dir, name),
        };
        let Some(found) = self.judge(&refusal, false, answer)? else { return Ok(()) };
        let Some((node, gone)) = self.model.remove(dir, name) else { return Ok(()) };
        if found != node {
            return fail(format!("removed {found:?} instead of {node:?}"));
        }
        self.release_lost()?;
        if gone && !node.is_stub() && !node.is_top() {
            self.must_be_gone(node)?;
        }
        self.refresh(&[dir, node])
    }

    fn rename(&mut self, from: &str, to: &str, how: Rename) -> Result<()> {
        let Some(from) = self.find_parent(from) else { return Ok(()) };
        let Some(to) = self.find_parent(to) else { return Ok(()) };
        let nothing_to_do = self.model.refuse_rename(from, to, how);
        let refusal = nothing_to_do.clone().unwrap_or_default();
        let answer = self.fs().rename(from.0, from.1, to.0, to.1, how);
        let done = self.judge(&refusal, true, answer)?;
        if done.is_none() || nothing_to_do.is_none() {
            return Ok(());
        }
        let moved = self.model.rename(from, to, how);
        self.release_lost()?;
        if let Some(gone) = moved.gone.filter(|gone| !gone.is_stub()) {
            self.must_be_gone(gone)?;
        }
        self.refresh(&moved.touched)
    }

    fn hold(&mut self, handle: u8, at: &str) -> Result<()> {
        let Some(node) = self.find(at) else { return Ok(()) };
        if node.is_stub() {
            return Ok(());
        }
        // Held before the handle's last file is let go of: that may be the same one.
        let answer = self.fs().hold(node);
        let expected = match self.model.inode(node) {
            Some(_) => Vec::new(),
            None => vec![Errno::NOENT],
        };
        let held = self.judge(&expected, false, answer)?;
        if held.is_some() && self.model.handles.get(&handle) == Some(&node) {
            return engine("release", self.fs().release(node));
        }
        self.release(handle)?;
        if held.is_none() {
            return Ok(());
        }
        if self.model.handles.contains_key(&handle) {
            return engine("release", self.fs().release(node));
        }
        self.model.hold(handle, node);
        Ok(())
    }

    fn release(&mut self, handle: u8) -> Result<()> {
        let Some((node, _)) = self.model.handles.get(&handle).map(|node| (*node, ())) else {
            return Ok(());
        };
        let answer = self.fs().release(node);
        if self.judge(&Vec::new(), false, answer)?.is_none() {
            return Ok(());
        }
        let gone = self.model.release(handle).is_some_and(|(_, gone)| gone);
        if gone { self.must_be_gone(node) } else { Ok(()) }
    }

    /// Lets go of files in subvolumes that were deleted.
    pub(super) fn release_lost(&mut self) -> Result<()> {
        for handle in self.model.lost_handles() {
            let node = self.model.handles.remove(&handle);
            if let Some(node) = node {
                self.goes_on(node)?;
                engine("release in a deleted subvolume", self.fs().release(node))?;
            }
        }
        Ok(())
    }

    /// Who holds a file of a subvolume that was deleted goes on with it, as in Linux; where there is no space left, it may
    /// have had to go.
    fn goes_on(&self, node: Node) -> Result<()> {
        match self.fs().attributes(node) {
            Ok(_) => Ok(()),
            Err(error) if error.errno() == Errno::NOENT && self.is_tight() => Ok(()),
            Err(error) => fail(format!("{node:?} of a deleted subvolume is held: {error}")),
        }
    }

    fn look(&mut self, at: &str) -> Result<()> {
        let Some(node) = self.find(at) else { return Ok(()) };
        compare::file(self.fs(), &self.model, node)?;
        let Some((dir, name)) = self.model.resolve_parent(at).ok() else { return Ok(()) };
        if name.is_empty() {
            return Ok(());
        }
        let found = engine("lookup", self.fs().lookup(dir, name))?;
        let expected = self.model.lookup(dir, name).map(|it| Model::node_of(dir.subvolume, it));
        if found.map(|entry| entry.node) != expected {
            return fail(format!("leads elsewhere than to {expected:?}"));
        }
        let relative = at.trim_start_matches('/').as_bytes();
        let found = engine("resolve", self.fs().resolve_at(self.model.root, relative, false))?;
        if found == node { Ok(()) } else { fail(format!("resolves to {found:?}, not {node:?}")) }
    }
}

/// What the engine is asked to make, and what the model shall hold.
fn wanted(what: &Make, mode: u32, owner: u32) -> (New, Body) {
    let (new, body) = match what {
        Make::File => (New::file(mode), Body::File(Content::default())),
        Make::Directory => (New::directory(mode), Body::Directory(Default::default())),
        Make::Link(target) => {
            (New::symlink(target.as_bytes()), Body::Link(target.clone().into_bytes()))
        }
        Make::Special(kind, rdev) => {
            let new = New { rdev: *rdev, ..New::of(*kind, mode) };
            let kept =
                if matches!(kind, FileKind::Character | FileKind::Block) { *rdev } else { 0 };
            (new, Body::Special(*kind, kept))
        }
    };
    (new.owned(owner, owner), body)
}

fn inode(mode: u32, owner: u32) -> Inode {
    Inode {
        mode,
        uid: owner,
        gid: owner,
        nlink: 1,
        times: Default::default(),
        xattrs: Default::default(),
        body: Body::Link(Vec::new()),
    }
}
