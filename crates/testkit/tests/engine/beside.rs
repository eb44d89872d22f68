//! A bad item of a leaf costs a reader that item: what lies beside it is read, what is damaged is an error where somebody comes to it,
//! and never absent. Linux loses the leaf; so does whoever would write.

use std::collections::BTreeSet;
use std::sync::Arc;

use buttress::device::MemoryDevice;
use buttress::ondisk::item::{DirItem, FileExtent, InodeItem, RootItem, RootRef};
use buttress::ondisk::{Key, kind, objectid};
use buttress::{Filesystem, New, Node, Options, Owner, SetXattr};
use buttress_testkit::damage::{DamageError, Patient, TOP};
use buttress_testkit::oracle::{KernelMount, root_or_skip, temp_dir};

const ROOTS: u64 = objectid::ROOT_TREE;
const XATTR: &[u8] = b"user.name";

/// A filesystem of our own in memory: all of a tree is in one leaf.
fn made() -> Patient {
    let device = Arc::new(MemoryDevice::new(512 << 20));
    let mut seed = buttress_mkfs::Environment::seeded(1);
    buttress_mkfs::make(&*device, &buttress_mkfs::Options::default(), &mut seed).unwrap();
    let options = Options::read_write().background(false);
    let fs = Filesystem::open_device(device.clone(), options).unwrap();
    let dir = fs.create(Node::ROOT, b"dir", &New::directory(0o755)).unwrap().node;
    for name in ["one", "two", "three"] {
        let node = fs.create(dir, name.as_bytes(), &New::file(0o644)).unwrap().node;
        fs.write(node, 0, name.as_bytes()).unwrap();
    }
    let file = fs.create(Node::ROOT, b"file", &New::file(0o644)).unwrap().node;
    fs.set_xattr(file, XATTR, b"value", SetXattr::Any).unwrap();
    for at in 0..3 {
        fs.write(file, at * 8192, &[7; 4096]).unwrap();
    }
    for name in ["sub", "other"] {
        let id = fs.create_subvolume(Node::ROOT, name.as_bytes(), Owner::default()).unwrap();
        fs.create(Node::top(id), b"inside", &New::file(0o644)).unwrap();
    }
    fs.close().unwrap();
    Patient::of(&device).unwrap()
}

/// A reader of what is damaged so.
struct Reader {
    patient: Patient,
    fs: Filesystem,
}

impl Reader {
    fn of(damage: impl FnOnce(&Patient) -> Result<(), DamageError>) -> Reader {
        let patient = made();
        damage(&patient).unwrap();
        let fs = Filesystem::open_device(patient.device().clone(), Options::read_only()).unwrap();
        Reader { patient, fs }
    }

    fn node(&self, path: &[&str]) -> Node {
        let step = |dir, name: &&str| self.fs.lookup(dir, name.as_bytes()).unwrap().unwrap().node;
        path.iter().fold(Node::ROOT, step)
    }

    /// Where a file's data can be read, of the first of each 8192 bytes.
    fn readable(&self) -> Vec<bool> {
        let (file, mut byte) = (self.node(&["file"]), [0]);
        (0..3).map(|at| self.fs.read(file, at * 8192, &mut byte).is_ok() && byte == [7]).collect()
    }

    /// The names in a directory, and what was passed over.
    fn names(&self, dir: Node) -> (Vec<String>, Vec<String>) {
        let (mut names, mut passed) = (Vec::new(), Vec::new());
        let mut each = |entry: buttress::Entry| {
            names.push(String::from_utf8(entry.name).unwrap());
            true
        };
        self.fs.read_dir_past(dir, &mut |why| passed.push(why.to_string()), &mut each).unwrap();
        (names, passed)
    }

    fn subvolumes(&self) -> (Vec<Vec<u8>>, Vec<String>) {
        let mut passed = Vec::new();
        let all = self.fs.subvolumes_past(&mut |why| passed.push(why.to_string())).unwrap();
        (all.into_iter().map(|it| it.name).collect(), passed)
    }

    /// Whatever is not damaged is there, an error says where the bad item is, Linux reads no more, and nobody writes.
    fn end(self, errors: &[String], key: &Key, tree: u64) {
        let path = self.patient.path(tree, key).unwrap();
        let step = path.last().unwrap();
        let place = format!("block={} slot={}", step.block.bytenr(), step.slot);
        assert!(!errors.is_empty() && errors.iter().all(|it| it.contains(&place)), "{errors:?}");
        for name in ["one", "two", "three"] {
            let Ok(Some(entry)) = self.fs.lookup(self.node(&["dir"]), name.as_bytes()) else {
                continue;
            };
            let mut content = [0; 9];
            if let Ok(len) = self.fs.read(entry.node, 0, &mut content) {
                assert_eq!(&content[..len], name.as_bytes());
            }
        }
        let write = Options::read_write().background(false);
        if let Ok(fs) = Filesystem::open_device(self.patient.device().clone(), write) {
            let sub = fs.lookup(Node::ROOT, b"sub").map(|_| ());
            let made =
                sub.and_then(|()| fs.create(Node::ROOT, b"new", &New::file(0o644)).map(drop));
            let done = made.and_then(|()| fs.commit().map(drop));
            assert!(done.is_err(), "{key}: written beside what is damaged");
        }
        if root_or_skip() {
            self.beside_linux();
        }
    }

    /// What Linux reads of it, we read.
    fn beside_linux(&self) {
        let dir = temp_dir().unwrap();
        let path = dir.path().join("image");
        self.patient.device().store(&path).unwrap();
        let Ok(mount) = KernelMount::new(&path, "ro") else { return };
        for name in ["dir/one", "dir/two", "dir/three", "file", "sub/inside", "other/inside"] {
            let Ok(theirs) = std::fs::read(mount.path().join(name)) else { continue };
            let mut ours = vec![1; theirs.len()];
            let node = self.node(&name.split('/').collect::<Vec<_>>());
            self.fs.read(node, 0, &mut ours).unwrap();
            assert!(ours == theirs, "{name}");
        }
    }
}

fn told<T: std::fmt::Debug>(done: buttress::Result<T>) -> String {
    done.unwrap_err().to_string()
}

#[test]
fn of_an_inode() {
    let reader = Reader::of(|p| p.inode("two", |it: &mut InodeItem| it.mode = 0.into()));
    let ino = reader.patient.named(TOP, "two").unwrap();
    assert_eq!(
        reader.names(reader.node(&["dir"])),
        (vec!["one".into(), "two".into(), "three".into()], vec![])
    );
    let error = told(reader.fs.attributes(reader.node(&["dir", "two"])));
    assert_eq!(reader.readable(), [true; 3]);
    reader.end(&[error], &Key::new(ino, kind::INODE_ITEM, 0), TOP);
}

#[test]
fn of_a_directory() {
    for by in [kind::DIR_INDEX, kind::DIR_ITEM] {
        let reader = Reader::of(|p| {
            let key = p.entry(TOP, by, "two")?;
            p.edit(TOP, key, |it: &mut DirItem| it.file_type = 9)
        });
        let key = reader.patient.entry(TOP, by, "two").unwrap();
        let dir = reader.node(&["dir"]);
        let (names, passed) = reader.names(dir);
        // It is in one of its two places.
        assert_eq!(names.iter().collect::<BTreeSet<_>>().len(), 3, "{names:?}");
        let found = reader.fs.lookup(dir, b"two");
        let errors = match by {
            kind::DIR_INDEX => {
                assert_eq!(
                    found.unwrap().unwrap().node.ino,
                    reader.patient.named(TOP, "two").unwrap()
                );
                passed
            }
            _ => vec![told(found)],
        };
        assert_eq!(reader.fs.lookup(dir, b"no such name").unwrap().map(|it| it.node), None);
        // Who cannot be told of what is missing gets no list that lacks it.
        let all = reader.fs.read_dir(dir, 0, &mut |_| true);
        assert_eq!(all.is_err(), by == kind::DIR_INDEX);
        reader.end(&errors, &key, TOP);
    }
}

#[test]
fn of_a_file_it_is_no_hole() {
    for (at, readable) in
        [(0, [false, true, true]), (1, [true, false, true]), (2, [true, true, false])]
    {
        let key = |p: &Patient| {
            let ino = p.named(TOP, "file").unwrap();
            Key::new(ino, kind::EXTENT_DATA, at * 8192)
        };
        let reader =
            Reader::of(|p| p.edit(TOP, key(p), |it: &mut FileExtent| it.head.compression = 9));
        assert_eq!(reader.readable(), readable);
        let file = reader.node(&["file"]);
        let errors = [
            told(reader.fs.read(file, at * 8192, &mut [0; 4096])),
            told(reader.fs.read(file, at * 8192 + 4095, &mut [0; 1])),
            told(reader.fs.read(file, 0, &mut [0; 24576])),
            told(reader.fs.extents(file, 0..24576)),
        ];
        assert_eq!(reader.fs.get_xattr(file, XATTR).unwrap().unwrap(), b"value");
        let key = key(&reader.patient);
        reader.end(&errors, &key, TOP);
    }
}

/// What comes before a hole, in another item, may be damaged.
#[test]
fn of_what_is_before_a_file_that_begins_with_a_hole() {
    let key = |p: &Patient| p.key(TOP, p.named(TOP, "file").unwrap(), kind::XATTR_ITEM).unwrap();
    let reader = Reader::of(|p| {
        let first = Key { kind: kind::EXTENT_DATA, offset: 0, ..key(p) };
        p.remove(TOP, first)?;
        p.edit(TOP, key(p), |it: &mut DirItem| it.file_type = 1)
    });
    let mut bytes = [1; 8193];
    assert_eq!(reader.fs.read(reader.node(&["file"]), 0, &mut bytes).unwrap(), bytes.len());
    assert!(bytes[..8192] == [0; 8192] && bytes[8192] == 7);
}

#[test]
fn of_an_attribute() {
    let key = |p: &Patient| p.key(TOP, p.named(TOP, "file").unwrap(), kind::XATTR_ITEM).unwrap();
    let reader = Reader::of(|p| p.edit(TOP, key(p), |it: &mut DirItem| it.file_type = 1));
    let file = reader.node(&["file"]);
    let errors = [told(reader.fs.get_xattr(file, XATTR)), told(reader.fs.list_xattrs(file))];
    assert_eq!(reader.fs.get_xattr(file, b"user.other").unwrap(), None);
    assert_eq!(reader.readable(), [true; 3]);
    let key = key(&reader.patient);
    reader.end(&errors, &key, TOP);
}

#[test]
fn of_subvolumes() {
    for by in [kind::ROOT_ITEM, kind::ROOT_BACKREF, kind::ROOT_REF] {
        let key = |p: &Patient| {
            let id = p.named(TOP, "sub").unwrap();
            match by {
                kind::ROOT_REF => Key::new(TOP, by, id),
                _ => p.key(ROOTS, id, by).unwrap(),
            }
        };
        let reader = Reader::of(|p| match by {
            kind::ROOT_ITEM => p.edit(ROOTS, key(p), |it: &mut RootItem| it.level = 9),
            _ => p.edit(ROOTS, key(p), |it: &mut RootRef| it.name_len = 900.into()),
        });
        let (names, passed) = reader.subvolumes();
        let (listed, hidden) = reader.names(Node::ROOT);
        assert!(listed.contains(&"other".into()) && listed.contains(&"file".into()), "{listed:?}");
        assert!(reader.fs.lookup(reader.node(&["other"]), b"inside").unwrap().is_some());
        let errors = match by {
            kind::ROOT_REF => {
                assert_eq!(names, [b"sub".to_vec(), b"other".to_vec()]);
                hidden
            }
            _ => {
                assert_eq!((names, hidden), (vec![b"other".to_vec()], vec![]));
                passed
            }
        };
        let key = key(&reader.patient);
        reader.end(&errors, &key, ROOTS);
    }
}
