//! The cycle that every workload ends with.

use std::collections::BTreeMap;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use buttress::{Filesystem, Node};
use buttress_testkit::facts::{Facts, diff, facts_of_dir};
use buttress_testkit::oracle::{self, KernelMount, OracleError};

use crate::image::Image;
use crate::{ours, turns};

/// Mount options for looking and working: all subvolumes, nothing changed by reading.
const MOUNT: &str = "noatime,subvolid=5";

/// Closes the filesystem and runs the cycle: check, the kernel's view, the kernel's work, our view, our work, check.
pub fn judge(image: &Image, fs: Filesystem) {
    let began = Instant::now();
    let live = ours::facts(&fs);
    fs.close().unwrap();
    let say = |what: &str| {
        if long() {
            let (paths, secs) = (live.paths.len(), began.elapsed().as_secs_f64());
            eprintln!("{}: {what} after {secs:.2} s, {paths} paths", test_name());
        }
    };
    check(image);
    say("checked");
    let (reopened, details) = ours_again(image);
    same("reopened", &reopened, &live);
    if !oracle::root_or_skip() {
        return;
    }
    let theirs = kernel_turn(image, &reopened, &details);
    say("kernel done");
    check(image);
    let (ours, details) = ours_again(image);
    same("after the kernel's work", &ours, &theirs.0);
    same_details("after the kernel's work", &details, &theirs.1);
    let fs = image.open();
    turns::ours(&fs);
    let live = ours::facts(&fs);
    fs.close().unwrap();
    check(image);
    kernel_sees(image, &live);
    say("done");
}

/// Closes it, and checks that everything is as it was, to the checker and to the kernel, which changes nothing.
pub fn glance(image: &Image, fs: Filesystem) {
    let live = ours::facts(&fs);
    fs.close().unwrap();
    check(image);
    same("reopened", &ours_again(image).0, &live);
    if oracle::root_or_skip() {
        kernel_sees(image, &live);
    }
}

/// Whether large workloads run at full size.
pub fn long() -> bool {
    std::env::var_os("BUTTRESS_LONG").is_some_and(|value| value == "1")
}

fn test_name() -> String {
    std::thread::current().name().unwrap_or_default().to_string()
}

/// What `btrfs check` finds must be nothing, and what our own checker finds too.
pub fn check(image: &Image) {
    check_with(image, &["--check-data-csum"]);
}

/// The same with other arguments for the checker.
pub fn check_with(image: &Image, args: &[&str]) {
    let mut command = Command::new("btrfs");
    let out = oracle::start(command.arg("check").args(args).arg(image.path())).unwrap();
    let text = String::from_utf8_lossy(&out.stdout) + String::from_utf8_lossy(&out.stderr);
    let clean = out.status.success() && text.contains("no error found");
    let clean = clean && !text.contains("mismatch") && !text.contains("rror:");
    if !clean {
        keep(image);
        let shown: String = text.chars().take(6000).collect();
        panic!("{}: {shown}", test_name());
    }
    if let Err(error) = oracle::check_ours(&image.path(), args.contains(&"--check-data-csum")) {
        keep(image);
        panic!("{}: {error}", test_name());
    }
}

/// Keeps a copy of an image that something is wrong with, when asked to.
fn keep(image: &Image) {
    if let Some(dir) = std::env::var_os("BUTTRESS_KEEP") {
        let name = test_name().replace(':', "_");
        let _ = oracle::copy_sparse(&image.path(), &Path::new(&dir).join(name));
    }
}

fn same(when: &str, have: &Facts, expect: &Facts) {
    let lines = diff(have, expect);
    let shown = &lines[..lines.len().min(20)];
    assert!(lines.is_empty(), "{}, {when}: {} differences\n{shown:#?}", test_name(), lines.len());
}

/// Facts and details of the image, opened anew.
fn ours_again(image: &Image) -> (Facts, Details) {
    let fs = image.open_read_only();
    let found = (ours::facts(&fs), our_details(&fs));
    fs.close().unwrap();
    found
}

/// The kernel compares, works, and answers what it sees when mounted again.
fn kernel_turn(image: &Image, expect: &Facts, details: &Details) -> (Facts, Details) {
    let mount = KernelMount::new(&image.path(), MOUNT).unwrap();
    same("the kernel", &facts_of_dir(mount.path()).unwrap(), expect);
    same_details("the kernel", &kernel_details(mount.path()), details);
    turns::kernel(mount.path());
    quietly(mount);
    // A write that found no room has changed times in the kernel's memory only.
    let mount = KernelMount::read_only(&image.path(), MOUNT).unwrap();
    let after = (facts_of_dir(mount.path()).unwrap(), kernel_details(mount.path()));
    quietly(mount);
    after
}

fn kernel_sees(image: &Image, expect: &Facts) {
    let mount = KernelMount::new(&image.path(), MOUNT).unwrap();
    same("the kernel at last", &facts_of_dir(mount.path()).unwrap(), expect);
    quietly(mount);
}

/// Unmounts; the kernel must have had nothing to complain about. `mkfs.btrfs` leaves the uuid tree to the first mount, for
/// which a full filesystem has no room.
fn quietly(mount: KernelMount) {
    match mount.finish() {
        Err(OracleError::Complaints { lines, .. })
            if lines.iter().all(|line| line.contains("btrfs_uuid_scan_kthread failed -28")) => {}
        finished => finished.unwrap(),
    }
}

/// What facts leave out: inode number, blocks of 512 bytes (of whole sectors), times of access, change and creation.
type Detail = (u64, u64, [(i64, i64); 3]);
type Details = BTreeMap<Vec<u8>, Detail>;

fn same_details(when: &str, have: &Details, expect: &Details) {
    let differ = |(path, detail): (&Vec<u8>, &Detail)| {
        (have.get(path) != Some(detail)).then(|| {
            let shown = String::from_utf8_lossy(path);
            format!("{shown}: {:?}, expect {detail:?}", have.get(path))
        })
    };
    let lines: Vec<_> = expect.iter().filter_map(differ).collect();
    let shown = &lines[..lines.len().min(20)];
    assert!(lines.is_empty(), "{}, {when}: {} differ\n{shown:#?}", test_name(), lines.len());
    assert_eq!(have.len(), expect.len(), "{}, {when}", test_name());
}

fn our_details(fs: &Filesystem) -> Details {
    let mut details = Details::new();
    let mut waiting = vec![(Vec::new(), Node::ROOT)];
    while let Some((path, node)) = waiting.pop() {
        if node.is_stub() {
            continue;
        }
        let of = fs.attributes(node).unwrap();
        if of.kind == buttress::FileKind::Directory {
            fs.read_dir(node, 0, &mut |entry| {
                waiting.push(([&path[..], b"/", &entry.name].concat(), entry.node));
                true
            })
            .unwrap();
        }
        let time = |time: buttress::Time| (time.sec, i64::from(time.nsec));
        let blocks = of.blocks_bytes.div_ceil(4096) * 8;
        details.insert(path, (node.ino, blocks, [time(of.atime), time(of.ctime), time(of.otime)]));
    }
    details
}

fn kernel_details(top: &Path) -> Details {
    let mut details = Details::new();
    let mut waiting = vec![top.to_path_buf()];
    while let Some(path) = waiting.pop() {
        let of = path.symlink_metadata().unwrap();
        if of.ino() == 2 && of.is_dir() {
            continue;
        }
        if of.is_dir() {
            waiting.extend(path.read_dir().unwrap().map(|entry| entry.unwrap().path()));
        }
        let name = path.as_os_str().as_bytes()[top.as_os_str().len()..].to_vec();
        let times = [(of.atime(), of.atime_nsec()), (of.ctime(), of.ctime_nsec()), born(&path)];
        details.insert(name, (of.ino(), of.blocks(), times));
    }
    details
}

fn born(path: &Path) -> (i64, i64) {
    use rustix::fs::{AtFlags, CWD, StatxFlags, statx};
    let of = statx(CWD, path, AtFlags::SYMLINK_NOFOLLOW, StatxFlags::BTIME).unwrap();
    (of.stx_btime.tv_sec, i64::from(of.stx_btime.tv_nsec))
}
