//! Which processes of ours have an image, and how long one waits for them.
//!
//! Between an unmount and the end of the process that served it lies its last commit. umount(2) does not wait for that, except
//! where the kernel has claimed a disk for the mount. So whoever finds an image locked that is mounted nowhere looks who has
//! it: the process of a mount that has just gone is waited for, which says of itself that it is ending by its name; somebody
//! else's lock is not.
//!
//! What /proc shows is enough for that: the files that a process has open, as far as this user may see them.

use std::ffi::{OsStr, OsString};
use std::fs::{self, TryLockError};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::protocol::mounts::{self, MountEntry};

/// Name of a process whose mount is gone, and which makes its last commit; the longest that Linux keeps.
const ENDING: &str = "buttress-ending";
/// Between two looks.
const PAUSE: Duration = Duration::from_millis(10);
/// How long a process may take to notice that its mount is gone.
const NOTICE: Duration = Duration::from_secs(10);
/// After so long the user is told what is waited for.
const TELL: Duration = Duration::from_millis(500);
/// Looks at an image that nobody has any more, although it was busy a moment ago.
const LOOKS: u32 = 5;

/// The kernel's own form of a device number has the major number above so many bits.
const MINOR_BITS: u32 = 20;

/// A process that serves a mount of an image, or has served one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Holder {
    pid: u32,
    /// Its connection to the kernel: the number of the mount's device as the kernel counts it, where it tells.
    connection: Option<u32>,
}

/// Says to all who look that this process makes its last commit.
pub(crate) fn announce_end() {
    // Without it others wait less, or not at all.
    let _unless_proc_is_missing = fs::write("/proc/self/comm", ENDING);
}

fn is_ending(pid: u32) -> bool {
    fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name.trim_end() == ENDING)
}

fn processes() -> impl Iterator<Item = u32> {
    let all = fs::read_dir("/proc").into_iter().flatten().flatten();
    all.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// The numbers of a process's open files; `None` where they are hidden from this user.
fn open_files(pid: u32) -> Option<Vec<PathBuf>> {
    let files = fs::read_dir(format!("/proc/{pid}/fd")).ok()?;
    Some(files.flatten().map(|file| file.path()).collect())
}

/// What tells an image or a disk from others.
#[derive(Clone, Debug)]
struct Image {
    name: OsString,
    identity: (u64, u64),
}

impl Image {
    fn at(path: &Path) -> Option<Self> {
        let path = path.canonicalize().ok()?;
        Some(Self { name: path.file_name()?.to_owned(), identity: identity(&path)? })
    }

    /// Whether it is what an open file leads to. Others are not looked at but by name: one on a network might not answer.
    fn is(&self, open: &Path) -> bool {
        let named = fs::read_link(open).is_ok_and(|path| path.file_name() == Some(&self.name));
        named && identity(open) == Some(self.identity)
    }
}

fn identity(path: &Path) -> Option<(u64, u64)> {
    fs::metadata(path).ok().map(|found| match found.rdev() {
        0 => (found.dev(), found.ino()),
        device => (0, device),
    })
}

/// Whether a process has an image open, or may have: what it has is hidden from this user, or it is ending. Then its threads
/// let go of its files one after the other, and the last one closes them.
fn may_have_open(pid: u32, image: &Image) -> bool {
    match open_files(pid) {
        Some(files) if !files.is_empty() => files.iter().any(|file| image.is(file)),
        _ => is_alive(pid),
    }
}

/// Whether a process has a thread that has not ended.
fn is_alive(pid: u32) -> bool {
    let mut threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    threads.any(|thread| {
        let stat = fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
        // The name, in parentheses, may have any characters.
        let state = stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next());
        !matches!(state, None | Some('Z' | 'X'))
    })
}

/// The process, if it has both the image and a connection for a mount.
fn holder(pid: u32, image: &Image) -> Option<Holder> {
    let files = open_files(pid)?;
    let is_fuse =
        |file: &&PathBuf| fs::read_link(file).is_ok_and(|target| target == OsStr::new("/dev/fuse"));
    let fuse = files.iter().find(is_fuse)?;
    if !files.iter().any(|file| image.is(file)) {
        return None;
    }
    let info = format!("/proc/{pid}/fdinfo/{}", fuse.file_name()?.to_str()?);
    let info = fs::read_to_string(info).unwrap_or_default();
    let connection = info.lines().find_map(|line| line.strip_prefix("fuse_connection:"));
    Some(Holder { pid, connection: connection.and_then(|text| text.trim().parse().ok()) })
}

/// The server of a mount, to be waited for after the unmount.
pub(crate) struct Server {
    pid: u32,
    image: Image,
}

impl Server {
    /// Finds it while it is mounted.
    pub(crate) fn of(mount: &MountEntry) -> Option<Self> {
        let image = Image::at(&mount.source)?;
        let found = processes().filter_map(|pid| holder(pid, &image));
        let (major, minor) = mount.device;
        let device = major << MINOR_BITS | minor;
        let is_it = |holder: &Holder| holder.connection.is_none_or(|number| number == device);
        let found = found.filter(is_it).last();
        found.map(|holder| Self { pid: holder.pid, image })
    }

    /// Returns when it has closed the image; `false` if it goes on to serve, in a place that cannot be seen from here.
    pub(crate) fn wait(&self, mut say: impl FnMut(&str)) -> bool {
        let begun = Instant::now();
        let mut told = false;
        while may_have_open(self.pid, &self.image) {
            let ending = is_ending(self.pid);
            if !ending && begun.elapsed() > NOTICE {
                return false;
            }
            tell(&mut told, begun, self.pid, &mut say);
            std::thread::sleep(PAUSE);
        }
        true
    }
}

fn tell(told: &mut bool, begun: Instant, pid: u32, say: &mut impl FnMut(&str)) {
    if !*told && begun.elapsed() > TELL {
        *told = true;
        say(&format!("waiting for process {pid}, which writes the last changes of a mount"));
    }
}

/// Opens an image, again for as long as `busy` says that somebody has it and that is the process of a mount which has gone.
/// `say` is told what is waited for.
pub fn patiently<T, E>(
    image: &Path,
    busy: impl Fn(&E) -> bool,
    mut say: impl FnMut(&str),
    mut open: impl FnMut() -> Result<T, E>,
) -> Result<T, E> {
    let (begun, mut told, mut nobody) = (Instant::now(), false, 0);
    loop {
        let error = match open() {
            Err(error) if busy(&error) && !is_mounted(image) => error,
            done => return done,
        };
        match waits_for(image, begun) {
            Some(pid) => tell(&mut told, begun, pid, &mut say),
            None if nobody == LOOKS => return Err(error),
            // It may have let go of the image just now.
            None => nobody += 1,
        }
        std::thread::sleep(PAUSE);
    }
}

/// Waits until a mount that has gone has made its last commit, for those who read an image and take no lock.
pub fn wait_for_last_commit(image: &Path, say: impl FnMut(&str)) {
    // No longer than it takes to see: it would be in the way of a writer.
    let look = || match fs::File::open(image).and_then(|file| Ok((file.metadata()?, file))) {
        Ok((found, file)) if found.is_file() => match file.try_lock_shared() {
            Err(TryLockError::WouldBlock) => Err(()),
            Ok(()) => file.unlock().map_err(drop),
            Err(TryLockError::Error(_)) => Ok(()),
        },
        _ => Ok(()),
    };
    let _somebody_else_has_it = patiently(image, |()| true, say, look);
}

fn is_mounted(image: &Path) -> bool {
    let Ok(image) = image.canonicalize() else { return false };
    mounts::all().is_ok_and(|all| all.iter().any(|one| one.is_ours() && one.source == image))
}

/// Whom to wait for.
fn waits_for(image: &Path, begun: Instant) -> Option<u32> {
    let image = Image::at(image)?;
    let own = std::process::id();
    processes().filter(|pid| *pid != own).find(|pid| {
        if is_ending(*pid) {
            return may_have_open(*pid, &image);
        }
        begun.elapsed() < NOTICE && holder(*pid, &image).is_some()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_of_somebody_else_is_not_waited_for() {
        let mut tries = 0;
        let image = std::env::current_exe().unwrap();
        let refused = patiently(
            &image,
            |busy: &bool| *busy,
            |said| panic!("{said}"),
            || {
                tries += 1;
                Err::<(), bool>(true)
            },
        );
        assert!(refused.is_err() && tries > 1, "{tries}");
        let other = patiently(&image, |busy: &bool| *busy, |_| {}, || Err::<(), bool>(false));
        assert_eq!(other, Err(false));
    }

    #[test]
    fn files_of_this_process_are_seen() {
        let image = std::env::current_exe().unwrap();
        let _open = fs::File::open(&image).unwrap();
        let own = std::process::id();
        assert!(may_have_open(own, &Image::at(&image).unwrap()));
        let other = tempfile::NamedTempFile::new().unwrap();
        let other = Image::at(&other.into_temp_path()).unwrap();
        assert!(!may_have_open(own, &other) && is_alive(own) && !is_alive(u32::MAX));
        assert_eq!(holder(own, &Image::at(&image).unwrap()), None);
        assert!(processes().any(|pid| pid == own));
    }
}
