//! What `memory=` is for: all memory of the process that serves a mount, as `VmRSS` counts it.
//!
//! The program itself comes first, then the buffers through which data pass between the kernel and the filesystem. The
//! filesystem has the rest, and divides it as [`buttress::Options::memory`] says. With little memory, requests are
//! smaller and fewer threads read them.
//!
//! When nothing is said, it is an eighth of what there is: of the machine, or of the control group that the process is in. Linux lets
//! a fifth of the machine's memory wait for the disk, beside all that it caches; here one bound is for both, and nobody takes it back.

use std::path::{Path, PathBuf};

use crate::session::{TRANSFER_BYTES_MAX, readers_by_default};

/// The least that a mount can do with.
pub const MEMORY_MIN: u64 = 32 << 20;
/// The part of what there is that a mount may use when nothing is said, and bounds of that.
const SHARE: u64 = 8;
const BY_DEFAULT: std::ops::RangeInclusive<u64> = 64 << 20..=2 << 30;
/// Program and libraries (7 MiB), the stacks of threads, and what the work on requests and a commit takes however little waits.
const PROGRAM: u64 = 16 << 20;
/// From here on, requests are as large as they can be.
const LARGE: u64 = 128 << 20;
/// The largest transfer below that, in bytes.
const SMALL_TRANSFER: u32 = 256 << 10;
/// Buffers may have this part of the memory.
const BUFFERS_SHARE: u64 = 8;

/// How the memory of a mount is divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// Bytes for the filesystem.
    pub filesystem: u64,
    /// Threads that read requests.
    pub readers: usize,
    /// Bytes of the largest transfer.
    pub transfer_bytes: u32,
}

impl Budget {
    /// Divides `memory` bytes.
    pub fn of(memory: u64) -> Budget {
        Budget::with_readers(memory.max(MEMORY_MIN), readers_by_default())
    }

    fn with_readers(memory: u64, wanted: usize) -> Budget {
        let transfer_bytes = if memory < LARGE { SMALL_TRANSFER } else { TRANSFER_BYTES_MAX };
        // One that receives, and one for the answer to a READ.
        let each = 2 * u64::from(transfer_bytes);
        let affordable = usize::try_from(memory / BUFFERS_SHARE / each).unwrap_or(usize::MAX);
        let readers = wanted.min(affordable).max(2);
        let buffers = each * readers as u64;
        let filesystem = memory.saturating_sub(PROGRAM + buffers);
        Budget { filesystem, readers, transfer_bytes }
    }
}

/// Bytes that a mount may use when nothing is said.
pub fn by_default() -> u64 {
    let info = rustix::system::sysinfo();
    let machine = info.totalram.saturating_mul(info.mem_unit.into());
    default_of(machine, group_limit(Path::new("/proc/self/cgroup"), Path::new("/sys/fs/cgroup")))
}

fn default_of(machine: u64, group: Option<u64>) -> u64 {
    let there_is = group.map_or(machine, |group| group.min(machine));
    // What is more than that is not there.
    let least = (there_is / 2).clamp(MEMORY_MIN, *BY_DEFAULT.start());
    (there_is / SHARE).clamp(least, *BY_DEFAULT.end())
}

/// What the control groups of this process let it have: of version 2 `memory.max` and `memory.high` of each on the way to the top, of
/// version 1 `memory.limit_in_bytes`. `None` where they set no limit or there are none.
fn group_limit(groups: &Path, mounted: &Path) -> Option<u64> {
    let groups = std::fs::read_to_string(groups).ok()?;
    let limits = |line: &str| {
        let (controllers, own) = line.split_once(':')?.1.split_once(":/")?;
        let (top, names): (_, &[_]) = match controllers {
            "" => (mounted.to_owned(), &["memory.max", "memory.high"]),
            _ if controllers.split(',').any(|it| it == "memory") => {
                (mounted.join("memory"), &["memory.limit_in_bytes"])
            }
            _ => return None,
        };
        let limit = |path: PathBuf| std::fs::read_to_string(path).ok()?.trim().parse::<u64>().ok();
        let own = top.join(own);
        let all = own.ancestors().take_while(|dir| dir.starts_with(&top));
        all.flat_map(|dir| names.iter().map(|name| dir.join(name))).filter_map(limit).min()
    };
    groups.lines().filter_map(limits).min()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mount_may_use_a_part_of_what_there_is() {
        const GIB: u64 = 1 << 30;
        assert_eq!(default_of(8 * GIB, None), GIB);
        assert_eq!(default_of(8 * GIB, Some(2 * GIB)), GIB / 4);
        assert_eq!(default_of(8 * GIB, Some(1 << 60)), GIB);
        assert_eq!(default_of(GIB / 8, None), 64 << 20);
        assert_eq!(default_of(GIB, Some(96 << 20)), 48 << 20);
        assert_eq!(default_of(GIB, Some(40 << 20)), MEMORY_MIN);
        assert_eq!(default_of(1 << 50, None), 2 * GIB);
        assert!(by_default() >= MEMORY_MIN);
    }

    #[test]
    fn the_lowest_limit_of_all_groups_counts() {
        let dir = tempfile::tempdir().unwrap();
        let own = dir.path().join("a/b");
        std::fs::create_dir_all(&own).unwrap();
        let groups = dir.path().join("groups");
        std::fs::write(&groups, "0::/a/b\n").unwrap();
        let limit = || group_limit(&groups, dir.path());
        assert_eq!(limit(), None);
        std::fs::write(own.join("memory.max"), "max\n").unwrap();
        std::fs::write(own.join("memory.high"), "3000\n").unwrap();
        assert_eq!(limit(), Some(3000));
        std::fs::write(dir.path().join("a/memory.max"), "2000\n").unwrap();
        assert_eq!(limit(), Some(2000));
        std::fs::write(&groups, "1:name=systemd:/a\n").unwrap();
        assert_eq!(limit(), None);
        // Version 1, and both.
        std::fs::create_dir_all(dir.path().join("memory/c")).unwrap();
        std::fs::write(dir.path().join("memory/c/memory.limit_in_bytes"), "1500\n").unwrap();
        std::fs::write(dir.path().join("memory/memory.limit_in_bytes"), u64::MAX.to_string())
            .unwrap();
        std::fs::write(&groups, "5:cpu,memory:/c\n4:cpu:/a/b\n").unwrap();
        assert_eq!(limit(), Some(1500));
        std::fs::write(&groups, "5:memory:/c\n0::/a\n").unwrap();
        assert_eq!(limit(), Some(1500));
        // In a container the groups of the machine are not there, and its own are the top.
        std::fs::write(&groups, "5:memory:/machine/c\n").unwrap();
        std::fs::write(dir.path().join("memory/memory.limit_in_bytes"), "1700").unwrap();
        assert_eq!(limit(), Some(1700));
    }

    /// What [`buttress::Options::memory`] takes at least.
    const FILESYSTEM_MIN: u64 = 12 << 20;

    #[test]
    fn the_parts_are_no_more_than_the_whole() {
        for mib in [32, 64, 127, 128, 512, 4096] {
            for wanted in [2, 4, 32, 256] {
                let memory = mib << 20;
                let budget = Budget::with_readers(memory, wanted);
                let buffers = 2 * budget.readers as u64 * u64::from(budget.transfer_bytes);
                assert_eq!(budget.filesystem + buffers + PROGRAM, memory);
                assert!(buffers <= memory / BUFFERS_SHARE);
                assert!(budget.filesystem >= FILESYSTEM_MIN.max(memory / 8 * 3));
                assert!(budget.readers <= wanted);
            }
        }
    }
}
