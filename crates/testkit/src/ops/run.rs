//! One operation on both sides, and the comparison of the answers.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use buttress::{Discard, Env, Errno, Error, Filesystem, Node, Options, Time, Times};
use buttress_codec::ChecksumKind;
use buttress_device::{BlockDevice, MemoryDevice};
use buttress_mkfs::{Environment, Feature, Profile};

use super::rng::Rng;
use super::{Op, compare, kernel};
use crate::model::{Body, Directory, Inode, Model, QuotaMode, Refusal};

mod content;
mod drain;
mod empty;
mod names;
mod quotas;
mod volumes;

/// The engine and the model, or the engine and an oracle, do not agree.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Failure(pub String);

/// How often quotas are counted anew in a row.
const QUOTA_TRIES: usize = 3;
/// Bytes of a device below which a deletion may find no space.
const SMALL: u64 = 512 << 20;

/// Results of operations.
pub type Result<T> = std::result::Result<T, Failure>;

/// Makes a failure of whatever is wrong.
pub fn fail<T>(what: impl std::fmt::Display) -> Result<T> {
    Err(Failure(what.to_string()))
}

/// An unexpected answer of the engine.
pub fn engine<T>(what: &str, result: buttress::Result<T>) -> Result<T> {
    result.map_err(|error| Failure(format!("{what}: {error}")))
}

/// A filesystem to be made.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Bytes of the device.
    pub size: u64,
    /// Bytes of a tree block.
    pub nodesize: u32,
    /// Holes of files need no items.
    pub no_holes: bool,
    /// Data and metadata in the same block groups.
    pub mixed: bool,
    /// Metadata twice.
    pub dup: bool,
    /// Bytes of data that wait in memory for a commit.
    pub dirty_bytes_max: u64,
    /// Bytes of tree blocks in memory.
    pub cache_bytes: u64,
    /// Bytes of memory for where free space lies; with 0, it leaves and is read again all the time.
    pub free_space_max: u64,
    /// Whether a thread commits in the background.
    pub background: bool,
    /// Whether the same operations write the same bytes in the same order.
    pub reproducible: bool,
    /// Blocks of deleted subvolumes that one commit looks at.
    pub drop_blocks_max: usize,
    /// Checksums of data and metadata.
    pub checksum: ChecksumKind,
    /// Whether fsyncs write a log.
    pub tree_log: bool,
    /// It is full all the time: whatever is done may find no space.
    pub tight: bool,
    /// The quotas that there are at first.
    pub quotas: QuotaMode,
    /// When the device is told what has become free: what it does not need any more reads as zeros then.
    pub discard: Option<Discard>,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            size: 1 << 30,
            nodesize: 16384,
            no_holes: true,
            mixed: false,
            dup: true,
            dirty_bytes_max: 32 << 20,
            cache_bytes: 32 << 20,
            free_space_max: 24 << 20,
            background: false,
            reproducible: false,
            drop_blocks_max: 4096,
            checksum: ChecksumKind::Crc32c,
            tree_log: true,
            tight: false,
            quotas: QuotaMode::Off,
            discard: None,
        }
    }
}

impl Config {
    /// A filesystem of this size, the rest of it chosen by a seed.
    pub fn of_seed(seed: u64, size: u64) -> Config {
        let mut rng = Rng::new(seed ^ 0x0c0f_f1e5);
        let nodesize = *rng.pick(&[4096, 16384, 65536]);
        Config {
            size,
            nodesize,
            no_holes: !rng.one_in(5),
            mixed: nodesize == 4096 && rng.one_in(3),
            dup: size >= 512 << 20 && rng.one_in(2),
            dirty_bytes_max: *rng.pick(&[1 << 20, 32 << 20]),
            cache_bytes: *rng.pick(&[1 << 20, 32 << 20]),
            free_space_max: seed % 2 * (24 << 20),
            discard: (seed % 3 == 1).then_some(Discard::Sync),
            drop_blocks_max: *rng.pick(&[16, 4096]),
            ..Config::default()
        }
    }

    /// Switches quotas on.
    fn with_quotas(&self, device: MemoryDevice) -> Result<MemoryDevice> {
        let device = Arc::new(device);
        let fs = engine("open", open(&(device.clone() as _), self, &Clock::default()))?;
        engine("quotas", quotas::switch(&fs, self.quotas))?;
        engine("close", fs.close())?;
        Arc::try_unwrap(device).or_else(|_| fail("somebody still has the device"))
    }

    /// Makes the filesystem.
    pub fn make(&self) -> Result<MemoryDevice> {
        let device = MemoryDevice::new(self.size);
        let profile = if self.dup { Profile::Dup } else { Profile::Single };
        let mut options = buttress_mkfs::Options {
            nodesize: Some(self.nodesize),
            mixed: self.mixed,
            checksum: self.checksum,
            metadata_profile: Some(profile),
            data_profile: Some(if self.mixed { profile } else { Profile::Single }),
            ..buttress_mkfs::Options::default()
        };
        options.features.set(Feature::BlockGroupTree, false);
        options.features.set(Feature::NoHoles, self.no_holes);
        match buttress_mkfs::make(&device, &options, &mut Environment::seeded(1)) {
            Ok(_) if self.quotas != QuotaMode::Off => self.with_quotas(device),
            Ok(_) => Ok(device),
            Err(error) => fail(format!("mkfs: {error}")),
        }
    }
}

/// A clock that goes on by one step with each operation, and stands still for the engine meanwhile. It also counts the steps that the engine takes, and ends one
/// of them by a panic.
#[derive(Clone, Debug, Default)]
pub struct Clock(Arc<AtomicU64>, Arc<Steps>);

/// Steps of the engine.
#[derive(Debug)]
pub struct Steps {
    taken: AtomicU64,
    panic_at: AtomicU64,
}

impl Default for Steps {
    fn default() -> Steps {
        Steps { taken: AtomicU64::new(0), panic_at: AtomicU64::new(u64::MAX) }
    }
}

impl Steps {
    /// How many were taken.
    pub fn taken(&self) -> u64 {
        self.taken.load(Ordering::SeqCst)
    }

    /// The step `at`, counted from 0, ends in a panic ([`PANIC`]).
    pub fn panic_at(&self, at: u64) {
        self.panic_at.store(at, Ordering::SeqCst);
    }

    fn take(&self, what: &'static str) {
        if self.taken.fetch_add(1, Ordering::SeqCst) == self.panic_at.load(Ordering::SeqCst) {
            panic!("{PANIC}: {what}");
        }
    }
}

/// What the panic of a step says.
pub const PANIC: &str = "a planned panic between steps";

impl Clock {
    fn time(step: u64) -> Time {
        Time { sec: 1_790_000_000 + (step >> 10) as i64, nsec: (step & 1023) as u32 * 1000 }
    }

    /// The time now; from here on it is later, and stays so until the next call, whatever a failure makes the engine do once more.
    pub fn now(&self) -> Time {
        Clock::time(self.0.fetch_add(1, Ordering::SeqCst))
    }

    /// A clock of its own that goes on from here.
    pub fn fork(&self) -> Clock {
        Clock(Arc::new(AtomicU64::new(self.0.load(Ordering::SeqCst))), Arc::default())
    }

    /// The steps that the engine has taken.
    pub fn steps(&self) -> &Steps {
        &self.1
    }

    fn env(&self) -> Env {
        let clock = self.clone();
        let mut rng = Rng::new(99);
        let random = move |bytes: &mut [u8]| {
            for part in bytes.chunks_mut(8) {
                part.copy_from_slice(&rng.next().to_le_bytes()[..part.len()]);
            }
        };
        let steps = self.1.clone();
        Env::new(move || Clock::time(clock.0.load(Ordering::SeqCst)), random)
            .watched(move |what| steps.take(what))
    }
}

/// What has happened.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    /// Operations that were done.
    pub done: u64,
    /// Operations that were refused as the model wanted.
    pub refused: u64,
    /// Operations that had nothing to work on.
    pub skipped: u64,
    /// Operations that found no space: what they were about is compared.
    pub no_space: u64,
    /// Deletions that found no space.
    pub stuck: u64,
    /// Comparisons of everything.
    pub compared: u64,
    /// Runs of `btrfs check`.
    pub checked: u64,
}

impl Counts {
    /// Both.
    pub fn and(self, other: Counts) -> Counts {
        Counts {
            done: self.done + other.done,
            refused: self.refused + other.refused,
            skipped: self.skipped + other.skipped,
            no_space: self.no_space + other.no_space,
            stuck: self.stuck + other.stuck,
            compared: self.compared + other.compared,
            checked: self.checked + other.checked,
        }
    }
}

/// The engine beside the model.
pub struct Runner {
    config: Config,
    /// What judges of whole images look at.
    device: Option<Arc<MemoryDevice>>,
    /// What the filesystem is opened on.
    disk: Option<Arc<dyn BlockDevice>>,
    fs: Option<Filesystem>,
    clock: Clock,
    model: Model,
    /// What has happened so far.
    pub counts: Counts,
    before: Time,
    /// Ranges that were read again after a refusal.
    resyncs: u64,
    /// What was with quota groups since they were changed last.
    since: quotas::Since,
}

impl Runner {
    /// A new filesystem of its own.
    pub fn new(config: &Config) -> Result<Runner> {
        let device = Arc::new(config.make()?);
        let mut runner = Runner::over(device.clone(), config)?;
        runner.device = Some(device);
        Ok(runner)
    }

    /// An empty filesystem on this device.
    pub fn over(disk: Arc<dyn BlockDevice>, config: &Config) -> Result<Runner> {
        Runner::by_clock(disk, config, Clock::default())
    }

    /// The same, by this clock.
    pub fn by_clock(disk: Arc<dyn BlockDevice>, config: &Config, clock: Clock) -> Result<Runner> {
        let fs = engine("open", open(&disk, config, &clock))?;
        if !fs.has_quotas() {
            engine("quotas", quotas::switch(&fs, config.quotas))?;
        }
        let mut runner = Runner::on(fs, Node::ROOT, config, clock)?;
        runner.disk = Some(disk);
        Ok(runner)
    }

    /// A filesystem that holds what the model does.
    pub fn resume(
        fs: Filesystem,
        disk: Arc<dyn BlockDevice>,
        config: &Config,
        clock: Clock,
        model: Model,
    ) -> Runner {
        let (before, counts, disk) = (clock.now(), Counts::default(), Some(disk));
        Runner {
            config: *config,
            device: None,
            disk,
            fs: Some(fs),
            clock,
            model,
            counts,
            before,
            resyncs: 0,
            since: Default::default(),
        }
    }

    /// A part of a filesystem: what is below `root`, an empty directory that nobody else uses.
    pub fn on(fs: Filesystem, root: Node, config: &Config, clock: Clock) -> Result<Runner> {
        let top = inode_of(&engine("attributes of the root", fs.attributes(root))?);
        let mut model = Model::new(root, top, config.nodesize);
        model.quotas = config.quotas;
        let (before, counts) = (clock.now(), Counts::default());
        let (device, disk, config) = (None, None, *config);
        let fs = Some(fs);
        let since = Default::default();
        Ok(Runner { config, device, disk, fs, clock, model, counts, before, resyncs: 0, since })
    }

    /// What the filesystem was made as.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The model.
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// The clock of the filesystem.
    pub fn clock(&self) -> Clock {
        self.clock.clone()
    }

    /// The filesystem.
    pub fn fs(&self) -> &Filesystem {
        self.fs.as_ref().expect("open between operations")
    }

    /// The filesystem, unless opening it has failed.
    pub fn opened(&self) -> Option<&Filesystem> {
        self.fs.as_ref()
    }

    /// The device, unless the filesystem is somebody else's.
    pub fn device(&self) -> Option<&Arc<MemoryDevice>> {
        self.device.as_ref()
    }

    /// Does an operation on both sides.
    pub fn step(&mut self, op: &Op) -> Result<()> {
        self.before = self.clock.now();
        self.note_for_limits(op);
        let done = self.dispatch(op).and_then(|()| self.within_promises());
        done.map_err(|Failure(why)| Failure(format!("{op}: {why}")))
    }

    fn dispatch(&mut self, op: &Op) -> Result<()> {
        match op {
            Op::Make { .. }
            | Op::Temporary { .. }
            | Op::Link { .. }
            | Op::Unlink { .. }
            | Op::Rmdir { .. }
            | Op::Rename { .. }
            | Op::Hold { .. }
            | Op::Release { .. }
            | Op::List { .. }
            | Op::Look { .. } => self.name_op(op),
            Op::Subvolume { .. }
            | Op::Snapshot { .. }
            | Op::DeleteSubvolume { .. }
            | Op::ReadOnly { .. } => self.volume_op(op),
            Op::Fsync { at } => self.fsync(at),
            // Who runs both at the same time does it himself.
            Op::Commit | Op::Beside => {
                engine("commit", self.fs().commit())?;
                self.check_quotas()?;
                self.change_groups()
            }
            Op::Flush => engine("flush", self.fs().flush_delalloc()).map(drop),
            Op::Await => Ok(()),
            Op::Clean => engine("clean", self.fs().clean()),
            Op::Empty { number } => self.empty(*number),
            Op::Trim => self.trim(),
            Op::Quotas { mode } => self.switch_quotas(*mode),
            Op::Reopen => self.reopen(),
            Op::Compare => self.compare(),
            Op::Check => self.check(),
            Op::Drain => self.drain(),
            _ => self.content_op(op),
        }
    }

    /// No commit has written more tree blocks than operations were promised.
    fn within_promises(&self) -> Result<()> {
        match self.fs.as_ref().map_or(0, |fs| fs.stats().beyond_promise) {
            0 => Ok(()),
            blocks => fail(format!("a commit has written {blocks} blocks more than were promised")),
        }
    }

    /// Makes a file or a directory durable.
    fn fsync(&mut self, at: &str) -> Result<()> {
        let Some(node) = self.find(at) else { return Ok(()) };
        engine("fsync", self.fs().sync(node))?;
        self.counts.done += 1;
        Ok(())
    }

    /// Closes the filesystem, files that are held and all, opens it and compares everything.
    fn reopen(&mut self) -> Result<()> {
        let Some(disk) = self.disk.clone() else { return Ok(()) };
        if self.fs.is_some() {
            self.note_close_for_limits()?;
        }
        if let Some(fs) = self.fs.take() {
            engine("close", fs.close())?;
        }
        self.model.close();
        self.fs = Some(engine("open", open(&disk, &self.config, &self.clock))?);
        crate::usage::compare(self.fs()).or_else(fail)?;
        self.compare()
    }

    /// Closes it, opens it, and compares everything; `btrfs check` judges the image in between.
    pub fn reopen_and_check(&mut self) -> Result<()> {
        self.check()?;
        self.reopen()
    }

    /// Compares all that the engine and the model hold.
    pub fn compare(&mut self) -> Result<()> {
        self.counts.compared += 1;
        compare::all(self.fs(), &self.model)
    }

    /// Commits and lets `btrfs check` judge the image.
    pub fn check(&mut self) -> Result<()> {
        engine("commit", self.fs().commit())?;
        self.check_quotas()?;
        let Some(device) = &self.device else { return Ok(()) };
        self.counts.checked += 1;
        kernel::check_with_quotas(device, &self.config)
    }

    /// What the last commit says of quota groups is what there is.
    fn check_quotas(&self) -> Result<()> {
        // Where others commit meanwhile there is no one version to look at.
        if !self.has_quotas() {
            return Ok(());
        }
        // Where more has changed than a commit may look at, they are counted anew. Each commit may drop more.
        self.within_limits()?;
        if self.model.quotas == QuotaMode::Simple {
            // States of a device that is somebody else's are judged by him.
            let checked = |device| compare::simple_quotas(self.fs(), device);
            return self.device.as_deref().map_or(Ok(()), checked);
        }
        for _ in 0..QUOTA_TRIES {
            if compare::quotas_are_wrong(self.fs())? {
                engine("clean", self.fs().clean())?;
                engine("quotas", self.fs().count_quotas(|_| true))?;
            }
            let compared = compare::quotas(self.fs());
            if compared.is_ok() || !compare::quotas_are_wrong(self.fs())? {
                return compared;
            }
        }
        Ok(())
    }

    /// Closes the filesystem and lets `btrfs check` and, for root, Linux judge the image.
    pub fn finish(&mut self) -> Result<()> {
        self.finish_unmounted()?;
        self.device.as_ref().map_or(Ok(()), |device| kernel::mounted(device, &self.model))
    }

    /// The same without Linux.
    pub fn finish_unmounted(&mut self) -> Result<()> {
        if self.fs.is_some() {
            self.reopen()?;
        }
        if self.has_quotas() && self.fs.is_some() {
            engine("clean", self.fs().clean())?;
            self.check_quotas()?;
        }
        if let Some(fs) = self.fs.take() {
            engine("close", fs.close())?;
        }
        self.device.as_ref().map_or(Ok(()), |device| kernel::check(device))
    }

    // ---- judging ----

    /// What the engine answered, against what the model expects; `None` when the operation was refused as it should be.
    /// `grows`: it may find no space.
    fn judge<T>(
        &mut self,
        refusal: &Refusal,
        grows: bool,
        answer: buttress::Result<T>,
    ) -> Result<Option<T>> {
        match answer {
            // Groups have limits now and then.
            Err(Error::User(Errno::DQUOT)) if self.model.quotas != QuotaMode::Off => {
                self.counts.no_space += 1;
                Ok(None)
            }
            Ok(answer) if refusal.is_empty() => {
                self.counts.done += 1;
                Ok(Some(answer))
            }
            Ok(_) => fail(format!("done, but must be refused: {refusal:?}")),
            Err(Error::User(errno)) if refusal.contains(&errno) => {
                self.counts.refused += 1;
                Ok(None)
            }
            Err(Error::NoSpace) if grows => {
                self.counts.no_space += 1;
                Ok(None)
            }
            // Where little space has been shared by snapshots, deleting can take more than is kept back for it. What must
            // be possible then is to delete the snapshots.
            Err(Error::NoSpace) if self.is_tight() => {
                self.counts.stuck += 1;
                Ok(None)
            }
            Err(error) if refusal.is_empty() => fail(format!("must be done: {error:?}")),
            Err(error) => fail(format!("must be refused by {refusal:?}, not {error:?}")),
        }
    }

    /// Whether there may be no space for anything.
    fn is_tight(&self) -> bool {
        self.config.size < SMALL || self.config.tight
    }

    /// What a path leads to in the model; `None` when it leads nowhere.
    fn find(&mut self, path: &str) -> Option<Node> {
        let found = self.model.resolve(path).ok();
        self.counts.skipped += u64::from(found.is_none());
        found
    }

    fn find_parent<'p>(&mut self, path: &'p str) -> Option<(Node, &'p [u8])> {
        let found = self.model.resolve_parent(path).ok();
        self.counts.skipped += u64::from(found.is_none());
        found
    }

    /// Takes over the times of files that an operation may have changed: they are as before, or of now.
    fn refresh(&mut self, nodes: &[Node]) -> Result<()> {
        let now = self.clock.now();
        for node in nodes {
            let Some(inode) = self.model.inode(*node) else { continue };
            let old = inode.times;
            let found = engine("attributes after", self.fs().attributes(*node))?;
            let good = |old: Time, new: Time| old == new || (self.before..=now).contains(&new);
            let new = Times {
                atime: found.atime,
                mtime: found.mtime,
                ctime: found.ctime,
                otime: old.otime,
            };
            if !good(old.atime, new.atime) || !good(old.mtime, new.mtime) {
                return fail(format!("times of {node:?} were {old:?} and are {new:?}"));
            }
            if !good(old.ctime, new.ctime) {
                return fail(format!("change time of {node:?} was {old:?} and is {new:?}"));
            }
            if let Some(inode) = self.model.inode_mut(*node) {
                inode.times = new;
            }
        }
        Ok(())
    }

    /// What must be gone is gone.
    fn must_be_gone(&self, node: Node) -> Result<()> {
        if self.model.volumes.get(&node.subvolume).is_some_and(|volume| volume.read_only) {
            return Ok(());
        }
        match self.fs().attributes(node) {
            Err(error) if error.errno() == Errno::NOENT => Ok(()),
            found => fail(format!("{node:?} must be gone: {found:?}")),
        }
    }
}

/// Opens the filesystem on a device, to be written.
pub fn open(
    disk: &Arc<dyn BlockDevice>,
    config: &Config,
    clock: &Clock,
) -> buttress::Result<Filesystem> {
    Filesystem::open_device(disk.clone(), options(config, clock))
}

/// How a runner opens.
pub fn options(config: &Config, clock: &Clock) -> Options {
    Options::read_write()
        .background(config.background)
        .dirty_bytes_max(config.dirty_bytes_max)
        .cache_bytes(config.cache_bytes)
        .free_space_max(config.free_space_max)
        .reproducible(config.reproducible)
        .drop_blocks_max(config.drop_blocks_max)
        .tree_log(config.tree_log)
        .discard(config.discard)
        .env(clock.env())
}

/// The model of an empty directory with these attributes.
fn inode_of(found: &buttress::Attributes) -> Inode {
    Inode {
        mode: found.mode,
        uid: found.uid,
        gid: found.gid,
        nlink: found.nlink,
        times: times_of(found),
        xattrs: Default::default(),
        body: Body::Directory(Directory { parent: found.node.ino, ..Directory::default() }),
    }
}

fn times_of(found: &buttress::Attributes) -> Times {
    let buttress::Attributes { atime, mtime, ctime, otime, .. } = *found;
    Times { atime, mtime, ctime, otime }
}
