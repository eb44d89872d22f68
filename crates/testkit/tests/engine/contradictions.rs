//! Images whose items are each fine and contradict each other: an operation that meets that is refused and says where, and
//! nothing else gets worse.

use std::sync::Arc;

use buttress::device::MemoryDevice;
use buttress::ondisk::block::ChildPtr;
use buttress::ondisk::item::{
    BlockGroupItem, DirItem, ExtentItem, FileExtent, FreeSpaceHeader, FreeSpaceInfo, InodeRef,
    RootItem,
};
use buttress::ondisk::{Key, kind, objectid};
use buttress::{Allocate, Filesystem, New, Node, OpenMode, Options, Owner, Rename};
use buttress_testkit::corpus::build;
use buttress_testkit::damage::bytes::child;
use buttress_testkit::damage::{Patient, TOP};
use buttress_testkit::oracle::{check, root_or_skip, temp_dir};

const EXTENTS: u64 = objectid::EXTENT_TREE;
const GROUPS: u64 = objectid::BLOCK_GROUP_TREE;
const SPACE: u64 = objectid::FREE_SPACE_TREE;
/// Where the tree stands in the first reference of an extent item, when that is one by tree.
const INLINE_ROOT: usize = size_of::<ExtentItem>() + 1;

/// A filesystem of our own in memory, ready to be damaged.
fn made(fill: impl FnOnce(&Filesystem)) -> Patient {
    let device = fresh();
    let fs = open(&device);
    fill(&fs);
    fs.close().unwrap();
    Patient::of(&device).unwrap()
}

fn fresh() -> Arc<MemoryDevice> {
    let device = Arc::new(MemoryDevice::new(512 << 20));
    let mut seed = buttress_mkfs::Environment::seeded(1);
    buttress_mkfs::make(&*device, &buttress_mkfs::Options::default(), &mut seed).unwrap();
    device
}

fn open(device: &Arc<MemoryDevice>) -> Filesystem {
    let options = Options::read_write().background(false);
    Filesystem::open_device(device.clone(), options).unwrap()
}

fn file(fs: &Filesystem, dir: Node, name: &str) -> Node {
    fs.create(dir, name.as_bytes(), &New::file(0o644)).unwrap().node
}

/// What root items say of the sizes of trees is somebody's word. Where it is too little, commits would be promised too little;
/// where it is too much, there would be no room for anything.
#[test]
fn sizes_of_trees_that_are_lies_harm_nobody() {
    for (lie, full) in [(1, true), (u64::MAX / 2, true), (u64::MAX / 2, false)] {
        let mut truth = 0;
        let patient = made(|fs| {
            let (one, other) = (file(fs, Node::ROOT, "one"), file(fs, Node::ROOT, "other"));
            for at in 0..3000 {
                for node in [one, other] {
                    fs.write(node, at * 8192, &[5; 4096]).unwrap();
                }
                if at % 100 == 0 {
                    fs.commit().unwrap();
                }
            }
            // Small contents are metadata.
            for number in 0.. {
                let metadata = fs.usage().metadata;
                if !full || metadata.used * 4 > metadata.total {
                    break;
                }
                for part in 0..100 {
                    let small = file(fs, Node::ROOT, &format!("small {number} {part}"));
                    fs.write(small, 0, &[7; 2000]).unwrap();
                }
                fs.commit().unwrap();
            }
            let reserve = Allocate::Reserve { keep_size: false };
            let (mut at, mut len) = (1 << 30, if full { 1 << 40 } else { 0 });
            while len >= 4096 {
                match fs.fallocate(other, reserve, at, len) {
                    Ok(()) => at += len,
                    Err(_) => len /= 2,
                }
            }
            fs.commit().unwrap();
            truth = fs.core().space.trees().extent;
        });
        assert!(truth > 20, "{truth}");
        for tree in [objectid::EXTENT_TREE, objectid::FREE_SPACE_TREE, objectid::CSUM_TREE] {
            let key = patient.key(objectid::ROOT_TREE, tree, kind::ROOT_ITEM).unwrap();
            patient
                .edit(objectid::ROOT_TREE, key, |item: &mut RootItem| item.bytes_used = lie.into())
                .unwrap();
        }
        let fs = open(patient.device());
        let found = fs.core().space.trees().extent;
        assert!(!full || found == truth, "{found} blocks instead of {truth}");
        if !full {
            file(&fs, Node::ROOT, "new");
        }
        fs.unlink(Node::ROOT, b"other").unwrap();
        fs.close().unwrap();
        let fs = open(patient.device());
        let again = fs.core().space.trees();
        fs.commit().unwrap();
        assert!(again.extent <= 2 * truth, "{again:?}");
    }
}

#[test]
fn a_deleted_subvolume_that_cannot_be_dropped_is_said() {
    let patient = made(|fs| {
        let sub = fs.create_subvolume(Node::ROOT, b"sub", Owner::default()).unwrap();
        for number in 0..2000 {
            file(fs, Node::top(sub), &format!("file number {number}"));
        }
        fs.commit().unwrap();
    });
    let sub = patient.named(TOP, "sub").unwrap();
    let middle = patient.entry(sub, kind::DIR_INDEX, "file number 1000").unwrap();
    let leaf = patient.path(sub, &middle).unwrap().pop().unwrap().block.bytenr();
    for copy in [0, 1] {
        patient.flip(leaf + 500, copy).unwrap();
    }
    let fs = open(patient.device());
    fs.delete_subvolume(Node::ROOT, b"sub").unwrap();
    let why = fs.clean().unwrap_err().to_string();
    assert!(why.contains(&leaf.to_string()), "{why}");
    let warnings = fs.warnings();
    assert!(warnings.iter().any(|it| it.contains("cannot be dropped")), "{warnings:?}");
    file(&fs, Node::ROOT, "after");
    fs.close().unwrap();
    let fs = open(patient.device());
    assert!(fs.lookup(Node::ROOT, b"after").unwrap().is_some());
    assert!(fs.clean().is_err(), "it tries again, and says so again");
    for copy in [0, 1] {
        patient.flip(leaf + 500, copy).unwrap();
    }
    fs.clean().unwrap();
}

#[test]
fn a_deleted_subvolume_that_cannot_even_be_opened_is_said() {
    let device = fresh();
    let fs = open(&device);
    let sub = fs.create_subvolume(Node::ROOT, b"sub", Owner::default()).unwrap();
    file(&fs, Node::top(sub), "file");
    fs.commit().unwrap();
    fs.delete_subvolume(Node::ROOT, b"sub").unwrap();
    fs.commit().unwrap();
    // The next commit would drop it.
    let patient = Patient::of(&device).unwrap();
    let root = patient.path(sub, &Key::MIN).unwrap()[0].block.bytenr();
    for copy in [0, 1] {
        patient.flip(root + 500, copy).unwrap();
    }
    for name in ["one", "other"] {
        let fs = open(patient.device());
        file(&fs, Node::ROOT, name);
        fs.commit().unwrap();
        let why = fs.clean().unwrap_err().to_string();
        assert!(why.contains(&root.to_string()), "{why}");
        let warnings = fs.warnings();
        assert!(warnings.iter().any(|it| it.contains("cannot be dropped")), "{warnings:?}");
        fs.close().unwrap();
    }
    let fs = open(patient.device());
    assert!(
        ["one", "other"].iter().all(|it| fs.lookup(Node::ROOT, it.as_bytes()).unwrap().is_some())
    );
}

#[test]
fn a_name_that_leads_to_no_inode_is_no_free_name() {
    let patient = made(|fs| {
        for name in ["one", "other"] {
            file(fs, Node::ROOT, name);
        }
        fs.create_subvolume(Node::ROOT, b"sub", Owner::default()).unwrap();
    });
    let key = patient.entry(TOP, kind::DIR_ITEM, "other").unwrap();
    let nowhere = Key::new(4000, kind::INODE_ITEM, 0);
    patient.edit(TOP, key, |entry: &mut DirItem| entry.location = nowhere.into()).unwrap();
    let fs = open(patient.device());
    let whiteout = Rename::Whiteout { uid: 0, gid: 0 };
    for how in [Rename::Replace, Rename::NoReplace, Rename::Exchange, whiteout] {
        for name in ["one", "sub"] {
            let done = fs.rename(Node::ROOT, name.as_bytes(), Node::ROOT, b"other", how);
            assert!(done.is_err(), "{name} {how:?}");
        }
    }
    let done = fs.rename(Node::ROOT, b"one", Node::ROOT, b"other", Rename::Replace);
    let why = done.unwrap_err().to_string();
    assert!(why.contains("not there") && why.contains(&key.to_string()), "{why}");
    assert!(fs.create_subvolume(Node::ROOT, b"other", Owner::default()).is_err());
    fs.rename(Node::ROOT, b"one", Node::ROOT, b"two", Rename::Replace).unwrap();
    fs.commit().unwrap();
    assert!(fs.lookup(Node::ROOT, b"two").unwrap().is_some());
}

#[test]
fn a_name_whose_index_is_another_names_takes_nothing_else_away() {
    let patient = made(|fs| {
        for name in ["one", "other"] {
            file(fs, Node::ROOT, name);
        }
    });
    let ino = patient.named(TOP, "one").unwrap();
    let index = patient.entry(TOP, kind::DIR_INDEX, "other").unwrap().offset;
    let key = patient.key(TOP, ino, kind::INODE_REF).unwrap();
    patient.edit(TOP, key, |head: &mut InodeRef| head.index = index.into()).unwrap();
    let fs = open(patient.device());
    let why = fs.unlink(Node::ROOT, b"one").unwrap_err().to_string();
    assert!(why.contains("directory index"), "{why}");
    fs.unlink(Node::ROOT, b"other").unwrap();
    fs.commit().unwrap();
    let mut names = Vec::new();
    fs.read_dir(Node::ROOT, 0, &mut |entry| {
        names.push(entry.name);
        true
    })
    .unwrap();
    assert_eq!(names, [b"one"]);
}

#[test]
fn file_extents_that_overlap_are_an_error() {
    let patient = made(|fs| {
        let node = file(fs, Node::ROOT, "file");
        for at in 0..600 {
            fs.write(node, at * 8192, &[7; 4096]).unwrap();
        }
    });
    let ino = patient.named(TOP, "file").unwrap();
    let extents = patient.all(TOP, |key, _| (key.objectid, key.kind) == (ino, kind::EXTENT_DATA));
    let extents = extents.unwrap();
    // Within a leaf, the leaf as a whole is refused.
    let last_of_a_leaf = extents
        .windows(2)
        .find(|pair| patient.path(TOP, &pair[1].0).unwrap().last().unwrap().slot == 0);
    let (key, next) = last_of_a_leaf.map(|pair| (pair[0].0, pair[1].0)).unwrap();
    let longer = |extent: &mut FileExtent| {
        extent.head.ram_bytes = 12288.into();
        extent.tail.num_bytes = 12288.into();
        extent.tail.disk_num_bytes = 12288.into();
    };
    patient.edit(TOP, key, longer).unwrap();
    let fs = open(patient.device());
    let file = fs.open_file("/file", OpenMode::read_write()).unwrap();
    let why = file.read_at(&mut [0; 8192], next.offset).err();
    assert!(why.is_none(), "what is behind is read: {why:?}");
    let why = file.read_at(&mut [0; 65536], key.offset).unwrap_err().to_string();
    assert!(why.contains("overlap") && why.contains(&next.to_string()), "{why}");
    let written = file.write_at(&[8; 65536], key.offset).map(|_| ());
    let done = written.and_then(|()| fs.commit().map(|_| ()));
    assert!(done.unwrap_err().to_string().contains("overlap"));
}

#[test]
fn a_free_space_cache_that_leads_elsewhere_is_left_alone() {
    if !root_or_skip() {
        return;
    }
    let image = build("space-cache-v1").unwrap();
    let patient = Patient::of(&MemoryDevice::load(&image.path).unwrap()).unwrap();
    let tree = objectid::ROOT_TREE;
    let dir = patient.key(tree, objectid::ROOT_TREE_DIR, kind::DIR_ITEM).unwrap();
    let (header, _) = patient.find(tree, |key, _| key.objectid == objectid::FREE_SPACE).unwrap();
    let elsewhere = Key::new(objectid::ROOT_TREE_DIR, kind::INODE_ITEM, 0);
    let edit = |header: &mut FreeSpaceHeader| header.location = elsewhere.into();
    patient.edit(tree, header, edit).unwrap();
    let fs = open(patient.device());
    file(&fs, Node::ROOT, "new");
    fs.commit().unwrap();
    assert!(fs.core().root_view().get(&dir).unwrap().is_some());
    let warnings = fs.warnings();
    assert!(warnings.iter().any(|it| it.contains("cache")), "{warnings:?}");
}

/// A block group's item that says something else than its extents is mended where the free space tree says what the extents
/// say, as Linux leaves such items; else nothing is written.
#[test]
fn used_bytes_that_are_wrong_are_counted_anew_where_two_agree() {
    let filled = |fs: &Filesystem| {
        fs.write(file(fs, Node::ROOT, "old"), 0, &[7; 5 << 20]).unwrap();
    };
    let groups = made(filled).all(GROUPS, |key, _| key.kind == kind::BLOCK_GROUP_ITEM).unwrap();
    assert!(groups.len() >= 3, "data, metadata, system");
    for (group, lie) in
        groups.iter().flat_map(|group| [0, 4096, group.0.offset - 4096].map(|lie| (group.0, lie)))
    {
        let lied = |device: &MemoryDevice| {
            let patient = Patient::of(device).unwrap();
            let edit = |item: &mut BlockGroupItem| item.used = lie.into();
            patient.edit(GROUPS, group, edit).unwrap();
            assert!(!is_clean(patient.device()), "{group} {lie}");
            patient
        };
        let patient = lied(made(filled).device());
        let options = Options::read_only().background(false);
        Filesystem::open_device(patient.device().clone(), options).unwrap().usage();
        let fs = open(patient.device());
        let (at, warnings) = (group.objectid.to_string(), fs.warnings());
        assert!(warnings.iter().any(|it| it.contains(&at) && it.contains("agree")), "{warnings:?}");
        fs.write(file(&fs, Node::ROOT, "new"), 0, &[8; 5 << 20]).unwrap();
        fs.close().unwrap();
        assert!(is_clean(patient.device()), "{group} {lie}");
        let dir = temp_dir().unwrap();
        let image = dir.path().join("image");
        patient.device().store(&image).unwrap();
        check(&image, true).unwrap();
        assert!(open(patient.device()).warnings().is_empty());
        // A free space tree that says a third thing is no witness.
        let patient = lied(patient.device());
        let inside = group.objectid..group.objectid + group.offset;
        let run = |key: &Key, _: &[u8]| {
            key.kind == kind::FREE_SPACE_EXTENT && inside.contains(&key.objectid)
        };
        let (run, _) = patient.find(SPACE, run).unwrap();
        patient.remove(SPACE, run).unwrap();
        let info = Key::new(group.objectid, kind::FREE_SPACE_INFO, group.offset);
        let fewer =
            |item: &mut FreeSpaceInfo| item.extent_count = (item.extent_count.get() - 1).into();
        patient.edit(SPACE, info, fewer).unwrap();
        let options = Options::read_write().background(false);
        let why =
            Filesystem::open_device(patient.device().clone(), options).unwrap_err().to_string();
        assert!(why.contains("used bytes") && why.contains(&at), "{why}");
    }
}

fn is_clean(device: &Arc<MemoryDevice>) -> bool {
    let report = buttress_check::check_devices(
        vec![device.clone()],
        &buttress_check::Options::default(),
        &buttress_check::Progress::default(),
    );
    report.unwrap().is_clean()
}

/// An image with a subvolume of some leaves and a snapshot of it, and the address of a leaf that both have.
fn shared() -> (Patient, u64) {
    let patient = made(|fs| {
        let sub = fs.create_subvolume(Node::ROOT, b"sub", Owner::default()).unwrap();
        for number in 0..2000 {
            let node = file(fs, Node::top(sub), &format!("file number {number}"));
            if number % 100 == 0 {
                fs.write(node, 0, &[7; 8192]).unwrap();
            }
        }
        fs.snapshot(sub, Node::ROOT, b"snapshot", true).unwrap();
        file(fs, Node::top(sub), "another");
    });
    let sub = patient.named(TOP, "sub").unwrap();
    let middle = patient.entry(sub, kind::DIR_INDEX, "file number 1000").unwrap();
    let leaf = patient.path(sub, &middle).unwrap().pop().unwrap().block.bytenr();
    (patient, leaf)
}

/// What subvolumes take is counted by what the extent tree says, which has to agree with what the trees say.
#[test]
fn what_subvolumes_take_is_not_told_by_lies() {
    type Lie = fn(&Patient, Key, Key);
    let lies: [(Lie, &str, bool); 6] = [
        (
            |p, leaf, _| p.edit(EXTENTS, leaf, |it: &mut ExtentItem| it.refs = 1.into()).unwrap(),
            "more inline references than references",
            true,
        ),
        (
            |p, leaf, _| p.edit(EXTENTS, leaf, |it: &mut ExtentItem| it.refs = 3.into()).unwrap(),
            "not as many references as blocks lead to it",
            true,
        ),
        (|p, leaf, _| drop(p.remove(EXTENTS, leaf).unwrap()), "no extent item", true),
        (
            |p, _, data| p.edit(EXTENTS, data, |it: &mut ExtentItem| it.refs = 9.into()).unwrap(),
            "do not add up",
            false,
        ),
        (
            |p, _, data| {
                let tree = |bytes: &mut Vec<u8>| bytes[INLINE_ROOT] = 99;
                p.rewrite(EXTENTS, data, tree).unwrap();
            },
            "a tree that is not there",
            false,
        ),
        (
            |p, _, data| {
                let count = |bytes: &mut Vec<u8>| {
                    let last = bytes.len() - 4;
                    bytes[last] += 1;
                };
                p.rewrite(EXTENTS, data, count).unwrap();
            },
            "more inline references than references",
            false,
        ),
    ];
    for (lie, wanted, of_leaf) in lies {
        let (patient, leaf) = shared();
        let item = |at: u64, of: u8| {
            let is = |key: &Key, data: &[u8]| {
                let by_tree = data.get(INLINE_ROOT - 1) == Some(&kind::EXTENT_DATA_REF);
                key.kind == of && (at == key.objectid || at == 0 && by_tree)
            };
            patient.find(EXTENTS, is).unwrap().0
        };
        let (leaf, data) = (item(leaf, kind::METADATA_ITEM), item(0, kind::EXTENT_ITEM));
        lie(&patient, leaf, data);
        let fs = Filesystem::open_device(patient.device().clone(), Options::read_only()).unwrap();
        let why = fs.subvolume_costs(|_| true).unwrap_err().to_string();
        let place = if of_leaf { leaf } else { data };
        // The gate names the leaf of the extent tree.
        let placed = why.contains("slot=") || why.contains(&place.objectid.to_string());
        assert!(why.contains(wanted) && placed, "{why}");
    }
}

/// A deleted snapshot that leads to a leaf wrongly is stuck: what others have of it stays, and all else goes on.
#[test]
fn a_deleted_snapshot_with_wrong_children_takes_nothing_from_others() {
    type Lie = fn(&mut [u8], usize, ChildPtr);
    let lies: [Lie; 2] = [
        // A leaf that it leads to rightly, too.
        |bytes, slot, next| {
            child(bytes, slot, |it| {
                it.bytenr = next.bytenr.into();
                it.generation = next.generation.into();
            })
        },
        // The right one, by another version.
        |bytes, slot, _| child(bytes, slot, |it| it.generation = 3.into()),
    ];
    for (number, lie) in lies.into_iter().enumerate() {
        let (patient, leaf) = shared();
        let snapshot = patient.named(TOP, "snapshot").unwrap();
        let root = patient.root(snapshot).unwrap();
        let node = patient.block(root).unwrap();
        let slot = (0..node.len()).find(|slot| node.child(*slot).bytenr == leaf).unwrap();
        let next = node.child(slot + 1);
        patient.edit_block(root, |bytes| lie(bytes, slot, next)).unwrap();
        for _ in 0..2 {
            let fs = open(patient.device());
            if fs.lookup(Node::ROOT, b"snapshot").unwrap().is_some() {
                fs.delete_subvolume(Node::ROOT, b"snapshot").unwrap();
            }
            let why = fs.clean().unwrap_err().to_string();
            assert!(!why.contains("read-only"), "{number}: {why}");
            fs.create(Node::ROOT, b"after", &New::file(0o644)).ok();
            fs.commit().unwrap();
            let sub = fs.lookup(Node::ROOT, b"sub").unwrap().unwrap().node;
            for number in 0..2000 {
                let name = format!("file number {number}");
                let file = fs.lookup(sub, name.as_bytes()).unwrap().unwrap().node;
                if number % 100 == 0 {
                    let mut bytes = [0; 8192];
                    assert_eq!(fs.read(file, 0, &mut bytes).unwrap(), 8192);
                    assert_eq!(bytes, [7; 8192]);
                }
            }
            fs.close().unwrap();
        }
    }
}

/// Free space that is written down wrongly is given back only where no extent is: else all of it would be lost at once.
#[test]
fn what_one_tree_alone_says_is_free_is_not_discarded() {
    let len = 1 << 20;
    let patient = made(|fs| {
        let kept = file(fs, Node::ROOT, "kept");
        fs.write(kept, 0, &vec![7; len as usize]).unwrap();
    });
    let is_data = |key: &Key, data: &[u8]| {
        key.kind == kind::EXTENT_DATA && data.len() == size_of::<FileExtent>()
    };
    let (_, data) = patient.find(TOP, is_data).unwrap();
    let at = FileExtent::of(&data).unwrap().tail.disk_bytenr.get();
    // What is free behind the file begins with the file, and ends so much earlier.
    let free = Key::new(at + len, kind::FREE_SPACE_EXTENT, 0);
    let is_behind = |key: &Key, _: &[u8]| key.kind == free.kind && key.objectid == free.objectid;
    let (free, _) = patient.find(objectid::FREE_SPACE_TREE, is_behind).unwrap();
    let lie = Key::new(at, free.kind, free.offset);
    patient.rekey(objectid::FREE_SPACE_TREE, free, lie).unwrap();
    let fs = open(patient.device());
    let told = fs.trim(0..u64::MAX, 0, |_| true).unwrap();
    assert!(told > 100 << 20, "{told}");
    let mut found = vec![0; len as usize];
    fs.core().volume.read_raw(at, &mut found, 0).unwrap();
    assert!(found == vec![7; len as usize], "the file is lost");
}

/// Nothing in the extent tree that nobody knows makes looking for what is free go on for ever.
#[test]
fn unknown_items_before_what_is_free_are_passed_over() {
    let patient = made(|fs| {
        let kept = file(fs, Node::ROOT, "kept");
        fs.write(kept, 0, &[7; 100_000]).unwrap();
    });
    let groups = patient.all(EXTENTS, |key, _| key.kind == kind::BLOCK_GROUP_ITEM).unwrap();
    for (group, _) in groups {
        for (id, kind) in [(group.objectid - 1, 7), (group.objectid, 1), (group.objectid + 1, 0)] {
            patient.insert(EXTENTS, Key::new(id, kind, 5), &[]).unwrap();
        }
    }
    let fs = open(patient.device());
    assert!(fs.trim(0..u64::MAX, 0, |_| true).unwrap() > 0);
}
