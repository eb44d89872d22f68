//! Preparing a frozen layer for the commit: everything gets its place on the disk, what is not used goes back, and the
//! inode's `nbytes` is settled. After this the layer does not change any more.

use buttress_ondisk::SECTOR;
use buttress_ondisk::view::FileExtentItem;

use super::changes::{FILE_END, FileChanges};
use super::flush::{Layered, flush_all};
use super::layers::{Found, Layers, Segments, TreeWalk};
use super::piece::Piece;
use super::ranges::{Span, len, overlap};
use crate::error::Result;
use crate::txn::Core;

/// Files of at most this many bytes are kept in their item, as the kernel does by default (`max_inline`).
pub const INLINE_MAX: u64 = 2048;

/// What preparing a layer tells about the inode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Prepared {
    /// Bytes of content that the layer adds.
    pub added: u64,
    /// Bytes of content in the tree that the layer replaces.
    pub removed: u64,
}

impl Prepared {
    /// The inode's `nbytes` after the commit, from that before.
    pub fn nbytes(&self, before: u64) -> u64 {
        before.saturating_add(self.added).saturating_sub(self.removed)
    }
}

/// Prepares layers, each the lowest above its tree (`layers.frozen` is none). A second call changes nothing.
pub fn prepare(core: &Core, files: &mut [Layered<'_, '_>]) -> Result<Vec<Prepared>> {
    for (file, layers) in &mut *files {
        layers.frozen = None;
        let digest = layers.digest_size(core);
        let either = |first| file.check_prepared(digest).map_err(|_| first);
        debug_assert_eq!(file.check(digest).or_else(either), Ok(()));
        file.try_inline(*layers)?;
    }
    flush_all(core, files, false)?;
    files.iter_mut().map(|(file, layers)| file.settle(core, *layers)).collect()
}

impl FileChanges {
    /// Everything has its place.
    fn settle(&mut self, core: &Core, layers: Layers<'_>) -> Result<Prepared> {
        self.give_back(core)?;
        let added = self.pieces.iter().map(|(span, piece)| piece.nbytes(&span)).sum();
        let removed = self.count_replaced(layers)?;
        (self.mapped, self.settled) = (0, true);
        debug_assert_eq!(self.check_prepared(layers.digest_size(core)), Ok(()));
        Ok(Prepared { added, removed })
    }

    /// Moves a small file that is buffered as a whole into its item.
    fn try_inline(&mut self, layers: Layers<'_>) -> Result<()> {
        let Some(content) = self.inline_content(layers)? else { return Ok(()) };
        let piece = Piece::Inline(content.into(), None);
        self.put(0..SECTOR, piece);
        Ok(())
    }

    /// The content of a small file that is buffered as a whole.
    pub(super) fn inline_content(&self, layers: Layers<'_>) -> Result<Option<&[u8]>> {
        // What has space of its own goes there.
        let size = layers.size;
        if size == 0 || size > INLINE_MAX || !self.prealloc.is_empty() {
            return Ok(None);
        }
        let Some((span, buffer)) = self.buffers.at(0) else { return Ok(None) };
        let Some(content) = buffer.0.get(..size as usize) else { return Ok(None) };
        if span.start != 0 || span.end != SECTOR {
            return Ok(None);
        }
        // Space preallocated behind the end of the file and an inline extent do not go together.
        let mut behind = Segments::new(self, layers, SECTOR..FILE_END);
        while let Some((_, found)) = behind.next()? {
            if !matches!(found, Found::Hole) {
                return Ok(None);
            }
        }
        Ok(Some(content))
    }

    /// The ranges that this layer covers, neighbours joined.
    pub(super) fn regions(&self) -> impl Iterator<Item = Span> + '_ {
        let mut pieces = self.pieces.iter().map(|(span, _)| span).peekable();
        std::iter::from_fn(move || {
            let mut region = pieces.next()?;
            while let Some(next) = pieces.next_if(|next| next.start == region.end) {
                region.end = next.end;
            }
            Some(region)
        })
    }

    /// Sums what the tree holds in the covered ranges, and notes where extents reach into them from before.
    fn count_replaced(&mut self, layers: Layers<'_>) -> Result<u64> {
        let mut edges = Vec::new();
        let mut removed: u64 = 0;
        if layers.in_tree {
            let mut walk = TreeWalk::new(layers);
            for region in self.regions() {
                let mut pos = region.start;
                while pos < region.end {
                    let Some((span, body)) = walk.at(pos)? else { break };
                    if span.start >= region.end {
                        break;
                    }
                    if span.start < region.start {
                        edges.push((region.start, span.start));
                    }
                    removed = removed.saturating_add(content(&body, &overlap(&span, &region)));
                    pos = span.end;
                }
            }
        }
        self.edges = edges;
        Ok(removed)
    }
}

/// What an item counts for in `nbytes` with the part of it that is in `part`.
fn content(body: &FileExtentItem<'_>, part: &Span) -> u64 {
    match body {
        FileExtentItem::Inline { ram_bytes, .. } => *ram_bytes,
        FileExtentItem::Regular { disk_bytenr: 0, .. } => 0,
        FileExtentItem::Regular { .. } => len(part),
    }
}
