//! Operations on a filesystem that is full to the brim, where what they change is shared and scattered.
//!
//! What a commit writes has little to do with what an operation looks like: one small hole below a snapshot may touch hundreds
//! of leaves of the extent tree. So the filesystem is made such that every promise is called upon: files of small extents that
//! lie between each other, snapshots that share their leaves, data filled with reserved space and metadata with long values.
//! Then random operations go on there, refilling what they free. Whatever is answered may be "no space", but what was done is
//! done: no commit fails or writes more than was promised, and everything is there afterwards; and then it can be deleted.
//!
//! Linux is not asked what it makes of the image: 6.18 may wait for itself where there is no room.

use buttress::{Allocate, Node, Owner, SetXattr};

use super::generate::{Generator, Profile};
use super::rng::Rng;
use super::run::{Config, Counts, Failure, Result, Runner, engine};
use super::threads::{self, guarded, joined};
use super::{Make, Op};

/// A prime that is far from everything: its multiples go round without meeting a number of extents twice.
const FAR: u64 = 1_000_003;

/// So many values are deleted where nothing else can be.
const OWN: u64 = 40;

/// After so many operations that found room, the filesystem is filled again.
const ROOMY_MAX: u32 = 30;

/// How the filesystem is filled.
#[derive(Clone, Copy, Debug)]
pub struct Brim {
    /// Extents of each of the two scattered files.
    pub extents: u64,
    /// Snapshots before the filling.
    pub snapshots: u64,
    /// Bytes of each long value.
    pub value: usize,
}

impl Brim {
    /// A filesystem and its filling from a seed. Twenty seeds in a row have all sizes of nodes, on small filesystems and on
    /// those of 20 GiB, with one copy of metadata and with two.
    pub fn of_seed(seed: u64) -> (Config, Brim) {
        let mut rng = Rng::new(seed ^ 0x0b12_13e5);
        let nodesize = [16384, 4096, 65536, 8192, 32768][(seed % 5) as usize];
        let (large, dup) = (seed / 5 % 2 == 1, seed / 10 % 2 == 1);
        let size = if large { 20 << 30 } else { *rng.pick(&[180 << 20, 256 << 20, 600 << 20]) };
        let config = Config {
            size,
            nodesize,
            no_holes: !rng.one_in(5),
            mixed: nodesize == 4096 && size <= 256 << 20 && rng.one_in(3),
            dup,
            dirty_bytes_max: *rng.pick(&[1 << 20, 32 << 20]),
            cache_bytes: *rng.pick(&[1 << 20, 32 << 20]),
            drop_blocks_max: *rng.pick(&[16, 4096]),
            free_space_max: seed % 2 * (24 << 20),
            tight: true,
            ..Config::default()
        };
        // Where nearly all data is scattered, nearly all metadata is references to it.
        let most = size.min(256 << 20) / 8192 * 7 / 10;
        let extents = if rng.one_in(3) { most } else { 200 + rng.below(most) };
        let value = (nodesize as usize / 2 - 300).min(8000);
        (config, Brim { extents, snapshots: rng.below(4), value })
    }
}

/// Operations on one filesystem, and all that were done.
pub struct Run {
    runner: Runner,
    rng: Rng,
    generator: Generator,
    brim: Brim,
    made: u64,
    /// Where space is reserved next.
    big_end: u64,
    /// Operations since the last one that found no space.
    roomy: u32,
    /// The operations so far.
    pub done: Vec<Op>,
}

impl Run {
    /// A new filesystem.
    pub fn new(seed: u64, config: &Config, brim: Brim) -> Result<Run> {
        Ok(Run::of(seed, Runner::new(config)?, brim))
    }

    /// What a runner is at.
    fn of(seed: u64, runner: Runner, brim: Brim) -> Run {
        let profile = Profile { closes: false, volumes_max: 6, ..Profile::default() };
        let (rng, generator) = (Rng::new(seed ^ 0x5eed), Generator::new(seed, profile));
        Run { runner, rng, generator, brim, made: 0, big_end: 0, roomy: 0, done: Vec::new() }
    }

    /// The engine beside the model.
    pub fn runner(&mut self) -> &mut Runner {
        &mut self.runner
    }

    fn step(&mut self, op: Op) -> Result<()> {
        self.done.push(op.clone());
        self.runner.step(&op)
    }

    /// Empties a block group.
    pub fn empty(&mut self, number: u64) -> Result<()> {
        self.step(Op::Empty { number })?;
        self.step(Op::Trim)
    }

    /// Whether an operation found room, and was done.
    fn fits(&mut self, op: Op) -> Result<bool> {
        let before = self.runner.counts.done;
        self.step(op)?;
        Ok(self.runner.counts.done > before)
    }

    /// Fills the filesystem.
    pub fn fill(&mut self) -> Result<()> {
        for name in ["/s0", "/s1", "/big", "/v0"] {
            self.make(name)?;
        }
        let mut refused = 0;
        for turn in 0..self.brim.extents {
            // What is near in the file is far apart on the disk.
            let at = turn * FAR % self.brim.extents;
            for name in ["/s0", "/s1"] {
                let op = self.sector(name, at);
                refused += u32::from(!self.fits(op)?);
            }
            // Large nodes leave little room for scattered data.
            if refused > 10 {
                break;
            }
            if turn % 200 == 199 {
                self.step(Op::Commit)?;
            }
        }
        for number in 0..self.brim.snapshots {
            let to = format!("/snap{number}");
            self.step(Op::Snapshot { from: "/".into(), to, read_only: number % 2 == 0 })?;
            for _ in 0..self.brim.extents / 100 {
                let at = self.rng.below(self.brim.extents);
                let op = self.sector("/s0", at);
                refused += u32::from(refused < 20 && !self.fits(op)?);
            }
        }
        self.fill_data(self.runner.config().size, 1 << 16)?;
        self.fill_metadata()?;
        self.step(Op::Commit)
    }

    /// What snapshots have is changed here and there until that finds no room, with all that deletions may use; then what
    /// they do not have must go all the same: long values, which were made after them.
    pub fn own_goes(&mut self) -> Result<()> {
        let (mut refused, mut turn) = (0, 0);
        while refused < 5 && turn < self.brim.extents {
            let offset = turn * FAR % self.brim.extents * 8192;
            let op =
                Op::Allocate { at: "/s0".into(), mode: Allocate::PunchHole, offset, len: 4096 };
            let before = self.runner.counts.stuck;
            self.step(op)?;
            refused += self.runner.counts.stuck - before;
            turn += 1;
        }
        let stuck = self.runner.counts.stuck;
        for number in self.made.saturating_sub(OWN)..self.made {
            let (at, name) = (format!("/v{}", number / 2000), format!("user.{number}"));
            self.step(Op::RemoveXattr { at, name })?;
        }
        match self.runner.counts.stuck - stuck {
            0 => self.step(Op::Commit),
            _ => Err(Failure("what no snapshot has could not be deleted".into())),
        }
    }

    fn make(&mut self, at: &str) -> Result<()> {
        self.step(Op::Make { at: at.into(), what: Make::File, mode: 0o644, owner: 0 })
    }

    fn sector(&mut self, at: &str, number: u64) -> Op {
        let seed = 1 + self.rng.below(1000) as u32;
        Op::Write { at: at.into(), offset: number * 8192, len: 4096, seed }
    }

    /// Reserves all there is, from pieces of `len` bytes on down to `least`.
    fn fill_data(&mut self, mut len: u64, least: u64) -> Result<()> {
        while len >= least {
            let mode = Allocate::Reserve { keep_size: false };
            let offset = self.big_end;
            let fits = self.fits(Op::Allocate { at: "/big".into(), mode, offset, len })?;
            // Part of it may be there.
            self.big_end += len;
            if !fits {
                len /= 2;
            }
        }
        Ok(())
    }

    fn fill_metadata(&mut self) -> Result<()> {
        let mut failed = 0;
        while failed < 3 {
            let op = self.value();
            failed += u32::from(!self.fits(op)?);
        }
        Ok(())
    }

    /// A long value of a file of its own.
    fn value(&mut self) -> Op {
        self.made += 1;
        let name = format!("user.{}", self.made);
        let (len, seed) = (self.brim.value, self.made as u32);
        // What lists a file's values takes 64 KiB of names at most.
        let at = format!("/v{}", self.made / 2000);
        if self.made.is_multiple_of(2000) || self.runner.model().resolve(&at).is_err() {
            return Op::Make { at, what: Make::File, mode: 0o644, owner: 0 };
        }
        Op::SetXattr { at, name, len, seed, how: SetXattr::Any }
    }

    /// One of the scattered files, of any subvolume.
    fn scattered(&mut self) -> String {
        let file = if self.rng.one_in(3) { "s1" } else { "s0" };
        let volumes: Vec<String> = (0..8)
            .map(|number| format!("/snap{number}"))
            .filter(|path| self.runner.model().resolve(path).is_ok())
            .collect();
        match volumes.is_empty() || self.rng.one_in(2) {
            true => format!("/{file}"),
            false => format!("{}/{file}", self.rng.pick(&volumes)),
        }
    }

    /// A random operation, of which something comes: it is done, or refused.
    pub fn random(&mut self) -> Result<()> {
        if self.roomy > ROOMY_MAX {
            self.refill()?;
        }
        for _ in 0..1000 {
            let before = self.runner.counts;
            self.any()?;
            let now = self.runner.counts;
            let short = now.no_space + now.stuck > before.no_space + before.stuck;
            self.roomy = if short { 0 } else { self.roomy + 1 };
            if now.skipped == before.skipped {
                break;
            }
        }
        Ok(())
    }

    fn any(&mut self) -> Result<()> {
        for name in ["/s0", "/s1", "/big"] {
            if self.runner.model().resolve(name).is_err() && self.rng.one_in(2) {
                return self.make(name);
            }
        }
        let at = self.scattered();
        let number = self.rng.below(self.brim.extents);
        let offset = number * 8192;
        let op = match self.rng.below(100) {
            0..25 => self.generator.next(self.runner.model()),
            25..42 => {
                let len = if self.rng.one_in(6) { 8192 * (1 + self.rng.below(40)) } else { 4096 };
                Op::Allocate { at, mode: Allocate::PunchHole, offset, len }
            }
            42..58 => self.sector(&at, number),
            58..66 => {
                let (to, len) = (self.scattered(), 8192 * (1 + self.rng.below(60)));
                let to_offset = self.rng.below(self.brim.extents) * 8192;
                Op::Clone { from: at, offset, len, to, to_offset }
            }
            66..69 => {
                let to = format!("/snap{}", self.rng.below(8));
                Op::Snapshot { from: "/".into(), to, read_only: self.rng.one_in(3) }
            }
            69..72 => Op::DeleteSubvolume { at: format!("/snap{}", self.rng.below(8)) },
            72..88 => self.value(),
            88..91 => {
                let number = 1 + self.rng.below(self.made);
                let (at, name) = (format!("/v{}", number / 2000), format!("user.{number}"));
                Op::RemoveXattr { at, name }
            }
            91 => Op::Truncate { at, size: offset },
            92 => {
                let mode = Allocate::Reserve { keep_size: false };
                let offset = self.rng.below(1 << 20) * 4096;
                Op::Allocate { at: "/big".into(), mode, offset, len: 1 << 20 }
            }
            93..97 => Op::Commit,
            97 if self.rng.one_in(2) => Op::Clean,
            97 => Op::Flush,
            _ if self.rng.one_in(40) => Op::Reopen,
            _ => Op::List { at: "/".into() },
        };
        self.step(op)
    }

    /// Fills what has become free.
    fn refill(&mut self) -> Result<()> {
        self.roomy = 0;
        self.step(Op::Clean)?;
        self.fill_data(64 << 20, 1 << 14)?;
        self.fill_metadata()?;
        self.step(Op::Commit)
    }

    /// Everything is compared, and judged by `btrfs check`; then everything is deleted, and that is judged.
    pub fn finish(&mut self) -> Result<()> {
        self.runner.reopen_and_check()?;
        self.step(Op::Drain)?;
        self.runner.finish_unmounted()
    }
}

/// The same by several threads, each in a subvolume of its own, with a thread that commits.
pub fn in_threads(seed: u64, config: &Config, brim: Brim, count: u64, ops: u64) -> Result<Counts> {
    let config = Config { background: true, ..*config };
    let brim = Brim { extents: brim.extents / count.max(1) + 1, ..brim };
    let main = Runner::new(&config)?;
    let (fs, device) = (main.fs().clone(), main.device().cloned());
    let mut handles = Vec::new();
    for number in 0..count {
        let name = format!("thread{number}");
        let made = fs.create_subvolume(Node::ROOT, name.as_bytes(), Owner::default());
        let root = Node::top(engine("subvolume", made)?);
        let runner = Runner::on(fs.clone(), root, &config, main.clock())?;
        let mut run = Run::of(seed.wrapping_mul(1000) + number, runner, brim);
        handles.push(std::thread::spawn(move || {
            guarded(|| {
                run.fill()?;
                (0..ops / count.max(1)).try_for_each(|_| run.random())?;
                Ok(run)
            })
        }));
    }
    let done: Vec<Result<Run>> = handles.into_iter().map(joined).collect();
    let mut runs = done.into_iter().collect::<Result<Vec<_>>>()?;
    let mut counts = Counts::default();
    for run in &mut runs {
        run.runner.compare()?;
        counts = counts.and(run.runner.counts);
    }
    let models: Vec<_> = runs.iter().map(|run| run.runner.model().clone()).collect();
    let roots: Vec<_> = models.iter().map(|model| model.root).collect();
    drop((runs, main));
    engine("close", fs.close())?;
    if let Some(device) = device {
        super::kernel::check(&device)?;
        threads::again(&device, &models, &roots)?;
    }
    Ok(counts)
}
