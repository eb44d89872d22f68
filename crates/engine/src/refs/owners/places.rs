//! Which files refer to it, and where? Up to the leaves, then what is in these, once for each tree that reaches the leaf.

use std::ops::ControlFlow;

use buttress_ondisk::view::InlineRef;
use buttress_ondisk::{TreeBlock, kind};

use super::super::RootSet;
use super::Owners;
use super::alone::level_of;
use super::references::{Reading, wrong};
use super::search::{FileRef, Part, extent_of};
use crate::error::Result;

/// A piece of a file that is in an extent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// The tree.
    pub tree: u64,
    /// The inode.
    pub ino: u64,
    /// Where in the file the piece starts, in bytes.
    pub offset: u64,
    /// Where in the content of the extent the piece starts, in bytes.
    pub in_extent: u64,
}

/// A piece as it is met: who reaches the leaf that it is in, and by which reference it was found.
#[derive(Clone, Copy, Debug)]
pub(super) struct Met {
    /// The leaf.
    pub leaf: u64,
    /// The trees that reach the leaf.
    pub trees: RootSet,
    /// The tree and the file of a reference by a tree; none of one by the leaf's address.
    pub by: Option<(u64, FileRef)>,
    /// The file, and where in it the piece starts.
    pub file: (u64, u64),
    /// What it has of the extent.
    pub part: Part,
}

impl Owners<'_> {
    /// All pieces of files that refer to the data extent at `bytenr`, each once and in no order, until `each` breaks.
    pub fn each_place(
        &mut self,
        bytenr: u64,
        mut each: impl FnMut(Place) -> ControlFlow<()>,
    ) -> Result<()> {
        self.known.begin();
        let mut told = |owners: &Self, met: Met| {
            let ((ino, offset), in_extent) = (met.file, met.part.skip);
            let mut trees = owners.known.sets.trees(met.trees);
            trees.try_for_each(|tree| each(Place { tree, ino, offset, in_extent }))
        };
        self.each_batch(bytenr, |owners, reading, refs| {
            owners.pieces_of(bytenr, reading, refs, &mut told)
        })
    }

    /// The pieces that some references to the data extent at `bytenr` stand for, until `told` breaks.
    pub(super) fn pieces_of(
        &mut self,
        bytenr: u64,
        reading: &Reading,
        refs: &[InlineRef],
        told: &mut impl FnMut(&Self, Met) -> ControlFlow<()>,
    ) -> Result<ControlFlow<()>> {
        let head = reading.head()?;
        if head.level.is_some() {
            return Err(wrong("a tree block where data should be", bytenr));
        }
        for one in refs {
            let met = match *one {
                InlineRef::SharedData { parent, count } => {
                    self.pieces_in_leaf(bytenr, parent, count, told)?
                }
                InlineRef::ExtentData { root, objectid, offset, count } => {
                    let file = FileRef { ino: objectid, offset, count };
                    self.pieces_of_file(root, (bytenr, head.len), file, told)?
                }
                _ => continue,
            };
            if met.is_break() {
                return Ok(met);
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    fn pieces_of_file(
        &mut self,
        tree: u64,
        extent: (u64, u64),
        file: FileRef,
        told: &mut impl FnMut(&Self, Met) -> ControlFlow<()>,
    ) -> Result<ControlFlow<()>> {
        self.each_piece(tree, extent, file, |owners, item| {
            let leaf = item.leaf().bytenr();
            let trees = owners.trees_of_block(leaf, Some(0))?;
            let Some(part) = extent_of(item.data()) else { return Ok(ControlFlow::Continue(())) };
            let place = (item.key().objectid, item.key().offset);
            Ok(told(owners, Met { leaf, trees, by: Some((tree, file)), file: place, part }))
        })
    }

    fn pieces_in_leaf(
        &mut self,
        bytenr: u64,
        parent: u64,
        count: u32,
        told: &mut impl FnMut(&Self, Met) -> ControlFlow<()>,
    ) -> Result<ControlFlow<()>> {
        let trees = self.trees_of_block(parent, Some(0))?;
        let (mut reading, mut refs) = (Reading::of(parent), Vec::new());
        self.extents.more(&mut reading, &mut refs, 1)?;
        let head = reading.head()?;
        level_of(parent, head.level, Some(0))?;
        let leaf = self.block(parent, &head)?;
        let mut left = count;
        for (file, part) in parts(&leaf, bytenr) {
            left = left.checked_sub(1).ok_or_else(|| wrong(MISCOUNTED, parent))?;
            if told(self, Met { leaf: parent, trees, by: None, file, part }).is_break() {
                return Ok(ControlFlow::Break(()));
            }
        }
        if left > 0 { Err(wrong(MISCOUNTED, parent)) } else { Ok(ControlFlow::Continue(())) }
    }
}

const MISCOUNTED: &str = "a leaf does not refer to an extent as often as the extent tree says";

/// The pieces of files in a leaf that are in the extent at `bytenr`: inode, offset, and what they have of it.
fn parts(leaf: &TreeBlock, bytenr: u64) -> impl Iterator<Item = ((u64, u64), Part)> + '_ {
    let items = (0..leaf.len()).map(|slot| leaf.item(slot));
    items.filter(|(key, _)| key.kind == kind::EXTENT_DATA).filter_map(move |(key, data)| {
        let part = extent_of(data).filter(|part| part.bytenr == bytenr)?;
        Some(((key.objectid, key.offset), part))
    })
}
