//! Space that a file has reserved (`fallocate`), and when data may be written there: what Linux asks in
//! `can_nocow_extent`.
//!
//! Invariant: nobody but this file refers to it, no snapshot of the file knows it, and it reads as zeros until a commit
//! says otherwise. So data in it are not seen after a crash, whatever of them got there.

use buttress_ondisk::{Key, SECTOR, kind};

use super::changes::{FileChanges, round_down, round_up};
use super::layers::{Found, Layer, Layers, Mapped, Segments};
use super::piece::{Extent, Prealloc};
use super::ranges::{Span, Split, len, overlap};
use crate::error::Result;
use crate::txn::Core;

impl FileChanges {
    /// Space in `span` that the file has reserved and that may be written to: nobody but this file refers to it, no snapshot
    /// of the file knows it, and it reads as zeros until a commit says otherwise.
    pub(super) fn writable_prealloc(
        &self,
        core: &Core,
        layers: Layers<'_>,
        span: &Span,
    ) -> Result<Vec<(Span, Prealloc)>> {
        let mut prealloc = Vec::new();
        let Some(last_snapshot) = layers.last_snapshot else { return Ok(prealloc) };
        let mut segments = Segments::new(self, layers, span.clone());
        let mut known: Option<(u64, bool)> = None;
        while let Some((at, found)) = segments.next()? {
            let mapped = match found {
                Found::Extent(mapped) if mapped.prealloc => mapped,
                Found::Bytes(_) => {
                    let kept = self.prealloc.overlapping(&at);
                    prealloc.extend(kept.map(|(kept_at, space)| part_of(&kept_at, space, &at)));
                    continue;
                }
                _ => continue,
            };
            let space = match (mapped.layer, mapped.shared) {
                (_, Some(_)) => continue,
                (Layer::Live(_), None) => {
                    Prealloc::Own(mapped.bytenr.saturating_add(mapped.offset))
                }
                // Of the committing transaction.
                (Layer::Frozen(_), None)
                    if core.txn.running() <= last_snapshot.saturating_add(1) =>
                {
                    continue;
                }
                (Layer::Frozen(_), None) => Prealloc::Part(reserved(&mapped)),
                (Layer::Tree, None) => {
                    let own = match known {
                        Some((bytenr, own)) if bytenr == mapped.bytenr => own,
                        _ => is_own(core, layers, &mapped, at.start, last_snapshot)?,
                    };
                    known = Some((mapped.bytenr, own));
                    if !own {
                        continue;
                    }
                    Prealloc::Part(reserved(&mapped))
                }
            };
            prealloc.push((at, space));
        }
        Ok(prealloc)
    }

    /// The bytes of space that writing `span` would take besides what the file has reserved or
    /// buffered.
    pub fn space_for(&self, core: &Core, layers: Layers<'_>, span: Span) -> Result<u64> {
        let span = round_down(span.start)..round_up(span.end);
        let inline =
            matches!(Segments::new(self, layers, 0..SECTOR).next()?, Some((_, Found::Inline(_))));
        let behind = span.start >= round_up(layers.size);
        let rewritten = behind && (inline || self.has_tail(core, layers)?);
        let prealloc = self.writable_prealloc(core, layers, &span)?;
        let mut fresh = len(&span);
        for (at, _) in &prealloc {
            fresh = fresh.saturating_sub(len(at));
        }
        for (at, _) in self.buffers.overlapping(&span) {
            let at = overlap(&at, &span);
            let in_place: u64 =
                self.prealloc.overlapping(&at).map(|(space, _)| len(&overlap(&space, &at))).sum();
            fresh = fresh.saturating_sub(len(&at).saturating_sub(in_place));
        }
        Ok(fresh + if rewritten { SECTOR } else { 0 })
    }
}

/// The part of reserved space that is in `span`.
pub(super) fn part_of(at: &Span, space: &Prealloc, span: &Span) -> (Span, Prealloc) {
    let part = overlap(at, span);
    let mut space = space.clone();
    let space = match part.start > at.start {
        true => space.split_off(part.start - at.start),
        false => space,
    };
    (part, space)
}

/// Reserved space, as a piece of its extent.
fn reserved(mapped: &Mapped<'_>) -> Extent {
    Extent {
        bytenr: mapped.bytenr,
        disk_len: mapped.disk_len,
        ram_len: mapped.ram_len,
        offset: mapped.offset,
        compression: 0,
        prealloc: true,
        written: false,
        shared: None,
    }
}

/// The same, with data in it.
pub(super) fn written(extent: Extent) -> Extent {
    Extent { prealloc: false, written: true, ..extent }
}

/// Whether an extent of the tree is this file's alone: no other file refers to it, and it is younger than the last snapshot.
fn is_own(
    core: &Core,
    layers: Layers<'_>,
    mapped: &Mapped<'_>,
    pos: u64,
    last_snapshot: u64,
) -> Result<bool> {
    if mapped.compression != 0 {
        return Ok(false);
    }
    let key = Key::new(mapped.bytenr, kind::EXTENT_ITEM, mapped.disk_len);
    let Some(item) = core.extent_view().get(&key)? else { return Ok(false) };
    let extent = crate::refs::Extent::read(&key, item.data())?;
    let offset = pos.wrapping_sub(mapped.offset);
    Ok(extent.generation > last_snapshot
        && extent.is_only_of(layers.view.owner(), layers.ino, offset))
}
