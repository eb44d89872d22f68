//! Block groups of images whose extent tree contradicts the other trees are emptied: what that is about stays where it is and is told, the rest
//! moves, the filesystem lives on, and all that could be read reads as before.

use std::collections::BTreeMap;
use std::sync::Arc;

use buttress::device::MemoryDevice;
use buttress::ondisk::item::{ExtentDataRef, ExtentItem, FileExtent, extent_flags};
use buttress::ondisk::view::{InlineRef, inline_refs};
use buttress::ondisk::{Key, kind, objectid};
use buttress::{Errno, Filesystem, New, Node, Options, Owner};
use buttress_testkit::damage::{Base, Patient, kinds};
use buttress_testkit::facts::{diff, facts_of_library};
use buttress_testkit::oracle::root_or_skip;

const EXTENTS: u64 = objectid::EXTENT_TREE;
/// Where the first reference of an extent item starts.
const HEAD: usize = size_of::<ExtentItem>();

/// Small nodes, files in extents of their own, and snapshots that share their leaves.
fn filled(has_late: bool) -> Arc<MemoryDevice> {
    let device = Arc::new(MemoryDevice::new(512 << 20));
    let mut seed = buttress_mkfs::Environment::seeded(1);
    let options = buttress_mkfs::Options { nodesize: Some(4096), ..Default::default() };
    buttress_mkfs::make(&*device, &options, &mut seed).unwrap();
    let fs = open(&device).unwrap();
    let work = fs.create_subvolume(Node::ROOT, b"work", Owner::default()).unwrap();
    for number in 0..1500_u64 {
        let name = format!("file{number}");
        let file = fs.create(Node::top(work), name.as_bytes(), &New::file(0o600)).unwrap().node;
        let has_two = number % 50 == 0;
        fs.write(file, 0, &vec![number as u8; if has_two { 12288 } else { 4096 }]).unwrap();
        // Two pieces of one extent.
        if has_two {
            fs.commit().unwrap();
            fs.write(file, 4096, &[7; 4096]).unwrap();
        }
    }
    fs.commit().unwrap();
    for number in 700..720 {
        fs.unlink(Node::top(work), format!("file{number}").as_bytes()).unwrap();
    }
    for snapshot in ["one", "two"] {
        fs.snapshot(work, Node::ROOT, snapshot.as_bytes(), false).unwrap();
    }
    // Where one of these was there is room, in space and in the leaf that tells of it.
    for number in 0..if has_late { 40 } else { 0 } {
        let name = format!("late{number}");
        let file = fs.create(Node::top(work), name.as_bytes(), &New::file(0o600)).unwrap().node;
        fs.write(file, 0, &[9; 4096]).unwrap();
    }
    fs.commit().unwrap();
    for number in (10..if has_late { 30 } else { 0 }).step_by(2) {
        fs.unlink(Node::top(work), format!("late{number}").as_bytes()).unwrap();
    }
    fs.close().unwrap();
    device
}

fn open(device: &Arc<MemoryDevice>) -> buttress::Result<Filesystem> {
    Filesystem::open_device(device.clone(), Options::read_write().background(false))
}

/// An extent with one reference, inline, which `wanted` takes: in the middle of all such.
fn with_ref(p: &Patient, wanted: impl Fn(&InlineRef) -> bool) -> Key {
    let is_meant = |key: &Key, data: &[u8]| {
        let is_item = matches!(key.kind, kind::EXTENT_ITEM | kind::METADATA_ITEM);
        let found = is_item.then(|| inline_refs(key, data)).flatten();
        found.is_some_and(|(_, _, mut refs)| {
            refs.next().is_some_and(|one| wanted(&one)) && refs.next().is_none()
        })
    };
    let all = p.all(EXTENTS, is_meant).unwrap();
    all[all.len() / 2].0
}

/// Of a file of a subvolume, so many times.
fn of_file(times: u32) -> impl Fn(&InlineRef) -> bool {
    move |one| matches!(one, InlineRef::ExtentData { root: 256, count, .. } if *count == times)
}

/// Of a block of a subvolume.
fn of_block(one: &InlineRef) -> bool {
    matches!(one, InlineRef::TreeBlock { root: 256 })
}

/// Has a reference count so often, and the item say so.
fn count(p: &Patient, key: Key, times: u32) {
    p.edit(EXTENTS, key, |it: &mut ExtentItem| it.refs = u64::from(times).into()).unwrap();
    p.edit_at(EXTENTS, key, HEAD + 1, |it: &mut ExtentDataRef| it.count = times.into()).unwrap();
}

/// Makes the first reference, by a tree, one by another tree.
fn of_other_tree(p: &Patient, key: Key) {
    p.edit_at(EXTENTS, key, HEAD + 1, |it: &mut [u8; 8]| *it = 0x7777_u64.to_le_bytes()).unwrap();
}

fn without_refs(p: &Patient, key: Key) {
    p.edit(EXTENTS, key, |it: &mut ExtentItem| it.refs = 0.into()).unwrap();
    p.rewrite(EXTENTS, key, |data| data.truncate(HEAD)).unwrap();
}

/// An extent of nobody, where nothing is.
fn of_nobody(p: &Patient) {
    let all = p.all(EXTENTS, |key, _| key.kind == kind::EXTENT_ITEM).unwrap();
    let end = |key: &Key| key.objectid + key.offset;
    let has_gap = |pair: &&[(Key, Vec<u8>)]| end(&pair[0].0) < pair[1].0.objectid;
    // Its leaf must have room for one more.
    let is_put = all.windows(2).filter(has_gap).any(|pair| {
        let (key, mut data) = pair[0].clone();
        data[HEAD + 9..HEAD + 17].copy_from_slice(&0x7777_u64.to_le_bytes());
        p.insert(EXTENTS, Key::new(end(&key), kind::EXTENT_ITEM, 4096), &data).is_ok()
    });
    assert!(is_put);
}

/// A file names an extent that begins elsewhere, so that it has a part of what is before it, or behind.
fn names(p: &Patient, by: i64) {
    let is_meant = |key: &Key, data: &[u8]| {
        let item = FileExtent::of(data).filter(|_| key.kind == kind::EXTENT_DATA);
        item.is_some_and(|item| item.tail.disk_num_bytes.get() == 12288)
    };
    let all = p.all(256, is_meant).unwrap();
    p.edit(256, all[all.len() / 2].0, |it: &mut FileExtent| {
        it.tail.disk_bytenr = it.tail.disk_bytenr.get().wrapping_add_signed(by).into();
    })
    .unwrap();
}

type Damage = (&'static str, fn(&Patient));

const ALL: &[Damage] = &[
    ("data without an item", |p| drop(p.remove(EXTENTS, with_ref(p, of_file(1))).unwrap())),
    ("a block without an item", |p| drop(p.remove(EXTENTS, with_ref(p, of_block)).unwrap())),
    ("data of another tree", |p| of_other_tree(p, with_ref(p, of_file(1)))),
    ("a block of another tree", |p| of_other_tree(p, with_ref(p, of_block))),
    ("data of another file", |p| {
        let key = with_ref(p, of_file(1));
        p.edit_at(EXTENTS, key, HEAD + 9, |it: &mut [u8; 8]| *it = 0x7777_u64.to_le_bytes())
            .unwrap();
    }),
    ("data counts too much in all", |p| {
        let key = with_ref(p, of_file(1));
        p.edit(EXTENTS, key, |it: &mut ExtentItem| it.refs = 5.into()).unwrap();
    }),
    ("a block counts too much in all", |p| {
        let key = with_ref(p, of_block);
        p.edit(EXTENTS, key, |it: &mut ExtentItem| it.refs = 5.into()).unwrap();
    }),
    ("data counts too much", |p| count(p, with_ref(p, of_file(1)), 2)),
    ("data counts too little", |p| count(p, with_ref(p, of_file(2)), 1)),
    ("data without references", |p| without_refs(p, with_ref(p, of_file(1)))),
    ("a block without references", |p| without_refs(p, with_ref(p, of_block))),
    ("data that is a block", |p| {
        let key = with_ref(p, of_file(1));
        p.edit(EXTENTS, key, |it: &mut ExtentItem| it.flags = extent_flags::TREE_BLOCK.into())
            .unwrap();
    }),
    ("an extent of nobody", of_nobody),
    ("a file names what is behind its extent", |p| names(p, 4096)),
    ("a file names what is before its extent", |p| names(p, -4096)),
];

/// What was moved, what was not, and what went wrong with it.
fn empty_all(fs: &Filesystem, report: &mut BTreeMap<&'static str, u64>) -> Vec<String> {
    let mut wrong = Vec::new();
    let before = facts_of_library(fs);
    for group in fs.block_groups() {
        match fs.empty_block_group(group.start, |_| true) {
            Ok(done) => {
                *report.entry("moved").or_default() += done.moved;
                *report.entry("failed").or_default() += done.failed.len() as u64;
                if std::env::var_os("BUTTRESS_SHOW").is_some() {
                    println!("    {}: {} moved, {:?}", group.start, done.moved, done.failed);
                }
            }
            Err(error) => {
                *report.entry("ended").or_default() += 1;
                if std::env::var_os("BUTTRESS_SHOW").is_some() {
                    println!("    {}: {error}", group.start);
                }
            }
        }
    }
    if let Err(error) = fs.commit() {
        wrong.push(format!("a commit: {error}"));
    }
    match (before, facts_of_library(fs)) {
        (Ok(before), Ok(after)) => wrong.extend(diff(&after, &before)),
        (Ok(_), Err(error)) => wrong.push(format!("what was readable is not: {error}")),
        (Err(_), _) => *report.entry("unreadable").or_default() += 1,
    }
    wrong.truncate(10);
    wrong
}

#[test]
fn what_the_extent_tree_contradicts_stays() {
    let mut faults = Vec::new();
    let [healthy, with_gaps] = [false, true].map(filled);
    for (name, damage) in ALL {
        let is_of_gap = *name == "an extent of nobody";
        let patient = Patient::of(if is_of_gap { &with_gaps } else { &healthy }).unwrap();
        damage(&patient);
        let mut report = BTreeMap::new();
        let fs = open(patient.device()).unwrap();
        let expected = facts_of_library(&fs).unwrap();
        let wrong = empty_all(&fs, &mut report);
        println!("{name}: {report:?}");
        faults.extend(wrong.into_iter().map(|why| format!("{name}: {why}")));
        let count = |what: &str| report.get(what).copied().unwrap_or(0);
        if count("failed") == 0 || count("moved") < 100 {
            faults.push(format!("{name}: {report:?}"));
        }
        if let Err(error) = fs.close() {
            faults.push(format!("{name}: {error}"));
            continue;
        }
        let lines = diff(&facts_of_library(&open(patient.device()).unwrap()).unwrap(), &expected);
        faults.extend(lines.into_iter().take(5).map(|why| format!("{name}, later: {why}")));
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

/// Trees whose blocks have one reference each. (That of the device changes whenever a chunk comes or goes.)
const NEVER_SHARED: [(&str, u64); 5] = [
    ("root", objectid::ROOT_TREE),
    ("extent", objectid::EXTENT_TREE),
    ("csum", objectid::CSUM_TREE),
    ("free space", objectid::FREE_SPACE_TREE),
    ("uuid", objectid::UUID_TREE),
];
/// Blocks of a tree of which the items go, one at a time.
const BLOCKS: usize = 8;

/// The blocks of a tree, some of those in the middle left out.
fn some_blocks(p: &Patient, tree: u64) -> Vec<u64> {
    let (mut all, mut waiting) = (Vec::new(), vec![p.root(tree).unwrap()]);
    while let Some(at) = waiting.pop() {
        all.push(at);
        let block = p.block(at).unwrap();
        if !block.is_leaf() {
            waiting.extend((0..block.len()).map(|slot| block.child(slot).bytenr));
        }
    }
    let step = all.len().div_ceil(BLOCKS);
    all.into_iter().step_by(step).collect()
}

/// Whether a commit fails that has nothing to do with emptying groups.
fn fails_anyway(p: &Patient) -> bool {
    let fs = open(&Arc::new(p.device().snapshot())).unwrap();
    let made = fs.create(Node::ROOT, b"another", &New::file(0o600));
    let written = made.and_then(|file| fs.write(file.node, 0, &[1; 8192]));
    written.is_err() || fs.commit().is_err()
}

/// Empties all groups of images on which one block of a tree has no item, one after the other; answers on how many nobody could write anything anyway, how many were
/// emptied, and on how many of those something stayed.
fn empty_without_items(healthy: &Arc<MemoryDevice>, trees: &[(&str, u64)]) -> [usize; 3] {
    let (mut faults, mut counts) = (Vec::new(), [0; 3]);
    for (name, tree) in trees {
        for bytenr in some_blocks(&Patient::of(healthy).unwrap(), *tree) {
            let patient = without_item(healthy, bytenr);
            if fails_anyway(&patient) {
                counts[0] += 1;
                continue;
            }
            let fs = open(patient.device()).unwrap();
            let mut report = BTreeMap::new();
            let wrong = empty_all(&fs, &mut report);
            println!("{name} {bytenr}: {report:?} {wrong:?}");
            counts[1] += 1;
            counts[2] += usize::from(report.get("failed").is_some_and(|failed| *failed > 0));
            faults.extend(wrong.into_iter().map(|why| format!("{name} {bytenr}: {why}")));
            if let Err(error) = fs.close() {
                faults.push(format!("{name} {bytenr}: {error}"));
            }
        }
    }
    println!("{counts:?}: nobody could write anything, groups were emptied, something stayed");
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    counts
}

/// A block of a tree that is never shared has no item: what it says cannot change, and so it stays.
#[test]
fn what_needs_a_block_without_an_item_stays() {
    let counts = empty_without_items(&filled(false), &NEVER_SHARED);
    assert!(counts[1] > 4 && counts[2] > 4, "{counts:?}");
}

/// The same where much is said of one extent: leaves of checksums that have those of its middle, and free space in bitmaps.
#[test]
fn what_needs_a_block_in_the_middle_of_an_extent_stays() {
    let device = Arc::new(MemoryDevice::new(512 << 20));
    let mut seed = buttress_mkfs::Environment::seeded(1);
    let options = buttress_mkfs::Options { nodesize: Some(4096), ..Default::default() };
    buttress_mkfs::make(&*device, &options, &mut seed).unwrap();
    let fs = open(&device).unwrap();
    for name in [b"first", b"other"] {
        let file = fs.create(Node::ROOT, name, &New::file(0o600)).unwrap().node;
        fs.write(file, 0, &vec![7; 24 << 20]).unwrap();
        fs.commit().unwrap();
    }
    fs.close().unwrap();
    let trees = [("csum", objectid::CSUM_TREE), ("free space", objectid::FREE_SPACE_TREE)];
    let counts = empty_without_items(&device, &trees);
    assert!(counts[1] > 4 && counts[2] > 4, "{counts:?}");
}

/// An image on which a block of a tree has no item.
fn without_item(healthy: &Arc<MemoryDevice>, bytenr: u64) -> Patient {
    let patient = Patient::of(healthy).unwrap();
    let is_it = |key: &Key, _: &[u8]| (key.objectid, key.kind) == (bytenr, kind::METADATA_ITEM);
    let key = patient.find(EXTENTS, is_it).unwrap().0;
    patient.remove(EXTENTS, key).unwrap();
    patient
}

/// The group that such a block is in stays, too, and whoever has asked for it hears of that block, where it is and what it lacks.
#[test]
fn who_empties_the_group_of_a_block_without_an_item_hears_of_it() {
    let (mut faults, mut count) = (Vec::new(), 0);
    let healthy = filled(false);
    for (name, tree) in NEVER_SHARED {
        for bytenr in some_blocks(&Patient::of(&healthy).unwrap(), tree) {
            let patient = without_item(&healthy, bytenr);
            if fails_anyway(&patient) {
                continue;
            }
            count += 1;
            let fs = open(patient.device()).unwrap();
            let is_in = |start: u64, len: u64| (start..start + len).contains(&bytenr);
            let groups = fs.block_groups();
            let group = groups.iter().find(|group| is_in(group.start, group.len)).unwrap();
            let told = fs.empty_block_group(group.start, |_| true);
            let at = bytenr.to_string();
            let is_told =
                |done: &buttress::Emptied| done.failed.iter().any(|it| it.1.contains(&at));
            if !told.as_ref().is_ok_and(is_told) {
                faults.push(format!("{name} {bytenr}: {told:?}"));
            }
            if let Err(error) = fs.close() {
                faults.push(format!("{name} {bytenr}: {error}"));
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    assert!(count > 4, "{count}");
}

/// Where a block of the trees that say where chunks are has no item, no commit comes to it: chunks stay as they are, and who wants more of them is refused.
#[test]
fn no_chunk_comes_where_it_could_not_be_noted() {
    let healthy = filled(false);
    for tree in [objectid::DEV_TREE, objectid::CHUNK_TREE] {
        for bytenr in some_blocks(&Patient::of(&healthy).unwrap(), tree) {
            let patient = without_item(&healthy, bytenr);
            let fs = open(patient.device()).unwrap();
            let warned = fs.warnings().into_iter().any(|it| it.contains(&bytenr.to_string()));
            assert!(warned, "{:?}", fs.warnings());
            let groups = fs.block_groups().len();
            let file = fs.create(Node::ROOT, b"large", &New::file(0o600)).unwrap().node;
            let mut at = 0;
            let error = loop {
                match fs.write(file, at, &vec![5; 1 << 20]) {
                    Ok(len) => at += len as u64,
                    Err(error) => break error,
                }
                fs.commit().unwrap();
            };
            assert_eq!(error.errno(), Errno::NOSPC, "{at} bytes");
            let group = fs.block_groups()[0];
            let refused = fs.empty_block_group(group.start, |_| true).unwrap_err();
            assert_eq!(refused.errno(), Errno::UCLEAN);
            assert!(refused.to_string().contains(&bytenr.to_string()), "{refused}");
            fs.unlink(Node::ROOT, b"large").unwrap();
            for _ in 0..3 {
                fs.create(Node::ROOT, b"small", &New::file(0o600)).unwrap();
                fs.unlink(Node::ROOT, b"small").unwrap();
                fs.commit().unwrap();
            }
            assert_eq!(fs.block_groups().len(), groups);
            fs.close().unwrap();
        }
    }
}

/// Every kind of damage that the checker knows, in images of the kernel.
#[test]
fn no_damage_is_made_worse() {
    if !root_or_skip() {
        return;
    }
    let healthy: BTreeMap<Base, MemoryDevice> =
        Base::ALL.into_iter().map(|base| (base, base.make().unwrap())).collect();
    let (mut faults, mut opened) = (Vec::new(), 0);
    for kind in kinds() {
        let patient = Patient::of(&healthy[&kind.base]).unwrap();
        (kind.make)(&patient).unwrap();
        let device = patient.device().clone();
        let fs = match Filesystem::open_device(device, Options::read_write().background(false)) {
            Ok(fs) => fs,
            Err(_) => continue,
        };
        // Who cannot commit at all has nothing to lose here.
        if fs.create(Node::ROOT, b"new name", &New::file(0o600)).is_err() || fs.commit().is_err() {
            continue;
        }
        opened += 1;
        let mut report = BTreeMap::new();
        let wrong = empty_all(&fs, &mut report);
        println!("{}: {report:?} {wrong:?}", kind.name);
        if !wrong.is_empty() {
            faults.push(format!("{}: {wrong:?}", kind.name));
        }
        let _refused = fs.close();
    }
    println!("{opened} of {} could be written", kinds().len());
    assert!(opened > 100, "{opened}");
    assert!(faults.is_empty(), "{} faults:\n{}", faults.len(), faults.join("\n"));
}
