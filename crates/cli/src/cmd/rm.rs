//! `rm`: removes files, and with `-r` directories with all that is in them.
//!
//! Subvolumes are not removed on the way: deleting one is `subvolume delete`, and whoever means it says it.

use std::ffi::OsString;
use std::io::Write;

use buttress_device::Access;
use clap::Args;
use rustix::io::Errno;

use super::files::{Entered, Failures, session};
use super::ls::DEPTH_MAX;
use crate::args::Globals;
use crate::error::Failure;
use crate::spot::{Session, Spot, Target};

/// Arguments of `rm`.
#[derive(Debug, Args)]
pub struct Rm {
    /// DEVICE:PATH or a path on a live mount
    #[arg(required = true, value_name = "TARGET")]
    targets: Vec<OsString>,
    /// Directories with all that is in them
    #[arg(short, long, visible_short_alias = 'R')]
    recursive: bool,
    /// What is not there is fine
    #[arg(short, long)]
    force: bool,
    /// Empty directories too
    #[arg(short, long)]
    dir: bool,
}

/// Removes.
pub fn run(args: &Rm, globals: &Globals, out: &mut dyn Write) -> Result<(), Failure> {
    let mut failures = Failures::new(globals);
    session(globals, Access::ReadWrite, |session| {
        for target in &args.targets {
            let target = Target::any(target, globals);
            let done = one(&target, args, globals, session, &mut failures, out);
            failures.note(done, out)?;
        }
        Ok(())
    })?;
    failures.end()
}

fn one(
    target: &Target,
    args: &Rm,
    globals: &Globals,
    session: &mut Session<'_>,
    failures: &mut Failures<'_>,
    out: &mut dyn Write,
) -> Result<(), Failure> {
    let found = session.find_parent(target).and_then(|(parent, name)| {
        let refuse = |why| Failure::new("cannot remove", parent.entry_name(&name), why);
        let spot = parent.child(&name).map_err(refuse)?;
        let spot = spot.ok_or_else(|| refuse(Errno::NOENT.into()))?;
        Ok((parent, name, spot))
    });
    let (parent, name, spot) = match found {
        Err(failure) if args.force && failure.is_about(Errno::NOENT) => return Ok(()),
        other => other?,
    };
    let mut removal = Removal { args, globals, failures, out, entered: Entered::default() };
    match args.recursive || args.dir {
        false if spot.is_directory().map_err(|why| spot.failure("cannot remove", why))? => {
            Err(spot
                .failure("cannot remove", "Is a directory")
                .hint("To remove it with all that is in it, add -r."))
        }
        _ => removal.remove(&parent, &name, &spot, 0),
    }
}

/// Removes what an earlier step has found, with everything below it.
pub fn remove_tree(
    parent: &Spot,
    name: &[u8],
    spot: &Spot,
    globals: &Globals,
    out: &mut dyn Write,
) -> Result<(), Failure> {
    let args = Rm { targets: Vec::new(), recursive: true, force: false, dir: false };
    let mut failures = Failures::new(globals);
    let entered = Entered::default();
    Removal { args: &args, globals, failures: &mut failures, out, entered }
        .remove(parent, name, spot, 0)?;
    failures.end()
}

struct Removal<'a, 'b> {
    args: &'a Rm,
    globals: &'a Globals,
    failures: &'a mut Failures<'b>,
    out: &'a mut dyn Write,
    entered: Entered,
}

impl Removal<'_, '_> {
    fn remove(
        &mut self,
        parent: &Spot,
        name: &[u8],
        spot: &Spot,
        depth: usize,
    ) -> Result<(), Failure> {
        let facts = spot.facts().map_err(|why| spot.failure("cannot remove", why))?;
        let refuse = |why| spot.failure("cannot remove", why);
        if facts.is_subvolume() && spot.image_node().is_some() {
            return Err(spot
                .failure("cannot remove", "it is a subvolume")
                .hint(format!("To delete it: buttress subvolume delete {spot}")));
        }
        match facts.kind {
            crate::spot::Kind::Directory => {
                if self.args.recursive {
                    self.entered.enter(spot, &facts, "cannot remove")?;
                    self.empty(spot, depth)?;
                }
                parent.remove_directory(name).map_err(refuse)?;
            }
            _ => parent.unlink(name).map_err(refuse)?,
        }
        if self.globals.talks_much() {
            writeln!(self.out, "removed {spot}")?;
        }
        Ok(())
    }

    /// Removes everything in a directory; what cannot be removed does not keep the rest.
    fn empty(&mut self, spot: &Spot, depth: usize) -> Result<(), Failure> {
        if depth > DEPTH_MAX {
            return Err(spot.failure("cannot remove", "directories are nested too deeply"));
        }
        let listed = spot.list().map_err(|why| spot.failure("cannot list", why))?;
        let mut kept = !listed.passed.is_empty();
        self.failures.note_passed(spot, listed.passed, self.out)?;
        for (name, child) in listed.entries {
            let removed = self.remove(spot, &name, &child, depth + 1);
            kept |= removed.is_err();
            self.failures.note(removed, self.out)?;
        }
        if kept { Err(Failure::said()) } else { Ok(()) }
    }
}
