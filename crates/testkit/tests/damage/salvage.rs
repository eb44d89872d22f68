//! What is left of a directory when any one leaf of its tree is gone: each name that the leaf did not have in both its places, the
//! content of each file whose items it did not have, and subvolumes, whose names the root tree has besides.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use buttress::ondisk::view::dir_entries;
use buttress::ondisk::{Key, TreeBlock, kind, objectid};
use buttress::{Entry, FileKind, Filesystem, New, Node, Options, Owner};
use buttress_device::MemoryDevice;
use buttress_testkit::damage::{Patient, TOP};

/// Files of each directory; their names are in some leaves of small nodes.
const FILES: u64 = 300;
const DIRECTORIES: [&str; 3] = ["first", "second", "third"];

fn make() -> MemoryDevice {
    let device = Arc::new(MemoryDevice::new(256 << 20));
    let mut seed = buttress_mkfs::Environment::seeded(1);
    let small = buttress_mkfs::Options { nodesize: Some(4096), ..Default::default() };
    buttress_mkfs::make(&*device, &small, &mut seed).unwrap();
    let options = Options::read_write().background(false);
    let fs = Filesystem::open_device(device.clone(), options).unwrap();
    for name in DIRECTORIES {
        fs.create(Node::ROOT, name.as_bytes(), &New::directory(0o755)).unwrap();
        for number in 0..FILES {
            let file = fs.create_file(format!("/{name}/{name} {number}"), 0o644).unwrap();
            file.write_at(number.to_string().as_bytes(), 0).unwrap();
        }
    }
    let sub = fs.create_subvolume(Node::ROOT, b"sub", Owner::default()).unwrap();
    fs.create(Node::top(sub), b"inside", &New::file(0o644)).unwrap();
    fs.close().unwrap();
    device.snapshot()
}

/// All leaves of the top tree.
fn leaves(patient: &Patient) -> Vec<TreeBlock> {
    let (mut waiting, mut leaves) = (vec![patient.root(TOP).unwrap()], Vec::new());
    while let Some(at) = waiting.pop() {
        let block = patient.block(at).unwrap();
        match block.is_leaf() {
            true => leaves.push(block),
            false => waiting.extend((0..block.len()).map(|slot| block.child(slot).bytenr)),
        }
    }
    leaves
}

/// What goes with a leaf: names that it has by index and by hash, and inodes of which it has something.
fn gone(leaf: &TreeBlock) -> (BTreeSet<Vec<u8>>, BTreeSet<u64>) {
    let mut names = BTreeMap::<Vec<u8>, BTreeSet<u8>>::new();
    let mut inodes = BTreeSet::new();
    for slot in 0..leaf.len() {
        let Key { objectid, kind, .. } = leaf.key(slot);
        match kind {
            kind::DIR_INDEX | kind::DIR_ITEM => dir_entries(leaf.data(slot)).for_each(|entry| {
                names.entry(entry.name.to_vec()).or_default().insert(kind);
            }),
            _ => drop(inodes.insert(objectid)),
        }
    }
    (
        names.into_iter().filter(|(_, kinds)| kinds.len() == 2).map(|(name, _)| name).collect(),
        inodes,
    )
}

fn list(fs: &Filesystem, dir: Node) -> BTreeMap<Vec<u8>, Entry> {
    let mut found = BTreeMap::new();
    let listed = fs.read_dir_past(dir, &mut |_| {}, &mut |entry| {
        let before = found.insert(entry.name.clone(), entry);
        assert!(before.is_none(), "{before:?} twice");
        true
    });
    listed.unwrap();
    found
}

#[test]
fn a_leaf_that_is_gone_takes_what_only_it_had() {
    let healthy = make();
    let patient = Patient::of(&healthy).unwrap();
    let leaves = leaves(&patient);
    assert!(leaves.len() > 50, "{}", leaves.len());
    for leaf in &leaves {
        let (names, inodes) = gone(leaf);
        let patient = Patient::of(&healthy).unwrap();
        patient.write(leaf.bytenr(), &[0; 4096]).unwrap();
        let options = Options::read_only().ignore_bad_roots(true);
        let fs = Filesystem::open_device(patient.device().clone(), options).unwrap();
        let top = list(&fs, Node::ROOT);
        // The root tree has the name of the subvolume, whatever becomes of the others.
        assert!(fs.resolve("/sub/inside").is_ok() && top[&b"sub"[..]].kind == FileKind::Directory);
        for directory in DIRECTORIES.iter().filter(|name| !names.contains(name.as_bytes())) {
            let node = fs.resolve(format!("/{directory}")).unwrap();
            assert_eq!(top[directory.as_bytes()].node, node);
            let found = list(&fs, node);
            for number in 0..FILES {
                let name = format!("{directory} {number}");
                let Some(entry) = found.get(name.as_bytes()) else {
                    assert!(names.contains(name.as_bytes()), "{name} of {}", leaf.bytenr());
                    continue;
                };
                assert_eq!(fs.resolve(format!("/{directory}/{name}")).unwrap(), entry.node);
                let mut content = [0; 8];
                match fs.read(entry.node, 0, &mut content) {
                    Ok(len) => assert_eq!(content[..len], *number.to_string().as_bytes()),
                    Err(error) => assert!(inodes.contains(&entry.node.ino), "{name}: {error}"),
                }
            }
        }
    }
}

/// Commits change the trees of checksums and of uuids, and nothing reads them before.
#[test]
fn nothing_is_written_where_changes_would_fail() {
    let healthy = make();
    for tree in [objectid::CSUM_TREE, objectid::UUID_TREE] {
        let patient = Patient::of(&healthy).unwrap();
        patient.write(patient.root(tree).unwrap(), &[0; 4096]).unwrap();
        let open = |options: Options| Filesystem::open_device(patient.device().clone(), options);
        let refused = open(Options::read_write()).map(drop).unwrap_err();
        assert!(refused.is_damage(), "{refused}");
        let fs = open(Options::read_only()).unwrap();
        assert_eq!(list(&fs, fs.resolve("/first").unwrap()).len() as u64, FILES);
    }
}
