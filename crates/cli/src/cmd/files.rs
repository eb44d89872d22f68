//! What the commands on files share: a session around them, going on after a failure, and going through directories.

use std::collections::HashSet;
use std::io::Write;

use buttress_device::Access;

use crate::args::Globals;
use crate::error::Failure;
use crate::spot::{Facts, Session, Spot};

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
