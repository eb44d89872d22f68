//! Chunks, devices and their extents, block groups, free space.

use buttress_ondisk::item::{
    BlockGroupItem, ChunkItem, DevExtent, DevItem, FreeSpaceInfo, StripeItem,
};
use buttress_ondisk::{Key, kind, objectid};
use zerocopy::IntoBytes;

use crate::damage::{Kind, Patient, Result};

const CHUNKS: u64 = objectid::CHUNK_TREE;
const DEVICES: u64 = objectid::DEV_TREE;
const EXTENTS: u64 = objectid::EXTENT_TREE;
const SPACE: u64 = objectid::FREE_SPACE_TREE;
/// Type bit of data.
const DATA: u64 = 1;
/// Bytes of a chunk before its stripes.
const HEAD: usize = size_of::<ChunkItem>();

/// The key of the chunk for data.
fn data_chunk(p: &Patient) -> Result<Key> {
    let is_data = |data: &[u8]| ChunkItem::of(data).is_some_and(|it| it.chunk_type.get() == DATA);
    Ok(p.find(CHUNKS, |key, data| key.kind == kind::CHUNK_ITEM && is_data(data))?.0)
}

/// The key of the block group for data.
fn data_group(p: &Patient) -> Result<Key> {
    let at = data_chunk(p)?.offset;
    p.key(EXTENTS, at, kind::BLOCK_GROUP_ITEM)
}

/// The longest free extent.
fn free(p: &Patient) -> Result<Key> {
    let all = p.all(SPACE, |key, _| key.kind == kind::FREE_SPACE_EXTENT)?;
    let longest = all.into_iter().max_by_key(|(key, _)| key.offset);
    longest.map(|(key, _)| key).ok_or(crate::damage::DamageError::Missing("free space"))
}

pub const KINDS: &[Kind] = &[
    Kind::new("chunk.length", "block-group-missing", |p| {
        p.edit(CHUNKS, data_chunk(p)?, |it: &mut ChunkItem| {
            it.length = (it.length.get() - 65536).into()
        })
    })
    .warns(),
    Kind::new("chunk.stripe-offset", "dev-extent-extra", |p| {
        p.edit_at(CHUNKS, data_chunk(p)?, HEAD, |it: &mut StripeItem| {
            it.offset = (it.offset.get() + 65536).into();
        })
    })
    .warns(),
    Kind::new("chunk.stripe-offset-beyond", "chunk-bad", |p| {
        p.edit_at(CHUNKS, data_chunk(p)?, HEAD, |it: &mut StripeItem| {
            it.offset = 65_536_u64.wrapping_neg().into();
        })
    })
    .warns(),
    Kind::new("chunk.stripe-devid", "chunk-place", |p| {
        p.edit_at(CHUNKS, data_chunk(p)?, HEAD, |it: &mut StripeItem| it.devid = 7.into())
    })
    .warns(),
    Kind::new("chunk.stripe-uuid", "chunk-place", |p| {
        p.edit_at(CHUNKS, data_chunk(p)?, HEAD, |it: &mut StripeItem| it.dev_uuid[0] ^= 1)
    }),
    Kind::new("chunk.stripe-len", "tree-block-bad", |p| {
        p.edit(CHUNKS, data_chunk(p)?, |it: &mut ChunkItem| it.stripe_len = 4096.into())
    }),
    Kind::new("chunk.type", "block-group-flags", |p| {
        p.edit(CHUNKS, data_chunk(p)?, |it: &mut ChunkItem| it.chunk_type = 4.into())
    })
    .warns(),
    Kind::new("chunk.type-system", "system-chunk-missing", |p| {
        p.edit(CHUNKS, data_chunk(p)?, |it: &mut ChunkItem| it.chunk_type = 2.into())
    })
    .warns(),
    Kind::new("chunk.num-stripes", "tree-block-bad", |p| {
        p.edit(CHUNKS, data_chunk(p)?, |it: &mut ChunkItem| it.num_stripes = 2.into())
    }),
    Kind::new("chunk.missing", "block-group-extra", |p| p.remove(CHUNKS, data_chunk(p)?).map(drop))
        .warns(),
    Kind::new("dev-item.total-bytes", "super-total-bytes", |p| {
        let key = p.first(CHUNKS, kind::DEV_ITEM)?;
        p.edit(CHUNKS, key, |it: &mut DevItem| {
            it.total_bytes = (it.total_bytes.get() + 4096).into()
        })
    }),
    Kind::new("dev-item.bytes-used", "dev-bytes-used", |p| {
        let key = p.first(CHUNKS, kind::DEV_ITEM)?;
        p.edit(CHUNKS, key, |it: &mut DevItem| it.bytes_used = (it.bytes_used.get() - 65536).into())
    }),
    Kind::new("dev-item.devid", "tree-block-bad", |p| {
        let key = p.first(CHUNKS, kind::DEV_ITEM)?;
        p.edit(CHUNKS, key, |it: &mut DevItem| it.devid = 2.into())
    }),
    Kind::new("dev-extent.length", "dev-extent-missing", |p| {
        let key = p.first(DEVICES, kind::DEV_EXTENT)?;
        p.edit(DEVICES, key, |it: &mut DevExtent| it.length = (it.length.get() - 65536).into())
    }),
    Kind::new("dev-extent.overlap", "dev-extent-overlap", |p| {
        let key = p.first(DEVICES, kind::DEV_EXTENT)?;
        p.edit(DEVICES, key, |it: &mut DevExtent| it.length = (it.length.get() + 65536).into())
    }),
    Kind::new("dev-extent.chunk-offset", "dev-extent-missing", |p| {
        let key = p.first(DEVICES, kind::DEV_EXTENT)?;
        p.edit(DEVICES, key, |it: &mut DevExtent| it.chunk_offset = (1 << 40).into())
    })
    .warns(),
    Kind::new("dev-extent.missing", "dev-extent-missing", |p| {
        p.remove(DEVICES, p.first(DEVICES, kind::DEV_EXTENT)?).map(drop)
    }),
    Kind::new("dev-extent.extra", "dev-extent-extra", |p| {
        let data = p.find(DEVICES, |key, _| key.kind == kind::DEV_EXTENT)?.1;
        let mut extent = DevExtent::of(&data).copied().unwrap_or_default();
        extent.length = 65536.into();
        let bytes = zerocopy::IntoBytes::as_bytes(&extent).to_vec();
        p.insert(DEVICES, Key::new(1, kind::DEV_EXTENT, (256 << 20) - 65536), &bytes)
    }),
    Kind::new("block-group.used", "block-group-used", |p| {
        p.edit(EXTENTS, data_group(p)?, |it: &mut BlockGroupItem| {
            it.used = (it.used.get() + 4096).into()
        })
    }),
    Kind::new("block-group.flags", "block-group-flags", |p| {
        p.edit(EXTENTS, data_group(p)?, |it: &mut BlockGroupItem| it.flags = 4.into())
    }),
    Kind::new("block-group.length", "block-group-extra", |p| {
        let key = data_group(p)?;
        p.rekey(EXTENTS, key, Key { offset: key.offset - 65536, ..key })
    }),
    Kind::new("block-group.missing", "block-group-missing", |p| {
        p.remove(EXTENTS, data_group(p)?).map(drop)
    }),
    Kind::new("free-space-info.extent-count", "free-space-count", |p| {
        let key = Key { kind: kind::FREE_SPACE_INFO, ..data_group(p)? };
        p.edit(SPACE, key, |it: &mut FreeSpaceInfo| {
            it.extent_count = (it.extent_count.get() + 1).into()
        })
    }),
    Kind::new("free-space-info.behind-all", "free-space-info", |p| {
        let info = FreeSpaceInfo { extent_count: 0.into(), flags: 0.into() };
        let key = Key::new(1 << 40, kind::FREE_SPACE_INFO, 8 << 20);
        p.insert(SPACE, key, info.as_bytes())
    }),
    Kind::new("free-space-info.missing", "free-space-info", |p| {
        let key = Key { kind: kind::FREE_SPACE_INFO, ..data_group(p)? };
        p.remove(SPACE, key).map(drop)
    }),
    Kind::new("free-space.extent-missing", "free-space-mismatch", |p| {
        p.remove(SPACE, free(p)?).map(drop)
    }),
    Kind::new("free-space.extent-short", "free-space-mismatch", |p| {
        let key = free(p)?;
        p.rekey(SPACE, key, Key { offset: key.offset - 4096, ..key })
    }),
    Kind::new("free-space.extent-over-used", "free-space-mismatch", |p| {
        let key = free(p)?;
        p.rekey(SPACE, key, Key { objectid: key.objectid - 4096, offset: key.offset + 4096, ..key })
    }),
];
