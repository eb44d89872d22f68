//! Which files refer to it, and where? Up to the leaves, then what is in these, once for each tree that reaches the leaf.

use std::ops::ControlFlow;

use buttress_ondisk::view::InlineRef;
use buttress_ondisk::{TreeBlock, kind};

use super::super::RootSet;
use super::Owners;
use super::alone::level_of;
use super::references::{Reading, wrong};
use super::search::{FileRef, extent_of};
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

impl Owners<'_> {
    /// All pieces of files that refer to the data extent at `bytenr`, each once and in no order, until `each` breaks.
    pub fn each_place(
        &mut self,
        bytenr: u64,
        mut each: impl FnMut(Place) -> ControlFlow<()>,
    ) -> Result<()> {
        self.known.begin();
        let mut told = |owners: &Self, trees: RootSet, place: Place| {
            owners.known.sets.trees(trees).try_for_each(|tree| each(Place { tree, ..place }))
        };
        self.each_batch(bytenr, |owners, reading, refs| {
            let head = reading.head()?;
            if head.level.is_some() {
                return Err(wrong("a tree block where data should be", bytenr));
            }
            for one in refs {
                let met = match *one {
                    InlineRef::SharedData { parent, count } => {
                        owners.places_in_leaf(bytenr, parent, count, &mut told)?
                    }
                    InlineRef::ExtentData { root, objectid, offset, count } => {
                        let file = FileRef { ino: objectid, offset, count };
                        owners.places_of_file(root, (bytenr, head.len), file, &mut told)?
                    }
                    _ => continue,
                };
                if met.is_break() {
                    return Ok(met);
                }
            }
            Ok(ControlFlow::Continue(()))
        })
    }

    fn places_of_file(
        &mut self,
        tree: u64,
        extent: (u64, u64),
        file: FileRef,
        told: &mut impl FnMut(&Self, RootSet, Place) -> ControlFlow<()>,
    ) -> Result<ControlFlow<()>> {
        self.each_piece(tree, extent, file, |owners, item| {
            let trees = owners.trees_of_block(item.leaf().bytenr(), Some(0))?;
            let in_extent = extent_of(item.data()).map_or(0, |(_, skip)| skip);
            let (ino, offset) = (item.key().objectid, item.key().offset);
            Ok(told(owners, trees, Place { tree, ino, offset, in_extent }))
        })
    }

    fn places_in_leaf(
        &mut self,
        bytenr: u64,
        parent: u64,
        count: u32,
        told: &mut impl FnMut(&Self, RootSet, Place) -> ControlFlow<()>,
    ) -> Result<ControlFlow<()>> {
        let trees = self.trees_of_block(parent, Some(0))?;
        let (mut reading, mut refs) = (Reading::of(parent), Vec::new());
        self.extents.more(&mut reading, &mut refs, 1)?;
        let head = reading.head()?;
        level_of(parent, head.level, Some(0))?;
        let leaf = self.block(parent, &head)?;
        let mut left = count;
        for place in places(&leaf, bytenr) {
            left = left.checked_sub(1).ok_or_else(|| wrong(MISCOUNTED, parent))?;
            if told(self, trees, place).is_break() {
                return Ok(ControlFlow::Break(()));
            }
        }
        if left > 0 { Err(wrong(MISCOUNTED, parent)) } else { Ok(ControlFlow::Continue(())) }
    }
}

const MISCOUNTED: &str = "a leaf does not refer to an extent as often as the extent tree says";

/// The pieces of files in a leaf that are in the extent at `bytenr`; of which trees, others know.
fn places(leaf: &TreeBlock, bytenr: u64) -> impl Iterator<Item = Place> + '_ {
    let items = (0..leaf.len()).map(|slot| leaf.item(slot));
    items.filter(|(key, _)| key.kind == kind::EXTENT_DATA).filter_map(move |(key, data)| {
        let (_, in_extent) = extent_of(data).filter(|(at, _)| *at == bytenr)?;
        Some(Place { tree: 0, ino: key.objectid, offset: key.offset, in_extent })
    })
}
