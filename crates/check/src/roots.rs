//! The trees that the root tree names.

use std::collections::BTreeMap;

use buttress_ondisk::{Key, item::RootItem, objectid};
use buttress_volume::TreeRoot;

/// A tree: its number, where it starts, and what its root item says.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tree {
    /// The key of its root item; the object id is the tree's number. A snapshot's offset is the generation that made it, a
    /// relocation tree's the tree that it shadows.
    pub key: Key,
    /// Where it starts.
    pub root: TreeRoot,
    /// Its root item.
    pub item: RootItem,
}

impl Tree {
    /// A tree from its root item.
    pub fn new(key: Key, item: RootItem) -> Tree {
        let root = TreeRoot {
            bytenr: item.bytenr.get(),
            level: item.level,
            generation: Some(item.generation.get()),
            owner: Some(key.objectid),
        };
        Tree { key, root, item }
    }

    /// Its number.
    pub fn id(&self) -> u64 {
        self.key.objectid
    }

    /// Whether it holds files: a subvolume, or the tree in which balances keep data that moves.
    pub fn holds_files(&self) -> bool {
        holds_files(self.id())
    }

    /// Whether it is being deleted; then the part before this key, in blocks of this level and above, is gone already.
    pub fn dropped(&self) -> Option<(Key, u8)> {
        let at = Key::from(self.item.drop_progress);
        let begun = self.item.refs.get() == 0 && at.objectid != 0;
        begun.then_some((at, self.item.drop_level))
    }
}

/// Whether the tree of a number holds files, the root tree with its caches aside.
pub(crate) fn holds_files(id: u64) -> bool {
    objectid::is_subvolume(id) || id == objectid::DATA_RELOC_TREE
}

/// All trees that the root tree names.
#[derive(Debug, Default)]
pub(crate) struct Roots {
    trees: BTreeMap<Key, Tree>,
}

impl Roots {
    /// Adds a tree.
    pub fn add(&mut self, tree: Tree) {
        self.trees.insert(tree.key, tree);
    }

    /// The tree of a number.
    pub fn find(&self, id: u64) -> Option<&Tree> {
        let range = Key::new(id, 0, 0)..=Key::new(id, u8::MAX, u64::MAX);
        self.trees.range(range).next().map(|(_, tree)| tree)
    }

    /// All trees, by number.
    pub fn all(&self) -> impl Iterator<Item = &Tree> {
        self.trees.values()
    }
}
