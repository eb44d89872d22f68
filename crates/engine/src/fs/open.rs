//! Opening: the device, the volume, what forbids writing, the trees.
//!
//! **A log that waits** is replayed for who may write. For who may only read it is replayed and committed above the device, in memory
//! ([`OverlayDevice`]): everything he asks, who shares what among it, is answered as it would be after a replay. Where that fails (no room,
//! something that forbids writing, damage), what the log says stays in layers of inodes: files are as replay makes them, and extents and
//! subvolumes are told of the last commit.

use std::path::Path;
use std::sync::Arc;

use buttress_device::{Access, BlockDevice, DeviceError, FileDevice, OffsetDevice, OverlayDevice};
use buttress_ondisk::{Key, kind, objectid};
use buttress_volume::{Rescue, Volume, VolumeError, Warning, part_at};
use parking_lot::Mutex;

use super::{Filesystem, Handle, Inner, Options, worker};
use crate::error::{Error, Result, Unsupported};
use crate::log::replay::replay;
use crate::refs::owners::Known;
use crate::space::{Space, SpaceRoots};
use crate::subvol::Forest;
use crate::tree::{Blocks, View};
use crate::txn::{Core, Features, Roots};

/// What a filesystem with a log says that is only read.
const SHOWN: &str = "a log tree waits for replay: the filesystem is shown as replay makes it, and nothing is written";
/// The same where the log could not be replayed above the device.
const SHOWN_IN_PART: &str = "a log tree waits for replay: files are shown as replay makes them, who shares what is told of the last commit, and \
    nothing is written";
/// The part of the memory for blocks and for what waits that what a replay changes may take.
const REPLAYED_SHARE: u64 = 4;

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
        let has_log = opened.volume.superblock().log_root.get() != 0;
        let mut warnings = opened.warnings;
        if has_log
            && replays_above(&options)
            && let Ok(replayed) = replayed_above(device, &options)
        {
            warnings.retain(|warning| *warning != Warning::LogTree);
            let options = beside(&replayed, options);
            let volume = Volume::open_rescue(vec![replayed], Access::ReadOnly, rescue)?.volume;
            let core = load(Arc::new(volume), &options)?;
            core.warn(SHOWN.into());
            let forest = Forest::load(&core)?;
            return Ok(Filesystem::new(core, forest, warnings, options));
        }
        let core = load(Arc::new(opened.volume), &options)?;
        let mut forest = Forest::load(&core)?;
        if !options.rescue.no_log_replay {
            match replay(&core, &forest) {
                Ok(false) => {}
                Ok(true) => {
                    warnings.retain(|warning| *warning != Warning::LogTree);
                    if !options.write {
                        core.warn(SHOWN_IN_PART.into());
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
        Ok(Filesystem::new(core, forest, warnings, options))
    }

    fn new(core: Core, forest: Forest, warnings: Vec<Warning>, options: Options) -> Filesystem {
        let warnings = warnings.iter().map(ToString::to_string).collect();
        let owners_bytes = options.owners_bytes;
        let inner = Inner {
            core,
            forest,
            options,
            warnings,
            owners: Mutex::new(Known::new(owners_bytes)),
            resolving: Mutex::default(),
            wake: Default::default(),
            log: Default::default(),
            cleaned: Default::default(),
        };
        let inner = Arc::new(inner);
        let worker = match inner.options.write && inner.options.background {
            true => worker::Worker::start(&inner),
            false => None,
        };
        Filesystem { handle: Arc::new(Handle { inner, worker: Mutex::new(worker) }) }
    }
}

/// Whether a log is replayed above the device.
fn replays_above(options: &Options) -> bool {
    !options.write && !options.rescue.no_log_replay && !options.replay_in_layers
}

/// A device on which the log of another one is replayed and committed, in memory.
fn replayed_above(device: Arc<dyn BlockDevice>, options: &Options) -> Result<Arc<OverlayDevice>> {
    let overlay = Arc::new(OverlayDevice::within(device, options.room / REPLAYED_SHARE));
    // Quotas are nobody's business who only reads.
    let options = Options { write: true, ..options.clone() }.mark_quota_inconsistent(true);
    let rescue = Rescue { replays_log: true, ..options.rescue };
    let volume = Volume::open_rescue(vec![overlay.clone()], Access::ReadWrite, rescue)?.volume;
    let core = load(Arc::new(volume), &options)?;
    let forest = Forest::load(&core)?;
    replay(&core, &forest)?;
    Ok(overlay)
}

/// What is left of the memory beside what a replay has changed.
fn beside(replayed: &OverlayDevice, options: Options) -> Options {
    let left = |bytes: u64| bytes.saturating_sub(replayed.allocated());
    Options { room: left(options.room), cache_bytes: left(options.cache_bytes), ..options }
}

fn access(options: &Options) -> Access {
    if options.write { Access::ReadWrite } else { Access::ReadOnly }
}

fn load(volume: Arc<Volume>, options: &Options) -> Result<Core> {
    let superblock = volume.superblock();
    let features = Features::of(&superblock, volume.checksum_kind());
    let blocks = Blocks::new(volume, options.cache_bytes);
    let roots = Roots::load(&blocks, &superblock)?;
    if options.write {
        refuse_writing(&blocks, &roots)?;
    }
    let quota = if options.write { quota(&blocks, &roots)? } else { Quota::Off };
    if quota == Quota::Simple || quota == Quota::On && !options.mark_quota_inconsistent {
        return Err(Error::Unsupported(Unsupported::Quotas));
    }
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
    let mut core = Core::new(blocks, space, features, options.env.clone(), roots, !options.write);
    core.mark_quota_inconsistent = quota == Quota::On;
    core.sequential = options.reproducible;
    core.drop_blocks_max = options.drop_blocks_max;
    core.inodes_max = options.inodes_max;
    core.waiting.max = options.waiting_max();
    (core.room, core.run_bytes) = (options.room, options.run_bytes);
    (core.kept_max, core.patience) = (options.kept_max, options.patience);
    Ok(core)
}

/// What another program has begun and not finished, and only it can go on with.
fn refuse_writing(blocks: &Blocks, roots: &Roots) -> Result<()> {
    let root = View::new(blocks, objectid::ROOT_TREE, roots.root);
    if root.get(&Key::new(objectid::BALANCE, kind::TEMPORARY_ITEM, 0))?.is_some() {
        return Err(Error::Unsupported(Unsupported::Balance));
    }
    let key = |offset| Key::new(objectid::TREE_RELOC, kind::ROOT_ITEM, offset);
    if root.range(key(0), key(u64::MAX)).next()?.is_some() {
        return Err(Error::Unsupported(Unsupported::Relocation));
    }
    let dev = View::new(blocks, objectid::DEV_TREE, roots.dev);
    if let Some(item) = dev.get(&Key::new(0, kind::DEV_REPLACE, 0))?
        && replace_goes_on(item.data())
    {
        return Err(Error::Unsupported(Unsupported::Replacement));
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

#[derive(Clone, Copy, PartialEq, Eq)]
enum Quota {
    Off,
    On,
    Simple,
}

/// Whether quotas are counted, as their status item says.
fn quota(blocks: &Blocks, roots: &Roots) -> Result<Quota> {
    const ON: u64 = 1;
    const SIMPLE_MODE: u64 = 8;
    let Some(root) = roots.quota else { return Ok(Quota::Off) };
    let view = View::new(blocks, objectid::QUOTA_TREE, root);
    let Some(item) = view.get(&Key::new(0, kind::QGROUP_STATUS, 0))? else { return Ok(Quota::Off) };
    // The version, the generation, then the flags, a word each.
    let flags = item.data().get(16..24).and_then(|word| word.try_into().ok());
    Ok(match flags.map_or(0, u64::from_le_bytes) {
        flags if flags & ON == 0 => Quota::Off,
        flags if flags & SIMPLE_MODE != 0 => Quota::Simple,
        _ => Quota::On,
    })
}
