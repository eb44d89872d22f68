//! What is read without the trees that no file is read by: extents, block groups, free space, devices, checksums, uuids.

use std::sync::Arc;

use buttress::device::{BlockDevice, MemoryDevice};
use buttress::ondisk::item::{BlockGroupItem, RootItem};
use buttress::ondisk::superblock::{SUPERBLOCK_LEN, SUPERBLOCK_OFFSETS, Superblock, super_flags};
use buttress::ondisk::{Key, kind, objectid};
use buttress::{Filesystem, New, Node, Options, Result};
use buttress_mkfs::Feature;
use buttress_testkit::damage::Patient;

use zerocopy::FromBytes;

use crate::bytes::noise;

/// The trees that say where space is; the first two have the block groups.
const SPACE: [u64; 4] = [
    objectid::BLOCK_GROUP_TREE,
    objectid::EXTENT_TREE,
    objectid::FREE_SPACE_TREE,
    objectid::DEV_TREE,
];
const FILES: u64 = 300;

fn content(number: u64) -> Vec<u8> {
    noise(number, 4096 + number as usize * 50)
}

/// A filesystem with files, and with several leaves of extents and of checksums; `with_tree`: block groups have one of their own.
fn made(with_tree: bool) -> Patient {
    let device = Arc::new(MemoryDevice::new(512 << 20));
    let mut mkfs = buttress_mkfs::Options { nodesize: Some(4096), ..Default::default() };
    mkfs.features.set(Feature::BlockGroupTree, with_tree);
    buttress_mkfs::make(&*device, &mkfs, &mut buttress_mkfs::Environment::seeded(1)).unwrap();
    let fs = open(&device, Options::read_write()).unwrap();
    for number in 0..FILES {
        let name = format!("file {number}");
        let node = fs.create(Node::ROOT, name.as_bytes(), &New::file(0o644)).unwrap().node;
        fs.write(node, 0, &content(number)).unwrap();
        if number % 50 == 0 {
            fs.commit().unwrap();
        }
    }
    fs.close().unwrap();
    Patient::of(&device).unwrap()
}

fn open(device: &Arc<MemoryDevice>, options: Options) -> Result<Filesystem> {
    Filesystem::open_device(device.clone(), options.background(false))
}

fn read(fs: &Filesystem, number: u64) -> Result<Vec<u8>> {
    let node = fs.lookup(Node::ROOT, format!("file {number}").as_bytes())?.unwrap().node;
    let mut bytes = vec![0; 100_000];
    let len = fs.read(node, 0, &mut bytes)?;
    bytes.truncate(len);
    Ok(bytes)
}

fn assert_whole(fs: &Filesystem) {
    let mut names = 0;
    let mut count = |_| {
        names += 1;
        true
    };
    fs.read_dir(Node::ROOT, 0, &mut count).unwrap();
    assert_eq!(names, FILES);
    for number in 0..FILES {
        assert!(read(fs, number).unwrap() == content(number), "file {number} is another one");
    }
}

/// Where the blocks of a tree are.
fn blocks(fs: &Filesystem, tree: u64) -> Vec<u64> {
    let Some(root) = fs.tree(tree).unwrap() else { return Vec::new() };
    let mut all = Vec::new();
    let view = buttress::tree::View::new(&fs.core().blocks, tree, root);
    view.each_block(&mut |at, _| all.push(at)).unwrap();
    all
}

fn used(patient: &Patient) -> u64 {
    patient.volume().superblock().bytes_used.get()
}

/// Zeroes all copies of blocks of a tree: all of them, or the last one.
fn zero(patient: &Patient, tree: u64, all: bool) -> usize {
    let fs = open(patient.device(), Options::read_only()).unwrap();
    let mut blocks = blocks(&fs, tree);
    if !all {
        blocks.drain(..blocks.len().saturating_sub(1));
    }
    blocks.iter().for_each(|at| patient.write(*at, &[0; 4096]).unwrap());
    blocks.len()
}

/// Whether one leaf or all of a tree for space is gone: files are read, and how full it is is told as the superblock says.
#[test]
fn files_are_read_without_the_trees_for_space() {
    for with_tree in [true, false] {
        let healthy = made(with_tree);
        for (tree, all) in SPACE.into_iter().flat_map(|tree| [(tree, false), (tree, true)]) {
            let patient = Patient::of(healthy.device()).unwrap();
            let what = format!("tree {tree}, with_tree {with_tree}, all {all}");
            let lost = zero(&patient, tree, all);
            assert_eq!(lost == 0, tree == SPACE[0] && !with_tree, "{what}");
            if lost == 0 {
                continue;
            }
            let fs = open(patient.device(), Options::read_only()).unwrap();
            assert_whole(&fs);
            let has_groups = tree == if with_tree { SPACE[0] } else { SPACE[1] };
            let writing = open(patient.device(), Options::read_write());
            assert!(writing.is_err() || !(has_groups && all), "{what}");
            let said = fs.warnings().concat();
            let is_said = said.contains("how full block groups are cannot be read (tree block at");
            assert!(is_said || !(has_groups && all), "{what}: {said}");
            assert_eq!(is_said, !said.is_empty(), "{what}: {said}");
            let told = fs.usage().used();
            assert!(told.abs_diff(used(&patient)) <= 8, "{what}: {told}, not {}", used(&patient));
            assert!(fs.usage().stat().total > 0, "{what}");
            // Nothing is given up where the option asks for that.
            drop(fs);
            let fs = open(patient.device(), Options::read_only().ignore_bad_roots(true)).unwrap();
            assert_whole(&fs);
            assert!(fs.warnings().concat().contains(&format!("({tree}) cannot be read")) || !all);
        }
    }
}

/// A group's item that contradicts its chunk is damage as well.
#[test]
fn files_are_read_where_a_block_group_is_wrong() {
    for with_tree in [true, false] {
        let patient = made(with_tree);
        let tree = if with_tree { SPACE[0] } else { SPACE[1] };
        let key = patient.first(tree, kind::BLOCK_GROUP_ITEM).unwrap();
        patient.edit(tree, key, |item: &mut BlockGroupItem| item.flags = 2.into()).unwrap();
        assert!(open(patient.device(), Options::read_write()).is_err());
        let fs = open(patient.device(), Options::read_only()).unwrap();
        assert_whole(&fs);
        assert_eq!(fs.warnings().len(), 1, "{:?}", fs.warnings());
        assert!(fs.usage().used().abs_diff(used(&patient)) <= 8);
    }
}

/// With a tree that has no root item only who asks for it goes on.
#[test]
fn trees_without_root_items() {
    for (tree, name) in [
        (objectid::EXTENT_TREE, "extent tree (2)"),
        (objectid::DEV_TREE, "device tree (4)"),
        (objectid::CSUM_TREE, "checksum tree (7)"),
        (objectid::BLOCK_GROUP_TREE, "block group tree (11)"),
    ] {
        let patient = made(true);
        let key = patient.key(objectid::ROOT_TREE, tree, kind::ROOT_ITEM).unwrap();
        patient.remove(objectid::ROOT_TREE, key).unwrap();
        let error = open(patient.device(), Options::read_only()).unwrap_err().to_string();
        assert!(error.contains("a tree has no root item"), "{error}");
        let fs = open(patient.device(), Options::read_only().ignore_bad_roots(true)).unwrap();
        assert_whole(&fs);
        let said = fs.warnings().concat();
        assert!(said.contains(&format!("the {name} cannot be read")), "{said}");
        assert_eq!(said.contains("not verified"), tree == objectid::CSUM_TREE, "{said}");
    }
}

/// Data whose checksums are gone are not read, and the error says how they are.
#[test]
fn data_without_checksums_are_read_on_request() {
    let patient = made(true);
    // As far as it is there, it is looked at: one leaf more or less is no bad root.
    assert!(zero(&patient, objectid::CSUM_TREE, false) == 1);
    let fs = open(patient.device(), Options::read_only().ignore_bad_roots(true)).unwrap();
    let read_all = |fs: &Filesystem| (0..FILES).map(|number| read(fs, number)).collect::<Vec<_>>();
    let (good, bad): (Vec<_>, Vec<_>) = read_all(&fs).into_iter().partition(Result::is_ok);
    assert!(good.len() > 10 && !bad.is_empty(), "{} {}", good.len(), bad.len());
    let error = bad[0].as_ref().unwrap_err().to_string();
    assert!(error.contains("rescue=ignoredatacsums") && error.contains("checksum"), "{error}");
    let fs = open(patient.device(), Options::read_only().ignore_data_sums(true)).unwrap();
    assert_whole(&fs);
    assert_eq!(fs.warnings(), Vec::<String>::new());

    let patient = made(true);
    let root = patient.root(objectid::CSUM_TREE).unwrap();
    patient.write(root, &[0; 4096]).unwrap();
    let fs = open(patient.device(), Options::read_only()).unwrap();
    assert!(read_all(&fs).iter().all(Result::is_err));
    for options in
        [Options::read_only().ignore_bad_roots(true), Options::read_only().ignore_data_sums(true)]
    {
        assert_whole(&open(patient.device(), options).unwrap());
    }
}

/// Bytes that do not have their checksums come as they are.
#[test]
fn data_that_are_not_what_they_were_are_read_on_request() {
    let patient = made(true);
    let is_data = |key: &Key, _: &[u8]| key.kind == kind::EXTENT_DATA;
    let (_, item) = patient.find(objectid::FS_TREE, is_data).unwrap();
    // Behind 21 bytes an extent's item says where it is.
    let at = u64::from_le_bytes(item[21..29].try_into().unwrap());
    patient.flip(at, 0).unwrap();
    let fs = open(patient.device(), Options::read_only()).unwrap();
    let error = read(&fs, 0).unwrap_err().to_string();
    assert!(error.contains("--rescue ignoredatacsums") && error.contains("checksum 0x"), "{error}");
    let fs = open(patient.device(), Options::read_only().ignore_data_sums(true)).unwrap();
    let (have, was) = (read(&fs, 0).unwrap(), content(0));
    assert_eq!(have.iter().zip(&was).filter(|(one, other)| one != other).count(), 1);
}

/// All blocks of trees that files are read by.
fn blocks_for_files(patient: &Patient) -> Vec<u64> {
    let fs = open(patient.device(), Options::read_only()).unwrap();
    let sb = patient.volume().superblock();
    let all = [objectid::FS_TREE, objectid::CSUM_TREE].map(|tree| blocks(&fs, tree)).concat();
    [&[sb.root.get(), sb.chunk_root.get()], &all[..]].concat()
}

/// Where the first inode item with its number of owner is, in the block at this address.
fn owner_in(patient: &Patient, at: u64) -> usize {
    const UID: usize = 44;
    let block = patient.block(at).unwrap();
    let slot = (0..block.len()).find(|&slot| block.item(slot).0.kind == kind::INODE_ITEM);
    let start = block.item(slot.expect("an inode")).1.as_ptr() as usize;
    start - block.as_bytes().as_ptr() as usize + UID
}

/// A turned bit is shown where it was turned; a block that is well formed but for it is read, in all trees, and only on request.
#[test]
fn blocks_that_do_not_have_their_checksums_are_read_on_request() {
    let patient = made(true);
    let blocks = blocks_for_files(&patient);
    assert!(blocks.len() > 20);
    for at in &blocks {
        let mut bytes = patient.block(*at).unwrap().as_bytes().to_vec();
        bytes[0] ^= 1;
        patient.write(*at, &bytes).unwrap();
    }
    assert!(open(patient.device(), Options::read_only()).is_err());
    let fs = open(patient.device(), Options::read_only().ignore_meta_sums(true)).unwrap();
    assert_whole(&fs);

    // One bit of an owner.
    let patient = made(true);
    let leaf = |block: &u64| {
        let block = patient.block(*block).unwrap();
        block.is_leaf() && block.owner() == objectid::FS_TREE && block.len() > 10
    };
    let leaves: Vec<u64> = blocks_for_files(&patient).into_iter().filter(leaf).collect();
    let (at, good) = (leaves[leaves.len() / 2], open(patient.device(), Options::read_only()));
    let owners = |fs: &Filesystem| {
        let owner = |number: u64| {
            let found = fs.lookup(Node::ROOT, format!("file {number}").as_bytes()).ok()??;
            Some(fs.attributes(found.node).ok()?.uid)
        };
        (0..FILES).filter_map(owner).collect::<Vec<u32>>()
    };
    let good = owners(&good.unwrap());
    let (uid, whole) = (owner_in(&patient, at), patient.block(at).unwrap().as_bytes().to_vec());
    let mut turned = whole.clone();
    turned[uid] ^= 4;
    // As long as there is a copy that has its checksum, it is that one.
    let chunk = patient.volume().chunk_at(at).unwrap();
    let first = chunk.stripes[0].offset + (at - chunk.logical);
    assert_eq!(chunk.stripes.len(), 2);
    patient.device().write_at(first, &turned).unwrap();
    let fs = open(patient.device(), Options::read_only().ignore_meta_sums(true)).unwrap();
    assert_eq!(owners(&fs), good);
    patient.write(at, &turned).unwrap();
    let without = owners(&open(patient.device(), Options::read_only()).unwrap());
    assert!(without.len() < good.len());
    let fs = open(patient.device(), Options::read_only().ignore_meta_sums(true)).unwrap();
    let shown = owners(&fs);
    assert_eq!(shown.len(), good.len());
    assert_eq!(shown.iter().zip(&good).filter(|(one, other)| one != other).count(), 1);

    // What is not well formed is left out, by itself: here nobody's mode.
    const FROM_UID_TO_MODE: usize = 8;
    let mut turned = whole;
    turned[uid + FROM_UID_TO_MODE..][..4].fill(0xff);
    patient.write(at, &turned).unwrap();
    let fs = open(patient.device(), Options::read_only().ignore_meta_sums(true)).unwrap();
    assert_eq!(owners(&fs).len(), good.len() - 1);
}

/// What was left in the middle of a change of the format is read on request.
#[test]
fn unfinished_changes_are_read_on_request() {
    for flag in [super_flags::CHANGING_META_CSUM, super_flags::CHANGING_FSID, 1 << 50] {
        let patient = made(true);
        for at in SUPERBLOCK_OFFSETS.into_iter().filter(|at| *at < patient.device().size()) {
            let mut bytes = [0; SUPERBLOCK_LEN];
            patient.device().read_at(at, &mut bytes).unwrap();
            let sb = Superblock::mut_from_bytes(&mut bytes).unwrap();
            sb.flags = (sb.flags.get() | flag).into();
            let digest = patient.volume().checksum_kind().digest(&bytes[32..]);
            bytes[..32].copy_from_slice(digest.as_field());
            patient.device().write_at(at, &bytes).unwrap();
        }
        let error = open(patient.device(), Options::read_only()).unwrap_err().to_string();
        assert!(error.contains("rescue=ignoresuperflags"), "{error}");
        let fs = open(patient.device(), Options::read_only().ignore_super_flags(true)).unwrap();
        assert_whole(&fs);
    }
}

/// What is for reading refuses to write, whatever state the filesystem is in.
#[test]
fn nobody_writes_without_a_tree() {
    let patient = made(true);
    for (options, word) in [
        (Options::read_write().ignore_bad_roots(true), "ignorebadroots"),
        (Options::read_write().ignore_data_sums(true), "ignoredatacsums"),
        (Options::read_write().ignore_meta_sums(true), "ignoremetacsums"),
        (Options::read_write().ignore_super_flags(true), "ignoresuperflags"),
    ] {
        let error = open(patient.device(), options).unwrap_err().to_string();
        assert!(error.contains(word) && error.contains("-o ro"), "{error}");
    }
}

/// All words together: where the newest commit lacks only what is given up, it is the newest commit that is shown.
#[test]
fn all_words_together_show_the_last_commit() {
    let patient = made(true);
    for tree in SPACE.into_iter().chain([objectid::CSUM_TREE, objectid::UUID_TREE]) {
        let root = patient.root(tree).unwrap();
        patient.write(root, &[0; 4096]).unwrap();
    }
    let all = || {
        let some = Options::read_only().use_backup_root(true).no_log_replay(true);
        some.ignore_bad_roots(true).ignore_data_sums(true).ignore_meta_sums(true)
    };
    let fs = open(patient.device(), all()).unwrap();
    assert_whole(&fs);
    assert_eq!(fs.info().generation, patient.volume().superblock().generation.get());
    // A root item that leads nowhere is no other than a block that is gone.
    let key = patient.key(objectid::ROOT_TREE, objectid::EXTENT_TREE, kind::ROOT_ITEM).unwrap();
    let nowhere = |item: &mut RootItem| item.bytenr = (1_u64 << 60).into();
    patient.edit(objectid::ROOT_TREE, key, nowhere).unwrap();
    assert_whole(&open(patient.device(), all()).unwrap());
}
