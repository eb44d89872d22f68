//! Changing where a file has data: truncating, punching, preallocating, cloning.

use std::sync::Arc;

use buttress_ondisk::SECTOR;
use buttress_ondisk::item::inode_flags;

use super::buffer::Edges;
use super::changes::{FILE_END, FileChanges, round_down, round_up};
use super::layers::{Found, Layer, Layers, Mapped, Segments};
use super::piece::{Extent, Origin, Piece, SharedExtent};
use super::ranges::{Span, len};
use super::write::end_of;
use crate::error::{Errno, Error, Result};
use crate::space::{Need, Range};
use crate::txn::{Core, Op};

/// A range of a file to be shared with another file, or with another place of the same one.
#[derive(Debug)]
pub struct Shared {
    /// Bytes, not counting the rest of the last sector.
    len: u64,
    /// The same of the whole range that this is the first part of.
    whole: u64,
    /// Whether the data has checksums.
    sums: bool,
    /// From the start of the range on, without gaps.
    parts: Vec<(Span, Part)>,
}

impl Shared {
    /// Bytes, not counting the rest of the last sector: fewer than were asked for where those are in many extents.
    pub fn bytes(&self) -> u64 {
        self.len
    }

    /// Bytes on the disk of the extents that it has parts of, at most.
    pub fn disk_bytes(&self) -> u64 {
        let mut extents: Vec<(u64, u64)> = Vec::new();
        for (_, part) in &self.parts {
            if let Part::Extent(extent) = part {
                extents.push((extent.bytenr, extent.disk_len));
            }
        }
        extents.sort_unstable();
        extents.dedup();
        extents.iter().map(|(_, len)| len).sum()
    }

    /// All that is new in it was allocated by tree `tree`, which it is of, or by whom that has it from.
    pub fn made_by(&self, tree: u64) {
        for (_, part) in &self.parts {
            if let Part::Extent(Extent { shared: Some(shared), .. }) = part {
                shared.made_by(tree);
            }
        }
    }

    /// Bytes that are copied, because they have no extent that could be shared.
    pub fn copied(&self) -> u64 {
        let bytes = |(_, part): &(Span, Part)| match part {
            Part::Bytes(bytes) => bytes.len() as u64,
            _ => 0,
        };
        self.parts.iter().map(bytes).sum()
    }
}

/// Zeros for a part of a sector.
struct Zeros {
    at: u64,
    bytes: Vec<u8>,
    /// What there is around them.
    edges: Edges,
}

#[derive(Debug)]
enum Part {
    Hole,
    /// Content that has no extent that could be shared.
    Bytes(Vec<u8>),
    Extent(Extent),
}

impl FileChanges {
    /// Before the size changes to `new_size`.
    pub fn truncate(&mut self, op: &Op<'_>, layers: Layers<'_>, new_size: u64) -> Result<()> {
        end_of(new_size, 0)?;
        if new_size > layers.size {
            self.uninline(layers)?;
            self.zero_tail(op.core, layers)?;
            if !op.core.features.no_holes {
                self.fill_gap(layers, round_up(layers.size)..round_up(new_size))?;
            }
            return Ok(());
        }
        if new_size > 0 {
            self.uninline(layers)?;
            self.zero_partial(op.core, layers, new_size..round_up(new_size))?;
        }
        self.erase(op.core, layers, round_up(new_size)..FILE_END);
        Ok(())
    }

    /// Whether the sectors of `span` are a hole.
    pub fn is_hole(&self, layers: Layers<'_>, span: Span) -> Result<bool> {
        let end = span.end.min(FILE_END);
        let mut segments = Segments::new(self, layers, round_down(span.start)..round_up(end));
        while let Some((_, found)) = segments.next()? {
            if !matches!(found, Found::Hole) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Makes `len` bytes at `offset` a hole. The size stays.
    pub fn punch(&mut self, op: &Op<'_>, layers: Layers<'_>, offset: u64, len: u64) -> Result<()> {
        let end = offset.saturating_add(len).min(FILE_END);
        if offset >= end {
            return Ok(());
        }
        self.uninline(layers)?;
        let (from, to) = (round_up(offset), round_down(end));
        if from > to {
            return self.zero_partial(op.core, layers, offset..end);
        }
        // The rest of the sector that holds the end of the file is no content: it goes too.
        let size = layers.size;
        let to = if end >= size && to < round_up(size) { round_up(size).max(from) } else { to };
        // What may fail comes before anything changes.
        let head = self.zeros(op.core, layers, offset..from)?;
        let tail = self.zeros(op.core, layers, to..end.max(to))?;
        self.put_zeros(head);
        self.put_zeros(tail);
        self.erase(op.core, layers, from..to);
        Ok(())
    }

    /// Makes `len` bytes at `offset` zeros with space behind them.
    pub fn zero_range(
        &mut self,
        op: &Op<'_>,
        layers: Layers<'_>,
        offset: u64,
        len: u64,
        keep_size: bool,
    ) -> Result<()> {
        let end = end_of(offset, len)?;
        self.make_room_behind(op.core, layers, offset, if keep_size { offset } else { end })?;
        // Whole sectors get new space, those at the edges only where they have none. What may fail comes before anything
        // changes.
        let (first, last) = (round_down(offset), round_up(end));
        let (from, to) = (round_up(offset).min(last), round_down(end).max(first));
        let head = self.zeros(op.core, layers, offset..end.min(from))?;
        let behind = to.max(from)..end;
        let tail = self.zeros(op.core, layers, behind)?;
        let mut holes = self.holes(layers, first..from)?;
        holes.extend((from < to).then_some(from..to));
        holes.extend(self.holes(layers, to.max(from)..last)?);
        let places = self.space_for_holes(op, &holes)?;
        self.put_zeros(head);
        self.put_zeros(tail);
        self.put_reserved(op, places);
        Ok(())
    }

    /// Puts space behind `len` bytes at `offset` where there is none: `fallocate`. The caller makes the file larger when
    /// `keep_size` is false, and gives it the flag `PREALLOC`.
    pub fn allocate(
        &mut self,
        op: &Op<'_>,
        layers: Layers<'_>,
        offset: u64,
        len: u64,
        keep_size: bool,
    ) -> Result<()> {
        let end = end_of(offset, len)?;
        self.make_room_behind(op.core, layers, offset, if keep_size { offset } else { end })?;
        let holes = self.holes(layers, round_down(offset)..round_up(end))?;
        let places = self.space_for_holes(op, &holes)?;
        self.put_reserved(op, places);
        Ok(())
    }

    /// Takes space for these holes: parts of them, each with its address.
    fn space_for_holes(&mut self, op: &Op<'_>, holes: &[Span]) -> Result<Vec<(Span, u64)>> {
        reserve_extents(op, holes.len())?;
        let total = holes.iter().map(len).sum();
        let mut ranges = self.take_space(op.core, total, 0)?.into_iter();
        let (mut range, mut places) = (Range { start: 0, len: 0 }, Vec::new());
        for hole in holes {
            let mut pos = hole.start;
            while pos < hole.end {
                if range.len == 0 {
                    range = ranges.next().ok_or(Error::NoSpace)?;
                }
                let take = range.len.min(hole.end - pos);
                places.push((pos..pos + take, range.start));
                range = Range { start: range.start + take, len: range.len - take };
                pos += take;
            }
        }
        Ok(places)
    }

    /// Puts reserved space where it was taken for.
    fn put_reserved(&mut self, op: &Op<'_>, places: Vec<(Span, u64)>) {
        for (span, bytenr) in places {
            op.step("a hole is filled");
            self.put_new(span, bytenr, true, None);
        }
    }

    /// The holes in `span`, neighbours joined.
    fn holes(&self, layers: Layers<'_>, span: Span) -> Result<Vec<Span>> {
        let mut holes: Vec<Span> = Vec::new();
        let mut segments = Segments::new(self, layers, span);
        while let Some((span, found)) = segments.next()? {
            if !matches!(found, Found::Hole) {
                continue;
            }
            match holes.last_mut() {
                Some(last) if last.end == span.start => last.end = span.end,
                _ => holes.push(span),
            }
        }
        Ok(holes)
    }

    /// Zeroes part of one sector, where it holds data.
    fn zero_partial(&mut self, core: &Core, layers: Layers<'_>, span: Span) -> Result<()> {
        let zeros = self.zeros(core, layers, span)?;
        self.put_zeros(zeros);
        Ok(())
    }

    /// What zeroing part of one sector takes, where that holds data: all of it that may fail.
    fn zeros(&self, core: &Core, layers: Layers<'_>, span: Span) -> Result<Option<Zeros>> {
        if span.start >= span.end || span.start >= layers.size {
            return Ok(None);
        }
        let sector = round_down(span.start);
        let found = Segments::new(self, layers, sector..sector + SECTOR).next()?;
        match found {
            None | Some((_, Found::Hole)) => return Ok(None),
            Some((_, Found::Extent(mapped))) if mapped.prealloc => return Ok(None),
            Some(_) => (),
        }
        let (at, bytes) = (span.start, vec![0; len(&span).min(SECTOR) as usize]);
        let edges = self.old_edges(core, layers, at, &bytes)?;
        Ok(Some(Zeros { at, bytes, edges }))
    }

    fn put_zeros(&mut self, zeros: Option<Zeros>) {
        if let Some(Zeros { at, bytes, edges }) = zeros {
            self.buffer_over(&edges, at, &bytes);
        }
    }

    /// Makes whole sectors a hole.
    pub fn erase(&mut self, core: &Core, layers: Layers<'_>, span: Span) {
        if span.start >= span.end {
            return;
        }
        if layers.any() || !core.features.no_holes {
            self.put(span, Piece::Hole);
        } else {
            self.cut(&span);
        }
    }

    // ---- clone ----

    /// Where the first extents in `span` end, of which one operation may replace so many.
    pub fn near(&self, layers: Layers<'_>, span: Span, extents_max: usize) -> Result<u64> {
        let (mut end, mut extents) = (span.start, 0);
        let mut segments = Segments::new(self, layers, span);
        while extents < extents_max
            && let Some((span, found)) = segments.next()?
        {
            end = span.end;
            extents += usize::from(!matches!(found, Found::Hole));
        }
        Ok(end)
    }

    /// The content of `len` bytes at `offset`, to be put elsewhere with [`FileChanges::clone_from`] by the same operation: at
    /// most that of the first `most` bytes, which end with a sector, and of `parts_max` extents.
    /// `offset` is the start of a sector; the range ends with a sector or with the file.
    pub fn share(
        &mut self,
        op: &Op<'_>,
        layers: Layers<'_>,
        size: u64,
        offset: u64,
        (len, most): (u64, u64),
        parts_max: usize,
    ) -> Result<Shared> {
        let end = end_of(offset, len)?;
        let whole = end.is_multiple_of(SECTOR) || end == size;
        if !offset.is_multiple_of(SECTOR) || !whole || end > size {
            return Err(Error::User(Errno::INVAL));
        }
        let mut span = offset..round_up(end).min(offset.saturating_add(most));
        if self.buffers.overlapping(&span).next().is_some() {
            self.flush(op.core, layers, true)?;
        }
        let behind = self.pieces.overlapping(&span).nth(parts_max).map(|(span, _)| span.start);
        span.end = behind.unwrap_or(span.end);
        self.make_shared(&span);
        let (mut parts, mut copied, mut done) = (Vec::new(), 0, offset);
        let mut segments = Segments::new(self, layers, span);
        while parts.len() < parts_max
            && copied < COPIED_MAX
            && let Some((span, found)) = segments.next()?
        {
            let part = match found {
                Found::Hole => Part::Hole,
                Found::Bytes(bytes) => Part::Bytes(bytes.to_vec()),
                Found::Inline(content) => Part::Bytes(inline_part(&content, &span)),
                // Reserved space stays one file's own, so that this file may write to it.
                Found::Extent(mapped) if mapped.prealloc => Part::Hole,
                Found::Extent(mapped) => Part::Extent(extent_of(&mapped, span.end - span.start)),
            };
            if let Part::Bytes(bytes) = &part {
                copied += bytes.len();
            }
            done = span.end;
            parts.push((span.start - offset..span.end - offset, part));
        }
        let sums = layers.sums();
        Ok(Shared { len: done.min(end).saturating_sub(offset), whole: len, sums, parts })
    }

    /// Makes `offset` (the start of a sector) hold what `shared` holds. The caller makes the file larger after. A range
    /// that does not end with a sector must reach the end of this file.
    pub fn clone_from(
        &mut self,
        op: &Op<'_>,
        layers: Layers<'_>,
        size: u64,
        offset: u64,
        shared: Shared,
    ) -> Result<()> {
        let end = end_of(offset, shared.len)?;
        let last = end_of(offset, shared.whole)?;
        let whole = shared.whole.is_multiple_of(SECTOR) || last >= size;
        if !offset.is_multiple_of(SECTOR) || !whole || shared.sums != layers.sums() {
            return Err(Error::User(Errno::INVAL));
        }
        reserve_extents(op, shared.parts.len())?;
        self.make_room(op.core, layers, offset, end)?;
        for (span, part) in shared.parts {
            op.step("a part is cloned");
            let span = offset + span.start..offset + span.end;
            match part {
                Part::Hole => self.erase(op.core, layers, span),
                Part::Bytes(bytes) => self.put_buffer(span.start, bytes),
                Part::Extent(extent) => self.put(span, Piece::Extent(extent)),
            }
        }
        Ok(())
    }

    /// Whether files with these flags may share data.
    pub fn may_share(flags: u64, other: u64) -> bool {
        (flags ^ other) & inode_flags::NODATASUM == 0
    }
}

/// Parts of a file that one operation clones or clones over: each leaves an extent that is committed.
pub const PARTS_MAX: usize = 4096;
/// Bytes that it copies, beyond which it takes no further part.
const COPIED_MAX: usize = 1 << 20;
/// Extents for which whoever shapes a file has been promised room.
const EXTENTS_PROMISED: usize = 4;
/// As many extents that a file gains are in one of its leaves at least, as a rule.
const EXTENTS_PER_LEAF: usize = 16;
/// Bytes that one adds to it.
const BYTES_PER_EXTENT: usize = 80;

/// Has room promised for the items of extents that a file gains, when they are many.
fn reserve_extents(op: &Op<'_>, count: usize) -> Result<()> {
    if count <= EXTENTS_PROMISED {
        return Ok(());
    }
    op.leave_extents(count);
    let number = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
    let leaves = number(count / EXTENTS_PER_LEAF).saturating_add(2);
    let bytes = number(BYTES_PER_EXTENT.saturating_mul(count));
    let need = Need { leaves, bytes, refs: number(count), ..Need::default() };
    op.core.space.reserve(need).map_err(|_| Error::NoSpace)
}

fn inline_part(content: &[u8], span: &Span) -> Vec<u8> {
    let from = (span.start as usize).min(content.len());
    let mut bytes = content[from..].to_vec();
    bytes.resize(len(span) as usize, 0);
    bytes
}

fn extent_of(mapped: &Mapped<'_>, len: u64) -> Extent {
    Extent {
        bytenr: mapped.bytenr,
        disk_len: mapped.disk_len,
        ram_len: mapped.ram_len,
        offset: mapped.offset,
        compression: mapped.compression,
        prealloc: mapped.prealloc,
        written: false,
        shared: match mapped.layer {
            Layer::Live(_) => mapped.shared.cloned(),
            Layer::Frozen(changes) => Some(Arc::new(committing_extent(mapped, len, changes))),
            Layer::Tree => None,
        },
    }
}

/// What the committing transaction has written is old for the running one, but for its checksums, which are not in the csum
/// tree yet.
fn committing_extent(mapped: &Mapped<'_>, len: u64, changes: &FileChanges) -> SharedExtent {
    if let Some(shared) = mapped.shared {
        return SharedExtent::of_parts(shared.range, shared.digests.clone(), Origin::Committing);
    }
    let range = Range { start: mapped.bytenr.saturating_add(mapped.offset), len };
    let digests = changes.digests_of(&(range.start..range.start.saturating_add(len)));
    SharedExtent::of(range, digests.unwrap_or_default(), Origin::Committing)
}
