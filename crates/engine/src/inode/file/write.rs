//! Writing.
//!
//! Whole sectors of large writes get an extent and go to the disk at once. The rest is buffered in whole sectors: the
//! part of a sector that is not written is read first. What is buffered gets its extents when the layer is prepared for
//! the commit, or when a file has buffered too much.

use buttress_ondisk::{EXTENT_LEN_MAX, Key, SECTOR, kind};

use super::changes::{Extent, FILE_END, FileChanges, Home, Piece, round_down, round_up};
use super::csums::digests;
use super::layers::{Found, Layer, Layers, Mapped, Segments};
use super::ranges::{Span, Split, len, overlap};
use crate::error::{Errno, Error, Result};
use crate::space::{Need, Range};
use crate::stats;
use crate::txn::{Core, Op};

/// Whole sectors of at least this many bytes go to the disk at once.
pub const DIRECT_MIN: u64 = 64 << 10;
/// What a file buffers at most, and the write that comes to more besides, before it is written, in bytes.
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
    /// The extent whose space it went to, if that is older than this layer.
    part: Option<Extent>,
    /// Its checksums, if it has any.
    sums: Vec<u8>,
}

/// What there was where a write is to be buffered.
#[derive(Default)]
pub(super) struct Edges {
    /// The first sector, where it is kept in part.
    head: Option<Vec<u8>>,
    /// The last sector, where it is another one and kept in part.
    tail: Option<Vec<u8>>,
    /// Space that the file has reserved there.
    homes: Vec<(Span, Home)>,
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
        // Before anything changes: what fails here has nothing to do with these data.
        if self.buffered > BUFFER_MAX {
            self.flush(op.core, layers, true)?;
        }
        self.make_room(op.core, layers, size, offset, end)?;
        if round_down(end) < round_up(offset).saturating_add(DIRECT_MIN) {
            self.buffer(op.core, layers, size, offset, data)
        } else if let Some(mut whole) = self.unfinished_sector(offset) {
            let start = offset - whole.len() as u64;
            whole.extend_from_slice(data);
            self.write_large(op.core, layers, size, start, &whole)
        } else {
            self.write_large(op.core, layers, size, offset, data)
        }
    }

    /// Before the range `start..end` is written, allocated or cloned to: what is inline moves into a buffer, what lies
    /// behind the old end of the file in its last sector becomes zeros, and where gaps must be holes, the gap after that
    /// becomes one.
    pub(super) fn make_room(
        &mut self,
        core: &Core,
        layers: Layers<'_>,
        size: u64,
        start: u64,
        end: u64,
    ) -> Result<()> {
        self.uninline(layers, size)?;
        // What begins in the last sector or before it writes that anew.
        if end > size && start >= round_up(size) {
            self.zero_tail(core, layers, size)?;
        }
        if end > size && !core.features.no_holes {
            self.fill_gap(layers, round_up(size)..round_down(start))?;
        }
        Ok(())
    }

    /// The same for what leaves alone what is written, the last sector too.
    pub(super) fn make_room_behind(
        &mut self,
        core: &Core,
        layers: Layers<'_>,
        size: u64,
        start: u64,
        end: u64,
    ) -> Result<()> {
        self.make_room(core, layers, size, start.max(round_up(size)), end)
    }

    /// Before the file grows: what its last sector holds behind its end becomes zeros. Linux leaves that on the disk when it
    /// cuts a file, and makes it zeros only now, too.
    pub(super) fn zero_tail(&mut self, core: &Core, layers: Layers<'_>, size: u64) -> Result<()> {
        if !self.has_tail(core, layers, size)? {
            return Ok(());
        }
        let zeros = vec![0; (round_up(size) - size) as usize];
        self.buffer(core, layers, size, size, &zeros)
    }

    /// Whether an extent holds anything but zeros between the end of the file and that of its sector. In buffers there are
    /// zeros.
    fn has_tail(&self, core: &Core, layers: Layers<'_>, size: u64) -> Result<bool> {
        let (first, end) = (round_down(size), round_up(size));
        match Segments::new(self, layers, first..end).next()? {
            Some((_, Found::Extent(mapped))) if !mapped.prealloc => (),
            _ => return Ok(false),
        }
        let whole = self.sector(core, layers, end, first)?;
        Ok(whole.iter().skip((size - first) as usize).any(|byte| *byte != 0))
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
            self.put(span, Piece::Hole);
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
        // What may fail comes before anything changes: a write is done or it is not.
        let old_head = self.old_edges(core, layers, size, offset, head)?;
        let old_tail = self.old_edges(core, layers, size, to, tail)?;
        self.write_through(core, layers, from, middle)?;
        self.buffer_over(&old_head, offset, head);
        self.buffer_over(&old_tail, to, tail);
        Ok(())
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
        let old = self.old_edges(core, layers, size, offset, data)?;
        self.buffer_over(&old, offset, data);
        Ok(())
    }

    /// What buffering a write needs of what there is: all of it that may fail.
    pub(super) fn old_edges(
        &self,
        core: &Core,
        layers: Layers<'_>,
        size: u64,
        offset: u64,
        data: &[u8],
    ) -> Result<Edges> {
        let Some(last_byte) = data.len().checked_sub(1) else { return Ok(Edges::default()) };
        let end = offset + data.len() as u64;
        let (first, last) = (round_down(offset), round_down(offset + last_byte as u64));
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
        let homes = self.find_homes(core, layers, &(first..last + SECTOR))?;
        Ok(Edges { head, tail, homes })
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
            let inside = |(at, _): &&(Span, Home)| at.start < gap.end && gap.start < at.end;
            let homes = old.homes.iter().filter(inside);
            let homes = homes.map(|(at, home)| part_of(at, home, &gap)).collect();
            self.put_buffer_at_home(gap.start, bytes, homes);
            pos = gap.end;
        }
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

    /// Writes whole sectors: to space that the file has reserved where that may be written to, and elsewhere to new extents.
    fn write_through(
        &mut self,
        core: &Core,
        layers: Layers<'_>,
        start: u64,
        data: &[u8],
    ) -> Result<()> {
        let span = start..start + data.len() as u64;
        let part = |span: &Span| &data[(span.start - start) as usize..(span.end - start) as usize];
        let (mut places, mut pos) = (Vec::new(), start);
        for (at, home) in self.find_homes(core, layers, &span)? {
            places.extend((pos < at.start).then_some((pos..at.start, None)));
            pos = at.end;
            places.push((at, Some(home)));
        }
        places.extend((pos < span.end).then_some((pos..span.end, None)));
        // What may fail comes before anything changes.
        let mut fresh: Vec<Vec<Range>> = Vec::new();
        for (at, home) in &places {
            let done = match home {
                Some(home) => core.write_data(home.bytenr(), part(at)),
                None => self.store_fresh(core, at.start, part(at)).map(|ranges| fresh.push(ranges)),
            };
            if let Err(error) = done {
                self.loose.extend(fresh.iter().flatten());
                return Err(error);
            }
        }
        let mut fresh = fresh.into_iter();
        for (at, home) in places {
            core.env.step("a part is written");
            match home {
                Some(home) => self.put_home(core, layers, &at, home, part(&at)),
                None => {
                    let ranges = fresh.next().unwrap_or_default();
                    self.put_fresh(core, layers, at.start, part(&at), &ranges);
                }
            }
        }
        Ok(())
    }

    /// Space in `span` that the file has reserved and that may be written to: nobody but this file refers to it, no snapshot
    /// of the file knows it, and it reads as zeros until a commit says otherwise.
    fn find_homes(
        &self,
        core: &Core,
        layers: Layers<'_>,
        span: &Span,
    ) -> Result<Vec<(Span, Home)>> {
        let mut homes = Vec::new();
        let Some(last_snapshot) = layers.last_snapshot else { return Ok(homes) };
        let mut segments = Segments::new(self, layers, span.clone());
        let mut known: Option<(u64, bool)> = None;
        while let Some((at, found)) = segments.next()? {
            let mapped = match found {
                Found::Extent(mapped) if mapped.prealloc => mapped,
                Found::Bytes(_) => {
                    let kept = self.homes.overlapping(&at);
                    homes.extend(kept.map(|(home_at, home)| part_of(&home_at, home, &at)));
                    continue;
                }
                _ => continue,
            };
            let home = match (mapped.layer, mapped.shared) {
                (_, Some(_)) => continue,
                (Layer::Live(_), None) => Home::Own(mapped.bytenr.saturating_add(mapped.offset)),
                // Of the committing transaction.
                (Layer::Frozen(_), None)
                    if core.txn.running() <= last_snapshot.saturating_add(1) =>
                {
                    continue;
                }
                (Layer::Frozen(_), None) => Home::Part(reserved(&mapped)),
                (Layer::Tree, None) => {
                    let own = match known {
                        Some((bytenr, own)) if bytenr == mapped.bytenr => own,
                        _ => is_own(core, layers, &mapped, at.start, last_snapshot)?,
                    };
                    known = Some((mapped.bytenr, own));
                    if !own {
                        continue;
                    }
                    Home::Part(reserved(&mapped))
                }
            };
            homes.push((at, home));
        }
        Ok(homes)
    }

    /// The bytes of space that writing `span` to a file of `size` bytes would take besides what the file has reserved or
    /// buffered.
    pub fn space_for(&self, core: &Core, layers: Layers<'_>, size: u64, span: Span) -> Result<u64> {
        let span = round_down(span.start)..round_up(span.end);
        let inline =
            matches!(Segments::new(self, layers, 0..SECTOR).next()?, Some((_, Found::Inline(_))));
        let behind = span.start >= round_up(size);
        let rewritten = behind && (inline || self.has_tail(core, layers, size)?);
        let homes = self.find_homes(core, layers, &span)?;
        let mut fresh = len(&span);
        for (at, _) in &homes {
            fresh = fresh.saturating_sub(len(at));
        }
        for (at, _) in self.buffers.overlapping(&span) {
            let at = overlap(&at, &span);
            let housed: u64 =
                self.homes.overlapping(&at).map(|(home, _)| len(&overlap(&home, &at))).sum();
            fresh = fresh.saturating_sub(len(&at).saturating_sub(housed));
        }
        Ok(fresh + if rewritten { SECTOR } else { 0 })
    }

    /// Whole sectors are in space that the file had reserved.
    fn put_home(&mut self, core: &Core, layers: Layers<'_>, span: &Span, home: Home, data: &[u8]) {
        let bytenr = home.bytenr();
        self.take_homes(span);
        match home {
            Home::Own(_) => self.put_new(span.clone(), bytenr, false, Some(&same_group(core))),
            Home::Part(extent) => self.put(span.clone(), Piece::Extent(written(extent))),
        }
        if layers.sums() {
            let sums = digests(core.features.csum, data);
            self.put_digests(bytenr, len(span) / SECTOR, sums, core.features.csum.size());
        }
    }

    /// Bytes that a sequential writer, who goes on at `start`, has written so far.
    fn streamed(&self, start: u64) -> u64 {
        let follows = start.checked_sub(self.stream.0).is_some_and(|gap| gap <= SECTOR);
        if follows { self.stream.1 } else { 0 }
    }

    /// Writes whole sectors to new extents.
    pub fn write_fresh(
        &mut self,
        core: &Core,
        layers: Layers<'_>,
        start: u64,
        data: &[u8],
    ) -> Result<()> {
        let ranges = self.store_fresh(core, start, data)?;
        self.put_fresh(core, layers, start, data, &ranges);
        Ok(())
    }

    /// Writes whole sectors to new space, and answers where that is.
    fn store_fresh(&mut self, core: &Core, start: u64, data: &[u8]) -> Result<Vec<Range>> {
        let ranges = self.take_space(core, data.len() as u64, self.streamed(start))?;
        let mut at = 0;
        for range in &ranges {
            let part = &data[at..at + range.len as usize];
            if let Err(error) = core.write_data(range.start, part) {
                give_up(core, &ranges);
                self.loose.extend(&ranges);
                return Err(error);
            }
            at += range.len as usize;
        }
        Ok(ranges)
    }

    /// Whole sectors are in new extents.
    fn put_fresh(
        &mut self,
        core: &Core,
        layers: Layers<'_>,
        start: u64,
        data: &[u8],
        ranges: &[Range],
    ) {
        let mut pos = start;
        for range in ranges {
            let from = (pos - start) as usize;
            self.put_new(pos..pos + range.len, range.start, false, Some(&same_group(core)));
            if layers.sums() {
                let sums = digests(core.features.csum, &data[from..from + range.len as usize]);
                self.put_digests(range.start, range.len / SECTOR, sums, core.features.csum.size());
            }
            pos += range.len;
        }
        self.stream = (pos, self.streamed(start) + data.len() as u64);
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
        let ranges = self.take_space(core, self.dirty_bytes(), 0)?;
        let placed = match self.write_buffers(core, layers, &ranges, !join) {
            Ok(placed) => placed,
            Err(error) => {
                self.loose.extend(&ranges);
                return Err(error);
            }
        };
        core.env.step("buffers are on the disk");
        (self.buffers, self.homes) = Default::default();
        (self.buffered, self.housed) = (0, 0);
        let size = core.features.csum.size();
        let group = same_group(core);
        let group = join.then_some(&group as &dyn Fn(u64, u64) -> bool);
        for Placed { span, bytenr, part, sums } in merge_placed(placed, same_group(core)) {
            core.env.step("a buffer is placed");
            let sectors = len(&span) / SECTOR;
            match part {
                Some(extent) => self.put(span, Piece::Extent(written(extent))),
                None => self.put_new(span, bytenr, false, group),
            }
            if layers.sums() {
                self.put_digests(bytenr, sectors, sums, size);
            }
        }
        Ok(())
    }

    /// Writes all buffers: to the space that the file has for them, the others one after the other to `ranges`.
    fn write_buffers(
        &self,
        core: &Core,
        layers: Layers<'_>,
        ranges: &[Range],
        commits: bool,
    ) -> Result<Vec<Placed>> {
        let summed = |bytes: &[u8]| match layers.sums() {
            true => digests(core.features.csum, bytes),
            false => Vec::new(),
        };
        let mut placed = Vec::new();
        let mut gather = Gather { core, commits, start: 0, bytes: Vec::new() };
        let mut ranges = ranges.iter().copied();
        let mut range = Range { start: 0, len: 0 };
        for (span, buffer) in self.buffers.iter() {
            let mut pos = span.start;
            while pos < span.end {
                let home =
                    self.homes.at(pos).map(|(at, home)| part_of(&at, home, &(pos..span.end)));
                let (take, bytenr, part) = match home {
                    Some((at, Home::Own(bytenr))) => (len(&at), bytenr, None),
                    Some((at, Home::Part(extent))) => {
                        (len(&at), extent.addresses(0).start, Some(extent))
                    }
                    None => {
                        if range.len == 0 {
                            range = ranges.next().ok_or(Error::NoSpace)?;
                        }
                        let end = self.homes.next_start(pos).unwrap_or(u64::MAX).min(span.end);
                        let (start, take) = (range.start, (end - pos).min(range.len));
                        range = Range { start: start + take, len: range.len - take };
                        (take, start, None)
                    }
                };
                let from = (pos - span.start) as usize;
                let bytes = &buffer.0[from..from + take as usize];
                gather.write(bytenr, bytes)?;
                let (at, sums) = (pos..pos + take, summed(bytes));
                placed.push(Placed { span: at, bytenr, part, sums });
                pos += take;
            }
        }
        gather.flush()?;
        Ok(placed)
    }
}

/// The part of a home that is in `span`.
fn part_of(at: &Span, home: &Home, span: &Span) -> (Span, Home) {
    let part = overlap(at, span);
    let mut home = home.clone();
    let home = match part.start > at.start {
        true => home.split_off(part.start - at.start),
        false => home,
    };
    (part, home)
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
fn written(extent: Extent) -> Extent {
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
            && last.part.is_none()
            && next.part.is_none()
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

/// Content that could not be written takes no room on the disk that holds an image: where that is full, the commit needs it.
fn give_up(core: &Core, ranges: &[Range]) {
    for range in ranges {
        let _only_a_hint = core.volume.discard(range.start, range.len);
    }
}

/// Gathers small writes to consecutive addresses.
struct Gather<'a> {
    core: &'a Core,
    /// For a commit.
    commits: bool,
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
            return self.store(bytenr, bytes);
        }
        if self.bytes.is_empty() {
            self.start = bytenr;
        }
        self.bytes.extend_from_slice(bytes);
        Ok(())
    }

    fn flush(&mut self) -> Result<()> {
        if !self.bytes.is_empty() {
            self.store(self.start, &self.bytes)?;
            self.bytes.clear();
        }
        Ok(())
    }

    /// An operation holds the gate, and must not wait.
    fn store(&self, bytenr: u64, bytes: &[u8]) -> Result<()> {
        match self.commits {
            true => self.core.write_for_commit(bytenr, bytes)?,
            false => self.core.volume.write(bytenr, bytes)?,
        }
        stats::add(&self.core.counters.data_bytes, bytes.len() as u64);
        Ok(())
    }
}
