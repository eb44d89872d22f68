//! The free space cache of the first version: files in the root tree.

use buttress_codec::ChecksumKind;
use buttress_ondisk::item::{FileExtent, FreeSpaceHeader, InodeItem};
use buttress_ondisk::{Key, kind, objectid};

use crate::damage::{Base, DamageError, Kind, Patient, Result};

const ROOTS: u64 = objectid::ROOT_TREE;
const PAGE: usize = 4096;

/// The inode of the first cache.
fn cache(p: &Patient) -> Result<u64> {
    let is_header = |key: &Key, _: &[u8]| (key.objectid, key.kind) == (objectid::FREE_SPACE, 0);
    let (_, data) = p.find(ROOTS, is_header)?;
    let header = FreeSpaceHeader::of(&data).ok_or(DamageError::Missing("a whole header"))?;
    Ok(header.location.objectid.get())
}

/// Changes the first page of the first cache: gets its bytes and where its entries begin. With its checksum put right when
/// `sealed`.
fn first_page(p: &Patient, sealed: bool, edit: impl FnOnce(&mut [u8], usize)) -> Result<()> {
    let id = cache(p)?;
    let (_, inode) = p.find(ROOTS, |key, _| *key == Key::new(id, kind::INODE_ITEM, 0))?;
    let size = InodeItem::of(&inode).map_or(0, |it| it.size.get());
    let (_, data) = p.find(ROOTS, |key, _| *key == Key::new(id, kind::EXTENT_DATA, 0))?;
    let extent = FileExtent::of(&data).ok_or(DamageError::Missing("the data of a cache"))?;
    let at = extent.tail.disk_bytenr.get();
    let mut page = vec![0; PAGE];
    p.volume().read_raw(at, &mut page, 0)?;
    let sums = size as usize / PAGE * 4;
    edit(&mut page, sums + 8);
    if sealed {
        let digest = ChecksumKind::Crc32c.digest(&page[sums..]);
        page[..4].copy_from_slice(digest.as_bytes());
    }
    p.write(at, &page)
}

pub const KINDS: &[Kind] = &[
    Kind::new("space-cache.entry", "space-cache-mismatch", |p| {
        // 4096 bytes more or fewer in the first entry.
        first_page(p, true, |page, entries| page[entries + 8 + 1] ^= 0x10)
    })
    .on(Base::Cache),
    Kind::new("space-cache.csum", "space-cache-bad", |p| {
        first_page(p, false, |page, entries| page[entries + 8 + 1] ^= 0x10)
    })
    .on(Base::Cache)
    .warns(),
];
