//! What Linux leaves on purpose when it is interrupted: a balance under way, files half deleted, directories that are only open,
//! what was fsynced. Taken from under a running kernel mount, commit after commit: both checkers have to call it clean.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};

use buttress_device::MemoryDevice;
use buttress_testkit::damage::mutation::{Theirs, ask};
use buttress_testkit::oracle::{KernelMount, TempDir, btrfs, mkfs, root_or_skip, temp_dir};
use rustix::fs::{FallocateFlags, fallocate, ioctl_ficlone};

/// Copies tried at most until one shows what is looked for.
const COPIES_MAX: usize = 400;
/// Copies judged that do not show it: each takes a while.
const JUDGED_MAX: usize = 10;

/// A filesystem that the kernel has mounted, and copies of what is on its device. The image lies on a btrfs of its own: there a
/// clone of it is what a power loss would leave at one instant.
struct Live {
    // Dropped in this order.
    mount: KernelMount,
    below: KernelMount,
    _dir: TempDir,
}

impl Live {
    fn new(args: &[&str]) -> Live {
        let dir = temp_dir().unwrap();
        let outer = dir.path().join("outer");
        mkfs(&outer, 4 << 30, &["-m", "single"]).unwrap();
        let below = KernelMount::new(&outer, "nodatasum").unwrap();
        let image = below.path().join("image");
        mkfs(&image, 1 << 30, args).unwrap();
        let mount = KernelMount::new(&image, "noatime,commit=300").unwrap();
        Live { mount, below, _dir: dir }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.mount.path().join(name)
    }

    /// What a power loss would leave now.
    fn copy(&self, name: &str) -> PathBuf {
        let copy = self.below.path().join(format!("copy-{name}"));
        let image = File::open(self.below.path().join("image")).unwrap();
        ioctl_ficlone(File::create(&copy).unwrap(), image).unwrap();
        copy
    }

    /// Copies until one `shows` something, and judges that one and a few others. Says whether it was met.
    fn judge_until(&self, shows: &str, mut over: impl FnMut() -> bool) -> bool {
        let asked = self.below.path().join("asked");
        let mut judged = 0;
        for _ in 0..COPIES_MAX {
            let last = over();
            let copy = self.copy("last");
            let roots = ["inspect-internal", "dump-tree", "-t", "1", &copy.to_string_lossy()];
            let shown = btrfs(&roots).unwrap_or_default().contains(shows);
            if shown || judged < JUDGED_MAX {
                judged += 1;
                assert_clean(MemoryDevice::load(&copy).unwrap(), &asked);
            }
            if shown || last {
                return shown;
            }
        }
        false
    }

    fn commit(&self) {
        self.mount.sync().unwrap();
    }
}

/// Both are content.
fn assert_clean(device: MemoryDevice, path: &Path) {
    let asked = ask(&device.into(), path).unwrap();
    assert_ne!(asked.theirs, Theirs::Fails, "{}", asked.text);
    let report = asked.ours.unwrap();
    let issues: Vec<_> = report.issues.iter().map(ToString::to_string).collect();
    assert!(report.is_clean(), "{}", issues.join("\n"));
}

/// A file in many extents.
fn scattered(path: &Path, extents: u64) -> File {
    let file = File::create(path).unwrap();
    for number in 0..extents {
        file.write_all_at(&[number as u8 | 1; 4096], number * 8192).unwrap();
        if number.is_multiple_of(1000) {
            file.sync_data().unwrap();
        }
    }
    file
}

#[test]
fn a_balance_under_way_is_clean() {
    if !root_or_skip() {
        return;
    }
    let live = Live::new(&["-n", "4096"]);
    let volume = live.path("volume");
    btrfs(&["subvolume", "create", &volume.to_string_lossy()]).unwrap();
    for number in 0..3000_u32 {
        let len = if number.is_multiple_of(10) { 9000 } else { 30 };
        fs::write(volume.join(format!("file-{number}")), vec![number as u8; len]).unwrap();
    }
    for name in ["one", "two", "three"] {
        let (from, to) = (volume.to_string_lossy(), live.path(name));
        btrfs(&["subvolume", "snapshot", &from, &to.to_string_lossy()]).unwrap();
        for number in (0..3000).step_by(31) {
            fs::write(volume.join(format!("file-{number}")), name.repeat(2000)).unwrap();
        }
    }
    live.commit();
    // Again, should it end before it was caught: that depends on the machine, so it may never be.
    let met = (0..20).any(|_| {
        let mut balance = Command::new("btrfs")
            .args(["balance", "start", "--full-balance"])
            .arg(live.mount.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let met = live.judge_until("TREE_RELOC ROOT_ITEM", || {
            live.commit();
            balance.try_wait().unwrap().is_some()
        });
        let _ = btrfs(&["balance", "cancel", &live.mount.path().to_string_lossy()]);
        balance.wait().unwrap();
        met
    });
    if !met {
        buttress_testkit::oracle::skip("each balance ended before a copy had a relocation tree");
    }
}

#[test]
fn what_is_half_deleted_is_clean() {
    if !root_or_skip() {
        return;
    }
    let live = Live::new(&[]);
    let file = scattered(&live.path("file"), 20_000);
    let beside = scattered(&live.path("beside"), 3_000);
    fs::create_dir(live.path("directory")).unwrap();
    fs::write(live.path("directory/name"), "text").unwrap();
    let (top, kept) = (live.mount.path().to_string_lossy().into_owned(), live.path("kept"));
    btrfs(&["subvolume", "snapshot", "-r", &top, &kept.to_string_lossy()]).unwrap();
    live.commit();
    let directory = File::open(live.path("directory")).unwrap();
    fs::remove_file(live.path("directory/name")).unwrap();
    fs::remove_dir(live.path("directory")).unwrap();
    live.commit();
    live.judge_until("nothing more", || true);

    // Linux lets a file go a few leaves at a time: a commit in between leaves the rest, and its old count of bytes.
    let (done, path) = (AtomicBool::new(false), live.path("file"));
    let mut copies = Vec::new();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            fs::remove_file(path).unwrap();
            drop(file);
            beside.set_len(8192 * 100).unwrap();
            done.store(true, Ordering::Release);
        });
        while !done.load(Ordering::Acquire) && copies.len() < COPIES_MAX {
            live.commit();
            copies.push(live.copy(&copies.len().to_string()));
        }
    });
    let asked = live.below.path().join("asked");
    for copy in copies.iter().step_by(copies.len().div_ceil(2 * JUDGED_MAX).max(1)) {
        assert_clean(MemoryDevice::load(copy).unwrap(), &asked);
    }
    drop(directory);
}

#[test]
fn what_was_fsynced_is_clean() {
    if !root_or_skip() {
        return;
    }
    for args in [&[][..], &["-O", "^no-holes", "-n", "4096"]] {
        let live = Live::new(args);
        fs::create_dir(live.path("directory")).unwrap();
        let old = File::create(live.path("old")).unwrap();
        old.write_all_at(&[1; 300_000], 0).unwrap();
        live.commit();
        let new = File::create(live.path("directory/new")).unwrap();
        for round in 0..6_u64 {
            old.write_all_at(&[2; 10_000], round * 20_000).unwrap();
            fallocate(&new, FallocateFlags::empty(), round << 20, 1 << 19).unwrap();
            new.write_all_at(&[3; 9_000], (round << 20) + 4096).unwrap();
            old.sync_all().unwrap();
            new.sync_all().unwrap();
            if round == 3 {
                live.commit();
                old.set_len(100_000).unwrap();
                old.sync_all().unwrap();
            }
            live.judge_until("nothing more", || true);
        }
    }
}
