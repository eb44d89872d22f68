//! The merge against a sorted map: whatever the order and size of changes, the new version holds what the map holds,
//! the old version still holds what it held, and no block is let go twice or reachable after it was.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, LazyLock};

use buttress_device::MemoryDevice;
use buttress_ondisk::build::Stamp;
use buttress_ondisk::{ITEM_LEN, Key, TreeBlock};
use buttress_volume::{Access, Volume};

use super::{
    Blocks, Draft, Exchange, Item, Merge, PACKED_GAP, Packed, Recent, Root, Stretch, View, Wanted,
};
use crate::error::Result;

type Model = BTreeMap<Key, Vec<u8>>;

pub(crate) struct Fake<'a> {
    pub blocks: &'a Blocks,
    pub generation: u64,
    pub next: &'a mut u64,
    pub live: &'a mut BTreeSet<u64>,
    /// Addresses to take before new ones.
    pub reusable: Vec<u64>,
    pub placed: usize,
}

impl Exchange for Fake<'_> {
    fn generation(&self) -> u64 {
        self.generation
    }

    fn release(&mut self, old: &Arc<TreeBlock>) -> Result<()> {
        assert!(self.live.remove(&old.bytenr()), "released twice: {}", old.bytenr());
        Ok(())
    }

    fn place(&mut self, _level: u8) -> Result<Stamp> {
        self.placed += 1;
        let bytenr = self.reusable.pop().unwrap_or_else(|| {
            *self.next += self.blocks.nodesize() as u64;
            *self.next
        });
        let generation = self.generation;
        Ok(Stamp {
            fsid: [1; 16],
            chunk_tree_uuid: [2; 16],
            bytenr,
            generation,
            owner: 5,
            flags: 1,
        })
    }

    fn placed(&mut self, block: TreeBlock) -> Result<()> {
        assert!(self.live.insert(block.bytenr()));
        self.blocks.hold(Arc::new(block));
        Ok(())
    }
}

pub(crate) fn blocks() -> Blocks {
    let device = Arc::new(MemoryDevice::new(256 << 20));
    let options = buttress_mkfs::Options { nodesize: Some(4096), ..Default::default() };
    buttress_mkfs::make(&*device, &options, &mut buttress_mkfs::Environment::seeded(1)).unwrap();
    let opened = Volume::open(vec![device], Access::ReadOnly).unwrap();
    Blocks::new(Arc::new(opened.volume), 1 << 20)
}

/// A small generator of pseudo-random numbers, so that a seed replays.
pub(super) struct Rng(pub u64);

impl Rng {
    pub fn next(&mut self, below: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) % below
    }
}

struct Bench {
    blocks: Arc<Blocks>,
    next: u64,
    live: BTreeSet<u64>,
    root: Option<Root>,
    model: Model,
    generation: u64,
}

impl Bench {
    fn new() -> Bench {
        Bench {
            blocks: Arc::new(blocks()),
            next: 1 << 40,
            live: BTreeSet::new(),
            root: None,
            model: Model::new(),
            generation: 10,
        }
    }

    fn merge(&mut self, change: impl FnOnce(&mut Merge<'_>, &mut Model)) -> usize {
        self.generation += 1;
        let mut fake = Fake {
            blocks: &self.blocks,
            generation: self.generation,
            next: &mut self.next,
            live: &mut self.live,
            reusable: Vec::new(),
            placed: 0,
        };
        let mut merge = Merge::new(&self.blocks, 5, self.root, &mut fake).unwrap();
        change(&mut merge, &mut self.model);
        self.root = Some(merge.finish().unwrap());
        let placed = fake.placed;
        self.check();
        placed
    }

    fn check(&self) {
        let view = View::new(&self.blocks, 5, self.root.unwrap());
        let mut cursor = view.range(Key::MIN, Key::MAX);
        let mut model = self.model.iter();
        while let Some(item) = cursor.next().unwrap() {
            let (key, data) = model.next().expect("no more than the model");
            assert_eq!((item.key(), item.data()), (*key, &data[..]));
        }
        assert_eq!(model.next(), None);
        let mut reached = BTreeSet::new();
        self.reach(&view.root_block().unwrap(), &view, &mut reached);
        assert_eq!(reached, self.live, "reachable blocks are those that are live");
    }

    fn leaves(&self) -> u64 {
        let view = View::new(&self.blocks, 5, self.root.unwrap());
        fn below(block: &TreeBlock, view: &View<'_>) -> u64 {
            match block.is_leaf() {
                true => 1,
                false => {
                    let child = |slot| view.child(block, slot).unwrap();
                    (0..block.len()).map(|slot| below(&child(slot), view)).sum()
                }
            }
        }
        below(&view.root_block().unwrap(), &view)
    }

    fn reach(&self, block: &TreeBlock, view: &View<'_>, reached: &mut BTreeSet<u64>) {
        assert!(reached.insert(block.bytenr()));
        if !block.is_leaf() {
            assert!(!block.is_empty());
            for slot in 0..block.len() {
                self.reach(&view.child(block, slot).unwrap(), view, reached);
            }
        }
    }
}

fn value(rng: &mut Rng, max: u64) -> Vec<u8> {
    let len = rng.next(max) as usize;
    vec![rng.next(256) as u8; len]
}

fn random_round(bench: &mut Bench, rng: &mut Rng, keys: u64, changes: u64) {
    let mut at = BTreeSet::new();
    for _ in 0..changes {
        at.insert(Key::new(rng.next(keys), rng.next(3) as u8, 0));
    }
    let size = [4, 60, 300, 2000][rng.next(4) as usize];
    let (blocks, old) = (bench.blocks.clone(), bench.root);
    bench.merge(|merge, model| {
        let mut passed = Key::MIN;
        for key in at {
            if key < passed {
                continue;
            }
            match rng.next(10) {
                0 | 1 => {
                    let gone = merge.delete(&key).unwrap();
                    assert_eq!(gone, model.remove(&key).is_some());
                }
                2 => {
                    let to = Key::new(key.objectid + rng.next(keys / 20 + 2), 2, 0);
                    let mut seen = Vec::new();
                    merge.delete_range(key, to, |key, _| seen.push(key)).unwrap();
                    let gone: Vec<Key> = model.range(key..=to).map(|(key, _)| *key).collect();
                    gone.iter().for_each(|key| drop(model.remove(key)));
                    assert_eq!(seen, gone);
                    passed = to.next();
                }
                3 => assert_eq!(merge.find(&key).unwrap(), model.get(&key).map(|data| &data[..])),
                4 => {
                    let found = merge.peek(&key).unwrap().map(|(key, data)| (key, data.to_vec()));
                    let expect = model.range(key..).next().map(|(key, data)| (*key, data.clone()));
                    assert_eq!(found, expect);
                }
                5 => {
                    let many = rng.next(40) * rng.next(20);
                    let items: Vec<(Key, Vec<u8>)> =
                        (0..many).map(|at| (Key { offset: at, ..key }, value(rng, size))).collect();
                    merge.graft(draft(&items)).unwrap();
                    passed = items.last().map_or(passed, |(key, _)| key.next());
                    model.extend(items);
                }
                6 => {
                    let Some(old) = old else { continue };
                    let to = Key::new(key.objectid + rng.next(keys / 4 + 2), 2, 0);
                    let view = View::new(&blocks, 5, old);
                    let most = [9, 9, 500][rng.next(3) as usize];
                    let most = 1 + rng.next(most) as usize;
                    let odd = rng.next(2) == 0;
                    let may_cut = |key: &Key| odd || key.objectid.is_multiple_of(2);
                    let changes =
                        |from: &Key, to: &Key| !from.objectid.is_multiple_of(7) || from >= to;
                    let wanted =
                        Wanted { keys: (key, to), most, changes: &changes, may_cut: &may_cut };
                    for stretch in Stretch::all(&view, &wanted).unwrap() {
                        assert!(changes(&stretch.from(), &stretch.to()));
                        assert!(may_cut(&stretch.from()) && may_cut(&stretch.to()));
                        assert!(key <= stretch.from() && stretch.from() < stretch.to());
                        assert!(stretch.to() <= to && (1..=most).contains(&stretch.leaves()));
                        passed = stretch.to();
                        let change = |merge: &mut Merge<'_>| {
                            change_stretch(merge, model, rng, (stretch.from(), stretch.to()), size);
                            Ok(())
                        };
                        merge.take_over(stretch.remake(&blocks, 5, change).unwrap()).unwrap();
                        if rng.next(3) == 0 {
                            look_before(merge, model, rng, stretch.to());
                        }
                    }
                }
                _ => {
                    let data = value(rng, size);
                    merge.put(key, &data).unwrap();
                    model.insert(key, data);
                }
            }
        }
    });
}

/// What is next may be before the key that a stretch ends with, behind its items: who deletes an inode begins before its first item.
fn look_before(merge: &mut Merge<'_>, model: &mut Model, rng: &mut Rng, to: Key) {
    let key = match to {
        Key { offset: 0, kind: 0, objectid } => Key::new(objectid - 1, u8::MAX, u64::MAX),
        Key { offset: 0, kind, objectid } => Key::new(objectid, kind - 1, u64::MAX),
        Key { offset, .. } => Key { offset: offset - 1, ..to },
    };
    if model.contains_key(&key) {
        return;
    }
    match rng.next(4) {
        0 => assert_eq!(merge.find(&key).unwrap(), None),
        1 => assert!(!merge.delete(&key).unwrap()),
        2 => merge.delete_range(key, key, |key, _| panic!("{key}")).unwrap(),
        _ => {
            merge.put(key, &[1; 9]).unwrap();
            model.insert(key, vec![1; 9]);
        }
    }
}

/// Changes some keys from `from` to before `to`, or nothing, or deletes all.
fn change_stretch(
    merge: &mut Merge<'_>,
    model: &mut Model,
    rng: &mut Rng,
    (from, to): (Key, Key),
    size: u64,
) {
    let mut at = BTreeSet::from([from]);
    let objects = to.objectid - from.objectid + 1;
    for _ in 0..[0, 1, 9, 300][rng.next(4) as usize] {
        at.insert(Key::new(from.objectid + rng.next(objects), rng.next(3) as u8, rng.next(3)));
    }
    let all = rng.next(6) == 0;
    if all {
        at.extend(model.range(from..to).map(|(key, _)| *key));
    }
    for key in at.range(from..to) {
        let there = model.get(key).map(|data| &data[..]);
        match rng.next(7) {
            5 => {
                let found = merge.peek(key).unwrap().map(|(key, data)| (key, data.to_vec()));
                let next = model.range(key..&to).next();
                assert_eq!(found, next.map(|(key, data)| (*key, data.clone())));
            }
            _ if all => assert_eq!(merge.delete(key).unwrap(), model.remove(key).is_some()),
            0 => assert_eq!(merge.find(key).unwrap(), there),
            1 => assert_eq!(merge.delete(key).unwrap(), model.remove(key).is_some()),
            _ => {
                let data = value(rng, size);
                merge.put(*key, &data).unwrap();
                model.insert(*key, data);
            }
        }
    }
}

fn draft(items: &[(Key, Vec<u8>)]) -> Draft {
    static BLOCKS: LazyLock<Blocks> = LazyLock::new(blocks);
    let fill =
        |merge: &mut Merge<'_>| items.iter().try_for_each(|(key, data)| merge.put(*key, data));
    Draft::fill(&BLOCKS, 5, fill).unwrap()
}

/// Each stretch ends where its node does, and what is next begins before the next node's first key.
#[test]
fn a_node_of_which_all_is_taken_over_is_left() {
    for seed in 0..8 {
        let (mut bench, mut rng) = (Bench::new(), Rng(seed));
        bench.merge(|merge, model| {
            for ino in 1..4000 {
                let (key, data) = (Key::new(ino, 1, 0), vec![7; 1500]);
                merge.put(key, &data).unwrap();
                model.insert(key, data);
            }
        });
        let (blocks, root) = (bench.blocks.clone(), bench.root.unwrap());
        assert!(root.level >= 2);
        let view = View::new(&blocks, 5, root);
        let wanted = Wanted {
            keys: (Key::MIN, Key::MAX),
            most: usize::MAX,
            changes: &|_, _| true,
            may_cut: &|_| true,
        };
        let stretches = Stretch::all(&view, &wanted).unwrap();
        assert!(stretches.len() > 3);
        bench.merge(|merge, model| {
            for stretch in &stretches {
                let key = stretch.from();
                let change = |merge: &mut Merge<'_>| merge.put(key, &[2; 1500]);
                merge.take_over(stretch.remake(&blocks, 5, change).unwrap()).unwrap();
                model.insert(key, vec![2; 1500]);
                look_before(merge, model, &mut rng, stretch.to());
            }
        });
    }
}

#[test]
fn drafts_in_a_row_leave_no_gaps() {
    let mut bench = Bench::new();
    let item = |at: u64| (Key::new(at, 1, 0), vec![7; 40]);
    let before = bench.merge(|merge, model| {
        for at in (0..1000).chain(50_000..51_000) {
            let (key, data) = item(at);
            merge.put(key, &data).unwrap();
            model.insert(key, data);
        }
    });
    let placed = bench.merge(|merge, model| {
        for part in 0..10 {
            let items: Vec<_> = (0..2000).map(|at| item(10_000 + part * 2000 + at)).collect();
            merge.graft(draft(&items)).unwrap();
            model.extend(items);
        }
    });
    let full = (2000 + 20_000) / ((4096 - 101) / 65);
    assert!(bench.live.len() <= full + full / 20 + 5, "{} blocks for {full}", bench.live.len());
    assert!(placed + before <= full + full / 10 + 5, "{placed} blocks written");
}

#[test]
fn packing_leaves_no_gaps_and_nothing_out() {
    let mut bench = Bench::new();
    bench.merge(|merge, _| merge.pack().unwrap());
    // A full leaf that one item more comes into becomes two.
    for (offset, step) in [(0, 1), (1, 50), (2, 100)] {
        bench.merge(|merge, model| {
            for at in (0..20_000).step_by(step) {
                let key = Key::new(at, 1, offset);
                merge.put(key, &[7; 40]).unwrap();
                model.insert(key, vec![7; 40]);
            }
        });
    }
    let (mut leaves, mut used) = (1, 0);
    for size in bench.model.values().map(|data| data.len() + 25) {
        let gap = 3995 / super::merge::PACKED_GAP;
        (leaves, used) = if 3995 - used < gap { (leaves + 1, size) } else { (leaves, used + size) };
    }
    // A node has 121 children.
    let most = leaves + leaves / 60 + 3;
    assert!(bench.live.len() > most, "{} blocks and {leaves} leaves: no gaps", bench.live.len());
    bench.merge(|merge, _| merge.pack().unwrap());
    assert!((leaves..=most).contains(&bench.live.len()), "{} {leaves}", bench.live.len());
    // Of a tree that is packed nothing is left out either, when the changes ahead have passed a part of it.
    bench.merge(|merge, model| {
        let key = Key::new(2500, 0, 7);
        merge.put(key, &[1; 9]).unwrap();
        model.insert(key, vec![1; 9]);
        merge.pack().unwrap();
    });
}

/// Fills leaves one after the other with items of these sizes, so that they are as few as can be, and packs them: how many there
/// were and are.
fn filled_and_packed(sizes: impl IntoIterator<Item = usize>) -> (u64, u64) {
    let mut bench = Bench::new();
    let mut counted = Packed::new(4096);
    bench.merge(|merge, model| {
        for (at, size) in sizes.into_iter().enumerate() {
            let (key, data) = (Key::new(at as u64, 1, 0), vec![7; size]);
            counted.add(size);
            merge.put(key, &data).unwrap();
            model.insert(key, data);
        }
    });
    let full = bench.leaves();
    bench.merge(|merge, _| merge.pack().unwrap());
    assert_eq!(bench.leaves(), counted.leaves);
    (full, counted.leaves)
}

/// However large extent items are, up to the limit that every kernel keeps, and in whichever order: packed leaves are a fifteenth
/// more than full ones at most.
#[test]
fn packing_makes_few_leaves_of_items_of_all_sizes() {
    let limit = 3995 / PACKED_GAP as u64 - ITEM_LEN as u64;
    for seed in 0..40 {
        let mut rng = Rng(seed * 131 + 1);
        let least = [0, 24, limit / 2, limit][rng.next(4) as usize];
        // Runs of sizes, as extents with few references and those with many lie together.
        let mut most = limit;
        let sizes: Vec<usize> = (0..4000)
            .map(|_| {
                if rng.next(20) == 0 {
                    most = least + rng.next(limit - least + 1);
                }
                (least + rng.next(most - least + 1)) as usize
            })
            .collect();
        let (full, packed) = filled_and_packed(sizes);
        let promised = full + full / (PACKED_GAP as u64 - 1) + 1;
        assert!((full..=promised).contains(&packed), "seed {seed}: {packed} of {full}");
    }
}

/// Larger items than gaps, which only others make, may come to twice as many leaves: counting them ahead tells that.
#[test]
fn what_packing_makes_of_larger_items_is_counted_ahead() {
    for seed in 0..20 {
        let mut rng = Rng(seed * 31 + 7);
        let most = [400, 1500, 3970][rng.next(3) as usize];
        filled_and_packed((0..500).map(|_| rng.next(most + 1) as usize));
    }
    // Leaves with nothing free, of which each one's large item is a little larger than that before.
    let (room, gap) = (3995 - 2 * ITEM_LEN, 3995 / PACKED_GAP);
    let large = |at: usize| room - gap + ITEM_LEN + 1 + at;
    let (full, packed) = filled_and_packed((0..100).flat_map(|at| [large(at), room - large(at)]));
    assert_eq!((full, packed), (100, 200));
}

#[test]
fn a_merge_agrees_with_a_sorted_map() {
    for seed in 0..60 {
        let mut bench = Bench::new();
        let mut rng = Rng(seed * 77 + 1);
        for _ in 0..25 {
            let keys = [10, 200, 5000][rng.next(3) as usize];
            let changes = [1, 5, 60, 1500][rng.next(4) as usize];
            random_round(&mut bench, &mut rng, keys, changes);
        }
    }
}

/// Searches of one version after the other: each finds what its version has.
#[test]
fn where_a_tree_was_searched_last_does_not_show() {
    for seed in 0..20 {
        let (mut bench, mut rng, recent) = (Bench::new(), Rng(seed * 31 + 5), Recent::default());
        for _ in 0..12 {
            let keys = [10, 200, 5000][rng.next(3) as usize];
            random_round(&mut bench, &mut rng, keys, 300);
            let (root, model) = (bench.root.unwrap(), &bench.model);
            let view = View::new(&bench.blocks, 5, root).with_recent(&recent);
            for _ in 0..500 {
                let key = Key::new(rng.next(keys + 2), rng.next(4) as u8, rng.next(2));
                let found = view.get(&key).unwrap();
                assert_eq!(found.as_ref().map(Item::data), model.get(&key).map(|data| &data[..]));
                let before = view.last_at_or_before(&key).unwrap().map(|item| item.key());
                assert_eq!(before, model.range(..=key).next_back().map(|(key, _)| *key));
            }
        }
    }
}

#[test]
fn appending_fills_every_leaf() {
    let mut bench = Bench::new();
    let mut next = 0;
    let mut placed = 0;
    for _ in 0..20 {
        placed += bench.merge(|merge, model| {
            for _ in 0..1000 {
                let key = Key::new(next, 1, 0);
                merge.put(key, &[7; 40]).unwrap();
                model.insert(key, vec![7; 40]);
                next += 1;
            }
        });
    }
    let per_leaf = (4096 - 101) / 65;
    let least = 20_000 / per_leaf;
    assert!(
        bench.live.len() <= least + least / 20 + 3,
        "{} blocks for {least} full leaves",
        bench.live.len()
    );
    assert!(placed <= least + least / 10 + 80, "{placed} blocks written for {least} full leaves");
}

#[test]
fn one_change_writes_one_path() {
    let mut bench = Bench::new();
    bench.merge(|merge, model| {
        for at in 0..20_000 {
            let key = Key::new(at * 2, 1, 0);
            merge.put(key, &[7; 20]).unwrap();
            model.insert(key, vec![7; 20]);
        }
    });
    let levels = bench.root.unwrap().level as usize + 1;
    let placed = bench.merge(|merge, model| {
        merge.put(Key::new(10_000, 1, 0), &[8; 20]).unwrap();
        model.insert(Key::new(10_000, 1, 0), vec![8; 20]);
    });
    assert_eq!(placed, levels);
    let same = bench.merge(|merge, _| merge.put(Key::new(10_000, 1, 0), &[8; 20]).unwrap());
    assert_eq!(same, 0, "putting what is there writes nothing");
}

#[test]
fn a_block_in_memory_is_not_taken_for_one_of_another_tree() {
    let mut bench = Bench::new();
    bench.merge(|merge, model| {
        merge.put(Key::new(256, 1, 0), b"item").unwrap();
        model.insert(Key::new(256, 1, 0), b"item".to_vec());
    });
    let root = bench.root.unwrap();
    let read = |owner| bench.blocks.read(root.bytenr, root.level, root.generation, owner);
    assert!(read(5).is_ok() && read(256).is_ok(), "subvolumes share blocks");
    assert!(read(2).is_err());
}

/// The leaves, by their first keys: the bytes that each has room for.
fn rooms(bench: &Bench) -> BTreeMap<Key, u64> {
    let view = View::new(&bench.blocks, 5, bench.root.unwrap());
    let (mut rooms, mut from) = (BTreeMap::new(), Some(Key::MIN));
    while let Some(key) = from {
        let (leaf, next) = view.leaf_at(&key).unwrap();
        rooms.insert(key, (buttress_ondisk::LeafBuilder::room(4096) - leaf.leaf_used()) as u64);
        from = next;
    }
    rooms
}

/// Merges several times, as settling does, and counts what comes into each leaf; by how many leaves more came of them than that splits off,
/// at most.
fn leaves_beyond(seed: u64) -> u64 {
    const SIZE: u64 = 33;
    let (mut bench, mut rng, mut beyond) = (Bench::new(), Rng(seed), 0);
    let key = |at| Key::new(at, 169, 0);
    let put = |merge: &mut Merge<'_>, model: &mut Model, at: u64| {
        let data = vec![at as u8; SIZE as usize];
        merge.put(key(at), &data).unwrap();
        model.insert(key(at), data);
    };
    let first: BTreeSet<u64> = (0..3000).map(|_| rng.next(100_000)).collect();
    bench.merge(|merge, model| first.into_iter().for_each(|at| put(merge, model, at)));
    for _ in 0..30 {
        let (before, mut added) = (rooms(&bench), BTreeMap::new());
        for _ in 0..1 + rng.next(5) {
            let (near, count) = (rng.next(100_000), rng.next(4) * rng.next(60));
            let spread = [200, 5000, 100_000][rng.next(3) as usize];
            let gone: BTreeSet<u64> = (0..rng.next(200)).map(|_| rng.next(100_000)).collect();
            let new: BTreeSet<u64> = (0..count).map(|_| near + rng.next(spread)).collect();
            for at in new.difference(&gone).filter(|at| !bench.model.contains_key(&key(**at))) {
                let leaf = before.range(..=key(*at)).next_back().unwrap().0;
                *added.entry(*leaf).or_insert(0) += SIZE + ITEM_LEN as u64;
            }
            bench.merge(|merge, model| {
                merge.keep_leaves_apart();
                for at in new.union(&gone) {
                    if gone.contains(at) {
                        let was_there = model.remove(&key(*at)).is_some();
                        assert_eq!(merge.delete(&key(*at)).unwrap(), was_there);
                    } else {
                        put(merge, model, *at);
                    }
                }
            });
        }
        let split = |(leaf, bytes): (&Key, &u64)| match bytes.checked_sub(before[leaf] + 1) {
            Some(rest) => 1 + rest / (4096 / 8),
            None => 0,
        };
        let most = before.len() as u64 + added.iter().map(split).sum::<u64>();
        beyond = beyond.max(bench.leaves().saturating_sub(most));
    }
    beyond
}

/// That is what a deletion is promised that comes alone (`space/alone.rs`).
#[test]
fn leaves_kept_apart_split_only_by_what_comes_into_them() {
    for seed in 0..20 {
        assert_eq!(leaves_beyond(seed), 0, "seed {seed}");
    }
}
