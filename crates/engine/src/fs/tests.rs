//! What shows where limits are made small.

use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use buttress_device::{BlockDevice, MemoryDevice};
use buttress_mkfs::{Environment, Profile};
use buttress_ondisk::{Key, SECTOR, kind, objectid};
use buttress_testkit::damage::Patient;
use parking_lot::Mutex;
use zerocopy::IntoBytes;

use super::{Allocate, Change, Filesystem, New, Node, Options, Owner};
use crate::env::Env;
use crate::error::{Error, Result};
use crate::inode::SetXattr;
use crate::space::Need;
use crate::tree::View;

/// A filesystem with small tree blocks, each once.
fn make(size: u64) -> Filesystem {
    make_on(Arc::new(MemoryDevice::new(size)))
}

fn make_on(device: Arc<MemoryDevice>) -> Filesystem {
    let options = buttress_mkfs::Options {
        nodesize: Some(4096),
        metadata_profile: Some(Profile::Single),
        ..Default::default()
    };
    buttress_mkfs::make(&*device, &options, &mut Environment::seeded(1)).unwrap();
    let options = Options::read_write().background(false);
    Filesystem::open_device(device, options).unwrap()
}

/// A long value; there may be no room for it.
fn set(fs: &Filesystem, node: Node, number: u32, seed: u32) -> bool {
    let (name, value) = (format!("user.{number}"), seed.to_le_bytes().repeat(437));
    match fs.set_xattr(node, name.as_bytes(), &value, SetXattr::Any) {
        Ok(()) => true,
        Err(Error::NoSpace) => false,
        Err(error) => panic!("{error}"),
    }
}

/// Fills metadata with files of a thousand long values each.
fn fill(fs: &Filesystem) -> Vec<Node> {
    let mut files = Vec::new();
    while let Ok(made) =
        fs.create(Node::ROOT, files.len().to_string().as_bytes(), &New::file(0o644))
    {
        files.push(made.node);
        if !(0..1000).all(|number| set(fs, made.node, number, 1)) {
            break;
        }
    }
    files
}

/// In full metadata what is free is single blocks here and there, so a change leads through many leaves of the extent tree: the
/// commit has as many rounds as that takes.
#[test]
fn a_commit_goes_through_the_extent_tree_and_comes_to_its_end() {
    let fs = make(128 << 20);
    let files = fill(&fs);
    for turn in 0..300u32 {
        let at = turn.wrapping_mul(2_654_435_761);
        let (node, number) = (files[at as usize % files.len()], at >> 22);
        set(&fs, node, number, turn);
        if turn > 50 {
            fs.commit().unwrap();
            let _ = fs.remove_xattr(node, format!("user.{number}").as_bytes());
        }
        fs.commit().unwrap();
    }
}

/// Files of so many bytes each.
fn write_files(fs: &Filesystem, name: &str, count: u8, len: usize) -> Vec<Node> {
    let write = |number: u8| {
        let name = format!("{name}{number}");
        let node = fs.create(Node::ROOT, name.as_bytes(), &New::file(0o644)).unwrap().node;
        assert_eq!(fs.write(node, 0, &vec![number; len]).unwrap(), len);
        node
    };
    (0..count).map(write).collect()
}

fn are_right(fs: &Filesystem, files: &[Node], len: usize) {
    for (number, node) in (0u8..).zip(files) {
        let mut content = vec![!number; len + 1];
        assert_eq!(fs.read(*node, 0, &mut content).unwrap(), len);
        assert!(content[..len].iter().all(|byte| *byte == number));
    }
}

/// What files buffer goes to the disk once, and not with the commit again. Small files wait for it: they get no extents.
#[test]
fn delalloc_is_flushed_before_the_commit() {
    let device = Arc::new(MemoryDevice::new(128 << 20));
    let fs = make_on(device.clone());
    let data = |fs: &Filesystem| fs.stats().data_bytes;
    let (large, small) =
        (write_files(&fs, "large", 100, 20_000), write_files(&fs, "small", 9, 900));
    let committed = fs.stats().commits;
    assert_eq!(data(&fs), 0);
    assert_eq!(fs.flush_delalloc().unwrap(), 100 * 20_480);
    assert_eq!((data(&fs), fs.flush_delalloc().unwrap()), (100 * 20_480, 0));
    are_right(&fs, &large, 20_000);
    // What has been flushed can be written to and cut.
    fs.write(large[7], 19_999, &[7; 5]).unwrap();
    let cut = Change { size: Some(900), ..Change::default() };
    fs.set_attributes(large[8], &cut).unwrap();
    assert_eq!(fs.flush_delalloc().unwrap(), SECTOR);
    let no_commit = fs.stats().commits == committed;
    assert!(no_commit);
    fs.commit().unwrap();
    assert_eq!(data(&fs), 101 * 20_480 - 4 * SECTOR);
    fs.close().unwrap();
    let fs = Filesystem::open_device(device, Options::read_only()).unwrap();
    are_right(&fs, &large[..7], 20_000);
    are_right(&fs, &small, 900);
    assert_eq!(fs.attributes(large[7]).unwrap().size, 20_004);
    assert_eq!(fs.attributes(large[8]).unwrap().size, 900);
}

/// What was flushed and is written over takes space twice until a commit: who finds no room makes one. So it is with what is written at once.
#[test]
fn what_is_written_over_finds_the_room_that_it_had() {
    for piece in [20_000, 100_000] {
        let fs = make(128 << 20);
        let room = fs.usage().stat().available;
        let large = fs.create(Node::ROOT, b"large", &New::file(0o644)).unwrap().node;
        // Hardly more than all files once.
        let rest = 205 * (piece as u64).next_multiple_of(SECTOR);
        fs.fallocate(large, Allocate::Reserve { keep_size: false }, 0, room - rest).unwrap();
        let files = write_files(&fs, "file", 200, piece);
        fs.flush_delalloc().unwrap();
        for node in files.iter().chain(&files) {
            let content = vec![1; piece];
            assert_eq!(fs.write(*node, 0, &content).unwrap(), content.len());
        }
        fs.close().unwrap();
    }
}

/// What is deleted is available again, also between the commits in which vacant groups leave; and who asks for it gets it.
#[test]
fn what_was_deleted_is_available_while_its_groups_leave() {
    let fs = make(2 << 30);
    let empty = fs.usage().stat().available;
    let keep_size = Allocate::Reserve { keep_size: false };
    let mut small = 0;
    for round in 0..4 {
        let name = format!("large{round}");
        let large = fs.create(Node::ROOT, name.as_bytes(), &New::file(0o644)).unwrap().node;
        fs.fallocate(large, keep_size, 0, empty / 8 * 7).unwrap();
        fs.commit().unwrap();
        fs.unlink(Node::ROOT, name.as_bytes()).unwrap();
        // The first round is followed by no commit, the next ones by one more each.
        for _ in 0..round {
            fs.commit().unwrap();
            let available = fs.usage().stat().available;
            assert!(available > empty / 8 * 7, "{available} of {empty} after round {round}");
            small += 1;
            write_files(&fs, &format!("small{small}_"), 1, 10);
        }
    }
}

/// Zeros for which there is no room change nothing, though old data would go first.
#[test]
fn a_range_that_finds_no_room_to_be_zeroed_stays() {
    let fs = make(128 << 20);
    // Of many extents, since the other one's lie in between.
    let files = write_files(&fs, "file", 2, 1);
    for at in 0..16 {
        for file in &files {
            fs.write(*file, at << 16, &[1; 1 << 16]).unwrap();
        }
    }
    let file = files[1];
    fs.commit().unwrap();
    let large = fs.create(Node::ROOT, b"large", &New::file(0o644)).unwrap().node;
    let most = fs.usage().stat().available - (4 << 20);
    fs.fallocate(large, Allocate::Reserve { keep_size: false }, 0, most).unwrap();
    let zeros = Allocate::ZeroRange { keep_size: true };
    let refused = fs.fallocate(file, zeros, 4096, 16 << 20);
    assert!(matches!(refused, Err(Error::NoSpace)), "{refused:?}");
    let mut content = vec![0; 1 << 20];
    assert_eq!(fs.read(file, 0, &mut content).unwrap(), 1 << 20);
    assert!(content.iter().all(|byte| *byte == 1));
    fs.fallocate(file, zeros, 4096, 1 << 20).unwrap();
    fs.read(file, 0, &mut content).unwrap();
    assert!(content[4096..].iter().all(|byte| *byte == 0));
}

/// A thread flushes what has been left alone for a while, where there is a processor for it.
#[test]
fn who_writes_much_has_it_flushed_by_a_thread() {
    if crate::threads::count() < 2 {
        println!("skipped: needs two processors");
        return;
    }
    let device = Arc::new(MemoryDevice::new(256 << 20));
    drop(make_on(device.clone()));
    let hour = Duration::from_secs(3600);
    let options = Options::read_write().commit_interval(hour);
    let fs = Filesystem::open_device(device, options).unwrap();
    let committed = fs.stats().commits;
    let files = write_files(&fs, "file", 200, 50_000);
    let deadline = Instant::now() + Duration::from_secs(60);
    while fs.stats().data_bytes == 0 && Instant::now() < deadline {
        write_files(&fs, "more", 1, 50_000);
        fs.unlink(Node::ROOT, b"more0").unwrap();
    }
    assert_ne!(fs.stats().data_bytes, 0);
    assert_eq!(fs.stats().commits, committed);
    are_right(&fs, &files, 50_000);
}

/// While a commit is under way, somebody else changes something. Who wants the file durable that the commit has waits for it, and
/// asks for no other.
#[test]
fn fsync_waits_for_the_commit_that_has_the_change() {
    [false, true].into_iter().for_each(waits_for_the_commit);
}

fn waits_for_the_commit(tree_log: bool) {
    let (hold, held) = mpsc::channel();
    let (go_on, going) = mpsc::channel::<()>();
    let going = Mutex::new(Some(going));
    let env = Env::system().watched(move |step| {
        if step == "settle"
            && let Some(going) = going.lock().take()
        {
            hold.send(()).unwrap();
            let _ = going.recv();
        }
    });
    let device = Arc::new(MemoryDevice::new(128 << 20));
    buttress_mkfs::make(&*device, &Default::default(), &mut Environment::seeded(1)).unwrap();
    let options = Options::read_write().background(false).tree_log(tree_log).env(env);
    let fs = Filesystem::open_device(device, options).unwrap();
    let new = |name: &str| fs.create(Node::ROOT, name.as_bytes(), &New::file(0o644)).unwrap().node;
    let first = new("first");
    std::thread::scope(|scope| {
        scope.spawn(|| fs.commit().unwrap());
        held.recv().unwrap();
        fs.write(new("other"), 0, b"changed beside the commit").unwrap();
        let waits = scope.spawn(|| fs.sync(first));
        go_on.send(()).unwrap();
        waits.join().unwrap().unwrap();
    });
    assert_eq!(fs.stats().commits, 1);
    fs.sync(first).unwrap();
    assert_eq!(fs.stats().commits, 1, "nothing of it has changed since");
    let other = fs.lookup(Node::ROOT, b"other").unwrap().unwrap().node;
    let commits = |count| if tree_log { (1, count - 1) } else { (count, 0) };
    let written = || (fs.stats().commits, fs.stats().log_writes);
    fs.sync(other).unwrap();
    assert_eq!(written(), commits(2));
    fs.write(first, 0, b"again").unwrap();
    fs.sync(first).unwrap();
    assert_eq!(written(), commits(3));
}

/// Packing reads all of the extent tree. For a leaf of it that cannot be read, and that a commit does not touch, no commit fails.
#[test]
fn an_extent_tree_that_cannot_be_packed_stays_as_it_is() {
    let device = Arc::new(MemoryDevice::new(128 << 20));
    let fs = make_on(device.clone());
    let node = fs.create(Node::ROOT, b"values", &New::file(0o644)).unwrap().node;
    assert!((0..1000).all(|number| set(&fs, node, number, 1)));
    fs.commit().unwrap();
    let core = &fs.inner().core;
    let view = View::new(&core.blocks, objectid::EXTENT_TREE, core.roots().extent);
    let root = view.root_block().unwrap();
    let leaf = view.child(&root, root.len() / 2).unwrap();
    assert!(leaf.is_leaf());
    let bytenr = leaf.bytenr().to_le_bytes();
    drop((leaf, root));
    fs.close().unwrap();
    let mut block = vec![0; 4096];
    for at in (0..128 << 20).step_by(4096) {
        device.read_at(at, &mut block).unwrap();
        // Address, and owner, of a tree block.
        if block[48..56] == bytenr && block[88..96] == objectid::EXTENT_TREE.to_le_bytes() {
            device.write_at(at + 2000, &[!block[2000]]).unwrap();
        }
    }
    let fs = Filesystem::open_device(device, Options::read_write().background(false)).unwrap();
    packing_is_given_up(&fs);
}

/// A commit that is asked to pack does what others want of it, and the next deletion has nothing to ask for.
fn packing_is_given_up(fs: &Filesystem) {
    let changes = |name: &[u8]| {
        fs.create(Node::ROOT, name, &New::file(0o644)).unwrap();
        fs.commit().unwrap();
    };
    changes(b"one");
    assert!(fs.inner().core.space.ask_to_pack());
    changes(b"two");
    assert!(!fs.inner().core.space.ask_to_pack());
    changes(b"three");
}

/// Two leaves of the extent tree that are good, and contradict each other: packing would put their items into one, which nobody
/// would take. What others change is not lost for that.
#[test]
fn leaves_that_contradict_each_other_are_not_packed() {
    let device = Arc::new(MemoryDevice::new(128 << 20));
    let fs = make_on(device.clone());
    for number in 0..1000 {
        let name = format!("file{number}");
        let node = fs.create(Node::ROOT, name.as_bytes(), &New::file(0o644)).unwrap().node;
        fs.write(node, 0, &[7; 3000]).unwrap();
    }
    fs.commit().unwrap();
    let core = &fs.inner().core;
    let view = View::new(&core.blocks, objectid::EXTENT_TREE, core.roots().extent);
    let root = view.root_block().unwrap();
    let child = |slot: usize| view.child(&root, slot).unwrap();
    let last = |slot: usize| child(slot).key(child(slot).len() - 1);
    let is_data = |key: Key| key.kind == kind::EXTENT_ITEM;
    let slot = (0..root.len() - 1).rfind(|at| is_data(last(*at)) && is_data(child(at + 1).key(0)));
    let slot = slot.unwrap();
    let (leaf, last, next) = (child(slot), last(slot), child(slot + 1).key(0));
    let head = 101 + 25 * (leaf.len() - 1);
    let behind = Key { objectid: next.objectid + 4096, ..last };
    let longer = Key { offset: next.objectid - last.objectid + 4096, ..last };
    let at = leaf.bytenr();
    drop((leaf, root));
    fs.close().unwrap();
    for key in [behind, longer] {
        let patient = Patient::of(&device).unwrap();
        let key = buttress_ondisk::key::DiskKey::from(key);
        patient
            .edit_block(at, |bytes| bytes[head..head + 17].copy_from_slice(key.as_bytes()))
            .unwrap();
        let options = Options::read_write().background(false);
        let fs = Filesystem::open_device(patient.device().clone(), options).unwrap();
        packing_is_given_up(&fs);
        let told = fs.warnings();
        assert!(told.len() == 1 && told[0].contains("not packed"), "{told:?}");
    }
}

/// What a deleted subvolume has comes back in many steps, and its data with the last ones: who needs room waits for these.
#[test]
fn room_is_there_as_long_as_a_deleted_subvolume_gives_some_back() {
    let device = Arc::new(MemoryDevice::new(256 << 20));
    make_on(device.clone()).close().unwrap();
    let options = Options::read_write().background(false).drop_blocks_max(16);
    let fs = Filesystem::open_device(device, options).unwrap();
    let doomed = fs.create_subvolume(Node::ROOT, b"doomed", Owner::default()).unwrap();
    let top = Node { subvolume: doomed, ino: 256 };
    for number in 0..2000 {
        let name = format!("small{number}");
        let node = fs.create(top, name.as_bytes(), &New::file(0o644)).unwrap().node;
        fs.write(node, 0, &[7; 1500]).unwrap();
    }
    let data = vec![8; 1 << 20];
    let mut large = 0;
    loop {
        let name = format!("large{large}");
        let node = fs.create(top, name.as_bytes(), &New::file(0o644)).unwrap().node;
        match fs.write(node, 0, &data) {
            Ok(written) if written == data.len() => large += 1,
            Ok(_) | Err(Error::NoSpace) => break,
            Err(error) => panic!("{error}"),
        }
    }
    fs.commit().unwrap();
    fs.delete_subvolume(Node::ROOT, b"doomed").unwrap();
    let node = fs.create(Node::ROOT, b"file", &New::file(0o644)).unwrap().node;
    for number in 0..large / 2 {
        assert_eq!(fs.write(node, number << 20, &data).unwrap(), data.len());
    }
    fs.close().unwrap();
}

/// What others were promised may come back with a commit: who deletes is refused after a few of them, and who adds something at once.
#[test]
fn a_deletion_that_finds_no_room_tries_again_behind_commits() {
    let fs = make(128 << 20);
    // Nor does anything else give hope: there is nothing to be packed, and nobody has deleted a subvolume.
    fs.inner().core.space.never_pack();
    let never = Need { data: u64::MAX, ..Need::default() };
    for (need, commits) in [(never, 0..=0), (Need { deleting: true, ..never }, 1..=5)] {
        let before = fs.stats().commits;
        let refused =
            fs.inner().change(need, |_| -> Result<()> { panic!("there is no such room") });
        assert!(matches!(refused, Err(Error::NoSpace)), "{refused:?}");
        let made = fs.stats().commits - before;
        assert!(commits.contains(&made), "{made} commits, deleting: {}", need.deleting);
    }
    // Nothing of what was asked for is kept back from those who come then.
    fs.create(Node::ROOT, b"file", &New::file(0o644)).unwrap();
    fs.commit().unwrap();
}

/// A filesystem whose worker commits often, with a subvolume of some blocks that is deleted.
fn with_worker() -> (Filesystem, Arc<MemoryDevice>, Node) {
    let device = Arc::new(MemoryDevice::new(512 << 20));
    make_on(device.clone()).close().unwrap();
    let options = Options::read_write().commit_interval(Duration::from_millis(10));
    let fs = Filesystem::open_device(device.clone(), options).unwrap();
    let doomed = fs.create_subvolume(Node::ROOT, b"doomed", Owner::default()).unwrap();
    for file in 0..2000 {
        let top = Node { subvolume: doomed, ino: 256 };
        fs.create(top, format!("file{file}").as_bytes(), &New::file(0o644)).unwrap();
    }
    fs.commit().unwrap();
    let log = fs.create(Node::ROOT, b"log", &New::file(0o644)).unwrap().node;
    (fs, device, log)
}

/// Syncs again and again, until something is so.
fn sync_until(fs: &Filesystem, log: Node, is_so: impl Fn() -> bool) {
    for line in 0..1_000_000_u64 {
        if is_so() {
            return;
        }
        fs.write(log, line % 512, b"x").unwrap();
        fs.sync(log).unwrap();
    }
    panic!("it is not so after a million commits");
}

#[test]
fn what_is_deleted_goes_while_somebody_syncs_all_the_time() {
    let (fs, _, log) = with_worker();
    fs.delete_subvolume(Node::ROOT, b"doomed").unwrap();
    sync_until(&fs, log, || !fs.is_dropping());
    fs.close().unwrap();
}

#[test]
fn what_could_not_be_read_goes_later_while_somebody_syncs_all_the_time() {
    let (fs, device, log) = with_worker();
    let doomed = fs.subvolumes().unwrap()[0].id;
    let core = fs.core();
    let root = fs.tree(doomed).unwrap().unwrap();
    let leaf = View::new(&core.blocks, doomed, root).root_block().unwrap().child(3).bytenr;
    let chunks = core.volume.chunks();
    let chunk = chunks.iter().find(|one| (one.logical..one.end()).contains(&leaf)).unwrap();
    let at = chunk.stripes[0].offset + (leaf - chunk.logical);
    let mut before = [0; 4096];
    device.read_at(at, &mut before).unwrap();
    device.write_at(at, &[0; 4096]).unwrap();
    core.blocks.clear();
    fs.delete_subvolume(Node::ROOT, b"doomed").unwrap();
    sync_until(&fs, log, || fs.warnings().iter().any(|why| why.contains("cannot be dropped")));
    device.write_at(at, &before).unwrap();
    core.blocks.clear();
    let is_gone = || !fs.is_dropping() && fs.inner().forest.why_stuck().is_none();
    sync_until(&fs, log, is_gone);
    // The commit that takes its root away may still be under way.
    fs.commit().unwrap();
    assert!(fs.tree(doomed).unwrap().is_none());
    fs.close().unwrap();
}

/// A file of more extents than one operation clones, to a place behind its own end, which moves with the first step.
#[test]
fn a_file_is_cloned_behind_its_own_end() {
    let fs = make(256 << 20);
    let file = fs.create(Node::ROOT, b"file", &New::file(0o644)).unwrap().node;
    for at in 0..3000u64 {
        fs.write(file, at * 8192, &[at as u8; 4096]).unwrap();
    }
    fs.write(file, 3000 * 8192, &[9; 100]).unwrap();
    fs.commit().unwrap();
    let (size, to) = (3000 * 8192 + 100, 3001 * 8192);
    assert_eq!(fs.clone_range(file, 0, size, file, to).unwrap(), size);
    assert_eq!(fs.attributes(file).unwrap().size, to + size);
    let (mut one, mut other) = (vec![0; size as usize], vec![0; size as usize]);
    fs.read(file, 0, &mut one).unwrap();
    fs.read(file, to, &mut other).unwrap();
    assert!(one == other);
    fs.close().unwrap();
}

/// Many files, of which the first and the last ones change, and how many blocks that commit reads.
fn change_at_both_ends(fs: &Filesystem, nodes: &[Node], damage: impl FnOnce()) -> u64 {
    let change = |at: usize| fs.set_xattr(nodes[at], b"user.x", b"changed", SetXattr::Any).unwrap();
    (0..4).for_each(change);
    change(nodes.len() - 1);
    damage();
    fs.core().blocks.clear();
    let before = fs.core().blocks.uses().1;
    fs.commit().unwrap();
    fs.core().blocks.uses().1 - before
}

fn many_files(fs: &Filesystem) -> Vec<Node> {
    let made = |at: u32| {
        fs.create(Node::ROOT, format!("file {at}").as_bytes(), &New::file(0o644)).unwrap().node
    };
    let nodes = (0..60_000).map(made).collect();
    fs.commit().unwrap();
    nodes
}

#[test]
fn a_commit_reads_what_changes_only() {
    let fs = make(512 << 20);
    let nodes = many_files(&fs);
    let read = change_at_both_ends(&fs, &nodes, || ());
    assert!(read < 60, "{read} blocks");
    fs.close().unwrap();
}

#[test]
fn damage_between_the_files_that_change_is_nothing_to_a_commit() {
    let device = Arc::new(MemoryDevice::new(512 << 20));
    let fs = make_on(device.clone());
    let nodes = many_files(&fs);
    let view = View::new(&fs.core().blocks, 5, fs.tree(5).unwrap().unwrap());
    let key = Key::new(nodes[30_000].ino, kind::INODE_ITEM, 0);
    let mut node = view.root_block().unwrap();
    while node.level() > 2 {
        node = view.child(&node, node.child_for(&key)).unwrap();
    }
    let bad = node.child(node.child_for(&key)).bytenr;
    change_at_both_ends(&fs, &nodes, || {
        let chunk = fs.volume().chunk_at(bad).unwrap();
        for stripe in &chunk.stripes {
            device.write_at(stripe.offset + (bad - chunk.logical), &[0; 4096]).unwrap();
        }
    });
    fs.close().unwrap();
}

/// Bytes of a file that there is room for, which goes then.
fn room(fs: &Filesystem) -> u64 {
    let file = fs.create(Node::ROOT, b"large", &New::file(0o644)).unwrap().node;
    let mut at = 0;
    loop {
        match fs.write(file, at, &[3; 64 << 10]) {
            Ok(_) => at += 64 << 10,
            Err(Error::NoSpace) => break,
            Err(error) => panic!("{error}"),
        }
    }
    fs.unlink(Node::ROOT, b"large").unwrap();
    fs.commit().unwrap();
    at
}

/// What is kept from allocation while the device is told of it is not missing: who finds no room waits for it.
#[test]
fn as_much_is_written_while_the_device_is_told_what_is_free() {
    let fs = make(256 << 20);
    let alone = room(&fs);
    let is_done = std::sync::atomic::AtomicBool::new(false);
    let trims = std::thread::scope(|scope| {
        let trimming = scope.spawn(|| {
            let mut trims = 0;
            while !is_done.load(std::sync::atomic::Ordering::Relaxed) {
                match fs.trim(0..u64::MAX, 0, |_| true) {
                    Ok(_) => trims += 1,
                    Err(Error::NoSpace) => {}
                    Err(error) => panic!("{error}"),
                }
            }
            trims
        });
        for _ in 0..10 {
            let beside = room(&fs);
            // Where a chunk for metadata was made meanwhile there is a bit less.
            assert!(beside >= alone - (16 << 20), "{beside} beside, {alone} alone");
        }
        is_done.store(true, std::sync::atomic::Ordering::Relaxed);
        trimming.join().unwrap()
    });
    assert!(trims > 3, "{trims}");
    fs.close().unwrap();
}
