//! Inodes, orphans, extended attributes.

use buttress_ondisk::item::{DirItem, InodeItem, inode_flags};
use buttress_ondisk::{Key, kind, objectid};

use crate::damage::{Kind, Patient, Result, TOP};

/// The key of the orphan item.
fn orphan(p: &Patient) -> Result<Key> {
    p.key(TOP, objectid::ORPHAN, kind::ORPHAN_ITEM)
}

/// The key of the inode item behind a name.
fn inode(p: &Patient, name: &str) -> Result<Key> {
    Ok(Key::new(p.named(TOP, name)?, kind::INODE_ITEM, 0))
}

pub const KINDS: &[Kind] = &[
    Kind::new("inode-item.nlink", "inode-nlink", |p| p.inode("linked", |it| it.nlink = 7.into())),
    Kind::new("inode-item.nlink-zero", "inode-nlink", |p| {
        p.inode("regular", |it| it.nlink = 0.into())
    }),
    Kind::new("inode-item.nlink-many", "inode-nlink", |p| {
        p.inode("many", |it| it.nlink = 75.into())
    }),
    Kind::new("inode-item.nlink-dir", "inode-nlink", |p| p.inode("dir", |it| it.nlink = 0.into())),
    Kind::new("inode-item.size-dir", "dir-size", |p| {
        p.inode("dir", |it| it.size = (it.size.get() + 2).into())
    }),
    Kind::new("inode-item.nbytes", "inode-nbytes", |p| {
        p.inode("regular", |it| it.nbytes = (it.nbytes.get() + 4096).into())
    }),
    Kind::new("inode-item.nbytes-inline", "inode-nbytes", |p| {
        p.inode("inline", |it| it.nbytes = 4096.into())
    }),
    Kind::new("inode-item.mode", "dir-entry-type", |p| {
        p.inode("inline", |it| it.mode = 0o120_644.into())
    }),
    Kind::new("inode-item.mode-none", "tree-block-item", |p| {
        p.inode("inline", |it| it.mode = 0o644.into())
    }),
    Kind::new("inode-item.mode-dir", "dir-entry-type", |p| {
        p.inode("inline", |it| it.mode = 0o40_755.into())
    }),
    Kind::new("inode-item.generation", "tree-block-item", |p| {
        p.inode("inline", |it| it.generation = (1 << 40).into())
    }),
    Kind::new("inode-item.transid", "tree-block-item", |p| {
        p.inode("inline", |it| it.transid = (1 << 40).into())
    }),
    Kind::new("inode-item.flags-nodatasum", "file-csum-extra", |p| {
        p.inode("regular", |it| it.flags = inode_flags::NODATASUM.into())
    }),
    Kind::new("inode-item.flags-datasum", "file-csum-missing", |p| {
        p.inode("nocow", |it| it.flags = 0.into())
    }),
    Kind::new("inode-item.flags-unknown", "tree-block-item", |p| {
        p.inode("inline", |it| it.flags = (1 << 20).into())
    })
    .misses("it does not look at unknown flags"),
    Kind::new("inode-item.missing", "inode-missing", |p| {
        p.remove(TOP, inode(p, "fifo")?).map(drop)
    }),
    Kind::new("inode-item.missing-dir", "inode-missing", |p| {
        p.remove(TOP, inode(p, "empty")?).map(drop)
    }),
    Kind::new("inode-item.extra", "inode-nlink", |p| {
        let (_, data) = p.find(TOP, |key, _| key.kind == kind::INODE_ITEM && key.objectid > 256)?;
        let mut item = InodeItem::of(&data).copied().unwrap_or_default();
        (item.mode, item.size, item.nbytes, item.nlink) =
            (0o100_644.into(), 0.into(), 0.into(), 1.into());
        let bytes = zerocopy::IntoBytes::as_bytes(&item).to_vec();
        p.insert(TOP, Key::new(90_000, kind::INODE_ITEM, 0), &bytes)
    }),
    Kind::new("inode.top-missing", "inode-missing", |p| {
        p.remove(TOP, Key::new(objectid::FIRST_FREE, kind::INODE_ITEM, 0)).map(drop)
    }),
    Kind::new("inode.top-mode", "top-dir-bad", |p| {
        let key = Key::new(objectid::FIRST_FREE, kind::INODE_ITEM, 0);
        p.edit(TOP, key, |it: &mut InodeItem| it.mode = 0o100_644.into())
    }),
    Kind::new("orphan.missing", "inode-orphan", |p| p.remove(TOP, orphan(p)?).map(drop)),
    Kind::new("orphan.of-linked-inode", "orphan-stale", |p| {
        let key = orphan(p)?;
        p.insert(TOP, Key { offset: p.named(TOP, "regular")?, ..key }, &[])
    })
    .misses("the kernel drops such an item when it mounts"),
    Kind::new("orphan.of-nothing", "orphan-stale", |p| {
        p.insert(TOP, Key { offset: 99_999, ..orphan(p)? }, &[])
    })
    .misses("the kernel drops such an item when it mounts"),
    Kind::new("xattr.hash", "tree-block-item", |p| {
        let key = p.key(TOP, p.named(TOP, "attrs")?, kind::XATTR_ITEM)?;
        p.rekey(TOP, key, Key { offset: key.offset ^ 1, ..key })
    })
    .misses("it does not read attributes"),
    Kind::new("xattr.type", "tree-block-item", |p| {
        let key = p.key(TOP, p.named(TOP, "attrs")?, kind::XATTR_ITEM)?;
        p.edit(TOP, key, |it: &mut DirItem| it.file_type = 1)
    })
    .misses("it does not read attributes"),
    Kind::new("xattr.twice", "xattr-twice", |p| {
        let key = p.key(TOP, p.named(TOP, "attrs")?, kind::XATTR_ITEM)?;
        p.rewrite(TOP, key, |data| data.extend_from_within(..))
    })
    .misses("it does not read attributes"),
    Kind::new("xattr.data-len", "tree-block-item", |p| {
        let key = p.key(TOP, p.named(TOP, "attrs")?, kind::XATTR_ITEM)?;
        p.edit(TOP, key, |it: &mut DirItem| it.data_len = 500.into())
    })
    .misses("it does not read attributes"),
    Kind::new("xattr.without-inode", "inode-missing", |p| {
        let key = p.key(TOP, p.named(TOP, "attrs")?, kind::XATTR_ITEM)?;
        let data = p.find(TOP, |other, _| *other == key)?.1;
        p.insert(TOP, Key { objectid: 90_000, ..key }, &data)
    }),
];
