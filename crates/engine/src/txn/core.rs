//! What all parts of an open filesystem share.

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use buttress_codec::ChecksumKind;
use buttress_ondisk::item::RootItem;
use buttress_ondisk::superblock::{Superblock, compat_ro, incompat};
use buttress_ondisk::{Key, SECTOR, kind, objectid};
use buttress_volume::Volume;
use parking_lot::{Mutex, RwLock};

use super::settle::{Relocated, Relocation};
use super::{LogSpace, Transactions, Waiting, WaitingMax};
use crate::env::Env;
use crate::error::{Error, Passed, Result};
use crate::quota::{Charges, Counted, Quota, Remembered};
use crate::space::{Items, Space, Trees};
use crate::stats::{self, Counters, Stats};
use crate::tree::{Blocks, Published, Root, View};

/// What this filesystem's format allows.
#[derive(Clone, Copy, Debug)]
pub struct Features {
    /// Bytes of a tree block.
    pub nodesize: usize,
    /// Checksums of data and blocks.
    pub csum: ChecksumKind,
    /// Tree blocks have `METADATA_ITEM`s.
    pub skinny: bool,
    /// Gaps between extents are holes.
    pub no_holes: bool,
    /// Names beyond one item's room go to `INODE_EXTREF` items.
    pub extref: bool,
    /// Data and metadata share block groups.
    pub mixed: bool,
}

impl Features {
    /// As the superblock says.
    pub fn of(superblock: &Superblock, csum: ChecksumKind) -> Features {
        let incompat = superblock.incompat_flags.get();
        Features {
            nodesize: superblock.nodesize.get() as usize,
            csum,
            skinny: incompat & incompat::SKINNY_METADATA != 0,
            no_holes: incompat & incompat::NO_HOLES != 0,
            extref: incompat & incompat::EXTENDED_IREF != 0,
            mixed: incompat & incompat::MIXED_GROUPS != 0,
        }
    }
}

/// The last committed version of each tree that is not a subvolume.
#[derive(Clone, Copy, Debug)]
pub struct Roots {
    /// The root tree.
    pub root: Root,
    /// The chunk tree.
    pub chunk: Root,
    /// The extent tree.
    pub extent: Root,
    /// The device tree.
    pub dev: Root,
    /// The checksum tree.
    pub csum: Root,
    /// The uuid tree.
    pub uuid: Option<Root>,
    /// The free space tree, when it is valid.
    pub free_space: Option<Root>,
    /// A free space tree that is marked as not valid.
    pub stale_free_space: Option<Root>,
    /// The block group tree.
    pub block_group: Option<Root>,
    /// The quota tree.
    pub quota: Option<Root>,
}

/// The version that a root item names.
pub fn root_of(item: &RootItem) -> Root {
    Root { bytenr: item.bytenr.get(), generation: item.generation.get(), level: item.level }
}

/// The place of a tree that is given up: no chunk has it.
const NOWHERE: Root = Root { bytenr: u64::MAX - (SECTOR - 1), generation: 0, level: 0 };

impl Roots {
    /// Reads where the trees are.
    pub fn load(blocks: &Blocks, superblock: &Superblock) -> Result<Roots> {
        Roots::load_but(blocks, superblock, &|_, error| Err(error))
    }

    /// The same, where one may go on without a tree if `pass`, which is told of it and why it is not found, says so. What is read of such
    /// a tree is an error.
    pub fn load_but(
        blocks: &Blocks,
        superblock: &Superblock,
        pass: &dyn Fn(u64, Error) -> Result<()>,
    ) -> Result<Roots> {
        let root = Root {
            bytenr: superblock.root.get(),
            generation: superblock.generation.get(),
            level: superblock.root_level,
        };
        let chunk = Root {
            bytenr: superblock.chunk_root.get(),
            generation: superblock.chunk_root_generation.get(),
            level: superblock.chunk_root_level,
        };
        let view = View::new(blocks, objectid::ROOT_TREE, root);
        let find_any = |tree: u64| -> Result<Option<Root>> {
            let item = view.get(&Key::new(tree, kind::ROOT_ITEM, 0))?;
            Ok(item.and_then(|item| RootItem::read(item.data())).map(|item| root_of(&item)))
        };
        let find = |tree| find_any(tree).or_else(|error| pass(tree, error).map(|()| None));
        let need = |tree: u64| {
            let what = || Error::inconsistent(objectid::ROOT_TREE, "a tree has no root item", tree);
            let found = find_any(tree).and_then(|found| found.ok_or_else(what));
            found.or_else(|error| pass(tree, error).map(|()| NOWHERE))
        };
        let ro = superblock.compat_ro_flags.get();
        let valid = compat_ro::FREE_SPACE_TREE | compat_ro::FREE_SPACE_TREE_VALID;
        Ok(Roots {
            root,
            chunk,
            extent: need(objectid::EXTENT_TREE)?,
            dev: need(objectid::DEV_TREE)?,
            csum: need(objectid::CSUM_TREE)?,
            uuid: find(objectid::UUID_TREE)?,
            free_space: if ro & valid == valid { find(objectid::FREE_SPACE_TREE)? } else { None },
            stale_free_space: if ro & valid == valid {
                None
            } else {
                find(objectid::FREE_SPACE_TREE)?
            },
            block_group: if ro & compat_ro::BLOCK_GROUP_TREE != 0 {
                Some(need(objectid::BLOCK_GROUP_TREE)?)
            } else {
                None
            },
            quota: find(objectid::QUOTA_TREE)?,
        })
    }

    /// How large the trees are that describe space, as their root items say.
    pub fn sizes(&self, blocks: &Blocks, nodesize: usize) -> Result<Trees> {
        let view = View::new(blocks, objectid::ROOT_TREE, self.root);
        let count = |tree: u64| -> Result<u64> {
            let item = view.get(&Key::new(tree, kind::ROOT_ITEM, 0))?;
            let item = item.and_then(|item| RootItem::read(item.data()));
            Ok(item.map_or(0, |item| item.bytes_used.get() / nodesize as u64).max(1))
        };
        let extent = count(objectid::EXTENT_TREE)?;
        Ok(Trees {
            extent,
            // One that is to be made has a range where there is no extent.
            free_space: if self.free_space.is_some() {
                count(objectid::FREE_SPACE_TREE)?
            } else {
                extent
            },
            csum: count(objectid::CSUM_TREE)?,
            quota: if self.quota.is_some() { count(objectid::QUOTA_TREE)? } else { 0 },
        })
    }

    /// Has `space` know how large the trees are in truth, where that matters: what root items say is only somebody's word, and
    /// a commit that is promised too little fails. As long as there is room for several times of all trees, the word will do.
    /// So it does where they cannot be counted.
    pub fn count_if_tight(&self, blocks: &Blocks, space: &Space) {
        if !space.trees_are_counted()
            && space.is_tight()
            && let Ok(counted) = self.count(blocks)
        {
            space.set_trees(counted);
            space.note_trees_counted();
        }
    }

    /// How large they are: all nodes are read, and no leaf.
    fn count(&self, blocks: &Blocks) -> Result<Trees> {
        let count = |id, root| View::new(blocks, id, root).count();
        let extent = count(objectid::EXTENT_TREE, self.extent)?;
        let free_space = match self.free_space {
            Some(root) => count(objectid::FREE_SPACE_TREE, root)?,
            None => extent,
        };
        let csum = count(objectid::CSUM_TREE, self.csum)?;
        let quota = self.quota.map_or(Ok(0), |root| count(objectid::QUOTA_TREE, root))?;
        Ok(Trees { extent, free_space, csum, quota })
    }

    /// Whether leaves of files may be shared: a subvolume is a snapshot, or one was taken of it.
    pub fn have_snapshots(&self, blocks: &Blocks) -> Result<bool> {
        let view = View::new(blocks, objectid::ROOT_TREE, self.root);
        let from = Key::new(objectid::FS_TREE, kind::ROOT_ITEM, 0);
        let mut items = view.range(from, Key::new(objectid::LAST_FREE, kind::ROOT_ITEM, u64::MAX));
        while let Some(item) = items.next()? {
            let id = item.key().objectid;
            let subvolume = id == objectid::FS_TREE || id >= objectid::FIRST_FREE;
            if item.key().kind == kind::ROOT_ITEM
                && subvolume
                && let Some(found) = RootItem::read(item.data())
                && (found.last_snapshot.get() != 0 || item.key().offset != 0)
            {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// The trees with a root item, by id.
    pub fn by_id(&self) -> [(u64, Option<Root>); 7] {
        [
            (objectid::EXTENT_TREE, Some(self.extent)),
            (objectid::DEV_TREE, Some(self.dev)),
            (objectid::CSUM_TREE, Some(self.csum)),
            (objectid::QUOTA_TREE, self.quota),
            (objectid::UUID_TREE, self.uuid),
            (objectid::FREE_SPACE_TREE, self.free_space),
            (objectid::BLOCK_GROUP_TREE, self.block_group),
        ]
    }
}

/// Warnings that are kept.
const WARNINGS_MAX: usize = 100;
/// How long to wait before a write to a full disk is tried again.
const RETRY: Duration = Duration::from_millis(100);

type Hear = dyn Fn(&str) + Send + Sync;

/// Who hears of warnings when they come.
#[derive(Default)]
struct Listener(OnceLock<Box<Hear>>);

impl std::fmt::Debug for Listener {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Listener").field(&self.0.get().is_some()).finish()
    }
}

/// The committed free space tree.
struct FreeSpace {
    blocks: Arc<Blocks>,
    roots: Arc<RwLock<Roots>>,
}

impl Items for FreeSpace {
    fn each(
        &self,
        from: Key,
        to: Key,
        show: &mut dyn FnMut(Key, &[u8]) -> Result<()>,
    ) -> Result<()> {
        let root = self.roots.read().free_space;
        let Some(root) = root else { return Ok(()) };
        View::new(&self.blocks, objectid::FREE_SPACE_TREE, root).each(from, to, show)
    }
}

/// The parts that every layer above needs.
#[derive(Debug)]
pub struct Core {
    /// Devices as one address space.
    pub volume: Arc<Volume>,
    /// The block cache.
    pub blocks: Arc<Blocks>,
    /// Block groups, free space, reservations.
    pub space: Space,
    /// What the format allows.
    pub features: Features,
    /// Time and randomness.
    pub env: Env,
    /// Transactions.
    pub txn: Transactions,
    /// What waits for a commit.
    pub waiting: Waiting,
    /// What the log of the running transaction keeps from others.
    pub log: LogSpace,
    /// What was done so far.
    pub counters: Counters,
    /// Whether nothing may be written.
    pub read_only: bool,
    /// Whether data are read without their checksums.
    pub sums_ignored: bool,
    /// Whether names that one block has lost are looked for in others.
    pub salvages: bool,
    /// What quota groups have.
    pub quota: Mutex<Quota>,
    /// Who reaches blocks, as the last commit that has counted them knew it.
    pub remembered: Mutex<Option<Remembered>>,
    /// What their limits leave to operations.
    pub charges: Charges,
    /// What was counted anew, for the next commit.
    pub recounted: Mutex<Option<Counted>>,
    /// What the next commit is to move, beside which no operation runs.
    pub(super) relocation: Mutex<Option<Relocation>>,
    /// What it has moved.
    pub(super) relocated: Mutex<Option<Relocated>>,
    /// Whether commits allocate on one thread, so that the same operations make the same bytes.
    pub sequential: bool,
    /// Blocks of deleted subvolumes that one commit looks at.
    pub drop_blocks_max: usize,
    /// Why no chunk comes or goes, where that is so.
    pub chunks_stay: Option<Error>,
    /// Inodes that a tree of files keeps in memory, besides those in use.
    pub inodes_max: usize,
    /// Decompressed extents that the files of a tree keep.
    pub kept_max: usize,
    /// Bytes for tree blocks and what waits for a commit, together.
    pub room: u64,
    /// How long a commit waits for room on a full disk that holds the image.
    pub patience: Duration,
    /// What went wrong since the opening without anybody being told, each once.
    warnings: Mutex<Vec<String>>,
    listener: Listener,
    roots: Arc<RwLock<Roots>>,
    /// The checksum tree of the commit before: readers that joined before the last one published may need it.
    csum_before: Published,
    /// That of now, as the roots say.
    csum: Published,
}

impl Core {
    /// Puts the parts together.
    pub fn new(
        blocks: Blocks,
        space: Space,
        features: Features,
        env: Env,
        roots: Roots,
        read_only: bool,
    ) -> Core {
        let volume = blocks.volume().clone();
        let txn = Transactions::new(volume.superblock().generation.get());
        let (blocks, committed) = (Arc::new(blocks), Arc::new(RwLock::new(roots)));
        space.set_committed(Box::new(FreeSpace {
            blocks: blocks.clone(),
            roots: committed.clone(),
        }));
        Core {
            volume,
            blocks,
            space,
            features,
            env,
            txn,
            waiting: Waiting::new(WaitingMax { data: 64 << 20, all: 256 << 20 }),
            log: LogSpace::default(),
            counters: Counters::default(),
            read_only,
            sums_ignored: false,
            salvages: false,
            quota: Mutex::default(),
            remembered: Mutex::default(),
            charges: Charges::default(),
            recounted: Mutex::default(),
            relocation: Mutex::default(),
            relocated: Mutex::default(),
            sequential: false,
            warnings: Mutex::default(),
            listener: Listener::default(),
            drop_blocks_max: 4096,
            chunks_stay: None,
            inodes_max: 65_536,
            kept_max: 64,
            room: u64::MAX,
            patience: Duration::ZERO,
            csum_before: Published::new(Some(roots.csum)),
            csum: Published::new(Some(roots.csum)),
            roots: committed,
        }
    }

    /// Writes file content to where it belongs.
    pub(crate) fn write_data(&self, bytenr: u64, bytes: &[u8]) -> Result<()> {
        self.volume.write(bytenr, bytes)?;
        stats::add(&self.counters.data_bytes, bytes.len() as u64);
        Ok(())
    }

    /// Writes for a commit. A disk that holds an image file and is full makes it wait for room as long as the options say: to
    /// give up would lose what programs were told is written.
    pub(crate) fn write_for_commit(&self, bytenr: u64, parts: &[&[u8]]) -> Result<()> {
        let since = Instant::now();
        loop {
            match self.volume.write_parts(bytenr, parts) {
                Err(error) if error.is_full() && since.elapsed() < self.patience => {
                    self.warn(format!(
                        "the disk that holds it is full: what was written waits for room there, up to {} seconds",
                        self.patience.as_secs()
                    ));
                    std::thread::sleep(RETRY);
                }
                other => return Ok(other?),
            }
        }
    }

    /// Leaves the cache what does not wait for a commit, and neither free space takes nor others.
    pub fn share_memory(&self) {
        let others = self.waiting.bytes().saturating_add(self.waiting.elsewhere());
        let others = others.saturating_add(self.space.memory());
        self.blocks.keep_to(self.room.saturating_sub(others));
    }

    /// What was done since the filesystem was opened.
    pub fn stats(&self) -> Stats {
        Stats::of(&self.counters, self.features.nodesize as u64, self.blocks.uses())
    }

    /// The committed trees.
    pub fn roots(&self) -> Roots {
        *self.roots.read()
    }

    pub(super) fn publish(&self, roots: Roots) {
        let mut published = self.roots.write();
        self.csum_before.set(published.csum);
        self.csum.set(roots.csum);
        *published = roots;
    }

    /// The committed root tree.
    pub fn root_view(&self) -> View<'_> {
        View::new(&self.blocks, objectid::ROOT_TREE, self.roots().root)
    }

    /// The committed extent tree.
    pub fn extent_view(&self) -> View<'_> {
        View::new(&self.blocks, objectid::EXTENT_TREE, self.roots().extent)
    }

    /// The committed checksum tree.
    pub fn csum_view(&self) -> View<'_> {
        self.view_of_csums(&self.csum)
    }

    /// The checksum tree of the commit before the last one. An operation that joined before the last one published may
    /// see a file as it was, with data that has no checksums any more.
    pub fn csum_view_before(&self) -> View<'_> {
        self.view_of_csums(&self.csum_before)
    }

    /// Every read of a file passes here.
    fn view_of_csums(&self, root: &Published) -> View<'_> {
        let root = root.get().unwrap_or_else(|| self.roots().csum);
        View::new(&self.blocks, objectid::CSUM_TREE, root)
    }

    /// The committed uuid tree.
    pub fn uuid_view(&self) -> Option<View<'_>> {
        Some(View::new(&self.blocks, objectid::UUID_TREE, self.roots().uuid?))
    }

    /// Notes what went wrong although nobody's operation failed.
    pub fn warn(&self, warning: String) {
        let mut warnings = self.warnings.lock();
        if warnings.len() >= WARNINGS_MAX || warnings.contains(&warning) {
            return;
        }
        warnings.push(warning.clone());
        drop(warnings);
        if let Some(listener) = self.listener.0.get() {
            listener(&warning);
        }
    }

    /// Passes over a name that no file can have, which is warned of, and over nothing else.
    pub fn only_names(&self, passed: Passed) -> Result<()> {
        match passed {
            Passed::Name(why) => {
                self.warn(why.to_string());
                Ok(())
            }
            Passed::Unreadable(why) => Err(why),
        }
    }

    /// Has `listener` told of each warning from now on: that of the first one who asks.
    pub fn on_warning(&self, listener: impl Fn(&str) + Send + Sync + 'static) {
        let _ = self.listener.0.set(Box::new(listener));
    }

    /// What was noted with [`Core::warn`].
    pub fn warnings(&self) -> Vec<String> {
        self.warnings.lock().clone()
    }

    /// Refuses when no chunk can come or go.
    pub fn check_chunks(&self) -> Result<()> {
        self.chunks_stay.clone().map_or(Ok(()), Err)
    }

    /// Refuses when nothing may be written.
    pub fn check_writable(&self) -> Result<()> {
        if self.read_only { Err(Error::ReadOnly) } else { self.txn.check() }
    }
}
