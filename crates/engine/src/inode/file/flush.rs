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
use super::write::DIRECT_MIN;
use crate::error::{Error, Result};
use crate::space::{Need, Range};
use crate::stats;
use crate::txn::Core;

/// Small buffered runs are gathered into writes of this many bytes.
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

impl FileChanges {
    /// Writes what is buffered. New extents may continue those before only while nobody else can know those (`join`).
    pub(super) fn flush(&mut self, core: &Core, layers: Layers<'_>, join: bool) -> Result<()> {
        if self.buffers.is_empty() {
            return Ok(());
        }
        let ranges = self.take_space(core, self.dirty_bytes(), 0)?;
        let placed = match self.write_buffers(core, layers, &ranges, !join) {
            Ok(placed) => placed,
            Err(error) => {
                give_up(core, &ranges);
                // Nobody has looked them up. What is buffered still needs as much, and was promised it.
                ranges.into_iter().try_for_each(|range| core.space.give_back(range))?;
                let data = Need { data: self.dirty_bytes(), ..Need::default() };
                let _gone_meanwhile = core.space.reserve(data);
                return Err(error);
            }
        };
        core.env.step("buffers are on the disk");
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
            true => self.core.write_for_commit(bytenr, &[bytes])?,
            false => self.core.volume.write(bytenr, bytes)?,
        }
        stats::add(&self.core.counters.data_bytes, bytes.len() as u64);
        Ok(())
    }
}
