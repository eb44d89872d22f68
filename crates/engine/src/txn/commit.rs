//! A commit: freeze, write data, merge the changed trees, settle the trees that describe space, write the blocks, then
//! the superblocks.
//!
//! What a crash leaves at each point: until the primary superblock is written, the last commit; from then on, this one.
//! Between the two superblock barriers the copies may be one commit behind, which every reader allows for.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use buttress_codec::Digest;
use buttress_codec::checksum::DIGEST_SIZE_MAX;
use buttress_ondisk::build::Stamp;
use buttress_ondisk::superblock::Superblock;
use buttress_ondisk::{Expect, Key, TreeBlock};
use parking_lot::Mutex;

use super::core::Core;
use super::csums::CsumLog;
use super::early::Early;
use super::exchange::NEW_BLOCK_FLAGS;
use super::settle::{Relocated, Relocation};
use super::{Guard, settle, superblock};
use crate::error::Result;
use crate::hash::Spread;
use crate::refs::{RefLog, Sharing};
use crate::space::{Need, Shortage};
use crate::stats::{self, Phase};
use crate::tree::Root;

/// What is written at once. When the kernel copies it, it is still in the processor's cache, as its checksum was just made.
pub(super) const RUN_BYTES: usize = 512 << 10;

/// Who has changes to commit: the subvolumes.
pub trait Participant: Sync {
    /// Whether there is anything to commit.
    fn is_dirty(&self, upkeep: Upkeep) -> bool;
    /// No operation runs: what changed so far belongs to transaction `transid`.
    fn freeze(&self, transid: u64);
    /// Writes the data that changed.
    fn prepare(&self, core: &Core, transid: u64) -> Result<()>;
    /// Merges the changed trees and hands over references, checksums and items of the root and uuid trees.
    fn merge(&self, commit: &Commit<'_>) -> Result<()>;
    /// Changes members of the superblock that belong to it.
    fn superblock(&self, superblock: &mut Superblock);
    /// These trees are elsewhere than their merges have left them.
    fn moved(&self, _trees: &[(u64, Root)]) {}
    /// The transaction is durable: its trees are the ones to read.
    fn published(&self);
    /// What those trees have is dropped. A log may be written meanwhile.
    fn settled(&self, core: &Core);
}

/// What a commit does besides writing what has changed: it drops deleted subvolumes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Upkeep {
    /// Nothing: somebody waits for it, and other commits see to that.
    None,
    /// What takes little time: others may want to commit.
    Little,
    /// As much as the options allow.
    Much,
}

/// Changes of the uuid tree: a subvolume gets or loses a uuid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct UuidChange {
    /// Key in the uuid tree.
    pub key: Key,
    /// The subvolume.
    pub subvolume: u64,
    /// Gained or lost.
    pub add: bool,
}

impl UuidChange {
    /// `uuid` under item kind `kind` (`UUID_SUBVOL` or `UUID_RECEIVED_SUBVOL`).
    pub fn new(uuid: &[u8; 16], kind: u8, subvolume: u64, add: bool) -> UuidChange {
        let word =
            |at: usize| u64::from_le_bytes(uuid[at..at + 8].try_into().expect("eight bytes"));
        UuidChange { key: Key::new(word(0), kind, word(8)), subvolume, add }
    }
}

/// What a commit has gathered for the trees that settle last.
#[derive(Debug, Default)]
pub(super) struct Gathered {
    pub refs: RefLog,
    pub csums: CsumLog,
    pub root_items: BTreeMap<Key, Option<Vec<u8>>>,
    pub uuids: Vec<UuidChange>,
}

/// A commit under way.
#[derive(Debug)]
pub struct Commit<'a> {
    core: &'a Core,
    transid: u64,
    upkeep: Upkeep,
    sharing: Sharing<'a>,
    fsid: [u8; 16],
    chunk_tree_uuid: [u8; 16],
    unwritten: Mutex<Spread<u64, Arc<TreeBlock>>>,
    pub(super) early: Early,
    first_keys: Mutex<HashMap<u64, Key>>,
    gathered: Mutex<Gathered>,
    /// Blocks of older commits that nothing refers to after this one.
    left_behind: Mutex<Vec<u64>>,
    /// Snapshots that are taken, and of what.
    snapshots: Mutex<Vec<(u64, u64)>>,
    /// Blocks that are dropped, each with the only tree that reached it.
    dropped: Mutex<Vec<(u64, u64)>>,
    /// Trees of files whose roots were moved.
    moved: Mutex<Vec<(u64, Root)>>,
}

impl<'a> Commit<'a> {
    fn new(core: &'a Core, transid: u64, upkeep: Upkeep) -> Commit<'a> {
        Commit {
            core,
            transid,
            upkeep,
            sharing: Sharing::new(core.extent_view(), transid),
            fsid: core.volume.superblock().metadata_fsid(),
            chunk_tree_uuid: core.volume.chunk_tree_uuid(),
            unwritten: Mutex::default(),
            early: Early::default(),
            first_keys: Mutex::default(),
            gathered: Mutex::default(),
            left_behind: Mutex::default(),
            snapshots: Mutex::default(),
            dropped: Mutex::default(),
            moved: Mutex::default(),
        }
    }

    /// The filesystem's shared parts.
    pub fn core(&self) -> &'a Core {
        self.core
    }

    /// The transaction being committed.
    pub fn transid(&self) -> u64 {
        self.transid
    }

    /// What it does besides.
    pub fn upkeep(&self) -> Upkeep {
        self.upkeep
    }

    /// Which blocks trees share.
    pub fn sharing(&self) -> &Sharing<'a> {
        &self.sharing
    }

    /// Takes references and checksums of a merged tree.
    pub fn gather(&self, refs: &mut RefLog, csums: &mut CsumLog) {
        let mut gathered = self.gathered.lock();
        gathered.refs.append(refs);
        gathered.csums.append(csums);
    }

    /// Puts (or deletes) an item of the root tree.
    pub fn root_item(&self, key: Key, item: Option<Vec<u8>>) {
        self.gathered.lock().root_items.insert(key, item);
    }

    /// Changes the uuid tree.
    pub fn uuid(&self, change: UuidChange) {
        self.gathered.lock().uuids.push(change);
    }

    /// A snapshot is taken of a subvolume.
    pub fn snapshot(&self, id: u64, source: u64) {
        self.snapshots.lock().push((id, source));
    }

    pub(super) fn take_snapshots(&self) -> Vec<(u64, u64)> {
        std::mem::take(&mut self.snapshots.lock())
    }

    /// Blocks go with deleted trees: each with the only tree that reached it in the last commit.
    pub fn dropped(&self, blocks: &mut Vec<(u64, u64)>) {
        self.dropped.lock().append(blocks);
    }

    pub(super) fn take_dropped(&self) -> Vec<(u64, u64)> {
        std::mem::take(&mut self.dropped.lock())
    }

    /// The root of a tree of files is elsewhere.
    pub(super) fn moved(&self, tree: u64, root: Root) {
        self.moved.lock().push((tree, root));
    }

    pub(super) fn take_gathered(&self) -> Gathered {
        std::mem::take(&mut self.gathered.lock())
    }

    pub(super) fn stamp(&self, bytenr: u64, owner: u64) -> Stamp {
        Stamp {
            fsid: self.fsid,
            chunk_tree_uuid: self.chunk_tree_uuid,
            bytenr,
            generation: self.transid,
            owner,
            flags: NEW_BLOCK_FLAGS,
        }
    }

    /// A block has its place. `stays`: no later merge of this commit replaces it.
    pub(super) fn placed(&self, block: TreeBlock, stays: bool) -> Result<()> {
        if !self.core.features.skinny && !block.is_empty() {
            self.first_keys.lock().insert(block.bytenr(), block.key(0));
        }
        let block = Arc::new(block);
        // Together: who has written the one that was there before lets go of it, and not of this one.
        let mut unwritten = self.unwritten.lock();
        self.core.blocks.hold(block.clone());
        unwritten.insert(block.bytenr(), block.clone());
        let nodesize = self.core.features.nodesize as u64;
        if unwritten.len() as u64 * nodesize <= self.core.blocks.bytes_max() / 2 {
            drop(unwritten);
            if stays && block.is_leaf() {
                self.may_be_written(&block);
            }
            return Ok(());
        }
        drop(unwritten);
        self.write_early()
    }

    /// Writes blocks before the commit is complete, as it has more than memory has room for. Nothing that is durable leads to
    /// them, and should one of them be replaced yet, it is written again.
    fn write_early(&self) -> Result<()> {
        let _alone = self.early.take_over();
        let blocks = std::mem::take(&mut *self.unwritten.lock());
        let written = self.write_all(blocks)?;
        let unwritten = self.unwritten.lock();
        for bytenr in written.into_iter().filter(|bytenr| !unwritten.contains_key(bytenr)) {
            self.core.blocks.let_go(bytenr);
        }
        Ok(())
    }

    /// Writes neighbours while others are still made, unless they are written or replaced already.
    pub(super) fn write_early_run(&self, run: &[Arc<TreeBlock>]) -> Result<()> {
        let is_it =
            |found: Option<&Arc<TreeBlock>>, block| found.is_some_and(|it| Arc::ptr_eq(it, block));
        {
            let unwritten = self.unwritten.lock();
            if !run.iter().all(|block| is_it(unwritten.get(&block.bytenr()), block)) {
                return Ok(());
            }
        }
        self.write_run(run)?;
        self.count(run);
        let mut unwritten = self.unwritten.lock();
        for block in run {
            if is_it(unwritten.get(&block.bytenr()), block) {
                unwritten.remove(&block.bytenr());
                self.core.blocks.let_go(block.bytenr());
            }
        }
        Ok(())
    }

    pub(super) fn unplace(&self, bytenr: u64) {
        self.unwritten.lock().remove(&bytenr);
        self.core.blocks.forget(bytenr);
    }

    /// Nothing refers to these blocks of older commits any more.
    pub(super) fn left_behind(&self, blocks: &[u64]) {
        self.left_behind.lock().extend_from_slice(blocks);
    }

    /// Forgets what only the last commit has, once this one is published: the next blocks take its memory, where it would have
    /// grown until the cache is full. Who still reads the last commit finds it on the disk.
    fn forget_left_behind(&self) {
        for bytenr in self.left_behind.lock().drain(..) {
            self.core.blocks.forget(bytenr);
        }
    }

    pub(super) fn first_keys(&self) -> HashMap<u64, Key> {
        self.first_keys.lock().clone()
    }

    /// Writes every new block that is not written yet; answers their addresses.
    fn write_blocks(&self) -> Result<Vec<u64>> {
        let unwritten = std::mem::take(&mut *self.unwritten.lock());
        self.write_all(unwritten)
    }

    /// Writes blocks, neighbours together; answers their addresses.
    fn write_all(&self, blocks: Spread<u64, Arc<TreeBlock>>) -> Result<Vec<u64>> {
        let mut blocks: Vec<Arc<TreeBlock>> = blocks.into_values().collect();
        blocks.sort_unstable_by_key(|block| block.bytenr());
        let nodesize = self.core.features.nodesize;
        let mut runs: Vec<&[Arc<TreeBlock>]> = Vec::new();
        for neighbours in blocks.chunk_by(|a, b| a.bytenr() + nodesize as u64 == b.bytenr()) {
            runs.extend(neighbours.chunks((RUN_BYTES / nodesize).max(1)));
        }
        crate::threads::for_each_alike_unless(self.core.sequential, &runs, |run| {
            self.write_run(run)
        })?;
        self.count(&blocks);
        Ok(blocks.iter().map(|block| block.bytenr()).collect())
    }

    fn count(&self, written: &[Arc<TreeBlock>]) {
        let counters = &self.core.counters;
        let leaves = written.iter().filter(|block| block.is_leaf());
        let (leaves, items) = leaves.fold((0, 0), |sum, leaf| (sum.0 + 1, sum.1 + leaf.len()));
        stats::add(&counters.leaves, leaves);
        stats::add(&counters.items, items as u64);
        stats::add(&counters.nodes, written.len() as u64 - leaves);
    }

    fn write_run(&self, run: &[Arc<TreeBlock>]) -> Result<()> {
        let sealed = Sealed::of(self.core, self.transid, run)?;
        self.core.write_for_commit(run[0].bytenr(), &sealed.parts())
    }
}

/// New blocks with their checksums, to be written one after the other. A mistake of ours ends here, as an error, and never on the disk.
pub(super) struct Sealed<'r> {
    run: &'r [Arc<TreeBlock>],
    digests: Vec<Digest>,
}

impl<'r> Sealed<'r> {
    pub(super) fn of(core: &Core, transid: u64, run: &'r [Arc<TreeBlock>]) -> Result<Sealed<'r>> {
        let (csum, gate) = (core.features.csum, core.volume.gate());
        let seal = |block: &Arc<TreeBlock>| {
            let generation = Some(transid);
            gate.verify(block, &Expect { generation, ..Expect::at(block.bytenr()) })?;
            Ok(csum.digest(&block.as_bytes()[DIGEST_SIZE_MAX..]))
        };
        let digests = run.iter().map(seal).collect::<Result<_>>()?;
        Ok(Sealed { run, digests })
    }

    /// What is to be written: of each block the checksum, and what it is of.
    pub(super) fn parts(&self) -> Vec<&[u8]> {
        let sealed = self.run.iter().zip(&self.digests);
        let parts = sealed.flat_map(|(block, digest)| {
            [&digest.as_field()[..], &block.as_bytes()[DIGEST_SIZE_MAX..]]
        });
        parts.collect()
    }
}

/// Commits what `participant` has changed until now, if anything; answers the last durable transaction. `force` commits even
/// without changes.
pub fn commit(
    core: &Core,
    participant: &dyn Participant,
    force: bool,
    upkeep: Upkeep,
) -> Result<u64> {
    core.check_writable()?;
    // What was done before is in the running transaction, or in an older one.
    let covered = (!force).then(|| core.txn.running());
    let turn = core.txn.begin_commit(covered);
    core.txn.check()?;
    let Some(_turn) = turn else { return Ok(core.txn.committed()) };
    commit_alone(core, participant, force, upkeep)
}

/// Waits until transaction `transid` is durable. A commit under way that covers it is waited for; only where there is none, one is
/// made, and nothing where it is durable already.
pub fn commit_covering(
    core: &Core,
    participant: &dyn Participant,
    transid: u64,
    upkeep: Upkeep,
) -> Result<()> {
    core.check_writable()?;
    let turn = core.txn.begin_to_make_durable(transid);
    core.txn.check()?;
    match turn {
        Some(_turn) => commit_alone(core, participant, false, upkeep).map(drop),
        None => Ok(()),
    }
}

/// Commits whether or not anything has changed; what was let go of is free at once, and not after the next freeze only.
pub fn commit_for_space(core: &Core, participant: &dyn Participant, upkeep: Upkeep) -> Result<u64> {
    core.check_writable()?;
    let turn = match upkeep {
        Upkeep::Little => Some(core.txn.begin_upkeep()),
        Upkeep::None | Upkeep::Much => core.txn.begin_commit(None),
    };
    core.txn.check()?;
    let transid = commit_alone(core, participant, true, upkeep)?;
    // A log holds the gate while it is written.
    if let Some(turn) = &turn {
        turn.take_back();
    }
    core.txn.pause(|| core.space.settle_freed())?;
    Ok(transid)
}

/// What the last commit let go of is free at once, and not after the next freeze only. Nothing is committed.
pub fn settle_freed(core: &Core) -> Result<()> {
    core.check_writable()?;
    let turn = core.txn.begin_upkeep();
    core.txn.check()?;
    turn.take_back();
    core.txn.pause(|| core.space.settle_freed())
}

/// Commits, and moves what is asked for, while no operation runs. Where there is no room for what that `needs` beside what others were promised,
/// nothing is done.
pub fn relocate(
    core: &Core,
    participant: &dyn Participant,
    relocation: Relocation,
    needs: Need,
) -> Result<std::result::Result<Relocated, Shortage>> {
    core.check_writable()?;
    let turn = core.txn.begin_commit(None);
    core.txn.check()?;
    let is_changed = participant.is_dirty(Upkeep::None);
    core.txn.begin_to_hold_up();
    let guard = Guard { txn: &core.txn, what: "a commit panicked" };
    let frozen = core
        .txn
        .freeze_alone(|| core.space.reserve(needs), |transid| freeze(core, participant, transid));
    let done = match frozen {
        Ok(Err(shortage)) => {
            guard.disarm();
            return Ok(Err(shortage));
        }
        Ok(Ok((transid, gate))) => {
            *core.relocation.lock() = Some(relocation);
            let begun = core.env.now();
            let done = run(core, participant, transid, Upkeep::None).map(|()| transid);
            let has_others = is_changed || core.txn.held_up().is_some();
            drop(gate);
            done.map(|transid| (transid, core.env.now().since(begun), has_others))
        }
        Err(error) => Err(error),
    };
    core.relocation.lock().take();
    let (waited, has_others) =
        done.as_ref().map_or((Duration::ZERO, false), |(_, took, others)| (*took, *others));
    finish(core, guard, done.map(|(transid, ..)| transid))?;
    let held_up = core.txn.held_up().unwrap_or_default();
    if let Some(turn) = &turn {
        turn.take_back();
    }
    core.txn.pause(|| core.space.settle_freed())?;
    let relocated = core.relocated.lock().take().unwrap_or_default();
    Ok(Ok(Relocated { waited, held_up, has_others, ..relocated }))
}

/// A commit, and no other beside it.
fn commit_alone(
    core: &Core,
    participant: &dyn Participant,
    force: bool,
    upkeep: Upkeep,
) -> Result<u64> {
    if !force && !core.log.is_active() && !participant.is_dirty(upkeep) {
        core.waiting.nothing();
        // Somebody may have begun since it was looked at.
        if participant.is_dirty(upkeep) {
            core.waiting.begin();
        }
        return Ok(core.txn.committed());
    }
    // What a panic leaves of a commit is neither the last transaction nor this one, and the next freeze would replace it.
    let guard = Guard { txn: &core.txn, what: "a commit panicked" };
    let freeze = |transid| freeze(core, participant, transid);
    let frozen = core.counters.timed(Phase::Freeze, || core.txn.freeze(freeze));
    let done = frozen.and_then(|transid| run(core, participant, transid, upkeep).map(|()| transid));
    finish(core, guard, done)
}

/// No operation runs: what they have changed is the committing transaction's.
fn freeze(core: &Core, participant: &dyn Participant, transid: u64) {
    core.env.step("freeze");
    participant.freeze(transid);
    core.env.step("frozen");
    core.space.freeze();
    core.charges.freeze();
    core.env.step("space is frozen");
    core.waiting.freeze();
}

/// A commit has come to its end, or nothing is written any more.
fn finish(core: &Core, guard: Guard<'_>, done: Result<u64>) -> Result<u64> {
    match done {
        Ok(transid) => {
            guard.disarm();
            stats::add(&core.counters.commits, 1);
            Ok(transid)
        }
        Err(error) => {
            core.txn.abort(&error);
            let why = super::with_advice(&error);
            core.warn(format!("nothing more is written, as a commit failed: {why}"));
            Err(error)
        }
    }
}

fn run(core: &Core, participant: &dyn Participant, transid: u64, upkeep: Upkeep) -> Result<()> {
    if let Some(wrong) = core.volume.check_alone()? {
        core.warn(format!("the primary superblock is bad, and is written anew: {wrong}"));
    }
    core.volume.note_generation(transid);
    let (counters, step) = (&core.counters, |what| core.env.step(what));
    step("prepare");
    counters.timed(Phase::Prepare, || participant.prepare(core, transid))?;
    core.log.end(&core.space, core.features.nodesize as u64)?;
    let commit = Commit::new(core, transid, upkeep);
    step("merge");
    counters.timed(Phase::Merge, || commit.write_while(|| participant.merge(&commit)))?;
    step("settle");
    let (roots, trees) = counters.timed(Phase::Settle, || settle::settle(&commit))?;
    let moved = std::mem::take(&mut *commit.moved.lock());
    participant.moved(&moved);
    step("write");
    let written = counters.timed(Phase::Write, || commit.write_blocks())?;
    let mut superblock = superblock::next(core, &roots, transid)?;
    participant.superblock(&mut superblock);
    step("superblocks");
    // An operation of the next transaction may have panicked meanwhile, with space or blocks in its hands that both use.
    core.txn.check()?;
    let sealed =
        counters.timed(Phase::Superblocks, || core.volume.write_superblocks(&superblock))?;
    // The primary is durable, and with it the transaction: a copy that is missing is no reason to give up.
    for failed in sealed {
        core.warn(format!("a copy of the superblock could not be written: {failed}"));
    }
    step("publish");
    counters.timed(Phase::Publish, || {
        for bytenr in written {
            core.blocks.let_go(bytenr);
        }
        core.publish(roots);
        core.space.set_trees(trees);
        core.space.published();
        for warning in core.space.take_warnings() {
            core.warn(warning);
        }
        step("trees are published");
        participant.published();
        stats::add(&core.counters.beyond, core.space.committed());
        core.txn.durable(transid);
        step("logs can be written");
        participant.settled(core);
        step("layers are dropped");
        commit.forget_left_behind();
        step("space is free");
        core.waiting.settled();
        core.share_memory();
    });
    Ok(())
}
