//! Facts about the filesystem as a whole, and a look at its trees.

use std::ops::RangeInclusive;
use std::sync::Arc;

use buttress_codec::ChecksumKind;
use buttress_ondisk::item::RootItem;
use buttress_ondisk::{Key, kind, objectid};
use buttress_volume::Volume;

use super::run::need;
use super::{ClassUsage, Filesystem, Inner, Usage};
use crate::error::{Errno, Error, Result};
use crate::stats::Stats;
use crate::tree::{Item, Root, View};
use crate::txn::Core;

/// A filesystem as a whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Info {
    /// Its uuid.
    pub fsid: [u8; 16],
    /// The uuid in its blocks.
    pub metadata_uuid: [u8; 16],
    /// Its label.
    pub label: Vec<u8>,
    /// Bytes of a tree block.
    pub nodesize: u32,
    /// Bytes of a sector.
    pub sectorsize: u32,
    /// The last durable transaction.
    pub generation: u64,
    /// Its checksums.
    pub checksum: ChecksumKind,
    /// Feature bits: compatible.
    pub compat: u64,
    /// Feature bits: compatible for reading.
    pub compat_ro: u64,
    /// Feature bits: incompatible.
    pub incompat: u64,
    /// Its devices.
    pub devices: Vec<DeviceInfo>,
}

/// A device of a filesystem.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceInfo {
    /// Its number.
    pub id: u64,
    /// Its uuid.
    pub uuid: [u8; 16],
    /// Where it was found.
    pub path: String,
    /// Bytes that the filesystem has of it.
    pub total: u64,
    /// Bytes in chunks.
    pub used: u64,
}

impl Filesystem {
    /// Space, as `statfs` and `filesystem usage` tell it.
    pub fn usage(&self) -> Usage {
        self.inner().core.space.usage()
    }

    /// Space of each kind of block groups: type and, where one has several, profile. Data first, which mixed block groups count as.
    pub fn spaces(&self) -> Vec<ClassUsage> {
        self.inner().core.space.spaces()
    }

    /// What the engine has done since the filesystem was opened.
    pub fn stats(&self) -> Stats {
        self.core().stats()
    }

    /// So many bytes of what [`crate::Options::memory`] gave are used for something else: the cache of tree blocks keeps
    /// as much less, down to an eighth of what it may have; then less may wait for a commit, down to a quarter.
    pub fn use_elsewhere(&self, bytes: u64) {
        self.core().waiting.use_elsewhere(bytes);
        self.core().share_memory();
    }

    /// What there is to know about the filesystem as a whole.
    pub fn info(&self) -> Info {
        let inner = self.inner();
        let (volume, usage) = (&inner.core.volume, self.usage());
        let superblock = volume.superblock();
        let device = |member: &buttress_volume::Member| DeviceInfo {
            id: member.devid,
            uuid: member.uuid,
            path: member.device.name().to_string(),
            total: self.device_size(),
            used: usage.device_total.saturating_sub(usage.unallocated),
        };
        let label = superblock.label.split(|byte| *byte == 0).next().unwrap_or_default().to_vec();
        Info {
            fsid: superblock.fsid,
            metadata_uuid: superblock.metadata_fsid(),
            label: inner.forest.pending_label().unwrap_or(label),
            nodesize: volume.nodesize(),
            sectorsize: volume.sectorsize(),
            generation: inner.core.txn.committed(),
            checksum: volume.checksum_kind(),
            compat: superblock.compat_flags.get(),
            compat_ro: superblock.compat_ro_flags.get(),
            incompat: superblock.incompat_flags.get(),
            devices: volume.devices().iter().map(device).collect(),
        }
    }

    /// Changes the label: at most 255 bytes, no newline, no zero.
    pub fn set_label(&self, label: &[u8]) -> Result<()> {
        self.inner().change(need(0, 0), |_| self.inner().forest.set_label(label))
    }

    /// The devices, for tools.
    pub fn volume(&self) -> &Arc<Volume> {
        &self.inner().core.volume
    }

    /// Forgets what can be read again: tree blocks, and files that nobody uses. What waits for a commit stays.
    pub fn drop_caches(&self) {
        self.core().blocks.clear();
        self.inner().forest.loaded().iter().for_each(|subvolume| subvolume.tree.forget_unused());
    }

    /// What all layers share, for tools.
    #[doc(hidden)]
    pub fn core(&self) -> &Core {
        &self.inner().core
    }

    /// The last committed version of the tree `id`.
    pub fn tree(&self, id: u64) -> Result<Option<Root>> {
        self.inner().read(|_| self.inner().tree(id))
    }

    /// Items of the last committed version of a tree, from `from` to `to`, both included, until `each` answers `false`. It
    /// is given the key, the transaction that wrote the leaf, and the item. Commits go on meanwhile: what they change of what
    /// was not given yet is given as it is then.
    pub fn search(
        &self,
        tree: u64,
        from: Key,
        to: Key,
        each: impl FnMut(Key, u64, &[u8]) -> bool,
    ) -> Result<()> {
        self.search_committed(tree, from..=to, 0, each)
    }

    /// The same of the leaves that transaction `since` or a later one wrote; the others are not read. Where a log waits that is only read, of
    /// the version that a replay makes.
    pub fn search_since(
        &self,
        tree: u64,
        keys: RangeInclusive<Key>,
        since: u64,
        each: impl FnMut(Key, u64, &[u8]) -> bool,
    ) -> Result<()> {
        self.replayed().search_committed(tree, keys, since, each)
    }

    fn search_committed(
        &self,
        tree: u64,
        keys: RangeInclusive<Key>,
        since: u64,
        mut each: impl FnMut(Key, u64, &[u8]) -> bool,
    ) -> Result<()> {
        let (inner, to) = (self.inner(), *keys.end());
        let mut part = inner.search_part(tree, keys, since)?;
        let mut found = part.as_ref().ok_or(Error::User(Errno::NOENT))?;
        loop {
            for item in found {
                if !each(item.key(), item.leaf().generation(), item.data()) {
                    return Ok(());
                }
            }
            let Some(last) = found.last().map(Item::key).filter(|last| *last < to) else {
                return Ok(());
            };
            part = inner.search_part(tree, last.next()..=to, since)?;
            let Some(next) = part.as_ref() else { return Ok(()) };
            found = next;
        }
    }
}

/// Items that a search finds before it lets others end the transaction.
const SEARCH_LEN: usize = 256;

impl Inner {
    /// The next items of a tree, in the transaction that runs now; `None` when there is no such tree.
    fn search_part(
        &self,
        tree: u64,
        keys: RangeInclusive<Key>,
        since: u64,
    ) -> Result<Option<Vec<Item>>> {
        self.read(|op| {
            let Some(root) = self.tree(tree)? else { return Ok(None) };
            let view = View::new(&op.core.blocks, tree, root);
            let mut cursor = view.range_since(*keys.start(), *keys.end(), since);
            let mut found = Vec::new();
            while found.len() < SEARCH_LEN {
                match cursor.next() {
                    Ok(Some(item)) => found.push(item),
                    Ok(None) => break,
                    // Who goes on behind what was found comes to it again.
                    Err(_) if !found.is_empty() => break,
                    Err(error) => return Err(error),
                }
            }
            Ok(Some(found))
        })
    }

    fn tree(&self, id: u64) -> Result<Option<Root>> {
        let roots = self.core.roots();
        match id {
            objectid::ROOT_TREE => return Ok(Some(roots.root)),
            objectid::CHUNK_TREE => return Ok(Some(roots.chunk)),
            _ => {}
        }
        if let Some((_, root)) = roots.by_id().into_iter().find(|(tree, _)| *tree == id) {
            return Ok(root);
        }
        let key = Key::new(id, kind::ROOT_ITEM, u64::MAX);
        let item = self.core.root_view().last_in(&Key { offset: 0, ..key }, &key)?;
        let root = item.as_ref().and_then(|item| RootItem::read(item.data()));
        Ok(root.map(|item| Root {
            bytenr: item.bytenr.get(),
            generation: item.generation.get(),
            level: item.level,
        }))
    }
}
