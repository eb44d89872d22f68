//! Which tree blocks several trees reach, and who owns the references to their children.
//!
//! btrfs counts references lazily. A block that a snapshot shares has one reference more; its children are still
//! referenced on behalf of the tree that owns it. When a tree that shares a block gets a copy of its own, the
//! references to the children must be settled:
//!
//! | the old block | what is logged |
//! |---|---|
//! | still reached by others, owned by this tree, children counted by tree | children get references from the old block's address; the block is marked `FULL_BACKREF`; the copy inherits the references by tree |
//! | still reached by others, otherwise | children get references from this tree |
//! | reached by this tree alone, marked `FULL_BACKREF` | references by address become references by tree |
//! | reached by this tree alone | nothing |
//!
//! Trees of one commit are merged at the same time, so the counts seen here are those of the last commit plus what this
//! commit has decided so far, under one lock.

use std::collections::HashMap;

use buttress_ondisk::block::{BlockHead, ChildPtr};
use buttress_ondisk::item::{ExtentItem, extent_flags};
use buttress_ondisk::view::{InlineRef, inline_refs};
use buttress_ondisk::{Key, TreeBlock, kind};
use parking_lot::Mutex;

use super::{RefLog, Target};
use crate::error::{Error, Result};
use crate::tree::View;

const EXTENT_TREE: u64 = buttress_ondisk::objectid::EXTENT_TREE;
const NOT_REFERRED_TO: &str = "a tree block is not referred to by the block that leads to it";

#[derive(Clone, Copy, Debug, Default)]
struct State {
    /// What the last commit's extent tree says: references, and whether `FULL_BACKREF` is set.
    disk: Option<(i64, bool)>,
    /// References gained since.
    delta: i64,
    /// Marked `FULL_BACKREF` since.
    marked: bool,
    /// The tree that owned it and has a copy of it instead since.
    left_by: Option<u64>,
    /// The reference that has been let go of last without the block being read, and the key that led to the block.
    let_go_by: Option<(By, Key)>,
}

/// The sharing decisions of one commit.
#[derive(Debug)]
pub struct Sharing<'a> {
    /// The extent tree as the last commit left it.
    extents: View<'a>,
    /// The commit: blocks of this generation are not in `extents` yet.
    transid: u64,
    states: Mutex<HashMap<u64, State>>,
}

/// Who a tree block's children are referenced by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    /// A tree.
    Tree(u64),
    /// The block at this address.
    Block(u64),
}

/// What a block refers to: its child blocks, or the data extents of its file extents.
pub fn child_refs(block: &TreeBlock, mut each: impl FnMut(Target)) {
    for slot in 0..block.len() {
        if block.is_leaf() {
            if block.key(slot).kind == kind::EXTENT_DATA
                && let Some(target) = Target::of_item(&block.key(slot), block.data(slot))
            {
                each(target);
            }
        } else {
            each(Target::Block(block.child(slot).bytenr, block.level() - 1));
        }
    }
}

/// Whether several trees may reach a block of a subvolume (not its root), so that its references have to be looked up: it
/// is older than the last snapshot, or a balance has moved it, which counts its children by its address.
pub fn may_be_shared(block: &TreeBlock, last_snapshot: u64) -> bool {
    block.generation() <= last_snapshot || block.flags() & BlockHead::RELOC != 0
}

/// Says whose a block is of which the last reference, by `tree`, goes.
pub fn own_at_end(log: &mut RefLog, block: &TreeBlock, tree: u64) {
    if block.owner() != tree {
        log.owned(Target::Block(block.bytenr(), block.level()), block.owner());
    }
}

impl<'a> Sharing<'a> {
    /// The decisions of a commit that starts from `extents`.
    pub fn new(extents: View<'a>, transid: u64) -> Sharing<'a> {
        Sharing { extents, transid, states: Mutex::default() }
    }

    /// Tree `tree` is about to replace `old` by a copy of its own: settles the references to the children of `old`, and
    /// drops the tree's own reference to it. Both under one lock: another tree that does the same at the same time must
    /// see either none of it or all. Whether others have it still.
    pub fn unshare(&self, log: &mut RefLog, old: &TreeBlock, tree: u64) -> Result<bool> {
        let mut states = self.states.lock();
        let (refs, full) = self.lookup(&mut states, old)?;
        if refs > 1 {
            if old.owner() == tree && !full {
                self.mark_full(&mut states, log, old);
                states.entry(old.bytenr()).or_default().left_by = Some(tree);
            } else {
                self.give(&mut states, log, old, By::Tree(tree), 1);
            }
        } else if full {
            own_at_end(log, old, tree);
            self.give(&mut states, log, old, By::Tree(tree), 1);
            self.give(&mut states, log, old, By::Block(old.bytenr()), -1);
        } else {
            own_at_end(log, old, tree);
        }
        states.entry(old.bytenr()).or_default().delta -= 1;
        log.by_tree(Target::Block(old.bytenr(), old.level()), tree, -1, 0);
        Ok(refs > 1)
    }

    /// References to `old` now, and whether its children are counted by its address.
    pub fn refs(&self, old: &TreeBlock) -> Result<(i64, bool)> {
        self.lookup(&mut self.states.lock(), old)
    }

    /// Whether others reach a leaf, too, of which only what leads to it is known, and whose reference is `by`: who asks lets go of that then. It is not said of one
    /// that the extent tree knows as something else: who reads it finds out what is wrong. Refuses one to which there is no such reference, or none any more.
    pub fn is_leaf_of_others(&self, leaf: &ChildPtr, by: By) -> Result<bool> {
        if leaf.generation >= self.transid {
            return Ok(false);
        }
        let (_, wanted) = inline_of(by);
        let (mut is_there, mut counted) = (false, 0);
        let (level, extent) = self.extent_of(leaf.bytenr, |one| {
            is_there |= one == wanted;
            counted += one.count();
        })?;
        let (flags, all) = (extent.flags.get(), extent.refs.get());
        let is_it = level == 0
            && flags & extent_flags::TREE_BLOCK != 0
            && extent.generation.get() == leaf.generation;
        let mut states = self.states.lock();
        let is_marked = |parent| states.get(&parent).is_some_and(|state| state.marked);
        let is_new = matches!(by, By::Block(parent) if is_marked(parent));
        let has_keyed = counted < all;
        if !is_it || is_new || has_keyed {
            return Ok(false);
        }
        let state = states.entry(leaf.bytenr).or_default();
        if !is_there || state.let_go_by.is_some_and(|(last, _)| last == by) {
            return Err(Error::inconsistent(EXTENT_TREE, NOT_REFERRED_TO, leaf.bytenr));
        }
        let (refs, _) = *state.disk.get_or_insert(disk_of(&extent));
        let is_others = refs + state.delta > 1;
        state.let_go_by = is_others.then_some((by, leaf.key)).or(state.let_go_by);
        Ok(is_others)
    }

    /// The key that leads to a leaf, if a reference to that was let go of unread.
    pub fn key_of(&self, bytenr: u64) -> Option<Key> {
        self.states.lock().get(&bytenr)?.let_go_by.map(|(_, key)| key)
    }

    /// Whether only one reference led to a block in the last commit, where its references were asked for.
    pub fn had_one_ref(&self, bytenr: u64) -> bool {
        let states = self.states.lock();
        states.get(&bytenr).and_then(|state| state.disk).is_some_and(|(refs, _)| refs == 1)
    }

    /// Whether a tree that owned a block reaches it no more, as it has got a copy of it, and others reach it still.
    pub fn is_left_by(&self, bytenr: u64, tree: u64) -> bool {
        self.states.lock().get(&bytenr).is_some_and(|state| state.left_by == Some(tree))
    }

    /// Refuses a block to which the last commit has no such reference: what refers to it is not believed.
    pub fn require(&self, block: &TreeBlock, by: By) -> Result<()> {
        let bytenr = block.bytenr();
        let ((kind, number), wanted) = inline_of(by);
        let mut is_there = false;
        self.extent_of(bytenr, |one| is_there |= one == wanted)?;
        if is_there || self.extents.get(&Key::new(bytenr, kind, number))?.is_some() {
            return Ok(());
        }
        Err(Error::inconsistent(EXTENT_TREE, NOT_REFERRED_TO, bytenr))
    }

    /// Tree `tree` no longer refers to the block.
    pub fn lose(&self, log: &mut RefLog, bytenr: u64, level: u8, tree: u64) {
        self.states.lock().entry(bytenr).or_default().delta -= 1;
        log.by_tree(Target::Block(bytenr, level), tree, -1, 0);
    }

    /// The block at `parent` no longer refers to the block.
    pub fn lose_shared(&self, log: &mut RefLog, bytenr: u64, level: u8, parent: u64) {
        self.states.lock().entry(bytenr).or_default().delta -= 1;
        log.by_block(Target::Block(bytenr, level), parent, -1);
    }

    /// Tree `tree` gets a reference to each child of `block`: it has a copy of it.
    pub fn gain_children(&self, log: &mut RefLog, block: &TreeBlock, tree: u64) {
        self.give(&mut self.states.lock(), log, block, By::Tree(tree), 1);
    }

    /// Tree `tree` is about to give up `block`, which others still reach by itself or by a block above it: like
    /// [`Sharing::unshare`] without a copy that would inherit. The reference to the block itself stays.
    pub fn abandon(&self, log: &mut RefLog, block: &TreeBlock, tree: u64) -> Result<()> {
        let mut states = self.states.lock();
        let (_, full) = self.lookup(&mut states, block)?;
        if block.owner() == tree && !full {
            self.mark_full(&mut states, log, block);
            self.give(&mut states, log, block, By::Tree(tree), -1);
        }
        Ok(())
    }

    fn mark_full(&self, states: &mut HashMap<u64, State>, log: &mut RefLog, block: &TreeBlock) {
        self.give(states, log, block, By::Block(block.bytenr()), 1);
        log.full_backref(block.bytenr(), block.level());
        states.entry(block.bytenr()).or_default().marked = true;
    }

    fn give(
        &self,
        states: &mut HashMap<u64, State>,
        log: &mut RefLog,
        block: &TreeBlock,
        by: By,
        delta: i32,
    ) {
        child_refs(block, |target| {
            if let Target::Block(bytenr, _) = target {
                states.entry(bytenr).or_default().delta += i64::from(delta);
            }
            match by {
                By::Tree(tree) => log.by_tree(target, tree, delta, 0),
                By::Block(parent) => log.by_block(target, parent, delta),
            }
        });
    }

    fn lookup(&self, states: &mut HashMap<u64, State>, block: &TreeBlock) -> Result<(i64, bool)> {
        let state = states.entry(block.bytenr()).or_default();
        let (refs, full) = match state.disk {
            Some(disk) => disk,
            None => *state.disk.insert(self.on_disk(block)?),
        };
        Ok((refs + state.delta, full || state.marked))
    }

    fn on_disk(&self, block: &TreeBlock) -> Result<(i64, bool)> {
        if block.generation() == self.transid {
            return Ok((1, false));
        }
        let (_, extent) = self.extent_of(block.bytenr(), |_| ())?;
        Ok(disk_of(&extent))
    }

    /// The item of a tree block in the extent tree of the last commit, and the block's level. `each` hears of the references in the item.
    fn extent_of(&self, bytenr: u64, each: impl FnMut(InlineRef)) -> Result<(u64, ExtentItem)> {
        let last = Key::new(bytenr, kind::METADATA_ITEM, u64::MAX);
        let item =
            self.extents.last_at_or_before(&last)?.filter(|item| item.key().objectid == bytenr);
        let wrong = |what| Error::inconsistent(EXTENT_TREE, what, bytenr);
        let item = item.ok_or_else(|| wrong("a tree block has no extent item"))?;
        let key = item.key();
        let (head, info, refs) =
            inline_refs(&key, item.data()).ok_or_else(|| wrong("an extent item is too short"))?;
        refs.for_each(each);
        Ok((info.map_or(key.offset, |info| info.level.into()), head))
    }
}

/// References, and whether what a tree block refers to is counted by its address.
fn disk_of(extent: &ExtentItem) -> (i64, bool) {
    (extent.refs.get() as i64, extent.flags.get() & extent_flags::FULL_BACKREF != 0)
}

/// The kind of a reference to a tree block and its number, and what it is in the block's item.
fn inline_of(by: By) -> ((u8, u64), InlineRef) {
    match by {
        By::Tree(root) => ((kind::TREE_BLOCK_REF, root), InlineRef::TreeBlock { root }),
        By::Block(parent) => ((kind::SHARED_BLOCK_REF, parent), InlineRef::SharedBlock { parent }),
    }
}
