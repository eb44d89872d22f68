//! Extents, who refers to them, checksums of data.

use buttress_ondisk::item::{
    ExtentDataRef, ExtentInlineRef, ExtentItem, TreeBlockInfo, extent_flags,
};
use buttress_ondisk::view::{InlineRef, inline_refs};
use buttress_ondisk::{Key, kind, objectid};

use super::data_extent;
use crate::damage::{Base, Kind, Patient, Result, TOP};

const EXTENTS: u64 = objectid::EXTENT_TREE;
const CSUMS: u64 = objectid::CSUM_TREE;
/// Where the first inline reference starts.
const HEAD: usize = size_of::<ExtentItem>();

/// The key of the extent item of the root block of the checksum tree.
fn block_item(p: &Patient) -> Result<Key> {
    let at = p.root(CSUMS)?;
    Ok(p.find(EXTENTS, |key, _| key.objectid == at && key.kind != kind::BLOCK_GROUP_ITEM)?.0)
}

/// The first extent item with an inline reference of a kind, and where that starts.
fn with_ref(p: &Patient, wanted: u8) -> Result<(Key, usize)> {
    let place = |key: &Key, data: &[u8]| {
        let (_, _, mut refs) = inline_refs(key, data)?;
        loop {
            let at = data.len() - refs.rest().len();
            if refs.next()?.kind() == wanted {
                return Some(at);
            }
        }
    };
    let is_item = |key: &Key| matches!(key.kind, kind::EXTENT_ITEM | kind::METADATA_ITEM);
    let (key, data) = p.find(EXTENTS, |key, data| is_item(key) && place(key, data).is_some())?;
    Ok((key, place(&key, &data).unwrap_or(HEAD)))
}

/// Changes the word of the first inline reference of a kind: a tree or a parent.
fn inline(p: &Patient, wanted: u8, edit: impl FnOnce(u64) -> u64) -> Result<()> {
    let (key, at) = with_ref(p, wanted)?;
    p.edit_at(EXTENTS, key, at, |it: &mut ExtentInlineRef| it.offset = edit(it.offset.get()).into())
}

/// Changes the reference of the file `regular` to its extent.
fn data_ref(p: &Patient, name: &str, edit: impl FnOnce(&mut ExtentDataRef)) -> Result<()> {
    p.edit_at(EXTENTS, data_extent(p, name)?, HEAD + 1, edit)
}

/// Takes the first inline reference of an extent away, and what it counts.
fn without_inline(p: &Patient, key: Key) -> Result<()> {
    p.rewrite(EXTENTS, key, |data| {
        let counted = inline_refs(&key, data).map(|(_, _, mut refs)| {
            let before = refs.rest().len();
            let count = refs.next().map_or(0, |it: InlineRef| it.count());
            (count, before - refs.rest().len(), data.len() - before)
        });
        let Some((count, len, at)) = counted else { return };
        data.drain(at..at + len);
        add_refs(data, count.wrapping_neg());
    })
}

/// Adds to the count of references of an extent item.
fn add_refs(data: &mut [u8], add: u64) {
    if let Some(word) = data.first_chunk_mut::<8>() {
        *word = u64::from_le_bytes(*word).wrapping_add(add).to_le_bytes();
    }
}

pub const KINDS: &[Kind] = &[
    Kind::new("extent-item.refs", "extent-ref-total", |p| {
        p.edit(EXTENTS, data_extent(p, "small")?, |it: &mut ExtentItem| it.refs = 5.into())
    }),
    Kind::new("extent-item.generation-future", "tree-block-item", |p| {
        p.edit(EXTENTS, data_extent(p, "small")?, |it: &mut ExtentItem| {
            it.generation = (1 << 40).into()
        })
    }),
    Kind::new("extent-item.flags", "tree-block-item", |p| {
        p.edit(EXTENTS, data_extent(p, "small")?, |it: &mut ExtentItem| it.flags = 2.into())
    }),
    Kind::new("extent-item.length", "extent-length", |p| {
        let key = data_extent(p, "regular")?;
        p.rekey(EXTENTS, key, Key { offset: key.offset - 4096, ..key })
    }),
    Kind::new("extent-item.missing", "extent-item-missing", |p| {
        p.remove(EXTENTS, data_extent(p, "small")?).map(drop)
    }),
    Kind::new("extent-item.extra", "extent-unreferenced", |p| {
        let key = data_extent(p, "small")?;
        let data = p.find(EXTENTS, |other, _| *other == key)?.1;
        let end = p.find(EXTENTS, |other, _| other.kind == kind::BLOCK_GROUP_ITEM)?.0;
        let at = end.objectid + end.offset - 65536;
        p.insert(EXTENTS, Key::new(at, kind::EXTENT_ITEM, 4096), &data)
    }),
    Kind::new("extent-data-ref.root", "extent-ref-extra", |p| {
        data_ref(p, "small", |it| it.root = 300.into())
    }),
    Kind::new("extent-data-ref.objectid", "extent-ref-extra", |p| {
        data_ref(p, "small", |it| it.objectid = (it.objectid.get() + 1).into())
    }),
    Kind::new("extent-data-ref.offset", "extent-ref-missing", |p| {
        data_ref(p, "small", |it| it.offset = 8192.into())
    }),
    Kind::new("extent-data-ref.count", "extent-ref-count", |p| {
        let key = data_extent(p, "small")?;
        p.edit(EXTENTS, key, |it: &mut ExtentItem| it.refs = 2.into())?;
        data_ref(p, "small", |it| it.count = 2.into())
    }),
    Kind::new("extent-data-ref.missing", "extent-ref-missing", |p| {
        let key = data_extent(p, "regular")?;
        without_inline(p, key)
    }),
    Kind::new("extent-data-ref.keyed-extra", "extent-ref-extra", |p| {
        let key = data_extent(p, "small")?;
        let mut one = ExtentDataRef { root: TOP.into(), ..ExtentDataRef::default() };
        (one.objectid, one.count) = (p.named(TOP, "inline")?.into(), 1.into());
        let hash =
            InlineRef::ExtentData { root: TOP, objectid: one.objectid.get(), offset: 0, count: 1 };
        let to = Key::new(key.objectid, kind::EXTENT_DATA_REF, hash.rank());
        p.edit(EXTENTS, key, |it: &mut ExtentItem| it.refs = 2.into())?;
        p.insert(EXTENTS, to, zerocopy::IntoBytes::as_bytes(&one))
    }),
    Kind::new("extent-data-ref.keyed-orphaned", "extent-item-missing", |p| {
        let one = ExtentDataRef {
            root: TOP.into(),
            objectid: 257.into(),
            count: 1.into(),
            ..ExtentDataRef::default()
        };
        let group = p.first(EXTENTS, kind::BLOCK_GROUP_ITEM)?;
        let at = group.objectid + group.offset - 131_072;
        let rank = InlineRef::ExtentData { root: TOP, objectid: 257, offset: 0, count: 1 }.rank();
        p.insert(
            EXTENTS,
            Key::new(at, kind::EXTENT_DATA_REF, rank),
            zerocopy::IntoBytes::as_bytes(&one),
        )
    }),
    Kind::new("shared-data-ref.parent", "extent-ref-extra", |p| {
        inline(p, kind::SHARED_DATA_REF, |parent| parent - 16384)
    }),
    Kind::new("shared-data-ref.count", "extent-ref-count", |p| {
        let (key, at) = with_ref(p, kind::SHARED_DATA_REF)?;
        p.rewrite(EXTENTS, key, |data| {
            data[at + size_of::<ExtentInlineRef>()] += 1;
            add_refs(data, 1);
        })
    }),
    Kind::new("shared-data-ref.missing", "extent-ref-missing", |p| {
        let (key, _) = with_ref(p, kind::SHARED_DATA_REF)?;
        without_inline(p, key)
    }),
    Kind::new("shared-block-ref.parent", "extent-ref-extra", |p| {
        inline(p, kind::SHARED_BLOCK_REF, |parent| parent + 4096)
    })
    .on(Base::Deep),
    Kind::new("shared-block-ref.missing", "extent-ref-missing", |p| {
        let (key, _) = with_ref(p, kind::SHARED_BLOCK_REF)?;
        without_inline(p, key)
    })
    .on(Base::Deep),
    Kind::new("tree-block-ref.root", "extent-ref-extra", |p| {
        p.edit_at(EXTENTS, block_item(p)?, HEAD, |it: &mut ExtentInlineRef| it.offset = 9.into())
    }),
    Kind::new("tree-block-ref.missing", "extent-ref-missing", |p| {
        without_inline(p, block_item(p)?)
    }),
    Kind::new("metadata-item.missing", "extent-item-missing", |p| {
        p.remove(EXTENTS, block_item(p)?).map(drop)
    }),
    Kind::new("metadata-item.crosses-stripe", "extent-crosses-stripe", |p| {
        let key = block_item(p)?;
        let data = p.find(EXTENTS, |other, _| *other == key)?.1;
        let groups = p.all(EXTENTS, |key, _| key.kind == kind::BLOCK_GROUP_ITEM)?;
        let group = groups.iter().find(|(group, _)| {
            (group.objectid..group.objectid + group.offset).contains(&key.objectid)
        });
        let end = group.map_or(0, |(group, _)| group.objectid + group.offset);
        p.insert(EXTENTS, Key { objectid: end - 65536 - 4096, ..key }, &data)
    }),
    Kind::new("metadata-item.level", "extent-level", |p| {
        let key = block_item(p)?;
        p.rekey(EXTENTS, key, Key { offset: 1, ..key })
    })
    .misses("it compares the level with nothing"),
    Kind::new("metadata-item.generation", "extent-generation", |p| {
        p.edit(EXTENTS, block_item(p)?, |it: &mut ExtentItem| it.generation = 2.into())
    })
    .misses("it compares the generation with nothing"),
    Kind::new("metadata-item.full-backref", "extent-flags", |p| {
        p.edit(EXTENTS, block_item(p)?, |it: &mut ExtentItem| {
            it.flags = (extent_flags::TREE_BLOCK | extent_flags::FULL_BACKREF).into();
        })
    }),
    Kind::new("tree-block-info.level", "extent-level", |p| {
        p.edit_at(EXTENTS, block_item(p)?, HEAD, |it: &mut TreeBlockInfo| it.level = 2)
    })
    .on(Base::Old)
    .misses("it compares the level with nothing"),
    Kind::new("csum.missing", "file-csum-missing", |p| {
        p.remove(CSUMS, p.first(CSUMS, kind::EXTENT_CSUM)?).map(drop)
    }),
    Kind::new("csum.short", "file-csum-missing", |p| {
        p.rewrite(CSUMS, p.first(CSUMS, kind::EXTENT_CSUM)?, |data| data.truncate(data.len() - 4))
    }),
    Kind::new("csum.extra", "csum-extra", |p| {
        let group = p.first(EXTENTS, kind::BLOCK_GROUP_ITEM)?;
        let at = group.objectid + group.offset - 65536;
        p.insert(CSUMS, Key::new(objectid::EXTENT_CSUM, kind::EXTENT_CSUM, at), &[1; 8])
    }),
    Kind::new("csum.overlap", "csum-overlap", |p| {
        let key = p.first(CSUMS, kind::EXTENT_CSUM)?;
        p.insert(CSUMS, Key { offset: key.offset + 4096, ..key }, &[1; 8])
    }),
    Kind::new("csum.value", "data-csum", |p| {
        let key = p.first(CSUMS, kind::EXTENT_CSUM)?;
        p.rewrite(CSUMS, key, |data| data[0] ^= 1)
    })
    .in_data(),
    Kind::new("csum.data", "data-csum", |p| p.flip(data_extent(p, "regular")?.objectid + 5000, 0))
        .in_data(),
    Kind::new("extent-data-ref.keyed-count", "extent-ref-count", |p| {
        let key = p.first(EXTENTS, kind::EXTENT_DATA_REF)?;
        p.edit(EXTENTS, key, |it: &mut ExtentDataRef| it.count = (it.count.get() + 1).into())
    })
    .on(Base::Deep),
    Kind::new("extent-data-ref.keyed-missing", "extent-ref-missing", |p| {
        p.remove(EXTENTS, p.first(EXTENTS, kind::EXTENT_DATA_REF)?).map(drop)
    })
    .on(Base::Deep),
];
