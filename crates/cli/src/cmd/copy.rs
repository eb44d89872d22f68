//! Copying: what `cp` does, and `mv` where renaming does not reach.
//!
//! Directories that are to keep owner and mode are made first with permissions for the copier alone, and get their own mode and
//! times when they are full. Holes stay holes. Data is shared instead of copied where source and destination are in one filesystem. A
//! symbolic link in the destination is replaced, never followed: an image that is copied out cannot write through one. Only the one that
//! was named as the destination of `cp` is followed, by `cp` itself. Devices, pipes
//! and sockets of this machine are neither written to nor replaced, unless it is they that were named.

use std::collections::HashMap;
use std::io::{self, IsTerminal, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use rustix::io::Errno;

use super::files::{Entered, Entries, Failures};
use crate::args::Globals;
use crate::error::Failure;
use crate::interrupted;
use crate::quote;
use crate::vnode::{
    self, Facts, FileError, Kind, New, Session, Target, Vnode, may_be_overwritten, refuse_itself,
    this_umask,
};

/// Bytes moved at a time.
const PIECE: u64 = 4 << 20;

/// How to copy.
#[derive(Clone, Copy, Debug)]
pub struct How {
    /// Owners, modes and times are kept.
    pub preserve: bool,
    /// Extended attributes and hard links are kept too.
    pub everything: bool,
    /// What is there is kept.
    pub no_clobber: bool,
    /// Of pipes and devices of this machine what comes out of them, not they themselves.
    pub contents: bool,
}

impl How {
    /// Nothing may get lost.
    pub fn everything() -> How {
        How { preserve: true, everything: true, no_clobber: false, contents: false }
    }
}

/// How far a long copy has come, on standard error where that is a terminal.
pub struct Progress {
    bar: ProgressBar,
    _ticker: Option<Ticker>,
}

/// Keeps a bar moving while nothing is told of. The bar's own way of doing so panics where the system has no thread to give.
struct Ticker {
    over: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl Ticker {
    /// Begins, if there is a thread for it.
    fn start(bar: ProgressBar) -> Option<Ticker> {
        let over = Arc::new(AtomicBool::new(false));
        let ended = over.clone();
        let tick = move || {
            while !ended.load(Ordering::Acquire) {
                bar.tick();
                std::thread::park_timeout(Duration::from_millis(200));
            }
        };
        let thread = std::thread::Builder::new().spawn(tick).ok()?;
        Some(Ticker { over, thread })
    }
}

impl Drop for Ticker {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Release);
        self.thread.thread().unpark();
    }
}

impl Progress {
    /// Shows nothing until there is something to show.
    pub fn new(globals: &Globals) -> Progress {
        Progress::of(globals, "{spinner} {bytes} copied in {elapsed}, {bytes_per_sec}  {wide_msg}")
    }

    /// That something takes its time, of which nothing more is known.
    pub fn spinner(globals: &Globals, what: &'static str) -> Progress {
        let progress = Progress::of(globals, "{spinner} {wide_msg}");
        progress.bar.set_message(what);
        progress
    }

    /// Of work in parts, which says how far it is by [`Progress::at`].
    pub fn of_parts(globals: &Globals) -> Progress {
        Progress::of(globals, "{spinner} {msg}: {percent}% {wide_bar} {elapsed}")
    }

    /// Of work on files or the like, of which each is told by [`Progress::one`].
    pub fn counted(globals: &Globals, what: &'static str) -> Progress {
        let progress = Progress::of(globals, "{spinner} {human_pos} {msg} in {elapsed}");
        progress.bar.set_message(what);
        progress
    }

    /// One more is done.
    pub fn one(&self) {
        if !self.bar.is_hidden() {
            self.bar.inc(1);
        }
    }

    /// How far a part is.
    pub fn at(&self, what: &'static str, done: u64, total: u64) {
        self.bar.set_message(what);
        self.bar.set_length(total.max(done));
        self.bar.set_position(done);
    }

    fn of(globals: &Globals, template: &str) -> Progress {
        let bar = ProgressBar::no_length();
        if globals.quiet || !io::stderr().is_terminal() {
            bar.set_draw_target(ProgressDrawTarget::hidden());
        } else if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style);
            let ticker = Ticker::start(bar.clone());
            return Progress { bar, _ticker: ticker };
        }
        Progress { bar, _ticker: None }
    }

    /// What is being done.
    pub fn say(&self, what: String) {
        self.bar.set_message(quote::harmless(&what).into_owned());
    }

    fn file(&self, vnode: &Vnode) {
        // The names of all that is deep in a tree would take longer than to copy it.
        if !self.bar.is_hidden() {
            self.bar.set_message(vnode.to_string());
        }
    }

    fn bytes(&self, count: u64) {
        self.bar.inc(count);
    }

    /// The work is done.
    pub fn finish(&self) {
        self.bar.finish_and_clear();
    }
}

/// The last name of what a target names; `None` for the top of an image and for `.`, `..` and `/`.
pub fn base_name(target: &Target) -> Option<Vec<u8>> {
    let bytes = match target {
        Target::Host(path) => {
            let bytes = path.as_os_str().as_bytes();
            // `dir/.` means what is in it.
            if bytes.ends_with(b"/.") || bytes == b"." {
                return None;
            }
            path.file_name()?.as_bytes().to_vec()
        }
        Target::Image { path, .. } => path.clone(),
    };
    let name = bytes.rsplit(|byte| *byte == b'/').find(|name| !name.is_empty())?;
    (!matches!(name, b"." | b"..")).then(|| name.to_vec())
}

/// Where something called `name` goes: into the target if that is a directory, otherwise it gets the target's name. `new`: what is
/// tried, and with what.
pub fn destination(
    session: &mut Session<'_>,
    target: &Target,
    name: Option<Vec<u8>>,
    must_be_directory: bool,
    new: (&str, Kind),
) -> Result<(Vnode, Option<Vec<u8>>), Failure> {
    match session.find(target, true) {
        Ok(vnode) if vnode.is_directory().map_err(|why| vnode.failure("cannot read", why))? => {
            Ok((vnode, name))
        }
        Ok(vnode) if must_be_directory => Err(vnode.failure("cannot copy to", "Not a directory")),
        Err(failure) if must_be_directory => Err(failure),
        _ => {
            let (parent, name) = new_entry(session, target, new)?;
            Ok((parent, Some(name)))
        }
    }
}

/// The directory and the name there that a target stands for, whatever is there. With a slash at its end it is one for directories
/// only.
pub fn new_entry(
    session: &mut Session<'_>,
    target: &Target,
    (what, kind): (&str, Kind),
) -> Result<(Vnode, Vec<u8>), Failure> {
    session.may_be_overwritten(target)?;
    let (parent, name) = session.find_parent(target)?;
    if kind != Kind::Directory && target.ends_with_slash() {
        return Err(Failure::new(what, target.shown(), "Not a directory"));
    }
    Ok((parent, name))
}

/// Whether a file's content is what comes until it ends: also that of files whose length the system does not know.
fn flows(facts: &Facts) -> bool {
    match facts.kind {
        Kind::Fifo | Kind::Character | Kind::Block => true,
        Kind::Regular => facts.size == 0,
        _ => false,
    }
}

/// Whether its owner may not write to a file.
fn is_read_only(facts: &Facts) -> bool {
    facts.kind == Kind::Regular && facts.mode & 0o200 == 0
}

/// Whether both are pipes, sockets, or the same device: there is nothing to copy but attributes.
fn is_twin(one: &Facts, other: &Facts) -> bool {
    one.kind == other.kind
        && match one.kind {
            Kind::Fifo | Kind::Socket => true,
            Kind::Character | Kind::Block => one.device == other.device,
            Kind::Regular | Kind::Directory | Kind::Symlink => false,
        }
}

/// Why a file is not whole.
struct Part {
    why: FileError,
    /// Whether what was there is gone.
    written: bool,
}

/// What is still to be copied from a directory, and the one that it goes into.
struct Level {
    to: Vnode,
    entries: Entries,
}

/// A copy under way.
pub struct Copying<'a> {
    how: How,
    globals: &'a Globals,
    progress: &'a Progress,
    /// What went wrong so far.
    pub failures: Failures<'a>,
    /// Files that were copied, and what could not be.
    copied: u64,
    failed: u64,
    /// Whether a signal came while there was more to do.
    stopped: bool,
    /// Where files with several names went, by where they came from.
    links: HashMap<(PathBuf, u64, u64), Vnode>,
    /// Directories that were made: their modes and times come last, the deepest first.
    full: Vec<(Vnode, Vnode, Facts)>,
    /// The directories made at the top, which a copy into itself would meet.
    made: Vec<Vnode>,
    entered: Entered,
    root: bool,
}

impl<'a> Copying<'a> {
    /// Nothing copied yet.
    pub fn new(how: How, globals: &'a Globals, progress: &'a Progress) -> Copying<'a> {
        Copying {
            how,
            globals,
            progress,
            failures: Failures::new(globals),
            copied: 0,
            failed: 0,
            stopped: false,
            links: HashMap::new(),
            full: Vec::new(),
            made: Vec::new(),
            entered: Entered::default(),
            root: rustix::process::geteuid().is_root(),
        }
    }

    /// The options that every command takes.
    pub fn globals(&self) -> &'a Globals {
        self.globals
    }

    /// Whether to end here, with more to do: a signal has come.
    pub fn stops(&mut self) -> bool {
        self.stopped |= interrupted::signal().is_some();
        self.stopped
    }

    /// Says what could not be copied, and goes on.
    pub fn note(&mut self, done: Result<(), Failure>, out: &mut dyn Write) -> Result<(), Failure> {
        self.failed += u64::from(done.is_err());
        self.failures.note(done, out)
    }

    /// How much could not be copied, and whether there was more to do.
    pub fn not_copied(&self) -> (u64, bool) {
        (self.failed, self.stopped)
    }

    /// Gives directories their own modes and times.
    pub fn settle(&mut self, out: &mut dyn Write) -> Result<(), Failure> {
        while let Some((from, to, facts)) = self.full.pop() {
            let done = self.attributes(&from, &to, &facts);
            self.note(done, out)?;
        }
        Ok(())
    }

    /// Ends; fails if anything failed, and says of how much.
    pub fn end(mut self) -> Result<(), Failure> {
        if let Some(signal) = interrupted::signal().filter(|_| self.stopped) {
            return Err(Failure::interrupted(signal, self.copied, self.failed));
        }
        if self.failed > 0 && self.copied + self.failed > 1 {
            self.failures.say(&Failure::not_all_copied(self.copied, self.failed));
        }
        self.failures.end()
    }

    /// Copies something into a directory under a name.
    pub fn copy(
        &mut self,
        from: &Vnode,
        directory: &Vnode,
        name: &[u8],
        out: &mut dyn Write,
    ) -> Result<(), Failure> {
        interrupted::hold();
        self.entered = Entered::default();
        match self.node(from, directory, name, 0, out)? {
            Some(level) => self.below(level, out),
            None => Ok(()),
        }
    }

    /// Copies what is in a directory into another one, which stands for it and gets its attributes.
    pub fn content(
        &mut self,
        from: &Vnode,
        to: &Vnode,
        out: &mut dyn Write,
    ) -> Result<(), Failure> {
        interrupted::hold();
        let facts = from.facts().map_err(|why| from.failure("cannot read", why))?;
        self.made.push(to.clone());
        if self.how.preserve {
            self.full.push((from.clone(), to.clone(), facts));
        }
        self.entered = Entered::default();
        self.entered.enter(from, &facts, 0, "cannot copy")?;
        let level = self.entries(from, to, out)?;
        self.below(level, out)
    }

    /// Copies what is in a directory, with all that is below it.
    fn below(&mut self, level: Level, out: &mut dyn Write) -> Result<(), Failure> {
        let mut levels = vec![level];
        loop {
            let depth = levels.len();
            let Some(level) = levels.last_mut() else { return Ok(()) };
            let Some((name, child)) = level.entries.next() else {
                levels.pop();
                continue;
            };
            if self.stops() {
                return Ok(());
            }
            let done = match self.is_made(&child) {
                true => Err(child.failure("cannot copy", "a directory does not go into itself")),
                false => self.node(&child, &level.to, &name, depth, out),
            };
            match done {
                Ok(next) => levels.extend(next),
                Err(failure) => self.note(Err(failure), out)?,
            }
        }
    }

    /// Copies a file, or makes a directory; what is in it follows.
    fn node(
        &mut self,
        from: &Vnode,
        directory: &Vnode,
        name: &[u8],
        depth: usize,
        out: &mut dyn Write,
    ) -> Result<Option<Level>, Failure> {
        let facts = from.facts().map_err(|why| from.failure("cannot read", why))?;
        let place = || directory.entry_name(name);
        let existing =
            directory.child(name).map_err(|why| Failure::new("cannot copy to", place(), why))?;
        if let Some(existing) = &existing {
            if facts.kind != Kind::Directory && self.how.no_clobber {
                return Ok(None);
            }
            if existing.is_same(from).map_err(|why| from.failure("cannot read", why))? {
                let what = format!("cannot copy {from} to");
                return Err(Failure::new(what, place(), "they are the same file"));
            }
        }
        self.progress.file(from);
        if self.globals.talks_much() {
            writeln!(out, "{from} -> {}", place())?;
        }
        match facts.kind {
            Kind::Directory => {
                self.entered.enter(from, &facts, depth, "cannot copy")?;
                let to = self.directory(from, &facts, directory, name, existing)?;
                if depth == 0 {
                    self.made.push(to.clone());
                }
                self.entries(from, &to, out).map(Some)
            }
            _ => self.file(from, &facts, directory, name, existing).map(|()| None),
        }
    }

    /// The directory that a directory is copied to, made if it is not there.
    fn directory(
        &mut self,
        from: &Vnode,
        facts: &Facts,
        directory: &Vnode,
        name: &[u8],
        existing: Option<Vnode>,
    ) -> Result<Vnode, Failure> {
        let place = || directory.entry_name(name);
        match existing {
            Some(to) if to.is_directory().map_err(|why| to.failure("cannot read", why))? => {
                if self.how.preserve {
                    self.full.push((from.clone(), to.clone(), *facts));
                }
                Ok(to)
            }
            Some(to) => {
                let why = "it is there and no directory";
                Err(Failure::new(format!("cannot copy {from} to"), to, why))
            }
            None => {
                let made = directory.make(name, &self.new_directory(facts));
                let to = made.map_err(|why| Failure::new("cannot make", place(), why))?;
                if self.how.preserve {
                    self.full.push((from.clone(), to.clone(), *facts));
                }
                Ok(to)
            }
        }
    }

    fn entries(&mut self, from: &Vnode, to: &Vnode, out: &mut dyn Write) -> Result<Level, Failure> {
        let listed = from.list().map_err(|why| from.failure("cannot list", why))?;
        for why in listed.passed {
            self.note(Err(from.failure("cannot list all of", why)), out)?;
        }
        Ok(Level { to: to.clone(), entries: listed.entries.into_iter() })
    }

    fn is_made(&self, vnode: &Vnode) -> bool {
        let same_world =
            |made: &&Vnode| made.image_node().is_some() == vnode.image_node().is_some();
        self.made.iter().filter(same_world).any(|made| made.is_same(vnode).unwrap_or(false))
    }

    fn file(
        &mut self,
        from: &Vnode,
        facts: &Facts,
        directory: &Vnode,
        name: &[u8],
        existing: Option<Vnode>,
    ) -> Result<(), Failure> {
        let refuse =
            |why| Failure::new(format!("cannot copy {from} to"), directory.entry_name(name), why);
        refuse_itself(from, directory, existing.as_ref())?;
        let flows = self.takes_contents(from, facts);
        let facts = &if flows { Facts { kind: Kind::Regular, ..*facts } } else { *facts };
        let existing = self.clear(facts, directory, name, existing)?;
        let key = (self.tree_of(from), facts.volume, facts.ino);
        if let Some(first) = self.links.get(&key) {
            if existing.is_some() {
                directory.unlink(name).map_err(refuse)?;
            }
            directory.link(name, first).map_err(refuse)?;
            self.copied += 1;
            return Ok(());
        }
        let is_new = existing.is_none();
        let to = match existing {
            Some(to) => to,
            None => directory.make(name, &self.new_file(from, facts)?).map_err(refuse)?,
        };
        if facts.kind == Kind::Regular
            && let Err(part) = self.fill(from, &to, facts, flows)
        {
            let failure = refuse(part.why.clone());
            return self.not_whole(&part, failure, directory, name, is_new);
        }
        if self.how.preserve {
            self.attributes(from, &to, facts)?;
        } else if is_new && is_read_only(facts) {
            let mode = facts.mode & 0o777 & !this_umask();
            to.set_mode(mode).map_err(|why| to.failure("cannot set attributes of", why))?;
        }
        if self.how.everything && facts.nlink > 1 {
            self.links.insert(key, to);
        }
        self.copied += 1;
        Ok(())
    }

    /// Fills a file with the content of another one.
    fn fill(&self, from: &Vnode, to: &Vnode, facts: &Facts, flows: bool) -> Result<(), Part> {
        let mut writer = to.writer().map_err(|why| Part { why, written: false })?;
        let done = match flows {
            true => self.flow(from, &mut *writer),
            false => self.data(from, to, facts, &mut *writer),
        };
        done.map_err(|why| Part { why, written: true })
    }

    /// Takes a new file away that is not whole, and is no failure where that was for a signal; says of another one what has become of it.
    fn not_whole(
        &mut self,
        part: &Part,
        failure: Failure,
        directory: &Vnode,
        name: &[u8],
        is_new: bool,
    ) -> Result<(), Failure> {
        let stopped = part.why.is(Errno::INTR) && self.stops();
        if !is_new {
            let hint = "What was there is written over, and what is there now is not whole.";
            return Err(if part.written { failure.hint(hint) } else { failure });
        }
        match directory.unlink(name) {
            Ok(()) if stopped => Ok(()),
            Ok(()) => Err(failure),
            Err(kept) => Err(failure.hint(format!("A part of it is there, and stays: {kept}."))),
        }
    }

    /// Whether of a file of this machine what comes out of it is copied, until it ends.
    pub fn takes_contents(&self, from: &Vnode, facts: &Facts) -> bool {
        self.how.contents && from.image_node().is_none() && flows(facts)
    }

    /// What tells the filesystem of a source from others.
    fn tree_of(&self, vnode: &Vnode) -> PathBuf {
        vnode.image_node().map_or_else(PathBuf::new, |(image, _)| image.device().to_owned())
    }

    /// A regular file is written over, and what is the same already stays; everything else that may go makes room.
    fn clear(
        &self,
        facts: &Facts,
        directory: &Vnode,
        name: &[u8],
        existing: Option<Vnode>,
    ) -> Result<Option<Vnode>, Failure> {
        let Some(to) = existing else { return Ok(None) };
        let there = to.facts().map_err(|why| to.failure("cannot read", why))?;
        if is_twin(&there, facts) {
            return Ok(Some(to));
        }
        may_be_overwritten(&to)?;
        match (there.kind, facts.kind) {
            (Kind::Directory, _) => Err(to.failure("cannot copy to", "Is a directory")),
            (Kind::Regular, Kind::Regular) => Ok(Some(to)),
            _ => {
                directory.unlink(name).map_err(|why| to.failure("cannot replace", why))?;
                Ok(None)
            }
        }
    }

    /// Until it is full, a directory that is to keep its mode is for the copier alone.
    pub fn new_directory(&self, facts: &Facts) -> New {
        let mode = if self.how.preserve { 0o700 } else { facts.mode & 0o777 | 0o700 };
        New::plain(Kind::Directory, mode)
    }

    fn new_file(&self, from: &Vnode, facts: &Facts) -> Result<New, Failure> {
        if facts.kind == Kind::Symlink {
            let target = from.read_link().map_err(|why| from.failure("cannot read", why))?;
            return Ok(New::symlink(target));
        }
        // Until its owner is set, a file that is to keep its mode is for the copier alone.
        let mode = match self.how.preserve {
            true => 0o600,
            // It is opened once more to be filled.
            false if is_read_only(facts) => facts.mode & 0o777 | 0o200,
            false => facts.mode & 0o777,
        };
        Ok(New { device: facts.device, ..New::plain(facts.kind, mode) })
    }

    /// Copies the content as it comes, until it ends.
    fn flow(&self, from: &Vnode, writer: &mut dyn vnode::Write) -> Result<(), FileError> {
        let mut content = from.content()?;
        let mut buffer = vec![0; PIECE as usize];
        let mut offset = 0u64;
        loop {
            interrupted::check()?;
            let len = match content.read(&mut buffer) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                read => read?,
            };
            if len == 0 {
                return Ok(());
            }
            writer.write_at(offset, buffer.get(..len).unwrap_or_default())?;
            offset = offset.saturating_add(len as u64);
            self.progress.bytes(len as u64);
        }
    }

    /// Writes the content into a pipe or device of this machine.
    pub fn pour(&self, from: &Vnode, to: &Vnode) -> Result<(), Failure> {
        interrupted::let_go();
        let refuse = |why| Failure::new(format!("cannot copy {from} to"), to, why);
        let mut content = from.content().map_err(refuse)?;
        let mut sink = to.sink().map_err(refuse)?;
        io::copy(&mut content, &mut sink).map_err(|error| refuse(error.into()))?;
        Ok(())
    }

    fn data(
        &self,
        from: &Vnode,
        to: &Vnode,
        facts: &Facts,
        writer: &mut dyn vnode::Write,
    ) -> Result<(), FileError> {
        if to.share(from, facts.size)? {
            self.progress.bytes(facts.size);
            return Ok(());
        }
        let mut reader = from.reader()?;
        let mut buffer = vec![0; PIECE.min(facts.size.max(1)) as usize];
        let mut offset = 0;
        while let Some((start, end)) = reader.next_data(offset)? {
            offset = start;
            while offset < end {
                interrupted::check()?;
                let want = (end - offset).min(buffer.len() as u64) as usize;
                let buffer = buffer.get_mut(..want).unwrap_or_default();
                let len = reader.read_at(offset, buffer)?;
                if len == 0 {
                    break;
                }
                writer.write_at(offset, buffer.get(..len).unwrap_or_default())?;
                offset = offset.saturating_add(len as u64);
                self.progress.bytes(len as u64);
            }
            if offset < end {
                // It became shorter meanwhile.
                return writer.set_len(offset);
            }
        }
        writer.set_len(facts.size.max(offset))
    }

    /// Gives a copy what the original has: owner first (which clears set-user-id), times last.
    fn attributes(&self, from: &Vnode, to: &Vnode, facts: &Facts) -> Result<(), Failure> {
        let refuse = |why| to.failure("cannot set attributes of", why);
        let owned = match to.set_owner(Some(facts.uid), Some(facts.gid)) {
            // An ordinary user keeps what he may, as cp does.
            Err(error) if !self.root && error.is(Errno::PERM) => false,
            result => {
                result.map_err(refuse)?;
                true
            }
        };
        if self.how.everything {
            self.xattrs(from, to)?;
        }
        if facts.kind != Kind::Symlink {
            let mode = if owned { facts.mode } else { facts.mode & 0o1777 };
            to.set_mode(mode).map_err(refuse)?;
        }
        to.set_times(facts.atime, facts.mtime).map_err(refuse)
    }

    fn xattrs(&self, from: &Vnode, to: &Vnode) -> Result<(), Failure> {
        for (name, value) in from.xattrs().map_err(|why| from.failure("cannot read", why))? {
            match to.set_xattr(&name, &value) {
                // Not every filesystem has every kind, not every user may set them, and what is written in place cannot be compressed.
                Err(error)
                    if error.is(Errno::NOTSUP)
                        || error.is(Errno::PERM)
                        || error.is(Errno::INVAL) && name.starts_with(b"btrfs.") =>
                {
                    if !self.globals.quiet {
                        let name = quote::shown(&name);
                        complain!("buttress: warning: {to}: attribute {name} not kept: {error}");
                    }
                }
                result => result.map_err(|why| to.failure("cannot set attributes of", why))?,
            }
        }
        Ok(())
    }
}
