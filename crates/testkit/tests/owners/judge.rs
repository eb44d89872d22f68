//! What must be equal, of any filesystem: our resolver's answers and those of the plain one; our fiemap and the kernel's.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use buttress::refs::owners::{Asker, Committed, Known, Owners};
use buttress::{Error, Filesystem, Node, fiemap_flags};
use buttress_testkit::oracle::{KernelMount, Question, Record, fiemap};
use buttress_testkit::reach::{Piece, Reached, reached};

/// The least memory: what is resolved is forgotten again and again.
const LITTLE: u64 = 0;

/// Asks everything of the last commit, of a filesystem in which nothing waits. Answers what was asked about: data extents and blocks, and
/// how many of these are shared.
pub fn compare_plain(fs: &Filesystem) -> [usize; 4] {
    let plain = reached(fs.volume()).unwrap();
    for bytes in [1 << 20, LITTLE] {
        let roots = fs.core().roots();
        let committed = Committed { root: roots.root, chunk: roots.chunk, extent: roots.extent };
        let mut known = Known::new(bytes);
        let mut judge = Judge { fs, committed, known: &mut known, plain: &plain };
        for (block, trees) in &plain.blocks {
            judge.block(*block, trees);
        }
        for (extent, pieces) in &plain.data {
            judge.data(*extent, pieces);
        }
        assert!(known.bytes() < (1 << 20) + (1 << 20));
    }
    let shared = plain.blocks.values().filter(|trees| trees.len() > 1).count();
    let both = plain.data.values().filter(|pieces| pieces.len() > 1).count();
    [plain.data.len(), both, plain.blocks.len(), shared]
}

struct Judge<'a> {
    fs: &'a Filesystem,
    committed: Committed,
    known: &'a mut Known,
    plain: &'a Reached,
}

impl Judge<'_> {
    fn owners(&mut self) -> Owners<'_> {
        Owners::new(&self.fs.core().blocks, self.committed, self.known)
    }

    fn trees(&mut self, at: u64) -> BTreeSet<u64> {
        let set = self.owners().trees_of(at).unwrap();
        let sets = self.known.sets();
        assert_eq!(sets.len(set), sets.trees(set).count() as u64);
        sets.trees(set).collect()
    }

    fn block(&mut self, block: u64, trees: &BTreeSet<u64>) {
        assert_eq!(self.trees(block), *trees, "the trees of block {block}");
        let only = self.owners().only_tree_of(block).unwrap();
        let wanted = trees.first().copied().filter(|_| trees.len() == 1);
        assert_eq!(only, wanted, "the only tree of block {block}, which {trees:?} reach");
    }

    fn data(&mut self, extent: u64, pieces: &BTreeSet<Piece>) {
        let trees: BTreeSet<u64> = pieces.iter().map(|piece| piece.0).collect();
        assert_eq!(self.trees(extent), trees, "the trees of extent {extent}");
        let mut found = Vec::new();
        let place = |place: buttress::refs::owners::Place| {
            found.push((place.tree, place.ino, place.offset, place.in_extent));
            ControlFlow::Continue(())
        };
        self.owners().each_place(extent, place).unwrap();
        let all: BTreeSet<Piece> = found.iter().copied().collect();
        assert_eq!((all.len(), &all), (found.len(), pieces), "the places of extent {extent}");
        let files: BTreeSet<(u64, u64)> = pieces.iter().map(|piece| (piece.0, piece.1)).collect();
        for &(tree, ino) in &files {
            let asker = Asker { tree, ino, leaf: None };
            let shared = self.owners().is_shared(extent, &asker).unwrap();
            let wanted = self.plain.is_shared(extent, tree, ino);
            // References by leaves and by files may be of one file: then it has pieces in several leaves, and Linux calls it shared, too. A
            // leaf that refers by its address has one reference for all files in it: then Linux calls nothing shared by that.
            let leaves = |tree, ino| self.plain.leaves[&(extent, tree, ino)].clone();
            let of_file = leaves(tree, ino);
            let one = files.iter().all(|(tree, ino)| leaves(*tree, *ino) == of_file);
            let may = if shared { of_file.len() > 1 } else { of_file.len() == 1 && one };
            assert!(shared == wanted || may, "{extent} of {ino} in {tree}: {shared}, {pieces:?}");
        }
    }
}

/// Compares fiemap of every file that the kernel shows of an image, and of ranges of it. Answers how many records have each flag; 0 for
/// all.
pub fn compare_kernel(fs: &Filesystem, image: &Path, options: &str) -> BTreeMap<u32, usize> {
    let mount = KernelMount::read_only(image, options).unwrap();
    let mut files = Vec::new();
    collect(mount.path(), &mut files);
    let top = Node::top(fs.default_subvolume().unwrap());
    let (mut questions, mut nodes) = (Vec::<Question>::new(), Vec::new());
    for path in files {
        use std::os::unix::ffi::OsStrExt;
        let inside = path.strip_prefix(mount.path()).unwrap().as_os_str().as_bytes();
        let node = fs.resolve_at(top, inside, false).unwrap();
        let size = fs.attributes(node).unwrap().size;
        for (start, length) in ranges(size, node.ino) {
            questions.push((path.clone(), start, length));
            nodes.push((node, start, start.saturating_add(length)));
        }
    }
    let answers = fiemap(&questions).unwrap();
    let mut flags = BTreeMap::new();
    for ((answer, question), (node, start, end)) in answers.iter().zip(&questions).zip(nodes) {
        let ours: Result<Vec<Record>, Error> = fs
            .fiemap(node, start..end)
            .and_then(|all| all.map(|one| one.map(|one| record(&one))).collect());
        match (&ours, answer) {
            (Ok(ours), Ok(theirs)) => {
                assert_eq!(ours, theirs, "{question:?}, {node:?}");
                for [.., bits] in ours {
                    *flags.entry(0).or_default() += 1;
                    for bit in (0..32).map(|bit| 1 << bit).filter(|bit| bits & bit != 0) {
                        *flags.entry(bit as u32).or_default() += 1;
                    }
                }
            }
            (Err(_), Err(_)) => {}
            _ => panic!("{question:?}: {ours:?}, the kernel {answer:?}"),
        }
    }
    flags
}

fn record(one: &buttress::FileExtent) -> Record {
    [one.logical, one.physical, one.length, one.flags.into()]
}

/// All of a file, and some parts of it.
fn ranges(size: u64, seed: u64) -> Vec<(u64, u64)> {
    let part =
        |number: u64| seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(17 * number as u32);
    let mut all = vec![(0, u64::MAX)];
    if size > 0 {
        all.push((part(1) % size, part(2) % size + 1));
        all.push((part(3) % size / 4096 * 4096, 4096));
    }
    all
}

fn collect(dir: &Path, files: &mut Vec<PathBuf>) {
    let mut entries: Vec<_> = std::fs::read_dir(dir).unwrap().flatten().collect();
    entries.sort_by_key(std::fs::DirEntry::file_name);
    for entry in entries {
        let Ok(kind) = entry.file_type() else { continue };
        if kind.is_dir() {
            collect(&entry.path(), files);
        } else if kind.is_file() {
            files.push(entry.path());
        }
    }
}

/// Whether a range of flags was met at all.
pub fn assert_met(flags: &BTreeMap<u32, usize>, wanted: &[u32]) {
    for flag in wanted {
        assert!(
            flags.get(flag).is_some_and(|count| *count > 0),
            "no record with {flag:#x}: {flags:?}"
        );
    }
    assert!(!flags.contains_key(&fiemap_flags::DELALLOC), "{flags:?}");
}
