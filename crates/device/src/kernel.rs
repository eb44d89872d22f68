//! What the kernel does with a file or disk, as far as it says: which loop devices a file stands behind, what is mounted,
//! and who holds a disk. The kernel takes no lock that others could see, so this is all there is to go by.
//!
//! Everything is read from sysfs and from this process's list of mounts, which anybody may; what is not there (no sysfs,
//! another mount namespace, a deleted file) is passed over. Of a file behind a loop device sysfs tells the path, and no other number: where
//! that is longer than it can tell, every file with such a path may be the one.

use std::{
    fs::{Metadata, read_dir, read_to_string},
    ops::Range,
    os::unix::{
        ffi::OsStringExt,
        fs::{FileTypeExt, MetadataExt},
    },
    path::{Path, PathBuf},
    time::Duration,
};

use rustix::io::Errno;

use crate::{DeviceError, lock::Part};

/// How often, and how far apart, a loop device that is about to go is looked at again.
const LOOP_LOOKS: u32 = 30;
const LOOP_PAUSE: Duration = Duration::from_millis(100);
/// Disks on disks on disks: further down nobody looks.
const DEPTH: u32 = 8;

/// Refuses a file, or the part of it that is wanted, that backs a loop device. After `umount` and `losetup -d` the kernel keeps the
/// device until its last user has closed it, so one that detaches by itself is given a moment.
pub(crate) fn refuse_loop(
    path: &Path,
    own: &Metadata,
    part: Option<&Part>,
) -> Result<(), DeviceError> {
    for look in 0.. {
        let mut block = loops_within(own, part).next();
        let is_untold = block.is_none() && is_too_long(path.canonicalize());
        if is_untold {
            block = untold_loops(own.len()).into_iter().next();
        }
        let Some(block) = block else { return Ok(()) };
        let user = writer_of(&block);
        if user.is_some() || !flag(&block, "loop/autoclear") || look == LOOP_LOOKS {
            let user = user.map_or_else(String::new, |user| format!(", {user}"));
            let backs = if is_untold { "may back" } else { "backs" };
            let why = format!("it {backs} the loop device /dev/{}{user}", last(&block));
            return Err(DeviceError::Busy { device: path.display().to_string(), why });
        }
        std::thread::sleep(LOOP_PAUSE);
    }
    Ok(())
}

/// Says what the kernel may be writing to a regular file while it is read.
pub(crate) fn concern_of_file(own: &Metadata, part: Option<&Part>) -> Option<String> {
    loops_within(own, part).find_map(|block| {
        let user = writer_of(&block)?;
        Some(format!("it backs the loop device /dev/{}, {user}: {MOVING}", last(&block)))
    })
}

/// Says what the kernel may be writing to a disk while it is read.
pub(crate) fn concern_of_disk(disk: &Metadata) -> Option<String> {
    writer_of(&block_of(disk.rdev())?).map(|user| format!("the disk is one {user}: {MOVING}"))
}

const MOVING: &str = "what is read may be old, or change meanwhile";

/// What uses a disk so that nobody else may, as far as the kernel says: a mount, or another disk that is made of it.
pub fn disk_user(disk: &Path) -> Option<String> {
    let found = disk.metadata().ok().filter(|found| found.file_type().is_block_device())?;
    let block = block_of(found.rdev())?;
    let mut all = with_parts(&block);
    if block.join("partition").exists() {
        all.extend(block.parent().map(Path::to_owned));
    }
    all.iter().find_map(|it| mounted_in(it, false).or_else(|| held(it)))
}

/// A file behind a disk.
#[derive(Debug)]
pub(crate) struct Behind {
    pub path: PathBuf,
    /// The part of the file that the disk is; `None` for all of it.
    pub part: Option<Part>,
    /// The folder in sysfs of the loop device.
    block: PathBuf,
}

/// The files behind a disk, if it is a loop device, a partition of one, or is made of such.
pub(crate) fn files_behind(disk: &Metadata) -> Vec<Behind> {
    let mut found = Vec::new();
    if let Some(block) = block_of(disk.rdev()) {
        let all = Part { range: 0..sectors(&block, "size"), exact: true };
        collect_files(&block, &all, DEPTH, &mut found);
    }
    found
}

fn collect_files(block: &Path, part: &Part, depth: u32, found: &mut Vec<Behind>) {
    if depth == 0 {
        return;
    }
    if let Some(path) = backing_file(block) {
        let begin = number(block, "loop/offset");
        let is_all = part.exact
            && (begin, number(block, "loop/sizelimit")) == (0, 0)
            && part.range == (0..sectors(block, "size"));
        let part = (!is_all).then(|| part.moved(begin));
        found.push(Behind { path, part, block: block.to_owned() });
    }
    if block.join("partition").exists()
        && let Some(whole) = block.parent()
    {
        collect_files(whole, &part.moved(sectors(block, "start")), depth - 1, found);
    }
    for below in list(&block.join("slaves")) {
        let below = below.canonicalize().unwrap_or(below);
        let within = Part { range: 0..sectors(&below, "size"), exact: false };
        collect_files(&below, &within, depth - 1, found);
    }
}

/// Refuses a disk where Linux writes to the same part of the file behind it through another loop device.
pub(crate) fn refuse_other_loops(
    name: &str,
    behind: &Behind,
    file: &Metadata,
) -> Result<(), DeviceError> {
    for other in loops_on(file).iter().filter(|other| **other != behind.block) {
        for disk in with_parts(other) {
            let range = bytes_behind(other, &disk);
            let meets = behind.part.as_ref().is_none_or(|part| part.meets(&range));
            if let Some(user) = meets.then(|| writer_of_one(&disk)).flatten() {
                let why = format!(
                    "the file behind it, {}, is behind /dev/{}, too, {user}",
                    behind.path.display(),
                    last(&disk)
                );
                return Err(DeviceError::Busy { device: name.into(), why });
            }
        }
    }
    Ok(())
}

/// The loop device of a btrfs that Linux has mounted under this id, where the file behind it cannot be found by its name any
/// more: it has been deleted, or another filesystem is mounted above it. Then nobody can tell that it is not the file that is
/// about to be opened, by another name.
pub fn lost_mount(fsid: &str) -> Option<PathBuf> {
    let place = Path::new("/sys/fs/btrfs").join(fsid);
    let mut disks =
        list(&place.join("devices")).into_iter().filter_map(|it| it.canonicalize().ok());
    let lost = disks.find(|disk| {
        has_untold_file(disk) || backing_file(disk).is_some_and(|file| !file.exists())
    })?;
    Some(Path::new("/dev").join(last(&lost)))
}

/// Those of [`loops_on`] a file that have bytes of a part of it.
fn loops_within(own: &Metadata, part: Option<&Part>) -> impl Iterator<Item = PathBuf> {
    let all = loops_on(own).into_iter();
    all.filter(move |block| part.is_none_or(|part| part.meets(&bytes_behind(block, block))))
}

/// The bytes of the file behind a loop device that the device, or a partition of it, has.
fn bytes_behind(block: &Path, disk: &Path) -> Range<u64> {
    let within = if disk == block { 0 } else { sectors(disk, "start") };
    let start = number(block, "loop/offset").saturating_add(within);
    start..start.saturating_add(sectors(disk, "size"))
}

/// The folders in sysfs of the loop devices that a file, or a disk, backs.
fn loops_on(own: &Metadata) -> Vec<PathBuf> {
    let same = |other: Metadata| match own.file_type().is_block_device() {
        true => other.file_type().is_block_device() && other.rdev() == own.rdev(),
        false => other.dev() == own.dev() && other.ino() == own.ino(),
    };
    let is_own = |block: &PathBuf| {
        backing_file(block).and_then(|file| file.metadata().ok()).is_some_and(same)
    };
    let all = list(Path::new("/sys/block")).into_iter().filter(is_own);
    all.map(|block| block.canonicalize().unwrap_or(block)).collect()
}

/// The numbers, in whichever filesystem, of the files behind loop devices; and whether there are others.
pub(crate) fn files_behind_loops() -> (Vec<u64>, bool) {
    let all = list(Path::new("/sys/block"));
    let files = all.iter().filter_map(|it| backing_file(it));
    let numbers = files.filter_map(|file| Some(file.metadata().ok()?.ino())).collect();
    (numbers, all.iter().any(|it| has_untold_file(it)))
}

/// The folders in sysfs of the loop devices with files of which no path is told, and which may have so many bytes.
fn untold_loops(bytes: u64) -> Vec<PathBuf> {
    let fits = |block: &PathBuf| {
        let end = number(block, "loop/offset").saturating_add(sectors(block, "size"));
        has_untold_file(block) && end <= bytes
    };
    list(Path::new("/sys/block")).into_iter().filter(fits).collect()
}

fn has_untold_file(block: &Path) -> bool {
    is_too_long(std::fs::read(block.join("loop/backing_file")))
}

/// Whether something has failed because a path is longer than the system takes.
fn is_too_long<T>(done: std::io::Result<T>) -> bool {
    let errno = done.err().and_then(|error| error.raw_os_error());
    errno == Some(Errno::NAMETOOLONG.raw_os_error())
}

fn backing_file(block: &Path) -> Option<PathBuf> {
    let mut name = std::fs::read(block.join("loop/backing_file")).ok()?;
    name.pop_if(|last| *last == b'\n');
    Some(std::ffi::OsString::from_vec(name).into())
}

/// The folder in sysfs of a disk or partition.
fn block_of(rdev: u64) -> Option<PathBuf> {
    let (major, minor) = (rustix::fs::major(rdev), rustix::fs::minor(rdev));
    Path::new(&format!("/sys/dev/block/{major}:{minor}")).canonicalize().ok()
}

/// Who may be writing to a disk or to a partition of it: what is mounted from it, or another disk made of it.
fn writer_of(block: &Path) -> Option<String> {
    let all = with_parts(block);
    all.iter().find_map(|it| writer_of_one(it))
}

fn writer_of_one(block: &Path) -> Option<String> {
    if flag(block, "ro") {
        return None;
    }
    mounted_in(block, true).or_else(|| held(block))
}

/// A disk and its partitions.
fn with_parts(block: &Path) -> Vec<PathBuf> {
    let parts = list(block).into_iter().filter(|it| it.join("partition").exists());
    std::iter::once(block.to_owned()).chain(parts).collect()
}

fn held(block: &Path) -> Option<String> {
    let holder = list(&block.join("holders")).into_iter().next()?;
    Some(format!("that /dev/{} is made of", last(&holder)))
}

/// Where Linux has mounted a disk; with `for_writing`, unless read-only. A mount in another namespace is not in our list; btrfs names its disks
/// in sysfs besides.
fn mounted_in(block: &Path, for_writing: bool) -> Option<String> {
    let number = read_to_string(block.join("dev")).ok()?;
    let table = std::fs::read("/proc/self/mountinfo").unwrap_or_default();
    let mounts = table.split(|byte| *byte == b'\n').filter_map(Mount::parse);
    let mut here = mounts.filter(|mount| mount.is_of(number.trim())).peekable();
    if here.peek().is_some() {
        let writable = here.find(|mount| mount.writable || !for_writing)?;
        return Some(format!("that Linux has mounted on {}", writable.point.display()));
    }
    let name = last(block);
    let known =
        list(Path::new("/sys/fs/btrfs")).iter().any(|it| it.join("devices").join(&name).exists());
    known.then(|| "that Linux has mounted".into())
}

/// A line of mountinfo.
struct Mount {
    point: PathBuf,
    source: PathBuf,
    writable: bool,
}

impl Mount {
    /// Mounts by programs are left out: those have locks, or say so themselves.
    fn parse(line: &[u8]) -> Option<Mount> {
        let mut words = line.split(|byte| *byte == b' ');
        let point = path(words.nth(4)?);
        let mut words = words.skip_while(|word| *word != b"-").skip(1);
        let kind = words.next()?;
        let source = path(words.next()?);
        let writable = words.next()?.split(|byte| *byte == b',').any(|word| word == b"rw");
        (!kind.starts_with(b"fuse")).then_some(Mount { point, source, writable })
    }

    /// Whether it is of the disk with this number, as in `7:0`. The mount's own number says nothing: that of a btrfs is
    /// made up.
    fn is_of(&self, number: &str) -> bool {
        self.source.starts_with("/")
            && self.source.metadata().is_ok_and(|it| {
                format!("{}:{}", rustix::fs::major(it.rdev()), rustix::fs::minor(it.rdev()))
                    == number
            })
    }
}

/// A path as the list of mounts writes it: with blanks and the like as three octal digits.
fn path(word: &[u8]) -> PathBuf {
    let mut bytes = Vec::new();
    let mut rest = word;
    while let Some((first, after)) = rest.split_first() {
        let digits = after.get(..3).and_then(|it| str::from_utf8(it).ok());
        match digits.and_then(|it| u8::from_str_radix(it, 8).ok()).filter(|_| *first == b'\\') {
            Some(byte) => {
                bytes.push(byte);
                rest = after.get(3..).unwrap_or_default();
            }
            None => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    std::ffi::OsString::from_vec(bytes).into()
}

fn list(directory: &Path) -> Vec<PathBuf> {
    read_dir(directory).into_iter().flatten().flatten().map(|entry| entry.path()).collect()
}

fn last(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// A number that sysfs tells in units of 512 bytes, in bytes.
fn sectors(block: &Path, name: &str) -> u64 {
    number(block, name).saturating_mul(512)
}

fn number(block: &Path, name: &str) -> u64 {
    let text = read_to_string(block.join(name)).unwrap_or_default();
    text.trim().parse().unwrap_or_default()
}

fn flag(block: &Path, name: &str) -> bool {
    read_to_string(block.join(name)).is_ok_and(|flag| flag.trim() == "1")
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::Mount;

    #[test]
    fn lines_of_mountinfo() {
        let line =
            b"36 35 0:31 / /mnt/a\\040b rw,noatime master:1 - btrfs /dev/loop7 rw,space_cache=v2";
        let mount = Mount::parse(line).unwrap();
        assert_eq!(mount.point, Path::new("/mnt/a b"));
        assert_eq!(mount.source, Path::new("/dev/loop7"));
        assert!(mount.writable);
        let line = b"36 35 7:0 / /mnt rw - ext4 /dev/loop7 ro";
        assert!(!Mount::parse(line).unwrap().writable);
        assert!(Mount::parse(b"36 35 0:50 / /mnt rw - fuse.buttress /tmp/a rw").is_none());
        assert!(Mount::parse(b"").is_none() && Mount::parse(b"1 2 3 4 5 - x").is_none());
    }
}
