//! One writer: random operations in its own subvolume until the daemon is gone.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use buttress_testkit::mapped::Mapped;

use crate::daemon::try_buttress;
use crate::journal::{Journal, Node, Op, State};
use crate::random::Random;

/// Most files a writer keeps.
const FILES_MAX: usize = 60;
/// Most directories a writer keeps.
const DIRECTORIES_MAX: usize = 20;
/// Most snapshots a writer keeps.
const SNAPSHOTS_MAX: usize = 3;
/// Longest file, in bytes.
const LENGTH_MAX: usize = 256 << 10;
/// Bytes of a page.
const PAGE: usize = 4096;
/// Removed files kept open, at most.
const HELD_MAX: usize = 8;

/// Where the writers' snapshots are.
pub const SNAPSHOTS: &str = "snapshots";

/// The subvolume of a writer.
pub fn subvolume(number: usize) -> String {
    format!("writer{number}")
}

/// A write to a file that is mapped.
struct MappedWrite {
    op: Op,
    mapped: Mapped,
    at: usize,
    data: Vec<u8>,
}

pub struct Writer<'a> {
    number: usize,
    mountpoint: PathBuf,
    random: Random,
    /// For names that were never used before, also in earlier rounds.
    names: u64,
    state: State,
    journal: Journal,
    /// Files without a name.
    held: Vec<File>,
    killed: &'a AtomicBool,
}

impl<'a> Writer<'a> {
    pub fn new(
        number: usize,
        mountpoint: &Path,
        start: State,
        seed: u64,
        killed: &'a AtomicBool,
    ) -> Self {
        let mut random = Random::new(seed);
        Writer {
            number,
            mountpoint: mountpoint.to_owned(),
            names: random.next() >> 16,
            random,
            state: start.clone(),
            journal: Journal { start, ops: Vec::new(), acknowledged: 0, synced: Vec::new() },
            held: Vec::new(),
            killed,
        }
    }

    /// Works until the daemon is killed; the journal.
    pub fn work(mut self) -> Journal {
        while !self.killed.load(Ordering::SeqCst) {
            match self.step() {
                Ok(()) => {}
                Err(_) if self.killed.load(Ordering::SeqCst) => break,
                Err(error) => {
                    panic!("writer {}: {:?}: {error}", self.number, self.journal.ops.last());
                }
            }
        }
        self.journal
    }

    fn step(&mut self) -> io::Result<()> {
        match self.random.below(100) {
            0..20 => self.create(),
            20..40 => self.write(),
            40..50 => self.write_mapped(),
            50..55 => self.truncate(),
            55..62 => self.mkdir(),
            62..75 => self.rename(),
            75..85 => self.remove(),
            85..95 => self.fsync(),
            95..98 => self.snapshot(),
            _ => self.delete_snapshot(),
        }
    }

    /// A write within one page, through a mapping of the file: it is sent when it is unmapped, and whole.
    fn write_mapped(&mut self) -> io::Result<()> {
        let Some(MappedWrite { op, mapped, at, data }) = self.mapping()? else {
            return self.write();
        };
        self.ask(op, |_| mapped.write(at, &data))?;
        // Or by the snapshot, which has to have it.
        if self.random.below(3) == 0 && self.state.snapshots.len() < SNAPSHOTS_MAX {
            self.snapshot()?;
        }
        drop(mapped);
        // The kernel tells of an error with the next sync only; a kill shows in the next operation.
        Ok(())
    }

    /// A file mapped, and what is to be written to it.
    fn mapping(&mut self) -> io::Result<Option<MappedWrite>> {
        let Some((path, length)) = self.some_file() else { return Ok(None) };
        if length == 0 {
            return Ok(None);
        }
        let at = self.random.below(length as u64) as usize;
        let mut data = self.data();
        data.truncate((PAGE - at % PAGE).min(length - at));
        let file = OpenOptions::new().read(true).write(true).open(self.path(&path))?;
        let mapped = Mapped::shared(&file, length)?;
        Ok(Some(MappedWrite { op: Op::Write(path, at, data.clone()), mapped, at, data }))
    }

    /// Journals an operation, asks for it, and goes on from its result.
    fn ask(&mut self, op: Op, request: impl FnOnce(&mut Self) -> io::Result<()>) -> io::Result<()> {
        self.journal.ops.push(op);
        request(self)?;
        if let Some(op) = self.journal.ops.last() {
            self.state.apply(op);
        }
        Ok(())
    }

    fn create(&mut self) -> io::Result<()> {
        let path = self.new_path();
        let file = self.path(&path);
        if self.files().len() >= FILES_MAX {
            return self.remove();
        }
        self.ask(Op::Create(path), |_| {
            OpenOptions::new().write(true).create_new(true).open(file).map(drop)
        })
    }

    fn write(&mut self) -> io::Result<()> {
        let Some((path, length)) = self.some_file() else { return self.create() };
        let data = self.data();
        let file = self.path(&path);
        let append = length < LENGTH_MAX && self.random.below(2) == 0;
        let at = if append { length } else { self.random.below(length as u64 + 1) as usize };
        let at = if at + data.len() > LENGTH_MAX { 0 } else { at };
        let op = Op::Write(path, at, data.clone());
        self.ask(op, |_| {
            if at == length {
                return OpenOptions::new().append(true).open(file)?.write_all(&data);
            }
            OpenOptions::new().write(true).open(file)?.write_all_at(&data, at as u64)
        })
    }

    fn truncate(&mut self) -> io::Result<()> {
        let Some((path, length)) = self.some_file() else { return self.create() };
        let length = self.random.below(length as u64 + 5000);
        let file = self.path(&path);
        self.ask(Op::Truncate(path, length as usize), |_| {
            OpenOptions::new().write(true).open(file)?.set_len(length)
        })
    }

    fn mkdir(&mut self) -> io::Result<()> {
        if self.directories().len() >= DIRECTORIES_MAX {
            return self.remove();
        }
        let path = self.new_path();
        let directory = self.path(&path);
        self.ask(Op::Mkdir(path), |_| fs::create_dir(directory))
    }

    fn rename(&mut self) -> io::Result<()> {
        let from = self.some_path();
        let Some(from) = from else { return self.create() };
        let is_file = matches!(self.state.live.get(&from), Some(Node::File(_)));
        let over = if is_file && self.random.below(3) == 0 { self.some_file() } else { None };
        let to = over.map_or_else(|| self.new_path(), |(path, _)| path);
        if to == from || to.starts_with(&format!("{from}/")) {
            return Ok(());
        }
        let paths = (self.path(&from), self.path(&to));
        self.ask(Op::Rename(from, to), |_| fs::rename(paths.0, paths.1))
    }

    fn remove(&mut self) -> io::Result<()> {
        let Some(path) = self.some_path() else { return Ok(()) };
        let full = self.path(&path);
        if self.state.live.get(&path) == Some(&Node::Dir) {
            let inside = format!("{path}/");
            if self.state.live.keys().any(|other| other.starts_with(&inside)) {
                return Ok(());
            }
            return self.ask(Op::Remove(path), |_| fs::remove_dir(full));
        }
        if self.random.below(4) == 0 {
            self.held.push(OpenOptions::new().write(true).open(&full)?);
        }
        if self.held.len() > HELD_MAX {
            self.held.remove(0);
        }
        self.ask(Op::Remove(path), |_| fs::remove_file(full))?;
        match self.held.last() {
            Some(file) => file.write_all_at(b"nobody reads this", 9000),
            None => Ok(()),
        }
    }

    /// Makes a file or a directory durable.
    fn fsync(&mut self) -> io::Result<()> {
        let path = self.some_path().unwrap_or_default();
        File::open(self.path(&path))?.sync_all()?;
        self.journal.synced.push((self.journal.ops.len(), path));
        Ok(())
    }

    fn snapshot(&mut self) -> io::Result<()> {
        if self.state.snapshots.len() >= SNAPSHOTS_MAX {
            return self.delete_snapshot();
        }
        let name = format!("{}-{}", subvolume(self.number), self.new_name());
        let kind: &[&str] = if self.random.below(2) == 0 { &["-r"] } else { &[] };
        let words = [&["subvolume", "snapshot"], kind].concat();
        let paths = (self.mountpoint.join(subvolume(self.number)), self.snapshot_path(&name));
        self.ask(Op::Snapshot(name), |_| {
            try_buttress(&words, &[&paths.0, &paths.1]).map_err(io::Error::other)
        })?;
        // Which is a commit.
        self.journal.acknowledged = self.journal.ops.len();
        Ok(())
    }

    fn delete_snapshot(&mut self) -> io::Result<()> {
        let all: Vec<_> = self.state.snapshots.keys().cloned().collect();
        let Some(name) = self.random.one_of(&all).cloned() else { return Ok(()) };
        let path = self.snapshot_path(&name);
        self.ask(Op::DeleteSnapshot(name), |_| {
            try_buttress(&["subvolume", "delete"], &[&path]).map_err(io::Error::other)
        })
    }

    fn path(&self, path: &str) -> PathBuf {
        self.mountpoint.join(subvolume(self.number)).join(path)
    }

    fn snapshot_path(&self, name: &str) -> PathBuf {
        self.mountpoint.join(SNAPSHOTS).join(name)
    }

    fn new_name(&mut self) -> String {
        self.names += 1;
        format!("{:x}", self.names)
    }

    /// A name that is free, in some directory.
    fn new_path(&mut self) -> String {
        let name = self.new_name();
        let directories = self.directories();
        match self.random.one_of(&directories) {
            // Deep enough is deep enough.
            Some(directory) if directory.matches('/').count() < 4 => format!("{directory}/{name}"),
            _ => name,
        }
    }

    fn files(&self) -> Vec<String> {
        let live = self.state.live.iter();
        live.filter(|(_, node)| **node != Node::Dir).map(|(path, _)| path.clone()).collect()
    }

    fn directories(&self) -> Vec<String> {
        let live = self.state.live.iter();
        live.filter(|(_, node)| **node == Node::Dir).map(|(path, _)| path.clone()).collect()
    }

    fn some_path(&mut self) -> Option<String> {
        let all: Vec<_> = self.state.live.keys().collect();
        self.random.one_of(&all).map(|path| (*path).clone())
    }

    /// A file and its length.
    fn some_file(&mut self) -> Option<(String, usize)> {
        let files = self.files();
        let path = self.random.one_of(&files)?.clone();
        match self.state.live.get(&path)? {
            Node::File(bytes) => Some((path.clone(), bytes.len())),
            Node::Dir => None,
        }
    }

    /// Bytes that are not in any other write; from a few to many.
    fn data(&mut self) -> Vec<u8> {
        let bits = 4 + self.random.below(13);
        let length = 1 + self.random.below(1 << bits) as usize;
        let mark = self.random.next().to_le_bytes();
        mark.iter().copied().cycle().take(length).collect()
    }
}
