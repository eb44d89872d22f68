//! Leavings of a balance that somebody has made up: what cannot be believed stays and is said, nothing else is lost, and nobody panics.

use std::sync::Arc;

use buttress::{Filesystem, Node, Options, Owner};
use buttress_device::MemoryDevice;
use buttress_ondisk::item::{InodeItem, RootItem};
use buttress_ondisk::{Key, SECTOR, kind, objectid};
use buttress_testkit::damage::Patient;
use buttress_testkit::facts::{Facts, facts_of_library};
use buttress_testkit::oracle::{root_or_skip, skip};

use crate::crash::caught;
use crate::judge::Failed;

const ROOTS: u64 = objectid::ROOT_TREE;
const DATA: u64 = objectid::DATA_RELOC_TREE;
const SUBVOLUME: u64 = objectid::FIRST_FREE;
/// Where the address is in an `EXTENT_DATA` item that is not inline.
const ADDRESS: std::ops::Range<usize> = 21..29;
/// Where the first child pointer of a node has its address.
const CHILD: std::ops::Range<usize> = 101 + 17..101 + 25;

type Edit = fn(&Patient) -> Result<(), Failed>;

/// What comes of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Comes {
    /// It goes like any other.
    Goes,
    /// It stays, and that is said; all else goes on.
    Stays,
    /// A commit may fail, with nothing written.
    MayFail,
}

/// The key of a relocation tree that is not of the top-level subvolume.
fn tree(p: &Patient) -> Result<Key, Failed> {
    let is_it = |key: &Key, _: &[u8]| {
        (key.objectid, key.kind) == (objectid::TREE_RELOC, kind::ROOT_ITEM)
            && key.offset >= objectid::FIRST_FREE
    };
    Ok(p.find(ROOTS, is_it)?.0)
}

fn item(p: &Patient, key: Key) -> Result<RootItem, Failed> {
    let (_, data) = p.find(ROOTS, |other, _| *other == key)?;
    Ok(RootItem::read(&data).ok_or("a short root item")?)
}

fn point(p: &Patient, to: &RootItem) -> Result<(), Failed> {
    let (bytenr, generation, level) = (to.bytenr, to.generation, to.level);
    Ok(p.edit(ROOTS, tree(p)?, |it: &mut RootItem| {
        (it.bytenr, it.generation, it.level) = (bytenr, generation, level);
    })?)
}

fn subvolume(p: &Patient) -> Result<RootItem, Failed> {
    let key = p.key(ROOTS, SUBVOLUME, kind::ROOT_ITEM)?;
    item(p, key)
}

/// The address of the first block behind another one, and some, that nothing has.
fn free_behind(p: &Patient, bytenr: u64) -> u64 {
    let kinds = [kind::METADATA_ITEM, kind::EXTENT_ITEM];
    let is_of = |key: &Key, at: u64| key.objectid == at && kinds.contains(&key.kind);
    let has_item = |at: u64| p.find(objectid::EXTENT_TREE, |key, _| is_of(key, at)).is_ok();
    (8..).map(|n| bytenr + n * 4096).find(|at| !has_item(*at)).unwrap_or(bytenr)
}

/// The root of the relocation tree has this address as its first child.
fn lead(p: &Patient, to: u64) -> Result<(), Failed> {
    let root = item(p, tree(p)?)?;
    if root.level == 0 {
        return Err("the tree is one leaf".into());
    }
    Ok(p.edit_block(root.bytenr.get(), |bytes| {
        bytes[CHILD].copy_from_slice(&to.to_le_bytes());
    })?)
}

/// The file of relocated data.
fn file(p: &Patient) -> Result<Key, Failed> {
    Ok(p.find(DATA, |key, _| key.kind == kind::INODE_ITEM && key.objectid > 256)?.0)
}

/// An extent of it lies elsewhere.
fn lie(p: &Patient, to: u64) -> Result<(), Failed> {
    let Ok(key) = p.first(DATA, kind::EXTENT_DATA) else { return Ok(()) };
    Ok(p.rewrite(DATA, key, |data| data[ADDRESS].copy_from_slice(&to.to_le_bytes()))?)
}

const CASES: [(&str, Comes, Edit); 14] = [
    ("nothing is made up", Comes::Goes, |_| Ok(())),
    ("the root is nowhere", Comes::Stays, |p| {
        Ok(p.edit(ROOTS, tree(p)?, |it: &mut RootItem| it.bytenr = (1 << 40).into())?)
    }),
    ("the root is free space", Comes::Stays, |p| {
        let at = free_behind(p, item(p, tree(p)?)?.bytenr.get());
        Ok(p.edit(ROOTS, tree(p)?, |it: &mut RootItem| it.bytenr = at.into())?)
    }),
    ("the root is a subvolume's", Comes::Stays, |p| point(p, &subvolume(p)?)),
    ("the root is of the extent tree", Comes::Stays, |p| {
        let key = p.key(ROOTS, objectid::EXTENT_TREE, kind::ROOT_ITEM)?;
        point(p, &item(p, key)?)
    }),
    ("the root has another generation", Comes::Stays, |p| {
        Ok(p.edit(ROOTS, tree(p)?, |it: &mut RootItem| it.generation = 1.into())?)
    }),
    ("a child is the root", Comes::Stays, |p| lead(p, item(p, tree(p)?)?.bytenr.get())),
    ("a child is a subvolume's root", Comes::Stays, |p| lead(p, subvolume(p)?.bytenr.get())),
    ("a tree of no subvolume", Comes::Goes, |p| {
        let key = tree(p)?;
        Ok(p.rekey(ROOTS, key, Key { offset: 99_999, ..key })?)
    }),
    ("it is dropped to behind its end", Comes::MayFail, |p| {
        Ok(p.edit(ROOTS, tree(p)?, |it: &mut RootItem| {
            it.refs = 0.into();
            (it.drop_progress, it.drop_level) = (Key::new(u64::MAX - 1, 1, 0).into(), 0);
        })?)
    }),
    ("a file of relocated data has what is a subvolume's", Comes::MayFail, |p| {
        let (_, data) =
            p.find(SUBVOLUME, |key, data| key.kind == kind::EXTENT_DATA && data.len() > 40)?;
        lie(p, u64::from_le_bytes(data[ADDRESS].try_into()?))
    }),
    ("a file of relocated data has what is nowhere", Comes::MayFail, |p| lie(p, 1 << 40)),
    ("a file of relocated data is odd", Comes::MayFail, |p| {
        Ok(p.edit(DATA, file(p)?, |it: &mut InodeItem| {
            (it.size, it.nbytes) = ((1 << 60).into(), (u64::MAX - SECTOR).into());
        })?)
    }),
    ("files that are not there wait", Comes::Goes, |p| {
        for ino in [300, 1 << 40, u64::MAX - 1] {
            p.insert(DATA, Key::new(objectid::ORPHAN, kind::ORPHAN_ITEM, ino), &[])?;
        }
        Ok(())
    }),
];

/// Opens it, writes, and waits until all is gone that can go.
fn look(device: &Arc<MemoryDevice>, comes: Comes, expect: &Facts) -> Result<(), Failed> {
    let fs = Filesystem::open_device(device.clone(), Options::read_only())?;
    if facts_of_library(&fs)? != *expect {
        return Err("reading shows something else".into());
    }
    drop(fs);
    let options = Options::read_write().background(false).drop_blocks_max(32);
    let fs = match Filesystem::open_device(device.clone(), options) {
        Ok(fs) => fs,
        Err(_) if comes == Comes::MayFail => return Ok(()),
        Err(error) => return Err(error.into()),
    };
    let cleaned = fs.clean();
    let made = fs.create_subvolume(Node::ROOT, b"after", Owner::default());
    let committed = made.and_then(|_| fs.commit());
    match comes {
        Comes::MayFail if fs.is_read_only() => {}
        Comes::MayFail => drop(committed?),
        Comes::Goes => {
            cleaned?;
            committed?;
            if fs.has_leavings() || !fs.warnings().is_empty() {
                return Err(format!("{:?}", fs.warnings()).into());
            }
        }
        Comes::Stays => {
            committed?;
            let told =
                fs.warnings().iter().any(|it| it.contains("the relocation tree that a balance"));
            if cleaned.is_ok() || !told {
                return Err(format!("cleaned: {cleaned:?}, {:?}", fs.warnings()).into());
            }
        }
    }
    drop(fs);
    let fs = Filesystem::open_device(device.clone(), Options::read_only())?;
    let mut have = facts_of_library(&fs)?;
    have.paths.retain(|path, _| path != b"after" && !path.is_empty());
    let mut expect = expect.clone();
    expect.paths.retain(|path, _| !path.is_empty());
    if have == expect { Ok(()) } else { Err("something else has changed".into()) }
}

#[test]
fn what_cannot_be_believed_stays() {
    if !root_or_skip() {
        return;
    }
    let Some((base, _)) = caught(5) else {
        return skip("each balance ended before a copy had a relocation tree");
    };
    let fs = Filesystem::open_device(Arc::new(base.snapshot()), Options::read_only()).unwrap();
    let expect = facts_of_library(&fs).unwrap();
    let mut failed = Vec::new();
    for (name, comes, edit) in CASES {
        let patient = Patient::of(&base).unwrap();
        if let Err(error) = edit(&patient).and_then(|()| look(patient.device(), comes, &expect)) {
            failed.push(format!("{name}: {error}"));
        }
    }
    assert!(failed.is_empty(), "{} of {}:\n{}", failed.len(), CASES.len(), failed.join("\n"));
}
