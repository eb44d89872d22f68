//! What a layer covers of the content below it: `st_blocks` leaves it out before the commit counts it.
//!
//! Whatever changes a layer notes the positions that it did not cover before, and who asks first looks once at what is below them. That
//! stays right for as long as the layer lives: what it covers is covered until it is dropped, and a commit below moves content without making
//! it more or less, but for a small file that it puts into an item, which is a sector before and rounds up to one after.

use super::changes::FileChanges;
use super::layers::{Found, Layers, Segments};
use super::ranges::{RangeMap, Span, Split, len};
use crate::error::Result;

/// Parts of a file that one question looks at below a layer: the next one goes on.
const LOOKS_MAX: usize = 128;
/// Regions that a layer knows it covers, and parts that nobody has looked at: with more of either it knows no more of them.
const REGIONS_MAX: usize = 1024;
/// A layer of so few ranges that it is asked what it covers, when that was lost.
const RANGES_FEW: usize = 256;

impl Split for () {
    fn split_off(&mut self, _skip: u64) {}
}

/// What is known of the content that a layer covers.
#[derive(Debug, Default)]
pub(super) struct Replaced {
    /// What the layer covers, neighbours joined.
    covered: RangeMap<()>,
    /// The parts of that below which nobody has looked.
    rest: Vec<Span>,
    /// Bytes of content below the other parts.
    bytes: u64,
    /// What is covered since is not known.
    lost: bool,
}

impl Replaced {
    /// The layer covers `span`.
    fn note(&mut self, span: &Span) {
        let known = self.covered.at(span.start).is_some_and(|(at, ())| at.end >= span.end);
        if self.lost || known {
            return;
        }
        let before = self.covered.at(span.start.saturating_sub(1));
        let start = before.map_or(span.start, |(at, ())| at.start.min(span.start));
        let after = self.covered.at(span.end);
        let end = after.map_or(span.end, |(at, ())| at.end);
        let mut pos = span.start;
        for (at, ()) in self.covered.cut(&(start..end)) {
            self.leave(pos..at.start.min(span.end));
            pos = pos.max(at.end);
        }
        self.leave(pos..span.end);
        self.covered.insert(start..end, ());
        if self.covered.count() > REGIONS_MAX || self.rest.len() > REGIONS_MAX {
            *self = Replaced { bytes: self.bytes, lost: true, ..Replaced::default() };
        }
    }

    /// A part to be looked at.
    fn leave(&mut self, part: Span) {
        if part.start >= part.end {
            return;
        }
        match self.rest.last_mut() {
            Some(last) if last.end == part.start => last.end = part.end,
            Some(last) if last.start == part.end => last.start = part.start,
            _ => self.rest.push(part),
        }
    }

    /// Looks below some of what is left. What fails is left.
    fn look(&mut self, layers: Layers<'_>) -> Result<()> {
        self.rest.retain(|part| part.start < part.end);
        if self.rest.is_empty() {
            return Ok(());
        }
        self.rest.sort_unstable_by_key(|part| part.start);
        let nothing = FileChanges::default();
        let (below, layers) =
            (layers.frozen.unwrap_or(&nothing), Layers { frozen: None, ..layers });
        let mut segments = Segments::new(below, layers, 0..0);
        let mut looks = 0;
        for part in &mut self.rest {
            segments.go_to(part);
            while let Some((span, found)) = segments.next()? {
                self.bytes = self.bytes.saturating_add(content(&found, &span));
                part.start = span.end;
                looks += 1;
                if looks == LOOKS_MAX {
                    return Ok(());
                }
            }
        }
        self.rest.clear();
        Ok(())
    }

    fn is_whole(&self) -> bool {
        !self.lost && self.rest.iter().all(|part| part.start >= part.end)
    }
}

/// What is found at `span` counts for in `nbytes`.
fn content(found: &Found<'_>, span: &Span) -> u64 {
    match found {
        Found::Hole => 0,
        Found::Inline(bytes) => bytes.len() as u64,
        Found::Bytes(_) | Found::Extent(_) => len(span),
    }
}

impl FileChanges {
    /// To be called before each change, with whether lower layers may hold anything: only what covers something is noted.
    pub fn lies_over(&mut self, anything: bool) {
        self.over |= anything;
    }

    /// The layer is about to hold something at `span`.
    pub(super) fn note_covered(&mut self, span: &Span) {
        if self.over {
            self.replaced.get_mut().get_or_insert_default().note(span);
        }
    }

    /// Bytes of content below this layer that it covers and the inode's `nbytes` counts, too; and whether that is all of them. `layers`: what is below.
    pub fn replaced(&self, layers: Layers<'_>) -> (u64, bool) {
        if !self.is_unsettled() {
            return (0, true);
        }
        let mut known = self.replaced.lock();
        let Some(known) = known.as_deref_mut() else { return (0, true) };
        if known.lost && self.pieces.count() + self.buffers.count() <= RANGES_FEW {
            *known = Replaced::default();
            self.pieces.iter().for_each(|(span, _)| known.note(&span));
            self.buffers.iter().for_each(|(span, _)| known.note(&span));
        }
        let looked = known.look(layers);
        (known.bytes, looked.is_ok() && known.is_whole())
    }
}
