//! Loading: chunks and the device, block groups, free space.
//!
//! Free space comes from the free space tree. Where there is none, or it contradicts the block
//! group's used bytes or itself, it is what the extents leave over, and the group is written anew by
//! the next commit.
//!
//! Of three that tell how much of a group is used (its item, its extents, the free space tree) the item
//! may be wrong: Linux (6.18) leaves now and then a new group that is said to be empty while the others
//! agree that it is not, and mounts that again. So where the two that also say where agree, their sum is
//! taken. Where they do not, or there are only two, nobody knows what is free, and nothing is written.
//!
//! Who only reads needs none of this but to say how full the filesystem is. So where the tree with the block groups is damaged, that
//! is warned of, and the groups that cannot be read share what the superblock says is in use beyond the others.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};

use buttress_ondisk::item::{BlockGroupItem, DevExtent, DevItem, chunk_type};
use buttress_ondisk::{Key, SECTOR, kind, objectid};
use buttress_volume::{Chunk, Profile, Volume};
use parking_lot::Mutex;

use super::cold::Cold;
use super::device::{Device, device_ranges, excluded};
use super::extents::Range;
use super::group::Group;
use super::{CLASSES, ChunkKeeper, Class, Index, Items, Pool, Space, free_space_tree};
use crate::error::{Error, Result, Unsupported};
use crate::stripes::Striped;
use crate::tree::{Blocks, Root, View};

/// The trees that tell about space.
#[derive(Clone, Copy, Debug)]
pub struct SpaceRoots {
    /// The extent tree.
    pub extent: Root,
    /// The free space tree; `None` when there is none, or it is not valid.
    pub free_space: Option<Root>,
    /// The block group tree, if the filesystem has one.
    pub block_group: Option<Root>,
    /// The device tree.
    pub device: Root,
    /// The chunk tree.
    pub chunk: Root,
}

/// The same trees, to read.
pub(crate) struct Sources<'a> {
    pub extent: &'a dyn Items,
    pub free_space: Option<&'a dyn Items>,
    pub block_group: &'a dyn Items,
    pub device: &'a dyn Items,
    pub chunk: &'a dyn Items,
    /// Bytes in use, as the superblock says.
    pub used: u64,
}

fn get<T>(tree: &dyn Items, key: Key, read: impl Fn(&[u8]) -> Option<T>) -> Result<Option<T>> {
    let mut found = None;
    tree.each(key, key, &mut |_, data| {
        found = read(data);
        Ok(())
    })?;
    Ok(found)
}

impl ChunkKeeper for Arc<Volume> {
    fn add(&self, chunk: &Chunk) -> Result<()> {
        Ok(self.add_chunk(chunk.clone())?)
    }

    fn remove(&self, logical: u64) {
        self.remove_chunk(logical);
    }
}

impl Space {
    /// Loads what is known about space. Read-only (`writable` false), free space is not read: only
    /// [`Space::usage`] has a meaning then.
    pub fn load(blocks: &Blocks, roots: &SpaceRoots, writable: bool) -> Result<Space> {
        Space::load_within(blocks, roots, writable, u64::MAX)
    }

    /// The same, with so many bytes of memory for where free space lies, all in all.
    pub fn load_within(
        blocks: &Blocks,
        roots: &SpaceRoots,
        writable: bool,
        share: u64,
    ) -> Result<Space> {
        let view = |owner, root| View::new(blocks, owner, root);
        let extent = view(objectid::EXTENT_TREE, roots.extent);
        let free_space = roots.free_space.map(|root| view(objectid::FREE_SPACE_TREE, root));
        let groups = roots.block_group.map(|root| view(objectid::BLOCK_GROUP_TREE, root));
        let device = view(objectid::DEV_TREE, roots.device);
        let chunk = view(objectid::CHUNK_TREE, roots.chunk);
        let sources = Sources {
            extent: &extent,
            free_space: free_space.as_ref().map(|tree| tree as &dyn Items),
            block_group: groups.as_ref().unwrap_or(&extent),
            device: &device,
            chunk: &chunk,
            used: blocks.volume().superblock().bytes_used.get(),
        };
        let volume = blocks.volume().clone();
        let chunks = volume.chunks();
        let node = blocks.nodesize() as u64;
        Space::assemble(&sources, chunks, node, writable, share, Box::new(volume))
    }

    /// Loads from any trees.
    pub(crate) fn assemble(
        sources: &Sources<'_>,
        chunks: Vec<Chunk>,
        node: u64,
        writable: bool,
        share: u64,
        keeper: Box<dyn ChunkKeeper>,
    ) -> Result<Space> {
        let chunks: BTreeMap<u64, Chunk> = chunks.into_iter().map(|c| (c.logical, c)).collect();
        let device = load_device(sources, &chunks, writable)?;
        let (mut groups, lost) = load_groups(sources, &chunks, node, writable)?;
        let mixed = groups.values().any(|(group, _)| is_mixed(group.flags));
        let types = types_of(&chunks);
        let system = load_system_items(sources, &chunks)?;
        let mut rewrite = Rewrite::default();
        if writable {
            rewrite = load_free_space(sources, &mut groups, node, share)?;
        } else {
            groups.values_mut().for_each(|(group, used)| group.used = *used);
            rewrite.warnings.extend(lost);
        }
        let space = Space {
            slots: Default::default(),
            index: Index::default(),
            pool: Mutex::new(Pool::new(device, chunks, types, system)),
            allotments: Striped::default(),
            keeper,
            node,
            mixed,
            free_known: writable,
            shared: AtomicBool::new(false),
            volumes: AtomicU64::new(0),
            counted: AtomicBool::new(false),
            alone: AtomicBool::new(false),
            was_alone: AtomicBool::new(false),
            chosen: Mutex::default(),
            placed: AtomicU64::new(0),
            has_written: AtomicBool::new(false),
            pack: AtomicBool::new(false),
            packed: AtomicU64::new(0),
            known: Default::default(),
            trimming: Default::default(),
            cold: Cold::new(share, rewrite.warnings),
        };
        for (group, _) in groups.into_values() {
            space.index.add(group.range, Class::of(group.flags));
            let slot = space.slot(Class::of(group.flags));
            slot.set.lock().add(&slot.counters, group);
        }
        for start in rewrite.groups {
            space.mark_dirty(start);
        }
        Ok(space)
    }

    fn mark_dirty(&self, start: u64) {
        if let Some((start, class)) = self.index.find(start) {
            self.slot(class).set.lock().mark(start);
        }
    }

    /// Every group is written by the next commit: for a free space tree or block group tree that is
    /// made anew.
    pub fn mark_all_dirty(&self) {
        self.slots.iter().for_each(|slot| slot.set.lock().mark_all());
    }
}

fn is_mixed(flags: u64) -> bool {
    let both = chunk_type::DATA | chunk_type::METADATA;
    flags & both == both
}

/// Type and profile of new chunks: of each class the richest that it has already.
fn types_of(chunks: &BTreeMap<u64, Chunk>) -> [u64; CLASSES] {
    let mut types = [chunk_type::DATA, chunk_type::METADATA, chunk_type::SYSTEM];
    for chunk in chunks.values() {
        let class = Class::of(chunk.type_flags).slot();
        let dup = chunk_type::DUP & (types[class] | chunk.type_flags);
        types[class] |= chunk.type_flags & chunk_type::TYPE_MASK | dup;
    }
    if is_mixed(types[Class::Data.slot()]) {
        types[Class::Metadata.slot()] = types[Class::Data.slot()];
    }
    types
}

fn load_device(
    sources: &Sources<'_>,
    chunks: &BTreeMap<u64, Chunk>,
    writable: bool,
) -> Result<Device> {
    let mut items = Vec::new();
    let from = Key::new(objectid::DEV_ITEMS, kind::DEV_ITEM, 0);
    let to = Key::new(objectid::DEV_ITEMS, kind::DEV_ITEM, u64::MAX);
    sources.chunk.each(from, to, &mut |_, data| {
        items.extend(DevItem::of(data).copied());
        Ok(())
    })?;
    let [item] = items[..] else {
        if items.is_empty() {
            return Err(Error::inconsistent(objectid::CHUNK_TREE, "there is no device item", from));
        }
        return Err(Error::Unsupported(Unsupported::SeveralDevices));
    };
    let mut device = Device::new(item);
    for chunk in chunks.values() {
        if !writable {
            // Only an estimate is asked for.
            let _taken = device_ranges(chunk).filter(|&range| device.take(range)).count();
            continue;
        }
        if !matches!(chunk.profile(), Profile::Single | Profile::Dup) {
            return Err(Error::Unsupported(Unsupported::Profile(chunk.profile())));
        }
        for range in device_ranges(chunk) {
            if !device.take(range) {
                let what = "a chunk lies outside its device or on another chunk";
                return Err(Error::inconsistent(objectid::CHUNK_TREE, what, chunk.key()));
            }
        }
    }
    if writable {
        check_device_extents(sources.device, device.devid(), chunks)?;
    }
    Ok(device)
}

/// The items of system chunks as they are.
fn load_system_items(
    sources: &Sources<'_>,
    chunks: &BTreeMap<u64, Chunk>,
) -> Result<BTreeMap<u64, Vec<u8>>> {
    let mut items = BTreeMap::new();
    for chunk in chunks.values().filter(|c| c.type_flags & chunk_type::SYSTEM != 0) {
        let item = get(sources.chunk, chunk.key(), |data| Some(data.to_vec()))?;
        items.extend(item.map(|item| (chunk.logical, item)));
    }
    Ok(items)
}

/// Chunks and device extents must say the same: space that either claims is not free.
fn check_device_extents(tree: &dyn Items, devid: u64, chunks: &BTreeMap<u64, Chunk>) -> Result<()> {
    let mut claimed: BTreeMap<u64, (u64, u64)> = BTreeMap::new();
    for chunk in chunks.values() {
        claimed.extend(device_ranges(chunk).map(|r| (r.start, (r.len, chunk.logical))));
    }
    let fault = |what, key: Key| Error::inconsistent(objectid::DEV_TREE, what, key);
    let from = Key::new(devid, kind::DEV_EXTENT, 0);
    tree.each(from, Key::new(devid, kind::DEV_EXTENT, u64::MAX), &mut |key, data| {
        let item = DevExtent::of(data).ok_or_else(|| fault("a device extent is too short", key))?;
        let said = (item.length.get(), item.chunk_offset.get());
        match claimed.remove(&key.offset) {
            Some(chunk) if chunk == said => Ok(()),
            _ => Err(fault("a device extent belongs to no chunk", key)),
        }
    })?;
    match claimed.first_key_value() {
        Some((&start, _)) => {
            let key = Key::new(devid, kind::DEV_EXTENT, start);
            Err(fault("a chunk has no device extent", key))
        }
        None => Ok(()),
    }
}

/// The groups by where they start, and the used bytes that their items say.
type Groups = BTreeMap<u64, (Group, u64)>;

/// So many groups that cannot be read are enough to look no further: each costs reads of every copy.
const LOST_MAX: usize = 64;

/// The groups, full so far, and the used bytes that their items say. Who only reads goes on without those that are damaged; then it
/// says so.
fn load_groups(
    sources: &Sources<'_>,
    chunks: &BTreeMap<u64, Chunk>,
    node: u64,
    writable: bool,
) -> Result<(Groups, Option<String>)> {
    let mut groups = BTreeMap::new();
    let (mut lost, mut why) = (Vec::new(), None);
    for chunk in chunks.values() {
        let used = match lost.len() < LOST_MAX {
            true => used_of(sources, chunk).map(Some),
            false => Ok(None),
        };
        let used = match used {
            Err(error) if !writable && error.is_damage() => {
                why.get_or_insert(error);
                None
            }
            used => used?,
        };
        let range = Range::new(chunk.logical, chunk.length);
        if used.is_none() {
            lost.push(range);
        }
        let group = Group::full(range, chunk.type_flags, excluded(chunk), node);
        groups.insert(range.start, (group, used.unwrap_or(0)));
    }
    let Some(why) = why else { return Ok((groups, None)) };
    share_out(&mut groups, &lost, sources.used);
    let what = "the tree that says how full block groups are cannot be read";
    Ok((
        groups,
        Some(format!(
            "{what} ({why}): of {} that is a guess; files are read without it",
            lost.len()
        )),
    ))
}

/// The groups that are lost have among them, by their length, what is in use beyond the others.
fn share_out(groups: &mut Groups, lost: &[Range], used: u64) {
    let known = groups.values().fold(0_u64, |sum, (_, used)| sum.saturating_add(*used));
    let left = u128::from(used.saturating_sub(known));
    let all: u128 = lost.iter().map(|range| u128::from(range.len)).sum();
    for range in lost {
        let part = left * u128::from(range.len) / all.max(1);
        if let Some((_, used)) = groups.get_mut(&range.start) {
            *used = u64::try_from(part).unwrap_or(u64::MAX).min(range.len);
        }
    }
}

/// The used bytes that the item of a chunk's group says.
fn used_of(sources: &Sources<'_>, chunk: &Chunk) -> Result<u64> {
    let key = Key::new(chunk.logical, kind::BLOCK_GROUP_ITEM, chunk.length);
    let fault = |what| Error::inconsistent(objectid::EXTENT_TREE, what, key);
    let item = get(sources.block_group, key, |data| BlockGroupItem::of(data).copied())?
        .ok_or_else(|| fault("a chunk has no block group"))?;
    if item.flags.get() != chunk.type_flags {
        return Err(fault("a block group is of another type than its chunk"));
    }
    Ok(item.used.get())
}

/// Groups of which the disk does not say what is so, in whatever place, and what is to be told of them.
#[derive(Default)]
struct Rewrite {
    groups: Vec<u64>,
    warnings: Vec<String>,
}

/// Fills all groups. Returns those that are to be written anew.
fn load_free_space(
    sources: &Sources<'_>,
    groups: &mut BTreeMap<u64, (Group, u64)>,
    node: u64,
    share: u64,
) -> Result<Rewrite> {
    let unknown = match sources.free_space {
        Some(tree) => free_space_tree::load(tree, groups, share)?,
        None => groups.keys().copied().collect(),
    };
    let mut warnings = Vec::new();
    for start in &unknown {
        let Some((group, said)) = groups.get_mut(start) else { continue };
        group.forget_free();
        scan_extents(sources.extent, group, node)?;
        let used = group.used;
        if used == *said {
            continue;
        }
        if !says_the_same(sources.free_space, group)? {
            let what = "a block group's used bytes are not the sum of its extents";
            return Err(Error::inconsistent(objectid::EXTENT_TREE, what, start));
        }
        warnings.push(format!(
            "block group {start} is said to have {said} bytes in use; its extents and the free space tree agree on {used}, \
             which the next commit writes"
        ));
    }
    Ok(Rewrite { groups: unknown.into_iter().collect(), warnings })
}

/// Whether the free space tree is there and says of a group what its extents say.
fn says_the_same(free_space: Option<&dyn Items>, scanned: &Group) -> Result<bool> {
    let Some(tree) = free_space else { return Ok(false) };
    let mut other = scanned.full_again();
    let adds_up = free_space_tree::load_one(tree, &mut other, scanned.used)?;
    Ok(adds_up && other.free_on_disk(other.range) == scanned.free_on_disk(scanned.range))
}

/// Frees what the extents leave over in a full group.
pub(crate) fn scan_extents(tree: &dyn Items, group: &mut Group, node: u64) -> Result<()> {
    let range = group.range;
    let mut at = range.start;
    let mut gaps = Vec::new();
    let to = Key::new(range.end().saturating_sub(1), u8::MAX, u64::MAX);
    tree.each(Key::new(range.start, 0, 0), to, &mut |key, _| {
        let len = match key.kind {
            kind::EXTENT_ITEM => key.offset,
            kind::METADATA_ITEM => node,
            _ => return Ok(()),
        };
        let extent = Range::new(key.objectid, len);
        let aligned = extent.start.is_multiple_of(SECTOR) && extent.len.is_multiple_of(SECTOR);
        if extent.start < at || !range.contains(extent) || !aligned {
            let what = "an extent overlaps another, leaves its block group, or is not aligned";
            return Err(Error::inconsistent(objectid::EXTENT_TREE, what, key));
        }
        gaps.push(Range::new(at, extent.start - at));
        at = extent.end();
        Ok(())
    })?;
    gaps.push(Range::new(at, range.end() - at));
    for gap in gaps {
        for part in group.without_excluded(gap) {
            group.add_free(part);
        }
    }
    Ok(())
}
