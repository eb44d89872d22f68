//! What the extent tree records of one extent: its head, and its references, inline ones and those with items of their own.
//!
//! References are read some at a time ([`Extents::more`]): an extent may have millions. The leaf that was read last is kept. Who
//! asks for extents in the order of their addresses goes forward in it, and from it to the next one.
//!
//! What holds: a tree block is referred to by trees and blocks, data by files and leaves (the gate sees to it within an item; items
//! of their own are held against the head here). When all references are read, they are as many as the head says, or it is an error.

use std::sync::Arc;

use buttress_ondisk::item::{ExtentDataRef, extent_flags};
use buttress_ondisk::view::{InlineRef, inline_refs, keyed_ref};
use buttress_ondisk::{Key, TreeBlock, kind, objectid};

use crate::error::{Error, Result};
use crate::tree::{Item, View};

/// What an extent item says before its references.
#[derive(Clone, Copy, Debug)]
pub struct Head {
    /// The transaction that allocated it: a tree block has it as its generation.
    pub generation: u64,
    /// The level, of a tree block.
    pub level: Option<u8>,
    /// Whether the references to what a tree block refers to are by its address, not by its tree.
    pub full: bool,
    /// Bytes, of data.
    pub len: u64,
    /// How many references it has.
    pub refs: u64,
}

/// How far the references of an extent are read.
#[derive(Debug)]
pub struct Reading {
    bytenr: u64,
    /// The item to go on with, and how many of its references are read.
    next: Option<(Key, usize)>,
    head: Option<Head>,
    sum: u64,
    /// It is no error if there is no such extent.
    may_be_missing: bool,
}

impl Reading {
    /// The same of what may not be there.
    pub fn of_any(bytenr: u64) -> Reading {
        Reading { may_be_missing: true, ..Reading::of(bytenr) }
    }

    /// Whether there is such an extent; something must have been read.
    pub fn is_there(&self) -> bool {
        self.head.is_some()
    }

    /// Nothing is read yet.
    pub fn of(bytenr: u64) -> Reading {
        let from = Key::new(bytenr, kind::EXTENT_ITEM, 0);
        Reading { bytenr, next: Some((from, 0)), head: None, sum: 0, may_be_missing: false }
    }

    /// The extent.
    pub fn bytenr(&self) -> u64 {
        self.bytenr
    }

    /// The head: known once something was read.
    pub fn head(&self) -> Result<Head> {
        self.head.ok_or_else(|| wrong("an extent has no extent item", self.bytenr))
    }

    /// Takes references of an item, as many as there is room for; whether those were all.
    fn take(&mut self, key: Key, data: &[u8], skip: usize, into: &mut Batch<'_>) -> Result<bool> {
        if matches!(key.kind, kind::EXTENT_ITEM | kind::METADATA_ITEM) {
            let Some((head, info, refs)) = inline_refs(&key, data) else {
                return Err(wrong("an extent item is too short", key));
            };
            if skip == 0 && self.head.is_some() {
                return Err(wrong("an extent has two extent items", key));
            }
            let block = head.flags.get() & extent_flags::TREE_BLOCK != 0;
            let level = info.map_or(key.offset as u8, |info| info.level);
            self.head = Some(Head {
                generation: head.generation.get(),
                level: block.then_some(level),
                full: head.flags.get() & extent_flags::FULL_BACKREF != 0,
                len: if block { 0 } else { key.offset },
                refs: head.refs.get(),
            });
            for (number, one) in refs.enumerate().skip(skip) {
                if matches!(one, InlineRef::Owner { .. }) {
                    continue;
                }
                if into.is_full() {
                    self.next = Some((key, number));
                    return Ok(false);
                }
                self.add(one, into)?;
            }
            return Ok(true);
        }
        if self.head.is_none() {
            return Err(wrong("references to an extent that has no extent item", key));
        }
        // One item has several references of files at most where somebody has made it so.
        let len = if key.kind == kind::EXTENT_DATA_REF { size_of::<ExtentDataRef>() } else { 0 };
        let parts = data.len().checked_div(len).unwrap_or(1);
        for number in skip..parts {
            if into.is_full() {
                self.next = Some((key, number));
                return Ok(false);
            }
            let one = keyed_ref(&key, data.get(number * len..).unwrap_or_default());
            let Some(one) = one else { return Err(wrong("a reference is too short", key)) };
            self.add(one, into)?;
        }
        Ok(true)
    }

    fn add(&mut self, one: InlineRef, into: &mut Batch<'_>) -> Result<()> {
        let to_block = matches!(one, InlineRef::TreeBlock { .. } | InlineRef::SharedBlock { .. });
        if self.head.is_some_and(|head| head.level.is_some() != to_block) {
            return Err(wrong("a reference does not fit the kind of extent", self.bytenr));
        }
        self.sum = self.sum.saturating_add(one.count());
        into.refs.push(one);
        Ok(())
    }
}

/// Room for some references.
struct Batch<'b> {
    refs: &'b mut Vec<InlineRef>,
    most: usize,
}

impl Batch<'_> {
    fn is_full(&self) -> bool {
        self.refs.len() >= self.most
    }
}

/// One version of the extent tree, and where in it somebody is.
#[derive(Debug)]
pub struct Extents<'a> {
    view: View<'a>,
    leaf: Option<Arc<TreeBlock>>,
    /// Behind what was taken of the leaf last.
    slot: usize,
}

impl<'a> Extents<'a> {
    /// Reads `view`.
    pub fn new(view: View<'a>) -> Extents<'a> {
        Extents { view, leaf: None, slot: 0 }
    }

    /// Whether there is an extent at `bytenr`.
    pub fn has(&self, bytenr: u64) -> Result<bool> {
        let to = Key::new(bytenr, kind::METADATA_ITEM, u64::MAX);
        let mut items = self.view.range(Key::new(bytenr, kind::EXTENT_ITEM, 0), to);
        Ok(items.next()?.is_some())
    }

    /// What the extent item at `bytenr` says before its references. The place that was come to stays.
    pub fn head_at(&self, bytenr: u64) -> Result<Head> {
        let mut elsewhere = Extents::new(self.view);
        let (mut reading, mut refs) = (Reading::of(bytenr), Vec::new());
        elsewhere.more(&mut reading, &mut refs, 1)?;
        reading.head()
    }

    /// How often the extent at `bytenr` is referred to in the way that `wanted` says, whatever that one counts. The place that was come to stays.
    pub fn count_of(&self, bytenr: u64, wanted: &InlineRef) -> Result<u64> {
        let from = Key::new(bytenr, kind::EXTENT_ITEM, 0);
        let to = Key::new(bytenr, kind::METADATA_ITEM, u64::MAX);
        let item = self.view.range(from, to).next()?;
        let item = item.ok_or_else(|| wrong("an extent has no extent item", bytenr))?;
        let Some((head, _, mut refs)) = inline_refs(&item.key(), item.data()) else {
            return Err(wrong("an extent item is too short", item.key()));
        };
        if head.refs.get() == 0 {
            return Err(wrong("an extent says that it has no references", bytenr));
        }
        let is_it = |one: &InlineRef| way(one) == way(wanted);
        if let Some(found) = refs.find(is_it) {
            return Ok(found.count());
        }
        // Those whose keys are hashes go to the next free key where another one has theirs.
        let key = Key::new(bytenr, wanted.kind(), wanted.rank());
        let last = if key.kind == kind::EXTENT_DATA_REF { u64::MAX } else { key.offset };
        let mut items = self.view.range(key, Key { offset: last, ..key });
        while let Some(item) = items.next()? {
            if let Some(found) = keyed_ref(&item.key(), item.data()).filter(is_it) {
                return Ok(found.count());
            }
        }
        Ok(0)
    }

    /// The last item that is at `key` or before it.
    pub fn last_before(&self, key: &Key) -> Result<Option<Item>> {
        self.view.last_at_or_before(key)
    }

    /// Reads up to `most` more references into `refs`, in place of what is in it; none when all are read.
    pub fn more(
        &mut self,
        reading: &mut Reading,
        refs: &mut Vec<InlineRef>,
        most: usize,
    ) -> Result<()> {
        refs.clear();
        let mut batch = Batch { refs, most };
        let Some((from, skip)) = reading.next.take() else { return Ok(()) };
        let Some((from, skip)) = self.in_leaf(reading, from, skip, &mut batch)? else {
            return Ok(());
        };
        (self.leaf, self.slot) = (Some(self.view.leaf_at(&from)?.0), 0);
        let Some(from) = self.in_leaf(reading, from, skip, &mut batch)? else { return Ok(()) };
        self.behind_leaf(reading, from, &mut batch)
    }

    /// Takes what the leaf that was read last has of it; answers from where to go on in the tree, and with how many references of
    /// that item passed over, unless that was all.
    fn in_leaf(
        &mut self,
        reading: &mut Reading,
        from: Key,
        skip: usize,
        batch: &mut Batch<'_>,
    ) -> Result<Option<(Key, usize)>> {
        let whole = self.leaf.as_ref().filter(|leaf| leaf.lost().is_empty());
        let Some(leaf) = whole else { return Ok(Some((from, skip))) };
        let Some(first) = first_from(leaf, &from, self.slot) else { return Ok(Some((from, skip))) };
        let mut skip = skip;
        for slot in first..leaf.len() {
            let (key, data) = leaf.item(slot);
            self.slot = slot;
            if key.objectid != reading.bytenr || key.kind > kind::SHARED_DATA_REF {
                return finish(reading).map(|()| None);
            }
            if !is_of(&key, reading.bytenr) {
                continue;
            }
            if !reading.take(key, data, std::mem::take(&mut skip), batch)? {
                return Ok(None);
            }
        }
        let last = leaf.span().map_or(from, |(_, last)| last);
        Ok(Some((after(&last), 0)))
    }

    /// Takes what comes in the tree from a key on.
    fn behind_leaf(
        &mut self,
        reading: &mut Reading,
        (from, skip): (Key, usize),
        batch: &mut Batch<'_>,
    ) -> Result<()> {
        let mut skip = skip;
        let last = Key::new(reading.bytenr, kind::SHARED_DATA_REF, u64::MAX);
        let mut items = self.view.range(from, last);
        while let Some(item) = items.next()? {
            if self.leaf.as_ref().is_none_or(|leaf| !Arc::ptr_eq(leaf, item.leaf())) {
                self.leaf = Some(item.leaf().clone());
            }
            if !is_of(&item.key(), reading.bytenr) {
                continue;
            }
            if !reading.take(item.key(), item.data(), std::mem::take(&mut skip), batch)? {
                return Ok(());
            }
        }
        finish(reading)
    }
}

/// What tells one reference to an extent from another, and orders them.
pub fn way(one: &InlineRef) -> (u8, u64, u64, u64) {
    let kind = one.kind();
    match *one {
        InlineRef::TreeBlock { root } | InlineRef::Owner { root } => (kind, root, 0, 0),
        InlineRef::SharedBlock { parent } | InlineRef::SharedData { parent, .. } => {
            (kind, parent, 0, 0)
        }
        InlineRef::ExtentData { root, objectid, offset, .. } => (kind, root, objectid, offset),
    }
}

/// The first slot of a leaf whose key is not below `from`, most often the one that was come to last, or the one behind it; `None` when that
/// may be in another leaf.
fn first_from(leaf: &TreeBlock, from: &Key, last: usize) -> Option<usize> {
    for slot in last..leaf.len().min(last.saturating_add(2)) {
        if leaf.key(slot) >= *from {
            let is_it = slot.checked_sub(1).is_some_and(|before| leaf.key(before) < *from);
            if is_it {
                return Some(slot);
            }
            break;
        }
    }
    let (first, last) = leaf.span()?;
    (first <= *from && *from <= last).then(|| leaf.search(from).unwrap_or_else(|slot| slot))
}

/// All references are read.
fn finish(reading: &Reading) -> Result<()> {
    if reading.may_be_missing && reading.head.is_none() {
        return Ok(());
    }
    if reading.head()?.refs != reading.sum {
        return Err(wrong("an extent does not have as many references as it says", reading.bytenr));
    }
    Ok(())
}

/// Whether an item is the extent item at `bytenr`, or a reference to it.
fn is_of(key: &Key, bytenr: u64) -> bool {
    let known = matches!(
        key.kind,
        kind::EXTENT_ITEM
            | kind::METADATA_ITEM
            | kind::TREE_BLOCK_REF
            | kind::EXTENT_DATA_REF
            | kind::SHARED_BLOCK_REF
            | kind::SHARED_DATA_REF
    );
    key.objectid == bytenr && known
}

fn after(key: &Key) -> Key {
    match key.offset.checked_add(1) {
        Some(offset) => Key { offset, ..*key },
        None => Key { kind: key.kind.saturating_add(1), offset: 0, ..*key },
    }
}

/// The extent tree, or what it leads to, contradicts itself.
pub fn wrong(what: &'static str, place: impl std::fmt::Display) -> Error {
    Error::inconsistent(objectid::EXTENT_TREE, what, place)
}
