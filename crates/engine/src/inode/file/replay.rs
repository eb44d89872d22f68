//! What a log says of a file's data, as pieces of the live layer.
//!
//! A log has the items that the file is to have, and they replace whatever is in their ranges. Data that no commit knows are new to
//! the extent tree with the first reference; their checksums come from the log.

use std::sync::Arc;

use buttress_ondisk::SECTOR;
use buttress_ondisk::view::FileExtentItem;

use super::changes::{FILE_END, FileChanges, round_up};
use super::layers::{Layers, extent_key, inline_content};
use super::piece::{Digests, Extent, Origin, Packed, Piece, SharedExtent};
use super::ranges::{RangeMap, Span};
use crate::error::Result;
use crate::space::Range;
use crate::txn::Core;

/// An extent that logs refer to. All who do share one.
#[derive(Clone, Debug)]
pub struct LoggedData(Arc<SharedExtent>);

impl LoggedData {
    /// The extent `range`; `is_new` when no commit knows it, and its space was claimed. `sums` are the checksums that logs have of it: the
    /// address of the first sector, and those of all sectors from there on, `size` bytes each.
    pub fn new(
        range: Range,
        is_new: bool,
        sums: impl IntoIterator<Item = (u64, Vec<u8>)>,
        size: usize,
    ) -> LoggedData {
        let mut parts = RangeMap::default();
        for (start, bytes) in sums {
            let sectors = (bytes.len() / size.max(1)) as u64;
            let span = start..start.saturating_add(sectors * SECTOR);
            parts.cut(&span);
            parts.insert(span, Digests { bytes, size });
        }
        let origin = if is_new { Origin::New } else { Origin::Written };
        LoggedData(Arc::new(SharedExtent::of_parts(range, parts, origin)))
    }
}

/// The range of the file that an item covers, in whole sectors; `None` where that is nowhere, or more than its extent has.
pub fn span_of(start: u64, item: &FileExtentItem<'_>) -> Option<Span> {
    if let FileExtentItem::Regular {
        disk_bytenr: 1..,
        disk_num_bytes,
        ram_bytes,
        offset,
        num_bytes,
        compression,
        prealloc,
        ..
    } = *item
    {
        let end = offset.checked_add(num_bytes)?;
        let has = if compression == 0 { ram_bytes.min(disk_num_bytes) } else { ram_bytes };
        if end > has || prealloc && compression != 0 {
            return None;
        }
    }
    let end = round_up(start.checked_add(item.len_bytes())?);
    let aligned = start.is_multiple_of(SECTOR);
    (aligned && start < end && end <= FILE_END).then_some(start..end)
}

impl FileChanges {
    /// Whether the file's item at `start` is just the one that the log has.
    pub fn is_as_logged(&self, layers: Layers<'_>, span: &Span, data: &[u8]) -> Result<bool> {
        let changed = self.pieces.overlapping(span).next().is_some()
            || self.buffers.overlapping(span).next().is_some();
        if changed || !layers.in_tree {
            return Ok(false);
        }
        let item = layers.view.get(&extent_key(layers.ino, span.start))?;
        Ok(item.is_some_and(|item| item.data() == data))
    }

    /// Puts what a log has for `span`. Whether it makes sense is returned.
    pub fn put_logged(
        &mut self,
        span: Span,
        item: &FileExtentItem<'_>,
        data: Option<LoggedData>,
    ) -> bool {
        let piece = match *item {
            FileExtentItem::Regular { disk_bytenr: 0, .. } => Piece::Hole,
            FileExtentItem::Regular {
                disk_bytenr,
                disk_num_bytes,
                ram_bytes,
                offset,
                compression,
                prealloc,
                ..
            } => Piece::Extent(Extent {
                bytenr: disk_bytenr,
                disk_len: disk_num_bytes,
                ram_len: ram_bytes,
                offset,
                compression,
                prealloc,
                written: false,
                shared: data.map(|data| data.0),
            }),
            FileExtentItem::Inline { compression, data, .. } => {
                let Some(content) = inline_content(item).filter(|it| !it.is_empty()) else {
                    return false;
                };
                let packed = Packed { compression, bytes: data.to_vec() };
                Piece::Inline(content.into(), (compression != 0).then(|| Arc::new(packed)))
            }
        };
        self.replayed = true;
        self.put(span, piece);
        true
    }

    /// A log says that the file ends at `size`: nothing stays behind that, reserved space neither.
    pub fn end_at(&mut self, core: &Core, layers: Layers<'_>, size: u64) {
        self.replayed = true;
        self.erase(core, layers, round_up(size)..FILE_END);
    }
}
