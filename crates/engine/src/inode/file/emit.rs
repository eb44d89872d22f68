//! Emitting a prepared layer into the tree.
//!
//! A layer covers ranges of the file. In each of them the old extents go, or lose the part that is covered, and the
//! layer's pieces take their place. An old extent that reaches out of a range on both sides becomes two pieces of the same
//! extent: one reference more. One that is only shortened keeps its reference, and one that goes loses it.

use std::iter::Peekable;
use std::vec::IntoIter;

use buttress_ondisk::item::{FileExtent, FileExtentHead, FileExtentTail};
use buttress_ondisk::view::FileExtentItem;
use buttress_ondisk::{Key, kind};
use zerocopy::IntoBytes;

use super::changes::{FileChanges, round_up};
use super::layers::extent_key;
use super::piece::{Extent, Origin, Packed, Piece, SharedExtent};
use super::ranges::{Span, len};
use crate::error::{Error, Result};
use crate::refs::{Record, RefLog, Target};
use crate::txn::Emit;

/// An old extent, as far as it is needed to shorten it.
#[derive(Clone, Copy)]
struct Old {
    start: u64,
    end: u64,
    /// `None`: inline.
    body: Option<FileExtent>,
}

impl Old {
    fn read(key: &Key, data: &[u8]) -> Option<Old> {
        let start = key.offset;
        let item = FileExtentItem::read(data)?;
        let body = match item {
            FileExtentItem::Inline { .. } => None,
            FileExtentItem::Regular { .. } => Some(*FileExtent::of(data)?),
        };
        let end = start.checked_add(item.len_bytes())?;
        Some(Old { start, end: if body.is_some() { end } else { round_up(end) }, body })
    }

    /// The part of it that is in `start..end`.
    fn part(&self, start: u64, end: u64) -> Option<FileExtent> {
        let mut body = self.body?;
        if body.tail.disk_bytenr.get() != 0 {
            let offset = body.tail.offset.get().saturating_add(start - self.start);
            body.tail.offset = offset.into();
        } else {
            // The kernel leaves an offset in holes that it cuts; the checker holds it against the length.
            body.tail.offset = 0.into();
            body.head.ram_bytes = (end - start).into();
        }
        body.tail.num_bytes = (end - start).into();
        Some(body)
    }
}

/// A new item, and what it refers to.
struct New<'a> {
    span: Span,
    piece: &'a Piece,
}

struct Emitter<'e, 'm, 'a> {
    emit: &'e mut Emit<'m, 'a>,
    ino: u64,
    /// The rest of an old extent that the last range has cut in two or shortened from the front. Not in the tree yet.
    carry: Option<Old>,
    /// Where the last old extent ended.
    reach: u64,
}

impl FileChanges {
    /// Emits the layer, which has been prepared. `size` is the file's size in this layer.
    pub fn emit(&self, emit: &mut Emit<'_, '_>, ino: u64, size: u64) -> Result<()> {
        let holes_end = if emit.core.features.no_holes { 0 } else { round_up(size) };
        let mut emitter = Emitter { emit, ino, carry: None, reach: 0 };
        let mut edges = self.edges.iter().copied().peekable();
        let mut done = 0;
        for region in self.regions() {
            while edges.next_if(|(start, _)| *start < region.start).is_some() {}
            let edge = edges.next_if(|(start, _)| *start == region.start).map(|(_, old)| old);
            // One that started before the last range is in `carry` by now.
            let from = edge.filter(|old| *old >= done).unwrap_or(region.start);
            let new: Vec<New<'_>> = self.items(&region, holes_end).collect();
            emitter.region(&region, from, new.into_iter().peekable())?;
            done = region.end;
        }
        emitter.put_carry(u64::MAX)?;
        for (span, piece) in self.pieces.iter() {
            self.emit_sums(emitter.emit, &span, piece);
        }
        Ok(())
    }

    /// Deletes all extents of a file that goes.
    pub fn delete_all(emit: &mut Emit<'_, '_>, ino: u64) -> Result<()> {
        let Emit { merge, refs, tree, .. } = emit;
        let tree = *tree;
        merge.delete_range(extent_key(ino, 0), extent_key(ino, u64::MAX), |key, data| {
            if let Some(FileExtent { tail, .. }) = Old::read(&key, data).and_then(|old| old.body) {
                lose(refs, tree, ino, key.offset, &tail);
            }
        })
    }

    /// The pieces in `region` that become items.
    fn items(&self, region: &Span, holes_end: u64) -> impl Iterator<Item = New<'_>> {
        self.pieces.overlapping(region).filter_map(move |(mut span, piece)| {
            if matches!(piece, Piece::Hole) {
                span.end = span.end.min(holes_end);
            }
            (span.start < span.end).then_some(New { span, piece })
        })
    }

    /// Hands over the checksums of what the layer brings into the tree.
    fn emit_sums(&self, emit: &mut Emit<'_, '_>, span: &Span, piece: &Piece) {
        let Some(written) = self.written(span, piece) else { return };
        if let Some(sums) = self.digests_of(&written) {
            emit.csums.push(written.start, sums);
        }
    }
}

fn lose(refs: &mut RefLog, tree: u64, ino: u64, start: u64, tail: &FileExtentTail) {
    change_refs(refs, -1, tree, ino, start, tail);
}

fn change_refs(
    refs: &mut RefLog,
    delta: i32,
    tree: u64,
    ino: u64,
    start: u64,
    tail: &FileExtentTail,
) {
    let bytenr = tail.disk_bytenr.get();
    if delta != 0 && bytenr != 0 {
        let extent = (bytenr, tail.disk_num_bytes.get());
        refs.by_tree(Target::data(extent, ino, start, tail.offset.get()), tree, delta, 0);
    }
}

impl Emitter<'_, '_, '_> {
    /// Replaces what is in `region`. Old extents are looked for from `from` on.
    fn region(
        &mut self,
        region: &Span,
        from: u64,
        mut new: Peekable<IntoIter<New<'_>>>,
    ) -> Result<()> {
        if self.carry.is_some_and(|carry| carry.end <= region.start) {
            self.put_carry(region.start)?;
        }
        if let Some(carry) = self.carry.take() {
            self.cover(region, carry, true)?;
        }
        let mut from = from;
        while let Some(old) = self.next_old(from, region.end)? {
            while let Some(before) = new.next_if(|new| new.span.start < old.start) {
                self.put_new(&before)?;
            }
            self.cover(region, old, false)?;
            let replaced = new.peek().is_some_and(|new| new.span.start == old.start);
            if old.start >= region.start && !replaced {
                self.emit.merge.delete(&extent_key(self.ino, old.start))?;
            }
            if let Some(at) = new.next_if(|new| new.span.start == old.start) {
                self.put_new(&at)?;
            }
            from = old.start.saturating_add(1);
        }
        new.try_for_each(|new| self.put_new(&new))
    }

    /// The first old extent in the tree that starts at `from` or later, and before `end`.
    fn next_old(&mut self, from: u64, end: u64) -> Result<Option<Old>> {
        let (ino, tree) = (self.ino, self.emit.tree);
        let Some((key, data)) = self.emit.merge.peek(&extent_key(ino, from))? else {
            return Ok(None);
        };
        if (key.objectid, key.kind) != (ino, kind::EXTENT_DATA) || key.offset >= end {
            return Ok(None);
        }
        let Some(old) = Old::read(&key, data) else {
            return Err(Error::inconsistent(tree, "a file extent makes no sense", key));
        };
        if old.start < self.reach {
            return Err(Error::inconsistent(tree, "file extents overlap", key));
        }
        self.reach = old.end;
        Ok(Some(old))
    }

    /// `region` covers a part of `old`: puts what is left before it, keeps what is left behind it for later, and counts
    /// references. `carried`: its item is not in the tree.
    fn cover(&mut self, region: &Span, old: Old, carried: bool) -> Result<()> {
        let before = old.start < region.start;
        let behind = old.end > region.end;
        let transid = self.emit.transid;
        if before && let Some(mut left) = old.part(old.start, region.start) {
            left.head.generation = transid.into();
            self.emit.merge.put(extent_key(self.ino, old.start), left.as_bytes())?;
        } else if before && !carried {
            // Inline data is covered from its start on, always.
            self.emit.merge.delete(&extent_key(self.ino, old.start))?;
        }
        if let Some(body) = &old.body {
            let delta = i32::from(before) + i32::from(behind) - 1;
            change_refs(self.emit.refs, delta, self.emit.tree, self.ino, old.start, &body.tail);
        }
        if behind && let Some(body) = old.part(region.end, old.end) {
            self.carry = Some(Old { start: region.end, end: old.end, body: Some(body) });
        }
        Ok(())
    }

    /// Puts the rest of an old extent, which ends at `until` or before.
    fn put_carry(&mut self, until: u64) -> Result<()> {
        let Some(Old { start, end, body: Some(mut body) }) = self.carry.take() else {
            return Ok(());
        };
        debug_assert!(end <= until);
        body.head.generation = self.emit.transid.into();
        self.emit.merge.put(extent_key(self.ino, start), body.as_bytes())
    }

    fn put_new(&mut self, new: &New<'_>) -> Result<()> {
        let New { span, piece } = new;
        match piece {
            Piece::Hole => self.put_extent(span, FileExtentTail::default(), len(span), (0, false)),
            Piece::Inline(bytes, packed) => self.put_inline(span.start, bytes, packed.as_deref()),
            Piece::New { bytenr, prealloc } => {
                let len = len(span);
                let tail = FileExtentTail {
                    disk_bytenr: (*bytenr).into(),
                    disk_num_bytes: len.into(),
                    ..FileExtentTail::default()
                };
                let target = Target::data((*bytenr, len), self.ino, span.start, 0);
                self.emit.refs.by_tree(target, self.emit.tree, 1, Record::NEW);
                self.put_extent(span, tail, len, (0, *prealloc))
            }
            Piece::Extent(extent) => self.put_shared(span, extent),
        }
    }

    fn put_shared(&mut self, span: &Span, extent: &Extent) -> Result<()> {
        let tail = FileExtentTail {
            disk_bytenr: extent.bytenr.into(),
            disk_num_bytes: extent.disk_len.into(),
            offset: extent.offset.into(),
            ..FileExtentTail::default()
        };
        let shared = extent.shared.as_deref();
        let introduced = shared.filter(|shared| shared.introduces());
        if let Some(shared) = introduced {
            for (span, digests) in shared.digests.iter() {
                self.emit.csums.push(span.start, digests.bytes.clone());
            }
        }
        let made = introduced.filter(|shared| shared.origin == Origin::New);
        let marks = if made.is_some() { Record::NEW } else { 0 };
        let whole = (extent.bytenr, extent.disk_len);
        let target = Target::data(whole, self.ino, span.start, extent.offset);
        if let Some(maker) = made.and_then(SharedExtent::maker).filter(|it| *it != self.emit.tree) {
            self.emit.refs.owned(target, maker);
        }
        self.emit.refs.by_tree(target, self.emit.tree, 1, marks);
        self.put_extent(span, tail, extent.ram_len, (extent.compression, extent.prealloc))
    }

    /// Puts the item of an extent; `form` is its compression and whether it is preallocated.
    fn put_extent(
        &mut self,
        span: &Span,
        tail: FileExtentTail,
        ram_len: u64,
        form: (u8, bool),
    ) -> Result<()> {
        let kind = if form.1 { FileExtentHead::PREALLOC } else { FileExtentHead::REGULAR };
        let head = self.head(ram_len, form.0, kind);
        let tail = FileExtentTail { num_bytes: len(span).into(), ..tail };
        let item = FileExtent { head, tail };
        self.emit.merge.put(extent_key(self.ino, span.start), item.as_bytes())
    }

    fn put_inline(&mut self, start: u64, bytes: &[u8], packed: Option<&Packed>) -> Result<()> {
        let (compression, stored) =
            packed.map_or((0, bytes), |packed| (packed.compression, &*packed.bytes));
        let head = self.head(bytes.len() as u64, compression, FileExtentHead::INLINE);
        let item = [head.as_bytes(), stored].concat();
        self.emit.merge.put(extent_key(self.ino, start), &item)
    }

    fn head(&self, ram_len: u64, compression: u8, kind: u8) -> FileExtentHead {
        FileExtentHead {
            generation: self.emit.transid.into(),
            ram_bytes: ram_len.into(),
            compression,
            kind,
            ..FileExtentHead::default()
        }
    }
}
