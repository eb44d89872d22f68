//! What was promised is there.

use std::sync::atomic::Ordering::Relaxed;

use buttress_ondisk::SECTOR;
use buttress_ondisk::item::chunk_type;
use parking_lot::Mutex;

use super::super::bound::{Total, Trees};
use super::super::reserve::Outlook;
use super::super::set::Sums;
use super::super::{Class, Need, Shortage, Space};
use super::{Disk, NODE, Random};

const DATA: u64 = chunk_type::DATA;
const DUP: u64 = chunk_type::DUP;

fn space(total: u64, metadata: u64) -> (Disk, Space) {
    let mut disk = Disk::empty(total);
    let space = disk.load(NODE, true).unwrap();
    let types = [DATA, chunk_type::METADATA | metadata, chunk_type::SYSTEM | metadata];
    space.pool.lock().set_types(types);
    space.allocate_block(Class::System).unwrap();
    space.allocate_block(Class::Metadata).unwrap();
    disk.settle(&space);
    (disk, space)
}

fn data(bytes: u64) -> Need {
    Need { leaves: 6, bytes: 300, data: bytes, ..Need::default() }
}

fn state(space: &Space) -> impl std::fmt::Debug {
    let pool = space.pool.lock();
    (space.outlook(&pool, true), pool.promises)
}

/// The running transaction is committed: data allocated and used, blocks written.
fn commit(disk: &mut Disk, space: &Space, promised: &mut u64, blocks: u64) {
    space.freeze();
    while *promised > 0 {
        let run = space.allocate_data(SECTOR, *promised).unwrap_or_else(|| {
            panic!("{promised} promised bytes are not there: {:#?}", state(space))
        });
        space.account_new(run).unwrap();
        *promised -= run.len;
    }
    for _ in 0..blocks {
        let at = space.allocate_block(Class::Metadata).expect("promised blocks are there");
        space.free(super::super::Range::new(at, NODE)).unwrap();
    }
    disk.settle(space);
    space.committed();
}

#[test]
fn data_promised_is_data_allocated_until_the_last_sector() {
    for (total, profile) in [(120 << 20, 0), (700 << 20, DUP), (300 << 20, DUP), (5 << 30, DUP)] {
        // Large ones ask each for itself, small ones take what was promised ahead.
        for most in [400, 16] {
            write_until_full(total, profile, most);
        }
    }
}

fn write_until_full(total: u64, profile: u64, most: u64) {
    let (mut disk, space) = space(total, profile);
    let mut random = Random(total);
    let (mut promised, mut written, mut operations) = (0, 0, 0);
    loop {
        let want = (1 + random.below(most)) * SECTOR;
        match space.reserve_for_operation(data(want)) {
            Ok(()) => (promised, operations) = (promised + want, operations + 1),
            Err(Shortage::CommitFirst) => {
                written += promised;
                // Items of 300 bytes.
                commit(&mut disk, &space, &mut promised, operations / 30);
                operations = 0;
            }
            Err(Shortage::NoSpace) => break,
        }
    }
    written += promised;
    commit(&mut disk, &space, &mut promised, operations / 30);
    assert!(written > total * 6 / 10, "{written} bytes of {total} could be written");
    // Deleting goes on.
    let need = Need { leaves: 10, bytes: 200, deleting: true, ..Need::default() };
    assert_eq!(space.reserve(need), Ok(()));
    space.unreserve(need);
}

#[test]
fn metadata_is_promised_only_as_far_as_blocks_go() {
    let (mut disk, space) = space(400 << 20, DUP);
    let mut blocks = Vec::new();
    // Every operation leaves one block behind, for good: 6600 bytes are more than that, with fill loss.
    let need = Need { leaves: 2, bytes: 6600, ..Need::default() };
    let mut operations = 0;
    let mut idle = 0;
    loop {
        match space.reserve(need) {
            Ok(()) => (operations, idle) = (operations + 1, 0),
            Err(Shortage::CommitFirst) if idle < 3 => {
                space.freeze();
                let new = (0..operations).map(|_| {
                    space
                        .allocate_block(Class::Metadata)
                        .unwrap_or_else(|_| panic!("{:#?}", state(&space)))
                });
                blocks.extend(new);
                disk.settle(&space);
                space.committed();
                (operations, idle) = (0, idle + 1);
            }
            Err(_) => break,
        }
    }
    let usage = space.usage();
    assert!(usage.metadata.used > 120 << 20, "{usage:?}");
    assert!(usage.global_reserve > 0 && usage.metadata.total > usage.metadata.used);
    let deleting = Need { leaves: 10, bytes: 200, deleting: true, ..Need::default() };
    assert_eq!(space.reserve(deleting), Ok(()));
}

#[test]
fn data_leaves_room_for_a_metadata_chunk() {
    let (_, space) = space(2 << 30, DUP);
    let want = 1 << 20;
    while space.reserve(data(want)).is_ok() {
        assert!(space.allocate_data(want, want).is_some());
    }
    let usage = space.usage();
    assert_eq!(usage.data.flags, DATA);
    assert!(usage.metadata.total + usage.unallocated > 100 << 20, "{usage:?}");
}

/// Deletions may use what is left for them. What is missing of it then is nothing that data have to leave which were promised
/// before: the last of the device may be theirs.
#[test]
fn data_promised_are_there_after_deletions_have_used_the_reserve() {
    let (_, space) = space(180 << 20, 0);
    space.reserve(data(5 * SECTOR)).unwrap();
    space.reserve(Need { leaves: 4, bytes: 520, refs: 2, deleting: true, ..data(0) }).unwrap();
    let pool = space.pool.lock();
    let mut outlook = space.outlook(&pool, true);
    (outlook.room, outlook.headroom, outlook.data.free) = (2 << 20, 0, 0);
    // The commit finds what it writes, and nothing of the reserve is left.
    outlook.metadata.nodes = outlook.bound(pool.promises.all()).blocks;
    assert!(outlook.global_reserve() > 2 << 20);
    assert!(outlook.limit(Class::Data, pool.promises) >= 1 << 20);
    assert!(outlook.limit(Class::Metadata, pool.promises) >= 1 << 20);
}

#[test]
fn a_snapshot_is_promised_what_it_costs_those_who_came_before() {
    let (_, space) = space(400 << 20, DUP);
    let small = Need { leaves: 2, bytes: 100, ..Need::default() };
    while space.reserve(small).is_ok() {}
    for _ in 0..20 {
        space.unreserve(small);
    }
    // There is room for what it writes itself; but each leaf that was promised would have to be copied.
    let request = Need { private: 6, bytes: 700, ..Need::default() };
    assert_eq!(space.reserve(request), Ok(()));
    space.unreserve(request);
    assert!(space.reserve(Need { sharing: true, ..request }).is_err());
    assert!(!space.is_shared());
    assert_eq!(space.reserve(small), Ok(()));
    for _ in 0..4000 {
        space.unreserve(small);
    }
    assert_eq!(space.reserve(Need { sharing: true, ..request }), Ok(()));
    assert!(space.is_shared());
}

/// Deletions that were looked at are promised less. That is no reason to refuse a snapshot for which there is room when they are promised
/// all that they may take: there may be such ones in each transaction.
#[test]
fn a_snapshot_comes_beside_deletions_that_were_looked_at() {
    let (_, space) = space(400 << 20, DUP);
    let request = Need { private: 6, bytes: 700, sharing: true, ..Need::default() };
    space.set_shared();
    let deletion = Need { leaves: 8, bytes: 120, refs: 2, deleting: true, ..Need::default() };
    let own = Need { own: 8, ..deletion };
    let promised = |needs: &[Need]| {
        needs.iter().for_each(|need| assert_eq!(space.reserve(*need), Ok(()), "{need:?}"));
        let all = space.pool.lock().promises.all();
        needs.iter().for_each(|need| space.unreserve(*need));
        assert_eq!(space.pool.lock().promises.all(), Total::default());
        all
    };
    assert_ne!(promised(&[own]), promised(&[deletion]));
    let as_others = promised(&[deletion, request, deletion]);
    assert_eq!(promised(&[own, request, own]), as_others);
    // Where there is no room for that, a commit comes first.
    while space.reserve(own).is_ok() {}
    assert_eq!(space.reserve(request), Err(Shortage::CommitFirst));
}

/// Where there is no room even for what deletions may use, a profile of no more copies takes nothing from anybody.
#[test]
fn a_profile_is_refused_only_where_chunks_become_larger() {
    let (_, space) = space(400 << 20, DUP);
    let deletion = Need { leaves: 8, bytes: 120, refs: 2, deleting: true, ..Need::default() };
    while space.reserve(Need { deleting: false, ..deletion }).is_ok() {}
    while space.reserve(deletion).is_ok() {}
    let has_room = || {
        let pool = space.pool.lock();
        space.outlook(&pool, true).fits_promises(pool.promises)
    };
    assert!(!has_room());
    assert!(space.set_profile(Class::Data, 0) && space.set_profile(Class::Metadata, DUP));
    assert!(space.set_profile(Class::System, 0) && space.set_profile(Class::System, DUP));
    assert!(!space.set_profile(Class::Data, DUP));
    assert!(space.set_profile(Class::Metadata, 0));
    space.reserve(deletion).expect("metadata takes half as much of the device");
    while space.reserve(Need { deleting: false, ..deletion }).is_ok() {}
    assert!(!space.set_profile(Class::Metadata, DUP));
}

/// Whoever deletes next tries to come alone first where the last deletion had to: not where one has had room among others.
#[test]
fn a_deletion_among_others_is_the_last_one_though_nobody_has_reckoned() {
    let (_, space) = space(400 << 20, DUP);
    let need = Need { leaves: 2, bytes: 100, deleting: true, ..Need::default() };
    space.reserve(need).unwrap();
    space.was_alone.store(true, Relaxed);
    space.reserve(need).unwrap();
    assert!(!space.was_alone());
}

/// Settling goes from one leaf for tree blocks to the next, whatever the commit began with.
#[test]
fn a_commit_that_changes_nothing_is_promised_all_leaves_for_tree_blocks() {
    let (_, space) = space(400 << 20, DUP);
    for _ in 0..2000 {
        space.allocate_block(Class::Metadata).unwrap();
    }
    let blocks = |extent| {
        space.set_trees(super::super::Trees { extent, free_space: 1, csum: 1, quota: 0 });
        space.outlook(&space.pool.lock(), false).bound(Default::default()).blocks
    };
    assert!(blocks(20) >= blocks(1) + 19);
}

/// What is packed is packed again when it has grown since, also when it had become smaller before that.
#[test]
fn packing_is_asked_for_when_the_trees_have_grown() {
    let (_, space) = space(400 << 20, DUP);
    let trees = |extent| super::super::Trees { extent, free_space: 1, csum: 1, quota: 0 };
    space.set_trees(trees(800));
    assert!(space.ask_to_pack() && space.take_packing() && !space.take_packing());
    space.note_packed(trees(800));
    assert!(!space.ask_to_pack());
    space.set_trees(trees(840));
    assert!(space.ask_to_pack() && space.take_packing());
    space.note_packed(trees(800));
    space.set_trees(trees(200));
    space.set_trees(trees(400));
    assert!(space.ask_to_pack() && space.take_packing());
    space.never_pack();
    space.set_trees(trees(900));
    assert!(!space.ask_to_pack());
}

/// A number of up to `bits` bits: small ones as often as large ones.
fn spread(random: &mut Random, bits: u64) -> u64 {
    let bits = random.below(bits + 1);
    random.below(1 << bits)
}

fn some_sums(random: &mut Random, bits: u64, node: u64) -> Sums {
    let free = spread(random, bits);
    let (used, pinned) = (spread(random, bits), spread(random, bits - 4));
    let total = free + used + pinned;
    let groups = 1 + total / (1 << 28) + spread(random, 4);
    let runs = 1 + spread(random, 20).min(free / SECTOR);
    Sums { total, used, pinned, free, nodes: free / node, groups, runs, ..Sums::default() }
}

fn some_outlook(random: &mut Random) -> Outlook {
    let node = 4096 << random.below(5);
    let bits = 24 + random.below(14);
    let (data, metadata) = (some_sums(random, bits, node), some_sums(random, bits - 2, node));
    let mut tree = || spread(random, 22).min(metadata.used / node);
    let trees = Trees { extent: tree(), free_space: tree(), csum: tree(), quota: 0 };
    let room = random.below(2) * spread(random, bits);
    Outlook {
        node,
        mixed: random.below(5) == 0,
        data,
        metadata,
        data_copies: 1,
        metadata_copies: 1 + random.below(2),
        device: data.total + metadata.total + room,
        room,
        headroom: random.below(2) * (32 << 20),
        trees,
        shared: random.below(2) == 0,
        volumes: 1 + spread(random, 12),
    }
}

fn some_need(random: &mut Random) -> Need {
    let mut number = |bits| spread(random, bits) as u32;
    Need {
        leaves: number(12),
        own: number(11),
        private: number(6),
        bytes: number(18),
        refs: number(12),
        nodes: number(10),
        data: u64::from(number(28)),
        deleting: number(1) > 0,
        ..Need::default()
    }
}

/// That promises are let in because more of them were found to fit needs that.
#[test]
fn what_is_less_than_what_fits_fits() {
    let mut random = Random(7);
    let mut fitting = 0;
    for round in 0..200_000 {
        let outlook = some_outlook(&mut random);
        let less =
            (0..1 + round % 3).fold(Total::default(), |sum, _| sum.plus(some_need(&mut random)));
        let more = less.plus(some_need(&mut random));
        assert!(less.is_within(more) && less.is_within(less));
        if outlook.has_room_for_less(more) {
            fitting += 1;
            let fits = outlook.has_room_for(less);
            assert!(fits, "{outlook:#?} has room for {more:#?}, not for {less:#?}");
        }
    }
    assert!((20_000..180_000).contains(&fitting), "{fitting}");
}

/// What each thread did that others did not take from it: promises in the end are those of the operations, whatever was made ahead.
#[test]
fn promises_made_ahead_come_to_those_of_the_operations() {
    let (_disk, space) = space(2 << 30, 0);
    let usual = |random: &mut Random| Need {
        leaves: 1 + random.below(8) as u32,
        bytes: random.below(800) as u32,
        refs: random.below(3) as u32,
        data: random.below(20) * SECTOR,
        deleting: random.below(4) == 0,
        ..Need::default()
    };
    let kept = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for seed in 0..4 {
            let (space, kept, usual) = (&space, &kept, &usual);
            scope.spawn(move || {
                let (mut random, mut mine) = (Random(seed), Vec::new());
                for round in 0..20_000 {
                    let need = usual(&mut random);
                    match random.below(8) {
                        0..4 if space.reserve_for_operation(need) == Ok(()) => mine.push(need),
                        4 if space.reserve(need) == Ok(()) => mine.push(need),
                        _ => random.take(&mut mine).into_iter().for_each(|need| {
                            space.unreserve_for_operation(need);
                        }),
                    }
                    match round % 1000 {
                        0 => drop(space.take_back()),
                        500 => space.note_volume(),
                        _ => {}
                    }
                }
                kept.lock().append(&mut mine);
            });
        }
    });
    let kept = kept.into_inner();
    let in_hand = space.pool.lock().promises.all();
    assert!(kept.len() > 100);
    drop(space.take_back());
    let sum = kept.iter().fold(Total::default(), |sum, need| sum.plus(*need));
    assert_eq!(space.pool.lock().promises.all(), sum);
    let most = Need { leaves: 8, bytes: 800, refs: 4, data: 64 << 10, ..Need::default() };
    let most = Total::default().plus(most).times(64 * (1 + space.allotments.count()));
    assert!(in_hand.less(sum).is_within(most), "{in_hand:?} is more than {sum:?} and {most:?}");
    kept.into_iter().for_each(|need| space.unreserve_for_operation(need));
    assert!(space.is_quiet(), "nobody is promised anything: {:?}", state(&space));
}

/// What operations do not need of what they were promised ahead does not add up.
#[test]
fn little_is_in_hand_whatever_operations_need() {
    let (_disk, space) = space(2 << 30, 0);
    let (few, much) = (data(0), Need { refs: 3, bytes: 900, ..data(SECTOR) });
    let mut sum = Total::default();
    for round in 0..30_000 {
        let need = if round % 10 == 0 { much } else { few };
        space.reserve_for_operation(need).unwrap();
        sum = sum.plus(need);
    }
    let most =
        Total::default().plus(Need { refs: 4, ..data(64 << 10) }).and(Total::default().plus(much));
    let in_hand = space.pool.lock().promises.all().less(sum);
    assert!(in_hand.is_within(most.times(64)), "{in_hand:?}");
}

/// Near the end as many operations are let in as when each is looked at by itself.
#[test]
fn what_threads_have_in_hand_keeps_nobody_out() {
    for (total, profile) in [(120 << 20, 0), (300 << 20, DUP), (700 << 20, DUP)] {
        for (need, fillers) in [(data(0), 1), (data(SECTOR), 4), (data(16 * SECTOR), 1)] {
            let (_disk, one) = space(total, profile);
            let alone =
                std::iter::repeat_with(|| one.reserve(need)).take_while(Result::is_ok).count();
            let (_disk, many) = space(total, profile);
            let together: usize = std::thread::scope(|scope| {
                let fill = || {
                    let reserve = || many.reserve_for_operation(need);
                    std::iter::repeat_with(reserve).take_while(Result::is_ok).count()
                };
                // These come once, and keep what was promised ahead.
                let few: Vec<_> = (0..4)
                    .map(|_| scope.spawn(|| usize::from(many.reserve_for_operation(need).is_ok())))
                    .collect();
                let few: usize = few.into_iter().map(|it| it.join().unwrap()).sum();
                let all: Vec<_> = (0..fillers).map(|_| scope.spawn(fill)).collect();
                few + all.into_iter().map(|it| it.join().unwrap()).sum::<usize>()
            });
            assert_eq!(together, alone, "{need:?} in {total} bytes");
        }
    }
}
