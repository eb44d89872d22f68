//! The language of workloads: system calls in a kernel mount.
//!
//! Operations are words with `;` or a new line between. Paths are relative to the top of the filesystem (`.`), `@h` is the open file `h`,
//! numbers may end in `k` and `m`. Bytes that are written follow from how many operations came before, so no two writes are alike.
//!
//! | operation | what it does |
//! |---|---|
//! | `file P`, `mkdir P`, `fifo P`, `node P`, `symlink P TARGET`, `tmpfile H DIR` | makes |
//! | `link A B`, `unlink P`, `rmdir P`, `rename A B`, `exchange A B`, `whiteout A B` | names |
//! | `write P AT LEN`, `words P AT LEN` (compressible), `append P LEN`, `osync P AT LEN`, `odsync P AT LEN`, `direct P AT LEN`, `scatter P COUNT` | bytes |
//! | `truncate P SIZE`, `prealloc`, `keep`, `punch`, `zero`, `zerokeep` `P AT LEN`, `clone A AT LEN B AT` | extents |
//! | `setxattr P NAME LEN`, `rmxattr P NAME`, `acl P SPEC`, `chmod P MODE`, `chown P UID GID`, `utimes P SECONDS`, `chattr P FLAGS`, `property P KIND` | attributes |
//! | `fsync P`, `fdatasync P`, `range P`, `sync`, `flush` (waits for data) | durable |
//! | `subvolume P`, `snapshot A B`, `delete P` | subvolumes |
//! | `hold H P`, `release H` | open files |
//! | `files DIR COUNT`, `remove DIR FROM TO`, `names P DIR COUNT LEN`, `fill P LEAVE` | many at once |

mod bytes;
mod calls;

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{self, Mode, OFlags};
use rustix::io::Errno;

use crate::oracle::OracleError;

/// Why an operation failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum StepError {
    /// The system said so.
    #[error("{0}")]
    Errno(#[from] Errno),
    /// A program said so.
    #[error("{0}")]
    Program(#[from] OracleError),
    /// It is none.
    #[error("not an operation")]
    Words,
}

/// Result of an operation.
pub(super) type Result<T> = std::result::Result<T, StepError>;

/// Where the operations of one workload run.
pub struct Stage {
    top: PathBuf,
    open: BTreeMap<String, OwnedFd>,
    /// Operations so far.
    count: u64,
}

impl Stage {
    /// In the mount at `top`.
    pub fn new(top: &Path) -> Stage {
        Stage { top: top.to_owned(), open: BTreeMap::new(), count: 0 }
    }

    /// Runs operations.
    pub fn run(&mut self, script: &str) -> std::result::Result<(), String> {
        for step in script.split([';', '\n']).map(str::trim).filter(|step| !step.is_empty()) {
            self.count += 1;
            let words: Vec<_> = step.split_whitespace().collect();
            self.step(&words).map_err(|error| format!("`{step}`: {error}"))?;
        }
        Ok(())
    }

    fn step(&mut self, words: &[&str]) -> Result<()> {
        match *words {
            ["tmpfile", handle, dir] => {
                let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
                let file = fs::open(self.path(dir), flags, Mode::from_raw_mode(0o644))?;
                self.open.insert(handle.to_owned(), file);
                Ok(())
            }
            ["hold", handle, path] => {
                let file = self.opened(path, OFlags::RDWR)?;
                self.open.insert(handle.to_owned(), file);
                Ok(())
            }
            ["release", handle] => {
                self.open.remove(handle);
                Ok(())
            }
            _ => match self.names(words) {
                Err(StepError::Words) => match self.data(words) {
                    Err(StepError::Words) => self.others(words),
                    other => other,
                },
                other => other,
            },
        }
    }

    fn path(&self, path: &str) -> PathBuf {
        self.top.join(path)
    }

    /// Opens a path; directories for reading only.
    fn opened(&self, path: &str, flags: OFlags) -> Result<OwnedFd> {
        let path = self.path(path);
        let flags = flags | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        match fs::open(&path, flags, Mode::empty()) {
            Err(Errno::ISDIR) => {
                Ok(fs::open(&path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?)
            }
            other => Ok(other?),
        }
    }

    /// Does something to an open file, or to one that is opened for it.
    fn with<T>(&self, path: &str, work: impl FnOnce(BorrowedFd<'_>) -> Result<T>) -> Result<T> {
        match path.strip_prefix('@') {
            Some(handle) => work(self.open.get(handle).ok_or(Errno::BADF)?.as_fd()),
            None => work(self.opened(path, OFlags::RDWR)?.as_fd()),
        }
    }
}

/// A number, with `k` and `m` for the powers of 1024.
fn number(word: &str) -> Result<u64> {
    let (digits, unit) = match word.strip_suffix('k') {
        Some(digits) => (digits, 1 << 10),
        None => word.strip_suffix('m').map_or((word, 1), |digits| (digits, 1 << 20)),
    };
    digits.parse::<u64>().map(|number| number * unit).map_err(|_| StepError::Words)
}
