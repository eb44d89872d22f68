//! What one tree of a commit exchanges with it while it is merged: addresses, references, blocks to write.
//!
//! A tree may be merged several times in one commit (the extent tree is, until it settles). A block that the commit
//! itself placed and now replaces was never written: its address serves the next block of the same level, so that a
//! tree that is merged again costs no new space and no new references.

use std::sync::Arc;

use buttress_ondisk::block::BlockHead;
use buttress_ondisk::build::Stamp;
use buttress_ondisk::{TreeBlock, objectid};

use super::commit::Commit;
use crate::error::Result;
use crate::refs::{Record, RefLog, Target, may_be_shared};
use crate::space::Class;
use crate::stats;
use crate::tree::{Exchange, Merge, Root, copy_of};

/// One tree while a commit changes it.
#[derive(Debug)]
pub struct TreeCommit<'c, 'a> {
    commit: &'c Commit<'a>,
    tree: u64,
    /// The generation up to which blocks may be shared with snapshots; `None` for trees that are never shared.
    last_snapshot: Option<u64>,
    root: Option<u64>,
    /// This commit merges the tree once.
    is_merged_once: bool,
    /// Addresses of this tree's blocks that were placed in this commit and replaced: (level, address).
    spare: Vec<(u8, u64)>,
    /// By how many blocks the tree has grown in this commit.
    grown: i64,
    /// Blocks of older commits that were replaced.
    pub replaced: u64,
    /// References gained and lost by this tree.
    pub refs: RefLog,
}

impl<'c, 'a> TreeCommit<'c, 'a> {
    /// Tree `tree`, which never had snapshots.
    pub fn new(commit: &'c Commit<'a>, tree: u64) -> TreeCommit<'c, 'a> {
        TreeCommit {
            commit,
            tree,
            last_snapshot: None,
            root: None,
            is_merged_once: false,
            spare: Vec::new(),
            grown: 0,
            replaced: 0,
            refs: RefLog::default(),
        }
    }

    /// Subvolume `tree`, last snapshotted in transaction `last_snapshot`.
    pub fn of_subvolume(
        commit: &'c Commit<'a>,
        tree: u64,
        last_snapshot: u64,
    ) -> TreeCommit<'c, 'a> {
        TreeCommit { last_snapshot: Some(last_snapshot), ..TreeCommit::new(commit, tree) }
    }

    /// No other merge of this commit replaces what the next one places.
    pub fn merged_once(self) -> TreeCommit<'c, 'a> {
        TreeCommit { is_merged_once: true, ..self }
    }

    /// Starts a merge of the tree, of which `root` is the current version.
    pub fn merge<'s>(&'s mut self, root: Option<Root>) -> Result<Merge<'s>>
    where
        'a: 's,
    {
        self.root = root.map(|root| root.bytenr);
        let (commit, tree) = (self.commit, self.tree);
        stats::add(&commit.core().counters.merges, 1);
        let mut merge = Merge::new(&commit.core().blocks, tree, root, self)?;
        if commit.core().space.is_alone() {
            merge.keep_leaves_apart();
        }
        Ok(merge)
    }

    /// A copy of another tree's root block, owned by this (new) tree: the first version of a snapshot.
    pub fn copy_root(&mut self, source: &TreeBlock) -> Result<Root> {
        self.commit.sharing().gain_children(&mut self.refs, source, self.tree);
        let stamp = self.place(source.level())?;
        self.placed(copy_of(source, &stamp))?;
        Ok(Root { bytenr: stamp.bytenr, generation: stamp.generation, level: source.level() })
    }

    /// Gives up the spare addresses, which nothing of this commit needs any more; whether there were any.
    pub fn drop_spares(&mut self) -> bool {
        let any = !self.spare.is_empty();
        for (level, bytenr) in self.spare.drain(..) {
            self.commit.unplace(bytenr);
            self.refs.by_tree(Target::Block(bytenr, level), self.tree, -1, 0);
        }
        any
    }

    /// By how many blocks the tree has grown in this commit.
    pub fn grown(&self) -> i64 {
        self.grown
    }

    /// What the root item says of the tree's size in bytes, shared blocks included, when it was `before` ahead of this
    /// commit. Linux counts on from it and sizes its reserve by it; a count gone wrong (below nothing, or more than the
    /// filesystem has) starts again.
    pub fn bytes_used(&self, before: u64) -> u64 {
        let core = self.commit.core();
        let nodesize = core.features.nodesize as u64;
        let before = if before > core.space.bytes_used() { 0 } else { before };
        let grown = self.grown.saturating_mul(nodesize as i64);
        before.saturating_add_signed(grown).max(nodesize)
    }

    fn class(&self) -> Class {
        if self.tree == objectid::CHUNK_TREE { Class::System } else { Class::Metadata }
    }
}

impl Exchange for TreeCommit<'_, '_> {
    fn generation(&self) -> u64 {
        self.commit.transid()
    }

    fn release(&mut self, old: &Arc<TreeBlock>) -> Result<()> {
        self.grown -= 1;
        let is_root = self.root == Some(old.bytenr());
        let shared = !is_root && self.last_snapshot.is_some_and(|last| may_be_shared(old, last));
        if old.generation() == self.generation() && !shared {
            self.spare.push((old.level(), old.bytenr()));
            return Ok(());
        }
        self.replaced += 1;
        if old.flags() & BlockHead::RELOC != 0 {
            self.commit.core().space.set_shared();
        }
        if shared {
            let stays = self.commit.sharing().unshare(&mut self.refs, old, self.tree)?;
            stats::add(&self.commit.core().counters.copied, stays.into());
        } else {
            self.refs.by_tree(Target::Block(old.bytenr(), old.level()), self.tree, -1, 0);
        }
        Ok(())
    }

    fn place(&mut self, level: u8) -> Result<Stamp> {
        let bytenr = match self.spare.iter().position(|(spare, _)| *spare == level) {
            Some(at) => self.spare.swap_remove(at).1,
            None => {
                let bytenr = self.commit.core().space.allocate_block(self.class())?;
                self.refs.by_tree(Target::Block(bytenr, level), self.tree, 1, Record::NEW);
                bytenr
            }
        };
        Ok(self.commit.stamp(bytenr, self.tree))
    }

    fn placed(&mut self, block: TreeBlock) -> Result<()> {
        self.grown += 1;
        self.commit.placed(block, self.is_merged_once)
    }
}

/// Flags of every block that a commit writes.
pub const NEW_BLOCK_FLAGS: u64 = BlockHead::WRITTEN;
