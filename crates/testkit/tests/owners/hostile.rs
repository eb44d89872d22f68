//! Extent trees that lie: cycles, levels, counts, references to what does not hold the item. Each ends in an error that says where, and no
//! damage of any other kind ends in anything but an answer or an error.

use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::sync::Arc;

use buttress::device::MemoryDevice;
use buttress::ondisk::item::{ExtentDataRef, ExtentInlineRef, ExtentItem, chunk_type};
use buttress::ondisk::view::{InlineRef, inline_refs};
use buttress::ondisk::{Key, kind, objectid};
use buttress::refs::owners::{Asker, Committed, Known, Owners};
use buttress::{Errno, Filesystem, New, Node, Options, WantedReferrers, fiemap_flags};
use buttress_testkit::damage::mutation::{Census, mutate};
use buttress_testkit::damage::{Base, Patient, kinds};
use buttress_testkit::ops::rng::Rng;
use buttress_testkit::oracle::root_or_skip;

const EXTENTS: u64 = objectid::EXTENT_TREE;
/// Where the first inline reference starts.
const HEAD: usize = size_of::<ExtentItem>();

fn open(device: &Arc<MemoryDevice>) -> buttress::Result<Filesystem> {
    Filesystem::open_device(device.clone(), Options::read_only().background(false))
}

fn with_owners<T>(fs: &Filesystem, ask: impl FnOnce(&mut Owners<'_>) -> T) -> T {
    let roots = fs.core().roots();
    let committed = Committed { root: roots.root, chunk: roots.chunk, extent: roots.extent };
    let mut known = Known::new(1 << 20);
    ask(&mut Owners::new(&fs.core().blocks, committed, &mut known))
}

/// A file of several extents, in a tree of two levels, below a snapshot or not; the file's extent and its leaf.
struct Made {
    patient: Patient,
    file: Node,
    /// A file whose content is in its item.
    small: Node,
    extent: u64,
    leaf: u64,
}

fn made(snapshot: bool) -> Made {
    let device = Arc::new(MemoryDevice::new(512 << 20));
    let options = buttress_mkfs::Options { nodesize: Some(4096), ..Default::default() };
    let mut seed = buttress_mkfs::Environment::seeded(1);
    buttress_mkfs::make(&*device, &options, &mut seed).unwrap();
    let options = Options::read_write().background(false);
    let fs = Filesystem::open_device(device.clone(), options).unwrap();
    let file = fs.create(Node::ROOT, b"file", &New::file(0o644)).unwrap().node;
    for number in 0..200 {
        fs.write(file, number * 8192, &[7; 4096]).unwrap();
        // Names between them, for more leaves.
        let name = format!("file{number}");
        fs.create(Node::ROOT, name.as_bytes(), &New::file(0o644)).unwrap();
    }
    let small = fs.create(Node::ROOT, b"small", &New::file(0o644)).unwrap().node;
    fs.write(small, 0, &[7; 100]).unwrap();
    if snapshot {
        fs.snapshot(5, Node::ROOT, b"snapshot", false).unwrap();
    }
    fs.close().unwrap();
    let patient = Patient::of(&device).unwrap();
    let extent = open(patient.device()).unwrap().fiemap(file, 0..1).unwrap().next().unwrap();
    let key = Key::new(file.ino, kind::EXTENT_DATA, 0);
    let leaf = patient.path(5, &key).unwrap().last().unwrap().block.bytenr();
    Made { patient, file, small, extent: extent.unwrap().physical, leaf }
}

impl Made {
    fn item_of(&self, at: u64) -> Key {
        let is_item = |key: &Key| matches!(key.kind, kind::EXTENT_ITEM | kind::METADATA_ITEM);
        self.patient.find(EXTENTS, |key, _| key.objectid == at && is_item(key)).unwrap().0
    }

    /// Makes the first reference of an extent one by another block or tree.
    fn refer(&self, at: u64, by: u8, owner: u64) {
        let edit = |it: &mut ExtentInlineRef| (it.kind, it.offset) = (by, owner.into());
        self.patient.edit_at(EXTENTS, self.item_of(at), HEAD, edit).unwrap();
    }

    /// What fiemap says, and the resolver to each question.
    fn errors(&self) -> [String; 3] {
        let fs = open(self.patient.device()).unwrap();
        let fiemap: Result<Vec<_>, _> =
            fs.fiemap(self.file, 0..u64::MAX).and_then(Iterator::collect);
        let said = fiemap.map_or_else(|error| error.to_string(), |_| String::new());
        let text =
            |result: buttress::Result<()>| result.err().map_or(String::new(), |it| it.to_string());
        with_owners(&fs, |owners| {
            let trees = text(owners.trees_of(self.extent).map(drop));
            [said, trees, text(owners.each_place(self.extent, |_| ControlFlow::Continue(())))]
        })
    }

    fn all_say(&self, what: &str, at: u64) {
        for said in self.errors() {
            assert!(said.contains(what) && said.contains(&at.to_string()), "{what}, {at}: {said}");
        }
    }
}

#[test]
fn a_block_that_refers_to_itself_is_refused() {
    let made = made(false);
    made.refer(made.leaf, kind::SHARED_BLOCK_REF, made.leaf);
    made.all_say("not one level above", made.leaf);
}

/// Nobody else reaches what is in the item itself, so nobody is asked.
#[test]
fn what_is_in_its_item_is_told_whatever_refers_to_the_leaf() {
    let made = made(false);
    let key = Key::new(made.small.ino, kind::EXTENT_DATA, 0);
    let leaf = made.patient.path(5, &key).unwrap().last().unwrap().block.bytenr();
    made.refer(leaf, kind::TREE_BLOCK_REF, 4242);
    let fs = open(made.patient.device()).unwrap();
    let all: Vec<_> = fs.fiemap(made.small, 0..u64::MAX).unwrap().map(Result::unwrap).collect();
    assert!(all.len() == 1 && all[0].flags & fiemap_flags::INLINE != 0, "{all:?}");
}

/// A commit writes the superblock's chunks anew: where the chunk tree says otherwise, nobody could open what it writes.
#[test]
fn a_chunk_tree_that_contradicts_the_superblock_is_not_written_by() {
    let made = made(false);
    let is_system = |key: &Key, data: &[u8]| {
        key.kind == kind::CHUNK_ITEM && data[24] & chunk_type::SYSTEM as u8 != 0
    };
    let (key, data) = made.patient.find(objectid::CHUNK_TREE, is_system).unwrap();
    made.patient
        .rewrite(objectid::CHUNK_TREE, key, |item| {
            let last = data.len() - 1;
            item[last] ^= 1;
        })
        .unwrap();
    open(made.patient.device()).unwrap();
    let options = Options::read_write().background(false);
    let why = Filesystem::open_device(made.patient.device().clone(), options).unwrap_err();
    assert!(why.to_string().contains("contradicts the superblock"), "{why}");
}

/// Where one item of a file is damaged, what lies before it is told, and then what is wrong.
#[test]
fn what_lies_before_a_damaged_item_is_told() {
    for number in [0, 1, 77, 199] {
        let made = made(false);
        let key = Key::new(made.file.ino, kind::EXTENT_DATA, number * 8192);
        // No kind of extent.
        made.patient.rewrite(5, key, |data| data[20] = 77).unwrap();
        let fs = open(made.patient.device()).unwrap();
        let mut all: Vec<_> = fs.fiemap(made.file, 0..u64::MAX).unwrap().collect();
        let why = all.pop().unwrap().unwrap_err().to_string();
        assert!(why.contains("invalid file extent type"), "{why}");
        let found: Vec<u64> = all.into_iter().map(|one| one.unwrap().logical).collect();
        assert_eq!(found, (0..number).map(|number| number * 8192).collect::<Vec<_>>());
    }
}

#[test]
fn a_way_up_that_leads_down_is_refused() {
    let made = made(false);
    let fs = open(made.patient.device()).unwrap();
    let root = fs.tree(5).unwrap().unwrap();
    assert!(root.level > 0);
    drop(fs);
    // From the leaf to the root, and from there to the leaf again.
    made.refer(made.leaf, kind::SHARED_BLOCK_REF, root.bytenr);
    made.refer(root.bytenr, kind::SHARED_BLOCK_REF, made.leaf);
    let wanted = if root.level == 1 { made.leaf } else { root.bytenr };
    made.all_say("not one level above", wanted);
}

#[test]
fn a_parent_that_is_data_is_refused() {
    let made = made(false);
    made.refer(made.leaf, kind::SHARED_BLOCK_REF, made.extent);
    made.all_say("data where a tree block should be", made.extent);
}

#[test]
fn a_parent_that_is_nowhere_is_refused() {
    let made = made(false);
    made.refer(made.leaf, kind::SHARED_BLOCK_REF, 1 << 40);
    made.all_say("no extent item", 1 << 40);
}

#[test]
fn a_tree_that_does_not_lead_there_is_refused() {
    let made = made(false);
    made.refer(made.leaf, kind::TREE_BLOCK_REF, objectid::UUID_TREE);
    made.all_say("does not lead to a block", made.leaf);
}

#[test]
fn a_tree_that_is_not_there_is_refused() {
    let made = made(false);
    made.refer(made.leaf, kind::TREE_BLOCK_REF, 777);
    made.all_say("no root item", 777);
}

/// The yes/no question asks nobody how many there are; who reads all references does.
#[test]
fn counts_that_lie_are_refused() {
    let made = made(false);
    let edit = |it: &mut ExtentItem| it.refs = 5.into();
    made.patient.edit(EXTENTS, made.item_of(made.extent), edit).unwrap();
    made.all_say("as many references as it says", made.extent);
}

#[test]
fn a_file_that_does_not_refer_so_often_is_refused() {
    let made = made(false);
    let item = made.item_of(made.extent);
    made.patient.edit(EXTENTS, item, |it: &mut ExtentItem| it.refs = 2.into()).unwrap();
    let twice = |it: &mut ExtentDataRef| it.count = 2.into();
    made.patient.edit_at(EXTENTS, item, HEAD + 1, twice).unwrap();
    made.all_say("as often as the extent tree says", made.extent);
}

/// A leaf with references by its address: it is the snapshot's when the source has changed its own.
#[test]
fn a_leaf_that_does_not_hold_the_item_is_refused() {
    let made = made(true);
    let fs = Filesystem::open_device(
        made.patient.device().clone(),
        Options::read_write().background(false),
    )
    .unwrap();
    fs.write(made.file, 0, &[8; 4096]).unwrap();
    fs.close().unwrap();
    let patient = Patient::of(made.patient.device()).unwrap();
    let shared = |key: &Key, data: &[u8]| {
        let (.., mut refs) = inline_refs(key, data)?;
        match refs.next()? {
            InlineRef::SharedData { parent, .. } if key.kind == kind::EXTENT_ITEM => Some(parent),
            _ => None,
        }
    };
    let (key, data) = patient.find(EXTENTS, |key, data| shared(key, data).is_some()).unwrap();
    let parent = shared(&key, &data).unwrap();
    // Another leaf, which is there and has nothing of it.
    let other = with_owners(&open(patient.device()).unwrap(), |owners| {
        let root = owners.tree(objectid::FS_TREE).unwrap().root_block().unwrap();
        (0..root.len()).map(|slot| root.child(slot).bytenr).find(|at| *at != parent).unwrap()
    });
    assert_eq!(patient.block(other).unwrap().level(), 0);
    let edit = |it: &mut ExtentInlineRef| it.offset = other.into();
    patient.edit_at(EXTENTS, key, HEAD, edit).unwrap();
    let fs = open(patient.device()).unwrap();
    let ask =
        |owners: &mut Owners<'_>| owners.each_place(key.objectid, |_| ControlFlow::Continue(()));
    let said = with_owners(&fs, ask).unwrap_err().to_string();
    assert!(
        said.contains("a leaf does not refer to an extent") && said.contains(&other.to_string())
    );
}

/// Asks everything there is to ask. Answers and errors are both fine.
fn ask_all(device: &Arc<MemoryDevice>) -> [usize; 2] {
    let (mut answers, mut errors) = (0, 0);
    let Ok(fs) = open(device) else { return [0, 1] };
    let mut note = |fine: bool| if fine { answers += 1 } else { errors += 1 };
    let mut extents = BTreeSet::new();
    let _ = fs.search(EXTENTS, Key::MIN, Key::MAX, |key, _, data| {
        extents.insert(key.objectid);
        if let Some((.., refs)) = inline_refs(&key, data).filter(|_| key.kind == kind::EXTENT_ITEM)
        {
            extents.extend(refs.take(4).map(|one| one.rank() / 4096 * 4096));
        }
        extents.len() < 3000
    });
    with_owners(&fs, |owners| {
        for at in &extents {
            let asker = Asker { tree: 5, ino: 257, leaf: None };
            note(owners.is_shared(*at, &asker).is_ok());
            note(owners.only_tree_of(*at).is_ok());
            note(owners.trees_of(*at).is_ok());
            note(owners.each_place(*at, |_| ControlFlow::Continue(())).is_ok());
        }
    });
    for at in &extents {
        for whole in [false, true] {
            let wanted = WantedReferrers { logical: *at + 1, whole, most: 1000 };
            note(fs.referrers(wanted).is_ok());
        }
    }
    note(fs.subvolume_costs(|_| true).is_ok());
    for subvolume in fs.subvolumes().unwrap_or_default() {
        for ino in 256..400 {
            let node = Node { subvolume: subvolume.id, ino };
            note(
                fs.fiemap(node, 0..u64::MAX)
                    .is_ok_and(|all| all.take(10_000).all(|one| one.is_ok())),
            );
        }
    }
    [answers, errors]
}

/// An extent that many leaves refer to, each of which other snapshots reach: what its address is, and that of one which one leaf refers to.
fn tangled() -> (Filesystem, [u64; 2]) {
    let device = Arc::new(MemoryDevice::new(1 << 30));
    let options = buttress_mkfs::Options { nodesize: Some(4096), ..Default::default() };
    buttress_mkfs::make(&*device, &options, &mut buttress_mkfs::Environment::seeded(1)).unwrap();
    let fs = Filesystem::open_device(device, Options::read_write().background(false)).unwrap();
    let file = |name: &[u8]| fs.create(Node::ROOT, name, &New::file(0o644)).unwrap().node;
    let [one, many, other] = [&b"one"[..], b"many", b"other"].map(file);
    fs.write(one, 0, &[7; 4096]).unwrap();
    fs.write(other, 0, &[7; 4096]).unwrap();
    for number in 0..3000 {
        fs.clone_range(one, 0, 4096, many, number * 8192).unwrap();
    }
    let mut rng = Rng::new(1);
    for number in 0..24 {
        fs.snapshot(5, Node::ROOT, format!("snapshot{number}").as_bytes(), false).unwrap();
        for _ in 0..20 {
            fs.write(many, rng.below(3000) * 8192, &[number; 4096]).unwrap();
        }
    }
    fs.commit().unwrap();
    let at = |node| fs.fiemap(node, 0..1).unwrap().next().unwrap().unwrap().physical;
    let addresses = [at(one), at(other)];
    (fs, addresses)
}

/// Which trees share what may be made up in as many ways as there are blocks: that is bounded, and said.
#[test]
fn more_sets_of_trees_than_there_is_memory_for_are_refused() {
    let (fs, [tangled, plain]) = tangled();
    let roots = fs.core().roots();
    let committed = Committed { root: roots.root, chunk: roots.chunk, extent: roots.extent };
    let ask = |known: &mut Known, at| {
        let mut owners = Owners::new(&fs.core().blocks, committed, known);
        let found = owners.trees_of(at);
        found.map(|set| known.sets().len(set))
    };
    let mut roomy = Known::new(1 << 20);
    assert_eq!(ask(&mut roomy, tangled).unwrap(), 25);
    // About half of what these take.
    let most = 12 << 10;
    let mut known = Known::within(0, most);
    let error = ask(&mut known, tangled).unwrap_err();
    assert_eq!(error.errno(), Errno::NOMEM);
    let said = error.to_string();
    assert!(said.contains("who reaches an extent (block ") && said.contains("memory="), "{said}");
    assert!(known.bytes() < 2 * most, "{}", known.bytes());
    // What takes less has its answer, also after that.
    assert_eq!(ask(&mut known, plain).unwrap(), 25);
}

#[test]
fn no_damage_ends_in_anything_but_answers_and_errors() {
    if !root_or_skip() {
        return;
    }
    let mut bases = std::collections::BTreeMap::new();
    let mut sums = [0; 2];
    for kind in kinds() {
        let healthy =
            bases.entry(format!("{:?}", kind.base)).or_insert_with(|| kind.base.make().unwrap());
        let patient = Patient::of(healthy).unwrap();
        (kind.make)(&patient).unwrap();
        let found = ask_all(patient.device());
        sums = [sums[0] + found[0], sums[1] + found[1]];
    }
    let count = crate::number("BUTTRESS_MUTATIONS", 300, 20_000);
    // Nodes of 4 KiB, blocks shared below the root, references in items of their own.
    let healthy = [Base::Main, Base::Deep].map(|base| base.make().unwrap());
    let census = healthy.each_ref().map(|it| Census::of(&Patient::of(it).unwrap()).unwrap());
    for seed in 0..count {
        let base = seed as usize % 2;
        let patient = Patient::of(&healthy[base]).unwrap();
        let mut rng = Rng::new(seed);
        if mutate(&patient, &census[base], &mut rng).unwrap().is_some() {
            let found = ask_all(patient.device());
            sums = [sums[0] + found[0], sums[1] + found[1]];
        }
    }
    println!("answers and errors: {sums:?}");
    assert!(sums.iter().all(|sum| *sum > 1000), "{sums:?}");
}
