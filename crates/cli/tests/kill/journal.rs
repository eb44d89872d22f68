//! What one writer did, and whether an image shows the state after some of it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::sync::Arc;

/// A directory or a file with its bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Node {
    Dir,
    File(Arc<Vec<u8>>),
}

/// Paths below a subvolume's top, with what is there.
pub type Tree = BTreeMap<String, Node>;

/// A writer's subvolume and the snapshots it made of it, by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct State {
    pub live: Tree,
    pub snapshots: BTreeMap<String, Arc<Tree>>,
}

/// One change. Each is one request to the daemon, but for what [`first_part`] says.
#[derive(Debug)]
pub enum Op {
    Mkdir(String),
    Create(String),
    /// At this offset, which is at most the length.
    Write(String, usize, Vec<u8>),
    Truncate(String, usize),
    /// A file over anything or a directory to a new name.
    Rename(String, String),
    /// A file or an empty directory.
    Remove(String),
    Snapshot(String),
    DeleteSnapshot(String),
}

impl State {
    pub fn apply(&mut self, op: &Op) {
        match op {
            Op::Mkdir(path) => drop(self.live.insert(path.clone(), Node::Dir)),
            Op::Create(path) => drop(self.live.insert(path.clone(), Node::File(Arc::default()))),
            Op::Write(path, at, data) => {
                let bytes = self.bytes(path);
                let end = bytes.len().max(at + data.len());
                bytes.resize(end, 0);
                bytes[*at..at + data.len()].copy_from_slice(data);
            }
            Op::Truncate(path, length) => self.bytes(path).resize(*length, 0),
            Op::Rename(from, to) => self.rename(from, to),
            Op::Remove(path) => drop(self.live.remove(path)),
            Op::Snapshot(name) => {
                self.snapshots.insert(name.clone(), Arc::new(self.live.clone()));
            }
            Op::DeleteSnapshot(name) => drop(self.snapshots.remove(name)),
        }
    }

    fn bytes(&mut self, path: &str) -> &mut Vec<u8> {
        match self.live.get_mut(path) {
            Some(Node::File(bytes)) => Arc::make_mut(bytes),
            other => panic!("{path} is no file: {other:?}"),
        }
    }

    fn rename(&mut self, from: &str, to: &str) {
        let inside = format!("{from}/");
        let below = |path: &&String| *path == from || path.starts_with(&inside);
        let moved: Vec<_> = self.live.keys().filter(below).cloned().collect();
        for path in moved {
            let node = self.live.remove(&path).unwrap();
            self.live.insert(format!("{to}{}", &path[from.len()..]), node);
        }
    }
}

/// Reads the tree below a directory.
pub fn look(top: &Path) -> Tree {
    let mut tree = Tree::new();
    look_into(top, "", &mut tree);
    tree
}

fn look_into(top: &Path, directory: &str, tree: &mut Tree) {
    for entry in fs::read_dir(top.join(directory)).unwrap() {
        let entry = entry.unwrap();
        let name = entry.file_name().into_string().unwrap();
        let path = if directory.is_empty() { name } else { format!("{directory}/{name}") };
        if entry.file_type().unwrap().is_dir() {
            look_into(top, &path, tree);
            tree.insert(path, Node::Dir);
        } else {
            let bytes = fs::read(entry.path()).unwrap_or_else(|error| panic!("{path}: {error}"));
            tree.insert(path, Node::File(Arc::new(bytes)));
        }
    }
}

/// The part of a write that Linux sends by itself: where a write begins within a page, it goes to a FUSE filesystem in two
/// requests, and a commit may come in between.
fn first_part(op: &Op) -> Option<Op> {
    const PAGE: usize = 4096;
    let Op::Write(path, at, data) = op else { return None };
    let len = PAGE - at % PAGE;
    (len < PAGE && len < data.len()).then(|| Op::Write(path.clone(), *at, data[..len].to_vec()))
}

/// From where a writer began, what it asked for.
pub struct Journal {
    pub start: State,
    pub ops: Vec<Op>,
    /// So many of the operations are durable, as a snapshot that was answered is a commit.
    pub acknowledged: usize,
    /// What was synced and answered: after so many operations, and which path.
    pub synced: Vec<(usize, String)>,
}

/// Which inode is at each path.
type Paths = BTreeMap<String, usize>;

/// Where an inode is.
fn place(paths: &Paths, inode: usize) -> Option<&String> {
    paths.iter().find(|(_, id)| **id == inode).map(|(path, _)| path)
}

/// The directory that has a path.
fn parent(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(parent, _)| parent)
}

impl Op {
    /// Whether it changes what is at the path: a file, or the entries of a directory.
    fn is_about(&self, path: &str) -> bool {
        let entry = |changed: &str| changed == path || parent(changed) == path;
        match self {
            Op::Mkdir(changed) | Op::Create(changed) | Op::Remove(changed) => entry(changed),
            Op::Write(changed, ..) | Op::Truncate(changed, _) => changed == path,
            Op::Rename(from, to) => entry(from) || entry(to),
            Op::Snapshot(_) | Op::DeleteSnapshot(_) => false,
        }
    }
}

impl Journal {
    /// Where every fsync is a commit: after the last change of what was synced, so many operations are durable.
    pub fn acknowledge_commits(&mut self) {
        for (done, path) in &self.synced {
            let last = self.ops[..*done].iter().rposition(|op| op.is_about(path));
            self.acknowledged = self.acknowledged.max(last.map_or(0, |last| last + 1));
        }
    }

    /// What is the matter, where an fsync makes durable what it is about and nothing else. What was synced is as it was then or later, each
    /// path by itself; and nothing is there that never was. Snapshots are what they were made of.
    pub fn allows(&self, seen: &State) -> Result<usize, String> {
        let mut wrong = Vec::new();
        let (states, parts) = self.states();
        let inodes = self.inodes();
        for (path, node) in &seen.live {
            let was_so = |at: usize, path: &str| {
                let states = [Some(&states[at]), parts[at].as_ref()];
                states.into_iter().flatten().any(|state| state.live.get(path) == Some(node))
            };
            if !Self::ever_at(&inodes, path, &was_so) {
                wrong.push(format!("{path}: never was so"));
            }
        }
        for (done, path) in &self.synced {
            if let Some(inode) = inodes[*done].get(path).copied() {
                // A directory above it that was renamed need not be: it may be where it was before.
                let mut places: Vec<&String> =
                    inodes.iter().filter_map(|paths| place(paths, inode)).collect();
                places.sort_unstable();
                places.dedup();
                let later = || inodes[*done..].iter().zip(&states[*done..]).zip(&parts[*done..]);
                let is_gone = inodes[*done..].iter().any(|paths| place(paths, inode).is_none());
                let is_at = |at: &&String| {
                    later().any(|((paths, state), part)| {
                        let Some(now) = place(paths, inode) else { return false };
                        let states = [Some(state), part.as_ref()].into_iter().flatten();
                        let wanted = seen.live.get(*at);
                        states
                            .into_iter()
                            .any(|state| wanted.is_some() && state.live.get(now) == wanted)
                    }) && self.entries_are_so(&inodes[*done..], inode, at, seen)
                };
                if !is_gone && !places.iter().any(is_at) {
                    wrong.push(format!("{path}: not as it was synced after {done}, nor later"));
                }
            }
        }
        for (name, tree) in &seen.snapshots {
            if !states.iter().any(|state| state.snapshots.get(name) == Some(tree)) {
                wrong.push(format!("snapshot {name}: never was so"));
            }
        }
        let durable = &states[self.acknowledged..];
        for name in durable[0].snapshots.keys() {
            let kept = durable.iter().all(|state| state.snapshots.contains_key(name));
            if kept && !seen.snapshots.contains_key(name) {
                wrong.push(presence(&format!("snapshot {name}"), true));
            }
        }
        if wrong.is_empty() { Ok(self.acknowledged) } else { Err(wrong.join("\n")) }
    }

    /// Whether what is asked for ever was at a path, or below the directory that once had the path above it, wherever that was then: an
    /// fsync does not make durable that a directory above was renamed, and shows the file where the last commit has that, as Linux does.
    fn ever_at(inodes: &[Paths], path: &str, was_so: &dyn Fn(usize, &str) -> bool) -> bool {
        if (0..inodes.len()).any(|at| was_so(at, path)) {
            return true;
        }
        let Some((above, name)) = path.rsplit_once('/') else { return false };
        let had_it = |(at, paths): (usize, &Paths)| {
            let here = paths.iter().filter(|(now, _)| was_so(at, &format!("{now}/{name}")));
            here.map(|(_, inode)| *inode).collect::<Vec<_>>()
        };
        let holders: BTreeSet<usize> = inodes.iter().enumerate().flat_map(had_it).collect();
        holders.iter().any(|inode| {
            Self::ever_at(inodes, above, &|at, path| inodes[at].get(path) == Some(inode))
        })
    }

    /// Whether each entry that a directory shows at a path, or had when it was synced, is as it was then or later.
    fn entries_are_so(&self, later: &[Paths], inode: usize, at: &str, seen: &State) -> bool {
        let names = |tree: &mut dyn Iterator<Item = &String>, of: &str| -> Vec<String> {
            let below = tree.filter(|path| parent(path) == of && !path.is_empty());
            below.map(|path| path.rsplit('/').next().unwrap_or_default().to_owned()).collect()
        };
        let now = names(&mut seen.live.keys(), at);
        let at_each: Vec<Option<Vec<String>>> = later
            .iter()
            .map(|paths| place(paths, inode).map(|of| names(&mut paths.keys(), of)))
            .collect();
        let first = at_each.first().cloned().flatten().unwrap_or_default();
        first.iter().chain(&now).all(|name| {
            at_each.iter().flatten().any(|then| then.contains(name) == now.contains(name))
        })
    }

    /// Which inode is at each path, after each number of operations.
    fn inodes(&self) -> Vec<Paths> {
        let mut paths: Paths =
            self.start.live.keys().enumerate().map(|(id, path)| (path.clone(), id)).collect();
        let mut all = vec![paths.clone()];
        for op in &self.ops {
            match op {
                Op::Mkdir(path) | Op::Create(path) => {
                    paths.insert(path.clone(), self.start.live.len() + all.len());
                }
                Op::Remove(path) => drop(paths.remove(path)),
                Op::Rename(from, to) => {
                    let inside = format!("{from}/");
                    let below = |path: &&String| *path == from || path.starts_with(&inside);
                    for path in paths.keys().filter(below).cloned().collect::<Vec<_>>() {
                        if let Some(id) = paths.remove(&path) {
                            paths.insert(format!("{to}{}", &path[from.len()..]), id);
                        }
                    }
                }
                _ => {}
            }
            all.push(paths.clone());
        }
        all
    }

    /// The states after each number of operations, and those after a part of the next one.
    fn states(&self) -> (Vec<State>, Vec<Option<State>>) {
        let (mut states, mut parts) = (vec![self.start.clone()], Vec::new());
        for op in &self.ops {
            let after = |op: &Op| {
                let mut state = states[states.len() - 1].clone();
                state.apply(op);
                state
            };
            let (part, whole) = (first_part(op).map(|part| after(&part)), after(op));
            parts.push(part);
            states.push(whole);
        }
        parts.push(None);
        (states, parts)
    }

    /// After how many operations the state was what the image shows, or what is the matter.
    pub fn explains(&self, seen: &State) -> Result<usize, String> {
        let mut state = self.start.clone();
        let mut nearest: Option<(usize, Vec<String>)> = None;
        for done in 0..=self.ops.len() {
            if done > 0 {
                state.apply(&self.ops[done - 1]);
            }
            if done < self.acknowledged {
                continue;
            }
            let differences = differences(&state, seen);
            if differences.is_empty() {
                return Ok(done);
            }
            if let Some(part) = self.ops.get(done).and_then(first_part) {
                let mut state = state.clone();
                state.apply(&part);
                if self::differences(&state, seen).is_empty() {
                    return Ok(done);
                }
            }
            if nearest.as_ref().is_none_or(|(_, least)| differences.len() <= least.len()) {
                nearest = Some((done, differences));
            }
        }
        let (done, differences) = nearest.unwrap();
        let around = &self.ops[done.saturating_sub(8)..(done + 4).min(self.ops.len())];
        let around: Vec<_> = around.iter().map(brief).collect();
        Err(format!(
            "{} operations, {} acknowledged; nearest is after {done}:\n{}\naround it:\n{}",
            self.ops.len(),
            self.acknowledged,
            differences.join("\n"),
            around.join("\n")
        ))
    }
}

/// An operation without its data.
fn brief(op: &Op) -> String {
    match op {
        Op::Write(path, at, data) => format!("Write({path}, {at}, {} bytes)", data.len()),
        other => format!("{other:?}"),
    }
}

/// What differs between two states, in words.
pub fn differences(want: &State, have: &State) -> Vec<String> {
    let mut all = tree_differences("", &want.live, &have.live);
    for name in either(&want.snapshots, &have.snapshots) {
        match (want.snapshots.get(name), have.snapshots.get(name)) {
            (Some(want), Some(have)) if Arc::ptr_eq(want, have) => {}
            (Some(want), Some(have)) => {
                all.extend(tree_differences(&format!("{name}: "), want, have));
            }
            (want, _) => all.push(presence(&format!("snapshot {name}"), want.is_some())),
        }
    }
    all
}

fn tree_differences(of: &str, want: &Tree, have: &Tree) -> Vec<String> {
    let mut all = Vec::new();
    for path in either(want, have) {
        match (want.get(path), have.get(path)) {
            (Some(Node::File(want)), Some(Node::File(have))) if want != have => {
                let at = want.iter().zip(have.iter()).position(|(want, have)| want != have);
                let lengths = (want.len(), have.len());
                all.push(format!("{of}{path}: differs at {at:?}, lengths {lengths:?}"));
            }
            (Some(want), Some(have)) if want != have => {
                all.push(format!("{of}{path}: is of another kind"));
            }
            (Some(_), Some(_)) => {}
            (want, _) => all.push(presence(&format!("{of}{path}"), want.is_some())),
        }
    }
    all
}

fn presence(what: &str, wanted: bool) -> String {
    format!("{what}: {}", if wanted { "is missing" } else { "should not be there" })
}

fn either<'a, A, B>(
    one: &'a BTreeMap<String, A>,
    two: &'a BTreeMap<String, B>,
) -> impl Iterator<Item = &'a String> {
    one.keys().chain(two.keys().filter(|key| !one.contains_key(*key)))
}

#[test]
fn a_directory_that_was_renamed_may_be_where_it_was() {
    let file = |bytes: &[u8]| Node::File(Arc::new(bytes.to_vec()));
    let tree = |nodes: &[(&str, Node)]| -> State {
        let live = nodes.iter().map(|(path, node)| ((*path).to_owned(), node.clone()));
        State { live: live.collect(), ..State::default() }
    };
    let journal = Journal {
        start: tree(&[("a", Node::Dir), ("a/b", Node::Dir), ("a/b/f", file(b"old"))]),
        ops: vec![
            Op::Rename("a".into(), "c".into()),
            Op::Write("c/b/f".into(), 0, b"new".to_vec()),
        ],
        acknowledged: 0,
        synced: vec![(2, "c/b/f".into())],
    };
    let with = |top: &str, bytes: &[u8]| {
        let (below, path) = (format!("{top}/b"), format!("{top}/b/f"));
        tree(&[(top, Node::Dir), (&below, Node::Dir), (&path, file(bytes))])
    };
    assert!(journal.allows(&with("c", b"new")).is_ok());
    assert!(journal.allows(&with("a", b"new")).is_ok());
    assert!(journal.allows(&with("a", b"old")).is_err(), "it was synced");
    assert!(journal.allows(&with("a", b"odd")).is_err(), "it never was so");
    assert!(journal.allows(&with("d", b"new")).is_err(), "nothing was ever there");
}
