//! The whole engine below the public API: what it commits, btrfs check calls clean.

use std::cell::Cell;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use buttress_device::MemoryDevice;
use buttress_ondisk::superblock::Superblock;
use buttress_ondisk::{Key, kind, objectid};
use buttress_testkit::oracle;
use buttress_volume::{Access, Volume};

use super::Forest;
use super::create::Place;
use crate::env::Env;
use crate::inode::{NewInode, NewKind, TOP};
use crate::space::{Space, SpaceRoots};
use crate::tree::Blocks;
use crate::txn::{Commit, Core, Features, Op, Participant, Roots, Upkeep, commit};

thread_local! {
    /// Each commit finds room for the smallest step of dropping a subvolume, and no more.
    pub(super) static LITTLE_ROOM: Cell<bool> = const { Cell::new(false) };
}

struct Fs {
    core: Core,
    forest: Forest,
    device: Arc<MemoryDevice>,
}

fn make(nodesize: u32) -> Arc<MemoryDevice> {
    let device = Arc::new(MemoryDevice::new(512 << 20));
    let mut options = buttress_mkfs::Options { nodesize: Some(nodesize), ..Default::default() };
    let request = buttress_mkfs::parse_features("^block-group-tree", options.features).unwrap();
    let buttress_mkfs::FeatureRequest::Set(features) = request else { unreachable!() };
    options.features = features;
    buttress_mkfs::make(&*device, &options, &mut buttress_mkfs::Environment::seeded(1)).unwrap();
    device
}

fn open(device: &Arc<MemoryDevice>) -> Fs {
    let opened = Volume::open(vec![device.clone()], Access::ReadWrite).unwrap();
    let blocks = Blocks::new(Arc::new(opened.volume), 16 << 20);
    let superblock = blocks.volume().superblock();
    let roots = Roots::load(&blocks, &superblock).unwrap();
    let places = SpaceRoots {
        extent: roots.extent,
        free_space: roots.free_space,
        block_group: roots.block_group,
        device: roots.dev,
        chunk: roots.chunk,
    };
    let space = Space::load(&blocks, &places, true).unwrap();
    let features = Features::of(&superblock, blocks.volume().checksum_kind());
    let core = Core::new(blocks, space, features, Env::system(), roots, false);
    let forest = Forest::load(&core).unwrap();
    Fs { core, forest, device: device.clone() }
}

impl Fs {
    fn commit(&self) {
        commit(&self.core, &self.forest, false, Upkeep::Much).unwrap();
    }

    fn op(&self) -> Op<'_> {
        self.core.txn.join(&self.core).unwrap()
    }

    fn check(&self) {
        let dir = tempfile::tempdir().unwrap();
        let image = dir.path().join("image");
        self.device.store(&image).unwrap();
        check(&image);
    }
}

fn check(image: &Path) {
    let mut command = Command::new("btrfs");
    let Ok(out) = oracle::start(command.args(["check", "--check-data-csum"]).arg(image)) else {
        eprintln!("skipped: btrfs-progs is not here");
        return;
    };
    let text = String::from_utf8_lossy(&out.stdout) + String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{text}");
    assert!(text.contains("no error found") && !text.contains("mismatch"), "{text}");
}

fn file<'a>(permissions: u32) -> NewInode<'a> {
    NewInode { kind: NewKind::File, permissions, uid: 0, gid: 0 }
}

fn fill(fs: &Fs, tree: u64, names: std::ops::Range<u32>, bytes: usize) {
    for at in names {
        let op = fs.op();
        let subvolume = fs.forest.get(&fs.core, tree).unwrap();
        let top = subvolume.tree.get(&op, TOP).unwrap();
        let name = format!("file{at}");
        let inode = subvolume.tree.create(&op, &top, name.as_bytes(), &file(0o644)).unwrap();
        if bytes > 0 {
            subvolume.tree.write(&op, &inode, 0, &vec![at as u8; bytes]).unwrap();
        }
    }
}

fn remove(fs: &Fs, tree: u64, names: std::ops::Range<u32>) {
    for at in names {
        let op = fs.op();
        let subvolume = fs.forest.get(&fs.core, tree).unwrap();
        let top = subvolume.tree.get(&op, TOP).unwrap();
        subvolume.tree.unlink(&op, &top, format!("file{at}").as_bytes()).unwrap();
    }
}

fn snapshot(fs: &Fs, source: u64, name: &str) -> u64 {
    let id = fs.forest.request_snapshot(&fs.op(), source, false).unwrap();
    fs.commit();
    let op = fs.op();
    let subvolume = fs.forest.get(&fs.core, 5).unwrap();
    let dir = subvolume.tree.get(&op, TOP).unwrap();
    let place = Place { subvolume: &subvolume, dir: &dir, name: name.as_bytes() };
    fs.forest.name_snapshot(&op, id, place).unwrap();
    id
}

fn delete(fs: &Fs, name: &str, id: u64) {
    let op = fs.op();
    let subvolume = fs.forest.get(&fs.core, 5).unwrap();
    let dir = subvolume.tree.get(&op, TOP).unwrap();
    let place = Place { subvolume: &subvolume, dir: &dir, name: name.as_bytes() };
    fs.forest.delete(&op, place, id, false).unwrap();
}

#[test]
fn files_come_and_go() {
    for nodesize in [4096, 16384, 65536] {
        let fs = open(&make(nodesize));
        fill(&fs, 5, 0..3000, 100);
        fs.commit();
        fs.check();
        fill(&fs, 5, 3000..3100, 10_000);
        fill(&fs, 5, 3100..3110, 1_000_000);
        remove(&fs, 5, 0..1500);
        fs.commit();
        fs.check();
        let fs = open(&fs.device);
        remove(&fs, 5, 1500..3110);
        fs.commit();
        fs.check();
    }
}

#[test]
fn snapshots_share_and_part() {
    for nodesize in [4096, 16384] {
        let fs = open(&make(nodesize));
        fill(&fs, 5, 0..2000, 3000);
        let first = snapshot(&fs, 5, "first");
        fs.commit();
        fs.check();
        remove(&fs, 5, 0..500);
        fill(&fs, first, 5000..5500, 3000);
        remove(&fs, first, 100..150);
        fs.commit();
        fs.check();
        let second = snapshot(&fs, first, "second");
        fill(&fs, second, 7000..7100, 5000);
        remove(&fs, 5, 1000..1100);
        remove(&fs, first, 1500..1600);
        fs.commit();
        fs.check();
        delete(&fs, "first", first);
        while fs.forest.has_dead() {
            fs.commit();
            fs.check();
        }
        remove(&fs, second, 1700..1800);
        fs.commit();
        delete(&fs, "second", second);
        while fs.forest.has_dead() {
            fs.commit();
        }
        fs.check();
    }
}

#[test]
fn what_a_deleted_subvolume_leaves_to_its_snapshot_can_change() {
    // Small blocks: the tree has shared nodes above the leaves, not only shared leaves.
    let fs = open(&make(4096));
    let first = snapshot(&fs, 5, "first");
    fs.commit();
    fill(&fs, first, 0..2500, 3000);
    let second = snapshot(&fs, first, "second");
    fs.commit();
    delete(&fs, "first", first);
    while fs.forest.has_dead() {
        fs.commit();
        fs.check();
    }
    for at in (0..2500).step_by(200) {
        remove(&fs, second, at..at + 3);
        fs.commit();
    }
    fs.check();
    delete(&fs, "second", second);
    while fs.forest.has_dead() {
        fs.commit();
    }
    fs.check();
}

/// A commit that lets operations of the next transaction run between its freeze and its merge, and then writes more.
struct Meanwhile<'f> {
    forest: &'f Forest,
    act: &'f (dyn Fn() + Sync),
    more: &'f (dyn Fn(&Commit<'_>) + Sync),
}

impl Participant for Meanwhile<'_> {
    fn is_dirty(&self, upkeep: Upkeep) -> bool {
        self.forest.is_dirty(upkeep)
    }

    fn freeze(&self, transid: u64) {
        self.forest.freeze(transid);
    }

    fn prepare(&self, core: &Core, transid: u64) -> crate::error::Result<()> {
        (self.act)();
        self.forest.prepare(core, transid)
    }

    fn merge(&self, commit: &Commit<'_>) -> crate::error::Result<()> {
        (self.more)(commit);
        self.forest.merge(commit)
    }

    fn superblock(&self, superblock: &mut Superblock) {
        self.forest.superblock(superblock);
    }

    fn published(&self) {
        self.forest.published();
    }

    fn settled(&self, core: &Core) {
        self.forest.settled(core);
    }
}

#[test]
fn a_commit_that_takes_a_snapshot_knows_nothing_of_later_changes() {
    let fs = open(&make(4096));
    let source = snapshot(&fs, 5, "source");
    fs.commit();
    fs.forest.request_snapshot(&fs.op(), source, false).unwrap();
    // Nothing else has changed the source: but while the commit runs, it is deleted.
    let act = || delete(&fs, "source", source);
    commit(
        &fs.core,
        &Meanwhile { forest: &fs.forest, act: &act, more: &|_| {} },
        false,
        Upkeep::Much,
    )
    .unwrap();
    let crashed = open(&fs.device);
    let found = crashed.forest.info(&crashed.core, source).unwrap();
    assert_eq!((found.name.as_slice(), found.flags), (&b"source"[..], 0));
    crashed.commit();
    while crashed.forest.has_dead() {
        crashed.commit();
    }
    crashed.check();
}

#[test]
fn a_block_that_no_reader_would_take_is_not_written() {
    let fs = open(&make(4096));
    fill(&fs, 5, 0..10, 100);
    fs.commit();
    fill(&fs, 5, 10..20, 100);
    // What some mistake makes of a root item.
    let more = |commit: &Commit<'_>| {
        commit.root_item(Key::new(objectid::FIRST_FREE, kind::ROOT_ITEM, 0), Some(vec![7; 10]));
    };
    let refused = commit(
        &fs.core,
        &Meanwhile { forest: &fs.forest, act: &|| {}, more: &more },
        false,
        Upkeep::Much,
    );
    let why = refused.unwrap_err().to_string();
    assert!(why.contains("corrupt leaf: root=1 ") && why.contains("wrong item size"), "{why}");
    let told = fs.core.warnings();
    assert!(told.iter().any(|told| told.contains("`buttress check`")), "{told:?}");
    let latched = commit(&fs.core, &fs.forest, true, Upkeep::Much).unwrap_err().to_string();
    assert!(latched.contains(&why) && latched.contains("`buttress check`"), "{latched}");
    let again = open(&fs.device);
    again.check();
    let subvolume = again.forest.get(&again.core, 5).unwrap();
    let op = again.op();
    let top = subvolume.tree.get(&op, TOP).unwrap();
    subvolume.tree.lookup(&op, &top, b"file9").unwrap();
    assert!(subvolume.tree.lookup(&op, &top, b"file10").is_err());
}

/// A deleted subvolume goes though somebody holds a file of it. A commit drops it that has waited for whoever has found it before; its root item
/// is not written for that, as nobody was promised so.
#[test]
fn a_deleted_subvolume_that_is_let_go_of_is_dropped_and_its_item_not_written() {
    let fs = open(&make(4096));
    let doomed = snapshot(&fs, 5, "doomed");
    fill(&fs, doomed, 0..10, 100);
    let subvolume = fs.forest.get(&fs.core, doomed).unwrap();
    let held = subvolume.tree.get(&fs.op(), TOP).unwrap();
    subvolume.tree.hold(&held).unwrap();
    delete(&fs, "doomed", doomed);
    fs.commit();
    assert!(!fs.forest.has_dead() && fs.forest.let_all_go() && fs.forest.has_dead());
    assert!(!subvolume.state.lock().dirty);
    fs.commit();
    fs.commit();
    assert!(!fs.forest.has_dead());
    assert!(fs.forest.root_item(&fs.core, doomed).unwrap().is_none());
    fs.check();
}

#[test]
fn damage_in_a_deleted_subvolume_stops_nobody() {
    let fs = open(&make(4096));
    let doomed = snapshot(&fs, 5, "doomed");
    fs.commit();
    fill(&fs, doomed, 0..300, 0);
    fs.commit();
    let root = fs.forest.get(&fs.core, doomed).unwrap().tree.root().unwrap();
    let view = crate::tree::View::new(&fs.core.blocks, doomed, root);
    let leaf = view.root_block().unwrap().child(3).bytenr;
    delete(&fs, "doomed", doomed);
    let chunks = fs.core.volume.chunks();
    let chunk = chunks.iter().find(|one| (one.logical..one.end()).contains(&leaf)).unwrap();
    let mut before = [0; 4096];
    let places: Vec<u64> =
        chunk.stripes.iter().map(|stripe| stripe.offset + (leaf - chunk.logical)).collect();
    for at in &places {
        buttress_device::BlockDevice::read_at(&*fs.device, *at, &mut before).unwrap();
        buttress_device::BlockDevice::write_at(&*fs.device, *at, &[0; 4096]).unwrap();
    }
    fs.core.blocks.clear();
    for round in 0..3 {
        fill(&fs, 5, round * 10..round * 10 + 10, 100);
        fs.commit();
    }
    assert!(!fs.forest.has_dead());
    let told = fs.core.warnings();
    assert_eq!(told.len(), 1, "{told:?}");
    assert!(told[0].contains("cannot be dropped") && told[0].contains("tried again"), "{told:?}");
    let again = open(&fs.device);
    assert!(again.forest.has_dead());
    fill(&again, 5, 100..110, 100);
    again.commit();
    again.commit();
    let subvolume = again.forest.get(&again.core, 5).unwrap();
    let op = again.op();
    let top = subvolume.tree.get(&op, TOP).unwrap();
    subvolume.tree.lookup(&op, &top, b"file105").unwrap();
    drop(op);
    // What fails for a while is tried again while others commit.
    for at in &places {
        buttress_device::BlockDevice::write_at(&*again.device, *at, &before).unwrap();
    }
    for round in 0..40 {
        fill(&again, 5, 200 + round..201 + round, 0);
        again.commit();
    }
    assert!(again.forest.why_stuck().is_none() && !again.forest.has_dead());
    assert!(again.forest.root_item(&again.core, doomed).unwrap().is_none());
    again.check();
}

#[test]
fn a_deleted_subvolume_gets_no_subvolumes_and_one_that_has_moved_stays() {
    let fs = open(&make(4096));
    let outer = snapshot(&fs, 5, "outer");
    let inner = snapshot(&fs, 5, "inner");
    fs.commit();
    // What operations have looked up before.
    let op = fs.op();
    let (top, gone) =
        (fs.forest.get(&fs.core, 5).unwrap(), fs.forest.get(&fs.core, outer).unwrap());
    let (top_dir, gone_dir) = (top.tree.get(&op, TOP).unwrap(), gone.tree.get(&op, TOP).unwrap());
    let at = |name| Place { subvolume: &top, dir: &top_dir, name };
    let into = Place { subvolume: &gone, dir: &gone_dir, name: b"x" };
    fs.forest.delete(&op, at(b"outer"), outer, false).unwrap();
    assert!(fs.forest.create(&op, into, 0o755, 0, 0).is_err());
    assert!(fs.forest.rename(&op, at(b"inner"), into, inner, false).is_err());
    fs.forest.rename(&op, at(b"inner"), at(b"one"), inner, false).unwrap();
    assert!(fs.forest.rename(&op, at(b"inner"), at(b"two"), inner, false).is_err());
    drop(op);
    fs.commit();
    while fs.forest.has_dead() {
        fs.commit();
    }
    fs.check();
    assert_eq!(fs.forest.info(&fs.core, inner).unwrap().name, b"one");
}

#[test]
fn a_read_only_snapshot_of_what_was_received_is_found_as_that() {
    let fs = open(&make(4096));
    let source = snapshot(&fs, 5, "source");
    fs.forest.get(&fs.core, source).unwrap().change(|item| item.received_uuid = [7; 16]);
    let id = fs.forest.request_snapshot(&fs.op(), source, true).unwrap();
    fs.commit();
    let op = fs.op();
    let subvolume = fs.forest.get(&fs.core, 5).unwrap();
    let dir = subvolume.tree.get(&op, TOP).unwrap();
    let place = Place { subvolume: &subvolume, dir: &dir, name: b"copy" };
    fs.forest.name_snapshot(&op, id, place).unwrap();
    drop(op);
    fs.commit();
    let kind = buttress_ondisk::kind::UUID_RECEIVED_SUBVOL;
    let key = crate::txn::UuidChange::new(&[7; 16], kind, id, true).key;
    let item = fs.core.uuid_view().unwrap().get(&key).unwrap().unwrap();
    assert!(item.data().chunks(8).any(|known| known == id.to_le_bytes()));
}

#[test]
fn what_was_received_and_is_made_writable_is_no_base_for_what_comes_next() {
    let fs = open(&make(4096));
    let source = snapshot(&fs, 5, "source");
    fs.commit();
    let received = |id, add| {
        let kind = buttress_ondisk::kind::UUID_RECEIVED_SUBVOL;
        crate::txn::UuidChange::new(&[7; 16], kind, id, add)
    };
    fs.forest.set_read_only(&fs.op(), source, true).unwrap();
    fs.forest.get(&fs.core, source).unwrap().change(|item| item.received_uuid = [7; 16]);
    fs.forest.pending.uuid(received(source, true));
    fs.commit();
    let is_found = || {
        let item = fs.core.uuid_view().unwrap().get(&received(source, true).key).unwrap();
        item.is_some_and(|item| item.data().chunks(8).any(|known| known == source.to_le_bytes()))
    };
    assert!(is_found());
    // It stays what it was while nobody may write to it.
    fs.forest.set_read_only(&fs.op(), source, true).unwrap();
    fs.commit();
    assert!(is_found());
    fs.forest.set_read_only(&fs.op(), source, false).unwrap();
    fs.forest.set_read_only(&fs.op(), source, true).unwrap();
    fs.commit();
    assert!(!is_found());
    assert_eq!(fs.forest.info(&fs.core, source).unwrap().received_uuid, [0; 16]);
    fs.check();
}

#[test]
fn of_subvolumes_that_nobody_uses_only_the_holds_stay() {
    let fs = open(&make(4096));
    fill(&fs, 5, 0..20, 100);
    let ids: Vec<u64> = (0..90).map(|at| snapshot(&fs, 5, &format!("s{at}"))).collect();
    fs.commit();
    let (first, held) = (ids[0], TOP + 1);
    let at = |tree: u64, ino: u64| {
        let op = fs.op();
        let subvolume = fs.forest.get(&fs.core, tree)?;
        let inode = subvolume.tree.get(&op, ino)?;
        let attributes = subvolume.tree.attributes(&fs.core, &inode);
        crate::error::Result::Ok((inode, attributes))
    };
    let loaded = || fs.forest.loaded().iter().map(|subvolume| subvolume.id).collect::<Vec<_>>();
    let walk = |most: usize| {
        for id in ids[1..].iter().rev() {
            assert_eq!(at(*id, held).unwrap().1.size, 100);
            assert!(loaded().len() <= most, "{:?}", loaded());
        }
    };
    fs.forest.get(&fs.core, first).unwrap().tree.hold(&at(first, held).unwrap().0).unwrap();
    remove(&fs, first, 0..1);
    let highest = at(first, held + 19).unwrap().0.ino;
    remove(&fs, first, 19..20);
    walk(48);
    assert!(loaded().contains(&first), "a changed one left");
    // What walks while a commit runs changes nothing about what that publishes.
    commit(
        &fs.core,
        &Meanwhile { forest: &fs.forest, act: &|| walk(48), more: &|_| {} },
        false,
        Upkeep::Much,
    )
    .unwrap();
    (0..2).for_each(|_| walk(48));
    assert!(!loaded().contains(&first), "{:?}", loaded());
    assert_eq!(at(first, held).unwrap().1.nlink, 0);
    fill(&fs, first, 100..101, 10);
    assert!(at(first, highest).is_err() && at(first, highest + 1).is_ok());
    let inode = at(first, held).unwrap().0;
    fs.forest.get(&fs.core, first).unwrap().tree.release(&fs.op(), &inode).unwrap();
    assert!(at(first, held).is_err());
    drop(inode);
    fs.commit();
    fs.check();
}

/// Full leaves, and full nodes, below a node that a snapshot shares: each takes more than half of what the smallest step may.
#[test]
fn the_smallest_steps_come_to_an_end() {
    let fs = open(&make(4096));
    let home = {
        let op = fs.op();
        let top = fs.forest.get(&fs.core, 5).unwrap();
        let dir = top.tree.get(&op, TOP).unwrap();
        let place = Place { subvolume: &top, dir: &dir, name: b"home" };
        fs.forest.create(&op, place, 0o755, 0, 0).unwrap()
    };
    {
        let op = fs.op();
        let subvolume = fs.forest.get(&fs.core, home).unwrap();
        let top = subvolume.tree.get(&op, TOP).unwrap();
        let inode = subvolume.tree.create(&op, &top, b"file", &file(0o644)).unwrap();
        for turn in 0..16_000 {
            subvolume.tree.write(&op, &inode, turn * 8192, &[7; 4096]).unwrap();
        }
    }
    fs.commit();
    snapshot(&fs, home, "snapshot");
    fs.commit();
    assert!(fs.forest.get(&fs.core, home).unwrap().item().level >= 2);
    delete(&fs, "home", home);
    LITTLE_ROOM.set(true);
    let left = (0..5000).find(|_| {
        fs.commit();
        !fs.forest.has_dead()
    });
    LITTLE_ROOM.set(false);
    assert!(left.is_some(), "commits go on for ever");
    fs.check();
}

/// Subvolumes of one leaf, each of which has its root item in another leaf: where there is hardly room, commits drop as many as
/// they have promised to change leaves for.
#[test]
fn small_subvolumes_are_dropped_within_what_was_promised() {
    let fs = open(&make(4096));
    let names: Vec<String> = (0..2000).map(|at| format!("s{at}")).collect();
    let ids: Vec<u64> = {
        let op = fs.op();
        let top = fs.forest.get(&fs.core, 5).unwrap();
        let dir = top.tree.get(&op, TOP).unwrap();
        let make = |name: &String| {
            let place = Place { subvolume: &top, dir: &dir, name: name.as_bytes() };
            fs.forest.create(&op, place, 0o755, 0, 0).unwrap()
        };
        names.iter().map(make).collect()
    };
    fs.commit();
    for (name, id) in names.iter().zip(&ids).step_by(8) {
        delete(&fs, name, *id);
    }
    fs.commit();
    let beyond = || fs.core.counters.beyond.load(Ordering::Relaxed);
    let before = beyond();
    LITTLE_ROOM.set(true);
    while fs.forest.has_dead() {
        fs.commit();
    }
    LITTLE_ROOM.set(false);
    assert_eq!(beyond() - before, 0, "blocks beyond what was promised");
    fs.check();
}
