//! One item of the extent tree, taken apart to be changed and put together again.

use buttress_codec::crc32c::extent_data_ref_hash;
use buttress_ondisk::item::{ExtentDataRef, ExtentItem, TreeBlockInfo};
use buttress_ondisk::view::{InlineRef, extent_item_max, inline_refs};
use buttress_ondisk::{Key, kind};
use zerocopy::IntoBytes;

use super::Record;
use crate::error::{Error, Result};

const EXTENT_TREE: u64 = buttress_ondisk::objectid::EXTENT_TREE;

/// An `EXTENT_ITEM` or `METADATA_ITEM`.
#[derive(Clone, Debug)]
pub struct Extent {
    /// All references, inline and keyed.
    pub refs: i64,
    /// The transaction that allocated it.
    pub generation: u64,
    /// `extent_flags`.
    pub flags: u64,
    /// Key and level, in an `EXTENT_ITEM` of a tree block.
    pub info: Option<TreeBlockInfo>,
    /// The references that the item itself holds, with their counts.
    pub inline: Vec<(InlineRef, i64)>,
}

impl Extent {
    /// A new extent without references.
    pub fn new(generation: u64, flags: u64, info: Option<TreeBlockInfo>) -> Extent {
        Extent { refs: 0, generation, flags, info, inline: Vec::new() }
    }

    /// Reads the item.
    pub fn read(key: &Key, data: &[u8]) -> Result<Extent> {
        Extent::read_into(key, data, Vec::new())
    }

    /// Reads the item, its references into a list that was that of another one.
    pub fn read_into(key: &Key, data: &[u8], mut inline: Vec<(InlineRef, i64)>) -> Result<Extent> {
        let (head, info, mut refs) = inline_refs(key, data)
            .ok_or_else(|| Error::inconsistent(EXTENT_TREE, "an extent item is too short", key))?;
        inline.clear();
        loop {
            let shared = refs.next_shared();
            inline.extend(shared.iter().map(|one| {
                let (parent, count) = (one.head.offset.get(), one.count.get());
                (InlineRef::SharedData { parent, count }, i64::from(count))
            }));
            refs.skip_shared(shared.len());
            let Some(one) = refs.next() else { break };
            inline.push((one, one.count() as i64));
        }
        Ok(Extent {
            refs: head.refs.get() as i64,
            generation: head.generation.get(),
            flags: head.flags.get(),
            info,
            inline,
        })
    }

    /// Whether file `ino` of tree `root` is the only one to refer to this data extent, at `offset` (file minus extent offset).
    pub fn is_only_of(&self, root: u64, ino: u64, offset: u64) -> bool {
        let inline = match self.inline.as_slice() {
            [(InlineRef::Owner { .. }, _), rest @ ..] => rest,
            all => all,
        };
        let [(InlineRef::ExtentData { root: tree, objectid, offset: at, .. }, count)] = inline
        else {
            return false;
        };
        *count == self.refs && (*tree, *objectid, *at) == (root, ino, offset)
    }

    /// The tree that has allocated this data extent, where simple quotas want that to be known.
    pub fn owner(&self) -> Option<u64> {
        self.inline.iter().find_map(|(one, _)| match one {
            InlineRef::Owner { root } => Some(*root),
            _ => None,
        })
    }

    /// Says which tree has allocated this new data extent. That is ahead of all references.
    pub fn set_owner(&mut self, root: u64) {
        self.inline.insert(0, (InlineRef::Owner { root }, 0));
    }

    /// Whether there are references in items of their own.
    pub fn has_keyed(&self) -> bool {
        self.inline.iter().map(|(_, count)| count).sum::<i64>() < self.refs
    }

    /// Applies a record to the inline reference it names; false when there is none. Refuses a count that cannot be.
    pub fn change_inline(&mut self, record: &Record) -> Result<bool> {
        let Some(at) = self.inline.iter().position(|(one, _)| names(one, record)) else {
            return Ok(false);
        };
        let count = count_after(self.inline[at].1, record)?;
        self.inline[at].1 = count;
        if count == 0 {
            self.inline.remove(at);
        }
        Ok(true)
    }

    /// Adds an inline reference where it belongs in the order: kinds ascending, within a kind descending.
    pub fn add_inline(&mut self, record: &Record) {
        let one = reference(record);
        let rank = |one: &InlineRef| (one.kind(), std::cmp::Reverse(sequence(one)));
        let at = self.inline.partition_point(|(other, _)| rank(other) <= rank(&one));
        self.inline.insert(at, (one, i64::from(record.delta)));
    }

    /// Bytes of the item.
    pub fn size(&self) -> usize {
        let info = if self.info.is_some() { size_of::<TreeBlockInfo>() } else { 0 };
        size_of::<ExtentItem>()
            + info
            + self.inline.iter().map(|(one, _)| inline_size(one.kind())).sum::<usize>()
    }

    /// Whether an inline reference of `kind` still fits.
    pub fn has_room(&self, kind: u8, nodesize: usize) -> bool {
        self.size() + inline_size(kind) <= extent_item_max(nodesize)
    }

    /// Appends the item's bytes.
    pub fn write(&self, out: &mut Vec<u8>) {
        let head = ExtentItem {
            refs: (self.refs as u64).into(),
            generation: self.generation.into(),
            flags: self.flags.into(),
        };
        out.extend_from_slice(head.as_bytes());
        if let Some(info) = &self.info {
            out.extend_from_slice(info.as_bytes());
        }
        for (one, count) in &self.inline {
            write_inline(out, one, *count as u32);
        }
    }
}

fn inline_size(of: u8) -> usize {
    match of {
        kind::EXTENT_DATA_REF => 1 + size_of::<ExtentDataRef>(),
        kind::SHARED_DATA_REF => 13,
        _ => 9,
    }
}

fn write_inline(out: &mut Vec<u8>, one: &InlineRef, count: u32) {
    out.push(one.kind());
    match *one {
        InlineRef::TreeBlock { root } | InlineRef::Owner { root } => {
            out.extend_from_slice(&root.to_le_bytes())
        }
        InlineRef::SharedBlock { parent } => out.extend_from_slice(&parent.to_le_bytes()),
        InlineRef::SharedData { parent, .. } => {
            out.extend_from_slice(&parent.to_le_bytes());
            out.extend_from_slice(&count.to_le_bytes());
        }
        InlineRef::ExtentData { root, objectid, offset, .. } => {
            out.extend_from_slice(data_ref(root, objectid, offset, count).as_bytes());
        }
    }
}

/// How often a reference counts after `record`. A tree block is referred to once by each tree or block; data as often as 32
/// bits can count.
pub fn count_after(before: i64, record: &Record) -> Result<i64> {
    let most = match record.kind {
        kind::TREE_BLOCK_REF | kind::SHARED_BLOCK_REF => 1,
        _ => i64::from(u32::MAX),
    };
    let count = before.saturating_add(record.delta.into());
    if (0..=most).contains(&count) {
        return Ok(count);
    }
    let what = match count {
        ..0 => "a reference would go that is not there",
        _ => "a reference is there already",
    };
    Err(Error::inconsistent(EXTENT_TREE, what, Key::new(record.bytenr, record.kind, record.owner)))
}

/// The body of a data reference.
pub fn data_ref(root: u64, ino: u64, offset: u64, count: u32) -> ExtentDataRef {
    ExtentDataRef {
        root: root.into(),
        objectid: ino.into(),
        offset: offset.into(),
        count: count.into(),
    }
}

fn reference(record: &Record) -> InlineRef {
    let count = record.delta as u32;
    match record.kind {
        kind::TREE_BLOCK_REF => InlineRef::TreeBlock { root: record.owner },
        kind::SHARED_BLOCK_REF => InlineRef::SharedBlock { parent: record.owner },
        kind::SHARED_DATA_REF => InlineRef::SharedData { parent: record.owner, count },
        _ => InlineRef::ExtentData {
            root: record.owner,
            objectid: record.ino,
            offset: record.offset,
            count,
        },
    }
}

fn sequence(one: &InlineRef) -> u64 {
    match *one {
        InlineRef::TreeBlock { root } | InlineRef::Owner { root } => root,
        InlineRef::SharedBlock { parent } | InlineRef::SharedData { parent, .. } => parent,
        InlineRef::ExtentData { root, objectid, offset, .. } => {
            extent_data_ref_hash(root, objectid, offset)
        }
    }
}

fn names(one: &InlineRef, record: &Record) -> bool {
    match *one {
        InlineRef::TreeBlock { root } => {
            record.kind == kind::TREE_BLOCK_REF && root == record.owner
        }
        InlineRef::SharedBlock { parent } => {
            record.kind == kind::SHARED_BLOCK_REF && parent == record.owner
        }
        InlineRef::SharedData { parent, .. } => {
            record.kind == kind::SHARED_DATA_REF && parent == record.owner
        }
        InlineRef::ExtentData { root, objectid, offset, .. } => {
            record.kind == kind::EXTENT_DATA_REF
                && (root, objectid, offset) == (record.owner, record.ino, record.offset)
        }
        InlineRef::Owner { .. } => false,
    }
}
