//! Operations as system calls, and their answers as text that can be compared.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use buttress::{Allocate, FileKind, Rename, SetXattr};
use rustix::fs::{self, AtFlags, CWD, FallocateFlags, FileType, Mode, OFlags, RenameFlags};
use rustix::fs::{Gid, Statx, StatxFlags, StatxTimestamp, Timespec, Timestamps, Uid, XattrFlags};
use rustix::io::Errno;
use xxhash_rust::xxh64::xxh64;

use super::mounted::{Mounted, Who};
use super::{asked, excuse, pages};
use crate::ops::rng::bytes;
use crate::ops::run::Result;
use crate::ops::{Make, Op};

/// Larger than the kernel's limit on a list of names or a value of attributes (64 KiB each).
const XATTR_BYTES: usize = 80 << 10;

/// What an operation gave: a text (what was read, how much was written) or the errno, and how everything that it named
/// looks afterwards.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// What the call gave.
    pub result: std::result::Result<String, Errno>,
    /// Attributes of what the operation named.
    pub seen: Vec<Seen>,
}

/// How a file looks after an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    /// Its path, as the operation has it.
    pub at: String,
    /// Its attributes but for times, or the errno of asking.
    pub what: String,
    /// Its times.
    pub times: String,
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.result {
            Ok(text) => write!(f, "done {text}")?,
            Err(errno) => write!(f, "{}", excuse::name(*errno))?,
        }
        self.seen.iter().try_for_each(|it| write!(f, "; {} {} {}", it.at, it.what, it.times))
    }
}

type Called = std::result::Result<String, Errno>;

/// Makes the calls on one mount.
pub struct Caller {
    mounted: Mounted,
    handles: BTreeMap<u8, OwnedFd>,
}

/// What an operation is about: a path or an open file.
enum At<'a> {
    Path(PathBuf),
    Fd(BorrowedFd<'a>),
}

impl Caller {
    /// Of this mount.
    pub fn new(mounted: Mounted) -> Caller {
        // The modes that are asked for are those that are wanted.
        rustix::process::umask(Mode::empty());
        Caller { mounted, handles: BTreeMap::new() }
    }

    /// The top of the tree.
    pub fn top(&self) -> &Path {
        self.mounted.path()
    }

    /// Commits.
    pub fn sync(&self) -> Result<()> {
        let dir = asked("open", File::open(self.top()))?;
        asked("syncfs", fs::syncfs(&dir))
    }

    /// Pages that could not be written show what was stored until they are dropped: they are. And the next fsync(2) or msync(2) of the file and the next
    /// syncfs(2) of the whole mount tell of them: it is these, and no later ones.
    pub fn forget_refused_pages(&self, at: &str) -> Result<()> {
        let dropped = self.with(at, OFlags::RDONLY, |file| {
            fs::fadvise(file, 0, None, fs::Advice::DontNeed)?;
            match fs::fsync(file) {
                Err(Errno::ROFS | Errno::IO) => Ok(()),
                other => other,
            }
        });
        asked("what is refused", dropped)?;
        let dir = asked("open", File::open(self.top()))?;
        match fs::syncfs(&dir) {
            Err(Errno::ROFS | Errno::IO) => Ok(()),
            other => asked("syncfs", other),
        }
    }

    /// Closes all files and unmounts.
    pub fn end(mut self) -> Result<()> {
        self.handles.clear();
        self.mounted.end()
    }

    /// Closes the file that a handle holds.
    pub fn release(&mut self, handle: u8) {
        self.handles.remove(&handle);
    }

    /// Does an operation.
    pub fn call(&mut self, op: &Op) -> Answer {
        let named = op.paths();
        let before: Vec<_> = named.iter().map(|at| self.statx(at).ok()).collect();
        let result = self.dispatch(op);
        let seen = named.into_iter().zip(before).map(|(at, before)| {
            let (what, times) = match self.statx(&at) {
                Ok(now) => (shown(&now), times(&now, before.as_ref())),
                Err(errno) => (excuse::name(errno), String::new()),
            };
            Seen { at, what, times }
        });
        Answer { result, seen: seen.collect() }
    }

    fn path(&self, at: &str) -> PathBuf {
        self.top().join(at.trim_start_matches('/'))
    }

    fn at(&self, at: &str) -> std::result::Result<At<'_>, Errno> {
        match at.strip_prefix('@') {
            None => Ok(At::Path(self.path(at))),
            Some(number) => {
                let handle: u8 = number.parse().map_err(|_| Errno::BADF)?;
                self.handles.get(&handle).map(|file| At::Fd(file.as_fd())).ok_or(Errno::BADF)
            }
        }
    }

    fn statx(&self, at: &str) -> std::result::Result<Statx, Errno> {
        let (wanted, flags) = (StatxFlags::BASIC_STATS, AtFlags::SYMLINK_NOFOLLOW);
        match self.at(at)? {
            At::Path(path) => fs::statx(CWD, path, flags, wanted),
            At::Fd(file) => fs::statx(file, "", AtFlags::EMPTY_PATH, wanted),
        }
    }

    fn dispatch(&mut self, op: &Op) -> Called {
        match op {
            Op::Make { at, what, mode, owner } => self.make(at, what, *mode, *owner),
            Op::Temporary { handle, dir, mode } => {
                let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
                let file = fs::open(self.path(dir), flags, Mode::from_raw_mode(*mode))?;
                self.handles.insert(*handle, file);
                done(())
            }
            Op::Hold { handle, at } => {
                let file = self.held(at)?;
                self.handles.insert(*handle, file);
                done(())
            }
            Op::Release { handle } => {
                self.handles.remove(handle);
                done(())
            }
            Op::Link { .. } | Op::Unlink { .. } | Op::Rmdir { .. } | Op::Rename { .. } => {
                self.names(op).map(|()| String::new())
            }
            Op::Write { .. }
            | Op::Read { .. }
            | Op::Truncate { .. }
            | Op::Allocate { .. }
            | Op::Clone { .. } => self.content(op),
            Op::List { at } => list(&self.path(at)),
            Op::Look { at } => self.look(at),
            Op::Subvolume { .. }
            | Op::Snapshot { .. }
            | Op::DeleteSubvolume { .. }
            | Op::ReadOnly { .. } => self.volumes(op),
            op => self.attributes(op).map(|()| String::new()),
        }
    }

    // ---- names ----

    fn make(&self, at: &str, what: &Make, mode: u32, owner: u32) -> Called {
        let path = self.path(at);
        let mode = Mode::from_raw_mode(mode);
        match what {
            Make::File => {
                let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
                drop(fs::open(&path, flags, mode)?);
            }
            Make::Directory => fs::mkdir(&path, mode)?,
            Make::Link(target) => fs::symlink(target, &path)?,
            Make::Special(kind, device) => {
                let device = fs::makedev((device >> 20) as u32, (device & 0xf_ffff) as u32);
                fs::mknodat(CWD, &path, file_type(*kind), mode, device)?;
            }
        }
        if owner == 0 {
            return done(());
        }
        let (uid, gid) = (Uid::from_raw(owner), Gid::from_raw(owner));
        done(fs::chownat(CWD, &path, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW)?)
    }

    /// Opens a file to be held: for everything if that can be.
    fn held(&self, at: &str) -> std::result::Result<OwnedFd, Errno> {
        let path = match self.at(at)? {
            At::Fd(file) => return rustix::io::fcntl_dupfd_cloexec(file, 0),
            At::Path(path) => path,
        };
        let kind = self.statx(at).map(|stat| FileType::from_raw_mode(stat.stx_mode.into()))?;
        let flags = match kind {
            FileType::RegularFile => OFlags::RDWR,
            FileType::Directory => OFlags::RDONLY,
            _ => OFlags::PATH,
        };
        fs::open(path, flags | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())
    }

    fn names(&self, op: &Op) -> std::result::Result<(), Errno> {
        match op {
            Op::Link { from, to } => match self.at(from)? {
                At::Path(from) => fs::link(from, self.path(to)),
                At::Fd(file) => fs::linkat(file, "", CWD, self.path(to), AtFlags::EMPTY_PATH),
            },
            Op::Unlink { at } => fs::unlink(self.path(at)),
            Op::Rmdir { at } => fs::rmdir(self.path(at)),
            Op::Rename { from, to, how } => {
                let flags = match how {
                    Rename::NoReplace => RenameFlags::NOREPLACE,
                    Rename::Exchange => RenameFlags::EXCHANGE,
                    _ => RenameFlags::empty(),
                };
                fs::renameat_with(CWD, self.path(from), CWD, self.path(to), flags)
            }
            _ => Ok(()),
        }
    }

    // ---- contents ----

    /// Opens a file for one operation and does that.
    fn with<T>(
        &self,
        at: &str,
        flags: OFlags,
        work: impl FnOnce(BorrowedFd<'_>) -> std::result::Result<T, Errno>,
    ) -> std::result::Result<T, Errno> {
        match self.at(at)? {
            At::Fd(file) => work(file),
            At::Path(path) => {
                // A pipe would wait for its other end.
                let flags = flags | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
                let stat = self.statx(at)?;
                let kind = FileType::from_raw_mode(stat.stx_mode.into());
                if matches!(kind, FileType::CharacterDevice | FileType::BlockDevice) {
                    return Err(Errno::NXIO);
                }
                work(fs::open(path, flags, Mode::empty())?.as_fd())
            }
        }
    }

    fn content(&self, op: &Op) -> Called {
        match op {
            Op::Write { at, offset, len, seed } => {
                self.with(at, pages::flags((*seed).into()), |file| {
                    let data = bytes(*seed, *offset, *len);
                    let count = match pages::write(file, (*seed).into(), *offset, &data)? {
                        Some(count) => count,
                        None => rustix::io::pwrite(file, &data, *offset)?,
                    };
                    Ok(count.to_string())
                })
            }
            Op::Read { at, offset, len } => self.with(at, OFlags::RDONLY, |file| {
                let mut data = vec![0; *len];
                let count = match pages::read(file, *offset, &mut data)? {
                    Some(count) => count,
                    None => rustix::io::pread(file, &mut data[..], *offset)?,
                };
                Ok(format!("{count} {:016x}", xxh64(&data[..count], 0)))
            }),
            Op::Truncate { at, size } => {
                self.with(at, OFlags::WRONLY, |file| done(fs::ftruncate(file, *size)?))
            }
            Op::Allocate { at, mode, offset, len } => self.with(at, OFlags::WRONLY, |file| {
                done(fs::fallocate(file, fallocate_flags(*mode), *offset, *len)?)
            }),
            Op::Clone { from, offset, len, to, to_offset } => {
                self.with(from, OFlags::RDONLY, |source| {
                    self.with(to, OFlags::WRONLY, |target| {
                        let (mut from, mut to) = (*offset, *to_offset);
                        let len = *len as usize;
                        let copied = fs::copy_file_range(
                            source,
                            Some(&mut from),
                            target,
                            Some(&mut to),
                            len,
                        )?;
                        Ok(copied.to_string())
                    })
                })
            }
            _ => Ok(String::new()),
        }
    }

    // ---- attributes ----

    fn attributes(&self, op: &Op) -> std::result::Result<(), Errno> {
        let nofollow = AtFlags::SYMLINK_NOFOLLOW;
        match op {
            Op::Chmod { at, mode } => {
                let mode = Mode::from_raw_mode(*mode);
                match self.at(at)? {
                    At::Path(path) => fs::chmodat(CWD, path, mode, AtFlags::empty()),
                    At::Fd(file) => fs::fchmod(file, mode),
                }
            }
            Op::Chown { at, uid, gid } => {
                let owner = (*uid != u32::MAX).then(|| Uid::from_raw(*uid));
                let group = Some(Gid::from_raw(*gid));
                match self.at(at)? {
                    At::Path(path) => fs::chownat(CWD, path, owner, group, nofollow),
                    At::Fd(file) => fs::fchown(file, owner, group),
                }
            }
            Op::Utimes { at, atime, mtime } => {
                let time = |sec: i64| Timespec {
                    tv_sec: sec,
                    tv_nsec: (sec.unsigned_abs() as u32 % 1000).into(),
                };
                let times =
                    Timestamps { last_access: time(*atime), last_modification: time(*mtime) };
                match self.at(at)? {
                    At::Path(path) => fs::utimensat(CWD, path, &times, nofollow),
                    At::Fd(file) => fs::futimens(file, &times),
                }
            }
            Op::SetXattr { at, name, len, seed, how } => {
                let flags = match how {
                    SetXattr::Any => XattrFlags::empty(),
                    SetXattr::Create => XattrFlags::CREATE,
                    SetXattr::Replace => XattrFlags::REPLACE,
                };
                let value = bytes(*seed, 0, *len);
                match self.at(at)? {
                    At::Path(path) => fs::lsetxattr(path, name.as_str(), &value, flags),
                    At::Fd(file) => fs::fsetxattr(file, name.as_str(), &value, flags),
                }
            }
            Op::RemoveXattr { at, name } => match self.at(at)? {
                At::Path(path) => fs::lremovexattr(path, name.as_str()),
                At::Fd(file) => fs::fremovexattr(file, name.as_str()),
            },
            Op::Fsync { at } => self.with(at, OFlags::RDONLY, |file| fs::fsync(file)),
            _ => Ok(()),
        }
    }

    /// Everything about a file but its bytes.
    fn look(&self, at: &str) -> Called {
        let At::Path(path) = self.at(at)? else { return done(()) };
        let mut text = String::new();
        let mut names = vec![0; XATTR_BYTES];
        let len = fs::llistxattr(&path, &mut names[..])?;
        let mut names: Vec<_> =
            names[..len].split(|byte| *byte == 0).filter(|name| !name.is_empty()).collect();
        names.sort_unstable();
        let mut value = vec![0; XATTR_BYTES];
        for name in names {
            let name = String::from_utf8_lossy(name).into_owned();
            match fs::lgetxattr(&path, name.as_str(), &mut value[..]) {
                Ok(len) => text += &format!("{name}={len},{:x} ", xxh64(&value[..len], 0)),
                Err(errno) => text += &format!("{name}={} ", excuse::name(errno)),
            }
        }
        if let Ok(target) = fs::readlink(&path, Vec::new()) {
            text += &target.to_string_lossy();
        }
        Ok(text)
    }

    /// Gives what stands for a subvolume the mode that it is made with.
    pub fn mend_stub(&self, at: &str) -> std::result::Result<(), Errno> {
        let mode = Mode::from_raw_mode(0o755);
        match self.at(at)? {
            At::Path(path) => fs::chmodat(CWD, path, mode, AtFlags::empty()),
            At::Fd(file) => fs::fchmod(file, mode),
        }
    }

    /// Gives a file the times that it has for the other one.
    pub fn mend_times(&self, other: &Caller, at: &str) -> std::result::Result<(), Errno> {
        let flags = AtFlags::SYMLINK_NOFOLLOW;
        let theirs = other.statx(at)?;
        let time = |of: StatxTimestamp| Timespec { tv_sec: of.tv_sec, tv_nsec: of.tv_nsec.into() };
        let (last_access, last_modification) = (time(theirs.stx_atime), time(theirs.stx_mtime));
        let times = Timestamps { last_access, last_modification };
        match self.at(at)? {
            At::Path(path) => fs::utimensat(CWD, path, &times, flags),
            At::Fd(file) => fs::futimens(file, &times),
        }
    }

    /// Gives an xattr the value that it has for the other one.
    pub fn mend_xattr(
        &self,
        other: &Caller,
        at: &str,
        name: &str,
    ) -> std::result::Result<(), Errno> {
        let mut value = vec![0; XATTR_BYTES];
        let theirs = match other.at(at)? {
            At::Path(path) => fs::lgetxattr(path, name, &mut value[..]),
            At::Fd(file) => fs::fgetxattr(file, name, &mut value[..]),
        };
        let flags = XattrFlags::empty();
        match (theirs, self.at(at)?) {
            (Ok(len), At::Path(path)) => fs::lsetxattr(path, name, &value[..len], flags),
            (Ok(len), At::Fd(file)) => fs::fsetxattr(file, name, &value[..len], flags),
            (Err(_), At::Path(path)) => fs::lremovexattr(path, name),
            (Err(_), At::Fd(file)) => fs::fremovexattr(file, name),
        }
    }

    // ---- subvolumes ----

    fn volumes(&self, op: &Op) -> Called {
        let who = self.mounted.who();
        let path = |at: &str| self.path(at.trim_end_matches('/'));
        match (op, who) {
            (Op::Subvolume { at, owner }, _) => {
                let path = path(at);
                match who {
                    Who::Kernel => progs(&["subvolume", "create"], &[&path])?,
                    Who::Ours => buttress_fuse::client::create_subvolume(&path)?,
                }
                fs::chmodat(CWD, &path, Mode::from_raw_mode(0o755), AtFlags::empty())?;
                let (uid, gid) = (Uid::from_raw(*owner), Gid::from_raw(*owner));
                done(fs::chownat(CWD, &path, Some(uid), Some(gid), AtFlags::empty())?)
            }
            (Op::Snapshot { from, to, read_only }, Who::Kernel) => {
                let words: &[&str] = if *read_only {
                    &["subvolume", "snapshot", "-r"]
                } else {
                    &["subvolume", "snapshot"]
                };
                // A directory that is there would get the snapshot inside of it.
                match fs::lstat(path(to)) {
                    Ok(_) => Err(Errno::EXIST),
                    Err(Errno::NOENT) => done(progs(words, &[&path(from), &path(to)])?),
                    Err(errno) => Err(errno),
                }
            }
            (Op::Snapshot { from, to, read_only }, Who::Ours) => {
                match fs::lstat(path(to)) {
                    Ok(_) => return Err(Errno::EXIST),
                    Err(Errno::NOENT) => {}
                    Err(errno) => return Err(errno),
                }
                done(buttress_fuse::client::snapshot(&path(from), &path(to), *read_only)?)
            }
            (Op::DeleteSubvolume { at }, Who::Kernel) => {
                done(progs(&["subvolume", "delete"], &[&path(at)])?)
            }
            (Op::DeleteSubvolume { at }, Who::Ours) => {
                done(buttress_fuse::client::delete_subvolume(&path(at))?)
            }
            (Op::ReadOnly { at, on }, Who::Kernel) => {
                let value = if *on { "true" } else { "false" };
                let path = path(at);
                let mut command = std::process::Command::new("btrfs");
                command.args(["property", "set", "-f"]).arg(path).args(["ro", value]);
                done(errno_of(&mut command)?)
            }
            (Op::ReadOnly { at, on }, Who::Ours) => {
                done(buttress_fuse::client::set_read_only(&path(at), *on)?)
            }
            _ => Ok(String::new()),
        }
    }
}

fn done(_: ()) -> Called {
    Ok(String::new())
}

/// Runs `btrfs`; what it says when it fails gives the errno.
fn progs(words: &[&str], paths: &[&Path]) -> std::result::Result<(), Errno> {
    let mut command = std::process::Command::new("btrfs");
    errno_of(command.args(words).args(paths))
}

fn errno_of(command: &mut std::process::Command) -> std::result::Result<(), Errno> {
    let output = command.env("LC_ALL", "C").output().map_err(|_| Errno::IO)?;
    if output.status.success() {
        return Ok(());
    }
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    let found = excuse::SAID.iter().find(|(said, _)| text.contains(said));
    Err(found.map_or(Errno::IO, |(_, errno)| *errno))
}

impl Op {
    /// The paths that an operation names, and the directories of them.
    pub(super) fn paths(&self) -> Vec<String> {
        let parent = |at: &str| {
            let dir = at.trim_end_matches('/').rsplit_once('/').map(|(dir, _)| dir);
            dir.map(|dir| if dir.is_empty() { "/".to_owned() } else { dir.to_owned() })
        };
        let mut all = Vec::new();
        for at in self.named() {
            all.extend(parent(at));
            all.push(at.to_owned());
        }
        all
    }

    fn named(&self) -> Vec<&str> {
        match self {
            Op::Link { from, to }
            | Op::Rename { from, to, .. }
            | Op::Clone { from, to, .. }
            | Op::Snapshot { from, to, .. } => vec![from, to],
            Op::Temporary { dir, .. } => vec![dir],
            Op::Make { at, .. }
            | Op::Unlink { at }
            | Op::Rmdir { at }
            | Op::Write { at, .. }
            | Op::Read { at, .. }
            | Op::Truncate { at, .. }
            | Op::Allocate { at, .. }
            | Op::SetXattr { at, .. }
            | Op::RemoveXattr { at, .. }
            | Op::Chmod { at, .. }
            | Op::Chown { at, .. }
            | Op::Utimes { at, .. }
            | Op::Subvolume { at, .. }
            | Op::DeleteSubvolume { at }
            | Op::ReadOnly { at, .. }
            | Op::Hold { at, .. }
            | Op::List { at }
            | Op::Look { at } => vec![at],
            _ => Vec::new(),
        }
    }
}

fn shown(stat: &Statx) -> String {
    format!(
        "mode {:o} owner {}:{} links {} size {} device {}:{}",
        stat.stx_mode,
        stat.stx_uid,
        stat.stx_gid,
        stat.stx_nlink,
        stat.stx_size,
        stat.stx_rdev_major,
        stat.stx_rdev_minor,
    )
}

/// Times as text: each is itself where somebody has set it, and otherwise whether the operation has changed it.
fn times(stat: &Statx, before: Option<&Statx>) -> String {
    let identity = |stat: &Statx| (stat.stx_dev_major, stat.stx_dev_minor, stat.stx_ino);
    let before = before.filter(|before| identity(before) == identity(stat));
    let time = |of: fn(&Statx) -> (i64, u32)| {
        let (sec, nsec) = of(stat);
        match before.map(of) {
            _ if !super::tree::is_recent(sec) => format!("{sec}.{nsec}"),
            Some(old) if old == (sec, nsec) => "kept".to_owned(),
            Some(_) => "new".to_owned(),
            None => "recent".to_owned(),
        }
    };
    let mtime = time(|stat| (stat.stx_mtime.tv_sec, stat.stx_mtime.tv_nsec));
    let ctime = time(|stat| (stat.stx_ctime.tv_sec, stat.stx_ctime.tv_nsec));
    let atime = time(|stat| (stat.stx_atime.tv_sec, stat.stx_atime.tv_nsec));
    format!("mtime {mtime} ctime {ctime} atime {atime}")
}

/// Names and kinds in a directory, in its order.
fn list(path: &Path) -> Called {
    let failed = |error: std::io::Error| Errno::from_io_error(&error).unwrap_or(Errno::IO);
    let mut text = String::new();
    for entry in std::fs::read_dir(path).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let kind = entry.file_type().map_err(failed)?;
        let letter = super::tree::letter(kind);
        text += &format!("{letter}{} ", entry.file_name().to_string_lossy());
    }
    Ok(text)
}

fn file_type(kind: FileKind) -> FileType {
    match kind {
        FileKind::Character => FileType::CharacterDevice,
        FileKind::Block => FileType::BlockDevice,
        FileKind::Fifo => FileType::Fifo,
        FileKind::Socket => FileType::Socket,
        FileKind::Directory => FileType::Directory,
        FileKind::Symlink => FileType::Symlink,
        FileKind::Regular => FileType::RegularFile,
    }
}

fn fallocate_flags(mode: Allocate) -> FallocateFlags {
    match mode {
        Allocate::Reserve { keep_size: false } => FallocateFlags::empty(),
        Allocate::Reserve { keep_size: true } => FallocateFlags::KEEP_SIZE,
        Allocate::PunchHole => FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
        Allocate::ZeroRange { keep_size: false } => FallocateFlags::ZERO_RANGE,
        Allocate::ZeroRange { keep_size: true } => {
            FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE
        }
    }
}
