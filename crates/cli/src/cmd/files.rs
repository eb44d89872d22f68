//! What the commands on files share: a session around them, going on after a failure, and going through directories.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::io::Write;

use buttress_device::Access;

use crate::args::Globals;
use crate::error::Failure;
use crate::vfs::Vfs;
use crate::vnode::{Facts, FileError, Kind, Session, Target, Vnode};

/// Does something in a session, and closes it whatever came of it.
pub fn session<'a, T>(
    globals: &'a Globals,
    access: Access,
    action: impl FnOnce(&mut Session<'a>) -> Result<T, Failure>,
) -> Result<T, Failure> {
    let mut session = Session::new(globals, access);
    let done = action(&mut session);
    let closed = session.close();
    let value = done?;
    closed?;
    Ok(value)
}

/// The same with the filesystem that a target is in.
pub fn with_vfs<T>(
    target: &OsStr,
    access: Access,
    globals: &Globals,
    action: impl FnOnce(&Vfs) -> Result<T, Failure>,
) -> Result<T, Failure> {
    session(globals, access, |session| {
        let vnode = session.find(&Target::any(target, globals), true)?;
        action(&Vfs::of(&vnode)?)
    })
}

/// Says failures as they come, and remembers that there were some.
pub struct Failures<'a> {
    globals: &'a Globals,
    some: bool,
}

impl<'a> Failures<'a> {
    /// None yet.
    pub fn new(globals: &'a Globals) -> Failures<'a> {
        Failures { globals, some: false }
    }

    /// Says a failure and goes on; a reader of ours that went away ends everything.
    pub fn note(
        &mut self,
        result: Result<(), Failure>,
        out: &mut dyn Write,
    ) -> Result<(), Failure> {
        match result {
            Err(failure) if failure.is_broken_pipe() => Err(failure),
            Err(failure) => {
                out.flush()?;
                self.say(&failure);
                Ok(())
            }
            Ok(()) => Ok(()),
        }
    }

    /// Says what damage hides in a directory.
    pub fn note_passed(
        &mut self,
        directory: &Vnode,
        passed: Vec<FileError>,
        out: &mut dyn Write,
    ) -> Result<(), Failure> {
        let mut each = passed.into_iter().map(|why| directory.failure("cannot list all of", why));
        each.try_for_each(|failure| self.note(Err(failure), out))
    }

    /// Says a failure.
    pub fn say(&mut self, failure: &Failure) {
        self.some = true;
        if !failure.is_said() {
            failure.say(self.globals.format);
        }
    }

    /// Fails if there were any.
    pub fn end(self) -> Result<(), Failure> {
        if self.some { Err(Failure::said()) } else { Ok(()) }
    }
}

/// Directories that were gone into. In an image that somebody made on purpose, directories contain themselves, or so many
/// ways lead to them that no time would suffice for all. On this machine, where one may be mounted in several places, only those count
/// that contain the next one.
#[derive(Debug, Default)]
pub struct Entered {
    seen: HashSet<(u64, u64)>,
    /// On this machine: those on the way here.
    above: Vec<(u64, u64)>,
}

impl Entered {
    /// Goes into a directory for the first time, so many below the first one. `what` is tried there.
    pub fn enter(
        &mut self,
        vnode: &Vnode,
        facts: &Facts,
        depth: usize,
        what: &str,
    ) -> Result<(), Failure> {
        let number = (facts.volume, facts.ino);
        let Some((_, node)) = vnode.image_node() else {
            for left in self.above.drain(depth.min(self.above.len())..) {
                self.seen.remove(&left);
            }
            if !self.seen.insert(number) {
                return Err(vnode.failure(what, "this directory contains itself"));
            }
            self.above.push(number);
            return Ok(());
        };
        // What stands for a subvolume in a snapshot is empty, and may be there often.
        if !node.is_stub() && !self.seen.insert(number) {
            return Err(vnode
                .failure(what, "more than one way leads to this directory")
                .hint("The filesystem is damaged: `buttress check` says how."));
        }
        Ok(())
    }
}

/// What is done to a file, or a tree of them.
pub type Action<'a> = dyn FnMut(&Vnode, &Facts, &mut dyn Write) -> Result<(), Failure> + 'a;

/// A file, and with `recursive` all that is below it, a directory before what is in it.
pub struct Tree {
    what: &'static str,
    recursive: bool,
    entered: Entered,
}

impl Tree {
    /// `what` is tried with each of them.
    pub fn new(what: &'static str, recursive: bool) -> Tree {
        Tree { what, recursive, entered: Entered::default() }
    }

    /// Does something with each of them; what fails does not keep it from the others.
    pub fn each(
        mut self,
        vnode: &Vnode,
        failures: &mut Failures<'_>,
        out: &mut dyn Write,
        action: &mut Action<'_>,
    ) -> Result<(), Failure> {
        // What is still to come, of each directory on the way here.
        let mut levels = vec![self.visit(vnode, 0, failures, out, action)?];
        while let Some(level) = levels.last_mut() {
            let Some((_, child)) = level.next() else {
                levels.pop();
                continue;
            };
            match self.visit(&child, levels.len(), failures, out, action) {
                Ok(below) => levels.push(below),
                Err(failure) => failures.note(Err(failure), out)?,
            }
        }
        Ok(())
    }

    /// Does it with one of them; what is in it, if that is to follow.
    fn visit(
        &mut self,
        vnode: &Vnode,
        depth: usize,
        failures: &mut Failures<'_>,
        out: &mut dyn Write,
        action: &mut Action<'_>,
    ) -> Result<Entries, Failure> {
        let facts = vnode.facts().map_err(|why| vnode.failure(self.what, why))?;
        let goes_on = self.recursive && facts.kind == Kind::Directory;
        if goes_on {
            self.entered.enter(vnode, &facts, depth, self.what)?;
        }
        action(vnode, &facts, out)?;
        if !goes_on {
            return Ok(Vec::new().into_iter());
        }
        let listed = vnode.list().map_err(|why| vnode.failure("cannot list", why))?;
        failures.note_passed(vnode, listed.passed, out)?;
        Ok(listed.entries.into_iter())
    }
}

/// What is in a directory.
pub type Entries = std::vec::IntoIter<(Vec<u8>, Vnode)>;
