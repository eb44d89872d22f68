//! What all parts of a check share: the volume, the options, where issues go, and what was met so far.

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use buttress_ondisk::{
    BlockHead, CHILD_LEN, Expect, HEADER_LEN, Key, NodeBuilder, Superblock, TreeBlock,
    item::RootItem, kind, objectid,
};
use buttress_volume::{TreeRoot, Volume};
use parking_lot::Mutex;

use crate::{
    belongs,
    charged::Charged,
    fs::Memo,
    issue::{Issue, Place},
    kinds::Kind,
    marks::Marks,
    options::Options,
    owners::{self, Above},
    progress::Progress,
    refs::{References, Sums, data_refs, held},
    roots::{Roots, Tree, holds_files},
    seeds::Seeds,
    sink::Sink,
};

/// A check under way. Shared by all its threads.
pub(crate) struct Context<'a> {
    /// The filesystem.
    pub volume: &'a Volume,
    /// Its superblock.
    pub sb: Superblock,
    /// What is to be done.
    pub options: &'a Options,
    /// How far it is.
    pub progress: &'a Progress,
    /// Where issues go.
    pub sink: Arc<Sink>,
    /// The trees of the root tree; empty until that was read.
    pub roots: Arc<Roots>,
    /// Tree blocks whose references to others are by their own address, as the extent tree says.
    pub full_backref: Arc<Marks>,
    /// Addresses of blocks that were reported as bad.
    pub bad: Arc<Mutex<HashSet<u64>>>,
    /// Blocks whose references were counted.
    pub visited: Marks,
    /// Where references are counted.
    pub refs: Arc<dyn References>,
    /// What subvolumes are charged, where simple quotas are on.
    pub charged: Option<Charged>,
    /// Sizes so far.
    pub sizes: Sizes,
    /// What hashes start from.
    pub seeds: Seeds,
    /// Subtrees of files that were judged.
    pub memo: Arc<Memo>,
}

/// Sizes that are added up, in bytes; see [`crate::Totals`].
#[derive(Debug, Default)]
pub(crate) struct Sizes {
    pub used: AtomicU64,
    pub csums: AtomicU64,
    pub data_allocated: AtomicU64,
    pub data_referenced: AtomicU64,
    pub tree_blocks: AtomicU64,
    pub fs_tree_blocks: AtomicU64,
    pub extent_tree_blocks: AtomicU64,
    pub waste: AtomicU64,
}

/// Adds to a size.
pub(crate) fn add(size: &AtomicU64, bytes: u64) {
    size.fetch_add(bytes, Relaxed);
}

impl<'a> Context<'a> {
    /// A check that has not begun.
    pub fn new(volume: &'a Volume, options: &'a Options, progress: &'a Progress) -> Context<'a> {
        let seeds = Seeds::new(options.seed);
        Context {
            volume,
            sb: volume.superblock(),
            options,
            progress,
            sink: Arc::new(Sink::new(options.issues_max)),
            roots: Arc::default(),
            full_backref: Arc::new(Marks::new(volume)),
            bad: Arc::default(),
            visited: Marks::new(volume),
            refs: Arc::new(Sums::new(seeds)),
            seeds,
            charged: None,
            sizes: Sizes::default(),
            memo: Arc::new(Memo::new(options.memory_bytes / 4)),
        }
    }

    /// The same check, about to count all references once more, elsewhere.
    pub fn again(&self, refs: Arc<dyn References>) -> Context<'a> {
        Context {
            sink: Arc::clone(&self.sink),
            roots: Arc::clone(&self.roots),
            full_backref: Arc::clone(&self.full_backref),
            bad: Arc::clone(&self.bad),
            visited: Marks::new(self.volume),
            refs,
            charged: None,
            sizes: Sizes::default(),
            memo: Arc::clone(&self.memo),
            ..*self
        }
    }

    /// Reports an issue.
    pub fn report(
        &self,
        kind: Kind,
        place: Place,
        have: impl fmt::Display,
        expect: impl fmt::Display,
    ) {
        self.sink.add(Issue::new(kind, place, have, expect));
    }

    /// The chunk tree, as the superblock has it.
    pub fn chunk_tree(&self) -> Tree {
        of_superblock(objectid::CHUNK_TREE, TreeRoot::chunk_tree(&self.sb))
    }

    /// The root tree, as the superblock has it.
    pub fn root_tree(&self) -> Tree {
        of_superblock(objectid::ROOT_TREE, TreeRoot::root_tree(&self.sb))
    }

    /// The tree of logs, if one waits for replay.
    pub fn log_tree(&self) -> Option<Tree> {
        let root = TreeRoot {
            bytenr: self.sb.log_root.get(),
            level: self.sb.log_root_level,
            generation: None,
            owner: Some(objectid::TREE_LOG),
        };
        (root.bytenr != 0).then(|| of_superblock(objectid::TREE_LOG, root))
    }

    /// Counts a block and the references it holds, the first time that it is met. Children before slot `from` are gone: a
    /// deletion has dropped them.
    pub fn meet(&self, block: &TreeBlock, tree: u64, from: usize, above: Above) {
        // The blocks of a log belong to no commit.
        if tree == objectid::TREE_LOG || !self.visited.add(block.bytenr()) {
            return;
        }
        self.measure(block, tree);
        if let Some(charged) = &self.charged {
            charged.add_block(block);
        }
        self.judge(block, tree, above);
        held(&*self.refs, block, from, self.full_backref.has(block.bytenr()));
    }

    /// What a block's head says that no reader looks at, and its other copies.
    fn judge(&self, block: &TreeBlock, tree: u64, above: Above) {
        let place = || Place::block(tree, block.bytenr());
        if block.head().chunk_tree_uuid != self.volume.chunk_tree_uuid() {
            self.report(Kind::TreeBlockUuid, place(), "another uuid", "that of the chunk tree");
        }
        if block.is_leaf() {
            belongs::judge(self, block, tree);
        }
        self.judge_flags(block, tree);
        let revision = block.head().flags.get() >> 56;
        if revision != BlockHead::MIXED_BACKREF_REV {
            let expect = BlockHead::MIXED_BACKREF_REV;
            self.report(Kind::TreeBlockRevision, place(), revision, expect);
        }
        owners::judge(self, block, tree, above);
        if self.options.check_data_csum {
            self.judge_copies(block, tree);
        }
    }

    /// Only blocks that subvolumes share have been moved by a balance without being written anew, and those refer by their address:
    /// the tree that a balance makes for the time being cannot be told from the others by name.
    fn judge_flags(&self, block: &TreeBlock, tree: u64) {
        let moves = holds_files(tree) || tree == objectid::TREE_RELOC;
        let known = BlockHead::WRITTEN | if moves { BlockHead::RELOC } else { 0 };
        if block.flags() & !known != 0 {
            let have = format_args!("{:#x}", block.flags());
            let expect = format_args!("bits of {known:#x}");
            self.report(Kind::TreeBlockFlags, Place::block(tree, block.bytenr()), have, expect);
        } else if block.flags() & BlockHead::RELOC != 0 && !self.full_backref.has(block.bytenr()) {
            let have = "a block moved by a balance that refers by its owner";
            let place = Place::block(tree, block.bytenr());
            self.report(Kind::TreeBlockFlags, place, have, "full backrefs");
        }
    }

    fn judge_copies(&self, block: &TreeBlock, tree: u64) {
        let chunk = self.volume.chunk_at(block.bytenr());
        let expect = Expect::at(block.bytenr());
        for copy in 1..chunk.map_or(1, |chunk| chunk.profile().copies()) {
            let place = Place::block(tree, block.bytenr());
            match self.volume.read_block_from(block.bytenr(), &expect, copy) {
                Ok(other) if other.as_bytes() == block.as_bytes() => {}
                Ok(_) => self.report(Kind::TreeBlockCopy, place, "another block", "a good copy"),
                // A block that breaks a rule was reported, and its copies do too.
                Err(_) if self.bad.lock().contains(&block.bytenr()) => {}
                Err(error) => self.report(Kind::TreeBlockCopy, place, error, "a good copy"),
            }
        }
    }

    fn measure(&self, block: &TreeBlock, tree: u64) {
        let len = block.as_bytes().len();
        self.progress.advance(len as u64);
        let room = match block.is_leaf() {
            true => (len - HEADER_LEN).saturating_sub(block.leaf_used()),
            false => NodeBuilder::capacity(len).saturating_sub(block.len()) * CHILD_LEN,
        };
        add(&self.sizes.waste, room as u64);
        add(&self.sizes.tree_blocks, len as u64);
        match tree {
            objectid::EXTENT_TREE => add(&self.sizes.extent_tree_blocks, len as u64),
            id if holds_files(id) => add(&self.sizes.fs_tree_blocks, len as u64),
            _ => {}
        }
        if block.is_leaf() {
            self.measure_files(block);
        }
    }

    fn measure_files(&self, leaf: &TreeBlock) {
        for (_, extent) in data_refs(leaf) {
            add(&self.sizes.data_allocated, extent.len);
            add(&self.sizes.data_referenced, extent.covers);
        }
    }
}

fn of_superblock(id: u64, root: TreeRoot) -> Tree {
    Tree { key: Key::new(id, kind::ROOT_ITEM, 0), root, item: RootItem::default() }
}
