//! What a range of a file can hold in a layer: each value can be cut together with its range.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use buttress_ondisk::SECTOR;

use super::ranges::{RangeMap, Span, Split, len};
use crate::space::Range;

/// Buffered bytes of whole sectors.
#[derive(Clone, Debug)]
pub(super) struct Buffer(pub Vec<u8>);

impl Split for Buffer {
    fn split_off(&mut self, skip: u64) -> Buffer {
        Buffer(self.0.split_off((skip as usize).min(self.0.len())))
    }
}

/// Checksums of consecutive sectors, back to back.
#[derive(Clone, Debug)]
pub(super) struct Digests {
    pub bytes: Vec<u8>,
    /// Bytes of one checksum.
    pub size: usize,
}

impl Split for Digests {
    fn split_off(&mut self, skip: u64) -> Digests {
        let at = (skip / SECTOR) as usize * self.size;
        Digests { bytes: self.bytes.split_off(at.min(self.bytes.len())), size: self.size }
    }
}

/// New data to which more than one piece may refer, in one file or in several.
#[derive(Debug)]
pub(super) struct SharedExtent {
    /// Where the data are: a whole extent, or what was written of it.
    pub range: Range,
    /// By address; nothing where it has no checksums. Only an extent that a log brings may have them in parts.
    pub digests: RangeMap<Digests>,
    /// Where the data are from.
    pub origin: Origin,
    /// The tree that has allocated it, once another one may refer to it, too.
    maker: OnceLock<u64>,
    emitted: AtomicBool,
}

/// Which transaction a shared extent is from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    /// Allocated and written by this one.
    New,
    /// Written by this one, to space that its file had before.
    Written,
    /// Allocated or written by the committing one, which keeps it.
    Committing,
}

impl RangeMap<Digests> {
    /// The checksums of all sectors of `span`, or `None` when some have none.
    pub fn all_of(&self, span: &Span) -> Option<Vec<u8>> {
        let mut all = Vec::new();
        let mut pos = span.start;
        while pos < span.end {
            let (found, digests) = self.at(pos)?;
            let end = found.end.min(span.end);
            let sector = |at: u64| ((at - found.start) / SECTOR) as usize * digests.size;
            all.extend_from_slice(digests.bytes.get(sector(pos)..sector(end))?);
            pos = end;
        }
        Some(all)
    }
}

impl SharedExtent {
    /// An extent that nobody has emitted yet; `digests` are those of all its sectors, or none.
    pub fn of(range: Range, digests: Vec<u8>, origin: Origin) -> SharedExtent {
        let mut parts = RangeMap::default();
        let size = digests.len() / ((range.len / SECTOR) as usize).max(1);
        if size > 0 {
            parts.insert(range.start..range.end(), Digests { bytes: digests, size });
        }
        SharedExtent::of_parts(range, parts, origin)
    }

    /// The same, with checksums of some of its sectors.
    pub fn of_parts(range: Range, digests: RangeMap<Digests>, origin: Origin) -> SharedExtent {
        let (maker, emitted) = (OnceLock::new(), AtomicBool::new(false));
        SharedExtent { range, digests, origin, maker, emitted }
    }

    /// Tree `tree` refers to it, and another one is going to: who does so first has allocated it.
    pub fn made_by(&self, tree: u64) {
        self.maker.get_or_init(|| tree);
    }

    /// The tree that has allocated it, where that may be another one than refers to it.
    pub fn maker(&self) -> Option<u64> {
        self.maker.get().copied()
    }

    /// Whether the caller is the one who says that the extent, or what is in it, is new: the first who asks.
    pub fn introduces(&self) -> bool {
        self.origin != Origin::Committing && !self.emitted.swap(true, Ordering::AcqRel)
    }
}

/// A piece of a data extent that is not this piece's own.
#[derive(Clone, Debug)]
pub(super) struct Extent {
    /// Logical address of the whole extent.
    pub bytenr: u64,
    /// Bytes of the whole extent on the disk.
    pub disk_len: u64,
    /// Bytes of file content that the whole extent holds.
    pub ram_len: u64,
    /// Where in that content the piece starts.
    pub offset: u64,
    /// 0 none, 1 zlib, 2 lzo, 3 zstd.
    pub compression: u8,
    /// Reads as zeros.
    pub prealloc: bool,
    /// This layer has written it to space that the file had: its checksums are in the layer.
    pub written: bool,
    /// Of data that the last commit does not know.
    pub shared: Option<Arc<SharedExtent>>,
}

impl Extent {
    /// The addresses of a piece of `len` bytes.
    pub fn addresses(&self, len: u64) -> Span {
        let start = self.bytenr.saturating_add(self.offset);
        start..start.saturating_add(len)
    }

    /// The addresses that reading a piece of `len` bytes reads: of a compressed extent, all of it.
    pub fn read_from(&self, len: u64) -> Span {
        match self.compression {
            0 => self.addresses(len),
            _ => self.bytenr..self.bytenr.saturating_add(self.disk_len),
        }
    }
}

/// A small file as its item holds it, where that is not its content as it is.
#[derive(Clone, Debug)]
pub(super) struct Packed {
    /// 1 zlib, 2 lzo, 3 zstd.
    pub compression: u8,
    pub bytes: Vec<u8>,
}

/// Space that a file has reserved. To everybody else it is zeros, so that data may be written to it before the commit that
/// says so.
#[derive(Clone, Debug)]
pub(super) enum Prealloc {
    /// An extent of this layer, exactly as long as the range.
    Own(u64),
    /// A piece of an older extent that only this file refers to.
    Part(Extent),
}

impl Prealloc {
    /// The address of its start.
    pub fn bytenr(&self) -> u64 {
        match self {
            Prealloc::Own(bytenr) => *bytenr,
            Prealloc::Part(extent) => extent.addresses(0).start,
        }
    }
}

impl Split for Prealloc {
    fn split_off(&mut self, skip: u64) -> Prealloc {
        match self {
            Prealloc::Own(bytenr) => Prealloc::Own(bytenr.saturating_add(skip)),
            Prealloc::Part(extent) => {
                let offset = extent.offset.saturating_add(skip);
                Prealloc::Part(Extent { offset, ..extent.clone() })
            }
        }
    }
}

/// What a range of the file holds now, in place of what lower layers say.
#[derive(Clone, Debug)]
pub(super) enum Piece {
    /// Nothing: zeros.
    Hole,
    /// The whole file, kept in the item: at most a sector. One that a log brings may be compressed.
    Inline(Arc<[u8]>, Option<Arc<Packed>>),
    /// An extent of its own, exactly as long as the piece, allocated in this transaction. It can be cut anywhere, because
    /// no item names it yet.
    New {
        /// Logical address.
        bytenr: u64,
        /// Reads as zeros.
        prealloc: bool,
    },
    /// A piece of an extent that others may refer to.
    Extent(Extent),
}

impl Split for Piece {
    fn split_off(&mut self, skip: u64) -> Piece {
        match self {
            Piece::Hole | Piece::Inline(..) => Piece::Hole,
            Piece::New { bytenr, prealloc } => {
                Piece::New { bytenr: bytenr.saturating_add(skip), prealloc: *prealloc }
            }
            Piece::Extent(extent) => {
                let offset = extent.offset.saturating_add(skip);
                Piece::Extent(Extent { offset, ..extent.clone() })
            }
        }
    }
}

impl Piece {
    /// What it adds to the inode's `nbytes` when it covers `span`.
    pub fn nbytes(&self, span: &Span) -> u64 {
        match self {
            Piece::Hole => 0,
            Piece::Inline(bytes, _) => bytes.len() as u64,
            Piece::New { .. } | Piece::Extent(_) => len(span),
        }
    }
}
