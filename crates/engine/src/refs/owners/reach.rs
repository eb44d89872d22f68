//! Which trees reach it? The set of a block is the union of the sets of what refers to it.

use std::ops::ControlFlow;

use buttress_ondisk::view::InlineRef;

use super::super::{RootSet, RootSets};
use super::Owners;
use super::alone::level_of;
use super::references::{Extents, Reading, wrong};
use super::search::FileRef;
use crate::error::Result;

/// References that are looked at together.
const BATCH: usize = 512;
/// And at first, where some may be enough.
const FIRST: usize = 8;

/// Something that a version has, and who reaches it.
#[derive(Clone, Copy, Debug)]
pub struct Reached {
    /// The trees, deleted subvolumes that are not dropped yet among them; see [`Owners::trees_in`].
    pub trees: RootSet,
    /// Bytes on the disk.
    pub bytes: u64,
    /// The level and the generation of a tree block.
    pub block: Option<(u8, u64)>,
}

impl<'a> Owners<'a> {
    /// What the version has at `bytenr`; `None` where there is nothing.
    pub fn reached(&mut self, bytenr: u64) -> Result<Option<Reached>> {
        self.reached_until(bytenr, |_, _| false)
    }

    /// The same, but once `is_enough` of the trees that reach a data extent are found there may be others that are not told.
    pub fn reached_until(
        &mut self,
        bytenr: u64,
        mut is_enough: impl FnMut(&RootSets, RootSet) -> bool,
    ) -> Result<Option<Reached>> {
        self.known.begin();
        let (mut reading, mut refs) = (Reading::of_any(bytenr), std::mem::take(&mut self.refs));
        self.extents.more(&mut reading, &mut refs, FIRST)?;
        if !reading.is_there() {
            self.refs = refs;
            return Ok(None);
        }
        let head = reading.head()?;
        if let Some(level) = head.level {
            self.refs = refs;
            let trees = self.trees_of_block(bytenr, None)?;
            let bytes = self.blocks.nodesize() as u64;
            return Ok(Some(Reached { trees, bytes, block: Some((level, head.generation)) }));
        }
        let mut trees = RootSet::EMPTY;
        while !refs.is_empty() {
            let extent = (bytenr, head.len);
            trees = self.with_trees_of_data(trees, extent, &refs, &mut is_enough)?;
            if is_enough(&self.known.sets, trees) {
                break;
            }
            self.extents.more(&mut reading, &mut refs, BATCH)?;
        }
        self.refs = refs;
        Ok(Some(Reached { trees, bytes: head.len, block: None }))
    }

    /// A set, and the trees that reach a data extent by these references, until that is enough.
    fn with_trees_of_data(
        &mut self,
        mut all: RootSet,
        extent: (u64, u64),
        refs: &[InlineRef],
        is_enough: &mut impl FnMut(&RootSets, RootSet) -> bool,
    ) -> Result<RootSet> {
        for one in refs {
            let some = match *one {
                InlineRef::SharedData { parent, .. } => self.trees_of_block(parent, Some(0))?,
                InlineRef::ExtentData { root, objectid, offset, count } => {
                    let file = FileRef { ino: objectid, offset, count };
                    self.trees_of_pieces(root, extent, file)?
                }
                _ => continue,
            };
            let before = all;
            all = self.known.sets.union(all, some);
            if all != before && is_enough(&self.known.sets, all) {
                break;
            }
        }
        self.known.check(extent.0)?;
        Ok(all)
    }

    /// A question begins: what is too much is forgotten. Those who ask do that themselves; who remembers numbers of sets does it ahead of looking for one.
    pub fn begin(&mut self) {
        self.known.begin();
    }

    /// The number of the sets that are in use: those with another number mean nothing any more.
    pub fn sets_epoch(&self) -> u64 {
        self.known.epoch()
    }

    /// The trees that reach a tree block of this level. The set is in use like that of [`Owners::reached`].
    pub fn trees_of_parent(&mut self, bytenr: u64, level: u8) -> Result<RootSet> {
        self.known.begin();
        self.trees_of_block(bytenr, Some(level))
    }

    /// The trees of the set that the last question was answered with, ascending.
    pub fn trees_in(&self, set: RootSet) -> impl Iterator<Item = u64> + '_ {
        self.known.sets.trees(set)
    }

    /// The trees that reach the data extent or tree block at `bytenr`, deleted subvolumes that are not dropped yet among them. The set
    /// is in [`Known::sets`](super::Known::sets) until the next question.
    pub fn trees_of(&mut self, bytenr: u64) -> Result<RootSet> {
        self.known.begin();
        let (mut reading, mut refs) = (Reading::of(bytenr), Vec::new());
        self.extents.more(&mut reading, &mut refs, 1)?;
        if reading.head()?.level.is_some() {
            return self.trees_of_block(bytenr, None);
        }
        self.trees_of_data(bytenr)
    }

    /// The trees that reach the extent tree's data extent at `bytenr`.
    fn trees_of_data(&mut self, bytenr: u64) -> Result<RootSet> {
        let mut all = RootSet::EMPTY;
        self.each_batch(bytenr, |owners, reading, refs| {
            let len = reading.head()?.len;
            all = owners.with_trees_of_data(all, (bytenr, len), refs, &mut |_, _| false)?;
            Ok(ControlFlow::Continue(()))
        })?;
        Ok(all)
    }

    fn trees_of_pieces(&mut self, tree: u64, extent: (u64, u64), file: FileRef) -> Result<RootSet> {
        let (mut all, mut last) = (RootSet::EMPTY, None);
        let _all_of_them = self.each_piece(tree, extent, file, |owners, item| {
            let leaf = item.leaf().bytenr();
            if last.replace(leaf) != Some(leaf) {
                let some = owners.trees_of_block(leaf, Some(0))?;
                all = owners.known.sets.union(all, some);
            }
            Ok(ControlFlow::Continue(()))
        })?;
        Ok(all)
    }

    /// The trees that reach a tree block, which has this level. As deep as trees have levels: each step up is one level up.
    pub(super) fn trees_of_block(&mut self, bytenr: u64, level: Option<u8>) -> Result<RootSet> {
        if let Some(found) = self.known.reach(bytenr) {
            return Ok(found);
        }
        let (mut all, mut roots, mut its_level) = (RootSet::EMPTY, Vec::new(), 0);
        let mut is_referred = false;
        self.batches(
            bytenr,
            |owners| &mut owners.above,
            |owners, reading, refs| {
                let head = reading.head()?;
                let level = level_of(bytenr, head.level, level)?;
                its_level = level;
                is_referred |= !refs.is_empty();
                for one in refs {
                    let parent = match *one {
                        // The root of a relocation tree.
                        InlineRef::SharedBlock { parent }
                            if parent == bytenr
                                && head.full
                                && owners.has_relocation_trees()? =>
                        {
                            continue;
                        }
                        InlineRef::SharedBlock { parent } => parent,
                        // Nothing else of the tree is one level up: what the root item says will do.
                        InlineRef::TreeBlock { root }
                            if owners.tree(root)?.root().level == level + 1 =>
                        {
                            roots.push(root);
                            continue;
                        }
                        InlineRef::TreeBlock { root } => {
                            match owners.parent_in(root, bytenr, &head)? {
                                Some(parent) => parent,
                                None => {
                                    roots.push(root);
                                    continue;
                                }
                            }
                        }
                        _ => continue,
                    };
                    let some = owners.trees_of_block(parent, Some(level + 1))?;
                    all = owners.known.sets.union(all, some);
                }
                let some = owners.known.sets.of(&mut roots);
                all = owners.known.sets.union(all, some);
                roots.clear();
                owners.known.check(bytenr)?;
                Ok(ControlFlow::Continue(()))
            },
        )?;
        if !is_referred {
            return Err(wrong("a tree block has no references", bytenr));
        }
        self.known.put_reach(bytenr, its_level, all);
        Ok(all)
    }

    /// All references of an extent, some at a time, until `each` breaks.
    pub(super) fn each_batch(
        &mut self,
        bytenr: u64,
        each: impl FnMut(&mut Self, &Reading, &[InlineRef]) -> Result<ControlFlow<()>>,
    ) -> Result<()> {
        self.batches(bytenr, |owners| &mut owners.extents, each)
    }

    /// The same from one of the places in the extent tree.
    fn batches(
        &mut self,
        bytenr: u64,
        place: impl Fn(&mut Self) -> &mut Extents<'a>,
        mut each: impl FnMut(&mut Self, &Reading, &[InlineRef]) -> Result<ControlFlow<()>>,
    ) -> Result<()> {
        let (mut reading, mut refs) = (Reading::of(bytenr), Vec::new());
        loop {
            place(self).more(&mut reading, &mut refs, BATCH)?;
            if refs.is_empty() || each(self, &reading, &refs)?.is_break() {
                return Ok(());
            }
        }
    }
}
