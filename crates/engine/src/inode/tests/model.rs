//! Random operations against a model, with commits in all their steps between them.
//!
//! A commit is taken apart: operations run between the freeze, the preparation, the emission, the publishing and the settling. After each
//! the items are checked by themselves, and now and then a fresh tree is opened on them. The table keeps all inodes, or hardly any.

use std::collections::{BTreeMap, HashMap};
use std::ops::ControlFlow;

use buttress_codec::crc32c::name_hash;

use super::facts::Facts;
use super::*;
use crate::inode::{Location, Rename, SetAttributes, SetXattr, mode};

#[derive(Clone, Debug, Default)]
struct Node {
    directory: bool,
    nlink: u32,
    permissions: u32,
    entries: BTreeMap<Vec<u8>, u64>,
    xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    held: bool,
}

#[derive(Clone, Debug)]
struct Model {
    nodes: BTreeMap<u64, Node>,
}

/// xorshift64*
pub(in crate::inode) struct Random(pub u64);

impl Random {
    pub fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % end
    }

    fn pick<T: Clone>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())].clone()
    }
}

impl Model {
    fn new() -> Model {
        let top = Node { directory: true, nlink: 1, permissions: 0o755, ..Node::default() };
        Model { nodes: BTreeMap::from([(TOP, top)]) }
    }

    fn directories(&self) -> Vec<u64> {
        let named = |node: &&Node| node.directory && node.nlink > 0;
        self.nodes.iter().filter(|(_, node)| named(node)).map(|(&ino, _)| ino).collect()
    }

    fn at(&self, dir: u64, name: &[u8]) -> Option<u64> {
        self.nodes[&dir].entries.get(name).copied()
    }

    fn drop_link(&mut self, ino: u64) {
        let node = self.nodes.get_mut(&ino).unwrap();
        node.nlink -= 1;
        if node.nlink == 0 && !node.held {
            self.nodes.remove(&ino);
        }
    }

    /// Whether `ino` is `dir` or above it.
    fn is_above(&self, ino: u64, dir: u64) -> bool {
        if ino == dir {
            return true;
        }
        let mut above =
            self.nodes.iter().filter(|(_, node)| node.entries.values().any(|&it| it == dir));
        above.next().is_some_and(|(&parent, _)| parent != dir && self.is_above(ino, parent))
    }

    fn create(&mut self, dir: u64, name: &[u8]) -> Option<Errno> {
        self.at(dir, name).map(|_| Errno::EXIST)
    }

    fn unlink(&mut self, dir: u64, name: &[u8], directory: bool) -> Option<Errno> {
        let Some(ino) = self.at(dir, name) else { return Some(Errno::NOENT) };
        match (directory, self.nodes[&ino].directory) {
            (true, false) => return Some(Errno::NOTDIR),
            (false, true) => return Some(Errno::ISDIR),
            (true, true) if !self.nodes[&ino].entries.is_empty() => return Some(Errno::NOTEMPTY),
            _ => {}
        }
        self.nodes.get_mut(&dir).unwrap().entries.remove(name);
        self.drop_link(ino);
        None
    }

    fn rename(&mut self, from: (u64, &[u8]), to: (u64, &[u8]), exchange: bool) -> Option<Errno> {
        let Some(moved) = self.at(from.0, from.1) else { return Some(Errno::NOENT) };
        let other = self.at(to.0, to.1);
        if exchange && other.is_none() {
            return Some(Errno::NOENT);
        }
        if other == Some(moved) {
            return None;
        }
        let loops = |ino: u64, dir: u64| self.nodes[&ino].directory && self.is_above(ino, dir);
        if from.0 != to.0 && (loops(moved, to.0) || exchange && loops(other.unwrap(), from.0)) {
            return Some(Errno::INVAL);
        }
        if let Some(other) = other.filter(|_| !exchange) {
            match (self.nodes[&moved].directory, self.nodes[&other].directory) {
                (true, false) => return Some(Errno::NOTDIR),
                (false, true) => return Some(Errno::ISDIR),
                (true, true) if !self.nodes[&other].entries.is_empty() => {
                    return Some(Errno::NOTEMPTY);
                }
                _ => {}
            }
            self.drop_link(other);
        }
        let source = &mut self.nodes.get_mut(&from.0).unwrap().entries;
        match other.filter(|_| exchange) {
            Some(other) => source.insert(from.1.to_vec(), other),
            None => source.remove(from.1),
        };
        self.nodes.get_mut(&to.0).unwrap().entries.insert(to.1.to_vec(), moved);
        None
    }
}

/// A handful of names: short, long, and pairs that share a hash.
fn names() -> Vec<Vec<u8>> {
    let mut names: Vec<Vec<u8>> = (0..8).map(|at| format!("name{at}").into_bytes()).collect();
    names.push(vec![b'l'; 255]);
    names.push(b"twenty-three-bytes-long".to_vec());
    let mut seen = HashMap::new();
    for at in 0..400_000u32 {
        let name = format!("{:x}", at.wrapping_mul(2_654_435_761)).into_bytes();
        if let Some(twin) = seen.insert(name_hash(&name), name.clone()) {
            names.push(twin);
            names.push(name);
        }
        if names.len() > 16 {
            break;
        }
    }
    assert!(names.len() >= 14, "no names that share a hash");
    names
}

struct Run {
    lab: Lab,
    model: Model,
    random: Random,
    names: Vec<Vec<u8>>,
}

impl Run {
    fn step(&mut self) {
        let dir = self.random.pick(&self.model.directories());
        let name = self.random.pick(&self.names.clone());
        match self.random.below(14) {
            0..4 => self.create(dir, &name),
            4..6 => self.unlink(dir, &name, false),
            6 => self.unlink(dir, &name, true),
            7..9 => self.rename(dir, &name),
            9 => self.link(dir, &name),
            10 => self.xattr(&name),
            11 | 12 => self.chmod(),
            _ => self.hold_or_release(),
        }
    }

    fn create(&mut self, dir: u64, name: &[u8]) {
        let directory = self.random.below(3) == 0;
        let kind = if directory { NewKind::Directory } else { NewKind::File };
        let expect = self.model.create(dir, name);
        let made = self.lab.create(&self.lab.get(dir), name, kind);
        if let Ok(inode) = &made {
            let node = Node { directory, nlink: 1, permissions: 0o644, ..Node::default() };
            assert!(self.model.nodes.insert(inode.ino, node).is_none(), "a number twice");
            self.model.nodes.get_mut(&dir).unwrap().entries.insert(name.to_vec(), inode.ino);
        }
        assert_eq!(errno(made), expect);
    }

    fn unlink(&mut self, dir: u64, name: &[u8], directory: bool) {
        let expect = self.model.unlink(dir, name, directory);
        let (lab, inode) = (&self.lab, self.lab.get(dir));
        let done = lab.op(|op| match directory {
            true => lab.tree.rmdir(op, &inode, name),
            false => lab.tree.unlink(op, &inode, name),
        });
        assert_eq!(errno(done), expect);
    }

    fn rename(&mut self, from: u64, from_name: &[u8]) {
        let to = self.random.pick(&self.model.directories());
        let to_name = self.random.pick(&self.names.clone());
        let exchange = self.random.below(3) == 0;
        let mode = if exchange { Rename::Exchange } else { Rename::Replace };
        let expect = self.model.rename((from, from_name), (to, &to_name), exchange);
        let (lab, from, to) = (&self.lab, self.lab.get(from), self.lab.get(to));
        let done = lab.op(|op| lab.tree.rename(op, (&from, from_name), (&to, &to_name), mode));
        assert_eq!(errno(done), expect);
    }

    fn any(&mut self) -> u64 {
        let all: Vec<u64> = self.model.nodes.keys().copied().collect();
        self.random.pick(&all)
    }

    fn link(&mut self, dir: u64, name: &[u8]) {
        let ino = self.any();
        let node = &self.model.nodes[&ino];
        if node.nlink == 0 {
            return;
        }
        let expect = if node.directory { Some(Errno::PERM) } else { self.model.create(dir, name) };
        let (lab, inode, at) = (&self.lab, self.lab.get(ino), self.lab.get(dir));
        let done = lab.op(|op| lab.tree.link(op, &inode, &at, name));
        if done.is_ok() {
            self.model.nodes.get_mut(&dir).unwrap().entries.insert(name.to_vec(), ino);
            self.model.nodes.get_mut(&ino).unwrap().nlink += 1;
        }
        assert_eq!(errno(done), expect);
    }

    fn chmod(&mut self) {
        let ino = self.any();
        // The set-group-id bit of a directory would go to what is made in it.
        let permissions = self.random.below(0o2000) as u32;
        let (lab, inode) = (&self.lab, self.lab.get(ino));
        let set = SetAttributes { mode: Some(permissions), ..SetAttributes::default() };
        lab.op(|op| lab.tree.set_attributes(op, &inode, &set)).unwrap();
        self.model.nodes.get_mut(&ino).unwrap().permissions = permissions;
    }

    fn xattr(&mut self, name: &[u8]) {
        let ino = self.any();
        let (lab, inode) = (&self.lab, self.lab.get(ino));
        let xattrs = &mut self.model.nodes.get_mut(&ino).unwrap().xattrs;
        if self.random.below(3) == 0 {
            let expect = xattrs.remove(name).map_or(Some(Errno::NODATA), |_| None);
            assert_eq!(errno(lab.op(|op| lab.tree.remove_xattr(op, &inode, name))), expect);
            return;
        }
        let value = vec![b'v'; self.random.below(200)];
        lab.op(|op| lab.tree.set_xattr(op, &inode, name, &value, SetXattr::Any)).unwrap();
        xattrs.insert(name.to_vec(), value);
    }

    fn hold_or_release(&mut self) {
        let ino = self.any();
        let (lab, inode) = (&self.lab, self.lab.get(ino));
        let node = self.model.nodes.get_mut(&ino).unwrap();
        if ino == TOP {
            return;
        }
        node.held = !node.held;
        match node.held {
            true => lab.tree.hold(&inode).unwrap(),
            false => {
                lab.op(|op| lab.tree.release(op, &inode)).unwrap();
                if node.nlink == 0 {
                    self.model.nodes.remove(&ino);
                }
            }
        }
    }

    /// What operations see is what the model holds.
    fn compare(&self) {
        let (lab, tree) = (&self.lab, &self.lab.tree);
        for (&ino, node) in &self.model.nodes {
            let inode = lab.get(ino);
            let attributes = tree.attributes(&lab.core, &inode);
            assert_eq!(attributes.nlink, node.nlink, "inode {ino}");
            assert_eq!(attributes.mode & mode::PERMISSIONS, node.permissions, "inode {ino}");
            assert_eq!(attributes.is_directory(), node.directory);
            assert_eq!(attributes.kind() == mode::REGULAR, !node.directory);
            let xattrs = lab.op(|op| tree.xattrs(op, &inode)).unwrap();
            let listed: Vec<&[u8]> = xattrs.iter().map(|name| name.as_bytes()).collect();
            assert_eq!(listed, node.xattrs.keys().map(Vec::as_slice).collect::<Vec<_>>());
            for (name, value) in &node.xattrs {
                assert_eq!(&lab.op(|op| tree.xattr(op, &inode, name)).unwrap(), value);
            }
            if node.directory {
                self.compare_directory(&inode, node);
            }
        }
    }

    fn compare_directory(&self, dir: &Inode, node: &Node) {
        let (lab, tree) = (&self.lab, &self.lab.tree);
        let mut listed = BTreeMap::new();
        let mut last = 0;
        let each = |entry: crate::inode::DirectoryEntry<'_>| {
            assert!(entry.index > last, "indexes out of order");
            last = entry.index;
            let Location::Inode(ino) = entry.location else { panic!("no inode") };
            assert!(listed.insert(entry.name.to_vec(), ino).is_none(), "a name twice");
            ControlFlow::Continue(())
        };
        lab.op(|op| tree.read_directory(op, dir, 0, each)).unwrap();
        assert_eq!(listed, node.entries);
        for name in &self.names {
            let found = lab.op(|op| tree.lookup(op, dir, name)).ok().map(|entry| entry.location);
            assert_eq!(found, node.entries.get(name).map(|&ino| Location::Inode(ino)));
        }
        for &ino in node.entries.values().filter(|ino| self.model.nodes[ino].directory) {
            assert_eq!(lab.op(|op| tree.parent_of(op, &lab.get(ino))).unwrap(), dir.ino);
        }
    }

    fn steps(&mut self, most: usize) {
        for _ in 0..self.random.below(most) {
            self.step();
        }
        self.compare();
    }

    fn round(&mut self) {
        let kept = self.random.pick(&[0, 64, 65_536]);
        self.lab.tree.keep_about(kept);
        self.steps(60);
        let transid = self.lab.freeze();
        let committed = self.model.clone();
        self.steps(30);
        self.lab.tree.prepare(&self.lab.core, transid).unwrap();
        self.steps(15);
        let root = self.lab.emit_prepared(transid);
        self.steps(30);
        self.lab.tree.publish(root);
        self.steps(15);
        self.lab.tree.settle();
        self.compare();
        let facts = Facts::of(&self.lab.view());
        facts.check();
        assert!(facts.inodes.keys().eq(committed.nodes.keys()), "the tree holds other inodes");
        if self.random.below(4) == 0 {
            self.reopen(committed);
        }
    }

    /// What was not committed is lost, and so are inodes without names.
    fn reopen(&mut self, committed: Model) {
        self.model = committed;
        self.lab.reopen();
        for ino in self.lab.op(|op| self.lab.tree.orphans(op, 0)).unwrap() {
            self.lab.op(|op| self.lab.tree.cleanup(op, ino)).unwrap();
        }
        self.model.nodes.retain(|_, node| node.nlink > 0);
        self.model.nodes.values_mut().for_each(|node| node.held = false);
        self.compare();
    }
}

#[test]
fn random_operations_agree_with_a_model() {
    for seed in 1..=12 {
        println!("seed {seed}");
        let random = Random(u64::wrapping_mul(seed, 0x9e37_79b9_7f4a_7c15));
        let lab = Lab::new(if seed % 2 == 0 { 4096 } else { 16384 });
        let mut run = Run { lab, model: Model::new(), random, names: names() };
        for _ in 0..25 {
            run.round();
        }
    }
}
