//! Which processes of ours have an image, and how long one waits for them.
//!
//! Between an unmount and the end of the process that served it lies its last commit. umount(2) does not wait for that, except
//! where the kernel has claimed a disk for the mount. So whoever finds an image locked that is mounted nowhere looks who has
//! it: the process of a mount that has just gone is waited for, which says of itself that it is ending by its name; somebody
//! else's lock is not.
//!
//! Commands that have an image for a moment take turns: each says by its name that it is one, before it opens anything, and whoever
//! finds the image locked by such a process waits for its turn. A stranger is refused at once, as a mount is. Between the moment at which an
//! image was found locked and the look at who has it, it may have changed hands: nobody, or a stranger, is believed only after some looks.
//!
//! What /proc shows is enough for that: the files that a process has open, as far as this user may see them, and its locks. The
//! name alone is nothing: any process may take it. And nobody is waited for without end.
//!
//! Who serves a mount is known by its connection to the kernel, not by the image, which may have got another name or none; and of two
//! images that have had one name, each by what is open. How the last commit went it says itself (`last_word.rs`).

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use buttress_device::{Reader, disk_user, lock_holders};
use buttress_volume::part_at;
use rustix::fs::{AtFlags, CWD, StatxFlags, statx};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};

use crate::client;
use crate::last_word::{Ear, Heard};
use crate::protocol::mounts::{self, MountEntry};

/// Name of a process whose mount is gone, and which makes its last commit; the longest that Linux keeps.
const ENDING: &str = "buttress-ending";
/// Name of a process that has an image as long as one command takes.
const BRIEF: &str = "buttress-brief";
/// Between two looks.
const PAUSE: Duration = Duration::from_millis(10);
/// How long a process may take to notice that its mount is gone.
const NOTICE: Duration = Duration::from_secs(10);
/// How long a last commit may take. Behind it is a disk that hangs, or somebody who makes others wait.
const PATIENCE: Duration = Duration::from_secs(600);
/// After so long the user is told what is waited for.
const TELL: Duration = Duration::from_millis(500);
/// How long an image is tried again that nobody seems to have, although it was busy a moment ago: one command after the other may
/// take it, or a program that looks at each new disk for a moment.
const NOBODY: Duration = Duration::from_secs(1);
/// How often a stranger is seen in a row until it is one.
const LOOKS: u32 = 5;
/// How often nobody is, besides: a look may take long where there is much to do.
const EMPTY_LOOKS: u32 = 50;

/// The kernel's own form of a device number has the major number above so many bits.
const MINOR_BITS: u32 = 20;

/// A process that serves a mount of an image, or has served one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Holder {
    pid: u32,
    /// Its open /dev/fuse.
    fuse: i32,
    /// The connection to the kernel: the number of the mount's device as the kernel counts it, where it tells.
    connection: Option<u32>,
}

/// Says to all who look that this process makes its last commit.
pub(crate) fn announce_end() {
    announce(ENDING);
}

/// Says to all who look that this process lets go of its images when its command is done. Comes before it opens any.
pub fn announce_brief() {
    announce(BRIEF);
}

fn announce(name: &str) {
    // Without it others wait less, or not at all.
    let _unless_proc_is_missing = fs::write("/proc/self/comm", name);
}

fn is_called(pid: u32, name: &str) -> bool {
    fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|found| found.trim_end() == name)
}

fn is_ending(pid: u32) -> bool {
    is_called(pid, ENDING)
}

fn processes() -> impl Iterator<Item = u32> {
    let all = fs::read_dir("/proc").into_iter().flatten().flatten();
    all.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// The numbers of a process's open files, as far as this user may see them. When it ends, its threads let go of them one after
/// the other, the first one often first.
fn open_files(pid: u32) -> Vec<PathBuf> {
    let list = |path: PathBuf| fs::read_dir(path).into_iter().flatten().flatten();
    let files = |of: PathBuf| list(of.join("fd")).map(|file| file.path()).collect::<Vec<_>>();
    let process = PathBuf::from(format!("/proc/{pid}"));
    let own = files(process.clone());
    if !own.is_empty() {
        return own;
    }
    let threads = list(process.join("task")).map(|thread| files(thread.path()));
    threads.into_iter().find(|files| !files.is_empty()).unwrap_or_default()
}

/// What tells an image or a disk from others.
#[derive(Clone, Debug)]
struct Image {
    path: PathBuf,
    /// `None` where its path is longer than the system tells.
    name: Option<OsString>,
    identity: (u64, u64),
}

impl Image {
    fn at(path: &Path) -> Option<Self> {
        let identity = identity(path)?;
        let whole = path.canonicalize().ok();
        let name = whole.as_ref().and_then(|whole| Some(whole.file_name()?.to_owned()));
        Some(Self { path: whole.unwrap_or_else(|| path.to_owned()), name, identity })
    }

    fn is_file(&self) -> bool {
        self.identity.0 != 0
    }

    /// Whether it is what an open file leads to. Others are not looked at but by name: one on a network might not answer.
    fn is(&self, open: &Path) -> bool {
        let named = match fs::read_link(open) {
            Ok(path) => path.file_name() == self.name.as_deref(),
            Err(error) => error.raw_os_error() == Some(Errno::NAMETOOLONG.raw_os_error()),
        };
        named && identity(open) == Some(self.identity)
    }
}

/// Without asking the server of a mount, which may stand still, for what it may have said before.
fn identity(path: &Path) -> Option<(u64, u64)> {
    let (flags, wanted) = (AtFlags::STATX_DONT_SYNC, StatxFlags::TYPE | StatxFlags::INO);
    let found = statx(CWD, path, flags, wanted).ok()?;
    let number = |major: u32, minor: u32| u64::from(major) << 32 | u64::from(minor);
    Some(match number(found.stx_rdev_major, found.stx_rdev_minor) {
        0 => (number(found.stx_dev_major, found.stx_dev_minor), found.stx_ino),
        device => (0, device),
    })
}

/// Whether a process has an image open, as far as can be seen: the lock, where its files cannot, or not any more.
fn has_open(pid: u32, image: &Image) -> bool {
    open_files(pid).iter().any(|file| image.is(file)) || has_locked(pid, image)
}

/// Whether a process has a lock on an image file. Anybody may see that.
fn has_locked(pid: u32, image: &Image) -> bool {
    image.is_file() && lock_holders(&image.path).contains(&pid)
}

/// The process, if it has both the image and a connection for a mount.
fn holder(pid: u32, image: &Image) -> Option<Holder> {
    let files = open_files(pid);
    let is_fuse =
        |file: &&PathBuf| fs::read_link(file).is_ok_and(|target| target == OsStr::new("/dev/fuse"));
    let fuse = files.iter().find(is_fuse)?;
    if !files.iter().any(|file| image.is(file)) {
        return None;
    }
    let number = fuse.file_name()?.to_str()?;
    let info = format!("/proc/{pid}/fdinfo/{number}");
    let info = fs::read_to_string(info).unwrap_or_default();
    let connection = info.lines().find_map(|line| line.strip_prefix("fuse_connection:"));
    let fuse = number.parse().ok()?;
    Some(Holder { pid, fuse, connection: connection.and_then(|text| text.trim().parse().ok()) })
}

impl Holder {
    /// Whether its mount can be seen, where the kernel tells which one that is: a number alone may be that of another image by now.
    fn has_a_mount(&self, image: &Image) -> bool {
        // A disk on the image is open as well.
        let has_source = |source: &Path| {
            let is_it = |open: &PathBuf| fs::read_link(open).is_ok_and(|path| path == source);
            source == image.path || open_files(self.pid).iter().any(is_it)
        };
        let is_it = |mount: &MountEntry| {
            let same = self.connection == Some(connection_of(mount));
            same && mount.is_ours() && has_source(&mount.source)
        };
        mounts::all().is_ok_and(|all| all.iter().any(is_it))
    }
}

/// The user whose process it is.
fn owner_of(pid: u32) -> Option<u32> {
    fs::metadata(format!("/proc/{pid}")).ok().map(|found| found.uid())
}

/// The one among holders that serves the mount with this number. Where the kernel tells no connection's number, any may be it; where it
/// tells one, who has none is not connected.
fn serving(found: &[Holder], device: u32) -> Option<Holder> {
    if found.iter().any(|holder| holder.connection.is_some()) {
        return found.iter().find(|holder| holder.connection == Some(device)).copied();
    }
    found.last().copied()
}

/// The server of a mount, to be waited for after the unmount.
pub(crate) struct Server {
    pid: u32,
    fuse: i32,
    /// What it has mounted, if that can be seen.
    image: Option<Image>,
    /// Where it says in the end how that was, if it does.
    ear: Option<Ear>,
}

/// How long a process that has closed the image may take to end.
const LAST_STEPS: Duration = Duration::from_secs(1);

/// Whether there is such a process that has not ended.
fn runs(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The name, in parentheses, may have any characters.
    let state = stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next());
    state.is_some_and(|state| !matches!(state, 'Z' | 'X'))
}

impl Server {
    /// Finds it while it is mounted: by its connection to the kernel, or its own word for whose that is, whatever has become of the
    /// image; else by the image.
    pub(crate) fn of(mount: &MountEntry) -> Option<Self> {
        let owner = mount.owner?;
        let theirs: Vec<u32> = processes().filter(|pid| owner_of(*pid) == Some(owner)).collect();
        let found: Vec<_> = theirs.iter().filter_map(|pid| Self::connected(*pid, mount)).collect();
        let pids: Vec<u32> = found.iter().map(|server| server.pid).collect();
        // What one starts has its files for a moment.
        let by_itself = |server: &Self| parent_of(server.pid).is_none_or(|it| !pids.contains(&it));
        // That of an earlier mount with the same number may not have noticed yet that it has gone.
        let likely = |server: &Self| {
            let is_named = server.image.as_ref().is_some_and(|it| it.path == mount.source);
            (is_named, started(server.pid))
        };
        let server = found.into_iter().filter(by_itself).max_by_key(likely);
        if let Some(server) = server {
            let named = || Image::at(&mount.source).filter(|image| has_open(server.pid, image));
            let image = server.image.clone().or_else(named);
            return Some(Self { image, ..server });
        }
        // Anybody who may read the image can have it and /dev/fuse open.
        let image = Image::at(&mount.source)?;
        let found: Vec<_> = theirs.into_iter().filter_map(|pid| holder(pid, &image)).collect();
        let Holder { pid, fuse, .. } = serving(&found, connection_of(mount))?;
        let ear = open_files(pid).iter().find_map(|open| Ear::at(open));
        Some(Self { pid, fuse, image: Some(image), ear })
    }

    /// This process, if it has the connection of a mount.
    fn connected(pid: u32, mount: &MountEntry) -> Option<Self> {
        let files = open_files(pid);
        let connection = connections(&files).next()?;
        let ear = files.iter().find_map(|open| Ear::at(open));
        let is_it = match connection.1 {
            Some(number) => number == connection_of(mount),
            None => ear.as_ref().is_some_and(|ear| ear.is_of(mount.device)),
        };
        let fuse = connection.0.file_name()?.to_str()?.parse().ok()?;
        let is_it = is_it && !is_ending(pid);
        let image = || named_image(&files, &mount.source).or_else(|| locked_image(&files));
        is_it.then(|| Self { pid, fuse, image: image(), ear })
    }

    pub(crate) fn pid(&self) -> u32 {
        self.pid
    }

    /// What it has said of its last commit; `None` where it cannot be heard.
    pub(crate) fn heard(&self) -> Option<Heard> {
        self.ear.as_ref().map(Ear::heard)
    }

    /// Whether it has still to do with the image.
    fn is_at_it(&self) -> bool {
        let waits = self.heard() == Some(Heard::Nothing) || self.image.is_none();
        waits && runs(self.pid) || self.image.as_ref().is_some_and(|it| has_open(self.pid, it))
    }

    /// Its open /dev/fuse, for those who may trace it, of a process of this user alone. To be closed at once: who waits for an
    /// answer is told that the process has died when nobody has it open any more.
    pub(crate) fn borrow_connection(&self) -> Option<OwnedFd> {
        let pid = Pid::from_raw(i32::try_from(self.pid).ok()?)?;
        let process = pidfd_open(pid, PidfdFlags::empty()).ok()?;
        if owner_of(self.pid)? != rustix::process::geteuid().as_raw() {
            return None;
        }
        pidfd_getfd(process, self.fuse, PidfdGetfdFlags::empty()).ok()
    }

    /// Returns when it has closed the image, or will not so soon.
    pub(crate) fn wait(&self, say: impl FnMut(&str)) -> Outcome {
        self.wait_for(PATIENCE, say)
    }

    fn wait_for(&self, limit: Duration, mut say: impl FnMut(&str)) -> Outcome {
        let begun = Instant::now();
        let mut told = false;
        while self.is_at_it() {
            match is_ending(self.pid) {
                false if begun.elapsed() > NOTICE => return Outcome::Serves,
                true if begun.elapsed() > limit => return Outcome::StillWrites(self.pid),
                _ => {}
            }
            tell(&mut told, begun, Turn::Ending(self.pid), &mut say);
            std::thread::sleep(PAUSE);
        }
        // What it no longer shows the kernel may be about to close: its lock is gone for sure when the process is.
        let closed = Instant::now();
        while runs(self.pid) && closed.elapsed() < LAST_STEPS {
            std::thread::sleep(PAUSE);
        }
        Outcome::Closed
    }
}

/// How waiting for a server has ended.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// It has closed the image.
    Closed,
    /// It goes on to serve, in a place that cannot be seen from here.
    Serves,
    /// This process does not come to the end of its last commit.
    StillWrites(u32),
}

/// Who is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Turn {
    /// The process of a mount that has gone.
    Ending(u32),
    /// Another command.
    Brief(u32),
}

/// Who has an image that is busy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Has {
    /// One who lets go of it soon.
    Ours(Turn),
    /// Somebody else.
    Stranger,
    /// Nobody who can be seen, or not any more.
    Nobody,
}

fn tell(told: &mut bool, begun: Instant, turn: Turn, say: &mut impl FnMut(&str)) {
    if !*told && begun.elapsed() > TELL {
        *told = true;
        match turn {
            Turn::Ending(pid) => {
                say(&format!(
                    "waiting for process {pid}, which writes the last changes of a mount"
                ));
            }
            Turn::Brief(pid) => {
                say(&format!("waiting for process {pid}, another command that uses it"));
            }
        }
    }
}

/// Opens an image, again for as long as `busy` says that somebody has it and that is another command of ours, or the process of a mount
/// which has gone, up to ten minutes. `say` is told what is waited for.
pub fn patiently<T, E>(
    image: &Path,
    offset: u64,
    busy: impl Fn(&E) -> bool,
    say: impl FnMut(&str),
    open: impl FnMut() -> Result<T, E>,
) -> Result<T, E> {
    patiently_for(PATIENCE, true, (image, offset), busy, say, open)
}

/// The same, but no command is waited for: for those that have an image already which others may wait for with another one in
/// their hands.
pub fn out_of_turn<T, E>(
    image: &Path,
    offset: u64,
    busy: impl Fn(&E) -> bool,
    say: impl FnMut(&str),
    open: impl FnMut() -> Result<T, E>,
) -> Result<T, E> {
    patiently_for(PATIENCE, false, (image, offset), busy, say, open)
}

/// With `in_turn`, commands are waited for, too.
fn patiently_for<T, E>(
    limit: Duration,
    in_turn: bool,
    (image, offset): (&Path, u64),
    busy: impl Fn(&E) -> bool,
    mut say: impl FnMut(&str),
    mut open: impl FnMut() -> Result<T, E>,
) -> Result<T, E> {
    let (begun, mut told) = (Instant::now(), false);
    // How often in a row, and since when.
    let (mut strange, mut nobody, mut nobody_since) = (0, 0, begun);
    loop {
        let error = match open() {
            Err(error) if busy(&error) && !is_mounted(image, offset) => error,
            done => return done,
        };
        let has = match has(image, begun) {
            Has::Ours(Turn::Brief(_)) if !in_turn => Has::Stranger,
            has => has,
        };
        let in_a_row = |count: u32, of: Has| if has == of { count + 1 } else { 0 };
        strange = in_a_row(strange, Has::Stranger);
        nobody = in_a_row(nobody, Has::Nobody);
        if nobody <= 1 {
            nobody_since = Instant::now();
        }
        match has {
            _ if begun.elapsed() > limit => return Err(error),
            Has::Ours(turn) => tell(&mut told, begun, turn, &mut say),
            Has::Stranger if strange == LOOKS => return Err(error),
            Has::Nobody if nobody > EMPTY_LOOKS && nobody_since.elapsed() > NOBODY => {
                return Err(error);
            }
            Has::Stranger | Has::Nobody => {}
        }
        std::thread::sleep(PAUSE);
    }
}

/// Waits until a mount that has gone has made its last commit, for those who read an image and take no lock.
pub fn wait_for_last_commit(image: &Path, offset: u64, say: impl FnMut(&str)) {
    // No longer than it takes to see: it would be in the way of a writer.
    let look = || Reader::take(image, part_at(image, offset)).map(drop).map_err(drop);
    // What a command of ours is changing meanwhile is read as what a stranger changes is: as of its last commit.
    let _somebody_else_has_it =
        patiently_for(PATIENCE, false, (image, offset), |()| true, say, look);
}

/// Whether what begins at `offset` is mounted; where that is the image's start, whether anything of it is.
fn is_mounted(image: &Path, offset: u64) -> bool {
    let is_named = is_named(image);
    let is_it = |one: &MountEntry| one.is_ours() && is_named(one) && !is_dead(one);
    let is_there = |one: &MountEntry| is_it(one) && (offset == 0 || may_be_at(one, offset));
    mounts::all().is_ok_and(|all| all.iter().any(is_there))
}

/// Whether a mount is of the filesystem at `offset` in its image. Whoever may not ask does not know.
pub fn may_be_at(mount: &MountEntry, offset: u64) -> bool {
    client::options(&mount.mountpoint).map_or(true, |words| {
        let word = words.iter().find_map(|word| word.strip_prefix("offset="));
        word.unwrap_or("0").parse() == Ok(offset)
    })
}

/// Tells of a mount whether it was made of an image or disk by a name that this has now, whichever of them it is given by.
fn is_named(path: &Path) -> impl Fn(&MountEntry) -> bool {
    let (path, own) = (path.to_owned(), identity(path));
    move |mount| mount.source == path || own.is_some_and(|own| identity(&mount.source) == Some(own))
}

/// Whether the process that served a mount of ours has gone without taking it off. One that is there and does not answer is not
/// asked, and where nobody can see whether it is there, not for long.
pub fn is_dead(mount: &MountEntry) -> bool {
    mount.is_ours() && Server::of(mount).is_none() && has_no_server(mount.mountpoint.clone())
}

/// The mount of ours that a path lies on, where its process has gone without taking it off.
pub fn dead_mount_of(path: &Path) -> Option<MountEntry> {
    // A path on it may not be resolved any more, and is one all the same.
    let path = path.canonicalize().or_else(|_| std::path::absolute(path)).ok()?;
    let mounts = mounts::all().ok()?;
    let on_top = |at: &Path| mounts.iter().rev().find(|mount| mount.mountpoint == at).cloned();
    path.ancestors().find_map(on_top).filter(is_dead)
}

/// How long a mount may take to say that it is served.
const ASKING: Duration = Duration::from_secs(1);

fn has_no_server(mountpoint: PathBuf) -> bool {
    let (tell, told) = mpsc::channel();
    let ask = move || {
        // The others are told who asks while the kernel still takes back what a ring of that process had.
        let dead = [Errno::NOTCONN, Errno::CONNABORTED, Errno::CANCELED];
        let _ = tell.send(rustix::fs::statvfs(&mountpoint).is_err_and(|why| dead.contains(&why)));
    };
    let asked = thread::Builder::new().spawn(ask);
    asked.is_ok() && told.recv_timeout(ASKING).unwrap_or(false)
}

/// The mounts that are served of an image or disk, the oldest first.
pub fn mounts_of(path: &Path) -> Vec<MountEntry> {
    let mut all = mounts::all().unwrap_or_default();
    all.retain(MountEntry::is_ours);
    let mut all = are_of(path, all);
    all.retain(|mount| !is_dead(mount));
    all
}

/// Those among mounts of ours that are of an image or disk: of what their processes have open, or where that cannot be seen, by a name
/// that it had when it was mounted and has still.
pub(crate) fn are_of(path: &Path, mut mounts: Vec<MountEntry>) -> Vec<MountEntry> {
    let (own, is_named) = (identity(path), is_named(path));
    mounts.retain(|mount| {
        let image = Server::of(mount).and_then(|server| server.image);
        match own.zip(image) {
            Some((own, image)) => own == image.identity,
            None => is_named(mount),
        }
    });
    mounts
}

/// The path that an image has now that had another one when it was mounted, as far as this user may see.
pub fn moved_to(mount: &MountEntry) -> Option<PathBuf> {
    let image = Server::of(mount)?.image?;
    let moved = identity(&mount.source) != Some(image.identity) && image.name.is_some();
    Some(image.path).filter(|path| moved && identity(path) == Some(image.identity))
}

/// The number of a mount's device as the kernel counts it.
fn connection_of(mount: &MountEntry) -> u32 {
    let (major, minor) = mount.device;
    major << MINOR_BITS | minor
}

/// What /proc tells of an open file.
fn info_of(open: &Path) -> String {
    let info = open.parent().and_then(Path::parent).zip(open.file_name());
    let info = info.map(|(process, number)| process.join("fdinfo").join(number));
    info.and_then(|path| fs::read_to_string(path).ok()).unwrap_or_default()
}

/// Those among open files of a process that are a connection to the kernel, with its number, where that is told. That of a process which
/// is ending has the number of one that is no more.
fn connections(files: &[PathBuf]) -> impl Iterator<Item = (&PathBuf, Option<u32>)> {
    let is_fuse =
        |open: &&PathBuf| fs::read_link(open).is_ok_and(|it| it == OsStr::new("/dev/fuse"));
    files.iter().filter(is_fuse).map(|open| {
        let info = info_of(open);
        let number = info.lines().find_map(|line| line.strip_prefix("fuse_connection:"));
        (open, number.and_then(|text| text.trim().parse().ok()))
    })
}

/// The image or disk among open files of a process, where it is called as it was when it was mounted.
fn named_image(files: &[PathBuf], source: &Path) -> Option<Image> {
    open_image(files.iter().find(|open| fs::read_link(open).is_ok_and(|path| path == source))?)
}

/// The image among open files of a process: the file in which it has locked bytes. (Of a disk on a file, that.)
fn locked_image(files: &[PathBuf]) -> Option<Image> {
    open_image(files.iter().find(|open| info_of(open).lines().any(is_lock_of_bytes))?)
}

fn open_image(open: &Path) -> Option<Image> {
    // Its path may be longer than the system tells.
    let path = fs::read_link(open).ok();
    let name = path.as_ref().and_then(|path| path.file_name()).map(ToOwned::to_owned);
    let path = path.unwrap_or_else(|| open.to_owned());
    Some(Image { path, name, identity: identity(open)? })
}

/// Whether /proc tells of such a lock. One of flock(2) may be somebody else's, whose file was handed on.
fn is_lock_of_bytes(line: &str) -> bool {
    line.starts_with("lock:") && line.contains("OFDLCK")
}

/// The process that has started another one.
fn parent_of(pid: u32) -> Option<u32> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    status.lines().find_map(|line| line.strip_prefix("PPid:"))?.trim().parse().ok()
}

/// Whether anybody sees a mount of the same filesystem, in another mount namespace perhaps.
pub(crate) fn is_seen(mount: &MountEntry) -> bool {
    let sees = |pid: u32| {
        let all = mounts::seen_by(&pid.to_string()).unwrap_or_default();
        all.iter().any(|other| other.device == mount.device && other.source == mount.source)
    };
    processes().any(sees)
}

/// When a process was started, in the system's count.
fn started(pid: u32) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The name, in parentheses, may have any characters; the 22nd word is wanted, and the third comes behind it.
    let rest = stat.rsplit_once(") ").map_or("", |(_, rest)| rest);
    rest.split(' ').nth(19).and_then(|word| word.parse().ok()).unwrap_or(u64::MAX)
}

/// Who has an image that was busy a moment ago.
fn has(path: &Path, begun: Instant) -> Has {
    let Some(image) = Image::at(path) else { return Has::Nobody };
    let locks = if image.is_file() { lock_holders(&image.path) } else { Vec::new() };
    let own = std::process::id();
    // It may not have noticed yet that its mount is gone, unless that is still there: of another part of the image.
    let serves = |pid: u32| {
        begun.elapsed() < NOTICE && holder(pid, &image).is_some_and(|it| !it.has_a_mount(&image))
    };
    let turn = |pid: u32| match () {
        () if is_called(pid, BRIEF) => Some(Turn::Brief(pid)),
        () if is_ending(pid) || serves(pid) => Some(Turn::Ending(pid)),
        () => None,
    };
    // Most often locks tell it; all processes are looked through only where they do not.
    let turn = match &locks[..] {
        [] | [0] => processes().filter(|pid| *pid != own).find_map(|pid| {
            let turn = turn(pid)?;
            has_open(pid, &image).then_some(turn)
        }),
        known => known.iter().copied().find_map(turn),
    };
    match turn {
        Some(turn) => Has::Ours(turn),
        None if !locks.is_empty() || disk_user(&image.path).is_some() => Has::Stranger,
        None => Has::Nobody,
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn a_lock_of_somebody_else_is_not_waited_for() {
        let mut tries = 0;
        let image = std::env::current_exe().unwrap();
        let refused = patiently(
            &image,
            0,
            |busy: &bool| *busy,
            |said| panic!("{said}"),
            || {
                tries += 1;
                Err::<(), bool>(true)
            },
        );
        assert!(refused.is_err() && tries > 1, "{tries}");
        let other = patiently(&image, 0, |busy: &bool| *busy, |_| {}, || Err::<(), bool>(false));
        assert_eq!(other, Err(false));
    }

    #[test]
    fn files_of_this_process_are_seen() {
        let image = std::env::current_exe().unwrap();
        let _open = fs::File::open(&image).unwrap();
        let own = std::process::id();
        assert!(has_open(own, &Image::at(&image).unwrap()));
        let other = tempfile::NamedTempFile::new().unwrap();
        let other = Image::at(&other.into_temp_path()).unwrap();
        // Nobody has it, whatever is hidden from this user.
        assert!(!processes().any(|pid| has_open(pid, &other)));
        assert_eq!(holder(own, &Image::at(&image).unwrap()), None);
        assert!(processes().any(|pid| pid == own));
    }

    /// A process with such a name, and with these redirections of the shell, which then stands still.
    struct Ending(std::process::Child);

    impl Ending {
        fn with(redirections: &str) -> Self {
            let ending = Self::called(ENDING, redirections);
            assert!(is_ending(ending.0.id()));
            ending
        }

        fn called(name: &str, redirections: &str) -> Self {
            let script =
                format!("printf %s {name} >/proc/self/comm; exec {redirections}; kill -STOP $$");
            let child = Command::new("sh").args(["-c", &script]).spawn().unwrap();
            let stat = format!("/proc/{}/stat", child.id());
            while !fs::read_to_string(&stat).unwrap().contains(") T ") {
                std::thread::sleep(PAUSE);
            }
            Self(child)
        }
    }

    impl Drop for Ending {
        fn drop(&mut self) {
            self.0.kill().unwrap();
            self.0.wait().unwrap();
        }
    }

    fn never(image: &Path) -> (Result<(), bool>, u32) {
        let mut said = 0;
        let limit = TELL * 2;
        let open = || Err::<(), bool>(true);
        (patiently_for(limit, true, (image, 0), |busy: &bool| *busy, |_| said += 1, open), said)
    }

    #[test]
    fn a_name_alone_is_not_waited_for() {
        let image = tempfile::NamedTempFile::new().unwrap();
        let _has_others = Ending::with("</dev/null");
        assert_eq!(never(image.path()), (Err(true), 0));
    }

    #[test]
    fn who_does_not_end_is_not_waited_for_for_ever() {
        let image = tempfile::NamedTempFile::new().unwrap();
        let hung = Ending::with(&format!("3<{}", image.path().display()));
        assert_eq!(never(image.path()), (Err(true), 1));
        let at = Image::at(image.path());
        let server = Server { pid: hung.0.id(), fuse: -1, image: at, ear: None };
        assert_eq!(server.wait_for(TELL * 2, |_| {}), Outcome::StillWrites(hung.0.id()));
        drop(hung);
        assert_eq!(server.wait_for(TELL * 2, |_| {}), Outcome::Closed);
    }

    #[test]
    fn who_is_not_connected_does_not_serve() {
        let holder = |pid, connection| Holder { pid, fuse: 3, connection };
        let (server, other) = (holder(1, Some(7)), holder(2, Some(8)));
        let (stranger, last) = (holder(3, None), holder(4, None));
        assert_eq!(serving(&[server, other, stranger], 7), Some(server));
        assert_eq!(serving(&[stranger, other, server], 7), Some(server));
        assert_eq!(serving(&[other, stranger], 7), None);
        // The kernel tells no numbers.
        assert_eq!(serving(&[stranger, last], 7), Some(last));
        assert_eq!(serving(&[], 7), None);
    }

    #[test]
    fn who_comes_and_goes_is_not_waited_for_for_ever() {
        let image = tempfile::NamedTempFile::new().unwrap();
        let redirections = format!("3<{}; flock -n 3", image.path().display());
        let (begun, limit, mut stranger) = (Instant::now(), TELL, None);
        // A stranger and nobody in turns; in the end not busy any more.
        let open = || {
            stranger = match stranger.take() {
                None => Some(Ending::called("somebody", &redirections)),
                Some(_) => None,
            };
            Err::<(), bool>(begun.elapsed() < limit * 20)
        };
        let done = patiently_for(limit, true, (image.path(), 0), |busy: &bool| *busy, |_| {}, open);
        assert_eq!(done, Err(true));
    }

    /// A file that a process with this name has locked.
    fn locked_by(name: &str) -> (tempfile::NamedTempFile, Ending) {
        let image = tempfile::NamedTempFile::new().unwrap();
        let redirections = format!("3<{}; flock -n 3", image.path().display());
        let holder = Ending::called(name, &redirections);
        (image, holder)
    }

    #[test]
    fn a_command_of_ours_is_waited_for() {
        let (image, holder) = locked_by(BRIEF);
        let begun = Instant::now();
        assert_eq!(has(image.path(), begun), Has::Ours(Turn::Brief(holder.0.id())));
        assert_eq!(never(image.path()), (Err(true), 1));
        assert!(begun.elapsed() >= TELL * 2);
        // Those who only look are not kept.
        wait_for_last_commit(image.path(), 0, |said| panic!("{said}"));
        drop(holder);
        assert_eq!(has(image.path(), begun), Has::Nobody);
    }

    #[test]
    fn a_stranger_is_not_waited_for() {
        let (image, holder) = locked_by("somebody");
        let at = Image::at(image.path()).unwrap();
        assert!(has_locked(holder.0.id(), &at) && !has_locked(holder.0.id() + 1, &at));
        assert_eq!(has(image.path(), Instant::now()), Has::Stranger);
        let mut tries = 0;
        let open = || {
            tries += 1;
            Err::<(), bool>(true)
        };
        let done = patiently(image.path(), 0, |busy: &bool| *busy, |said| panic!("{said}"), open);
        assert_eq!((done, tries), (Err(true), LOOKS));
    }
}
