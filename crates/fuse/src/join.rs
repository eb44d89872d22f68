//! A filesystem that is mounted already is mounted once more, as another subvolume perhaps: by the process that serves it.
//!
//! Linux knows one filesystem, however often it is mounted: each mount shows a directory of it. So it is here, where root mounts:
//! the connection to the kernel has the top-level subvolume as its top, and a mount is of the directory that the subvolume has below
//! it. Whoever mounts the filesystem again makes one more such mount, without a word to the process that serves: names,
//! attributes and pages are those of one filesystem, and the kernel ends the connection with the last of the mounts. The first
//! mount is no other than those that come later, so it may go before them.
//!
//! An ordinary user cannot do so: what he mounts, a program of the system mounts for him, and only a whole connection. Two connections
//! would each remember what the other one changes. His second mount is refused.
//!
//! * **Who may join.** Root, what root has mounted: whoever serves a mount decides what is in it.
//! * **Options** of the filesystem are those of the first mount. What a later one asks for besides is refused by name; so is one that
//!   does not ask for what decides who sees what. Those that Linux keeps for each mount (`ro`, `nosuid`, `nodev`, `noexec`) each
//!   mount has for itself.
//! * **Not where it is.** On a directory where the filesystem is mounted, one more mount of it would only hide that one: it is refused, as
//!   Linux does.
//! * **One at a time.** Programs start mounts of a disk side by side, as at boot those of fstab. Who comes second waits until the
//!   first one is up ([`Turn`]).
//! * **The device.** The kernel finds the connection of a disk that it has claimed by the disk; that of an image it finds by
//!   the open /dev/fuse, which is borrowed from the process that serves, and only until the mount is made: as long as anybody has
//!   it open, nobody is told that the process has died.

use std::ffi::OsString;
use std::fs::{File, Metadata, TryLockError};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{AtFlags, Mode, OFlags, ResolveFlags, StatxFlags, openat2, statx};
use rustix::io::Errno;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::client;
use crate::daemon::{MountError, Place, connect_options};
use crate::holder::{Server, are_of};
use crate::options::{MountOptions, SubvolumeChoice};
use crate::protocol::connect::{self, ConnectError, ConnectOptions, Number, disconnect};
use crate::protocol::mounts::{self, FS_TYPE_BLOCK, MountEntry};

/// Id of the subvolume that has all others below it.
pub(crate) const TOP_LEVEL: u64 = 5;
/// How long one who mounts waits for another one who mounts the same, and who may wait as long for a mount that has gone. Behind it
/// is one who hangs.
const PATIENCE: Duration = Duration::from_secs(600);
/// Where programs of root have files while they run. Nobody else can make one there, or lock it.
const RUN: &str = "/run";
/// Between two looks.
const PAUSE: Duration = Duration::from_millis(10);
/// Between two looks at a mount that may stay for ever.
const LONG_PAUSE: Duration = Duration::from_millis(200);
/// From a change of the table of mounts to a look at a mount.
const SETTLING: Duration = Duration::from_millis(50);
/// A subvolume lies in so many others at most.
const DEPTH_MAX: usize = 4096;

/// The right of root's process to be the only one that begins to mount an image or a disk; others wait until it is dropped. Other users, who
/// cannot join, take none.
pub(crate) struct Turn {
    locked: Option<(PathBuf, File)>,
}

impl Turn {
    /// Waits for it, but not for ever. Who goes on without it may find the device busy.
    pub(crate) fn wait(source: &Path) -> Self {
        let file = match rustix::process::geteuid().is_root() {
            true => Self::file(Path::new(RUN), source),
            false => None,
        };
        Self { locked: file.and_then(|path| Self::wait_for(path, PATIENCE)) }
    }

    /// The file of an image or disk in a directory that is root's alone.
    fn file(directory: &Path, source: &Path) -> Option<PathBuf> {
        let found = source.metadata().ok()?;
        let (device, number) = match found.rdev() {
            0 => (found.dev(), found.ino()),
            disk => (0, disk),
        };
        Some(directory.join(format!("buttress-{device}-{number}.turn")))
    }

    fn wait_for(path: PathBuf, limit: Duration) -> Option<(PathBuf, File)> {
        let begun = Instant::now();
        loop {
            match Self::take(&path) {
                Ok(Some(file)) => return Some((path, file)),
                Ok(None) if begun.elapsed() < limit => std::thread::sleep(PAUSE),
                // Nothing can be written there, say.
                Ok(None) | Err(_) => return None,
            }
        }
    }

    /// `None`: another process has it.
    fn take(path: &Path) -> std::io::Result<Option<File>> {
        let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let mut options = File::options();
        let options =
            options.write(true).create(true).mode(0o600).custom_flags(flags.bits() as i32);
        let file = options.open(path)?;
        match file.try_lock() {
            Err(TryLockError::WouldBlock) => return Ok(None),
            Err(TryLockError::Error(error)) => return Err(error),
            Ok(()) => {}
        }
        // Who had it before has removed it meanwhile.
        let same = |at: Metadata, own: Metadata| (at.dev(), at.ino()) == (own.dev(), own.ino());
        let is_there =
            path.symlink_metadata().is_ok_and(|at| file.metadata().is_ok_and(|own| same(at, own)));
        Ok(is_there.then_some(file))
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        if let Some((path, file)) = self.locked.take() {
            // While it is locked, so that nobody's is removed.
            let _stays_for_the_next = std::fs::remove_file(path);
            // A process that was started meanwhile may have it open for a moment.
            let _at_its_close_at_last = file.unlock();
        }
    }
}

/// A filesystem that is mounted, and one more mount of its top, which is nowhere yet.
pub(crate) struct Running {
    at: PathBuf,
    words: Vec<String>,
    top: OwnedFd,
}

/// Finds the process that serves what is to be mounted.
pub(crate) fn running(place: &Place, options: &MountOptions) -> Option<Running> {
    if !connect::may_mount_nowhere() {
        return None;
    }
    let all = mounts::all().ok()?;
    let root = rustix::process::geteuid().as_raw();
    let is_named = |entry: &MountEntry| {
        entry.is_ours() && entry.source == place.source && entry.owner == Some(root)
    };
    // Another image may have had the name.
    let candidates = are_of(&place.source, all.into_iter().filter(is_named).collect());
    candidates.iter().find_map(|entry| Running::of(entry, place, options))
}

/// One more mount, wherever it is by now. As soon as it can be seen, it can be moved.
pub(crate) struct Joined {
    number: Number,
    device: (u32, u32),
}

impl Joined {
    /// Whether the mount is this one, or another one that has got its number.
    fn may_be(&self, mount: &MountEntry) -> bool {
        (mount.id, mount.device) == (self.number.id, self.device)
    }

    /// Whether it is another one; `None`: that cannot be seen now.
    fn is_not(&self, mount: &MountEntry) -> Option<bool> {
        Some(self.number.was_given_to(Number::at(&mount.mountpoint)?))
    }
}

impl Running {
    /// `None` where it does not answer, does not write, or is about another part of the image.
    fn of(entry: &MountEntry, place: &Place, options: &MountOptions) -> Option<Self> {
        let wanted = connect_options(place, options);
        let top = top_of(entry, &place.mountpoint, &wanted)?;
        let path = path_of(&top);
        if device_of(&top).ok()? != entry.device {
            return None;
        }
        let words = client::options(&path).ok()?;
        let offset =
            |words: &[String]| words.iter().find(|word| word.starts_with("offset=")).cloned();
        let same = offset(&words) == offset(&options.shared_words());
        let whole = client::subvolume(&path).ok()?.id == TOP_LEVEL;
        let writes = !words.iter().any(|word| word == "ro");
        (same && whole && writes).then(|| Self { at: entry.mountpoint.clone(), words, top })
    }

    /// Mounts.
    pub(crate) fn join(self, place: &Place, options: &MountOptions) -> Result<Joined, MountError> {
        self.agree(options)?;
        let failed = |reason| ConnectError::Mount { path: place.mountpoint.clone(), reason };
        let device = device_of(&self.top).map_err(failed)?;
        if mounts::at(&place.mountpoint)?.is_some_and(|there| there.device == device) {
            return Err(MountError::Already);
        }
        Ok(Joined { number: put(self.top, place, options)?, device })
    }

    fn agree(&self, options: &MountOptions) -> Result<(), MountError> {
        let wanted = options.shared_words();
        // Read-only is each mount for itself.
        let missing = wanted.iter().find(|word| *word != "ro" && !self.words.contains(word));
        let decides = |word: &&String| {
            let name = word.split('=').next().unwrap_or_default();
            matches!(name, "allow_other" | "fakeroot" | "uid" | "gid")
        };
        let more = self.words.iter().filter(decides).find(|word| !wanted.contains(word));
        let disagree = |word: &String, how| {
            Err(MountError::Joined { word: word.clone(), how, at: self.at.clone() })
        };
        match (missing, more) {
            (Some(word), _) => disagree(word, "without"),
            (None, Some(word)) => disagree(word, "with"),
            (None, None) => Ok(()),
        }
    }
}

/// One more mount of the top of what is mounted.
fn top_of(entry: &MountEntry, mountpoint: &Path, wanted: &ConnectOptions) -> Option<OwnedFd> {
    if entry.fs_type == FS_TYPE_BLOCK {
        let wanted = ConnectOptions { block: true, ..wanted.clone() };
        return connect::mount_nowhere(mountpoint, &wanted, None).ok();
    }
    let fuse = Server::of(entry)?.borrow_connection()?;
    connect::mount_nowhere(mountpoint, wanted, Some(fuse.as_fd())).ok()
}

/// `st_dev` of a mount, by major and minor number. The server is not asked.
pub(crate) fn device_of(top: &OwnedFd) -> Result<(u32, u32), Errno> {
    let how = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    let found = statx(top, "", how, StatxFlags::empty())?;
    Ok((found.stx_dev_major, found.stx_dev_minor))
}

/// A path that leads to an open directory, for those who ask by path.
fn path_of(directory: &OwnedFd) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", directory.as_raw_fd()))
}

/// Puts a mount of the top of a filesystem, or of the subvolume of it that is asked for, where it belongs; lets go of it. Answers its
/// number.
pub(crate) fn put(
    top: OwnedFd,
    place: &Place,
    options: &MountOptions,
) -> Result<Number, MountError> {
    let find = || find(&top, place, options);
    connect::put(&top, &place.mountpoint, find)
}

/// The directory to be mounted; `None`: the top.
fn find(
    top: &OwnedFd,
    place: &Place,
    options: &MountOptions,
) -> Result<Option<OwnedFd>, MountError> {
    let absent = |wanted: String, reason: String| MountError::NoSubvolume {
        wanted,
        reason,
        device: place.source.clone(),
    };
    let by_id = |id: u64| match path_of_subvolume(&path_of(top), id) {
        Err(Errno::NOENT) => Err(absent(format!("subvolume {id}"), "does not exist".into())),
        found => found.map_err(|reason| MountError::Subvolume { id, reason }),
    };
    let (path, id) = match &options.subvolume {
        SubvolumeChoice::Default => {
            let id = client::default_subvolume(&path_of(top));
            let id = id.map_err(|reason| MountError::Subvolume { id: 0, reason })?;
            (by_id(id)?, Some(id))
        }
        SubvolumeChoice::Id(id) => (by_id(*id)?, Some(*id)),
        SubvolumeChoice::Path(path) => (path.clone(), options.subvolume_id),
    };
    let wanted = || format!("subvolume {}", path.display());
    let directory = match open_below(top, &path) {
        Err(Errno::NOENT | Errno::NOTDIR) => return Err(absent(wanted(), "does not exist".into())),
        found => found
            .map_err(|reason| MountError::Path { path: path.clone(), source: reason.into() })?,
    };
    let found = subvolume_at(&directory)
        .map_err(|reason| MountError::Path { path: path.clone(), source: reason.into() })?;
    match (found, id) {
        (None, _) => Err(absent(path.display().to_string(), "is not a subvolume".into())),
        (Some(found), Some(id)) if found != id => {
            Err(absent(wanted(), format!("is not the one with id {id}")))
        }
        (Some(TOP_LEVEL), _) => Ok(None),
        _ => Ok(Some(directory)),
    }
}

/// Opens a directory by its path from the top on, which symbolic links do not leave.
fn open_below(top: &OwnedFd, path: &Path) -> Result<OwnedFd, Errno> {
    let path = if path.as_os_str().is_empty() { Path::new("/") } else { path };
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
    openat2(top, path, flags, Mode::empty(), resolve)
}

/// The subvolume whose top a directory is.
fn subvolume_at(directory: &OwnedFd) -> Result<Option<u64>, Errno> {
    let path = path_of(directory);
    match client::path_in_subvolume(&path)?.is_empty() {
        true => Ok(Some(client::subvolume(&path)?.id)),
        false => Ok(None),
    }
}

/// The path of a subvolume from the top on.
fn path_of_subvolume(top: &Path, id: u64) -> Result<PathBuf, Errno> {
    let (mut at, mut names) = (id, Vec::new());
    for _ in 0..DEPTH_MAX {
        if at == TOP_LEVEL {
            return Ok(names.iter().rev().collect());
        }
        names.push(PathBuf::from(OsString::from_vec(client::place_of_subvolume(top, at)?)));
        at = client::subvolume_by_id(top, at)?.parent;
    }
    Err(Errno::LOOP)
}

/// Signals for a mount in the foreground that another process serves: heard from before it is made, so that none leaves it behind.
pub(crate) struct Watch {
    stop: Arc<AtomicBool>,
}

impl Watch {
    pub(crate) fn begin() -> Result<Watch, MountError> {
        let stop = Arc::new(AtomicBool::new(false));
        for signal in [SIGTERM, SIGINT, SIGHUP] {
            signal_hook::flag::register(signal, Arc::clone(&stop))?;
        }
        Ok(Watch { stop })
    }

    /// Returns when the mount that was made here has gone, by a signal to this process, too.
    pub(crate) fn until_gone(&self, own: &Joined) -> Result<(), MountError> {
        let table = File::open("/proc/self/mountinfo")?;
        // Who looks at a mount keeps it busy for a moment: that is done only where some mount has come or gone.
        let mut changed = true;
        loop {
            if changed {
                // Where one goes, the next may be about to go.
                std::thread::sleep(SETTLING);
            }
            let all = mounts::all()?;
            let Some(now) = all.into_iter().find(|mount| own.may_be(mount)) else { return Ok(()) };
            let stopping = self.stop.swap(false, Ordering::SeqCst);
            let other = if changed || stopping { own.is_not(&now) } else { Some(false) };
            if other == Some(true) {
                return Ok(());
            }
            if stopping && is_on_top(&now)? {
                take_off(&now.mountpoint)?;
            }
            changed = changes(&table) || other.is_none();
        }
    }
}

/// Takes a mount off; out of sight at least, where files are open.
fn take_off(mountpoint: &Path) -> Result<(), ConnectError> {
    disconnect(mountpoint, false).or_else(|_busy| disconnect(mountpoint, true))
}

/// Waits for a change of the table of mounts, not for long; whether there was one.
fn changes(table: &File) -> bool {
    let pause = Timespec { tv_sec: 0, tv_nsec: LONG_PAUSE.subsec_nanos().into() };
    let mut asked = [PollFd::new(table, PollFlags::PRI)];
    match poll(&mut asked, Some(&pause)) {
        Ok(changed) => changed > 0,
        // A signal is looked for at once.
        Err(Errno::INTR) => false,
        Err(_) => {
            std::thread::sleep(LONG_PAUSE);
            false
        }
    }
}

/// Whether no other mount covers it.
fn is_on_top(mount: &MountEntry) -> std::io::Result<bool> {
    Ok(mounts::at(&mount.mountpoint)?.is_some_and(|top| top.is(mount)))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use rustix::mount::{
        FsMountFlags, FsOpenFlags, MountAttrFlags, MoveMountFlags, fsconfig_create, fsmount,
        fsopen, move_mount,
    };

    use super::*;

    fn mount() -> Option<OwnedFd> {
        let context = fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC).ok()?;
        fsconfig_create(&context).ok()?;
        fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty()).ok()
    }

    /// The number of a mount that has gone, and a mount that has got it: a number is given again as soon as its mount has gone.
    fn one_after_the_other() -> Option<(Number, OwnedFd)> {
        if !rustix::process::geteuid().is_root() {
            println!("skipped: only root can mount");
            return None;
        }
        let Some(first) = mount().and_then(|top| Number::of(&top).ok()) else {
            println!("skipped: mounting is not allowed");
            return None;
        };
        if !first.is_known() {
            println!("skipped: Linux before 6.8 cannot tell");
            return None;
        }
        let same = |next: &OwnedFd| Number::of(next).is_ok_and(|next| next.id == first.id);
        let again = (0..100).filter_map(|_| mount()).find(same);
        if again.is_none() {
            println!("skipped: others have got the number");
        }
        again.map(|again| (first, again))
    }

    #[test]
    fn a_mount_is_not_taken_for_the_one_that_had_its_number() {
        let Some((first, again)) = one_after_the_other() else { return };
        let again = Number::of(&again).unwrap();
        assert!(!first.was_given_to(first));
        assert!(first.was_given_to(again) && again.was_given_to(first));
    }

    /// A mount that is taken off whatever happens.
    struct Placed(tempfile::TempDir);

    impl Placed {
        fn of(top: &OwnedFd) -> Placed {
            let at = tempfile::tempdir().unwrap();
            let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
            move_mount(top, "", rustix::fs::CWD, at.path(), flags).unwrap();
            Placed(at)
        }

        fn is_there(&self) -> bool {
            mounts::at(self.0.path()).unwrap().is_some()
        }
    }

    impl Drop for Placed {
        fn drop(&mut self) {
            let _may_have_gone = disconnect(self.0.path(), true);
        }
    }

    #[test]
    fn a_signal_takes_off_no_mount_that_has_got_the_number() {
        let Some((first, again)) = one_after_the_other() else { return };
        let placed = Placed::of(&again);
        let own = Number::of(&again).unwrap();
        let device = device_of(&again).unwrap();
        drop(again);
        let stop = || Watch { stop: Arc::new(AtomicBool::new(true)) };
        stop().until_gone(&Joined { number: first, device }).unwrap();
        assert!(placed.is_there());
        stop().until_gone(&Joined { number: own, device }).unwrap();
        assert!(!placed.is_there());
    }

    fn turn(directory: &Path, image: &Path, limit: Duration) -> Turn {
        let path = Turn::file(directory, image).unwrap();
        Turn { locked: Turn::wait_for(path, limit) }
    }

    #[test]
    fn one_at_a_time_mounts() {
        let run = tempfile::tempdir().unwrap();
        let [image, other] = [(); 2].map(|()| tempfile::NamedTempFile::new().unwrap());
        let take = |of: &tempfile::NamedTempFile| turn(run.path(), of.path(), PAUSE);
        let first = take(&image);
        let file = Turn::file(run.path(), image.path()).unwrap();
        assert_eq!(file.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        assert!(first.locked.is_some() && take(&image).locked.is_none());
        assert!(take(&other).locked.is_some());
        std::thread::scope(|scope| {
            let second = scope.spawn(|| turn(run.path(), image.path(), PATIENCE));
            std::thread::sleep(PAUSE * 10);
            drop(first);
            let second = second.join().unwrap();
            assert!(second.locked.is_some() && take(&image).locked.is_none());
        });
        assert!(std::fs::read_dir(run.path()).unwrap().next().is_none());
    }

    #[test]
    fn who_cannot_take_a_turn_goes_on_without() {
        let run = tempfile::tempdir().unwrap();
        let image = tempfile::NamedTempFile::new().unwrap();
        let file = Turn::file(run.path(), image.path()).unwrap();
        std::os::unix::fs::symlink(run.path().join("elsewhere"), &file).unwrap();
        assert!(turn(run.path(), image.path(), PATIENCE).locked.is_none());
        assert!(file.is_symlink() && !run.path().join("elsewhere").exists());
        assert!(turn(&run.path().join("none"), image.path(), PATIENCE).locked.is_none());
    }
}
