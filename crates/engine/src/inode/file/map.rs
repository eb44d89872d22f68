//! Where the parts of a file are, as fiemap tells it: item by item, and of each data extent the whole, whose references are then asked for.
//!
//! Of a committed tree where there is one that has all of the file; of the layers, where what a log brings is in memory only.

use buttress_ondisk::Key;
use buttress_ondisk::view::FileExtentItem;

use super::changes::{FILE_END, FileChanges, round_up};
use super::layers::{Found, Layers, Segments, extent_key};
use super::ranges::Span;
use crate::error::{Error, Result};
use crate::tree::View;

/// A part of a file that is not a hole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Offsets in the file, in bytes: whole sectors.
    pub span: Span,
    /// What is there.
    pub content: Content,
    /// Where the item is, when it is of a committed tree.
    pub place: Option<ItemAt>,
}

impl Segment {
    /// The leaf that has the item.
    pub fn leaf(&self) -> Option<u64> {
        self.place.map(|place| place.leaf)
    }
}

/// Where an item is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ItemAt {
    /// Address of the leaf.
    pub leaf: u64,
    /// Number in the leaf.
    pub slot: u32,
}

/// What a part of a file is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// In memory only.
    Buffered,
    /// In its item.
    Inline {
        /// Whether it is compressed there.
        compressed: bool,
    },
    /// In a data extent.
    Extent {
        /// Logical address of the whole extent.
        bytenr: u64,
        /// Where in its content the part starts.
        offset: u64,
        /// Whether it is compressed.
        compressed: bool,
        /// Whether it is preallocated: reads as zeros.
        prealloc: bool,
    },
}

/// Puts the extents that file `ino` has in `span` in a committed tree into `found`, until there are `most`: whole ones, of which a part is in
/// it. Leaf by leaf: a file may have millions.
pub fn committed(
    view: View<'_>,
    ino: u64,
    span: Span,
    most: usize,
    found: &mut Vec<Segment>,
) -> Result<()> {
    let before = view.last_in(&extent_key(ino, 0), &extent_key(ino, span.start))?;
    let mut from = before.map_or(extent_key(ino, span.start), |item| item.key());
    let mut reach = 0;
    loop {
        let (leaf, behind) = view.leaf_at(&from)?;
        let wanted = from..extent_key(ino, span.end);
        // What lies before an item that is damaged is told.
        let lost = leaf.lost().iter().find(|lost| wanted.contains(&lost.key));
        let end = lost.map_or(wanted.end, |lost| lost.key);
        let bytenr = leaf.bytenr();
        let first = leaf.search(&from).unwrap_or_else(|slot| slot);
        for (slot, head) in leaf.item_heads().iter().enumerate().skip(first) {
            let key = Key::from(head.key);
            if key >= end {
                break;
            }
            let wrong = |what| Error::inconsistent(view.owner(), what, key);
            let body = FileExtentItem::read(leaf.data_of(head));
            let body = body.ok_or_else(|| wrong("a file extent makes no sense"))?;
            if key.offset < reach {
                return Err(wrong("file extents overlap"));
            }
            reach = round_up(key.offset.saturating_add(body.len_bytes()));
            let Some(content) = content_of(&body).filter(|_| reach > span.start) else { continue };
            // As on the disk: another copy of the leaf may have those that are lost in this one.
            let slot = slot + leaf.lost().partition_point(|lost| lost.key < key);
            let place = Some(ItemAt { leaf: bytenr, slot: slot as u32 });
            found.push(Segment { span: key.offset..reach, content, place });
            if found.len() == most {
                return Ok(());
            }
        }
        match (lost, behind.filter(|behind| wanted.contains(behind))) {
            (Some(lost), _) => return Err(Error::Corrupt(lost.why.clone())),
            (None, Some(behind)) => from = behind,
            (None, None) => return Ok(()),
        }
    }
}

/// What an item says; `None` for a hole.
fn content_of(body: &FileExtentItem<'_>) -> Option<Content> {
    match *body {
        FileExtentItem::Inline { compression, .. } => {
            Some(Content::Inline { compressed: compression != 0 })
        }
        FileExtentItem::Regular { disk_bytenr: 0, .. } => None,
        FileExtentItem::Regular { disk_bytenr, offset, compression, prealloc, .. } => {
            let compressed = compression != 0;
            Some(Content::Extent { bytenr: disk_bytenr, offset, compressed, prealloc })
        }
    }
}

impl FileChanges {
    /// The same of the parts that all layers together have: whole ones, so the file is gone through from its start.
    pub fn segments(
        &self,
        layers: Layers<'_>,
        span: Span,
        most: usize,
        all: &mut Vec<Segment>,
    ) -> Result<()> {
        let mut segments = Segments::new(self, layers, 0..FILE_END);
        while all.len() < most {
            let Some((part, found)) = segments.next()? else { break };
            if part.start >= span.end {
                break;
            }
            if part.end <= span.start {
                continue;
            }
            let content = match found {
                Found::Hole => continue,
                Found::Bytes(_) => Content::Buffered,
                Found::Inline(_) => Content::Inline { compressed: false },
                Found::Extent(mapped) => Content::Extent {
                    bytenr: mapped.bytenr,
                    offset: mapped.offset,
                    compressed: mapped.compression != 0,
                    prealloc: mapped.prealloc,
                },
            };
            let part = part.start..round_up(part.end);
            all.push(Segment { span: part, content, place: None });
        }
        Ok(())
    }
}
