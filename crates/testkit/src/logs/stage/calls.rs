//! Operations on names, attributes and subvolumes, and those that make things durable.

use std::process::Command;

use rustix::fs::{self, AtFlags, CWD, FileType, Gid, Mode, OFlags, RenameFlags, Timespec, Uid};
use rustix::fs::{Timestamps, XattrFlags};
use rustix::io::Errno;

use super::{Result, Stage, StepError, number};
use crate::ops::rng::bytes;
use crate::oracle::{btrfs, run};

/// `sync_file_range` by number, where the number is known.
const SYNC_FILE_RANGE: u32 = if cfg!(target_arch = "x86_64") { 277 } else { 84 };

impl Stage {
    pub(super) fn names(&self, words: &[&str]) -> Result<()> {
        match *words {
            ["file", path] => self.file(path),
            ["mkdir", path] => Ok(fs::mkdir(self.path(path), Mode::from_raw_mode(0o755))?),
            ["fifo", path] => self.special(path, FileType::Fifo, 0),
            ["node", path] => self.special(path, FileType::CharacterDevice, fs::makedev(7, 300)),
            ["symlink", path, target] => Ok(fs::symlink(target, self.path(path))?),
            ["link", from, to] => match from.strip_prefix('@') {
                Some(_) => self.with(from, |file| {
                    Ok(fs::linkat(file, "", CWD, self.path(to), AtFlags::EMPTY_PATH)?)
                }),
                None => Ok(fs::link(self.path(from), self.path(to))?),
            },
            ["unlink", path] => Ok(fs::unlink(self.path(path))?),
            ["rmdir", path] => Ok(fs::rmdir(self.path(path))?),
            ["rename", from, to] => self.rename(from, to, RenameFlags::empty()),
            ["exchange", from, to] => self.rename(from, to, RenameFlags::EXCHANGE),
            ["whiteout", from, to] => self.rename(from, to, RenameFlags::WHITEOUT),
            ["files", dir, count] => {
                (0..number(count)?).try_for_each(|it| self.file(&format!("{dir}/entry-{it}")))
            }
            ["remove", dir, from, to] => (number(from)?..number(to)?)
                .try_for_each(|it| Ok(fs::unlink(self.path(&format!("{dir}/entry-{it}")))?)),
            ["names", path, dir, count, len] => {
                let (from, len) = (self.path(path), number(len)? as usize);
                (0..number(count)?).try_for_each(|it| {
                    let name = format!("{dir}/{it:05}{}", "n".repeat(len.saturating_sub(5)));
                    Ok(fs::link(&from, self.path(&name))?)
                })
            }
            _ => Err(StepError::Words),
        }
    }

    fn file(&self, path: &str) -> Result<()> {
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
        fs::open(self.path(path), flags, Mode::from_raw_mode(0o644))?;
        Ok(())
    }

    fn special(&self, path: &str, kind: FileType, device: u64) -> Result<()> {
        Ok(fs::mknodat(CWD, self.path(path), kind, Mode::from_raw_mode(0o640), device)?)
    }

    fn rename(&self, from: &str, to: &str, how: RenameFlags) -> Result<()> {
        Ok(fs::renameat_with(CWD, self.path(from), CWD, self.path(to), how)?)
    }

    pub(super) fn others(&self, words: &[&str]) -> Result<()> {
        match *words {
            ["fsync", path] => self.with(path, |file| Ok(fs::fsync(file)?)),
            ["fdatasync", path] => self.with(path, |file| Ok(fs::fdatasync(file)?)),
            ["range", path] => {
                let script = format!(
                    "open(F, '+<', $ARGV[0]) or die $!; \
                     syscall({SYNC_FILE_RANGE}, fileno(F), 0, 0, 7) == 0 or die $!;"
                );
                self.program(Command::new("perl").args(["-e", &script]).arg(self.path(path)))
            }
            ["sync"] => Ok(fs::syncfs(self.opened(".", OFlags::RDONLY)?)?),
            ["subvolume", path] => self.btrfs(&["subvolume", "create"], &[path]),
            ["snapshot", from, to] => self.btrfs(&["subvolume", "snapshot"], &[from, to]),
            ["delete", path] => self.btrfs(&["subvolume", "delete"], &[path]),
            _ => self.attributes(words),
        }
    }

    fn attributes(&self, words: &[&str]) -> Result<()> {
        match *words {
            ["setxattr", path, name, len] => {
                let value = bytes(self.count as u32 * 2 + 1, 0, number(len)? as usize);
                let flags = XattrFlags::empty();
                match path.strip_prefix('@') {
                    Some(_) => {
                        self.with(path, |file| Ok(fs::fsetxattr(file, name, &value, flags)?))
                    }
                    None => Ok(fs::lsetxattr(self.path(path), name, &value, flags)?),
                }
            }
            ["rmxattr", path, name] => Ok(fs::lremovexattr(self.path(path), name)?),
            ["acl", path, spec] => {
                self.program(Command::new("setfacl").args(["-m", spec]).arg(self.path(path)))
            }
            ["chmod", path, mode] => {
                let mode = u32::from_str_radix(mode, 8).map_err(|_| StepError::Words)?;
                Ok(fs::chmod(self.path(path), Mode::from_raw_mode(mode))?)
            }
            ["chown", path, uid, gid] => {
                let (uid, gid) = (number(uid)? as u32, number(gid)? as u32);
                let (uid, gid) = (Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)));
                Ok(fs::chownat(CWD, self.path(path), uid, gid, AtFlags::SYMLINK_NOFOLLOW)?)
            }
            ["utimes", path, seconds] => {
                let tv_sec = number(seconds)? as i64;
                let time = Timespec { tv_sec, tv_nsec: 123_456_789 };
                let times = Timestamps { last_access: time, last_modification: time };
                Ok(fs::utimensat(CWD, self.path(path), &times, AtFlags::SYMLINK_NOFOLLOW)?)
            }
            ["chattr", path, flags] => {
                self.program(Command::new("chattr").arg(flags).arg(self.path(path)))
            }
            ["property", path, kind] => {
                let path = self.path(path);
                let path = path.to_str().ok_or(Errno::INVAL)?;
                btrfs(&["property", "set", path, "compression", kind])?;
                Ok(())
            }
            _ => Err(StepError::Words),
        }
    }

    fn btrfs(&self, words: &[&str], paths: &[&str]) -> Result<()> {
        let paths = paths.iter().map(|path| self.path(path));
        self.program(Command::new("btrfs").args(words).args(paths))
    }

    fn program(&self, command: &mut Command) -> Result<()> {
        run(command)?;
        Ok(())
    }
}
