//! What is well formed and must not be: names that no file can have, items of a kind that a tree does not hold, flags and
//! owners of other blocks, features without what they need, a log without its checksums.

use buttress_codec::crc32c::name_hash;
use buttress_ondisk::block::BlockHead;
use buttress_ondisk::item::{DirItem, ExtentItem, InodeItem, InodeRef, RootItem, extent_flags};
use buttress_ondisk::superblock::compat_ro;
use buttress_ondisk::view::FileExtentItem;
use buttress_ondisk::{Key, kind, objectid};

use crate::damage::base::Base;
use crate::damage::bytes::head;
use crate::damage::{DamageError, Kind, Patient, Result, TOP};

const BY_HASH: u8 = kind::DIR_ITEM;
const BY_INDEX: u8 = kind::DIR_INDEX;
const ROOTS: u64 = objectid::ROOT_TREE;
const EXTENTS: u64 = objectid::EXTENT_TREE;
const LOG: u64 = objectid::TREE_LOG;
/// Why names that lead elsewhere pass.
const NAMES: &str = "it compares names with each other, whatever they are";

/// Puts another name at the end of an item whose name begins `start` bytes into it; its length is two bytes, `back` before.
fn renamed_data(data: &mut Vec<u8>, (start, back): (usize, usize), name: &[u8]) {
    data.truncate(start);
    data[start - back..start - back + 2].copy_from_slice(&(name.len() as u16).to_le_bytes());
    data.extend_from_slice(name);
}

/// Gives a file of the top directory another name, everywhere where it is told.
fn rename(p: &Patient, old: &str, new: &[u8]) -> Result<()> {
    let entry = (size_of::<DirItem>(), 3);
    let (hash, index) = (p.entry(TOP, BY_HASH, old)?, p.entry(TOP, BY_INDEX, old)?);
    let back = p.key(TOP, p.named(TOP, old)?, kind::INODE_REF)?;
    p.rewrite(TOP, back, |data| renamed_data(data, (size_of::<InodeRef>(), 2), new))?;
    p.rewrite(TOP, hash, |data| renamed_data(data, entry, new))?;
    p.rewrite(TOP, index, |data| renamed_data(data, entry, new))?;
    p.rekey(TOP, hash, Key { offset: name_hash(new), ..hash })?;
    let shorter = 2 * (old.len() as u64).wrapping_sub(new.len() as u64);
    p.edit(TOP, Key::new(objectid::FIRST_FREE, kind::INODE_ITEM, 0), |it: &mut InodeItem| {
        it.size = it.size.get().wrapping_sub(shorter).into();
    })
}

/// Gives a file the name of another one, whose hash it shares then: two entries in one item.
fn double_name(p: &Patient, one: &str, other: &str) -> Result<()> {
    let (hash, index) = (p.entry(TOP, BY_HASH, one)?, p.entry(TOP, BY_INDEX, one)?);
    let entry = (size_of::<DirItem>(), 3);
    let back = p.key(TOP, p.named(TOP, one)?, kind::INODE_REF)?;
    let name = other.as_bytes();
    p.rewrite(TOP, back, |data| renamed_data(data, (size_of::<InodeRef>(), 2), name))?;
    p.rewrite(TOP, index, |data| renamed_data(data, entry, name))?;
    let mut data = p.remove(TOP, hash)?;
    renamed_data(&mut data, entry, name);
    p.rewrite(TOP, p.entry(TOP, BY_HASH, other)?, |all| all.extend_from_slice(&data))?;
    let longer = 2 * (other.len() as u64).wrapping_sub(one.len() as u64);
    p.edit(TOP, Key::new(objectid::FIRST_FREE, kind::INODE_ITEM, 0), |it: &mut InodeItem| {
        it.size = it.size.get().wrapping_add(longer).into();
    })
}

/// Changes the reference of the top directory to itself.
fn top_ref(p: &Patient, edit: impl FnOnce(&mut Vec<u8>)) -> Result<()> {
    p.rewrite(TOP, Key::new(objectid::FIRST_FREE, kind::INODE_REF, objectid::FIRST_FREE), edit)
}

/// A block with full backrefs that refers to nothing itself.
fn shared_leaf(p: &Patient) -> Result<Key> {
    let is_full = |data: &[u8]| {
        let flags = ExtentItem::of(data).map_or(0, |item| item.flags.get());
        flags & extent_flags::FULL_BACKREF != 0
    };
    let all = p.all(EXTENTS, |key, data| key.kind == kind::METADATA_ITEM && is_full(data))?;
    for (key, _) in all {
        let block = p.block(key.objectid)?;
        let is_reference = |slot| {
            let (key, data) = block.item(slot);
            key.kind == kind::EXTENT_DATA
                && matches!(FileExtentItem::read(data), Some(FileExtentItem::Regular { .. }))
        };
        if block.is_leaf() && !(0..block.len()).any(is_reference) {
            return Ok(key);
        }
    }
    Err(DamageError::Missing("a shared leaf without extents"))
}

/// A leaf of the top tree that is not its root.
fn leaf(p: &Patient) -> Result<u64> {
    let id = p.named(TOP, "entry-20")?;
    let path = p.path(TOP, &Key::new(id, kind::INODE_ITEM, 0))?;
    Ok(path.last().map_or(0, |step| step.block.bytenr()))
}

/// Sets flags in the head of a block.
fn flag(p: &Patient, at: u64, bits: u64) -> Result<()> {
    p.edit_block(at, |it| head(it, |it| it.flags = (it.flags.get() | bits).into()))
}

pub const KINDS: &[Kind] = &[
    Kind::new("super.stripesize", "super-stripesize", |p| {
        p.superblock(|sb| sb.stripesize = 8192.into())
    }),
    Kind::new("super.block-group-tree-missing", "root-missing", |p| {
        p.superblock(|sb| {
            sb.compat_ro_flags = (sb.compat_ro_flags.get() | compat_ro::BLOCK_GROUP_TREE).into();
        })
    }),
    Kind::new("super.cache-generation", "space-cache-stale", |p| {
        p.superblock(|sb| sb.cache_generation = 5.into())
    })
    .on(Base::Cache)
    .warns(),
    Kind::new("name.dots", "name-bad", |p| rename(p, "regular", b"..")).misses(NAMES),
    Kind::new("name.dot", "name-bad", |p| rename(p, "regular", b".")).misses(NAMES),
    Kind::new("name.slash", "name-bad", |p| rename(p, "regular", b"dir/x")).misses(NAMES),
    Kind::new("name.zero-byte", "name-bad", |p| rename(p, "regular", b"a\0b")).misses(NAMES),
    Kind::new("name.empty", "name-bad", |p| rename(p, "regular", b"")).misses(NAMES),
    Kind::new("name.twice", "name-twice", |p| double_name(p, "small", "regular"))
        .misses("it compares each name with its inode, and both agree"),
    Kind::new("inode-ref.top-name", "top-dir-bad", |p| top_ref(p, |data| data[11] = b'x')),
    Kind::new("inode-ref.top-index", "top-dir-bad", |p| top_ref(p, |data| data[0] = 2)),
    Kind::new("dir-index.type-high-bit", "dir-entry-type", |p| {
        p.edit(TOP, p.entry(TOP, BY_INDEX, "regular")?, |it: &mut DirItem| it.file_type |= 0x80)
    }),
    Kind::new("item.odd-in-files", "item-odd", |p| {
        p.insert(TOP, Key::new(p.named(TOP, "regular")?, 77, 0), &[1; 8])
    })
    .misses("it passes over what it does not know"),
    Kind::new("item.inode-cache", "inode-cache", |p| {
        p.insert(TOP, Key::new(objectid::FREE_SPACE, 0, 0), &[0; 41])
    })
    .misses("it passes over it"),
    Kind::new("root-tree.directory-mode", "root-tree-inode", |p| {
        let key = Key::new(objectid::ROOT_TREE_DIR, kind::INODE_ITEM, 0);
        p.edit(ROOTS, key, |it: &mut InodeItem| it.mode = 0o100_644.into())
    })
    .misses("it looks at the modes of cache files only"),
    Kind::new("root-item.root-dirid-top", "root-dirid", |p| {
        p.edit(ROOTS, Key::new(TOP, kind::ROOT_ITEM, 0), |it: &mut RootItem| {
            it.root_dirid = 300.into();
        })
    }),
    Kind::new("root-item.root-dirid-of-relocation", "root-dirid", |p| {
        let key = p.key(ROOTS, objectid::DATA_RELOC_TREE, kind::ROOT_ITEM)?;
        p.edit(ROOTS, key, |it: &mut RootItem| it.root_dirid = 300.into())
    }),
    Kind::new("header.owner-other", "tree-block-owner", |p| {
        let other = p.named(TOP, "volume")?;
        p.edit_block(leaf(p)?, |it| head(it, |it| it.owner = other.into()))
    }),
    Kind::new("header.owner-of-root", "tree-block-owner", |p| {
        let at = p.root(p.named(TOP, "volume")?)?;
        p.edit_block(at, |it| head(it, |it| it.owner = TOP.into()))
    }),
    Kind::new("header.flags-reloc", "tree-block-flags", |p| {
        flag(p, p.root(objectid::CSUM_TREE)?, BlockHead::RELOC)
    }),
    Kind::new("header.flags-unknown", "tree-block-flags", |p| flag(p, leaf(p)?, 1 << 20))
        .misses("it does not look at unknown flags"),
    Kind::new("metadata-item.full-backref-cleared", "tree-block-owner", |p| {
        p.edit(EXTENTS, shared_leaf(p)?, |it: &mut ExtentItem| {
            it.flags = extent_flags::TREE_BLOCK.into();
        })
    })
    .on(Base::Deep),
    Kind::new("log.name", "name-bad", |p| {
        p.rewrite(LOG, p.first(LOG, BY_INDEX)?, |data| {
            if let Some(letter) = data.last_mut() {
                *letter = b'/';
            }
        })
    })
    .on(Base::Log)
    .misses("it does not look into logs"),
    Kind::new("log.csum-missing", "log-csum-missing", |p| {
        p.remove(LOG, p.first(LOG, kind::EXTENT_CSUM)?).map(drop)
    })
    .on(Base::Log)
    .misses("it does not look into logs"),
];
