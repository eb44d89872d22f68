//! Where the parts of a file are, as fiemap tells it: item by item, and of each data extent the whole, whose references are then asked for.
//!
//! Of a committed tree where there is one that has all of the file; of the layers, where what a log brings is in memory only.

use buttress_ondisk::view::FileExtentItem;

use super::changes::{FILE_END, FileChanges, round_up};
use super::layers::{Found, Layers, Segments, TreeWalk};
use super::ranges::Span;
use crate::error::Result;

/// A part of a file that is not a hole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Offsets in the file, in bytes: whole sectors.
    pub span: Span,
    /// What is there.
    pub content: Content,
    /// The leaf that has the item, when it is of a committed tree.
    pub leaf: Option<u64>,
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

/// The extents that the tree below `layers` has in `span`, `most` at most: whole ones, of which a part is in it.
pub fn committed(layers: Layers<'_>, span: Span, most: usize) -> Result<Vec<Segment>> {
    let (mut walk, mut found, mut pos) = (TreeWalk::new(layers), Vec::new(), span.start);
    while pos < span.end && found.len() < most {
        let Some((extent, body)) = walk.at(pos)? else { break };
        if extent.start >= span.end {
            break;
        }
        let content = content_of(&body);
        pos = extent.end.max(pos + 1);
        if let Some(content) = content {
            found.push(Segment { span: extent, content, leaf: walk.leaf() });
        }
    }
    Ok(found)
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
    /// The parts that all layers together have in `span`, `most` at most: whole ones, so the file is gone through from its start.
    pub fn segments(&self, layers: Layers<'_>, span: Span, most: usize) -> Result<Vec<Segment>> {
        let (mut segments, mut all) = (Segments::new(self, layers, 0..FILE_END), Vec::new());
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
            all.push(Segment { span: part, content, leaf: None });
        }
        Ok(all)
    }
}
