//! One range of addresses: its extents against its block group, its free space and its checksums.

use buttress_ondisk::{
    Key, STRIPE_LEN,
    item::{BlockGroupItem, chunk_type},
    kind, objectid,
};

use super::{
    Range, Trees,
    cache::{CacheCheck, Caches},
    coverage::Coverage,
    extents::{self, Extent, Takes},
    free::FreeCheck,
};
use crate::{
    context::Context,
    cursor::{Cursor, Event},
    issue::Place,
    kinds::Kind,
    refs::Shape,
    roots::holds_files,
};

/// Judges a range; the bytes of its extents, or `None` when part of it could not be read.
pub(super) fn check(
    context: &Context<'_>,
    trees: &Trees,
    caches: &Caches,
    range: &Range,
) -> Option<u64> {
    let csums = trees.csums.as_ref().map(|tree| Coverage::new(context, tree, range));
    let free = trees.free.as_ref().map(|tree| FreeCheck::new(context, tree, range));
    let cache = caches.check(context, range);
    let mut one = One {
        context,
        range,
        at: range.first,
        used: 0,
        lost: false,
        group: None,
        csums,
        free,
        cache,
    };
    extents::read(context, &trees.extents, range, &mut one);
    if let Some(tree) = &trees.groups {
        one.read_groups(&mut Cursor::at(context, tree, Key::new(range.first, 0, 0)));
    }
    one.finish()
}

struct One<'a, 'b> {
    context: &'a Context<'b>,
    range: &'a Range,
    /// The end of the last extent.
    at: u64,
    used: u64,
    /// Whether something could not be read.
    lost: bool,
    /// The used bytes that the block group item says.
    group: Option<u64>,
    csums: Option<Coverage<'a, 'b>>,
    free: Option<FreeCheck<'a, 'b>>,
    cache: Option<CacheCheck>,
}

impl Takes for One<'_, '_> {
    fn extent(&mut self, extent: &Extent) {
        self.refs(extent);
        self.bounds(extent);
        self.charge(extent);
        let end = extent.bytenr.saturating_add(extent.len);
        if extent.bytenr < self.at {
            let place = Place::logical(extent.bytenr, extent.len);
            let expect = format_args!("at least {}", self.at);
            self.context.report(Kind::ExtentOverlap, place, extent.bytenr, expect);
        } else {
            self.gap(extent.bytenr);
        }
        self.used = self.used.saturating_add(extent.len);
        self.at = self.at.max(end);
        if let (Shape::Data { .. }, Some(csums)) = (extent.shape, &mut self.csums) {
            csums.data(extent.bytenr, end);
        }
    }

    fn group(&mut self, key: &Key, item: &BlockGroupItem) {
        let place = Place::logical(key.objectid, key.offset);
        let chunk = self.range.chunk.as_ref();
        let same = |logical, length| logical == key.objectid && length == key.offset;
        match chunk.filter(|chunk| same(chunk.logical, chunk.length)) {
            None => self.context.report(
                Kind::GroupExtra,
                place,
                "a block group",
                "a chunk of this place and length",
            ),
            Some(chunk) => {
                self.group = Some(item.used.get());
                let (have, expect) = (item.flags.get(), chunk.type_flags);
                if have != expect {
                    let (have, expect) = (format_args!("{have:#x}"), format_args!("{expect:#x}"));
                    self.context.report(Kind::GroupFlags, place, have, expect);
                }
            }
        }
    }

    fn lost(&mut self) {
        self.lost = true;
    }
}

impl One<'_, '_> {
    fn read_groups(&mut self, cursor: &mut Cursor<'_, '_>) {
        while let Some(event) = cursor.get() {
            match event {
                Event::Item(key, _) | Event::Lost(key, _) if key.objectid > self.range.last => {
                    break;
                }
                Event::Item(key, data) if key.kind == kind::BLOCK_GROUP_ITEM => {
                    if let Some(item) = BlockGroupItem::of(data) {
                        self.group(&key, item);
                    }
                }
                Event::Item(..) => {}
                Event::Lost(..) => self.lost = true,
            }
            cursor.next();
        }
    }

    fn refs(&self, extent: &Extent) {
        let place = Place::logical(extent.bytenr, extent.len);
        if extent.whole && extent.refs != extent.counted {
            self.context.report(Kind::ExtentRefTotal, place.clone(), extent.refs, extent.counted);
        } else if extent.whole && extent.refs == 0 {
            self.context.report(Kind::ExtentUnreferenced, place.clone(), 0, "one or more");
        }
        let shared = |id: &u64| holds_files(*id) || *id == objectid::TREE_RELOC;
        if let (true, Some(tree)) = (extent.full, extent.tree.filter(|id| !shared(id))) {
            let place = Place { tree: Some(tree), ..place };
            let have = format_args!("full backrefs of a block of tree {tree}");
            self.context.report(Kind::ExtentFlags, place, have, "none outside of subvolumes");
        }
    }

    /// Simple quotas charge whoever has allocated data. (Tree blocks are charged when they are read.)
    fn charge(&self, extent: &Extent) {
        let (Some(charged), Shape::Data { len }) = (&self.context.charged, extent.shape) else {
            return;
        };
        match extent.owner {
            Some(owner) => charged.add(owner, extent.generation, len),
            None if extent.whole && charged.asks_for_owner(extent.generation) => {
                let place = Place::logical(extent.bytenr, extent.len);
                self.context.report(Kind::ExtentOwner, place, "no owner reference", "one");
            }
            None => {}
        }
    }

    /// The extent lies in its chunk, of the right type.
    fn bounds(&self, extent: &Extent) {
        let place = || Place::logical(extent.bytenr, extent.len);
        let last = extent.bytenr.saturating_add(extent.len.saturating_sub(1));
        let Some(chunk) = self.range.chunk.as_ref().filter(|_| last <= self.range.last) else {
            self.context.report(Kind::ExtentOutside, place(), last, "inside one block group");
            return;
        };
        let wanted = match extent.shape {
            Shape::Data { .. } => chunk_type::DATA,
            Shape::Block { .. } => chunk_type::METADATA | chunk_type::SYSTEM,
        };
        if chunk.type_flags & wanted == 0 {
            let (have, expect) = (
                format_args!("a chunk of type {:#x}", chunk.type_flags),
                format_args!("a bit of {wanted:#x}"),
            );
            self.context.report(Kind::ExtentChunkType, place(), have, expect);
        }
        let crosses = extent.bytenr / STRIPE_LEN != last / STRIPE_LEN;
        if crosses && matches!(extent.shape, Shape::Block { .. }) {
            self.context.report(Kind::ExtentStripe, place(), last, "in the same 64 KiB");
        }
    }

    /// From the end of the last extent up to here, nothing is used.
    fn gap(&mut self, end: u64) {
        if self.at >= end {
            return;
        }
        if let Some(free) = &mut self.free {
            free.gap(self.at, end);
        }
        if let Some(cache) = &mut self.cache {
            cache.gap(self.at, end);
        }
    }

    fn finish(mut self) -> Option<u64> {
        if self.range.chunk.is_some() {
            self.gap(self.range.last.saturating_add(1));
        }
        if self.lost {
            return None;
        }
        if let Some(csums) = &mut self.csums {
            csums.finish();
        }
        if let Some(free) = &mut self.free {
            free.finish();
        }
        if let Some(cache) = self.cache.take() {
            cache.finish(self.context);
        }
        self.judge_group();
        Some(self.used)
    }

    fn judge_group(&self) {
        let Some(chunk) = &self.range.chunk else { return };
        let place = Place::logical(chunk.logical, chunk.length);
        match self.group {
            None => {
                self.context.report(Kind::GroupMissing, place, "no block group item", "one");
            }
            Some(used) if used != self.used => {
                self.context.report(Kind::GroupUsed, place, used, self.used);
            }
            Some(_) => {}
        }
    }
}
