//! The workloads that are recorded: small images, many commits, each with something of its own to lose.

mod scripts;
mod table;

use buttress_codec::ChecksumKind;

use crate::model::Model;
use crate::ops::generate::{Generator, Profile};
use crate::ops::rng::Rng;
use crate::ops::run::Config;
use crate::ops::{Op, parse_all};

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
}

impl Workload {
    /// The operations.
    pub fn source(&self) -> Source {
        match self.script {
            Script::Words(words) => {
                let ops = parse_all(&words()).expect("scripts hold operations only");
                Source::Listed(ops.into_iter())
            }
            Script::Seed(seed, left, profile) => Source::Random(Box::new(Random {
                generator: Generator::new(seed, profile),
                rng: Rng::new(seed),
                left,
                until: 4,
            })),
        }
    }
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
            self.until = 2 + self.rng.below(12);
            return Some(Op::Commit);
        }
        self.until -= 1;
        Some(self.generator.next(model))
    }
}

/// A small filesystem: large enough for a second superblock, so that a torn one can be survived.
fn small(nodesize: u32) -> Config {
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
