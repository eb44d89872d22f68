//! How inodes end: holds keep an inode without a name, the last release deletes it, and orphan items tell the next open of the
//! filesystem what a crash has left behind.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use buttress_ondisk::{Key, kind, objectid};

use super::Inode;
use super::state::{Changes, State};
use super::tree::{CLOSED, FileTree};
use crate::error::{Errno, Error, Result};
use crate::txn::Op;

/// Inodes without a name that are looked for at a time.
const ORPHANS_LEN: usize = 256;

impl FileTree {
    /// Keeps the inode alive, named or not, until [`FileTree::release`]. ENOENT when it was deleted already.
    pub fn hold(&self, inode: &Inode) -> Result<()> {
        let state = inode.read();
        state.alive()?;
        self.count_hold()?;
        inode.holds.fetch_add(1, Ordering::AcqRel);
        Ok(())
    }

    /// Counts one more hold. ENOENT when the tree is closed.
    pub(super) fn count_hold(&self) -> Result<()> {
        let more = |held: usize| held.checked_add(1).filter(|held| *held < CLOSED);
        match self.held.fetch_update(Ordering::SeqCst, Ordering::SeqCst, more) {
            Ok(_) => Ok(()),
            Err(_) => Err(Error::User(Errno::NOENT)),
        }
    }

    /// Whether any of its inodes is held.
    pub fn is_held(&self) -> bool {
        !matches!(self.held.load(Ordering::SeqCst), 0 | CLOSED)
    }

    /// From now on none of its inodes can be held; `false` if one is.
    pub fn close(&self) -> bool {
        let closed = self.held.compare_exchange(0, CLOSED, Ordering::SeqCst, Ordering::SeqCst);
        matches!(closed, Ok(_) | Err(CLOSED))
    }

    /// The same whoever holds any.
    pub fn close_to_all(&self) {
        self.held.store(CLOSED, Ordering::SeqCst);
    }

    /// Ends a hold. The last one deletes an inode that has no name. EINVAL where nobody holds it.
    pub fn release(&self, op: &Op<'_>, inode: &Arc<Inode>) -> Result<()> {
        let mut state = inode.write();
        let less = |held: u32| held.checked_sub(1);
        let before = inode.holds.fetch_update(Ordering::AcqRel, Ordering::Acquire, less);
        let before = before.map_err(|_| Error::User(Errno::INVAL))?;
        // Where none is left, the tree was closed in spite of this hold.
        let fewer = |held: usize| held.checked_sub(1).filter(|_| held != CLOSED);
        let _closed = self.held.fetch_update(Ordering::SeqCst, Ordering::SeqCst, fewer);
        if before != 1 || state.dead || state.attributes.nlink > 0 || self.writable().is_err() {
            return Ok(());
        }
        state.note_change(inode, self, op);
        self.leave(op, inode, &mut state);
        Ok(())
    }

    /// To be called when the last name is gone: deletes the inode, or leaves it to its holders.
    pub(super) fn nameless(&self, op: &Op<'_>, inode: &Arc<Inode>, state: &mut State) {
        if inode.is_held() {
            state.live.orphan = Some(true);
        } else {
            self.leave(op, inode, state);
        }
    }

    /// Deletes the inode with all it has. What was allocated goes back when the layer is prepared: somebody may still be
    /// reading it.
    pub(super) fn delete(&self, op: &Op<'_>, inode: &Arc<Inode>, state: &mut State) {
        if state.attributes.is_regular() {
            self.erase(op, inode, state, 0);
            state.attributes.size = 0;
        }
        let created = state.live.created;
        let orphan = if state.orphan { Some(false) } else { None };
        let file = state.live.file.take();
        state.live = Changes { created, deleted: true, orphan, file, ..Changes::default() };
        state.dead = true;
        inode.gone.store(true, Ordering::Release);
        state.attributes.nlink = 0;
        if created {
            self.forget(inode.ino);
        }
    }

    /// The next inodes without a name, from number `from` on, that a crash has left in the tree: some at a time, and none at the
    /// end. To be called when the tree is opened, before anything is unlinked in it.
    pub fn orphans(&self, op: &Op<'_>, from: u64) -> Result<Vec<u64>> {
        let mut found = Vec::new();
        if self.root().is_none() {
            return Ok(found);
        }
        let key = |ino| Key::new(objectid::ORPHAN, kind::ORPHAN_ITEM, ino);
        let mut cursor = self.view(op.core).range(key(from), key(u64::MAX));
        while found.len() < ORPHANS_LEN
            && let Some(item) = cursor.next()?
        {
            found.push(item.key().offset);
        }
        Ok(found)
    }

    /// Deletes one of [`FileTree::orphans`]; one with much data goes in steps, see [`FileTree::take_leaving`].
    pub fn cleanup(&self, op: &Op<'_>, ino: u64) -> Result<()> {
        self.writable()?;
        let inode = match self.get(op, ino) {
            Ok(inode) => inode,
            Err(error) if error.errno() == crate::error::Errno::NOENT => {
                self.note_stale_orphan(ino);
                return Ok(());
            }
            Err(error) => return Err(error),
        };
        let mut state = inode.write();
        state.touch(&inode, self, op)?;
        if state.attributes.nlink > 0 {
            state.live.orphan = Some(false);
            return Ok(());
        }
        if !inode.is_held() {
            self.leave(op, &inode, &mut state);
        }
        Ok(())
    }
}
