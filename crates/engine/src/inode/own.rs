//! How many leaves of a deletion snapshots may share.
//!
//! Whoever deletes below a snapshot may have to copy each leaf that he touches, and each copy adds references to all that it names. That
//! is what he has to be promised, though most of what is deleted is nobody else's. Where there is no room for it, somebody looks: at the
//! leaves themselves, and at those behind them, which they may take in. What is younger than the last snapshot is shared with nobody.
//!
//! What was committed last is looked at. A commit under way only makes blocks younger, and who makes something shared meanwhile has what was
//! seen forgotten (`space/reserve.rs`).
//!
//! Crash argument: nothing is changed here.

use buttress_ondisk::{Key, kind, objectid};

use super::Inode;
use super::link::{Locked, entry_index, still_there};
use super::name::Hashed;
use super::tree::FileTree;
use crate::error::Result;
use crate::refs::may_be_shared;
use crate::txn::Op;

/// Of a file with more leaves, all of them may be shared.
const LEAVES_MAX: u32 = 1024;

impl FileTree {
    /// Leaves of a file, at most, that snapshots may share: all that it has, its orphan item's included.
    pub fn shared_leaves_of_file(&self, op: &Op<'_>, ino: u64) -> Result<u32> {
        if self.root().is_none() {
            return Ok(0);
        }
        let orphan = self.is_shared_at(op, &Key::new(objectid::ORPHAN, kind::ORPHAN_ITEM, ino))?;
        let mut shared = u32::from(orphan.0);
        let mut from = Key::new(ino, 0, 0);
        for _ in 0..LEAVES_MAX {
            let (is_shared, next) = self.is_shared_at(op, &from)?;
            shared += u32::from(is_shared);
            match next.filter(|next| next.objectid <= ino) {
                Some(next) => from = next,
                None => return Ok(shared),
            }
        }
        Ok(u32::MAX)
    }

    /// The same of the leaves that have an inode and one of its xattrs.
    pub fn shared_leaves_of_xattr(&self, op: &Op<'_>, ino: u64, name: &[u8]) -> Result<u32> {
        let hash = Hashed::known(name)?.hash;
        self.shared_among(op, ino, [(kind::INODE_ITEM, 0), (kind::XATTR_ITEM, hash.into())])
    }

    /// Of the leaves that have these items of an inode, how many may be shared.
    fn shared_among<const N: usize>(
        &self,
        op: &Op<'_>,
        ino: u64,
        items: [(u8, u64); N],
    ) -> Result<u32> {
        if self.root().is_none() {
            return Ok(0);
        }
        items.into_iter().try_fold(0, |shared: u32, (kind, offset)| {
            let (is_shared, _) = self.is_shared_at(op, &Key::new(ino, kind, offset))?;
            Ok(shared.saturating_add(is_shared.into()))
        })
    }

    /// The same of what `name` of a directory leads to, and of the leaves that lose the name.
    pub fn shared_leaves_of_entry(&self, op: &Op<'_>, dir: &Inode, name: &[u8]) -> Result<u32> {
        let name = Hashed::known(name)?;
        let (target, _) = self.target(op, dir, name, false)?;
        let view = self.view(op.core);
        let index = {
            let mut locked = Locked::new([Some(dir), Some(&target), None, None]);
            match still_there(locked.of(dir), dir, &view, name, &target)? {
                Some(found) => {
                    entry_index(found, locked.of(&target), &target, &view, dir.ino, name)?
                }
                None => return Ok(u32::MAX),
            }
        };
        let items =
            [(kind::INODE_ITEM, 0), (kind::DIR_ITEM, name.hash.into()), (kind::DIR_INDEX, index)];
        let of_dir = self.shared_among(op, dir.ino, items)?;
        Ok(self.shared_leaves_of_file(op, target.ino)?.saturating_add(of_dir))
    }

    /// Whether what a change at `key` replaces may be shared, and where the leaf behind starts.
    fn is_shared_at(&self, op: &Op<'_>, key: &Key) -> Result<(bool, Option<Key>)> {
        let (last, mut shared) = (self.last_snapshot(), false);
        let show = &mut |block: &_| shared |= may_be_shared(block, last);
        let next = self.view(op.core).show_way(key, show)?;
        Ok((shared, next))
    }
}
