//! `filesystem`: the filesystem as a whole.

pub mod compsize;
pub mod df;
pub mod du;
pub mod label;
pub mod resize;
pub mod show;
pub mod trim;
pub mod usage;

use std::ffi::OsString;
use std::io::Write;
use std::path::PathBuf;

use buttress_device::Access;
use buttress_fuse::client;
use clap::{Args, Subcommand};

use super::files::{Failures, session};
use crate::args::Globals;
use crate::error::Failure;
use crate::output::{self, Format};
use crate::vfs::{Info, Vfs};
use crate::vnode::{FileError, Target};

/// The commands of this group.
#[derive(Debug, Subcommand)]
pub enum Filesystem {
    /// Print uuid, label and devices
    Show(show::Show),
    /// Print how full it is, in detail
    Usage(usage::UsageArgs),
    /// Print how full it is
    Df(df::Df),
    /// Print what compression and sharing save for files
    #[command(name = "compsize")]
    CompSize(compsize::CompSize),
    /// Print what files and directories take, and what of it only they have
    Du(du::Du),
    /// Print or set the label
    Label(label::Label),
    /// Make it larger or smaller
    Resize(resize::Resize),
    /// Give back what is free: an image takes less room on its disk, and a disk knows what it need not keep
    ///
    /// What lies in deleted files can then not be recovered any more. fstrim(8) does the same on a live mount.
    Trim(trim::Trim),
    /// Make everything durable that was done before
    Sync(Sync),
    /// Print what the process behind a live mount has done so far
    ///
    /// fsyncs are `fsyncs`; those that a tree log made durable are `log_syncs`, in `log_writes` logs; those that took a commit instead are
    /// counted by reason: `log_refused_names` (a hard link, a move to another directory), `_taken` (a name that would lead elsewhere after a
    /// replay), `_subvolume` and `_chunk` (the last commit does not know it), `_clone`, `_prealloc` (space reserved behind the end),
    /// `_large`, `_room`, `_failed`, and `_off` (notreelog). `log_searches` are searches in trees for logs. `beyond_promise` are tree blocks
    /// that commits took beyond what was set aside for them. Names with `_us` are the microseconds that commits spent in each phase.
    /// `held_by_kernel` are the files that the kernel remembers.
    Stats(Stats),
}

/// Arguments of `filesystem sync`.
#[derive(Debug, Args)]
pub struct Sync {
    /// DEVICE[:PATH] or a path on a live mount
    #[arg(value_name = "TARGET")]
    target: OsString,
}

/// Arguments of `filesystem stats`.
#[derive(Debug, Args)]
pub struct Stats {
    /// A path on a live mount
    #[arg(value_name = "DIRECTORY")]
    target: PathBuf,
}

/// Does what was asked.
pub fn run(command: &Filesystem, globals: &Globals, out: &mut dyn Write) -> Result<(), Failure> {
    match command {
        Filesystem::Show(args) => show::run(args, globals, out),
        Filesystem::Usage(args) => usage::run(args, globals, out),
        Filesystem::Df(args) => df::run(args, globals, out),
        Filesystem::CompSize(args) => compsize::run(args, globals, out),
        Filesystem::Du(args) => du::run(args, globals, out),
        Filesystem::Label(args) => label::run(args, globals, out),
        Filesystem::Resize(args) => resize::run(args, globals, out),
        Filesystem::Trim(args) => trim::run(args, globals, out),
        Filesystem::Sync(args) => sync(args, globals),
        Filesystem::Stats(args) => stats(args, globals, out),
    }
}

/// What there is to know about the filesystem at a target.
pub fn info(target: &OsString, globals: &Globals) -> Result<Info, Failure> {
    session(globals, Access::ReadOnly, |session| {
        let vnode = session.find(&Target::any(target, globals), true)?;
        Vfs::of(&vnode)?.info()
    })
}

/// Tells of the filesystem at each target, with an empty line between them in text; what cannot be opened does not keep the others.
pub fn of_each<'a>(
    targets: &[OsString],
    globals: &'a Globals,
    out: &mut dyn Write,
    mut tell: impl FnMut(Info, &mut dyn Write) -> Result<(), Failure>,
) -> Result<Failures<'a>, Failure> {
    let (mut failures, mut is_first) = (Failures::new(globals), true);
    for target in targets {
        let info = match info(target, globals) {
            Ok(info) => info,
            Err(failure) => {
                failures.note(Err(failure), out)?;
                continue;
            }
        };
        if !std::mem::take(&mut is_first) && globals.format == Format::Text {
            writeln!(out)?;
        }
        tell(info, out)?;
    }
    Ok(failures)
}

fn stats(args: &Stats, globals: &Globals, out: &mut dyn Write) -> Result<(), Failure> {
    let figures = client::stats(&args.target).map_err(|errno| {
        let failure = Failure::new("cannot ask", args.target.display(), FileError::from(errno));
        failure.hint("It must lie on a live mount of buttress; `buttress mount` lists them.")
    })?;
    Ok(output::write_figures(out, globals.format, &figures)?)
}

fn sync(args: &Sync, globals: &Globals) -> Result<(), Failure> {
    // Nothing waits to be written in an unmounted image: reading it is enough to say so.
    session(globals, Access::ReadOnly, |session| {
        let vnode = session.find(&Target::any(&args.target, globals), true)?;
        match Vfs::of(&vnode)? {
            Vfs::Image(_) => Ok(()),
            live => live.sync(),
        }
    })
}
