//! `cp`: copies into, out of and within images.

use std::ffi::OsString;
use std::io::Write;

use buttress_device::Access;
use clap::Args;

use super::copy::{Copying, How, Progress, base_name, destination, new_entry};
use super::files::session;
use crate::args::Globals;
use crate::error::Failure;
use crate::vnode::{Kind, New, Session, Target, Vnode, warn_if_used};

/// Arguments of `cp`.
#[derive(Debug, Args)]
pub struct Cp {
    /// What to copy, and where to as the last: DEVICE:PATH or ordinary paths
    #[arg(required = true, num_args = 2.., value_name = "PATH")]
    paths: Vec<OsString>,
    /// Directories with all that is in them
    #[arg(short, long, visible_short_alias = 'R')]
    recursive: bool,
    /// Directories too, and keep owners, modes, times, extended attributes and hard links
    #[arg(short, long)]
    archive: bool,
    /// Keep owners, modes and times
    #[arg(short, long)]
    preserve: bool,
    /// Keep what is there
    #[arg(short, long)]
    no_clobber: bool,
    /// Follow symbolic links in SOURCE
    #[arg(short = 'L', long)]
    dereference: bool,
    /// DESTINATION is the new name itself, never a directory to copy into
    #[arg(short = 'T', long)]
    no_target_directory: bool,
}

/// Copies.
pub fn run(args: &Cp, globals: &Globals, out: &mut dyn Write) -> Result<(), Failure> {
    let Some((last, sources)) = args.paths.split_last() else {
        return Err(Failure::usage("cannot copy", "source and destination are needed"));
    };
    let last = Target::destination(last, globals);
    let access = match last {
        Target::Image { .. } => Access::ReadWrite,
        Target::Host(_) => Access::ReadOnly,
    };
    let progress = Progress::new(globals);
    let how = How {
        preserve: args.preserve || args.archive,
        everything: args.archive,
        no_clobber: args.no_clobber,
        contents: !(args.recursive || args.archive),
    };
    let mut copying = Copying::new(how, globals, &progress);
    let job = Job { args, destination: &last, sources: sources.len() };
    session(globals, access, |session| {
        session.write_only_to(&last);
        for source in sources {
            if copying.stops() {
                break;
            }
            let source = Target::path(source);
            let done = job.copy(&source, &mut copying, session, out);
            copying.note(done, out)?;
        }
        copying.settle(out)
    })?;
    progress.finish();
    copying.end()
}

/// What all sources have in common.
struct Job<'a> {
    args: &'a Cp,
    destination: &'a Target,
    sources: usize,
}

impl Job<'_> {
    fn copy(
        &self,
        source: &Target,
        copying: &mut Copying<'_>,
        session: &mut Session<'_>,
        out: &mut dyn Write,
    ) -> Result<(), Failure> {
        let Job { args, destination: last, sources } = *self;
        let follow = args.dereference || !(args.recursive || args.archive);
        let from = session.find(source, follow)?;
        let facts = from.facts().map_err(|why| from.failure("cannot read", why))?;
        if facts.kind == Kind::Directory && !(args.recursive || args.archive) {
            return Err(from
                .failure("cannot copy", "Is a directory")
                .hint("To copy it with all that is in it, add -r."));
        }
        if facts.kind == Kind::Regular {
            warn_if_used(&from, copying.globals());
        }
        let name = if args.no_target_directory { None } else { base_name(source) };
        // The top of a filesystem has no name: what is in it goes into the destination.
        if name.is_none() && facts.kind == Kind::Directory {
            let to = directory(last, &copying.new_directory(&facts), session)?;
            return copying.content(&from, &to, out);
        }
        let is_content = facts.kind == Kind::Regular || copying.takes_contents(&from, &facts);
        let last = match is_content && sources == 1 {
            true => &session.through_links(last)?,
            false => last,
        };
        if let Some(sink) = sink(last, session)?.filter(|_| is_content) {
            return copying.pour(&from, &sink);
        }
        let what = format!("cannot copy {from} to");
        let (to, name) = match args.no_target_directory {
            true => new_entry(session, last, (&what, facts.kind))?,
            false => {
                let new = (what.as_str(), facts.kind);
                let (to, name) = destination(session, last, name, sources > 1, new)?;
                (to, name.unwrap_or_default())
            }
        };
        copying.copy(&from, &to, &name, out)
    }
}

/// The directory at a target, made if it is not there.
fn directory(target: &Target, new: &New, session: &mut Session<'_>) -> Result<Vnode, Failure> {
    if let Ok(vnode) = session.find(target, true) {
        return Ok(vnode);
    }
    let (parent, name) = session.find_parent(target)?;
    parent
        .make(&name, new)
        .map_err(|why| Failure::new("cannot make", parent.entry_name(&name), why))
}

/// The pipe or device at a target that takes what is written to it, and keeps nothing; or what is open and has no name any more.
fn sink(target: &Target, session: &mut Session<'_>) -> Result<Option<Vnode>, Failure> {
    let Target::Host(path) = target else { return Ok(None) };
    if !path.exists() {
        return Ok(None);
    }
    let vnode = session.find(target, true)?;
    let kind = vnode.facts().map_err(|why| vnode.failure("cannot read", why))?.kind;
    let is_sink = match kind {
        Kind::Fifo | Kind::Character => true,
        Kind::Regular => path.canonicalize().is_err(),
        _ => false,
    };
    Ok(is_sink.then_some(vnode))
}
