//! Writing logs: fsyncs that wait at the same time share one version of the log, one superblock and its two barriers.
//!
//! An fsync writes what is buffered of its file, says which inode it is about and waits for the turn. Whoever gets it takes the inodes of
//! all who wait, and all that these need to be found: directories that the transaction has made, the inodes that entries of a logged
//! directory lead to. What is in the log and has another name by now is logged anew, so that what the log says is one state of the files and
//! not a mixture in which names are in each other's way. One tree of the log belongs to each subvolume, and one more leads to these.
//!
//! Where the log cannot say what is needed ([`Reason`]), all who wait commit, and the next transaction begins with an empty log.
//!
//! Crash argument: see [`LogTurn`]. Nobody is told that his fsync is done before the superblock that names this version is durable.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Weak};

use buttress_ondisk::item::RootItem;
use buttress_ondisk::{Key, SECTOR, kind, objectid};
use parking_lot::Mutex;
use zerocopy::IntoBytes;

use crate::error::{Error, Result};
use crate::inode::{Inode, LogEntry, LogExtent, LogNeed as Need, Logged, Reason};
use crate::stats;
use crate::subvol::Subvolume;
use crate::tree::{Merge, Root};
use crate::txn::{Core, LogTree, LogTurn, Op, new_root_item};

/// Tree blocks that a log has at most. It would never be read as a whole in the time of a few commits.
const BLOCKS_MAX: usize = 512;
/// How often names are looked at again because some have changed meanwhile.
const PASSES_MAX: usize = 16;
/// Inodes that have to be in the log beside one, at most.
const NEEDS_MAX: usize = 2048;

/// What has become of an fsync.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Synced {
    /// What it was about is durable.
    Done,
    /// It takes a commit.
    Commit(Reason),
}

/// One that waits.
#[derive(Debug)]
struct Wanted {
    subvolume: Arc<Subvolume>,
    inode: Arc<Inode>,
    synced: Mutex<Option<Synced>>,
}

/// The log of one subvolume.
#[derive(Debug, Default)]
struct Tree {
    root: Option<Root>,
    subvolume: Weak<Subvolume>,
    /// Sectors of which it has the checksums, by address: first and end.
    summed: BTreeMap<u64, u64>,
}

/// The log of one transaction.
#[derive(Debug, Default)]
struct State {
    transid: u64,
    root: Option<Root>,
    trees: BTreeMap<u64, Tree>,
    blocks: LogTree,
    /// No more of it in this transaction.
    closed: Option<Reason>,
}

/// Writes the logs of a filesystem.
#[derive(Debug, Default)]
pub struct Log {
    waiting: Mutex<Vec<Arc<Wanted>>>,
    state: Mutex<State>,
}

/// What is to be logged of one subvolume.
#[derive(Debug, Default)]
struct Changes {
    entries: BTreeMap<u64, LogEntry>,
    /// Those of which all is in `entries` that has changed.
    whole: BTreeSet<u64>,
}

impl Log {
    /// How many wait.
    #[cfg(test)]
    pub(crate) fn waiting(&self) -> usize {
        self.waiting.lock().len()
    }

    /// Has the log make an inode durable that transaction `transid` has changed; what came of it.
    pub fn sync(
        &self,
        core: &Core,
        subvolume: Arc<Subvolume>,
        inode: Arc<Inode>,
        transid: u64,
    ) -> Result<Synced> {
        core.check_writable()?;
        let flushed = core.txn.join(core).and_then(|op| subvolume.tree.flush_for_log(&op, &inode));
        // Whoever has the turn meets it again, and knows what then.
        let _met_again = flushed;
        let wanted = Arc::new(Wanted { subvolume, inode, synced: Mutex::default() });
        self.waiting.lock().push(wanted.clone());
        let is_done = |ended| ended >= transid || wanted.synced.lock().is_some();
        let turn = LogTurn::wait(core, is_done);
        core.txn.check()?;
        if let Some(turn) = turn {
            self.write(core, &turn)?;
        }
        // Where a commit was faster, nobody else is to look for it any more.
        Ok(*wanted.synced.lock().get_or_insert(Synced::Done))
    }

    /// Logs what all who wait are about.
    fn write(&self, core: &Core, turn: &LogTurn<'_>) -> Result<()> {
        let mut wanted = std::mem::take(&mut *self.waiting.lock());
        wanted.retain(|wanted| wanted.synced.lock().is_none());
        if wanted.is_empty() {
            return Ok(());
        }
        let mut state = self.state.lock();
        let op = turn.join()?;
        if state.transid != op.transid {
            *state = State { transid: op.transid, ..State::default() };
        }
        let done = match state.closed {
            Some(reason) => Ok(Some(reason)),
            None => state.log(&op, turn, &wanted),
        };
        drop(op);
        // A log that could not be written is no reason to give up: a commit may be.
        let (refused, fatal) = match done {
            Ok(refused) => (refused, None),
            Err(Error::NoSpace) => (Some(Reason::Room), None),
            // Nothing is written any more: who has met the cause hears of it, and the others that there is one.
            Err(error) if core.txn.check().is_err() => (Some(Reason::Failed), Some(error)),
            Err(error) => {
                core.warn(format!("a log could not be written, so an fsync is a commit: {error}"));
                (Some(Reason::Failed), None)
            }
        };
        if let Some(reason) = refused {
            state.closed = Some(reason);
            state.blocks.abandon(core);
        }
        let synced = refused.map_or(Synced::Done, Synced::Commit);
        let count = wanted.len() as u64;
        match refused {
            None => stats::add(&core.counters.log_syncs, count),
            Some(reason) => stats::add(&core.counters.log_refused[reason as usize], count),
        }
        for wanted in &wanted {
            *wanted.synced.lock() = Some(synced);
        }
        fatal.map_or(Ok(()), Err)
    }
}

impl State {
    /// Makes the next version of the log durable; why not, if it cannot be made.
    fn log(
        &mut self,
        op: &Op<'_>,
        turn: &LogTurn<'_>,
        wanted: &[Arc<Wanted>],
    ) -> Result<Option<Reason>> {
        let mut trees: BTreeMap<u64, (Arc<Subvolume>, Changes)> = BTreeMap::new();
        for wanted in wanted {
            op.core.env.step("a log takes one that waits");
            let subvolume = &wanted.subvolume;
            let (_, changes) = trees
                .entry(subvolume.id)
                .or_insert_with(|| (subvolume.clone(), Changes::default()));
            if let Some(reason) = changes.take(op, subvolume, &wanted.inode)? {
                return Ok(Some(reason));
            }
        }
        for (id, tree) in &self.trees {
            if let Some(subvolume) = tree.subvolume.upgrade() {
                trees.entry(*id).or_insert_with(|| (subvolume, Changes::default()));
            }
        }
        op.core.env.step("a log has its inodes");
        for (subvolume, changes) in trees.values_mut() {
            if let Some(reason) = changes.take_relogged(op, subvolume)? {
                return Ok(Some(reason));
            }
        }
        // Placing data may have made one.
        if !op.core.space.knows_all_chunks() {
            return Ok(Some(Reason::Chunk));
        }
        op.core.env.step("a log can be written");
        trees.retain(|_, (_, changes)| !changes.entries.is_empty());
        if trees.is_empty() {
            return Ok(None);
        }
        for (&id, (subvolume, changes)) in &trees {
            self.merge(op, id, changes)?;
            self.trees.entry(id).or_default().subvolume = Arc::downgrade(subvolume);
        }
        let root = self.merge_root(op, trees.keys())?;
        // Where data and metadata share chunks, an operation beside this may have made the one that holds a block of it.
        if !op.core.space.knows_all_chunks() {
            return Ok(Some(Reason::Chunk));
        }
        turn.publish(op.transid, self.blocks.new_blocks(), root)?;
        let counters = &op.core.counters;
        stats::add(&counters.log_writes, 1);
        stats::add(&counters.log_blocks, self.blocks.new_blocks().len() as u64);
        self.blocks.published(op.core);
        self.root = Some(root);
        if self.blocks.count() > BLOCKS_MAX {
            self.closed = Some(Reason::Large);
        }
        Ok(None)
    }

    /// The next version of the tree of a subvolume.
    fn merge(&mut self, op: &Op<'_>, id: u64, changes: &Changes) -> Result<()> {
        let tree = self.trees.entry(id).or_default();
        let mut exchange = self.blocks.exchange(op.core, op.transid);
        let blocks = &op.core.blocks;
        let mut merge = Merge::new(blocks, objectid::TREE_LOG, tree.root, &mut exchange)?;
        let mut sums: Vec<(u64, &[u8])> = Vec::new();
        for entry in changes.entries.values() {
            let mut items = entry.items.iter().peekable();
            for &(from, to) in &entry.cleared {
                merge.delete_range(from, to, |_, _| ())?;
                while let Some((key, data)) = items.next_if(|(key, _)| *key <= to) {
                    merge.put(*key, data)?;
                }
            }
            items.try_for_each(|(key, data)| merge.put(*key, data))?;
            entry.gone.iter().try_for_each(|key| merge.delete(key).map(drop))?;
            sums.extend(entry.sums.iter().map(|(at, sums)| (*at, sums.as_slice())));
        }
        sums.sort_unstable_by_key(|(at, _)| *at);
        let size = op.core.features.csum.size();
        for (at, sums) in sums {
            tree.put_sums(&mut merge, at, sums, size)?;
        }
        tree.root = Some(merge.finish()?);
        Ok(())
    }

    /// The next version of the tree that leads to those of subvolumes.
    fn merge_root<'t>(
        &mut self,
        op: &Op<'_>,
        changed: impl Iterator<Item = &'t u64>,
    ) -> Result<Root> {
        let mut exchange = self.blocks.exchange(op.core, op.transid);
        let blocks = &op.core.blocks;
        let mut merge = Merge::new(blocks, objectid::TREE_LOG, self.root, &mut exchange)?;
        for id in changed {
            let Some(root) = self.trees.get(id).and_then(|tree| tree.root) else { continue };
            let item = root_item(root, blocks.nodesize());
            merge.put(Key::new(objectid::TREE_LOG, kind::ROOT_ITEM, *id), item.as_bytes())?;
        }
        merge.finish()
    }
}

impl Tree {
    /// Puts the checksums of sectors that the log has none of yet: what is at an address does not change before the commit.
    fn put_sums(&mut self, merge: &mut Merge<'_>, at: u64, sums: &[u8], size: usize) -> Result<()> {
        let end = at + (sums.len() / size) as u64 * SECTOR;
        let mut pos = at;
        while pos < end {
            if let Some((_, &to)) = self.summed.range(..=pos).next_back()
                && to > pos
            {
                pos = to;
                continue;
            }
            let next = self.summed.range(pos..).next().map_or(end, |(&from, _)| from.min(end));
            // An item takes less than half of the smallest leaf.
            let to = next.min(pos + (1024 / size) as u64 * SECTOR);
            let index = |address: u64| ((address - at) / SECTOR) as usize * size;
            let key = Key::new(objectid::EXTENT_CSUM, kind::EXTENT_CSUM, pos);
            merge.put(key, &sums[index(pos)..index(to)])?;
            self.summed.insert(pos, to);
            pos = to;
        }
        Ok(())
    }
}

/// The root item of a log.
fn root_item(root: Root, nodesize: usize) -> RootItem {
    RootItem {
        generation: root.generation.into(),
        generation_v2: root.generation.into(),
        bytenr: root.bytenr.into(),
        bytes_used: (nodesize as u64).into(),
        level: root.level,
        ..new_root_item()
    }
}

impl Changes {
    /// Takes an inode, and all that it needs to be found. Once: whoever waits has changed it before, and what has changed since the last
    /// time would take the place of what had changed before that.
    fn take(
        &mut self,
        op: &Op<'_>,
        subvolume: &Subvolume,
        inode: &Arc<Inode>,
    ) -> Result<Option<Reason>> {
        if !subvolume.is_known_before(op.transid) || subvolume.is_dead() {
            return Ok(Some(Reason::Subvolume));
        }
        if self.whole.contains(&inode.ino) {
            return Ok(None);
        }
        let entry = match subvolume.tree.log(op, inode, LogExtent::Whole)? {
            Logged::Entry(entry) => entry,
            Logged::Nothing => return Ok(None),
            Logged::Commit(reason) => return Ok(Some(reason)),
        };
        let needs = entry.needs.clone();
        self.whole.insert(entry.ino);
        self.entries.insert(entry.ino, entry);
        self.take_needs(op, subvolume, needs)
    }

    /// Takes what has to be in the log beside an inode, what that needs, and so on.
    fn take_needs(
        &mut self,
        op: &Op<'_>,
        subvolume: &Subvolume,
        mut needs: Vec<Need>,
    ) -> Result<Option<Reason>> {
        let (mut seen, mut taken) = (BTreeSet::new(), 0);
        while let Some(need) = needs.pop() {
            // One that had a name left may have lost that one, too, since it was asked.
            if !seen.insert(need) && !matches!(need, Need::Stray(_)) {
                continue;
            }
            taken += 1;
            if taken > NEEDS_MAX {
                return Ok(Some(Reason::Large));
            }
            op.core.env.step("a log takes one more");
            let (Need::Directory(ino) | Need::Entry(ino) | Need::Stray(ino) | Need::Lost(ino)) =
                need;
            let Some((inode, is_new)) = subvolume.tree.named(op, ino)? else {
                if let Need::Lost(_) = need {
                    return Ok(Some(Reason::Taken));
                }
                continue;
            };
            let extent = match need {
                Need::Directory(_) if !is_new => continue,
                Need::Directory(_) => LogExtent::Exists,
                Need::Entry(_) if is_new => LogExtent::Exists,
                Need::Entry(_) => LogExtent::Named,
                Need::Stray(_) => LogExtent::Alive,
                Need::Lost(_) => LogExtent::Lost,
            };
            if let Some(reason) = self.take_also(op, subvolume, (&inode, extent), &mut needs)? {
                return Ok(Some(reason));
            }
        }
        Ok(None)
    }

    /// Takes one more inode; what it needs is added.
    fn take_also(
        &mut self,
        op: &Op<'_>,
        subvolume: &Subvolume,
        (inode, extent): (&Arc<Inode>, LogExtent),
        needs: &mut Vec<Need>,
    ) -> Result<Option<Reason>> {
        match subvolume.tree.log(op, inode, extent)? {
            Logged::Entry(entry) => {
                needs.extend(&entry.needs);
                if entry.whole {
                    self.whole.insert(entry.ino);
                }
                match self.entries.get_mut(&inode.ino) {
                    Some(taken) => taken.rename(entry),
                    None => drop(self.entries.insert(entry.ino, entry)),
                }
                Ok(None)
            }
            Logged::Nothing => Ok(None),
            Logged::Commit(reason) => Ok(Some(reason)),
        }
    }

    /// Takes the names of what is in the log, or in this version already, and has changed since: until nothing has, so that no name is in
    /// it twice. Whoever changes an inode that is in the log says so first.
    fn take_relogged(&mut self, op: &Op<'_>, subvolume: &Subvolume) -> Result<Option<Reason>> {
        for _ in 0..PASSES_MAX {
            let changed = subvolume.tree.take_relogged();
            if changed.is_empty() {
                return Ok(None);
            }
            if let Some(reason) = self.take_names(op, subvolume, changed)? {
                return Ok(Some(reason));
            }
            op.core.env.step("a log has what changed");
        }
        Ok(Some(Reason::Large))
    }

    fn take_names(
        &mut self,
        op: &Op<'_>,
        subvolume: &Subvolume,
        changed: Vec<Arc<Inode>>,
    ) -> Result<Option<Reason>> {
        for inode in changed {
            let mut needs = Vec::new();
            let what = (&inode, LogExtent::Names);
            if let Some(reason) = self.take_also(op, subvolume, what, &mut needs)? {
                return Ok(Some(reason));
            }
            if let Some(reason) = self.take_needs(op, subvolume, needs)? {
                return Ok(Some(reason));
            }
        }
        Ok(None)
    }
}
