//! Tree blocks: heads, child pointers, the layout of leaves, checksums.

use buttress_ondisk::{BlockHead, Key, kind, objectid};

use crate::damage::base::Base;
use crate::damage::bytes::{child, head, item};
use crate::damage::{Kind, Patient, Result, TOP};

const CSUMS: u64 = objectid::CSUM_TREE;

/// The address of the leaf of the top tree that holds the first item of an inode far inside.
fn leaf(p: &Patient) -> Result<u64> {
    let id = p.named(TOP, "entry-20")?;
    let path = p.path(TOP, &Key::new(id, kind::INODE_ITEM, 0))?;
    Ok(path.last().map_or(0, |step| step.block.bytenr()))
}

/// The address of a leaf that a subvolume shares with nobody.
fn own_leaf(p: &Patient) -> Result<u64> {
    let volume = p.named(TOP, "volume")?;
    let id = p.named(volume, "file-500")?;
    let path = p.path(volume, &Key::new(id, kind::INODE_ITEM, 0))?;
    Ok(path.last().map_or(0, |step| step.block.bytenr()))
}

/// Changes the root block of the top tree, a node.
fn node(p: &Patient, edit: impl FnOnce(&mut [u8])) -> Result<()> {
    p.edit_block(p.root(TOP)?, edit)
}

pub const KINDS: &[Kind] = &[
    Kind::new("block.csum", "tree-block-bad", |p| {
        let at = leaf(p)? + 5000;
        p.flip(at, 0)?;
        p.flip(at, 1)
    }),
    Kind::new("block.csum-first-copy", "tree-block-copy", |p| p.flip(leaf(p)? + 5000, 0)).warns(),
    Kind::new("block.csum-second-copy", "tree-block-copy", |p| p.flip(leaf(p)? + 5000, 1))
        .misses("it reads the first copy only")
        .in_data(),
    Kind::new("block.zeroed", "tree-block-bad", |p| p.write(leaf(p)?, &[0; 16384])),
    Kind::new("header.bytenr", "tree-block-bad", |p| {
        p.edit_block(leaf(p)?, |it| head(it, |it| it.bytenr = (it.bytenr.get() + 16384).into()))
    }),
    Kind::new("header.fsid", "tree-block-bad", |p| {
        p.edit_block(leaf(p)?, |it| head(it, |it| it.fsid[0] ^= 1))
    }),
    Kind::new("header.chunk-tree-uuid", "tree-block-uuid", |p| {
        p.edit_block(leaf(p)?, |it| head(it, |it| it.chunk_tree_uuid[0] ^= 1))
    })
    .misses("it compares only the filesystem's uuid"),
    Kind::new("header.generation", "tree-block-bad", |p| {
        p.edit_block(leaf(p)?, |it| head(it, |it| it.generation = 3.into()))
    }),
    Kind::new("header.owner", "tree-block-bad", |p| {
        p.edit_block(p.root(CSUMS)?, |it| head(it, |it| it.owner = 9.into()))
    }),
    Kind::new("header.owner-nobody", "tree-block-owner", |p| {
        p.edit_block(leaf(p)?, |it| head(it, |it| it.owner = 999_999.into()))
    }),
    Kind::new("header.backref-revision", "tree-block-revision", |p| {
        p.edit_block(leaf(p)?, |it| {
            head(it, |it| it.flags = (it.flags.get() & ((1 << 56) - 1)).into());
        })
    })
    .misses("it looks at the revision where references are counted wrong only"),
    Kind::new("header.level", "tree-block-bad", |p| {
        p.edit_block(leaf(p)?, |it| head(it, |it| it.level = 1))
    }),
    Kind::new("header.nritems", "tree-block-bad", |p| {
        p.edit_block(leaf(p)?, |it| head(it, |it| it.nritems = 60_000.into()))
    }),
    Kind::new("header.moved", "tree-block-flags", |p| {
        let at = own_leaf(p)?;
        p.edit_block(at, |it| head(it, |it| it.flags = (it.flags.get() | BlockHead::RELOC).into()))
    })
    .on(Base::Deep),
    Kind::new("header.written", "tree-block-bad", |p| {
        p.edit_block(leaf(p)?, |it| head(it, |it| it.flags = (it.flags.get() & !1).into()))
    })
    .misses("it does not look at the flag"),
    Kind::new("node-ptr.generation", "tree-block-bad", |p| {
        node(p, |it| child(it, 1, |it| it.generation = (it.generation.get() - 1).into()))
    }),
    Kind::new("node-ptr.bytenr", "tree-block-bad", |p| {
        let at = p.root(objectid::EXTENT_TREE)?;
        node(p, |it| child(it, 1, |it| it.bytenr = at.into()))
    }),
    Kind::new("node-ptr.bytenr-null", "tree-block-bad", |p| {
        node(p, |it| child(it, 1, |it| it.bytenr = 0.into()))
    }),
    Kind::new("node-ptr.bytenr-unmapped", "tree-block-bad", |p| {
        node(p, |it| child(it, 1, |it| it.bytenr = (1 << 50).into()))
    }),
    Kind::new("node-ptr.bytenr-loop", "tree-block-bad", |p| {
        let at = p.root(TOP)?;
        node(p, |it| child(it, 1, |it| it.bytenr = at.into()))
    }),
    Kind::new("node-ptr.key", "tree-block-bad", |p| {
        node(p, |it| child(it, 1, |it| it.key.offset = (it.key.offset.get() + 1).into()))
    }),
    Kind::new("node.key-order", "tree-block-bad", |p| {
        node(p, |it| child(it, 1, |it| it.key.objectid = 1.into()))
    }),
    Kind::new("node.empty", "tree-block-item", |p| {
        node(p, |it| head(it, |it| it.nritems = 0.into()))
    }),
    Kind::new("node.twice-the-same-child", "tree-block-bad", |p| {
        let at = p.block(p.root(TOP)?)?.child(0).bytenr;
        node(p, |it| child(it, 1, |it| it.bytenr = at.into()))
    }),
    Kind::new("leaf.key-order", "tree-block-item", |p| {
        p.edit_block(leaf(p)?, |it| item(it, 3, |it| it.key.objectid = 1.into()))
    }),
    Kind::new("leaf.key-twice", "tree-block-item", |p| {
        let key = p.block(leaf(p)?)?.key(3);
        p.edit_block(leaf(p)?, |it| item(it, 4, |it| it.key = key.into()))
    }),
    Kind::new("leaf.item-offset", "tree-block-item", |p| {
        p.edit_block(leaf(p)?, |it| item(it, 3, |it| it.offset = (it.offset.get() - 4).into()))
    }),
    Kind::new("leaf.item-size", "tree-block-item", |p| {
        p.edit_block(leaf(p)?, |it| item(it, 3, |it| it.size = (it.size.get() + 4).into()))
    }),
    Kind::new("leaf.item-outside", "tree-block-bad", |p| {
        p.edit_block(leaf(p)?, |it| item(it, 3, |it| it.offset = 40_000.into()))
    }),
    Kind::new("leaf.last-key-beyond", "tree-block-item", |p| {
        let block = p.block(p.root(TOP)?)?;
        let at = block.child(0).bytenr;
        let last = p.block(at)?.len() - 1;
        p.edit_block(at, |it| item(it, last, |it| it.key.objectid = (1 << 30).into()))
    }),
    Kind::new("shared-node.child-generation", "tree-block-bad", |p| {
        let id = p.named(TOP, "volume")?;
        p.edit_block(p.root(id)?, |it| child(it, 0, |it| it.generation = 2.into()))
    })
    .on(Base::Deep),
];
