//! The content of files and symbolic links, as operations see it.

use std::sync::Arc;

use buttress_ondisk::item::inode_flags;
use buttress_ondisk::view::FileExtentItem;
use buttress_ondisk::{Key, SECTOR, kind};
use parking_lot::RwLockReadGuard;

use super::Inode;
use super::attributes::{Attributes, mode};
use super::file::{
    Cache, FileChanges, INLINE_MAX, Layers, Mapping, Seek, Segment, Shared, committed,
};
use super::state::State;
use super::tree::FileTree;
use crate::error::{Errno, Error, Result};
use crate::space::Need;
use crate::tree::View;
use crate::txn::{Core, Op};

/// The largest file: offsets are signed for everyone else.
const SIZE_MAX: u64 = i64::MAX as u64;

/// What [`FileTree::clone_range`] clones from.
#[derive(Clone, Copy, Debug)]
pub struct Source<'a> {
    /// The tree of the file; it may be another one.
    pub tree: &'a FileTree,
    /// The file.
    pub inode: &'a Arc<Inode>,
    /// Where the range starts.
    pub offset: u64,
    /// How many extents an operation may clone, and replace; [`PARTS_MAX`](super::file::PARTS_MAX) at most.
    pub parts: usize,
}

impl Source<'_> {
    fn share(&self, op: &Op<'_>, state: &mut State, len: u64, most: u64) -> Result<Shared> {
        if state.live.file.as_ref().is_some_and(|file| !file.is_empty()) {
            state.touch(self.inode, self.tree, op)?;
        }
        let size = state.attributes.size;
        let (file, layers) = state.file_layers(self.inode.ino, self.tree.view(op.core));
        let shared = file.share(op, layers, size, self.offset, (len, most), self.parts)?;
        shared.made_by(self.tree.id);
        Ok(shared)
    }
}

/// How something is written.
#[derive(Clone, Copy, Debug, Default)]
struct How {
    /// Bytes of space that the caller has been promised; `None`: enough.
    promised: Option<u64>,
    /// Times of change stay as they are.
    keep_times: bool,
}

fn range_end(offset: u64, len: u64) -> Result<u64> {
    let end = offset.checked_add(len).filter(|&end| end <= SIZE_MAX);
    end.ok_or(Error::User(Errno::FBIG))
}

/// Bytes to clone: those asked for, or up to the end of the file.
fn clone_len(state: &State, offset: u64, len: u64) -> Result<u64> {
    must_be_file(state)?;
    let rest = state.attributes.size.checked_sub(offset).ok_or(Error::User(Errno::INVAL))?;
    match len {
        0 => Ok(rest),
        len if len > rest => Err(Error::User(Errno::INVAL)),
        len => Ok(len),
    }
}

/// Bytes that the running transaction has buffered.
fn buffered(state: &State) -> u64 {
    state.live.file.as_deref().map_or(0, FileChanges::dirty_bytes)
}

fn must_be_file(state: &State) -> Result<()> {
    state.alive()?;
    match state.attributes.kind() {
        mode::REGULAR => Ok(()),
        mode::DIRECTORY => Err(Error::User(Errno::ISDIR)),
        _ => Err(Error::User(Errno::INVAL)),
    }
}

impl State {
    /// The live layer of the data, to look at. Of a file that nobody has changed, `nothing` does as well.
    pub(super) fn file_or<'a>(&'a self, nothing: &'a FileChanges) -> &'a FileChanges {
        self.live.file.as_deref().unwrap_or(nothing)
    }
}

/// The state of a file to read from.
pub(super) fn readable(inode: &Inode) -> Result<RwLockReadGuard<'_, State>> {
    let state = inode.read();
    must_be_file(&state)?;
    Ok(state)
}

impl FileTree {
    /// Reads up to `buf.len()` bytes at `offset`; how many there were is returned, 0 at the end of the file, and the file's
    /// attributes.
    pub fn read(
        &self,
        op: &Op<'_>,
        inode: &Inode,
        offset: u64,
        buf: &mut [u8],
    ) -> Result<(usize, Attributes)> {
        let (plan, attributes, is_unchanged) = {
            let (state, nothing) = (readable(inode)?, FileChanges::default());
            let layers = state.layers(inode.ino, self.view(op.core));
            let plan = state.file_or(&nothing).plan(layers, offset, buf)?;
            (plan, self.shown(op.core, inode.ino, &state), state.live.file.is_none())
        };
        let len = plan.run(op.core, buf)?;
        if let Some(cache) = plan.kept() {
            if is_unchanged {
                inode.write().live.file.get_or_insert_default().keep(&cache);
            }
            self.keep(op.core, cache);
        }
        Ok((len, attributes))
    }

    /// Bounds the decompressed extents that files keep: the one kept longest goes.
    fn keep(&self, core: &Core, cache: Arc<Cache>) {
        let mut kept = self.kept.lock();
        if kept.iter().any(|other| Arc::ptr_eq(other, &cache)) {
            return;
        }
        kept.push_back(cache);
        if kept.len() > core.kept_max
            && let Some(first) = kept.pop_front()
        {
            first.clear();
        }
    }

    /// Writes all of `data` at `offset`. By how many bytes that made grow what is buffered and will need space is returned; the
    /// largest number when the buffers were written.
    pub fn write(&self, op: &Op<'_>, inode: &Arc<Inode>, offset: u64, data: &[u8]) -> Result<u64> {
        self.write_how(op, inode, offset, data, How::default())
    }

    /// The same, and times stay: for a cache that sets them itself.
    pub fn write_back(
        &self,
        op: &Op<'_>,
        inode: &Arc<Inode>,
        offset: u64,
        data: &[u8],
    ) -> Result<u64> {
        let how = How { keep_times: true, ..How::default() };
        self.write_how(op, inode, offset, data, how)
    }

    /// The same for a caller who has been promised no space for data: it is taken from what the file has reserved, and
    /// asked for here where the file has not. `NoSpace` when there is none.
    pub fn write_reserved(
        &self,
        op: &Op<'_>,
        inode: &Arc<Inode>,
        offset: u64,
        data: &[u8],
    ) -> Result<u64> {
        let how = How { promised: Some(0), ..How::default() };
        self.write_how(op, inode, offset, data, how)
    }

    /// Gives a new and empty file its content at once, the first `size` bytes of `data` (whole sectors), without changing its
    /// times. Whether it was done: small content and files that had other content are for [`FileTree::write`].
    pub fn fill(&self, op: &Op<'_>, inode: &Arc<Inode>, data: &[u8], size: u64) -> Result<bool> {
        self.writable()?;
        let mut state = inode.write();
        must_be_file(&state)?;
        range_end(0, size)?;
        if size <= INLINE_MAX || state.on_disk || state.attributes.size > 0 {
            return Ok(false);
        }
        state.touch(inode, self, op)?;
        let (file, layers) = state.file_layers(inode.ino, self.view(op.core));
        if layers.any() || !file.is_empty() {
            return Ok(false);
        }
        file.write_fresh(op.core, layers, 0, data)?;
        op.step("content without its size");
        state.attributes.size = size;
        Ok(true)
    }

    /// Writes all of `data` at the end of the file; where that was is returned, and what [`FileTree::write`] returns.
    pub fn append(&self, op: &Op<'_>, inode: &Arc<Inode>, data: &[u8]) -> Result<(u64, u64)> {
        self.writable()?;
        let mut state = inode.write();
        must_be_file(&state)?;
        let offset = state.attributes.size;
        Ok((offset, self.write_locked(op, inode, &mut state, (offset, data), How::default())?))
    }

    fn write_how(
        &self,
        op: &Op<'_>,
        inode: &Arc<Inode>,
        offset: u64,
        data: &[u8],
        how: How,
    ) -> Result<u64> {
        self.writable()?;
        let mut state = inode.write();
        must_be_file(&state)?;
        self.write_locked(op, inode, &mut state, (offset, data), how)
    }

    fn write_locked(
        &self,
        op: &Op<'_>,
        inode: &Arc<Inode>,
        state: &mut State,
        (offset, data): (u64, &[u8]),
        how: How,
    ) -> Result<u64> {
        let end = range_end(offset, data.len() as u64)?;
        if data.is_empty() {
            return Ok(0);
        }
        self.reserve_to_replace(op, inode.ino, state, &(offset..end))?;
        state.touch(inode, self, op)?;
        let before = buffered(state);
        let size = state.attributes.size;
        let last_snapshot = Some(self.last_snapshot());
        let (file, layers) = state.file_layers(inode.ino, self.view(op.core));
        let layers = Layers { last_snapshot, ..layers };
        if let Some(promised) = how.promised {
            let fresh = file.space_for(op.core, layers, offset..end)?;
            let need = Need { data: fresh.saturating_sub(promised), ..Need::default() };
            op.charge(self.id, need.data)?;
            op.core.space.reserve(need).map_err(|_| Error::NoSpace)?;
        }
        file.write(op, layers, offset, data)?;
        op.step("content without its size");
        state.attributes.size = size.max(end);
        if !how.keep_times {
            state.attributes.modified(op.now);
        }
        // Less than before: it went to the disk, and this write with it has used what was promised.
        Ok(buffered(state).checked_sub(before).unwrap_or(u64::MAX))
    }

    /// Cuts or grows a regular file; the caller has touched it.
    pub(super) fn resize(
        &self,
        op: &Op<'_>,
        inode: &Arc<Inode>,
        state: &mut State,
        size: u64,
    ) -> Result<()> {
        must_be_file(state)?;
        if size > SIZE_MAX {
            return Err(Error::User(Errno::FBIG));
        }
        let (file, layers) = state.file_layers(inode.ino, self.view(op.core));
        file.truncate(op, layers, size)?;
        op.step("content without its size");
        state.attributes.size = size;
        state.attributes.modified(op.now);
        Ok(())
    }

    /// Makes a range of the file a hole; its size stays. Where all of it is one already nothing changes, times included, as
    /// on Linux.
    pub fn punch(&self, op: &Op<'_>, inode: &Arc<Inode>, offset: u64, len: u64) -> Result<()> {
        self.writable()?;
        let hole = {
            let (state, nothing) = (readable(inode)?, FileChanges::default());
            let layers = state.layers(inode.ino, self.view(op.core));
            state.file_or(&nothing).is_hole(layers, offset..offset.saturating_add(len))?
        };
        if hole {
            return Ok(());
        }
        self.shape(op, inode, None, |file, layers| file.punch(op, layers, offset, len))
    }

    /// Makes a range zeros with space behind them. The file grows to hold it, unless `keep_size`.
    pub fn zero_range(
        &self,
        op: &Op<'_>,
        inode: &Arc<Inode>,
        offset: u64,
        len: u64,
        keep_size: bool,
    ) -> Result<()> {
        let end = if keep_size { None } else { Some(range_end(offset, len)?) };
        self.shape(op, inode, end, |file, layers| {
            file.zero_range(op, layers, offset, len, keep_size)
        })?;
        self.preallocated(inode);
        Ok(())
    }

    /// Puts space behind a range where there is none. The file grows to hold it, unless `keep_size`.
    pub fn allocate(
        &self,
        op: &Op<'_>,
        inode: &Arc<Inode>,
        offset: u64,
        len: u64,
        keep_size: bool,
    ) -> Result<()> {
        let end = if keep_size { None } else { Some(range_end(offset, len)?) };
        self.shape(op, inode, end, |file, layers| {
            file.allocate(op, layers, offset, len, keep_size)
        })?;
        self.preallocated(inode);
        Ok(())
    }

    /// Changes where the file has data; it grows to `end` when that is given and larger than it is.
    fn shape(
        &self,
        op: &Op<'_>,
        inode: &Arc<Inode>,
        end: Option<u64>,
        change: impl FnOnce(&mut FileChanges, Layers<'_>) -> Result<()>,
    ) -> Result<()> {
        self.writable()?;
        let mut state = inode.write();
        must_be_file(&state)?;
        state.touch(inode, self, op)?;
        let size = state.attributes.size;
        let (file, layers) = state.file_layers(inode.ino, self.view(op.core));
        change(file, layers)?;
        op.step("content without its size");
        state.attributes.size = size.max(end.unwrap_or(0));
        state.attributes.modified(op.now);
        Ok(())
    }

    fn preallocated(&self, inode: &Inode) {
        let mut state = inode.write();
        state.attributes.flags |= inode_flags::PREALLOC;
        state.ends_plainly = false;
    }

    /// The first data or hole at or after `offset`; ENXIO behind the end of the file.
    pub fn seek(&self, op: &Op<'_>, inode: &Inode, offset: u64, what: Seek) -> Result<u64> {
        let (state, nothing) = (readable(inode)?, FileChanges::default());
        let layers = state.layers(inode.ino, self.view(op.core));
        state.file_or(&nothing).seek(layers, offset, what)
    }

    /// Bytes of a range of the file that are in no extent.
    pub fn hole_bytes(&self, op: &Op<'_>, inode: &Inode, start: u64, end: u64) -> Result<u64> {
        let (state, nothing) = (readable(inode)?, FileChanges::default());
        let layers = state.layers(inode.ino, self.view(op.core));
        state.file_or(&nothing).hole_bytes(layers, start, end)
    }

    /// What a range of the file has, in order, without holes.
    pub fn extents(
        &self,
        op: &Op<'_>,
        inode: &Inode,
        start: u64,
        end: u64,
    ) -> Result<Vec<Mapping>> {
        let (state, nothing) = (readable(inode)?, FileChanges::default());
        let layers = state.layers(inode.ino, self.view(op.core));
        state.file_or(&nothing).extents(layers, start, end)
    }

    /// Puts into `found` where the parts of a file are that `span` has something of, until there are `most`: as the committed version
    /// `view` of the tree has them, or else as the layers have them.
    pub fn segments(
        &self,
        op: &Op<'_>,
        inode: &Inode,
        view: Option<View<'_>>,
        span: std::ops::Range<u64>,
        most: usize,
        found: &mut Vec<Segment>,
    ) -> Result<()> {
        let (state, nothing) = (readable(inode)?, FileChanges::default());
        if let Some(view) = view {
            return committed(view, inode.ino, span, most, found);
        }
        let layers = state.layers(inode.ino, self.view(op.core));
        state.file_or(&nothing).segments(layers, span, most, found)
    }

    /// Makes `to.offset` of a file of this tree hold what `len` bytes of another file do, without copying them; 0 means up to the
    /// end of that file. EINVAL when the ranges overlap, do not start with sectors or end with a sector or the file, or when
    /// only one of the files has checksums. It is done for as many extents as the source says; for how many bytes that
    /// was is returned, and the caller goes on behind them.
    pub fn clone_range(
        &self,
        op: &Op<'_>,
        from: Source<'_>,
        inode: &Arc<Inode>,
        offset: u64,
        len: u64,
    ) -> Result<u64> {
        self.writable()?;
        if from.tree.id == self.id && from.inode.ino == inode.ino {
            let mut state = inode.write();
            let len = clone_len(&state, from.offset, len)?;
            if offset < from.offset.saturating_add(len) && from.offset < offset.saturating_add(len)
            {
                return Err(Error::User(Errno::INVAL));
            }
            let most = self.clone_most(op, inode.ino, &mut state, (offset, len), from.parts)?;
            let shared = from.share(op, &mut state, len, most)?;
            return self.clone_into(op, inode, &mut state, offset, shared);
        }
        let (mut source, mut target);
        if (from.tree.id, from.inode.ino) < (self.id, inode.ino) {
            source = from.inode.write();
            target = inode.write();
        } else {
            target = inode.write();
            source = from.inode.write();
        }
        let len = clone_len(&source, from.offset, len)?;
        must_be_file(&target)?;
        if !FileChanges::may_share(source.attributes.flags, target.attributes.flags) {
            return Err(Error::User(Errno::INVAL));
        }
        let most = self.clone_most(op, inode.ino, &mut target, (offset, len), from.parts)?;
        let shared = from.share(op, &mut source, len, most)?;
        if from.tree.id != self.id {
            op.charge_shared(self.id, shared.disk_bytes(), from.tree.id)?;
        }
        self.clone_into(op, inode, &mut target, offset, shared)
    }

    /// How many bytes at `offset`, of `len`, one operation may clone to for the sake of what is there.
    fn clone_most(
        &self,
        op: &Op<'_>,
        ino: u64,
        state: &mut State,
        (offset, len): (u64, u64),
        parts: usize,
    ) -> Result<u64> {
        // Nothing may be made ready for sharing that ends within a sector.
        if !offset.is_multiple_of(SECTOR) {
            return Err(Error::User(Errno::INVAL));
        }
        let end = range_end(offset, len)?.div_ceil(SECTOR).saturating_mul(SECTOR);
        let (file, layers) = state.file_layers(ino, self.view(op.core));
        Ok(file.near(layers, offset..end, parts)?.saturating_sub(offset))
    }

    fn clone_into(
        &self,
        op: &Op<'_>,
        inode: &Arc<Inode>,
        state: &mut State,
        offset: u64,
        shared: Shared,
    ) -> Result<u64> {
        let len = shared.bytes();
        let end = range_end(offset, len)?;
        // What the committing transaction has not placed yet is copied. The caller has reserved for less than this.
        if let copied @ SECTOR.. = shared.copied() {
            op.charge(self.id, copied)?;
            let need = Need { data: copied, ..Need::default() };
            op.core.space.reserve(need).map_err(|_| Error::NoSpace)?;
            op.leave_bytes(copied);
        }
        self.reserve_to_replace(op, inode.ino, state, &(offset..end))?;
        state.touch(inode, self, op)?;
        let size = state.attributes.size;
        let (file, layers) = state.file_layers(inode.ino, self.view(op.core));
        file.clone_from(op, layers, size, offset, shared)?;
        op.step("content without its size");
        state.attributes.size = size.max(end);
        state.attributes.modified(op.now);
        Ok(len)
    }

    /// Where a symbolic link leads.
    pub fn read_link(&self, op: &Op<'_>, inode: &Inode) -> Result<Vec<u8>> {
        let state = inode.read();
        state.alive()?;
        if state.attributes.kind() != mode::SYMLINK {
            return Err(Error::User(Errno::INVAL));
        }
        let frozen = state.frozen_changes().and_then(|changes| changes.symlink.as_deref());
        if let Some(target) = state.live.symlink.as_deref().or(frozen) {
            return Ok(target.to_vec());
        }
        let key = Key::new(inode.ino, kind::EXTENT_DATA, 0);
        let item = if state.on_disk { self.view(op.core).get(&key)? } else { None };
        match item.as_ref().and_then(|item| FileExtentItem::read(item.data())) {
            Some(FileExtentItem::Inline { compression: 0, data, .. }) => {
                Ok(link_target(data, state.attributes.size).to_vec())
            }
            _ => Err(Error::inconsistent(self.id, "a symbolic link has no inline extent", key)),
        }
    }
}

/// Where a symbolic link of so many bytes leads: `mkfs.btrfs --rootdir` and `btrfs-convert` store a zero behind it, which its size does not count.
pub(super) fn link_target(data: &[u8], size: u64) -> &[u8] {
    let len = usize::try_from(size).unwrap_or(usize::MAX);
    let target = data.get(..len).unwrap_or(data);
    target.split(|byte| *byte == 0).next().unwrap_or_default()
}
