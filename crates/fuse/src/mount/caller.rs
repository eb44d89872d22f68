//! Who asks: what the kernel knows about a caller and FUSE does not tell.
//!
//! A request carries the caller's user, group and thread. What Linux decides by besides, supplementary groups, capabilities
//! and the mount through which a file was opened, is in /proc. The thread waits for the answer, so what is read there is
//! still true; one that was killed meanwhile may have left its number to another thread, which is why user and group have
//! to be those of the request.
//!
//! What cannot be read is not granted: a caller whose thread is not visible has no groups but its own, no capabilities, and
//! sees no mount, and came through one that may not be written to. The same goes for a /proc of another PID namespace than this process's:
//! there the number of the caller belongs to somebody else.

use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use rustix::fs::{AtFlags, CWD, StatxFlags};
use rustix::io::Errno;

use super::store::Answer;
use crate::protocol::channel::Request;
use crate::protocol::mounts::{self, MountEntry};

/// A capability, by its number in capabilities(7).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Capability {
    /// Permissions of files do not count.
    DacOverride = 1,
    /// Permissions to read files and to search directories do not count.
    DacReadSearch = 2,
    /// Whatever the owner of a file may do.
    Fowner = 3,
    /// Set-ID bits stay.
    Fsetid = 4,
    /// Administration of filesystems.
    SysAdmin = 21,
}

/// The credentials of a thread.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Caller {
    /// By its number in /proc; 0 where it is not known there.
    thread: u32,
    pub(super) uid: u32,
    gid: u32,
    groups: Vec<u32>,
    /// In its own user namespace.
    capabilities: u64,
    /// In the user namespace of this process.
    pub(super) among_us: bool,
    /// Users and groups that its user namespace knows, where that is another one.
    known: [Vec<Range<u64>>; 2],
}

impl Caller {
    /// Who made a request.
    pub(super) fn of(request: &Request<'_>) -> Self {
        let bare = Self { uid: request.uid(), gid: request.gid(), ..Self::default() };
        let pid = in_proc(request.pid());
        if pid == 0 {
            return bare;
        }
        let Ok(status) = fs::read_to_string(format!("/proc/{pid}/status")) else {
            return bare;
        };
        match Self::parse(&status) {
            Some(found) if (found.uid, found.gid) == (bare.uid, bare.gid) => {
                let found = Self { thread: pid, ..found };
                match shares_user_namespace(pid) {
                    true => Self { among_us: true, ..found },
                    false => Self { known: ["uid", "gid"].map(|ids| known_ids(pid, ids)), ..found },
                }
            }
            _ => bare,
        }
    }

    fn parse(status: &str) -> Option<Self> {
        // The last of the four is the one that counts for filesystems.
        let last = |name| field(status, name)?.split_ascii_whitespace().last()?.parse().ok();
        let groups = field(status, "Groups:")?.split_ascii_whitespace();
        Some(Self {
            uid: last("Uid:")?,
            gid: last("Gid:")?,
            groups: groups.map(|group| group.parse().ok()).collect::<Option<_>>()?,
            capabilities: u64::from_str_radix(field(status, "CapEff:")?, 16).ok()?,
            ..Self::default()
        })
    }

    fn has_at_home(&self, capability: Capability) -> bool {
        self.capabilities >> (capability as u32) & 1 != 0
    }

    /// Whether it has a capability that counts for the whole filesystem.
    pub(super) fn has(&self, capability: Capability) -> bool {
        self.among_us && self.has_at_home(capability)
    }

    /// Whether it has a capability that counts for an inode: so does one of a user namespace that knows owner and group.
    pub(super) fn has_over(&self, capability: Capability, uid: u32, gid: u32) -> bool {
        let known = || {
            let mut pairs = self.known.iter().zip([uid, gid]);
            pairs.all(|(ranges, id)| ranges.iter().any(|range| range.contains(&id.into())))
        };
        self.has_at_home(capability) && (self.among_us || known())
    }

    /// The directories of the filesystem with this `st_dev` that it sees mounted.
    pub(super) fn tops(&self, device: (u32, u32)) -> Vec<PathBuf> {
        let seen = match self.thread {
            0 => Vec::new(),
            thread => mounts::seen_by(&thread.to_string()).unwrap_or_default(),
        };
        mounts::tops(&seen, device).into_iter().map(Path::to_owned).collect()
    }

    pub(super) fn is_in_group(&self, gid: u32) -> bool {
        self.gid == gid || self.groups.contains(&gid)
    }
}

/// The thread that the kernel tells of, if /proc shows it by that number; 0, which it shows nobody by, if not.
fn in_proc(pid: u32) -> u32 {
    static OURS: OnceLock<bool> = OnceLock::new();
    let ours =
        || fs::read_to_string("/proc/self/status").is_ok_and(|own| is_of_our_namespace(&own));
    if *OURS.get_or_init(ours) { pid } else { 0 }
}

/// Whether /proc is that of the PID namespace in which the process is that it says this of. From an outer one it has more than
/// one number.
fn is_of_our_namespace(status: &str) -> bool {
    field(status, "NSpid:").is_some_and(|numbers| numbers.split_ascii_whitespace().count() == 1)
}

/// The value of a line of /proc/PID/status and its like.
pub(super) fn field<'t>(text: &'t str, name: &str) -> Option<&'t str> {
    text.lines().find_map(|line| line.strip_prefix(name)).map(str::trim)
}

/// Whether a thread is in the user namespace of this process. Those of other users do not show theirs to an ordinary one,
/// but how it maps users they do: it differs for all namespaces but those in which all ids are the same.
fn shares_user_namespace(pid: u32) -> bool {
    let space = |of: &str| fs::read_link(format!("/proc/{of}/ns/user"));
    let map = |of: &str| fs::read(format!("/proc/{of}/uid_map"));
    let pid = pid.to_string();
    match (space(&pid), space("self")) {
        (Ok(theirs), Ok(ours)) => theirs == ours,
        _ => matches!((map(&pid), map("self")), (Ok(theirs), Ok(ours)) if theirs == ours),
    }
}

/// The users or groups, by the numbers they have here, that the user namespace of a thread knows.
fn known_ids(pid: u32, ids: &str) -> Vec<Range<u64>> {
    let map = fs::read_to_string(format!("/proc/{pid}/{ids}_map")).unwrap_or_default();
    map.lines().filter_map(range).collect()
}

/// A line of such a map: the first number there, the first number here, how many.
fn range(line: &str) -> Option<Range<u64>> {
    let mut numbers = line.split_ascii_whitespace().skip(1).map(str::parse::<u64>);
    let (first, count) = (numbers.next()?.ok()?, numbers.next()?.ok()?);
    Some(first..first.checked_add(count)?)
}

/// Whether a thread can have opened the inode with one of the numbers `inos` on the filesystem `device` through a mount
/// that may be written to. FUSE does not say which descriptor an ioctl came by: any that the thread has will do, since it
/// could have come by that one.
pub(super) fn opened_writable(pid: u32, device: (u32, u32), inos: [u64; 2]) -> bool {
    let pid = in_proc(pid);
    let theirs = match pid {
        0 => Vec::new(),
        _ => mounts::seen_by(&pid.to_string()).unwrap_or_default(),
    };
    let ours = mounts::all().unwrap_or_default();
    let writable = |entry: &&MountEntry| entry.device == device && !entry.read_only;
    match Open::all_of(pid) {
        // A descriptor may come from a process that sees other mounts.
        Ok(files) => files.iter().filter(|file| inos.contains(&file.ino)).any(|file| {
            theirs.iter().chain(&ours).filter(writable).any(|entry| entry.id == file.mount)
        }),
        // Where descriptors of other users cannot be seen, what they could open counts.
        Err(_) => theirs.iter().any(|entry| writable(&entry)),
    }
}

/// An open file of a thread, as /proc/PID/fdinfo describes it.
struct Open {
    mount: u64,
    ino: u64,
}

impl Open {
    fn all_of(pid: u32) -> std::io::Result<Vec<Self>> {
        let mut all = Vec::new();
        for entry in fs::read_dir(format!("/proc/{pid}/fdinfo"))? {
            // One that is closed meanwhile is none.
            let Ok(info) = fs::read_to_string(entry?.path()) else { continue };
            all.extend(Self::parse(&info));
        }
        Ok(all)
    }

    /// `None` for those that only name a place: no ioctl comes by them.
    fn parse(info: &str) -> Option<Self> {
        let flags = u32::from_str_radix(field(info, "flags:")?, 8).ok()?;
        let number = |name| field(info, name)?.parse::<u64>().ok();
        let usable = flags & rustix::fs::OFlags::PATH.bits() == 0;
        usable.then_some(())?;
        Some(Self { mount: number("mnt_id:")?, ino: number("ino:")? })
    }
}

/// The shown inode number behind descriptor `fd` of thread `pid`, which must lie on the filesystem `device`.
///
/// It may be open through any mount in any mount namespace. Nothing is asked of the filesystem here: it could be this one,
/// and whoever waits for an answer of its own process cannot be killed.
pub(super) fn file_of(pid: u32, fd: i64, device: (u32, u32)) -> Answer<u64> {
    let fd = u32::try_from(fd).map_err(|_| Errno::INVAL)?;
    let path = format!("/proc/{}/fd/{fd}", in_proc(pid));
    let how = AtFlags::STATX_DONT_SYNC | AtFlags::NO_AUTOMOUNT;
    let found = rustix::fs::statx(CWD, Path::new(&path), how, StatxFlags::empty());
    let found = found.map_err(|errno| if errno == Errno::NOENT { Errno::INVAL } else { errno })?;
    match (found.stx_dev_major, found.stx_dev_minor) == device {
        true => Ok(found.stx_ino),
        false => Err(Errno::XDEV),
    }
}

/// What a process has whose umask cannot be learnt.
const USUAL_UMASK: u32 = 0o022;

/// The umask of thread `pid`.
pub(super) fn umask_of(pid: u32) -> u32 {
    let status = fs::read_to_string(format!("/proc/{}/status", in_proc(pid))).unwrap_or_default();
    let umask = field(&status, "Umask:").and_then(|text| u32::from_str_radix(text, 8).ok());
    umask.unwrap_or(USUAL_UMASK)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_of_linux() {
        let status = "Name:\tcat\nUmask:\t0027\nUid:\t1\t2\t3\t4\nGid:\t5\t6\t7\t8\n\
                      Groups:\t20 30 \nCapEff:\t0000000000200002\n";
        let caller = Caller::parse(status).unwrap();
        assert_eq!((caller.uid, caller.gid), (4, 8));
        assert!([8, 20, 30].iter().all(|&gid| caller.is_in_group(gid)) && !caller.is_in_group(5));
        let ours = Caller { among_us: true, ..caller.clone() };
        assert!(ours.has(Capability::SysAdmin) && ours.has_over(Capability::DacOverride, 1, 1));
        assert!(!ours.has(Capability::Fowner) && !ours.has_over(Capability::Fsetid, 1, 1));
        let known = [range("0 1000 1"), range("0 2000 10")].map(Vec::from_iter);
        let stranger = Caller { known, ..caller };
        assert!(!stranger.has(Capability::SysAdmin));
        assert!(stranger.has_over(Capability::DacOverride, 1000, 2009));
        assert!(!stranger.has_over(Capability::DacOverride, 1001, 2009));
        assert!(!stranger.has_over(Capability::DacOverride, 1000, 2010));
        assert_eq!(Caller::parse("Uid:\t1"), None);
    }

    #[test]
    fn this_process_is_in_its_own_namespace() {
        assert!(shares_user_namespace(std::process::id()));
    }

    #[test]
    fn numbers_of_another_pid_namespace_are_not_taken_for_callers() {
        let pid = std::process::id();
        assert_eq!(in_proc(pid), pid);
        assert!(is_of_our_namespace("Pid:\t7\nNSpid:\t7\n"));
        // As an outer /proc shows a process, and a kernel that does not tell.
        assert!(!is_of_our_namespace("Pid:\t4711\nNSpid:\t4711\t7\n"));
        assert!(!is_of_our_namespace("Pid:\t7\n"));
    }

    #[test]
    fn a_descriptor_for_a_place_alone_does_not_count() {
        let info = "pos:\t0\nflags:\t0100000\nmnt_id:\t29\nino:\t256\n";
        assert_eq!(Open::parse(info).map(|open| (open.mount, open.ino)), Some((29, 256)));
        assert!(Open::parse(&info.replace("0100000", "012000000")).is_none());
    }

    #[test]
    fn an_open_file_is_found_by_its_descriptor() {
        use std::os::fd::AsRawFd;
        use std::os::unix::fs::MetadataExt;
        let file = fs::File::open(".").unwrap();
        let metadata = file.metadata().unwrap();
        let device = (rustix::fs::major(metadata.dev()), rustix::fs::minor(metadata.dev()));
        let (pid, fd) = (std::process::id(), file.as_raw_fd().into());
        assert_eq!(file_of(pid, fd, device), Ok(metadata.ino()));
        assert_eq!(file_of(pid, fd, (0, 0)), Err(Errno::XDEV));
        assert_eq!(file_of(pid, -1, device), Err(Errno::INVAL));
        assert_eq!(file_of(pid, 1 << 30, device), Err(Errno::INVAL));
    }
}
