//! Who may open what beside whom: our own programs, QEMU and whoever keeps to its protocol, loop devices.

#![allow(clippy::unwrap_used, reason = "a failed step fails the test")]

use std::fs::File;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use buttress_device::{
    Access, BlockDevice, DeviceError, FileDevice, Reader, lock_holders, refuse_used,
};
use nix::fcntl::{FcntlArg, fcntl};
use nix::libc;

fn range(kind: i32, byte: i64) -> libc::flock {
    libc::flock {
        l_type: kind as i16,
        l_whence: libc::SEEK_SET as i16,
        l_start: byte,
        l_len: 1,
        l_pid: 0,
    }
}

/// A program that holds bytes as QEMU does.
struct Holder(File);

impl Holder {
    fn of(path: &Path, bytes: &[i64]) -> Holder {
        let file = File::options().read(true).write(true).open(path).unwrap();
        for byte in bytes {
            fcntl(&file, FcntlArg::F_OFD_SETLK(&range(libc::F_RDLCK, *byte))).unwrap();
        }
        Holder(file)
    }

    /// Which of these bytes others have.
    fn sees(&self, bytes: &[i64]) -> Vec<i64> {
        let locked = |byte: &i64| {
            let mut found = range(libc::F_WRLCK, *byte);
            fcntl(&self.0, FcntlArg::F_OFD_GETLK(&mut found)).unwrap();
            i32::from(found.l_type) != libc::F_UNLCK
        };
        bytes.iter().copied().filter(locked).collect()
    }
}

impl Drop for Holder {
    /// A child that another test is about to start may have the file open for a moment.
    fn drop(&mut self) {
        let all = libc::flock { l_len: 0, ..range(libc::F_UNLCK, 0) };
        fcntl(&self.0, FcntlArg::F_OFD_SETLK(&all)).unwrap();
    }
}

const ALL: [i64; 10] = [100, 101, 102, 103, 104, 200, 201, 202, 203, 204];
/// A virtual machine with the image as its disk.
const GUEST: [i64; 5] = [100, 101, 201, 203, 103];
/// A program that reads the image and wants it to stay as it is.
const CONVERTER: [i64; 3] = [100, 201, 203];

fn image(dir: &tempfile::TempDir) -> std::path::PathBuf {
    let path = dir.path().join("image");
    // Shorter than where the locks are: the bytes need not exist.
    std::fs::write(&path, [5; 64]).unwrap();
    path
}

fn is_busy<T: std::fmt::Debug>(tried: Result<T, DeviceError>) -> String {
    match tried {
        Err(error @ DeviceError::Busy { .. }) => error.to_string(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_virtual_machine_keeps_us_out() {
    let dir = tempfile::tempdir().unwrap();
    let path = image(&dir);
    let quiet = FileDevice::open(&path, Access::ReadOnly).unwrap();
    assert!(quiet.concerns().is_empty());

    let guest = Holder::of(&path, &GUEST);
    let why = is_busy(FileDevice::open(&path, Access::ReadWrite));
    assert!(why.contains("virtual machine"), "{why}");
    is_busy(FileDevice::open_unused(&path));
    let reader = FileDevice::open(&path, Access::ReadOnly).unwrap();
    let [concern] = &reader.concerns()[..] else { panic!("{:?}", reader.concerns()) };
    assert!(concern.contains("open for writing"), "{concern}");
    assert!(reader.unconcerned().concerns().is_empty());
    assert_eq!(guest.sees(&ALL), [0i64; 0], "what was refused holds nothing");
    drop(guest);

    let converter = Holder::of(&path, &CONVERTER);
    is_busy(FileDevice::open(&path, Access::ReadWrite));
    let still = FileDevice::open_unused(&path).unwrap();
    assert!(FileDevice::open(&path, Access::ReadOnly).unwrap().concerns().is_empty());
    drop(still);
    assert_eq!(converter.sees(&ALL), [0i64; 0], "what is closed holds nothing");
    drop(converter);
    // Writing what is there already is writing, for all that others can know.
    let _rewriter = Holder::of(&path, &[102]);
    is_busy(FileDevice::open(&path, Access::ReadWrite));
    is_busy(FileDevice::open_unused(&path));
}

#[test]
fn we_keep_a_virtual_machine_out() {
    let dir = tempfile::tempdir().unwrap();
    let path = image(&dir);
    let other = Holder::of(&path, &[]);
    let writer = FileDevice::open(&path, Access::ReadWrite).unwrap();
    // Others see that it is written, and that they must not: neither a guest nor a converter would begin.
    assert_eq!(other.sees(&ALL), [100, 101, 103, 201, 203]);
    assert!(!FileDevice::open(&path, Access::ReadOnly).unwrap().concerns().is_empty());
    is_busy(FileDevice::open_unused(&path));
    drop(writer);
    let first = FileDevice::open_unused(&path).unwrap();
    let second = FileDevice::open_unused(&path).unwrap();
    assert_eq!(other.sees(&ALL), [100, 201, 203]);
    is_busy(FileDevice::open(&path, Access::ReadWrite));
    drop((first, second));
    assert_eq!(other.sees(&ALL), [0i64; 0]);
    FileDevice::open(&path, Access::ReadWrite).unwrap();
}

/// An exclusive lock is not of the protocol, but it is clear what it means.
#[test]
fn an_exclusive_lock_of_somebody_else_is_respected() {
    let dir = tempfile::tempdir().unwrap();
    let path = image(&dir);
    let alone = Holder::of(&path, &[]);
    let whole = libc::flock { l_len: 0, ..range(libc::F_WRLCK, 0) };
    fcntl(&alone.0, FcntlArg::F_OFD_SETLK(&whole)).unwrap();
    is_busy(FileDevice::open(&path, Access::ReadWrite));
    is_busy(FileDevice::open_unused(&path));
    assert!(!FileDevice::open(&path, Access::ReadOnly).unwrap().concerns().is_empty());
}

/// `qemu-img` reads the whole image, which nobody may write meanwhile.
fn qemu_img(path: &Path) -> Option<std::process::Output> {
    let mut command = Command::new("qemu-img");
    let command = command.args(["convert", "-f", "raw", "-O", "raw"]).arg(path);
    command.arg(path.with_extension("copy")).env("LC_ALL", "C").output().ok()
}

/// `qemu-io` with the image open for writing; it ends when it is dropped.
struct QemuIo(Child);

impl QemuIo {
    fn open(path: &Path) -> Option<QemuIo> {
        let mut command = Command::new("qemu-io");
        command.args(["-f", "raw"]).arg(path).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().ok()?;
        // It has opened the image when it answers.
        child.stdin.as_mut().unwrap().write_all(b"length\n").unwrap();
        let mut said = [0; 1];
        let out = child.stdout.as_mut().unwrap();
        while said != *b"\n" {
            out.read_exact(&mut said).unwrap();
        }
        Some(QemuIo(child))
    }
}

impl Drop for QemuIo {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}

#[test]
fn qemu_itself() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    let writer = FileDevice::create(&path, 1 << 20).unwrap();
    let Some(said) = qemu_img(&path) else {
        println!("skipped: no qemu-img");
        return;
    };
    let text = String::from_utf8_lossy(&said.stderr).into_owned();
    assert!(!said.status.success() && text.contains("lock"), "{text}");
    drop(writer);
    let still = FileDevice::open_unused(&path).unwrap();
    assert!(qemu_img(&path).unwrap().status.success(), "two readers may share");
    drop(still);

    let Some(guest) = QemuIo::open(&path) else {
        println!("skipped: no qemu-io");
        return;
    };
    is_busy(FileDevice::open(&path, Access::ReadWrite));
    is_busy(FileDevice::open_unused(&path));
    assert!(!FileDevice::open(&path, Access::ReadOnly).unwrap().concerns().is_empty());
    drop(guest);
    FileDevice::open(&path, Access::ReadWrite).unwrap();
}

/// Opens a disk that nobody has. A child that another test has just forked may have what was open then, with its claim, until it
/// becomes another program.
fn opened(open: impl Fn() -> Result<FileDevice, DeviceError>) -> FileDevice {
    for _ in 0..200 {
        match open() {
            Err(DeviceError::Busy { why, .. }) if why.contains("exclusively") => {
                std::thread::sleep(std::time::Duration::from_millis(10));
            }
            done => return done.unwrap(),
        }
    }
    open().unwrap()
}

struct Loop(String);

impl Loop {
    fn attach(path: &Path, options: &[&str]) -> Option<Loop> {
        for _ in 0..20 {
            let mut command = Command::new("losetup");
            let out = command.args(["-f", "--show"]).args(options).arg(path).output().ok()?;
            if out.status.success() {
                return Some(Loop(String::from_utf8(out.stdout).ok()?.trim().into()));
            }
            std::thread::sleep(std::time::Duration::from_millis(200));
        }
        None
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Command::new("losetup").args(["-d", &self.0]).status();
    }
}

/// Linux attaches a loop device to a file whatever locks it has; through the device, we find them.
#[test]
fn a_loop_device_is_the_file_behind_it() {
    let Some(dir) = place_for_loops() else { return };
    let path = dir.path().join("image");
    let writer = FileDevice::create(&path, 1 << 20).unwrap();
    let Some(disk) = Loop::attach(&path, &[]) else {
        println!("skipped: no loop device to be had");
        return;
    };
    let why = is_busy(FileDevice::open(&disk.0, Access::ReadWrite));
    assert!(why.contains("image"), "{why}");
    is_busy(FileDevice::open_unused(&disk.0));
    drop(writer);

    let guest = Holder::of(&path, &GUEST);
    is_busy(FileDevice::open(&disk.0, Access::ReadWrite));
    drop(guest);
    let other = Holder::of(&path, &[]);
    let writer = opened(|| FileDevice::open(&disk.0, Access::ReadWrite));
    assert_eq!(other.sees(&ALL), [100, 101, 103, 201, 203]);
    drop(writer);
    assert_eq!(other.sees(&ALL), [0i64; 0]);

    // A second device on the same file is another way to it.
    let second = Loop::attach(&path, &["--offset", "4096"]).unwrap();
    let _writer = opened(|| FileDevice::open(&disk.0, Access::ReadWrite));
    is_busy(FileDevice::open(&second.0, Access::ReadWrite));
}

/// Where images for loop devices go; `None` for who may not make any.
fn place_for_loops() -> Option<tempfile::TempDir> {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: loop devices need root");
        return None;
    }
    Some(tempfile::tempdir().unwrap())
}

/// Partitions of one disk are written side by side, each by one program; whoever has the whole disk has all of them.
#[test]
fn partitions_of_a_loop_device_are_apart() {
    let Some(dir) = place_for_loops() else { return };
    let path = dir.path().join("image");
    File::create(&path).unwrap().set_len(8 << 20).unwrap();
    if !partition(&path) {
        println!("skipped: sfdisk is not here");
        return;
    }
    let Some(disk) = Loop::attach(&path, &[]) else {
        println!("skipped: no loop device to be had");
        return;
    };
    let _whoever_else_looks = Command::new("partx").args(["--add", &disk.0]).status();
    let [first, second] = [1, 2].map(|number| node(dir.path(), &disk, number));
    let (Some(first), Some(second)) = (first, second) else {
        println!("skipped: no partitions of loop devices here");
        return;
    };
    let writer = opened(|| FileDevice::open(&first, Access::ReadWrite));
    drop(opened(|| FileDevice::open(&second, Access::ReadWrite)));
    drop(opened(|| FileDevice::open_unused(&second)));
    is_busy(FileDevice::open(&first, Access::ReadWrite));
    is_busy(FileDevice::open(&path, Access::ReadWrite));
    is_busy(FileDevice::open_unused(&path));
    assert_eq!(FileDevice::open(&path, Access::ReadOnly).unwrap().concerns().len(), 1);
    drop(writer);

    let guest = Holder::of(&path, &GUEST);
    is_busy(FileDevice::open(&first, Access::ReadWrite));
    is_busy(FileDevice::open_unused(&first));
    drop(guest);
    let checker = opened(|| FileDevice::open_unused(&first));
    drop(opened(|| FileDevice::open(&second, Access::ReadWrite)));
    drop(checker);
}

/// The same for loop devices on parts of one file, and for what Linux has mounted from one.
#[test]
fn loop_devices_on_parts_of_a_file() {
    let Some(dir) = place_for_loops() else { return };
    let path = dir.path().join("image");
    File::create(&path).unwrap().set_len(32 << 20).unwrap();
    let attach = |options: &str| Loop::attach(&path, &options.split(' ').collect::<Vec<_>>());
    let Some(first) = attach("--offset 1M --sizelimit 8M") else {
        println!("skipped: no loop device to be had");
        return;
    };
    let behind = attach("--offset 9M --sizelimit 8M").unwrap();
    let meets = attach("--offset 8M --sizelimit 8M").unwrap();
    let same = attach("--offset 1M --sizelimit 8M").unwrap();
    let rest = attach("--offset 17M").unwrap();
    let whole = Loop::attach(&path, &[]).unwrap();
    let open = |disk: &Loop| FileDevice::open(&disk.0, Access::ReadWrite);

    let writer = opened(|| open(&first));
    let (other, third) = (opened(|| open(&behind)), opened(|| open(&rest)));
    for disk in [&first, &meets, &same, &whole] {
        let why = is_busy(open(disk));
        let expected = if disk.0 == first.0 { "exclusively" } else { "file behind it" };
        assert!(why.contains(expected), "{why}");
        is_busy(FileDevice::open_unused(&disk.0));
    }
    drop((writer, other));
    let writer = opened(|| open(&meets));
    is_busy(open(&first));
    is_busy(open(&behind));
    drop((writer, third));
    drop(opened(|| open(&whole)));
    // Two who only want that nobody writes do not mind each other, and are not minded elsewhere.
    let checkers = [&first, &same].map(|disk| opened(|| FileDevice::open_unused(&disk.0)));
    drop(opened(|| open(&behind)));
    is_busy(open(&meets));
    drop(checkers);

    let made = Command::new("mkfs.ext4").args(["-q", &meets.0]).stderr(Stdio::null()).status();
    if !made.is_ok_and(|status| status.success()) {
        println!("skipped: needs mkfs.ext4");
        return;
    }
    let place = dir.path().join("mnt");
    std::fs::create_dir(&place).unwrap();
    let mounted = Command::new("mount").arg(&meets.0).arg(&place).status().unwrap();
    assert!(mounted.success());
    let tried = [&first, &behind, &whole, &meets].map(open);
    let apart = std::panic::catch_unwind(|| drop(opened(|| open(&rest))));
    assert!(Command::new("umount").arg(&place).status().unwrap().success());
    for why in tried.map(is_busy) {
        assert!(why.contains("that Linux has mounted on"), "{why}");
    }
    apart.unwrap();
}

/// Parts of one file are apart, and end where they end; all of it is none's while somebody has a part.
#[test]
fn parts_of_a_file_are_apart() {
    const M: u64 = 1 << 20;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    File::create(&path).unwrap().set_len(32 * M).unwrap();
    let open = |range: std::ops::Range<u64>| {
        FileDevice::open_part(&path, Access::ReadWrite, Some(range.start * M..range.end * M))
    };
    let unused = |range: std::ops::Range<u64>| {
        FileDevice::open_unused_part(&path, Some(range.start * M..range.end * M))
    };
    let concerns = |part| {
        let reader = FileDevice::open_part(&path, Access::ReadOnly, part).unwrap();
        reader.concerns().len()
    };
    let first = open(1..9).unwrap();
    let second = open(9..17).unwrap();
    assert_eq!((first.size(), second.size()), (9 * M, 17 * M));
    let past_end = first.write_at(9 * M - 1, &[1; 2]).unwrap_err();
    assert!(matches!(past_end, DeviceError::OutOfRange { .. }), "{past_end}");
    let part = first.grow(20 * M).unwrap_err();
    assert!(matches!(part, DeviceError::OutOfRange { .. }), "{part}");
    assert_eq!(path.metadata().unwrap().len(), 32 * M);
    for range in [1..9, 0..2, 8..10, 16..32, 0..32] {
        let why = is_busy(open(range.clone()));
        assert!(why.contains("this part of it"), "{why}");
        is_busy(unused(range));
    }
    is_busy(FileDevice::open(&path, Access::ReadWrite));
    is_busy(FileDevice::open_unused(&path));
    drop(open(17..32).unwrap());
    drop(unused(17..32).unwrap());
    // Who only reads is told of those who write there.
    assert_eq!(
        (concerns(Some(17 * M..32 * M)), concerns(Some(2 * M..3 * M)), concerns(None)),
        (0, 1, 1)
    );
    is_busy(Reader::take(&path, Some(8 * M..9 * M)));
    is_busy(Reader::take(&path, None));
    let reader = Reader::take(&path, Some(20 * M..32 * M)).unwrap().unwrap();
    drop(Reader::take(&path, Some(20 * M..32 * M)).unwrap().unwrap());
    is_busy(open(17..21));
    drop(open(17..20).unwrap());
    drop(reader);
    drop((first, second));
    let whole = FileDevice::open(&path, Access::ReadWrite).unwrap();
    is_busy(open(1..9));
    is_busy(Reader::take(&path, Some(0..M)));
    drop(whole);
    let guest = Holder::of(&path, &GUEST);
    is_busy(open(1..9));
    assert_eq!(concerns(Some(M..2 * M)), 1);
    drop(guest);
    let part = open(1..9).unwrap();
    drop(open(9..10).unwrap());
    drop(part);
}

/// A loop device keeps those out who want the same part of the file.
#[test]
fn a_loop_device_has_its_part_of_a_file() {
    const M: u64 = 1 << 20;
    let Some(dir) = place_for_loops() else { return };
    let path = dir.path().join("image");
    File::create(&path).unwrap().set_len(32 << 20).unwrap();
    let Some(disk) = Loop::attach(&path, &["--offset", "1M", "--sizelimit", "8M"]) else {
        println!("skipped: no loop device to be had");
        return;
    };
    let open = |range| FileDevice::open_part(&path, Access::ReadWrite, Some(range));
    let part = open(9 * M..17 * M).unwrap();
    let why = is_busy(open(8 * M..9 * M));
    assert!(why.contains(&disk.0), "{why}");
    drop(opened(|| FileDevice::open(&disk.0, Access::ReadWrite)));
    drop(part);
}

/// Who has a lock is said, and can be known without opening the file.
#[test]
fn the_holder_of_a_lock_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let path = image(&dir);
    assert_eq!(lock_holders(&path), [0u32; 0]);
    let own = FileDevice::open(&path, Access::ReadWrite).unwrap();
    assert_eq!(lock_holders(&path), [0u32; 0], "this process is not another one");
    drop(own);
    for (kind, refused) in [("-x", true), ("-s", true), ("-s", false)] {
        let mut command = Command::new("flock");
        command.args([kind, "-n"]).arg(&path).args(["sh", "-c", "echo; exec cat"]);
        let mut holder = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        holder.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
        let pid = holder.id();
        let tried = match refused {
            true => FileDevice::open(&path, Access::ReadWrite),
            false => FileDevice::open_unused(&path),
        };
        assert_eq!(lock_holders(&path), [pid]);
        assert!(is_busy(refuse_used(&path)).contains(&format!("process {pid} (flock)")));
        drop(holder.stdin.take());
        holder.wait().unwrap();
        if refused {
            let why = is_busy(tried);
            assert!(why.contains(&format!("process {pid} (flock)")), "{why}");
        } else {
            tried.unwrap();
        }
    }
    // A shell's lock: who has taken it has ended.
    let script = "exec 3<\"$0\"; flock -n 3; echo; read line";
    let mut command = Command::new("sh");
    command.args(["-c", script]).arg(&path).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut shell = command.spawn().unwrap();
    shell.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
    assert_eq!(lock_holders(&path), [shell.id()]);
    drop(shell.stdin.take());
    shell.wait().unwrap();
    let guest = Holder::of(&path, &GUEST);
    assert_eq!(lock_holders(&path), [0u32; 0], "these are of this process, too");
    drop(guest);
    refuse_used(&path).unwrap();
}

/// A new image keeps its name through a power loss.
#[test]
fn the_name_of_a_new_file_is_durable() {
    const MAKE: &str = "BUTTRESS_TEST_MAKE";
    if let Some(path) = std::env::var_os(MAKE) {
        FileDevice::create(PathBuf::from(path), 1 << 20).unwrap();
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let mut command = Command::new("strace");
    command.args(["-f", "-y", "-e", "trace=openat,fsync"]).arg(std::env::current_exe().unwrap());
    command.args(["--exact", "the_name_of_a_new_file_is_durable"]);
    let Ok(output) = command.env(MAKE, dir.path().join("image")).output() else {
        println!("skipped: needs strace");
        return;
    };
    let said = String::from_utf8_lossy(&output.stderr);
    let is_there = |line: &&str| line.contains("O_CREAT|O_EXCL") && line.contains("/image\"");
    let mut after = said.lines().skip_while(|line| !is_there(line)).peekable();
    if after.peek().is_none() {
        println!("skipped: nothing can be traced here");
        return;
    }
    let directory = format!("{}>)", dir.path().display());
    assert!(after.any(|line| line.contains("fsync(") && line.contains(&directory)), "{said}");
}

/// Makes two partitions in an image.
fn partition(image: &Path) -> bool {
    let child = Command::new("sfdisk").arg("-q").arg(image).stdin(Stdio::piped()).spawn();
    let Ok(mut child) = child else { return false };
    child.stdin.take().unwrap().write_all(b"label: dos\n,3M\n,3M\n").unwrap();
    child.wait().unwrap().success()
}

/// A node for a partition, whoever else makes some.
fn node(dir: &Path, disk: &Loop, number: u32) -> Option<PathBuf> {
    let name = disk.0.strip_prefix("/dev/")?;
    let found = std::fs::read_to_string(format!("/sys/block/{name}/{name}p{number}/dev")).ok()?;
    let (major, minor) = found.trim().split_once(':')?;
    let device = rustix::fs::makedev(major.parse().ok()?, minor.parse().ok()?);
    let (kind, mode) = (rustix::fs::FileType::BlockDevice, rustix::fs::Mode::RUSR);
    let node = dir.join(format!("p{number}"));
    rustix::fs::mknodat(rustix::fs::CWD, &node, kind, mode, device).ok()?;
    Some(node)
}
