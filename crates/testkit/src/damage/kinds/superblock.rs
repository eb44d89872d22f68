//! Superblocks.

use super::Kind;

const PRIMARY: u64 = 64 << 10;
const MIRROR: u64 = 64 << 20;

pub const KINDS: &[Kind] = &[
    Kind::new("super.csum", "super-bad", |p| p.superblock_at(PRIMARY, |sb| sb.csum[0] ^= 1, false)),
    Kind::new("super.mirror-csum", "super-mirror", |p| {
        p.superblock_at(MIRROR, |sb| sb.csum[0] ^= 1, false)
    })
    .misses("it reads the primary only"),
    Kind::new("super.mirror-root", "super-stale", |p| {
        p.superblock_at(MIRROR, |sb| sb.root = (sb.root.get() + 16384).into(), true)
    })
    .misses("it reads the primary only"),
    Kind::new("super.bytes-used", "super-bytes-used", |p| {
        p.superblock(|sb| sb.bytes_used = (sb.bytes_used.get() + 4096).into())
    }),
    Kind::new("super.total-bytes", "super-total-bytes", |p| {
        p.superblock(|sb| sb.total_bytes = (sb.total_bytes.get() - (1 << 20)).into())
    }),
    Kind::new("super.num-devices", "unopenable", |p| p.superblock(|sb| sb.num_devices = 2.into())),
    Kind::new("super.generation", "tree-block-bad", |p| {
        p.superblock(|sb| sb.generation = (sb.generation.get() - 3).into())
    }),
    Kind::new("super.root", "tree-block-bad", |p| {
        p.superblock(|sb| sb.root = (sb.root.get() + 16384).into())
    }),
    Kind::new("super.log-root", "log-waits", |p| {
        let other = p.root(buttress_ondisk::objectid::CSUM_TREE)?;
        p.superblock(|sb| sb.log_root = other.into())
    })
    .warns(),
    Kind::new("super.root-level", "tree-block-bad", |p| p.superblock(|sb| sb.root_level = 3)),
    Kind::new("super.chunk-root-generation", "tree-block-bad", |p| {
        p.superblock(|sb| sb.chunk_root_generation = 1.into())
    }),
    Kind::new("super.dev-item-bytes-used", "super-device", |p| {
        p.superblock(|sb| sb.dev_item.bytes_used = (sb.dev_item.bytes_used.get() + 65536).into())
    })
    .misses("it takes the item in the chunk tree"),
    Kind::new("super.dev-item-uuid", "chunk-place", |p| {
        p.superblock(|sb| sb.dev_item.uuid[3] ^= 1)
    }),
    Kind::new("super.sys-chunk-stripe", "system-chunk-missing", |p| {
        // Key, chunk head, then the first stripe's device and offset.
        p.superblock(|sb| sb.sys_chunk_array[17 + 48 + 32 + 8 + 2] ^= 0x10)
    })
    .misses("it compares the array with nothing"),
    Kind::new("super.sys-chunk-extra", "system-chunk-stale", |p| {
        p.superblock(|sb| {
            // The first chunk once more, at an address of its own.
            let len = 17 + 48 + 2 * 32;
            sb.sys_chunk_array.copy_within(..len, len);
            sb.sys_chunk_array[len + 9 + 5] = 1;
            sb.sys_chunk_array_size = (2 * len as u32).into();
        })
    })
    .misses("it compares the array with nothing"),
];
