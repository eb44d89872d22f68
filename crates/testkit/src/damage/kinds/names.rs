//! Names: directory entries by hash and by index, and the references of inodes to them.

use buttress_ondisk::item::{DirItem, InodeRef};
use buttress_ondisk::{Key, kind, objectid};

use crate::damage::{Base, Kind, Patient, Result, TOP};

const BY_HASH: u8 = kind::DIR_ITEM;
const BY_INDEX: u8 = kind::DIR_INDEX;

/// Changes the head of an entry of the top tree.
fn entry(p: &Patient, by: u8, name: &str, edit: impl FnOnce(&mut DirItem)) -> Result<()> {
    p.edit(TOP, p.entry(TOP, by, name)?, edit)
}

/// Takes an entry of the top tree out.
fn remove(p: &Patient, by: u8, name: &str) -> Result<()> {
    p.remove(TOP, p.entry(TOP, by, name)?).map(drop)
}

/// The key of the first reference of an inode.
fn back(p: &Patient, name: &str) -> Result<Key> {
    p.key(TOP, p.named(TOP, name)?, kind::INODE_REF)
}

/// Changes the last letter of an item.
fn rename(p: &Patient, key: Key) -> Result<()> {
    p.rewrite(TOP, key, |data| {
        if let Some(letter) = data.last_mut() {
            *letter ^= 1;
        }
    })
}

/// Makes an entry name a directory once more, under another name.
fn second_name(p: &Patient, dir: &str) -> Result<()> {
    let (hash, index) = (p.entry(TOP, BY_HASH, dir)?, p.entry(TOP, BY_INDEX, dir)?);
    let mut data = p.find(TOP, |key, _| *key == hash)?.1;
    if let Some(letter) = data.last_mut() {
        *letter ^= 1;
    }
    let name = &data[size_of::<DirItem>()..];
    let offset = buttress_codec::crc32c::name_hash(name);
    p.insert(TOP, Key { offset, ..hash }, &data)?;
    p.insert(TOP, Key { offset: 80_000, ..index }, &data)?;
    p.edit(
        TOP,
        Key::new(hash.objectid, kind::INODE_ITEM, 0),
        |it: &mut buttress_ondisk::item::InodeItem| {
            it.size = (it.size.get() + 2 * name.len() as u64).into();
        },
    )
}

pub const KINDS: &[Kind] = &[
    Kind::new("dir-item.hash", "tree-block-item", |p| {
        let key = p.entry(TOP, BY_HASH, "regular")?;
        p.rekey(TOP, key, Key { offset: key.offset ^ 1, ..key })
    }),
    Kind::new("dir-item.location", "dir-item-no-index", |p| {
        let id = p.named(TOP, "inline")?;
        entry(p, BY_HASH, "regular", |it| it.location.objectid = id.into())
    }),
    Kind::new("dir-item.location-kind", "tree-block-item", |p| {
        entry(p, BY_HASH, "regular", |it| it.location.kind = kind::DIR_ITEM)
    }),
    Kind::new("dir-item.location-subvolume", "dir-item-no-index", |p| {
        entry(p, BY_HASH, "volume", |it| it.location.objectid = 900.into())
    }),
    Kind::new("dir-item.type", "dir-item-no-index", |p| {
        entry(p, BY_HASH, "regular", |it| it.file_type = 2)
    }),
    Kind::new("dir-item.name-len", "tree-block-item", |p| {
        entry(p, BY_HASH, "regular", |it| it.name_len = 400.into())
    }),
    Kind::new("dir-item.missing", "dir-index-no-item", |p| remove(p, BY_HASH, "regular")),
    Kind::new("dir-item.twice", "dir-item-no-index", |p| {
        p.rewrite(TOP, p.entry(TOP, BY_HASH, "regular")?, |data| data.extend_from_within(..))
    }),
    Kind::new("dir-index.location", "dir-index-no-ref", |p| {
        let id = p.named(TOP, "inline")?;
        entry(p, BY_INDEX, "regular", |it| it.location.objectid = id.into())
    }),
    Kind::new("dir-index.location-nowhere", "dir-entry-no-inode", |p| {
        entry(p, BY_INDEX, "regular", |it| it.location.objectid = 77_777.into())
    }),
    Kind::new("dir-index.type", "dir-entry-type", |p| {
        entry(p, BY_INDEX, "regular", |it| it.file_type = 7)
    }),
    Kind::new("dir-index.name", "dir-index-no-ref", |p| {
        rename(p, p.entry(TOP, BY_INDEX, "regular")?)
    }),
    Kind::new("dir-index.index", "inode-ref-no-index", |p| {
        let key = p.entry(TOP, BY_INDEX, "regular")?;
        p.rekey(TOP, key, Key { offset: 80_000, ..key })
    }),
    Kind::new("dir-index.missing", "dir-item-no-index", |p| remove(p, BY_INDEX, "regular")),
    Kind::new("dir-index.both-missing", "inode-ref-no-index", |p| {
        remove(p, BY_HASH, "regular")?;
        remove(p, BY_INDEX, "regular")
    }),
    Kind::new("dir-index.both-in-a-file", "dir-entry-odd", |p| {
        let (file, target) = (p.named(TOP, "inline")?, p.entry(TOP, BY_INDEX, "regular")?);
        let data = p.find(TOP, |key, _| *key == target)?.1;
        p.insert(TOP, Key { objectid: file, ..target }, &data)
    }),
    Kind::new("dir-entry.twice-the-same-directory", "dir-index-no-ref", |p| {
        second_name(p, "empty")
    }),
    Kind::new("inode-ref.index", "dir-index-no-ref", |p| {
        p.edit(TOP, back(p, "regular")?, |it: &mut InodeRef| it.index = 80_000.into())
    }),
    Kind::new("inode-ref.name", "dir-index-no-ref", |p| rename(p, back(p, "regular")?)),
    Kind::new("inode-ref.name-len", "tree-block-item", |p| {
        p.edit(TOP, back(p, "regular")?, |it: &mut InodeRef| it.name_len = 200.into())
    }),
    Kind::new("inode-ref.parent", "inode-ref-no-index", |p| {
        let key = back(p, "regular")?;
        p.rekey(TOP, key, Key { offset: p.named(TOP, "dir")?, ..key })
    }),
    Kind::new("inode-ref.missing", "dir-index-no-ref", |p| {
        p.remove(TOP, back(p, "regular")?).map(drop)
    }),
    Kind::new("inode-ref.extra", "inode-ref-no-index", |p| {
        let key = back(p, "regular")?;
        let data = p.find(TOP, |other, _| *other == key)?.1;
        p.insert(TOP, Key { offset: p.named(TOP, "dir")?, ..key }, &data)
    }),
    Kind::new("inode-extref.missing", "dir-index-no-ref", |p| {
        p.remove(TOP, p.first(TOP, kind::INODE_EXTREF)?).map(drop)
    }),
    Kind::new("inode-extref.hash", "inode-extref-hash", |p| {
        let all = p.all(TOP, |key, _| key.kind == kind::INODE_EXTREF)?;
        let (key, _) = all[all.len() / 2];
        p.rekey(TOP, key, Key { offset: key.offset ^ 1, ..key })
    })
    .misses("it does not compare the hash"),
    Kind::new("inode-extref.name", "dir-index-no-ref", |p| {
        rename(p, p.first(TOP, kind::INODE_EXTREF)?)
    }),
    Kind::new("inode-ref.top", "top-dir-bad", |p| {
        let key = Key::new(objectid::FIRST_FREE, kind::INODE_REF, objectid::FIRST_FREE);
        p.remove(TOP, key).map(drop)
    }),
    Kind::new("dir-index.old-format", "dir-item-no-index", |p| {
        remove(p, BY_INDEX, "linked-beside")
    })
    .on(Base::Old),
];
