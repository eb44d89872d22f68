//! From a reference by a tree to the block that refers: the tree is searched for the key.

use std::ops::ControlFlow;
use std::sync::Arc;

use buttress_ondisk::item::{FileExtentHead, FileExtentTail, split};
use buttress_ondisk::{Key, TreeBlock, kind};

use super::references::{Head, wrong};
use super::{Owners, contradicts, on_unless};
use crate::error::Result;
use crate::tree::{Cursor, Item, View};

/// The longest content that a compressed extent holds.
const COMPRESSED_MAX: u64 = 128 << 10;

/// A reference by a file: (file minus extent offset), and how many pieces of the file it stands for.
#[derive(Clone, Copy, Debug)]
pub struct FileRef {
    /// The file.
    pub ino: u64,
    /// Where in the file the extent would start.
    pub offset: u64,
    /// Pieces.
    pub count: u32,
}

impl<'a> Owners<'a> {
    /// The block at `bytenr`, which the extent tree describes so, whatever tree it is of.
    pub fn block(&self, bytenr: u64, head: &Head) -> Result<Arc<TreeBlock>> {
        let level = head.level.ok_or_else(|| wrong("data where a tree block should be", bytenr))?;
        self.blocks.read(bytenr, level, head.generation, 0)
    }

    /// The address of the block of tree `id` that refers to the block at `bytenr`; `None` when that is the tree's root.
    pub fn parent_in(&mut self, id: u64, bytenr: u64, head: &Head) -> Result<Option<u64>> {
        let tree = self.tree(id)?;
        let (root, level) = (tree.root(), head.level.unwrap_or(0));
        if root.level == level && root.bytenr == bytenr {
            return Ok(None);
        }
        let block = self.block(bytenr, head)?;
        let lost =
            || contradicts(id, "the tree does not lead to a block that it refers to", bytenr);
        let (key, _) = block.span().ok_or_else(lost)?;
        if root.level <= level {
            return Err(lost());
        }
        let mut parent = tree.root_block()?;
        while parent.level() > level + 1 {
            parent = tree.child(&parent, parent.child_for(&key))?;
        }
        let child = parent.child(parent.child_for(&key));
        if child.bytenr == bytenr { Ok(Some(parent.bytenr())) } else { Err(lost()) }
    }

    /// Until `each` breaks, the pieces of a file that a reference to the extent at `bytenr`, of `len` bytes on the disk, stands for:
    /// items of tree `id`, in leaves whose references are by that tree. The tree may reach more pieces at the same place, in leaves of
    /// others and in leaves that refer by their address.
    pub fn each_piece(
        &mut self,
        id: u64,
        (bytenr, len): (u64, u64),
        file: FileRef,
        mut each: impl FnMut(&mut Self, &Item) -> Result<ControlFlow<()>>,
    ) -> Result<ControlFlow<()>> {
        let (mut left, mut done) = (file.count, ControlFlow::Continue(()));
        if left == 0 {
            return Ok(done);
        }
        self.all_pieces(id, (bytenr, len), file, |owners, item| {
            left -= 1;
            done = each(owners, item)?;
            Ok(on_unless(done.is_break() || left == 0))
        })?;
        if left > 0 && done.is_continue() {
            let what = "a file does not refer to an extent as often as the extent tree says";
            let place = format_args!("file {}, offset {}, extent {bytenr}", file.ino, file.offset);
            return Err(contradicts(id, what, place));
        }
        Ok(done)
    }

    /// The same, however many there are.
    pub fn all_pieces(
        &mut self,
        id: u64,
        (bytenr, len): (u64, u64),
        file: FileRef,
        mut each: impl FnMut(&mut Self, &Item) -> Result<ControlFlow<()>>,
    ) -> Result<()> {
        self.all_at(id, len, file, |owners, item, part| {
            let is_meant = part.bytenr == bytenr && owners.refers_by(id, item.leaf())?;
            if is_meant { each(owners, item) } else { Ok(ControlFlow::Continue(())) }
        })
    }

    /// What pieces of the file name there that is not the extent at `bytenr`: addresses, and bytes on the disk.
    pub fn named_instead(
        &mut self,
        id: u64,
        (bytenr, len): (u64, u64),
        file: FileRef,
    ) -> Result<Vec<(u64, u64)>> {
        let mut named = Vec::new();
        self.all_at(id, len, file, |_, _, part| {
            named.extend((part.bytenr != bytenr).then_some((part.bytenr, part.on_disk)));
            Ok(ControlFlow::Continue(()))
        })?;
        Ok(named)
    }

    /// Until `each` breaks, the pieces of a file whose extents start where a reference says, whatever extents they are.
    fn all_at(
        &mut self,
        id: u64,
        len: u64,
        file: FileRef,
        mut each: impl FnMut(&mut Self, &Item, Part) -> Result<ControlFlow<()>>,
    ) -> Result<()> {
        let (tree, begin): (View<'a>, Key) = self.tree_left(id)?;
        // A file may start in the middle of an extent: then the difference is below zero.
        let first = if file.offset > i64::MAX as u64 { 0 } else { file.offset };
        let end = file.offset.wrapping_add(len.max(COMPRESSED_MAX));
        let from = Key::new(file.ino, kind::EXTENT_DATA, first).max(begin);
        let to = Key { offset: end, ..from };
        let mut items = match self.leaf_of(&tree, &from, &to)? {
            Some(leaf) => Pieces::Leaf(leaf.search(&from).unwrap_or_else(|slot| slot), leaf, to),
            None => Pieces::Tree(tree.range(from, to)),
        };
        while let Some(item) = items.next()? {
            let Some(part) = extent_of(item.data()) else { continue };
            let start = item.key().offset.wrapping_sub(part.skip);
            if start == file.offset && each(self, &item, part)?.is_break() {
                break;
            }
        }
        Ok(())
    }

    /// The leaf of a tree that has all its items between two keys, where one has: most often that of the question before.
    fn leaf_of(&mut self, tree: &View<'a>, from: &Key, to: &Key) -> Result<Option<Arc<TreeBlock>>> {
        let has_all = |leaf: &TreeBlock, before: &Option<Key>| {
            leaf.lost().is_empty()
                && leaf.span().is_some_and(|(first, _)| first <= *from)
                && before.is_none_or(|before| *to < before)
        };
        if let Some((id, leaf, before)) = &self.last_pieces
            && *id == tree.owner()
            && has_all(leaf, before)
        {
            return Ok(Some(leaf.clone()));
        }
        let (leaf, before) = tree.leaf_at(from)?;
        let found = has_all(&leaf, &before).then(|| leaf.clone());
        self.last_pieces = Some((tree.owner(), leaf, before));
        Ok(found)
    }

    /// Whether what a leaf refers to has references by this tree for it.
    fn refers_by(&mut self, id: u64, leaf: &TreeBlock) -> Result<bool> {
        if leaf.owner() != id {
            return Ok(false);
        }
        if let Some(full) = self.full.get(&leaf.bytenr()) {
            return Ok(!full);
        }
        // Whoever asks for extents one after the other has a place in the extent tree, which is not this one.
        let item = self.extents.head_at(leaf.bytenr())?;
        if self.full.len() >= FULL_MAX {
            self.full.clear();
        }
        self.full.insert(leaf.bytenr(), item.full);
        Ok(!item.full)
    }
}

/// Leaves of which it is remembered how they refer.
const FULL_MAX: usize = 1 << 14;

/// Items of files.
enum Pieces<'a> {
    /// From a slot of a leaf to a key.
    Leaf(usize, Arc<TreeBlock>, Key),
    Tree(Cursor<'a>),
}

impl Pieces<'_> {
    fn next(&mut self) -> Result<Option<Item>> {
        match self {
            Pieces::Tree(items) => items.next(),
            Pieces::Leaf(slot, leaf, to) => {
                let item = (*slot < leaf.len()).then(|| Item::of(leaf.clone(), *slot));
                *slot += 1;
                Ok(item.filter(|item| item.key() <= *to))
            }
        }
    }
}

/// What an `EXTENT_DATA` item has of an extent.
#[derive(Clone, Copy, Debug)]
pub struct Part {
    /// The extent.
    pub bytenr: u64,
    /// Where in its content the part starts, in bytes.
    pub skip: u64,
    /// Bytes of the part.
    pub len: u64,
    /// Bytes of the extent on the disk.
    pub on_disk: u64,
    /// What is on the disk is not what the file reads as: compressed.
    pub is_encoded: bool,
}

/// The part of an extent that an `EXTENT_DATA` item refers to.
pub fn extent_of(data: &[u8]) -> Option<Part> {
    let (head, rest) = split::<FileExtentHead>(data)?;
    if head.kind == FileExtentHead::INLINE {
        return None;
    }
    let tail = FileExtentTail::of(rest)?;
    let bytenr = tail.disk_bytenr.get();
    let plain = (head.compression, head.encryption, head.other_encoding.get()) == (0, 0, 0);
    let (skip, len) = (tail.offset.get(), tail.num_bytes.get());
    let on_disk = tail.disk_num_bytes.get();
    (bytenr != 0).then_some(Part { bytenr, skip, len, on_disk, is_encoded: !plain })
}
