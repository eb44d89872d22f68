//! A filesystem that the kernel balances, and what a power loss would leave of it at some moment.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::Duration;

use buttress_testkit::ops::rng::Rng;
use buttress_testkit::oracle::{KernelMount, TempDir, btrfs, check_verdict, mkfs, run, temp_dir};
use rustix::fs::ioctl_ficlone;

/// Copies of one balance at most.
const COPIES_MAX: usize = 60;
/// Balances of a filesystem at most.
const BALANCES_MAX: usize = 8;
/// Filesystems of a kind at most.
const LIVES_MAX: usize = 6;

/// What is balanced, and how.
#[derive(Clone, Copy, Debug)]
pub struct Kind {
    /// Bytes of a tree block.
    pub nodesize: &'static str,
    /// Whether quotas are on.
    pub quotas: bool,
    /// Whether somebody writes meanwhile.
    pub writes: bool,
    /// The words after `btrfs balance start`.
    pub words: &'static [&'static str],
    /// Files.
    pub files: u64,
}

/// All kinds of which there are moments.
pub const KINDS: [Kind; 8] = [
    Kind { nodesize: "4096", quotas: true, writes: false, words: &["--full-balance"], files: 1500 },
    Kind {
        nodesize: "16384",
        quotas: false,
        writes: true,
        words: &["--full-balance"],
        files: 1500,
    },
    Kind { nodesize: "4096", quotas: true, writes: false, words: &["-m"], files: 1500 },
    Kind {
        nodesize: "16384",
        quotas: true,
        writes: false,
        words: &["--full-balance"],
        files: 2500,
    },
    Kind {
        nodesize: "4096",
        quotas: false,
        writes: false,
        words: &["-f", "-dconvert=dup", "-mconvert=single"],
        files: 1500,
    },
    Kind { nodesize: "4096", quotas: false, writes: false, words: &["-m"], files: 2500 },
    Kind { nodesize: "4096", quotas: true, writes: true, words: &["--full-balance"], files: 800 },
    Kind { nodesize: "4096", quotas: false, writes: true, words: &["-d"], files: 1500 },
];

/// A mounted filesystem whose image lies on a btrfs of its own: there a clone of it is what is on its device at one instant.
pub struct Live {
    // Dropped in this order.
    mount: KernelMount,
    below: KernelMount,
    _dir: TempDir,
    kind: Kind,
}

impl Live {
    /// Makes one, with subvolumes that share much and not all.
    pub fn new(kind: Kind) -> Live {
        let dir = temp_dir().unwrap();
        let outer = dir.path().join("outer");
        mkfs(&outer, 4 << 30, &["-m", "single"]).unwrap();
        let below = KernelMount::new(&outer, "nodatasum").unwrap();
        let image = below.path().join("image");
        mkfs(&image, 512 << 20, &["-n", kind.nodesize]).unwrap();
        let mount = KernelMount::new(&image, "noatime,commit=300").unwrap();
        let live = Live { mount, below, _dir: dir, kind };
        if kind.quotas {
            live.btrfs(&["quota", "enable"]);
        }
        live.fill();
        if kind.quotas {
            live.btrfs(&["quota", "rescan", "-w"]);
        }
        live.mount.sync().unwrap();
        live
    }

    fn btrfs(&self, words: &[&str]) {
        run(Command::new("btrfs").args(words).arg(self.mount.path())).unwrap();
    }

    fn fill(&self) {
        let top = self.mount.path();
        let path = |name: &str| top.join(name).to_string_lossy().into_owned();
        btrfs(&["subvolume", "create", &path("volume")]).unwrap();
        for number in 0..self.kind.files {
            let len = [30, 30, 30, 9000, 30, 70_000, 30, 30, 30, 20_000][number as usize % 10];
            put(&top.join(format!("volume/file-{number}")), len, number);
        }
        for name in ["one", "two", "three"] {
            btrfs(&["subvolume", "snapshot", &path("volume"), &path(name)]).unwrap();
            for number in (0..self.kind.files).step_by(31) {
                put(&top.join(format!("volume/file-{number}")), 6000, number + 7);
                put(&top.join(format!("{name}/new-{number}")), 5000, number);
            }
        }
        // Several extents of one file, in one leaf and in others.
        let pieces = File::create(top.join("volume/pieces")).unwrap();
        for number in 0..300 {
            pieces.write_all_at(&[number as u8 | 1; 4096], number * 8192).unwrap();
        }
    }

    /// Copies of moments of balances, into files of the directory `into`, until there are `count` of them. Fewer where it is damaged by then.
    fn moments(&self, count: usize, rng: &mut Rng, into: &Path, found: &mut Vec<PathBuf>) {
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            if self.kind.writes {
                scope.spawn(|| self.write(&stop));
            }
            // Also when this fails: who writes is waited for.
            let _end = Stopping(&stop);
            for _ in 0..BALANCES_MAX {
                let (mut copies, mut is_damaged) = (self.copies(rng), false);
                while found.len() < count && !copies.is_empty() {
                    let copy = copies.swap_remove(rng.below(copies.len() as u64) as usize);
                    match use_of(&copy) {
                        Use::OfBalance => found.push(kept(&copy, into, found.len())),
                        Use::None => {}
                        Use::Damaged => is_damaged = true,
                    }
                }
                if found.len() == count || is_damaged {
                    break;
                }
            }
        });
    }

    /// The first moment of which this is so.
    pub fn moment(&self, seed: u64, is_it: impl Fn(&Path) -> bool) -> Option<PathBuf> {
        let mut rng = Rng::new(seed);
        let mut found = (0..BALANCES_MAX).flat_map(|_| self.copies(&mut rng));
        found.find(|copy| is_it(copy))
    }

    /// Copies of one balance, from its beginning to its end.
    fn copies(&self, rng: &mut Rng) -> Vec<PathBuf> {
        let (mut balance, mut copies) = (self.balance(), Vec::new());
        while copies.len() < COPIES_MAX && balance.try_wait().unwrap().is_none() {
            sleep(Duration::from_micros(rng.below(30_000)));
            if rng.below(2) == 0 {
                self.mount.sync().unwrap();
            }
            copies.push(self.copy(rng.next()));
        }
        let _ = btrfs(&["balance", "cancel", &self.mount.path().to_string_lossy()]);
        balance.wait().unwrap();
        copies
    }

    fn balance(&self) -> Child {
        let mut command = Command::new("btrfs");
        command.args(["balance", "start"]).args(self.kind.words).arg(self.mount.path());
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
    }

    /// What is on the device now.
    fn copy(&self, number: u64) -> PathBuf {
        let copy = self.below.path().join(format!("copy-{number:x}"));
        let image = File::open(self.below.path().join("image")).unwrap();
        ioctl_ficlone(File::create(&copy).unwrap(), image).unwrap();
        copy
    }

    /// Writes here and there, slowly.
    fn write(&self, stop: &AtomicBool) {
        for number in 0.. {
            if stop.load(Ordering::Acquire) {
                break;
            }
            let file = number * 37 % self.kind.files;
            let at = ["volume", "one", "two"][number as usize % 3];
            put(&self.mount.path().join(format!("{at}/file-{file}")), 300 * (number % 40), number);
            if number % 50 == 49 {
                let _ =
                    fs::remove_file(self.mount.path().join(format!("two/file-{}", number % 700)));
            }
            sleep(Duration::from_millis(2));
        }
    }
}

/// Copies of so many moments of balances, into files of the directory `into`.
///
/// Linux (6.18) may miscount references in a balance beside which somebody writes, and then all that comes later is damaged, too: that says nothing about
/// others, and another filesystem is balanced in its place.
pub fn moments(kind: Kind, count: usize, seed: u64, into: &Path) -> Vec<PathBuf> {
    let (mut rng, mut found) = (Rng::new(seed), Vec::new());
    for _ in 0..LIVES_MAX {
        if found.len() < count {
            Live::new(kind).moments(count, &mut rng, into, &mut found);
        }
    }
    found
}

/// Keeps a copy, with a number.
fn kept(copy: &Path, into: &Path, number: usize) -> PathBuf {
    let to = into.join(format!("moment-{number}"));
    run(Command::new("cp").arg("--sparse=always").arg(copy).arg(&to)).unwrap();
    to
}

/// Has the one who writes end.
struct Stopping<'a>(&'a AtomicBool);

impl Drop for Stopping<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// What a copy is good for.
enum Use {
    OfBalance,
    /// No balance is in it.
    None,
    /// `btrfs check` does not call it clean.
    Damaged,
}

fn use_of(image: &Path) -> Use {
    let trees = btrfs(&["inspect-internal", "dump-tree", "-t", "1", &image.to_string_lossy()]);
    if !trees.is_ok_and(|text| text.contains("BALANCE TEMPORARY_ITEM")) {
        return Use::None;
    }
    let (is_clean, report) = check_verdict(image, false).unwrap();
    if is_clean {
        return Use::OfBalance;
    }
    let checked = report.lines().skip_while(|line| !line.starts_with("[1/"));
    let said: Vec<&str> = checked.filter(|line| !line.starts_with('[')).collect();
    let few = &said[..said.len().min(3)];
    println!("passed over: what Linux has left is damaged: {} lines like {few:?}", said.len());
    Use::Damaged
}

/// Makes a file, or makes it another one.
fn put(path: &Path, len: u64, seed: u64) {
    let byte = |at: u64| (at.wrapping_mul(seed * 2 + 1) >> 3) as u8;
    fs::write(path, (0..len).map(byte).collect::<Vec<u8>>()).unwrap();
}
