//! `mv`: moves and renames; between filesystems and subvolumes it copies and then removes.

use std::ffi::OsString;
use std::io::Write;

use buttress_device::Access;
use clap::Args;
use rustix::io::Errno;

use super::copy::{Copying, How, Progress, base_name, destination};
use super::files::{Failures, session};
use super::rm::remove_tree;
use crate::args::Globals;
use crate::error::Failure;
use crate::spot::{Session, Spot, Target, may_be_overwritten};

/// Arguments of `mv`.
#[derive(Debug, Args)]
pub struct Mv {
    /// What to move, and where to as the last: DEVICE:PATH or ordinary paths
    #[arg(required = true, num_args = 2.., value_name = "PATH")]
    paths: Vec<OsString>,
    /// Keep what is there
    #[arg(short, long)]
    no_clobber: bool,
}

/// Moves.
pub fn run(args: &Mv, globals: &Globals, out: &mut dyn Write) -> Result<(), Failure> {
    let Some((last, sources)) = args.paths.split_last() else {
        return Err(Failure::usage("cannot move", "source and destination are needed"));
    };
    let progress = Progress::new(globals);
    let mut failures = Failures::new(globals);
    session(globals, Access::ReadWrite, |session| {
        let last = Target::any(last, globals);
        for source in sources {
            let source = Target::path(source);
            let done = one(&source, &last, sources.len(), args, globals, session, &progress, out);
            failures.note(done, out)?;
        }
        Ok(())
    })?;
    progress.finish();
    failures.end()
}

#[expect(clippy::too_many_arguments, reason = "each is one thing the user or the command decided")]
fn one(
    source: &Target,
    last: &Target,
    sources: usize,
    args: &Mv,
    globals: &Globals,
    session: &mut Session<'_>,
    progress: &Progress,
    out: &mut dyn Write,
) -> Result<(), Failure> {
    let (from, name) = session.find_parent(source)?;
    let missing =
        || Failure::new("cannot move", from.entry_name(&name), "No such file or directory");
    let spot = from
        .child(&name)
        .map_err(|why| Failure::new("cannot move", from.entry_name(&name), why))?
        .ok_or_else(missing)?;
    let (to, new_name) = destination(session, last, base_name(source), sources > 1)?;
    let new_name = new_name.unwrap_or_else(|| name.clone());
    let existing = to.child(&new_name).map_err(|why| to.failure("cannot look into", why))?;
    if existing.is_some() && args.no_clobber {
        return Ok(());
    }
    if let Some(existing) = &existing {
        may_be_overwritten(existing)?;
    }
    match from.rename(&name, &to, &new_name) {
        Err(trouble) if trouble.is(Errno::XDEV) => {
            across(&from, &name, &spot, &to, &new_name, globals, progress, out)?;
        }
        Err(trouble) => {
            let what = format!("cannot move {spot} to");
            return Err(Failure::new(what, to.entry_name(&new_name), trouble));
        }
        Ok(()) => {}
    }
    if globals.talks_much() {
        writeln!(out, "{spot} -> {}", to.entry_name(&new_name))?;
    }
    Ok(())
}

/// Copies with everything a file has, and removes the original when all of it is there.
#[expect(clippy::too_many_arguments, reason = "a source, a destination, and how to say things")]
fn across(
    from: &Spot,
    name: &[u8],
    spot: &Spot,
    to: &Spot,
    new_name: &[u8],
    globals: &Globals,
    progress: &Progress,
    out: &mut dyn Write,
) -> Result<(), Failure> {
    let mut copying = Copying::new(How::everything(), globals, progress);
    copying.copy(spot, to, new_name, out)?;
    copying.end()?;
    remove_tree(from, name, spot, globals, out)
}
