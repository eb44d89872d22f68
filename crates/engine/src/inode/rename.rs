//! Moving names.
//!
//! What has a name here is an inode, or a subvolume: of those only the entry is in this tree, and the caller holds what orders
//! their names.
//!
//! The inodes that the names lead to are found first and locked afterwards, together with the directories; when a name leads
//! elsewhere by then, it starts over. One lock of the tree orders renames between directories, so that the way up from a
//! directory does not change while it is followed.

use std::sync::Arc;

use super::create::{NewInode, NewKind};
use super::link::{Link, Locked, entry_index, still_there};
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
pub struct End<'a> {
    dir: &'a Arc<Inode>,
    name: Hashed<'a>,
    subvolume: Option<u64>,
}

impl<'a> End<'a> {
    /// The name `name` in `dir`. It leads to an inode, or nowhere; a subvolume there is refused.
    pub fn new(dir: &'a Arc<Inode>, name: &'a [u8]) -> Result<End<'a>> {
        Ok(End { dir, name: Hashed::known(name)?, subvolume: None })
    }

    /// The same of a name that leads to the subvolume `id`, which stays so until the move is made.
    pub fn of_subvolume(dir: &'a Arc<Inode>, name: &'a [u8], id: u64) -> Result<End<'a>> {
        Ok(End { subvolume: Some(id), ..End::new(dir, name)? })
    }
}

/// What stands at one end: an inode, or a subvolume (`None`).
struct Standing {
    inode: Option<Arc<Inode>>,
    index: u64,
    entry: Entry,
}

impl FileTree {
    /// Moves a name in a directory to another one, both in this tree. A name that leads to a subvolume: EXDEV; a directory
    /// into itself or what is below it: EINVAL.
    pub fn rename(
        &self,
        op: &Op<'_>,
        (from, from_name): (&Arc<Inode>, &[u8]),
        (to, to_name): (&Arc<Inode>, &[u8]),
        mode: Rename,
    ) -> Result<()> {
        self.rename_between(op, End::new(from, from_name)?, End::new(to, to_name)?, mode).map(drop)
    }

    /// The same between ends that may lead to a subvolume: the index that its entry has at the other end is returned. One at
    /// the target that is to be replaced must be a stub.
    pub fn rename_between(
        &self,
        op: &Op<'_>,
        source: End<'_>,
        target: End<'_>,
        mode: Rename,
    ) -> Result<Option<u64>> {
        self.writable()?;
        for name in [source.name.bytes, target.name.bytes] {
            if matches!(name, b"." | b"..") {
                return Err(Error::User(Errno::BUSY));
            }
        }
        Hashed::fresh(target.name.bytes)?;
        let _order = (source.dir.ino != target.dir.ino).then(|| self.renames.lock());
        loop {
            if let Some(index) = self.try_rename(op, source, target, mode)? {
                return Ok(index);
            }
        }
    }

    /// What an end leads to.
    fn at(&self, op: &Op<'_>, end: End<'_>) -> Result<(Option<Arc<Inode>>, Entry)> {
        if let Some(id) = end.subvolume {
            self.subvolume_entry(op, end.dir, end.name.bytes, id)?;
            return Ok((None, Entry::of_subvolume(id)));
        }
        let (inode, entry) = self.target(op, end.dir, end.name, false)?;
        Ok((Some(inode), entry))
    }

    /// One attempt; `None` when a name was changed by somebody else meanwhile.
    fn try_rename(
        &self,
        op: &Op<'_>,
        source: End<'_>,
        target: End<'_>,
        mode: Rename,
    ) -> Result<Option<Option<u64>>> {
        let (moved, entry) = self.at(op, source)?;
        let other = match self.at(op, target) {
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
            Err(error) if mode == Rename::Exchange || target.subvolume.is_some() => {
                return Err(error);
            }
            Err(_) => None,
        };
        let other_inode = other.as_ref().and_then(|(inode, _)| inode.as_deref());
        let moved_inode = moved.as_deref();
        if other.as_ref().is_some_and(|(_, other)| other.location == entry.location) {
            return Ok(Some(None));
        }
        if source.dir.ino != target.dir.ino {
            self.refuse_loop(op, moved_inode, target.dir)?;
            if mode == Rename::Exchange {
                self.refuse_loop(op, other_inode, source.dir)?;
            }
        }
        let mut locked =
            Locked::new([Some(source.dir), Some(target.dir), moved_inode, other_inode]);
        let Some(moved) = self.stand(&mut locked, op, source, moved.clone(), entry)? else {
            return Ok(None);
        };
        let view = self.view(op.core);
        let other = match &other {
            None => {
                let state = locked.of(target.dir);
                state.usable_directory()?;
                if state.find_entry(target.dir.ino, &view, target.name)?.is_some() {
                    return Ok(None);
                }
                None
            }
            Some((inode, entry)) => {
                let other = self.stand(&mut locked, op, target, inode.clone(), *entry)?;
                let Some(other) = other else { return Ok(None) };
                Some(other)
            }
        };
        let mut moving = Moving { tree: self, op, view, source, target, moved, other, taken: true };
        moving.check(&mut locked, mode)?;
        let whiteout = match mode {
            Rename::Whiteout { uid, gid } => Some((self.next_ino()?, uid, gid)),
            _ => None,
        };
        Ok(Some(moving.carry_out(&mut locked, mode, whiteout)))
    }

    /// What stands at an end now that all is locked; `None` when that is another inode than before.
    fn stand(
        &self,
        locked: &mut Locked<'_>,
        op: &Op<'_>,
        end: End<'_>,
        inode: Option<Arc<Inode>>,
        entry: Entry,
    ) -> Result<Option<Standing>> {
        let state = locked.of(end.dir);
        let index = match (&inode, end.subvolume) {
            (Some(inode), _) => {
                let view = self.view(op.core);
                let Some(found) = still_there(state, end.dir, &view, end.name, inode)? else {
                    return Ok(None);
                };
                entry_index(found, locked.of(inode), inode, &view, end.dir.ino, end.name)?
            }
            (None, Some(id)) => self.subvolume_index(op, end.dir.ino, state, end.name, id)?,
            (None, None) => return Ok(None),
        };
        Ok(Some(Standing { inode, index, entry }))
    }

    /// Refuses to move a directory to below itself.
    fn refuse_loop(&self, op: &Op<'_>, moved: Option<&Inode>, to: &Inode) -> Result<()> {
        // A subvolume is not above the tree that its entry is in.
        let Some(moved) = moved else { return Ok(()) };
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

/// A move of which all parties are locked.
struct Moving<'a> {
    tree: &'a FileTree,
    op: &'a Op<'a>,
    view: View<'a>,
    source: End<'a>,
    target: End<'a>,
    moved: Standing,
    other: Option<Standing>,
    /// Layers below or the tree may have an entry of the new name.
    taken: bool,
}

impl Moving<'_> {
    /// All that can be refused is refused here, before anything changes.
    fn check(&mut self, locked: &mut Locked<'_>, mode: Rename) -> Result<()> {
        let exchange = mode == Rename::Exchange;
        let moved = [Some(&self.moved), self.other.as_ref()].into_iter().flatten();
        for inode in moved.filter_map(|standing| standing.inode.as_ref()) {
            locked.of(inode).alive()?;
        }
        if let Some(other) = self.other.as_ref().filter(|_| !exchange) {
            let moves_directory = match &self.moved.inode {
                Some(inode) => locked.of(inode).attributes.is_directory(),
                None => true,
            };
            // A stub is an empty directory.
            let other = other.inode.as_ref().map(|inode| &locked.of(inode).attributes);
            let (is_directory, size) = other.map_or((true, 0), |it| (it.is_directory(), it.size));
            may_replace(moves_directory, is_directory, size)?;
        }
        self.taken = self.room_at(locked, self.target, &self.moved)?;
        if let Some(other) = self.other.as_ref().filter(|_| exchange) {
            self.room_at(locked, self.source, other)?;
        }
        if matches!(mode, Rename::Whiteout { .. }) {
            let state = locked.of(self.source.dir);
            state.know_next_index(self.source.dir.ino, &self.view)?;
        }
        Ok(())
    }

    /// Whether layers below or the tree may have an entry of the name.
    fn room_at(&self, locked: &mut Locked<'_>, end: End<'_>, standing: &Standing) -> Result<bool> {
        let (ino, name) = (end.dir.ino, end.name);
        let parent = locked.of(end.dir);
        let taken = parent.free_for(ino, &self.view, name, true)?;
        parent.know_next_index(ino, &self.view)?;
        let Some(inode) = &standing.inode else { return Ok(taken) };
        let state = locked.of(inode);
        if state.attributes.nlink > 1 {
            let extref = self.op.core.features.extref;
            state.room_for_name(inode.ino, &self.view, ino, name.bytes, extref)?;
        }
        Ok(taken)
    }

    /// Answers the index that the entry of a subvolume has got. It cannot fail: half of a move would be two names, or none.
    fn carry_out(
        &self,
        locked: &mut Locked<'_>,
        mode: Rename,
        whiteout: Option<(u64, u32, u32)>,
    ) -> Option<u64> {
        let Moving { tree, op, source, target, moved, .. } = self;
        locked.of(source.dir).note_change(source.dir, tree, op);
        locked.of(target.dir).note_change(target.dir, tree, op);
        // The first change in a transaction forgets what was noted of the last one.
        let other = self.other.as_ref().and_then(|other| other.inode.as_ref());
        for inode in moved.inode.iter().chain(other) {
            locked.of(inode).note_change(inode, tree, op);
        }
        let exchanged = self.other.as_ref().filter(|_| mode == Rename::Exchange);
        if whiteout.is_some() || exchanged.is_some() {
            tree.note_handed_over(locked.of(source.dir), op.transid);
            if let Some(inode) = &moved.inode {
                tree.note_handed_over(locked.of(inode), op.transid);
            }
        }
        // One that is in the log as a whole comes with its new name when what it replaces goes.
        let comes_along = exchanged.is_none()
            && moved.inode.as_ref().is_some_and(|inode| locked.of(inode).is_logged_whole(op));
        if let Some(other) = self.other.as_ref().filter(|_| !comes_along) {
            tree.note_handed_over(locked.of(target.dir), op.transid);
            if let Some(inode) = &other.inode {
                tree.note_handed_over(locked.of(inode), op.transid);
            }
        }
        match (exchanged, &self.other) {
            (Some(other), _) => self.leave(locked, *target, other),
            (None, Some(other)) => self.replace(locked, other),
            (None, None) => {}
        }
        self.leave(locked, *source, moved);
        op.step("nothing at the source");
        let mut index = self.arrive(locked, *target, moved, self.taken);
        if let Some(other) = exchanged {
            index = index.or(self.arrive(locked, *source, other, true));
        } else if let Some((ino, uid, gid)) = whiteout {
            self.whiteout(locked, ino, uid, gid);
        }
        locked.of(source.dir).attributes.modified(op.now);
        locked.of(target.dir).attributes.modified(op.now);
        index
    }

    /// Takes what has the new name out of the way.
    fn replace(&self, locked: &mut Locked<'_>, other: &Standing) {
        let End { dir, name, .. } = self.target;
        if let Some(inode) = &other.inode {
            let state = locked.of(inode);
            let link = Link { parent: dir.ino, index: other.index, name: name.bytes };
            self.tree.take_name(self.op, inode, state, link);
            self.op.step("an entry of nothing");
        }
        locked.of(dir).remove_entry(name, other.index);
    }

    /// Takes the name at `end` from what goes elsewhere.
    fn leave(&self, locked: &mut Locked<'_>, end: End<'_>, standing: &Standing) {
        let link = Link { parent: end.dir.ino, index: standing.index, name: end.name.bytes };
        if let Some(inode) = &standing.inode {
            let state = locked.of(inode);
            state.live.names.lose(end.dir.ino, standing.index, end.name.bytes);
            self.tree.note_lost_name(inode.ino, state, link);
            self.op.step("an entry of nothing");
        } else {
            self.tree.note_lost_subvolume(link);
        }
        let uncovers = locked.of(end.dir).remove_entry(end.name, standing.index);
        if uncovers && let Some(inode) = &standing.inode {
            let was_logged = locked.of(inode).logged == self.op.transid;
            self.tree.note_uncovered(end.dir, locked.of(end.dir), was_logged);
        }
    }

    /// Gives the name at `end` to what stood elsewhere; the index, if that is a subvolume.
    fn arrive(
        &self,
        locked: &mut Locked<'_>,
        end: End<'_>,
        standing: &Standing,
        taken: bool,
    ) -> Option<u64> {
        let index = locked.of(end.dir).add_entry(self.op, end.name, standing.entry, taken);
        self.op.step("an entry without its inode");
        let Some(inode) = &standing.inode else { return Some(index) };
        let state = locked.of(inode);
        state.live.names.gain(end.dir.ino, index, end.name.bytes, taken);
        state.attributes.ctime = self.op.now;
        None
    }

    fn whiteout(&self, locked: &mut Locked<'_>, ino: u64, uid: u32, gid: u32) {
        let End { dir, name, .. } = self.source;
        let new = NewInode { kind: NewKind::Character(0), permissions: 0, uid, gid };
        let parent = locked.of(dir);
        let attributes = new.attributes(self.op, Some(&parent.attributes));
        let mut state = State::created(attributes, self.op.transid);
        let file_type = attributes.file_type();
        let entry = Entry { location: Location::Inode(ino), file_type };
        let index = parent.add_entry(self.op, name, entry, true);
        self.op.step("an entry without its inode");
        state.live.names.gain(dir.ino, index, name.bytes, true);
        self.tree.adopt(ino, state);
    }
}

fn may_replace(moves_directory: bool, is_directory: bool, size: u64) -> Result<()> {
    match (moves_directory, is_directory) {
        (true, false) => Err(Error::User(Errno::NOTDIR)),
        (false, true) => Err(Error::User(Errno::ISDIR)),
        (true, true) if size > 0 => Err(Error::User(Errno::NOTEMPTY)),
        _ => Ok(()),
    }
}
