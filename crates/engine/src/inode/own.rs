//! How many leaves of a deletion snapshots may share.
//!
//! Whoever deletes below a snapshot may have to copy each leaf that he touches, and each copy adds references to all that it names. That
//! is what he has to be promised, though most of what is deleted is nobody else's. Where there is no room for it, somebody looks: at the
//! leaves themselves, and at those behind them, which they may take in. What is younger than the last snapshot is shared with nobody.
//!
//! What was committed last is looked at. A commit under way only makes blocks younger, and who makes something shared meanwhile has what was
//! seen forgotten (`space/reserve.rs`).
//!
//! Where not even that is enough, a deletion may come alone ([`crate::space::Lone`]): then each block that it changes is looked at.
//!
//! Crash argument: nothing is changed here.

use std::collections::BTreeSet;

use buttress_ondisk::{Key, kind, objectid};

use super::Inode;
use super::link::{Locked, entry_index, still_there};
use super::name::Hashed;
use super::tree::FileTree;
use crate::error::Result;
use crate::refs::{Target, child_refs, may_be_shared};
use crate::space::Lone;
use crate::txn::Op;

/// Of a file with more leaves, all of them may be shared.
const LEAVES_MAX: u32 = 1024;
/// Of a file with more leaves besides those for its extents, none is looked at for a deletion that comes alone.
const CLOSE_MAX: u32 = 64;

/// The items of a directory that change when a name goes: kinds and offsets.
type NameItems = [(u8, u64); 3];

fn items_of_name(name: Hashed<'_>, index: u64) -> NameItems {
    [(kind::INODE_ITEM, 0), (kind::DIR_ITEM, name.hash.into()), (kind::DIR_INDEX, index)]
}

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
        let Some((target, items)) = self.items_of_entry(op, dir, name)? else {
            return Ok(u32::MAX);
        };
        let of_dir = self.shared_among(op, dir.ino, items)?;
        Ok(self.shared_leaves_of_file(op, target)?.saturating_add(of_dir))
    }

    /// What a name of a directory leads to, and the directory's items that change when it goes. None when the name has been given to another
    /// file meanwhile.
    fn items_of_entry(
        &self,
        op: &Op<'_>,
        dir: &Inode,
        name: &[u8],
    ) -> Result<Option<(u64, NameItems)>> {
        let name = Hashed::known(name)?;
        let (target, _) = self.target(op, dir, name, false)?;
        let view = self.view(op.core);
        let mut locked = Locked::new([Some(dir), Some(&target), None, None]);
        let Some(found) = still_there(locked.of(dir), dir, &view, name, &target)? else {
            return Ok(None);
        };
        let index = entry_index(found, locked.of(&target), &target, &view, dir.ino, name)?;
        Ok(Some((target.ino, items_of_name(name, index))))
    }

    /// Whether what a change at `key` replaces may be shared, and where the leaf behind starts.
    fn is_shared_at(&self, op: &Op<'_>, key: &Key) -> Result<(bool, Option<Key>)> {
        let (last, mut shared) = (self.last_snapshot(), false);
        let show = &mut |block: &_| shared |= may_be_shared(block, last);
        let next = self.view(op.core).show_way(key, show)?;
        Ok((shared, next))
    }
}

/// What one deletion changes, looked at for one that comes alone.
struct Looking<'l, 'a> {
    tree: &'l FileTree,
    op: &'l Op<'a>,
    /// The file whose extents go.
    ino: u64,
    lone: Lone,
    /// Data extents whose references change.
    extents: BTreeSet<u64>,
}

impl Looking<'_, '_> {
    /// Adds the way to `key`; the first key of its leaf, and where the leaf behind starts.
    fn way(&mut self, key: &Key) -> Result<(Option<Key>, Option<Key>)> {
        let (last, mut first) = (self.tree.last_snapshot(), None);
        let root = self.tree.root().map(|root| root.bytenr);
        let (ino, lone, extents) = (self.ino, &mut self.lone, &mut self.extents);
        let next = self.tree.view(self.op.core).show_path(key, &mut |block| {
            first = (!block.is_empty()).then(|| block.key(0));
            if !lone.way.add(block) {
                return;
            }
            let shared = root != Some(block.bytenr()) && may_be_shared(block, last);
            lone.shared += u64::from(shared);
            child_refs(block, |target| match target {
                Target::Block(bytenr, _) if shared => lone.blocks.push(bytenr),
                Target::Data { bytenr, .. } if shared => {
                    lone.extents.push(bytenr);
                    extents.insert(bytenr);
                }
                Target::Data { bytenr, ino: of, .. } if of == ino => drop(extents.insert(bytenr)),
                Target::Block(..) | Target::Data { .. } => {}
            });
        })?;
        Ok((first, next))
    }

    /// Adds the ways to a file's orphan item and to all that the file has; of its extents, to as many leaves as hold `count` of the last ones.
    /// Whether that could be done.
    fn file(&mut self, count: u32) -> Result<bool> {
        let ino = self.ino;
        self.way(&Key::new(objectid::ORPHAN, kind::ORPHAN_ITEM, ino))?;
        let (mut from, mut leaves) = (Key::new(ino, 0, 0), 0);
        loop {
            let (_, next) = self.way(&from)?;
            leaves += 1;
            match next.filter(|next| next.objectid == ino && next.kind < kind::EXTENT_DATA) {
                Some(_) if leaves > CLOSE_MAX => return Ok(false),
                Some(next) => from = next,
                None => break,
            }
        }
        let mut last = Key::new(ino, kind::EXTENT_DATA, u64::MAX);
        for _ in 0..count {
            let (first, _) = self.way(&last)?;
            let extents = |key: &Key| (key.objectid, key.kind) == (ino, kind::EXTENT_DATA);
            match first.filter(extents).and_then(|first| first.offset.checked_sub(1)) {
                Some(offset) => last = Key::new(ino, kind::EXTENT_DATA, offset),
                None => break,
            }
        }
        Ok(true)
    }

    fn done(mut self) -> Result<Lone> {
        for bytenr in std::mem::take(&mut self.extents) {
            self.op.core.add_leaves_of_extent(&mut self.lone.leaves, bytenr)?;
        }
        Ok(self.lone)
    }
}

impl FileTree {
    fn looking<'l, 'a>(&'l self, op: &'l Op<'a>, ino: u64) -> Looking<'l, 'a> {
        Looking { tree: self, op, ino, lone: Lone::default(), extents: BTreeSet::new() }
    }

    /// What deleting a file changes, or cutting off the last extents of it, which are in `count` leaves at most; nothing where that is too
    /// much to look at.
    pub fn lone_file(&self, op: &Op<'_>, ino: u64, count: u32) -> Result<Option<Lone>> {
        let mut looking = self.looking(op, ino);
        if self.root().is_some() && !looking.file(count)? {
            return Ok(None);
        }
        looking.done().map(Some)
    }

    /// The same of a name of a directory, and what it leads to.
    pub fn lone_entry(
        &self,
        op: &Op<'_>,
        dir: &Inode,
        name: &[u8],
        count: u32,
    ) -> Result<Option<Lone>> {
        let Some((target, items)) = self.items_of_entry(op, dir, name)? else { return Ok(None) };
        let mut looking = self.looking(op, target);
        if self.root().is_some() {
            for (kind, offset) in items {
                looking.way(&Key::new(dir.ino, kind, offset))?;
            }
            if !looking.file(count)? {
                return Ok(None);
            }
        }
        looking.done().map(Some)
    }

    /// The same of the name of subvolume `id`; only the name goes.
    pub fn lone_subvolume_entry(
        &self,
        op: &Op<'_>,
        dir: &Inode,
        name: &[u8],
        id: u64,
    ) -> Result<Lone> {
        let items = self.items_of_subvolume(op, dir, name, id)?;
        let mut looking = self.looking(op, 0);
        if self.root().is_some() {
            for (kind, offset) in items {
                looking.way(&Key::new(dir.ino, kind, offset))?;
            }
        }
        looking.done()
    }

    /// Leaves that may be shared and lose the name of subvolume `id`.
    pub fn shared_leaves_of_subvolume(
        &self,
        op: &Op<'_>,
        dir: &Inode,
        name: &[u8],
        id: u64,
    ) -> Result<u32> {
        self.shared_among(op, dir.ino, self.items_of_subvolume(op, dir, name, id)?)
    }

    fn items_of_subvolume(
        &self,
        op: &Op<'_>,
        dir: &Inode,
        name: &[u8],
        id: u64,
    ) -> Result<NameItems> {
        let (index, name) = (self.subvolume_entry(op, dir, name, id)?, Hashed::known(name)?);
        Ok(items_of_name(name, index))
    }
}
