//! A tree of files: the table of its inodes in memory, what is published of it, and what a commit does with it.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence};

use buttress_ondisk::item::InodeItem;
use buttress_ondisk::{Key, kind, objectid};
use crossbeam_utils::CachePadded;
use parking_lot::{Mutex, RwLock, RwLockWriteGuard};

use super::attributes::Attributes;
use super::delalloc::Dirty;
use super::file::{Cache, Layers, prepare};
use super::holds::Holds;
use super::link::Link;
use super::state::{Frozen, State, Stored};
use super::steps::Leaving;
use super::strays::{Stray, Strays};
use super::{Inode, TOP};
use crate::error::{Errno, Error, Result};
use crate::hash::Rows;
use crate::stripes::Striped;
use crate::threads;
use crate::tree::{Published, Recent, Root, View};
use crate::txn::{Core, Op};

pub(super) const SHARDS: usize = 64;
/// Changed inodes are counted so many at a time, as all threads count together.
const COUNTED: usize = 16;
/// Changed inodes that a thread takes at a time.
const AT_A_TIME: usize = 512;
/// Inodes whose data are placed at a time, and bytes of which no more are added to them: they are locked meanwhile.
pub(super) const PLACED_AT_A_TIME: usize = 64;
pub(super) const PLACED_BYTES: u64 = 512 << 10;

#[derive(Debug)]
struct Shard {
    inodes: Rows<Arc<Inode>, { SHARDS as u64 }>,
    /// Holds of inodes that were evicted.
    holds: Holds,
    /// Inodes to keep, besides those in use.
    keep: usize,
    /// Not swept before it has this size.
    limit: usize,
}

/// A changed inode, with its number beside it for sorting.
pub(super) type Listed = (u64, Arc<Inode>);

/// What a commit writes of a tree.
#[derive(Debug, Default)]
pub(super) struct Committing {
    /// The transaction, once prepared.
    pub transid: u64,
    /// What they count in [`FileTree::changed`].
    counted: usize,
    /// In the order of their numbers, once prepared.
    pub inodes: Vec<Listed>,
    /// From this position on, all are new: the tree holds nothing of them.
    pub new_from: usize,
    /// Positions of directories whose entries are emitted in parts.
    pub large: Vec<usize>,
}

/// What freezing the layers of some inodes has found.
#[derive(Debug, Default)]
struct Found {
    with_data: Vec<Arc<Inode>>,
    /// The position after the last inode that the tree may hold.
    old_to: usize,
    large: Vec<usize>,
}

/// What is left in memory of a tree that nobody uses.
#[derive(Debug)]
pub struct Asleep {
    next_ino: u64,
    held: usize,
    /// How often its inodes are held, by shards; nothing where none is. The tables themselves, as they may be large.
    holds: Box<[Holds]>,
}

/// A subvolume's tree: its inodes, and its last published version.
#[derive(Debug)]
pub struct FileTree {
    /// The tree's id.
    pub id: u64,
    /// The published version; `None` until the first commit of a new tree.
    root: Published,
    /// Where it was searched.
    recent: Recent,
    shards: Vec<RwLock<Shard>>,
    next_ino: CachePadded<AtomicU64>,
    /// Inodes that the running transaction has changed.
    pub(super) dirty: Striped<Mutex<Dirty>>,
    /// Those of them that are in the log and have changed since.
    pub(super) relog: Mutex<Vec<Arc<Inode>>>,
    pub(super) strays: Mutex<Strays>,
    /// How many directories of the last commit are elsewhere now.
    moved: AtomicUsize,
    /// How often a name that is in the log was given to what may not be in it.
    tangles: AtomicUsize,
    /// Inodes of the transaction that is being committed.
    pub(super) committing: Mutex<Committing>,
    /// How many inodes are on these two lists; for each stripe up to [`COUNTED`] more.
    changed: CachePadded<AtomicUsize>,
    /// Orphan items without inode, to be removed by the next commit; and by the one under way.
    stale_orphans: Mutex<[BTreeSet<u64>; 2]>,
    /// Files that go in steps.
    pub(super) leaving: Mutex<Vec<Leaving>>,
    /// Orders renames between directories.
    pub(super) renames: Mutex<()>,
    read_only: AtomicBool,
    /// The transaction after which the last snapshot was taken.
    last_snapshot: AtomicU64,
    /// What files keep of the compressed extents that were read last, the oldest first.
    pub(super) kept: Mutex<VecDeque<Arc<Cache>>>,
    /// An inode was looked for since [`FileTree::rest`] was called last, or a commit has written many.
    used: AtomicBool,
    /// Nothing is remembered of a tree that nobody uses.
    resting: AtomicBool,
    /// Inodes that a shard keeps.
    keep: AtomicUsize,
    /// How often its inodes are held, all together; [`CLOSED`] when no more may be.
    pub(super) held: CachePadded<AtomicUsize>,
}

/// Of a tree of which nothing may be held any more.
pub(super) const CLOSED: usize = usize::MAX;

impl FileTree {
    /// The tree `id`, of which `root` is the last committed version; `None` for a new tree, whose top directory
    /// [`FileTree::create_top`] makes.
    pub fn open(core: &Core, id: u64, root: Option<Root>, read_only: bool) -> Result<FileTree> {
        let next_ino = match root {
            // Who only reads makes none, and need not find its last leaf readable.
            Some(root) if !core.read_only => first_unused(&View::new(&core.blocks, id, root))?,
            _ => TOP + 1,
        };
        let keep = core.inodes_max.div_ceil(SHARDS);
        let shard = || RwLock::new(Shard::new(keep));
        Ok(FileTree {
            id,
            root: Published::new(root),
            recent: Recent::default(),
            shards: (0..SHARDS).map(|_| shard()).collect(),
            next_ino: AtomicU64::new(next_ino).into(),
            dirty: Striped::default(),
            relog: Mutex::default(),
            strays: Mutex::default(),
            moved: AtomicUsize::new(0),
            tangles: AtomicUsize::new(0),
            committing: Mutex::default(),
            changed: AtomicUsize::new(0).into(),
            stale_orphans: Mutex::default(),
            leaving: Mutex::default(),
            renames: Mutex::default(),
            read_only: AtomicBool::new(read_only),
            last_snapshot: AtomicU64::new(0),
            kept: Mutex::default(),
            used: AtomicBool::new(true),
            resting: AtomicBool::new(false),
            keep: AtomicUsize::new(keep),
            held: AtomicUsize::new(0).into(),
        })
    }

    /// The published version.
    pub fn root(&self) -> Option<Root> {
        self.root.get()
    }

    /// The published version, to read. Load it *after* an inode was locked: what the inode no longer holds as a layer is in
    /// there then. In a tree that was never committed there is nothing to read, and no inode is `on_disk`.
    pub(super) fn view<'a>(&'a self, core: &'a Core) -> View<'a> {
        let nowhere = Root { bytenr: 0, generation: 0, level: 0 };
        View::new(&core.blocks, self.id, self.root().unwrap_or(nowhere)).with_recent(&self.recent)
    }

    /// Whether changes are refused.
    pub fn is_read_only(&self) -> bool {
        self.read_only.load(Ordering::Acquire)
    }

    /// Refuses changes from now on, or allows them. To be called while no operation runs in the tree.
    pub fn set_read_only(&self, read_only: bool) {
        self.read_only.store(read_only, Ordering::Release);
    }

    /// A snapshot is taken after transaction `transid`: what is as old as that may be shared.
    pub fn note_snapshot(&self, transid: u64) {
        self.last_snapshot.fetch_max(transid, Ordering::AcqRel);
    }

    pub(super) fn last_snapshot(&self) -> u64 {
        self.last_snapshot.load(Ordering::Acquire)
    }

    pub(super) fn writable(&self) -> Result<()> {
        if self.is_read_only() { Err(Error::User(Errno::ROFS)) } else { Ok(()) }
    }

    // ---- the table ----

    fn shard(&self, ino: u64) -> &RwLock<Shard> {
        &self.shards[(ino % SHARDS as u64) as usize]
    }

    /// The inode `ino`; ENOENT when there is none.
    pub fn get(&self, op: &Op<'_>, ino: u64) -> Result<Arc<Inode>> {
        if !self.used.load(Ordering::Relaxed) {
            self.used.store(true, Ordering::Relaxed);
        }
        if let Some(inode) = self.shard(ino).read().inodes.get(&ino) {
            if inode.gone.load(Ordering::Acquire) {
                return Err(Error::User(Errno::NOENT));
            }
            // Who writes takes the cache line from who looks at the same time.
            if !inode.recent.load(Ordering::Relaxed) {
                inode.recent.store(true, Ordering::Relaxed);
            }
            return Ok(inode.clone());
        }
        let key = Key::new(ino, kind::INODE_ITEM, 0);
        let item = match self.root() {
            Some(_) if ino <= objectid::LAST_FREE => self.view(op.core).get(&key),
            _ => Ok(None),
        };
        let item = match item {
            Err(why) if op.core.salvages && why.is_damage() => {
                return Ok(self.remember(Inode::new(ino, self.salvaged(op.core, ino, why)?)));
            }
            item => item?,
        };
        let item = item.ok_or(Error::User(Errno::NOENT))?;
        // Xattrs would stand behind the names, which are next.
        let behind =
            item.keys_behind().find(|key| key.objectid != ino || key.kind >= kind::XATTR_ITEM);
        let plain = behind.is_some_and(|key| key.objectid != ino || key.kind > kind::XATTR_ITEM)
            && item.leaf().lost().is_empty();
        let item = InodeItem::of(item.data())
            .ok_or_else(|| Error::inconsistent(self.id, "an inode item is too short", key))?;
        let mut state = State::loaded(Attributes::read(item));
        state.stored = if plain { Stored::Nothing } else { Stored::Unknown };
        Ok(self.remember(Inode::new(ino, state)))
    }

    /// Puts an inode into the table; the one that is in it already wins.
    pub(super) fn remember(&self, inode: Arc<Inode>) -> Arc<Inode> {
        let mut shard = self.shard_with_room(inode.ino);
        let Shard { inodes, holds, .. } = &mut *shard;
        let entry = inodes.entry(inode.ino);
        entry.or_insert_with(|| with_holds(inode, holds)).clone()
    }

    /// Puts a new inode into the table, which has none of its number.
    pub(super) fn remember_new(&self, inode: Arc<Inode>) {
        let mut shard = self.shard_with_room(inode.ino);
        let Shard { inodes, holds, .. } = &mut *shard;
        let before = inodes.insert(inode.ino, with_holds(inode, holds));
        debug_assert!(before.is_none(), "an inode with the number of a new one");
    }

    /// The shard of an inode, which may get one more.
    fn shard_with_room(&self, ino: u64) -> RwLockWriteGuard<'_, Shard> {
        let mut shard = self.shard(ino).write();
        if shard.inodes.len() >= shard.limit.max(shard.keep) {
            let changed = self.changed.load(Ordering::Relaxed) / SHARDS;
            if shard.inodes.len() >= shard.limit.max(shard.keep + changed) {
                shard.sweep(changed);
            }
        }
        shard
    }

    /// To be called now and then. A tree that was not used since remembers nothing any more: there may be thousands of
    /// snapshots; one that is used keeps about `inodes`. Whether it has come to rest.
    pub fn rest(&self, inodes: usize) -> bool {
        self.keep_about(inodes);
        if self.used.swap(false, Ordering::Relaxed) {
            self.resting.store(false, Ordering::Relaxed);
            return false;
        }
        if !self.resting.swap(true, Ordering::Relaxed) {
            self.forget_unused();
        }
        true
    }

    /// Forgets what can be read again, used or not so long ago.
    pub fn forget_unused(&self) {
        self.shards.iter().for_each(|shard| shard.write().evict(|_| false));
        self.forget_decompressed();
    }

    /// Forgets decompressed extents, which are known by their addresses.
    pub fn forget_decompressed(&self) {
        self.kept.lock().drain(..).for_each(|cache| cache.clear());
    }

    /// Remembers about `inodes` inodes from now on.
    pub fn keep_about(&self, inodes: usize) {
        let keep = inodes.div_ceil(SHARDS);
        let before = self.keep.swap(keep, Ordering::Relaxed);
        if before == keep {
            return;
        }
        for shard in &self.shards {
            let mut shard = shard.write();
            shard.keep = keep;
            if keep < before {
                shard.shrink(0);
            }
        }
    }

    /// Whether nobody used it between the last two calls of [`FileTree::rest`].
    pub fn is_resting(&self) -> bool {
        self.resting.load(Ordering::Relaxed)
    }

    /// What must be remembered of a tree that can be opened again when somebody looks for it: `None` while it is used, or
    /// holds what its published version does not.
    pub fn asleep(&mut self) -> Option<Asleep> {
        let idle = *self.resting.get_mut() && !*self.used.get_mut();
        let committing = self.committing.get_mut();
        let clean = self.dirty.all_mut().all(|dirty| dirty.get_mut().inodes.is_empty())
            && committing.inodes.is_empty()
            && self.stale_orphans.get_mut().iter().all(BTreeSet::is_empty)
            && self.leaving.get_mut().is_empty()
            && self.root.get().is_some();
        if !idle || !clean {
            return None;
        }
        // What was in use when the tree came to rest.
        self.shards.iter_mut().for_each(|shard| shard.get_mut().evict(|_| false));
        if self.shards.iter_mut().any(|shard| !shard.get_mut().inodes.is_empty()) {
            return None;
        }
        let mut holds = Box::default();
        if self.shards.iter_mut().any(|shard| !shard.get_mut().holds.is_empty()) {
            let of_shard = |shard: &mut RwLock<Shard>| std::mem::take(&mut shard.get_mut().holds);
            holds = self.shards.iter_mut().map(of_shard).collect();
        }
        Some(Asleep { next_ino: *self.next_ino.get_mut(), held: *self.held.get_mut(), holds })
    }

    /// The tree was opened again.
    pub fn wake(&mut self, asleep: Asleep) {
        let next_ino = self.next_ino.get_mut();
        *next_ino = asleep.next_ino.max(*next_ino);
        *self.held.get_mut() = asleep.held;
        for (shard, holds) in self.shards.iter_mut().zip(asleep.holds) {
            shard.get_mut().holds = holds;
        }
    }

    /// Takes an inode out of the table: it was deleted, and no version that can be read holds it.
    pub(super) fn forget(&self, ino: u64) {
        let mut shard = self.shard(ino).write();
        shard.inodes.remove(&ino);
        shard.holds.take(ino);
    }

    /// A number that no inode has.
    pub(super) fn next_ino(&self) -> Result<u64> {
        let ino = self.next_ino.fetch_add(1, Ordering::Relaxed);
        if ino > objectid::LAST_FREE {
            self.next_ino.store(objectid::LAST_FREE + 1, Ordering::Relaxed);
            return Err(Error::NoSpace);
        }
        Ok(ino)
    }

    /// The inode `ino` has come from elsewhere: new ones have larger numbers.
    pub(super) fn raise_next_ino(&self, ino: u64) {
        self.next_ino.fetch_max(ino.saturating_add(1), Ordering::Relaxed);
    }

    /// Those that the running transaction has changed.
    pub(super) fn changed_inodes(&self) -> Vec<Arc<Inode>> {
        let of_stripe = |dirty: &Mutex<Dirty>| -> Vec<_> {
            dirty.lock().inodes.iter().map(|(_, inode)| inode.clone()).collect()
        };
        self.dirty.all().flat_map(of_stripe).collect()
    }

    /// How many inodes are in memory.
    pub fn loaded(&self) -> usize {
        self.shards.iter().map(|shard| shard.read().inodes.len()).sum()
    }

    /// Whether an inode is.
    #[cfg(test)]
    pub(super) fn is_loaded(&self, ino: u64) -> bool {
        self.shard(ino).read().inodes.contains_key(&ino)
    }

    // ---- the commit ----

    pub(super) fn list_dirty(&self, inode: &Arc<Inode>) {
        let mut dirty = self.dirty.mine().lock();
        if dirty.inodes.len() >= dirty.counted {
            dirty.counted += COUNTED;
            self.changed.fetch_add(COUNTED, Ordering::Relaxed);
        }
        dirty.inodes.push((inode.ino, inode.clone()));
    }

    /// An inode that is in the log has changed since.
    pub(super) fn relog(&self, inode: &Arc<Inode>) {
        self.relog.lock().push(inode.clone());
    }

    /// An inode loses a name and lives on.
    pub(super) fn note_lost_name(&self, ino: u64, state: &State, link: Link<'_>) {
        if !state.live.created {
            let directory = state.attributes.is_directory();
            let stray = if directory { Stray::Other } else { Stray::File(ino) };
            self.strays.lock().add((link.parent, link.index), link.name, stray);
            self.moved.fetch_add(usize::from(directory), Ordering::Relaxed);
        }
    }

    /// An inode goes with its last name.
    pub(super) fn note_last_name(&self, ino: u64, state: &State, link: Link<'_>) {
        if !state.live.created && state.attributes.is_directory() {
            let mut strays = self.strays.lock();
            if strays.any_of(ino) {
                strays.add((link.parent, link.index), link.name, Stray::Other);
            }
        }
    }

    /// Whether a directory of the last commit is elsewhere now.
    pub(super) fn has_moved_directories(&self) -> bool {
        self.moved.load(Ordering::Relaxed) > 0
    }

    /// The name of a subvolume goes, which replay would not take away.
    pub(super) fn note_lost_subvolume(&self, link: Link<'_>) {
        self.strays.lock().add((link.parent, link.index), link.name, Stray::Other);
    }

    /// An inode or a directory that is in the log gives a name to another inode at once. There was no moment without that name, but in a
    /// log that has not both there would be: from now on it takes a commit.
    pub(super) fn note_handed_over(&self, from: &mut State, transid: u64) {
        from.handed_over = true;
        if from.logged == transid {
            self.tangles.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// A directory has lost an entry that had taken the place of one of the last commit, which would be there again if what it led to is in
    /// the log (`was_logged`). So the log takes away from the directory what it has lost.
    pub(super) fn note_uncovered(&self, dir: &Arc<Inode>, state: &mut State, was_logged: bool) {
        if was_logged {
            state.uncovers = true;
            if !std::mem::replace(&mut state.relog, true) {
                self.relog(dir);
            }
        }
    }

    pub(super) fn is_tangled(&self) -> bool {
        self.tangles.load(Ordering::Relaxed) > 0
    }

    /// The orphan item of an inode that does not exist: the next commit removes it.
    pub(super) fn note_stale_orphan(&self, ino: u64) {
        self.stale_orphans.lock()[0].insert(ino);
    }

    /// Whether it has changed anything since the last commit, or that is under way.
    pub fn may_have_changed(&self) -> bool {
        self.changed.load(Ordering::Relaxed) > 0
    }

    /// Whether the running transaction has changed anything.
    pub fn is_dirty(&self) -> bool {
        let any = || self.dirty.all().any(|dirty| !dirty.lock().inodes.is_empty());
        self.may_have_changed() && any() || !self.stale_orphans.lock()[0].is_empty()
    }

    /// Step 1 of a commit, while no operation runs: sets aside what has changed. Whether that is anything is returned; the
    /// other steps may be left out otherwise.
    pub fn freeze(&self) -> bool {
        let (mut frozen, mut counted) = (Vec::new(), 0);
        // There may be thousands of trees of which nothing has.
        if self.may_have_changed() {
            for dirty in self.dirty.all() {
                let mut dirty = std::mem::take(&mut *dirty.lock());
                counted += dirty.counted;
                if frozen.is_empty() {
                    frozen = dirty.inodes;
                } else {
                    frozen.append(&mut dirty.inodes);
                }
            }
        }
        self.relog.lock().clear();
        self.strays.lock().clear();
        self.moved.store(0, Ordering::Relaxed);
        self.tangles.store(0, Ordering::Relaxed);
        let mut stale = self.stale_orphans.lock();
        stale[1] = std::mem::take(&mut stale[0]);
        let any = !frozen.is_empty() || !stale[1].is_empty();
        let mut committing = self.committing.lock();
        committing.counted = counted;
        let before = std::mem::replace(&mut committing.inodes, frozen);
        debug_assert!(before.is_empty(), "the last commit was not published");
        any
    }

    /// Step 2: freezes the layers of transaction `transid` and writes the data in them. Small ones stay where they are.
    pub fn prepare(&self, core: &Core, transid: u64) -> Result<()> {
        let mut with_data = Vec::new();
        {
            let committing = &mut *self.committing.lock();
            committing.inodes.sort_unstable_by_key(|(ino, _)| *ino);
            (committing.transid, committing.new_from, committing.large) = (transid, 0, Vec::new());
            let parts: Vec<_> = committing.inodes.chunks(AT_A_TIME).enumerate().collect();
            let rotate = |&(number, part): &(usize, &[Listed])| {
                Ok(rotate_all(part, number * AT_A_TIME, transid))
            };
            for found in threads::map_alike(&parts, rotate)? {
                with_data.extend(found.with_data);
                committing.new_from = committing.new_from.max(found.old_to);
                committing.large.extend(found.large);
            }
        }
        // Few are spread over all threads, unless what goes where must not depend on how many these are.
        let at_a_time = match core.sequential {
            true => PLACED_AT_A_TIME,
            false => (with_data.len() / (4 * threads::count())).clamp(1, PLACED_AT_A_TIME),
        };
        let some: Vec<_> = with_data.chunks(at_a_time).collect();
        threads::for_each_alike_unless(core.sequential, &some, |inodes| self.place(core, inodes))
    }

    /// Gives the data of frozen layers their places. The inodes are locked meanwhile: layers buffer little.
    fn place(&self, core: &Core, inodes: &[Arc<Inode>]) -> Result<()> {
        let mut rest = inodes;
        while let Some((first, others)) = rest.split_first() {
            // Who has one of them may wait for another: only the first is waited for.
            let mut states = vec![first.write()];
            let mut work = states[0].work_to_place();
            for inode in others {
                if work >= PLACED_BYTES {
                    break;
                }
                let Some(state) = inode.state.try_write() else { break };
                work = work.saturating_add(state.work_to_place());
                states.push(state);
            }
            let (now, later) = rest.split_at(states.len());
            self.place_locked(core, now, &mut states)?;
            rest = later;
        }
        Ok(())
    }

    fn place_locked(
        &self,
        core: &Core,
        inodes: &[Arc<Inode>],
        states: &mut [RwLockWriteGuard<'_, State>],
    ) -> Result<()> {
        let (mut files, mut counts) = (Vec::new(), Vec::new());
        for (inode, state) in inodes.iter().zip(states) {
            let State { frozen: Some(frozen), attributes: now, on_disk, .. } = &mut **state else {
                continue;
            };
            // Whoever looks at the layer does so under the lock. A commit without these data would lose them.
            let in_use = || Error::inconsistent(self.id, "a frozen layer is in use", inode.ino);
            let Frozen { attributes, changes, file } = Arc::get_mut(frozen).ok_or_else(in_use)?;
            let Some(file) = file else { continue };
            let file = Arc::get_mut(file).ok_or_else(in_use)?;
            if changes.deleted {
                file.abandon(core)?;
                continue;
            }
            let Attributes { size, flags, .. } = *attributes;
            let (ino, in_tree, view) = (inode.ino, *on_disk, self.view(core));
            let layers =
                Layers { ino, size, in_tree, frozen: None, view, flags, last_snapshot: None };
            files.push((file, layers));
            counts.push((&mut attributes.nbytes, &mut now.nbytes));
        }
        let prepared = prepare(core, &mut files)?;
        core.env.step("data without their count");
        for (prepared, (nbytes, now)) in prepared.iter().zip(counts) {
            *nbytes = prepared.nbytes(*nbytes);
            *now = prepared.nbytes(*now);
        }
        Ok(())
    }

    /// Those of the commit under way.
    pub(super) fn committing_stale_orphans(&self) -> BTreeSet<u64> {
        self.stale_orphans.lock()[1].clone()
    }

    /// Step 4: `root` is durable, and what is read from now on. It has what the frozen layers have, which go after.
    pub fn publish(&self, root: Root) {
        self.root.set(root);
    }

    /// Step 5: the layers that the tree contains are dropped.
    pub fn settle(&self) {
        self.stale_orphans.lock()[1].clear();
        let Committing { transid, counted, mut inodes, .. } =
            std::mem::take(&mut *self.committing.lock());
        self.changed.fetch_sub(counted, Ordering::Relaxed);
        if inodes.len() >= AT_A_TIME {
            // Who makes so much that he had to wait for this commit has looked for nothing meanwhile, and goes on now.
            self.used.store(true, Ordering::Relaxed);
        }
        let evicted = self.make_room(inodes.len());
        let mut parts = Vec::with_capacity(inodes.len() / AT_A_TIME + 1);
        while !inodes.is_empty() {
            let from = inodes.len().saturating_sub(AT_A_TIME);
            parts.push(Mutex::new((from, inodes.split_off(from))));
        }
        // Each is let go of while it is at hand, before the shards look who still uses it.
        let freeing = Mutex::new(());
        let done = threads::for_each_alike_unless(false, &parts, |part| {
            let (from, inodes) = std::mem::take(&mut *part.lock());
            for (at, (_, inode)) in (from..).zip(&inodes) {
                if at >= evicted || !self.evict_plain(inode) {
                    self.settled(inode, transid);
                }
            }
            // Neighbours were made by whoever, so their memory comes from the same few heaps: threads that free at once would wait for each other
            // at each inode.
            let _alone = freeing.lock();
            drop(inodes);
            Ok(())
        });
        debug_assert!(done.is_ok());
        let changed = self.changed.load(Ordering::Relaxed) / SHARDS;
        let done = threads::for_each_alike_unless(false, &self.shards, |shard| {
            shard.write().shrink(changed);
            Ok(())
        });
        debug_assert!(done.is_ok());
        // Even a tree that nobody uses could not let go of what was changed.
        self.resting.store(false, Ordering::Relaxed);
    }

    /// The tree holds `count` inodes now that were changed. Where more are in memory than there may be, half as many as that stay of those that are as
    /// they were made, the last ones: how many are not among these is returned. So do older ones that were used since their own commit.
    fn make_room(&self, count: usize) -> usize {
        let changed = self.changed.load(Ordering::Relaxed);
        for shard in &self.shards {
            let mut shard = shard.write();
            let older = shard.inodes.len().saturating_sub((changed + count) / SHARDS);
            if older > shard.keep / 2 + 1 {
                shard.evict_unused();
            }
        }
        let keep = self.keep.load(Ordering::Relaxed) * SHARDS;
        let others = self.loaded().saturating_sub(changed);
        if others > keep { count.saturating_sub(keep / 2) } else { 0 }
    }

    /// Evicts an inode that the tree holds now as it was made, if nobody uses it but who lists what was committed: its layer goes with it. Whether
    /// it was evicted.
    fn evict_plain(&self, inode: &Arc<Inode>) -> bool {
        if !inode.plain.load(Ordering::Relaxed) {
            return false;
        }
        let mut shard = self.shard(inode.ino).write();
        // Who changes or holds it has an `Arc` that it got under the lock of this shard; who has changed it since has it on his list.
        let unused = Arc::strong_count(inode) == 2;
        fence(Ordering::Acquire);
        unused && !inode.is_held() && shard.inodes.remove(&inode.ino).is_some()
    }

    /// The tree holds the layer of transaction `transid` of an inode.
    fn settled(&self, inode: &Inode, transid: u64) {
        let mut state = inode.write();
        let knows_many = state.name_hashes.as_ref().is_some_and(|known| known.are_many());
        inode.knows_many.store(knows_many, Ordering::Relaxed);
        inode.recent.store(false, Ordering::Relaxed);
        // A log that was faster has done so with one that stays.
        if state.settle_in_place(transid) || state.settle() {
            return;
        }
        let deleted = state.frozen.take().is_some();
        drop(state);
        if deleted {
            self.forget(inode.ino);
        }
    }
}

/// An inode that comes into the table: how often it is held was kept for it.
fn with_holds(inode: Arc<Inode>, holds: &mut Holds) -> Arc<Inode> {
    if let Some(count) = holds.take(inode.ino) {
        inode.holds.store(count, Ordering::Release);
    }
    inode
}

/// Freezes the layers of some inodes, of which the first is at position `at`, but for small ones.
fn rotate_all(inodes: &[Listed], at: usize, transid: u64) -> Found {
    let mut found = Found::default();
    for (at, (_, inode)) in (at..).zip(inodes) {
        if inode.plain.load(Ordering::Relaxed) {
            // Who changes it meanwhile moves what was made, which is small.
            debug_assert!(inode.read().is_made_in(transid));
            continue;
        }
        let mut state = inode.write();
        if state.transid == transid && state.dirty {
            if state.stays_in_place() {
                if !state.live.created {
                    found.old_to = at + 1;
                }
                continue;
            }
            state.rotate();
        }
        let Some(frozen) = &state.frozen else { continue };
        if frozen.file.is_some() {
            found.with_data.push(inode.clone());
        }
        if !frozen.changes.created {
            found.old_to = at + 1;
        }
        if frozen.changes.entries.as_ref().is_some_and(|entries| entries.are_many()) {
            found.large.push(at);
        }
    }
    found
}

impl Shard {
    fn new(keep: usize) -> Shard {
        Shard { inodes: Rows::default(), holds: Holds::default(), keep, limit: 0 }
    }

    /// Evicts clean inodes that nobody uses: first those not used since the last sweep. Changed ones, about `changed`, are on a
    /// list, so they are used and stay, however many they are. How often an evicted one is held is kept for when it comes
    /// back.
    fn sweep(&mut self, changed: usize) {
        self.evict_unused();
        if self.inodes.len() > changed + self.keep / 2 {
            self.evict(|inode| inode.knows_many.load(Ordering::Relaxed));
        }
        // Where most are used all the same, the next sweep has to pay, too.
        let crowded = self.inodes.len() > changed + self.keep / 2;
        self.limit = if crowded { self.inodes.len() + self.keep.max(16) / 2 } else { 0 };
    }

    /// Evicts what nobody has looked up since it was swept or committed last.
    fn evict_unused(&mut self) {
        let knows_many = |inode: &Inode| inode.knows_many.load(Ordering::Relaxed);
        self.evict(|inode| inode.recent.swap(false, Ordering::Relaxed) || knows_many(inode));
    }

    /// Evicts what is too much by far, but for about `changed` that are, and so are used.
    fn shrink(&mut self, changed: usize) {
        if self.inodes.len() <= self.keep + self.keep / 4 + changed {
            return;
        }
        let mut left = self.keep / 2;
        self.evict(|inode| {
            let stays = left > 0 || inode.knows_many.load(Ordering::Relaxed);
            left = left.saturating_sub(1);
            stays
        });
    }

    fn evict(&mut self, mut keep: impl FnMut(&Inode) -> bool) {
        let Shard { inodes, holds, .. } = self;
        inodes.retain(|ino, inode| {
            // Whoever changes holds has an `Arc` that it got under the lock of this shard.
            let used = Arc::strong_count(inode) > 1;
            fence(Ordering::Acquire);
            let stays = used || keep(inode);
            let held = inode.holds.load(Ordering::Relaxed);
            if !stays {
                holds.put(*ino, held);
            }
            stays
        });
    }
}

/// The number after the last inode of a tree.
fn first_unused(view: &View<'_>) -> Result<u64> {
    let last = view.last_key(&Key::new(objectid::LAST_FREE, u8::MAX, u64::MAX))?;
    let last = last.map_or(TOP, |key| key.objectid);
    Ok(last.saturating_add(1).max(TOP + 1))
}
