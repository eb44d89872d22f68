//! What subvolumes take, counted the slow way: every tree is walked as a whole, every block and extent is noted with the trees
//! that lead to it. What the engine says of the same version has to be equal.

use std::collections::{BTreeMap, BTreeSet};

use buttress::costs::{Bytes, Costs};
use buttress::ondisk::item::RootItem;
use buttress::ondisk::{Key, TreeBlock, kind, objectid};
use buttress::refs::{Target, child_refs};
use buttress::tree::{Root, View};
use buttress::{Error, Filesystem, Result};

/// Bytes that a leaf takes, twice.
const LEAF_BYTES: u64 = 32;

/// Trees by what they lead to.
#[derive(Debug, Default)]
pub struct Naive {
    trees: BTreeSet<u64>,
    deleted: BTreeSet<u64>,
    /// By address.
    blocks: BTreeMap<u64, BTreeSet<u64>>,
    /// By address, with their bytes on the disk.
    extents: BTreeMap<(u64, u64), BTreeSet<u64>>,
    nodesize: u64,
}

impl Naive {
    /// Walks the last committed version of all subvolumes.
    pub fn of(fs: &Filesystem) -> Result<Naive> {
        let mut naive = Naive { nodesize: fs.info().nodesize.into(), ..Naive::default() };
        let mut roots = Vec::new();
        let from = Key::new(objectid::FS_TREE, kind::ROOT_ITEM, 0);
        fs.search(objectid::ROOT_TREE, from, Key::MAX, |key, _, data| {
            if key.kind == kind::ROOT_ITEM
                && objectid::is_subvolume(key.objectid)
                && let Some(item) = RootItem::read(data)
            {
                roots.push((key.objectid, item));
            }
            true
        })?;
        for (id, item) in roots {
            naive.trees.insert(id);
            if item.refs.get() == 0 {
                naive.deleted.insert(id);
            }
            naive.tree(fs, id, &item)?;
        }
        Ok(naive)
    }

    fn tree(&mut self, fs: &Filesystem, id: u64, item: &RootItem) -> Result<()> {
        let root = Root {
            bytenr: item.bytenr.get(),
            generation: item.generation.get(),
            level: item.level,
        };
        let view = View::new(&fs.core().blocks, id, root);
        let left = Key::from(item.drop_progress);
        let left = (left != Key::MIN).then_some((left, item.drop_level));
        self.block(&view, id, &*view.root_block()?, left)
    }

    /// A block and what is below it, as deep as the tree is. Of a tree that is half dropped, `left` says what is left.
    fn block(
        &mut self,
        view: &View<'_>,
        id: u64,
        block: &TreeBlock,
        left: Option<(Key, u8)>,
    ) -> Result<()> {
        self.blocks.entry(block.bytenr()).or_default().insert(id);
        if block.is_leaf() {
            child_refs(block, |target| {
                if let Target::Data { bytenr, sectors, .. } = target {
                    let len = u64::from(sectors) * buttress::ondisk::SECTOR;
                    self.extents.entry((bytenr, len)).or_default().insert(id);
                }
            });
            return Ok(());
        }
        let first = match left {
            None => 0,
            Some((key, level)) if block.level() <= level => {
                block.search(&key).unwrap_or_else(|slot| slot)
            }
            Some((key, _)) => block.child_for(&key),
        };
        for slot in first..block.len() {
            let left = left.filter(|(_, level)| slot == first && block.level() > *level);
            self.block(view, id, &*view.child(block, slot)?, left)?;
        }
        Ok(())
    }

    fn sum(&self, wanted: impl Fn(&BTreeSet<u64>) -> bool) -> Bytes {
        let extents = self.extents.iter().filter(|(_, trees)| wanted(trees));
        let blocks = self.blocks.values().filter(|trees| wanted(trees));
        Bytes {
            data: extents.map(|((_, len), _)| len).sum(),
            metadata: blocks.count() as u64 * self.nodesize,
        }
    }

    /// What would be free without some subvolumes, besides what goes anyway.
    pub fn freed_by(&self, ids: &BTreeSet<u64>) -> Bytes {
        let goes: BTreeSet<u64> = ids.union(&self.deleted).copied().collect();
        self.sum(|trees| trees.is_subset(&goes) && !trees.is_subset(&self.deleted))
    }

    fn same(&self, costs: &Costs) -> std::result::Result<(), String> {
        let same = |what: String, found: Bytes, wanted: Bytes| match found == wanted {
            true => Ok(()),
            false => Err(format!("{what}: {found:?}, and a walk finds {wanted:?}")),
        };
        let told: BTreeSet<u64> = costs.subvolumes().map(|(id, _)| id).collect();
        if told != self.trees {
            return Err(format!("subvolumes {told:?}, and a walk finds {:?}", self.trees));
        }
        for (id, share) in costs.subvolumes() {
            let all = self.sum(|trees| trees.contains(&id));
            same(format!("referenced by {id}"), share.referenced, all)?;
            let own = self.sum(|trees| trees.len() == 1 && trees.contains(&id));
            same(format!("exclusive of {id}"), share.exclusive, own)?;
        }
        same("all".into(), costs.total(), self.sum(|_| true))?;
        same("shared".into(), costs.shared(), self.sum(|trees| trees.len() > 1))?;
        // Neighbours, every other one, halves.
        let ids: Vec<u64> = told.into_iter().collect();
        let sets = (1..ids.len().min(12)).flat_map(|step| {
            let some = ids.iter().copied().step_by(step).collect::<BTreeSet<u64>>();
            let run = ids.iter().copied().skip(step).take(step).collect();
            [some, run]
        });
        for set in sets {
            let asked: Vec<u64> = set.iter().copied().collect();
            same(format!("freed by {set:?}"), costs.freed_by(&asked), self.freed_by(&set))?;
        }
        Ok(())
    }
}

/// Compares what was counted in the last commit.
pub fn same(fs: &Filesystem, costs: &Costs) -> std::result::Result<(), String> {
    Naive::of(fs).map_err(|error| error.to_string())?.same(costs)
}

/// Compares what the engine says of all subvolumes, and of some sets of them, with what a walk finds. Nothing may change meanwhile.
pub fn compare(fs: &Filesystem) -> std::result::Result<(), String> {
    let costs = fs.subvolume_costs(|_| true).map_err(|error| error.to_string())?;
    let naive = Naive::of(fs).map_err(|error| error.to_string())?;
    naive.same(&costs)?;
    // With room for some of the leaves only.
    let few = naive.blocks.len() as u64 / 5 * LEAF_BYTES;
    let in_rounds = || {
        let mut counting = fs.count_subvolumes_within(few)?;
        while counting.step(fs)? {}
        Ok(counting.costs())
    };
    let costs = in_rounds().map_err(|error: Error| error.to_string())?;
    naive.same(&costs).map_err(|why| format!("in several rounds: {why}"))
}
