//! What has changed in a file and is not in its tree yet: the states that data are in, and what always holds of them.
//!
//! A sector of the file that a layer has changed is in exactly one of two maps:
//!
//! - `buffers`: written, and not on the disk yet (delayed allocation). All of the sector's bytes are there.
//! - `pieces`: a hole, an extent, or (once the layer is prepared) the whole content of a small file.
//!
//! Three more say what belongs to them:
//!
//! - `prealloc`: for a part of `buffers`, the space that the file has reserved for it. It goes there when it is flushed. All
//!   other buffered sectors are promised space, which is allocated then.
//! - `digests`, by address: the checksums of exactly those sectors that `pieces` has data for which are in no checksum
//!   tree and in no shared extent: `Piece::New` with data, and `Extent::written`. A file without checksums has none.
//! - `edges`: only of a prepared layer; what [`FileChanges::emit`] has to know of the old extents.
//!
//! Space that this transaction has allocated is in exactly one place, so that it is neither lost nor given back twice:
//! behind a `Piece::New`, a `Prealloc::Own` or a shared extent that is new; `ahead` of a sequential writer; or `dropped`: not
//! used any more, and given back by [`prepare()`](super::prepare::prepare). It is not given back before, as somebody who has looked it up
//! may be reading it until the freeze.
//!
//! Three numbers are kept beside the maps: `buffered`, `prealloc_bytes` and `mapped`. A prepared layer has no buffers and
//! nothing to give back, and its `mapped` is 0, as the inode's `nbytes` counts it: it is `settled`.
//!
//! Once a position is in one of the two maps it stays in one of them, unless nothing lies below: what is `replaced` relies on that.
//!
//! [`FileChanges::check`] holds a layer against all of this; the tests call it after each step.

use std::sync::{Arc, OnceLock};

use buttress_ondisk::{EXTENT_LEN_MAX, SECTOR};
use parking_lot::Mutex;

use super::log::Unlogged;
use super::piece::{Buffer, Digests, Extent, Origin, Piece, Prealloc, SharedExtent};
use super::ranges::{RangeMap, Span, len};
use super::read::Cache;
use super::replaced::Replaced;
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

/// The pending changes of one file's data in one transaction. The module says what always holds.
#[derive(Debug, Default)]
pub struct FileChanges {
    /// Data that are not on the disk yet, in whole sectors. Shares no position with `pieces`.
    pub(super) buffers: RangeMap<Buffer>,
    /// What else has changed, in whole sectors.
    pub(super) pieces: RangeMap<Piece>,
    /// By address, the checksums of data that `pieces` has and no checksum tree or shared extent knows.
    pub(super) digests: RangeMap<Digests>,
    /// Reserved space that parts of `buffers` will be written to. All its positions are in `buffers`.
    pub(super) prealloc: RangeMap<Prealloc>,
    /// Bytes of `buffers`.
    pub(super) buffered: u64,
    /// Bytes of `prealloc`.
    pub(super) prealloc_bytes: u64,
    /// The sum of [`Piece::nbytes`]; 0 once the inode counts it.
    pub(super) mapped: u64,
    /// The inode's `nbytes` counts all of it, and nothing that it replaces: it is prepared.
    pub(super) settled: bool,
    /// Something may lie below.
    pub(super) over: bool,
    /// What is known of that, once there is anything to know.
    pub(super) replaced: Mutex<Option<Box<Replaced>>>,
    /// Space allocated ahead of a sequential writer.
    pub(super) ahead: Option<Range>,
    /// Where the next write of a sequential writer would start, and the bytes it has written so far.
    pub(super) stream: (u64, u64),
    /// Space that this transaction has allocated and does not use any more.
    pub(super) dropped: Vec<Range>,
    /// By the start of a changed region, the start of the old extent that reaches into it from before; in order.
    pub(super) edges: Vec<(u64, u64)>,
    /// Replay of a log has put pieces here that operations do not: reserved space and compressed data as the log has them. The
    /// layer is committed before any operation changes it, or never changed.
    pub(super) replayed: bool,
    /// What of `pieces` the log does not have as it is.
    pub(super) unlogged: Unlogged,
    /// The compressed extent that was read last, if one was.
    pub(super) cache: OnceLock<Arc<Cache>>,
}

impl FileChanges {
    /// Whether any position has changed.
    pub fn has_content(&self) -> bool {
        !self.buffers.is_empty() || !self.pieces.is_empty()
    }

    /// Whether any position has changed that the inode's `nbytes` does not take into account yet.
    pub fn is_unsettled(&self) -> bool {
        !self.settled && self.has_content()
    }

    /// Whether nothing has changed.
    pub fn is_empty(&self) -> bool {
        self.buffers.is_empty()
            && self.pieces.is_empty()
            && self.dropped.is_empty()
            && self.ahead.is_none()
    }

    /// The next read finds in `cache` what the last one has left there, unless there is another cache already.
    pub fn keep(&self, cache: &Arc<Cache>) {
        let _another_one = self.cache.set(cache.clone());
    }

    /// Bytes of buffered data that need space on the disk when they are written.
    pub fn dirty_bytes(&self) -> u64 {
        self.buffered.saturating_sub(self.prealloc_bytes)
    }

    /// All bytes of buffered data.
    pub fn buffered_bytes(&self) -> u64 {
        self.buffered
    }

    /// How much work it is to prepare the layer, in bytes that are written: a piece that is written already takes a look at the tree.
    pub fn work_to_place(&self) -> u64 {
        const LOOK: u64 = 512;
        self.buffered.saturating_add(self.pieces.count() as u64 * LOOK)
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
        self.dropped.drain(..).try_for_each(|range| core.log.release(&core.space, range))?;
        self.ahead.take().map_or(Ok(()), |range| core.space.give_back(range))
    }

    /// Where what this layer holds in `span` starts: at least the last `count` places.
    pub fn last_starts(&self, span: &Span, count: usize) -> Vec<u64> {
        let pieces = self.pieces.last_starts(span).take(count);
        pieces.chain(self.buffers.last_starts(span).take(count)).collect()
    }

    /// Removes what this layer holds of `span`, so that lower layers show again.
    pub(super) fn cut(&mut self, span: &Span) {
        self.unlogged.note(span);
        for (span, _) in self.buffers.cut(span) {
            self.buffered -= len(&span);
        }
        for (span, space) in self.prealloc.cut(span) {
            self.prealloc_bytes -= len(&span);
            if let Prealloc::Own(start) = space {
                self.dropped.push(Range { start, len: len(&span) });
            }
        }
        for (span, piece) in self.pieces.cut(span) {
            self.mapped = self.mapped.saturating_sub(piece.nbytes(&span));
            self.let_go(&span, piece);
        }
    }

    /// Takes the reserved space of this layer out of `span`: the caller puts something in its place.
    pub(super) fn take_prealloc(&mut self, span: &Span) {
        self.unlogged.note(span);
        for (span, _) in self.prealloc.cut(span) {
            self.prealloc_bytes -= len(&span);
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
            Piece::Hole | Piece::Inline(..) => (),
            Piece::New { bytenr, .. } => {
                let range = Range { start: bytenr, len: len(span) };
                self.digests.cut(&(bytenr..bytenr.saturating_add(range.len)));
                self.dropped.push(range);
            }
            Piece::Extent(extent) if extent.written && extent.shared.is_none() => {
                self.digests.cut(&extent.addresses(len(span)));
            }
            Piece::Extent(extent) => {
                // Exactly one of those who let the extent go at the same time gets it.
                if let Some(shared) = extent.shared.and_then(Arc::into_inner)
                    && shared.origin == Origin::New
                {
                    self.dropped.push(shared.range);
                }
            }
        }
    }

    /// Puts `piece` at `span`, in place of what this layer held there.
    pub(super) fn put(&mut self, span: Span, piece: Piece) {
        self.note_covered(&span);
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
        self.note_covered(&span);
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
    pub(super) fn put_buffer_over_prealloc(
        &mut self,
        start: u64,
        bytes: Vec<u8>,
        prealloc: Vec<(Span, Prealloc)>,
    ) {
        for (span, _) in &prealloc {
            self.take_prealloc(span);
        }
        self.put_buffer(start, bytes);
        for (span, space) in prealloc {
            self.prealloc_bytes += len(&span);
            self.prealloc.insert(span, space);
        }
    }

    /// Buffers whole sectors at `start`.
    pub(super) fn put_buffer(&mut self, start: u64, bytes: Vec<u8>) {
        let span = start..start + bytes.len() as u64;
        self.note_covered(&span);
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
        self.digests.all_of(span)
    }

    /// Turns the new data inside `span` into shared ones, so that others can refer to them.
    pub(super) fn make_shared(&mut self, span: &Span) {
        self.unlogged.note(span);
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
