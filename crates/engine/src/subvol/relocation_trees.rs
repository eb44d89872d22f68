//! What an interrupted balance of Linux has left in the root tree and in the tree of relocated data.
//!
//! **Relocation trees.** While Linux moves what is in a block group, each subvolume that reaches it has a *relocation tree*: a snapshot of it in which
//! what moves is copied. Then the two are *merged*: whole subtrees are exchanged between them, so that the subvolume has the new blocks, and the
//! relocation tree the old ones, which goes with it. Every commit in between is whole: the root of the tree has a reference by its own address, all
//! its own blocks refer by theirs, and what it shares with subvolumes has a reference more. So it is dropped as a snapshot is, merged or not: what was
//! exchanged stays so, and what was not lies where it was. Nobody counts what it has, quotas neither.
//!
//! In its root item `refs` says whether Linux would go on with merging: then `drop_progress` is how far that has come, and nothing is gone yet. The
//! commit that drops the first part of any sets `refs` of all of them to zero, as Linux does before it drops one, and `drop_progress` is what it is in
//! any tree that is dropped. Crash argument: before that commit Linux merges all of them, and we drop them from the start; after it, both drop what
//! is left. Were some merged after others are gone, subvolumes would have different copies of what they share, and Linux's quotas not know of it.
//!
//! That is so, too, where Linux was interrupted after it had merged some and not others. What these share they have twice then, as after a
//! defragmentation, until it is written anew; and quotas are counted anew ([`is_half_merged`]).
//!
//! What such a tree names is believed only if the extent tree says so, too ([`Sharing::require`](crate::refs::Sharing::require)): one that somebody has
//! made up must not take from subvolumes what is theirs. It stays then, and that is said.
//!
//! **Relocated data** are gathered in files without names of a tree of their own, one for each block group, as new extents at the places that the old
//! ones had in the group. Leaves of relocation trees refer to the new ones. Such a file goes as any does that a crash has left without a name,
//! extents that a subvolume has by then stay, and the others go with it.
//!
//! The balance item stays. By it, Linux goes on with the balance when it mounts the filesystem the next time, as it would have without us.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use buttress_ondisk::item::{RootItem, extent_flags};
use buttress_ondisk::view::InlineRef;
use buttress_ondisk::{ITEM_LEN, Key, kind, objectid};
use zerocopy::IntoBytes;

use super::drop::{Budget, Dropped, Walk};
use super::forest::{Forest, Subvolume};
use crate::error::{Error, Result};
use crate::refs::Extent;
use crate::tree::View;
use crate::txn::{Commit, Core, root_of};

/// A tree that commits drop, a part at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Doomed {
    /// The relocation tree of this tree.
    Relocation(u64),
    /// A deleted subvolume.
    Subvolume(u64),
}

impl Doomed {
    /// The subvolume, if it is one.
    pub fn subvolume(self) -> Option<u64> {
        match self {
            Doomed::Subvolume(id) => Some(id),
            Doomed::Relocation(_) => None,
        }
    }
}

impl fmt::Display for Doomed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Doomed::Subvolume(id) => write!(f, "deleted subvolume {id}"),
            Doomed::Relocation(of) => {
                write!(f, "the relocation tree that a balance has left of tree {of}")
            }
        }
    }
}

/// The key of the root item of the relocation tree of tree `of`.
fn root_key(of: u64) -> Key {
    Key::new(objectid::TREE_RELOC, kind::ROOT_ITEM, of)
}

impl Forest {
    /// The relocation trees that there are.
    pub(super) fn relocation_trees(&self, core: &Core) -> Result<Vec<Doomed>> {
        let mut found = Vec::new();
        let view = core.root_view();
        let mut items = view.range(root_key(0), root_key(u64::MAX));
        while let Some(item) = items.next()? {
            found.push(Doomed::Relocation(item.key().offset));
        }
        Ok(found)
    }

    /// Whether relocation trees are left that can be dropped.
    pub fn has_relocation_trees(&self) -> bool {
        self.dead.lock().iter().any(|one| matches!(one, Doomed::Relocation(_)))
    }

    /// Gives up merging: the root items of all relocation trees say that they are to be dropped. `false` where that cannot be done now, for lack of
    /// room or as they cannot be read.
    pub(super) fn give_up_merging(&self, commit: &Commit<'_>) -> bool {
        if self.merges_nothing.load(Ordering::Acquire) || !self.has_relocation_trees() {
            return true;
        }
        let core = commit.core();
        let Ok(items) = waiting_to_merge(core) else { return false };
        // They are neighbours.
        let bytes = items.len() * (size_of::<RootItem>() + ITEM_LEN);
        let leaves = (2 * bytes / core.features.nodesize + 2) as u64;
        let least = core.space.extents_of_leaf();
        if !items.is_empty() && core.space.reserve_upkeep(least, least, leaves).1 < leaves {
            return false;
        }
        for (key, item) in items {
            commit.root_item(key, Some(given_up(item).as_bytes().to_vec()));
        }
        self.merges_nothing.store(true, Ordering::Release);
        true
    }

    /// Why one of them cannot be dropped, if there is such a one.
    pub fn why_relocation_is_stuck(&self) -> Option<Error> {
        let stuck = self.stuck.lock();
        let mut trees = stuck.iter().filter(|(one, _)| matches!(one, Doomed::Relocation(_)));
        trees.next().map(|(_, stuck)| stuck.error.clone())
    }

    /// Drops some blocks of the relocation tree of tree `of`.
    pub(super) fn drop_relocation_tree(
        &self,
        commit: &Commit<'_>,
        of: u64,
        budget: &mut Budget,
    ) -> Result<Dropped> {
        let core = commit.core();
        let key = root_key(of);
        let item = match begun(core, &key) {
            Ok(Some(item)) => item,
            Ok(None) => return Ok(Dropped::All),
            Err(error) => return Ok(Dropped::Stuck(error)),
        };
        let view = View::new(&core.blocks, objectid::TREE_RELOC, root_of(&item));
        let mut walk = Walk::of_relocation(commit, view);
        if let Err(error) = walk.resume(&item) {
            return Ok(Dropped::Stuck(error));
        }
        let Some(next) = self.go_on(&mut walk, budget)? else { return Ok(Dropped::Some) };
        let Some(next) = next else {
            commit.root_item(key, None);
            return Ok(Dropped::All);
        };
        let item = walk.left_of(item, next);
        commit.root_item(key, Some(item.as_bytes().to_vec()));
        Ok(walk.stuck.map_or(Dropped::Some, Dropped::Stuck))
    }

    /// Whether a file of relocated data is left.
    pub fn has_relocated_data(&self) -> bool {
        self.relocated_data.load(Ordering::Acquire)
    }

    /// None is left, or none that can be deleted.
    pub fn no_relocated_data(&self) {
        self.relocated_data.store(false, Ordering::Release);
    }

    /// The tree of relocated data. It is no subvolume, so nobody gets to it by its number.
    pub fn relocated_data(&self, core: &Core) -> Result<Arc<Subvolume>> {
        self.find_any(core, objectid::DATA_RELOC_TREE)
    }

    /// Looks for files of relocated data. Where that cannot be read there may be some: who comes to delete them says why he cannot.
    pub(super) fn find_relocated_data(&self, core: &Core) {
        let found = || {
            let Some((_, item)) = self.root_item(core, objectid::DATA_RELOC_TREE)? else {
                return Ok(false);
            };
            let view = View::new(&core.blocks, objectid::DATA_RELOC_TREE, root_of(&item));
            let orphan = |ino| Key::new(objectid::ORPHAN, kind::ORPHAN_ITEM, ino);
            view.range(orphan(0), orphan(u64::MAX)).next().map(|found| found.is_some())
        };
        self.relocated_data.store(found().unwrap_or(true), Ordering::Release);
    }
}

/// The root item of a relocation tree, as one that is being dropped, if its root is what it should be; `None` if there is no such item.
fn begun(core: &Core, key: &Key) -> Result<Option<RootItem>> {
    let Some(found) = core.root_view().get(key)? else { return Ok(None) };
    let item = RootItem::read(found.data())
        .ok_or_else(|| Error::inconsistent(objectid::ROOT_TREE, "a root item is too short", key))?;
    require_own_root(core, item.bytenr.get())?;
    Ok(Some(if item.refs.get() > 0 { given_up(item) } else { item }))
}

/// The root items of relocation trees that wait to be merged.
fn waiting_to_merge(core: &Core) -> Result<Vec<(Key, RootItem)>> {
    let mut found = Vec::new();
    let view = core.root_view();
    let mut items = view.range(root_key(0), root_key(u64::MAX));
    while let Some(item) = items.next()? {
        let root = RootItem::read(item.data()).filter(|root| root.refs.get() > 0);
        found.extend(root.map(|root| (item.key(), root)));
    }
    Ok(found)
}

/// The root item of a relocation tree that is not merged any further.
fn given_up(mut item: RootItem) -> RootItem {
    item.refs = 0.into();
    item.drop_progress = Default::default();
    item.drop_level = 0;
    item
}

/// Whether Linux has merged some relocation trees, or parts of them, and not others.
pub fn is_half_merged(root_tree: &View<'_>) -> Result<bool> {
    let (mut merges, mut merged) = (false, false);
    let mut items = root_tree.range(root_key(0), root_key(u64::MAX));
    while let Some(found) = items.next()? {
        let Some(item) = RootItem::read(found.data()) else { continue };
        let waits = item.refs.get() > 0;
        merges |= waits;
        merged |= !waits || Key::from(item.drop_progress) != Key::MIN;
    }
    Ok(merges && merged)
}

/// Refuses a root that others than the relocation tree have, too.
fn require_own_root(core: &Core, bytenr: u64) -> Result<()> {
    let last = Key::new(bytenr, kind::METADATA_ITEM, u64::MAX);
    let extents = core.extent_view();
    let found = extents.last_at_or_before(&last)?.filter(|item| item.key().objectid == bytenr);
    let extent = found.map(|item| Extent::read(&item.key(), item.data())).transpose()?;
    let by_itself = InlineRef::SharedBlock { parent: bytenr };
    let is_own = extent.is_some_and(|extent| {
        extent.refs == 1
            && extent.flags & extent_flags::FULL_BACKREF != 0
            && extent.inline == [(by_itself, 1)]
    });
    if is_own {
        return Ok(());
    }
    let what = "the root of a relocation tree does not refer to itself alone";
    Err(Error::inconsistent(objectid::TREE_RELOC, what, bytenr))
}
