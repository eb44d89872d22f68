//! Opening: the device, the volume, what forbids writing, the trees.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use buttress_device::{Access, BlockDevice, DeviceError, FileDevice, OffsetDevice};
use buttress_ondisk::item::{QgroupStatus, RootItem, qgroup_status_flags};
use buttress_ondisk::{Key, Superblock, kind, objectid};
use buttress_volume::{Rescue, Volume, VolumeError, Warning, part_at};
use parking_lot::Mutex;

use super::replayed::Replayed;
use super::{Filesystem, Handle, Inner, Options, worker};
use crate::error::{Error, Result, Unsupported};
use crate::log::replay::replay;
use crate::quota::{Groups, Quota, is_of_subvolume};
use crate::refs::owners::{Committed, Known, Owners};
use crate::space::{Space, SpaceRoots};
use crate::subvol::{Forest, is_half_merged};
use crate::tree::{Blocks, View};
use crate::txn::{Core, Features, Roots, Waiting};

/// What a filesystem with a log says that is only read.
const SHOWN: &str = "a log tree waits for replay: the filesystem is shown as replay makes it, and nothing is written";

impl Filesystem {
    /// Opens the filesystem in a file or on a block device.
    pub fn open(path: impl AsRef<Path>, options: Options) -> Result<Filesystem> {
        let failed = |error: DeviceError| Error::from(VolumeError::from(error));
        let (path, access) = (path.as_ref(), access(&options));
        let part = part_at(path, options.offset);
        let device = FileDevice::open_part(path, access, part).map_err(failed)?;
        let mut device: Arc<dyn BlockDevice> = Arc::new(device);
        if options.offset > 0 {
            let window = OffsetDevice::new(device, options.offset, None).map_err(failed)?;
            device = Arc::new(window);
        }
        Filesystem::open_device(device, options)
    }

    /// Opens the filesystem on a device. The option `offset` does not count here.
    pub fn open_device(device: Arc<dyn BlockDevice>, options: Options) -> Result<Filesystem> {
        let rescue = Rescue { replays_log: true, ..options.rescue };
        let opened = Volume::open_rescue(vec![device.clone()], access(&options), rescue)?;
        let mut warnings = opened.warnings;
        let mut core = load(Arc::new(opened.volume), &options)?;
        let mut replayed = None;
        let mut forest = Forest::load(&core)?;
        if !options.rescue.no_log_replay {
            match replay(&core, &forest) {
                Ok(false) => {}
                Ok(true) => {
                    warnings.retain(|warning| *warning != Warning::LogTree);
                    if !options.write {
                        core.warn(SHOWN.into());
                        core.room /= 2;
                        core.share_memory();
                        replayed = Some(Replayed::new(device, &options));
                    }
                }
                Err(error) if options.write => return Err(error),
                // What is left of it in memory is nothing that ever was.
                Err(error) => {
                    forest = Forest::load(&core)?;
                    core.warn(error.to_string());
                }
            }
        }
        // What a log has is replayed into what there is, and into nothing made up.
        core.salvages = options.rescue.ignore_bad_roots && core.read_only;
        let warnings = warnings.iter().map(ToString::to_string).collect();
        let owners_bytes = options.owners_bytes;
        let inner = Inner {
            core,
            forest,
            options,
            replayed,
            warnings,
            owners: Mutex::new(Known::new(owners_bytes)),
            resolving: Mutex::default(),
            counting_quotas: Mutex::default(),
            relocating: Mutex::default(),
            exclusive: Mutex::default(),
            reclaiming: Mutex::default(),
            wake: Default::default(),
            log: Default::default(),
            cleaned: Default::default(),
        };
        if inner.options.discard.is_some() {
            inner.core.space.remember_freed();
        }
        let inner = Arc::new(inner);
        let worker = match inner.options.write && inner.options.background {
            true => worker::Worker::start(&inner),
            false => None,
        };
        if inner.options.write && worker.is_none() {
            // Where there is no room for it now, others come to it. A commit that has failed is told to whoever changes something.
            let _tried = inner.drop_relocated_data();
        }
        Ok(Filesystem { handle: Arc::new(Handle { inner, worker: Mutex::new(worker) }) })
    }
}

fn access(options: &Options) -> Access {
    if options.write { Access::ReadWrite } else { Access::ReadOnly }
}

pub(super) fn load(volume: Arc<Volume>, options: &Options) -> Result<Core> {
    let superblock = volume.superblock();
    let features = Features::of(&superblock, volume.checksum_kind());
    let blocks = Blocks::new(volume, options.cache_bytes);
    let (roots, without) = find_roots(&blocks, &superblock, options)?;
    if options.write {
        refuse_writing(&blocks, &roots)?;
    }
    let mut quota = match options.write {
        true => quota(&blocks, &roots, options.mark_quota_inconsistent)?,
        false => Quota::Off,
    };
    let trees = SpaceRoots {
        extent: roots.extent,
        free_space: roots.free_space,
        block_group: roots.block_group,
        device: roots.dev,
        chunk: roots.chunk,
    };
    let space = Space::load_within(&blocks, &trees, options.write, options.free_space_max)?;
    if options.write {
        space.set_trees(roots.sizes(&blocks, features.nodesize)?);
        roots.count_if_tight(&blocks, &space);
        if roots.have_snapshots(&blocks).unwrap_or(true) {
            space.set_shared();
        }
    }
    let stuck = if options.write { why_chunks_stay(&blocks, &roots) } else { None };
    if stuck.is_some() {
        space.keep_chunks();
    }
    let mut core = Core::new(blocks, space, features, options.env.clone(), roots, !options.write);
    core.sums_ignored = options.rescue.ignore_data_sums || without.sums;
    let found = [without.warnings, core.space.take_warnings()].concat();
    found.into_iter().chain(stuck.iter().map(ToString::to_string)).for_each(|why| core.warn(why));
    core.chunks_stay = stuck;
    if let Some(groups) = quota.groups() {
        core.charges.settle(groups, true);
    }
    core.quota = Mutex::new(quota);
    core.sequential = options.reproducible;
    core.drop_blocks_max = options.drop_blocks_max;
    core.inodes_max = options.inodes_max;
    core.waiting = Waiting::new(options.waiting_max());
    core.room = options.room;
    (core.kept_max, core.patience) = (options.kept_max, options.patience);
    Ok(core)
}

/// What is read without, as its roots are bad.
#[derive(Default)]
struct Without {
    warnings: Vec<String>,
    /// The checksums of data.
    sums: bool,
}

/// Where the trees are; who wants to go on without those that no file is read by is told which are missing, and why.
fn find_roots(
    blocks: &Blocks,
    superblock: &Superblock,
    options: &Options,
) -> Result<(Roots, Without)> {
    let mut without = Without::default();
    if options.write || !options.rescue.ignore_bad_roots {
        return Ok((Roots::load(blocks, superblock)?, without));
    }
    let passed = RefCell::new(BTreeMap::new());
    let roots = Roots::load_but(blocks, superblock, &|tree, error| {
        if !error.is_damage() {
            return Err(error);
        }
        passed.borrow_mut().insert(tree, error);
        Ok(())
    })?;
    let mut passed = passed.into_inner();
    for (tree, root) in roots.by_id() {
        let Some(root) = root.filter(|_| !passed.contains_key(&tree)) else { continue };
        if let Err(error) = View::new(blocks, tree, root).root_block() {
            if !error.is_damage() {
                return Err(error);
            }
            passed.insert(tree, error);
        }
    }
    without.sums = passed.contains_key(&objectid::CSUM_TREE);
    without.warnings = passed.iter().map(|(tree, error)| missing(*tree, error)).collect();
    Ok((roots, without))
}

/// What is said of a tree that is given up.
fn missing(tree: u64, error: &Error) -> String {
    let name = match tree {
        objectid::EXTENT_TREE => "extent tree",
        objectid::DEV_TREE => "device tree",
        objectid::CSUM_TREE => "checksum tree",
        objectid::UUID_TREE => "uuid tree",
        objectid::FREE_SPACE_TREE => "free space tree",
        objectid::BLOCK_GROUP_TREE => "block group tree",
        objectid::QUOTA_TREE => "quota tree",
        _ => "tree",
    };
    let follows = if tree == objectid::CSUM_TREE { ", and data are not verified" } else { "" };
    format!("the {name} ({tree}) cannot be read ({error}): it is ignored{follows}")
}

/// Why chunks can neither come nor go: of the trees that say where they are a block cannot be written anew. Found here it costs the chunks alone; the
/// commit that came to it would be the last one.
fn why_chunks_stay(blocks: &Blocks, roots: &Roots) -> Option<Error> {
    let committed = Committed { root: roots.root, chunk: roots.chunk, extent: roots.extent };
    let mut known = Known::new(0);
    let owners = Owners::new(blocks, committed, &mut known);
    let trees = [(objectid::DEV_TREE, roots.dev), (objectid::CHUNK_TREE, roots.chunk)];
    let why = trees.into_iter().find_map(|(tree, root)| {
        match owners.unsaid((tree, &View::new(blocks, tree, root)), |_| true) {
            Ok(found) => found.into_iter().next().map(|(_, why)| why),
            Err(error) => Some(error.to_string()),
        }
    });
    why.map(|why| Error::Chunks(why.into()))
}

/// What another program has begun and not finished, and only it can go on with (what a balance has left is not among it: that goes,
/// [`super::leavings`]), and trees that changes need and that cannot be read, as Linux does.
fn refuse_writing(blocks: &Blocks, roots: &Roots) -> Result<()> {
    let dev = View::new(blocks, objectid::DEV_TREE, roots.dev);
    if let Some(item) = dev.get(&Key::new(0, kind::DEV_REPLACE, 0))?
        && replace_goes_on(item.data())
    {
        return Err(Error::Unsupported(Unsupported::Replacement));
    }
    // Commits change them, and nothing has read them yet: one that meets damage is the last one, after what it could not do was done by halves.
    for (tree, root) in [(objectid::CSUM_TREE, Some(roots.csum)), (objectid::UUID_TREE, roots.uuid)]
    {
        if let Some(root) = root {
            View::new(blocks, tree, root).root_block()?;
        }
    }
    Ok(())
}

/// Whether a device replacement was started and neither finished nor cancelled: its state is the fifth word of the item.
fn replace_goes_on(item: &[u8]) -> bool {
    const STARTED: u64 = 1;
    const SUSPENDED: u64 = 4;
    let state = item.get(32..40).and_then(|word| word.try_into().ok()).map(u64::from_le_bytes);
    matches!(state, Some(STARTED | SUSPENDED))
}

/// What is to be done about quotas. Those that are right are counted on; `may_be_wrong`: such that nobody can read may be left as
/// they are.
fn quota(blocks: &Blocks, roots: &Roots, may_be_wrong: bool) -> Result<Quota> {
    let Some(root) = roots.quota else { return Ok(Quota::Off) };
    let view = View::new(blocks, objectid::QUOTA_TREE, root);
    let root_tree = View::new(blocks, objectid::ROOT_TREE, roots.root);
    let Some(item) = view.get(&Key::new(0, kind::QGROUP_STATUS, 0))? else { return Ok(Quota::Off) };
    let status = QgroupStatus::of(item.data());
    let status = status.ok_or(Error::Unsupported(Unsupported::Quotas))?;
    let flags = status.flags.get();
    let is = |flag| flags & flag != 0;
    if !is(qgroup_status_flags::ON) {
        return Ok(Quota::Off);
    }
    if is(qgroup_status_flags::SIMPLE_MODE) {
        // Whoever writes knows the feature, so they are right; that since when they count is missing is damage.
        let mut groups = Groups::load(view)?;
        let since = groups.simple_since().ok_or(Error::Unsupported(Unsupported::Quotas))?;
        groups.note_young(made_since(&root_tree, since)?);
        return Ok(Quota::Simple(groups));
    }
    // Merging is given up, and what Linux has counted was right for its end.
    let is_wrong = is(qgroup_status_flags::INCONSISTENT)
        || is(qgroup_status_flags::RESCAN)
        || status.generation.get() != roots.root.generation
        || is_half_merged(&root_tree)?;
    match Groups::load(view) {
        Err(_) if may_be_wrong => Ok(Quota::Left),
        Err(error) => Err(error),
        Ok(groups) if is_wrong => Ok(Quota::Inconsistent(groups)),
        Ok(groups) => Ok(Quota::Counted(groups)),
    }
}

/// Subvolumes that were made empty in a transaction or later.
fn made_since(root_tree: &View<'_>, transid: u64) -> Result<Vec<u64>> {
    let mut made = Vec::new();
    let from = Key::new(objectid::FIRST_FREE, kind::ROOT_ITEM, 0);
    let mut items = root_tree.range(from, Key::MAX);
    while let Some(item) = items.next()? {
        let key = item.key();
        let is_meant =
            |item: &RootItem| item.otransid.get() >= transid && item.parent_uuid == [0; 16];
        if key.kind == kind::ROOT_ITEM
            && is_of_subvolume(key.objectid)
            && RootItem::read(item.data()).is_some_and(|item| is_meant(&item))
        {
            made.push(key.objectid);
        }
    }
    Ok(made)
}
