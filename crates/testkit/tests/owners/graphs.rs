//! Random graphs of references that our engine has made: clones within files, between files and between subvolumes, snapshots of snapshots,
//! overwriting below them, deletions, and subvolumes dropped half way. Small tree blocks make them deep.

use std::path::Path;
use std::sync::Arc;

use buttress::device::FileDevice;
use buttress::{Allocate, Errno, Error, FileExtent, Filesystem, New, Node, Options, fiemap_flags};
use buttress_mkfs::{Environment, Feature};
use buttress_testkit::ops::rng::{Rng, bytes};
use buttress_testkit::oracle::{check, is_root, temp_dir};

use crate::judge::{assert_met, compare_kernel, compare_plain};

const SECTOR: u64 = 4096;
const FILES: u64 = 24;

struct Graph {
    fs: Filesystem,
    rng: Rng,
    /// Names and ids of subvolumes.
    volumes: Vec<(String, u64)>,
    made: u64,
}

impl Graph {
    fn any_file(&mut self) -> Node {
        let (_, volume) = *self.rng.pick(&self.volumes);
        let name = format!("file{}", self.rng.below(FILES));
        self.fs.lookup(Node::top(volume), name.as_bytes()).unwrap().unwrap().node
    }

    fn volume(&mut self) {
        let name = format!("volume{}", self.made);
        self.made += 1;
        let id = self.fs.create_subvolume(Node::ROOT, name.as_bytes(), Default::default()).unwrap();
        for number in 0..FILES {
            let name = format!("file{number}");
            let made = self.fs.create(Node::top(id), name.as_bytes(), &New::file(0o644)).unwrap();
            self.fs.write(made.node, 0, &bytes(number as u32, 0, 3 * SECTOR as usize)).unwrap();
        }
        // What lies between them makes leaves and levels.
        for number in 0..400 {
            let name = format!("between{number}");
            let made = self.fs.create(Node::top(id), name.as_bytes(), &New::file(0o644)).unwrap();
            self.fs.write(made.node, 0, &bytes(number, 0, 60)).unwrap();
        }
        self.volumes.push((name, id));
    }

    fn step(&mut self) {
        let (at, len) = (self.rng.below(64) * SECTOR, (1 + self.rng.below(16)) * SECTOR);
        match self.rng.below(24) {
            0..8 => {
                let node = self.any_file();
                // Pieces of one file in many leaves.
                for number in 0..1 + self.rng.below(3) * self.rng.below(20) {
                    let data = bytes(number as u32 + 1, at, SECTOR as usize);
                    self.fs.write(node, at + number * 2 * SECTOR, &data).unwrap();
                }
            }
            8..10 => {
                let node = self.any_file();
                self.fs.write(node, at, &bytes(at as u32, 0, len as usize * 4)).unwrap();
            }
            10..15 => {
                let (from, to) = (self.any_file(), self.any_file());
                let far = self.rng.below(100) * SECTOR;
                match self.fs.clone_range(from, at, len, to, far) {
                    Ok(_) | Err(Error::User(Errno::INVAL)) => {}
                    Err(error) => panic!("{error}"),
                }
            }
            15 => {
                let node = self.any_file();
                let mode = Allocate::Reserve { keep_size: self.rng.one_in(2) };
                self.fs.fallocate(node, mode, at, len).unwrap();
            }
            16 => {
                let node = self.any_file();
                self.fs.fallocate(node, Allocate::PunchHole, at, len).unwrap();
            }
            17..19 if self.volumes.len() < 12 => {
                let (_, source) = *self.rng.pick(&self.volumes);
                let name = format!("snapshot{}", self.made);
                self.made += 1;
                let made = self.fs.snapshot(source, Node::ROOT, name.as_bytes(), false).unwrap();
                self.volumes.push((name, made));
            }
            19 if self.volumes.len() > 3 => {
                let victim = self.rng.below(self.volumes.len() as u64) as usize;
                let (name, _) = self.volumes.swap_remove(victim);
                self.fs.delete_subvolume(Node::ROOT, name.as_bytes()).unwrap();
            }
            _ => drop(self.fs.commit().unwrap()),
        }
    }
}

/// What is remembered of earlier versions, and of the first time, must not show: fiemap of every file, twice, is what somebody is told who has just
/// opened the filesystem.
fn compare_anew(graph: &Graph, path: &Path) {
    let ask = |fs: &Filesystem, node: Node| -> Vec<FileExtent> {
        fs.fiemap_committed(node, 0..u64::MAX).unwrap().collect::<Result<_, _>>().unwrap()
    };
    let anew = Filesystem::open(path, Options::read_only()).unwrap();
    for (volume, id) in &graph.volumes {
        for number in 0..FILES {
            let path = format!("{volume}/file{number}");
            let (node, wanted) = (graph.fs.resolve(&path).unwrap(), anew.resolve(&path).unwrap());
            assert_eq!((node, node.subvolume), (wanted, *id));
            let wanted = ask(&anew, wanted);
            assert_eq!(ask(&graph.fs, node), wanted, "{path}");
            assert_eq!(ask(&graph.fs, node), wanted, "{path}, the second time");
        }
    }
}

fn graph(seed: u64) -> [usize; 4] {
    let dir = temp_dir().unwrap();
    let path = dir.path().join("image");
    let device = Arc::new(FileDevice::create(&path, 1 << 30).unwrap());
    let mut options = buttress_mkfs::Options { nodesize: Some(4096), ..Default::default() };
    options.features.set(Feature::NoHoles, !seed.is_multiple_of(3));
    options.features.set(Feature::SkinnyMetadata, !seed.is_multiple_of(4));
    buttress_mkfs::make(&*device, &options, &mut Environment::seeded(seed)).unwrap();
    drop(device);
    let options = Options::read_write().background(false).drop_blocks_max(16);
    let fs = Filesystem::open(&path, options).unwrap();
    let mut graph = Graph { fs, rng: Rng::new(seed), volumes: Vec::new(), made: 0 };
    graph.volume();
    graph.volume();
    let (mut sums, mut dropping) = ([0; 4], 0);
    for _ in 0..6 {
        for _ in 0..60 {
            graph.step();
        }
        graph.fs.commit().unwrap();
        dropping += usize::from(graph.fs.is_dropping());
        compare_anew(&graph, &path);
        let found = compare_plain(&graph.fs);
        sums = std::array::from_fn(|at| sums[at] + found[at]);
    }
    graph.fs.close().unwrap();
    if is_root() {
        check(&path, false).unwrap();
        // Read-only, as asking one that is written to is a commit, which drops more of what is deleted.
        let fs = Filesystem::open(&path, Options::read_only()).unwrap();
        let flags = compare_kernel(&fs, &path, "");
        assert_met(&flags, &[0, fiemap_flags::LAST, fiemap_flags::SHARED]);
    }
    println!("seed {seed}: data, shared, blocks, shared {sums:?}, {dropping} rounds half way");
    sums
}

#[test]
fn random_graphs_are_resolved_as_by_enumeration() {
    for seed in 0..crate::number("BUTTRESS_GRAPHS", 6, 100) {
        let sums = graph(seed);
        assert!(sums.iter().all(|sum| *sum > 100), "{sums:?}");
    }
}
