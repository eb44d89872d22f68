//! One file operation written as a line of words: `rename-noreplace a b`.
//!
//! Cases are short that way, families of cases ("every call on a path through a file fails with
//! ENOTDIR") are tables of lines, and a helper process that runs as another user gets the same
//! lines through a pipe. Words are parted by single spaces, so names here hold none; the word `''`
//! is the empty string. Numbers of modes are octal. A call gives a text (what was read) or the errno.

use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::process::Command;

use rustix::fs::{
    self, Access, AtFlags, CWD, FallocateFlags, FileType, Gid, Mode, OFlags, RenameFlags, Timespec,
    Timestamps, UTIME_NOW, UTIME_OMIT, Uid, XattrFlags,
};
use rustix::io::Errno;

/// What a call gives: a text, or the error number.
pub type Answer = Result<String, Errno>;

/// The words of one call.
struct Words<'a>(Vec<&'a str>);

impl<'a> Words<'a> {
    /// Word `at`; the empty string where there is none.
    fn text(&self, at: usize) -> &'a str {
        match self.0.get(at) {
            Some(&"''") | None => "",
            Some(word) => word,
        }
    }

    /// A mode in octal.
    fn mode(&self, at: usize) -> Result<Mode, Errno> {
        let bits = u32::from_str_radix(self.text(at), 8).map_err(|_| Errno::DOM)?;
        Ok(Mode::from_raw_mode(bits))
    }

    /// A decimal number.
    fn number(&self, at: usize) -> Result<u64, Errno> {
        self.text(at).parse().map_err(|_| Errno::DOM)
    }

    /// A user or group number; `-` means that it stays as it is.
    fn id(&self, at: usize) -> Result<Option<u32>, Errno> {
        match self.text(at) {
            "-" => Ok(None),
            text => text.parse().map(Some).map_err(|_| Errno::DOM),
        }
    }

    /// A time: `now`, `omit`, `SECONDS` or `SECONDS.NANOSECONDS` (nine digits).
    fn time(&self, at: usize) -> Result<Timespec, Errno> {
        let text = self.text(at);
        let (seconds, nanos) = text.split_once('.').unwrap_or((text, "0"));
        let tv_nsec = match text {
            "now" => UTIME_NOW,
            "omit" => UTIME_OMIT,
            _ => nanos.parse().map_err(|_| Errno::DOM)?,
        };
        Ok(Timespec { tv_sec: seconds.parse().unwrap_or(0), tv_nsec })
    }
}

/// The flags of an `open` line: `r`, `w`, `rw` and names of `O_` flags, parted by commas.
pub fn open_flags(text: &str) -> Result<OFlags, Errno> {
    let mut flags = OFlags::CLOEXEC;
    for word in text.split(',') {
        flags |= match word {
            "r" => OFlags::RDONLY,
            "w" => OFlags::WRONLY,
            "rw" => OFlags::RDWR,
            "creat" => OFlags::CREATE,
            "excl" => OFlags::EXCL,
            "trunc" => OFlags::TRUNC,
            "append" => OFlags::APPEND,
            "nofollow" => OFlags::NOFOLLOW,
            "directory" => OFlags::DIRECTORY,
            "tmpfile" => OFlags::TMPFILE,
            "noatime" => OFlags::NOATIME,
            "path" => OFlags::PATH,
            "sync" => OFlags::SYNC,
            "nonblock" => OFlags::NONBLOCK,
            _ => return Err(Errno::DOM),
        };
    }
    Ok(flags)
}

/// Opens `path` with the flags of an `open` line.
pub fn open(path: &str, flags: &str, mode: u32) -> Result<OwnedFd, Errno> {
    fs::open(path, open_flags(flags)?, Mode::from_raw_mode(mode))
}

/// Runs one line. `Errno::DOM` stands for a line that is not understood: no filesystem gives it.
pub fn run(line: &str) -> Answer {
    let words = Words(line.split(' ').collect());
    let name = words.text(0);
    let done = match name {
        "open" | "create" | "write" | "append" | "read" | "list" | "truncate" | "fallocate"
        | "exec" => return content(name, &words),
        "setxattr" | "getxattr" | "removexattr" | "listxattr" => return xattr(name, &words),
        "chmod" | "chown" | "lchown" | "utimes" | "lutimes" | "touch" => attributes(name, &words),
        "readlink" | "stat" | "lstat" | "access" => return look(name, &words),
        _ => names(name, &words),
    };
    done.map(|()| String::new())
}

/// Calls that change names.
fn names(name: &str, words: &Words<'_>) -> Result<(), Errno> {
    let (a, b) = (words.text(1), words.text(2));
    let rename = |flags| fs::renameat_with(CWD, a, CWD, b, flags);
    match name {
        "unlink" => fs::unlink(a),
        "rmdir" => fs::rmdir(a),
        "mkdir" => fs::mkdir(a, words.mode(2)?),
        "link" => fs::link(a, b),
        "link-follow" => fs::linkat(CWD, a, CWD, b, AtFlags::SYMLINK_FOLLOW),
        "symlink" => fs::symlink(a, b),
        "rename" => fs::rename(a, b),
        "rename-noreplace" => rename(RenameFlags::NOREPLACE),
        "rename-exchange" => rename(RenameFlags::EXCHANGE),
        "rename-whiteout" => rename(RenameFlags::WHITEOUT),
        "rename-both" => rename(RenameFlags::NOREPLACE | RenameFlags::EXCHANGE),
        "mknod" => make_node(a, b, words),
        _ => Err(Errno::DOM),
    }
}

/// `mknod PATH KIND MODE [MAJOR MINOR]`.
fn make_node(path: &str, kind: &str, words: &Words<'_>) -> Result<(), Errno> {
    let kind = match kind {
        "file" => FileType::RegularFile,
        "fifo" => FileType::Fifo,
        "socket" => FileType::Socket,
        "char" => FileType::CharacterDevice,
        "block" => FileType::BlockDevice,
        "dir" => FileType::Directory,
        _ => return Err(Errno::DOM),
    };
    let device = match words.0.len() {
        6.. => fs::makedev(words.number(4)? as u32, words.number(5)? as u32),
        _ => 0,
    };
    fs::mknodat(CWD, path, kind, words.mode(3)?, device)
}

/// Calls that change attributes.
fn attributes(name: &str, words: &Words<'_>) -> Result<(), Errno> {
    let path = words.text(1);
    let own = |flags| {
        let (uid, gid) = (words.id(2)?.map(Uid::from_raw), words.id(3)?.map(Gid::from_raw));
        fs::chownat(CWD, path, uid, gid, flags)
    };
    let times = |flags| {
        let (last_access, last_modification) = (words.time(2)?, words.time(3)?);
        fs::utimensat(CWD, path, &Timestamps { last_access, last_modification }, flags)
    };
    match name {
        "chmod" => fs::chmod(path, words.mode(2)?),
        "chown" => own(AtFlags::empty()),
        "lchown" => own(AtFlags::SYMLINK_NOFOLLOW),
        "utimes" => times(AtFlags::empty()),
        "lutimes" => times(AtFlags::SYMLINK_NOFOLLOW),
        "touch" => {
            let now = Timespec { tv_sec: 0, tv_nsec: UTIME_NOW };
            let both = Timestamps { last_access: now, last_modification: now };
            fs::utimensat(CWD, path, &both, AtFlags::empty())
        }
        _ => Err(Errno::DOM),
    }
}

/// Calls that look at a path.
fn look(name: &str, words: &Words<'_>) -> Answer {
    let path = words.text(1);
    match name {
        "readlink" => {
            let target = fs::readlink(path, Vec::new())?;
            Ok(String::from_utf8_lossy(target.as_bytes()).into_owned())
        }
        "stat" => fs::stat(path).map(|_| String::new()),
        "lstat" => fs::lstat(path).map(|_| String::new()),
        "access" => {
            let mut wanted = Access::empty();
            wanted.set(Access::READ_OK, words.text(2).contains('r'));
            wanted.set(Access::WRITE_OK, words.text(2).contains('w'));
            wanted.set(Access::EXEC_OK, words.text(2).contains('x'));
            fs::accessat(CWD, path, wanted, AtFlags::EACCESS).map(|()| String::new())
        }
        _ => Err(Errno::DOM),
    }
}

/// Calls that open something.
fn content(name: &str, words: &Words<'_>) -> Answer {
    let path = words.text(1);
    let nothing = |()| String::new();
    match name {
        "open" => {
            let mode = if words.0.len() > 3 { words.mode(3)?.bits() } else { 0 };
            open(path, words.text(2), mode).map(|_| String::new())
        }
        "create" => open(path, "w,creat,excl", words.mode(2)?.bits()).map(|_| String::new()),
        "write" => write_all(&open(path, "w", 0)?, words.text(2).as_bytes()).map(nothing),
        "append" => write_all(&open(path, "w,append", 0)?, words.text(2).as_bytes()).map(nothing),
        "read" => read_all(&open(path, "r,nonblock", 0)?),
        "list" => list(path).map(|names| names.join(" ")),
        "truncate" => fs::ftruncate(open(path, "w", 0)?, words.number(2)?).map(nothing),
        "fallocate" => {
            let mode = fallocate_mode(words.text(2))?;
            let file = open(path, "rw", 0)?;
            fs::fallocate(file, mode, words.number(3)?, words.number(4)?).map(nothing)
        }
        "exec" => execute(path),
        _ => Err(Errno::DOM),
    }
}

/// The mode of `fallocate` by name.
pub fn fallocate_mode(text: &str) -> Result<FallocateFlags, Errno> {
    Ok(match text {
        "plain" => FallocateFlags::empty(),
        "keep" => FallocateFlags::KEEP_SIZE,
        "punch" => FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
        "punch-alone" => FallocateFlags::PUNCH_HOLE,
        "zero" => FallocateFlags::ZERO_RANGE,
        "zero-keep" => FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE,
        _ => return Err(Errno::DOM),
    })
}

/// Writes all of `bytes` at the file's position.
pub fn write_all(file: &OwnedFd, mut bytes: &[u8]) -> Result<(), Errno> {
    while !bytes.is_empty() {
        let count = rustix::io::write(file, bytes)?;
        bytes = bytes.get(count..).ok_or(Errno::IO)?;
    }
    Ok(())
}

/// Reads to the end; bytes that are no text are replaced.
fn read_all(file: &OwnedFd) -> Answer {
    let mut all = Vec::new();
    let mut part = [0_u8; 4096];
    loop {
        match rustix::io::read(file, &mut part)? {
            0 => return Ok(String::from_utf8_lossy(&all).into_owned()),
            count => all.extend_from_slice(part.get(..count).ok_or(Errno::IO)?),
        }
    }
}

/// The names in a directory in the order of their bytes, without `.` and `..`.
pub fn list(path: &str) -> Result<Vec<String>, Errno> {
    let dir = open(path, "r,directory", 0)?;
    let mut names = Vec::new();
    for entry in fs::Dir::new(dir)? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        if name != "." && name != ".." {
            names.push(name);
        }
    }
    names.sort();
    Ok(names)
}

/// Runs a program and gives what it prints.
fn execute(path: &str) -> Answer {
    let output = Command::new(format!("./{path}")).arg0(path).output();
    let output = output.map_err(|e| Errno::from_io_error(&e).unwrap_or(Errno::IO))?;
    Ok(String::from_utf8_lossy(&output.stdout).trim_end().to_owned())
}

/// Extended attributes. Values are texts.
fn xattr(name: &str, words: &Words<'_>) -> Answer {
    let (path, key) = (words.text(1), words.text(2));
    match name {
        "setxattr" => {
            let flags = match words.text(4) {
                "create" => XattrFlags::CREATE,
                "replace" => XattrFlags::REPLACE,
                _ => XattrFlags::empty(),
            };
            fs::lsetxattr(path, key, words.text(3).as_bytes(), flags).map(|()| String::new())
        }
        "removexattr" => fs::lremovexattr(path, key).map(|()| String::new()),
        "getxattr" => {
            let mut value = vec![0_u8; 65_536];
            let len = fs::lgetxattr(path, key, &mut value[..])?;
            Ok(String::from_utf8_lossy(value.get(..len).unwrap_or_default()).into_owned())
        }
        "listxattr" => {
            let mut value = vec![0_u8; 65_536];
            let len = fs::llistxattr(path, &mut value[..])?;
            let bytes = value.get(..len).unwrap_or_default();
            let keys = bytes.split(|b| *b == 0).filter(|key| !key.is_empty());
            let mut keys: Vec<_> = keys.map(String::from_utf8_lossy).collect();
            keys.sort();
            Ok(keys.join(" "))
        }
        _ => Err(Errno::DOM),
    }
}
