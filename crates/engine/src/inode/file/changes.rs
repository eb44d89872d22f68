//! What has changed in a file and is not in its tree yet.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use buttress_ondisk::{EXTENT_LEN_MAX, SECTOR};

use super::ranges::{RangeMap, Span, Split, len};
use super::read::Cache;
use crate::error::Result;
use crate::space::Range;
use crate::txn::Core;

/// Where files end at the latest: no byte has this offset or a larger one.
pub const FILE_END: u64 = 1 << 63;
/// Bytes of a buffered run beyond which it is not extended.
const BUFFER_RUN_MAX: usize = 1 << 20;
/// Bytes of checksums beyond which a run of them is not extended: cutting one copies the half of it.
const DIGEST_RUN_MAX: usize = 16 << 10;

/// The start of the sector that holds `pos`.
pub(super) fn round_down(pos: u64) -> u64 {
    pos / SECTOR * SECTOR
}

/// The end of the sector that `pos` ends in.
pub(super) fn round_up(pos: u64) -> u64 {
    pos.div_ceil(SECTOR).saturating_mul(SECTOR)
}

/// The most bytes of space that changing `len` bytes at `offset` may take: whole sectors, and one for a file that leaves
/// its item. For reservations.
pub fn space_needed(offset: u64, len: u64) -> u64 {
    round_up(offset.saturating_add(len)).saturating_sub(round_down(offset)).saturating_add(SECTOR)
}

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
    /// Empty when it has no checksums.
    pub digests: Vec<u8>,
    /// Where the data are from.
    pub origin: Origin,
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

impl SharedExtent {
    /// An extent that nobody has emitted yet.
    pub fn of(range: Range, digests: Vec<u8>, origin: Origin) -> SharedExtent {
        SharedExtent { range, digests, origin, emitted: AtomicBool::new(false) }
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
}

/// Space that a file has reserved. To everybody else it is zeros, so that data may be written to it before the commit that
/// says so.
#[derive(Clone, Debug)]
pub(super) enum Home {
    /// An extent of this layer, exactly as long as the range.
    Own(u64),
    /// A piece of an older extent that only this file refers to.
    Part(Extent),
}

impl Home {
    /// The address of its start.
    pub fn bytenr(&self) -> u64 {
        match self {
            Home::Own(bytenr) => *bytenr,
            Home::Part(extent) => extent.addresses(0).start,
        }
    }
}

impl Split for Home {
    fn split_off(&mut self, skip: u64) -> Home {
        match self {
            Home::Own(bytenr) => Home::Own(bytenr.saturating_add(skip)),
            Home::Part(extent) => {
                let offset = extent.offset.saturating_add(skip);
                Home::Part(Extent { offset, ..extent.clone() })
            }
        }
    }
}

/// What a range of the file holds now, in place of what lower layers say.
#[derive(Clone, Debug)]
pub(super) enum Piece {
    /// Nothing: zeros.
    Hole,
    /// The whole file, kept in the item: at most a sector.
    Inline(Arc<[u8]>),
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
            Piece::Hole | Piece::Inline(_) => Piece::Hole,
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
            Piece::Inline(bytes) => bytes.len() as u64,
            Piece::New { .. } | Piece::Extent(_) => len(span),
        }
    }
}

/// The pending changes of one file's data in one transaction. See the module's essay.
#[derive(Debug, Default)]
pub struct FileChanges {
    /// Written data that has no place on the disk yet. Shares no position with `pieces`.
    pub(super) buffers: RangeMap<Buffer>,
    /// What else has changed. All ranges are whole sectors.
    pub(super) pieces: RangeMap<Piece>,
    /// Checksums of the data behind `Piece::New`, by address.
    pub(super) digests: RangeMap<Digests>,
    /// Bytes in `buffers`.
    pub(super) buffered: u64,
    /// Space that the file has for some of `buffers`: they go there.
    pub(super) homes: RangeMap<Home>,
    /// Bytes of `homes`.
    pub(super) housed: u64,
    /// The sum of `Piece::nbytes`, until it is counted in the inode.
    pub(super) mapped: u64,
    /// Allocated ahead of a sequential writer.
    pub(super) ahead: Option<Range>,
    /// Where the next write of a sequential writer would start, and the bytes it has written so far.
    pub(super) stream: (u64, u64),
    /// Space that this transaction allocated and does not use any more. Somebody may be reading it until the freeze.
    pub(super) loose: Vec<Range>,
    /// Prepared layers: by the start of a changed region, the start of the old extent that reaches into it from before.
    pub(super) edges: Vec<(u64, u64)>,
    /// The compressed extent that was read last, if one was.
    pub(super) cache: OnceLock<Arc<Cache>>,
}

impl FileChanges {
    /// Whether nothing has changed.
    pub fn is_empty(&self) -> bool {
        self.buffers.is_empty()
            && self.pieces.is_empty()
            && self.loose.is_empty()
            && self.ahead.is_none()
    }

    /// The next read finds in `cache` what the last one has left there, unless there is another cache already.
    pub fn keep(&self, cache: &Arc<Cache>) {
        let _another_one = self.cache.set(cache.clone());
    }

    /// Bytes of buffered data that need space on the disk when they are written.
    pub fn dirty_bytes(&self) -> u64 {
        self.buffered.saturating_sub(self.housed)
    }

    /// Bytes of content in this layer that the inode's `nbytes` does not count yet: for `st_blocks`.
    pub fn unsettled_bytes(&self) -> u64 {
        self.buffered.saturating_add(self.mapped)
    }

    /// Forgets everything, and gives back the space it took. For a file that is going away and that nobody has open.
    pub fn abandon(&mut self, core: &Core) -> Result<()> {
        self.cut(&(0..FILE_END));
        let done = self.give_back(core);
        *self = FileChanges::default();
        done
    }

    /// Gives back the space that was allocated and is not used. What was written may still be read by an operation that
    /// looked it up before: it waits for the next freeze.
    pub(super) fn give_back(&mut self, core: &Core) -> Result<()> {
        self.loose.drain(..).try_for_each(|range| core.space.release(range))?;
        self.ahead.take().map_or(Ok(()), |range| core.space.give_back(range))
    }

    /// Where what this layer holds in `span` starts: at least the last `count` places.
    pub fn last_starts(&self, span: &Span, count: usize) -> Vec<u64> {
        let pieces = self.pieces.last_starts(span).take(count);
        pieces.chain(self.buffers.last_starts(span).take(count)).collect()
    }

    /// Removes what this layer holds of `span`, so that lower layers show again.
    pub(super) fn cut(&mut self, span: &Span) {
        for (span, _) in self.buffers.cut(span) {
            self.buffered -= len(&span);
        }
        for (span, home) in self.homes.cut(span) {
            self.housed -= len(&span);
            if let Home::Own(start) = home {
                self.loose.push(Range { start, len: len(&span) });
            }
        }
        for (span, piece) in self.pieces.cut(span) {
            self.mapped = self.mapped.saturating_sub(piece.nbytes(&span));
            self.let_go(&span, piece);
        }
    }

    /// Takes the reserved space of this layer out of `span`: the caller puts something in its place.
    pub(super) fn take_homes(&mut self, span: &Span) {
        for (span, _) in self.homes.cut(span) {
            self.housed -= len(&span);
        }
        for (span, piece) in self.pieces.cut(span) {
            match piece {
                Piece::New { prealloc: true, .. } => {
                    self.mapped = self.mapped.saturating_sub(len(&span));
                }
                other => self.pieces.insert(span, other),
            }
        }
    }

    fn let_go(&mut self, span: &Span, piece: Piece) {
        match piece {
            Piece::Hole | Piece::Inline(_) => (),
            Piece::New { bytenr, .. } => {
                let range = Range { start: bytenr, len: len(span) };
                self.digests.cut(&(bytenr..bytenr.saturating_add(range.len)));
                self.loose.push(range);
            }
            Piece::Extent(extent) if extent.written && extent.shared.is_none() => {
                self.digests.cut(&extent.addresses(len(span)));
            }
            Piece::Extent(extent) => {
                // Exactly one of those who let the extent go at the same time gets it.
                if let Some(shared) = extent.shared.and_then(Arc::into_inner)
                    && shared.origin == Origin::New
                {
                    self.loose.push(shared.range);
                }
            }
        }
    }

    /// Puts `piece` at `span`, in place of what this layer held there.
    pub(super) fn put(&mut self, span: Span, piece: Piece) {
        self.cut(&span);
        self.mapped += piece.nbytes(&span);
        self.pieces.insert(span, piece);
    }

    /// Puts a new extent at `span`; with `group`, which says whether two addresses are in the same block group, it may
    /// continue the one before.
    pub(super) fn put_new(
        &mut self,
        span: Span,
        address: u64,
        preallocated: bool,
        group: Option<&dyn Fn(u64, u64) -> bool>,
    ) {
        self.cut(&span);
        let more = len(&span);
        let joined = group.is_some_and(|same_group| {
            self.pieces.extend(&span, |before, piece| match piece {
                Piece::New { bytenr, prealloc } => {
                    *prealloc == preallocated
                        && bytenr.checked_add(len(before)) == Some(address)
                        && len(before) + more <= EXTENT_LEN_MAX
                        && same_group(*bytenr, address)
                }
                _ => false,
            })
        });
        self.mapped += more;
        if !joined {
            self.pieces.insert(span, Piece::New { bytenr: address, prealloc: preallocated });
        }
    }

    /// Buffers whole sectors at `start`, of which some have space already.
    pub(super) fn put_buffer_at_home(
        &mut self,
        start: u64,
        bytes: Vec<u8>,
        homes: Vec<(Span, Home)>,
    ) {
        for (span, _) in &homes {
            self.take_homes(span);
        }
        self.put_buffer(start, bytes);
        for (span, home) in homes {
            self.housed += len(&span);
            self.homes.insert(span, home);
        }
    }

    /// Buffers whole sectors at `start`.
    pub(super) fn put_buffer(&mut self, start: u64, bytes: Vec<u8>) {
        let span = start..start + bytes.len() as u64;
        self.cut(&span);
        self.buffered += len(&span);
        let joined = self.buffers.extend(&span, |_, before| {
            let fits = before.0.len() + bytes.len() <= BUFFER_RUN_MAX;
            if fits {
                before.0.extend_from_slice(&bytes);
            }
            fits
        });
        if !joined {
            self.buffers.insert(span, Buffer(bytes));
        }
    }

    /// Remembers the checksums of new data at `bytenr`.
    pub(super) fn put_digests(&mut self, bytenr: u64, sectors: u64, bytes: Vec<u8>, size: usize) {
        let span = bytenr..bytenr.saturating_add(sectors * SECTOR);
        self.digests.cut(&span);
        let joined = self.digests.extend(&span, |_, before| {
            let fits = before.bytes.len() + bytes.len() <= DIGEST_RUN_MAX;
            if fits {
                before.bytes.extend_from_slice(&bytes);
            }
            fits
        });
        if !joined {
            self.digests.insert(span, Digests { bytes, size });
        }
    }

    /// The checksums of all sectors of `span`, or `None` when some have none.
    pub(super) fn digests_of(&self, span: &Span) -> Option<Vec<u8>> {
        let mut all = Vec::new();
        let mut pos = span.start;
        while pos < span.end {
            let (found, digests) = self.digests.at(pos)?;
            let end = found.end.min(span.end);
            let sector = |at: u64| ((at - found.start) / SECTOR) as usize * digests.size;
            all.extend_from_slice(digests.bytes.get(sector(pos)..sector(end))?);
            pos = end;
        }
        Some(all)
    }

    /// Turns the new data inside `span` into shared ones, so that others can refer to them.
    pub(super) fn make_shared(&mut self, span: &Span) {
        for (span, piece) in self.pieces.cut(span) {
            let piece = match piece {
                Piece::New { bytenr, prealloc: false } => self.shared_extent(bytenr, len(&span)),
                Piece::Extent(extent) if extent.written && extent.shared.is_none() => {
                    let shared = self.share_data(extent.addresses(len(&span)), Origin::Written);
                    Piece::Extent(Extent { shared: Some(shared), ..extent })
                }
                other => other,
            };
            self.pieces.insert(span, piece);
        }
    }

    fn shared_extent(&mut self, bytenr: u64, len: u64) -> Piece {
        let shared = self.share_data(bytenr..bytenr.saturating_add(len), Origin::New);
        Piece::Extent(Extent {
            bytenr,
            disk_len: len,
            ram_len: len,
            offset: 0,
            compression: 0,
            prealloc: false,
            written: false,
            shared: Some(shared),
        })
    }

    fn share_data(&mut self, addresses: Span, origin: Origin) -> Arc<SharedExtent> {
        let digests = self.digests_of(&addresses).unwrap_or_default();
        self.digests.cut(&addresses);
        let range = Range { start: addresses.start, len: len(&addresses) };
        Arc::new(SharedExtent::of(range, digests, origin))
    }
}
