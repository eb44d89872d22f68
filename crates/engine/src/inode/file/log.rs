//! The data of a file as a tree log holds them: the pieces of the live layer as items, with the checksums of what is new.
//!
//! What is buffered gets its place first and is written, as in a commit; but a file that is going to be kept in its item is logged so and
//! stays buffered. Holes are items here even where the filesystem has none for them: replay has to drop what the last commit has there.

use buttress_ondisk::item::{FileExtent, FileExtentHead, FileExtentTail};
use zerocopy::IntoBytes;

use super::changes::{FileChanges, round_up};
use super::layers::Layers;
use super::piece::{Extent, Origin, Piece};
use super::ranges::{Span, len};
use crate::error::Result;
use crate::txn::Core;

/// What is logged of a file's data.
#[derive(Debug)]
pub enum Logged {
    /// Items by their offsets, and checksums by address.
    Items(Vec<(u64, Vec<u8>)>, Vec<(u64, Vec<u8>)>),
    /// Not these: they were cloned in this transaction, and others may name other parts of the same extents.
    Cloned,
    /// Not these: there are too many.
    Large,
}

impl FileChanges {
    /// What has changed, for the log of transaction `transid`; at most `most` items.
    pub fn log(
        &mut self,
        core: &Core,
        layers: Layers<'_>,
        transid: u64,
        most: usize,
    ) -> Result<Logged> {
        // What the last commit has behind the end of the file is cut off by replay, so the tree need not be asked.
        if let Some(content) = self.inline_content(Layers { in_tree: false, ..layers })? {
            let head = head(transid, content.len() as u64, 0, FileExtentHead::INLINE);
            let item = [head.as_bytes(), content].concat();
            return Ok(Logged::Items(vec![(0, item)], Vec::new()));
        }
        self.flush(core, layers, true)?;
        if self.pieces.iter().nth(most).is_some() {
            return Ok(Logged::Large);
        }
        let end = round_up(layers.size);
        let (mut items, mut sums) = (Vec::new(), Vec::new());
        for (span, piece) in self.pieces.iter() {
            let Some(item) = item(&span, piece, transid, end) else { continue };
            if is_cloned(piece) {
                return Ok(Logged::Cloned);
            }
            items.push((span.start, item));
            sums.extend(
                self.written(&span, piece).and_then(|at| Some((at.start, self.digests_of(&at)?))),
            );
        }
        Ok(Logged::Items(items, sums))
    }

    /// Where the data of a piece are that no checksum tree knows.
    pub(super) fn written(&self, span: &Span, piece: &Piece) -> Option<Span> {
        match piece {
            Piece::New { bytenr, prealloc: false } => {
                Some(*bytenr..bytenr.saturating_add(len(span)))
            }
            Piece::Extent(extent) if extent.written && extent.shared.is_none() => {
                Some(extent.addresses(len(span)))
            }
            _ => None,
        }
    }
}

fn is_cloned(piece: &Piece) -> bool {
    let Piece::Extent(Extent { shared: Some(shared), .. }) = piece else { return false };
    shared.origin != Origin::Committing
}

/// The item of a piece; holes end with the file, at `end`.
fn item(span: &Span, piece: &Piece, transid: u64, end: u64) -> Option<Vec<u8>> {
    let regular = FileExtentHead::REGULAR;
    let kind = |prealloc| if prealloc { FileExtentHead::PREALLOC } else { regular };
    let (tail, ram_len, compression, kind, span) = match piece {
        Piece::Hole => {
            let span = span.start..span.end.min(end);
            if span.is_empty() {
                return None;
            }
            (FileExtentTail::default(), len(&span), 0, regular, span)
        }
        Piece::Inline(bytes, _) => {
            let head = head(transid, bytes.len() as u64, 0, FileExtentHead::INLINE);
            return Some([head.as_bytes(), bytes].concat());
        }
        Piece::New { bytenr, prealloc } => {
            let tail = FileExtentTail {
                disk_bytenr: (*bytenr).into(),
                disk_num_bytes: len(span).into(),
                ..FileExtentTail::default()
            };
            (tail, len(span), 0, kind(*prealloc), span.clone())
        }
        Piece::Extent(extent) => {
            let tail = FileExtentTail {
                disk_bytenr: extent.bytenr.into(),
                disk_num_bytes: extent.disk_len.into(),
                offset: extent.offset.into(),
                ..FileExtentTail::default()
            };
            (tail, extent.ram_len, extent.compression, kind(extent.prealloc), span.clone())
        }
    };
    let tail = FileExtentTail { num_bytes: len(&span).into(), ..tail };
    Some(FileExtent { head: head(transid, ram_len, compression, kind), tail }.as_bytes().to_vec())
}

fn head(transid: u64, ram_len: u64, compression: u8, kind: u8) -> FileExtentHead {
    FileExtentHead {
        generation: transid.into(),
        ram_bytes: ram_len.into(),
        compression,
        kind,
        ..FileExtentHead::default()
    }
}
