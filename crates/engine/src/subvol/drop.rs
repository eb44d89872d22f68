//! Dropping deleted subvolumes, a bounded number of blocks in each commit.
//!
//! Nobody waits for it, but it gives space back, so it has to go on when everything is full. What it changes is the extent
//! tree, mostly: each leaf that goes lets go of hundreds of extents, which may be anywhere in it. Room for that is asked for
//! first ([`Space::reserve_upkeep`](crate::space::Space::reserve_upkeep)); what is granted is the budget of references. The
//! smallest step is one leaf, and operations leave room for it; where even that is missing (another program has filled the
//! filesystem) the trees are looked at closely, and a commit that does nothing else does what there is room for
//! ([`crate::space::Lone`]); where that is nothing, nothing is dropped until others have let go of something.
//!
//! The tree is walked in key order. A block that only this tree reaches is freed after everything below it; of a block
//! that others reach, only the reference goes. A snapshot owns no block as old as itself: such a leaf, if others reach it, is not even read
//! ([`Sharing::is_leaf_of_others`](crate::refs::Sharing::is_leaf_of_others)). But where this tree owns such a block, it may own blocks below it, too,
//! and what they refer to is counted as this tree's: before the reference goes, all of them are *converted*, so that
//! their children are counted by their address. From the leaves up, each converted block leaves everything consistent;
//! how far it came is remembered in memory only, as blocks that are converted already need nothing, of the budget neither:
//! the smallest one has to lead further, or commits would go on for ever. Where the budget ends, the root item notes the
//! next child to look at (`drop_progress`, `drop_level`): a crash resumes there, and so does the kernel.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;

use buttress_ondisk::item::RootItem;
use buttress_ondisk::{Key, TreeBlock, kind, objectid};
use std::sync::atomic::Ordering;
use zerocopy::IntoBytes;

use super::forest::{Forest, Subvolume};
use super::relocation_trees::Doomed;
use crate::error::{Error, Result};
use crate::refs::{By, RefLog, Target, may_be_shared, own_at_end};
use crate::space::Leaves;
use crate::tree::View;
use crate::txn::{Commit, Core, CsumLog, Upkeep, root_of};

/// How much one commit may drop.
pub(super) struct Budget {
    /// Blocks to look at.
    blocks: usize,
    /// Leaves that were let go of unread, and how many of them count as one.
    unread: usize,
    unread_for_one: usize,
    /// Subvolumes to begin with, or to go on with: each that is gone changes a place of its own in the root tree.
    trees: u64,
    /// References to data extents to let go of, or to change.
    refs: u64,
    /// The same of references to tree blocks.
    nodes: u64,
    /// When to look at no more blocks.
    until: Option<Instant>,
    /// Blocks that were left when it was ended before that.
    left: Option<usize>,
    /// It is what there is room for where there is hardly any: perhaps too little to go on.
    is_smallest: bool,
    /// The only leaf that may be let go of, or changed, if it has data extents.
    leaf: Option<u64>,
}

impl Budget {
    /// What there is room for, of so many blocks.
    fn reserve(
        core: &Core,
        blocks: usize,
        trees: usize,
        until: Option<Instant>,
        next_leaf: impl FnOnce() -> Option<Arc<TreeBlock>>,
    ) -> Budget {
        let least = core.space.extents_of_leaf();
        let most = least.saturating_mul(blocks as u64);
        #[cfg(test)]
        let most = if super::tests::LITTLE_ROOM.get() { least } else { most };
        let (refs, trees) = core.space.reserve_upkeep(most, least, trees.min(blocks) as u64);
        let budget = |blocks, refs, nodes, left| Budget {
            blocks,
            unread: 0,
            unread_for_one: UNREAD,
            trees,
            refs,
            nodes,
            until,
            left,
            is_smallest: false,
            leaf: None,
        };
        if refs > 0 {
            return budget(blocks, refs, refs.max(core.space.nodes_of_step()), None);
        }
        match Budget::alone(core, next_leaf) {
            Some((refs, nodes, leaf)) => {
                let budget = budget(blocks, refs, nodes, None);
                Budget { trees: 1, is_smallest: true, leaf, ..budget }
            }
            None => budget(0, 0, 0, Some(blocks)),
        }
    }

    /// References to data extents and to tree blocks that a commit may let go of that does nothing else, and the only leaf with such
    /// extents that may be let go of.
    fn alone(
        core: &Core,
        next_leaf: impl FnOnce() -> Option<Arc<TreeBlock>>,
    ) -> Option<(u64, u64, Option<u64>)> {
        let shape = core.look().ok()??;
        if let Some((refs, nodes)) = core.space.reserve_upkeep_alone(&shape, None) {
            return Some((refs, nodes, None));
        }
        let (mut extents, mut leaves, leaf) = (Vec::new(), Leaves::default(), next_leaf());
        if let Some(leaf) = &leaf {
            crate::refs::child_refs(leaf, |target| match target {
                Target::Data { bytenr, .. } => extents.push(bytenr),
                Target::Block(..) => {}
            });
        }
        for bytenr in &extents {
            core.add_leaves_of_extent(&mut leaves, *bytenr).ok()?;
        }
        let (refs, nodes) = core.space.reserve_upkeep_alone(&shape, Some((extents, leaves)))?;
        Some((refs, nodes, Some(leaf.map_or(0, |leaf| leaf.bytenr()))))
    }

    fn is_spent(&self) -> bool {
        self.blocks == 0
    }

    fn spend(&mut self) {
        self.left.get_or_insert(self.blocks);
        self.blocks = 0;
    }

    fn is_late(&self) -> bool {
        self.until.is_some_and(|until| Instant::now() >= until)
    }

    /// Whether the references of `block` may go, or change; then they are counted.
    fn takes(&mut self, block: &TreeBlock) -> bool {
        if block.is_leaf() {
            return self.takes_leaf(block);
        }
        let done = self.nodes.checked_sub(block.len() as u64);
        self.nodes = done.unwrap_or(self.nodes);
        done.is_some()
    }

    fn takes_leaf(&mut self, leaf: &TreeBlock) -> bool {
        let mut count = 0;
        crate::refs::child_refs(leaf, |_| count += 1);
        if count > 0 && self.leaf.is_some_and(|only| only != leaf.bytenr()) {
            return false;
        }
        let done = self.refs.checked_sub(count);
        self.refs = done.unwrap_or(self.refs);
        done.is_some()
    }

    /// One more block is looked at, and the reference to it goes.
    fn step(&mut self) -> bool {
        let (blocks, nodes) = (self.blocks.checked_sub(1), self.nodes.checked_sub(1));
        let (Some(blocks), Some(nodes)) = (blocks, nodes) else { return false };
        (self.blocks, self.nodes) = (blocks, nodes);
        true
    }

    /// The step was about a leaf that was not read.
    fn was_unread(&mut self) {
        self.unread += 1;
        if !self.unread.is_multiple_of(self.unread_for_one) {
            self.blocks += 1;
        }
    }
}

/// Leaves let go of unread that cost about what it takes to read one, and to let go of what that refers to: a record each instead of hundreds.
const UNREAD: usize = 8;

/// How many leaves that are let go of unread count as one. Full quotas read those that somebody is left alone with, and keep what he has alone until the
/// commit is counted, at worst five eighths of a leaf's bytes: a third of the room for blocks is enough for that. Where somebody may come to wait, each counts.
fn unread_for_one(core: &Core, is_paced: bool) -> usize {
    if !core.quota.lock().is_counted() {
        return UNREAD;
    }
    if is_paced {
        return 1;
    }
    let kept_of_all = core.drop_blocks_max as u64 * (core.features.nodesize as u64 / 8 * 5);
    let fitting = core.room / 3 / kept_of_all.max(1);
    usize::try_from(fitting).unwrap_or(UNREAD).clamp(1, UNREAD)
}

/// Transactions between two tries to drop what cannot be dropped, at most.
const PAUSE_MAX: u64 = 1024;

pub(super) struct Walk<'w, 'a> {
    commit: &'w Commit<'a>,
    view: View<'w>,
    tree: u64,
    /// Blocks as old as that, and those that a balance has moved, may be shared.
    last_snapshot: u64,
    /// The transaction that made the tree: it owns no block as old as that but its root.
    born: u64,
    log: RefLog,
    /// A block cannot be read, or contradicts the extent tree: nothing more can be dropped.
    pub stuck: Option<Error>,
    /// The blocks to convert that lie before this key are converted.
    converted: Key,
    /// Blocks that the tree has lost.
    freed: u64,
    /// Blocks that count by their address and go, which no other tree reached in the last commit.
    lone: Vec<(u64, u64)>,
    /// From the root down.
    path: Vec<Step>,
}

/// A block that only this tree reaches.
#[derive(Clone)]
struct Step {
    block: Arc<TreeBlock>,
    /// The child to look at next.
    slot: usize,
    /// Whether its children are counted by its address.
    full: bool,
    /// Whether no other tree reached it in the last commit.
    was_lone: bool,
}

/// The next child to look at, and the level of the node that it is in; none when nothing is left.
pub(super) type Next = Option<(Key, u8)>;

/// How far dropping a tree came.
pub(super) enum Dropped {
    /// To its end.
    All,
    /// To the end of the budget.
    Some,
    /// To damage. The commit goes on without: what other trees have changed must not be lost for the sake of one that
    /// nobody wants any more. It is said, and tried again.
    Stuck(Error),
}

/// Why a tree cannot be dropped, and when that is tried again. A device may fail for a moment: the next commit
/// tries, and then one after a pause that is twice as long each time.
#[derive(Debug)]
pub(super) struct Stuck {
    pub error: Error,
    /// The first transaction that tries again.
    again: u64,
    /// The transactions from the last try to that.
    pause: u64,
}

impl Forest {
    /// Drops some blocks of deleted subvolumes: as many as the options allow one commit.
    pub(super) fn drop_step(&self, commit: &Commit<'_>) -> Result<()> {
        self.try_stuck_until(commit.transid());
        if commit.upkeep() == Upkeep::None || self.dead.lock().is_empty() {
            return Ok(());
        }
        let core = commit.core();
        if !self.give_up_merging(commit) {
            self.stalled.store(true, Ordering::Release);
            return Ok(());
        }
        let (blocks, until) = self.pace_of(commit);
        let dead = self.dead.lock().clone();
        let next_leaf = || dead.first().and_then(|one| self.next_leaf(commit, *one).ok()?);
        let mut budget = Budget::reserve(core, blocks, dead.len(), until, next_leaf);
        budget.unread_for_one = unread_for_one(core, until.is_some());
        self.stalled.store(budget.is_spent(), Ordering::Release);
        let steps = self.steps();
        let (mut done, mut stuck) = (BTreeSet::new(), Vec::new());
        for (number, one) in dead.into_iter().enumerate() {
            if number > 0 && budget.is_late() || budget.trees == 0 {
                budget.spend();
            }
            if budget.is_spent() {
                break;
            }
            budget.blocks -= 1;
            let dropped = match one {
                Doomed::Subvolume(id) => self.drop_subvolume(commit, id, &mut budget)?,
                Doomed::Relocation(of) => {
                    budget.trees -= 1;
                    self.drop_relocation_tree(commit, of, &mut budget)?
                }
            };
            match dropped {
                Dropped::All => drop(done.insert(one)),
                Dropped::Some => {}
                Dropped::Stuck(error) => stuck.push((one, error)),
            }
        }
        for (one, error) in &stuck {
            commit.core().warn(format!(
                "{one} cannot be dropped: {error}; its space stays taken. It is tried again by later commits and \
                 mounts; if that does not help, the device or the filesystem is damaged: see what check says"
            ));
        }
        if budget.is_smallest && self.steps() == steps {
            self.stalled.store(true, Ordering::Release);
        }
        self.pace.lock().note(blocks - budget.left.unwrap_or(budget.blocks));
        let mut dead = self.dead.lock();
        dead.retain(|one| !done.contains(one) && stuck.iter().all(|(stuck, _)| stuck != one));
        self.dropping.store(!dead.is_empty(), Ordering::Release);
        drop(dead);
        self.note_stuck(commit.transid(), &done, stuck);
        self.dropped(done.into_iter().filter_map(Doomed::subvolume).collect());
        Ok(())
    }

    /// Blocks that a commit may look at, and until when.
    fn pace_of(&self, commit: &Commit<'_>) -> (usize, Option<Instant>) {
        let core = commit.core();
        let (most, mut pace) = (core.drop_blocks_max, self.pace.lock());
        match commit.upkeep() {
            Upkeep::Little => {
                let hurried = core.txn.is_waited_for();
                let (blocks, until) = pace.begin(hurried, most, Instant::now());
                (blocks, Some(until))
            }
            // How long it takes says nothing then.
            _ if core.sequential => (most, None),
            _ => (pace.begin_much(most, Instant::now()), None),
        }
    }

    /// Drops some blocks of a deleted subvolume, unless something of it is to be committed first.
    fn drop_subvolume(&self, commit: &Commit<'_>, id: u64, budget: &mut Budget) -> Result<Dropped> {
        let subvolume = match self.find(commit.core(), id) {
            Ok(found) => found,
            Err(error) => return Ok(Dropped::Stuck(error)),
        };
        // What changed before it was deleted is merged first; the next commit drops it.
        let busy = subvolume.tree.is_dirty() || {
            let state = subvolume.state.lock();
            state.dirty || state.left || state.frozen.is_some()
        };
        if busy {
            return Ok(Dropped::Some);
        }
        budget.trees -= 1;
        self.drop_some(commit, &subvolume, budget)
    }

    /// The leaf that dropping `one` comes to first, if it lets go of that, or changes who counts its extents.
    fn next_leaf(&self, commit: &Commit<'_>, one: Doomed) -> Result<Option<Arc<TreeBlock>>> {
        let Doomed::Subvolume(id) = one else { return Ok(None) };
        let subvolume = self.find(commit.core(), id)?;
        let (mut walk, item) = Self::walk(commit, &subvolume);
        walk.resume(&item)?;
        walk.next_leaf()
    }

    /// A walk over a subvolume, from its start on, and its root item.
    fn walk<'w, 'a>(commit: &'w Commit<'a>, subvolume: &Subvolume) -> (Walk<'w, 'a>, RootItem) {
        let item = subvolume.item();
        let view = View::new(&commit.core().blocks, subvolume.id, root_of(&item));
        let walk = Walk {
            last_snapshot: item.last_snapshot.get(),
            born: subvolume.key.offset,
            converted: *subvolume.converted.lock(),
            ..Walk::new(commit, view)
        };
        (walk, item)
    }

    /// Whether there is something to drop, and room for it as far as is known.
    pub fn can_drop(&self) -> bool {
        self.dropping.load(Ordering::Acquire) && !self.stalled.load(Ordering::Acquire)
    }

    /// How often dropping a subvolume came further: as long as this grows, commits give space back.
    pub fn steps(&self) -> u64 {
        self.steps.load(Ordering::Acquire)
    }

    /// Has those that are stuck tried again at once.
    pub fn try_stuck_again(&self) {
        self.try_stuck_until(u64::MAX);
    }

    /// Puts those that are to be tried again by transaction `last` at the latest behind all others that are to be dropped. Where
    /// there is no room to drop anything they wait there, like the others.
    fn try_stuck_until(&self, last: u64) {
        let stuck = self.stuck.lock();
        let mut dead = self.dead.lock();
        for (one, it) in stuck.iter() {
            if it.again <= last && !dead.contains(one) {
                dead.push(*one);
            }
        }
        self.dropping.store(!dead.is_empty(), Ordering::Release);
    }

    fn note_stuck(&self, transid: u64, done: &BTreeSet<Doomed>, now: Vec<(Doomed, Error)>) {
        let mut stuck = self.stuck.lock();
        stuck.retain(|one, _| !done.contains(one));
        for (one, error) in now {
            let pause = stuck.get(&one).map_or(1, |it| it.pause.saturating_mul(2).min(PAUSE_MAX));
            stuck.insert(one, Stuck { error, again: transid.saturating_add(pause), pause });
        }
    }

    /// Drops some blocks of one subvolume.
    fn drop_some(
        &self,
        commit: &Commit<'_>,
        subvolume: &Subvolume,
        budget: &mut Budget,
    ) -> Result<Dropped> {
        let (mut walk, item) = Self::walk(commit, subvolume);
        if let Err(error) = walk.resume(&item) {
            return Ok(Dropped::Stuck(error));
        }
        let Some(next) = self.go_on(&mut walk, budget)? else { return Ok(Dropped::Some) };
        *subvolume.converted.lock() = walk.converted;
        let Some(next) = next else {
            commit.root_item(subvolume.key, None);
            commit.root_item(Key::new(objectid::ORPHAN, kind::ORPHAN_ITEM, subvolume.id), None);
            return Ok(Dropped::All);
        };
        let item = walk.left_of(item, next);
        subvolume.state.lock().item = item;
        commit.root_item(subvolume.key, Some(item.as_bytes().to_vec()));
        Ok(walk.stuck.map_or(Dropped::Some, Dropped::Stuck))
    }

    /// Drops until the budget is spent, and answers where to go on; `None` when it was spent before.
    pub(super) fn go_on(
        &self,
        walk: &mut Walk<'_, '_>,
        budget: &mut Budget,
    ) -> Result<Option<Next>> {
        // A tree that is one leaf goes as a whole.
        if let [root] = walk.path.as_slice()
            && root.block.is_leaf()
            && !budget.takes_leaf(&root.block)
        {
            budget.spend();
            return Ok(None);
        }
        let before = walk.converted;
        let next = walk.run(budget)?;
        walk.commit.core().env.step("a part of a deleted subvolume is gone");
        if next.is_none() || walk.freed > 0 || walk.converted != before {
            self.steps.fetch_add(1, Ordering::AcqRel);
        }
        walk.commit.gather(&mut walk.log, &mut CsumLog::default());
        walk.commit.dropped(&mut walk.lone);
        Ok(Some(next))
    }
}

impl<'w, 'a> Walk<'w, 'a> {
    /// Of a tree none of whose blocks may be shared.
    fn new(commit: &'w Commit<'a>, view: View<'w>) -> Walk<'w, 'a> {
        Walk {
            commit,
            view,
            tree: view.owner(),
            last_snapshot: 0,
            born: 0,
            log: RefLog::default(),
            stuck: None,
            converted: Key::MIN,
            freed: 0,
            lone: Vec::new(),
            path: Vec::new(),
        }
    }

    /// Of a relocation tree: how old a block is does not say who has it.
    pub fn of_relocation(commit: &'w Commit<'a>, view: View<'w>) -> Walk<'w, 'a> {
        Walk { last_snapshot: u64::MAX, ..Walk::new(commit, view) }
    }

    fn is_relocation(&self) -> bool {
        self.tree == objectid::TREE_RELOC
    }

    /// The root item of what is left.
    pub fn left_of(&self, mut item: RootItem, (key, level): (Key, u8)) -> RootItem {
        let freed = self.freed.saturating_mul(self.commit.core().features.nodesize as u64);
        item.bytes_used = item.bytes_used.get().saturating_sub(freed).into();
        item.drop_progress = key.into();
        item.drop_level = level;
        item
    }

    /// Goes to where the last step ended.
    pub fn resume(&mut self, item: &RootItem) -> Result<()> {
        let key = Key::from(item.drop_progress);
        let mut block = self.view.root_block()?;
        let started = key != Key::MIN;
        loop {
            let full = self.is_full(&block)?;
            if !started || block.level() <= item.drop_level || block.is_leaf() {
                let slot = if started { block.search(&key).unwrap_or_else(|slot| slot) } else { 0 };
                self.push(block, slot, full);
                return Ok(());
            }
            let slot = block.child_for(&key);
            let child = self.view.child(&block, slot)?;
            self.push(block, slot, full);
            block = child;
        }
    }

    /// Goes down to a block whose references were asked for, if it may be shared.
    fn push(&mut self, block: Arc<TreeBlock>, slot: usize, full: bool) {
        let is_below_lone = self.path.last().is_none_or(|above| above.was_lone);
        let may_be_shared = may_be_shared(&block, self.last_snapshot);
        let was_lone = is_below_lone
            && !self.is_relocation()
            && (!may_be_shared || self.commit.sharing().had_one_ref(block.bytenr()));
        self.path.push(Step { block, slot, full, was_lone });
    }

    /// The leaf that it comes to first, if that is let go of, or to be converted.
    fn next_leaf(&self) -> Result<Option<Arc<TreeBlock>>> {
        let Some(Step { mut block, mut slot, .. }) = self.path.last().cloned() else {
            return Ok(None);
        };
        while !block.is_leaf() {
            if slot >= block.len() {
                return Ok(None);
            }
            let child = self.view.child(&block, slot)?;
            let is_shared = may_be_shared(&child, self.last_snapshot)
                && self.commit.sharing().refs(&child)?.0 > 1;
            if is_shared && child.owner() != self.tree {
                return Ok(None);
            }
            slot = if child.is_leaf() || !is_shared {
                0
            } else {
                let first = child.child_for(&self.converted);
                let owned = |slot: &usize| child.child(*slot).generation > self.born;
                (first..child.len()).find(owned).unwrap_or(child.len())
            };
            block = child;
        }
        Ok(Some(block))
    }

    fn is_full(&self, block: &TreeBlock) -> Result<bool> {
        if !may_be_shared(block, self.last_snapshot) {
            return Ok(false);
        }
        Ok(self.commit.sharing().refs(block)?.1)
    }

    /// Drops until the budget is spent; then answers the next child's key and the level of the node it is in.
    fn run(&mut self, budget: &mut Budget) -> Result<Next> {
        let mut first = true;
        while let Some(step) = self.path.last().cloned() {
            let Step { block, slot, full, .. } = &step;
            let (slot, full) = (*slot, *full);
            if block.is_leaf() || slot >= block.len() {
                self.free_last(&step)?;
                continue;
            }
            // Each commit leads further.
            if !std::mem::take(&mut first) && budget.is_late() {
                budget.spend();
            }
            if !budget.step() {
                return Ok(Some((block.key(slot), block.level())));
            }
            // A child that fails is left as it is: whatever was logged before is whole.
            let entered = match self.enter(block, slot, full, budget) {
                Ok(entered) => entered,
                Err(error) => {
                    self.stuck = Some(error);
                    false
                }
            };
            if !entered {
                return Ok(Some((block.key(slot), block.level())));
            }
        }
        Ok(None)
    }

    /// Looks at child `slot` of `parent`: goes down, or drops the reference to it. False when the budget was spent first.
    fn enter(
        &mut self,
        parent: &TreeBlock,
        slot: usize,
        parent_full: bool,
        budget: &mut Budget,
    ) -> Result<bool> {
        let by = if parent_full { By::Block(parent.bytenr()) } else { By::Tree(parent.owner()) };
        if self.is_leaf_of_others(parent, slot, by)? {
            self.unlink(parent, parent_full, parent.child(slot).bytenr, 0);
            self.pass();
            budget.was_unread();
            return Ok(true);
        }
        let child = self.view.child(parent, slot)?;
        if self.is_relocation() {
            self.commit.sharing().require(&child, by)?;
        }
        let (refs, full) = if !may_be_shared(&child, self.last_snapshot) {
            (1, false)
        } else {
            self.commit.sharing().refs(&child)?
        };
        if refs < 1 {
            return Err(Error::inconsistent(
                self.tree,
                "a block has no references left",
                child.bytenr(),
            ));
        }
        if refs == 1 {
            // A leaf goes as a whole.
            if child.is_leaf() && !budget.takes_leaf(&child) {
                budget.spend();
                return Ok(false);
            }
            self.push(child, 0, full);
            return Ok(true);
        }
        if !self.convert(&child, budget)? {
            return Ok(false);
        }
        self.unlink(parent, parent_full, child.bytenr(), child.level());
        self.pass();
        Ok(true)
    }

    /// Whether others reach a leaf that this tree does not own: what it refers to is counted as before, so it is not read. Nodes are:
    /// there are few of them, and one that should not be there would be gone through as if it were this tree's.
    fn is_leaf_of_others(&self, parent: &TreeBlock, slot: usize, by: By) -> Result<bool> {
        let leaf = parent.child(slot);
        let may_own = self.is_relocation() || leaf.generation > self.born.min(self.last_snapshot);
        Ok(parent.level() == 1 && !may_own && self.commit.sharing().is_leaf_of_others(&leaf, by)?)
    }

    /// Has the children of `block`, and of all blocks below it, counted by address where they are counted as this
    /// tree's. False when the budget was spent first. As deep as the tree has levels.
    fn convert(&mut self, block: &TreeBlock, budget: &mut Budget) -> Result<bool> {
        if block.owner() != self.tree {
            return Ok(true);
        }
        if !block.is_leaf() {
            for slot in block.child_for(&self.converted)..block.len() {
                if block.child(slot).generation <= self.born {
                    continue;
                }
                let child = self.view.child(block, slot)?;
                if !self.convert(&child, budget)? {
                    return Ok(false);
                }
            }
        }
        if !budget.step() || !self.is_full(block)? && !budget.takes(block) {
            budget.spend();
            return Ok(false);
        }
        self.commit.sharing().abandon(&mut self.log, block, self.tree)?;
        if block.is_leaf() && !block.is_empty() {
            self.converted = block.key(0);
        }
        Ok(true)
    }

    fn pass(&mut self) {
        if let Some(last) = self.path.last_mut() {
            last.slot += 1;
        }
    }

    /// The reference of `parent` to the block at `bytenr` goes.
    fn unlink(&mut self, parent: &TreeBlock, parent_full: bool, bytenr: u64, level: u8) {
        self.freed += 1;
        if parent_full {
            self.commit.sharing().lose_shared(&mut self.log, bytenr, level, parent.bytenr());
        } else {
            self.commit.sharing().lose(&mut self.log, bytenr, level, parent.owner());
        }
    }

    /// Frees the last block of the path: nothing below it is left, but what a leaf refers to.
    fn free_last(&mut self, Step { block, full, was_lone, .. }: &Step) -> Result<()> {
        if block.is_leaf() {
            self.release_data(block, *full);
        }
        if *full && *was_lone {
            self.lone.push((block.bytenr(), self.tree));
        }
        self.path.pop();
        match self.path.last().cloned() {
            Some(above) => {
                let by = if above.full { 0 } else { above.block.owner() };
                own_at_end(&mut self.log, block, by);
                self.unlink(&above.block, above.full, block.bytenr(), block.level());
                self.pass();
            }
            None => self.free_root(block),
        }
        Ok(())
    }

    /// The reference to the root goes: the tree's, or of a relocation tree its own.
    fn free_root(&mut self, root: &TreeBlock) {
        let target = Target::Block(root.bytenr(), root.level());
        if self.is_relocation() {
            own_at_end(&mut self.log, root, self.tree);
            self.log.by_block(target, root.bytenr(), -1);
        } else {
            self.log.by_tree(target, self.tree, -1, 0);
        }
    }

    fn release_data(&mut self, leaf: &TreeBlock, full: bool) {
        let (bytenr, owner) = (leaf.bytenr(), leaf.owner());
        crate::refs::child_refs(leaf, |target| {
            if full {
                self.log.by_block(target, bytenr, -1);
            } else {
                self.log.by_tree(target, owner, -1, 0);
            }
        });
    }
}
