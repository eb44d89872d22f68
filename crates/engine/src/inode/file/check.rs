//! Holds a layer against what `changes` says always holds of it. Reads memory only, and finds what a forgotten line breaks
//! at the step that breaks it, where the checker of the filesystem would find it one commit later.
//!
//! Space that is in no place any more is not seen here: a layer does not know what it has allocated. The test
//! `unwritten_space_comes_back` looks for that.

use std::sync::Arc;

use buttress_ondisk::{EXTENT_LEN_MAX, SECTOR};

use super::changes::{FILE_END, FileChanges};
use super::piece::{Extent, Origin, Piece, Prealloc, SharedExtent};
use super::prepare::INLINE_MAX;
use super::ranges::{RangeMap, Span, Split, len};

/// What is wrong.
type Checked = Result<(), String>;

/// Says what is wrong, unless `holds`.
fn ensure(holds: bool, wrong: impl FnOnce() -> String) -> Checked {
    if holds { Ok(()) } else { Err(wrong()) }
}

fn whole_sectors(what: &str, span: &Span) -> Checked {
    let aligned = span.start.is_multiple_of(SECTOR) && span.end.is_multiple_of(SECTOR);
    ensure(aligned && span.start < span.end, || format!("{what} at {span:?}: no whole sectors"))
}

fn bytes_of<T: Split>(map: &RangeMap<T>) -> u64 {
    map.iter().map(|(span, _)| len(&span)).sum()
}

/// Spans in order, those joined that follow each other.
fn joined(mut spans: Vec<Span>) -> Vec<Span> {
    spans.sort_by_key(|span| span.start);
    let mut all: Vec<Span> = Vec::new();
    for span in spans {
        match all.last_mut() {
            Some(last) if last.end == span.start => last.end = span.end,
            _ => all.push(span),
        }
    }
    all
}

impl FileChanges {
    /// What is wrong with the layer, if anything. `digest`: bytes of a checksum, or `None` for a file that has none.
    pub(super) fn check(&self, digest: Option<usize>) -> Checked {
        self.check_maps(digest)?;
        let mapped: u64 = self.pieces.iter().map(|(span, piece)| piece.nbytes(&span)).sum();
        ensure(self.mapped == mapped, || format!("pieces of {mapped}, not {} bytes", self.mapped))
    }

    /// The same for a layer that has been prepared: it only waits to be emitted.
    pub(super) fn check_prepared(&self, digest: Option<usize>) -> Checked {
        let settled = self.buffers.is_empty() && self.dropped.is_empty() && self.ahead.is_none();
        ensure(settled, || "a prepared layer has buffers or space to give back".into())?;
        ensure(self.settled, || "a prepared layer is not settled".into())?;
        ensure(self.mapped == 0, || format!("a prepared layer counts {} bytes", self.mapped))?;
        let edges = self.edges.is_sorted() && self.edges.iter().all(|(start, old)| old < start);
        ensure(edges, || format!("edges: {:?}", self.edges))?;
        self.check_maps(digest)
    }

    fn check_maps(&self, digest: Option<usize>) -> Checked {
        self.check_buffers()?;
        self.check_pieces()?;
        self.check_space()?;
        self.check_digests(digest)
    }

    fn check_buffers(&self) -> Checked {
        for (span, buffer) in self.buffers.iter() {
            whole_sectors("a buffer", &span)?;
            let have = buffer.0.len() as u64;
            ensure(have == len(&span), || format!("a buffer at {span:?} has {have} bytes"))?;
            let piece = self.pieces.overlapping(&span).next();
            ensure(piece.is_none(), || format!("buffered at {span:?}, and {piece:?}"))?;
        }
        for (span, space) in self.prealloc.iter() {
            whole_sectors("reserved space", &span)?;
            let buffered: u64 = self
                .buffers
                .overlapping(&span)
                .map(|(at, _)| at.end.min(span.end) - at.start.max(span.start))
                .sum();
            ensure(buffered == len(&span), || format!("space for nothing at {span:?}"))?;
            if let Prealloc::Part(extent) = space {
                let plain = extent.prealloc && !extent.written && extent.shared.is_none();
                ensure(plain, || format!("data would go to {extent:?}"))?;
                check_part(&span, extent)?;
            }
        }
        let (bytes, known) = (bytes_of(&self.buffers), self.buffered);
        ensure(bytes == known, || format!("{bytes}, not {known} bytes are buffered"))?;
        let (bytes, known) = (bytes_of(&self.prealloc), self.prealloc_bytes);
        ensure(bytes == known, || format!("{bytes}, not {known} bytes have their space"))
    }

    fn check_pieces(&self) -> Checked {
        for (span, piece) in self.pieces.iter() {
            whole_sectors("a piece", &span)?;
            ensure(span.end <= FILE_END, || format!("a piece at {span:?}"))?;
            match piece {
                Piece::Hole => (),
                Piece::Inline(bytes, _) => {
                    let most = if self.replayed { SECTOR } else { INLINE_MAX };
                    let small = (1..=most).contains(&(bytes.len() as u64));
                    ensure(small && span == (0..SECTOR), || format!("inline at {span:?}"))?;
                }
                Piece::New { .. } => {
                    let short = len(&span) <= EXTENT_LEN_MAX;
                    ensure(short, || format!("an extent of {} bytes", len(&span)))?;
                }
                Piece::Extent(extent) => {
                    ensure(!extent.prealloc || self.replayed, || {
                        format!("reserved space of others at {span:?}")
                    })?;
                    check_part(&span, extent)?;
                }
            }
        }
        Ok(())
    }

    /// Space that this transaction has allocated is in one place.
    fn check_space(&self) -> Checked {
        let ahead = self.ahead.iter().chain(&self.dropped).map(|range| (range.start, range.len));
        let own = self.prealloc.iter().filter_map(|(span, space)| match space {
            Prealloc::Own(bytenr) => Some((*bytenr, len(&span))),
            Prealloc::Part(_) => None,
        });
        let new = self.pieces.iter().filter_map(|(span, piece)| match piece {
            Piece::New { bytenr, .. } => Some((*bytenr, len(&span))),
            _ => None,
        });
        let shared = self.new_shared().into_iter().map(|it| (it.range.start, it.range.len));
        let mut all: Vec<(u64, u64)> = ahead.chain(own).chain(new).chain(shared).collect();
        all.sort_unstable();
        for pair in all.windows(2) {
            let [(start, len), (next, _)] = *pair else { continue };
            ensure(start + len <= next, || format!("{start}+{len} and {next} are one space"))?;
        }
        all.iter().try_for_each(|(at, len)| whole_sectors("space", &(*at..at + len)))
    }

    /// The new extents that more than one piece may refer to, each once.
    fn new_shared(&self) -> Vec<&SharedExtent> {
        let mut found: Vec<&Arc<SharedExtent>> = Vec::new();
        for (_, piece) in self.pieces.iter() {
            if let Piece::Extent(Extent { shared: Some(shared), .. }) = piece
                && shared.origin == Origin::New
            {
                found.push(shared);
            }
        }
        found.sort_by_key(|shared| Arc::as_ptr(shared));
        found.dedup_by(|a, b| Arc::ptr_eq(a, b));
        found.into_iter().map(Arc::as_ref).collect()
    }

    /// There are checksums of exactly what this layer has to bring them for.
    fn check_digests(&self, digest: Option<usize>) -> Checked {
        let mut have = Vec::new();
        for (span, digests) in self.digests.iter() {
            whole_sectors("checksums", &span)?;
            let bytes = (len(&span) / SECTOR) as usize * digests.size;
            let fits = digests.bytes.len() == bytes && digest == Some(digests.size);
            ensure(fits, || format!("{} bytes of checksums at {span:?}", digests.bytes.len()))?;
            have.push(span);
        }
        let mut want = Vec::new();
        for (span, piece) in self.pieces.iter() {
            match piece {
                Piece::New { bytenr, prealloc: false } => want.push(*bytenr..bytenr + len(&span)),
                Piece::Extent(extent) if extent.written && extent.shared.is_none() => {
                    want.push(extent.addresses(len(&span)));
                }
                _ => (),
            }
        }
        let (have, want) = (joined(have), joined(want));
        let same = if digest.is_some() { have == want } else { have.is_empty() };
        ensure(same, || format!("checksums of {have:?}, and data at {want:?}"))
    }
}

/// A piece of an extent is inside of it, and of its data where it shares them.
fn check_part(span: &Span, extent: &Extent) -> Checked {
    let inside = extent.offset.checked_add(len(span)).is_some_and(|end| end <= extent.ram_len);
    ensure(inside, || format!("{span:?} is more than {extent:?} has"))?;
    let Some(shared) = &extent.shared else { return Ok(()) };
    let (at, all) = (extent.read_from(len(span)), &shared.range);
    let inside = all.start <= at.start && at.end <= all.start + all.len;
    ensure(inside, || format!("{span:?} shares more than {all:?}: {extent:?}"))
}
