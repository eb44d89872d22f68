//! Buffering: writes of any bytes, in whole sectors.
//!
//! The part of a sector that is not written is read first, and all that may fail is done before anything changes: a write
//! is done or it is not.

use buttress_ondisk::SECTOR;

use super::changes::{FileChanges, round_down};
use super::layers::Layers;
use super::piece::Prealloc;
use super::prealloc::part_of;
use super::ranges::{Span, len, overlap};
use crate::error::Result;
use crate::txn::Core;

/// What there was where a write is to be buffered.
#[derive(Default)]
pub(super) struct Edges {
    /// The first sector, where it is kept in part.
    head: Option<Vec<u8>>,
    /// The last sector, where it is another one and kept in part.
    tail: Option<Vec<u8>>,
    /// Space that the file has reserved there.
    prealloc: Vec<(Span, Prealloc)>,
}

impl FileChanges {
    /// Buffers a write of any bytes.
    pub(super) fn buffer(
        &mut self,
        core: &Core,
        layers: Layers<'_>,
        offset: u64,
        data: &[u8],
    ) -> Result<()> {
        let old = self.old_edges(core, layers, offset, data)?;
        self.buffer_over(&old, offset, data);
        Ok(())
    }

    /// What buffering a write needs of what there is: all of it that may fail.
    pub(super) fn old_edges(
        &self,
        core: &Core,
        layers: Layers<'_>,
        offset: u64,
        data: &[u8],
    ) -> Result<Edges> {
        let Some(last_byte) = data.len().checked_sub(1) else { return Ok(Edges::default()) };
        let end = offset + data.len() as u64;
        let (first, last) = (round_down(offset), round_down(offset + last_byte as u64));
        let partial_last = end < last + SECTOR;
        let head = if offset > first || (partial_last && last == first) {
            self.old_sector(core, layers, first)?
        } else {
            None
        };
        let tail =
            if partial_last && last != first { self.old_sector(core, layers, last)? } else { None };
        let prealloc = self.writable_prealloc(core, layers, &(first..last + SECTOR))?;
        Ok(Edges { head, tail, prealloc })
    }

    /// Buffers a write of any bytes over what its edges held.
    pub(super) fn buffer_over(&mut self, old: &Edges, offset: u64, data: &[u8]) {
        let Some(last_byte) = data.len().checked_sub(1) else { return };
        let end = offset + data.len() as u64;
        let (first, last) = (round_down(offset), round_down(offset + last_byte as u64));
        let mut pos = first;
        while pos < last + SECTOR {
            if let Some((span, buffer)) = self.buffers.at_mut(pos) {
                let part = overlap(&span, &(offset..end));
                let out = &mut buffer.0
                    [(part.start - span.start) as usize..(part.end - span.start) as usize];
                out.copy_from_slice(
                    &data[(part.start - offset) as usize..(part.end - offset) as usize],
                );
                pos = span.end;
                continue;
            }
            let gap = pos..self.buffers.next_start(pos).unwrap_or(u64::MAX).min(last + SECTOR);
            let edges = [(first, &old.head), (last, &old.tail)];
            let bytes = fresh_buffer(&gap, edges, offset, data);
            let inside = |(at, _): &&(Span, Prealloc)| at.start < gap.end && gap.start < at.end;
            let prealloc = old.prealloc.iter().filter(inside);
            let prealloc = prealloc.map(|(at, space)| part_of(at, space, &gap)).collect();
            self.put_buffer_over_prealloc(gap.start, bytes, prealloc);
            pos = gap.end;
        }
    }

    /// The content of a sector before it is partly overwritten; `None` when it is buffered, or behind the end of the file.
    fn old_sector(&self, core: &Core, layers: Layers<'_>, start: u64) -> Result<Option<Vec<u8>>> {
        if start >= layers.size || self.buffers.at(start).is_some() {
            return Ok(None);
        }
        self.sector(core, layers, start).map(Some)
    }
}

/// What a gap between buffers holds after a write: old content of the partly written sectors, and the data.
fn fresh_buffer(
    gap: &Span,
    old: [(u64, &Option<Vec<u8>>); 2],
    offset: u64,
    data: &[u8],
) -> Vec<u8> {
    let mut bytes = vec![0; len(gap) as usize];
    for (start, content) in old {
        if let (true, Some(content)) = (gap.contains(&start), content) {
            let at = (start - gap.start) as usize;
            bytes[at..at + content.len()].copy_from_slice(content);
        }
    }
    let part = overlap(gap, &(offset..offset + data.len() as u64));
    if part.start < part.end {
        bytes[(part.start - gap.start) as usize..(part.end - gap.start) as usize]
            .copy_from_slice(&data[(part.start - offset) as usize..(part.end - offset) as usize]);
    }
    bytes
}
