//! One file seen through its layers: what is buffered, over what else is pending, over the same of the committing
//! transaction, over the tree.

use std::borrow::Cow;
use std::sync::Arc;

use buttress_codec::CompressionKind;
use buttress_codec::compress::decompress_inline;
use buttress_ondisk::item::inode_flags;
use buttress_ondisk::view::FileExtentItem;
use buttress_ondisk::{Key, SECTOR, kind};

use super::changes::{FileChanges, round_up};
use super::piece::{Piece, SharedExtent};
use super::ranges::{Span, len};
use crate::error::{Error, Result};
use crate::tree::{Cursor, Item, View};
use crate::txn::Core;

/// Items that are stepped over before the tree is searched anew.
const STEPS_MAX: usize = 16;

/// What lies below the layer that an operation works on.
#[derive(Clone, Copy, Debug)]
pub struct Layers<'a> {
    /// The inode's number.
    pub ino: u64,
    /// The file's size in the layer that an operation works on, before it changes anything.
    pub size: u64,
    /// Whether the tree may hold extents of the file.
    pub in_tree: bool,
    /// The layer of the transaction that commits.
    pub frozen: Option<&'a FileChanges>,
    /// The version of the tree below that.
    pub view: View<'a>,
    /// The inode's flags.
    pub flags: u64,
    /// The last transaction after which a snapshot may share the file's extents. With it, reserved space may be written to
    /// where it is; without it, never.
    pub last_snapshot: Option<u64>,
}

impl Layers<'_> {
    /// Whether new data gets checksums, and old data has them.
    pub(super) fn sums(&self) -> bool {
        self.flags & inode_flags::NODATASUM == 0
    }

    /// Bytes of a checksum, if the file's data have any.
    pub(super) fn digest_size(&self, core: &Core) -> Option<usize> {
        self.sums().then(|| core.features.csum.size())
    }

    /// Whether lower layers may hold anything of the file.
    pub fn any(&self) -> bool {
        self.in_tree || self.frozen.is_some_and(|frozen| !frozen.is_empty())
    }
}

/// The layer in which something was found.
#[derive(Clone, Copy, Debug)]
pub(super) enum Layer<'a> {
    Live(&'a FileChanges),
    Frozen(&'a FileChanges),
    Tree,
}

/// Part of a data extent.
#[derive(Clone, Debug)]
pub(super) struct Mapped<'a> {
    /// Address, length on the disk and length of content of the whole extent.
    pub bytenr: u64,
    pub disk_len: u64,
    pub ram_len: u64,
    /// Where in the content the part starts.
    pub offset: u64,
    pub compression: u8,
    pub prealloc: bool,
    pub layer: Layer<'a>,
    pub shared: Option<&'a Arc<SharedExtent>>,
}

/// What a range of the file holds.
#[derive(Clone, Debug)]
pub(super) enum Found<'a> {
    /// Zeros, and no space.
    Hole,
    /// Buffered data: exactly the range's.
    Bytes(&'a [u8]),
    /// The whole file, from offset 0 on.
    Inline(Cow<'a, [u8]>),
    /// An extent on the disk.
    Extent(Mapped<'a>),
}

impl FileChanges {
    /// What this layer holds at `pos`; `until` moves down to where that ends.
    fn look<'a>(&'a self, pos: u64, until: &mut u64, layer: Layer<'a>) -> Option<Found<'a>> {
        if let Some((span, buffer)) = self.buffers.at(pos) {
            *until = span.end.min(*until);
            let part = (pos - span.start) as usize..(*until - span.start) as usize;
            return buffer.0.get(part).map(Found::Bytes);
        }
        *until = self.buffers.next_start(pos).unwrap_or(u64::MAX).min(*until);
        let Some((span, piece)) = self.pieces.at(pos) else {
            *until = self.pieces.next_start(pos).unwrap_or(u64::MAX).min(*until);
            return None;
        };
        *until = span.end.min(*until);
        let skip = pos - span.start;
        Some(match piece {
            Piece::Hole => Found::Hole,
            Piece::Inline(bytes, _) => Found::Inline(Cow::Borrowed(bytes)),
            Piece::New { bytenr, prealloc } => Found::Extent(Mapped {
                bytenr: *bytenr,
                disk_len: len(&span),
                ram_len: len(&span),
                offset: skip,
                compression: 0,
                prealloc: *prealloc,
                layer,
                shared: None,
            }),
            Piece::Extent(extent) => Found::Extent(Mapped {
                bytenr: extent.bytenr,
                disk_len: extent.disk_len,
                ram_len: extent.ram_len,
                offset: extent.offset.saturating_add(skip),
                compression: extent.compression,
                prealloc: extent.prealloc,
                layer: if extent.shared.is_some() || extent.written { layer } else { Layer::Tree },
                shared: extent.shared.as_ref(),
            }),
        })
    }
}

/// Goes forward over a range of a file, and says what it holds.
#[derive(Debug)]
pub(super) struct Segments<'a> {
    live: &'a FileChanges,
    layers: Layers<'a>,
    pos: u64,
    end: u64,
    tree: TreeWalk<'a>,
}

impl<'a> Segments<'a> {
    /// Over `span` of the file that `live` changes.
    pub fn new(live: &'a FileChanges, layers: Layers<'a>, span: Span) -> Segments<'a> {
        Segments { live, layers, pos: span.start, end: span.end, tree: TreeWalk::new(layers) }
    }

    /// Goes on with `span`, which is behind all that was gone over.
    pub fn go_to(&mut self, span: &Span) {
        (self.pos, self.end) = (span.start, span.end);
    }

    /// The next part of the range, or `None` at its end. Two parts that follow each other may hold the same.
    pub fn next(&mut self) -> Result<Option<(Span, Found<'a>)>> {
        if self.pos >= self.end {
            return Ok(None);
        }
        let (pos, mut until) = (self.pos, self.end);
        let mut found = self.live.look(pos, &mut until, Layer::Live(self.live));
        if let (None, Some(frozen)) = (&found, self.layers.frozen) {
            found = frozen.look(pos, &mut until, Layer::Frozen(frozen));
        }
        let found = match found {
            Some(found) => found,
            None => self.tree.look(pos, &mut until)?,
        };
        self.pos = until;
        Ok(Some((pos..until, found)))
    }
}

/// An item of the tree with extent data.
#[derive(Debug)]
struct TreeExtent {
    span: Span,
    item: Item,
}

/// Goes forward over the extents that the tree holds.
#[derive(Debug)]
pub(super) struct TreeWalk<'a> {
    layers: Layers<'a>,
    cursor: Option<Cursor<'a>>,
    current: Option<TreeExtent>,
}

/// The key of the extent at `offset` of file `ino`.
pub(super) fn extent_key(ino: u64, offset: u64) -> Key {
    Key::new(ino, kind::EXTENT_DATA, offset)
}

impl<'a> TreeWalk<'a> {
    /// Over the tree under `layers`.
    pub fn new(layers: Layers<'a>) -> TreeWalk<'a> {
        TreeWalk { layers, cursor: None, current: None }
    }

    /// The range, start and body of the extent that holds `pos` or, when none does, of the next one.
    pub fn at(&mut self, pos: u64) -> Result<Option<(Span, FileExtentItem<'_>)>> {
        if !self.layers.in_tree {
            return Ok(None);
        }
        self.advance(pos)?;
        match &self.current {
            None => Ok(None),
            Some(TreeExtent { span, item }) => Ok(Some((span.clone(), self.decode(item)?))),
        }
    }

    fn look(&mut self, pos: u64, until: &mut u64) -> Result<Found<'a>> {
        let Some((span, body)) = self.at(pos)? else { return Ok(Found::Hole) };
        if span.start > pos {
            *until = span.start.min(*until);
            return Ok(Found::Hole);
        }
        *until = span.end.min(*until);
        let FileExtentItem::Regular {
            ram_bytes,
            compression,
            prealloc,
            disk_bytenr,
            disk_num_bytes,
            offset,
            ..
        } = body
        else {
            let content = inline_content(&body);
            return content.map(|it| Found::Inline(it.into())).ok_or_else(|| self.damaged(pos));
        };
        if disk_bytenr == 0 {
            return Ok(Found::Hole);
        }
        Ok(Found::Extent(Mapped {
            bytenr: disk_bytenr,
            disk_len: disk_num_bytes,
            ram_len: ram_bytes,
            offset: offset.saturating_add(pos - span.start),
            compression,
            prealloc,
            layer: Layer::Tree,
            shared: None,
        }))
    }

    fn damaged(&self, pos: u64) -> Error {
        let key = extent_key(self.layers.ino, pos);
        Error::inconsistent(self.layers.view.owner(), "a file extent makes no sense", key)
    }

    fn decode<'i>(&self, item: &'i Item) -> Result<FileExtentItem<'i>> {
        FileExtentItem::read(item.data()).ok_or_else(|| self.damaged(item.key().offset))
    }

    /// Makes the first extent that ends after `pos` current.
    fn advance(&mut self, pos: u64) -> Result<()> {
        if self.cursor.is_none() {
            self.search(pos)?;
        }
        let mut steps = 0;
        while self.current.as_ref().is_some_and(|extent| extent.span.end <= pos) {
            steps += 1;
            if steps > STEPS_MAX {
                steps = 0;
                self.search(pos)?;
            } else {
                self.step()?;
            }
        }
        Ok(())
    }

    /// Makes the last extent that starts at `pos` or before current, or else the next one.
    fn search(&mut self, pos: u64) -> Result<()> {
        let (ino, view) = (self.layers.ino, self.layers.view);
        let before = view.last_in(&extent_key(ino, 0), &extent_key(ino, pos))?;
        let rest = extent_key(ino, pos.saturating_add(1))..=extent_key(ino, u64::MAX);
        self.cursor = Some(view.range(*rest.start(), *rest.end()));
        self.current = None;
        if let Some(item) = before.filter(|item| is_extent(item, ino)) {
            self.current = Some(self.extent(item)?);
        }
        match &self.current {
            Some(extent) if extent.span.end > pos => Ok(()),
            _ => self.step(),
        }
    }

    fn step(&mut self) -> Result<()> {
        let reach = self.current.as_ref().map_or(0, |extent| extent.span.end);
        let next = self.cursor.as_mut().map_or(Ok(None), Cursor::next)?;
        self.current = next.map(|item| self.extent(item)).transpose()?;
        match &self.current {
            Some(next) if next.span.start < reach => {
                let key = extent_key(self.layers.ino, next.span.start);
                let owner = self.layers.view.owner();
                Err(Error::inconsistent(owner, "file extents overlap", key))
            }
            _ => Ok(()),
        }
    }

    fn extent(&self, item: Item) -> Result<TreeExtent> {
        let start = item.key().offset;
        let mut end = start.saturating_add(self.decode(&item)?.len_bytes());
        if !end.is_multiple_of(SECTOR) {
            end = round_up(end);
        }
        Ok(TreeExtent { span: start..end, item })
    }
}

fn is_extent(item: &Item, ino: u64) -> bool {
    item.key().objectid == ino && item.key().kind == kind::EXTENT_DATA
}

/// What an inline extent holds, decompressed; `None` when it cannot be.
pub(super) fn inline_content(body: &FileExtentItem<'_>) -> Option<Vec<u8>> {
    let FileExtentItem::Inline { ram_bytes, compression, data, .. } = body else { return None };
    if *compression == 0 {
        return Some(data.to_vec());
    }
    let codec = CompressionKind::from_u8(*compression)?;
    let ram_bytes = usize::try_from(*ram_bytes).ok()?;
    if ram_bytes > buttress_ondisk::COMPRESSED_LEN_MAX as usize {
        return None;
    }
    let mut content = vec![0; ram_bytes];
    decompress_inline(codec, data, &mut content, SECTOR as usize).ok()?;
    Some(content)
}
