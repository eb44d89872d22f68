//! A census: every tree block of an image, and its items by class.

use std::collections::{BTreeMap, BTreeSet};

use buttress_ondisk::item::RootItem;
use buttress_ondisk::{TreeBlock, kind, objectid};

use super::shape::{kind_name, tree_name};
use crate::damage::{Patient, Result};
use crate::ops::rng::Rng;

/// A tree block and how it is reached.
#[derive(Clone, Debug)]
pub struct Reached {
    /// Its address.
    pub at: u64,
    /// The tree through which it was met first.
    pub tree: u64,
    /// The blocks above it, from the root down, and the slot taken in each.
    pub above: Vec<(u64, usize)>,
}

/// An item: which block, and which slot of it.
#[derive(Clone, Copy, Debug)]
pub struct ItemPlace {
    /// The block, by its place in the list of blocks.
    pub block: usize,
    /// The slot.
    pub slot: usize,
}

/// What can be changed in one way.
#[derive(Clone, Debug)]
pub enum Class {
    /// Items of one kind in one kind of tree.
    Items(Vec<ItemPlace>),
    /// Child pointers of the nodes of one kind of tree.
    Children(Vec<ItemPlace>),
    /// Heads of the blocks of one kind of tree.
    Heads(Vec<usize>),
    /// The superblock.
    Superblock,
}

/// What there is in an image.
#[derive(Debug)]
pub struct Census {
    blocks: Vec<Reached>,
    classes: Vec<(String, Class)>,
    numbers: Vec<u64>,
}

impl Census {
    /// Takes an image apart.
    pub fn of(patient: &Patient) -> Result<Census> {
        let mut taker = Taker::default();
        let sb = patient.volume().superblock();
        taker.tree(patient, objectid::CHUNK_TREE, sb.chunk_root.get())?;
        taker.tree(patient, objectid::ROOT_TREE, sb.root.get())?;
        if sb.log_root.get() != 0 {
            taker.tree(patient, objectid::TREE_LOG, sb.log_root.get())?;
        }
        while let Some((tree, at)) = taker.roots.pop() {
            taker.tree(patient, tree, at)?;
        }
        let generation = sb.generation.get();
        taker.numbers.extend([generation - 1, generation, generation + 1, generation + 2]);
        Ok(taker.census())
    }

    /// Every block.
    pub fn blocks(&self) -> &[Reached] {
        &self.blocks
    }

    /// Numbers that mean something in the image: addresses, inodes, trees, kinds of items.
    pub fn numbers(&self) -> &[u64] {
        &self.numbers
    }

    /// The names of all classes.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.classes.iter().map(|(name, _)| name.as_str())
    }

    /// One of the classes: that of items twice as often as those of heads.
    pub fn pick(&self, rng: &mut Rng) -> &(String, Class) {
        let first = rng.pick(&self.classes);
        match first.1 {
            Class::Items(_) | Class::Superblock => first,
            _ => rng.pick(&self.classes),
        }
    }
}

#[derive(Default)]
struct Taker {
    blocks: Vec<Reached>,
    met: BTreeSet<u64>,
    items: BTreeMap<String, Vec<ItemPlace>>,
    children: BTreeMap<String, Vec<ItemPlace>>,
    heads: BTreeMap<String, Vec<usize>>,
    roots: Vec<(u64, u64)>,
    numbers: BTreeSet<u64>,
}

impl Taker {
    fn tree(&mut self, patient: &Patient, tree: u64, root: u64) -> Result<()> {
        self.numbers.insert(tree);
        let mut waiting = vec![Reached { at: root, tree, above: Vec::new() }];
        while let Some(reached) = waiting.pop() {
            if !self.met.insert(reached.at) {
                continue;
            }
            let block = patient.block(reached.at)?;
            let number = self.blocks.len();
            self.numbers.insert(reached.at);
            self.heads.entry(tree_name(tree).into()).or_default().push(number);
            match block.is_leaf() {
                true => self.leaf(tree, &block, number),
                false => {
                    for slot in 0..block.len() {
                        let place = ItemPlace { block: number, slot };
                        self.children.entry(tree_name(tree).into()).or_default().push(place);
                        let above = [&*reached.above, &[(reached.at, slot)]].concat();
                        waiting.push(Reached { at: block.child(slot).bytenr, tree, above });
                    }
                }
            }
            self.blocks.push(reached);
        }
        Ok(())
    }

    fn leaf(&mut self, tree: u64, block: &TreeBlock, number: usize) {
        for slot in 0..block.len() {
            let (key, data) = block.item(slot);
            let name = format!("{}/{}", tree_name(tree), kind_name(key.kind));
            self.items.entry(name).or_default().push(ItemPlace { block: number, slot });
            self.numbers.extend([key.objectid, key.offset, key.kind.into()]);
            let holds_roots = matches!(tree, objectid::ROOT_TREE | objectid::TREE_LOG);
            if holds_roots && key.kind == kind::ROOT_ITEM {
                // The logs' root items all have the number of logs.
                let root = RootItem::read(data).map(|root| (key.objectid, root.bytenr.get()));
                self.roots.extend(root.filter(|(_, at)| *at != 0));
            }
        }
    }

    fn census(self) -> Census {
        let mut classes = vec![("superblock".to_string(), Class::Superblock)];
        classes.extend(self.items.into_iter().map(|(name, it)| (name, Class::Items(it))));
        let named = |name: &str, of: &str| format!("{name}/{of}");
        classes.extend(
            self.children
                .into_iter()
                .map(|(name, it)| (named(&name, "child"), Class::Children(it))),
        );
        classes.extend(
            self.heads.into_iter().map(|(name, it)| (named(&name, "head"), Class::Heads(it))),
        );
        Census { blocks: self.blocks, classes, numbers: self.numbers.into_iter().collect() }
    }
}
