//! The workloads that are recorded: small images, many commits, each with something of its own to lose.

mod data_fsyncs;
mod fsyncs;
mod name_fsyncs;
mod program_fsyncs;
mod scripts;
mod table;

use buttress::Node;
use buttress_codec::ChecksumKind;

use crate::model::{Inode, Model};
use crate::ops::generate::{Generator, Profile};
use crate::ops::rng::Rng;
use crate::ops::run::Config;
use crate::ops::{Op, parse_all};

pub use fsyncs::{fsyncs, random_fsyncs};
pub use table::all;

/// A sequence of operations on a filesystem of its own.
#[derive(Clone, Copy, Debug)]
pub struct Workload {
    /// Its name.
    pub name: &'static str,
    /// The filesystem.
    pub config: Config,
    /// What is done.
    pub script: Script,
}

/// Where operations come from.
#[derive(Clone, Copy, Debug)]
pub enum Script {
    /// Words, one operation a line.
    Words(fn() -> String),
    /// A seed, and how many operations.
    Seed(u64, u64, Profile),
    /// The same with few commits and many fsyncs.
    Synced(u64, u64, Profile),
}

/// Operations, one after the other.
pub enum Source {
    /// Those that are written down.
    Listed(std::vec::IntoIter<Op>),
    /// Those of a seed.
    Random(Box<Random>),
}

/// Random operations with a commit every few of them.
pub struct Random {
    generator: Generator,
    rng: Rng,
    left: u64,
    /// Operations before the next commit.
    until: u64,
    synced: bool,
    /// A commit goes on beside.
    beside: bool,
}

impl Workload {
    /// The operations.
    pub fn source(&self) -> Source {
        match self.script {
            Script::Words(words) => {
                let ops = parse_all(&words()).expect("scripts hold operations only");
                Source::Listed(ops.into_iter())
            }
            Script::Seed(seed, left, profile) => random(seed, left, profile, false),
            Script::Synced(seed, left, profile) => random(seed, left, profile, true),
        }
    }
}

fn random(seed: u64, left: u64, profile: Profile, synced: bool) -> Source {
    let (generator, rng) = (Generator::new(seed, profile), Rng::new(seed));
    let beside = false;
    Source::Random(Box::new(Random { generator, rng, left, until: 4, synced, beside }))
}

impl Source {
    /// The next operation.
    pub fn next(&mut self, model: &Model) -> Option<Op> {
        match self {
            Source::Listed(ops) => ops.next(),
            Source::Random(random) => random.next(model),
        }
    }
}

impl Random {
    fn next(&mut self, model: &Model) -> Option<Op> {
        self.left = self.left.checked_sub(1)?;
        if self.until == 0 {
            self.until = 2 + self.rng.below(if self.synced { 40 } else { 12 });
            return Some(self.commit());
        }
        self.until -= 1;
        if self.synced && self.rng.one_in(3) {
            return Some(Op::Fsync { at: self.somewhere(model) });
        }
        Some(self.generator.next(model))
    }

    /// A commit; where there are fsyncs, some go on beside what follows.
    fn commit(&mut self) -> Op {
        match std::mem::take(&mut self.beside) {
            true => Op::Await,
            false if self.synced && self.rng.one_in(3) => {
                (self.beside, self.until) = (true, 1 + self.rng.below(6));
                Op::Beside
            }
            false => Op::Commit,
        }
    }

    /// The path of a file or a directory that is there.
    fn somewhere(&mut self, model: &Model) -> String {
        let (mut at, mut path) = (Node::ROOT, String::new());
        while let Some(dir) = model.inode(at).and_then(Inode::directory) {
            let names: Vec<_> = dir.entries.iter().collect();
            if names.is_empty() || self.rng.one_in(4) {
                break;
            }
            let (name, (target, _)) = *self.rng.pick(&names);
            let to = Model::node_of(at.subvolume, *target);
            let can_be_opened = |it: &Inode| it.directory().is_some() || it.content().is_some();
            let (true, Ok(name)) =
                (model.inode(to).is_some_and(can_be_opened), std::str::from_utf8(name))
            else {
                break;
            };
            path = format!("{path}/{name}");
            at = to;
        }
        if path.is_empty() { "/".into() } else { path }
    }
}

/// A small filesystem: large enough for a second superblock, so that a torn one can be survived.
pub(super) fn small(nodesize: u32) -> Config {
    Config {
        size: 128 << 20,
        nodesize,
        dup: false,
        reproducible: true,
        cache_bytes: 4 << 20,
        free_space_max: 0,
        checksum: ChecksumKind::Crc32c,
        ..Config::default()
    }
}
