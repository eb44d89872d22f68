//! Where a file's data are: FIEMAP, record for record as Linux answers it.
//!
//! **Which version.** Who shares an extent is known of the last commit ([`crate::refs::owners`]), so a filesystem that is written to
//! commits first, if anything waits, and what it has then is what is told, by the committed tree alone. Linux comes to the same: filefrag
//! asks for the file to be synced first. Where nothing can be committed (a commit has failed; a log that waits could not be replayed in memory, see `replayed.rs`) the
//! layers are told: what is in memory only is `delalloc` and `unknown`, and an extent that no commit knows is shared with nobody.
//!
//! **In parts.** Some thousand extents at a time are looked at under the gate, and commits go on between the parts; what they change of the
//! rest is told as it is then. Memory is that of a part and of [`Options::owners_bytes`](super::Options::owners_bytes), however long the
//! file is and however many snapshots there are. The leaves that have the items are asked for first: one that others reach shares all that
//! it refers to, and of the items of the others it may be known from an earlier walk. The extents that are left are resolved in the order of
//! their addresses, each once in a part, so the extent tree is gone through forwards.
//!
//! **What a record is.** An extent item is told whole when any of it is in the range. Neighbours are one record when they are neighbours in
//! the file and on the disk and have the same flags. Of a compressed extent the address is that of its start, whatever part of it the file
//! has; inline data have none, and are as long as their sector. `last` has the record behind which there are only holes.

use std::collections::VecDeque;
use std::ops::Range;

use buttress_ondisk::{Key, kind};

use super::types::{FileKind, Node};
use super::{Filesystem, Inner};
use crate::error::{Errno, Error, Result};
use crate::inode::file::{Content, FILE_END, ItemAt, Segment};
use crate::refs::owners::{Answers, Asker, Committed, Known, Owners};
use crate::tree::View;
use crate::txn::Op;

/// Extents that are looked at together.
const PART: usize = 1024;

/// Flags of [`FileExtent`], with the numbers of Linux's `fiemap_extent`.
pub mod fiemap_flags {
    /// Nothing but holes comes behind it.
    pub const LAST: u32 = 0x1;
    /// It has no place on the disk yet.
    pub const UNKNOWN: u32 = 0x2;
    /// It is in memory, and gets its place with the next commit.
    pub const DELALLOC: u32 = 0x4;
    /// What is on the disk is not what the file reads as: compressed.
    pub const ENCODED: u32 = 0x8;
    /// Addresses and length may not be those of whole sectors.
    pub const NOT_ALIGNED: u32 = 0x100;
    /// The data are in the file's item.
    pub const INLINE: u32 = 0x200;
    /// Preallocated: it reads as zeros.
    pub const UNWRITTEN: u32 = 0x800;
    /// Other files or subvolumes reach the extent, too, or the file does at several places.
    pub const SHARED: u32 = 0x2000;
}

/// A part of a file that is in one piece in the file and on the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileExtent {
    /// Offset in the file, in bytes.
    pub logical: u64,
    /// Logical address on the filesystem's devices, in bytes; 0 where there is none.
    pub physical: u64,
    /// Bytes of the file.
    pub length: u64,
    /// [`fiemap_flags`].
    pub flags: u32,
}

impl FileExtent {
    /// Where it ends in the file.
    pub fn end(&self) -> u64 {
        self.logical.saturating_add(self.length)
    }

    fn continues(&self, next: &FileExtent) -> bool {
        self.end() == next.logical
            && self.physical.checked_add(self.length) == Some(next.physical)
            && self.flags == next.flags
    }
}

/// The extents of a file, from [`Filesystem::fiemap`]. An error comes after all that lies before what is damaged, and is the last.
#[derive(Debug)]
pub struct Fiemap {
    fs: Filesystem,
    node: Node,
    /// What was not looked at yet.
    rest: Range<u64>,
    /// Where the last extent ends that is not a hole.
    end: u64,
    /// The last record so far, which the next one may continue.
    open: Option<FileExtent>,
    ready: VecDeque<FileExtent>,
    /// What comes after all that is ready.
    failed: Option<Error>,
    /// Room for a part.
    segments: Vec<Segment>,
}

impl Filesystem {
    /// The extents of a regular file that `range` has something of, in order and without holes; see [`FileExtent`]. Space that is
    /// preallocated behind the end of the file is among them. Commits first if anything waits for a commit. `OPNOTSUPP` for what is no
    /// regular file.
    pub fn fiemap(&self, node: Node, range: Range<u64>) -> Result<Fiemap> {
        let fiemap = self.fiemap_committed(node, range)?;
        if !self.is_read_only() {
            self.commit()?;
        }
        Ok(fiemap)
    }

    /// The same of the last commit: what waits for the next one is not told. For who goes on where an earlier call has ended.
    pub fn fiemap_committed(&self, node: Node, range: Range<u64>) -> Result<Fiemap> {
        if self.attributes(node)?.kind != FileKind::Regular {
            return Err(Error::User(Errno::OPNOTSUPP));
        }
        Ok(Fiemap {
            fs: self.replayed(),
            node,
            rest: range,
            end: 0,
            open: None,
            ready: VecDeque::new(),
            failed: None,
            segments: Vec::new(),
        })
    }
}

impl Iterator for Fiemap {
    type Item = Result<FileExtent>;

    fn next(&mut self) -> Option<Result<FileExtent>> {
        while self.ready.is_empty() && !self.rest.is_empty() {
            if let Err(error) = self.part() {
                (self.rest, self.failed) = (0..0, Some(error));
            }
        }
        let next = self.ready.pop_front().or_else(|| self.open.take().map(|one| self.closed(one)));
        next.map(Ok).or_else(|| self.failed.take().map(Err))
    }
}

impl Fiemap {
    /// Looks at the next extents.
    fn part(&mut self) -> Result<()> {
        let fs = self.fs.clone();
        let inner = fs.inner();
        inner.read(|op| {
            let mut known = inner.owners.lock();
            let mut source = Source::new(inner, op, self.node, &mut known)?;
            // Where the last item is damaged, nobody knows what is the last.
            self.end = match source.end() {
                Err(Error::Corrupt(_)) => u64::MAX,
                end => end?,
            };
            let mut segments = std::mem::take(&mut self.segments);
            segments.clear();
            let found = source.put_segments(self.rest.clone(), &mut segments);
            self.rest.start = match segments.last() {
                Some(last) if segments.len() == PART => last.span.end,
                _ => self.rest.end,
            };
            let shared = source.shared(&segments)?;
            segments.iter().zip(shared).for_each(|(one, shared)| self.take(record(one, shared)));
            self.segments = segments;
            found
        })
    }

    fn take(&mut self, next: FileExtent) {
        match &mut self.open {
            Some(open) if open.continues(&next) => open.length += next.length,
            open => {
                if let Some(whole) = open.replace(next) {
                    let whole = self.closed(whole);
                    self.ready.push_back(whole);
                }
            }
        }
    }

    /// A record that nothing continues.
    fn closed(&self, record: FileExtent) -> FileExtent {
        let last = if record.end() >= self.end { fiemap_flags::LAST } else { 0 };
        FileExtent { flags: record.flags | last, ..record }
    }
}

fn record(segment: &Segment, is_shared: bool) -> FileExtent {
    let (logical, length) = (segment.span.start, segment.span.end - segment.span.start);
    let (physical, flags) = match segment.content {
        Content::Buffered => (0, fiemap_flags::DELALLOC | fiemap_flags::UNKNOWN),
        Content::Inline { compressed } => {
            let encoded = if compressed { fiemap_flags::ENCODED } else { 0 };
            (0, encoded | fiemap_flags::NOT_ALIGNED | fiemap_flags::INLINE)
        }
        Content::Extent { bytenr, offset, compressed, prealloc } => {
            let skip = if compressed { 0 } else { offset };
            let encoded = if compressed { fiemap_flags::ENCODED } else { 0 };
            let unwritten = if prealloc { fiemap_flags::UNWRITTEN } else { 0 };
            let shared = if is_shared { fiemap_flags::SHARED } else { 0 };
            (bytenr.saturating_add(skip), encoded | unwritten | shared)
        }
    };
    FileExtent { logical, physical, length, flags }
}

/// A file as it is during one part.
struct Source<'a> {
    inner: &'a Inner,
    op: &'a Op<'a>,
    node: Node,
    owners: Owners<'a>,
    /// The committed tree; nothing when the layers are told.
    view: Option<View<'a>>,
}

impl<'a> Source<'a> {
    fn new(
        inner: &'a Inner,
        op: &'a Op<'a>,
        node: Node,
        known: &'a mut Known,
    ) -> Result<Source<'a>> {
        let roots = op.core.roots();
        let committed = Committed { root: roots.root, chunk: roots.chunk, extent: roots.extent };
        let mut owners = Owners::new(&op.core.blocks, committed, known);
        let waits = inner.subvolume(node.subvolume)?.tree.is_dirty();
        let is_told = !waits || inner.core.check_writable().is_ok();
        let view = if is_told { Some(owners.tree(node.subvolume)?) } else { None };
        Ok(Source { inner, op, node, owners, view })
    }

    /// Puts up to as many as are looked at together into `found`.
    fn put_segments(&self, span: Range<u64>, found: &mut Vec<Segment>) -> Result<()> {
        let (subvolume, inode) = self.inner.find(self.op, self.node)?;
        subvolume.tree.segments(self.op, &inode, self.view, span, PART, found)
    }

    fn segments(&self, span: Range<u64>) -> Result<Vec<Segment>> {
        let mut found = Vec::new();
        self.put_segments(span, &mut found)?;
        Ok(found)
    }

    /// Where the last extent ends that is not a hole.
    fn end(&self) -> Result<u64> {
        let (mut end, first) = (0, Key::new(self.node.ino, kind::EXTENT_DATA, 0));
        let Some(view) = self.view else {
            // What is in memory only is not much.
            let mut next = 0..FILE_END;
            while let Some(last) = self.segments(next.clone())?.last() {
                end = last.span.end;
                next.start = end;
            }
            return Ok(end);
        };
        // Without the feature no-holes, the last items may be those of holes.
        let mut to = Key { offset: u64::MAX, ..first };
        while let Some(key) = view.last_in(&first, &to)?.map(|item| item.key()) {
            if let Some(last) = self.segments(key.offset..key.offset.saturating_add(1))?.last() {
                end = last.span.end;
                break;
            }
            let Some(before) = key.offset.checked_sub(1) else { break };
            to.offset = before;
        }
        Ok(end)
    }

    /// Which of them are in extents that are shared. A leaf is asked for first, and what is known of its items; then those that are left, in
    /// the order of their addresses.
    fn shared(&mut self, segments: &[Segment]) -> Result<Vec<bool>> {
        let (tree, ino) = (self.node.subvolume, self.node.ino);
        let mut shared = vec![false; segments.len()];
        let (mut left, mut at) = (Vec::new(), 0);
        for of_leaf in segments.chunk_by(|a, b| a.leaf() == b.leaf()) {
            let shared = &mut shared[at..at + of_leaf.len()];
            self.shared_in_leaf(of_leaf, shared, |inside, bytenr| {
                left.push((bytenr, of_leaf[inside].place, at + inside));
            })?;
            at += of_leaf.len();
        }
        left.sort_unstable();
        let mut answers = Gathered::default();
        for pieces in left.chunk_by(|a, b| a.0 == b.0) {
            let (bytenr, place, _) = pieces[0];
            let asker = Asker { tree, ino, leaf: place.map(|place| place.leaf) };
            let is_new = place.is_none() && !self.owners.is_known(bytenr)?;
            let is_shared = !is_new && self.owners.is_shared(bytenr, &asker)?;
            for (_, place, at) in pieces {
                shared[*at] = is_shared;
                if let Some(place) = place {
                    answers.add(&mut self.owners, *place, is_shared);
                }
            }
        }
        answers.keep(&mut self.owners);
        Ok(shared)
    }

    /// The same of segments of one leaf, or of none; `left` is told of the extents that it is not known of.
    fn shared_in_leaf(
        &mut self,
        segments: &[Segment],
        shared: &mut [bool],
        mut left: impl FnMut(usize, u64),
    ) -> Result<()> {
        let extents = || {
            segments.iter().enumerate().filter_map(|(at, segment)| match segment.content {
                Content::Extent { bytenr, .. } => Some((at, segment.place, bytenr)),
                _ => None,
            })
        };
        // What is in items is nobody else's, whoever reaches the leaf.
        let Some((_, place, _)) = extents().next() else { return Ok(()) };
        if let Some(place) = place
            && self.owners.is_shared_leaf(place.leaf, self.node.subvolume)?
        {
            extents().for_each(|(at, ..)| shared[at] = true);
            return Ok(());
        }
        let (mut answers, mut group) = (Answers::default(), None);
        for (at, place, bytenr) in extents() {
            let known = place.and_then(|place| {
                let here = Answers::group(place.slot);
                if group.replace(here) != Some(here) {
                    answers = self.owners.answers(place.leaf, place.slot);
                }
                answers.of(place.slot)
            });
            match known {
                Some(known) => shared[at] = known,
                None => left(at, bytenr),
            }
        }
        Ok(())
    }
}

/// Answers of items beside each other, until one comes that is elsewhere.
#[derive(Default)]
struct Gathered {
    at: Option<ItemAt>,
    answers: Answers,
}

impl Gathered {
    fn add(&mut self, owners: &mut Owners<'_>, place: ItemAt, is_shared: bool) {
        let group = |place: ItemAt| (place.leaf, Answers::group(place.slot));
        if self.at.is_none_or(|at| group(at) != group(place)) {
            self.keep(owners);
            *self = Gathered { at: Some(place), answers: Answers::default() };
        }
        self.answers.put(place.slot, is_shared);
    }

    fn keep(&self, owners: &mut Owners<'_>) {
        if let Some(at) = self.at {
            owners.put_answers(at.leaf, at.slot, self.answers);
        }
    }
}
