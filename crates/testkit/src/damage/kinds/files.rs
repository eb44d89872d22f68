//! File extents.

use buttress_ondisk::item::{FileExtent, FileExtentHead};
use buttress_ondisk::{Key, kind};

use super::{file_extent, first_extent};
use crate::damage::{Base, DamageError, Kind, Patient, Result, TOP};

/// The key of an extent of a file, by number.
fn nth(p: &Patient, name: &str, number: usize) -> Result<Key> {
    let id = p.named(TOP, name)?;
    let all = p.all(TOP, |key, _| (key.objectid, key.kind) == (id, kind::EXTENT_DATA))?;
    all.get(number).map(|(key, _)| *key).ok_or(DamageError::Missing("as many extents"))
}

pub const KINDS: &[Kind] = &[
    Kind::new("file-extent.disk-bytenr", "extent-item-missing", |p| {
        file_extent(p, "small", |it| {
            it.tail.disk_bytenr = (it.tail.disk_bytenr.get() + 4096).into()
        })
    }),
    Kind::new("file-extent.disk-bytenr-null", "inode-nbytes", |p| {
        file_extent(p, "small", |it| it.tail.disk_bytenr = 0.into())
    }),
    Kind::new("file-extent.disk-bytenr-unaligned", "tree-block-item", |p| {
        file_extent(p, "small", |it| it.tail.disk_bytenr = (it.tail.disk_bytenr.get() + 1).into())
    }),
    Kind::new("file-extent.disk-num-bytes", "extent-length", |p| {
        file_extent(p, "small", |it| it.tail.disk_num_bytes = 4096.into())
    }),
    Kind::new("file-extent.offset", "extent-ref-missing", |p| {
        file_extent(p, "regular", |it| it.tail.offset = 4096.into())
    }),
    Kind::new("file-extent.num-bytes", "inode-nbytes", |p| {
        file_extent(p, "regular", |it| it.tail.num_bytes = (it.tail.num_bytes.get() - 4096).into())
    }),
    Kind::new("file-extent.num-bytes-beyond", "file-extent-bad", |p| {
        file_extent(p, "small", |it| it.tail.num_bytes = 65_536.into())
    }),
    Kind::new("file-extent.num-bytes-zero", "file-extent-bad", |p| {
        file_extent(p, "small", |it| it.tail.num_bytes = 0.into())
    }),
    Kind::new("file-extent.ram-bytes", "file-extent-bad", |p| {
        file_extent(p, "regular", |it| it.head.ram_bytes = 4096.into())
    }),
    Kind::new("file-extent.ram-bytes-compressed", "tree-block-item", |p| {
        file_extent(p, "compressed", |it| it.head.ram_bytes = 8192.into())
    }),
    Kind::new("file-extent.compression", "tree-block-item", |p| {
        file_extent(p, "small", |it| it.head.compression = 9)
    })
    .misses("it does not look at the kind of compression"),
    Kind::new("file-extent.compression-none", "file-extent-bad", |p| {
        file_extent(p, "compressed", |it| it.head.compression = 0)
    })
    .misses("it compares with ram_bytes only"),
    Kind::new("file-extent.compression-nocow", "file-extent-bad", |p| {
        file_extent(p, "nocow", |it| it.head.compression = 1)
    }),
    Kind::new("file-extent.encryption", "tree-block-item", |p| {
        file_extent(p, "small", |it| it.head.encryption = 1)
    })
    .misses("it looks at it in preallocated extents only"),
    Kind::new("file-extent.other-encoding", "file-extent-bad", |p| {
        file_extent(p, "small", |it| it.head.other_encoding = 1.into())
    })
    .misses("it looks at it in preallocated extents only"),
    Kind::new("file-extent.kind", "tree-block-item", |p| {
        file_extent(p, "small", |it| it.head.kind = 3)
    }),
    Kind::new("file-extent.kind-prealloc", "file-csum-extra", |p| {
        file_extent(p, "small", |it| it.head.kind = FileExtentHead::PREALLOC)
    }),
    Kind::new("file-extent.kind-written", "file-csum-missing", |p| {
        file_extent(p, "prealloc", |it| it.head.kind = FileExtentHead::REGULAR)
    }),
    Kind::new("file-extent.generation", "file-extent-bad", |p| {
        file_extent(p, "small", |it| it.head.generation = (1 << 40).into())
    }),
    Kind::new("file-extent.missing", "inode-nbytes", |p| {
        p.remove(TOP, first_extent(p, "small")?).map(drop)
    }),
    Kind::new("file-extent.twice", "inode-nbytes", |p| {
        let key = first_extent(p, "small")?;
        let data = p.find(TOP, |other, _| *other == key)?.1;
        p.insert(TOP, Key { offset: 1 << 20, ..key }, &data)
    }),
    Kind::new("file-extent.overlap", "file-extent-overlap", |p| {
        let (first, second) = (nth(p, "sparse", 0)?, nth(p, "sparse", 1)?);
        p.rekey(TOP, second, Key { offset: first.offset + 4096, ..second })
    }),
    Kind::new("file-extent.unaligned", "tree-block-item", |p| {
        let second = nth(p, "sparse", 1)?;
        p.rekey(TOP, second, Key { offset: second.offset + 1, ..second })
    }),
    Kind::new("file-extent.hole-missing", "file-extent-hole", |p| {
        p.remove(TOP, nth(p, "sparse", 1)?).map(drop)
    })
    .on(Base::Old),
    Kind::new("file-extent.hole-short", "file-extent-hole", |p| {
        p.edit(TOP, nth(p, "sparse", 1)?, |it: &mut FileExtent| {
            it.tail.num_bytes = (it.tail.num_bytes.get() - 4096).into();
        })
    })
    .on(Base::Old),
    Kind::new("file-extent.tail-missing", "file-extent-hole", |p| {
        p.inode("regular", |it| it.size = 900_000.into())
    })
    .on(Base::Old),
    Kind::new("file-extent.inline-ram-bytes", "inode-nbytes", |p| {
        file_extent_head(p, "inline", |it| it.ram_bytes = 99.into())
    }),
    Kind::new("file-extent.inline-length", "tree-block-item", |p| {
        file_extent_head(p, "attrs", |it| it.ram_bytes = 3.into())
    }),
    Kind::new("file-extent.inline-offset", "tree-block-item", |p| {
        let key = first_extent(p, "inline")?;
        p.rekey(TOP, key, Key { offset: 4096, ..key })
    })
    .misses("it does not look where inline extents begin"),
    Kind::new("file-extent.inline-long", "inline-extent-bad", |p| {
        p.inode("late", |it| it.size = 5_000.into())?;
        p.inode("late", |it| it.nbytes = 5_000.into())?;
        let key = first_extent(p, "late")?;
        p.rewrite(TOP, key, |data| {
            data.resize(size_of::<FileExtentHead>() + 5_000, b'x');
            data[8..16].copy_from_slice(&5_000_u64.to_le_bytes());
        })
    }),
    Kind::new("file-extent.of-a-directory", "file-extent-odd", |p| {
        let (to, from) = (p.named(TOP, "empty")?, first_extent(p, "inline")?);
        let data = p.find(TOP, |other, _| *other == from)?.1;
        p.insert(TOP, Key { objectid: to, ..from }, &data)
    }),
    Kind::new("file-extent.of-a-pipe", "file-extent-odd", |p| {
        let (to, from) = (p.named(TOP, "fifo")?, first_extent(p, "inline")?);
        let data = p.find(TOP, |other, _| *other == from)?.1;
        p.insert(TOP, Key { objectid: to, ..from }, &data)
    })
    .misses("it looks for extents of directories only"),
    Kind::new("symlink.size", "symlink-bad", |p| p.inode("symlink", |it| it.size = 5.into()))
        .misses("it does not look at targets"),
    Kind::new("symlink.target-missing", "symlink-bad", |p| {
        p.remove(TOP, first_extent(p, "symlink")?)?;
        p.inode("symlink", |it| it.nbytes = 0.into())
    })
    .misses("it does not look at targets"),
    Kind::new("symlink.target-compressed", "symlink-bad", |p| {
        file_extent_head(p, "symlink", |it| it.compression = 1)
    })
    .misses("it does not look at targets"),
    Kind::new("symlink.target-with-zero", "symlink-bad", |p| {
        p.rewrite(TOP, first_extent(p, "symlink")?, |data| {
            if let Some(letter) = data.last_mut() {
                *letter = 0;
            }
        })
    })
    .misses("it does not read targets"),
];

/// Changes the head of an inline extent.
fn file_extent_head(p: &Patient, name: &str, edit: impl FnOnce(&mut FileExtentHead)) -> Result<()> {
    p.edit(TOP, first_extent(p, name)?, edit)
}
