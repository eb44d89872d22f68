//! Writing: what is buffered, and what gets an extent at once.
//!
//! Whole sectors of large writes go to the disk at once (`direct`). The rest is buffered in whole sectors (`buffer`), and
//! gets its extents when the layer is prepared for the commit, before that when it has been left alone for a while ([`crate::inode`], `delalloc`), or when a file
//! has buffered too much (`flush`).

use buttress_ondisk::SECTOR;

use super::changes::{FILE_END, FileChanges, round_down, round_up};
use super::layers::{Found, Layers, Segments};
use super::piece::Piece;
use super::ranges::Span;
use crate::error::{Errno, Error, Result};
use crate::txn::{Core, Op};

/// Whole sectors of at least this many bytes go to the disk at once.
pub const DIRECT_MIN: u64 = 64 << 10;
/// What a file buffers at most, and the write that comes to more besides, before it is written, in bytes.
const BUFFER_MAX: u64 = 4 << 20;

/// The end of `len` bytes at `offset`, or `EFBIG`.
pub(super) fn end_of(offset: u64, len: u64) -> Result<u64> {
    let end = offset.checked_add(len).filter(|end| *end < FILE_END);
    end.ok_or(Error::User(Errno::FBIG))
}

impl FileChanges {
    /// Writes `data` at `offset`. The caller makes the file larger after.
    pub fn write(
        &mut self,
        op: &Op<'_>,
        layers: Layers<'_>,
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
        self.make_room(op.core, layers, offset, end)?;
        if round_down(end) < round_up(offset).saturating_add(DIRECT_MIN) {
            self.buffer(op.core, layers, offset, data)
        } else if let Some(mut whole) = self.unfinished_sector(offset) {
            let start = offset - whole.len() as u64;
            whole.extend_from_slice(data);
            self.write_large(op.core, layers, start, &whole)
        } else {
            self.write_large(op.core, layers, offset, data)
        }
    }

    /// Before the range `start..end` is written, allocated or cloned to: what is inline moves into a buffer, what lies
    /// behind the old end of the file in its last sector becomes zeros, and where gaps must be holes, the gap after that
    /// becomes one.
    pub(super) fn make_room(
        &mut self,
        core: &Core,
        layers: Layers<'_>,
        start: u64,
        end: u64,
    ) -> Result<()> {
        self.uninline(layers)?;
        // What begins in the last sector or before it writes that anew.
        if end > layers.size && start >= round_up(layers.size) {
            self.zero_tail(core, layers)?;
        }
        if end > layers.size && !core.features.no_holes {
            self.fill_gap(layers, round_up(layers.size)..round_down(start))?;
        }
        Ok(())
    }

    /// The same for what leaves alone what is written, the last sector too.
    pub(super) fn make_room_behind(
        &mut self,
        core: &Core,
        layers: Layers<'_>,
        start: u64,
        end: u64,
    ) -> Result<()> {
        self.make_room(core, layers, start.max(round_up(layers.size)), end)
    }

    /// Before the file grows: what its last sector holds behind its end becomes zeros. Linux leaves that on the disk when it
    /// cuts a file, and makes it zeros only now, too.
    pub(super) fn zero_tail(&mut self, core: &Core, layers: Layers<'_>) -> Result<()> {
        if !self.has_tail(core, layers)? {
            return Ok(());
        }
        let size = layers.size;
        let zeros = vec![0; (round_up(size) - size) as usize];
        self.buffer(core, layers, size, &zeros)
    }

    /// Whether an extent holds anything but zeros between the end of the file and that of its sector. In buffers there are
    /// zeros.
    pub(super) fn has_tail(&self, core: &Core, layers: Layers<'_>) -> Result<bool> {
        let (first, end) = (round_down(layers.size), round_up(layers.size));
        match Segments::new(self, layers, first..end).next()? {
            Some((_, Found::Extent(mapped))) if !mapped.prealloc => (),
            _ => return Ok(false),
        }
        let whole = self.sector(core, Layers { size: end, ..layers }, first)?;
        Ok(whole.iter().skip((layers.size - first) as usize).any(|byte| *byte != 0))
    }

    /// A file that is kept in its item moves into a buffer.
    pub(super) fn uninline(&mut self, layers: Layers<'_>) -> Result<()> {
        if layers.size == 0 || layers.size > SECTOR || !layers.any() {
            return Ok(());
        }
        let first = Segments::new(self, layers, 0..SECTOR).next()?;
        let Some((_, Found::Inline(content))) = first else { return Ok(()) };
        let mut bytes = content.into_owned();
        bytes.truncate(layers.size as usize);
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
        offset: u64,
        data: &[u8],
    ) -> Result<()> {
        let (from, to) = (round_up(offset), round_down(offset + data.len() as u64));
        let (head, rest) = data.split_at((from - offset) as usize);
        let (middle, tail) = rest.split_at((to - from) as usize);
        // What may fail comes before anything changes: a write is done or it is not.
        let old_head = self.old_edges(core, layers, offset, head)?;
        let old_tail = self.old_edges(core, layers, to, tail)?;
        self.write_through(core, layers, from, middle)?;
        self.buffer_over(&old_head, offset, head);
        self.buffer_over(&old_tail, to, tail);
        Ok(())
    }
}
