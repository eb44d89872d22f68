//! Moving names.
//!
//! The inodes that the names lead to are found first and locked afterwards, together with the directories; when a name leads
//! elsewhere by then, it starts over. One lock of the tree orders renames between directories, so that the way up from a
//! directory does not change while it is followed.

use std::sync::Arc;

use super::create::{NewInode, NewKind};
use super::link::{Locked, entry_index, still_there};
use super::name::Hashed;
use super::state::State;
use super::tree::FileTree;
use super::{Entry, Inode, Location, TOP};
use crate::error::{Errno, Error, Result};
use crate::tree::View;
use crate::txn::Op;

/// What becomes of the name that something is moved to, and of the one it had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rename {
    /// What has the new name loses it.
    Replace,
    /// The new name must be free (EEXIST).
    NoReplace,
    /// Both change places.
    Exchange,
    /// Like `Replace`, and the old name is given to a whiteout: a character device 0:0.
    Whiteout {
        /// Owner of the whiteout.
        uid: u32,
        /// Group of the whiteout.
        gid: u32,
    },
}

/// One end of a move.
#[derive(Clone, Copy)]
struct End<'a> {
    dir: &'a Arc<Inode>,
    name: Hashed<'a>,
}

/// What stands at one end.
struct Standing {
    inode: Arc<Inode>,
    index: u64,
    entry: Entry,
}

impl FileTree {
    /// Moves `from_name` in `from` to `to_name` in `to`, both in this tree. A name that leads to a subvolume: EXDEV; a directory
    /// into itself or what is below it: EINVAL.
    pub fn rename(
        &self,
        op: &Op<'_>,
        from: &Arc<Inode>,
        from_name: &[u8],
        to: &Arc<Inode>,
        to_name: &[u8],
        mode: Rename,
    ) -> Result<()> {
        self.writable()?;
        let source = End { dir: from, name: Hashed::known(from_name)? };
        let target = End { dir: to, name: Hashed::known(to_name)? };
        for name in [from_name, to_name] {
            if matches!(name, b"." | b"..") {
                return Err(Error::User(Errno::BUSY));
            }
        }
        Hashed::fresh(to_name)?;
        let _order = (from.ino != to.ino).then(|| self.renames.lock());
        while !self.try_rename(op, source, target, mode)? {}
        Ok(())
    }

    /// One attempt; `false` when a name was changed by somebody else meanwhile.
    fn try_rename(
        &self,
        op: &Op<'_>,
        source: End<'_>,
        target: End<'_>,
        mode: Rename,
    ) -> Result<bool> {
        let (moved, entry) = self.target(op, source.dir, source.name, false)?;
        let other = match self.target(op, target.dir, target.name, false) {
            // A subvolume's name is taken, too.
            Ok(_) | Err(Error::User(Errno::XDEV)) if mode == Rename::NoReplace => {
                return Err(Error::User(Errno::EXIST));
            }
            Ok(other) => Some(other),
            // Nor does anything take the place of a subvolume, however empty that is.
            Err(Error::User(Errno::XDEV)) if mode == Rename::Replace => {
                return Err(Error::User(Errno::NOTEMPTY));
            }
            Err(error) if error.errno() != Errno::NOENT => return Err(error),
            Err(error) if mode == Rename::Exchange => return Err(error),
            Err(_) => None,
        };
        if other.as_ref().is_some_and(|(inode, _)| inode.ino == moved.ino) {
            return Ok(true);
        }
        if source.dir.ino != target.dir.ino {
            self.refuse_loop(op, &moved, target.dir)?;
            if let Some((inode, _)) = other.as_ref().filter(|_| mode == Rename::Exchange) {
                self.refuse_loop(op, inode, source.dir)?;
            }
        }
        let other_inode = other.as_ref().map(|(inode, _)| &**inode);
        let mut locked =
            Locked::new([Some(source.dir), Some(target.dir), Some(&moved), other_inode]);
        let view = self.view(op.core);
        let Some(moved) = stand(&mut locked, &view, source, moved.clone(), entry)? else {
            return Ok(false);
        };
        let other = match &other {
            None => {
                let state = locked.of(target.dir);
                state.usable_directory()?;
                if state.find_entry(target.dir.ino, &view, target.name)?.is_some() {
                    return Ok(false);
                }
                None
            }
            Some((inode, entry)) => {
                let Some(other) = stand(&mut locked, &view, target, inode.clone(), *entry)? else {
                    return Ok(false);
                };
                Some(other)
            }
        };
        let moving = Moving { tree: self, op, view, source, target, moved, other };
        moving.check(&mut locked, mode)?;
        moving.carry_out(&mut locked, mode)?;
        Ok(true)
    }

    /// Refuses to move a directory to below itself.
    fn refuse_loop(&self, op: &Op<'_>, moved: &Inode, to: &Inode) -> Result<()> {
        // What the entry says of its type is not to be relied on here.
        if !moved.read().attributes.is_directory() {
            return Ok(());
        }
        let mut at = to.ino;
        let mut steps = 0u32;
        while at != TOP {
            if at == moved.ino {
                return Err(Error::User(Errno::INVAL));
            }
            steps += 1;
            if steps > 1 << 20 {
                return Err(Error::inconsistent(self.id, "directories form a ring", to.ino));
            }
            let dir = self.get(op, at)?;
            at = self.parent_of(op, &dir)?;
        }
        Ok(())
    }
}

/// What stands at an end now that all is locked; `None` when that is another inode than before.
fn stand(
    locked: &mut Locked<'_>,
    view: &View<'_>,
    end: End<'_>,
    inode: Arc<Inode>,
    entry: Entry,
) -> Result<Option<Standing>> {
    let Some(found) = still_there(locked.of(end.dir), end.dir, view, end.name, &inode)? else {
        return Ok(None);
    };
    let index = entry_index(found, locked.of(&inode), &inode, view, end.dir.ino, end.name)?;
    Ok(Some(Standing { inode, index, entry }))
}

/// A move of which all parties are locked.
struct Moving<'a> {
    tree: &'a FileTree,
    op: &'a Op<'a>,
    view: View<'a>,
    source: End<'a>,
    target: End<'a>,
    moved: Standing,
    other: Option<Standing>,
}

impl Moving<'_> {
    /// All that can be refused is refused here, before anything changes.
    fn check(&self, locked: &mut Locked<'_>, mode: Rename) -> Result<()> {
        let exchange = mode == Rename::Exchange;
        let moves_directory = locked.of(&self.moved.inode).attributes.is_directory();
        if let Some(other) = self.other.as_ref().filter(|_| !exchange) {
            may_replace(moves_directory, locked.of(&other.inode))?;
        }
        self.room_at(locked, self.target, &self.moved)?;
        if let Some(other) = self.other.as_ref().filter(|_| exchange) {
            self.room_at(locked, self.source, other)?;
        }
        if matches!(mode, Rename::Whiteout { .. }) {
            let state = locked.of(self.source.dir);
            state.know_next_index(self.source.dir.ino, &self.view)?;
        }
        Ok(())
    }

    fn room_at(&self, locked: &mut Locked<'_>, end: End<'_>, standing: &Standing) -> Result<()> {
        let (ino, name) = (end.dir.ino, end.name);
        let parent = locked.of(end.dir);
        parent.free_for(ino, &self.view, name, true)?;
        parent.know_next_index(ino, &self.view)?;
        let state = locked.of(&standing.inode);
        if state.attributes.nlink > 1 {
            let extref = self.op.core.features.extref;
            state.room_for_name(standing.inode.ino, &self.view, ino, name.bytes, extref)?;
        }
        Ok(())
    }

    fn carry_out(&self, locked: &mut Locked<'_>, mode: Rename) -> Result<()> {
        let Moving { tree, op, source, target, moved, .. } = self;
        locked.of(source.dir).touch(source.dir, tree, op)?;
        locked.of(target.dir).touch(target.dir, tree, op)?;
        locked.of(&moved.inode).touch(&moved.inode, tree, op)?;
        if let Some(other) = &self.other {
            let state = locked.of(&other.inode);
            state.touch(&other.inode, tree, op)?;
            if mode == Rename::Exchange {
                state.live.names.lose(target.dir.ino, other.index, target.name.bytes);
            } else {
                let (dir, index) = (target.dir.ino, other.index);
                tree.take_name(op, &other.inode, state, dir, index, target.name)?;
            }
            locked.of(target.dir).remove_entry(target.name, other.index);
        }
        let state = locked.of(&moved.inode);
        state.live.names.lose(source.dir.ino, moved.index, source.name.bytes);
        locked.of(source.dir).remove_entry(source.name, moved.index);
        self.arrive(locked, *target, moved);
        match (mode, &self.other) {
            (Rename::Exchange, Some(other)) => self.arrive(locked, *source, other),
            (Rename::Whiteout { uid, gid }, _) => self.whiteout(locked, uid, gid)?,
            _ => {}
        }
        locked.of(source.dir).attributes.modified(op.now);
        locked.of(target.dir).attributes.modified(op.now);
        Ok(())
    }

    /// Gives the name at `end` to what stood elsewhere.
    fn arrive(&self, locked: &mut Locked<'_>, end: End<'_>, standing: &Standing) {
        let index = locked.of(end.dir).add_entry(end.name, standing.entry, true);
        let state = locked.of(&standing.inode);
        state.live.names.gain(end.dir.ino, index, end.name.bytes);
        state.attributes.ctime = self.op.now;
    }

    fn whiteout(&self, locked: &mut Locked<'_>, uid: u32, gid: u32) -> Result<()> {
        let End { dir, name } = self.source;
        let new = NewInode { kind: NewKind::Character(0), permissions: 0, uid, gid };
        let parent = locked.of(dir);
        let attributes = new.attributes(self.op, Some(&parent.attributes));
        let mut state = State::created(attributes, self.op.transid);
        let ino = self.tree.next_ino()?;
        let file_type = attributes.file_type();
        let entry = Entry { location: Location::Inode(ino), file_type };
        let index = parent.add_entry(name, entry, true);
        state.live.names.gain(dir.ino, index, name.bytes);
        self.tree.adopt(ino, state);
        Ok(())
    }
}

fn may_replace(moves_directory: bool, other: &State) -> Result<()> {
    match (moves_directory, other.attributes.is_directory()) {
        (true, false) => Err(Error::User(Errno::NOTDIR)),
        (false, true) => Err(Error::User(Errno::ISDIR)),
        (true, true) if other.attributes.size > 0 => Err(Error::User(Errno::NOTEMPTY)),
        _ => Ok(()),
    }
}
