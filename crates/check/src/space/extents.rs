//! The extent tree as a stream of extents, each with all its references, inline and in items of their own.

use buttress_ondisk::{
    Key,
    item::{BlockGroupItem, extent_flags},
    kind,
    view::{InlineRef, inline_refs, keyed_ref},
};

use super::Range;
use crate::{
    context::Context,
    cursor::{Cursor, Event},
    refs::{Reference, Shape, referrer},
    roots::Tree,
};

/// An extent, as the extent tree has it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Extent {
    /// Logical address.
    pub bytenr: u64,
    /// Bytes.
    pub len: u64,
    /// What it is.
    pub shape: Shape,
    /// Whether its own references to others are said to be by its address.
    pub full: bool,
    /// The generation that has allocated it.
    pub generation: u64,
    /// Whom it counts for, where simple quotas have said so.
    pub owner: Option<u64>,
    /// A tree that refers to it as a tree block.
    pub tree: Option<u64>,
    /// References that its item says it has.
    pub refs: u64,
    /// References that are recorded.
    pub counted: u64,
    /// Whether its references could be read to their end.
    pub whole: bool,
}

/// Who is told what is in a range of the extent tree, in the order of addresses.
pub(super) trait Takes {
    /// An extent.
    fn extent(&mut self, extent: &Extent);
    /// A block group item.
    fn group(&mut self, key: &Key, item: &BlockGroupItem);
    /// Something that cannot be read, and was reported.
    fn lost(&mut self);
}

/// Takes nothing.
pub(super) struct Nobody;

impl Takes for Nobody {
    fn extent(&mut self, _extent: &Extent) {}
    fn group(&mut self, _key: &Key, _item: &BlockGroupItem) {}
    fn lost(&mut self) {}
}

/// Reads a range of the extent tree, and counts all references in it.
pub(super) fn read(context: &Context<'_>, tree: &Tree, range: &Range, takes: &mut dyn Takes) {
    let mut reader = Reader { context, takes, current: None };
    let mut cursor = Cursor::at(context, tree, Key::new(range.first, 0, 0));
    while let Some(event) = cursor.get() {
        match event {
            Event::Item(key, _) | Event::Lost(key, _) if key.objectid > range.last => break,
            Event::Item(key, data) => reader.item(&key, data),
            Event::Lost(..) => reader.lost(),
        }
        cursor.next();
    }
    reader.finish();
}

struct Reader<'a, 'b, 'c> {
    context: &'a Context<'b>,
    takes: &'c mut dyn Takes,
    current: Option<Extent>,
}

impl Reader<'_, '_, '_> {
    fn item(&mut self, key: &Key, data: &[u8]) {
        match key.kind {
            kind::EXTENT_ITEM | kind::METADATA_ITEM => self.begin(key, data),
            kind::TREE_BLOCK_REF
            | kind::SHARED_BLOCK_REF
            | kind::EXTENT_DATA_REF
            | kind::SHARED_DATA_REF => {
                if let Some(found) = keyed_ref(key, data) {
                    self.record(key.objectid, &found);
                }
            }
            kind::BLOCK_GROUP_ITEM => {
                self.finish();
                if let Some(item) = BlockGroupItem::of(data) {
                    self.takes.group(key, item);
                }
            }
            _ => {}
        }
    }

    fn begin(&mut self, key: &Key, data: &[u8]) {
        self.finish();
        let Some((head, info, mut refs)) = inline_refs(key, data) else { return };
        let nodesize = u64::from(self.context.volume.nodesize());
        let generation = head.generation.get();
        let flags = head.flags.get();
        let level = match info {
            Some(info) => info.level,
            None => u8::try_from(key.offset).unwrap_or(u8::MAX),
        };
        let (len, shape) = match flags & extent_flags::TREE_BLOCK {
            0 => (key.offset, Shape::Data { len: key.offset }),
            _ => (nodesize, Shape::Block { level, generation }),
        };
        if flags & extent_flags::FULL_BACKREF != 0 {
            self.context.full_backref.add(key.objectid);
        }
        self.context.refs.item(key.objectid, &shape);
        let bytenr = key.objectid;
        self.current = Some(Extent {
            bytenr,
            len,
            shape,
            full: flags & extent_flags::FULL_BACKREF != 0,
            generation,
            owner: None,
            tree: None,
            refs: head.refs.get(),
            counted: 0,
            whole: true,
        });
        for found in refs.by_ref() {
            if let (InlineRef::Owner { root }, Some(current)) = (found, &mut self.current) {
                current.owner = Some(root);
            }
            self.record(bytenr, &found);
        }
        if let (Some(current), false) = (&mut self.current, refs.rest().is_empty()) {
            current.whole = false;
        }
    }

    /// Counts a reference. One without its extent item is counted too: no sum can be zero with it.
    fn record(&mut self, bytenr: u64, found: &InlineRef) {
        let Some(by) = referrer(found) else { return };
        if self.current.is_some_and(|current| current.bytenr != bytenr) {
            self.finish();
        }
        let shape = self.current.map_or(Shape::Data { len: 0 }, |current| current.shape);
        self.context.refs.recorded(bytenr, &Reference { by, shape }, found.count());
        if let Some(current) = &mut self.current {
            current.counted = current.counted.saturating_add(found.count());
            if let InlineRef::TreeBlock { root } = found {
                current.tree = Some(*root);
            }
        }
    }

    fn lost(&mut self) {
        if let Some(current) = &mut self.current {
            current.whole = false;
        }
        self.finish();
        self.takes.lost();
    }

    fn finish(&mut self) {
        if let Some(extent) = self.current.take() {
            self.takes.extent(&extent);
        }
    }
}
