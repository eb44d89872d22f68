//! Writing whole sectors to the disk at once: to space that the file has reserved where that may be written to, and
//! elsewhere to new extents.
//!
//! The data are on the disk before the layer says that they are: a write that fails changes nothing, and a crash leaves
//! them where nothing leads to.

use buttress_ondisk::{EXTENT_LEN_MAX, SECTOR};

use super::changes::FileChanges;
use super::csums::digests;
use super::layers::Layers;
use super::piece::{Piece, Prealloc};
use super::prealloc::written;
use super::ranges::{Span, len};
use crate::error::{Error, Result};
use crate::space::{Need, Range};
use crate::txn::Core;

/// A run of free space this long is preferred over shorter ones, in bytes.
const GOOD_RUN: u64 = 1 << 20;

impl FileChanges {
    /// Writes whole sectors: to space that the file has reserved where that may be written to, and elsewhere to new extents.
    pub(super) fn write_through(
        &mut self,
        core: &Core,
        layers: Layers<'_>,
        start: u64,
        data: &[u8],
    ) -> Result<()> {
        let span = start..start + data.len() as u64;
        let part = |span: &Span| &data[(span.start - start) as usize..(span.end - start) as usize];
        let (mut places, mut pos) = (Vec::new(), start);
        for (at, space) in self.writable_prealloc(core, layers, &span)? {
            places.extend((pos < at.start).then_some((pos..at.start, None)));
            pos = at.end;
            places.push((at, Some(space)));
        }
        places.extend((pos < span.end).then_some((pos..span.end, None)));
        // What may fail comes before anything changes.
        let mut fresh: Vec<Vec<Range>> = Vec::new();
        for (at, space) in &places {
            let done = match space {
                Some(space) => core.write_data(space.bytenr(), part(at)),
                None => self.store_fresh(core, at.start, part(at)).map(|ranges| fresh.push(ranges)),
            };
            if let Err(error) = done {
                self.dropped.extend(fresh.iter().flatten());
                return Err(error);
            }
        }
        let mut fresh = fresh.into_iter();
        for (at, space) in places {
            core.env.step("a part is written");
            match space {
                Some(space) => self.put_in_place(core, layers, &at, space, part(&at)),
                None => {
                    let ranges = fresh.next().unwrap_or_default();
                    self.put_fresh(core, layers, at.start, part(&at), &ranges);
                }
            }
        }
        Ok(())
    }

    /// Whole sectors are in space that the file had reserved.
    fn put_in_place(
        &mut self,
        core: &Core,
        layers: Layers<'_>,
        span: &Span,
        space: Prealloc,
        data: &[u8],
    ) {
        let bytenr = space.bytenr();
        self.take_prealloc(span);
        match space {
            Prealloc::Own(_) => self.put_new(span.clone(), bytenr, false, Some(&same_group(core))),
            Prealloc::Part(extent) => self.put(span.clone(), Piece::Extent(written(extent))),
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
                self.dropped.extend(&ranges);
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
                self.dropped.extend(&ranges);
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

/// Whether two addresses are in the same block group: an extent must not cross from one to another.
pub(super) fn same_group(core: &Core) -> impl Fn(u64, u64) -> bool + '_ {
    |a, b| match (core.volume.chunk_at(a), core.volume.chunk_at(b)) {
        (Some(a), Some(b)) => a.logical == b.logical,
        _ => false,
    }
}

/// Content that could not be written takes no room on the disk that holds an image: where that is full, the commit needs it.
pub(super) fn give_up(core: &Core, ranges: &[Range]) {
    for range in ranges {
        let _only_a_hint = core.volume.discard(range.start, range.len);
    }
}
