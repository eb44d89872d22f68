//! The data of a file as a tree log holds them: the pieces of the live layer as items, with the checksums of what is new.
//!
//! What is buffered gets its place first and is written, as in a commit; but a file that is going to be kept in its item is logged so and
//! stays buffered. Holes are items here even where the filesystem has none for them: replay has to drop what the last commit has there.

use buttress_ondisk::item::{FileExtent, FileExtentHead, FileExtentTail};
use zerocopy::IntoBytes;

use super::changes::{FILE_END, FileChanges, round_up};
use super::layers::{Found, Layer, Layers, Mapped, Segments};
use super::piece::{Extent, Origin, Piece};
use super::ranges::{Span, len};
use crate::error::Result;
use crate::txn::Core;

/// Places of change that are remembered; with more the file is logged as a whole again.
const PLACES_MAX: usize = 64;

/// Where a file differs from what the log has of it.
#[derive(Debug, Default)]
pub(super) enum Unlogged {
    /// Perhaps everywhere.
    #[default]
    All,
    /// In these places, in the order in which they changed; and where it ended then.
    Places(Vec<Span>, u64),
}

impl Unlogged {
    /// What is at `span` has changed.
    pub fn note(&mut self, span: &Span) {
        let Unlogged::Places(places, _) = self else { return };
        if let Some(last) = places.last_mut()
            && last.start <= span.end
            && span.start <= last.end
        {
            *last = last.start.min(span.start)..last.end.max(span.end);
        } else if places.len() < PLACES_MAX {
            places.push(span.clone());
        } else {
            *self = Unlogged::All;
        }
    }
}

/// What is logged of a file's data.
#[derive(Debug)]
pub enum Logged {
    /// This is.
    Items(Items),
    /// Not these: they were cloned in this transaction, and others may name other parts of the same extents. Or they are parts of extents of the last
    /// commit in a mixed block group: Linux (6.18) takes what a log names there from its free space, and refuses to mount where a bitmap
    /// says that it is not free.
    Cloned,
    /// Not these: there are too many.
    Large,
}

/// Items of a file's data, and what they take the place of.
#[derive(Debug, Default)]
pub struct Items {
    /// Where the log has nothing else: in order, disjoint, and no item reaches across their bounds.
    pub places: Vec<Span>,
    /// By their offsets.
    pub items: Vec<(u64, Vec<u8>)>,
    /// Checksums by address.
    pub sums: Vec<(u64, Vec<u8>)>,
}

impl FileChanges {
    /// Writes what is buffered, unless it goes into an item: what [`FileChanges::log`] would do in the turn of one for all.
    pub fn flush_for_log(&mut self, core: &Core, layers: Layers<'_>) -> Result<()> {
        if self.buffers.is_empty() || self.inline_content(layers)?.is_some() {
            return Ok(());
        }
        self.flush(core, layers, true)
    }

    /// What has changed, for the log of transaction `transid`; at most `most` items. `again`: the log has had all of it before.
    pub fn log(
        &mut self,
        core: &Core,
        layers: Layers<'_>,
        transid: u64,
        (again, most): (bool, usize),
    ) -> Result<Logged> {
        let whole = || Vec::from_iter(std::iter::once(0..u64::MAX));
        // What the last commit has behind the end of the file is cut off by replay, so the tree need not be asked.
        if let Some(content) = self.inline_content(Layers { in_tree: false, ..layers })? {
            let head = head(transid, content.len() as u64, 0, FileExtentHead::INLINE);
            let item = [head.as_bytes(), content].concat();
            self.unlogged = Unlogged::All;
            let items = vec![(0, item)];
            return Ok(Logged::Items(Items { places: whole(), items, ..Items::default() }));
        }
        self.flush(core, layers, true)?;
        let end = round_up(layers.size);
        let unlogged = std::mem::replace(&mut self.unlogged, Unlogged::Places(Vec::new(), end));
        let places = match unlogged {
            Unlogged::Places(places, before) if again => self.places(places, before, end),
            _ => whole(),
        };
        let mut logged = Items::default();
        for (span, piece) in places.iter().flat_map(|place| self.pieces.overlapping(place)) {
            let Some(item) = item(&span, piece, transid, end) else { continue };
            if is_cloned(piece) || is_known(piece) && core.space.is_mixed() {
                return Ok(Logged::Cloned);
            }
            if logged.items.len() >= most {
                return Ok(Logged::Large);
            }
            logged.items.push((span.start, item));
            let written = self.written(&span, piece);
            logged.sums.extend(written.and_then(|at| Some((at.start, self.digests_of(&at)?))));
        }
        Ok(Logged::Items(Items { places, ..logged }))
    }

    /// Whether there is any space behind the end of the file, and whether some of it is of the last commit.
    pub fn space_behind(&self, layers: Layers<'_>) -> Result<(bool, bool)> {
        let mut behind = Segments::new(self, layers, round_up(layers.size)..FILE_END);
        let mut any = false;
        while let Some((_, found)) = behind.next()? {
            match found {
                Found::Extent(Mapped { layer: Layer::Tree, .. }) => return Ok((true, true)),
                Found::Hole => {}
                _ => any = true,
            }
        }
        Ok((any, false))
    }

    /// The places with the whole pieces that they touch, in order and joined. A hole was logged up to where the file ended, so what is
    /// between that and its end now has changed, too.
    fn places(&self, mut places: Vec<Span>, before: u64, end: u64) -> Vec<Span> {
        if before != end {
            places.push(before.min(end)..before.max(end));
        }
        for place in &mut places {
            let first = self.pieces.at(place.start.saturating_sub(1));
            let last = self.pieces.at(place.end);
            place.start = first.map_or(place.start, |(span, _)| span.start.min(place.start));
            place.end = last.map_or(place.end, |(span, _)| span.end.max(place.end));
        }
        places.sort_unstable_by_key(|place| place.start);
        let mut joined: Vec<Span> = Vec::with_capacity(places.len());
        for place in places {
            match joined.last_mut() {
                Some(last) if place.start <= last.end => last.end = last.end.max(place.end),
                _ => joined.push(place),
            }
        }
        joined
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

/// Whether a piece is of an extent that the last commit has.
fn is_known(piece: &Piece) -> bool {
    matches!(piece, Piece::Extent(_))
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
