//! Who has a lock on a file, as far as Linux tells.
//!
//! /proc/locks tells everybody of every lock, by the number of the file and that of its filesystem, and by the process that has
//! taken it. So who uses an image can be known without opening it. Of a lock that belongs to an open file, as QEMU's do, the
//! process is not told there, but in the list of open files of each process, as far as this user may look into it.

use std::collections::HashSet;
use std::fs::{Metadata, read_dir, read_to_string};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::{DeviceError, kernel};
use rustix::fs::{AtFlags, CWD, StatxFlags, major, minor, statx};

/// Names of processes that a message has at most.
const NAMES: usize = 3;

/// The processes but this one that have locks on the file at `path`, each once; 0 for one that is not told. Empty where there is
/// no lock, no file, or no /proc.
pub fn lock_holders(path: &Path) -> Vec<u32> {
    let Ok(file) = path.metadata() else { return Vec::new() };
    let Ok(table) = read_to_string("/proc/locks") else { return Vec::new() };
    // Few files have locks: their filesystem need not be looked for.
    let number = format!(":{}", file.ino());
    if !table.split_ascii_whitespace().any(|word| word.ends_with(&number)) {
        return Vec::new();
    }
    let files = identities(path, &file);
    let (mut told, untold) = owners(&table, &files);
    // All processes are looked through only where nobody is known.
    if told.is_empty() && untold > untold_of_this_process(&files) {
        told = owners_of_open_files(&files);
        // Meanwhile he may have gone.
        let table = read_to_string("/proc/locks").unwrap_or_default();
        if told.is_empty() && owners(&table, &files).1 > untold_of_this_process(&files) {
            told.push(0);
        }
    }
    told.sort_unstable();
    told.dedup();
    told
}

/// The processes but this one that a table of locks tells of, and how many locks it has besides of which it does not tell. One that
/// has ended has left the open file to others: as flock(1) does when a shell calls it with a file of its own.
fn owners(table: &str, files: &[String]) -> (Vec<u32>, usize) {
    let is_there = |pid: u32| pid != 0 && Path::new(&format!("/proc/{pid}")).exists();
    let all = table.lines().filter_map(|line| owner(line, files));
    let (told, untold): (Vec<u32>, Vec<u32>) = all.partition(|pid| is_there(*pid));
    let own = std::process::id();
    (told.into_iter().filter(|pid| *pid != own).collect(), untold.len())
}

/// What all files have that have locks or are behind loop devices. For those who would ask [`refuse_used`] of many files.
#[derive(Debug)]
pub struct UsedFiles {
    /// Their numbers, in whichever filesystem.
    numbers: HashSet<u64>,
    /// Whether there are others.
    untold: bool,
}

impl UsedFiles {
    /// As of now.
    pub fn now() -> UsedFiles {
        let table = read_to_string("/proc/locks").unwrap_or_default();
        let numbers =
            table.split_ascii_whitespace().filter_map(|word| word.rsplit_once(':')?.1.parse().ok());
        let (behind_loops, untold) = kernel::files_behind_loops();
        UsedFiles { numbers: numbers.chain(behind_loops).collect(), untold }
    }

    /// Whether a file with this number may be one of them.
    pub fn may_have(&self, number: u64) -> bool {
        self.untold || self.numbers.contains(&number)
    }
}

/// Refuses a file that another program has locked, or that backs a loop device. Unlike opening it, this needs no permission for
/// the file, and is in nobody's way. A file whose path is longer than the system takes is named by a handle's path below /proc.
pub fn refuse_used(path: &Path) -> Result<(), DeviceError> {
    let Some(file) = path.metadata().ok().filter(Metadata::is_file) else { return Ok(()) };
    if !lock_holders(path).is_empty() {
        let why = format!("another program has locked it{}", named(path));
        return Err(DeviceError::Busy { device: path.display().to_string(), why });
    }
    kernel::refuse_loop(path, &file, None)
}

/// The process that a line of /proc/locks tells of, if it is about one of `files`; 0 where it is not told.
fn owner(line: &str, files: &[String]) -> Option<u32> {
    let words: Vec<&str> = line.split_ascii_whitespace().collect();
    // Those that wait for a lock have an arrow before its kind.
    let [_, "FLOCK" | "POSIX" | "OFDLCK", _, _, pid, file, ..] = words[..] else { return None };
    files.iter().any(|known| known == file).then(|| pid.parse().unwrap_or(0))
}

/// How the table names a file: by the device of its filesystem, which may be another one than programs are told, as with the
/// subvolumes of btrfs.
fn identities(path: &Path, file: &Metadata) -> Vec<String> {
    let name = |(major, minor): (u32, u32)| format!("{major:02x}:{minor:02x}:{}", file.ino());
    let told = (major(file.dev()), minor(file.dev()));
    [Some(told), device_of_mount(path)].into_iter().flatten().map(name).collect()
}

/// The number of the filesystem that a file is on, as the list of mounts has it.
fn device_of_mount(path: &Path) -> Option<(u32, u32)> {
    let found = statx(CWD, path, AtFlags::empty(), StatxFlags::MNT_ID).ok()?;
    let id = found.stx_mnt_id.to_string();
    let table = read_to_string("/proc/self/mountinfo").ok()?;
    let line = table.lines().find(|line| line.split(' ').next() == Some(&id))?;
    let (major, minor) = line.split(' ').nth(2)?.split_once(':')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

/// The owners of the locks on `files` that the open files of a process have, as far as this user may see.
fn owners_in(pid: &str, files: &[String]) -> Vec<u32> {
    let entries = read_dir(format!("/proc/{pid}/fdinfo")).into_iter().flatten().flatten();
    let infos = entries.filter_map(|entry| read_to_string(entry.path()).ok());
    let of = |info: String| -> Vec<u32> {
        let lines = info.lines().filter_map(|line| line.strip_prefix("lock:"));
        lines.filter_map(|line| owner(line, files)).collect()
    };
    infos.flat_map(of).collect()
}

fn untold_of_this_process(files: &[String]) -> usize {
    let own = std::process::id();
    owners_in("self", files).into_iter().filter(|pid| *pid != own).count()
}

/// The processes but this one with an open file that has locks on one of `files`.
fn owners_of_open_files(files: &[String]) -> Vec<u32> {
    let entries = read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let own = std::process::id();
    pids.filter(|pid: &u32| *pid != own && !owners_in(&pid.to_string(), files).is_empty()).collect()
}

/// What a message calls the holders of locks on a file: `: process 12 (tar)`; empty where none is known.
pub(crate) fn named(path: &Path) -> String {
    let known: Vec<u32> = lock_holders(path).into_iter().filter(|pid| *pid != 0).collect();
    let names: Vec<String> = known.iter().take(NAMES).map(|pid| name(*pid)).collect();
    match (names.is_empty(), known.len() > NAMES) {
        (true, _) => String::new(),
        (false, false) => format!(": {}", names.join(", ")),
        (false, true) => format!(": {} and others", names.join(", ")),
    }
}

/// A process for a message. What it calls itself may hold anything.
fn name(pid: u32) -> String {
    let name = read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    let plain = |letter: char| if letter.is_control() { '?' } else { letter };
    match name.trim_end_matches('\n') {
        "" => format!("process {pid}"),
        name => format!("process {pid} ({})", name.chars().map(plain).collect::<String>()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_the_table() {
        let files = ["fe:00:12".to_owned()];
        let of = |line: &str| owner(line, &files);
        assert_eq!(of("1: FLOCK  ADVISORY  WRITE 4711 fe:00:12 0 EOF"), Some(4711));
        assert_eq!(of("2: OFDLCK ADVISORY  READ -1 fe:00:12 100 101"), Some(0));
        assert_eq!(of("2: -> FLOCK ADVISORY  WRITE 4711 fe:00:12 0 EOF"), None);
        assert_eq!(of("3: LEASE  ACTIVE    READ 1 fe:00:12 0 EOF"), None);
        assert_eq!(of("4: POSIX  ADVISORY  WRITE 4711 fe:00:123 0 EOF"), None);
        assert_eq!(of(""), None);
    }
}
