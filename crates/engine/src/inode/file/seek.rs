//! Where a file has data: `lseek` and listings of extents.

use super::changes::{FILE_END, FileChanges};
use super::layers::{Found, Layers, Segments};
use super::ranges::Span;
use crate::error::{Errno, Error, Result};

/// What to look for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seek {
    /// Data.
    Data,
    /// A hole, preallocated space, or the end of the file.
    Hole,
}

/// A part of a file and where it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// Offset in the file, in bytes.
    pub start: u64,
    /// Bytes of the file.
    pub len: u64,
    /// What is there.
    pub place: Place,
}

/// Where a part of a file is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// In memory only.
    Buffered,
    /// In its item.
    Inline,
    /// In a data extent.
    Extent {
        /// Logical address of the first byte; of the whole extent, when it is compressed.
        bytenr: u64,
        /// Whether it is compressed.
        compressed: bool,
        /// Whether it is preallocated: reads as zeros.
        prealloc: bool,
    },
}

impl FileChanges {
    /// The first data or hole at or after `offset`; `ENXIO` when there is none before the end of the file.
    pub fn seek(&self, layers: Layers<'_>, offset: u64, what: Seek) -> Result<u64> {
        if offset >= layers.size {
            return Err(Error::User(Errno::NXIO));
        }
        let mut segments = Segments::new(self, layers, offset..layers.size.min(FILE_END));
        while let Some((span, found)) = segments.next()? {
            if (what == Seek::Data) == is_data(&found) {
                return Ok(span.start);
            }
        }
        match what {
            Seek::Data => Err(Error::User(Errno::NXIO)),
            Seek::Hole => Ok(layers.size),
        }
    }

    /// Bytes of a range that are in no extent.
    pub fn hole_bytes(&self, layers: Layers<'_>, start: u64, end: u64) -> Result<u64> {
        let mut bytes = 0;
        let mut segments = Segments::new(self, layers, start..end.min(FILE_END));
        while let Some((span, found)) = segments.next()? {
            if matches!(found, Found::Hole) {
                bytes += span.end - span.start;
            }
        }
        Ok(bytes)
    }

    /// What the file has in `start..end`, in order, without holes. Goes past the end of the file for preallocated space.
    pub fn extents(&self, layers: Layers<'_>, start: u64, end: u64) -> Result<Vec<Mapping>> {
        let mut mappings: Vec<Mapping> = Vec::new();
        let mut segments = Segments::new(self, layers, start..end.min(FILE_END));
        while let Some((span, found)) = segments.next()? {
            let Some(next) = mapping(&span, &found) else { continue };
            match mappings.last_mut() {
                Some(last) if continues(last, &next) => last.len += next.len,
                _ => mappings.push(next),
            }
        }
        Ok(mappings)
    }
}

fn is_data(found: &Found<'_>) -> bool {
    match found {
        Found::Hole => false,
        Found::Bytes(_) | Found::Inline(_) => true,
        Found::Extent(mapped) => !mapped.prealloc,
    }
}

fn mapping(span: &Span, found: &Found<'_>) -> Option<Mapping> {
    let place = match found {
        Found::Hole => return None,
        Found::Bytes(_) => Place::Buffered,
        Found::Inline(_) => Place::Inline,
        Found::Extent(mapped) => {
            let compressed = mapped.compression != 0;
            let skip = if compressed { 0 } else { mapped.offset };
            let bytenr = mapped.bytenr.saturating_add(skip);
            Place::Extent { bytenr, compressed, prealloc: mapped.prealloc }
        }
    };
    Some(Mapping { start: span.start, len: span.end - span.start, place })
}

/// Whether two parts are one: next to each other in the file and on the disk.
fn continues(last: &Mapping, next: &Mapping) -> bool {
    if last.start + last.len != next.start {
        return false;
    }
    match (last.place, next.place) {
        (Place::Buffered, Place::Buffered) => true,
        (
            Place::Extent { bytenr: a, compressed: c, prealloc: p },
            Place::Extent { bytenr: b, compressed: d, prealloc: q },
        ) => p == q && c == d && if c { a == b } else { a.checked_add(last.len) == Some(b) },
        _ => false,
    }
}
