//! Subvolumes: root items, their names, uuids, and quotas.

use buttress_ondisk::item::{
    DirItem, QgroupInfo, QgroupStatus, RootItem, RootRef, SimpleStatus, qgroup_status_flags,
};
use buttress_ondisk::superblock::incompat;
use buttress_ondisk::{Key, kind, objectid};

use crate::damage::{Base, Kind, Patient, Result, TOP};

const ROOTS: u64 = objectid::ROOT_TREE;
const UUIDS: u64 = objectid::UUID_TREE;
const QUOTAS: u64 = objectid::QUOTA_TREE;
/// The one item that says whether quotas are on.
const STATUS: Key = Key { objectid: 0, kind: kind::QGROUP_STATUS, offset: 0 };

/// The key of the root item of the subvolume of a name.
fn root(p: &Patient, name: &str) -> Result<Key> {
    p.key(ROOTS, p.named(TOP, name)?, kind::ROOT_ITEM)
}

/// Changes the root item of the subvolume of a name.
fn root_item(p: &Patient, name: &str, edit: impl FnOnce(&mut RootItem)) -> Result<()> {
    p.edit(ROOTS, root(p, name)?, edit)
}

/// The key of the `ROOT_REF` or `ROOT_BACKREF` of the subvolume of a name.
fn reference(p: &Patient, by: u8, name: &str) -> Result<Key> {
    let id = p.named(TOP, name)?;
    match by {
        kind::ROOT_REF => Ok(Key::new(TOP, by, id)),
        _ => Ok(Key::new(id, by, TOP)),
    }
}

/// Changes the last letter of a reference.
fn rename(p: &Patient, by: u8) -> Result<()> {
    p.rewrite(ROOTS, reference(p, by, "volume")?, |data| {
        if let Some(letter) = data.last_mut() {
            *letter ^= 1;
        }
    })
}

/// Changes what a group of quotas counts.
fn group(p: &Patient, id: u64, edit: impl FnOnce(&mut QgroupInfo)) -> Result<()> {
    p.edit(QUOTAS, Key::new(0, kind::QGROUP_INFO, id), edit)
}

/// Says that quotas are simple ones, and have been from the beginning.
fn simple_quotas(p: &Patient) -> Result<()> {
    p.superblock(|sb| {
        sb.incompat_flags = (sb.incompat_flags.get() | incompat::SIMPLE_QUOTA).into();
    })?;
    // With full quotas Linux leaves behind the status whatever its memory had there.
    p.rewrite(QUOTAS, STATUS, |data| {
        data.truncate(size_of::<QgroupStatus>());
        data.resize(size_of::<SimpleStatus>(), 0);
    })?;
    p.edit::<QgroupStatus>(QUOTAS, STATUS, |it| {
        it.flags = (it.flags.get() | qgroup_status_flags::SIMPLE_MODE).into();
    })
}

pub const KINDS: &[Kind] = &[
    Kind::new("root-item.bytenr", "tree-block-bad", |p| {
        let other = p.root(objectid::CSUM_TREE)?;
        root_item(p, "frozen", |it| it.bytenr = other.into())
    }),
    Kind::new("root-item.level", "tree-block-bad", |p| root_item(p, "frozen", |it| it.level = 5)),
    Kind::new("root-item.level-invalid", "tree-block-item", |p| {
        root_item(p, "frozen", |it| it.level = 9)
    }),
    Kind::new("root-item.generation", "tree-block-bad", |p| {
        root_item(p, "frozen", |it| it.generation = 3.into())
    }),
    Kind::new("root-item.flags", "tree-block-item", |p| {
        root_item(p, "frozen", |it| it.flags = (1 << 20).into())
    })
    .misses("it does not look at unknown flags"),
    Kind::new("root-item.root-dirid", "root-dirid", |p| {
        root_item(p, "frozen", |it| it.root_dirid = 300.into())
    }),
    Kind::new("root-item.refs", "root-orphan", |p| root_item(p, "frozen", |it| it.refs = 0.into())),
    Kind::new("root-item.refs-many", "root-refs", |p| {
        root_item(p, "frozen", |it| it.refs = 2.into())
    })
    .misses("it asks only whether there are any"),
    Kind::new("root-item.offset-of-relocation", "root-item-bad", |p| {
        let key = p.key(ROOTS, objectid::DATA_RELOC_TREE, kind::ROOT_ITEM)?;
        p.rekey(ROOTS, key, Key { offset: u64::MAX, ..key })
    }),
    Kind::new("root-item.short", "root-item-bad", |p| {
        p.rewrite(ROOTS, root(p, "frozen")?, |data| data.truncate(100))
    }),
    Kind::new("root-item.orphan", "root-orphan-stale", |p| {
        let id = p.named(TOP, "frozen")?;
        p.insert(ROOTS, Key::new(objectid::ORPHAN, kind::ORPHAN_ITEM, id), &[])
    })
    .misses("the kernel drops such an item when it mounts"),
    Kind::new("default.location", "default-subvolume", |p| {
        let key = p.key(ROOTS, objectid::ROOT_TREE_DIR, kind::DIR_ITEM)?;
        p.edit(ROOTS, key, |it: &mut DirItem| it.location.objectid = 999.into())
    })
    .misses("it does not look at the default"),
    Kind::new("root-item.drop-progress", "root-dropping", |p| {
        root_item(p, "frozen", |it| {
            it.drop_progress.objectid = 300.into();
            it.drop_level = 1;
        })
    }),
    Kind::new("root-item.drop-level", "tree-block-item", |p| {
        root_item(p, "frozen", |it| it.drop_progress.objectid = 300.into())
    })
    .misses("it does not look at it when there are references"),
    Kind::new("root-item.uuid", "uuid-missing", |p| root_item(p, "frozen", |it| it.uuid[0] ^= 1))
        .misses("it does not read the uuid tree"),
    Kind::new("root-item.missing", "root-ref-no-root", |p| {
        p.remove(ROOTS, root(p, "frozen")?).map(drop)
    }),
    Kind::new("root-ref.name", "root-ref-differs", |p| rename(p, kind::ROOT_REF)),
    Kind::new("root-ref.dirid", "root-ref-no-entry", |p| {
        let dir = p.named(TOP, "dir")?;
        p.edit(ROOTS, reference(p, kind::ROOT_REF, "volume")?, |it: &mut RootRef| {
            it.dirid = dir.into()
        })
    }),
    Kind::new("root-ref.sequence", "root-ref-no-entry", |p| {
        p.edit(ROOTS, reference(p, kind::ROOT_REF, "volume")?, |it: &mut RootRef| {
            it.sequence = 9_999.into()
        })
    }),
    Kind::new("root-ref.missing", "root-backref-no-ref", |p| {
        p.remove(ROOTS, reference(p, kind::ROOT_REF, "volume")?).map(drop)
    }),
    Kind::new("root-backref.name", "root-ref-differs", |p| rename(p, kind::ROOT_BACKREF)),
    Kind::new("root-backref.missing", "root-ref-no-backref", |p| {
        p.remove(ROOTS, reference(p, kind::ROOT_BACKREF, "volume")?).map(drop)
    }),
    Kind::new("root-refs.both-missing", "root-unnamed", |p| {
        p.remove(ROOTS, reference(p, kind::ROOT_REF, "volume")?)?;
        p.remove(ROOTS, reference(p, kind::ROOT_BACKREF, "volume")?).map(drop)
    }),
    Kind::new("root-refs.entries-missing", "root-ref-no-entry", |p| {
        p.remove(TOP, p.entry(TOP, kind::DIR_ITEM, "volume")?)?;
        p.remove(TOP, p.entry(TOP, kind::DIR_INDEX, "volume")?).map(drop)
    }),
    Kind::new("uuid.subid", "uuid-stale", |p| {
        p.rewrite(UUIDS, p.first(UUIDS, kind::UUID_SUBVOL)?, |data| data[0] ^= 1)
    })
    .misses("it does not read the uuid tree"),
    Kind::new("uuid.missing", "uuid-missing", |p| {
        p.remove(UUIDS, p.first(UUIDS, kind::UUID_SUBVOL)?).map(drop)
    })
    .misses("it does not read the uuid tree"),
    Kind::new("uuid.extra", "uuid-stale", |p| {
        p.insert(UUIDS, Key::new(5, kind::UUID_SUBVOL, 7), &256_u64.to_le_bytes())
    })
    .misses("it does not read the uuid tree"),
    Kind::new("uuid.received", "uuid-stale", |p| {
        p.insert(UUIDS, Key::new(5, kind::UUID_RECEIVED_SUBVOL, 7), &256_u64.to_le_bytes())
    })
    .misses("it does not read the uuid tree"),
    Kind::new("qgroup-status.missing", "qgroup-status-missing", |p| {
        p.remove(QUOTAS, STATUS).map(drop)
    })
    .on(Base::Quotas)
    .misses("it takes quotas that have a tree for being on; Linux takes them for being off"),
    Kind::new("qgroup-status.as-info", "qgroup-status-missing", |p| {
        p.rekey(QUOTAS, STATUS, Key { kind: kind::QGROUP_INFO, ..STATUS })
    })
    .on(Base::Quotas),
    Kind::new("qgroup-info.twice", "item-odd", |p| {
        let key = Key::new(0, kind::QGROUP_INFO, 256);
        let (_, data) = p.find(QUOTAS, |other, _| *other == key)?;
        p.insert(QUOTAS, Key { objectid: 1, ..key }, &data)
    })
    .on(Base::Quotas),
    Kind::new("qgroup-info.rfer", "qgroup-count", |p| {
        group(p, 256, |it| it.rfer = (it.rfer.get() + 16384).into())
    })
    .on(Base::Quotas),
    Kind::new("qgroup-info.excl", "qgroup-count", |p| {
        group(p, 256, |it| it.excl = (it.excl.get() + 16384).into())
    })
    .on(Base::Quotas),
    Kind::new("qgroup-info.parent", "qgroup-count", |p| {
        group(p, 1 << 48 | 100, |it| it.rfer = (it.rfer.get() + 16384).into())
    })
    .on(Base::Quotas),
    Kind::new("qgroup-info.missing", "qgroup-relation", |p| {
        p.remove(QUOTAS, Key::new(0, kind::QGROUP_INFO, 256)).map(drop)
    })
    .on(Base::Quotas),
    Kind::new("qgroup-status.simple", "qgroup-count", simple_quotas).on(Base::Quotas),
    Kind::new("extent-item.no-owner", "extent-owner-missing", simple_quotas).on(Base::Quotas),
    Kind::new("qgroup-relation.missing", "qgroup-relation", |p| {
        p.remove(QUOTAS, p.first(QUOTAS, kind::QGROUP_RELATION)?).map(drop)
    })
    .on(Base::Quotas),
];
