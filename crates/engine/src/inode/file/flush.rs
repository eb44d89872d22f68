//! Writing what is buffered: it gets its place, its checksums, and goes to the disk, neighbours in one write.
//!
//! The data are on the disk before the layer says that they are. What fails leaves the buffers as they were.

use buttress_ondisk::{EXTENT_LEN_MAX, SECTOR};

use super::changes::FileChanges;
use super::csums::digests;
use super::direct::{give_up, same_group};
use super::layers::Layers;
use super::piece::{Extent, Piece, Prealloc};
use super::prealloc::{part_of, written};
use super::ranges::{Span, len};
use crate::error::{Error, Result};
use crate::space::Range;
use crate::stats;
use crate::txn::Core;

/// Buffers are gathered into writes of this many bytes, unless one is larger.
const GATHER: usize = 1 << 20;

/// Buffered data and where it is going to be.
struct Placed {
    span: Span,
    bytenr: u64,
    /// The extent whose space it went to, if that is older than this layer.
    part: Option<Extent>,
    /// Its checksums, if it has any.
    sums: Vec<u8>,
}

/// A layer, and what lies below it.
pub type Layered<'f, 'l> = (&'f mut FileChanges, Layers<'l>);

/// Writes what several layers buffer, neighbours on the disk in one write whichever of them they belong to. New extents may continue those
/// before only while nobody else can know those (`join`).
pub fn flush_all(core: &Core, files: &mut [Layered<'_, '_>], join: bool) -> Result<()> {
    let mut ranges = Vec::with_capacity(files.len());
    let done = take_space(core, files, &mut ranges);
    let placed = done.and_then(|()| write_buffers(core, files, &ranges, !join));
    let placed = match placed {
        Ok(placed) => placed,
        Err(error) => {
            for ((file, _), ranges) in files.iter().zip(ranges) {
                file.take_back(core, ranges)?;
            }
            return Err(error);
        }
    };
    core.env.step("buffers are on the disk");
    for ((file, layers), placed) in files.iter_mut().zip(placed) {
        file.is_placed(core, *layers, placed, join);
    }
    Ok(())
}

/// Space for what each layer buffers: one run for all of them, where there is such a run. No chunk is made for that: what has holes
/// enough for each is filled first.
fn take_space(
    core: &Core,
    files: &mut [Layered<'_, '_>],
    taken: &mut Vec<Vec<Range>>,
) -> Result<()> {
    let total = files.iter().map(|(file, _)| file.dirty_bytes()).sum();
    let is_alike = files.len() > 1 && files.iter().all(|(file, _)| file.ahead.is_none());
    let mut common = match is_alike && total > 0 && total <= EXTENT_LEN_MAX {
        true => core.space.allocate_extent(total, false),
        false => None,
    };
    for (file, _) in files {
        let need = file.dirty_bytes();
        match &mut common {
            Some(run) => {
                taken.push(Vec::from_iter((need > 0).then_some(Range { len: need, ..*run })));
                *run = Range { start: run.start + need, len: run.len - need };
            }
            None => taken.push(file.take_space(core, need, 0)?),
        }
    }
    Ok(())
}

/// Writes all buffers of some layers: to the space that a file has for them, the others one after the other to its ranges.
fn write_buffers(
    core: &Core,
    files: &[Layered<'_, '_>],
    ranges: &[Vec<Range>],
    commits: bool,
) -> Result<Vec<Vec<Placed>>> {
    let mut gather = Gather { core, commits, start: 0, len: 0, parts: Vec::new() };
    let files = files.iter().zip(ranges);
    let placed = files.map(|((file, layers), ranges)| file.gather(*layers, ranges, &mut gather));
    let placed = placed.collect::<Result<_>>()?;
    gather.flush()?;
    Ok(placed)
}

impl FileChanges {
    /// The same for one layer.
    pub(super) fn flush(&mut self, core: &Core, layers: Layers<'_>, join: bool) -> Result<()> {
        if self.buffers.is_empty() {
            return Ok(());
        }
        flush_all(core, &mut [(self, layers)], join)
    }

    /// The space for what is buffered is not used.
    fn take_back(&self, core: &Core, ranges: Vec<Range>) -> Result<()> {
        give_up(core, &ranges);
        // Nobody has looked them up. What is buffered still needs as much, and was promised it.
        let again = ranges.into_iter().map(|range| core.space.promise_again(range));
        again.fold(Ok(()), Result::and)
    }

    /// What was buffered is on the disk.
    fn is_placed(&mut self, core: &Core, layers: Layers<'_>, placed: Vec<Placed>, join: bool) {
        if placed.is_empty() {
            return;
        }
        (self.buffers, self.prealloc) = Default::default();
        (self.buffered, self.prealloc_bytes) = (0, 0);
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
    }

    /// Finds the place of each buffer, and hands it over to be written there.
    fn gather<'a>(
        &'a self,
        layers: Layers<'_>,
        ranges: &[Range],
        gather: &mut Gather<'a>,
    ) -> Result<Vec<Placed>> {
        let csum = gather.core.features.csum;
        let summed = |bytes: &[u8]| match layers.sums() {
            true => digests(csum, bytes),
            false => Vec::new(),
        };
        let mut placed = Vec::new();
        let mut ranges = ranges.iter().copied();
        let mut range = Range { start: 0, len: 0 };
        for (span, buffer) in self.buffers.iter() {
            let mut pos = span.start;
            while pos < span.end {
                let space =
                    self.prealloc.at(pos).map(|(at, space)| part_of(&at, space, &(pos..span.end)));
                let (take, bytenr, part) = match space {
                    Some((at, Prealloc::Own(bytenr))) => (len(&at), bytenr, None),
                    Some((at, Prealloc::Part(extent))) => {
                        (len(&at), extent.addresses(0).start, Some(extent))
                    }
                    None => {
                        if range.len == 0 {
                            range = ranges.next().ok_or(Error::NoSpace)?;
                        }
                        let end = self.prealloc.next_start(pos).unwrap_or(u64::MAX).min(span.end);
                        let (start, take) = (range.start, (end - pos).min(range.len));
                        range = Range { start: start + take, len: range.len - take };
                        (take, start, None)
                    }
                };
                let from = (pos - span.start) as usize;
                let bytes = &buffer.0[from..from + take as usize];
                placed.push(Placed { span: pos..pos + take, bytenr, part, sums: summed(bytes) });
                gather.write(bytenr, bytes)?;
                pos += take;
            }
        }
        Ok(placed)
    }
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

/// Gathers writes to consecutive addresses, from where the bytes are.
struct Gather<'a> {
    core: &'a Core,
    /// For a commit.
    commits: bool,
    start: u64,
    len: usize,
    parts: Vec<&'a [u8]>,
}

impl<'a> Gather<'a> {
    fn write(&mut self, bytenr: u64, bytes: &'a [u8]) -> Result<()> {
        let follows = self.start + self.len as u64 == bytenr;
        if !follows || self.len + bytes.len() > GATHER {
            self.flush()?;
        }
        if self.parts.is_empty() {
            self.start = bytenr;
        }
        self.len += bytes.len();
        self.parts.push(bytes);
        Ok(())
    }

    /// An operation holds the gate, and must not wait.
    fn flush(&mut self) -> Result<()> {
        let parts = std::mem::take(&mut self.parts);
        let len = std::mem::take(&mut self.len);
        if parts.is_empty() {
            return Ok(());
        }
        match self.commits {
            true => self.core.write_for_commit(self.start, &parts)?,
            false => self.core.volume.write_parts(self.start, &parts)?,
        }
        stats::add(&self.core.counters.data_bytes, len as u64);
        Ok(())
    }
}
