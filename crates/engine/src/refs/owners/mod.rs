//! Who reaches a data extent or a tree block: found upwards, through the extent tree, in one committed version.
//!
//! | question | answered by | how |
//! |---|---|---|
//! | is it shared? | [`Owners::is_shared`] | `alone`: stops at the second owner, and builds no set |
//! | does a leaf share all that it refers to? | [`Owners::is_shared_leaf`] | `alone`; what is asked of the items of the others is remembered ([`Answers`]) |
//! | which trees reach it? | [`Owners::trees_of`] | `reach`: the union of the sets of what refers to it |
//! | which files refer to it, and where? | [`Owners::each_place`] | `places`: up to the leaves, then what is in these |
//! | which files have the byte at an address? | [`Resolving`] | `resolve`: the same in steps, in the order of Linux |
//!
//! **A reference by a tree** (`TREE_BLOCK_REF`, `EXTENT_DATA_REF`) says that a block of the tree refers to the extent, not which one: the
//! tree is searched from its root for the key, which leads there. It always does: a tree that gives up a block which others still
//! reach has its references turned into references by the block's address (`FULL_BACKREF`) first. This holds of a subvolume that is
//! dropped half way, too: what is gone of it has given up its references, and what is not is still below its root, from the key on at which
//! dropping goes on. Before that its nodes name blocks that are gone.
//!
//! **A reference by a block** (`SHARED_BLOCK_REF`, `SHARED_DATA_REF`) names the block. Each block is resolved once per version and kept
//! ([`Known`]): a snapshot that shares a subtree costs one reference at its top, not one for each extent below. So neither time nor
//! memory follow the product of extents and snapshots: what is read are the references of an extent and of the blocks above it.
//!
//! The root of a relocation tree, which Linux has while it balances, names itself. What only such trees reach nobody reaches: no set has them.
//!
//! **Which version.** The last committed one, as the root tree has it: the extent tree describes no other. What the running and the
//! committing transaction have changed is in layers of inodes and in the log of references, in no order in which it could be asked.
//! Whoever wants to be told of it commits first; a commit folds the log into the extent tree anyway, and costs less than a second index of
//! the log would with each operation. Blocks of the version must stay: the caller holds the gate, in bounded parts, and makes new `Owners`
//! in each. [`Known`] forgets everything when the version is another one by then.
//!
//! **Hostile trees.** Levels ascend by one from each block to what refers to it, and are below 8: cycles and endless ways up are refused
//! where they are met. What a search does not lead to, counts that are not met and blocks without references are errors with their
//! address. Within one question each block is resolved once, whatever room there is to keep it, so no graph of references takes more
//! time than it has references; its ancestors take some 24 bytes each until the question is answered.

mod alone;
mod known;
mod places;
mod reach;
mod references;
mod resolve;
mod search;
mod unsaid;

use std::ops::ControlFlow;
use std::sync::Arc;

use buttress_ondisk::item::RootItem;
use buttress_ondisk::view::InlineRef;
use buttress_ondisk::{Key, TreeBlock, kind, objectid};

pub use alone::Asker;
pub use known::{Answers, Known};
pub use places::Place;
pub use reach::Reached;
pub use references::{Head, way};
pub use resolve::{Referrer, Referrers, Resolving, Wanted};
pub use search::{FileRef, extent_of};

use references::{Extents, Reading, wrong};

use crate::error::{Error, Result};
use crate::hash::Spread;
use crate::tree::{Blocks, Root, View};

/// The trees of one committed version that are not found by a root item, and the extent tree.
#[derive(Clone, Copy, Debug)]
pub struct Committed {
    /// The root tree.
    pub root: Root,
    /// The chunk tree.
    pub chunk: Root,
    /// The extent tree.
    pub extent: Root,
}

/// Answers who reaches what in one committed version. The caller sees to it that its blocks stay.
#[derive(Debug)]
pub struct Owners<'a> {
    blocks: &'a Blocks,
    committed: Committed,
    extents: Extents<'a>,
    /// The same for blocks above what is asked for, so that who asks for extents in order keeps his place.
    above: Extents<'a>,
    known: &'a mut Known,
    /// The leaf that was asked for last and the only tree that reaches it, if one does: extents of one leaf are asked for one after the other.
    last_leaf: Option<(u64, u64)>,
    /// Room for references, used again.
    refs: Vec<InlineRef>,
    /// The tree and the leaf in which pieces of files were looked for last, and the key at which the next leaf begins.
    last_pieces: Option<(u64, Arc<TreeBlock>, Option<Key>)>,
    /// Whether what a leaf refers to has references by the leaf's address, of leaves that were asked about last.
    full: Spread<u64, bool>,
}

impl<'a> Owners<'a> {
    /// Of this version. What `known` has of another one is forgotten.
    pub fn new(blocks: &'a Blocks, committed: Committed, known: &'a mut Known) -> Owners<'a> {
        known.is_of(committed.root);
        let extents = View::new(blocks, objectid::EXTENT_TREE, committed.extent);
        let (extents, above, refs) = (Extents::new(extents), Extents::new(extents), Vec::new());
        Owners {
            blocks,
            committed,
            extents,
            above,
            known,
            last_leaf: None,
            refs,
            last_pieces: None,
            full: Spread::default(),
        }
    }

    /// Tree `id` in this version, deleted subvolumes that are not dropped yet among them.
    pub fn tree(&mut self, id: u64) -> Result<View<'a>> {
        Ok(self.tree_left(id)?.0)
    }

    /// The same, and the key at which begins what is left of it: of a subvolume that is dropped half way, blocks that it refers to before that
    /// may be gone, and what is in them is not its own any more.
    pub(super) fn tree_left(&mut self, id: u64) -> Result<(View<'a>, Key)> {
        let (root, begin) = match id {
            objectid::ROOT_TREE => (self.committed.root, Key::MIN),
            objectid::CHUNK_TREE => (self.committed.chunk, Key::MIN),
            objectid::EXTENT_TREE => (self.committed.extent, Key::MIN),
            _ => match self.known.trees.get(id) {
                Some(found) => found,
                None => {
                    let found = self.find_tree(id)?;
                    self.known.trees.put(id, found);
                    found
                }
            },
        };
        Ok((View::new(self.blocks, id, root), begin))
    }

    /// What the extent item at `bytenr` says, and all references.
    pub fn references(&mut self, bytenr: u64) -> Result<(Head, Vec<InlineRef>)> {
        let (mut reading, mut refs, mut all) = (Reading::of(bytenr), Vec::new(), Vec::new());
        loop {
            self.extents.more(&mut reading, &mut refs, REFS_AT_ONCE)?;
            if refs.is_empty() {
                return Ok((reading.head()?, all));
            }
            all.append(&mut refs);
        }
    }

    /// Where tree blocks are read from.
    pub fn blocks(&self) -> &'a Blocks {
        self.blocks
    }

    /// How often the extent at `bytenr` is referred to in the way that `wanted` says, whatever that one counts.
    pub fn count_of(&self, bytenr: u64, wanted: &InlineRef) -> Result<u64> {
        self.extents.count_of(bytenr, wanted)
    }

    /// Tree `id` in this version, if it has one of that number and that is not deleted: then all that its blocks refer to is reached by it.
    pub fn living(&self, id: u64) -> Result<Option<View<'a>>> {
        let item = self.root_item(id)?.filter(|item| item.refs.get() > 0);
        Ok(item.map(|item| View::new(self.blocks, id, root_of(&item))))
    }

    fn root_item(&self, id: u64) -> Result<Option<RootItem>> {
        let trees = View::new(self.blocks, objectid::ROOT_TREE, self.committed.root);
        let from = Key::new(id, kind::ROOT_ITEM, 0);
        let item = trees.last_in(&from, &Key { offset: u64::MAX, ..from })?;
        Ok(item.and_then(|item| RootItem::read(item.data())))
    }

    fn find_tree(&self, id: u64) -> Result<(Root, Key)> {
        let item = self
            .root_item(id)?
            .ok_or_else(|| wrong("a reference is of a tree that has no root item", id))?;
        let begin = if item.refs.get() == 0 { Key::from(item.drop_progress) } else { Key::MIN };
        Ok((root_of(&item), begin))
    }
}

fn root_of(item: &RootItem) -> Root {
    let (bytenr, generation) = (item.bytenr.get(), item.generation.get());
    Root { bytenr, generation, level: item.level }
}

/// References that are read at once.
const REFS_AT_ONCE: usize = 1024;

/// Goes on unless it is done.
fn on_unless(done: bool) -> ControlFlow<()> {
    if done { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
}

/// What was met in `tree` contradicts the extent tree.
fn contradicts(tree: u64, what: &'static str, place: impl std::fmt::Display) -> Error {
    Error::inconsistent(tree, what, place)
}
