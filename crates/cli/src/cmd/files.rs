//! What the commands on files share: a session around them, going on after a failure, and going through directories.

use std::collections::HashSet;
use std::io::Write;

use buttress_device::Access;

use super::ls::DEPTH_MAX;
use crate::args::Globals;
use crate::error::Failure;
use crate::spot::{Facts, Kind, Session, Spot, Trouble};

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
        directory: &Spot,
        passed: Vec<Trouble>,
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
/// ways lead to them that no time would suffice for all.
#[derive(Debug, Default)]
pub struct Entered(HashSet<(u64, u64)>);

impl Entered {
    /// Goes into a directory of an image for the first time; the system sees to its own directories. `what` is tried there.
    pub fn enter(&mut self, spot: &Spot, facts: &Facts, what: &str) -> Result<(), Failure> {
        match spot.image_node() {
            // What stands for a subvolume in a snapshot is empty, and may be there often.
            Some((_, node)) if !node.is_stub() && !self.0.insert((facts.volume, facts.ino)) => {
                Err(spot
                    .failure(what, "more than one way leads to this directory")
                    .hint("The filesystem is damaged: `buttress check` says how."))
            }
            _ => Ok(()),
        }
    }
}

/// What is done to a file, or a tree of them.
pub type Action<'a> = dyn FnMut(&Spot, &Facts, &mut dyn Write) -> Result<(), Failure> + 'a;

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
        spot: &Spot,
        failures: &mut Failures<'_>,
        out: &mut dyn Write,
        action: &mut Action<'_>,
    ) -> Result<(), Failure> {
        self.below(spot, 0, failures, out, action)
    }

    fn below(
        &mut self,
        spot: &Spot,
        depth: usize,
        failures: &mut Failures<'_>,
        out: &mut dyn Write,
        action: &mut Action<'_>,
    ) -> Result<(), Failure> {
        let refuse = |why: &dyn std::fmt::Display| spot.failure(self.what, why);
        let facts = spot.facts().map_err(|why| refuse(&why))?;
        let goes_on = self.recursive && facts.kind == Kind::Directory;
        if goes_on && depth > DEPTH_MAX {
            return Err(refuse(&"directories are nested too deeply"));
        }
        if goes_on {
            self.entered.enter(spot, &facts, self.what)?;
        }
        action(spot, &facts, out)?;
        if !goes_on {
            return Ok(());
        }
        let listed = spot.list().map_err(|why| spot.failure("cannot list", why))?;
        failures.note_passed(spot, listed.passed, out)?;
        for (_, child) in listed.entries {
            let done = self.below(&child, depth + 1, failures, out, action);
            failures.note(done, out)?;
        }
        Ok(())
    }
}
