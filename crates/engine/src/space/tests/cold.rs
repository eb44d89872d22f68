//! Groups whose free space leaves memory: what is kept is bounded, and nobody sees a difference.

use std::collections::BTreeMap;
use std::sync::Arc;

use buttress_ondisk::item::{BlockGroupItem, FreeSpaceInfo, chunk_type};
use buttress_ondisk::{Key, SECTOR, kind, objectid};
use buttress_volume::{Chunk, Stripe};
use parking_lot::Mutex;
use zerocopy::IntoBytes;

use super::super::emit::Dirty;
use super::super::free_space_tree::BITMAP_COVERS;
use super::super::{Class, Range, Space};
use super::{Disk, NODE, Random, Tree, groups_of};

/// Bytes of a group.
const GROUP: u64 = 64 << 20;
/// Groups.
const GROUPS: u64 = 64;
/// Where the first one is, on the device, too: behind two superblocks.
const FIRST: u64 = 128 << 20;
/// What a group takes in memory, whose free space is in so many pieces.
const KEPT: u64 = 2816;

fn chunk(at: u64) -> Chunk {
    Chunk {
        logical: at,
        length: GROUP,
        stripe_len: buttress_ondisk::STRIPE_LEN,
        type_flags: chunk_type::DATA,
        stripes: vec![Stripe { devid: 1, offset: at, dev_uuid: [7; 16] }],
        sub_stripes: 1,
    }
}

fn put(tree: &mut Tree, key: Key, item: &[u8]) {
    tree.items.insert(key, item.to_vec());
}

/// A group in which each sector is free or not, as it happens; the used ones are answered.
fn age(disk: &mut Disk, at: u64, random: &mut Random) -> Vec<u64> {
    let (mut used, mut runs, mut before) = (Vec::new(), 0u32, false);
    for map in (at..at + GROUP).step_by(BITMAP_COVERS as usize) {
        let bits: Vec<u8> = (0..BITMAP_COVERS / SECTOR / 8).map(|_| random.next() as u8).collect();
        for bit in 0..BITMAP_COVERS / SECTOR {
            let free = bits[(bit / 8) as usize] >> (bit % 8) & 1 != 0;
            if !free {
                used.push(map + bit * SECTOR);
            }
            runs += u32::from(free && !before);
            before = free;
        }
        put(&mut disk.free_space, Key::new(map, kind::FREE_SPACE_BITMAP, BITMAP_COVERS), &bits);
    }
    let info = FreeSpaceInfo { extent_count: runs.into(), flags: 1.into() };
    put(&mut disk.free_space, Key::new(at, kind::FREE_SPACE_INFO, GROUP), info.as_bytes());
    used
}

/// A disk full of groups in use for years, and all that is used on it.
fn aged() -> (Disk, Vec<u64>) {
    let (mut disk, mut random, mut all) = (Disk::empty(8 << 30), Random(1), Vec::new());
    for at in (0..GROUPS).map(|group| FIRST + group * GROUP) {
        let chunk = chunk(at);
        put(&mut disk.chunk, chunk.key(), &chunk.encode());
        let used = age(&mut disk, at, &mut random);
        let item = BlockGroupItem {
            used: (used.len() as u64 * SECTOR).into(),
            chunk_objectid: objectid::FIRST_CHUNK_TREE.into(),
            flags: chunk_type::DATA.into(),
        };
        put(&mut disk.groups, Key::new(at, kind::BLOCK_GROUP_ITEM, GROUP), item.as_bytes());
        all.extend(used);
        put_device_extent(&mut disk, &chunk);
    }
    (disk, all)
}

fn put_device_extent(disk: &mut Disk, chunk: &Chunk) {
    let whole = Disk::empty(8 << 30).load(NODE, true).unwrap();
    let device = whole.pool.lock().written().device;
    let dirty =
        Dirty { chunks_added: vec![chunk.clone()], device: Some(device), ..Dirty::default() };
    whole.emit_device_extents(disk.device.restart(), &dirty).unwrap();
}

/// What a history comes to.
#[derive(PartialEq, Eq)]
struct Outcome {
    got: Vec<Range>,
    free_space: BTreeMap<Key, Vec<u8>>,
    groups: BTreeMap<Key, Vec<u8>>,
}

/// Allocations, frees and commits; after each, what is kept must be below the share, but for what the last two commits touched.
fn play(share: Option<u64>) -> (Outcome, u64, u64) {
    let (mut disk, mut used) = aged();
    disk.share = share;
    let space = disk.load(NODE, true).unwrap();
    let (mut random, mut got) = (Random(9), Vec::new());
    let most = |space: &Space| {
        assert!(
            share.is_none_or(|share| space.memory() <= share + 10 * KEPT),
            "{}",
            space.memory()
        );
    };
    for _ in 0..60 {
        most(&space);
        let want = |random: &mut Random| SECTOR * (1 + random.below(9));
        let runs: Vec<Range> =
            (0..20).filter_map(|_| space.allocate_data(SECTOR, want(&mut random))).collect();
        most(&space);
        space.freeze();
        runs.iter().for_each(|&run| space.account_new(run).unwrap());
        got.extend(runs);
        got.push(Range::new(space.allocate_block(Class::Metadata).unwrap(), NODE));
        for _ in 0..3 {
            let at = random.take(&mut used).unwrap();
            space.free(Range::new(at, SECTOR)).unwrap();
            assert!(space.free(Range::new(at, SECTOR)).is_err(), "let go twice");
        }
        settle_quickly(&mut disk, &space);
        space.committed();
        most(&space);
    }
    let (memory, reads) = (space.memory(), space.reads());
    assert!(disk.is_as_written_anew(&space));
    let (free_space, groups) = (disk.free_space.items, disk.groups.items);
    (Outcome { got, free_space, groups }, memory, reads)
}

/// As [`Disk::settle`], without looking at all groups.
fn settle_quickly(disk: &mut Disk, space: &Space) {
    loop {
        let dirty = space.take_dirty();
        if dirty.is_empty() {
            return disk.publish(space);
        }
        space.emit_chunks(disk.chunk.restart(), &dirty).unwrap();
        space.emit_device_extents(disk.device.restart(), &dirty).unwrap();
        space.emit_groups(disk.groups.restart(), &dirty).unwrap();
        space.emit_free_space(disk.free_space.restart(), &dirty).unwrap();
    }
}

#[test]
fn what_groups_keep_is_bounded_and_nothing_else_is_different() {
    let (plain, all, none) = play(None);
    assert!(all >= GROUPS * KEPT && none == 0, "{all} bytes, {none} reads");
    for share in [0, 8 * KEPT, 24 * KEPT] {
        let (same, memory, reads) = play(Some(share));
        assert!(same == plain, "share {share}");
        assert!(memory < all && reads > 50, "share {share}: {memory} bytes, {reads} reads");
    }
    let (same, _, reads) = play(Some(2 * all));
    assert!(same == plain && reads == 0, "who has room reads nothing again");
}

/// Space that groups are wanted for is where it was, in each group, and what cannot be read is left alone.
#[test]
fn a_group_that_cannot_be_read_is_out_of_use() {
    for broken in 0..4 {
        let (mut disk, used) = aged();
        disk.share = Some(0);
        let space = disk.load(NODE, true).unwrap();
        let (bytes, lost) = (space.slots[0].counters.read().free, GROUP - GROUP / 4);
        {
            let mut tree = disk.committed.0.lock();
            let map = Key::new(FIRST + BITMAP_COVERS, kind::FREE_SPACE_BITMAP, BITMAP_COVERS);
            match broken {
                0 => drop(tree.items.remove(&map)),
                1 => tree.items.get_mut(&map).unwrap().fill(0x0f),
                2 => drop(tree.items.get_mut(&map).unwrap().pop()),
                _ => drop(tree.items.remove(&Key::new(FIRST, kind::FREE_SPACE_INFO, GROUP))),
            }
        }
        let run = space.allocate_data(SECTOR, SECTOR).unwrap();
        assert!(run.start >= FIRST + GROUP, "{run:?}");
        let left = space.slots[0].counters.read().free;
        assert!(left < bytes - GROUP / 4 && left > bytes - lost, "{left} of {bytes}");
        let warnings = space.take_warnings();
        assert!(warnings.len() == 1 && warnings[0].contains(&FIRST.to_string()), "{warnings:?}");
        let mut all = 1;
        while space.allocate_data(SECTOR, SECTOR).is_some_and(|run| run.end() <= FIRST + 4 * GROUP)
        {
            all += 1;
        }
        assert!(all > 1000 && space.take_warnings().is_empty());
        let at = Range::new(used[0], SECTOR);
        assert!(space.free(at).is_err(), "nobody knows what is free there");
        // It was only for a moment: the commit that fails is not this one.
        *disk.committed.0.lock() = disk.free_space.clone();
        space.free(at).unwrap();
        assert!(space.free(at).is_err());
    }
}

/// While somebody reads a group's free space, it comes back, is changed, is written, and leaves again: what he has read is old.
#[test]
fn what_was_read_too_early_is_read_again() {
    let (mut disk, _) = aged();
    disk.share = Some(0);
    let space = Arc::new(disk.load(NODE, true).unwrap());
    let committed = disk.committed.clone();
    let (disk, theirs) = (Arc::new(Mutex::new(disk)), Arc::new(Mutex::new(Vec::new())));
    let meanwhile = {
        let (space, disk, theirs) = (space.clone(), disk.clone(), theirs.clone());
        move || {
            let runs: Vec<Range> =
                (0..50).map(|_| space.allocate_data(SECTOR, SECTOR).unwrap()).collect();
            space.freeze();
            runs.iter().for_each(|&run| space.account_new(run).unwrap());
            disk.lock().settle(&space);
            space.committed();
            let set = space.slots[0].set.lock();
            assert!(set.present(FIRST).is_err(), "it has left again");
            drop(set);
            theirs.lock().extend(runs);
        }
    };
    *committed.1.0.lock() = Some(Box::new(meanwhile));
    let mine: Vec<Range> = (0..50).map(|_| space.allocate_data(SECTOR, SECTOR).unwrap()).collect();
    let theirs = theirs.lock();
    assert_eq!(theirs.len(), 50);
    assert!(theirs.iter().all(|run| !mine.contains(run) && run.start < FIRST + GROUP));
    let group = &groups_of(&space)[&FIRST];
    assert_eq!(group.used + group.promised_bytes() + group.free().bytes(), GROUP);
    let again = |run: &Range| group.free().find(run.start).is_some();
    assert!(!theirs.iter().chain(&mine).any(again), "free, and in use");
}

/// A group that no commit has published yet is not in the tree that would be read.
#[test]
fn what_is_not_published_does_not_leave() {
    let mut disk = Disk { share: Some(0), ..Disk::empty(300 << 20) };
    let space = disk.load(NODE, true).unwrap();
    let run = space.allocate_data(SECTOR, SECTOR).unwrap();
    space.give_back(run).unwrap();
    let dirty = space.take_dirty();
    space.emit_free_space(disk.free_space.restart(), &dirty).unwrap();
    let slot = &space.slots[Class::Data.slot()];
    slot.set.lock().let_leave(&slot.counters, u64::MAX, None);
    assert!(space.memory() > 0);
    assert_eq!(space.allocate_data(SECTOR, SECTOR), Some(run));
    space.give_back(run).unwrap();
    disk.settle(&space);
    assert_eq!(space.memory(), 0);
    assert_eq!(space.allocate_data(SECTOR, SECTOR), Some(run));
}

#[test]
fn a_group_that_is_away_is_closed_and_opened_unread() {
    let (mut disk, _) = aged();
    disk.share = Some(KEPT);
    let space = disk.load(NODE, true).unwrap();
    let sums = || {
        let sums = space.slot(Class::Data).counters.read();
        (sums.free, sums.nodes, sums.used)
    };
    let before = sums();
    let starts = (0..GROUPS).map(|group| FIRST + group * GROUP);
    for start in starts {
        assert!(space.close_group(start, true));
        let closed = sums();
        assert!(closed.0 < before.0 && closed.1 < before.1 && closed.2 == before.2);
        assert!(space.close_group(start, false));
        assert_eq!(sums(), before);
    }
    assert_eq!(space.reads(), 0);
    assert!(space.memory() <= 2 * KEPT);
    // What is closed is not taken from, wherever its free space is.
    assert!(space.close_group(FIRST, true));
    let got = space.allocate_data(SECTOR, SECTOR).unwrap();
    assert!(got.start >= FIRST + GROUP);
    assert!(space.reads() > 0);
}
