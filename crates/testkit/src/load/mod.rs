//! Mixed load on a mount: sixteen processes at once, for as long as one likes, each of which knows what must come back.
//!
//! A process is this program again with a [`Kind`] and a directory of its own. What it does is bounded in size, so that
//! the filesystem never fills; every error it meets is one that Linux would not give, and ends it.

mod stress;
mod tools;

use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::ops::rng::Rng;

/// What a process does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Random operations on files of its own, compared with what it remembers.
    Stress,
    /// Random operations on names that others use, too: every errno that a race can give is right.
    Shared,
    /// `tar` into `tar`, both trees compared, `rm -r`.
    Tar,
    /// `dbench`.
    Dbench,
    /// Snapshots taken, looked at and deleted.
    Snapshots,
    /// Records appended with `fsync`.
    Journal,
    /// Large files written, cut, punched and read back.
    Large,
    /// `sync` and `df`.
    Sync,
}

/// The processes of a run: sixteen.
pub const MIX: [(Kind, u32); 8] = [
    (Kind::Stress, 6),
    (Kind::Shared, 2),
    (Kind::Tar, 2),
    (Kind::Dbench, 1),
    (Kind::Snapshots, 2),
    (Kind::Journal, 1),
    (Kind::Large, 1),
    (Kind::Sync, 1),
];

impl Kind {
    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Stress => "stress",
            Kind::Shared => "shared",
            Kind::Tar => "tar",
            Kind::Dbench => "dbench",
            Kind::Snapshots => "snapshots",
            Kind::Journal => "journal",
            Kind::Large => "large",
            Kind::Sync => "sync",
        }
    }

    /// The kind of this name.
    pub fn of(name: &str) -> Option<Kind> {
        MIX.iter().map(|(kind, _)| *kind).find(|kind| kind.name() == name)
    }
}

/// One process: what it needs to know.
#[derive(Debug)]
pub struct Worker {
    /// Top of the mount.
    pub mount: PathBuf,
    /// Which of the processes it is.
    pub number: u32,
    /// The `buttress` command.
    pub command: PathBuf,
    /// When to stop.
    pub until: Instant,
    rng: Rng,
    /// Operations done.
    pub done: u64,
}

/// Why a process ended early.
#[derive(Debug, thiserror::Error)]
pub enum Fault {
    /// A system call gave an error that it should not.
    #[error("{what}: {source}")]
    Io {
        /// What was tried.
        what: String,
        /// The error.
        source: io::Error,
    },
    /// What came back is not what went in.
    #[error("{0}")]
    Wrong(String),
}

type Result<T> = std::result::Result<T, Fault>;

/// Names what was tried in an error.
fn on<T>(what: &str, path: &Path, result: io::Result<T>) -> Result<T> {
    result.map_err(|source| Fault::Io { what: format!("{what} {}", path.display()), source })
}

impl Worker {
    /// A process that works for `time`.
    pub fn new(mount: &Path, number: u32, command: &Path, time: Duration, seed: u64) -> Worker {
        let rng = Rng::new(seed ^ u64::from(number) << 40);
        let (mount, command) = (mount.to_owned(), command.to_owned());
        Worker { mount, number, command, until: Instant::now() + time, rng, done: 0 }
    }

    /// Works until its time is over.
    pub fn run(&mut self, kind: Kind) -> Result<()> {
        let dir = match kind {
            Kind::Shared => self.mount.join("shared"),
            _ => self.mount.join(format!("{}-{}", kind.name(), self.number)),
        };
        match std::fs::create_dir(&dir) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            made => on("mkdir", &dir, made)?,
        }
        match kind {
            Kind::Stress => stress::Stress::new(dir).run(self),
            Kind::Shared => stress::shared(self, &dir),
            Kind::Tar => tools::tar(self, &dir),
            Kind::Dbench => tools::dbench(self, &dir),
            Kind::Snapshots => tools::snapshots(self, &dir),
            Kind::Journal => tools::journal(self, &dir),
            Kind::Large => tools::large(self, &dir),
            Kind::Sync => tools::sync(self),
        }
    }

    fn goes_on(&self) -> bool {
        Instant::now() < self.until
    }

    fn left(&self) -> Duration {
        self.until.saturating_duration_since(Instant::now())
    }
}
