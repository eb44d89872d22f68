//! What images are filled with: ordinary content of every kind.

use std::ffi::OsStr;
use std::fs::{self, File, Permissions};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, PermissionsExt, chown, lchown, symlink};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, SystemTime};

use rustix::fs::{
    CWD, FallocateFlags, FileType, Mode, Timespec, Timestamps, XattrFlags, fallocate, futimens,
    ioctl_ficlone, lsetxattr, makedev, mknodat, setxattr,
};

use super::{Result, Site};
use crate::oracle::{btrfs, run};

/// Bytes that do not compress, the same for the same seed.
pub fn noise(seed: u64, count: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = Vec::with_capacity(count + 8);
    while bytes.len() < count {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(count);
    bytes
}

/// Bytes that compress well and differ everywhere.
pub fn words(seed: u64, count: usize) -> Vec<u8> {
    let mut text = Vec::with_capacity(count + 40);
    let mut number = seed;
    while text.len() < count {
        text.extend_from_slice(format!("line {number:08} of a long story\n").as_bytes());
        number += 1;
    }
    text.truncate(count);
    text
}

/// A bit of everything: the content of most images.
pub fn everything(site: &mut Site<'_>) -> Result<()> {
    let dir = site.dir;
    sizes(dir)?;
    layouts(dir)?;
    kinds(dir)?;
    names(dir)?;
    links(dir)?;
    attributes(dir)?;
    owners_and_times(dir)?;
    directory(&dir.join("directory"), 300)?;
    subvolumes(dir)
}

/// Nothing at all.
pub fn nothing(_: &mut Site<'_>) -> Result<()> {
    Ok(())
}

/// Files around every size that matters.
pub fn sizes(top: &Path) -> Result<()> {
    let dir = top.join("sizes");
    fs::create_dir(&dir)?;
    let edges = [0, 1, 2, 100, 2047, 2048, 2049, 3000, 4095, 4096, 4097, 8192, 65_535, 131_073];
    for size in edges {
        fs::write(dir.join(format!("noise-{size}")), noise(size as u64, size))?;
        fs::write(dir.join(format!("words-{size}")), words(size as u64, size))?;
    }
    fs::write(dir.join("large-noise"), noise(1, 1_500_000))?;
    fs::write(dir.join("large-words"), words(1, 1_500_001))?;
    Ok(())
}

/// Holes, preallocation, overwritten and cut extents, clones.
pub fn layouts(top: &Path) -> Result<()> {
    let dir = top.join("layouts");
    fs::create_dir(&dir)?;
    holes(&dir)?;
    preallocated(&dir)?;
    let file = create(&dir.join("overwritten"))?;
    file.write_all_at(&noise(2, 400_000), 0)?;
    file.sync_all()?;
    file.write_all_at(&words(3, 50_000), 100_000)?;
    file.sync_all()?;
    file.write_all_at(&noise(4, 10), 399_000)?;
    file.set_len(390_001)?;
    let cut = create(&dir.join("cut-and-grown"))?;
    cut.write_all_at(&noise(5, 300_000), 0)?;
    cut.sync_all()?;
    cut.set_len(5_000)?;
    cut.sync_all()?;
    cut.set_len(200_000)?;
    let clone = create(&dir.join("clone"))?;
    ioctl_ficlone(&clone, &file)?;
    clone.write_all_at(&noise(6, 4096), 8192)?;
    let inline = create(&dir.join("inline-then-hole"))?;
    inline.write_all_at(b"a few bytes", 0)?;
    inline.sync_all()?;
    inline.set_len(1 << 20)?;
    Ok(())
}

/// Files with holes in all places.
pub fn holes(dir: &Path) -> Result<()> {
    let file = create(&dir.join("holes"))?;
    file.write_all_at(&noise(7, 4096), 1 << 20)?;
    file.write_all_at(&noise(8, 10_000), (5 << 20) + 123)?;
    file.set_len(20 << 20)?;
    create(&dir.join("only-a-hole"))?.set_len(123_456_789)?;
    let punched = create(&dir.join("punched"))?;
    punched.write_all_at(&noise(9, 300_000), 0)?;
    punched.sync_all()?;
    let mode = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    fallocate(&punched, mode, 65_536, 65_536)?;
    fallocate(&punched, mode, 200_001, 10_000)?;
    Ok(())
}

/// Preallocated extents: unwritten, partly written, past the end.
pub fn preallocated(dir: &Path) -> Result<()> {
    let whole = create(&dir.join("preallocated"))?;
    fallocate(&whole, FallocateFlags::empty(), 0, 1 << 20)?;
    let partly = create(&dir.join("partly-written"))?;
    fallocate(&partly, FallocateFlags::empty(), 0, 1 << 20)?;
    partly.write_all_at(&noise(10, 50_000), 300_000)?;
    let past = create(&dir.join("past-the-end"))?;
    past.write_all_at(&noise(11, 5_000), 0)?;
    fallocate(&past, FallocateFlags::KEEP_SIZE, 0, 500_000)?;
    let zeroed = create(&dir.join("zeroed"))?;
    zeroed.write_all_at(&noise(12, 200_000), 0)?;
    zeroed.sync_all()?;
    fallocate(&zeroed, FallocateFlags::ZERO_RANGE, 50_000, 70_000)?;
    Ok(())
}

/// One object of every kind.
pub fn kinds(top: &Path) -> Result<()> {
    let dir = top.join("kinds");
    fs::create_dir(&dir)?;
    fs::create_dir(dir.join("directory"))?;
    symlink("directory", dir.join("link"))?;
    symlink("no/such/file", dir.join("dangling"))?;
    symlink("x".repeat(2000), dir.join("long-link"))?;
    symlink("y".repeat(3800), dir.join("longest-link"))?;
    drop(UnixListener::bind(dir.join("socket"))?);
    let mode = Mode::from_raw_mode(0o640);
    mknodat(CWD, dir.join("fifo"), FileType::Fifo, mode, 0)?;
    mknodat(CWD, dir.join("null"), FileType::CharacterDevice, mode, makedev(1, 3))?;
    mknodat(CWD, dir.join("disk"), FileType::BlockDevice, mode, makedev(259, 0x12345))?;
    Ok(())
}

/// Names that are hard to print and as long as they get.
pub fn names(top: &Path) -> Result<()> {
    let dir = top.join("names");
    fs::create_dir(&dir)?;
    let odd: [&[u8]; 9] = [
        b" leading and trailing ",
        b"new\nline",
        b"\xff\xfe not unicode \x80",
        b"\x01",
        b"back\\slash",
        b"...",
        b"-rf",
        "na\u{ef}ve \u{4e2d}\u{6587}".as_bytes(),
        b"%25",
    ];
    for name in odd {
        fs::write(dir.join(OsStr::from_bytes(name)), name)?;
    }
    for length in [1, 127, 254, 255] {
        fs::write(dir.join("n".repeat(length)), [b'n'])?;
    }
    Ok(())
}

/// Hard links within and across directories.
pub fn links(top: &Path) -> Result<()> {
    let dir = top.join("links");
    fs::create_dir_all(dir.join("sub"))?;
    fs::write(dir.join("file"), words(12, 9_000))?;
    for number in 0..20 {
        fs::hard_link(dir.join("file"), dir.join(format!("again-{number}")))?;
        fs::hard_link(dir.join("file"), dir.join(format!("sub/again-{number}")))?;
    }
    symlink("file", dir.join("symlink"))?;
    fs::hard_link(dir.join("symlink"), dir.join("sub/symlink-again"))?;
    Ok(())
}

/// Extended attributes in every namespace, and ACLs.
pub fn attributes(top: &Path) -> Result<()> {
    let dir = top.join("attributes");
    fs::create_dir(&dir)?;
    let file = dir.join("file");
    fs::write(&file, "text")?;
    for (name, value) in [
        ("user.empty", Vec::new()),
        ("user.short", b"value".to_vec()),
        ("user.binary", noise(13, 100)),
        ("user.long", noise(14, 2500)),
        ("trusted.overlay.opaque", b"y".to_vec()),
        ("security.made-up", b"label".to_vec()),
    ] {
        setxattr(&file, name, &value, XattrFlags::empty())?;
    }
    setxattr(&dir, "user.on-a-directory", b"1", XattrFlags::empty())?;
    symlink("file", dir.join("link"))?;
    lsetxattr(dir.join("link"), "trusted.on-a-link", b"2", XattrFlags::empty())?;
    fs::write(dir.join("acl"), "")?;
    fs::create_dir(dir.join("default-acl"))?;
    acl(&["-m", "u:1234:rw,g:55:r"], &dir.join("acl"))?;
    acl(&["-d", "-m", "u:1234:rwx,g::rx"], &dir.join("default-acl"))?;
    fs::write(dir.join("default-acl/inherits"), "")?;
    Ok(())
}

/// Runs `setfacl`.
fn acl(args: &[&str], path: &Path) -> Result<()> {
    run(Command::new("setfacl").args(args).arg(path))?;
    Ok(())
}

/// Modes, owners and times at their edges.
pub fn owners_and_times(top: &Path) -> Result<()> {
    let dir = top.join("owners");
    fs::create_dir(&dir)?;
    for mode in [0o000, 0o4755, 0o2755, 0o6711, 0o1666, 0o7777, 0o644] {
        let path = dir.join(format!("mode-{mode:o}"));
        fs::write(&path, "")?;
        fs::set_permissions(&path, Permissions::from_mode(mode))?;
    }
    let owned = dir.join("owned");
    fs::write(&owned, "")?;
    chown(&owned, Some(4_000_000_000), Some(65_536))?;
    symlink("owned", dir.join("owned-link"))?;
    lchown(dir.join("owned-link"), Some(1), Some(2))?;
    for seconds in [-3_000_000_000, -1, 0, 1 << 31, 1 << 32, 100_000_000_000] {
        let file = create(&dir.join(format!("time-{seconds}")))?;
        let time = Timespec { tv_sec: seconds, tv_nsec: 123_456_789 };
        futimens(&file, &Timestamps { last_access: time, last_modification: time })?;
    }
    let sticky = dir.join("sticky");
    fs::create_dir(&sticky)?;
    fs::set_permissions(&sticky, Permissions::from_mode(0o3777))?;
    let past = SystemTime::UNIX_EPOCH + Duration::from_secs(86_400);
    File::open(&sticky)?.set_modified(past)?;
    Ok(())
}

/// A directory of `count` small files, some removed again so that its index has gaps.
pub fn directory(dir: &Path, count: usize) -> Result<()> {
    fs::create_dir(dir)?;
    for number in 0..count {
        fs::write(dir.join(format!("entry-{number}")), words(number as u64, number % 200))?;
    }
    for number in (0..count).step_by(7) {
        fs::remove_file(dir.join(format!("entry-{number}")))?;
    }
    fs::rename(dir.join("entry-1"), dir.join("renamed"))?;
    Ok(())
}

/// A subvolume, a nested one, and snapshots that have gone their own way.
pub fn subvolumes(top: &Path) -> Result<()> {
    let (volume, frozen, moved) = (top.join("volume"), top.join("frozen"), top.join("moved-on"));
    subvolume(&volume)?;
    fs::write(volume.join("shared"), noise(15, 100_000))?;
    fs::write(volume.join("small"), words(16, 1_000))?;
    directory(&volume.join("directory"), 50)?;
    subvolume(&volume.join("nested"))?;
    fs::write(volume.join("nested/inside"), "nested")?;
    snapshot(&volume, &frozen, true)?;
    snapshot(&volume, &moved, false)?;
    File::options().write(true).open(moved.join("shared"))?.write_all_at(b"changed", 50_000)?;
    fs::remove_dir_all(moved.join("directory"))?;
    fs::remove_file(volume.join("small"))?;
    Ok(())
}

/// Makes a subvolume.
pub fn subvolume(path: &Path) -> Result<()> {
    btrfs(&["subvolume", "create", &path.to_string_lossy()])?;
    Ok(())
}

/// Makes a snapshot.
pub fn snapshot(of: &Path, at: &Path, read_only: bool) -> Result<()> {
    let (of, at) = (of.to_string_lossy(), at.to_string_lossy());
    let mut args = vec!["subvolume", "snapshot"];
    if read_only {
        args.push("-r");
    }
    args.extend([&*of, &*at]);
    btrfs(&args)?;
    Ok(())
}

/// Makes a new file, open for reading and writing.
pub fn create(path: &Path) -> Result<File> {
    Ok(File::options().read(true).write(true).create_new(true).open(path)?)
}
