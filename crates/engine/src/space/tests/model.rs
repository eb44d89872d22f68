//! Random allocation, letting go, freezes and commits, against one state per sector.

use std::collections::BTreeMap;

use buttress_ondisk::item::{BlockGroupItem, chunk_type};
use buttress_ondisk::superblock::SUPERBLOCK_OFFSETS;
use buttress_ondisk::{Key, SECTOR, STRIPE_LEN, kind};
use buttress_volume::Chunk;

use super::super::group::join;
use super::super::{Class, Range, Space};
use super::{Disk, NODE, Random, free_of};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Pinned,
    Promised,
    Used,
}

/// Sectors that are not free, and the extents that the extent tree would hold.
struct Model {
    space: Space,
    disk: Disk,
    sectors: BTreeMap<u64, State>,
    /// Allocated by the transaction that is running.
    promised: Vec<Range>,
    data: Vec<Range>,
    blocks: Vec<u64>,
    random: Random,
}

fn sectors(range: Range) -> impl Iterator<Item = u64> {
    (range.start..range.end()).step_by(SECTOR as usize)
}

/// Whether a superblock lies under the 64 KiB at `at` of a chunk.
fn under_superblock(chunk: &Chunk, at: u64) -> bool {
    let unit = (at - chunk.logical) / STRIPE_LEN * STRIPE_LEN;
    let hit =
        |offset: u64| SUPERBLOCK_OFFSETS.iter().any(|s| (offset..offset + STRIPE_LEN).contains(s));
    chunk.stripes.iter().any(|stripe| hit(stripe.offset + unit))
}

impl Model {
    fn new(seed: u64, types: [u64; 3], share: Option<u64>) -> Model {
        let disk = Disk { share, ..Disk::empty(300 << 20) };
        let space = disk.load(NODE, true).unwrap();
        space.pool.lock().set_types(types);
        let (promised, data, blocks) = Default::default();
        let random = Random(seed);
        Model { space, disk, sectors: BTreeMap::new(), promised, data, blocks, random }
    }

    fn enter(&mut self, range: Range, from: Option<State>, to: Option<State>) {
        for at in sectors(range) {
            let old = match to {
                Some(state) => self.sectors.insert(at, state),
                None => self.sectors.remove(&at),
            };
            assert_eq!(old, from, "sector {at} of {range:?}");
        }
    }

    fn chunk_of(&self, range: Range) -> Chunk {
        let pool = self.space.pool.lock();
        let (_, chunk) = pool.chunks.range(..=range.start).next_back().unwrap();
        assert!(range.end() <= chunk.end(), "{range:?} leaves its chunk");
        chunk.clone()
    }

    fn enter_new(&mut self, range: Range, state: State) {
        let chunk = self.chunk_of(range);
        assert!(sectors(range).all(|at| !under_superblock(&chunk, at)), "{range:?}");
        self.enter(range, None, Some(state));
    }

    fn allocate_data(&mut self) {
        let want = (1 + self.random.below(700)) * SECTOR;
        let min = SECTOR * (1 + self.random.below(4));
        if let Some(run) = self.space.allocate_data(min, want) {
            assert!(run.len >= min.min(want) && run.len <= want && run.start % SECTOR == 0);
            let chunk = self.chunk_of(run);
            assert!(chunk.type_flags & chunk_type::DATA != 0);
            self.enter_new(run, State::Promised);
            self.promised.push(run);
        }
    }

    fn let_go_promised(&mut self) {
        let Some(run) = self.random.take(&mut self.promised) else { return };
        let head = Range::new(run.start, run.len / SECTOR / 2 * SECTOR);
        let tail = Range::new(head.end(), run.len - head.len);
        if head.len > 0 {
            self.space.give_back(head).unwrap();
            self.enter(head, Some(State::Promised), None);
        }
        self.space.release(tail).unwrap();
        self.enter(tail, Some(State::Promised), Some(State::Pinned));
        assert!(self.space.give_back(tail).is_err(), "given back twice");
    }

    fn run(&mut self, steps: u64) {
        for _ in 0..steps {
            match self.random.below(5) {
                0 => self.let_go_promised(),
                _ => self.allocate_data(),
            }
        }
    }

    /// A commit of what was promised so far, with the next transaction running beside it.
    fn commit(&mut self, free_share: u64) {
        let old = std::mem::take(&mut self.promised);
        self.space.freeze();
        self.sectors.retain(|_, state| *state != State::Pinned);
        for run in old {
            self.space.account_new(run).unwrap();
            self.enter(run, Some(State::Promised), Some(State::Used));
            self.data.push(run);
            if self.random.below(9) == 0 {
                self.run(1);
            }
        }
        for _ in 0..self.data.len() as u64 * free_share / 10 {
            let run = self.random.take(&mut self.data).unwrap();
            self.pin(run);
        }
        self.commit_blocks(free_share);
        self.disk.settle(&self.space);
        self.space.committed();
        self.check();
    }

    fn commit_blocks(&mut self, free_share: u64) {
        let mut fresh = Vec::new();
        for _ in 0..self.random.below(60) {
            let Ok(at) = self.space.allocate_block(Class::Metadata) else { break };
            let block = Range::new(at, NODE);
            assert_eq!(at % NODE, 0);
            let chunk = self.chunk_of(block);
            assert!(chunk.type_flags & chunk_type::METADATA != 0);
            self.enter_new(block, State::Used);
            fresh.push(at);
        }
        for _ in 0..fresh.len() / 8 {
            let block = Range::new(self.random.take(&mut fresh).unwrap(), NODE);
            self.space.give_back_block(block.start).unwrap();
            self.enter(block, Some(State::Used), None);
        }
        for _ in 0..self.blocks.len() as u64 * free_share / 10 {
            let at = self.random.take(&mut self.blocks).unwrap();
            self.pin(Range::new(at, NODE));
        }
        self.blocks.extend(fresh);
    }

    fn pin(&mut self, range: Range) {
        self.space.free(range).unwrap();
        self.enter(range, Some(State::Used), Some(State::Pinned));
        assert!(self.space.free(range).is_err(), "let go twice");
    }

    fn write_extents(&mut self) {
        let data = self.data.iter().map(|r| Key::new(r.start, kind::EXTENT_ITEM, r.len));
        let blocks = self.blocks.iter().map(|&at| Key::new(at, kind::METADATA_ITEM, 0));
        self.disk.extent.items = data.chain(blocks).map(|key| (key, Vec::new())).collect();
    }

    fn check(&mut self) {
        self.write_extents();
        let chunks = self.space.pool.lock().chunks.clone();
        let free = free_of(&self.space);
        assert!(free.keys().eq(chunks.keys()), "every chunk has a group");
        let used = |at: &u64| self.sectors.get(at) == Some(&State::Used);
        let mut total = 0;
        for (start, runs) in &free {
            let range = Range::new(*start, chunks[start].length);
            let unused = sectors(range).filter(|at| !used(at)).map(|at| Range::new(at, SECTOR));
            assert_eq!(*runs, join(unused), "group {start}");
            let key = Key::new(*start, kind::BLOCK_GROUP_ITEM, range.len);
            if let Some(item) = self.disk.groups.items.get(&key) {
                let item = BlockGroupItem::of(item).unwrap();
                assert_eq!(item.used.get(), sectors(range).filter(used).count() as u64 * SECTOR);
                total += item.used.get();
            }
        }
        assert_eq!(self.space.bytes_used(), total);
        let held = self.sectors.values().filter(|s| **s != State::Pinned).count() as u64 * SECTOR;
        assert_eq!(self.space.usage().used(), held);
        for tree in [true, false] {
            let again = self.disk.load(NODE, tree).unwrap();
            assert_eq!(again.device_bytes_used(), self.space.device_bytes_used());
            let mut again_free = free_of(&again);
            // Chunks that running operations made since then are not written.
            let written = again_free.clone();
            again_free.retain(|start, _| free.contains_key(start));
            let now: BTreeMap<_, _> = free
                .iter()
                .filter(|(s, _)| written.contains_key(s))
                .map(|(s, r)| (*s, r.clone()))
                .collect();
            assert_eq!(again_free, now);
            assert_eq!(again_free.len(), written.len(), "no group outlives its chunk");
            if tree {
                assert!(again.take_dirty().groups.is_empty(), "the free space tree is right");
            }
        }
    }
}

const SEPARATE: [u64; 3] = [
    chunk_type::DATA,
    chunk_type::METADATA | chunk_type::DUP,
    chunk_type::SYSTEM | chunk_type::DUP,
];

fn play(seed: u64, types: [u64; 3], share: Option<u64>) -> Vec<Range> {
    let mut model = Model::new(seed, types, share);
    let mut got = Vec::new();
    for round in 0..14 {
        let steps = model.random.below(60);
        model.run(steps);
        got.extend_from_slice(&model.promised);
        // Fill for a while, then let go.
        model.commit(if round < 8 { 1 } else { 7 });
    }
    let peak = model.space.pool.lock().chunks.len();
    while !model.data.is_empty() || !model.blocks.is_empty() {
        model.commit(10);
        model.promised.drain(..).for_each(|run| {
            model.space.give_back(run).unwrap();
            model.sectors.retain(|at, _| !(run.start..run.end()).contains(at));
        });
        let all: Vec<Range> = model.data.drain(..).collect();
        all.into_iter().for_each(|run| model.pin(run));
        let all: Vec<u64> = model.blocks.drain(..).collect();
        all.into_iter().for_each(|at| model.pin(Range::new(at, NODE)));
        model.disk.settle(&model.space);
        model.check();
    }
    model.commit(0);
    model.commit(0);
    let left = model.space.pool.lock().chunks.len();
    assert!(left <= 6 && left <= peak, "{left} chunks of {peak} are left");
    assert!(share.is_none() || model.space.reads() > 50, "{} reads", model.space.reads());
    got
}

#[test]
fn random_histories_agree_with_one_state_per_sector() {
    for seed in 0..6 {
        play(seed, SEPARATE, None);
    }
}

/// The same when all that may leave memory does so at once, and with the same answers.
#[test]
fn random_histories_agree_when_groups_leave_and_come_back() {
    for seed in 0..6 {
        assert_eq!(play(seed, SEPARATE, Some(0)), play(seed, SEPARATE, None), "seed {seed}");
    }
}

#[test]
fn a_full_device_gives_everything_and_nothing_twice() {
    let mut model = Model::new(3, SEPARATE, Some(0));
    model.commit_blocks(0);
    let mut got = 0;
    while let Some(run) = model.space.allocate_data(SECTOR, 16 << 20) {
        model.enter_new(run, State::Promised);
        model.promised.push(run);
        got += run.len;
    }
    assert!(got > 120 << 20, "only {got} bytes of data fit");
    model.commit(0);
    assert_eq!(model.space.allocate_data(SECTOR, SECTOR), None);
    // A third is let go: allocatable after the next freeze, not before.
    let third = model.data.len() / 3;
    let gone: Vec<Range> = model.data.drain(..third.max(1)).collect();
    gone.iter().for_each(|run| model.pin(*run));
    assert_eq!(model.space.allocate_data(SECTOR, SECTOR), None);
    model.commit(0);
    assert!(model.space.allocate_data(SECTOR, SECTOR).is_some());
}

#[test]
fn blocks_are_neighbours() {
    let model = Model::new(1, SEPARATE, None);
    let blocks: Vec<u64> =
        (0..100).map(|_| model.space.allocate_block(Class::Metadata).unwrap()).collect();
    let breaks = blocks.windows(2).filter(|pair| pair[0] + NODE != pair[1]).count();
    assert!(breaks <= 1, "{blocks:?}");
}

/// A group in the free space of which there are many holes, as extents and as bitmaps: what a small commit asks of the free space
/// tree is the same as where there are few.
#[test]
fn a_small_commit_looks_at_what_it_changes() {
    for holes in [10, 1_000, 16_000] {
        let mut disk = Disk::empty(4 << 30);
        let space = disk.load(NODE, true).unwrap();
        let taken: Vec<Range> =
            (0..2 * holes).map(|_| space.allocate_data(SECTOR, SECTOR).unwrap()).collect();
        let (first, rest) = taken.split_first().unwrap();
        space.freeze();
        taken.iter().for_each(|&run| space.account_new(run).unwrap());
        disk.settle(&space);
        space.committed();
        space.freeze();
        rest.iter().step_by(2).for_each(|&run| space.free(run).unwrap());
        disk.settle(&space);
        space.committed();
        for round in 0..3 {
            let run = space.allocate_data(SECTOR, SECTOR).unwrap();
            space.freeze();
            space.account_new(run).unwrap();
            if round == 1 {
                space.free(*first).unwrap();
            }
            let before = disk.free_space.looks;
            disk.settle(&space);
            space.committed();
            let looks = disk.free_space.looks - before;
            assert!(looks <= 40, "{looks} looks at the free space tree, {holes} holes");
        }
    }
}

/// As many groups as there may be: only those in which nothing is are asked whether they may go.
#[test]
fn vacant_groups_are_known() {
    let mut disk = Disk::empty(300 << 20);
    let space = disk.load(NODE, true).unwrap();
    let mut runs = Vec::new();
    while let Some(run) = space.allocate_data(1 << 20, 1 << 20) {
        runs.push(run);
    }
    let vacant = |space: &Space| {
        let set = space.slots[Class::Data.slot()].set.lock();
        let walked = set.groups().filter(|group| group.is_vacant()).map(|group| group.range.start);
        let known: Vec<u64> = set.vacant().map(|group| group.range.start).collect();
        assert_eq!(walked.collect::<Vec<_>>(), known);
        known.len()
    };
    assert_eq!(vacant(&space), 0);
    let all = space.slots[Class::Data.slot()].set.lock().groups().count();
    assert!(all > 3, "{all} groups");
    runs.iter().for_each(|&run| space.give_back(run).unwrap());
    assert_eq!(vacant(&space), all);
    space.freeze();
    disk.settle(&space);
    assert_eq!(vacant(&space), 1, "one stays");
}
