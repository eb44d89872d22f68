//! Random operations on files, like `fsstress`.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, symlink};
use std::path::{Path, PathBuf};

use rustix::fs::{FallocateFlags, XattrFlags, fallocate, removexattr, setxattr};

use super::{Fault, Result, Worker, on};
use crate::ops::rng::{Rng, bytes};

/// Files of one process.
const FILES: u64 = 300;
/// Bytes that one file has at most.
const FILE_MAX: u64 = 512 << 10;
/// Bytes of one write.
const WRITE_MAX: u64 = 64 << 10;

/// A process with files of its own and a memory of what they hold.
pub(super) struct Stress {
    dir: PathBuf,
    files: BTreeMap<u64, Vec<u8>>,
}

impl Stress {
    pub(super) fn new(dir: PathBuf) -> Stress {
        Stress { dir, files: BTreeMap::new() }
    }

    pub(super) fn run(&mut self, worker: &mut Worker) -> Result<()> {
        while worker.goes_on() {
            self.step(&mut worker.rng)?;
            worker.done += 1;
        }
        let all: Vec<u64> = self.files.keys().copied().collect();
        all.into_iter().try_for_each(|file| self.compare(file))
    }

    fn path(&self, file: u64) -> PathBuf {
        self.dir.join(format!("d{}", file % 7)).join(format!("file-{file}"))
    }

    fn step(&mut self, rng: &mut Rng) -> Result<()> {
        let file = rng.below(FILES);
        if !self.files.contains_key(&file) {
            return self.create(file);
        }
        match rng.below(12) {
            0..=3 => self.write(file, rng),
            4 | 5 => self.compare(file),
            6 => self.cut(file, rng),
            7 => self.rename(file, rng.below(FILES)),
            8 => self.punch(file, rng),
            9 => self.xattr(file),
            10 => self.link(file),
            _ => self.remove(file),
        }
    }

    fn create(&mut self, file: u64) -> Result<()> {
        let path = self.path(file);
        if let Some(dir) = path.parent() {
            on("mkdir", dir, fs::create_dir_all(dir))?;
        }
        on("create", &path, File::create_new(&path))?;
        self.files.insert(file, Vec::new());
        Ok(())
    }

    fn write(&mut self, file: u64, rng: &mut Rng) -> Result<()> {
        let path = self.path(file);
        let offset = rng.below(FILE_MAX - WRITE_MAX);
        let data = bytes(rng.next() as u32, offset, 1 + rng.below(WRITE_MAX) as usize);
        let open = on("open", &path, OpenOptions::new().write(true).open(&path))?;
        on("write", &path, open.write_all_at(&data, offset))?;
        let content = self.files.entry(file).or_default();
        let end = offset as usize + data.len();
        content.resize(content.len().max(end), 0);
        content[offset as usize..end].copy_from_slice(&data);
        if rng.one_in(40) { on("fsync", &path, open.sync_all()) } else { Ok(()) }
    }

    fn compare(&self, file: u64) -> Result<()> {
        let path = self.path(file);
        let found = on("read", &path, fs::read(&path))?;
        let expected = self.files.get(&file).map(Vec::as_slice).unwrap_or_default();
        if found == expected {
            return Ok(());
        }
        let at = found.iter().zip(expected).position(|(left, right)| left != right);
        let (found, expected) = (found.len(), expected.len());
        let text = format!("{}: {found} bytes of {expected}, other at {at:?}", path.display());
        Err(Fault::Wrong(text))
    }

    fn cut(&mut self, file: u64, rng: &mut Rng) -> Result<()> {
        let path = self.path(file);
        let size = rng.below(FILE_MAX);
        let open = on("open", &path, OpenOptions::new().write(true).open(&path))?;
        on("truncate", &path, open.set_len(size))?;
        self.files.entry(file).or_default().resize(size as usize, 0);
        Ok(())
    }

    fn rename(&mut self, file: u64, to: u64) -> Result<()> {
        let (from, target) = (self.path(file), self.path(to));
        if let Some(dir) = target.parent() {
            on("mkdir", dir, fs::create_dir_all(dir))?;
        }
        on("rename", &from, fs::rename(&from, &target))?;
        if let Some(content) = self.files.remove(&file) {
            self.files.insert(to, content);
        }
        Ok(())
    }

    fn punch(&mut self, file: u64, rng: &mut Rng) -> Result<()> {
        let path = self.path(file);
        let (offset, len) = (rng.below(FILE_MAX), 1 + rng.below(WRITE_MAX));
        let open = on("open", &path, OpenOptions::new().write(true).open(&path))?;
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        on("punch", &path, fallocate(&open, flags, offset, len).map_err(io::Error::from))?;
        let content = self.files.entry(file).or_default();
        let size = content.len();
        content[size.min(offset as usize)..size.min((offset + len) as usize)].fill(0);
        Ok(())
    }

    fn xattr(&self, file: u64) -> Result<()> {
        let path = self.path(file);
        let value = format!("value of {file}");
        let set = setxattr(&path, "user.load", value.as_bytes(), XattrFlags::empty());
        on("setxattr", &path, set.map_err(io::Error::from))?;
        let mut found = [0_u8; 64];
        let got = rustix::fs::getxattr(&path, "user.load", &mut found[..]);
        let len = on("getxattr", &path, got.map_err(io::Error::from))?;
        if &found[..len] != value.as_bytes() {
            return Err(Fault::Wrong(format!("{}: another xattr", path.display())));
        }
        let removed = removexattr(&path, "user.load").map_err(io::Error::from);
        on("removexattr", &path, removed)
    }

    fn link(&self, file: u64) -> Result<()> {
        let path = self.path(file);
        let other = path.with_extension("link");
        on("link", &other, fs::hard_link(&path, &other))?;
        on("unlink", &other, fs::remove_file(&other))?;
        let soft = path.with_extension("symlink");
        on("symlink", &soft, symlink(&path, &soft))?;
        let target = on("readlink", &soft, fs::read_link(&soft))?;
        if target != path {
            return Err(Fault::Wrong(format!("{}: another target", soft.display())));
        }
        on("unlink", &soft, fs::remove_file(&soft))
    }

    fn remove(&mut self, file: u64) -> Result<()> {
        let path = self.path(file);
        on("unlink", &path, fs::remove_file(&path))?;
        self.files.remove(&file);
        Ok(())
    }
}

/// Names that several processes make, move and remove at once.
pub(super) fn shared(worker: &mut Worker, dir: &Path) -> Result<()> {
    while worker.goes_on() {
        let rng = &mut worker.rng;
        let mut name = || dir.join(format!("n{}", rng.below(40)));
        let (one, other) = (name(), name());
        let (what, answer) = match rng.below(8) {
            0 => ("create", File::create_new(&one).map(drop)),
            1 => ("mkdir", fs::create_dir(&one)),
            2 => ("unlink", fs::remove_file(&one)),
            3 => ("rmdir", fs::remove_dir(&one)),
            4 => ("rename", fs::rename(&one, &other)),
            5 => ("link", fs::hard_link(&one, &other)),
            6 => ("write", append(&one)),
            _ => (
                "list",
                fs::read_dir(dir).and_then(|mut list| list.try_for_each(|it| it.map(drop))),
            ),
        };
        if let Err(error) = answer
            && !may_happen(&error)
        {
            return on(what, &one, Err(error));
        }
        worker.done += 1;
    }
    Ok(())
}

fn append(path: &Path) -> io::Result<()> {
    let file = OpenOptions::new().append(true).open(path)?;
    io::Write::write_all(&mut &file, b"one line\n")?;
    if file.metadata()?.len() > 1 << 20 { file.set_len(0) } else { Ok(()) }
}

/// What somebody else may have done to a name in the meantime.
fn may_happen(error: &io::Error) -> bool {
    use rustix::io::Errno;
    let known = [
        Errno::NOENT,
        Errno::EXIST,
        Errno::ISDIR,
        Errno::NOTDIR,
        Errno::NOTEMPTY,
        Errno::PERM,
        Errno::MLINK,
    ];
    known.iter().any(|errno| error.raw_os_error() == Some(errno.raw_os_error()))
}
