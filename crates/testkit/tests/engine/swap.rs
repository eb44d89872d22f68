//! The library and the kernel write by turns; after each turn the other reads the same, and `btrfs check` finds nothing.
//!
//! This holds for every image of the corpus that may be written, that is, for every feature of the format.

use std::path::{Path, PathBuf};

use buttress::device::FileDevice;
use buttress::ondisk::superblock::compat_ro;
use buttress::{Filesystem, Node, Options};
use buttress_testkit::corpus::{Expectation, Image};
use buttress_testkit::facts::{Facts, diff, facts_of_dir, facts_of_library};
use buttress_testkit::oracle::{
    KernelMount, LoopDevice, TempDir, btrfs, check, root_or_skip, temp_dir,
};

use crate::each::each;
use crate::{ours, theirs};

type Step<T> = Result<T, String>;

/// Differences shown of one comparison.
const SHOWN: usize = 12;

/// Images that only bring together what others have one by one: taken with `BUTTRESS_LONG=1`.
const PAIRS: [&str; 16] = [
    "node-4k-links",
    "node-4k-collisions",
    "node-64k-attributes",
    "node-4k-snapshots",
    "node-64k-directories",
    "mixed-zstd",
    "mixed-snapshots",
    "blake2-zlib",
    "sha256-node-4k",
    "xxhash-dup-data",
    "explicit-holes-enormous",
    "explicit-holes-lzo",
    "old-extent-items-snapshots",
    "metadata-uuid-sha256",
    "quotas-deleted",
    "nested-space-cache-v1",
];

/// Rounds of turns with `BUTTRESS_LONG=1`.
const ROUNDS_LONG: u64 = 6;

/// A filesystem in a file that both write to.
struct Swap {
    _dir: TempDir,
    path: PathBuf,
    offset: u64,
    /// Whether the checker that is installed knows all its features.
    known: bool,
    /// Whether the kernel moves everything, which takes a while.
    upkeep: bool,
}

/// Images on which the kernel moves everything after our changes: references of all kinds.
const MOVED: [&str; 4] = ["plain", "mixed-zstd", "node-4k-snapshots", "old-extent-items"];

/// A directory in memory if there is one: all these commits would wait for a disk.
fn quick_dir() -> Step<TempDir> {
    let memory = tempfile::Builder::new().prefix("buttress-").tempdir_in("/dev/shm");
    memory.or_else(|_| temp_dir()).map_err(|error| error.to_string())
}

fn long() -> bool {
    std::env::var("BUTTRESS_LONG").is_ok_and(|value| value != "0")
}

fn because(what: &'static str) -> impl Fn(&dyn std::fmt::Display) -> String {
    move |error| format!("{what}: {error}")
}

fn alike(what: &str, have: &Facts, expect: &Facts) -> Step<()> {
    let lines = diff(have, expect);
    match lines.len() {
        0 => Ok(()),
        count => {
            let shown: Vec<_> = lines.into_iter().take(SHOWN).collect();
            Err(format!("{what}: {count} differences\n    {}", shown.join("\n    ")))
        }
    }
}

impl Swap {
    fn of(image: &Image) -> Step<Swap> {
        let dir = quick_dir()?;
        let path = image.copy_to(dir.path()).map_err(|error| error.to_string())?;
        let upkeep = MOVED.contains(&image.name);
        Ok(Swap { _dir: dir, path, offset: image.offset, known: true, upkeep })
    }

    /// An empty filesystem as our own mkfs makes it today, with a block group tree.
    fn made_by_us() -> Step<Swap> {
        let dir = quick_dir()?;
        let path = dir.path().join("image");
        let device = FileDevice::create(&path, 512 << 20).map_err(|error| error.to_string())?;
        let mut environment = buttress_mkfs::Environment::system();
        buttress_mkfs::make(&device, &buttress_mkfs::Options::default(), &mut environment)
            .map_err(|error| error.to_string())?;
        Ok(Swap { _dir: dir, path, offset: 0, known: false, upkeep: true })
    }

    fn options(&self) -> Options {
        Options::read_write().background(false).offset(self.offset)
    }

    /// The library's turn; what it then shows.
    fn ours(&self, round: u64) -> Step<Facts> {
        let options = self.options();
        // One image's primary superblock is bad: what is left of it does not say whether the mirror is old.
        let fs = match Filesystem::open(&self.path, options.clone()) {
            Err(error) if error.to_string().contains("the primary superblock is bad") => {
                Filesystem::open(&self.path, options.use_backup_super(true))
            }
            opened => opened,
        };
        let fs = fs.map_err(|e| because("open")(&e))?;
        let top = Node::top(fs.default_subvolume().map_err(|e| e.to_string())?);
        ours::change(&fs, top, round).map_err(|e| because("our changes")(&e))?;
        let facts = facts_of_library(&fs).map_err(|e| because("facts of our changes")(&e))?;
        fs.close().map_err(|e| because("close")(&e))?;
        alike("after our own reopen", &self.reopened()?, &facts)?;
        self.check()?;
        Ok(facts)
    }

    /// What the library shows.
    fn reopened(&self) -> Step<Facts> {
        let options = Options::read_only().offset(self.offset);
        let fs = Filesystem::open(&self.path, options).map_err(|e| because("reopen")(&e))?;
        if !fs.warnings().is_empty() {
            return Err(format!("warnings: {:?}", fs.warnings()));
        }
        facts_of_library(&fs).map_err(|e| because("facts")(&e))
    }

    /// What the checker finds must be nothing.
    fn check(&self) -> Step<()> {
        if !self.known {
            return Ok(());
        }
        let found = match self.offset {
            0 => check(&self.path, true),
            _ => check(self.device()?.path(), true),
        };
        found.map(drop).map_err(|error| error.to_string())
    }

    fn device(&self) -> Step<LoopDevice> {
        let offset = format!("--offset={}", self.offset);
        LoopDevice::attach_with(&self.path, &[&offset]).map_err(|error| error.to_string())
    }

    /// Mounts it with the kernel for a look and for changes. The kernel must not complain.
    fn mounted<T>(&self, work: impl FnOnce(&Path) -> Step<T>) -> Step<T> {
        let mount = KernelMount::on(self.device()?, "").map_err(|e| because("mount")(&e))?;
        let done = work(mount.path())?;
        mount.finish().map_err(|error| error.to_string())?;
        Ok(done)
    }
}

fn kernel_facts(top: &Path) -> Step<Facts> {
    facts_of_dir(top).map_err(|error| because("the kernel's facts")(&error))
}

fn swap(image: &Image) -> Step<()> {
    let swap = Swap::of(image)?;
    (0..if long() { ROUNDS_LONG } else { 1 }).try_for_each(|round| by_turns(&swap, 1 + 2 * round))
}

fn by_turns(swap: &Swap, round: u64) -> Step<()> {
    let ours = swap.ours(round)?;
    swap.mounted(|top| {
        alike("the kernel after our changes", &kernel_facts(top)?, &ours)?;
        theirs::change(top, round).map_err(|error| because("the kernel's changes")(&error))?;
        if swap.upkeep {
            upkeep(top)?;
        }
        Ok(())
    })?;
    // Without the feature `no-holes`, Linux 6.18 does not always write down the size that it shows: it loses what was
    // appended to space allocated past the end of a file. What counts is what it shows next time.
    let theirs = swap.mounted(kernel_facts)?;
    swap.check()?;
    alike("we after the kernel's changes", &swap.reopened()?, &theirs)?;
    let ours = swap.ours(round + 1)?;
    swap.mounted(|top| alike("the kernel in the end", &kernel_facts(top)?, &ours))?;
    swap.check()
}

/// The kernel reads every checksum, and moves every extent and tree block: it follows each reference back to where it is
/// from.
fn upkeep(top: &Path) -> Step<()> {
    let top = top.to_string_lossy();
    btrfs(&["scrub", "start", "-B", &top]).map_err(|error| error.to_string())?;
    btrfs(&["balance", "start", "--full-balance", &top]).map_err(|error| error.to_string())?;
    Ok(())
}

/// The feature that the checker here does not know: the kernel is the judge.
#[test]
fn by_turns_with_a_block_group_tree() {
    if !root_or_skip() {
        return;
    }
    let swap = Swap::made_by_us().unwrap();
    let fs = Filesystem::open(&swap.path, Options::read_only()).unwrap();
    assert!(fs.info().compat_ro & compat_ro::BLOCK_GROUP_TREE != 0);
    drop(fs);
    for round in [1, 3] {
        by_turns(&swap, round).unwrap();
    }
}

#[test]
fn the_kernel_and_the_library_write_by_turns() {
    if !root_or_skip() {
        return;
    }
    let wanted = |image: &Image| {
        // The second copy is bad all over: what nobody reads stays so, and the checker says it.
        image.expectation == Expectation::Readable
            && image.name != "dup-copy-bad"
            && (long() || !PAIRS.contains(&image.name))
    };
    each(wanted, |image| swap(image).err().into_iter().collect());
}
