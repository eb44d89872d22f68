//! Merging a folded log into the extent tree.
//!
//! The records of one extent form a group. Its item is read once, changed in memory and written once; references that
//! do not fit into the item, or that already have items of their own, follow under keys of their own.

use std::collections::HashMap;

use buttress_codec::crc32c::extent_data_ref_hash;
use buttress_ondisk::item::{ExtentDataRef, SharedDataRef, TreeBlockInfo, extent_flags};
use buttress_ondisk::{Key, SECTOR, kind};
use zerocopy::IntoBytes;

use super::extent::data_ref;
use super::{Extent, Record};
use crate::error::{Error, Result};
use crate::tree::Merge;

const EXTENT_TREE: u64 = buttress_ondisk::objectid::EXTENT_TREE;

/// What the extent tree's change means for space and checksums.
#[derive(Debug, Default)]
pub struct Applied {
    /// Data extents that appeared: address and bytes.
    pub new_data: Vec<(u64, u64)>,
    /// Data extents that went: address and bytes. Their checksums must go too.
    pub freed_data: Vec<(u64, u64)>,
    /// Tree blocks that went.
    pub freed_blocks: Vec<u64>,
}

/// How extents are written down on this filesystem.
#[derive(Debug)]
pub struct Form<'a> {
    /// Bytes of a tree block.
    pub nodesize: usize,
    /// Tree blocks have `METADATA_ITEM`s.
    pub skinny: bool,
    /// The running commit.
    pub generation: u64,
    /// First keys of new tree blocks, needed where `skinny` is not set.
    pub first_keys: &'a HashMap<u64, Key>,
}

/// Merges `records` (folded) into the extent tree.
pub fn apply(
    merge: &mut Merge<'_>,
    form: &Form<'_>,
    records: &[Record],
    applied: &mut Applied,
) -> Result<()> {
    for group in records.chunk_by(|a, b| a.bytenr == b.bytenr) {
        if group.iter().any(|record| record.delta != 0 || record.marks != 0) {
            apply_group(merge, form, group, applied)?;
        }
    }
    Ok(())
}

fn apply_group(
    merge: &mut Merge<'_>,
    form: &Form<'_>,
    group: &[Record],
    applied: &mut Applied,
) -> Result<()> {
    let bytenr = group[0].bytenr;
    let found = match merge.peek(&Key::new(bytenr, kind::EXTENT_ITEM, 0))? {
        Some((key, data)) if key.objectid == bytenr && key.kind <= kind::METADATA_ITEM => {
            Some((key, Extent::read(&key, data)?))
        }
        _ => None,
    };
    let (key, old) = match found {
        Some((key, extent)) => (key, Some(extent)),
        None => match new_key(form, group) {
            Some(key) => (key, None),
            None => return Ok(()),
        },
    };
    let is_new = old.is_none();
    let mut extent = old.unwrap_or_else(|| new_extent(form, group));
    let keyed = change(&mut extent, form, group);
    if extent.refs < 0 {
        return Err(Error::inconsistent(
            EXTENT_TREE,
            "an extent would have fewer than no references",
            key,
        ));
    }
    if extent.refs == 0 {
        return drop_extent(merge, form, key, &extent, is_new, applied);
    }
    let bytes = extent.write();
    merge.put(key, &bytes)?;
    if is_new && extent.flags & extent_flags::DATA != 0 {
        applied.new_data.push((bytenr, key.offset));
    }
    apply_keyed(merge, keyed)
}

/// Where a new extent's item goes. `None` when the group allocates nothing (a mark for a block that went before).
fn new_key(form: &Form<'_>, group: &[Record]) -> Option<Key> {
    let record = group.iter().find(|record| record.kind != 0)?;
    let bytenr = record.bytenr;
    Some(if record.sectors > 0 {
        Key::new(bytenr, kind::EXTENT_ITEM, u64::from(record.sectors) * SECTOR)
    } else if form.skinny {
        Key::new(bytenr, kind::METADATA_ITEM, record.level.into())
    } else {
        Key::new(bytenr, kind::EXTENT_ITEM, form.nodesize as u64)
    })
}

fn new_extent(form: &Form<'_>, group: &[Record]) -> Extent {
    let data = group.iter().any(|record| record.sectors > 0);
    if data {
        return Extent::new(form.generation, extent_flags::DATA, None);
    }
    let info = (!form.skinny).then(|| TreeBlockInfo {
        key: form.first_keys.get(&group[0].bytenr).copied().unwrap_or_default().into(),
        level: group.iter().find(|record| record.kind != 0).map_or(0, |record| record.level),
    });
    Extent::new(form.generation, extent_flags::TREE_BLOCK, info)
}

/// Changes the item; answers the records that concern items of their own.
fn change(extent: &mut Extent, form: &Form<'_>, group: &[Record]) -> Vec<Record> {
    let mut has_keyed = extent.has_keyed();
    let mut keyed = Vec::new();
    // Losses first: they make room.
    for gains in [false, true] {
        for record in group.iter().filter(|record| record.delta != 0 && (record.delta > 0) == gains)
        {
            if extent.change_inline(record) {
            } else if gains && !has_keyed && extent.has_room(record.kind, form.nodesize) {
                extent.add_inline(record);
            } else {
                has_keyed = true;
                keyed.push(*record);
            }
            extent.refs += i64::from(record.delta);
        }
    }
    if group.iter().any(|record| record.marks & Record::FULL_BACKREF != 0) {
        extent.flags |= extent_flags::FULL_BACKREF;
    }
    keyed
}

fn drop_extent(
    merge: &mut Merge<'_>,
    form: &Form<'_>,
    key: Key,
    extent: &Extent,
    is_new: bool,
    applied: &mut Applied,
) -> Result<()> {
    if is_new {
        // Allocated and freed within the same log: the tree never heard of it, but the space was taken.
        if extent.flags & extent_flags::DATA != 0 {
            applied.new_data.push((key.objectid, key.offset));
        }
    } else {
        merge.delete(&key)?;
        let first = Key::new(key.objectid, kind::EXTENT_OWNER_REF, 0);
        merge.delete_range(
            first,
            Key::new(key.objectid, kind::SHARED_DATA_REF, u64::MAX),
            |_, _| (),
        )?;
    }
    if extent.flags & extent_flags::DATA != 0 {
        applied.freed_data.push((key.objectid, key.offset));
    } else {
        debug_assert!(form.nodesize > 0);
        applied.freed_blocks.push(key.objectid);
    }
    Ok(())
}

fn apply_keyed(merge: &mut Merge<'_>, records: Vec<Record>) -> Result<()> {
    let mut keyed: Vec<(Key, Record)> =
        records.into_iter().map(|record| (keyed_key(&record), record)).collect();
    keyed.sort_unstable();
    let mut last = None;
    for (mut key, record) in keyed {
        if last.is_some_and(|last| key <= last) {
            return Err(Error::inconsistent(
                EXTENT_TREE,
                "two references of one extent hash alike",
                key,
            ));
        }
        loop {
            let count = match merge.find(&key)? {
                None if record.delta > 0 => Some(0),
                None => {
                    return Err(Error::inconsistent(
                        EXTENT_TREE,
                        "a reference that goes is missing",
                        key,
                    ));
                }
                Some(data) => count_of(&record, data),
            };
            if let Some(count) = count {
                write_keyed(merge, key, &record, count + i64::from(record.delta))?;
                break;
            }
            // Another reference with the same hash: the next free key follows.
            key.offset += 1;
        }
        last = Some(key);
    }
    Ok(())
}

fn keyed_key(record: &Record) -> Key {
    let offset = match record.kind {
        kind::EXTENT_DATA_REF => extent_data_ref_hash(record.owner, record.ino, record.offset),
        _ => record.owner,
    };
    Key::new(record.bytenr, record.kind, offset)
}

/// How many references the item counts, if it is the one that the record names.
fn count_of(record: &Record, data: &[u8]) -> Option<i64> {
    match record.kind {
        kind::EXTENT_DATA_REF => {
            let item = ExtentDataRef::of(data)?;
            let same = (item.root.get(), item.objectid.get(), item.offset.get())
                == (record.owner, record.ino, record.offset);
            same.then(|| item.count.get().into())
        }
        kind::SHARED_DATA_REF => SharedDataRef::of(data).map(|item| item.count.get().into()),
        _ => Some(1),
    }
}

fn write_keyed(merge: &mut Merge<'_>, key: Key, record: &Record, count: i64) -> Result<()> {
    if count <= 0 {
        merge.delete(&key)?;
        return Ok(());
    }
    match record.kind {
        kind::EXTENT_DATA_REF => {
            let item = data_ref(record.owner, record.ino, record.offset, count as u32);
            merge.put(key, item.as_bytes())
        }
        kind::SHARED_DATA_REF => {
            merge.put(key, SharedDataRef { count: (count as u32).into() }.as_bytes())
        }
        _ => merge.put(key, &[]),
    }
}
