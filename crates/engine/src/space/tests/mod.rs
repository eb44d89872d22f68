//! Space against naive models and against what the kernel wrote.

mod cold;
mod damage;
mod kernel;
mod model;
mod promises;
mod threads;

use std::collections::BTreeMap;
use std::sync::Arc;

use buttress_ondisk::item::DevItem;
use buttress_ondisk::{Key, kind, objectid};
use buttress_volume::Chunk;
use parking_lot::Mutex;
use zerocopy::IntoBytes;

use super::cold::Away;
use super::free_space_tree::{News, emit_group};
use super::group::Group;
use super::load::Sources;
use super::{ChunkKeeper, Edit, Items, Space};
use crate::error::Result;

/// Bytes of a tree block in these tests.
const NODE: u64 = 16384;

/// A tree as a map. Changes must come in ascending key order between two calls of [`Tree::restart`].
#[derive(Clone, Debug, Default)]
struct Tree {
    items: BTreeMap<Key, Vec<u8>>,
    last: Key,
    writes: usize,
    /// Items asked for, put and deleted.
    looks: usize,
}

impl Tree {
    fn restart(&mut self) -> &mut Tree {
        self.last = Key::MIN;
        self
    }

    fn advance(&mut self, key: Key) {
        self.looks += 1;
        assert!(self.last <= key, "{key} comes after {}", self.last);
        self.last = key;
    }
}

impl Items for Tree {
    fn each(
        &self,
        from: Key,
        to: Key,
        show: &mut dyn FnMut(Key, &[u8]) -> Result<()>,
    ) -> Result<()> {
        self.items.range(from..=to).try_for_each(|(key, data)| show(*key, data))
    }
}

impl Edit for Tree {
    fn find(&mut self, key: &Key) -> Result<Option<&[u8]>> {
        self.advance(*key);
        Ok(self.items.get(key).map(Vec::as_slice))
    }

    fn peek(&mut self, from: &Key) -> Result<Option<Key>> {
        self.advance(*from);
        Ok(self.items.range(from..).next().map(|(key, _)| *key))
    }

    fn put(&mut self, key: Key, data: &[u8]) -> Result<()> {
        self.advance(key);
        if self.items.get(&key).is_none_or(|old| old != data) {
            self.writes += 1;
            self.items.insert(key, data.to_vec());
        }
        Ok(())
    }

    fn delete(&mut self, key: &Key) -> Result<bool> {
        self.advance(*key);
        let there = self.items.remove(key).is_some();
        self.writes += usize::from(there);
        Ok(there)
    }
}

/// Nobody needs to know of chunks.
struct NoKeeper;

impl ChunkKeeper for NoKeeper {
    fn add(&self, _: &Chunk) -> Result<()> {
        Ok(())
    }

    fn remove(&self, _: u64) {}
}

/// The trees that tell about space.
#[derive(Clone, Debug, Default)]
struct Disk {
    extent: Tree,
    free_space: Tree,
    groups: Tree,
    device: Tree,
    chunk: Tree,
    /// The free space tree that the last commit has left.
    committed: Committed,
    /// Bytes that groups loaded from it may keep.
    share: Option<u64>,
}

/// A tree as it was when it was committed last.
#[derive(Clone, Debug, Default)]
struct Committed(Arc<Mutex<Tree>>, Meanwhile);

/// What happens while somebody reads, once.
#[derive(Clone, Default)]
struct Meanwhile(Arc<Mutex<Option<Happening>>>);

type Happening = Box<dyn FnOnce() + Send>;

impl std::fmt::Debug for Meanwhile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Meanwhile")
    }
}

impl Items for Committed {
    fn each(
        &self,
        from: Key,
        to: Key,
        show: &mut dyn FnMut(Key, &[u8]) -> Result<()>,
    ) -> Result<()> {
        let tree = self.0.lock().clone();
        let meanwhile = self.1.0.lock().take();
        if let Some(meanwhile) = meanwhile {
            meanwhile();
        }
        tree.each(from, to, show)
    }
}

impl Disk {
    /// A device of `total` bytes on which nothing is.
    fn empty(total: u64) -> Disk {
        let item = DevItem {
            devid: 1.into(),
            total_bytes: total.into(),
            sector_size: 4096.into(),
            uuid: [7; 16],
            ..Default::default()
        };
        let mut disk = Disk::default();
        let key = Key::new(objectid::DEV_ITEMS, kind::DEV_ITEM, 1);
        disk.chunk.items.insert(key, item.as_bytes().to_vec());
        disk
    }

    fn chunks(&self) -> Vec<Chunk> {
        let chunks = self.chunk.items.iter().filter(|(key, _)| key.kind == kind::CHUNK_ITEM);
        chunks.map(|(key, data)| Chunk::decode(key.offset, data).unwrap()).collect()
    }

    fn load(&self, node: u64, free_space_tree: bool) -> Result<Space> {
        self.load_chunks(self.chunks(), node, free_space_tree)
    }

    fn load_chunks(&self, chunks: Vec<Chunk>, node: u64, free_space_tree: bool) -> Result<Space> {
        self.load_for(chunks, node, free_space_tree, true)
    }

    fn load_for(
        &self,
        chunks: Vec<Chunk>,
        node: u64,
        free_space_tree: bool,
        writable: bool,
    ) -> Result<Space> {
        let sources = Sources {
            extent: &self.extent,
            free_space: free_space_tree.then_some(&self.free_space as &dyn Items),
            block_group: &self.groups,
            device: &self.device,
            chunk: &self.chunk,
            used: 0,
        };
        let share = self.share.unwrap_or(u64::MAX);
        let space = Space::assemble(&sources, chunks, node, writable, share, Box::new(NoKeeper))?;
        self.publish(&space);
        space.set_committed(Box::new(self.committed.clone()));
        Ok(space)
    }

    fn publish(&self, space: &Space) {
        *self.committed.0.lock() = self.free_space.clone();
        space.published();
    }

    /// Writes all that is dirty; how many items that changed.
    fn settle(&mut self, space: &Space) -> usize {
        let before = self.writes();
        loop {
            let mut dirty = space.take_dirty();
            if dirty.is_empty() {
                if self.is_as_written_anew(space) {
                    self.publish(space);
                    return self.writes() - before;
                }
                // Only a chunk that a thread has made meanwhile is an excuse.
                dirty = space.take_dirty();
                assert!(!dirty.is_empty(), "the free space tree is as if written anew");
            }
            space.emit_chunks(self.chunk.restart(), &dirty).unwrap();
            space.emit_device_extents(self.device.restart(), &dirty).unwrap();
            space.emit_groups(self.groups.restart(), &dirty).unwrap();
            space.emit_free_space(self.free_space.restart(), &dirty).unwrap();
        }
    }

    /// Differences come to what writing everything anew would: each item of each group.
    fn is_as_written_anew(&self, space: &Space) -> bool {
        let mut again = self.free_space.clone();
        again.restart();
        for mut group in groups_of(space).into_values() {
            group.forget_written();
            let range = group.range;
            let news = |so_far| Some(News::take(&mut group, so_far));
            emit_group(&mut again, range, news).unwrap();
        }
        again.items == self.free_space.items
    }

    fn writes(&self) -> usize {
        self.free_space.writes + self.groups.writes + self.device.writes + self.chunk.writes
    }
}

/// All groups with their free space, that of cold ones as the last commit has written it; by their starts.
fn groups_of(space: &Space) -> BTreeMap<u64, Group> {
    let mut all = BTreeMap::new();
    for slot in &space.slots {
        let set = slot.set.lock();
        for group in set.groups() {
            let start = group.range.start;
            let group = match set.present(start) {
                Ok(()) => group.clone(),
                Err(Away(away)) => space.cold.read(&away).unwrap(),
            };
            all.insert(start, group);
        }
    }
    all
}

/// What every group counts as free for the disk, by its start.
fn free_of(space: &Space) -> BTreeMap<u64, Vec<super::Range>> {
    let groups = groups_of(space).into_iter();
    groups.map(|(start, group)| (start, group.free_on_disk(group.range))).collect()
}

/// Numbers that look random and come again with their seed.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }

    fn below(&mut self, end: u64) -> u64 {
        self.next() % end.max(1)
    }

    fn take<T>(&mut self, from: &mut Vec<T>) -> Option<T> {
        let at = self.below(from.len() as u64) as usize;
        (at < from.len()).then(|| from.swap_remove(at))
    }
}
