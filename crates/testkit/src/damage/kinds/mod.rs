//! The tables of damage, by what is damaged.

mod blocks;
mod cache;
mod chunks;
mod extents;
mod files;
mod inodes;
mod misplaced;
mod names;
mod superblock;
mod volumes;

use buttress_ondisk::item::FileExtent;
use buttress_ondisk::{Key, kind, objectid};

use super::{Kind, Patient, Result, TOP};

/// All kinds of damage.
pub fn kinds() -> Vec<Kind> {
    let tables = [
        superblock::KINDS,
        blocks::KINDS,
        chunks::KINDS,
        cache::KINDS,
        extents::KINDS,
        inodes::KINDS,
        names::KINDS,
        files::KINDS,
        volumes::KINDS,
        misplaced::KINDS,
    ];
    tables.concat()
}

/// The key of the first extent of a file of the top tree.
fn first_extent(p: &Patient, name: &str) -> Result<Key> {
    p.key(TOP, p.named(TOP, name)?, kind::EXTENT_DATA)
}

/// Changes the first extent of a file of the top tree.
fn file_extent(p: &Patient, name: &str, edit: impl FnOnce(&mut FileExtent)) -> Result<()> {
    p.edit(TOP, first_extent(p, name)?, edit)
}

/// The key of the extent item behind the first extent of a file of the top tree.
fn data_extent(p: &Patient, name: &str) -> Result<Key> {
    let key = first_extent(p, name)?;
    let mut at = 0;
    let (_, data) = p.find(TOP, |other, _| *other == key)?;
    if let Some(extent) = FileExtent::of(&data) {
        at = extent.tail.disk_bytenr.get();
    }
    p.key(objectid::EXTENT_TREE, at, kind::EXTENT_ITEM)
}
