//! How the parts of a file are stored: item by item, with what each takes of the disk and what it stands for. For tools that add up what
//! compression and sharing save.
//!
//! What a log has brought to a filesystem that is only read counts as it would after a commit. What is in memory only counts not at all:
//! who wants it to count commits first.

use std::ops::Range;

use buttress_ondisk::view::FileExtentItem;

use super::changes::{FILE_END, FileChanges, round_up};
use super::layers::{Found, Layers, Segments, TreeWalk};
use super::piece::Piece;
use crate::error::Result;

/// A part of a file, and how it is stored. Holes are none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stored {
    /// Offset in the file, in bytes.
    pub start: u64,
    /// Bytes of the file that it stands for.
    pub len: u64,
    /// 0 none, 1 zlib, 2 lzo, 3 zstd.
    pub compression: u8,
    /// Bytes that are stored: of an extent the whole of it, whatever part of it this is.
    pub disk_len: u64,
    /// Bytes of content in what is stored.
    pub ram_len: u64,
    /// Where that is.
    pub place: StoredIn,
}

/// Where a part of a file is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoredIn {
    /// In its item, in the tree.
    Item,
    /// In a data extent.
    Extent {
        /// Logical address of the whole extent.
        bytenr: u64,
        /// Whether it is preallocated: reads as zeros.
        prealloc: bool,
    },
}

/// What was found of a file, and where who wants more goes on; `None` at its end.
pub type Part = (Vec<Stored>, Option<u64>);

impl FileChanges {
    /// How the file is stored from `from` on: so many parts at most.
    pub fn stored(&self, layers: Layers<'_>, from: u64, most: usize) -> Result<Part> {
        let (mut all, mut pos) = (Vec::new(), from);
        if from == 0
            && let Some(item) = self.stored_in_item(layers)?
        {
            pos = round_up(item.ram_len.max(1));
            all.push(item);
        }
        let mut segments = Segments::new(self, layers, pos..FILE_END);
        // What fails behind something is met again by who goes on there.
        while all.len() < most {
            match segments.next() {
                Ok(Some((span, found))) => {
                    pos = span.end;
                    all.extend(stored(&span, &found));
                }
                Ok(None) => return Ok((all, None)),
                Err(_) if !all.is_empty() && pos > from => break,
                Err(error) => return Err(error),
            }
        }
        Ok((all, Some(pos)))
    }

    /// What the first item holds, if it holds content, as it is there.
    fn stored_in_item(&self, layers: Layers<'_>) -> Result<Option<Stored>> {
        for layer in [Some(self), layers.frozen].into_iter().flatten() {
            if layer.buffers.at(0).is_some() {
                return Ok(None);
            }
            if let Some((_, piece)) = layer.pieces.at(0) {
                let Piece::Inline(bytes, packed) = piece else { return Ok(None) };
                let ram_len = bytes.len() as u64;
                return Ok(Some(match packed {
                    None => in_item(0, ram_len, ram_len),
                    Some(it) => in_item(it.compression, it.bytes.len() as u64, ram_len),
                }));
            }
        }
        Ok(match TreeWalk::new(layers).at(0)? {
            Some((span, FileExtentItem::Inline { ram_bytes, compression, data, .. }))
                if span.start == 0 =>
            {
                Some(in_item(compression, data.len() as u64, ram_bytes))
            }
            _ => None,
        })
    }
}

fn in_item(compression: u8, disk_len: u64, ram_len: u64) -> Stored {
    Stored { start: 0, len: ram_len, compression, disk_len, ram_len, place: StoredIn::Item }
}

fn stored(span: &Range<u64>, found: &Found<'_>) -> Option<Stored> {
    let Found::Extent(it) = found else { return None };
    Some(Stored {
        start: span.start,
        len: span.end - span.start,
        compression: it.compression,
        disk_len: it.disk_len,
        ram_len: it.ram_len,
        place: StoredIn::Extent { bytenr: it.bytenr, prealloc: it.prealloc },
    })
}
