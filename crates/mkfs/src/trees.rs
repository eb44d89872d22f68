//! What is in each tree of an empty filesystem.

use buttress_codec::crc32c::name_hash;
use buttress_ondisk::item::{
    BlockGroupItem, ChunkItem, DevExtent, DevItem, DirItem, ExtentInlineRef, ExtentItem,
    FreeSpaceInfo, InodeItem, InodeRef, QgroupInfo, QgroupLimit, QgroupStatus, RootItem,
    SimpleStatus, StripeItem, Timespec, TreeBlockInfo, chunk_type, extent_flags, file_type,
    qgroup_status_flags,
};
use buttress_ondisk::{Key, SECTOR, STRIPE_LEN, kind, objectid};
use uuid::Uuid;
use zerocopy::IntoBytes;

use crate::features::Feature;
use crate::layout::{Chunk, Layout};
use crate::options::Settled;
use crate::tree::{Items, Placed};

/// The generation of everything in a new filesystem.
pub(crate) const GENERATION: u64 = 1;
/// The only device's number.
const DEVID: u64 = 1;

/// The uuids of a new filesystem.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Uuids {
    pub fs: Uuid,
    pub device: Uuid,
    pub chunk_tree: Uuid,
    /// Of the top subvolume.
    pub subvolume: Uuid,
}

/// All that the trees are made from.
#[derive(Debug)]
pub(crate) struct Plan {
    pub settled: Settled,
    pub layout: Layout,
    pub uuids: Uuids,
    pub now: Timespec,
    /// User and group of the top directory.
    pub owner: (u32, u32),
    /// Bytes of the filesystem.
    pub total: u64,
    /// Every tree, placed.
    pub trees: Vec<Placed>,
}

/// The ids of the trees there are, in the order in which they are placed.
pub(crate) fn tree_ids(settled: &Settled) -> Vec<u64> {
    let mut ids = vec![
        objectid::CHUNK_TREE,
        objectid::ROOT_TREE,
        objectid::EXTENT_TREE,
        objectid::DEV_TREE,
        objectid::FS_TREE,
        objectid::CSUM_TREE,
        objectid::UUID_TREE,
        objectid::DATA_RELOC_TREE,
    ];
    let optional = [
        (Feature::Quota, objectid::QUOTA_TREE),
        (Feature::Squota, objectid::QUOTA_TREE),
        (Feature::FreeSpaceTree, objectid::FREE_SPACE_TREE),
        (Feature::BlockGroupTree, objectid::BLOCK_GROUP_TREE),
    ];
    ids.extend(optional.iter().filter(|(on, _)| settled.features.contains(*on)).map(|(_, id)| id));
    ids
}

impl Plan {
    /// The items of a tree, in key order.
    pub fn items(&self, tree: u64) -> Items {
        let mut items = match tree {
            objectid::ROOT_TREE => self.root_items(),
            objectid::EXTENT_TREE => self.extent_items(),
            objectid::CHUNK_TREE => self.chunk_items(),
            objectid::DEV_TREE => self.dev_items(),
            objectid::FS_TREE => self.directory_items(self.nodesize(), self.now, self.owner),
            objectid::DATA_RELOC_TREE => self.directory_items(0, Timespec::default(), (0, 0)),
            objectid::QUOTA_TREE => self.quota_items(),
            objectid::UUID_TREE => self.uuid_items(),
            objectid::FREE_SPACE_TREE => self.free_space_items(),
            objectid::BLOCK_GROUP_TREE => self.block_group_items(),
            _ => Items::new(),
        };
        items.sort_by_key(|(key, _)| *key);
        items
    }

    fn nodesize(&self) -> u64 {
        self.settled.nodesize.into()
    }

    fn has(&self, feature: Feature) -> bool {
        self.settled.features.contains(feature)
    }

    /// The place of a tree.
    pub fn tree(&self, id: u64) -> Option<&Placed> {
        self.trees.iter().find(|tree| tree.id == id)
    }

    /// Bytes of a chunk in use: tree blocks fill its front.
    pub fn used(&self, chunk: &Chunk) -> u64 {
        let within = |at: &&u64| (chunk.logical..chunk.end()).contains(*at);
        let blocks = self.trees.iter().flat_map(|tree| &tree.addresses).filter(within).count();
        blocks as u64 * self.nodesize()
    }

    fn root_items(&self) -> Items {
        let mut items = Items::new();
        let absent = [objectid::ROOT_TREE, objectid::CHUNK_TREE];
        for tree in self.trees.iter().filter(|tree| !absent.contains(&tree.id)) {
            let key = Key::new(tree.id, kind::ROOT_ITEM, 0);
            items.push((key, self.root_item(tree).as_bytes().to_vec()));
        }
        items.extend(self.default_directory());
        items
    }

    fn root_item(&self, tree: &Placed) -> RootItem {
        let directory = [objectid::FS_TREE, objectid::DATA_RELOC_TREE].contains(&tree.id);
        let mut item = RootItem {
            generation: GENERATION.into(),
            generation_v2: GENERATION.into(),
            root_dirid: if directory { objectid::FIRST_FREE } else { 0 }.into(),
            bytenr: tree.root().into(),
            bytes_used: (tree.addresses.len() as u64 * self.nodesize()).into(),
            refs: 1.into(),
            level: tree.level(),
            ..RootItem::default()
        };
        if directory {
            item.inode = InodeItem {
                generation: GENERATION.into(),
                size: 3.into(),
                nbytes: self.nodesize().into(),
                nlink: 1.into(),
                mode: 0o40755.into(),
                ..InodeItem::default()
            };
        }
        if tree.id == objectid::FS_TREE {
            item.uuid = self.uuids.subvolume.into_bytes();
            item.ctime = self.now;
            item.otime = self.now;
        }
        item
    }

    /// The directory in the root tree whose entry `default` names the default subvolume.
    fn default_directory(&self) -> Items {
        let name = b"default";
        let dir = objectid::ROOT_TREE_DIR;
        let target = Key::new(objectid::FS_TREE, kind::ROOT_ITEM, u64::MAX);
        let entry = DirItem {
            location: target.into(),
            name_len: (name.len() as u16).into(),
            file_type: file_type::DIRECTORY,
            ..DirItem::default()
        };
        let hash = name_hash(name);
        vec![
            (Key::new(objectid::FS_TREE, kind::INODE_REF, dir), inode_ref(name)),
            inode(dir, self.nodesize(), self.now, self.now, (0, 0)),
            (Key::new(dir, kind::INODE_REF, dir), inode_ref(b"..")),
            (Key::new(dir, kind::DIR_ITEM, hash), [entry.as_bytes(), name].concat()),
        ]
    }

    /// An empty top directory.
    fn directory_items(&self, nbytes: u64, otime: Timespec, owner: (u32, u32)) -> Items {
        let top = objectid::FIRST_FREE;
        vec![
            inode(top, nbytes, self.now, otime, owner),
            (Key::new(top, kind::INODE_REF, top), inode_ref(b"..")),
        ]
    }

    fn extent_items(&self) -> Items {
        let mut items = Items::new();
        for tree in &self.trees {
            items.extend(tree.blocks().map(|(at, level)| self.extent_item(tree.id, at, level)));
        }
        if !self.has(Feature::BlockGroupTree) {
            items.extend(self.block_group_items());
        }
        items
    }

    fn extent_item(&self, owner: u64, at: u64, level: u8) -> (Key, Vec<u8>) {
        let extent = ExtentItem {
            refs: 1.into(),
            generation: GENERATION.into(),
            flags: extent_flags::TREE_BLOCK.into(),
        };
        let reference = ExtentInlineRef { kind: kind::TREE_BLOCK_REF, offset: owner.into() };
        if self.has(Feature::SkinnyMetadata) {
            let key = Key::new(at, kind::METADATA_ITEM, level.into());
            return (key, [extent.as_bytes(), reference.as_bytes()].concat());
        }
        // The first key of the block is a hint that nobody relies on; `crate::make` fills it in.
        let info = TreeBlockInfo { level, ..TreeBlockInfo::default() };
        let key = Key::new(at, kind::EXTENT_ITEM, self.nodesize());
        (key, [extent.as_bytes(), info.as_bytes(), reference.as_bytes()].concat())
    }

    fn block_group_items(&self) -> Items {
        let item = |chunk: &&Chunk| BlockGroupItem {
            used: self.used(chunk).into(),
            chunk_objectid: objectid::FIRST_CHUNK_TREE.into(),
            flags: chunk.flags.into(),
        };
        let key = |chunk: &Chunk| Key::new(chunk.logical, kind::BLOCK_GROUP_ITEM, chunk.length);
        let chunks = self.layout.chunks();
        chunks.iter().map(|chunk| (key(chunk), item(chunk).as_bytes().to_vec())).collect()
    }

    fn free_space_items(&self) -> Items {
        let mut items = Items::new();
        for chunk in self.layout.chunks() {
            let used = self.used(chunk);
            let free = chunk.length.saturating_sub(used);
            let extents = u32::from(free > 0);
            let info = FreeSpaceInfo { extent_count: extents.into(), flags: 0.into() };
            let key = Key::new(chunk.logical, kind::FREE_SPACE_INFO, chunk.length);
            items.push((key, info.as_bytes().to_vec()));
            if free > 0 {
                let start = chunk.logical.saturating_add(used);
                items.push((Key::new(start, kind::FREE_SPACE_EXTENT, free), Vec::new()));
            }
        }
        items
    }

    fn chunk_items(&self) -> Items {
        let mut items: Items =
            self.layout.chunks().into_iter().map(|chunk| self.chunk_item(chunk)).collect();
        let key = Key::new(objectid::DEV_ITEMS, kind::DEV_ITEM, DEVID);
        items.push((key, self.dev_item().as_bytes().to_vec()));
        items
    }

    /// The item of a chunk, also as it stands in the superblock.
    pub fn chunk_item(&self, chunk: &Chunk) -> (Key, Vec<u8>) {
        // A system chunk of profile single is the one that `mkfs.btrfs` starts from, and looks a little different.
        let first = chunk.flags == chunk_type::SYSTEM;
        let io = if first { SECTOR } else { STRIPE_LEN } as u32;
        let item = ChunkItem {
            length: chunk.length.into(),
            owner: objectid::EXTENT_TREE.into(),
            stripe_len: STRIPE_LEN.into(),
            chunk_type: chunk.flags.into(),
            io_align: io.into(),
            io_width: io.into(),
            sector_size: (SECTOR as u32).into(),
            num_stripes: (chunk.stripes.len() as u16).into(),
            sub_stripes: u16::from(!first).into(),
        };
        let mut data = item.as_bytes().to_vec();
        for offset in &chunk.stripes {
            let dev_uuid = self.uuids.device.into_bytes();
            let stripe = StripeItem { devid: DEVID.into(), offset: (*offset).into(), dev_uuid };
            data.extend_from_slice(stripe.as_bytes());
        }
        (Key::new(objectid::FIRST_CHUNK_TREE, kind::CHUNK_ITEM, chunk.logical), data)
    }

    /// The device's item, also as it stands in the superblock.
    pub fn dev_item(&self) -> DevItem {
        DevItem {
            devid: DEVID.into(),
            total_bytes: self.total.into(),
            bytes_used: self.layout.allocated().into(),
            io_align: (SECTOR as u32).into(),
            io_width: (SECTOR as u32).into(),
            sector_size: (SECTOR as u32).into(),
            uuid: self.uuids.device.into_bytes(),
            fsid: self.uuids.fs.into_bytes(),
            ..DevItem::default()
        }
    }

    fn dev_items(&self) -> Items {
        let mut items = Items::new();
        for chunk in self.layout.chunks() {
            let extent = DevExtent {
                chunk_tree: objectid::CHUNK_TREE.into(),
                chunk_objectid: objectid::FIRST_CHUNK_TREE.into(),
                chunk_offset: chunk.logical.into(),
                length: chunk.length.into(),
                chunk_tree_uuid: self.uuids.chunk_tree.into_bytes(),
            };
            for start in &chunk.stripes {
                let key = Key::new(DEVID, kind::DEV_EXTENT, *start);
                items.push((key, extent.as_bytes().to_vec()));
            }
        }
        items
    }

    fn uuid_items(&self) -> Items {
        let (first, second) = self.uuids.subvolume.as_u64_pair();
        let key = Key::new(first.swap_bytes(), kind::UUID_SUBVOL, second.swap_bytes());
        vec![(key, objectid::FS_TREE.to_le_bytes().to_vec())]
    }

    /// What says that quotas are on. Simple ones count from the only generation on that there is.
    fn quota_status(&self) -> Vec<u8> {
        let is_simple = self.has(Feature::Squota);
        let mode = if is_simple { qgroup_status_flags::SIMPLE_MODE } else { 0 };
        let status = QgroupStatus {
            version: 1.into(),
            generation: GENERATION.into(),
            flags: (qgroup_status_flags::ON | mode).into(),
            rescan: 0.into(),
        };
        match is_simple {
            true => SimpleStatus { status, enable_gen: GENERATION.into() }.as_bytes().to_vec(),
            false => status.as_bytes().to_vec(),
        }
    }

    /// Quotas that are on and count the only block of the top subvolume, which is the same for both kinds of them.
    fn quota_items(&self) -> Items {
        let bytes = self.nodesize().into();
        let info = QgroupInfo {
            generation: GENERATION.into(),
            rfer: bytes,
            rfer_cmpr: bytes,
            excl: bytes,
            excl_cmpr: bytes,
        };
        let limit = QgroupLimit::default();
        vec![
            (Key::new(0, kind::QGROUP_STATUS, 0), self.quota_status()),
            (Key::new(0, kind::QGROUP_INFO, objectid::FS_TREE), info.as_bytes().to_vec()),
            (Key::new(0, kind::QGROUP_LIMIT, objectid::FS_TREE), limit.as_bytes().to_vec()),
        ]
    }
}

fn inode(
    number: u64,
    nbytes: u64,
    now: Timespec,
    otime: Timespec,
    (uid, gid): (u32, u32),
) -> (Key, Vec<u8>) {
    let item = InodeItem {
        uid: uid.into(),
        gid: gid.into(),
        generation: GENERATION.into(),
        nbytes: nbytes.into(),
        nlink: 1.into(),
        mode: 0o40755.into(),
        atime: now,
        ctime: now,
        mtime: now,
        otime,
        ..InodeItem::default()
    };
    (Key::new(number, kind::INODE_ITEM, 0), item.as_bytes().to_vec())
}

fn inode_ref(name: &[u8]) -> Vec<u8> {
    let head = InodeRef { index: 0.into(), name_len: (name.len() as u16).into() };
    [head.as_bytes(), name].concat()
}
