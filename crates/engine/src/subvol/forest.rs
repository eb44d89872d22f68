//! The subvolumes in memory, and their part in a commit.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use buttress_ondisk::item::{RootItem, root_flags};
use buttress_ondisk::superblock::Superblock;
use buttress_ondisk::{Key, kind, objectid};
use parking_lot::Mutex;
use zerocopy::IntoBytes;

use super::create::SnapshotRequest;
use super::drop::Stuck;
use super::loaded::{Loaded, Near};
use super::pace::Pace;
use super::pending::Pending;
use super::relocation_trees::Doomed;
use crate::env::Time;
use crate::error::{Errno, Error, Result};
use crate::inode::{Asleep, FileTree, Flush};
use crate::refs::RefLog;
use crate::tree::Root;
use crate::txn::{Commit, Core, CsumLog, Emit, Participant, TreeCommit, Upkeep};

/// The commit under way, the one that waits for operations, and the one that drops.
pub const LEAVING_COMMITS: usize = 3;

/// A subvolume in memory.
#[derive(Debug)]
pub struct Subvolume {
    /// Its id.
    pub id: u64,
    /// The key of its root item; snapshots have the transaction that made them as offset.
    pub key: Key,
    /// Its files.
    pub tree: FileTree,
    pub(super) state: Mutex<State>,
    /// It was deleted: nothing may use it any more but who holds some of its files.
    pub(super) dead: AtomicBool,
    /// The files without names that a crash has left in it were deleted. Whoever sees to that remembers it, too: it may leave memory and come back.
    pub is_cleaned: AtomicBool,
    /// The transaction that gives a snapshot its name; before that is durable, the last commit has it as one to be dropped.
    pub(super) named_in: AtomicU64,
    /// While it is dropped: the blocks to convert that lie before this key are converted.
    pub(super) converted: Mutex<Key>,
}

/// What a subvolume's lock guards.
#[derive(Debug)]
pub(super) struct State {
    /// The root item as it will be.
    pub item: RootItem,
    /// Whether the item changes in the running transaction.
    pub dirty: bool,
    /// It was left to be dropped in the running transaction, and operations that have found it before may still be under way. No item changes
    /// for that: nobody was promised that it is written.
    pub left: bool,
    /// The item as the commit under way writes it.
    pub frozen: Option<RootItem>,
}

impl Subvolume {
    /// Whether the transaction before `transid` knows it as one to stay, so that a log can bring changes to it.
    pub fn is_known_before(&self, transid: u64) -> bool {
        self.tree.root().is_some() && self.named_in.load(Ordering::Acquire) != transid
    }

    pub(super) fn open(core: &Core, key: Key, item: RootItem) -> Result<Subvolume> {
        let read_only = item.flags.get() & root_flags::READ_ONLY != 0;
        let root = Root {
            bytenr: item.bytenr.get(),
            generation: item.generation.get(),
            level: item.level,
        };
        let root = (root.bytenr != 0).then_some(root);
        let tree = FileTree::open(core, key.objectid, root, read_only)?;
        core.space.note_volume();
        tree.note_snapshot(item.last_snapshot.get());
        Ok(Subvolume {
            id: key.objectid,
            key,
            tree,
            state: Mutex::new(State { item, dirty: false, left: false, frozen: None }),
            dead: AtomicBool::new(false),
            is_cleaned: AtomicBool::new(false),
            named_in: AtomicU64::new(0),
            converted: Mutex::new(Key::MIN),
        })
    }

    /// The root item as it will be.
    pub fn item(&self) -> RootItem {
        self.state.lock().item
    }

    /// Whether it was deleted.
    pub fn is_dead(&self) -> bool {
        self.dead.load(Ordering::SeqCst)
    }

    /// Changes the root item in the running transaction.
    pub(super) fn change(&self, change: impl FnOnce(&mut RootItem)) {
        let mut state = self.state.lock();
        change(&mut state.item);
        state.dirty = true;
    }

    fn is_dirty(&self) -> bool {
        let state = self.state.lock();
        state.dirty || state.left || self.tree.is_dirty()
    }

    /// See [`FileTree::asleep`].
    pub(super) fn asleep(&mut self) -> Option<Asleep> {
        let state = self.state.get_mut();
        let clean = !state.dirty && state.frozen.is_none() && !*self.dead.get_mut();
        if clean { self.tree.asleep() } else { None }
    }

    /// Sets aside what has changed, if anything, or if the commit has a use for the item as it is now (`wanted`).
    fn freeze(&self, wanted: bool) -> bool {
        let mut state = self.state.lock();
        state.left = false;
        if !self.tree.freeze() && !state.dirty && !wanted {
            return false;
        }
        state.frozen = Some(state.item);
        state.dirty = false;
        true
    }
}

/// What belongs to a commit from its freeze to its end.
#[derive(Debug, Default)]
struct Frozen {
    subvolumes: Vec<Arc<Subvolume>>,
    /// The new version of each, to be published.
    roots: Vec<(Arc<Subvolume>, Root)>,
    snapshots: Vec<SnapshotRequest>,
    superblock: SuperblockChanges,
    /// Subvolumes that are gone with this commit.
    dropped: Vec<u64>,
    /// Trees that are elsewhere than their merges have left them, in memory or not.
    moved: Vec<(u64, Root)>,
}

/// Members of the superblock that operations change.
#[derive(Clone, Debug, Default)]
pub(super) struct SuperblockChanges {
    pub label: Option<Vec<u8>>,
    pub incompat: u64,
}

/// All subvolumes of a filesystem.
#[derive(Debug)]
pub struct Forest {
    subvolumes: Loaded,
    /// Items of the root tree and the uuid tree to come.
    pub(super) pending: Pending,
    pub(super) next_id: AtomicU64,
    /// Orders what gives subvolumes names and takes them away: one that is deleted gets no subvolumes, one that moves does
    /// so once. Comes before the locks of inodes.
    pub(super) names: Mutex<()>,
    /// Deleted subvolumes, and relocation trees, that are not dropped yet.
    pub(super) dead: Mutex<Vec<Doomed>>,
    /// No relocation tree waits to be merged.
    pub(super) merges_nothing: AtomicBool,
    /// An interrupted balance has left files of relocated data.
    pub(super) relocated_data: AtomicBool,
    /// Deleted subvolumes of which files are held: they are dropped after that.
    pub(super) lingering: Mutex<BTreeSet<u64>>,
    /// Those that could not be dropped. Of these are among `dead`, too, which are being tried again.
    pub(super) stuck: Mutex<BTreeMap<Doomed, Stuck>>,
    pub(super) snapshots: Mutex<Vec<SnapshotRequest>>,
    pub(super) superblock: Mutex<SuperblockChanges>,
    frozen: Mutex<Frozen>,
    /// Commits should go on dropping deleted subvolumes.
    pub(super) dropping: AtomicBool,
    /// The last commit had no room to drop anything.
    pub(super) stalled: AtomicBool,
    /// How often dropping a subvolume came further.
    pub(super) steps: AtomicU64,
    /// How much is dropped where others may want to commit.
    pub(super) pace: Mutex<Pace>,
}

impl Forest {
    /// The subvolumes of the filesystem that `core` has opened.
    pub fn load(core: &Core) -> Result<Forest> {
        let last = Key::new(objectid::LAST_FREE, u8::MAX, u64::MAX);
        let highest = core.root_view().last_key(&last)?.map_or(0, |key| key.objectid);
        let forest = Forest {
            subvolumes: Loaded::default(),
            pending: Pending::default(),
            next_id: AtomicU64::new(highest.max(objectid::FIRST_FREE - 1) + 1),
            names: Mutex::default(),
            dead: Mutex::default(),
            merges_nothing: AtomicBool::new(false),
            relocated_data: AtomicBool::new(false),
            lingering: Mutex::default(),
            stuck: Mutex::default(),
            snapshots: Mutex::default(),
            superblock: Mutex::default(),
            frozen: Mutex::default(),
            dropping: AtomicBool::new(false),
            stalled: AtomicBool::new(false),
            steps: AtomicU64::new(0),
            pace: Mutex::default(),
        };
        forest.find_dead(core)?;
        Ok(forest)
    }

    /// The subvolume `id`. ENOENT when there is none, or it is deleted.
    pub fn get(&self, core: &Core, id: u64) -> Result<Arc<Subvolume>> {
        let found = self.find(core, id)?;
        if found.is_dead() { Err(Error::User(Errno::NOENT)) } else { Ok(found) }
    }

    /// The subvolume `id`, for its files. ENOENT when there is none, or it is deleted and none of its files is held.
    pub fn get_used(&self, core: &Core, id: u64) -> Result<Near> {
        let found = match self.subvolumes.get_near(id) {
            Some(found) => found,
            None => self.subvolumes.bring_near(self.find(core, id)?),
        };
        let gone = found.is_dead() && !found.tree.is_held();
        if gone { Err(Error::User(Errno::NOENT)) } else { Ok(found) }
    }

    /// The subvolume `id`, dead or alive, if threads like this one had it lately.
    pub fn get_near(&self, id: u64) -> Option<Near> {
        self.subvolumes.get_near(id)
    }

    /// Whether `id` was deleted while its files were held, and now none is.
    pub fn is_let_go(&self, id: u64) -> bool {
        let found = self.subvolumes.get(id);
        found.is_some_and(|found| found.is_dead() && !found.tree.is_held())
            && self.lingering.lock().contains(&id)
    }

    /// Leaves such a subvolume to be dropped. Operations that have found it before may still be under way: no commit drops it but one that has
    /// waited for them.
    pub fn let_go(&self, id: u64) {
        let mut lingering = self.lingering.lock();
        let Some(found) = self.subvolumes.get(id) else { return };
        if lingering.contains(&id) && found.tree.close() {
            lingering.remove(&id);
            self.leave(&found);
        }
    }

    /// Deleted subvolumes of which files are held.
    pub fn lingering(&self) -> Vec<u64> {
        self.lingering.lock().iter().copied().collect()
    }

    /// Leaves all deleted subvolumes to be dropped, whoever holds files of them; `false` if none was held. So many commits
    /// later as [`LEAVING_COMMITS`] says, space has come back.
    pub fn let_all_go(&self) -> bool {
        let mut lingering = self.lingering.lock();
        let all = std::mem::take(&mut *lingering);
        for found in all.iter().filter_map(|id| self.subvolumes.get(*id)) {
            found.tree.close_to_all();
            self.leave(&found);
        }
        !all.is_empty()
    }

    fn leave(&self, closed: &Subvolume) {
        closed.state.lock().left = true;
        self.dead.lock().push(Doomed::Subvolume(closed.id));
        self.dropping.store(true, Ordering::Release);
    }

    /// The subvolume `id`, deleted or not: a snapshot that has no name yet counts as deleted.
    pub fn find(&self, core: &Core, id: u64) -> Result<Arc<Subvolume>> {
        if !objectid::is_subvolume(id) {
            return Err(Error::User(Errno::NOENT));
        }
        self.find_any(core, id)
    }

    /// The tree of files `id`, whether it is a subvolume or not.
    pub(super) fn find_any(&self, core: &Core, id: u64) -> Result<Arc<Subvolume>> {
        if let Some(found) = self.subvolumes.get(id) {
            return Ok(found);
        }
        let subvolume = self.subvolumes.get_or_open(id, || {
            let (key, item) = self.root_item(core, id)?.ok_or(Error::User(Errno::NOENT))?;
            let mut subvolume = Subvolume::open(core, key, item)?;
            *subvolume.dead.get_mut() = item.refs.get() == 0;
            Ok(subvolume)
        })?;
        self.subvolumes.rest_when_new(core.inodes_max);
        Ok(subvolume)
    }

    pub(super) fn insert(&self, subvolume: Arc<Subvolume>) {
        self.subvolumes.insert(subvolume);
    }

    /// These are gone with the commit under way. Until it is published, the root tree still has them for whoever looks for one
    /// of their files, so they leave memory after that.
    pub(super) fn dropped(&self, ids: Vec<u64>) {
        self.frozen.lock().dropped = ids;
    }

    /// Those in memory.
    pub fn loaded(&self) -> Vec<Arc<Subvolume>> {
        self.subvolumes.all()
    }

    /// See [`FileTree::flush_delalloc`].
    pub fn flush_delalloc(
        &self,
        core: &Core,
        which: Flush,
        go_on: &dyn Fn() -> bool,
    ) -> Result<u64> {
        let changed = |it: &Subvolume| it.tree.may_have_changed() && !it.is_dead();
        let trees = self.subvolumes.those(changed);
        let mut trees = trees.iter().take_while(|_| go_on());
        trees.try_fold(0, |bytes, it| Ok(bytes + it.tree.flush_delalloc(core, which, go_on)?))
    }

    /// The key and root item of subvolume `id`, as they will be.
    pub(super) fn root_item(&self, core: &Core, id: u64) -> Result<Option<(Key, RootItem)>> {
        let from = Key::new(id, kind::ROOT_ITEM, 0);
        let items = self.pending.range(core, from, Key { offset: u64::MAX, ..from })?;
        let Some((key, data)) = items.into_iter().next_back() else { return Ok(None) };
        let item = RootItem::of_subvolume(&data).ok_or_else(|| {
            Error::inconsistent(objectid::ROOT_TREE, "a root item is too short", key)
        })?;
        Ok(Some((key, item)))
    }

    /// Changes the label in the running transaction. At most 255 bytes, none of them zero.
    pub fn set_label(&self, label: &[u8]) -> Result<()> {
        if label.len() > 255 || label.contains(&0) || label.contains(&b'\n') {
            return Err(Error::User(Errno::INVAL));
        }
        self.superblock.lock().label = Some(label.to_vec());
        Ok(())
    }

    /// The label that was set and is not committed yet.
    pub fn pending_label(&self) -> Option<Vec<u8>> {
        let live = self.superblock.lock().label.clone();
        live.or_else(|| self.frozen.lock().superblock.label.clone())
    }

    /// Trees that the commit has moved are read where they are now. Who opens one at this moment may have found it where it was, and opens it again.
    fn publish_moved(&self, trees: &[(u64, Root)]) {
        if trees.is_empty() {
            return;
        }
        self.subvolumes.have_others_open_again();
        for (id, root) in trees {
            let Some(subvolume) = self.subvolumes.get(*id) else { continue };
            subvolume.tree.publish(*root);
            // Its extents may be elsewhere, and others where they were.
            subvolume.tree.forget_decompressed();
            let mut state = subvolume.state.lock();
            state.item.bytenr = root.bytenr.into();
            state.item.generation = root.generation.into();
            state.item.generation_v2 = root.generation.into();
        }
    }

    fn merge_tree(&self, commit: &Commit<'_>, subvolume: &Subvolume) -> Result<Root> {
        let mut state = subvolume.state.lock();
        let last_snapshot = state.frozen.map_or(0, |item| item.last_snapshot.get());
        drop(state);
        let tree = TreeCommit::of_subvolume(commit, subvolume.id, last_snapshot);
        let mut tree = tree.merged_once();
        let (mut refs, mut csums) = (RefLog::default(), CsumLog::default());
        let mut merge = tree.merge(subvolume.tree.root())?;
        let mut emit = Emit {
            merge: &mut merge,
            refs: &mut refs,
            csums: &mut csums,
            core: commit.core(),
            transid: commit.transid(),
            tree: subvolume.id,
            meanwhile: &|| commit.write_some(),
        };
        subvolume.tree.emit(&mut emit)?;
        let root = merge.finish()?;
        let used = tree.bytes_used(subvolume.item().bytes_used.get());
        tree.drop_spares();
        refs.append(&mut tree.refs);
        commit.gather(&mut refs, &mut csums);
        if Some(root) == subvolume.tree.root() {
            return Ok(root);
        }
        state = subvolume.state.lock();
        let (transid, now) = (commit.transid(), commit.core().env.now());
        let state = &mut *state;
        for item in [Some(&mut state.item), state.frozen.as_mut()].into_iter().flatten() {
            moved(item, root, transid, now);
            item.bytes_used = used.into();
        }
        Ok(root)
    }
}

/// Points a root item to the version `root`, made by `transid`.
fn moved(item: &mut RootItem, root: Root, transid: u64, now: Time) {
    item.bytenr = root.bytenr.into();
    item.level = root.level;
    item.generation = root.generation.into();
    item.generation_v2 = root.generation.into();
    item.ctransid = transid.into();
    item.ctime = now.to_disk();
}

impl Participant for Forest {
    fn is_dirty(&self, upkeep: Upkeep) -> bool {
        let superblock = self.superblock.lock();
        self.pending.is_dirty()
            || superblock.label.is_some()
            || superblock.incompat != 0
            || !self.snapshots.lock().is_empty()
            || upkeep != Upkeep::None && self.can_drop()
            || self.subvolumes.any(|subvolume| subvolume.is_dirty())
    }

    fn freeze(&self, _transid: u64) {
        let mut frozen = self.frozen.lock();
        self.pending.freeze();
        frozen.snapshots = std::mem::take(&mut self.snapshots.lock());
        frozen.superblock = std::mem::take(&mut self.superblock.lock());
        // The root item of a snapshot's source is written, too; later changes of it must not get into this commit.
        let sources: Vec<u64> = frozen.snapshots.iter().map(|request| request.source.id).collect();
        let mut subvolumes = self.loaded();
        subvolumes.retain(|one| one.freeze(sources.contains(&one.id)));
        subvolumes.sort_by_key(|subvolume| subvolume.id);
        frozen.subvolumes = subvolumes;
        frozen.roots.clear();
    }

    fn prepare(&self, core: &Core, transid: u64) -> Result<()> {
        let subvolumes = self.frozen.lock().subvolumes.clone();
        subvolumes.iter().try_for_each(|subvolume| subvolume.tree.prepare(core, transid))
    }

    fn merge(&self, commit: &Commit<'_>) -> Result<()> {
        self.pending.emit(commit);
        let subvolumes = self.frozen.lock().subvolumes.clone();
        let sequential = commit.core().sequential;
        crate::threads::for_each_unless(sequential, &subvolumes, |subvolume| {
            let root = self.merge_tree(commit, subvolume)?;
            commit.core().env.step("a subvolume is merged");
            self.frozen.lock().roots.push((subvolume.clone(), root));
            Ok(())
        })?;
        let requests = std::mem::take(&mut self.frozen.lock().snapshots);
        for request in requests {
            let roots = self.frozen.lock().roots.clone();
            self.take_snapshot(commit, &request, &roots)?;
            commit.core().env.step("a snapshot is taken");
        }
        for subvolume in &subvolumes {
            if let Some(item) = subvolume.state.lock().frozen {
                commit.root_item(subvolume.key, Some(item.as_bytes().to_vec()));
            }
        }
        self.drop_step(commit)
    }

    fn superblock(&self, superblock: &mut Superblock) {
        self.pace.lock().written(Instant::now());
        let frozen = self.frozen.lock();
        if let Some(label) = &frozen.superblock.label {
            superblock.label.fill(0);
            superblock.label[..label.len()].copy_from_slice(label);
        }
        superblock.incompat_flags =
            (superblock.incompat_flags.get() | frozen.superblock.incompat).into();
    }

    fn moved(&self, trees: &[(u64, Root)]) {
        let mut frozen = self.frozen.lock();
        for (subvolume, merged) in &mut frozen.roots {
            let moved = trees.iter().find(|(id, _)| *id == subvolume.id);
            *merged = moved.map_or(*merged, |(_, root)| *root);
        }
        frozen.moved = trees.to_vec();
    }

    fn published(&self) {
        self.pace.lock().durable(Instant::now());
        let frozen = self.frozen.lock();
        for (subvolume, root) in &frozen.roots {
            subvolume.tree.publish(*root);
        }
        self.publish_moved(&frozen.moved);
    }

    fn settled(&self, core: &Core) {
        let frozen = std::mem::take(&mut *self.frozen.lock());
        for (subvolume, _) in frozen.roots {
            subvolume.tree.settle();
            core.env.step("a subvolume is settled");
            subvolume.state.lock().frozen = None;
        }
        drop(frozen.subvolumes);
        self.pending.published();
        frozen.dropped.iter().for_each(|id| self.subvolumes.remove(*id));
        self.subvolumes.rest(core.inodes_max);
    }
}
