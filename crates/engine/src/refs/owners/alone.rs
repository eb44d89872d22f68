//! Is it shared? Stops at the second owner.
//!
//! What Linux's fiemap calls shared, found by trying (6.18): a data extent that
//!
//! * has more than one reference: of another file, of another tree, or of the same file at another place (file minus extent offset),
//!   even if all of them are of one file; or that has one reference, of another file;
//! * or that is reached from a leaf which is shared: a block between it and the root of the tree has more than one reference. Those that lead to
//!   relocation trees alone, while a balance is in the middle, do not count.
//!
//! An extent that its file has in several pieces at the same place, because something in its middle was written anew, has one reference
//! and is not shared by that. All leaves that hold pieces of it count, whichever of them was asked for. A deleted subvolume counts until it
//! is dropped. It does not matter which bytes of the extent the others refer to.
//!
//! What is counted are references, not files, and that shows where a leaf refers by its address, as after a balance: however many files of
//! a leaf have pieces of an extent, that is one reference, and Linux does not call it shared; nor is it here.
//!
//! So who goes through a file asks for each leaf first ([`Owners::is_shared_leaf`]). Below a leaf that one tree reaches alone an answer belongs
//! to the item, whose tree and file are certain, and is kept by its slot ([`Owners::put_answers`]).

use buttress_ondisk::view::InlineRef;
use buttress_ondisk::{Key, kind, objectid};

use super::known::Answers;
use super::references::{Reading, wrong};
use super::search::FileRef;
use super::{Owners, on_unless};
use crate::error::Result;
use crate::tree::View;

/// The only tree that reaches a block; `None` when more than one reference leads to it or to a block above it.
pub(super) type Alone = Option<u64>;

/// Who asks whether an extent is shared.
#[derive(Clone, Copy, Debug)]
pub struct Asker {
    /// The tree.
    pub tree: u64,
    /// The file.
    pub ino: u64,
    /// The leaf in which the file's item was met, if it was met in a committed tree.
    pub leaf: Option<u64>,
}

impl Owners<'_> {
    /// Whether others than the tree that asks reach a leaf of it, and with that all that the leaf refers to.
    pub fn is_shared_leaf(&mut self, leaf: u64, tree: u64) -> Result<bool> {
        self.known.begin();
        self.is_leaf_shared(leaf, tree)
    }

    /// What was answered of the extents of a leaf that is not shared, of 64 items together.
    pub fn answers(&mut self, leaf: u64, slot: u32) -> Answers {
        self.known.answers(leaf, slot)
    }

    /// Keeps what [`Owners::is_shared`] has answered of item `slot` and those beside it, in a leaf that is not shared, to the files that have them.
    pub fn put_answers(&mut self, leaf: u64, slot: u32, answers: Answers) {
        self.known.put_answers(leaf, slot, answers);
    }

    /// Whether others than the file that asks reach the data extent at `bytenr`, or it does at several places.
    pub fn is_shared(&mut self, bytenr: u64, asker: &Asker) -> Result<bool> {
        self.known.begin();
        // Then it does not matter what else leads to it, and the leaf has others of the file, too.
        if let Some(leaf) = asker.leaf
            && self.is_leaf_shared(leaf, asker.tree)?
        {
            return Ok(true);
        }
        let (mut reading, mut refs) = (Reading::of(bytenr), std::mem::take(&mut self.refs));
        let done = self.extents.more(&mut reading, &mut refs, 2);
        let shared = done.and_then(|()| self.is_shared_by(&reading, &refs, asker));
        self.refs = refs;
        shared
    }

    fn is_shared_by(
        &mut self,
        reading: &Reading,
        refs: &[InlineRef],
        asker: &Asker,
    ) -> Result<bool> {
        let (bytenr, head) = (reading.bytenr(), reading.head()?);
        if head.level.is_some() {
            return Err(wrong("a tree block where data should be", bytenr));
        }
        match refs {
            [] => Err(wrong("an extent has no references", bytenr)),
            [InlineRef::SharedData { parent, .. }] => self.is_leaf_shared(*parent, asker.tree),
            [InlineRef::ExtentData { root, objectid, offset, count }] => {
                if (*root, *objectid) != (asker.tree, asker.ino) {
                    return Ok(true);
                }
                if asker.leaf.is_some() && *count == 1 {
                    return Ok(false);
                }
                let file = FileRef { ino: *objectid, offset: *offset, count: *count };
                self.is_any_leaf_shared((bytenr, head.len), file, asker.tree)
            }
            _ => Ok(true),
        }
    }

    /// Whether the version has an extent at `bytenr` at all.
    pub fn is_known(&mut self, bytenr: u64) -> Result<bool> {
        self.extents.has(bytenr)
    }

    /// The only tree that reaches the tree block at `bytenr`, or `None` when it is shared.
    pub fn only_tree_of(&mut self, bytenr: u64) -> Result<Option<u64>> {
        self.known.begin();
        self.alone(bytenr, None)
    }

    fn is_leaf_shared(&mut self, leaf: u64, tree: u64) -> Result<bool> {
        if self.last_leaf != Some((leaf, tree)) {
            self.last_leaf = self.alone(leaf, Some(0))?.map(|tree| (leaf, tree));
        }
        Ok(self.last_leaf != Some((leaf, tree)))
    }

    fn is_any_leaf_shared(&mut self, extent: (u64, u64), file: FileRef, tree: u64) -> Result<bool> {
        let mut last = None;
        let met = self.each_piece(tree, extent, file, |owners, item| {
            let leaf = item.leaf().bytenr();
            let is_new = last.replace(leaf) != Some(leaf);
            Ok(on_unless(is_new && owners.is_leaf_shared(leaf, tree)?))
        })?;
        Ok(met.is_break())
    }

    /// The same as [`Owners::only_tree_of`], of a block that has this level.
    fn alone(&mut self, bytenr: u64, level: Option<u8>) -> Result<Alone> {
        if self.has_relocation_trees()? {
            return self.alone_but_for_relocation(bytenr, level);
        }
        let (mut at, mut wanted, mut below) = (bytenr, level, Vec::new());
        let found = loop {
            if let Some(found) = self.known.alone.get(at) {
                break found;
            }
            let (mut reading, mut refs) = (Reading::of(at), Vec::new());
            self.extents.more(&mut reading, &mut refs, 2)?;
            let head = reading.head()?;
            let level = level_of(at, head.level, wanted)?;
            below.push(at);
            let next = match refs.as_slice() {
                [] => return Err(wrong("a tree block has no references", at)),
                [InlineRef::TreeBlock { root }] => match self.parent_in(*root, at, &head)? {
                    None => break Some(*root),
                    Some(parent) => parent,
                },
                [InlineRef::SharedBlock { parent }] => *parent,
                _ => break None,
            };
            (at, wanted) = (next, Some(level + 1));
        };
        for block in below {
            self.known.alone.put(block, found);
        }
        Ok(found)
    }
}

impl Owners<'_> {
    /// The same where references may lead to relocation trees, which are nobody: two of them may not be of two.
    fn alone_but_for_relocation(&mut self, bytenr: u64, level: Option<u8>) -> Result<Alone> {
        if let Some(found) = self.known.alone.get(bytenr) {
            return Ok(found);
        }
        let all = self.trees_of_block(bytenr, level)?;
        let mut trees = self.known.sets.trees(all);
        let found = match (trees.next(), trees.next()) {
            (only, None) => Some(only.unwrap_or(objectid::TREE_RELOC)),
            _ => None,
        };
        self.known.alone.put(bytenr, found);
        Ok(found)
    }

    /// Whether the version has relocation trees.
    pub(super) fn has_relocation_trees(&mut self) -> Result<bool> {
        if let Some(known) = self.known.relocates {
            return Ok(known);
        }
        let trees = View::new(self.blocks, objectid::ROOT_TREE, self.committed.root);
        let root = |of| Key::new(objectid::TREE_RELOC, kind::ROOT_ITEM, of);
        let found = trees.range(root(0), root(u64::MAX)).next()?.is_some();
        self.known.relocates = Some(found);
        Ok(found)
    }
}

/// The level of a block that must be there, and must have this one.
pub(super) fn level_of(bytenr: u64, level: Option<u8>, wanted: Option<u8>) -> Result<u8> {
    match level {
        Some(level) if wanted.is_none_or(|wanted| wanted == level) => Ok(level),
        Some(_) => Err(wrong("a block is not one level above what refers to it", bytenr)),
        None => Err(wrong("data where a tree block should be", bytenr)),
    }
}
