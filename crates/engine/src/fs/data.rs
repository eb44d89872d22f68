//! The content of files by number.

use buttress_ondisk::SECTOR;
use buttress_ondisk::item::inode_flags;

use super::own::About;
use super::run::{deleting, need, plus};
use super::types::{Allocate, Attributes, Node};
use super::{Filesystem, Mapping, Seek};
use crate::error::{Errno, Error, Result};
use crate::inode::file::{DIRECT_MIN, PARTS_MAX};
use crate::inode::{FEW, Source, Step, letting_go};
use crate::space::{NOBODY, Need};

/// Bytes that one operation writes at most.
const WRITE_LEN: usize = 8 << 20;
/// Bytes that one operation allocates or clears at most.
const SHAPE_LEN: u64 = 256 << 20;
/// Leaves that a write may touch: of the inode, and of its extents.
const WRITE_LEAVES: u32 = 3;
/// Extents that a write gains, and lets go of without asking.
const WRITE_REFS: u32 = 4;
/// Extents that whoever shapes a file gains or lets go of without asking.
const SHAPE_REFS: u32 = 8;

/// Where something is written.
#[derive(Clone, Copy)]
enum To {
    Offset(u64),
    /// By a cache that sets times itself.
    OffsetFromCache(u64),
    End,
}

impl Filesystem {
    /// Reads up to `buf.len()` bytes at `offset`; answers how many there were, 0 at the end.
    pub fn read(&self, node: Node, offset: u64, buf: &mut [u8]) -> Result<usize> {
        self.read_and_look(node, offset, buf).map(|(len, _)| len)
    }

    /// The same, and what `stat` told when it was read: who keeps access times needs not find the file a second time.
    pub fn read_and_look(
        &self,
        node: Node,
        offset: u64,
        buf: &mut [u8],
    ) -> Result<(usize, Attributes)> {
        let inner = self.inner();
        inner.read(|op| {
            let (subvolume, inode) = inner.find(op, node)?;
            let (len, attributes) = subvolume.tree.read(op, &inode, offset, buf)?;
            Ok((len, Attributes::of(node, &attributes)))
        })
    }

    /// Moves the access time to now, and no other time.
    pub fn accessed(&self, node: Node) -> Result<()> {
        let inner = self.inner();
        inner.change_at(node, need(1, 0), |op, subvolume, inode| subvolume.tree.accessed(op, inode))
    }

    /// Writes `data` at `offset`; answers how much was written: less than all only when there was no more room.
    pub fn write(&self, node: Node, offset: u64, data: &[u8]) -> Result<usize> {
        let mut done = 0;
        for part in data.chunks(WRITE_LEN) {
            match self.write_part(node, offset.saturating_add(done as u64), part) {
                Ok(()) => done += part.len(),
                Err(error) if done == 0 => return Err(error),
                Err(_) => break,
            }
        }
        Ok(done)
    }

    /// Writes at the end of the file, wherever that is then: nobody else's data come between. Answers where that was, and
    /// how much was written: at least one byte, and less than all when it is much.
    pub fn append(&self, node: Node, data: &[u8]) -> Result<(u64, usize)> {
        let part = &data[..data.len().min(WRITE_LEN)];
        Ok((self.write_at(node, To::End, part, false)?, part.len()))
    }

    /// Gives a new and empty file its whole content, and leaves its times as they are. It goes to the disk at once: nothing of
    /// it stays in memory, as it would with [`Filesystem::write`]. The content is the first `size` bytes of `data`, which ends
    /// with the last sector of it, zeros behind the end. Whether it was done: content that fits into an item, and files that
    /// have had other content, are refused so.
    pub fn fill(&self, node: Node, data: &[u8], size: u64) -> Result<bool> {
        let inner = self.inner();
        let sectors = size.div_ceil(SECTOR);
        if data.len() as u64 != sectors * SECTOR {
            return Err(Error::User(Errno::INVAL));
        }
        let sums = sectors as usize * self.core().features.csum.size();
        let need =
            Need { data: sectors * SECTOR, refs: WRITE_REFS, ..need(WRITE_LEAVES, 300 + sums) };
        let need = Need { charged_to: node.subvolume, ..need };
        inner.ready(node)?;
        inner.change_through(need, |op| {
            let (subvolume, inode) = inner.find(op, node)?;
            let filled = subvolume.tree.fill(op, &inode, data, size)?;
            if !filled {
                op.unreserve(need);
            }
            Ok(filled)
        })
    }

    fn write_part(&self, node: Node, offset: u64, data: &[u8]) -> Result<()> {
        match self.write_at(node, To::Offset(offset), data, true) {
            // The file may have space of its own.
            Err(Error::NoSpace | Error::User(Errno::DQUOT)) if self.has_reserved(node)? => {
                self.write_reserved(node, offset, data)
            }
            Err(Error::NoSpace)
                if self.inner().reclaim_for(self.write_need(data.len() as u64))? =>
            {
                self.write_at(node, To::Offset(offset), data, false).map(drop)
            }
            done => done.map(drop),
        }
    }

    /// Whether space may be reserved for the file.
    fn has_reserved(&self, node: Node) -> Result<bool> {
        let inner = self.inner();
        inner.read(|op| {
            let (_, inode) = inner.find(op, node)?;
            Ok(inode.attributes_now().flags & inode_flags::PREALLOC != 0)
        })
    }

    /// Writes to space that the file has reserved, where there is no other.
    fn write_reserved(&self, node: Node, offset: u64, data: &[u8]) -> Result<()> {
        let need = Need { data: 0, ..self.write_need(data.len() as u64) };
        self.inner().change_at(node, need, |op, subvolume, inode| {
            subvolume.tree.write_reserved(op, inode, offset, data).map(|_| ())
        })
    }

    /// Writes like [`Filesystem::write`], and times of change stay: for a cache that sets them itself. At most 8 MiB.
    pub fn write_back(&self, node: Node, offset: u64, data: &[u8]) -> Result<usize> {
        let part = &data[..data.len().min(WRITE_LEN)];
        match self.write_at(node, To::OffsetFromCache(offset), part, true) {
            Err(Error::NoSpace | Error::User(Errno::DQUOT)) => self.write(node, offset, part),
            done => done.map(|_| part.len()),
        }
    }

    /// Writes at one place; answers where that is. `modest`: whoever asks has something else to try.
    fn write_at(&self, node: Node, to: To, data: &[u8], modest: bool) -> Result<u64> {
        let inner = self.inner();
        let need = Need { modest, ..self.write_need(data.len() as u64) };
        inner.change_at(node, need, |op, subvolume, inode| {
            let tree = &subvolume.tree;
            let (at, buffered) = match to {
                To::Offset(offset) => (offset, tree.write(op, inode, offset, data)?),
                To::OffsetFromCache(offset) => (offset, tree.write_back(op, inode, offset, data)?),
                To::End => tree.append(op, inode, data)?,
            };
            // What overwrites a buffer needs no more room than that had.
            if (data.len() as u64) < DIRECT_MIN {
                let spare = need.data.saturating_sub(buffered);
                let charged_to = node.subvolume;
                op.unreserve(Need { data: spare, charged_to, ..Need::default() });
            }
            Ok(at)
        })
    }

    /// What writing `len` bytes may take.
    fn write_need(&self, len: u64) -> Need {
        let sectors = len.div_ceil(SECTOR) + 2;
        let sums = sectors as usize * self.core().features.csum.size();
        Need { data: sectors * SECTOR, refs: WRITE_REFS, ..need(WRITE_LEAVES, 300 + sums) }
    }

    /// Gives a range space, or takes it away.
    pub fn fallocate(&self, node: Node, mode: Allocate, offset: u64, len: u64) -> Result<()> {
        let end = offset.checked_add(len).filter(|end| *end <= i64::MAX as u64);
        let end = end.ok_or(Error::User(Errno::FBIG))?;
        if len == 0 {
            return Err(Error::User(Errno::INVAL));
        }
        // A hole costs nothing, and its edges must be where the caller wants them.
        if mode == Allocate::PunchHole || len <= SHAPE_LEN {
            return self.shape(node, mode, offset, len);
        }
        self.check_room(node, offset, end)?;
        let mut at = offset;
        while at < end {
            let to = end.min((at + SHAPE_LEN) / SECTOR * SECTOR);
            // The file grows when all of it is done.
            self.shape(node, if to < end { mode.keeping_size() } else { mode }, at, to - at)?;
            at = to;
        }
        Ok(())
    }

    /// Refuses a range that there is no room for, before the first of several steps changes anything.
    fn check_room(&self, node: Node, offset: u64, end: u64) -> Result<()> {
        let inner = self.inner();
        let data = inner.read(|op| {
            let (subvolume, inode) = inner.find(op, node)?;
            subvolume.tree.hole_bytes(op, &inode, offset, end)
        })?;
        self.check_need(node, Need { data, charged_to: node.subvolume, ..need(6, 4000) })
    }

    fn check_need(&self, node: Node, need: Need) -> Result<()> {
        self.inner().change_at(node, need, |op, _, _| {
            op.unreserve(need);
            Ok(())
        })
    }

    fn shape(&self, node: Node, mode: Allocate, offset: u64, len: u64) -> Result<()> {
        let inner = self.inner();
        let need = Need { data: len + 3 * SECTOR, refs: SHAPE_REFS, ..need(6, 4000) };
        match mode {
            Allocate::PunchHole => self.punch(node, offset, offset.saturating_add(len)),
            Allocate::Reserve { keep_size } => {
                let need = Need { charged_to: NOBODY, ..need };
                inner.change_at(node, need, |op, subvolume, inode| {
                    // What is there already is not allocated again.
                    if op.core.charges.are_limited() {
                        let end = offset.saturating_add(len);
                        let data = subvolume.tree.hole_bytes(op, inode, offset, end)?;
                        op.charge_need(Need { data, charged_to: node.subvolume, ..need })?;
                    }
                    subvolume.tree.allocate(op, inode, offset, len, keep_size)
                })
            }
            Allocate::ZeroRange { keep_size } => {
                // If there is much, that goes first, in steps; but nothing does where there is no room for what comes in its place.
                let whole = offset.next_multiple_of(SECTOR)..(offset + len) / SECTOR * SECTOR;
                if whole.start < whole.end {
                    self.check_need(node, Need { charged_to: node.subvolume, ..need })?;
                    self.thin(node, whole.start, whole.end)?;
                }
                inner.change_at(node, plus(need, letting_go(FEW)), |op, subvolume, inode| {
                    subvolume.tree.zero_range(op, inode, offset, len, keep_size)
                })
            }
        }
    }

    /// Makes a range a hole, from its end on where it has many extents.
    fn punch(&self, node: Node, offset: u64, end: u64) -> Result<()> {
        let inner = self.inner();
        inner.ready(node)?;
        // Only parts of sectors are written anew: a full filesystem can always let go of whole ones.
        let data = if (offset | end).is_multiple_of(SECTOR) { 0 } else { 2 * SECTOR };
        let mut end = end;
        let need = Need { data, charged_to: node.subvolume, ..deleting(2, 400) };
        inner.in_steps(About::File(node), need, |op, extents| {
            let (subvolume, inode) = inner.find(op, node)?;
            let step = subvolume.tree.punch_step(op, &inode, offset, &mut end, extents)?;
            Ok((step == Step::Done).then_some(()))
        })
    }

    /// Makes a range a hole if it has more than a few extents.
    fn thin(&self, node: Node, offset: u64, end: u64) -> Result<()> {
        let inner = self.inner();
        inner.ready(node)?;
        let mut end = end;
        inner.in_steps(About::File(node), deleting(2, 400), |op, extents| {
            let (subvolume, inode) = inner.find(op, node)?;
            let step = subvolume.tree.thin_step(op, &inode, offset, &mut end, extents)?;
            Ok((step == Step::Done).then_some(()))
        })
    }

    /// Makes `len` bytes of `to` at `to_offset` share their extents with those of `from`; what lies beyond the end of
    /// `from` is left out. Offsets are starts of sectors, and the range ends with a sector or with `from`. Answers how many
    /// bytes are shared now. Where that fails for want of room the first part may be shared, as on Linux.
    pub fn clone_range(
        &self,
        from: Node,
        from_offset: u64,
        len: u64,
        to: Node,
        to_offset: u64,
    ) -> Result<u64> {
        let inner = self.inner();
        let size = self.attributes(from)?.size;
        let len = len.min(size.saturating_sub(from_offset));
        if from == to && from_offset.abs_diff(to_offset) < len {
            return Err(Error::User(Errno::INVAL));
        }
        // A file of many extents goes in steps, as on Linux: a crash between them leaves the first part of the clone.
        let (mut done, mut end, mut parts) = (0, len, PARTS_MAX);
        while done < end {
            let modest = parts > 1;
            let need = Need { data: 4 * SECTOR, refs: SHAPE_REFS, modest, ..need(6, 4000) };
            let step = inner.change_at(to, need, |op, target, inode| {
                let (source, other) = inner.find(op, from)?;
                let offset = from_offset + done;
                let source = Source { tree: &source.tree, inode: &other, offset, parts };
                target.tree.clone_range(op, source, inode, to_offset + done, end - done)
            });
            done += match step {
                // Since the first step a file has got another end, the same file by this clone perhaps. So its last sector is none that
                // can be shared any more.
                Err(Error::User(Errno::INVAL)) if done > 0 && !end.is_multiple_of(SECTOR) => {
                    end -= end % SECTOR;
                    0
                }
                // Less at a time needs less room.
                Err(Error::NoSpace) if parts > 1 => {
                    parts = (parts / 8).max(1);
                    0
                }
                step => step?,
            };
        }
        let mut last = [0; SECTOR as usize];
        let rest = last.get_mut(..(len - end) as usize).unwrap_or_default();
        if !rest.is_empty() {
            let there = self.read(from, from_offset + end, rest)?;
            done += self.write(to, to_offset + end, &rest[..there])? as u64;
        }
        Ok(done)
    }

    /// The first data or hole at or after `offset`; ENXIO when there is none before the end.
    pub fn seek(&self, node: Node, offset: u64, what: Seek) -> Result<u64> {
        let inner = self.inner();
        inner.read(|op| {
            let (subvolume, inode) = inner.find(op, node)?;
            subvolume.tree.seek(op, &inode, offset, what)
        })
    }

    /// What the file has in a range, in order, without holes.
    pub fn extents(&self, node: Node, range: std::ops::Range<u64>) -> Result<Vec<Mapping>> {
        let inner = self.inner();
        inner.read(|op| {
            let (subvolume, inode) = inner.find(op, node)?;
            subvolume.tree.extents(op, &inode, range.start, range.end)
        })
    }
}
