//! Writing.
//!
//! Whole sectors of large writes get an extent and go to the disk at once. The rest is buffered in whole sectors: the
//! part of a sector that is not written is read first. What is buffered gets its extents when the layer is prepared for
//! the commit, or when a file has buffered too much.

use buttress_ondisk::{EXTENT_LEN_MAX, SECTOR};

use super::changes::{FILE_END, FileChanges, round_down, round_up};
use super::csums::digests;
use super::layers::{Found, Layers, Segments};
use super::ranges::{RangeMap, Span, len, overlap};
use crate::error::{Errno, Error, Result};
use crate::space::{Need, Range};
use crate::txn::{Core, Op};

/// Whole sectors of at least this many bytes go to the disk at once.
pub const DIRECT_MIN: u64 = 64 << 10;
/// What a file buffers at most before it is written, in bytes.
const BUFFER_MAX: u64 = 4 << 20;
/// Small buffered runs are gathered into writes of this many bytes.
const GATHER: usize = 1 << 20;
/// A run of free space this long is preferred over shorter ones, in bytes.
const GOOD_RUN: u64 = 1 << 20;

/// The end of `len` bytes at `offset`, or `EFBIG`.
pub(super) fn end_of(offset: u64, len: u64) -> Result<u64> {
    let end = offset.checked_add(len).filter(|end| *end < FILE_END);
    end.ok_or(Error::User(Errno::FBIG))
}

/// Buffered data and where it is going to be.
struct Placed {
    span: Span,
    bytenr: u64,
    /// Its checksums, if it has any.
    sums: Vec<u8>,
}

impl FileChanges {
    /// Writes `data` at `offset`. `size` is the file's size before; the caller makes it larger after.
    pub fn write(
        &mut self,
        op: &Op<'_>,
        layers: Layers<'_>,
        size: u64,
        offset: u64,
        data: &[u8],
    ) -> Result<()> {
        if data.is_empty() {
            return Ok(());
        }
        let end = end_of(offset, data.len() as u64)?;
        self.make_room(op.core, layers, size, offset, end)?;
        if round_down(end) < round_up(offset).saturating_add(DIRECT_MIN) {
            self.buffer(op.core, layers, size, offset, data)?;
        } else if let Some(mut whole) = self.unfinished_sector(offset) {
            let start = offset - whole.len() as u64;
            whole.extend_from_slice(data);
            self.write_large(op.core, layers, size, start, &whole)?;
        } else {
            self.write_large(op.core, layers, size, offset, data)?;
        }
        if self.buffered > BUFFER_MAX {
            self.flush(op.core, layers, true)?;
        }
        Ok(())
    }

    /// Before the range `start..end` is written, allocated or cloned to: what is inline moves into a buffer, and where
    /// gaps must be holes, the gap after the old end of the file becomes one.
    pub(super) fn make_room(
        &mut self,
        core: &Core,
        layers: Layers<'_>,
        size: u64,
        start: u64,
        end: u64,
    ) -> Result<()> {
        self.uninline(layers, size)?;
        if end > size && !core.features.no_holes {
            self.fill_gap(layers, round_up(size)..round_down(start))?;
        }
        Ok(())
    }

    /// A file that is kept in its item moves into a buffer.
    pub(super) fn uninline(&mut self, layers: Layers<'_>, size: u64) -> Result<()> {
        if size == 0 || size > SECTOR || !layers.any() {
            return Ok(());
        }
        let first = Segments::new(self, layers, 0..SECTOR).next()?;
        let Some((_, Found::Inline(content))) = first else { return Ok(()) };
        let mut bytes = content.into_owned();
        bytes.truncate(size as usize);
        bytes.resize(round_up(bytes.len().max(1) as u64) as usize, 0);
        self.put_buffer(0, bytes);
        Ok(())
    }

    /// Makes what is nothing in `span` a hole of this layer.
    pub(super) fn fill_gap(&mut self, layers: Layers<'_>, span: Span) -> Result<()> {
        let mut gaps = Vec::new();
        let mut segments = Segments::new(self, layers, span);
        while let Some((span, found)) = segments.next()? {
            if matches!(found, Found::Hole) {
                gaps.push(span);
            }
        }
        for span in gaps {
            self.put(span, super::changes::Piece::Hole);
        }
        Ok(())
    }

    /// Where a writer of odd lengths goes on in a sector that it has buffered: what that holds before `offset`.
    fn unfinished_sector(&self, offset: u64) -> Option<Vec<u8>> {
        let first = round_down(offset);
        let (span, buffer) = self.buffers.at(first)?;
        if offset == first || span.end != first + SECTOR {
            return None;
        }
        let part = (first - span.start) as usize..(offset - span.start) as usize;
        buffer.0.get(part).map(<[u8]>::to_vec)
    }

    /// Writes whole sectors through and buffers the parts of sectors before and behind them.
    fn write_large(
        &mut self,
        core: &Core,
        layers: Layers<'_>,
        size: u64,
        offset: u64,
        data: &[u8],
    ) -> Result<()> {
        let (from, to) = (round_up(offset), round_down(offset + data.len() as u64));
        let (head, rest) = data.split_at((from - offset) as usize);
        let (middle, tail) = rest.split_at((to - from) as usize);
        self.buffer(core, layers, size, offset, head)?;
        self.write_through(core, layers, from, middle)?;
        self.buffer(core, layers, size, to, tail)
    }

    // ---- buffered ----

    /// Buffers a write of any bytes.
    pub(super) fn buffer(
        &mut self,
        core: &Core,
        layers: Layers<'_>,
        size: u64,
        offset: u64,
        data: &[u8],
    ) -> Result<()> {
        if data.is_empty() {
            return Ok(());
        }
        let end = offset + data.len() as u64;
        let (first, last) = (round_down(offset), round_down(end - 1));
        // Everything that may fail comes before anything changes.
        let partial_last = end < last + SECTOR;
        let head = if offset > first || (partial_last && last == first) {
            self.old_sector(core, layers, size, first)?
        } else {
            None
        };
        let tail = if partial_last && last != first {
            self.old_sector(core, layers, size, last)?
        } else {
            None
        };
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
            let bytes = fresh_buffer(&gap, [(first, &head), (last, &tail)], offset, data);
            self.put_buffer(gap.start, bytes);
            pos = gap.end;
        }
        Ok(())
    }

    /// The content of a sector before it is partly overwritten; `None` when it is buffered, or behind the end of the file.
    fn old_sector(
        &self,
        core: &Core,
        layers: Layers<'_>,
        size: u64,
        start: u64,
    ) -> Result<Option<Vec<u8>>> {
        if start >= size || self.buffers.at(start).is_some() {
            return Ok(None);
        }
        self.sector(core, layers, size, start).map(Some)
    }

    // ---- to the disk ----

    /// Writes whole sectors to new extents.
    fn write_through(
        &mut self,
        core: &Core,
        layers: Layers<'_>,
        start: u64,
        data: &[u8],
    ) -> Result<()> {
        let follows = start.checked_sub(self.stream.0).is_some_and(|gap| gap <= SECTOR);
        let ahead = if follows { self.stream.1 } else { 0 };
        let ranges = self.take_space(core, data.len() as u64, ahead)?;
        let mut at = 0;
        for range in &ranges {
            let part = &data[at..at + range.len as usize];
            if let Err(error) = core.volume.write(range.start, part) {
                self.loose.extend(&ranges);
                return Err(error.into());
            }
            at += range.len as usize;
        }
        let mut pos = start;
        for range in &ranges {
            let from = (pos - start) as usize;
            self.put_new(pos..pos + range.len, range.start, false, Some(&same_group(core)));
            if layers.sums() {
                let sums = digests(core.features.csum, &data[from..from + range.len as usize]);
                self.put_digests(range.start, range.len / SECTOR, sums, core.features.csum.size());
            }
            pos += range.len;
        }
        self.stream = (pos, ahead + data.len() as u64);
        Ok(())
    }

    /// Space for `need` bytes, and when it comes from new free space, `ahead` bytes more for later.
    pub(super) fn take_space(&mut self, core: &Core, need: u64, ahead: u64) -> Result<Vec<Range>> {
        let mut ranges: Vec<Range> = Vec::new();
        let mut rest = need;
        while rest > 0 {
            if self.ahead.is_none() {
                self.ahead = allocate(core, rest, ahead);
            }
            let Some(have) = &mut self.ahead else {
                self.loose.extend(&ranges);
                return Err(Error::NoSpace);
            };
            let taken = have.len.min(rest);
            ranges.push(Range { start: have.start, len: taken });
            *have = Range { start: have.start + taken, len: have.len - taken };
            if have.len == 0 {
                self.ahead = None;
            }
            rest -= taken;
        }
        Ok(ranges)
    }

    /// Writes what is buffered. New extents may continue those before only while nobody else can know those (`join`).
    pub(super) fn flush(&mut self, core: &Core, layers: Layers<'_>, join: bool) -> Result<()> {
        if self.buffers.is_empty() {
            return Ok(());
        }
        let ranges = self.take_space(core, self.buffered, 0)?;
        let placed = match self.write_buffers(core, layers, &ranges) {
            Ok(placed) => placed,
            Err(error) => {
                self.loose.extend(&ranges);
                return Err(error);
            }
        };
        self.buffers = RangeMap::default();
        self.buffered = 0;
        let size = core.features.csum.size();
        let group = same_group(core);
        for Placed { span, bytenr, sums } in merge_placed(placed, same_group(core)) {
            let sectors = len(&span) / SECTOR;
            self.put_new(span, bytenr, false, join.then_some(&group as &dyn Fn(u64, u64) -> bool));
            if layers.sums() {
                self.put_digests(bytenr, sectors, sums, size);
            }
        }
        Ok(())
    }

    /// Writes all buffers, one after the other, to `ranges`.
    fn write_buffers(
        &self,
        core: &Core,
        layers: Layers<'_>,
        ranges: &[Range],
    ) -> Result<Vec<Placed>> {
        let summed = |bytes: &[u8]| match layers.sums() {
            true => digests(core.features.csum, bytes),
            false => Vec::new(),
        };
        let mut placed = Vec::new();
        let mut gather = Gather { core, start: 0, bytes: Vec::new() };
        let mut ranges = ranges.iter().copied();
        let mut range = Range { start: 0, len: 0 };
        for (span, buffer) in self.buffers.iter() {
            let mut done = 0;
            while done < buffer.0.len() {
                if range.len == 0 {
                    range = ranges.next().ok_or(Error::NoSpace)?;
                }
                let take = (buffer.0.len() - done).min(range.len as usize);
                let part = &buffer.0[done..done + take];
                gather.write(range.start, part)?;
                let start = span.start + done as u64;
                let span = start..start + take as u64;
                placed.push(Placed { span, bytenr: range.start, sums: summed(part) });
                range = Range { start: range.start + take as u64, len: range.len - take as u64 };
                done += take;
            }
        }
        gather.flush()?;
        Ok(placed)
    }
}

/// Whether two addresses are in the same block group: an extent must not cross from one to another.
pub(super) fn same_group(core: &Core) -> impl Fn(u64, u64) -> bool + '_ {
    |a, b| match (core.volume.chunk_at(a), core.volume.chunk_at(b)) {
        (Some(a), Some(b)) => a.logical == b.logical,
        _ => false,
    }
}

/// A run of free space for up to `need` bytes, with up to `ahead` more when that can be promised.
fn allocate(core: &Core, need: u64, ahead: u64) -> Option<Range> {
    let need = need.min(EXTENT_LEN_MAX);
    let more = ahead.min(EXTENT_LEN_MAX - need) / SECTOR * SECTOR;
    let promise = Need { data: more, ..Need::default() };
    let promised = more > 0 && core.space.reserve(promise).is_ok();
    let want = if promised { need + more } else { need };
    let good = need.min(GOOD_RUN);
    core.space.allocate_data(good, want).or_else(|| core.space.allocate_data(SECTOR, want))
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

/// Joins neighbours that follow each other in the file and on the disk.
fn merge_placed(placed: Vec<Placed>, same_group: impl Fn(u64, u64) -> bool) -> Vec<Placed> {
    let mut merged: Vec<Placed> = Vec::with_capacity(placed.len());
    for next in placed {
        if let Some(last) = merged.last_mut()
            && last.span.end == next.span.start
            && last.bytenr + len(&last.span) == next.bytenr
            && len(&last.span) + len(&next.span) <= EXTENT_LEN_MAX
            && same_group(last.bytenr, next.bytenr)
        {
            last.span.end = next.span.end;
            last.sums.extend_from_slice(&next.sums);
        } else {
            merged.push(next);
        }
    }
    merged
}

/// Gathers small writes to consecutive addresses.
struct Gather<'a> {
    core: &'a Core,
    start: u64,
    bytes: Vec<u8>,
}

impl Gather<'_> {
    fn write(&mut self, bytenr: u64, bytes: &[u8]) -> Result<()> {
        let follows = self.start + self.bytes.len() as u64 == bytenr;
        if !follows || self.bytes.len() + bytes.len() > GATHER {
            self.flush()?;
        }
        if self.bytes.is_empty() && bytes.len() as u64 >= DIRECT_MIN {
            return Ok(self.core.volume.write(bytenr, bytes)?);
        }
        if self.bytes.is_empty() {
            self.start = bytenr;
        }
        self.bytes.extend_from_slice(bytes);
        Ok(())
    }

    fn flush(&mut self) -> Result<()> {
        if !self.bytes.is_empty() {
            self.core.volume.write(self.start, &self.bytes)?;
            self.bytes.clear();
        }
        Ok(())
    }
}
